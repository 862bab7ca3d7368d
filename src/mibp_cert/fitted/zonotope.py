"""A zonotope around all minimisers, from one matrix of multipliers for every query; and what it says under an assumption.

With `u = Na`, `N ≈ −M⁻¹` the same for all queries, and middle and radius of `t_ij` in place of signs and chords, (1) of
`fitted.dual` becomes

    a·θ ≤ a·c₀ + Σ_k |a·G_k| + (support functions of blocks) + Σ_budgets (sum of the `most` largest row costs),

in which everything is a linear function of `a` or the absolute value of one. With `ω_i = a·N x_i`, `u_j = a·N e_j`, `ψ_i ∈
ψ̄_i ± δψ_i`, `θ ∈ θ̄ ± δθ`, `ψ_i − κ_i s ∈ m_i ± b_i` on `S_i`, and `R_ij` the largest noise of a cell:

    c₀:  (I + MN)ᵀθ̄ + Σ_i w_i m_i N x_i;
    G:   w_i r_ij (ψ̄_i N e_j + κ_i θ̄_j N x_i);   w_i (b_i + κ_i R_i·δθ) N x_i;
         (Σ_i w_i R_ij δψ_i + τ_j) N e_j;   δθ_j (I + MN)_j.

A replaced row costs at most `ω_i P_i + |ω_i| F_i + Σ_j |u_j| D_ij + Σ_j R'_ij |ψ̄'_i u_j + κ_i θ̄_j ω_i|`, with the same
`κ_i`: `P_i = w'm' − wm + (w' − w)κ x_i·θ̄`, `F_i = w'b' − wb + |w' − w|κ|x_i|·δθ + w'κR'_i·δθ`, `D_ij = w'R'_ij δψ'_i`.

**Exit cut.** Where some query *is* at its end, `a·θ ≥ v`, every other one satisfies `b·θ ≤ min_{ν ≥ 0} h(b + νa) − νv`. Any
`ν ≥ 0` gives a bound; any `ν` at all where `a·θ = v`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mibp_cert.fitted.dual import Known, Ranges, solve
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.table import Array, Rows, Spread, Table
from mibp_cert.sets import Plain, largest_sum

SHARES = (0.0, 0.5, 1.0)
"""Multiples of the first guess of `ν` that are tried."""


class Zonotope:
    """See the module's text."""

    def __init__(self, table: Table, loss: ScoreLoss, ranges: Ranges, tau: Array) -> None:
        rows, mid, rad = table.rows, ranges.middle, ranges.radius
        self.table, self.ranges = table, ranges
        known = Known(loss, rows, ranges.s_low, ranges.s_high, ranges)
        kappa, weight = known.secant, rows.w
        hessian = known.hessian(table.alpha)
        inverse = -solve(hessian, np.eye(len(mid)))
        self.n = 0.5 * (inverse + inverse.T)
        self.nx = rows.x @ self.n
        middle, band = _band(known, kappa)
        most = _largest(rows, table)
        self.cell = np.argwhere(rows.r > 0)
        i, j = self.cell.T
        scale = (weight[i] * rows.r[i, j])[:, None]
        noise = scale * (known.psi_middle[i, None] * self.n[j] + (kappa[i] * mid[j])[:, None] * self.nx[i])
        rest = [(weight * (band + kappa * (most @ rad)))[:, None] * self.nx]
        if rows.j is not None:
            along = np.einsum("ndp,pk->ndk", rows.j, self.n)
            own = (
                known.psi_middle[:, None, None] * along
                + (kappa[:, None] * (rows.j @ mid))[..., None] * self.nx[:, None, :]
            )
            rest.append((weight[:, None, None] * own).reshape(-1, len(mid)))
        left = np.eye(len(mid)) + hessian @ self.n
        rest += [((weight * known.psi_radius) @ most + tau)[:, None] * self.n, rad[:, None] * left]
        self.g = np.concatenate([noise, *rest])
        self.c = left.T @ mid + (weight * middle) @ self.nx
        self.blocks = []
        pieces = [Spread(piece.linear, Plain(np.arange(piece.segments.count), piece.segments)) for piece in rows.pieces]
        for spread in (*table.blocks, *pieces):
            cells = weight[:, None, None] * (
                known.psi_middle[:, None, None] * self.n + (kappa[:, None] * mid)[..., None] * self.nx[:, None, :]
            )
            self.blocks.append((spread.block, np.asarray(spread.linear.T @ cells.reshape(-1, len(mid)))))
        # The same sums with absolute values: what float64 may have lost is relative to these.
        sized, far = np.abs(rows.x) @ np.abs(self.n), ranges.reach
        psi = np.abs(known.psi_middle) + known.psi_radius
        whole = (np.abs(rows.x) * (weight * np.abs(kappa))[:, None]).T @ np.abs(rows.x) + np.diag(table.alpha)
        self.size = (np.eye(len(mid)) + whole @ np.abs(self.n)).T @ far + ((weight * psi) @ most + tau) @ np.abs(self.n)
        self.size = self.size + (weight * (np.abs(middle) + band + np.abs(kappa) * (most @ far))) @ sized
        self.budgets = [
            _Costs(self, known, Known(loss, budget.by, *ends, ranges), budget, (middle, band))
            for budget, ends in zip(table.budgets, ranges.by, strict=True)
        ]

    def bounds(self, a: Array | None = None, v: float = 0.0, *, equal: bool = False) -> Ranges:
        """Ranges of parameters and scores (within those known), given `a·θ ≥ v` (or `= v`) if there is an `a`."""
        if not all(costs.usable for costs in self.budgets):
            return self.ranges
        z, rows = self.ranges, self.table.rows
        p, n, k = len(self.c), len(rows), len(self.cell)
        eye = np.eye(p)
        sides = [eye, -eye, rows.x, -rows.x]
        sides += [sign * budget.by.x for budget in self.table.budgets for sign in (1.0, -1.0)]
        queries = np.concatenate(sides)
        offset = np.zeros((len(queries), len(self.g)))
        extra = np.zeros(len(queries))
        width = self.table.reach_of(z.reach)
        if all(budget.scaled for budget in self.table.budgets):
            own = rows.r[self.cell[:, 0], self.cell[:, 1]] * z.middle[self.cell[:, 1]]
            offset[2 * p + self.cell[:, 0], np.arange(k)] = own
            offset[2 * p + n + self.cell[:, 0], np.arange(k)] = -own
            # What the offset holds of the rows' own noise is not paid twice.
            width = width - rows.r @ z.reach * (1.0 - 1e-12) + rows.r @ z.radius
        extra[2 * p : 2 * p + 2 * n] = np.concatenate([width, width])
        start = 2 * p + 2 * n
        for budget in self.table.budgets:
            more = budget.by.reach_of(z.reach[None, :])[0]
            extra[start : start + 2 * len(more)] = np.concatenate([more, more])
            start += 2 * len(more)
        up = self._upper(queries, offset, extra, a, v, -np.inf if equal else 0.0)
        ends, at = [], 0
        for size in [len(side) for side in sides[::2]]:
            ends.append((-up[at + size : at + 2 * size], up[at : at + size]))
            at += 2 * size
        known = [(z.low, z.high), (z.s_low, z.s_high), *z.by]
        both = [(np.maximum(a[0], b[0]), np.minimum(a[1], b[1])) for a, b in zip(ends, known, strict=True)]
        # No score left for a row, or for what replaces it, says that a budget is spent on it, or is not: no contradiction.
        may = np.isin(np.arange(n), np.concatenate([[-1], *(budget.rows for budget in self.table.budgets)]))
        for k in range(1, len(both)):
            keep = (both[k][0] > both[k][1]) & (may if k == 1 else True)
            both[k] = np.where(keep, known[k][0], both[k][0]), np.where(keep, known[k][1], both[k][1])
        return Ranges(*both[0], *both[1], tuple(both[2:]))

    def _upper(self, b: Array, offset: Array, extra: Array, a: Array | None, v: float, least: float) -> Array:
        base = b @ self.g.T + offset
        if a is None:
            return self._value(b, base, extra, 0.0)
        q, shift = self.g @ a, float(a @ self.c) - v
        guess = _median(base, q, shift, least)
        best = np.full(len(b), np.inf)
        for share in SHARES:
            nu = share * guess
            best = np.minimum(best, self._value(b + nu[:, None] * a, base + nu[:, None] * q, extra, nu * v))
        return best

    def _value(self, b: Array, noise: Array, extra: Array, less: Array | float) -> Array:
        """`h(b) + extra − less`, outward."""
        total = b @ self.c + np.abs(noise).sum(axis=1)
        size = np.abs(b) @ self.size + np.abs(noise).sum(axis=1)
        for block, g in self.blocks:
            more = block.support(b @ g.T)[1]
            total, size = total + more, size + np.abs(b) @ (np.abs(g).T @ block.magnitude())
        for costs in self.budgets:
            more, whole = costs.of(b)
            total, size = total + more, size + whole
        count = len(self.g) + len(self.table.rows) + len(self.c) + 32
        return np.asarray(total + extra - less + 8.0 * count * EPS * (size + extra + np.abs(less)))


