"""`certify_fit`: every model that is really fitted on a dataset of the threat lies in its bounds, and keeps certified classes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import mpmath
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from fits import REGRESSIONS, attacked, step_of, table, threats
from mibp_cert import (
    Budget,
    Dataset,
    Fitted,
    LabelFlips,
    LInf,
    Split,
    TargetNoise,
    UserError,
    certify_fit,
)
from mibp_cert.certify.attack import AttackSettings
from mibp_cert.errors import Diverged
from mibp_cert.fitted import SCORE_LOSSES, finite
from test_fitted_core import exact_gradient

LOSSES = list(SCORE_LOSSES)
QUICK = AttackSettings(members=10, points=10, parameters=6, rounds=2)
DIGITS = 60


def split_of(loss: str, seed: int = 0, *, missing: bool = False, rows: int = 10) -> Split:
    """Training rows, and test rows of the same kind without anything missing."""
    train = table(loss, rows, seed, missing=missing)
    return Split("survey", train, test=table(loss, 8, seed + 50, like=train))


def by_scikit_learn(model: Fitted, x: Any, y: Any) -> Any:
    """The minimiser that scikit-learn finds, where it has this model."""
    if model.loss == "squared-error":
        found: Any = Ridge(alpha=1.0 / model.C, tol=1e-12).fit(x, y)
    elif model.loss == "cross-entropy":
        found = LogisticRegression(C=model.C, tol=1e-10, solver="newton-cholesky", max_iter=1000).fit(x, y)
    else:
        found = LinearSVC(C=model.C, tol=1e-10, max_iter=100_000, dual=False).fit(x, y)
    return np.append(np.ravel(found.coef_), found.intercept_)


def check_contained(run: Any, theta: Any, room: float = 0.0) -> None:
    """Parameters, and outputs of the test rows, of models fitted to datasets of the threat."""
    assert (run.bounds.lower - room <= theta).all()
    assert (theta <= run.bounds.upper + room).all()
    rows = run.data.test.x
    out = theta[:, :-1] @ rows.T + theta[:, -1:]
    if run.train.targets is not None:
        found = run.ranges(rows).outputs
        assert (found.low[:, 0] - 1e-9 - room <= out).all()
        assert (out <= found.high[:, 0] + 1e-9 + room).all()
        return
    found = run.certify(rows)
    margins = np.where(found.centre == 1, out, -out)
    slack = 1e-9 + room * (1.0 + np.abs(rows).sum(axis=1))
    assert (found.margin - slack <= margins).all()
    assert (margins <= found.margin_high + slack).all()
    sure = found.certified & (room == 0.0)
    assert ((out[:, sure] > 0) == (found.classes[sure] == 1)).all()


CASES = [(loss, name) for loss in LOSSES for name in threats(loss)]
C = {"cross-entropy": 0.1, "squared-error": 0.02, "squared-hinge": 0.005, "huber": 0.02}
SMALLER_C = {"any category": 4.0, "categories and a bad row": 4.0, "categories and flips": 4.0, "exchanged": 20.0}
"""Whole categories move far: these need a smaller `C` to be proven."""


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_fitted_models_lie_in_their_bounds(loss: str, name: str) -> None:
    """Datasets sampled, pushed along adjoints, and attacked; fitted here, and by scikit-learn where it has the model."""
    threat, split = threats(loss)[name], split_of(loss, missing=name.startswith("missing"))
    model = Fitted(loss, C[loss] / SMALLER_C.get(name, 1.0))
    run = certify_fit(split, threat, model, attack_settings=QUICK)
    step, bound = step_of(split.train, model), threat.bind(split.train)
    x, y, theta = attacked(step, bound, samples=20, rounds=1)
    assert run.attack is not None
    assert np.isfinite(run.bounds.lower).all()
    assert np.isfinite(run.bounds.upper).all()
    check_contained(run, np.concatenate([theta, run.attack.theta]))
    if loss in ("cross-entropy", "squared-error"):
        other = [k for k in range(0, len(x), 9) if loss in REGRESSIONS or len(np.unique(y[k, :, step.column])) == 2]
        found = np.stack([by_scikit_learn(model, x[k], y[k, :, step.column]) for k in other])
        check_contained(run, found, 1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_linear_svms_of_scikit_learn_lie_in_their_bounds(seed: int) -> None:
    """`LinearSVC` penalises its intercept."""
    model, split = Fitted("squared-hinge", 0.02, penalise_intercept=True), split_of("squared-hinge", seed)
    for threat in (LInf(0.05, relative=True), LabelFlips(1)):
        run = certify_fit(split, threat, model, attacked=False)
        x, y, theta = attacked(step_of(split.train, model), threat.bind(split.train), samples=20, rounds=1)
        check_contained(run, theta)
        found = np.stack([by_scikit_learn(model, x[k], y[k, :, 1]) for k in range(0, len(x), 5)])
        np.testing.assert_allclose(found, theta[::5], atol=1e-6)
        check_contained(run, found, 1e-6)


# Every dataset --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["cross-entropy", "squared-hinge"])
@pytest.mark.parametrize("flips", [1, 2])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_every_choice_of_wrong_labels_is_covered(
    loss: str, flips: int, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All single flips, and all pairs, of eight rows; labels of the squared hinge included; members one by one, or by budgets."""
    if not one_by_one:
        monkeypatch.setattr(finite, "MOST", 0)
    rng = np.random.default_rng(flips)
    x = rng.normal(size=(8, 2))
    y = np.arange(8) % 2
    data = Dataset.of(x + 2.0 * (2 * y[:, None] - 1), y)
    test = Dataset.of(rng.normal(size=(20, 2)) * 2, np.arange(20) % 2)
    model = Fitted(loss, 0.2 if loss == "cross-entropy" else 0.01)
    run = certify_fit(Split("tiny", data, test=test), LabelFlips(flips), model, attack_settings=QUICK)
    members = []
    for k in range(flips + 1):
        for rows in combinations(range(8), k):
            labels = y.copy()
            labels[list(rows)] = 1 - labels[list(rows)]
            members.append((data.x, np.eye(2)[labels]))
    xs, ys = (np.stack([m[i] for m in members]) for i in (0, 1))
    theta = step_of(data, model).train(np.zeros((len(members), 3)), xs, ys)
    check_contained(run, theta)
    assert flips > 1 or run.certify(test.x).certified.any()
    z: Any = run.bounds
    if one_by_one:
        np.testing.assert_allclose(z.lower, theta.min(axis=0), rtol=0, atol=1e-9)
        np.testing.assert_allclose(z.upper, theta.max(axis=0), rtol=0, atol=1e-9)
        return
    s = np.einsum("np,mp->mn", np.column_stack([data.x, np.ones(8)]), theta)
    dirty = ys.argmax(axis=2) != y
    assert np.where(dirty, True, (z.ranges.s_low <= s) & (s <= z.ranges.s_high)).all()
    low, high = z.ranges.by[0]
    assert np.where(dirty, (low <= s) & (s <= high), True).all()


