"""A user's own file: read without guessing, refused in a sentence; the commands and the configuration on it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import mibp_cert as mc
from mibp_cert import cli
from mibp_cert.certify.choice import Judge
from mibp_cert.certify.forecast import check_memory, estimate_memory
from mibp_cert.config import defaults, merged, plain_config, read_config
from mibp_cert.data.reading import Reading, read_table
from mibp_cert.data.table import split_table
from mibp_cert.engines import engine_named
from mibp_cert.errors import UserError
from mibp_cert.job import job_of
from mibp_cert.store import archive
from mibp_cert.threats.short import threat_of


def survey(path: Path, rows: int = 80, seed: int = 0) -> Path:
    """A table with missing answers, written as a person's spreadsheet would be."""
    rng = np.random.default_rng(seed)
    age, income = rng.integers(20, 90, rows), rng.normal(40, 9, rows).round(1)
    health = rng.choice(["good", "fair", "poor"], rows)
    ill = (age - 55) / 15 + (health == "poor") * 1.5 - (income - 40) / 20 + rng.normal(0, 0.3, rows) > 0.2
    frame = pd.DataFrame(
        {"age": age, "income": income, "mental_health": health, "diagnosis": np.where(ill, "ill", "well")}
    )
    frame.loc[[i for i in (3, 20, 41, 60) if i < rows], "mental_health"] = None
    frame.to_csv(path, index=False)
    return path


DOUBT = ["--target", "diagnosis", "--missing", "mental_health", "--eps", "age=1,income=5%"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, list(arguments))
    assert isinstance(result.exception, UserError), (result.output, result.exception)
    return str(result.exception)


def test_the_command_on_a_file_with_missing_answers(tmp_path: Path) -> None:
    path, page, plain = survey(tmp_path / "data.csv"), tmp_path / "out.html", tmp_path / "out.json"
    said = run(
        "certify", str(path), *DOUBT, "--report", str(page), "--json", str(plain), "--run", str(tmp_path / "run")
    )
    assert "'age' may be off by 1" in said
    assert "5 % of its value" in said
    assert "missing values of 'mental_health' may be any valid value" in said
    found = json.loads(plain.read_text())
    assert found["dataset"] == "data"
    assert found["test"]["n"] == 20
    assert 0 < found["test"]["certified_accuracy"] <= found["test"]["attacked_accuracy"]
    assert (found["model"], found["loss"], found["epochs"]) == ("logistic", "cross-entropy", [])
    assert found["C"] == found["choice"]["C"] == found["configuration"]["model"]["C"]
    assert archive.read_config(tmp_path / "run") == found["configuration"]
    assert "Re-check" in page.read_text()
    looked = run("verify", str(tmp_path / "run"), "--data", str(path), "--points", "1", "--parameters", "1")
    assert "same train, validation, test rows" in " ".join(looked.split())
    assert "Report written" in run("report", str(tmp_path / "run"), str(tmp_path / "again.html"))
    assert (tmp_path / "again.html").stat().st_size > 10_000
    assert "certified" in run("resume", str(tmp_path / "run"))


def test_questions_on_a_file(tmp_path: Path) -> None:
    path = survey(tmp_path / "data.csv")
    said = run(
        "tolerance", str(path), *DOUBT, "--share", "0.5", "--precision", "0.5", "--json", str(tmp_path / "t.json")
    )
    assert "50 % of the test points are certified" in said
    found = json.loads((tmp_path / "t.json").read_text())
    assert found["certified_up_to"] < found["attacked_from"]
    said = run("blame", str(path), *DOUBT, "--top", "3", "--json", str(tmp_path / "b.json"))
    assert "Re-check these 3 rows" in said
    assert len(json.loads((tmp_path / "b.json").read_text())["blame"]["fixed"]) == 3
    said = run("compare", str(path), *DOUBT, "--epochs", "3", "--csv", str(tmp_path / "c.csv"), "--no-attack")
    assert pd.read_csv(tmp_path / "c.csv")["engine"].tolist() == ["interval", "crown", "relational"]


STEPS = {"model": {"kind": "network"}}


