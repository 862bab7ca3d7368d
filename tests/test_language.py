"""Rules: members satisfy them, every view contains the members, and the exact step respects them exactly."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from cases import survey
from conftest import small_data, small_step
from mibp_cert.data import Dataset
from mibp_cert.doors import certify_training
from mibp_cert.engines import SolverSettings
from mibp_cert.engines.base import Box
from mibp_cert.engines.exact.engine import MibpEngine
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational.engine import RelationalEngine
from mibp_cert.errors import UserError
from mibp_cert.logic import Compiler, Expression, Linear, Own
from mibp_cert.nets import Network, Training
from mibp_cert.parallel import WorkerPool
from mibp_cert.sets import ThreatSet
from mibp_cert.sets.rules import Polytope
from mibp_cert.solvers import Affine, Limits, Objective, ProgramBuilder, solver_named
from mibp_cert.threats import AnyCategory, Budget, LabelFlips, LInf, Rules


def a_shared_bias(m: Any) -> None:
    """All ages are off by the same amount, within half a year."""
    bias = m.real(-3, 3)
    for i in m.rows:
        m.require(m.x(i, "age") - m.clean(i, "age") - bias <= 0.5)
        m.require(m.x(i, "age") - m.clean(i, "age") - bias >= -0.5)


def a_total(m: Any) -> None:
    """The ages' errors add up to nothing."""
    m.require(sum((m.x(i, "age") - m.clean(i, "age") for i in m.rows), start=0.0) == 0)
    m.require(m.x(0, "age") >= m.clean(0, "age"))


def logic(m: Any) -> None:
    """Whoever is in a bad mood is not richer than reported; someone's age is right; a label excludes a mood."""
    for i in m.rows:
        m.require(m.category(i, "mood", "bad").implies(m.x(i, "income") <= m.clean(i, "income")))
    m.require((m.x(0, "age") == m.clean(0, "age")) | (m.x(1, "age") == m.clean(1, "age")))
    m.require(~(m.label(0, 1) & m.category(0, "mood", "good")))


def counting(m: Any) -> None:
    """At most two ages and one mood are wrong, not more than two in all."""
    ages = m.count([m.x(i, "age") != m.clean(i, "age") for i in m.rows])
    moods = m.count([m.category(i, "mood", "good") for i in m.rows])
    m.require(ages <= 2)
    m.require(moods + ages <= 3)


def a_product(m: Any) -> None:
    """Ages scale with an unknown factor; a whole number of incomes is shifted."""
    factor, steps = m.real(0.95, 1.05), m.integer(0, 2)
    for i in m.rows:
        m.require(m.x(i, "age") == factor * m.clean(i, "age"))
    m.require(m.x(0, "income") - m.clean(0, "income") == 0.25 * steps)
    m.require(m.x(1, "age") * m.x(1, "income") <= m.clean(1, "age") * m.clean(1, "income") + 2.0)


BASE = LInf({"age": 4.0, "income": 0.5})
RULES: dict[str, Rules] = {
    "shared bias": Rules(BASE, a_shared_bias),
    "total": Rules(BASE, a_total),
    "logic": Rules(BASE & AnyCategory("mood") & LabelFlips(2), logic),
    "counting": Rules(BASE & AnyCategory("mood"), counting),
    "product": Rules(BASE, a_product),
}
LINEAR = [name for name in RULES if name != "product"]


def bound(name: str, rows: int = 4) -> ThreatSet:
    return RULES[name].bind(survey(rows, missing=False))


