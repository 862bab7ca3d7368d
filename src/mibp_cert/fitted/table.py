"""The training table of a fitted model with what may be wrong with it: rows, their own noise, and budgets of rows.

Row `i` has the features `x_i + d_i`, the target `y_i + e_i` and the weight `w_i`. Its noise is

    d_i = r_i ∘ ε + Σ_k δ_ik j_ik + (pieces),      |ε_j| ≤ 1, |δ_ik| ≤ 1,      |e_i| ≤ q_i:

each cell within its own radius `r_ij`, directions `j_ik` that several cells share, and pieces that are known by their support
functions (balls, few cells, one-hot groups). A `Budget` lets at most `most` rows be replaced by one of their alternatives.

`table_of` reads all of this off the noise view of a threat set. Blocks whose symbols reach several rows stay as they are
(`Spread`); no budget may replace a row that they reach, since they would have to know which one it is. In a budgeted block the
symbols of one row become the noise of that row's alternative, around the row as handed in: it can be scaled down to nothing, so
that no mixture of rows lies between the two. Where two budgets touch one row, each alternative has the noise of both: a row
that both replace then costs no more than one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mibp_cert.errors import UserError
from mibp_cert.fitted.losses import EPS
from mibp_cert.sets import Block, Budgeted, Noise, Plain, Segments

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Noise of single rows, known by its support function: cells (rows · P, flat) `linear·ε`; `segments.rows` counts rows."""

    linear: sparse.csr_matrix
    segments: Segments
    before: sparse.csr_matrix | None = None
    """Behind features: the cells of the inputs (rows · d, flat) are `before·ε`."""


@dataclass(frozen=True, eq=False)
class Rows:
    """See the module's text."""

    x: Array
    r: Array
    y: Array
    q: Array
    w: Array
    j: Array | None = None
    """Shared directions (rows × directions × P)."""
    pieces: tuple[Pieces, ...] = ()
    along: Index | None = None
    """Behind features: the column of the inputs that moves along each direction; None: `x` holds the columns themselves."""

    def __len__(self) -> int:
        return len(self.y)

    def reach_of(self, theta: Array) -> Array:
        """Largest `|d_i·θ|` for `|θ_j|` at most these (queries × P), for every row."""
        return np.asarray(theta @ self.far.T)

    @cached_property
    def far(self) -> Array:
        """At least `|d_ij|`."""
        total = self.r if self.j is None else self.r + np.abs(self.j).sum(axis=1)
        for piece in self.pieces:
            total = total + np.asarray(abs(piece.linear) @ piece.segments.magnitude()).reshape(total.shape)
        return np.asarray(total)


@dataclass(frozen=True, eq=False)
class Spread:
    """A block of symbols that move cells of any rows: cells (rows · P, flat) `linear·ε`."""

    linear: sparse.csr_matrix
    block: Block
    before: sparse.csr_matrix | None = None
    """As of `Pieces`."""


@dataclass(frozen=True, eq=False)
class Budget:
    """At most `most` rows are replaced: `rows[k]` by the alternative `by[k]`; −1: a row that was not there before."""

    most: int
    rows: Index
    by: Rows
    scaled: bool
    """Each alternative is the row itself with more noise, down to none of it (or, for a new row, with more weight)."""
    targets_only: bool = False
    """Alternatives differ from their rows in the target only, and neither has any other noise but rounding."""
    gone: NDArray[np.bool_] | None = None
    """Alternatives that may also not be there at all (`fitted.presence`)."""


@dataclass(frozen=True, eq=False)
class Table:
    """All rows, the noise that they share, budgets, and the penalties `α_j`."""

    rows: Rows
    alpha: Array
    blocks: tuple[Spread, ...] = ()
    budgets: tuple[Budget, ...] = ()

    def with_penalties(self, alpha: Array) -> Table:
        """The table with these penalties; where there is one more than features, a last feature 1 is added."""
        p = self.rows.x.shape[1]
        if len(alpha) == p:
            return replace(self, alpha=alpha)
        budgets = tuple(replace(budget, by=_with_one(budget.by)) for budget in self.budgets)
        blocks = tuple(replace(spread, linear=_wider(spread.linear, p, p + 1)) for spread in self.blocks)
        return Table(_with_one(self.rows), alpha, blocks, budgets)

    def reach_of(self, theta: Array) -> Array:
        """Largest `|d_i·θ|` for `|θ_j|` at most these, for every row, shared noise included."""
        total = self.rows.reach_of(theta[None, :])[0]
        for spread in self.blocks:
            cells = np.asarray(abs(spread.linear) @ spread.block.magnitude())
            total = total + cells.reshape(self.rows.x.shape) @ theta
        return np.asarray(total)


