"""Pictures and the web page of a run: complete, self-contained, and safe with any name that data may carry."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mibp_cert import CertifiedRun, Dataset, LInf, Network, Split, TargetNoise, Training, certify_training, two_moons
from mibp_cert.data import Column
from mibp_cert.report import plots
from mibp_cert.report.html import html_report
from mibp_cert.studies.compare import changed_by_attack
from pages import Page

NASTY = ("<script>alert(1)</script>", "\"&'", "$x_1$")
PLOTS = {name: getattr(plots, f"plot_{name}") for name in ("radius", "accuracy", "regions", "margins", "confusion")}
BLAME = SimpleNamespace(
    rows=pd.DataFrame({"row": [4, 0, 2], "effect": [55.5, 10.0, math.nan], "cells": NASTY}),
    sentence="Row 4 & <others>.",
)


def _read(run: CertifiedRun, **more: Any) -> Page:
    source = html_report(run, words=more.pop("words", "every cell may be off"), **more)
    assert "http" not in source
    page = Page(source)
    assert "script" not in page.seen
    assert len(set(page.ids)) == len(page.ids)
    return page


def _drawn(draw: Callable[[Any, Axes], None], about: Any) -> Axes:
    ax = Figure().add_subplot()
    draw(about, ax)
    return ax


def _svg(draw: Callable[[Any, Axes], None], about: Any) -> str:
    ax, target = _drawn(draw, about), io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcParams["svg.fonttype"] = "none"
        assert isinstance(ax.figure, Figure)
        ax.figure.savefig(target, format="svg")
    return target.getvalue()


def _split(features: int = 2, classes: int = 2, names: tuple[Any, ...] | None = None) -> Split:
    rng = np.random.default_rng(0)
    names = tuple(range(classes)) if names is None else names
    parts = []
    for rows in (14, 6, 10):
        y = np.arange(rows) % len(names)
        x = rng.normal(size=(rows, features)) + y[:, None]
        columns = tuple(Column(NASTY[j % 3] + str(j), j, j + 1, shift=5.0, scale=10.0) for j in range(features))
        parts.append(Dataset.of(x, [names[k] for k in y], names, columns))
    return Split(NASTY[0], *parts)


def _run(data: Any, eps: float = 0.05, epochs: int = 3, **options: Any) -> CertifiedRun:
    train = data.train if isinstance(data, Split) else data
    training = options.pop("training", None) or Training(epochs=epochs, loss="cross-entropy", learning_rate=0.3)
    return certify_training(Network.mlp([train.features, 3, len(train.classes)]), data, LInf(eps), training, **options)


@pytest.fixture(scope="module")
def moons() -> CertifiedRun:
    return _run(two_moons(0, sizes=(20, 10, 70)), eps=0.1, select="best-validation")


@pytest.fixture(scope="module")
def diverged() -> CertifiedRun:
    training = Training(epochs=30, loss="cross-entropy", learning_rate=2.0)
    run = _run(_split(), eps=1.0, engine="interval", training=training)
    assert run.diverged is not None
    assert not run.reached
    return run


@pytest.fixture(scope="module")
def regression() -> CertifiedRun:
    data, rng = _split(features=3), np.random.default_rng(1)
    parts = [
        Dataset.regression(p.x, 20 * p.x[:, 0] + rng.normal(size=len(p)))
        for p in (data.train, data.validation, data.test)
    ]
    scale = parts[0].target_column(NASTY[2])
    training = Training(epochs=3, loss="squared-error", learning_rate=0.05)
    split = Split("line", *(part.with_target(scale) for part in parts))
    return certify_training(Network.mlp([3, 1]), split, TargetNoise(1.0), training)


@pytest.mark.parametrize("name", PLOTS)
def test_plots_leave_no_figure_open(moons: CertifiedRun, diverged: CertifiedRun, name: str) -> None:
    for run in (moons, diverged):
        assert "<text" in _svg(PLOTS[name], run)
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_plots_carry_their_labels(moons: CertifiedRun) -> None:
    expected = {
        "radius": ["epoch", "mean radius", "largest radius", "epoch chosen", "certified accuracy"],
        "accuracy": ["clean", "under attack", "certified"],
        "regions": ["column 0", "column 1", "class 0", "class 1", "abstain", "training", "test"],
        "margins": ["certified (", "open (", "60 of 70 shown"],
        "confusion": ["true class", "certified class", "abstain"],
    }
    for name, labels in expected.items():
        picture = _svg(PLOTS[name], moons)
        assert [label for label in labels if label not in picture] == []


def test_regions_are_in_the_users_units() -> None:
    ax = _drawn(plots.plot_regions, _run(_split()))
    low, high = ax.get_xlim()
    assert -40 < low < high < 80
    assert high - low > 20  # ten times the features' own


def test_margins_show_what_was_proven(moons: CertifiedRun) -> None:
    assert moons.test is not None
    assert (moons.test.margin[moons.test.certified] > 0).all()
    legend = _drawn(plots.plot_margins, moons).get_legend()
    assert legend is not None
    said = [text.get_text() for text in legend.get_texts()]
    assert [words.split(" (")[0] for words in said] == ["certified", "attack succeeded", "open"]
    assert sum(int(words.split("(")[1][:-1]) for words in said) == plots.BARS


def test_confusion_counts_every_test_point(moons: CertifiedRun) -> None:
    counts = [text.get_text() for text in _drawn(plots.plot_confusion, moons).texts]
    assert len(counts) == 6
    assert sum(map(int, counts)) == 70


def test_blame_is_drawn_and_may_be_empty(moons: CertifiedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "unknown" in _svg(plots.plot_blame, BLAME)
    monkeypatch.setattr(plots, "BLAMED", 2)
    assert "55.5" in _svg(plots.plot_blame, BLAME)
    assert "row 2" not in _svg(plots.plot_blame, BLAME)
    page = _read(moons, blame=SimpleNamespace(rows=BLAME.rows.head(0), sentence="No row contributes."))
    assert "No row contributes." in page.text
    assert "Training rows with the largest share" not in page.labels


def test_values_that_are_no_numbers_are_drawn_all_the_same(moons: CertifiedRun, regression: CertifiedRun) -> None:
    assert moons.test is not None
    margin, high = moons.test.margin.copy(), moons.test.margin_high.copy()
    margin[:3], high[:4] = [-np.inf, np.nan, -1e9], [np.inf, np.nan, 1e9, np.inf]
    wild = [replace(record, radius_mean=math.inf, radius_max=math.nan) for record in moons.history]
    broken = replace(
        moons,
        answers=replace(moons.answers, test=replace(moons.test, margin=margin, margin_high=high)),
        history=tuple(wild),
    )
    for plot in PLOTS.values():
        assert "<text" in _svg(plot, broken)
    still = [replace(record, radius_mean=0.0, radius_max=0.0) for record in moons.history]
    assert _drawn(plots.plot_radius, replace(moons, history=tuple(still))).get_yscale() == "linear"
    assert regression.test_ranges is not None
    nothing = replace(regression.test_ranges.outputs, high=np.full((10, 1), np.inf))
    lost = replace(
        regression,
        answers=replace(regression.answers, test_ranges=replace(regression.test_ranges, outputs=nothing)),
    )
    assert "no range is known" in _svg(plots.plot_ranges, lost)
    assert "unknown" in _svg(plots.plot_accuracy, lost)
    assert "0 of 10 outputs" in _read(lost).text


def test_report_says_what_is_certified(moons: CertifiedRun) -> None:
    page = _read(moons, blame=BLAME, answers=["Column 1 does not matter: holds."], configuration={"eps": [0.1]})
    assert moons.test is not None
    certified = int(moons.test.certified.sum())
    assert f"{certified} of 70 predictions are certified: they are the same whatever the true data were." in page.text
    assert page.labels[:4] == ["Accuracy", "Radius of the bounds over the epochs", "Certified regions", "Margins"]
    expected = ["What was doubted: every cell may be off.", "Clean accuracy", "Certified accuracy", "Row 4 & <others>."]
    expected += ["Column 1 does not matter: holds.", "configuration: eps", "[0.1]", moons.train.sha256, "rounding-safe"]
    expected += ["cross-entropy", "best-validation", "initial weights", "numpy", "What exactly is certified"]
    assert [words for words in expected if words not in page.text] == []
    places = [
        page.text.index(words) for words in ("two-moons", "What was doubted", "Settings", "What exactly", "Record")
    ]
    assert places == sorted(places)


def test_report_is_the_same_every_time(moons: CertifiedRun) -> None:
    first, second = (html_report(moons, words="w") for _ in range(2))
    assert first == second


def test_reasons_stand_beside_the_points_that_abstain(diverged: CertifiedRun) -> None:
    moons = _run(two_moons(1, sizes=(20, 10, 80)), eps=0.3, epochs=8)
    page, changed_by = _read(moons), changed_by_attack(moons)
    assert moons.test is not None
    assert (~moons.test.certified).sum() > 50
    assert "The first 50 are listed." in page.text
    changed = [i for i in np.flatnonzero(~moons.test.certified)[:50] if changed_by[i]]
    assert page.text.count("another class is possible: an attack on the data shows it") == len(changed) > 0
    assert page.text.count("not proven: no attack changed it, but the bounds leave it open") == 50 - len(changed)
    assert "the bounds diverged" in _read(diverged).text


def test_names_from_data_are_escaped() -> None:
    run = _run(_split(classes=3, names=NASTY), eps=0.3)
    blame = SimpleNamespace(rows=BLAME.rows, sentence=NASTY[0])
    source = html_report(run, words=NASTY[0], blame=blame, answers=NASTY, configuration=dict.fromkeys(NASTY, NASTY))
    page = Page(source)
    assert "script" not in page.seen
    assert "<script" not in source
    assert page.text.count(NASTY[0]) >= 6
    picture = re.findall(r"<svg.*?</svg>", source, flags=re.DOTALL)[2]
    assert "$x_1$" in picture  # as text, not as a formula
    assert "&lt;script&gt;" in picture
    assert "\"&amp;'" in picture


def test_odd_names_do_not_disturb_a_picture() -> None:
    run = _run(_split(classes=3, names=("_hidden", "two\nlines\x07 x", "漢字 and much too long for any legend")))
    page = _read(run)
    assert "class _hidden" in page.text
    assert "class two lines x" in page.text
    assert "漢字" in page.text


def test_report_of_a_diverged_run(diverged: CertifiedRun) -> None:
    page = _read(diverged)
    assert f"The bounds diverged at step {diverged.diverged}" in page.text
    assert "0 of 10 predictions are certified" in page.text
    assert "no margin is known" in page.text


def test_report_of_a_regression(regression: CertifiedRun) -> None:
    page = _read(regression)
    assert "10 of 10 outputs have a proven range" in page.text
    assert "Certified error" in page.text
    assert NASTY[2] in page.text
    assert page.labels == ["Mean absolute error", "Radius of the bounds over the epochs", "Ranges of the outputs"]
    assert regression.data.test.targets is not None
    wanted = regression.train.target
    assert f"{wanted.shift + wanted.scale * regression.data.test.targets[0, 0]:.4g}" in page.text


def test_report_without_attack() -> None:
    page = _read(_run(_split(features=3, classes=3), eps=0.3, attacked=False))
    assert "No attack was tried." in page.text
    assert "not proven: the bounds leave it open" in page.text
    assert "an attack on the data shows it" not in page.text
    assert "under attack" not in " ".join(page.labels)
    assert "Certified regions" not in page.labels


def test_report_without_test_data() -> None:
    page = _read(_run(_split().train))
    assert "There are no test data" in page.text
    assert page.labels == ["Radius of the bounds over the epochs", "Certified regions"]
