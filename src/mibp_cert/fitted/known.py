"""Rows, and what the ranges say of their scores: the terms of (1) of `fitted.dual`, row by row.

With `x̂ = x + r∘ρ`, `ω = u·x̂`, `λ = κω`, and `t_j = ψu_j + λθ_j` in `middle ± radius`, a row's share of (1) lies below the affine
function `const + coef·θ` of `Lines`; `fitted.dual` derives it.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.table import Array, Index, Rows, Table
from mibp_cert.sets import Segments, beyond, lean


@dataclass(frozen=True, eq=False)
class Lines:
    """For every query and row, `const + coef·θ` above the row's share of (1), and the sum of absolute values behind it."""

    const: Array
    coef: Array
    """Left empty where only its sum over rows is asked for."""
    size: Array
    lam: Array
    """`coef` as a multiple of `x̂`: what the score itself is multiplied by."""
    slope: Array
    """The sum of `coef` over rows, and that of its absolute values (at least)."""
    steep: Array


class Rooms:
    """Rooms for large arrays, used again and again: asking the system for new ones costs more than filling them. An array in
    a room lasts until the next one of its name."""

    def __init__(self) -> None:
        self._rooms: dict[str, Array] = {}

    def __reduce__(self) -> tuple[type[Rooms], tuple[()]]:
        """What is in them is of no use elsewhere."""
        return Rooms, ()

    def __call__(self, name: str, shape: tuple[int, ...]) -> Array:
        size, flat = math.prod(shape), self._rooms.get(name, np.zeros(0))
        if len(flat) < size:
            flat = self._rooms[name] = np.empty(size)
        return flat[:size].reshape(shape)


