"""A run as one web page that needs nothing else: what was doubted, what is certified, and what exactly that means."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from mibp_cert.certify import ABSTAIN, CertifiedRun
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.certify.tables import reasons
from mibp_cert.data import Task
from mibp_cert.report.drawing import DARK, INK, PAPER, colour_variable, inline_svg
from mibp_cert.report.plots import (
    has_regions,
    plot_accuracy,
    plot_blame,
    plot_confusion,
    plot_margins,
    plot_radius,
    plot_regions,
)
from mibp_cert.report.terminal import number, percent
from mibp_cert.threats import in_words

ROWS = 50
"""Most test points listed."""
BLAMED = 20
"""Most training rows listed."""
SOUNDNESS = {
    "rounding-safe": "The bounds enclose exact arithmetic, and double precision in any order of summation; only the exponentials "
    "and hyperbolic tangents of the libraries are trusted, to 16 units in the last place.",
    "solver-tolerance": "A solver's proven bound is taken at its word, moved outward by a millionth of the program's scale.",
}
_LIGHT_VALUES = ";".join(f"{colour_variable(light)}:{light}" for light in DARK)
_DARK_VALUES = ";".join(f"{colour_variable(light)}:{dark}" for light, dark in DARK.items())
STYLE = f"""
:root{{color-scheme:light dark;{_LIGHT_VALUES};--ink:var({colour_variable(INK)});--paper:var({colour_variable(PAPER)});
--soft:#545d6b;--line:#d5dae1;--card:#f4f6f9}}
@media screen and (prefers-color-scheme:dark){{:root{{{_DARK_VALUES};--soft:#aab3c0;--line:#333b47;--card:#1c222b}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--paper);color:var(--ink);font:1rem/1.55 system-ui,sans-serif;overflow-wrap:anywhere}}
main{{max-width:76rem;margin:0 auto;padding:1.5rem clamp(.6rem,2vw,1.5rem) 3rem}}
h1{{font-size:1.9rem;line-height:1.2;margin:.1rem 0 1rem}} h2{{font-size:1.3rem;margin:2.4rem 0 .6rem}}
h3{{font-size:1rem;margin:0 0 .5rem}} p,li{{max-width:46rem}} ul{{padding-left:1.2rem}}
.kicker,figcaption,.card p,.note{{color:var(--soft)}} .kicker{{margin:0}} figcaption,.note{{font-size:.9rem}}
.lead{{font-size:1.15rem}} .warning{{border-left:.3rem solid var({colour_variable("#d55e00")});padding-left:.8rem}}
.cards{{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,14rem),1fr));margin:1.2rem 0}}
.card,figure{{background:var(--card);border:1px solid var(--line);border-radius:.6rem;margin:0;min-width:0}}
.card,figure{{padding:clamp(.6rem,2vw,1rem)}}
.card p{{margin:0;font-size:.9rem}} .card .value{{color:var(--ink);font-size:2.1rem;font-weight:650;line-height:1.2}}
.card .name{{color:var(--ink);font-weight:600}}
.plots{{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,26rem),1fr))}}
figure svg{{display:block;width:100%;max-width:34rem;height:auto;margin:0 auto}} figure svg text{{font-family:inherit!important}}
figure svg *{{stroke-linejoin:round;stroke-linecap:butt}} figcaption{{margin-top:.5rem}}
.scroll{{overflow-x:auto;border:1px solid var(--line);border-radius:.6rem;max-width:100%}}
table{{border-collapse:collapse;width:100%;font-size:.92rem}} th,td{{text-align:left;vertical-align:top;padding:.4rem .6rem}}
th{{font-weight:600;background:var(--card)}} tr+tr>*{{border-top:1px solid var(--line)}}
th{{overflow-wrap:normal}} td:first-child{{min-width:8.2rem}}
.listed td,.listed td:first-child{{min-width:4.5rem}} .listed td:last-child{{min-width:10rem}}
code{{font-family:ui-monospace,monospace;font-size:.9em}}
"""


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
        f'<p class="kicker">MIBP-Cert: what wrong training data can do to a model</p><h1>{name}</h1>',
        *_summary(run, words),
        _pictures(run),
        *_points(run),
        *_blame(blame),
        *([] if not answers else ["<h2>Further questions</h2>", _list(answers)]),
        "<h2>Settings</h2>",
        _table(("setting", "value"), _settings(run, configuration), "settings"),
        *_meaning(run),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}: certified training</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _summary(run: CertifiedRun, words: str) -> list[str]:
    """What was doubted, what is certified, and three large numbers."""
    lines = [f"<p><strong>What was doubted:</strong> {escape(words.rstrip('.'))}.</p>"]
    if run.test_threat is not None:
        lines.append(f"<p>Test inputs may be wrong, too: {escape(in_words(run.test_threat))}.</p>")
    cards: list[tuple[str, str, str]] = []
    if run.test is not None and run.data.test is not None:
        same, n = int(run.test.certified.sum()), len(run.data.tested)
        lead = f"{same} of {n} predictions are certified: they are the same whatever the true data were."
        cards = _accuracy_cards(run, run.test.certified_accuracy(run.data.tested.y))
    elif run.test_ranges is not None:
        known, n = int(np.isfinite(run.test_ranges.width).all(axis=1).sum()), len(run.test_ranges.width)
        lead = f"{known} of {n} outputs have a proven range that holds whatever the true data were."
        if known == n:
            lead += f" On average it is {number(run.errors['range_mean'])} wide."
        cards = _error_cards(run)
    else:
        lead = "Every trained parameter lies within proven bounds, whatever the true data were."
    lines = [f'<p class="lead"><strong>{lead}</strong></p>', *lines, *_warnings(run), *_cards(cards)]
    lines.append(
        f'<p class="note">Bounds of the {run.network.layout.size} parameters after {run.steps} step(s): mean radius '
        f"{run.bounds.radius.mean():.3g}, largest {run.bounds.radius.max():.3g}.</p>"
    )
    if run.test is None and run.test_ranges is None:
        lines.append("<p>There are no test data, so that no prediction was asked for.</p>")
    return lines


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
    return [f'<p class="warning">{escape(line)}</p>' for line in lines]


def _accuracy_cards(run: CertifiedRun, certified: float) -> list[tuple[str, str, str]]:
    tried = 0 if run.attack is None else len(run.attack.theta)
    attacked = f"Right for {tried} models trained on other possible data, too. The truth is no higher."
    return [
        ("Clean accuracy", percent(run.nominal_accuracy), "Of the model trained on the data as they are."),
        ("Accuracy under attack", percent(run.attacked_accuracy), attacked if tried else "No attack was tried."),
        ("Certified accuracy", percent(certified), "Right and proven for all possible data. The truth is no lower."),
    ]


def _error_cards(run: CertifiedRun) -> list[tuple[str, str, str]]:
    tried, found = 0 if run.attack is None else len(run.attack.theta), run.errors
    reached = number(found.get("attacked_error")) if tried else "–"
    attacked = f"The largest of {tried} models trained on other possible data, point by point. The truth is no lower."
    return [
        (
            "Clean error",
            number(found["nominal_error"]),
            "Mean absolute error of the model trained on the data as they are.",
        ),
        ("Error under attack", reached, attacked if tried else "No attack was tried."),
        ("Certified error", number(found["certified_error"]), "Proven for all possible data. The truth is no higher."),
    ]


def _cards(cards: Sequence[tuple[str, str, str]]) -> list[str]:
    inner = "".join(
        f'<div class="card"><p class="name">{name}</p><p class="value">{value}</p><p>{text}</p></div>'
        for name, value, text in cards
    )
    return [f'<div class="cards">{inner}</div>'] if cards else []


def _pictures(run: CertifiedRun) -> str:
    """Accuracy, radius, regions and margins, as far as the run has them."""
    tested, regression = run.test is not None or run.test_ranges is not None, run.test_ranges is not None
    found = []
    if tested:
        title = "Mean absolute error" if regression else "Accuracy"
        text = "The truth lies between attacked and certified." if run.attack is not None and run.reached else ""
        found.append(_figure(title, inline_svg(lambda ax: plot_accuracy(run, ax), "accuracy", title), text))
    text = "Half the width of the range that a parameter may lie in. Radii grow as doubt adds up."
    title = "Radius of the bounds over the epochs"
    found.append(_figure(title, inline_svg(lambda ax: plot_radius(run, ax), "radius", title), text))
    if has_regions(run.train):
        title = "Certified regions"
        text = "Coloured: every possible model gives that class. Grey: the answer is abstain."
        if run.prediction == "exact":
            text += " Drawn with intervals, which abstain more often than the solver."
        found.append(_figure(title, inline_svg(lambda ax: plot_regions(run, ax), "regions", title, 3.6), text))
    if tested:
        title = "Ranges of the outputs" if regression else "Margins"
        text = "From the proven lower to the proven upper lead of the class. Wholly above 0: certified."
        text = "Each output lies in its proven range, whatever the true data were." if regression else text
        found.append(_figure(title, inline_svg(lambda ax: plot_margins(run, ax), "margins", title, 3.6), text))
    return f'<h2>Pictures</h2><div class="plots">{"".join(found)}</div>'


def _row_name(run: CertifiedRun, i: int) -> str:
    """The user's own name of a test row, or its number."""
    index = run.data.tested.index if run.data.test is not None else None
    return str(i) if index is None else str(index[i])


