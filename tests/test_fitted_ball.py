"""The ball of strong convexity: it holds every minimiser, needs no proof by continuation, and is the last resort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from fits import REGRESSIONS, attacked, step_of, table, threats
from mibp_cert.fitted import SCORE_LOSSES, ball, ranges
from mibp_cert.fitted.ball import _all_rows, _part, intercepts
from mibp_cert.fitted.engine import table_problem

NAMES = (
    "linf",
    "monotone",
    "missing",
    "budget of balls",
    "one-sided budget",
    "categories and a bad row",
    "labels",
    "targets",
)
CASES = [(loss, name) for loss in SCORE_LOSSES for name in NAMES if name in threats(loss)]


def world(loss: str, name: str, c: float, **how: Any) -> tuple[Any, Any, Any, Any]:
    """The problem, and datasets with their minimisers."""
    data = table(loss, missing=name.startswith("missing"))
    step, bound = step_of(data, mc.Fitted(loss, c, **how)), threats(loss)[name].bind(data)
    x, y, theta = attacked(step, bound, samples=15, rounds=1)
    usable = np.isfinite(theta).all(axis=1)
    problem = table_problem(step, bound, np.zeros(0))
    return problem, step.design(theta[usable], x[usable]), y[usable, :, step.column], theta[usable]


def check_inside(problem: Any, x: Any, theta: Any) -> None:
    z = ball.ball(problem)
    assert z is not None
    assert (z.low <= theta).all()
    assert (theta <= z.high).all()
    low, high = z.s_low.copy(), z.s_high.copy()
    for budget, (bottom, top) in zip(problem.table.budgets, z.by, strict=True):
        np.minimum.at(low, budget.rows, bottom)
        np.maximum.at(high, budget.rows, top)
    s = np.einsum("mnp,mp->mn", x, theta)
    assert (low <= s).all()
    assert (s <= high).all()


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_every_minimiser_lies_in_the_ball(loss: str, name: str) -> None:
    """Whatever `C` is, with the intercept penalised and without one, too; no proof is needed."""
    for how in ({}, {"penalise_intercept": True}, {"fit_intercept": False}):
        for c in (0.01, 3.0):
            problem, x, _, theta = world(loss, name, c, **how)
            check_inside(problem, x, theta)


def test_the_ball_is_what_strong_convexity_says_for_ridge_with_wrong_targets() -> None:
    """One column, no intercept: `g = Σ e_i x_i`, hence the radius is `eps Σ|x_i| / α`."""
    x = np.random.default_rng(0).normal(size=(9, 1))
    data = mc.Dataset.regression(x, 2.0 * x[:, 0])
    model = mc.Fitted("squared-error", 0.25, fit_intercept=False)
    problem = table_problem(step_of(data, model), mc.TargetNoise(0.3).bind(data), np.zeros(0))
    z = ball.ball(problem)
    assert z is not None
    np.testing.assert_allclose((z.high - z.low)[0] / 2, 0.3 * np.abs(x).sum() * 0.25, rtol=1e-9)
    np.testing.assert_allclose((z.high + z.low)[0] / 2, problem.c[0], rtol=1e-9)


@pytest.mark.parametrize("loss", SCORE_LOSSES)
@pytest.mark.parametrize("name", ["linf", "budget of rows", "noise and flips", "noise and targets"])
def test_intercepts_of_every_dataset_are_enclosed(loss: str, name: str) -> None:
    """Roots of `Σ ψ` at the clean weights, found by bisection on real datasets."""
    if name not in threats(loss):
        return
    problem, x, y, _ = world(loss, name, 0.1)
    w = np.append(problem.c[:-1], 0.0)
    found = intercepts(problem, [_part(rows, noise, w) for rows, noise in _all_rows(problem)])
    assert found is not None
    s, low, high = x @ w, np.full(len(x), -1e3), np.full(len(x), 1e3)
    for _ in range(80):
        middle = 0.5 * (low + high)
        above = problem.loss.psi(y, s + middle[:, None]).sum(axis=1) > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    assert (found[0] <= high).all()
    assert (low <= found[1]).all()


MUTANTS: dict[str, tuple[str, Any, str]] = {
    "noise forgotten": ("largest_noise", lambda rows, table: np.zeros_like(rows.x), "linf"),
    "budgets forgotten": ("_sums", lambda _, ends: tuple(end.sum(axis=0) for end in ends[0]), "labels"),
    "clean intercept": ("intercepts", lambda problem, parts: (problem.c[-1],) * 2, "linf"),
    "gradient of the clean data": (
        "gradient",
        lambda problem, parts, roots, p: np.full(p, 1e-9),
        "budget of balls",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_ball_that_is_too_small_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, wrong, name = MUTANTS[mutant]
    problem, x, _, theta = world("cross-entropy", name, 0.01)
    check_inside(problem, x, theta)
    monkeypatch.setattr(ball, place, wrong)
    with pytest.raises(AssertionError):
        check_inside(problem, x, theta)


def test_nothing_is_said_where_the_intercept_can_run_away() -> None:
    """A budget that leaves one class only; noise that is not finite in float64; a column without a penalty."""
    data = mc.two_moons(0, sizes=(12, 5, 5)).train
    least = int(np.bincount(data.y).min())
    for threat in (mc.LabelFlips(), mc.LabelFlips(least), mc.LInf(1e308)):
        with np.errstate(all="ignore"):
            assert ball.ball(table_problem(step_of(data, mc.Fitted()), threat.bind(data), np.zeros(0))) is None
    some = mc.LabelFlips(least - 1).bind(data)
    assert ball.ball(table_problem(step_of(data, mc.Fitted()), some, np.zeros(0))) is not None


HARD = [
    ("squared-error", "confusable", 0.1),
    ("squared-hinge", "noise and a bad row", 0.03),
    ("huber", "noise and targets", 1.0),
]


@pytest.mark.parametrize(("loss", "name", "c"), HARD)
def test_ranges_come_from_the_ball_where_none_prove_themselves(
    loss: str, name: str, c: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mibp_cert.fitted.problem.CUT_CELLS", 0)
    monkeypatch.setattr(ranges, "ATTEMPTS", 0)
    data = table(loss, 14 if loss != "huber" else 10)
    threat, model = threats(loss)[name], mc.Fitted(loss, c)
    step, bound = step_of(data, model), threat.bind(data)
    run = mc.certify_fit(data, threat, model)
    _, _, theta = attacked(step, bound, samples=20, rounds=2)
    assert (run.bounds.lower <= theta).all()
    assert (theta <= run.bounds.upper).all()
    wide = run.bounds.upper - run.bounds.lower
    assert (wide < 40 * np.ptp(theta, axis=0)).all()


def test_ranges_that_say_nothing_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mibp_cert.fitted.problem.CUT_CELLS", 0)
    data = mc.two_moons(0, sizes=(40, 10, 10)).train
    with np.errstate(all="ignore"):
        problem = table_problem(step_of(data, mc.Fitted(C=10.0)), mc.LInf(0.3).bind(data), np.zeros(0))
        assert ball.ball(problem) is not None
        assert ranges.prove(problem) is None


assert set(REGRESSIONS) < set(SCORE_LOSSES)
