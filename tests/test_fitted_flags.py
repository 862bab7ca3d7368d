"""Models at their minimum: what flags and keys of a configuration say, and which of them are refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mibp_cert import cli
from mibp_cert.config import defaults, merged
from mibp_cert.errors import UserError
from mibp_cert.fitted import Fitted
from mibp_cert.job import job_of
from mibp_cert.threats.short import EASY

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


# Nothing that is said is ignored ----------------------------------------------------------------------------------------

OTHER = {
    "data.target": "other", "data.path": "npha.csv", "data.test_file": "test.csv", "data.na": ["fair"], "data.test": 0.4,
    "data.validation": 0.3, "data.drop": ["age"], "data.categorical": ["code"], "data.unlabelled": "drop",
    "data.regression": True, "data.scaling": "none", "data.separator": ";", "data.encoding": "utf-16", "data.sample": 30,
    "data.keep": ["id"], "data.decimal": ",", "data.thousands": ",",
    "threat.eps": "age=2", "threat.missing": ["mood"], "threat.any_category": ["mood"], "threat.rows": 3, "threat.flips": 2,
    "threat.removed": 1, "threat.added": 1, "threat.added_range": "age=18:99", "threat.target_eps": 1.0,
    "threat.arbitrary": 2, "ensemble.kind": "partitions:5", "ensemble.learner": "tree", "ensemble.by": "row",
    "ensemble.key": "age", "ensemble.bag_size": 9, "ensemble.confidence": 0.9, "ensemble.flip": "labels", "ensemble.odds": 3.0,
    "ensemble.cells": 2, "ensemble.trigger": 1, "ensemble.bins": 3,
    "test_threat.eps": "age=1",
    "model.kind": "squared-hinge", "model.C": 0.5, "model.fit_intercept": False, "model.penalise_intercept": True,
    "model.class_weight": {"yes": 2.0}, "model.multi": "one-versus-rest", "model.features": 3, "model.feature_scale": 2.0,
    "model.feature_seed": 1, "model.feature_kind": "fourier",
    "network.hidden": "3", "network.activation": "tanh", "network.conv": "8,4,4", "network.logits": 2,
    "training.epochs": 3, "training.batch_size": 7, "training.learning_rate": 0.3, "training.loss": "hinge",
    "training.seed": 5, "training.init": "fullcert", "training.batch_mode": "subsample", "training.momentum": 0.5,
    "training.weight_decay": 0.1, "training.clip": 1.0, "training.schedule": "cosine",
    "run.engine": "interval", "run.prediction": "interval", "run.unroll": 2,
    "select.rule": "best-validation", "select.least_steps": 3, "select.least_accuracy": 0.5, "select.per_step": True,
    "solver.solver": "highs", "solver.gap": 0.1, "solver.floor": 1e-3, "solver.seconds_per_program": 5.0,
    "solver.nodes_per_program": 3, "solver.seconds_per_step": 5.0, "solver.jobs": 2, "solver.parallel": "ray",
    "relational.symbols": 5, "relational.search": 1, "relational.cases": 3,
    "attack.enabled": False, "attack.members": 3, "attack.points": 3, "attack.parameters": 3, "attack.rounds": 1,
    "attack.tries": 3, "attack.seed": 7,
    "questions.margin": 0.1, "questions.protected": ["mood"], "questions.rising": ["age"], "questions.falling": ["age"],
    "questions.collective": True,
}  # fmt: skip
"""For every key a value that is not the usual one."""
BESIDE: dict[str, dict[str, dict[str, Any]]] = {
    "data.unlabelled": {"data": {"source": "gaps.csv"}},
    "data.keep": {"data": {"source": "counted.csv"}},
    "data.decimal": {"data": {"source": "commas.csv"}},
    "data.thousands": {"data": {"source": "commas.csv"}},
    "data.regression": {"data": {"target": "code"}, "threat": {"eps": 0.1}, "model": {"kind": "ridge"}},
    "threat.missing": {"data": {"source": "holes.csv"}},
    "threat.rows": {"threat": {"eps": "age=1"}},
    "threat.added_range": {"threat": {"added": 1}},
    "network.activation": {"network": {"hidden": "3"}},
    **{
        f"select.{key}": {"select": {"rule": "best-validation"}}
        for key in ("least_steps", "least_accuracy", "per_step")
    },
    **{f"model.feature_{key}": {"model": {"features": 3}} for key in ("scale", "seed", "kind")},
}
"""What a key needs beside it to say anything."""
STEPS = ("network", "training", "run", "select", "relational")
"""Sections about a training in steps."""


def every_key() -> list[str]:
    free = [*(f"threat.{key}" for key in EASY), "test_threat.eps"]
    return [f"{section}.{key}" for section, keys in defaults().items() for key in keys] + free


def made(config: dict[str, dict[str, Any]]) -> Any:
    """All that a run would be made of; what is refused, as its sentence."""
    try:
        job = job_of(merged(config))
        if isinstance(job.training, Fitted):
            job.training.check(job.network, job.data.train)
    except UserError as error:
        return str(error)
    parts = {name: (part.x.tobytes(), part.y.tobytes(), str(part.columns)) for name, part in job.data.parts.items()}
    test = job.options["test_threat"]
    options = {**job.options, "test_threat": None if test is None else test.to_json()}
    chosen = None if isinstance(job.training, Fitted) else job.config["select"]
    return parts, job.threat.to_json(), job.training, job.engines, job.network.layers, options, job.questions, chosen


def test_every_key_and_every_flag_is_walked_over() -> None:
    assert set(every_key()) == {*OTHER, "data.source"}
    flags = {key: name for name, (key, _) in (cli.MODEL | cli.FLAGS | cli.QUESTIONS | cli.ENSEMBLE).items()}
    assert set(flags) <= set(OTHER)


@pytest.mark.parametrize("kind", ["logistic", "logistic by mibp", "network"])
@pytest.mark.parametrize("key", OTHER)
def test_what_is_said_changes_the_run_or_is_refused(
    key: str, kind: str, csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key is ignored: it changes what the run is made of, or a sentence says why it cannot be there."""
    monkeypatch.chdir(csv.parent)
    frame = pd.read_csv(csv)
    frame = frame.assign(code=np.arange(ROWS) % 7, other=np.where(frame["age"] > 40, "yes", "no")).drop(columns="cost")
    frame.to_csv("data.csv", index=False)
    frame.sample(20, random_state=0).to_csv("test.csv", index=False)
    frame.assign(ill=frame["ill"].where(frame["age"] > 25)).to_csv("gaps.csv", index=False)
    frame.assign(mood=frame["mood"].where(frame["age"] > 25)).to_csv("holes.csv", index=False)
    frame.assign(id=range(1, ROWS + 1)).to_csv("counted.csv", index=False)
    frame.assign(price="1,234").to_csv("commas.csv", index=False)
    config: dict[str, dict[str, Any]] = {"data": {"source": "data.csv", "target": "ill"}, "threat": {"flips": 1}}
    if kind == "network":
        config |= {"training": {"epochs": 2}, "select": {"rule": "last"}}
    else:
        config |= {"model": {"kind": "logistic"}, **({"run": {"engine": "mibp"}} if "mibp" in kind else {})}
    for section, values in BESIDE.get(key, {}).items():
        if not (kind == "network" and section == "model") and not (kind != "network" and section in STEPS):
            config[section] = {**config.get(section, {}), **values}
    section, _, entry = key.partition(".")
    more = {**config, section: {**config.get(section, {}), entry: OTHER[key]}}
    before, after = made(config), made(more)
    assert isinstance(after, str) or before != after, "ignored"
    if kind != "network" and section in STEPS and key != "training.seed":
        assert isinstance(after, str)
        assert re.search("belongs to networks|is for networks", after)
    elif kind == "network" and (section == "model" or key in ("threat.removed", "threat.added")):
        assert isinstance(after, str)
        assert "choose --model logistic or ridge" in after or key == "model.kind"


