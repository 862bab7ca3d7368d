"""Models at their minimum: what flags and keys of a configuration say, and which of them are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mibp_cert import cli
from mibp_cert.config import job_of, merged
from mibp_cert.errors import UserError

ROWS = 60


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 80, ROWS).astype(float),
            "mood": ["good", "fair", "bad", *rng.choice(["good", "fair", "bad"], ROWS - 3).tolist()],
        }
    )
    frame["cost"] = 2.0 * frame["age"] + (frame["mood"] == "bad")
    frame["ill"] = np.where((frame["age"] - 50) / 15 + (frame["mood"] == "bad") > 0, "yes", "no")
    frame.to_csv(tmp_path / "data.csv", index=False)
    return tmp_path / "data.csv"


def threat_said(csv: Path, threat: dict[str, Any], target: str = "ill", model: str = "logistic") -> dict[str, Any]:
    data = {"source": str(csv), "target": target, "drop": ["cost" if target == "ill" else "ill"]}
    return job_of(merged({"data": data, "threat": threat, "model": {"kind": model, "C": 0.02}})).threat.to_json()


def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """The one sentence that a command says which cannot be carried out."""
    monkeypatch.setattr(sys, "argv", ["mibp-cert", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    shown = capsys.readouterr().err.strip()
    assert (stopped.value.code, len(shown.splitlines())) == (2, 1), shown
    return shown


# Rows that have been lost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "domain"),
    [
        ({"added": 2}, {}),
        ({"added": 2, "added_range": "age=18:99"}, {"age": [18.0, 99.0]}),
        ({"added": 2, "added_range": "age = 18 : 99, mood=good:bad"}, {"age": [18.0, 99.0], "mood": ["good", "bad"]}),
        ({"added": 2, "added_range": {"age": [18, 99], "mood": ["bad"]}}, {"age": [18, 99], "mood": ["bad"]}),
    ],
)
def test_lost_rows_have_the_columns_ranges_unless_others_are_said(csv: Path, said: Any, domain: Any) -> None:
    assert threat_said(csv, said) == {"kind": "added", "at_most": 2, "domain": domain}


def test_lost_rows_of_a_regression_have_a_range_of_targets(csv: Path) -> None:
    said = {"added": 1, "added_range": "target=0:200"}
    assert threat_said(csv, said, "cost", "ridge")["domain"] == {"target": [0.0, 200.0]}


def test_lost_rows_go_with_other_threats(csv: Path) -> None:
    found = threat_said(csv, {"eps": "age=1", "removed": 1, "added": 1})
    assert [part["kind"] for part in found["threats"]] == ["linf", "removed", "added"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"added_range": "age=18:99"}, "say how many there may be, such as --added 1"),
        ({"added": 1, "added_range": "age=18"}, "takes two numbers for the column 'age', such as age=18:99; got '18'"),
        ({"added": 1, "added_range": "age=old:99"}, "takes two numbers for the column 'age'"),
        ({"added": 1, "added_range": "age"}, "ends or categories, such as age=18:99,mood=good:bad; got 'age'"),
        ({"added": 1, "added_range": "mood="}, "ends or categories, such as"),
        ({"added": 1, "added_range": "height=1:2"}, "There is no column 'height'"),
        ({"added": 1, "added_range": ["age"]}, "A domain names columns with their ranges"),
        ({"added": -1}, "makes no sense; give a whole number ≥ 0"),
        ({"add": 1}, "no key 'add'; did you mean 'added'"),
    ],
)
def test_a_mistake_about_lost_rows_is_one_sentence(csv: Path, said: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        threat_said(csv, said)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ("mood=gloomy", "'gloomy' is not a category of the column 'mood'"),
        ("age=99:18", "domain of the column 'age' must be a pair"),
        ("age=0:inf", "domain of the column 'age' must be a pair"),
    ],
)
def test_a_domain_that_makes_no_sense_is_refused_by_the_command(
    csv: Path, ends: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words_ = ["certify", str(csv), "--target", "ill", "--drop", "cost", "--model", "logistic", "--added", "1"]
    assert words in refused(capsys, monkeypatch, *words_, "--added-range", ends)


def test_lost_rows_on_the_command_line(csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["certify", str(csv), "--target", "ill", "--drop", "cost", "--model", "logistic", "--C", "0.02"]
    cli.app([*words, "--added", "1", "--added-range", "age=18:99,mood=bad"], standalone_mode=False)
    told = " ".join(capsys.readouterr().out.split())
    assert "at most one row may have been lost ('age' from 18 to 99, 'mood' among 'bad')" in told
    assert "none contradicts a certificate" in told
