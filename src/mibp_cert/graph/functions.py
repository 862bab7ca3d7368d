"""Smooth functions of one variable: their values, derivatives, and bounds of their second derivatives.

| name           | `φ(x)`           | `φ'(x)`              | `|φ''|` at most                       |
|----------------|------------------|----------------------|---------------------------------------|
| `sigmoid`      | `1/(1+e⁻ˣ)`      | `σ(1−σ)`             | `√3/18`, and `e^{−|x|}`               |
| `sigmoid slope`| `σ(1−σ)`         | `σ(1−σ)(1−2σ)`       | `1/8`, and `e^{−|x|}`                 |
| `tanh`         | `tanh x`         | `1−t²`               | `4√3/9`, and `8e^{−2|x|}`             |
| `tanh slope`   | `1−t²`           | `−2t(1−t²)`          | `2`, and `16e^{−2|x|}`                |
| `softplus`     | `log(1 + eˣ)`    | `σ`                  | `1/4`, and `e^{−|x|}`                 |
| `cos`          | `cos x`          | `−sin x`             | `1`                                   |
| `cos slope`    | `−sin x`         | `−cos x`             | `1`                                   |
| `exp`          | `eˣ`             | `eˣ`                 | `eˣ` at the upper end                 |
| `reciprocal`   | `1/x`, `x > 0`   | `−1/x²`              | `2/x³` at the lower end               |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]


@dataclass(frozen=True)
class Smooth:
    """A smooth function: what ordinary evaluation and bounds of it need to know.

    A float64 evaluation of `value`, here or in a training run, is off by at most `relative·(1 + |x|)·u·|φ(x)| + absolute·u`, with
    `u = 2⁻⁵³`; the factor `1 + |x|` covers runs that form the argument in another order (such as a softmax that first subtracts
    the largest logit).
    """

    name: str
    value: Callable[[Values], Values]
    slope: Callable[[Values], Values]
    curvature: Callable[[Values, Values], Values]
    """Upper bound of `|φ''|` on `[low, high]`; infinite where the interval leaves the function's domain."""
    shape: str
    """`rising`, `falling`, `peak`: even, and falling with `|x|`, or `wave`: as `cos`, up to a shift."""
    limits: tuple[float, float]
    """Smallest and largest value that `φ`, and a float64 evaluation of it, can take."""
    relative: float = 16.0
    absolute: float = 0.0
    positive: bool = False
    """Whether the function is defined for `x > 0` only."""
    crest: float = 0.0
    """A wave is largest here, and every `2π` from here."""


def _nearest(low: Values, high: Values) -> Values:
    """Distance of the interval from 0."""
    return np.maximum(np.maximum(low, -high), 0.0)


def _sigmoid(x: Values) -> Values:
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _sigmoid_slope(x: Values) -> Values:
    small = np.exp(-np.abs(x))
    return np.asarray(small / (1.0 + small) ** 2)


def _softplus(x: Values) -> Values:
    # A chain of rising functions: rounded or not, a larger argument never gives a smaller value.
    return np.maximum(x, np.log1p(np.exp(np.minimum(x, 700.0))))


def _tanh_slope(x: Values) -> Values:
    small = np.exp(-2.0 * np.abs(x))
    return np.asarray(4.0 * small / (1.0 + small) ** 2)


# Constants are rounded up in the last digit given; exponentials by one part in 10⁶.
SMOOTH = {
    function.name: function
    for function in (
        Smooth(
            "sigmoid",
            _sigmoid,
            _sigmoid_slope,
            lambda low, high: np.minimum(0.09622505, 1.000001 * np.exp(-_nearest(low, high))),
            "rising",
            (0.0, 1.0),
        ),
        Smooth(
            "sigmoid slope",
            _sigmoid_slope,
            lambda x: _sigmoid_slope(x) * (1.0 - 2.0 * _sigmoid(x)),
            lambda low, high: np.minimum(0.125, 1.000001 * np.exp(-_nearest(low, high))),
            "peak",
            (0.0, 0.25 + 2.0**-52),
            absolute=8.0,
        ),
        Smooth(
            "tanh",
            np.tanh,
            _tanh_slope,
            lambda low, high: np.minimum(0.7698004, 8.00001 * np.exp(-2.0 * _nearest(low, high))),
            "rising",
            (-1.0, 1.0),
        ),
        Smooth(
            "tanh slope",
            _tanh_slope,
            lambda x: -2.0 * np.tanh(x) * _tanh_slope(x),
            lambda low, high: np.minimum(2.0, 16.00002 * np.exp(-2.0 * _nearest(low, high))),
            "peak",
            (0.0, 1.0 + 2.0**-50),
            absolute=8.0,
        ),
        Smooth(
            "softplus",
            _softplus,
            _sigmoid,
            lambda low, high: np.minimum(0.25, 1.000001 * np.exp(-_nearest(low, high))),
            "rising",
            (0.0, np.inf),
        ),
        Smooth(
            "cos",
            np.cos,
            lambda x: -np.sin(x),
            lambda low, high: np.ones_like(high - low),
            "wave",
            (-1.0, 1.0),
            absolute=8.0,
        ),
        Smooth(
            "cos slope",
            lambda x: -np.sin(x),
            lambda x: -np.cos(x),
            lambda low, high: np.ones_like(high - low),
            "wave",
            (-1.0, 1.0),
            absolute=8.0,
            crest=-0.5 * np.pi,
        ),
        Smooth("exp", np.exp, np.exp, lambda low, high: 1.000001 * np.exp(high), "rising", (0.0, np.inf)),
        Smooth(
            "reciprocal",
            lambda x: 1.0 / x,
            lambda x: -1.0 / (x * x),
            lambda low, high: np.where(low > 0, 2.000002 / np.where(low > 0, low * low * low, 1.0), np.inf),
            "falling",
            (0.0, np.inf),
            positive=True,
        ),
    )
}
