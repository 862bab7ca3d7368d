"""Rows that come and go, and labels with weights of their own, for several classes: enumerated, sampled, attacked, and fitted by
scikit-learn."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

import mibp_cert as mc
from fits import attacked, step_of, table
from mibp_cert import Added, Budget, Dataset, Fitted, LabelFlips, LInf, Removed, Shift, Split, column
from mibp_cert.certify.attack import AttackSettings
from mibp_cert.fitted import adjoint, presence
from mibp_cert.fitted.classes import by_class, in_layout

K = 3
REST = "one-versus-rest"
QUICK = AttackSettings(members=6, points=6, parameters=4, rounds=2)
MODELS = [Fitted(C=0.02), Fitted(C=0.03, multi=REST), Fitted("squared-hinge", C=0.002)]
DOMAIN: dict[str, Any] = {"age": (30.0, 60.0), "mood": ["bad", "fair"], "income": (2.0, 6.0)}
THREATS: dict[str, Any] = {
    "removed": Removed(2),
    "noise and removed": LInf({"income": 0.2}) & Removed(1),
    "bad rows and removed": Budget(LInf({"income": 2.0}), rows=1) & Removed(1),
    "categories and removed": Shift("mood", by=1).where(column("age") >= 50) & Removed(1),
    "added": Added(1, DOMAIN),
    "added and removed": Added(1, DOMAIN) & Removed(1),
    "flips and removed": LabelFlips(1) & Removed(1),
    "flips and added": LabelFlips(1) & Added(1, DOMAIN),
}
LABELS: dict[str, Any] = {
    "flips": LabelFlips(2),
    "flips towards one class": LabelFlips(2, target=[1]),
    "rows of everything": Budget(LInf({"income": 1.0}) & LabelFlips(), rows=1),
    "flips and removed": LabelFlips(1) & Removed(1),
    "added": Added(1, DOMAIN),
}
BY_CLASS = {0: 2.0, 1: 0.5, 2: 1.25}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exits are not cut, and domains are left in few parts."""
    monkeypatch.setattr("mibp_cert.fitted.problem.CUT_CELLS", 0)
    monkeypatch.setattr(presence, "MOST_PARTS", 8)


def weights_of(model: Fitted, y: Any) -> Any:
    """What each row of a dataset counts, from the definitions."""
    own = np.array([1.0] * K if model.class_weight is None else [model.class_weight[k] for k in range(K)])  # type: ignore[index]
    present = y[..., K] if y.shape[-1] > K else 1.0
    return (y[..., :K] * own).sum(axis=-1) * present


def by_scikit_learn(model: Fitted, x: Any, y: Any) -> Any:
    """Parameters (as laid out) that scikit-learn finds, from the rows that are there."""
    w, labels = weights_of(model, y), y[:, :K].argmax(axis=1)
    on = w > 0
    if model.loss == "squared-hinge":
        found: Any = LinearSVC(C=model.C, tol=1e-11, max_iter=200_000, dual=False)
        found.fit(x[on], labels[on], sample_weight=w[on])
        return in_layout(np.column_stack([found.coef_, found.intercept_]), x.shape[1])
    binary = LogisticRegression(C=model.C, tol=1e-10, solver="newton-cholesky", max_iter=1000)
    if model.multi == REST:
        parts = [clone(binary).fit(x[on], labels[on] == k, sample_weight=w[on]) for k in range(K)]
        if (w[on] == 1).all():  # this one takes no weights
            same = OneVsRestClassifier(binary).fit(x[on], labels[on]).estimators_
            np.testing.assert_allclose([one.coef_ for one in same], [one.coef_ for one in parts], atol=1e-7)
        return in_layout(np.stack([np.append(one.coef_[0], one.intercept_) for one in parts]), x.shape[1])
    found = binary.fit(x[on], labels[on], sample_weight=w[on])
    return in_layout(np.column_stack([found.coef_, found.intercept_ - found.intercept_.mean()]), x.shape[1])


