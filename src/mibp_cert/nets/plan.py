"""Training as a list of steps: the rows of every mini-batch, and each step (or several in a row) as a single graph.

Inputs: every parameter (and its velocity, where there is one), the data `x` (rows × features) and one-hot labels or targets `y`
(rows × classes) of the rows that these steps use. Outputs: the same state after the last step, under the same names. Steps
written into one graph share the same data inputs, so that "the same dataset in every step" is part of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.graph import Graph, GraphBuilder, evaluate
from mibp_cert.nets.losses import Loss, loss_named
from mibp_cert.nets.network import Layout, Network, Vector
from mibp_cert.nets.optim import SGD, VELOCITY, learning_rates

Rows = NDArray[np.intp]
BATCH_MODES = ("shuffle", "subsample")


@dataclass(frozen=True)
class Training:
    """Everything about training that is fixed and known: `θ_{t+1} = θ_t − λ · (1/|B_t|) Σ_{i∈B_t} ∇J_i`, with momentum, weight
    decay and clipping as `SGD` states them.

    `schedule` sets the learning rate of every epoch (`learning_rates`): a name, or one rate per epoch. `seed` draws the initial
    parameters and the batches; `batch_mode` is `"shuffle"` or `"subsample"` (the paper's).
    """

    epochs: int = 10
    batch_size: int | None = None
    """Rows per step; None: 100, or all rows if there are fewer."""
    learning_rate: float = 0.1
    loss: str = "hinge"
    seed: int = 0
    init: str = "torch"
    batch_mode: str = "shuffle"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: str | tuple[float, ...] = "constant"

    @property
    def optimiser(self) -> SGD:
        return SGD(self.learning_rate, self.momentum, self.weight_decay, self.clip)

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of every epoch."""
        return learning_rates(self.learning_rate, self.schedule, self.epochs)


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


def train_step(step: Step, theta: Vector, x: Vector, y: Vector) -> Vector:
    """One application of the step's graph: `θ` after it, from `θ` before and the data of the step's rows."""
    return step.layout.flatten(evaluate(step.graph, {**step.layout.unflatten(theta), "x": x, "y": y}))


def run_steps(steps: Sequence[Step], theta: Vector, x: Vector, one_hot: Vector) -> Vector:
    """Ordinary training on a whole dataset: `θ_T` from `θ₀`."""
    for step in steps:
        theta = train_step(step, theta, np.take(x, step.rows, axis=-2), np.take(one_hot, step.rows, axis=-2))
    return theta


def steps_per_epoch(n: int, batch_size: int) -> int:
    """An epoch is `ceil(n / batch_size)` steps, also when each step draws its own sub-sample."""
    return ceil(n / batch_size)


def effective_batch_size(n: int, batch_size: int | None) -> int:
    """The batch size asked for, or the default: 100, or all rows if there are fewer."""
    return min(100, n) if batch_size is None else batch_size


def batch_plan(n: int, batch_size: int, epochs: int, seed: int, mode: str = "shuffle") -> list[Rows]:
    """Rows of every step, `epochs · ceil(n / batch_size)` arrays.

    `"shuffle"`: each epoch is a fresh permutation cut into batches (the full batch keeps the natural order).
    `"subsample"`: each step draws `batch_size` rows without replacement, as the paper does.
    """
    if mode not in BATCH_MODES:
        raise UserError(f"There is no batch mode called {mode!r}; choose one of {', '.join(BATCH_MODES)}.")
    if batch_size != int(batch_size) or not 1 <= batch_size <= n:
        raise UserError(f"The batch size must be between 1 and the {n} training rows, got {batch_size}.")
    if epochs != int(epochs) or epochs < 1:
        raise UserError(f"The number of epochs must be a whole number ≥ 1, got {epochs}.")
    if seed != int(seed) or seed < 0:
        raise UserError(f"The seed must be a whole number ≥ 0, got {seed}.")
    rng = np.random.default_rng([int(seed), 1])
    plan: list[Rows] = []
    for _ in range(int(epochs)):
        order = np.arange(n) if batch_size == n else rng.permutation(n)
        for start in range(0, n, batch_size):
            if mode == "subsample" and batch_size < n:
                plan.append(np.sort(rng.choice(n, batch_size, replace=False)).astype(np.intp))
            else:
                plan.append(np.sort(order[start : start + batch_size]).astype(np.intp))
    return plan


@dataclass(frozen=True, eq=False)
class Plan:
    """A whole training, known before it starts: a graph for every few steps (repeated ones are shared), and where it begins."""

    steps: tuple[Step, ...]
    sizes: tuple[int, ...]
    """Training steps in each graph."""
    begin: Vector
    """The initial state: parameters, then velocities that start at 0."""
    batch_size: int
    per_epoch: int

    @property
    def total(self) -> int:
        """Training steps in all."""
        return sum(self.sizes)

    @classmethod
    def of(cls, network: Network, training: Training, train: Dataset, start: Vector, unroll: int = 1) -> Plan:
        """The plan with `unroll` steps in each graph, from the parameters `start`."""
        loss, optimiser = loss_named(training.loss, network.logits, train.task), training.optimiser
        outputs = train.one_hot.shape[1]
        loss.check(network.logits, outputs)
        size = effective_batch_size(len(train), training.batch_size)
        batches = batch_plan(len(train), size, training.epochs, training.seed, training.batch_mode)
        per_epoch = steps_per_epoch(len(train), size)
        rates = np.repeat(training.rates, per_epoch).tolist()
        traced: dict[tuple[bytes, tuple[float, ...]], Step] = {}
        steps, sizes = [], []
        for first in range(0, len(batches), unroll):
            group, local = batches[first : first + unroll], tuple(rates[first : first + unroll])
            key = b"|".join(batch.tobytes() for batch in group), local
            if key not in traced:
                traced[key] = trace_steps(network, loss, optimiser, outputs, group, local)
            steps.append(traced[key])
            sizes.append(len(group))
        begin = np.zeros(optimiser.state(network.layout).size)
        begin[: len(start)] = start
        return cls(tuple(steps), tuple(sizes), begin, size, per_epoch)
