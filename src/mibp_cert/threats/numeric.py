"""What is commonly wrong with numbers: noise within a norm, rounding, errors in one direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.sets import Part
from mibp_cert.sets.blocks import Array
from mibp_cert.threats.cells import around, column_amounts, moves, plain
from mibp_cert.threats.combine import Catalogued
from mibp_cert.threats.conditions import Rows, row_mask
from mibp_cert.threats.words import ANY_ROW, amount, at, given_rows, limits, names, off_by


@dataclass(frozen=True, eq=False)
class _Ball(Catalogued):
    """`eps`: one number, one per numeric column, or a mapping from columns to numbers, in the units of the data handed in; with
    `relative`, shares of the cell's own absolute value. `rows`, `columns`: where; default all numeric columns."""

    eps: Any
    rows: ArrayLike | None = None
    columns: Any = None
    clip: tuple[Any, Any] | None = None
    relative: bool = False
    _norm: ClassVar[str] = "box"
    _measured: ClassVar[str] = ""
    amounts = ("eps",)

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        rows = rows if self.rows is None else rows & row_mask(self.rows, len(clean))
        picked, eps = column_amounts(clean, self.columns, self.eps, "eps")
        x = clean.x[:, [clean.columns[j].start for j in picked]]
        scale, shift = (np.array([getattr(clean.columns[j], name) for j in picked]) for name in ("scale", "shift"))
        radius = eps / scale
        if self.relative:
            # The value itself was scaled back and forth: what that rounded is multiplied by eps, too.
            slip = np.abs(x) + np.abs(shift) / scale
            units = np.abs(x * scale + shift)
            radius = eps * (units / scale + np.where(eps > 0, 8.0 * np.finfo(float).eps * slip, 0.0))
        features, low, high = around(clean, picked, radius)
        if self.clip is not None:
            if self._norm != "box":
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
        return moves(clean, self._norm, rows, features, low, high)

    def uses_rows(self) -> bool:
        return self.rows is not None

    def words(self, rows: str = ANY_ROW) -> str:
        rows = rows if self.rows is None else given_rows(self.rows)
        columns = None if self.columns is None else plain(self.columns)
        every = "each row" if self._measured else "every number"
        said = at(off_by(plain(self.eps), columns, self.relative, every) + self._measured, rows)
        valid = "" if self.clip is None else f", within the valid range {limits([_finite(v) for v in self.clip])}"
        return f"{said}{valid}"

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | ({} if self.clip is None else {"clip": [_finite(v) for v in self.clip]})


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
    _norm = "l1"
    _measured = ", measured by the sum of all deviations,"


@dataclass(frozen=True, eq=False)
class L2(_Ball):
    """`Σ_j ((x'_ij − x_ij) / ε_j)² ≤ 1` for each row."""

    kind = "l2"
    _norm = "l2"
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

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        picked, to = column_amounts(clean, self.columns, self.to, "to")
        return LInf(dict(zip(picked, 0.5 * to, strict=True)), columns=picked).parts(clean, rows, limits)

    def words(self, rows: str = ANY_ROW) -> str:
        return f"{names(plain(self.columns))} may have been rounded to multiples of {amount(plain(self.to))}"


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

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        picked, up = column_amounts(clean, self.columns, self.up, "up")
        _, down = column_amounts(clean, self.columns, self.down, "down")
        if not (up.any() or down.any()):
            raise UserError("Monotone allows nothing: give up=… or down=… above 0.")
        scale = np.array([clean.columns[j].scale for j in picked])
        features, low, _ = around(clean, picked, down / scale)
        _, _, high = around(clean, picked, up / scale)
        return moves(clean, "box", rows, features, low, high)

    def words(self, rows: str = ANY_ROW) -> str:
        ends = ((plain(self.up), "too low"), (plain(self.down), "too high"))
        said = [f"{word} by up to {amount(value)}" for value, word in ends if value not in (0, 0.0, None)]
        return f"{names(plain(self.columns))} may be {' or '.join(said)}"


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
    out = plain(value)
    if isinstance(out, list):
        return [_finite(v) for v in out]
    return out if np.isfinite(out) else None