def test_blamed_rows_are_lines_of_the_file(tmp_path: Path) -> None:
    path = survey(tmp_path / "data.csv")
    job = job_of(
        merged(
            {"data": {"source": str(path), "target": "diagnosis"}, "threat": {"missing": ["mental_health"]}, **STEPS}
        )
    )
    lost = {f"line {i + 1}" for i, line in enumerate(path.read_text().splitlines()) if ",," in line}
    named = set(np.asarray(job.data.train.index)[np.asarray(job.data.train.missing).any(axis=1)].tolist())
    assert named <= lost
    found = mc.blame(job.run("relational"), verified=False)
    assert set(found.rows["row"]) == named


def test_a_model_that_has_learnt_nothing_is_not_chosen(tmp_path: Path) -> None:
    """The epoch with the most certificates may be one before anything was learnt; the choice is among those that are better
    than always answering the most frequent class."""
    path = survey(tmp_path / "data.csv", rows=300)
    doubt = {"data": {"source": str(path), "target": "diagnosis"}, "threat": {"missing": ["all"], "eps": "8%"}, **STEPS}
    found = job_of(merged(doubt)).run("relational", None)
    judge = Judge.of(found.data)
    figures = [(record.validation_nominal, record.validation_certified) for record in found.history]
    good = [certified for clean, certified in figures if judge.beats(clean) and certified]
    assert good
    assert judge.beats(found.validation[0])
    assert found.validation[1] == max(good)
    given = merged({**doubt, "select": {"least_accuracy": 0.3}})
    assert job_of(given).config["select"]["least_accuracy"] == 0.3


def test_a_file_called_like_the_images_holds_no_images(tmp_path: Path) -> None:
    path = survey(tmp_path / "digits.csv")
    job = job_of(
        merged({"data": {"source": str(path), "target": "diagnosis"}, "threat": {"missing": ["all"]}, **STEPS})
    )
    assert job.network.features == job.data.train.features
    assert job.config["network"]["conv"] is None


def test_amounts_are_compared_with_everything_else_kept(tmp_path: Path) -> None:
    path = survey(tmp_path / "data.csv")
    arguments = ["--target", "diagnosis", "--missing", "mental_health", "--eps-values", "0.1,age=1", "--epochs", "2"]
    said = run("compare", str(path), *arguments, "--no-attack", "--csv", str(tmp_path / "c.csv"))
    assert pd.read_csv(tmp_path / "c.csv")["threat"].tolist() == ["eps 0.1", "eps age=1"]
    assert "trained for exactly 2 step(s), as certify chooses for: every number may be off by 0.1" in said


def test_amounts_are_compared_for_the_columns_that_eps_names(tmp_path: Path) -> None:
    path = survey(tmp_path / "data.csv")
    arguments = ["--target", "diagnosis", "--missing", "all", "--eps", "age=1", "--eps-values", "0.5,2", "--no-attack"]
    said = run("compare", str(path), *arguments, "--csv", str(tmp_path / "c.csv"))
    assert pd.read_csv(tmp_path / "c.csv")["threat"].tolist() == ["eps age=0.5", "eps age=2"]
    assert re.search(r"in per cent of all test points; always answering \S+ has \d", said)


def test_blame_reads_a_finished_run_directory(tmp_path: Path) -> None:
    path = survey(tmp_path / "data.csv")
    run("certify", str(path), *DOUBT, "--run", str(tmp_path / "run"), "--no-attack")
    assert "Re-check these 2 rows (line " in run("blame", str(tmp_path / "run"), "--top", "2")


def test_a_regression_is_compared_by_its_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.uniform(30, 200, 60).round(1)})
    frame["price"] = (2 * frame["size"] + rng.normal(0, 5, 60)).round(2)
    frame.to_csv(tmp_path / "houses.csv", index=False)
    run("compare", str(tmp_path / "houses.csv"), "--target", "price", "--eps", "1", "--csv", str(tmp_path / "c.csv"))
    found = pd.read_csv(tmp_path / "c.csv")
    assert (found["clean"] <= found["attacked"]).all()
    assert (found["attacked"] <= found["certified"]).all()


def test_a_new_category_in_the_test_file_is_refused(tmp_path: Path) -> None:
    path, other = survey(tmp_path / "data.csv"), survey(tmp_path / "test.csv", rows=30, seed=1)
    other.write_text(other.read_text().replace("poor", "terrible"))
    assert "'terrible' is not a category" in refused("certify", str(path), *DOUBT, "--test-file", str(other))


