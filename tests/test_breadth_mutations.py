"""Wrong rules are noticed: each mutant lets a trained model out of its bounds in the very check that the other tests make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from breadth import problem
from conftest import small_data, trainings
from mibp_cert.data import Dataset
from mibp_cert.engines import SolverSettings, crown
from mibp_cert.engines import relax as smooth
from mibp_cert.engines.base import Box, Engine
from mibp_cert.engines.crown import CrownEngine
from mibp_cert.engines.exact.engine import bound_graph, declare_training
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational import budget
from mibp_cert.engines.relational.engine import RelationalEngine, data_forms
from mibp_cert.engines.relational.forms import Symbols
from mibp_cert.engines.relational.rules import OPERATIONS, AffineRules
from mibp_cert.engines.rounding import Interval
from mibp_cert.graph import GraphBuilder, evaluate, interpret
from mibp_cert.graph.functions import SMOOTH
from mibp_cert.nets import SGD, GraphStep, Layout, Network, loss_named, run_steps, trace_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.threats import Budget, LabelFlips, LInf
from oracles import search_step


def _escapes(engine: Engine, name: str, eps: float) -> bool:
    """Does a trained model leave the bounds in any of a few problems?"""
    for seed in range(6):
        p = problem(name, seed)
        threat, box = p.threat(eps), Box.point(p.begin)
        rng = np.random.default_rng(seed)
        members = [threat.reference, *threat.sample(rng, 40)]
        steps = p.steps()
        for step, states in zip(steps, trainings(steps, p.begin, members), strict=True):
            box, _ = engine.advance(box, step, threat)
            if not box.contains(states):
                return True
    return False


def _chord(name: str, low: Any, high: Any, slope: Any, pieces: int = 1) -> Any:
    """Mutant: the line through the ends, without the band that the function bends by."""
    height = SMOOTH[name].value(low) - slope * low
    return height - 1e-12, height + 1e-12


def _narrow(original: Callable[..., Interval]) -> Callable[..., Interval]:
    def range_of(name: str, a: Interval) -> Interval:
        box = original(name, a)
        middle = 0.5 * (box.low + box.high)
        return Interval(0.9 * box.low + 0.1 * middle, 0.9 * box.high + 0.1 * middle)

    return range_of


@pytest.mark.parametrize(
    ("name", "engine"),
    [(name, RelationalEngine) for name in ("tanh", "sigmoid")] + [("tanh", CrownEngine)],
)
def test_a_band_without_curvature_is_noticed(name: str, engine: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _escapes(engine(), name, 0.3)
    monkeypatch.setattr(smooth, "bands", _chord)
    assert _escapes(engine(), name, 0.3)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "relu, three logits", "linear"])
def test_a_range_that_misses_the_ends_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smooth, "range_of", _narrow(smooth.range_of))
    assert _escapes(IntervalEngine(), name, 0.3)


def test_missing_rounding_margins_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise, bounds are nothing but rounding: one ulp less, and a run that sums in another order is outside."""
    monkeypatch.setattr(smooth, "margin", lambda function, x, value: 0.0 * value)
    x = np.random.default_rng(0).normal(size=20000) * 5.0
    other = 0.5 * (1.0 + np.tanh(0.5 * x))  # the same sigmoid by another formula
    low, high = smooth.at("sigmoid", x)
    assert not ((low <= other) & (other <= high)).all()
    monkeypatch.undo()
    low, high = smooth.at("sigmoid", x)
    assert ((low <= other + 1e-16) & (other - 1e-16 <= high)).all()


def test_a_substituted_relu_without_its_lift_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = crown._Substitution._relu

    def lower(self: Any, *args: Any) -> Any:
        kept = self._add
        self._add = lambda *args: None
        try:
            return original(self, *args)
        finally:
            self._add = kept

    name = "two convolutions"
    assert not _escapes(CrownEngine(), name, 0.3)
    monkeypatch.setattr(crown._Substitution, "_relu", lower)
    assert _escapes(CrownEngine(), name, 0.3)


def test_a_substitution_that_takes_parameters_for_known_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = crown._Substitution._contract

    def certain(self: Any, node: Any, *args: Any) -> Any:
        kept = self.values
        self.values = [
            Interval.point(0.5 * (v.low + v.high)) if i in node.operands and i not in self.rows.inside else v
            for i, v in enumerate(kept)
        ]
        try:
            return original(self, node, *args)
        finally:
            self.values = kept

    name = "relu, two logits"
    monkeypatch.setattr(crown._Substitution, "_contract", certain)
    assert _escapes(CrownEngine(), name, 0.3)


