"""Smooth functions: values, ranges and bands hold against 60-digit arithmetic, and are as tight as they claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mibp_cert.engines import relax as smooth
from mibp_cert.engines.rounding import Interval
from mibp_cert.graph.functions import SMOOTH
from oracles import SMOOTH as EXACT
from oracles import mp

NAMES = sorted(SMOOTH)


def _points(name: str, rng: np.random.Generator, count: int) -> Any:
    """Arguments of all sizes, tiny and large ones among them."""
    size = 10.0 ** rng.uniform(-12, 2.5, count)
    x = size * (1.0 if SMOOTH[name].positive else rng.choice([-1.0, 1.0], count))
    return np.minimum(x, 700.0)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_enclosed(name: str) -> None:
    x = _points(name, np.random.default_rng(0), 3000)
    low, high = smooth.at(name, x)
    for a, down, up in zip(x.tolist(), low.tolist(), high.tolist(), strict=True):
        exact = EXACT[name](mp.mpf(a))
        assert mp.mpf(down) <= exact <= mp.mpf(up)
    # A margin that covers anything would pass, too: it is a few units in the last place.
    value = SMOOTH[name].value(x)
    assert (high - low <= 1e-13 * (1.0 + np.abs(x)) * (np.abs(value) + 1.0)).all()


@pytest.mark.parametrize("name", NAMES)
def test_values_of_pytorch_are_enclosed(torch: Any, name: str) -> None:
    """Values and the derivatives that autograd computes from them."""
    x = _points(name, np.random.default_rng(1), 20000)
    plain = torch.tensor(x, requires_grad=True)
    base = {name: getattr(torch, name) for name in ("sigmoid", "tanh", "cos", "exp", "reciprocal")}
    base["softplus"] = torch.nn.Softplus(threshold=40.0)
    out = base[name.split()[0]](plain)
    if name.endswith("slope"):
        out.sum().backward()
        out = plain.grad
    low, high = smooth.at(name, x)
    theirs = out.detach().numpy()
    assert ((low <= theirs) & (theirs <= high)).all()


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_and_curvature_bounds_are_right(name: str) -> None:
    function, rng = SMOOTH[name], np.random.default_rng(2)
    x = _points(name, rng, 400)
    x = x[np.abs(x) < 30]
    width = 10.0 ** rng.uniform(-6, 1, len(x))
    top = function.curvature(x, x + width)
    for a, w, c, slope in zip(x.tolist(), width.tolist(), top.tolist(), function.slope(x).tolist(), strict=True):
        derivative = mp.diff(EXACT[name], mp.mpf(a))
        assert abs(derivative - mp.mpf(slope)) <= 1e-13 * (1 + abs(derivative)) * (1 + abs(a))
        for t in (0.0, 0.3, 0.7, 1.0):
            assert abs(mp.diff(EXACT[name], mp.mpf(a) + mp.mpf(w) * t, 2)) <= mp.mpf(c) * (1 + mp.mpf(10) ** -20)


@pytest.mark.parametrize("name", NAMES)
def test_ranges_contain_all_values_and_touch_them(name: str) -> None:
    rng = np.random.default_rng(3)
    low = _points(name, rng, 300)
    high = low + 10.0 ** rng.uniform(-10, 1, len(low))
    box = smooth.range_of(name, Interval(low, high))
    inside = low + rng.random((200, len(low))) * (high - low)
    value = SMOOTH[name].value(np.clip(inside, low, high))
    assert ((box.low <= value) & (value <= box.high)).all()
    fine = np.linspace(low, high, 4001)
    seen = SMOOTH[name].value(fine)
    slack = 1e-5 * (seen.max(axis=0) - seen.min(axis=0)) + 1e-12 * (1 + np.abs(low) + np.abs(seen).max(axis=0))
    with np.errstate(over="ignore"):
        slack = slack + 1e-13 * np.abs(low) * np.abs(seen).max(axis=0)
        assert (box.high <= seen.max(axis=0) + slack).all()
        assert (box.low >= seen.min(axis=0) - slack).all()


@pytest.mark.parametrize("name", NAMES)
def test_bands_contain_the_function_and_are_tight(name: str) -> None:
    rng = np.random.default_rng(4)
    low = _points(name, rng, 300)
    low = low[np.abs(low) < 20]
    width = 10.0 ** rng.uniform(-9, 1, len(low))
    high = low + width
    for slope in (smooth.secant(name, low, high), rng.normal(size=len(low)), np.zeros(len(low))):
        bottom, top = smooth.bands(name, low, high, slope)
        x = np.clip(low + rng.random((60, len(low))) * width, low, high)
        for row in (low, high, *x):
            for a, k, b, t in zip(row[::7], slope[::7], bottom[::7], top[::7], strict=True):
                height = EXACT[name](mp.mpf(float(a))) - mp.mpf(float(k)) * mp.mpf(float(a))
                assert mp.mpf(float(b)) <= height <= mp.mpf(float(t))
        fine = np.linspace(low, high, 2001)
        seen = SMOOTH[name].value(fine) - slope * fine
        allowed = width**2 / 8 * SMOOTH[name].curvature(low, high) / smooth.PIECES**2
        noise = (
            1e-13
            * (1 + np.abs(low))
            * (np.abs(SMOOTH[name].value(fine)).max(axis=0) + np.abs(slope * fine).max(axis=0) + 1)
        )
        assert (top <= seen.max(axis=0) + 1.01 * allowed + noise).all()
        assert (bottom >= seen.min(axis=0) - 1.01 * allowed - noise).all()


@given(st.sampled_from(NAMES), st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=True))
def test_no_argument_gives_an_inverted_or_falsely_finite_range(name: str, a: float, b: float) -> None:
    low, high = np.minimum([a], [b]), np.maximum([a], [b])
    with np.errstate(all="ignore"):
        box = smooth.range_of(name, Interval(low, high))
    if np.isnan(a) or np.isnan(b) or (SMOOTH[name].positive and low[0] <= 0):
        assert not box.sound[0]
    else:
        assert not box.low[0] > box.high[0]


def test_overflowing_exponentials_give_bounded_shares() -> None:
    """A softmax over logits that overflow: infinite in between, but the shares stay in [0, 1]."""
    with np.errstate(all="ignore"):
        wide = smooth.range_of("exp", Interval(np.array([-1e4]), np.array([1e4])))
        share = smooth.range_of("reciprocal", Interval(wide.low + 1.0, wide.high + 1.0))
    assert wide.high[0] == np.inf
    assert 0.0 <= share.low[0] <= 1e-300
    assert 1.0 <= share.high[0] <= 1.0 + 1e-12
