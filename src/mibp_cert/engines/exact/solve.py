"""Exact bounds of graph outputs: encode once, then minimise and maximise each output over the program, in parallel.

For an output `c + g·v ± s` the two objectives are `min g·v` and `max g·v` over the part of the program that `g` reaches,
scaled so that `Σ|g| = 1`. What is kept is the solver's *proven* bound, moved outward by the solver's feasibility tolerance
and the slack, and intersected with the pre-analysis. The solver's best point is evaluated through the `concrete` graph: that true
value brackets the optimum from inside, and `outer − inner` is the honest gap.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from mibp_cert.engines.base import SolverSettings
from mibp_cert.engines.exact.encode import Encoder, Symbolic
from mibp_cert.engines.exact.polish import Point, polish
from mibp_cert.engines.rounding import Array
from mibp_cert.graph import Graph
from mibp_cert.parallel import WorkerPool, split
from mibp_cert.solvers import FEASIBILITY, Bound, Limits, Objective, Program, Status, failed, solver_named
from mibp_cert.solvers.program import Affine, Index, with_columns

Declare = Callable[[Encoder], dict[str, Symbolic]]
"""Introduces the inputs of a graph."""


@dataclass(frozen=True, eq=False)
class End:
    """One end of one output: the bound proven from outside, the true value reached inside, and what it took."""

    outer: float
    inner: float | None
    status: Status
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
        low, high = (End(float(ends[element]), None, Status.FAILED, 0, False) for ends in (self.low, self.high))
        return low, high


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
        inner = None
        if bound.solution is not None:
            inner = _true_value(task, element, numbers, bound.solution, objective.maximise, outer)
        ends.append(End(outer, inner, bound.status, bound.nodes, usable))
    return ends[0], ends[1] if task.both else End(float(task.high[element]), None, Status.OPTIMAL, 0, True)


def _solve(task: Task, program: Program, objectives: list[Objective]) -> list[Bound]:
    settings = task.settings
    if program.rows == 0 and len(program.triples) == 0:
        return [_closed_form(program, objective) for objective in objectives]
    seconds = min(settings.seconds_per_program, (task.deadline - time.time()) / len(objectives))
    if seconds <= 0.0 or settings.nodes_per_program == 0:
        return [failed(objective, Status.LIMIT, 0.0) for objective in objectives]
    limits = Limits(seconds, settings.nodes_per_program, 0.25 * settings.gap)
    return solver_named(settings.solver).solve(program, objectives, limits)


def _closed_form(program: Program, objective: Objective) -> Bound:
    """A linear objective over a box: each variable at the end that its coefficient asks for."""
    at_upper = (objective.coefficients > 0) == objective.maximise
    solution = np.where(at_upper, program.upper, program.lower)
    value = float(objective.coefficients @ solution)
    return Bound(value, value, solution, Status.OPTIMAL, 0, 0.0)


def _true_value(
    task: Task, element: int, numbers: Index, solution: Array, maximise: bool, outer: float
) -> float | None:
    """A true value of the output near the solver's point, by ordinary evaluation of the graph."""
    program = task.program
    v = 0.5 * (program.lower + program.upper)
    v[numbers] = np.clip(solution, program.lower[numbers], program.upper[numbers])
    reached = np.zeros(program.variables, dtype=bool)
    reached[numbers] = True
    point = Point(task.graph, element, task.inputs, program, program.free_rows(reached))
    gates = {node: (np.where((g >= 0) & reached[g], g, -1), radius) for node, (g, radius) in task.gates.items()}
    radius = max(0.5 * float(task.high[element] - task.low[element]), task.settings.floor)
    target = outer + (-0.5 if maximise else 0.5) * task.settings.gap * radius
    best = polish(point, v, maximise, gates, target)
    return best if math.isfinite(best) else None