@pytest.mark.parametrize("name", RULES)
def test_samples_lie_in_every_view(name: str) -> None:
    threat = bound(name, 4 if name in LINEAR else 2)
    hull, noise = threat.hull(), threat.noise()
    rng = np.random.default_rng(0)
    count = 200 if name in LINEAR else 6
    members = threat.sample(rng, count) + [threat.worst(rng.normal(size=noise.symbols)) for _ in range(4)]
    assert any(not np.array_equal(x, members[0][0]) for x, _ in members), "one sample only"
    for number, (x, y) in enumerate(members):
        if number < 20:
            assert threat.contains(x, y)
        assert ((hull.x_low <= x) & (x <= hull.x_high)).all()
        assert ((hull.y_low <= y) & (y <= hull.y_high)).all()
        g, h = rng.normal(size=x.shape), rng.normal(size=y.shape)
        through = noise.x_linear.T @ g.ravel() + noise.y_linear.T @ h.ravel()
        base = float((g * noise.x_centre).sum() + (h * noise.y_centre).sum())
        ends = [block.support(through[block.symbols]) for block in noise.blocks]
        value = float((g * x).sum() + (h * y).sum())
        slip = 1e-12 * (1 + abs(base))
        assert base + sum(float(e[0]) for e in ends) - slip <= value <= base + sum(float(e[1]) for e in ends) + slip


@pytest.mark.parametrize("base", [BASE & LabelFlips(1), Budget(LInf({"age": 4.0}), rows=1)])
def test_a_budget_that_rows_of_a_rule_have_spent_is_not_spent_again_by_others(base: Any) -> None:
    def nobody_is_older(m: Any) -> None:
        m.require(m.x(0, "age") <= m.clean(0, "age"))

    threat, rng = Rules(base, nobody_is_older).bind(survey(6, missing=False)), np.random.default_rng(0)
    members = threat.sample(rng, 30) + [threat.worst(rng.normal(size=threat.noise().symbols)) for _ in range(30)]
    assert all(threat.contains(x, y) for x, y in members)
    assert any((x[0] != threat.clean.x[0]).any() for x, _ in members)
    assert any((x[1:] != threat.clean.x[1:]).any() for x, _ in members)


def test_outsiders_are_told_apart() -> None:
    threat = bound("shared bias")
    x, y = (a.copy() for a in threat.reference)
    scale = threat.clean.columns[0].scale
    x[:, 0] += 2.0 / scale
    assert threat.contains(x, y)
    x[0, 0] -= 1.9 / scale
    assert not threat.contains(x, y)
    counted = bound("counting")
    x, y = (a.copy() for a in counted.reference)
    x[:2, 0] += 1.0 / scale
    good = int(x[:, 3].sum())
    assert counted.contains(x, y) == (good + 2 <= 3)
    x[2, 0] += 1.0 / scale
    assert not counted.contains(x, y)


@pytest.mark.parametrize("name", RULES)
def test_trained_members_stay_inside_every_engine(name: str, pool: WorkerPool) -> None:
    threat = bound(name, 4 if name in LINEAR else 2)
    rng = np.random.default_rng(1)
    members = threat.sample(rng, 12 if name in LINEAR else 4)
    engines = [IntervalEngine(), RelationalEngine(), MibpEngine(SolverSettings(gap=0.05), pool=pool)]
    network, step = small_step(threat.clean, [2, 2], rate=0.3)
    theta = network.initialise(0)
    for engine in engines:
        box: Box = Box.point(theta)
        trained = [theta] * len(members)
        for _ in range(1 if engine.name == "mibp" else 3):
            box, _ = engine.advance(box, step, threat)
            trained = [step.train(t, x, y) for t, (x, y) in zip(trained, members, strict=True)]
            slip = 0.0 if engine.name != "mibp" else 1e-5 * box.radius  # members break rules by the solver's tolerance
            inside = [((box.lower - slip <= t) & (t <= box.upper + slip)).all() for t in trained]
            assert all(inside), engine.name


