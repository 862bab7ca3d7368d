"""The paper's tables about cost: branches, width, depth, runtime. Wall-clock on this machine, beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mibp_cert.certify import CertifiedRun
from mibp_cert.data import two_moons
from mibp_cert.doors import certify_training
from mibp_cert.engines import SolverSettings
from mibp_cert.nets import Network, Training
from mibp_cert.studies.reproduce.paper import BRANCHES, DEPTH, RUNTIME, WIDTH
from mibp_cert.studies.reproduce.runner import Options
from mibp_cert.threats import LInf

Record = dict[str, Any]


def _exact(
    sizes: list[int], eps: float, epochs: int, options: Options, *, batch: int = 100, rows: int = 100
) -> CertifiedRun:
    """The exact step on TwoMoons, without test points."""
    data = two_moons(0, sizes=(rows, 10, 10)) if rows != 100 else two_moons(0)
    training = Training(epochs=epochs, batch_size=batch, seed=0, batch_mode="subsample")
    settings = SolverSettings(seconds_per_step=options.seconds_per_step)
    return certify_training(Network.mlp([2, *sizes, 2]), data.train, LInf(eps), training, "mibp", solver=settings)


def _cost(run: CertifiedRun) -> Record:
    gap = max((record.gap_max or 0.0) for record in run.history)
    return {
        "seconds": float(np.mean([record.seconds for record in run.history])),
        "nodes": run.nodes,
        "programs": run.programs,
        "fallbacks": run.fallbacks,
        "gap_percent": 100.0 * gap if np.isfinite(gap) else None,
    }


def branches(options: Options, hear: Callable[[str], None]) -> list[Record]:
    """Nodes explored in the first two iterations; batches of 10 are drawn from 20 rows, so that an epoch has two of them."""
    records = []
    for (batch, eps), paper in BRANCHES.items():
        hear(f"branches, batch {batch}, eps {eps:g}")
        small = batch == 10
        run = _exact([20], eps, 1 if small else 2, options, batch=batch, rows=20 if small else 100)
        records.append({"table": "branches", "cell": f"batch {batch}, eps {eps:g}", "paper": paper, **_cost(run)})
    return records


def width(options: Options, hear: Callable[[str], None]) -> list[Record]:
    """Seconds for one epoch, by width of the hidden layer."""
    records = []
    for units, paper in WIDTH.items():
        hear(f"width {units}")
        records.append(
            {"table": "width", "cell": f"2 x {units}", "paper": paper, **_cost(_exact([units], 0.01, 1, options))}
        )
    return records


def depth(options: Options, hear: Callable[[str], None]) -> list[Record]:
    """Seconds for one epoch, by number of layers of width 5."""
    records = []
    for layers, paper in DEPTH.items():
        hear(f"depth {layers}")
        run = _exact([5] * (layers - 1), 0.01, 1, options)
        records.append({"table": "depth", "cell": f"{layers} x 5", "paper": paper, **_cost(run)})
    return records


def runtime(options: Options, hear: Callable[[str], None]) -> list[Record]:
    """Seconds per epoch, mean of the first five, 2-20-2."""
    records = []
    for eps, paper in RUNTIME.items():
        hear(f"runtime, eps {eps:g}")
        records.append(
            {"table": "runtime", "cell": f"eps {eps:g}", "paper": paper, **_cost(_exact([20], eps, 5, options))}
        )
    return records


TIMINGS: dict[str, Callable[[Options, Callable[[str], None]], list[Record]]] = {
    "branches": branches,
    "width": width,
    "depth": depth,
    "runtime": runtime,
}
