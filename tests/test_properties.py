"""Postconditions: what is said to hold does so for every model that can be trained, and joint flips are counted rightly."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from cases import survey
from conftest import predictor, small_data
from mibp_cert import LabelFlips, LInf, Network, Training, Verdict, certify_training, collective, fair, holds, monotone
from mibp_cert.certify import CertifiedRun, predict
from mibp_cert.certify.predict import Answers, nominal_classes, nominal_outputs
from mibp_cert.data import Dataset, Split, two_moons
from mibp_cert.engines import Inputs, RelationalEngine, RelationalSettings, SolverSettings
from mibp_cert.engines.base import Box
from mibp_cert.engines.relational import RelationalSet
from mibp_cert.errors import UserError
from mibp_cert.nets import Linear, ReLU, Tanh, run_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.questions.collective import _segments
from mibp_cert.questions.conditions import Conditions, prove
from mibp_cert.questions.properties import Questions, describe
from mibp_cert.sets import Segments
from mibp_cert.solvers import FEASIBILITY, Limits, Objective, ProgramBuilder, Status, solver_named
from mibp_cert.threats import AnyCategory, Threat, label_is

pytestmark = pytest.mark.usefixtures("one_pool")
METHODS = ["interval", "crown", "relational", "exact"]
CASES = [(method, hidden) for method in METHODS for hidden in (False, True) if not (hidden and method == "exact")]
"""Method and whether the model has a hidden layer; the solver is asked about the smaller model."""


@lru_cache
def survey_run(hidden: bool = False) -> CertifiedRun:
    """A model of the survey whose data are a little noisy."""
    train = survey(20, 0, missing=False)
    parts = [train, *(survey(n, seed, missing=False, like=train) for n, seed in ((6, 1), (8, 2)))]
    sizes = [parts[0].features, *([3] if hidden else []), 2]
    network = Network.mlp(sizes, activation=Tanh())
    training = Training(epochs=6, learning_rate=0.5, loss="cross-entropy")
    threat = LInf({"age": 0.5, "income": 0.05})
    settings = SolverSettings(seconds_per_step=10.0, seconds_per_program=1.0)
    return certify_training(network, Split("survey", *parts), threat, training, solver=settings)


def _test(run: CertifiedRun) -> Dataset:
    assert isinstance(run.data, Split)
    return run.data.test


def _models(run: CertifiedRun, count: int = 30) -> Any:
    """Models really trained on members of the run's threat."""
    assert run.attack is not None
    return run.attack.theta[:count]


@pytest.mark.parametrize(("method", "hidden"), CASES)
def test_a_fair_class_is_the_same_for_every_value_and_every_model(method: str, hidden: bool) -> None:
    run = survey_run(hidden)
    x = _test(run).x
    for name in ("mood", "age"):
        answer = fair(run, x, name, method)
        column = run.train.columns[run.train.column(name)]
        rng = np.random.default_rng(0)
        for theta in _models(run):
            for _ in range(6):
                changed = np.array(x)
                if column.categories is not None:
                    choice = rng.integers(len(column.categories), size=len(x))
                    changed[:, column.start : column.stop] = np.eye(len(column.categories))[choice]
                else:
                    values = run.train.x[:, column.start]
                    changed[:, column.start] = rng.uniform(values.min(), values.max(), len(x))
                classes = nominal_classes(run.network, theta, changed)
                held = np.array([v is Verdict.HOLDS for v in answer.verdicts])
                assert (classes == answer.certified.classes)[held].all()
        assert not (answer.broken & answer.certified.certified).any()


def test_a_row_outside_of_the_training_range_counts_with_its_own_value() -> None:
    run = survey_run()
    age = run.train.columns[run.train.column("age")]
    x = np.array(_test(run).x)
    x[:, age.start] = 1000.0
    classes = nominal_classes(run.network, run.theta, x)
    answer = fair(run, x, "age")
    held = answer.certified.certified
    assert (classes == answer.certified.classes)[held].all()
    values = run.train.x[:, age.start]
    inside = np.array(x)
    inside[:, age.start] = values.mean()
    changed = nominal_classes(run.network, run.theta, inside) != classes
    assert changed.any()
    assert not held[changed].any()


def test_fairness_decides_some_rows_and_shows_where_it_fails() -> None:
    run = survey_run()
    verdicts = [v for name in ("mood", "age", "income") for v in fair(run, _test(run).x, name).verdicts]
    assert Verdict.HOLDS in verdicts
    assert Verdict.FAILS in verdicts


