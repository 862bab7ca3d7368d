"""Models at their minimum at the edges: command line, configuration, JSON, report and estimators."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from mibp_cert import CertifiedLogisticRegression, CertifiedRidge


@parametrize_with_checks([CertifiedLogisticRegression(), CertifiedRidge()])
def test_scikit_learn_accepts_the_estimators(estimator: Any, check: Any) -> None:
    check(estimator)
