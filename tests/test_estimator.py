"""scikit-learn estimators: their contract, pipelines, grid search; certificates hold for really trained models."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import mibp_cert as mc
from estimators import DOUBT, linear, table
from mibp_cert import CertifiedClassifier, CertifiedRegressor
from mibp_cert.certify.predict import nominal_classes, nominal_outputs
from mibp_cert.errors import UserError
from mibp_cert.nets import run_steps


@parametrize_with_checks([CertifiedClassifier(), CertifiedRegressor(hidden=(4,), epochs=25, learning_rate=0.1)])
def test_scikit_learn_accepts_the_estimators(estimator: Any, check: Any) -> None:
    check(estimator)


CLASSIFIER = (
    "hidden=() threat=None engine='relational' loss='cross-entropy' learning_rate=0.2 epochs=20 "
    "batch_size=None random_state=0 activation='relu' logits=None network=None momentum=0.0 weight_decay=0.0 "
    "clip=None schedule='constant' init='torch' batch_mode='shuffle' select='best-validation' "
    "validation_fraction=0.2 prediction=None unroll=1 solver=None relational=None attack=None categorical=None "
    "ranges=None scaling='standard' abstain_label=None run_dir=None resume=False verbose=0"
)
REGRESSOR = (
    "hidden=() threat=None engine='relational' loss='squared-error' learning_rate=0.1 epochs=50 batch_size=None "
    "random_state=0 activation='relu' network=None momentum=0.0 weight_decay=0.0 clip=None schedule='constant' init='torch' "
    "batch_mode='shuffle' prediction=None unroll=1 solver=None relational=None attack=None categorical=None ranges=None "
    "scaling='standard' run_dir=None resume=False verbose=0"
)


@pytest.mark.parametrize(("kind", "frozen"), [(CertifiedClassifier, CLASSIFIER), (CertifiedRegressor, REGRESSOR)])
def test_parameters_keep_their_names_order_and_defaults(kind: Any, frozen: str) -> None:
    parameters = inspect.signature(kind).parameters
    assert [f"{name}={p.default!r}" for name, p in parameters.items()] == frozen.split()
    first, *others = (p.kind for p in parameters.values())
    assert first is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert set(others) == {inspect.Parameter.KEYWORD_ONLY}
    model = kind((3,), epochs=7, verbose=1)
    assert model.get_params() == {n: p.default for n, p in parameters.items()} | {
        "hidden": (3,),
        "epochs": 7,
        "verbose": 1,
    }
    assert clone(model).get_params() == pickle.loads(pickle.dumps(model)).get_params() == model.get_params()
    assert repr(model) == f"{kind.__name__}(epochs=7, hidden=(3,), verbose=1)"
    assert model != clone(model), "two estimators are the same one or not"


def test_the_table_of_answers_keeps_index_and_names() -> None:
    X, y = table()
    model = linear(threat=DOUBT).fit(X, y)
    found = model.certify(X, y)
    assert found.index.tolist() == X.index.tolist()
    wanted = [
        "class",
        "label",
        "correct",
        "certified",
        "margin_low",
        "margin_high",
        "nominal_class",
        "attacked_class",
        "reason",
    ]
    assert found.columns.tolist() == wanted
    assert set(found["class"]) <= {"ill", "well", "abstain"}
    assert 0 < found["certified"].sum() < len(found)
    assert (found["class"] == model.predict(X)).all()
    assert (found.loc[found["certified"], "margin_low"] > 0).all()
    assert (found["margin_low"] <= found["margin_high"]).all()
    assert found.loc[found["certified"], "attacked_class"].isna().all(), "no attack changes what is certified"
    changed = found["reason"].str.startswith("another class is possible")
    assert (found["attacked_class"].notna() == changed).all()
    assert (found.loc[changed, "attacked_class"] != found.loc[changed, "nominal_class"]).all()
    assert ((found["reason"] == "") == found["certified"]).all()
    assert model.score(X, y) == found["correct"].mean()
    assert list(model.feature_names_in_) == ["age", "mood"]
    assert model.predict_interval(X).shape == (60, 1, 2)
    assert model.history_[-1]["epoch"] == 8


def test_certified_classes_are_those_of_every_model_really_trained() -> None:
    """Datasets of the threat, drawn at random, trained for real; rows with missing values filled in at random."""
    X, y = table()
    model = linear(threat=DOUBT).fit(X, y)
    run, rng = model.run_, np.random.default_rng(1)
    steps, begin = run.request.plan.steps[: run.steps], run.request.plan.begin
    classes, known = model.predict(X), model.certify(X, attack=False)
    complete = X.fillna({"age": 44.0, "mood": "fair"})
    for x, labels in run.threat.bind(run.train).sample(rng, 30):
        theta = run_steps(steps, begin, x, labels)
        assert run.bounds.contains(theta[: run.network.layout.size])
        filled = complete.assign(
            age=np.where(X["age"].isna(), rng.uniform(X["age"].min(), X["age"].max()), X["age"]),
            mood=np.where(X["mood"].isna(), rng.choice(["good", "fair", "bad"]), X["mood"]),
        )
        given = model.classes_[nominal_classes(run.network, theta, model.recipe_.apply(filled)[0])]
        assert ((classes == "abstain") | (classes == given)).all()
        # One logit: its sign speaks for one class, and its size is the margin.
        logit = nominal_outputs(run.network, theta, model.recipe_.apply(filled)[0])[:, 0]
        centre = run.certify_inputs(model._inputs(X)[0]).centre
        margin = np.where(centre == 1, logit, -logit)
        assert ((known["margin_low"] <= margin) & (margin <= known["margin_high"])).all()


def test_ranges_of_a_regression_hold_for_every_model_really_trained() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (40, 2))
    y = 100.0 + 30.0 * X[:, 0] - 5.0 * X[:, 1] + rng.normal(0, 2, 40)
    model = CertifiedRegressor(hidden=(), threat=mc.TargetNoise(3.0) & mc.LInf(0.05), epochs=20, learning_rate=0.2).fit(
        X, y
    )
    run, column = model.run_, model.run_.train.target
    steps, begin = run.request.plan.steps[: run.steps], run.request.plan.begin
    low, high = model.predict_interval(X).T
    assert column is not None
    for x, targets in run.threat.bind(run.train).sample(rng, 30):
        theta = run_steps(steps, begin, x, targets)
        outputs = column.scale * nominal_outputs(
            run.network, theta, model.recipe_.apply(pd.DataFrame(X, columns=["0", "1"]))[0]
        )
        assert ((low <= outputs[:, 0] + column.shift) & (outputs[:, 0] + column.shift <= high)).all()
    found = model.certify(X, y)
    assert {"target", "nominal", "low", "high", "largest_error", "attacked_low", "attacked_high", "reason"} == set(
        found.columns
    )
    assert ((found["low"] <= found["attacked_low"]) & (found["attacked_high"] <= found["high"])).all()
    worst = 1.0 - (found["largest_error"] ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert model.score(X, y) == pytest.approx(worst)
    assert model.score(X, y) < 1.0 - ((model.predict(X) - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
def test_target_noise_is_in_the_units_of_the_target(scale: float) -> None:
    """Targets moved by the amount allowed, in the user's own units, lead to models inside the bounds; a set for half of it
    would not hold them all."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (30, 1))
    y = scale * (100.0 + 30.0 * X[:, 0] + rng.normal(0, 2, 30))
    model, half = (
        CertifiedRegressor(hidden=(), threat=mc.TargetNoise(eps * scale), epochs=30, learning_rate=0.2).fit(X, y)
        for eps in (5.0, 2.5)
    )
    run, column = model.run_, model.run_.train.target
    assert column is not None
    steps, begin = run.request.plan.steps[: run.steps], run.request.plan.begin
    beyond = False
    for signs in (np.ones(30), -np.ones(30), np.sign(X[:, 0] - 5), rng.choice([-1.0, 1.0], 30)):
        moved = column.to_feature((y + 5.0 * scale * signs)[:, None])
        assert run.threat.bind(run.train).contains(run.train.x, moved)
        theta = run_steps(steps, begin, run.train.x, moved)
        assert run.bounds.contains(theta)
        beyond |= not half.bounds_.contains(theta)
        low, high = model.predict_interval(X).T
        outputs = column.scale * nominal_outputs(run.network, theta, run.train.x)[:, 0] + column.shift
        assert ((low <= outputs) & (outputs <= high)).all()
    assert beyond


