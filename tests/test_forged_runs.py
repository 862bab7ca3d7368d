"""Forged run directories, every hash mended: `verify` finds each forgery, raises no alarm at what is honest, writes nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mibp_cert as mc
from archives import QUICK, copy_of, request
from fits import table, threats
from forged_runs import Forgery, bare, forge, forgeries, test_labels
from mibp_cert import cli
from mibp_cert.engines import RelationalEngine
from mibp_cert.fitted import RandomFeatures
from mibp_cert.store import archive
from mibp_cert.store.checks import verdict
from mibp_cert.store.verify import verify

FEW = mc.AttackSettings(members=5, points=3, parameters=2, rounds=1, tries=4)
INCOMPLETE = {"a set dropped", "limits in seconds", "no intercept"}
"""Not found to be wrong, but not said to be checked either."""
SAME = {("regression", "another rule of choice")}
"""No forgery: the same epoch is the last one and the best one."""


def network(path: Path, engine: str, **options: Any) -> mc.CertifiedRun:
    options = {"attack_settings": FEW, "select": "best-validation", **options}
    return mc.certify_training(*request(mc.LInf(0.02))[:4], engine, run_dir=path, **options)


def regression(path: Path) -> None:
    train = table("squared-error", rows=14)
    validation, test = (table("squared-error", 8, seed, like=train) for seed in (30, 50))
    training = mc.Training(epochs=3, batch_size=7, loss="squared-error", learning_rate=0.01)
    parts = mc.Network.mlp([train.features, 3, 1]), mc.Split("survey", train, validation, test), mc.LInf({"age": 0.5})
    mc.certify_training(*parts, training, "interval", run_dir=path, attack_settings=FEW, select="best-validation")


def fit(path: Path, loss: str, threat: str = "l1", **options: Any) -> None:
    train = table(loss)
    split = mc.Split("survey", train, test=table(loss, 8, 50, like=train))
    model = mc.Fitted(loss, C=0.05, **options)
    mc.certify_fit(split, threats(loss)[threat], model, run_dir=path, attack_settings=FEW)


MADE: dict[str, tuple[Callable[[Path], Any], dict[str, bool]]] = {
    "interval": (lambda path: network(path, "interval"), {}),
    "relational": (lambda path: network(path, "relational"), {}),
    "regression": (regression, {"numbers": True}),
    "logistic": (lambda path: fit(path, "cross-entropy"), {"fitted": True}),
    "ridge": (lambda path: fit(path, "squared-error"), {"fitted": True, "numbers": True}),
}
EVERY = [
    (run, name)
    for run, (_, kind) in MADE.items()
    for name in forgeries(**{"fitted": False, "numbers": False, **kind})
    if (run, name) not in SAME
]
AT_ONCE = [
    ("interval", "the last set shrunk, earlier ones dropped"),
    ("relational", "the last set shrunk, earlier ones dropped"),
    ("relational", "a set dropped"),
    ("relational", "validation figures"),
    ("interval", "seed"),
    ("logistic", "margins"),
    ("ridge", "certified error"),
    ("logistic", "attack results gone"),
]
"""In every `make test`; all the others in `make test-slow`."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs of these kinds, each made once."""
    folder = tmp_path_factory.mktemp("runs")

    def made(name: str) -> Path:
        if not (folder / name).exists():
            MADE[name][0](folder / name)
        return folder / name

    return made


