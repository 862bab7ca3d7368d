"""Every layer, loss and optimiser: equal to PyTorch, and inside the bounds of every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import torch_oracle
from breadth import NAMES, Problem, problem
from mibp_cert.engines import concrete
from mibp_cert.engines.base import Box, Engine
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational import RelationalEngine, RelationalSet
from mibp_cert.threats import LInf
from oracles import digits, evaluate_rational, train_rational, rational

ENGINES = {"interval": IntervalEngine, "relational": RelationalEngine}


def _bounds(engine: Engine, p: Problem, threat: Any) -> list[Box]:
    """The set after every step."""
    box, path = Box.point(p.begin), []
    for number, step in enumerate(p.steps(), start=1):
        box, _ = engine.advance(box, step, threat)
        box.check(step.layout, number)
        path.append(box)
    return path


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
    ours = concrete.train(p.steps(), p.begin, p.data.x, p.data.one_hot)[: p.network.layout.size]
    theirs = torch_oracle.train(
        torch, p.network, p.loss, p.optimiser, p.rates, p.theta, p.data.x, p.data.one_hot, p.plan
    )
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("eps", [0.0, 1e-9, 0.02, 0.2])
def test_trained_models_lie_in_the_bounds(name: str, engine: str, eps: float) -> None:
    for seed in range(3):
        p = problem(name, seed)
        threat = p.threat(eps)
        path = _bounds(ENGINES[engine](), p, threat)
        for x, y in _members(threat, path[-1], np.random.default_rng(seed)):
            state = p.begin
            for step, box in zip(p.steps(), path, strict=True):
                state = concrete.train_step(step, state, x[step.rows], y[step.rows])
                assert box.contains(state)


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
@pytest.mark.parametrize("eps", [0.0, 0.01, 0.2])
def test_relational_bounds_lie_within_interval_bounds(name: str, eps: float) -> None:
    for seed in range(3):
        p = problem(name, seed)
        loose, tight = (_bounds(engine(), p, p.threat(eps)) for engine in (IntervalEngine, RelationalEngine))
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
