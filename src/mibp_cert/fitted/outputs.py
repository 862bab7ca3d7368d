"""Outputs for many rows: three kinds of bounds, from the quickest to the tightest, each for what the last one left open.

First come ellipsoids, then sums over rows, at last multipliers of the query's own. A query over several problems that know
nothing of each other (classes, each versus the rest) is a sum `Σ_k a_k·θ_k`, and bounded by the sum of the bounds of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.ellipsoid import Ellipsoids
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.shared import Shared
from mibp_cert.fitted.table import Array, Index

OWN_TESTS = 200_000_000
"""Queries × rows × parameters that get multipliers of their own beside many rows."""
NEAR = 0.25
"""Lower ends further below 0, relative to the range, are left as they are."""
AT_ONCE = 100
"""Queries between two words of how far it is."""
EXACT_CELLS = 2_000_000_000_000
"""Queries × rows × columns × parameters whose sums over rows are taken exactly: some minutes."""


@dataclass(frozen=True)
class Part:
    """One problem of many rows, its proven ranges, and its part of the queries (queries × P)."""

    problem: Problem
    ranges: Ranges
    a: Array

    @cached_property
    def shared(self) -> Shared:
        return Shared(self.problem.table, self.problem.loss, self.ranges, self.problem.tau)

    @cached_property
    def dual(self) -> Dual:
        return Dual(self.problem.table, self.problem.loss, self.ranges, self.problem.tau, 3)

    @property
    def cells(self) -> int:
        """Rows × parameters."""
        return len(self.problem.table.rows) * len(self.problem.c)

    def rough(self, a: Array) -> tuple[Array, Array]:
        return Ellipsoids(self.shared).ends(a)

    def summed(self, a: Array) -> tuple[Array, Array]:
        return self.shared.ends(a)

    def own(self, a: Array) -> tuple[Array, Array]:
        """The lower end alone."""
        return -self.dual.upper(-a), np.full(len(a), np.inf)


def outputs(
    parts: Sequence[Part],
    base: Array,
    extra: Array,
    enough: Callable[[Array], NDArray[np.bool_]] | None,
    hear: Callable[[int, int], None],
) -> tuple[Array, Array]:
    """Ends of `base + Σ_k a_k·θ_k ± extra`; what is `enough` of the lower end is looked at no longer. `hear(done, total)` counts
    queries."""
    low, high = _ends(parts, Part.rough, np.arange(len(base)))
    low, high = base + low - extra, base + high + extra
    left = np.arange(len(base)) if enough is None else np.flatnonzero(~enough(low))
    if len(left) * sum(part.cells * part.shared.kinds for part in parts) > EXACT_CELLS:
        left = left[:0]
    for k in range(0, len(left), AT_ONCE):
        some = left[k : k + AT_ONCE]
        below, above = _ends(parts, Part.summed, some)
        low[some] = np.maximum(low[some], base[some] + below - extra[some])
        high[some] = np.minimum(high[some], base[some] + above + extra[some])
        hear(k + len(some), len(left))
    if enough is None:
        return low, high
    clean = base + sum((part.a @ part.problem.c for part in parts), start=np.zeros(len(base)))
    left = np.flatnonzero(~enough(low) & (clean > 0) & (low > -NEAR * (high - low)))
    left = left[np.argsort(-low[left], kind="stable")][: max(1, OWN_TESTS // sum(part.cells for part in parts))]
    for k, i in enumerate(left):
        below, _ = _ends(parts, Part.own, left[k : k + 1])
        low[i] = np.maximum(low[i], base[i] + below[0] - extra[i])
        hear(k + 1, len(left))
    return low, high


def _ends(parts: Sequence[Part], of: Callable[[Part, Array], tuple[Array, Array]], some: Index) -> tuple[Array, Array]:
    """The sums of the ends of the parts, for some of the queries; outward where several were added."""
    low, high, size = (np.zeros(len(some)) for _ in range(3))
    for part in parts:
        asked = np.flatnonzero(part.a[some].any(axis=1)) if len(parts) > 1 else np.arange(len(some))
        below, above = of(part, part.a[some[asked]])
        low[asked] += below
        high[asked] += above
        size[asked] += np.maximum(np.abs(below), np.abs(np.nan_to_num(above, posinf=0.0)))
    slack = 4.0 * (len(parts) - 1) * EPS * size
    return low - slack, high + slack
