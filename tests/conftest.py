"""Shared helpers: random small problems, a rational oracle, a search for extreme values."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from mibp_cert import collective
from mibp_cert.data import Dataset
from mibp_cert.engines import PREDICTIONS, Engine, EngineSettings, MibpEngine, SolverSettings
from mibp_cert.engines.exact import engine as exact_module
from mibp_cert.nets import SGD, Network, Step, loss_named, trace_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.report import plots
from mibp_cert.sets import ThreatSet
from mibp_cert.threats import LInf

os.environ.update({f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")})
threadpool_limits(1)
"""One thread of every numeric library, loaded already or later, here or in a process that a test starts: problems are small,
and tests run side by side."""
collective_module = sys.modules[collective.__module__]
"""The package's function hides the module of the same name."""


@pytest.fixture
def torch() -> Any:
    """PyTorch, the second oracle; `make test-torch` installs it."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: make test-torch")
    import torch

    return torch


@pytest.fixture(scope="session", autouse=True)
def _coarse_pictures() -> Iterator[None]:
    """Regions of reports on few points, in several chunks still: a fitted model answers thousands of them in ten seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "RESOLUTION", 20)
        patch.setattr(plots, "GRID_CHUNK", 150)
        yield


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    """Worker processes shared by the tests."""
    with WorkerPool(2) as workers:
        yield workers


@pytest.fixture
def one_pool(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    """The tests' own workers for every question and every run, instead of new ones for each."""
    monkeypatch.setattr(collective_module, "WorkerPool", lambda jobs=None, parallel="local": nullcontext(pool))
    monkeypatch.setattr(exact_module, "WorkerPool", lambda jobs=None, parallel="local": pool)
    monkeypatch.setattr(exact_module.MibpEngine, "close", lambda self: None)
    return pool


def predictor(method: str, pool: WorkerPool | None = None, settings: SolverSettings | None = None) -> Engine:
    """The engine that bounds predictions by this method, with the tests' own workers."""
    kind = PREDICTIONS[method]
    return MibpEngine(settings, pool=pool) if kind is MibpEngine else kind.of(EngineSettings())


def small_data(rng: np.random.Generator, rows: int = 6, features: int = 2, classes: int = 2) -> Dataset:
    """Random rows; every class occurs."""
    x = rng.normal(size=(rows, features))
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, rows - classes)])
    return Dataset.of(x, y, tuple(range(classes)))


def small_step(
    data: Dataset, sizes: list[int], rate: float = 0.5, batches: list[Any] | None = None
) -> tuple[Network, Step]:
    """A network and one graph with a step per batch (default: one full batch)."""
    network = Network.mlp([data.features, *sizes])
    chosen = [np.arange(len(data))] if batches is None else batches
    loss = loss_named("hinge", network.logits)
    return network, trace_steps(network, loss, SGD(rate), len(data.classes), chosen)


def stacked(members: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Datasets in one array of features and one of labels, members first: they are trained on at once."""
    return np.stack([x for x, _ in members]), np.stack([y for _, y in members])


def trainings(steps: Sequence[Step], begin: Any, members: Sequence[tuple[Any, Any]]) -> Iterator[Any]:
    """Ordinary training on every member: after each step the states, members × entries."""
    x, y = stacked(members)
    states = np.broadcast_to(begin, (len(members), len(begin)))
    for step in steps:
        states = step.train(states, x[:, step.rows], y[:, step.rows])
        yield states


def random_case(seed: int, steps: int) -> tuple[Network, list[Step], ThreatSet, Any, np.random.Generator]:
    """A random network, one graph per step of a random batch plan, a threat, initial parameters, and the generator."""
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 4))
    last = classes if classes > 2 or rng.random() < 0.5 else 1
    sizes = [*rng.integers(1, 6, rng.integers(0, 3)).tolist(), last]
    rows = int(rng.integers(classes, 9))
    data = small_data(rng, rows=rows, features=int(rng.integers(1, 4)), classes=classes)
    threat = LInf(float(rng.choice([0.0, 1e-12, 1e-3, 0.05, 0.3]))).bind(data)
    rate = float(rng.choice([0.05, 0.3, 1.0]))
    plan = [np.sort(rng.choice(rows, rng.integers(1, rows + 1), replace=False)) for _ in range(steps)]
    graphs = [small_step(data, sizes, rate=rate, batches=[batch])[1] for batch in plan]
    network, _ = small_step(data, sizes)
    return network, graphs, threat, network.initialise(seed) * float(rng.choice([1e-3, 1.0, 4.0])), rng
