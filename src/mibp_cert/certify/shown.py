"""A run as a card: is the model any good, how much of it survives, what may be wrong, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mibp_cert.card import Figure, card, number, percent
from mibp_cert.certify.worth import NumberWorth
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
    return card(title, figures(run), [*warnings(run), *loud(run)], lines)


def figures(run: CertifiedRun) -> list[Figure]:
    """An answer that looks at no column, the clean model, and what survives: accuracies, or mean absolute errors of numbers."""
    tried, worth = 0 if run.attack is None or not run.reached else len(run.attack.theta), run.worth
    if worth is None:
        return []
    if isinstance(worth, NumberWorth):
        errors = run.errors
        values = [number(value) for value in (worth.baseline_error, *(errors.get(f"{name}_error") for name in ERRORS))]
        what, usual = "mean absolute error", "the mean"
    else:
        (base, clean, certified), what, usual = worth.judged, worth.figure, repr(worth.baseline)
        attacked = worth.balanced("attacked") if worth.by_class else run.attacked_accuracy
        values = [percent(share) for share in (base, clean, attacked, certified)]
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


def following(run: CertifiedRun, *, page: bool = True) -> str:
    """The next call to try; `page`: the report may be named."""
    rows, certify = "rows of your own", "ranges" if run.train.task is Task.NUMBERS else "certify"
    if not run.reached:
        return "a smaller eps or learning rate, fewer epochs, or select='best-validation'."
    if run.test is None and run.test_ranges is None:
        return f"there were no test rows; run.{certify}(x) certifies {rows}."
    if run.worth is not None and not run.worth.better:
        return "other columns or another model first; then ask again what survives."
    report = ["html_report(run, words=run.threat.words()) writes all of it as one page"] if page else []
    if run.test is None or run.test.certified.all():
        return "; ".join([f"run.{certify}(x) certifies {rows}", *report]) + "."
    ways = ["tolerance(…) says how much doubt certificates survive", *report]
    if run.fitted is not None:
        ways.insert(0, "a smaller C, or less doubt, certifies more")
    if run.fitted is not None or run.request.made.keeps_symbols:
        ways.insert(0, "blame(run) says which rows to re-check")
    abstaining = int((~run.test.certified).sum())
    return f"{abstaining} of {len(run.test.certified)} predictions are not certified: {'; '.join(ways)}."


def loud(run: CertifiedRun) -> list[str]:
    """What is to be said of a model that is of little use, however much of it is certified."""
    return run.worth.words() if run.reached and run.worth is not None else []


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
