"""The relational engine: known noise explains trained models, at every step, for parameters and margins alike."""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from conftest import random_case, small_data, small_step, trainings
from mibp_cert.certify.predict import margin_pairs
from mibp_cert.data import Dataset
from mibp_cert.engines import RelationalSettings
from mibp_cert.engines.base import Box
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational import RelationalSet
from mibp_cert.engines.relational import engine as relational
from mibp_cert.engines.relational import rules as affine
from mibp_cert.engines.relational.engine import RelationalEngine, bound_outputs
from mibp_cert.engines.relational.forms import Form, Symbols
from mibp_cert.engines.relational.rules import AffineRules
from mibp_cert.engines.rounding import Interval
from mibp_cert.errors import UserError
from mibp_cert.graph import GraphBuilder, evaluate
from mibp_cert.nets import Step, run_steps
from mibp_cert.sets import ThreatSet, unit_box
from mibp_cert.threats import LInf
from oracles import rational, train_rational

ENGINE = RelationalEngine()


def known_noise(threat: ThreatSet, x: Any) -> Any:
    """The symbols' values of a dataset: each cell has a symbol of its own."""
    noise = threat.noise()
    deviation = (x.astype(np.longdouble) - noise.x_centre.astype(np.longdouble)).ravel()
    epsilon = np.zeros(noise.symbols, dtype=np.longdouble)
    for cell, (start, stop) in enumerate(zip(noise.x_linear.indptr[:-1], noise.x_linear.indptr[1:], strict=True)):
        if stop > start:
            epsilon[noise.x_linear.indices[start]] = deviation[cell] / np.longdouble(noise.x_linear.data[start])
    return epsilon


def check_case(seed: int, engine: RelationalEngine, steps: int = 4, members: int = 8) -> int:
    """Every member's training: inside the box, and its residual after the known noise covered. Returns runs checked."""
    _, graphs, threat, theta, rng = random_case(seed, steps)
    drawn = threat.sample(rng, members)
    noises = [known_noise(threat, x) for x, _ in drawn]
    box, plain = Box.point(theta), Box.point(theta)
    for step, states in zip(graphs, trainings(graphs, theta, drawn), strict=True):
        box, _ = engine.advance(box, step, threat)
        plain, _ = IntervalEngine().advance(plain, step, threat)
        assert isinstance(box, RelationalSet)
        assert box.within(plain), f"seed {seed}: looser than intervals"
        assert box.contains(states), f"seed {seed}: a trained model left its bounds"
        room = box.cover() * (1 + 1e-12) + 1e-300
        for trained, epsilon in zip(states, noises, strict=True):
            rest = np.abs(box.residual(trained, epsilon))
            assert (rest <= room).all(), f"seed {seed}: the known noise does not explain a model"
    return len(states)


def check_margins(seed: int, engine: RelationalEngine, members: int = 8) -> None:
    """The same for test margins: what the known noise leaves of a true margin is covered by the rest of the form."""
    network, graphs, threat, theta, rng = random_case(seed, 3)
    box: Box = Box.point(theta)
    for step in graphs:
        box, _ = engine.advance(box, step, threat)
    assert isinstance(box, RelationalSet)
    x = rng.normal(size=(5, network.features))
    pairs, _ = margin_pairs(network)
    rows = Form.constant(box.symbols(), Interval.point(x))
    form = bound_outputs(network.margin_graph(5, pairs), box, network.layout, rows)
    linear = form.dense()
    known = np.zeros((*form.shape, 0)) if linear is None else linear
    cover = np.abs(known[..., box.data :]).sum(axis=-1) + form.slack
    for member, y in threat.sample(rng, members):
        epsilon = known_noise(threat, member)
        trained = run_steps(graphs, theta, member, y)
        margins = evaluate(network.margin_graph(5, pairs), {**network.layout.unflatten(trained), "x": x})["margins"]
        explained = known[..., : box.data].astype(np.longdouble) @ epsilon if known.shape[-1] else 0.0
        rest = np.abs(margins.astype(np.longdouble) - form.centre - explained)
        assert (rest <= cover * (1 + 1e-12) + 1e-300).all(), f"seed {seed}: the known noise does not explain a margin"
        assert ((form.range.low <= margins) & (margins <= form.range.high)).all()


@pytest.mark.parametrize("block", range(13))
def test_known_noise_explains_trained_models(block: int) -> None:
    """13 × 20 cases × 8 members: 2,080 runs trained for real, checked after each of 4 steps."""
    assert sum(check_case(seed, ENGINE) for seed in range(20 * block, 20 * block + 20)) == 160


