"""Ranges of parameters and scores: a hypothesis, its proof by continuation, and what is tightened after it.

**Lemma.** Let `D(t)`, `t ∈ [0, 1]`, be a path of datasets (with their tilts) along which the loss changes continuously, and
let the minimisers for `D(0)` lie in ranges `z` (of parameters and scores). If, for every `t`, each minimiser in `z` lies
strictly inside `z`, then for every `t` all minimisers exist and lie in `z`. *Proof.* Let `T` be the set of `t` for which there
are minimisers and all are in `z`; `0 ∈ T`. `T` is closed: for `t_n → t`, minimisers in the compact `z` have a limit in `z`,
which is a minimiser for `D(t)`; were another one outside, the segment between them, all of it minimisers, would hold one on
the boundary of `z`, which none is. `T` is open: for `t ∈ T` the minimisers form a compact convex set inside `z`; on the
boundary of a small neighbourhood of it the loss is larger by some `δ > 0`, also by `δ/2` for `t'` near `t`, and a convex
function that is larger on the boundary of a neighbourhood than inside has its minimisers within. So `T = [0, 1]`. ∎

Existence and uniqueness of minimisers on the way need not be assumed: they come out. Noise and targets are reached by scaling
them; budgets fix the rows that they replace, whose noise is scaled, or which are mixed with their alternatives
(`fitted.table`): the bounds hold for all of these.

**Exit cut.** For one end of `z` to be the first to be left, the query must *be* at that end, `a·θ = v`, with everything else
in `z`. Under that assumption the other ranges shrink (`fitted.zonotope`); if the bound of `a·θ` is then below `v`, that end is
never reached. Each end may be dealt with on its own.

**Search.** The hypothesis starts from first-order radii; ends that fail are moved out. Whatever is proven may be tightened:
bounds computed under proven ranges need no strictness.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mibp_cert.fitted.dual import Dual, Ranges
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.table import Array, Table
from mibp_cert.fitted.zonotope import Zonotope

FIRST = {False: 1.5, True: 1.8}
"""Multiple of the first-order radii that the hypothesis starts from, without exit cuts and with them."""
GROW = 1.1
ATTEMPTS = 20
SANE = 6.0
"""Multiple of the first-order radii (the median one) beyond which ranges are of little use: other ways are tried first."""
CUT_CELLS = 4_000_000
"""Queries times generators, above which no exit is cut."""
HOPE = 1.4
"""Bounds wider than this multiple of the hypothesis (the median one) are beyond what cuts mend."""
CUTS = 2
"""How often the ranges are shrunk under the assumption of an exit."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What is bounded: the table, its loss, the computed minimiser `c` of the data as handed in, its tilt, and its scores there:
    where the proof starts from. (Noise to one side has another middle than these data.)"""

    table: Table
    loss: ScoreLoss
    c: Array
    tau: Array
    s: Array

    @property
    def small(self) -> bool:
        """Whether a cut takes a fraction of a second."""
        table, p = self.table, len(self.c)
        others = sum(len(budget.by) for budget in table.budgets)
        generators = int((table.rows.r > 0).sum()) + len(table.rows) + 2 * p + others * p
        return 2 * (len(table.rows) + others + p) * generators <= CUT_CELLS

    def point(self) -> Ranges:
        """The ranges of `c` alone, on the data as handed in; alternatives with noise of no size are the rows themselves."""
        by = []
        for budget in self.table.budgets:
            itself = budget.scaled & (budget.rows >= 0)
            by.append((np.where(itself, self.s[np.maximum(budget.rows, 0)], budget.by.x @ self.c),) * 2)
        return Ranges(self.c, self.c, self.s, self.s, tuple(by))

    def slip(self) -> Array:
        """How far the scores of `point` may be off by rounding, in the order of `_flat`."""
        rows = [self.table.rows, *(budget.by for budget in self.table.budgets)]
        far = [np.abs(part.x) @ np.abs(self.c) + part.reach_of(np.abs(self.c)[None, :])[0] for part in rows]
        return 8.0 * (len(self.c) + 4) * EPS * np.concatenate([np.zeros(len(self.c)), *far])

    def bounds(self, ranges: Ranges, rounds: int = 2) -> Ranges:
        """Bounds of all that `ranges` holds, under the hypothesis that it holds."""
        dual, rows = Dual(self.table, self.loss, ranges, self.tau, rounds), self.table.rows
        eye, own = np.eye(len(self.c)), np.arange(len(rows), dtype=np.intp)
        ends = [(-dual.upper(-eye), dual.upper(eye))]
        ends.append((-dual.upper(-rows.x, own, -1.0), dual.upper(rows.x, own)))
        for budget in self.table.budgets:
            more = budget.by.reach_of(ranges.reach[None, :])[0]
            ends.append((-dual.upper(-budget.by.x) - more, dual.upper(budget.by.x) + more))
        return Ranges(*ends[0], *ends[1], tuple(ends[2:]))

    def upper(self, ranges: Ranges, a: Array) -> Array:
        """Upper bounds of `a·θ`, for minimisers in the ranges."""
        return Dual(self.table, self.loss, ranges, self.tau, 3).upper(a)

    def reaches(self, ranges: Ranges, a: Array, v: float, own: int = -1, sign: float = 1.0) -> bool:
        """May `a·θ` (or the score of row `own`, times `sign`) be `v` or more, for minimisers in the ranges? False is proven."""
        noise = 0.0 if own < 0 else self.table.reach_of(ranges.reach)[own]
        for _ in range(CUTS):
            ranges = Zonotope(self.table, self.loss, ranges, self.tau).bounds(a, v - noise * (1.0 + 1e-12))
            if ranges.empty:
                return False
        dual = Dual(self.table, self.loss, ranges, self.tau, 3)
        return not dual.upper(a[None], np.array([own], dtype=np.intp), sign)[0] < v


def _flat(ranges: Ranges) -> tuple[Array, Array]:
    pairs = [(ranges.low, ranges.high), (ranges.s_low, ranges.s_high), *ranges.by]
    return np.concatenate([low for low, _ in pairs]), np.concatenate([high for _, high in pairs])


def _like(ranges: Ranges, low: Array, high: Array) -> Ranges:
    cuts = np.cumsum([len(ranges.low), len(ranges.s_low), *(len(ends[0]) for ends in ranges.by)])[:-1]
    pairs = list(zip(np.split(low, cuts), np.split(high, cuts), strict=True))
    return Ranges(*pairs[0], *pairs[1], tuple(pairs[2:]))


def prove(problem: Problem) -> Ranges | None:
    """Ranges that no minimiser of the family leaves; None if none could be proven. Exits are cut where plain bounds fail."""
    found = _prove(problem, cut=False, most=SANE)
    if found is None and problem.small:
        found = _prove(problem, cut=True, most=SANE)
    found = _prove(problem, cut=False, most=np.inf) if found is None else found
    return None if found is None else tighten(problem, found)


def _prove(problem: Problem, *, cut: bool, most: float) -> Ranges | None:
    point = problem.point()
    centre, _ = _flat(point)
    lower, upper = _flat(problem.bounds(point, rounds=1))
    least = 1e-9 * (1.0 + np.abs(centre))
    low = centre - FIRST[cut] * np.maximum(centre - lower, least)
    high = centre + FIRST[cut] * np.maximum(upper - centre, least)
    slip = problem.slip()
    low, high = np.minimum(low, centre - slip - least), np.maximum(high, centre + slip + least)
    for _ in range(ATTEMPTS):
        ranges = _like(point, low, high)
        below, above = _flat(problem.bounds(ranges))
        if not (np.isfinite(below).all() and np.isfinite(above).all()):
            return None
        fails = [~(below > low), ~(above < high)]
        if cut and np.median((above - below) / (high - low)) > HOPE:
            return None
        if cut:
            fails = _cut(problem, ranges, fails)
        count = int(fails[0].sum() + fails[1].sum())
        if not count:
            return ranges
        wide = np.median((high - low) / np.maximum(upper - lower, least))
        if wide > most:
            return None
        # Where the cut decides, the plain bounds say nothing of how far out an end should be.
        out = (centre - low, high - centre) if cut else (centre - below, above - centre)
        low = np.where(fails[0], centre - GROW * out[0], low)
        high = np.where(fails[1], centre + GROW * out[1], high)
    return None


def _cut(problem: Problem, ranges: Ranges, fails: list[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """The ends that fail even under the assumption that they are reached."""
    rows, low_high = problem.table.rows, _flat(ranges)
    p, n = len(problem.c), len(rows)
    others = [budget.by for budget in problem.table.budgets]
    queries = np.concatenate([np.eye(p), rows.x, *(by.x for by in others)])
    noise = np.concatenate([np.zeros(p + n), *(by.reach_of(ranges.reach[None, :])[0] for by in others)])
    left = []
    for bad, sign, ends in zip(fails, (-1.0, 1.0), low_high, strict=True):
        still = bad.copy()
        for i in np.flatnonzero(bad):
            own = int(i) - p if p <= i < p + n else -1
            still[i] = problem.reaches(
                ranges, sign * queries[i], float(sign * ends[i] - noise[i] * (1.0 + 1e-12)), own, sign
            )
        left.append(still)
    return left


def tighten(problem: Problem, ranges: Ranges, rounds: int = 3) -> Ranges:
    """Smaller ranges, from ranges that are proven."""
    for _ in range(rounds):
        (low, high), (below, above) = _flat(ranges), _flat(problem.bounds(ranges))
        ranges = _like(ranges, np.fmax(low, below), np.fmin(high, above))
    return ranges
