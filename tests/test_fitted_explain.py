"""What a bound of a fitted model is made of: parts by rows and columns that add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from fits import REGRESSIONS, step_of, table, threats
from mibp_cert.errors import UserError
from mibp_cert.fitted import SCORE_LOSSES, FitStep, finite
from mibp_cert.fitted import explain as taken_apart

C = {"cross-entropy": 0.03, "squared-error": 0.005, "squared-hinge": 0.001, "huber": 0.005}
PARTS = ("noise", "chords", "bands", "targets", "budgets", "rest", "tilt", "rounding")
EXPLAINED = [(loss, name) for loss in SCORE_LOSSES for name in threats(loss) if name != "exchanged"][::5]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mibp_cert.fitted.problem.CUT_CELLS", 0
    )  # cutting exits takes seconds, and changes nothing here
    monkeypatch.setattr(finite, "MOST", 0)  # few members would be fitted one by one


def fitted(loss: str, name: str, **how: Any) -> tuple[mc.CertifiedRun, Any]:
    train = table(loss, missing=name.startswith("missing"))
    run = mc.certify_fit(train, threats(loss)[name], mc.Fitted(loss, C[loss], **how))
    return run, table(loss, 8, 50, like=train).x


def moons(threat: Any = None, c: float = 1.0, **how: Any) -> mc.CertifiedRun:
    data = mc.two_moons(0, sizes=(40, 10, 20))
    return mc.certify_fit(data, threat or mc.LInf(0.05), mc.Fitted(C=c, **how), attacked=False)


POSITIVE = ("chords", "targets", "budgets", "rest")


def check_sum(run: mc.CertifiedRun, x: Any, positive: tuple[str, ...] = ("bands", *POSITIVE)) -> None:
    """The parts add up to the width of the ranges, all that is rounding is small, and none is negative that cannot be."""
    found, outputs = mc.explain(run, x), run.ranges(x).outputs
    width = (outputs.high - outputs.low)[:, 0]
    parts = sum(np.reshape(getattr(found, name), (len(x), -1)).sum(axis=1) for name in PARTS)
    np.testing.assert_allclose(parts, width, rtol=1e-8)
    np.testing.assert_allclose(found.total, width, rtol=1e-8)
    assert (np.abs(found.rounding) <= 1e-6 * width).all()
    scale = 1e-9 * width.max()
    for name in positive:
        assert getattr(found, name).min() >= -scale, name
    low, high = (mc.explain(run, x, end) for end in ("low", "high"))
    clean = run.train.in_units(step_of_run(run).design(run.theta, x) @ run.theta[-step_of_run(run).fitted :])
    np.testing.assert_allclose(clean + high.total, outputs.high[:, 0], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(clean - low.total, outputs.low[:, 0], rtol=1e-8, atol=1e-9)


def step_of_run(run: mc.CertifiedRun) -> FitStep:
    (step,) = run.request.plan.steps
    assert isinstance(step, FitStep)
    return step


@pytest.mark.parametrize(("loss", "name"), EXPLAINED)
def test_the_parts_of_a_bound_add_up_to_its_width(loss: str, name: str) -> None:
    check_sum(*fitted(loss, name))


def test_parts_add_up_in_the_units_of_scaled_targets_and_behind_features() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 2))
    data = mc.Dataset.regression(x, 500.0 + 100.0 * x[:, 0] + rng.normal(size=20))
    data = data.with_target(data.target_column())
    check_sum(mc.certify_fit(data, mc.LInf(0.02) & mc.TargetNoise(5.0), mc.Fitted("squared-error", 0.3)), x[:5])
    run = moons(mc.LInf(0.01), features=mc.RandomFeatures(6, 2.0))
    check_sum(run, run.data.tested.x[:5])
    assert mc.explain(run, run.data.tested.x[:5]).noise.shape == (5, 40, 2)


BEHIND = [(loss, name) for loss in ("cross-entropy", "squared-error") for name in threats(loss) if name != "exchanged"][
    ::2
]


@pytest.mark.parametrize(("loss", "name"), BEHIND)
def test_behind_features_parts_belong_to_the_columns_of_the_table(loss: str, name: str) -> None:
    """They add up, there is one for each column, and those that no dataset changes have none."""
    train = table(loss, missing=name.startswith("missing"))
    model = mc.Fitted(loss, C[loss], features=mc.RandomFeatures(3, 0.2))
    run = mc.certify_fit(train, threats(loss)[name], model)
    x = table(loss, 4, 50, like=train).x
    check_sum(run, x, POSITIVE)
    found, hull = mc.explain(run, x), run.request.members.hull()
    assert found.columns.shape == (4, train.features)
    assert found.possible.shape == (4, len(train), train.features + 1)
    still = (hull.x_low == hull.x_high).all(axis=0)
    assert not still.all() or name in ("labels", "targets")
    scale = 1e-9 * found.total.max()
    assert (np.abs(found.columns[:, still]) <= scale).all()
    assert (np.abs(found.possible[..., :-1][..., still]) <= scale).all()
    if not (still.all() or run.request.members.noise().symbols == 0):
        moved = found.columns + found.possible[..., :-1].sum(axis=1)
        assert moved[:, ~still].sum() > 0


@pytest.mark.parametrize(
    "threat",
    [
        mc.LInf({"2": 0.5}),
        mc.L2({"2": 0.5}),
        mc.Budget(mc.LInf({"2": 3.0}), rows=3),
        mc.Budget(mc.L2({"2": 3.0}), rows=3),
        mc.Budget(mc.LInf({"2": 3.0}), rows=3) & mc.LInf({"1": 1e-4}),
    ],
    ids=repr,
)
@pytest.mark.parametrize("features", [1, 5])
def test_behind_features_the_column_in_doubt_is_named(threat: mc.Threat, features: int) -> None:
    """By the sentence where nothing is proven, and by `blame`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3))
    score = x.sum(axis=1) + rng.normal(size=30)
    data, numbers = mc.Dataset.of(x, (score > 0).astype(int)), mc.Dataset.regression(x, score)
    with pytest.raises(mc.Diverged, match=r"comes most from the column '2' \(\d+ %\);"):
        mc.certify_fit(data, threat, mc.Fitted(C=1e9, features=mc.RandomFeatures(features)))
    model = mc.Fitted("squared-error", C=1e-3, features=mc.RandomFeatures(features))
    run = mc.certify_fit(numbers, threat, model, attacked=False)
    assert mc.blame(run, x=x[:3], top=1, verified=False).columns.index[0] == "2"


