"""The exact view of a product set: the data of some rows as affine expressions of program variables.

Continuous variables live in [−1, 1], discrete ones in {0, 1}; with `e` a symbol's variable, `b` and `z` binaries:

- box: `x = centre + radius·e`;
- ℓ1: `|e_j| ≤ t_j`, `Σ t_j ≤ 1`; ℓ2: `q_j = e_j²`, `Σ q_j ≤ 1`, with tangents `q ≥ 2te − t²` for solvers without products;
- at most `most` cells: `a_j·b_j ≤ e_j ≤ c_j·b_j`, `Σ b_j ≤ most`;
- choice: entry of option `j` is `b_j`, entry of the reference `1 − Σ b_j`, with `Σ b_j ≤ 1`;
- a row budget: a binary `z_i` for each row; what row `i` does is bounded by `z_i` as above, and `Σ z_i ≤ most`.

A budget over the whole data limits any batch of it, so the program is exact for each batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from mibp_cert.sets.blocks import Array, Index
from mibp_cert.solvers.program import FREE, Affine, ProgramBuilder, with_columns

if TYPE_CHECKING:
    from mibp_cert.sets.product import Part, ProductSet

TANGENTS = (-1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0)
Terms = list[tuple[Index, Index, Array]]
"""(element, variable, coefficient) triples."""


def declare(members: ProductSet, builder: ProgramBuilder, rows: Index) -> tuple[Affine, Affine]:
    """Features and labels of `rows`, flat, over new variables of the builder."""
    clean = members.clean
    base, centre = {}, {}
    for on, lows, highs, known in members._boxes():
        low, high = lows[rows].ravel(), highs[rows].ravel()
        base[on] = Affine.box(builder, low, high)
        centre[on] = np.where(low == high, known[rows].ravel(), base[on].centre)
    terms: dict[str, Terms] = {"x": [], "y": []}
    width = {"x": clean.features, "y": clean.one_hot.shape[1]}
    where = np.full(len(clean), -1, dtype=np.intp)
    where[rows] = np.arange(len(rows))
    switches = [_Switches(builder, len(rows), most) for most in members.limits]
    for part in members.parts:
        picked = np.flatnonzero(where[part.rows] >= 0)
        if not len(picked):
            continue
        first = np.cumsum(part.sizes) - part.sizes
        symbols = np.concatenate([np.arange(first[p], first[p] + part.sizes[p]) for p in picked]).astype(np.intp)
        piece = np.repeat(np.arange(len(picked)), part.sizes[picked])
        if not len(symbols):
            continue  # a single valid option: the reference itself

        def local(flat: Index, w: int = width[part.on]) -> Index:
            return (where[flat // w] * w + flat % w).astype(np.intp)

        switch = None if part.group < 0 else switches[part.group].of(where[part.rows[picked]])
        if part.kind == "choice":
            assert part.reference is not None
            b = builder.add_variables(len(symbols), 0.0, 1.0, integer=True)
            reference = local(part.reference[picked])
            terms[part.on] += [
                (local(part.place[symbols]), b, np.ones(len(b))),
                (reference[piece], b, -np.ones(len(b))),
            ]
            _at_most(builder, piece, b, 1.0, switch)
        else:
            _moves(members, part, symbols, piece, switch, builder, terms[part.on], local(part.place[symbols]))
    for switch_group in switches:
        switch_group.limit()
    linear = {on: _matrix(terms[on], len(centre[on]), builder.variables) for on in ("x", "y")}
    linear = {on: linear[on] + with_columns(base[on].linear, builder.variables) for on in ("x", "y")}
    zero = {on: np.zeros(len(centre[on])) for on in ("x", "y")}
    return Affine(centre["x"], linear["x"], zero["x"]), Affine(centre["y"], linear["y"], zero["y"])


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
            _row(self.builder, made, np.ones(len(made)), upper=float(self.most))


def _moves(
    members: ProductSet,
    part: Part,
    symbols: Index,
    piece: Index,
    switch: Index | None,
    builder: ProgramBuilder,
    terms: Terms,
    cells: Index,
) -> None:
    x = members._values(part)[symbols]
    low, high = part.low[symbols] - x, part.high[symbols] - x
    slip = 4.0 * members._slip(part)[symbols] if part.kind in ("l1", "l2") else 0.0
    size = np.nextafter(np.maximum(high, -low) * (1.0 + slip), np.inf)
    size = np.where(size > 0, size, 1.0)
    e = builder.add_variables(len(symbols))
    terms.append((cells, e, size))
    if part.kind == "l1":
        # t = (1 + s)/2 in [0, 1], so that s lives in [−1, 1].
        s = builder.add_variables(len(symbols))
        for sign in (1.0, -1.0):
            _rows(builder, [(e, sign), (s, -0.5)], upper=0.5)
        _at_most(builder, piece, s, 2.0 - np.bincount(piece).astype(np.float64), None)
    elif part.kind == "l2":
        q = builder.add_variables(len(symbols))
        for t in TANGENTS:
            _rows(builder, [(q, -1.0), (e, 2.0 * t)], upper=t * t)
        if builder.bilinear:
            builder.add_triples(q, e, e)
        _at_most(builder, piece, q, 1.0, None)
    if part.kind == "sparse":
        b = builder.add_variables(len(symbols), 0.0, 1.0, integer=True)
        _between(builder, e, b, low / size, high / size)
        _at_most(builder, piece, b, float(part.most), None)
    if switch is not None:
        _between(builder, e, switch[piece], low / size, high / size)


def _between(builder: ProgramBuilder, e: Index, gate: Index, low: Array, high: Array) -> None:
    """`low·gate ≤ e ≤ high·gate`."""
    _rows(builder, [(e, 1.0), (gate, -high)], upper=0.0)
    _rows(builder, [(e, 1.0), (gate, -low)], lower=0.0)


def _at_most(
    builder: ProgramBuilder, piece: Index, variables: Index, limit: Array | float, switch: Index | None
) -> None:
    """`Σ variables ≤ limit` for each piece, or `≤ its switch`."""
    count = int(piece.max()) + 1
    matrix = sparse.csr_matrix((np.ones(len(piece)), (piece, variables)), shape=(count, builder.variables))
    if switch is None:
        builder.add_rows(matrix, -np.inf, limit, FREE)
        return
    own = sparse.csr_matrix((-np.ones(count), (np.arange(count), switch)), shape=(count, builder.variables))
    builder.add_rows(matrix + own, -np.inf, 0.0, FREE)


def _rows(
    builder: ProgramBuilder,
    terms: list[tuple[Index, Array | float]],
    lower: Array | float = -np.inf,
    upper: Array | float = np.inf,
) -> None:
    """One row per entry: `lower ≤ Σ coefficient·variable ≤ upper`."""
    count = len(terms[0][0])
    line = np.concatenate([np.arange(count)] * len(terms))
    columns = np.concatenate([variables for variables, _ in terms])
    data = np.concatenate([np.broadcast_to(coefficient, (count,)) for _, coefficient in terms])
    builder.add_rows(sparse.csr_matrix((data, (line, columns)), shape=(count, builder.variables)), lower, upper, FREE)


def _row(builder: ProgramBuilder, variables: Index, coefficients: Array, upper: float) -> None:
    matrix = sparse.csr_matrix(
        (coefficients, (np.zeros(len(variables), dtype=np.intp), variables)), shape=(1, builder.variables)
    )
    builder.add_rows(matrix, -np.inf, upper, FREE)


def _matrix(terms: Terms, rows: int, columns: int) -> sparse.csr_matrix:
    if not terms:
        return sparse.csr_matrix((rows, columns))
    line, variable, value = (np.concatenate([t[i] for t in terms]) for i in range(3))
    return sparse.csr_matrix((value, (line, variable)), shape=(rows, columns))
