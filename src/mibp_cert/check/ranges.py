"""Ranges of numbers whose ends are whole multiples of `2^−BITS`, as Python's integers; every operation is rounded outward.

An operation on ranges contains the operation's results for all members of its operands. Sums and products of ends are
exact, and then rounded outward: `//` and `>>` round down, also below 0. A smooth function that rises is bounded by Arb at
both ends; one that is even and falls with `|x|` also at the point nearest to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

import flint
import numpy as np
from numpy.typing import NDArray

BITS = 256
ONE = 1 << BITS
PRECISION = 4 * BITS
"""Of Arb; a larger one would only give tighter bounds of smooth functions."""
Integers = NDArray[Any]

floors = np.frompyfunc(lambda number: number.as_integer_ratio()[0] * ONE // number.as_integer_ratio()[1], 1, 1)
ceilings = np.frompyfunc(lambda number: -(-number.as_integer_ratio()[0] * ONE // number.as_integer_ratio()[1]), 1, 1)
_balls = np.frompyfunc(lambda units: flint.arb(units) / flint.arb(ONE), 1, 1)
_exp = np.frompyfunc(flint.arb.exp, 1, 1)
_below = np.frompyfunc(lambda ball: int((ball.lower() * ONE).lower().floor().unique_fmpz()), 1, 1)


@dataclass(frozen=True, eq=False)
class Range:
    """All tensors between `low` and `high`, in units of `2^−BITS`."""

    low: Integers
    high: Integers

    @classmethod
    def of(cls, low: Any, high: Any) -> Range:
        """From finite floats or fractions, outward."""
        return cls(np.asarray(floors(low), dtype=object), np.asarray(ceilings(high), dtype=object))

    def map(self, function: Callable[[Integers], Integers]) -> Range:
        """The same elements in another arrangement."""
        return Range(function(self.low), function(self.high))

    def __getitem__(self, at: Any) -> Range:
        return Range(self.low[at], self.high[at])

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Range:
        return Range(-self.high, -self.low)

    def __sub__(self, other: Range) -> Range:
        return self + -other

    def times(self, factor: Fraction) -> Range:
        n, d = factor.as_integer_ratio()
        low, high = (self.low, self.high) if n >= 0 else (self.high, self.low)
        return Range(low * n // d, -(-high * n // d))

    def _exact(self, other: Range) -> Range:
        """Products element by element, in units of `2^−2·BITS`: the extremes are taken at corners."""
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Range(reduce(np.minimum, corners), reduce(np.maximum, corners))

    def _rounded(self) -> Range:
        """From units of `2^−2·BITS`."""
        return Range(self.low >> BITS, -(-self.high >> BITS))

    def __mul__(self, other: Range) -> Range:
        return self._exact(other)._rounded()

    def __matmul__(self, other: Range) -> Range:
        if self.low.shape[1:] != other.low.shape[:1]:
            raise ValueError(f"shapes {self.low.shape} and {other.low.shape} do not fit")
        terms = (self[:, k, None]._exact(other[None, k, :]) for k in range(self.low.shape[1]))
        return reduce(Range.__add__, terms)._rounded()

    def clip(self, least: int, most: int | None = None) -> Range:
        above = self.map(lambda end: np.maximum(end, least))
        return above if most is None else above.map(lambda end: np.minimum(end, most))

    def gate(self, *, closed: bool) -> Range:
        """`1[a > 0]`, or `1[a ≥ 0]`."""
        return self.map(lambda end: (end >= 0 if closed else end > 0).astype(object) * ONE)


def _outward(low: Integers, high: Integers) -> Range:
    """The range between balls of Arb."""
    return Range(np.asarray(_below(low), dtype=object), -np.asarray(_below(-high), dtype=object))


def smooth(a: Range, function: Callable[[Any], Any], *, peak: bool = False) -> Range:
    """A function that rises, or one that is even and falls with `|a|` (`peak`)."""
    apply = np.frompyfunc(function, 1, 1)
    with flint.ctx.workprec(PRECISION):
        first, last = apply(_balls(a.low)), apply(_balls(a.high))
        if not peak:
            return _outward(first, last)
        nearest = np.minimum(np.maximum(a.low, 0), a.high)
        top = -np.asarray(_below(-apply(_balls(nearest))), dtype=object)
        return Range(np.minimum(_below(first), _below(last)), top)


def shares(o: Range) -> Range:
    """`p_c = 1/(1 + Σ_{d≠c} e^{o_d − o_c})`, which rises with `o_c` and falls with every other output."""

    def at(own: Integers, others: Integers) -> Integers:
        ends = []
        for c in range(own.shape[1]):
            powers = [_exp(others[:, d] - own[:, c]) for d in range(own.shape[1]) if d != c]
            ends.append(1 / (1 + sum(powers)))
        return np.stack(ends, axis=1)

    with flint.ctx.workprec(PRECISION):
        low, high = _balls(o.low), _balls(o.high)
        return _outward(at(low, high), at(high, low))


def sigmoid(x: Any) -> Any:
    """Of a ball."""
    return 1 / (1 + (-x).exp())


def _smooth(function: Callable[[Any], Any], *, peak: bool = False) -> Rule:
    return lambda a, s: smooth(a, function, peak=peak)


Rule = Callable[[Range, Fraction], Range]
ACTIVATIONS: dict[str, tuple[Rule, Rule]] = {
    "ReLU": (lambda a, s: a.clip(0), lambda a, s: a.gate(closed=False)),
    "LeakyReLU": (
        lambda a, s: a.times(s) + a.clip(0).times(1 - s),
        lambda a, s: a.gate(closed=False).times(1 - s) + Range.of(s, s),
    ),
    "Sigmoid": (_smooth(sigmoid), _smooth(lambda x: 1 / (2 * (x / 2).cosh()) ** 2, peak=True)),
    "Tanh": (_smooth(flint.arb.tanh), _smooth(lambda x: 1 / x.cosh() ** 2, peak=True)),
    "Softplus": (_smooth(lambda x: x.exp().log1p()), _smooth(sigmoid)),
    "Flatten": (lambda a, s: a, lambda a, s: Range.of(np.ones(a.low.shape), np.ones(a.low.shape))),
}
"""Value and derivative by name, at the kink of relu both sides; `s` is the slope that a layer may have."""


def joined(parts: Sequence[Range]) -> Range:
    """One after the other."""
    return Range(np.concatenate([part.low for part in parts]), np.concatenate([part.high for part in parts]))


def union(cases: Sequence[Range], allowed: NDArray[np.bool_]) -> Range:
    """In each row the range around those cases (columns of `allowed`) that are allowed there, at least one."""
    far = max(int(np.abs(end).max()) for case in cases for end in (case.low, case.high)) + 1
    low = [np.where(allowed[:, [c]], case.low, far) for c, case in enumerate(cases)]
    high = [np.where(allowed[:, [c]], case.high, -far) for c, case in enumerate(cases)]
    return Range(reduce(np.minimum, low), reduce(np.maximum, high))
