"""Bounds of queries over several classes, from what `fitted.softmax` (or `fitted.rest`) knows of single rows.

Budgets are paid as in `fitted.dual`: replacing row `i` costs `max(0, max_B (V_i − U_i))`, with the affine functions `U_i`, `V_i`
of `Θ` now over `K` scores, each on its own scores' ranges; where the row may be gone also `max_B (−U_i)` (`fitted.presence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from mibp_cert.fitted.classes import Box, pairs_of, ridge
from mibp_cert.fitted.costs import ROOM, with_gone
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.known import Lines, solve
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.softmax import STARTS, ClassKnown
from mibp_cert.fitted.table import Array, Budget, Index, Table


class ClassDual(Dual):
    """Bounds of queries (K × P) under the hypothesis that parameters and differences of scores lie in the ranges. `own` counts
    differences of scores: row times pairs, plus the pair."""

    together = 10  # entries of all classes are seldom written down, and every query takes many small steps

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
        g = given + flat @ self.fixed + lines.slope
        parts = np.abs(given) + np.abs(flat) @ self.fixed + lines.steep
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
        u = (a @ self.first).reshape(shape)
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

    @cached_property
    def first(self) -> Array:
        """`−M⁻¹` with the slopes in the middle of the ranges: where the search starts."""
        m = self.all.curvature(self.all.start(), self.table.rows.x) + self.fixed
        return -solve(m, np.eye(len(m)))

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
        starts: list[Array | None] = [p[..., np.maximum(budget.rows, 0)]]  # the slopes of the row itself
        if not budget.targets_only:
            own = known.points(omega, theta @ budget.by.x.T)
            hat = known.worst(known.slopes(u, budget.by.w * known.multipliers(omega, own))).swapaxes(1, 2)
            omega = u @ hat
            own = known.points(omega, theta @ hat)
            # A row that was not there has no line that slopes could be held against.
            starts = [own, starts[0] if there.all() else None]
        gain, whole = np.full(mine.shape, np.inf), np.zeros(len(a))
        for start in starts:
            lam = np.zeros(omega.shape) if start is None else known.multipliers(omega, start)
            rho = known.slopes(u, budget.by.w * lam)
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
            if budget.scaled:
                gain, more = self._by_score(budget, known, (lines.lam, new.lam), const, gain)
                size = size + more
            whole = whole + size.sum(axis=1)
        gain, more = self._or_gone(budget, known, lines, gain)
        whole = whole + more.sum(axis=1)
        # With noise that can be scaled down, a row's range is for datasets that leave it alone.
        gain = np.where(mine & budget.scaled, 0.0, np.maximum(gain, 0.0))
        return self._largest(budget, gain), whole

    def _by_score(
        self, budget: Budget, known: ClassKnown, lam: tuple[Array, Array], const: Array, gain: Array
    ) -> tuple[Array, Array]:
        """The gain where row and alternative have one middle, by the scores of the latter (`fitted.costs`), and the sum of
        absolute values behind that; `lam`: of all rows, and of alternatives."""
        i, box, rows = np.maximum(budget.rows, 0), self.box, self.table.rows
        same = (budget.rows >= 0) & (budget.by.x == rows.x[i]).all(axis=1)
        if not same.any():
            return gain, np.zeros(gain.shape)
        old, new = lam[0][..., i], lam[1]
        mine, other = budget.by.reach_of(box.reach) * ROOM, rows.reach_of(box.reach)[:, i] * ROOM
        noise = ((np.abs(new) + np.abs(new - old)) * mine + np.abs(old) * other).sum(axis=1)
        near, far = known.falls(old - new)
        far = far + noise + known.falls(new)[1] + known.falls(old)[1]
        return np.where(same, np.minimum(gain, const + near + noise), gain), np.where(same, far, 0.0)

    def _or_gone(self, budget: Budget, known: ClassKnown, lines: Lines, gain: Array) -> tuple[Array, Array]:
        """The gain where rows may also be gone, and the sum of absolute values behind that. `U = c + Σ_k λ_k x̂·θ_k`, and with the
        scores `z_k = (x + d)·θ_k` of the dirty row, `|x̂·θ_k − z_k| ≤ 2 max|d·θ_k|` (`fitted.costs`)."""
        if budget.gone is None:
            return gain, np.zeros(gain.shape)
        box, lam = self.box, lines.lam[..., np.maximum(budget.rows, 0)]
        noise = np.einsum("qkn,kn->qn", np.abs(lam), 2.0 * budget.by.reach_of(box.reach) * ROOM)
        near, far = known.falls(lam)
        flat = box.middle.ravel(), box.radius.ravel(), box.reach.ravel()
        return with_gone(budget, lines, flat, (near + noise, far + noise), gain, np.zeros(gain.shape))


def _asked(a: Array, row: Index, pair: Array, hat: Array) -> Array:
    """The queries; those that ask for a difference of scores, with their row as it is at its worst."""
    own = pair[:, :, None] * hat[np.arange(len(a)), np.maximum(row, 0)][:, None, :]
    return np.where((row >= 0)[:, None], own.reshape(a.shape), a)
