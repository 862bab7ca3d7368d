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
own score's range. Replacing the row costs `max(0, max_B (V_i − U_i))`; `most` rows cost at most the sum of the `most` largest.

Multipliers: `u = −M⁻¹a` with `M = diag α + Σ w_i κ_i x̂_i x̂_iᵀ` leaves nothing of the affine part; `κ_i` is the slope of the
concave (`ω_i > 0`) or convex envelope of `ψ` on `S_i` at the score of the worst model, which a Newton step on the fit with
these envelopes approaches.

Rounding: with `T` the sum of the absolute values of all terms and `N` their number, a sum of products in float64 is off by
less than `4Nε·T`; that is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    size: Array


class Dual:
    """Bounds of queries under the hypothesis that parameters and scores lie in the ranges."""

    def __init__(self, table: Table, loss: ScoreLoss, ranges: Ranges, tau: Array, rounds: int = 2) -> None:
        self.table, self.ranges, self.tau, self.rounds = table, ranges, tau, rounds
        self.main = Known(loss, table.rows, ranges.s_low, ranges.s_high, ranges)
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
        lines, spread = self.main.lines(u, kappa, rho, plus, self.table)
        given = np.where((own >= 0)[:, None], 0.0, a)
        g = given + alpha * u + lines.coef.sum(axis=1)
        parts = np.abs(given) + np.abs(alpha * u) + np.abs(lines.coef).sum(axis=1)
        tilt = np.abs(u) @ self.tau
        total = lines.const.sum(axis=1) + spread + tilt + g @ z.middle + np.abs(g) @ z.radius
        size = lines.size.sum(axis=1) + np.abs(spread) + tilt + parts @ z.reach
        for budget, known in zip(self.table.budgets, self.by, strict=True):
            cost, more = self._cost(budget, known, u, kappa, theta, lines, own, sign)
            total, size = total + cost, size + more
        count = (len(rows) + 16) * (a.shape[1] + 16)
        return np.asarray(total + 4.0 * count * EPS * size)

    def _search(self, a: Array, own: Index, sign: float, plus: Array) -> tuple[Array, Array, Array, tuple[Array, ...]]:
        """Multipliers `u` and `κ`, the worst model, and slopes `ρ`: nothing here must be exact."""
        known, rows, z, alpha = self.main, self.table.rows, self.ranges, self.table.alpha
        every = np.arange(len(a))
        kappa = np.broadcast_to(known.secant, (len(a), len(rows)))
        theta = np.broadcast_to(z.middle, a.shape)
        u = -solve(known.hessian(alpha), a.T).T
        rho = known.slopes(u, kappa * (u @ rows.x.T) + plus)
        for _ in range(self.rounds):
            hat = known.worst(rho)
            query = np.where((own >= 0)[:, None], sign * hat[every, np.maximum(own, 0)], a)
            s = np.clip(np.einsum("qnp,qp->qn", hat, theta), known.low, known.high)
            psi, kappa = known.envelope(np.einsum("qnp,qp->qn", hat, u) >= 0, s)
            m = np.matmul((hat * (rows.w * kappa)[..., None]).transpose(0, 2, 1), hat) + np.diag(alpha)
            gradient = alpha * theta + np.einsum("qn,qnp->qp", rows.w * psi, hat)
            both = solve(m, np.stack([query, gradient], axis=-1))
            u, theta = -both[..., 0], np.clip(theta - both[..., 1], z.low, z.high)
            omega = np.einsum("qnp,qp->qn", hat, u)
            s = np.clip(np.einsum("qnp,qp->qn", hat, theta), known.low, known.high)
            kappa = known.envelope(omega >= 0, s)[1]
            rho = known.slopes(u, kappa * omega + plus)
        return u, kappa, theta, rho

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
            const, size = known.replaced(self.main, budget.rows, omega, kappa[:, budget.rows])
            gain = np.where(mine, 0.0, np.maximum(const, 0.0))
            return self._largest(budget, gain), size.sum(axis=1)
        kappa = known.envelope(omega >= 0, np.clip(theta @ by.x.T, known.low, known.high))[1]
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
        self.secant = np.where(tiny, flat, rise / np.where(tiny, 1.0, high - low))
        if rows.j is not None:
            self._along = rows.j @ ranges.middle, np.abs(rows.j) @ ranges.radius

    @cached_property
    def touch(self) -> tuple[Array, Array]:
        """Where the envelopes of `ψ` begin to be `ψ` itself."""
        y, loss = self.rows.y, self.loss
        return loss.touching(y, self.low, self.high), loss.touching(loss.mirrored(y), -self.high, -self.low)

    def hessian(self, alpha: Array) -> Array:
        x = self.rows.x
        return np.asarray((x * (self.rows.w * self.secant)[:, None]).T @ x + np.diag(alpha))

    def envelope(self, up: NDArray[np.bool_], s: Array) -> tuple[Array, Array]:
        """Value and slope at `s` of the concave envelope of `ψ` where `up`, else of the convex one."""
        loss, y = self.loss, self.rows.y
        sides = []
        for sign, target, low, touch in (
            (1.0, y, self.low, self.touch[0]),
            (-1.0, loss.mirrored(y), -self.high, self.touch[1]),
        ):
            at = sign * s
            slope = loss.upper_slope(target, low, touch, at)
            value = np.where(at <= touch, loss.psi(target, low) + slope * (at - low), loss.psi(target, at))
            sides.append((sign * value, slope))
        return np.where(up, sides[0][0], sides[1][0]), np.where(up, sides[0][1], sides[1][1])

    def _moved(self, u: Array, lam: Array) -> tuple[Array, Array]:
        """Middle and radius of `t_ij = ψu_j + λ_iθ_j`."""
        u, lam = u[:, None, :], lam[..., None]
        middle = self.psi_middle[:, None] * u + lam * self.ranges.middle
        return middle, self.psi_radius[:, None] * np.abs(u) + np.abs(lam) * self.ranges.radius

    def _directed(self, u: Array, lam: Array) -> tuple[Array, Array]:
        """The same for shared directions: of `j·t`."""
        assert self.rows.j is not None
        across, (middle, radius) = np.einsum("ndp,qp->qnd", self.rows.j, u), self._along
        lam = lam[..., None]
        return (
            self.psi_middle[:, None] * across + lam * middle,
            self.psi_radius[:, None] * np.abs(across) + np.abs(lam) * radius,
        )

    def slopes(self, u: Array, lam: Array) -> tuple[Array, ...]:
        """`ρ`: the sign where it is known, the chord's slope where it is not; of cells, then of shared directions."""
        found = [self._moved(u, lam)] + ([] if self.rows.j is None else [self._directed(u, lam)])
        return tuple(np.clip(middle / np.maximum(radius, 1e-300), -1.0, 1.0) for middle, radius in found)

    def worst(self, rho: tuple[Array, ...]) -> Array:
        """`x̂ = x + r∘ρ`."""
        hat = self.rows.x + self.rows.r * rho[0]
        return hat if self.rows.j is None else hat + np.einsum("qnd,ndp->qnp", rho[1], self.rows.j)

    def replaced(self, main: Known, of: Index, omega: Array, kappa: Array) -> tuple[Array, Array]:
        """`V − U` for rows that differ from the rows `of` in their targets and ranges only, with the same slopes; and sizes."""
        up, weight = omega >= 0, self.rows.w
        tops = []
        for known, index in ((self, slice(None)), (main, of)):
            low, high, (first, last) = known.low[index], known.high[index], (end[index] for end in known.ends)
            y = np.where(up, first, self.loss.mirrored(last))
            tops.append(self.loss.highest(y, np.where(up, low, -high), np.where(up, high, -low), kappa))
        size = self.size + main.size[of] + np.abs(kappa) * (self.far + main.far[of])
        # A maximum is rounded up: what is subtracted must not be more than the one that was added.
        return weight * np.abs(omega) * (tops[0] - tops[1]), weight * np.abs(omega) * 3.0 * size

    def lines(
        self, u: Array, kappa: Array, rho: tuple[Array, ...], plus: Array, table: Table | None
    ) -> tuple[Lines, Array]:
        """For every row an affine function of `θ` above its share of (1); and what the blocks of a table add to them."""
        rows, z, loss = self.rows, self.ranges, self.loss
        hat = self.worst(rho)
        omega = np.einsum("qnp,qp->qn", hat, u)
        both = kappa * omega + plus
        middle, radius = self._moved(u, both)
        noise = np.einsum("np,qnp->qn", rows.r, _gap(middle, radius, rho[0]))
        if rows.j is not None:
            noise = noise + _gap(*self._directed(u, both), rho[1]).sum(axis=-1)
        for piece in rows.pieces:
            g, more = _through(piece.linear, middle, radius)
            top = piece.segments.ends(g)[1]
            rest = np.add.reduceat(more * piece.segments.magnitude(), piece.segments.starts, axis=1)
            np.add.at(noise.T, piece.segments.rows, (top + rest).T)
        up = omega >= 0
        y = np.where(up, self.ends[0], loss.mirrored(self.ends[1]))
        low, high = np.where(up, self.low, -self.high), np.where(up, self.high, -self.low)
        const = rows.w * (noise + np.abs(omega) * loss.highest(y, low, high, kappa))
        coef = (rows.w * both)[..., None] * hat
        whole = np.abs(u) @ np.abs(rows.x).T + rows.reach_of(np.abs(u))
        width = rows.reach_of(z.reach[None, :])
        size = rows.w * (3.0 * whole * (self.size + np.abs(kappa) * self.far) + 2.0 * np.abs(both) * width)
        spread = np.zeros(len(u))
        for block in () if table is None else table.blocks:
            weight = rows.w[:, None]
            g, more = _through(block.linear, weight * middle, weight * radius)
            spread = spread + block.block.support(g)[1] + more @ block.block.magnitude()
        return Lines(const, coef, size), spread


def solve(m: Array, b: Array) -> Array:
    """`m⁻¹b`, about: multipliers need not be exact. An intercept that no row holds (all of them beyond a kink) makes `m`
    singular; a little curvature then takes its place."""
    try:
        return np.asarray(np.linalg.solve(m, b))
    except np.linalg.LinAlgError:
        least = 1e-9 * np.maximum(np.trace(m, axis1=-2, axis2=-1), 1e-300)
        return np.asarray(np.linalg.solve(m + least[..., None, None] * np.eye(m.shape[-1]), b))


def _gap(middle: Array, radius: Array, rho: Array) -> Array:
    """`γ`: the largest `|t| − ρt` over `middle ± radius`."""
    low, high = middle - radius, middle + radius
    return np.asarray(np.maximum(np.maximum(np.abs(low) - rho * low, np.abs(high) - rho * high), 0.0))


def _through(linear: Any, middle: Array, radius: Array) -> tuple[Array, Array]:
    """Coefficients of symbols, from those of the cells that they move: middle, and radius."""
    flat = (len(middle), -1)
    return (linear.T @ middle.reshape(flat).T).T, (abs(linear).T @ radius.reshape(flat).T).T
