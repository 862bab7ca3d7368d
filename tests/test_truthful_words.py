"""No sentence that is not so: threats, advice, answers and what was not checked are said as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import mibp_cert as mc
from mibp_cert.cli import app
from mibp_cert.config import merged, plain_config
from mibp_cert.errors import UserError
from mibp_cert.graph import functions
from mibp_cert.job import job_of
from mibp_cert.questions.collective import Flips
from mibp_cert.questions.properties import describe
from mibp_cert.report.terminal import advice
from mibp_cert.store.verify import AuditSettings

# Sentences ------------------------------------------------------------------------------------------------------------


def test_advice_speaks_of_attacks_only_where_one_ran() -> None:
    data, training = mc.two_moons(0), mc.Training(epochs=10)
    for attacked in (True, False):
        run = mc.certify_training(
            mc.Network.mlp([2, 20, 2]), data, mc.LInf(0.05), training, "interval", attacked=attacked
        )
        (said,) = advice(run)
        assert ("attack" in said) == attacked


WORDS: list[tuple[Any, str]] = [
    (mc.Budget(mc.LInf({"age": 5}), rows=2), "in at most 2 rows, 'age' may be off by 5"),
    (mc.Budget(mc.LInf({"age": 5}), rows=1), "in at most one row, 'age' may be off by 5"),
    (
        mc.Budget(mc.LInf(0.5), cells=1),
        "in every row, at most one cell may be wrong: every number may be off by 0.5",
    ),
    (
        mc.Budget(mc.LInf(0.5), cells=2),
        "in every row, at most 2 cells may be wrong: every number may be off by 0.5",
    ),
    (
        mc.Budget(mc.Budget(mc.LInf(0.5), cells=1), rows=3),
        "in at most 3 rows, at most one cell may be wrong: every number may be off by 0.5",
    ),
    (mc.Budget(mc.AnyCategory("mood"), rows=1), "in at most one row, 'mood' may be any category"),
    (
        mc.LInf(1.0).where(mc.column("age") >= 50),
        "where 'age' >= 50, every number may be off by 1",
    ),
    (mc.LInf(1.0).where([0, 3]), "in 2 given rows, every number may be off by 1"),
    (mc.LInf({"age": 1}), "'age' may be off by 1 in any row"),
    (mc.LabelFlips(1), "at most one label may be wrong"),
    (
        mc.LInf({"age": 1}) & mc.LabelFlips(2),
        "'age' may be off by 1 in any row, and at most 2 labels may be wrong",
    ),
    (
        mc.Budget(mc.LInf({"age": 1}) & mc.LabelFlips(), rows=2),
        "in at most 2 rows, 'age' may be off by 1, and the label may be wrong",
    ),
]


@pytest.mark.parametrize(("threat", "words"), WORDS, ids=[w for _, w in WORDS])
def test_a_threat_reads_as_a_person_would_say_it(threat: Any, words: str) -> None:
    assert mc.in_words(threat) == words
    assert mc.in_words(threat.to_json()) == words


def test_the_configuration_names_the_hidden_layers_that_were_used(tmp_path: Path) -> None:
    place = tmp_path / "out.json"
    asked = ["certify", "two-moons", "--engine", "interval", "--epochs", "1", "--no-attack", "--json", str(place)]
    assert CliRunner().invoke(app, asked).exit_code == 0
    found = json.loads(place.read_text())
    assert found["network"] == [2, 20, 2]
    assert found["configuration"]["network"]["hidden"] == "20"


def test_a_margin_can_be_asked_for_where_test_values_are_missing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    table["y"] = np.where(table["a"] > 0, "yes", "no")
    table.loc[::7, "b"] = np.nan
    table.to_csv(tmp_path / "data.csv", index=False)
    asked = [
        "certify",
        str(tmp_path / "data.csv"),
        "--target",
        "y",
        "--missing",
        "all",
        "--margin",
        "0.01",
        "--no-attack",
    ]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 0, found.exception
    assert "Margin of at least 0.01" in found.output


def test_abstaining_cannot_be_mistaken_for_a_class() -> None:
    """Labels −1 and 1: the number that stands for abstaining is none of them, and the table says the word."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = np.where(X[:, 0] > 0, 1, -1)
    model = mc.CertifiedClassifier(hidden=(), threat=mc.LInf(0.1), epochs=5, select="last").fit(X, y)
    with pytest.warns(UserWarning, match=r"−2 stands for abstaining.*abstain_label="):
        answers = model.predict(X)
    assert model.abstain_label_ == -2
    assert set(answers.tolist()) <= {-2, -1, 1}
    found = model.certify(X, attack=False)
    assert set(found.loc[~found["certified"], "class"]) == {"abstain"}
    assert set(found.loc[found["certified"], "class"]) <= {-1, 1}
    named = mc.CertifiedClassifier(hidden=(), threat=mc.LInf(0.1), epochs=5, select="last", abstain_label=0).fit(X, y)
    assert set(named.predict(X).tolist()) <= {-1, 0, 1}  # chosen by the user: no warning


