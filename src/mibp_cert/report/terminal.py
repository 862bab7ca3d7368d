"""What is shown on a terminal: bars with the time left, tables, and the result in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mibp_cert.certify import Callbacks, CertifiedRun, EpochRecord
from mibp_cert.engines import DEFAULT
from mibp_cert.nets import steps_per_epoch

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
BESIDE: Columns[CertifiedRun] = {
    "engine": lambda run: run.engine,
    "s per\nepoch": lambda run: f"{sum(record.seconds for record in run.history) / max(1, len(run.history)):.3g}",
    "mean\nradius": lambda run: f"{run.bounds.radius.mean():.3g}",
    "max\nradius": lambda run: f"{run.bounds.radius.max():.3g}",
    "clean": lambda run: percent(run.nominal_accuracy),
    "attacked": lambda run: percent(run.attacked_accuracy),
    "certified": lambda run: percent(certified_accuracy(run)),
    "certified\nrate": lambda run: percent(None if run.test is None else run.test.certification_rate()),
}


def progress_bars(quiet: bool, *, transient: bool = True) -> Progress:
    """Bars on the terminal that vanish when they are done if `transient`; nothing at all if `quiet`."""
    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True, quiet=quiet), transient=transient, disable=quiet)


def show_training(progress: Progress, engine: str) -> Callbacks:
    """Callbacks that move a bar for the training's steps and one for the programs within a step."""
    steps = progress.add_task(f"{engine}: training steps", total=None)
    programs = progress.add_task("programs in this step", total=None, visible=False)

    def on_stage(name: str) -> None:
        progress.update(steps, description=f"{engine}: {name}", total=None)
        progress.update(programs, visible=False)

    return Callbacks(
        lambda done, total: progress.update(programs, completed=done, total=total, visible=True),
        lambda done, total: progress.update(steps, completed=done, total=total),
        lambda record: progress.update(steps, description=f"{engine}: epoch {record.epoch}"),
        on_stage,
    )


def new_table(
    title: str, columns: Columns[Record], records: Iterable[Record], *, padding: int = 1, no_wrap: bool = True
) -> Table:
    """One row per record; `columns` says how each is shown. Names stand to the left, numbers to the right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, padding))
    for name in columns:
        table.add_column(name, justify="left" if name in ("", "case", "engine") else "right", no_wrap=no_wrap)
    for record in records:
        table.add_row(*(show(record) for show in columns.values()))
    return table


def epochs_table(run: CertifiedRun) -> Table:
    """One row per epoch: time, radius, validation, and what the solver did."""
    columns = EPOCH | (SOLVED if run.programs else {})
    return new_table(f"{run.engine}: bounds after each epoch", columns, run.history, no_wrap=False)


def side_by_side(runs: Sequence[CertifiedRun]) -> Table:
    """Engines beside each other, on the same data, seed and threat."""
    return new_table("side by side", BESIDE, runs, padding=0)


def summary(run: CertifiedRun) -> str:
    """The result in a few sentences."""
    epochs = run.steps // steps_per_epoch(len(run.train), run.batch_size)
    chosen = ", chosen on validation data" if run.select.rule == "best-validation" else ""
    lines = [
        f"{run.network.layout.size} parameters, trained for exactly {run.steps} step(s) ({epochs} epoch(s){chosen}): whatever "
        "dataset of the threat was used, each trained parameter is within its bounds "
        f"(mean radius {run.bounds.radius.mean():.3g}, largest {run.bounds.radius.max():.3g}).",
        f"What may be wrong: {run.threat.words()}.",
    ]
    if run.test_threat is not None:
        lines.append(f"What may be wrong with the test inputs: {run.test_threat.words()}.")
    if run.diverged is not None:
        lines.append(f"The bounds diverged: no prediction can be certified after step {run.diverged}.")
    lines += _tested(run)
    if run.attack is not None:
        inner, outer = float(run.attack.inner().radius.mean()), float(run.bounds.radius.mean())
        share = "" if outer == 0 else f", {100 * inner / outer:.0f} % of the bounds' {outer:.3g}"
        none, flips = "leaves a range", ""
        if run.nominal is not None:
            none, flips = "contradicts a certificate", f"; the strongest changes {run.attack.flips} prediction(s)"
        lines.append(
            f"Attack: {len(run.attack.theta)} datasets of the threat trained for real, none {none}; they reach a mean radius of "
            f"{inner:.3g}{share}{flips}."
        )
    if run.fallbacks:
        lines.append(
            f"{run.fallbacks} of {run.programs} bounds fell back to the pre-analysis (limits, dead workers or solver failures): "
            "looser, still sound."
        )
    lines += [*advice(run), *(f"Outer view: {words}." for words in run.outer), f"Soundness: {run.soundness}."]
    return "\n".join(lines)


def _tested(run: CertifiedRun) -> list[str]:
    """What the test points showed: accuracies, or for a regression errors and ranges."""
    if run.test is not None:
        attacked = "" if run.attacked_accuracy is None else f", accuracy under attack {percent(run.attacked_accuracy)}"
        return [
            f"Test ({len(run.test.classes)} points, prediction {run.prediction}): clean accuracy {percent(run.nominal_accuracy)} "
            f"(the most frequent class alone: {percent(run.majority_accuracy)}){attacked}, "
            f"certified accuracy {percent(certified_accuracy(run))}; "
            f"certified {percent(run.test.certification_rate())}, abstaining on {int((~run.test.certified).sum())}."
        ]
    if run.test_ranges is None:
        return []
    errors = run.errors
    return [
        f"Test ({len(run.test_ranges.width)} points, prediction {run.prediction}): mean absolute error of the clean model "
        f"{number(errors['nominal_error'])}, under attack {number(errors.get('attacked_error'))}, at most "
        f"{number(errors['certified_error'])} (certified); each output is known to within a range of width "
        f"{number(errors['range_mean'])} on average, of which attacks reach {number(errors.get('attacked_range_mean'))}."
    ]


def advice(run: CertifiedRun) -> list[str]:
    """What to try when much is not certified. Where no attack changes it either, the bounds, not the data, are the reason."""
    if run.test is None or run.nominal is None or run.test.certification_rate() >= 0.8:
        return []
    missed = ~run.test.certified
    if run.attack is not None:
        missed = missed & (run.attack.attacked_classes(run.nominal) == run.nominal)
    if 10 * int(missed.sum()) < len(missed):
        return []
    ways = ["fewer epochs"] if run.select.rule == "best-validation" else ["fewer epochs, or --select best-validation"]
    ways += ["a model without hidden layer (--hidden none --loss cross-entropy)"] if len(run.network.sizes) > 2 else []
    ways += ["a larger --batch-size"] if run.batch_size < len(run.train) else []
    ways += [f"the engine '{DEFAULT}'"] if run.engine != DEFAULT else []
    why = " although no attack changes them: the bounds are too wide there" if run.attack is not None else ""
    return [
        f"{int(missed.sum())} test points are not certified{why}. "
        f"What helps: {', '.join(ways)}, less doubt (mibp-cert tolerance), or re-checked rows (mibp-cert blame)."
    ]


def certified_accuracy(run: CertifiedRun) -> float | None:
    """Share of the test points that are certified and right."""
    if run.test is None or run.data.test is None:
        return None
    return run.test.certified_accuracy(run.data.tested.y)


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
