"""Training as a list of steps: the optimiser, the rows of every mini-batch, and each step (or several) as a single graph.

The update is part of the step's graph: `θ − λ∇J(θ)` is one expression.

Inputs: every parameter (and its velocity, where there is one), the data `x` (rows × features) and one-hot labels or targets `y`
(rows × classes) of the rows that these steps use. Outputs: the same state after the last step, under the same names. Steps
written into one graph share the same data inputs, so that "the same dataset in every step" is part of the graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import final

import numpy as np
from numpy.typing import NDArray

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.graph import Graph, GraphBuilder, evaluate
from mibp_cert.nets.losses import Loss, loss_named
from mibp_cert.nets.network import Layout, Network, Vector

SMALLEST_RATE = 1e-250
"""Far above the subnormal numbers, where a factor would no longer be rounded relatively."""
LARGEST_CLIP = 1e4
VELOCITY = "velocity "
SCHEDULES = ("constant", "step:every:factor", "exponential:factor", "cosine")


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum `μ`, weight decay `κ` and clipping of the mean gradient to `±clip`:

    `g = clip((1/|B|) Σ_{i∈B} ∇J_i)`, `v' = μv + g + κθ`, `θ' = θ − λv'`, from `v = 0`. The batch mean is taken here
    and only here.

    `θ'` is written `(1 − λκ)·θ − λμ·v − λ·g`, in which `θ` and `v` occur once each: no bound can invert, whatever `λκ` is.
    """

    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "momentum", "weight_decay", "clip"):
            value = getattr(self, name)
            if not isinstance(value, int | float | np.number) and not (name == "clip" and value is None):
                raise UserError(f"{name} must be a number, got {value!r}.")
        _check_rate(self.learning_rate)
        if not 0 <= self.momentum < 1:
            raise UserError(f"The momentum must be at least 0 and below 1, got {self.momentum}.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UserError(f"The weight decay must be a finite number ≥ 0, got {self.weight_decay}.")
        if self.clip is not None and not (math.isfinite(self.clip) and self.clip > 0):
            raise UserError(f"Gradients are clipped at a finite number > 0, got {self.clip}.")
        if self.clip is not None and self.clip > LARGEST_CLIP:
            raise UserError(f"Clipping gradients at {self.clip:g} does nothing but lose digits; leave it out.")
        for name in ("momentum", "weight_decay", "clip"):
            value = getattr(self, name)
            if value is not None and 0 < value < SMALLEST_RATE:
                raise UserError(f"{name} must be 0 or at least {SMALLEST_RATE:g}, got {value}.")

    def state(self, parameters: Layout) -> Layout:
        """What training carries from step to step: the parameters, and with momentum one velocity for each."""
        if self.momentum == 0:
            return parameters
        names = tuple(VELOCITY + name for name in parameters.names)
        return Layout(parameters.names + names, parameters.shapes * 2)

    def update(
        self, g: GraphBuilder, parameter: int, velocity: int | None, gradient_sum: int, batch_size: int, rate: float
    ) -> tuple[int, int | None]:
        """Write `θ'` and, with momentum, `v'`."""
        lam, mu, kappa = Fraction(rate), Fraction(self.momentum), Fraction(self.weight_decay)
        share = Fraction(1, batch_size)
        if self.clip is not None:
            gradient_sum, share = g.clip(g.scale(gradient_sum, share), self.clip), Fraction(1)
        kept = parameter if kappa == 0 else g.scale(parameter, 1 - lam * kappa, 1 + lam * kappa)
        if velocity is None:
            return g.add(kept, g.scale(gradient_sum, -lam * share)), None
        pushed = g.add(kept, g.scale(velocity, -lam * mu))
        change = g.scale(gradient_sum, share)
        change = change if kappa == 0 else g.add(change, g.scale(parameter, kappa))
        return g.add(pushed, g.scale(gradient_sum, -lam * share)), g.add(g.scale(velocity, mu), change)


def _check_rate(rate: float) -> None:
    if not (math.isfinite(rate) and rate >= 0):
        raise UserError(f"The learning rate must be a finite number ≥ 0, got {rate}.")
    if 0 < rate < SMALLEST_RATE:
        raise UserError(f"The learning rate must be 0 or at least {SMALLEST_RATE:g}, got {rate}.")


def learning_rates(rate: float, schedule: str | Sequence[float], epochs: int) -> tuple[float, ...]:
    """The rate of every epoch `e = 0, 1, …`: as listed, or by name.

    `constant`: `λ`; `step:n:f`: `λ·f^⌊e/n⌋`; `exponential:f`: `λ·f^e`; `cosine`: `½λ(1 + cos(πe/epochs))`.

    >>> learning_rates(0.1, "step:2:0.5", 4)
    (0.1, 0.1, 0.05, 0.05)
    """
    if not isinstance(schedule, str):
        try:
            rates = tuple(float(value) for value in schedule)
        except (TypeError, ValueError):
            raise UserError(
                f"A schedule is one of {', '.join(SCHEDULES)}, or one number per epoch; got {schedule!r}."
            ) from None
        if len(rates) != epochs:
            raise UserError(f"The schedule lists {len(rates)} learning rates for {epochs} epochs; list one per epoch.")
    else:
        rates = tuple(rate * factor for factor in _factors(schedule, epochs))
    for value in rates:
        _check_rate(value)
    return rates


def _factors(schedule: str, epochs: int) -> list[float]:
    name, *numbers = schedule.split(":")
    try:
        match name, [float(number) for number in numbers]:
            case "constant", []:
                return [1.0] * epochs
            case "step", [every, factor] if every >= 1 and every == int(every) and factor > 0:
                return [factor ** (epoch // int(every)) for epoch in range(epochs)]
            case "exponential", [factor] if factor > 0:
                return [factor**epoch for epoch in range(epochs)]
            case "cosine", []:
                return [0.5 * (1.0 + math.cos(math.pi * epoch / epochs)) for epoch in range(epochs)]
    except ValueError:
        pass
    raise UserError(
        f"There is no schedule {schedule!r}; choose one of {', '.join(SCHEDULES)} (in Python, also a list of rates)."
    )


Rows = NDArray[np.intp]
BATCH_MODES = ("shuffle", "subsample")
MOST_STEPS = 1_000_000
"""Bounds grow with every step; long before, they come to nothing."""


def is_whole(value: object) -> bool:
    """Is it a whole number, however it is written?"""
    return isinstance(value, int | np.integer) or (isinstance(value, float) and value.is_integer())


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

    def __post_init__(self) -> None:
        if not is_whole(self.epochs) or self.epochs < 1:
            raise UserError(f"The number of epochs must be a whole number ≥ 1, got {self.epochs!r}.")
        if self.batch_size is not None and not is_whole(self.batch_size):
            raise UserError(f"The batch size must be a whole number of rows, got {self.batch_size!r}.")
        if not is_whole(self.seed) or self.seed < 0:
            raise UserError(f"The seed must be a whole number ≥ 0, got {self.seed!r}.")

    @property
    def optimiser(self) -> SGD:
        return SGD(self.learning_rate, self.momentum, self.weight_decay, self.clip)

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of every epoch."""
        return learning_rates(self.learning_rate, self.schedule, self.epochs)

    def check(self, network: Network, train: Dataset) -> None:
        """Raise `UserError` for data that it cannot be used on."""
        return

    def plan(self, network: Network, train: Dataset, start: Vector, unroll: int = 1) -> Plan:
        """The steps of the training, `unroll` of them in each graph, from the parameters `start`."""
        return Plan.of(network, self, train, start, unroll)


@dataclass(frozen=True, eq=False)
class Step(ABC):
    """A step of a training as a graph, the dataset rows behind its `x` and `y`, and the layout of the state that it changes."""

    graph: Graph
    rows: Rows
    layout: Layout

    @abstractmethod
    def train(self, theta: Vector, x: Vector, y: Vector) -> Vector:
        """`θ` after the step, from `θ` before it and the data of its rows."""


@final
@dataclass(frozen=True, eq=False)
class GraphStep(Step):
    """One or more updates, written out: the graph computes the state (`θ`, and with momentum its velocity) after them."""

    def train(self, theta: Vector, x: Vector, y: Vector) -> Vector:
        return self.layout.flatten(evaluate(self.graph, {**self.layout.unflatten(theta), "x": x, "y": y}))


def trace_steps(
    network: Network,
    loss: Loss,
    optimiser: SGD,
    classes: int,
    batches: Sequence[Rows],
    rates: Sequence[float] | None = None,
) -> GraphStep:
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
    return GraphStep(g.finish({name: state[name] for name in layout.names}), rows, layout)


def run_steps(steps: Sequence[Step], theta: Vector, x: Vector, one_hot: Vector) -> Vector:
    """Ordinary training on a whole dataset: `θ_T` from `θ₀`."""
    for step in steps:
        theta = step.train(theta, np.take(x, step.rows, axis=-2), np.take(one_hot, step.rows, axis=-2))
    return theta


def steps_per_epoch(n: int, batch_size: int) -> int:
    """An epoch is `ceil(n / batch_size)` steps, also when each step draws its own sub-sample."""
    return ceil(n / batch_size)


def effective_batch_size(n: int, batch_size: int | None) -> int:
    """The batch size asked for, or the default: 100, or all rows if there are fewer."""
    if batch_size is not None and not batch_size >= 1:
        raise UserError(f"The batch size must be between 1 and the {n} training rows, got {batch_size}.")
    return min(100, n) if batch_size is None else batch_size


def batch_plan(n: int, batch_size: int, epochs: int, seed: int, mode: str = "shuffle") -> list[Rows]:
    """Rows of every step, `epochs · ceil(n / batch_size)` arrays.

    `"shuffle"`: each epoch is a fresh permutation cut into batches (the full batch keeps the natural order).
    `"subsample"`: each step draws `batch_size` rows without replacement, as the paper does.
    """
    if mode not in BATCH_MODES:
        raise UserError(f"There is no batch mode called {mode!r}; choose one of {', '.join(BATCH_MODES)}.")
    if not is_whole(batch_size) or not 1 <= batch_size <= n:
        raise UserError(f"The batch size must be between 1 and the {n} training rows, got {batch_size}.")
    if not is_whole(epochs) or epochs < 1:
        raise UserError(f"The number of epochs must be a whole number ≥ 1, got {epochs}.")
    if epochs * (steps := steps_per_epoch(n, int(batch_size))) > MOST_STEPS:
        raise UserError(
            f"{epochs} epochs of {steps} step(s) are more than {MOST_STEPS} steps, which no bounds survive."
        )
    if not is_whole(seed) or seed < 0:
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

    def first(self, steps: int | None) -> Plan:
        """The beginning of the plan, exactly so many training steps; None: all of it."""
        if steps is None:
            return self
        ends = np.cumsum(self.sizes).tolist()
        if steps not in ends:
            whole = "" if self.total == len(ends) else f", in whole graphs of {self.sizes[0]}"
            raise UserError(f"A training of {self.total} steps has no first {steps} of them{whole}; say fewer.")
        kept = ends.index(steps) + 1
        return replace(self, steps=self.steps[:kept], sizes=self.sizes[:kept])

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
        traced: dict[tuple[bytes, tuple[float, ...]], GraphStep] = {}
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
