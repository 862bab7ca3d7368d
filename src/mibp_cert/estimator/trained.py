"""Networks as estimators: trained in steps, with proven bounds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted

from mibp_cert.certify import AttackSettings, CertifiedRun
from mibp_cert.data import Dataset, Split
from mibp_cert.doors import Start, certify_training
from mibp_cert.engines import RelationalSettings, SolverSettings
from mibp_cert.errors import UserError
from mibp_cert.estimator.base import Certified, Classes, Numbers
from mibp_cert.nets import Network, Training
from mibp_cert.report.progress import show_training
from mibp_cert.threats import Threat
from mibp_cert.usual import OWN_CLASSES, OWN_NUMBERS, lonely_row, network_of, usual_batch, usual_logits

PASSED_ON = ("solver", "relational", "unroll", "prediction", "select", "run_dir", "resume")
"""Parameters that `certify_training` takes under the same names."""


@dataclass(eq=False, repr=False)
class _Trained(Certified):
    """What classifier and regressor share: the parameters of a training."""

    hidden: int | Sequence[int] = ()
    _: KW_ONLY
    threat: Threat | None = None
    engine: str = "relational"
    loss: str = OWN_CLASSES.loss
    learning_rate: float = OWN_CLASSES.learning_rate
    epochs: int = OWN_CLASSES.epochs
    batch_size: int | None = None
    """Rows of a step; None: all, up to 2,000."""
    random_state: int | np.random.RandomState | None = 0
    activation: str = "relu"
    logits: int | None = None
    network: Network | Start | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: str | Sequence[float] = "constant"
    init: str = "torch"
    batch_mode: str = "shuffle"
    select: str = "best-validation"
    validation_fraction: float = 0.2
    prediction: str | None = None
    unroll: int = 1
    solver: SolverSettings | None = None
    relational: RelationalSettings | None = None
    attack: AttackSettings | None = None
    categorical: Sequence[Any] | Mapping[Any, Sequence[Any]] | None = None
    ranges: Mapping[Any, tuple[float, float]] | None = None
    scaling: str = "standard"
    abstain_label: Any = None
    run_dir: str | None = None
    resume: bool = False
    verbose: int = 0

    narrower = "no hidden layer (hidden=()), fewer epochs"

    def _certified(self, whole: Dataset, progress: Progress) -> CertifiedRun:
        state = self.random_state
        seed = int(state if isinstance(state, int | np.integer) else check_random_state(state).randint(2**31))
        # Without doubt there is nothing to choose for: all rows are trained on.
        select = "last" if self.threat is None else self.select
        data = self._with_validation(whole, seed) if select == "best-validation" else Split.of(whole)
        network, start = self._network(data)
        # The settings of the training are parameters here, under the same names.
        given = {setting.name: getattr(self, setting.name) for setting in fields(Training) if setting.name != "seed"}
        rows = len(data.train)
        given["batch_size"] = usual_batch(rows) if self.batch_size is None else min(self.batch_size, rows)
        alone = lonely_row(rows, given["batch_size"])
        if alone is not None:
            warnings.warn(alone, UserWarning, stacklevel=4)
        if not isinstance(self.schedule, str):
            given["schedule"] = tuple(self.schedule)
        options = {name: getattr(self, name) for name in PASSED_ON}
        options |= {"theta0": start, "attacked": False, "select": select}
        asked = (network, data, self.threat, Training(seed=seed, **given), self.engine)
        return certify_training(*asked, callbacks=show_training(progress, self.engine), **options)

    def _with_validation(self, whole: Dataset, seed: int) -> Split:
        """Some rows kept for choosing the epoch."""
        if self.threat is not None and self.threat.uses_rows():
            raise UserError(
                "The threat names rows by their numbers, which change when some rows are kept for validation; use "
                "select='last', or a condition such as .where(column('age') >= 65)."
            )
        rows = np.random.default_rng([seed, 4]).permutation(len(whole))
        if whole.missing is not None:
            # Rows with missing values stay in training: validation rows are trusted, and the doubt is about the others.
            rows = rows[np.argsort(np.asarray(whole.missing.any(axis=1))[rows], kind="stable")]
        count = max(1, round(self.validation_fraction * len(whole)))
        if count >= len(whole):
            raise UserError("There are too few rows to keep some for validation; use select='last'.")
        check = whole.take(np.sort(rows[:count]))
        return Split("validation", whole.take(np.sort(rows[count:])), check, check)

    def _network(self, data: Split) -> tuple[Network, NDArray[np.float64] | None]:
        """The network, and what its training starts from where the user said so."""
        match self.network:
            case Start():
                return self.network.network, self.network.theta
            case Network():
                return self.network, None
            case None:
                hidden = (self.hidden,) if isinstance(self.hidden, int) else self.hidden
                logits = self.logits or usual_logits(data.train, self.loss)
                return network_of(data, hidden, self.activation, None, logits), None
        raise UserError(f"network is a Network or from_torch(module), got {type(self.network).__name__}.")

    @property
    def history_(self) -> list[dict[str, Any]]:
        """One record per epoch: seconds, mean and largest radius, validation."""
        check_is_fitted(self)
        return [record.to_json() for record in self.run_.history]


class CertifiedClassifier(Classes, _Trained):
    """A network whose every prediction is proven for all datasets of the threat, or `abstain_label_`.

    `threat=None` means clean data: nothing abstains but exact ties. Amounts of threats are in the units of the table; numeric
    columns are scaled inside (`scaling`), text columns become one-hot groups. Missing values need `Missing()` in the threat, and
    may then also be missing at prediction: the class is certified for every valid value.

    >>> from mibp_cert import CertifiedClassifier, LInf
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"]
    >>> model = CertifiedClassifier(hidden=(), threat=LInf(0.2), epochs=40, select="last").fit(X, y)
    >>> [str(answer) for answer in model.predict([[0.2], [1.5], [2.9]])]
    ['no', 'abstain', 'yes']
    """


@dataclass(eq=False, repr=False, kw_only=True)
class CertifiedRegressor(Numbers, _Trained):
    """A network for real targets, with proven ranges of its outputs for all datasets of the threat.

    `predict` gives the clean model's output, `predict_interval` its proven range; `score` is the worst R² that the ranges admit.
    Targets are scaled inside; amounts (`TargetNoise`), ranges and errors are in their own units.

    >>> from mibp_cert import CertifiedRegressor, TargetNoise
    >>> model = CertifiedRegressor(hidden=(), threat=TargetNoise(0.5), epochs=60, learning_rate=0.3)
    >>> low, high = model.fit([[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0]).predict_interval([[1.5]])[0]
    >>> bool(low < 4.0 < high and high - low < 1.1)
    True
    """

    loss: str = OWN_NUMBERS.loss
    learning_rate: float = OWN_NUMBERS.learning_rate
    epochs: int = OWN_NUMBERS.epochs
    # What is about classes is no parameter here.
    logits: int | None = field(default=None, init=False)
    select: str = field(default="last", init=False)
    validation_fraction: float = field(default=0.2, init=False)
    abstain_label: Any = field(default=None, init=False)

    def _dataset(self, x: NDArray[np.float64], y: NDArray[Any], missing: NDArray[np.bool_]) -> Dataset:
        targets = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        plain = Dataset.regression(x, targets, self.recipe_.columns, missing)
        return plain.with_target(plain.target_column())
