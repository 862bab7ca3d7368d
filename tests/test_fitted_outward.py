"""Wherever multipliers, matrices and dual vectors come from, what they say is rounded outward and paid for."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fits import World, step_of, table
from mibp_cert.fitted import SCORE_LOSSES, Fitted, branch, linear, shared
from mibp_cert.fitted.engine import table_problem
from mibp_cert.fitted.known import solve
from mibp_cert.fitted.linear import Relaxation
from mibp_cert.fitted.ranges import prove
from mibp_cert.threats import LInf
from test_fitted_core import world_of


def test_a_value_that_every_model_exceeds_is_not_refuted() -> None:
    """No model is on the plane: that says which side they are on only with the one that is known."""
    problem = world_of("cross-entropy", "linf", c=0.1, samples=0, rounds=0).problem
    z, a = prove(problem), np.eye(len(problem.c))[0]
    assert z is not None
    assert branch.never(problem, z, a, float(z.high[0]) + 1.0)
    assert not branch.never(problem, z, a, float(z.low[0]) - 1.0)


def exact(part: Any) -> Any:
    return np.vectorize(Fraction, otypes=[object])(part)


def test_what_a_dual_vector_says_is_rounded_outward() -> None:
    """Whatever the vector is: the sum (2), evaluated exactly."""
    world, rng = world_of("squared-error", "linf", samples=2, rounds=0), np.random.default_rng(0)
    program = Relaxation(world.problem.table, world.problem.loss, world.hull(), world.problem.tau).program
    matrix, below = exact(program.matrix.toarray()), 0
    for _ in range(8):
        c, y = rng.normal(size=program.variables), rng.normal(size=program.rows)
        y = np.where(np.isfinite(np.where(y >= 0, program.row_upper, program.row_lower)), y, 0.0)
        end = np.where(y == 0, 0.0, np.where(y >= 0, program.row_upper, program.row_lower))
        g = exact(c) - exact(y) @ matrix
        total = exact(y) @ exact(end) + np.maximum(g * exact(program.lower), g * exact(program.upper)).sum()
        below += Fraction(linear.value(program, c, y)) < total
    assert not below


def test_products_of_weights_and_cells_that_round_are_paid_for() -> None:
    """Each entry of the gradient, with weights and cells multiplied exactly."""
    data = table("squared-error", 10)
    data = type(data)(**{**vars(data), "weights": np.random.default_rng(0).random(10)})
    problem = table_problem(step_of(data, Fitted("squared-error")), LInf(0.1).bind(data), np.zeros(0))
    z = prove(problem)
    assert z is not None
    made, rows = Relaxation(problem.table, problem.loss, z, problem.tau), problem.table.rows
    lost = np.abs(exact(rows.w)[:, None] * exact(rows.x) - exact(rows.w[:, None] * rows.x))
    known = linear.Known(problem.loss, rows, z.s_low, z.s_high, z)
    most = exact(np.abs(known.psi_middle) + known.psi_radius) @ lost
    assert (most > 0).any()
    assert (most <= exact(made.program.row_upper[made.gradient]) - exact(problem.tau)).all()


@pytest.mark.parametrize("name", ["linf", "l1", "labels", "targets"])
def test_a_shared_matrix_that_is_no_inverse_is_paid_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `N` is, no fitted model leaves the sums, the ellipsoids, or the zonotope."""
    rng = np.random.default_rng(0)

    def rough(m: Any, b: Any) -> Any:
        return (0.8 + 0.1 * rng.random(m.shape)) * solve(m, b)

    monkeypatch.setattr(shared, "solve", rough)
    for loss in SCORE_LOSSES:
        if (name == "targets") != (loss in ("squared-error", "huber")) and name in ("targets", "labels"):
            continue
        world: World = world_of(loss, name, samples=20, rounds=1)
        problem, z = world.problem, world.hull()
        room = 1e-10 * (1.0 + np.abs(world.s).max())
        assert world.excess(problem.around(z).bounds()) <= room
        for sums in (shared.Shared(problem.table, problem.loss, z, problem.tau),):
            low, high = sums.ends(np.eye(len(z.low)))
            assert (low - room <= world.theta).all()
            assert (world.theta <= high + room).all()