@pytest.mark.parametrize(("method", "hidden"), CASES)
def test_a_monotone_output_never_falls_for_any_model(method: str, hidden: bool) -> None:
    run = survey_run(hidden)
    x = _test(run).x
    seen = set()
    for name in ("age", "income"):
        column = run.train.columns[run.train.column(name)]
        values = run.train.x[:, column.start]
        for rising in (True, False):
            verdicts = monotone(run, x, name, rising=rising, method=method)
            seen.update(verdicts)
            for theta in _models(run):
                path = []
                for value in np.linspace(values.min(), values.max(), 12):
                    changed = np.array(x)
                    changed[:, column.start] = value
                    logits = nominal_outputs(run.network, theta, changed)
                    path.append(logits[:, 1] - logits[:, 0])
                steps = np.diff(np.stack(path), axis=0) * (1.0 if rising else -1.0)
                held = np.array([v is Verdict.HOLDS for v in verdicts])
                assert (steps[:, held] >= -1e-12).all()
                # A row cannot be proven to rise where a model falls.
                assert not (held & (steps < -1e-9).any(axis=0)).any()
    assert {Verdict.HOLDS, Verdict.FAILS} <= seen


def _condition(number: int) -> Any:
    return [
        lambda m: m.out(0, 1) - m.out(0, 0) <= 3.0,
        lambda m: (m.out(0, 0) >= m.out(0, 1)) | (m.out(0, 1) >= m.out(0, 0) - 0.01),
        lambda m: (m.parameter("0.bias", 0) - m.clean("0.bias", 0) <= 0.5) & (m.out(1, 0) <= 5.0),
        lambda m: (m.out(0, 0) - m.out(0, 1)) * (m.out(0, 0) - m.out(0, 1)) <= 16.0,
        lambda m: m.out(0, 0) >= 100.0,
        lambda m: (m.out(0, 0) >= m.out(0, 1)).implies(m.out(0, 0) - m.out(0, 1) >= -0.02),
    ][number]


@pytest.mark.parametrize("method", METHODS)
def test_conditions_are_decided_as_every_model_says(method: str) -> None:
    run = survey_run()
    x = _test(run).x[:3]
    verdicts = [holds(run, _condition(i), x, method) for i in range(6)]
    assert verdicts[0] is verdicts[2] is verdicts[3] is Verdict.HOLDS
    assert verdicts[4] is Verdict.FAILS
    if method == "exact":
        # Each side alone can fail, together they cannot.
        assert verdicts[1] is verdicts[5] is Verdict.HOLDS


@pytest.mark.parametrize("row", range(3))
def test_the_exact_check_does_not_prove_what_a_model_breaks(row: int) -> None:
    """Conditions cut through the middle of what models really do."""
    run = survey_run()
    x = _test(run).x[:3]
    lead = np.array([nominal_outputs(run.network, t, x)[row] @ [-1.0, 1.0] for t in _models(run, 200)])
    cut, gap = float(0.5 * (lead.min() + lead.max())), float(0.2 * (lead.max() - lead.min()))
    assert lead.min() < cut - gap < cut + gap < lead.max()

    def broken(m: Any) -> Any:
        return (m.out(row, 1) - m.out(row, 0) <= cut) & (m.out(row, 1) <= 50.0)

    def either(m: Any) -> Any:
        return (m.out(row, 1) - m.out(row, 0) <= cut - gap) | (m.out(row, 1) - m.out(row, 0) >= cut + gap)

    assert holds(run, broken, x, "exact") is Verdict.OPEN
    assert holds(run, either, x, "exact") is Verdict.OPEN


@pytest.mark.parametrize("method", METHODS)
def test_numbers_that_no_float_is_equal_to_are_not_rounded_in_conditions(method: str, one_pool: WorkerPool) -> None:
    """A third of a parameter is more than its product with the nearest float, `0.333… < 1/3`; by how much is magnified here."""
    network, x = Network.mlp([2, 2]), np.array([[1.0, 1.0]])
    box, models = _box_of_models(network, 0.01)
    model, engine = Conditions(network, models[0], 1), predictor(method, one_pool, SolverSettings(jobs=1))
    place = int(np.argmin(-np.abs(models[0][:4])))
    p = model.parameter("0.weight", *divmod(place, 2)) * float(np.sign(models[0][place]))  # positive in every model
    third = p / 3
    more = third - p * (1 / 3)
    for expression in (more * 1e20, more * (1e20 * p), 1e20 * ((more + 0.1) + 0.2) - 1e20 * (0.1 + 0.2) + 1e4):
        assert prove(expression > 0, model, box, Inputs(x), engine) is True
        assert prove(expression <= 0, model, box, Inputs(x), engine) is False


