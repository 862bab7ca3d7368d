"""What a proof of ranges (`fitted.ranges`) is about: the ranges, and what it knows of a problem that they belong to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.table import Array


@dataclass(frozen=True, eq=False)
class Ranges:
    """The box `B` of the parameters, and the ranges `S` of the scores of rows and of the budgets' alternatives."""

    low: Array
    high: Array
    s_low: Array
    s_high: Array
    by: tuple[tuple[Array, Array], ...] = ()

    @property
    def middle(self) -> Array:
        return 0.5 * (self.low + self.high)

    @property
    def radius(self) -> Array:
        middle = self.middle
        return np.asarray(np.maximum(self.high - middle, middle - self.low) * (1.0 + 4.0 * EPS))

    @property
    def reach(self) -> Array:
        """Largest `|θ_j|`."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.low) + len(self.s_low) + sum(len(low) for low, _ in self.by)

    @property
    def empty(self) -> bool:
        pairs = ((self.low, self.high), (self.s_low, self.s_high), *self.by)
        return any(bool((low > high).any()) for low, high in pairs)


class Bounded(ABC):
    """A problem whose minimisers are bounded. Scores are whatever its ranges hold of them."""

    c: Array
    """The computed minimiser of the data as handed in, as the network lays it out."""
    tau: Array
    """Its tilt."""

    @abstractmethod
    def telling(self, told: Callable[[], None]) -> Self:
        """The same problem; `told` is called for every round of bounds."""

    @abstractmethod
    def point(self) -> Ranges:
        """The ranges of `c` alone."""

    @abstractmethod
    def bounds(self, ranges: Ranges, rounds: int = 2) -> Ranges:
        """Bounds of all that `ranges` holds, under the hypothesis that it holds."""

    @abstractmethod
    def upper(self, ranges: Ranges, a: Array) -> Array:
        """Upper bounds of `a·θ`, for minimisers in the ranges."""


class Whole(Bounded):
    """A problem that is proven as a whole: of one score for each row, or of softmax."""

    @abstractmethod
    def slip(self) -> Array:
        """How far `point` may be off by rounding."""


class Parts(Bounded):
    """Several problems at once, each with parameters and ranges of its own."""

    each: Sequence[Whole]

    @abstractmethod
    def joined(self, found: Sequence[Ranges]) -> Ranges:
        """The ranges of all parts together."""

    @abstractmethod
    def split(self, ranges: Ranges) -> Sequence[Ranges]:
        """The inverse of `joined`."""

    def point(self) -> Ranges:
        return self.joined([problem.point() for problem in self.each])

    def bounds(self, ranges: Ranges, rounds: int = 2) -> Ranges:
        pairs = zip(self.each, self.split(ranges), strict=True)
        return self.joined([problem.bounds(own, rounds) for problem, own in pairs])
