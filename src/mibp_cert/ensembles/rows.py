"""Rows as they are typed: which part a row belongs to, by what is fixed in advance, and in which order a part has its rows.

Numbers are 64-bit floating-point numbers, everything else is text; of which kind a column is, how many there are, and their
names are taken as given. The *content* of a row is a sequence of bytes: for every cell a letter for its kind, then the eight
bytes of the number (the lowest first; all NaN alike) or the length and the UTF-8 bytes of the text; the label comes last.
Different rows have different contents, and the same row has the same one in every process and on every machine.

A part is chosen by a keyed BLAKE2b hash of

- `content`: the whole row. A row that comes or goes reaches one part, one that is altered two: that which it left and that
  which it went to. Rows that are alike are in the same part.
- `features`: the row without its label. The same, but a wrong label reaches one part.
- `key`: something else that is known of the row and cannot be wrong, such as who it is about. Every wrong row reaches one part.
- `row`: its number, where rows neither come nor go. Every wrong row reaches one part. The numbers are put in the order of their
  hashes and dealt out, so that parts differ by at most one row.

Which part a row is in depends on no other row, nor does the order inside of a part: by the hash of the content, and by the
content where hashes are alike; by the number, where parts are chosen by it. So a part is the same sequence of rows, to the
last bit, whatever happens to rows of other parts; they are neither counted nor looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mibp_cert.ensembles.votes import Index
from mibp_cert.errors import UserError

BASES = ("content", "features", "key", "row")
"""What a part may be chosen by."""
Features = NDArray[np.float64] | pd.DataFrame


@dataclass(frozen=True, eq=False)
class Rows:
    """Typed rows with their labels."""

    x: Features
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Sequence[int] | Index) -> Rows:
        """These rows, as if there were no others: with their own numbering, and labels that are kept as if they were the only
        ones."""
        some = np.asarray(rows, dtype=np.intp)
        x = self.x.iloc[some].reset_index(drop=True) if isinstance(self.x, pd.DataFrame) else self.x[some].copy()
        # Text is as long as the longest label of these rows, and numbers, which are whole ones, are of one type, whichever
        # the whole table needed: a wrong row with the label 2 makes whole numbers of all that were true or false.
        return Rows(x, np.array(self.y[some].tolist(), dtype=np.int64 if self.y.dtype.kind in "biuf" else None))

    def with_labels(self, place: int, label: Any) -> Rows:
        """The same rows, of which one has another label."""
        y = np.array(self.y.tolist(), dtype=object)
        y[place] = label
        return Rows(self.x, np.array(y.tolist()))

    def planted(self, row: Rows, place: int | None) -> Rows:
        """These rows with another one, at the end or in place of one."""
        kept = np.delete(np.arange(len(self)), [] if place is None else [place])
        y = [*self.y[kept].tolist(), *row.y.tolist()]
        if isinstance(self.x, pd.DataFrame):
            x: Features = pd.concat([self.x.iloc[kept], pd.DataFrame(row.x)], ignore_index=True)
        else:
            x = np.concatenate([self.x[kept], row.x])
        order = np.arange(len(y)) if place is None else np.insert(np.arange(len(y) - 1), place, len(y) - 1)
        return Rows(x, np.array(y)).take(order)

    def gaps(self) -> list[str]:
        """The columns in which a value is missing."""
        frame = pd.DataFrame(self.x)
        return [str(name) for name in frame.columns if frame[name].isna().any()]

    def text(self) -> set[str]:
        """The columns of text."""
        frame = pd.DataFrame(self.x)
        return {str(name) for name in frame.columns if frame[name].dtype.kind == "O"}

    def contents(self, *, labels: bool = True) -> list[bytes]:
        """The contents of the rows, with or without their labels."""
        if isinstance(self.x, pd.DataFrame):
            parts = [_cells(self.x[name].to_numpy()) for name in self.x.columns]
        else:
            parts = [_numbers(column) for column in self.x.T]
        return [b"".join(cells) for cells in zip(*parts, *([_cells(self.y)] if labels else []), strict=True)]


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns of numbers as 64-bit floating-point ones, all others as text; what is neither is refused.

    >>> typed(pd.DataFrame({"age": [30, 40], "mood": ["good", None]})).dtypes.astype(str).tolist()
    ['float64', 'object']
    """
    found = {}
    for name in frame.columns:
        values = frame[name]
        if pd.api.types.is_numeric_dtype(values.dtype):
            found[name] = pd.Series(values.to_numpy(dtype=np.float64, na_value=np.nan), index=frame.index)
            continue
        known = values.notna().to_numpy()
        cells = np.where(known, values.astype(object).to_numpy(), np.nan)
        strange = next((cell for cell in cells[known] if not isinstance(cell, str)), None)
        if strange is not None:
            raise UserError(
                f"The column '{name}' holds {strange!r}, which is neither a number nor text: give it as one of the two."
            )
        found[name] = pd.Series(cells, index=frame.index, dtype=object)
    return pd.DataFrame(found, index=frame.index, columns=frame.columns)


