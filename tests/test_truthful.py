"""No answer about a model that the bounds do not hold, no unit but the user's, no sentence that is not so."""

from __future__ import annotations

import importlib.util
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from typer.testing import CliRunner

import mibp_cert as mc
from mibp_cert.certify.predict import nominal_classes, nominal_outputs
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.cli import app
from mibp_cert.config import job_of, merged, plain_config
from mibp_cert.engines import IntervalEngine
from mibp_cert.engines.base import Box
from mibp_cert.engines.exact.engine import MibpEngine
from mibp_cert.errors import SoundnessError, UserError
from mibp_cert.graph import functions
from mibp_cert.nets import SGD, loss_named, run_steps, trace_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.questions.collective import Flips
from mibp_cert.questions.properties import describe
from mibp_cert.report.terminal import advice
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
        hidden=(20,), threat=mc.LInf(0.01), engine="interval", epochs=20, batch_size=2, scaling="none"
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


# PyTorch --------------------------------------------------------------------------------------------------------------


def _frozen(torch: Any) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    module[0].weight.requires_grad_(False)
    return module


def _shared(torch: Any) -> Any:
    twice = torch.nn.Linear(2, 2)
    return torch.nn.Sequential(twice, torch.nn.ReLU(), twice)


def _tied(torch: Any) -> Any:
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    two.weight = one.weight
    return torch.nn.Sequential(one, torch.nn.ReLU(), two)


def _pruned(torch: Any) -> Any:
    import torch.nn.utils.prune as prune

    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    prune.l1_unstructured(module[0], "weight", amount=1)
    return module


def _spectral(torch: Any) -> Any:
    return torch.nn.Sequential(torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(2, 2)))


