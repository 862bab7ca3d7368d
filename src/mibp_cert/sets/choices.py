"""Choices: one-hot groups of which another entry may be the true one.

Symbol `j` stands for option `j`. Under a budget the group is `reference + Σ_j ε_j·(option_j − reference)`, `ε ≥ 0, Σε ≤ 1`;
else it is written around the middle of all options, the reference among them: half the distance, a quarter of the second order.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.sets.base import Act, Entries, Mask, Option, Part, Side
from mibp_cert.sets.blocks import Array, Index, Segments
from mibp_cert.sets.exact import Writer


class Choice(Act):
    """See the module's text."""

    def __init__(self, part: Part, side: Side) -> None:
        super().__init__(part, side)
        assert part.reference is not None
        self.reference = part.reference
        self.every = np.insert(part.place, np.cumsum(part.sizes), part.reference).astype(np.intp)
        """Options of every piece, its reference last."""
        self.owner = np.repeat(np.arange(len(part.sizes)), part.sizes + 1)
        """Piece of each of them."""
        self.groups = [side.group(place) for place in part.reference] if part.without_clean else []
        """Whole groups, where something other than the reference was handed in."""

    def stand_in(self, known: Array) -> None:
        for group in self.groups:
            known[group] = 0.0
        known[self.reference] = 1.0

    def widen(self, low: Array, high: Array) -> None:
        for group in self.groups:  # the stand-in replaces what was handed in
            low[group] = high[group] = self.side.known[group]
        low[self.reference] = np.where(self.part.sizes > 0, 0.0, 1.0)
        high[self.every] = 1.0

    def noise(self, start: int, centre: Array) -> tuple[Segments, Entries]:
        p = self.part
        ones = np.ones(len(p.place))
        if p.group >= 0:
            symbols = start + np.arange(len(p.place))
            entries = [(p.place, symbols, ones), (np.repeat(self.reference, p.sizes), symbols, -ones)]
            return Segments("corner", p.sizes, p.rows, 0.0 * ones, ones), entries
        sizes, places, piece = p.sizes + 1, self.every, self.owner
        symbols, ones = start + np.arange(len(places)), np.ones(len(places))
        # Rounded to multiples of 2⁻¹⁰, so that `share + (1 − share)` and `share − share` are exact; any share would do.
        share = np.round(1024.0 / sizes) / 1024.0
        centre[self.reference] = 0.0
        centre[places] += share[piece]
        # Each symbol also takes its share away from every option of its piece.
        first = np.cumsum(sizes) - sizes
        left = np.repeat(np.arange(len(places)), sizes[piece])
        within = np.arange(len(left)) - np.repeat(np.cumsum(sizes[piece]) - sizes[piece], sizes[piece])
        taken = (places[first[piece[left]] + within], symbols[left], -share[piece[left]])
        return Segments("choice", sizes, p.rows, 0.0 * ones, ones), [(places, symbols, ones), taken]

    def write(self, e: Array, target: Array) -> None:
        budgeted = self.part.group >= 0
        places, owner = (self.part.place, self.part.piece) if budgeted else (self.every, self.owner)
        target[self.reference[owner[e > 0.5]]] = 0.0
        target[places[e > 0.5]] = 1.0

    def explains(self, flat: Array, rest: Array) -> Mask | None:
        values = flat[self.every]
        ones = np.bincount(self.owner, values == 1.0, minlength=len(self.part.sizes))
        if not ((values == 0.0) | (values == 1.0)).all() or not (ones == 1).all():
            return None
        rest[self.every] = 0.0
        for group in self.groups:
            others = np.setdiff1d(np.arange(group.start, group.stop), self.every)
            if flat[others].any():
                return None
            rest[group] = 0.0
        return np.asarray(flat[self.reference] != 1.0)

    def options(self, piece: int, limit: int) -> list[Option]:
        return [
            (np.array([self.reference[piece], place]), np.array([0.0, 1.0]))
            for place in self.part.place[self.part.piece == piece]
        ]

    def declare(self, writer: Writer, switch: Index | None) -> None:
        p = self.part
        b = writer.builder.add_variables(len(p.place), 0.0, 1.0, integer=True)
        writer.add(p.place, b, np.ones(len(b)))
        writer.add(self.reference[p.piece], b, -np.ones(len(b)))
        writer.at_most(p.piece, b, 1.0, switch)
