"""Outward rounding: floating-point results that bound the real ones, and every float64 evaluation order besides.

`u = 2⁻⁵³` is the unit roundoff, `γ_n = n·u / (1 − n·u)`. Adding or multiplying `n` numbers in any order changes the
result by at most `γ_n` times the same expression in absolute values, plus `n·2⁻¹⁰⁷⁴` for products that underflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mibp_cert.graph import Factor

Array = NDArray[np.float64]

UNIT = 2.0**-53
TINY = 2.0**-1074
LARGEST = float(np.finfo(np.float64).max)


def gamma(n: int) -> float:
    """A float that is at least `γ_n`."""
    return float(np.nextafter(n * UNIT / (1.0 - n * UNIT), np.inf))


def add_down(a: Array, b: Array) -> Array:
    """Largest float not above the real `a + b` (exact sums stay exact); an overflowing sum is at least the largest float."""
    total, error = _two_sum(a, b)
    down = np.where(error >= 0, total, np.nextafter(total, -np.inf))
    return np.where((total == np.inf) & np.isfinite(a) & np.isfinite(b), LARGEST, down)


def add_up(a: Array, b: Array) -> Array:
    """Smallest float not below the real `a + b`."""
    return -add_down(-a, -b)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Knuth's error-free transformation: `a + b = total + error` exactly; the error is NaN where an intermediate overflows."""
    total = a + b
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    return total, np.where(np.isfinite(error), error, np.nan)


def scale_down(a: Array, factor: Factor, largest: Array) -> Array:
    """A float not above the real `factor · a`; exact for `a = 0` and for `factor = ±1`.

    Allows for the rounding of the factor itself, of the product, and of a training run that divides and multiplies by
    the factor's parts one after the other, or sums them up: eight roundings of `u` each, relative to the factor's size. Where
    the parts cancel, what they round is relative to the operand at hand, not to the end `a` of its interval; `largest` bounds
    its absolute value.
    """
    product = float(factor.value) * a
    if factor.exact:
        return product
    up = 1.0 + 4.0 * UNIT
    slip = 8.0 * UNIT * up * (float(abs(factor.value)) * np.abs(a))
    if factor.size > abs(factor.value):
        slip = slip + 8.0 * UNIT * up * (float(factor.size) * largest)
    return np.where((a == 0.0) & (slip == 0.0), 0.0, np.nextafter(product - slip, -np.inf))


def scale_up(a: Array, factor: Factor, largest: Array) -> Array:
    """A float not below the real `factor · a`; see `scale_down`."""
    return -scale_down(-a, factor, largest)


def sum_error(magnitude: Array, n: int, underflow: Array | bool) -> Array:
    """Bound on what `n` products and their sum lose, for terms whose absolute values sum up to `magnitude`.

    Counted twice: once for the bound computed here, once for a training run whose own float64 arithmetic is to be
    enclosed. `underflow` says where a product of nonzero factors may have underflowed; elsewhere exact zeros stay exact.
    """
    return 2.0 * gamma(n + 4) * magnitude + np.where(underflow, 2.0 * n * TINY, 0.0)


@dataclass(frozen=True, eq=False)
class Interval:
    """All tensors between `low` and `high`, element by element."""

    low: Array
    high: Array

    @classmethod
    def point(cls, value: ArrayLike) -> Interval:
        array = np.asarray(value, dtype=np.float64)
        return cls(array, array)

    @classmethod
    def hull(cls, intervals: Sequence[Interval]) -> Interval:
        """The smallest interval around several; NaN in any of them stays."""
        low, high = intervals[0].low, intervals[0].high
        for other in intervals[1:]:
            low, high = np.minimum(low, other.low), np.maximum(high, other.high)
        return cls(low, high)

    def __getitem__(self, index: NDArray[np.intp]) -> Interval:
        return Interval(self.low[index], self.high[index])

    def meet(self, other: Interval) -> Interval:
        return Interval(np.maximum(self.low, other.low), np.minimum(self.high, other.high))

    @property
    def sound(self) -> NDArray[np.bool_]:
        """Where the interval is usable: finite at both ends and not inverted (NaN is neither)."""
        ok: NDArray[np.bool_] = np.isfinite(self.low) & np.isfinite(self.high) & (self.low <= self.high)
        return ok
