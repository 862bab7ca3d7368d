"""What is commonly wrong with numbers: noise within a norm, rounding, errors in one direction, two that were exchanged.

Amounts are in the units of the table handed in; `Column` knows the scaling. A part names the smallest and the largest value of
each cell as floats that enclose the real ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UserError
from mibp_cert.sets import Part
from mibp_cert.sets.blocks import Array
from mibp_cert.threats.base import ANY_ROW, Catalogued, amount, at, given_rows, names, picked_columns, plain
from mibp_cert.threats.conditions import Rows, row_mask

EPS = float(np.finfo(float).eps)
STEPS = 80
"""Halvings of an interval of some 30 floats, or more around 0; too few would only widen the set."""


@dataclass(frozen=True, eq=False)
class _Ball(Catalogued):
    """`eps`: one number, one per numeric column, or a mapping from columns to numbers, in the units of the data handed in; with
    `relative`, shares of the cell's own absolute value. `rows`, `columns`: where; default all numeric columns."""

    eps: Any
    rows: ArrayLike | None = None
    columns: Any = None
    clip: tuple[Any, Any] | None = None
    relative: bool = False
    _measured: ClassVar[str] = ""
    """For norms: what is measured, in words."""
    amounts = ("eps",)

    def __post_init__(self) -> None:
        _check_amount("eps", self.eps)
        if not isinstance(self.relative, bool):
            raise UserError(f"relative must be true or false, got {self.relative!r}.")

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        rows = rows if self.rows is None else rows & row_mask(self.rows, len(clean))
        columns, eps = _amounts(clean, self.columns, self.eps, "eps")
        x = clean.x[:, [column.start for column in columns]]
        scale, shift = (np.array([getattr(column, name) for column in columns]) for name in ("scale", "shift"))
        radius = eps / scale
        if self.relative:
            # The value itself was scaled back and forth: what that rounded is multiplied by eps, too.
            slip = np.abs(x) + np.abs(shift) / scale
            units = np.abs(x * scale + shift)
            radius = eps * (units / scale + np.where(eps > 0, 8.0 * EPS * slip, 0.0))
        low, high = _around(columns, x, radius)
        if self.clip is not None:
            if self._measured:
                raise UserError("clip is understood by LInf only.")
            floor, ceiling = _clip_ends(self.clip, columns)
            outside = np.argwhere((x < floor) | (x > ceiling))
            if len(outside):
                row, j = (int(i) for i in outside[0])
                raise UserError(
                    f"{len(outside)} value(s) lie outside the valid range given as clip, the first in row {row}, column "
                    f"'{columns[j].name}'; correct the data or the range."
                )
            low, high = np.maximum(low, floor), np.minimum(high, ceiling)
        return _moves("x", clean.features, columns, rows, low, high, self.kind if self._measured else "box")

    def uses_rows(self) -> bool:
        return self.rows is not None

    def words(self, rows: str = ANY_ROW) -> str:
        rows = rows if self.rows is None else given_rows(self.rows)
        eps, every = plain(self.eps), "each row" if self._measured else "every number"
        of = every if self.columns is None else names(self.columns)
        said = f"{of} may be off by {amount(eps, self.relative)}"
        if isinstance(eps, dict):
            said = ", ".join(f"'{name}' may be off by {amount(value, self.relative)}" for name, value in eps.items())
        elif isinstance(eps, list):
            said += " (one number per column)"
        valid = "" if self.clip is None else f", within the valid range {' to '.join(map(amount, self.clip))}"
        return at(said + self._measured, rows) + valid


@dataclass(frozen=True, eq=False)
class LInf(_Ball):
    """`|x'_ij − x_ij| ≤ ε_j` for the selected cells; `clip`: (low, high), the valid range that a true value cannot leave.

    >>> LInf(0.1, columns=(0,)).to_json()
    {'kind': 'linf', 'eps': 0.1, 'columns': [0]}
    """

    kind = "linf"


