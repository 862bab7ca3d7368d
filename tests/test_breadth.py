"""Every layer, loss and optimiser: equal to PyTorch, and inside the bounds of every engine."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import torch_oracle
from breadth import NAMES, Problem, problem
from conftest import small_data, trainings
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.data import two_moons
from mibp_cert.doors import certify_training
from mibp_cert.engines import Inputs, RelationalSettings, SolverSettings
from mibp_cert.engines.base import Box, Engine
from mibp_cert.engines.crown import CrownEngine
from mibp_cert.engines.exact.engine import MibpEngine, bound_graph, declare_training
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational import RelationalSet
from mibp_cert.engines.relational.engine import RelationalEngine
from mibp_cert.engines.rounding import Interval
from mibp_cert.errors import UnsupportedOperation
from mibp_cert.graph import GraphBuilder, evaluate
from mibp_cert.nets import SGD, Linear, Network, Tanh, Training, loss_named, run_steps, trace_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.threats import Budget, LInf
from oracles import digits, rational, search_step, train_rational

ENGINES = {"interval": IntervalEngine, "crown": CrownEngine, "relational": RelationalEngine}


def _bounds(engine: Engine, p: Problem, threat: Any) -> list[Box]:
    """The set after every step."""
    box, path = Box.point(p.begin), []
    for number, step in enumerate(p.steps(), start=1):
        box, _ = engine.advance(box, step, threat)
        box.check(step.layout, number)
        path.append(box)
    return path


_problem = cache(problem)


@cache
def _path(engine: str, name: str, seed: int, eps: float) -> tuple[Problem, Any, list[Box]]:
    """The usual problem of this name, its threat and its bounds; several tests look at the same."""
    p = _problem(name, seed)
    threat = p.threat(eps)
    return p, threat, _bounds(ENGINES[engine](), p, threat)


def _members(threat: Any, box: Box, rng: Any, count: int = 12) -> list[Any]:
    """Random members, and the datasets that push single parameters as far as the linear part of the bound says."""
    members = [threat.reference, *threat.sample(rng, count)]
    if isinstance(box, RelationalSet):
        widest = np.argsort(-box.radius)[:6]
        members += [threat.worst(sign * box.linear[i, : box.data]) for i in widest for sign in (1.0, -1.0)]
    return members


@pytest.mark.parametrize("name", NAMES)
def test_training_equals_pytorch(torch: Any, name: str) -> None:
    p = problem(name, steps=6)
    ours = run_steps(p.steps(), p.begin, p.data.x, p.data.one_hot)[: p.network.layout.size]
    theirs = torch_oracle.train(
        torch, p.network, p.loss, p.optimiser, p.rates, p.theta, p.data.x, p.data.one_hot, p.plan
    )
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("eps", [0.0, 1e-9, 0.02, 0.2])
def test_trained_models_lie_in_the_bounds(name: str, engine: str, eps: float) -> None:
    for seed in range(2):
        p, threat, path = _path(engine, name, seed, eps)
        members = _members(threat, path[-1], np.random.default_rng(seed))
        for states, box in zip(trainings(p.steps(), p.begin, members), path, strict=True):
            assert box.contains(states)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", list(ENGINES))
def test_models_trained_by_pytorch_lie_in_the_bounds(torch: Any, name: str, engine: str) -> None:
    for seed, eps in ((0, 0.0), (1, 0.05)):
        p = problem(name, seed)
        threat = p.threat(eps)
        box = _bounds(ENGINES[engine](), p, threat)[-1].first(p.network.layout.size)
        for x, y in _members(threat, box, np.random.default_rng(seed), 4):
            assert box.contains(
                torch_oracle.train(torch, p.network, p.loss, p.optimiser, p.rates, p.theta, x, y, p.plan)
            )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("eps", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("engine", ["crown", "relational"])
def test_other_bounds_lie_within_interval_bounds(name: str, engine: str, eps: float) -> None:
    for seed in range(2):
        loose, tight = (_path(made, name, seed, eps)[-1] for made in ("interval", engine))
        assert all(a.within(b) for a, b in zip(tight, loose, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", list(ENGINES))
def test_real_training_lies_in_the_bounds_digit_by_digit(name: str, engine: str) -> None:
    """Exact rational arithmetic, or 60 digits where a function is not rational; bounds as narrow as rounding allows."""
    p = problem(name, steps=2, rows=4)
    smooth = any(node.op == "smooth" for step in p.steps() for node in step.graph.nodes)
    number = digits if smooth else rational
    for eps in (0.0, 1e-12, 0.05):
        threat = p.threat(eps)
        path = _bounds(ENGINES[engine](), p, threat)
        for x, y in _members(threat, path[-1], np.random.default_rng(0), 2)[:6]:
            exact = train_rational(p.steps(), number(p.begin), number(x), number(y))
            for box, state in zip(path, exact, strict=True):
                low, high = number(box.lower), number(box.upper)
                assert all(a <= b <= c for a, b, c in zip(low, state, high, strict=True))


GRID = [(mu, product) for mu in (0.0, 0.5, 0.9) for product in (0.01, 0.1, 0.5, 1.0, 1.5, 2.5)]
"""Momentum, and learning rate times decay: (1 − √μ)² lies between them for every momentum."""


LONG = {(0.0, 2.5), (0.5, 1.0), (0.9, 0.1)}


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize(("momentum", "product"), GRID)
def test_momentum_and_decay_never_invert_a_bound(engine: str, momentum: float, product: float) -> None:
    check_momentum(engine, momentum, product, 200 if (momentum, product) in LONG else 40)


@pytest.mark.soundness
@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize(("momentum", "product"), [case for case in GRID if case not in LONG])
def test_momentum_and_decay_never_invert_a_bound_in_200_steps(engine: str, momentum: float, product: float) -> None:
    check_momentum(engine, momentum, product, 200)


def check_momentum(engine: str, momentum: float, product: float, steps: int) -> None:
    rng = np.random.default_rng(5)
    data, network = small_data(rng, rows=4), Network.mlp([2, 1])
    optimiser = SGD(0.1, momentum=momentum, weight_decay=product / 0.1)
    step = trace_steps(network, loss_named("cross-entropy", 1), optimiser, 2, [np.arange(4)])
    threat, made = LInf(0.02).bind(data), ENGINES[engine]()
    begin = np.zeros(step.layout.size)
    begin[: network.layout.size] = network.initialise(1)
    box: Box = Box.point(begin)
    paths = trainings([step] * steps, begin, [threat.reference, *threat.sample(rng, 12)])
    for number, states in enumerate(paths, start=1):
        box, _ = made.advance(box, step, threat)
        if not np.isfinite(box.radius).all():
            assert engine != "relational" or product > 1 + momentum  # only there do real models diverge as well
            break
        box.check(step.layout, number)
        assert box.contains(states)


def test_velocity_is_correlated_with_the_parameters() -> None:
    """Momentum with decay contracts; a set that forgets how velocity and parameter go together would grow."""
    data, network = small_data(np.random.default_rng(5), rows=4), Network.mlp([2, 1])
    step = trace_steps(network, loss_named("cross-entropy", 1), SGD(0.1, 0.9, 5.0), 2, [np.arange(4)])
    begin = np.concatenate([network.initialise(1), np.zeros(network.layout.size)])
    radius = {}
    for engine in (IntervalEngine(), RelationalEngine()):
        box = Box.point(begin)
        for _ in range(100):
            box, _ = engine.advance(box, step, LInf(0.02).bind(data))
        radius[engine.name] = float(box.radius.max())
    assert radius["relational"] < 0.05 < 10.0 < radius["interval"]


@pytest.mark.parametrize("name", ["momentum", "momentum and decay", "relu, two logits"])
def test_parameters_without_their_velocities_are_still_explained_by_the_noise(name: str) -> None:
    """What predictions are made from: the parameters' own rows of the set, for known noise and for outputs of trained models."""
    p = problem(name)
    size, rng, threat = p.network.layout.size, np.random.default_rng(0), p.threat(0.1)
    state = _bounds(RelationalEngine(), p, threat)[-1].first(size)
    assert isinstance(state, RelationalSet)
    noise, x = threat.noise(), rng.normal(size=(6, p.network.features))
    radius = noise.x_linear.max(axis=1).toarray().reshape(p.data.x.shape)
    outputs, _ = RelationalEngine().bound(p.network.forward_graph, p.network.layout, state, Inputs(x))
    for data, labels in _members(threat, state, rng, 30):
        theta = run_steps(p.steps(), p.begin, data, labels)[:size]
        epsilon = ((data - noise.x_centre) / radius).ravel()
        assert (np.abs(state.residual(theta, epsilon)) <= state.cover() + 1e-12).all()
        true = nominal_outputs(p.network, theta, x)
        assert ((outputs.low <= true) & (true <= outputs.high)).all()


