"""Models at their minimum: certified beside attacked beside clean, and the cost beside scikit-learn's own fit in the same run.

    python benchmarks/fitted.py [--cases moons,features,cancer,iris,rows,size] [--seeds 5]

Every figure is of a proven start; "unproven" where none could be proven.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

import mibp_cert as mc
from mibp_cert.data import load
from mibp_cert.errors import Diverged

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
    "rows": [
        ("two-moons", mc.LabelFlips(1), mc.Fitted(C=1.0)),
        ("two-moons", mc.LabelFlips(3), mc.Fitted(C=1.0)),
        ("two-moons", mc.Budget(mc.LInf(0.2), rows=3), mc.Fitted(C=1.0)),
        ("two-moons", mc.Removed(5), mc.Fitted(C=1.0)),
        ("two-moons", mc.Added(1, {}), mc.Fitted(C=1.0)),
    ],
}


def measure(name: str, threat: mc.Threat, model: mc.Fitted, seeds: int) -> str:
    """Means over seeds, in per cent, and seconds of one run without its attack."""
    found, seconds = [], []
    for seed in range(seeds):
        data = load(name, seed)
        try:
            start = time.perf_counter()
            mc.certify_fit(data, threat, model, attacked=False)
            seconds.append(time.perf_counter() - start)
            run = mc.certify_fit(data, threat, model)
        except Diverged:
            found.append((np.nan,) * 4)
            continue
        row = (run.certified_test_accuracy, run.attacked_accuracy, run.nominal_accuracy, run.majority_accuracy)
        found.append(tuple(np.nan if value is None else value for value in row))
    proven = sum(1 for row in found if np.isfinite(row[0]))
    means = [f"{100 * mean:6.1f}" for mean in np.nanmean(np.array(found), axis=0)] if proven else ["     –"] * 4
    cost = f"{np.mean(seconds):8.2f}" if seconds else "       –"
    return f"{name:14s} {in_short(threat):28s} C={model.C:<6g} {proven} of {seeds} proven  {' '.join(means)} {cost}"


def in_short(threat: mc.Threat) -> str:
    return mc.in_words(threat)[:28]


def size(eps: float = 0.002) -> None:
    """Cost by the number of rows: `make_classification`, standardised, C = 1."""
    for rows, columns in ((500, 10), (1000, 10), (2000, 10)):
        x, y = make_classification(rows + 1000, columns, random_state=0)
        x = (x - x.mean(axis=0)) / x.std(axis=0)
        split = mc.Split("made", mc.Dataset.of(x[:rows], y[:rows]), test=mc.Dataset.of(x[rows:], y[rows:]))
        start = time.perf_counter()
        LogisticRegression(C=1.0, tol=1e-10, max_iter=10000).fit(x[:rows], y[:rows])
        own = time.perf_counter() - start
        start = time.perf_counter()
        run = mc.certify_fit(split, mc.LInf(eps), mc.Fitted(C=1.0), attacked=False)
        print(
            f"{rows:7d} × {columns}: certified {100 * (run.certified_test_accuracy or 0):.1f}, clean "
            f"{100 * (run.nominal_accuracy or 0):.1f}, {time.perf_counter() - start:.1f} s (scikit-learn's fit {own:.3f} s)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join([*CASES, "size"]))
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    print(f"{'data':14s} {'what may be wrong':28s} {'':8s} {'':13s} {'certified attacked clean majority  seconds':s}")
    for name in given.cases.split(","):
        if name == "size":
            size()
            continue
        for data, threat, model in CASES[name]:
            print(measure(data, threat, model, given.seeds), flush=True)


if __name__ == "__main__":
    main()
