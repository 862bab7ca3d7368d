"""The engines `lp` and `mibp` beside what their programs do not know: rows that come and go, weights, features, many rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from fits import World, attacked, start_of, step_of, table
from mibp_cert import Added, Fitted, LabelFlips, LInf, RandomFeatures, Removed, SolverSettings
from mibp_cert.engines.base import Box
from mibp_cert.errors import UserError
from mibp_cert.fitted import FittedSet, branch, engine, finite, linear, lp
from mibp_cert.fitted.exact import FitMibpEngine
from mibp_cert.fitted.linear import Relaxation
from mibp_cert.fitted.lp import LpEngine
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.zonotope import Zonotope
from test_fitted_rows import C, split_of, usable

DOMAIN: dict[str, Any] = {"age": (40.0, 50.0), "mood": ["bad", "fair"], "income": (3.0, 5.0), "target": (-2.0, 2.0)}
WEIGHTS = np.array([0.0, 1.0, 2.0, 0.5, 1.0, 0.0, 1.5, 1.0, 1.0, 0.1])
OWN = {"class_weight": {1: 2.0}}
SOME = {"features": RandomFeatures(4, 0.5, 1)}
CASES: dict[str, tuple[Any, dict[str, Any], Any, bool]] = {
    "removed": (Removed(1), {}, None, False),
    "noise and removed": (LInf({"income": 0.2}) & Removed(1), {}, None, False),
    "added": (Added(1, DOMAIN), {}, None, False),
    "weights": (LInf({"income": 0.3}), {}, WEIGHTS, True),
    "weights and flips": (LabelFlips(1), {}, WEIGHTS, True),
    "classes of weight": (LInf({"income": 0.3}), OWN, None, True),
    "flips that change a weight": (LabelFlips(1), OWN, None, False),
    "features": (LInf({"income": 0.3}), SOME, None, True),
    "features and flips": (LInf({"income": 0.2}) & LabelFlips(1), SOME, None, True),
    "features and removed": (LInf({"income": 0.2}) & Removed(1), SOME, None, False),
}
"""Threat, model, weights of rows, and whether the linear program says all of it."""


@pytest.fixture(autouse=True)
def _by_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few members would be fitted one by one, and no budget would be looked at; few cases are enough."""
    monkeypatch.setattr(finite, "MOST", 0)
    monkeypatch.setattr(branch, "DEPTH", 2)


def run_of(name: str, made: str = "lp", loss: str = "cross-entropy") -> tuple[Any, Any]:
    """A run, and the parameters of really fitted models."""
    threat, how, weights, _ = CASES[name]
    model = Fitted(loss, C[loss], **how)
    run = mc.certify_fit(
        split_of(loss), usable(threat, loss), model, made, sample_weight=weights, attacked=False, solver=FEW
    )
    (step,) = run.request.plan.steps
    return run, attacked(step, run.request.members, samples=30, rounds=2)[2]


FEW = SolverSettings(jobs=1, nodes_per_program=10)


def escape(state: FittedSet, fits: Any) -> float:
    """How far a real fit is above the program's bounds in proven ranges, whether or not the program says all of the threat."""
    problem, p = state.problem, len(state.ranges.low)
    assert isinstance(problem, Problem)
    a = np.concatenate([np.eye(p), -np.eye(p)])
    program = Relaxation(problem.table, problem.loss, state.ranges, problem.tau)
    return float(((fits[:, -p:] @ a.T).max(axis=0) - program.upper(program.of_parameters(a))).max())


@pytest.mark.parametrize("name", CASES)
def test_real_fits_stay_inside_and_programs_are_used_for_what_they_know_alone(name: str) -> None:
    run, fits = run_of(name)
    dual, _ = run_of(name, "dual")
    state, says = run.bounds, CASES[name][3]
    assert (state.lower <= fits).all()
    assert (fits <= state.upper).all()
    assert Relaxation.fits(state.problem.table) == says
    assert state.within(dual.bounds)
    assert (state.radius.sum() < dual.bounds.radius.sum()) == says
    if not says:
        np.testing.assert_array_equal(state.lower, dual.bounds.lower)
    # Outputs, too: no class is certified that a real fit contradicts.
    (step,), test = run.request.plan.steps, run.data.test
    s = np.einsum(
        "mnp,mp->mn", step.design(fits, np.broadcast_to(test.x, (len(fits), *test.x.shape))), fits[:, -step.fitted :]
    )
    for k, found in enumerate(run.test.classes):
        assert found < 0 or ((s[:, k] > 0) == found).all()
    assert ((run.test.classes >= 0) | (dual.test.classes < 0)).all()


@pytest.mark.parametrize("name", ["removed", "weights", "features", "added"])
def test_regressions_stay_inside(name: str) -> None:
    run, fits = run_of(name, loss="squared-error")
    assert (run.bounds.lower <= fits).all()
    assert (fits <= run.bounds.upper).all()


