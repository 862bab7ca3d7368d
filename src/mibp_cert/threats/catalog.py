"""The catalogue: what is commonly wrong with numeric columns, categorical columns and labels.

Amounts are in the units of the table handed in; `Column` knows the scaling. A part for numeric cells names the smallest and the
largest value of each cell as floats that enclose the real ends; one for categories names the options of each one-hot group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UserError
from mibp_cert.threats.blocks import Array, Index
from mibp_cert.threats.compose import Budget, Catalogued, Rows, row_mask
from mibp_cert.threats.parts import Part

Names = str | int | Sequence[str | int] | None


@dataclass(frozen=True, eq=False)
class Nothing(Catalogued):
    """The data are exact.

    >>> Nothing().to_json()
    {'kind': 'nothing'}
    """

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        return []

    def to_json(self) -> dict[str, Any]:
        return {"kind": "nothing"}


@dataclass(frozen=True, eq=False)
class _Ball(Catalogued):
    """`eps`: one number, one per numeric column, or a mapping from columns to numbers, in the units of the data handed in; with
    `relative`, shares of the cell's own absolute value. `rows`, `columns`: where; default all numeric columns."""

    eps: Any
    rows: ArrayLike | None = None
    columns: Any = None
    clip: tuple[Any, Any] | None = None
    relative: bool = False
    _kind = "box"
    _name = "linf"

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        rows = rows if self.rows is None else rows & row_mask(self.rows, len(clean))
        picked, eps = _amounts(clean, self.columns, self.eps, "eps")
        features = np.array([clean.columns[j].start for j in picked], dtype=np.intp)
        x = clean.x[:, features]
        if self.relative:
            units = np.abs(x * [clean.columns[j].scale for j in picked] + [clean.columns[j].shift for j in picked])
            scale = np.array([clean.columns[j].scale for j in picked])
            # The value itself was scaled back and forth: what that rounded is multiplied by eps, too.
            slip = np.abs(x) + np.abs([clean.columns[j].shift for j in picked]) / scale
            radius = eps * (units / scale + np.where(eps > 0, 8.0 * np.finfo(float).eps * slip, 0.0))
        else:
            radius = np.broadcast_to(eps / np.array([clean.columns[j].scale for j in picked]), x.shape)
        low, high = _outward(x, _with_scaling([clean.columns[j] for j in picked], x, radius))
        if self.clip is not None:
            if self._kind != "box":
                raise UserError("clip is understood by LInf only.")
            floor, ceiling = _clip_ends(self.clip, clean, picked)
            outside = np.argwhere((x < floor) | (x > ceiling))
            if len(outside):
                row, j = (int(i) for i in outside[0])
                raise UserError(
                    f"{len(outside)} value(s) lie outside the valid range given as clip, the first in row {row}, column "
                    f"'{clean.columns[picked[j]].name}'; correct the data or the range."
                )
            low, high = np.maximum(low, floor), np.minimum(high, ceiling)
        return _moves(clean, self._kind, rows, features, low, high)

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"kind": self._name, "eps": _plain(self.eps)}
        for name in ("rows", "columns"):
            if getattr(self, name) is not None:
                plain[name] = _plain(getattr(self, name))
        if self.clip is not None:
            plain["clip"] = [_finite(v) for v in self.clip]
        return plain | ({"relative": True} if self.relative else {})


@dataclass(frozen=True, eq=False)
class LInf(_Ball):
    """`|x'_ij − x_ij| ≤ ε_j` for the selected cells; `clip`: (low, high), the valid range that a true value cannot leave.

    >>> LInf(0.1, columns=(0,)).to_json()
    {'kind': 'linf', 'eps': 0.1, 'columns': [0]}
    """


@dataclass(frozen=True, eq=False)
class L1(_Ball):
    """`Σ_j |x'_ij − x_ij| / ε_j ≤ 1` for each row."""

    _kind = "l1"
    _name = "l1"


@dataclass(frozen=True, eq=False)
class L2(_Ball):
    """`Σ_j ((x'_ij − x_ij) / ε_j)² ≤ 1` for each row."""

    _kind = "l2"
    _name = "l2"


@dataclass(frozen=True, eq=False)
class Rounded(Catalogued):
    """The columns were rounded to multiples of `to`: the true value lies within `to/2` of the one handed in.

    >>> Rounded("age", to=1.0).to_json()
    {'kind': 'rounded', 'columns': 'age', 'to': 1.0}
    """

    columns: Any
    to: Any

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        picked, to = _amounts(clean, self.columns, self.to, "to")
        return LInf(dict(zip(picked, 0.5 * to, strict=True)), columns=picked).parts(clean, rows, limits)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "rounded", "columns": _plain(self.columns), "to": _plain(self.to)}


