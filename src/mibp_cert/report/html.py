"""A run as one web page that needs nothing else: is the model any good, what survives, what to do next, and what exactly is
certified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from mibp_cert.card import number, percent
from mibp_cert.certify import CertifiedRun
from mibp_cert.certify.columns import column_records
from mibp_cert.data import Task
from mibp_cert.report import plots
from mibp_cert.report.first import first_screen
from mibp_cert.report.frontier import EPOCHS, LISTED, Frontier, frontier_lines, frontier_of, plot_frontier
from mibp_cert.report.lines import values_words
from mibp_cert.report.markup import bullets, figure, table
from mibp_cert.report.plots import ATTACKED, DARK, INK, PAPER, colour_variable
from mibp_cert.report.rows import check_again, tested
from mibp_cert.report.settings import flat, plain, settings
from mibp_cert.report.words import FIXED, next_steps
from mibp_cert.studies.choose import BEHIND, HOPELESS, UNPROVEN, Choice
from mibp_cert.visible import visible

COLUMNS = 60
"""Most columns listed."""
LEAST = 0.0005
"""Share of the uncertainty from which on a column is listed."""
SOUNDNESS = {
    "rounding-safe": "The bounds enclose exact arithmetic, and double precision in any order of summation; only the exponentials "
    "and hyperbolic tangents of the libraries are trusted, to 16 units in the last place.",
    "solver-tolerance": "A solver's proven bound is taken at its word, moved outward by a millionth of the program's scale.",
}
RECORD = {"versions": "versions", "data_sha256": "training data (SHA-256)", "soundness": "soundness"}
"""What the page's last table says, by key of the JSON file."""
PAGE = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
COLOURS = {
    "light": ";".join(f"{colour_variable(light)}:{light}" for light in DARK),
    "dark": ";".join(f"{colour_variable(light)}:{dark}" for light, dark in DARK.items()),
    **{name: colour_variable(colour) for name, colour in (("ink", INK), ("paper", PAPER), ("warning", ATTACKED))},
}
"""What the page's style says about colours."""


def html_report(
    run: CertifiedRun,
    *,
    words: str,
    blame: Any = None,
    answers: Sequence[str] = (),
    configuration: Mapping[str, Any] | None = None,
    choice: Choice | None = None,
    parts: Any = None,
    ways: Iterable[Any] = (),
) -> str:
    """The page. `words`: the threat in words; `blame`: rows that the uncertainty comes from; `answers`: further questions, in
    sentences; `configuration`: settings of the caller's own; `choice`: how `C` was chosen; `parts`: what is lost to each part
    of the threat and through each column (`to_json`); `ways`: commands to try next (`words`, `command`)."""
    name, frontier = escape(run.data.name or "your data"), frontier_of(run, choice)
    steps = next_steps(run, blame, frontier, ways, typed=configuration is not None)
    sections = [
        first_screen(run, words, steps),
        *_frontier(frontier),
        *_loss(run, parts, blame),
        *check_again(blame),
        _pictures(run),
        *tested(run),
        *_columns(run),
        *(["<h2>Further questions</h2>", bullets(answers)] if answers else []),
        "<h2>Settings</h2>",
        table(("setting", "value"), settings(run), "settings", "pairs"),
        *_configuration(configuration or {}),
        *_meaning(run),
    ]
    return visible(PAGE.substitute(COLOURS, name=name, parts="\n".join(sections)))


def _frontier(frontier: Frontier | None) -> list[str]:
    """Clean against certified on validation rows: a picture, and what picks each point."""
    if frontier is None:
        return []
    by = "by epoch" if frontier.what == EPOCHS else "by C"
    shown = number if frontier.judge.numbers else percent
    title = f"Clean against certified {frontier.figure} {by}"
    text = f"What could be had instead, on validation rows, where the baseline has {shown(frontier.judge.baseline)}."
    known = sum(point.certified is not None for point in frontier.points)
    picture = figure(plot_frontier, frontier, title, "", 3.2) if known > 1 else ""
    lines = frontier_lines(frontier, LISTED)
    cut = " Only points that no other one beats are listed." if len(lines.rows) < len(frontier.points) else ""
    words = {
        BEHIND: "it would not be chosen with all of it certified",
        HOPELESS: "with this much doubt nothing is proven",
        UNPROVEN: "plain bounds prove no start; asked for by itself, slower ways are tried, too",
    }
    why = "".join(f" “{p}”: {said}." for p, said in words.items() if any(point.why == p for point in frontier.points))
    said = f"<p>{text} The certificate is about the point that was chosen, not about the choice.{cut}{why}</p>"
    listed = table(lines.head, lines.rows, f"clean and certified {frontier.figure} {by}", "figures")
    return ["<h2>The frontier</h2>", said, f'<div class="plots">{picture}<div>{listed}</div></div>']