@dataclass(frozen=True, eq=False)
class L1(_Ball):
    """`Σ_j |x'_ij − x_ij| / ε_j ≤ 1` for each row."""

    kind = "l1"
    _measured = ", measured by the sum of all deviations,"


@dataclass(frozen=True, eq=False)
class L2(_Ball):
    """`Σ_j ((x'_ij − x_ij) / ε_j)² ≤ 1` for each row."""

    kind = "l2"
    _measured = ", measured by the Euclidean distance,"


@dataclass(frozen=True, eq=False)
class Rounded(Catalogued):
    """The columns were rounded to multiples of `to`: the true value lies within `to/2` of the one handed in.

    >>> Rounded("age", to=1.0).to_json()
    {'kind': 'rounded', 'columns': 'age', 'to': 1.0}
    """

    columns: Any
    to: Any
    kind = "rounded"
    amounts = ("to",)

    def __post_init__(self) -> None:
        _check_amount("to", self.to)

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        columns, to = _amounts(clean, self.columns, self.to, "to")
        return LInf(0.5 * to, columns=[column.name for column in columns]).parts(clean, rows, limits)

    def words(self, rows: str = ANY_ROW) -> str:
        return f"{names(self.columns)} may have been rounded to multiples of {amount(self.to)}"


@dataclass(frozen=True, eq=False)
class Monotone(Catalogued):
    """One-sided error: the true value is at most `up` above, and at most `down` below, the one handed in.

    >>> Monotone("income", up=5.0).to_json()
    {'kind': 'monotone', 'columns': 'income', 'up': 5.0, 'down': 0.0}
    """

    columns: Any
    up: Any = 0.0
    down: Any = 0.0
    kind = "monotone"
    amounts = ("up", "down")

    def __post_init__(self) -> None:
        if self.columns is None:  # two mappings would be about columns of their own
            raise UserError("Monotone must name its columns, such as Monotone('income', up=5.0).")
        _check_amount("up", self.up)
        _check_amount("down", self.down)

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        columns, up = _amounts(clean, self.columns, self.up, "up")
        _, down = _amounts(clean, self.columns, self.down, "down")
        if not (up.any() or down.any()):
            raise UserError("Monotone allows nothing: give up=… or down=… above 0.")
        x = clean.x[:, [column.start for column in columns]]
        scale = np.array([column.scale for column in columns])
        low, high = _around(columns, x, down / scale)[0], _around(columns, x, up / scale)[1]
        return _moves("x", clean.features, columns, rows, low, high)

    def words(self, rows: str = ANY_ROW) -> str:
        ends = ((plain(self.up), "too low"), (plain(self.down), "too high"))
        said = [f"{word} by up to {amount(value)}" for value, word in ends if value not in (0, None)]
        return f"{names(self.columns)} may be {' or '.join(said)}"


@dataclass(frozen=True, eq=False)
class TargetNoise(Catalogued):
    """Regression: each target may be off by `eps`, in the units of the target.

    >>> TargetNoise(0.5).to_json()
    {'kind': 'target-noise', 'eps': 0.5}
    """

    eps: float
    kind = "target-noise"
    amounts = ("eps",)

    def __post_init__(self) -> None:
        _check_amount("eps", self.eps)
        object.__setattr__(self, "eps", float(self.eps))

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        if clean.targets is None:
            raise UserError("TargetNoise is for regression; labels are changed by LabelFlips.")
        columns = [clean.target or Column("target", 0, 1)]
        low, high = _around(columns, clean.targets, np.array(self.eps / columns[0].scale))
        return _moves("y", 1, columns, rows, low, high)

    def words(self, rows: str = ANY_ROW) -> str:
        return f"{'each' if rows else 'the'} target may be off by {amount(self.eps)}"


