"""Rows that come and go, and weights, in the table of a fitted model.

Row `i` counts with the weight `w_i(y)`, which may depend on its label (`class_weight`). What a threat says of its presence
becomes part of the budgets:

**A row that may go.** Along the way from the data as handed in to others, a dirty row has a weight `(1 − μ)w_i`, `0 ≤ μ ≤ 1`. In
(1) of `fitted.dual` its share is at most `(1 − μ)V_i`, with `V_i` its line on *its own score's range as a dirty row*: over all
datasets in which it is dirty, whatever its weight. So it costs at most `max(0, max_B (V_i − U_i), max_B (−U_i))`: the row is its
own alternative, and one that may be `gone`. The line `U_i` is built on the range over datasets that leave the row alone. A row
that another budget replaces as well, by `V'_i`, has a share of at most `max(V'_i, 0)`: the two costs together cover it, so that
neither budget needs the other's noise.

**A row that may come** has no line of its own: `most` of them cost `most` times the largest `max(0, V)`, one `V` for each label.

**A label with a weight of its own.** Where classes weigh differently, a flip is no shift of `ψ`: the row has an alternative for
each label, with that label's weight, and the mixture `(1 − μ)V(y) + μV(y')` is at most the larger of them.

Rows of weight 0 are no rows: nothing depends on their scores.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mibp_cert.errors import Diverged, UserError
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.table import Array, Budget, Index, Pieces, Rows, Spread, Table, of_rows
from mibp_cert.sets import Budgeted, Noise

Mask = NDArray[np.bool_]
MOST_PARTS = 32
"""Alternatives that one domain is cut into, at most."""


def counted(table: Table, noise: Noise, weights: Array, there: Mask | None, keep: Mask) -> Table:
    """The table of the rows to `keep`, with budgets for those that come and go. `weights`: of every row, by label (rows ×
    labels); `there`: the rows of the data as handed in, where some may come and go."""
    by_label = (weights != weights[:, :1]).any(axis=1)
    differ = bool(by_label.any())
    # A row that weighs nothing with its own label counts with another one; of those that are not there any label may come.
    if (table.rows.q[by_label if there is None else by_label & there] > 0).any():
        raise UserError(
            "Where classes have weights, at most a given number of labels may be wrong: write LabelFlips(3), not LabelFlips()."
        )
    budgets, lost = list(table.budgets), np.zeros(0, dtype=np.intp)
    if there is not None:
        lost = np.flatnonzero(~there).astype(np.intp)
        budgets = [
            _with_gone(budget, block, table, noise) for budget, block in zip(budgets, _budgeted(noise), strict=True)
        ]
    if differ:
        budgets = [_by_label(budget, weights) for budget in budgets]
    size = np.maximum(table.rows.x[keep].std(axis=0), 1e-12)
    budgets = [_reindexed(budget, keep) for budget in budgets] + _coming(of_rows(table.rows, lost), weights[lost], size)
    if keep.all():
        return replace(table, budgets=tuple(budgets))
    kept, p = np.flatnonzero(keep).astype(np.intp), table.rows.x.shape[1]
    cells = (kept[:, None] * p + np.arange(p)).ravel()
    blocks = tuple(Spread(sparse.csr_matrix(spread.linear[cells]), spread.block) for spread in table.blocks)
    return Table(of_rows(table.rows, kept), table.alpha, blocks, tuple(b for b in budgets if len(b.rows)))


def _budgeted(noise: Noise) -> list[Budgeted]:
    return [block for block in noise.blocks if isinstance(block, Budgeted)]


def _with_gone(budget: Budget, block: Budgeted, table: Table, noise: Noise) -> Budget:
    """The budget with the rows that it may remove; one that does nothing else leaves other budgets their noise."""
    gone = np.isin(budget.rows, leaving(block, noise))
    moved = sparse.csc_matrix(noise.y_linear)[:, block.symbols].tocoo().row % noise.y_centre.shape[1]
    if (moved < noise.y_centre.shape[1] - 2).any() or sparse.csc_matrix(noise.x_linear)[:, block.symbols].nnz:
        return replace(budget, gone=gone)
    by = of_rows(table.rows, budget.rows)
    plain = not (by.r.any() or by.pieces or table.blocks)
    return replace(budget, gone=gone, by=by, targets_only=plain)


def leaving(block: Budgeted, noise: Noise) -> Index:
    """The rows that a budget may remove: its symbols move their presence, the last but one of their label's entries."""
    width = noise.y_centre.shape[1]
    moved = sparse.csc_matrix(noise.y_linear)[:, block.symbols].tocoo()
    return np.unique(moved.row[moved.row % width == width - 2] // width).astype(np.intp)


def _by_label(budget: Budget, weights: Array) -> Budget:
    """One alternative for every label that a row may have, with that label's weight. Targets are those of the second of two
    classes, or of each of several (rows × K); a label whose target is 0 for certain is none that a row may have."""
    q, top = budget.by.q, budget.by.y + budget.by.q
    open_ = q > 0 if q.ndim == 1 else (q > 0).any(axis=1)
    if not open_.any():
        return budget
    may = [open_ & (top[:, k] > 0) if q.ndim > 1 else open_ for k in range(weights.shape[1])]
    parts: list[tuple[Index, int | None]] = [(np.flatnonzero(~open_).astype(np.intp), None)]
    parts += [(np.flatnonzero(some).astype(np.intp), label) for label, some in enumerate(may)]
    found = None
    for index, label in parts:
        some = of_rows(budget.by, index)
        if label is not None:
            y = np.eye(weights.shape[1])[np.full(len(index), label)]
            y, w = y if q.ndim > 1 else y[:, 1], weights[budget.rows[index], label]
            some = replace(some, y=y, q=np.zeros_like(y), w=w)
        found = some if found is None else _joined(found, some)
    assert found is not None
    every = np.concatenate([index for index, _ in parts])
    gone = None if budget.gone is None else budget.gone[every]
    return replace(budget, rows=budget.rows[every], by=found, gone=gone, targets_only=False)


def _joined(first: Rows, second: Rows) -> Rows:
    """The rows of both, one after the other; neither has shared directions."""
    parts = {name: np.concatenate([getattr(r, name) for r in (first, second)]) for name in ("x", "r", "y", "q", "w")}
    (n, p), m = first.x.shape, len(second)
    pieces = [Pieces(sparse.vstack([piece.linear, sparse.csr_matrix((m * p, piece.segments.count))]).tocsr(), piece.segments)
              for piece in first.pieces]  # fmt: skip
    for piece in second.pieces:
        linear = sparse.vstack([sparse.csr_matrix((n * p, piece.segments.count)), piece.linear]).tocsr()
        pieces.append(Pieces(linear, replace(piece.segments, rows=piece.segments.rows + n)))
    return Rows(**parts, pieces=tuple(pieces))


def _reindexed(budget: Budget, keep: Mask) -> Budget:
    """The budget on the rows that are kept; an alternative that weighs something comes anew where its row weighs nothing."""
    place = np.where(keep, np.cumsum(keep) - 1, -1)
    rows = place[budget.rows]
    live = np.flatnonzero((rows >= 0) | (budget.by.w > 0)).astype(np.intp)
    if len(live) == len(rows) and keep.all():
        return budget
    gone = None if budget.gone is None else budget.gone[live]
    fresh = budget.targets_only and bool((rows[live] >= 0).all())
    return replace(budget, rows=rows[live], by=of_rows(budget.by, live), gone=gone, targets_only=fresh)


def _coming(rows: Rows, weights: Array, size: Array) -> list[Budget]:
    """Budgets of rows that were not there: one for each domain, with alternatives for each label and for parts of the domain;
    `size`: of the columns."""
    if not len(rows):
        return []
    # What is alike in all of this has one domain: the middles of categories tell their options.
    told = np.column_stack([rows.x, rows.r, rows.y, rows.q, weights])
    _, first, most = np.unique(told, axis=0, return_index=True, return_counts=True)
    found = []
    for i, count in zip(first.tolist(), most.tolist(), strict=True):
        one = Budget(count, np.array([i]), of_rows(rows, np.array([i], dtype=np.intp)), scaled=True)
        if weights.shape[1] > 1:
            one = _by_label(one, weights)
        while len(one.by) <= MOST_PARTS // 2 and one.by.r.any():
            # Half of a domain has a narrower score, and a line that fits it better.
            one = _halved(one, int((one.by.r / size).max(axis=0).argmax()))
        found.append(replace(one, rows=np.full(len(one.rows), -1)))
    return found


def _halved(budget: Budget, column: int) -> Budget:
    """Every alternative twice, with the lower and with the upper half of a column."""
    halves = []
    for sign in (-1.0, 1.0):
        x, r = np.array(budget.by.x), np.array(budget.by.r)
        x[:, column] += 0.5 * sign * r[:, column]
        r[:, column] = 0.5 * r[:, column] * (1.0 + 8.0 * EPS) + 4.0 * EPS * (np.abs(x[:, column]) + r[:, column])
        halves.append(replace(budget.by, x=x, r=np.where(budget.by.r > 0, r, 0.0)))
    return replace(budget, rows=np.tile(budget.rows, 2), by=_joined(*halves))


def check_left(
    noise: Noise, labels: Array, there: Mask | None, keep: Mask, names: tuple[object, ...], *, free: bool
) -> None:
    """Raise where a class (for a regression: the table) may have no rows left: by rows that go, there is nothing to fit; by
    labels alone, an intercept that is `free` of a penalty has no finite value. `labels`: one-hot, or none."""
    if there is None and not (free and names):
        return
    classes = labels[:, : len(names)] if names else np.ones((len(keep), 1))
    for c in range(classes.shape[1]):
        mine = np.flatnonzero(keep & (classes[:, c] == 1.0))
        if not _may_all_change(noise, mine, labels=bool(names)):
            continue
        what = f"row of the class {names[c]!r}" if names else "row"
        if there is None:
            raise Diverged(
                f"The doubt is too large for this model: so many labels may be wrong that no {what} is left ({len(mine)} of them "
                "count), and an intercept without penalty then has no finite value; doubt fewer labels, or keep some with "
                ".where(...)."
            )
        raise UserError(
            f"So many rows may go that no {what} is left ({len(mine)} of them count), and there would be nothing to fit: let "
            "fewer go, or keep some with .where(...)."
        )


def _may_all_change(noise: Noise, mine: Index, *, labels: bool) -> bool:
    """Whether all of these rows may be gone at once, or (`labels`) have other labels."""
    width, linear = noise.y_centre.shape[1], sparse.csc_matrix(noise.y_linear)
    most, touched = 0, np.zeros(0, dtype=np.intp)
    for block in noise.blocks:
        if isinstance(block, Budgeted):
            hit = np.unique(linear[:, block.symbols].tocoo().row // width) if labels else leaving(block, noise)
            hit = np.intersect1d(hit, mine)
            most += min(block.most, len(hit))
        else:
            hit = np.intersect1d(linear[:, block.symbols].tocoo().row // width, mine) if labels else touched[:0]
            most += len(hit)
        touched = np.union1d(touched, hit).astype(np.intp)
    return most >= len(mine) and len(touched) == len(mine)
