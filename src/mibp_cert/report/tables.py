"""Tables for the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from mibp_cert.certify import CertifiedRun
from mibp_cert.data import Split


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
    lines = [
        f"{run.network.layout.size} parameters, {run.training.epochs} epoch(s): whatever dataset of the threat was used, each "
        f"trained parameter is within its bounds (largest radius {run.bounds.radius.max():.3g})."
    ]
    if run.test is not None and isinstance(run.data, Split):
        n = len(run.data.test)
        lines.append(
            f"Test ({n} points, prediction {run.prediction}): clean accuracy {percent(run.nominal_accuracy)}, "
            f"certified accuracy {percent(run.test.certified_accuracy(run.data.test.y))}, "
            f"certified {percent(run.test.certification_rate())}, abstaining on {int((~run.test.certified).sum())}."
        )
    if run.fallbacks:
        lines.append(
            f"{run.fallbacks} of {run.programs} bounds fell back to the pre-analysis (limits, dead workers or solver failures): "
            "looser, still sound."
        )
    lines.append(f"Soundness: {run.soundness}.")
    return "\n".join(lines)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
