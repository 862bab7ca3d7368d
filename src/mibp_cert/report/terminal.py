"""What is shown on a terminal: tables, and the result in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TypeVar

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from mibp_cert.card import number, percent
from mibp_cert.certify import CertifiedRun, EpochRecord
from mibp_cert.certify.columns import LEFT_OUT, NUMBER, ColumnRecord
from mibp_cert.certify.shown import loud, warnings
from mibp_cert.certify.worth import NumberWorth, Worth
from mibp_cert.data import Task
from mibp_cert.data.dataset import shortened
from mibp_cert.engines import DEFAULT
from mibp_cert.fitted import Fitted
from mibp_cert.nets import steps_per_epoch
from mibp_cert.studies.choose import Candidate, Choice
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
    "valid.\nclean": lambda record: _validated(record, record.validation_nominal),
    "valid.\ncertified": lambda record: _validated(record, record.validation_certified),
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


def _validated(record: EpochRecord, figure: float | None) -> str:
    return number(figure) if record.numbers else percent(figure)


def epochs_table(run: CertifiedRun) -> Table:
    """One row per epoch: time, radius, validation, and what the solver did."""
    columns = EPOCH | (SOLVED if run.programs else {})
    return new_table(f"{run.engine}: bounds after each epoch", columns, run.history)


def choice_table(choice: Choice) -> Table:
    """What every `C` gives on the validation rows, and which was chosen."""
    shown = number if choice.judge.numbers else percent
    what = "error" if choice.judge.numbers else "accuracy"
    best = choice.judge.frontier([(one.clean, one.certified) for one in choice.candidates])

    def said(one: Candidate) -> str:
        return "chosen" if choice.C == one.C else one.why

    columns: Columns[Candidate] = {
        "C": lambda one: f"{one.C:g}",
        f"clean\n{what}": lambda one: shown(one.clean),
        f"certified\n{what}": lambda one: "–" if one.certified is None else shown(one.certified),
        "case": said,
        "pick it with": lambda one: f"--C {one.C:g}" if choice.candidates.index(one) in best else "",
    }
    base = "the mean" if choice.judge.numbers else "the most frequent class"
    title = f"C by validation rows, where always answering {base} has the {what} {shown(choice.judge.baseline)}"
    return new_table(title, columns, choice.candidates)


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
        *(f"Warning: {said}" for said in loud(run)),
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


def _tested(run: CertifiedRun) -> list[str]:
    """What the test points showed, beside `worth_table`. Fitted models also tell of the validation rows, which C can be chosen
    on."""
    clean, certified = run.validation
    said = []
    if run.fitted is not None and run.data.validation is not None and clean is not None:
        numbers = run.train.task is Task.NUMBERS
        what, shown = ("mean absolute error", number) if numbers else ("accuracy", percent)
        said.append(
            f"Validation ({len(run.data.validation)} points): clean {what} {shown(clean)}, certified {what} "
            f"{shown(certified)}."
        )
    if run.test is not None and isinstance(run.worth, Worth):
        sure, wrong = int(run.test.certified.sum()), run.worth.wrong
        said.append(
            f"Test ({len(run.test.classes)} points, prediction {run.prediction}): {sure} predictions are certified, the same "
            f"whatever the true data were ({wrong} of them wrong); abstaining on {len(run.test.classes) - sure}."
        )
    elif run.test_ranges is not None:
        said.append(
            f"Test ({len(run.test_ranges.width)} points, prediction {run.prediction}): each output is known to within a range "
            f"of width {number(run.errors['range_mean'])} on average, of which attacks reach "
            f"{number(run.errors.get('attacked_range_mean'))}."
        )
    return said


MOST_CLASSES = 6
"""Classes that have a column of their own."""


def worth_table(run: CertifiedRun) -> Table | None:
    """Baseline, clean, attacked and certified figures of the test points under each other; None without test points."""
    worth, tried = run.worth, run.attack is not None
    if worth is None:
        return None
    if isinstance(worth, NumberWorth):
        errors = run.errors
        errors_of = {
            "always the mean": (worth.baseline_error, 0.0),
            "clean model": (worth.clean, 0.0),
            "under attack": (errors.get("attacked_error"), errors.get("attacked_range_mean")),
            "certified": (errors["certified_error"], errors["range_mean"]),
        }
        names: tuple[str, ...] = ("mean absolute\nerror", "mean width\nof the ranges")
        shown = {name: tuple(map(number, figures)) for name, figures in errors_of.items()}
    else:
        own = worth.classes if len(worth.classes) <= MOST_CLASSES else ()
        alike = 1.0 / len(worth.classes)
        constant = [float(share.name == worth.baseline) for share in own]
        lines_of = {
            "clean model": (run.nominal_accuracy, "clean"),
            "under attack": (run.attacked_accuracy, "attacked"),
            "certified": (run.certified_test_accuracy, "certified"),
        }
        names = ("accuracy", "balanced", *(f"{share.name!r}\n({share.rows})" for share in own))
        shown = {f"always {worth.baseline!r}": tuple(map(percent, (worth.baseline_accuracy, alike, *constant)))}
        for name, (accuracy, what) in lines_of.items():
            figures = accuracy, worth.balanced(what), *(getattr(share, what) for share in own)
            shown[name] = tuple(map(percent, figures))
    if not tried:
        del shown["under attack"]
    columns: Columns[tuple[str, ...]] = {name: itemgetter(at) for at, name in enumerate(("", *names))}
    return new_table("", columns, [(name, *figures) for name, figures in shown.items()])


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


def columns_text(records: Sequence[ColumnRecord], most: int = 20) -> str:
    """How columns were read, one to a line.

    >>> print(columns_text([ColumnRecord("age", "number", low=18, high=90, doubt="± 1", missing=2)]))
      age  number, 18 to 90; 2 missing; doubt: ± 1
    """
    shown = records if len(records) <= most + 1 else records[:most]
    width = max(len(shortened(record.name, 28)) for record in shown)
    lines = [f"  {shortened(record.name, 28):<{width}}  {_read_as(record)}" for record in shown]
    return "\n".join(lines + ([f"  … and {len(records) - most} more"] if len(shown) < len(records) else []))


def _read_as(record: ColumnRecord) -> str:
    """Kind, range or categories, missing values and doubt of a column."""
    if record.kind == LEFT_OUT:
        return f"left out: {record.why}"
    if record.kind == NUMBER:
        values = f"number, {record.low:.6g} to {record.high:.6g}"
    else:
        some = ", ".join(shortened(name, 20) for name in record.categories[:5])
        values = f"{len(record.categories)} {'classes' if record.target else 'categories'}: {some}"
        values += ", …" if len(record.categories) > 5 else ""
    missing = f"; {record.missing} missing" if record.missing else ""
    return (
        ("target, " if record.target else "") + values + missing + (f"; doubt: {record.doubt}" if record.doubt else "")
    )