class _Costs:
    """What replacing rows costs, as a function of the query."""

    def __init__(self, z: Zonotope, known: Known, by: Known, budget: Any, own: tuple[Array, Array]) -> None:
        rows, table, ranges = by.rows, z.table, z.ranges
        mid, rad = ranges.middle, ranges.radius
        there = np.maximum(budget.rows, 0)
        present = budget.rows >= 0
        weight = np.where(present, table.rows.w[there], 0.0)
        kappa = np.where(present, known.secant[there], by.secant)
        middle, band = (np.where(present, part[there], 0.0) for part in own)
        new_middle, new_band = _band(by, kappa)
        change = rows.w - weight
        most = _largest(rows, None)
        # Noise known by its support may be negative for the row that goes: what the new one costs is then not known here.
        self.usable = not table.rows.pieces and bool(
            (rows.x == np.where(present[:, None], table.rows.x[there], rows.x)).all()
        )
        self.nx, self.n, self.most, self.kappa, self.weight = rows.x @ z.n, z.n, budget.most, kappa, rows.w
        self.p = rows.w * new_middle - weight * middle + change * kappa * (rows.x @ mid)
        self.f = rows.w * new_band - weight * band + np.abs(change) * kappa * (np.abs(rows.x) @ rad)
        self.f = self.f + rows.w * kappa * (most @ rad)
        # What the differences above may have lost.
        sizes = rows.w * (np.abs(new_middle) + new_band) + weight * (np.abs(middle) + band)
        self.f = self.f + 16.0 * EPS * (
            sizes + (rows.w + weight) * np.abs(kappa) * (np.abs(rows.x) @ ranges.reach)
        ) * len(mid)
        self.d = (rows.w * by.psi_radius)[:, None] * most
        self.r, self.psi, self.mid = most, by.psi_middle, mid
        self.again = budget.most if not present.all() else 0

    def of(self, b: Array) -> tuple[Array, Array]:
        omega, u = b @ self.nx.T, b @ self.n
        gain = omega * self.p + np.abs(omega) * self.f + np.abs(u) @ self.d.T
        moved = self.psi[None, :, None] * u[:, None, :] + (self.kappa * omega)[..., None] * self.mid
        gain = gain + self.weight * np.einsum("np,qnp->qn", self.r, np.abs(moved))
        size = np.abs(gain).sum(axis=1) + (np.abs(omega) * (np.abs(self.p) + np.abs(self.f))).sum(axis=1)
        gain = np.maximum(gain, 0.0)
        if self.again:
            return self.most * gain.max(axis=1), size * self.most
        return largest_sum(gain, self.most), size


