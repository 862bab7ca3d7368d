"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from mibp_cert.certify import CertifiedRun
from mibp_cert.nets import steps_per_epoch
from mibp_cert.studies.reproduce import Table as Reproduced
from mibp_cert.threats import in_words

OURS = {"interval": "interval (FullCert)", "crown": "crown (Sosnin et al.)"}
"""Engines that are another paper's method."""


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
    lines.append(f"What may be wrong: {in_words(run.threat)}.")
    if run.test_threat is not None:
        lines.append(f"What may be wrong with the test inputs: {in_words(run.test_threat)}.")
    if run.diverged is not None:
        lines.append(f"The bounds diverged: no prediction can be certified after step {run.diverged}.")
    if run.test is not None and run.data.test is not None:
        n = len(run.data.tested)
        attacked = "" if run.attacked_accuracy is None else f", accuracy under attack {percent(run.attacked_accuracy)}"
        lines.append(
            f"Test ({n} points, prediction {run.prediction}): clean accuracy {percent(run.nominal_accuracy)} "
            f"(the most frequent class alone: {percent(run.majority_accuracy)}){attacked}, "
            f"certified accuracy {percent(run.test.certified_accuracy(run.data.tested.y))}; "
            f"certified {percent(run.test.certification_rate())}, abstaining on {int((~run.test.certified).sum())}."
        )
    if run.test_ranges is not None:
        e = run.errors
        lines.append(
            f"Test ({len(run.test_ranges.width)} points, prediction {run.prediction}): mean absolute error of the clean model "
            f"{number(e['nominal_error'])}, under attack {number(e.get('attacked_error'))}, at most "
            f"{number(e['certified_error'])} (certified); each output is known to within a range of width "
            f"{number(e['range_mean'])} on average, of which attacks reach {number(e.get('attacked_range_mean'))}."
        )
    if run.attack is not None:
        inner, outer = float(run.attack.inner().radius.mean()), float(run.bounds.radius.mean())
        share = "" if outer == 0 else f", {100 * inner / outer:.0f} % of the bounds' {outer:.3g}"
        lines.append(
            f"Attack: {len(run.attack.theta)} datasets of the threat trained for real, none contradicts a certificate; they "
            f"reach a mean radius of {inner:.3g}{share}; the strongest changes {run.attack.flips} prediction(s)."
            if run.nominal is not None
            else f"Attack: {len(run.attack.theta)} datasets of the threat trained for real, none leaves a range; they reach a "
            f"mean radius of {inner:.3g}{share}."
        )
    if run.fallbacks:
        lines.append(
            f"{run.fallbacks} of {run.programs} bounds fell back to the pre-analysis (limits, dead workers or solver failures): "
            "looser, still sound."
        )
    lines += advice(run)
    lines += [f"Outer view: {words}." for words in run.outer]
    lines.append(f"Soundness: {run.soundness}.")
    return "\n".join(lines)


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
    ways += ["the engine 'relational'"] if run.engine != "relational" else []
    why = " although no attack changes them: the bounds are too wide there" if run.attack is not None else ""
    return [
        f"{int(missed.sum())} test points are not certified{why}. "
        f"What helps: {', '.join(ways)}, less doubt (mibp-cert tolerance), or re-checked rows (mibp-cert blame)."
    ]


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
        split = run.data if run.data.test is not None else None
        certified = None if run.test is None or split is None else run.test.certified_accuracy(split.tested.y)
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


