"""Parts: what a catalogue threat compiles to, and what every kind of part must be able to do.

A *move* changes numeric cells: symbol `j` moves one cell within `[low_j, high_j]`, the symbols of a piece share a norm or a
count. A *choice* replaces a one-hot group (a category, or a label): symbol `j` stands for the entry that becomes 1 instead. A
*swap* replaces two numeric cells at once, or neither. Parts act at once, and what none of them touches stays clean.

A `Part` is plain data. Bound to the data it becomes an `Act`, one class for each kind (`moves`, `choices`, `swaps`), which knows
its share of every view of the set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mibp_cert.data import Column
from mibp_cert.sets.blocks import Array, Index, Segments

if TYPE_CHECKING:
    from mibp_cert.sets.exact import Writer

Mask = NDArray[np.bool_]
Entries = list[tuple[Index, Index, Array]]
"""Coefficients: (cell, symbol, value)."""
Option = tuple[Index, Array]
"""Cells, and the values that they take."""


@dataclass(frozen=True, eq=False)
class Part:
    """See the module's text. `place` is the flat feature (or label entry) of every symbol; for swaps, both cells of a piece."""

    kind: str
    """`box`, `l1`, `l2`, `sparse`, `choice`, or `swap`."""
    on: str
    """`x` or `y`."""
    rows: Index
    """Dataset row of every piece."""
    sizes: Index
    place: Index
    low: Array
    """Moves: smallest and largest value of each symbol's cell; swaps: of the value that it may be replaced by."""
    high: Array
    most: int = 0
    reference: Index | None = None
    """Choices: flat entry that is 1 in the data as handed in (or in their stand-in), for every piece."""
    fill: Array | None = None
    """Moves without a clean member: what stands in for each cell."""
    without_clean: bool = False
    """The data as handed in are no member: this part replaces what is unknown."""
    group: int = -1
    """Number of the row budget that this part falls under."""
    inner: tuple[Array, Array] | None = None
    """Moves on top of a box: their ends before they were moved outward for rounding; members are written with these."""

    @property
    def piece(self) -> Index:
        """Piece of every symbol."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def cells(self) -> Index:
        """Cells that tell where the part acts: those of the symbols, or one of every one-hot group."""
        return self.place if self.reference is None else self.reference

    def restricted(self, pieces: Mask, group: int = -1) -> Part:
        """Some of its pieces only; outside of any budget, or in this one."""
        symbols = np.repeat(pieces, self.sizes)
        return replace(
            self,
            rows=self.rows[pieces],
            sizes=self.sizes[pieces],
            place=self.place[symbols],
            low=self.low[symbols],
            high=self.high[symbols],
            reference=None if self.reference is None else self.reference[pieces],
            inner=None if self.inner is None else (self.inner[0][symbols], self.inner[1][symbols]),
            group=group,
        )


@dataclass(frozen=True, eq=False)
class Side:
    """The features, or the labels, of the data: flat, with the plain box `low ≤ cell ≤ high` that needs no part."""

    shape: tuple[int, int]
    columns: tuple[Column, ...]
    clean: Array
    """As handed in."""
    known: Array
    """What stands for them: the same, with stand-ins for what is missing."""
    low: Array
    high: Array

    @property
    def moving(self) -> Index:
        """Cells that the plain box lets move."""
        return np.flatnonzero(self.high > self.low)

    def column(self, place: int) -> Column:
        """The user's column around a flat feature."""
        return next(c for c in self.columns if c.start <= int(place) % self.shape[1] < c.stop)

    def group(self, place: int) -> slice:
        """Flat features of the one-hot group around a flat feature."""
        column, first = self.column(place), int(place) // self.shape[1] * self.shape[1]
        return slice(first + column.start, first + column.stop)


class Act(ABC):
    """A part at work on the data: its share of every view."""

    def __init__(self, part: Part, side: Side) -> None:
        self.part, self.side = part, side
        self.x = side.clean[part.place]
        """The clean values of the symbols' cells."""

    @abstractmethod
    def widen(self, low: Array, high: Array) -> None:
        """Hull: move the ends of all cells (flat, in place) so that they hold what the part does."""

    @abstractmethod
    def noise(self, start: int, centre: Array) -> tuple[Segments, Entries]:
        """The part's symbols, numbered from `start`, and their coefficients; parts under a budget are written around the data
        as handed in, others may move the centre (flat, in place)."""

    @abstractmethod
    def write(self, e: Array, target: Array) -> None:
        """Members: write what these values of the symbols do to the cells, without rounding."""

    @abstractmethod
    def explains(self, flat: Array, rest: Array) -> Mask | None:
        """Membership: which pieces must have changed, or None if the part could not have led there; what it explains is taken
        out of `rest`, the distance of every cell from the plain box."""

    @abstractmethod
    def declare(self, writer: Writer, switch: Index | None) -> None:
        """The exact view: variables and rows; `switch`: a binary for every piece without which it stays clean."""

    def options(self, piece: int, limit: int) -> list[Option] | None:
        """All that a piece can do but leave its cells alone, if that is at most `limit` things; else None."""
        return None

    def stand_in(self, known: Array) -> None:
        """Parts without a clean member: replace what is unknown in the data that stand for the ones handed in."""
        raise NotImplementedError


def matrix(entries: Entries, rows: int, columns: int) -> sparse.csr_matrix:
    """A sparse matrix from entries (row, column, value), which add up."""
    row, column, value = (np.concatenate([e[i] for e in entries]) for i in range(3))
    return sparse.csr_matrix((value, (row, column)), shape=(rows, columns))
