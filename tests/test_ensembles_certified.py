"""Certified votes: parts certified for noise, or for wrong rows among their own, against models that scikit-learn fits."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import mibp_cert as mc
from mibp_cert.ensembles import PartitionedClassifier, learners
from mibp_cert.ensembles.knapsack import possible
from mibp_cert.ensembles.reach import Reach, reach
from mibp_cert.ensembles.rows import Rows, dealt
from mibp_cert.ensembles.votes import OPEN
from mibp_cert.errors import UserError
from test_ensembles import blobs

MODEL = mc.CertifiedLogisticRegression(C=0.5)
ASKED = np.random.default_rng(9).normal(size=(40, 2)) * 1.5


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "arrivals", lambda work, groups, parallel, jobs: enumerate(map(work, groups)))


def ensemble(by: str, threat: Any = None, parts: int = 3, model: Any = MODEL) -> Any:
    return PartitionedClassifier(model, parts=parts, by=by, threat=threat, tried=2)


def vote(X: Any, y: Any, by: str, parts: int = 3) -> Any:
    """Of other models than those that are certified: the same minimum, found by scikit-learn."""
    return ensemble(by, parts=parts, model=LogisticRegression(C=MODEL.C, tol=1e-9)).fit(X, y).predict(ASKED)


def noisy(X: Any, y: Any, eps: float, rng: np.random.Generator) -> tuple[Any, Any]:
    """A table within the noise, mostly at its corners, with one row that is something else."""
    x, labels = X + eps * rng.choice([-1.0, 1.0, 0.0], X.shape), y.copy()
    row = int(rng.integers(len(x)))
    x[row], labels[row] = rng.normal(size=2) * 30.0, 1 - labels[row]
    return x, labels


def contradictions(tries: int, eps: float = 0.25) -> int:
    """Tables with noise and one row that is anything, whose models vote otherwise than is certified."""
    X, y = blobs(40, 3)
    model = ensemble("row", mc.LInf(eps) & mc.Arbitrary(1), parts=5).fit(X, y)
    said, rng = model.predict(ASKED), np.random.default_rng(0)
    assert (said >= 0).any()
    assert (said < 0).any()
    found = (vote(*noisy(X, y, eps, rng), "row", 5) for _ in range(tries))
    return sum(int(((other != said) & (said >= 0)).any()) for other in found)


def test_noise_in_every_row_and_a_row_that_is_anything_do_not_change_what_stands() -> None:
    assert contradictions(12) == 0


@pytest.mark.slow
def test_the_vote_stands_in_many_noisy_tables() -> None:
    assert contradictions(150) == 0


def test_open_votes_that_are_taken_for_certain_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large noise, for which parts are certified of little."""

    def careless(self: Any, x: Any, classes: Any, levels: int) -> Any:
        return np.stack([possible(self.votes(x, classes), len(classes))] * levels)

    X, y = blobs(40, 3)
    towards = X + np.where(y[:, None] == 1, 1.0, -1.0) * [2.0, 2.0]

    def wrong() -> int:
        said = ensemble("row", mc.LInf(2.0), parts=5).fit(X, y).predict(ASKED)
        return int(((vote(towards, y, "row", 5) != said) & (said >= 0)).sum())

    assert wrong() == 0
    monkeypatch.setattr(learners.Learner, "possible", careless)
    assert wrong() > 0


def flipped(y: Any, rows: tuple[int, ...]) -> Any:
    return np.where(np.isin(np.arange(len(y)), rows), 1 - y, y)


EVERY = [pytest.param(1, marks=pytest.mark.slow), 9]
"""All pairs of rows, or a ninth of them."""


@pytest.mark.parametrize("step", EVERY)
def test_wrong_labels_inside_of_parts_do_not_change_what_stands(step: int) -> None:
    X, y = blobs(16, 5)
    table = ensemble("features", mc.LabelFlips(2)).fit(X, y).certify(ASKED)
    survived = table["wrong_rows"].to_numpy()
    assert (survived > table["lost_parts"]).any(), "certificates of the parts are of use"
    assert (survived >= table["lost_parts"]).all()
    for k in (1, 2):
        for rows in list(combinations(range(16), k))[::step]:
            assert (vote(X, flipped(y, rows), "features")[survived >= k] == table["vote"][survived >= k]).all()