def accuracy_table(table: Reproduced, records: Sequence[dict[str, Any]]) -> Table:
    """A table of the paper, its own figures first, then the engines' mean ± standard deviation over the seeds."""
    out = Table(title=table.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0))
    for header in ("", "certified", "rate", "attack", "clean", "steps", "lr", "radius", "s", "n"):
        out.add_column(header, justify="right" if header else "left", no_wrap=True)
    for cell in table.cells:
        out.add_row(cell.label + (" *" if cell.note else ""))
        for name, value in cell.paper.items():
            if name != "rate" and value is not None:
                rate = cell.paper.get("rate") if name == "MIBP-Cert" else None
                out.add_row(f"  paper: {name}", f"{value:.1f}   ", "" if rate is None else f"{rate:.1f}")
        for record in records:
            if record["cell"] != cell.label:
                continue
            paper = cell.paper.get("MIBP-Cert")
            below = " " if paper is None or record["certified"] >= paper else "<"
            out.add_row(
                "  " + OURS.get(record["engine"], record["engine"]),
                f"{record['certified']:.1f}±{record['certified_std']:<4.1f}{below}",
                f"{record['rate']:.1f}",
                f"{record['attacked']:.1f}",
                f"{record['clean']:.1f}",
                f"{record['steps']:.1f}",
                f"{record['learning_rate']:.2g}",
                f"{record['radius']:.1e}",
                f"{record['seconds']:.0f}",
                str(record["seeds"]),
            )
    return out


def accuracy_notes(table: Reproduced, records: Sequence[dict[str, Any]]) -> list[str]:
    """What must be known to read the table: choices, cells below the paper, constant predictors."""
    notes = [f"- {choice}" for choice in table.choices]
    if table.select:
        close = (
            ""
            if table.clean_within is None
            else (
                f" among those whose clean validation accuracy is within {100 * table.clean_within:g} points of the best"
            )
        )
        notes.append(
            f"- the number of steps, at least {table.least_steps}, has the highest certified accuracy on validation data{close}, "
            "and is then a constant of the certificate"
        )
    notes += ["- * not in the paper"] if any(cell.note for cell in table.cells) else []
    for cell in table.cells:
        paper = cell.paper.get("MIBP-Cert")
        for r in records:
            if paper is not None and r["cell"] == cell.label and r["certified"] < paper:
                notes.append(f"- < {cell.label}, {r['engine']}: {_why_below(r, paper)}")
    if table.histogram:
        for cell in table.cells:
            shown = {
                (tuple(r["histogram"]), r["constant"], r["seeds"], round(r["majority"], 1))
                for r in records
                if r["cell"] == cell.label
            }
            for counts, constant, seeds, majority in sorted(shown):
                label = f", a constant predictor in {constant} of {seeds} runs" if constant else ""
                notes.append(
                    f"- {cell.label}: clean predictions by class {list(counts)}{label}; the majority class alone is right for "
                    f"{majority} %"
                )
    return notes


def _why_below(record: dict[str, Any], paper: float) -> str:
    """Why a certified accuracy is below the paper's: the trained model itself, the data set's doubt, or the bounds.

    certified ≤ attacked ≤ clean: what is below the paper already without any doubt comes from the split, the initial weights
    and the rows drawn; what an attack takes no certificate can give; only the rest is lost by the bounds.
    """
    missing = paper - record["certified"]
    if record["clean"] < paper:
        model = f"the clean models reach only {record['clean']:.1f} on these splits and initial weights"
    else:
        model = f"the clean models reach {record['clean']:.1f}"
    return (
        f"{missing:.1f} below the paper's {paper:.1f}; {model}, attacks lower that to {record['attacked']:.1f}, and the bounds "
        f"lose the remaining {record['attacked'] - record['certified']:.1f}"
    )


def cost_table(name: str, records: Sequence[dict[str, Any]]) -> Table:
    """Cost beside the paper's."""
    unit = "paper's\nbranches" if name == "branches" else "paper's\nseconds"
    out = Table(title=f"{name}: exact step on TwoMoons", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for header in ("case", unit, "s per\nepoch", "nodes", "programs", "largest\ngap %", "fall-\nbacks"):
        out.add_column(header, justify="left" if header == "case" else "right", no_wrap=True)
    for r in records:
        out.add_row(
            r["cell"],
            f"{r['paper']:g}",
            f"{r['seconds']:.2f}",
            str(r["nodes"]),
            str(r["programs"]),
            "–" if r["gap_percent"] is None else f"{r['gap_percent']:.2g}",
            str(r["fallbacks"]),
        )
    return out


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