# Threats are asked by type, never by the names of columns ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows", "label", "rules", "missing"])
def test_a_column_may_have_any_name(name: str) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: rng.normal(size=40), "b": rng.normal(size=40)})
    y = np.where(table[name] > 0, "yes", "no")
    threat = mc.LInf({name: 0.05}).where(mc.column(name) >= 0.0)
    model = mc.CertifiedClassifier(
        hidden=(), loss="cross-entropy", threat=threat, select="best-validation", epochs=3
    ).fit(table, y)
    assert len(model.predict(table, threat=threat)) == 40


def test_threats_that_read_labels_or_name_rows_still_say_so() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=30)})
    y = np.where(table["a"] > 0, "yes", "no")
    model = mc.CertifiedClassifier(
        hidden=(), threat=mc.LInf(0.01).where(mc.label_is("yes")), epochs=1, select="last"
    ).fit(table, y)
    with pytest.raises(UserError, match="labels"):
        model.predict(table, threat=mc.LInf(0.1).where(~(mc.label_is("yes") & (mc.column("a") > 0))))
    for named in (
        mc.LInf(0.01).where([0]),
        mc.LInf(0.01, rows=[1]),
        mc.LInf(0.01).where(mc.column("a") < 0) & mc.LInf(0.1).where([1]),
    ):
        with pytest.raises(UserError, match="names rows"):
            mc.CertifiedClassifier(hidden=(), threat=named, select="best-validation").fit(table, y)


# Verify ---------------------------------------------------------------------------------------------------------------


def test_verify_says_what_it_could_not_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mibp_cert.store import second

    network = mc.Network((mc.Linear(2, 2), mc.Tanh(), mc.Linear(2, 2)), 2)
    mc.certify_training(network, mc.two_moons(0), mc.LInf(0.01), mc.Training(epochs=1), run_dir=tmp_path / "run")
    few = AuditSettings(points=1, parameters=1, members=3)
    known = functions.SMOOTH["tanh"]
    monkeypatch.setattr(second, "_SMOOTH", {k: v for k, v in second._SMOOTH.items() if k != known.name})
    found = {check.name: check for check in mc.verify(tmp_path / "run", few)}
    assert found["second opinion"].holds is None
    assert "'tanh'" in found["second opinion"].words
    assert found["hashes"].holds
    assert found["recomputed"].holds
    shown = CliRunner().invoke(app, ["verify", str(tmp_path / "run"), "--points", "1", "--parameters", "1"])
    assert shown.exit_code == 4
    assert "not checked" in shown.output


def test_a_layer_unknown_to_this_package_is_no_broken_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mibp_cert.certify import plain as stored

    network = mc.Network((mc.Linear(2, 2), mc.Tanh(), mc.Linear(2, 2)), 2)
    mc.certify_training(network, mc.two_moons(0), mc.LInf(0.01), mc.Training(epochs=1), run_dir=tmp_path / "run")
    monkeypatch.setattr(stored, "LAYERS", tuple(layer for layer in stored.LAYERS if layer is not mc.Tanh))
    found = {check.name: check for check in mc.verify(tmp_path / "run")}
    assert found["hashes"].holds
    assert found["request"].holds is None
    assert "Tanh" in found["request"].words


@pytest.mark.parametrize(
    ("reached", "proven", "exact", "words"),
    [(3, 3, True, "exactly 3 of"), (3, 3, False, "exactly 3 of"), (2, 3, False, "at least 2 and at most 3 of")],
)
def test_bounds_that_meet_are_said_as_one_number(reached: int, proven: int, exact: bool, words: str) -> None:
    """Where a dataset was found that flips as many as can flip at most, the number is known."""
    flips = Flips(points=10, single=4, reached=reached, proven=proven, exact=exact)
    (line,) = describe({"collective": flips.to_json()})
    assert f"Flips at once: {words} 10 test predictions" in line


def test_rows_that_help_nothing_are_not_said_to_help() -> None:
    """Bounds of the second run are bounds of another set: fewer predictions may be certified, which is no gain of one."""
    table = pd.DataFrame()
    said = {after: mc.Blame(table, table, 5, (7,), 10, after).sentence for after in (9, 10, 11, 12)}
    assert all("no further prediction becomes certain" in said[after] for after in (9, 10))
    assert "one more prediction becomes certain" in said[11]
    assert "2 more predictions become certain" in said[12]


def test_a_stored_configuration_can_be_run_again() -> None:
    """Infinite limits are null in a file: they stand for the default."""
    first = job_of(merged({"data": {"source": "two-moons"}, "training": {"epochs": 1}}))
    again = job_of(merged(json.loads(json.dumps(plain_config(first.config)))))
    assert again.options["solver"] == first.options["solver"]
    assert again.network.sizes == first.network.sizes
    assert again.threat.to_json() == first.threat.to_json()
