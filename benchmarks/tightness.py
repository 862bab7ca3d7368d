"""All engines side by side on TwoMoons, with the attack: radius, certified, attacked, seconds per epoch.

Paired seeds: every engine sees the same data, initial weights and batches. Network 2–20–2 with the margin hinge, lr 0.1,
PyTorch-style initialisation (`--logits 1` for one logit, `--loss cross-entropy` for another loss). `mibp` runs under a time
budget per step, where asked for.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np

from mibp_cert import LInf, Network, RelationalSettings, SolverSettings, Training, certify_training, two_moons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 … n−1")
    parser.add_argument("--eps", type=float, nargs="+", default=[0.001, 0.01, 0.02, 0.05])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--select", default="last", help="last, or best-validation")
    parser.add_argument("--logits", type=int, default=2)
    parser.add_argument("--loss", default="hinge")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument(
        "--engines", nargs="+", default=["interval", "crown", "relational"], help="interval, crown, relational, mibp"
    )
    parser.add_argument("--search", type=int, default=3, help="slopes tried in each direction per relational step")
    parser.add_argument("--seconds-per-step", type=float, default=20.0, help="time budget of mibp")
    parser.add_argument("--predict", default=None)
    a = parser.parse_args()
    print(f"TwoMoons, 2–20–{a.logits}, {a.loss}, 100 points, lr {a.learning_rate:g}, {a.epochs} epochs ({a.select}),")
    print(f"seeds 0–{a.seeds - 1}, slope search {a.search}, mibp within {a.seconds_per_step:g} s per step")
    header = "   eps  engine        mean radius  max radius  inner/outer   clean %  attacked %"
    print(f"{header}  certified %     ± std    s/epoch   epochs")
    for eps in a.eps:
        rows: dict[str, list[tuple[float, ...]]] = defaultdict(list)
        radii: dict[str, list[list[float]]] = defaultdict(list)
        for seed in range(a.seeds):
            data, network = two_moons(seed), Network.mlp([2, 20, a.logits])
            for engine in a.engines:
                run = certify_training(
                    network,
                    data,
                    LInf(eps),
                    Training(epochs=a.epochs, learning_rate=a.learning_rate, loss=a.loss, seed=seed),
                    engine,
                    select=a.select,
                    prediction=a.predict,
                    solver=SolverSettings(seconds_per_step=a.seconds_per_step),
                    relational=RelationalSettings(search=a.search),
                )
                assert run.test is not None
                assert run.attack is not None
                radius = run.bounds.radius
                radii[engine].append([record.radius_mean for record in run.history])
                rows[engine].append(
                    (
                        radius.mean(),
                        radius.max(),
                        run.attack.inner().radius.mean() / radius.mean(),
                        100 * (run.nominal_accuracy or 0),
                        100 * (run.attacked_accuracy or 0),
                        100 * run.test.certified_accuracy(data.test.y),
                        float(np.mean([record.seconds for record in run.history])),
                        run.steps,
                    )
                )
        for engine, values in rows.items():
            mean, std = np.mean(values, axis=0), np.std(values, axis=0)
            print(
                f"{eps:6.3f}  {engine:12s} {mean[0]:12.5f} {mean[1]:11.5f} {mean[2]:12.2f} {mean[3]:9.1f} {mean[4]:11.1f} "
                f"{mean[5]:12.1f} {std[5]:9.1f} {mean[6]:10.4f} {mean[7]:8.1f}",
                flush=True,
            )
        if {"interval", "relational"} <= set(rows):
            pairs = np.array(rows["relational"])[:, [0, 5]], np.array(rows["interval"])[:, [0, 5]]
            print(
                f"        relational/interval: mean radius {np.mean(pairs[0][:, 0]) / np.mean(pairs[1][:, 0]):.3f}, "
                f"certified {np.mean(pairs[0][:, 1] - pairs[1][:, 1]):+.1f} points, "
                f"worst seed {np.min(pairs[0][:, 1] - pairs[1][:, 1]):+.1f}"
            )
        if {"mibp", "relational"} <= set(rows):
            ratio = np.mean(radii["relational"], axis=0) / np.mean(radii["mibp"], axis=0)
            tighter = [int(i) + 1 for i in np.flatnonzero(ratio > 1)]
            print(f"        relational/mibp, mean radius by epoch: {' '.join(f'{r:.2f}' for r in ratio)}")
            print(f"        epochs at which mibp is the tighter one: {tighter or 'none'}")


if __name__ == "__main__":
    main()