class _Numbers:
    """One model in place of `Conditions`: the same words, answered with numbers."""

    def __init__(self, network: Network, theta: Any, x: Any) -> None:
        self.outputs, self.parameters = nominal_outputs(network, theta, x), network.layout.unflatten(theta)

    def out(self, row: int, output: int) -> float:
        return float(self.outputs[row, output])

    def parameter(self, name: str, *index: int) -> float:
        return float(self.parameters[name][index])


def _box_of_models(network: Network, radius: float) -> tuple[RelationalSet, Any]:
    """A box around an initial model, which every method can take, and models in it, its corners among them."""
    theta, rng = network.initialise(0), np.random.default_rng(0)
    threat = LInf(0.1).bind(small_data(rng))
    box = RelationalSet.around(Box(theta - radius, theta + radius), threat)
    share = rng.uniform(-1.0, 1.0, (400, len(theta)))
    share[::2] = np.sign(share[::2])
    return box, np.clip(theta + radius * share, box.lower, box.upper)


PRODUCTS: list[Any] = [
    lambda m: (m.out(0, 0) - m.out(1, 1)) * (m.out(0, 1) + 1.0),
    lambda m: -2.0 * m.parameter("0.bias", 0) * m.out(1, 0) + m.out(0, 1),
    lambda m: (
        m.out(0, 0) * m.out(0, 0) + 3.0 * (m.parameter("0.weight", 0, 1) * m.parameter("0.bias", 1)) - m.out(1, 0)
    ),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", range(len(PRODUCTS)))
def test_conditions_with_products_are_decided_as_every_model_says(
    number: int, method: str, one_pool: WorkerPool
) -> None:
    """Cuts on both sides of what models reach are decided rightly, and one through the middle of it not at all."""
    network, x = Network.mlp([2, 2]), np.array([[1.5, -0.5], [-1.0, 2.0]])
    box, models = _box_of_models(network, 0.03)
    expression, model = PRODUCTS[number], Conditions(network, models[0], len(x))
    values = np.array([expression(_Numbers(network, theta, x)) for theta in models])
    low, high = float(values.min()), float(values.max())
    width = high - low
    settings = SolverSettings(jobs=1, seconds_per_program=2.0)
    for cut, wanted in ((high + 3.0 * width, True), (0.5 * (low + high), None), (low - 3.0 * width, False)):
        below, above = expression(model) <= cut, expression(model) > cut
        assert prove(below, model, box, Inputs(x), predictor(method, one_pool, settings)) is wanted
        assert prove(above, model, box, Inputs(x), predictor(method, one_pool, settings)) is (
            None if wanted is None else not wanted
        )


def test_the_exact_check_proves_what_no_range_decides_but_not_within_the_tolerance(one_pool: WorkerPool) -> None:
    """`o ≤ c + δ` or `o ≥ c − δ`: each can fail, together they cannot; said to hold only if δ is beyond the tolerance."""
    network, x = Network.mlp([2, 1]), np.array([[1.5, -0.5]])
    box, models = _box_of_models(network, 0.1)
    model, exact = Conditions(network, models[0], 1), predictor("exact", one_pool, SolverSettings(jobs=1))
    outputs = np.array([nominal_outputs(network, theta, x)[0, 0] for theta in models])
    cut, radius = float(0.5 * (outputs.min() + outputs.max())), 0.1 * (1.5 + 0.5 + 1.0)
    found = {}
    for share in (3.0 * FEASIBILITY, 1e-3):
        below, above = model.out(0) <= cut + share * radius, model.out(0) >= cut - share * radius
        assert outputs.min() < cut - share * radius
        assert outputs.max() > cut + share * radius
        assert prove(below | above, model, box, Inputs(x), predictor("interval")) is None
        found[share] = prove(below | above, model, box, Inputs(x), exact)
        # Both at once, models on either side break.
        assert prove(below & above, model, box, Inputs(x), exact) is None
    assert found == {3.0 * FEASIBILITY: None, 1e-3: True}


def test_strict_comparisons_are_not_proven_by_closed_ones() -> None:
    """An output of a final relu is exactly 0 for every model: it is not above 0, and `≤ 0` implies nothing false."""
    data = two_moons(0)
    network = Network((Linear(2, 2), ReLU()), 2)
    run = certify_training(network, data, LInf(0.01), Training(epochs=1, loss="squared-error"), attacked=False)
    low, high = run.ranges(data.test.x).outputs.low, run.ranges(data.test.x).outputs.high
    dead = np.argwhere((high == 0) & (low == 0))
    assert len(dead)
    row, k = (int(v) for v in dead[0])
    x = data.test.x
    for method in METHODS:
        assert holds(run, lambda m: m.out(row, k) <= 0, x, method) is Verdict.HOLDS
        assert holds(run, lambda m: m.out(row, k) > 0, x, method) is Verdict.FAILS
        assert holds(run, lambda m: ~(m.out(row, k) <= 0), x, method) is Verdict.FAILS
        assert holds(run, lambda m: m.out(row, k) < m.out(row, k), x, method) is not Verdict.HOLDS
        assert holds(run, lambda m: (m.out(row, k) <= 0).implies(m.out(0, 0) <= -1), x, method) is Verdict.FAILS
        assert holds(run, lambda m: (m.out(row, k) < 0).implies(m.out(0, 0) <= -1), x, method) is Verdict.HOLDS


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: holds(run, lambda m: m.parameter("9.weight", 0) <= 1), "no parameter called '9.weight'"),
        (lambda run: holds(run, lambda m: m.parameter("0.weight", 0) <= 1), "has the shape"),
        (lambda run: holds(run, lambda m: m.out(0, 0) <= 1), "hand in the rows"),
        (lambda run: holds(run, lambda m: True), "must return a rule"),
        (lambda run: monotone(run, run.data.test.x, "age", output=7), "no output 7"),
        (lambda run: run.certify(run.data.test.x, threat=LInf(1.0).where(label_is(1))), "depends on the rows' labels"),
        (lambda run: monotone(run, run.data.test.x, "mood"), "categorical"),
        (lambda run: monotone(run, run.data.test.x, "age", limits=(5.0, 1.0)), "in order"),
        (lambda run: fair(run, run.data.test.x, "gender"), "gender"),
        (lambda run: Questions(rising=("mood",)).check(run.data), "categorical"),
        (lambda run: Questions(margin=-1.0).check(run.data), "margin"),
        (lambda run: Questions(collective=True).check(run.data, test_threat=True), "one training dataset"),
    ],
)
def test_bad_questions_are_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        call(survey_run())
    assert "\n" not in str(caught.value)


