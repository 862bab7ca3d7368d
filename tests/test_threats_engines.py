"""Every threat in every engine: members, sampled and worst ones, trained for real, stay inside the bounds."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from breadth import problem
from cases import THREATS, bound, random_threat, survey
from conftest import small_step
from mibp_cert.data import Dataset
from mibp_cert.engines import RelationalSettings, SolverSettings
from mibp_cert.engines.base import Box, Engine
from mibp_cert.engines.crown import CrownEngine
from mibp_cert.engines.exact.engine import MibpEngine
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational import RelationalSet, budget, forms
from mibp_cert.engines.relational.engine import RelationalEngine
from mibp_cert.errors import UserError
from mibp_cert.parallel import WorkerPool
from mibp_cert.sets import ThreatSet
from mibp_cert.threats import AnyCategory, Budget, LabelFlips, LInf, Missing
from oracles import rational, train_rational

JOINT = RelationalEngine(RelationalSettings(cases=0))
"""Budgets in one set, never split by the rows they are spent on."""


def plan(data: Dataset, sizes: list[int], steps: int, rate: float, seed: int) -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(seed)
    batches = [np.sort(rng.choice(len(data), rng.integers(2, len(data) + 1), replace=False)) for _ in range(steps)]
    graphs = [small_step(data, sizes, rate=rate, batches=[batch])[1] for batch in batches]
    return small_step(data, sizes)[0], graphs


def attacked(threat: ThreatSet, state: Box, rng: np.random.Generator, n: int) -> list[Any]:
    """Samples, random worst cases, and the datasets that push single parameters furthest by the linear part."""
    symbols = threat.noise().symbols
    found = threat.sample(rng, n) + [threat.worst(rng.normal(size=symbols)) for _ in range(n // 2)]
    if isinstance(state, RelationalSet) and symbols:
        for i in range(0, len(state.lower), max(1, len(state.lower) // 6)):
            found += [threat.worst(sign * state.linear[i, :symbols]) for sign in (1.0, -1.0)]
    return found


def check_contained(threat: ThreatSet, engine: Engine, sizes: list[int], steps: int, seed: int, rate: float) -> None:
    network, graphs = plan(threat.clean, sizes, steps, rate, seed)
    theta = network.initialise(seed)
    boxes, box = [], Box.point(theta)
    for step in graphs:
        box, _ = engine.advance(box, step, threat)
        boxes.append(box)
    for x, y in [threat.reference, *attacked(threat, box, np.random.default_rng(seed), 12)]:
        trained = theta
        for step, bounds in zip(graphs, boxes, strict=True):
            trained = step.train(trained, x[step.rows], y[step.rows])
            assert bounds.contains(trained), "a trained model left its bounds"


@pytest.mark.parametrize("name", THREATS)
def test_trained_members_stay_inside_the_bounds(name: str) -> None:
    for seed, (sizes, rate) in enumerate([([3, 2], 0.3), ([1], 1.0), ([4, 3, 2], 0.1), ([2], 0.05)]):
        threat = bound(name, seed=seed)
        check_contained(threat, IntervalEngine(), sizes, 4, seed, rate)
        check_contained(threat, CrownEngine(), sizes, 4, seed, rate)
        check_contained(threat, JOINT, sizes, 4, seed, rate)
        if seed < 2:  # one run for every way to spend a budget
            check_contained(threat, RelationalEngine(), sizes, 3, seed, rate)


@pytest.mark.parametrize("name", THREATS)
def test_exact_rational_training_stays_inside(name: str) -> None:
    """No float between the member and the verdict: training in fractions, compared with the bounds as fractions."""
    threat = bound(name, rows=4)
    network, graphs = plan(threat.clean, [2, 2], 2, 0.3, 1)
    theta = network.initialise(1)
    boxes = []
    for engine in (IntervalEngine(), CrownEngine(), RelationalEngine(), JOINT):
        box: Box = Box.point(theta)
        boxes.append([box := engine.advance(box, step, threat)[0] for step in graphs])
    rng = np.random.default_rng(2)
    for x, y in [*threat.sample(rng, 2), threat.worst(rng.normal(size=threat.noise().symbols))]:
        path = train_rational(graphs, rational(theta), rational(x), rational(y))
        for bounds in boxes:
            for exact, at in zip(path, bounds, strict=True):
                assert all(rational(at.lower) <= exact)
                assert all(exact <= rational(at.upper))


@pytest.mark.parametrize("name", THREATS)
def test_other_bounds_lie_within_interval_ones(name: str) -> None:
    for seed in range(2):
        threat = bound(name, seed=seed)
        network, graphs = plan(threat.clean, [3, 2], 3, 0.3, seed)
        split = tight = crown = plain = Box.point(network.initialise(seed))
        for step in graphs:
            tight, _ = JOINT.advance(tight, step, threat)
            split, _ = RelationalEngine().advance(split, step, threat)
            crown, _ = CrownEngine().advance(crown, step, threat)
            plain, _ = IntervalEngine().advance(plain, step, threat)
            assert crown.within(plain)
            assert tight.within(plain)
            assert split.within(plain)


def check_random(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(3, 8))
    try:
        threat = random_threat(rng, rows).bind(survey(rows, seed, missing=False))
    except UserError:
        return  # contradicting parts, or a marker that does not occur
    sizes = [*rng.integers(1, 5, rng.integers(0, 3)).tolist(), int(rng.integers(1, 3))]
    rate = float(rng.choice([0.05, 0.3, 1.0]))
    for engine in (IntervalEngine(), CrownEngine(), RelationalEngine(), JOINT):
        check_contained(threat, engine, sizes, 4, seed, rate)


@pytest.mark.parametrize("block", [0, 2, *(pytest.param(block, marks=pytest.mark.slow) for block in (1, 3))])
def test_random_compositions_stay_inside(block: int) -> None:
    for seed in range(5 * block, 5 * block + 5):
        check_random(seed)


@pytest.mark.soundness
@pytest.mark.parametrize("block", range(12))
def test_threats_hunt(block: int) -> None:
    for seed in range(1000 + 25 * block, 1000 + 25 * block + 25):
        check_random(seed)


@pytest.mark.parametrize("name", [pytest.param(t, marks=pytest.mark.slow if "exchanged" in t else ()) for t in THREATS])
def test_trained_members_stay_inside_mibp_bounds(name: str, pool: WorkerPool) -> None:
    threat = bound(name, rows=4)
    check_contained(threat, MibpEngine(SolverSettings(nodes_per_program=5), pool=pool), [2, 2], 2, 0, 0.3)


def brute_force(threat: ThreatSet, step: Any, theta: Any, datasets: list[Any]) -> Box:
    models = np.stack([step.train(theta, x[step.rows], y[step.rows]) for x, y in datasets])
    assert all(threat.contains(x, y) for x, y in datasets)
    return Box(models.min(axis=0), models.max(axis=0))


def every_choice(threat: ThreatSet, groups: list[tuple[str, int, list[int]]], most: int | None) -> list[Any]:
    """All datasets in which groups (x or y, row, allowed entries) take any of their entries, at most `most` rows changed."""
    out = []
    x0, y0 = threat.reference
    for picks in product(*(entries for _, _, entries in groups)):
        x, y = x0.copy(), y0.copy()
        changed = set()
        for (on, row, entries), pick in zip(groups, picks, strict=True):
            target = x if on == "x" else y
            if target[row, pick] != 1.0:
                changed.add(row)
            target[row, entries] = 0.0
            target[row, pick] = 1.0
        if most is None or len(changed) <= most:
            out.append((x, y))
    return out


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda: AnyCategory("mood"), None),
        (lambda: Budget(AnyCategory("mood"), rows=1), 1),
        (lambda: Budget(AnyCategory("mood"), rows=2), 2),
        (lambda: LabelFlips(1), 1),
        (lambda: LabelFlips(2), 2),
        (lambda: Budget(AnyCategory("mood") & LabelFlips(), rows=1), 1),
        (lambda: Missing("mood"), None),
    ],
)
def test_the_exact_step_equals_brute_force_over_discrete_choices(make: Any, most: int | None, pool: WorkerPool) -> None:
    described = make()
    data = survey(rows=4, missing=isinstance(described, Missing))
    described = described & Missing("age") if isinstance(described, Missing) else described
    threat = described.bind(data)
    words = str(described.to_json())
    groups: list[tuple[str, int, list[int]]] = []
    for row in range(4):
        if "mood" in words and ("missing" not in words or row == 2):
            groups.append(("x", row, [1, 2, 3]))
        if "label" in words:
            groups.append(("y", row, [0, 1]))
    network, step = small_step(data, [2, 2], rate=0.5)
    theta = network.initialise(3)
    truth = brute_force(threat, step, theta, every_choice(threat, groups, most))
    engine = MibpEngine(SolverSettings(gap=1e-4), pool=pool)
    bounds, report = engine.advance(Box.point(theta), step, threat)
    assert truth.within(bounds)
    width = np.maximum(truth.radius, 1e-3)
    assert (np.abs(bounds.lower - truth.lower) <= 2e-4 * width + 2e-6).all(), "the exact step is not exact"
    assert (np.abs(bounds.upper - truth.upper) <= 2e-4 * width + 2e-6).all(), "the exact step is not exact"
    assert report.fallbacks == 0


def poisonings(data: Dataset, eps: float, most: int) -> list[Any]:
    """All corner perturbations of at most `most` rows."""
    corners = list(product((-eps, eps), repeat=data.features))
    out = [(data.x, data.one_hot)]
    for rows in combinations(range(len(data)), most):
        for moves in product(corners, repeat=most):
            x = data.x.copy()
            x[list(rows)] = x[list(rows)] + np.array(moves) * (1 - 1e-15)
            out.append((x, data.one_hot))
    return out


def budget_problem(most: int, eps: float = 0.2, rate: float = 0.2) -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    data = Dataset.of(rng.normal(size=(6, 2)), np.arange(6) % 2)
    network = small_step(data, [3, 2])[0]
    batches = [np.arange(3), np.arange(3, 6)] * 3
    graphs = [small_step(data, [3, 2], rate=rate, batches=[batch])[1] for batch in batches]
    return data, Budget(LInf(eps), rows=most).bind(data), graphs, network.initialise(0), poisonings(data, eps, most)


def check_budget(engine: RelationalEngine, most: int) -> tuple[Box, Box]:
    """All poisonings of `most` rows inside, after every step; returns the bounds with and without the budget."""
    data, budgeted, graphs, theta, datasets = budget_problem(most)
    free = LInf(0.2).bind(data)
    few = wide = Box.point(theta)
    paths = [(theta, x, y) for x, y in datasets]
    assert all(budgeted.contains(x, y) for _, x, y in paths)
    for step in graphs:
        few, _ = engine.advance(few, step, budgeted)
        wide, _ = engine.advance(wide, step, free)
        paths = [(step.train(t, x[step.rows], y[step.rows]), x, y) for t, x, y in paths]
        assert all(few.contains(t) for t, _, _ in paths), "a poisoned model left its bounds"
    return few, wide


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("engine", [RelationalEngine(), JOINT], ids=["split", "joint"])
def test_a_row_budget_holds_across_batches_and_epochs(engine: RelationalEngine, most: int) -> None:
    """All 1- and 2-row corner poisonings of a tiny training set, trained for real over six mini-batch steps."""
    few, wide = check_budget(engine, most)
    assert few.radius.mean() < wide.radius.mean()
    if engine is not JOINT:
        assert few.radius.mean() < 0.6 * wide.radius.mean()


@pytest.mark.parametrize("name", ["relu, three logits", "strides and padding", "pooling", "two convolutions"])
@pytest.mark.parametrize("most", [1, 2])
def test_known_noise_explains_poisoned_models_where_values_are_gathered(name: str, most: int) -> None:
    """Shares of several classes, convolutions and pooling pick values: what belongs to a dirty row must go with them."""
    for seed in range(3):
        p = problem(name, seed, steps=2, rows=4)
        threat, rng = Budget(LInf(0.5), rows=most).bind(p.data), np.random.default_rng(seed)
        noise, begin = threat.noise(), p.begin
        paths = []
        for _ in range(40):
            epsilon = np.zeros(noise.symbols)
            for block in noise.blocks:
                epsilon[block.symbols] = block.sample(rng, extreme=True)
            paths.append((begin, epsilon, noise.x_centre + (noise.x_linear @ epsilon).reshape(p.data.x.shape)))
        state: Box = Box.point(begin)
        for step in p.steps():
            state, _ = JOINT.advance(state, step, threat)
            assert isinstance(state, RelationalSet)
            labels = p.data.one_hot[step.rows]
            paths = [(step.train(t, x[step.rows], labels), e, x) for t, e, x in paths]
            for t, epsilon, _ in paths:
                left = np.abs(state.residual(t, epsilon))
                assert (left <= state.cover() * (1 + 1e-12)).all(), "the known noise does not explain a model"
                assert ((state.lower - 1e-12 <= t) & (t <= state.upper + 1e-12)).all()


def test_two_budgets_are_spent_on_different_rows() -> None:
    """One row of wrong features and another with a wrong label: both at once in every engine."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        data, eps = Dataset.of(rng.normal(size=(5, 2)), np.arange(5) % 2), 0.3
        threat = (Budget(LInf(eps), rows=1) & LabelFlips(1)).bind(data)
        network, step = small_step(data, [1] if seed % 2 else [2, 2], rate=0.5)
        theta = network.initialise(seed)
        datasets = []
        for x, y in poisonings(data, eps, 1):
            for row in range(len(data)):
                flipped = np.array(y)
                flipped[row] = 1.0 - flipped[row]
                datasets.append((x, flipped))
        truth = brute_force(threat, step, theta, datasets)
        for engine in (IntervalEngine(), CrownEngine(), RelationalEngine(), JOINT):
            box, _ = engine.advance(Box.point(theta), step, threat)
            assert truth.within(box), engine.name


