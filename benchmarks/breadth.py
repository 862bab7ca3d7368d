"""Beyond hinge networks: cross-entropy on TwoMoons, a convolution on digits, linear and logistic models on Breast Cancer.

Each line: clean, attacked and certified accuracy (mean over the seeds), the largest distance attacked − certified of a seed, mean
radius, steps, and seconds per epoch. The same seeds for all engines; settings are printed.
"""

from __future__ import annotations

import argparse

import numpy as np

from mibp_cert import Conv2d, Flatten, Linear, LInf, Network, ReLU, Split, Training, certify_training, two_moons
from mibp_cert.data import breast_cancer, digits

HEADER = (
    f"{'':46s} {'clean':>6s} {'attack':>6s} {'certif.':>7s} {'gap':>5s} {'radius':>9s} {'steps':>6s} {'s/epoch':>8s}"
)


def line(
    label: str, network: Network, data: list[Split], eps: float, training: list[Training], engine: str, select: str
) -> None:
    rows = []
    for split, settings in zip(data, training, strict=True):
        run = certify_training(network, split, LInf(eps), settings, engine, select=select)
        assert run.test is not None
        attacked, certified = 100 * (run.attacked_accuracy or 0), 100 * run.test.certified_accuracy(split.test.y)
        seconds = float(np.mean([record.seconds for record in run.history]))
        clean = 100 * (run.nominal_accuracy or 0)
        rows.append((clean, attacked, certified, attacked - certified, run.bounds.radius.mean(), run.steps, seconds))
    mean, gap = np.mean(rows, axis=0), np.max(rows, axis=0)[3]
    print(
        f"{label:46s} {mean[0]:6.1f} {mean[1]:6.1f} {mean[2]:7.1f} {gap:5.1f} {mean[4]:9.2e} {mean[5]:6.1f} {mean[6]:8.3f}",
        flush=True,
    )


def moons(seeds: int, engines: list[str]) -> None:
    data, network = [two_moons(seed) for seed in range(seeds)], Network.mlp([2, 20, 1])
    print(f"TwoMoons, 2–20–1, cross-entropy, 100 points, seeds 0–{seeds - 1}")
    for select, epochs, rate, amounts in (
        ("last", 10, 0.5, (0.01, 0.02)),
        ("best-validation", 16, 1.0, (0.01, 0.02, 0.05, 0.1)),
    ):
        training = [Training(epochs=epochs, learning_rate=rate, loss="cross-entropy", seed=s) for s in range(seeds)]
        for eps in amounts:
            for engine in engines:
                line(f"{select}, lr {rate:g}, eps {eps:g}, {engine}", network, data, eps, training, engine, select)


def images(seeds: int) -> None:
    network = Network((Conv2d(1, 8, 4, stride=4), ReLU(), Flatten(), Linear(32, 1)), (1, 8, 8))
    data = [digits(seed) for seed in range(seeds)]
    size = network.layout.size
    print(
        f"digits 0 and 1, 8×8, 200 rows in batches of 100, {size} parameters, eps 0.01, 5 epochs, seeds 0–{seeds - 1}"
    )
    for rate in (0.1, 0.2):
        training = [Training(epochs=5, learning_rate=rate, loss="cross-entropy", seed=s) for s in range(seeds)]
        for select in ("last", "best-validation"):
            line(f"{select}, lr {rate:g}, relational", network, data, 0.01, training, "relational", select)


def linear(seeds: int, engines: list[str]) -> None:
    data, network = [breast_cancer(seed) for seed in range(seeds)], Network.mlp([30, 1])
    print(f"Breast Cancer, 369 rows, full batch, no hidden layer, eps 0.05, 50 epochs, seeds 0–{seeds - 1}")
    for loss, rate in (("cross-entropy", 0.02), ("cross-entropy", 0.1), ("hinge", 0.01)):
        training = [Training(epochs=50, batch_size=369, learning_rate=rate, loss=loss, seed=s) for s in range(seeds)]
        for engine in engines:
            line(f"last, {loss}, lr {rate:g}, {engine}", network, data, 0.05, training, engine, "last")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--engines", nargs="+", default=["interval", "crown", "relational"])
    parser.add_argument("--only", choices=["moons", "images", "linear"])
    a = parser.parse_args()
    print(HEADER)
    if a.only in (None, "moons"):
        moons(a.seeds, a.engines)
    if a.only in (None, "linear"):
        linear(min(a.seeds, 3), a.engines)
    if a.only in (None, "images"):
        images(min(a.seeds, 3))


if __name__ == "__main__":
    main()