def table_of(noise: Noise, column: int, weights: Array, alpha: Array) -> Table:
    """The table behind a noise view; `column`: of the one-hot labels (or targets) that is the target; a last feature 1 is added
    where `alpha` has one more entry than there are features."""
    n, d = noise.x_centre.shape
    p = len(alpha)
    x = np.ones((n, p))
    x[:, :d] = noise.x_centre
    cells = sparse.csc_matrix(_wider(noise.x_linear, d, p))
    targets = sparse.csc_matrix(sparse.csr_matrix(noise.y_linear)[column :: noise.y_centre.shape[1]])
    rows = Rows(x, np.zeros((n, p)), np.array(noise.y_centre[:, column]), np.zeros(n), weights)
    spread, blocks = [], [b for b in noise.blocks if isinstance(b, Budgeted)]
    for block in noise.blocks:
        if isinstance(block, Budgeted):
            continue
        linear, y = cells[:, block.symbols], targets[:, block.symbols]
        if isinstance(block, Plain):
            rows, left = _absorbed(rows, block.pieces, linear, y)
        else:
            low, high = block.support(np.asarray(y.todense()))
            rows, left = replace(rows, y=rows.y + 0.5 * (low + high), q=rows.q + _up(0.5 * (high - low))), linear
        if left is not None and left.nnz:
            touched = left.tocoo()
            own = isinstance(block, Plain) and (
                np.repeat(block.pieces.rows, block.pieces.sizes)[touched.col] == touched.row // p
            )
            if isinstance(block, Plain) and np.all(own):
                rows = replace(rows, pieces=(*rows.pieces, Pieces(sparse.csr_matrix(left), block.pieces)))
            else:
                spread.append(Spread(sparse.csr_matrix(left), block))
                if any(np.isin(touched.row // p, other.members).any() for other in blocks):
                    raise UserError(
                        "Fitted models know no budget of rows for rows that a rule ties to others: leave out the budget or the "
                        "rule."
                    )
    found = []
    for block in blocks:
        # The noise of every budget, so that a row which several of them replace is covered by each.
        rows_of = block.members
        by = of_rows(rows, rows_of)
        for other in blocks:
            by = _with_children(by, other, rows_of, cells, targets, p)
        plain = bool((by.x == rows.x[rows_of]).all()) and not (by.r.any() or by.pieces or rows.r[rows_of].any())
        spread_over = any(part.linear.nnz for part in spread)
        found.append(Budget(block.most, rows_of, by, scaled=True, targets_only=plain and not spread_over))
    return Table(rows, alpha, tuple(spread), tuple(found))


def _with_one(rows: Rows) -> Rows:
    """The rows with a last feature 1, which nothing moves."""
    x, r = np.append(rows.x, np.ones((len(rows), 1)), axis=1), np.append(rows.r, np.zeros((len(rows), 1)), axis=1)
    j = None if rows.j is None else np.append(rows.j, np.zeros((*rows.j.shape[:2], 1)), axis=2)
    p = rows.x.shape[1]
    pieces = tuple(replace(piece, linear=_wider(piece.linear, p, p + 1)) for piece in rows.pieces)
    return replace(rows, x=x, r=r, j=j, pieces=pieces)


def _wider(linear: Any, d: int, p: int) -> sparse.csr_matrix:
    """Coefficients of cells (rows · d, flat) as those of a table with `p ≥ d` columns."""
    moves = sparse.coo_matrix(linear)
    place = moves.row // d * p + moves.row % d
    return sparse.csr_matrix((moves.data, (place, moves.col)), shape=(linear.shape[0] // d * p, linear.shape[1]))


def _with_children(by: Rows, block: Budgeted, rows_of: Index, cells: Any, targets: Any, p: int) -> Rows:
    """The rows with the noise that a budgeted block has for them, as if all of them were replaced."""
    start, picked = 0, (rows_of[:, None] * p + np.arange(p)).ravel()
    for child in block.children:
        symbols = block.symbols[start : start + child.count]
        start += child.count
        own, keep = _segments_of(child, rows_of, cells.shape[0] // p)
        linear = sparse.csc_matrix(sparse.csr_matrix(cells[:, symbols[keep]])[picked])
        y = sparse.csc_matrix(sparse.csr_matrix(targets[:, symbols[keep]])[rows_of])
        by, left = _absorbed(by, own, linear, y)
        if left is not None and left.nnz:
            by = replace(by, pieces=(*by.pieces, Pieces(sparse.csr_matrix(left), own)))
    return by


def of_rows(rows: Rows, rows_of: Index) -> Rows:
    """Some of the rows, with their own noise."""
    n, p = rows.x.shape
    picked, pieces = (rows_of[:, None] * p + np.arange(p)).ravel(), []
    for piece in rows.pieces:
        own, keep = _segments_of(piece.segments, rows_of, n)
        if own.count:
            pieces.append(Pieces(sparse.csr_matrix(piece.linear[picked][:, np.flatnonzero(keep)]), own))
    parts = {name: getattr(rows, name)[rows_of] for name in ("x", "r", "y", "q", "w")}
    return replace(rows, pieces=tuple(pieces), **parts)


def _segments_of(segments: Segments, rows_of: Index, n: int) -> tuple[Segments, NDArray[np.bool_]]:
    """The pieces of some of the `n` rows, which are numbered anew; and which symbols are theirs."""
    where = np.full(n, -1, dtype=np.intp)
    where[rows_of] = np.arange(len(rows_of))
    mine = where[segments.rows] >= 0
    keep = np.repeat(mine, segments.sizes)
    rows, ends = where[segments.rows[mine]], (segments.low[keep], segments.high[keep])
    return Segments(segments.kind, segments.sizes[mine], rows, *ends, segments.most), keep


def _absorbed(rows: Rows, segments: Segments, linear: Any, y: Any) -> tuple[Rows, Any]:
    """The rows with what boxes do to cells of their own, and with the ends of the targets; what is left of the cells' noise."""
    n, p = rows.x.shape
    low, high = _ends(segments, y)
    rows = replace(rows, y=rows.y + 0.5 * (low + high), q=rows.q + _up(0.5 * (high - low)))
    if segments.kind != "box" or np.diff(linear.indptr).max(initial=0) > 1:
        return rows, linear
    middle, radius = 0.5 * (segments.low + segments.high), _up(0.5 * (segments.high - segments.low))
    x = rows.x + np.asarray(linear @ middle).reshape(n, p)
    r = rows.r + _up(np.asarray(abs(linear) @ radius).reshape(n, p))
    # Moving the middle rounds; the radius pays for it.
    r = np.where(
        r > 0, _up(r) + 4.0 * EPS * np.abs(x) * (np.asarray(abs(linear) @ np.abs(middle)).reshape(n, p) > 0), 0.0
    )
    return replace(rows, x=x, r=r), None


def _ends(segments: Segments, y: Any) -> tuple[Array, Array]:
    """Ends of what the symbols add to each target."""
    low, high = np.zeros(y.shape[0]), np.zeros(y.shape[0])
    if not y.nnz:
        return low, high
    entries = y.tocoo()
    piece = np.repeat(segments.rows, segments.sizes)
    if np.diff(y.indptr).max() > 1 or (piece[entries.col] != entries.row).any():  # symbols that several rows share
        bottom, top = segments.ends(np.asarray(y.todense()))
        return bottom.sum(axis=-1), top.sum(axis=-1)
    bottom, top = segments.ends(np.asarray(y.sum(axis=0)).ravel())
    np.add.at(low, segments.rows, bottom)
    np.add.at(high, segments.rows, top)
    return low, high


def _up(radius: Array) -> Array:
    return np.asarray(np.where(radius > 0, radius * (1.0 + 8.0 * EPS), 0.0))
