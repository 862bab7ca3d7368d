"""Nodes explored in the first two iterations, for two batch sizes and two radii, beside the paper's table.

The paper counts Gurobi's branches; these are SCIP's nodes over all 204 programs of each step. A program that the pre-analysis
leaves without unknown gates needs no node at all.
"""

from __future__ import annotations

import argparse

from mibp_cert import LInf, Network, SolverSettings, Training, certify_training, two_moons

PAPER = {(10, 0.01): 4, (10, 0.1): 36, (100, 0.01): 116, (100, 0.1): 174552}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds-per-step", type=float, default=120.0)
    arguments = parser.parse_args()
    data, network = two_moons(arguments.seed), Network.mlp([2, 20, 2])
    print(f"TwoMoons, 2–20–2, margin hinge, lr 0.1, first two iterations, seed {arguments.seed}, SCIP, gap 1 %,")
    print(f"{arguments.seconds_per_step:g} s per step at most")
    print("batch    eps   programs    nodes   paper's branches   seconds   largest gap %   fallbacks")
    for batch_size, eps in PAPER:
        epochs = 1 if batch_size == 10 else 2
        training = Training(epochs=epochs, batch_size=batch_size, seed=arguments.seed, batch_mode="subsample")
        # Two iterations only: a batch of 10 has ten steps in an epoch, so the data are cut to two batches.
        rows = 2 * batch_size if batch_size == 10 else 100
        cut = two_moons(arguments.seed, sizes=(rows, 10, 10)) if rows != 100 else data
        settings = SolverSettings(seconds_per_step=arguments.seconds_per_step)
        run = certify_training(network, cut.train, LInf(eps), training, "mibp", solver=settings)
        gap = max(record.gap_max or 0.0 for record in run.history)
        seconds = sum(record.seconds for record in run.history)
        print(
            f"{batch_size:5d} {eps:6.2f} {run.programs:10d} {run.nodes:8d} {PAPER[batch_size, eps]:18d} {seconds:9.1f} "
            f"{100 * gap:15.3f} {run.fallbacks:11d}",
            flush=True,
        )


if __name__ == "__main__":
    main()
