"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from mibp_cert.certify import CertifiedRun
from mibp_cert.data import Split, steps_per_epoch


def epochs_table(run: CertifiedRun) -> Table:
    """One row per epoch: time, radius, validation, and what the solver did."""
    solved = run.programs > 0
    table = Table(title=f"{run.engine}: bounds after each epoch", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    headers = ["epoch", "seconds", "mean\nradius", "max\nradius", "valid.\nclean", "valid.\ncertified"]
    headers += ["nodes", "open\ngates", "open\nrelus", "largest\ngap", "fall-\nbacks"] if solved else []
    for header in headers:
        table.add_column(header, justify="right")
    for record in run.history:
        row = [
            str(record.epoch),
            f"{record.seconds:.3g}",
            f"{record.radius_mean:.3g}",
            f"{record.radius_max:.3g}",
            percent(record.validation_nominal),
            percent(record.validation_certified),
        ]
        if solved:
            row += [
                str(record.nodes),
                str(record.unstable_gates),
                str(record.unstable_relus),
                "–" if record.gap_max is None else f"{100 * record.gap_max:.2g} %",
                str(record.fallbacks),
            ]
        table.add_row(*row)
    return table


def summary(run: CertifiedRun) -> str:
    """The result in a few sentences."""
    per_epoch = steps_per_epoch(len(run.train), run.batch_size)
    about = f"{run.network.layout.size} parameters, trained for exactly {run.steps} step(s) ({run.steps // per_epoch} epoch(s)"
    about += ", chosen on validation data)" if run.select.rule == "best-validation" else ")"
    lines = [
        f"{about}: whatever dataset of the threat was used, each trained parameter is within its bounds "
        f"(mean radius {run.bounds.radius.mean():.3g}, largest {run.bounds.radius.max():.3g})."
    ]
    if run.diverged is not None:
        lines.append(f"The bounds diverged: no prediction can be certified after step {run.diverged}.")
    if run.test is not None and isinstance(run.data, Split):
        n = len(run.data.test)
        attacked = "" if run.attacked_accuracy is None else f", accuracy under attack {percent(run.attacked_accuracy)}"
        lines.append(
            f"Test ({n} points, prediction {run.prediction}): clean accuracy {percent(run.nominal_accuracy)}{attacked}, "
            f"certified accuracy {percent(run.test.certified_accuracy(run.data.test.y))}; "
            f"certified {percent(run.test.certification_rate())}, abstaining on {int((~run.test.certified).sum())}."
        )
    if run.attack is not None:
        inner, outer = float(run.attack.inner().radius.mean()), float(run.bounds.radius.mean())
        share = "" if outer == 0 else f", {100 * inner / outer:.0f} % of the bounds' {outer:.3g}"
        lines.append(
            f"Attack: {len(run.attack.theta)} datasets of the threat trained for real, none contradicts a certificate; they "
            f"reach a mean radius of {inner:.3g}{share}; the strongest changes {run.attack.flips} prediction(s)."
        )
    if run.fallbacks:
        lines.append(
            f"{run.fallbacks} of {run.programs} bounds fell back to the pre-analysis (limits, dead workers or solver failures): "
            "looser, still sound."
        )
    lines.append(f"Soundness: {run.soundness}.")
    return "\n".join(lines)


def side_by_side(runs: Sequence[CertifiedRun]) -> Table:
    """Engines beside each other, on the same data, seed and threat."""
    table = Table(title="side by side", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0))
    headers = (
        "engine",
        "s per\nepoch",
        "mean\nradius",
        "max\nradius",
        "clean",
        "attacked",
        "certified",
        "certified\nrate",
    )
    for header in headers:
        table.add_column(header, justify="left" if header == "engine" else "right", no_wrap=True)
    for run in runs:
        seconds = sum(record.seconds for record in run.history) / max(1, len(run.history))
        split = run.data if isinstance(run.data, Split) else None
        certified = None if run.test is None or split is None else run.test.certified_accuracy(split.test.y)
        table.add_row(
            run.engine,
            f"{seconds:.3g}",
            f"{run.bounds.radius.mean():.3g}",
            f"{run.bounds.radius.max():.3g}",
            percent(run.nominal_accuracy),
            percent(run.attacked_accuracy),
            percent(certified),
            percent(None if run.test is None else run.test.certification_rate()),
        )
    return table


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
