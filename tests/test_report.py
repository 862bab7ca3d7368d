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

from mibp_cert import (
    CertifiedRun,
    Dataset,
    Fitted,
    LInf,
    Network,
    Split,
    TargetNoise,
    Training,
    certify_fit,
    certify_training,
    two_moons,
)
from mibp_cert.certify.choice import Judge
from mibp_cert.data import Column
from mibp_cert.report import plots
from mibp_cert.report.frontier import frontier_of
from mibp_cert.report.html import html_report
from mibp_cert.report.terminal import choice_table, summary
from mibp_cert.studies.choose import Candidate, Choice
from mibp_cert.studies.compare import changed_by_attack
from pages import Page

NASTY = ("<script>alert(1)</script>", "\"&'", "$x_1$")
PLOTS = {name: getattr(plots, f"plot_{name}") for name in ("radius", "accuracy", "regions", "margins", "confusion")}
BLAME = SimpleNamespace(
    rows=pd.DataFrame({"row": [4, 0, 2], "effect": [55.5, 10.0, math.nan], "cells": NASTY}),
    columns=pd.Series({NASTY[0]: 60.0, "b": 40.0}),
    sentence="Row 4 & <others>.",
    fixed=(4, 0),
    before=60,
    after=63,
    filled=True,
    widths=False,
)


def _blame(**other: Any) -> SimpleNamespace:
    """The blame above, with some of it otherwise."""
    return SimpleNamespace(**{**vars(BLAME), **other})


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
    page = _read(moons, blame=_blame(rows=BLAME.rows.head(0), sentence="No row contributes."))
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
    assert "None of the 10 outputs has a proven range: they are too wide." in _read(lost).text


def test_report_says_what_is_certified(moons: CertifiedRun) -> None:
    page = _read(
        moons, blame=BLAME, answers=["Column 1 does not matter: holds."], configuration={"threat": {"eps": [0.1, 0.2]}}
    )
    assert moons.test is not None
    certified = int(moons.test.certified.sum())
    assert f"{certified} of 70 predictions are certified: they are the same whatever the true data were" in page.text
    shown = ["Clean against certified accuracy by epoch", "Training rows with the largest share", "Accuracy"]
    assert page.labels[:6] == [*shown, "Radius of the bounds over the epochs", "Certified regions", "Margins"]
    expected = ["What was doubted every cell may be off.", "certified accuracy, at least", "Row 4 & <others>."]
    expected += ["Column 1 does not matter: holds.", "threat.eps: 0.1, 0.2", moons.train.sha256, "rounding-safe"]
    expected += ["cross-entropy", "best-validation", "initial weights", "numpy", "What exactly is certified"]
    assert [words for words in expected if words not in page.text] == []
    order = (
        "two-moons",
        "any good",
        "How much of it",
        "do next",
        "doubted",
        "frontier",
        "Settings",
        "What exactly",
        "Record",
    )
    places = [page.text.index(words) for words in order]
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
    blame = _blame(sentence=NASTY[0])
    source = html_report(run, words=NASTY[0], blame=blame, answers=NASTY, configuration=dict.fromkeys(NASTY, NASTY))
    page = Page(source)
    assert "script" not in page.seen
    assert "<script" not in source
    assert page.text.count(NASTY[0]) >= 6
    picture = next(s for s in re.findall(r"<svg.*?</svg>", source, flags=re.DOTALL) if "Certified regions" in s)
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
    assert f"None of the 10 predictions is certified: the bounds diverged at step {diverged.diverged}." in page.text
    assert "no margin is known" in page.text


def test_report_of_a_regression(regression: CertifiedRun) -> None:
    page = _read(regression)
    assert "10 of 10 outputs have a proven range" in page.text
    assert "certified error, at most" in page.text
    assert NASTY[2] in page.text
    shown = ["Clean against certified error by epoch", "Mean absolute error", "Radius of the bounds over the epochs"]
    assert page.labels == [*shown, "Ranges of the outputs"]
    assert regression.data.test.targets is not None
    wanted = regression.train.target
    assert f"{wanted.shift + wanted.scale * regression.data.test.targets[0, 0]:.4g}" in page.text


def test_report_without_attack() -> None:
    page = _read(_run(_split(features=3, classes=3), eps=0.3, attacked=False))
    assert "no attack was tried" in page.text
    assert "not proven: the bounds leave it open" in page.text
    assert "an attack on the data shows it" not in page.text
    assert "under attack" not in " ".join(page.labels)
    assert "Certified regions" not in page.labels


def test_report_without_test_data() -> None:
    page = _read(_run(_split().train))
    assert "There are no test data" in page.text
    assert page.labels == ["Radius of the bounds over the epochs", "Certified regions"]


# The first screen --------------------------------------------------------------------------------------------------------


