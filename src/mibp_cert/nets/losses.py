"""Losses: each writes the gradient of its *sum* over the batch with respect to the logits.

Labels are one-hot rows `Y` (rows × classes) and enter as a graph input, so that uncertain labels need no second graph.
The mean over the batch is taken once, by the optimiser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from mibp_cert.errors import UserError
from mibp_cert.graph import GraphBuilder


class Loss(ABC):
    """A loss `Σ_rows J(o, Y)`."""

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
        if (logits, classes) != (1, 2):
            raise UserError(
                f"The one-logit hinge needs 1 logit and 2 classes, got {logits} and {classes}; "
                "use one logit per class for the margin hinge."
            )

    def gradient(self, g: GraphBuilder, logits: int, labels: int) -> int:
        # y = 2·Y₁ − 1 as a contraction with the constant column (0, 2), so that a one-hot row costs one operation.
        sign = g.add(g.contract("bc,cu->bu", labels, g.const([[0.0], [2.0]])), g.const(-1.0))
        slack = g.subtract(g.const(1.0), g.contract("bu,bu->bu", sign, logits))
        return g.scale(g.contract("bu,bu->bu", sign, g.step(slack, closed=True)), -1.0)


@dataclass(frozen=True)
class MarginHinge(Loss):
    """C logits: `J = Σ_{c≠y} max(0, 1 − o_y + o_c)`.

    With the gates `s_c = 1[1 − o_y + o_c ≥ 0]` and `p_c = s_c·(1 − Y_c)`: `∂J/∂o_c = p_c − Y_c · Σ_c' p_c'`.
    """

    def check(self, logits: int, classes: int) -> None:
        if logits != classes or classes < 2:
            raise UserError(
                f"The margin hinge needs one logit per class, got {logits} logits for {classes} classes; "
                "change the size of the last layer."
            )

    def gradient(self, g: GraphBuilder, logits: int, labels: int) -> int:
        classes = g.shape(logits)[-1]
        # A row times the matrix of ones is its sum, once per class: o_y and Σ p without a separate reshape.
        spread = g.const([[1.0] * classes] * classes)
        own = g.contract("bd,dc->bc", g.contract("bc,bc->bc", labels, logits), spread)
        slack = g.add(g.const(1.0), g.subtract(logits, own))
        other = g.subtract(g.const(1.0), labels)
        push = g.contract("bc,bc->bc", g.step(slack, closed=True), other)
        total = g.contract("bd,dc->bc", push, spread)
        return g.subtract(push, g.contract("bc,bc->bc", labels, total))


def loss_named(name: str, logits: int) -> Loss:
    """The loss called `name`: `"hinge"` is the one-logit hinge for one logit and the margin hinge for more."""
    if name != "hinge":
        raise UserError(f"There is no loss called {name!r}; choose 'hinge'.")
    return BinaryHinge() if logits == 1 else MarginHinge()