@pytest.mark.parametrize("multi", ["softmax", "one-versus-rest"])
def test_of_several_classes_behind_features_too(multi: str) -> None:
    data = table("cross-entropy", 12, classes=3)
    model = mc.Fitted(C=0.003, features=mc.RandomFeatures(3, 0.2), multi=multi)
    some = np.arange(12) < 6
    threat = mc.L2({"income": 0.3}).where(some) & mc.Budget(mc.LInf({"income": 1.0}), rows=1).where(~some)
    found = mc.explain(mc.certify_fit(data, threat, model), data.x[:3])
    place = data.columns[data.column("income")].start
    assert found.columns.shape == (3, data.features)
    moved = found.columns + found.possible[..., :-1].sum(axis=1)
    assert (np.delete(moved, place, axis=1) == 0).all()
    assert (moved[:, place] > 0).all()


def test_rows_and_columns_that_nothing_moves_cost_nothing() -> None:
    run = moons(mc.LInf(0.1, rows=[3, 5], columns=[1]))
    found = mc.explain(run, run.data.tested.x)
    moved = found.noise + found.chords
    assert (np.delete(moved, [3, 5], axis=1) == 0).all()
    assert (moved[..., 0] == 0).all()
    assert (moved[:, [3, 5], 1] > 0).all()


