"""Prediction over a box of parameters: certified only if every member agrees, strictly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import predictor, small_data, small_step, trainings
from mibp_cert.certify import ABSTAIN, predict
from mibp_cert.certify.predict import nominal_classes
from mibp_cert.data import two_moons
from mibp_cert.doors import certify_training
from mibp_cert.engines import Inputs, IntervalEngine, SolverSettings
from mibp_cert.engines.base import Box
from mibp_cert.errors import UserError
from mibp_cert.nets import Network, Training, run_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.threats import LInf


@pytest.mark.parametrize("sizes", [[2, 1], [3, 2], [2, 2, 2], [3, 3]])
@pytest.mark.parametrize("method", ["interval", "exact"])
def test_no_member_of_the_box_contradicts_a_certified_class(sizes: list[int], method: str, pool: WorkerPool) -> None:
    rng = np.random.default_rng(sum(sizes))
    network = Network.mlp([2, *sizes], bias=False)
    theta = rng.normal(size=network.layout.size)
    half = 0.25 * rng.random(theta.shape)
    box, x = Box(theta - half, theta + half), rng.normal(size=(20, 2))
    answer = predict(network, box, Inputs(x), predictor(method, pool))
    assert answer.certified.any()
    assert not answer.certified.all()
    corners = np.where(rng.random((3000, len(theta))) < 0.5, box.lower, box.upper)
    inside = box.lower + rng.random((1000, len(theta))) * (box.upper - box.lower)
    classes = nominal_classes(network, np.concatenate([corners, inside]), x)
    assert (classes == answer.classes)[:, answer.certified].all()


def test_exact_certifies_all_that_intervals_do_and_more(pool: WorkerPool) -> None:
    rng = np.random.default_rng(3)
    network = Network.mlp([2, 6, 2])
    more = 0
    for seed in range(3):
        theta = network.initialise(seed)
        box, x = Box(theta - 0.05, theta + 0.05), rng.normal(size=(25, 2))
        plain, exact = (predict(network, box, Inputs(x), predictor(m, pool)) for m in ("interval", "exact"))
        assert (exact.classes == plain.classes)[plain.certified].all()
        assert (exact.margin >= plain.margin).all()
        more += int(exact.certified.sum() - plain.certified.sum())
    assert more > 0


def test_a_tie_is_not_certified(pool: WorkerPool) -> None:
    network = Network.mlp([1, 2], bias=False)
    theta = np.array([1.0, 1.0])  # both logits equal x
    for method in ("interval", "exact"):
        answer = predict(network, Box.point(theta), Inputs(np.array([[1.0]])), predictor(method, pool))
        assert answer.classes.tolist() == [ABSTAIN]


def test_zero_logit_is_not_certified() -> None:
    network, state = Network.mlp([1, 1], bias=False), Box.point(np.array([1.0]))
    for rows, classes in (([[0.0]], [ABSTAIN]), ([[2.0], [-2.0]], [1, 0])):
        assert predict(network, state, Inputs(np.array(rows)), IntervalEngine()).classes.tolist() == classes


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("method", ["interval", "exact"])
def test_nan_and_infinite_bounds_abstain(bad: float, method: str, pool: WorkerPool) -> None:
    network = Network.mlp([2, 3, 2])
    theta = network.initialise(0)
    upper = theta.copy()
    upper[0] = bad
    answer = predict(network, Box(theta, upper), Inputs(np.ones((4, 2))), predictor(method, pool))
    assert (answer.classes == ABSTAIN).all()


def test_inverted_bounds_abstain() -> None:
    network = Network.mlp([2, 3, 2])
    theta = network.initialise(0)
    assert (
        predict(network, Box(theta + 1e-9, theta), Inputs(np.ones((4, 2))), IntervalEngine()).classes == ABSTAIN
    ).all()


def test_accuracy_counts_all_points() -> None:
    network = Network.mlp([1, 1], bias=False)
    answer = predict(
        network, Box.point(np.array([1.0])), Inputs(np.array([[1.0], [1.0], [-1.0], [0.0]])), IntervalEngine()
    )
    assert answer.certified_accuracy(np.array([1, 0, 0, 1])) == 0.5
    assert answer.certification_rate() == 0.75


@pytest.mark.parametrize("engine", ["interval", "mibp"])
def test_certified_test_points_agree_with_models_trained_on_members(engine: str) -> None:
    data = two_moons(1, sizes=(16, 20, 60))
    network = Network.mlp([2, 3, 2])
    training = Training(epochs=2, batch_size=8, learning_rate=0.3, seed=2)
    run = certify_training(network, data, LInf(0.05), training, engine, solver=SolverSettings(seconds_per_step=5))
    threat = LInf(0.05).bind(data.train)
    steps = run.request.plan.steps
    theta0 = network.initialise(2)
    assert run.test is not None
    assert run.test.certified.any()
    *_, trained = trainings(steps, theta0, threat.sample(np.random.default_rng(0), 60))
    assert run.bounds.contains(trained)
    classes = nominal_classes(network, trained, data.test.x)
    assert (classes == run.test.classes)[:, run.test.certified].all()
    np.testing.assert_array_equal(run.theta, run_steps(steps, theta0, data.train.x, data.train.one_hot))


@pytest.mark.usefixtures("one_pool")
def test_the_same_seed_gives_the_same_bits() -> None:
    runs = [
        certify_training(Network.mlp([2, 3, 2]), two_moons(0, sizes=(20, 5, 10)), LInf(0.05), Training(2, 10), "mibp")
        for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0].bounds.lower, runs[1].bounds.lower)
    np.testing.assert_array_equal(runs[0].bounds.upper, runs[1].bounds.upper)


def test_no_threat_means_nothing_abstains() -> None:
    run = certify_training(Network.mlp([2, 5, 2]), two_moons(0), None, Training(2), "interval")
    assert run.test is not None
    assert run.test.certification_rate() == 1.0


@pytest.mark.usefixtures("one_pool")
def test_unrolled_run_covers_all_steps() -> None:
    data = two_moons(0, sizes=(6, 5, 5))
    run = certify_training(Network.mlp([2, 2, 1]), data, LInf(0.02), Training(3, 6), "mibp", unroll=2)
    assert [record.epoch for record in run.history] == [2, 3]
    assert run.bounds.contains(run.theta)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"engine": "magic"}, "'magic'"),
        ({"engine": "interval", "unroll": 2}, "unroll"),
        ({"engine": "interval", "prediction": "guess"}, "'guess'"),
        ({"engine": "mibp", "solver": SolverSettings("nosuch")}, "'nosuch'"),
        ({"theta0": np.zeros(3)}, "finite numbers"),
        ({"training": Training(batch_size=1000)}, "batch size"),
    ],
)
def test_bad_requests_are_refused_before_work(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        certify_training(Network.mlp([2, 3, 2]), two_moons(0), LInf(0.01), **arguments)


def test_features_that_do_not_fit_are_refused() -> None:
    data = small_data(np.random.default_rng(0), features=3)
    with pytest.raises(UserError, match="3 columns"):
        certify_training(Network.mlp([2, 3, 2]), data, LInf(0.01), engine="interval")
    network, _ = small_step(data, [2, 2])
    run = certify_training(network, data, LInf(0.01), Training(1, 6), engine="interval")
    with pytest.raises(UserError, match="3 features"):
        run.predict([[1.0, 2.0]])
    with pytest.raises(UserError, match="finite"):
        run.predict([[1.0, 2.0, np.nan]])
    assert run.predict([[1.0, 2.0, 3.0]]).shape == (1,)
    assert run.to_json()["dataset"] is None
