"""One contract for all solver adapters: proven bounds, never incumbents, whatever the status."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from mibp_cert.errors import SolverUnavailable
from mibp_cert.solvers import (
    SOLVERS,
    Capability,
    Limits,
    Objective,
    Program,
    ProgramBuilder,
    Solver,
    Status,
    solver_named,
)

NAMES = list(SOLVERS)
UNLIMITED = Limits()


@pytest.fixture(params=NAMES)
def solver(request: pytest.FixtureRequest) -> Solver:
    if importlib.util.find_spec(SOLVERS[request.param].module) is None:
        pytest.skip(f"{request.param} is not installed")
    return solver_named(request.param)


def _program(matrix: Any, low: Any, high: Any, integer: Any, triples: Any = ()) -> Program:
    n = np.shape(matrix)[1]
    return Program(
        np.where(integer, 0.0, -1.0),
        np.ones(n),
        np.asarray(integer, dtype=bool),
        sparse.csr_matrix(np.asarray(matrix, dtype=float)),
        np.asarray(low, dtype=float),
        np.asarray(high, dtype=float),
        np.zeros(len(low), dtype=np.intp),
        np.array(triples, dtype=np.intp).reshape(-1, 3),
    )


def _both(solver: Solver, program: Program, coefficients: Any, limits: Limits = UNLIMITED) -> tuple[Any, Any]:
    c = np.asarray(coefficients, dtype=float)
    low, high = solver.solve(program, [Objective(c, False), Objective(c, True)], limits)
    return low, high


def test_linear_program(solver: Solver) -> None:
    low, high = _both(solver, _program([[1, 1, 0], [0, 1, -1]], [-math.inf, 0], [0.5, 0], [False] * 3), [1, 1, 1])
    assert low.proven == pytest.approx(-3.0)
    assert high.proven == pytest.approx(1.5, abs=1e-6)  # x + y ≤ ½ and z = y ≤ 1
    assert low.status is high.status is Status.OPTIMAL


def test_mixed_integer_program(solver: Solver) -> None:
    program = _program([[2, 3, 1]], [-math.inf], [3.5], [True, True, False])
    low, high = _both(solver, program, [1, 2, 0.1])
    assert high.proven == pytest.approx(2.0 + 0.05, abs=1e-6)
    assert low.proven == pytest.approx(-0.1, abs=1e-6)
    assert high.solution is not None
    np.testing.assert_allclose(high.solution, [0, 1, 0.5], atol=1e-6)
    assert high.incumbent == pytest.approx(high.proven, abs=1e-6)


def test_bilinear_program_is_solved_or_relaxed_from_outside(solver: Solver) -> None:
    """max q with q = a·b, a + b = 0: exactly 0; with McCormick rows alone, 1."""
    rows = [[0, 1, 1], [1, -1, -1], [1, 1, 1], [1, -1, 1], [1, 1, -1]]
    low, high = [0, -1, -1, -math.inf, -math.inf], [0, math.inf, math.inf, 1, 1]
    bounds = _both(solver, _program(rows, low, high, [False] * 3, [(0, 1, 2)]), [1, 0, 0])
    if solver.supports(Capability.BILINEAR):
        assert bounds[1].proven == pytest.approx(0.0, abs=1e-5)
        assert bounds[0].proven == pytest.approx(-1.0, abs=1e-5)
    else:
        assert bounds[1].proven == pytest.approx(1.0, abs=1e-6)
        assert bounds[0].proven <= -1.0 + 1e-6


def _knapsack(n: int = 30) -> tuple[Program, Any]:
    rng = np.random.default_rng(0)
    weights = rng.integers(40, 100, (3, n)).astype(float)
    return _program(weights, [-math.inf] * 3, weights.sum(axis=1) / 3, [True] * n), rng.integers(40, 100, n).astype(
        float
    )


@pytest.mark.parametrize("limits", [Limits(nodes=1), Limits(seconds=1e-3), Limits(gap=20.0)])
def test_a_solve_that_stops_early_still_bounds_the_optimum(solver: Solver, limits: Limits) -> None:
    program, value = _knapsack()
    optimum = _both(solver, program, value)[1]
    assert optimum.status is Status.OPTIMAL
    early = _both(solver, program, value, limits)[1]
    assert early.proven >= optimum.incumbent - 1e-6
    if early.incumbent is not None:
        assert early.incumbent <= optimum.proven + 1e-6


def test_infeasible_program_claims_nothing(solver: Solver) -> None:
    program = _program([[1, 1], [1, 1]], [1.5, -math.inf], [math.inf, 0.5], [True, True])
    low, high = _both(solver, program, [1, 0])
    assert (low.proven, high.proven) == (-math.inf, math.inf)
    assert low.status is Status.INFEASIBLE
    assert low.incumbent is None


def test_same_program_gives_the_same_bits(solver: Solver) -> None:
    program, value = _knapsack(15)
    assert _both(solver, program, value)[1].proven == _both(solver, program, value)[1].proven


def test_unknown_solver_is_refused_by_name() -> None:
    with pytest.raises(SolverUnavailable, match=r"'cplex'.*scip, highs, gurobi"):
        solver_named("cplex")


@pytest.mark.parametrize("name", NAMES)
def test_missing_solver_is_refused_with_a_way_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(SolverUnavailable, match="choose --solver"):
        solver_named(name)


def test_gurobi_refusal_for_size_is_reported_as_that() -> None:
    if importlib.util.find_spec("gurobipy") is None:
        pytest.skip("gurobi is not installed")
    builder = ProgramBuilder()
    v = builder.add_variables(3000)
    builder.add_rows(sparse.csr_matrix((np.ones(3000), (np.zeros(3000, dtype=int), v))), -1.0, 1.0, 0)
    c = np.ones(3000)
    with pytest.raises(SolverUnavailable, match=r"too large for the licence at hand.*choose --solver scip"):
        solver_named("gurobi").solve(builder.finish(), [Objective(c, True)], Limits())
