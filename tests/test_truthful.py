"""No answer about a model that the bounds do not hold, and no unit but the user's."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from typer.testing import CliRunner

import mibp_cert as mc
from mibp_cert.certify.predict import nominal_classes, nominal_outputs
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.cli import app
from mibp_cert.engines import IntervalEngine
from mibp_cert.engines.base import Box
from mibp_cert.engines.exact.engine import MibpEngine
from mibp_cert.errors import SoundnessError, UserError
from mibp_cert.graph import functions
from mibp_cert.nets import SGD, loss_named, run_steps, trace_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.solvers import SOLVERS, Limits, Objective, Program, solver_named
from mibp_cert.store.verify import AuditSettings

# Divergence -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def diverged() -> CertifiedRun:
    """Bounds that diverge long before the training asked for is over."""
    training = mc.Training(epochs=20, batch_size=2, learning_rate=0.1)
    network, data = mc.Network.mlp([2, 20, 2]), mc.two_moons(0)
    return mc.certify_training(network, data, mc.LInf(0.01), training, "interval", attacked=False)


def test_nothing_is_said_of_parameters_whose_bounds_diverged(diverged: CertifiedRun) -> None:
    assert diverged.diverged is not None
    assert diverged.steps < diverged.diverged < 1000
    # The clean model of the training asked for is outside of the last bounds there are.
    name, i = diverged.network.layout.names[0], (0, 0)
    with pytest.raises(UserError, match=rf"diverged at step {diverged.diverged}"):
        mc.holds(diverged, lambda m: m.parameter(name, *i) <= m.clean(name, *i) + 1.0)


def test_bounds_and_models_before_a_divergence_are_not_handed_out_as_the_trained_ones(
    diverged: CertifiedRun, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="diverged at step"):
        diverged.save_bounds(tmp_path / "bounds.npz")
    assert not (tmp_path / "bounds.npz").exists()
    with pytest.raises(UserError, match="diverged at step"):
        mc.to_torch(diverged)
    assert f"diverged at step {diverged.diverged}" in repr(diverged)


def test_an_estimator_whose_bounds_diverged_refuses_them_and_names_the_step_of_its_clean_model() -> None:
    data = mc.two_moons(0).train
    model = mc.CertifiedClassifier(
        hidden=(20,), threat=mc.LInf(0.01), engine="interval", batch_size=2, scaling="none", loss="hinge", select="last"
    )
    with pytest.warns(ConvergenceWarning, match=r"diverged at step \d+.*predict_nominal is the clean model after step"):
        model.fit(np.array(data.x), np.array(data.y))
    with pytest.raises(UserError, match="diverged at step"):
        _ = model.bounds_
    assert set(model.predict(np.array(data.x[:4])).tolist()) == {model.abstain_label_}
    assert model.certify(np.array(data.x[:2]), attack=False)["reason"].str.contains("diverged at step").all()


def test_the_command_line_keeps_its_answer_where_diverged_bounds_cannot_be_saved(tmp_path: Path) -> None:
    place = tmp_path / "bounds.npz"
    asked = ["certify", "two-moons", "--engine", "interval", "--batch-size", "2", "--epochs", "20", "--no-attack"]
    found = CliRunner().invoke(app, [*asked, "--bounds", str(place)])
    assert found.exit_code == 0, found.output
    assert "diverged at step" in found.output
    assert "Bounds of interval are not saved" in " ".join(found.output.split())
    assert not place.exists()


# Units ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def regression() -> CertifiedRun:
    """Targets around 5,000, scaled inside."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    y = 5000.0 + 30.0 * x[:, 0] - 10.0 * x[:, 1]
    plain = [mc.Dataset.regression(x[a:b], y[a:b]) for a, b in ((0, 24), (24, 32), (32, 40))]
    column = plain[0].target_column()
    split = mc.Split("prices", *(part.with_target(column) for part in plain))
    training = mc.Training(epochs=20, learning_rate=0.1, loss="squared-error")
    return mc.certify_training(mc.Network.mlp([2, 1]), split, mc.TargetNoise(5.0), training)


