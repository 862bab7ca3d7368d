"""The `mibp` engine: exact minimum and maximum of every new parameter over one step (or several), box in between.

Each step is encoded once and solved for all 2m objectives. Where the honest gap of a bound is above what was asked for, the
next finer treatment of second-order terms is tried for that parameter: a smaller slack, then true bilinear terms if the solver
has them. Bounds from all treatments and the pre-analysis are sound, so they are intersected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

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
from mibp_cert.engines.exact.solve import Declare, End, Task, bound_outputs
from mibp_cert.engines.interval import IntervalEngine, enclose
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import UserError
from mibp_cert.graph import Graph
from mibp_cert.nets import Layout, Step
from mibp_cert.parallel import WorkerPool
from mibp_cert.sets import ThreatSet
from mibp_cert.solvers import FEASIBILITY, Capability, solver_named

log = logging.getLogger(__name__)

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
        self,
        settings: SolverSettings | None = None,
        *,
        unroll: int = 1,
        progress: Progress | None = None,
        pool: WorkerPool | None = None,
    ) -> None:
        self.settings, self.unroll = settings or SolverSettings(), unroll
        self.progress = progress or (lambda done, total: None)
        self.pool = pool or WorkerPool(self.settings.jobs, self.settings.parallel)
        self._treatments = treatments(self.settings)

    @classmethod
    def of(cls, settings: EngineSettings, progress: Progress | None = None) -> Self:
        return cls(settings.solver, unroll=settings.unroll, progress=progress)

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
        found, report = bound_graph(
            step.graph, declare, self._treatments, self.settings, self.pool, progress=self.progress
        )
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
        brackets, report = bound_graph(
            make(len(part.x)),
            partial(declare_inputs, layout=layout, state=state, inputs=part),
            self._treatments,
            self.settings,
            self.pool,
            elements=elements,
            enough=wanted.enough,
        )
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
        if low.inner is not None:
            self.inner_low[element] = min(self.inner_low[element], low.inner)
        if high.inner is not None:
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
    slip = 4.0 * FEASIBILITY if task.program.free_rows()[0].shape[0] else 0.0
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
