"""A zonotope around all minimisers, and what it says under an assumption.

`fitted.shared` bounds `a·θ` by a support function `h(a)`: a sum of absolute values of linear functions of `a`.

**Exit cut.** Where some query *is* at its end, `a·θ ≥ v`, every other one satisfies `b·θ ≤ min_{ν ≥ 0} h(b + νa) − νv`. Any
`ν ≥ 0` gives a bound; any `ν` at all where `a·θ = v`.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.shared import Shared
from mibp_cert.fitted.table import Array, Table

SHARES = (0.0, 0.5, 1.0)
"""Multiples of the first guess of `ν` that are tried."""


class Zonotope(Shared):
    """See the module's text: all generators at once."""

    def __init__(self, table: Table, loss: ScoreLoss, ranges: Ranges, tau: Array) -> None:
        super().__init__(table, loss, ranges, tau)
        self.cell = np.argwhere(table.rows.r > 0)
        others = self.others(slice(0, len(table.rows))).reshape(-1, len(tau))
        self.g = np.concatenate([self.cells(*self.cell.T), others, self.fixed])

    def bounds(self, a: Array | None = None, v: float = 0.0, *, equal: bool = False) -> Ranges:
        """Ranges of parameters and scores (within those known), given `a·θ ≥ v` (or `= v`) if there is an `a`."""
        if not self.usable:
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
            return self.value(b, np.abs(base).sum(axis=1), extra)
        q, shift = self.g @ a, float(a @ self.c) - v
        guess = _median(base, q, shift, least)
        best = np.full(len(b), np.inf)
        for share in SHARES:
            nu = share * guess
            at, noise = b + nu[:, None] * a, base + nu[:, None] * q
            # Sums that cancel round relative to their terms: `at` times any `θ`, and what was multiplied with it before.
            terms = np.abs(b) + np.abs(nu)[:, None] * np.abs(a)
            slip = 8.0 * self.count * EPS * (terms @ (self.size + self.ranges.reach) + np.abs(offset).sum(axis=1))
            best = np.minimum(best, self.value(at, np.abs(noise).sum(axis=1), extra + slip, nu * v))
        return best


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
