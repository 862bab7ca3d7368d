"""A model at its minimum: what is fitted, and the fit as the only step of a training.

With features `φ` (the layers of the network before its last one, frozen) and `x̃ = (φ(x), 1)`, the model is the minimiser of

    L_D(θ) = Σ_i w_i ℓ(y_i, x̃_i·θ) + ½ Σ_j α_j θ_j²,        α_j = 1/C, and 0 for the intercept (unless it is penalised too),

a *sum* of losses, as scikit-learn has it: `LogisticRegression(C)` for `cross-entropy`, `Ridge(alpha=1/C)` for `squared-error`,
`LinearSVC(C)` for `squared-hinge` with a penalised intercept. Three or more classes have a line of parameters each: together,
by softmax (`fitted.classes`), or one class versus the rest, as independent problems of two classes. No seed, batch or number of
steps is part of it. Scaling, features, `C` and weights are fixed: they are not computed anew on other data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from mibp_cert.data import Dataset, Task
from mibp_cert.errors import UserError
from mibp_cert.fitted.classes import PIN, by_class, in_layout, minimise_classes
from mibp_cert.fitted.features import RandomFeatures
from mibp_cert.fitted.losses import SCORE_LOSSES, ScoreLoss
from mibp_cert.fitted.minimum import minimise
from mibp_cert.fitted.table import Array
from mibp_cert.graph import evaluate
from mibp_cert.nets import Linear, Network, Plan, Step

MOST_CELLS = 1_000_000_000
"""Rows × rows × parameters that a fit may have: every row's score is a query over all rows."""
MODELS = {
    "logistic": "cross-entropy",
    "ridge": "squared-error",
    "squared-hinge": "squared-hinge",
    "huber": "huber",
}
"""What fitted models are called, and the loss of each."""
REGRESSIONS = ("squared-error", "huber")
"""Losses of numbers; the others are of classes."""
SOFTMAX, ONE_VERSUS_REST = "softmax", "one-versus-rest"


@dataclass(frozen=True)
class Fitted:
    """A linear model (of features) at the minimum of its penalised loss.

    >>> Fitted(C=0.5).alpha(2)
    array([2., 2., 0.])
    """

    loss: str = "cross-entropy"
    C: float = 1.0
    fit_intercept: bool = True
    features: RandomFeatures | None = None
    """Frozen features in front of the model; None: the columns themselves."""
    penalise_intercept: bool = False
    """As `LinearSVC` does."""
    multi: str | None = None
    """Three or more classes: `softmax` (cross-entropy alone, and usual there) or `one-versus-rest`."""

    def __post_init__(self) -> None:
        if self.loss not in SCORE_LOSSES:
            raise UserError(
                f"There is no fitted model with the loss {self.loss!r}; choose one of {', '.join(SCORE_LOSSES)}."
            )
        if not isinstance(self.C, int | float | np.number) or not (math.isfinite(self.C) and self.C > 0):
            raise UserError(
                f"C must be a finite number > 0, got {self.C!r}: without a penalty nothing bounds how far wrong data move the "
                "minimum."
            )

        known = (None, ONE_VERSUS_REST, *((SOFTMAX,) if self.loss == "cross-entropy" else ()))
        if self.multi not in known:
            raise UserError(
                f"Several classes with the loss {self.loss!r} are fitted by {' or '.join(k for k in known if k)}, not by "
                f"{self.multi!r}."
            )

    @property
    def softmax(self) -> bool:
        """Whether three or more classes hang together.

        >>> Fitted().softmax, Fitted("squared-hinge").softmax
        (True, False)
        """
        return self.multi == SOFTMAX or (self.multi is None and self.loss == "cross-entropy")

    @property
    def pin(self) -> float:
        """`γ` of `fitted.classes`."""
        return PIN if self.fit_intercept and not self.penalise_intercept else 0.0

    @property
    def name(self) -> str:
        """What the model is called.

        >>> Fitted("squared-error").name
        'ridge'
        """
        return next(name for name, loss in MODELS.items() if loss == self.loss)

    def alpha(self, features: int) -> Array:
        """The penalties `α`."""
        weights = np.full(features, 1.0 / self.C)
        if not self.fit_intercept:
            return weights
        return np.append(weights, 1.0 / self.C if self.penalise_intercept else 0.0)

    @property
    def batch_size(self) -> None:
        """All rows at once."""
        return

    def network(self, train: Dataset) -> Network:
        """The model as a network: frozen features, and one layer that is fitted."""
        body = () if self.features is None else self.features.layers(train.features)
        width = train.features if self.features is None else self.features.count
        return Network((*body, Linear(width, _outputs(train), self.fit_intercept)), train.features)

    def start(self, train: Dataset) -> Array:
        """The features' parameters, and zeros for what is fitted."""
        frozen = np.zeros(0) if self.features is None else self.features.values(train.features)
        return np.concatenate([frozen, np.zeros(self.network(train).layout.size - len(frozen))])

    def plan(self, network: Network, train: Dataset, start: Array, unroll: int = 1) -> Plan:
        """The fit as the only step."""
        column = 1 if train.task is Task.CLASSES else 0
        rows = np.arange(len(train), dtype=np.intp)
        step = FitStep(network.forward_graph(len(train)), rows, network.layout, network, self, column)
        return Plan((step,), (1,), start, len(train), 1)

    def check(self, network: Network, train: Dataset) -> None:
        """Raise `UserError` for data that it cannot be fitted to."""
        last = network.layers[-1]
        if not isinstance(last, Linear) or last.outputs != _outputs(train) or last.bias != self.fit_intercept:
            raise UserError(
                "The last layer of a fitted model is Linear with one output (or one for each of three or more classes), with a "
                "bias if there is an intercept."
            )
        regression = self.loss in REGRESSIONS
        if regression != (train.task is Task.NUMBERS):
            wanted = "numbers to predict" if regression else "classes"
            raise UserError(f"A fitted model with the loss {self.loss!r} needs {wanted}; choose another loss.")
        wide = (last.inputs + 1) * (last.outputs if not self.softmax else last.outputs**2)
        cells = len(train) ** 2 * wide
        if cells > MOST_CELLS:
            most = int((MOST_CELLS / wide) ** 0.5) // 100 * 100
            raise UserError(
                f"Bounding the scores of {len(train)} rows among each other would take hours: use at most about {most} rows "
                f"(such as --sample {most})."
            )
        if train.task is Task.CLASSES and len(np.unique(train.y)) < 2:
            raise UserError("All training rows have the same class: there is nothing to fit.")
        if last.outputs > 1:
            empty = [str(train.classes[k]) for k in range(last.outputs) if not (train.y == k).any()]
            if empty:
                raise UserError(f"No training row has the class {', '.join(empty)}: leave it out of the classes.")


