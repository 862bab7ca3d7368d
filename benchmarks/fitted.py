"""Models at their minimum: certified beside attacked beside clean, and the cost beside scikit-learn's own fit in the same run.

    python benchmarks/fitted.py [--only moons,features,cancer,iris,classes,rows,speed,doubt,limits] [--seeds 5]
                                [--engine dual] [--most 100000]

Every figure is of a proven start; "unproven" where none could be proven.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

import mibp_cert as mc
from mibp_cert.data import load
from mibp_cert.doors import attack_fit
from mibp_cert.errors import Diverged, UserError
from mibp_cert.fitted.engine import table_problem
from mibp_cert.fitted.model import FitStep

CASES: dict[str, list[tuple[str, mc.Threat, mc.Fitted]]] = {
    "moons": [
        *[("two-moons", mc.LInf(eps), mc.Fitted(C=1.0)) for eps in (0.01, 0.02, 0.05, 0.1)],
        ("two-moons", mc.LInf(0.1), mc.Fitted(C=0.1)),
    ],
    "features": [
        ("two-moons", mc.LInf(eps), mc.Fitted(C=c, features=mc.RandomFeatures(30, scale=2.0)))
        for eps, c in ((0.001, 100.0), (0.01, 10.0), (0.02, 1.0), (0.05, 0.1), (0.05, 0.03))
    ],
    "cancer": [
        ("breast-cancer", mc.LInf(eps), mc.Fitted(C=c))
        for eps, c in ((0.01, 0.02), (0.01, 0.3), (0.005, 1.0), (0.01, 1.0))
    ],
    "iris": [("iris2", mc.LInf(eps), mc.Fitted(C=0.02)) for eps in (0.1, 0.2, 0.3)],
    "classes": [
        ("iris", mc.LInf(eps), mc.Fitted(C=1.0, multi=multi))
        for multi in (None, "one-versus-rest")
        for eps in (0.01, 0.02)
    ],
    "rows": [
        ("two-moons", mc.LabelFlips(1), mc.Fitted(C=1.0)),
        ("two-moons", mc.LabelFlips(3), mc.Fitted(C=1.0)),
        ("two-moons", mc.Budget(mc.LInf(0.2), rows=3), mc.Fitted(C=1.0)),
        ("two-moons", mc.Removed(5), mc.Fitted(C=1.0)),
        ("breast-cancer", mc.LabelFlips(1), mc.Fitted(C=0.1)),
        ("breast-cancer", mc.LabelFlips(5), mc.Fitted(C=0.1)),
        ("two-moons", mc.Added(1, {}), mc.Fitted(C=1.0)),
    ],
}


def measure(name: str, threat: mc.Threat, model: mc.Fitted, seeds: int, engine: str) -> str:
    """Means over seeds, in per cent, and seconds of one run without its attack."""
    found, seconds = [], []
    for seed in range(seeds):
        data = load(name, seed)
        try:
            start = time.perf_counter()
            mc.certify_fit(data, threat, model, engine, attacked=False)
            seconds.append(time.perf_counter() - start)
            run = mc.certify_fit(data, threat, model, engine)
        except Diverged:
            found.append((np.nan,) * 4)
            continue
        row = (run.certified_test_accuracy, run.attacked_accuracy, run.nominal_accuracy, run.majority_accuracy)
        found.append(tuple(np.nan if value is None else value for value in row))
    proven = sum(1 for row in found if np.isfinite(row[0]))
    means = [f"{100 * mean:6.1f}" for mean in np.nanmean(np.array(found), axis=0)] if proven else ["     –"] * 4
    cost = f"{np.mean(seconds):8.2f}" if seconds else "       –"
    return f"{name:14s} {in_short(threat):40s} C={model.C:<6g} {proven} of {seeds} proven  {' '.join(means)} {cost}"


def in_short(threat: mc.Threat) -> str:
    return mc.in_words(threat)[:40]


SIZES = {500: 10, 2_000: 10, 5_000: 10, 20_000: 20, 100_000: 20, 1_000_000: 20}
"""Rows and columns of made data."""


def made(rows: int, columns: int, tests: int = 1000) -> mc.Split:
    """`make_classification`, standardised; none of its columns is a combination of others."""
    x, y = make_classification(rows + tests, columns, n_informative=columns // 2, n_redundant=0, random_state=0)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return mc.Split("made", mc.Dataset.of(x[:rows], y[:rows]), test=mc.Dataset.of(x[rows:], y[rows:]))


def peak() -> float:
    """Largest memory of this process so far, in GB; sizes must grow for it to say anything."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def shown(run: mc.CertifiedRun) -> str:
    found = run.certified_test_accuracy, run.attacked_accuracy, run.nominal_accuracy
    return " ".join("     –" if value is None else f"{100 * value:6.1f}" for value in found)