@pytest.mark.parametrize("loss", ["cross-entropy", "squared-hinge"])
def test_a_budget_of_noise_and_flips_together_is_covered(loss: str) -> None:
    """Corners of the noise of every row, with and without its label: everything that one bad row can be."""
    data, model = table(loss, 8), Fitted(loss, C[loss])
    threat = Budget(LInf({"age": 10.0, "income": 2.0}) & LabelFlips(), rows=1)
    run = certify_fit(data, threat, model)
    hull, (x, y) = threat.bind(data).hull(), threat.bind(data).reference
    members = []
    for row in range(8):
        for ends in range(4):
            for flip in (False, True):
                a, b = x.copy(), y.copy()
                for bit, j in enumerate((0, 4)):
                    a[row, j] = (hull.x_low if ends >> bit & 1 else hull.x_high)[row, j]
                b[row] = b[row][::-1] if flip else b[row]
                assert threat.bind(data).contains(a, b)
                members.append((a, b))
    xs, ys = (np.stack([m[i] for m in members]) for i in (0, 1))
    theta = step_of(data, model).train(np.zeros((len(members), 6)), xs, ys)
    assert (run.bounds.lower <= theta).all()
    assert (theta <= run.bounds.upper).all()


# Closed form and many digits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(2))
def test_ridge_with_wrong_targets_is_bounded_by_its_exact_range(seed: int, c: float) -> None:
    """`θ = A y` is linear in the targets: its range is `A y ± |A| eps`, and so is that of a prediction."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(12, 3))
    data = Dataset.regression(x, x @ [1.0, -2.0, 0.5] + rng.normal(size=12))
    test = Dataset.regression(rng.normal(size=(5, 3)), np.zeros(5))
    eps = 0.3
    run = certify_fit(
        Split("ridge", data, test=test), TargetNoise(eps), Fitted("squared-error", c), attack_settings=QUICK
    )
    design = np.column_stack([data.x, np.ones(12)])
    a = np.linalg.solve(design.T @ design + np.diag([1 / c] * 3 + [0.0]), design.T)
    queries = np.concatenate([np.eye(4), np.column_stack([test.x, np.ones(5)])]) @ a
    assert data.targets is not None
    middle, radius = queries @ data.targets[:, 0], eps * np.abs(queries).sum(axis=1)
    outputs = run.ranges(test.x).outputs
    low, high = np.append(run.bounds.lower, outputs.low), np.append(run.bounds.upper, outputs.high)
    np.testing.assert_allclose(low, middle - radius, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(high, middle + radius, rtol=1e-9, atol=1e-9)
    assert (low <= middle - radius + 1e-14).all()
    assert (middle + radius - 1e-14 <= high).all()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_ridge_with_few_wrong_targets_is_bounded_by_its_exact_range(k: int) -> None:
    """`k` rows: the `k` largest of `|A| eps`."""
    rng = np.random.default_rng(k)
    x = rng.normal(size=(9, 2))
    data = Dataset.regression(x, x @ [1.0, -2.0] + rng.normal(size=9))
    run = certify_fit(data, Budget(TargetNoise(0.5), rows=k), Fitted("squared-error", 2.0))
    design = np.column_stack([data.x, np.ones(9)])
    a = np.linalg.solve(design.T @ design + np.diag([0.5, 0.5, 0.0]), design.T)
    assert data.targets is not None
    radius = 0.5 * np.sort(np.abs(a), axis=1)[:, -k:].sum(axis=1)
    np.testing.assert_allclose(run.bounds.lower, a @ data.targets[:, 0] - radius, rtol=1e-9)
    np.testing.assert_allclose(run.bounds.upper, a @ data.targets[:, 0] + radius, rtol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_minimisers_to_sixty_digits_lie_in_their_bounds(loss: str) -> None:
    """Newton's method in multiple precision, on the clean data and at the ends of the noise: where float64 rounds, too."""
    rng = np.random.default_rng(5)
    x = np.round(rng.normal(size=(5, 1)) * 8) / 8
    y = rng.normal(size=5) if loss in REGRESSIONS else np.array([0, 1, 0, 1, 1])
    data = Dataset.regression(x, y) if loss in REGRESSIONS else Dataset.of(x, y)
    model = Fitted(loss, 0.5 if loss == "cross-entropy" else 0.05)
    for eps in (0.0, 2.0**-40, 2.0**-5):
        run = certify_fit(data, LInf(eps), model)
        assert eps > 0 or run.bounds.radius.max() < 1e-9
        ends = [x, *(x + eps * rng.choice([-1.0, 1.0], size=x.shape) for _ in range(3))]
        for features in ends:
            design = np.column_stack([features, np.ones(5)])
            exact = exact_minimum(design, np.asarray(y, dtype=float), model.alpha(1), loss, run.theta)
            for low, value, high in zip(run.bounds.lower.tolist(), exact, run.bounds.upper.tolist(), strict=True):
                assert mpmath.mpf(low) <= value <= mpmath.mpf(high)


