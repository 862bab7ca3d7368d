"""What a threat becomes once bound to data: the set `𝒟` of datasets `(X', Y')` that may have been used.

It is seen in five ways that the tests hold against each other:

- `hull()`: bounds of every cell and every label entry;
- `noise()`: the data as an affine image of blocks of symbols that are known by their support function;
- `worst(g)`: a member whose symbols minimise `g·ε` over the blocks (the dataset that attains the support's lower end);
- `constraints(builder, rows)`: cells as affine expressions of program variables, with the exact constraints among them;
- `sample(rng, n)`: members, extreme points among them.

`contains` decides membership. Samples and worst cases are members, members lie in the hull and satisfy the constraints, and
supports are attained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.data import Dataset
from mibp_cert.errors import UnsupportedOperation
from mibp_cert.sets.blocks import Array, Block
from mibp_cert.solvers.program import Affine, ProgramBuilder


@dataclass(frozen=True, eq=False)
class Hull:
    """Bounds of the features (n × d) and of the one-hot labels (n × classes)."""

    x_low: Array
    x_high: Array
    y_low: Array
    y_high: Array


@dataclass(frozen=True, eq=False)
class Noise:
    """`vec(X') = vec(x_centre) + x_linear·ε` and `vec(Y') = vec(y_centre) + y_linear·ε`, `ε` in the product of the blocks.

    The linear parts are sparse matrices (cells × symbols); rows are in C order.
    """

    x_centre: Array
    y_centre: Array
    x_linear: Any
    y_linear: Any
    blocks: tuple[Block, ...]

    @property
    def symbols(self) -> int:
        return int(self.x_linear.shape[1])


class ThreatSet(ABC):
    """The set `𝒟`: a threat bound to clean data."""

    clean: Dataset
    bilinear: bool = False
    """Whether the exact view needs a solver that can multiply variables."""
    described: bool = True
    """Whether the threat's record in plain data and the hull determine the set; rules are functions, which no record holds."""
    outer: tuple[str, ...] = ()
    """Views that are larger than the set itself, in words; empty where all are as tight as they can be."""

    @property
    def reference(self) -> tuple[Array, Array]:
        """The member that stands for the data as handed in: the clean data, with stand-ins for what is missing."""
        return self.clean.x, self.clean.one_hot

    @abstractmethod
    def hull(self) -> Hull:
        """Bounds of every cell and label entry."""

    def noise(self) -> Noise:
        """The data as an affine image of symbol blocks; encloses `𝒟`."""
        raise UnsupportedOperation(
            f"The threat {type(self).__name__} has no noise view, which the engine 'relational' needs; "
            "choose the engine 'interval' or 'mibp', or write its noise()."
        )

    def cases(self, limit: int) -> tuple[ThreatSet, ...]:
        """Simpler sets whose union is this one, at most `limit` of them; empty where there is no such split."""
        return ()

    def members(self, limit: int) -> list[tuple[Array, Array]] | None:
        """All members `(X', Y')`, where there are finitely many and at most `limit`; else None."""
        return None

    def unbudgeted(self) -> Limited | None:
        """For row budgets: the set with all budgeted rows clean, and how many of which rows may be otherwise; else None."""
        return None

    @abstractmethod
    def worst(self, g: Array) -> tuple[Array, Array]:
        """A member `(X', Y')` whose symbols minimise `g·ε`, for one coefficient per symbol of `noise()`."""

    @abstractmethod
    def constraints(self, builder: ProgramBuilder, rows: NDArray[np.intp]) -> tuple[Affine, Affine]:
        """Declare the data of `rows` in a program; returns features and labels over the builder's variables."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int) -> list[tuple[Array, Array]]:
        """`n` members `(X', Y')`; extreme points are among them."""

    @abstractmethod
    def contains(self, x: Array, y: Array) -> bool:
        """Is `(X', Y')` a member? Decided exactly, not within a tolerance."""


@dataclass(frozen=True, eq=False)
class Limited:
    """A set seen through its row budgets: datasets of `clean`, in which at most `most` of `rows` are replaced."""

    clean: ThreatSet
    rows: NDArray[np.intp]
    most: int