def _outputs(train: Dataset) -> int:
    """Two classes, or numbers, have one score; more classes have one each."""
    return len(train.classes) if train.task is Task.CLASSES and len(train.classes) > 2 else 1


@final
@dataclass(frozen=True, eq=False)
class FitStep(Step):
    """The whole fit, as one step: from any parameters to the minimum."""

    network: Network
    model: Fitted
    column: int
    """Of the one-hot labels (or targets) that is fitted."""

    @property
    def loss(self) -> ScoreLoss:
        return SCORE_LOSSES[self.model.loss]

    @property
    def head(self) -> Linear:
        last = self.network.layers[-1]
        assert isinstance(last, Linear)
        return last

    @property
    def fitted(self) -> int:
        """How many parameters are fitted: the last ones."""
        return len(self.model.alpha(self.head.inputs)) * self.head.outputs

    @property
    def several(self) -> bool:
        """Three or more classes."""
        return self.head.outputs > 1

    def by_class(self, theta: Array) -> Array:
        """Fitted parameters (…, as laid out) by outputs (… × K × P)."""
        return by_class(theta, self.head.outputs, self.head.inputs)

    def design(self, theta: Array, x: Array) -> Array:
        """`x̃` for inputs `x` (… × rows × features)."""
        features = x
        if len(self.network.layers) > 1:
            body = Network(self.network.layers[:-1], self.network.shape)
            values = body.layout.unflatten(theta[..., : body.layout.size])
            features = evaluate(body.forward_graph(x.shape[-2]), {**values, "x": x})["logits"]
        return np.concatenate([features, np.ones((*features.shape[:-1], 1))], axis=-1) if self.head.bias else features

    def pull(self, theta: Array, x: Array, upstream: Array) -> Array:
        """From the gradient with respect to features (… × rows × features) to that with respect to the inputs."""
        features = self.model.features
        return (
            upstream
            if features is None
            else features.pull(self.design(theta, x)[..., : self.head.inputs], upstream, x.shape[-1])
        )

    def train(self, theta: Array, x: Array, y: Array) -> Array:
        design, weights = self.design(theta, x), np.ones(x.shape[-2])
        frozen = theta[..., : theta.shape[-1] - self.fitted]
        found = self.minimum(design, y, weights)
        return np.concatenate([np.broadcast_to(frozen, (*found.shape[:-1], frozen.shape[-1])), found], axis=-1)

    def minimum(self, design: Array, y: Array, weights: Array) -> Array:
        """The minimisers for features and one-hot labels (or targets), as the network lays them out."""
        alpha, width = self.model.alpha(self.head.inputs), self.head.inputs
        if not self.several:
            return minimise(design, y[..., self.column], weights, alpha, self.loss)
        if self.model.softmax:
            return in_layout(minimise_classes(design, y, weights, alpha, self.model.pin), width)
        each = [minimise(design, y[..., k], weights, alpha, self.loss) for k in range(self.head.outputs)]
        return in_layout(np.stack(each, axis=-2), width)