def speed(most: int, eps: float = 0.002) -> None:
    """Cost by the number of rows, C = 1: seconds of one process, without and with the attack; memory beside the data."""
    print(
        f"{'rows × columns':>16s} certified attacked clean  CPU s  (wall)  attack   GB  scikit-learn's fit  20 epochs"
    )
    for rows, columns in ((n, d) for n, d in SIZES.items() if n <= most):
        split = made(rows, columns)
        start = time.perf_counter()
        LogisticRegression(C=1.0, tol=1e-10, max_iter=10000).fit(split.train.x, split.train.y)
        own, before = time.perf_counter() - start, peak()
        marks = [(time.process_time(), time.perf_counter())]

        def hear(stage: str, marks: list[tuple[float, float]] = marks) -> None:
            if stage == "attacking":
                marks.append((time.process_time(), time.perf_counter()))

        try:
            run = mc.certify_fit(split, mc.LInf(eps), mc.Fitted(C=1.0), callbacks=mc.Callbacks(on_stage=hear))
        except Diverged:
            print(f"{rows:9d} × {columns:<4d} unproven", flush=True)
            continue
        marks.append((time.process_time(), time.perf_counter()))
        cpu, attack = marks[1][0] - marks[0][0], marks[2][0] - marks[1][0]
        print(
            f"{rows:9d} × {columns:<4d} {shown(run)} {cpu:9.2f} ({marks[1][1] - marks[0][1]:6.1f}) {attack:7.2f} "
            f"{peak() - before:5.2f} {own:10.2f}          {in_steps(split, eps)}",
            flush=True,
        )


def in_steps(split: mc.Split, eps: float) -> str:
    """The same model in 20 epochs of gradient descent, by the engine `relational`: certified, and seconds."""
    if len(split.train) > 500:
        return "–"
    network = mc.Network.mlp([split.train.features, 1])
    training = mc.Training(epochs=20, learning_rate=1.0, batch_size=len(split.train), loss="cross-entropy")
    start = time.process_time()
    try:
        run = mc.certify_training(network, split, mc.LInf(eps), training, attacked=False)
    except (Diverged, UserError):
        return "–"
    return f"{100 * (run.certified_test_accuracy or 0.0):.1f}, {time.process_time() - start:.1f} s"


def doubt(most: int) -> None:
    """The largest doubt whose start is proven (of a grid of factors 1.25), and what is certified and attacked there."""
    for rows, columns in ((n, d) for n, d in SIZES.items() if n <= most):
        split, eps, best = made(rows, columns), 0.002, "     –"
        try:
            while True:
                mc.certify_fit(split, mc.LInf(1.25 * eps), mc.Fitted(C=1.0), attacked=False)
                eps *= 1.25
        except Diverged:
            best = shown(mc.certify_fit(split, mc.LInf(eps), mc.Fitted(C=1.0)))
        print(f"{rows:9d} × {columns:<4d} proven up to eps {eps:.4f}: {best}", flush=True)


LIMITS: list[tuple[str, mc.Threat, mc.Fitted]] = [
    *[("breast-cancer", mc.LInf(eps), mc.Fitted(C=1.0)) for eps in (0.007, 0.008, 0.009, 0.01)],
    *[("breast-cancer", mc.LabelFlips(k), mc.Fitted(C=0.1)) for k in (2, 3, 5)],
    ("breast-cancer", mc.LabelFlips(5), mc.Fitted(C=0.01)),
]
"""Where bounds come to their end."""


def limits(engines: tuple[str, ...] = ("dual", "lp"), seed: int = 0) -> None:
    """One seed: certified to first order (which proves nothing), by each engine, and seconds, beside attacked and clean."""
    print(f"{'':55s} first order {' '.join(f'{name:>6s} (s)  ' for name in engines)} attacked  clean")
    for name, threat, model in LIMITS:
        data, told = load(name, seed), []
        for engine in engines:
            start, share = time.perf_counter(), "     –"
            try:
                run = mc.certify_fit(data, threat, model, engine, attacked=False)
                share = f"{100 * (run.certified_test_accuracy or 0.0):6.1f}"
            except Diverged:
                pass
            told.append(f"{share} ({time.perf_counter() - start:4.0f})")
        _, theta, found = attack_fit(data, threat, model)
        assert data.test is not None
        rows, y = np.column_stack([data.test.x, np.ones(len(data.test))]), data.test.y
        network = model.network(data.train)
        step = model.plan(network, data.train, np.zeros(network.layout.size)).steps[0]
        assert isinstance(step, FitStep)
        problem = table_problem(step, threat.bind(data.train), np.zeros(0))
        signs = np.where(y == 1, 1.0, -1.0)
        least = -problem.upper(problem.point(), -signs[:, None] * rows)
        nominal = (rows @ theta > 0).astype(int)
        print(
            f"{name:14s} {in_short(threat):32s} C={model.C:<5g} {100 * np.mean(least > 0):11.1f} {' '.join(told)} "
            f"{100 * found.attacked_accuracy(nominal, y):8.1f} {100 * np.mean(nominal == y):6.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", "--cases", dest="cases", default=",".join([*CASES, "speed", "doubt"]))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--engine", default="dual", help="dual, or lp (with --only)")
    parser.add_argument("--most", type=int, default=100_000, help="rows, for speed and doubt")
    given = parser.parse_args()
    print(f"{'data':14s} {'what may be wrong':40s} {'':8s} {'':13s} {'certified attacked clean majority  seconds':s}")
    for name in given.cases.split(","):
        if name in ("speed", "doubt"):
            {"speed": speed, "doubt": doubt}[name](given.most)
            continue
        if name == "limits":
            limits()
            continue
        for data, threat, model in CASES[name]:
            print(measure(data, threat, model, given.seeds, given.engine), flush=True)


if __name__ == "__main__":
    main()