def _own_forward(torch: Any) -> Any:
    class Doubled(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return 2 * super().forward(x)

    return torch.nn.Sequential(Doubled(2, 2))


def _own_sequence(torch: Any) -> Any:
    class Residual(torch.nn.Sequential):
        def forward(self, x: Any) -> Any:
            return x + super().forward(x)

    return torch.nn.Sequential(Residual(torch.nn.Linear(2, 2)))


def _hooked(torch: Any) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module[0].register_forward_hook(lambda m, i, o: 2 * o)
    return module


def _hooked_outside(torch: Any) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module.register_forward_pre_hook(lambda m, i: (2 * i[0],))
    return module


def _hooked_gradient(torch: Any) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module[0].weight.register_hook(lambda g: 0 * g)
    return module


def _own_instance_forward(torch: Any) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module[0].forward = lambda x: 2 * x
    return module


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_frozen, r"Module 0, Linear\(.*is frozen \(requires_grad=False; as features of a fitted model"),
        (_shared, "Module 2, Linear.*is used twice"),
        (_tied, "Module 2, Linear.*shares its weight with another module"),
        (_pruned, "Module 0, Linear.*pruned|hook|parametri"),
        (_spectral, "Module 0, .*parametri"),
        (_own_forward, "Module 0, Doubled.*no counterpart"),
        (_own_sequence, "Residual.*no counterpart"),
        (_hooked, "Module 0, Linear.*has hooks"),
        (_hooked_outside, "Sequential.*has hooks"),
        (_hooked_gradient, "Module 0, Linear.*has hooks"),
        (_own_instance_forward, "Module 0, Linear.*forward of its own"),
    ],
)
def test_a_torch_module_that_trains_otherwise_is_refused(torch: Any, make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        mc.from_torch(make(torch))
    assert str(caught.value).endswith(".")


# Sentences ------------------------------------------------------------------------------------------------------------


def test_advice_speaks_of_attacks_only_where_one_ran() -> None:
    data, training = mc.two_moons(0), mc.Training(epochs=10)
    for attacked in (True, False):
        run = mc.certify_training(
            mc.Network.mlp([2, 20, 2]), data, mc.LInf(0.05), training, "interval", attacked=attacked
        )
        (said,) = advice(run)
        assert ("attack" in said) == attacked


WORDS: list[tuple[Any, str]] = [
    (mc.Budget(mc.LInf({"age": 5}), rows=2), "in at most 2 rows, 'age' may be off by 5"),
    (mc.Budget(mc.LInf({"age": 5}), rows=1), "in at most one row, 'age' may be off by 5"),
    (
        mc.Budget(mc.LInf(0.5), cells=1),
        "in every row, at most one cell may be wrong: every number may be off by 0.5",
    ),
    (
        mc.Budget(mc.LInf(0.5), cells=2),
        "in every row, at most 2 cells may be wrong: every number may be off by 0.5",
    ),
    (
        mc.Budget(mc.Budget(mc.LInf(0.5), cells=1), rows=3),
        "in at most 3 rows, at most one cell may be wrong: every number may be off by 0.5",
    ),
    (mc.Budget(mc.AnyCategory("mood"), rows=1), "in at most one row, 'mood' may be any category"),
    (
        mc.LInf(1.0).where(mc.column("age") >= 50),
        "where 'age' >= 50, every number may be off by 1",
    ),
    (mc.LInf(1.0).where([0, 3]), "in 2 given rows, every number may be off by 1"),
    (mc.LInf({"age": 1}), "'age' may be off by 1 in any row"),
    (mc.LabelFlips(1), "at most one label may be wrong"),
    (
        mc.LInf({"age": 1}) & mc.LabelFlips(2),
        "'age' may be off by 1 in any row, and at most 2 labels may be wrong",
    ),
    (
        mc.Budget(mc.LInf({"age": 1}) & mc.LabelFlips(), rows=2),
        "in at most 2 rows, 'age' may be off by 1, and the label may be wrong",
    ),
]


@pytest.mark.parametrize(("threat", "words"), WORDS, ids=[w for _, w in WORDS])
def test_a_threat_reads_as_a_person_would_say_it(threat: Any, words: str) -> None:
    assert mc.in_words(threat) == words
    assert mc.in_words(threat.to_json()) == words


def test_the_configuration_names_the_hidden_layers_that_were_used(tmp_path: Path) -> None:
    place = tmp_path / "out.json"
    asked = ["certify", "two-moons", "--engine", "interval", "--epochs", "1", "--no-attack", "--json", str(place)]
    assert CliRunner().invoke(app, asked).exit_code == 0
    found = json.loads(place.read_text())
    assert found["network"] == [2, 20, 2]
    assert found["configuration"]["network"]["hidden"] == "20"


def test_a_margin_can_be_asked_for_where_test_values_are_missing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    table["y"] = np.where(table["a"] > 0, "yes", "no")
    table.loc[::7, "b"] = np.nan
    table.to_csv(tmp_path / "data.csv", index=False)
    asked = [
        "certify",
        str(tmp_path / "data.csv"),
        "--target",
        "y",
        "--missing",
        "all",
        "--margin",
        "0.01",
        "--no-attack",
    ]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 0, found.exception
    assert "Margin of at least 0.01" in found.output


def test_abstaining_cannot_be_mistaken_for_a_class() -> None:
    """Labels −1 and 1: the number that stands for abstaining is none of them, and the table says the word."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = np.where(X[:, 0] > 0, 1, -1)
    model = mc.CertifiedClassifier(hidden=(), threat=mc.LInf(0.1), loss="cross-entropy", epochs=5).fit(X, y)
    with pytest.warns(UserWarning, match=r"−2 stands for abstaining.*abstain_label="):
        answers = model.predict(X)
    assert model.abstain_label_ == -2
    assert set(answers.tolist()) <= {-2, -1, 1}
    found = model.certify(X, attack=False)
    assert set(found.loc[~found["certified"], "class"]) == {"abstain"}
    assert set(found.loc[found["certified"], "class"]) <= {-1, 1}
    named = mc.CertifiedClassifier(hidden=(), threat=mc.LInf(0.1), loss="cross-entropy", epochs=5, abstain_label=0).fit(
        X, y
    )
    assert set(named.predict(X).tolist()) <= {-1, 0, 1}  # chosen by the user: no warning


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


# Threats are asked by type, never by the names of columns ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows", "label", "rules", "missing"])
def test_a_column_may_have_any_name(name: str) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: rng.normal(size=40), "b": rng.normal(size=40)})
    y = np.where(table[name] > 0, "yes", "no")
    threat = mc.LInf({name: 0.05}).where(mc.column(name) >= 0.0)
    model = mc.CertifiedClassifier(
        hidden=(), loss="cross-entropy", threat=threat, select="best-validation", epochs=3
    ).fit(table, y)
    assert len(model.predict(table, threat=threat)) == 40


def test_threats_that_read_labels_or_name_rows_still_say_so() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=30)})
    y = np.where(table["a"] > 0, "yes", "no")
    model = mc.CertifiedClassifier(hidden=(), threat=mc.LInf(0.01).where(mc.label_is("yes")), epochs=1).fit(table, y)
    with pytest.raises(UserError, match="labels"):
        model.predict(table, threat=mc.LInf(0.1).where(~(mc.label_is("yes") & (mc.column("a") > 0))))
    for named in (
        mc.LInf(0.01).where([0]),
        mc.LInf(0.01, rows=[1]),
        mc.LInf(0.01).where(mc.column("a") < 0) & mc.LInf(0.1).where([1]),
    ):
        with pytest.raises(UserError, match="names rows"):
            mc.CertifiedClassifier(hidden=(), threat=named, select="best-validation").fit(table, y)


# Verify ---------------------------------------------------------------------------------------------------------------


def test_verify_says_what_it_could_not_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mibp_cert.store import second

    network = mc.Network((mc.Linear(2, 2), mc.Tanh(), mc.Linear(2, 2)), 2)
    mc.certify_training(network, mc.two_moons(0), mc.LInf(0.01), mc.Training(epochs=1), run_dir=tmp_path / "run")
    few = AuditSettings(points=1, parameters=1, members=3)
    known = functions.SMOOTH["tanh"]
    monkeypatch.setattr(second, "_SMOOTH", {k: v for k, v in second._SMOOTH.items() if k != known.name})
    found = {check.name: check for check in mc.verify(tmp_path / "run", few)}
    assert found["second opinion"].holds is None
    assert "'tanh'" in found["second opinion"].words
    assert found["hashes"].holds
    assert found["recomputed"].holds
    shown = CliRunner().invoke(app, ["verify", str(tmp_path / "run"), "--points", "1", "--parameters", "1"])
    assert shown.exit_code == 4
    assert "not checked" in shown.output


def test_a_layer_unknown_to_this_package_is_no_broken_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mibp_cert.certify import plain as stored

    network = mc.Network((mc.Linear(2, 2), mc.Tanh(), mc.Linear(2, 2)), 2)
    mc.certify_training(network, mc.two_moons(0), mc.LInf(0.01), mc.Training(epochs=1), run_dir=tmp_path / "run")
    monkeypatch.setattr(stored, "LAYERS", tuple(layer for layer in stored.LAYERS if layer is not mc.Tanh))
    found = {check.name: check for check in mc.verify(tmp_path / "run")}
    assert found["hashes"].holds
    assert found["request"].holds is None
    assert "Tanh" in found["request"].words


@pytest.mark.parametrize(
    ("reached", "proven", "exact", "words"),
    [(3, 3, True, "exactly 3 of"), (3, 3, False, "exactly 3 of"), (2, 3, False, "at least 2 and at most 3 of")],
)
def test_bounds_that_meet_are_said_as_one_number(reached: int, proven: int, exact: bool, words: str) -> None:
    """Where a dataset was found that flips as many as can flip at most, the number is known."""
    flips = Flips(points=10, single=4, reached=reached, proven=proven, exact=exact)
    (line,) = describe({"collective": flips.to_json()})
    assert f"Flips at once: {words} 10 test predictions" in line


def test_rows_that_help_nothing_are_not_said_to_help() -> None:
    """Bounds of the second run are bounds of another set: fewer predictions may be certified, which is no gain of one."""
    table = pd.DataFrame()
    said = {after: mc.Blame(table, table, 5, (7,), 10, after).sentence for after in (9, 10, 11, 12)}
    assert all("no further prediction becomes certain" in said[after] for after in (9, 10))
    assert "one more prediction becomes certain" in said[11]
    assert "2 more predictions become certain" in said[12]


def test_a_stored_configuration_can_be_run_again() -> None:
    """Infinite limits are null in a file: they stand for the default."""
    first = job_of(merged({"data": {"source": "two-moons"}, "training": {"epochs": 1}}))
    again = job_of(merged(json.loads(json.dumps(plain_config(first.config)))))
    assert again.options["solver"] == first.options["solver"]
    assert again.network.sizes == first.network.sizes
    assert again.threat.to_json() == first.threat.to_json()


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


def test_a_softplus_of_pytorch_that_overflows_is_refused(torch: Any) -> None:
    for threshold in (20.0, 1000.0):
        with pytest.raises(UserError, match="softplus"):
            mc.from_torch(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softplus(threshold=threshold)))
    assert (
        mc.from_torch(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softplus(threshold=40.0))).network.logits == 2
    )
