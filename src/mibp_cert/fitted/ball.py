"""A ball around the clean model that holds every minimiser: strong convexity, where no hypothesis proves itself.

Let `θ = (w, b)` with the penalties `A = diag α > 0` on `w`, none on the intercept `b`. `F_D(w) = min_b L_D(w, b)` is as strongly
convex in `w` as the penalty, since `L_D − ½ w·Aw` is convex in both; and where `b` minimises `L_D(w, ·)`, `∂_w L_D(w, b)` is a
subgradient of it. For the clean model's `w_c` and the minimiser `w(D)`, where 0 is a subgradient,

    ‖w(D) − w_c‖_A ≤ ‖g‖_{A⁻¹},        g = ∂_w L_D(w_c, b) = Σ_i w_i ψ(y_i, s_i)(x_i − m) + α∘w_c,    s_i = x_i·w_c + b,

for every `b` with `Σ_i w_i ψ(y_i, s_i) = 0`, and for any `m`, as the sum it multiplies is 0. Where all coordinates are penalised,
`b` is one of `w`, and `m = 0`.

All of it is monotone: scores lie within `x_i·w_c ± R_i·|w_c| + b`, with `R` the largest noise of the cells; `ψ` rises with the
score and falls with the target; so the sum of the `ψ_i` has a lower and an upper end that rise with `b`, and no root is where
the upper end is negative, or the lower one positive. Rows that a budget replaces change an end by at most the `most` largest
differences. Tilts add `τ` to each gradient. Then `|w_j − w_cj| ≤ ‖g‖_{A⁻¹}/√α_j`; scores at `w(D)` are off by at most `‖g‖_{A⁻¹}
‖|x_i| + R_i‖_{A⁻¹}` more, and with these the roots are enclosed again. A minimiser exists: with bounded roots, the loss grows in
every direction.

This needs no continuation and no hypothesis, for any doubt; but it knows nothing of the curvature of the data. `tighten` brings
that in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.shared import _largest as largest_noise
from mibp_cert.fitted.table import Array, Budget, Rows
from mibp_cert.sets import largest_sum

if TYPE_CHECKING:
    from mibp_cert.fitted.problem import Problem

SLIP = 1e-11
"""Relative to the sum of absolute values: more than all that float64 loses here, for up to 10⁴ rows and columns."""
FARTHEST = 1e9
"""How far out a root of the intercept is looked for."""
Pair = tuple[Array, Array]


@dataclass(frozen=True, eq=False)
class Part:
    """Rows, or what may replace them: the largest noise of their cells, and scores without the intercept (middle, radius)."""

    rows: Rows
    noise: Array
    middle: Array
    radius: Array

    def psi(self, problem: Problem, low: float, high: float) -> Pair:
        """Ends of `w_i ψ_i` for intercepts between these, outward."""
        rows, loss = self.rows, problem.loss
        first, last = self.middle - self.radius + low, self.middle + self.radius + high
        far = np.maximum(np.abs(first), np.abs(last)) + np.abs(self.middle) + self.radius
        slip = SLIP * (loss.size(np.abs(rows.y) + rows.q, far) + loss.steepest * far)
        bottom, top = loss.psi(rows.y + rows.q, first) - slip, loss.psi(rows.y - rows.q, last) + slip
        return rows.w * bottom, rows.w * top


def ball(problem: Problem) -> Ranges | None:
    """Ranges that hold every minimiser; None where the intercept is not bounded, or a number is not finite."""
    alpha, c = problem.table.alpha, problem.c
    profiled = bool(alpha[-1] == 0)
    p = len(c) - profiled
    if not (alpha[:p] > 0).all():
        return None
    own = np.append(c[:p], [0.0] * profiled)
    parts = [_part(rows, noise, own) for rows, noise in _all_rows(problem)]
    roots = intercepts(problem, parts) if profiled else (0.0, 0.0)
    if roots is None:
        return None
    unit = 1.0 / np.sqrt(alpha[:p])
    size = float(np.linalg.norm(gradient(problem, parts, roots, p) * unit)) * (1.0 + SLIP)
    wider = []
    for part in parts:
        more = size * np.linalg.norm((np.abs(part.rows.x[:, :p]) + part.noise[:, :p]) * unit, axis=1)
        wider.append(Part(part.rows, part.noise, part.middle, (part.radius + more) * (1.0 + SLIP)))
    ends = intercepts(problem, wider) if profiled else (0.0, 0.0)
    if ends is None or not np.isfinite(size):
        return None
    reach = size * unit * (1.0 + SLIP) + SLIP * np.abs(c[:p])
    low, high = (np.append(c[:p] + sign * reach, [end] * profiled) for sign, end in zip((-1.0, 1.0), ends, strict=True))
    scores = [(part.middle - part.radius + ends[0], part.middle + part.radius + ends[1]) for part in wider]
    slip = [SLIP * (np.abs(a) + np.abs(b)) for a, b in scores]
    scores = [(a - s, b + s) for (a, b), s in zip(scores, slip, strict=True)]
    return Ranges(low, high, *scores[0], tuple(scores[1:]))


def gradient(problem: Problem, parts: list[Part], roots: tuple[float, float], p: int) -> Array:
    """Largest `|g_j|` over all datasets, for intercepts between `roots`."""
    table, tau = problem.table, problem.tau
    psi = [part.psi(problem, *roots) for part in parts]
    profiled = p < len(tau)
    middle = np.zeros(p)
    if profiled:
        weight = psi[0][1] - psi[0][0]
        middle = weight @ table.rows.x[:, :p] / max(float(weight.sum()), 1e-300)
    cells = [_cells(part, ends, middle, p) for part, ends in zip(parts, psi, strict=True)]
    low, high = _sums(table.budgets, cells)
    pull = table.alpha[:p] * problem.c[:p]
    size = sum(np.maximum(np.abs(a), np.abs(b)).sum(axis=0) for a, b in cells) + np.abs(pull)
    most = np.maximum(np.abs(low + pull), np.abs(high + pull)) + tau[:p] + SLIP * size
    return np.asarray(most + np.abs(middle) * tau[-1] if profiled else most)


def intercepts(problem: Problem, parts: list[Part]) -> tuple[float, float] | None:
    """Ends of all roots `b` of `Σ_i w_i ψ_i = v`, `|v| ≤ τ`; None where they are not bounded."""
    start, found = float(problem.c[-1]), list[float]()

    def beyond(b: float, sign: float) -> bool:
        """No root is here, or further out?"""
        psi = [part.psi(problem, b, b) for part in parts]
        low, high = _sums(problem.table.budgets, [(a[:, None], b[:, None]) for a, b in psi])
        size = sum(float(np.maximum(np.abs(a), np.abs(b)).sum()) for a, b in psi)
        slip = float(problem.tau[-1]) + SLIP * size
        return bool(low[0] > slip if sign > 0 else high[0] < -slip)

    for sign in (-1.0, 1.0):
        out, inner = 1e-9 * (1.0 + abs(start)), 0.0
        while not beyond(start + sign * out, sign):
            inner, out = out, 2.0 * out
            if out > FARTHEST:
                return None
        for _ in range(30):
            middle = 0.5 * (inner + out)
            inner, out = (inner, middle) if beyond(start + sign * middle, sign) else (middle, out)
        found.append(start + sign * out)
    return found[0], found[1]


def _all_rows(problem: Problem) -> list[tuple[Rows, Array]]:
    table = problem.table
    others = [(budget.by, largest_noise(budget.by, None)) for budget in table.budgets]
    return [(table.rows, largest_noise(table.rows, table)), *others]


def _part(rows: Rows, noise: Array, w: Array) -> Part:
    noise = noise * (1.0 + 8.0 * EPS)
    size = (np.abs(rows.x) + noise) @ np.abs(w)
    return Part(rows, noise, rows.x @ w, noise @ np.abs(w) + SLIP * size)


def _cells(part: Part, psi: Pair, middle: Array, p: int) -> Pair:
    """Ends of each row's share of `g` (rows × p)."""
    x, (low, high) = part.rows.x[:, :p] - middle, psi
    far = np.maximum(np.abs(low), np.abs(high))[:, None] * part.noise[:, :p]
    one, two = low[:, None] * x, high[:, None] * x
    return np.minimum(one, two) - far, np.maximum(one, two) + far


def _sums(budgets: tuple[Budget, ...], ends: list[Pair]) -> Pair:
    """Ends of the sums over all rows, with those that the budgets replace (rows × columns, to columns)."""
    first, last = ends[0]
    low, high = first.sum(axis=0), last.sum(axis=0)
    for budget, (bottom, top) in zip(budgets, ends[1:], strict=True):
        there, i = (budget.rows >= 0)[:, None], np.maximum(budget.rows, 0)
        if budget.gone is not None:  # whatever is left of its weight
            away = budget.gone[:, None]
            bottom, top = np.where(away, np.minimum(bottom, 0.0), bottom), np.where(away, np.maximum(top, 0.0), top)
        more = np.maximum(top - np.where(there, last[i], 0.0), 0.0)
        less = np.maximum(np.where(there, first[i], 0.0) - bottom, 0.0)
        if not there.all():  # a row that was not there can come more than once
            high, low = high + budget.most * more.max(axis=0), low - budget.most * less.max(axis=0)
        else:
            high, low = high + largest_sum(more.T, budget.most), low - largest_sum(less.T, budget.most)
    return low, high
