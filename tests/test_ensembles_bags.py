"""Bags and flipped bags: learners that are really trained, on all bags and on every dataset of small threats; what is drawn and
flipped is what the formulas say."""

from __future__ import annotations

import pickle
from fractions import Fraction
from itertools import product
from math import comb
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import mibp_cert as mc
from mibp_cert.ensembles import BaggedClassifier, FlipBaggedClassifier, bagging, learners, quantile_bins
from mibp_cert.ensembles.bins import OTHER, Alphabet, flipped
from mibp_cert.ensembles.likelihood import Pair, stands
from mibp_cert.ensembles.reach import Wrong
from mibp_cert.ensembles.rows import mixed
from mibp_cert.errors import UserError
from test_ensembles import blobs

TREE = DecisionTreeClassifier(max_depth=2)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "arrivals", lambda work, groups, parallel, jobs: enumerate(map(work, groups)))


FINE = tuple(i / 4 for i in range(-8, 9))
NEAREST, SOME = KNeighborsClassifier(1), {"bags": 90, "confidence": 0.5, "together": 300}


@pytest.mark.slow
@parametrize_with_checks(
    [
        BaggedClassifier(NEAREST, **SOME),
        FlipBaggedClassifier(NEAREST, **SOME, odds=1000.0, bins=FINE),
    ]
)
@pytest.mark.usefixtures("at_once")
def test_scikit_learn_accepts_bags(estimator: Any, check: Any) -> None:
    check(estimator)


# The vote over all bags, really trained -----------------------------------------------------------------------------------

CELLS, LABELS, SIZE = (0.0, 1.0, 2.5), (-1, 0, 1), 2
"""What a wrong row may be made of; nobody has the label −1, which wins ties."""
ANYTHING = [(cell, label) for cell in CELLS for label in LABELS]
ASKED = np.array([[cell] for cell in CELLS])
Table = list[tuple[float, int]]


class AllBags:
    """The vote over all bags of `SIZE` rows, each really fitted once."""

    def __init__(self, estimator: Any) -> None:
        self.estimator, self.known = estimator, dict[Any, Any]()

    def one(self, bag: Table) -> Any:
        key = tuple(bag)
        if key not in self.known:
            x, y = np.array([[cell] for cell, _ in bag]), np.array([label for _, label in bag])
            single = len(np.unique(y)) < 2
            self.known[key] = np.full(len(ASKED), y[0]) if single else clone(self.estimator).fit(x, y).predict(ASKED)
        return self.known[key]

    def vote(self, table: Table) -> Any:
        votes = np.array([self.one(list(bag)) for bag in product(table, repeat=SIZE)])
        tally = np.stack([(votes == label).sum(axis=0) for label in LABELS])
        return np.array(LABELS)[tally.argmax(axis=0)]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("estimator", [KNeighborsClassifier(1), TREE], ids=["neighbour", "tree"])
def test_no_dataset_changes_the_vote_over_all_bags_that_stands(estimator: Any) -> None:
    every, certified, rng = AllBags(estimator), 0, np.random.default_rng(0)
    for seed in range(6):
        table = [(float(rng.choice(CELLS)), int(rng.random() < 0.3)) for _ in range(4)] + [(2.5, 1), (0.0, 0)] * (
            seed % 2
        )
        x, y = np.array([[cell] for cell, _ in table]), np.array([label for _, label in table])
        if len(np.unique(y)) < 2:
            continue
        model = BaggedClassifier(estimator, 400, size=SIZE, confidence=0.9, together=3, random_state=seed).fit(x, y)
        found, vote = model.certify(ASKED), every.vote(table)
        decided = found["altered_rows"].to_numpy() >= 0
        assert (found["vote"].to_numpy() == vote)[decided].all()
        one = [[*table[:i], new, *table[i + 1 :]] for i in range(len(table)) for new in ANYTHING]
        come = [[*table, new] for new in ANYTHING]
        gone = [[*table[:i], *table[i + 1 :]] for i in range(len(table))]
        for column, others in (("altered_rows", one), ("moved_rows", come + gone)):
            stands = found[column].to_numpy() >= 1
            certified += int(stands.sum())
            assert all((every.vote(other) == vote)[stands].all() for other in others)
    assert certified > 0


