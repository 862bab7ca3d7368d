"""Tier 1 for softmax: a bound of `a·Θ(D)` over every dataset `D`, as in `fitted.dual`, with `K` scores for a row.

Symbols as there and in `fitted.classes`: `Θ` (K × P), `z_ik = (x_i + d_i)·θ_k`, `ψ_k = p_k(z) − y_k`, the pin `γ`. For every
`u` (K × P) and `λ_i` (K), with `β` the intercepts' column,

    a·Θ = (a + α∘u)·Θ + γ (Σ_k u_kβ)(Σ_k θ_kβ) − u·v + Σ_i w_i Σ_k {ψ_ik u_k·(x_i + d_i) + λ_ik [(x_i + d_i)·θ_k − z_ik]}.

**Noise.** `d_ij` multiplies `t_ij = Σ_k (ψ_ik u_kj + λ_ik θ_kj)`. As `Σ_k ψ_k = 0`, a constant may be taken from `u_·j`: with
`ψ ∈ ψ̄ ± δψ`, `Σ_k ψ̄_k = 0`, the first sum is within `min_c Σ_k δψ_k |u_kj − c|` of `ψ̄·u_j`, and the best `c` is one of the
`u_kj`. So it is with the other: `Σ_k λ_k = 0` for a row that asks for nothing itself.

**Scores.** Softmax does not change when a constant is added to all scores: what is known of them are ranges of the differences
`z_k − z_l`, for all pairs. From these `p_k ≤ 1/Σ_l exp(−max(z_k − z_l))`, and likewise below. Where `Σ_k λ_k = 0`, `λ·z = λ·log
p`, since `log p = z − log Σ exp z`. So with `ω_ik = u_k·x̂_i`, for every `c`, because `Σ_k p_k = 1`,

    max_z ω·p(z) − λ·z ≤ c + Σ_k max_{p_k} {(ω_k − c)p_k − λ_k log p_k}:

the scores' maximum falls apart into one for each class, over the range of its `p_k`. The term is convex in `p_k` where `λ_k ≥
0` (largest at an end), concave where `λ_k < 0` (largest at `λ_k/(ω_k − c)`, or at an end). `λ = J(z⁰)ω`, `J = diag p − ppᵀ`,
i.e. `λ_k = p⁰_k(ω_k − ω·p⁰)`; with `c = ω·p⁰` all terms are stationary at `p⁰`. They miss that classes with `λ_k > 0` move at
the cost of the others; so the range of that one which matters most is cut at `p⁰`, and `c` is chosen for either side: where the
others, with `λ_l < 0`, make room for a move `m`, `c ≈ ω·p⁰ + m/Σ_l (p⁰_l)²/|λ_l|`. Any `c` is valid. `z⁰` is the middle of the
ranges, the scores of the worst model, or halfway between: whichever is best there.

**Labels** add `−ω·y`: its largest value over `{l ≤ y ≤ h, Σ_k y_k = 1}` goes to the smallest `ω_k` first.

**Multipliers.** `u = −M⁻¹a`, `M = diag α + γ 1_β1_βᵀ + Σ_i w_i J_i ⊗ x̂_i x̂_iᵀ`, positive definite; nothing must be exact
here.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.fitted.classes import Box, curvature, softmax
from mibp_cert.fitted.known import Known, Lines, Rooms, _through
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.table import Array, Index, Rows, Table

STARTS = (0.5, 0.0, 1.0)
"""How far from the middle of the ranges to the scores of the worst model `z⁰` may lie; the first where time matters more."""


class ClassKnown(Known):
    """Rows of several classes, and what the ranges say of their scores. Arrays of classes and rows are (… × K × rows)."""

    def __init__(self, rows: Rows, low: Array, high: Array, box: Box) -> None:
        self.rows, self.box = rows, box
        k = len(box.middle)
        first, second = np.triu_indices(k, 1)
        top = np.zeros((k, k, len(rows)))
        """Largest `z_k − z_l`."""
        top[first, second] = high.reshape(len(rows), -1).T
        top[second, first] = -low.reshape(len(rows), -1).T
        self.top = top
        self.middle = 0.5 * (top - top.swapaxes(0, 1)).mean(axis=1)
        """Scores in the middle; their sum is 0."""
        widest = np.abs(top).max(axis=(0, 1))
        slip = 16.0 * (k + 8) * EPS * (1.0 + widest)
        self.log_p = np.minimum(-_log_sum(top) - slip, 0.0), np.minimum(-_log_sum(-top.swapaxes(0, 1)) + slip, 0.0)
        """Smallest and largest `log p_k`."""
        self.p = np.exp(self.log_p[0]), np.exp(self.log_p[1])
        self.y = rows.y.T - rows.q.T, rows.y.T + rows.q.T
        ends = self.p[0] - self.y[1], self.p[1] - self.y[0]
        half, psi = 0.5 * (ends[1] - ends[0]) + EPS, 0.5 * (ends[0] + ends[1])
        psi = psi - half * (psi.sum(axis=0) / half.sum(axis=0))  # the sum is 0
        radius = np.maximum(np.maximum(ends[1] - psi, psi - ends[0]), 0.0) + 16.0 * EPS
        self.psi_middle, self.psi_radius = rows.w * psi, rows.w * radius * (1.0 + 8.0 * EPS)
        reach = (np.abs(rows.x) @ box.reach.T + rows.reach_of(box.reach).T).max(axis=1)
        self.far = 4.0 + 2.0 * reach + widest + np.log(k)
        self.along = None if rows.j is None else (rows.j @ box.middle.T, np.abs(rows.j) @ box.radius.T)

    # What one-versus-rest has otherwise: slopes `p⁰` (there: `κ`), and what follows from them.

    def start(self) -> Array:
        """Slopes in the middle of the ranges."""
        return softmax(self.middle, 0)

    def at(self, s: Array, y: Array) -> tuple[Array, Array]:
        """Slopes and `ψ` at these scores and labels."""
        p = softmax(s, -2)
        return p, p - y

    def multipliers(self, omega: Array, p: Array) -> Array:
        """`λ = (diag p − ppᵀ)ω`."""
        return np.asarray(p * (omega - (p * omega).sum(axis=-2, keepdims=True)))

    def curvature(self, p: Array, x: Array) -> Array:
        return curvature(p, self.rows.w, x)

    def points(self, omega: Array, s: Array, starts: tuple[float, ...] = STARTS) -> Array:
        """`p⁰`: the best of a few, at the scores `s`."""
        s = s - s.mean(axis=-2, keepdims=True)
        points = [softmax(self.middle + share * (s - self.middle), -2) for share in starts]
        if len(points) == 1:
            return points[0]
        lam = [self.multipliers(omega, p) for p in points]
        values = [self.band(omega, p, m) + (m * s).sum(axis=-2) for p, m in zip(points, lam, strict=True)]
        best = np.argmin(values, axis=0)[..., None, :]
        return np.asarray(np.choose(best, points))

    def share(self, omega: Array, p: Array, lam: Array, y: Array | None = None) -> Array:
        """Upper bound of `ω·ψ − λ·s` over scores and labels; `y`: these labels alone."""
        return self.band(omega, p, lam) + (self.labels(omega) if y is None else -(y * omega).sum(axis=-2))

    def flat(self, omega: Array) -> Array:
        """The same for `λ = 0`."""
        return _highest(omega, *self.p) + self.labels(omega)

    def falls(self, lam: Array) -> tuple[Array, Array]:
        """Largest `−λ·s` over the scores, which is `−Σ_k λ_k (s_k − s_l)` for every class `l`, as `Σ_k λ_k = 0`; and its size."""
        up, down = np.maximum(lam, 0.0), np.maximum(-lam, 0.0)
        sums = np.einsum("qkn,lkn->lqn", up, self.top) + np.einsum("qkn,kln->lqn", down, self.top)
        return np.asarray(sums.min(axis=0)), np.abs(lam).sum(axis=-2) * self.far

    def less(self, u: Array) -> list[Array]:
        """`u` (queries × K × …) less a constant for all classes, in some ways."""
        return [u - u[:, c : c + 1] for c in range(u.shape[1])]

    # The rest is the same.

    def band(self, omega: Array, p: Array, lam: Array) -> Array:
        """Upper bound of `ω·p(s) − λ·s` over the scores `s`; `p = p⁰`, where `λ` comes from, only serves to choose well."""
        mean = (p * omega).sum(axis=-2)
        fall = np.where(lam < 0, mean[..., None, :] - omega, np.inf)
        softness, least = np.maximum((p / fall).sum(axis=-2), 1e-300), -0.5 * fall.min(axis=-2)
        most = np.maximum(lam, 0.0) * (np.maximum(self.p[1] - p, p - self.p[0]) / np.maximum(p, 1e-300)) ** 2
        which = most.argmax(axis=-2)[..., None, :]
        split = np.arange(p.shape[-2])[:, None] == which

        def chosen(part: Array) -> Array:
            return np.take_along_axis(np.broadcast_to(part, p.shape), which, axis=-2)[..., 0, :]

        ends, logs = [chosen(end) for end in self.p], [chosen(end) for end in self.log_p]
        cut = np.clip(chosen(p), *ends)
        log_cut, rise, bent = np.clip(np.log(np.maximum(cut, 1e-300)), *logs), chosen(omega) - mean, chosen(lam)
        parts = []
        for side in (0, 1):
            move = ends[side] - cut
            shift = np.maximum(0.5 * move / softness, least)
            # Beyond this one, both ends of the class that is cut are equally high: nothing more is gained.
            enough = rise - bent * (logs[side] - log_cut) / np.where(move == 0.0, 1.0, move)
            shift = np.minimum(shift, np.maximum(enough, 0.0)) if side else np.maximum(shift, np.minimum(enough, 0.0))
            c = mean + np.where(np.isfinite(shift), shift, 0.0)
            new, new_log = (
                np.where(split, x[..., None, :], o)
                for x, o in ((cut, self.p[1 - side]), (log_cut, self.log_p[1 - side]))
            )
            pair = [(self.p[side], self.log_p[side]), (new, new_log)]
            parts.append(_separate(omega, lam, c, pair if side == 0 else pair[::-1]))
        return np.maximum(*parts)

    def labels(self, omega: Array) -> Array:
        """Largest `−ω·y`."""
        return _highest(-omega, *self.y) if self.rows.q.any() else np.asarray(-(self.y[0] * omega).sum(axis=-2))

    def _moved(
        self, u: Array, lam: Array, rooms: Rooms | None = None, of: Index | slice = slice(None)
    ) -> tuple[Array, Array]:
        """Middle and radius of `t_ij`, weights included."""
        lam = lam[:, :, of]
        middle = self.psi_middle[:, of].T @ u + lam.swapaxes(1, 2) @ self.box.middle
        spread = [self.psi_radius[:, of].T @ np.abs(part) for part in self.less(u)]  # `min_c Σ_k δψ_k |u_kj − c|`
        return middle, np.minimum.reduce(spread) + np.abs(lam).swapaxes(1, 2) @ self.box.radius

    def _directed(self, u: Array, lam: Array) -> tuple[Array, Array]:
        assert self.rows.j is not None
        assert self.along is not None
        across = np.einsum("ndp,qkp->qknd", self.rows.j, u)
        middle, radius = self.along
        spread = [np.einsum("kn,qknd->qnd", self.psi_radius, np.abs(part)) for part in self.less(across)]
        return (
            np.einsum("kn,qknd->qnd", self.psi_middle, across) + np.einsum("qkn,ndk->qnd", lam, middle),
            np.minimum.reduce(spread) + np.einsum("qkn,ndk->qnd", np.abs(lam), radius),
        )

    def class_lines(
        self, u: Array, p: Array | None, rho: tuple[Array, ...], plus: Array, table: Table | None
    ) -> tuple[Lines, tuple[Array, Array]]:
        """For every row an affine function of `Θ` (flat) above its share; and what the blocks of a table add to them, with the
        sum of absolute values behind that. Without `p⁰`, `λ = 0`."""
        rows, hat = self.rows, self.worst(rho)
        omega = u @ hat.swapaxes(1, 2)
        lam = np.zeros(omega.shape) if p is None else self.multipliers(omega, p)
        both = rows.w * lam + plus
        noise = np.zeros((len(u), len(rows)))
        self.reached(noise, u, both, rho)
        const = noise + rows.w * (self.flat(omega) if p is None else self.share(omega, p, lam))
        steep = (np.abs(both) @ self.largest).reshape(len(u), -1)
        slope, coef = (both @ hat).reshape(len(u), -1), np.zeros((0,))
        if table is None or table.budgets:
            coef = (both.swapaxes(1, 2)[..., None] * hat[:, :, None, :]).reshape(*const.shape, -1)
        whole = np.abs(u).sum(axis=1)
        size = 6.0 * rows.w * (whole @ np.abs(rows.x).T + rows.reach_of(whole)) * self.far
        size = size + 4.0 * np.einsum("qkn,kn->qn", np.abs(both), rows.reach_of(self.box.reach))
        spread, shared = np.zeros(len(u)), np.zeros(len(u))
        most = np.abs(self.psi_middle) + self.psi_radius
        for block in () if table is None else table.blocks:
            g, more = _through(block.linear, *self._moved(u, both))
            largest = block.block.magnitude()
            spread = spread + block.block.support(g)[1] + more @ largest
            far = most.T @ np.abs(u) + np.abs(both).swapaxes(1, 2) @ self.box.reach
            shared = shared + 3.0 * _through(abs(block.linear), far, 0.0 * far)[0] @ largest
        return Lines(const, coef, size, both, slope, steep), (spread, shared)


def _highest(omega: Array, low: Array, high: Array) -> Array:
    """Largest `ω·p` over `{low ≤ p ≤ high, Σ_k p_k = 1}`: the largest `ω_k` first."""
    order = np.argsort(-omega, axis=-2)
    room = np.take_along_axis(np.broadcast_to(high - low, omega.shape), order, axis=-2)
    left = np.maximum(1.0 - low.sum(axis=0), 0.0)
    taken = np.clip(left - (np.cumsum(room, axis=-2) - room), 0.0, room)
    return np.asarray((low * omega).sum(axis=-2) + (taken * np.take_along_axis(omega, order, axis=-2)).sum(axis=-2))


def _log_sum(t: Array) -> Array:
    """`log Σ exp t` over the first axis."""
    top = t.max(axis=0)
    return np.asarray(np.log(np.exp(t - top).sum(axis=0)) + top)


def _separate(omega: Array, lam: Array, c: Array, ends: list[tuple[Array, Array]]) -> Array:
    """`c + Σ_k max {(ω_k − c)p − λ_k log p}` over `p` between the ends, which come with their logarithms."""
    rise = omega - c[..., None, :]
    best = np.maximum(*(rise * end - lam * log for end, log in ends))
    inner = (lam < 0) & (rise < 0)
    at = np.where(inner, lam, -1.0) / np.where(inner, rise, -1.0)
    log_at = np.clip(np.log(np.maximum(at, 1e-300)), ends[0][1], ends[1][1])
    best = np.where(inner, np.maximum(best, rise * np.exp(log_at) - lam * log_at), best)
    return np.asarray(c + best.sum(axis=-2))
