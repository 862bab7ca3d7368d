"""More than one machine: the same bits from Dask's workers as from this machine's, also when one of them is killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import small_data, small_step
from mibp_cert import LInf, Network, Training, certify_training, two_moons
from mibp_cert.engines import SolverSettings
from mibp_cert.engines.base import Box
from mibp_cert.engines.exact.engine import MibpEngine
from mibp_cert.errors import SolverUnavailable, UserError
from mibp_cert.parallel import WorkerPool, arrivals, split, spread
from mibp_cert.studies.reproduce import Options, run_table
from mibp_cert.studies.reproduce.paper import IRIS2

HERE = Path(__file__).parent


@dataclass
class Cluster:
    """A Dask scheduler's address and its workers: the second has a nanny, as is Dask's habit, the first does not, so that it is
    the process that was started and stays dead when it is killed."""

    address: str
    workers: list[subprocess.Popen[bytes]]


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    # The folder of the tests, so that workers find the functions below.
    environment = os.environ | {"PYTHONPATH": str(HERE), "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-m", "dask", *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    port = _free_port()
    scheduler = _start("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    made = Cluster(f"tcp://127.0.0.1:{port}", [])
    try:
        for nanny in ("--no-nanny", "--nanny"):
            arguments = [made.address, nanny, "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"]
            made.workers.append(_start("worker", *arguments))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield made
    finally:
        for process in [*made.workers, scheduler]:
            _end(process)


def _bounds(eps: float) -> tuple[Any, Any]:
    run = certify_training(Network.mlp([2, 4, 2]), two_moons(0), LInf(eps), Training(epochs=3), attacked=False)
    return run.bounds.lower, run.bounds.upper


def _slow_bounds(work: tuple[float, str]) -> tuple[Any, Any]:
    """As `_bounds`; leaves a mark when it begins, and takes its time."""
    eps, folder = work
    (Path(folder) / f"{eps}-{os.getppid()}").touch()  # the parent is Dask's worker
    time.sleep(0.5)
    return _bounds(eps)


def _deadly(shared: int, items: list[int]) -> list[int]:
    if shared in items:
        os.abort()
    return [item * item for item in items]


def _ends_at_seven(item: int) -> int:
    if item == 7:
        os.abort()
    return item


def _refuses(item: int) -> int:
    raise SolverUnavailable("too large; choose --solver scip.")


@pytest.mark.slow
def test_a_sweep_gives_the_same_bits_on_other_machines(cluster: Cluster) -> None:
    values, heard = [0.005, 0.01], []
    here = spread(_bounds, values, jobs=1)
    there = spread(_bounds, values, cluster.address, hear=lambda done, total: heard.append((done, total)))
    np.testing.assert_array_equal(here, there)
    assert (np.array(here[0]) != np.array(here[1])).any()
    assert heard == [(1, 2), (2, 2)]


def _exact_case() -> tuple[Box, Any, Any]:
    rng = np.random.default_rng(15)
    data = small_data(rng, rows=3)
    network, step = small_step(data, [2, 1], rate=0.5)
    theta = rng.normal(size=network.layout.size)
    return Box(theta - 0.1, theta + 0.1), step, LInf(0.2).bind(data)


def test_exact_bounds_are_the_same_bits_in_other_groups(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    case, settings = _exact_case(), SolverSettings(nodes_per_program=50)
    here, report = MibpEngine(settings, pool=pool).advance(*case)
    monkeypatch.setattr("mibp_cert.engines.exact.engine.split", lambda items, parts: split(items, 2))
    regrouped, _ = MibpEngine(settings, pool=pool).advance(*case)
    assert report.fallbacks == 0
    np.testing.assert_array_equal([here.lower, here.upper], [regrouped.lower, regrouped.upper])


@pytest.mark.slow
def test_exact_bounds_are_the_same_bits_on_other_machines(cluster: Cluster, pool: WorkerPool) -> None:
    case, settings = _exact_case(), SolverSettings(nodes_per_program=50, parallel=cluster.address)
    here, _ = MibpEngine(settings, pool=pool).advance(*case)
    remote = MibpEngine(settings)
    try:
        there, report = remote.advance(*case)
    finally:
        remote.close()
    assert report.fallbacks == 0
    np.testing.assert_array_equal([here.lower, here.upper], [there.lower, there.upper])


@pytest.mark.slow
def test_an_item_that_aborts_costs_only_itself_and_no_worker(cluster: Cluster) -> None:
    with WorkerPool(2, cluster.address) as there:
        results = dict(there.map(_deadly, 5, split(list(range(6)), 3)))
    assert results == {i: (None if i == 5 else i * i) for i in range(6)}
    assert all(worker.poll() is None for worker in cluster.workers)


@pytest.mark.slow
def test_a_sweep_names_the_item_that_ended_its_process_after_the_others_have_come(cluster: Cluster) -> None:
    arrived: list[tuple[int, int]] = []
    with pytest.raises(UserError, match="Item 1 of the sweep"):
        arrived.extend(arrivals(_ends_at_seven, [3, 7], cluster.address))
    assert arrived == [(0, 3)]


@pytest.mark.slow
def test_a_refusal_on_another_machine_reaches_the_caller_as_a_sentence(cluster: Cluster) -> None:
    with pytest.raises(SolverUnavailable, match=r"^too large; choose --solver scip\.$"):
        spread(_refuses, [1, 2], cluster.address)


@pytest.mark.slow
def test_units_of_a_table_are_kept_as_they_arrive(cluster: Cluster, tmp_path: Path) -> None:
    table = replace(IRIS2, cells=IRIS2.cells[:1], training=Training(1), hidden=(2,), learning_rates=(0.02, 0.1))
    options = Options(seeds=1, engines=("interval", "mibp"), runs=tmp_path / "there", parallel=cluster.address)
    heard: list[str] = []
    there = run_table(table, options, heard.append)
    assert [text.split(", ")[2] for text in sorted(heard)] == ["interval", "mibp"]
    assert sorted(p.name.split("-")[1] for p in (tmp_path / "there").glob("*.json")) == ["interval", "mibp"]
    assert run_table(table, options, lambda text: pytest.fail("ran again")) == there
    alone = replace(options, runs=tmp_path / "here", parallel="local", engines=("interval",))
    here = run_table(table, alone, lambda text: None)
    for key in ("certified", "radius", "clean", "attacked", "learning_rate"):
        assert here[0][key] == there[0][key]


@pytest.mark.slow
def test_a_killed_worker_costs_nothing(cluster: Cluster, tmp_path: Path) -> None:
    values, victim, found = [0.001, 0.002, 0.003, 0.004], cluster.workers[0], {}
    for number, bounds in arrivals(_slow_bounds, [(eps, str(tmp_path)) for eps in values], cluster.address):
        found[number] = bounds
        if victim.returncode is None:
            open_marks = [tmp_path / f"{eps}-{victim.pid}" for n, eps in enumerate(values) if n not in found]
            deadline = time.monotonic() + 30
            while not any(mark.exists() for mark in open_marks):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
    assert victim.returncode == -signal.SIGKILL
    np.testing.assert_array_equal([found[n] for n in range(len(values))], spread(_bounds, values, jobs=1))


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_one_sentence() -> None:
    pytest.importorskip("distributed")
    start = time.monotonic()
    with pytest.raises(UserError, match=r"^No Dask scheduler answers at tcp://127\.0\.0\.1:\d+; [^.]*\.$"):
        spread(abs, [1], f"tcp://127.0.0.1:{_free_port()}")
    assert time.monotonic() - start < 15


@pytest.mark.parametrize(("parallel", "extra"), [("ray", "ray"), ("tcp://127.0.0.1:8786", "dask")])
def test_a_package_that_is_missing_is_one_sentence(parallel: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"pip install 'mibp-cert\[{extra}\]'"):
        spread(abs, [1], parallel)


@pytest.mark.parametrize("parallel", ["", "dask", "tcp://host", "localhost:8786", "threads"])
def test_other_places_are_refused_with_what_is_accepted(parallel: str) -> None:
    with pytest.raises(UserError, match=r"choose 'local', .*'tcp://host:port'.*'ray'"):
        spread(abs, [1], parallel)
