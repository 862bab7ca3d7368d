"""Models at their minimum: bounds by several processes or threads, and how far they are."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress

import mibp_cert as mc
from mibp_cert import cli
from mibp_cert.certify import Callbacks, CertifiedRun
from mibp_cert.data import iris
from mibp_cert.engines import SolverSettings
from mibp_cert.errors import UserError
from mibp_cert.fitted import Fitted, crew
from mibp_cert.fitted.crew import Crew, Rounds, in_chunks, in_order
from mibp_cert.parallel import WorkerPool
from mibp_cert.report import progress as shown
from mibp_cert.report.progress import Lines, TimeLeft, show_training

QUICK = mc.AttackSettings(members=3, points=3, parameters=3, rounds=1)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Chunks are small, and all of them go to other processes from the first one on; how many did."""
    given: list[int] = []
    meant = WorkerPool.map

    def counted(self: WorkerPool, function: Any, shared: Any, groups: Any) -> Any:
        given.append(len(groups))
        return meant(self, function, shared, groups)

    monkeypatch.setattr(crew, "WORTH", 1)
    monkeypatch.setattr("mibp_cert.fitted.dual.CELLS", 900)
    monkeypatch.setattr(Crew, "ready", property(lambda self: self.pool is not None))
    monkeypatch.setattr(WorkerPool, "map", counted)
    return given


@pytest.fixture
def as_if_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What processes are given and give back is pickled, but stays here: starting them takes seconds."""

    def there_and_back(self: WorkerPool, function: Any, shared: Any, groups: Any) -> Iterator[tuple[Any, Any]]:
        for group in groups[::-1]:
            run, told, items = pickle.loads(pickle.dumps((function, shared, group)))
            yield from zip(group, pickle.loads(pickle.dumps(run(told, items))), strict=True)

    monkeypatch.setattr(WorkerPool, "map", there_and_back)


def bits(run: CertifiedRun) -> bytes:
    assert run.test is not None
    arrays = [*run.bounds.arrays().values(), run.test.margin, run.test.margin_high, run.test.classes]
    return b"".join(array.tobytes() for array in arrays)


def survey() -> mc.Split:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(60, 2)), np.eye(3)[rng.integers(0, 3, 60)]])
    columns = (*(mc.Column(str(j), j, j + 1) for j in range(2)), mc.Column("mood", 2, 5, ("a", "b", "c")))
    data = mc.Dataset.of(x, (x[:, 0] + x[:, 3] > 0).astype(int), columns=columns)
    return mc.Split("survey", data.take(np.arange(40)), None, data.take(np.arange(40, 60)))


def flowers() -> mc.Split:
    whole = iris(0)
    return mc.Split("iris", whole.train.take(np.arange(36)), None, whole.tested.take(np.arange(10)))


CASES: dict[str, tuple[Any, Any, Any, str]] = {
    "noise": (mc.two_moons(0, sizes=(40, 10, 20)), mc.LInf(0.05), Fitted(C=0.5), "dual"),
    "labels": (mc.two_moons(0, sizes=(40, 10, 20)), mc.LInf(0.01) & mc.LabelFlips(2), Fitted(C=0.2), "dual"),
    "ball": (mc.two_moons(0, sizes=(40, 10, 20)), mc.L2(0.05), Fitted("squared-hinge", C=0.2), "dual"),
    "rows": (mc.two_moons(0, sizes=(40, 10, 20)), mc.Budget(mc.LInf(0.3), rows=2), Fitted(C=0.2), "dual"),
    "come and go": (mc.two_moons(0, sizes=(40, 10, 20)), mc.Removed(1) & mc.Added(1, {}), Fitted(C=0.1), "dual"),
    "categories": (survey(), mc.AnyCategory("mood").where([1, 5]) & mc.LInf({"0": 0.02}), Fitted(C=0.02), "dual"),
    "features": (
        mc.two_moons(0, sizes=(40, 10, 20)), mc.LInf(0.01), Fitted(C=0.3, features=mc.RandomFeatures(4)), "dual",
    ),
    "softmax": (flowers(), mc.LInf(0.01), Fitted(C=0.05), "dual"),
    "one versus rest": (flowers(), mc.LInf(0.01), Fitted(C=0.05, multi="one-versus-rest"), "dual"),
    "programs": (mc.two_moons(0, sizes=(24, 10, 10)), mc.LInf(0.05), Fitted(C=0.5), "lp"),
}  # fmt: skip


def alone_and_together(name: str) -> list[bytes]:
    data, threat, model, engine = CASES[name]
    settings = [SolverSettings(jobs=jobs) for jobs in (1, 2)]
    return [bits(mc.certify_fit(data, threat, model, engine, solver=how, attacked=False)) for how in settings]


@pytest.mark.parametrize("name", CASES)
def test_what_is_handed_over_gives_the_same_bits(name: str, as_if_elsewhere: None, at_once: list[int]) -> None:
    alone, together = alone_and_together(name)
    assert alone == together
    assert len(at_once) > 2


def test_processes_give_the_same_bits(at_once: list[int]) -> None:
    alone, together = alone_and_together("labels")
    assert alone == together
    assert max(at_once) == 2


def test_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows, taken some at a time."""
    monkeypatch.setattr("mibp_cert.fitted.engine.OWN_CELLS", 0)
    monkeypatch.setattr("mibp_cert.fitted.shared.CELLS", 400)
    data = mc.two_moons(0, sizes=(200, 10, 40))
    for threat in (mc.LInf(0.01), mc.LInf(0.005) & mc.LabelFlips(1)):
        found = [
            mc.certify_fit(data, threat, Fitted(C=0.1), solver=SolverSettings(jobs=jobs), attacked=False)
            for jobs in (1, 3)
        ]
        assert bits(found[0]) == bits(found[1])


