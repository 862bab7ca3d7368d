"""The exact step: the paper's example, exactness, containment, limits and faults."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from conftest import small_data, small_step, trainings
from mibp_cert.data import Dataset
from mibp_cert.engines import SolverSettings
from mibp_cert.engines.base import Box
from mibp_cert.engines.exact import engine as exact
from mibp_cert.engines.exact.encode import Encoder
from mibp_cert.engines.exact.engine import Brackets, End, MibpEngine, Task, bound_graph, declare_training, treatments
from mibp_cert.engines.interval import IntervalEngine, enclose
from mibp_cert.engines.rounding import Interval
from mibp_cert.nets import SGD, Network, Step, loss_named, run_steps, trace_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.sets import ThreatSet
from mibp_cert.solvers import Bound, Objective, Program, Scip, Status
from mibp_cert.threats import LInf
from oracles import rational, search_step, train_rational

TIGHT = SolverSettings(gap=1e-4)


def _advance(
    pool: WorkerPool, box: Box, step: Step, threat: ThreatSet, settings: SolverSettings = TIGHT
) -> tuple[Box, Any]:
    return MibpEngine(settings, pool=pool).advance(box, step, threat)


@pytest.fixture
def example() -> tuple[Network, Step, Box, ThreatSet]:
    """The paper's worked example: x = (1, 1), target 1, ε = 1, λ = 1, no bias."""
    network = Network.mlp([2, 2, 1], bias=False)
    data = Dataset.of([[1.0, 1.0]], [1], (0, 1))
    step = trace_steps(network, loss_named("hinge", 1), SGD(1.0), 2, [np.array([0])])
    theta = np.array([1.0, 1.0, 1.0, -1.0, -1.0, 1.0])  # w11, w21, w12, w22, w5, w6
    return network, step, Box.point(theta), LInf(1.0).bind(data)


def test_paper_example_logit_is_tighter_than_intervals(example: Any, pool: WorkerPool) -> None:
    network, _, box, threat = example
    graph = network.forward_graph(1)
    hull = threat.hull()

    def declare(encoder: Encoder) -> Any:
        inputs = {name: encoder.box(t.low, t.high) for name, t in box.tensors(network.layout).items()}
        return {**inputs, "x": encoder.box(hull.x_low, hull.x_high)}

    found, _ = bound_graph(graph, declare, treatments(TIGHT), TIGHT, pool)
    assert (found.lower[0], found.upper[0]) == (pytest.approx(-4.0, abs=1e-4), pytest.approx(0.0, abs=1e-4))
    plain = enclose(graph, {**box.tensors(network.layout), "x": Interval(hull.x_low, hull.x_high)})["logits"]
    assert (plain.low[0, 0], plain.high[0, 0]) == (pytest.approx(-4.0), pytest.approx(2.0))


def test_paper_example_new_weights_and_second_step(example: Any, pool: WorkerPool) -> None:
    _, step, box, threat = example
    first, _ = _advance(pool, box, step, threat)
    np.testing.assert_allclose(first.lower, [-1, -1, 1, -1, -1, 1], atol=1e-4)
    np.testing.assert_allclose(first.upper, [1, 1, 3, 1, 3, 3], atol=1e-4)
    second, report = _advance(pool, first, step, threat)
    plain, _ = IntervalEngine().advance(first, step, threat)
    # w12 ≤ 1 + x1·w6-path: the exact ranges, attained to the honest gap of 1e-4 of the radius.
    np.testing.assert_allclose(second.lower, [-3, -3, 1, -1, -1, 1], atol=2e-3)
    np.testing.assert_allclose(second.upper, [7, 7, 47 / 6, 6.5, 4.25, 6], atol=2e-3)
    np.testing.assert_allclose(plain.upper, [7, 7, 9, 7, 7, 11], atol=1e-3)
    assert report.gap.max() <= 1e-4
    assert second.within(plain)