@pytest.mark.parametrize("step", EVERY)
def test_rows_that_go_from_parts_do_not_change_what_stands(step: int) -> None:
    X, y = blobs(16, 6)
    survived = ensemble("content", mc.Removed(2)).fit(X, y).certify(ASKED)
    assert (survived["wrong_rows"] > survived["lost_parts"]).any()
    for k in (1, 2):
        for rows in list(combinations(range(16), k))[::step]:
            same = (survived["wrong_rows"] >= k).to_numpy()
            found = vote(np.delete(X, rows, axis=0), np.delete(y, rows), "content")
            assert (found[same] == survived["vote"][same]).all()


@pytest.mark.parametrize("step", EVERY)
def test_rows_that_are_off_by_a_known_amount_do_not_change_what_stands(step: int) -> None:
    X, y = blobs(15, 7)
    table, rng = ensemble("row", mc.Budget(mc.LInf(0.4), rows=2)).fit(X, y).certify(ASKED), np.random.default_rng(0)
    assert (table["wrong_rows"] > table["lost_parts"]).any()
    for rows in list(combinations(range(15), 2))[::step]:
        x = X.copy()
        x[list(rows)] += 0.4 * rng.choice([-1.0, 1.0], (2, 2))
        same = (table["wrong_rows"] >= 2).to_numpy()
        assert (vote(x, y, "row")[same] == table["vote"][same]).all()


def test_classes_that_a_part_leaves_out_make_it_survive_more() -> None:
    """Of three classes an open vote leaves two: the sets of possible votes say more than open or not."""
    (X, y), eps = blobs(90, 8, classes=3), 0.05
    model = ensemble("row", mc.LInf(eps)).fit(X, y)
    may = model.learners_[0].possible(ASKED, model.classes_, 1)[0]
    sizes = may[:, :3].sum(axis=1)
    assert set(sizes.tolist()) == {1, 2}
    said, rng = model.predict(ASKED), np.random.default_rng(1)
    for _ in range(10):
        found = vote(X + eps * rng.choice([-1.0, 1.0], X.shape), y, "row")
        assert (found[said >= 0] == said[said >= 0]).all()


@pytest.mark.parametrize("threat", [mc.LabelFlips(2), mc.Removed(2)], ids=str)
def test_parts_with_one_class_survive_what_leaves_them_one(threat: Any) -> None:
    """Another label makes a model of such a part, and without its last row it votes for nobody: all pairs of rows are tried."""
    X = np.tile([[-1.0], [1.0]], (5, 1)) * np.linspace(0.5, 1.5, 10)[:, None]
    y, keys = np.array([1, 1, 1, 1, 1, 1, 0, 0, 0, 1]), np.array([3, 3, 1, 1, 5, 5, 0, 0, 0, 0])
    asked, flips = np.linspace(-2, 2, 9)[:, None], isinstance(threat, mc.LabelFlips)
    model = ensemble("key", threat, parts=4, model=mc.CertifiedLogisticRegression(C=9.0)).fit(X, y, keys)
    assert sum(one.model is None for one in model.learners_) >= 2
    table = model.certify(asked)
    survived = table["wrong_rows"].to_numpy()
    for k in (1, 2):
        for rows in combinations(range(10), k):
            kept = np.setdiff1d(np.arange(10), () if flips else rows)
            labels = np.where(np.isin(np.arange(10), rows) & flips, 1 - y, y)[kept]
            real = ensemble("key", parts=4, model=LogisticRegression(C=9.0, tol=1e-9)).fit(X[kept], labels, keys[kept])
            assert (real.predict(asked) == table["vote"])[survived >= k].all()
    assert (survived >= 0).any()


# What is asked of a part, and what it must know beforehand -------------------------------------------------------------------


