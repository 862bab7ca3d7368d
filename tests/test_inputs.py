"""Threats on the test inputs themselves: certified for every model of the set and every input of theirs, in every engine."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest

from cases import survey
from conftest import predictor, trainings
from mibp_cert.certify import ABSTAIN, AttackSettings, predict
from mibp_cert.certify.predict import margin_pairs, nominal_classes, nominal_outputs
from mibp_cert.data import Split, two_moons
from mibp_cert.doors import certify_training
from mibp_cert.engines import Inputs, SolverSettings
from mibp_cert.engines.base import Box
from mibp_cert.engines.relational import RelationalSet, linear_part
from mibp_cert.engines.relational.engine import RelationalEngine
from mibp_cert.engines.rounding import Interval
from mibp_cert.errors import SoundnessError, UserError
from mibp_cert.nets import SGD, Linear, Network, Sigmoid, Training, loss_named, trace_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.sets import Noise
from mibp_cert.threats import L2, AnyCategory, Budget, LInf, Missing, Monotone, Shift, Threat

THREATS = {
    "noise": LInf(0.3),
    "ball": L2(0.4),
    "upward": Monotone("income", up=1.0) & LInf({"age": 2.0}),
    "category": AnyCategory("mood"),
    "neighbouring category": Shift("mood", by=1) & LInf({"income": 0.2}),
    "one bad row": Budget(LInf(0.3), rows=1),
}


@lru_cache
def _trained(seed: int) -> tuple[Network, Any, Any, Any]:
    """A network trained on the survey under noise: its relational set, the threat, and models trained on members."""
    data = survey(8, seed, missing=False)
    network = Network((Linear(data.features, 3), Sigmoid(), Linear(3, 2)), data.features)
    step = trace_steps(network, loss_named("cross-entropy", 2), SGD(0.5), 2, [np.arange(8)])
    threat, rng = LInf(0.05).bind(data), np.random.default_rng(seed)
    box: Box = Box.point(3.0 * network.initialise(seed))
    *_, models = trainings([step] * 3, box.lower, [threat.reference, *threat.sample(rng, 8)])
    for _ in range(3):
        box, _ = RelationalEngine().advance(box, step, threat)
    return network, box, data, models


@pytest.mark.parametrize("name", THREATS)
@pytest.mark.parametrize("method", ["interval", "crown", "relational", "exact"])
def test_no_model_and_no_input_contradicts_a_certified_class(name: str, method: str, pool: WorkerPool) -> None:
    decided = 0
    for seed in range(2):
        network, box, _, models = _trained(seed)
        test = survey(10, seed + 50, missing=False)
        inputs = Inputs(test.x, THREATS[name].bind(test))
        settings = SolverSettings(seconds_per_step=20.0)
        engine = predictor(method, pool, settings)
        answer = predict(network, box, inputs, engine)
        pairs, _ = margin_pairs(network)
        bounds, _ = predictor("interval" if method == "exact" else method).bound(
            partial(network.margin_graph, first=pairs), network.layout, box, inputs
        )
        decided += int(answer.certified.sum())
        assert inputs.members is not None
        rng = np.random.default_rng(seed)
        symbols = inputs.members.noise().symbols
        rows = [inputs.members.reference, *inputs.members.sample(rng, 15)]
        rows += [inputs.members.worst(rng.normal(size=symbols)) for _ in range(15)]
        for x, _ in rows:
            margins = nominal_outputs(network, models, x) @ pairs.T
            assert ((bounds.low <= margins) & (margins <= bounds.high)).all()
            classes = nominal_classes(network, models, x)
            assert (classes == answer.classes)[:, answer.certified].all()
    assert decided > 0


def _point(noise: Noise, rng: np.random.Generator, extreme: bool) -> Any:
    """Some values of the symbols of a noise."""
    epsilon = np.zeros(noise.symbols)
    for block in noise.blocks:
        epsilon[block.symbols] = block.sample(rng, extreme)
    return epsilon


def _least(noise: Noise, slope: Any) -> Any:
    """The values of the symbols of a noise at which `slope·ε` is smallest."""
    epsilon = np.zeros(noise.symbols)
    for block in noise.blocks:
        epsilon[block.symbols] = block.minimiser(slope[block.symbols])
    return epsilon


@pytest.mark.parametrize("name", THREATS)
@pytest.mark.parametrize("training", [LInf(0.05), Budget(LInf(0.05), rows=1)], ids=["noise", "budget"])
def test_the_noise_of_the_data_and_that_of_the_inputs_are_told_apart(training: Threat, name: str) -> None:
    """Models `c + G·ε` of known noise on inputs of known noise: the linear part explains their margins up to its rest, and
    both noises at their worst, each by its own slope, stay inside the bounds."""
    data, test = survey(4, 0, missing=False), survey(3, 1, missing=False)
    network = Network((Linear(data.features, 2), Sigmoid(), Linear(2, 2)), data.features)
    rng, known = np.random.default_rng(0), training.bind(data).noise()
    inputs = Inputs(test.x, THREATS[name].bind(test))
    assert inputs.members is not None
    own, theta = inputs.members.noise(), network.initialise(0)
    linear = 0.02 * rng.normal(size=(len(theta), known.symbols))
    reach = 1.001 * np.abs(linear).sum(axis=1)
    state = RelationalSet(theta - reach, theta + reach, theta, linear, np.zeros(len(theta)), known)
    pairs, _ = margin_pairs(network)
    bounds, part = linear_part(partial(network.margin_graph, first=pairs), network.layout, state, inputs)

    def margins(data_noise: Any, input_noise: Any) -> Any:
        x = own.x_centre + (own.x_linear @ input_noise).reshape(test.x.shape)
        return nominal_outputs(network, theta + linear @ data_noise, x) @ pairs.T

    def check(data_noise: Any, input_noise: Any) -> None:
        true = margins(data_noise, input_noise)
        assert ((bounds.low - 1e-12 <= true) & (true <= bounds.high + 1e-12)).all()
        left = true - part.centre - part.data @ data_noise - part.inputs @ input_noise
        assert (np.abs(left) <= part.rest + 1e-12).all()

    for i in range(20):
        check(_point(known, rng, i % 2 == 0), _point(own, rng, i % 2 == 0))
    # Slopes by differences, from no code of the bounds.
    still, small = (np.zeros(known.symbols), np.zeros(own.symbols)), 1e-6
    middle = margins(*still)
    slopes = [(margins(small * e, still[1]) - middle) / small for e in np.eye(known.symbols)]
    moves = [(margins(still[0], small * e) - middle) / small for e in np.eye(own.symbols)]
    for row, pair in np.ndindex(middle.shape):
        check(
            _least(known, np.array([s[row, pair] for s in slopes])),
            _least(own, np.array([s[row, pair] for s in moves])),
        )


def test_noise_on_inputs_only_takes_certificates_away_and_exact_is_the_tightest(pool: WorkerPool) -> None:
    network, box, _, _ = _trained(0)
    test = survey(20, 7, missing=False)
    found = {}
    for method in ("interval", "crown", "relational", "exact"):
        plain = predict(network, box, Inputs(test.x), predictor(method, pool))
        wide = predict(network, box, Inputs(test.x, LInf(0.05).bind(test)), predictor(method, pool))
        assert (wide.margin <= plain.margin + 1e-12).all()
        assert (wide.classes == plain.classes)[wide.certified].all()
        found[method] = wide.margin
    assert (found["crown"] >= found["interval"]).all()
    assert (found["relational"] >= found["interval"]).all()
    assert (found["exact"] >= found["interval"]).all()


def test_the_attack_perturbs_inputs_too_and_certified_stays_below_it() -> None:
    data, network = two_moons(0), Network.mlp([2, 8, 2])
    training = Training(epochs=4, loss="cross-entropy", learning_rate=0.5)
    settings = AttackSettings(members=10, points=20, parameters=10, rounds=1)
    runs = [
        certify_training(network, data, LInf(0.01), training, attack_settings=settings, test_threat=threat)
        for threat in (None, LInf(0.1))
    ]
    for run in runs:
        assert run.test is not None
        assert run.attacked_accuracy is not None
        assert run.test.certified_accuracy(data.test.y) <= run.attacked_accuracy
    first, second = runs
    assert first.attacked_accuracy is not None
    assert second.attacked_accuracy is not None
    assert second.attacked_accuracy < first.attacked_accuracy - 0.01
    assert second.to_json()["test_threat"] == {"kind": "linf", "eps": 0.1}
    again = first.certify(data.test.x, threat=LInf(0.1))
    assert second.test is not None
    np.testing.assert_array_equal(again.classes, second.test.classes)


def test_a_wrong_certificate_about_inputs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: prediction forgets that the inputs move; the attack on the inputs contradicts it."""
    monkeypatch.setattr(Inputs, "range", property(lambda self: Interval.point(self.x)))
    data = two_moons(0)
    with pytest.raises(SoundnessError, match="contradicts a certified class"):
        certify_training(Network.mlp([2, 2]), data, LInf(0.001), Training(epochs=3), "interval", test_threat=LInf(0.3))


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("method", ["interval", "relational", "exact"])
def test_a_margin_asked_for_is_kept_by_every_model(margin: float, method: str, pool: WorkerPool) -> None:
    network, box, _, models = _trained(1)
    test = survey(20, 3, missing=False)
    answer = predict(network, box, Inputs(test.x), predictor(method, pool), margin)
    pairs, speaks_for = margin_pairs(network)
    assert answer.certified.any()
    for theta in models:
        margins = nominal_outputs(network, theta, test.x) @ pairs.T
        for i in np.flatnonzero(answer.certified):
            least = margins[i][speaks_for == answer.classes[i]].min()
            assert least >= margin
            assert least > 0