def hashed(contents: Sequence[bytes], seed: int) -> list[int]:
    """A number below 2¹²⁸ for each of the contents."""
    key = seed.to_bytes(8, "little")
    return [int.from_bytes(blake2b(content, digest_size=16, key=key).digest(), "little") for content in contents]


def ordered(rows: Rows, seed: int) -> Index:
    """The order that does not depend on how rows were handed in: by the hash of the content, then by the content."""
    contents = rows.contents()
    ranks = list(zip(hashed(contents, seed), contents, strict=True))
    return np.array(sorted(range(len(rows)), key=ranks.__getitem__), dtype=np.intp)


def chosen(rows: Rows, parts: int, by: str, seed: int, keys: NDArray[Any] | None = None) -> Index:
    """The part of each row."""
    if by == "row":
        found, numbers = np.empty(len(rows), dtype=np.intp), np.arange(len(rows), dtype=np.intp)
        drawn = hashed([struct.pack("<q", i) for i in range(len(rows))], seed)
        found[sorted(range(len(rows)), key=drawn.__getitem__)] = numbers % parts
        return found
    said = _cells(np.asarray(keys)) if by == "key" else rows.contents(labels=by == "content")
    return np.array([number % parts for number in hashed(said, seed)], dtype=np.intp)


def dealt(rows: Rows, parts: int, by: str, seed: int, keys: NDArray[Any] | None = None) -> list[Index]:
    """The rows of every part, in their order."""
    order = np.arange(len(rows), dtype=np.intp) if by == "row" else ordered(rows, seed)
    part = chosen(rows, parts, by, seed, keys)[order]
    return [order[part == p] for p in range(parts)]


def nudged(x: Features, row: int, count: int, rng: np.random.Generator) -> Features:
    """So many copies of one of these rows, the first as it is, the others with numbers that are larger by some rounding
    errors."""
    factors = 1.0 + 2.0**-50 * rng.integers(1, 64, (count, x.shape[1]))
    factors[0] = 1.0
    if isinstance(x, np.ndarray):
        return np.asarray(x[row] * factors)
    copies = x.iloc[[row] * count].reset_index(drop=True)
    for j, name in enumerate(copies.columns):
        if copies[name].dtype.kind == "f":
            copies[name] = copies[name] * factors[:, j]
    return copies


def mixed(x: Features, count: int = 200) -> Features:
    """At least so many rows (if there are any) whose cells are those of these rows, put together anew, column by column; the
    same ones each time."""
    rng, times = np.random.default_rng(0), -(-count // max(1, len(x)))
    some = np.arange(len(x)).repeat(times)
    if isinstance(x, np.ndarray):
        return rng.permuted(x[some], axis=0)
    columns = {name: x[name].iloc[rng.permutation(some)].reset_index(drop=True) for name in x.columns}
    return pd.DataFrame(columns, columns=x.columns)


def _numbers(values: NDArray[Any]) -> list[bytes]:
    plain = np.array(values, dtype="<f8")
    plain[np.isnan(plain)] = np.nan
    data = plain.tobytes()
    return [b"n" + data[8 * i : 8 * i + 8] for i in range(len(plain))]


def _cells(values: NDArray[Any]) -> list[bytes]:
    """Cells of one column: numbers, or text that may be missing."""
    if values.dtype.kind in "iufb":
        return _numbers(values)
    return [_one(value) for value in values.tolist()]


def _one(value: Any) -> bytes:
    if isinstance(value, bool | int | float):
        return _numbers(np.array([value]))[0]
    data = str(value).encode("utf-8", "surrogatepass")
    return b"t" + struct.pack("<Q", len(data)) + data
