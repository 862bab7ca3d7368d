"""The attack beside ensembles, predictions that change at once, and the command line: what is said is what really happens."""

from __future__ import annotations

import json
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

import mibp_cert as mc
from mibp_cert.cli import app
from mibp_cert.ensembles import (
    BaggedClassifier,
    FlipBaggedClassifier,
    PartitionedClassifier,
    attack,
    learners,
)
from mibp_cert.ensembles.attack import NEVER
from mibp_cert.ensembles.bag_attack import attack_bags
from mibp_cert.ensembles.collective import most_changed
from mibp_cert.ensembles.findings import Findings
from mibp_cert.ensembles.knapsack import possible
from mibp_cert.ensembles.rows import Rows
from mibp_cert.ensembles.votes import NOBODY, OPEN, counted, winner
from mibp_cert.errors import SoundnessError, UserError
from mibp_cert.report.ensembles import ensemble_page, radius_lines
from test_ensembles import blobs

TREE = DecisionTreeClassifier(max_depth=2)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "arrivals", lambda work, groups, parallel, jobs: enumerate(map(work, groups)))


def fitted(by: str, threat: Any = None, parts: int = 9) -> tuple[Any, Any, Any]:
    X, y = blobs(80, 1)
    keys = np.arange(80) if by == "key" else None
    return PartitionedClassifier(TREE, parts=parts, by=by, threat=threat).fit(X, y, keys), X, y


ASKED, LABELS = blobs(60, 2)


@pytest.mark.parametrize("by", ["content", "features", "key", "row"])
def test_the_attack_finds_what_is_real_and_contradicts_nothing(by: str) -> None:
    model, X, y = fitted(by)
    found, answers = attack.attack(model, X, y, ASKED), model.answers(ASKED)
    assert (found.least > answers.lost).all()
    assert (found.least <= answers.lost + 3).any(), "it comes close"
    assert (found.least <= np.minimum.reduce(list(found.by_kind.values()))).all()
    assert found.at_once[0] == 0
    assert found.at_once[-1] > 0
    assert [kind for kind in attack.KINDS if (found.by_kind[kind] < NEVER).any()] != []