CASES = [([1], 2), ([2], 2), ([2, 1], 2), ([2, 2], 2), ([3, 2], 2), ([2, 2, 1], 2), ([2, 3], 3)]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soundness) for seed in (2, 3))])
@pytest.mark.parametrize(("sizes", "classes"), CASES)
def test_proven_bounds_are_never_inside_and_tight(sizes: list[int], classes: int, seed: int, pool: WorkerPool) -> None:
    """Random boxes around random parameters, against dense sampling with local search and the honest gap."""
    rng = np.random.default_rng([seed, sum(sizes), len(sizes)])
    data = small_data(rng, rows=3, classes=classes)
    network, step = small_step(data, sizes, rate=0.5)
    theta = rng.normal(size=network.layout.size)
    half = rng.random(theta.shape) * rng.choice([0.0, 0.02, 0.3], theta.shape)
    box, threat = Box(theta - half, theta + half), LInf(0.15).bind(data)
    # Bounds are moved outward by 1e-6 of the pre-analysis: an output that hardly moves is judged by that.
    settings = SolverSettings(gap=5e-3, floor=1e-4)
    after, report = _advance(pool, box, step, threat, settings)
    low, high = search_step(step, box, threat, seed)
    assert (after.lower <= low).all()
    assert (high <= after.upper).all()
    assert report.fallbacks == 0
    assert report.gap.max() <= settings.gap
    assert after.within(IntervalEngine().advance(box, step, threat)[0])


def _train_boxes(
    pool: WorkerPool, theta: Any, steps: list[Step], threat: ThreatSet, settings: SolverSettings = TIGHT
) -> list[Box]:
    box, boxes = Box.point(theta), []
    for step in steps:
        box, _ = _advance(pool, box, step, threat, settings)
        boxes.append(box)
    return boxes


@pytest.mark.parametrize(
    ("sizes", "batches"), [([3, 2], None), ([3, 1], [[0, 1, 2], [3, 4, 5]]), ([2, 2, 2], [[0, 3], [1, 4], [2, 5]])]
)
def test_models_trained_on_members_stay_inside(sizes: list[int], batches: Any, pool: WorkerPool) -> None:
    rng = np.random.default_rng(8)
    data = small_data(rng, rows=6)
    plan = [np.arange(6)] * 3 if batches is None else [np.array(b) for b in batches]
    steps = [small_step(data, sizes, rate=0.3, batches=[b])[1] for b in plan]
    network = Network.mlp([2, *sizes])
    threat, theta = LInf(0.1).bind(data), network.initialise(3)
    boxes = _train_boxes(pool, theta, steps, threat, SolverSettings(nodes_per_program=20))
    plain = Box.point(theta)
    for step, box in zip(steps, boxes, strict=True):
        plain, _ = IntervalEngine().advance(plain, step, threat)
        assert box.within(plain)
    attacks = _corner_attacks(steps, theta, threat, rng)
    members = [*threat.sample(rng, 60), *attacks]
    assert all(threat.contains(x, y) for x, y in members)
    for states, box in zip(trainings(steps, theta, members), boxes, strict=True):
        assert box.contains(states)


def _corner_attacks(
    steps: list[Step], theta: Any, threat: ThreatSet, rng: np.random.Generator
) -> list[tuple[Any, Any]]:
    """For each parameter and direction, the corner that a few rounds of coordinate flips push furthest."""
    hull = threat.hull()
    index, sign = np.repeat(np.arange(len(theta)), 2), np.tile([-1.0, 1.0], len(theta))
    corners = rng.random((len(index), *hull.x_low.shape)) < 0.5
    best = np.full(len(index), -math.inf)
    for _ in range(60):
        flipped = corners ^ (rng.random(corners.shape) < 0.2)
        members = [(x, hull.y_low) for x in np.where(flipped, hull.x_high, hull.x_low)]
        *_, states = trainings(steps, theta, members)
        values = sign * states[np.arange(len(index)), index]
        better = values > best
        best, corners[better] = np.where(better, values, best), flipped[better]
    return [(x, hull.y_low) for x in np.where(corners, hull.x_high, hull.x_low)]


