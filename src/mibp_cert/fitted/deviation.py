"""Quantities of a solver's program as a middle and a deviation in [−1, 1]: cells in doubt, their products, and rows of sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from mibp_cert.fitted.table import Array, Index
from mibp_cert.solvers import Affine, ProgramBuilder
from mibp_cert.solvers.program import FREE, with_columns

SLIP = 1e-9
"""Relative width that rows get for what their coefficients round."""


@dataclass(frozen=True, eq=False)
class Deviation:
    """Quantities `middle + radius·v`, with variables `v ∈ [−1, 1]`."""

    variables: Index
    middle: Array
    radius: Array

    @classmethod
    def of(cls, builder: ProgramBuilder, low: Array, high: Array) -> Deviation:
        middle = 0.5 * (low + high)
        radius = np.nextafter(np.maximum(high - middle, middle - low), np.inf)
        return cls(builder.add_variables(len(low)), middle, radius)

    def part(self, rows: Index, factor: Array | float, count: int) -> Affine:
        """Each times its factor, added up in `count` rows."""
        values = np.broadcast_to(factor, self.middle.shape)
        centre = np.zeros(count)
        np.add.at(centre, rows, values * self.middle)
        size = (count, int(self.variables.max(initial=-1)) + 1)
        return Affine(
            centre, sparse.csr_matrix((values * self.radius, (rows, self.variables)), shape=size), np.zeros(count)
        )

    def dense(self, factors: Array) -> Affine:
        """`factors` (rows × quantities) times all of them."""
        i, j = np.nonzero(factors)
        size = (len(factors), int(self.variables.max(initial=-1)) + 1)
        linear = sparse.csr_matrix((factors[i, j] * self.radius[j], (i, self.variables[j])), shape=size)
        return Affine(factors @ self.middle, linear, np.zeros(len(factors)))


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells in doubt, with a deviation each."""

    rows: Index
    columns: Index
    value: Deviation

    @classmethod
    def of(cls, builder: ProgramBuilder, x: Affine, n: int, d: int) -> Cells:
        moving = np.flatnonzero((np.diff(x.linear.indptr) > 0) | (x.slack > 0))
        low, high = x[moving].range(builder)
        value = Deviation.of(builder, low, high)
        own = value.part(np.arange(len(moving)), 1.0, len(moving))
        add(builder, [own, x[moving].times(-np.ones(len(moving)))], -SLIP, SLIP)
        return cls(moving // d, moving % d, value)

    def known(self, x: Affine, n: int, d: int, p: int) -> Array:
        """The cells that are certain (and the intercept's 1), zero elsewhere."""
        found = np.ones((n, p))
        found[:, :d] = x.centre.reshape(n, d)
        found[self.rows, self.columns] = 0.0
        return found

    def times(self, builder: ProgramBuilder, other: Deviation, of: Index) -> Product:
        """Each cell times the quantity `of` it: with `x = m + rv` and `t = m' + r'v'`, `xt = mm' + m'rv + mr'v' + rr'p`."""
        a, b = self.value.variables, other.variables[of]
        q = builder.add_variables(len(a))
        line = np.arange(len(a))
        for one, two in ((1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0)):  # (1 + one·a)(1 + two·b) ≥ 0
            matrix = builder.matrix(line, q, one * two) + builder.matrix(line, a, one) + builder.matrix(line, b, two)
            builder.add_rows(matrix, -1.0, np.inf, FREE)
        if builder.bilinear:
            builder.add_triples(q, a, b)
        return Product(self.value, other, of, q)


@dataclass(frozen=True, eq=False)
class Product:
    """Products of cells with other quantities; see `Cells.times`."""

    x: Deviation
    t: Deviation
    of: Index
    q: Index

    def part(self, rows: Index, factor: Array | float, count: int) -> Affine:
        """Each times its factor, added up in `count` rows."""
        x, m, r = self.x, self.t.middle[self.of], self.t.radius[self.of]
        values = np.broadcast_to(factor, m.shape)
        centre = np.zeros(count)
        np.add.at(centre, rows, values * x.middle * m)
        entries = [(x.variables, m * x.radius), (self.t.variables[self.of], x.middle * r), (self.q, x.radius * r)]
        width = max(int(variables.max(initial=-1)) for variables, _ in entries) + 1
        parts = [sparse.csr_matrix((values * v, (rows, at)), shape=(count, width)) for at, v in entries]
        return Affine(centre, parts[0] + parts[1] + parts[2], np.zeros(count))


def add(builder: ProgramBuilder, parts: list[Affine], low: Array | float, high: Array | float) -> None:
    """Rows `low ≤ Σ parts ≤ high`, with what the parts leave open; `low` and `high` may not be finite."""
    matrix = sum(with_columns(part.linear, builder.variables) for part in parts)
    centre, slack = sum(part.centre for part in parts), sum(part.slack for part in parts)
    size = SLIP * (1.0 + sum(np.abs(part.centre) for part in parts))
    builder.add_rows(matrix, low - centre - slack - size, high - centre + slack + size, FREE)