def test_a_part_is_asked_no_more_than_its_classes_can_lose() -> None:
    """Else a class could go, and the model that is really fitted would know of others than the certificate does."""

    def levels(threat: Any, by: str, y: Any, most: int = 9) -> tuple[int, int]:
        found, rows = reach(threat, by, certified=True), Rows(np.zeros((len(y), 1)), np.array(y))
        return len(found.levels(rows, 2, most)) - 1, found.stands(rows, most) - 1

    flips = mc.LabelFlips(8)
    assert levels(flips, "features", [0, 0, 0, 1, 1, 1, 1]) == (2, 0)
    assert levels(flips, "features", [0, 0, 0]) == (0, 0), "a flip makes it a part with two classes"
    assert levels(mc.Removed(8), "content", [0, 0, 0, 1, 1]) == (1, 4)
    assert levels(mc.Removed(8), "content", [0, 0, 0]) == (2, 2), "without its last row it votes for nobody"
    assert levels(mc.Budget(mc.LInf(0.1), rows=8), "row", [0, 1]) == (8, 9)
    assert levels(mc.Budget(mc.LInf(0.1), rows=3), "row", [0, 1]) == (3, 9), "not more than there may be"
    assert levels(flips, "features", []) == (0, 9)


@pytest.mark.parametrize(
    ("threat", "by", "lost", "inside", "noise"),
    [
        (mc.Arbitrary(2), "content", 4, None, None),
        (mc.LInf(0.1) & mc.Arbitrary(2), "key", 2, None, "linf"),
        (mc.LabelFlips(2) & mc.Arbitrary(1), "features", 2, 2, None),
        (mc.LabelFlips(2), "content", 4, None, None),
        (mc.LabelFlips(2) & mc.Removed(3), "features", 3, 2, None),
        (mc.Added(2, {}), "key", 2, None, None),
        (mc.Budget(mc.LInf(0.1) & mc.LabelFlips(), rows=3), "features", 6, None, None),
        (mc.Budget(mc.LabelFlips(), rows=3), "features", 0, 3, None),
        (mc.LabelFlips(3).where([1, 2]), "row", 3, None, None),
        (mc.LabelFlips(3).where(mc.label_is(1)), "row", 0, 3, None),
        (mc.Nothing(), "row", 0, None, None),
        (mc.Budget(mc.LInf(0.1) & mc.Removed(9), rows=3), "content", 6, None, None),
        (mc.Budget(mc.Removed(9), rows=3), "content", 0, 3, None),
    ],
    ids=str,
)
def test_what_threats_reach(threat: Any, by: str, lost: int, inside: int | None, noise: str | None) -> None:
    found = reach(threat, by, certified=True)
    assert (found.lost, found.changes) == (lost, inside or 0)
    assert (found.inside is None) == (inside is None)
    level = found.level(0)
    assert (None if level is None else level.kind) == noise
    assert isinstance(found, Reach)
    if noise is None:
        assert reach(threat, by, certified=False).lost == lost + (inside or 0)


def test_what_a_part_cannot_know_must_be_said_beforehand() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.normal(size=40), "mood": rng.choice(["good", "bad"], 40)})
    y = (X["age"] > 0).astype(int)
    X.loc[3, "age"] = np.nan
    moods = {"mood": ["bad", "good", "so-so"]}
    for model, said in (
        (MODEL, "may lack categories"),
        (mc.CertifiedLogisticRegression(categorical=["mood"]), "may lack categories"),
        (mc.CertifiedLogisticRegression(categorical=moods), "Between which ends"),
    ):
        with pytest.raises(UserError, match=said):
            ensemble("row", mc.Missing() & mc.Arbitrary(1), model=model).fit(X, y)
    told = mc.CertifiedLogisticRegression(C=0.1, categorical=moods, ranges={"age": (-3, 3)})
    model = ensemble("row", mc.Missing("age") & mc.AnyCategory("mood").where([]), model=told)
    with pytest.raises(UserError, match="others inside a part"):
        model.fit(X, y)
    model = ensemble("row", mc.Missing("age") & mc.Arbitrary(1), model=told).fit(X, y)
    assert model.predict(X.dropna()).shape == (39,)


def marked(rng: np.random.Generator, marker: float) -> tuple[Any, Any, Any]:
    """Two parts with values from −1 to 1 and one with values from −20 to 20, each with a value that stands for none."""
    X, y = np.zeros((36, 1)), np.zeros(36, dtype=int)
    places = []
    for part, width in zip(
        ensemble("row").fit(rng.normal(size=(36, 1)), np.arange(36) % 2).rows_, (1, 1, 20), strict=True
    ):
        X[part, 0], y[part], X[part[-1], 0] = np.linspace(-width, width, 12), np.arange(12) >= 6, marker
        places.append(part[-1])
    return X, y, places


