"""Regression: real targets that may be wrong, squared error, and ranges of outputs that hold for every model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import trainings
from mibp_cert import Budget, Dataset, LabelFlips, LInf, Network, Split, TargetNoise, Training, certify_training
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.data import diabetes
from mibp_cert.engines import RelationalSettings, SolverSettings
from mibp_cert.engines.base import Box, Engine
from mibp_cert.engines.crown import CrownEngine
from mibp_cert.engines.exact.engine import MibpEngine
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational.engine import RelationalEngine
from mibp_cert.errors import UserError
from mibp_cert.nets import SGD, loss_named, trace_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.solvers import ProgramBuilder
from mibp_cert.threats import Rules
from oracles import rational, train_rational

THREATS: dict[str, Any] = {
    "targets": TargetNoise(0.3),
    "targets and features": TargetNoise(0.2) & LInf(0.05),
    "one bad target": Budget(TargetNoise(1.0), rows=1),
    "two bad rows": Budget(TargetNoise(1.0) & LInf(0.3), rows=2),
    "small and one large": TargetNoise(0.1) & Budget(TargetNoise(1.0), rows=1),
    "large positive targets": TargetNoise(0.5).where([0, 2]),
}


def _data(seed: int = 0, rows: int = 6) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    return Dataset.regression(x, x @ [1.0, -0.7] + 0.1 * rng.normal(size=rows))


@pytest.mark.parametrize("name", THREATS)
def test_views_of_target_threats_agree(name: str) -> None:
    threat, rng = THREATS[name].bind(_data()), np.random.default_rng(1)
    noise, hull = threat.noise(), threat.hull()
    members = [threat.reference, *threat.sample(rng, 60)]
    for _ in range(30):
        g = rng.normal(size=noise.symbols)
        worst = threat.worst(g)
        members.append(worst)
        low = sum(float(block.support(g[block.symbols])[0]) for block in noise.blocks)
        epsilon = np.zeros(noise.symbols)
        for block in noise.blocks:
            epsilon[block.symbols] = block.minimiser(g[block.symbols])
        assert float(g @ epsilon) == pytest.approx(low)
        y = noise.y_centre.ravel() + noise.y_linear @ epsilon
        np.testing.assert_allclose(worst[1].ravel(), y, atol=1e-12)
    for x, y in members:
        assert threat.contains(x, y)
        assert ((hull.y_low <= y) & (y <= hull.y_high)).all()
    assert not threat.contains(threat.clean.x, threat.clean.one_hot + 5.0)
    # The hull is attained.
    ys = np.stack([m[1] for m in members])
    width = hull.y_high - hull.y_low
    assert (ys.max(axis=0) - ys.min(axis=0) >= 0.5 * width).all()
    builder = ProgramBuilder()
    _, declared = threat.constraints(builder, np.arange(6))
    assert len(declared.centre) == 6


ENGINES: dict[str, Engine] = {
    "interval": IntervalEngine(),
    "crown": CrownEngine(),
    "relational": RelationalEngine(),
    "relational, joint": RelationalEngine(RelationalSettings(cases=0)),
}


CASES = [(name, engine, sizes) for name in THREATS for engine in ENGINES for sizes in ([2, 1], [2, 3, 1])]
CASES += [(name, "mibp", [2, 1]) for name in THREATS]


@pytest.mark.parametrize(("name", "engine", "sizes"), CASES)
def test_regressions_on_members_stay_inside(name: str, engine: str, sizes: list[int], pool: WorkerPool) -> None:
    data = _data(len(name))
    threat, network = THREATS[name].bind(data), Network.mlp(sizes)
    steps = [
        trace_steps(network, loss_named("squared-error", 1), SGD(0.15, momentum=m), 1, [np.arange(6)])
        for m in (0.0, 0.0, 0.0)
    ]
    made = MibpEngine(SolverSettings(seconds_per_step=10.0), pool=pool) if engine == "mibp" else ENGINES[engine]
    box: Box = Box.point(network.initialise(1))
    boxes = [box := made.advance(box, step, threat)[0] for step in steps]
    rng = np.random.default_rng(2)
    members = [threat.reference, *threat.sample(rng, 30)]
    members += [threat.worst(rng.normal(size=threat.noise().symbols)) for _ in range(20)]
    for at, states in zip(boxes, trainings(steps, network.initialise(1), members), strict=True):
        assert at.contains(states)
    exact = train_rational(steps, rational(network.initialise(1)), *(rational(v) for v in members[-1]))
    for at, state in zip(boxes, exact, strict=True):
        assert all(rational(at.lower) <= state)
        assert all(state <= rational(at.upper))


@pytest.mark.usefixtures("one_pool")
@pytest.mark.parametrize("method", ["interval", "crown", "relational", "exact"])
def test_every_model_predicts_within_the_certified_ranges(method: str) -> None:
    parts = [_data(seed, rows) for seed, rows in ((0, 12), (1, 5), (2, 4))]
    split, threat = Split("line", *parts), TargetNoise(0.1) & LInf(0.02)
    training = Training(epochs=8, learning_rate=0.2, loss="squared-error")
    settings = SolverSettings(seconds_per_step=5.0)
    run = certify_training(Network.mlp([2, 3, 1]), split, threat, training, prediction=method, solver=settings)
    ranges = run.ranges(split.test.x, method).outputs
    assert run.attack is not None
    for theta in run.attack.theta:
        out = nominal_outputs(run.network, theta, split.test.x)
        assert ((ranges.low <= out) & (out <= ranges.high)).all()
    wide = run.ranges(split.test.x, method, threat=LInf(0.1)).outputs
    assert (wide.low <= ranges.low).all()
    assert (ranges.high <= wide.high).all()
    e = {name: value for name, value in run.errors.items() if value is not None}
    assert e["nominal_error"] <= e["attacked_error"] <= e["certified_error"]
    assert 0 < e["attacked_range_mean"] <= e["range_mean"]
    assert run.to_json()["test"]["n"] == 4
    found = run.ranges(split.test.x, method)
    assert found.within(-100.0, 100.0).all()
    assert not found.within(0.0, 0.0).any()


def test_relational_ranges_are_far_tighter_than_intervals_on_a_linear_model() -> None:
    data = diabetes(0)
    training = Training(epochs=5, learning_rate=0.05, loss="squared-error")
    runs = {
        engine: certify_training(Network.mlp([10, 1]), data, LInf(0.01), training, engine, attacked=False)
        for engine in ("interval", "relational")
    }
    widths = {name: run.errors["range_mean"] or 0.0 for name, run in runs.items()}
    assert 0 < 50 * widths["relational"] < widths["interval"]


def test_rules_can_speak_of_targets() -> None:
    """Targets may be wrong by 1, but their sum is known."""
    data = _data()
    total = float(data.one_hot.sum())

    def rules(m: Any) -> None:
        m.require(sum(m.target(i) for i in m.rows) <= total)
        m.require(sum(m.target(i) for i in m.rows) >= total)

    threat = Rules(TargetNoise(1.0), rules).bind(data)
    for _, y in threat.sample(np.random.default_rng(0), 10):
        assert y.sum() == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TargetNoise(-1.0), "eps must be"),
        (lambda: TargetNoise(0.1).bind(Dataset.of([[0.0], [1.0]], [0, 1])), "for regression"),
        (lambda: LabelFlips(1).bind(_data()), "for classes"),
        (lambda: Budget(TargetNoise(1.0), cells=1).bind(_data()), "cell-wise numeric"),
        (lambda: Dataset.regression([[0.0], [1.0]], [1.0]), "2 rows but 1 targets"),
        (lambda: Dataset.regression([[0.0], [1.0]], [1.0, np.nan]), "targets hold 1 value"),
        (lambda: certify_training(Network.mlp([2, 1]), _data()), "squared-error"),
        (lambda: certify_training(Network.mlp([2, 2]), _data(), training=Training(loss="squared-error")), "one output"),
        (
            lambda: certify_training(
                Network.mlp([2, 1]), _data(), training=Training(loss="squared-error"), select="best-validation"
            ),
            "data with a validation part",
        ),
    ],
)
def test_bad_input_is_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
