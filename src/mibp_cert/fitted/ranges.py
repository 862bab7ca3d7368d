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

**Search.** With `T(z)` the bounds under the hypothesis `z`, `z ← (1 + small)·T(z)` from first-order radii converges to the
smallest ranges that prove themselves, if there are any (`T` grows with `z`). Whatever is proven may be tightened: bounds
computed under proven ranges need no strictness. The last resort needs no hypothesis (`fitted.ball`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mibp_cert.fitted.ball import ball
from mibp_cert.fitted.bounded import Bounded
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.ellipsoid import Ellipsoids
from mibp_cert.fitted.known import Ranges
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.shared import Shared
from mibp_cert.fitted.table import Array, Table
from mibp_cert.fitted.zonotope import Zonotope

FIRST = 1.3
"""Multiple of the first-order radii that the hypothesis starts from."""
WIDER = 1.8
"""The same, where the first search gave up and there is no other way."""
GROW = 1.02
CUT_FIRST, CUT_GROW = 1.5, 1.1
"""The same where exits are cut, and by how much ends that fail move out."""
ATTEMPTS = 24
PATIENCE = 4
"""Attempts in a row after which fewer ends must have failed than ever before, where exits are cut."""
FEW = 0.05
"""Share of the ends that may fail for the others to stay where they are."""
LOST = 1.02
"""Bounds wider than this multiple of the hypothesis, and growing, will not prove themselves."""
LOOSE = 100.0
"""Ranges of scores (the median one) beyond this multiple of the spread of all clean scores say nothing."""
RESORTS = 12
"""How often ranges from strong convexity are tightened, at most."""
CUT_CELLS = 4_000_000
"""Queries times generators, above which no exit is cut."""
CUT_WORK = 150_000_000
"""The same for all cuts of a proof together: about a minute."""
HOPE = 1.6
"""Bounds wider than this multiple of the hypothesis (the median one) are beyond what cuts mend."""
OWN_CELLS = 20_000_000
"""Rows × rows × parameters up to which every row's score has multipliers of its own."""
MOST_CELLS = 100_000_000
"""The same, where shared multipliers prove nothing: some minutes."""
OWN_TESTS = 200_000_000
"""Queries × rows × parameters that get multipliers of their own beside many rows."""
NEAR = 0.25
"""Lower ends further below 0, relative to the range, are left as they are."""
AT_ONCE = 100
"""Queries between two words of how far it is."""
EXACT_CELLS = 2_000_000_000_000
"""Queries × rows × columns × parameters whose sums over rows are taken exactly: some minutes."""
CUTS = 2
"""How often the ranges are shrunk under the assumption of an exit."""


@dataclass(frozen=True, eq=False)
class Problem(Bounded):
    """What is bounded: the table, its loss, the computed minimiser `c` of the data as handed in, its tilt, and its scores there:
    where the proof starts from. (Noise to one side has another middle than these data.)"""

    table: Table
    loss: ScoreLoss
    c: Array
    tau: Array
    s: Array
    shared: bool = False
    """Many rows: scores are bounded by ellipsoids with multipliers that all queries share (`fitted.ellipsoid`)."""
    told: Callable[[], None] | None = None
    """Called for every round of bounds."""

    def telling(self, told: Callable[[], None]) -> Self:
        return replace(self, told=told)

    @property
    def cells(self) -> int:
        """Rows × rows × parameters: what multipliers of every row's own cost."""
        rows = len(self.table.rows) + sum(len(budget.by) for budget in self.table.budgets)
        return rows * rows * len(self.c)

    @property
    def cut_cells(self) -> int:
        """Queries times generators of a cut."""
        table, p = self.table, len(self.c)
        others = sum(len(budget.by) for budget in table.budgets)
        generators = int((table.rows.r > 0).sum()) + len(table.rows) + 2 * p + others * p
        return 2 * (len(table.rows) + others + p) * generators

    @property
    def small(self) -> bool:
        """Whether a cut takes a fraction of a second."""
        return self.cut_cells <= CUT_CELLS

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
        if self.told is not None:
            self.told()
        if self.shared:
            return Ellipsoids(Shared(self.table, self.loss, ranges, self.tau)).bounds()
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

    def around(self, ranges: Ranges) -> Zonotope:
        """The zonotope around all minimisers in the ranges."""
        return Zonotope(self.table, self.loss, ranges, self.tau)

    def outputs(
        self,
        ranges: Ranges,
        a: Array,
        base: Array,
        extra: Array,
        enough: Callable[[Array], NDArray[np.bool_]] | None,
        hear: Callable[[int, int], None],
    ) -> tuple[Array, Array]:
        """Many rows: ends of `base + a·θ ± extra`. First come ellipsoids, then sums over rows, at last multipliers of the query's
        own: what is `enough` of the lower end is looked at no longer. `hear(done, total)` counts queries."""
        shared, n = Shared(self.table, self.loss, ranges, self.tau), len(self.table.rows)
        low, high = Ellipsoids(shared).ends(a)
        low, high = base + low - extra, base + high + extra
        left = np.arange(len(a)) if enough is None else np.flatnonzero(~enough(low))
        if len(left) * n * shared.kinds * len(self.c) > EXACT_CELLS:
            left = left[:0]
        for k in range(0, len(left), AT_ONCE):
            some = left[k : k + AT_ONCE]
            below, above = shared.ends(a[some])
            low[some] = np.maximum(low[some], base[some] + below - extra[some])
            high[some] = np.minimum(high[some], base[some] + above + extra[some])
            hear(k + len(some), len(left))
        if enough is None:
            return low, high
        left = np.flatnonzero(~enough(low) & (base + a @ self.c > 0) & (low > -NEAR * (high - low)))
        left = left[np.argsort(-low[left], kind="stable")][: max(1, OWN_TESTS // (n * len(self.c)))]
        dual = Dual(self.table, self.loss, ranges, self.tau, 3)
        for k, i in enumerate(left):
            own = base[i] - dual.upper(-a[i : i + 1]) - extra[i]
            low[i] = np.maximum(low[i], own[0])
            hear(k + 1, len(left))
        return low, high

    def reaches(self, around: Zonotope, a: Array, v: float, own: int = -1, sign: float = 1.0) -> bool:
        """May `a·θ` (or the score of row `own`, times `sign`) be `v` or more, for minimisers in the ranges? False is proven."""
        noise = 0.0 if own < 0 else self.table.reach_of(around.ranges.reach)[own]
        for _ in range(CUTS):
            ranges = around.bounds(a, v - noise * (1.0 + 1e-12))
            if ranges.empty:
                return False
            around = self.around(ranges)
        dual = Dual(self.table, self.loss, ranges, self.tau, 3)
        return not dual.upper(a[None], np.array([own], dtype=np.intp), sign)[0] < v


def _flat(ranges: Ranges) -> tuple[Array, Array]:
    pairs = [(ranges.low, ranges.high), (ranges.s_low, ranges.s_high), *ranges.by]
    return np.concatenate([low for low, _ in pairs]), np.concatenate([high for _, high in pairs])


def _like(ranges: Ranges, low: Array, high: Array) -> Ranges:
    cuts = np.cumsum([len(ranges.low), len(ranges.s_low), *(len(ends[0]) for ends in ranges.by)])[:-1]
    pairs = list(zip(np.split(low, cuts), np.split(high, cuts), strict=True))
    return Ranges(*pairs[0], *pairs[1], tuple(pairs[2:]))


def prove(problem: Bounded) -> Ranges | None:
    """Ranges that no minimiser of the family leaves, as small as may be; None if none could be proven. Where shared multipliers
    prove nothing, every row gets its own; exits are cut where plain bounds fail; the last resort is strong convexity."""
    if problem.parts:
        proven = [prove(part) for part in problem.parts]
        every = [ranges for ranges in proven if ranges is not None]
        return problem.joined(every) if len(every) == len(proven) else None
    search = Search(problem)
    found, hope = search.repeated()
    if not isinstance(problem, Problem):  # neither cuts nor a last resort: but another start
        found = search.repeated(WIDER)[0] if found is None else found
        return None if found is None else tighten(problem, found)
    if found is None and problem.shared and problem.cells <= MOST_CELLS:
        found, _ = Search(replace(problem, shared=False)).repeated()
    if found is None and hope and problem.small:
        found = search.cut()
    if found is None and not problem.shared:
        return last_resort(problem)
    return None if found is None else tighten(problem, found)


class Search:
    """Hypotheses, from first-order radii around the clean minimiser."""

    def __init__(self, problem: Bounded) -> None:
        self.problem, self.start = problem, problem.point()
        self.centre, _ = _flat(self.start)
        below, above = _flat(problem.bounds(self.start, rounds=1))
        self.least = 1e-9 * (1.0 + np.abs(self.centre)) + problem.slip()
        self.first = self._ends(below, above, 1.0)

    def _ends(self, below: Array, above: Array, factor: float) -> tuple[Array, Array]:
        """Ends around the centre, moved out by the factor; the clean model is strictly inside."""
        out = np.maximum(self.centre - below, self.least), np.maximum(above - self.centre, self.least)
        return self.centre - factor * out[0], self.centre + factor * out[1]

    def _tried(self, low: Array, high: Array) -> tuple[Ranges, Array, Array, list[NDArray[np.bool_]]]:
        ranges = _like(self.start, low, high)
        below, above = _flat(self.problem.bounds(ranges))
        return ranges, below, above, [~(below > low), ~(above < high)]

    def repeated(self, first: float = FIRST) -> tuple[Ranges | None, bool]:
        """The hypothesis is what came out of the last one, a little wider: from below, this finds the smallest ranges that prove
        themselves. Else none, and whether some came close."""
        low, high = self._ends(*self.first, first)
        before, hope = np.inf, False
        for _ in range(ATTEMPTS):
            ranges, below, above, fails = self._tried(low, high)
            if not (np.isfinite(below).all() and np.isfinite(above).all()):
                break
            count = int(fails[0].sum() + fails[1].sum())
            if not count:
                return ranges, True
            ratio = float(np.median((above - below) / (high - low)))
            hope |= ratio < HOPE
            if ratio > LOST and ratio > before:
                break
            before, most = ratio, count > FEW * 2 * len(low)
            # As long as many fail all move, also inwards; a few stragglers are moved out on their own.
            wider = self._ends(below, above, max(GROW, ratio))
            low, high = np.where(fails[0] | most, wider[0], low), np.where(fails[1] | most, wider[1], high)
        return None, hope

    def cut(self) -> Ranges | None:
        """Ends that fail are assumed to be reached; those that still fail move out."""
        assert isinstance(self.problem, Problem)
        low, high = self._ends(*self.first, CUT_FIRST)
        fewest, last, work = len(low) * 2 + 1, 0, 0
        for attempt in range(ATTEMPTS):
            ranges, below, above, fails = self._tried(low, high)
            if not np.median((above - below) / (high - low)) < HOPE:
                return None
            work += int(fails[0].sum() + fails[1].sum()) * self.problem.cut_cells
            if work > CUT_WORK:
                return None
            fails = _cut(self.problem, ranges, fails)
            count = int(fails[0].sum() + fails[1].sum())
            if not count:
                return ranges
            fewest, last = (count, attempt) if count < fewest else (fewest, last)
            if attempt - last > PATIENCE:
                return None
            wider = self._ends(low, high, CUT_GROW)
            low, high = np.where(fails[0], wider[0], low), np.where(fails[1], wider[1], high)
        return None


def last_resort(problem: Problem) -> Ranges | None:
    """Ranges from strong convexity, tightened as long as that helps; None if they are too wide to say anything."""
    ranges = ball(problem)
    if ranges is None:
        return None
    for _ in range(RESORTS):
        before = np.median(ranges.s_high - ranges.s_low)
        ranges = tighten(problem, ranges, 1)
        after = np.median(ranges.s_high - ranges.s_low)
        if not after < 0.98 * before:
            break
    return ranges if after <= LOOSE * (problem.s.max() - problem.s.min()) else None


def _cut(problem: Problem, ranges: Ranges, fails: list[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """The ends that fail even under the assumption that they are reached."""
    rows, low_high = problem.table.rows, _flat(ranges)
    p, n = len(problem.c), len(rows)
    others = [budget.by for budget in problem.table.budgets]
    queries = np.concatenate([np.eye(p), rows.x, *(by.x for by in others)])
    noise = np.concatenate([np.zeros(p + n), *(by.reach_of(ranges.reach[None, :])[0] for by in others)])
    left, around = [], problem.around(ranges)
    for bad, sign, ends in zip(fails, (-1.0, 1.0), low_high, strict=True):
        still = bad.copy()
        for i in np.flatnonzero(bad):
            own = int(i) - p if p <= i < p + n else -1
            still[i] = problem.reaches(
                around, sign * queries[i], float(sign * ends[i] - noise[i] * (1.0 + 1e-12)), own, sign
            )
        left.append(still)
    return left


def tighten(problem: Bounded, ranges: Ranges, rounds: int = 3) -> Ranges:
    """Smaller ranges, from ranges that are proven."""
    if problem.parts:
        pairs = zip(problem.parts, problem.split(ranges), strict=True)
        return problem.joined([tighten(part, own, rounds) for part, own in pairs])
    for _ in range(rounds):
        low, high = _flat(ranges)
        if (high - low <= 1e-9 * (1.0 + np.abs(low) + np.abs(high))).all():
            break  # nothing is in doubt but the last digits
        below, above = _flat(problem.bounds(ranges))
        ranges = _like(ranges, np.fmax(low, below), np.fmin(high, above))
    return ranges
