"""Interval arithmetic and the interval engine: outward, monotone, and around every real or float64 training."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import small_data, small_step, trainings
from mibp_cert.engines import interval
from mibp_cert.engines.base import Box
from mibp_cert.engines.interval import IntervalEngine, enclose
from mibp_cert.engines.rounding import Interval, add_down, add_up, gamma, scale_down, scale_up
from mibp_cert.errors import SoundnessError
from mibp_cert.graph import Factor, GraphBuilder, evaluate
from mibp_cert.graph.interpret import TABLE as CONCRETE
from mibp_cert.nets import run_steps
from mibp_cert.threats import LInf
from oracles import evaluate_rational, rational, train_rational

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
moderate = st.floats(-1e150, 1e150, allow_nan=False, allow_subnormal=True)


@given(finite, finite)
def test_sums_are_bracketed_by_neighbouring_floats(a: float, b: float) -> None:
    with np.errstate(all="ignore"):
        low, high = (float(f(np.float64(a), np.float64(b))) for f in (add_down, add_up))
    exact = Fraction(a) + Fraction(b)
    if np.isfinite(low) and np.isfinite(high):
        assert Fraction(low) <= exact <= Fraction(high)
        assert high == low or high == np.nextafter(low, np.inf)


@given(moderate, st.fractions(-10, 10, max_denominator=997))
def test_scaling_by_a_rational_is_enclosed(a: float, factor: Fraction) -> None:
    for size in (abs(factor), abs(factor) + 1):
        one = np.array([a])
        low, high = (float(f(one, Factor(factor, size), np.abs(one))[0]) for f in (scale_down, scale_up))
        assert Fraction(low) <= factor * Fraction(a) <= Fraction(high)
        if a != 0 and abs(factor * Fraction(a)) > Fraction(1, 10**290):
            assert Fraction(high) - Fraction(low) >= 2 * size * abs(Fraction(a)) / 2**53 or size == 1 == abs(factor)


def test_a_factor_whose_parts_cancel_rounds_relative_to_every_operand() -> None:
    """`θ − λκθ` with `λκ` near 1: a run rounds relative to θ, wherever θ lies in its interval; wider stays wider."""
    rng = np.random.default_rng(0)
    low = rng.normal(size=2000)
    high = low + rng.random(2000)
    for rate, decay in ((0.5, 2.0), (0.1, 10.0), (0.3, 1 / 0.3), (0.7, 1.42)):
        value, size = 1 - Fraction(rate) * Fraction(decay), 1 + Fraction(rate) * Fraction(decay)
        g = GraphBuilder()
        graph = g.finish({"out": g.scale(g.input("a", (2000,)), value, size)})
        box = enclose(graph, {"a": Interval(low, high)})["out"]
        for share in (0.0, 0.3, 0.9, 1.0):
            theta = np.clip(low + share * (high - low), low, high)
            run = theta - rate * (decay * theta)
            assert ((box.low <= run) & (run <= box.high)).all()
            point = enclose(graph, {"a": Interval.point(theta)})["out"]
            assert ((box.low <= point.low) & (point.high <= box.high)).all()


def test_sums_with_overflowing_intermediates_are_bracketed() -> None:
    a, b = np.array([-float.fromhex("0x1.8p971")]), np.array([float.fromhex("0x1.fffffffffffffp1023")])
    with np.errstate(all="ignore"):
        for x, y in ((a, b), (-a, -b)):
            exact = Fraction(float(x[0])) + Fraction(float(y[0]))
            assert Fraction(float(add_down(x, y)[0])) <= exact <= Fraction(float(add_up(x, y)[0]))
        assert add_down(b, b)[0] == b[0]
        assert add_up(-b, -b)[0] == -b[0]


def test_gamma_is_an_upper_bound() -> None:
    for n in (1, 7, 1000, 10**6):
        assert Fraction(gamma(n)) >= Fraction(n, 2**53) / (1 - Fraction(n, 2**53))


def _contraction(spec: str, a: Any, b: Any) -> tuple[Any, Interval]:
    g = GraphBuilder()
    graph = g.finish({"out": g.contract(spec, g.input("a", a.low.shape), g.input("b", b.low.shape))})
    return graph, enclose(graph, {"a": a, "b": b})["out"]


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 1e-160, 1e-300, 1e-320, 1e140]))
def test_contractions_enclose_exact_products_of_every_size(seed: int, size: float) -> None:
    """Rational arithmetic at corners and inside, from large to subnormal numbers (products underflow)."""
    rng = np.random.default_rng(seed)
    low_a, low_b = size * rng.normal(size=(2, 3)), size * rng.normal(size=(4, 3))
    low_b[0] = 0.0
    a = Interval(low_a, low_a + size * rng.random((2, 3)) * (rng.random((2, 3)) < 0.7))
    b = Interval(low_b, low_b + size * rng.random((4, 3)) * (rng.random((4, 3)) < 0.7))
    graph, out = _contraction("bi,oi->bo", a, b)
    for _ in range(4):
        points = {name: np.where(rng.random(v.low.shape) < 0.5, v.low, v.high) for name, v in (("a", a), ("b", b))}
        exact = evaluate_rational(graph, {name: rational(p) for name, p in points.items()})["out"]
        computed = evaluate(graph, points)["out"]
        for index in np.ndindex(exact.shape):
            assert Fraction(float(out.low[index])) <= exact[index] <= Fraction(float(out.high[index]))
            assert out.low[index] <= computed[index] <= out.high[index]


def test_a_product_that_underflows_is_not_taken_for_zero() -> None:
    tiny = Interval.point(np.array([[1e-200]]))
    _, out = _contraction("bi,oi->bo", tiny, tiny)
    assert out.low[0, 0] < 0 < out.high[0, 0]


def test_exact_zeros_stay_exact() -> None:
    _, out = _contraction("bi,bi->bi", Interval.point(np.zeros((1, 2))), Interval(-np.ones((1, 2)), np.ones((1, 2))))
    assert (out.low == 0).all()
    assert (out.high == 0).all()


@pytest.mark.parametrize("eps", [0.0, 1e-15, 1e-6, 1e-2, 0.1])
@pytest.mark.parametrize(
    ("sizes", "scale"), [([2, 1], 1.0), ([2, 2], 1.0), ([2, 2, 2], 1.0), ([2, 3], 1e-310), ([2, 1], 1e8)]
)
def test_rational_training_of_members_stays_inside(eps: float, sizes: list[int], scale: float) -> None:
    rng = np.random.default_rng(3)
    data = small_data(rng, rows=3, classes=max(2, sizes[-1]))
    network, step = small_step(data, sizes, rate=0.3)
    threat = LInf(eps).bind(data)
    theta = scale * network.initialise(1)
    boxes = _boxes(Box.point(theta), [step] * 3, threat)
    for x, y in threat.sample(rng, 4):
        exact = train_rational([step] * 3, rational(theta), rational(x), rational(y))
        point = theta
        for box, truth in zip(boxes, exact, strict=True):
            assert all(
                Fraction(float(box.lower[i])) <= truth[i] <= Fraction(float(box.upper[i])) for i in range(len(truth))
            )
            point = step.train(point, x, y)
            assert box.contains(point)


def test_rational_training_with_kinks_and_ties_stays_inside() -> None:
    """Preactivations exactly 0, margins exactly 1 and equal logits, at zero width and at positive width."""
    data = small_data(np.random.default_rng(0), rows=4)
    _network, step = small_step(data, [2, 2], rate=0.5)
    x = np.array([[0.0, 0.0], [1.0, -1.0], [1.0, 1.0], [2.0, 0.0]])
    data = type(data).of(x, [0, 1, 0, 1], (0, 1))
    theta = np.array([1.0, 1.0, 1.0, -1.0, 0.0, 0.0, 1.0, 0.0, 0.5, 0.5, 1.0, 0.0])
    for eps in (0.0, 0.25):
        threat = LInf(eps).bind(data)
        boxes = _boxes(Box.point(theta), [step] * 3, threat)
        for member, y in [(data.x, data.one_hot), *threat.sample(np.random.default_rng(1), 6)]:
            exact = train_rational([step] * 3, rational(theta), rational(member), rational(y))
            for box, truth in zip(boxes, exact, strict=True):
                assert all(
                    Fraction(float(lo)) <= t <= Fraction(float(hi))
                    for lo, t, hi in zip(box.lower, truth, box.upper, strict=True)
                )


def _boxes(box: Box, steps: list[Any], threat: Any) -> list[Box]:
    boxes = []
    for step in steps:
        box, _ = IntervalEngine().advance(box, step, threat)
        boxes.append(box)
    return boxes


def test_bounds_widen_with_eps_to_the_last_bit() -> None:
    data = small_data(np.random.default_rng(4), rows=12)
    network, step = small_step(data, [5, 2], rate=0.1)
    previous: list[Box] | None = None
    for eps in (0.0, 1e-16, 1e-9, 1e-4, 1e-3, 0.0011, 0.01, 0.1):
        boxes = _boxes(Box.point(network.initialise(0)), [step] * 4, LInf(eps).bind(data))
        if previous is not None:
            assert all(narrow.within(wide) for narrow, wide in zip(previous, boxes, strict=True))
        previous = boxes


def test_zero_width_bounds_are_ordinary_training() -> None:
    data = small_data(np.random.default_rng(5), rows=10)
    network, step = small_step(data, [6, 2], rate=0.1)
    theta = network.initialise(0)
    boxes = _boxes(Box.point(theta), [step] * 5, LInf(0.0).bind(data))
    trained = run_steps([step] * 5, theta, data.x, data.one_hot)
    assert boxes[-1].contains(trained)
    assert boxes[-1].radius.max() < 1e-12


def test_nan_infinite_and_inverted_bounds_stop_with_step_and_parameter() -> None:
    network, _ = small_step(small_data(np.random.default_rng(0)), [2, 2])
    low, high = np.zeros(12), np.ones(12)
    Box(low, high).check(network.layout, 1)
    for bad in (np.nan, np.inf, -1.0):
        broken = high.copy()
        broken[3] = bad
        with pytest.raises(SoundnessError, match=r"step 7 .*0\.weight\[1, 1\]"):
            Box(low, broken).check(network.layout, 7)


def test_nan_never_becomes_a_sound_gate() -> None:
    g = GraphBuilder()
    graph = g.finish({"out": g.gate(g.input("a", (2,)), closed=True)})
    out = enclose(graph, {"a": Interval(np.array([np.nan, -1.0]), np.array([1.0, np.nan]))})["out"]
    assert not out.sound.any()


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("contract", lambda node, a, b: Interval.point(CONCRETE["contract"](node, a.low, b.low))),
        ("relu", lambda node, a: Interval(np.maximum(a.low, 0), np.maximum(a.low, 0))),
        ("gate", lambda node, a: Interval(np.where(a.low > 0, 1.0, 0.0), np.where(a.low > 0, 1.0, 0.0))),
        ("add", lambda node, a, b: Interval(a.low + b.high, a.high + b.high)),
        ("scale", lambda node, a: Interval(float(node.attribute.value) * a.low, float(node.attribute.value) * a.high)),
    ],
)
def test_a_wrong_rule_is_caught_by_containment(monkeypatch: pytest.MonkeyPatch, name: str, rule: Any) -> None:
    """Mutation: with one rule replaced by a wrong one, some member's training leaves its bounds (or they invert)."""
    rng = np.random.default_rng(6)
    data = small_data(rng, rows=8)
    network, step = small_step(data, [4, 2], rate=0.3)
    threat, theta = LInf(0.2).bind(data), network.initialise(4)
    members = threat.sample(rng, 30)

    def outside() -> bool:
        boxes = _boxes(Box.point(theta), [step] * 3, threat)
        *_, states = trainings([step] * 3, theta, members)
        return not boxes[-1].contains(states)

    assert not outside()
    monkeypatch.setitem(interval.TABLE, name, rule)
    assert outside()
