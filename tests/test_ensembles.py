"""Ensembles of parts: parts that no wrong row reaches stay what they are; threats, and where parts are fitted and kept."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import mibp_cert as mc
from mibp_cert.ensembles import PartitionedClassifier, learners
from mibp_cert.ensembles.rows import BASES, Rows, dealt, hashed, typed
from mibp_cert.errors import UserError
from mibp_cert.threats import Arbitrary

TREE = DecisionTreeClassifier(max_depth=2)


@parametrize_with_checks([PartitionedClassifier(TREE, parts=3), PartitionedClassifier(GaussianNB(), parts=2, by="row")])
def test_scikit_learn_accepts_the_ensembles(estimator: Any, check: Any) -> None:
    check(estimator)


# Parts that no wrong row reaches -------------------------------------------------------------------------------------------


def people(n: int = 60, seed: int = 0) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": rng.integers(20, 80, n),
            "income": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "mood": rng.choice(["good", "bad", "so-so"], n),
        }
    )
    return table, np.where(table["age"] + 20 * rng.normal(size=n) > 50, "yes", "no")


def learner() -> Any:
    """Everything that could be learned from the whole table is learned in the part."""
    encoded = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["mood"]), (StandardScaler(), ["age"]), remainder="passthrough"
    )
    return make_pipeline(encoded, HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=2))


def models(X: Any, y: Any, by: str, estimator: Any = None) -> list[bytes]:
    keys = None if by != "key" else (X["age"] if len(X) else None)
    found = PartitionedClassifier(learner() if estimator is None else estimator, parts=6, by=by).fit(X, y, keys)
    return [pickle.dumps((one.model, one.label)) for one in found.learners_]


def reached(before: list[bytes], after: list[bytes]) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("by", BASES)
def test_an_altered_row_leaves_all_other_parts_bit_for_bit(by: str) -> None:
    X, y = people()
    before = models(X, y, by)
    for row in (0, 17, 59):
        X2, y2 = X.copy(), y.astype(object)
        X2.loc[row, ["income", "mood"]] = [1e6, "never seen before"]
        y2[row] = "a label that is longer than all others"
        touched = reached(before, models(X2, y2, by))
        assert 1 <= touched <= (1 if by in ("key", "row") else 2)


@pytest.mark.parametrize("by", ["content", "features", "key"])
def test_a_row_that_comes_or_goes_leaves_all_other_parts_bit_for_bit(by: str) -> None:
    X, y = people()
    before = models(X, y, by)
    assert reached(before, models(X.drop(index=5), np.delete(y, 5), by)) == 1
    more = pd.concat([X, pd.DataFrame({"age": [33], "income": [0.5], "mood": ["good"]})])
    assert reached(before, models(more, np.append(y, "yes"), by)) == 1


@pytest.mark.parametrize("by", ["content", "features", "key"])
def test_the_order_of_rows_and_the_names_of_rows_do_not_matter(by: str) -> None:
    X, y = people()
    order = np.random.default_rng(1).permutation(len(X))
    assert models(X, y, by) == models(X.iloc[order], y[order], by)


def test_labels_reach_one_part_where_parts_are_chosen_by_features() -> None:
    X, y = people()
    before, other = models(X, y, "features"), y.copy()
    other[7] = "no" if y[7] == "yes" else "yes"
    assert reached(before, models(X, other, "features")) == 1


def test_rows_that_are_alike_are_in_the_same_part() -> None:
    x, y = np.repeat(np.arange(10.0), 3)[:, None], np.repeat(np.arange(10) % 2, 3)
    parts = dealt(Rows(x, y), 4, "content", 0)
    assert all(
        len({p for p, part in enumerate(parts) if set(part) & {3 * i, 3 * i + 1, 3 * i + 2}}) == 1 for i in range(10)
    )
    assert sorted(np.concatenate(parts).tolist()) == list(range(30))


def test_parts_by_number_are_of_one_size() -> None:
    sizes = [len(part) for part in dealt(Rows(np.zeros((53, 1)), np.zeros(53)), 10, "row", 3)]
    assert sorted(set(sizes)) == [5, 6]


def test_different_rows_have_different_contents() -> None:
    """Text that runs into its neighbour, numbers that look alike, and what is missing."""
    frame = pd.DataFrame({"a": ["x", "xy", "", None, "m"], "b": ["yz", "z", "xyz", "xyz", "m"]})
    found = Rows(typed(frame), np.zeros(5)).contents()
    assert len(set(found)) == 5
    numbers = Rows(np.array([[0.0], [-0.0], [1.0], [np.nextafter(1.0, 2)], [np.nan]]), np.zeros(5)).contents()
    assert len(set(numbers)) == 5
    assert Rows(np.array([[np.nan]]), np.zeros(1)).contents() == Rows(np.array([[-np.nan]]), np.zeros(1)).contents()


GOLDEN = "3 2 5 1 2 5 0 1 2 5"


def test_parts_are_the_same_everywhere() -> None:
    """As computed once and for all: on other machines and in later versions, too."""
    contents = Rows(np.arange(20.0).reshape(10, 2), np.arange(10) % 2).contents()
    assert contents[0].hex() == "6e0000000000000000" + "6e000000000000f03f" + "6e0000000000000000"
    assert " ".join(str(number % 6) for number in hashed(contents, 0)) == GOLDEN


@pytest.mark.slow
def test_models_are_the_same_in_another_process() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from test_ensembles import models, people\n"
        "from hashlib import sha256\n"
        "print(sha256(b''.join(models(*people(), 'content'))).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


# What a part without a model votes for ------------------------------------------------------------------------------------


def test_parts_with_one_class_vote_for_it_and_parts_without_rows_for_nobody() -> None:
    x, y = np.arange(12.0)[:, None], np.array([0] * 6 + [1] * 6)
    found = PartitionedClassifier(TREE, parts=4, by="key").fit(x, y, keys=[1] * 6 + [2] * 6)
    assert sorted(set(found.votes([[0.0], [20.0]]).ravel().tolist())) == [-1, 0, 1]
    assert sorted(str(one.label) for one in found.learners_) == ["0", "1", "None", "None"]
    assert found.certify([[0.0]])[["vote", "votes", "next_votes", "lost_parts"]].to_numpy().tolist() == [[0, 1, 1, 0]]


@pytest.mark.parametrize("by", BASES)
def test_a_label_of_another_kind_of_number_leaves_all_other_parts_bit_for_bit(by: str) -> None:
    """Of `True` and `False` beside 2 the table makes whole numbers, of whole ones beside 7.0 floating-point ones."""
    X, y = people()
    for labels, other in ((y == "yes", 2), ((y == "yes").astype(np.uint8), -1), ((y == "yes").astype(np.int64), 7.0)):
        before, wrong = models(X, labels, by), np.array([*labels.tolist()[:-1], other])
        assert 1 <= reached(before, models(X, wrong, by)) <= (1 if by in ("key", "row") else 2)


def test_a_key_of_another_kind_moves_no_other_row() -> None:
    X, y = blobs(30)
    before = PartitionedClassifier(TREE, parts=4, by="key").fit(X, y, list(range(30))).rows_
    more = PartitionedClassifier(TREE, parts=4, by="key").fit(np.vstack([X, X[:1]]), [*y, 0], [*range(30), "ward B"])
    assert [set(part) - {30} for part in more.rows_] == [set(part) for part in before]


# Threats ---------------------------------------------------------------------------------------------------------------------


def blobs(n: int = 60, seed: int = 0, classes: int = 2) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % classes)
    return rng.normal(size=(n, 2)) + 2.0 * np.column_stack([np.cos(2 * y), np.sin(2 * y)]), y


def test_what_stands_for_a_threat_is_what_enough_parts_agree_on() -> None:
    X, y = blobs()
    plain = PartitionedClassifier(TREE, parts=9).fit(X, y)
    asked, _ = blobs(40, 1)
    table = plain.certify(asked, np.zeros(40, dtype=int))
    for k in (0, 1, 2, 4):
        model = PartitionedClassifier(TREE, parts=9, threat=Arbitrary(k)).fit(X, y)
        said, stands = model.predict(asked), (table["altered_rows"] >= k).to_numpy()
        assert (said == np.where(stands, table["vote"], -1)).all()
        assert (model.predict_nominal(asked) == table["vote"]).all()
    both = PartitionedClassifier(TREE, parts=9, threat=mc.Removed(1) & mc.Added(1) & mc.LabelFlips(1)).fit(X, y)
    assert both.reach_.lost == 4
    assert (table["correct"] == (table["vote"] == 0)).all()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"parts": 100}, "more parts than rows"),
    ({"parts": 0}, "whole number"),
    ({"parts": 2.5}, "whole number"),
    ({"tried": 0}, "tried must be"),
    ({"by": "hash"}, "by must be one of"),
    ({"by": "key"}, "give both or none"),
    ({"random_state": None}, "random_state must be a whole number"),
    ({"random_state": np.random.RandomState(0)}, "random_state must be a whole number"),
    ({"n_jobs": 0}, "n_jobs must be"),
    ({"estimator": StandardScaler()}, "with fit and predict"),
    ({"estimator": LinearRegression()}, "must be a classifier"),
    ({"estimator": 3}, "with fit and predict"),
    (
        {"estimator": make_pipeline(SelectKBest(k=1), KNeighborsClassifier(50))},
        "cannot be fitted to|Expected n_neighbors",
    ),
    ({"abstain_label": 1}, "is one of the classes"),
    ({"resume": True}, "needs the folder"),
    ({"threat": mc.LInf(0.1)}, "rows would move between parts"),
    ({"threat": mc.LInf(0.1), "by": "row"}, "needs a certificate of its own"),
    ({"threat": mc.LabelFlips(), "by": "row"}, "needs a certificate of its own"),
    ({"threat": mc.Removed(1), "by": "row"}, "which Removed moves"),
    ({"threat": mc.Added(1, {}), "by": "row"}, "which Added moves"),
    ({"threat": (mc.LInf(0.1) & mc.Removed(1)).where(mc.label_is(1))}, "rows would move between parts"),
    ({"random_state": -1}, "random_state must be a whole number"),
    ({"random_state": 2**70}, "random_state must be a whole number"),
    ({"threat": mc.Rules(mc.LInf(0.1), lambda model, data: None)}, "only threats of the catalogue"),
    ({"threat": mc.LInf(0.1), "estimator": mc.CertifiedLogisticRegression()}, "rows would move between parts"),
    ({"threat": mc.Missing(), "estimator": mc.CertifiedLogisticRegression()}, "rows would move between parts"),
    ({"threat": mc.LabelFlips(), "estimator": mc.CertifiedLogisticRegression()}, "rows would move between parts"),
    ({"threat": mc.LabelFlips(), "estimator": mc.CertifiedLogisticRegression(), "by": "row"}, "keeps a row"),
    ({"estimator": mc.CertifiedLogisticRegression(threat=mc.LInf(0.1))}, "to the ensemble"),
    ({"estimator": mc.CertifiedClassifier()}, "by='row'"),
    (
        {"estimator": mc.CertifiedLogisticRegression(), "by": "row", "threat": mc.LInf(0.1).where([0, 1])},
        "others inside a part",
    ),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=lambda value: value if isinstance(value, str) else None)
def test_what_makes_no_sense_is_refused_in_one_sentence(given: dict[str, Any], said: str) -> None:
    X, y = blobs(30)
    with pytest.raises(ValueError, match=said):
        PartitionedClassifier(**{"estimator": TREE, "parts": 4} | given).fit(X, y).predict(X)


def test_a_key_is_for_parts_that_are_chosen_by_it() -> None:
    X, y = blobs(30)
    with pytest.raises(UserError, match="give both or none"):
        PartitionedClassifier(TREE, parts=3).fit(X, y, keys=y)


class Moody(DecisionTreeClassifier):  # type: ignore[misc]
    """Depends on something that no seed says."""

    def fit(self, X: Any, y: Any) -> Any:
        return super().fit(X, np.random.default_rng().permutation(y))


class Rote(DecisionTreeClassifier):  # type: ignore[misc]
    """Knows its own rows by heart, and is at random everywhere else."""

    def fit(self, X: Any, y: Any) -> Any:
        self.splitter, self.random_state = "random", int(np.random.default_rng().integers(1000))
        return super().fit(X, y)


def test_a_learner_that_comes_out_otherwise_each_time_is_refused() -> None:
    X, y = blobs(60)
    for estimator in (Moody(), Rote(), make_pipeline(StandardScaler(), Rote())):
        with pytest.raises(UserError, match="came out otherwise"):
            PartitionedClassifier(estimator, parts=2).fit(X, y)
        with pytest.raises(UserError, match="came out otherwise"):
            PartitionedClassifier(estimator, parts=2).fit(pd.DataFrame(X, columns=["a", "b"]), y)


def test_learners_have_one_thread() -> None:
    """Several add up what trees say in an order that nobody knows."""
    found = learners.seeded(make_pipeline(StandardScaler(), RandomForestClassifier(n_jobs=4)), 0, 1)
    assert found.get_params()["randomforestclassifier__n_jobs"] == 1
    assert learners.seeded(RandomForestClassifier(), 0, 1).n_jobs is None


@pytest.mark.parametrize("big", [2**53, -(2**53), np.uint64(2**63)])
def test_labels_that_hashes_could_not_tell_apart_are_refused(big: Any) -> None:
    X, y = blobs(20)
    with pytest.raises(UserError, match="give labels as text"):
        PartitionedClassifier(TREE, parts=2).fit(X, np.where(y == 1, big, big - type(big)(1)))


def test_columns_of_one_name_are_refused() -> None:
    X, y = blobs(20)
    with pytest.raises(UserError, match="several columns called a"):
        PartitionedClassifier(TREE, parts=2).fit(pd.DataFrame(X, columns=["a", "a"]), y)


def test_an_ensemble_of_ensembles_is_an_ensemble() -> None:
    X, y = blobs(90, classes=3)
    inner = PartitionedClassifier(TREE, parts=3)
    model = PartitionedClassifier(inner, parts=4, by="features", threat=mc.LabelFlips(1)).fit(X, y)
    assert (model.predict_nominal(X) == y).mean() > 0.6
    assert (model.answers(X).classes >= 0).any()


def test_columns_that_are_neither_numbers_nor_text_are_refused() -> None:
    X = pd.DataFrame({"when": pd.to_datetime(["2020-01-01"] * 12), "a": range(12)})
    with pytest.raises(UserError, match="neither a number nor text"):
        PartitionedClassifier(TREE, parts=2).fit(X, np.arange(12) % 2)


@pytest.mark.parametrize(
    "make", [lambda t: mc.certify_fit(mc.two_moons(0), t), lambda t: t.bind(mc.two_moons(0).train)]
)
def test_rows_that_may_be_anything_are_refused_by_name_elsewhere(make: Any) -> None:
    with pytest.raises(UserError, match="Arbitrary"):
        make(mc.LInf(0.01) & Arbitrary(2).where(mc.label_is(1)))
    for engine in ("interval", "relational"):
        with pytest.raises(UserError, match=f"'{engine}'.*Arbitrary is for ensembles"):
            mc.certify_training(mc.Network.mlp([2, 2]), mc.two_moons(0), Arbitrary(1), engine=engine)
    assert mc.threat_from_json(Arbitrary(3).to_json()).words() == "at most 3 rows may be anything"


# Where parts are fitted, and where they are kept ----------------------------------------------------------------------------


@pytest.mark.slow
def test_parts_come_out_the_same_in_other_processes() -> None:
    X, y = people()
    one = PartitionedClassifier(learner(), parts=4).fit(X, y)
    two = PartitionedClassifier(learner(), parts=4, n_jobs=2).fit(X, y)
    assert [pickle.dumps(a.model.predict(X)) for a in one.learners_] == [
        pickle.dumps(b.model.predict(X)) for b in two.learners_
    ]


def test_a_fit_goes_on_where_it_stopped(tmp_path: Any) -> None:
    X, y = blobs()
    forest = RandomForestClassifier(3)
    whole = PartitionedClassifier(forest, parts=4).fit(X, y)
    kept = PartitionedClassifier(forest, parts=4, run_dir=tmp_path / "run").fit(X, y)
    files = sorted((tmp_path / "run").iterdir())
    assert len(files) == 4
    before = [path.stat().st_mtime_ns for path in files]
    files[1].unlink()
    again, done = clone(kept).set_params(resume=True), []
    again.fit(X, y, hear=lambda part, parts: done.append((part, parts)))
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [path.stat().st_mtime_ns == then for path, then in zip(files, before, strict=True)] == [
        True,
        False,
        True,
        True,
    ]
    assert (again.votes(X) == whole.votes(X)).all()
    with pytest.raises(UserError, match="is not empty"):
        clone(kept).fit(X, y)
    X2 = X.copy()
    X2[0] += 1.0
    other = clone(again).fit(X2, y)
    assert (other.votes(X) == PartitionedClassifier(forest, parts=4).fit(X2, y).votes(X)).all()


@pytest.mark.parametrize("left", [0, 60, 200])
def test_a_part_that_was_cut_short_is_made_again(left: int, tmp_path: Any) -> None:
    X, y = blobs()
    model = PartitionedClassifier(TREE, parts=4, run_dir=tmp_path, resume=True)
    votes, file = model.fit(X, y).votes(X), tmp_path / "part-00002.pickle"
    whole = file.read_bytes()
    told = whole[:64]
    for content in (whole[:left], b"garbage\n", told, told + pickle.dumps(None)):
        file.write_bytes(content)
        assert (model.fit(X, y).votes(X) == votes).all()
        assert isinstance(learners._kept(file, told.decode()), learners.Learner)


class Planted:
    """Runs something as soon as it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


