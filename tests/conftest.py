"""Shared helpers: random small problems, a rational oracle, a search for extreme values."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mibp_cert.data import Dataset
from mibp_cert.nets import SGD, Network, Step, loss_named, trace_steps
from mibp_cert.solvers import WorkerPool


@pytest.fixture
def torch() -> Any:
    """PyTorch, the second oracle; `make test-torch` installs it."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: make test-torch")
    import torch

    return torch


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    """Worker processes shared by the tests."""
    with WorkerPool(2) as workers:
        yield workers


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
