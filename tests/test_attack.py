"""Attacks: members only, trained for real, never against a certificate; selection and divergence."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mibp_cert import collective, fair
from mibp_cert.certify import ABSTAIN, AttackSettings
from mibp_cert.certify.attack import attack, check_certificates
from mibp_cert.certify.predict import margin_pairs, nominal_classes
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.data import Dataset, Split, two_moons
from mibp_cert.doors import certify_training
from mibp_cert.engines import Box, Inputs
from mibp_cert.engines.relational import RelationalSet, linear_part, output_range
from mibp_cert.errors import SoundnessError, UserError
from mibp_cert.nets import Network, Plan, Training, run_steps
from mibp_cert.threats import LInf

NETWORK = Network.mlp([2, 6, 2])
DATA = two_moons(0, sizes=(40, 40, 80))
TRAINING = Training(epochs=6, batch_size=20, learning_rate=0.1)


@pytest.fixture(scope="module")
def run() -> Any:
    return certify_training(NETWORK, DATA, LInf(0.02), TRAINING)


def test_certified_is_at_most_attacked_is_at_most_clean(run: Any) -> None:
    certified = run.test.certified_accuracy(DATA.test.y)
    assert 0 < certified <= run.attacked_accuracy <= run.nominal_accuracy


def test_attacked_models_lie_in_the_bounds_and_fill_a_part_of_them(run: Any) -> None:
    inner = run.attack.inner()
    assert inner.within(run.bounds)
    assert (inner.radius <= run.bounds.radius).all()
    assert inner.radius.mean() > 0.05 * run.bounds.radius.mean()
    plain = run.to_json()
    assert plain["attack"]["inner_radius_mean"] == pytest.approx(inner.radius.mean())
    assert plain["test"]["attacked_accuracy"] == run.attacked_accuracy


def test_the_linear_part_beats_random_members() -> None:
    """At the same number of datasets, the attack reaches a larger radius than sampling does."""
    threat = LInf(0.02).bind(DATA.train)
    steps = Plan.of(NETWORK, TRAINING, DATA.train, NETWORK.initialise(0)).steps
    theta0 = NETWORK.initialise(0)
    nominal = nominal_classes(NETWORK, run_steps(steps, theta0, DATA.train.x, DATA.train.one_hot), DATA.test.x)
    aimed = attack(NETWORK, steps, theta0, threat, Inputs(DATA.test.x), nominal, None, AttackSettings(0, 40, 40, 2))
    drawn = attack(
        NETWORK, steps, theta0, threat, Inputs(DATA.test.x), nominal, None, AttackSettings(len(aimed.theta), 0, 0, 0)
    )
    assert aimed.inner().radius.mean() > 1.2 * drawn.inner().radius.mean()
    assert threat.contains(*aimed.witness)
    changed = aimed.attacked_classes(nominal) != nominal
    assert changed.sum() >= aimed.flips


def test_the_witness_can_be_saved_and_does_what_it_says(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "witness.npz"
    run.attack.save(path)
    with np.load(path) as saved:
        x, y = saved["x"], saved["y"]
    assert LInf(0.02).bind(DATA.train).contains(x, y)
    steps = Plan.of(NETWORK, TRAINING, DATA.train, NETWORK.initialise(0)).steps
    trained = run_steps(steps, NETWORK.initialise(0), x, y)
    flips = (nominal_classes(NETWORK, trained, DATA.test.x) != run.nominal).sum()
    assert flips == run.attack.flips


@pytest.mark.parametrize("what", ["dataset", "on the inputs"])
def test_an_attack_outside_of_its_threat_is_a_hard_error(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training, inputs = LInf(0.02).bind(DATA.train), LInf(0.02).bind(DATA.test)
    wrong = training if what == "dataset" else inputs
    original = type(training).sample

    def outside(self: Any, *arguments: Any) -> Any:
        drawn = original(self, *arguments)
        return [(x + 0.1, y) for x, y in drawn] if self is wrong else drawn

    monkeypatch.setattr(type(training), "sample", outside)
    begin = NETWORK.initialise(0)
    steps, asked = Plan.of(NETWORK, TRAINING, DATA.train, begin).steps, Inputs(DATA.test.x, inputs)
    nominal = nominal_classes(NETWORK, run_steps(steps, begin, DATA.train.x, DATA.train.one_hot), DATA.test.x)
    with pytest.raises(SoundnessError, match=rf"attack {what}.* is not a member"):
        attack(NETWORK, steps, begin, training, asked, nominal, None, AttackSettings(4, 4, 0, 1))


def test_a_contradicted_certificate_is_a_hard_error_that_names_the_dataset(run: Any) -> None:
    wrong = replace(run.test, classes=1 - run.nominal)
    with pytest.raises(SoundnessError, match="'clean data 0' contradicts a certified class"):
        check_certificates(run.attack, wrong, run.bounds)
    narrow = Box(run.theta, run.theta)
    with pytest.raises(SoundnessError, match=r"leaves the parameter bounds"):
        check_certificates(run.attack, run.test, narrow)


def test_best_validation_certifies_exactly_that_many_steps() -> None:
    run = certify_training(NETWORK, DATA, LInf(0.1), replace(TRAINING, epochs=8), "interval", select="best-validation")
    best = int(np.argmax([record.validation_certified or 0 for record in run.history]))
    assert run.steps == 2 * (best + 1)
    steps = run.request.plan.steps[: run.steps]
    np.testing.assert_array_equal(run.theta, run_steps(steps, NETWORK.initialise(0), DATA.train.x, DATA.train.one_hot))
    assert run.bounds.contains(run.theta)
    assert run.to_json()["steps"] == run.steps


@pytest.mark.parametrize("engine", ["interval", "relational"])
def test_divergence_stops_early_and_certifies_nothing(engine: str) -> None:
    training = Training(epochs=60, batch_size=40, learning_rate=1.0)
    run = certify_training(NETWORK, DATA, LInf(0.5), training, engine)
    assert run.diverged is not None
    assert run.diverged < 60
    assert run.test is not None
    assert not run.test.certified.any()
    assert run.to_json()["diverged"] == run.diverged
    assert (run.predict(DATA.test.x) == ABSTAIN).all()
    with pytest.raises(UserError, match=f"diverged at step {run.diverged}"):
        collective(run)
    with pytest.raises(UserError, match="nothing can be said"):
        fair(run, DATA.test.x, 0)
    kept = certify_training(NETWORK, DATA, LInf(0.5), training, engine, select="best-validation")
    assert kept.steps < run.diverged


def test_divergence_in_the_first_epoch_is_a_sentence() -> None:
    with pytest.raises(SoundnessError, match="no prediction can be certified after step"):
        certify_training(NETWORK, DATA, LInf(50.0), Training(epochs=1, batch_size=1, learning_rate=50.0), "interval")


def test_exact_prediction_is_a_second_opinion_on_the_relational_box() -> None:
    data = two_moons(0, sizes=(20, 10, 20))
    network = Network.mlp([2, 3, 2])
    run = certify_training(network, data, LInf(0.03), Training(3, 20), "relational", prediction="exact")
    assert (run.prediction, run.soundness) == ("exact", "solver-tolerance")
    assert run.test is not None
    assert run.test.certified.any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"engine": "interval", "prediction": "relational"}, "needs the engine 'relational'"),
        ({"select": "luckiest"}, "'luckiest'"),
    ],
)
def test_bad_requests_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        certify_training(NETWORK, DATA, LInf(0.01), **arguments)


def test_validation_selection_needs_validation_data() -> None:
    with pytest.raises(UserError, match="validation part"):
        certify_training(NETWORK, DATA.train, LInf(0.01), select="best-validation")


def test_parts_of_a_split_must_number_classes_alike() -> None:
    train = Dataset.of([[0.0], [1.0], [2.0]], ["a", "b", "c"])
    other = Dataset.of([[0.0], [1.0]], ["b", "c"])
    with pytest.raises(UserError, match="number the classes"):
        Split("x", train, train, other)
    with pytest.raises(UserError, match="2 columns"):
        Split("x", train, Dataset.of([[0.0, 1.0]] * 3, ["a", "b", "c"]), train)


def test_accuracy_takes_labels_as_handed_in_and_small_data_need_no_batch_size() -> None:
    data = Dataset.of(np.array([[-1.0], [1.0]] * 10), ["no", "yes"] * 10)
    run = certify_training(Network.mlp([1, 2]), data, LInf(0.01), Training(5))
    assert run.batch_size == 20
    assert run.certified_accuracy([[-2.0], [2.0]], ["no", "yes"]) == 1.0
    with pytest.raises(UserError, match="maybe are not among the classes"):
        run.certified_accuracy([[-2.0], [2.0]], ["no", "maybe"])
    with pytest.raises(UserError, match="2 rows but 1 labels"):
        run.certified_accuracy([[-2.0], [2.0]], ["no"])
    assert "relational" in repr(run)


def test_settings_are_checked_where_they_are_made() -> None:
    from mibp_cert import RelationalSettings, SolverSettings

    for make in (
        lambda: SolverSettings(gap=-1.0),
        lambda: SolverSettings(jobs=0),
        lambda: SolverSettings(nodes_per_program=-1),
        lambda: SolverSettings(seconds_per_step=float("nan")),
        lambda: RelationalSettings(search=-1),
    ):
        with pytest.raises(UserError, match="must be"):
            make()


def test_attacks_on_the_closest_points_alone_find_the_same_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many test rows: margins are held for the points that are attacked, and ranges for all."""
    data, network = two_moons(0, sizes=(40, 10, 90)), Network.mlp([2, 4, 2])
    settings = AttackSettings(members=3, points=5, parameters=2, rounds=0)

    def certified() -> CertifiedRun:
        return certify_training(network, data, LInf(0.02), Training(epochs=3), attack_settings=settings)

    whole = certified()
    monkeypatch.setattr("mibp_cert.certify.attack.LINEAR_CELLS", 0)
    some = certified()
    assert whole.attack is not None
    assert some.attack is not None
    np.testing.assert_allclose(some.attack.theta, whole.attack.theta, rtol=1e-9)
    pairs, _ = margin_pairs(network)
    make, inputs = partial(network.margin_graph, first=pairs), Inputs(data.tested.x)
    assert isinstance(whole.bounds, RelationalSet)
    ends, _ = linear_part(make, network.layout, whole.bounds, inputs)
    alone = output_range(make, network.layout, whole.bounds, inputs)
    np.testing.assert_array_equal(alone.low, ends.low)
    np.testing.assert_array_equal(alone.high, ends.high)
