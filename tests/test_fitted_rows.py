"""Rows that come and go, and weights, in fitted models: enumerated, sampled, attacked, and fitted by scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

import mibp_cert as mc
from fits import REGRESSIONS, attacked, step_of, table
from mibp_cert import Added, Budget, Dataset, Fitted, LabelFlips, LInf, Removed, Shift, Split, TargetNoise, column
from mibp_cert.certify.attack import AttackSettings
from mibp_cert.fitted import SCORE_LOSSES, finite, presence


@pytest.fixture(autouse=True)
def _by_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few members would be fitted one by one, and no budget would be looked at."""
    monkeypatch.setattr(finite, "MOST", 0)


LOSSES = list(SCORE_LOSSES)
QUICK = AttackSettings(members=10, points=10, parameters=6, rounds=2)
C = {"cross-entropy": 0.1, "squared-error": 0.02, "squared-hinge": 0.005, "huber": 0.02}
DOMAIN: dict[str, Any] = {"age": (30.0, 60.0), "mood": ["bad", "fair"], "income": (2.0, 6.0), "target": (-2.0, 2.0)}
LEAVING: dict[str, Any] = {
    "removed": Removed(2),
    "removed of some rows": Removed(2).where(column("age") >= 50),
    "noise and removed": LInf({"income": 0.2}) & Removed(1),
    "bad rows and removed": Budget(LInf({"income": 2.0}), rows=1) & Removed(1),
    "categories and removed": Shift("mood", by=1).where(column("age") >= 50) & Removed(1),
}
COMING: dict[str, Any] = {
    "added": Added(1, DOMAIN),
    "added twice": Added(1, {**DOMAIN, "mood": ["good"]}) & Added(1, {**DOMAIN, "age": (40.0, 40.0)}),
    "added and removed": Added(1, DOMAIN) & Removed(1),
    "noise and added": LInf({"income": 0.2}) & Added(1, DOMAIN),
}
LABELS = {"flips and removed": LabelFlips(1) & Removed(1), "flips and added": LabelFlips(1) & Added(1, DOMAIN)}
TARGETS = {"targets and removed": TargetNoise(0.3) & Removed(1)}


def usable(threat: Any, loss: str) -> Any:
    """The threat without the target's range, where there are classes."""
    if loss in REGRESSIONS:
        return threat
    parts = threat.inner or (threat,)
    out = [
        replace(p, domain={k: v for k, v in p.domain.items() if k != "target"}) if isinstance(p, Added) else p
        for p in parts
    ]
    return mc.threats.All.of(out)


def threats(loss: str) -> dict[str, Any]:
    found = {**LEAVING, **COMING, **(TARGETS if loss in REGRESSIONS else LABELS)}
    return {name: usable(threat, loss) for name, threat in found.items()}


def by_scikit_learn(model: Fitted, x: Any, y: Any, weights: Any) -> Any:
    """The minimiser that scikit-learn finds, from the rows that are there."""
    on = weights > 0
    if model.loss == "squared-error":
        found: Any = Ridge(alpha=1.0 / model.C, tol=1e-12)
    elif model.loss == "cross-entropy":
        found = LogisticRegression(C=model.C, tol=1e-10, solver="newton-cholesky", max_iter=1000)
    else:
        found = LinearSVC(C=model.C, tol=1e-10, max_iter=100_000, dual=False)
    found.fit(x[on], y[on], sample_weight=weights[on])
    return np.append(np.ravel(found.coef_), found.intercept_)


