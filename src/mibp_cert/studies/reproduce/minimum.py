"""The same data and threats with a model that is fitted to its minimum: no training of the paper's, and no steps.

`C` is the one of a grid that validation rows prefer (`studies.choose`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.certify import AttackSettings, CertifiedRun, clean_models
from mibp_cert.certify.predict import nominal_classes
from mibp_cert.data import Split
from mibp_cert.doors import certify_fit
from mibp_cert.errors import Diverged
from mibp_cert.fitted import FITTED, MODELS, REGRESSIONS, Fitted, RandomFeatures
from mibp_cert.studies.choose import COARSE, GRID, choose_C
from mibp_cert.threats import Threat

FIT_ENGINE = next(iter(FITTED))
FIT_MODELS = tuple(name for name, loss in MODELS.items() if loss not in REGRESSIONS)
"""Models that the paper's tables, which are of classes, can be fitted with."""


@dataclass(frozen=True)
class Fit:
    """A fitted model: what it is called, and its number of random features (0: the columns themselves)."""

    model: str
    features: int

    def of(self, c: float, columns: int, seed: int) -> Fitted:
        """With this `C`, for data with so many columns; weights of features are drawn so that `w·x` spreads as with two columns
        and a scale of 2, whatever their number."""
        scale = 2.0 * float(np.sqrt(2.0 / columns))
        return Fitted(
            MODELS[self.model], c, features=RandomFeatures(self.features, scale, seed) if self.features else None
        )

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "features": self.features, "grid": GRID}

    def __str__(self) -> str:
        return self.model + (f", {self.features} tanh features" if self.features else "")


def fits_of(model: str | None, features: int) -> list[Fit]:
    """The rows of a table for a model: without features, and with as many as asked for."""
    return [] if model is None else [Fit(model, count) for count in dict.fromkeys((0, features))]


def best_fit(fit: Fit, data: Split, threat: Threat, seed: int, *, quick: bool) -> tuple[CertifiedRun, float] | None:
    """The run with the best `C`, and that one; None where no start is proven, not even for the smallest."""
    grid, columns = COARSE if quick else GRID, data.train.features
    try:
        best = choose_C(data, threat, fit.of(grid[0], columns, seed), grid).C
    except Diverged:
        return None
    settings = AttackSettings(members=20, points=40, parameters=20, rounds=2)
    return certify_fit(data, threat, fit.of(best, columns, seed), attack_settings=settings), best


def unproven(fit: Fit, data: Split, threat: Threat, seed: int, *, quick: bool) -> NDArray[np.intp]:
    """Classes that the clean model with the smallest `C` gives test rows: all there is to say without a proven start."""
    assert data.test is not None
    model = fit.of((COARSE if quick else GRID)[0], data.train.features, seed)
    network = model.network(data.train)
    (theta,) = clean_models(network, data, threat, model)
    return nominal_classes(network, theta, data.test.x)


def fit_notes(fits: list[Fit], *, quick: bool) -> list[str]:
    """What must be known to read such rows."""
    grid = ", ".join(f"{c:g}" for c in (COARSE if quick else GRID))
    notes = [
        f"{', '.join(map(str, fits))}: another training than the paper's, fitted to the minimum of a penalised loss, with no "
        "seed, batch or step in the certificate; steps are those of every other row",
        f"C is the one of {grid} (climbed until no start is proven) with the highest certified accuracy on validation rows among "
        "those whose clean accuracy there beats the majority; of alike ones the better clean one, then the smallest",
        "where no start is proven for the smallest C either, nothing is certified (0), and nothing is attacked",
    ]
    if any(fit.features for fit in fits):
        notes.append("features: tanh(w·x + b), w of deviation 2·√(2/columns), drawn from the seed of the split")
    return notes if fits else []
