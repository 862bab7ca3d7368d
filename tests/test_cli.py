"""The command line: the JSON contract, sentences for mistakes, Ctrl-C and dead workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mibp_cert import cli
from mibp_cert.errors import MibpCertError

QUICK = ["certify", "two-moons", "--engine", "interval", "--epochs", "2", "--hidden", "4"]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "mibp_cert", *arguments], capture_output=True, text=True, timeout=120)


def _workers(pid: int) -> list[int]:
    """Child processes that run solvers (Linux)."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(c) for c in children if "popen_loky" in Path(f"/proc/{c}/cmdline").read_text()]


def test_json_holds_the_contract(tmp_path: Path) -> None:
    plain, text = _certified(tmp_path, *QUICK[1:], "--seed", "3")
    assert "the same whatever the true data were" in text
    assert plain["dataset"] == "two-moons"
    assert plain["engine"] == "interval"
    assert plain["seed"] == 3
    assert plain["parameters"] == 22
    assert plain["threat"] == {"kind": "linf", "eps": 0.01}
    assert plain["network"] == [2, 4, 2]
    assert (plain["loss"], plain["learning_rate"], plain["batch_size"]) == ("hinge", 0.1, 100)
    assert [record["epoch"] for record in plain["epochs"]] == [1, 2]
    for record in plain["epochs"]:
        assert {"seconds", "radius_mean", "radius_max", "validation"} <= set(record)
        assert set(record["validation"]) == {"nominal_accuracy", "certified_accuracy"}
    assert plain["test"]["n"] == 200
    assert 0 <= plain["test"]["certified_accuracy"] <= plain["test"]["certification_rate"] <= 1
    assert {"name", "programs", "nodes", "fallbacks"} <= set(plain["solver"])
    assert (plain["prediction"], plain["steps_per_epoch"], plain["soundness"]) == ("interval", 1, "rounding-safe")
    assert len(plain["data_sha256"]) == 64
    assert {"mibp_cert", "numpy"} <= set(plain["versions"])