def _loss(run: CertifiedRun, parts: Any, blame: Any) -> list[str]:
    """What is lost to each part of the threat alone, and which share of the uncertainty goes through each column."""
    found = {} if parts is None else parts.to_json()
    alone, shares = found.get("parts", []), found.get("by_column", {})
    if not shares and blame is not None:
        shares = {name: effect / 100.0 for name, effect in blame.columns.items()}
    tables = []
    if alone:
        whole = {"words": "all of it at once", **_whole(run)}
        numbers = run.train.task is Task.NUMBERS
        keys = ("certified_error", "range_mean") if numbers else ("certified_accuracy", "certification_rate")
        head = (
            "what may be wrong",
            *(("certified error", "mean width") if numbers else ("certified accuracy", "certified")),
        )
        shown = number if numbers else percent
        rows = [(line["words"], *(shown(line.get(key)) for key in keys)) for line in (*alone, whole)]
        tables.append(table(head, rows, "what is certified with each part alone", "figures wordy"))
    listed = [(name, percent(share)) for name, share in shares.items() if share >= LEAST]
    if listed:
        tables.append(
            table(
                ("column", "share of the uncertainty"),
                listed[:COLUMNS],
                "share of the uncertainty by column",
                "figures",
            )
        )
    return ["<h2>What the doubt costs</h2>", f'<div class="plots">{"".join(tables)}</div>'] if tables else []


def _whole(run: CertifiedRun) -> dict[str, float | None]:
    """What is certified of the run, by the names of its parts."""
    if run.test is None:
        return {name: run.errors.get(name) for name in ("certified_error", "range_mean")}
    return {
        "certified_accuracy": run.certified_test_accuracy,
        "certification_rate": run.test.certification_rate(),
    }


def _pictures(run: CertifiedRun) -> str:
    """Accuracy, radius, regions and margins, as far as the run has them."""
    regression, found = run.test_ranges is not None, []
    if regression or run.test is not None:
        text = "The truth lies between attacked and certified." if run.attack is not None and run.reached else ""
        found.append(figure(plots.plot_accuracy, run, "Mean absolute error" if regression else "Accuracy", text))
    if run.fitted is None:
        text = "Half the width of the range that a parameter may lie in. Radii grow as doubt adds up."
        found.append(figure(plots.plot_radius, run, "Radius of the bounds over the epochs", text))
    if plots.has_regions(run.train):
        text = "Coloured: every possible model gives that class. Grey: the answer is abstain."
        if run.request.quick != run.prediction:
            means = {"interval": "intervals", "dual": "the closed form"}[run.request.quick]
            text += f" Drawn with {means}, which abstain more often than the solver."
        found.append(figure(plots.plot_regions, run, "Certified regions", text, 3.6))
    if regression:
        text = "Each output lies in its proven range, whatever the true data were."
        found.append(figure(plots.plot_ranges, run, "Ranges of the outputs", text, 3.6))
    elif run.test is not None:
        text = "From the proven lower to the proven upper lead of the class. Wholly above 0: certified."
        found.append(figure(plots.plot_margins, run, "Margins", text, 3.6))
    return f'<h2>Pictures</h2><div class="plots">{"".join(found)}</div>'


def _columns(run: CertifiedRun) -> list[str]:
    """How every column was read, and what may be wrong with it."""
    records = column_records(run.data, run.request.members)
    rows = [(r.name, values_words(r), r.missing or "–", r.doubt or "–") for r in records[:COLUMNS]]
    rows += [(f"… and {len(records) - COLUMNS} more", "", "", "")] if len(records) > COLUMNS else []
    head = ("column", "read as", "missing", "what may be wrong in training rows")
    return ["<h2>Columns as they were read</h2>", table(head, rows, "columns as they were read", "read")]


def _configuration(configuration: Mapping[str, Any]) -> list[str]:
    """The caller's own settings, as far as anything was said or is usual."""
    lines = [f"<li><b>{escape(key)}:</b> {escape(value)}</li>" for key, value in flat(configuration)]
    return ["<h2>Configuration</h2>", f'<ul class="keys">{"".join(lines)}</ul>'] if lines else []


def _meaning(run: CertifiedRun) -> list[str]:
    """What the numbers rest on, and what exactly is certified."""
    told = run.to_json() | {"soundness": f"{run.soundness}. {SOUNDNESS.get(run.soundness, '')}"}
    rows = [(words, plain(told[key])) for key, words in RECORD.items()]
    model = "every model that training could have produced this way"
    trusted = (
        "the initial weights, which rows are in which batch, the learning rates, the number of steps, and how columns are scaled "
        "and categories numbered"
    )
    in_doubt = "One dataset is meant, the same in every epoch."
    if run.fitted is not None:
        model, trusted = "every minimum, one for each possible dataset,", FIXED
        in_doubt = (
            "The minimum is meant, whatever optimiser finds it: no seed, batch or number of steps is part of this."
        )
    certified = f"A prediction is certified if {model} gives the same class. Ties abstain."
    if run.train.task is Task.NUMBERS:
        certified = f"A range is proven if the output of {model} lies in it."
    fixed = [
        f"Fixed and trusted: {trusted}.",
        f"In doubt: the training data, as described above. {in_doubt}",
        certified,
    ]
    record = table(("what", "value"), rows, "record", "pairs")
    return ["<h2>What exactly is certified</h2>", bullets(fixed), "<h2>Record</h2>", record]
