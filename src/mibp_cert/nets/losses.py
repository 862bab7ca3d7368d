"""Losses: each writes the gradient of its *sum* over the batch with respect to the logits.

Labels are one-hot rows `Y` (rows × classes), or targets of a regression (rows × outputs), and enter as a graph input, so that
uncertain labels need no second graph.
The mean over the batch is taken once, by the optimiser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from mibp_cert.data import Task
from mibp_cert.errors import UserError
from mibp_cert.graph import GraphBuilder


class Loss(ABC):
    """A loss `Σ_rows J(o, Y)`."""

    tasks: ClassVar[frozenset[Task]] = frozenset({Task.CLASSES})
    """What it can be trained for."""

    @abstractmethod
    def check(self, logits: int, classes: int) -> None:
        """Raise `UserError` if the network's logits do not fit the number of classes."""

    @abstractmethod
    def gradient(self, g: GraphBuilder, logits: int, labels: int) -> int:
        """Write `∂J/∂o` for every row."""


@dataclass(frozen=True)
class BinaryHinge(Loss):
    """One logit `o` per row, classes 0 and 1 read as `y = −1, +1`, `y = 2·Y₁ − 1`:

    `J = max(0, 1 − y·o)`, `∂J/∂o = −y · 1[1 − y·o ≥ 0]` (active at margin exactly 1).
    """

    def check(self, logits: int, classes: int) -> None:
        _one_logit("hinge", logits, classes)

    def gradient(self, g: GraphBuilder, logits: int, labels: int) -> int:
        sign = _signs(g, labels)
        slack = g.subtract(g.const(1.0), g.multiply(sign, logits))
        return g.scale(g.multiply(sign, g.gate(slack, closed=True)), -1.0)


@dataclass(frozen=True)
class MarginHinge(Loss):
    """C logits: `J = Σ_{c≠y} max(0, 1 − o_y + o_c)`.

    With the gates `s_c = 1[1 − o_y + o_c ≥ 0]` and `p_c = s_c·(1 − Y_c)`: `∂J/∂o_c = p_c − Y_c · Σ_c' p_c'`.
    """

    def check(self, logits: int, classes: int) -> None:
        _one_per_class("margin hinge", logits, classes)

    def gradient(self, g: GraphBuilder, logits: int, labels: int) -> int:
        return _pushes(g, logits, labels, lambda slack: g.gate(slack, closed=True))


@dataclass(frozen=True)
class SquaredBinaryHinge(Loss):
    """One logit, `y = 2·Y₁ − 1`: `J = max(0, 1 − y·o)²`, `∂J/∂o = −2y·max(0, 1 − y·o)`."""

    def check(self, logits: int, classes: int) -> None:
        _one_logit("squared hinge", logits, classes)

    def gradient(self, g: GraphBuilder, logits: int, labels: int) -> int:
        sign = _signs(g, labels)
        slack = g.relu(g.subtract(g.const(1.0), g.multiply(sign, logits)))
        return g.scale(g.multiply(sign, slack), -2.0)


@dataclass(frozen=True)
class SquaredMarginHinge(Loss):
    """C logits: `J = Σ_{c≠y} max(0, 1 − o_y + o_c)²`; with `p_c = 2·max(0, 1 − o_y + o_c)·(1 − Y_c)`:
    `∂J/∂o_c = p_c − Y_c·Σ_c' p_c'`."""

    def check(self, logits: int, classes: int) -> None:
        _one_per_class("squared margin hinge", logits, classes)

    def gradient(self, g: GraphBuilder, logits: int, labels: int) -> int:
        return _pushes(g, logits, labels, lambda slack: g.scale(g.relu(slack), 2.0))


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """One logit: `J = −Y₁·log σ(o) − Y₀·log(1 − σ(o))`, `∂J/∂o = σ(o) − Y₁`."""

    def check(self, logits: int, classes: int) -> None:
        _one_logit("cross-entropy", logits, classes)

    def gradient(self, g: GraphBuilder, logits: int, labels: int) -> int:
        wanted = g.contract("bc,cu->bu", labels, g.const([[0.0], [1.0]]))
        return g.subtract(g.smooth(logits, "sigmoid"), wanted)


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """C logits: `J = −Σ_c Y_c·log p_c`, `p_c = e^{o_c}/Σ_d e^{o_d}`, `∂J/∂o_c = p_c − Y_c`.

    Written in differences of logits: `p_c = 1/(1 + Σ_{d≠c} e^{o_d − o_c})`, in which each logit acts in one direction only; for
    two classes `p₁ = σ(o₁ − o₀)` and `p₀ = 1 − p₁`.
    """

    def check(self, logits: int, classes: int) -> None:
        _one_per_class("cross-entropy", logits, classes)

    def gradient(self, g: GraphBuilder, logits: int, labels: int) -> int:
        classes = g.shape(logits)[-1]
        if classes == 2:
            last = g.smooth(g.contract("bc,cu->bu", logits, g.const([[-1.0], [1.0]])), "sigmoid")
            shares = g.add(g.contract("bu,uc->bc", last, g.const([[-1.0, 1.0]])), g.const([1.0, 0.0]))
            return g.subtract(shares, labels)
        own = [[c] * (classes - 1) for c in range(classes)]
        others = [[d for d in range(classes) if d != c] for c in range(classes)]
        differences = g.subtract(g.gather(logits, others, -1), g.gather(logits, own, -1))
        total = g.add(g.sum(g.smooth(differences, "exp"), (-1,)), g.const(1.0))
        return g.subtract(g.smooth(total, "reciprocal"), labels)


