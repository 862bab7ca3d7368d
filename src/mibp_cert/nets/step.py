"""One training step, or several in a row, as a single graph.

Inputs: every parameter, the data `x` (rows × features) and one-hot labels `y` (rows × classes) of the rows that these
steps use. Outputs: every parameter after the last step, under its own name. Steps written into one graph share the same
data inputs, so that "the same dataset in every step" is part of the graph.
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
from mibp_cert.nets.optim import SGD

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Step:
    """A graph of one or more training steps, the dataset rows behind its `x` and `y`, and the layout of `θ`."""

    graph: Graph
    rows: Rows
    layout: Layout


def trace_steps(network: Network, loss: Loss, optimiser: SGD, classes: int, batches: Sequence[Rows]) -> Step:
    """Write one step per batch (an array of dataset rows) into one graph."""
    loss.check(network.logits, classes)
    if not batches or any(len(batch) == 0 for batch in batches):
        raise UserError("A training step needs at least one row; the batch is empty.")
    rows = batches[0] if len(batches) == 1 else np.unique(np.concatenate(batches))
    g = GraphBuilder()
    parameters = network.parameter_inputs(g)
    x, y = g.input("x", (len(rows), network.features)), g.input("y", (len(rows), classes))
    for batch in batches:
        g.origin = "batch"
        same = len(batch) == len(rows) and np.array_equal(batch, rows)
        place = None if same else np.searchsorted(rows, batch)
        batch_x, batch_y = (x, y) if place is None else (g.gather(x, place), g.gather(y, place))
        logits, tapes = network.forward(g, parameters, batch_x)
        g.origin = f"loss ({type(loss).__name__})"
        upstream = loss.gradient(g, logits, batch_y)
        gradients = network.backward(g, parameters, tapes, upstream)
        g.origin = f"optimiser ({type(optimiser).__name__})"
        parameters = {name: optimiser.update(g, parameters[name], gradients[name], len(batch)) for name in parameters}
    return Step(g.finish(parameters), rows, network.layout)
