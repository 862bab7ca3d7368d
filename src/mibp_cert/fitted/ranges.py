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

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mibp_cert.fitted.ball import ball
from mibp_cert.fitted.bounded import Bounded, Parts, Ranges, Whole
from mibp_cert.fitted.dual import Dual, Multipliers
from mibp_cert.fitted.problem import MOST_CELLS, Problem
from mibp_cert.fitted.table import Array, Index

LEAST = 1e-9
"""Smallest radius of a range, relative to its middle (or 1)."""
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
MOST = 3.0
"""Multiple of the first-order radii beyond which ranges that still fail are not followed, if their exits can be cut."""
LOOSE = 100.0
"""Ranges of scores (the median one) beyond this multiple of the spread of all clean scores say nothing."""
RESORTS = 12
"""How often ranges from strong convexity are tightened, at most."""
CUT_WORK = 150_000_000
"""The same for all cuts of a proof together: about a minute."""
HOPE = 1.6
"""Bounds wider than this multiple of the hypothesis (the median one) are beyond what cuts mend."""
BEST_WORK = 2_000_000_000
"""Rows × parameters × (parameters + 30) × queries that get the best multipliers in a proof: about a minute."""


def _flat(ranges: Ranges) -> tuple[Array, Array]:
    pairs = [(ranges.low, ranges.high), (ranges.s_low, ranges.s_high), *ranges.by]
    return np.concatenate([low for low, _ in pairs]), np.concatenate([high for _, high in pairs])


def _like(ranges: Ranges, low: Array, high: Array) -> Ranges:
    cuts = np.cumsum([len(ranges.low), len(ranges.s_low), *(len(ends[0]) for ends in ranges.by)])[:-1]
    pairs = list(zip(np.split(low, cuts), np.split(high, cuts), strict=True))
    return Ranges(*pairs[0], *pairs[1], tuple(pairs[2:]))


def prove(problem: Bounded, *, thorough: bool = True) -> Ranges | None:
    """Ranges that no minimiser of the family leaves, as small as may be; None if none could be proven. Where shared multipliers
    prove nothing, every row gets its own; exits are cut where plain bounds fail; the last resort is strong convexity. Not
    `thorough`: one search, and no more."""
    if isinstance(problem, Parts):
        proven = [prove(part, thorough=thorough) for part in problem.each]
        every = [ranges for ranges in proven if ranges is not None]
        return problem.joined(every) if len(every) == len(proven) else None
    assert isinstance(problem, Whole)
    search = Search(problem)
    found, hope = search.repeated()
    if not thorough:
        return None if found is None else tighten(problem, found)
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

    def __init__(self, problem: Whole) -> None:
        self.problem, self.start = problem, problem.point()
        self.centre, _ = _flat(self.start)
        below, above = _flat(problem.bounds(self.start, rounds=1))
        self.least = LEAST * (1.0 + np.abs(self.centre)) + problem.slip()
        self.first = self._ends(below, above, 1.0)
        self.finer = Finer(problem) if isinstance(problem, Problem) and not problem.shared else None
        # Where exits can be cut, that is the better way to go on from there.
        cut = self.finer is not None and self.finer.problem.small and not self.finer.problem.table.budgets
        self.most = MOST if cut else np.inf

    def _ends(self, below: Array, above: Array, factor: float) -> tuple[Array, Array]:
        """Ends around the centre, moved out by the factor; the clean model is strictly inside."""
        out = np.maximum(self.centre - below, self.least), np.maximum(above - self.centre, self.least)
        return self.centre - factor * out[0], self.centre + factor * out[1]

    def _tried(self, low: Array, high: Array) -> tuple[Ranges, Array, Array, list[NDArray[np.bool_]]]:
        ranges = _like(self.start, low, high)
        below, above = _flat(self.problem.bounds(ranges))
        if self.finer is not None and np.median((above - below) / (high - low)) < HOPE:
            below, above = self.finer.ends(ranges, (below, above), [~(below > low), ~(above < high)])
        return ranges, below, above, [~(below > low), ~(above < high)]

    def repeated(self, first: float = FIRST) -> tuple[Ranges | None, bool]:
        """The hypothesis is what came out of the last one, a little wider: from below, this finds the smallest ranges that prove
        themselves. Else none, and whether some came close."""
        low, high = self._ends(*self.first, first)
        before, hope, widths = np.inf, False, self.first[1] - self.first[0]
        for _ in range(ATTEMPTS):
            ranges, below, above, fails = self._tried(low, high)
            if not (np.isfinite(below).all() and np.isfinite(above).all()):
                break
            count = int(fails[0].sum() + fails[1].sum())
            if not count:
                return ranges, True
            ratio = float(np.median((above - below) / (high - low)))
            hope |= ratio < HOPE
            if (ratio > LOST and ratio > before) or np.median((high - low) / widths) > self.most:
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


