"""A request: everything that determines a run, bit for bit, made once at the edge and carried as one object.

`to_json` and `arrays` are what a run directory keeps of it; `Request.of_json` reads them back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np

from mibp_cert.certify.attack import AttackSettings
from mibp_cert.certify.forecast import check_memory
from mibp_cert.certify.plain import (
    arrays_of,
    column_json,
    dataset_of,
    finite,
    layer_json,
    layer_of,
    scalar,
    training_json,
    training_of,
    weights_sha256,
)
from mibp_cert.data import Dataset, Origin, Split, Task
from mibp_cert.engines import (
    Engine,
    EngineSettings,
    Inputs,
    Progress,
    RelationalSettings,
    SolverSettings,
    engine_named,
    prediction_named,
)
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError
from mibp_cert.fitted import BALANCED, FITTED, DualEngine, Fitted
from mibp_cert.nets import Network, Plan, Training
from mibp_cert.sets import ThreatSet
from mibp_cert.sets.base import digest_of
from mibp_cert.threats import Catalogued, Missing, Threat, threat_from_json

SELECTIONS = ("last", "best-validation")
_ELSEWHERE = ("jobs", "parallel")
"""Settings of the solver that say where programs run; they change no bit of the result."""


@dataclass(frozen=True)
class Selection:
    """Which epoch the certificate is about: the last one, or the one with the best certified figure on validation data among
    those that beat the baseline there (`certify.choice`), or have a clean accuracy of at least `least_accuracy`, where one is
    given; `least_steps`: after at least so many steps; `per_step`: any step may be chosen, not only the last one of an epoch."""

    rule: str = "last"
    least_steps: int = 0
    least_accuracy: float | None = None
    per_step: bool = False

    def __post_init__(self) -> None:
        if self.rule not in SELECTIONS:
            raise UserError(f"There is no selection called {self.rule!r}; choose one of {', '.join(SELECTIONS)}.")

    @property
    def by_validation(self) -> bool:
        return self.rule == "best-validation"


@dataclass(frozen=True, eq=False)
class Request:
    """What is asked for, with nothing left open; `check` refuses what cannot be done."""

    network: Network
    data: Split
    threat: Threat
    training: Training | Fitted
    engine: str
    settings: EngineSettings
    prediction: str
    select: Selection
    start: Array
    """The initial parameters `θ₀`."""
    test_threat: Threat | None = None
    """What may be wrong with the test inputs themselves."""
    attack: AttackSettings | None = field(default_factory=AttackSettings)
    """None: no attack."""
    steps: int | None = None
    """The training ends after exactly so many steps; None: after all of its own."""

    def check(self) -> None:
        """Raise `UserError` for what cannot be done."""
        self.check_parts()
        check_memory(self.network, self.train, self.threat, self.training, self.made)

    def check_parts(self) -> None:
        """Raise `UserError` for parts that do not fit each other."""
        train, made, predictor = self.train, self.made, self.predictor
        if train.features != self.network.features:
            raise UserError(
                f"The data have {train.features} columns but the network takes {self.network.features}; change its first size."
            )
        if predictor.own_sets and predictor is not made:
            raise UserError(
                f"{predictor.name.capitalize()} prediction needs the engine '{predictor.name}'; choose --predict interval or "
                "exact."
            )
        self._check_rows()
        made.check_settings(self.settings)
        predictor.check_settings(replace(self.settings, unroll=1))
        if self.select.by_validation and self.data.validation is None:
            raise UserError("Choosing the epoch on validation data needs data with a validation part.")
        if self.start.shape != (self.network.layout.size,) or not np.isfinite(self.start).all():
            raise UserError(f"The initial parameters must be {self.network.layout.size} finite numbers.")
        self.training.check(self.network, train)
        if isinstance(self.training, Fitted) and self.network.logits > 1 and made is not DualEngine:
            raise UserError(
                f"The engine '{self.engine}' knows fitted models of one score; three or more classes are bounded by 'dual'."
            )

    def _check_rows(self) -> None:
        """Rows come and go, and have weights, in the training data of fitted models alone; none may be anything."""
        anything = self.threat.anything() or ("" if self.test_threat is None else self.test_threat.anything())
        if anything:
            raise UserError(
                f"The engine '{self.engine}' bounds what rows that are off can do, not rows that may be anything: "
                f"{anything} is for ensembles (PartitionedClassifier, --ensemble partitions:50)."
            )
        coming = self.threat.changes_rows()
        if coming and not self.made.knows_rows:
            raise UserError(
                f"The engine '{self.engine}' bounds a training in steps, whose batches are made of fixed rows: it does not know "
                f"{coming}; fit a model instead (certify_fit, --model logistic or ridge)."
            )
        asked = "" if self.test_threat is None else self.test_threat.changes_rows()
        if asked:
            raise UserError(f"The rows to predict are those asked for: {asked} is about training data only.")
        if not isinstance(self.training, Fitted):
            if self.train.weights is not None:
                raise UserError(
                    "Weights of rows belong to fitted models (certify_fit); a training in steps knows none."
                )
        elif self.training.class_weight == BALANCED:
            hull = self.members.hull()
            if coming or (self.train.task is Task.CLASSES and (hull.y_low < hull.y_high).any()):
                raise UserError(
                    "class_weight='balanced' depends on the labels, and the threat lets them (or the rows) be others: give the "
                    "weights as numbers, class_weight={class: weight}."
                )

    @property
    def train(self) -> Dataset:
        return self.data.train

    @property
    def made(self) -> type[Engine]:
        """The engine asked for."""
        if not isinstance(self.training, Fitted):  # the two kinds of training have engines of their own
            return engine_named(self.engine)
        if self.engine not in FITTED:
            raise UserError(
                f"The engine {self.engine!r} bounds trainings in steps; fitted models have {', '.join(FITTED)}."
            )
        return FITTED[self.engine]

    @property
    def predictor(self) -> type[Engine]:
        """The engine whose bounds of predictions were asked for."""
        return self._predictor(self.prediction)

    def _predictor(self, prediction: str) -> type[Engine]:
        if prediction == self.made.prediction:
            return self.made
        if isinstance(self.training, Fitted):
            if prediction == DualEngine.prediction:
                return DualEngine  # what every set of minimisers knows
            raise UserError(f"Predictions of fitted models are bounded by their own engine, not by {prediction!r}.")
        return prediction_named(prediction)

    @property
    def drawn(self) -> bool:
        """Are the initial parameters those that the training itself starts from, and not handed in?"""
        if isinstance(self.training, Fitted):
            return bool(np.array_equal(self.start, self.training.start(self.train)))
        return bool(np.array_equal(self.start, self.network.initialise(self.training.seed, self.training.init)))

    @cached_property
    def members(self) -> ThreatSet:
        """The set of training data that may have been used."""
        return self.threat.bind(self.train)

    @cached_property
    def plan(self) -> Plan:
        """The whole training, one step in each graph."""
        # A fit also reads the rows that may come.
        data = self.members.clean if self.threat.changes_rows() else self.train
        return self.training.plan(self.network, data, self.start).first(self.steps)

    @cached_property
    def unrolled(self) -> Plan:
        """The whole training, as many steps in a graph as the engine takes at once."""
        return (
            self.plan
            if self.settings.unroll == 1
            else self.training.plan(self.network, self.train, self.start, self.settings.unroll).first(self.steps)
        )

    def test_inputs(self) -> Inputs:
        """The test rows, with what may be wrong with them."""
        test = self.data.test
        assert test is not None
        return Inputs(test.x, None if self.test_threat is None else self.test_threat.bind(test.ranged(self.train)))

    def make_engine(self, progress: Progress | None = None) -> Engine:
        return self.made.of(self.settings, progress)

    def make_predictor(self, prediction: str | None = None) -> Engine:
        """The engine that bounds predictions: the one asked for, or another."""
        made = self.predictor if prediction is None else self._predictor(prediction)
        return made.of(replace(self.settings, unroll=1))

    @property
    def quick(self) -> str:
        """The prediction for thousands of points: the one asked for, or a quicker one."""
        return self.make_predictor().validating().prediction

    # On disk ----------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Plain data; the numbers of the data themselves and of `θ₀` are in `arrays`."""
        train, test, solver = self.train, self.data.test, self.settings.solver
        return {
            "name": self.data.name,
            "shape": self.network.shape,
            "layers": [layer_json(layer) for layer in self.network.layers],
            "threat": self.threat.to_json(),
            "threat_sha256": digest_of(self.members),
            "training": training_json(self.training),
            "engine": self.engine,
            "solver": {k: finite(v) for k, v in asdict(solver).items() if k not in _ELSEWHERE},
            "relational": asdict(self.settings.relational),
            "unroll": self.settings.unroll,
            **({} if self.settings.thorough else {"thorough": False}),
            "select": asdict(self.select),
            "prediction": self.prediction,
            "test_threat": None if self.test_threat is None else self.test_threat.to_json(),
            "test_threat_sha256": None
            if self.test_threat is None or test is None
            else digest_of(self.test_threat.bind(test)),
            "attack": None if self.attack is None else asdict(self.attack),
            **({} if self.steps is None else {"steps": self.steps}),
            # Said only where they are not those that the seed draws: no other seed can be written beside these.
            **({} if self.drawn else {"handed_in": True}),
            "repeatable": solver.repeatable,
            "data": {
                "classes": [scalar(c) for c in train.classes],
                "columns": [column_json(column) for column in train.columns],
                "target": None if train.target is None else column_json(train.target),
                **({} if self.data.origin is None else {"origin": asdict(self.data.origin)}),
                # Said here, too, so that rows whose weights were lost are not taken for rows that count alike.
                **(
                    {}
                    if train.weights is None
                    else {"weights_sha256": weights_sha256({"train_weights": train.weights})}
                ),
            },
            "versions": {name.replace("-", "_"): version(name) for name in ("mibp-cert", "numpy", "scipy")},
        }

    def arrays(self) -> dict[str, Any]:
        found: dict[str, Any] = {"start": self.start}
        for name, part in self.data.parts.items():
            found |= arrays_of(name, part)
        return found

    @classmethod
    def of_json(cls, plain: Mapping[str, Any], arrays: Mapping[str, Array], threat: Threat | None = None) -> Request:
        """The request that these describe; `threat` where it cannot be written to a file (rules)."""
        parts = {
            name: dataset_of(name, arrays, plain["data"])
            for name in ("train", "validation", "test")
            if f"{name}_x" in arrays
        }
        origin = _origin_of(plain["data"].get("origin"), parts["train"])
        layers, shape = tuple(map(layer_of, plain["layers"])), plain["shape"]
        network = Network(layers, tuple(shape) if isinstance(shape, list) else shape)
        solver: dict[str, Any] = {
            k: math.inf if v is None and k.startswith("seconds") else v for k, v in plain["solver"].items()
        }
        return cls(
            network,
            Split(plain["name"], parts["train"], parts.get("validation"), parts.get("test"), origin=origin),
            threat_from_json(plain["threat"]) if threat is None else threat,
            training_of(plain["training"], network, arrays["start"]),
            plain["engine"],
            EngineSettings(
                SolverSettings(**solver),
                RelationalSettings(**plain["relational"]),
                plain["unroll"],
                plain.get("thorough", True),
            ),
            plain["prediction"],
            Selection(**plain["select"]),
            arrays["start"],
            None if plain["test_threat"] is None else threat_from_json(plain["test_threat"]),
            None if plain["attack"] is None else AttackSettings(**plain["attack"]),
            plain.get("steps"),
        )


def _origin_of(plain: Mapping[str, Any] | None, train: Dataset) -> Origin | None:
    """The table that data come from, as it was written; runs of before have none."""
    if plain is None:
        return None
    found = Origin(plain["target"], tuple(plain["order"]), plain["left_out"])
    known = {found.target, *found.left_out, *(column.name for column in train.columns)}
    if not all(isinstance(text, str) for text in (*found.order, *known, *found.left_out.values())):
        raise TypeError("names of columns are texts")
    if set(found.order) != known:
        raise ValueError("the table has other columns than its rows")
    return found


def check_threat(threat: object) -> None:
    """Raise `UserError` for what is no threat, such as a bare number; None stands for no threat at all."""
    if threat is not None and not isinstance(threat, Threat):
        raise UserError(f"A threat says what may be wrong, such as LInf(0.01); got {threat!r}.")


def with_missing(threat: Threat | None) -> Threat:
    """A threat on rows that have missing values: these may be any valid value, too."""
    if threat is None:
        return Missing()
    if not isinstance(threat, Catalogued):
        raise UserError("The rows have missing values, which rules cannot be combined with; fill them in.")
    return threat if threat.knows_missing() else threat & Missing()