EXACT = ["linear", "relu, two logits", "relu, three logits", "squared hinge, one logit", "tanh", "leaky", "convolution"]


@pytest.mark.parametrize("name", [*EXACT, "momentum and decay", "clipping"])
def test_exact_bounds_hold_every_model_and_lie_within_interval_bounds(name: str, pool: WorkerPool) -> None:
    p = problem(name, steps=2, rows=2)
    threat, rng = p.threat(0.1), np.random.default_rng(3)
    engine = MibpEngine(SolverSettings(seconds_per_step=1.0), pool=pool)
    exact, plain = _bounds(engine, p, threat), _bounds(IntervalEngine(), p, threat)
    assert all(a.within(b) for a, b in zip(exact, plain, strict=True))
    for states, box in zip(trainings(p.steps(), p.begin, threat.sample(rng, 60)), exact, strict=True):
        assert box.contains(states)


@pytest.mark.parametrize("name", ["linear", "relu, one logit", "squared error"])
def test_exact_bounds_of_one_step_are_reached(name: str, pool: WorkerPool) -> None:
    """From a box of parameters: outside of all that sampling and local search find, and within the gap of it."""
    p = problem(name, steps=1, rows=2)
    (step,), threat = p.steps(), p.threat(0.1)
    box = Box(p.begin - 0.05, p.begin + 0.05)
    after, report = MibpEngine(SolverSettings(gap=0.02, seconds_per_step=60.0), pool=pool).advance(box, step, threat)
    low, high = search_step(step, box, threat)
    assert (after.lower <= low).all()
    assert (high <= after.upper).all()
    assert report.fallbacks == 0
    assert report.gap.max() <= 0.02