def wrong_answers(bags: int, rows: int, share: float) -> float:
    """The probability that a class is said to stand for some of so many independent test rows, though it is not the vote over
    all bags: `share` of these is for the larger of two classes, which loses."""
    model = BaggedClassifier(TREE, bags, confidence=0.9, together=rows)
    model.classes_, model.bags_, model.pair_, model.wrong_ = np.array([0, 1]), bags, Pair(100, 10), Wrong()
    told = [model._survived(votes, bags - votes, -1)[1] for votes in range(bags // 2 + 1, bags + 1)]
    p = sum(
        comb(bags, votes) * share**votes * (1 - share) ** (bags - votes)
        for votes, stood in enumerate(told, bags // 2 + 1)
        if stood
    )
    return float(1 - (1 - p) ** rows)


@pytest.mark.parametrize(("bags", "rows"), [(30, 1), (50, 10), (51, 40)])
def test_all_that_is_said_holds_with_the_confidence(bags: int, rows: int) -> None:
    assert wrong_answers(bags, rows, 0.5) <= 0.1


def test_a_confidence_that_is_not_shared_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bagging, "each", lambda confidence, classes, rows: 1 - Fraction(confidence))
    assert wrong_answers(50, 10, 0.5) > 0.1


def test_the_plain_share_in_place_of_a_bound_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bagging, "at_least", lambda votes, bags, alpha: Fraction(votes, bags))
    monkeypatch.setattr(bagging, "at_most", lambda votes, bags, alpha: Fraction(votes, bags))
    assert wrong_answers(50, 10, 0.5) > 0.1


# What is drawn and flipped --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("at_once")
def test_every_row_is_drawn_as_often_as_any_other() -> None:
    X, y = blobs(20)
    model = BaggedClassifier(GaussianNB(), 500, size=10).fit(X, y)
    assert {len(bag) for bag in model.rows_} == {10}
    often = np.bincount(np.concatenate(model.rows_), minlength=20)
    assert ((often - 250) ** 2 / 250).sum() < 43.8  # chi square, 19 degrees of freedom: one in a thousand


@pytest.mark.parametrize("odds", [2.0, 9.0])
def test_values_are_flipped_with_the_probabilities_that_formulas_have(odds: float) -> None:
    sizes, count = np.array([1, 2, 3, 5]), 20_000
    codes = np.tile([0, 1, 2, 3], (count, 1))
    found = flipped(codes, sizes, odds, np.random.default_rng(0))
    assert (found[:, 0] == 0).all()
    for j, size in enumerate(sizes[1:], 1):
        seen = np.bincount(found[:, j], minlength=size)
        wanted = np.where(np.arange(size) == codes[0, j], odds, 1.0) * count / (odds + size - 1)
        assert ((seen - wanted) ** 2 / wanted).sum() < 18.5  # one in a thousand, with 4 degrees of freedom or fewer


def people(n: int = 80, seed: int = 0) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"age": rng.integers(20, 80, n), "income": rng.normal(size=n)})
    table.loc[3, "income"] = np.nan
    table["mood"] = rng.choice(["good", "bad", "so-so"], n)
    table.loc[4, "mood"] = None
    return table, np.where(table["age"] + 10 * rng.normal(size=n) > 50, "yes", "no")


def encoded() -> Any:
    made = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["mood"]), remainder="passthrough")
    return make_pipeline(made, DecisionTreeClassifier(max_depth=3))


def test_learners_see_known_values_alone() -> None:
    X, y = people()
    bins = {"age": [40.0, 60.0], "income": [0.0], "mood": ["good", "bad"]}
    model = FlipBaggedClassifier(encoded(), 60, size=10, odds=50.0, bins=bins)
    seen = Alphabet.of(model.fit(X, y).features_of(X), bins)
    cells = seen.decoded(seen.coded(model.features_of(X)))
    assert set(cells["age"]) == {0.0, 1.0, 2.0}
    assert set(cells["mood"]) == {"good", "bad", OTHER}
    assert cells["income"][3] == 1.0, "what is missing is in the highest bin"
    assert cells["mood"][4] == OTHER
    assert seen.sizes.tolist() == [3, 2, 3]
    kinds = model.features_of(X).dtypes
    assert (cells.dtypes == kinds).all()
    assert (mixed(model.features_of(X)).dtypes == kinds).all()
    assert (model.pair_.values, model.pair_.cells, model.pair_.odds) == (2, 1, 50)
    assert set(model.predict_nominal(X)) <= {"yes", "no"}