class Known:
    """Rows, and what the ranges say of their scores: all of (1) that no query changes."""

    def __init__(self, loss: ScoreLoss, rows: Rows, low: Array, high: Array, ranges: Ranges) -> None:
        self.loss, self.rows, self.low, self.high, self.ranges = loss, rows, low, high, ranges
        self.ends = (rows.y - rows.q, rows.y + rows.q)
        """Targets: `ψ` falls with `y`."""
        first, last = loss.psi(self.ends[1], low), loss.psi(self.ends[0], high)
        self.far = np.maximum(np.abs(low), np.abs(high))
        self.size = loss.size(np.abs(rows.y) + rows.q, self.far)
        self.psi_middle = 0.5 * (first + last)
        self.psi_radius = 0.5 * (last - first) + 16.0 * EPS * self.size
        tiny = high - low < 1e-9
        rise = loss.psi(rows.y, high) - loss.psi(rows.y, low)
        flat = loss.slope(rows.y, 0.5 * (low + high))
        # `ψ` rises; its float64 values need not.
        self.secant = np.maximum(np.where(tiny, flat, rise / np.where(tiny, 1.0, high - low)), 0.0)
        if rows.j is not None:
            self._along = rows.j @ ranges.middle, np.abs(rows.j) @ ranges.radius

    def part(self, part: slice) -> Known:
        """Some of the rows, which have neither pieces nor blocks."""
        other = copy.copy(self)
        for name in ("_sides", "largest", "doubt"):
            other.__dict__.pop(name, None)
        other.rows = replace(
            self.rows,
            **{name: getattr(self.rows, name)[part] for name in ("x", "r", "y", "q", "w")},
            j=None if self.rows.j is None else self.rows.j[part],
        )
        for name in ("low", "high", "far", "size", "psi_middle", "psi_radius", "secant"):
            setattr(other, name, getattr(self, name)[part])
        other.ends = self.ends[0][part], self.ends[1][part]
        other.__dict__["touch"] = self.touch[0][part], self.touch[1][part]
        if self.rows.j is not None:
            other._along = self._along[0][part], self._along[1][part]
        return other

    @cached_property
    def touch(self) -> tuple[Array, Array]:
        """Where the lines of both envelopes touch `ψ`."""
        loss, y = self.loss, self.rows.y
        return loss.touching(y, self.low, self.high), loss.touching(loss.mirrored(y), -self.high, -self.low)

    def hessian(self, alpha: Array) -> Array:
        x = self.rows.x
        return np.asarray((x * (self.rows.w * self.secant)[:, None]).T @ x + np.diag(alpha))

    def envelope(self, up: NDArray[np.bool_], s: Array) -> tuple[Array, Array]:
        """Value and slope at `s` of the concave envelope of `ψ` where `up`, else of the convex one (which is mirrored)."""
        target, low, touch, line, start = (np.where(up, one, other) for one, other in zip(*self._sides, strict=True))
        at = np.where(up, s, -s)
        slope = self.loss.upper_slope(target, low, touch, at, line)
        value = np.where(at <= touch, start + slope * (at - low), self.loss.psi(target, at))
        return np.where(up, value, -value), slope

    @cached_property
    def _sides(self) -> list[tuple[Array, ...]]:
        """For the concave envelope, and for the mirrored one: target, lower end, where the line touches, its slope, `ψ(low)`."""
        loss, y = self.loss, self.rows.y
        found: list[tuple[Array, ...]] = []
        for target, low, touch in ((y, self.low, self.touch[0]), (loss.mirrored(y), -self.high, self.touch[1])):
            start = loss.psi(target, low)
            line = (loss.psi(target, touch) - start) / np.maximum(touch - low, 1e-12)
            found.append((target, low, touch, line, start))
        return found

    @cached_property
    def doubt(self) -> Index | slice:
        """The rows with noise of their own cells, or of pieces; all, where most of them have some."""
        mask = np.asarray(self.rows.r.any(axis=1))
        for piece in self.rows.pieces:
            mask[piece.segments.rows] = True
        return slice(None) if mask.mean() > 0.5 else np.flatnonzero(mask)

    @cached_property
    def pieces(self) -> list[tuple[Any, Segments]]:
        """How symbols move the cells of the rows in doubt (rows · P, flat), and the symbols."""
        p = self.rows.x.shape[1]
        cells = np.arange(self.rows.x.size).reshape(-1, p)[self.doubt].ravel()
        return [(sparse.csr_matrix(piece.linear[cells]), piece.segments) for piece in self.rows.pieces]

    def _moved(
        self, u: Array, lam: Array, rooms: Rooms | None = None, of: Index | slice = slice(None)
    ) -> tuple[Array, Array]:
        """Middle and radius of `t_ij = ψu_j + λ_iθ_j`, for the rows `of`."""
        u, lam = u[:, None, :], lam[:, of, None]
        shape = (*lam.shape[:2], u.shape[2])
        room = Rooms() if rooms is None else rooms
        middle = np.multiply(self.psi_middle[of, None], u, out=room("middle", shape))
        radius = np.multiply(self.psi_radius[of, None], np.abs(u), out=room("radius", shape))
        more = np.multiply(lam, self.ranges.middle, out=room("more", shape))
        np.add(middle, more, out=middle)
        np.add(radius, np.multiply(np.abs(lam), self.ranges.radius, out=more), out=radius)
        return middle, radius

    def _directed(self, u: Array, lam: Array) -> tuple[Array, Array]:
        """The same for shared directions: of `j·t`."""
        assert self.rows.j is not None
        across, (middle, radius) = np.einsum("ndp,qp->qnd", self.rows.j, u), self._along
        lam = lam[..., None]
        return (
            self.psi_middle[:, None] * across + lam * middle,
            self.psi_radius[:, None] * np.abs(across) + np.abs(lam) * radius,
        )

    def slopes(
        self, u: Array, lam: Array, rooms: Rooms | None = None, before: tuple[Array, ...] = ()
    ) -> tuple[Array, ...]:
        """`ρ`: the sign where it is known, the chord's slope where it is not; of the cells of rows in doubt, then of shared
        directions; then `ε̂` of every kind of pieces (`sets.lean`). Those of `before` are overwritten."""
        found = [self._moved(u, lam, rooms, self.doubt)] + ([] if self.rows.j is None else [self._directed(u, lam)])
        pieces = [lean(segments, *_through(linear, *found[0]))[0] for linear, segments in self.pieces]
        into = before[: len(found)] or (None,) * len(found)
        for _, radius in found:
            np.maximum(radius, 1e-300, out=radius)
        rho = [np.divide(*pair, out=out) for pair, out in zip(found, into, strict=True)]
        return (*(np.clip(part, -1.0, 1.0, out=part) for part in rho), *pieces)

    @property
    def first_piece(self) -> int:
        """Where the pieces' `ε̂` start in what `slopes` returns."""
        return 1 if self.rows.j is None else 2

    def worst(self, rho: tuple[Array, ...], rooms: Rooms | None = None) -> Array:
        """`x̂ = x + r∘ρ`, and what pieces add at `ε̂`."""
        x, r, shape = self.rows.x, self.rows.r[self.doubt], (len(rho[0]), *self.rows.x.shape)
        hat = np.empty(shape) if rooms is None else rooms("hat", shape)
        moved = np.multiply(r, rho[0], out=hat if isinstance(self.doubt, slice) else None)
        for (linear, _), at in zip(self.pieces, rho[self.first_piece :], strict=True):
            np.add(moved, (linear @ at.T).T.reshape(moved.shape), out=moved)
        if isinstance(self.doubt, slice):
            np.add(hat, x, out=hat)
        else:
            hat[...] = x
            hat[:, self.doubt] += moved
        return hat if self.rows.j is None else hat + np.einsum("qnd,ndp->qnp", rho[1], self.rows.j)

    def bent(self, hat: Array, slope: Array, rooms: Rooms) -> Array:
        """`Σ_i w_i slope_i x̂_i x̂_iᵀ`, for every query."""
        half = np.multiply(hat, (self.rows.w * slope)[..., None], out=rooms("more", hat.shape))
        return np.asarray(np.matmul(half.transpose(0, 2, 1), hat))

    def replaced(
        self, main: Known, of: Index, u: Array, omega: Array, kappa: Array, rest: Array | None = None
    ) -> tuple[Array, Array]:
        """`V − U` for rows that differ from the rows `of` in their targets and ranges only, with the same slopes; and sizes.

        Both may have noise `|d| ≤ r` of the size of a rounding (features are not exact). With `λ = κω̂` as in `U`, `R_u =
        max|d·u|` and `R_θ = max|d·θ|`, the new row's share is at most `λx̂·θ + |ω̂|t' + 2R_u max|ψ| + 2|λ|R_θ`, `t'` the maximum
        of `±(ψ − κs)`; that of `U` is at least `λx̂·θ + |ω̂|t`; and `ω̂` is within `R_u` of `ω = u·x`, with whose sign `t' − t` is
        taken here. What `λ` has beside `κω` (`rest`) is the same for both rows, but for the scores that it is paid on.
        """
        up, weight = omega >= 0, self.rows.w
        tops = []
        for known, index in ((self, slice(None)), (main, of)):
            low, high, (first, last) = known.low[index], known.high[index], (end[index] for end in known.ends)
            y = np.where(up, first, self.loss.mirrored(last))
            tops.append(self.loss.highest(y, np.where(up, low, -high), np.where(up, high, -low), kappa))
        size = self.size + main.size[of] + np.abs(kappa) * (self.far + main.far[of])
        near = self.rows.reach_of(np.abs(u))
        slip = 8.0 * near * size + 4.0 * np.abs(kappa) * (np.abs(omega) + near) * self.rows.reach_of(
            self.ranges.reach[None, :]
        )
        # A maximum is rounded up: what is subtracted must not be more than the one that was added.
        more, whole = np.abs(omega) * (tops[0] - tops[1]) + slip, np.abs(omega) * 3.0 * size + slip
        if rest is not None:
            paid = [
                np.maximum(-rest * known.low[i], -rest * known.high[i])
                for known, i in ((self, slice(None)), (main, of))
            ]
            far = np.abs(rest) * (self.far + main.far[of])
            reach = 4.0 * np.abs(rest) * self.rows.reach_of(self.ranges.reach[None, :])
            more, whole = more + paid[0] - paid[1] + reach, whole + 2.0 * far + reach
        return weight * more, weight * whole

    def lines(
        self,
        u: Array,
        kappa: Array,
        rho: tuple[Array, ...],
        plus: Array,
        table: Table | None,
        *,
        whole: bool = True,
        rooms: Rooms | None = None,
        rest: Array | None = None,
    ) -> tuple[Lines, tuple[Array, Array]]:
        """For every row an affine function of `θ` above its share of (1); and what the blocks of a table add to them, with the
        sum of absolute values behind that. `λ = κω + rest`; `plus` is added to it before `x·θ` alone."""
        rows, z, loss = self.rows, self.ranges, self.loss
        hat = self.worst(rho, rooms)
        omega = dot(hat, u)
        both = kappa * omega + plus if rest is None else kappa * omega + plus + rest
        noise, spread, shared = np.zeros(omega.shape), np.zeros(len(u)), np.zeros(len(u))
        for block in () if table is None else table.blocks:
            weight, largest = rows.w[:, None], block.block.magnitude()
            g, more = _through(block.linear, *(weight * part for part in self._moved(u, both)))
            spread = spread + block.block.support(g)[1] + more @ largest
            far = self.size[:, None] * np.abs(u)[:, None, :] + np.abs(both)[..., None] * z.reach
            shared = shared + 3.0 * _through(abs(block.linear), weight * far, 0.0 * far)[0] @ largest
        self.reached(noise, u, both, rho, rooms)
        up = omega >= 0
        y = np.where(up, self.ends[0], loss.mirrored(self.ends[1]))
        low, high = np.where(up, self.low, -self.high), np.where(up, self.high, -self.low)
        const = rows.w * (noise + np.abs(omega) * loss.highest(y, low, high, kappa))
        if rest is not None:
            const = const + rows.w * np.maximum(-rest * self.low, -rest * self.high)
        lam = rows.w * both
        coef = lam[..., None] * hat if whole else np.zeros((0,))
        steep = np.abs(lam) @ self.largest
        size_u = np.abs(u) @ np.abs(rows.x).T + rows.reach_of(np.abs(u))
        width = rows.reach_of(z.reach[None, :])
        size = rows.w * (3.0 * size_u * (self.size + np.abs(kappa) * self.far) + 4.0 * np.abs(both) * width)
        if rest is not None:
            size = size + 2.0 * rows.w * np.abs(rest) * (self.far + self.largest @ z.reach)
        return Lines(const, coef, size, lam, summed(lam, hat), steep), (spread, shared)

    def reached(self, noise: Array, u: Array, lam: Array, rho: tuple[Array, ...], rooms: Rooms | None = None) -> None:
        """Adds to `noise` (queries × rows) what each row's own noise reaches beyond `x̂`."""
        middle, radius = self._moved(u, lam, rooms, self.doubt)
        for (linear, segments), at in zip(self.pieces, rho[self.first_piece :], strict=True):
            np.add.at(noise.T, segments.rows, beyond(segments, *_through(linear, middle, radius), at).T)
        noise[:, self.doubt] += np.einsum("np,qnp->qn", self.rows.r[self.doubt], _gap(middle, radius, rho[0], rooms))
        if self.rows.j is not None:
            noise += _gap(*self._directed(u, lam), rho[1]).sum(axis=-1)

    @cached_property
    def largest(self) -> Array:
        """At least `|x̂_ij|`."""
        return np.asarray(np.abs(self.rows.x) + self.rows.far)


