"""Values of a wrong kind, from flags, files and arrays: one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from bad_days import answer
from mibp_cert.cli.ends import USER_MISTAKE
from mibp_cert.data import builtin
from mibp_cert.errors import UserError
from mibp_cert.estimator import CertifiedClassifier, CertifiedLogisticRegression, CertifiedRegressor, CertifiedRidge
from mibp_cert.studies.tolerance import check as check_tolerance


def _table(folder: Path, gaps: tuple[int, ...] = ()) -> Path:
    rng = np.random.default_rng(0)
    lines = ["age,income,mood,same,ill"]
    for i in range(40):
        age = "" if i in gaps else str(rng.integers(20, 80))
        lines.append(f"{age},{rng.integers(1, 90)},{['good', 'bad'][rng.integers(2)]},one,{['no', 'yes'][i % 2]}")
    place = folder / "t.csv"
    place.write_text("\n".join(lines))
    return place


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--separator", "\\t"], "separated by something else"),
        (["--seed", "-1"], "The seed must be a whole number ≥ 0"),
        (["--drop", "ill"], "--drop ill names the target itself"),
        (["--batch-size", "0", "--model", "network"], "batch size must be between 1 and"),
        (["--encoding", "utf-16"], "is not utf-16 text"),
        (["--sample", "-1"], "--sample takes a number of rows"),
        (["--jobs", "0"], "jobs must be a whole number ≥ 1"),
        (["--feature-seed", "-1", "--features", "3"], "seed of random features"),
        (["--unlabelled", "maybe"], "--unlabelled takes refuse or drop"),
    ],
)
def test_flags_of_a_wrong_kind_are_sentences(tmp_path: Path, flags: list[str], words: str) -> None:
    status, said = answer("certify", _table(tmp_path), "--target", "ill", "--eps", "age=1", *flags)
    assert status == USER_MISTAKE
    assert words in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tolerance", "two-moons", "--precision", "0"], "precision must be a number from 1e-06 to below 1"),
        (["tolerance", "two-moons", "--most", "nan"], "largest value tried must be a number > 0"),
        (["blame", "two-moons", "--top", "0"], "--top takes how many rows"),
        (["verify", ".", "--seed", "-1"], "--seed takes a whole number ≥ 0"),
        (["verify", ".", "--points", "-1"], "--points takes a whole number ≥ 0"),
    ],
)
def test_numbers_out_of_range_are_sentences(words: list[str], said: str) -> None:
    assert answer(*words)[0] == USER_MISTAKE
    assert said in answer(*words)[1]


MALFORMED = {
    "kind = 'shift'\nby = 'x'": "it needs the entry 'column'",
    "kind = 'shift'\ncolumn = 'mood'\nby = 'x'": "by must be a whole number other than 0, got 'x'",
    "kind = 'shift'\ncolumn = 'mood'\nby = 1.5": "by must be a whole number other than 0",
    "kind = 'shift'\ncolumn = 'mood'\nby = 1\namong = 3": "among takes a list of categories",
    "kind = 'confusable'\npairs = ['age']": "it needs the entry 'column'",
    "kind = 'confusable'\ncolumn = 'mood'\npairs = ['age']": "pairs says for categories what they may really be",
    "kind = 'confusable'\ncolumn = 'mood'\npairs = {good = 'bad'}": "pairs says for categories",
    "kind = 'confusable'\ncolumn = 'mood'\npairs = {good = 3}": "pairs says for categories",
    "kind = 'all'\nthreats = 3": "it needs the entry threats, a list",
    "kind = 'target-noise'\neps = [1]": "The threat 'target-noise' cannot be made of eps = [1]",
    "kind = 'linf'\neps = true": "eps must be a number or one per column, got True",
    "kind = 'linf'\neps = 0.1\nrelative = 'x'": "relative must be true or false",
    "missing = 0.5": "missing takes the name of a column",
    "eps = true": "eps must be a number or one per column, got True",
    "eps = 0.1\nrows = 'x'": "A budget of x rows makes no sense",
    "flips = 1.5": "A budget of 1.5 rows makes no sense",
    "added = 1\nadded_range = 3": "A domain names columns with their ranges",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_threats_of_a_wrong_kind_are_sentences(tmp_path: Path, text: str) -> None:
    source = _table(tmp_path)
    (tmp_path / "c.toml").write_text(f"[data]\nsource = '{source}'\ntarget = 'ill'\n[threat]\n{text}\n")
    status, said = answer("certify", "--config", tmp_path / "c.toml", "--no-attack")
    assert status == USER_MISTAKE
    assert MALFORMED[text] in said


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("[data]\ndrop = [1]", "drop takes a list of texts"),
        ("[data]\ncategorical = [3]", "categorical takes a list of texts"),
        ("[data]\nunlabelled = 'zz'", "--unlabelled takes refuse or drop"),
        ("[model]\nkind = 'network'\n[network]\nhidden = ['a']", "Sizes of layers are whole numbers"),
        ("[attack]\nseed = -1", "Of an attack, seed must be a whole number ≥ 0"),
        ("[attack]\nmembers = -1", "Of an attack, members must be a whole number ≥ 0"),
    ],
)
def test_sections_of_a_wrong_kind_are_sentences(tmp_path: Path, section: str, words: str) -> None:
    begin = f"[data]\nsource = '{_table(tmp_path)}'\ntarget = 'ill'\n"
    said = section.replace("[data]\n", begin) if "[data]" in section else begin + section
    (tmp_path / "c.toml").write_text(f"{said}\n[threat]\neps = 0.1\n")
    status, told = answer("certify", "--config", tmp_path / "c.toml")
    assert status == USER_MISTAKE
    assert words in told


def test_a_text_column_with_one_category_is_certified(tmp_path: Path) -> None:
    status, said = answer("certify", _table(tmp_path), "--target", "ill", "--any-category", "mood", "--no-attack")
    assert status == 0, said
    assert "one value only" in said


@pytest.mark.parametrize("model", [["--model", "logistic", "--C", "0.1"], ["--model", "network", "--epochs", "1"]])
def test_margins_are_answered_where_only_training_rows_miss_values(tmp_path: Path, model: list[str]) -> None:
    test = _table(tmp_path).rename(tmp_path / "test.csv")
    train = _table(tmp_path, gaps=(3, 9, 20))
    given = ["--target", "ill", "--test-file", test, "--missing", "all", "--margin", "0.1", "--no-attack"]
    status, said = answer("certify", train, *given, *model)
    assert status == 0, said
    assert "Margin of at least 0.1" in said


X, Y = np.random.default_rng(0).normal(size=(12, 2)), np.arange(12) % 2
HIDDEN = np.ma.masked_array(X, mask=X > 1)
DATES = np.array(["2020-01-01"] * 24, dtype="datetime64[D]").reshape(12, 2)
SOME = np.ma.masked_array(Y.astype(float), mask=Y > 0)


@pytest.mark.parametrize("values", [HIDDEN, DATES, DATES - DATES])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: mc.Dataset.of(x, Y),
        lambda x: mc.Dataset.regression(x, Y),
        lambda x: CertifiedClassifier().fit(x, Y),
        lambda x: CertifiedRegressor().fit(x, Y),
        lambda x: CertifiedLogisticRegression().fit(x, Y),
        lambda x: CertifiedRidge().fit(x, Y),
    ],
)
def test_masked_arrays_and_dates_are_not_taken_for_numbers(make: Callable[[Any], Any], values: Any) -> None:
    with pytest.raises(UserError, match=r"masked array|dates or times"):
        make(values)


@pytest.mark.parametrize("values", [SOME, DATES[:, 0]])
@pytest.mark.parametrize(
    "make",
    [
        lambda y: mc.Dataset.of(X, y),
        lambda y: mc.Dataset.regression(X, y),
        lambda y: mc.Dataset.of(X, Y).weighted(y),
        lambda y: CertifiedClassifier().fit(X, y),
        lambda y: CertifiedRidge().fit(X, y),
    ],
)
def test_nor_where_they_are_labels_targets_or_weights(make: Callable[[Any], Any], values: Any) -> None:
    with pytest.raises(UserError, match=r"masked array|dates or times"):
        make(values)


def test_a_mask_that_hides_nothing_is_none() -> None:
    assert (mc.Dataset.of(np.ma.masked_array(X, mask=False), Y).x == X).all()


@pytest.mark.parametrize("name", ["two-moons", "iris", "digits", "diabetes", "breast-cancer"])
def test_negative_seeds_of_data_sets_are_refused(name: str) -> None:
    made = getattr(builtin, name.replace("-", "_"))
    with pytest.raises(UserError, match="The seed must be a whole number from 0"):
        made(-1)


def test_a_bisection_has_an_end(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"share": 0.9, "points": [], "within": None, "start": 1.0}
    for precision in (0.0, -1.0, float("nan"), 1.0):
        with pytest.raises(UserError, match="precision"):
            check_tolerance(mc.two_moons(0), mc.Family("amount", mc.LInf(0.1)), **asked, precision=precision)
