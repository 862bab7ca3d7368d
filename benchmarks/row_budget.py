"""A budget of one row on TwoMoons: bounds beside an enumeration of all single-row corner perturbations, epoch by epoch.

`split` bounds each choice of the row on its own, `joint` keeps one set with slack that belongs to rows, `free` has no budget.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np

from mibp_cert import Budget, LInf, Network, RelationalSettings, Training, two_moons
from mibp_cert.engines import Box
from mibp_cert.engines.relational.engine import RelationalEngine
from mibp_cert.nets import Plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--eps", type=float, default=0.2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--search", type=int, default=3)
    a = parser.parse_args()
    data, network = two_moons(a.seed).train, Network.mlp([2, 20, 2])
    theta = network.initialise(a.seed)
    moves = [(i, np.array(corner)) for i in range(len(data)) for corner in product((-a.eps, a.eps), repeat=2)]
    x = np.stack([data.x + np.eye(len(data))[i][:, None] * corner for i, corner in moves])
    y = np.broadcast_to(data.one_hot, (len(x), *data.one_hot.shape))
    models = np.broadcast_to(theta, (len(x), len(theta)))
    threat, free = Budget(LInf(a.eps), rows=1).bind(data), LInf(a.eps).bind(data)
    engines = {
        "split": RelationalEngine(RelationalSettings(search=a.search)),
        "joint": RelationalEngine(RelationalSettings(search=a.search, cases=0)),
        "free": RelationalEngine(RelationalSettings(search=a.search)),
    }
    boxes: dict[str, Box] = dict.fromkeys(engines, Box.point(theta))
    print(f"TwoMoons, 2–20–2, hinge, lr 0.1, one row within {a.eps:g}, seed {a.seed}, slope search {a.search}")
    print("epoch  enumerated     split  ratio     s     joint  ratio     s      free")
    plan = Plan.of(network, Training(epochs=a.epochs, seed=a.seed), data, network.initialise(a.seed))
    for epoch, step in enumerate(plan.steps, start=1):
        spent = {}
        for name, engine in engines.items():
            boxes[name], report = engine.advance(boxes[name], step, free if name == "free" else threat)
            spent[name] = report.seconds
        parts = [slice(i, i + 64) for i in range(0, len(x), 64)]
        models = np.concatenate([step.train(models[p], x[p][:, step.rows], y[p][:, step.rows]) for p in parts])
        inner = Box(models.min(axis=0), models.max(axis=0))
        assert inner.within(boxes["split"])
        assert inner.within(boxes["joint"])
        base = inner.radius.mean()
        shown = {name: box.radius.mean() for name, box in boxes.items()}
        print(
            f"{epoch:5d} {base:11.6f} {shown['split']:9.6f} {shown['split'] / base:6.2f} {spent['split']:5.1f} "
            f"{shown['joint']:9.6f} {shown['joint'] / base:6.2f} {spent['joint']:5.2f} {shown['free']:9.5f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