def _times(shared: int, start: int) -> int:
    return shared * start


def test_a_process_that_dies_leaves_its_part_to_this_one(monkeypatch: pytest.MonkeyPatch, at_once: list[int]) -> None:
    made = Crew(2)
    assert made.pool is not None
    monkeypatch.setattr(made.pool, "map", lambda function, shared, groups: iter([(0, None), (4, 12), (8, None)]))
    told: list[int] = []
    with made.working(told.append):
        assert in_chunks(_times, 3, 10, 4, 100) == [0, 12, 24]
    assert told == [4, 4, 2]


def test_results_of_threads_keep_their_order_and_errors_come_through() -> None:
    made = Crew(3)
    with made.working():
        assert list(in_order(lambda k: list(in_order(abs, range(-k, 0))), range(30)))[5] == [5, 4, 3, 2, 1]
        with pytest.raises(ZeroDivisionError):
            list(in_order(lambda k: 1 // (k - 20), range(30)))
    made.close()


def test_small_work_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mibp_cert.parallel.WorkerPool.begin", lambda self: pytest.fail("started"))
    data = mc.two_moons(0, sizes=(40, 10, 20))
    mc.certify_fit(data, mc.LInf(0.02), Fitted(C=0.5), solver=SolverSettings(jobs=2), attack_settings=QUICK)


def test_processes_are_started_beside_the_work_and_used_when_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Crew(2)
    assert made.pool is not None
    monkeypatch.setattr(crew, "WORTH", 1)
    monkeypatch.setattr(made, "_patience", 0.0)
    with made.working():
        assert in_chunks(_times, 2, 8, 4, 100) == [0, 8]  # begun, and not waited for
        assert made._begun is not None
        made._begun.result(timeout=120)
        assert made.ready
        assert in_chunks(_times, 2, 8, 4, 100) == [0, 8]
    made.close()


def test_a_place_that_does_not_exist_is_refused() -> None:
    data = mc.two_moons(0, sizes=(40, 10, 20))
    with pytest.raises(UserError, match="no place to work called 'moon'"):
        mc.certify_fit(data, mc.LInf(0.02), solver=SolverSettings(parallel="moon"))


# How far it is ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if name != "come and go"])
def test_callers_hear_how_far_the_proof_the_tests_and_the_attack_are(name: str) -> None:
    data, threat, model, engine = CASES[name]
    heard: dict[str, list[tuple[int, int]]] = {"proof": []}
    hear = Callbacks(
        on_program=lambda done, total: heard[next(reversed(heard))].append((done, total)),
        on_stage=lambda stage: heard.update({stage: []}),
    )
    mc.certify_fit(data, threat, model, engine, callbacks=hear, attack_settings=QUICK)
    if data.validation is not None:
        assert heard.pop("bounding validation predictions")
    assert list(heard) == ["proof", "bounding test predictions", "attacking"]
    for told in heard.values():
        assert told
        assert all(0 <= done <= total for done, total in told)
    proof = [done for done, _ in heard["proof"]]
    assert engine == "lp" or proof == sorted(proof)
    attacked = heard["attacking"]
    assert attacked[-1][0] == attacked[-1][1]


def test_a_proof_that_takes_more_rounds_than_usual_is_never_said_to_be_done() -> None:
    told: list[tuple[int, int]] = []
    rounds = Rounds(lambda done, total: told.append((done, total)), 10)
    for _ in range(20):
        rounds.begin()
        for _ in range(3):
            rounds.tell(4)  # cuts of exits ask more than was counted on
    assert all(done < total for done, total in told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_by_what_the_work_took() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    assert left.after(0, 10) is None
    clock.now += 4.0
    assert left.after(2, 10) == 16.0
    clock.now += 1.0
    assert left.after(1, 5) == 4.0  # another count: only its own second is known of it
    clock.now += 50.0
    left.restart()
    clock.now += 3.0
    assert left.after(1, 2) == 3.0


def test_lines_come_now_and_then() -> None:
    clock, said = Clock(), list[str]()
    lines = Lines(said.append, clock)
    for _ in range(1000):
        clock.now += 1.0
        lines.heard("dual: bounding the minimum", "5 of about 80 bounds", 90.0)
    assert said[0] == "dual: bounding the minimum: 5 of about 80 bounds, 5 s so far, about 1 min 30 s left"
    assert 10 < len(said) < 40


def test_a_run_without_a_terminal_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shown, "FIRST", 0.0)
    monkeypatch.setattr(shown, "EVERY", 0.0)
    monkeypatch.setattr(shown, "SHARE", 0.0)
    words = ["certify", "two-moons", "--model", "logistic", "--C", "0.3", "--eps", "0.02"]
    cli.app([*words, "-q"], standalone_mode=False)
    assert capsys.readouterr().err.strip() == ""
    cli.app(words, standalone_mode=False)
    said = capsys.readouterr().err
    for stage, unit in (
        ("bounding the minimum", "about [0-9]+ bounds"),
        ("bounding test predictions", "about [0-9]+ bounds"),
        ("attacking", "[0-9]+ datasets"),
    ):
        assert re.search(f"dual: {stage}: [0-9]+ of {unit}, [0-9]+ s so far, about [0-9]+ s left", said), said


def test_a_terminal_shows_bars_and_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "FIRST", 0.0)
    console = Console(force_terminal=True, record=True, width=120, file=sys.stderr)
    with Progress(console=console) as bars:
        hear = show_training(bars, "dual", fit=True)
        hear.on_program(30, 80)
        assert (bars.tasks[1].completed, bars.tasks[1].total, bars.tasks[1].visible) == (30, 80, True)
        hear.on_stage("attacking")
        assert not bars.tasks[1].visible
        hear.on_program(1, 5)
        assert (bars.tasks[1].completed, bars.tasks[1].total) == (1, 5)
        assert bars.tasks[1].description == "datasets in this step"
    assert "so far" not in console.export_text()


@pytest.mark.parametrize("command", ["tolerance", "compare"])
def test_studies_take_jobs_and_say_how_far_they_are(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(shown, "FIRST", 0.0)
    words = [command, "two-moons", "--model", "logistic", "--C", "0.1", "--no-attack", "--jobs", "1"]
    words += (
        ["--share", "0.5", "--start", "0.01", "--most", "0.01"]
        if command == "tolerance"
        else ["--eps-values", "0.01,0.02"]
    )
    cli.app(words, standalone_mode=False)
    shown_ = capsys.readouterr()
    assert ("bisection: value 0" if command == "tolerance" else "comparing: 1 of 2 runs") in shown_.err
    assert "fitted to its minimum" in shown_.out
