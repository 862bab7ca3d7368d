"""What all estimators share: tables in, the run behind them, answers for classes and for numbers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from rich.progress import Progress
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data

from mibp_cert.certify import AttackSettings, CertifiedRun
from mibp_cert.certify.predict import nominal_classes, nominal_outputs
from mibp_cert.certify.request import check_threat, with_missing
from mibp_cert.certify.tables import abstaining, attack_rows, class_table, named, range_table
from mibp_cert.data import Dataset, Recipe
from mibp_cert.data.dataset import check_plain
from mibp_cert.engines import Inputs, ParameterSet
from mibp_cert.errors import UserError
from mibp_cert.report.progress import progress_bars
from mibp_cert.studies.blame import Blame, blame
from mibp_cert.threats import Threat

Table = pd.DataFrame | ArrayLike
Labels = ArrayLike | None
"""True labels or targets, where they are known."""


class Certified(BaseEstimator):
    """Tables in, and the run behind them. The attributes named first are parameters of every estimator, or fixed by it."""

    threat: Threat | None
    attack: AttackSettings | None
    categorical: Sequence[Any] | Mapping[Any, Sequence[Any]] | None
    ranges: Mapping[Any, tuple[float, float]] | None
    scaling: str
    abstain_label: Any
    verbose: int
    run_: CertifiedRun
    narrower: str
    """What to try where the bounds are too wide."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._knows_missing()
        return tags

    def _knows_missing(self) -> bool:
        return isinstance(self.threat, Threat) and self.threat.knows_missing()

    # Tables -----------------------------------------------------------------------------------------------------------

    def _frame(self, X: Table, *, reset: bool) -> pd.DataFrame:
        """The rows as a table with text as column names; arrays must be numbers."""
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if not len(X):
                raise UserError(
                    f"The table is empty: found array with 0 sample(s) (shape={X.shape}), minimum 1 is required."
                )
            return X.rename(columns=str)
        check_plain(X, "features")
        values = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
        return pd.DataFrame(values, columns=[str(j) for j in range(values.shape[1])])

    def _features(self, frame: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        x, missing = self.recipe_.apply(frame)
        if missing.any() and not self._knows_missing():
            names = ", ".join(repr(c.name) for j, c in enumerate(self.recipe_.columns) if missing[:, j].any())
            raise UserError(
                f"Input X contains NaN in {names}: fill the missing values in, or say that they may be anything with "
                "threat=Missing()."
            )
        return x, missing

    def _inputs(self, X: Table, threat: Threat | None = None) -> tuple[Inputs, Any]:
        """Rows to predict with what may be wrong with them: missing values may be anything valid."""
        check_is_fitted(self)
        frame = self._frame(X, reset=False)
        x, missing = self._features(frame)
        return self.run_.bind_inputs(x, with_missing(threat) if missing.any() else threat, missing=missing), frame.index

    # Fitting ----------------------------------------------------------------------------------------------------------

    def _dataset(self, x: NDArray[np.float64], y: NDArray[Any], missing: NDArray[np.bool_]) -> Dataset:
        """The training data, with targets that are checked first."""
        raise NotImplementedError

    def _certified(self, whole: Dataset, progress: Progress) -> CertifiedRun:
        """The run on these data."""
        raise NotImplementedError

    def fit(self, X: Table, y: ArrayLike) -> Self:
        """Train on every dataset that the threat allows, at once."""
        return self._fit(X, y, None)

    def _fit(self, X: Table, y: ArrayLike, weights: ArrayLike | None) -> Self:
        """`fit`, with rows that count so much each."""
        check_threat(self.threat)
        frame = self._frame(X, reset=True)
        if y is None:
            raise UserError("The estimator requires y to be passed, but the target y is None.")
        check_plain(y, "targets")
        targets = column_or_1d(y, warn=True)
        check_consistent_length(frame, targets)
        self.recipe_ = Recipe.fit(frame, categorical=self.categorical, ranges=self.ranges, scaling=self.scaling)
        x, missing = self._features(frame)
        whole = self._dataset(x, targets, missing).named(frame.index).weighted(weights)
        with progress_bars(quiet=not self.verbose, transient=False) as progress:
            self.run_ = self._certified(whole, progress)
        self._warn_if_useless(whole)
        return self

    def _warn_if_useless(self, whole: Dataset) -> None:
        """Warn the caller of `fit` where nothing at all can be certified."""
        said = ""
        if not self.run_.reached:
            said = (
                f"The bounds diverged at step {self.run_.diverged}: nothing can be certified, and predict_nominal is the clean "
                f"model after step {self.run_.steps} only; use a smaller eps or learning rate, or fewer epochs."
            )
        elif self.threat is not None and whole.targets is None:
            rows = np.linspace(0, len(whole) - 1, min(len(whole), 50)).astype(np.intp)
            if not self.run_.certify_inputs(Inputs(whole.x[rows])).certified.any():
                said = (
                    "Nothing is certified, not even for the training rows: the bounds are too wide. Try "
                    f"{self.narrower}, or less doubt."
                )
        if said:
            warnings.warn(said, ConvergenceWarning, stacklevel=4)

    # What was found ---------------------------------------------------------------------------------------------------

    @property
    def bounds_(self) -> ParameterSet:
        """Bounds of every trained parameter: `bounds_.lower`, `bounds_.upper`; refused where they diverged."""
        check_is_fitted(self)
        self.run_.check_reached()
        return self.run_.bounds

    def predict_interval(self, X: Table, *, threat: Threat | None = None) -> NDArray[np.float64]:
        """Proven ranges of the logits (rows × logits × 2), over every model that training could have produced."""
        inputs, _ = self._inputs(X, threat)
        found = self.run_.ranges_of(inputs).outputs
        return np.stack([found.low, found.high], axis=-1)

    def blame(self, X: Table, *, top: int = 10, verified: bool = True) -> Blame:
        """Which training rows carry the uncertainty of these predictions, and what re-checking them would be worth."""
        inputs, _ = self._inputs(X)
        return blame(self.run_, x=inputs, top=top, verified=verified)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "run_")