def test_finer_pieces_give_tighter_exact_bounds(pool: WorkerPool) -> None:
    """The single line is the coarse start; where it is too coarse for the gap asked for, pieces take over."""
    p = problem("linear", steps=1, rows=2)
    (step,), threat = p.steps(), p.threat(1.5)
    box = Box(p.begin - 1.0, p.begin + 1.0)
    widths = []
    for ladder in ([(10.0, False)], [(0.02, False)], [(0.02, True)]):
        settings = SolverSettings(gap=1e-3, seconds_per_step=20.0)
        found, _ = bound_graph(step.graph, lambda e: declare_training(e, box, step, threat), ladder, settings, pool)
        widths.append(found.upper - found.lower)
    assert (widths[1] <= widths[0] + 1e-9).all()
    assert widths[1].sum() < 0.97 * widths[0].sum()
    assert widths[2].sum() < widths[1].sum()  # true products, beside the pieces


def test_a_wide_softmax_stays_between_zero_and_one() -> None:
    """Logit differences far beyond what an exponential can hold; no engine may answer NaN."""
    data = small_data(np.random.default_rng(0), rows=5, classes=3)
    network = Network.mlp([2, 3])
    step = trace_steps(network, loss_named("cross-entropy", 3), SGD(3.0), 3, [np.arange(5)])
    threat = LInf(0.3).bind(data)
    for name, made in ENGINES.items():
        box: Box = Box.point(6.0 * network.initialise(0))
        members = threat.sample(np.random.default_rng(1), 10)
        for number, models in enumerate(trainings([step] * 12, box.lower, members), start=1):
            box, _ = made().advance(box, step, threat)
            box.check(step.layout, number)
            # One step moves a parameter by at most the rate times the largest input, whatever the shares are.
            assert box.radius.max() <= number * 3.0 * 4.0, name
            assert box.contains(models)