def exact_minimum(x: Any, y: Any, alpha: Any, loss: str, start: Any) -> list[Any]:
    """The minimiser to 60 digits: the gradient is from its definition, the slopes from differences of it."""

    def gradient(*theta: Any) -> Any:
        return exact_gradient(x, y, alpha, loss, _Exact(theta))

    with mpmath.workdps(DIGITS):
        theta = mpmath.matrix([mpmath.mpf(float(t)) for t in start])
        h = mpmath.mpf(10) ** -25
        for _ in range(40):
            g = mpmath.matrix(gradient(*theta))
            if mpmath.norm(g) < mpmath.mpf(10) ** -40:
                break
            columns = []
            for j in range(len(alpha)):
                moved = theta.copy()
                moved[j] += h
                columns.append([(a - b) / h for a, b in zip(gradient(*moved), g, strict=True)])
            theta = theta - mpmath.lu_solve(mpmath.matrix(columns).T, g)
        assert mpmath.norm(mpmath.matrix(gradient(*theta))) < mpmath.mpf(10) ** -30
        return list(theta)


class _Exact(list[Any]):
    """Parameters in multiple precision, where an array is read."""

    def tolist(self) -> list[Any]:
        return self


# Test inputs in doubt -------------------------------------------------------------------------------------------------


