"""Tier 1: a bound of `a·θ(D)` over every dataset `D` of the threat, from multipliers of the query's own.

Symbols: rows `x_i + d_i`, targets `y_i + e_i`, weights `w_i` (`fitted.table`), `ψ = ∂ℓ/∂s`, penalties `α`; known ranges `B` of
`θ` and `S_i` of the scores `s_i = (x_i + d_i)·θ`; a tilt `|v_j| ≤ τ_j`: every minimiser in question has `∇L_D(θ) = v`.

For every `u` and `λ`, since `∇L_D(θ) − v = 0` and `(x_i + d_i)·θ − s_i = 0`,

    a·θ = (a + α∘u)·θ − u·v + Σ_i w_i { ψ(y_i + e_i, s_i) u·(x_i + d_i) + λ_i [(x_i + d_i)·θ − s_i] }.                        (1)

**One row.** `d_ij` multiplies `t_ij = ψu_j + λ_iθ_j ∈ [l, h]`. As `|t| − ρt` is convex, `|t| ≤ ρt + γ` with `γ = max(|l| − ρl,
|h| − ρh)` for any `ρ`; the best is `ρ = ±1` where the sign is known and the chord's slope where it is not. With `x̂_i = x_i +
r_i∘ρ_i` and `ω_i = u·x̂_i`, `λ_i = κ_iω_i`,

    row i ≤ λ_i x̂_i·θ + |ω_i| max_{s ∈ S_i} ±(ψ − κ_i s) + Σ_j r_ij γ_ij,        the sign being that of ω_i.

More generally `λ_i = κ_iω_i + e_i`, which pays `max_{s ∈ S_i} −e_i s`.

Noise of one row that is known by a support function, `d_i = Lε`, moves `x̂_i` by `Lε̂` and pays what it reaches beyond
(`sets.lean`); that of several rows pays the support of the middle of `t`, plus the radius of `t` times its largest size. What
remains is affine in `θ`: its largest value over `B` is at a corner. Soundness does not depend on how `u`, `κ`, `ρ` were found.

**A row's own score** is the query `a = x_i + d_i`: its noise is that of row `i`, so `λ_i + 1/w_i` takes the place of `λ_i`
before `x_i + d_i` (and not before `s_i`).

**Budgets.** Let `U_i(θ)` be the affine function summed for row `i`, `V_i(θ)` that of an alternative, with its own slope on its
own score's range. Replacing the row costs `max(0, max_B (V_i − U_i))`, and where it may be gone altogether also `max_B (−U_i)`;
`most` rows cost at most the sum of the `most` largest.

Multipliers: `u = −M⁻¹a` with `M = diag α + Σ w_i κ_i x̂_i x̂_iᵀ` leaves nothing of the affine part; `κ_i` is the slope of the
concave (`ω_i > 0`) or convex envelope of `ψ` on `S_i` at the score of the worst model, which a Newton step on the fit with
these envelopes approaches (`upper`). Where ranges are in the worst model's way there are better ones (`best`, by
`fitted.interior`).

Rounding: with `T` the sum of the absolute values of all terms and `N` their number, a sum of products in float64 is off by
less than `4Nε·T`; that is added.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.costs import by_score, or_gone
from mibp_cert.fitted.crew import in_chunks
from mibp_cert.fitted.interior import best_multipliers
from mibp_cert.fitted.known import Known, Lines, Rooms, dot, solve, summed
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.table import Array, Budget, Index, Table
from mibp_cert.sets import largest_sum

CELLS = 100_000
"""Entries (queries × rows × parameters) at once: as much as caches hold."""


@dataclass(frozen=True, eq=False)
class Multipliers:
    """`u` and `λ` of queries, and the worst models found on the way (queries × P, × rows, × P)."""

    u: Array
    lam: Array
    theta: Array


Found = tuple[Array, Array, Array, list[tuple[Array, ...]]]
"""Multipliers `u` and slopes `κ`, the worst model, and `ρ` for every part of the rows."""


class Dual:
    """Bounds of queries under the hypothesis that parameters and scores lie in the ranges."""

    together = 1
    """Times `CELLS`: what is taken at once."""

    def __init__(self, table: Table, loss: ScoreLoss, ranges: Ranges, tau: Array, rounds: int = 2) -> None:
        self.table, self.ranges, self.tau, self.rounds = table, ranges, tau, rounds
        self.main = Known(loss, table.rows, ranges.s_low, ranges.s_high, ranges)
        # Many rows are taken some at a time, unless other noise or budgets need to see them at once.
        n, alone = len(table.rows), bool(table.budgets or table.blocks or table.rows.pieces)
        step = n if alone else max(1, CELLS // table.rows.x.shape[1])
        self.parts = [slice(i, min(i + step, n)) for i in range(0, n, step)]
        self.known = [self.main] if len(self.parts) == 1 else [self.main.part(part) for part in self.parts]
        self.rooms = Rooms()
        self.by = [
            Known(loss, budget.by, low, high, ranges)
            for budget, (low, high) in zip(table.budgets, ranges.by, strict=True)
        ]

    def upper(self, a: Array, own: Index | None = None, sign: float = 1.0) -> Array:
        """Upper bounds of `a·θ`; where `own[q] = i ≥ 0`, of `sign` times the score of row `i` with its own noise."""
        return self._in_turn("_upper", sign, a, _of_rows(a, own))[0] if len(a) else np.zeros(0)

    def best(self, a: Array, own: Index | None = None, sign: float = 1.0) -> tuple[Array, Multipliers]:
        """The same with multipliers that are as good as can be, and these: some ten times the work."""
        found, *parts = self.at_once._in_turn("_best", sign, a, _of_rows(a, own))
        return found, Multipliers(*parts)

    def searched(self, a: Array, own: Index | None = None, sign: float = 1.0) -> tuple[Array, Multipliers]:
        """The same as `upper`, and the multipliers."""
        found, *parts = self.at_once._in_turn("_searched", sign, a, _of_rows(a, own))
        return found, Multipliers(*parts)

    def given(self, a: Array, by: Multipliers, own: Index | None = None, sign: float = 1.0) -> Array:
        """The same with given multipliers."""
        return self.at_once._in_turn("_given", sign, a, _of_rows(a, own), by.u, by.lam, by.theta)[0]

    @cached_property
    def at_once(self) -> Dual:
        """The same with all rows at once, as multipliers `λ` that are no `κω` have them."""
        whole = copy.copy(self)
        whole.parts, whole.known, whole.rooms = [slice(0, len(self.table.rows))], [self.main], Rooms()
        return self if len(self.parts) == 1 else whole

    def _in_turn(self, of: str, sign: float, *asked: Any) -> list[Array]:
        """What a method computes of the queries, some at a time, by whoever works (`fitted.crew`)."""
        rows = len(self.table.rows) + sum(len(budget.by) for budget in self.table.budgets)
        step, count = max(1, self.together * CELLS // max(1, rows * asked[0].shape[1])), len(asked[0])
        found = in_chunks(_chunk, (self, of, sign, step, asked), count, step, rows * asked[0].size)
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]

    def _upper(self, a: Array, own: Index, sign: float) -> Array:
        plus = self._plus(own, sign)
        return self._value(a, own, sign, plus, self._search(a, own, sign, plus))

    def _searched(self, a: Array, own: Index, sign: float) -> tuple[Array, Array, Array, Array]:
        plus = self._plus(own, sign)
        u, kappa, theta, rho = found = self._search(a, own, sign, plus)
        return self._value(a, own, sign, plus, found), u, kappa * dot(self.main.worst(rho[0]), u), theta

    def _best(self, a: Array, own: Index, sign: float) -> tuple[Array, Array, Array, Array]:
        plus = self._plus(own, sign)
        u, kappa, theta, rho = self._search(a, own, sign, plus)
        plain = self._value(a, own, sign, plus, (u, kappa, theta, rho))
        hat, mine = self.main.worst(rho[0]), np.flatnonzero(own >= 0)

        def worst(u: Array, lam: Array) -> tuple[Array, Array]:
            """The queries, and the rows at their worst for these multipliers."""
            hat, query = self.main.worst(self.main.slopes(u, lam + plus, self.rooms), self.rooms), np.array(a)
            query[mine] = sign * hat[mine, own[mine]]
            return query, hat

        lam = kappa * dot(hat, u)
        gap = np.maximum(plain - (worst(u, lam)[0] * theta).sum(axis=1), 1e-12 * (1.0 + np.abs(plain)))
        new_u, new_lam = best_multipliers(self.main, self.table.alpha, worst, own, (u, lam, theta), gap)
        found = self._given(a, own, new_u, new_lam, theta, sign)
        # Where the search found better ones, or the method none at all, those stay.
        worse = ~(found < plain)[:, None]
        return np.fmin(plain, found), np.where(worse, u, new_u), np.where(worse, lam, new_lam), theta

    def _given(self, a: Array, own: Index, u: Array, lam: Array, theta: Array, sign: float) -> Array:
        plus, main = self._plus(own, sign), self.main
        rho = main.slopes(u, lam + plus)
        omega = dot(main.worst(rho), u)
        with np.errstate(all="ignore"):
            # Beyond the slopes of `ψ`, `ψω − λs` is largest at an end: nothing is lost by taking the rest of `λ` on its own.
            kappa = np.clip(np.nan_to_num(lam / omega), 0.0, main.loss.steepest)
        return self._value(a, own, sign, plus, (u, kappa, theta, [rho]), lam - kappa * omega)

    def _plus(self, own: Index, sign: float) -> Array:
        """What is added to `λ` where the score of a row is asked for."""
        rows, mine = self.table.rows, np.flatnonzero(own >= 0)
        plus = np.zeros((len(own), len(rows)))
        plus[mine, own[mine]] = sign / rows.w[own[mine]]
        return plus

    def _value(self, a: Array, own: Index, sign: float, plus: Array, by: Found, rest: Array | None = None) -> Array:
        """The bound (1), outward, for whatever multipliers; `λ = κω + rest` (only of rows that are taken all at once)."""
        rows, z, alpha, (u, kappa, theta, rho) = self.table.rows, self.ranges, self.table.alpha, by
        table, found, spread, shared = self.table, [], np.zeros(len(a)), np.zeros(len(a))
        given = np.where((own >= 0)[:, None], 0.0, a)
        g, parts = given + alpha * u, np.abs(given) + np.abs(alpha * u)
        for part, known, slopes in zip(self.parts, self.known, rho, strict=True):
            some = u, kappa[:, part], slopes, plus[:, part], table
            lines, (more, far) = known.lines(*some, whole=bool(table.budgets), rooms=self.rooms, rest=rest)
            found.append(lines)
            g, parts, spread, shared = g + lines.slope, parts + lines.steep, spread + more, shared + far
        tilt = np.abs(u) @ self.tau
        const, sizes = (sum(getattr(lines, name).sum(axis=1) for lines in found) for name in ("const", "size"))
        total = const + spread + tilt + g @ z.middle + np.abs(g) @ z.radius
        size = sizes + shared + tilt + parts @ z.reach
        for budget, known in zip(table.budgets, self.by, strict=True):
            cost, more = self._cost(budget, known, u, kappa, theta, found[0], own, sign, rest)
            total, size = total + cost, size + more
        count = (len(rows) + 16) * (a.shape[1] + 16)
        return np.asarray(total + 4.0 * count * EPS * size)

    def _search(self, a: Array, own: Index, sign: float, plus: Array) -> Found:
        """Multipliers `u` and `κ`, the worst model, and slopes `ρ`: nothing here must be exact."""
        main, rows, z, alpha = self.main, self.table.rows, self.ranges, self.table.alpha
        kappa = np.array(np.broadcast_to(main.secant, (len(a), len(rows))))
        theta = np.array(np.broadcast_to(z.middle, a.shape))
        u = a @ self.first
        rho = [
            known.slopes(u, kappa[:, part] * (u @ known.rows.x.T) + plus[:, part], self.rooms)
            for part, known in zip(self.parts, self.known, strict=True)
        ]
        for _ in range(self.rounds):
            m, gradient, query = np.diag(alpha) + np.zeros((len(a), 1, 1)), alpha * theta, np.array(a)
            for part, known, slopes in zip(self.parts, self.known, rho, strict=True):
                hat = known.worst(slopes, self.rooms)
                mine = np.flatnonzero((own >= part.start) & (own < part.stop))
                query[mine] = sign * hat[mine, own[mine] - part.start]
                s = np.clip(dot(hat, theta), known.low, known.high)
                psi, bend = known.envelope(dot(hat, u) >= 0, s)
                m = m + known.bent(hat, bend, self.rooms)
                gradient = gradient + summed(known.rows.w * psi, hat)
            both = solve(m, np.stack([query, gradient], axis=-1))
            u, theta = -both[..., 0], np.clip(theta - both[..., 1], z.low, z.high)
            for k, (part, known) in enumerate(zip(self.parts, self.known, strict=True)):
                hat = known.worst(rho[k], self.rooms)
                omega = dot(hat, u)
                s = np.clip(dot(hat, theta), known.low, known.high)
                kappa[:, part] = known.envelope(omega >= 0, s)[1]
                rho[k] = known.slopes(u, kappa[:, part] * omega + plus[:, part], self.rooms, rho[k])
        return u, kappa, theta, rho

    @cached_property
    def first(self) -> Array:
        """`−M⁻¹` with the secants' slopes: where the search starts."""
        return -solve(self.main.hessian(self.table.alpha), np.eye(len(self.table.alpha)))

    def _cost(
        self,
        budget: Budget,
        known: Known,
        u: Array,
        kappa: Array,
        theta: Array,
        lines: Lines,
        own: Index,
        sign: float,
        rest: Array | None = None,
    ) -> tuple[Array, Array]:
        """What replacing rows adds to (1), and the sum of absolute values behind it."""
        rows, z, by = self.table.rows, self.ranges, budget.by
        there = budget.rows >= 0
        mine = there & (budget.rows[None, :] == own[:, None])
        omega = u @ by.x.T
        if budget.targets_only:
            # The same row with another target: with the same slope, nothing but the maxima differ.
            const, size = known.replaced(
                self.main, budget.rows, u, omega, kappa[:, budget.rows], None if rest is None else rest[:, budget.rows]
            )
            gain, size = or_gone(budget, known, lines, const, size)
            gain = np.where(mine, 0.0, np.maximum(gain, 0.0))
            return self._largest(budget, gain), size.sum(axis=1)
        kappa = known.envelope(omega >= 0, np.clip(theta @ by.x.T, known.low, known.high))[1]
        kappa = np.where(there, kappa, 0.0)  # a new row has no line that a slope of its own could be held against
        new, _ = known.lines(u, kappa, known.slopes(u, kappa * omega), np.zeros(omega.shape), None)
        const, coef, size = new.const, new.coef, new.size + np.abs(new.coef) @ z.reach
        old = budget.rows[there]
        const[:, there] -= lines.const[:, old]
        coef[:, there] -= lines.coef[:, old]
        size[:, there] += lines.size[:, old] + np.abs(lines.coef[:, old]) @ z.reach
        if mine.any() and not budget.scaled:
            # The row's own score is asked for while another stands in its place.
            i = np.maximum(own, 0)
            const = const + np.where(mine, self.table.reach_of(z.reach)[i][:, None], 0.0)
            coef = coef + np.where(mine[..., None], sign * rows.x[i][:, None, :], 0.0)
        gain = const + coef @ z.middle + np.abs(coef) @ z.radius
        if budget.scaled:
            gain, size = by_score(budget, known, rows, (lines, new.lam), const, gain, size)
        gain, size = or_gone(budget, known, lines, gain, size)
        # With noise that can be scaled down, a row's range is for datasets that leave it alone.
        gain = np.where(mine & budget.scaled, 0.0, np.maximum(gain, 0.0))
        return self._largest(budget, gain), size.sum(axis=1)

    def _largest(self, budget: Budget, gain: Array) -> Array:
        """The sum of the `most` largest costs, one for each row."""
        rows, there = self.table.rows, budget.rows >= 0
        best = np.zeros((len(gain), len(rows) + len(budget.rows)))
        place = np.where(there, budget.rows, len(rows) + np.arange(len(budget.rows)))
        np.maximum.at(best.T, place, gain.T)
        if not there.all():  # a row that was not there can come more than once
            again = np.repeat(best[:, len(rows) :].max(axis=1, keepdims=True), budget.most, axis=1)
            best = np.concatenate([best, again], axis=1)
        return largest_sum(best, budget.most)


def _of_rows(a: Array, own: Index | None) -> Index:
    return np.full(len(a), -1, dtype=np.intp) if own is None else own


def _chunk(shared: tuple[Dual, str, float, int, tuple[Array, ...]], start: int) -> tuple[Array, ...]:
    """What is computed of the queries from `start` on: one step of them."""
    dual, of, sign, step, asked = shared
    found = getattr(dual, of)(*(part[start : start + step] for part in asked), sign)
    return found if isinstance(found, tuple) else (found,)
