"""What was asked for, in words: no page shows plain JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mibp_cert.certify import CertifiedRun
from mibp_cert.nets import Training
from mibp_cert.report.words import fitted_words
from mibp_cert.threats.base import count

SHOWN = 12
"""Most entries of a list that are shown."""
APART = (
    *("dataset", "test", "attack", "diverged", "outer", "threat", "test_threat"),  # told elsewhere on the page
    *("versions", "data_sha256", "soundness"),  # its record
    *("epochs", "steps", "steps_per_epoch", "batch_size", "batch_mode", "learning_rate", "schedule", "select", "seed"),
    *(
        "init",
        "layers",
        "network",
        "loss",
        "C",
        "fit_intercept",
        "penalise_intercept",
        "multi",
    ),  # the training in words
)
"""Keys of the JSON file that are not listed one by one."""
NAMES = {"unroll": "steps in one program", "repeatable": "the same bits when repeated", "prediction": "predictions by"}
"""What keys are called here, where they do not say it themselves."""
OF_STEPS = ("solver", "repeatable")
"""Keys that say nothing of fitted models."""


def settings(run: CertifiedRun) -> list[tuple[str, str]]:
    """What was asked for, one setting to a line."""
    told = {
        "what may be wrong": run.threat.words(),
        **({} if run.test_threat is None else {"what may be wrong with test inputs": run.test_threat.words()}),
        "training": training_words(run),
        **({} if run.fitted is not None else {"layers": layers_words(run)}),
    }
    apart = APART if run.fitted is None else (*APART, *OF_STEPS)
    others = {NAMES.get(key, key): value for key, value in run.to_json().items() if key not in apart}
    return [*told.items(), *((name.replace("_", " "), plain(v)) for name, v in others.items() if v is not None)]


def training_words(run: CertifiedRun) -> str:
    """How the model is made."""
    training = run.training
    if run.fitted is not None:
        return fitted_words(run.fitted)
    assert isinstance(training, Training)
    rate = training.schedule if isinstance(training.schedule, str) else plain(training.schedule)
    chosen = "the last epoch" if run.select.rule == "last" else "the epoch that validation rows prefer"
    return (
        f"{count(training.epochs, 'epoch')} of {count(run.request.plan.per_epoch, 'step')}, {count(run.batch_size, 'row')} each "
        f"({training.batch_mode}); "
        f"learning rate {training.learning_rate:g}, {rate}; loss {training.loss}; initial weights {training.init}, seed "
        f"{training.seed}; the certificate is about {chosen} ({run.select.rule}): {count(run.steps, 'step')}"
    )


def layers_words(run: CertifiedRun) -> str:
    """The layers, one after the other: `Linear(inputs 2, outputs 20)`."""
    every = "; ".join(run.network.describe())
    return re.sub(r", bias=True|\(\)", "", every).replace("=", " ")


def plain(value: Any) -> str:
    """A setting as text.

    >>> plain({"gap": 0.01, "sizes": [2, 20], "exact": True, "limit": None})
    'gap 0.01, sizes 2, 20, exact yes, limit none'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{str(name).replace('_', ' ')} {plain(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        cut = f", … ({len(value)} in all)" if len(value) > SHOWN else ""
        return ", ".join(map(plain, value[:SHOWN])) + cut
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else "without limit"
    return "none" if value is None else str(value)


def flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """A nested configuration as keys with dots; what was left open is left out.

    >>> list(flat({"threat": {"parts": [{"eps": {"age": 1.0}}, {"rows": None}]}, "quiet": True}))
    [('threat.parts.1.eps.age', '1'), ('quiet', 'yes')]
    """
    for key, value in config.items():
        name = f"{before}{key}"
        if isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value):
            value = {str(i + 1): entry for i, entry in enumerate(value)}
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        elif value is not None and value != [] and value != ():
            yield name, plain(value)
