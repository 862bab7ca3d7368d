"""How columns are read and doubted, line by line; and what is said about files, flags and amounts beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import mibp_cert as mc
from mibp_cert import cli
from mibp_cert.config import merged, read_config
from mibp_cert.data.reading import Reading, read_file
from mibp_cert.data.table import split_table
from mibp_cert.errors import UserError
from mibp_cert.job import job_of
from mibp_cert.report.terminal import columns_text
from mibp_cert.threats.short import threat_of

ROWS = 40


def frame(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.integers(20, 80, rows).astype(float),
            "rows": rng.uniform(1, 9, rows).round(2),
            "label": ["a", "b", "c", *rng.choice(["a", "b", "c"], rows - 3)],
        }
    )
    table["ill"] = np.where(table["age"] > 50, "yes", "no")
    return table


def split(table: pd.DataFrame, path: Path, target: str = "ill", **options: Any) -> mc.Split:
    table.to_csv(path / "data.csv", index=False)
    reading = Reading(target, **options)
    found = read_file(path / "data.csv", reading)
    return split_table(found.frame, reading, 0, "data", origin=found.origin)


def doubts(data: mc.Split, threat: mc.Threat) -> dict[str, str]:
    return {record.name: record.doubt for record in mc.column_records(data, threat) if record.doubt}


def test_records_stand_in_the_order_of_the_file(tmp_path: Path) -> None:
    table = frame()
    table.insert(1, "id", range(1, ROWS + 1))
    table.insert(3, "note", "x")
    data = split(table, tmp_path, drop=("note",))
    found = mc.column_records(data, mc.LInf({"age": 1}))
    assert [(r.name, r.kind, r.target) for r in found] == [
        ("age", "number", False), ("id", "left out", False), ("rows", "number", False), ("note", "left out", False),
        ("label", "category", False), ("ill", "category", True),
    ]  # fmt: skip
    assert (found[0].low, found[0].high) == (table["age"].min(), table["age"].max())
    assert found[1].why == "it counts the rows, from 1 to 40"
    assert found[4].categories == ("a", "b", "c")
    assert json.loads(json.dumps([r.to_json() for r in found], allow_nan=False))[4]["categories"] == ["a", "b", "c"]


def test_doubts_are_those_of_the_threat_in_the_units_of_the_table(tmp_path: Path) -> None:
    """Read off the hull: columns called as the words of a description change nothing."""
    data = split(frame(), tmp_path)
    largest = float(np.abs(data.train.columns[1].to_value(data.train.x[:, 1])).max())
    older = int((data.train.columns[0].to_value(data.train.x[:, 0]) >= 60).sum())
    for threat, wanted in (
        (mc.Nothing(), {}),
        (mc.LInf({"age": 1.5, "rows": 0.25}), {"age": "± 1.5", "rows": "± 0.25"}),
        (mc.LInf({"rows": 0.1}, relative=True), {"rows": f"± up to {0.1 * largest:.3g}"}),
        (mc.Monotone("age", up=5.0), {"age": "up to 5 more"}),
        (mc.Monotone("age", up=5.0, down=1.0), {"age": "up to 1 less or up to 5 more"}),
        (mc.Rounded("age", to=1.0), {"age": "± 0.5"}),
        (mc.LInf({"age": 1}).where(mc.column("age") >= 60), {"age": f"± 1, in {older} of {len(data.train)} rows"}),
        (mc.Budget(mc.LInf({"age": 1}), rows=2), {"age": "± 1, in at most 2 rows"}),
        (mc.AnyCategory("label"), {"label": "any of them"}),
        (mc.AnyCategory("label") & mc.LabelFlips(1), {"label": "any of them", "ill": "any of them, in at most one row"}),
        (mc.LabelFlips(), {"ill": "any of them"}),
        (
            mc.Budget(mc.LInf({"age": 1}), rows=3) & mc.LabelFlips(1),
            {"age": "± 1, in at most 3 rows", "ill": "any of them, in at most one row"},
        ),
    ):  # fmt: skip
        assert doubts(data, threat) == wanted, threat.words()
    changing = mc.LInf({"age": 1}) & mc.Removed(2) & mc.Added(1, {})
    assert doubts(data, changing)["age"] == "± 1"


def test_what_is_missing_is_counted_and_doubted(tmp_path: Path) -> None:
    table = frame()
    table.loc[[3, 9, 20], "age"] = np.nan
    table.loc[[5], "label"] = None
    data = split(table, tmp_path)
    found = {r.name: r for r in mc.column_records(data, mc.Missing() & mc.LInf({"age": 1}))}
    assert (found["age"].missing, found["label"].missing) == (3, 1)
    assert found["age"].doubt.startswith("± 1; anything from ")
    assert found["age"].doubt.endswith(" where missing")
    assert found["label"].doubt in ("any of them where missing", "")  # empty where the row is none for training


def test_a_number_to_predict_has_its_range_and_doubt_in_its_units(tmp_path: Path) -> None:
    data = split(frame().drop(columns="ill"), tmp_path, "rows")
    found = {r.name: r for r in mc.column_records(data, mc.TargetNoise(0.5))}
    assert (found["rows"].kind, found["rows"].target, found["rows"].doubt) == ("number", True, "± 0.5")
    assert found["rows"].low == pytest.approx(frame()["rows"].min(), rel=1e-11)
    assert [r.name for r in mc.column_records(mc.two_moons(0), mc.LInf(0.1))] == ["0", "1", "target"]


def test_wide_tables_are_shown_in_part(tmp_path: Path) -> None:
    table = pd.DataFrame({f"c{i}": frame()["rows"] for i in range(30)}).assign(ill=frame()["ill"])
    lines = columns_text(mc.column_records(split(table, tmp_path))).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "  … and 11 more"


def test_the_command_says_how_columns_were_read(tmp_path: Path) -> None:
    table = frame()
    table.insert(0, "id", range(1, ROWS + 1))
    table.to_csv(tmp_path / "data.csv")  # with pandas' index
    out = tmp_path / "out.json"
    flags = ["--target", "ill", "--eps", "age=1", "--no-attack", "--epochs", "1", "--run", str(tmp_path / "run")]
    found = CliRunner().invoke(cli.app, ["certify", str(tmp_path / "data.csv"), *flags, "--json", str(out)])
    assert found.exit_code == 0, found.output
    said = " ".join(found.output.split())
    assert "(column 1) left out: it counts the rows, from 0 to 39 id left out: it counts the rows, from 1 to 40" in said
    assert "doubt: ± 1" in said
    told = json.loads(out.read_text())["columns"]
    assert [c["name"] for c in told] == ["(column 1)", "id", "age", "rows", "label", "ill"]
    kept = mc.load_run(tmp_path / "run")
    assert [r.to_json() for r in mc.column_records(kept.data, kept.threat)] == told, "also of a stored run"


def test_a_column_that_is_spoken_of_stays(tmp_path: Path) -> None:
    table = frame()
    table.insert(0, "year", range(1980, 1980 + ROWS))
    table.to_csv(tmp_path / "data.csv", index=False)
    given = {"data": {"source": str(tmp_path / "data.csv"), "target": "ill"}}
    for eps, stays in (("age=1", False), ("age=1,year=1", True), ({"year": 1}, True)):
        job = job_of(merged({**given, "threat": {"eps": eps}}))
        assert ("year" in [c.name for c in job.data.train.columns]) == stays


def test_a_test_file_is_read_as_the_training_file_was(tmp_path: Path) -> None:
    """What was left out there is left out here, and digits are text where it had text."""
    table = frame()
    table["label"] = table["label"].replace({"a": "1"})
    table.insert(0, "id", range(1, ROWS + 1))
    table.to_csv(tmp_path / "data.csv", index=False)
    other = table[table["label"] == "1"].iloc[::-1]
    other.to_csv(tmp_path / "test.csv", index=False)
    reading = Reading("ill")
    train = read_file(tmp_path / "data.csv", reading)
    test = read_file(tmp_path / "test.csv", reading, train)
    assert list(test.frame.columns) == list(train.frame.columns)
    data = split_table(train.frame, reading, 0, "data", test.frame)
    assert len(data.tested) == len(other)


def test_columns_may_be_named_by_one_text_in_a_configuration(tmp_path: Path) -> None:
    """A text is one name, not its letters."""
    table = frame()
    table.loc[[3, 9, 20, 30], "label"] = None
    table.to_csv(tmp_path / "data.csv", index=False)
    for said, columns in (
        ('missing = "all"', ["label"]),
        ('missing = "label"', ["label"]),
        ('missing = ["all"]', ["label"]),
    ):
        (tmp_path / "run.toml").write_text(
            f'[data]\nsource = "{tmp_path}/data.csv"\ntarget = "ill"\n[threat]\n{said}\n'
        )
        assert job_of(merged(read_config(tmp_path / "run.toml"))).threat.to_json()["columns"] == columns
    data = split(frame(), tmp_path).train
    assert threat_of({"any_category": "label"}, data).to_json()["columns"] == ["label"]
    with pytest.raises(UserError, match=r"\[threat\] missing takes the name of a column, or a list .* got 3"):
        threat_of({"missing": 3}, data)


@pytest.mark.parametrize(("said", "meant"), [("age:1", "age=1"), ("age:1,rows:5%", "age=1,rows=5%")])
def test_an_amount_after_a_colon_is_explained(said: str, meant: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"joined by =, such as {meant}; got '{said}'"):
        threat_of({"eps": said}, split(frame(), tmp_path).train)


@pytest.mark.parametrize(
    "make",
    [
        lambda: mc.LInf(-1),
        lambda: mc.LInf([0.1, -0.1]),
        lambda: mc.LInf({"age": -1}),
        lambda: mc.LInf(pd.Series({"age": np.nan})),
        lambda: mc.L1(-0.5),
        lambda: mc.L2(np.inf),
        lambda: mc.Rounded("age", to=-1),
        lambda: mc.Monotone("age", up=-1),
        lambda: mc.Monotone("age", up=1, down=-1),
        lambda: mc.TargetNoise(-0.1),
    ],
)
def test_amounts_below_zero_are_refused_when_the_threat_is_made(make: Any) -> None:
    with pytest.raises(UserError, match="must be finite and ≥ 0"):
        make()


def test_an_amount_that_is_no_number_is_refused_when_the_threat_is_made() -> None:
    with pytest.raises(UserError, match="eps must be a number or one per column, got 'much'"):
        mc.LInf("much")