def check_contained(run: Any, theta: Any, room: float = 0.0) -> None:
    """Parameters, scores and margins of the test rows, of models fitted to datasets of the threat."""
    assert (run.bounds.lower - room <= theta).all()
    assert (theta <= run.bounds.upper + room).all()
    rows = np.column_stack([run.data.tested.x, np.ones(len(run.data.tested.x))])
    out = np.einsum("np,mkp->nmk", rows, by_class(theta, K, rows.shape[1] - 1))
    slack = 1e-9 + 4.0 * room * np.abs(rows).sum(axis=1)
    outputs = run.ranges(run.data.tested.x).outputs
    assert (outputs.low[:, None] - slack[:, None, None] <= out).all()
    assert (out <= outputs.high[:, None] + slack[:, None, None]).all()
    found = run.certify(run.data.tested.x)
    own = np.take_along_axis(out, found.centre[:, None, None], axis=2)[..., 0]
    lead = own - np.where(np.arange(K) == found.centre[:, None, None], -np.inf, out).max(axis=2)
    assert (found.margin[:, None] - slack[:, None] <= lead).all()
    assert (lead <= found.margin_high[:, None] + slack[:, None]).all()
    assert room or (out.argmax(axis=2) == found.classes[:, None])[found.certified].all()


def check_scores(run: Any, x: Any, y: Any, theta: Any) -> None:
    """Differences of scores (one-versus-rest: scores) of the rows that a dataset leaves alone."""
    bound, z, step = run.request.members, run.bounds.ranges, run.request.plan.steps[0]
    s = step.design(theta, x) @ step.by_class(theta).swapaxes(1, 2)
    limited, dirty = bound.unbudgeted(), np.zeros(x.shape[:2], dtype=bool)
    if limited is not None:
        h = limited.clean.hull()
        dirty = ((x < h.x_low) | (x > h.x_high)).any(axis=2) | ((y < h.y_low) | (y > h.y_high)).any(axis=2)
    there = bound.clean.there if bound.clean.there is not None else np.ones(x.shape[1], dtype=bool)
    s, dirty = s[:, there], dirty[:, there]
    if run.fitted.softmax:
        s = np.stack([s[..., k] - s[..., m] for k, m in combinations(range(K), 2)], axis=-1).reshape(len(s), -1)
        dirty = np.repeat(dirty, K * (K - 1) // 2, axis=1)
    else:
        s, dirty = np.moveaxis(s, 2, 1).reshape(len(s), -1), np.tile(dirty, (1, K))
    assert (dirty | ((z.s_low <= s) & (s <= z.s_high))).all()


def survey(rows: int = 12) -> Split:
    train = table("cross-entropy", rows, classes=K)
    return Split("survey", train, test=table("cross-entropy", 6, 50, like=train, classes=K))


FEW = {
    MODELS[1]: ("removed", "noise and removed", "categories and removed", "added", "flips and removed"),
    MODELS[2]: ("removed", "bad rows and removed", "added", "flips and removed"),
}
FEW_LABELS = {MODELS[1]: ("flips", "rows of everything", "added"), MODELS[2]: ("flips", "flips and removed")}
"""One-versus-rest is one binary problem per class: of the compositions, a few."""
CASES = [
    pytest.param(model, name, marks=[] if name in FEW.get(model, THREATS) else pytest.mark.soundness)
    for model in MODELS
    for name in THREATS
]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_fits_lie_in_their_bounds(model: Fitted, name: str) -> None:
    _check_fits(model, THREATS[name])


WEIGHTED = [
    pytest.param(model, name, marks=[] if name in FEW_LABELS.get(model, LABELS) else pytest.mark.soundness)
    for model in MODELS
    for name in LABELS
]


@pytest.mark.parametrize(("model", "name"), WEIGHTED)
def test_fits_with_weights_of_classes_lie_in_their_bounds(model: Fitted, name: str) -> None:
    _check_fits(mc.Fitted(model.loss, 0.1 * model.C, multi=model.multi, class_weight=BY_CLASS), LABELS[name], 15)


def _check_fits(model: Fitted, threat: Any, rows: int = 12) -> None:
    run = mc.certify_fit(survey(rows), threat, model, attack_settings=QUICK)
    bound, step = run.request.members, run.request.plan.steps[0]
    x, y, theta = attacked(step, bound, samples=20, rounds=2)
    assert run.attack is not None
    check_contained(run, np.concatenate([theta, run.attack.theta]))
    check_scores(run, x, y, theta)
    if bound.clean.there is not None:
        assert len(np.unique(y[:, :, -1].sum(axis=1))) > 1
    if model.loss == "squared-hinge":
        return  # scikit-learn penalises the intercept
    some = range(0, len(x), max(1, len(x) // 12))
    found = np.stack([by_scikit_learn(model, x[k], y[k]) for k in some])
    np.testing.assert_allclose(found, theta[list(some)], atol=1e-5)
    check_contained(run, found, 1e-5)


# Every dataset --------------------------------------------------------------------------------------------------------


def tiny(seed: int = 0, rows: int = 12) -> Dataset:
    """Rows of two columns, in three classes that overlap."""
    rng, y = np.random.default_rng(seed), np.arange(rows) % K
    return Dataset.of(rng.normal(size=(rows, 2)) + 1.5 * np.array([[1, 0], [-1, 1], [-1, -1]])[y], y)


def every_fit(run: Any, count: int) -> tuple[Any, Any, Any]:
    """All datasets of a threat, and their minimisers."""
    members = run.request.members.members(5000)
    assert members is not None
    assert len(members) == count
    x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
    return x, y, run.request.plan.steps[0].train(np.zeros((len(members), 9)), x, y)


TINY = [Fitted(C=0.3), Fitted(C=0.3, multi=REST), Fitted("squared-hinge", 0.03, penalise_intercept=True)]


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize("most", [1, 2])
def test_every_removal_is_covered_and_nearly_reached(model: Fitted, most: int) -> None:
    data = tiny(most)
    run = mc.certify_fit(Split("tiny", data, test=tiny(7)), Removed(most), model, attacked=False)
    x, y, theta = every_fit(run, 1 + 12 + (66 if most == 2 else 0))
    check_contained(run, theta)
    check_scores(run, x, y, theta)
    reached = (theta.max(axis=0) - theta.min(axis=0)) / (run.bounds.upper - run.bounds.lower)
    assert reached.mean() > (0.8 if most == 1 else 0.5)
    found = np.stack([by_scikit_learn(model, x[k], y[k]) for k in range(0, len(x), most)])
    np.testing.assert_allclose(found, theta[::most], atol=1e-5)


@pytest.mark.parametrize("model", TINY)
def test_flips_and_removals_of_any_two_rows_are_covered(model: Fitted) -> None:
    own = Fitted(model.loss, 0.1 * model.C, multi=model.multi, penalise_intercept=model.penalise_intercept)
    run = mc.certify_fit(Split("tiny", tiny(3), test=tiny(8)), LabelFlips(1) & Removed(1), own, attacked=False)
    check_contained(run, every_fit(run, 25 * 13)[2])


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize("flips", [LabelFlips(1), LabelFlips(1, target=[1]), LabelFlips(2, source=[0], target=[2])])
def test_flips_take_the_weight_of_their_new_class(model: Fitted, flips: LabelFlips) -> None:
    """Of one-versus-rest, the problem of a class that a row never enters or leaves has its weight change all the same."""
    intercept = model.penalise_intercept
    own = Fitted(model.loss, 0.1 * model.C, multi=model.multi, class_weight=BY_CLASS, penalise_intercept=intercept)
    run = mc.certify_fit(Split("tiny", tiny(4), test=tiny(9)), flips, own, attacked=False)
    x, y, theta = every_fit(run, {None: 25, 1: 9, 2: 11}[None if flips.target is None else flips.target[0]])
    check_contained(run, theta)
    check_scores(run, x, y, theta)
    found = np.stack([by_scikit_learn(own, x[k], y[k]) for k in range(len(x))])
    np.testing.assert_allclose(found, theta, atol=1e-5)


@pytest.mark.parametrize("model", TINY)
def test_what_a_lost_row_may_be_is_tried_on_a_grid(model: Fitted) -> None:
    own = Fitted(model.loss, 0.1 * model.C, multi=model.multi, penalise_intercept=model.penalise_intercept)
    threat = Added(1, {"0": (-2, 2), "1": (-1, 3)})
    run = mc.certify_fit(Split("tiny", tiny(5), test=tiny(10)), threat, own, attacked=False)
    x, y = run.request.members.reference
    grid = list(product(np.linspace(-2, 2, 7), np.linspace(-1, 3, 7), range(K)))
    xs, ys = np.repeat(x[None], len(grid), axis=0), np.repeat(y[None], len(grid), axis=0)
    for k, (a, b, label) in enumerate(grid):
        xs[k, -1], ys[k, -1] = (a, b), [*np.eye(K)[label], 1.0, 0.0]
        assert run.request.members.contains(xs[k], ys[k])
    step: Any = run.request.plan.steps[0]
    theta = step.train(np.zeros((len(grid), 9)), xs, ys)
    check_contained(run, theta)
    reached = (theta.max(axis=0) - theta.min(axis=0)) / (run.bounds.upper - run.bounds.lower)
    assert reached.mean() > 0.3


def test_rows_come_and_go_behind_frozen_features() -> None:
    data = tiny(1)
    for multi, threat in product((None, REST), (Removed(2), Added(1, {}), LInf(0.02) & Removed(1))):
        model = Fitted(C=0.05, features=mc.RandomFeatures(5), multi=multi)
        run = mc.certify_fit(data, threat, model, attacked=False)
        step: Any = run.request.plan.steps[0]
        members = run.request.members.sample(np.random.default_rng(0), 60)
        x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
        theta = step.train(np.broadcast_to(run.theta, (len(x), len(run.theta))), x, y)
        assert ((run.bounds.lower <= theta) & (theta <= run.bounds.upper)).all()


# Attacks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multi", [None, REST])
def test_the_adjoint_knows_what_a_row_that_goes_or_comes_does(multi: str | None) -> None:
    """Against differences of real fits, in which a row weighs a little less (or, if it was not there, a little)."""
    data, model = tiny(2), Fitted(C=0.5, multi=multi, class_weight=BY_CLASS)
    bound = (Removed(1) & Added(1, {"0": (-1, 1), "1": (0, 1)})).bind(data)
    step, (x, y), rng = step_of(bound.clean, model), bound.reference, np.random.default_rng(0)
    theta, a = step.train(np.zeros(9), x, y), rng.normal(size=(1, 9))
    noise = bound.noise()
    found = adjoint(step, noise, a, x[None], y[None], theta[None])[0]
    moves = np.asarray(noise.y_linear.todense()).reshape(*y.shape, -1)
    tried = 0
    for symbol in range(noise.symbols):
        if moves[..., K, symbol].any():
            h = 1e-5
            ends = [step.train(np.zeros(9), x, y + sign * h * moves[..., symbol]) for sign in (-1.0, 1.0)]
            np.testing.assert_allclose(found[symbol], a[0] @ (ends[1] - ends[0]) / (2 * h), rtol=1e-4, atol=1e-8)
            tried += 1
    assert tried >= 13


# A hunt -----------------------------------------------------------------------------------------------------------------


def check_random(seed: int) -> None:
    """A random table, model, weights and composition of threats: members sampled, attacked and enumerated."""
    rng = np.random.default_rng(seed)
    n, rest = int(rng.integers(8, 16)), rng.random() < 0.4
    data = tiny(seed, n)
    if rng.random() < 0.4:
        w = rng.choice([0.0, 0.5, 1.0, 2.0], size=n, p=[0.1, 0.2, 0.5, 0.2])
        data = data.weighted(np.where(np.arange(n) < K, 1.0, w))
    parts: list[Any] = [Removed(1)] if rng.random() < 0.5 else []
    if rng.random() < 0.3:
        parts.append(Added(int(rng.integers(1, 3)), {"0": (-1, float(rng.choice([0, 1, 2]))), "1": (-2, 2)}))
    if rng.random() < 0.5:
        parts.append(LInf(float(rng.choice([0.01, 0.1]))) if rng.random() < 0.6 else Budget(LInf(0.5), rows=1))
    if rng.random() < 0.5 or not parts:
        parts.append(LabelFlips(int(rng.integers(1, 3)), target=None if rng.random() < 0.6 else [1]))
    weights = {k: float(rng.choice([0.3, 1.0, 3.0])) for k in range(K)} if rng.random() < 0.5 else None
    loss = "squared-hinge" if rest and rng.random() < 0.5 else "cross-entropy"
    c = float(rng.choice([0.01, 0.05, 0.2])) * (0.1 if loss == "squared-hinge" else 1.0)
    model = Fitted(loss, c, multi=REST if rest else None, class_weight=weights)
    try:
        run = mc.certify_fit(
            Split("tiny", data, test=tiny(seed + 1, 6)), mc.threats.All.of(parts), model, attacked=False
        )
    except mc.MibpCertError:
        return  # a sentence, and no bounds
    bound, step = run.request.members, run.request.plan.steps[0]
    x, y, theta = attacked(step, bound, samples=60, rounds=2, seed=seed)  # type: ignore[arg-type]
    every = bound.members(600)
    if every is not None:
        x, y = (np.stack([m[i] for m in every]) for i in (0, 1))
        theta = np.concatenate([theta, step.train(np.zeros((len(x), theta.shape[1])), x, y)])
    check_contained(run, theta)


@pytest.mark.parametrize("seed", range(4))
def test_random_compositions_lie_in_their_bounds(seed: int) -> None:
    check_random(seed)


@pytest.mark.soundness
@pytest.mark.parametrize("block", range(8))
def test_rows_of_several_classes_hunt(block: int) -> None:
    for seed in range(1000 + 25 * block, 1000 + 25 * block + 25):
        check_random(seed)
