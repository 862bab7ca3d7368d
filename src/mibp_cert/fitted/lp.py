"""The engine `lp`: as `dual`, and what that leaves open by linear programs and by cases.

Ranges are proven in the same way. Ends of parameters and of outputs are then those of the linear program (`fitted.linear`), where
they are closer; an output whose sign is left open is decided by cases (`fitted.branch`). Where programs do not say all of a
threat (rows that come or go, labels that change a row's weight), or rows are many, the closed form's bounds stay.

Programs are limited by iterations and cases by their number, not by seconds: runs repeat. No word of a solver is taken, so that
bounds stay `rounding-safe`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from mibp_cert.engines import Engine, EngineSettings
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.branch import never
from mibp_cert.fitted.engine import DualEngine, FittedSet
from mibp_cert.fitted.linear import Relaxation
from mibp_cert.fitted.model import FitStep
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.table import Array
from mibp_cert.sets import ThreatSet
from mibp_cert.solvers import solver_named


class LpEngine(DualEngine):
    """See the module's text."""

    name = prediction = "lp"

    @classmethod
    def check_settings(cls, settings: EngineSettings) -> None:
        super().check_settings(settings)
        solver_named("highs")

    def validating(self) -> Engine:
        return DualEngine(self.progress)

    def never(self, problem: Problem, state: FittedSet) -> Callable[[Array, float], bool]:
        return super().never(problem, state) if problem.shared else partial(never, problem, state.ranges)

    def finer(self, problem: Problem, state: FittedSet, a: Array) -> Array:
        return program_bounds(problem, state.ranges, a)

    def narrowed(self, problem: Problem, state: FittedSet, step: FitStep, threat: ThreatSet) -> FittedSet:
        return within(state, lambda a: program_bounds(problem, state.ranges, a))


def within(state: FittedSet, upper: Callable[[Array], Array]) -> FittedSet:
    """The set with its parameters between bounds of their own."""
    z, eye = state.ranges, np.eye(len(state.ranges.low))
    below, above = np.split(upper(np.concatenate([-eye, eye])), 2)
    ranges = replace(z, low=np.fmax(z.low, -below), high=np.fmin(z.high, above))
    return FittedSet.of(state.problem, ranges, state.frozen, state.exact)


def program_bounds(problem: Problem, ranges: Ranges, a: Array) -> Array:
    """Upper bounds of `a·θ` by the linear program; infinite where that is too large, or does not say all of the threat."""
    if problem.shared or not Relaxation.fits(problem.table):
        return np.full(len(a), np.inf)
    program = Relaxation(problem.table, problem.loss, ranges, problem.tau)
    return program.upper(program.of_parameters(a))
