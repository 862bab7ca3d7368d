"""Exchanged numbers: exactly the members that the words promise, in every view and engine; wrong views are noticed."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import comb
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cases import survey
from conftest import small_step
from mibp_cert.data import Dataset, Recipe
from mibp_cert.engines import RelationalSettings, SolverSettings
from mibp_cert.engines.base import Box
from mibp_cert.engines.crown import CrownEngine
from mibp_cert.engines.exact.engine import MibpEngine
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational.engine import RelationalEngine
from mibp_cert.errors import UserError
from mibp_cert.parallel import WorkerPool
from mibp_cert.sets import ThreatSet
from mibp_cert.sets.blocks import Segments
from mibp_cert.sets.swaps import Swap
from mibp_cert.threats import (
    AnyCategory,
    Budget,
    Exchanged,
    LabelFlips,
    LInf,
    Missing,
    Rules,
    column,
    in_words,
    threat_from_json,
)

EXCHANGED = Exchanged(0, 2)


def table(rows: int = 4, seed: int = 0) -> Dataset:
    """Unscaled numbers, of which the columns 0 and 2 are exchanged."""
    return Dataset.of(np.random.default_rng(seed).normal(size=(rows, 3)), np.arange(rows) % 2)


def swapped(data: Dataset, most: int | None = None) -> list[Any]:
    """All datasets in which some rows have their columns 0 and 2 exchanged: written here by hand."""
    out = []
    for chosen in product((False, True), repeat=len(data)):
        if most is None or sum(chosen) <= most:
            x = np.array(data.x)
            x[list(chosen)] = x[list(chosen)][:, [2, 1, 0]]
            out.append((x, data.one_hot))
    return out


def same(found: list[Any] | None, wanted: list[Any]) -> bool:
    assert found is not None
    one, two = ([x.tobytes() + y.tobytes() for x, y in datasets] for datasets in (found, wanted))
    return len(set(one)) == len(one) and set(one) == set(two)


def check_members(threat: ThreatSet, wanted: list[Any]) -> None:
    """The members are these and no others, to the last bit; what swaps one cell of the two, or half of it, is none."""
    assert same(threat.members(1000), wanted)
    assert all(threat.contains(x, y) for x, y in wanted)
    known = {x.tobytes() for x, _ in wanted}
    rng = np.random.default_rng(0)
    drawn = threat.sample(rng, 50) + [threat.worst(rng.normal(size=threat.noise().symbols)) for _ in range(50)]
    assert {x.tobytes() for x, _ in drawn} <= known
    clean, labels = threat.reference
    for x, _ in wanted:
        for cell in [(row, j) for row in range(len(x)) for j in (0, 2)]:
            for value in (np.nextafter(x[cell], np.inf), 0.5 * (x[cell] + clean[cell]), x[cell[0], 2 - cell[1]]):
                other = np.array(x)
                other[cell] = value
                assert threat.contains(other, labels) == (other.tobytes() in known)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_every_row_is_as_it_is_or_exchanged(rows: int) -> None:
    data = table(rows)
    threat = EXCHANGED.bind(data)
    assert len(swapped(data)) == 2**rows
    check_members(threat, swapped(data))
    assert threat.members(2**rows - 1) is None


@pytest.mark.parametrize("most", [0, 1, 2, 4, 5])
def test_a_budget_counts_exchanged_rows(most: int) -> None:
    data = table()
    threat = Budget(EXCHANGED, rows=most).bind(data)
    wanted = swapped(data, most)
    assert len(wanted) == sum(comb(4, k) for k in range(min(most, 4) + 1))
    check_members(threat, wanted)
    if 0 < most < 4:
        found = [member for case in threat.cases(10) for member in case.members(100) or []]
        assert {x.tobytes() for x, _ in found} == {x.tobytes() for x, _ in wanted}
        limited = threat.unbudgeted()
        assert limited is not None
        assert (limited.most, limited.rows.tolist()) == (most, [0, 1, 2, 3])
        assert same(limited.clean.members(1), [(data.x, data.one_hot)])


def test_where_and_others_multiply_the_members() -> None:
    data = table()
    some = (EXCHANGED.where([0, 3]) & LabelFlips(1)).bind(data)
    members = some.members(100)
    assert members is not None
    assert len(members) == 2**2 * 5
    assert all(some.contains(x, y) for x, y in members)
    assert not (EXCHANGED.where([0]) & LInf(0.1, columns=[1])).bind(data).members(100)


def test_equal_values_are_no_exchange() -> None:
    data = Dataset.of([[1.0, 5.0, 1.0], [2.0, 5.0, 3.0]], [0, 1])
    assert Budget(EXCHANGED, rows=1).bind(data).limits == ()
    check_members(EXCHANGED.bind(data), swapped(data)[:2])
    check_members(EXCHANGED.where([0]).bind(data), swapped(data)[:1])


SCALES = [
    ((50.0, 15.0), (5.0, 2.0)),
    ((120.0, 15.0), (80.0, 10.0)),
    ((0.0, 1.0), (1e6, 1.0)),
    ((1e-3, 1e-3), (1e5, 3e5)),
]


@pytest.mark.parametrize(("one", "two"), SCALES)
@pytest.mark.parametrize("scaling", ["standard", "range"])
def test_tables_with_exchanged_values_are_members_after_scaling(one: Any, two: Any, scaling: str) -> None:
    """The table is changed in its own units and scaled by the same recipe: what scaling rounds must not leave the set."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(*one, 300), "b": rng.normal(*two, 300), "y": np.arange(300) % 2})
    recipe = Recipe.fit(frame[["a", "b"]], scaling=scaling)
    data = Dataset.from_frame(frame, "y", recipe)
    threat = Exchanged("a", "b").bind(data)
    x, _ = recipe.apply(frame.assign(a=frame["b"], b=frame["a"])[["a", "b"]])
    for chosen in (rng.random(300) < share for share in (0.0, 0.3, 1.0)):
        member = np.where(chosen[:, None], x, data.x)
        assert threat.contains(member, data.one_hot)
        check_covered(threat, member)
    assert not threat.contains(np.column_stack([x[:, 0], data.x[:, 1]]), data.one_hot)
    part = threat.parts[0]
    assert (part.low == part.high).mean() > 0.5, "most exchanged values are one float"
    # What rounds is beyond nothing but rounding.
    assert (part.high - part.low <= 64 * np.finfo(float).eps * (1 + np.abs(part.low) + two[0] / one[1])).all()


