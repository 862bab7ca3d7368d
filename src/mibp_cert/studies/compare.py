"""Engines or threats side by side, on the same data, seed and initial weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mibp_cert.card import number
from mibp_cert.certify.request import Selection
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.certify.worth import majority, mean_error
from mibp_cert.data import Dataset, Split, Task
from mibp_cert.doors import certify_model
from mibp_cert.errors import Diverged, UserError
from mibp_cert.fitted import DualEngine, Fitted
from mibp_cert.nets import Network, Training
from mibp_cert.parallel import spread
from mibp_cert.studies.recipe import decide
from mibp_cert.threats import Threat

COLUMNS = ("certified", "rate", "attacked", "clean", "radius", "seconds", "steps", "diverged")
ERRORS = {"certified": "certified error", "rate": "range width", "attacked": "attacked error", "clean": "clean error"}
"""What the columns of a regression are, in words."""


def compare(
    network: Network | None,
    data: Split | Dataset,
    threats: Mapping[str, Threat] | Threat,
    training: Training | Fitted | None = None,
    engines: Sequence[str] | None = None,
    *,
    select: str | Selection = "last",
    parallel: str = "local",
    jobs: int | None = 1,
    hear: Callable[[int, int], None] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """One line for every threat and engine (default: `interval` and `relational`); `options` go to `certify_training`. Where
    `training` is a `Fitted` model (`network`: None), to `certify_fit`: such lines can stand below those of a network.

    Accuracies are in per cent of all test points (a regression has mean absolute errors instead, and the mean width of its ranges
    as `rate`), `radius` is the mean radius of the parameters' bounds, `seconds` are per epoch (or fit). With
    `select="best-validation"`, the number of steps is chosen once, for the first threat (by the engine `relational`, or the first
    one named), and all lines are about the same training: `attrs["made"]` says which.

    >>> from mibp_cert import LInf, Network, Training, compare, two_moons
    >>> found = compare(Network.mlp([2, 2]), two_moons(0), {"little": LInf(0.01)}, Training(epochs=2), attacked=False)
    >>> found.index.tolist()
    [('little', 'interval'), ('little', 'relational')]
    """
    if engines is None:
        engines = (DualEngine.name,) if isinstance(training, Fitted) else ("interval", "relational")
    named = {"threat": threats} if isinstance(threats, Threat) else dict(threats)
    if not named or not engines:
        raise UserError("There is nothing to compare: name at least one threat and one engine.")
    units = [(threat, engine) for threat in named.values() for engine in engines]
    decided = decide(network, data, list(named.values()), training or Training(), engines, select, **options)
    one = partial(_one, network, Split.of(data), decided.training, {**options, **decided.options})
    lines = spread(one, units, parallel, jobs, hear)
    index = pd.MultiIndex.from_product([list(named), list(engines)], names=["threat", "engine"])
    found = pd.DataFrame(lines, index=index, columns=list(COLUMNS))
    found.attrs["made"] = decided.words(next(iter(named.values())).words() if len(named) == 1 else "")
    return found


def _one(
    network: Network | None,
    data: Split,
    training: Training | Fitted,
    options: dict[str, Any],
    unit: tuple[Threat, str],
) -> dict[str, Any]:
    try:
        return figures(certify_model(network, data, unit[0], training, unit[1], **options))
    except Diverged:
        scores = {} if data.train.task is Task.NUMBERS else {"certified": 0.0, "rate": 0.0}
        return {**scores, "steps": 0, "diverged": True}


def in_words(lines: pd.DataFrame, data: Split) -> tuple[pd.DataFrame, str]:
    """The lines with the names of their columns as a person reads them, what they are measured in, and what an answer that looks
    at no column has."""
    train, test = data.train, data.tested
    if train.task is Task.CLASSES:
        usual = majority(train)
        base = f"always answering {train.classes[usual]!r} has {100 * np.mean(test.y == usual):.1f}"
        return lines, f"Accuracies are in per cent of all test points; {base}."
    base = f"always answering the mean has {number(mean_error(train, test))}"
    units = "Errors are mean absolute errors on the test points, in the units of the target"
    return lines.rename(columns=ERRORS), f"{units}; {base}."


def figures(run: CertifiedRun) -> dict[str, Any]:
    """What came out, by the names of `COLUMNS`; for a regression, mean absolute errors and the mean width of the ranges."""
    if run.test_ranges is not None:
        errors = run.errors
        scores = [errors.get(name) for name in ("certified_error", "range_mean", "attacked_error", "nominal_error")]
    else:
        rate = None if run.test is None else run.test.certification_rate()
        shares = run.certified_test_accuracy, rate, run.attacked_accuracy, run.nominal_accuracy
        scores = [None if share is None else 100.0 * share for share in shares]
    seconds = sum(record.seconds for record in run.history) / max(1, len(run.history))
    steps = None if run.fitted else run.steps
    others = float(run.bounds.radius[run.frozen :].mean()), seconds, steps, run.diverged is not None
    return dict(zip(COLUMNS, (*scores, *others), strict=True))


def changed_by_attack(run: CertifiedRun) -> NDArray[np.bool_]:
    """Test points to which a model trained on a dataset of the threat gives another class than the clean one."""
    if run.attack is None or run.nominal is None:
        return np.zeros(len(run.data.tested), dtype=bool)
    return np.asarray(run.attack.attacked_classes(run.nominal) != run.nominal)