def tree(folder: Path) -> dict[str, str]:
    """Every file, by its hash."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*.*")
        if p.is_file()
    }


def found_out(runs: Callable[[str], Path], run: str, name: str, tmp_path: Path) -> None:
    folder = copy_of(runs(run), tmp_path / "run")
    forge(folder, forgeries(**{"fitted": False, "numbers": False, **MADE[run][1]})[name])
    before = tree(folder)
    checks = verify(folder, QUICK)
    assert verdict(checks) is (None if name in INCOMPLETE else False), checks
    assert checks[0].name == "hashes"
    assert checks[0].holds, "a careful forger mends them"
    assert tree(folder) == before


@pytest.mark.parametrize(("run", "name"), AT_ONCE)
def test_a_forgery_is_found_though_every_hash_was_mended(
    runs: Callable[[str], Path], tmp_path: Path, run: str, name: str
) -> None:
    found_out(runs, run, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("run", "name"), [one for one in EVERY if one not in AT_ONCE])
def test_every_forgery_is_found(runs: Callable[[str], Path], tmp_path: Path, run: str, name: str) -> None:
    found_out(runs, run, name, tmp_path)


def interrupted(path: Path) -> None:
    """Stopped after the fifth step, and resumed."""
    with pytest.MonkeyPatch.context() as patch:
        keep = archive.Archive.save

        def stopped(self: Any, number: int, *rest: Any) -> None:
            keep(self, number, *rest)
            if number == 5:
                raise KeyboardInterrupt

        patch.setattr(archive.Archive, "save", stopped)
        with pytest.raises(KeyboardInterrupt):
            network(path, "interval")
    network(path, "interval", resume=True)


def weighted(path: Path) -> None:
    train = table("cross-entropy")
    split = mc.Split("survey", train, test=table("cross-entropy", 8, 50, like=train))
    model = mc.Fitted(C=0.05, class_weight={0: 2.0, 1: 1.0})
    options = {"sample_weight": np.linspace(0.5, 2.0, len(train)), "attack_settings": FEW}
    mc.certify_fit(split, mc.LInf({"age": 1.0}), model, run_dir=path, **options)


def featured(path: Path) -> None:
    data, model = mc.two_moons(0, sizes=(30, 10, 10)), mc.Fitted(C=1.0, features=RandomFeatures(6, 2.0, seed=3))
    mc.certify_fit(data, mc.LInf(0.01), model, attack_settings=FEW, run_dir=path)


HONEST: dict[str, Callable[[Path], Any]] = {
    **{name: make for name, (make, _) in MADE.items()},
    "resumed": interrupted,
    "diverged": lambda path: (
        network(path, "interval", steps=None, select="last")
        and mc.certify_training(
            *request(mc.LInf(0.9), epochs=30, learning_rate=2.0)[:4],
            "interval",
            run_dir=path / "own",
            attack_settings=FEW,
        )
    ),
    "weights": weighted,
    "features": featured,
    "budget of rows": lambda path: fit(path, "cross-entropy", "budget of rows"),
    "cases": lambda path: mc.certify_training(
        *request(mc.Budget(mc.LInf(0.2), rows=1), epochs=2), run_dir=path, attack_settings=FEW
    ),
    "no attack": lambda path: network(path, "relational", attacked=False),
    "handed in": lambda path: network(path, "interval", theta0=np.linspace(-1.0, 1.0, 12)),
    "doubt about test rows": lambda path: network(path, "relational", test_threat=mc.LInf(0.05)),
    "every step may be chosen": lambda path: network(
        path, "interval", select=mc.Selection("best-validation", per_step=True)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_what_is_honest_raises_no_alarm_and_is_only_read(name: str, tmp_path: Path) -> None:
    HONEST[name](tmp_path / "run")
    folder = tmp_path / "run" / "own" if name == "diverged" else tmp_path / "run"
    before = tree(tmp_path)
    checks = verify(folder, QUICK)
    assert verdict(checks) is True, checks
    if name == "diverged":
        assert mc.load_run(folder).diverged is not None
    mc.load_run(folder)
    assert tree(tmp_path) == before


def test_rows_that_were_altered_with_every_figure_are_found_where_the_data_are_at_hand(
    runs: Callable[[str], Path], tmp_path: Path
) -> None:
    """The directory then says nothing against itself: it is an honest run on other rows. `verify` says that it cannot tell."""
    folder, data = copy_of(runs("relational"), tmp_path / "run"), mc.load_run(runs("relational")).data
    assert verdict(verify(folder, QUICK, data=data)) is True
    forge(folder, test_labels)
    (alone, *_), compared = verify(folder, QUICK), {check.name: check for check in verify(folder, QUICK, data=data)}
    assert "Where the rows come from cannot be told" in alone.given
    assert compared["data"].holds is False
    assert "other test rows" in compared["data"].words


def invoke(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, " ".join(found.output.split())


def certified(folder: Path, *words: object) -> Path:
    status, told = invoke("certify", *words, "--no-attack", "-q", "--run", folder)
    assert status == 0, told
    return folder


SHORT = ("--points", 1, "--parameters", 1)


def test_rows_of_a_data_set_that_comes_with_the_program_are_compared_with_it(tmp_path: Path) -> None:
    folder = certified(tmp_path / "run", "two-moons", "--model", "logistic", "--C", 0.1, "--eps", 0.02)
    before = tree(folder)
    status, told = invoke("verify", folder, *SHORT)
    assert status == 0, told
    assert "the same train, validation, test rows" in told
    assert "it asks for this very run" in told
    assert tree(folder) == before
    forge(folder, test_labels)
    config = archive.opened(folder / "config.json")
    (folder / "config.json").write_bytes(
        archive.sealed({**config, "run": archive.digest((folder / "run.json").read_bytes())})
    )
    status, told = invoke("verify", folder, *SHORT)
    assert status == 1
    assert "other test rows than in the data handed in" in told


def test_a_file_is_compared_where_it_is_named_and_else_that_is_said(tmp_path: Path) -> None:
    rng, place = np.random.default_rng(0), tmp_path / "people.csv"
    x = rng.normal(size=(60, 2)).round(2)
    rows = [f"{a},{b},{'yes' if a + b > 0 else 'no'}" for a, b in x]
    place.write_text("\n".join(["a,b,ill", *rows]) + "\n")
    asked = (place, "--target", "ill", "--model", "logistic", "--C", 0.1, "--eps", "a=0.05")
    folder = certified(tmp_path / "run", *asked)
    status, told = invoke("verify", folder, *SHORT)
    assert status == 4, told
    assert "not compared with people.csv" in told
    assert "incomplete" in told
    assert invoke("verify", folder, "--data", place, *SHORT)[0] == 0
    place.write_text(place.read_text().replace("yes", "no", 1))
    status, told = invoke("verify", folder, "--data", place, *SHORT)
    assert status == 1
    assert "rows than in the data handed in" in told


@pytest.mark.parametrize("how", ["damaged", "of another run", "asks for another run"])
def test_a_configuration_belongs_to_its_run(how: str, tmp_path: Path) -> None:
    folder = certified(tmp_path / "run", "two-moons", "--model", "logistic", "--C", 0.1, "--eps", 0.02)
    kept = archive.opened(folder / "config.json")
    if how == "of another run":
        kept["run"] = "0" * 64
    else:
        kept["configuration"]["model"]["C"] = 0.2
    content = archive.sealed(kept)
    (folder / "config.json").write_bytes(content.replace(b"0.2", b"0.3") if how == "damaged" else content)
    status, told = invoke("verify", folder, *SHORT)
    assert status == 1
    words = {
        "damaged": "cut short or altered",
        "of another run": "belongs to another run",
        "asks for another run": "another training",
    }
    assert words[how] in told


def test_a_set_that_was_dropped_makes_the_verdict_incomplete_on_the_command_line(
    runs: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copy_of(runs("relational"), tmp_path / "run")
    forge(folder, forgeries(fitted=False, numbers=False)["a set dropped"])
    status, told = invoke("verify", folder, *SHORT)
    assert status == 4
    assert "the sets after 1 step(s) are not there" in told
    assert " ok " not in told
    assert told.endswith("incomplete verdict")


def test_a_report_trains_nothing_and_writes_nothing_into_the_run(
    runs: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of(runs("relational"), tmp_path / "run")
    before = tree(folder)
    with monkeypatch.context() as patch:
        patch.setattr(RelationalEngine, "advance", lambda *_: pytest.fail("a step was taken"))
        assert invoke("report", folder, tmp_path / "page.html", "-q")[0] == 0
    assert tree(folder) == before
    forge(folder, forgeries(fitted=False, numbers=False)["the last step cut off"])
    before = tree(folder)
    found = CliRunner().invoke(cli.app, ["report", str(folder), str(tmp_path / "other.html")])
    assert "is not finished" in str(found.exception)
    assert tree(folder) == before


KERNELS: dict[str, dict[str, str]] = {
    "another kernel of BLAS": {"OPENBLAS_CORETYPE": "Nehalem"},
    "fewer vector instructions": {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"},
    "two threads": {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
}
ELSEWHERE = """
import sys
from archives import QUICK
from mibp_cert.store.checks import verdict
from mibp_cert.store.verify import verify
for folder in sys.argv[1:]:
    checks = verify(folder, QUICK)
    print(verdict(checks), [check.words for check in checks if check.name == "recomputed"][0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_last_bits_of_another_kernel_are_said_and_are_not_wrong(
    runs: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """And what is really wrong is, there too."""
    folders = [runs(run) for run in ("interval", "relational", "logistic", "ridge")]
    forged = copy_of(runs("relational"), tmp_path / "forged")
    forge(forged, forgeries(fitted=False, numbers=False)["one end moved"])
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), **KERNELS[name]}
    program = [sys.executable, "-c", ELSEWHERE, *map(str, [*folders, forged])]
    told = subprocess.run(program, env=env, capture_output=True, text=True, timeout=300, check=True).stdout.splitlines()
    assert [line.split()[0] for line in told] == [*["True"] * len(folders), "False"], told
    for line in told[:-1]:
        assert "the same bits" in line or ("here by" in line and "of the radius" in line)


def test_other_last_bits_under_the_same_kernel_are_wrong(runs: Callable[[str], Path], tmp_path: Path) -> None:
    def last_bit(folder: Any) -> None:
        folder.last["upper"][3] = np.nextafter(folder.last["upper"][3], np.inf)

    forgery: Forgery = bare(last_bit)
    folder = copy_of(runs("relational"), tmp_path / "run")
    forge(folder, forgery)
    found = {check.name: check for check in verify(folder, QUICK)}
    assert found["recomputed"].holds is False

    def and_another_kernel(folder: Any) -> None:
        folder.records[-1]["kernel"] = folder.result["kernel"] = "another one"

    forge(folder, bare(and_another_kernel))
    found = {check.name: check for check in verify(folder, QUICK)}
    assert found["recomputed"].holds
    assert "other last bits after 1 of them" in found["recomputed"].words
    assert "another one" in found["recomputed"].words


def test_a_proof_that_would_take_long_is_left_out_with_its_time(
    runs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mibp_cert.store import verify as module

    monkeypatch.setattr(module, "PATIENCE", 0.0)
    found = {check.name: check for check in verify(runs("interval"), QUICK)}
    assert found["proof"].holds is None
    assert "--prove" in found["proof"].words
    found = {check.name: check for check in verify(runs("interval"), replace(QUICK, prove=True))}
    assert found["proof"].holds
