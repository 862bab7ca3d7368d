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

from collections.abc import Sequence

import numpy as np

from mibp_cert.fitted.classes import Box, curvature, pairs_of, ridge, softmax
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.known import Known, Lines, Rooms, _gap, _through, solve
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.table import Array, Budget, Index, Rows, Table

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

    def share(self, omega: Array, p: Array, lam: Array) -> Array:
        """Upper bound of `ω·ψ − λ·s` over scores and labels."""
        return self.band(omega, p, lam) + self.labels(omega)

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
        total = -(self.y[0] * omega).sum(axis=-2)
        if not self.rows.q.any():
            return np.asarray(total)
        order = np.argsort(omega, axis=-2)
        room = np.take_along_axis(np.broadcast_to(self.y[1] - self.y[0], omega.shape), order, axis=-2)
        left = np.maximum(1.0 - self.y[0].sum(axis=0), 0.0)
        taken = np.clip(left - (np.cumsum(room, axis=-2) - room), 0.0, room)
        return np.asarray(total - (taken * np.take_along_axis(omega, order, axis=-2)).sum(axis=-2))

    def _moved(self, u: Array, lam: Array, rooms: Rooms | None = None) -> tuple[Array, Array]:
        """Middle and radius of `t_ij`, weights included."""
        middle = self.psi_middle.T @ u + lam.swapaxes(1, 2) @ self.box.middle
        spread = [self.psi_radius.T @ np.abs(part) for part in self.less(u)]  # `min_c Σ_k δψ_k |u_kj − c|`
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
        self, u: Array, p: Array, rho: tuple[Array, ...], plus: Array, table: Table | None
    ) -> tuple[Lines, tuple[Array, Array]]:
        """For every row an affine function of `Θ` (flat) above its share; and what the blocks of a table add to them, with the
        sum of absolute values behind that."""
        rows, hat = self.rows, self.worst(rho)
        omega = u @ hat.swapaxes(1, 2)
        lam = self.multipliers(omega, p)
        both = rows.w * lam + plus
        middle, radius = self._moved(u, both)
        noise = np.einsum("np,qnp->qn", rows.r, _gap(middle, radius, rho[0]))
        if rows.j is not None:
            noise = noise + _gap(*self._directed(u, both), rho[1]).sum(axis=-1)
        for piece in rows.pieces:
            g, more = _through(piece.linear, middle, radius)
            top = piece.segments.ends(g)[1]
            rest = np.add.reduceat(more * piece.segments.magnitude(), piece.segments.starts, axis=1)
            np.add.at(noise.T, piece.segments.rows, (top + rest).T)
        const = noise + rows.w * self.share(omega, p, lam)
        coef = (both.swapaxes(1, 2)[..., None] * hat[:, :, None, :]).reshape(*const.shape, -1)
        whole = np.abs(u).sum(axis=1)
        size = 6.0 * rows.w * (whole @ np.abs(rows.x).T + rows.reach_of(whole)) * self.far
        size = size + 2.0 * np.einsum("qkn,kn->qn", np.abs(both), rows.reach_of(self.box.reach))
        spread, shared = np.zeros(len(u)), np.zeros(len(u))
        most = np.abs(self.psi_middle) + self.psi_radius
        for block in () if table is None else table.blocks:
            g, more = _through(block.linear, middle, radius)
            largest = block.block.magnitude()
            spread = spread + block.block.support(g)[1] + more @ largest
            far = most.T @ np.abs(u) + np.abs(both).swapaxes(1, 2) @ self.box.reach
            shared = shared + 3.0 * _through(abs(block.linear), far, 0.0 * far)[0] @ largest
        return Lines(const, coef, size, both), (spread, shared)


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