def _budget_escapes(engine: Engine, threat: Any) -> bool:
    for seed in range(4):
        data = small_data(np.random.default_rng(seed), rows=6)
        network = Network.mlp([2, 3, 1])
        step = trace_steps(network, loss_named("cross-entropy", 1), SGD(0.5), 2, [np.arange(6)])
        bound, theta = threat.bind(data), network.initialise(seed)
        rng = np.random.default_rng(seed)
        members = [bound.worst(rng.normal(size=bound.noise().symbols)) for _ in range(80)]
        box: Box = Box.point(theta)
        for states in trainings([step] * 2, theta, members):
            box, _ = engine.advance(box, step, bound)
            if not box.contains(states):
                return True
    return False


@pytest.mark.parametrize("threat", [Budget(LInf(0.5), rows=2), LabelFlips(2)])
def test_a_budget_that_is_one_short_is_noticed(threat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _budget_escapes(CrownEngine(), threat)
    original = crown.largest_sum
    monkeypatch.setattr(crown, "largest_sum", lambda values, most: original(values, most - 1))
    assert _budget_escapes(CrownEngine(), threat)


def _form_escapes(name: str, threat: Any, rows: int = 4) -> bool:
    """A smooth function of the data alone: for known noise, what the form leaves open must cover the true value."""
    function, rng = SMOOTH[name], np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)) + (6.0 if function.positive else 0.0)
    bound = threat.bind(Dataset.of(x, np.arange(rows) % 2, (0, 1)))
    noise = bound.noise()
    symbols = Symbols(noise.blocks, noise.symbols)
    g = GraphBuilder()
    graph = g.finish({"out": g.smooth(g.input("x", x.shape), name)})
    step = GraphStep(graph, np.arange(rows), Layout((), ()))
    rules = AffineRules(symbols)
    form = rules.apply(graph.nodes[-1], data_forms(symbols, noise, step, bound)["x"])
    linear = form.dense()
    assert linear is not None
    for _ in range(60):
        epsilon = np.zeros(noise.symbols)
        for block in noise.blocks:
            epsilon[block.symbols] = block.sample(rng, extreme=bool(rng.random() < 0.5))
        data = noise.x_centre + (noise.x_linear @ epsilon).reshape(x.shape)
        left = np.abs(function.value(data) - form.centre - linear[..., : noise.symbols] @ epsilon)
        room = form.slack.copy()
        if form.rows is not None:
            dirty = np.flatnonzero(np.abs(data - x).max(axis=1) > 0)
            members = np.concatenate([block.members for block in symbols.budgets])
            room = room + form.rows[..., np.isin(members, dirty)].sum(axis=-1)
        if (left > room + 1e-12).any():
            return True
    return False


GATHERED: dict[str, Callable[[GraphBuilder, int], int]] = {
    "data": lambda g, x: x,
    "smooth": lambda g, x: g.smooth(x, "tanh"),
    "relu": lambda g, x: g.relu(x),
    "gate": lambda g, x: g.gate(x, closed=False),
    "product": lambda g, x: g.multiply(x, g.smooth(x, "sigmoid")),
}


