"""Tables that are unusual, and doubts about them: estimators cover them to the last bit, or refuse them in a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import mibp_cert as mc
from estimators import DOUBT, linear, numbers, retrained, table
from mibp_cert import CertifiedRegressor
from mibp_cert.errors import UserError


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pd.date_range("2024-01-01", periods=60), "holds dates"),
        ([f"patient {i}" for i in range(60)], "looks like an identifier"),
    ],
)
def test_dates_and_identifiers_are_not_taken_for_categories(column: Any, words: str) -> None:
    X, y = table(missing=False)
    with pytest.raises(UserError, match=words):
        linear(threat=mc.LInf({"age": 1.0})).fit(X.assign(odd=column), y)


def test_labels_that_are_missing_are_counted() -> None:
    X, y = table(missing=False)
    with pytest.raises(UserError, match="y has 2 missing value"):
        linear().fit(X, [None, None, *y[2:]])


@pytest.mark.parametrize(
    "threat",
    [
        mc.LInf(3.0).where(mc.label_is("yes")),
        mc.L1(0.5).where(mc.label_is("no")) & mc.LInf(0.5).where(mc.label_is("yes")),
    ],
)
def test_a_doubt_about_inputs_that_depends_on_their_labels_is_refused_without_them(threat: Any) -> None:
    X, y = numbers()
    model = linear(threat=mc.LInf(0.001)).fit(X, y)
    with pytest.raises(UserError, match="depends on the rows' labels"):
        model.predict(X, threat=threat)
    with pytest.raises(UserError, match="depends on the rows' labels"):
        model.run_.certify(model.run_.train.x, threat=threat)
    assert model.run_.certify(model.run_.train.x, threat=threat, labels=y).classes.shape == (60,)


def test_rules_about_targets_are_in_the_units_of_the_target() -> None:
    X, y = pd.DataFrame({"a": [0.0, 1.0, 2.0]}), np.array([128.0, 110.0, 140.0])

    def positive(m: Any) -> None:
        """A price is never negative."""
        m.require(m.target(0) >= 0)

    for engine in ("relational", "interval"):
        threat = mc.Rules(mc.TargetNoise(20.0).where([0]), positive)
        model = CertifiedRegressor(hidden=(), threat=threat, epochs=5, engine=engine).fit(X, y)
        column = model.run_.train.target
        assert column is not None
        moved = column.to_feature(np.array([[108.5], [110.0], [140.0]]))
        assert model.bounds_.contains(retrained(model, X, moved))


def test_row_numbers_are_refused_where_rows_are_kept_for_validation() -> None:
    X, y = numbers()
    for threat in (mc.LInf(1.0, rows=[6]), mc.LInf(1.0).where([6])):
        with pytest.raises(UserError, match="names rows by their numbers"):
            linear(threat=threat, select="best-validation").fit(X, y)


def test_columns_with_numbers_as_labels_are_found_by_their_label() -> None:
    X, y = numbers()
    X.columns = pd.Index([1, 2])
    model = linear(threat=mc.LInf({1: 0.5})).fit(X, y)
    assert model.bounds_.contains(retrained(model, X.add([0.5, 0.0])))
    hull = model.run_.threat.bind(model.run_.train).hull()
    assert ((hull.x_high > hull.x_low) == [True, False]).all()


def test_time_stamps_in_a_condition_keep_their_order() -> None:
    stamps = 1_700_000_000_000_000_000 + np.array([0, 1000, 2000, -3000, 4096, 8192])
    X = pd.DataFrame({"t": stamps, "a": [0.0, 1, 2, 3, 4, 5]})
    threat = mc.LInf({"a": 1.0}).where(mc.column("t") > 1_700_000_000_000_000_000)
    model = linear(threat=threat).fit(X, ["u", "v"] * 3)
    late = stamps.astype(float) > 1.7e18
    assert model.bounds_.contains(retrained(model, X.assign(a=X["a"] + late)))


def test_a_missing_value_may_be_anything_in_its_range_and_the_range_must_be_finite() -> None:
    X = pd.DataFrame({"income": [1.0, 2.0, 3.0, 5.0, np.nan, 4.0]})
    y = ["u", "v", "u", "v", "u", "v"]
    with pytest.raises(UserError, match="must have finite ends"):
        linear(threat=mc.Missing(), ranges={"income": (0, np.inf)}).fit(X, y)
    model = linear(threat=mc.Missing(), ranges={"income": (0, 10)}, epochs=1, learning_rate=0.01).fit(X, y)
    for value in (0.0, 10.0):
        assert model.bounds_.contains(retrained(model, X.fillna(value)))
    alone, together = (
        model.predict_interval(pd.DataFrame({"income": rows}))[-1] for rows in ([np.nan], [2.0, 2.1, np.nan])
    )
    assert np.array_equal(alone, together)


def test_a_very_large_relative_error_is_covered_to_the_last_bit() -> None:
    X = pd.DataFrame({"a": [1e-3, 1e9, 5e8, 2e8]})
    for share in (0.5, 10.0, 1e4):
        model = linear(threat=mc.LInf(share, relative=True, rows=[0])).fit(X, ["u", "v", "u", "v"])
        hull = model.run_.threat.bind(model.run_.train).hull()
        for sign in (1.0, -1.0):
            moved = X.copy()
            moved.iloc[0, 0] = 1e-3 * (1.0 + sign * share)
            encoded = model.recipe_.apply(moved)[0]
            assert ((hull.x_low <= encoded) & (encoded <= hull.x_high)).all()


def test_one_missing_cell_and_validation_rows_go_together() -> None:
    X, y = numbers()
    for row in range(0, 60, 9):
        holes = X.copy()
        holes.iloc[row, 0] = np.nan
        linear(threat=mc.Missing() & mc.LInf(0.001), select="best-validation", epochs=2).fit(holes, y)


def test_missing_values_may_be_named_in_the_doubt_about_inputs() -> None:
    X, y = table()
    model = linear(threat=DOUBT).fit(X, y)
    plain, named = model.predict(X), model.predict(X, threat=mc.Missing())
    assert (plain == named).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_values_are_refused(value: float) -> None:
    X, y = numbers()
    model = linear(threat=mc.LInf(0.01)).fit(X, y)
    odd = X.copy()
    odd.iloc[3, 1] = value
    with pytest.raises(UserError, match="infinite values"):
        model.predict(odd)
    with pytest.raises(ValueError, match="infin"):
        CertifiedRegressor().fit(X, np.where(np.arange(60) == 2, value, 1.0))


def test_numbers_too_large_to_scale_are_refused_and_rounding_is_no_deviation() -> None:
    X, y = numbers()
    with pytest.raises(UserError, match="too large"):
        CertifiedRegressor(hidden=()).fit(X, 1e200 * np.arange(1.0, 61.0))
    model = linear(threat=mc.LInf(0.001)).fit(X.assign(c=0.1), y)
    assert model.recipe_.columns[2].scale == 1.0
