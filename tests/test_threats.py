"""The five views of a threat agree with each other, for every entry of the catalogue."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from cases import ROWS, THREATS, bound, survey
from conftest import small_data
from mibp_cert.data import Column, Dataset, Recipe
from mibp_cert.errors import UserError
from mibp_cert.sets import ThreatSet
from mibp_cert.solvers import ProgramBuilder
from mibp_cert.solvers.program import with_columns
from mibp_cert.threats import (
    KINDS,
    L1,
    L2,
    AnyCategory,
    Arbitrary,
    Budget,
    Confusable,
    LabelFlips,
    LInf,
    Missing,
    Monotone,
    Rounded,
    Shift,
    Threat,
    column,
    label_is,
    threat_from_json,
)
from test_regression import THREATS as TARGETS

DATA = small_data(np.random.default_rng(0), rows=5, features=3)
PLAIN = {
    "nothing": LInf(0.0),
    "box": LInf(0.1),
    "box by column": LInf([0.1, 0.0, 2.0]),
    "some cells": LInf(0.3, rows=[0, 3], columns=[1]),
    "masked rows": LInf(0.3, rows=np.array([True, False, True, False, True])),
    "clipped": LInf(0.5, clip=(float(DATA.x.min()), float(DATA.x.max()))),
    "tiny": LInf(1e-300),
}


@pytest.fixture(params=[*PLAIN, *THREATS, *ROWS])
def threat(request: pytest.FixtureRequest) -> ThreatSet:
    if request.param in PLAIN:
        return PLAIN[request.param].bind(DATA)
    members: ThreatSet = bound(request.param)
    return members


def members(threat: ThreatSet, n: int, seed: int = 1) -> list[Any]:
    """Samples, and worst cases of random directions, among them single symbols."""
    rng = np.random.default_rng(seed)
    symbols = threat.noise().symbols
    directions = [rng.normal(size=symbols) * (rng.random(symbols) < 0.5) for _ in range(n // 4)]
    return threat.sample(rng, n - len(directions)) + [threat.worst(g) for g in directions]


def test_samples_are_members_and_lie_in_the_hull(threat: ThreatSet) -> None:
    hull = threat.hull()
    for x, y in members(threat, 200):
        assert threat.contains(x, y)
        assert ((hull.x_low <= x) & (x <= hull.x_high)).all()
        assert ((hull.y_low <= y) & (y <= hull.y_high)).all()


def test_the_hull_is_reached(threat: ThreatSet) -> None:
    """Every end of every cell is attained by some member: the hull is no larger than it must be."""
    hull, noise = threat.hull(), threat.noise()
    for linear, low, high in ((noise.x_linear, hull.x_low, hull.x_high), (noise.y_linear, hull.y_low, hull.y_high)):
        on = 0 if linear is noise.x_linear else 1
        for cell in range(linear.shape[0]):
            g = linear[cell].toarray().ravel()
            scale = 1e-9 + 1e-9 * abs(high.ravel()[cell])
            assert threat.worst(g)[on].ravel()[cell] <= low.ravel()[cell] + scale
            assert threat.worst(-g)[on].ravel()[cell] >= high.ravel()[cell] - scale


def test_the_reference_is_a_member_and_outsiders_are_not(threat: ThreatSet) -> None:
    hull = threat.hull()
    reference, labels = threat.reference
    assert threat.contains(reference, labels)
    for end in (np.nextafter(hull.x_high, np.inf), np.nextafter(hull.x_low, -np.inf)):
        for cell in np.ndindex(reference.shape):
            outside = reference.copy()
            outside[cell] = end[cell]
            assert not threat.contains(outside, labels), cell
    assert not threat.contains(reference, np.full_like(labels, 0.5))
    assert not threat.contains(np.where(reference > 0, np.nan, reference), labels)


def test_worst_member_attains_the_support_and_no_sample_beats_it(threat: ThreatSet) -> None:
    rng = np.random.default_rng(2)
    noise = threat.noise()
    for _ in range(8):
        g, h = rng.normal(size=threat.clean.x.shape), rng.normal(size=threat.clean.one_hot.shape)
        # a direction in features and labels, seen by the symbols
        through = noise.x_linear.T @ g.ravel() + noise.y_linear.T @ h.ravel()
        x, y = threat.worst(through)
        assert threat.contains(x, y)
        value = float((g * x).sum() + (h * y).sum())
        assert all(value <= (g * a).sum() + (h * b).sum() + 1e-9 for a, b in threat.sample(rng, 12))
        low = float((g * noise.x_centre).sum() + (h * noise.y_centre).sum())
        for block in noise.blocks:
            low += float(block.support(through[block.symbols])[0])
        assert low == pytest.approx(value, abs=1e-8)
        assert low <= value + 1e-12


def test_every_member_lies_between_the_supports(threat: ThreatSet) -> None:
    """For random directions, no member leaves the range that the noise view allows."""
    rng = np.random.default_rng(5)
    noise = threat.noise()
    for x, y in members(threat, 60, seed=6):
        for _ in range(4):
            g, h = rng.normal(size=x.shape), rng.normal(size=y.shape)
            through = noise.x_linear.T @ g.ravel() + noise.y_linear.T @ h.ravel()
            base = float((g * noise.x_centre).sum() + (h * noise.y_centre).sum())
            ends = [block.support(through[block.symbols]) for block in noise.blocks]
            value = float((g * x).sum() + (h * y).sum())
            slip = 1e-12 * (1 + abs(base))
            assert base + sum(float(e[0]) for e in ends) - slip <= value <= base + sum(float(e[1]) for e in ends) + slip


def test_minimiser_of_a_block_attains_its_support(threat: ThreatSet) -> None:
    rng = np.random.default_rng(3)
    for block in threat.noise().blocks:
        for scale in (1.0, 1e-200):
            g = rng.normal(size=len(block.symbols)) * scale
            point = block.minimiser(g)
            assert float(g @ point) == pytest.approx(float(block.support(g)[0]))
            assert float(g @ block.minimiser(-g)) == pytest.approx(float(block.support(g)[1]))
            assert (np.abs(point) <= block.magnitude() * (1 + 1e-12)).all()


def test_constraints_admit_every_member_and_nothing_outside_the_hull(threat: ThreatSet) -> None:
    """With cells fixed to a member, the program is feasible; over the program, every cell stays within the hull."""
    rows = np.array([0, 2, 3])
    builder = ProgramBuilder()
    x, y = threat.constraints(builder, rows)
    program = builder.finish()
    free = (
        LinearConstraint(program.matrix, program.row_lower - 1e-9, program.row_upper + 1e-9) if program.rows else None
    )
    bounds = Bounds(program.lower, program.upper)
    linear = np.concatenate([with_columns(e.linear, program.variables).toarray() for e in (x, y)])
    centre = np.concatenate([x.centre, y.centre])
    hull = threat.hull()
    low = np.concatenate([hull.x_low[rows].ravel(), hull.y_low[rows].ravel()])
    high = np.concatenate([hull.x_high[rows].ravel(), hull.y_high[rows].ravel()])
    if program.variables == 0:
        np.testing.assert_array_equal(centre, low)
        return
    for member, labels in members(threat, 200, seed=4):
        target = np.concatenate([member[rows].ravel(), labels[rows].ravel()]) - centre
        fixed = LinearConstraint(linear, target - 1e-9, target + 1e-9)
        found = milp(
            np.zeros(program.variables),
            integrality=program.integer,
            bounds=bounds,
            constraints=[fixed, *([free] if free else [])],
        )
        assert found.status == 0, "a member violates the constraints"
    for cell in range(len(centre)):
        for sign, end in ((1.0, low), (-1.0, high)):
            found = milp(sign * linear[cell], integrality=program.integer, bounds=bounds, constraints=free)
            assert found.status == 0
            value = centre[cell] + sign * found.fun
            assert sign * (value - end[cell]) >= -1e-6


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LInf(-0.1), "≥ 0, got -0.1"),
        (lambda: LInf(float("nan")), "finite"),
        (lambda: LInf([0.1, 0.2]), r"one per column \(3\)"),
        (lambda: LInf(0.1, rows=[7]), "from 0 to 4"),
        (lambda: LInf(0.1, columns=[True]), "mask for columns"),
        (lambda: LInf(0.1, clip=(0.0, 0.1)), "valid range"),
        (lambda: LInf(0.1).where(np.array([True])), "mask for rows"),
        (lambda: AnyCategory(0), "numeric; use LInf"),
        (lambda: Missing(), "No value is missing"),
        (lambda: Monotone(None, up={"0": 0.1}, down={"1": 9.0}), "must name its columns"),
    ],
)
def test_threats_that_do_not_fit_the_data_are_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make().bind(DATA)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LInf({"weight": 1.0}), "no column 'weight'; there are age, mood, income"),
        (lambda: LInf(0.1, columns="mood"), "categorical: an amount makes no sense"),
        (lambda: AnyCategory("mood", among=["bad", "awful"]), "'awful' is not a category of the column 'mood'"),
        (lambda: Confusable("mood", {"good": ["great"]}), "'great' is not a category"),
        (lambda: Shift("mood", by=0), "other than 0"),
        (lambda: Missing("income"), "'income' has no missing value"),
        (lambda: Missing("age", marker=-1), "has no value -1"),
        (lambda: Missing("mood", marker="refused"), "'refused' is not a category"),
        (lambda: Budget(LInf(1.0), rows=-1), "budget of -1 rows makes no sense"),
        (lambda: LabelFlips(-1), "budget of -1 rows"),
        (lambda: Budget(LInf(1.0)), "either rows=… or cells=…"),
        (lambda: Budget(Missing("mood", marker="fair"), rows=1), "Missing values cannot be put under a budget"),
        (lambda: Budget(AnyCategory("mood"), cells=1), "budget of cells applies to"),
        (
            lambda: AnyCategory("mood") & Shift("mood", by=1),
            "Two parts of the threat change the column 'mood' of row 0",
        ),
        (lambda: LabelFlips() & LabelFlips(1), "Two parts of the threat change the label of row 0"),
        (lambda: LabelFlips(source=[7]), "labels 7 are not among the classes"),
        (lambda: LInf(1.0).where(column("mood") >= "good"), "compare it with == or != only"),
        (lambda: LInf(1.0).where(label_is("x")), "not among the classes"),
        (lambda: Monotone("age"), "allows nothing"),
        (lambda: LInf({"age": 1.0}, columns=["income"]), "names age, which the columns asked for do not include"),
        (lambda: Missing("age", marker="?"), "its marker must be a number"),
        (lambda: Missing("age", marker=[-1, -9]), "takes one marker"),
        (lambda: LInf(1.0, clip=("a", 3)), "An end of clip"),
        (lambda: Budget(LInf(1.0), rows=float("nan")), "makes no sense"),
        (lambda: Budget(Budget(LInf(1.0), rows=2), cells=1), "Put the budget of cells inside"),
        (lambda: LInf(1.0).where(20 <= column("age") <= 50), "no truth value of its own"),
    ],
)
def test_threats_that_do_not_fit_the_table_are_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make().bind(survey(missing=False))


def test_missing_values_that_the_threat_forgets_are_refused() -> None:
    for forgets in (LInf(1.0), Missing("age"), Missing().where(label_is(0)), LInf(0.0)):
        with pytest.raises(UserError, match="not covered by the threat"):
            forgets.bind(survey())


@pytest.mark.parametrize(
    "kind", [L1, L2, LInf, lambda eps: Budget(LInf(eps), cells=1), lambda eps: Budget(L2(eps), rows=2)]
)
@pytest.mark.parametrize("eps", [1e-9, 0.1, 3.0])
def test_members_on_top_of_a_large_box_are_members(kind: Any, eps: float) -> None:
    """Adding a small move to a missing value, which may be far from the clean cell, rounds by the size of that value."""
    x = np.random.default_rng(0).normal(size=(6, 2))
    missing = np.zeros((6, 2), dtype=bool)
    missing[::2, 0] = missing[1, 1] = True
    columns = tuple(Column(name, i, i + 1, low=-1e3, high=7e5) for i, name in enumerate("ab"))
    data = Dataset.of(x, [0, 1] * 3, columns=columns, missing=missing)
    bound = (kind({"a": eps, "b": eps}) & Missing()).bind(data)
    rng = np.random.default_rng(1)
    members = [*bound.sample(rng, 60), *(bound.worst(rng.normal(size=bound.noise().symbols)) for _ in range(60))]
    assert all(bound.contains(*member) for member in members)


def test_unknown_values_leave_nothing_to_other_parts() -> None:
    """A missing cell may be any valid value; errors around its stand-in mean nothing, in whatever order they are written."""
    plain = Missing().bind(survey()).hull()
    for threat in (Missing() & LInf({"age": 5.0}), LInf({"age": 5.0}) & Missing(), AnyCategory("mood") & Missing()):
        hull = threat.bind(survey()).hull()
        assert hull.x_low[1, 0] == plain.x_low[1, 0]
        assert hull.x_high[1, 0] == plain.x_high[1, 0]
        assert (hull.x_high[2, 1:4] == 1.0).all()


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e6])
@pytest.mark.parametrize("eps", [1e-6, 1e-4, 0.01, 1.0])
def test_samples_are_members_on_any_scale(scale: float, eps: float) -> None:
    data = small_data(np.random.default_rng(0), rows=20, features=3)
    data = Dataset.of(data.x * scale, data.y)
    for threat in (
        L2(eps),
        L1(eps),
        LInf(eps) & Budget(LInf(5 * eps), rows=3),
        LInf(eps) & Budget(LInf(5 * eps), cells=1),
    ):
        members_of = threat.bind(data)
        for x, y in members(members_of, 40):
            assert members_of.contains(x, y)


def test_amounts_follow_the_columns_they_are_given_for() -> None:
    table = pd.DataFrame({"age": [30.0, 40, 50], "income": [1.0, 2, 3], "y": [0, 1, 0]})
    data = Dataset.from_frame(table, "y", scaling="none")
    for threat in (
        LInf([0.1, 5.0], columns=["income", "age"]),
        LInf(pd.Series({"income": 0.1, "age": 5.0})),
        Rounded(["income", "age"], to=[0.2, 10.0]),
    ):
        hull = threat.bind(data).hull()
        np.testing.assert_allclose((hull.x_high - hull.x_low)[0], [10.0, 0.2], rtol=1e-9)


def test_ordered_categories_keep_their_order_and_unseen_ones() -> None:
    levels = ["low", "medium", "high", "extreme"]
    table = pd.DataFrame(
        {"h": pd.Categorical(["low", "medium", "high"], categories=levels, ordered=True), "y": [0, 1, 0]}
    )
    data = Dataset.from_frame(table, "y")
    assert data.columns[0].categories == tuple(levels)
    assert Shift("h", by=1).bind(data).hull().x_high.tolist() == [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


def test_a_budget_above_the_number_of_rows_limits_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    data = survey(missing=False)
    wide = Budget(LInf({"age": 1.0}), rows=len(data) + 1).bind(data)
    free = LInf({"age": 1.0}).bind(data)
    assert np.array_equal(wide.hull().x_low, free.hull().x_low)
    assert wide.limits == ()
    assert "limits nothing" in caplog.text


def test_a_budget_of_zero_allows_nothing() -> None:
    data = survey(missing=False)
    for nothing in (Budget(LInf(1.0), rows=0), LabelFlips(0), Budget(LInf(1.0), cells=0)):
        hull = nothing.bind(data).hull()
        assert np.array_equal(hull.x_low, hull.x_high)
        assert np.array_equal(hull.y_low, hull.y_high)


def test_one_hot_groups_stay_one_hot() -> None:
    for name in ("any category", "missing", "row of everything", "shift"):
        for x, y in bound(name).sample(np.random.default_rng(0), 30):
            assert (x[:, 1:4].sum(axis=1) == 1.0).all()
            assert (y.sum(axis=1) == 1.0).all()


def test_conditions_select_the_rows_they_name() -> None:
    data = survey(missing=False)
    age = data.x[:, 0] * data.columns[0].scale + data.columns[0].shift

    def moved(threat: Any) -> Any:
        return (threat.bind(data).hull().x_high > data.x).any(axis=1)

    assert (moved(LInf(1.0).where(column("age") > 50)) == (age > 50.0 + 1e-9)).all()
    both = LInf(1.0).where((column("age") > 50) & ~label_is(1))
    assert (moved(both) == ((age > 50.0 + 1e-9) & (data.y == 0))).all()


def test_amounts_are_in_the_units_handed_in() -> None:
    data = survey(missing=False)
    hull = LInf({"age": 3.0}).bind(data).hull()
    width = (hull.x_high - hull.x_low)[:, 0] * data.columns[0].scale
    np.testing.assert_allclose(width, 6.0, rtol=1e-12)


def kinds(plain: Any) -> set[str]:
    """All kinds that a description names, combined ones and their parts."""
    if isinstance(plain, dict):
        return {plain[k] for k in ("kind",) if k in plain}.union(*(kinds(value) for value in plain.values()))
    return set().union(*(kinds(value) for value in plain)) if isinstance(plain, list) else set()


def test_every_kind_is_held_against_every_view_and_engine() -> None:
    """Fails until a new threat is in the cases that all views and engines are tested with (targets: in test_regression)."""
    covered = set().union(
        *(kinds(threat.to_json()) for threat in [*THREATS.values(), *ROWS.values(), *TARGETS.values()])
    )
    covered.add(Arbitrary.kind)  # which no view or engine covers: it is refused (test_ensembles)
    assert set(KINDS) <= covered, f"add to tests/cases.py: {set(KINDS) - covered}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_speaks_for_itself_and_survives_a_file(kind: str) -> None:
    assert KINDS[kind].words is not Threat.words, "words() is still the default: plain data"
    for threat in [*THREATS.values(), *ROWS.values(), *TARGETS.values()]:
        plain = threat.to_json()
        if kind in kinds(plain):
            again = threat_from_json(json.loads(json.dumps(plain)))
            assert again.to_json() == plain
            assert again.words() == threat.words()
            assert "{" not in threat.words()


def test_description_is_plain_data() -> None:
    described = LInf(np.array([0.1, 0.2, 0.3]), rows=[1], clip=(0.0, [1.0, 1.0, 2.0])).to_json()
    assert described == {"kind": "linf", "eps": [0.1, 0.2, 0.3], "rows": [1], "clip": [0.0, [1.0, 1.0, 2.0]]}
    for threat in THREATS.values():
        assert json.loads(json.dumps(threat.to_json()))["kind"]


def test_tables_moved_within_their_amounts_are_members_after_scaling() -> None:
    """The table is changed in its own units and scaled by the same recipe: what scaling rounds must not leave the set."""
    rng = np.random.default_rng(0)
    for eps, size in ((0.3, 1.0), (1e-3, 1e6), (7.0, 1e3)):
        table = pd.DataFrame({"age": size * rng.uniform(20, 80, 400), "ill": np.arange(400) % 2})
        recipe = Recipe.fit(table[["age"]])
        data = Dataset.from_frame(table, "ill", recipe)
        bound = LInf({"age": eps}).bind(data)
        for sign in (1.0, -1.0):
            moved = table[["age"]].copy()
            exact = [Fraction(v) + Fraction(sign * eps) for v in table["age"]]
            # The float nearest to the exact end on the inside, so that the table itself is within its amount.
            ends = np.array([float(v) for v in exact])
            inside = np.array([sign * (Fraction(float(e)) - v) <= 0 for e, v in zip(ends, exact, strict=True)])
            moved["age"] = np.where(inside, ends, np.nextafter(ends, -sign * np.inf))
            x, _ = recipe.apply(moved)
            assert bound.contains(x, data.one_hot)
