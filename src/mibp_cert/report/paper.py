"""The tables of `mibp-cert reproduce`: the paper's figures, this tool's beside them, and what must be known to read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from mibp_cert.report.terminal import Columns, new_table
from mibp_cert.studies.reproduce import Cell, Fit
from mibp_cert.studies.reproduce import Table as Reproduced

Record = dict[str, Any]
OURS = {"interval": "interval (FullCert)", "crown": "crown (Sosnin et al.)"}
"""Engines that are another paper's method."""
ACCURACY: Columns[Record] = {
    "": lambda r: f"  {_name(r)}",
    "certified": lambda r: f"{r['certified']:.1f}±{r['certified_std']:<4.1f}",
    "rate": lambda r: f"{r['rate']:.1f}",
    "attack": lambda r: "–" if r["attacked"] is None else f"{r['attacked']:.1f}",
    "clean": lambda r: f"{r['clean']:.1f}",
    "steps": lambda r: "minimum" if r["steps"] is None else f"{r['steps']:.1f}",
    "lr": lambda r: f"{r['learning_rate']:.2g}",
    "radius": lambda r: f"{r['radius']:.1e}",
    "s": lambda r: f"{r['seconds']:.0f}",
    "n": lambda r: str(r["seeds"]),
}


_SHARED = ("", "certified", "rate", "attack", "clean")
BESIDE_FITS: Columns[Record] = {
    **{name: ACCURACY[name] for name in _SHARED},
    "majority": lambda r: f"{r['majority']:.1f}",
    "steps": ACCURACY["steps"],
    "lr, C": lambda r: _or_dash(r["C"] if r["learning_rate"] is None else r["learning_rate"]),
    "s": ACCURACY["s"],
    "n": ACCURACY["n"],
}
"""The same where models are fitted to their minimum, whose parameters have radii of another kind."""


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def _name(record: Record) -> str:
    """What a row is called: its engine, or the model that was fitted."""
    if record["model"] != "network":
        return str(Fit(record["model"], record["features"]))
    return OURS.get(record["engine"], str(record["engine"]))


def accuracy_table(table: Reproduced, records: Sequence[Record]) -> Table:
    """A table of the paper, its own figures first, then the engines' mean ± standard deviation over the seeds."""
    columns = ACCURACY if all(record["model"] == "network" for record in records) else BESIDE_FITS
    out = new_table(table.title, columns, ())
    for cell in table.cells:
        out.add_row(cell.label + (" *" if cell.added else ""))
        for name, value in cell.paper.items():
            if name != "rate":
                rate = cell.paper.get("rate") if name == "MIBP-Cert" else None
                out.add_row(f"  paper: {name}", f"{value:.1f}   ", "" if rate is None else f"{rate:.1f}")
        for record in _of(cell, records):
            name, certified, *others = (show(record) for show in columns.values())
            out.add_row(name, certified + ("<" if cell.missed_by(record["certified"]) else " "), *others)
    return out


def accuracy_notes(table: Reproduced, records: Sequence[Record]) -> list[str]:
    """What must be known to read the table: choices, cells below the paper, constant predictors."""
    notes = list(table.choices)
    if table.select.by_validation:
        close = ""
        if table.clean_within is not None:
            close = f" among those whose clean validation accuracy is within {100 * table.clean_within:g} points of the best"
        notes.append(
            f"the number of steps, at least {table.select.least_steps}, has the highest certified accuracy on validation "
            f"data{close}, and is then a constant of the certificate"
        )
    notes += ["* not in the paper"] if any(cell.added for cell in table.cells) else []
    for cell in table.cells:
        below = (record for record in _of(cell, records) if cell.missed_by(record["certified"]))
        notes += [f"< {cell.label}, {_name(record)}: {_why_below(cell, record)}" for record in below]
    for cell in table.cells if table.histogram else ():
        shown = {
            (tuple(record["histogram"]), record["constant"], record["seeds"], round(record["majority"], 1))
            for record in _of(cell, records)
        }
        for counts, constant, seeds, majority in sorted(shown):
            label = f", a constant predictor in {constant} of {seeds} runs" if constant else ""
            counted = f"{cell.label}: clean predictions by class {list(counts)}{label}"
            notes.append(f"{counted}; the majority class alone is right for {majority} %")
    notes += [] if table.mibp else ["the exact step is left out here; --engines mibp runs it alone"]
    return [f"- {note}" for note in notes]


def _of(cell: Cell, records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["cell"] == cell.label]


def _why_below(cell: Cell, record: Record) -> str:
    """Why a certified accuracy is below the paper's: the trained model itself, the data set's doubt, or the bounds.

    certified ≤ attacked ≤ clean: what is below the paper already without any doubt comes from the split, the initial weights
    and the rows drawn; what an attack takes no certificate can give; only the rest is lost by the bounds.
    """
    only, where = "", ""
    if cell.missed_by(record["clean"]):
        only, where = "only ", " on these splits and initial weights"
    paper = cell.paper["MIBP-Cert"]
    return (
        f"{paper - record['certified']:.1f} below the paper's {paper:.1f}; the clean models reach {only}{record['clean']:.1f}"
        f"{where}, attacks lower that to {record['attacked']:.1f}, and the bounds lose the remaining "
        f"{record['attacked'] - record['certified']:.1f}"
    )


def cost_table(name: str, records: Sequence[Record]) -> str:
    """Cost beside the paper's."""
    unit = "branches" if name == "branches" else "seconds per epoch"
    found = pd.DataFrame(records).drop(columns="table").astype({"gap_percent": float})
    shown = found.to_string(index=False, float_format=lambda value: f"{value:.4g}", na_rep="–")
    return f"{name}: exact step on TwoMoons, beside the paper's {unit}\n{shown}"