def test_bad_questions_are_one_sentence() -> None:
    run = certify_training(Network.mlp([2, 2]), two_moons(0), LInf(0.01), Training(epochs=1), attacked=False)
    for call, words in (
        (lambda: run.certify([[0.0, 0.0]], margin=-1.0), "margin asked for"),
        (lambda: run.certify([[0.0]]), "finite rows of 2 features"),
        (lambda: run.certify(np.zeros((0, 2))), "finite rows of 2 features"),
        (lambda: run.certify([[0.0, np.nan]]), "NaN or infinite"),
        (lambda: run.certify([["a", "b"]]), "encoded like the training data"),
        (lambda: run.certify([[0.0, 1.0]], threat=0.1), "such as LInf"),
        (lambda: certify_training(Network.mlp([2, 2]), two_moons(0), 0.1), "such as LInf"),
        (lambda: run.certify([[0.0, 1.0]], "psychic"), "no prediction called"),
        (lambda: run.certify([[0.0, 1.0]], threat=LInf(-1.0)), "eps"),
    ):
        with pytest.raises(UserError, match=words):
            call()


def test_inputs_outside_of_a_splits_test_part_keep_their_columns() -> None:
    """Amounts of a threat on inputs are in the units of the table, as for the training data."""
    data = survey(12, 0, missing=False)
    split = Split("survey", data, *(survey(6, seed, missing=False, like=data) for seed in (1, 2)))
    run = certify_training(Network.mlp([data.features, 2]), split, LInf(0.0), Training(epochs=2), attacked=False)
    inputs = run.inputs(split.test.x, LInf({"age": 6.0}))
    column = data.columns[data.column("age")]
    width = (inputs.range.high - inputs.range.low)[:, column.start]
    np.testing.assert_allclose(width, 12.0 / column.scale)
    assert (run.certify(split.test.x, threat=AnyCategory("mood")).classes >= ABSTAIN).all()


def test_what_a_missing_input_may_be_does_not_depend_on_the_other_rows_asked_about() -> None:
    """Arrays have no declared range: that of the training rows counts, for one row as for many."""
    data = two_moons(0)
    run = certify_training(
        Network.mlp([2, 1]), data, LInf(0.01), Training(epochs=3, loss="cross-entropy"), attacked=False
    )
    unknown, others = np.array([[-9.0, 0.2]]), np.array([[0.4, 0.1], [0.5, 0.3]])
    threat = Missing("0", marker=-9.0)
    alone = run.ranges(unknown, threat=threat).outputs
    together = run.ranges(np.concatenate([unknown, others]), threat=threat).outputs
    assert alone.low[0, 0] == together.low[0, 0]
    assert alone.high[0, 0] == together.high[0, 0]
    for value in np.linspace(data.train.x[:, 0].min(), data.train.x[:, 0].max(), 9):
        known = run.ranges(np.array([[value, 0.2]])).outputs
        assert alone.low[0, 0] <= known.low[0, 0]
        assert known.high[0, 0] <= alone.high[0, 0]
