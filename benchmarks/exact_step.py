"""The paper's listing handed to SCIP unchanged, against the encoder of this package, in one run.

Same solver, same six objectives of a 2×5 network (27 parameters) at its third step: 100 rows, ε = 0.01, margin hinge, lr 0.1.
The listing is written out as the paper's appendix has it: one variable for every quantity of every row, bilinear products as they
stand, relus and hinges with big-M constants from interval bounds, no cut to the objective, no deviation form.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from mibp_cert import LInf, Network, SolverSettings, two_moons
from mibp_cert.engines.base import Box
from mibp_cert.engines.exact.engine import MibpEngine, bound_graph, declare_training, treatments
from mibp_cert.nets import SGD, loss_named, trace_steps

BIG = 10.0
"""Big-M of the listing: every quantity of this small network stays below it; the paper does not state its constant."""


def paper_listing(x_low: Any, x_high: Any, labels: Any, box: Box, rate: float, seconds: float) -> Any:
    """The whole program of one step as the paper lists it, and its 27 new parameters."""
    from pyscipopt import Model, quicksum

    model = Model()
    model.hideOutput()
    model.setParam("limits/time", seconds)
    for heuristic in ("subnlp", "multistart", "mpec", "nlpdiving"):  # these abort the interpreter
        model.setParam(f"heuristics/{heuristic}/freq", -1)
    theta = [model.addVar(lb=low, ub=high) for low, high in zip(box.lower, box.upper, strict=True)]
    w1, b1 = np.array(theta[:10], dtype=object).reshape(5, 2), theta[10:15]
    w2, b2 = np.array(theta[15:25], dtype=object).reshape(2, 5), theta[25:27]

    def switch(value: Any) -> Any:
        """A binary that is 1 where value > 0, with big-M from a generous interval."""
        gate = model.addVar(vtype="B")
        model.addCons(value <= BIG * gate)
        model.addCons(value >= -BIG * (1 - gate))
        return gate

    def relu(value: Any, gate: Any) -> Any:
        out = model.addVar(lb=0, ub=None)
        model.addCons(out >= value)
        model.addCons(out <= value + BIG * (1 - gate))
        model.addCons(out <= BIG * gate)
        return out

    def named(expression: Any) -> Any:
        variable = model.addVar(lb=None, ub=None)
        model.addCons(variable == expression)
        return variable

    gradients: list[list[Any]] = [[] for _ in theta]
    for low, high, label in zip(x_low, x_high, labels, strict=True):
        x = [model.addVar(lb=a, ub=b) for a, b in zip(low, high, strict=True)]
        z = [named(quicksum([w1[j, 0] * x[0], w1[j, 1] * x[1], b1[j]])) for j in range(5)]
        on = [switch(value) for value in z]
        h = [relu(value, gate) for value, gate in zip(z, on, strict=True)]
        o = [named(quicksum([*(w2[c, j] * h[j] for j in range(5)), b2[c]])) for c in range(2)]
        other = 1 - int(label)
        active = switch(1 - o[int(label)] + o[other])
        sign = {other: 1.0, int(label): -1.0}
        for c in range(2):
            gradients[25 + c].append(sign[c] * active)
            for j in range(5):
                gradients[15 + 5 * c + j].append(named(sign[c] * active * h[j]))
        for j in range(5):
            upstream = named(active * (w2[other, j] - w2[int(label), j]))
            local = named(on[j] * upstream)
            gradients[10 + j].append(local)
            for k in range(2):
                gradients[2 * j + k].append(named(local * x[k]))
    new = [named(theta[i] - (rate / len(labels)) * quicksum(gradients[i])) for i in range(len(theta))]
    return model, new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of one objective of the listing")
    arguments = parser.parse_args()
    data, network = two_moons(arguments.seed).train, Network.mlp([2, 5, 2])
    step = trace_steps(network, loss_named("hinge", 2), SGD(0.1), 2, [np.arange(100)])
    threat = LInf(0.01).bind(data)
    settings = SolverSettings(gap=1e-3)
    engine = MibpEngine(settings)
    box = Box.point(network.initialise(arguments.seed))
    for _ in range(2):
        box, _ = engine.advance(box, step, threat)
    # Both ends of three parameters that move: the first, the middle and the last of them.
    moving = np.flatnonzero(box.radius > 1e-6)
    elements = moving[[0, len(moving) // 2, -1]].astype(np.intp)
    print(f"2×5 network, third step, 100 rows, ε = 0.01, seed {arguments.seed}, SCIP on both sides,")
    print(f"{arguments.seconds:g} s at most for one objective of the listing")
    start = time.perf_counter()
    found, report = bound_graph(
        step.graph,
        lambda encoder: declare_training(encoder, box, step, threat),
        treatments(settings),
        settings,
        engine.pool,
        elements=elements,
    )
    ours = time.perf_counter() - start
    engine.close()
    gap = 100 * float(report.gap[:, elements].max())
    print(f"encoder: {report.programs} programs in {ours:.2f} s, largest honest gap {gap:.3g} %")
    hull = threat.hull()
    total = 0.0
    print("                      paper's listing                                     encoder   difference")
    print("parameter        end      status  seconds         proven      incumbent     proven     / radius")
    for index, maximise in [(int(i), flag) for i in elements for flag in (False, True)]:
        model, new = paper_listing(hull.x_low, hull.x_high, data.y, box, 0.1, arguments.seconds)
        model.setObjective(new[index], "maximize" if maximise else "minimize")
        start = time.perf_counter()
        model.optimize()
        seconds = time.perf_counter() - start
        total += seconds
        proven, value = model.getDualbound(), model.getObjVal() if model.getNSols() else float("nan")
        own = found.upper[index] if maximise else found.lower[index]
        radius = 0.5 * (found.upper[index] - found.lower[index])
        print(
            f"{network.layout.describe(index):16s} {'max' if maximise else 'min'} {model.getStatus():>11s} {seconds:8.2f} "
            f"{proven:14.8f} {value:14.8f} {own:14.8f} {(own - value) / radius:10.2g}",
            flush=True,
        )
    print(
        f"listing {total:.2f} s, encoder {ours:.2f} s for the same {report.programs} objectives: {total / ours:.0f} times faster"
    )


if __name__ == "__main__":
    main()