def _points(run: CertifiedRun) -> list[str]:
    """Test points that abstain and the confusion of classes; for a regression, the widest ranges."""
    if run.test_ranges is not None:
        return _widest(run)
    if run.test is None or run.nominal is None:
        return []
    names, rows = [str(name) for name in run.train.classes], []
    attacked = run.nominal if run.attack is None else run.attack.attacked_classes(run.nominal)
    why = reasons(run, run.test, run.nominal, None if run.attack is None else attacked)
    open_points = np.flatnonzero(run.test.classes == ABSTAIN).tolist()
    for i in open_points[:ROWS]:
        changed = names[attacked[i]] if attacked[i] != run.nominal[i] and run.reached else "–"
        rows.append((_row_name(run, i), names[run.nominal[i]], changed, why[i]))
    lines = ["<h2>Test points without a certified class</h2>"]
    if rows:
        head = ("test point", "clean class", "attacked class", "reason")
        lines.append(_first(len(rows), len(open_points), "test points abstain"))
        lines.append(_table(head, rows, "test points that abstain", "listed long"))
    else:
        lines.append("<p>There are none: every test point has a certified class.</p>")
    title, text = "True and certified classes", "Number of test points: rows are true classes, columns certified ones."
    picture = inline_svg(lambda ax: plot_confusion(run, ax), "confusion", title, min(7.0, 1.6 + 0.45 * len(names)))
    return [*lines, f'<h2>Confusion</h2><div class="plots">{_figure(title, picture, text)}</div>']