def test_quiet_prints_nothing() -> None:
    result = _run(*QUICK, "--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_run_that_asks_and_keeps_nothing_visits_neither_questions_nor_the_store(tmp_path: Path) -> None:
    visited = set[str]()
    sys.setprofile(lambda frame, *_: visited.add(frame.f_code.co_filename))
    try:
        found = CliRunner().invoke(cli.app, [*QUICK, "--json", str(tmp_path / "found.json")])
    finally:
        sys.setprofile(None)
    assert found.exit_code == 0
    assert {Path(name).parent.name for name in visited} >= {"certify", "engines", "report"}
    assert not {name for name in visited if Path(name).parent.name in ("questions", "store")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--eps", "-1"], "eps must be finite and ≥ 0"),
        (["--eps", "nan"], "eps must be finite"),
        (["--batch-size", "1000"], "batch size"),
        (["--epochs", "0"], "epochs"),
        (["--engine", "magic"], "no engine called 'magic'"),
        (["--predict", "guess"], "no prediction called 'guess'"),
        (["--engine", "mibp", "--solver", "cplex"], "no solver called 'cplex'"),
        (["--hidden", "a,b"], "--hidden takes sizes"),
        (["--hidden", "-3"], "all positive"),
        (["--logits", "3"], "one logit per class"),
        (["--json", "/no/such/folder/out.json"], "Cannot write /no/such/folder/out.json"),
        (["--gap", "nan"], "gap must be at least"),
        (["--loss", "tent"], "no loss called 'tent'"),
        (["--unroll", "2"], "unroll"),
        (["--lr", "inf"], "learning rate"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_two(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mibp-cert", *QUICK, *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    shown = capsys.readouterr().err.strip()
    assert stopped.value.code == 2
    assert words in shown
    assert "Traceback" not in shown
    assert len(shown.splitlines()) == 1


def test_unknown_data_set_names_the_known_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mibp-cert", "certify", "three-moons"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "called 'three-moons'; data sets are two-moons" in capsys.readouterr().err


@pytest.mark.slow
def test_doctor_lists_solvers() -> None:
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == 0
    assert "solver scip: usable" in result.output


def _start(tmp_path: Path, *more: str) -> tuple[subprocess.Popen[str], Path]:
    path = tmp_path / "run.json"
    command = [sys.executable, "-m", "mibp_cert", "certify", "two-moons", "--engine", "mibp", "--hidden", "6"]
    command += ["--epochs", "4", "--jobs", "2", "--json", str(path), *more]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that runs the tests in the background makes its children ignore Ctrl-C; a user's terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    return process, path


def _wait_for_workers(process: subprocess.Popen[str]) -> list[int]:
    deadline = time.time() + 60
    while time.time() < deadline and process.poll() is None:
        workers = _workers(process.pid)
        if len(workers) == 2:
            time.sleep(1.0)  # into the solving of the first steps
            return workers
        time.sleep(0.05)
    raise AssertionError("no workers were started")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_worker_killed_in_the_middle_of_a_step_does_not_stop_the_run(tmp_path: Path) -> None:
    process, path = _start(tmp_path)
    workers = _wait_for_workers(process)
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    plain: dict[str, Any] = json.loads(path.read_text())
    assert len(plain["epochs"]) == 4
    assert isinstance(plain["solver"]["fallbacks"], int)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_interrupt_stops_within_seconds_and_leaves_no_worker(tmp_path: Path) -> None:
    process, path = _start(tmp_path, "--epochs", "50")
    workers = _wait_for_workers(process)
    os.killpg(process.pid, signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130, errors
    assert "Interrupted; nothing was written" in errors
    assert "Traceback" not in errors
    time.sleep(0.5)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert not path.exists()


def _certified(tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    path = tmp_path / "out.json"
    result = CliRunner().invoke(cli.app, ["certify", *arguments, "--json", str(path)])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(path.read_text()), result.output


def test_losses_optimisers_and_questions_reach_the_json(tmp_path: Path) -> None:
    asked = ["--margin", "0.05", "--protected", "1", "--rising", "0", "--falling", "1", "--test-eps", "0.02"]
    settings = [
        "--momentum",
        "0.5",
        "--weight-decay",
        "0.01",
        "--clip",
        "1",
        "--schedule",
        "cosine",
        "--activation",
        "tanh",
    ]
    plain, text = _certified(
        tmp_path, "two-moons", "--hidden", "3", "--epochs", "3", "--loss", "cross-entropy", *settings, *asked
    )
    assert plain["loss"] == "cross-entropy"
    assert (plain["momentum"], plain["weight_decay"], plain["clip"], plain["schedule"]) == (0.5, 0.01, 1.0, "cosine")
    assert plain["layers"][1] == "Tanh()"
    assert plain["test_threat"] == {"kind": "linf", "eps": 0.02}
    assert set(plain["postconditions"]) == {"margin", "protected", "output", "rising", "falling"}
    assert sum(plain["postconditions"]["rising"]["0"].values()) == 200
    assert "Lead of class 1 over 0 only rises with '0'" in text
    assert plain["test"]["certified_accuracy"] <= plain["test"]["attacked_accuracy"]


def test_budgets_flips_and_crown_on_the_command_line(tmp_path: Path) -> None:
    plain, text = _certified(
        tmp_path, "two-moons", "--engine", "crown", "--rows", "2", "--flips", "1", "--epochs", "2", "--collective"
    )
    assert plain["engine"] == plain["prediction"] == "crown"
    assert [part["kind"] for part in plain["threat"]["threats"]] == ["budget", "label-flips"]
    flips = plain["postconditions"]["collective"]
    assert flips["reached"] <= flips["proven"] <= flips["single"]
    assert "Flips at once" in text


def test_regression_and_images_on_the_command_line(tmp_path: Path) -> None:
    plain, text = _certified(tmp_path, "diabetes", "--hidden", "none", "--epochs", "2", "--target-eps", "0.1")
    assert (plain["loss"], plain["network"]) == ("squared-error", [10, 1])
    assert plain["test"]["nominal_error"] <= plain["test"]["attacked_error"] <= plain["test"]["certified_error"]
    assert "always the mean" in text
    plain, _ = _certified(
        tmp_path, "digits", "--engine", "interval", "--epochs", "1", "--conv", "2,4,4", "--eps", "0.001"
    )
    assert plain["network"] == [64, 8, 2]
    assert plain["layers"][0].startswith("Conv2d")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["two-moons", "--momentum", "1"], "momentum must be at least 0 and below 1"),
        (["two-moons", "--weight-decay", "-1"], "weight decay must be"),
        (["two-moons", "--clip", "0"], "clipped at a finite number > 0"),
        (["two-moons", "--schedule", "warp"], "no schedule 'warp'"),
        (["two-moons", "--activation", "gelu"], "no activation called 'gelu'"),
        (["two-moons", "--conv", "4,3,1"], "for image data"),
        (["digits", "--conv", "4,9,1"], "Conv2d"),
        (["two-moons", "--protected", "age"], "age"),
        (["two-moons", "--collective", "--test-eps", "0.1"], "one training dataset"),
        (["diabetes", "--margin", "1"], "real targets"),
        (["diabetes", "--loss", "hinge"], "squared-error"),
        (["two-moons", "--target-eps", "0.1"], "for regression"),
    ],
)
def test_new_options_refuse_in_one_sentence(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(cli.app, ["certify", *arguments])
    assert isinstance(result.exception, MibpCertError)
    assert words in str(result.exception)
    assert "\n" not in str(result.exception)