@dataclass(frozen=True, eq=False)
class Monotone(Catalogued):
    """One-sided error: the true value is at most `up` above, and at most `down` below, the one handed in.

    >>> Monotone("income", up=5.0).to_json()
    {'kind': 'monotone', 'columns': 'income', 'up': 5.0, 'down': 0.0}
    """

    columns: Any
    up: Any = 0.0
    down: Any = 0.0

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        picked, up = _amounts(clean, self.columns, self.up, "up")
        _, down = _amounts(clean, self.columns, self.down, "down")
        if not (up.any() or down.any()):
            raise UserError("Monotone allows nothing: give up=… or down=… above 0.")
        features = np.array([clean.columns[j].start for j in picked], dtype=np.intp)
        scale, x = np.array([clean.columns[j].scale for j in picked]), clean.x[:, features]
        low, _ = _outward(
            x, _with_scaling([clean.columns[j] for j in picked], x, np.broadcast_to(down / scale, x.shape))
        )
        _, high = _outward(
            x, _with_scaling([clean.columns[j] for j in picked], x, np.broadcast_to(up / scale, x.shape))
        )
        return _moves(clean, "box", rows, features, low, high)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "monotone", "columns": _plain(self.columns), "up": _plain(self.up), "down": _plain(self.down)}


@dataclass(frozen=True, eq=False)
class AnyCategory(Catalogued):
    """The category may be wrong: any category of the column (or of `among`) may be the true one.

    >>> AnyCategory("smoker").to_json()
    {'kind': 'any-category', 'columns': 'smoker'}
    """

    columns: Any
    among: Sequence[Any] | None = None

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        out = []
        for j in _columns(clean, self.columns):
            column = _categorical(clean.columns[j])
            options = (
                range(column.stop - column.start) if self.among is None else [column.number(c) for c in self.among]
            )
            out += _choices(clean, column, {k: list(options) for k in range(column.stop - column.start)}, rows)
        return out

    def to_json(self) -> dict[str, Any]:
        plain = {"kind": "any-category", "columns": _plain(self.columns)}
        return plain | ({} if self.among is None else {"among": _plain(self.among)})