class ClassDual(Dual):
    """Bounds of queries (K × P) under the hypothesis that parameters and differences of scores lie in the ranges. `own` counts
    differences of scores: row times pairs, plus the pair."""

    def __init__(
        self,
        table: Table,
        pin: float,
        box: Box,
        tau: Array,
        known: ClassKnown,
        others: Sequence[ClassKnown],
        rounds: int,
    ) -> None:
        self.table, self.tau, self.rounds, self.box, self.all, self.others = table, tau, rounds, box, known, others
        self.classes, self.pairs = len(box.middle), pairs_of(len(box.middle))
        self.fixed = ridge(table.alpha, pin, self.classes)

    def _upper(self, a: Array, own: Index, sign: float) -> Array:
        rows, box = self.table.rows, self.box
        mine = np.flatnonzero(own >= 0)
        pair = sign * self.pairs[own % len(self.pairs)]
        row = np.where(own >= 0, own // len(self.pairs), -1)
        plus = np.zeros((len(a), self.classes, len(rows)))
        plus[mine, :, row[mine]] = pair[mine]
        u, p, rho, theta = self._find(a, row, pair, plus)
        lines, (spread, shared) = self.all.class_lines(u, p, rho, plus, self.table)
        given, flat = np.where((own >= 0)[:, None], 0.0, a), u.reshape(len(a), -1)
        g = given + flat @ self.fixed + lines.coef.sum(axis=1)
        parts = np.abs(given) + np.abs(flat) @ self.fixed + np.abs(lines.coef).sum(axis=1)
        tilt = np.abs(flat) @ self.tau
        total = lines.const.sum(axis=1) + spread + tilt + g @ box.middle.ravel() + np.abs(g) @ box.radius.ravel()
        size = lines.size.sum(axis=1) + shared + tilt + parts @ box.reach.ravel()
        for budget, known in zip(self.table.budgets, self.others, strict=True):
            cost, more = self._replaced(budget, known, u, p, theta, lines, row, a)
            total, size = total + cost, size + more
        count = (len(rows) + 16) * (a.shape[1] + 16)
        return np.asarray(total + 4.0 * count * EPS * size)

    def _find(self, a: Array, row: Index, pair: Array, plus: Array) -> tuple[Array, Array, tuple[Array, ...], Array]:
        """Multipliers `u`, `p⁰`, slopes `ρ` and the worst model: nothing here must be exact."""
        known, rows, box = self.all, self.table.rows, self.box
        shape = (len(a), *box.middle.shape)
        low, high = box.middle - box.radius, box.middle + box.radius
        theta = np.broadcast_to(box.middle, shape)
        u = -solve(known.curvature(known.start(), rows.x) + self.fixed, a.T).T.reshape(shape)
        p = np.broadcast_to(known.start(), (len(a), self.classes, len(rows)))
        rho = known.slopes(u, rows.w * known.multipliers(u @ rows.x.T, p) + plus)
        # Budgets make ranges wide, and few queries are worth the time: then the choice matters.
        last = self.rounds - 1 if self.table.budgets or self.rounds > 2 else -1
        for count in range(self.rounds):
            hat = known.worst(rho)
            wrong, y = self._wrong(u, hat)
            p, psi = known.at(theta @ hat.swapaxes(1, 2), y)
            psi = psi if wrong is hat else known.at(theta @ wrong.swapaxes(1, 2), y)[1]
            gradient = ((rows.w * psi) @ wrong).reshape(a.shape) + theta.reshape(a.shape) @ self.fixed
            both = np.stack([_asked(a, row, pair, hat), gradient], axis=-1)
            both = solve(known.curvature(p, hat) + self.fixed, both)
            u, theta = -both[..., 0].reshape(shape), np.clip(theta - both[..., 1].reshape(shape), low, high)
            omega, s = u @ hat.swapaxes(1, 2), theta @ hat.swapaxes(1, 2)
            p = known.points(omega, s, STARTS if count == last else STARTS[:1])
            rho = known.slopes(u, rows.w * known.multipliers(omega, p) + plus)
        if not self.rounds:
            return u, p, rho, theta
        # For this `p⁰` and these rows, nothing of the affine part is left.
        hat = known.worst(rho)
        m = known.curvature(p, hat) + self.fixed
        return -solve(m, _asked(a, row, pair, hat)[..., None]).reshape(shape), p, rho, theta

    def _wrong(self, u: Array, hat: Array) -> tuple[Array, Array]:
        """The rows at their worst, and their labels (queries × K × rows), after the changes by which budgets gain most, about."""
        y = np.repeat(self.table.rows.y.T[None], len(u), axis=0)
        for budget, known in zip(self.table.budgets, self.others, strict=True):
            by, old = budget.by, np.maximum(budget.rows, 0)
            omega = u @ by.x.T
            p = np.broadcast_to(known.start(), omega.shape)
            moved, _ = known._moved(u, by.w * known.multipliers(omega, p))
            gain = by.w * (known.labels(omega) + (y[..., old] * omega).sum(axis=1))
            gain = gain + np.einsum("np,qnp->qn", by.r, np.abs(moved))
            worst = np.argsort(np.where(budget.rows >= 0, -gain, np.inf), axis=1)[:, : budget.most]
            line = np.arange(len(u))[:, None]
            hat = hat.copy()
            hat[line, old[worst]] = by.x[worst] + by.r[worst] * np.sign(moved[line, worst])
            if by.q.any():
                y[line, :, old[worst]] = np.eye(self.classes)[omega.argmin(axis=1)[line, worst]]
        return hat, y

    def _replaced(
        self, budget: Budget, known: ClassKnown, u: Array, p: Array, theta: Array, lines: Lines, row: Index, a: Array
    ) -> tuple[Array, Array]:
        """What replacing rows adds, and the sum of absolute values behind it."""
        there, box = budget.rows >= 0, self.box
        old = budget.rows[there]
        mine = there & (budget.rows[None, :] == row[:, None])
        omega = u @ budget.by.x.T
        starts = [p[..., np.maximum(budget.rows, 0)]]  # the slopes of the row itself
        if not budget.targets_only:
            own = known.points(omega, theta @ budget.by.x.T)
            hat = known.worst(known.slopes(u, budget.by.w * known.multipliers(omega, own))).swapaxes(1, 2)
            omega = u @ hat
            own = known.points(omega, theta @ hat)
            starts = [own, np.where(there, starts[0], own)]
        gain, whole = np.full(mine.shape, np.inf), np.zeros(len(a))
        for start in starts:
            rho = known.slopes(u, budget.by.w * known.multipliers(omega, start))
            new, _ = known.class_lines(u, start, rho, np.zeros(omega.shape), None)
            const, coef, size = new.const, new.coef, new.size + np.abs(new.coef) @ box.reach.ravel()
            const[:, there] -= lines.const[:, old]
            coef[:, there] -= lines.coef[:, old]
            size[:, there] += lines.size[:, old] + np.abs(lines.coef[:, old]) @ box.reach.ravel()
            if mine.any() and not budget.scaled:
                # The row's own score is asked for while another stands in its place.
                reach = self.table.reach_of(box.reach.sum(axis=0))[np.maximum(row, 0)]
                const = const + np.where(mine, reach[:, None], 0.0)
                coef = coef + np.where(mine[..., None], a[:, None, :], 0.0)
            gain = np.minimum(gain, const + coef @ box.middle.ravel() + np.abs(coef) @ box.radius.ravel())
            whole = whole + size.sum(axis=1)
        # With noise that can be scaled down, a row's range is for datasets that leave it alone.
        gain = np.where(mine & budget.scaled, 0.0, np.maximum(gain, 0.0))
        return self._largest(budget, gain), whole


def _asked(a: Array, row: Index, pair: Array, hat: Array) -> Array:
    """The queries; those that ask for a difference of scores, with their row as it is at its worst."""
    own = pair[:, :, None] * hat[np.arange(len(a)), np.maximum(row, 0)][:, None, :]
    return np.where((row >= 0)[:, None], own.reshape(a.shape), a)
