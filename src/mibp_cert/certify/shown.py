"""A run as a card: is the model any good, how much of it survives, what may be wrong, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mibp_cert.card import Figure, card, number, percent
from mibp_cert.data import Task

if TYPE_CHECKING:
    from mibp_cert.certify.run import CertifiedRun


def run_card(run: CertifiedRun) -> str:
    """The card of a run."""
    model = "network, trained in steps" if run.fitted is None else f"{run.fitted.name}, fitted to its minimum"
    lines = [("What may be wrong", f"{run.threat.words()}.")]
    if run.test_threat is not None:
        lines.append(("With the test inputs, too", f"{run.test_threat.words()}."))
    lines.append(("What next", following(run)))
    title = f"{run.data.name or 'Your data'}: {model}; engine {run.engine}"
    return card(title, figures(run), [*warnings(run), *no_better(run)], lines)


def figures(run: CertifiedRun) -> list[Figure]:
    """An answer that looks at no column, the clean model, and what survives: accuracies, or mean absolute errors of numbers."""
    tried = 0 if run.attack is None or not run.reached else len(run.attack.theta)
    if run.test is not None:
        values = [percent(share) for share in (baseline(run), run.nominal_accuracy, run.attacked_accuracy)]
        values.append(percent(run.certified_test_accuracy))
        what, usual = "accuracy", "the most frequent class"
    elif run.test_ranges is not None:
        errors = run.errors
        values = [number(value) for value in (baseline(run), *(errors.get(f"{name}_error") for name in ERRORS))]
        what, usual = "mean absolute error", "the mean"
    else:
        return []
    if not tried:
        values[2] = "–"
    return [
        Figure("Baseline", values[0], f"{what} of always answering {usual}"),
        Figure("Clean", values[1], f"{what} on the test points, of the model made from the data as they are"),
        Figure("Attacked", values[2], f"also with {tried} other datasets tried" if tried else "no attack was tried"),
        Figure("Certified", values[3], "proven for every possible dataset"),
    ]


ERRORS = ("nominal", "attacked", "certified")
"""What errors of a regression are called."""


def baseline(run: CertifiedRun) -> float | None:
    """Of the test points: accuracy of the most frequent class, or mean absolute error of the mean, of the training rows."""
    test, train = run.data.test, run.train
    if test is None or train.task is Task.CLASSES:
        return run.majority_accuracy
    assert test.targets is not None
    assert train.targets is not None
    return float(np.abs(train.in_units(test.targets) - train.in_units(train.targets).mean(axis=0)).mean())


def no_better(run: CertifiedRun) -> list[str]:
    """Whether the model is of no use, however much of it is certified."""
    if not run.reached:
        return []
    usual, clean, error = baseline(run), run.nominal_accuracy, run.errors.get("nominal_error")
    if usual is not None and clean is not None and clean <= usual:
        return [
            "This model does no better than always answering the most frequent class: certificates of it are of no use."
        ]
    if usual is not None and error is not None and error >= usual:
        return ["This model does no better than always answering the mean: certificates of it are of no use."]
    return []


def following(run: CertifiedRun) -> str:
    """The next call to try."""
    rows, certify = "rows of your own", "ranges" if run.train.task is Task.NUMBERS else "certify"
    if not run.reached:
        return "a smaller eps or learning rate, fewer epochs, or select='best-validation'."
    if run.test is None and run.test_ranges is None:
        return f"there were no test rows; run.{certify}(x) certifies {rows}."
    if no_better(run):
        return "other columns or another model first; then ask again what survives."
    report = "html_report(run, words=run.threat.words()) writes all of it as one page"
    if run.test is None or run.test.certified.all():
        return f"run.{certify}(x) certifies {rows}; {report}."
    ways = ["tolerance(…) says how much doubt certificates survive", report]
    if run.fitted is not None:
        ways.insert(0, "a smaller C, or less doubt, certifies more")
    if run.fitted is not None or run.request.made.keeps_symbols:
        ways.insert(0, "blame(run) says which rows to re-check")
    abstaining = int((~run.test.certified).sum())
    return f"{abstaining} of {len(run.test.certified)} predictions are not certified: {'; '.join(ways)}."


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