def test_a_pipeline_with_grid_search_looks_for_what_can_be_proven() -> None:
    X, y = table(missing=False)
    model = make_pipeline(linear(threat=mc.LInf({"age": 1.0})))
    search = GridSearchCV(model, {"certifiedclassifier__epochs": [1, 6]}, cv=3).fit(X, y)
    assert search.best_params_["certifiedclassifier__epochs"] in (1, 6)
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])
    scaled = make_pipeline(StandardScaler(), linear(threat=mc.LInf(0.05), scaling="none"))
    assert 0 < cross_val_score(scaled, X[["age"]], y, cv=3).mean() <= 1


@pytest.mark.filterwarnings("ignore:−1 is a class")
@pytest.mark.parametrize(
    ("labels", "given", "expected"),
    [
        ([0, 1], None, -1),
        ([-1, 1], None, -2),
        ([5, 7], None, -1),
        ([0.0, 1.0], None, -1.0),
        (["a", "b"], None, "abstain"),
        ([False, True], None, -1),
        ([0, 1], 99, 99),
    ],
)
def test_the_word_for_abstaining_is_of_the_classes_kind(labels: list[Any], given: Any, expected: Any) -> None:
    X = np.array([[0.0], [0.1], [1.0], [1.1]])
    y = np.array([labels[0], labels[0], labels[1], labels[1]])
    model = linear(threat=mc.LInf(0.2), abstain_label=given).fit(X, y)
    assert model.abstain_label_ == expected
    assert type(model.abstain_label_) is type(expected)
    answers = model.predict([[0.0], [0.55], [1.1]])
    assert answers[1] == expected
    assert answers[0] == labels[0]
    assert answers.dtype.kind == np.array([labels[0], expected]).dtype.kind


