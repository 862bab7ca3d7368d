"""Files, flags and folders that are accepted, changed a little: no traceback, no hang, no figures that cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fuzz import attempt
from fuzz_accepted import QUICK as ATTACK
from fuzz_accepted import TABLES, TOML, World
from fuzz_judge import Fault, command, sensible, strict
from fuzz_kinds import KINDS, written
from fuzz_mutate import Rng

QUICK, SLOW, LONG = 100, 500, 10_000
"""Cases of all kinds together, in `make test`, `make test-slow` and `make soundness`; the first of each are the same."""
PART = 250
"""Cases of one test."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("accepted"))


def _numbers(cases: int, after: int = 0) -> list[Any]:
    """Kinds, with the numbers of some of their cases."""
    first, last = -(-after // len(KINDS)), -(-cases // len(KINDS))
    return [(kind, range(at, min(at + PART, last))) for kind in KINDS for at in range(first, last, PART)]


def _tried(world: World, kind: str, numbers: range, folder: Path) -> None:
    faults = []
    for number in numbers:
        found = attempt(world, kind, number, folder / "case")
        shutil.rmtree(folder / "case")
        if found.fault:
            faults.append(f"{found.name}: {found.fault}")
    assert not faults, "\n\n".join([*faults, "python benchmarks/fuzz.py --only KIND:NUMBER does it again"])


@pytest.mark.parametrize(("kind", "numbers"), _numbers(QUICK))
def test_what_is_changed_a_little_ends_as_commands_do(world: World, kind: str, numbers: range, tmp_path: Path) -> None:
    _tried(world, kind, numbers, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "numbers"), _numbers(SLOW))
def test_more_of_the_same(world: World, kind: str, numbers: range, tmp_path: Path) -> None:
    _tried(world, kind, numbers, tmp_path)


@pytest.mark.soundness
@pytest.mark.parametrize(("kind", "numbers"), _numbers(LONG))
def test_ten_thousand_of_them(world: World, kind: str, numbers: range, tmp_path: Path) -> None:
    _tried(world, kind, numbers, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TABLES, *range(len(TOML))])
def test_what_mutants_are_made_of_is_accepted(world: World, name: str | int, tmp_path: Path) -> None:
    """Else they would only reach the first check."""
    out = tmp_path / "out.json"
    if isinstance(name, int):
        (tmp_path / "c.toml").write_bytes(written({"attack": ATTACK, **TOML[name]}))
        words = [world.file("noise"), "--config", tmp_path / "c.toml"]
    else:
        words = [world.file(name), *TABLES[name].flags, *world.quick]
    status, said = command("certify", *words, "--json", out)
    assert status == 0, said
    sensible(strict(out.read_bytes()), rows=28)


def _good() -> dict[str, Any]:
    by_class = [{"class": "no", "n": 6, "certified_answers": 5}, {"class": "yes", "n": 4, "certified_answers": 3}]
    test = {"n": 10, "nominal_accuracy": 0.8, "attacked_accuracy": 0.7, "certified_accuracy": 0.6, "by_class": by_class}
    test |= {"certification_rate": 0.8, "majority_class": "no", "majority_accuracy": 0.6, "wrong_but_certified": 2}
    attack = {"inner_radius_mean": 0.1, "outer_radius_mean": 0.2}
    return {"test": test, "attack": attack, "epochs": []}


NONSENSE: dict[str, tuple[str, Any]] = {
    "more certified than attacked": ("certified_accuracy", 0.75),
    "more attacked than clean": ("attacked_accuracy", 0.9),
    "more than all": ("nominal_accuracy", 1.5),
    "not a number": ("certification_rate", float("nan")),
    "no baseline": ("majority_class", None),
    "rows that are not there": ("n", 50),
    "rows of no class": ("by_class", []),
    "another count of wrong answers": ("wrong_but_certified", 1),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_noticed(name: str) -> None:
    sensible(_good(), rows=20)
    key, value = NONSENSE[name]
    found = _good()
    found["test"][key] = value
    with pytest.raises(Fault):
        sensible(found, rows=20)


def test_an_infinity_in_json_is_noticed() -> None:
    with pytest.raises(Fault, match="Infinity"):
        strict('{"a": Infinity}')


@pytest.mark.parametrize(
    ("error", "words"), [(ZeroDivisionError("by zero"), "status 70"), (RuntimeWarning("overflow"), "status 70")]
)
def test_a_traceback_and_a_warning_are_noticed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("mibp_cert.job.job_of", broken)
    found = attempt(world, "csv", 0, tmp_path / "case")
    assert words in (found.fault or "")


def test_a_hang_is_noticed(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*args: Any, **options: Any) -> None:
        while True:
            pass

    monkeypatch.setattr("mibp_cert.job.job_of", endless)
    monkeypatch.setattr("fuzz_judge.SECONDS", 0.2)
    assert "no end" in (attempt(world, "csv", 0, tmp_path / "case").fault or "")


def test_a_case_is_the_same_again(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever came before it."""
    drawn = []

    def kind(world: World, rng: Rng, folder: Path) -> str:
        drawn.append(rng.integers(10**9, size=4).tolist())
        return "accepted"

    monkeypatch.setitem(KINDS, "csv", kind)
    for number in (5, 6, 5):
        attempt(world, "csv", number, tmp_path / "case")
    assert drawn[0] == drawn[2] != drawn[1]
