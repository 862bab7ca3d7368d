"""Tier 3, the engine `mibp` for fitted models: stationarity as a mixed-integer bilinear program.

Over the exact view of the threat (`sets`: labels, categories, answers that are missing and rows under a budget are binaries),
with variables for parameters, scores and `ψ` in their proven ranges,

    α∘θ + Σ_i w_i ψ_i x_i = tilt,   |tilt_j| ≤ τ_j;      s_i = x_i·θ;      products `x_ij θ_j` and `x_ij ψ_i` of cells in doubt,

`ψ_i + y_i` lies between lines above and below `h`, `ψ = h(s) − y`, on each of a few pieces of the range of `s_i`; a binary says
which piece it is. A product is a variable `p = ab` of deviations in [−1, 1], with McCormick's rows for solvers that know no
products. Every fit on a dataset of the threat is a point of this program, so that what a solver *proves* of `a·θ` over it holds
for all fits, as far as the solver's tolerances do.

It starts from what the engine `lp` knows, and bounds what that leaves open. It is for small tables: the reference that other
bounds are measured against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from mibp_cert.engines import EngineSettings, ParameterSet, Progress, SolverSettings, StepReport
from mibp_cert.errors import UserError
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.deviation import SLIP, Cells, Deviation, add
from mibp_cert.fitted.engine import DualEngine, FittedSet
from mibp_cert.fitted.linear import changes_weights
from mibp_cert.fitted.losses import ScoreLoss
from mibp_cert.fitted.lp import LpEngine, within
from mibp_cert.fitted.model import FitStep
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.table import Array, Index
from mibp_cert.nets import Step
from mibp_cert.parallel import WorkerPool, split
from mibp_cert.sets import ThreatSet
from mibp_cert.solvers import FEASIBILITY, Affine, Capability, Limits, Objective, Program, ProgramBuilder, solver_named
from mibp_cert.solvers.program import FREE

PIECES = 3
"""Pieces of a score's range."""
NARROW = 0.05
"""Ranges of scores that are narrower are one piece."""
NODES = 2_000
"""Of branch and bound for one end, unless the settings say otherwise."""
MOST_CELLS = 2_000
"""Doubtful cells that a program may have."""


@dataclass(frozen=True, eq=False)
class Exact:
    """The program of a fit, and its parameters as expressions `middle + radius·v`."""

    program: Program
    theta: Index
    middle: Array
    radius: Array


@final
class FitMibpEngine(LpEngine):
    """See the module's text."""

    name = prediction = "mibp"
    soundness = "solver-tolerance"
    solves = True

    def __init__(self, progress: Progress | None = None, settings: SolverSettings | None = None) -> None:
        super().__init__(progress, settings)
        self.pool = WorkerPool(self.settings.jobs, self.settings.parallel)

    @classmethod
    def check_settings(cls, settings: EngineSettings) -> None:
        super().check_settings(settings)
        solver_named(settings.solver.solver)

    def close(self) -> None:
        super().close()
        self.pool.close()

    def advance(self, state: ParameterSet, step: Step, threat: ThreatSet) -> tuple[ParameterSet, StepReport]:
        if isinstance(step, FitStep):
            self._check(step, threat)
        return super().advance(state, step, threat)

    def _check(self, step: FitStep, threat: ThreatSet) -> None:
        """Refuse what the program cannot say, before anything is proven."""
        hull = threat.hull()
        unknown = {
            "frozen features in front of a model": step.model.features is not None,
            "rows that come or go": threat.clean.there is not None,
            f"targets in doubt for the loss {step.loss.name!r}": not step.loss.label_shift
            and bool((hull.y_low < hull.y_high).any()),
        }
        for what in (what for what, there in unknown.items() if there):
            raise UserError(f"The engine 'mibp' knows no {what}; choose 'dual' or 'lp'.")
        if threat.bilinear and not self._bilinear:
            raise UserError(
                f"The threat multiplies unknowns, which the solver '{self.settings.solver}' cannot do; choose scip or gurobi, or "
                "the engine 'lp'."
            )
        cells = int((hull.x_low < hull.x_high).sum())
        if cells > MOST_CELLS:
            raise UserError(
                f"{cells} doubtful cells are too many for the engine 'mibp' and a fitted model: use fewer rows, or the engine "
                "'lp'."
            )

    @property
    def _bilinear(self) -> bool:
        return solver_named(self.settings.solver).supports(Capability.BILINEAR)

    def never(self, problem: Problem, state: FittedSet) -> Callable[[Array, float], bool]:
        # Cases go along paths of datasets (`fitted.branch`): the solver's ranges hold for the ends of these, not between.
        closed = DualEngine.never(self, problem, state)
        return lambda a, v: closed(a, v) or bool(self._solved(state.exact, a[None])[0] < v)

    def finer(self, problem: Problem, state: FittedSet, a: Array) -> Array:
        return np.fmin(super().finer(problem, state, a), self._solved(state.exact, a))

    def narrowed(self, problem: Problem, state: FittedSet, step: FitStep, threat: ThreatSet) -> FittedSet:
        known = self._encoded(super().narrowed(problem, state, step, threat), step, threat)
        return self._encoded(within(known, lambda a: self._solved(known.exact, a)), step, threat)

    def restore(self, arrays: Mapping[str, Array], threat: ThreatSet, step: Step) -> ParameterSet:
        state = super().restore(arrays, threat, step)
        assert isinstance(state, FittedSet)
        assert isinstance(step, FitStep)
        return self._encoded(state, step, threat)

    def _encoded(self, state: FittedSet, step: FitStep, threat: ThreatSet) -> FittedSet:
        """The set with the program in its ranges; where all members were fitted none is needed."""
        if not isinstance(state.problem, Problem):
            return state
        return replace(state, exact=encode(state.problem, state.ranges, step, threat, bilinear=self._bilinear))

    def _solved(self, exact: Any, a: Array) -> Array:
        """Upper bounds of `a·θ` that the solver proves; infinite where it proves none."""
        assert isinstance(exact, Exact)
        found = np.full(len(a), np.inf)
        groups = split(list(range(len(a))), self.pool.jobs)
        for k, value in self.pool.map(_solve, (exact, a, self.settings), groups):
            found[k] = np.inf if value is None else value
        return found