@dataclass(frozen=True, eq=False)
class Confusable(Catalogued):
    """A reported category may stand for others: `{reported: [possible true ones]}`, itself always among them.

    >>> Confusable("employment", {"retired": ["unemployed"]}).to_json()
    {'kind': 'confusable', 'column': 'employment', 'pairs': {'retired': ['unemployed']}}
    """

    column: str | int
    pairs: Any
    """A mapping, or pairs `(reported, possible true ones)`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", dict(self.pairs))

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        column = _categorical(clean.columns[clean.column(self.column)])
        options = {column.number(k): [column.number(v) for v in values] for k, values in self.pairs.items()}
        return _choices(clean, column, options, rows)

    def to_json(self) -> dict[str, Any]:
        # Keys of JSON objects are text; other categories are kept as pairs.
        if all(isinstance(key, str) for key in self.pairs):
            return {"kind": "confusable", "column": self.column, "pairs": _plain(self.pairs)}
        pairs = [[_plain(key), _plain(list(values))] for key, values in self.pairs.items()]
        return {"kind": "confusable", "column": self.column, "pairs": pairs}


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

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        column = _categorical(clean.columns[clean.column(self.column)])
        if isinstance(self.by, bool) or self.by != int(self.by) or self.by == 0:
            raise UserError(f"by must be a whole number other than 0, got {self.by}.")
        names = column.categories if self.among is None else self.among
        order = [column.number(name) for name in names or ()]
        options = {k: [order[i + self.by]] for i, k in enumerate(order) if 0 <= i + self.by < len(order)}
        return _choices(clean, column, options, rows)

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"kind": "shift", "column": self.column, "by": int(self.by)}
        return plain | ({} if self.among is None else {"among": _plain(self.among)})


@dataclass(frozen=True, eq=False)
class Missing(Catalogued):
    """Unknown values: NaN, or a marker such as −1, stands for any valid value: any other category, or the column's range.

    `columns`: default all columns in which a value is missing.

    >>> Missing("age").to_json()
    {'kind': 'missing', 'columns': 'age'}
    """

    columns: Any = None
    marker: Any = None

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        out, found = [], False
        named = range(len(clean.columns)) if self.columns is None else _columns(clean, self.columns)
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

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"kind": "missing", "columns": _plain(self.columns)}
        return plain | ({} if self.marker is None else {"marker": _plain(self.marker)})


@dataclass(frozen=True, eq=False)
class TargetNoise(Catalogued):
    """Regression: each target may be off by `eps`, in the units of the target.

    >>> TargetNoise(0.5).to_json()
    {'kind': 'target-noise', 'eps': 0.5}
    """

    eps: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.eps) and self.eps >= 0):
            raise UserError(f"eps must be a finite number ≥ 0, got {self.eps}.")

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        if clean.targets is None:
            raise UserError("TargetNoise is for regression; labels are changed by LabelFlips.")
        place = np.flatnonzero(np.broadcast_to(rows[:, None], clean.targets.shape).ravel())
        y, column = clean.targets.ravel()[place], clean.target or Column("target", 0, 1)
        low, high = _outward(y, _with_scaling([column], y, np.full(len(place), float(self.eps) / column.scale)))
        ones = np.ones(len(place), dtype=np.intp)
        return [Part("box", "y", (place // clean.targets.shape[1]).astype(np.intp), ones, place, low, high)]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "target-noise", "eps": float(self.eps)}


@dataclass(frozen=True, eq=False)
class LabelFlips(Catalogued):
    """At most `at_most` labels are wrong (default: any number), optionally only labels in `source`, and only towards `target`.

    >>> LabelFlips(2).to_json()
    {'kind': 'label-flips', 'at_most': 2}
    """

    at_most: int | None = None
    source: Sequence[Any] | None = None
    target: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        if self.at_most is not None:
            Budget(self, rows=self.at_most)  # refuses a number that makes no sense

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        if self.at_most is not None:
            free = LabelFlips(None, self.source, self.target)
            return Budget(free, rows=self.at_most).parts(clean, rows, limits)
        if clean.targets is not None:
            raise UserError("LabelFlips is for classes; the targets of a regression are moved by TargetNoise.")
        classes = len(clean.classes)
        source = range(classes) if self.source is None else clean.number(np.array(self.source, dtype=object)).tolist()
        target = range(classes) if self.target is None else clean.number(np.array(self.target, dtype=object)).tolist()
        options = {k: list(target) for k in source}
        return _choice_parts("y", clean.y, options, rows, classes, 0, classes)

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"kind": "label-flips", "at_most": None if self.at_most is None else int(self.at_most)}
        for name in ("source", "target"):
            if getattr(self, name) is not None:
                plain[name] = _plain(getattr(self, name))
        return plain


# Helpers -------------------------------------------------------------------------------------------------------------


def _columns(clean: Dataset, names: Names) -> list[int]:
    if isinstance(names, str | int | np.integer):
        return [clean.column(names)]
    array = np.asarray(names)
    if array.dtype == bool:
        if array.shape != (len(clean.columns),):
            raise UserError(f"The mask for columns has shape {array.shape} but there are {len(clean.columns)} columns.")
        return [int(j) for j in np.flatnonzero(array)]
    return list(dict.fromkeys(clean.column(name) for name in array.tolist()))


def _amounts(clean: Dataset, names: Any, value: Any, what: str) -> tuple[list[int], Array]:
    """Numeric columns that are meant, and an amount for each, in the units handed in."""
    if isinstance(value, pd.Series):
        value = value.to_dict()
    if isinstance(value, Mapping):
        by_column = {clean.column(name): amount for name, amount in value.items()}
        picked = list(by_column) if names is None else _columns(clean, names)
        lost = [clean.columns[j].name for j in by_column if j not in picked]
        if lost:
            raise UserError(f"{what} names {', '.join(lost)}, which the columns asked for do not include.")
        amounts: Any = [by_column.get(j, 0.0) for j in picked]
    else:
        numeric = [j for j, c in enumerate(clean.columns) if not c.categorical]
        picked = numeric if names is None else _columns(clean, names)
        if not picked:
            raise UserError("The data have no numeric column; use a threat for categories, such as AnyCategory.")
        amounts = value
    for j in picked:
        if clean.columns[j].categorical:
            raise UserError(
                f"The column '{clean.columns[j].name}' is categorical: an amount makes no sense there; use AnyCategory "
                "(--any-category), Shift or Confusable."
            )
    try:
        array = np.asarray(amounts, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{what} must be a number or one per column, got {value!r}.") from None
    if array.ndim > 1 or (array.ndim == 1 and array.shape != (len(picked),)):
        raise UserError(f"{what} must be one number or one per column ({len(picked)}), got shape {array.shape}.")
    if not np.all(np.isfinite(array) & (array >= 0)):
        raise UserError(f"{what} must be finite and ≥ 0, got {_plain(value)}.")
    return picked, np.array(np.broadcast_to(array, (len(picked),)))


def _with_scaling(columns: Sequence[Column], x: Array, radius: Array) -> Array:
    """The radius, where it is not 0, with what scaling a table's value can have rounded."""
    slip = np.array([abs(c.shift) / c.scale if c.scaled else 0.0 for c in columns])
    scaled = np.array([c.scaled for c in columns])
    return np.where(
        radius > 0, radius + np.where(scaled, 8.0 * np.finfo(float).eps * (np.abs(x) + radius + slip), 0.0), 0.0
    )