def test_bins_are_cut_at_quantiles_of_the_rows_handed_in() -> None:
    X, _ = people()
    found = quantile_bins(X, 4)
    assert found["mood"] == ["bad", "good", "so-so"]
    sizes = np.bincount(np.searchsorted(found["age"], X["age"], side="right"))
    assert len(sizes) == 4
    assert sizes.min() >= 12
    assert quantile_bins(np.ones((5, 1)))[0] == [] == quantile_bins(np.full((5, 1), np.nan))[0]
    assert quantile_bins(pd.DataFrame({"mood": ["good", OTHER]})) == {"mood": ["good"]}, (
        "all other text is that already"
    )


@pytest.mark.usefixtures("at_once")
def test_flips_of_a_test_row_do_not_depend_on_the_rows_beside_it() -> None:
    X, y = blobs(40)
    model = FlipBaggedClassifier(TREE, 80, size=10, odds=1.5, flips="features", bins=[0.0], trigger=1).fit(X, y)
    whole = model.votes(X)
    assert (np.concatenate([model.votes(X[i : i + 7]) for i in range(0, 40, 7)]) == whole).all()
    assert model.pair_.trigger == 1
    plain = clone(model).set_params(trigger=0).fit(X, y)
    assert (plain.votes(X) != whole).any(), "inputs are flipped where there may be a trigger"