def test_models_trained_by_pytorch_stay_inside(torch: Any, pool: WorkerPool) -> None:
    rng = np.random.default_rng(9)
    data = small_data(rng, rows=6)
    network, step = small_step(data, [3, 2], rate=0.3)
    threat, theta = LInf(0.1).bind(data), network.initialise(3)
    boxes = _train_boxes(pool, theta, [step] * 3, threat, SolverSettings())
    plain = Box.point(theta)
    plains = []
    for _ in range(3):
        plain, _ = IntervalEngine().advance(plain, step, threat)
        plains.append(plain)
    for x, _ in threat.sample(rng, 40):
        parameters = [torch.tensor(np.array(v), requires_grad=True) for v in network.layout.unflatten(theta).values()]
        optimiser = torch.optim.SGD(parameters, lr=0.3)
        rows, labels = torch.tensor(np.array(x)), torch.tensor(np.array(data.y, dtype=np.int64))
        for box, wide in zip(boxes, plains, strict=True):
            optimiser.zero_grad()
            out = torch.relu(rows @ parameters[0].T + parameters[1]) @ parameters[2].T + parameters[3]
            slack = torch.clamp(1 - out.gather(1, labels[:, None]) + out, min=0)
            (slack * (1 - torch.nn.functional.one_hot(labels, 2))).sum(1).mean().backward()
            optimiser.step()
            trained = np.concatenate([p.detach().numpy().ravel() for p in parameters])
            assert box.contains(trained)
            assert wide.contains(trained)


def test_two_steps_in_one_program_are_at_least_as_tight(pool: WorkerPool) -> None:
    rng = np.random.default_rng(10)
    data = small_data(rng, rows=3)
    network, single = small_step(data, [2, 1], rate=0.4)
    _, double = small_step(data, [2, 1], rate=0.4, batches=[np.arange(3), np.arange(3)])
    threat, theta = LInf(0.1).bind(data), network.initialise(1)
    apart = _train_boxes(pool, theta, [single, single], threat)[-1]
    together, report = _advance(pool, Box.point(theta), double, threat)
    # Each proven bound may be loose by its own recorded gap.
    slack = 1e-4 * np.maximum(together.radius, apart.radius) + 1e-9
    assert (together.lower >= apart.lower - slack).all()
    assert (together.upper <= apart.upper + slack).all()
    assert together.radius.sum() < 0.999 * apart.radius.sum()
    assert report.gap.max() <= 1e-2
    *_, states = trainings([single, single], theta, threat.sample(rng, 60))
    assert together.contains(states)


def test_widths_shrink_on_a_convex_problem_where_intervals_grow(pool: WorkerPool) -> None:
    """The paper's section 4: one linear layer, hinge; a box around the parameters, data without doubt.

    Where the hinge pulls every θ of the box towards margin 1, the exact step maps the box onto a smaller one; interval
    arithmetic adds the width of the gradient to that of θ and can only grow.
    """
    data = Dataset.of([[1.0], [-1.0]], [1, 0], (0, 1))
    network = Network.mlp([1, 1], bias=False)
    step = trace_steps(network, loss_named("hinge", 1), SGD(0.2), 2, [np.arange(2)])
    threat = LInf(0.0).bind(data)
    wide = exact_box = Box(np.array([0.5]), np.array([1.1]))
    exact_radii, wide_radii = [0.3], [0.3]
    for _ in range(2):
        wide, _ = IntervalEngine().advance(wide, step, threat)
        exact_box, _ = _advance(pool, exact_box, step, threat)
        exact_radii.append(float(exact_box.radius[0]))
        wide_radii.append(float(wide.radius[0]))
    # θ ≤ 1 moves up by 0.2, θ > 1 stays: [0.5, 1.1] → [0.7, 1.2] → [0.9, 1.2]; intervals: [0.5, 1.3] → [0.5, 1.5].
    assert exact_radii == pytest.approx([0.3, 0.25, 0.15], abs=1e-3)
    assert wide_radii == pytest.approx([0.3, 0.4, 0.5], abs=1e-3)


