"""A run as one web page that needs nothing else: what was doubted, what is certified, and what exactly that means."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from mibp_cert.card import number, percent
from mibp_cert.certify import CertifiedRun
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.certify.shown import warnings
from mibp_cert.certify.tables import class_table
from mibp_cert.data import Task
from mibp_cert.report import plots
from mibp_cert.report.plots import ATTACKED, DARK, INK, PAPER, SIZE, colour_variable, inline_svg
from mibp_cert.report.terminal import FIXED, fitted_words

ROWS = 50
"""Most test points listed."""
BLAMED = 20
"""Most training rows listed."""
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
) -> str:
    """The page. `words`: the threat in words; `blame`: rows that the uncertainty comes from (`rows`, `sentence`); `answers`:
    further questions, answered in sentences; `configuration`: settings of the caller's own."""
    name = escape(run.data.name or "your data")
    parts = [
        *_summary(run, words),
        _pictures(run),
        *_points(run),
        *_blame(blame),
        *(["<h2>Further questions</h2>", _list(answers)] if answers else []),
        "<h2>Settings</h2>",
        _table(("setting", "value"), _settings(run, configuration or {}), "settings"),
        *_meaning(run),
    ]
    return PAGE.substitute(COLOURS, name=name, parts="\n".join(parts))


def _summary(run: CertifiedRun, words: str) -> list[str]:
    """What is certified, what was doubted, and three large numbers."""
    tested = run.test is not None or run.test_ranges is not None
    lines = [f'<p class="lead"><strong>{_lead(run)}</strong></p>']
    lines.append(f"<p><strong>What was doubted:</strong> {escape(words.rstrip('.'))}.</p>")
    if run.test_threat is not None:
        lines.append(f"<p>Test inputs may be wrong, too: {escape(run.test_threat.words())}.</p>")
    lines += [f'<p class="warning">{escape(line)}</p>' for line in warnings(run)]
    lines += [_cards(run)] if tested else []
    when = f"after {run.steps} step(s)" if run.fitted is None else escape(fitted_words(run.fitted))
    radius = run.bounds.radius[run.frozen :]
    lines.append(
        f'<p class="note">Bounds of the {len(radius)} parameters {when}: mean radius '
        f"{radius.mean():.3g}, largest {radius.max():.3g}.</p>"
    )
    return [*lines, *([] if tested else ["<p>There are no test data, so that no prediction was asked for.</p>"])]


def _lead(run: CertifiedRun) -> str:
    """What is certified, in a sentence or two."""
    if run.test is not None:
        same, n = int(run.test.certified.sum()), len(run.test.certified)
        return f"{same} of {n} predictions are certified: they are the same whatever the true data were."
    if run.test_ranges is None:
        return f"Every {_done(run)} parameter lies within proven bounds, whatever the true data were."
    known, n = int(np.isfinite(run.test_ranges.width).all(axis=1).sum()), len(run.test_ranges.width)
    mean = f" On average it is {number(run.errors['range_mean'])} wide." if known == n else ""
    return f"{known} of {n} outputs have a proven range that holds whatever the true data were.{mean}"


def _done(run: CertifiedRun) -> str:
    return "trained" if run.fitted is None else "fitted"


def _cards(run: CertifiedRun) -> str:
    """Clean, attacked and certified accuracy or error, in large letters."""
    tried = 0 if run.attack is None else len(run.attack.theta)
    if run.test is not None:
        what, shares = "accuracy", (run.nominal_accuracy, run.attacked_accuracy, run.certified_test_accuracy)
        values = [percent(share) for share in shares]
        texts = [
            f"Of the model {_done(run)} on the data as they are.",
            f"Right for {tried} models {_done(run)} on other possible data, too. The truth is no higher.",
            "Right and proven for all possible data. The truth is no lower.",
        ]
    else:
        what, errors = "error", run.errors
        values = [number(errors.get(f"{name}_error")) for name in ("nominal", "attacked", "certified")]
        texts = [
            f"Mean absolute error of the model {_done(run)} on the data as they are.",
            f"The largest of {tried} models {_done(run)} on other possible data, point by point. The truth is no lower.",
            "Proven for all possible data. The truth is no higher.",
        ]
    if not tried:
        values[1], texts[1] = "–", "No attack was tried."
    names = (f"Clean {what}", f"{what.capitalize()} under attack", f"Certified {what}")
    card = '<div class="card"><p class="name">{}</p><p class="value">{}</p><p>{}</p></div>'
    cards = "".join(card.format(*parts) for parts in zip(names, values, texts, strict=True))
    return f'<div class="cards">{cards}</div>'


def _pictures(run: CertifiedRun) -> str:
    """Accuracy, radius, regions and margins, as far as the run has them."""
    regression, found = run.test_ranges is not None, []
    if regression or run.test is not None:
        text = "The truth lies between attacked and certified." if run.attack is not None and run.reached else ""
        found.append(_figure(plots.plot_accuracy, run, "Mean absolute error" if regression else "Accuracy", text))
    if run.fitted is None:
        text = "Half the width of the range that a parameter may lie in. Radii grow as doubt adds up."
        found.append(_figure(plots.plot_radius, run, "Radius of the bounds over the epochs", text))
    if plots.has_regions(run.train):
        text = "Coloured: every possible model gives that class. Grey: the answer is abstain."
        if run.request.quick != run.prediction:
            means = {"interval": "intervals", "dual": "the closed form"}[run.request.quick]
            text += f" Drawn with {means}, which abstain more often than the solver."
        found.append(_figure(plots.plot_regions, run, "Certified regions", text, 3.6))
    if regression:
        text = "Each output lies in its proven range, whatever the true data were."
        found.append(_figure(plots.plot_ranges, run, "Ranges of the outputs", text, 3.6))
    elif run.test is not None:
        text = "From the proven lower to the proven upper lead of the class. Wholly above 0: certified."
        found.append(_figure(plots.plot_margins, run, "Margins", text, 3.6))
    return f'<h2>Pictures</h2><div class="plots">{"".join(found)}</div>'


