"""Answers about rows as a table: the certified class or the range, the attack beside it, and why a row abstains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mibp_cert.certify.attack import AttackSettings, attack
from mibp_cert.certify.predict import Attack, Predictions, nominal_classes, nominal_outputs
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.data import Task
from mibp_cert.engines import Inputs
from mibp_cert.errors import SoundnessError, UserError

ABSTAIN_WORD = "abstain"
POSSIBLE = "another class is possible: an attack on the data shows it"
OPEN = "not proven: no attack changed it, but the bounds leave it open"
UNTRIED = "not proven: the bounds leave it open"


def abstaining(classes: NDArray[Any], given: Any = None) -> Any:
    """The label for abstaining beside these classes: the one given, or −1, or one below the smallest class if −1 is one;
    "abstain" for text.

    >>> abstaining(np.array([0, 1])), abstaining(np.array([-1, 1])), abstaining(np.array(["a", "b"]))
    (-1, -2, 'abstain')
    """
    label, known, kind = given, classes.tolist(), classes.dtype.kind
    if label is None and kind == "b":
        label = -1
    elif label is None:
        label = type(known[0])(-1 if -1 not in known else min(known) - 1) if kind in "iuf" else ABSTAIN_WORD
    if label in known:
        raise UserError(
            f"The label for abstaining, {label!r}, is one of the classes; choose another with abstain_label=…"
        )
    return label


def named(classes: NDArray[Any], numbers: NDArray[np.intp], label: Any) -> NDArray[Any]:
    """Class numbers as labels, −1 as the label for abstaining."""
    if (numbers >= 0).all():
        return np.asarray(classes[numbers])
    out = np.array(classes[numbers], dtype=object)
    out[numbers < 0] = label
    return out if classes.dtype.kind == "O" else np.array(out.tolist())


def _diverged(run: CertifiedRun) -> str:
    return f"the bounds diverged at step {run.diverged}"


def reasons(
    run: CertifiedRun, answer: Predictions, nominal: NDArray[np.intp], attacked: NDArray[np.intp] | None
) -> list[str]:
    """Why each row abstains; empty text where its class is certified. `nominal`: classes of the clean model, `attacked`: classes
    under attack, if there was one."""
    if not run.reached:
        return [_diverged(run)] * len(answer.classes)
    words: Any = UNTRIED if attacked is None else np.where(attacked != nominal, POSSIBLE, OPEN)
    return [str(text) for text in np.where(answer.certified, "", words)]


def attack_rows(run: CertifiedRun, inputs: Inputs, settings: AttackSettings | None = None) -> Attack:
    """Attack the predictions of these rows through the training data of the run."""
    plan, members = run.request.plan, run.request.members
    nominal = None if run.train.task is Task.NUMBERS else nominal_classes(run.network, run.theta, inputs.x)
    taken = plan.steps[: run.steps]
    found = attack(run.network, taken, plan.begin, members, inputs, nominal, run.bounds, settings)
    return found.in_units(run.train)


def class_table(
    run: CertifiedRun, inputs: Inputs, answer: Predictions, found: Attack | None, index: Any
) -> pd.DataFrame:
    """One line per row: `class` (or the word "abstain", whatever the classes are), whether it is `certified`, bounds of the
    margin of the class at the centre, the clean model's class, the one that an attack turned it into (None: no attack did), and
    the `reason` for abstaining."""
    nominal = nominal_classes(run.network, run.theta, inputs.x)
    attacked = None if found is None else found.attacked_classes(nominal)
    names = np.array([*run.train.classes, None], dtype=object)
    if found is not None and (answer.certified & (found.classes != answer.classes).any(axis=0)).any():
        raise SoundnessError("An attack contradicts a certified class: the bounds are not sound; report this.")
    return pd.DataFrame(
        {
            "class": [names[c] if c >= 0 else ABSTAIN_WORD for c in answer.classes],
            "certified": answer.certified,
            "margin_low": answer.margin,
            "margin_high": answer.margin_high,
            "nominal_class": names[nominal],
            **({} if attacked is None else {"attacked_class": names[np.where(attacked == nominal, -1, attacked)]}),
            "reason": reasons(run, answer, nominal, attacked),
        },
        index=index,
    )


def range_table(
    run: CertifiedRun, inputs: Inputs, method: str | None, found: Attack | None, index: Any
) -> pd.DataFrame:
    """Regression: one line per row, in the target's units: the clean prediction, its proven range, and what attacks reach."""
    ranges = run.ranges_of(inputs, method)
    table = {
        "nominal": run.train.in_units(nominal_outputs(run.network, run.theta, inputs.x))[:, 0],
        "low": ranges.outputs.low[:, 0],
        "high": ranges.outputs.high[:, 0],
    }
    if found is not None:
        table["attacked_low"], table["attacked_high"] = found.outputs.low[:, 0], found.outputs.high[:, 0]
    reason = np.where(np.isfinite(ranges.outputs.low[:, 0]), "", _diverged(run) if not run.reached else UNTRIED)
    return pd.DataFrame({**table, "reason": reason}, index=index)