@pytest.mark.parametrize("block", range(4))
def test_known_noise_explains_margins(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        check_margins(seed, ENGINE)


@pytest.mark.soundness
@pytest.mark.parametrize("block", range(50))
def test_relational_hunt(block: int) -> None:
    for seed in range(5000 + 20 * block, 5000 + 20 * block + 20):
        check_case(seed, ENGINE, steps=6, members=12)
        check_margins(seed, ENGINE)


def test_a_small_symbol_budget_folds_soundly() -> None:
    for seed in range(30):
        network, graphs, threat, _, _ = random_case(seed, 4)
        least = threat.noise().symbols + network.layout.size
        check_case(seed, RelationalEngine(RelationalSettings(symbols=least)))
        after: Box = Box.point(network.initialise(0))
        for step in graphs:
            after, _ = RelationalEngine(RelationalSettings(symbols=least + 3)).advance(after, step, threat)
            assert isinstance(after, RelationalSet)
            assert after.linear.shape[1] <= least + 3


def test_a_budget_below_the_datas_own_noise_is_refused() -> None:
    _, graphs, threat, theta, _ = random_case(3, 1)
    with pytest.raises(UserError, match="too small: the data's own noise needs"):
        RelationalEngine(RelationalSettings(symbols=1)).advance(Box.point(theta), graphs[0], threat)


@pytest.mark.parametrize("eps", [0.0, 1e-15, 1e-6, 1e-2, 0.1])
@pytest.mark.parametrize(
    ("sizes", "scale"),
    [([2, 1], 1.0), ([2, 2], 1.0), ([2, 2, 2], 1.0), ([2, 3], 1e-310), ([2, 1], 1e8), ([2, 2], 1e-160)],
)
def test_rational_training_of_members_stays_inside(eps: float, sizes: list[int], scale: float) -> None:
    rng = np.random.default_rng(3)
    data = small_data(rng, rows=3, classes=max(2, sizes[-1]))
    network, step = small_step(data, sizes, rate=0.3)
    threat = LInf(eps).bind(data)
    theta = scale * network.initialise(1)
    noise, path = threat.noise(), _path(theta, step, threat)
    for x, y in threat.sample(rng, 4):
        exact = train_rational([step] * 3, rational(theta), rational(x), rational(y))
        for box, truth in zip(path, exact, strict=True):
            for i, value in enumerate(truth):
                assert Fraction(float(box.lower[i])) <= value <= Fraction(float(box.upper[i]))
                # The residual after the known noise, exactly.
                rest = value - Fraction(float(box.middle[i]))
                for cell, symbol in zip(*_cells(noise), strict=True):
                    centre = Fraction(float(noise.x_centre.ravel()[cell]))
                    radius = Fraction(float(noise.x_linear[cell, symbol]))
                    rest -= (
                        Fraction(float(box.linear[i, symbol])) * (Fraction(float(x.ravel()[cell])) - centre) / radius
                    )
                cover = sum((abs(Fraction(float(g))) for g in box.linear[i, box.data :]), Fraction(0))
                assert abs(rest) <= cover + Fraction(float(box.slack[i]))


def _path(theta: Any, step: Step, threat: ThreatSet) -> list[RelationalSet]:
    """The sets after one, two and three steps."""
    box, path = Box.point(theta), []
    for _ in range(3):
        box, _ = ENGINE.advance(box, step, threat)
        assert isinstance(box, RelationalSet)
        path.append(box)
    return path


def _cells(noise: Any) -> tuple[Any, Any]:
    coordinates = noise.x_linear.tocoo()
    return coordinates.row.tolist(), coordinates.col.tolist()


def test_rational_training_with_kinks_and_ties_stays_inside() -> None:
    """Preactivations exactly 0, margins exactly 1 and equal logits, at zero width and at positive width."""
    x = np.array([[0.0, 0.0], [1.0, -1.0], [1.0, 1.0], [2.0, 0.0]])
    data = Dataset.of(x, [0, 1, 0, 1], (0, 1))
    _, step = small_step(data, [2, 2], rate=0.5)
    theta = np.array([1.0, 1.0, 1.0, -1.0, 0.0, 0.0, 1.0, 0.0, 0.5, 0.5, 1.0, 0.0])
    for eps in (0.0, 0.25):
        threat = LInf(eps).bind(data)
        path = _path(theta, step, threat)
        for member, y in [(data.x, data.one_hot), *threat.sample(np.random.default_rng(1), 6)]:
            exact = train_rational([step] * 3, rational(theta), rational(member), rational(y))
            for box, truth in zip(path, exact, strict=True):
                for low, value, high in zip(box.lower, truth, box.upper, strict=True):
                    assert Fraction(float(low)) <= value <= Fraction(float(high))


def test_the_larger_threat_contains_models_of_the_smaller() -> None:
    data = small_data(np.random.default_rng(4), rows=8)
    network, step = small_step(data, [4, 2], rate=0.3)
    theta = network.initialise(0)
    wide, narrow = LInf(0.1).bind(data), LInf(0.02).bind(data)
    box: Box = Box.point(theta)
    for _ in range(4):
        box, _ = ENGINE.advance(box, step, wide)
    *_, states = trainings([step] * 4, theta, narrow.sample(np.random.default_rng(5), 40))
    assert box.contains(states)


def test_the_same_inputs_give_the_same_bits() -> None:
    _, graphs, threat, theta, _ = random_case(11, 3)
    boxes = []
    for _ in range(2):
        box: Box = Box.point(theta)
        for step in graphs:
            box, _ = RelationalEngine().advance(box, step, threat)
        boxes.append(box)
    np.testing.assert_array_equal(boxes[0].lower, boxes[1].lower)
    np.testing.assert_array_equal(boxes[0].upper, boxes[1].upper)


# Mutations: each wrong rule must be noticed by known-noise or rational checks -----------------------------------------


def _steep_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slope twice its admissible maximum (and no cap to hide it)."""
    original = AffineRules.gate

    def rule(self: AffineRules, node: Any, a: Any) -> Any:
        form = original(self, node, a)
        if id(node) in self.sloped and form.linear is not None:
            box = a.range
            unstable = form.own.reshape(form.shape) >= 0
            slope = np.where(unstable, 2.0 / np.maximum(box.high, -box.low), 0.0)
            form.centre = np.where(unstable, 0.5 + slope * a.centre, form.centre)
            form.linear = slope[..., None] * a.dense()
            form.slack = slope * a.slack
        return form

    monkeypatch.setattr(AffineRules, "gate", rule)


def _flipped_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign of the data's symbols flipped in one operand of a product."""
    original = affine.contract_linear

    def rule(spec: Any, matrix: Any, *rest: Any) -> Any:
        return original(spec, -matrix, *rest)

    monkeypatch.setattr(affine, "contract_linear", rule)


def _gate_without_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """`½·r` dropped where a gate meets its upstream: the slack of the other operand is forgotten in element-wise products."""
    original = AffineRules.contract

    def rule(self: AffineRules, node: Any, a: Any, b: Any) -> Any:
        form = original(self, node, a, b)
        if node.attribute == "ab,ab->ab":
            form.slack = np.maximum(form.slack - np.abs(a.centre) * b.slack, 0.0)
        return form

    monkeypatch.setattr(AffineRules, "contract", rule)


def _no_second_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Form, "distance", lambda self: np.zeros(self.shape))


