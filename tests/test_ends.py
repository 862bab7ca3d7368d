"""How commands end: one sentence, and a status that says what kind of end it was."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archives import same
from bad_days import DRIVER, answer
from mibp_cert import load_run
from mibp_cert.cli import commands
from mibp_cert.cli.ends import BUG, INTERRUPTED, TRACEBACK, UNSOUND, USER_MISTAKE, ended
from mibp_cert.errors import Diverged, SoundnessError, UserError


def _raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (UserError("no such column"), USER_MISTAKE, "mibp-cert: no such column"),
        (SoundnessError("nothing holds"), UNSOUND, "nothing holds"),
        (Diverged("too wide"), UNSOUND, "too wide"),
        (KeyboardInterrupt(), INTERRUPTED, "Interrupted; nothing more was written."),
        (MemoryError(), USER_MISTAKE, "not enough memory"),
        (ImportError("x.so: failed to map segment from shared object"), USER_MISTAKE, "not enough memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), USER_MISTAKE, "/a/b: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/a"), USER_MISTAKE, "/a: Permission denied"),
        (KeyError("x"), BUG, "this is an error in mibp-cert, not in your request (KeyError: 'x')"),
        (RecursionError("deep"), BUG, "error in mibp-cert"),
        (ImportError("no module x"), BUG, "error in mibp-cert"),
        (AssertionError(), BUG, "error in mibp-cert"),
        (SystemExit(1), 1, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("text"), USER_MISTAKE, ""),
    ],
)
def test_every_end_has_its_status_and_one_sentence(
    error: BaseException, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = signal.getsignal(signal.SIGINT)
    try:
        assert ended(_raising(error)) == status
    finally:
        signal.signal(signal.SIGINT, keys)
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == bool(words)
    assert "Traceback" not in said


def test_an_error_of_ours_says_how_to_report_it_and_shows_where_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("mibp_cert.job.job_of", broken)
    status, said = answer("certify", "two-moons", "--eps", "0.1")
    assert status == BUG
    assert "mibp-cert certify two-moons --eps 0.1" in said
    assert f"{TRACEBACK}=1" in said
    assert "Traceback" not in said
    monkeypatch.setenv(TRACEBACK, "1")
    status, said = answer("certify", "two-moons")
    assert status == BUG
    assert "Traceback" in said


def test_a_limit_of_addresses_that_nothing_loads_in_is_refused_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (400 << 20, resource.RLIM_INFINITY))
    keys = signal.getsignal(signal.SIGINT)
    try:
        assert ended(_raising(AssertionError("was called"))) == USER_MISTAKE
    finally:
        signal.signal(signal.SIGINT, keys)
    assert "a limit of addresses (ulimit -v) of 400 MiB" in " ".join(capsys.readouterr().err.split())


def test_status_one_is_for_what_verify_and_check_found(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert answer("verify", tmp_path / "run")[0] == USER_MISTAKE  # no run has ever been there
    (tmp_path / "run" / "run.json").write_text("{}")
    assert answer("verify", tmp_path / "run")[0] == 1
    assert answer("verify", tmp_path / "nothing")[0] == USER_MISTAKE


def test_too_little_memory_says_what_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("")
    kept = r"not enough memory .* what was done is kept: go on with mibp-cert resume"
    with pytest.raises(commands.OutOfMemory, match=kept), commands.interruptible(folder=tmp_path):
        raise MemoryError
    never = tmp_path / "never begun"
    with pytest.raises(commands.Interrupted, match="nothing was written"), commands.interruptible(folder=never):
        raise KeyboardInterrupt


def test_places_that_cannot_be_written_are_refused_before_any_work(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "made")
    commands.check_writable(tmp_path / "pipe", tmp_path / "new", tmp_path / "link", None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]
    for path, why in {
        tmp_path: "it is a folder",
        tmp_path / "no" / "file": "there is no folder",
        tmp_path / ("x" * 300): "name too long",
        Path("/proc/nothing"): "",
    }.items():
        with pytest.raises(UserError, match=rf"(?i)cannot write .*{why}.*; choose another path"):
            commands.check_writable(path)


def test_a_result_goes_where_the_user_says_also_into_what_is_no_file(tmp_path: Path) -> None:
    read, write = os.pipe()
    commands.write_json(Path(f"/dev/fd/{write}"), {"a": 1})
    os.close(write)
    with os.fdopen(read) as source:
        assert '"a": 1' in source.read()


# Whole processes ----------------------------------------------------------------------------------------------------------


def _cli(*words: str | Path, before: Callable[[], None] | None = None) -> tuple[int, list[str]]:
    found = subprocess.run(
        [sys.executable, "-m", "mibp_cert", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=before,
    )
    return found.returncode, found.stderr.strip().splitlines()


def _largest_file(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.slow
def test_a_limit_of_file_sizes_is_one_sentence_and_the_run_goes_on(tmp_path: Path) -> None:
    certify = ("certify", "two-moons", "--epochs", "2", "--batch-size", "50", "-q", "--run")
    assert _cli(*certify, tmp_path / "whole") == (0, [])
    for size, kept in ((1_000, "nothing is kept"), (400_000, "what was done before is kept (2 step(s))")):
        folder = tmp_path / str(size)
        status, said = _cli(*certify, folder, before=_largest_file(size))
        assert status == USER_MISTAKE
        assert len(said) == 1
        assert "File too large" in said[0]
        assert kept in said[0]
    assert _cli("resume", folder, "-q") == (0, [])
    assert same(load_run(tmp_path / "whole"), load_run(folder))


@pytest.mark.slow
@pytest.mark.parametrize("status", [USER_MISTAKE, 141])
def test_an_output_that_takes_nothing_is_no_traceback(status: int) -> None:
    def full() -> None:
        if status == USER_MISTAKE:
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        else:
            read, write = os.pipe()
            os.dup2(write, 1)
            os.close(read)

    code, said = _cli("doctor", "--no-check", before=full)
    assert code == status
    assert "Traceback" not in "".join(said)
    assert len(said) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.1])
@pytest.mark.parametrize("engine", ["relational", "mibp"])
def test_ctrl_c_twice_is_one_sentence(tmp_path: Path, engine: str, pause: float) -> None:
    epochs = "2000" if engine == "relational" else "10"
    words = ["certify", "two-moons", "--engine", engine, "--epochs", epochs, "--run", str(tmp_path / "run")]

    def own_group() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setpgid(0, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "mibp_cert", *words], stderr=subprocess.PIPE, text=True, preexec_fn=own_group
    )
    begun = time.monotonic()
    while not list((tmp_path / "run").glob("steps/000001.json")) and time.monotonic() - begun < 60:
        time.sleep(0.05)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(pause)
    _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert "Traceback" not in said
    assert "mibp-cert resume" in " ".join(said.split())


@pytest.mark.slow
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_killed_around_a_flush_or_rename_it_goes_on_to_the_same_bits(tmp_path: Path, call: str, side: str) -> None:
    def run(folder: Path, *at: str) -> int:
        command = [sys.executable, "-c", DRIVER, str(folder), "relational", *at]
        return subprocess.run(command, timeout=120, check=False).returncode

    assert run(tmp_path / "whole") == 0
    for number in (1, 3, 6):
        assert run(tmp_path / "killed", call, side, str(number)) == -signal.SIGKILL
    assert run(tmp_path / "killed") == 0
    assert same(load_run(tmp_path / "whole"), load_run(tmp_path / "killed"))
