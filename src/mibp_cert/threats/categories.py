"""What is commonly wrong with categories: any other one, confused or neighbouring ones, and answers that are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UserError
from mibp_cert.sets import Part
from mibp_cert.threats.cells import choice_parts, picked_columns, plain
from mibp_cert.threats.combine import Catalogued
from mibp_cert.threats.conditions import Rows
from mibp_cert.threats.words import ANY_ROW, at, names


@dataclass(frozen=True, eq=False)
class AnyCategory(Catalogued):
    """The category may be wrong: any category of the column (or of `among`) may be the true one.

    >>> AnyCategory("smoker").to_json()
    {'kind': 'any-category', 'columns': 'smoker'}
    """

    columns: Any
    among: Sequence[Any] | None = None
    kind = "any-category"

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        out = []
        for j in picked_columns(clean, self.columns):
            column = _categorical(clean.columns[j])
            options = (
                range(column.stop - column.start) if self.among is None else [column.number(c) for c in self.among]
            )
            out += _choices(clean, column, {k: list(options) for k in range(column.stop - column.start)}, rows)
        return out

    def words(self, rows: str = ANY_ROW) -> str:
        among = "" if self.among is None else f" among {names(plain(self.among))}"
        return at(f"{names(plain(self.columns))} may be any category{among}", rows)


@dataclass(frozen=True, eq=False)
class Confusable(Catalogued):
    """A reported category may stand for others: `{reported: [possible true ones]}`, itself always among them.

    >>> Confusable("employment", {"retired": ["unemployed"]}).to_json()
    {'kind': 'confusable', 'column': 'employment', 'pairs': {'retired': ['unemployed']}}
    """

    column: str | int
    pairs: Any
    """A mapping, or pairs `(reported, possible true ones)`."""
    kind = "confusable"

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", dict(self.pairs))

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        column = _categorical(clean.columns[clean.column(self.column)])
        options = {column.number(k): [column.number(v) for v in values] for k, values in self.pairs.items()}
        return _choices(clean, column, options, rows)

    def words(self, rows: str = ANY_ROW) -> str:
        listed = "; ".join(f"{plain(k)!r} may stand for {names(plain(list(v)))}" for k, v in self.pairs.items())
        return f"{names(self.column)} may be confused: {listed}"

    def to_json(self) -> dict[str, Any]:
        # Keys of JSON objects are text; other categories are kept as pairs.
        text = all(isinstance(key, str) for key in self.pairs)
        pairs = self.pairs if text else [[key, list(values)] for key, values in self.pairs.items()]
        return super().to_json() | {"pairs": plain(pairs)}


@dataclass(frozen=True, eq=False)
class Shift(Catalogued):
    """Ordered categories, reported one off: the true one is the reported `k` or its neighbour `k + by` in the column's order.

    `among`: the categories that have an order, in that order; default all. Others stay as they are.

    >>> Shift("mental health", by=-1).to_json()
    {'kind': 'shift', 'column': 'mental health', 'by': -1}
    """

    column: str | int
    by: int
    among: Sequence[Any] | None = None
    kind = "shift"

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        column = _categorical(clean.columns[clean.column(self.column)])
        if isinstance(self.by, bool) or self.by != int(self.by) or self.by == 0:
            raise UserError(f"by must be a whole number other than 0, got {self.by}.")
        names = column.categories if self.among is None else self.among
        order = [column.number(name) for name in names or ()]
        options = {k: [order[i + self.by]] for i, k in enumerate(order) if 0 <= i + self.by < len(order)}
        return _choices(clean, column, options, rows)

    def words(self, rows: str = ANY_ROW) -> str:
        return f"{names(self.column)} may really be the category {int(self.by):+d} away from the one reported"

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"by": int(self.by)}


@dataclass(frozen=True, eq=False)
class Missing(Catalogued):
    """Unknown values: NaN, or a marker such as −1, stands for any valid value: any other category, or the column's range.

    `columns`: default all columns in which a value is missing.

    >>> Missing("age").to_json()
    {'kind': 'missing', 'columns': 'age'}
    """

    columns: Any = None
    marker: Any = None
    kind = "missing"
    always = ("columns",)

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        out, found = [], False
        named = range(len(clean.columns)) if self.columns is None else picked_columns(clean, self.columns)
        for j in named:
            column = clean.columns[j]
            lost = self._lost(clean, j)
            if not lost.any() and self.columns is not None:
                what = "missing value" if self.marker is None else f"value {self.marker!r}"
                raise UserError(f"The column '{column.name}' has no {what}; leave it out or correct the marker.")
            found |= bool(lost.any())
            lost = lost & rows
            if not lost.any():
                continue
            out += self._unknown(clean, column, lost)
        if not found:
            raise UserError("No value is missing in any column; leave out Missing() or name its marker.")
        return out

    def _lost(self, clean: Dataset, j: int) -> Rows:
        column = clean.columns[j]
        if self.marker is None:
            return np.zeros(len(clean), dtype=bool) if clean.missing is None else clean.missing[:, j]
        if isinstance(self.marker, list | tuple | set | np.ndarray):
            raise UserError(
                "Missing takes one marker; combine several with &: Missing(c, marker=-1) & Missing(d, marker=-9)."
            )
        if column.categories is not None:
            if self.marker not in column.categories:
                if self.columns is None:
                    return np.zeros(len(clean), dtype=bool)
                column.number(self.marker)
            return np.asarray(clean.x[:, column.start + column.number(self.marker)] == 1.0)
        if not isinstance(self.marker, int | float | np.number):
            if self.columns is None:
                return np.zeros(len(clean), dtype=bool)
            raise UserError(f"The column '{column.name}' is numeric; its marker must be a number, not {self.marker!r}.")
        return np.asarray(clean.x[:, column.start] == column.to_feature(self.marker))

    def _unknown(self, clean: Dataset, column: Column, lost: Rows) -> list[Part]:
        rows = np.flatnonzero(lost).astype(np.intp)
        known = clean.x[~lost]
        if column.categories is not None:
            valid = [k for k, name in enumerate(column.categories) if self.marker is None or name != self.marker]
            if not valid:
                raise UserError(f"The column '{column.name}' has no category but the marker {self.marker!r}.")
            counts = known[:, column.start : column.stop].sum(axis=0)
            best = valid[int(np.argmax(counts[valid]))]
            others = np.array([k for k in valid if k != best], dtype=np.intp)
            first = rows * clean.features + column.start
            place = (first[:, None] + others[None, :]).ravel()
            sizes = np.full(len(rows), len(others), dtype=np.intp)
            zero = np.zeros(len(place))
            return [Part("choice", "x", rows, sizes, place, zero, zero + 1, reference=first + best, without_clean=True)]
        ends = column.to_feature([column.low, column.high])
        if not np.isfinite(ends).all():
            values = known[:, column.start]
            if not len(values):
                raise UserError(f"The column '{column.name}' has no known value, so its range is unknown; drop it.")
            ends = np.array([values.min(), values.max()])
        place = rows * clean.features + column.start
        low, high = np.full(len(rows), ends.min()), np.full(len(rows), ends.max())
        fill = np.full(len(rows), known[:, column.start].mean() if len(known) else ends.mean())
        ones = np.ones(len(rows), dtype=np.intp)
        return [Part("box", "x", rows, ones, place, low, high, fill=fill, without_clean=True)]

    def knows_missing(self) -> bool:
        return True

    def words(self, rows: str = ANY_ROW) -> str:
        where = "of any column" if self.columns is None else f"of {names(plain(self.columns))}"
        what = "missing values" if self.marker is None else f"values {self.marker!r}"
        return f"{what} {where} may be any valid value (a number within the range seen in training, or any category)"


def _categorical(column: Column) -> Column:
    if column.categories is None:
        raise UserError(f"The column '{column.name}' is numeric; use LInf, Rounded or Monotone there.")
    return column


def _choices(clean: Dataset, column: Column, options: Mapping[int, list[int]], rows: Rows) -> list[Part]:
    reported = clean.x[:, column.start : column.stop].argmax(axis=1)
    width = column.stop - column.start
    return choice_parts("x", reported, options, rows, clean.features, column.start, width)
