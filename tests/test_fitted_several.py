"""Three or more classes beside weights, frozen features and run directories; and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import mibp_cert as mc
from archives import same
from fits import attacked, start_of, step_of, table
from mibp_cert import Budget, Dataset, Fitted, FrozenLayers, LabelFlips, LInf, Network, Split, UserError, certify_fit
from mibp_cert.certify.attack import AttackSettings
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.data import iris
from mibp_cert.errors import Diverged, SoundnessError
from mibp_cert.fitted import FitStep, RandomFeatures, engine
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.class_dual import ClassDual
from mibp_cert.fitted.classes import in_layout, pairs_of
from mibp_cert.fitted.engine import classes_problem
from mibp_cert.fitted.rest import RestKnown
from mibp_cert.fitted.several import OneVersusRest, SoftmaxProblem
from mibp_cert.fitted.softmax import ClassKnown
from mibp_cert.store.verify import AuditSettings, verify
from mibp_cert.threats import L2, AnyCategory, Removed, column

QUICK = AttackSettings(members=4, points=6, parameters=4, rounds=1)
REST = "one-versus-rest"
MODELS = [Fitted(C=0.05), Fitted(C=0.1, multi=REST), Fitted("squared-hinge", C=0.01)]
WEIGHTS = np.array([0.0, 1.0, 2.0, 0.5, 1.0, 0.0, 1.5, 1.0, 1.0, 0.1, 1.0, 1.0, 3.0, 1.0, 2.0])
BY_CLASS = {0: 2.0, 1: 0.5, 2: 1.25}


def split_of(rows: int = 15) -> Split:
    train = table("cross-entropy", rows, classes=3)
    return Split("survey", train, test=table("cross-entropy", 6, 50, like=train, classes=3))


def outside(run: Any) -> float:
    """How far models that were really fitted, to sampled and attacked datasets, are outside of the bounds."""
    (step,) = run.request.plan.steps
    assert isinstance(step, FitStep)
    _, _, theta = attacked(step, run.request.members, samples=20, rounds=1)
    return float(np.maximum(run.bounds.lower - theta, theta - run.bounds.upper).max())


# Weights --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [None, "balanced", {0: 0.5, 2: 3.0}])
def test_weights_are_those_of_scikit_learn(how: Any) -> None:
    data, rng = iris(1).train, np.random.default_rng(0)
    w = rng.choice([0.0, 0.5, 1.0, 4.0], size=len(data))
    mine = mc.CertifiedLogisticRegression(C=0.7, class_weight=how).fit(data.x, data.y, sample_weight=w)
    theirs = LogisticRegression(C=0.7, class_weight=how, tol=1e-12, solver="newton-cholesky")
    theirs.fit(data.x, data.y, sample_weight=w)
    np.testing.assert_allclose(mine.coef_, theirs.coef_, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(mine.intercept_, theirs.intercept_, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_weighted_fits_lie_in_their_bounds(model: Fitted) -> None:
    """Weights of rows, 0 among them, beside noise, wrong labels and wrong rows; weights of classes beside the last."""
    wrong = Budget(LInf({"income": 3.0}), rows=1)
    for threat in (LInf({"income": 0.3}), LabelFlips(1), wrong):
        run = certify_fit(split_of(), threat, model, sample_weight=WEIGHTS, attack_settings=QUICK)
        assert outside(run) <= 0.0
    own = engine.replace(model, C=0.3 * model.C, class_weight=BY_CLASS)
    assert outside(certify_fit(split_of(), wrong, own, sample_weight=WEIGHTS, attack_settings=QUICK)) <= 0.0
    some = np.flatnonzero(WEIGHTS)
    clean = certify_fit(split_of().train.take(some), None, model, sample_weight=WEIGHTS[some])
    np.testing.assert_allclose(run.theta, clean.theta, atol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_a_table_without_its_weights_is_noticed(model: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    original = engine.table_of
    monkeypatch.setattr(engine, "table_of", lambda n, c, w, a: original(n, c, np.sqrt(w), a))
    with pytest.raises((SoundnessError, Diverged)):
        certify_fit(split_of(), LInf({"income": 0.3}), model, sample_weight=WEIGHTS, attacked=False)


# Features and run directories ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_fits_behind_frozen_layers_lie_in_their_bounds(model: Fitted) -> None:
    train = split_of().train
    network = Network.mlp([train.features, 4, 1])
    own = engine.replace(model, features=FrozenLayers(network, network.initialise(0), layers=2))
    for threat in (LInf({"income": 0.1}), LabelFlips(1)):
        run = certify_fit(train, threat, own, sample_weight=WEIGHTS, attack_settings=QUICK)
        assert outside(run) <= 0.0


@pytest.mark.parametrize("model", MODELS)
def test_a_stored_run_gives_the_same_answers(model: Fitted, tmp_path: Path) -> None:
    """All of it holds again, but for the second opinion, which knows no several classes and says so."""
    threat = LInf({"income": 0.1}) & Removed(1)
    run = certify_fit(split_of(), threat, model, attack_settings=QUICK, run_dir=tmp_path)
    assert same(run, mc.load_run(tmp_path))
    x = run.data.tested.x
    assert np.array_equal(run.certify(x).margin, mc.load_run(tmp_path).certify(x).margin)
    checks = {check.name: check for check in verify(tmp_path, AuditSettings(points=2, parameters=1, members=5))}
    assert checks.pop("second opinion").holds is None
    assert all(check.holds for check in checks.values()), checks


@pytest.mark.parametrize("model", MODELS)
def test_outputs_of_one_class_are_bounded_on_their_own(model: Fitted) -> None:
    """No query speaks of two classes: where each has a problem of its own, that one alone is asked."""
    run = certify_fit(split_of(), LInf({"income": 0.1}), model, attacked=False)
    x = run.data.tested.x
    outputs, scores = run.ranges(x).outputs, nominal_outputs(run.network, run.theta, x)
    assert (outputs.low <= scores).all()
    assert (scores <= outputs.high).all()
    assert mc.holds(run, lambda m: m.out(0, 1) <= 100.0, x).name == "HOLDS"


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_threats_that_may_empty_a_class_are_refused(model: Fitted) -> None:
    for threat in (Removed(5), LabelFlips(2) & Removed(3)):
        with pytest.raises(UserError, match="So many rows may go that no row of the class 0 is left"):
            certify_fit(split_of(), threat, model)
    with pytest.raises(Diverged, match="so many labels may be wrong that no row of the class 0 is left"):
        certify_fit(split_of(), LabelFlips(), engine.replace(model, class_weight=BY_CLASS))
    same_for_all = dict.fromkeys(BY_CLASS, 0.5)  # these depend on no label
    run = certify_fit(
        split_of(), LabelFlips(2), engine.replace(model, class_weight=same_for_all), attack_settings=QUICK
    )
    assert outside(run) <= 0.0


@pytest.mark.parametrize("name", ["lp", "mibp"])
@pytest.mark.parametrize("model", MODELS)
def test_engines_of_one_score_are_refused_before_any_work(name: str, model: Fitted, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"The engine '{name}' knows fitted models of one score"):
        certify_fit(split_of(), LInf(0.01), model, name, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_many_rows_and_classes_without_rows_are_refused() -> None:
    rng = np.random.default_rng(0)
    data = Dataset.of(rng.normal(size=(3000, 4)), np.arange(3000) % 3)
    with pytest.raises(UserError, match=r"With 3 classes.*--multi one-versus-rest.*at most about 2500 rows"):
        certify_fit(data, LInf(0.01))
    with pytest.raises(UserError, match="No training row has the class 2"):
        certify_fit(data.take(np.arange(9)), LInf(0.01), sample_weight=(np.arange(9) % 3 < 2).astype(float))


# Whatever multipliers -------------------------------------------------------------------------------------------------


class Drawn(ClassDual):
    """Multipliers around good ones and far from them; rows lean as they did for others."""

    def _find(self, *asked: Any) -> Any:
        u, p, rho, theta = super()._find(*asked)
        rng = np.random.default_rng(len(u))
        size = rng.choice([0.0, 0.03, 0.5], size=(len(u), 1, 1)) * np.abs(u).mean()
        return u + size * rng.normal(size=u.shape), p, rho, theta


def _hull(problem: Any, by_class: Any, s: Any) -> Ranges:
    """The ranges of these models (members × K × P), and of their scores (members × K × rows)."""

    def ends(of: Any) -> tuple[Any, Any]:
        return of.min(axis=0), of.max(axis=0)

    if isinstance(problem, SoftmaxProblem):
        flat = in_layout(by_class, problem.width)
        return Ranges(*ends(flat), *ends(np.einsum("dk,mkn->mnd", pairs_of(3), s).reshape(len(s), -1)))
    assert isinstance(problem, OneVersusRest)
    return problem.joined([Ranges(*ends(by_class[:, k]), *ends(s[:, k])) for k in range(3)])


def beyond_bounds(model: Fitted, threat: Any, rounds: int) -> float:
    """How far a minimiser, or a difference of a row's own scores, is above bounds with such multipliers, for ranges that hold."""
    data = table(model.loss, 9, classes=3)
    step, bound = step_of(data, model), threat.bind(data)
    x, _, theta = attacked(step, bound, samples=8, rounds=1)
    problem, own = classes_problem(step, bound, start_of(step)[: -step.fitted]), theta[:, -step.fitted :]
    by_class, rng = step.by_class(own), np.random.default_rng(0)
    s = np.einsum("mnp,mkp->mnk", step.design(theta, x), by_class)
    differences = (s @ pairs_of(3).T).reshape(len(s), -1)
    dual = problem._dual(_hull(problem, by_class, s.swapaxes(1, 2)), rounds, Drawn)
    a = rng.normal(size=(30, own.shape[1]))
    found = (a @ by_class.reshape(len(own), -1).T).max(axis=1) - dual.upper(a)
    asked = np.einsum("dk,np->ndkp", pairs_of(3), dual.table.rows.x).reshape(-1, own.shape[1])
    index = np.arange(len(asked), dtype=np.intp)
    scores = [(sign * differences).max(axis=0) - dual.upper(sign * asked, index, sign) for sign in (1.0, -1.0)]
    return float(np.nan_to_num(np.concatenate([found, *scores]), nan=np.inf).max())


