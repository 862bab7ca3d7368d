"""What a certificate says of its model, read word by word: what nobody would read as it is meant here is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError

Floats = NDArray[np.float64]
ENTRIES = {"loss", "C", "fit_intercept", "penalise_intercept", "class_weight"}
"""What a model says of itself: all of it, and nothing else."""


def model_of(plain: Any, train: Dataset) -> tuple[str, bool, Floats, Floats]:
    """The loss, whether there is an intercept, the penalties `α`, and how much the rows of each class count; `UserError` where
    the certificate does not say that."""
    if not isinstance(plain, Mapping) or set(plain) != ENTRIES:
        raise UserError(f"A model says {', '.join(sorted(ENTRIES))}, and nothing else; the certificate says {plain!r}.")
    c, fit, penalised = (plain[name] for name in ("C", "fit_intercept", "penalise_intercept"))
    if not (_number(c) and c > 0 and math.isfinite(1.0 / c) and isinstance(fit, bool) and isinstance(penalised, bool)):
        raise UserError(
            f"C must be a number > 0, fit_intercept and penalise_intercept true or false; not {c!r}, {fit!r}, {penalised!r}."
        )
    alpha = np.append(np.full(train.features, 1.0 / c), 1.0 / c if penalised else 0.0)
    return plain["loss"], fit, alpha[: train.features + fit], _by_class(plain["class_weight"], train)


def _by_class(given: Any, train: Dataset) -> Floats:
    """Weights of all classes by their names; of a regression: none."""
    names = [str(name) for name in train.classes]
    if given is None:
        return np.ones(max(1, len(names)))
    fits = isinstance(given, Mapping) and bool(names) and set(given) == set(names)
    if not fits or not all(_number(weight) and weight >= 0 for weight in given.values()):
        raise UserError(f"class_weight is null or numbers ≥ 0 of all classes ({', '.join(names) or 'there are none'}).")
    return np.array([float(given[name]) for name in names])


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
