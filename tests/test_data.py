"""Tables and data sets: kinds, units, missing values, vocabularies, and files that are not what they should be."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mibp_cert.certify import ABSTAIN
from mibp_cert.data import Dataset, Recipe, Split, load, npha
from mibp_cert.data.builtin import NPHA_FILE, NPHA_MENTAL, NPHA_TARGET
from mibp_cert.doors import certify_training
from mibp_cert.errors import UserError
from mibp_cert.nets import Network, Training
from mibp_cert.threats import Missing, Shift

QUESTIONS = {
    "Age": [2],
    "Physical Health": [-1, 1, 2, 3, 4, 5],
    NPHA_MENTAL: [-1, 1, 2, 3, 4, 5],
    "Dental Health": [-1, 1, 2, 3, 4, 5, 6],
    "Employment": [1, 2, 3, 4],
    **{
        f"{why} Keeps Patient from Sleeping": [0, 1]
        for why in ("Stress", "Medication", "Pain", "Bathroom Needs", "Unknown")
    },
    "Trouble Sleeping": [-1, 1, 2, 3],
    "Prescription Sleep Medication": [-1, 1, 2, 3],
    "Race": [1, 2, 3, 4, 5],
    "Gender": [1, 2],
}


def write_survey(path: Path, rows: int = 60, seed: int = 0) -> Path:
    """A made-up survey of the same shape, with padded headers and cells, as the real file has them."""
    rng = np.random.default_rng(seed)
    table = {NPHA_TARGET: rng.choice([1, 2, 3], rows, p=[0.2, 0.5, 0.3])}
    for name, answers in QUESTIONS.items():
        table[name] = np.concatenate([answers, rng.choice(answers, rows - len(answers))])
    lines = [",".join(f"{name} " for name in table)]
    lines += [",".join(f"{int(table[name][i]):>4} " for name in table) for i in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "sizes", "features", "classes"),
    [("iris", (100, 25, 25), 4, 3), ("iris2", (50, 25, 25), 4, 2), ("breast-cancer", (369, 100, 100), 30, 2)],
)
def test_built_in_data_have_the_papers_sizes(name: str, sizes: tuple[int, ...], features: int, classes: int) -> None:
    data = load(name, 0)
    assert (len(data.train), len(data.validation), len(data.test)) == sizes
    assert data.train.features == features
    assert len(data.train.classes) == classes
    np.testing.assert_allclose(data.train.x.mean(axis=0), 0.0, atol=1e-12)
    assert not np.array_equal(load(name, 1).train.x, data.train.x)
    assert np.array_equal(load(name, 0).test.x, data.test.x)


def test_the_survey_is_read_from_a_padded_file(tmp_path: Path) -> None:
    data = load("npha", 0, write_survey(tmp_path / "survey.csv"))
    assert (len(data.train), len(data.validation), len(data.test)) == (48, 6, 6)
    assert [c.name for c in data.train.columns] == list(QUESTIONS)
    assert data.train.classes == (1, 2, 3)
    one_hot = np.add.reduceat(data.train.x, [c.start for c in data.train.columns], axis=1)
    assert (one_hot == 1.0).all()


def test_the_survey_is_found_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_survey(tmp_path / NPHA_FILE)
    monkeypatch.setenv("MIBP_CERT_DATA", str(tmp_path))
    assert len(npha(0).train) == 48
    answered = npha(0, without_refused=True)
    assert len(answered.train) < 48
    assert -1 not in (answered.train.columns[2].categories or ())


def test_without_a_file_the_survey_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIBP_CERT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "ucimlrepo", None)
    with pytest.raises(UserError, match="give its CSV file with --data"):
        npha(0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "no column 'Number of Doctors"),
        (f"{NPHA_TARGET},Age\n1,x\n", "not whole numbers"),
        ("", "Cannot read"),
    ],
)
def test_files_that_are_not_the_survey_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        npha(0, path)
    with pytest.raises(UserError, match="Cannot read"):
        npha(0, tmp_path / "nowhere.csv")
    with pytest.raises(UserError, match="belongs to npha"):
        load("iris", 0, path)


@pytest.mark.parametrize(
    "threat", [Missing(NPHA_MENTAL, -1), Missing(marker=-1), Shift(NPHA_MENTAL, -1, (1, 2, 3, 4, 5))]
)
def test_the_survey_is_certified_under_the_papers_threats(threat: Any, tmp_path: Path) -> None:
    data = load("npha", 0, write_survey(tmp_path / "survey.csv"))
    run = certify_training(Network.mlp([data.train.features, 4, 3]), data, threat, Training(epochs=2, seed=0))
    assert run.test is not None
    assert run.bounds.contains(run.theta)
    assert run.test.certification_rate() > 0


@pytest.mark.skipif(not os.environ.get("MIBP_CERT_DATA"), reason="the real survey is not here: set MIBP_CERT_DATA")
def test_the_real_survey_has_its_known_shape() -> None:
    data = npha(0)
    assert (len(data.train), len(data.validation), len(data.test)) == (572, 71, 71)
    assert len(data.train.columns) == 14
    assert data.train.classes == (1, 2, 3)


def frame() -> pd.DataFrame:
    return pd.DataFrame({"age": [30.0, 50.0, np.nan], "smoker": ["no", "yes", None], "ill": [0, 1, 1]})


def test_missing_cells_hold_a_stand_in_and_are_recorded() -> None:
    data = Dataset.from_frame(frame(), "ill", scaling="none")
    assert data.missing is not None
    assert data.missing.tolist() == [[False, False], [False, False], [True, True]]
    assert data.x[2].tolist() == [40.0, 1.0, 0.0]


def test_scaling_and_vocabulary_are_part_of_the_hash() -> None:
    table = frame().dropna()
    plain, scaled = (Dataset.from_frame(table, "ill", scaling=s) for s in ("none", "standard"))
    assert plain.sha256 != scaled.sha256
    more = Dataset.from_frame(table, "ill", categorical={"smoker": ["no", "yes", "maybe"]})
    assert more.sha256 != scaled.sha256


def test_a_recipe_is_applied_to_other_tables_as_it_is() -> None:
    table = frame().drop(columns="ill")
    recipe = Recipe.fit(table)
    x, missing = recipe.apply(table.iloc[:1])
    assert x.shape == (1, 3)
    assert not missing.any()
    known = Dataset.from_frame(frame().dropna(), "ill", recipe)
    assert Split("t", Dataset.from_frame(frame(), "ill", recipe), known, known).train.features == 3


def test_an_unknown_input_is_certified_for_every_valid_value_or_not_at_all() -> None:
    """A missing value of a test row may be anything valid, so its margin is no larger than that of any value filled in."""
    recipe = Recipe.fit(frame().drop(columns=["ill"]), ranges={"age": (20, 80)})
    data = Dataset.from_frame(frame(), "ill", recipe)
    known = Dataset.from_frame(frame().dropna(), "ill", recipe)
    network, training = Network.mlp([recipe.features, 3, 2]), Training(epochs=2)
    run = certify_training(network, Split("t", known, known, data), None, training)
    assert run.test_threat is not None
    assert run.test is not None
    for age, smoker in itertools.product(np.linspace(20, 80, 7), ("no", "yes")):
        answer = run.certify(recipe.apply(pd.DataFrame({"age": [age], "smoker": [smoker]}))[0])
        if answer.centre[0] == run.test.centre[2]:
            assert answer.margin[0] >= run.test.margin[2]
        assert run.test.classes[2] in (ABSTAIN, answer.classes[0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Recipe.fit(frame(), scaling="log"), "no scaling called 'log'"),
        (lambda: Recipe.fit(frame(), categorical=["weight"]), "no column 'weight'"),
        (lambda: Recipe.fit(frame(), ranges={"age": (40, 60)}), "outside its range"),
        (lambda: Recipe.fit(frame(), categorical=[]), "not numbers; name it among the categorical"),
        (lambda: Recipe.fit(frame().iloc[:0]), "The table is empty"),
        (lambda: Recipe.fit(pd.DataFrame([[1, 2]], columns=["a", "a"])), "several columns called a"),
        (lambda: Recipe.fit(pd.DataFrame({"a": [1.0, np.inf]})), "infinite"),
        (lambda: Recipe.fit(pd.DataFrame({"a": [np.nan, np.nan]})), "no value at all"),
        (lambda: Recipe.fit(frame()).apply(frame().drop(columns="age")), "it lacks age"),
        (lambda: Recipe.fit(frame()[:1]).apply(frame()), "'yes' is not a category of the column 'smoker'"),
        (lambda: Dataset.from_frame(frame(), "sick"), "no column 'sick'"),
        (lambda: Dataset.from_frame(frame(), "age"), "has missing values"),
        (lambda: Recipe.fit(frame(), ranges={"age": 10}), "must be a pair"),
    ],
)
def test_tables_that_make_no_sense_are_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()


def test_a_split_refuses_parts_that_are_scaled_otherwise() -> None:
    tables = [pd.DataFrame({"age": [20.0 + k, 50.0, 80.0], "ill": [0, 1, 0]}) for k in range(3)]
    with pytest.raises(UserError, match="scaled otherwise"):
        Split("ages", *(Dataset.from_frame(table, "ill") for table in tables))
    recipe = Recipe.fit(tables[0][["age"]])
    Split("ages", *(Dataset.from_frame(table, "ill", recipe) for table in tables))