def test_a_test_file_is_used_as_it_is(tmp_path: Path) -> None:
    path, other = survey(tmp_path / "data.csv"), survey(tmp_path / "test.csv", rows=30, seed=1)
    plain = tmp_path / "out.json"
    run("certify", str(path), *DOUBT, "--test-file", str(other), "--json", str(plain))
    assert json.loads(plain.read_text())["test"]["n"] == 30
    other.write_text(other.read_text().replace("income", "wage"))
    assert "it lacks income. it also has wage" in refused("certify", str(path), *DOUBT, "--test-file", str(other))


def test_splits_are_disjoint_keep_the_shares_and_depend_on_the_seed(tmp_path: Path) -> None:
    frame = read_table(survey(tmp_path / "data.csv", rows=200), Reading("diagnosis"))
    first, again, other = (split_table(frame, Reading("diagnosis"), seed, "t") for seed in (0, 0, 1))
    parts = [np.asarray(p.index) for p in (first.train, first.validation, first.test)]
    assert [len(p) for p in parts] == [120, 30, 50]
    assert len(np.unique(np.concatenate(parts))) == 200
    share = (frame["diagnosis"] == "ill").mean()
    for part in (first.train, first.validation, first.test):
        assert abs(float(np.mean(part.y == 0)) - share) < 0.06
    assert np.array_equal(first.train.x, again.train.x)
    assert not np.array_equal(first.train.x, other.train.x)
    assert len(split_table(frame, Reading("diagnosis", sample=60), 0, "t").train) == 36


def test_a_regression_is_recognised_and_stays_in_its_units(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.uniform(30, 200, 90).round(1)})
    frame["price"] = (2000 * frame["size"] + rng.normal(0, 5000, 90)).round(2)
    frame.to_csv(tmp_path / "houses.csv", index=False)
    plain = tmp_path / "out.json"
    said = run(
        "certify",
        str(tmp_path / "houses.csv"),
        "--target",
        "price",
        "--target-eps",
        "1000",
        "--eps",
        "1",
        "--json",
        str(plain),
    )
    assert "a number to predict" in said
    test = json.loads(plain.read_text())["test"]
    assert 1000 < test["nominal_error"] <= test["attacked_error"] <= test["certified_error"] < 100_000


