"""What is shown on a terminal: tables, and the result in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from mibp_cert.certify import CertifiedRun, EpochRecord
from mibp_cert.engines import DEFAULT
from mibp_cert.fitted import Fitted
from mibp_cert.nets import steps_per_epoch
from mibp_cert.studies.compare import changed_by_attack, figures, in_words

FIXED = "the split, scaling, categories, features and the penalty"
"""What a fitted model takes as given."""
Record = TypeVar("Record")
Columns = dict[str, Callable[[Record], str]]
"""How a record is shown in each column."""
EPOCH: Columns[EpochRecord] = {
    "epoch": lambda record: str(record.epoch),
    "seconds": lambda record: f"{record.seconds:.3g}",
    "mean\nradius": lambda record: f"{record.radius_mean:.3g}",
    "max\nradius": lambda record: f"{record.radius_max:.3g}",
    "valid.\nclean": lambda record: percent(record.validation_nominal),
    "valid.\ncertified": lambda record: percent(record.validation_certified),
}
SOLVED: Columns[EpochRecord] = {
    "nodes": lambda record: str(record.nodes),
    "open\ngates": lambda record: str(record.unstable_gates),
    "open\nrelus": lambda record: str(record.unstable_relus),
    "largest\ngap": lambda record: "–" if record.gap_max is None else f"{100 * record.gap_max:.2g} %",
    "fall-\nbacks": lambda record: str(record.fallbacks),
}
"""Columns of an epoch where a solver was asked."""


def new_table(title: str, columns: Columns[Record], records: Iterable[Record]) -> Table:
    """One row per record; `columns` says how each is shown. Names stand to the left, numbers to the right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in columns:
        table.add_column(name, justify="left" if name in ("", "case") else "right")
    for record in records:
        table.add_row(*(show(record) for show in columns.values()))
    return table


def epochs_table(run: CertifiedRun) -> Table:
    """One row per epoch: time, radius, validation, and what the solver did."""
    columns = EPOCH | (SOLVED if run.programs else {})
    return new_table(f"{run.engine}: bounds after each epoch", columns, run.history)


def side_by_side(runs: Sequence[CertifiedRun]) -> str:
    """Engines beside each other, on the same data, seed and threat; the columns are those of `compare`."""
    found = pd.DataFrame(map(figures, runs), [run.engine for run in runs])
    shown, units = in_words(found, runs[0].data)
    return f"{units}\n{shown.to_string(float_format=lambda value: f'{value:.4g}')}"


def summary(run: CertifiedRun) -> str:
    """The result in a few sentences."""
    epochs = run.steps // steps_per_epoch(len(run.train), run.batch_size)
    chosen = ", chosen on validation data" if run.select.rule == "best-validation" else ""
    made, done = f"trained for exactly {run.steps} step(s) ({epochs} epoch(s){chosen})", "trained"
    if run.fitted is not None:
        made, done = f"{fitted_words(run.fitted)}", "fitted"
    radius = run.bounds.radius[run.frozen :]
    lines = [
        f"{len(radius)} parameters, {made}: whatever "
        f"dataset of the threat was used, each {done} parameter is within its bounds "
        f"(mean radius {radius.mean():.3g}, largest {radius.max():.3g}).",
        f"What may be wrong: {run.threat.words()}.",
    ]
    if run.fitted is not None:
        lines.append(
            f"Fixed, and not computed anew on other data: {FIXED}. No seed, batch or number of steps is part of it."
        )
    if run.test_threat is not None:
        lines.append(f"What may be wrong with the test inputs: {run.test_threat.words()}.")
    lines += [*warnings(run), *_tested(run)]
    if run.attack is not None:
        inner, outer = float(run.attack.inner().radius[run.frozen :].mean()), float(radius.mean())
        share = "" if outer == 0 else f", {100 * inner / outer:.0f} % of the bounds' {outer:.3g}"
        none, flips = "leaves a range", ""
        if run.nominal is not None:
            none, flips = "contradicts a certificate", f"; the strongest changes {run.attack.flips} prediction(s)"
        lines.append(
            f"Attack: {len(run.attack.theta)} datasets of the threat {done} for real, none {none}; they reach a mean radius of "
            f"{inner:.3g}{share}{flips}."
        )
    return "\n".join([*lines, *advice(run), f"Soundness: {run.soundness}."])