@pytest.mark.parametrize("kind", GATHERED)
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("threat", [LInf(0.6), Budget(LInf(0.3), rows=1), Budget(LInf(0.6), rows=2)])
def test_gathered_forms_cover_known_noise(threat: Any, axis: int, kind: str) -> None:
    """Picked values, zeros outside of them, and sums of them: noise, gates and what belongs to dirty rows are picked as well."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 3))
    bound = threat.bind(Dataset.of(x, np.arange(4) % 2, (0, 1)))
    noise = bound.noise()
    g = GraphBuilder()
    before = GATHERED[kind](g, g.input("x", x.shape))
    picked = g.gather(before, [[2, -1, 0], [1, 2, -1]], axis)
    graph = g.finish({"before": before, "picked": picked, "total": g.sum(picked, (axis,))})
    symbols = Symbols(noise.blocks, noise.symbols)
    inputs = data_forms(symbols, noise, GraphStep(graph, np.arange(4), Layout((), ())), bound)
    rules = AffineRules(symbols)
    values = interpret(graph, dict.fromkeys(OPERATIONS, rules.apply), inputs, engine="relational")
    forms = {name: values[number].tighten() for name, number in graph.outputs.items()}
    members = [row for block in symbols.budgets for row in block.members.tolist()]
    for i in range(60):
        epsilon = np.zeros(noise.symbols)
        for block in noise.blocks:
            epsilon[block.symbols] = block.sample(rng, extreme=i % 2 == 0)
        data = noise.x_centre + (noise.x_linear @ epsilon).reshape(x.shape)
        dirty = np.isin(members, np.flatnonzero(np.abs(data - x).max(axis=1) > 0))
        for name, true in evaluate(graph, {"x": data}).items():
            form, linear = forms[name], forms[name].dense()
            assert ((form.range.low - 1e-12 <= true) & (true <= form.range.high + 1e-12)).all()
            left, room = true - form.centre, form.slack.copy()
            if linear is not None:
                known = linear[..., : noise.symbols]
                left = left - known @ epsilon[: known.shape[-1]]
                room = room + np.abs(linear[..., noise.symbols :]).sum(axis=-1)
            if form.rows is not None:
                room = room + form.rows[..., dirty].sum(axis=-1)
            assert (np.abs(left) <= room + 1e-12).all(), name


@pytest.mark.parametrize("name", sorted(SMOOTH))
@pytest.mark.parametrize("threat", [LInf(1.0), LInf(1e-3), Budget(LInf(0.2), rows=1), Budget(LInf(1.0), rows=2)])
def test_forms_of_smooth_functions_cover_known_noise(name: str, threat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _form_escapes(name, threat)
    # The same check sees a band without curvature, and a tangent whose second order is forgotten.
    monkeypatch.setattr(smooth, "bands", _chord)
    original = budget.tangent

    def forgetful(*args: Any) -> Any:
        found = original(*args)
        return replace(found, taken=np.ones_like(found.taken), slack=0.0 * found.slack, rows=0.0 * found.rows)

    monkeypatch.setattr(budget, "tangent", forgetful)
    assert _form_escapes(name, threat)


def test_an_encoded_line_without_its_band_is_noticed(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem("linear", steps=1, rows=2)
    (step,), threat = p.steps(), p.threat(1.5)
    box = Box(p.begin - 1.0, p.begin + 1.0)
    low, high = search_step(step, box, threat)

    def outside() -> bool:
        settings = SolverSettings(seconds_per_step=20.0)
        found, _ = bound_graph(
            step.graph, lambda e: declare_training(e, box, step, threat), [(10.0, True)], settings, pool
        )
        return bool((found.lower > low + 1e-9).any() or (found.upper < high - 1e-9).any())

    assert not outside()
    monkeypatch.setattr(smooth, "bands", _chord)
    # The true values that the search for inner points finds would withdraw such bounds; here they are switched off.
    monkeypatch.setattr("mibp_cert.engines.exact.engine.Brackets.withdraw", lambda *args, **kwargs: 0)
    assert outside()


@pytest.mark.parametrize(
    "optimiser",
    [SGD(0.3, 0.9), SGD(0.3, 0.0, 0.7), SGD(0.3, 0.5, 4.0), SGD(0.2, 0.6, 0.1, clip=0.03), SGD(0.2, clip=0.01)],
)
def test_updates_equal_their_definition(optimiser: SGD) -> None:
    """`v' = μv + clip(g) + κθ`, `θ' = θ − λv'`, with the gradient taken from a plain step of rate 1."""
    data, network = small_data(np.random.default_rng(1)), Network.mlp([2, 3, 2])
    loss, rows = loss_named("cross-entropy", 2), [np.arange(len(data))]
    plain, step = (trace_steps(network, loss, o, 2, rows) for o in (SGD(1.0), optimiser))
    theta = network.initialise(0)
    velocity = np.zeros_like(theta)
    state = np.concatenate([theta, velocity]) if optimiser.momentum else theta
    for _ in range(5):
        gradient = theta - run_steps([plain], theta, data.x, data.one_hot)
        limit = np.inf if optimiser.clip is None else optimiser.clip
        velocity = optimiser.momentum * velocity + np.clip(gradient, -limit, limit) + optimiser.weight_decay * theta
        theta = theta - optimiser.learning_rate * velocity
        state = run_steps([step], state, data.x, data.one_hot)
        np.testing.assert_allclose(state[: len(theta)], theta, rtol=0, atol=1e-13)