@dataclass(frozen=True)
class Huber(Loss):
    """Regression that large errors pull less: with `r = o − Y`, `J = Σ_c ½r_c²` where `|r_c| ≤ δ`, else `δ(|r_c| − ½δ)`, and
    `∂J/∂o = min(δ, max(−δ, r))`. `δ` is in units of the model's targets, which the estimators and files scale to deviation 1."""

    tasks = frozenset({Task.NUMBERS})
    delta: float = 1.0

    def check(self, logits: int, classes: int) -> None:
        _one_per_target("Huber loss", logits, classes)

    def gradient(self, g: GraphBuilder, logits: int, labels: int) -> int:
        return g.clip(g.subtract(logits, labels), self.delta)


@dataclass(frozen=True)
class SquaredError(Loss):
    """Outputs `o` and targets `Y` of the same number: `J = Σ_c (o_c − Y_c)²`, `∂J/∂o = 2(o − Y)`; for regression, or for one
    output per class with one-hot targets."""

    tasks = frozenset(Task)

    def check(self, logits: int, classes: int) -> None:
        _one_per_target("squared error", logits, classes)

    def gradient(self, g: GraphBuilder, logits: int, labels: int) -> int:
        return g.scale(g.subtract(logits, labels), 2.0)


def _one_per_target(name: str, logits: int, targets: int) -> None:
    if logits != targets:
        raise UserError(
            f"The {name} needs one output per target, got {logits} outputs for {targets} target(s); change the size of the last "
            "layer."
        )


def _one_logit(name: str, logits: int, classes: int) -> None:
    if (logits, classes) != (1, 2):
        raise UserError(
            f"The one-logit {name} needs 1 logit and 2 classes, got {logits} and {classes}; use one logit per class."
        )


def _one_per_class(name: str, logits: int, classes: int) -> None:
    if logits != classes or classes < 2:
        raise UserError(
            f"The {name} needs one logit per class, got {logits} logits for {classes} classes; "
            "change the size of the last layer."
        )


def _signs(g: GraphBuilder, labels: int) -> int:
    """`y = 2·Y₁ − 1` as a contraction with the constant column (0, 2), so that a one-hot row costs one operation."""
    return g.add(g.contract("bc,cu->bu", labels, g.const([[0.0], [2.0]])), g.const(-1.0))


def _pushes(g: GraphBuilder, logits: int, labels: int, weight: Callable[[int], int]) -> int:
    """`p_c − Y_c·Σ p` for `p_c = weight(1 − o_y + o_c)·(1 − Y_c)`."""
    classes = g.shape(logits)[-1]
    # A row times the matrix of ones is its sum, once per class: o_y and Σ p without a separate reshape.
    spread = g.const([[1.0] * classes] * classes)
    own = g.contract("bd,dc->bc", g.multiply(labels, logits), spread)
    slack = g.add(g.const(1.0), g.subtract(logits, own))
    other = g.subtract(g.const(1.0), labels)
    push = g.multiply(weight(slack), other)
    total = g.contract("bd,dc->bc", push, spread)
    return g.subtract(push, g.multiply(labels, total))


LOSSES: dict[str, tuple[type[Loss], type[Loss]]] = {
    "hinge": (BinaryHinge, MarginHinge),
    "squared-hinge": (SquaredBinaryHinge, SquaredMarginHinge),
    "cross-entropy": (BinaryCrossEntropy, CrossEntropy),
    "squared-error": (SquaredError, SquaredError),
    "huber": (Huber, Huber),
}
"""By name: the loss for one logit, and for several."""


def loss_named(name: str, logits: int, task: Task | None = None) -> Loss:
    """The loss called `name`, for one logit or for more; checked to be one for this task."""
    if not isinstance(name, str) or name not in LOSSES:
        raise UserError(f"There is no loss called {name!r}; choose one of {', '.join(LOSSES)}.")
    loss = LOSSES[name][0 if logits == 1 else 1]()
    if task is not None and task not in loss.tasks:
        fit = [known for known, pair in LOSSES.items() if task in pair[0].tasks]
        what = "Real targets need" if task is Task.NUMBERS else "Classes need"
        raise UserError(f"{what} the loss {' or '.join(map(repr, fit))}, not {name!r}.")
    return loss
