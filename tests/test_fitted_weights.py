"""Weights of rows and classes in fitted models; what threats of rows say, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import mibp_cert as mc
from fits import REGRESSIONS, attacked, step_of, table
from mibp_cert import Added, Budget, Fitted, LabelFlips, LInf, Removed, Split, TargetNoise, column
from mibp_cert.engines import ENGINES
from mibp_cert.errors import UserError
from mibp_cert.fitted import FitStep, finite, presence
from mibp_cert.fitted.engine import table_problem
from mibp_cert.threats import label_is
from test_fitted_rows import LOSSES, QUICK, C, by_scikit_learn, split_of, tiny


@pytest.fixture(autouse=True)
def _by_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few members would be fitted one by one, and no budget would be looked at."""
    monkeypatch.setattr(finite, "MOST", 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exits are not cut, and domains are left in few parts."""
    monkeypatch.setattr("mibp_cert.fitted.problem.CUT_CELLS", 0)
    monkeypatch.setattr(presence, "MOST_PARTS", 8)


# Weights --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [None, "balanced", {"no": 0.5, "yes": 3.0}])
@pytest.mark.parametrize("seed", range(2))
def test_weights_are_those_of_scikit_learn(seed: int, how: Any) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(40, 3)) * [1.0, 3.0, 0.3], rng.choice([0.0, 0.5, 1.0, 4.0], size=40)
    s = x @ [1.0, -0.5, 2.0] + 0.7 + rng.normal(size=40)
    y = np.where(s > 0, "yes", "no")
    mine = mc.CertifiedLogisticRegression(C=0.7, class_weight=how).fit(x, y, sample_weight=w)
    theirs = LogisticRegression(C=0.7, class_weight=how, tol=1e-12, solver="newton-cholesky").fit(x, y, sample_weight=w)
    np.testing.assert_allclose(mine.coef_, theirs.coef_, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(mine.intercept_, theirs.intercept_, rtol=1e-6, atol=1e-6)
    if how is None:
        ridge, other = mc.CertifiedRidge(2.0).fit(x, s, sample_weight=w), Ridge(2.0).fit(x, s, sample_weight=w)
        np.testing.assert_allclose(ridge.coef_, other.coef_, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(ridge.intercept_, other.intercept_, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_weighted_fits_lie_in_their_bounds(loss: str) -> None:
    """Fixed weights, 0 among them, under noise, budgets and removal."""
    split, model = split_of(loss, 12), Fitted(loss, 0.2 * C[loss])
    w = np.array([0.0, 1.0, 2.0, 0.5, 1.0, 0.0, 1.5, 1.0, 1.0, 0.1, 1.0, 1.0])
    wrong = Budget(TargetNoise(1.0), rows=1) if loss in REGRESSIONS else LabelFlips(1)
    for threat in (LInf({"income": 0.3}), wrong, LInf({"age": 1.0}) & Removed(1)):
        run = mc.certify_fit(split, threat, model, sample_weight=w, attack_settings=QUICK)
        bound, step = run.request.members, run.request.plan.steps[0]
        assert isinstance(step, FitStep)
        x, y, theta = attacked(step, bound, samples=20, rounds=1)
        assert (run.bounds.lower <= theta).all()
        assert (theta <= run.bounds.upper).all()
        clean = mc.certify_fit(split.train.take(np.flatnonzero(w)), None, model, sample_weight=w[w > 0])
        np.testing.assert_allclose(run.theta, clean.theta, atol=1e-9)
        if loss == "squared-error":
            some = range(0, len(x), 9)
            found = np.stack([by_scikit_learn(model, x[k], y[k, :, 0], step.counts(y[k])) for k in some])
            np.testing.assert_allclose(found, theta[::9], atol=1e-6)


def test_a_weight_is_a_number_of_equal_rows() -> None:
    """Removing one row of weight 2 is removing two equal rows of weight 1."""
    data = tiny("cross-entropy", 2)
    twice = data.take(np.array([0, 0, 1, 2, 3, 4, 5, 6, 7]))
    one = mc.certify_fit(data, Removed(1).where([0]), Fitted(C=0.3), sample_weight=[2.0, *np.ones(7)])
    two = mc.certify_fit(twice, Removed(2).where([0, 1]), Fitted(C=0.3))
    np.testing.assert_allclose(one.bounds.lower, two.bounds.lower, atol=2e-2)
    np.testing.assert_allclose(one.bounds.upper, two.bounds.upper, atol=2e-2)


# Words and refusals ---------------------------------------------------------------------------------------------------


def test_threats_of_rows_speak_and_survive_a_file() -> None:
    said = {
        Removed(1): "at most one row should not be there",
        Removed(3).where(column("age") >= 65): "where 'age' >= 65, at most 3 rows should not be there",
        Added(2): "at most 2 rows of any kind may have been lost",
        Added(2, {}): "at most 2 rows may have been lost (whatever is seen in the data)",
        Added(1, {"age": (18, 99), "mood": ["bad", "good"]}): (
            "at most one row may have been lost ('age' from 18 to 99, 'mood' among 'bad', 'good')"
        ),
    }
    for threat, words in said.items():
        assert threat.words() == words
        again = mc.threat_from_json(json.loads(json.dumps(threat.to_json())))
        assert (again.to_json(), again.words()) == (threat.to_json(), words)
    data = table("cross-entropy")
    for threat in (Removed(0), Added(0)):
        assert not threat.changes_rows()
        mc.certify_fit(data, threat, Fitted(C=0.1))


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("threat", [Removed(1), LInf(0.1) & Added(1, {})])
def test_engines_of_steps_refuse_rows_that_come_and_go_by_name(engine: str, threat: Any) -> None:
    name = "Removed" if isinstance(threat, Removed) else "Added"
    with pytest.raises(UserError, match=f"engine '{engine}'.*does not know {name}"):
        mc.certify_training(mc.Network.mlp([2, 2]), tiny("cross-entropy"), threat, engine=engine)


NUMBERS = tiny("squared-error")


def test_rows_that_weigh_nothing_count_with_another_label() -> None:
    """Their labels are in doubt without a number, though those of the rows that count are not."""
    data = table("cross-entropy", 8)
    step = step_of(data, Fitted(C=0.1, class_weight={0: 0.0}))
    with pytest.raises(UserError, match="at most a given number of labels may be wrong"):
        table_problem(step, LabelFlips().where(label_is(0)).bind(data), np.zeros(0))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d: mc.certify_fit(d, Added(1)), "Added without a domain"),
        (lambda d: mc.certify_fit(d, Added(1, {"0": (1, 0)})), "domain of the column '0' must be a pair"),
        (lambda d: mc.certify_fit(d, Added(1, {"0": "many"})), "domain of the column '0' must be a pair"),
        (lambda d: mc.certify_fit(d, Added(1, {"0": (0, np.inf)})), "domain of the column '0' must be a pair"),
        (lambda d: mc.certify_fit(d, Added(1, {"size": (0, 1)})), "no column 'size'"),
        (lambda d: Added(1, 3), "A domain names columns"),
        (lambda d: Removed(-1), "budget of -1 rows"),
        (lambda d: mc.certify_fit(d, Removed(1) & Removed(1)), "change the presence of row 0"),
        (lambda d: mc.certify_fit(d, Added(1, {}).where([0])), "Lost rows are none of those"),
        (lambda d: mc.certify_fit(d, Budget(Added(1, {}), rows=1)), "Added has a number of rows of its own"),
        (lambda d: mc.certify_fit(d, Budget(Removed(2), rows=1)), "row budget inside a row budget"),
        (lambda d: mc.certify_fit(d, Removed(4)), "no row of the class 0 is left"),
        (lambda d: mc.certify_fit(d, Removed(2) & LabelFlips(2)), "no row of the class 0 is left"),
        (lambda d: mc.certify_fit(NUMBERS, Removed(8), Fitted("huber")), "no row is left"),
        (lambda d: mc.certify_fit(d, mc.Rules(Removed(1) & LInf(1.0), print)), "leave Removed out of their base"),
        (
            lambda d: mc.certify_fit(Split("t", d, test=d), None, test_threat=Removed(1)),
            "Removed is about training data",
        ),
        (
            lambda d: mc.certify_fit(d, LabelFlips(1), Fitted(class_weight="balanced")),
            "'balanced' depends on the labels",
        ),
        (lambda d: mc.certify_fit(d, Removed(1), Fitted(class_weight="balanced")), "'balanced' depends on the labels"),
        (
            lambda d: mc.certify_fit(d, LabelFlips(), Fitted(C=0.1, class_weight={1: 2}, penalise_intercept=True)),
            "write LabelFlips",
        ),
        (lambda d: mc.certify_fit(d, None, Fitted(class_weight={"2": 1})), "class_weight names the class '2'"),
        (lambda d: mc.certify_fit(d, None, Fitted(class_weight={1: -1})), "weight of the class 1 must be"),
        (lambda d: mc.certify_fit(d, None, Fitted(class_weight={1: 0})), "have the same class"),
        (lambda d: Fitted(class_weight="even"), "class_weight must be"),
        (lambda d: Fitted("huber", class_weight={0: 1}), "class_weight is for models of classes"),
        (lambda d: mc.certify_fit(d, sample_weight=[1.0]), "weights have shape"),
        (lambda d: mc.certify_fit(d, sample_weight=[-1.0, *np.ones(7)]), "finite numbers ≥ 0"),
        (lambda d: mc.certify_fit(d, sample_weight=[np.nan, *np.ones(7)]), "finite numbers ≥ 0"),
        (lambda d: mc.certify_fit(d, sample_weight=["a"] * 8), "must be numbers"),
        (lambda d: mc.certify_fit(d, sample_weight=[1, 0] * 4), "have the same class"),
        (lambda d: mc.certify_training(mc.Network.mlp([2, 2]), d.weighted(np.ones(8))), "belong to fitted models"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as found:
        call(tiny("cross-entropy"))
    assert "\n" not in str(found.value)


def test_weights_are_told() -> None:
    data = tiny("cross-entropy")
    plain = mc.certify_fit(data, None, Fitted(class_weight={1: 2}), sample_weight=[0, 2, *np.ones(6)]).to_json()
    assert plain["class_weight"] == {"1": 2.0}
    assert plain["sample_weight"] == {"rows": 7, "sum": 8.0}
    assert plain["data_sha256"] != mc.certify_fit(data).to_json()["data_sha256"]
    assert not {"class_weight", "sample_weight"} & set(mc.certify_fit(data).to_json())
