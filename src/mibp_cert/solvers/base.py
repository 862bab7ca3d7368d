"""What a solver adapter offers, and what it returns."""

from __future__ import annotations

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import final

import numpy as np
from numpy.typing import NDArray

from mibp_cert.errors import SolverUnavailable
from mibp_cert.solvers.program import Program

Array = NDArray[np.float64]


FEASIBILITY = 1e-6
"""How far a solver's point may break a row, a variable's bounds or a variable's integrality: every adapter sets it, and what is
proven over a program is moved outward by it."""
INFINITE = 1e20
"""What solvers call infinite: a "bound" as large as this proves nothing (objectives are scaled to a radius of one)."""


OPTIMALITY = 1e-9
"""How far reduced costs may have the wrong sign: `n` variables of deviations in [−1, 1] then change a bound by at most `2n` times
that, far below `FEASIBILITY` for the sizes that are solved here; every adapter sets it."""


class Capability(Enum):
    """What a solver can handle beyond linear programs."""

    INTEGER = "integer variables"
    BILINEAR = "bilinear terms"


class Status(Enum):
    """How a solve ended; whatever it was, `proven` is a valid bound."""

    OPTIMAL = "solved to the gap asked for"
    LIMIT = "stopped at a node or time limit; the proven bound is looser but sound"
    INFEASIBLE = "the solver found no feasible point, which cannot be; the bound of the pre-analysis is kept"
    FAILED = "the solver failed or its process died; the bound of the pre-analysis is kept"


@dataclass(frozen=True, eq=False)
class Objective:
    """`maximise` or minimise `coefficients · v` over the variables of a program."""

    coefficients: Array
    maximise: bool


@dataclass(frozen=True)
class Limits:
    """Per program: wall-clock seconds, branch-and-bound nodes, and the absolute gap at which to stop."""

    seconds: float = math.inf
    nodes: int | None = None
    gap: float = 0.0


@dataclass(frozen=True, eq=False)
class Bound:
    """`proven` bounds the optimum from outside (−∞/+∞ if nothing is proven); `incumbent` is a value found, or None."""

    proven: float
    incumbent: float | None
    solution: Array | None
    status: Status
    nodes: int
    seconds: float

    def checked(self, objective: Objective) -> Bound:
        """The bound, which claims nothing where the solver failed, or where what it proved is NaN or infinite."""
        nothing = math.inf if objective.maximise else -math.inf
        if self.status not in (Status.OPTIMAL, Status.LIMIT):
            return Bound(nothing, None, None, self.status, self.nodes, self.seconds)
        return self if abs(self.proven) < INFINITE else replace(self, proven=nothing)


class Solver(ABC):
    """An adapter. `solve` returns one `Bound` per objective, in order, over the same feasible set."""

    name: str
    capabilities: frozenset[Capability]
    module: str
    """The Python module that it needs."""
    missing: str
    """What to do where there is no such module."""

    def check_available(self) -> None:
        """Raise `SolverUnavailable` with a way out if the solver cannot be used here."""
        if importlib.util.find_spec(self.module) is None:
            raise SolverUnavailable(self.missing)

    @abstractmethod
    def run(self, program: Program, objectives: Sequence[Objective], limits: Limits) -> list[Bound]:
        """Bound each objective over a program that has nothing but what the capabilities name, with `FEASIBILITY` and
        `OPTIMALITY` as the solver's tolerances."""

    @final
    def solve(self, program: Program, objectives: Sequence[Objective], limits: Limits) -> list[Bound]:
        """Bound each objective over the program; integrality and products that the solver cannot take are dropped, which only
        enlarges the feasible set. A solve that came to no end, or whose proven bound is NaN or infinite, claims nothing."""
        integer, bilinear = (self.supports(one) for one in (Capability.INTEGER, Capability.BILINEAR))
        bounds = self.run(program.relaxed(integer=integer, bilinear=bilinear), objectives, limits)
        return [bound.checked(objective) for bound, objective in zip(bounds, objectives, strict=True)]

    def supports(self, capability: Capability) -> bool:
        return capability in self.capabilities
