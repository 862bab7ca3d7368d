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
from mibp_cert.certify.columns import ColumnRecord
from mibp_cert.certify.shown import warnings
from mibp_cert.data import Task
from mibp_cert.data.dataset import shortened
from mibp_cert.engines import DEFAULT
from mibp_cert.nets import steps_per_epoch
from mibp_cert.report.frontier import frontier_lines, frontier_of, of_choice
from mibp_cert.report.lines import Lines, values_words, worth_lines
from mibp_cert.report.words import FIXED, fitted_words, survives
from mibp_cert.studies.choose import Choice
from mibp_cert.studies.compare import changed_by_attack, figures, in_words

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


LEFT = ("", "case", "cells")
"""Columns that hold words."""


def new_table(title: str, columns: Columns[Record], records: Iterable[Record]) -> Table:
    """One row per record; `columns` says how each is shown. Names stand to the left, numbers to the right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in columns:
        table.add_column(name, justify="left" if name in LEFT else "right")
    for record in records:
        table.add_row(*(show(record) for show in columns.values()))
    return table


def lines_table(title: str, lines: Lines) -> Table:
    """Head and rows as a table."""
    columns: Columns[Sequence[str]] = {name: itemgetter(at) for at, name in enumerate(lines.head)}
    return new_table(title, columns, lines.rows)


def _validated(record: EpochRecord, figure: float | None) -> str:
    return number(figure) if record.numbers else percent(figure)


def epochs_table(run: CertifiedRun) -> Table:
    """One row per epoch: time, radius, validation, what the solver did, and the flags that pick it, where it is worth it."""
    columns, frontier = EPOCH | (SOLVED if run.programs else {}), frontier_of(run)
    if frontier is not None:
        flags = {point.name: "chosen" if point.chosen else point.flags for point in frontier.points}
        columns = columns | {"pick it with": lambda record: flags[str(record.epoch)]}
    return new_table(f"{run.engine}: bounds after each epoch", columns, run.history)


def choice_table(choice: Choice) -> Table:
    """What every `C` gives on the validation rows, and which was chosen."""
    found, base = of_choice(choice), "the mean" if choice.judge.numbers else "the most frequent class"
    shown = number if choice.judge.numbers else percent
    title = f"C by validation rows, where always answering {base} has the {found.figure} {shown(choice.judge.baseline)}"
    return lines_table(title, frontier_lines(found))


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


def _tested(run: CertifiedRun) -> list[str]:
    """What the test points showed, beside `worth_table`. Fitted models also tell of the validation rows, which C can be chosen
    on."""
    clean, certified = run.validation
    said = []
    if run.fitted is not None and run.data.validation is not None and clean is not None:
        numbers = run.train.task is Task.NUMBERS
        what, shown = ("mean absolute error", number) if numbers else ("accuracy", percent)
        what = f"balanced {what}" if run.fitted.by_class else what
        said.append(
            f"Validation ({len(run.data.validation)} points): clean {what} {shown(clean)}, certified {what} "
            f"{shown(certified)}."
        )
    if run.test is not None:
        said.append(f"Test ({len(run.test.classes)} points, prediction {run.prediction}): {survives(run)}")
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
    lines = worth_lines(run, MOST_CLASSES)
    return None if lines is None else lines_table("", lines)


def advice(run: CertifiedRun) -> list[str]:
    """What to try when much is not certified. Where no attack changes it either, the bounds, not the data, are the reason."""
    if run.test is None or run.test.certification_rate() >= 0.8:
        return []
    missed = ~run.test.certified & ~changed_by_attack(run)
    if 10 * int(missed.sum()) < len(missed):
        return []
    why = " although no attack changes them: the bounds are too wide there" if run.attack is not None else ""
    if run.fitted is not None:
        if run.worth is not None and not run.worth.better:
            return []  # a smaller C would only make it more constant
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
    missing = f"; {record.missing} missing" if record.missing else ""
    return values_words(record) + missing + (f"; doubt: {record.doubt}" if record.doubt else "")