def _band(known: Known, kappa: Array) -> tuple[Array, Array]:
    """Middle and half width of `ψ(s) − κs` over the scores and targets."""
    top = known.loss.highest(known.ends[0], known.low, known.high, kappa)
    bottom = known.loss.lowest(known.ends[1], known.low, known.high, kappa)
    return 0.5 * (top + bottom), 0.5 * (top - bottom) * (1.0 + 8.0 * EPS)


def _largest(rows: Rows, table: Table | None) -> Array:
    """Largest noise of every cell."""
    total = np.array(rows.r)
    if rows.j is not None:
        total += np.abs(rows.j).sum(axis=1)
    for piece in rows.pieces:
        total += np.asarray(abs(piece.linear) @ piece.segments.magnitude()).reshape(total.shape)
    for spread in () if table is None else table.blocks:
        total += np.asarray(abs(spread.linear) @ spread.block.magnitude()).reshape(total.shape)
    return total


def _median(p: Array, q: Array, shift: float, least: float) -> Array:
    """The `ν ≥ least` that minimises `ν·shift + Σ_k |p_k + νq_k|`, for every row of `p`: a weighted median of the kinks."""
    on = np.flatnonzero(q)
    if not len(on):
        return np.zeros(len(p))
    points = -p[:, on] / q[on]
    order = np.argsort(points, axis=1)
    weights = np.abs(q[on])[order]
    slope = shift - weights.sum(axis=1, keepdims=True) + 2.0 * np.cumsum(weights, axis=1)
    first = np.where((slope >= 0).any(axis=1), np.argmax(slope >= 0, axis=1), points.shape[1] - 1)
    best = np.take_along_axis(np.take_along_axis(points, order, axis=1), first[:, None], axis=1)[:, 0]
    return np.maximum(best, least)
