"""Cards that notebooks show: their numbers are the run's, their text is text, and every kind of run has one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from mibp_cert.card import number, percent
from pages import Page

NASTY = "<script>alert('x')</script>"
LONGER = mc.Training(epochs=10, learning_rate=0.5)


def split(numbers: bool = False, noise: float = 0.5, target: float = 1.0, tested: bool = True) -> mc.Split:
    """Two columns, one of a nasty name; `target`: how much the first column says of the target."""
    rng, parts = np.random.default_rng(0), []
    columns = (mc.Column(NASTY, 0, 1), mc.Column("b&b", 1, 2))
    for rows in (30, 20, 20):
        x = rng.normal(size=(rows, 2))
        y = target * x[:, 0] + noise * rng.normal(size=rows)
        if numbers:
            parts.append(mc.Dataset.regression(x, 10.0 * y, columns=columns))
        else:
            # Two of three are "yes", so that a model which learns nothing has an accuracy of its own.
            parts.append(mc.Dataset.of(x, np.where(y > -0.5, "yes", "no"), ("no", "yes"), columns))
    return mc.Split(NASTY, *parts) if tested else mc.Split(NASTY, parts[0])


def read(shown: Any) -> Page:
    """The card, which must need nothing but itself."""
    source = shown._repr_html_()
    page = Page(source)
    assert not {"script", "style", "link", "img"} & set(page.seen)
    assert "http" not in source
    assert not re.search(r"(?<!-)color:|background", source)  # the notebook's own, light or dark
    return page


def test_a_card_has_the_figures_of_its_run() -> None:
    run = mc.certify_training(mc.Network.mlp([2, 2]), split(), mc.LInf({NASTY: 0.3}), LONGER)
    text = read(run).text
    assert NASTY in text  # as text
    assert run.attacked_accuracy is not None
    shares = (run.majority_accuracy, run.nominal_accuracy, run.attacked_accuracy, run.certified_test_accuracy)
    for name, share in zip(("Baseline", "Clean", "Attacked", "Certified"), shares, strict=True):
        assert f"{name} {percent(share)}" in text
    assert run.threat.words() in text
    assert run.test is not None
    assert f"{int((~run.test.certified).sum())} of 20 predictions are not certified" in text
    assert "blame(run)" in text
    loose = mc.certify_training(mc.Network.mlp([2, 2]), split(), mc.LInf(0.3), LONGER, "interval", attacked=False)
    text = read(loose).text
    assert "Attacked – no attack was tried" in text
    assert "blame(run)" not in text  # intervals know no rows


def test_a_regression_has_errors_beside_the_mean() -> None:
    data = split(numbers=True)
    run = mc.certify_fit(data, mc.LInf(0.05), mc.Fitted("squared-error", C=0.1))
    assert data.test is not None
    assert data.test.targets is not None
    assert data.train.targets is not None
    mean = float(np.abs(data.test.targets - data.train.targets.mean()).mean())
    errors = run.errors
    for name, error in zip(
        ("Baseline", "Clean", "Attacked", "Certified"),
        (mean, *(errors[f"{name}_error"] for name in ("nominal", "attacked", "certified"))),
        strict=True,
    ):
        assert f"{name} {number(error)} " in read(run).text
    assert "run.ranges(x)" in read(run).text


@pytest.mark.parametrize("numbers", [False, True])
def test_a_model_that_is_no_better_than_a_constant_is_called_so(numbers: bool) -> None:
    data = split(numbers, noise=1.0, target=0.0)
    run = mc.certify_fit(
        data, mc.LInf(0.01), mc.Fitted("squared-error" if numbers else "cross-entropy", C=1.0 if numbers else 1e-6)
    )
    assert "no better than always answering" in read(run).text


def test_a_diverged_run_says_that_nothing_is_certified() -> None:
    training = mc.Training(epochs=60, batch_size=30, learning_rate=1.0)
    run = mc.certify_training(mc.Network.mlp([2, 4, 2]), split(), mc.LInf(0.5), training, "interval")
    assert run.diverged is not None
    text = read(run).text
    assert f"The bounds diverged at step {run.diverged}. Nothing is certified" in text
    assert "Attacked –" in text
    assert "Certified 0.0 %" in text
    assert "fewer epochs" in text


def test_a_run_without_test_rows_says_what_certifies_others() -> None:
    run = mc.certify_fit(split(tested=False), mc.LInf(0.01), mc.Fitted(C=0.1))
    assert "there were no test rows; run.certify(x)" in read(run).text
    assert "Baseline" not in read(run).text


def test_blame_and_tolerance_have_cards() -> None:
    run = mc.certify_fit(split(), mc.LInf({NASTY: 0.3}), mc.Fitted(C=0.1))
    found = mc.blame(run, top=3)
    text = read(found).text
    assert found.sentence in text
    assert f"{NASTY!r} {found.columns.iloc[0]:.0f} %" in text
    assert f"{found.rows['row'].iloc[0]} {found.rows['effect'].iloc[0]:.1f}" in text
    none = mc.blame(mc.certify_fit(split(), mc.Nothing(), mc.Fitted(C=0.1)))
    assert read(none).text == f"Where the uncertainty comes from What next: {none.sentence}"


@pytest.mark.parametrize(
    ("largest", "smallest", "words"),
    [
        (0.5, 0.75, "Certified up to 0.5 90 % of the test points"),
        (0.5, None, "Attacked from no value"),
        (None, 0.0, "Fewer than 90 % are certified even where nothing is in doubt"),
    ],
)
def test_a_tolerance_shows_both_ends(largest: float | None, smallest: float | None, words: str) -> None:
    both = np.array([0.5, np.nan]), np.array([0.75, np.inf])
    assert words in read(mc.Tolerance(*both, 0.9, largest, smallest, (0.0, 0.5))).text
    assert "Certified 1 of 2 test points" in read(mc.Tolerance(*both, None, None, None, (0.0, 0.5))).text
