"""What a proof of ranges (`fitted.ranges`) knows of a problem: of one score for each row, of softmax, or of several at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

from mibp_cert.fitted.known import Ranges
from mibp_cert.fitted.table import Array


class Bounded(ABC):
    """What `prove` and `tighten` know of a problem. Scores are whatever its ranges hold of them."""

    c: Array
    """The computed minimiser of the data as handed in, as the network lays it out."""
    tau: Array
    """Its tilt."""

    @property
    def parts(self) -> Sequence[Bounded]:
        """Problems of which this one consists, each with parameters of its own; none: it is proven as a whole."""
        return ()

    def joined(self, found: Sequence[Ranges]) -> Ranges:
        """The ranges of all parts together."""
        raise NotImplementedError

    def split(self, ranges: Ranges) -> Sequence[Ranges]:
        """The inverse of `joined`."""
        raise NotImplementedError

    @abstractmethod
    def telling(self, told: Callable[[], None]) -> Self:
        """The same problem; `told` is called for every round of bounds."""

    @abstractmethod
    def point(self) -> Ranges:
        """The ranges of `c` alone."""

    @abstractmethod
    def slip(self) -> Array:
        """How far `point` may be off by rounding."""

    @abstractmethod
    def bounds(self, ranges: Ranges, rounds: int = 2) -> Ranges:
        """Bounds of all that `ranges` holds, under the hypothesis that it holds."""

    @abstractmethod
    def upper(self, ranges: Ranges, a: Array) -> Array:
        """Upper bounds of `a·θ`, for minimisers in the ranges."""
