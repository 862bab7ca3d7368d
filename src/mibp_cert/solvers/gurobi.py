"""Gurobi, through gurobipy: an extra, used when asked for. The licence that comes with pip solves small programs only."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mibp_cert.errors import SolverUnavailable
from mibp_cert.solvers import base
from mibp_cert.solvers.base import Bound, Capability, Limits, Objective, Solver, Status
from mibp_cert.solvers.program import Program

_SIZE_LIMITED = 10010


class Gurobi(Solver):
    """Mixed-integer programs with native bilinear constraints."""

    name = "gurobi"
    capabilities = frozenset({Capability.INTEGER, Capability.BILINEAR})

    module = "gurobipy"
    missing = "Gurobi is not installed; run 'pip install mibp-cert[gurobi]' or choose --solver scip, which is free."

    def run(self, program: Program, objectives: Sequence[Objective], limits: Limits) -> list[Bound]:
        import gurobipy

        try:
            with gurobipy.Env(params={"OutputFlag": 0}) as environment, gurobipy.Model(env=environment) as model:
                variables = _build(gurobipy, model, program)
                return [_bound(gurobipy, model, variables, objective, limits) for objective in objectives]
        except gurobipy.GurobiError as error:
            # Gurobi's own exceptions need its library to be unpickled; only the sentence leaves this process.
            if error.errno == _SIZE_LIMITED:
                raise SolverUnavailable(
                    f"Gurobi refuses a program of {program.variables} variables and {program.rows} rows: it is too large "
                    "for the licence at hand; install a full licence or choose --solver scip, which has no such limit."
                ) from None
            raise SolverUnavailable(f"Gurobi cannot be used here: {error}; choose --solver scip.") from None


def _build(gurobipy: Any, model: Any, program: Program) -> Any:
    # Small programs only need exactness; the gap is absolute (objectives are scaled to a radius of one).
    model.Params.Threads, model.Params.Seed, model.Params.MIPGap, model.Params.NonConvex = 1, 0, 0.0, 2
    model.Params.FeasibilityTol = model.Params.IntFeasTol = base.FEASIBILITY
    model.Params.OptimalityTol = base.OPTIMALITY
    kind = np.where(program.integer, gurobipy.GRB.INTEGER, gurobipy.GRB.CONTINUOUS)
    variables = model.addMVar(program.variables, lb=program.lower, ub=program.upper, vtype=kind)
    for end, sense in ((program.row_lower, ">"), (program.row_upper, "<")):
        kept = np.flatnonzero(np.isfinite(end))
        if len(kept):
            model.addMConstr(program.matrix[kept], variables, sense, end[kept])
    for q, a, b in program.triples.tolist():
        model.addConstr(variables[q] == variables[a] * variables[b])
    return variables


def _bound(gurobipy: Any, model: Any, variables: Any, objective: Objective, limits: Limits) -> Bound:
    grb = gurobipy.GRB
    model.setObjective(objective.coefficients @ variables, grb.MAXIMIZE if objective.maximise else grb.MINIMIZE)
    model.Params.MIPGapAbs = limits.gap
    model.Params.TimeLimit = min(limits.seconds, 1e9)
    model.Params.NodeLimit = math.inf if limits.nodes is None else limits.nodes
    model.reset()
    start = time.perf_counter()
    model.optimize()
    seconds = time.perf_counter() - start
    nodes, known = int(model.NodeCount), {grb.OPTIMAL: Status.OPTIMAL}
    known |= dict.fromkeys((grb.TIME_LIMIT, grb.NODE_LIMIT, grb.INTERRUPTED), Status.LIMIT)
    known |= dict.fromkeys((grb.INFEASIBLE, grb.INF_OR_UNBD), Status.INFEASIBLE)
    status = known.get(model.Status, Status.FAILED)
    if status not in (Status.OPTIMAL, Status.LIMIT):  # there is no value to be asked for
        return Bound(math.nan, None, None, status, nodes, seconds)
    value, solution = (float(model.ObjVal), np.asarray(variables.X)) if model.SolCount > 0 else (None, None)
    # An optimal linear program has no separate dual bound; one stopped early has proven nothing.
    mixed, solved = bool(model.IsMIP or model.IsQCP), status is Status.OPTIMAL
    proven = float(model.ObjBound if mixed else model.ObjVal if solved else math.nan)
    return Bound(proven, value, solution, status, nodes, seconds)
