"""A zonotope around all minimisers, and what it says where a query is at its end."""

from __future__ import annotations

import numpy as np

from mibp_cert.fitted.dual import Known, Ranges
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.table import Array, Table


class Zonotope:
    """`b·θ ≤ b·c₀ + Σ_k |b·G_k|` for every minimiser in the ranges."""

    def __init__(self, table: Table, loss: ScoreLoss, z: Ranges, tau: Array) -> None:
        rows, mid, rad = table.rows, z.middle, z.radius
        self.table, self.z = table, z
        p = Known(loss, rows, z.s_low, z.s_high, z)
        kappa = p.secant
        top = loss.highest(rows.y, z.s_low, z.s_high, kappa) + rows.q
        bottom = loss.lowest(rows.y, z.s_low, z.s_high, kappa) - rows.q
        m, band = 0.5 * (top + bottom), 0.5 * (top - bottom)
        hessian = (rows.x * (rows.w * kappa)[:, None]).T @ rows.x + np.diag(table.alpha)
        n_ = -np.linalg.inv(hessian)
        n_ = 0.5 * (n_ + n_.T)
        nx = rows.x @ n_  # rows: N x_i (N symmetric)
        noise = rows.w[:, None, None] * rows.r[:, :, None] * (
            p.psi_middle[:, None, None] * n_[None, :, :] + kappa[:, None, None] * mid[None, :, None] * nx[:, None, :]
        )
        self.cell = np.argwhere(rows.r > 0)
        g = noise[self.cell[:, 0], self.cell[:, 1]]
        f = (rows.w * (band + kappa * (rows.r @ rad)))[:, None] * nx
        e = ((rows.w * p.psi_radius) @ rows.r + tau)[:, None] * n_
        left = np.eye(len(mid)) + hessian @ n_
        self.g = np.concatenate([g, f, e, rad[:, None] * left])
        self.c = left.T @ mid + (rows.w * m) @ nx
        self.mid, self.rad = mid, rad

    def bounds(self, a: Array | None = None, v: float = 0.0) -> Ranges:
        """Ranges of parameters and scores, given `a·θ ≥ v`."""
        rows = self.table.rows
        p = len(self.mid)
        eye = np.eye(p)
        queries = np.concatenate([eye, -eye, rows.x, -rows.x])
        n, k = len(rows), len(self.cell)
        bg = queries @ self.g.T
        own = rows.r[self.cell[:, 0], self.cell[:, 1]] * self.mid[self.cell[:, 1]]
        bg[2 * p + self.cell[:, 0], np.arange(k)] += own
        bg[2 * p + n + self.cell[:, 0], np.arange(k)] -= own
        extra = rows.r @ self.rad
        base = queries @ self.c + np.concatenate([np.zeros(2 * p), extra, extra])
        nu = np.zeros(len(queries))
        q = np.zeros(len(self.g))
        shift = 0.0
        if a is not None:
            q, shift = self.g @ a, float(a @ self.c) - v
            nu = _best(bg, q, shift)
        total = base + nu * shift + np.abs(bg + nu[:, None] * q).sum(axis=1)
        size = np.abs(queries) @ np.abs(self.c) + nu * (np.abs(a) @ np.abs(self.c) + abs(v) if a is not None else 0.0)
        size = size + (np.abs(queries) + (nu[:, None] * np.abs(a) if a is not None else 0.0)) @ np.abs(self.g).sum(axis=0) + np.abs(base)
        up = total + 8 * EPS * (len(self.g) + p + 16) * size
        low = np.maximum(self.z.low, -up[p : 2 * p])
        high = np.minimum(self.z.high, up[:p])
        return Ranges(low, high, np.maximum(self.z.s_low, -up[2 * p + n :]), np.minimum(self.z.s_high, up[2 * p : 2 * p + n]), self.z.by)


def _best(p: Array, q: Array, shift: float) -> Array:
    """The `ν ≥ 0` that minimises `ν·shift + Σ_k |p_k + ν q_k|`, for every row of `p`."""
    on = np.flatnonzero(q)
    points = -p[:, on] / q[on]
    order = np.argsort(points, axis=1)
    weights = np.abs(q[on])[order]
    slope = shift - weights.sum(axis=1, keepdims=True) + 2.0 * np.cumsum(weights, axis=1)
    first = np.argmax(slope >= 0, axis=1)
    first = np.where((slope >= 0).any(axis=1), first, points.shape[1] - 1)
    return np.maximum(np.take_along_axis(np.take_along_axis(points, order, axis=1), first[:, None], axis=1)[:, 0], 0.0)
