"""HiGHS, through highspy: mixed-integer linear programs. Products keep their McCormick rows alone."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mibp_cert.errors import SolverUnavailable
from mibp_cert.solvers.base import FEASIBILITY, Bound, Capability, Limits, Objective, Solver, Status, failed
from mibp_cert.solvers.program import Program


class Highs(Solver):
    """Linear and mixed-integer linear programs."""

    name = "highs"
    capabilities = frozenset({Capability.INTEGER})

    def check_available(self) -> None:
        if importlib.util.find_spec("highspy") is None:
            raise SolverUnavailable("HiGHS is not installed; run 'pip install highspy' or choose --solver scip.")

    def run(self, program: Program, objectives: Sequence[Objective], limits: Limits) -> list[Bound]:
        import highspy

        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        for name in ("primal_feasibility_tolerance", "mip_feasibility_tolerance"):
            solver.setOptionValue(name, FEASIBILITY)
        solver.setOptionValue("mip_rel_gap", 0.0)
        solver.setOptionValue("mip_abs_gap", max(limits.gap, 1e-9))
        if limits.nodes is not None:
            solver.setOptionValue("mip_max_nodes", limits.nodes)
        solver.passModel(_model(highspy, program))
        return [_bound(highspy, solver, program, objective, limits) for objective in objectives]


def _model(highspy: Any, program: Program) -> Any:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = program.variables, program.rows
    lp.col_cost_ = np.zeros(program.variables)
    lp.col_lower_, lp.col_upper_ = program.lower, program.upper
    lp.row_lower_, lp.row_upper_ = program.row_lower, program.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = program.matrix.indptr
    lp.a_matrix_.index_ = program.matrix.indices
    lp.a_matrix_.value_ = program.matrix.data
    if program.integer.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(flag)] for flag in program.integer]
    return lp


def _bound(highspy: Any, solver: Any, program: Program, objective: Objective, limits: Limits) -> Bound:
    sense = highspy.ObjSense.kMaximize if objective.maximise else highspy.ObjSense.kMinimize
    solver.changeObjectiveSense(sense)
    columns = np.arange(program.variables, dtype=np.int32)
    solver.changeColsCost(program.variables, columns, np.ascontiguousarray(objective.coefficients))
    start = time.perf_counter()
    # HiGHS counts the time of earlier solves with the same instance.
    solver.setOptionValue("time_limit", min(solver.getRunTime() + limits.seconds, 1e9))
    solver.run()
    seconds = time.perf_counter() - start
    status, info = solver.getModelStatus(), solver.getInfo()
    mixed = bool(program.integer.any())
    nodes = max(int(info.mip_node_count), 0) if mixed else 0
    optimal = status == highspy.HighsModelStatus.kOptimal
    stopped = status in (highspy.HighsModelStatus.kTimeLimit, highspy.HighsModelStatus.kSolutionLimit)
    if not (optimal or stopped):
        infeasible = status == highspy.HighsModelStatus.kInfeasible
        return failed(objective, Status.INFEASIBLE if infeasible else Status.FAILED, seconds, nodes)
    # A linear program that was stopped early has proven nothing; a mixed-integer one has its dual bound.
    proven = float(info.mip_dual_bound if mixed else info.objective_function_value if optimal else math.nan)
    if not math.isfinite(proven):
        proven = math.inf if objective.maximise else -math.inf
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    solution = np.array(solver.getSolution().col_value) if found else None
    incumbent = float(info.objective_function_value) if found else None
    return Bound(proven, incumbent, solution, Status.OPTIMAL if optimal else Status.LIMIT, nodes, seconds)
