"""Models at their minimum at the edges: command line, configuration, JSON, report and estimators."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks
from typer.testing import CliRunner

import mibp_cert as mc
from mibp_cert import CertifiedLogisticRegression, CertifiedRidge, cli
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.config import merged, plain_config
from mibp_cert.data import iris
from mibp_cert.errors import Diverged, UserError
from mibp_cert.fitted import MODELS
from mibp_cert.job import job_of
from mibp_cert.report.html import html_report
from mibp_cert.report.terminal import summary

LOGISTIC = ["certify", "two-moons", "--model", "logistic"]


def table(rows: int = 60, *, missing: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    found = pd.DataFrame(
        {
            "age": rng.integers(20, 80, rows).astype(float),
            "mood": ["good", "fair", "bad", *rng.choice(["good", "fair", "bad"], rows - 3).tolist()],
        }
    )
    found["ill"] = np.where((found["age"] - 50) / 15 + (found["mood"] == "bad") > 0, "yes", "no")
    if missing:
        found.loc[[4, 6], "mood"] = None
    return found


def invoke(*words: str) -> str:
    found = CliRunner().invoke(cli.app, list(words))
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


def sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    """Exit status of a command that fails, and the one sentence that it says."""
    monkeypatch.setattr(sys, "argv", ["mibp-cert", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    shown = capsys.readouterr().err.strip()
    assert "Traceback" not in shown
    assert len(shown.splitlines()) == 1
    return int(str(stopped.value.code)), shown


# Command line -----------------------------------------------------------------------------------------------------------


def test_a_fitted_model_on_the_command_line(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("out.json", "out.html", "bounds.npz", "witness.npz")]
    flags = zip(("--json", "--report", "--bounds", "--witness"), paths, strict=True)
    asked = ["--margin", "0.1", "--rising", "0", "--protected", "1", *(word for pair in flags for word in pair)]
    told = invoke(*LOGISTIC, "--eps", "0.02", "--C", "0.5", "--test-eps", "0.01", *asked)
    assert "at the minimum of the loss cross-entropy with C = 0.5" in told
    assert "Fixed, and not computed anew on other data" in told
    assert "Validation (200 points)" in told
    plain = json.loads(Path(paths[0]).read_text())
    assert (plain["model"], plain["engine"], plain["loss"], plain["C"]) == ("logistic", "dual", "cross-entropy", 0.5)
    steps = "seed", "learning_rate", "batch_size", "batch_mode", "init", "unroll", "select", "steps", "steps_per_epoch"
    assert {key: plain[key] for key in steps} == dict.fromkeys(steps)
    assert plain["epochs"] == []
    assert 0.5 < plain["test"]["certified_accuracy"] <= plain["test"]["attacked_accuracy"]
    assert set(plain["postconditions"]) == {"margin", "rising", "protected", "output"}
    page = Path(paths[1]).read_text()
    assert "at the minimum of the loss cross-entropy with C = 0.5" in page
    with np.load(paths[2]) as kept:
        assert (kept["lower"] <= kept["theta"]).all()
    for text in (told, page):
        assert not any(word in text for word in ("epoch", "after 1 step", "1 step(s)", "trained for"))


def test_its_configuration_makes_the_same_run_again(tmp_path: Path) -> None:
    invoke(
        *LOGISTIC, "--eps", "0.01", "--C", "0.3", "--seed", "2", "--no-attack", "-q", "--json", str(tmp_path / "a.json")
    )
    plain = json.loads((tmp_path / "a.json").read_text())
    assert {key: value for key, value in plain["configuration"]["model"].items() if value is not None} == {
        "kind": "logistic", "C": 0.3, "fit_intercept": True, "penalise_intercept": False,
    }  # fmt: skip
    job = job_of(merged(plain["configuration"]))
    again = job.run(*job.engines).to_json()
    assert {key: again[key] for key in ("test", "data_sha256", "C")} == {
        k: plain[k] for k in ("test", "data_sha256", "C")
    }


def test_a_network_says_so_and_keeps_nothing_of_fitted_models() -> None:
    job = job_of(merged({"data": {"source": "two-moons"}, "training": {"epochs": 1}}))
    plain = job.run("interval").to_json()
    assert plain["model"] == "network"
    assert not {"C", "fit_intercept", "penalise_intercept"} & set(plain)
    assert plain_config(job.config)["model"] == {"kind": "network"}
    job_of(merged(plain_config(job.config)))


@pytest.mark.parametrize("model", MODELS)
def test_every_model_reads_a_file_of_ones_own(tmp_path: Path, model: str) -> None:
    numbers = model in ("ridge", "huber")
    frame = table(missing=not numbers)
    if numbers:
        frame = frame.assign(ill=2.0 * frame["age"] + (frame["mood"] == "bad"))
    frame.to_csv(tmp_path / "data.csv", index=False)
    doubt = ["--target-eps", "2"] if numbers else ["--missing", "all", "--eps", "age=1"]
    words = ["certify", str(tmp_path / "data.csv"), "--target", "ill", *doubt, "--model", model, "--C", "0.02"]
    told = invoke(*words, "--json", str(tmp_path / "out.json"))
    plain = json.loads((tmp_path / "out.json").read_text())
    assert (plain["model"], plain["loss"], plain["prediction"]) == (model, MODELS[model], "dual")
    assert "certified" in told
    found = plain["test"]
    assert found["certified_error"] >= found["attacked_error"] if numbers else found["certified_accuracy"] > 0.5


@pytest.mark.parametrize(
    "words",
    [
        "--hidden 3", "--activation tanh", "--logits 1", "--loss hinge", "--epochs 10", "--lr 0.1", "--learning-rate 0.1",
        "--schedule cosine", "--momentum 0", "--weight-decay 0", "--clip 1", "--batch-size 10", "--batch-mode shuffle",
        "--init torch", "--select last", "--predict exact", "--unroll 1", "--symbols 5", "--search 1", "--solver scip",
        "--gap 0.1", "--nodes-per-program 3", "--seconds-per-step 1", "--engine relational", "--engine interval,crown",
    ],
)  # fmt: skip
def test_flags_of_steps_are_refused_by_name(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, said = sentence(capsys, monkeypatch, *LOGISTIC, *words.split())
    flag = words.split()[0].replace("--learning-rate", "--lr")
    assert (status, said.startswith(f"mibp-cert: {flag}"), "leave it out" in said) == (2, True, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--C 2", "--C belongs to models that are fitted"),
        ("--model network --C 2", "--C belongs to models that are fitted"),
        ("--model logit", "no model called 'logit'; did you mean 'logistic'"),
        (
            "--model ridge",
            "--model ridge predicts numbers, but the target has classes; choose logistic or squared-hinge",
        ),
        ("--model logistic --C 0", "C must be a finite number > 0"),
        ("--model logistic --C nan", "C must be a finite number > 0"),
        ("--model logistic --C inf", "C must be a finite number > 0"),
        ("--model logistic --eps nan", "eps must be finite"),
        ("--features 30", "--features belongs to models that are fitted"),
        ("--feature-scale 2", "--feature-scale belongs to models that are fitted"),
        ("--model logistic --feature-scale 2", "say how many there are, such as --features 30"),
        ("--model logistic --features 0", "whole number ≥ 1"),
        ("--model logistic --features 3 --feature-kind relu", "no random features called 'relu'"),
        ("--model logistic --features 3 --feature-scale 0", "finite number > 0"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, shown = sentence(capsys, monkeypatch, "certify", "two-moons", *words.split())
    assert status == 2
    assert said in shown


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model": {"kind": "logistic"}, "training": {"epochs": 3}}, r"^\[training\] epochs belongs to networks"),
        ({"model": {"kind": "logistic"}, "select": {"least_steps": 3}}, r"^\[select\] least_steps belongs"),
        ({"model": {"kind": "logistic"}, "run": {"engine": "crown"}}, r"^\[run\] engine crown is for networks"),
        ({"data": {"source": "iris"}, "model": {"C": 3.0}}, r"^\[model\] C belongs to models that are fitted"),
        ({"model": {"kind": "logistic", "c": 3.0}}, r"^\[model\] has no key 'c'"),
        ({"model": {"kind": "logistic", "C": "big"}}, r"^\[model\] C must be a number"),
    ],
)
def test_a_file_is_held_to_the_same(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        merged(config)


def test_the_command_line_goes_over_the_file_also_for_the_model() -> None:
    given = {"model": {"kind": "logistic", "C": 3.0}, "run": {"engine": "dual"}}
    assert merged(given, {"model": {"kind": "squared-hinge"}})["model"]["kind"] == "squared-hinge"
    with pytest.raises(UserError, match=r"^--epochs belongs"):
        merged(given, {"training": {"epochs": 3}})


@pytest.mark.parametrize("kind", ["tanh", "fourier"])
def test_random_features_on_the_command_line(kind: str, tmp_path: Path) -> None:
    like = ["--features", "5", "--feature-scale", "1.5", "--feature-kind", kind, "--feature-seed", "2"]
    path = tmp_path / "a.json"
    told = invoke(*LOGISTIC, "--eps", "0.005", "--C", "0.5", *like, "--no-attack", "--json", str(path))
    assert f"behind 5 random {kind} features of scale 1.5 (seed 2)" in " ".join(told.split())
    assert "6 parameters, at the minimum" in " ".join(told.split())
    plain = json.loads(path.read_text())
    assert plain["features"] == {"kind": kind, "count": 5, "scale": 1.5, "seed": 2}
    assert plain["test"]["certified_accuracy"] > 0.5
    job = job_of(merged(plain["configuration"]))
    assert isinstance(job.training, mc.Fitted)
    assert job.training.features == mc.RandomFeatures(5, 1.5, 2, kind)
    assert job.run(*job.engines).to_json()["test"]["certified_accuracy"] == plain["test"]["certified_accuracy"]


def test_estimators_take_features() -> None:
    data, kinds = mc.two_moons(0).train, ("tanh", "fourier")
    for kind in kinds:
        frozen = mc.RandomFeatures(5, 1.5, kind=kind)
        model = CertifiedLogisticRegression(C=0.5, threat=mc.LInf(0.005), features=frozen).fit(data.x, data.y)
        body, theta = frozen.body(2)
        phi = nominal_outputs(body, theta, data.x)
        other = LogisticRegression(C=0.5, tol=1e-10, max_iter=1000).fit(phi, data.y)
        np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-5)
        np.testing.assert_allclose(model.intercept_, other.intercept_, atol=1e-5)
        assert (model.predict(data.x) != model.abstain_label_).mean() > 0.5
    target = data.x[:, 0] * data.x[:, 1]
    ridge = CertifiedRidge(alpha=2.0, threat=mc.TargetNoise(0.1), features=frozen).fit(data.x, target)
    np.testing.assert_allclose(ridge.coef_, Ridge(alpha=2.0).fit(phi, target).coef_, atol=1e-8)


@pytest.mark.parametrize(
    ("model", "multi"), [("logistic", None), ("logistic", "one-versus-rest"), ("squared-hinge", None)]
)
def test_three_classes_on_the_command_line(tmp_path: Path, model: str, multi: str | None) -> None:
    path, more = tmp_path / "out.json", [] if multi is None else ["--multi", multi]
    words = ["certify", "iris", "--model", model, "--C", "0.02", "--eps", "0.005", *more]
    told = invoke(*words, "--json", str(path), "--report", str(tmp_path / "page.html"))
    plain = json.loads(path.read_text())
    assert (plain["model"], plain["multi"], plain["network"], plain["parameters"]) == (model, multi, [4, 3], 15)
    assert plain["test"]["certified_accuracy"] > 0.5
    assert multi is None or f", {multi}" in told


# Words ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> mc.CertifiedRun:
    return mc.certify_fit(mc.two_moons(0, sizes=(40, 20, 20)), mc.LInf(0.1), mc.Fitted(C=0.3))


def test_words_about_a_fitted_model(run: mc.CertifiedRun) -> None:
    assert "logistic at its minimum" in repr(run)
    page = html_report(run, words="all")
    for text in (repr(run), summary(run), page):
        assert not any(word in text for word in ("steps,", "1 step", "epoch", "trained", "learning rate"))
    assert "whatever optimiser finds it" in page
    assert "models fitted on other possible data" in page
    bare = mc.certify_fit(run.train, None, mc.Fitted(penalise_intercept=True))
    assert "C = 1, intercept penalised" in summary(bare)
    assert "Every fitted parameter lies" in html_report(bare, words="nothing")
    assert "C = 1, no intercept" in summary(mc.certify_fit(run.train, None, mc.Fitted(fit_intercept=False)))


def test_questions_that_need_another_engine_are_refused(run: mc.CertifiedRun) -> None:
    x = run.data.tested.x
    with pytest.raises(UserError, match="not by 'exact'"):
        run.certify(x, method="exact")
    assert mc.holds(run, lambda m: m.parameter("0.bias", 0) < 100.0).name == "HOLDS"
    assert len(mc.monotone(run, x, 0)) == len(mc.fair(run, x, 1).verdicts) == len(x)


def test_flips_at_once_lie_between_attack_and_proof(run: mc.CertifiedRun) -> None:
    found = mc.collective(run)
    assert found.reached <= found.proven <= found.single


# Estimators -------------------------------------------------------------------------------------------------------------


@parametrize_with_checks([CertifiedLogisticRegression(), CertifiedRidge()])
def test_scikit_learn_accepts_the_estimators(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    ("kind", "frozen"),
    [
        (CertifiedLogisticRegression, "C=1.0 threat=None fit_intercept=True features=None attack=None categorical=None "
         "ranges=None abstain_label=None verbose=0 class_weight=None"),
        (CertifiedRidge, "alpha=1.0 threat=None fit_intercept=True features=None attack=None categorical=None ranges=None "
         "verbose=0"),
    ],
)  # fmt: skip
def test_parameters_keep_their_names_order_and_defaults(kind: Any, frozen: str) -> None:
    parameters = inspect.signature(kind).parameters
    assert [f"{name}={p.default!r}" for name, p in parameters.items()] == frozen.split()


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("strength", [0.01, 1.0, 30.0])
def test_the_model_is_that_of_scikit_learn(strength: float, intercept: bool) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 3)) * [1.0, 3.0, 0.2] + [0.0, 1.0, 5.0]
    s = X @ [1.0, -0.5, 2.0] - 9.0 + rng.normal(size=60)
    mine = CertifiedLogisticRegression(C=strength, fit_intercept=intercept).fit(X, s > 0)
    theirs = LogisticRegression(C=strength, fit_intercept=intercept, tol=1e-12, solver="newton-cholesky").fit(X, s > 0)
    ridge = CertifiedRidge(alpha=strength, fit_intercept=intercept).fit(X, s)
    other = Ridge(alpha=strength, fit_intercept=intercept).fit(X, s)
    for ours, known in ((mine, theirs), (ridge, other)):
        assert np.shape(ours.coef_) == np.shape(known.coef_)
        assert np.shape(ours.intercept_) == np.shape(known.intercept_)
        assert np.allclose(ours.coef_, known.coef_, rtol=1e-6, atol=1e-6)
        assert np.allclose(ours.intercept_, known.intercept_, rtol=1e-6, atol=1e-6)
        assert np.array_equal(ours.predict(X), known.predict(X)) or np.allclose(ours.predict(X), known.predict(X))


@pytest.mark.parametrize("intercept", [True, False])
def test_three_classes_are_those_of_scikit_learn(intercept: bool) -> None:
    data = iris(2).train
    names = np.array(["setosa", "versicolor", "virginica"])[data.y]
    mine = CertifiedLogisticRegression(C=1.0, fit_intercept=intercept).fit(data.x, names)
    theirs = LogisticRegression(C=1.0, fit_intercept=intercept, tol=1e-12, solver="newton-cholesky").fit(data.x, names)
    assert mine.coef_.shape == theirs.coef_.shape == (3, 4)
    assert np.allclose(mine.coef_, theirs.coef_, atol=1e-6)
    assert np.allclose(mine.intercept_, theirs.intercept_, atol=1e-6)
    assert np.array_equal(mine.predict(data.x), theirs.predict(data.x))
    sure = CertifiedLogisticRegression(C=0.1, fit_intercept=intercept, threat=mc.LInf(0.01)).fit(data.x, names)
    told = sure.certify(data.x[:20], names[:20])
    assert told["certified"].mean() > 0.7
    assert sure.predict_interval(data.x[:5]).shape == (5, 3, 2)


def test_other_fits_of_scikit_learn_lie_within_the_bounds() -> None:
    """Whatever scikit-learn makes of a dataset of the threat: inside, and with the certified classes."""
    rng, data = np.random.default_rng(2), mc.two_moons(1, sizes=(50, 10, 40))
    X, y, rows = data.train.x, data.train.y, data.tested.x
    model = CertifiedLogisticRegression(C=1.0, threat=mc.LInf(0.03)).fit(X, y)
    answer = model.predict(rows)
    assert (answer != model.abstain_label_).mean() > 0.7
    for _ in range(40):
        other = LogisticRegression(C=1.0, tol=1e-12, solver="newton-cholesky")
        other.fit(X + 0.03 * rng.choice([-1.0, 1.0], X.shape), y)
        theta = np.append(other.coef_[0], other.intercept_)
        assert ((model.bounds_.lower <= theta) & (theta <= model.bounds_.upper)).all()
        assert (other.predict(rows) == answer)[answer != model.abstain_label_].all()


def test_ridge_under_wrong_targets_is_known_exactly() -> None:
    """`θ` is linear in `y`: the range of an output has the half width `Σ_i |∂out/∂y_i|·eps`."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(20, 3))
    y, rows, eps = 100.0 + 50.0 * X[:, 0] + rng.normal(size=20), rng.normal(size=(5, 3)), 2.0
    low, high = CertifiedRidge(alpha=0.7, threat=mc.TargetNoise(eps)).fit(X, y).predict_interval(rows).T
    moved = [Ridge(alpha=0.7).fit(X, one).predict(rows) for one in np.eye(20)]
    clean, reach = Ridge(alpha=0.7).fit(X, y).predict(rows), eps * np.abs(moved).sum(axis=0)
    assert np.allclose(low, clean - reach, rtol=1e-9)
    assert np.allclose(high, clean + reach, rtol=1e-9)


