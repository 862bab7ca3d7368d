"""The `mibp` engine: exact minimum and maximum of every new parameter over one step (or several), box in between.

A step is encoded once and solved for all 2m objectives, in parallel. For an output `c + g·v ± s` these are `min g·v` and `max
g·v` over the part of the program that `g` reaches, scaled so that `Σ|g| = 1`. What is kept is the solver's *proven* bound, moved
outward by the solver's feasibility tolerance and the slack, and intersected with the pre-analysis. The solver's best point is
evaluated through the `concrete` graph: that true value brackets the optimum from inside, and `outer − inner` is the honest gap.

Where the honest gap of a bound is above what was asked for, the next finer treatment of second-order terms is tried for that
parameter: a smaller slack, then true bilinear terms if the solver has them. Bounds from all treatments and the pre-analysis are
sound, so they are intersected.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Self, final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mibp_cert.engines.base import (
    Box,
    Engine,
    EngineSettings,
    Inputs,
    Maker,
    ParameterSet,
    Progress,
    SolverSettings,
    StepReport,
    Wanted,
)
from mibp_cert.engines.exact.encode import Encoder, Symbolic
from mibp_cert.engines.exact.polish import Search
from mibp_cert.engines.interval import IntervalEngine, enclose
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import UserError
from mibp_cert.graph import Graph
from mibp_cert.nets import Layout, Step
from mibp_cert.parallel import WorkerPool, split
from mibp_cert.sets import ThreatSet
from mibp_cert.solvers import FEASIBILITY, Bound, Capability, Limits, Objective, Program, Status, solver_named
from mibp_cert.solvers.program import FREE, Affine, Index, with_columns

log = logging.getLogger(__name__)

Declare = Callable[[Encoder], dict[str, Symbolic]]
"""Introduces the inputs of a graph."""

TREATMENTS = ((2e-3, False), (1e-4, False), (1e-4, True))
"""(tolerance of the slack, keep true bilinear terms), from coarse to fine."""


def treatments(settings: SolverSettings) -> list[tuple[float, bool]]:
    """The ladder of treatments that the solver can climb."""
    native = solver_named(settings.solver).supports(Capability.BILINEAR)
    return [treatment for treatment in TREATMENTS if native or not treatment[1]]


@final
class MibpEngine(Engine):
    """See the module's text."""

    name = "mibp"
    prediction = "exact"
    soundness = "solver-tolerance"
    operations = frozenset(Encoder(0.0).table)
    solves = True

    def __init__(
        self, settings: SolverSettings | None = None, progress: Progress | None = None, pool: WorkerPool | None = None
    ) -> None:
        self.settings = settings or SolverSettings()
        self.progress = progress or (lambda done, total: None)
        self.pool = pool or WorkerPool(self.settings.jobs, self.settings.parallel)
        self._solved = partial(bound_graph, ladder=treatments(self.settings), settings=self.settings, pool=self.pool)

    @classmethod
    def of(cls, settings: EngineSettings, progress: Progress | None = None) -> Self:
        return cls(settings.solver, progress)

    @classmethod
    def check_settings(cls, settings: EngineSettings) -> None:
        solver_named(settings.solver.solver)

    def close(self) -> None:
        self.pool.close()

    def check_threat(self, threat: ThreatSet) -> None:
        if threat.bilinear and not solver_named(self.settings.solver).supports(Capability.BILINEAR):
            raise UserError(
                f"The threat multiplies unknowns, which the solver '{self.settings.solver}' cannot do; choose scip or gurobi, or "
                "another engine."
            )

    def advance(self, state: ParameterSet, step: Step, threat: ThreatSet) -> tuple[Box, StepReport]:
        start = time.perf_counter()
        declare = partial(declare_training, box=state, step=step, threat=threat)
        found, report = self._solved(step.graph, declare, progress=self.progress)
        report.seconds = time.perf_counter() - start
        return Box(found.lower, found.upper), report

    def validating(self) -> Engine:
        return IntervalEngine()

    def bound(
        self, make: Maker, layout: Layout, state: ParameterSet, inputs: Inputs, wanted: Wanted | None = None
    ) -> tuple[Interval, StepReport]:
        """Intervals first, then the solver for what they leave open: for rows with an element that is not yet known well enough,
        every wanted element of them."""
        wanted = wanted or Wanted()
        known, report = IntervalEngine().bound(make, layout, state, inputs)
        asked = np.ones(known.low.shape, dtype=bool) if wanted.elements is None else wanted.elements
        if wanted.enough is not None:
            low = np.where(known.sound, known.low, -np.inf)
            asked = asked & (asked & ~wanted.enough(low)).any(axis=1, keepdims=True)
        if not (asked.any() and state.usable) or (wanted.enough is None and not known.sound.all()):
            return known, report
        part, chosen = inputs, asked
        if wanted.enough is not None and inputs.members is None:
            rows = np.flatnonzero(asked.any(axis=1))
            part, chosen = inputs.take(rows), asked[rows]
        elements = np.flatnonzero(chosen.ravel())
        declare = partial(declare_inputs, layout=layout, state=state, inputs=part)
        brackets, report = self._solved(make(len(part.x)), declare, elements=elements, enough=wanted.enough)
        found = Interval(brackets.lower, brackets.upper)[elements]
        low, high = np.array(known.low), np.array(known.high)
        low[asked] = np.maximum(low[asked], found.low)
        if wanted.enough is None:
            high[asked] = np.minimum(high[asked], found.high)
        return Interval(low, high), report


