"""Run directories: the same bits after any interruption, and nothing altered passes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from mibp_cert.errors import UserError
from mibp_cert.store import archive, second, stored_request
from mibp_cert.store.archive import digest, opened, pack, read_step, sealed, unpack
from mibp_cert.store.verify import AuditSettings, verify

QUICK = AuditSettings(points=2, parameters=1, members=5)
CASES: dict[str, dict[str, Any]] = {
    "relational": {"threat": mc.LInf(0.02)},
    "relational with velocity": {"threat": mc.LInf(0.02), "momentum": 0.5, "loss": "cross-entropy"},
    "relational in cases": {"threat": mc.Budget(mc.LInf(0.2), rows=1)},
    "relational with flips": {"threat": mc.LabelFlips(6) & mc.L2(0.05)},
    "interval": {"threat": mc.LInf(0.02), "engine": "interval"},
    "crown": {"threat": mc.LInf(0.02), "engine": "crown"},
    "mibp": {"threat": mc.LInf(0.002), "engine": "mibp"},
}


def small(rows: int = 12) -> mc.Split:
    data = mc.two_moons(0)
    parts = (data.train, data.validation, data.test)
    return mc.Split("small", *(part.take(np.arange(rows, dtype=np.intp)) for part in parts))


def request(threat: mc.Threat, engine: str = "relational", **training: Any) -> tuple[Any, ...]:
    return mc.Network.mlp([2, 2, 2]), small(), threat, mc.Training(epochs=4, batch_size=6, **training), engine


def same(a: mc.CertifiedRun, b: mc.CertifiedRun) -> bool:
    plain = [run.to_json() for run in (a, b)]
    for record in plain:
        for epoch in record["epochs"]:
            epoch.pop("seconds")
    arrays = a.bounds.arrays(), b.bounds.arrays()
    return (
        plain[0] == plain[1]
        and arrays[0].keys() == arrays[1].keys()
        and all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
        and np.array_equal(a.theta, b.theta)
    )


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    asked = request(**CASES[name])
    whole = mc.certify_training(*asked, run_dir=tmp_path / "whole")
    plain = mc.certify_training(*asked)
    assert same(whole, plain)
    assert same(whole, mc.load_run(tmp_path / "whole"))
    for kept in (5,) if name == "mibp" else (0, 5):
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
    assert all(check.holds for check in verify(tmp_path, QUICK))


def test_what_was_dropped_is_not_said_to_be_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "KEEP", 1)
    mc.certify_training(*request(mc.LInf(0.02)), run_dir=tmp_path)
    found = {check.name: check.holds for check in verify(tmp_path, QUICK)}
    assert found["steps"] is None
    assert found["hashes"]
    assert not {"second opinion", "recomputed"} & found.keys()


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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    mc.certify_training(*request(mc.LInf(0.02)), run_dir=folder)
    return folder


def copy_of(folder: Path, target: Path) -> Path:
    for source in folder.rglob("*"):
        if source.is_file():
            place = target / source.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source.read_bytes())
    return target


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def _edit(path: Path) -> None:
    plain = json.loads(path.read_text())
    plain["steps" if "steps" in plain else "format"] = 7
    path.write_text(json.dumps(plain))


@pytest.mark.parametrize(
    "name", ["steps/000008.npz", "steps/000008.json", "run.json", "data.npz", "test.npz", "result.json"]
)
@pytest.mark.parametrize("damage", [_truncate, _flip_bit])
def test_a_file_that_was_cut_short_or_altered_is_refused(
    finished: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = copy_of(finished, tmp_path / "run")
    damage(folder / name)
    with pytest.raises(UserError, match=r"cut short|altered|belongs to|other data|does not belong"):
        mc.load_run(folder)
    assert not all(check.holds for check in verify(folder, QUICK))


@pytest.mark.parametrize("name", ["steps/000003.json", "run.json"])
def test_an_edited_record_is_refused(finished: Path, tmp_path: Path, name: str) -> None:
    folder = copy_of(finished, tmp_path / "run")
    _edit(folder / name)
    with pytest.raises(UserError, match="cut short or altered"):
        mc.load_run(folder)


def test_a_step_of_another_run_is_refused(finished: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    mc.certify_training(*request(mc.LInf(0.03)), run_dir=other)
    folder = copy_of(finished, tmp_path / "run")
    for kind in ("npz", "json"):
        (folder / f"steps/000005.{kind}").write_bytes((other / f"steps/000005.{kind}").read_bytes())
    with pytest.raises(UserError, match=r"Step 5 .* does not belong to this run"):
        mc.load_run(folder)


def test_a_missing_step_is_named(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    (folder / "steps/000004.json").unlink()
    with pytest.raises(UserError, match="record of step 4 is missing"):
        mc.load_run(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"threat": mc.LInf(0.03)}, "threat was"),
        ({"threat": mc.LInf(0.02), "learning_rate": 0.2}, "training was"),
        ({"threat": mc.LInf(0.02), "engine": "interval"}, "engine was"),
    ],
)
def test_another_request_does_not_resume_a_run(finished: Path, tmp_path: Path, change: Any, words: str) -> None:
    folder = copy_of(finished, tmp_path / "run")
    with pytest.raises(UserError, match=f"belongs to another run: {words}"):
        mc.certify_training(*request(**change), run_dir=folder, resume=True)


def test_a_folder_with_a_run_is_not_overwritten(finished: Path) -> None:
    with pytest.raises(UserError, match="holds a run already; add --resume"):
        mc.certify_training(*request(mc.LInf(0.02)), run_dir=finished)


def test_two_processes_do_not_share_a_folder(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    kept = opened(folder / "run.json")["description"]
    first = archive.Archive(folder, kept, unpack((folder / "data.npz").read_bytes()), resume=True)
    try:
        with pytest.raises(UserError, match="Another process is working"):
            mc.load_run(folder)
    finally:
        first.close()


def test_verify_holds_for_what_was_written(finished: Path) -> None:
    found = verify(finished, QUICK)
    assert [check.name for check in found] == [
        "hashes",
        "second opinion",
        "recomputed",
        "bounds",
        "answers",
        "trainings",
    ]
    assert all(check.holds for check in found)


def _rewrite(folder: Path, change: Callable[[dict[str, Any], int], None], steps: range) -> None:
    """Alter stored sets and mend every hash after them, as a careful forger would."""
    last = digest((folder / "run.json").read_bytes())
    for number in range(1, len(list((folder / "steps").glob("*.json"))) + 1):
        place = folder / "steps" / f"{number:06d}"
        arrays = read_step(folder, number)
        plain = opened(place.with_suffix(".json"))
        if number in steps:
            arrays = {name: np.array(value) for name, value in arrays.items()}
            change(arrays, number)
            content = pack(arrays)
            place.with_suffix(".npz").write_bytes(content)
            plain["arrays"] = digest(content)
        plain["previous"] = last
        text = sealed(plain)
        place.with_suffix(".json").write_bytes(text)
        last = digest(text)
    plain = opened(folder / "result.json")
    plain["previous"] = last
    (folder / "result.json").write_bytes(sealed(plain))


def test_verify_catches_one_altered_bound_though_all_hashes_were_mended(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")

    def tighter(arrays: dict[str, Any], number: int) -> None:
        arrays["upper"][3] -= 1e-9 * (arrays["upper"][3] - arrays["lower"][3])

    _rewrite(folder, tighter, range(8, 9))
    found = {check.name: check for check in verify(folder, QUICK)}
    assert found["hashes"].holds
    assert not found["recomputed"].holds
    assert "step(s) 8" in found["recomputed"].words


@pytest.mark.parametrize("what", ["linear", "middle", "slack", "lower", "little"])
def test_the_second_opinion_alone_catches_a_wrong_set(finished: Path, tmp_path: Path, what: str) -> None:
    """Without taking steps again: ball arithmetic at single points finds a set that is wrong by a part of its radius."""
    folder = copy_of(finished, tmp_path / "run")

    def wrong(arrays: dict[str, Any], number: int) -> None:
        radius = 0.5 * (arrays["upper"] - arrays["lower"])
        widest = int(radius.argmax())
        match what:
            case "linear":
                arrays["linear"][widest] *= 0.5
            case "little":  # the box still holds everything; only the relation to the data's noise is wrong
                arrays["middle"][widest] += 2.5 * np.abs(arrays["linear"][widest, 24:]).sum()
            case "middle":
                arrays["middle"][widest] += 0.5 * radius[widest]
            case "slack":
                data = 24  # twelve rows of two cells
                arrays["linear"][:, data:] = 0.0
            case "lower":
                arrays["lower"][widest] = arrays["upper"][widest] - 0.5 * radius[widest]

    _rewrite(folder, wrong, range(6, 7))
    settings = AuditSettings(points=8, parameters=6, recompute=False, members=5)
    found = {check.name: check for check in verify(folder, settings)}
    assert not found["second opinion"].holds
    assert "step 6" in found["second opinion"].words


@pytest.mark.usefixtures("one_pool")
@pytest.mark.parametrize("engine", ["interval", "crown", "mibp"])
def test_the_second_opinion_catches_a_box_that_is_too_small(engine: str, tmp_path: Path) -> None:
    """Boxes between steps, drawn in to a third around their centre: single corners and datasets show that they are wrong."""
    network, data, threat, _, _ = request(mc.LInf(0.05))
    training = mc.Training(epochs=8 if engine != "mibp" else 1, batch_size=12 if engine != "mibp" else 6)
    mc.certify_training(network, data, threat, training, engine, run_dir=tmp_path, attacked=False)
    last = len(list((tmp_path / "steps").glob("*.npz")))

    def smaller(arrays: dict[str, Any], number: int) -> None:
        middle, half = 0.5 * (arrays["lower"] + arrays["upper"]), 0.5 * (arrays["upper"] - arrays["lower"])
        arrays["lower"], arrays["upper"] = middle - half / 3, middle + half / 3

    _rewrite(tmp_path, smaller, range(last, last + 1))
    settings = AuditSettings(points=10, parameters=5, recompute=False, members=5)
    found = {check.name: check for check in verify(tmp_path, settings)}
    assert found["hashes"].holds
    assert not found["second opinion"].holds


VERIFIED: dict[str, dict[str, Any]] = {
    **{name: case for name, case in CASES.items() if name != "mibp"},  # its own test below
    "exact data": {"threat": mc.Nothing()},
    "l1": {"threat": mc.L1(0.05)},
    "l2 and a schedule": {"threat": mc.L2(0.05), "schedule": (0.2, 0.1, 0.1, 0.05)},
    "clipped velocity": {"threat": mc.LInf(0.02), "momentum": 0.9, "clip": 0.1, "weight_decay": 0.1},
    "l1 in intervals": {"threat": mc.L1(0.05), "engine": "interval"},
}


@pytest.mark.parametrize("name", VERIFIED)
def test_verify_evaluates_points_of_every_step_and_raises_no_false_alarm(name: str, tmp_path: Path) -> None:
    mc.certify_training(*request(**VERIFIED[name]), run_dir=tmp_path)
    found = {check.name: check for check in verify(tmp_path, AuditSettings(points=6, parameters=2, members=5))}
    assert all(check.holds for check in found.values()), found
    steps, points = (int(word) for word in found["second opinion"].words.split() if word.isdigit())
    assert steps == len(list((tmp_path / "steps").glob("*.npz")))  # none for a step at which the bounds diverged
    assert points >= steps > 0


def test_verify_finds_a_usable_point_where_the_box_cuts_random_ones_off(tmp_path: Path) -> None:
    """A wide row budget: the box after a step is much smaller than what the generators alone admit."""
    network, training = mc.Network.mlp([2, 4, 2]), mc.Training(epochs=2, batch_size=6)
    threat = mc.Budget(mc.LInf(1.0), rows=6)
    mc.certify_training(network, small(), threat, training, run_dir=tmp_path, attacked=False)
    settings = AuditSettings(points=1, parameters=1, members=2, recompute=False)
    found = {check.name: check for check in verify(tmp_path, settings)}
    assert found["second opinion"].holds, found["second opinion"].words


def test_verify_says_neither_wrong_nor_ok_where_it_found_no_point(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second, "members_at", lambda *_: iter(()))
    found = {check.name: check for check in verify(finished, QUICK)}
    assert found["second opinion"].holds is None
    assert "no usable point for step(s) 1, 2" in found["second opinion"].words


def test_the_second_opinion_counts_no_point_whose_result_is_not_finite(finished: Path) -> None:
    step = stored_request(finished).plan.steps[0]
    before = second.Stored.of(read_step(finished, 1), stored_request(finished).members.noise())
    nowhere = second.balls(np.full(len(before.lower), np.nan))
    x, y = second.balls(np.zeros((len(step.rows), 2))), second.balls(np.zeros((len(step.rows), 2)))
    assert second.check(step, before, [(nowhere, x, y, None)]) == ([], 0)


@pytest.mark.usefixtures("one_pool")
def test_verify_of_the_exact_step_asks_only_about_datasets_that_the_rules_allow(tmp_path: Path) -> None:
    def one_up_one_down(m: Any) -> None:
        """At most one cell is too low, and at most one too high."""
        cells = [m.x(i, 0) - m.clean(i, 0) for i in (0, 1, 2)]
        up, down = ([m.integer(0, 1) for _ in cells] for _ in range(2))
        for cell, u, d in zip(cells, up, down, strict=True):
            m.require(cell <= 0.3 * u)
            m.require(-cell <= 0.3 * d)
        m.require(up[0] + up[1] + up[2] <= 1)
        m.require(down[0] + down[1] + down[2] <= 1)

    threat = mc.Rules(mc.LInf(0.3, rows=[0, 1, 2], columns=[0]), one_up_one_down)
    network, data, _, _, _ = request(mc.Nothing())
    mc.certify_training(
        network, data, threat, mc.Training(epochs=1, batch_size=6), "mibp", run_dir=tmp_path, attacked=False
    )
    found = verify(tmp_path, AuditSettings(points=20, parameters=2, members=5), threat)
    assert all(check.holds for check in found), found


def test_rules_with_other_constraints_do_not_resume_a_run(tmp_path: Path) -> None:
    """Rules have a record in words only; what they allow is part of the request all the same."""

    def coupled(most: float) -> mc.Rules:
        def rule(m: Any) -> None:
            both = m.x(0, 0) - m.clean(0, 0) + m.x(1, 0) - m.clean(1, 0)
            m.require(both <= most)
            m.require(-both <= most)

        return mc.Rules(mc.LInf(0.3, rows=[0, 1], columns=[0]), rule)

    network, data, _, training, _ = request(mc.Nothing())
    mc.certify_training(network, data, coupled(0.0), training, run_dir=tmp_path, attacked=False)
    with pytest.raises(UserError, match="belongs to another run: threat_sha256"):
        mc.certify_training(network, data, coupled(0.6), training, run_dir=tmp_path, resume=True, attacked=False)


def test_verify_misses_no_set_that_was_removed(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    (folder / "steps/000004.npz").unlink()
    (check,) = verify(folder, QUICK)
    assert not check.holds
    assert "set after step 4 is not in" in check.words


def test_verify_catches_answers_that_do_not_come_out_of_the_set(tmp_path: Path) -> None:
    mc.certify_training(*request(mc.LInf(0.6)), run_dir=tmp_path)
    arrays = {name: np.array(value) for name, value in unpack((tmp_path / "test.npz").read_bytes()).items()}
    harmless = (arrays["attack_classes"] == arrays["nominal"]).all(axis=0) & (arrays["test_classes"] < 0)
    assert harmless.any()  # else the attacks would notice
    arrays["test_classes"] = np.where(harmless, arrays["nominal"], arrays["test_classes"])
    content = pack(arrays)
    (tmp_path / "test.npz").write_bytes(content)
    plain = opened(tmp_path / "result.json")
    (tmp_path / "result.json").write_bytes(sealed({**plain, "arrays": digest(content)}))
    found = {check.name: check.holds for check in verify(tmp_path, QUICK)}
    assert found["hashes"]
    assert not found["answers"]


def test_an_unfinished_run_is_verified_as_far_as_it_goes(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    (folder / "result.json").unlink()
    found = verify(folder, QUICK)
    assert all(check.holds for check in found)
    assert "not finished" in found[-1].words
    with pytest.raises(UserError, match="is not finished; go on with it"):
        mc.load_run(folder)


@pytest.mark.usefixtures("one_pool")
def test_wall_clock_limits_are_recorded_as_not_repeatable(tmp_path: Path) -> None:
    limited = mc.SolverSettings(seconds_per_step=0.5, jobs=1)
    run = mc.certify_training(*request(mc.LInf(0.02), "mibp"), solver=limited, run_dir=tmp_path, attacked=False)
    assert run.to_json()["repeatable"] is False
    words = {check.name: check.words for check in verify(tmp_path, QUICK)}
    assert "wall-clock" in words["recomputed"]


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