class Classes(ClassifierMixin, Certified):
    """A certified class, or the label for abstaining."""

    def _dataset(self, x: NDArray[np.float64], y: NDArray[Any], missing: NDArray[np.bool_]) -> Dataset:
        if y.dtype.kind == "O" and pd.isna(y).any():
            raise UserError(f"y has {int(pd.isna(y).sum())} missing value(s); leave those rows out.")
        if y.dtype.kind == "f":
            check_array(y, ensure_2d=False, input_name="y")
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise UserError(f"Training needs at least two classes; y has 1 class, {self.classes_[0]!r}.")
        self.abstain_label_ = abstaining(self.classes_, self.abstain_label)
        return Dataset.of(x, y, tuple(self.classes_.tolist()), self.recipe_.columns, missing)

    def _names(self, classes: NDArray[np.intp]) -> NDArray[Any]:
        """Class numbers as the labels handed in, −1 as the label for abstaining."""
        if (classes < 0).any() and self.abstain_label is None and -1 in self.classes_.tolist():
            warnings.warn(
                f"−1 is a class: {str(self.abstain_label_).replace('-', '−')} stands for abstaining (abstain_label_); choose "
                "another value with abstain_label=…, or read the table of certify().",
                stacklevel=3,
            )
        return named(self.classes_, classes, self.abstain_label_)

    def predict(self, X: Table, *, threat: Threat | None = None, margin: float = 0.0) -> NDArray[Any]:
        """The certified class of each row, or `abstain_label_`; `threat`: what may be wrong with these rows themselves."""
        inputs, _ = self._inputs(X, threat)
        return self._names(self.run_.certify_inputs(inputs, margin=margin).classes)

    def predict_nominal(self, X: Table) -> NDArray[Any]:
        """The class that the model trained on the data as handed in gives; no promise."""
        inputs, _ = self._inputs(X)
        return self._names(nominal_classes(self.run_.network, self.run_.theta, inputs.x))

    def certify(
        self, X: Table, y: Labels = None, *, threat: Threat | None = None, margin: float = 0.0, attack: bool = True
    ) -> pd.DataFrame:
        """A table with one line per row, index kept: class (or the word "abstain"), certified, margin bounds, attacked class,
        reason for abstaining; with `y`, also the true label and whether a certified class is correct."""
        inputs, index = self._inputs(X, threat)
        answer = self.run_.certify_inputs(inputs, margin=margin)
        found = attack_rows(self.run_, inputs, self.attack) if attack else None
        table = class_table(self.run_, inputs, answer, found, index)
        if y is not None:
            labels = column_or_1d(y)
            check_consistent_length(table, labels)
            table.insert(1, "label", labels)
            table.insert(2, "correct", answer.certified & (self.classes_[answer.classes] == labels))
        return table


class Numbers(RegressorMixin, Certified):
    """The clean model's output, and its proven range."""

    def predict(self, X: Table) -> NDArray[np.float64]:
        """The output of the model trained on the data as handed in; `predict_interval` is what is proven."""
        inputs, _ = self._inputs(X)
        return self.run_.train.in_units(nominal_outputs(self.run_.network, self.run_.theta, inputs.x))[:, 0]

    def predict_nominal(self, X: Table) -> NDArray[np.float64]:
        """The same as `predict`."""
        return self.predict(X)

    def predict_interval(self, X: Table, *, threat: Threat | None = None) -> NDArray[np.float64]:
        """Proven ranges of the outputs (rows × 2), infinite where nothing is known."""
        return super().predict_interval(X, threat=threat)[:, 0]

    def certify(self, X: Table, y: Labels = None, *, threat: Threat | None = None, attack: bool = True) -> pd.DataFrame:
        """A table with one line per row, index kept: nominal output, its proven range, what attacks reach; with `y`, also the
        target and the largest error that is possible."""
        inputs, index = self._inputs(X, threat)
        found = attack_rows(self.run_, inputs, self.attack) if attack else None
        table = range_table(self.run_, inputs, None, found, index)
        if y is not None:
            targets = np.asarray(column_or_1d(y), dtype=np.float64)
            check_consistent_length(table, targets)
            table.insert(0, "target", targets)
            table.insert(4, "largest_error", np.maximum(table["high"] - targets, targets - table["low"]))
        return table

    def score(self, X: Table, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The smallest R² that the proven ranges admit: `1 − Σ w·max(high − y, y − low)² / Σ w·(y − ȳ)²`."""
        targets = np.asarray(column_or_1d(y), dtype=np.float64)
        low, high = self.predict_interval(X).T
        weight = np.ones(len(targets)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        worst = np.maximum(high - targets, targets - low)
        spread = float((weight * (targets - np.average(targets, weights=weight)) ** 2).sum())
        lost = float((weight * worst**2).sum())
        return 1.0 - lost / spread if spread > 0 else float(lost == 0)
