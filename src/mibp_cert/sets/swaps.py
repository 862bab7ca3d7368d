"""Swaps: two numeric cells of a row are both as they are, or both replaced; a piece is one row with its two cells.

The cells `(x_a, x_b)` become `(p_a, p_b)` with `p_j ∈ [low_j, high_j]`, an interval of a few floats (one, where nothing rounds)
around `p`. One symbol moves both cells along the segment between the two points. Around its middle `m = (x + p)/2`, with `r =
(p − x)/2` and `s ∈ [−1, 1]`, or under a budget around the data as handed in (`m = x`, `r = p − x`, `s ∈ [0, 1]`):

    x' = m + r·s + δ,   |δ_j| ≤ slack_j,   s = 1 where the row is replaced, else s = s₀ (−1, or 0).

`m` and `r` are floats, so `δ` takes what they round and the width of `[low, high]`: for `slack_j` the largest of
`|x − m − s₀·r|`, `|low − m − r|`, `|high − m − r|`, each computed with one rounding (`math.fsum`) and rounded up. Hence every
member is reached, by the same `s` in both cells. Where a slack is not 0 it is a symbol of its own, of the size of a rounding
error; two cells that moved on their own would reach `(p_a, x_b)`, which is no member.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from mibp_cert.sets.base import Act, Entries, Mask, Option, Part, Side
from mibp_cert.sets.blocks import Array, Index, Segments
from mibp_cert.sets.exact import Writer


class Swap(Act):
    """See the module's text."""

    def __init__(self, part: Part, side: Side) -> None:
        super().__init__(part, side)
        self.p = np.clip(0.5 * part.low + 0.5 * part.high, part.low, part.high)
        self.centred = part.group < 0

    def _segment(self, clean: float) -> tuple[Array, Array, Array]:
        """`m`, `r` and the slack, where `s = clean` (−1 or 0) is the row as handed in."""
        m, r = (self.x, self.p - self.x) if clean == 0.0 else (0.5 * self.x + 0.5 * self.p, 0.5 * self.p - 0.5 * self.x)
        ends = ((self.x, clean), (self.part.low, 1.0), (self.part.high, 1.0))
        sums = [list(map(math.fsum, zip(end, -m, -s * r, strict=True))) for end, s in ends]
        slack = np.abs(np.array(sums)).max(axis=0)
        return m, r, np.where(slack > 0, np.nextafter(slack, np.inf), 0.0)

    def widen(self, low: Array, high: Array) -> None:
        low[self.part.place] = np.minimum(self.x, self.part.low)
        high[self.part.place] = np.maximum(self.x, self.part.high)

    def noise(self, start: int, centre: Array) -> tuple[Segments, Entries]:
        part, count = self.part, len(self.part.rows)
        clean = -1.0 if self.centred else 0.0
        m, r, slack = self._segment(clean)
        centre[part.place] = m
        loose = np.flatnonzero(slack)
        symbols = start + count + np.arange(len(loose))
        rows = np.concatenate([part.rows, part.rows[part.piece[loose]]])
        low = np.concatenate([np.full(count, clean), -np.ones(len(loose))])
        pieces = Segments("box", np.ones(len(rows), dtype=np.intp), rows, low, np.ones(len(rows)))
        return pieces, [(part.place, start + part.piece, r), (part.place[loose], symbols, slack[loose])]

    def write(self, e: Array, target: Array) -> None:
        taken = (e > (0.0 if self.centred else 0.5))[: len(self.part.rows)][self.part.piece]
        target[self.part.place[taken]] = self.p[taken]

    def explains(self, flat: Array, rest: Array) -> Mask | None:
        part, value = self.part, flat[self.part.place]
        same = (value == self.x).reshape(-1, 2).all(axis=1)
        replaced = ((part.low <= value) & (value <= part.high)).reshape(-1, 2).all(axis=1)
        rest[part.place] = 0.0
        return np.asarray(~same) if (same | replaced).all() else None

    def options(self, piece: int, limit: int) -> list[Option] | None:
        own = np.flatnonzero(self.part.piece == piece)
        values = [_floats(self.part.low[j], self.part.high[j], limit) for j in own]
        if math.prod(map(len, values)) > limit:
            return None
        found = [np.array(pair) for pair in product(*values)]
        return [(self.part.place[own], pair) for pair in found if (pair != self.x[own]).any()]

    def declare(self, writer: Writer, switch: Index | None) -> None:
        _, r, slack = self._segment(0.0)
        b = writer.builder.add_variables(len(self.part.rows), 0.0, 1.0, integer=True)
        writer.add(self.part.place, b[self.part.piece], r, slack)
        if switch is not None:
            writer.at_most(np.arange(len(b)), b, 1.0, switch)


def _floats(low: float, high: float, limit: int) -> list[float]:
    """All floats from `low` to `high`, or more than `limit` of them."""
    found = [float(low)]
    while found[-1] < high and len(found) <= limit:
        found.append(float(np.nextafter(found[-1], np.inf)))
    return found
