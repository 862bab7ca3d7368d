"""What runs take, beside what was forecast: seconds of one core, and memory beside the data, of fitted models and of steps.

python benchmarks/forecast.py [--most 100000]
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

import mibp_cert as mc
from mibp_cert.certify.forecast import forecast, gib
from mibp_cert.data import load
from mibp_cert.engines import engine_named
from mibp_cert.fitted import DualEngine


def made(rows: int, columns: int, classes: int = 2) -> mc.Split:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows + 500, columns))
    score = x @ rng.normal(size=columns) + 2.0 * rng.normal(size=len(x))
    y = np.searchsorted(np.quantile(score, np.arange(1, classes) / classes), score)
    return mc.Split("made", mc.Dataset.of(x[:rows], y[:rows]), test=mc.Dataset.of(x[rows:], y[rows:]))


def fitted(name: str, data: mc.Split, eps: float, c: float) -> None:
    model = mc.Fitted(C=c)
    assert data.test is not None
    told = forecast(model.network(data.train), data.train, mc.LInf(eps), model, DualEngine, len(data.test))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    mc.certify_fit(data, mc.LInf(eps), model)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    show(name, told.seconds, time.process_time() - start, told.bytes, (after - before) * 1024)


def steps(name: str, data: mc.Split, training: mc.Training) -> None:
    network = mc.Network.mlp([data.train.features, 1])
    told = forecast(network, data.train, mc.LInf(0.01), training, engine_named("relational"))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    mc.certify_training(network, data, mc.LInf(0.01), training, attacked=False)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    show(name, told.seconds, time.process_time() - start, told.bytes, (after - before) * 1024)


def show(name: str, seconds: float, took: float, size: int, used: int) -> None:
    print(
        f"{name:34s} {seconds:8.1f} s, took {took:8.1f} s   {gib(size):>9s}, used {gib(max(1, used)):>9s}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=100_000)
    most = parser.parse_args().most
    fitted("two-moons", load("two-moons", 0), 0.05, 1.0)
    fitted("breast-cancer", load("breast-cancer", 0), 0.005, 0.3)
    fitted("iris, softmax", load("iris", 0), 0.01, 1.0)
    fitted("500 × 20, three classes", made(500, 20, 3), 0.002, 0.1)
    for rows in (500, 1000, 5000, 20_000, 100_000, 1_000_000):
        if rows <= most:
            fitted(f"{rows} × 20", made(rows, 20), 0.002, 1.0)
    for rows in (500, 2000, 5000):
        training = mc.Training(epochs=5, learning_rate=0.2, loss="cross-entropy", batch_size=min(rows, 2000))
        steps(f"{rows} × 10, 5 epochs, relational", made(rows, 10), training)


if __name__ == "__main__":
    main()
