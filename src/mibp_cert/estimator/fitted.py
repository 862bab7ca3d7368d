"""Models at their minimum as estimators, named and parametrised like scikit-learn's: the same model, with proven bounds.

Columns and targets are taken as they are: nothing is scaled, so that `C` and `alpha` mean what they mean in scikit-learn. Scale
the table first where its columns differ much, with a scaler that is then fixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.progress import Progress
from sklearn.utils.validation import check_array, check_is_fitted

from mibp_cert.certify import AttackSettings, CertifiedRun
from mibp_cert.data import Dataset
from mibp_cert.doors import certify_fit
from mibp_cert.errors import UserError
from mibp_cert.estimator.base import Certified, Classes, Numbers, Table
from mibp_cert.fitted import FITTED, Features, Fitted
from mibp_cert.report.progress import show_training
from mibp_cert.threats import Threat

ENGINE = next(iter(FITTED))


class _Minimum(Certified):
    """What fitted models share: no scaling, no steps, and the clean model's coefficients."""

    scaling: ClassVar[str] = "none"  # type: ignore[misc]
    fit_intercept: bool

    def fit(self, X: Table, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit on every dataset that the threat allows, at once; `sample_weight`: how much each row counts, a fixed number ≥ 0."""
        one = isinstance(sample_weight, int | float | np.number)
        return self._fit(X, y, np.full(len(np.asarray(y)), sample_weight) if one else sample_weight)

    def _model(self) -> Fitted:
        """What is fitted."""
        raise NotImplementedError

    def _certified(self, whole: Dataset, progress: Progress) -> CertifiedRun:
        hear = show_training(progress, ENGINE, fit=True)
        return certify_fit(whole, self.threat, self._model(), ENGINE, attacked=False, callbacks=hear)

    def _coefficients(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weights (outputs × features) and intercepts of the model fitted to the data as handed in."""
        check_is_fitted(self)
        theta, outputs = self.run_.theta[self.run_.frozen :], self.run_.network.logits
        biases = outputs if self.fit_intercept else 0
        intercepts = theta[-outputs:] if self.fit_intercept else np.zeros(outputs)
        return theta[: len(theta) - biases].reshape(outputs, -1), intercepts


@dataclass(eq=False, repr=False)
class CertifiedLogisticRegression(Classes, _Minimum):
    """`LogisticRegression(C=C)`: every prediction is proven for all datasets of the threat, or `abstain_label_`.

    The certificate is about the minimum of the penalised loss, whatever optimiser finds it. `coef_` and `intercept_` are those of
    scikit-learn (for the data as handed in), `bounds_` holds them for all datasets. With `features` (`RandomFeatures`,
    `FrozenLayers`) they are those of the features.

    >>> from mibp_cert import CertifiedLogisticRegression, LInf
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"]
    >>> model = CertifiedLogisticRegression(C=1.0, threat=LInf(0.05)).fit(X, y)
    >>> [str(answer) for answer in model.predict([[0.2], [1.5], [2.9]])]
    ['no', 'abstain', 'yes']
    """

    C: float = 1.0
    _: KW_ONLY
    threat: Threat | None = None
    fit_intercept: bool = True
    features: Features | None = None
    attack: AttackSettings | None = None
    categorical: Sequence[Any] | Mapping[Any, Sequence[Any]] | None = None
    ranges: Mapping[Any, tuple[float, float]] | None = None
    abstain_label: Any = None
    verbose: int = 0
    class_weight: Mapping[Any, float] | str | None = None

    narrower = "a smaller C"

    def _model(self) -> Fitted:
        return Fitted("cross-entropy", self.C, self.fit_intercept, self.features, class_weight=self.class_weight)

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Weights of the clean model (1 × features, or a line for each of three or more classes)."""
        return self._coefficients()[0]

    @property
    def intercept_(self) -> NDArray[np.float64]:
        """Intercepts of the clean model; those of three or more classes have the sum 0."""
        return self._coefficients()[1]


@dataclass(eq=False, repr=False)
class CertifiedRidge(Numbers, _Minimum):
    """`Ridge(alpha=alpha)` with proven ranges of its outputs for all datasets of the threat.

    `predict` gives the clean model's output, `predict_interval` its proven range; `score` is the worst R² that the ranges admit.

    >>> from mibp_cert import CertifiedRidge, TargetNoise
    >>> model = CertifiedRidge(alpha=1.0, threat=TargetNoise(0.5)).fit([[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0])
    >>> model.predict_interval([[1.5]]).round(3).tolist()
    [[3.5, 4.5]]
    """

    alpha: float = 1.0
    _: KW_ONLY
    threat: Threat | None = None
    fit_intercept: bool = True
    features: Features | None = None
    attack: AttackSettings | None = None
    categorical: Sequence[Any] | Mapping[Any, Sequence[Any]] | None = None
    ranges: Mapping[Any, tuple[float, float]] | None = None
    verbose: int = 0

    narrower = "a larger alpha"

    def _dataset(self, x: NDArray[np.float64], y: NDArray[Any], missing: NDArray[np.bool_]) -> Dataset:
        targets = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        return Dataset.regression(x, targets, self.recipe_.columns, missing)

    def _model(self) -> Fitted:
        alpha = self.alpha
        if not isinstance(alpha, int | float | np.number) or not (math.isfinite(alpha) and alpha > 0):
            raise UserError(
                f"alpha must be a finite number > 0, got {alpha!r}: without a penalty nothing bounds how far wrong data move the "
                "minimum."
            )
        return Fitted("squared-error", 1.0 / alpha, self.fit_intercept, self.features)

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Weights of the clean model."""
        return np.asarray(self._coefficients()[0][0])

    @property
    def intercept_(self) -> float:
        """Intercept of the clean model."""
        return float(self._coefficients()[1][0])
