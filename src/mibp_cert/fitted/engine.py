"""The engine `dual`: the set of all minimisers, and bounds of whatever is linear in the fitted parameters.

A fitted model is the last layer of a network, `o = φ(x) Wᵀ + b`; the layers before it are frozen. A query of any graph whose
output is affine in `θ` for given inputs, `o = o₀ + a·θ`, is read off the graph by evaluating it at `θ = 0` and at unit
vectors. Where inputs are in doubt as well and the features are the inputs themselves, the output is bilinear, `o = Σ_jk T_jk
θ_j x_k + …`, and a doubt `|d_k| ≤ r_k` adds at most `Σ_k r_k max_θ |Σ_j T_jk θ_j|`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np

from mibp_cert.engines import EngineSettings
from mibp_cert.engines.base import Engine, Inputs, Maker, ParameterSet, Progress, StepReport, Wanted
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import Diverged, UnsupportedOperation, UserError
from mibp_cert.fitted.dual import Ranges
from mibp_cert.fitted.finite import FiniteProblem, finite_problem
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.minimum import minimise, tilt
from mibp_cert.fitted.model import FitStep
from mibp_cert.fitted.ranges import Problem, prove
from mibp_cert.fitted.table import table_of
from mibp_cert.graph import Graph, evaluate
from mibp_cert.nets import Layout, Step
from mibp_cert.sets import ThreatSet

LINEAR = frozenset({"add", "scale", "contract", "sum", "gather", "reshape"})
"""Operations through which an output may depend on fitted parameters."""
LEAST = float(np.nextafter(0.0, 1.0))
"""What is proven to be positive is at least this."""
WIDEST = 1e6
"""Ranges wider than this multiple of the largest parameter (at least 1) say nothing."""
CLOSE = 0.25
"""Outputs whose lower end is further below 0, relative to their range, are left open."""


@final
@dataclass(frozen=True, eq=False)
class FittedSet(ParameterSet):
    """All minimisers: the proven ranges of fitted parameters and scores, the problem that they belong to, and what is frozen."""

    problem: Problem | FiniteProblem
    ranges: Ranges
    frozen: Array
    exact: Any = None
    """What the engine knows beside: the program of the fit, where it asks a solver."""

    @classmethod
    def of(cls, problem: Problem | FiniteProblem, ranges: Ranges, frozen: Array, exact: Any = None) -> FittedSet:
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

    @classmethod
    def of(cls, settings: EngineSettings, progress: Progress | None = None) -> Self:
        return cls()

    def advance(self, state: ParameterSet, step: Step, threat: ThreatSet) -> tuple[ParameterSet, StepReport]:
        if not isinstance(step, FitStep):
            raise UserError(
                f"The engine '{self.name}' bounds fitted models; choose another engine for a training in steps."
            )
        start = time.perf_counter()
        frozen = state.lower[: step.layout.size - step.fitted]
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite proves nothing
            problem = problem_of(step, threat, frozen)
            ranges = problem.ranges() if isinstance(problem, FiniteProblem) else prove(problem)
        if ranges is None or ranges.radius.max() > WIDEST * max(1.0, np.abs(problem.c).max()):
            raise Diverged(_UNPROVEN)
        found = FittedSet.of(problem, ranges, frozen)
        if isinstance(problem, Problem):
            found = self.narrowed(problem, found, step, threat)
        return found, StepReport(seconds=time.perf_counter() - start)

    def never(self, problem: Problem, state: FittedSet, a: Array, v: float) -> bool:
        """Is `a·θ < v` for every minimiser? True is proven; the closed form left it open."""
        return problem.small and not problem.reaches(state.ranges, a, v)

    def finer(self, problem: Problem, state: FittedSet, a: Array) -> Array:
        """Upper bounds of `a·θ` beside those of the closed form."""
        return np.full(len(a), np.inf)

    def narrowed(self, problem: Problem, state: FittedSet, step: FitStep, threat: ThreatSet) -> FittedSet:
        """The set with smaller ranges, from proven ones."""
        return state

    def restore(self, arrays: Mapping[str, Array], threat: ThreatSet) -> ParameterSet:
        raise UserError("Fitted models are not kept in run directories yet.")

    def bound(
        self, make: Maker, layout: Layout, state: ParameterSet, inputs: Inputs, wanted: Wanted | None = None
    ) -> tuple[Interval, StepReport]:
        assert isinstance(state, FittedSet)
        start = time.perf_counter()
        graph = make(len(inputs.x))
        offset, a = linear_in_parameters(graph, layout, inputs.x, state.frozen)
        problem, z = state.problem, state.ranges
        flat, base = a.reshape(-1, a.shape[-1]), offset.ravel()
        asked = np.ones(len(flat), dtype=bool)
        if wanted is not None and wanted.elements is not None:
            asked = wanted.elements.ravel()
        # Features are evaluated with a few roundings, which grow with their arguments.
        far = 1.0 + np.abs(inputs.x).max(initial=0.0) * np.abs(state.frozen).max(initial=0.0) * inputs.x.shape[1]
        extra = 64.0 * far * (a.shape[-1] + 4) * EPS * (np.abs(flat) @ z.reach + np.abs(base))
        if inputs.members is not None:
            extra = extra + moved_by_inputs(make, layout, inputs, state).ravel()
        low, high = np.full(len(flat), -np.inf), np.full(len(flat), np.inf)
        low[asked] = base[asked] - problem.upper(z, -flat[asked]) - extra[asked]
        high[asked] = base[asked] + problem.upper(z, flat[asked]) + extra[asked]
        if wanted is not None and wanted.enough is not None and wanted.enough(np.array([LEAST])).all():
            # Open: could the output be 0 or less? Assume so, and look for a contradiction.
            near = asked & ~(low > 0) & (base + flat @ problem.c > 0) & (low > -CLOSE * (high - low))
            for i in np.flatnonzero(near):
                if isinstance(problem, Problem) and self.never(problem, state, -flat[i], float(base[i] - extra[i])):
                    low[i] = LEAST
        elif isinstance(problem, Problem):
            sides = np.concatenate([-flat[asked], flat[asked]])
            below, above = np.split(self.finer(problem, state, sides), 2)
            low[asked] = np.fmax(low[asked], base[asked] - below - extra[asked])
            high[asked] = np.fmin(high[asked], base[asked] + above + extra[asked])
        ends = Interval(low.reshape(offset.shape), high.reshape(offset.shape))
        return ends, StepReport(seconds=time.perf_counter() - start)


def problem_of(step: FitStep, threat: ThreatSet, frozen: Array) -> Problem | FiniteProblem:
    """Every minimiser where a threat has few members; else the table behind the threat set, and the reference's minimiser."""
    return finite_problem(step, threat, frozen) or table_problem(step, threat, frozen)