@dataclass(frozen=True, eq=False)
class Exchanged(Catalogued):
    """In any row the values of two numeric columns, such as systolic and diastolic blood pressure, may have been typed into each
    other's place: a row with the values `(v, w)` is that, or `(w, v)`.

    Values are exchanged in the units of the table, so that each is scaled as its new column is.

    >>> Exchanged("systolic", "diastolic").to_json()
    {'kind': 'exchanged', 'first': 'systolic', 'second': 'diastolic'}
    """

    first: str | int
    second: str | int
    kind = "exchanged"

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        numbers = [clean.column(name) for name in (self.first, self.second)]
        one, two = (clean.columns[j].expect(False, "; Exchanged takes two numeric columns") for j in numbers)
        if one is two:
            raise UserError(f"Exchanged takes two different columns, got '{one.name}' twice.")
        if clean.missing is not None and (clean.missing[:, numbers] & rows[:, None]).any():
            row, j = np.argwhere(clean.missing[:, numbers] & rows[:, None])[0]
            raise UserError(
                f"The column '{(one, two)[j].name}' has no value in row {row} that could have been exchanged; keep such rows out "
                "with Exchanged(...).where(...), or fill them in."
            )
        x = clean.x[:, [one.start, two.start]]
        ends = [to.to_feature(_recorded(of, x[:, j])) for to, of, j in ((one, two, 1), (two, one, 0))]
        low, high = (np.stack([pick(end, axis=0) for end in ends], axis=1) for pick in (np.min, np.max))
        # Equal values stay as they are, whichever way they were typed.
        chosen = np.flatnonzero(rows & ((low != x) | (high != x)).any(axis=1)).astype(np.intp)
        place = chosen[:, None] * clean.features + np.array([one.start, two.start])
        sizes = np.full(len(chosen), 2, dtype=np.intp)
        part = Part("swap", "x", chosen, sizes, place.ravel(), low[chosen].ravel(), high[chosen].ravel())
        return [part] if len(chosen) else []

    def words(self, rows: str = ANY_ROW) -> str:
        return at(f"{names(self.first)} and {names(self.second)} may be exchanged", rows)


def _check_amount(what: str, value: Any) -> None:
    """Refuse amounts below 0 and infinite ones, of whatever columns, and texts that look like numbers."""
    if isinstance(value, Mapping | pd.Series):
        value = list(value.values()) if isinstance(value, Mapping) else value.to_numpy()
    try:
        if any(isinstance(entry, str | bool | np.bool_) for entry in np.asarray(value, dtype=object).ravel()):
            raise TypeError("a text, or a truth value")
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{what} must be a number or one per column, got {value!r}.") from None
    if not np.all(np.isfinite(array) & (array >= 0)):
        raise UserError(f"{what} must be finite and ≥ 0, got {value}.")


def _amounts(clean: Dataset, named: Any, value: Any, what: str) -> tuple[list[Column], Array]:
    """Numeric columns that are meant, and an amount for each, in the units handed in."""
    if isinstance(value, pd.Series):
        value = value.to_dict()
    amounts = value
    if isinstance(value, Mapping):
        by_column = {clean.column(name): amount for name, amount in value.items()}
        picked = list(by_column) if named is None else picked_columns(clean, named)
        lost = [clean.columns[j].name for j in by_column if j not in picked]
        if lost:
            raise UserError(f"{what} names {', '.join(lost)}, which the columns asked for do not include.")
        amounts = [by_column.get(j, 0.0) for j in picked]
    elif named is None:
        picked = [j for j, column in enumerate(clean.columns) if not column.categorical]
    else:
        picked = picked_columns(clean, named)
    if not picked and not isinstance(value, Mapping):
        raise UserError("The data have no numeric column; use a threat for categories, such as AnyCategory.")
    instead = ": an amount makes no sense there; use AnyCategory (--any-category), Shift or Confusable"
    columns = [clean.columns[j].expect(False, instead) for j in picked]
    array = np.asarray(amounts, dtype=np.float64)
    if array.ndim > 1 or (array.ndim == 1 and array.shape != (len(columns),)):
        raise UserError(f"{what} must be one number or one per column ({len(columns)}), got shape {array.shape}.")
    return columns, np.array(np.broadcast_to(array, (len(columns),)))