def check_covered(threat: Any, x: Any) -> None:
    """In exact arithmetic: one symbol per row moves both cells, and what is left lies within the symbols of rounding."""
    noise, part = threat.noise(), threat.parts[0]
    moved = np.isin(part.rows, np.flatnonzero((x != threat.clean.x).any(axis=1)))
    linear = noise.x_linear.tocsc()
    for k, row in enumerate(part.rows):
        cells = part.place[2 * k : 2 * k + 2]
        budgeted = part.group >= 0
        s = Fraction(1 if moved[k] else 0 if budgeted else -1)
        assert linear[:, k].indices.tolist() == sorted(cells), f"row {row} has no symbol for both cells"
        for cell in cells:
            line = noise.x_linear[[int(cell)]]
            coefficients = dict(zip(line.indices.tolist(), map(Fraction, line.data.tolist()), strict=True))
            left = Fraction(x.ravel()[cell]) - Fraction(noise.x_centre.ravel()[cell]) - coefficients.pop(k) * s
            assert abs(left) <= sum(map(abs, coefficients.values())), "rounding is not covered"


def test_the_noise_covers_members_in_exact_arithmetic() -> None:
    for seed in range(5):
        data = survey(8, seed, missing=False)
        for threat in (Exchanged("age", "income").bind(data), Budget(Exchanged("age", "income"), rows=3).bind(data)):
            for x, _ in threat.sample(np.random.default_rng(seed), 10):
                check_covered(threat, x)


def check_supports(threat: ThreatSet, wanted: list[Any]) -> None:
    """No direction in which the noise goes further than the members, or less far; hull likewise."""
    noise, hull, rng = threat.noise(), threat.hull(), np.random.default_rng(3)
    stack = np.stack([x for x, _ in wanted])
    np.testing.assert_array_equal(hull.x_low, stack.min(axis=0))
    np.testing.assert_array_equal(hull.x_high, stack.max(axis=0))
    for _ in range(20):
        g = rng.normal(size=noise.x_centre.shape)
        through = noise.x_linear.T @ g.ravel()
        ends = [block.support(through[block.symbols]) for block in noise.blocks]
        base, values = float((g * noise.x_centre).sum()), [float((g * x).sum()) for x, _ in wanted]
        assert base + sum(float(e[0]) for e in ends) == pytest.approx(min(values), abs=1e-9)
        assert base + sum(float(e[1]) for e in ends) == pytest.approx(max(values), abs=1e-9)


