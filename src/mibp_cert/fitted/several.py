"""Problems of several classes: softmax, whose classes hang together, and one-versus-rest, in which each class has a problem of
its own.

*Softmax* (`fitted.softmax`): ranges hold the parameters as the network lays them out and, as scores, the differences `z_k −
z_l` of every row, for all pairs `k < l`.

*One-versus-rest*: class `k` against all others has the minimiser `θ_k` of a problem with two classes, which knows nothing of
the other problems: each is proven on its own. A query `Σ_k a_k·θ_k` is at most the sum of the bounds of its parts, since every
dataset has to obey each of these; and at most the bound of all classes at once (`fitted.rest`), which pays for a cell's noise
only once. Of many rows that would take hours: there classes are bounded apart. All problems have one table but for their targets,
with the same alternatives: a label that neither enters nor leaves class `k` is nothing to its target, but may change the row's
weight (`fitted.presence`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from mibp_cert.fitted.bounded import Parts, Ranges, Whole
from mibp_cert.fitted.class_dual import ClassDual
from mibp_cert.fitted.classes import Box, by_class, in_layout, pairs_of
from mibp_cert.fitted.known import Known
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.outputs import Part
from mibp_cert.fitted.problem import OWN_CELLS, Problem
from mibp_cert.fitted.rest import RestKnown
from mibp_cert.fitted.softmax import ClassKnown
from mibp_cert.fitted.table import Array, Rows, Table


def with_classes(tables: Sequence[Table]) -> Table:
    """One table with targets for every class (rows × K), from tables that differ in their targets only."""

    def merged(parts: Sequence[Rows]) -> Rows:
        return replace(parts[0], y=np.stack([r.y for r in parts], axis=-1), q=np.stack([r.q for r in parts], axis=-1))

    budgets = tuple(
        replace(first, by=merged([table.budgets[k].by for table in tables]))
        for k, first in enumerate(tables[0].budgets)
    )
    return replace(tables[0], rows=merged([table.rows for table in tables]), budgets=budgets)


def of_class(table: Table, k: int) -> Table:
    """The table with the targets of one class alone."""

    def own(rows: Rows) -> Rows:
        return replace(rows, y=rows.y[:, k], q=rows.q[:, k])

    budgets = tuple(replace(budget, by=own(budget.by)) for budget in table.budgets)
    return replace(table, rows=own(table.rows), budgets=budgets)


@dataclass(frozen=True, eq=False)
class SoftmaxProblem(Whole):
    """What is bounded: the table with targets for every class, the pin, the computed minimiser `c` with its tilt, and its scores
    (rows × K) on the data as handed in."""

    table: Table
    pin: float
    c: Array
    tau: Array
    s: Array
    width: int
    """Weights of a class."""
    told: Callable[[], None] | None = None

    def telling(self, told: Callable[[], None]) -> Self:
        return replace(self, told=told)

    @property
    def classes(self) -> int:
        return int(self.s.shape[1])

    @property
    def _pairs(self) -> Array:
        return pairs_of(self.classes)

    def by_class(self, flat: Array) -> Array:
        """From the network's layout to K × P."""
        return by_class(flat, self.classes, self.width)

    def point(self) -> Ranges:
        by, c = [], self.by_class(self.c)
        for budget in self.table.budgets:
            itself = (budget.scaled & (budget.rows >= 0))[:, None]
            s = np.where(itself, self.s[np.maximum(budget.rows, 0)], budget.by.x @ c.T)
            by.append(((s @ self._pairs.T).ravel(),) * 2)
        s = (self.s @ self._pairs.T).ravel()
        return Ranges(self.c, self.c, s, s, tuple(by))

    def slip(self) -> Array:
        rows, c = [self.table.rows, *(budget.by for budget in self.table.budgets)], np.abs(self.by_class(self.c))
        far = [((np.abs(part.x) @ c.T + part.reach_of(c).T) @ np.abs(self._pairs).T).ravel() for part in rows]
        return np.asarray(8.0 * (c.shape[1] + 8) * EPS * np.concatenate([np.zeros(len(self.c)), *far]))

    def _dual(self, ranges: Ranges, rounds: int = 3, kind: type[ClassDual] = ClassDual) -> ClassDual:
        box = Box(*(self.by_class(part) for part in (ranges.middle, ranges.radius, ranges.reach)))
        known = ClassKnown(self.table.rows, ranges.s_low, ranges.s_high, box)
        others = [ClassKnown(b.by, *ends, box) for b, ends in zip(self.table.budgets, ranges.by, strict=True)]
        return kind(self.table, self.pin, box, self.by_class(self.tau).ravel(), known, others, rounds)

    def _asked(self, x: Array) -> Array:
        """Queries for the differences of all scores of these rows, (rows · pairs × KP)."""
        return np.asarray(np.einsum("dk,np->ndkp", self._pairs, x).reshape(len(x) * len(self._pairs), -1))

    def bounds(self, ranges: Ranges, rounds: int = 2) -> Ranges:
        if self.told is not None:
            self.told()
        rows, k = self.table.rows, self.classes
        # What features round is no doubt that multipliers could be chosen for.
        doubt = (
            (rows.far > 1e-9 * (1.0 + np.abs(rows.x))).any() or rows.q.any() or self.table.blocks or self.table.budgets
        )
        dual = self._dual(ranges, rounds if doubt else 0)
        # Scores only say how far `p` may be from its line: those of many rows have multipliers that all of them share.
        quick = self._dual(ranges, 0) if len(rows) ** 2 * len(self.c) * k > OWN_CELLS else dual
        eye, asked = np.eye(len(self.c)), self._asked(rows.x)
        own = np.arange(len(asked), dtype=np.intp)
        low, high = (in_layout(end.reshape(k, -1), self.width) for end in (-dual.upper(-eye), dual.upper(eye)))
        ends = [(low, high), (-quick.upper(-asked, own, -1.0), quick.upper(asked, own))]
        between = np.abs(self._pairs @ dual.box.middle) + np.abs(self._pairs) @ dual.box.radius  # |θ_k − θ_l|
        for budget in self.table.budgets:
            other, more = (
                self._asked(budget.by.x),
                budget.by.reach_of(between).T.ravel() * (1.0 + 8.0 * EPS * len(self.c)),
            )
            ends.append((-quick.upper(-other) - more, quick.upper(other) + more))
        return Ranges(*ends[0], *ends[1], tuple(ends[2:]))

    def upper(self, ranges: Ranges, a: Array) -> Array:
        return self._dual(ranges).upper(self.by_class(a).reshape(len(a), -1))


