"""The engine `dual`: the set of all minimisers, and bounds of whatever is linear in the fitted parameters (`fitted.query`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np

from mibp_cert.engines import EngineSettings, SolverSettings
from mibp_cert.engines.base import Engine, Inputs, Maker, ParameterSet, Progress, StepReport, Wanted
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import Diverged, UserError
from mibp_cert.fitted.advice import says_nothing, too_large
from mibp_cert.fitted.bounded import Bounded, Parts, Ranges
from mibp_cert.fitted.classes import in_layout, minimise_classes, tilt_classes
from mibp_cert.fitted.crew import Crew, Rounds
from mibp_cert.fitted.explain import Clean
from mibp_cert.fitted.features import through
from mibp_cert.fitted.finite import FiniteProblem, finite_problem
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.minimum import minimise, tilt
from mibp_cert.fitted.model import FitStep
from mibp_cert.fitted.outputs import Part, outputs
from mibp_cert.fitted.presence import check_left, counted
from mibp_cert.fitted.problem import APART_CELLS, OWN_CELLS, Problem
from mibp_cert.fitted.query import LINEAR, linear_in_features, linear_in_parameters, moved_by_inputs
from mibp_cert.fitted.ranges import prove
from mibp_cert.fitted.several import OneVersusRest, SoftmaxProblem, of_class, with_classes
from mibp_cert.fitted.table import Table, table_of
from mibp_cert.nets import Layout, Linear, Network, Step
from mibp_cert.sets import ThreatSet

LEAST = float(np.nextafter(0.0, 1.0))
"""What is proven to be positive is at least this."""
CLOSE = 0.25
"""Outputs whose lower end is further below 0, relative to their range, are left open."""


@final
@dataclass(frozen=True, eq=False)
class FittedSet(ParameterSet):
    """All minimisers: the proven ranges of fitted parameters and scores, the problem that they belong to, and what is frozen."""

    problem: Bounded | FiniteProblem
    ranges: Ranges
    frozen: Array
    exact: Any = None
    """What the engine knows beside: the program of the fit, where it asks a solver."""

    @classmethod
    def of(cls, problem: Bounded | FiniteProblem, ranges: Ranges, frozen: Array, exact: Any = None) -> FittedSet:
        return cls(np.append(frozen, ranges.low), np.append(frozen, ranges.high), problem, ranges, frozen, exact)

    def first(self, count: int) -> FittedSet:
        return self

    def within_box(self, other: ParameterSet) -> FittedSet:
        both, k = self.meet(other), len(self.frozen)
        ranges = replace(self.ranges, low=both.lower[k:], high=both.upper[k:])
        return FittedSet.of(self.problem, ranges, self.frozen, self.exact)

    def arrays(self) -> dict[str, Array]:
        z = self.ranges
        found = {"lower": self.lower, "upper": self.upper, "score_low": z.s_low, "score_high": z.s_high}
        for k, (low, high) in enumerate(z.by):
            found |= {f"other_low_{k}": low, f"other_high_{k}": high}
        return found


class DualEngine(Engine):
    """See the module's text."""

    name = prediction = "dual"
    soundness = "rounding-safe"
    operations = LINEAR | {"const", "relu", "gate", "smooth"}
    own_sets = True
    knows_rows = True

    @classmethod
    def of(cls, settings: EngineSettings, progress: Progress | None = None) -> Self:
        made = cls(progress, settings.solver)
        made.thorough = settings.thorough
        return made

    def __init__(self, progress: Progress | None = None, settings: SolverSettings | None = None) -> None:
        self.progress, self.settings = progress or (lambda done, total: None), settings or SolverSettings()
        self.thorough = True
        self.crew = Crew(self.settings.jobs or 1, self.settings.parallel, self.progress)

    def close(self) -> None:
        self.crew.close()

    @classmethod
    def memory(cls, network: Network, batch: int, symbols: int) -> int:
        """The set of datasets with its noise, the table, and one dataset that is fitted; features have directions."""
        last = network.layers[-1]
        assert isinstance(last, Linear)
        inputs, width = network.features, last.inputs
        directions = 4 * inputs * width if len(network.layers) > 1 else 0
        return 8 * batch * (16 * inputs + 8 * width + directions)

    def advance(self, state: ParameterSet, step: Step, threat: ThreatSet) -> tuple[ParameterSet, StepReport]:
        if not isinstance(step, FitStep):
            raise UserError(
                f"The engine '{self.name}' bounds fitted models; choose another engine for a training in steps."
            )
        start = time.perf_counter()
        frozen = state.lower[: step.layout.size - step.fitted]
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite proves nothing
            problem = problem_of(step, threat, frozen)
            ranges = problem.ranges() if isinstance(problem, FiniteProblem) else self._proven(problem)
        if ranges is None or says_nothing(ranges, problem.c):
            if not self.thorough:
                raise Diverged("Plain bounds prove no start.")
            raise Diverged(*_unproven(step, threat, frozen))
        found = FittedSet.of(problem, ranges, frozen)
        if isinstance(problem, Problem):
            with self.crew.counting(2 * len(problem.c)):
                found = self.narrowed(problem, found, step, threat)
        return found, StepReport(seconds=time.perf_counter() - start)

    def _proven(self, problem: Bounded) -> Ranges | None:
        """Ranges that are proven; the crew works, and tells of it."""
        parts = problem.each if isinstance(problem, Parts) else (problem,)
        rounds = Rounds(self.progress, 2 * sum(part.point().count for part in parts) // len(parts), len(parts))
        with self.crew.working(rounds.tell):
            return prove(problem.telling(rounds.begin), thorough=self.thorough)

    def never(self, problem: Problem, state: FittedSet) -> Callable[[Array, float], bool]:
        """Answers `(a, v)`: is `a·θ < v` for every minimiser? True is proven; the closed form left it open."""
        if not problem.small:
            return lambda a, v: False
        around = problem.around(state.ranges)
        return lambda a, v: not problem.reaches(around, a, v)

    def finer(self, problem: Problem, state: FittedSet, a: Array) -> Array:
        """Upper bounds of `a·θ` beside those of the closed form."""
        return np.full(len(a), np.inf)

    def narrowed(self, problem: Problem, state: FittedSet, step: FitStep, threat: ThreatSet) -> FittedSet:
        """The set with smaller ranges, from proven ones."""
        return state

    def restore(self, arrays: Mapping[str, Array], threat: ThreatSet, step: Step) -> ParameterSet:
        """The problem is made anew from the data; the ranges are those that were proven."""
        assert isinstance(step, FitStep)
        frozen = arrays["lower"][: step.layout.size - step.fitted]
        budgets = range(sum(name.startswith("other_low_") for name in arrays))
        ranges = Ranges(
            arrays["lower"][len(frozen) :],
            arrays["upper"][len(frozen) :],
            arrays["score_low"],
            arrays["score_high"],
            tuple((arrays[f"other_low_{k}"], arrays[f"other_high_{k}"]) for k in budgets),
        )
        return FittedSet.of(problem_of(step, threat, frozen), ranges, frozen)

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite certifies nothing
    def bound(
        self, make: Maker, layout: Layout, state: ParameterSet, inputs: Inputs, wanted: Wanted | None = None
    ) -> tuple[Interval, StepReport]:
        assert isinstance(state, FittedSet)
        start = time.perf_counter()
        problem, z = state.problem, state.ranges
        if len(state.frozen):
            offset, a, moved = linear_in_features(make, layout, inputs, z, state.frozen)
        else:
            (offset, a), (slip, off) = linear_in_parameters(make(len(inputs.x)), layout, inputs.x)
            moved = (1.0 + 8.0 * EPS * a.shape[-1]) * (slip + off @ z.reach)
            if inputs.members is not None:
                moved = moved + moved_by_inputs(make, layout, inputs, z)
        flat, base = a.reshape(-1, a.shape[-1]), offset.ravel()
        asked = np.ones(len(flat), dtype=bool)
        if wanted is not None and wanted.elements is not None:
            asked = wanted.elements.ravel()
        # What is above is rounded, and so is the sum below; a prediction evaluates the same terms in float64.
        extra = 8.0 * (a.shape[-1] + 4) * EPS * (np.abs(flat) @ z.reach + np.abs(base)) + moved.ravel()
        low, high = np.full(len(flat), -np.inf), np.full(len(flat), np.inf)
        enough = None if wanted is None else wanted.enough
        parts = () if isinstance(problem, FiniteProblem) else many(problem, z, flat[asked])
        if parts:
            with self.crew.working():
                low[asked], high[asked] = outputs(parts, base[asked], extra[asked], enough, self.progress)
        else:
            with self.crew.counting(2 * int(asked.sum())):
                low[asked] = base[asked] - problem.upper(z, -flat[asked]) - extra[asked]
                high[asked] = base[asked] + problem.upper(z, flat[asked]) + extra[asked]
        if wanted is not None and wanted.enough is not None and wanted.enough(np.array([LEAST])).all():
            # Open: could the output be 0 or less? Assume so, and look for a contradiction.
            near = asked & ~(low > 0) & (base + flat @ problem.c > 0) & (low > -CLOSE * (high - low))
            if near.any() and isinstance(problem, Problem):
                with self.crew.counting(int(near.sum())):
                    best = problem.best(z, -flat[near])
                low[near] = np.fmax(low[near], base[near] - best - extra[near])
                never, left = self.never(problem, state), np.flatnonzero(near & ~(low > 0))
                for count, i in enumerate(left, start=1):
                    if never(-flat[i], float(base[i] - extra[i])):
                        low[i] = LEAST
                    self.progress(count, len(left))
        elif isinstance(problem, Problem):
            sides = np.concatenate([-flat[asked], flat[asked]])
            with self.crew.counting(len(sides)):
                below, above = np.split(self.finer(problem, state, sides), 2)
            low[asked] = np.fmax(low[asked], base[asked] - below - extra[asked])
            high[asked] = np.fmin(high[asked], base[asked] + above + extra[asked])
        ends = Interval(low.reshape(offset.shape), high.reshape(offset.shape))
        return ends, StepReport(seconds=time.perf_counter() - start)


def problem_of(step: FitStep, threat: ThreatSet, frozen: Array) -> Bounded | FiniteProblem:
    """Every minimiser where a threat has few members; else the table behind the threat set, and the reference's minimiser."""
    y, penalties = threat.reference[1], step.model.alpha(step.head.inputs)
    free, names = bool((penalties == 0.0).any()), threat.clean.classes
    check_left(threat.noise(), y, threat.clean.there, step.counts(y) > 0, names, free=free)
    if step.several:
        return classes_problem(step, threat, frozen)
    return finite_problem(step, threat, frozen) or table_problem(step, threat, frozen)


def table_problem(step: FitStep, threat: ThreatSet, frozen: Array) -> Problem:
    """The table behind a threat set, the minimiser of its reference, and that one's tilt."""
    return _one_score(step, threat, frozen, step.column, _table(step, threat, frozen, (step.column,)))


def many(problem: Bounded, ranges: Ranges, a: Array) -> tuple[Part, ...]:
    """The problems of many rows, with their parts of the queries; none where rows are few."""
    if isinstance(problem, Problem) and problem.shared:
        return (Part(problem, ranges, a),)
    if isinstance(problem, OneVersusRest) and problem.many:
        of = zip(problem.each, problem.split(ranges), np.moveaxis(problem.by_class(a), 1, 0), strict=True)
        return tuple(Part(*one) for one in of)
    return ()


def _one_score(step: FitStep, threat: ThreatSet, frozen: Array, column: int, table: Table) -> Problem:
    """The same for a table with the targets of this column."""
    y, weights, design = threat.reference[1][:, column], *_seen(step, threat, frozen)
    c = minimise(design, y, weights, table.alpha, step.loss)
    tau = tilt(design, y, weights, table.alpha, step.loss, c)
    problem = Problem(table, step.loss, c, tau, (design @ c)[weights > 0])
    joint = len(table.rows) ** 2 * len(c) * step.head.outputs  # of all classes at once
    return replace(problem, shared=joint > APART_CELLS if step.several else problem.cells > OWN_CELLS)


def classes_problem(step: FitStep, threat: ThreatSet, frozen: Array) -> Bounded:
    """The same for three or more classes: together, or each versus the rest."""
    classes, width, pin = range(step.head.outputs), step.head.inputs, step.model.pin
    table = _table(step, threat, frozen, tuple(classes))
    if not step.model.softmax:
        return OneVersusRest.of(tuple(_one_score(step, threat, frozen, k, of_class(table, k)) for k in classes), width)
    y, weights, design = threat.reference[1][:, classes], *_seen(step, threat, frozen)
    c = minimise_classes(design, y, weights, table.alpha, pin)
    tau = tilt_classes(design, y, weights, table.alpha, pin, c)
    return SoftmaxProblem(table, pin, in_layout(c, width), in_layout(tau, width), (design @ c.T)[weights > 0], width)


def _seen(step: FitStep, threat: ThreatSet, frozen: Array) -> tuple[Array, Array]:
    """How much each row of the reference counts, and what the fitted layer sees of it."""
    x, y = threat.reference
    return step.counts(y), step.design(np.append(frozen, np.zeros(step.fitted)), x)


def _table(step: FitStep, threat: ThreatSet, frozen: Array, columns: tuple[int, ...]) -> Table:
    """The table with these entries of the labels as its target, or targets."""
    (x, y), noise, there = threat.reference, threat.noise(), threat.clean.there
    alpha, keep = step.model.alpha(step.head.inputs), step.counts(y) > 0
    penalties = alpha if step.body is None else np.zeros(x.shape[1])
    raw = [table_of(noise, column, step.counts(y, whole=True), penalties) for column in columns]
    table = counted(raw[0] if len(raw) == 1 else with_classes(raw), noise, step.weights, there, keep)
    return table if step.body is None else through(table, step.body, frozen).with_penalties(alpha)


def _unproven(step: FitStep, threat: ThreatSet, frozen: Array) -> tuple[str, float | None]:
    """Why there are no bounds, in words, and a `C` that would do, if one was found."""
    if step.several:
        return (
            "The doubt is too large for this model: no ranges of its parameters could be proven. Use a smaller C, a smaller eps, "
            "or doubt fewer rows and columns.",
            None,
        )

    def with_c(c: float) -> Problem:
        return table_problem(replace(step, model=replace(step.model, C=c)), threat, frozen)

    with np.errstate(all="ignore"):
        clean = Clean.of(step, threat, frozen)
        return too_large(with_c(step.model.C), clean, threat.clean, step.model.C, with_c)
