"""A solver-neutral mixed-integer bilinear program.

Variables `v` with finite bounds, some of them whole numbers, and

    row_lower ≤ A v ≤ row_upper          (sparse linear rows)
    v[q] = v[a] · v[b]                   (bilinear triples)

Every row and every triple has an *owner*: the variable that it defines (a relu's output, a gate, a product). An objective
needs a row only if it needs the row's owner, so `cut` walks from the objective's variables to the rows they own, to the
variables in those rows, and so on. A row with owner −1 (a constraint of the data) is kept as soon as one of its variables
is. Dropping rows can only enlarge the feasible set; since a definition can always be satisfied, it does not even do that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

Array = NDArray[np.float64]
Index = NDArray[np.intp]
FREE = -1
"""Owner of a row that defines no variable."""


@dataclass(frozen=True, eq=False)
class Program:
    """See the module's text; arrays only, so that it pickles and can be sent to workers."""

    lower: Array
    upper: Array
    integer: NDArray[np.bool_]
    matrix: Any
    row_lower: Array
    row_upper: Array
    owner: Index
    triples: Index
    """k × 3 variable numbers (q, a, b)."""

    @property
    def variables(self) -> int:
        return len(self.lower)

    @property
    def rows(self) -> int:
        return len(self.row_lower)

    def relaxed(self, *, integer: bool, bilinear: bool) -> Program:
        """The program without integrality and without products where these are not kept: a larger feasible set."""
        return replace(self, integer=self.integer & integer, triples=self.triples if bilinear else self.triples[:0])

    @cached_property
    def _entries(self) -> Any:
        """Which variables stand in which rows."""
        ones = np.ones(self.matrix.nnz, dtype=bool)
        return sparse.csr_matrix((ones, self.matrix.indices, self.matrix.indptr), shape=self.matrix.shape)

    def free_rows(self, reached: NDArray[np.bool_]) -> tuple[Any, Array, Array]:
        """The rows that define no variable, and touch one that is `reached`: matrix, lower and upper ends."""
        rows = np.flatnonzero((self.owner == FREE) & (self._entries @ reached))
        return self.matrix[rows], self.row_lower[rows], self.row_upper[rows]

    def cut(self, needed: Index) -> tuple[Program, Index]:
        """The part that the variables `needed` can reach, and the numbers of its variables in this program."""
        reached = np.zeros(self.variables, dtype=bool)
        reached[needed] = True
        while True:
            rows = np.where(self.owner == FREE, self._entries @ reached, reached[self.owner])
            grown = reached | (self._entries.T @ rows)
            grown[self.triples[grown[self.triples[:, 0]], 1:]] = True
            if (grown == reached).all():
                break
            reached = grown
        variables = np.flatnonzero(reached)
        renumber = np.full(self.variables + 1, FREE, dtype=np.intp)
        renumber[variables] = np.arange(len(variables))
        part = Program(
            self.lower[variables],
            self.upper[variables],
            self.integer[variables],
            self.matrix[rows][:, variables],
            self.row_lower[rows],
            self.row_upper[rows],
            renumber[self.owner[rows]],
            renumber[self.triples[reached[self.triples[:, 0]]]],
        )
        return part, variables


