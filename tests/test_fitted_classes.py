"""Several classes at their minimum: softmax and one-versus-rest, with real fits inside of their bounds."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import mpmath
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from fits import attacked, step_of, table, threats
from mibp_cert import Dataset, Fitted, LabelFlips, LInf, RandomFeatures, Split, UserError, certify_fit
from mibp_cert.certify.attack import AttackSettings
from mibp_cert.data import iris
from mibp_cert.fitted import engine, softmax
from mibp_cert.fitted.classes import (
    Box,
    by_class,
    curvature,
    in_layout,
    minimise_classes,
    pairs_of,
    ridge,
    tilt_classes,
)
from mibp_cert.fitted.softmax import ClassKnown
from mibp_cert.threats import Nothing

QUICK = AttackSettings(members=4, points=6, parameters=4, rounds=1)
REST = "one-versus-rest"
K = 3
FEW = ("linf", "l1", "missing", "budget of rows", "categories and flips", "row of everything")
"""Threats of every kind: cells, pieces, several rows, budgets, labels."""


def by_scikit_learn(model: Fitted, x: Any, y: Any) -> Any:
    """Weights and intercepts (K × P) that scikit-learn finds, its intercepts moved so that softmax's have the sum 0."""
    if model.loss == "squared-hinge":
        found: Any = LinearSVC(C=model.C, tol=1e-10, max_iter=100_000, dual=False).fit(x, y)
        return np.column_stack([found.coef_, found.intercept_])
    binary = LogisticRegression(C=model.C, tol=1e-10, solver="newton-cholesky", max_iter=1000)
    if model.multi == REST:
        parts = OneVsRestClassifier(binary).fit(x, y).estimators_
        return np.stack([np.append(part.coef_[0], part.intercept_) for part in parts])
    found = binary.fit(x, y)
    assert abs(found.intercept_.sum()) < 1e-9  # scikit-learn's own intercepts have the sum 0
    return np.column_stack([found.coef_, found.intercept_ - found.intercept_.mean()])


# Minimisers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("model", [Fitted(), Fitted(multi=REST), Fitted("squared-hinge", penalise_intercept=True)])
def test_minimisers_are_those_of_scikit_learn(model: Fitted, c: float) -> None:
    data = iris(0).train
    ours = Fitted(model.loss, c, multi=model.multi, penalise_intercept=model.penalise_intercept)
    theta = step_of(data, ours).train(np.zeros(15), data.x, data.one_hot)
    found = in_layout(by_scikit_learn(ours, data.x, data.y), 4)
    np.testing.assert_allclose(theta, found, rtol=1e-6, atol=1e-6)


def exact_gradient(x: Any, y: Any, alpha: Any, pin: float, theta: Any) -> list[list[Any]]:
    """`∇L` to 60 digits, from the definitions."""
    with mpmath.workdps(60):
        m, classes = mpmath.mpf, range(len(theta))
        total = [[m(float(a)) * t for a, t in zip(alpha, theta[k], strict=True)] for k in classes]
        for k in classes:
            total[k][-1] += m(pin) * mpmath.fsum(theta[c][-1] for c in classes)
        for row, label in zip(x.tolist(), y.tolist(), strict=True):
            z = [mpmath.fsum(m(v) * t for v, t in zip(row, theta[k], strict=True)) for k in classes]
            whole = mpmath.fsum(mpmath.exp(v) for v in z)
            for k in classes:
                psi = mpmath.exp(z[k]) / whole - m(label[k])
                total[k] = [have + psi * m(v) for have, v in zip(total[k], row, strict=True)]
        return total


def many_digits(theta: Any) -> list[list[Any]]:
    with mpmath.workdps(60):
        return [[mpmath.mpf(float(v)) for v in row] for row in theta]


