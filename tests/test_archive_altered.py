"""Run directories: what was altered, cut short, or belongs to another run is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mibp_cert as mc
from archives import QUICK, copy_of, flip_bit, request, truncate
from mibp_cert.errors import UserError
from mibp_cert.store import archive
from mibp_cert.store.archive import opened
from mibp_cert.store.npz import unpack
from mibp_cert.store.verify import verify


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    mc.certify_training(*request(mc.LInf(0.02)), run_dir=folder)
    return folder


def _edit(path: Path) -> None:
    plain = json.loads(path.read_text())
    plain["steps" if "steps" in plain else "format"] = 7
    path.write_text(json.dumps(plain))


@pytest.mark.parametrize(
    "name", ["steps/000008.npz", "steps/000008.json", "run.json", "data.npz", "test.npz", "result.json"]
)
@pytest.mark.parametrize("damage", [truncate, flip_bit])
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
        (folder / "result.json").unlink()
        with pytest.raises(UserError, match="Another process is working"):
            mc.resume_run(folder)
    finally:
        first.close()


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