def declare_inputs(encoder: Encoder, layout: Layout, state: ParameterSet, inputs: Inputs) -> dict[str, Symbolic]:
    """Inputs of a graph over parameters and `x`: the parameter box, and the rows with their own threat's constraints."""
    found = _parameters(encoder, layout, state)
    if inputs.members is None:
        return {**found, "x": encoder.box(inputs.x, inputs.x)}
    x, _ = inputs.members.constraints(encoder.builder, np.arange(len(inputs.x), dtype=np.intp))
    return {**found, "x": encoder.declare(x, inputs.range.low, inputs.range.high)}


def declare_training(encoder: Encoder, box: ParameterSet, step: Step, threat: ThreatSet) -> dict[str, Symbolic]:
    """Inputs of a training graph: the parameter box and the threat's own constraints on the step's rows."""
    x, y = threat.constraints(encoder.builder, step.rows)
    hull, rows = threat.hull(), step.rows
    return {
        **_parameters(encoder, step.layout, box),
        "x": encoder.declare(x, hull.x_low[rows], hull.x_high[rows]),
        "y": encoder.declare(y, hull.y_low[rows], hull.y_high[rows]),
    }


def _parameters(encoder: Encoder, layout: Layout, state: ParameterSet) -> dict[str, Symbolic]:
    return {name: encoder.box(tensor.low, tensor.high) for name, tensor in state.tensors(layout).items()}


@dataclass(eq=False)
class Brackets:
    """What is known of each output: proven bounds from outside, true values reached inside, and how it was come by."""

    lower: Array
    upper: Array
    inner_low: Array
    inner_high: Array
    proven: NDArray[np.bool_]
    """2 × outputs: whether a solver (or the closed form) contributed to the lower and to the upper end."""

    @classmethod
    def around(cls, low: Array, high: Array) -> Brackets:
        n = len(low)
        return cls(low.copy(), high.copy(), np.full(n, np.inf), np.full(n, -np.inf), np.zeros((2, n), dtype=bool))

    def take(self, element: int, ends: tuple[End, End]) -> None:
        low, high = ends
        self.lower[element] = max(self.lower[element], low.outer)
        self.upper[element] = min(self.upper[element], high.outer)
        self.inner_low[element] = min(self.inner_low[element], low.inner)
        self.inner_high[element] = max(self.inner_high[element], high.inner)
        self.proven[:, element] |= [end.usable for end in ends]

    def withdraw(self, plain_low: Array, plain_high: Array, tolerance: float = 0.0) -> int:
        """Where a true value lies outside of a "proven" bound, something was wrong: fall back to plain intervals there.

        `tolerance`: how far true values may break the data's own constraints, relative to the width.
        """
        slip = 1e-12 * (1.0 + np.maximum(np.abs(self.lower), np.abs(self.upper))) + tolerance * (plain_high - plain_low)
        wrong = (self.inner_low < self.lower - slip) | (self.inner_high > self.upper + slip)
        wrong |= (self.inner_low > self.upper + slip) & np.isfinite(self.inner_low)
        wrong |= (self.inner_high < self.lower - slip) & np.isfinite(self.inner_high)
        self.lower, self.upper = np.where(wrong, plain_low, self.lower), np.where(wrong, plain_high, self.upper)
        self.proven[:, wrong] = False
        return int(wrong.sum())

    def gap(self, floor: float) -> Array:
        """`outer − inner` relative to the radius (2 × outputs); infinite where no true value was reached."""
        radius = np.maximum(0.5 * (self.upper - self.lower), floor)
        return np.stack([self.inner_low - self.lower, self.upper - self.inner_high]) / radius