def dot(hat: Array, v: Array) -> Array:
    """`x̂_i·v`, for every query and row."""
    return np.asarray(np.matmul(hat, v[:, :, None])[..., 0])


def summed(weight: Array, hat: Array) -> Array:
    """`Σ_i weight_i x̂_i`, for every query."""
    return np.asarray(np.matmul(weight[:, None, :], hat)[:, 0, :])


def solve(m: Array, b: Array) -> Array:
    """`m⁻¹b`, about: multipliers need not be exact. An intercept that no row holds (all of them beyond a kink) makes `m`
    singular; a little curvature then takes its place."""
    try:
        return np.asarray(np.linalg.solve(m, b))
    except np.linalg.LinAlgError:
        least = 1e-9 * np.maximum(np.trace(m, axis1=-2, axis2=-1), 1e-300)
        return np.asarray(np.linalg.solve(m + least[..., None, None] * np.eye(m.shape[-1]), b))


def _gap(middle: Array, radius: Array, rho: Array, rooms: Rooms | None = None) -> Array:
    """`γ`: the largest `|t| − ρt` over `middle ± radius`, `|ρ| ≤ 1`."""
    room, shape = Rooms() if rooms is None else rooms, middle.shape
    low, high = np.subtract(middle, radius, out=room("low", shape)), np.add(middle, radius, out=room("high", shape))
    slope = room("more", shape)
    for end in (low, high):
        np.multiply(rho, end, out=slope)
        np.subtract(np.abs(end, out=end), slope, out=end)
    return np.maximum(low, high, out=high)


def _through(linear: Any, middle: Array, radius: Array) -> tuple[Array, Array]:
    """Coefficients of symbols, from those of the cells that they move: middle, and radius."""
    flat = (len(middle), -1)
    return (linear.T @ middle.reshape(flat).T).T, (abs(linear).T @ radius.reshape(flat).T).T