@pytest.mark.parametrize("most", [None, 1, 2])
def test_supports_are_those_of_the_members(most: int | None) -> None:
    data = table()
    threat = EXCHANGED if most is None else Budget(EXCHANGED, rows=most)
    check_supports(threat.bind(data), swapped(data, most))


def check_trainings(threat: ThreatSet, pool: WorkerPool, steps: int = 3) -> None:
    """All members, trained for real, stay inside the bounds of every engine; a single exact step is no larger than they are."""
    members = threat.members(1000)
    assert members is not None
    network, _ = small_step(threat.clean, [2, 2])
    theta, rows = network.initialise(1), np.arange(len(threat.clean))
    batches = [rows, rows[:3], rows[1:]][:steps]
    graphs = [small_step(threat.clean, [2, 2], rate=0.3, batches=[batch])[1] for batch in batches]
    engines = [IntervalEngine(), CrownEngine(), RelationalEngine(), RelationalEngine(RelationalSettings(cases=0))]
    exact, rough = (
        MibpEngine(SolverSettings(**limits), pool=pool) for limits in ({"gap": 1e-4}, {"nodes_per_program": 5})
    )
    for engine in [*engines, exact]:
        box: Box = Box.point(theta)
        paths = [(theta, x, y) for x, y in members]
        for number, step in enumerate(graphs):
            box, _ = (rough if engine is exact and number else engine).advance(box, step, threat)
            paths = [(step.train(t, x[step.rows], y[step.rows]), x, y) for t, x, y in paths]
            assert all(box.contains(t) for t, _, _ in paths), engine.name
            if number == 0 and engine is exact:
                low, high = (pick([t for t, _, _ in paths], axis=0) for pick in (np.min, np.max))
                slip = 2e-4 * np.maximum(0.5 * (high - low), 1e-3) + 2e-6
                assert ((box.lower >= low - slip) & (box.upper <= high + slip)).all(), "the exact step is not exact"


@pytest.mark.parametrize(
    ("threat", "rows"),
    [
        (EXCHANGED, 4),
        (Budget(EXCHANGED, rows=1), 4),
        (Budget(EXCHANGED, rows=2), 4),
        # With one row more, the exact step takes most of a minute.
        pytest.param(EXCHANGED.where([1]) & LabelFlips(1), 3, marks=pytest.mark.slow),
    ],
)
def test_trainings_on_all_members_stay_inside(threat: Any, rows: int, pool: WorkerPool) -> None:
    check_trainings(threat.bind(table(rows)), pool)


def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two symbols for the two cells: they move on their own."""

    def noise(self: Any, start: int, centre: Any) -> Any:
        p, ones = self.part, np.ones(len(self.part.place))
        pieces = Segments("box", ones.astype(np.intp), p.rows[p.piece], 0.0 * ones, ones)
        return pieces, [(p.place, start + np.arange(len(ones)), self.p - self.x)]

    monkeypatch.setattr(Swap, "noise", noise)


def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second cell stays where it is."""
    original = Swap.noise

    def noise(self: Any, start: int, centre: Any) -> Any:
        before = np.array(centre)
        pieces, entries = original(self, start, centre)
        centre[self.part.place[1::2]] = before[self.part.place[1::2]]
        return pieces, [(place[::2], symbol[::2], value[::2]) for place, symbol, value in entries]

    monkeypatch.setattr(Swap, "noise", noise)


def _one_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hull holds the exchanged values only."""

    def widen(self: Any, low: Any, high: Any) -> None:
        low[self.part.place], high[self.part.place] = self.part.low, self.part.high

    monkeypatch.setattr(Swap, "widen", widen)


def _either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Membership cell by cell."""

    def explains(self: Any, flat: Any, rest: Any) -> Any:
        value = flat[self.part.place]
        same_cell, other = value == self.x, (self.part.low <= value) & (value <= self.part.high)
        rest[self.part.place] = 0.0
        return ~same_cell.reshape(-1, 2).all(axis=1) if (same_cell | other).all() else None

    monkeypatch.setattr(Swap, "explains", explains)


def _two_binaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program exchanges each cell on its own."""

    def declare(self: Any, writer: Any, switch: Any) -> None:
        b = writer.builder.add_variables(len(self.part.place), 0.0, 1.0, integer=True)
        writer.add(self.part.place, b, self.p - self.x)

    monkeypatch.setattr(Swap, "declare", declare)


def _half_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program exchanges the first cell only."""

    def declare(self: Any, writer: Any, switch: Any) -> None:
        b = writer.builder.add_variables(len(self.part.rows), 0.0, 1.0, integer=True)
        writer.add(self.part.place[::2], b, (self.p - self.x)[::2])

    monkeypatch.setattr(Swap, "declare", declare)