def test_what_a_marker_stands_for_lies_between_ends_that_all_parts_know() -> None:
    """Not between those of the part alone: a value that others have changes its model."""
    X, y, places = marked(np.random.default_rng(0), -0.99)
    threat = mc.Missing(0, marker=-0.99)
    for given in (threat, mc.Missing(marker=-0.99), threat.where(mc.column("0") < 9.0), mc.Missing([True], -0.99)):
        with pytest.raises(UserError, match="Between which ends"):
            ensemble("row", given).fit(X, y)
    told, asked = mc.CertifiedLogisticRegression(C=0.05, ranges={"0": (-20, 20)}), np.linspace(-9, 9, 80)[:, None]
    said = ensemble("row", threat, model=told).fit(X, y).predict(asked)
    for value in (-20.0, -1.0, 1.0, 20.0):
        X[places, 0] = value
        other = ensemble("row", model=LogisticRegression(C=0.05, tol=1e-9)).fit(X, y).predict(asked)
        assert (other == said)[said >= 0].all()
    X[places[:2], 0], said = 0.5, (said >= 0).sum()
    X[places[2], 0] = -0.99
    assert (ensemble("row", threat, model=told).fit(X, y).predict(asked) >= 0).sum() > said, "two parts miss nothing"


def test_missing_values_that_are_asked_about_need_ends_that_all_parts_know() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": np.where(np.arange(18) % 2, rng.normal(size=18), np.nan), "b": rng.normal(size=18)})
    told = mc.CertifiedLogisticRegression(C=0.1, ranges={"a": (-3, 3)})
    model = ensemble("row", mc.Missing(), model=told).fit(X, (X["b"] > 0).astype(int))
    assert model.predict(pd.DataFrame({"a": [np.nan], "b": [9.0]})).tolist() in ([-1], [1])
    with pytest.raises(UserError, match=r"for b\."):
        model.predict(pd.DataFrame({"a": [0.0], "b": [np.nan]}))


def test_more_wrong_rows_than_there_are_change_everything() -> None:
    X, y = blobs(16, 5)
    assert (ensemble("features", mc.LabelFlips(10**12)).fit(X, y).predict(ASKED) == -1).all()


def test_a_part_abstains_also_where_its_word_for_that_is_a_class_of_others() -> None:
    """A part without the class −1 says −1 where nothing stands: that is an open vote, and none for −1."""
    assert learners.numbered(np.array([-1, 0]), np.array([-1, 0, 1]), -1).tolist() == [OPEN, 1]
    X, y = blobs(40, 3)
    one, _ = dealt(Rows(X, y), 2, "row", 0)
    model = ensemble("row", mc.LInf(0.2), parts=2).fit(X, np.where((y == 0) & np.isin(np.arange(40), one), -1, y))
    lacking = model.learners_[1]
    assert lacking.model.classes_.tolist() == [0, 1]
    may = lacking.possible(ASKED, model.classes_, 1)[0]
    assert not may[:, 0].any()
    assert may[:, 1:3].all(axis=1).any()


def test_parts_say_nothing_of_how_they_abstain() -> None:
    X, y = blobs(40, 3)
    said = ensemble("row", mc.LInf(2.0), parts=5).fit(X, 2 * y - 1).predict(ASKED)
    assert set(said.tolist()) <= {-2, -1, 1}
    assert -2 in said


@pytest.mark.parametrize("kind", [bool, float, np.int8])
def test_a_certificate_may_name_classes_that_are_numbers_of_any_kind(kind: Any) -> None:
    X, y = blobs(30, 3)
    one = kind(1)
    model = mc.CertifiedLogisticRegression(C=0.5, class_weight={kind(0): 1.0, one: 2.0})
    for threat in (mc.LInf(0.05).where(mc.label_is(one)), mc.LabelFlips(1, source=[one])):
        by = "row" if isinstance(threat, mc.threats.Where) else "features"
        table = ensemble(by, threat, model=model).fit(X, y.astype(kind)).certify(ASKED)
        plain = ensemble(by, threat, model=mc.CertifiedLogisticRegression(C=0.5, class_weight={0: 1.0, 1: 2.0}))
        assert table["class"].tolist() == plain.fit(X, y).certify(ASKED)["class"].tolist()
        assert table["certified"].any()