def _tiny(threat: Threat, **settings: Any) -> CertifiedRun:
    data = two_moons(0, sizes=(10, 10, 60))
    training = Training(epochs=8, learning_rate=0.5, loss="cross-entropy")
    return certify_training(Network.mlp([2, 2]), data, threat, training, relational=RelationalSettings(**settings))


@lru_cache
def _one_flip(cases: int) -> tuple[CertifiedRun, Any]:
    """A run with at most one wrong label, and the joint flips found by trying all members."""
    run = _tiny(LabelFlips(1), cases=cases)
    return run, collective(run)


@pytest.mark.parametrize("cases", [0, 128])
def test_joint_flips_are_exact_on_finite_threats_and_fewer_than_single_ones(cases: int) -> None:
    run, found = _one_flip(cases)
    # By hand: each of the eleven datasets, trained, and its flips counted.
    steps, begin = run.request.plan.steps[: run.steps], run.request.plan.begin
    data, flips = run.train, []
    for rows in [(), *combinations(range(len(data)), 1)]:
        y = np.array(data.one_hot)
        y[list(rows)] = 1.0 - y[list(rows)]
        theta = run_steps(steps, begin, data.x, y)
        flips.append(int((nominal_classes(run.network, theta, _test(run).x) != run.nominal).sum()))
    assert found.exact
    assert found.reached == found.proven == max(flips)
    assert 0 < found.proven < found.single


@pytest.mark.parametrize("cases", [0, 128])
def test_the_proven_number_of_joint_flips_is_never_below_a_real_one(cases: int) -> None:
    """The program alone, without trying all members: above every real dataset, below the number of single points."""
    run, exact = _one_flip(cases)
    bound = collective(run, members=0)
    assert not bound.exact
    assert exact.reached <= bound.proven <= bound.single
    if cases:
        assert bound.proven < bound.single