def table_problem(step: FitStep, threat: ThreatSet, frozen: Array) -> Problem:
    """The table behind a threat set, the minimiser of its reference, and that one's tilt."""
    x, y = threat.reference
    alpha, weights, features = step.model.alpha(step.head.inputs), np.ones(len(x)), step.model.features
    if features is None:
        table = table_of(threat.noise(), step.column, weights, alpha)
    else:
        raw = table_of(threat.noise(), step.column, weights, np.zeros(x.shape[1]))
        table = features.through(raw).with_penalties(alpha)
    design = step.design(np.append(frozen, np.zeros(step.fitted)), x)
    c = minimise(design, y[:, step.column], weights, alpha, step.loss)
    return Problem(table, step.loss, c, tilt(design, y[:, step.column], weights, alpha, step.loss, c), design @ c)


def linear_in_parameters(graph: Graph, layout: Layout, x: Array, frozen: Array) -> tuple[Array, Array]:
    """`o₀` and `a` with `o = o₀ + a·θ`, for every output and the parameters behind the frozen ones; refuses graphs whose output
    is not affine in these."""
    fitted = layout.size - len(frozen)
    names = [n for n, start in zip(layout.names, layout.offsets, strict=False) if start >= len(frozen)]
    check_linear(graph, [graph.inputs[name] for name in names if name in graph.inputs], "fitted parameters")
    points = np.concatenate([np.zeros((1, fitted)), np.eye(fitted)])
    points = np.concatenate([np.broadcast_to(frozen, (len(points), len(frozen))), points], axis=1)
    tiled = np.broadcast_to(x, (len(points), *x.shape))
    (values,) = evaluate(graph, {**layout.unflatten(points), "x": tiled}).values()
    return values[0], np.moveaxis(values[1:] - values[0], 0, -1)


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
    _, a = linear_in_parameters(graph, layout, probes, state.frozen)
    t = a[1:] - a[:1]  # features × outputs × parameters
    reach = np.abs(t @ z.middle) + np.abs(t) @ z.radius
    return np.asarray(radius @ reach * (1.0 + 16.0 * EPS * (d + layout.size)))


_UNPROVEN = (
    "The doubt is too large for this model: no ranges of its parameters could be proven. Use a smaller C, a smaller eps, or "
    "doubt fewer rows and columns."
)