@pytest.mark.parametrize("command", ["certify", "tolerance", "compare", "blame"])
@pytest.mark.parametrize("model", ["logistic", "network"])
def test_every_command_refuses_the_other_models_flags_by_name(
    command: str, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, (key, _) in (cli.MODEL | cli.FLAGS).items():
        section = key.partition(".")[0]
        steps = section in STEPS and key not in ("training.seed", "run.engine")
        if (section == "model" and model == "network" and key != "model.kind") or (steps and model != "network"):
            flag = "--C" if name == "C" else f"--{name.replace('_', '-')}"
            value = OTHER[key]
            said = refused(capsys, monkeypatch, command, "two-moons", "--model", model, flag, str(value))
            shown = "--lr" if name == "learning_rate" else flag
            assert said.startswith(f"mibp-cert: {shown} "), said


@pytest.mark.parametrize("words", ["--sample 40", "--target 0", "--scaling none", "--data x.csv", "--test-share 0.5"])
def test_a_built_in_data_set_is_as_it_is(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refused(capsys, monkeypatch, "certify", "two-moons", "--model", "logistic", *words.split())
    assert said.startswith(f"mibp-cert: {words.split()[0]} belongs to")


def test_a_finished_run_takes_no_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "run")
    words = ["certify", "two-moons", "--model", "logistic", "--C", "0.1", "--no-attack", "-q", "--run", folder]
    cli.app(words, standalone_mode=False)
    assert "has its own settings" in refused(capsys, monkeypatch, "blame", folder, "--eps", "0.3")
    cli.app(["blame", folder, "-q"], standalone_mode=False)