class Finer:
    """The best multipliers of ends that fail (`fitted.interior`), kept from one hypothesis to the next: with the same
    multipliers bounds of narrower ranges are narrower, while every new search for some may end elsewhere."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.left = problem, BEST_WORK // problem.best_cells
        """Queries that there is time for."""
        self.kept: list[dict[int, tuple[Array, Array, Array]]] = [{}, {}]

    def ends(self, ranges: Ranges, found: tuple[Array, Array], fails: list[NDArray[np.bool_]]) -> tuple[Array, Array]:
        """The ends, with better ones where some fail."""
        problem, hypothesis = self.problem, _flat(ranges)
        dual, (a, own, noise) = Dual(problem.table, problem.loss, ranges, problem.tau), problem.queries(ranges)
        better = []
        for kept, sign, ends, wanted, bad in zip(self.kept, (-1.0, 1.0), found, hypothesis, fails, strict=True):
            ends = ends.copy()

            def improve(i: Index, upper: Array, ends: Array = ends, sign: float = sign) -> None:
                ends[i] = sign * np.fmin(sign * ends[i], upper + noise[i])

            i = np.array([j for j in np.flatnonzero(bad) if j in kept], dtype=np.intp)
            if len(i):
                by = Multipliers(*(np.stack(part) for part in zip(*(kept[j] for j in i.tolist()), strict=True)))
                improve(i, dual.given(sign * a[i], by, own[i], sign))
            i = np.flatnonzero(bad & ~(sign * ends < sign * wanted))[: self.left]
            if len(i):
                self.left -= len(i)
                upper, by = dual.best(sign * a[i], own[i], sign)
                improve(i, upper)
                kept.update(zip(i.tolist(), zip(by.u, by.lam, by.theta, strict=True), strict=True))
            better.append(ends)
        return better[0], better[1]


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
    (queries, own, noise), left, around = problem.queries(ranges), [], problem.around(ranges)
    for bad, sign, ends in zip(fails, (-1.0, 1.0), _flat(ranges), strict=True):
        still = bad.copy()
        for i in np.flatnonzero(bad):
            v = float(sign * ends[i] - noise[i])
            still[i] = problem.reaches(around, sign * queries[i], v, int(own[i]), sign)
        left.append(still)
    return left


def tighten(problem: Bounded, ranges: Ranges, rounds: int = 3) -> Ranges:
    """Smaller ranges, from ranges that are proven."""
    if isinstance(problem, Parts):
        pairs = zip(problem.each, problem.split(ranges), strict=True)
        return problem.joined([tighten(part, own, rounds) for part, own in pairs])
    for _ in range(rounds):
        low, high = _flat(ranges)
        if (high - low <= LEAST * (1.0 + np.abs(low) + np.abs(high))).all():
            break  # nothing is in doubt but the last digits
        below, above = _flat(problem.bounds(ranges))
        below, above = np.fmax(low, below), np.fmin(high, above)
        ranges = _like(ranges, below, above)
        if (above - below >= 0.99 * (high - low)).all():
            break
    return ranges