def test_the_exact_step_equals_brute_force_over_rules(pool: WorkerPool) -> None:
    """Moods and labels under logic and counting: all datasets enumerated, those that satisfy the rules trained."""
    data = survey(3, missing=False)

    def rules(m: Any) -> None:
        m.require(m.count([m.category(i, "mood", "bad") for i in m.rows]) <= 1)
        m.require(m.label(0, 1).implies(m.category(1, "mood", "good")))
        m.require(m.category(2, "mood", "fair") | m.label(2, 0) | m.category(0, "mood", "good"))

    threat = Rules(AnyCategory("mood") & LabelFlips(), rules).bind(data)
    datasets = []
    for moods in product(range(3), repeat=3):
        for labels in product(range(2), repeat=3):
            if moods.count(0) > 1 or (labels[0] == 1 and moods[1] != 2):
                continue
            if not (moods[2] == 1 or labels[2] == 0 or moods[0] == 2):
                continue
            x = data.x.copy()
            x[:, 1:4] = np.eye(3)[list(moods)]
            datasets.append((x, np.eye(2)[list(labels)]))
    assert all(threat.contains(x, y) for x, y in datasets[::9])
    network, step = small_step(data, [2, 2], rate=0.5)
    theta = network.initialise(3)
    models = np.stack([step.train(theta, x, y) for x, y in datasets])
    bounds, _ = MibpEngine(SolverSettings(gap=1e-4), pool=pool).advance(Box.point(theta), step, threat)
    width = np.maximum(0.5 * (models.max(axis=0) - models.min(axis=0)), 1e-3)
    assert (bounds.lower <= models.min(axis=0)).all()
    assert (models.max(axis=0) <= bounds.upper).all()
    assert (models.min(axis=0) - bounds.lower <= 2e-4 * width + 2e-6).all()
    assert (bounds.upper - models.max(axis=0) <= 2e-4 * width + 2e-6).all()


