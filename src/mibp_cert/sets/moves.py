"""Moves: numeric cells within `[low, high]`, one by one (`box`), within a ball (`l1`, `l2`), or few of each row (`sparse`).

With `x` the clean cell and `size = max(high − x, x − low)`, a symbol `e ∈ [−1, 1]` moves its cell to `x + size·e`; sizes are
rounded up, so that every stored value is reached. On top of a plain box, what the symbol moves is added to where the box put
the cell, and ends are moved outward by what that sum can round (`inner` holds them as they were: members are written with those).
"""

from __future__ import annotations

import numpy as np

from mibp_cert.sets.base import Act, Entries, Mask, Part, Side
from mibp_cert.sets.blocks import Array, Index, Segments
from mibp_cert.sets.exact import Writer

BALL_SLIP = 1e-12
"""Relative slip that membership in a ball allows, and the noise view covers."""
TANGENTS = (-1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0)


class Move(Act):
    """See the module's text."""

    def __init__(self, part: Part, side: Side) -> None:
        super().__init__(part, side)
        self.boxed = (side.high > side.low)[part.place]
        """Which cells also lie in the plain box."""
        self.size = np.maximum(part.high - self.x, self.x - part.low)
        far = np.abs(side.low[part.place]) + np.abs(side.high[part.place])
        self.far = np.abs(self.x) + np.where(self.boxed, far, 0.0)
        """Size of what a move is added to."""
        self.ball = part.kind in ("l1", "l2")

    @property
    def slip(self) -> Array:
        """For balls: how far beyond 1 the norm of a stored member may be, symbol by symbol (that of its piece)."""
        rounding = 8.0 * np.finfo(float).eps * (self.far + self.size) / np.where(self.size > 0, self.size, 1.0)
        total = BALL_SLIP + np.bincount(self.part.piece, rounding, minlength=len(self.part.sizes))
        return np.asarray(total[self.part.piece])

    def stand_in(self, known: Array) -> None:
        assert self.part.fill is not None
        known[self.part.place] = np.clip(self.part.fill, self.part.low, self.part.high)

    def widen(self, low: Array, high: Array) -> None:
        p = self.part
        below = np.nextafter(low[p.place] + (p.low - self.x), -np.inf)
        above = np.nextafter(high[p.place] + (p.high - self.x), np.inf)
        low[p.place] = np.where(self.boxed, below, p.low)
        high[p.place] = np.where(self.boxed, above, p.high)

    def noise(self, start: int, centre: Array) -> tuple[Segments, Entries]:
        p = self.part
        slip = 1.0 + (2.0 * self.slip if self.ball else 0.0)
        size = np.nextafter(np.nextafter(self.size * slip, np.inf), np.inf)
        safe = np.where(size > 0, size, 1.0)
        low = np.maximum(np.nextafter((p.low - self.x) / safe, -np.inf), -1.0)
        high = np.minimum(np.nextafter((p.high - self.x) / safe, np.inf), 1.0)
        pieces = Segments(p.kind, p.sizes, p.rows, np.minimum(low, 0.0), np.maximum(high, 0.0), p.most)
        return pieces, [(p.place, start + np.arange(len(p.place)), size)]

    def write(self, e: Array, target: Array) -> None:
        p, x = self.part, self.x
        low, high = (p.low, p.high) if p.inner is None else p.inner
        moved = np.clip(x + np.maximum(high - x, x - low) * e, low, high)
        if p.kind == "box":
            moved = np.where(e <= -1.0, low, np.where(e >= 1.0, high, moved))
        on_top = np.where(self.boxed, target[p.place] + (moved - x), moved)
        target[p.place] = np.where(e == 0.0, target[p.place], on_top)

    def explains(self, flat: Array, rest: Array) -> Mask | None:
        p, pieces = self.part, len(self.part.sizes)
        move, value = np.array(rest[p.place]), flat[p.place]
        direct = (value >= p.low) & (value <= p.high)
        if not np.where(self.boxed, (move >= p.low - self.x) & (move <= p.high - self.x), direct).all():
            return None
        rest[p.place] = 0.0
        moved = np.bincount(p.piece, move != 0, minlength=pieces)
        if p.kind == "sparse" and (moved > p.most).any():
            return None
        if self.ball:
            scaled = np.abs(move) / np.where(self.size > 0, self.size, 1.0)
            power = 1 if p.kind == "l1" else 2
            total = np.bincount(p.piece, scaled**power, minlength=pieces) ** (1.0 / power)
            if (total[p.piece] > 1.0 + self.slip).any():
                return None
        return np.asarray(moved > 0)

    def declare(self, writer: Writer, switch: Index | None) -> None:
        p, builder = self.part, writer.builder
        low, high = p.low - self.x, p.high - self.x
        slip = 4.0 * self.slip if self.ball else 0.0
        size = np.nextafter(np.maximum(high, -low) * (1.0 + slip), np.inf)
        size = np.where(size > 0, size, 1.0)
        e = builder.add_variables(len(p.place))
        writer.add(p.place, e, size)
        if p.kind == "l1":
            # t = (1 + s)/2 in [0, 1], so that s lives in [−1, 1].
            s = builder.add_variables(len(e))
            for sign in (1.0, -1.0):
                writer.rows([(e, sign), (s, -0.5)], upper=0.5)
            writer.at_most(p.piece, s, 2.0 - np.bincount(p.piece).astype(np.float64))
        elif p.kind == "l2":
            q = builder.add_variables(len(e))
            for t in TANGENTS:
                writer.rows([(q, -1.0), (e, 2.0 * t)], upper=t * t)
            if builder.bilinear:
                builder.add_triples(q, e, e)
            writer.at_most(p.piece, q, 1.0)
        elif p.kind == "sparse":
            b = builder.add_variables(len(e), 0.0, 1.0, integer=True)
            writer.gated(e, b, low / size, high / size)
            writer.at_most(p.piece, b, float(p.most))
        if switch is not None:
            writer.gated(e, switch[p.piece], low / size, high / size)