def _one_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One dirty row too few where rows are added up."""
    original = forms.largest_sum
    monkeypatch.setattr(forms, "largest_sum", lambda values, most: original(values, most - 1))


def _free_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row pays for a gate that it flips."""
    monkeypatch.setattr(budget.Kinks, "flips", lambda self: np.zeros((*self.size.shape, self.symbols.members)))


def _free_kinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row pays for a relu that it takes across its kink."""

    def nothing(self: Any) -> Any:
        return np.zeros((*self.size.shape, self.symbols.members)), np.zeros(self.size.shape)

    monkeypatch.setattr(budget.Kinks, "relu", nothing)


def _no_second_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product of two deviations is forgotten."""
    original = budget.second_order

    def rule(spec: Any, a: Any, b: Any, small: Any) -> Any:
        slack, rows = original(spec, a, b, small)
        return 0.0 * slack, 0.0 * rows

    monkeypatch.setattr(budget, "second_order", rule)


@pytest.mark.parametrize("mutate", [_one_short, _free_flips, _free_kinks, _no_second_order])
def test_a_wrong_rule_for_budgets_is_noticed(mutate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known noise: what a poisoned model keeps after its own noise is covered; single steps from a point leave no room."""
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check_budget_steps()


def test_known_noise_explains_poisoned_models() -> None:
    check_budget_steps()


def check_budget_steps() -> None:
    for most in (1, 2):
        check_budget_step(most)


def check_budget_step(most: int) -> None:
    """Steps of a one-unit network, from the point: `θ − c − G_data·ε` is covered for all poisonings and sizes of them."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        data = Dataset.of(rng.normal(size=(4, 1)), np.arange(4) % 2)
        sizes = [2, 2] if seed % 2 else [1]
        network, step = small_step(data, sizes, rate=0.5)
        theta, eps = network.initialise(seed) * 2.0, 0.4
        threat = Budget(LInf(eps), rows=most).bind(data)
        state: Box = Box.point(theta)
        paths = [(theta, x, y) for scale in (1.0, 0.5) for x, y in poisonings(data, eps * scale, most)]
        noise = threat.noise()
        for _ in range(2):
            state, _ = JOINT.advance(state, step, threat)
            assert isinstance(state, RelationalSet)
            paths = [(step.train(t, x, y), x, y) for t, x, y in paths]
            for t, x, _ in paths:
                epsilon = (x - noise.x_centre).ravel() / noise.x_linear.diagonal()
                rest = np.abs(state.residual(t, epsilon))
                assert (rest <= state.cover() * (1 + 1e-12)).all(), "the known noise does not explain a model"
                assert state.contains(t)
