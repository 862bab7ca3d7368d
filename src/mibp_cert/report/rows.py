"""Rows on the page: test points without an answer, and training rows to check again, by the names that the user knows them by."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from mibp_cert.card import percent
from mibp_cert.certify import CertifiedRun
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.certify.tables import class_table
from mibp_cert.report import plots
from mibp_cert.report.markup import figure, table

ROWS = 50
"""Most test points listed."""
BLAMED = 20
"""Most training rows listed."""


def tested(run: CertifiedRun) -> list[str]:
    """Test points that abstain and the confusion of classes; for a regression, the widest ranges."""
    if run.test_ranges is not None:
        return _widest(run)
    if run.test is None:
        return []
    # Attacks train as far as the bounds reach; where those diverged before the end, they say nothing about its models.
    attack = run.attack if run.reached else None
    answers = class_table(run, run.test_inputs(), run.test, attack, run.data.tested.index)
    answers = answers[~answers["certified"]].drop(columns=["class", "certified", "margin_low", "margin_high"])
    lines = ["<p>There are none: every test point has a certified class.</p>"]
    if len(answers):
        head = ("test point", *(name.replace("nominal", "clean").replace("_", " ") for name in answers.columns))
        rows = [[_nothing(cell) for cell in row] for row in answers.itertuples()]
        lines = _listed(run, "test points abstain", head, rows, "test points that abstain")
    text = "Number of test points: rows are true classes, columns certified ones."
    height = min(7.0, 1.6 + 0.45 * len(run.train.classes))
    picture = figure(plots.plot_confusion, run, "True and certified classes", text, height)
    lines.append(f'<h2>Confusion</h2><div class="plots">{picture}</div>')
    return ["<h2>Test points without a certified class</h2>", *lines]


def _nothing(cell: Any) -> Any:
    """A cell; a dash where there is nothing, such as a class that no attack gave."""
    return "–" if pd.isna(cell) else cell


def _widest(run: CertifiedRun) -> list[str]:
    """Regression: the test points that are known least."""
    assert run.test_ranges is not None
    test, proven = run.data.tested, run.test_ranges.outputs
    assert test.targets is not None
    targets = run.train.in_units(test.targets)
    clean = run.train.in_units(nominal_outputs(run.network, run.theta, test.x))
    names = range(len(test)) if test.index is None else test.index.tolist()
    rows = []
    for i in np.argsort(-run.test_ranges.width.max(axis=1), kind="stable").tolist():
        low, high = proven.low[i, 0], proven.high[i, 0]
        shown = f"{low:.4g} to {high:.4g}" if np.isfinite([low, high]).all() else "unknown"
        rows.append((names[i], f"{targets[i, 0]:.4g}", f"{clean[i, 0]:.4g}", shown))
    head = ("test point", "target", "clean output", "proven range")
    return ["<h2>Widest ranges</h2>", *_listed(run, "test points, the widest range first", head, rows, "ranges")]


def check_again(blame: Any) -> list[str]:
    """Which training rows the uncertainty comes from."""
    if blame is None:
        return []
    lines = ["<h2>Rows to check again</h2>", f"<p>{escape(blame.sentence)}</p>"]
    shown = blame.rows.head(BLAMED)[["row", "effect", "cells"]]
    if len(shown):
        rows = [
            (plots.row_name(row), percent(effect / 100.0) if np.isfinite(effect) else "unknown", cells)
            for row, effect, cells in shown.itertuples(index=False)
        ]
        height = 0.9 + 0.25 * min(plots.BLAMED, len(shown))
        picture = figure(plots.plot_blame, blame, "Training rows with the largest share", "", height)
        head = ("row", "share of the uncertainty", "through its cells")
        listed = table(head, rows, "training rows and their share of the uncertainty", "listed long")
        lines.append(f'<div class="plots">{picture}<div>{listed}</div></div>')
    return lines


def _listed(run: CertifiedRun, what: str, head: Sequence[str], rows: Sequence[Sequence[Any]], label: str) -> list[str]:
    """How many test points there are, and a table of the first ones."""
    cut = f" The first {ROWS} are listed." if len(rows) > ROWS else ""
    counted = " Points are counted from 0." if run.data.tested.index is None else ""
    return [f"<p>{len(rows)} {what}.{cut}{counted}</p>", table(head, rows[:ROWS], label, "listed long")]
