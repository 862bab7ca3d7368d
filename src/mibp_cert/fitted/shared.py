"""One matrix of multipliers for every query: all of (1) becomes a sum of absolute values, row by row.

With `u = Na`, `N ≈ −M⁻¹` the same for all queries, and middle and radius of `t_ij` in place of signs and chords, (1) of
`fitted.dual` becomes

    a·θ ≤ a·c + Σ_k |a·G_k| + (support functions of blocks) + Σ_budgets (sum of the `most` largest row costs),

in which everything is a linear function of `a` or the absolute value of one. With `ω_i = a·N x_i`, `u_j = a·N e_j`, `ψ_i ∈
ψ̄_i ± δψ_i`, `θ ∈ θ̄ ± δθ`, `ψ_i − κ_i s ∈ m_i ± b_i` on `S_i`, and `R_ij` the largest noise of a cell:

    c:  (I + MN)ᵀθ̄ + Σ_i w_i m_i N x_i;
    G:  w_i r_ij (ψ̄_i N e_j + κ_i θ̄_j N x_i);   w_i (b_i + κ_i R_i·δθ) N x_i;
        (Σ_i w_i R_ij δψ_i + τ_j) N e_j;   δθ_j (I + MN)_j.

A replaced row costs at most `ω_i P_i + |ω_i| F_i + Σ_j |u_j| D_ij + Σ_j R'_ij |ψ̄'_i u_j + κ_i θ̄_j ω_i|`, with the same
`κ_i`: `P_i = w'm' − wm + (w' − w)κ x_i·θ̄`, `F_i = w'b' − wb + |w' − w|κ|x_i|·δθ + w'κR'_i·δθ`, `D_ij = w'R'_ij δψ'_i`.

Rows are taken some at a time: neither the `G_k` nor anything else of their number times the square of the parameters' is ever
held. Rounding: `size·|a|` is the sum of the absolute values of all terms; a sum over rows is one of at most `count` terms at a
time, so that it is off by less than `8·count·ε` of that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.crew import in_order
from mibp_cert.fitted.known import Known, solve
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.table import Array, Index, Rows, Spread, Table
from mibp_cert.sets import Block, Plain, largest_sum

CELLS = 400_000
"""Numbers at once: rows × generators of a row × parameters, or queries × generators."""

TINY = 1e-140
"""Weights are no smaller, so that no square is lost; and what is lost of numbers below."""


class Shared:
    """See the module's text."""

    def __init__(self, table: Table, loss: ScoreLoss, ranges: Ranges, tau: Array) -> None:
        rows, mid, rad = table.rows, ranges.middle, ranges.radius
        self.table, self.ranges = table, ranges
        self.known = known = Known(loss, rows, ranges.s_low, ranges.s_high, ranges)
        self.kappa, weight = known.secant, rows.w
        self.columns = np.flatnonzero(rows.r.any(axis=0))
        """Columns with noise of single cells."""
        self.kinds = each = len(self.columns) + 1 + (0 if rows.j is None else rows.j.shape[1])
        step = max(16, CELLS // (each * len(mid)))
        self.parts = [slice(i, i + step) for i in range(0, len(rows), step)]
        others = [
            int(spread.linear.getnnz(axis=0).max(initial=0)) + spread.linear.shape[1] for spread in _spreads(table)
        ]
        others += [budget.most for budget in table.budgets]
        self.count = step * each + len(self.parts) + 3 * len(mid) + sum(others) + 32
        curved = weight * self.kappa
        hessian = self.summed(lambda part: (rows.x[part].T * curved[part]) @ rows.x[part]) + np.diag(table.alpha)
        whole = self.summed(lambda part: (np.abs(rows.x[part]).T * np.abs(curved[part])) @ np.abs(rows.x[part]))
        inverse = -solve(hessian, np.eye(len(mid)))
        self.n = 0.5 * (inverse + inverse.T)
        self.own = self.middle, band = _band(known, self.kappa)
        most = _largest(rows, table)
        self.band = weight * (band + self.kappa * (most @ rad))
        left = np.eye(len(mid)) + hessian @ self.n
        moved = self.summed(lambda part: (weight * known.psi_radius)[part] @ most[part]) + tau
        self.fixed = np.concatenate([moved[:, None] * self.n, rad[:, None] * left])
        """The generators that belong to no row."""
        self.c = left.T @ mid + self.summed(lambda part: (weight * self.middle)[part] @ rows.x[part]) @ self.n
        self.blocks = [(spread.block, self._moved(spread)) for spread in _spreads(table)]
        # The same sums with absolute values: what float64 may have lost is relative to these.
        absolute, far = np.abs(self.n), ranges.reach
        psi = np.abs(known.psi_middle) + known.psi_radius
        more = np.abs(self.middle) + band + np.abs(self.kappa) * (most @ far)
        self.size = (np.eye(len(mid)) + (whole + np.diag(table.alpha)) @ absolute).T @ far
        self.size += (self.summed(lambda part: (weight * psi)[part] @ most[part]) + tau) @ absolute
        self.size += self.summed(lambda part: (weight * more)[part] @ np.abs(rows.x[part])) @ absolute
        self.budgets = [
            Costs(self, Known(loss, budget.by, *ends, ranges), budget)
            for budget, ends in zip(table.budgets, ranges.by, strict=True)
        ]

    @property
    def usable(self) -> bool:
        """Whether the costs of all budgets are known."""
        return all(costs.usable for costs in self.budgets)

    def summed(self, of: Callable[[slice], Array]) -> Array:
        """A sum over rows, some at a time."""
        total = of(self.parts[0])
        for part in self.parts[1:]:
            total = total + of(part)
        return total

    def cells(self, i: Index, j: Index) -> Array:
        """The generators of cells: `w_i r_ij (ψ̄_i N e_j + κ_i θ̄_j N x_i)`; `i` and `j` broadcast, P comes last."""
        rows, mid = self.table.rows, self.ranges.middle
        scale = rows.w[i] * rows.r[i, j]
        along, across = scale * self.known.psi_middle[i], scale * self.kappa[i] * mid[j]
        found = along[..., None] * self.n[j]
        return np.asarray(np.add(found, across[..., None] * (rows.x[i] @ self.n), out=found))

    def others(self, part: slice) -> Array:
        """The generators of rows beside those of their cells (one and more × rows × P): bands, and shared directions."""
        rows, mid = self.table.rows, self.ranges.middle
        nx = rows.x[part] @ self.n
        found = (self.band[part, None] * nx)[None]
        if rows.j is None:
            return found
        j = rows.j[part].transpose(1, 0, 2)
        along, across = rows.w[part] * self.known.psi_middle[part], rows.w[part] * self.kappa[part]
        return np.concatenate([found, along[:, None] * (j @ self.n) + (across * (j @ mid))[..., None] * nx])

    def generators(self, part: slice) -> Array:
        """All generators of some rows (kinds × rows × P)."""
        i = np.arange(*part.indices(len(self.table.rows)))
        return np.concatenate([self.cells(i[None, :], self.columns[:, None]), self.others(part)])

    def _moved(self, spread: Spread) -> Array:
        """What each symbol of a block multiplies: `Σ_ij w_i l_ij (ψ̄_i N e_j + κ_i θ̄_j N x_i)`."""
        rows, mid = self.table.rows, self.ranges.middle
        linear = sparse.coo_matrix(spread.linear)
        i, j, symbol, p = linear.row // len(mid), linear.row % len(mid), linear.col, len(mid)
        value, shape = rows.w[i] * linear.data, (linear.shape[1], len(rows))
        first = sparse.csr_matrix((value * self.known.psi_middle[i], (symbol, j)), shape=(shape[0], p))
        second = sparse.csr_matrix((value * self.kappa[i] * mid[j], (symbol, i)), shape=shape)
        return np.asarray((np.asarray(first.todense()) + second @ rows.x) @ self.n)

    def spread(self, b: Array) -> Array:
        """`Σ_k |b·G_k|` for queries (queries × P), exactly but for rounding."""
        total = np.abs(b @ self.fixed.T).sum(axis=1)
        for more in in_order(partial(self._spread, b), self.parts):
            total += more
        return np.asarray(total)

    def _spread(self, b: Array, part: slice) -> Array:
        """The share of some rows."""
        g, found = self.generators(part).reshape(-1, b.shape[1]), np.zeros(len(b))
        step = max(1, CELLS // len(g))
        for k in range(0, len(b), step):
            found[k : k + step] = np.abs(b[k : k + step] @ g.T).sum(axis=1)
        return found

    def ends(self, b: Array) -> tuple[Array, Array]:
        """Ends of `b·θ` for queries (queries × P)."""
        spread = self.spread(b)
        return -self.value(-b, spread), self.value(b, spread)

    def value(self, b: Array, spread: Array, extra: Array | float = 0.0, less: Array | float = 0.0) -> Array:
        """`h(b) + extra − less`, outward, where `spread` is `Σ_k |b·G_k|`."""
        total = b @ self.c + spread
        size = np.abs(b) @ self.size + spread
        for block, g in self.blocks:
            more = in_turn(b, len(g), partial(_support, block, g))
            total, size = total + more, size + np.abs(b) @ (np.abs(g).T @ block.magnitude())
        for costs in self.budgets:
            more, whole = costs.of(b)
            total, size = total + more, size + whole
        return np.asarray(total + extra - less + 8.0 * self.count * EPS * (size + extra + np.abs(less)))


class Costs:
    """What replacing rows costs, as a function of the query."""

    def __init__(self, z: Shared, by: Known, budget: Any) -> None:
        rows, table, ranges, known = by.rows, z.table, z.ranges, z.known
        mid, rad = ranges.middle, ranges.radius
        there = np.maximum(budget.rows, 0)
        present = budget.rows >= 0
        weight = np.where(present, table.rows.w[there], 0.0)
        kappa = np.where(present, known.secant[there], 0.0)  # a new row has no line to hold a slope against
        middle, band = (np.where(present, part[there], 0.0) for part in z.own)
        new_middle, new_band = _band(by, kappa)
        change = rows.w - weight
        # A row that is moved is one that stays where it is, with so much more noise.
        x = np.where(present[:, None], table.rows.x[there], rows.x)
        most = _largest(rows, None) + np.abs(rows.x - x) * (1.0 + 4.0 * EPS)
        # Only one-hot groups without a clean member may add less than nothing for the row that goes.
        self.usable = all(piece.segments.kind != "choice" for piece in table.rows.pieces)
        self.x, self.n, self.most, self.kappa, self.weight = x, z.n, budget.most, kappa, rows.w
        self.p = rows.w * new_middle - weight * middle + change * kappa * (x @ mid)
        self.f = rows.w * new_band - weight * band + np.abs(change) * kappa * (np.abs(x) @ rad)
        self.f = self.f + rows.w * kappa * (most @ rad)
        # What the differences above may have lost.
        sizes = rows.w * (np.abs(new_middle) + new_band) + weight * (np.abs(middle) + band)
        self.f = self.f + 16.0 * EPS * (sizes + (rows.w + weight) * np.abs(kappa) * (np.abs(x) @ ranges.reach)) * len(
            mid
        )
        self.columns = np.flatnonzero(most.any(axis=0))
        self.r, self.psi, self.mid = rows.w[:, None] * most[:, self.columns], by.psi_middle, mid[self.columns]
        self.d = self.r * by.psi_radius[:, None]
        self.again = budget.most if not present.all() else 0
        self.rows, self.gone = there, np.zeros(len(rows), dtype=bool) if budget.gone is None else budget.gone & present
        # Gone: nothing of the new row, and the old one's score within what is known of it.
        more = 2.0 * (most @ ranges.reach) * (1.0 + 1e-12)
        s, half = 0.5 * (by.low + by.high), 0.5 * (by.high - by.low) + more
        self.p_gone, self.f_gone = -weight * (middle + kappa * s), weight * (np.abs(kappa) * half - band)
        self.f_gone = self.f_gone + 16.0 * EPS * weight * (np.abs(middle) + band + np.abs(kappa) * (by.far + more))

    def of(self, b: Array) -> tuple[Array, Array]:
        """The sum of the largest costs, and the sum of absolute values behind it, for queries (queries × P)."""
        found = in_turn(b, len(self.x) * max(1, len(self.columns)), self._of)
        return found[:, 0], found[:, 1]

    def largest(self, c: Array) -> tuple[float, Array]:
        """The cost is at most a sum of `|a·v|` over vectors of the row: the sum of the largest `Σ|Cᵀv|`, and of `Σ|v|`."""
        n, across = self.n, self.d + self.r * np.abs(self.psi)[:, None]
        scale = np.maximum(np.abs(self.p) + self.f + np.abs(self.kappa) * (self.r @ np.abs(self.mid)), 0.0)
        scale = np.maximum(scale, np.where(self.gone, np.abs(self.p_gone) + np.maximum(self.f_gone, 0.0), 0.0))
        whole = scale[:, None] * (np.abs(self.x) @ np.abs(n)) + across @ np.abs(n[self.columns])
        norm = scale * weights(self.x @ n, c) + across @ weights(n[self.columns], c)
        norm = norm * (1.0 + 1e-9) + 16.0 * len(n) * EPS * weights(whole, np.abs(c))
        if self.again:
            return self.most * float(norm.max()), self.most * whole.max(axis=0)
        return float(largest_sum(norm, self.most)), min(self.most, len(norm)) * whole.max(axis=0)

    def _of(self, b: Array) -> Array:
        u = b @ self.n
        omega = u @ self.x.T
        gain = omega * self.p + np.abs(omega) * self.f
        if len(self.columns):
            u = u[:, self.columns]
            moved = self.psi[None, :, None] * u[:, None, :] + (self.kappa * omega)[..., None] * self.mid
            gain = gain + np.abs(u) @ self.d.T + np.einsum("np,qnp->qn", self.r, np.abs(moved))
        size = np.abs(gain).sum(axis=1) + (np.abs(omega) * (np.abs(self.p) + np.abs(self.f))).sum(axis=1)
        if len(self.columns):
            size = size + np.abs(u) @ (np.abs(self.psi) @ self.r)
            size = size + np.abs(omega) @ (np.abs(self.kappa) * (self.r @ np.abs(self.mid)))
        if self.gone.any():
            away = omega * self.p_gone + np.abs(omega) * self.f_gone
            gain = np.where(self.gone, np.maximum(gain, away), gain)
            size = size + (np.abs(omega) * (np.abs(self.p_gone) + np.abs(self.f_gone))).sum(axis=1)
        gain = np.maximum(gain, 0.0)
        if self.again:
            return np.stack([self.most * gain.max(axis=1), size * self.most], axis=1)
        best = np.zeros((len(b), int(self.rows.max(initial=0)) + 1))
        np.maximum.at(best.T, self.rows, gain.T)  # one alternative for each row
        return np.stack([largest_sum(best, self.most), size], axis=1)


def _support(block: Block, g: Array, b: Array) -> Array:
    return block.support(b @ g.T)[1]


def weights(g: Array, c: Array) -> Array:
    """`|Cᵀg|`: where `CCᵀ` is the second moment of rows `x`, the root mean square of `x·g`."""
    return np.asarray(np.maximum(np.sqrt(np.square(g @ c).sum(axis=-1)), TINY))


def in_turn(b: Array, each: int, of: Callable[[Array], Array]) -> Array:
    """`of(b)` for some queries at a time, where each takes so many numbers."""
    step = max(1, CELLS // max(1, each))
    return np.concatenate(list(in_order(lambda k: of(b[k : k + step]), range(0, max(1, len(b)), step))))


def _spreads(table: Table) -> list[Spread]:
    """Noise known by its support: of several rows, and of single ones."""
    own = [Spread(piece.linear, _plain(piece.segments)) for piece in table.rows.pieces]
    return [*table.blocks, *own]


def _plain(segments: Any) -> Block:
    return Plain(np.arange(segments.count), segments)


def _band(known: Known, kappa: Array) -> tuple[Array, Array]:
    """Middle and half width of `ψ(s) − κs` over the scores and targets."""
    top = known.loss.highest(known.ends[0], known.low, known.high, kappa)
    bottom = known.loss.lowest(known.ends[1], known.low, known.high, kappa)
    return 0.5 * (top + bottom), 0.5 * (top - bottom) * (1.0 + 8.0 * EPS)


def _largest(rows: Rows, table: Table | None) -> Array:
    """Largest noise of every cell."""
    total = rows.r
    if rows.j is not None:
        total = total + np.abs(rows.j).sum(axis=1)
    for piece in rows.pieces:
        total = total + np.asarray(abs(piece.linear) @ piece.segments.magnitude()).reshape(total.shape)
    for spread in () if table is None else table.blocks:
        total = total + np.asarray(abs(spread.linear) @ spread.block.magnitude()).reshape(total.shape)
    return total
