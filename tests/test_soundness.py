"""Longer hunts for a model outside its bounds: `make soundness`."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import small_data, small_step
from mibp_cert.engines import concrete
from mibp_cert.engines.base import Box, Engine
from mibp_cert.engines.exact import SolverSettings
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.mibp import MibpEngine
from mibp_cert.solvers import WorkerPool
from mibp_cert.threats import LInf


def _hunt(engine: Engine, seed: int, steps: int, members: int) -> None:
    """A random network, data, threat and batch plan; every sampled member trained for real, checked after every step."""
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 4))
    last = classes if classes > 2 or rng.random() < 0.5 else 1
    sizes = [*rng.integers(1, 5, rng.integers(0, 3)).tolist(), last]
    rows = int(rng.integers(classes, 9))
    data = small_data(rng, rows=rows, features=int(rng.integers(1, 4)), classes=classes)
    threat = LInf(float(rng.choice([0.0, 1e-12, 1e-3, 0.05, 0.3]))).bind(data)
    rate = float(rng.choice([0.05, 0.5, 2.0]))
    plan = [np.sort(rng.choice(rows, rng.integers(1, rows + 1), replace=False)) for _ in range(steps)]
    graphs = [small_step(data, sizes, rate=rate, batches=[batch])[1] for batch in plan]
    network, _ = small_step(data, sizes)
    theta = network.initialise(seed) * float(rng.choice([1e-3, 1.0, 5.0]))
    points = [(theta, x, y) for x, y in threat.sample(rng, members)]
    box = Box.point(theta)
    for step in graphs:
        box, _ = engine.advance(box, step, threat)
        points = [(concrete.train_step(step, t, x[step.rows], y[step.rows]), x, y) for t, x, y in points]
        for trained, _, _ in points:
            assert box.contains(trained), f"seed {seed}: a trained model left its bounds"


@pytest.mark.soundness
@pytest.mark.parametrize("seed", range(300))
def test_interval_hunt(seed: int) -> None:
    _hunt(IntervalEngine(), seed, steps=5, members=40)


@pytest.mark.soundness
@pytest.mark.parametrize("seed", range(60))
def test_mibp_hunt(seed: int, pool: WorkerPool) -> None:
    settings = SolverSettings(seconds_per_step=10)
    _hunt(MibpEngine(settings, pool=pool), 1000 + seed, steps=3, members=60)