def _outward(x: Array, radius: Array) -> tuple[Array, Array]:
    """Floats below `x − radius` and above `x + radius` in real numbers, `radius` itself having been rounded a few times."""
    radius = np.where(radius > 0, radius * (1.0 + 4.0 * np.finfo(float).eps), 0.0)
    low = np.where(radius > 0, np.nextafter(x - radius, -np.inf), x)
    return low, np.where(radius > 0, np.nextafter(x + radius, np.inf), x)


def _moves(clean: Dataset, kind: str, rows: Rows, features: Index, low: Array, high: Array) -> list[Part]:
    """A part of numeric cells (low, high: all rows × features); for norms, one piece per row."""
    picked = np.flatnonzero(rows).astype(np.intp)
    low, high = low[picked], high[picked]
    place = picked[:, None] * clean.features + features[None, :]
    live = high > low
    counts = live.sum(axis=1).astype(np.intp)
    keep = counts > 0
    if kind == "box":
        sizes, owner = np.ones(int(live.sum()), dtype=np.intp), np.repeat(picked, counts)
    else:
        sizes, owner = counts[keep], picked[keep]
    return [Part(kind, "x", owner, sizes, place[live], low[live], high[live])] if live.any() else []


def _categorical(column: Column) -> Column:
    if column.categories is None:
        raise UserError(f"The column '{column.name}' is numeric; use LInf, Rounded or Monotone there.")
    return column


def _choices(clean: Dataset, column: Column, options: Mapping[int, list[int]], rows: Rows) -> list[Part]:
    reported = clean.x[:, column.start : column.stop].argmax(axis=1)
    width = column.stop - column.start
    return _choice_parts("x", reported, options, rows, clean.features, column.start, width)


def _choice_parts(
    on: str, reported: Index, options: Mapping[int, list[int]], rows: Rows, stride: int, start: int, width: int
) -> list[Part]:
    """One piece for each row whose reported entry has options other than itself."""
    allowed = np.zeros((width, width), dtype=bool)
    for k, others in options.items():
        allowed[k, others] = True
    np.fill_diagonal(allowed, False)
    open_rows = np.flatnonzero(rows & allowed[reported].any(axis=1)).astype(np.intp)
    if not len(open_rows):
        return []
    live = allowed[reported[open_rows]]
    first = open_rows * stride + start
    place = (first[:, None] + np.arange(width)[None, :])[live]
    zero = np.zeros(len(place))
    sizes = live.sum(axis=1).astype(np.intp)
    return [Part("choice", on, open_rows, sizes, place, zero, zero + 1, reference=first + reported[open_rows])]


def _clip_ends(clip: Any, clean: Dataset, picked: list[int]) -> tuple[Array, Array]:
    if not isinstance(clip, tuple | list) or len(clip) != 2:
        raise UserError(f"clip must be a pair (low, high), got {clip!r}; None leaves an end open.")
    ends = []
    for end, free in zip(clip, (-np.inf, np.inf), strict=True):
        try:
            given = [free if v is None else v for v in end] if isinstance(end, list | tuple) else end
            value = np.broadcast_to(np.asarray(free if end is None else given, dtype=np.float64), (len(picked),))
        except (TypeError, ValueError):
            raise UserError(
                f"An end of clip must be a number or one per column ({len(picked)}), got {end!r}."
            ) from None
        scaled = [clean.columns[j].to_feature(v) for j, v in zip(picked, value, strict=True)]
        ends.append(np.array(scaled))
    if np.any(np.isnan(ends[0]) | np.isnan(ends[1]) | (ends[0] > ends[1])):
        raise UserError("The valid range given as clip is not a range; write (low, high) with low ≤ high.")
    return ends[0], ends[1]


def _finite(value: Any) -> Any:
    """Plain data; an open end becomes None, since JSON has no infinity."""
    if value is None:
        return None
    plain = _plain(value)
    if isinstance(plain, list):
        return [_finite(v) for v in plain]
    return plain if np.isfinite(plain) else None


def _plain(value: Any) -> Any:
    if isinstance(value, pd.Series):
        value = value.to_dict()
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]  # one by one: an array of text and numbers would be all text
    return value if value is None or isinstance(value, str) else np.asarray(value).tolist()
