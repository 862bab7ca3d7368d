"""`verify`: holds for what was written, catches what a careful forger altered, and says what it could not check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from archives import CASES, QUICK, copy_of, request, rewrite, small
from mibp_cert.errors import UserError
from mibp_cert.store import archive, second, stored_request
from mibp_cert.store.archive import digest, opened, pack, read_step, sealed
from mibp_cert.store.checks import verdict
from mibp_cert.store.npz import unpack
from mibp_cert.store.verify import AuditSettings, verify


def test_what_was_dropped_is_not_said_to_be_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "KEEP", 1)
    mc.certify_training(*request(mc.LInf(0.02)), run_dir=tmp_path)
    checks = verify(tmp_path, QUICK)
    found = {check.name: check.holds for check in checks}
    assert found["steps"] is None
    assert found["hashes"]
    assert found["recomputed"]  # from the first step on, without the sets between
    assert "second opinion" not in found
    assert verdict(checks) is None


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    mc.certify_training(*request(mc.LInf(0.02)), run_dir=folder)
    return folder


def test_verify_holds_for_what_was_written(finished: Path) -> None:
    found = verify(finished, QUICK)
    assert [check.name for check in found] == [
        "hashes",
        "initial parameters",
        "recomputed",
        "second opinion",
        "answers",
        "attack",
        "figures",
        "bounds",
        "trainings",
    ]
    assert all(check.holds for check in found)


def test_verify_catches_one_altered_bound_though_all_hashes_were_mended(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")

    def tighter(arrays: dict[str, Any], number: int) -> None:
        arrays["upper"][3] -= 1e-9 * (arrays["upper"][3] - arrays["lower"][3])

    rewrite(folder, tighter, range(8, 9))
    found = {check.name: check for check in verify(folder, QUICK)}
    assert found["hashes"].holds
    assert not found["recomputed"].holds
    assert "after step 8" in found["recomputed"].words


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

    rewrite(folder, wrong, range(6, 7))
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

    rewrite(tmp_path, smaller, range(last, last + 1))
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


def test_verify_misses_no_set_that_was_removed(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    (folder / "steps/000004.npz").unlink()
    checks = verify(folder, QUICK)
    found = {check.name: check for check in checks}
    assert found["steps"].holds is None
    assert found["steps"].words.endswith("(any more): 4")
    assert verdict(checks) is None


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
    assert all(check.holds for check in found[:-1])
    assert found[-1].holds is None
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
