"""Many rows: ellipsoids in place of sums over rows, so that a query costs the same however many rows there are.

`fitted.shared` bounds `a·θ` by sums `Σ_i |a·g_ik|` over rows, one for each kind `k` of generator (a column of doubt, the bands).
By Cauchy–Schwarz, for any weights `ρ_i > 0`,

    Σ_i |a·g_i| = Σ_i √ρ_i · |a·g_i|/√ρ_i ≤ √(Σ_i ρ_i · a·Q a),        Q = Σ_i g_i g_iᵀ/ρ_i:

one matrix for each kind, made once. It is an equality where `|a·g_i|` is proportional to `ρ_i`; with the root mean square of
`|x·g_i|` over rows `x` as `ρ_i`, it is too large by `√(π/2)` for normal rows: on the scores, which only feed the bands.

A piece of noise with several symbols (a ball, few cells, a one-hot group) is at most `f√(Σ_k μ_k² (a·g_k)²)`, `μ_k` the largest
`|ε_k|` and `f = √most` where `most` of them move, else 1: the same sum, over pieces. Replacing row `i` costs at most a sum of
absolute values `|a·v|`, and `|a·v| ≤ |z| |Cᵀv| + Σ_j |e_j v_j|` for `a = Cz + e` and any `C`: at most `|z|` times a number of the
row, of which the largest are added up, if `e` is nothing but rounding.

Rounding: `a·Qa` is computed with an error of less than `4·count·ε·(|a|·m)²`, `m_j = √Q_jj`, since `|Q_jl| ≤ m_j m_l`; the same
holds for `Q` itself, whose terms are as large.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.errors import UnsupportedOperation
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.crew import in_order
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.shared import TINY, Shared, in_turn, weights
from mibp_cert.fitted.table import Array
from mibp_cert.sets import Block, Plain


class Ellipsoids:
    """See the module's text."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        if not shared.usable:
            raise UnsupportedOperation(
                "A budget of wrong rows beside doubtful categories is known for small tables only: use fewer rows (such as "
                "--sample 1000), or leave out one of the two."
            )
        rows, p = shared.table.rows, len(shared.c)
        second = shared.summed(lambda part: rows.x[part].T @ rows.x[part]) / len(rows)
        self.c = np.linalg.cholesky(second + (1e-9 * np.trace(second) + TINY) * np.eye(p))
        """`CCᵀ` is the second moment of the rows, about."""
        self.rho, self.q = np.zeros(shared.kinds), np.zeros((shared.kinds, p, p))
        for rho, q in in_order(self._of_rows, shared.parts):
            self.rho, self.q = self.rho + rho, self.q + q
        for block, g in shared.blocks:
            rho, q = self._of_block(block, g)
            self.rho, self.q = np.append(self.rho, rho), np.concatenate([self.q, q])
        self.m = np.sqrt(np.diagonal(self.q, axis1=1, axis2=2)) * (1.0 + 1e-6)
        self.size = shared.size + sum(np.abs(g).T @ block.magnitude() for block, g in shared.blocks)
        self.costs = [costs.largest(self.c) for costs in shared.budgets]
        self.inverse = np.linalg.inv(self.c).T

    def _of_rows(self, part: slice) -> tuple[Array, Array]:
        g = self.shared.generators(part)
        return self._of(g, weights(g, self.c))

    def _of(self, g: Array, rho: Array) -> tuple[Array, Array]:
        """`Σρ` and `Q` for each kind of generators (kinds × rows × P)."""
        return rho.sum(axis=1), np.swapaxes(g / rho[..., None], 1, 2) @ g

    def _of_block(self, block: Block, g: Array) -> tuple[Array, Array]:
        """`Σρ` over pieces, and `Q`."""
        g = block.magnitude()[:, None] * g
        pieces = block.pieces if isinstance(block, Plain) else None
        if pieces is None or not len(pieces.sizes):
            return self._of(g[None], weights(g[None], self.c))
        g = g * (np.sqrt(float(pieces.most)) * (1.0 + EPS) if pieces.kind == "sparse" else 1.0)
        rho = np.sqrt(np.add.reduceat(np.square(weights(g, self.c)), pieces.starts))
        _, q = self._of(g[None], np.repeat(rho, pieces.sizes)[None])
        return rho.sum(keepdims=True), q

    def half(self, b: Array) -> Array:
        """Half widths of `b·θ` for queries (queries × P), around `b·c`; before rounding."""
        return in_turn(b, self.m.size, self._half)

    def _half(self, b: Array) -> Array:
        shared, p, far = self.shared, b.shape[1], np.abs(b)
        square = (b @ self.q.transpose(1, 0, 2).reshape(p, -1)).reshape(len(b), -1, p) @ b[:, :, None]
        slip = 8.0 * shared.count * EPS * np.square(far @ self.m.T)
        total = np.sqrt(self.rho * (np.maximum(square[..., 0], 0.0) + slip)).sum(axis=1)
        total += np.abs(b @ shared.fixed.T).sum(axis=1) + TINY
        for top, whole in self.costs:
            z = b @ self.inverse
            off = np.abs(b - z @ self.c.T) + 32.0 * p * EPS * (far + np.abs(z) @ np.abs(self.c).T)
            total += np.sqrt(np.square(z).sum(axis=1)) * (1.0 + 1e-9) * top + off @ whole
        return np.asarray(total)

    def ends(self, b: Array, extra: Array | float = 0.0) -> tuple[Array, Array]:
        """Ends of `b·θ ± extra` for queries (queries × P), outward."""
        middle, half = b @ self.shared.c, self.half(b) + extra
        half = half + 8.0 * self.shared.count * EPS * (np.abs(b) @ self.size + half)
        return middle - half, middle + half

    def bounds(self) -> Ranges:
        """Ranges of parameters, by exact sums, and of scores."""
        z, table = self.shared.ranges, self.shared.table
        low, high = self.shared.ends(np.eye(len(z.low)))
        scores = self.ends(table.rows.x, table.reach_of(z.reach))
        by = [self.ends(budget.by.x, budget.by.reach_of(z.reach[None, :])[0]) for budget in table.budgets]
        return Ranges(low, high, *scores, tuple(by))
