"""What is commonly wrong with categories and labels: any other one, confused or neighbouring ones, and answers that are missing.

A part names the options of each one-hot group, a category's or a label's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UserError
from mibp_cert.sets import Part
from mibp_cert.sets.blocks import Array
from mibp_cert.threats.base import ANY_ROW, Budget, Catalogued, at, count, names, picked_columns, plain
from mibp_cert.threats.conditions import Rows

INSTEAD = "; use LInf, Rounded or Monotone there"


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
            column = clean.columns[j].expect(True, INSTEAD)
            options = _numbers(column, self.among)
            out += _choices("x", clean.x, column, dict.fromkeys(range(column.stop - column.start), options), rows)
        return out

    def words(self, rows: str = ANY_ROW) -> str:
        among = "" if self.among is None else f" among {names(self.among)}"
        return at(f"{names(self.columns)} may be any category{among}", rows)


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
        try:
            pairs = dict(self.pairs)
        except (TypeError, ValueError):
            pairs = {}
        if not pairs or any(isinstance(true, str) or not isinstance(true, Iterable) for true in pairs.values()):
            raise UserError(
                "pairs says for categories what they may really be, such as {'retired': ['unemployed']}; got "
                f"{self.pairs!r}."
            )
        object.__setattr__(self, "pairs", pairs)

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        column = clean.columns[clean.column(self.column)].expect(True, INSTEAD)
        options = {column.number(k): _numbers(column, values) for k, values in self.pairs.items()}
        return _choices("x", clean.x, column, options, rows)

    def words(self, rows: str = ANY_ROW) -> str:
        listed = "; ".join(f"{plain(k)!r} may stand for {names(list(v))}" for k, v in self.pairs.items())
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

    def __post_init__(self) -> None:
        whole = isinstance(self.by, int | float | np.integer) and self.by == np.floor(self.by)
        if isinstance(self.by, bool) or not whole or self.by == 0:
            raise UserError(f"by must be a whole number other than 0, got {self.by!r}.")
        if self.among is not None and (isinstance(self.among, str) or not isinstance(self.among, Iterable)):
            raise UserError(f"among takes a list of categories in their order, got {self.among!r}.")
        object.__setattr__(self, "by", int(self.by))

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        column = clean.columns[clean.column(self.column)].expect(True, INSTEAD)
        order = _numbers(column, self.among)
        options = {k: [order[i + self.by]] for i, k in enumerate(order) if 0 <= i + self.by < len(order)}
        return _choices("x", clean.x, column, options, rows)

    def words(self, rows: str = ANY_ROW) -> str:
        return f"{names(self.column)} may really be the category {self.by:+d} away from the one reported"


@dataclass(frozen=True, eq=False)
class LabelFlips(Catalogued):
    """At most `at_most` labels are wrong (default: any number), optionally only labels in `source`, and only towards `target`.

    >>> LabelFlips(2).to_json()
    {'kind': 'label-flips', 'at_most': 2}
    """

    at_most: int | None = None
    source: Sequence[Any] | None = None
    target: Sequence[Any] | None = None
    kind = "label-flips"
    always = ("at_most",)

    def __post_init__(self) -> None:
        if self.at_most is not None:
            Budget(self, rows=self.at_most)  # refuses a number that makes no sense

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        if self.at_most is not None:
            free = LabelFlips(None, self.source, self.target)
            return Budget(free, rows=self.at_most).parts(clean, rows, limits)
        if clean.targets is not None:
            raise UserError("LabelFlips is for classes; the targets of a regression are moved by TargetNoise.")
        some = [clean.classes if given is None else given for given in (self.source, self.target)]
        source, target = (clean.number(classes).tolist() for classes in some)
        label = Column("label", 0, len(clean.classes), clean.classes)
        return _choices("y", clean.one_hot, label, dict.fromkeys(source, target), rows)

    def words(self, rows: str = ANY_ROW) -> str:
        source = "" if self.source is None else f"{names(self.source)} "
        target = "" if self.target is None else f" (and really be {names(self.target)})"
        what = f"any number of {source}labels" if rows else f"the {source}label"
        if self.at_most is not None:
            what = f"at most {count(int(self.at_most), f'{source}label')}"
        return f"{what} may be wrong{target}"


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
        for j in range(len(clean.columns)) if self.columns is None else picked_columns(clean, self.columns):
            lost = self._lost(clean, j)
            if not lost.any() and self.columns is not None:
                what = "missing value" if self.marker is None else f"value {self.marker!r}"
                name = clean.columns[j].name
                raise UserError(f"The column '{name}' has no {what}; leave it out or correct the marker.")
            found |= bool(lost.any())
            if (lost & rows).any():
                out += self._unknown(clean, clean.columns[j], lost & rows)
        if not found:
            raise UserError("No value is missing in any column; leave out Missing() or name its marker.")
        return out

    def _lost(self, clean: Dataset, j: int) -> Rows:
        column, none = clean.columns[j], np.zeros(len(clean), dtype=bool)
        if self.marker is None:
            return none if clean.missing is None else clean.missing[:, j]
        if isinstance(self.marker, list | tuple | set | np.ndarray):
            raise UserError(
                "Missing takes one marker; combine several with &: Missing(c, marker=-1) & Missing(d, marker=-9)."
            )
        if column.categories is not None:
            if self.columns is None and self.marker not in column.categories:
                return none
            return np.asarray(clean.x[:, column.start + column.number(self.marker)] == 1.0)
        if isinstance(self.marker, int | float | np.number):
            return np.asarray(clean.x[:, column.start] == column.to_feature(self.marker))
        if self.columns is None:
            return none
        raise UserError(f"The column '{column.name}' is numeric; its marker must be a number, not {self.marker!r}.")

    def _unknown(self, clean: Dataset, column: Column, lost: Rows) -> list[Part]:
        known = clean.x[~lost]
        if column.categories is not None:
            valid = [k for k, name in enumerate(column.categories) if self.marker is None or name != self.marker]
            if not valid:
                raise UserError(f"The column '{column.name}' has no category but the marker {self.marker!r}.")
            counts = known[:, column.start : column.stop].sum(axis=0)
            best = valid[int(np.argmax(counts[valid]))]
            return _choices("x", clean.x, column, {best: valid}, lost, best)
        ends = column.to_feature([column.low, column.high])
        if not np.isfinite(ends).all():
            values = known[:, column.start]
            if not len(values):
                raise UserError(f"The column '{column.name}' has no known value, so its range is unknown; drop it.")
            ends = np.array([values.min(), values.max()])
        rows = np.flatnonzero(lost).astype(np.intp)
        ones, place = np.ones(len(rows), dtype=np.intp), rows * clean.features + column.start
        fill = known[:, column.start].mean() if len(known) else ends.mean()
        low, high, stand_in = (np.full(len(rows), value) for value in (ends.min(), ends.max(), fill))
        return [Part("box", "x", rows, ones, place, low, high, fill=stand_in, without_clean=True)]

    def knows_missing(self) -> bool:
        return True

    def words(self, rows: str = ANY_ROW) -> str:
        where = "of any column" if self.columns is None else f"of {names(self.columns)}"
        what = "missing values" if self.marker is None else f"values {self.marker!r}"
        return f"{what} {where} may be any valid value (a number within the range seen in training, or any category)"


def _numbers(column: Column, among: Sequence[Any] | None) -> list[int]:
    """Places of these categories in the column's vocabulary, or of all."""
    return [column.number(name) for name in (column.categories or () if among is None else among)]


def _choices(
    on: str, table: Array, column: Column, options: Mapping[int, list[int]], rows: Rows, usual: int | None = None
) -> list[Part]:
    """One piece for each row whose reported entry of the column has options other than itself; `usual`: what was reported is
    unknown, and this entry stands in for it."""
    width = column.stop - column.start
    allowed = np.zeros((width, width), dtype=bool)
    for k, others in options.items():
        allowed[k, others] = True
    np.fill_diagonal(allowed, False)
    unknown = usual is not None
    reported = np.full(len(table), usual) if unknown else table[:, column.start : column.stop].argmax(axis=1)
    open_rows = np.flatnonzero(rows & (unknown | allowed[reported].any(axis=1))).astype(np.intp)
    if not len(open_rows):
        return []
    live, first = allowed[reported[open_rows]], open_rows * table.shape[1] + column.start
    place = (first[:, None] + np.arange(width)[None, :])[live]
    zero, sizes = np.zeros(len(place)), live.sum(axis=1).astype(np.intp)
    chosen = first + reported[open_rows]
    return [Part("choice", on, open_rows, sizes, place, zero, zero + 1, reference=chosen, without_clean=unknown)]
