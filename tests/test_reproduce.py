"""The paper's tables: complete, resumable, and judged on validation data alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mibp_cert.cli import app
from mibp_cert.nets import Training
from mibp_cert.studies.reproduce import TABLES, TIMINGS, Options, run_table, runner
from mibp_cert.studies.reproduce.paper import IRIS2, TWO_MOONS, Cost

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
