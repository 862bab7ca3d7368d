"""Threats with few members: every minimiser is enclosed on its own, and wrong enclosures are noticed."""

from typing import Any

import mpmath
import numpy as np
import pytest

from fits import step_of, table
from mibp_cert import AnyCategory, Budget, Dataset, Fitted, LabelFlips, LInf, RandomFeatures
from mibp_cert.fitted import SCORE_LOSSES, finite
from mibp_cert.fitted.finite import enclosed, finite_problem
from test_fitted import exact_minimum
from test_fitted_core import targets

LOSSES = list(SCORE_LOSSES)


def small(name: str, seed: int, scale: float = 1.0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(9, 2)) * [scale, 1.0], np.ones(9)])
    return x, targets(name, rng, 9), np.array([0.7, 0.4, 0.0])


def distance(theta: Any, unit: Any, exact: Any) -> float:
    with mpmath.workdps(60):
        return float(
            mpmath.norm([(e - mpmath.mpf(t)) * mpmath.mpf(u) for e, t, u in zip(exact, theta, unit, strict=True)])
        )


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("scale", [1.0, 1e5, 1e-5])
def test_the_exact_minimiser_lies_within_the_radius(name: str, scale: float) -> None:
    """To 60 digits; the radius is tiny, and grows with the error of a point that is no minimiser."""
    x, y, alpha = small(name, 1, scale)
    loss = SCORE_LOSSES[name]
    theta, unit, radius = enclosed(x, y, np.ones(9), alpha, loss)
    exact = exact_minimum(x, y, alpha, name, theta)
    assert distance(theta.tolist(), unit.tolist(), exact) <= radius < 1e-9


@pytest.mark.parametrize("name", LOSSES)
def test_points_that_are_no_minimisers_are_covered_or_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, alpha = small(name, 2)
    loss = SCORE_LOSSES[name]
    exact = exact_minimum(x, y, alpha, name, finite.minimise(x, y, np.ones(9), alpha, loss))
    proven, plain, rng = 0, finite.minimise, np.random.default_rng(0)
    for size in 10.0 ** np.arange(-9, 1):
        off = rng.normal(size=3) * size
        monkeypatch.setattr(finite, "minimise", lambda *a, off=off: plain(*a) + off)
        theta, unit, radius = enclosed(x, y, np.ones(9), alpha, loss)
        assert distance(theta.tolist(), unit.tolist(), exact) <= radius
        proven += bool(np.isfinite(radius))
    assert proven >= 5
    monkeypatch.setattr(finite, "tilt", lambda *a: np.full(3, 1e-30))
    theta, unit, radius = enclosed(x, y, np.ones(9), alpha, loss)
    assert distance(theta.tolist(), unit.tolist(), exact) > radius  # a tilt that is forgotten is noticed


def test_a_curvature_that_ends_nearby_is_not_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of the Huber loss, its score just inside the kink at the computed point, the minimiser far outside of it."""
    x, y, alpha = np.array([[1.0]]), np.array([-3.0]), np.array([1e-3])
    monkeypatch.setattr(finite, "minimise", lambda *a: np.array([-3.0 + 1.35 - 1e-9]))
    _, _, radius = enclosed(x, y, np.ones(1), alpha, SCORE_LOSSES["huber"])
    assert np.isinf(radius)
    monkeypatch.setattr(finite, "minimise", lambda *a: np.array([-1350.0]) * 0.0 - 2.9)
    _, unit, radius = enclosed(x, y, np.ones(1), alpha, SCORE_LOSSES["huber"])
    true = -3.0 / 1.001
    assert abs(true + 2.9) * unit[0] <= radius < 1.0


@pytest.mark.parametrize("features", [None, RandomFeatures(5, scale=1.0)])
def test_queries_are_bounded_by_their_largest_value_over_all_members(features: Any) -> None:
    data = table("cross-entropy", 8)
    threat = (LabelFlips(1) & Budget(AnyCategory("mood"), rows=1)).bind(data)
    model = Fitted(C=0.1, features=features)
    step, frozen = step_of(data, model), np.zeros(0) if features is None else features.values(data.features)
    found, members = finite_problem(step, threat, frozen), threat.members(1000)
    assert found is not None
    assert members is not None
    assert len(members) == len(found.theta) > 100
    start = np.broadcast_to(np.append(frozen, np.zeros(step.fitted)), (len(members), len(frozen) + step.fitted))
    theta = step.train(start, *(np.stack([m[i] for m in members]) for i in (0, 1)))[:, len(frozen) :]
    a = np.random.default_rng(0).normal(size=(50, step.fitted))
    np.testing.assert_allclose(found.upper(found.ranges(), a), (a @ theta.T).max(axis=1), rtol=0, atol=1e-7)
    assert (found.upper(found.ranges(), a) >= (a @ theta.T).max(axis=1)).all()


def test_many_members_and_moving_cells_are_not_enumerated() -> None:
    data = table("cross-entropy", 8)
    step = step_of(data, Fitted())
    assert finite_problem(step, LInf(0.1).bind(data), np.zeros(0)) is None
    assert (
        finite_problem(step, LabelFlips().bind(Dataset.of(np.arange(40.0)[:, None], np.arange(40) % 2)), np.zeros(0))
        is None
    )
