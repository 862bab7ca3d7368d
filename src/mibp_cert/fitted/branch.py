"""Tier 2: a query that is left open, decided by cases.

**Lemma.** Let `a·c < v` for the minimiser `c` of the data as handed in. If no dataset of the family of `fitted.ranges` has a
minimiser with `a·θ = v`, then `a·θ < v` for all of them. *Proof.* Along a path of datasets the minimisers form a compact convex
set that changes upper hemicontinuously, so that all values of `a·θ` on the way form an interval; it holds `a·c`, and not `v`. ∎

So the model is assumed to lie *on* the plane `a·θ = v`: one dimension less than all models beyond it. Under that assumption

- the box shrinks to what the plane leaves of it, `θ_j ∈ (v − Σ_{k≠j} a_kθ_k)/a_j`, and scores to what the box leaves of them,
  `s_i ∈ x_i·θ + d_i·θ`;
- the zonotope of all minimisers in these ranges shrinks them again (`fitted.zonotope`);
- the closed form and the linear program bound `a·θ` from above and from below: `v` must lie between.

A case that these contradict is closed. One that stays open is cut in two across the parameter that moves the scores most: in a
smaller box the lines around `ψ` and the chords of products are closer. A query whose hardest case is still open `DEPTH` cuts
deep is given up: there may well be such a model. Large tables are not cut at all: each case would take seconds. Everything
that closes a case is rounded outward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.linear import Relaxation
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.table import Array, Rows
from mibp_cert.fitted.zonotope import Zonotope

DEPTH = 8
"""Cuts, one in the other, after which a query is given up."""
CASES = 100
"""Cases that a query may take."""
SHRINKS = 3
"""How often ranges shrink before a case is cut."""
WORTH = 0.9
"""A range must shrink to this share for another round to be worth it."""


def never(problem: Problem, ranges: Ranges, a: Array, v: float) -> bool:
    """Is `a·θ < v` for every minimiser? True is proven."""
    clean = a @ problem.c
    if not clean + 8.0 * (len(a) + 2) * EPS * (np.abs(a) @ np.abs(problem.c) + abs(v)) < v:
        return False
    cases = 1
    left = [(0, found) for found in _open(problem, ranges, a, v, first=True)]
    while left:
        # The hardest one first: if it cannot be closed, the others need not be tried.
        depth, (_, case) = left.pop(max(range(len(left)), key=lambda k: left[k][1][0]))
        if depth >= (DEPTH if problem.small else 0) or cases >= CASES:
            return False
        for half in _halves(problem, case):
            cases += 1
            left += [(depth + 1, found) for found in _open(problem, half, a, v)]
    return True


def _open(problem: Problem, case: Ranges, a: Array, v: float, *, first: bool = False) -> Iterator[tuple[float, Ranges]]:
    """The case with ranges as small as they get, and how far it is from a contradiction; nothing where there is one."""
    for _ in range(SHRINKS):
        before = case.high - case.low
        on = on_plane(problem, case, a, v)
        if on.empty:
            return
        case = Zonotope(problem.table, problem.loss, on, problem.tau).bounds(a, v, equal=True)
        if case.empty:
            return
        if ((case.high - case.low) > WORTH * before).all():
            break
    sides, ends = np.stack([a, -a]), np.array([v, -v])
    miss = Dual(problem.table, problem.loss, case, problem.tau, 3).upper(sides) - ends
    if first and not (miss < 0).any() and Relaxation.fits(problem.table):
        program = Relaxation(problem.table, problem.loss, case, problem.tau)
        miss = np.minimum(miss, program.upper(program.of_parameters(sides)) - ends)
    if not (miss < 0).any():
        yield float(miss.min()), case


def _halves(problem: Problem, case: Ranges) -> tuple[Ranges, Ranges]:
    x = problem.table.rows.x
    j = int(np.argmax((case.high - case.low) * np.sqrt((x * x).mean(axis=0))))
    low, high = np.array(case.low), np.array(case.high)
    low[j] = high[j] = case.middle[j]
    return replace(case, high=high), replace(case, low=low)


def on_plane(problem: Problem, case: Ranges, a: Array, v: float) -> Ranges:
    """The ranges on the plane `a·θ = v`: of parameters, and of the scores that these leave."""
    low, high, on = np.array(case.low), np.array(case.high), np.flatnonzero(a)
    slip = 16.0 * (len(a) + 4) * EPS * (np.abs(a) @ case.reach + abs(v))
    with np.errstate(over="ignore"):
        for _ in range(2):
            ends = np.sort(np.stack([a * low, a * high]), axis=0)
            rest = ends.sum(axis=1, keepdims=True) - ends
            left = np.sort((v - rest[:, on]) / a[on], axis=0)
            pad = slip / np.abs(a[on])
            low[on] = np.maximum(low[on], left[0] - pad)
            high[on] = np.minimum(high[on], left[1] + pad)
    if (low > high).any():
        return replace(case, low=low, high=high)
    case, table = replace(case, low=low, high=high), problem.table
    may = np.isin(np.arange(len(table.rows)), np.concatenate([[-1], *(budget.rows for budget in table.budgets)]))
    own = _scores(table.rows, table.reach_of(case.reach), case, (case.s_low, case.s_high), may)
    by = [
        _scores(budget.by, budget.by.reach_of(case.reach[None, :])[0], case, ends, np.ones(len(budget.by), dtype=bool))
        for budget, ends in zip(table.budgets, case.by, strict=True)
    ]
    return replace(case, s_low=own[0], s_high=own[1], by=tuple(by))


def _scores(
    rows: Rows, noise: Array, case: Ranges, known: tuple[Array, Array], may: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Ranges of scores with the parameters in their box. No score left for a row that `may` be replaced, or for what replaces
    it, says something of the budget only: what is known stays."""
    middle, reach = rows.x @ case.middle, np.abs(rows.x) @ case.radius + noise
    reach = reach + 8.0 * (rows.x.shape[1] + 4) * EPS * (np.abs(rows.x) @ case.reach + noise)
    low, high = np.maximum(known[0], middle - reach), np.minimum(known[1], middle + reach)
    keep = (low > high) & may
    return np.where(keep, known[0], low), np.where(keep, known[1], high)