def _points(run: CertifiedRun) -> list[str]:
    """Test points that abstain and the confusion of classes; for a regression, the widest ranges."""
    if run.test_ranges is not None:
        return _widest(run)
    if run.test is None:
        return []
    # Attacks train as far as the bounds reach; where those diverged before the end, they say nothing about its models.
    attack = run.attack if run.reached else None
    table = class_table(run, run.test_inputs(), run.test, attack, run.data.tested.index)
    table = table[~table["certified"]].drop(columns=["class", "certified", "margin_low", "margin_high"])
    lines = ["<p>There are none: every test point has a certified class.</p>"]
    if len(table):
        head = ("test point", *(name.replace("nominal", "clean").replace("_", " ") for name in table.columns))
        lines = _listed("test points abstain", head, list(table.itertuples()), "test points that abstain")
    text = "Number of test points: rows are true classes, columns certified ones."
    height = min(7.0, 1.6 + 0.45 * len(run.train.classes))
    picture = _figure(plots.plot_confusion, run, "True and certified classes", text, height)
    lines.append(f'<h2>Confusion</h2><div class="plots">{picture}</div>')
    return ["<h2>Test points without a certified class</h2>", *lines]


def _widest(run: CertifiedRun) -> list[str]:
    """Regression: the test points that are known least."""
    assert run.test_ranges is not None
    assert run.data.tested.targets is not None
    proven, targets = run.test_ranges.outputs, run.train.in_units(run.data.tested.targets)
    clean = run.train.in_units(nominal_outputs(run.network, run.theta, run.data.tested.x))
    rows = []
    for i in np.argsort(-run.test_ranges.width.max(axis=1), kind="stable").tolist():
        low, high = proven.low[i, 0], proven.high[i, 0]
        shown = f"{low:.4g} to {high:.4g}" if np.isfinite([low, high]).all() else "unknown"
        rows.append((i, f"{targets[i, 0]:.4g}", f"{clean[i, 0]:.4g}", shown))
    head = ("test point", "target", "clean output", "proven range")
    return ["<h2>Widest ranges</h2>", *_listed("test points, the widest range first", head, rows, "ranges")]


def _blame(blame: Any) -> list[str]:
    """Which training rows the uncertainty comes from."""
    if blame is None:
        return []
    lines = ["<h2>Where the uncertainty comes from</h2>", f"<p>{escape(blame.sentence)}</p>"]
    shown = blame.rows.head(BLAMED)[["row", "effect", "cells"]]
    if len(shown):
        rows = [
            (row, number(effect if np.isfinite(effect) else None), cells)
            for row, effect, cells in shown.itertuples(index=False)
        ]
        height = 0.9 + 0.25 * min(plots.BLAMED, len(shown))
        picture = _figure(plots.plot_blame, blame, "Training rows with the largest share", "", height)
        head = ("row", "share of the uncertainty (%)", "cells")
        table = _table(head, rows, "training rows and their share of the uncertainty", "listed long")
        lines.append(f'<div class="plots">{picture}{table}</div>')
    return lines


def _settings(run: CertifiedRun, configuration: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The keys of the JSON file that say what was asked for, and the settings of the caller's own."""
    plain = run.to_json() | {"epochs": getattr(run.training, "epochs", None), "threat": run.threat.words()}
    if run.fitted is not None:  # without the keys of steps, and without a solver
        plain = {
            key: value for key, value in plain.items() if value is not None and key not in ("solver", "repeatable")
        }
    apart = (*RECORD, "dataset", "test_threat", "diverged", "outer", "test", "attack")
    rows = [(key.replace("_", " "), _shown(value)) for key, value in plain.items() if key not in apart]
    return rows + [(f"configuration: {key}", _shown(value)) for key, value in configuration.items()]


def _shown(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_shown(entry)}" for name, entry in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _meaning(run: CertifiedRun) -> list[str]:
    """What the numbers rest on, and what exactly is certified."""
    plain = run.to_json() | {"soundness": f"{run.soundness}. {SOUNDNESS.get(run.soundness, '')}"}
    rows = [(words, _shown(plain[key])) for key, words in RECORD.items()]
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
    record = _table(("what", "value"), rows, "record")
    return ["<h2>What exactly is certified</h2>", _list(fixed), "<h2>Record</h2>", record]


def _listed(what: str, head: Sequence[str], rows: Sequence[Sequence[Any]], label: str) -> list[str]:
    """How many test points there are, and a table of the first ones."""
    cut = f" The first {ROWS} are listed." if len(rows) > ROWS else ""
    count = f"<p>{len(rows)} {what}.{cut} Points are counted from 0.</p>"
    return [count, _table(head, rows[:ROWS], label, "listed long")]


def _figure(draw: Callable[[Any, Axes], None], about: Any, title: str, text: str, height: float = SIZE[1]) -> str:
    caption = f"<figcaption>{text}</figcaption>" if text else ""
    return f"<figure><h3>{title}</h3>{inline_svg(draw, about, title, height)}{caption}</figure>"


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]], label: str, kind: str = "") -> str:
    """A table in a container that scrolls by itself, by keyboard, too."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    box = f'<div class="scroll {kind}" tabindex="0" role="region" aria-label="{escape(label)}">'
    return f"{box}<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