def test_random_rules_keep_their_samples(pool: WorkerPool) -> None:
    """Random linear rules with logic, on random data: samples satisfy all views and stay inside the bounds."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        data = small_data(rng, rows=4, features=2)

        def rules(m: Any, rng: Any = rng, data: Dataset = data) -> None:
            for _ in range(3):
                cells = [(int(rng.integers(4)), int(rng.integers(2))) for _ in range(3)]
                weights = rng.normal(size=3)
                left = sum(
                    (w * (m.x(i, j) - m.clean(i, j)) for w, (i, j) in zip(weights, cells, strict=True)), start=0.0
                )
                rule = left <= float(rng.uniform(0, 0.2))
                other = m.x(*cells[0]) >= m.clean(*cells[0])
                m.require([rule, rule | other, other.implies(rule)][int(rng.integers(3))])

        threat = Rules(LInf(0.2), rules, clean_is_member=True).bind(data)
        hull = threat.hull()
        members = threat.sample(rng, 20)
        network, step = small_step(data, [2, 2], rate=0.5)
        theta = network.initialise(seed)
        boxes = [engine.advance(Box.point(theta), step, threat)[0] for engine in (IntervalEngine(), RelationalEngine())]
        for x, y in members:
            assert threat.contains(x, y)
            assert ((hull.x_low <= x) & (x <= hull.x_high)).all()
            trained = step.train(theta, x, y)
            assert all(box.contains(trained) for box in boxes)


def test_linear_rules_tighten_the_relational_bounds() -> None:
    threat, free = bound("shared bias", rows=6), BASE.bind(survey(6, missing=False))
    network, step = small_step(threat.clean, [2], rate=0.3)
    theta = network.initialise(0)
    few, _ = RelationalEngine().advance(Box.point(theta), step, bound("total", rows=6))
    wide, _ = RelationalEngine().advance(Box.point(theta), step, free)
    assert few.radius.sum() < 0.95 * wide.radius.sum()
    assert threat.outer


def test_the_polytope_bound_is_safe_and_close() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        block = Polytope(np.arange(6), rng.normal(size=(3, 6)), rng.uniform(0.0, 1.0, 3))
        g = rng.normal(size=(8, 6))
        low, high = block.support(g)
        for row, bottom, top in zip(g, low, high, strict=True):
            best, worst = float(row @ block.minimiser(row)), float(row @ block.minimiser(-row))
            assert bottom <= best + 1e-9
            assert worst - 1e-9 <= top
            assert top - bottom <= 1.5 * (worst - best) + 1e-6
        assert (high <= np.abs(g).sum(axis=1) + 1e-12).all()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (lambda m: m.require(m.x(0, "age") >= 1000), "no dataset satisfies"),
        (lambda m: m.require(m.x(0, "weight") >= 0), "no column 'weight'"),
        (lambda m: m.require(m.x(0, "mood") >= 0), "categorical; use category"),
        (lambda m: m.require(m.category(0, "age", 1)), "numeric; use x"),
        (lambda m: m.require(m.category(0, "mood", "great")), "not a category"),
        (lambda m: m.require(m.label(0, 7)), "not among the classes"),
        (lambda m: m.require(m.x(99, "age") >= 0), "no row 99"),
        (lambda m: m.require(m.x(0, "age") >= 0 and m.x(1, "age") >= 0), "combine rules with &"),
        (lambda m: m.require(True), "needs a rule"),
        (lambda m: m.require(m.real(0, float("inf")) >= 0), "finite ends"),
        (lambda m: m.require(m.x(0, "age") * m.x(0, "age") * m.x(0, "age") >= 0), "two linear expressions"),
        (lambda m: m.require((m.x(0, "age") >= 0) & True), "is not a rule"),
        (lambda m: m.require(m.x(0, "age") <= float("nan")), "finite numbers"),
        (lambda m: m.require(m.x(0.5, "age") >= 0), "no row 0.5"),
        (lambda m: m.require(m.x(0, "age") <= m.clean(0, "mood")), "is for numbers"),
        (lambda m: None, "require nothing"),
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Rules(BASE, rules).bind(survey(4, missing=False))


def test_clean_data_that_break_the_rules_are_noticed_where_it_matters() -> None:
    data = survey(4, missing=False)
    rule = Rules(BASE, lambda m: m.require(m.x(0, "age") >= m.clean(0, "age") + 1.0))
    members = rule.bind(data)
    x, y = members.reference
    assert members.contains(x, y)
    assert x[0, 0] > data.x[0, 0]
    with pytest.raises(UserError, match="break the rules"):
        Rules(BASE, rule.rules, clean_is_member=True).bind(data)


def _most_of(rule: Any) -> float:
    """Largest value of an own number that a rule allows, over one cell `x = 1 + e/2 ± 0.25`."""
    builder = ProgramBuilder()
    builder.bilinear = True
    (e,) = builder.add_variables(1)
    cell = Affine(np.ones(1), builder.matrix(np.zeros(1, dtype=np.intp), np.array([e]), 0.5), np.full(1, 0.25))
    compiler = Compiler(builder, {("x", 0): Linear.of(cell, 0)}, [Own("real", -9.0, 9.0)])
    compiler.require(rule(Expression({("x", 0): 1.0}), Expression({("v", 0): 1.0})))
    value = compiler.linear(Expression({("v", 0): 1.0}))
    program, objective = builder.finish(), np.zeros(builder.variables)
    objective[list(value.coefficients)] = list(value.coefficients.values())
    (found,) = solver_named("scip").solve(program, [Objective(objective, True)], Limits())
    return value.constant + found.proven


@pytest.mark.parametrize(
    ("rule", "most"),
    [
        (lambda x, v: v <= x, 1.75),
        (lambda x, v: v == -2.0 * x + 1.0, 0.5),
        (lambda x, v: (v <= x) | (v <= 0.5 * x), 1.75),
        (lambda x, v: v <= x * x, 1.75**2),
        (lambda x, v: v <= x / 3 + (1.0 + x) * 0.1, 1.75 / 3 + 0.275),
    ],
)
def test_rules_reach_as_far_as_the_slack_of_a_cell(rule: Any, most: float) -> None:
    assert most - 1e-9 <= _most_of(rule) <= most + (0.2 if most > 3 else 1e-6)


def test_products_need_a_solver_that_can_multiply() -> None:
    data = survey(4, missing=False)
    with pytest.raises(UserError, match="cannot do; choose scip"):
        certify_training(
            Network.mlp([5, 2, 2]), data, RULES["product"], Training(epochs=1), "mibp", solver=SolverSettings("highs")
        )
