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
from mibp_cert.fitted.dual import Ranges
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.shared import CELLS, Costs, Shared
from mibp_cert.fitted.table import Array
from mibp_cert.sets import Block, Plain

TINY = 1e-140
"""Weights are no smaller, so that no square is lost; and what is lost of numbers below."""


class Ellipsoids:
    """See the module's text."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        if not shared.usable:
            raise UnsupportedOperation(
                "At most so many wrong rows, with noise to one side or beside doubtful categories, is known for small tables "
                "only: use fewer rows (such as --sample 2000), or leave out the budget of rows."
            )
        rows, p = shared.table.rows, len(shared.c)
        second = shared.summed(lambda part: rows.x[part].T @ rows.x[part]) / len(rows)
        self.c = np.linalg.cholesky(second + 1e-9 * max(np.trace(second), TINY) * np.eye(p))
        """`CCᵀ` is the second moment of the rows, about."""
        kinds = shared.generators(shared.parts[0]).shape[0]
        self.rho, self.q = np.zeros(kinds), np.zeros((kinds, p, p))
        for part in shared.parts:
            g = shared.generators(part)
            rho, q = self._ellipsoids(g, np.sqrt(np.square(g @ self.c).sum(axis=-1)))
            self.rho, self.q = self.rho + rho, self.q + q
        for block, g in shared.blocks:
            rho, q = self._ellipsoids(*self._pieces(block, g))
            self.rho, self.q = np.append(self.rho, rho), np.concatenate([self.q, q])
        self.m = np.sqrt(np.diagonal(self.q, axis1=1, axis2=2)) * (1.0 + 1e-6)
        self.costs = [self._cost(costs) for costs in shared.budgets]

    def _ellipsoids(self, g: Array, weight: Array) -> tuple[Array, Array]:
        """`Σρ` and `Q` of generators (kinds × rows × P), for each kind."""
        rho = np.maximum(weight, TINY)
        return rho.sum(axis=1), np.swapaxes(g / rho[..., None], 1, 2) @ g

    def _pieces(self, block: Block, g: Array) -> tuple[Array, Array]:
        """The generators of a block, scaled, and the weights of their pieces."""
        g = block.magnitude()[:, None] * g
        if not isinstance(block, Plain):
            return g[None], np.sqrt(np.square(g @ self.c).sum(axis=-1))[None]
        pieces = block.pieces
        if pieces.kind == "sparse":
            g = np.sqrt(float(pieces.most)) * (1.0 + EPS) * g
        square = np.add.reduceat(np.square(g @ self.c).sum(axis=-1), pieces.starts)
        # A piece counts once in the sum of weights: the others of its symbols share it.
        return g[None], np.repeat(np.sqrt(square), pieces.sizes)[None]

    def _cost(self, costs: Costs) -> tuple[float, Array]:
        """For one budget: the sum of the largest `Σ|Cᵀv|`, and of the largest `Σ|v|`."""
        raise NotImplementedError
