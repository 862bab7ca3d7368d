"""Tier 1: a bound of `a·θ(D)` over every dataset `D` of the threat, from multipliers of the query's own.

Symbols: rows `x_i + d_i`, targets `y_i + e_i`, weights `w_i` (`fitted.table`), `ψ = ∂ℓ/∂s`, penalties `α`; known ranges `B` of
`θ` and `S_i` of the scores `s_i = (x_i + d_i)·θ`; a tilt `|v_j| ≤ τ_j`: every minimiser in question has `∇L_D(θ) = v`.

For every `u` and `λ`, since `∇L_D(θ) − v = 0` and `(x_i + d_i)·θ − s_i = 0`,

    a·θ = (a + α∘u)·θ − u·v + Σ_i w_i { ψ(y_i + e_i, s_i) u·(x_i + d_i) + λ_i [(x_i + d_i)·θ − s_i] }.                        (1)

**One row.** `d_ij` multiplies `t_ij = ψu_j + λ_iθ_j ∈ [l, h]`. As `|t| − ρt` is convex, `|t| ≤ ρt + γ` with `γ = max(|l| − ρl,
|h| − ρh)` for any `ρ`; the best is `ρ = ±1` where the sign is known and the chord's slope where it is not. With `x̂_i = x_i +
r_i∘ρ_i` and `ω_i = u·x̂_i`, `λ_i = κ_iω_i`,

    row i ≤ λ_i x̂_i·θ + |ω_i| max_{s ∈ S_i} ±(ψ − κ_i s) + Σ_j r_ij γ_ij,        the sign being that of ω_i.

Noise known by a support function pays that of the middle of `t`, plus the radius of `t` times its largest size. What remains
is affine in `θ`: its largest value over `B` is at a corner. Soundness does not depend on how `u`, `κ`, `ρ` were found.

**A row's own score** is the query `a = x_i + d_i`: its noise is that of row `i`, so `λ_i + 1/w_i` takes the place of `λ_i`
before `x_i + d_i` (and not before `s_i`).

**Budgets.** Let `U_i(θ)` be the affine function summed for row `i`, `V_i(θ)` that of an alternative, with its own slope on its
own score's range. Replacing the row costs `max(0, max_B (V_i − U_i))`, and where it may be gone altogether also `max_B (−U_i)`;
`most` rows cost at most the sum of the `most` largest.

Multipliers: `u = −M⁻¹a` with `M = diag α + Σ w_i κ_i x̂_i x̂_iᵀ` leaves nothing of the affine part; `κ_i` is the slope of the
concave (`ω_i > 0`) or convex envelope of `ψ` on `S_i` at the score of the worst model, which a Newton step on the fit with
these envelopes approaches.

Rounding: with `T` the sum of the absolute values of all terms and `N` their number, a sum of products in float64 is off by
less than `4Nε·T`; that is added.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.fitted.costs import by_score, or_gone
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.table import Array, Budget, Index, Rows, Table
from mibp_cert.sets import largest_sum

CELLS = 100_000
"""Entries (queries × rows × parameters) at once: as much as caches hold."""


@dataclass(frozen=True, eq=False)
class Ranges:
    """The box `B` of the parameters, and the ranges `S` of the scores of rows and of the budgets' alternatives."""

    low: Array
    high: Array
    s_low: Array
    s_high: Array
    by: tuple[tuple[Array, Array], ...] = ()

    @property
    def middle(self) -> Array:
        return 0.5 * (self.low + self.high)

    @property
    def radius(self) -> Array:
        middle = self.middle
        return np.asarray(np.maximum(self.high - middle, middle - self.low) * (1.0 + 4.0 * EPS))

    @property
    def reach(self) -> Array:
        """Largest `|θ_j|`."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def empty(self) -> bool:
        pairs = ((self.low, self.high), (self.s_low, self.s_high), *self.by)
        return any(bool((low > high).any()) for low, high in pairs)


@dataclass(frozen=True, eq=False)
class Lines:
    """For every query and row, `const + coef·θ` above the row's share of (1), and the sum of absolute values behind it."""

    const: Array
    coef: Array
    """Left empty where only its sum over rows is asked for."""
    size: Array
    lam: Array
    """`coef` as a multiple of `x̂`: what the score itself is multiplied by."""
    slope: Array | None = None
    """The sum of `coef` over rows, and that of its absolute values (at least)."""
    steep: Array | None = None


class Rooms:
    """Rooms for large arrays, used again and again: asking the system for new ones costs more than filling them. An array in
    a room lasts until the next one of its name."""

    def __init__(self) -> None:
        self._rooms: dict[str, Array] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Array:
        size, flat = math.prod(shape), self._rooms.get(name, np.zeros(0))
        if len(flat) < size:
            flat = self._rooms[name] = np.empty(size)
        return flat[:size].reshape(shape)