@pytest.mark.parametrize("by", ["content", "row"])
def test_what_the_attack_puts_together_is_a_dataset_that_votes_so(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong rows in several parts at once, fitted as a whole table: planted rows are in the parts that they were meant for."""
    model, X, y = fitted(by)
    seen: list[Any] = []
    whole = attack.fit_all
    monkeypatch.setattr(attack, "fit_all", lambda tasks, *rest: seen.extend(tasks) or whole(tasks, *rest))
    attack.attack(model, X, y, ASKED)
    planted = {
        task.number: task.rows for task in seen if len(task.rows) == len(model.rows_[task.number]) + (by != "row")
    }
    assert len(planted) >= 3
    x, labels = [], []
    for part, rows in enumerate(model.rows_):
        data = planted.get(part)
        x.append(X[rows] if data is None else data.x)
        labels.append(y[rows] if data is None else data.y)
    if by == "row":  # every row at its place
        order = np.argsort(np.concatenate(model.rows_))
        table, target = np.concatenate(x)[order], np.concatenate(labels)[order]
    else:
        table, target = np.concatenate(x), np.concatenate(labels)
    again = PartitionedClassifier(TREE, parts=9, by=by).fit(table, target)
    assert sorted(map(len, again.rows_)) == sorted(map(len, x))
    for part, rows in planted.items():
        alone = learners.fit_one(model.nominal_task(part, rows))
        assert (alone.votes(ASKED, model.classes_) == again.votes(ASKED)[:, part]).all()


def test_an_attack_that_contradicts_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model, X, y = fitted("content")
    honest = type(model).answers

    def boastful(self: Any, asked: Any) -> Any:
        found = honest(self, asked)
        found.lost[:] += 3
        return found

    monkeypatch.setattr(type(model), "answers", boastful)
    with pytest.raises(SoundnessError, match="fewer wrong rows than are certified"):
        attack.attack(model, X, y, ASKED)


@pytest.mark.parametrize("threat", [mc.LabelFlips(2), mc.Removed(2)], ids=str)
def test_an_attack_inside_of_parts_that_contradicts_stops_the_run(threat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = blobs(16, 5)
    model = PartitionedClassifier(mc.CertifiedLogisticRegression(C=0.5), parts=4, by="key", threat=threat, tried=1)
    model.fit(X, y, np.arange(16))
    assert attack.attack(model, X, y, ASKED).tried > 0
    honest = type(model).answers

    def boastful(self: Any, asked: Any) -> Any:
        found = honest(self, asked)
        found.changed[:] = 16
        return found

    monkeypatch.setattr(type(model), "answers", boastful)
    with pytest.raises(SoundnessError, match="fewer wrong rows than are certified"):
        attack.attack(model, X, y, ASKED)


# Predictions that change at once --------------------------------------------------------------------------------------------


def listed(votes: Any, classes: int, lost: int) -> int:
    """Every choice of lost parts, and for every row the worst that they can vote (a label that nobody has: −1), and any class for
    every open vote."""
    own, most = winner(counted(votes, classes)), 0
    for gone in combinations(range(votes.shape[1]), lost):
        changed = 0
        for row, c in zip(votes, own, strict=True):
            known = [list(range(classes)) if v == OPEN else [None if v == NOBODY else int(v)] for v in row]
            outcomes = product(*([-1, *range(classes), None] if p in gone else votes for p, votes in enumerate(known)))
            changed += any(_winner(outcome) != c for outcome in outcomes)
        most = max(most, changed)
    return most


def _winner(outcome: Any) -> Any:
    labels = [v for v in outcome if v is not None]
    return min(labels, key=lambda v: (-labels.count(v), v), default=None)


@pytest.mark.parametrize("lowest", [NOBODY, OPEN])
def test_predictions_that_change_at_once_are_counted_exactly(lowest: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(12):
        parts, classes = int(rng.integers(3, 6)), int(rng.integers(2, 4))
        votes = rng.integers(lowest, classes, (5, parts)).astype(np.intp)
        for lost in (0, 1, 2, parts):
            assert most_changed(possible(votes, classes), lost) == listed(votes, classes, lost)


def test_more_lost_parts_than_there_are_change_what_all_of_them_change() -> None:
    may = possible(np.array([[0, 0, 1], [1, 1, 1]]), 2)
    assert most_changed(may, 9) == most_changed(may, 3) == 2


def test_predictions_that_noise_alone_may_change_are_among_those_that_change_at_once() -> None:
    X, y = blobs(60, 3)
    model = PartitionedClassifier(
        mc.CertifiedLogisticRegression(), parts=5, by="row", threat=mc.LInf(0.1) & mc.Arbitrary(1)
    ).fit(X, y)
    found = Findings.of(model, ASKED, LABELS, radii=(0, 1, 2, 5), collective=True)
    unsure = [int((found.answers.lost < r).sum()) for r in (0, 1, 2, 5)]
    assert 0 < unsure[0] < len(ASKED)
    assert found.at_once[0] == unsure[0]
    assert all(unsure[0] <= most <= alone for most, alone in zip(found.at_once, unsure, strict=True))


# What is shown ---------------------------------------------------------------------------------------------------------------


def test_accuracy_by_wrong_rows_falls_and_lies_below_what_the_attack_leaves() -> None:
    model, X, y = fitted("content", mc.Arbitrary(1))
    found = Findings.of(
        model, ASKED, LABELS, attack.attack(model, X, y, ASKED), most_frequent=0, radii=range(6), collective=True
    )
    table = found.by_radius
    for name in ("altered", "moved", "attacked"):
        assert (np.diff(table[name]) <= 0).all()
    assert (table["altered"] <= table["moved"]).all()
    assert (table["moved"] <= table["attacked"]).all()
    assert (table["changed"] <= table["can_change"].shift(-1, fill_value=60)).all()
    assert found.certified_accuracy == table["altered"][1]
    assert found.rows["attacked_with"].min() >= -1
    lines = radius_lines(found)
    assert len(lines.rows) == 6
    page = ensemble_page(found, "blobs & more")
    assert "blobs &amp; more" in page
    assert page.count("<svg") == 1
    assert json.loads(json.dumps(found.to_json(), default=float))["parts"] == 9


@pytest.fixture
def table(tmp_path: Path) -> Path:
    X, y = blobs(160, 4)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "who": np.arange(160) // 2, "ill": np.where(y == 1, "yes", "no")})
    frame["mood"] = np.random.default_rng(0).choice(["good", "bad"], 160)
    frame.loc[3, "a"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def called(*words: Any) -> Any:
    return CliRunner().invoke(app, ["certify", *map(str, words)], catch_exceptions=True)


@pytest.mark.parametrize("learner", ["tree", pytest.param("logistic", marks=pytest.mark.slow)])
def test_the_command_line_writes_what_it_says(table: Path, learner: str, tmp_path: Path) -> None:
    out, page = tmp_path / "o.json", tmp_path / "o.html"
    words = ["--target", "ill", "--ensemble", "partitions:5", "--learner", learner, "--arbitrary", 1]
    done = called(table, *words, "--json", out, "--report", page, "--run", tmp_path / "run")
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert f"right in {100 * found['certified_test_accuracy']:.1f} %" in done.output
    assert len(list((tmp_path / "run" / "parts").iterdir())) == 5
    assert "at most one row may be anything" in page.read_text()
    again = called(table, *words, "--json", out, "--run", tmp_path / "run", "--resume", "--quiet", "--no-attack")
    assert (again.exit_code, again.output) == (0, "")
    assert json.loads(out.read_text())["certified_test_accuracy"] == found["certified_test_accuracy"]


def test_a_key_is_no_feature(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.json"
    done = called(
        table, "--target", "ill", "--ensemble", "partitions:5", "--learner", "tree", "--key", "who", "--json", out
    )
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["by"] == "key"
    assert "chosen by a key" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--learner", "tree"], "ask for one with --ensemble"),
        (["--ensemble", "partitions:many"], "with their number"),
        (["--ensemble", "sacks:5"], "with their number"),
        (["--ensemble", "bagging:50", "--key", "who"], "--key is about partitions, not about bagging"),
        (["--ensemble", "bagging:50", "--odds", "3"], "--odds is about bagflip, not about bagging"),
        (["--ensemble", "partitions:5", "--bag-size", "9"], "--bag-size is about bagging and bagflip"),
        (["--ensemble", "bagging:50", "--collective"], "leave --collective out"),
        (["--ensemble", "bagging:5"], "draw at least"),
        (["--ensemble", "bagflip:50"], "such as --bins 4"),
        (["--bag-size", "9"], "ask for one with --ensemble"),
        (["--ensemble", "partitions:5", "--learner", "oracle"], "no learner called 'oracle'"),
        (["--ensemble", "partitions:5", "--key", "age"], "no column 'age'"),
        (["--ensemble", "partitions:5", "--epochs", "3"], "--epochs says nothing about an ensemble"),
        (["--ensemble", "partitions:5", "--scaling", "range"], "leave --scaling out"),
        (["--ensemble", "partitions:5", "--bounds", "b.npz"], "say nothing about an ensemble"),
        (["--ensemble", "partitions:5", "--regression", "--target", "who"], "predicts classes"),
        (["--ensemble", "bagflip:5", "--flip", "labels", "--bins", 3], "flips no features"),
        (["--ensemble", "partitions:5", "--eps", "0.1"], "rows would move"),
        (["--ensemble", "partitions:5", "--test-eps", "0.1"], "--test-eps says nothing about an ensemble"),
    ],
)
def test_what_says_nothing_about_an_ensemble_is_refused(table: Path, words: list[str], said: str) -> None:
    done = called(table, "--target", "ill", *words)
    assert isinstance(done.exception, UserError)
    assert said in str(done.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            ["bagging:60", "--arbitrary", 1, "--bag-size", 8], "60 bags of 8 of", marks=pytest.mark.slow, id="bagging"
        ),
        (["bagflip:60", "--bins", 3, "--flips", 1, "--cells", 2], "up to 2 wrong value(s) in a row are hidden"),
        pytest.param(
            ["bagflip:60", "--flip", "labels", "--flips", 1, "--confidence", 0.9],
            "with a confidence of 90 %",
            marks=pytest.mark.slow,
            id="labels",
        ),
    ],
)
def test_the_command_line_knows_bags(table: Path, words: list[Any], said: str, tmp_path: Path) -> None:
    out, page = tmp_path / "o.json", tmp_path / "o.html"
    kept = ["--json", out, "--report", page, "--run", tmp_path / "run"]
    done = called(table, "--target", "ill", "--keep", "who", "--ensemble", *words, *kept)
    assert done.exit_code == 0, done.output
    assert said in done.output
    found = json.loads(out.read_text())
    assert f"right in {100 * found['certified_test_accuracy']:.1f} %" in done.output
    assert found["ensemble"] == words[0].partition(":")[0]
    assert len(list((tmp_path / "run" / "bags").iterdir())) == found["bags"] == 60
    for line in found["by_radius"]:
        assert line["altered"] <= line["attacked"]
    assert "60 bags" in page.read_text()


def test_the_attack_on_bags_contradicts_nothing_and_stops_where_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = blobs(80, 1)
    model = BaggedClassifier(TREE, 80, size=8, together=60).fit(X, y)
    found = attack_bags(model, X, y, ASKED, tries=1)
    answers = model.answers(ASKED)
    assert (found.least > answers.survived["altered"]).all()
    assert 0 < found.at_once[-1] <= 60
    assert (found.least < NEVER).any()
    assert {kind for kind, least in found.by_kind.items() if (least < NEVER).any()} != set()
    answers.survived["altered"][:] = 20
    honest = BaggedClassifier.answers
    monkeypatch.setattr(BaggedClassifier, "answers", lambda self, x: answers if self is model else honest(self, x))
    with pytest.raises(SoundnessError, match="which is certified to survive"):
        attack_bags(model, X, y, ASKED, tries=1)


def test_the_attack_fits_the_same_bags_of_the_other_table() -> None:
    X, y = blobs(80, 1)
    model = FlipBaggedClassifier(TREE, 60, size=8, together=60, bins=[0.0], odds=20.0).fit(X, y)
    other = Rows(X, y).with_labels(3, 1 - y[3]).planted(Rows(ASKED[:1], LABELS[:1]), 9)
    attacked = model.with_rows(other, np.array([3, 9]))
    again = FlipBaggedClassifier(TREE, 60, size=8, together=60, bins=[0.0], odds=20.0).fit(other.x, other.y)
    assert (attacked.votes(ASKED) == again.votes(ASKED)).all()
    assert sum(a is not b for a, b in zip(model.learners_, attacked.learners_, strict=True)) == sum(
        bool({3, 9} & set(bag.tolist())) for bag in model.rows_
    )


def test_certified_learners_take_noise_on_the_command_line() -> None:
    words = ["--ensemble", "partitions:5", "--learner", "certified", "--by", "row", "--eps", 0.02, "--arbitrary", 1]
    done = called("two-moons", *words, "--no-attack")
    assert done.exit_code == 0, done.output
    assert "off by 0.02" in done.output