def test_parts_are_what_first_order_says_where_doubt_is_small() -> None:
    """Noise alone, `eps Σ|∂out/∂x_ij|`, with derivatives from differences of real fits."""
    data, eps, h = mc.two_moons(0, sizes=(12, 5, 5)), 1e-6, 1e-5
    run = mc.certify_fit(data, mc.LInf(eps), mc.Fitted(C=1.0))
    step, x, rows = step_of(data.train, mc.Fitted(C=1.0)), data.train.x, data.tested.x
    design = np.column_stack([rows, np.ones(len(rows))])
    slopes = np.zeros((len(rows), 12, 2))
    for i in range(12):
        for j in range(2):
            up, down = x.copy(), x.copy()
            up[i, j], down[i, j] = x[i, j] + h, x[i, j] - h
            theta = [step.train(run.theta, moved, data.train.one_hot) for moved in (up, down)]
            slopes[:, i, j] = design @ (theta[0] - theta[1]) / (2 * h)
    found = mc.explain(run, rows, "high")
    np.testing.assert_allclose(found.noise, eps * np.abs(slopes), rtol=1e-3, atol=1e-4 * eps * np.abs(slopes).max())


def test_targets_and_label_budgets_are_told_apart() -> None:
    """Ridge is linear in its targets: `Σ_i |A_i| eps`, row by row; a budget pays the largest."""
    rng = np.random.default_rng(1)
    x, rows = rng.normal(size=(9, 2)), rng.normal(size=(4, 2))
    data = mc.Dataset.regression(x, x @ [1.0, -2.0] + rng.normal(size=9))
    design, new = np.column_stack([x, np.ones(9)]), np.column_stack([rows, np.ones(4)])
    effect = 0.5 * np.abs(new @ np.linalg.solve(design.T @ design + np.diag([0.5, 0.5, 0.0]), design.T))
    model = mc.Fitted("squared-error", 2.0)
    every = mc.explain(mc.certify_fit(data, mc.TargetNoise(0.5), model), rows, "high")
    np.testing.assert_allclose(every.targets, effect, rtol=1e-8)
    two = mc.explain(mc.certify_fit(data, mc.Budget(mc.TargetNoise(0.5), rows=2), model), rows, "low")
    assert ((two.budgets > 1e-9).sum(axis=1) == 2).all()
    np.testing.assert_allclose(two.budgets.sum(axis=1), np.sort(effect, axis=1)[:, -2:].sum(axis=1), rtol=1e-8)
    np.testing.assert_allclose(two.possible[..., -1], effect, rtol=1e-8)
    assert (two.possible[..., :-1] == 0).all()


MUTANTS: dict[str, Any] = {
    "chords forgotten": ("_gap", lambda middle, radius, rho: np.zeros_like(middle)),
    "bands without scores": ("_tops", lambda known, omega, kappa, ends: np.zeros_like(omega)),
    "budgets forgotten": (
        "_replaced",
        lambda dual, gains, by_column, shape: (np.zeros(shape[:2]), np.zeros(shape[0]), np.zeros(shape)),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_part_that_is_wrong_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, x = fitted("cross-entropy", "noise and a bad row")
    monkeypatch.setattr(taken_apart, *MUTANTS[mutant])
    with pytest.raises(AssertionError):
        check_sum(run, x)


def test_explanations_of_anything_else_are_refused() -> None:
    run = moons()
    with pytest.raises(UserError, match="one of both, low, high"):
        mc.explain(run, run.data.tested.x, "middle")
    with pytest.raises(UserError, match="finite rows of 2 features"):
        mc.explain(run, [[0.0]])
    network = mc.certify_training(mc.Network.mlp([2, 2]), run.data, mc.LInf(0.01), mc.Training(epochs=1))
    with pytest.raises(UserError, match="certify_fit a model"):
        mc.explain(network, run.data.tested.x)


assert set(C) == set(SCORE_LOSSES) >= set(REGRESSIONS)