def bound_graph(
    graph: Graph,
    declare: Declare,
    ladder: list[tuple[float, bool]],
    settings: SolverSettings,
    pool: WorkerPool,
    *,
    elements: NDArray[np.intp] | None = None,
    enough: Callable[[Array], NDArray[np.bool_]] | None = None,
    progress: Progress = lambda done, total: None,
) -> tuple[Brackets, StepReport]:
    """Bounds of the outputs of a graph (laid end to end), refined treatment by treatment.

    `elements`: which outputs to solve for (default all). `enough`: lower ends alone, of those that are not large enough yet but
    may be (default: both ends, until the honest gap is no more than the one asked for).
    """
    deadline = time.time() + settings.seconds_per_step
    report, both = StepReport(), enough is None
    per_element = 2 if both else 1
    brackets: Brackets | None = None
    left = asked = np.zeros(0, dtype=np.intp)
    for tolerance, bilinear in ladder:
        encoder = Encoder(tolerance, bilinear=bilinear)
        task, values = Task.encode(graph, declare, encoder, settings, deadline, both)
        if brackets is None:
            brackets = Brackets.around(task.low, task.high)
            left = asked = np.arange(len(task.low), dtype=np.intp) if elements is None else elements
            _count_unstable(graph, values, report)
        brackets.lower, brackets.upper = np.maximum(brackets.lower, task.low), np.minimum(brackets.upper, task.high)
        for done, (element, ends) in enumerate(bound_outputs(pool, task, left), start=1):
            brackets.take(element, ends)
            report.programs += per_element
            report.nodes += ends[0].nodes + ends[1].nodes
            progress(done * per_element, len(left) * per_element)
        if enough is None:
            is_open = brackets.gap(settings.floor).max(axis=0) > settings.gap
        else:
            # A true value that is too small settles the element as well: its bound cannot be large enough.
            is_open = ~enough(brackets.lower) & enough(brackets.inner_low)
        left = left[is_open[left]]
        log.debug("treatment %s: %d of %d outputs stay open", (tolerance, bilinear), len(left), len(asked))
        if not len(left) or time.time() >= deadline:
            break
    assert brackets is not None
    plain = enclose(graph, {name: value.range for name, value in task.inputs.items()})
    plain_low, plain_high = (
        np.concatenate([getattr(plain[n], e).ravel() for n in graph.outputs]) for e in ("low", "high")
    )
    # True values may break the data's own constraints by the solver's tolerance.
    slip = 4.0 * FEASIBILITY if (task.program.owner == FREE).any() else 0.0
    withdrawn = brackets.withdraw(plain_low, plain_high, tolerance=slip)
    if withdrawn:
        words = "%d bound(s) were contradicted by a true value and are replaced by plain interval bounds."
        log.warning(words, withdrawn)
    report.fallbacks = int((~brackets.proven[:per_element, asked]).sum())
    report.gap = brackets.gap(settings.floor)
    return brackets, report


def _count_unstable(graph: Graph, values: list[Symbolic], report: StepReport) -> None:
    """Number of gates of the loss and of relus whose sign the pre-analysis leaves open."""
    for node in graph.nodes:
        if node.op in ("gate", "relu"):
            z = values[node.operands[0]]
            count = int(np.count_nonzero((z.low < 0) & (z.high > 0)))
            if node.op == "relu":
                report.unstable_relus += count
            elif node.attribute:
                report.unstable_gates += count


@dataclass(frozen=True, eq=False)
class End:
    """One end of one output: the bound proven from outside, the true value reached inside, and what it took.

    Where no true value was reached, `inner` is +∞ for the lower end and −∞ for the upper one.
    """

    outer: float
    inner: float
    nodes: int
    usable: bool
    """Whether the solver (or the closed form) proved anything; else `outer` is the pre-analysis."""


@dataclass(frozen=True, eq=False)
class Task:
    """Everything a worker needs to bound outputs of one graph; plain arrays and frozen data, so that it pickles."""

    graph: Graph
    program: Program
    inputs: dict[str, Symbolic]
    output: Affine
    low: Array
    high: Array
    gates: dict[int, tuple[Index, Array]]
    """Per node with unstable elements: their binaries (−1 elsewhere) and the radii of the node's range."""
    settings: SolverSettings
    deadline: float
    both: bool = True
    """Bound both ends, or the lower one only."""

    @classmethod
    def encode(
        cls,
        graph: Graph,
        declare: Declare,
        encoder: Encoder,
        settings: SolverSettings,
        deadline: float,
        both: bool = True,
    ) -> tuple[Task, list[Symbolic]]:
        """Encode a graph whose inputs `declare` introduces; outputs are laid end to end in the graph's order."""
        inputs = declare(encoder)
        values = encoder.encode(graph, inputs)
        outputs = [values[number] for number in graph.outputs.values()]
        columns = encoder.builder.variables
        output = Affine(
            np.concatenate([o.affine.centre for o in outputs]),
            sparse.vstack([with_columns(o.affine.linear, columns) for o in outputs], format="csr"),
            np.concatenate([o.affine.slack for o in outputs]),
        )
        low, high = np.concatenate([o.low for o in outputs]), np.concatenate([o.high for o in outputs])
        gates = {n: (value.gate, value.radius) for n, value in enumerate(values) if (value.gate >= 0).any()}
        return cls(graph, encoder.builder.finish(), inputs, output, low, high, gates, settings, deadline, both), values

    def unproven(self, element: int) -> tuple[End, End]:
        """The ends of an output that no solver said anything about."""
        low, high = float(self.low[element]), float(self.high[element])
        return End(low, math.inf, 0, False), End(high, -math.inf, 0, False)


