"""What a certified training returns: bounds, the clean model, answers for the test points, and questions to all of them."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mibp_cert.certify.predict import (
    Answers,
    Attack,
    Predictions,
    Ranges,
    abstain,
    nominal_outputs,
    predict,
    predict_ranges,
    unknown_ranges,
)
from mibp_cert.certify.request import Request, Selection, check_threat
from mibp_cert.certify.shown import run_card
from mibp_cert.certify.worth import NumberWorth, Worth, majority
from mibp_cert.data import Dataset, Split, Task
from mibp_cert.engines import Engine, Inputs, ParameterSet, SolverSettings
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError
from mibp_cert.fitted import Fitted
from mibp_cert.nets import Network, Training
from mibp_cert.threats import Threat


def forwarded(path: str) -> Any:
    """A property that reads what a part of the run holds; declared as a `ClassVar`, so that it has a type and is no field."""
    return property(attrgetter(path))


@dataclass(frozen=True)
class EpochRecord:
    """State of the run after an epoch; validation points are bounded as the engine does by default (`mibp`: by intervals). Of
    `numbers`, validation figures are mean absolute errors, else accuracies."""

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
    numbers: bool = False

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        nominal, certified, gap = (plain.pop(k) for k in ("validation_nominal", "validation_certified", "gap_max"))
        solved = {k: plain.pop(k) for k in ("programs", "nodes", "fallbacks", "unstable_gates", "unstable_relus")}
        del plain["numbers"]
        if nominal is not None:
            what = "error" if self.numbers else "accuracy"
            plain["validation"] = {f"nominal_{what}": nominal, f"certified_{what}": certified}
        if self.programs:
            plain |= {**solved, "gap_max": gap if gap is not None and math.isfinite(gap) else None}
        return plain


def _weights_json(fitted: Fitted | None, train: Dataset) -> dict[str, Any]:
    """Weights of classes, and of rows by their number and sum (the rows' own are part of `data_sha256`)."""
    found: dict[str, Any] = {}
    if fitted is not None and fitted.class_weight is not None:
        given = fitted.class_weight
        found["class_weight"] = given if isinstance(given, str) else {str(k): float(v) for k, v in given.items()}
    if train.weights is not None:
        found["sample_weight"] = {"rows": int((train.weights > 0).sum()), "sum": float(train.weights.sum())}
    return found


@dataclass(frozen=True, eq=False)
class CertifiedRun:
    """Bounds on every parameter (`bounds.lower`, `bounds.upper`), the clean model `theta`, and certified predictions.

    Whatever dataset of the threat was really used, the parameters after exactly `steps` steps lie in `bounds`. If the bounds
    `diverged` before the training asked for was over, `bounds` and `theta` speak of an earlier step; whatever speaks of the
    trained model (`certify`, `ranges`, `save_bounds`, the questions) then abstains or refuses.
    """

    request: Request
    bounds: ParameterSet
    theta: Array
    steps: int
    """The certificate is about training for exactly this many steps."""
    validation: tuple[float | None, float | None]
    """Clean and certified accuracy (balanced where classes have weights) on the validation data, after these steps."""
    diverged: int | None
    """The step at which the bounds diverged, if they did."""
    history: tuple[EpochRecord, ...]
    programs: int
    nodes: int
    fallbacks: int
    answers: Answers
    """What was found about the test points."""

    def __repr__(self) -> str:
        gone = "" if self.diverged is None else f", diverged at step {self.diverged}"
        where = f"{self.steps} steps" if self.fitted is None else f"{self.fitted.name} at its minimum"
        return (
            f"CertifiedRun({self.engine}, {self.network.layout.size} parameters, {where}, mean radius "
            f"{self.bounds.radius.mean():.3g}{gone})"
        )

    def _repr_html_(self) -> str:
        return run_card(self)

    # What was asked for -----------------------------------------------------------------------------------------------

    network: ClassVar[Network] = forwarded("request.network")
    data: ClassVar[Split] = forwarded("request.data")
    train: ClassVar[Dataset] = forwarded("request.train")
    threat: ClassVar[Threat] = forwarded("request.threat")
    test_threat: ClassVar[Threat | None] = forwarded("request.test_threat")
    """What may be wrong with the test inputs themselves."""
    training: ClassVar[Training | Fitted] = forwarded("request.training")
    engine: ClassVar[str] = forwarded("request.engine")
    prediction: ClassVar[str] = forwarded("request.prediction")
    select: ClassVar[Selection] = forwarded("request.select")
    solver: ClassVar[SolverSettings] = forwarded("request.settings.solver")
    start: ClassVar[Array] = forwarded("request.start")
    """The initial parameters `θ₀`."""
    batch_size: ClassVar[int] = forwarded("request.plan.batch_size")
    repeatable: ClassVar[bool] = forwarded("request.settings.solver.repeatable")
    """Whether the same request gives the same bits again."""

    @property
    def fitted(self) -> Fitted | None:
        """The model, where it is fitted to its minimum; None: a network, trained in steps."""
        return self.training if isinstance(self.training, Fitted) else None

    @property
    def frozen(self) -> int:
        """How many parameters nothing changes: those of frozen features, which come first."""
        model = self.fitted
        return 0 if model is None or model.features is None else len(model.features.body(self.train.features)[1])

    @property
    def outer(self) -> tuple[str, ...]:
        """Views of the threat that are larger than the set itself, in words."""
        return () if self.request.made.solves else self.request.members.outer

    @property
    def soundness(self) -> str:
        """What the bounds rest on: the weaker of the engine's and the predictions' soundness."""
        made, predictor = self.request.made, self.request.predictor
        return predictor.soundness if predictor.soundness != "rounding-safe" else made.soundness

    # What was found ---------------------------------------------------------------------------------------------------

    test: ClassVar[Predictions | None] = forwarded("answers.test")
    """Certified classes of the test points."""
    test_ranges: ClassVar[Ranges | None] = forwarded("answers.test_ranges")
    """Regression: ranges of the outputs of the test points, in the units of the targets."""
    nominal: ClassVar[NDArray[np.intp] | None] = forwarded("answers.nominal")
    """Classes that the clean model gives to the test points."""
    attack: ClassVar[Attack | None] = forwarded("answers.attack")

    @property
    def nominal_accuracy(self) -> float | None:
        """Accuracy of the clean model on the test points."""
        test = self.data.test
        return None if self.nominal is None or test is None else float(np.mean(self.nominal == test.y))

    @property
    def majority_accuracy(self) -> float | None:
        """Accuracy on the test points of always naming the most frequent class of the training rows."""
        if self.data.test is None or self.train.task is Task.NUMBERS:
            return None
        return float(np.mean(self.data.test.y == majority(self.train)))

    @cached_property
    def worth(self) -> Worth | NumberWorth | None:
        """Is the model any good? Its accuracy (or error) beside that of an answer that looks at no column; None without test
        points."""
        test, answers = self.data.test, self.answers
        if test is None:
            return None
        if answers.test is not None and answers.nominal is not None:
            by_class = self.fitted is not None and self.fitted.by_class
            return Worth.of(self.train, test, answers.nominal, answers.test, answers.attack, by_class=by_class)
        errors = self.errors
        if not errors:
            return None
        clean, certified = (errors[f"{name}_error"] for name in ("nominal", "certified"))
        return NumberWorth.of(self.train, test, *(math.inf if error is None else error for error in (clean, certified)))

    @property
    def certified_test_accuracy(self) -> float | None:
        """Share of the test points that are certified and correct."""
        test = self.data.test
        return None if self.test is None or test is None else self.test.certified_accuracy(test.y)

    @property
    def attacked_accuracy(self) -> float | None:
        """Share of test points that are right for the clean model and for every attacked one; certified can be no higher."""
        if self.attack is None or self.nominal is None or self.data.test is None:
            return None
        return self.attack.attacked_accuracy(self.nominal, self.data.test.y)

    @property
    def errors(self) -> dict[str, float | None]:
        """Regression: mean absolute error on the test points, clean, attacked and certified (the largest possible one for each
        point), and mean width of the outputs' ranges, attacked and certified, in the units of the targets; None where nothing
        is known."""
        test = self.data.test
        if self.test_ranges is None or test is None or test.targets is None:
            return {}
        targets = self.train.in_units(test.targets)
        outputs = self.train.in_units(nominal_outputs(self.network, self.theta, test.x))
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
    def reached(self) -> bool:
        """Do the bounds reach the end of the training asked for? If they diverged before, nothing is known of its models."""
        return self.diverged is None or self.select.by_validation

    @property
    def decided(self) -> Request:
        """The same request with nothing left to choose: a training of exactly the steps that this run is about."""
        if not self.select.by_validation or self.fitted is not None:
            return self.request
        return replace(self.request, select=Selection(), steps=self.steps)

    def check_reached(self) -> None:
        """Raise `UserError` if the bounds diverged before the training asked for was over."""
        if not self.reached:
            raise UserError(
                f"The bounds diverged at step {self.diverged}: nothing can be said about models trained any longer; use a "
                "smaller eps or learning rate, fewer epochs, or best-validation."
            )

    # New rows ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def predictor(self, method: str | None = None) -> Iterator[Engine]:
        """The engine that bounds predictions, for a while."""
        engine = self.request.make_predictor(method)
        try:
            yield engine
        finally:
            engine.close()

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
        if self.train.task is Task.NUMBERS:
            raise UserError("This run is a regression: ask for ranges(x), not for classes.")
        return self.certify_inputs(self.inputs(x, threat, labels), method, margin)

    def certify_inputs(self, inputs: Inputs, method: str | None = None, margin: float = 0.0) -> Predictions:
        """Certified classes of inputs that are bound to their threat already."""
        with self.predictor(method) as engine:
            if not self.reached:
                return abstain(self.network, self.theta, inputs.x, engine.prediction)
            return predict(self.network, self.bounds, inputs, engine, margin)

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
        if labels is None and self.train.task is Task.CLASSES and threat.reads_labels():
            raise UserError("The threat depends on the rows' labels; hand them in with labels=.")
        return Inputs(rows, threat.bind(self.train.like(rows, labels, missing).ranged(self.train)))

    def test_inputs(self) -> Inputs:
        """The test rows, with what may be wrong with them."""
        return self.request.test_inputs()

    def ranges(self, x: ArrayLike, method: str | None = None, *, threat: Threat | None = None) -> Ranges:
        """Proven ranges of the network's outputs for new rows, for every model that training could have produced; those of a
        regression are in the units of its targets."""
        return self.ranges_of(self.inputs(x, threat), method)

    def ranges_of(self, inputs: Inputs, method: str | None = None) -> Ranges:
        """Proven ranges of the outputs for inputs that are bound to their threat already."""
        with self.predictor(method) as engine:
            if not self.reached:
                return unknown_ranges(self.network, inputs.x, engine.prediction)
            return predict_ranges(self.network, self.bounds, inputs, engine).in_units(self.train.target)

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

    # Files ------------------------------------------------------------------------------------------------------------

    def save_bounds(self, path: str | Path) -> None:
        """Write `lower`, `upper`, the clean model `theta` and the parameters' names as a NumPy archive."""
        self.check_reached()
        names = np.array([self.network.layout.describe(i) for i in range(self.network.layout.size)])
        with Path(path).open("wb") as target:
            np.savez(target, lower=self.bounds.lower, upper=self.bounds.upper, theta=self.theta, names=names)

    def to_json(self) -> dict[str, Any]:
        """The run as plain data; the keys are a contract."""
        training, usual = self.training, Training()
        told = {k: getattr(training, k, None) for k in ("seed", "learning_rate", "batch_mode", "init")}
        optimiser = ("momentum", "weight_decay", "clip", "schedule")
        penalty = ("C", "fit_intercept", "penalise_intercept", "multi")
        in_steps = isinstance(training, Training)
        plan = self.request.plan if in_steps else None
        return {
            "dataset": self.data.name,
            "model": "network" if self.fitted is None else self.fitted.name,
            "engine": self.engine,
            "seed": told["seed"],
            "parameters": self.network.layout.size,
            "threat": self.threat.to_json(),
            **({} if self.test_threat is None else {"test_threat": self.test_threat.to_json()}),
            "network": self.network.sizes,
            "layers": self.network.describe(),
            "loss": training.loss,
            "learning_rate": told["learning_rate"],
            **{
                k: getattr(training, k)
                for k in optimiser
                if getattr(training, k, None) != getattr(usual, k) and in_steps
            },
            **({} if self.fitted is None else {k: getattr(self.fitted, k) for k in penalty}),
            **_weights_json(self.fitted, self.train),
            **({} if self.fitted is None else self.fitted.features_json),
            "batch_size": None if plan is None else plan.batch_size,
            "batch_mode": told["batch_mode"],
            "init": told["init"],
            "unroll": self.request.settings.unroll if in_steps else None,
            "epochs": [record.to_json() for record in self.history] if in_steps else [],
            "solver": {
                "name": self.solver.solver,
                "programs": self.programs,
                "nodes": self.nodes,
                "fallbacks": self.fallbacks,
                "gap": self.solver.gap,
            },
            "prediction": self.prediction,
            "select": self.select.rule if in_steps else None,
            "steps": self.steps if in_steps else None,
            "diverged": self.diverged,
            "steps_per_epoch": None if plan is None else plan.per_epoch,
            "soundness": self.soundness,
            "repeatable": self.repeatable,
            **({"outer": list(self.outer)} if self.outer else {}),
            "data_sha256": self.train.sha256,
            "versions": {
                "python": platform.python_version(),
                **{name.replace("-", "_"): version(name) for name in ("mibp-cert", "numpy", "scipy")},
            },
            **self._found_json(),
        }

    def _found_json(self) -> dict[str, Any]:
        """What was found about the test points, and what the attacks reached."""
        found: dict[str, Any] = {}
        if self.data.test is not None and self.test_ranges is not None:
            worth = {} if self.worth is None else self.worth.to_json()
            found["test"] = {"n": len(self.data.test), **self.errors, **worth}
        elif self.data.test is not None and self.test is not None:
            found["test"] = {
                "n": len(self.data.test),
                "nominal_accuracy": self.nominal_accuracy,
                "majority_accuracy": self.majority_accuracy,
                "certified_accuracy": self.certified_test_accuracy,
                "certification_rate": self.test.certification_rate(),
                **({} if self.attack is None else {"attacked_accuracy": self.attacked_accuracy}),
                **({} if self.worth is None else self.worth.to_json()),
            }
        if self.attack is not None:
            found["attack"] = {
                "datasets": len(self.attack.theta),
                "flips": self.attack.flips,
                "inner_radius_mean": float(self.attack.inner().radius[self.frozen :].mean()),
                "outer_radius_mean": float(self.bounds.radius[self.frozen :].mean()),
            }
        return found
