"""Which training rows carry the uncertainty? Read off the bound, then checked by a second run.

The margin of a test point is `c + g·ε ± rest` over the data's symbols. The dataset `ε*` that minimises `g·ε` takes `−g_j·ε*_j`
of the margin through symbol `j`; a symbol belongs to a cell (or label) of one row. Summed over the points in question, rows and
cells are ranked by what they take. Budgets are left aside in the ranking: what a row could take if it were among the wrong ones.

Of a regression the outputs stand for the margins, and both ends count: `−g·ε*` at the lower one, `g·ε*` at the upper one.

Of a fitted model the bound itself is a sum over rows and columns (`fitted.explain`): the parts noise, chords and targets, and
what each row could cost that a budget may replace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mibp_cert.card import card, number
from mibp_cert.certify.loop import certify
from mibp_cert.certify.predict import margin_pairs
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.data import Dataset, Split, Task
from mibp_cert.engines import Inputs
from mibp_cert.engines.relational import RelationalSet, cases_of, linear_part
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import Diverged, UserError
from mibp_cert.graph import Graph
from mibp_cert.questions.explain import explain_ends
from mibp_cert.sets import Noise
from mibp_cert.threats import Catalogued, Settled

LABEL, TARGET = "(label)", "(target)"
LEAST = 1e-12
"""Share of the uncertainty below which a cell is not told."""
SHOWN = 10
"""Rows and columns on a card, at most."""
CELLS = 2_000_000
"""Entries (points × rows × features) at once."""
Totals = dict[tuple[int, str], float]
"""What goes through each cell (row, name of the column)."""


@dataclass(frozen=True, eq=False)
class Blame:
    """Rows and cells ranked by their `effect`, the share of the uncertainty (in per cent) that goes through them."""

    rows: pd.DataFrame
    """`row` (the user's name of it), `number` (its place in the training data), `effect`, `cells`."""
    cells: pd.DataFrame
    """`row`, `number`, `column`, `effect`."""
    points: int
    """Test points that were asked about."""
    fixed: tuple[Any, ...] = ()
    """The rows taken as right in the second run."""
    before: float | None = None
    after: float | None = None
    """Certified test points without and with the fixed rows; of a regression, the mean width of the ranges."""
    filled: bool = False
    """Whether a fixed row had a missing value, which its usual value stands in for."""
    widths: bool = False
    """Are `before` and `after` widths?"""

    @property
    def columns(self) -> pd.Series[float]:
        """The effect of each column, largest first."""
        return self.cells.groupby("column")["effect"].sum().sort_values(ascending=False, kind="stable")

    @property
    def sentence(self) -> str:
        """What re-checking is worth."""
        if not self.points:
            return "Every point is certified: there is nothing to re-check."
        if self.before is None or self.after is None:
            return "What re-checking rows would change was not verified."
        more = 0 if self.widths else int(self.after - self.before)
        few = {0: "no further prediction becomes certain", 1: "one more prediction becomes certain"}
        what = few.get(max(more, 0), f"{more} more predictions become certain")
        listed = ", ".join(str(row) for row in self.fixed)
        stand = " (a missing value: its usual value)" if self.filled else ""
        rows = "this row" if len(self.fixed) == 1 else f"these {len(self.fixed)} rows"
        said = f"{what} ({self.before:g} → {self.after:g} certified, verified by a second run)"
        if self.widths:
            said = f"ranges are {number(self.after)} wide on average instead of {number(self.before)} (verified by a second run)"
        return f"Re-check {rows} ({listed}): if they are right as they stand{stand}, {said}."

    def _repr_html_(self) -> str:
        most = self.rows.head(SHOWN)[["row", "effect", "cells"]]
        rows = [(row, f"{effect:.1f}", cells) for row, effect, cells in most.itertuples(index=False)]
        shares = ", ".join(f"{name!r} {effect:.0f} %" for name, effect in self.columns.head(SHOWN).items())
        lines = [("By column", f"{shares}."), ("What next", self.sentence)]
        head = ("row", "% of the uncertainty", "cells") if rows else ()
        return card("Where the uncertainty comes from", lines=lines if rows else lines[1:], head=head, rows=rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows.to_dict("records"),
            "points": self.points,
            "fixed": list(self.fixed),
            **{f"{'width' if self.widths else 'certified'}_{n}": getattr(self, n) for n in ("before", "after")},
        }


def blame(
    run: CertifiedRun,
    points: Sequence[int] | None = None,
    *,
    x: ArrayLike | Inputs | None = None,
    top: int = 10,
    verified: bool = True,
    hear: Callable[[str], None] = lambda _: None,
) -> Blame:
    """Rank the training rows behind the uncertainty of test points (default: all that are not certified), or of rows `x`.

    With `verified`, the `top` rows are taken as right, the same training is repeated (as many steps as were chosen for the run),
    and certified points are counted before and after. A regression is asked about all points, and the widths of their ranges are
    told instead.

    >>> from mibp_cert import LInf, Network, Training, blame, certify_training, two_moons
    >>> run = certify_training(Network.mlp([2, 2]), two_moons(0), LInf(0.2), Training(epochs=4))
    >>> list(blame(run, top=5).rows.columns)
    ['row', 'number', 'effect', 'cells']
    """
    numbers = run.train.task is Task.NUMBERS
    if run.fitted is None and not cases_of(run.bounds, run.request.members):
        raise UserError("Blame reads the relational bound; run the engine 'relational'.")
    known = None
    if x is None:
        if run.data.test is None:
            raise UserError("Blame is about predictions: hand in the rows to ask about, blame(run, x=…).")
        x, known = run.test_inputs(), run.test
    run.check_reached()
    inputs = x if isinstance(x, Inputs) else run.inputs(x)
    answer = None if numbers else run.certify_inputs(inputs) if known is None else known
    open_ = np.ones(len(inputs.x), dtype=bool) if answer is None else ~answer.certified
    asked = np.flatnonzero(open_) if points is None else np.asarray(points, dtype=np.intp)
    check_points(asked.tolist(), len(inputs.x))
    if run.fitted is not None:
        totals = _fitted_effects(run, inputs.x[asked], None if answer is None else answer.centre[asked])
    else:
        totals = _effects(run, inputs.x[asked], None if answer is None else answer.centre[asked])
    cells = _ranked(totals, run.train)
    rows = _by_row(cells)
    if not verified or not len(rows):
        return Blame(rows, cells, len(asked))
    if not isinstance(run.threat, Catalogued):
        raise UserError("Rules cannot be lifted from single rows; ask with verified=False.")
    chosen = rows["number"].to_numpy()[:top].astype(np.intp)
    hear(f"second run with {len(chosen)} rows taken as right")
    alone = Split(run.data.name, run.train)  # nothing is left that validation rows could choose
    second = replace(run.decided, threat=Settled(run.threat, chosen), attack=None, data=alone)
    try:
        again = certify(second)
    except Diverged:  # with fewer rows in doubt? A search that gave up: nothing was verified
        return Blame(rows, cells, len(asked))
    missing, usual = run.train.missing, run.request.members.reference[0]
    filled = not np.array_equal(usual[chosen], run.train.x[chosen])
    filled = filled or (missing is not None and bool(missing[chosen].any()))
    before: float
    after: float
    if answer is None:
        before, after = (float(one.ranges_of(inputs).width.mean()) for one in (run, again))
    else:
        before, after = int(answer.certified.sum()), int(again.certify_inputs(inputs).certified.sum())
    listed = tuple(rows["row"].tolist()[:top])
    return Blame(rows, cells, len(asked), listed, before, after, filled, widths=numbers)


def check_points(points: Sequence[int], count: int) -> None:
    """Refuse numbers of test points that there are not."""
    if any(not 0 <= point < count for point in points):
        raise UserError(f"Test points are numbered from 0 to {count - 1}; got {list(points)}.")


def _fitted_effects(run: CertifiedRun, x: Array, centre: NDArray[np.intp] | None) -> Totals:
    """What goes through every cell of the bounds of these rows' margins (lower ends), or ranges (both ends)."""
    train = run.train
    names = [column.name for column in train.columns for _ in range(column.start, column.stop)]
    columns = list(dict.fromkeys(names))
    place = np.array([columns.index(name) for name in names], dtype=np.intp)
    total = np.zeros((len(train), len(columns) + 1))
    chunk = max(1, CELLS // (len(train) * (len(names) + 1)))
    one = run.network.logits == 1  # of several classes, leads are taken apart, and not scores of class 1
    for signs in (-1.0, 1.0) if centre is None else (np.where(one & (centre == 0), 1.0, -1.0),):
        for k in range(0, len(x), chunk):
            part = explain_ends(run, x[k : k + chunk], np.broadcast_to(signs, len(x))[k : k + chunk])
            cells = (part.noise + part.chords + part.possible[..., :-1]).sum(axis=0)
            np.add.at(total.T, place, cells.T)
            total[:, -1] += (part.targets + part.possible[..., -1]).sum(axis=0)
    rows, at = np.nonzero(total > LEAST * np.abs(total).sum())
    every = [*columns, LABEL if centre is not None else TARGET]
    return {(int(i), every[j]): float(total[i, j]) for i, j in zip(rows, at, strict=True)}


def _effects(run: CertifiedRun, x: Array, centre: NDArray[np.intp] | None) -> Totals:
    """What the worst datasets take from the margins of these rows through every cell; from outputs, at both ends."""
    totals: Totals = {}
    if not len(x):
        return totals
    states, network = [case.state for case in cases_of(run.bounds, run.request.members)], run.network
    pairs, speaks_for = margin_pairs(network)

    def make(n: int) -> Graph:
        return network.forward_graph(n) if centre is None else network.margin_graph(n, pairs)

    forms = [linear_part(make, network.layout, state, Inputs(x)) for state in states]
    relevant = np.ones((len(x), network.logits), dtype=bool)
    ends = [(1.0, [bounds.low for bounds, _ in forms])]
    if centre is None:
        ends.append((-1.0, [-bounds.high for bounds, _ in forms]))
    else:
        relevant = speaks_for[None, :] == centre[:, None]
    for sign, lows in ends:
        low = np.stack([np.where(relevant, least, np.inf) for least in lows])
        for i in range(len(x)):
            case, place = np.unravel_index(int(low[:, i].argmin()), low[:, i].shape)
            taken = _taken(states[int(case)], sign * forms[int(case)][1].data[i, int(place)])
            _add(totals, states[int(case)].noise, taken, run.train)
    return totals


def _ranked(totals: Totals, train: Dataset) -> pd.DataFrame:
    """One line per doubtful cell, with its share of all of them."""
    whole = sum(totals.values()) or 1.0
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    names = range(len(train)) if train.index is None else train.index.tolist()
    lines = [(names[n], n, column, 100.0 * e / whole) for (n, column), e in ranked if e > 0]
    return pd.DataFrame(lines, columns=["row", "number", "column", "effect"])


def _taken(state: RelationalSet, g: Array) -> Array:
    """What the worst dataset takes through every symbol, `−g_j·ε*_j`; each row as if it alone were in the budget."""
    out = np.zeros(state.data)
    for block in state.noise.blocks:
        for symbols, point in block.freely(g[block.symbols]):
            out[symbols] = -g[symbols] * point
    return np.maximum(out, 0.0)


def _add(totals: Totals, noise: Noise, taken: Array, train: Dataset) -> None:
    """Add the symbols' effects to their cells: the first cell that a symbol moves says which row and column it belongs to."""
    features = [column.name for column in train.columns for _ in range(column.start, column.stop)]
    target = TARGET if train.task is Task.NUMBERS else LABEL
    for linear, names in ((noise.x_linear, features), (noise.y_linear, [target] * train.one_hot.shape[1])):
        by_symbol = linear.tocsc()
        for j in np.flatnonzero((np.diff(by_symbol.indptr) > 0) & (taken > 0)):
            row, place = divmod(int(by_symbol.indices[by_symbol.indptr[j]]), len(names))
            totals[row, names[place]] = totals.get((row, names[place]), 0.0) + float(taken[j])


def _by_row(cells: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for place, group in cells.groupby("number", sort=False):
        total = float(group["effect"].sum())
        said = ", ".join(f"{c} {100 * e / total:.0f} %" for c, e in zip(group["column"], group["effect"], strict=True))
        rows.append((group["row"].iloc[0], int(str(place)), total, said))
    frame = pd.DataFrame(rows, columns=["row", "number", "effect", "cells"])
    return frame.sort_values(["effect", "number"], ascending=[False, True], ignore_index=True)