class Dual:
    """Bounds of queries under the hypothesis that parameters and scores lie in the ranges."""

    def __init__(self, table: Table, loss: ScoreLoss, ranges: Ranges, tau: Array, rounds: int = 2) -> None:
        self.table, self.ranges, self.tau, self.rounds = table, ranges, tau, rounds
        self.main = Known(loss, table.rows, ranges.s_low, ranges.s_high, ranges)
        # Many rows are taken some at a time, unless other noise or budgets need to see them at once.
        n, alone = len(table.rows), bool(table.budgets or table.blocks or table.rows.pieces)
        step = n if alone else max(1, CELLS // table.rows.x.shape[1])
        self.parts = [slice(i, min(i + step, n)) for i in range(0, n, step)]
        self.known = [self.main] if len(self.parts) == 1 else [self.main.part(part) for part in self.parts]
        self.rooms = Rooms()
        self.by = [
            Known(loss, budget.by, low, high, ranges)
            for budget, (low, high) in zip(table.budgets, ranges.by, strict=True)
        ]

    def upper(self, a: Array, own: Index | None = None, sign: float = 1.0) -> Array:
        """Upper bounds of `a·θ`; where `own[q] = i ≥ 0`, of `sign` times the score of row `i` with its own noise."""
        own = np.full(len(a), -1, dtype=np.intp) if own is None else own
        if not len(a):
            return np.zeros(0)
        rows = len(self.table.rows) + sum(len(budget.by) for budget in self.table.budgets)
        step = max(1, CELLS // max(1, rows * a.shape[1]))
        parts = [self._upper(a[i : i + step], own[i : i + step], sign) for i in range(0, len(a), step)]
        return np.concatenate(parts)

    def _upper(self, a: Array, own: Index, sign: float) -> Array:
        rows, z, alpha = self.table.rows, self.ranges, self.table.alpha
        plus = np.zeros((len(a), len(rows)))
        mine = np.flatnonzero(own >= 0)
        plus[mine, own[mine]] = sign / rows.w[own[mine]]
        u, kappa, theta, rho = self._search(a, own, sign, plus)
        table, found, spread, shared = self.table, [], np.zeros(len(a)), np.zeros(len(a))
        given = np.where((own >= 0)[:, None], 0.0, a)
        g, parts = given + alpha * u, np.abs(given) + np.abs(alpha * u)
        for part, known, slopes in zip(self.parts, self.known, rho, strict=True):
            some = u, kappa[:, part], slopes, plus[:, part], table
            lines, (more, far) = known.lines(*some, whole=bool(table.budgets), rooms=self.rooms)
            found.append(lines)
            assert lines.slope is not None
            assert lines.steep is not None
            g, parts, spread, shared = g + lines.slope, parts + lines.steep, spread + more, shared + far
        tilt = np.abs(u) @ self.tau
        const, sizes = (sum(getattr(lines, name).sum(axis=1) for lines in found) for name in ("const", "size"))
        total = const + spread + tilt + g @ z.middle + np.abs(g) @ z.radius
        size = sizes + shared + tilt + parts @ z.reach
        for budget, known in zip(table.budgets, self.by, strict=True):
            cost, more = self._cost(budget, known, u, kappa, theta, found[0], own, sign)
            total, size = total + cost, size + more
        count = (len(rows) + 16) * (a.shape[1] + 16)
        return np.asarray(total + 4.0 * count * EPS * size)

    def _search(
        self, a: Array, own: Index, sign: float, plus: Array
    ) -> tuple[Array, Array, Array, list[tuple[Array, ...]]]:
        """Multipliers `u` and `κ`, the worst model, and slopes `ρ`: nothing here must be exact."""
        main, rows, z, alpha = self.main, self.table.rows, self.ranges, self.table.alpha
        kappa = np.array(np.broadcast_to(main.secant, (len(a), len(rows))))
        theta = np.array(np.broadcast_to(z.middle, a.shape))
        u = a @ self.first
        rho = [
            known.slopes(u, kappa[:, part] * (u @ known.rows.x.T) + plus[:, part], self.rooms)
            for part, known in zip(self.parts, self.known, strict=True)
        ]
        for _ in range(self.rounds):
            m, gradient, query = np.diag(alpha) + np.zeros((len(a), 1, 1)), alpha * theta, np.array(a)
            for part, known, slopes in zip(self.parts, self.known, rho, strict=True):
                hat = known.worst(slopes, self.rooms)
                mine = np.flatnonzero((own >= part.start) & (own < part.stop))
                query[mine] = sign * hat[mine, own[mine] - part.start]
                s = np.clip(_dot(hat, theta), known.low, known.high)
                psi, bend = known.envelope(_dot(hat, u) >= 0, s)
                m = m + known.bent(hat, bend, self.rooms)
                gradient = gradient + _sum(known.rows.w * psi, hat)
            both = solve(m, np.stack([query, gradient], axis=-1))
            u, theta = -both[..., 0], np.clip(theta - both[..., 1], z.low, z.high)
            for k, (part, known) in enumerate(zip(self.parts, self.known, strict=True)):
                hat = known.worst(rho[k], self.rooms)
                omega = _dot(hat, u)
                s = np.clip(_dot(hat, theta), known.low, known.high)
                kappa[:, part] = known.envelope(omega >= 0, s)[1]
                rho[k] = known.slopes(u, kappa[:, part] * omega + plus[:, part], self.rooms, rho[k])
        return u, kappa, theta, rho

    @cached_property
    def first(self) -> Array:
        """`−M⁻¹` with the secants' slopes: where the search starts."""
        return -solve(self.main.hessian(self.table.alpha), np.eye(len(self.table.alpha)))

    def _cost(
        self,
        budget: Budget,
        known: Known,
        u: Array,
        kappa: Array,
        theta: Array,
        lines: Lines,
        own: Index,
        sign: float,
    ) -> tuple[Array, Array]:
        """What replacing rows adds to (1), and the sum of absolute values behind it."""
        rows, z, by = self.table.rows, self.ranges, budget.by
        there = budget.rows >= 0
        mine = there & (budget.rows[None, :] == own[:, None])
        omega = u @ by.x.T
        if budget.targets_only:
            # The same row with another target: with the same slope, nothing but the maxima differ.
            const, size = known.replaced(self.main, budget.rows, u, omega, kappa[:, budget.rows])
            gain, size = or_gone(budget, known, lines, const, size)
            gain = np.where(mine, 0.0, np.maximum(gain, 0.0))
            return self._largest(budget, gain), size.sum(axis=1)
        kappa = known.envelope(omega >= 0, np.clip(theta @ by.x.T, known.low, known.high))[1]
        kappa = np.where(there, kappa, 0.0)  # a new row has no line that a slope of its own could be held against
        new, _ = known.lines(u, kappa, known.slopes(u, kappa * omega), np.zeros(omega.shape), None)
        const, coef, size = new.const, new.coef, new.size + np.abs(new.coef) @ z.reach
        old = budget.rows[there]
        const[:, there] -= lines.const[:, old]
        coef[:, there] -= lines.coef[:, old]
        size[:, there] += lines.size[:, old] + np.abs(lines.coef[:, old]) @ z.reach
        if mine.any() and not budget.scaled:
            # The row's own score is asked for while another stands in its place.
            i = np.maximum(own, 0)
            const = const + np.where(mine, self.table.reach_of(z.reach)[i][:, None], 0.0)
            coef = coef + np.where(mine[..., None], sign * rows.x[i][:, None, :], 0.0)
        gain = const + coef @ z.middle + np.abs(coef) @ z.radius
        if budget.scaled:
            gain, size = by_score(budget, known, rows, (lines, new.lam), const, gain, size)
        gain, size = or_gone(budget, known, lines, gain, size)
        # With noise that can be scaled down, a row's range is for datasets that leave it alone.
        gain = np.where(mine & budget.scaled, 0.0, np.maximum(gain, 0.0))
        return self._largest(budget, gain), size.sum(axis=1)

    def _largest(self, budget: Budget, gain: Array) -> Array:
        """The sum of the `most` largest costs, one for each row."""
        rows, there = self.table.rows, budget.rows >= 0
        best = np.zeros((len(gain), len(rows) + len(budget.rows)))
        place = np.where(there, budget.rows, len(rows) + np.arange(len(budget.rows)))
        np.maximum.at(best.T, place, gain.T)
        if not there.all():  # a row that was not there can come more than once
            again = np.repeat(best[:, len(rows) :].max(axis=1, keepdims=True), budget.most, axis=1)
            best = np.concatenate([best, again], axis=1)
        return largest_sum(best, budget.most)


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
        for name in ("_sides", "largest"):
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

    def _moved(self, u: Array, lam: Array, rooms: Rooms | None = None) -> tuple[Array, Array]:
        """Middle and radius of `t_ij = ψu_j + λ_iθ_j`."""
        shape, u, lam = (*lam.shape, u.shape[1]), u[:, None, :], lam[..., None]
        room = Rooms() if rooms is None else rooms
        middle = np.multiply(self.psi_middle[:, None], u, out=room("middle", shape))
        radius = np.multiply(self.psi_radius[:, None], np.abs(u), out=room("radius", shape))
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
        """`ρ`: the sign where it is known, the chord's slope where it is not; of cells, then of shared directions. Those of
        `before` are overwritten."""
        found = [self._moved(u, lam, rooms)] + ([] if self.rows.j is None else [self._directed(u, lam)])
        into = before or (None,) * len(found)
        for _, radius in found:
            np.maximum(radius, 1e-300, out=radius)
        rho = [np.divide(*pair, out=out) for pair, out in zip(found, into, strict=True)]
        return tuple(np.clip(part, -1.0, 1.0, out=part) for part in rho)

    def worst(self, rho: tuple[Array, ...], rooms: Rooms | None = None) -> Array:
        """`x̂ = x + r∘ρ`."""
        hat = np.multiply(self.rows.r, rho[0], out=None if rooms is None else rooms("hat", rho[0].shape))
        np.add(hat, self.rows.x, out=hat)
        return hat if self.rows.j is None else hat + np.einsum("qnd,ndp->qnp", rho[1], self.rows.j)

    def bent(self, hat: Array, slope: Array, rooms: Rooms) -> Array:
        """`Σ_i w_i slope_i x̂_i x̂_iᵀ`, for every query."""
        half = np.multiply(hat, (self.rows.w * slope)[..., None], out=rooms("more", hat.shape))
        return np.asarray(np.matmul(half.transpose(0, 2, 1), hat))

    def replaced(self, main: Known, of: Index, u: Array, omega: Array, kappa: Array) -> tuple[Array, Array]:
        """`V − U` for rows that differ from the rows `of` in their targets and ranges only, with the same slopes; and sizes.

        Both may have noise `|d| ≤ r` of the size of a rounding (features are not exact). With `λ = κω̂` as in `U`, `R_u =
        max|d·u|` and `R_θ = max|d·θ|`, the new row's share is at most `λx̂·θ + |ω̂|t' + 2R_u max|ψ| + 2|λ|R_θ`, `t'` the maximum
        of `±(ψ − κs)`; that of `U` is at least `λx̂·θ + |ω̂|t`; and `ω̂` is within `R_u` of `ω = u·x`, with whose sign `t' − t` is
        taken here.
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
        return weight * (np.abs(omega) * (tops[0] - tops[1]) + slip), weight * (np.abs(omega) * 3.0 * size + slip)

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
    ) -> tuple[Lines, tuple[Array, Array]]:
        """For every row an affine function of `θ` above its share of (1); and what the blocks of a table add to them, with the
        sum of absolute values behind that."""
        rows, z, loss = self.rows, self.ranges, self.loss
        hat = self.worst(rho, rooms)
        omega = _dot(hat, u)
        both = kappa * omega + plus
        middle, radius = self._moved(u, both, rooms)
        noise, spread, shared = np.zeros(omega.shape), np.zeros(len(u)), np.zeros(len(u))
        for block in () if table is None else table.blocks:
            weight, largest = rows.w[:, None], block.block.magnitude()
            g, more = _through(block.linear, weight * middle, weight * radius)
            spread = spread + block.block.support(g)[1] + more @ largest
            far = self.size[:, None] * np.abs(u)[:, None, :] + np.abs(both)[..., None] * z.reach
            shared = shared + 3.0 * _through(abs(block.linear), weight * far, 0.0 * far)[0] @ largest
        for piece in rows.pieces:
            g, more = _through(piece.linear, middle, radius)
            top = piece.segments.ends(g)[1]
            rest = np.add.reduceat(more * piece.segments.magnitude(), piece.segments.starts, axis=1)
            np.add.at(noise.T, piece.segments.rows, (top + rest).T)
        noise += np.einsum("np,qnp->qn", rows.r, _gap(middle, radius, rho[0], rooms))
        if rows.j is not None:
            noise += _gap(*self._directed(u, both), rho[1]).sum(axis=-1)
        up = omega >= 0
        y = np.where(up, self.ends[0], loss.mirrored(self.ends[1]))
        low, high = np.where(up, self.low, -self.high), np.where(up, self.high, -self.low)
        const = rows.w * (noise + np.abs(omega) * loss.highest(y, low, high, kappa))
        lam = rows.w * both
        coef = lam[..., None] * hat if whole else np.zeros((0,))
        steep = np.abs(lam) @ self.largest
        size_u = np.abs(u) @ np.abs(rows.x).T + rows.reach_of(np.abs(u))
        width = rows.reach_of(z.reach[None, :])
        size = rows.w * (3.0 * size_u * (self.size + np.abs(kappa) * self.far) + 2.0 * np.abs(both) * width)
        return Lines(const, coef, size, lam, _sum(lam, hat), steep), (spread, shared)

    @cached_property
    def largest(self) -> Array:
        """At least `|x̂_ij|`."""
        rows = self.rows
        return np.asarray(np.abs(rows.x) + rows.r + (0.0 if rows.j is None else np.abs(rows.j).sum(axis=1)))


def _dot(hat: Array, v: Array) -> Array:
    """`x̂_i·v`, for every query and row."""
    return np.asarray(np.matmul(hat, v[:, :, None])[..., 0])


def _sum(weight: Array, hat: Array) -> Array:
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