def _solve(shared: tuple[Exact, Array, SolverSettings], queries: list[int]) -> list[float]:
    """Runs in a worker process: proven upper bounds of some queries."""
    exact, a, settings = shared
    limits = Limits(settings.seconds_per_program, settings.nodes_per_program or NODES, 0.25 * settings.gap)
    objectives, scales = [], []
    for k in queries:
        c = np.zeros(exact.program.variables)
        c[exact.theta] = a[k] * exact.radius
        scales.append(float(np.abs(c).sum()) or 1.0)
        objectives.append(Objective(c / scales[-1], maximise=True))
    found = []
    for k, scale, bound in zip(
        queries, scales, solver_named(settings.solver).solve(exact.program, objectives, limits), strict=True
    ):
        base = float(a[k] @ exact.middle)
        slip = FEASIBILITY * scale + 1e-12 * (float(np.abs(a[k]) @ np.abs(exact.middle)) + scale)
        found.append(base + scale * bound.proven + slip if math.isfinite(bound.proven) else math.inf)
    return found


def encode(problem: Problem, ranges: Ranges, step: FitStep, threat: ThreatSet, *, bilinear: bool) -> Exact:
    """The program; see the module's text."""
    if problem.shared:
        raise UserError("So many rows are too many for the engine 'mibp' and a fitted model; choose 'dual' or 'lp'.")
    builder, table = ProgramBuilder(bilinear=bilinear), problem.table
    n, d, p = len(table.rows), step.head.inputs, len(problem.c)
    counting = np.flatnonzero(step.counts(threat.reference[1]) > 0).astype(np.intp)  # the rows of the table
    x, y = threat.constraints(builder, counting)
    s_low, s_high = hull_of_scores(problem, ranges)
    target = y[np.arange(n) * (y.linear.shape[0] // n) + step.column]
    y_low, y_high = target.range(builder)
    zero, loss = np.zeros(n), problem.loss
    ends = (y_low, y_high) if loss.label_shift else (target.centre, target.centre)
    psi_ends = loss.psi(ends[1], s_low), loss.psi(ends[0], s_high)
    slip = 1e-12 * (1.0 + np.abs(psi_ends[0]) + np.abs(psi_ends[1]))
    theta = Deviation.of(builder, ranges.low, ranges.high)
    s = Deviation.of(builder, s_low, s_high)
    psi = Deviation.of(builder, psi_ends[0] - slip, psi_ends[1] + slip)
    cells = Cells.of(builder, x, n, d)
    with_theta = cells.times(builder, theta, cells.columns)
    with_psi = cells.times(builder, psi, cells.rows)
    known = cells.known(x, n, d, p)
    score = [s.part(np.arange(n), np.ones(n), n), theta.dense(-known), with_theta.part(cells.rows, -1.0, n)]
    add(builder, score, -SLIP, SLIP)
    w = table.rows.w
    gradient = [theta.part(np.arange(p), table.alpha, p), psi.dense((known * w[:, None]).T)]
    gradient.append(with_psi.part(cells.columns, w[cells.rows], p))
    add(builder, gradient, -problem.tau - SLIP, problem.tau + SLIP)
    # `ψ + y = h(s)` where the target moves nothing else; else the target is certain.
    whole = [psi.part(np.arange(n), np.ones(n), n)]
    if loss.label_shift:
        whole.append(target)
    _lines(builder, loss, whole, s, (s_low, s_high), zero if loss.label_shift else ends[0])
    return Exact(builder.finish(), theta.variables, theta.middle, theta.radius)


def hull_of_scores(problem: Problem, ranges: Ranges) -> tuple[Array, Array]:
    """Ranges of the scores of rows as they are, whichever budget replaces them."""
    low, high = np.array(ranges.s_low), np.array(ranges.s_high)
    for budget, ends in zip(problem.table.budgets, ranges.by, strict=True):
        if changes_weights(problem.table, budget):
            raise UserError("The engine 'mibp' knows no labels that change a row's weight; choose 'dual' or 'lp'.")
        np.minimum.at(low, budget.rows, ends[0])
        np.maximum.at(high, budget.rows, ends[1])
    return low, high


def _lines(
    builder: ProgramBuilder, loss: ScoreLoss, whole: list[Affine], s: Deviation, ends: tuple[Array, Array], y: Array
) -> None:
    """`whole` between lines around `ψ(y, s)`: on the whole range, and on each of its pieces."""
    low, high = ends
    for kappa in slopes(loss, y, low, high):
        line = s.part(np.arange(len(y)), -kappa, len(y))
        add(builder, [*whole, line], loss.lowest(y, low, high, kappa), loss.highest(y, low, high, kappa))
    if not (loss.curved or np.isfinite(loss.bend(y)).any() or loss.name == "squared-hinge"):
        return  # a line itself
    wide = np.flatnonzero(high - low > NARROW)
    rows, low, high, y = np.arange(len(wide)), low[wide], high[wide], y[wide]
    cuts = [low + (high - low) * k / PIECES for k in range(PIECES + 1)]
    on = [builder.add_variables(len(wide), 0.0, 1.0, integer=True) for _ in range(PIECES)]
    builder.add_rows(sum(builder.matrix(rows, b, 1.0) for b in on), 1.0, 1.0, FREE)
    score = Deviation(s.variables[wide], s.middle[wide], s.radius[wide])
    for limits, side in ((cuts[:-1], 1.0), (cuts[1:], -1.0)):  # the score is not below its piece, nor above it
        which = sum(builder.matrix(rows, b, -side * cut) for b, cut in zip(on, limits, strict=True))
        add(builder, [score.part(rows, side, len(wide)), _of(which)], -SLIP, np.inf)
    inside = [part[wide] for part in whole]
    for b, left, right in zip(on, cuts[:-1], cuts[1:], strict=True):
        for kappa in slopes(loss, y, left, right):
            parts = [*inside, score.part(rows, -kappa, len(wide))]
            # On other pieces the line must hold as the one around the whole range does.
            top, most = loss.highest(y, left, right, kappa), loss.highest(y, low, high, kappa)
            add(builder, [*parts, _of(builder.matrix(rows, b, most - top))], -np.inf, most)
            bottom, least = loss.lowest(y, left, right, kappa), loss.lowest(y, low, high, kappa)
            add(builder, [*parts, _of(builder.matrix(rows, b, least - bottom))], least, np.inf)


def _of(linear: Any) -> Affine:
    """An expression without a constant."""
    return Affine(np.zeros(linear.shape[0]), linear, np.zeros(linear.shape[0]))


def slopes(loss: ScoreLoss, y: Array, low: Array, high: Array) -> list[Array]:
    """Slopes of lines around `ψ`: of the secant, and at both ends."""
    width = np.maximum(high - low, 1e-12)
    return [np.maximum(loss.psi(y, high) - loss.psi(y, low), 0.0) / width, loss.slope(y, low), loss.slope(y, high)]