@dataclass(frozen=True, eq=False)
class OneVersusRest(Parts):
    """One problem for every class; `c` and `tau` are those of all of them."""

    each: tuple[Problem, ...]
    width: int
    c: Array
    tau: Array

    @property
    def many(self) -> bool:
        """Many rows: classes are bounded apart, and never at once."""
        return any(problem.shared for problem in self.each)

    @classmethod
    def of(cls, each: tuple[Problem, ...], width: int) -> Self:
        """With `width` weights for every class."""
        c, tau = ([getattr(problem, part) for problem in each] for part in ("c", "tau"))
        return cls(each, width, in_layout(np.stack(c), width), in_layout(np.stack(tau), width))

    def by_class(self, flat: Array) -> Array:
        """From the network's layout to K × P."""
        return by_class(flat, len(self.each), self.width)

    def telling(self, told: Callable[[], None]) -> Self:
        return replace(self, each=tuple(problem.telling(told) for problem in self.each))

    def joined(self, found: Sequence[Ranges]) -> Ranges:
        low, high = (in_layout(np.stack([getattr(z, end) for z in found]), self.width) for end in ("low", "high"))
        s_low, s_high = (np.concatenate([getattr(z, end) for z in found]) for end in ("s_low", "s_high"))
        return Ranges(low, high, s_low, s_high, tuple(ends for z in found for ends in z.by))

    def split(self, ranges: Ranges) -> Sequence[Ranges]:
        k = len(self.each)
        low, high = (self.by_class(end) for end in (ranges.low, ranges.high))
        s_low, s_high = np.split(ranges.s_low, k), np.split(ranges.s_high, k)
        budgets = len(ranges.by) // k
        by = [ranges.by[i * budgets : (i + 1) * budgets] for i in range(k)]
        return [Ranges(*ends) for ends in zip(low, high, s_low, s_high, by, strict=True)]

    def _dual(self, ranges: Ranges, rounds: int = 3, kind: type[ClassDual] = ClassDual) -> ClassDual:
        """All classes at once."""
        table, parts = with_classes([problem.table for problem in self.each]), self.split(ranges)
        box = Box(*(self.by_class(part) for part in (ranges.middle, ranges.radius, ranges.reach)))
        pairs = list(zip(self.each, parts, strict=True))
        known = [Known(one.loss, one.table.rows, z.s_low, z.s_high, z) for one, z in pairs]
        others = [
            RestKnown(budget.by, [Known(one.loss, one.table.budgets[b].by, *z.by[b], z) for one, z in pairs], box)
            for b, budget in enumerate(table.budgets)
        ]
        tau = self.by_class(self.tau).ravel()
        return kind(table, 0.0, box, tau, RestKnown(table.rows, known, box), others, rounds)

    def upper(self, ranges: Ranges, a: Array) -> Array:
        apart, queries = self._apart(ranges, a), self.by_class(a)
        several = np.flatnonzero(queries.any(axis=2).sum(axis=1) > 1)
        if self.many or not len(several):  # a query of one class is asked of its own problem alone
            return apart
        together = self._dual(ranges).upper(queries[several].reshape(len(several), a.shape[1]))
        apart[several] = np.fmin(apart[several], together)
        return apart

    def _apart(self, ranges: Ranges, a: Array) -> Array:
        """The sum of the bounds of the classes' own problems."""
        total, size = np.zeros(len(a)), np.zeros(len(a))
        queries = np.moveaxis(self.by_class(a), 1, 0)
        for problem, own, part in zip(self.each, self.split(ranges), queries, strict=True):
            asked = np.flatnonzero(part.any(axis=1))
            one = Part(problem, own, part[asked])
            found = one.rough(one.a)[1] if problem.shared else problem.upper(own, one.a)
            total[asked] += found
            size[asked] += np.abs(found)
        return total + 4.0 * len(self.each) * EPS * size