def test_conditions_and_stored_ranges_of_a_regression_are_in_the_units_of_its_targets(regression: CertifiedRun) -> None:
    run = regression
    assert isinstance(run.data, mc.Split)
    assert run.test_ranges is not None
    x = run.data.test.x
    found = run.ranges(x).outputs
    assert found.low.min() > 4000
    np.testing.assert_array_equal(run.test_ranges.outputs.low, found.low)
    np.testing.assert_array_equal(run.test_ranges.outputs.high, found.high)
    assert repr(mc.holds(run, lambda m: m.out(0) <= 100, x)) == "FAILS"
    assert repr(mc.holds(run, lambda m: m.out(0) <= float(found.high[0, 0]) + 1e-3, x)) == "HOLDS"
    assert repr(mc.holds(run, lambda m: m.out(0) >= float(found.low[0, 0]) - 1e-3, x)) == "HOLDS"
    assert repr(mc.holds(run, lambda m: m.out(0) <= float(found.low[0, 0] + found.high[0, 0]) / 2, x)) == "OPEN"


def test_what_attacks_reach_is_in_the_units_of_the_targets(regression: CertifiedRun) -> None:
    run = regression
    assert run.attack is not None
    assert run.test_ranges is not None
    low, high = run.attack.outputs.low, run.attack.outputs.high
    assert low.min() > 4000
    assert ((run.test_ranges.outputs.low <= low) & (high <= run.test_ranges.outputs.high)).all()
    errors = {name: value for name, value in run.errors.items() if value is not None}
    assert 0 < errors["nominal_error"] <= errors["attacked_error"] <= errors["certified_error"] < 200
    assert 0 < errors["attacked_range_mean"] <= errors["range_mean"] < 100


def test_a_stored_regression_is_read_back_in_the_same_units(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 2))
    plain = [mc.Dataset.regression(x[a:b], 900.0 + 9.0 * x[a:b, 0]) for a, b in ((0, 6), (6, 9), (9, 12))]
    split = mc.Split("line", *(part.with_target(plain[0].target_column()) for part in plain))
    training = mc.Training(epochs=2, loss="squared-error")
    run = mc.certify_training(mc.Network.mlp([2, 1]), split, mc.LInf(0.01), training, run_dir=tmp_path / "run")
    again = mc.load_run(tmp_path / "run")
    assert run.test_ranges is not None
    assert again.test_ranges is not None
    np.testing.assert_array_equal(run.test_ranges.outputs.low, again.test_ranges.outputs.low)
    assert again.errors == run.errors
    assert all(check.holds for check in mc.verify(tmp_path / "run", AuditSettings(points=1, parameters=1, members=3)))


# Solvers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOLVERS)
def test_an_integer_variable_takes_every_whole_number_of_its_range(name: str) -> None:
    """max v + w with v + w ≤ 6.5 and v, w whole numbers in [0, 3]: 6."""
    if importlib.util.find_spec(SOLVERS[name].module) is None:
        pytest.skip(f"{name} is not installed")
    program = Program(
        np.zeros(2),
        np.full(2, 3.0),
        np.ones(2, dtype=bool),
        sparse.csr_matrix([[1.0, 1.0]]),
        np.array([-np.inf]),
        np.array([6.5]),
        np.zeros(1, dtype=np.intp),
        np.zeros((0, 3), dtype=np.intp),
    )
    (bound,) = solver_named(name).solve(program, [Objective(np.ones(2), True)], Limits())
    assert bound.proven == pytest.approx(6.0, abs=1e-6)


def test_weights_of_very_different_size_end_in_a_looser_bound_not_in_a_crash(pool: WorkerPool) -> None:
    rng = np.random.default_rng(1)
    data = mc.Dataset.of(rng.normal(size=(4, 2)), [0, 1, 0, 1])
    network = mc.Network.mlp([2, 3, 2])
    step = trace_steps(network, loss_named("hinge", 2), SGD(0.1), 2, [np.arange(4)])
    theta = network.initialise(1) * np.where(rng.random(network.layout.size) < 0.5, 1e16, 1e8)
    settings = mc.SolverSettings(nodes_per_program=20)
    after, report = MibpEngine(settings, pool=pool).advance(Box.point(theta), step, mc.LInf(0.1).bind(data))
    assert np.isfinite(after.lower).all()
    assert report.programs > 0


