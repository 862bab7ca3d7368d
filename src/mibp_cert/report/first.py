"""The first screen of the page: is the model any good, how much of it survives, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mibp_cert.card import number, percent
from mibp_cert.certify import CertifiedRun
from mibp_cert.certify.shown import loud, warnings
from mibp_cert.certify.worth import NumberWorth
from mibp_cert.report.lines import worth_lines
from mibp_cert.report.markup import code, table
from mibp_cert.report.words import Step, done, fitted_words, survives, verdict
from mibp_cert.threats.base import count

CLASSES = 40
"""Classes up to which each has a line of its own."""
STEPS = 4
"""Things to do that are named, at most."""


def first_screen(run: CertifiedRun, words: str, steps: Sequence[Step]) -> str:
    """The three answers, and what was doubted."""
    answers = [
        _answer("worth", "Is the model any good?", *_worth(run)),
        _answer("survives", "How much of it survives?", *_survives(run)),
        _answer("next", "What to do next", *_next(steps)),
        _answer("about", "What was doubted", *_about(run, words)),
    ]
    return f'<div class="answers">{"".join(answers)}</div>'


def _answer(name: str, question: str, *parts: str) -> str:
    return f'<section class="answer {name}"><h2>{escape(question)}</h2>{"".join(parts)}</section>'


def _worth(run: CertifiedRun) -> list[str]:
    """The verdict, what must be said louder, and the figures under each other."""
    shown = [f'<p class="verdict">{escape(verdict(run))}</p>'] if verdict(run) else []
    shown += [f'<p class="warning">{escape(line)}</p>' for line in (*warnings(run), *loud(run))]
    lines = worth_lines(run, CLASSES)
    if lines is None:
        return [*shown, "<p>There are no test data, so that no prediction was asked for.</p>"]
    # Classes go downward, where there is room for many: a narrow screen would hide those to the right.
    head, *rows = zip(lines.head, *lines.rows, strict=True)
    return [*shown, table(head, rows, "baseline, clean, attacked and certified figures", "figures")]


def _survives(run: CertifiedRun) -> list[str]:
    """The certified figure in large letters, and how it comes about."""
    told = f"<p>{escape(survives(run))}</p>"
    if run.worth is None:
        return [told]
    if isinstance(run.worth, NumberWorth):
        value, what = number(run.errors["certified_error"]), "certified error, at most"
    else:
        value, what = percent(run.worth.judged[-1]), f"certified {run.worth.figure}, at least"
    return [f'<p class="value">{value} <span class="note">{what}</span></p>', told]


def _next(steps: Sequence[Step]) -> list[str]:
    return [f"<ol>{''.join(f'<li>{escape(step.words)}{_typed(step)}</li>' for step in steps[:STEPS])}</ol>"]


def _typed(step: Step) -> str:
    """What to type: a command, or flags to add to the one that made the page."""
    if not step.command:
        return ""
    return f"{' Add' if step.command.startswith('--') else ''} {code(step.command)}"


def _about(run: CertifiedRun, words: str) -> list[str]:
    """What may be wrong, and what was tried and proven."""
    told = [f"<p>{escape(words.rstrip('.'))}.</p>"]
    if run.test_threat is not None:
        told.append(f"<p>Test inputs may be wrong, too: {escape(run.test_threat.words())}.</p>")
    tried = 0 if run.attack is None else len(run.attack.theta)
    attacked = (
        f"Under attack: of {tried} models {done(run)} on other possible data, point by point the worst. "
        if tried
        else ""
    )
    radius = run.bounds.radius[run.frozen :]
    when = f"after {count(run.steps, 'step')}" if run.fitted is None else fitted_words(run.fitted)
    bounds = f"Bounds of the {len(radius)} parameters {when}: mean radius {number(float(radius.mean()))}, largest "
    return [*told, f'<p class="note">{escape(f"{attacked}{bounds}{number(float(radius.max()))}.")}</p>']
