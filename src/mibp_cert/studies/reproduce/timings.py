"""The paper's tables about cost: branches, width, depth, runtime. Wall-clock on this machine, beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mibp_cert.data import two_moons
from mibp_cert.doors import certify_training
from mibp_cert.engines import SolverSettings
from mibp_cert.nets import Network, Training
from mibp_cert.studies.reproduce.paper import BRANCHES, DEPTH, RUNTIME, WIDTH
from mibp_cert.studies.reproduce.runner import Options
from mibp_cert.threats import LInf


@dataclass(frozen=True)
class Case:
    """One row of a table: what is said while it runs, its name, the paper's figure, and the training."""

    words: str
    cell: str
    paper: float
    hidden: tuple[int, ...]
    eps: float = 0.01
    epochs: int = 1
    batch_size: int = 100
    rows: int = 100


def branches() -> Iterator[Case]:
    """Nodes explored in the first two iterations; batches of 10 are drawn from 20 rows, so that an epoch has two of them."""
    for (batch, eps), paper in BRANCHES.items():
        cell = f"batch {batch}, eps {eps:g}"
        epochs, rows = (1, 20) if batch == 10 else (2, 100)
        yield Case(f"branches, {cell}", cell, paper, (20,), eps, epochs, batch, rows)


def width() -> Iterator[Case]:
    """Seconds for one epoch, by width of the hidden layer."""
    for units, paper in WIDTH.items():
        yield Case(f"width {units}", f"2 x {units}", paper, (units,))


def depth() -> Iterator[Case]:
    """Seconds for one epoch, by number of layers of width 5."""
    for layers, paper in DEPTH.items():
        yield Case(f"depth {layers}", f"{layers} x 5", paper, (5,) * (layers - 1))


def runtime() -> Iterator[Case]:
    """Seconds per epoch, mean of the first five, 2-20-2."""
    for eps, paper in RUNTIME.items():
        yield Case(f"runtime, eps {eps:g}", f"eps {eps:g}", paper, (20,), eps, epochs=5)


TIMINGS = {"branches": branches, "width": width, "depth": depth, "runtime": runtime}


def run_timing(name: str, options: Options, hear: Callable[[str], None]) -> list[dict[str, Any]]:
    """One record for every case of a table."""
    records = []
    for case in TIMINGS[name]():
        hear(case.words)
        records.append({"table": name, "cell": case.cell, "paper": case.paper, **_cost(case, options)})
    return records


def _cost(case: Case, options: Options) -> dict[str, Any]:
    """What the exact step on TwoMoons costs, without test points."""
    data = two_moons(0) if case.rows == 100 else two_moons(0, sizes=(case.rows, 10, 10))
    network = Network.mlp([2, *case.hidden, 2])
    training = Training(case.epochs, case.batch_size, batch_mode="subsample")
    settings = SolverSettings(seconds_per_step=options.seconds_per_step)
    run = certify_training(network, data.train, LInf(case.eps), training, "mibp", solver=settings)
    gap = max((record.gap_max or 0.0) for record in run.history)
    return {
        "seconds": float(np.mean([record.seconds for record in run.history])),
        "nodes": run.nodes,
        "programs": run.programs,
        "fallbacks": run.fallbacks,
        "gap_percent": 100.0 * gap if np.isfinite(gap) else None,
    }
