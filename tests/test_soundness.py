"""Longer hunts for a model outside its bounds: `make soundness`."""

from __future__ import annotations

import numpy as np
import pytest

from breadth import NAMES, problem
from conftest import random_case, trainings
from mibp_cert.engines import SolverSettings
from mibp_cert.engines.base import Box, Engine
from mibp_cert.engines.crown import CrownEngine
from mibp_cert.engines.exact.engine import MibpEngine
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational.engine import RelationalEngine
from mibp_cert.parallel import WorkerPool


def _hunt(engine: Engine, seed: int, steps: int, members: int) -> None:
    """A random network, data, threat and batch plan; every sampled member trained for real, checked after every step."""
    _, graphs, threat, theta, rng = random_case(seed, steps)
    box, paths = Box.point(theta), trainings(graphs, theta, threat.sample(rng, members))
    for step, states in zip(graphs, paths, strict=True):
        box, _ = engine.advance(box, step, threat)
        assert box.contains(states), f"seed {seed}: a trained model left its bounds"


@pytest.mark.soundness
@pytest.mark.parametrize("seed", range(300))
def test_interval_hunt(seed: int) -> None:
    _hunt(IntervalEngine(), seed, steps=5, members=40)


@pytest.mark.soundness
@pytest.mark.parametrize("seed", range(60))
def test_mibp_hunt(seed: int, pool: WorkerPool) -> None:
    settings = SolverSettings(seconds_per_step=10)
    _hunt(MibpEngine(settings, pool=pool), 1000 + seed, steps=3, members=60)


@pytest.mark.soundness
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("made", [IntervalEngine, CrownEngine, RelationalEngine])
def test_breadth_hunt(name: str, made: type[Engine]) -> None:
    """Every layer, loss and optimiser: many seeds, sizes of noise and of the initial parameters, eight steps."""
    for seed in range(40):
        rng = np.random.default_rng([seed, 7])
        p = problem(name, seed, steps=8)
        threat = p.threat(float(rng.choice([0.0, 1e-12, 1e-4, 0.03, 0.3, 1.0])))
        begin = p.begin * float(rng.choice([1e-3, 1.0, 5.0]))
        members = threat.sample(rng, 12)
        box, steps = Box.point(begin), p.steps()
        for step, states in zip(steps, trainings(steps, begin, members), strict=True):
            box, _ = made().advance(box, step, threat)
            if not (np.isfinite(box.lower).all() and np.isfinite(box.upper).all()):
                break
            assert box.contains(states), f"{name}, seed {seed}"


@pytest.mark.soundness
@pytest.mark.parametrize("name", NAMES)
def test_mibp_breadth_hunt(name: str, pool: WorkerPool) -> None:
    """Every layer, loss and optimiser by the exact step, within a time budget."""
    for seed in range(2):
        p = problem(name, seed, steps=2, rows=3)
        threat, rng = p.threat(0.1), np.random.default_rng(seed)
        engine = MibpEngine(SolverSettings(seconds_per_step=6.0), pool=pool)
        box, plain, steps = Box.point(p.begin), Box.point(p.begin), p.steps()
        for step, states in zip(steps, trainings(steps, p.begin, threat.sample(rng, 60)), strict=True):
            box, _ = engine.advance(box, step, threat)
            plain, _ = IntervalEngine().advance(plain, step, threat)
            assert box.within(plain)
            assert box.contains(states), f"{name}, seed {seed}"
