"""HiGHS, through highspy: mixed-integer linear programs. Products keep their McCormick rows alone."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mibp_cert.solvers import base
from mibp_cert.solvers.base import Array, Bound, Capability, Limits, Objective, Solver, Status
from mibp_cert.solvers.program import Program


class Highs(Solver):
    """Linear and mixed-integer linear programs."""

    name = "highs"
    capabilities = frozenset({Capability.INTEGER})

    module = "highspy"
    missing = "HiGHS is not installed; run 'pip install highspy' or choose --solver scip."

    def run(self, program: Program, objectives: Sequence[Objective], limits: Limits) -> list[Bound]:
        import highspy

        solver = highspy.Highs()
        options = {
            "output_flag": False,
            "threads": 1,
            "primal_feasibility_tolerance": base.FEASIBILITY,
            "mip_feasibility_tolerance": base.FEASIBILITY,
            "dual_feasibility_tolerance": base.OPTIMALITY,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": max(limits.gap, 1e-9),
            **({} if limits.nodes is None else {"mip_max_nodes": limits.nodes}),
        }
        for name, value in options.items():
            solver.setOptionValue(name, value)
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
    kinds, info = highspy.HighsModelStatus, solver.getInfo()
    known = {kinds.kOptimal: Status.OPTIMAL, kinds.kInfeasible: Status.INFEASIBLE}
    known |= {kinds.kTimeLimit: Status.LIMIT, kinds.kSolutionLimit: Status.LIMIT}
    status, mixed = known.get(solver.getModelStatus(), Status.FAILED), bool(program.integer.any())
    nodes = max(int(info.mip_node_count), 0) if mixed else 0
    value = float(info.objective_function_value)
    # A linear program that was stopped early has proven nothing; a mixed-integer one has its dual bound.
    proven = float(info.mip_dual_bound) if mixed else value if status is Status.OPTIMAL else math.nan
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Bound(proven, None, None, status, nodes, seconds)
    return Bound(proven, value, np.array(solver.getSolution().col_value), status, nodes, seconds)


def multipliers(program: Program, objectives: Sequence[Objective], iterations: int) -> list[tuple[Array, Array | None]]:
    """For every objective multipliers of a linear program's rows, and a ray of them where the solver calls the program
    infeasible: proposals, which the caller evaluates. Each is where so many simplex iterations led, from the last one on."""
    import highspy

    solver, found = highspy.Highs(), []
    for name, given in {"output_flag": False, "threads": 1, "simplex_iteration_limit": iterations}.items():
        solver.setOptionValue(name, given)
    solver.passModel(_model(highspy, program))
    columns = np.arange(program.variables, dtype=np.int32)
    for objective in objectives:
        sense = highspy.ObjSense.kMaximize if objective.maximise else highspy.ObjSense.kMinimize
        solver.changeObjectiveSense(sense)
        solver.changeColsCost(program.variables, columns, np.ascontiguousarray(objective.coefficients))
        solver.run()
        ray = None
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            _, there, values = solver.getDualRay()
            if not there:  # found by presolve, which knows no ray
                solver.setOptionValue("presolve", "off")
                solver.run()
                _, there, values = solver.getDualRay()
            ray = np.array(values) if there else None
        y = np.array(solver.getSolution().row_dual)
        found.append((y if len(y) == program.rows else np.zeros(program.rows), ray))
        if ray is not None:
            break  # infeasible, whatever is asked
    return found