def fitted_words(model: Fitted) -> str:
    """What is fitted.

    >>> fitted_words(Fitted(C=0.5))
    'at the minimum of the loss cross-entropy with C = 0.5'
    >>> fitted_words(Fitted(multi="one-versus-rest"))
    'at the minimum of the loss cross-entropy with C = 1, one-versus-rest'
    """
    intercept = "" if model.fit_intercept else ", no intercept"
    intercept = ", intercept penalised" if model.fit_intercept and model.penalise_intercept else intercept
    several = "" if model.multi is None else f", {model.multi}"
    behind = "" if model.features is None else f", behind {model.features.words}"
    return f"at the minimum of the loss {model.loss} with C = {model.C:g}{several}{intercept}{behind}"


def warnings(run: CertifiedRun) -> list[str]:
    """What a reader must know before the numbers: diverged bounds, views larger than the threat, bounds that are no solver's."""
    lines = [f"The bounds are about a larger set than the one described: {words}." for words in run.outer]
    if run.diverged is not None:
        what = f"The certificate is about exactly {run.steps} step(s), chosen on validation data before."
        if not run.reached:
            what = (
                "Nothing is certified about the training that was asked for; clean and attacked figures are about its first "
                f"{run.steps} step(s)."
            )
        lines.append(f"The bounds diverged at step {run.diverged}. {what}")
    if run.fallbacks:
        lines.append(
            f"{run.fallbacks} of {run.programs} bounds fell back to the pre-analysis (limits, dead workers or solver failures): "
            "looser, still sound."
        )
    return lines


def _tested(run: CertifiedRun) -> list[str]:
    """What the test points showed: accuracies, or for a regression errors and ranges. Fitted models also tell of the validation
    rows, which C can be chosen on."""
    clean, certified = run.validation
    validated = []
    if run.fitted is not None and run.data.validation is not None and certified is not None:
        validated.append(
            f"Validation ({len(run.data.validation)} points): clean accuracy {percent(clean)}, certified accuracy "
            f"{percent(certified)}."
        )
    if run.test is not None:
        attacked = "" if run.attacked_accuracy is None else f", accuracy under attack {percent(run.attacked_accuracy)}"
        return [
            *validated,
            f"Test ({len(run.test.classes)} points, prediction {run.prediction}): clean accuracy {percent(run.nominal_accuracy)} "
            f"(the most frequent class alone: {percent(run.majority_accuracy)}){attacked}, "
            f"certified accuracy {percent(run.certified_test_accuracy)}; "
            f"certified {percent(run.test.certification_rate())}, abstaining on {int((~run.test.certified).sum())}.",
        ]
    if run.test_ranges is None:
        return validated
    errors = run.errors
    return [
        f"Test ({len(run.test_ranges.width)} points, prediction {run.prediction}): mean absolute error of the clean model "
        f"{number(errors['nominal_error'])}, under attack {number(errors.get('attacked_error'))}, at most "
        f"{number(errors['certified_error'])} (certified); each output is known to within a range of width "
        f"{number(errors['range_mean'])} on average, of which attacks reach {number(errors.get('attacked_range_mean'))}."
    ]


def advice(run: CertifiedRun) -> list[str]:
    """What to try when much is not certified. Where no attack changes it either, the bounds, not the data, are the reason."""
    if run.test is None or run.test.certification_rate() >= 0.8:
        return []
    missed = ~run.test.certified & ~changed_by_attack(run)
    if 10 * int(missed.sum()) < len(missed):
        return []
    why = " although no attack changes them: the bounds are too wide there" if run.attack is not None else ""
    if run.fitted is not None:
        return [f"{int(missed.sum())} test points are not certified{why}. What helps: a smaller C, or less doubt."]
    ways = ["fewer epochs"] if run.select.rule == "best-validation" else ["fewer epochs, or --select best-validation"]
    ways += ["a model without hidden layer (--hidden none --loss cross-entropy)"] if len(run.network.sizes) > 2 else []
    ways += ["a larger --batch-size"] if run.batch_size < len(run.train) else []
    ways += [f"the engine '{DEFAULT}'"] if run.engine != DEFAULT else []
    return [
        f"{int(missed.sum())} test points are not certified{why}. "
        f"What helps: {', '.join(ways)}, less doubt (mibp-cert tolerance), or re-checked rows (mibp-cert blame)."
    ]


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