def _limited_case(seed: int) -> tuple[Box, Step, ThreatSet]:
    rng = np.random.default_rng(seed)
    data = small_data(rng, rows=5)
    network, step = small_step(data, [4, 2], rate=0.5)
    theta = rng.normal(size=network.layout.size)
    return Box(theta - 0.1, theta + 0.1), step, LInf(0.2).bind(data)


@lru_cache
def _limited_extremes(seed: int) -> tuple[Any, Any]:
    box, step, threat = _limited_case(seed)
    return search_step(step, box, threat)


def test_a_solve_stopped_after_one_node_is_sound(pool: WorkerPool) -> None:
    box, step, threat = _limited_case(12)
    limited = SolverSettings(gap=1e-3, nodes_per_program=1)
    loose, report = _advance(pool, box, step, threat, limited)
    low, high = _limited_extremes(12)
    assert (loose.lower <= low).all()
    assert (high <= loose.upper).all()
    assert report.gap.max() > limited.gap  # the stop was felt, and the honest gap says so


@pytest.mark.parametrize(
    "settings",
    [
        SolverSettings(seconds_per_program=0.0),
        SolverSettings(seconds_per_step=0.0),
        SolverSettings(nodes_per_program=0),
    ],
)
def test_a_budget_of_zero_gives_the_pre_analysis_and_counts_it(settings: SolverSettings, pool: WorkerPool) -> None:
    box, step, threat = _limited_case(13)
    loose, report = _advance(pool, box, step, threat, settings)
    assert report.fallbacks > 0
    assert loose.within(IntervalEngine().advance(box, step, threat)[0])
    low, high = _limited_extremes(13)
    assert (loose.lower <= low).all()
    assert (high <= loose.upper).all()


class _FindsNothing(Scip):
    """A solver that declares every program infeasible."""

    def run(self, program: Program, objectives: Any, limits: Any) -> Any:
        return [Bound(0.0, None, None, Status.INFEASIBLE, 0, 0.0) for _ in objectives]


class _ClaimsNan(Scip):
    """A solver whose proven bound is NaN."""

    def run(self, program: Program, objectives: Any, limits: Any) -> Any:
        return [Bound(math.nan, None, None, Status.OPTIMAL, 0, 0.0) for _ in objectives]


@dataclass(frozen=True, eq=False)
class _DeadlyProgram(Program):
    """A program that takes its worker down when an objective names one variable."""

    victim: int = 0

    def cut(self, needed: Any) -> Any:
        if self.victim in needed:
            os.abort()
        return super().cut(needed)


@pytest.mark.slow
def test_a_solver_that_aborts_its_process_costs_only_its_own_bounds(pool: WorkerPool) -> None:
    rng = np.random.default_rng(15)
    data = small_data(rng, rows=3)
    network, step = small_step(data, [2, 1], rate=0.5)
    theta = rng.normal(size=network.layout.size)
    box, threat = Box(theta - 0.1, theta + 0.1), LInf(0.2).bind(data)
    task, _ = Task.encode(step.graph, lambda e: declare_training(e, box, step, threat), Encoder(2e-3), TIGHT, math.inf)
    victim = int(task.output.linear[0].indices[0])
    parts = {field.name: getattr(task.program, field.name) for field in fields(Program)}
    deadly = replace(task, program=_DeadlyProgram(**parts, victim=victim))
    elements = np.arange(network.layout.size)
    fine = dict(exact.bound_outputs(pool, task, elements))
    hurt = dict(exact.bound_outputs(pool, deadly, elements))
    linear = task.output.linear
    for element in elements.tolist():
        deadly_one = victim in linear.indices[linear.indptr[element] : linear.indptr[element + 1]]
        assert hurt[element][0].usable != deadly_one
        if deadly_one:
            assert (hurt[element][0].outer, hurt[element][1].outer) == (task.low[element], task.high[element])
        else:
            assert hurt[element][0].outer == fine[element][0].outer
    assert any(not ends[0].usable for ends in hurt.values())


