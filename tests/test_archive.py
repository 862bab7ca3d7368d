"""Run directories: the same bits after any interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import mibp_cert as mc
from archives import CASES, QUICK, request, same
from mibp_cert.store import archive
from mibp_cert.store.checks import verdict
from mibp_cert.store.verify import verify

EACH = [pytest.param(name, marks=pytest.mark.slow if name == "mibp" else []) for name in CASES]


@pytest.mark.parametrize("name", EACH)
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    asked = request(**CASES[name])
    whole = mc.certify_training(*asked, run_dir=tmp_path / "whole")
    plain = mc.certify_training(*asked)
    assert same(whole, plain)
    assert same(whole, mc.load_run(tmp_path / "whole"))
    half = whole.steps // 2 + whole.steps // 8
    for kept in (0, half) if name == "relational" else (half,):
        folder = tmp_path / f"cut{kept}"
        (folder / "steps").mkdir(parents=True)
        for source in (tmp_path / "whole").rglob("*"):
            if source.is_file() and source.parent.name == "steps" and int(source.stem) > kept:
                continue
            if source.is_file() and source.name not in ("result.json", "test.npz", ".lock"):
                target = folder / source.relative_to(tmp_path / "whole")
                target.write_bytes(source.read_bytes())
        assert same(whole, mc.resume_run(folder))


def test_the_best_epoch_is_found_again_after_an_interruption(tmp_path: Path) -> None:
    asked = request(mc.LInf(0.15), learning_rate=0.5)
    whole = mc.certify_training(*asked, select="best-validation", run_dir=tmp_path)
    assert whole.steps < 8  # else nothing would be shown
    (tmp_path / "result.json").unlink()
    assert same(whole, mc.resume_run(tmp_path))


def test_a_diverging_run_diverges_again_at_the_same_step(tmp_path: Path) -> None:
    asked = request(mc.LInf(40.0), learning_rate=5.0)
    try:
        whole = mc.certify_training(*asked, attacked=False, run_dir=tmp_path)
    except mc.Diverged as error:
        with pytest.raises(mc.Diverged, match=str(error)[:40]):
            mc.resume_run(tmp_path)
    else:
        assert whole.diverged is not None
        (tmp_path / "result.json").unlink()
        assert same(whole, mc.resume_run(tmp_path))


def test_old_sets_are_dropped_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(mc.LInf(0.02))
    whole = mc.certify_training(*asked)
    monkeypatch.setattr(archive, "KEEP", 60_000)
    small_run = mc.certify_training(*asked, run_dir=tmp_path)
    assert same(whole, small_run)
    kept = sorted(int(p.stem) for p in (tmp_path / "steps").glob("*.npz"))
    assert kept[-1] == 8
    assert len(kept) < 8
    checks = verify(tmp_path, QUICK)
    assert verdict(checks) is None  # incomplete: what is not there cannot be compared
    assert {check.name for check in checks if not check.holds} == {"steps"}


def test_the_best_epoch_is_never_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "KEEP", 1)
    asked = request(mc.LInf(0.15), learning_rate=0.5)
    whole = mc.certify_training(*asked, select="best-validation", run_dir=tmp_path)
    assert whole.steps < 6
    assert sorted(int(p.stem) for p in (tmp_path / "steps").glob("*.npz")) == [whole.steps, 8]
    (tmp_path / "result.json").unlink()
    assert same(whole, mc.resume_run(tmp_path))


SCRIPT = """
import sys, numpy as np, mibp_cert as mc
data = mc.two_moons(0)
run = mc.certify_training(mc.Network.mlp([2, 6, 2]), data, mc.LInf(0.01), mc.Training(epochs=6, batch_size=25), "relational",
    run_dir=sys.argv[1], resume=True, attacked=False)
"""


def start_and_kill(folder: Path, rng: np.random.Generator) -> tuple[bool, bool]:
    """Go on with the run, wait for a random later step and a random moment within it, kill; was it killed, is it over?"""
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)])
    aim, started = len(list(folder.glob("steps/*.json"))) + int(rng.integers(4, 14)), time.monotonic()
    while process.poll() is None and len(list(folder.glob("steps/*.json"))) < aim and time.monotonic() - started < 60:
        time.sleep(0.0005)
    time.sleep(float(rng.random()) * 0.03)
    killed = process.poll() is None
    if killed:
        process.send_signal(signal.SIGKILL)
    return killed, process.wait() == 0


def sets_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "steps").glob("*.npz")}


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL at random moments, again and again, until the run is over."""
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "whole")], check=True, timeout=120)
    rng, kills, over, folder = np.random.default_rng(0), 0, False, tmp_path / "killed"
    while not over:
        killed, over = start_and_kill(folder, rng)
        kills += killed
    assert kills >= 2  # many more in the longer hunt below
    assert sets_in(folder) == sets_in(tmp_path / "whole")
    assert same(mc.load_run(tmp_path / "whole"), mc.load_run(folder))


@pytest.mark.slow
def test_ctrl_c_keeps_the_steps_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mibp_cert",
        "certify",
        "two-moons",
        "--epochs",
        "2000",
        "--run",
        str(tmp_path / "r"),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_default_sigint
    )
    started = time.monotonic()
    while not list((tmp_path / "r").glob("steps/000003.json")) and time.monotonic() - started < 60:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"mibp-cert resume {tmp_path / 'r'}" in " ".join(errors.split())
    assert len(list((tmp_path / "r").glob("steps/*.json"))) >= 3


def _default_sigint() -> None:
    """A shell that starts tests in the background makes its children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)


@pytest.mark.soundness
def test_fifty_kills_at_random_moments_change_no_bit(tmp_path: Path) -> None:
    """Runs are started and killed until fifty kills have hit; every run that ends has the bits of one that was left alone."""
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "whole")], check=True, timeout=120)
    rng, kills, ended = np.random.default_rng(1), 0, 0
    while kills < 50:
        killed, over = start_and_kill(tmp_path / f"run{ended}", rng)
        kills += killed
        if over:
            assert sets_in(tmp_path / f"run{ended}") == sets_in(tmp_path / "whole")
            ended += 1
    last = tmp_path / f"run{ended}"
    subprocess.run([sys.executable, "-c", SCRIPT, str(last)], check=True, timeout=120)
    assert sets_in(last) == sets_in(tmp_path / "whole")
    print(f"{kills} kills, {ended + 1} runs ended with the same bits")