class ProgramBuilder:
    """Collects variables and rows; `finish` freezes them into a `Program`."""

    def __init__(self, *, bilinear: bool = False) -> None:
        self.lower, self.upper, self.integer = np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool)
        # Each list begins with an empty array that gives the kind of its numbers.
        self._row_lower, self._row_upper = [np.zeros(0)], [np.zeros(0)]
        self._owner = [np.zeros(0, dtype=np.intp)]
        self._triples = [np.zeros((0, 3), dtype=np.intp)]
        self._matrices: list[Any] = []
        self.bilinear = bilinear
        """Whether true products may be declared; else only their linear relaxations."""

    @property
    def variables(self) -> int:
        return len(self.lower)

    def add_variables(self, count: int, lower: float = -1.0, upper: float = 1.0, *, integer: bool = False) -> Index:
        """Declare `count` variables and return their numbers; deviations live in [−1, 1], gates in {0, 1}."""
        self.lower = np.append(self.lower, np.full(count, lower))
        self.upper = np.append(self.upper, np.full(count, upper))
        self.integer = np.append(self.integer, np.full(count, integer))
        return np.arange(self.variables - count, self.variables, dtype=np.intp)

    @property
    def middle(self) -> Array:
        """Midpoint of every variable's bounds."""
        return 0.5 * (self.lower + self.upper)

    @property
    def reach(self) -> Array:
        """Half the width of every variable's bounds."""
        return 0.5 * (self.upper - self.lower)

    def add_rows(self, matrix: Any, lower: ArrayLike, upper: ArrayLike, owner: ArrayLike) -> None:
        """Add rows `lower ≤ matrix·v ≤ upper`, each scaled by its largest coefficient.

        The scaling makes a solver's absolute feasibility tolerance relative to what the row is about.
        """
        matrix = sparse.csr_matrix(matrix)
        count = matrix.shape[0]
        if count == 0:
            return
        largest = abs(matrix).max(axis=1).toarray().ravel() if matrix.nnz else np.zeros(count)
        factor = 1.0 / np.where(largest > 0, largest, 1.0)
        self._matrices.append(sparse.diags(factor) @ matrix)
        for ends, given in ((self._row_lower, lower), (self._row_upper, upper)):
            ends.append(np.broadcast_to(np.asarray(given, dtype=np.float64), (count,)) * factor)
        self._owner.append(np.broadcast_to(np.asarray(owner, dtype=np.intp), (count,)))

    def matrix(self, rows: Index, variables: Index, coefficients: ArrayLike, count: int | None = None) -> Any:
        """The sparse matrix of `count` rows (default: as many as entries) with these entries, one column per variable."""
        data, count = np.broadcast_to(coefficients, (len(rows),)), len(rows) if count is None else count
        return sparse.csr_matrix((data, (rows, variables)), shape=(count, self.variables))

    def add_triples(self, q: Index, a: Index, b: Index) -> None:
        """Declare `v[q] = v[a] · v[b]`."""
        self._triples.append(np.stack([q, a, b], axis=1).astype(np.intp))

    def finish(self) -> Program:
        matrices = [with_columns(matrix, self.variables) for matrix in self._matrices]
        return Program(
            self.lower,
            self.upper,
            self.integer,
            sparse.vstack(matrices, format="csr") if matrices else sparse.csr_matrix((0, self.variables)),
            np.concatenate(self._row_lower),
            np.concatenate(self._row_upper),
            np.concatenate(self._owner),
            np.concatenate(self._triples),
        )


@dataclass(frozen=True, eq=False)
class Affine:
    """Flat expressions `centre + linear·v ± slack` over the variables of a program (linear: elements × variables, sparse)."""

    centre: Array
    linear: Any
    slack: Array

    @classmethod
    def box(cls, builder: ProgramBuilder, low: Array, high: Array) -> Affine:
        """Deviation form `centre + radius·e` with one new variable `e ∈ [−1, 1]` for every element with `low < high`."""
        centre = 0.5 * (low + high)
        # Rounded up, so that centre ± radius covers both ends.
        radius = np.nextafter(np.maximum(high - centre, centre - low), np.inf)
        moving = np.flatnonzero(high > low)
        variables = builder.add_variables(len(moving))
        return cls(centre, builder.matrix(moving, variables, radius[moving], len(low)), np.zeros(len(low)))

    def __getitem__(self, elements: Index) -> Affine:
        return Affine(self.centre[elements], self.linear[elements], self.slack[elements])

    def times(self, factor: Array) -> Affine:
        """Each expression times its own factor, as computed: the caller allows for rounding."""
        linear = sparse.csr_matrix(sparse.diags(factor) @ self.linear)
        linear.eliminate_zeros()
        return Affine(factor * self.centre, linear, np.abs(factor) * self.slack)

    def range(self, builder: ProgramBuilder) -> tuple[Array, Array]:
        """Bounds from the variables' bounds alone, padded for the rounding of this very sum."""
        linear = with_columns(self.linear, builder.variables)
        middle = self.centre + linear @ builder.middle
        reach = abs(linear) @ builder.reach + self.slack
        reach = reach + 1e-13 * (np.abs(self.centre) + abs(linear) @ np.abs(builder.middle) + reach)
        return middle - reach, middle + reach


def with_columns(matrix: Any, columns: int) -> Any:
    """The same sparse rows with `columns` columns (new ones are empty)."""
    if matrix.shape[1] == columns:
        return matrix
    return sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], columns))
