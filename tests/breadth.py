"""Small problems with every layer, loss and optimiser, and what the tests of all engines share about them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from conftest import small_data
from mibp_cert.data import Dataset, Task
from mibp_cert.nets import (
    SGD,
    AvgPool2d,
    Conv2d,
    Cosine,
    Flatten,
    LeakyReLU,
    Linear,
    Network,
    ReLU,
    Sigmoid,
    Softplus,
    Step,
    Tanh,
    learning_rates,
    loss_named,
    trace_steps,
)
from mibp_cert.sets import ThreatSet
from mibp_cert.threats import LInf


@dataclass(frozen=True, eq=False)
class Problem:
    """A network, a loss and an optimiser on a few random rows, and the batches and learning rates of a short training."""

    network: Network
    loss: str
    optimiser: SGD
    data: Dataset
    plan: list[Any]
    rates: tuple[float, ...]
    theta: Any

    def steps(self) -> list[Step]:
        return self._traced

    @cached_property
    def _traced(self) -> list[Step]:
        loss = loss_named(self.loss, self.network.logits)
        outputs = self.data.one_hot.shape[1]
        return [
            trace_steps(self.network, loss, self.optimiser, outputs, [rows], [rate])
            for rows, rate in zip(self.plan, self.rates, strict=True)
        ]

    @property
    def begin(self) -> Any:
        """The initial state: parameters, then velocities at 0."""
        state = np.zeros(self.optimiser.state(self.network.layout).size)
        state[: len(self.theta)] = self.theta
        return state

    def threat(self, eps: float) -> ThreatSet:
        return LInf(eps).bind(self.data)


def _net(*layers: Any, shape: Any = 2) -> Network:
    return Network(tuple(layers), shape)


IMAGE = (1, 4, 4)
NETWORKS: dict[str, tuple[Network, str]] = {
    "linear": (_net(Linear(2, 1)), "cross-entropy"),
    "linear, squared hinge": (_net(Linear(2, 3)), "squared-hinge"),
    "relu, one logit": (_net(Linear(2, 3), ReLU(), Linear(3, 1)), "cross-entropy"),
    "relu, two logits": (_net(Linear(2, 3), ReLU(), Linear(3, 2)), "cross-entropy"),
    "relu, three logits": (_net(Linear(2, 3), ReLU(), Linear(3, 3)), "cross-entropy"),
    "squared hinge, one logit": (_net(Linear(2, 3), ReLU(), Linear(3, 1)), "squared-hinge"),
    "squared error": (_net(Linear(2, 3), ReLU(), Linear(3, 2)), "squared-error"),
    "leaky": (_net(Linear(2, 3), LeakyReLU(0.1), Linear(3, 2)), "hinge"),
    "sigmoid": (_net(Linear(2, 3), Sigmoid(), Linear(3, 1)), "hinge"),
    "tanh": (_net(Linear(2, 3), Tanh(), Linear(3, 2)), "cross-entropy"),
    "tanh, deep": (_net(Linear(2, 2), Tanh(), Linear(2, 2), Sigmoid(), Linear(2, 2)), "squared-error"),
    "cosine": (_net(Linear(2, 3), Cosine(), Linear(3, 2)), "cross-entropy"),
    "softplus": (_net(Linear(2, 3), Softplus(), Linear(3, 2)), "cross-entropy"),
    "softplus, regression": (_net(Linear(2, 3), Softplus(), Linear(3, 1)), "huber"),
    "linear regression, Huber": (_net(Linear(2, 1)), "huber"),
    "convolution": (_net(Conv2d(1, 2, 2), ReLU(), Flatten(), Linear(18, 2), shape=IMAGE), "cross-entropy"),
    "strides and padding": (
        _net(Conv2d(1, 2, 3, stride=2, padding=1), ReLU(), Flatten(), Linear(8, 1), shape=IMAGE),
        "hinge",
    ),
    "pooling": (_net(Conv2d(1, 2, 2), Tanh(), AvgPool2d(2, 1), Flatten(), Linear(8, 2), shape=IMAGE), "squared-hinge"),
    "two convolutions": (
        _net(
            Conv2d(1, 2, 2, bias=False),
            LeakyReLU(0.2),
            Conv2d(2, 2, 3, stride=2, padding=1),
            ReLU(),
            AvgPool2d(2),
            Flatten(),
            Linear(2, 2),
            shape=IMAGE,
        ),
        "cross-entropy",
    ),
}
OPTIMISERS: dict[str, tuple[SGD, str]] = {
    "momentum": (SGD(0.3, momentum=0.9), "constant"),
    "decay": (SGD(0.3, weight_decay=0.1), "constant"),
    "decay beyond one": (SGD(0.5, weight_decay=3.0), "constant"),
    "decay that cancels": (SGD(0.5, weight_decay=2.0), "constant"),
    "momentum and decay": (SGD(0.3, momentum=0.5, weight_decay=1.0), "constant"),
    "clipping": (SGD(0.3, clip=0.05), "constant"),
    "clipping and momentum": (SGD(0.3, momentum=0.7, clip=0.1, weight_decay=0.01), "constant"),
    "step schedule": (SGD(0.5), "step:2:0.5"),
    "exponential schedule": (SGD(0.5, momentum=0.3), "exponential:0.8"),
    "cosine schedule": (SGD(0.5), "cosine"),
}
NAMES = [*NETWORKS, *OPTIMISERS]


def problem(name: str, seed: int = 0, steps: int = 4, rows: int = 6) -> Problem:
    """The problem called `name`: one of the networks with plain descent, or a small network with one of the optimisers."""
    rng = np.random.default_rng([seed, len(name), *name.encode()[:8]])
    network, loss = NETWORKS.get(name, NETWORKS["relu, two logits"])
    optimiser, schedule = OPTIMISERS.get(name, (SGD(0.4), "constant"))
    rows = max(rows, network.logits)
    data = small_data(rng, rows=rows, features=network.features, classes=max(2, network.logits))
    if Task.CLASSES not in loss_named(loss, network.logits).tasks:
        # Targets far from what the model says at first: both sides of the Huber loss's kinks are visited.
        data = Dataset.regression(data.x, 2.0 * rng.normal(size=rows))
    plan = [np.sort(rng.choice(rows, rng.integers(2, rows + 1), replace=False)) for _ in range(steps)]
    rates = learning_rates(optimiser.learning_rate, schedule, steps)
    return Problem(network, loss, optimiser, data, plan, rates, network.initialise(seed))
