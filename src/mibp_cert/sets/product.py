"""Parts: what a catalogue threat compiles to, and the set of datasets that they span together.

A *move* changes numeric cells: symbol `j` moves one cell within `[low_j, high_j]`, the symbols of a piece share a norm or a
count. A *choice* replaces a one-hot group (a category, or a label): symbol `j` stands for the entry that becomes 1 instead.
Parts act at once, and what none of them touches stays clean. Plain boxes are added up, cell by cell; on top of them each cell,
and each one-hot group, may be touched by one further part.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.sets.base import Hull, Limited, Noise, ThreatSet
from mibp_cert.sets.blocks import Array, Block, Budgeted, Index, Plain, Segments
from mibp_cert.sets.exact import declare
from mibp_cert.solvers.program import Affine, ProgramBuilder

BALL_SLIP = 1e-12
"""Relative slip that membership in a ball allows, and the noise view covers."""


@dataclass(frozen=True, eq=False)
class Part:
    """See the module's text. `place` is the flat feature (or label entry) of every symbol."""

    kind: str
    """`box`, `l1`, `l2`, `sparse`, or `choice`."""
    on: str
    """`x` or `y`."""
    rows: Index
    """Dataset row of every piece."""
    sizes: Index
    place: Index
    low: Array
    """Moves: smallest and largest value of each symbol's cell."""
    high: Array
    most: int = 0
    reference: Index | None = None
    """Choices: flat entry that is 1 in the data as handed in (or in their stand-in), for every piece."""
    fill: Array | None = None
    """Moves without a clean member: what stands in for each cell."""
    without_clean: bool = False
    """The data as handed in are no member: this part replaces what is unknown."""
    group: int = -1
    """Number of the row budget that this part falls under."""
    inner: tuple[Array, Array] | None = None
    """Moves on top of a box: their ends before they were moved outward for rounding; members are written with these."""

    @property
    def piece(self) -> Index:
        """Piece of every symbol."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)


class ProductSet(ThreatSet):
    """The set `𝒟` spanned by parts, with at most `limits[k]` rows of the whole data touched by the parts of group `k`."""

    def __init__(self, clean: Dataset, parts: list[Part], limits: list[int]) -> None:
        self.clean, self.limits = clean, tuple(limits)
        self._x = np.array(clean.x)
        self._y = np.array(clean.one_hot)
        low, high = ({"x": np.array(clean.x).ravel(), "y": np.array(clean.one_hot).ravel()} for _ in range(2))
        self.parts: list[Part] = []
        boxed = {on: np.zeros(len(values), dtype=bool) for on, values in low.items()}
        # What is unknown may be any valid value; no other box has a reported value there that it could be close to.
        unknown = np.zeros(clean.x.size, dtype=bool)
        for part in [p for p in parts if p.without_clean]:
            self._stand_in(part)
            for place in part.place if part.reference is None else part.reference:
                unknown[self._group_of(place)] = True
        self._check_missing(unknown)
        for part in parts:
            if part.on == "x" and not part.without_clean and part.kind in ("box", "choice"):
                touched = part.place if part.reference is None else part.reference
                part = _restrict(part, ~unknown[touched], part.group)
            if part.kind == "box" and part.group < 0 and not part.without_clean:
                p, x, on = part.place, self._values(part), part.on
                first = ~boxed[on][p]
                low[on][p] = np.where(first, part.low, np.nextafter(low[on][p] + (part.low - x), -np.inf))
                high[on][p] = np.where(first, part.high, np.nextafter(high[on][p] + (part.high - x), np.inf))
                boxed[on][p] = True
            elif part.kind == "box" and part.group < 0:
                low["x"][part.place], high["x"][part.place] = part.low, part.high
                boxed["x"][part.place] = True
            else:
                self.parts.append(part)
        self.low, self.high = low["x"].reshape(clean.x.shape), high["x"].reshape(clean.x.shape)
        self.y_low, self.y_high = low["y"].reshape(clean.one_hot.shape), high["y"].reshape(clean.one_hot.shape)
        self._x.setflags(write=False)
        self._y.setflags(write=False)
        self._check_overlaps()
        self.parts = [self._widened(part, boxed) for part in self.parts]

    def _values(self, part: Part) -> Array:
        """The clean cells (or targets) that a part's symbols move."""
        return np.asarray((self.clean.x if part.on == "x" else self.clean.one_hot).ravel()[part.place])

    def _check_missing(self, unknown: NDArray[np.bool_]) -> None:
        """Refuse data with missing values that the threat says nothing about."""
        if self.clean.missing is None:
            return
        starts = np.array([column.start for column in self.clean.columns])
        left = self.clean.missing & ~unknown.reshape(self.clean.x.shape)[:, starts]
        if left.any():
            row, j = (int(i) for i in np.argwhere(left)[0])
            name = self.clean.columns[j].name
            raise UserError(
                f"{int(left.sum())} missing value(s) are not covered by the threat, the first in row {row}, column '{name}': add "
                f"& Missing({name!r}) to it, fill them in, or drop those rows."
            )

    def _stand_in(self, part: Part) -> None:
        """Replace what is unknown by the part's reference in the data that stand for the ones handed in."""
        if part.kind == "choice":
            for p, (first, count) in enumerate(zip(np.cumsum(part.sizes) - part.sizes, part.sizes, strict=True)):
                assert part.reference is not None
                self._x.ravel()[part.place[first : first + count]] = 0.0
                marked = self._group_of(part.reference[p])
                self._x.ravel()[marked] = 0.0
                self._x.ravel()[part.reference[p]] = 1.0
        else:
            assert part.fill is not None
            self._x.ravel()[part.place] = np.clip(part.fill, part.low, part.high)

    def _group_of(self, place: int) -> slice:
        """Flat features of the one-hot group around a flat feature."""
        row, feature = divmod(int(place), self.clean.features)
        column = next(c for c in self.clean.columns if c.start <= feature < c.stop)
        return slice(row * self.clean.features + column.start, row * self.clean.features + column.stop)

    def _check_overlaps(self) -> None:
        seen = {"x": np.zeros(self.clean.x.size, dtype=np.intp), "y": np.zeros(self.clean.one_hot.size, dtype=np.intp)}
        for part in self.parts:
            touched = np.unique(part.place if part.reference is None else np.concatenate([part.place, part.reference]))
            seen[part.on][touched] += 1
        for on, count in seen.items():
            if (count > 1).any():
                row, entry = divmod(
                    int(np.argmax(count > 1)), self.clean.features if on == "x" else self.clean.one_hot.shape[1]
                )
                what = "the label"
                if on == "x":
                    what = f"the column '{next(c.name for c in self.clean.columns if c.start <= entry < c.stop)}'"
                raise UserError(
                    f"Two parts of the threat change {what} of row {row}, which contradict each other; give that cell to one "
                    "of them (.where(...) restricts a part)."
                )

    def _widened(self, part: Part, boxed: dict[str, NDArray[np.bool_]]) -> Part:
        """A move on top of a box: its ends moved outward by what adding the two can round."""
        if part.kind == "choice":
            return part
        x = self._values(part)
        slip = np.where(
            boxed[part.on][part.place],
            8.0 * np.finfo(float).eps * (np.abs(x) + np.abs(part.high) + np.abs(part.low)),
            0.0,
        )
        return replace(part, low=part.low - slip, high=part.high + slip, inner=(part.low, part.high))

    def _slip(self, part: Part) -> Array:
        """For balls: how far beyond 1 the norm of a stored member may be, symbol by symbol (that of its piece)."""
        x = self._values(part)
        size = np.maximum(part.high - x, x - part.low)
        rounding = 8.0 * np.finfo(float).eps * (np.abs(x) + size) / np.where(size > 0, size, 1.0)
        total = BALL_SLIP + np.bincount(part.piece, rounding, minlength=len(part.sizes))
        return np.asarray(total[part.piece])

    @property
    def reference(self) -> tuple[Array, Array]:
        return self._x, self._y

    # Hull and noise --------------------------------------------------------------------------------------------------

    def hull(self) -> Hull:
        return self._hull

    @cached_property
    def _hull(self) -> Hull:
        x_low, x_high = np.array(self.low).ravel(), np.array(self.high).ravel()
        y_low, y_high = np.array(self.y_low).ravel(), np.array(self.y_high).ravel()
        for part in self.parts:
            if part.kind == "choice":
                low, high = (x_low, x_high) if part.on == "x" else (y_low, y_high)
                assert part.reference is not None
                if part.on == "x":  # the stand-in's group replaces what was handed in
                    for place in part.reference[: len(part.reference) if part.without_clean else 0]:
                        group = self._group_of(place)
                        low[group] = high[group] = self._x.ravel()[group]
                low[part.reference] = np.where(part.sizes > 0, 0.0, 1.0)
                high[part.reference] = 1.0
                high[part.place] = 1.0
            else:
                low, high = (x_low, x_high) if part.on == "x" else (y_low, y_high)
                x, boxed = self._values(part), self._boxed(part)
                below = np.nextafter(low[part.place] + (part.low - x), -np.inf)
                above = np.nextafter(high[part.place] + (part.high - x), np.inf)
                low[part.place] = np.where(boxed, below, part.low)
                high[part.place] = np.where(boxed, above, part.high)
        shape, labels = self.clean.x.shape, self.clean.one_hot.shape
        return Hull(x_low.reshape(shape), x_high.reshape(shape), y_low.reshape(labels), y_high.reshape(labels))

    @cached_property
    def _noise(self) -> Noise:
        entries: dict[str, list[tuple[Index, Index, Array]]] = {"x": [], "y": []}
        count, blocks = 0, list[Block]()
        centres = []
        for on, low, high, known in self._boxes():
            centre = 0.5 * (low + high)
            moving = np.flatnonzero((high > low).ravel())
            # Where nothing moves, choices may have put the stand-in.
            still = (high == low).ravel()
            centre.ravel()[still] = known.ravel()[still]
            # Rounded up until centre ± radius covers both ends.
            radius = np.maximum(np.nextafter(high - centre, np.inf), np.nextafter(centre - low, np.inf)).ravel()
            symbols = count + np.arange(len(moving))
            entries[on].append((moving, symbols, radius[moving]))
            if len(moving):
                blocks.append(Plain(symbols, _unit_segments(moving // known.shape[1])))
            count += len(moving)
            centres.append(centre)
        x_centre, y_centre = centres
        for part in [p for p in self.parts if p.group < 0]:
            pieces = self._linear(part, count, entries, x_centre if part.on == "x" else y_centre)
            blocks.append(Plain(np.arange(count, count + pieces.count), pieces))
            count += pieces.count
        for k, most in enumerate(self.limits):
            children, start = [], count
            for part in [p for p in self.parts if p.group == k]:
                children.append(self._linear(part, count, entries, x_centre if part.on == "x" else y_centre))
                count += children[-1].count
            if children:
                blocks.append(Budgeted(np.arange(start, count), tuple(children), most))
        matrices = {on: _sparse(entries[on], size, count) for on, size in (("x", x_centre.size), ("y", y_centre.size))}
        return Noise(x_centre, y_centre, matrices["x"], matrices["y"], tuple(blocks))

    def _boxes(self) -> tuple[tuple[str, Array, Array, Array], ...]:
        """The plain boxes: features, then labels or targets, with the data that stand for the ones handed in."""
        return ("x", self.low, self.high, self._x), ("y", self.y_low, self.y_high, self._y)

    def noise(self) -> Noise:
        return self._noise

    def _linear(
        self, part: Part, start: int, entries: dict[str, list[tuple[Index, Index, Array]]], centre: Array
    ) -> Segments:
        """Coefficients of a part's symbols, and its pieces; budgeted parts are written around the data as handed in."""
        symbols = start + np.arange(len(part.place))
        if part.kind != "choice":
            x = self._values(part)
            size = np.maximum(part.high - x, x - part.low)
            slip = 1.0 + (2.0 * self._slip(part) if part.kind in ("l1", "l2") else 0.0)
            size = np.nextafter(np.nextafter(size * slip, np.inf), np.inf)
            entries[part.on].append((part.place, symbols, size))
            safe = np.where(size > 0, size, 1.0)
            low = np.maximum(np.nextafter((part.low - x) / safe, -np.inf), -1.0)
            high = np.minimum(np.nextafter((part.high - x) / safe, np.inf), 1.0)
            return Segments(part.kind, part.sizes, part.rows, np.minimum(low, 0.0), np.maximum(high, 0.0), part.most)
        assert part.reference is not None
        ones = np.ones(len(part.place))
        empty = np.zeros(len(part.place))
        if part.group >= 0:
            entries[part.on].append((part.place, symbols, ones))
            entries[part.on].append((np.repeat(part.reference, part.sizes), symbols, -ones))
            return Segments("corner", part.sizes, part.rows, empty, ones)
        # Around the middle of all options, the reference among them: half the distance, a quarter of the second order.
        sizes = part.sizes + 1
        places, piece = _with_reference(part), np.repeat(np.arange(len(sizes)), sizes)
        symbols = start + np.arange(len(places))
        # Rounded to multiples of 2⁻¹⁰, so that `share + (1 − share)` and `share − share` are exact; any share would do.
        share = np.round(1024.0 / sizes) / 1024.0
        flat = centre.reshape(-1)
        flat[part.reference] = 0.0
        flat[places] += share[piece]
        entries[part.on].append((places, symbols, np.ones(len(places))))
        # Each symbol also takes its share away from every option of its piece.
        first = np.cumsum(sizes) - sizes
        left = np.repeat(np.arange(len(places)), sizes[piece])
        within = np.arange(len(left)) - np.repeat(np.cumsum(sizes[piece]) - sizes[piece], sizes[piece])
        entries[part.on].append((places[first[piece[left]] + within], symbols[left], -share[piece[left]]))
        return Segments("choice", sizes, part.rows, np.zeros(len(places)), np.ones(len(places)))

    def cases(self, limit: int) -> tuple[ThreatSet, ...]:
        """A row budget split by the rows it is spent on."""
        used = [k for k in range(len(self.limits)) if any(part.group == k for part in self.parts)]
        if len(used) != 1:
            return ()
        budgeted = [part for part in self.parts if part.group >= 0]
        members = np.unique(np.concatenate([part.rows for part in budgeted]))
        most = self.limits[used[0]]
        if math.comb(len(members), most) > limit:
            return ()
        return tuple(self._only(np.array(rows)) for rows in combinations(members.tolist(), most))

    def members(self, limit: int) -> list[tuple[Array, Array]] | None:
        """One after the other, if nothing but choices is open: piece by piece, with the rows that budgets have left."""
        if (self.high > self.low).any() or (self.y_high > self.y_low).any():
            return None
        if any(part.kind != "choice" for part in self.parts):
            return None
        pieces: list[tuple[Part, int, int]] = []
        for part in self.parts:
            first = np.cumsum(part.sizes) - part.sizes
            pieces += [(part, p, int(first[p])) for p in range(len(part.sizes))]
        found: list[list[tuple[Part, int, int]]] = [[]]
        """Each member by the pieces that differ from the reference, with the symbol chosen."""
        for part, p, first_symbol in pieces:
            more = []
            for moves in found:
                touched = {int(q.rows[k]) for q, k, _ in moves if q.group == part.group} if part.group >= 0 else set()
                row = int(part.rows[p])
                if part.group >= 0 and row not in touched and len(touched) >= self.limits[part.group]:
                    continue
                more += [[*moves, (part, p, first_symbol + k)] for k in range(int(part.sizes[p]))]
            found += more
            if len(found) > limit:
                return None
        return [self._moved(moves) for moves in found]

    def _moved(self, moves: list[tuple[Part, int, int]]) -> tuple[Array, Array]:
        """The reference with these choices made."""
        x, y = np.array(self._x).ravel(), np.array(self._y).ravel()
        for part, piece, symbol in moves:
            assert part.reference is not None
            target = x if part.on == "x" else y
            target[part.reference[piece]], target[part.place[symbol]] = 0.0, 1.0
        return x.reshape(self._x.shape), y.reshape(self._y.shape)

    def unbudgeted(self) -> Limited | None:
        budgeted = [part for part in self.parts if part.group >= 0]
        if not budgeted:
            return None
        rows = np.unique(np.concatenate([part.rows for part in budgeted]))
        used = {part.group for part in budgeted}
        return Limited(self._only(rows[:0]), rows, sum(self.limits[k] for k in used))

    def _only(self, rows: Index) -> ProductSet:
        """The budget spent on these rows: they are free, the other budgeted rows clean."""
        inside = copy.copy(self)
        inside.__dict__ = {k: v for k, v in self.__dict__.items() if k not in ("_noise", "_hull")}
        inside.limits = ()
        inside.parts = [part if part.group < 0 else _restrict(part, np.isin(part.rows, rows)) for part in self.parts]
        return inside

    # Members ---------------------------------------------------------------------------------------------------------

    def worst(self, g: Array) -> tuple[Array, Array]:
        epsilon = np.zeros(len(g))
        for block in self._noise.blocks:
            epsilon[block.symbols] = block.minimiser(g[block.symbols])
        return self._member(epsilon)

    def sample(self, rng: np.random.Generator, n: int) -> list[tuple[Array, Array]]:
        """Extreme points and others in turn."""
        members = []
        for i in range(n):
            epsilon = np.zeros(self._noise.symbols)
            for block in self._noise.blocks:
                epsilon[block.symbols] = block.sample(rng, extreme=i % 3 < 2)
            members.append(self._member(epsilon))
        return members

    def _member(self, epsilon: Array) -> tuple[Array, Array]:
        """The dataset with this noise, written without rounding: cells at their ends, one-hot groups as one-hot groups."""
        x, y = np.array(self._x).ravel(), np.array(self._y).ravel()
        start = 0
        for on, lows, highs, _ in self._boxes():
            moving = np.flatnonzero((highs > lows).ravel())
            low, high = lows.ravel()[moving], highs.ravel()[moving]
            e = epsilon[start : start + len(moving)]
            middle = np.clip(0.5 * (low + high) + 0.5 * (high - low) * e, low, high)
            (x if on == "x" else y)[moving] = np.where(e <= -1.0, low, np.where(e >= 1.0, high, middle))
            start += len(moving)
        for part in self._ordered():
            count = len(part.place) + (len(part.sizes) if part.kind == "choice" and part.group < 0 else 0)
            self._apply(part, epsilon[start : start + count], x if part.on == "x" else y)
            start += count
        return x.reshape(self.clean.x.shape), y.reshape(self.clean.one_hot.shape)

    def _ordered(self) -> list[Part]:
        """Parts in the order of their symbols."""
        return sorted(self.parts, key=lambda part: len(self.limits) * (part.group >= 0) + part.group)

    def _apply(self, part: Part, e: Array, target: Array) -> None:
        if part.kind == "choice":
            assert part.reference is not None
            places = part.place if part.group >= 0 else _with_reference(part)
            sizes = part.sizes if part.group >= 0 else part.sizes + 1
            chosen = e > 0.5
            owner = np.repeat(np.arange(len(sizes)), sizes)[chosen]
            target[part.reference[owner]] = 0.0
            target[places[chosen]] = 1.0
            return
        x = self._values(part)
        low, high = (part.low, part.high) if part.inner is None else part.inner
        size = np.maximum(high - x, x - low)
        moved = np.clip(x + size * e, low, high)
        if part.kind == "box":
            moved = np.where(e <= -1.0, low, np.where(e >= 1.0, high, moved))
        on_top = np.where(self._boxed(part), target[part.place] + (moved - x), moved)
        target[part.place] = np.where(e == 0.0, target[part.place], on_top)

    def _boxed(self, part: Part) -> NDArray[np.bool_]:
        """Which of a part's cells also lie in the plain box."""
        wide = self.high > self.low if part.on == "x" else self.y_high > self.y_low
        return np.asarray(wide.ravel()[part.place])

    def contains(self, x: Array, y: Array) -> bool:
        """Cell by cell: first what the plain box explains, then the other parts; rows touched are counted for the budgets."""
        if x.shape != self.clean.x.shape or y.shape != self.clean.one_hot.shape:
            return False
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            return False
        hull = self._hull
        if not ((hull.x_low <= x) & (x <= hull.x_high)).all() or not ((hull.y_low <= y) & (y <= hull.y_high)).all():
            return False
        flat = {"x": x.ravel(), "y": y.ravel()}
        rest = {
            "x": flat["x"] - np.clip(flat["x"], self.low.ravel(), self.high.ravel()),
            "y": flat["y"] - np.clip(flat["y"], self.y_low.ravel(), self.y_high.ravel()),
        }
        touched = [np.zeros(len(self.clean), dtype=bool) for _ in self.limits]
        for part in self.parts:
            changed = self._explains(part, flat[part.on], rest[part.on])
            if changed is None:
                return False
            if part.group >= 0:
                touched[part.group][part.rows[changed]] = True
        inside = not (rest["x"].any() or rest["y"].any())
        return inside and all(int(rows.sum()) <= most for rows, most in zip(touched, self.limits, strict=True))

    def _explains(self, part: Part, flat: Array, rest: Array) -> NDArray[np.bool_] | None:
        """Which pieces a part must have changed, or None if it could not have; what it explains is taken out of `rest`."""
        if part.kind == "choice":
            assert part.reference is not None
            places, piece = _with_reference(part), np.repeat(np.arange(len(part.sizes)), part.sizes + 1)
            values = flat[places]
            ones = np.bincount(piece, values == 1.0, minlength=len(part.sizes))
            if not ((values == 0.0) | (values == 1.0)).all() or not (ones == 1).all():
                return None
            rest[places] = 0.0
            if part.on == "x" and part.without_clean:
                for place in part.reference:
                    group = self._group_of(place)
                    others = np.setdiff1d(np.arange(group.start, group.stop), places)
                    if flat[others].any():
                        return None
                    rest[group] = 0.0
            return np.asarray(flat[part.reference] != 1.0)
        x = self._values(part)
        move, value, boxed = np.array(rest[part.place]), flat[part.place], self._boxed(part)
        direct = (value >= part.low) & (value <= part.high)
        if not np.where(boxed, (move >= part.low - x) & (move <= part.high - x), direct).all():
            return None
        size = np.maximum(part.high - x, x - part.low)
        scaled = np.abs(move) / np.where(size > 0, size, 1.0)
        piece = part.piece
        rest[part.place] = 0.0
        if part.kind == "sparse" and (np.bincount(piece, move != 0, minlength=len(part.sizes)) > part.most).any():
            return None
        if part.kind in ("l1", "l2"):
            power = 1 if part.kind == "l1" else 2
            total = np.bincount(piece, scaled**power, minlength=len(part.sizes)) ** (1.0 / power)
            first = np.cumsum(part.sizes) - part.sizes
            if (total > 1.0 + self._slip(part)[first]).any():
                return None
        return np.asarray(np.bincount(piece, move != 0, minlength=len(part.sizes)) > 0)

    def constraints(self, builder: ProgramBuilder, rows: Index) -> tuple[Affine, Affine]:
        return declare(self, builder, rows)


def _restrict(part: Part, pieces: NDArray[np.bool_], group: int = -1) -> Part:
    """A part with some of its pieces only; outside of any budget, or in this one."""
    symbols = np.repeat(pieces, part.sizes)
    return replace(
        part,
        rows=part.rows[pieces],
        sizes=part.sizes[pieces],
        place=part.place[symbols],
        low=part.low[symbols],
        high=part.high[symbols],
        reference=None if part.reference is None else part.reference[pieces],
        inner=None if part.inner is None else (part.inner[0][symbols], part.inner[1][symbols]),
        group=group,
    )


def _unit_segments(rows: Index) -> Segments:
    ones = np.ones(len(rows))
    return Segments("box", np.ones(len(rows), dtype=np.intp), rows.astype(np.intp), -ones, ones)


def _with_reference(part: Part) -> Index:
    """Options of every piece, its reference last."""
    assert part.reference is not None
    return np.insert(part.place, np.cumsum(part.sizes), part.reference).astype(np.intp)


def _sparse(entries: list[tuple[Index, Index, Array]], rows: int, columns: int) -> Any:
    if not entries:
        return sparse.csr_matrix((rows, columns))
    place, symbol, value = (np.concatenate([e[i] for e in entries]) for i in range(3))
    matrix = sparse.csr_matrix((value, (place, symbol)), shape=(rows, columns))
    matrix.sum_duplicates()
    return matrix
