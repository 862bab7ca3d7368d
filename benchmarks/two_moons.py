"""The exact step on TwoMoons, epoch by epoch: time, nodes, unstable gates and relus, honest gap, radius.

The paper's setting: 2–20–2 network (102 parameters), margin hinge, 100 points, lr 0.1, ε = 0.01. `interval` runs beside it.
"""

from __future__ import annotations

import argparse

from mibp_cert import LInf, Network, SolverSettings, Training, certify_training, two_moons
from mibp_cert.certify import Callbacks, EpochRecord

PAPER_SECONDS = 156.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--eps", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--solver", default="scip")
    parser.add_argument(
        "--seconds-per-step", type=float, default=120.0, help="budget of one step; felt in late epochs only"
    )
    arguments = parser.parse_args()
    data, network = two_moons(arguments.seed), Network.mlp([2, 20, 2])
    training = Training(epochs=arguments.epochs, seed=arguments.seed)
    print(f"TwoMoons, 2–20–2, margin hinge, 100 points, lr 0.1, ε = {arguments.eps}, seed {arguments.seed},")
    print(
        f"solver {arguments.solver}, gap asked for 1 % of each radius, {arguments.seconds_per_step:g} s per step at most"
    )
    plain = certify_training(network, data, LInf(arguments.eps), training, "interval")
    print(
        "epoch  seconds  programs   nodes  gates  relus    gap %  fallb.  mean radius  max radius  interval's mean  cert. valid."
    )
    seconds = []

    def show(record: EpochRecord) -> None:
        beside = plain.history[record.epoch - 1]
        seconds.append(record.seconds)
        print(
            f"{record.epoch:5d} {record.seconds:8.2f} {record.programs:9d} {record.nodes:7d} {record.unstable_gates:6d} "
            f"{record.unstable_relus:6d} {100 * (record.gap_max or 0):8.3f} {record.fallbacks:7d} {record.radius_mean:12.5f} "
            f"{record.radius_max:11.5f} {beside.radius_mean:16.5f} {100 * (record.validation_certified or 0):13.1f}",
            flush=True,
        )

    settings = SolverSettings(arguments.solver, seconds_per_step=arguments.seconds_per_step)
    run = certify_training(
        network, data, LInf(arguments.eps), training, "mibp", solver=settings, callbacks=Callbacks(on_epoch=show)
    )
    first = seconds[:5]
    mean = sum(first) / len(first)
    print(
        f"mean of the first {len(first)} epochs: {mean:.2f} s, {PAPER_SECONDS / mean:.0f} times less than the paper's 156 s"
    )
    for name, result in (("interval", plain), ("mibp", run)):
        assert result.test is not None
        print(
            f"{name}: test clean {100 * (result.nominal_accuracy or 0):.1f} %, "
            f"certified {100 * result.test.certified_accuracy(data.test.y):.1f} % ({result.prediction} prediction)"
        )


if __name__ == "__main__":
    main()
