"""A problem of one score for each row: what is bounded, and every kind of bound that is known of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from mibp_cert.fitted.bounded import Ranges, Whole
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.ellipsoid import Ellipsoids
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.shared import Shared
from mibp_cert.fitted.table import Array, Index, Table
from mibp_cert.fitted.zonotope import Zonotope

CUT_CELLS = 4_000_000
"""Queries times generators, above which no exit is cut."""
OWN_CELLS = 20_000_000
"""Rows × rows × parameters up to which every row's score has multipliers of its own."""
MOST_CELLS = 100_000_000
"""The same, where shared multipliers prove nothing: some minutes."""
MOST_CLASS_CELLS = 300_000_000
"""Rows × rows × parameters × classes × classes of softmax that are bounded: some minutes."""
APART_CELLS = 300_000_000
"""The same up to which classes versus the rest have multipliers of every row's own, and one bound for all of them: rows × rows ×
parameters × classes."""
BEST_TESTS = 500_000_000
"""Queries × rows × parameters × (parameters + 30) that get the best multipliers: some seconds."""
CUTS = 2
"""How often the ranges are shrunk under the assumption of an exit."""


@dataclass(frozen=True, eq=False)
class Problem(Whole):
    """What is bounded: the table, its loss, the computed minimiser `c` of the data as handed in, its tilt, and its scores there:
    where the proof starts from. (Noise to one side has another middle than these data.)"""

    table: Table
    loss: ScoreLoss
    c: Array
    tau: Array
    s: Array
    shared: bool = False
    """Many rows: scores are bounded by ellipsoids with multipliers that all queries share (`fitted.ellipsoid`)."""
    told: Callable[[], None] | None = None
    """Called for every round of bounds."""

    def telling(self, told: Callable[[], None]) -> Self:
        return replace(self, told=told)

    @property
    def cells(self) -> int:
        """Rows × rows × parameters: what multipliers of every row's own cost."""
        rows = len(self.table.rows) + sum(len(budget.by) for budget in self.table.budgets)
        return rows * rows * len(self.c)

    @property
    def cut_cells(self) -> int:
        """Queries times generators of a cut."""
        table, p = self.table, len(self.c)
        others = sum(len(budget.by) for budget in table.budgets)
        generators = int((table.rows.r > 0).sum()) + len(table.rows) + 2 * p + others * p
        return 2 * (len(table.rows) + others + p) * generators

    @property
    def small(self) -> bool:
        """Whether a cut takes a fraction of a second."""
        return self.cut_cells <= CUT_CELLS

    def point(self) -> Ranges:
        """The ranges of `c` alone, on the data as handed in; alternatives with noise of no size are the rows themselves."""
        by = []
        for budget in self.table.budgets:
            itself = budget.scaled & (budget.rows >= 0)
            by.append((np.where(itself, self.s[np.maximum(budget.rows, 0)], budget.by.x @ self.c),) * 2)
        return Ranges(self.c, self.c, self.s, self.s, tuple(by))

    def slip(self) -> Array:
        """How far the scores of `point` may be off by rounding, in the order of `_flat`."""
        rows = [self.table.rows, *(budget.by for budget in self.table.budgets)]
        far = [np.abs(part.x) @ np.abs(self.c) + part.reach_of(np.abs(self.c)[None, :])[0] for part in rows]
        return 8.0 * (len(self.c) + 4) * EPS * np.concatenate([np.zeros(len(self.c)), *far])

    def bounds(self, ranges: Ranges, rounds: int = 2) -> Ranges:
        """Bounds of all that `ranges` holds, under the hypothesis that it holds."""
        if self.told is not None:
            self.told()
        if self.shared:
            return Ellipsoids(Shared(self.table, self.loss, ranges, self.tau)).bounds()
        dual, rows = Dual(self.table, self.loss, ranges, self.tau, rounds), self.table.rows
        eye, own = np.eye(len(self.c)), np.arange(len(rows), dtype=np.intp)
        ends = [(-dual.upper(-eye), dual.upper(eye))]
        ends.append((-dual.upper(-rows.x, own, -1.0), dual.upper(rows.x, own)))
        for budget in self.table.budgets:
            more = budget.by.reach_of(ranges.reach[None, :])[0]
            ends.append((-dual.upper(-budget.by.x) - more, dual.upper(budget.by.x) + more))
        return Ranges(*ends[0], *ends[1], tuple(ends[2:]))

    def queries(self, ranges: Ranges) -> tuple[Array, Index, Array]:
        """What the ranges hold, in their order, as queries `a·θ ± noise`; and the rows whose own score is asked for, else −1."""
        rows, p, others = self.table.rows, len(self.c), [budget.by for budget in self.table.budgets]
        a = np.concatenate([np.eye(p), rows.x, *(by.x for by in others)])
        own = np.full(len(a), -1, dtype=np.intp)
        own[p : p + len(rows)] = np.arange(len(rows))
        noise = [by.reach_of(ranges.reach[None, :])[0] * (1.0 + 1e-12) for by in others]
        return a, own, np.concatenate([np.zeros(p + len(rows)), *noise])

    @property
    def best_cells(self) -> int:
        """What the best multipliers of one query cost."""
        return self.table.rows.x.size * (len(self.c) + 30)

    def upper(self, ranges: Ranges, a: Array) -> Array:
        """Upper bounds of `a·θ`, for minimisers in the ranges."""
        return Dual(self.table, self.loss, ranges, self.tau, 3).upper(a)

    def best(self, ranges: Ranges, a: Array) -> Array:
        """The same with the best multipliers, as far as there is time; infinite for the rest, and for many rows."""
        found, some = np.full(len(a), np.inf), 0 if self.shared else BEST_TESTS // self.best_cells
        if some and len(a):
            found[:some] = Dual(self.table, self.loss, ranges, self.tau, 3).best(a[:some])[0]
        return found

    def around(self, ranges: Ranges) -> Zonotope:
        """The zonotope around all minimisers in the ranges."""
        return Zonotope(self.table, self.loss, ranges, self.tau)

    def reaches(self, around: Zonotope, a: Array, v: float, own: int = -1, sign: float = 1.0) -> bool:
        """May `a·θ` (or the score of row `own`, times `sign`) be `v` or more, for minimisers in the ranges? False is proven."""
        noise = 0.0 if own < 0 else self.table.reach_of(around.ranges.reach)[own]
        for _ in range(CUTS):
            ranges = around.bounds(a, v - noise * (1.0 + 1e-12))
            if ranges.empty:
                return False
            around = self.around(ranges)
        dual, asked = Dual(self.table, self.loss, ranges, self.tau, 3), (a[None], np.array([own], dtype=np.intp), sign)
        return not (dual.upper(*asked)[0] < v or dual.best(*asked)[0][0] < v)
