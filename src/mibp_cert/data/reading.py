"""How a user's file becomes a table: which columns it has, which of them say nothing, and what each cell is.

What cannot be read for sure is refused with a sentence that names the line or the column: ragged rows, bytes in another encoding,
columns that mix numbers and text, rows without a target. What only counts or names the rows is left out, and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from shlex import quote
from typing import Any

import pandas as pd

from mibp_cert.data.dataset import Origin, check_different, listed
from mibp_cert.data.files import SEPARATORS, Cells, checked_separator, read_cells
from mibp_cert.data.kinds import MARKS, counts_rows, typed
from mibp_cert.errors import UserError

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None")
"""Texts that stand for a missing value."""
LEAST_ROWS = 10
INDEX = re.compile(r"Unnamed: ?\d+(?:[._]\d+)*")
"""What pandas calls columns without a name."""
UNLABELLED = ("refuse", "drop")
TEXTS = "tuple[str, ...]"
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "bool": ((bool,), "true or false"),
    "int": ((Integral,), "a whole number"),
    "float": ((Real,), "a number"),
    TEXTS: ((tuple, list), "a list of texts"),
}
"""What fields may hold, by how they are declared."""


@dataclass(frozen=True)
class Reading:
    """How a file is to be read, and which rows are for what."""

    target: str
    test: float = 0.25
    """Share of the rows kept for testing; of the others, `validation` is the share kept for choosing the epoch."""
    validation: float = 0.2
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    """Columns that stay although they do nothing but count the rows."""
    categorical: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Further texts that stand for a missing value."""
    unlabelled: str = "refuse"
    """Rows without a target: `"refuse"` the file, or `"drop"` them."""
    regression: bool | None = None
    """Whether the target is a number; default: it is where it has many different values that are numbers."""
    scaling: str = "standard"
    separator: str | None = None
    encoding: str = "utf-8"
    decimal: str = "."
    """What stands before the decimals: a point, or a comma."""
    thousands: str | None = None
    """What stands between thousands, as in 1,234,567; None: nothing does."""
    sample: int | None = None
    """Use so many rows only, drawn at random."""

    def __post_init__(self) -> None:
        for f in fields(self):
            self._check_kind(f.name, str(f.type))
        if self.unlabelled not in UNLABELLED:
            raise UserError(f"--unlabelled takes {' or '.join(UNLABELLED)}, got {self.unlabelled!r}.")
        if self.decimal not in (".", ","):
            raise UserError(f"--decimal takes a point or a comma, got {self.decimal!r}.")
        if self.thousands is not None and (self.thousands not in MARKS or self.thousands == self.decimal):
            other = "" if self.thousands in MARKS else ", a space, ' or _"
            raise UserError(
                f"--thousands takes {'a point' if self.decimal == ',' else 'a comma'}{other} where --decimal is "
                f"'{self.decimal}', got {self.thousands!r}."
            )
        if self.sample is not None and self.sample < LEAST_ROWS:
            raise UserError(f"--sample takes a number of rows, at least {LEAST_ROWS}; got {self.sample}.")
        if self.separator is not None:
            checked_separator(self.separator)
        if self.target in self.drop:
            raise UserError(f"--drop {self.target} names the target itself; name another column, or another target.")
        for name in self.drop:
            if name in (*self.keep, *self.categorical):
                raise UserError(f"The column '{name}' is to be left out and to be kept; say one of the two.")

    def _check_kind(self, name: str, declared: str) -> None:
        """Refuse what a file may say that no flag can."""
        value, (kind, _, may_be_none) = getattr(self, name), declared.partition(" | ")
        kinds, words = KINDS[kind]
        fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        if declared == TEXTS:
            fits = fits and all(isinstance(text, str) for text in value)
        if not fits and not (may_be_none and value is None):
            raise UserError(f"{name} takes {words}, got {value!r}.")


@dataclass(frozen=True)
class Table:
    """A file that was read: every cell is a number, a text or missing; the index holds the places in the file (of a row that
    spans several lines: its last)."""

    frame: pd.DataFrame
    origin: Origin
    notes: tuple[str, ...] = ()
    """What was done to it that a user should know."""


