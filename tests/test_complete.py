"""What is new is covered: a layer, loss, engine, solver or function that the containment tests do not know makes these fail.

(Threats: `test_threats_exchanged.py` holds the catalogue against `cases.THREATS`.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mibp_cert as mc
from breadth import NETWORKS, problem
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.cli import FLAGS, app
from mibp_cert.engines import ENGINES, PREDICTIONS, Box, EngineSettings, Inputs, MibpEngine, SolverSettings, Wanted
from mibp_cert.engines.base import Engine, ParameterSet
from mibp_cert.errors import UserError
from mibp_cert.fitted import FITTED, MODELS, REGRESSIONS, SCORE_LOSSES
from mibp_cert.graph.functions import SMOOTH
from mibp_cert.nets import LAYERS, LOSSES, loss_named, run_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.solvers import SOLVERS
from mibp_cert.store import second
from oracles import SMOOTH as EXACT


def test_every_layer_is_in_the_networks_that_are_trained_for_real() -> None:
    assert {type(layer) for network, _ in NETWORKS.values() for layer in network.layers} == set(LAYERS)


def test_every_loss_is_in_the_networks_that_are_trained_for_real() -> None:
    used = {type(loss_named(name, network.logits)) for network, name in NETWORKS.values()}
    assert used == {kind for pair in LOSSES.values() for kind in pair}


def test_every_smooth_function_has_a_second_and_a_third_definition() -> None:
    assert set(SMOOTH) == set(EXACT) == set(second._SMOOTH)


def test_the_command_line_and_doctor_name_every_engine_and_solver() -> None:
    told = CliRunner().invoke(app, ["doctor", "--no-check"]).output
    assert all(f"solver {name}" in told for name in SOLVERS)
    helped = CliRunner().invoke(app, ["certify", "--help"], env={"COLUMNS": "400"}).output
    assert all(name in helped for name in (*ENGINES, *PREDICTIONS, *MODELS))
    assert "engine" in FLAGS


def test_every_loss_of_a_fitted_model_has_a_name() -> None:
    assert sorted(MODELS.values()) == sorted(SCORE_LOSSES)
    assert set(REGRESSIONS) < set(SCORE_LOSSES)


# The contract of every engine in the registry ---------------------------------------------------------------------------

PROBLEMS = ["linear", "momentum", "relu, two logits", "tanh", "softplus, regression"]
CASES = [(name, of) for name, engine in ENGINES.items() for of in (PROBLEMS[:2] if engine.solves else PROBLEMS)]
"""Solvers take long on smooth functions: `test_breadth.py` and `test_mibp.py` are about them."""


def made(name: str, pool: WorkerPool) -> Engine:
    kind = ENGINES[name]
    return MibpEngine(SolverSettings(nodes_per_program=3), pool=pool) if kind.solves else kind.of(EngineSettings())


@pytest.mark.parametrize(("name", "of"), CASES)
def test_sets_of_every_engine_hold_all_models_and_what_they_compute(name: str, of: str, pool: WorkerPool) -> None:
    """Models trained on members lie in the set after every step; their outputs lie in the bounds; and a set that is stored and
    read back is the same set."""
    p, engine, rng = problem(of, steps=2, rows=3), made(name, pool), np.random.default_rng(0)
    threat = p.threat(0.1)
    members = [threat.reference, *threat.sample(rng, 20)]
    members += [threat.worst(rng.normal(size=threat.noise().symbols)) for _ in range(10)]
    x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
    state: ParameterSet = Box.point(p.begin)
    theta = np.broadcast_to(p.begin, (len(members), len(p.begin)))
    for step in p.steps():
        engine.check_graph(step.graph)
        state, _ = engine.advance(state, step, threat)
        theta = run_steps([step], theta, x, y)
        assert ((state.lower <= theta) & (theta <= state.upper)).all()
        again = engine.restore(state.arrays(), threat, step)
        assert all(np.array_equal(a, b) for a, b in zip(state.arrays().values(), again.arrays().values(), strict=True))
        state = again
    size, rows = p.network.layout.size, rng.normal(size=(5, p.network.features))
    final = state.first(size)
    for wanted in (None, Wanted(enough=lambda low: low > 0)):
        bounds, _ = engine.bound(p.network.forward_graph, p.network.layout, final, Inputs(rows), wanted)
        for one in theta[:, :size]:
            out = nominal_outputs(p.network, one, rows)
            assert ((bounds.low <= out) & (out <= bounds.high)).all()


@pytest.mark.parametrize("kind", ["noise", "noise and targets", "two rows"])
@pytest.mark.parametrize("name", [pytest.param(e, marks=pytest.mark.slow) if e == "mibp" else e for e in FITTED])
@pytest.mark.parametrize("model", MODELS)
def test_sets_of_every_fitted_model_hold_all_minimisers_and_what_they_compute(name: str, model: str, kind: str) -> None:
    rng, n = np.random.default_rng(0), 6 if name == "mibp" else 9
    x = rng.normal(size=(n, 2))
    y = x @ np.array([1.0, -1.0]) + 0.3 * rng.normal(size=n)
    numbers = MODELS[model] in REGRESSIONS
    data = mc.Dataset.regression(x, y) if numbers else mc.Dataset.of(x, (y > 0).astype(int))
    noise = mc.TargetNoise(0.05) if numbers else mc.LabelFlips(1)
    threats = {
        "noise": mc.LInf(0.05),
        "noise and targets": mc.LInf(0.01) & noise,
        "two rows": mc.Budget(mc.LInf(0.1), 2),
    }
    threat = threats[kind]
    asked, few = (data, threat, mc.Fitted(MODELS[model], C=0.3), name), SolverSettings(jobs=1, nodes_per_program=3)
    if name == "mibp" and noise in threat.inner and not SCORE_LOSSES[MODELS[model]].label_shift:
        with pytest.raises(UserError, match="knows no targets in doubt"):
            mc.certify_fit(*asked)
        return
    run = mc.certify_fit(*asked, solver=few, attacked=False)
    members, (step,) = run.request.members, run.request.plan.steps
    tried = [
        *members.sample(rng, 20),
        *(members.worst(rng.normal(size=members.noise().symbols)) for _ in range(10)),
    ]
    rows, found = rng.normal(size=(n // 3, 2)), [step.train(run.start, *member) for member in tried]
    ranges = run.ranges(rows).outputs
    for theta in found:
        out = nominal_outputs(run.network, theta, rows)
        assert run.bounds.contains(theta)
        assert ((ranges.low <= out) & (out <= ranges.high)).all()


@pytest.mark.parametrize("name", [*ENGINES, *FITTED])
def test_every_engine_says_what_it_rests_on(name: str) -> None:
    engine: Any = (ENGINES | FITTED)[name]
    assert engine.name == name
    assert engine.soundness in ("rounding-safe", "solver-tolerance", "float64")
    assert (PREDICTIONS | {kind.prediction: kind for kind in FITTED.values()})[engine.prediction] is engine
