"""The best multipliers of a query, by an interior-point method.

With the rows at their worst `x̂_i` (`fitted.dual`) the bound (1), minimised over `u` and `λ`, is the dual of

    max a·θ    with    α∘θ + Σ_i w_i p_i x̂_i = 0,    s_i = x̂_i·θ,    θ ∈ B,    s_i ∈ S_i,    ψ̌_i(s_i) ≤ p_i ≤ ψ̂_i(s_i),

`ψ̌`, `ψ̂` the convex and the concave envelope of `ψ` on `S_i`: a convex program, whose multipliers of the two equations are `u` and
`w_iλ_i`. Where the best `θ` is inside of all ranges, `λ = κω` and `u = −M⁻¹a` solve it, and Newton's method on the envelopes'
fit finds them (`Dual._search`). Where some range is in its way, they do not: then some `ω_i` are 0 and some `λ_i` are not, as
at a vertex of a linear program.

**Method.** Every inequality gets a logarithm times `μ`; Newton steps follow the maximiser while `μ` falls. With `φ(s, p) =
log(ψ̂ − p) + log(p − ψ̌) + log(s − l) + log(h − s)` of a row, its derivatives `φ_s, …, φ_pp`, `κ = −φ_sp/φ_pp`, `f = μ(φ_ss −
φ_sp²/φ_pp) ≤ 0` and `ε_i = x̂_i·θ − s_i`, eliminating `dp`, `ds = x̂·dθ + ε` and `λ` from the equations of a step leaves

    M u + F dθ = −(a + μφ_θ + Σ_i [μ(φ_s − φ_sp φ_p/φ_pp) + fε]_i x̂_i),        F = Σ_i f_i x̂_i x̂_iᵀ + μ diag φ_θθ,
    N u + M dθ = −(α∘θ + Σ_i w_i [p − φ_p/φ_pp + κε]_i x̂_i),                   N = −Σ_i w_i²/(μφ_pp)_i x̂_i x̂_iᵀ,

with `M = diag α + Σ_i w_i κ_i x̂_i x̂_iᵀ`: `κ` is a slope between those of the two envelopes. At the end `μ` times the number of
inequalities is what the multipliers are short of the best.

Nothing here must be exact: whatever comes out, `fitted.dual` evaluates the bound that it gives.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mibp_cert.fitted.known import Known, dot, summed
from mibp_cert.fitted.table import Array, Index

STEPS = 16
"""Newton steps, at most."""
FIRST, FALL = 30.0, 0.07
"""`μ` starts where all inequalities together count this multiple of the gap, and falls by this factor after a long step."""
CLOSE = 0.002
"""What the multipliers may be short of the best, relative to the bound's distance from the worst model found."""
EDGE = 0.05
"""Share of a range that the start stays away from its ends, and of every slack that is left after a step."""
THIN = 1e-7
"""Ranges are taken to be at least so wide, relative to their size."""


class Rows:
    """The two-dimensional sets `S_i`, `ψ̌ ≤ p ≤ ψ̂`, a little widened where they are thin; `own`: rows whose scores are asked for,
    which are not held by their own ranges."""

    def __init__(self, known: Known, own: Index) -> None:
        self.known = known
        thin = THIN * (1.0 + known.far)
        self.low, self.high = _freed(known.low - thin, known.high + thin, own)
        self.thin = THIN * known.size

    def edges(self, s: Array) -> tuple[Array, Array, Array, Array]:
        """Lower and upper edge of `p` at `s`, and their slopes."""
        known, loss, y = self.known, self.known.loss, self.known.rows.y
        inside = np.clip(s, known.low, known.high)
        yes, out = np.ones(s.shape, dtype=bool), s - inside
        (high, rise), (low, fall) = known.envelope(yes, inside), known.envelope(~yes, inside)
        if known.rows.q.any():
            at = loss.psi(y, inside)
            high, low = high + (loss.psi(known.ends[0], inside) - at), low + (loss.psi(known.ends[1], inside) - at)
        slack = self.thin + np.abs(out) * (rise + fall)
        return low + fall * out - slack, high + rise * out + slack, fall, rise