def check_contained(run: Any, x: Any, y: Any, theta: Any, room: float = 0.0) -> None:
    """Parameters, scores of training rows, and outputs of test rows, for datasets `x`, `y` with these models."""
    z, bound = run.bounds.ranges, run.request.members
    assert (run.bounds.lower - room <= theta).all()
    assert (theta <= run.bounds.upper + room).all()
    step = run.request.plan.steps[0]
    s = np.einsum("mnp,mp->mn", step.design(theta, x), theta)[:, bound.clean.there]
    limited, dirty = bound.unbudgeted(), np.zeros(s.shape, dtype=bool)
    if limited is not None:
        h = limited.clean.hull()
        dirty = ((x < h.x_low) | (x > h.x_high)).any(axis=2) | ((y < h.y_low) | (y > h.y_high)).any(axis=2)
        dirty = dirty[:, bound.clean.there]
    far = room * (2.0 + np.abs(x).sum(axis=2).max())
    assert (dirty | ((z.s_low - far <= s) & (s <= z.s_high + far))).all()
    for budget, (low, high) in zip(run.bounds.problem.table.budgets, z.by, strict=True):
        if (budget.rows >= 0).all() and budget.gone is not None and budget.gone.all():
            gone = y[:, : s.shape[1], -1][:, budget.rows] == 1.0
            mine = (theta @ step.design(theta[0], bound.reference[0]).T)[:, budget.rows]
            assert (~gone | ((low - far <= mine) & (mine <= high + far))).all()
    rows = run.data.tested.x
    out = theta[:, :-1] @ rows.T + theta[:, -1:]
    if run.train.targets is not None:
        found = run.ranges(rows).outputs
        assert (found.low[:, 0] - 1e-9 - far <= out).all()
        assert (out <= found.high[:, 0] + 1e-9 + far).all()
        return
    found = run.certify(rows)
    margins = np.where(found.centre == 1, out, -out)
    assert (found.margin - 1e-9 - far <= margins).all()
    assert (margins <= found.margin_high + 1e-9 + far).all()
    if not room:
        assert ((out[:, found.certified] > 0) == (found.classes[found.certified] == 1)).all()


def split_of(loss: str, rows: int = 10) -> Split:
    train = table(loss, rows)
    return Split("survey", train, test=table(loss, 8, 50, like=train))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exits are not cut, and domains are left in few parts."""
    monkeypatch.setattr("mibp_cert.fitted.problem.CUT_CELLS", 0)
    monkeypatch.setattr(presence, "MOST_PARTS", 8)


PLAIN = ("removed", "noise and removed", "added")
CASES = [(loss, name) for loss in LOSSES for name in threats(loss) if loss == "cross-entropy" or name in PLAIN]
CASES += [("squared-error", name) for name in ("targets and removed", "added and removed")]
CASES += [("squared-hinge", name) for name in LABELS]


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_fits_lie_in_their_bounds(loss: str, name: str) -> None:
    threat, split, model = threats(loss)[name], split_of(loss), Fitted(loss, 0.5 * C[loss])
    run = mc.certify_fit(split, threat, model, attack_settings=QUICK)
    bound: Any = run.request.members
    step = step_of(bound.clean, model)
    x, y, theta = attacked(step, bound, samples=30, rounds=2)
    assert len(np.unique(y[:, :, -1].sum(axis=1))) > 1
    check_contained(run, x, y, theta)
    assert run.attack is not None
    assert ((run.bounds.lower <= run.attack.theta) & (run.attack.theta <= run.bounds.upper)).all()
    if loss not in ("cross-entropy", "squared-error"):
        return
    weights = step.counts(y)
    some = [k for k in range(0, len(x), 11) if len(np.unique(y[k, weights[k] > 0, step.column])) > 1]
    found = np.stack([by_scikit_learn(model, x[k], y[k, :, step.column], weights[k]) for k in some])
    np.testing.assert_allclose(found, theta[some], atol=1e-5)
    check_contained(run, x[some], y[some], found, 1e-5)


# Every dataset --------------------------------------------------------------------------------------------------------


def tiny(loss: str, seed: int = 0, rows: int = 8) -> Dataset:
    """Rows of two columns, in classes that overlap, or with numbers."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, 2)), np.arange(rows) % 2
    if loss in REGRESSIONS:
        return Dataset.regression(x, x[:, 0] + rng.normal(size=rows))
    return Dataset.of(x + (2 * y[:, None] - 1), y)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("most", [1, 2])