def test_the_tilt_covers_the_exact_gradient() -> None:
    rng = np.random.default_rng(0)
    for scale in (1.0, 1e4, 1e-6):
        x = np.column_stack([rng.normal(size=(9, 2)) * [scale, 1.0], np.ones(9)])
        y, alpha = np.eye(K)[np.arange(9) % K], np.array([1.0, 0.1, 0.0])
        best = minimise_classes(x, y, np.ones(9), alpha, 1.0)
        for theta in (best, best + 1e-9 * rng.normal(size=best.shape), 10.0 * rng.normal(size=best.shape)):
            bound = tilt_classes(x, y, np.ones(9), alpha, 1.0, theta)
            exact = exact_gradient(x, y, alpha, 1.0, many_digits(theta))
            flat = [g for row in exact for g in row]
            assert all(abs(g) <= mpmath.mpf(t) for g, t in zip(flat, bound.ravel().tolist(), strict=True))


def test_the_pin_moves_nothing_but_the_sum_of_the_intercepts() -> None:
    data = iris(1).train
    x, y, w = np.column_stack([data.x, np.ones(len(data))]), data.one_hot, np.ones(len(data))
    alpha = np.array([1.0] * 4 + [0.0])
    found = [minimise_classes(x, y, w, alpha, pin) for pin in (0.1, 1.0, 100.0)]
    for theta in found:
        np.testing.assert_allclose(theta, found[0], atol=1e-9)
        np.testing.assert_allclose(theta.sum(axis=0), 0.0, atol=1e-9)


def test_minimisers_to_sixty_digits_lie_in_their_bounds() -> None:
    """Newton's method in multiple precision, on the clean data and at the ends of the noise: where float64 rounds, too."""
    rng = np.random.default_rng(5)
    x = np.round(rng.normal(size=(6, 1)) * 8) / 8
    data, model, alpha = Dataset.of(x, np.arange(6) % K), Fitted(C=0.5), np.array([2.0, 0.0])
    for eps in (0.0, 2.0**-40, 2.0**-5):
        run = certify_fit(data, LInf(eps), model)
        assert eps > 0 or run.bounds.radius.max() < 1e-9
        low, high = (by_class(end, K, 1) for end in (run.bounds.lower, run.bounds.upper))
        for move in (0.0, *(eps * rng.choice([-1.0, 1.0], size=x.shape) for _ in range(2))):
            design = np.column_stack([x + move, np.ones(6)])
            exact = _newton(design, data.one_hot, alpha, by_class(run.theta, K, 1))
            for k, j in product(range(K), range(2)):
                assert mpmath.mpf(float(low[k, j])) <= exact[k][j] <= mpmath.mpf(float(high[k, j]))


def _newton(x: Any, y: Any, alpha: Any, start: Any) -> list[list[Any]]:
    """The pinned minimiser to 60 digits: steps with the curvature of float64 gain about ten digits each."""
    theta = many_digits(start)
    p = np.exp(x @ start.T)
    bent = curvature((p / p.sum(axis=1, keepdims=True)).T, np.ones(len(x)), x) + ridge(alpha, 1.0, K)
    with mpmath.workdps(60):
        inverse = mpmath.matrix(np.linalg.inv(bent).tolist())
        for _ in range(60):
            g = exact_gradient(x, y, alpha, 1.0, theta)
            step = inverse * mpmath.matrix([v for row in g for v in row])
            theta = [[theta[k][j] - step[2 * k + j] for j in range(2)] for k in range(K)]
            if mpmath.norm(step) < mpmath.mpf(10) ** -40:
                return theta
    raise AssertionError("no minimiser")