@pytest.mark.usefixtures("at_once")
def test_a_trigger_changes_no_vote_that_stands() -> None:
    """All inputs with one other value, where every column says the same of the class."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 100)
    X = np.tile(y[:, None], 25) + 0.1 * rng.normal(size=(100, 25))
    model = FlipBaggedClassifier(
        KNeighborsClassifier(3), 100, size=20, odds=4.0, flips="features", bins=[0.5], trigger=1, together=2
    )
    model.fit(X, y)
    asked = np.repeat([0.0, 1.0], 25).reshape(2, 25)
    assert model.predict(asked).tolist() == [0, 1]
    for j in range(25):
        other = asked.copy()
        other[:, j] = 1.0 - other[:, j]
        assert (model.predict_nominal(other) == [0, 1]).all()


@pytest.mark.usefixtures("at_once")
def test_input_flips_in_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from mibp_cert.ensembles import flips

    X, y = blobs(40)
    model = FlipBaggedClassifier(TREE, 80, size=10, odds=1.5, flips="features", bins=[0.0], trigger=1).fit(X, y)
    whole = model.votes(X)
    monkeypatch.setattr(flips, "AT_ONCE", 1)
    assert (model.votes(X) == whole).all()


# Threats --------------------------------------------------------------------------------------------------------------------

HIDDEN = mc.Budget(mc.Budget(mc.LInf(0.5), cells=1), rows=2)
COUNTED = [
    (mc.Arbitrary(3), "both", Wrong(altered=3)),
    (mc.LabelFlips(2), "both", Wrong(flipped=2)),
    (mc.LabelFlips(2), "features", Wrong(altered=2)),
    (HIDDEN, "features", Wrong(flipped=2)),
    (HIDDEN, "labels", Wrong(altered=2)),
    (mc.Budget(mc.LInf(0.5), rows=2), "features", Wrong(altered=2)),
    (mc.Budget(mc.Budget(mc.LInf(0.5), cells=2), rows=2), "features", Wrong(altered=2)),
    # Both could meet in one row, in two cells.
    (HIDDEN & mc.LabelFlips(1), "both", Wrong(altered=1, flipped=2)),
    (mc.Removed(1) & mc.Added(2) & mc.Nothing(), "both", Wrong(removed=1, added=2)),
]


@pytest.mark.parametrize(("threat", "flips", "wanted"), COUNTED)
def test_a_threat_is_counted_in_rows(threat: Any, flips: str, wanted: Wrong) -> None:
    assert Wrong.of(threat, FlipBaggedClassifier(TREE, flips=flips).hides) == wanted


@pytest.mark.usefixtures("at_once")
def test_what_stands_for_a_threat_is_what_survives_so_many_rows() -> None:
    X, y = blobs(120)
    asked, labels = blobs(40, 1)
    given: dict[str, Any] = {"bags": 100, "size": 10, "together": 40}
    plain = FlipBaggedClassifier(TREE, flips="labels", **given).fit(X, y)
    table = plain.certify(asked, labels)
    assert (plain.predict(asked) == np.where(table["altered_rows"] >= 0, table["vote"], -1)).all()
    assert (table["altered_rows"] <= table["flipped_rows"]).all()
    assert (table["confidence"] == 0.99).all()
    for threat, column, k in ((mc.Arbitrary(2), "altered_rows", 2), (mc.LabelFlips(3), "flipped_rows", 3)):
        model = FlipBaggedClassifier(TREE, flips="labels", threat=threat, **given).fit(X, y)
        stands = (table[column] >= k).to_numpy()
        assert 0 < stands.sum() < 40
        assert (model.predict(asked) == np.where(stands, table["vote"], -1)).all()
        assert model.asked_rows == k


def test_how_many_rows_may_move_takes_few_formulas_however_many_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(bagging, "stands", lambda *given: bool(asked.append(given)) or stands(*given))
    model = BaggedClassifier(TREE, 1000, together=1)
    model.classes_, model.bags_, model.pair_, model.wrong_ = np.array([0, 1]), 1000, Pair(10**6, 10), Wrong()
    assert model._survived(1000, 0, -1)[2]["moved"] > 10_000
    assert len(asked) < 100


@pytest.mark.usefixtures("at_once")
def test_where_the_drawn_bags_do_not_decide_nothing_is_said() -> None:
    X, y = blobs(100)
    few = BaggedClassifier(TREE, 25, size=5, together=100).fit(X, y)
    table = few.certify(X)
    unsure = table["altered_rows"].to_numpy() < 0
    assert 0 < unsure.sum() < 100
    assert (table["class"][unsure] == "abstain").all()
    assert (few.predict(X)[unsure] == few.abstain_label_).all()
    assert (table["share_at_least"][~unsure] > 0.5).all()


REFUSED: list[tuple[type, dict[str, Any], str]] = [
    (BaggedClassifier, {"bags": 0}, "bags must be a whole number"),
    (BaggedClassifier, {"size": 0}, "size must be a whole number"),
    (BaggedClassifier, {"size": 31}, "larger than the table"),
    (BaggedClassifier, {"together": 2.5}, "together must be a whole number"),
    (BaggedClassifier, {"together": 20}, "ask about fewer"),
    (BaggedClassifier, {"confidence": 1.0}, "confidence must be"),
    (BaggedClassifier, {"confidence": 99}, "confidence must be"),
    (BaggedClassifier, {"bags": 5}, r"draw at least 16 \(bags=16\)"),
    (BaggedClassifier, {"threat": mc.Arbitrary(20)}, "No number of bags of 10 rows"),
    (BaggedClassifier, {"threat": mc.LInf(0.1)}, "Every row may be off"),
    (BaggedClassifier, {"threat": mc.Rules(mc.LInf(0.1), lambda model, data: None)}, "only threats of the catalogue"),
    (BaggedClassifier, {"random_state": None}, "random_state must be"),
    (BaggedClassifier, {"estimator": LogisticRegression}, "with fit and predict"),
    (BaggedClassifier, {"estimator": mc.CertifiedLogisticRegression()}, "has certificates of its own"),
    (FlipBaggedClassifier, {"flips": "rows"}, "flips must be one of"),
    (FlipBaggedClassifier, {}, "give bins="),
    (FlipBaggedClassifier, {"bins": {0: [1.0]}}, "column 1 has numbers"),
    (FlipBaggedClassifier, {"bins": [1.0, 1.0]}, "in rising order"),
    (FlipBaggedClassifier, {"bins": ["a"]}, "in rising order"),
    (FlipBaggedClassifier, {"bins": [np.inf]}, "in rising order"),
    (FlipBaggedClassifier, {"odds": 1.0}, "odds must be"),
    (FlipBaggedClassifier, {"odds": float("nan")}, "odds must be"),
    (FlipBaggedClassifier, {"cells": 0}, "cells must be"),
    (FlipBaggedClassifier, {"trigger": -1}, "trigger must be"),
    (FlipBaggedClassifier, {"flips": "labels", "trigger": 1}, "A trigger is hidden by"),
]


@pytest.mark.parametrize(("kind", "given", "said"), REFUSED)
@pytest.mark.usefixtures("at_once")
def test_what_makes_no_sense_is_refused_in_one_sentence(kind: Any, given: dict[str, Any], said: str) -> None:
    X, y = blobs(30)
    with pytest.raises(UserError, match=said):
        kind(**{"estimator": TREE, "bags": 40, "together": 100} | given).fit(X, y).predict(X)


@pytest.mark.usefixtures("at_once")
def test_so_many_bags_as_are_asked_for_do() -> None:
    X, y = blobs(30)
    given: dict[str, Any] = {"estimator": TREE, "size": 10, "together": 100, "threat": mc.Arbitrary(1)}
    with pytest.raises(UserError, match="draw at least") as refused:
        BaggedClassifier(bags=10, **given).fit(X, y)
    enough = int(str(refused.value).split("bags=")[1].rstrip(")."))
    BaggedClassifier(bags=enough, **given).fit(X, y)
    with pytest.raises(UserError, match="draw at least"):
        BaggedClassifier(bags=enough - 1, **given).fit(X, y)


@pytest.mark.usefixtures("at_once")
def test_text_needs_its_names_and_bags_need_no_keys() -> None:
    X, y = people()
    bins = {"age": [50.0], "income": [0.0]}
    for given, said in (
        ({}, "column 'mood' has text"),
        ({"mood": ["good", "good"]}, "must be different names"),
        ({"mood": [1]}, "must be different names"),
    ):
        with pytest.raises(UserError, match=said):
            FlipBaggedClassifier(encoded(), 40, together=10, bins=bins | given).fit(X, y)
    model = FlipBaggedClassifier(encoded(), 40, size=10, together=80, bins=bins | {"mood": ["good"]}).fit(X, y)
    with pytest.raises(UserError, match="'age' has text where there were numbers"):
        model.predict(X.assign(age="old"))
    with pytest.raises(UserError, match="not chosen by a key"):
        BaggedClassifier(encoded(), 40, together=10).fit(X, y, keys=y)
    with pytest.raises(UserError, match="at least two bins"):
        quantile_bins(X, 1)


# Where they are kept --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("at_once")
def test_a_fit_goes_on_where_it_stopped(tmp_path: Any) -> None:
    X, y = blobs()
    model = FlipBaggedClassifier(TREE, 20, confidence=0.5, together=60, bins=[0.0], run_dir=tmp_path / "run").fit(X, y)
    files = sorted((tmp_path / "run").iterdir())
    assert [files[0].name, len(files)] == ["bag-00000.pickle", 20]
    before = [path.stat().st_mtime_ns for path in files]
    files[1].unlink()
    again = clone(model).set_params(resume=True).fit(X, y)
    assert [i for i, path in enumerate(files) if path.stat().st_mtime_ns != before[i]] == [1]
    assert (again.votes(X) == model.votes(X)).all()
    with pytest.raises(UserError, match="is not empty"):
        clone(model).fit(X, y)


@pytest.mark.usefixtures("at_once")
def test_parameters_that_are_set_after_the_fit_change_nothing_that_was_fitted() -> None:
    X, y = blobs(100)
    model = BaggedClassifier(TREE, 200, size=10, together=100).fit(X, y)
    before = model.certify(X)
    assert 0 < (before["altered_rows"] < 0).sum() < 100
    pd.testing.assert_frame_equal(model.set_params(bags=int(before["votes"].max())).certify(X), before)
    assert (model.words[0][:8], model.settings["bags"]) == ("200 bags", 200)
    given: dict[str, Any] = {"size": 10, "odds": 4.0, "bins": [0.0], "trigger": 1, "together": 100}
    flipping = FlipBaggedClassifier(TREE, 200, confidence=0.9, flips="features", **given).fit(X, y)
    votes = flipping.votes(X)
    assert (flipping.set_params(odds=1000.0, trigger=0).votes(X) == votes).all()
    assert (flipping.settings["odds"], flipping.settings["trigger"]) == (4.0, 1)


@pytest.mark.usefixtures("at_once")
def test_bags_survive_pickles_and_clones() -> None:
    X, y = blobs()
    model = FlipBaggedClassifier(TREE, 40, together=60, bins=quantile_bins(X[:30], 3), threat=mc.LabelFlips(1)).fit(
        X, y
    )
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(X) == model.predict(X)).all()
    assert clone(model).get_params()["bins"] == model.bins
    other = clone(model).set_params(random_state=1).fit(X, y)
    assert (other.rows_[0] != model.rows_[0]).any()


@pytest.mark.slow
def test_bags_come_out_the_same_in_other_processes() -> None:
    X, y = people()
    one = BaggedClassifier(encoded(), 40, together=80).fit(X, y)
    two = BaggedClassifier(encoded(), 40, together=80, n_jobs=2).fit(X, y)
    assert (one.votes(X) == two.votes(X)).all()
