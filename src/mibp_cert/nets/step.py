"""One training step, or several in a row, as a single graph.

Inputs: every parameter (and its velocity, where there is one), the data `x` (rows × features) and one-hot labels or targets `y`
(rows × classes) of the rows that these steps use. Outputs: the same state after the last step, under the same names. Steps
written into one graph share the same data inputs, so that "the same dataset in every step" is part of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mibp_cert.errors import UserError
from mibp_cert.graph import Graph, GraphBuilder
from mibp_cert.nets.losses import Loss
from mibp_cert.nets.network import Layout, Network
from mibp_cert.nets.optim import SGD, VELOCITY

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Step:
    """A graph of one or more training steps, the dataset rows behind its `x` and `y`, and the layout of the state: `θ`, and with
    momentum its velocity."""

    graph: Graph
    rows: Rows
    layout: Layout


def trace_steps(
    network: Network,
    loss: Loss,
    optimiser: SGD,
    classes: int,
    batches: Sequence[Rows],
    rates: Sequence[float] | None = None,
) -> Step:
    """Write one step per batch (an array of dataset rows) into one graph, each with its learning rate (default: the
    optimiser's)."""
    loss.check(network.logits, classes)
    if not batches or any(len(batch) == 0 for batch in batches):
        raise UserError("A training step needs at least one row; the batch is empty.")
    rows = batches[0] if len(batches) == 1 else np.unique(np.concatenate(batches))
    g, layout = GraphBuilder(), optimiser.state(network.layout)
    state: dict[str, int] = {
        name: g.input(name, shape) for name, shape in zip(layout.names, layout.shapes, strict=True)
    }
    x, y = g.input("x", (len(rows), network.features)), g.input("y", (len(rows), classes))
    for batch, rate in zip(batches, rates or [optimiser.learning_rate] * len(batches), strict=True):
        g.origin = "batch"
        same = len(batch) == len(rows) and np.array_equal(batch, rows)
        place = None if same else np.searchsorted(rows, batch)
        batch_x, batch_y = (x, y) if place is None else (g.gather(x, place, -2), g.gather(y, place, -2))
        logits, tapes = network.forward(g, state, batch_x)
        g.origin = f"loss ({type(loss).__name__})"
        upstream = loss.gradient(g, logits, batch_y)
        _, gradients = network.backward(g, state, tapes, upstream)
        g.origin = f"optimiser ({type(optimiser).__name__})"
        before, state = state, {}
        for name in network.layout.names:
            velocity = before.get(VELOCITY + name)
            state[name], moved = optimiser.update(g, before[name], velocity, gradients[name], len(batch), rate)
            if moved is not None:
                state[VELOCITY + name] = moved
    return Step(g.finish({name: state[name] for name in layout.names}), rows, layout)
