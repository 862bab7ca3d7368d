"""The `mibp` engine: exact minimum and maximum of every new parameter over one step (or several), box in between.

Each step is encoded once and solved for all 2m objectives. Where the honest gap of a bound is above what was asked for, the
next finer treatment of second-order terms is tried for that parameter: a smaller slack, then true bilinear terms if the solver
has them. Bounds from all treatments and the pre-analysis are sound, so they are intersected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np

from mibp_cert.engines.base import Box, Engine, StepReport
from mibp_cert.engines.encode import Encoder, Symbolic
from mibp_cert.engines.exact import SolverSettings, Task, bound_outputs
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError
from mibp_cert.graph import Graph
from mibp_cert.nets import Step
from mibp_cert.solvers import Capability, Status, WorkerPool, solver_named
from mibp_cert.threats import ThreatSet

log = logging.getLogger(__name__)
Progress = Callable[[int, int], None]
"""`progress(done, total)` in objectives of the current step."""

TREATMENTS = ((2e-3, False), (1e-4, False), (1e-4, True))
"""(tolerance of the slack, keep true bilinear terms), from coarse to fine."""


def treatments(settings: SolverSettings) -> list[tuple[float, bool]]:
    """The ladder of treatments that the solver can climb."""
    native = solver_named(settings.solver).supports(Capability.BILINEAR)
    return [treatment for treatment in TREATMENTS if native or not treatment[1]]


class MibpEngine(Engine):
    """See the module's text."""

    name = "mibp"
    soundness = "solver-tolerance"
    default_prediction = "exact"

    def __init__(
        self, settings: SolverSettings | None = None, *, unroll: int = 1, progress: Progress | None = None
    ) -> None:
        if unroll != int(unroll) or unroll < 1:
            raise UserError(f"unroll must be a whole number ≥ 1, got {unroll}.")
        self.settings = settings or SolverSettings()
        self.unroll = unroll
        self.progress = progress or (lambda done, total: None)
        self.pool = WorkerPool(self.settings.jobs)
        self._treatments = treatments(self.settings)

    def close(self) -> None:
        self.pool.close()

    def advance(self, box: Box, step: Step, threat: ThreatSet) -> tuple[Box, StepReport]:
        start = time.perf_counter()

        def declare(encoder: Encoder) -> dict[str, Symbolic]:
            return declare_training(encoder, box, step, threat)

        lower, upper, report = bound_graph(step.graph, declare, self._treatments, self.settings, self.pool, self.progress)
        report.seconds = time.perf_counter() - start
        return Box(lower, upper), report


def declare_training(encoder: Encoder, box: Box, step: Step, threat: ThreatSet) -> dict[str, Symbolic]:
    """Inputs of a training graph: the parameter box and the threat's own constraints on the step's rows."""
    x, y = threat.constraints(encoder.builder, step.rows)
    hull = threat.hull()
    inputs = {name: encoder.box(tensor.low, tensor.high) for name, tensor in box.tensors(step.layout).items()}
    inputs["x"] = encoder.declare(x, hull.x_low[step.rows], hull.x_high[step.rows])
    inputs["y"] = encoder.declare(y, hull.y_low[step.rows], hull.y_high[step.rows])
    return inputs


def bound_graph(
    graph: Graph,
    declare: Callable[[Encoder], dict[str, Symbolic]],
    ladder: list[tuple[float, bool]],
    settings: SolverSettings,
    pool: WorkerPool,
    progress: Progress,
) -> tuple[Array, Array, StepReport]:
    """Lower and upper bounds of all outputs of a graph (laid end to end), refined treatment by treatment."""
    deadline = time.time() + settings.seconds_per_step
    report = StepReport()
    lower = upper = inner_low = inner_high = np.zeros(0)
    open_elements = np.zeros(0, dtype=np.intp)
    for level, (tolerance, bilinear) in enumerate(ladder):
        encoder = Encoder(tolerance, bilinear=bilinear)
        task, values = Task.encode(graph, declare, encoder, settings, deadline)
        if level == 0:
            lower, upper = task.low.copy(), task.high.copy()
            inner_low, inner_high = np.full(len(lower), np.inf), np.full(len(lower), -np.inf)
            open_elements = np.arange(len(lower), dtype=np.intp)
            _count_unstable(graph, values, report)
            proven = np.zeros((2, len(lower)), dtype=bool)
        lower, upper = np.maximum(lower, task.low), np.minimum(upper, task.high)
        done, total = 0, 2 * len(open_elements)

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(done, total)  # noqa: B023

        for element, (low_end, high_end) in bound_outputs(pool, task, open_elements, advance):
            lower[element], upper[element] = max(lower[element], low_end.outer), min(upper[element], high_end.outer)
            for side, end in enumerate((low_end, high_end)):
                report.programs += 1
                report.nodes += end.nodes
                proven[side, element] |= np.isfinite(end.outer) and end.status in (Status.OPTIMAL, Status.LIMIT)
            if low_end.inner is not None:
                inner_low[element] = min(inner_low[element], low_end.inner)
            if high_end.inner is not None:
                inner_high[element] = max(inner_high[element], high_end.inner)
        radius = np.maximum(0.5 * (upper - lower), settings.floor)
        report.gap = np.concatenate([inner_low - lower, upper - inner_high]) / np.concatenate([radius, radius])
        worst = report.gap.reshape(2, -1).max(axis=0)
        open_elements = np.flatnonzero(~(worst <= settings.gap)).astype(np.intp)
        log.debug("treatment %s: %d of %d outputs above the gap", (tolerance, bilinear), len(open_elements), len(lower))
        if not len(open_elements) or time.time() >= deadline:
            break
    report.fallbacks = int((~proven).sum())
    return lower, upper, report


def _count_unstable(graph: Graph, values: list[Symbolic], report: StepReport) -> None:
    """Number of gates of the loss and of relus whose sign the pre-analysis leaves open."""
    for node in graph.nodes:
        if node.op in ("step", "relu"):
            z = values[node.operands[0]]
            count = int(np.count_nonzero((z.low < 0) & (z.high > 0)))
            if node.op == "relu":
                report.unstable_relus += count
            elif node.attribute:
                report.unstable_gates += count