def bound_outputs(pool: WorkerPool, task: Task, elements: Index) -> Iterator[tuple[int, tuple[End, End]]]:
    """Lower and upper end of the listed outputs, in order of completion."""
    # Small groups balance the load; the program travels once per group.
    groups = split(elements.tolist(), max(1, math.ceil(len(elements) / 4)))
    for element, ends in pool.map(_bound_group, task, groups):
        yield element, ends or task.unproven(element)


def _bound_group(task: Task, elements: list[int]) -> list[tuple[End, End]]:
    """Runs in a worker process."""
    return [_bound_element(task, element) for element in elements]


def _bound_element(task: Task, element: int) -> tuple[End, End]:
    span = slice(task.output.linear.indptr[element], task.output.linear.indptr[element + 1])
    program, numbers = task.program.cut(task.output.linear.indices[span].astype(np.intp))
    coefficients = task.output.linear[element, numbers].toarray().ravel()
    scale = float(np.abs(coefficients).sum())
    if not math.isfinite(scale):
        return task.unproven(element)
    scale = scale or 1.0  # an output that depends on nothing is its own bound
    objectives = [Objective(coefficients / scale, maximise) for maximise in ((False, True) if task.both else (False,))]
    bounds = _solve(task, program, objectives)
    base, slack = float(task.output.centre[element]), float(task.output.slack[element])
    slack += FEASIBILITY * scale + 1e-12 * (abs(base) + scale)
    ends = []
    for objective, bound in zip(objectives, bounds, strict=True):
        usable = math.isfinite(bound.proven)
        outer = limit = float(task.high[element] if objective.maximise else task.low[element])
        if usable:
            value = base + scale * bound.proven
            outer = min(limit, value + slack) if objective.maximise else max(limit, value - slack)
        inner = _true_value(task, element, numbers, bound.solution, 1.0 if objective.maximise else -1.0, outer)
        ends.append(End(outer, inner, bound.nodes, usable))
    return ends[0], ends[1] if task.both else task.unproven(element)[1]


def _solve(task: Task, program: Program, objectives: list[Objective]) -> list[Bound]:
    settings = task.settings
    if program.rows == 0 and len(program.triples) == 0:
        return [_closed_form(program, objective) for objective in objectives]
    seconds = min(settings.seconds_per_program, (task.deadline - time.time()) / len(objectives))
    if seconds <= 0.0 or settings.nodes_per_program == 0:
        return [Bound(math.nan, None, None, Status.LIMIT, 0, 0.0) for _ in objectives]
    limits = Limits(seconds, settings.nodes_per_program, 0.25 * settings.gap)
    return solver_named(settings.solver).solve(program, objectives, limits)


def _closed_form(program: Program, objective: Objective) -> Bound:
    """A linear objective over a box: each variable at the end that its coefficient asks for."""
    at_upper = (objective.coefficients > 0) == objective.maximise
    solution = np.where(at_upper, program.upper, program.lower)
    value = float(objective.coefficients @ solution)
    return Bound(value, value, solution, Status.OPTIMAL, 0, 0.0)


def _true_value(task: Task, element: int, numbers: Index, solution: Array | None, sign: float, outer: float) -> float:
    """A true value of the output near the solver's point, by ordinary evaluation of the graph."""
    if solution is None:
        return -sign * math.inf
    program = task.program
    v = 0.5 * (program.lower + program.upper)
    v[numbers] = np.clip(solution, program.lower[numbers], program.upper[numbers])
    reached = np.zeros(program.variables, dtype=bool)
    reached[numbers] = True
    gates = {node: (np.where((g >= 0) & reached[g], g, -1), radius) for node, (g, radius) in task.gates.items()}
    radius = max(0.5 * float(task.high[element] - task.low[element]), task.settings.floor)
    search = Search(task.graph, element, sign, task.inputs, program, program.free_rows(reached), gates)
    return sign * search.best(v, sign * outer - 0.5 * task.settings.gap * radius)