def _widest(run: CertifiedRun) -> list[str]:
    """Regression: the test points that are known least."""
    assert run.test_ranges is not None
    assert run.data.test is not None
    assert run.data.tested.targets is not None
    proven, targets = run.test_ranges.outputs, run.train.in_units(run.data.tested.targets)
    clean = run.train.in_units(nominal_outputs(run.network, run.theta, run.data.tested.x))
    order, rows = np.argsort(-run.test_ranges.width.max(axis=1), kind="stable").tolist(), []
    for i in order[:ROWS]:
        low, high = proven.low[i, 0], proven.high[i, 0]
        shown = f"{low:.4g} to {high:.4g}" if np.isfinite([low, high]).all() else "unknown"
        rows.append((str(i), f"{targets[i, 0]:.4g}", f"{clean[i, 0]:.4g}", shown))
    count = _first(len(rows), len(order), "test points, the widest range first")
    head = ("test point", "target", "clean output", "proven range")
    return ["<h2>Widest ranges</h2>", count, _table(head, rows, "ranges", "listed long")]


def _blame(blame: Any) -> list[str]:
    """Which training rows the uncertainty comes from."""
    if blame is None:
        return []
    columns = [name for name in ("row", "effect", "cells") if name in blame.rows]
    head = [{"effect": "share of the uncertainty (%)"}.get(name, name) for name in columns]
    shown = blame.rows.head(BLAMED)
    rows = [
        [str(value) if name != "effect" else number(value if np.isfinite(value) else None) for name, value in entries]
        for entries in (list(zip(columns, row, strict=True)) for row in shown[columns].itertuples(index=False))
    ]
    title = "Training rows with the largest share"
    drawn = inline_svg(lambda ax: plot_blame(blame, ax), "blame", title, 0.9 + 0.25 * max(1, min(10, len(shown))))
    table = _table(head, rows, "training rows and their share of the uncertainty", "listed long")
    return [
        "<h2>Where the uncertainty comes from</h2>",
        f'<p>{escape(str(blame.sentence))}</p><div class="plots">{_figure(title, drawn, "")}{table}</div>',
    ]


