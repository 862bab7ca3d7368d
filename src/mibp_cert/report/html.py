"""A run as one web page that needs nothing else: what was doubted, what is certified, and what exactly that means."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from mibp_cert.certify import ABSTAIN, CertifiedRun
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.certify.tables import reasons
from mibp_cert.data import Task
from mibp_cert.engines import prediction_named
from mibp_cert.report import plots
from mibp_cert.report.drawing import ATTACKED, DARK, INK, PAPER, SIZE, colour_variable, inline_svg
from mibp_cert.report.terminal import certified_accuracy, number, percent

ROWS = 50
"""Most test points listed."""
BLAMED = 20
"""Most training rows listed."""
SOUNDNESS = {
    "rounding-safe": "The bounds enclose exact arithmetic, and double precision in any order of summation; only the exponentials "
    "and hyperbolic tangents of the libraries are trusted, to 16 units in the last place.",
    "solver-tolerance": "A solver's proven bound is taken at its word, moved outward by a millionth of the program's scale.",
}
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
    lines += [f'<p class="warning">{escape(line)}</p>' for line in _warnings(run)]
    lines += [_cards(run)] if tested else []
    lines.append(
        f'<p class="note">Bounds of the {run.network.layout.size} parameters after {run.steps} step(s): mean radius '
        f"{run.bounds.radius.mean():.3g}, largest {run.bounds.radius.max():.3g}.</p>"
    )
    return [*lines, *([] if tested else ["<p>There are no test data, so that no prediction was asked for.</p>"])]


def _lead(run: CertifiedRun) -> str:
    """What is certified, in a sentence or two."""
    if run.test is not None:
        same, n = int(run.test.certified.sum()), len(run.test.certified)
        return f"{same} of {n} predictions are certified: they are the same whatever the true data were."
    if run.test_ranges is None:
        return "Every trained parameter lies within proven bounds, whatever the true data were."
    known, n = int(np.isfinite(run.test_ranges.width).all(axis=1).sum()), len(run.test_ranges.width)
    mean = f" On average it is {number(run.errors['range_mean'])} wide." if known == n else ""
    return f"{known} of {n} outputs have a proven range that holds whatever the true data were.{mean}"


def _warnings(run: CertifiedRun) -> list[str]:
    """What a reader must know before the numbers: diverged bounds, and views larger than the threat."""
    lines = []
    if run.diverged is not None and not run.reached:
        lines.append(
            f"The bounds diverged at step {run.diverged}: nothing is certified about the training that was asked for. Clean and "
            f"attacked figures are about its first {run.steps} step(s)."
        )
    elif run.diverged is not None:
        lines.append(
            f"The bounds diverged at step {run.diverged}. The certificate is about exactly {run.steps} step(s), chosen on "
            "validation data before."
        )
    lines += [f"The bounds are about a larger set than the one described: {words}." for words in run.outer]
    if run.fallbacks:
        lines.append(f"{run.fallbacks} of {run.programs} bounds are not the solver's: looser, and still sound.")
    return lines


def _cards(run: CertifiedRun) -> str:
    """Clean, attacked and certified accuracy or error, in large letters."""
    tried = 0 if run.attack is None else len(run.attack.theta)
    if run.test is not None:
        names = ("Clean accuracy", "Accuracy under attack", "Certified accuracy")
        values = [percent(run.nominal_accuracy), percent(run.attacked_accuracy), percent(certified_accuracy(run))]
        clean = "Of the model trained on the data as they are."
        attacked = f"Right for {tried} models trained on other possible data, too. The truth is no higher."
        certified = "Right and proven for all possible data. The truth is no lower."
    else:
        names = ("Clean error", "Error under attack", "Certified error")
        values = [number(run.errors.get(f"{name}_error")) for name in ("nominal", "attacked", "certified")]
        clean = "Mean absolute error of the model trained on the data as they are."
        attacked = (
            f"The largest of {tried} models trained on other possible data, point by point. The truth is no lower."
        )
        certified = "Proven for all possible data. The truth is no higher."
    if not tried:
        values[1], attacked = "–", "No attack was tried."
    cards = (
        f'<div class="card"><p class="name">{name}</p><p class="value">{value}</p><p>{text}</p></div>'
        for name, value, text in zip(names, values, (clean, attacked, certified), strict=True)
    )
    return f'<div class="cards">{"".join(cards)}</div>'


def _pictures(run: CertifiedRun) -> str:
    """Accuracy, radius, regions and margins, as far as the run has them."""
    regression = run.test_ranges is not None
    tested = run.test is not None or regression
    found = []
    if tested:
        text = "The truth lies between attacked and certified." if run.attack is not None and run.reached else ""
        title = "Mean absolute error" if regression else "Accuracy"
        found.append(_figure(partial(plots.plot_accuracy, run), "accuracy", title, text))
    text = "Half the width of the range that a parameter may lie in. Radii grow as doubt adds up."
    found.append(_figure(partial(plots.plot_radius, run), "radius", "Radius of the bounds over the epochs", text))
    if plots.has_regions(run.train):
        text = "Coloured: every possible model gives that class. Grey: the answer is abstain."
        if prediction_named(run.prediction).solves:
            text += " Drawn with intervals, which abstain more often than the solver."
        found.append(_figure(partial(plots.plot_regions, run), "regions", "Certified regions", text, 3.6))
    if tested:
        title, text = (
            "Margins",
            "From the proven lower to the proven upper lead of the class. Wholly above 0: certified.",
        )
        if regression:
            title = "Ranges of the outputs"
            text = "Each output lies in its proven range, whatever the true data were."
        found.append(_figure(partial(plots.plot_margins, run), "margins", title, text, 3.6))
    return f'<h2>Pictures</h2><div class="plots">{"".join(found)}</div>'


def _points(run: CertifiedRun) -> list[str]:
    """Test points that abstain and the confusion of classes; for a regression, the widest ranges."""
    if run.test_ranges is not None:
        return _widest(run)
    if run.test is None or run.nominal is None or run.data.test is None:
        return []
    names, index = [str(name) for name in run.train.classes], run.data.tested.index
    attacked = run.nominal if run.attack is None else run.attack.attacked_classes(run.nominal)
    why = reasons(run, run.test, run.nominal, None if run.attack is None else attacked)
    rows = []
    for i in np.flatnonzero(run.test.classes == ABSTAIN).tolist():
        changed = names[attacked[i]] if attacked[i] != run.nominal[i] and run.reached else "–"
        # The user's own name of a row, or its number.
        rows.append((str(i if index is None else index[i]), names[run.nominal[i]], changed, why[i]))
    lines = ["<p>There are none: every test point has a certified class.</p>"]
    if rows:
        head = ("test point", "clean class", "attacked class", "reason")
        lines = _listed("test points abstain", head, rows, "test points that abstain")
    title, text = "True and certified classes", "Number of test points: rows are true classes, columns certified ones."
    height = min(7.0, 1.6 + 0.45 * len(names))
    picture = _figure(partial(plots.plot_confusion, run), "confusion", title, text, height)
    lines.append(f'<h2>Confusion</h2><div class="plots">{picture}</div>')
    return ["<h2>Test points without a certified class</h2>", *lines]


def _widest(run: CertifiedRun) -> list[str]:
    """Regression: the test points that are known least."""
    assert run.test_ranges is not None
    assert run.data.test is not None
    assert run.data.tested.targets is not None
    proven, targets = run.test_ranges.outputs, run.train.in_units(run.data.tested.targets)
    clean = run.train.in_units(nominal_outputs(run.network, run.theta, run.data.tested.x))
    rows = []
    for i in np.argsort(-run.test_ranges.width.max(axis=1), kind="stable").tolist():
        low, high = proven.low[i, 0], proven.high[i, 0]
        shown = f"{low:.4g} to {high:.4g}" if np.isfinite([low, high]).all() else "unknown"
        rows.append((str(i), f"{targets[i, 0]:.4g}", f"{clean[i, 0]:.4g}", shown))
    head = ("test point", "target", "clean output", "proven range")
    return ["<h2>Widest ranges</h2>", *_listed("test points, the widest range first", head, rows, "ranges")]


def _blame(blame: Any) -> list[str]:
    """Which training rows the uncertainty comes from."""
    if blame is None:
        return []
    shown = blame.rows.head(BLAMED)[["row", "effect", "cells"]]
    rows = [
        (str(row), number(effect if np.isfinite(effect) else None), str(cells))
        for row, effect, cells in shown.itertuples(index=False)
    ]
    title, height = "Training rows with the largest share", 0.9 + 0.25 * max(1, min(10, len(shown)))
    picture = _figure(partial(plots.plot_blame, blame), "blame", title, "", height)
    head = ("row", "share of the uncertainty (%)", "cells")
    table = _table(head, rows, "training rows and their share of the uncertainty", "listed long")
    return [
        "<h2>Where the uncertainty comes from</h2>",
        f'<p>{escape(str(blame.sentence))}</p><div class="plots">{picture}{table}</div>',
    ]


def _settings(run: CertifiedRun, configuration: Mapping[str, Any]) -> list[tuple[str, str]]:
    unroll = run.request.settings.unroll
    training, plain = run.training, run.to_json()
    options = [key for key in ("momentum", "weight_decay", "clip", "schedule") if key in plain]
    optimiser = ["stochastic gradient descent", *(f"{key.replace('_', ' ')} {plain[key]}" for key in options)]
    rows = [
        ("network", f"{' – '.join(map(str, run.network.sizes))} ({'; '.join(run.network.describe())})"),
        ("parameters", str(run.network.layout.size)),
        ("loss", training.loss),
        ("learning rate", f"{training.learning_rate:g}"),
        ("optimiser", ", ".join(optimiser)),
        ("epochs", f"{training.epochs} asked for; the certificate is about {run.steps} step(s) ({run.select.rule})"),
        ("batch", f"{run.batch_size} of {len(run.train)} rows, {training.batch_mode}"),
        ("initial weights", training.init),
        (
            "engine",
            run.engine + (f", {unroll} steps in one program" if unroll > 1 else ""),
        ),
        ("prediction", run.prediction),
        (
            "solver",
            f"{run.solver.solver}, {run.programs} programs, {run.nodes} nodes" if run.programs else "not needed",
        ),
        ("seed", str(training.seed)),
        ("threat", run.threat.words()),
    ]
    for key, value in configuration.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        rows.append((f"configuration: {key}", shown))
    return rows


def _meaning(run: CertifiedRun) -> list[str]:
    """What the numbers rest on, and what exactly is certified."""
    versions = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in run.to_json()["versions"].items())
    rows = [
        ("versions", versions),
        ("training data (SHA-256)", run.train.sha256),
        ("soundness", f"{run.soundness}. {SOUNDNESS.get(run.soundness, '')}"),
    ]
    model = "every model that training could have produced this way"
    certified = f"A prediction is certified if {model} gives the same class. Ties abstain."
    if run.train.task is Task.NUMBERS:
        certified = f"A range is proven if the output of {model} lies in it."
    fixed = [
        "Fixed and trusted: the initial weights, which rows are in which batch, the learning rates, the number of steps, and how "
        "columns are scaled and categories numbered.",
        "In doubt: the training data, as described above. One dataset is meant, the same in every epoch.",
        certified,
    ]
    record = _table(("what", "value"), rows, "record")
    return ["<h2>What exactly is certified</h2>", _list(fixed), "<h2>Record</h2>", record]


def _listed(what: str, head: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> list[str]:
    """How many test points there are, and a table of the first ones."""
    cut = f" The first {ROWS} are listed." if len(rows) > ROWS else ""
    count = f"<p>{len(rows)} {what}.{cut} Points are counted from 0.</p>"
    return [count, _table(head, rows[:ROWS], label, "listed long")]


def _figure(draw: Callable[[Axes], object], key: str, title: str, text: str, height: float = SIZE[1]) -> str:
    caption = f"<figcaption>{escape(text)}</figcaption>" if text else ""
    return f"<figure><h3>{escape(title)}</h3>{inline_svg(draw, key, title, height)}{caption}</figure>"


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], label: str, kind: str = "") -> str:
    """A table in a container that scrolls by itself, by keyboard, too."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    box = f'<div class="scroll {kind}" tabindex="0" role="region" aria-label="{escape(label)}">'
    return f"{box}<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
