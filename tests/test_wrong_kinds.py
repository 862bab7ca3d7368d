"""Values of another kind than they should be, in places where only a file can put them: refused where they are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mibp_cert as mc
from archives import request
from bad_days import answer, spoken
from cases import survey
from fits import table
from forged_runs import Folder
from mibp_cert import certificate_of, certify_fit, check_certificate
from mibp_cert.certify.forecast import Forecast
from mibp_cert.check.data import split_of
from mibp_cert.check.file import read_certificate, write_certificate
from mibp_cert.cli.ends import USER_MISTAKE
from mibp_cert.data.reading import Reading
from mibp_cert.errors import Misfit, UserError
from mibp_cert.store.kernel import apart
from mibp_cert.threats import column, threat_from_json
from mibp_cert.threats.rows import MOST

DOMAIN = {"age": [30, 60], "mood": ["fair"]}
THREATS: dict[str, tuple[dict[str, Any], str]] = {
    "columns that are a number": ({"kind": "rounded", "columns": 1e12, "to": 5.0}, "Columns are named by"),
    "columns that are a table": ({"kind": "any-category", "columns": {"mood": 1}}, "Columns are named by"),
    "columns in lists of lists": ({"kind": "missing", "columns": [["age"], ["mood", "age"]]}, "no column"),
    "a number that is text": ({"kind": "rounded", "columns": "age", "to": "5.0"}, "to must be a number"),
    "a number among texts": ({"kind": "linf", "eps": {"age": "1"}}, "eps must be a number"),
    "a number that no float holds": ({"kind": "linf", "eps": 10**400}, "eps must be a number"),
    "a class that is a table": ({"kind": "label-flips", "target": [{"age": 1}]}, "not among the classes"),
    "a category that is a text": (
        {"kind": "added", "at_most": 1, "domain": {**DOMAIN, "mood": "fair"}},
        "is a list of categories",
    ),
    "a range that no float holds": (
        {"kind": "added", "at_most": 1, "domain": {**DOMAIN, "age": [0, 10**400]}},
        "must be a pair",
    ),
    "more lost rows than there is time for": (
        {"kind": "added", "at_most": MOST + 1, "domain": DOMAIN},
        "At most 100000 lost rows",
    ),
}
CONDITIONS: dict[str, tuple[Any, str]] = {
    "a label that is no number": ({"label": [float("nan")]}, "compares with a text or a finite number"),
    "a label that is a table": ({"label": [{"age": 1}]}, "compares with a text or a finite number"),
    "a value that no float holds": ({"column": "age", "is": ">=", "value": 10**400}, "a finite number"),
    "a column that is no name": ({"column": float("inf"), "is": ">=", "value": 1}, "by its name or number"),
    "rows in lists of lists": ({"rows": [[1], [1, 2]]}, "rows must be a mask"),
}
THREATS |= {
    name: ({"kind": "where", "threat": {"kind": "linf", "eps": 0.1}, "when": when}, words)
    for name, (when, words) in CONDITIONS.items()
}


@pytest.mark.parametrize("name", THREATS)
def test_a_threat_of_wrong_kinds_is_refused_in_a_sentence(name: str) -> None:
    plain, words = THREATS[name]
    with pytest.raises(UserError, match=words):
        threat_from_json(plain).bind(survey(8, missing=False))


def test_a_condition_that_json_could_not_hold_is_none() -> None:
    with pytest.raises(UserError, match="finite number"):
        mc.LInf(0.1).where(column("age") >= float("nan"))


@pytest.mark.parametrize("name", ["²", "①"])
def test_a_figure_that_is_no_decimal_is_no_number_of_a_column(name: str) -> None:
    with pytest.raises(UserError, match="no column"):
        survey(8, missing=False).column(name)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("target", 3, "takes text"),
        ("test", "x", "takes a number"),
        ("test", True, "takes a number"),
        ("validation", [0.2], "takes a number"),
        ("drop", 1.5, "takes a list of texts"),
        ("keep", "age", "takes a list of texts"),
        ("missing", [3], "takes a list of texts"),
        ("regression", "yes", "takes true or false"),
        ("separator", ["a"], "takes text"),
        ("encoding", {}, "takes text"),
        ("sample", 12.5, "takes a whole number"),
        ("scaling", None, "takes text"),
    ],
)
def test_how_a_file_is_read_is_said_in_the_right_kinds(field: str, value: Any, words: str) -> None:
    with pytest.raises(UserError, match=f"{field} {words}"):
        replace(Reading("y"), **{field: value})


def test_what_a_certificate_says_of_spoken_columns_is_a_list_of_names(tmp_path: Path) -> None:
    reading = {f: getattr(Reading("y"), f) for f in Reading.__dataclass_fields__}
    for said in (True, 1.5, "y", [3]):
        with pytest.raises(UserError, match="a list of names"):
            split_of({"source": "a.csv", "seed": 0, "reading": reading, "spoken": said}, tmp_path / "a.csv")


def test_ends_of_claims_are_a_list(tmp_path: Path) -> None:
    data = table("cross-entropy", rows=12)
    split = mc.Split("small", data, test=table("cross-entropy", rows=4, seed=3, like=data))
    certificate_of(certify_fit(split, mc.LInf({"income": 0.2}), mc.Fitted(C=0.1), attacked=False)).write(tmp_path / "a")
    read = read_certificate(tmp_path / "a")
    ends = read.arrays["claim_ends"]
    for other in (ends[:, None], np.stack([ends, ends], axis=1), np.zeros((len(ends), 0))):
        write_certificate(tmp_path / "b", read.plain, {**read.arrays, "claim_ends": other})
        with pytest.raises(UserError, match="not a certificate"):
            check_certificate(tmp_path / "b", split)


def _origin(plain: dict[str, Any], **changes: Any) -> None:
    plain["data"]["origin"] = {"target": "ill", "order": ["0", "1", "ill"], "left_out": {}} | changes


def _column(plain: dict[str, Any], **changes: Any) -> None:
    plain["data"]["columns"][0] |= changes


RUNS: dict[str, Any] = {
    "a table of other columns": lambda plain: _origin(plain, order=["0", "ill"]),
    "a table whose column is none": lambda plain: _origin(plain, order=["0", "1", {}, "ill"]),
    "a reason that is none": lambda plain: _origin(plain, order=["0", "1", "x", "ill"], left_out={"x": 3}),
    "a column whose name is a number": lambda plain: _column(plain, name=1.5),
    "a column that begins between two": lambda plain: _column(plain, start=0.0),
    "a column without a scale": lambda plain: _column(plain, scale=0.0),
    "a column whose range is none": lambda plain: _column(plain, low=3.0, high=1.0),
    "a class that is a table": lambda plain: plain["data"].update(classes=[0, {}]),
}


def test_requests_of_a_run_that_fit_no_rows_are_wrong_and_not_only_unknown(tmp_path: Path) -> None:
    mc.certify_training(*request(mc.LInf(0.02), epochs=1), attacked=False, run_dir=tmp_path)
    whole = Folder.read(tmp_path)
    _origin(whole.description)
    whole.write(mended=False)
    mc.load_run(tmp_path)
    for change in RUNS.values():
        folder = Folder.read(tmp_path)
        change(folder.description)
        folder.write(mended=False)
        with pytest.raises(Misfit):
            mc.load_run(tmp_path)
        assert [check.holds for check in mc.verify(tmp_path)] == [True, False]
        whole.write(mended=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": (1, 2)}, "number of epochs"),
        ({"epochs": float("inf")}, "number of epochs"),
        ({"epochs": float("nan")}, "number of epochs"),
        ({"epochs": "3"}, "number of epochs"),
        ({"epochs": 10**12}, "more than 1000000 steps"),
        ({"epochs": 10**400}, "more than 1000000 steps"),
        ({"seed": "x"}, "The seed must be"),
        ({"seed": float("inf")}, "The seed must be"),
        ({"batch_size": float("nan")}, "batch size must be"),
        ({"batch_size": "x"}, "batch size must be"),
        ({"batch_size": (3,)}, "batch size must be"),
        ({"batch_size": 10**400}, "batch size must be"),
    ],
)
def test_numbers_of_a_training_are_whole_and_not_endless(changes: dict[str, Any], words: str) -> None:
    network, data, threat, training, engine = request(mc.LInf(0.02))
    with pytest.raises(UserError, match=words):
        mc.certify_training(network, data, threat, replace(training, **changes), engine)


@pytest.mark.parametrize("end", [np.inf, np.nan])
def test_a_stored_set_with_an_end_that_is_no_number_is_refused(end: float, tmp_path: Path) -> None:
    mc.certify_training(*request(mc.LInf(0.02), "interval", epochs=1), attacked=False, run_dir=tmp_path)
    folder = Folder.read(tmp_path)
    folder.sets[1]["upper"][0] = end
    folder.write(mended=False)
    (found,) = mc.verify(tmp_path)
    assert found.holds is False
    assert "NaN or infinite ends" in found.words


def test_sets_of_no_radius_that_differ_are_infinitely_far_apart() -> None:
    with np.errstate(divide="raise"):
        assert apart({"lower": np.ones(2), "upper": np.ones(2)}, {"lower": np.zeros(2), "upper": np.zeros(2)}) == np.inf


def test_a_loss_that_is_a_table_is_no_loss() -> None:
    network, data, threat, training, engine = request(mc.LInf(0.02))
    with pytest.raises(UserError, match="There is no loss called"):
        mc.certify_training(network, data, threat, replace(training, loss={"name": "hinge"}), engine)


def test_stored_ranges_that_overflow_certify_nothing(tmp_path: Path) -> None:
    split = mc.two_moons(0, sizes=(30, 5, 10))
    run = certify_fit(split, mc.LInf(0.02), mc.Fitted(C=0.1), attacked=False, run_dir=tmp_path)
    assert run.certified_test_accuracy
    folder = Folder.read(tmp_path)
    folder.sets[1]["upper"][:] = 1e308
    folder.sets[1]["lower"][:] = -1e308
    folder.write(mended=True)
    assert not (mc.resume_run(tmp_path).ranges(split.test.x).outputs.low > 0).any()


@pytest.mark.parametrize("scaling", ["standard", "range", "none"])
def test_numbers_whose_squares_overflow_are_refused(scaling: str) -> None:
    frame = pd.DataFrame({"a": 1e200 * np.arange(12.0), "y": np.arange(12) % 2})
    with pytest.raises(UserError, match="too large"):
        mc.Dataset.from_frame(frame, "y", scaling=scaling)
    with pytest.raises(UserError, match="too large"):
        mc.Dataset.of(frame[["a"]].to_numpy(), frame["y"])
    with pytest.raises(UserError, match="too large"):
        mc.Dataset.regression(np.ones((12, 1)), frame["a"])


def test_a_name_of_two_lines_leaves_a_sentence_in_one(tmp_path: Path) -> None:
    lines = ["age,ill", *(f"{k},{'yes' if k % 3 else 'no'}" for k in range(12))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    status, said = spoken("certify", tmp_path / "t.csv", "--target", "a\nb", "--eps", "1")
    assert status == USER_MISTAKE
    assert "There is no column 'a b'" in said.splitlines()[-1]


def test_a_number_of_parts_that_is_no_decimal_is_refused(tmp_path: Path) -> None:
    status, said = answer("certify", "two-moons", "--ensemble", "partitions:²", "--flips", "1")
    assert status == USER_MISTAKE
    assert "partitions" in said


@pytest.mark.parametrize("words", [["tolerance"], ["blame"], ["compare"], ["compare", "--eps-values", "0.01,0.02"]])
def test_what_takes_long_is_said_beforehand(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mibp_cert.job.Job.forecast", lambda job: Forecast(100.0, 10))
    for study in ("tolerance.tolerance", "blame.blame", "compare.compare"):
        monkeypatch.setattr(f"mibp_cert.studies.{study}", _ended)
    monkeypatch.setattr("mibp_cert.job.Job.run", _ended)
    said = answer(*words, "two-moons", "--hidden", "none", "--engine", "relational")[1]
    assert "will take about 1 min 40 s" in said, said


def _ended(*_: Any, **__: Any) -> Any:
    raise UserError("That is enough.")
