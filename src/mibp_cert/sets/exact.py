"""The exact view of a product set: the data of some rows as affine expressions of program variables.

Continuous variables live in [−1, 1], discrete ones in {0, 1}; with `e` a symbol's variable, `b` and `z` binaries:

- box: `x = centre + radius·e`;
- ℓ1: `|e_j| ≤ t_j`, `Σ t_j ≤ 1`; ℓ2: `q_j = e_j²`, `Σ q_j ≤ 1`, with tangents `q ≥ 2te − t²` for solvers without products;
- at most `most` cells: `a_j·b_j ≤ e_j ≤ c_j·b_j`, `Σ b_j ≤ most`;
- choice: entry of option `j` is `b_j`, entry of the reference `1 − Σ b_j`, with `Σ b_j ≤ 1`;
- swap: both cells are `x + (swapped − x)·b` with one `b`, plus or minus what that rounds;
- a row budget: a binary `z_i` for each row; what row `i` does is bounded by `z_i` as above, and `Σ z_i ≤ most`.

A budget over the whole data limits any batch of it, so the program is exact for each batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mibp_cert.sets.base import Act, Entries, Side, matrix
from mibp_cert.sets.blocks import Array, Index
from mibp_cert.solvers.program import FREE, Affine, ProgramBuilder, with_columns


def declare(
    sides: Mapping[str, Side], acts: Sequence[Act], limits: Sequence[int], builder: ProgramBuilder, rows: Index
) -> tuple[Affine, Affine]:
    """Features and labels of `rows`, flat, over new variables of the builder; `limits`: of the row budgets."""
    where = np.full(sides["x"].shape[0], -1, dtype=np.intp)
    where[rows] = np.arange(len(rows))
    writers = {on: Writer(builder, side, rows, where) for on, side in sides.items()}
    switches = [_Switches(builder, len(rows), most) for most in limits]
    for act in acts:
        part = act.part.restricted(where[act.part.rows] >= 0, act.part.group)
        if not len(part.place):
            continue  # other rows, or a single valid option: the reference itself
        switch = None if part.group < 0 else switches[part.group].of(where[part.rows])
        type(act)(part, act.side).declare(writers[part.on], switch)
    for group in switches:
        group.limit()
    return writers["x"].finish(), writers["y"].finish()


class Writer:
    """The features, or the labels, of some rows, being declared in a program: first the plain box, then what parts add."""

    def __init__(self, builder: ProgramBuilder, side: Side, rows: Index, where: Index) -> None:
        self.builder, self._where, self._width = builder, where, side.shape[1]
        low, high, known = (a.reshape(side.shape)[rows].ravel() for a in (side.low, side.high, side.known))
        self._base = Affine.box(builder, low, high)
        self._centre, self._slack = np.where(low == high, known, self._base.centre), np.zeros(len(low))
        none = np.zeros(0, dtype=np.intp)
        self._terms: Entries = [(none, none, np.zeros(0))]

    def add(self, cells: Index, variables: Index, coefficients: Array, slack: Array | float = 0.0) -> None:
        """Add `coefficient·variable ± slack` to some flat cells of the whole data."""
        local = (self._where[cells // self._width] * self._width + cells % self._width).astype(np.intp)
        self._terms.append((local, variables, coefficients))
        self._slack[local] += slack

    def rows(
        self,
        terms: list[tuple[Index, Array | float]],
        lower: Array | float = -np.inf,
        upper: Array | float = np.inf,
    ) -> None:
        """One row per entry: `lower ≤ Σ coefficient·variable ≤ upper`."""
        line = np.arange(len(terms[0][0]))
        entries = [(line, variables, np.broadcast_to(coefficient, line.shape)) for variables, coefficient in terms]
        self.builder.add_rows(matrix(entries, len(line), self.builder.variables), lower, upper, FREE)

    def gated(self, e: Index, gate: Index, low: Array, high: Array) -> None:
        """`low·gate ≤ e ≤ high·gate`."""
        self.rows([(e, 1.0), (gate, -high)], upper=0.0)
        self.rows([(e, 1.0), (gate, -low)], lower=0.0)

    def at_most(self, piece: Index, variables: Index, limit: Array | float, switch: Index | None = None) -> None:
        """`Σ variables ≤ limit` for each piece, or `≤ its switch`."""
        count, columns = int(piece.max()) + 1, self.builder.variables
        total = matrix([(piece, variables, np.ones(len(piece)))], count, columns)
        if switch is not None:
            total, limit = total + matrix([(np.arange(count), switch, -np.ones(count))], count, columns), 0.0
        self.builder.add_rows(total, -np.inf, limit, FREE)

    def finish(self) -> Affine:
        """The expressions, with all variables of the builder."""
        columns = self.builder.variables
        linear = matrix(self._terms, len(self._centre), columns) + with_columns(self._base.linear, columns)
        return Affine(self._centre, linear, self._slack)


class _Switches:
    """The binaries `z_i` of one budget, made when first asked for."""

    def __init__(self, builder: ProgramBuilder, rows: int, most: int) -> None:
        self.builder, self.most = builder, most
        self.variable = np.full(rows, -1, dtype=np.intp)

    def of(self, rows: Index) -> Index:
        new = np.unique(rows[self.variable[rows] < 0])
        self.variable[new] = self.builder.add_variables(len(new), 0.0, 1.0, integer=True)
        return self.variable[rows]

    def limit(self) -> None:
        made = self.variable[self.variable >= 0]
        if len(made) > self.most:
            total = matrix([(0 * made, made, np.ones(len(made)))], 1, self.builder.variables)
            self.builder.add_rows(total, -np.inf, float(self.most), FREE)