def test_clean_data_abstain_nowhere_and_give_the_nominal_class() -> None:
    X, y = table(missing=False)
    model = CertifiedClassifier().fit(X, y)
    assert (model.predict(X) == model.predict_nominal(X)).all()


def test_clone_and_pickle_keep_threat_and_bounds() -> None:
    X, y = table()
    threat = DOUBT & mc.Rounded("age", to=2).where(mc.column("age") >= 60)
    model = linear(threat=threat).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.bounds_.lower, model.bounds_.lower)
    assert clone(model).fit(X, y).bounds_.within(model.bounds_)
    assert clone(model).fit(X, y).threat.to_json() == threat.to_json()


def test_validation_rows_choose_the_epoch_and_are_not_trained_on() -> None:
    X, y = table()
    model = linear(threat=DOUBT, select="best-validation", epochs=12).fit(X, y)
    assert len(model.run_.train) == 48
    assert model.run_.steps <= 12
    assert model.run_.validation[1] is not None


def test_bounds_that_diverge_warn_and_abstain_everywhere() -> None:
    X, y = table(missing=False)
    with pytest.warns(ConvergenceWarning, match="diverged"):
        model = CertifiedClassifier(
            threat=mc.LInf({"age": 30.0}), learning_rate=2.0, epochs=40, hidden=20, select="last"
        ).fit(X, y)
    assert (model.predict(X) == "abstain").all()
    assert set(model.certify(X, attack=False)["reason"]) == {f"the bounds diverged at step {model.run_.diverged}"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"threat": mc.LInf(1.0)}, "Input X contains NaN in 'age', 'mood'"),
        ({"threat": DOUBT, "engine": "exact"}, "no engine called 'exact'"),
        ({"threat": DOUBT, "activation": "gelu"}, "no activation called 'gelu'"),
        ({"threat": DOUBT, "network": "mlp"}, "network is a Network or from_torch"),
        ({"threat": DOUBT, "abstain_label": "ill"}, "is one of the classes"),
        ({"threat": 0.1}, "A threat says what may be wrong"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], words: str) -> None:
    X, y = table()
    with pytest.raises(UserError, match=words):
        linear(**change).fit(X, y)


def test_other_columns_at_prediction_are_named() -> None:
    X, y = table(missing=False)
    model = linear(threat=mc.LInf({"age": 1.0})).fit(X, y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X.rename(columns={"age": "years"}))
    with pytest.raises(UserError, match="'great' is not a category of the column 'mood'"):
        model.predict(X.assign(mood="great"))


def test_progress_is_silent_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = table(missing=False)
    linear(threat=mc.LInf({"age": 1.0})).fit(X, y)
    assert capsys.readouterr() == ("", "")
    linear(threat=mc.LInf({"age": 1.0}), verbose=1).fit(X, y)
    assert "epoch" in capsys.readouterr().err


def test_a_missing_value_at_prediction_is_every_valid_value() -> None:
    """Where one category certifies one class and another the other, a row without its answer must abstain."""
    X, y = table()
    model = linear(threat=mc.Missing() & mc.LInf({"age": 0.01})).fit(X, y)
    ages = np.linspace(20, 80, 25)
    answers = {mood: model.predict(pd.DataFrame({"age": ages, "mood": mood})) for mood in ("good", "fair", "bad")}
    unknown = model.predict(pd.DataFrame({"age": ages, "mood": [None] * len(ages)}))
    differ = (answers["good"] == "well") & (answers["bad"] == "ill")
    assert differ.any()
    assert (unknown[differ] == "abstain").all()
    agree = unknown != "abstain"
    assert agree.any()
    for given in answers.values():
        assert (given[agree] == unknown[agree]).all()
    lost = model.predict(pd.DataFrame({"age": [None], "mood": ["fair"]}, dtype=object).astype({"age": float}))
    assert lost[0] == "abstain"


def test_when_nothing_is_certified_the_estimator_says_what_to_try() -> None:
    X, y = table(missing=False)
    with pytest.warns(ConvergenceWarning, match="Nothing is certified.*hidden="):
        CertifiedClassifier(threat=mc.LInf({"age": 20.0}), hidden=6, epochs=12, select="last").fit(X, y)


def test_blame_from_the_estimator_names_rows_by_their_index() -> None:
    X, y = table()
    model = linear(threat=DOUBT).fit(X, y)
    found = model.blame(X, top=3)
    assert set(found.fixed) <= set(X.index)
    assert found.before == model.certify(X, attack=False)["certified"].sum()
    assert found.after is not None