def test_tables_answers_and_attack_are_those_of_the_other_estimators() -> None:
    frame = table(40).assign(age=lambda t: (t["age"] - 50.0) / 20.0)
    X, y = frame.drop(columns="ill"), frame["ill"]
    model = CertifiedLogisticRegression(C=0.3, threat=mc.LInf({"age": 0.02}) & mc.LabelFlips(1)).fit(X, y)
    told = model.certify(X, y)
    assert told.columns.tolist() == [
        "class", "label", "correct", "certified", "margin_low", "margin_high", "nominal_class", "attacked_class", "reason",
    ]  # fmt: skip
    assert set(model.predict(X)) <= {"yes", "no", "abstain"}
    assert model.score(X, y) == told["correct"].mean()
    assert model.predict_interval(X).shape == (40, 1, 2)
    ridge = CertifiedRidge(threat=mc.TargetNoise(0.1)).fit(X, X["age"] * 3.0)
    assert ridge.certify(X, X["age"] * 3.0)["largest_error"].max() < 1.0
    assert np.array_equal(ridge.predict(X), ridge.predict_nominal(X))


def test_a_search_over_C_looks_for_what_can_be_proven() -> None:
    data = mc.two_moons(0, sizes=(60, 10, 10)).train
    found = GridSearchCV(CertifiedLogisticRegression(threat=mc.LInf(0.05)), {"C": [0.03, 1.0]}, cv=2).fit(
        data.x, data.y
    )
    assert found.best_score_ == max(found.cv_results_["mean_test_score"]) > 0.5


