"""What a certified training is asked for, and what it returns."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mibp_cert.certify.attack import Attack
from mibp_cert.certify.bounds import Inputs
from mibp_cert.certify.predict import (
    Predictions,
    Ranges,
    abstain,
    nominal_outputs,
    predict,
    predict_ranges,
    unknown_ranges,
)
from mibp_cert.data import Dataset, Split
from mibp_cert.engines.base import Box
from mibp_cert.engines.exact.solve import SolverSettings
from mibp_cert.engines.relational.engine import RelationalSettings
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError
from mibp_cert.nets import SGD, Network, effective_batch_size, learning_rates, steps_per_epoch
from mibp_cert.threats import Threat


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


SELECTIONS = ("last", "best-validation")


def check_threat(threat: object) -> None:
    """Raise `UserError` for what is no threat, such as a bare number."""
    if not isinstance(threat, Threat):
        raise UserError(f"A threat says what may be wrong, such as LInf(0.01); got {threat!r}.")


@dataclass(frozen=True)
class Selection:
    """Which epoch the certificate is about: the last one, or the one with the highest certified accuracy on validation data,
    among those with at least `least_steps` steps and a clean validation accuracy of at least `least_accuracy`; `per_step`: any
    step may be chosen, not only the last one of an epoch."""

    rule: str = "last"
    least_steps: int = 0
    least_accuracy: float = 0.0
    per_step: bool = False

    def __post_init__(self) -> None:
        if self.rule not in SELECTIONS:
            raise UserError(f"There is no selection called {self.rule!r}; choose one of {', '.join(SELECTIONS)}.")


@dataclass(frozen=True)
class EpochRecord:
    """State of the run after an epoch; validation points are bounded as the engine does by default (`mibp`: by intervals)."""

    epoch: int
    seconds: float
    radius_mean: float
    radius_max: float
    validation_nominal: float | None
    validation_certified: float | None
    programs: int
    nodes: int
    fallbacks: int
    unstable_gates: int
    unstable_relus: int
    gap_max: float | None

    def to_json(self) -> dict[str, Any]:
        plain = {key: getattr(self, key) for key in ("epoch", "seconds", "radius_mean", "radius_max")}
        if self.validation_certified is not None:
            plain["validation"] = {
                "nominal_accuracy": self.validation_nominal,
                "certified_accuracy": self.validation_certified,
            }
        if self.programs:
            for key in ("programs", "nodes", "fallbacks", "unstable_gates", "unstable_relus"):
                plain[key] = getattr(self, key)
            plain["gap_max"] = self.gap_max if self.gap_max is not None and math.isfinite(self.gap_max) else None
        return plain


@dataclass(frozen=True, eq=False)
class CertifiedRun:
    """Bounds on every parameter (`bounds.lower`, `bounds.upper`), the clean model `theta`, and certified predictions.

    Whatever dataset of the threat was really used, the parameters after exactly `steps` steps lie in `bounds`. If the bounds
    `diverged` before the training asked for was over, `bounds` and `theta` speak of an earlier step; whatever speaks of the
    trained model (`certify`, `ranges`, `save_bounds`, the questions) then abstains or refuses.
    """

    network: Network
    data: Split | Dataset
    threat: Threat
    test_threat: Threat | None
    """What may be wrong with the test inputs themselves."""
    training: Training
    engine: str
    soundness: str
    prediction: str
    solver: SolverSettings
    relational: RelationalSettings
    unroll: int
    start: Array
    """The initial parameters `θ₀`."""
    bounds: Box
    theta: Array
    steps: int
    """The certificate is about training for exactly this many steps."""
    select: Selection
    validation: tuple[float | None, float | None]
    """Clean and certified accuracy on the validation data, after these steps."""
    diverged: int | None
    """The step at which the bounds diverged, if they did."""
    history: tuple[EpochRecord, ...]
    programs: int
    nodes: int
    fallbacks: int
    outer: tuple[str, ...]
    """Views of the threat that are larger than the set itself, in words."""
    test: Predictions | None
    """Certified classes of the test points."""
    test_ranges: Ranges | None
    """Regression: ranges of the outputs of the test points, in the units of the targets."""
    nominal: NDArray[np.intp] | None
    """Classes that the clean model gives to the test points."""
    attack: Attack | None
    repeatable: bool
    """Whether the same request gives the same bits again; wall-clock limits of a solver cannot be repeated."""

    def __repr__(self) -> str:
        gone = "" if self.diverged is None else f", diverged at step {self.diverged}"
        return (
            f"CertifiedRun({self.engine}, {self.network.layout.size} parameters, {self.steps} steps, mean radius "
            f"{self.bounds.radius.mean():.3g}{gone})"
        )

    @property
    def batch_size(self) -> int:
        return effective_batch_size(len(self.train), self.training.batch_size)

    @property
    def nominal_accuracy(self) -> float | None:
        """Accuracy of the clean model on the test points."""
        if self.nominal is None or not isinstance(self.data, Split):
            return None
        return float(np.mean(self.nominal == self.data.test.y))

    @property
    def majority_accuracy(self) -> float | None:
        """Accuracy on the test points of always naming the most frequent class of the training rows."""
        if not isinstance(self.data, Split) or self.train.targets is not None:
            return None
        return float(np.mean(self.data.test.y == np.bincount(self.train.y).argmax()))

    @property
    def errors(self) -> dict[str, float | None]:
        """Regression: mean absolute error on the test points, clean, attacked and certified (the largest possible one for each
        point), and mean width of the outputs' ranges, attacked and certified, in the units of the targets; None where nothing
        is known."""
        if self.test_ranges is None or not isinstance(self.data, Split) or self.data.test.targets is None:
            return {}
        targets = self.train.in_units(self.data.test.targets)
        outputs = self.train.in_units(nominal_outputs(self.network, self.theta, self.data.test.x))
        found: dict[str, Any] = {
            "nominal_error": np.abs(outputs - targets),
            "certified_error": self.test_ranges.certified_error(targets),
            "range_mean": self.test_ranges.width,
        }
        if self.attack is not None:
            low, high = self.attack.outputs.low, self.attack.outputs.high
            found["attacked_error"] = np.maximum(high - targets, targets - low)
            found["attacked_range_mean"] = high - low
        means = {name: float(np.mean(values)) for name, values in found.items()}
        return {name: value if math.isfinite(value) else None for name, value in means.items()}

    @property
    def attacked_accuracy(self) -> float | None:
        """Share of test points that are right for the clean model and for every attacked one; certified can be no higher."""
        if self.attack is None or self.nominal is None or not isinstance(self.data, Split):
            return None
        return self.attack.attacked_accuracy(self.nominal, self.data.test.y)

    @property
    def train(self) -> Dataset:
        return self.data.train if isinstance(self.data, Split) else self.data

    @property
    def reached(self) -> bool:
        """Do the bounds reach the end of the training asked for? If they diverged before, nothing is known of its models."""
        return self.diverged is None or self.select.rule != "last"

    def check_reached(self) -> None:
        """Raise `UserError` if the bounds diverged before the training asked for was over."""
        if not self.reached:
            raise UserError(
                f"The bounds diverged at step {self.diverged}: nothing can be said about models trained any longer; use a "
                "smaller eps or learning rate, fewer epochs, or best-validation."
            )

    def certify(
        self,
        x: ArrayLike,
        method: str | None = None,
        *,
        threat: Threat | None = None,
        labels: ArrayLike | None = None,
        margin: float = 0.0,
    ) -> Predictions:
        """Certified class numbers of new rows; −1 where nothing can be certified.

        `threat`: what may be wrong with these rows themselves (default: nothing), with their `labels` if it depends on them;
        `margin`: how far the class must be ahead.
        """
        if self.train.targets is not None:
            raise UserError("This run is a regression: ask for ranges(x), not for classes.")
        return self.certify_inputs(self.inputs(x, threat, labels), method, margin)

    def certify_inputs(self, inputs: Inputs, method: str | None = None, margin: float = 0.0) -> Predictions:
        """Certified classes of inputs that are bound to their threat already."""
        method = method or self.prediction
        if not self.reached:
            return abstain(self.network, self.theta, inputs.x, method)
        return predict(self.network, self.bounds, inputs, method, self.solver, margin=margin)

    def inputs(self, x: ArrayLike, threat: Threat | None = None, labels: ArrayLike | None = None) -> Inputs:
        """Rows to predict, checked, with what may be wrong with them; `labels` where the threat depends on them."""
        try:
            rows = np.asarray(x, dtype=np.float64)
        except (TypeError, ValueError):
            raise UserError(
                "The inputs must be a table of numbers, encoded like the training data: recipe.apply(table)[0] encodes a table."
            ) from None
        if rows.ndim != 2 or rows.shape[1] != self.network.features or not len(rows):
            raise UserError(
                f"The inputs must be finite rows of {self.network.features} features, got shape {rows.shape}."
            )
        if not np.isfinite(rows).all():
            raise UserError("The inputs hold NaN or infinite values; they must be finite rows of encoded features.")
        return self.bind_inputs(rows, threat, labels)

    def bind_inputs(
        self,
        rows: Array,
        threat: Threat | None,
        labels: ArrayLike | None = None,
        missing: NDArray[np.bool_] | None = None,
    ) -> Inputs:
        """Encoded rows with what may be wrong with them; what is `missing` may be any value valid in training."""
        if threat is None:
            return Inputs(rows)
        check_threat(threat)
        columns = self.train.columns
        if self.train.targets is not None:
            plain = Dataset.regression(rows, np.zeros(len(rows)), columns, missing)
            return Inputs(rows, threat.bind(plain.ranged(self.train)))
        if labels is None and threat.reads_labels():
            raise UserError("The threat depends on the rows' labels; hand them in with labels=.")
        given = [self.train.classes[0]] * len(rows) if labels is None else labels
        labelled = Dataset.of(rows, given, self.train.classes, columns, missing)
        return Inputs(rows, threat.bind(labelled.ranged(self.train)))

    def test_inputs(self) -> Inputs:
        """The test rows, with what may be wrong with them."""
        assert isinstance(self.data, Split)
        test = self.data.test
        return Inputs(test.x, None if self.test_threat is None else self.test_threat.bind(test.ranged(self.train)))

    def ranges(self, x: ArrayLike, method: str | None = None, *, threat: Threat | None = None) -> Ranges:
        """Proven ranges of the network's outputs for new rows, for every model that training could have produced; those of a
        regression are in the units of its targets."""
        return self.ranges_of(self.inputs(x, threat), method)

    def ranges_of(self, inputs: Inputs, method: str | None = None) -> Ranges:
        """Proven ranges of the outputs for inputs that are bound to their threat already."""
        method = method or self.prediction
        if not self.reached:
            return unknown_ranges(self.network, inputs.x, method)
        return predict_ranges(self.network, self.bounds, inputs, method, self.solver).in_units(self.train.target)

    def predict(self, x: ArrayLike) -> NDArray[np.intp]:
        """Certified class numbers, −1 for abstain."""
        return self.certify(x).classes

    def certified_accuracy(self, x: ArrayLike, y: ArrayLike) -> float:
        """Share of all rows that are certified and correct; `y` holds labels as they were handed in."""
        answer, labels = self.certify(x), self.train.number(y)
        if labels.shape != answer.classes.shape:
            raise UserError(f"There are {len(answer.classes)} rows but {len(labels)} labels.")
        return answer.certified_accuracy(labels)

    def certification_rate(self, x: ArrayLike) -> float:
        """Share of all rows that are certified."""
        return self.certify(x).certification_rate()

    def save_bounds(self, path: str | Path) -> None:
        """Write `lower`, `upper`, the clean model `theta` and the parameters' names as a NumPy archive."""
        self.check_reached()
        names = np.array([self.network.layout.describe(i) for i in range(self.network.layout.size)])
        with Path(path).open("wb") as target:
            np.savez(target, lower=self.bounds.lower, upper=self.bounds.upper, theta=self.theta, names=names)

    def _optimiser_json(self) -> dict[str, Any]:
        """Settings of the optimiser that differ from plain descent."""
        training, plain = self.training, Training()
        names = ("momentum", "weight_decay", "clip", "schedule")
        return {name: getattr(training, name) for name in names if getattr(training, name) != getattr(plain, name)}

    def to_json(self) -> dict[str, Any]:
        """The run as plain data; the keys are a contract."""
        plain: dict[str, Any] = {
            "dataset": self.data.name if isinstance(self.data, Split) else None,
            "engine": self.engine,
            "seed": self.training.seed,
            "parameters": self.network.layout.size,
            "threat": self.threat.to_json(),
            **({} if self.test_threat is None else {"test_threat": self.test_threat.to_json()}),
            "network": self.network.sizes,
            "layers": self.network.describe(),
            "loss": self.training.loss,
            "learning_rate": self.training.learning_rate,
            **self._optimiser_json(),
            "batch_size": self.batch_size,
            "batch_mode": self.training.batch_mode,
            "init": self.training.init,
            "unroll": self.unroll,
            "epochs": [record.to_json() for record in self.history],
            "solver": {
                "name": self.solver.solver,
                "programs": self.programs,
                "nodes": self.nodes,
                "fallbacks": self.fallbacks,
                "gap": self.solver.gap,
            },
            "prediction": self.prediction,
            "select": self.select.rule,
            "steps": self.steps,
            "diverged": self.diverged,
            "steps_per_epoch": steps_per_epoch(len(self.train), self.batch_size),
            "soundness": self.soundness,
            "repeatable": self.repeatable,
            **({"outer": list(self.outer)} if self.outer else {}),
            "data_sha256": self.train.sha256,
            "versions": {
                "python": platform.python_version(),
                **{name.replace("-", "_"): version(name) for name in ("mibp-cert", "numpy", "scipy")},
            },
        }
        if self.test_ranges is not None and isinstance(self.data, Split):
            plain["test"] = {"n": len(self.data.test), **self.errors}
        elif self.test is not None and isinstance(self.data, Split):
            plain["test"] = {
                "n": len(self.data.test),
                "nominal_accuracy": self.nominal_accuracy,
                "majority_accuracy": self.majority_accuracy,
                "certified_accuracy": self.test.certified_accuracy(self.data.test.y),
                "certification_rate": self.test.certification_rate(),
            }
        if self.attack is not None:
            inner = self.attack.inner().radius
            if self.nominal is not None:
                plain["test"]["attacked_accuracy"] = self.attacked_accuracy
            plain["attack"] = {
                "datasets": len(self.attack.theta),
                "flips": self.attack.flips,
                "inner_radius_mean": float(inner.mean()),
                "outer_radius_mean": float(self.bounds.radius.mean()),
            }
        return plain
