"""The relational engine: known noise explains trained models, at every step, for parameters and margins alike."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from conftest import small_data, small_step
from oracles import rational, train_rational

from mibp_cert.engines import concrete
from mibp_cert.engines.base import Box
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational import RelationalEngine, RelationalSet, RelationalSettings
from mibp_cert.errors import UserError
from mibp_cert.threats import LInf, ThreatSet

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


def random_case(seed: int, steps: int) -> tuple[Any, list[Any], ThreatSet, Any, np.random.Generator]:
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 4))
    last = classes if classes > 2 or rng.random() < 0.5 else 1
    sizes = [*rng.integers(1, 6, rng.integers(0, 3)).tolist(), last]
    rows = int(rng.integers(classes, 9))
    data = small_data(rng, rows=rows, features=int(rng.integers(1, 4)), classes=classes)
    threat = LInf(float(rng.choice([0.0, 1e-12, 1e-3, 0.05, 0.3]))).bind(data)
    rate = float(rng.choice([0.05, 0.3, 1.0]))
    plan = [np.sort(rng.choice(rows, rng.integers(1, rows + 1), replace=False)) for _ in range(steps)]
    graphs = [small_step(data, sizes, rate=rate, batches=[batch])[1] for batch in plan]
    network, _ = small_step(data, sizes)
    return network, graphs, threat, network.initialise(seed) * float(rng.choice([1e-3, 1.0, 4.0])), rng


def check_case(seed: int, engine: RelationalEngine, steps: int = 4, members: int = 8) -> int:
    """Every member's training: inside the box, and its residual after the known noise covered. Returns runs checked."""
    network, graphs, threat, theta, rng = random_case(seed, steps)
    points = [(theta, x, y, known_noise(threat, x)) for x, y in threat.sample(rng, members)]
    box, plain = Box.point(theta), Box.point(theta)
    for step in graphs:
        box, _ = engine.advance(box, step, threat)
        plain, _ = IntervalEngine().advance(plain, step, threat)
        assert isinstance(box, RelationalSet)
        assert box.within(plain), f"seed {seed}: looser than intervals"
        moved = []
        for t, x, y, epsilon in points:
            trained = concrete.train_step(step, t, x[step.rows], y[step.rows])
            assert box.contains(trained), f"seed {seed}: a trained model left its bounds"
            rest = np.abs(box.residual(trained, epsilon))
            assert (rest <= box.cover() * (1 + 1e-12) + 1e-300).all(), (
                f"seed {seed}: the known noise does not explain a model"
            )
            moved.append((trained, x, y, epsilon))
        points = moved
    return len(points)


@pytest.mark.parametrize("block", range(10))
def test_known_noise_explains_trained_models(block: int) -> None:
    runs = sum(check_case(seed, ENGINE) for seed in range(20 * block, 20 * block + 20))
    assert runs == 160
