"""Solver-neutral programs, and the adapters that solve them."""

from mibp_cert.errors import SolverUnavailable
from mibp_cert.solvers.base import FEASIBILITY, Bound, Capability, Limits, Objective, Solver, Status
from mibp_cert.solvers.gurobi import Gurobi
from mibp_cert.solvers.highs import Highs
from mibp_cert.solvers.program import Affine, Program, ProgramBuilder
from mibp_cert.solvers.scip import Scip

SOLVERS: dict[str, type[Solver]] = {"scip": Scip, "highs": Highs, "gurobi": Gurobi}


def solver_named(name: str) -> Solver:
    """The adapter called `name`, checked to be usable here."""
    if name not in SOLVERS:
        raise SolverUnavailable(f"There is no solver called {name!r}; choose one of {', '.join(SOLVERS)}.")
    solver = SOLVERS[name]()
    solver.check_available()
    return solver