def test_row_budgets_of_smooth_losses_keep_what_belongs_to_a_row() -> None:
    """At most one bad row, cross-entropy: the joint set is clearly tighter than one without a budget, and holds every model."""
    data = small_data(np.random.default_rng(3), rows=20)
    network = Network.mlp([2, 3, 1])
    step = trace_steps(network, loss_named("cross-entropy", 1), SGD(0.5), 2, [np.arange(20)])
    radius = {}
    for name, threat in (("one row", Budget(LInf(0.3), rows=1).bind(data)), ("all rows", LInf(0.3).bind(data))):
        engine, box = RelationalEngine(RelationalSettings(cases=0)), Box.point(network.initialise(0))
        rng = np.random.default_rng(0)
        members = [*threat.sample(rng, 30), *(threat.worst(rng.normal(size=threat.noise().symbols)) for _ in range(30))]
        for models in trainings([step] * 5, box.lower, members):
            box, _ = engine.advance(box, step, threat)
            assert box.contains(models)
        radius[name] = float(box.radius.mean())
    assert 4 * radius["one row"] < radius["all rows"]


def test_what_an_engine_cannot_take_is_named_before_training_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IntervalEngine, "operations", IntervalEngine.operations - {"smooth"})
    monkeypatch.setattr(IntervalEngine, "advance", lambda *args: pytest.fail("training started"))
    network = Network((Linear(2, 3), Tanh(), Linear(3, 2)), 2)
    with pytest.raises(
        UnsupportedOperation, match=r"'interval' has no rule for .*'smooth' that layer 1 \(Tanh\)"
    ) as caught:
        certify_training(network, two_moons(0), LInf(0.01), Training(epochs=1), "interval")
    assert "\n" not in str(caught.value)
    p = problem("tanh")
    CrownEngine().check_graph(p.steps()[0].graph)
    with pytest.raises(UnsupportedOperation) as caught:
        IntervalEngine().check_graph(p.steps()[0].graph)
    assert str(caught.value).count("has no rule") == 3  # forward, backward, loss


def test_substitution_stops_at_what_it_cannot_walk_through() -> None:
    """By row through the labels and a function of the data through a sum over them: no single operand is both."""
    g = GraphBuilder()
    x, y = g.input("x", (3, 2)), g.input("y", (3, 2))
    mixed = g.contract("bi,i->bi", y, g.sum(x, (-2,)))
    graph = g.finish({"product": mixed, "sum": g.add(mixed, x), "relu": g.relu(g.multiply(mixed, x))})
    rng = np.random.default_rng(0)
    centre = {name: rng.normal(size=(3, 2)) for name in ("x", "y")}
    found = CrownEngine().enclose(graph, {name: Interval(v - 0.3, v + 0.3) for name, v in centre.items()})
    for _ in range(50):
        values = evaluate(graph, {name: v + rng.uniform(-0.3, 0.3, v.shape) for name, v in centre.items()})
        assert all((found[n].low <= v).all() and (v <= found[n].high).all() for n, v in values.items())
