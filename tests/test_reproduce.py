"""The paper's tables: complete, resumable, and judged on validation data alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mibp_cert.certify import CertifiedRun, clean_figures
from mibp_cert.cli import app
from mibp_cert.data import Split, load, two_moons
from mibp_cert.doors import certify_fit
from mibp_cert.errors import Diverged, UserError
from mibp_cert.fitted import Fitted
from mibp_cert.nets import Training
from mibp_cert.report.paper import accuracy_table
from mibp_cert.studies import choose
from mibp_cert.studies.reproduce import TABLES, TIMINGS, Options, minimum, run_table, runner
from mibp_cert.studies.reproduce.paper import IRIS2, TWO_MOONS, Cost
from mibp_cert.threats import LInf, Removed, Threat

SMALL = replace(IRIS2, cells=IRIS2.cells[:1], training=Training(6), hidden=(4,), learning_rates=(0.02, 0.1))


def test_every_table_of_the_paper_is_there() -> None:
    assert {"two-moons", "iris2", "iris", "breast-cancer", "npha"} <= set(TABLES)
    assert set(TIMINGS) == {"branches", "width", "depth", "runtime"}
    assert [cell.paper.get("MIBP-Cert") for cell in TWO_MOONS.cells[:3]] == [83.3, 82.0, 81.4]


def test_records_stand_beside_each_other_and_are_ordered_as_they_must(tmp_path: Path) -> None:
    options = Options(seeds=2, engines=("interval", "relational"), runs=tmp_path)
    records = run_table(SMALL, options, lambda text: None)
    assert [r["engine"] for r in records] == ["interval", "relational"]
    for r in records:
        assert r["certified"] <= r["attacked"] <= r["clean"]
        assert r["steps"] >= 5
        assert r["seeds"] == 2


def test_finished_units_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(seeds=1, engines=("interval",), runs=tmp_path)
    first = run_table(SMALL, options, lambda text: None)

    def never(*args: object) -> None:
        raise AssertionError("ran again")

    monkeypatch.setattr(runner, "run_unit", never)
    assert run_table(SMALL, options, lambda text: None) == first
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(kept.read_text()[:50])
    with pytest.raises(AssertionError, match="ran again"):
        run_table(SMALL, options, lambda text: None)
    with pytest.raises(AssertionError, match="ran again"):
        run_table(replace(SMALL, training=Training(7)), options, lambda text: None)


def test_the_command_prints_and_writes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "iris2", SMALL)
    arguments = ["reproduce", "iris2", "--seeds", "1", "--engines", "interval", "--runs", str(tmp_path / "runs")]
    arguments += ["--json", str(tmp_path / "out.json"), "--csv", str(tmp_path / "out.csv")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "paper: MIBP-Cert" in result.output
    assert "standard deviations" in result.output
    (record,) = json.loads((tmp_path / "out.json").read_text())
    assert record["engine"] == "interval"
    assert "certified" in (tmp_path / "out.csv").read_text().splitlines()[0]


def test_cost_tables_stand_beside_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMINGS, "width", (Cost("2 x 2", 0.75, (2,)),))
    out = tmp_path / "out.json"
    result = CliRunner().invoke(app, ["reproduce", "width", "--quick", "--json", str(out)])
    assert result.exit_code == 0, result.output
    (record,) = json.loads(out.read_text(), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert record["paper"] == 0.75
    assert record["programs"] == 24  # two for each of the 12 parameters of a 2-2-2 network
    assert "2 x 2" in result.output


@pytest.mark.parametrize(("what", "engines"), [("mnist", "interval"), ("iris2", "oracle")])
def test_unknown_tables_and_engines_are_named(what: str, engines: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", what, "--engines", engines])
    assert result.exit_code != 0
    assert "There is no" in str(result.exception)


# Models at their minimum ------------------------------------------------------------------------------------------------


def test_a_fitted_model_stands_beside_the_papers_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without features, with C from the grid, without steps; beside networks, whose steps are said."""
    monkeypatch.setitem(TABLES, "iris2", replace(SMALL, learning_rates=(0.02,)))
    monkeypatch.setattr(minimum, "COARSE", (0.005, 0.01))
    out = tmp_path / "out.json"
    words = ["reproduce", "iris2", "--seeds", "1", "--quick", "--model", "logistic", "--features", "4"]
    kept = ["--runs", str(tmp_path / "runs"), "--json", str(out)]
    result = CliRunner().invoke(app, [*words, "--engines", "interval", *kept], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for said in (
        "minimum",
        "logistic, 4 tanh features",
        "another training than the paper's",
        "majority",
        "0.005, 0.01",
    ):
        assert said in result.output
    network, plain, featured = json.loads(out.read_text())
    assert [r["model"] for r in (network, plain, featured)] == ["network", "logistic", "logistic"]
    assert [r["features"] for r in (network, plain, featured)] == [None, 0, 4]
    assert network["steps"] >= 5
    assert network["C"] is None
    for record in (plain, featured):
        assert (record["engine"], record["steps"], record["learning_rate"]) == ("dual", None, None)
        assert record["C"] in minimum.COARSE
        assert record["certified"] <= record["attacked"] <= record["clean"]
    monkeypatch.setattr(runner, "run_unit", lambda *args: pytest.fail("ran again"))
    alone = CliRunner().invoke(app, [*words, *kept])
    assert alone.exit_code == 0, alone.output
    assert [r["model"] for r in json.loads(out.read_text())] == ["logistic", "logistic"]


def test_c_is_chosen_on_validation_rows_not_beyond_what_is_proven_nor_where_it_cannot_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[float] = []
    clean = {0.01: 0.9, 0.1: 0.85, 1.0: 0.8, 3.0: 0.85, 10.0: 0.95, 100.0: 1.0}
    certified = {0.01: 0.5, 0.1: 0.8, 1.0: 0.8, 3.0: 0.8}

    class Found:
        def __init__(self, c: float) -> None:
            self.validation = clean[c], certified[c]

    def fitted(data: object, threat: object, model: Fitted, **how: object) -> Found:
        tried.append(model.C)
        if model.C > 3.0:
            raise Diverged("too much")
        return Found(model.C)

    monkeypatch.setattr(minimum, "certify_fit", fitted)
    monkeypatch.setattr(choose, "certify_fit", fitted)
    monkeypatch.setattr(choose, "clean_figures", lambda network, data, threat, model: [clean[model.C]])
    monkeypatch.setattr(minimum, "GRID", tuple(clean))
    found = minimum.best_fit(minimum.Fit("logistic", 0), two_moons(0), LInf(0.1), 0, quick=False)
    assert found is not None
    assert (found[1], tried) == (0.1, [0.01, 0.1, 3.0, 10.0, 0.1])


def test_where_no_start_is_proven_nothing_is_certified_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certify, data = minimum.certify_fit, {seed: load("iris2", seed) for seed in (0, 1)}

    def once(split: Split, *args: object, **how: object) -> CertifiedRun:
        if (split.train.x == data[1].train.x).all():
            raise Diverged("too much")
        return certify(split, *args, **how)  # type: ignore[arg-type]

    for room in (minimum, choose):
        monkeypatch.setattr(room, "certify_fit", once)
    options = Options(seeds=2, engines=(), quick=True, runs=tmp_path, model="logistic", features=0)
    (record,) = run_table(SMALL, options, lambda text: None)
    alone = run_table(SMALL, replace(options, seeds=1), lambda text: None)[0]
    assert record["certified"] == alone["certified"] / 2 > 0
    assert (record["attacked"], record["C"]) == (None, None)
    assert record["clean"] > 0
    assert accuracy_table(SMALL, [record]) is not None


@pytest.mark.parametrize("threat", [LInf(0.01), Removed(1)])
def test_the_clean_accuracy_of_a_fit_is_the_one_its_certificate_reports(threat: Threat) -> None:
    data, model = two_moons(1), Fitted(C=1.0)
    (clean,) = clean_figures(model.network(data.train), data, threat, model)
    assert clean == certify_fit(data, threat, model, attacked=False).validation[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model ridge", "can be fitted with logistic, squared-hinge, not 'ridge'"),
        ("--features 3", "--features is a number ≥ 0 for models that are fitted"),
    ],
)
def test_what_cannot_be_fitted_here_is_said(words: str, said: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", "iris2", *words.split()])
    assert said in str(result.exception)


def test_more_classes_than_a_fitted_model_knows_are_a_sentence(tmp_path: Path) -> None:
    """Three classes work here as soon as fitted models know them."""
    options = Options(seeds=1, engines=(), quick=True, runs=tmp_path, model="logistic", features=0)
    table = replace(TABLES["iris"], cells=TABLES["iris"].cells[1:2])
    try:
        found = run_table(table, options, lambda text: None)
    except UserError as error:
        refused = str(error)
        assert "classes" in refused
        return
    assert found[0]["certified"] <= found[0]["attacked"]