def test_every_removal_is_covered(loss: str, most: int) -> None:
    """All single rows, and all pairs; fitted here, and by scikit-learn on the rows that are left."""
    data, model = tiny(loss, most), Fitted(loss, 0.3 if loss == "cross-entropy" else 0.05)
    test = tiny(loss, 7, 12)
    run = mc.certify_fit(Split("tiny", data, test=test), Removed(most), model, attack_settings=QUICK)
    members = run.request.members.members(1000)
    assert members is not None
    assert len(members) == 1 + 8 + (28 if most == 2 else 0)
    x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
    step: Any = run.request.plan.steps[0]
    theta = step.train(np.zeros((len(members), 3)), x, y)
    check_contained(run, x, y, theta)
    assert run.attack is not None
    np.testing.assert_allclose(run.attack.theta[-len(members) :], theta, atol=1e-12)
    reached = (theta.max(axis=0) - theta.min(axis=0)) / (run.bounds.upper - run.bounds.lower)
    assert reached.mean() > (0.8 if most == 1 else 0.55)
    if loss in ("cross-entropy", "squared-error"):
        weights = y[:, :, -2]
        found = [
            by_scikit_learn(model, x[k], y[k, :, step.column], weights[k])
            for k in range(len(x))
            if len(np.unique(y[k, weights[k] > 0, step.column])) > 1
        ]
        np.testing.assert_allclose(np.stack(found), theta, atol=1e-5)


def test_flips_and_removals_of_one_row_are_covered() -> None:
    data, model = tiny("cross-entropy", 3, 7), Fitted(C=0.2)
    run = mc.certify_fit(Split("tiny", data, test=data), LabelFlips(1) & Removed(1), model, attack_settings=QUICK)
    members = run.request.members.members(1000)
    assert members is not None
    assert len(members) == 8 * 8
    x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
    step: Any = run.request.plan.steps[0]
    check_contained(run, x, y, step.train(np.zeros((len(members), 3)), x, y))


@pytest.mark.parametrize("loss", ["cross-entropy", "squared-hinge"])
def test_flips_take_the_weight_of_their_new_class(loss: str) -> None:
    """All single flips, and single removals beside them, where one class weighs three times the other."""
    data, model = tiny(loss, 4, 9), Fitted(loss, 0.05 if loss == "cross-entropy" else 0.005, class_weight={1: 3.0})
    for threat in (LabelFlips(1), LabelFlips(1) & Removed(1)):
        run = mc.certify_fit(Split("tiny", data, test=data), threat, model, attacked=False)
        members = run.request.members.members(1000)
        assert members is not None
        x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
        step: Any = run.request.plan.steps[0]
        theta = step.train(np.zeros((len(members), 3)), x, y)
        assert (run.bounds.lower <= theta).all()
        assert (theta <= run.bounds.upper).all()
        if loss == "cross-entropy":
            weights = np.where(y[:, :, 1] == 1, 3.0, 1.0) * (y[:, :, -2] if y.shape[2] == 4 else 1.0)
            found = np.stack([by_scikit_learn(model, x[k], y[k, :, 1], weights[k]) for k in range(0, len(x), 5)])
            np.testing.assert_allclose(found, theta[::5], atol=1e-5)


def test_what_a_lost_row_may_be_is_tried_on_a_grid() -> None:
    data, model = tiny("cross-entropy", 5), Fitted(C=0.3)
    run = mc.certify_fit(Split("tiny", data, test=data), Added(1, {"0": (-2, 2), "1": (-1, 3)}), model)
    x, y = run.request.members.reference
    grid = [(a, b, label) for a in np.linspace(-2, 2, 9) for b in np.linspace(-1, 3, 9) for label in (0, 1)]
    xs, ys = np.repeat(x[None], len(grid), axis=0), np.repeat(y[None], len(grid), axis=0)
    for k, (a, b, label) in enumerate(grid):
        xs[k, -1], ys[k, -1] = (a, b), [1.0 - label, label, 1.0, 0.0]
        assert run.request.members.contains(xs[k], ys[k])
    step: Any = run.request.plan.steps[0]
    theta = step.train(np.zeros((len(grid), 3)), xs, ys)
    check_contained(run, xs, ys, theta)
    reached = (theta.max(axis=0) - theta.min(axis=0)) / (run.bounds.upper - run.bounds.lower)
    assert reached.mean() > 0.3