@pytest.mark.parametrize("faulty", [_FindsNothing, _ClaimsNan])
def test_an_infeasible_or_nan_answer_keeps_the_pre_analysis(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(14)
    data = small_data(rng, rows=4)
    network, step = small_step(data, [3, 2], rate=0.5)
    theta = rng.normal(size=network.layout.size)
    box, threat = Box(theta - 0.1, theta + 0.1), LInf(0.2).bind(data)
    encoder = Encoder(2e-3)
    task, _ = Task.encode(step.graph, lambda e: declare_training(e, box, step, threat), encoder, TIGHT, math.inf)
    monkeypatch.setattr(exact, "solver_named", lambda name: faulty())
    ends = [exact._bound_element(task, element) for element in range(network.layout.size)]
    lowers, uppers = np.array([low.outer for low, _ in ends]), np.array([high.outer for _, high in ends])
    assert not all(low.usable for low, _ in ends)
    unusable = np.array([not low.usable for low, _ in ends])
    np.testing.assert_array_equal(lowers[unusable], task.low[unusable])
    np.testing.assert_array_equal(uppers[unusable], task.high[unusable])


# Cases that once broke: kinks met exactly, and gates that are arguments of later gates ---------------------------------


def test_a_margin_of_exactly_one_is_never_declared_stable(pool: WorkerPool) -> None:
    """Sums that cancel to the kink: the affine range must know its own rounding."""
    data = Dataset.of([[-0.7, 0.1, 0.4, 0.7, 0.0]], [1], (0, 1))
    _, step = small_step(data, [1], rate=0.5)
    theta = np.array([0.6, 0.4, 0.4, -0.2, 0.7, 1.36])
    box, report = _advance(pool, Box.point(theta), step, LInf(0.0).bind(data))
    assert box.contains(run_steps([step], theta, data.x, data.one_hot))
    assert report.gap.min() >= 0


def _encoded(step: Step, box: Box, threat: ThreatSet) -> Task:
    task, _ = Task.encode(step.graph, lambda e: declare_training(e, box, step, threat), Encoder(2e-3), TIGHT, math.inf)
    return task


def test_one_decimal_data_at_margin_one_stay_inside() -> None:
    """Float and rational training of 300 problems whose margin is 1 up to rounding."""
    rng = np.random.default_rng(0)
    network = Network.mlp([5, 1])
    for _ in range(300):
        x, w = np.round(rng.uniform(-1, 1, 5), 1), np.round(rng.uniform(-1, 1, 5), 1)
        theta = np.append(w, 1.0 - float(np.round(w @ x, 2)))
        data = Dataset.of([x], [1], (0, 1))
        step = trace_steps(network, loss_named("hinge", 1), SGD(0.5), 2, [np.array([0])])
        task = _encoded(step, Box.point(theta), LInf(0.0).bind(data))
        truth = train_rational([step], rational(theta), rational(data.x), rational(data.one_hot))[0]
        trained = run_steps([step], theta, data.x, data.one_hot)
        for low, exact_value, value, high in zip(task.low, truth, trained, task.high, strict=True):
            assert Fraction(float(low)) <= exact_value <= Fraction(float(high))
            assert low <= value <= high


@pytest.mark.parametrize("solver", ["scip", "highs"])
def test_kinks_met_exactly_within_a_threat(solver: str, pool: WorkerPool) -> None:
    data = Dataset.of([[-0.5, 1.0], [-1.0, 0.5], [0.5, 0.5]], [1, 1, 1], (0, 1))
    _, step = small_step(data, [3, 1], rate=0.1, batches=[np.array([0, 1, 2]), np.array([0, 2])])
    theta = np.array([0.75, 0.125, 1, 0.875, 0.25, 1, 0, -0.5, -0.5, -0.75, -1, 0.75, 1])
    threat = LInf(0.2, rows=[0, 1]).bind(data)
    box, _ = _advance(pool, Box.point(theta), step, threat, SolverSettings(solver))
    assert all(box.contains(s) for s in trainings([step], theta, threat.sample(np.random.default_rng(0), 100)))


@pytest.mark.parametrize("solver", ["scip", "highs"])
def test_a_gate_that_is_the_argument_of_a_later_gate(solver: str, pool: WorkerPool) -> None:
    data = Dataset.of([[1.0, 0.0], [0.0, 1.0]], [1, 1], (0, 1))
    _, step = small_step(data, [2], rate=0.25, batches=[np.array([0]), np.array([1])])
    theta = np.array([0, 0, 0.1, -0.06, 0, 0.9])
    threat = LInf(0.2, rows=[0], columns=[0]).bind(data)
    box, report = _advance(pool, Box.point(theta), step, threat, SolverSettings(solver))
    assert all(box.contains(s) for s in trainings([step], theta, threat.sample(np.random.default_rng(0), 60)))
    assert report.gap.min() > -1e-6


def test_a_bound_contradicted_by_a_true_value_is_withdrawn() -> None:
    found = Brackets.around(np.zeros(3), np.ones(3))
    found.take(0, (End(0.4, 0.2, 0, True), End(0.9, 0.8, 0, True)))
    found.take(1, (End(0.1, 0.2, 0, True), End(0.9, 0.8, 0, True)))
    assert found.withdraw(np.full(3, -5.0), np.full(3, 5.0)) == 1
    assert found.lower.tolist() == [-5.0, 0.1, 0.0]
    assert found.upper.tolist() == [5.0, 0.9, 1.0]
    assert found.proven[:, 0].tolist() == [False, False]


def test_gurobi_and_highs_against_scip(pool: WorkerPool) -> None:
    """SCIP and Gurobi agree; HiGHS contains SCIP, and equals it where no bilinear term is kept."""
    pytest.importorskip("gurobipy")
    for seed in range(3):
        rng = np.random.default_rng(20 + seed)
        data = small_data(rng, rows=2)
        network, step = small_step(data, [2, 1], rate=0.5)
        theta = rng.normal(size=network.layout.size)
        threat = LInf(0.2).bind(data)
        for half in (0.0, 0.2):
            box = Box(theta - half, theta + half)
            boxes = {}
            for name in ("scip", "gurobi", "highs"):
                settings = SolverSettings(name, gap=1e-4)
                boxes[name], _ = _advance(pool, box, step, threat, settings)
            scale = 2e-4 * np.maximum(boxes["scip"].radius, 1e-6) + 1e-6
            assert (np.abs(boxes["scip"].lower - boxes["gurobi"].lower) <= scale).all()
            assert (np.abs(boxes["scip"].upper - boxes["gurobi"].upper) <= scale).all()
            assert (boxes["highs"].lower <= boxes["scip"].lower + scale).all()
            assert (boxes["highs"].upper >= boxes["scip"].upper - scale).all()
            if half == 0.0:
                assert (np.abs(boxes["scip"].lower - boxes["highs"].lower) <= scale).all()
                assert (np.abs(boxes["scip"].upper - boxes["highs"].upper) <= scale).all()


def test_an_objective_that_reaches_no_row_needs_no_solver() -> None:
    program = Program(
        -np.ones(2),
        np.ones(2),
        np.zeros(2, dtype=bool),
        None,
        np.zeros(0),
        np.zeros(0),
        np.zeros(0, dtype=np.intp),
        np.zeros((0, 3), dtype=np.intp),
    )
    for maximise, value in ((True, 3.0), (False, -3.0)):
        assert exact._closed_form(program, Objective(np.array([1.0, -2.0]), maximise)).proven == value
