"""What a threat becomes once bound to data: the set `𝒟` of datasets `(X', Y')` that may have been used.

It is seen in five ways that the tests hold against each other:

- `hull()`: bounds of every cell and every label entry;
- `noise()`: the data as an affine image of blocks of symbols that are known by their support function;
- `worst(g)`: a member whose symbols minimise `g·ε` over the blocks (the dataset that attains the support's lower end);
- `constraints(builder, rows)`: cells as affine expressions of program variables, with the exact constraints among them;
- `sample(rng, n)`: members, extreme points among them.

`contains` decides membership. Samples and worst cases are members, members lie in the hull and satisfy the constraints, and
supports are attained.

A threat of the catalogue compiles to parts. A *move* changes numeric cells: symbol `j` moves one cell within `[low_j, high_j]`,
the symbols of a piece share a norm or a count. A *choice* replaces a one-hot group (a category, or a label): symbol `j` stands
for the entry that becomes 1 instead. A *swap* replaces two numeric cells at once, or neither. Parts act at once, and what none
of them touches stays clean. A `Part` is plain data. Bound to the data it becomes an `Act`, one class for each kind (`moves`,
`choices`, `swaps`), which knows its share of every view of the set.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UnsupportedOperation
from mibp_cert.sets.blocks import Array, Block, Index, Segments
from mibp_cert.solvers.program import Affine, ProgramBuilder

if TYPE_CHECKING:
    from mibp_cert.sets.exact import Writer


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

    def limit_on(self, on: str, places: slice) -> int:
        """How many rows the budgets let differ in these columns of the features (`x`) or labels (`y`); 0: none is about them."""
        return 0

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


def digest_of(members: ThreatSet) -> str:
    """What a run directory remembers of its threat: a hash of the hull and, where the threat's record in words does
    not determine the set (rules), of its program."""
    hull = members.hull()
    parts = [getattr(hull, f.name) for f in fields(hull)]
    if not members.described:
        builder = ProgramBuilder()
        builder.bilinear = members.bilinear
        cells = members.constraints(builder, np.arange(len(members.clean), dtype=np.intp))
        program = builder.finish()
        for affine in cells:
            parts += [affine.centre, affine.slack, affine.linear.data, affine.linear.indices, affine.linear.indptr]
        lines = program.matrix
        parts += [program.lower, program.upper, program.integer, lines.data, lines.indices, lines.indptr]
        parts += [program.row_lower, program.row_upper, program.triples]
    return hashlib.sha256(b"|".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()