# What an adversarial review found -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["crown", "relational", "meet"])
@pytest.mark.parametrize("up", [2.0, 6.0, 14.0])
def test_one_sided_noise_in_one_row_and_a_flip_stay_inside_with_three_classes(engine: str, up: float) -> None:
    """The centre of a form may leave the domain of `1/x`: a tangent there has a curvature of the wrong sign."""
    x = np.array([[0.09, 0.45], [-0.45, 2.45], [1.24, 0.27], [-1.1, 1.51], [2.34, 1.71]])
    data, network = mc.Dataset.of(x, [0, 1, 2, 0, 1]), mc.Network.mlp([2, 3])
    threat = mc.Budget(mc.Monotone(0, up=up), rows=1) & mc.LabelFlips(1)
    points = np.stack(np.meshgrid(np.linspace(-4, 4, 9), np.linspace(-4, 4, 9)), axis=-1).reshape(-1, 2)
    for seed in range(4, 8):
        training = mc.Training(epochs=2, batch_size=5, learning_rate=0.3, loss="cross-entropy", seed=seed)
        run = mc.certify_training(network, data, threat, training, engine)
        answer, members, rng = run.certify(points), run.request.members, np.random.default_rng(seed)
        found = [members.reference, *members.sample(rng, 60)]
        found += [members.worst(rng.normal(size=members.noise().symbols)) for _ in range(60)]
        rows, labels = (np.stack([m[i] for m in found]) for i in (0, 1))
        begin = np.broadcast_to(run.request.plan.begin, (len(found), network.layout.size))
        models = run_steps(run.request.plan.steps, begin, rows, labels)
        assert all(run.bounds.contains(theta) for theta in models)
        for theta in models:
            classes = nominal_classes(network, theta, points)
            assert (classes == answer.classes)[answer.certified].all()


def test_a_curvature_outside_of_the_domain_is_infinite() -> None:
    curvature = functions.SMOOTH["reciprocal"].curvature(np.array([-0.5, 0.0, 0.5]), np.ones(3))
    assert np.isposinf(curvature[:2]).all()
    assert curvature[2] >= 16.0


def test_a_clean_model_outside_of_its_bounds_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    original = IntervalEngine.advance

    def shifted(self: Any, state: Any, step: Any, threat: Any) -> Any:
        after, report = original(self, state, step, threat)
        return Box(after.lower + 1.0, after.upper + 1.0), report

    monkeypatch.setattr(IntervalEngine, "advance", shifted)
    with pytest.raises(SoundnessError, match="outside of its bounds"):
        mc.certify_training(mc.Network.mlp([2, 2]), mc.two_moons(0).train, mc.LInf(0.01), engine="interval")


def test_conditions_on_large_targets_are_not_rounded_before_they_are_bounded() -> None:
    """Three outputs around 10⁸: the largest float below their exact sum is no upper bound, whatever the sum of floats says."""
    for seed in range(12):
        x = np.random.default_rng(seed).normal(size=(8, 2))
        plain = mc.Dataset.regression(x, 100000000.1 + 0.3 * x[:, 0])
        column = plain.target_column()
        run = mc.certify_training(
            mc.Network.mlp([2, 1]), plain.with_target(column), None, mc.Training(2, loss="squared-error")
        )
        outputs = nominal_outputs(run.network, run.theta, x)[:3, 0].tolist()
        total = sum(Fraction(o) * Fraction(column.scale) + Fraction(column.shift) for o in outputs)
        below = float(total) if Fraction(float(total)) < total else float(np.nextafter(float(total), -np.inf))
        assert mc.holds(run, lambda m, c=below: m.out(0) + m.out(1) + m.out(2) <= c, x) is not mc.Verdict.HOLDS