# Scores ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_the_maximum_over_scores_is_never_too_small_and_nearly_right(classes: int) -> None:
    """`ω·p − λ·z` over ranges of differences, against a dense sample of scores; for three classes within a third of the plain
    width of the ranges."""
    rng = np.random.default_rng(classes)
    for wide in (1e-3, 0.3, 2.0):
        centre, n = rng.normal(size=(40, classes)) * 2.0, 40
        pairs = pairs_of(classes)
        z = centre[:, None, :] + rng.uniform(-wide, wide, (n, 4000, classes))
        z[:, : 2**classes] = centre[:, None, :] + wide * np.array(list(product([-1.0, 1.0], repeat=classes)))
        apart = z @ pairs.T
        low, high = apart.min(axis=1).ravel(), apart.max(axis=1).ravel()
        known = _known(n, classes, low, high)
        omega = rng.normal(size=(1, classes, n))
        p = np.exp(z - z.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        assert (known.p[0].T[:, None] <= p).all()
        assert (p <= known.p[1].T[:, None]).all()
        for start in (z[:, 0], z[:, 100], centre, centre + 5.0 * rng.normal(size=centre.shape)):
            at = softmax.softmax(start.T, 0)[None]
            lam = known.multipliers(omega, at)
            top = known.band(omega, at, lam)[0]
            value = np.einsum("kn,nmk->nm", omega[0], p) - np.einsum("kn,nmk->nm", lam[0], z)
            assert (value.max(axis=1) <= top + 1e-12).all()
        at = softmax.softmax(centre.T, 0)[None]
        lam = known.multipliers(omega, at)
        value = np.einsum("kn,nmk->nm", omega[0], p) - np.einsum("kn,nmk->nm", lam[0], z)
        gap = known.band(omega, at, lam)[0] - value.max(axis=1)
        assert np.median(gap) <= 0.05 * wide * wide + 1e-12


def _known(n: int, classes: int, low: Any, high: Any) -> ClassKnown:
    rows = engine.table_of(Nothing().bind(table("cross-entropy", n)).noise(), 1, np.ones(n), np.ones(7)).rows
    labels = np.eye(classes)[np.arange(n) % classes]
    rows = softmax.Rows(rows.x, rows.r, labels, np.zeros((n, classes)), rows.w)
    box = Box(*(np.ones((classes, rows.x.shape[1])) for _ in range(3)))
    return ClassKnown(rows, low, high, box)


# Bounds ----------------------------------------------------------------------------------------------------------------


def check_contained(run: Any, theta: Any, room: float = 0.0) -> None:
    """Parameters, and margins of the test rows, of models (as laid out) fitted to datasets of the threat."""
    assert (run.bounds.lower - room <= theta).all()
    assert (theta <= run.bounds.upper + room).all()
    rows = np.column_stack([run.data.test.x, np.ones(len(run.data.test.x))])
    out = np.moveaxis(rows @ by_class(theta, K, rows.shape[1] - 1).swapaxes(1, 2), 0, 1)  # rows × models × K
    found = run.certify(run.data.test.x)
    own = np.take_along_axis(out, found.centre[:, None, None], axis=2)[..., 0]
    rest = np.where(np.arange(K) == found.centre[:, None, None], -np.inf, out).max(axis=2)
    slack = 1e-9 + 4.0 * room * np.abs(rows).sum(axis=1)[:, None]
    assert (found.margin[:, None] - slack <= own - rest).all()
    assert (own - rest <= found.margin_high[:, None] + slack).all()
    if room == 0.0:
        assert (out.argmax(axis=2) == found.classes[:, None])[found.certified].all()


C = {**dict.fromkeys(("any category", "categories and a bad row", "categories and flips"), 0.005), "exchanged": 0.0005}
"""Whole categories move far: these need a smaller `C` to be proven."""
CASES = [
    pytest.param(multi, name, marks=[] if name in FEW else pytest.mark.soundness)
    for multi in ("softmax", REST)
    for name in threats("cross-entropy")
]


@pytest.mark.parametrize(("multi", "name"), CASES)
def test_fitted_models_lie_in_their_bounds(multi: str, name: str) -> None:
    """Datasets sampled, pushed along adjoints, and attacked; fitted here and by scikit-learn."""
    train = table("cross-entropy", 12, missing=name.startswith("missing"), classes=K)
    split = Split("survey", train, test=table("cross-entropy", 8, 50, like=train, classes=K))
    threat, model = threats("cross-entropy")[name], Fitted(C=C.get(name, 0.02), multi=multi)
    run = certify_fit(split, threat, model, attack_settings=QUICK)
    x, y, theta = attacked(step_of(train, model), threat.bind(train), samples=15, rounds=1)
    assert run.attack is not None
    check_contained(run, np.concatenate([theta, run.attack.theta]))
    other = [k for k in range(0, len(x), 25) if len(np.unique(y[k].argmax(axis=1))) == K]
    found = np.stack([by_scikit_learn(model, x[k], y[k].argmax(axis=1)) for k in other])
    check_contained(run, in_layout(found, train.features), 1e-6)


@pytest.mark.parametrize("multi", ["softmax", REST])
@pytest.mark.parametrize("flips", [1, 2])
def test_every_choice_of_wrong_labels_is_covered(multi: str, flips: int) -> None:
    """All single flips to any other class, and all pairs of them."""
    rng, n = np.random.default_rng(flips), 15
    y = np.arange(n) % K
    data = Dataset.of(rng.normal(size=(n, 2)) + 2.0 * np.array([[1, 0], [-1, 1], [-1, -1]])[y], y)
    test = Dataset.of(rng.normal(size=(20, 2)) * 4, np.arange(20) % K)
    model = Fitted(C=0.1 / flips**2, multi=multi)
    run = certify_fit(Split("tiny", data, test=test), LabelFlips(flips), model, attack_settings=QUICK)
    members = []
    for rows in combinations(range(n), flips):
        for classes in product(range(K), repeat=flips):
            labels = y.copy()
            labels[list(rows)] = classes
            members.append(np.eye(K)[labels])
    ys = np.stack(members)
    theta = step_of(data, model).train(np.zeros((len(ys), 9)), np.broadcast_to(data.x, (len(ys), n, 2)), ys)
    check_contained(run, theta)
    assert flips > 1 or run.certify(test.x).certified.any()


def test_random_features_and_other_intercepts() -> None:
    data, threat = iris(0).train, LInf(0.002)
    small = Dataset.of(data.x[:30], data.y[:30], data.classes, data.columns)
    for model in (
        Fitted(C=0.1, features=RandomFeatures(6, scale=0.5)),
        Fitted(C=0.1, fit_intercept=False),
        Fitted(C=0.1, penalise_intercept=True),
        Fitted("squared-hinge", 0.01, penalise_intercept=True),
    ):
        run = certify_fit(small, threat, model, attack_settings=QUICK)
        _x, _y, theta = attacked_with(model, small, threat, run.request.start)
        assert all(run.bounds.contains(one) for one in theta)


def attacked_with(model: Fitted, data: Dataset, threat: Any, start: Any) -> tuple[Any, Any, Any]:
    network, bound = model.network(data), threat.bind(data)
    (step,) = model.plan(network, data, start).steps
    members = [bound.reference, *bound.sample(np.random.default_rng(0), 20)]
    xs, ys = (np.stack([m[i] for m in members]) for i in (0, 1))
    return xs, ys, step.train(np.broadcast_to(start, (len(members), len(start))), xs, ys)


@pytest.mark.parametrize("multi", ["softmax", REST])
def test_iris_is_certified_for_nearly_all_that_attacks_leave(multi: str) -> None:
    run = certify_fit(iris(0), LInf(0.02), Fitted(C=0.1, multi=multi), attack_settings=QUICK)
    assert run.attacked_accuracy is not None
    assert run.certified_test_accuracy is not None
    assert run.certified_test_accuracy >= run.attacked_accuracy - 0.041


def test_what_several_classes_cannot_be_is_said_in_one_sentence() -> None:
    for loss, multi in (("squared-hinge", "softmax"), ("cross-entropy", "all-pairs"), ("squared-error", "softmax")):
        with pytest.raises(UserError, match="Several classes with the loss"):
            Fitted(loss, multi=multi)


def test_more_classes_lie_in_their_bounds() -> None:
    rng, n, classes = np.random.default_rng(4), 20, 4
    y = np.arange(n) % classes
    angle = 2.0 * np.pi * y / classes
    data = Dataset.of(rng.normal(size=(n, 2)) + 3.0 * np.column_stack([np.cos(angle), np.sin(angle)]), y)
    for threat, c in ((LInf(0.05), 0.2), (LabelFlips(1), 0.02)):
        model = Fitted(C=c)
        run = certify_fit(data, threat, model, attack_settings=QUICK)
        _x, _y, theta = attacked(step_of(data, model), threat.bind(data), samples=30, rounds=1)
        assert all(run.bounds.contains(one) for one in theta)