class Interior:
    """The state of the method, for many queries at once: see the module's text. A query is not held by its own range: the ends
    of what is asked for are where they are only by assumption, and the bound should say where they ought to be."""

    def __init__(
        self, known: Known, alpha: Array, asked: tuple[Array, Array], own: Index, theta: Array, gap: Array
    ) -> None:
        z = known.ranges
        # Columns of one size: numbers of 1e8 beside 1e-8 would leave nothing of a step.
        self.unit = np.sqrt(np.maximum((known.rows.x**2).mean(axis=0), 1e-300))
        self.rows, self.w, self.alpha = Rows(known, own), known.rows.w, alpha / self.unit**2
        self.turn(*asked)
        thin = THIN * (z.reach + np.abs(z.middle)) + 1e-300
        alone = np.where((own < 0) & (np.count_nonzero(self.a, axis=1) == 1), np.abs(self.a).argmax(axis=1), -1)
        self.low, self.high = _freed((z.low - thin) * self.unit, (z.high + thin) * self.unit, alone)
        self.count = 2 * len(alpha) + 4 * len(self.w)
        self.theta = _inside(theta * self.unit, self.low, self.high)
        self.s = _inside(dot(self.hat, self.theta), self.rows.low, self.rows.high)
        self.edges = self.rows.edges(self.s)
        self.p = 0.5 * (self.edges[0] + self.edges[1])
        self.mu = FIRST * np.maximum(gap, 1e-300) / self.count
        self.u, self.lam = np.zeros(theta.shape), np.zeros(self.s.shape)

    def turn(self, a: Array, hat: Array) -> None:
        """Other rows: those that are worst for the multipliers of the last step."""
        self.a, self.hat = a / self.unit, hat / self.unit

    def step(self) -> None:
        """One Newton step, and a smaller `μ` where it was long."""
        (c, d, fall, rise), mu = self.edges, self.mu[:, None]
        above, below, left, right = d - self.p, self.p - c, self.s - self.rows.low, self.rows.high - self.s
        p1, s1 = 1.0 / below - 1.0 / above, rise / above - fall / below + 1.0 / left - 1.0 / right
        pp, sp = -(above**-2) - below**-2, rise / above**2 + fall / below**2
        ss = -((rise / above) ** 2) - (fall / below) ** 2 - left**-2 - right**-2
        kappa, f = -sp / pp, mu * (ss - sp**2 / pp)
        off = dot(self.hat, self.theta) - self.s
        near, far = self.theta - self.low, self.high - self.theta
        size = self.a.shape[1]
        m = self._gram(self.w * kappa) + np.diag(self.alpha)
        flat = self._gram(f) - (mu * (near**-2 + far**-2))[..., None] * np.eye(size)
        other = self._gram(-(self.w**2) / (mu * pp))
        first = self.a + mu * (1.0 / near - 1.0 / far) + summed(mu * (s1 - sp * p1 / pp) + f * off, self.hat)
        second = self.alpha * self.theta + summed(self.w * (self.p - p1 / pp + kappa * off), self.hat)
        whole = np.concatenate([np.concatenate([m, flat], axis=2), np.concatenate([other, m], axis=2)], axis=1)
        found = np.linalg.solve(whole, -np.concatenate([first, second], axis=1)[..., None])[..., 0]
        self.u, by = found[:, :size], found[:, size:]
        ds = dot(self.hat, by) + off
        dp = -(self.w * dot(self.hat, self.u) / mu + p1 + sp * ds) / pp
        self.lam = mu * (s1 + ss * ds + sp * dp) / self.w
        self._move(by, ds, dp, above, below)

    def _gram(self, weight: Array) -> Array:
        """`Σ_i weight_i x̂_i x̂_iᵀ`, for every query."""
        return np.asarray(np.matmul((self.hat * weight[..., None]).transpose(0, 2, 1), self.hat))

    def _move(self, by: Array, ds: Array, dp: Array, above: Array, below: Array) -> None:
        """As far along the step as every slack keeps a share of itself."""
        share = np.minimum(_room(self.theta, by, self.low, self.high), _room(self.s, ds, self.rows.low, self.rows.high))
        share = np.minimum(1.0, (1.0 - EDGE) * share)
        for _ in range(12):
            s, p = self.s + share[:, None] * ds, self.p + share[:, None] * dp
            edges = self.rows.edges(s)
            out = ((edges[1] - p < EDGE * above) | (p - edges[0] < EDGE * below)).any(axis=1)
            if not out.any():
                break
            share = np.where(out, 0.6 * share, share)
        else:
            share = np.where(out, 0.0, share)
            s, p = self.s + share[:, None] * ds, self.p + share[:, None] * dp
            edges = self.rows.edges(s)
        self.theta, self.s, self.p, self.edges = self.theta + share[:, None] * by, s, p, edges
        self.mu = self.mu * np.where(share > 0.5, FALL, np.where(share > 0.2, 0.6, 1.0))


Worst = Callable[[Array, Array], tuple[Array, Array]]
"""The queries (queries × P) and the rows at their worst (queries × rows × P), for multipliers `u`, `λ`."""


def best_multipliers(
    known: Known, alpha: Array, worst: Worst, own: Index, start: tuple[Array, Array, Array], gap: Array
) -> tuple[Array, Array]:
    """`u` and `λ`, from a `start` with others and a model; `gap`: how far their bound is from that model; `own`: rows whose
    scores are asked for, else −1."""
    u, lam, theta = start
    with np.errstate(all="ignore"):
        state = Interior(known, alpha, worst(u, lam), own, theta, gap)
        for _ in range(STEPS):
            try:
                state.step()
            except np.linalg.LinAlgError:
                break
            if (state.mu * state.count <= CLOSE * gap).all():
                break
            state.turn(*worst(state.u / state.unit, state.lam))
        return state.u / state.unit, state.lam


def _freed(low: Array, high: Array, which: Index) -> tuple[Array, Array]:
    """The ranges for every query; that of `which` (if ≥ 0) is three times as wide."""
    both = [np.repeat(end[None], len(which), axis=0) for end in (low, high)]
    line = np.flatnonzero(which >= 0)
    at = line, which[line]
    width = both[1][at] - both[0][at]
    both[0][at] -= width
    both[1][at] += width
    return both[0], both[1]


def _inside(v: Array, low: Array, high: Array) -> Array:
    return np.clip(v, low + EDGE * (high - low), high - EDGE * (high - low))


def _room(v: Array, by: Array, low: Array, high: Array) -> Array:
    """How far one may go along `by` before an end is reached, for every query."""
    far = np.where(by > 0, (high - v) / by, np.where(by < 0, (low - v) / by, np.inf))
    return np.asarray(far.min(axis=1))