DRAWN = [Fitted(C=1.0), Fitted(C=1.0, multi=REST), Fitted(C=1.0, features=RandomFeatures(3, 0.5))]
NOISE = {
    "cells": LInf({"age": 6.0, "income": 1.0}),
    "balls": L2({"age": 9.0, "income": 2.0}).where(column("age") >= 50),
    "categories": AnyCategory("mood"),
    "labels": LInf({"income": 0.5}) & LabelFlips().where(column("age") >= 70),
}


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize("model", DRAWN)
def test_every_minimiser_is_below_bounds_with_whatever_multipliers(model: Fitted, name: str, rounds: int) -> None:
    assert beyond_bounds(model, NOISE[name], rounds) <= 1e-9


# What noise is multiplied by ------------------------------------------------------------------------------------------


def t_excess(model: Fitted, threat: Any) -> float:
    """How far `t = Σ_k (ψ_k u_k + λ_k θ_k)` of real models, along cells and shared directions, is outside middle ± radius."""
    data, rng = table(model.loss, 9, classes=3), np.random.default_rng(0)
    step, bound = step_of(data, model), threat.bind(data)
    x, y, theta = attacked(step, bound, samples=8, rounds=1)
    problem, by_class = (
        classes_problem(step, bound, start_of(step)[: -step.fitted]),
        step.by_class(theta[:, -step.fitted :]),
    )
    s = np.einsum("mnp,mkp->mkn", step.design(theta, x), by_class)
    known = problem._dual(_hull(problem, by_class, s)).all
    u, lam = rng.normal(size=(2, 20, *by_class.shape[1:])), rng.normal(size=(20, 3, s.shape[-1]))
    lam -= lam.mean(axis=1, keepdims=True)
    found = [-np.inf]
    for of, at, label in zip(by_class, s, y, strict=True):
        psi = known.rows.w * known.at(at, label[:, :3].T)[1]
        for some in u:
            t = np.einsum("kn,qkp->qnp", psi, some) + np.einsum("qkn,kp->qnp", lam, of)
            middle, radius = known._moved(some, lam)
            found.append(float((np.abs(t - middle) - radius).max()))
            if known.rows.j is not None and known.rows.j.size:
                along = np.einsum("qnp,ndp->qnd", t, known.rows.j)
                middle, radius = known._directed(some, lam)
                found.append(float((np.abs(along - middle) - radius).max()))
    return max(found)


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize("model", DRAWN)
def test_what_noise_is_multiplied_by_is_enclosed(model: Fitted, name: str) -> None:
    assert t_excess(model, NOISE[name]) <= 1e-12


@pytest.mark.parametrize(
    ("model", "owner", "name"),
    [
        (DRAWN[0], ClassKnown, "_moved"),
        (DRAWN[1], ClassKnown, "_moved"),
        (DRAWN[2], ClassKnown, "_directed"),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_radius_that_is_too_small_is_noticed(
    model: Fitted, owner: Any, name: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = getattr(owner, name)

    def narrow(self: Any, *asked: Any, **how: Any) -> Any:
        middle, radius = whole(self, *asked, **how)
        return middle, share * radius

    monkeypatch.setattr(owner, name, narrow)
    assert max(t_excess(model, threat) for threat in NOISE.values()) > 1e-4


def test_constants_taken_from_classes_whose_slopes_have_no_sum_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RestKnown, "less", ClassKnown.less)
    assert max(t_excess(DRAWN[1], threat) for threat in NOISE.values()) > 1e-3
