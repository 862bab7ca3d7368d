"""One-versus-rest, all classes at once: their problems share the table, so one dataset has to be the worst for all of them.

The bound is that of `fitted.softmax` with `ψ_k` of the score `z_k` alone: `λ_k = κ_k ω_k` with the slope `κ_k` of `fitted.dual`,
the maximum over scores falls apart into `Σ_k |ω_k| max ±(ψ_k − κ_k s)`, and the noise of a cell multiplies the *sum* `t_ij =
Σ_k (ψ_ik u_kj + λ_ik θ_kj)`, where separate bounds would pay for every class. The `ψ_k` do not add up to 0: no constant is taken
from `u`.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.fitted.classes import Box
from mibp_cert.fitted.known import Known
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.softmax import STARTS, ClassKnown
from mibp_cert.fitted.table import Array, Rows


class RestKnown(ClassKnown):
    """Rows with the target of every class, and what the classes' own problems know of them."""

    def __init__(self, rows: Rows, each: list[Known], box: Box) -> None:
        self.rows, self.each, self.box = rows, each, box
        self.psi_middle = rows.w * np.stack([known.psi_middle for known in each])
        self.psi_radius = rows.w * np.stack([known.psi_radius for known in each]) * (1.0 + 8.0 * EPS)
        self.y = rows.y.T - rows.q.T, rows.y.T + rows.q.T
        steepest = max(known.loss.steepest for known in each)
        self.far = np.max([known.size + steepest * known.far for known in each], axis=0)
        self.along = None if rows.j is None else (rows.j @ box.middle.T, np.abs(rows.j) @ box.radius.T)

    def start(self) -> Array:
        return np.stack([known.secant for known in self.each])

    def at(self, s: Array, y: Array) -> tuple[Array, Array]:
        loss = self.each[0].loss
        return loss.slope(y, s), loss.psi(y, s)

    def multipliers(self, omega: Array, p: Array) -> Array:
        return p * omega

    def curvature(self, p: Array, x: Array) -> Array:
        k, size = p.shape[-2], x.shape[-1]
        whole = np.zeros((*x.shape[:-2], k, size, k, size))
        for m in range(k):
            whole[..., m, :, m, :] = (np.swapaxes(x, -1, -2) * (self.rows.w * p[..., m, :])[..., None, :]) @ x
        return whole.reshape(*whole.shape[:-4], k * size, k * size)

    def points(self, omega: Array, s: Array, starts: tuple[float, ...] = STARTS) -> Array:
        found = [
            known.envelope(omega[:, k] >= 0, np.clip(s[:, k], known.low, known.high))[1]
            for k, known in enumerate(self.each)
        ]
        return np.stack(found, axis=1)

    def share(self, omega: Array, p: Array, lam: Array, y: Array | None = None) -> Array:
        total = np.zeros((len(omega), len(self.rows)))
        for k, known in enumerate(self.each):
            up = omega[:, k] >= 0
            first, last = known.ends if y is None else (y[k], y[k])
            target = np.where(up, first, known.loss.mirrored(last))
            low, high = np.where(up, known.low, -known.high), np.where(up, known.high, -known.low)
            total = total + np.abs(omega[:, k]) * known.loss.highest(target, low, high, p[:, k])
        return total

    def flat(self, omega: Array) -> Array:
        nothing = np.zeros(omega.shape)
        return self.share(omega, nothing, nothing)

    def falls(self, lam: Array) -> tuple[Array, Array]:
        low, high, far = (np.stack([getattr(known, end) for known in self.each]) for end in ("low", "high", "far"))
        return np.maximum(-lam * low, -lam * high).sum(axis=-2), (np.abs(lam) * far).sum(axis=-2)

    def less(self, u: Array) -> list[Array]:
        return [u]