# Features -------------------------------------------------------------------------------------------------------------


def test_rows_come_and_go_behind_frozen_features() -> None:
    data = tiny("cross-entropy", 1, 10)
    model = Fitted(C=0.1, features=mc.RandomFeatures(5, scale=1.0))
    for threat in (Removed(2), Added(1, {"0": (-1, 1), "1": (-1, 1)}), LInf(0.02) & Removed(1)):
        run = mc.certify_fit(Split("tiny", data, test=data), threat, model, attack_settings=QUICK)
        step: Any = run.request.plan.steps[0]
        members = run.request.members.sample(np.random.default_rng(0), 60)
        x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
        theta = step.train(np.broadcast_to(run.theta, (len(x), len(run.theta))), x, y)
        assert ((run.bounds.lower <= theta) & (theta <= run.bounds.upper)).all()


# A long hunt ------------------------------------------------------------------------------------------------------------


def check_random(seed: int) -> None:
    """A random table, model, weights and composition of threats: members sampled, attacked and enumerated."""
    rng = np.random.default_rng(seed)
    loss, n = str(rng.choice(LOSSES)), int(rng.integers(6, 14))
    data = tiny(loss, seed, n)
    if rng.random() < 0.4:
        data = data.weighted(rng.choice([0.0, 0.5, 1.0, 2.0], size=n, p=[0.1, 0.2, 0.5, 0.2]))
    parts: list[Any] = [Removed(int(rng.integers(1, 3)))] if rng.random() < 0.7 else []
    if rng.random() < 0.4 or not parts:
        parts.append(Added(int(rng.integers(1, 3)), {"0": (-1, float(rng.choice([0, 1, 2]))), "1": (-2, 2)}))
    if rng.random() < 0.6:
        parts.append(LInf(float(rng.choice([0.01, 0.1, 0.3]))) if rng.random() < 0.6 else Budget(LInf(0.5), rows=1))
    if rng.random() < 0.4:
        parts.append(TargetNoise(0.3) if loss in REGRESSIONS else LabelFlips(int(rng.integers(1, 3))))
    weights = {1: float(rng.choice([0.3, 3.0]))} if loss not in REGRESSIONS and rng.random() < 0.3 else None
    c = float(rng.choice([0.01, 0.05, 0.2])) * (1.0 if loss == "cross-entropy" else 0.3)
    try:
        run = mc.certify_fit(data, mc.threats.All.of(parts), Fitted(loss, c, class_weight=weights), attacked=False)
    except mc.MibpCertError:
        return  # a sentence, and no bounds
    step: Any = run.request.plan.steps[0]
    bound = run.request.members
    x, y, theta = attacked(step, bound, samples=80, rounds=2, seed=seed)
    every = bound.members(400)
    if every is not None:
        x, y = (np.stack([m[i] for m in every]) for i in (0, 1))
        theta = np.concatenate([theta, step.train(np.zeros((len(x), theta.shape[1])), x, y)])
    assert ((run.bounds.lower <= theta) & (theta <= run.bounds.upper)).all()


@pytest.mark.parametrize("seed", range(4))
def test_random_compositions_lie_in_their_bounds(seed: int) -> None:
    check_random(seed)


@pytest.mark.soundness
@pytest.mark.parametrize("block", range(12))
def test_rows_hunt(block: int) -> None:
    for seed in range(1000 + 25 * block, 1000 + 25 * block + 25):
        check_random(seed)
