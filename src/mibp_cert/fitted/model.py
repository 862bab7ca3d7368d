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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from mibp_cert.data import Dataset, Task
from mibp_cert.errors import UserError
from mibp_cert.fitted.classes import PIN, by_class, in_layout, minimise_classes
from mibp_cert.fitted.features import Features, plain
from mibp_cert.fitted.losses import SCORE_LOSSES, ScoreLoss
from mibp_cert.fitted.minimum import minimise
from mibp_cert.fitted.problem import MOST_CLASS_CELLS
from mibp_cert.fitted.table import Array, Index
from mibp_cert.graph import GraphBuilder, evaluate
from mibp_cert.nets import Linear, Network, Plan, Step

BALANCED = "balanced"
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
    features: Features | None = None
    """Frozen features in front of the model; None: the columns themselves."""
    penalise_intercept: bool = False
    """As `LinearSVC` does."""
    class_weight: Mapping[Any, float] | str | None = None
    """How much the rows of each class count (others: 1), or `balanced`: as if all classes had as many rows, by the data as
    handed in."""
    multi: str | None = None
    """Three or more classes: `softmax` (cross-entropy alone, and usual there) or `one-versus-rest`."""

    def __post_init__(self) -> None:
        # Numbers of NumPy become plain ones, so that a model is the same after a file was written and read.
        for name in ("C", "fit_intercept", "penalise_intercept"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        if isinstance(self.class_weight, Mapping):
            weights = {plain(name): plain(weight) for name, weight in self.class_weight.items()}
            object.__setattr__(self, "class_weight", weights)
        if self.loss not in SCORE_LOSSES:
            raise UserError(
                f"There is no fitted model with the loss {self.loss!r}; choose one of {', '.join(SCORE_LOSSES)}."
            )
        if not isinstance(self.C, int | float) or not (
            math.isfinite(self.C) and self.C > 0 and math.isfinite(1.0 / float(self.C))
        ):
            raise UserError(
                f"C must be a finite number > 0, and 1/C finite, got {self.C!r}: without a penalty nothing bounds how far wrong "
                "data move the minimum."
            )
        if self.class_weight is not None and self.loss in REGRESSIONS:
            raise UserError("class_weight is for models of classes; this one predicts numbers.")
        if (
            self.class_weight is not None
            and self.class_weight != BALANCED
            and not isinstance(self.class_weight, Mapping)
        ):
            raise UserError(f"class_weight must be {{class: weight}} or 'balanced', got {self.class_weight!r}.")
        if not isinstance(self.features, Features | None):
            raise UserError(
                f"Features are None, RandomFeatures(30) or FrozenLayers(network, theta); got {self.features!r}."
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

    def weights(self, train: Dataset) -> Array:
        """How much each row counts, for every label that it may have (rows × classes; a regression: × 1).

        >>> Fitted(class_weight={"yes": 3.0}).weights(Dataset.of([[0.0], [1.0]], ["no", "yes"])).tolist()
        [[1.0, 3.0], [1.0, 3.0]]
        """
        rows = np.ones(len(train)) if train.weights is None else train.weights
        by_class = np.ones(max(1, len(train.classes)))
        if isinstance(self.class_weight, str):
            counts = np.bincount(train.y, rows, minlength=len(train.classes))
            by_class = counts.sum() / (len(counts) * np.maximum(counts, 1e-300))
        elif self.class_weight is not None:
            # Of a file, names are text; otherwise 1, 1.0 and True name the same class.
            known = {key: k for k, name in enumerate(train.classes) for key in (str(name), name)}
            for name, weight in self.class_weight.items():
                place = known.get(name, known.get(str(name)))
                if place is None:
                    raise UserError(
                        f"class_weight names the class {name!r}; there are {', '.join(map(repr, train.classes))}."
                    )
                if not isinstance(weight, int | float) or not (math.isfinite(weight) and weight >= 0):
                    raise UserError(f"The weight of the class {name!r} must be a finite number ≥ 0, got {weight!r}.")
                by_class[place] = weight
        return np.asarray(rows[:, None] * by_class)

    @property
    def by_class(self) -> bool:
        """Whether classes have weights: such a model is judged by balanced accuracy (`certify.worth`)."""
        return self.class_weight is not None

    @property
    def features_json(self) -> dict[str, Any]:
        """The frozen features as plain data, under their key; empty if there are none."""
        return {} if self.features is None else {"features": self.features.to_json()}

    @property
    def batch_size(self) -> None:
        """All rows at once."""
        return

    def network(self, train: Dataset) -> Network:
        """The model as a network: frozen features, and one layer that is fitted."""
        if self.features is None:
            return Network((Linear(train.features, _outputs(train), self.fit_intercept),), train.features)
        body, _ = self.features.body(train.features)
        return Network((*body.layers, Linear(body.logits, _outputs(train), self.fit_intercept)), body.shape)

    def start(self, train: Dataset) -> Array:
        """The features' parameters, and zeros for what is fitted."""
        frozen = np.zeros(0) if self.features is None else self.features.body(train.features)[1]
        return np.concatenate([frozen, np.zeros(self.network(train).layout.size - len(frozen))])

    def plan(self, network: Network, train: Dataset, start: Array, unroll: int = 1) -> Plan:
        """The fit as the only step."""
        column = 1 if train.task is Task.CLASSES else 0
        rows = np.arange(len(train), dtype=np.intp)
        graph, weights = network.forward_graph(len(train)), self.weights(train)
        step = FitStep(graph, rows, network.layout, network, self, column, weights)
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
        count = self.weights(train)[np.arange(len(train)), train.y] > 0
        if not count.any():
            raise UserError("No training row has a weight above 0: there is nothing to fit.")
        if train.task is Task.CLASSES and len(np.unique(train.y[count])) < 2:
            raise UserError("All training rows (of weight above 0) have the same class: there is nothing to fit.")
        if last.outputs > 1:
            self._check_several(train, last, train.y[count])
        elif self.multi is not None:
            what = "there are numbers to predict" if regression else "there are two"
            raise UserError(
                f"multi={self.multi!r} (--multi) says how three or more classes are fitted; {what}: leave it out."
            )

    def _check_several(self, train: Dataset, last: Linear, present: Index) -> None:
        """The same, for three or more classes."""
        empty = [str(train.classes[k]) for k in range(last.outputs) if not (present == k).any()]
        if empty:
            raise UserError(f"No training row has the class {', '.join(empty)}: leave it out of the classes.")
        most = most_rows(last.inputs + 1, last.outputs)
        if self.softmax and len(train) > most:
            raise UserError(
                f"With {last.outputs} classes, bounding the scores of {len(train)} rows among each other would take hours: fit "
                f"one class versus the rest (--multi {ONE_VERSUS_REST}), or at most about {most // 100 * 100} rows (such as "
                f"--sample {most // 100 * 100})."
            )


def most_rows(parameters: int, classes: int) -> int:
    """Rows whose scores softmax can bound among each other in minutes, with so many parameters for each class."""
    return math.isqrt(MOST_CLASS_CELLS // (parameters * classes * classes))


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
    weights: Array
    """How much each row counts, by label."""

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

    @cached_property
    def body(self) -> Network | None:
        """The frozen layers."""
        return Network(self.network.layers[:-1], self.network.shape) if len(self.network.layers) > 1 else None

    def design(self, theta: Array, x: Array) -> Array:
        """`x̃` for inputs `x` (… × rows × features)."""
        features = x
        if self.body is not None:
            values = self.body.layout.unflatten(theta[..., : self.body.layout.size])
            features = evaluate(self.body.forward_graph(x.shape[-2]), {**values, "x": x})["logits"]
        return np.concatenate([features, np.ones((*features.shape[:-1], 1))], axis=-1) if self.head.bias else features

    def counts(self, y: Array, *, whole: bool = False) -> Array:
        """How much each row of a dataset counts, by its label, and 0 where it is absent; `whole`: as if all were present."""
        labels = self.weights.shape[1]
        found = (
            (self.weights * y[..., :labels]).sum(axis=-1)
            if labels > 1
            else np.broadcast_to(self.weights[:, 0], y.shape[:-1])
        )
        return np.asarray(found if whole or y.shape[-1] == labels else found * y[..., labels])

    def pull(self, theta: Array, x: Array, upstream: Array) -> Array:
        """From the gradient with respect to features (… × rows × features) to that with respect to the inputs."""
        if self.body is None:
            return upstream
        g, rows = GraphBuilder(), x.shape[-2]
        parameters = self.body.parameter_inputs(g)
        _, tapes = self.body.forward(g, parameters, g.input("x", (rows, self.body.features)))
        g.origin = "features"
        gradient, _ = self.body.backward(g, parameters, tapes, g.input("up", (rows, self.body.logits)))
        values = self.body.layout.unflatten(theta[..., : self.body.layout.size])
        return evaluate(g.finish({"gradient": gradient}), {**values, "x": x, "up": upstream})["gradient"]

    def train(self, theta: Array, x: Array, y: Array) -> Array:
        design = self.design(theta, x)
        frozen = theta[..., : theta.shape[-1] - self.fitted]
        start = np.broadcast_to(theta[..., -self.fitted :], (*x.shape[:-2], self.fitted))
        found = self.minimum(design, y, start)
        return np.concatenate([np.broadcast_to(frozen, (*found.shape[:-1], frozen.shape[-1])), found], axis=-1)

    def minimum(self, design: Array, y: Array, start: Array) -> Array:
        """The minimisers for features and one-hot labels (or targets), as the network lays them out."""
        alpha, width, weights = self.model.alpha(self.head.inputs), self.head.inputs, self.counts(y)
        if not self.several:
            return minimise(design, y[..., self.column], weights, alpha, self.loss, start)
        if self.model.softmax:
            labels = y[..., : self.head.outputs]
            return in_layout(minimise_classes(design, labels, weights, alpha, self.model.pin), width)
        begin = np.moveaxis(self.by_class(start), -2, 0)
        each = [minimise(design, y[..., k], weights, alpha, self.loss, at) for k, at in enumerate(begin)]
        return in_layout(np.stack(each, axis=-2), width)