def _majority(rows: int = 60, eps: float = 0.02) -> CertifiedRun:
    """A model that learns nothing of data whose answers are `no` in seven of eight rows."""
    rng, parts = np.random.default_rng(0), []
    for n in (rows, 40, 40):
        answers = np.where(np.arange(n) % 8 == 0, "yes", "no")
        parts.append(Dataset.of(rng.normal(size=(n, 2)), answers, ("no", "yes")))
    return certify_fit(Split("mortgage", *parts), LInf(eps), Fitted(C=0.01))


CHOICE = Choice(
    0.1,
    (
        Candidate(0.01, 0.8, 0.8),
        Candidate(0.1, 0.9, 0.85),
        Candidate(1.0, 0.95, 0.4),
        Candidate(3.0, 0.86, why="could not be chosen"),
        Candidate(10.0, 0.97, why="no quick proof"),
    ),
    Judge(False, 0.55),
)


def test_a_useless_model_is_said_to_be_one_before_anything_else() -> None:
    run = _majority()
    text = _read(run, configuration={"model": {"C": 0.01}}).text
    assert run.test is not None
    assert run.test.certified.all()
    told = ["does no better than always answering 'no'", "No prediction is certified as 'yes'.", "Try other columns"]
    assert [words for words in told if words not in text] == []
    assert text.index(told[0]) < text.index("40 of 40 predictions are certified")
    assert "5 of them are wrong all the same." in text
    assert "--features 30" in text
    assert "It is right on" not in text
    assert "always 'no' clean model" in text
    assert "accuracy 87.5 %" in text
    assert "balanced 50.0 %" in text
    assert "'no' (35) 100.0 %" in text
    assert "'yes' (5) 0.0 %" in text
    beside = Choice(0.01, (Candidate(0.01, 0.875, 0.875), Candidate(1.0, 0.9, 0.7)), Judge(False, 0.875))
    text = _read(run, configuration={}, choice=beside).text
    assert "Try C = 1 (clean 90.0 %, certified 70.0 % on validation rows), which beats the baseline" in text
    assert "--features" not in text


