"""The checker of steps proves honest runs of the engine interval, and refuses by name what it does not know."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from breadth import NETWORKS, OPTIMISERS, problem
from cases import THREATS, survey
from checked_stored import EXCHANGES, FIXED_ROWS, MORE, UNKNOWN, Stored, everything_proven, of_survey, stored
from mibp_cert.certify import Selection
from mibp_cert.data import Dataset
from mibp_cert.errors import UnsupportedOperation
from mibp_cert.nets import Network, Tanh


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in UNKNOWN])
def test_every_network_and_loss_is_proven(name: str) -> None:
    p = problem(name, rows=12)
    training = mc.Training(epochs=3, batch_size=5, learning_rate=0.3, loss=p.loss)
    everything_proven(stored(p.network, mc.Split("s", p.data, None, p.data), mc.LInf(0.02), training, theta0=p.theta))


@pytest.mark.parametrize("mode", ["shuffle", "subsample"])
@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_every_optimiser_is_proven(name: str, mode: str) -> None:
    optimiser, schedule = OPTIMISERS[name]
    p = problem(name, rows=12)
    own = {key: getattr(optimiser, key) for key in ("learning_rate", "momentum", "weight_decay", "clip")}
    training = mc.Training(epochs=3, batch_size=5, loss=p.loss, schedule=schedule, batch_mode=mode, **own)
    everything_proven(stored(p.network, mc.Split("s", p.data, None, p.data), mc.LInf(0.02), training, theta0=p.theta))


@pytest.mark.parametrize("loss", ["hinge", "cross-entropy"])
@pytest.mark.parametrize("name", [name for name in (*FIXED_ROWS, *MORE) if name not in EXCHANGES])
def test_every_threat_is_proven(name: str, loss: str) -> None:
    threat = {**THREATS, **MORE}[name]
    everything_proven(of_survey(threat, missing=threat.knows_missing() and "marker" not in name, loss=loss))


def test_what_may_be_wrong_with_test_rows_is_proven() -> None:
    train = survey(20)
    data = mc.Split("survey", train, None, survey(8, 1, like=train))
    threat = mc.Missing() & mc.LInf(0.1)
    run = stored(Network.mlp([5, 3, 2]), data, mc.Missing(), mc.Training(epochs=2), test_threat=threat)
    everything_proven(run)
    assert (run.result or {})["test_classes"].max() >= 0


def test_a_regression_with_scaled_targets_is_proven() -> None:
    rng = np.random.default_rng(3)
    train = Dataset.regression(rng.normal(size=(12, 2)), 40.0 + 9.0 * rng.normal(size=12))
    train = train.with_target(train.target_column())
    data = mc.Split("r", train, None, train)
    training = mc.Training(epochs=3, batch_size=5, learning_rate=0.05, loss="squared-error")
    run = stored(Network.mlp([2, 3, 1]), data, mc.TargetNoise(1.5) & mc.LInf(0.02), training)
    assert run.prove() == replace(run.prove(), steps=9, rows=12, failed="")
    for end, sign in (("range_low", 1.0), ("range_high", -1.0)):
        forged = copy.deepcopy(run)
        assert forged.result is not None
        forged.result[end][4] += sign * 1e-9
        assert "row 4" in forged.prove().failed


def test_a_step_that_was_chosen_is_claimed_and_an_unfinished_run_has_no_answers() -> None:
    data = mc.two_moons(0)
    training = mc.Training(epochs=6, batch_size=50)
    run = stored(Network.mlp([2, 5, 2]), data, mc.LInf(0.01), training, select=Selection("best-validation"))
    assert run.prove().holds
    assert any("the choice of step" in said for said in run.prove().claimed)
    unfinished = Stored(run.description, run.data, {n: run.sets[n] for n in range(1, 4)}, None)
    assert unfinished.prove() == replace(unfinished.prove(), steps=3, rows=0, failed="")
    assert not Stored(run.description, run.data, {}, None).prove().holds


def test_units_that_are_exactly_zero_are_proven_though_their_boxes_are_smaller_than_the_unit_of_the_ranges() -> None:
    """tanh of 0 is rounded outward to some `10^−308` by the engine."""
    data, network = mc.two_moons(0), Network.mlp([2, 3, 1], activation=Tanh())
    theta = network.initialise(0)
    theta[:] = np.where(np.arange(len(theta)) % 2, theta, 0.0)
    theta[[0, 1, 6, 9]] = 0.0  # the first unit, to and from
    run = stored(network, data, mc.LInf(0.01), mc.Training(epochs=4), theta0=theta)
    everything_proven(run)
    ends = np.abs([run.sets[4][end] for end in ("lower", "upper")])
    assert ((ends > 0) & (ends < 1e-100)).any()


def test_fewer_steps_that_were_asked_for_are_all_of_them() -> None:
    data = mc.two_moons(0)
    run = stored(Network.mlp([2, 5, 2]), data, mc.LInf(0.01), mc.Training(epochs=6, batch_size=50), steps=5)
    everything_proven(run)


@pytest.mark.parametrize("name", UNKNOWN)
def test_layers_that_it_does_not_know_are_refused_by_name(name: str) -> None:
    p = problem(name, rows=12)
    run = stored(p.network, mc.Split("s", p.data, None, p.data), mc.LInf(0.02), mc.Training(epochs=1, loss=p.loss))
    with pytest.raises(UnsupportedOperation, match="Cosine" if name == "cosine" else "Conv2d"):
        run.prove()


@pytest.mark.parametrize("name", EXCHANGES)
def test_threats_that_it_does_not_know_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedOperation, match="exchanged"):
        of_survey(THREATS[name], missing=False).prove()


@pytest.mark.parametrize(
    ("options", "words"), [({"engine": "crown"}, "engine 'crown'"), ({"prediction": "exact"}, "prediction 'exact'")]
)
def test_other_engines_and_predictions_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedOperation, match=words):
        of_survey(mc.LInf(0.5), missing=False, **options).prove()