BAD: dict[str, tuple[bytes, list[str], str]] = {
    "ragged rows": (b"a,b,y\n1,2,x\n1,2\n", [], "Line 3 of .* has 2 fields, but the header has 3"),
    "too many fields": (b"a,y\n1,x\n1,x,z\n", [], "Line 3 of .* has 3 fields"),
    "mixed types": (b"a,y\n1,x\n2,y\n3,x\nten,y\n5,x\n", [], "'a' mixes numbers and text: 'ten' in line 5"),
    "a missing target": (
        b"a,y\n" + b"1,x\n2,\n" * 8,
        [],
        "8 of 16 rows have no value in the target column 'y' .first in line 3",
    ),
    "no such target": (b"a,b\n1,2\n", [], "There is no column 'y' in .*; there are a, b"),
    "two rows": (b"a,y\n1,x\n2,z\n", [], "There are only 2 rows; at least 10"),
    "other bytes": (b"a,y\n1,caf\xe9\n", [], "is not utf-8 text: byte 0xe9"),
    "an unknown encoding": (b"a,y\n1,x\n", ["--encoding", "utf-99"], "no encoding called 'utf-99'"),
    "an empty file": (b"", [], "is empty; the first line must name the columns"),
    "a header alone": (b"a,y\n", [], "has a header but no rows"),
    "a column twice": (b"a,a,y\n1,2,x\n", [], "several columns called a"),
    "a column without name": (b"a,,y\n1,2,x\n", [], "has no name"),
    "the target alone": (b"y\n" + b"x\nz\n" * 8, [], "target column only"),
    "one class": (b"a,y\n" + b"1,x\n2,x\n" * 8, [], "at least two classes"),
    "infinite values": (b"a,y\n" + b"1,x\ninf,z\n" * 8, [], "infinite values"),
    "an identifier": (
        b"a,id,y\n" + b"".join(b"%d,n%dx,%s\n" % (i, i, b"u" if i % 2 else b"v") for i in range(80)),
        [],
        "looks like an identifier",
    ),
    "missing values that nobody mentioned": (
        b"a,b,y\n" + b"1,2,x\n2,,z\n" * 8,
        [],
        r"Values are missing in 'b' \(8\).*--missing b \(or --missing all\)",
    ),
    "missing values in two columns": (
        b"a,b,y\n" + b"1,2,x\n,,z\n" * 8,
        [],
        r"'a' \(8\), 'b' \(8\).*--missing a --missing b \(or --missing all\)",
    ),
    "missing values in many columns": (
        b"a,b,c,d,e,f,y\n" + b"1,2,3,4,5,6,x\n,,,,,,z\n" * 8,
        [],
        r"with --missing all, or leave the columns out",
    ),
    "an open quote": (b'a,y\n"1,x\n2,z\n', [], "cannot be read as a table"),
    "a share beyond one": (b"a,y\n" + b"1,x\n2,z\n" * 8, ["--test-share", "1.5"], "between 0 and 1"),
    "an eps that is none": (b"a,y\n" + b"1,x\n2,z\n" * 8, ["--eps", "much"], "takes numbers such as 0.1 or 5%"),
    "an eps for no column": (b"a,y\n" + b"1,x\n2,z\n" * 8, ["--eps", "c=1"], "no column 'c'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    content, options, words = BAD[name]
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    eps = [] if "--eps" in options else ["--eps", "0.1"]
    with pytest.raises(UserError, match=words):
        raise UserError(refused("certify", str(path), "--target", "y", *eps, *options))
    assert path.read_bytes() == content


def test_a_file_without_doubt_or_target_is_refused(tmp_path: Path) -> None:
    path = survey(tmp_path / "data.csv")
    assert "Name the column that is to be predicted" in refused("certify", str(path))
    assert "Say what may be wrong" in refused("certify", str(path), "--target", "diagnosis", "--drop", "mental_health")
    assert "neither a file nor a data set called 'nowhere.csv'" in refused("certify", "nowhere.csv")
    assert "There is no column 'mood'" in refused("certify", str(path), *DOUBT, "--missing", "mood")


def test_constant_columns_and_semicolons_are_read(tmp_path: Path) -> None:
    path = tmp_path / "semi.csv"
    rows = [f"{i};7;{'x' if i % 2 else 'z'}" for i in range(40)]
    path.write_text("\n".join(["\ufeffa;b;y", *rows]) + "\n\n")
    said = run("certify", str(path), "--target", "y", "--eps", "0.1", "--no-attack")
    assert "The column 'b' has one value only" in said


def test_a_latin_file_is_read_when_its_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(b"a,y\n" + "".join(f"{i},{'é' if i % 2 else 'z'}\n" for i in range(30)).encode("latin-1"))
    assert set(read_table(path, Reading("y", encoding="latin-1"))["y"]) == {"é", "z"}


def test_a_million_rows_are_refused_before_they_hurt() -> None:
    rng = np.random.default_rng(0)
    data = mc.Dataset.of(rng.normal(size=(1_000_000, 8)), rng.integers(0, 2, 1_000_000))
    network = mc.Network.mlp([8, 20, 2])
    with pytest.raises(UserError, match=r"1000000 rows with 8000000 doubtful entries need about \d+ GiB.*--sample"):
        mc.certify_training(network, data, mc.LInf(0.1))
    check_memory(network, data, mc.LInf(0.1), mc.Training(), engine_named("interval"))
    relational = engine_named("relational")
    assert estimate_memory(network, 100, 0, 1000, relational) < estimate_memory(network, 100, 1000, 1000, relational)


def test_memory_is_looked_at_before_any_training(monkeypatch: pytest.MonkeyPatch) -> None:
    given = merged({"data": {"source": "two-moons"}})
    monkeypatch.setattr("mibp_cert.certify.forecast.LARGE", 1)
    job_of(given)
    monkeypatch.setattr("mibp_cert.certify.forecast.free_memory", lambda: 0)
    with pytest.raises(UserError, match="100 rows with 200 doubtful entries need about"):
        job_of(given)


def test_the_configuration_knows_every_option_of_the_api() -> None:
    import inspect

    known = {key for section in defaults().values() for key in section}
    asked = set(inspect.signature(mc.certify_training).parameters) - {
        "network", "data", "threat", "training", "solver", "relational", "attack_settings", "attacked", "select",
        "test_threat", "theta0", "steps", "callbacks", "run_dir", "resume",
    }  # fmt: skip
    assert asked <= known
    for kind, section in (
        (mc.Training, "training"),
        (mc.SolverSettings, "solver"),
        (mc.RelationalSettings, "relational"),
    ):
        assert set(inspect.signature(kind).parameters) == set(defaults()[section])
    assert set(inspect.signature(mc.AttackSettings).parameters) | {"enabled"} == set(defaults()["attack"])


def test_a_configuration_file_runs_and_flags_go_over_it(tmp_path: Path) -> None:
    survey(tmp_path / "data.csv")
    config = tmp_path / "run.toml"
    config.write_text(
        f"""
        [data]
        source = "{tmp_path / "data.csv"}"
        target = "diagnosis"
        [threat]
        kind = "all"
        [[threat.threats]]
        kind = "missing"
        [[threat.threats]]
        kind = "where"
        when = {{ column = "age", is = ">=", value = 60 }}
        threat = {{ kind = "linf", eps = {{ age = 2 }} }}
        [training]
        epochs = 3
        schedule = [0.3, 0.2, 0.1]
        [attack]
        members = 5
        """
    )
    plain = tmp_path / "out.json"
    run("certify", "--config", str(config), "--json", str(plain), "--seed", "4", "--select", "last")
    found = json.loads(plain.read_text())
    assert (found["seed"], len(found["epochs"]), found["schedule"]) == (4, 3, [0.3, 0.2, 0.1])
    assert found["threat"]["threats"][1]["condition"] == "'age' >= 60"
    again = merged(found["configuration"])
    assert job_of(again).threat.to_json() == found["threat"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[training]\nepoch = 3", r"\[training\] has no key 'epoch'; did you mean 'epochs'"),
        ("[trainning]\nepochs = 3", r"no section \[trainning\].*did you mean 'training'"),
        ("epochs = 3", r"epochs is a key of the section \[training\]"),
        ("training = 3", r"\[training\] is a section"),
        ("[training]\nepochs = 'ten'", r"\[training\] epochs must be a whole number, got 'ten'"),
        ("[training]\nmomentum = 'much'", r"\[training\] momentum must be a number, got 'much'"),
        ("[solver]\ngap = true", "gap must be a number"),
        ("[attack]\nenabled = 1", "enabled must be true or false"),
        ("[data]\ndrop = 'a'", r"\[data\] drop must be a list"),
        ("[threat]\nkind = 'linff'\neps = 1", "no threat of the kind 'linff'; did you mean 'linf'"),
        ("[threat]\nkind = 'linf'\nepss = 1", "'linf' has no entry 'epss'; did you mean 'eps'"),
        ("[threat]\nkind = 'linf'", "'linf' is not complete: it needs"),
        ("[threat]\nepss = 1", r"\[threat\] has no key 'epss'; did you mean 'eps'"),
        ("[threat\n", "is not valid TOML"),
    ],
)
def test_a_wrong_configuration_names_the_nearest_key(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        job_of(merged(read_config(path), {"data": {"source": "two-moons"}}))


def test_the_effective_configuration_is_plain_json() -> None:
    job = job_of(merged({"data": {"source": "two-moons"}}))
    assert json.loads(json.dumps(plain_config(job.config), allow_nan=False))["solver"]["seconds_per_step"] is None
    assert job.config["training"]["loss"] == "hinge"


@pytest.mark.parametrize(
    ("eps", "expected"),
    [
        ("0.1", {"kind": "linf", "eps": 0.1}),
        ("5%", {"kind": "linf", "eps": 0.05, "relative": True}),
        ("a=1,b = 2", {"kind": "linf", "eps": {"a": 1.0, "b": 2.0}}),
    ],
)
def test_amounts_on_the_command_line(eps: str, expected: dict[str, Any]) -> None:
    assert threat_of({"eps": eps}, mc.two_moons(0).train).to_json() == expected


def test_help_names_every_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mibp-cert"])
    said = run("certify", "--help")
    for flag in ("--target", "--missing", "--eps", "--config", "--report", "--parallel", "--run", "--resume"):
        assert flag in said