def test_no_file_is_unpickled_that_is_not_of_these_rows(tmp_path: Path) -> None:
    X, y = blobs()
    model, trace = PartitionedClassifier(TREE, parts=4, run_dir=tmp_path / "run", resume=True), tmp_path / "trace"
    votes, file = model.fit(X, y).votes(X), tmp_path / "run" / "part-00001.pickle"
    for content in (pickle.dumps(Planted(trace)), b"0" * 64 + pickle.dumps(Planted(trace))):
        file.write_bytes(content)
        assert (model.fit(X, y).votes(X) == votes).all()
        assert not trace.exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(elsewhere)
    with pytest.raises(UserError, match="symbolic link"):
        model.fit(X, y)


def test_what_cannot_be_kept_is_refused_where_it_is_to_be(tmp_path: Any) -> None:
    X, y = blobs()
    nameless = make_pipeline(FunctionTransformer(lambda x: x), TREE)
    PartitionedClassifier(nameless, parts=4).fit(X, y)
    with pytest.raises(UserError, match="leave run_dir out"):
        PartitionedClassifier(nameless, parts=4, run_dir=tmp_path / "run").fit(X, y)


def test_a_part_that_was_kept_is_used_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a learner depends on is in its fingerprint."""
    x, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 1, 0])

    def told(x: Any = x, y: Any = y, estimator: Any = TREE, **more: Any) -> str:
        return learners.Task(0, learners.seeded(estimator, 0, 0), Rows(x, y), **more).fingerprint

    one, frame = told(), pd.DataFrame(x, columns=["0", "1"])
    others = [
        told(x=x[:, ::-1]),
        told(x=x[::-1], y=y[::-1]),
        told(y=1 - y),
        told(y=y.astype(str)),
        told(x=frame),
        told(x=frame.rename(columns=int)),
        told(x=frame * np.nan),
        told(x=(frame * np.nan).astype(object)),
        told(estimator=clone(TREE).set_params(max_depth=3)),
        told(estimator=LogisticRegression()),
        learners.Task(0, learners.seeded(TREE, 0, 1), Rows(x, y)).fingerprint,
        told(levels=(None,)),
        told(levels=(mc.LInf(0.1),)),
        told(levels=(mc.LInf(0.2),)),
        told(stands=1),
    ]
    assert one == told()
    assert len({one, *others}) == 1 + len(others)
    monkeypatch.setattr(learners, "version", lambda name: "another one")
    assert told() != one


def test_ensembles_survive_pickles_and_clones() -> None:
    X, y = blobs()
    model = PartitionedClassifier(LogisticRegression(), parts=4, threat=Arbitrary(1)).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(X) == model.predict(X)).all()
    assert clone(model).get_params()["parts"] == 4
    assert (clone(model).set_params(random_state=1).fit(X, y).rows_[0][:3] != model.rows_[0][:3]).any()


def test_the_folder_of_an_ensemble_is_no_run(tmp_path: Path) -> None:
    X, y = blobs()
    PartitionedClassifier(TREE, parts=3, run_dir=tmp_path / "parts").fit(X, y)
    for reads in (mc.verify, mc.resume_run, mc.load_run):
        with pytest.raises(UserError, match="keeps the learners of an ensemble"):
            reads(tmp_path)
