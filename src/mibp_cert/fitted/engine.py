"""The engine `dual`: the set of all minimisers, and bounds of whatever is linear in the fitted parameters.

A fitted model is the last layer of a network, `o = φ(x) Wᵀ + b`; the layers before it are frozen. A query of any graph whose
output is affine in `θ` for given inputs, `o = o₀ + a·θ`, is read off the graph by enclosing it at `θ = 0` and at unit
vectors. Where inputs are in doubt as well and the features are the inputs themselves, the output is bilinear, `o = Σ_jk T_jk
θ_j x_k + …`, and a doubt `|d_k| ≤ r_k` adds at most `Σ_k r_k max_θ |Σ_j T_jk θ_j|`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np

from mibp_cert.engines import EngineSettings, SolverSettings
from mibp_cert.engines.base import Engine, Inputs, Maker, ParameterSet, Progress, StepReport, Wanted
from mibp_cert.engines.interval import enclose
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import Diverged, UnsupportedOperation, UserError
from mibp_cert.fitted.advice import says_nothing, too_large
from mibp_cert.fitted.bounded import Bounded
from mibp_cert.fitted.classes import in_layout, minimise_classes, tilt_classes
from mibp_cert.fitted.crew import Crew, Rounds
from mibp_cert.fitted.explain import Clean
from mibp_cert.fitted.features import Enclosure, RowNoise, enclose_features, through
from mibp_cert.fitted.finite import FiniteProblem, finite_problem
from mibp_cert.fitted.known import Ranges
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.minimum import minimise, tilt
from mibp_cert.fitted.model import FitStep
from mibp_cert.fitted.presence import check_left, counted
from mibp_cert.fitted.problem import OWN_CELLS, Problem
from mibp_cert.fitted.ranges import prove
from mibp_cert.fitted.several import OneVersusRest, SoftmaxProblem, of_class, with_classes
from mibp_cert.fitted.table import Rows, Table, table_of
from mibp_cert.graph import Graph
from mibp_cert.nets import Layout, Linear, Network, Step
from mibp_cert.sets import ThreatSet

LINEAR = frozenset({"add", "scale", "contract", "sum", "gather", "reshape"})
"""Operations through which an output may depend on fitted parameters."""
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
        return cls(progress, settings.solver)

    def __init__(self, progress: Progress | None = None, settings: SolverSettings | None = None) -> None:
        self.progress, self.settings = progress or (lambda done, total: None), settings or SolverSettings()
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
            raise Diverged(_unproven(step, threat, frozen))
        found = FittedSet.of(problem, ranges, frozen)
        if isinstance(problem, Problem):
            with self.crew.counting(2 * len(problem.c)):
                found = self.narrowed(problem, found, step, threat)
        return found, StepReport(seconds=time.perf_counter() - start)

    def _proven(self, problem: Bounded) -> Ranges | None:
        """Ranges that are proven; the crew works, and tells of it."""
        parts = problem.parts or (problem,)
        rounds = Rounds(self.progress, 2 * sum(part.point().count for part in parts) // len(parts), len(parts))
        with self.crew.working(rounds.tell):
            return prove(problem.telling(rounds.begin))

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

    def bound(
        self, make: Maker, layout: Layout, state: ParameterSet, inputs: Inputs, wanted: Wanted | None = None
    ) -> tuple[Interval, StepReport]:
        assert isinstance(state, FittedSet)
        start = time.perf_counter()
        problem, z = state.problem, state.ranges
        if len(state.frozen):
            offset, a, moved = linear_in_features(make, layout, inputs, state)
        else:
            (offset, a), (slip, off) = linear_in_parameters(make(len(inputs.x)), layout, inputs.x)
            moved = (1.0 + 8.0 * EPS * a.shape[-1]) * (slip + off @ z.reach)
            if inputs.members is not None:
                moved = moved + moved_by_inputs(make, layout, inputs, state)
        flat, base = a.reshape(-1, a.shape[-1]), offset.ravel()
        asked = np.ones(len(flat), dtype=bool)
        if wanted is not None and wanted.elements is not None:
            asked = wanted.elements.ravel()
        # What is above is rounded, and so is the sum below; a prediction evaluates the same terms in float64.
        extra = 8.0 * (a.shape[-1] + 4) * EPS * (np.abs(flat) @ z.reach + np.abs(base)) + moved.ravel()
        low, high = np.full(len(flat), -np.inf), np.full(len(flat), np.inf)
        enough = None if wanted is None else wanted.enough
        if isinstance(problem, Problem) and problem.shared:
            with self.crew.working():
                low[asked], high[asked] = problem.outputs(
                    z, flat[asked], base[asked], extra[asked], enough, self.progress
                )
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


def _one_score(step: FitStep, threat: ThreatSet, frozen: Array, column: int, table: Table) -> Problem:
    """The same for a table with the targets of this column."""
    y, weights, design = threat.reference[1][:, column], *_seen(step, threat, frozen)
    c = minimise(design, y, weights, table.alpha, step.loss)
    tau = tilt(design, y, weights, table.alpha, step.loss, c)
    problem = Problem(table, step.loss, c, tau, (design @ c)[weights > 0])
    return replace(problem, shared=not step.several and problem.cells > OWN_CELLS)


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


def linear_in_parameters(graph: Graph, layout: Layout, x: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """`o₀` and `a` with `o = o₀ + a·θ`, for every output, and how far each may be off; refuses graphs whose output is not
    affine in the parameters.

    A large constant in the graph (the mean of a target, say) would drown small `a`: all values are enclosed.
    """
    check_linear(graph, [graph.inputs[name] for name in layout.names if name in graph.inputs], "fitted parameters")
    points = np.concatenate([np.zeros((1, layout.size)), np.eye(layout.size)])
    found: list[Interval] = []
    for point in points:
        values = {name: Interval.point(value) for name, value in layout.unflatten(point).items()}
        found += enclose(graph, {**values, "x": Interval.point(x)}).values()
    low, high = (np.stack([getattr(one, end) for one in found]) for end in ("low", "high"))
    middle = 0.5 * (low + high)
    off = np.nextafter(np.maximum(high - middle, middle - low), np.inf)
    a = middle[1:] - middle[0]
    more = off[1:] + off[0] + 4.0 * EPS * np.abs(a)
    return (middle[0], np.moveaxis(a, 0, -1)), (off[0], np.moveaxis(more, 0, -1))


def linear_in_features(make: Maker, layout: Layout, inputs: Inputs, state: FittedSet) -> tuple[Array, Array, Array]:
    """The same behind frozen layers, `o = o₀ + a·θ ± moved`, for inputs in doubt, too.

    At `θ = 0` and at every unit vector it is a graph of the inputs alone: `o_j(x + d) ∈ c_j + J_j d ± β_j` (`fitted.features`).
    So `o = c₀ + (c − c₀)·θ` but for `(J₀ + Σ_j θ_j (J_j − J₀)) d`, whose support over the noise is that of the middle of the
    coefficients, plus their radius times the largest noise, and for `β₀ + Σ_j |θ_j|(β_j + β₀)`.
    """
    graph, z, start = make(len(inputs.x)), state.ranges, len(state.frozen)
    names = [n for n, first in zip(layout.names, layout.offsets, strict=False) if first >= start]
    check_linear(graph, [graph.inputs[name] for name in names if name in graph.inputs], "fitted parameters")
    noise, doubtful = RowNoise(_rows_of(inputs)), inputs.members is not None
    points = np.concatenate([np.zeros((1, len(z.low))), np.eye(len(z.low))])
    found: list[Enclosure] = []
    for point in points:
        values = layout.unflatten(np.append(state.frozen, point))
        found.append(enclose_features(graph, values, noise, doubtful=doubtful))
    zero, rest = found[0], found[1:]
    a = np.stack([one.c - zero.c for one in rest], axis=-1)
    moved = zero.beta + np.stack([one.beta + zero.beta for one in rest], axis=-1) @ z.reach
    if not doubtful:
        return zero.c, a, moved
    j = np.stack([one.j - zero.j for one in rest])
    middle, radius = zero.j + np.tensordot(z.middle, j, 1), np.tensordot(z.radius, np.abs(j), 1)
    low, high = noise.support(middle)
    moved = moved + 0.5 * (high - low) + noise.magnitude(radius)
    sizes = noise.magnitude(np.abs(zero.j) + np.tensordot(z.reach, np.abs(j), 1))
    return zero.c + 0.5 * (low + high), a, moved + 16.0 * (len(points) + 4) * EPS * sizes


def _rows_of(inputs: Inputs) -> Rows:
    """Inputs with their own noise; that of several rows at once is taken cell by cell."""
    n, d = inputs.x.shape
    nothing = np.zeros(n)
    if inputs.members is None:
        return Rows(inputs.x, np.zeros((n, d)), nothing, nothing, nothing)
    table = table_of(inputs.members.noise(), 0, nothing, np.zeros(d))
    if not (table.blocks or table.budgets):
        return table.rows
    hull = inputs.range
    middle = 0.5 * (hull.low + hull.high)
    radius = np.maximum(hull.high - middle, middle - hull.low) * (1.0 + 4.0 * EPS)
    return Rows(middle, radius, nothing, nothing, nothing)


def check_linear(graph: Graph, of: list[int], what: str) -> None:
    """Raise `UnsupportedOperation` unless every output is affine in these inputs."""
    moved = graph.descendants(of)
    for number in sorted(moved - set(of)):
        node = graph.nodes[number]
        both = node.op == "contract" and all(i in moved for i in node.operands)
        if node.op not in LINEAR or both:
            raise UnsupportedOperation(
                f"The engine 'dual' bounds what is linear in the {what}; {node.origin} is not. Ask for margins, ranges, or "
                "differences of them."
            )


def moved_by_inputs(make: Maker, layout: Layout, inputs: Inputs, state: FittedSet) -> Array:
    """How far the outputs may move with the inputs' own doubt: `Σ_k r_k max_θ |Σ_j T_jk θ_j|`."""
    hull, d, z = inputs.range, inputs.x.shape[1], state.ranges
    radius = np.maximum(hull.high - inputs.x, inputs.x - hull.low) * (1.0 + 4.0 * EPS)
    probes = np.concatenate([np.zeros((1, d)), np.eye(d)])
    graph = make(len(probes))
    check_linear(graph, [graph.inputs["x"]], "inputs")
    (_, a), (_, off) = linear_in_parameters(graph, layout, probes)
    t = a[1:] - a[:1]  # features × outputs × parameters
    reach = np.abs(t @ z.middle) + np.abs(t) @ z.radius + (off[1:] + off[:1]) @ z.reach
    return np.asarray(radius @ reach * (1.0 + 16.0 * EPS * (d + layout.size)))


def _unproven(step: FitStep, threat: ThreatSet, frozen: Array) -> str:
    """Why there are no bounds, in words."""
    if step.several:
        return (
            "The doubt is too large for this model: no ranges of its parameters could be proven. Use a smaller C, a smaller eps, "
            "or doubt fewer rows and columns."
        )

    def with_c(c: float) -> Problem:
        return table_problem(replace(step, model=replace(step.model, C=c)), threat, frozen)

    with np.errstate(all="ignore"):
        clean = Clean.of(step, threat, frozen)
        return too_large(with_c(step.model.C), clean, threat.clean, step.model.C, with_c)
