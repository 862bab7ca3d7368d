"""`LInf`: every selected cell may be off by at most ε."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.solvers.program import Affine, ProgramBuilder
from mibp_cert.threats.base import Array, BoxBlock, Hull, Noise, Threat, ThreatSet


@dataclass(frozen=True)
class LInf(Threat):
    """`|x'_ij − x_ij| ≤ ε_j` for the selected rows and columns; other cells and all labels are exact.

    `eps`: one number, or one per column, in the units of the data handed in.
    `rows`, `columns`: indices or boolean masks; default all. `clip`: (low, high), each a number or one per column, the valid
    range that a true value cannot leave.

    >>> LInf(0.1, columns=(0,)).to_json()
    {'kind': 'linf', 'eps': 0.1, 'columns': [0]}
    """

    eps: ArrayLike
    rows: ArrayLike | None = None
    columns: ArrayLike | None = None
    clip: tuple[ArrayLike | None, ArrayLike | None] | None = None

    def bind(self, clean: Dataset) -> LInfSet:
        eps = _per_column(self.eps, clean.features, "eps")
        if not np.all(np.isfinite(eps) & (eps >= 0)):
            raise UserError(f"eps must be finite and ≥ 0, got {_plain(self.eps)}.")
        touched = np.zeros(clean.x.shape, dtype=bool)
        touched[
            np.ix_(_selection(self.rows, len(clean), "rows"), _selection(self.columns, clean.features, "columns"))
        ] = 1
        radius = np.where(touched, eps, 0.0)
        # The set is the box of these floats: rounded outward, so that it contains every real x' with |x' − x| ≤ ε.
        low = np.where(radius > 0, np.nextafter(clean.x - radius, -np.inf), clean.x)
        high = np.where(radius > 0, np.nextafter(clean.x + radius, np.inf), clean.x)
        if self.clip is not None:
            if not isinstance(self.clip, tuple | list) or len(self.clip) != 2:
                raise UserError(f"clip must be a pair (low, high), got {self.clip!r}; None leaves an end open.")
            open_ends = (-np.inf, np.inf)
            ends = [e if end is None else end for end, e in zip(self.clip, open_ends, strict=True)]
            floor, ceiling = (_per_column(end, clean.features, "clip") for end in ends)
            if np.any(np.isnan(floor) | np.isnan(ceiling) | (floor > ceiling)):
                raise UserError("The valid range given as clip is not a range; write (low, high) with low ≤ high.")
            if np.any((clean.x < floor) | (clean.x > ceiling)):
                raise UserError("Some data lie outside the valid range given as clip; correct the data or the range.")
            low, high = np.maximum(low, floor), np.minimum(high, ceiling)
        return LInfSet(clean, low, high)

    def to_json(self) -> dict[str, Any]:
        plain = {"kind": "linf", "eps": _plain(self.eps)}
        for name in ("rows", "columns", "clip"):
            value = getattr(self, name)
            if value is not None:
                plain[name] = [_finite(v) for v in value] if name == "clip" else _plain(value)
        return plain


@dataclass(frozen=True, eq=False)
class LInfSet(ThreatSet):
    """All features between `low` and `high`; the labels are those of the clean data."""

    clean: Dataset
    low: Array
    high: Array

    def hull(self) -> Hull:
        return Hull(self.low, self.high, self.clean.one_hot, self.clean.one_hot)

    def noise(self) -> Noise:
        centre = 0.5 * (self.low + self.high)
        # Rounded up until centre ± radius covers both ends.
        radius = np.maximum(np.nextafter(self.high - centre, np.inf), np.nextafter(centre - self.low, np.inf)).ravel()
        cells = self._cells()
        count = len(cells)
        x_linear = sparse.csr_matrix((radius[cells], (cells, np.arange(count))), shape=(centre.size, count))
        y_linear = sparse.csr_matrix((self.clean.one_hot.size, count))
        return Noise(centre, self.clean.one_hot, x_linear, y_linear, (BoxBlock(np.arange(count)),))

    def worst(self, g: Array) -> tuple[Array, Array]:
        push = np.zeros(self.low.size)
        push[self._cells()] = g
        return np.where(push.reshape(self.low.shape) >= 0, self.low, self.high), self.clean.one_hot

    def _cells(self) -> NDArray[np.intp]:
        """Flat numbers of the cells that may move, one symbol each."""
        return np.flatnonzero((self.high > self.low).ravel())

    def constraints(self, builder: ProgramBuilder, rows: NDArray[np.intp]) -> tuple[Affine, Affine]:
        x = Affine.box(builder, self.low[rows].ravel(), self.high[rows].ravel())
        return x, Affine.constant(self.clean.one_hot[rows].ravel())

    def sample(self, rng: np.random.Generator, n: int) -> list[tuple[Array, Array]]:
        """Corners, faces and interior points in turn."""
        members = []
        for i in range(n):
            weight = rng.random(self.low.shape)
            if i % 3 < 2:
                corner = rng.random(self.low.shape) < (1.0 if i % 3 == 0 else 0.5)
                weight = np.where(corner, np.round(weight), weight)
            x = np.clip(self.low + weight * (self.high - self.low), self.low, self.high)
            members.append((np.where(weight == 1.0, self.high, x), self.clean.one_hot))
        return members

    def contains(self, x: Array, y: Array) -> bool:
        inside = bool(np.all((self.low <= x) & (x <= self.high)))
        return inside and np.array_equal(y, self.clean.one_hot)


def _per_column(value: ArrayLike, columns: int, name: str) -> Array:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{name} must be a number or one per column, got {value!r}.") from None
    if array.ndim > 1 or (array.ndim == 1 and array.shape != (columns,)):
        raise UserError(f"{name} must be one number or one per column ({columns}), got shape {array.shape}.")
    return np.broadcast_to(array, (columns,))


def _selection(value: ArrayLike | None, size: int, name: str) -> NDArray[np.intp]:
    if value is None:
        return np.arange(size)
    array = np.asarray(value)
    if array.dtype == bool:
        if array.shape != (size,):
            raise UserError(f"The mask for {name} has shape {array.shape} but the data have {size} {name}.")
        return np.flatnonzero(array)
    if array.size and (not np.issubdtype(array.dtype, np.integer) or array.min() < 0 or array.max() >= size):
        raise UserError(f"{name} must be whole numbers from 0 to {size - 1}, got {_plain(value)}.")
    return np.unique(array.astype(np.intp))


def _finite(value: ArrayLike | None) -> Any:
    """Plain data; an open end becomes None, since JSON has no infinity."""
    if value is None:
        return None
    plain = _plain(value)
    if isinstance(plain, list):
        return [_finite(v) for v in plain]
    return plain if np.isfinite(plain) else None


def _plain(value: ArrayLike) -> Any:
    return np.asarray(value).tolist()