def _no_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the middle and the radius round is forgotten."""
    original = Swap._segment

    def segment(self: Any, clean: float) -> Any:
        m, r, slack = original(self, clean)
        return m, r, 0.0 * slack

    monkeypatch.setattr(Swap, "_segment", segment)


NOTICED: list[tuple[Any, str]] = [
    (_apart, "supports"),
    (_forgotten, "supports"),
    (_forgotten, "trainings"),
    (_one_end, "supports"),
    (_one_end, "trainings"),
    (_either, "members"),
    (_two_binaries, "trainings"),
    (_half_a_program, "trainings"),
    (_no_slack, "exact arithmetic"),
]


@pytest.mark.parametrize(("mutate", "by"), NOTICED)
def test_wrong_views_are_noticed(mutate: Any, by: str, monkeypatch: pytest.MonkeyPatch, pool: WorkerPool) -> None:
    def check() -> None:
        data = table()
        threat, wanted = EXCHANGED.bind(data), swapped(data)
        if by == "members":
            check_members(threat, wanted)
        elif by == "supports":
            check_supports(threat, wanted)
        elif by == "trainings":
            check_trainings(threat, pool, steps=1)
        else:
            for x, _ in wanted:
                check_covered(threat, x)

    check()
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_rules_cut_exchanged_rows() -> None:
    """On top of it, rules hold: at least one of the first two rows is as it is."""
    data = table()

    def rules(m: Any) -> None:
        """Not both."""
        m.require((m.x(0, 0) == m.clean(0, 0)) | (m.x(1, 0) == m.clean(1, 0)))

    threat = Rules(EXCHANGED, rules).bind(data)
    found = [threat.contains(x, y) for x, y in swapped(data)]
    assert found == [not ((x[:2] != data.x[:2]).any(axis=1)).all() for x, _ in swapped(data)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Exchanged("age", "mood"), "'mood' is categorical; Exchanged takes two numeric columns"),
        (lambda: Exchanged("age", "age"), "takes two different columns, got 'age' twice"),
        (lambda: Exchanged("age", 0), "got 'age' twice"),
        (lambda: Exchanged("age", "weight"), "no column 'weight'"),
        (
            lambda: Exchanged("age", "income") & LInf({"age": 1.0}),
            "Two parts of the threat change the column 'age' of row 0",
        ),
        (lambda: LInf({"income": 1.0}).where([2]) & Exchanged("age", "income"), "the column 'income' of row 2"),
        (lambda: Exchanged("age", "income") & Budget(LInf({"age": 1.0}), rows=1), "the column 'age' of row 0"),
        (lambda: Exchanged("age", "income") & Exchanged("income", "age"), "the column 'age' of row 0"),
        (lambda: Budget(Exchanged("age", "income"), cells=1), "budget of cells applies to"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make().bind(survey(missing=False))


def test_missing_values_cannot_be_exchanged() -> None:
    data = survey()
    with pytest.raises(UserError, match="'age' has no value in row 1 that could have been exchanged"):
        (Exchanged("age", "income") & Missing()).bind(data)
    with pytest.raises(UserError, match="'age' has no value in row 1"):
        (Missing() & Exchanged("income", "age")).bind(data)
    kept = (Exchanged("age", "income").where(column("age") > 0) & Missing()).bind(data)
    (part,) = [part for part in kept.parts if part.kind == "swap"]
    assert part.rows.tolist() == [0, 2, 3, 4, 5]


def test_words_and_files() -> None:
    threat = Exchanged("a", "b")
    assert in_words(threat) == "'a' and 'b' may be exchanged in any row"
    assert in_words(Budget(threat, rows=2)) == "in at most 2 rows, 'a' and 'b' may be exchanged"
    assert in_words(threat.where(column("a") > 1)) == "where 'a' > 1, 'a' and 'b' may be exchanged"
    assert (
        in_words(threat & AnyCategory("c"))
        == "'a' and 'b' may be exchanged in any row, and 'c' may be any category in any row"
    )
    assert threat_from_json(threat.to_json()).to_json() == {"kind": "exchanged", "first": "a", "second": "b"}
    asked = [threat.reads_labels(), threat.uses_rows(), threat.has_amounts()]
    assert asked == [False] * 3
