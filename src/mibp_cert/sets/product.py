"""The set of datasets that parts span together, within row budgets.

Plain boxes are added up, cell by cell; on top of them each cell, and each one-hot group, may be touched by one further part.
What none of them touches stays clean. This file puts the views of the parts together.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.sets.base import Act, Entries, Hull, Limited, Mask, Noise, Option, Part, Side, ThreatSet, matrix
from mibp_cert.sets.blocks import Array, Block, Budgeted, Index, Plain, Segments
from mibp_cert.sets.choices import Choice
from mibp_cert.sets.exact import declare
from mibp_cert.sets.moves import Move
from mibp_cert.sets.presence import Addition, with_presence
from mibp_cert.sets.swaps import Swap
from mibp_cert.solvers.program import Affine, ProgramBuilder

ACTS: dict[str, type[Act]] = {
    **dict.fromkeys(("box", "l1", "l2", "sparse"), Move),
    "choice": Choice,
    "swap": Swap,
}
"""What each kind of part does."""


class ProductSet(ThreatSet):
    """The set `𝒟` spanned by parts, with at most `limits[k]` rows of the whole data touched by the parts of group `k`."""

    def __init__(self, clean: Dataset, parts: list[Part], limits: list[int], added: Sequence[Addition] = ()) -> None:
        clean, parts = with_presence(clean, parts, added)
        self.clean, self.limits = clean, tuple(limits)
        self.sides = _sides(clean, [part for part in parts if part.without_clean])
        """Features (`x`) and labels (`y`), with what none of `parts` does: the plain box."""
        boxed = {on: np.zeros(len(side.clean), dtype=bool) for on, side in self.sides.items()}
        unknown = _unknown(self.sides["x"], parts)
        _check_missing(clean, unknown)
        self.parts: list[Part] = []
        for part in parts:
            if part.on == "x" and not part.without_clean and part.kind in ("box", "choice"):
                # What is unknown may be any valid value; no other part has a reported value there that it could be close to.
                part = part.restricted(~unknown[part.cells], part.group)
            if part.kind != "box" or part.group >= 0:
                self.parts.append(part)
                continue
            side, p = self.sides[part.on], part.place
            first, x = ~boxed[part.on][p] | part.without_clean, side.clean[p]
            side.low[p] = np.where(first, part.low, np.nextafter(side.low[p] + (part.low - x), -np.inf))
            side.high[p] = np.where(first, part.high, np.nextafter(side.high[p] + (part.high - x), np.inf))
            boxed[part.on][p] = True
        for side in self.sides.values():
            side.low.setflags(write=False)
            side.high.setflags(write=False)
        _check_overlaps(self.sides, self.parts, boxed, clean.there is not None)
        self.parts = [_widened(part, self.sides[part.on], boxed[part.on]) for part in self.parts]

    @property
    def reference(self) -> tuple[Array, Array]:
        x, y = (side.known.reshape(side.shape) for side in self.sides.values())
        return x, y

    @cached_property
    def acts(self) -> list[Act]:
        """The parts at work."""
        return [ACTS[part.kind](part, self.sides[part.on]) for part in self.parts]

    def _changed(self, **changes: Any) -> ProductSet:
        """The same set with other parts, limits or sides."""
        other = copy.copy(self)
        other.__dict__ = {k: v for k, v in self.__dict__.items() if k not in ("acts", "_hull", "_symbols")} | changes
        return other

    # Hull and noise --------------------------------------------------------------------------------------------------

    def hull(self) -> Hull:
        return self._hull

    @cached_property
    def _hull(self) -> Hull:
        ends = {on: (np.array(side.low), np.array(side.high)) for on, side in self.sides.items()}
        for act in self.acts:
            act.widen(*ends[act.part.on])
        return Hull(*(end.reshape(self.sides[on].shape) for on in ("x", "y") for end in ends[on]))

    def within(self, hull: Hull) -> ProductSet:
        """The set with its plain box cut down to the features' ranges, where nothing but the box moves them."""
        side = self.sides["x"]
        moving = side.high > side.low
        for part in [p for p in self.parts if p.on == "x"]:
            moving[part.place] = False
        low = np.where(moving, np.maximum(side.low, hull.x_low.ravel()), side.low)
        high = np.where(moving, np.minimum(side.high, hull.x_high.ravel()), side.high)
        # A cell that is pinned down keeps a sliver, so that its symbol stays where it is.
        high = np.where(moving, np.maximum(high, np.nextafter(low, np.inf)), high)
        return self._changed(sides={**self.sides, "x": replace(side, low=low, high=high)})

    def noise(self) -> Noise:
        return self._symbols[0]

    @cached_property
    def _symbols(self) -> tuple[Noise, list[tuple[Act, slice]]]:
        """The noise view, and which symbols are whose."""
        entries: dict[str, Entries] = {"x": [], "y": []}
        count, blocks, centres = 0, list[Block](), dict[str, Array]()
        owners: list[tuple[Act, slice]] = []
        for on, side in self.sides.items():
            # Where nothing moves, choices may have put the stand-in.
            centre = np.where(side.high == side.low, side.known, 0.5 * (side.low + side.high))
            # Rounded up until centre ± radius covers both ends.
            radius = np.maximum(np.nextafter(side.high - centre, np.inf), np.nextafter(centre - side.low, np.inf))
            moving, centres[on] = side.moving, centre
            symbols, ones = count + np.arange(len(moving)), np.ones(len(moving))
            entries[on].append((moving, symbols, radius[moving]))
            if len(moving):
                rows = (moving // side.shape[1]).astype(np.intp)
                blocks.append(Plain(symbols, Segments("box", ones.astype(np.intp), rows, -ones, ones)))
            count += len(moving)

        def added(act: Act) -> Segments:
            nonlocal count
            pieces, more = act.noise(count, centres[act.part.on])
            entries[act.part.on].extend(more)
            owners.append((act, slice(count, count + pieces.count)))
            count += pieces.count
            return pieces

        for act in [a for a in self.acts if a.part.group < 0]:
            start, pieces = count, added(act)
            blocks.append(Plain(np.arange(start, count), pieces))
        for k, most in enumerate(self.limits):
            start, children = count, [added(act) for act in self.acts if act.part.group == k]
            if children:
                blocks.append(Budgeted(np.arange(start, count), tuple(children), most))
        x, y = (matrix(entries[on], len(centres[on]), count) for on in ("x", "y"))
        centre_x, centre_y = (centres[on].reshape(side.shape) for on, side in self.sides.items())
        return Noise(centre_x, centre_y, x, y, tuple(blocks)), owners

    def constraints(self, builder: ProgramBuilder, rows: Index) -> tuple[Affine, Affine]:
        return declare(self.sides, self.acts, self.limits, builder, rows)

    # Budgets ---------------------------------------------------------------------------------------------------------

    def cases(self, limit: int) -> tuple[ThreatSet, ...]:
        """A row budget split by the rows it is spent on."""
        limited = self.unbudgeted()
        if limited is None or len({part.group for part in self.parts if part.group >= 0}) != 1:
            return ()
        if math.comb(len(limited.rows), limited.most) > limit:
            return ()
        return tuple(self._only(np.array(rows)) for rows in combinations(limited.rows.tolist(), limited.most))

    def unbudgeted(self) -> Limited | None:
        budgeted = [part for part in self.parts if part.group >= 0]
        if not budgeted:
            return None
        rows = np.unique(np.concatenate([part.rows for part in budgeted]))
        return Limited(self._only(rows[:0]), rows, sum(self.limits[k] for k in {part.group for part in budgeted}))

    def limit_on(self, on: str, places: slice) -> int:
        width, columns = self.sides[on].shape[1], range(places.start, places.stop)
        budgeted = [part for part in self.parts if part.group >= 0 and part.on == on]
        groups = {part.group for part in budgeted if np.isin(part.cells % width, columns).any()}
        return sum(self.limits[k] for k in groups)

    def _only(self, rows: Index) -> ProductSet:
        """The budget spent on these rows: they are free, the other budgeted rows clean."""
        parts = [p if p.group < 0 else p.restricted(np.isin(p.rows, rows)) for p in self.parts]
        return self._changed(limits=(), parts=parts)

    # Members ---------------------------------------------------------------------------------------------------------

    def worst(self, g: Array) -> tuple[Array, Array]:
        epsilon = np.zeros(len(g))
        for block in self.noise().blocks:
            epsilon[block.symbols] = block.minimiser(g[block.symbols])
        return self._member(epsilon)

    def sample(self, rng: np.random.Generator, n: int) -> list[tuple[Array, Array]]:
        """Extreme points and others in turn."""
        found = []
        for i in range(n):
            epsilon = np.zeros(self.noise().symbols)
            for block in self.noise().blocks:
                epsilon[block.symbols] = block.sample(rng, extreme=i % 3 < 2)
            found.append(self._member(epsilon))
        return found

    def _member(self, epsilon: Array) -> tuple[Array, Array]:
        """The dataset with this noise, written without rounding: cells at their ends, one-hot groups as one-hot groups."""
        flat, start = self._known(), 0
        for on, side in self.sides.items():
            moving = side.moving
            low, high, e = side.low[moving], side.high[moving], epsilon[start : start + len(moving)]
            middle = np.clip(0.5 * (low + high) + 0.5 * (high - low) * e, low, high)
            flat[on][moving] = np.where(e <= -1.0, low, np.where(e >= 1.0, high, middle))
            start += len(moving)
        for act, symbols in self._symbols[1]:
            act.write(epsilon[symbols], flat[act.part.on])
        return self._shaped(flat)

    def _known(self) -> dict[str, Array]:
        """The reference, flat, to be written on."""
        return {on: np.array(side.known) for on, side in self.sides.items()}

    def _shaped(self, flat: dict[str, Array]) -> tuple[Array, Array]:
        return flat["x"].reshape(self.sides["x"].shape), flat["y"].reshape(self.sides["y"].shape)

    def members(self, limit: int) -> list[tuple[Array, Array]] | None:
        """All members, if no cell moves freely: piece by piece, with the rows that budgets have left."""
        if any(len(side.moving) for side in self.sides.values()):
            return None
        found: list[list[tuple[int, int, str, Option]]] = [[]]
        """Each member by the pieces that differ from the reference: budget, row, and what they do."""
        for act in self.acts:
            group, on = act.part.group, act.part.on
            for piece, row in enumerate(act.part.rows.tolist()):
                options = act.options(piece, limit)
                if options is None:
                    return None
                more = []
                for moves in found:
                    touched = {other for k, other, _, _ in moves if k == group}
                    if group < 0 or row in touched or len(touched) < self.limits[group]:
                        more += [[*moves, (group, row, on, option)] for option in options]
                found += more
                if len(found) > limit:
                    return None
        out = []
        for moves in found:
            flat = self._known()
            for _, _, on, (cells, values) in moves:
                flat[on][cells] = values
            out.append(self._shaped(flat))
        return out

    def contains(self, x: Array, y: Array) -> bool:
        """Cell by cell: first what the plain box explains, then the other parts; rows touched are counted for the budgets."""
        flat, hull = {"x": x.ravel(), "y": y.ravel()}, self._hull
        for values, low, high in ((x, hull.x_low, hull.x_high), (y, hull.y_low, hull.y_high)):
            if values.shape != low.shape or not ((low <= values) & (values <= high) & np.isfinite(values)).all():
                return False
        rest = {on: flat[on] - np.clip(flat[on], side.low, side.high) for on, side in self.sides.items()}
        touched = [np.zeros(len(x), dtype=bool) for _ in self.limits]
        for act in self.acts:
            changed = act.explains(flat[act.part.on], rest[act.part.on])
            if changed is None:
                return False
            if act.part.group >= 0:
                touched[act.part.group][act.part.rows[changed]] = True
        inside = not (rest["x"].any() or rest["y"].any())
        return inside and all(int(rows.sum()) <= most for rows, most in zip(touched, self.limits, strict=True))


def _sides(clean: Dataset, replacing: list[Part]) -> dict[str, Side]:
    """The data, with stand-ins for what parts without a clean member replace; the box holds the data as handed in only."""
    sides = {}
    for on, values, columns in (("x", clean.x, clean.columns), ("y", clean.one_hot, ())):
        given, known, low, high = (np.array(values).ravel() for _ in range(4))
        sides[on] = Side((values.shape[0], values.shape[1]), columns, given, known, low, high)
    for part in replacing:
        ACTS[part.kind](part, sides["x"]).stand_in(sides["x"].known)
    for side in sides.values():
        side.known.setflags(write=False)
    return sides


def _unknown(side: Side, parts: list[Part]) -> Mask:
    """Features that parts without a clean member replace, whole groups of them."""
    unknown = np.zeros(len(side.clean), dtype=bool)
    for part in parts:
        for place in part.cells if part.without_clean else ():
            unknown[side.group(place)] = True
    return unknown


def _check_missing(clean: Dataset, unknown: Mask) -> None:
    """Refuse data with missing values that the threat says nothing about."""
    if clean.missing is None:
        return
    starts = np.array([column.start for column in clean.columns])
    left = clean.missing & ~unknown.reshape(clean.x.shape)[:, starts]
    if left.any():
        row, j = (int(i) for i in np.argwhere(left)[0])
        name = clean.columns[j].name
        raise UserError(
            f"{int(left.sum())} missing value(s) are not covered by the threat, the first in row {row}, column '{name}': add "
            f"& Missing({name!r}) to it, fill them in, or drop those rows."
        )


def _check_overlaps(sides: dict[str, Side], parts: list[Part], boxed: dict[str, Mask], coming: bool) -> None:
    """Refuse two parts on one cell; a swap has no middle to which a plain box could be added."""
    for on, side in sides.items():
        seen = np.zeros(len(side.clean), dtype=np.intp)
        for part in [p for p in parts if p.on == on]:
            seen[np.unique(np.concatenate([part.place, part.cells]))] += 1
            if part.kind == "swap":
                seen[part.place] += boxed[on][part.place]
        if (seen > 1).any():
            place = int(np.argmax(seen > 1))
            what = "the label" if on == "y" else f"the column '{side.column(place).name}'"
            if on == "y" and coming and place % side.shape[1] >= side.shape[1] - 2:
                what = "the presence"
            raise UserError(
                f"Two parts of the threat change {what} of row {place // side.shape[1]}, which contradict each other; give that "
                "cell to one of them (.where(...) restricts a part)."
            )


def _widened(part: Part, side: Side, boxed: Mask) -> Part:
    """A move on top of a box: its ends moved outward by what adding the two can round."""
    if ACTS[part.kind] is not Move:
        return part
    size = np.abs(side.clean[part.place]) + np.abs(part.high) + np.abs(part.low)
    size = size + np.abs(side.low[part.place]) + np.abs(side.high[part.place])  # a box may lie far from the clean cell
    slip = np.where(boxed[part.place], 8.0 * np.finfo(float).eps * size, 0.0)
    return replace(part, low=part.low - slip, high=part.high + slip, inner=(part.low, part.high))