def _no_relu_band(monkeypatch: pytest.MonkeyPatch) -> None:
    original = AffineRules.relu

    def rule(self: AffineRules, node: Any, a: Any) -> Any:
        form = original(self, node, a)
        form.slack = np.where((a.range.low < 0) & (a.range.high > 0), 0.0, form.slack)
        return form

    monkeypatch.setattr(AffineRules, "relu", rule)


def _folding_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    original = relational._Stepper._settle

    def settle(self: Any, outputs: Any, cap: float) -> RelationalSet:
        after = original(self, outputs, cap)
        keep = after.linear.copy()
        keep[:, after.data :] *= 0.5
        return RelationalSet(after.lower, after.upper, after.middle, keep, after.slack, after.noise, after.slope)

    monkeypatch.setattr(relational._Stepper, "_settle", settle)


@pytest.mark.parametrize(
    "mutate", [_steep_gate, _flipped_symbols, _gate_without_slack, _no_second_order, _no_relu_band, _folding_forgets]
)
def test_a_wrong_rule_is_caught(mutate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        deque((check_case(seed, ENGINE) for seed in range(260)), maxlen=0)


def _product_case(seed: int) -> tuple[Any, Form, Form, Any]:
    """Features with one symbol each, times an exact matrix: the product has no second order, only rounding."""
    rng = np.random.default_rng(seed)
    symbols = Symbols((unit_box(6),), 6)
    x, w = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    weight = rng.random((2, 3))
    box = Interval(x - 1.5 * weight, x + 1.5 * weight)
    noisy = Form(symbols, x, None, np.zeros((2, 3)), weight, np.arange(6).reshape(2, 3), weight, range=box)
    g = GraphBuilder()
    graph = g.finish({"out": g.contract("bi,oi->bo", g.input("a", (2, 3)), g.input("b", (2, 3)))})
    node = graph.nodes[-1]
    return node, noisy, Form.constant(symbols, Interval.point(w)), rng.choice([-1.0, -0.5, 0.25, 1.0], 6)


def _product_error(seed: int) -> Fraction:
    """By how much the exact product leaves `c + G·ε ± r` (negative: inside)."""
    node, a, b, epsilon = _product_case(seed)
    x, weight = a.centre.copy(), np.asarray(a.weight).copy()
    out = AffineRules(a.symbols).apply(node, a, b)
    linear = out.dense()
    assert linear is not None
    worst = Fraction(-1)
    for i in range(2):
        for o in range(2):
            exact = sum(
                (Fraction(x[i, k]) + Fraction(weight[i, k]) * Fraction(epsilon[3 * i + k])) * Fraction(b.centre[o, k])
                for k in range(3)
            )
            inside = Fraction(out.centre[i, o]) + sum(
                Fraction(linear[i, o, s]) * Fraction(epsilon[s]) for s in range(6)
            )
            worst = max(worst, abs(exact - inside) - Fraction(float(out.slack[i, o])))
    return worst


def test_products_cover_their_own_rounding() -> None:
    assert all(_product_error(seed) <= 0 for seed in range(40))


def test_forgotten_rounding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affine, "gamma", lambda n: 0.0)
    assert any(_product_error(seed) > 0 for seed in range(40))