def test_a_choice_that_is_switched_off_is_at_zero() -> None:
    """Pieces under a budget contain 0; one that could not be switched off would leave the program without its true points."""
    two, ones = np.array([2], dtype=np.intp), np.ones(2)
    for kind in ("choice", "corner"):
        builder = ProgramBuilder()
        symbols, switch = builder.add_variables(2), builder.add_variables(1, 0.0, 0.0, integer=True)
        pieces = Segments(kind, two, np.zeros(1, dtype=np.intp), 0.0 * ones, ones)
        _segments(builder, pieces, symbols, np.repeat(switch, 2))
        (found,) = solver_named("highs").solve(builder.finish(), [Objective(np.ones(3), True)], Limits())
        assert found.status is Status.OPTIMAL
        assert found.proven == pytest.approx(0.0, abs=1e-6)


def test_joint_flips_count_what_no_symbol_of_the_set_explains() -> None:
    """`o = 0.9 − relu(x + ε)`: the line through the kink alone never falls below 0.15, yet models with `ε > 0.9` flip."""
    train, x = Dataset.of([[-1.0], [1.0]], [0, 1]), np.array([[0.0], [0.05], [-0.3], [-3.0]])
    data = Split("kink", train, train, Dataset.of(x, [0, 1, 1, 1]))
    network = Network((Linear(1, 1), ReLU(), Linear(1, 1)), 1)
    run = certify_training(network, data, LInf(0.1), Training(epochs=1), attacked=False)
    # In turn: weight 1, bias ε, weight −1, bias 0.9.
    theta, noise = np.array([1.0, 0.0, -1.0, 0.9]), LInf(0.1).bind(train).noise()
    linear = np.zeros((4, noise.symbols))
    linear[1, 0] = 1.0
    reach = np.abs(linear).sum(axis=1)
    state = RelationalSet(theta - reach, theta + reach, theta, linear, np.zeros(4), noise)
    nominal = nominal_classes(network, theta, x)
    answer = predict(network, state, Inputs(x), RelationalEngine())
    found = collective(replace(run, theta=theta, bounds=state, answers=Answers(answer, nominal=nominal)))
    models = [theta + linear[:, 0] * epsilon for epsilon in np.linspace(-1.0, 1.0, 41)]
    flips = max(int((nominal_classes(network, one, x) != nominal).sum()) for one in models)
    assert flips == 2
    assert flips <= found.proven <= found.single


def test_noise_flips_fewer_at_once_than_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # here with workers of its own, as everywhere outside of these tests
    run = _tiny(LInf(0.1))
    found = collective(run)
    assert found.reached <= found.proven < found.single
    without = collective(
        replace(run, bounds=run.bounds.first(len(run.theta)), answers=replace(run.answers, attack=None))
    )
    assert without.proven == found.proven
    assert without.reached == 0


def test_members_of_finite_threats_are_all_there() -> None:
    data = survey(4, missing=False)
    flips = LabelFlips(2).bind(data).members(1000)
    assert flips is not None
    assert len(flips) == 1 + 4 + 6
    assert len({m[1].tobytes() for m in flips}) == 11
    choices = (AnyCategory("mood") & LabelFlips(1)).bind(data).members(10_000)
    assert choices is not None
    assert len(choices) == 3**4 * 5
    bound = (AnyCategory("mood") & LabelFlips(1)).bind(data)
    assert all(bound.contains(x, y) for x, y in choices)
    assert AnyCategory("mood").bind(data).members(80) is None
    assert LInf(0.1).bind(data).members(10**9) is None


def test_questions_are_answered_together_and_in_words() -> None:
    run = survey_run()
    asked = Questions(margin=0.1, protected=("mood",), rising=("age",), falling=("income",), collective=True)
    answers = asked.ask(run)
    assert set(answers) == {"margin", "protected", "output", "rising", "falling", "collective"}
    assert sum(answers["protected"]["mood"].values()) == len(_test(run))
    text = "\n".join(describe(answers))
    for words in ("Margin of at least 0.1", "Same class whatever 'mood' is", "only rises with 'age'", "Flips at once"):
        assert words in text


def test_properties_of_a_regression() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    parts = [Dataset.regression(x[a:b], x[a:b] @ [1.0, -0.5]) for a, b in ((0, 20), (20, 25), (25, 30))]
    run = certify_training(
        Network.mlp([2, 1]), Split("line", *parts), LInf(0.02), Training(epochs=20, loss="squared-error")
    )
    assert monotone(run, parts[2].x, 0) == [Verdict.HOLDS] * 5
    assert monotone(run, parts[2].x, 1, rising=False) == [Verdict.HOLDS] * 5
    assert monotone(run, parts[2].x, 1) == [Verdict.FAILS] * 5
    with pytest.raises(UserError, match="ranges"):
        run.certify(parts[2].x)
    with pytest.raises(UserError, match="classes"):
        collective(run)