@pytest.mark.parametrize("name", ["removed", "noise and removed", "flips that change a weight"])
def test_no_case_is_closed_that_holds_a_fit(name: str) -> None:
    """Under the ranges of really fitted models, the plane through one of them is never refuted, nor lost by the zonotope."""
    threat, how, _, _ = CASES[name]
    world = World.of(Fitted(C=1.0, **how), threat, table("cross-entropy", 8), samples=20, rounds=1)
    problem, z, room = world.problem, world.hull(), 1e-9 * (1.0 + np.abs(world.theta).max())
    for k in range(1, len(world.theta), 5):
        a = np.eye(len(z.low))[k % len(z.low)]
        v = float(a @ world.theta[k])
        side = -1.0 if a @ problem.c > v else 1.0
        assert not branch.never(problem, z, side * a, side * v)
        one = replace(world, theta=world.theta[[k]], s=world.s[[k]], dirty=world.dirty[[k]])
        on = branch.on_plane(problem, z, a, v)
        assert one.excess(on) <= room
        assert one.excess(Zonotope(problem.table, problem.loss, on, problem.tau).bounds(a, v, equal=True)) <= room


def _even_weights(patch: pytest.MonkeyPatch) -> None:
    original = Relaxation.__init__

    def init(self: Any, table: Any, *rest: Any) -> None:
        original(self, replace(table, rows=replace(table.rows, w=np.ones(len(table.rows)))), *rest)

    patch.setattr(Relaxation, "__init__", init)


def _nothing(patch: pytest.MonkeyPatch) -> None:
    """The program as it is, of what it does not know."""


def _no_directions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Relaxation, "_directions", lambda *given: None)


WRONG: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "rows that go": (_nothing, "removed"),
    "all weights 1": (_even_weights, "weights"),
    "features do not move": (_no_directions, "features"),
}


@pytest.mark.parametrize("name", WRONG)
def test_programs_of_what_they_do_not_know_would_be_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, case = WRONG[name]
    run, fits = run_of(case)
    if CASES[case][3]:
        assert escape(run.bounds, fits) <= 0.0
    change(monkeypatch)
    assert escape(run.bounds, fits) > 1e-6


# Other problems -------------------------------------------------------------------------------------------------------


def test_many_rows_keep_the_bounds_of_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "OWN_CELLS", 0)
    runs = [run_of("weights", made)[0] for made in ("dual", "lp")]
    assert all(run.bounds.problem.shared for run in runs)
    np.testing.assert_array_equal(runs[0].bounds.lower, runs[1].bounds.lower)
    np.testing.assert_array_equal(runs[0].test.classes, runs[1].test.classes)
    with pytest.raises(UserError, match="So many rows are too many"):
        run_of("weights", "mibp")


def test_where_all_members_are_fitted_nothing_is_left_to_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite, "MOST", 6_000)
    monkeypatch.setattr(lp, "program_bounds", None)
    runs = [run_of("weights and flips", made)[0] for made in ("dual", "lp", "mibp")]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.bounds.lower, runs[0].bounds.lower)


def test_cells_that_weigh_differently_are_told() -> None:
    state = run_of("weights and flips")[0].bounds
    rows = state.problem.table
    (budget,) = rows.budgets
    assert not linear.changes_weights(rows, budget)
    for other in (
        replace(budget, gone=np.zeros(len(budget.rows), dtype=bool)),
        replace(budget, rows=np.where(budget.rows == 1, -1, budget.rows)),
        replace(budget, by=replace(budget.by, w=2.0 * budget.by.w)),
    ):
        assert linear.changes_weights(rows, other)


# The solver -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("removed", "knows no rows that come or go"),
        ("added", "knows no rows that come or go"),
        ("flips that change a weight", "knows no labels that change a row's weight"),
        ("features", "knows no frozen features"),
    ],
)
def test_the_solver_refuses_by_name_what_it_does_not_know(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        run_of(name, "mibp")


def test_the_solver_leaves_out_rows_of_no_weight_and_sets_come_back_from_their_arrays() -> None:
    threat, _, weights, _ = CASES["weights and flips"]
    data = replace(split_of("cross-entropy").train, weights=weights)
    step, bound = step_of(data, Fitted(C=0.1)), threat.bind(data)
    fits = attacked(step, bound)[2]
    for made in (FitMibpEngine(settings=FEW), LpEngine()):
        state, _ = made.advance(Box.point(start_of(step)), step, bound)
        again = made.restore(state.arrays(), bound, step)
        assert isinstance(state, FittedSet)
        assert isinstance(again, FittedSet)
        assert isinstance(again.problem, Problem)
        assert all(state.contains(theta) for theta in fits)
        a = np.eye(len(state.ranges.low))
        np.testing.assert_array_equal(again.lower, state.lower)
        np.testing.assert_array_equal(made.finer(again.problem, again, a), made.finer(again.problem, state, a))
        never = made.never(again.problem, again)
        assert not any(never(a[k], float(fits[:, k].max())) for k in range(len(a)))
        made.close()
