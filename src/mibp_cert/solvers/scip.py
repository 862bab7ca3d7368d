"""SCIP, through PySCIPOpt: mixed-integer programs and native bilinear constraints (spatial branch and bound)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mibp_cert.solvers import base
from mibp_cert.solvers.base import Bound, Capability, Limits, Objective, Solver, Status
from mibp_cert.solvers.program import Program

_STOPPED = ("timelimit", "nodelimit", "totalnodelimit", "stallnodelimit", "memlimit", "userinterrupt", "bestsollimit")
_STATUS = {
    "infeasible": Status.INFEASIBLE,
    **dict.fromkeys(("optimal", "gaplimit"), Status.OPTIMAL),
    **dict.fromkeys(_STOPPED, Status.LIMIT),
}


class Scip(Solver):
    """The default solver. Runs only in worker processes: some versions abort the interpreter on bilinear models."""

    name = "scip"
    capabilities = frozenset({Capability.INTEGER, Capability.BILINEAR})

    module = "pyscipopt"
    missing = "SCIP is not installed; run 'pip install pyscipopt' or choose --solver highs."

    def run(self, program: Program, objectives: Sequence[Objective], limits: Limits) -> list[Bound]:
        model, variables = _build(program)
        bounds = []
        for objective in objectives:
            bounds.append(_bound(model, variables, objective, limits))
            model.freeTransform()
        return bounds


def _build(program: Program) -> tuple[Any, list[Any]]:
    from pyscipopt import SCIP_PARAMSETTING, Model, quicksum
    from pyscipopt.scip import Expr, ExprCons, Term

    model = Model()
    model.hideOutput()
    # Ctrl-C belongs to the main process.
    model.setParam("misc/catchctrlc", False)
    model.setParam("randomization/randomseedshift", 0)
    model.setParam("parallel/maxnthreads", 1)
    model.setParam("numerics/feastol", base.FEASIBILITY)
    model.setParam("numerics/dualfeastol", base.OPTIMALITY)
    if not len(program.triples):
        # The relaxation is nearly tight at the root: branching on a few gates is cheaper than cuts (1.9 s against 13 s).
        model.setPresolve(SCIP_PARAMSETTING.FAST)
        model.setSeparating(SCIP_PARAMSETTING.OFF)
    else:
        # METIS inside Ipopt aborts the interpreter on some models: no NLP is solved at all. Incumbents are polished later.
        model.setParam("nlp/disable", True)
        for heuristic in ("subnlp", "multistart", "mpec", "nlpdiving", "undercover"):
            model.setParam(f"heuristics/{heuristic}/freq", -1)
    columns = zip(np.where(program.integer, "I", "C"), program.lower.tolist(), program.upper.tolist(), strict=True)
    variables = [model.addVar(vtype=str(kind), lb=low, ub=high) for kind, low, high in columns]
    terms = [Term(v) for v in variables]
    pointer, places, data = (a.tolist() for a in (program.matrix.indptr, program.matrix.indices, program.matrix.data))
    for row, (low, high) in enumerate(zip(program.row_lower.tolist(), program.row_upper.tolist(), strict=True)):
        span = slice(pointer[row], pointer[row + 1])
        expression = Expr({terms[c]: d for c, d in zip(places[span], data[span], strict=True)})
        below = None if low == -math.inf else low
        model.addCons(ExprCons(expression, below, None if high == math.inf and below is not None else high))
    for q, a, b in program.triples.tolist():
        model.addCons(quicksum([variables[a] * variables[b], -variables[q]]) == 0)
    return model, variables


def _bound(model: Any, variables: list[Any], objective: Objective, limits: Limits) -> Bound:
    from pyscipopt.scip import Expr, Term

    weights = objective.coefficients
    expression = Expr({Term(variables[i]): float(weights[i]) for i in np.flatnonzero(weights)})
    model.setObjective(expression, "maximize" if objective.maximise else "minimize")
    model.setParam("limits/time", min(limits.seconds, 1e20))
    model.setParam("limits/nodes", -1 if limits.nodes is None else limits.nodes)
    model.setParam("limits/absgap", limits.gap)
    start = time.perf_counter()
    model.optimize()
    seconds = time.perf_counter() - start
    status, nodes = _STATUS.get(model.getStatus(), Status.FAILED), int(model.getNTotalNodes())
    value = solution = None
    if model.getNSols() > 0:
        best = model.getBestSol()
        value, solution = float(model.getSolObjVal(best)), np.array([best[v] for v in variables])
    return Bound(model.getDualbound(), value, solution, status, nodes, seconds)