def test_bad_input_of_the_estimators_is_one_sentence() -> None:
    X, y = [[0.0], [1.0], [2.0]], [0, 1, 2]
    with pytest.raises(UserError, match="C must be a finite number > 0"):
        CertifiedLogisticRegression(C=0.0).fit(X, [0, 1, 1])
    for alpha in (0.0, -1.0, np.inf, np.nan, "much"):
        with pytest.raises(UserError, match="alpha must be a finite number > 0"):
            CertifiedRidge(alpha=alpha).fit(X, y)
    with pytest.raises(NotFittedError):
        _ = CertifiedRidge().coef_
    assert not hasattr(CertifiedLogisticRegression(), "intercept_")


def test_fit_warns_where_nothing_is_certified() -> None:
    X = np.random.default_rng(0).normal(size=(12, 1))
    with pytest.warns(ConvergenceWarning, match="Try a smaller C, or less doubt"):
        CertifiedLogisticRegression(C=0.01, threat=mc.LInf(3.0)).fit(X, X[:, 0] > 0)


@pytest.mark.parametrize("where", ["estimator", "command line"])
def test_a_start_that_no_box_proves_is_said(
    where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mibp_cert.fitted.engine.prove", lambda problem, **how: None)
    if where == "estimator":
        with pytest.raises(Diverged, match="Use a smaller C"):
            CertifiedLogisticRegression(threat=mc.LInf(0.1)).fit([[0.0], [1.0], [2.0]], [0, 1, 1])
    else:
        status, said = sentence(capsys, monkeypatch, *LOGISTIC)
        assert (status, "no ranges of its parameters could be proven" in said) == (3, True)


@pytest.mark.parametrize("widest", [0.03, 0.003])
def test_a_c_that_would_do_does(widest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where ranges are refused for their width, though they are proven."""
    monkeypatch.setattr("mibp_cert.fitted.advice.WIDEST", widest)
    data, threat = mc.two_moons(0, sizes=(20, 5, 5)), mc.LInf(0.1)
    with pytest.raises(Diverged, match=r"Use a smaller C \([0-9.]+ would do") as found:
        mc.certify_fit(data, threat, mc.Fitted(C=1.0))
    enough = float(str(found.value).split("smaller C (")[1].split(" ")[0])
    run = mc.certify_fit(data, threat, mc.Fitted(C=enough), attacked=False)
    assert run.bounds.radius.max() <= widest * max(1.0, np.abs(run.theta).max())


def test_rows_without_any_slope_left_do_not_crash_the_bound() -> None:
    """Scores so far from 0 that the intercept, which is not penalised, has no curvature: nothing is proven, and that is said."""
    with pytest.raises(Diverged, match="The doubt is too large for this model"):
        mc.certify_fit(mc.two_moons(0, sizes=(20, 10, 10)), mc.LInf(500.0), mc.Fitted(C=1.0))