def _settings(run: CertifiedRun, configuration: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    training, plain = run.training, run.to_json()
    options = {key: plain[key] for key in ("momentum", "weight_decay", "clip", "schedule") if key in plain}
    optimiser = "stochastic gradient descent" + "".join(f", {k.replace('_', ' ')} {v}" for k, v in options.items())
    solved = f"{run.solver.solver}, {run.programs} programs, {run.nodes} nodes" if run.programs else "not needed"
    rows = [
        ("network", f"{' – '.join(map(str, run.network.sizes))} ({'; '.join(run.network.describe())})"),
        ("parameters", str(run.network.layout.size)),
        ("loss", training.loss),
        ("learning rate", f"{training.learning_rate:g}"),
        ("optimiser", optimiser),
        ("epochs", f"{training.epochs} asked for; the certificate is about {run.steps} step(s) ({run.select.rule})"),
        ("batch", f"{run.batch_size} of {len(run.train)} rows, {training.batch_mode}"),
        ("initial weights", training.init),
        (
            "engine",
            run.engine
            + (f", {run.request.settings.unroll} steps in one program" if run.request.settings.unroll > 1 else ""),
        ),
        ("prediction", run.prediction),
        ("solver", solved),
        ("seed", str(training.seed)),
        ("threat", in_words(run.threat)),
    ]
    for key, value in (configuration or {}).items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        rows.append((f"configuration: {key}", shown))
    return rows


def _meaning(run: CertifiedRun) -> list[str]:
    """What the numbers rest on, and what exactly is certified."""
    plain = run.to_json()
    versions = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in plain["versions"].items())
    rows = [
        ("versions", versions),
        ("training data (SHA-256)", run.train.sha256),
        ("soundness", f"{run.soundness}. {SOUNDNESS.get(run.soundness, '')}"),
    ]
    fixed = [
        "Fixed and trusted: the initial weights, which rows are in which batch, the learning rates, the number of steps, and how "
        "columns are scaled and categories numbered.",
        "In doubt: the training data, as described above. One dataset is meant, the same in every epoch.",
        "A prediction is certified if every model that training could have produced this way gives the same class. Ties abstain.",
    ]
    if run.train.task is Task.NUMBERS:
        fixed[2] = (
            "A range is proven if the output of every model that training could have produced this way lies in it."
        )
    record = _table(("what", "value"), rows, "record")
    return ["<h2>What exactly is certified</h2>", _list(fixed), "<h2>Record</h2>", record]


def _first(shown: int, count: int, what: str) -> str:
    cut = f" The first {shown} are listed." if shown < count else ""
    return f"<p>{count} {what}.{cut} Points are counted from 0.</p>"


def _figure(title: str, picture: str, text: str) -> str:
    caption = f"<figcaption>{escape(text)}</figcaption>" if text else ""
    return f"<figure><h3>{escape(title)}</h3>{picture}{caption}</figure>"


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], label: str, kind: str = "") -> str:
    """A table in a container that scrolls by itself, by keyboard, too."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    box = f'<div class="scroll {kind}" tabindex="0" role="region" aria-label="{escape(label)}">'
    return f"{box}<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