def test_certified_classes_hold_for_doubtful_test_rows() -> None:
    split, threat, doubt = split_of("cross-entropy"), LInf(0.05, relative=True), LInf({"age": 3.0, "income": 0.3})
    run = certify_fit(split, threat, Fitted(C=0.3), test_threat=doubt, attack_settings=QUICK)
    assert run.test is not None
    assert run.test.certified.any()
    assert split.test is not None
    _, _, theta = attacked(step_of(split.train, Fitted(C=0.3)), threat.bind(split.train))
    members = doubt.bind(split.test.ranged(split.train))
    for x, _ in [members.reference, *members.sample(np.random.default_rng(0), 30)]:
        out = theta[:, :-1] @ x.T + theta[:, -1:]
        sure = run.test.certified
        assert ((out[:, sure] > 0) == (run.test.classes[sure] == 1)).all()
        assert (np.where(run.test.centre == 1, out, -out) >= run.test.margin - 1e-9).all()


# Bad input ------------------------------------------------------------------------------------------------------------


def _random(rows: int = 12, features: int = 2, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset.of(rng.normal(size=(rows, features)), np.arange(rows) % 2)


@pytest.mark.parametrize("c", [0, 0.0, -1.0, np.inf, np.nan, "1", None])
def test_a_penalty_that_is_none_is_refused(c: Any) -> None:
    with pytest.raises(UserError, match="C must be a finite number > 0"):
        Fitted(C=c)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: certify_fit(Dataset.of([[0.0], [1.0]], [0, 0], (0, 1))), "same class"),
        (
            lambda: certify_fit(Dataset.of([[0.0], [1.0], [2.0]], [0, 1, 0], (0, 1, 2))),
            "No training row has the class 2",
        ),
        (lambda: certify_fit(Dataset.regression([[0.0], [1.0]], [0.0, 1.0])), "needs classes"),
        (lambda: certify_fit(_random(), model=Fitted("huber")), "needs numbers"),
        (lambda: Fitted("hinge"), "no fitted model with the loss 'hinge'"),
        (lambda: certify_fit(_random(), engine="interval"), "fitted models have dual"),
        (lambda: certify_fit(_random(), 0.1), "A threat says"),  # type: ignore[arg-type]
        (lambda: certify_fit(_random(), LInf(-1.0)), "eps"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as found:
        call()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("threat", [LInf(50.0), LInf(1e200), LabelFlips()])
def test_a_doubt_that_is_too_large_is_said_to_be(loss: str, threat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mibp_cert.fitted.problem.CUT_CELLS", 0)  # cutting exits takes seconds where nothing helps
    data = _random(6)
    if loss in REGRESSIONS:
        if isinstance(threat, LabelFlips):
            pytest.skip("a regression has no labels")
        data = Dataset.regression(data.x, data.x[:, 0])
    with pytest.raises(Diverged, match="The doubt is too large for this model"):
        certify_fit(data, threat, Fitted(loss, 10.0))


def _scaled(loss: str, x: Any) -> Dataset:
    rows = len(x)
    rng = np.random.default_rng(rows)
    return Dataset.regression(x, rng.normal(size=rows)) if loss in REGRESSIONS else Dataset.of(x, np.arange(rows) % 2)


AWKWARD: dict[str, Any] = {
    "fewer rows than parameters": np.random.default_rng(1).normal(size=(4, 9)),
    "collinear columns": np.random.default_rng(2).normal(size=(12, 1)) @ np.ones((1, 3)),
    "a constant column": np.column_stack([np.random.default_rng(3).normal(size=10), np.ones(10)]),
    "columns of zeros": np.zeros((6, 2)),
    "large beside small": np.random.default_rng(4).normal(size=(12, 2)) * [1e8, 1e-8],
    "tiny": np.random.default_rng(5).normal(size=(12, 2)) * 1e-150,
    "huge": np.random.default_rng(6).normal(size=(12, 2)) * 1e150,
    "one value twice": np.repeat(np.random.default_rng(7).normal(size=(3, 2)), 4, axis=0),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_tables_are_bounded_or_refused(loss: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a wrong bound, never NaN."""
    monkeypatch.setattr("mibp_cert.fitted.problem.CUT_CELLS", 0)
    data, model = _scaled(loss, AWKWARD[name]), Fitted(loss, 0.1)
    threat = LInf(1e-4, relative=True)
    try:
        run = certify_fit(Split(name, data, test=data), threat, model, attack_settings=QUICK)
    except (Diverged, UserError):
        return  # a sentence, and no bounds
    _x, _y, theta = attacked(step_of(data, model), threat.bind(data), samples=20, rounds=1)
    usable = np.isfinite(theta).all(axis=1)
    assert np.isfinite(run.bounds.lower).all()
    assert np.isfinite(run.bounds.upper).all()
    assert (run.bounds.lower <= theta[usable]).all()
    assert (theta[usable] <= run.bounds.upper).all()