def test_the_first_screen_has_its_answers_in_order(moons: CertifiedRun) -> None:
    text = _read(moons, blame=BLAME, configuration={}).text
    assert moons.worth is not None
    assert moons.certified_test_accuracy is not None
    order = [
        f"It is right on {100 * moons.worth.clean:.1f} % of the test points; always answering",
        "always",
        "clean model",
        "under attack",
        f"{100 * moons.certified_test_accuracy:.1f} % certified accuracy, at least",
        "Check row 4, row 0 again. If they are right as they stand (a missing value: its usual value): 60 → 63 certified.",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_missing_values_are_spoken_of_where_a_row_to_check_has_one(moons: CertifiedRun) -> None:
    assert "If they are right as they stand: 60 → 63" in _read(moons, blame=_blame(filled=False), configuration={}).text


def test_rows_whose_check_is_worth_nothing_are_no_next_step(moons: CertifiedRun) -> None:
    text = _read(moons, blame=_blame(after=60), configuration={}).text
    assert "Check row 4" not in text
    assert "Row 4 & <others>." in text  # but listed
    assert "mibp-cert tolerance" in text
    unverified = _read(moons, blame=_blame(after=None, fixed=()), configuration={}).text
    assert "Check row 4, row 0, row 2 again: most of the uncertainty comes from there." in unverified


def test_commands_that_the_caller_knows_come_instead_of_general_ones(moons: CertifiedRun) -> None:
    way = SimpleNamespace(words="which rows to check again", command="mibp-cert blame 'my data.csv' --target ill")
    text = _read(moons, configuration={}, ways=[way]).text
    assert "Which rows to check again: mibp-cert blame 'my data.csv' --target ill" in text
    assert "tolerance" not in text
    in_python = _read(moons).text
    assert "tolerance(…) says how much doubt certificates survive" in in_python
    assert "--" not in in_python[: in_python.index("The frontier")]


def test_nothing_certified_is_said_plainly_and_why() -> None:
    run = _run(two_moons(1, sizes=(20, 10, 30)), eps=0.6, epochs=8)
    assert run.test is not None
    answers = replace(run.test, classes=np.full(30, -1))
    nothing = replace(run, answers=replace(run.answers, test=answers))
    changed = int(changed_by_attack(nothing).sum())
    for text in (_read(nothing).text, summary(nothing)):
        assert not re.search(r"\b0 of 30", text)
        assert f"None of the 30 predictions is certified: other possible data do change {changed}, and" in text
    untried = replace(nothing, answers=replace(nothing.answers, attack=None))
    assert "None of the 30 predictions is certified: the bounds leave another class open" in _read(untried).text


# The rest of the page ----------------------------------------------------------------------------------------------------


def test_the_frontier_of_C_names_what_picks_each_point() -> None:
    run = certify_fit(two_moons(0, sizes=(30, 20, 30)), LInf(0.05), Fitted(C=0.1))
    page = _read(run, choice=CHOICE, configuration={})
    assert "Clean against certified accuracy by C" in page.labels
    for line in ("0.01 80.0 % 80.0 %", "0.1 90.0 % 85.0 % chosen --C 0.1", "1 95.0 % 40.0 % --C 1"):
        assert line in page.text
    assert "the baseline has 55.0 %" in page.text
    assert "“could not be chosen”: it would not be chosen with all of it certified." in page.text
    assert "For more accuracy and fewer certificates take C = 1 (clean 95.0 %, certified 40.0 %" in page.text
    assert frontier_of(run) is None
    assert "--C 0.01 " not in page.text  # another point is better in both figures
    assert choice_table(CHOICE).row_count == 5


def test_the_frontier_of_epochs_names_what_picks_each_point(moons: CertifiedRun) -> None:
    found = frontier_of(moons)
    assert found is not None
    picked = [p for p in found.points if p.flags]
    assert all(p.flags == f"--epochs {p.name} --select last" and p.best for p in picked)
    assert [p.name for p in found.points if p.chosen] == [str(moons.steps)]  # one batch
    text = _read(moons).text
    assert all(p.flags in text for p in picked)
    cosine = Training(epochs=3, loss="cross-entropy", learning_rate=0.3, schedule="cosine")
    other = frontier_of(_run(two_moons(0, sizes=(20, 10, 10)), training=cosine))
    assert other is not None
    assert not any(p.flags for p in other.points)  # fewer epochs would have other rates


def test_a_point_of_the_frontier_is_what_its_flags_make(moons: CertifiedRun) -> None:
    shorter = _run(two_moons(0, sizes=(20, 10, 70)), eps=0.1, epochs=2)
    found = frontier_of(moons)
    assert found is not None
    assert (found.points[1].clean, found.points[1].certified) == shorter.validation


def test_loss_by_part_and_by_column_is_listed_where_it_is_known(moons: CertifiedRun) -> None:
    assert "What the doubt costs" not in _read(moons).text
    plain = {
        "parts": [{"words": "missing <b>", "certified_accuracy": 0.5, "certification_rate": 0.625}],
        "by_column": {"age": 0.75, NASTY[0]: 0.25, "none": 0.0},
    }
    text = _read(moons, parts=SimpleNamespace(to_json=lambda: plain)).text
    assert moons.test is not None
    rate = moons.test.certification_rate()
    assert "missing <b> 50.0 % 62.5 %" in text
    assert f"all of it at once {100 * moons.worth.certified:.1f} % {100 * rate:.1f} %" in text
    assert f"age 75.0 % {NASTY[0]} 25.0 %" in text
    assert "none 0.0 %" not in text
    assert f"{NASTY[0]} 60.0 % b 40.0 %" in _read(moons, blame=BLAME).text  # columns alone


def test_columns_are_listed_as_they_were_read(moons: CertifiedRun) -> None:
    text = _read(_run(_split())).text
    assert "Columns as they were read" in text
    assert f"{NASTY[0]}0 number, " in text
    assert "± 0.05" in text
    assert "target, 2 classes: 0, 1" in text


def test_no_plain_json_is_on_the_page(moons: CertifiedRun, diverged: CertifiedRun, regression: CertifiedRun) -> None:
    nested = {"threat": {"kind": "all", "threats": [{"eps": {"age": 0.5}}, {"rows": list(range(40))}], "none": None}}
    fitted = certify_fit(two_moons(0, sizes=(30, 20, 30)), LInf(0.05), Fitted(C=0.1))
    for run in (moons, diverged, regression, fitted):
        text = _read(run, configuration=nested).text
        assert not re.search(r"[{}\[\]]|null|\bnan\b|\binf\b", text)
        assert "threat.threats.1.eps.age: 0.5" in text
        assert "threat.threats.2.rows: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … (40 in all)" in text
        assert "threat.none" not in text


def test_a_regression_is_told_in_the_users_units(regression: CertifiedRun) -> None:
    text = _read(regression, configuration={}).text
    errors, worth = regression.errors, regression.worth
    assert worth is not None
    if worth.better:
        assert f"It is off by {errors['nominal_error']:.3g} on average" in text
    else:
        assert "does no better than always answering the mean" in text
    assert f"{errors['certified_error']:.3g} certified error, at most" in text
    wide = _blame(before=2.2671, after=2.0934, widths=True)
    slope = replace(regression, answers=regression.answers)
    assert ("ranges 2.09 wide instead of 2.27" in _read(slope, blame=wide).text) == worth.better
