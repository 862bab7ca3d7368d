"""Questions about fitted models: which rows and columns carry the uncertainty, and every question that is linear in the
parameters, in Python and on the command line; the rest is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import mibp_cert as mc
from fits import table
from mibp_cert import cli
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.errors import Diverged, UserError
from mibp_cert.fitted import advice
from mibp_cert.fitted.explain import Clean
from mibp_cert.questions.explain import explain_ends
from test_fitted_explain import moons, step_of_run


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mibp_cert.fitted.problem.CUT_CELLS", 0
    )  # cutting exits takes seconds, and changes nothing here


# Blame -----------------------------------------------------------------------------------------------------------------


def test_blame_ranks_rows_and_columns_of_a_fitted_model() -> None:
    """A row in doubt by much leads; the second run shows what it is worth."""
    threat = mc.LInf(0.02) & mc.LInf(1.0, rows=[7], columns=[1])
    run = moons(threat)
    found = mc.blame(run, x=run.train.x, points=range(40), top=1)
    assert (found.rows["number"][0], found.columns.index[0]) == (7, "1")
    assert found.before is not None
    assert found.after is not None
    assert found.after >= found.before
    assert "certified, verified by a second run" in found.sentence
    assert np.isclose(found.cells["effect"].sum(), 100.0)
    assert set(found.to_json()) == {"rows", "points", "fixed", "certified_before", "certified_after"}
    flips = mc.blame(moons(mc.LabelFlips(2)), verified=False, points=[0, 1])
    assert set(flips.cells["column"]) == {"(label)"}
    assert flips.points == 2


def test_blame_of_a_regression_is_about_widths() -> None:
    train = table("squared-error", 14)
    data = mc.Split("survey", train, test=table("squared-error", 6, 50, like=train))
    run = mc.certify_fit(data, mc.TargetNoise(0.5) & mc.LInf({"age": 1.0}), mc.Fitted("squared-error", 0.02))
    found = mc.blame(run, top=14)
    assert found.widths
    assert found.before is not None
    assert found.after is not None
    assert found.after < 1e-6 * found.before  # all rows are right: nothing is left
    assert "wide on average instead of" in found.sentence
    assert set(found.cells["column"]) <= {"age", "(target)"}
    assert "width_before" in found.to_json()


def test_effects_are_those_of_the_ends_in_question() -> None:
    """For one point, the share of a cell is its part of the lower end of the margin."""
    run = moons()
    x = run.data.tested.x[:1]
    found = mc.blame(run, x=x, points=[0], verified=False)
    side = -1.0 if run.certify(x).centre[0] == 1 else 1.0
    parts = explain_ends(run, x, np.array([side]))
    cells = (parts.noise + parts.chords)[0]
    line = found.cells.iloc[0]
    assert np.isclose(line["effect"], 100.0 * cells[int(line["number"]), int(line["column"])] / cells.sum())


# Where nothing is proven -------------------------------------------------------------------------------------------------


def test_the_sentence_names_rows_columns_and_a_C_that_does() -> None:
    data, threat = table("squared-error"), mc.TargetNoise(3.0) & mc.LInf({"age": 30.0})
    with pytest.raises(Diverged, match="The doubt is too large for this model") as found:
        mc.certify_fit(data, threat, mc.Fitted("squared-error", 10.0))
    said = str(found.value)
    assert "\n" not in said
    assert "the targets (" in said
    assert "the column 'age' (" in said
    assert "; rows with most of it are " in said
    c = float(said.split("a smaller C (")[1].split(" would do")[0])
    assert c < 10.0
    mc.certify_fit(data, threat, mc.Fitted("squared-error", c))


def test_no_C_is_looked_for_where_that_takes_long_and_none_is_named_where_none_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = moons()
    problem: Any = run.bounds.problem  # type: ignore[attr-defined]
    tried = list[float]()

    def never(c: float) -> Any:
        tried.append(c)
        return problem

    monkeypatch.setattr(advice.Search, "repeated", lambda self: (None, False))
    assert advice.smaller(problem, 2.0, never) is None
    assert tried == [0.02, 0.0059, 0.002] or len(tried) <= 3
    monkeypatch.setattr(advice, "CELLS", 10)
    assert advice.smaller(problem, 2.0, never) is None
    assert len(tried) <= 3


def test_shares_to_first_order_are_those_of_the_rows_in_doubt() -> None:
    data = mc.two_moons(0, sizes=(12, 5, 5)).train
    run = mc.certify_fit(data, mc.LInf(0.01, rows=[2, 4]), mc.Fitted())
    problem: Any = run.bounds.problem  # type: ignore[attr-defined]
    share = advice.shares(problem, Clean.of(step_of_run(run), run.request.members, np.zeros(0)))
    assert set(np.flatnonzero(share.sum(axis=1) > 0)) == {2, 4}
    assert np.isclose(share.sum(), 6.0)  # both ends of three parameters


# Every question ----------------------------------------------------------------------------------------------------------


def test_margins_fairness_and_slopes_hold_for_real_fits() -> None:
    """Whatever is said to hold does, for models fitted to members of the threat."""
    train = table("cross-entropy", 20)
    data = mc.Split("survey", train, test=table("cross-entropy", 12, 50, like=train))
    threat = mc.LInf({"age": 0.3, "income": 0.03}) & mc.LInf({"age": 3.0}, rows=[4])
    run = mc.certify_fit(data, threat, mc.Fitted(C=1.0))
    x, members = data.tested.x, threat.bind(train)
    step = step_of_run(run)
    theta = np.stack([step.train(run.theta, *m) for m in members.sample(np.random.default_rng(0), 40)])
    out = theta[:, :-1] @ x.T + theta[:, -1:]
    sure = run.certify(x, margin=0.1)
    assert sure.certified.any()
    assert (np.where(sure.classes == 1, out, -out)[:, sure.certified] >= 0.1).all()
    for rising in (True, False):
        answer = mc.monotone(run, x, "income", rising=rising)
        if answer[0].name == "HOLDS":
            assert ((theta[:, 4] >= 0) == rising).all()
    fair = mc.fair(run, x, "mood").certified
    for k in range(3):
        changed = x.copy()
        changed[:, 1:4] = np.eye(3)[k]
        classes = (theta[:, :-1] @ changed.T + theta[:, -1:] > 0).astype(int)
        assert (classes == fair.classes)[:, fair.certified].all()
    assert mc.collective(run).proven <= (~run.certify(x).certified).sum()


def test_what_is_monotone_behind_features_is_so_for_models_fitted_to_other_data() -> None:
    run = moons(mc.LInf(0.02), c=0.3, features=mc.RandomFeatures(4, 0.3))
    x, attack = run.data.tested.x, run.attack
    low, high = run.train.x[:, 0].min(), run.train.x[:, 0].max()
    rising, falling = (mc.monotone(run, x, 0, rising=up) for up in (True, False))
    assert any(verdict.name == "HOLDS" for verdict in [*rising, *falling])
    model, (step,) = run.fitted, run.request.plan.steps
    assert model is not None
    assert attack is None
    members = run.request.members.sample(np.random.default_rng(0), 20)
    theta = step.train(
        np.broadcast_to(run.theta, (20, len(run.theta))), *(np.stack([m[i] for m in members]) for i in (0, 1))
    )
    for verdicts, sign in ((rising, 1.0), (falling, -1.0)):
        for row, verdict in zip(x, verdicts, strict=True):
            path = np.repeat(row[None], 30, axis=0)
            path[:, 0] = np.linspace(low, high, 30)
            outputs = np.stack([nominal_outputs(run.network, one, path)[:, 0] for one in theta])
            assert verdict.name != "HOLDS" or (np.diff(sign * outputs, axis=1) >= -1e-12).all()


def test_conditions_that_are_linear_hold_and_others_are_refused_by_name() -> None:
    run = moons()
    x = run.data.tested.x[:2]
    assert mc.holds(run, lambda m: m.out(0, 0) - m.out(1, 0) <= 100.0, x).name == "HOLDS"
    assert mc.holds(run, lambda m: m.parameter("0.weight", 0, 1) >= 100.0).name == "FAILS"
    with pytest.raises(UserError, match="bounds what is linear in the fitted parameters"):
        mc.holds(run, lambda m: m.parameter("0.weight", 0, 0) * m.parameter("0.weight", 0, 1) <= 100.0)
    with pytest.raises(UserError, match="their own engine, not by 'exact'"):
        mc.holds(run, lambda m: m.out(0, 0) <= 1.0, x, method="exact")
    assert len(mc.fair(moons(), x, 0).verdicts) == 2


def test_tolerance_of_a_fitted_model_lies_between_certificates_and_attacks() -> None:
    data = mc.two_moons(0, sizes=(30, 5, 15))
    asked: dict[str, Any] = {"share": 0.8, "precision": 0.3, "attack_settings": mc.AttackSettings(members=5, rounds=1)}
    found = mc.tolerance(None, data, mc.Family("amount", mc.LInf(0.02)), mc.Fitted(C=0.3), **asked)
    assert found.largest is not None
    assert found.largest > 0.5
    assert found.smallest is None or found.largest < found.smallest
    held = mc.certify_fit(data, mc.LInf(0.02 * found.largest), mc.Fitted(C=0.3))
    assert held.test is not None
    assert held.test.certification_rate() >= 0.8


def test_fitted_models_stand_beside_networks() -> None:
    data, threat = mc.two_moons(0, sizes=(30, 5, 15)), {"little": mc.LInf(0.01), "more": mc.LInf(0.03)}
    fits = mc.compare(None, data, threat, mc.Fitted(C=0.5), attacked=False)
    steps = mc.compare(mc.Network.mlp([2, 2]), data, threat, mc.Training(epochs=2), ["interval"], attacked=False)
    both = pd.concat([steps, fits]).sort_index()
    assert both.index.tolist() == [(t, e) for t in ("little", "more") for e in ("dual", "interval")]
    assert both["steps"].isna().tolist() == [True, False, True, False]
    assert fits["certified"].iloc[0] >= fits["certified"].iloc[1] > 0
    with pytest.raises(UserError, match="fitted models have dual"):
        mc.compare(None, data, threat, mc.Fitted(), ["interval"])
    with pytest.raises(UserError, match="needs a network"):
        mc.compare(None, data, threat, mc.Training())


# Command line ------------------------------------------------------------------------------------------------------------


def invoke(*words: str) -> str:
    found = CliRunner().invoke(cli.app, list(words))
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 80, 40).astype(float), "dose": rng.normal(size=40)})
    frame["ill"] = np.where(frame["age"] - 50 + 12 * frame["dose"] + 8 * rng.normal(size=40) > 0, "yes", "no")
    frame["cost"] = 3.0 * frame["age"] + 20.0 * frame["dose"]
    place = tmp_path_factory.mktemp("data") / "data.csv"
    frame.to_csv(place, index=False)
    return str(place)


CLASSES = ("--target", "ill", "--drop", "cost", "--model", "logistic", "--C", "0.1")
NUMBERS = ("--target", "cost", "--drop", "ill", "--regression", "--model", "ridge", "--C", "0.3")


def test_blame_on_the_command_line(path: str, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    asked = ("--eps", "age=6,dose=0.02", "--no-attack", "--top", "3")
    told = invoke("blame", path, *CLASSES, *asked, "--json", str(out), "--report", str(page))
    assert "By column: age " in told
    assert "Re-check these 3 rows" in told
    assert next(iter(json.loads(out.read_text())["blame"]["columns"])) == "age"
    assert "Where the uncertainty comes from" in page.read_text()
    assert "there is nothing to re-check" in invoke("blame", path, *CLASSES, "--eps", "age=0.01", "--no-attack")
    told = invoke("blame", path, *NUMBERS, *asked, "--target-eps", "2")
    assert "(target)" in told
    assert "wide on average instead of" in told


def test_blame_reads_a_run_directory(path: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    invoke("certify", path, *CLASSES, "--eps", "age=6", "--no-attack", "--run", folder, "--margin", "0.05", "-q")
    assert "By column: age 100 %" in invoke("blame", folder, "--top", "2")


def test_tolerance_and_compare_on_the_command_line(path: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    told = invoke("tolerance", path, *CLASSES, "--eps", "age=1", "--share", "0.9", "--most", "2", "--json", str(out))
    assert "each fitted to its minimum" in told
    assert json.loads(out.read_text())["engine"] == "dual"
    told = invoke("compare", path, *CLASSES, "--eps", "0.01", "--eps-values", "0.01,0.02", "--no-attack")
    assert "Each is fitted to its minimum." in told
    assert told.count("dual") == 2
    assert "dual" in invoke("compare", path, *NUMBERS, "--eps", "0.01")


def test_questions_on_the_command_line(path: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ("--margin", "0.2", "--protected", "dose", "--rising", "age", "--falling", "dose", "--collective")
    told = invoke("certify", path, *CLASSES, "--eps", "age=1", *flags, "--json", str(out))
    found = json.loads(out.read_text())["postconditions"]
    assert set(found) == {"margin", "protected", "rising", "falling", "collective", "output"}
    assert found["rising"]["age"]["holds"] == found["falling"]["dose"]["fails"] == 10
    assert "Flips at once" in told
    invoke("certify", path, *NUMBERS, "--eps", "age=1", "--rising", "age", "--json", str(out))
    assert json.loads(out.read_text())["postconditions"]["rising"]["age"]["holds"] == 10