@dataclass
class _Named:
    """Columns by name, in the file's order, and why others are left out."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def leave_out(self, name: str, why: str, note: str = "") -> None:
        self.texts.pop(name, None)
        self.left_out[name] = why
        self.notes += [note] if note else []


def read_table(path: str | Path, reading: Reading) -> pd.DataFrame:
    """The file as a table; see `read_file`."""
    return read_file(path, reading).frame


def read_file(path: str | Path, reading: Reading, like: Table | None = None, *, spoken: Iterable[str] = ()) -> Table:
    """The file as a table, without the columns that are to be dropped, that only count or name the rows, or that hold nothing.

    `like`: a table read before, such as the one with the training rows; what is left out there is left out here, and what is text
    there is text here. `spoken`: further columns that the user spoke of, which stay.
    """
    path = Path(path)
    if like is not None:  # digits are text where the other table has text
        text = [str(name) for name in like.frame.columns if not pd.api.types.is_numeric_dtype(like.frame[name])]
        reading = replace(reading, categorical=(*reading.categorical, *text))
    cells = read_cells(path, reading.separator, reading.encoding, reading.decimal)
    named = _named(path, cells)
    for name in reading.drop if like is None else (*reading.drop, *like.origin.left_out):
        if name in named.texts:
            named.leave_out(name, "as asked")
    _check_wanted(path, reading, named)
    places = pd.Index(list(cells.rows), name=cells.place)
    gone = {*MISSING, *reading.missing}
    columns = {name: _column(name, texts, places, gone, reading) for name, texts in named.texts.items()}
    like_columns = () if like is None else like.frame.columns
    _leave_out_silent(columns, {reading.target, *reading.keep, *reading.categorical, *like_columns, *spoken}, named)
    frame = pd.DataFrame({name: columns[name] for name in named.texts}, places)
    lost = frame[reading.target].isna()
    if lost.any() and reading.unlabelled != "drop":
        raise UserError(
            f"{lost.sum()} of {len(frame)} rows have no value in the target column '{reading.target}' (first in {cells.place} "
            f"{frame.index[lost][0]}); fill them in, or leave those rows out with --unlabelled drop."
        )
    dropped = [f"{lost.sum()} row(s) without a target are left out."] if lost.any() else []
    origin = Origin(reading.target, tuple(named.order), named.left_out)
    return Table(frame[~lost], origin, (*cells.notes, *named.notes, *dropped))


def _named(path: Path, cells: Cells) -> _Named:
    """Columns by name. One without a name that counts or names the rows, as pandas' index and R's row names do, or that is empty,
    is left out."""
    names = [name.strip() for name in cells.header]
    check_different([name for name in names if name], path)
    found = _Named()
    for j, (name, *texts) in enumerate(zip(names, *cells.rows.values(), strict=True)):
        values = [text.strip() for text in texts]
        called = name or f"(column {j + 1})"
        found.order.append(called)
        if name and not (j == 0 and INDEX.fullmatch(name)):
            found.texts[name] = values
        elif not any(values):
            found.leave_out(called, "it is empty", f"Column {j + 1} has neither a name nor values: it is left out.")
        elif len(values) > 1 and counts_rows(pd.Series(values, dtype=object)):
            why = f"it counts the rows, from {values[0]} to {values[-1]}"
            found.leave_out(called, why, f"Column {j + 1} has no name and only counts the rows: it is left out.")
        elif j == 0 and len(set(values)) == len(values) > 1 and not any(map(_is_fraction, values)):
            note = "The first column has no name and another value in every row, as names of rows have: it is left out."
            found.leave_out(called, "it names the rows", note)
        elif name:
            found.texts[name] = values
        else:
            raise UserError(f"Column {j + 1} of {path} has no name; the first line must name all columns.")
    return found


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[+-]?(\d+[.,]?\d*|[.,]\d+)(e[+-]?\d+)?", text, re.IGNORECASE))


def _is_fraction(text: str) -> bool:
    """A number that is not written as a whole one: something measured, no name of a row."""
    return _is_number(text) and not text.isdecimal()


def _check_wanted(path: Path, reading: Reading, named: _Named) -> None:
    """Refuse names that no column has."""
    names = list(named.texts)
    for name in (reading.target, *reading.drop, *reading.keep, *reading.categorical):
        if name in names or (name in named.left_out and name in reading.drop):
            continue
        if name in named.left_out:
            raise UserError(
                f"The column '{name}' of {path} is left out, since {named.left_out[name]}; give it a name in the first line if "
                "it is to be used."
            )
        why = ""
        if any(map(_is_number, names)):
            why = ": the first line must name the columns"
        elif len(names) == 1 and any(mark in names[0] for mark in SEPARATORS):
            why = ", separated by something else (--separator)"
        raise UserError(f"There is no column '{name}' in {path}; there are {listed(names, name)}{why}.")


def _column(name: str, texts: Sequence[str], places: pd.Index[Any], gone: set[str], reading: Reading) -> pd.Series[Any]:
    """A column with what it holds: numbers, text, and nothing where a text stands for a missing value."""
    values = pd.Series([None if text in gone else text for text in texts], places, dtype=object)
    if name in reading.categorical or not values.notna().any():
        return values
    target = name == reading.target
    return typed(name, values, reading.decimal, reading.thousands, str(places.name), target=target)


def _leave_out_silent(columns: Mapping[str, pd.Series[Any]], spoken: set[str], named: _Named) -> None:
    """Leave out columns that hold no value at all, and those that count the rows, unless nobody else is left; `spoken`: columns
    that the user spoke of."""
    for name, values in columns.items():
        if name not in spoken and not values.notna().any():
            named.leave_out(name, "it is empty", f"The column '{name}' holds no value at all: it is left out.")
    counting = [
        name
        for name in named.texts
        if name not in spoken
        and len(columns[name]) >= LEAST_ROWS
        and pd.api.types.is_numeric_dtype(columns[name])
        and counts_rows(columns[name])
    ]
    others = [name for name in named.texts if name not in counting]
    for name in counting if len(others) > 1 else counting[1:]:
        first, last = columns[name].iloc[[0, -1]]
        why = f"it counts the rows, from {first:.15g} to {last:.15g}"
        named.leave_out(name, why, f"The column '{name}' is left out: {why}; --keep {quote(name)} keeps it.")
