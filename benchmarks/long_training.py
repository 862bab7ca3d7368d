"""Long training with the relational engine: where it stands every few epochs, and what the radius consists of.

`data` is the first order in the data's own noise, `gates` what undecided gates cost, `remainders` everything else: second-order
terms, relu bands, and rounding. The share of rounding alone is shown by the same run at ε = 0.
"""

from __future__ import annotations

import argparse

import numpy as np

from mibp_cert import LInf, Network, RelationalSet, Training, two_moons
from mibp_cert.certify import predict
from mibp_cert.certify.attack import attack
from mibp_cert.certify.predict import nominal_classes
from mibp_cert.engines import Box, Inputs
from mibp_cert.engines.relational.engine import RelationalEngine
from mibp_cert.nets import Plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--eps", type=float, default=0.001)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logits", type=int, default=2)
    a = parser.parse_args()
    data, network = two_moons(a.seed), Network.mlp([2, 20, a.logits])
    steps = Plan.of(network, Training(epochs=a.epochs, seed=a.seed), data.train, network.initialise(a.seed)).steps
    threat, engine, theta = LInf(a.eps).bind(data.train), RelationalEngine(), network.initialise(a.seed)
    exact_data, box, plain, trained = LInf(0.0).bind(data.train), Box.point(theta), Box.point(theta), theta
    print(f"TwoMoons, 2–20–{a.logits}, hinge, lr 0.1, ε = {a.eps}, seed {a.seed}")
    print("epoch  seconds  mean radius       data      gates  remainders   rounding  clean %  attacked %  certified %")
    seconds = 0.0
    for number, step in enumerate(steps, start=1):
        box, report = engine.advance(box, step, threat)
        plain, _ = engine.advance(plain, step, exact_data)
        trained = step.train(trained, data.train.x[step.rows], data.train.one_hot[step.rows])
        seconds += report.seconds
        if number % a.every == 0:
            assert isinstance(box, RelationalSet)
            nominal = nominal_classes(network, trained, data.test.x)
            found = attack(network, steps[:number], theta, threat, Inputs(data.test.x), nominal, box)
            sizes = np.abs(box.linear).sum(axis=0) / len(box.middle)
            first_order, later = sizes[: box.data].sum(), sizes[box.data :]
            gates, remainders = later[box.gates].sum(), later[~box.gates].sum() + box.slack.mean()
            certified = predict(network, box, Inputs(data.test.x), engine).certified_accuracy(data.test.y)
            print(
                f"{number:5d} {seconds / number:8.3f} {box.radius.mean():12.5f} {first_order:10.5f} {gates:10.5f} "
                f"{remainders:11.5f} {plain.radius.mean():10.1e} {100 * np.mean(nominal == data.test.y):8.1f} "
                f"{100 * found.attacked_accuracy(nominal, data.test.y):11.1f} {100 * certified:12.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