def _around(columns: Sequence[Column], x: Array, radius: Array) -> tuple[Array, Array]:
    """Floats below `x − radius` and above `x + radius` in real numbers, where the radius is not 0; it was itself rounded a few
    times, and so was the table's value where it was scaled."""
    moved = radius > 0
    slip = np.array([abs(column.shift) / column.scale for column in columns])
    scaled = np.array([column.scaled for column in columns])
    radius = np.where(scaled, radius + 8.0 * EPS * (np.abs(x) + radius + slip), radius) * (1.0 + 4.0 * EPS)
    low, high = np.nextafter(x - radius, -np.inf), np.nextafter(x + radius, np.inf)
    return np.where(moved, low, x), np.where(moved, high, x)


def _moves(
    on: str, width: int, columns: Sequence[Column], rows: Rows, low: Array, high: Array, kind: str = "box"
) -> list[Part]:
    """A part of numeric cells (low, high: all rows × columns) of a table of this width; for norms, one piece per row."""
    picked = np.flatnonzero(rows).astype(np.intp)
    low, high = low[picked], high[picked]
    place = picked[:, None] * width + np.array([column.start for column in columns], dtype=np.intp)
    live = high > low
    counts = live.sum(axis=1).astype(np.intp)
    sizes, owner = counts[counts > 0], picked[counts > 0]
    if kind == "box":
        sizes, owner = np.ones(int(live.sum()), dtype=np.intp), np.repeat(picked, counts)
    return [Part(kind, on, owner, sizes, place[live], low[live], high[live])] if live.any() else []


def _clip_ends(clip: Any, columns: Sequence[Column]) -> list[Array]:
    if not isinstance(clip, tuple | list) or len(clip) != 2:
        raise UserError(f"clip must be a pair (low, high), got {clip!r}; None leaves an end open.")
    ends = []
    for end, free in zip(clip, (-np.inf, np.inf), strict=True):
        try:
            given = [free if v is None else v for v in end] if isinstance(end, list | tuple) else end
            value = np.broadcast_to(np.asarray(free if end is None else given, dtype=np.float64), (len(columns),))
        except (TypeError, ValueError):
            raise UserError(
                f"An end of clip must be a number or one per column ({len(columns)}), got {end!r}."
            ) from None
        ends.append(np.array([column.to_feature(v) for column, v in zip(columns, value, strict=True)]))
    if not np.all(ends[0] <= ends[1]):
        raise UserError("The valid range given as clip is not a range; write (low, high) with low ≤ high.")
    return ends


def _recorded(column: Column, x: Array) -> Array:
    """Smallest and largest number that the table may hold where the feature is `x` (2 × rows).

    Let `f(v) = fl(fl(v − shift) / scale)`, which never falls. A `v` with `f(v) = x` has `|v − shift − x·scale| ≤ 3u·|x·scale|`
    (`u = 2⁻⁵³`), so it lies within `reach` of the computed `x·scale + shift`; there, bisection keeps an end that is beyond
    (`f(end) ≠ x`), and the float before it bounds all of them. Since `f` never falls, features of numbers in between lie between
    the features of the ends. A feature that no number leads to is taken to lie between the two that are next to it.
    """
    if not column.scaled:
        return np.stack([x, x])
    guess = column.to_value(x)
    reach = 8.0 * EPS * (np.abs(x) * column.scale + abs(column.shift)) + column.scale * np.finfo(float).tiny
    found = []
    for sign in (-1.0, 1.0):
        inside, outside = guess - sign * reach, guess + sign * reach
        for _ in range(STEPS):
            middle = 0.5 * inside + 0.5 * outside
            beyond = sign * (column.to_feature(middle) - x) > 0
            inside, outside = np.where(beyond, inside, middle), np.where(beyond, middle, outside)
        found.append(np.nextafter(outside, -sign * np.inf))
    return np.stack(found)
