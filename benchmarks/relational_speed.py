"""Cost of the relational engine on one core: seconds per epoch with and without slope search, memory, growth with the steps.

TwoMoons 2–20–2 (100 points, one step per epoch) and Breast Cancer 30–20–2 (369 rows, batches of 100, four steps per epoch),
both at ε = 0.01 (Breast Cancer in units of standard deviations). `interval` runs beside it. Cost should not grow with the number
of steps once the symbol budget is reached: the last lines compare quarters of a longer run.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import resource

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from mibp_cert import Dataset, LInf, Network, Training, two_moons
from mibp_cert.engines import RelationalSettings
from mibp_cert.engines.base import Box, Engine
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational.engine import RelationalEngine
from mibp_cert.nets import Plan


def breast_cancer() -> Dataset:
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))[:369]
    return Dataset.of(StandardScaler().fit_transform(x)[order], y[order])


def seconds(engine: Engine, network: Network, data: Dataset, epochs: int, batch: int) -> list[float]:
    """Seconds of every step."""
    training = Training(epochs=epochs, batch_size=batch, seed=0)
    threat, box, spent = LInf(0.01).bind(data), Box.point(network.initialise(0)), []
    for step in Plan.of(network, training, data, network.initialise(training.seed)).steps:
        box, report = engine.advance(box, step, threat)
        spent.append(report.seconds)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--long", type=int, default=60, help="steps of the longer run")
    a = parser.parse_args()
    moons, cancer = two_moons(0).train, breast_cancer()
    print(f"one core, ε = 0.01, lr 0.1, seed 0, {a.epochs} epochs")
    print("data            engine               first epoch   mean of the others   mean of all   peak GB so far")
    for name, data, hidden, batch in (
        ("two-moons", moons, [2, 20, 2], 100),
        ("breast-cancer", cancer, [30, 20, 2], 100),
    ):
        for label, engine in (
            ("interval", IntervalEngine()),
            ("relational", RelationalEngine(RelationalSettings(search=0))),
            ("relational, search", RelationalEngine()),
        ):
            spent = seconds(engine, Network.mlp(hidden), data, a.epochs, batch)
            per = np.reshape(spent, (a.epochs, -1)).sum(axis=1)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(
                f"{name:15s} {label:20s} {per[0]:11.3f} {per[1:].mean():20.3f} {per.mean():13.3f} {peak:16.2f}",
                flush=True,
            )
    spent = seconds(RelationalEngine(RelationalSettings(search=0)), Network.mlp([2, 20, 2]), moons, a.long, 100)
    quarters = [float(np.mean(part)) for part in np.array_split(spent, 4)]
    print(
        f"two-moons, {a.long} steps without search, seconds per step by quarter: {' '.join(f'{q:.4f}' for q in quarters)}"
    )


if __name__ == "__main__":
    main()
