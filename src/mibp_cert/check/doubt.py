"""What a threat lets the rows of a table be, in exact numbers: cells, pieces, targets, and budgets of rows.

A number `v` of scale `k` is Python's integer `v·2^(kK)`, and of scale 1 unless said otherwise; radii and vectors are
multiples of `2^GRID`, so that their products with multiples of `2^−GRID` are whole. Where the threat's ends are no such
numbers, the set here is a little larger. What is not known is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb
from numpy.typing import NDArray

from mibp_cert.check.said import ENTRIES, Mask, Plain, amount_of, choices, kind_of, moves, picked, where
from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UserError

Ints = NDArray[Any]
GRID = 10
SLIP = Fraction(4, 2**52)
"""A feature is `(value − shift)/scale` with two roundings, each of half of `2^−52`."""
KNOWN = {kind: entries - {"cells", "clip", "marker"} for kind, entries in ENTRIES.items()} | {"removed": {"at_most"}}
"""The threats that are known here, and what each may say: more than in steps, and less."""


class NotProven(Exception):
    """What a certificate says does not follow from it."""


def listed(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=object)


class Unit:
    """`K`, which is such that every float in sight is a multiple of `2^(GRID−K)`."""

    def __init__(self, arrays: Iterable[Any]) -> None:
        numbers = np.unique(np.concatenate([np.asarray(a, dtype=float).ravel() for a in arrays])).tolist()
        below = max(value.as_integer_ratio()[1] for value in numbers)
        self.k: int = max(60, below.bit_length() - 1) + GRID

    def exact(self, values: Any) -> Ints:
        array = np.asarray(values, dtype=np.float64)
        ratios = (value.as_integer_ratio() for value in array.ravel().tolist())
        # A denominator beyond the unit would be a negative shift, which Python refuses.
        return listed(above << (self.k - below.bit_length() + 1) for above, below in ratios).reshape(array.shape)

    def up(self, value: Fraction) -> int:
        """The next multiple of the grid."""
        return int(math.ceil(value * 2 ** (self.k - GRID)) << GRID)

    def ball(self, value: int, scale: int = 1) -> arb:
        return arb(value) * arb(2) ** (-scale * self.k)

    def ceil(self, value: arb, scale: int = 1) -> int:
        """The next integer of this scale."""
        if not value.is_finite():
            raise NotProven("a number is not finite")
        mantissa, exponent = (int(part) for part in value.upper().man_exp())
        shift = exponent + scale * self.k
        return mantissa << shift if shift >= 0 else -((-mantissa) >> -shift)


@dataclass(frozen=True, eq=False)
class Piece:
    """Noise of one row on some of its cells: the hull of vectors (options × cells), or an ellipsoid with these radii."""

    row: int
    cells: NDArray[np.intp]
    vectors: Ints | None = None
    radii: Ints = field(default_factory=lambda: listed([]))


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows `x ± r` with pieces on top, weights `w`, and targets between `y[0]` and `y[1]`."""

    x: Ints
    r: Ints
    w: Ints
    y: tuple[Ints, Ints]
    pieces: tuple[Piece, ...]

    def reach(self, far: Ints) -> Ints:
        """Largest `|d_i·θ|` for `|θ_j| ≤ far_j` (scale 2)."""
        found = self.r @ far
        for piece in self.pieces:
            own = far[piece.cells]
            found[piece.row] += piece.radii @ own if piece.vectors is None else max(np.abs(piece.vectors) @ own)
        return np.asarray(found)


@dataclass(frozen=True, eq=False)
class Group:
    """A budget: at most `most` of these rows are dirty, and then like this; `goes`: or with less weight, down to none."""

    most: int
    rows: NDArray[np.intp]
    dirty: Rows
    goes: bool


class Doubt:
    """How far cells and targets may be off, down and up, and pieces on top."""

    def __init__(self, n: int, d: int) -> None:
        self.x = np.full((2, n, d), 0, dtype=object)
        self.y = np.full((2, n), 0, dtype=object)
        self.pieces: list[Piece] = []


class Reader:
    """The rows of a table, and what threats make of them."""

    def __init__(self, train: Dataset, unit: Unit, threat: Any, *, intercept: bool) -> None:
        self.train, self.unit = train, unit
        self.budgets: list[tuple[int, Mask, Doubt, bool]] = []
        self.centre = np.append(train.x, np.ones((len(train), int(intercept))), axis=1)
        """A missing category is the first one here; all other cells are as handed in, with 1 for the intercept."""
        self.base = Doubt(*self.centre.shape)
        self.missing = np.zeros((len(train), len(train.columns)), bool) if train.missing is None else train.missing
        self.open = self.missing.copy()
        """Missing values that no threat has spoken of."""
        self.read(threat, np.ones(len(train), dtype=bool), self.base)

    def rows(self, weights: Ints, y: Ints) -> tuple[Rows, tuple[Group, ...]]:
        """All rows of weight above 0, and the budgets on them."""
        if self.open.any():
            raise UserError("Values are missing in these rows, and the threat does not say that they may be anything.")
        keep, groups = np.flatnonzero(weights > 0), list[Group]()
        for most, mask, own, goes in self.budgets:
            mine = [own] if goes else [doubt for _, _, doubt, gone in self.budgets if not gone]
            some = keep[mask[keep]]
            place, dirty = np.searchsorted(keep, some), self._made(some, weights, y, [self.base, *mine])
            groups.append(Group(most, place, dirty, goes))
        return self._made(keep, weights, y, [self.base]), tuple(groups)

    def _made(self, some: Any, w: Ints, y: Ints, doubts: list[Doubt]) -> Rows:
        """These rows with all of this noise."""
        low, high = (sum(doubt.x[side][some] for doubt in doubts) for side in (0, 1))
        shift = (high - low) >> (GRID + 1) << GRID
        x, r = self.unit.exact(self.centre[some]) + shift, np.maximum(high - shift, low + shift)
        place = {int(i): k for k, i in enumerate(some)}
        given = [piece for doubt in doubts for piece in doubt.pieces if piece.row in place]
        pieces = tuple(replace(piece, row=place[piece.row]) for piece in given)
        ends = y[some] - sum(d.y[0][some] for d in doubts), y[some] + sum(d.y[1][some] for d in doubts)
        if self.train.targets is None:  # whatever two threats do to one label: it is a label
            ends = np.maximum(ends[0], 0), np.minimum(ends[1], 1 << self.unit.k)
        return Rows(x, r, w[some], ends, pieces)

    # The threat, by its kind --------------------------------------------------------------------------------------------

    def read(self, plain: Any, rows: Mask, into: Doubt) -> Mask:
        """Add what this threat lets these rows be; returns which of them it is about."""
        kind, train = kind_of(plain, KNOWN), self.train
        if into is not self.base and (kind in ("budget", "missing") or plain.get("at_most") is not None):
            raise UserError(f"The checker does not know {kind!r} under a budget, which needs rows that are clean.")
        try:
            match kind:
                case "nothing":
                    return rows & False
                case "all":
                    return np.asarray(np.any([self.read(one, rows, into) for one in plain["threats"]], axis=0))
                case "where":
                    return self.read(plain["threat"], rows & where(train, plain), into)
                case "budget":
                    return self._budget(rows, plain["rows"], dict(plain["threat"]))
                case "removed":
                    return self._budget(rows, plain["at_most"])
                case "label-flips" if plain.get("at_most") is not None:
                    return self._budget(rows, plain["at_most"], {**plain, "at_most": None})
                case "label-flips":
                    return self._flips(rows, into, plain)
                case "linf" | "l1" | "l2" | "rounded" | "monotone":
                    return self._noise(rows, into, plain)
                case "target-noise":
                    if train.targets is None:
                        raise ValueError("these data have classes")
                    column, eps = train.target or Column("target", 0, 1), amount_of(plain["eps"])
                    self._widen(into.y, rows, train.targets[:, 0], column, eps, eps)
                    return rows
                case "missing":
                    return self._missing(rows, into, plain.get("columns"))
            for j, options in choices(train, plain):
                self._choices(rows, into, train.columns[j], options)
            return rows
        except (TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
            raise UserError(f"The checker does not know the threat {kind!r} in this form: {error}.") from None

    def _budget(self, rows: Mask, most: Any, threat: Plain | None = None) -> Mask:
        """So many of the rows may be like this; or, without a threat, gone."""
        if type(most) is not int or most < 0:
            raise ValueError(f"{most!r} is no number of rows")
        own = Doubt(*self.centre.shape)
        touched = rows if threat is None else self.read(threat, rows, own)
        self.budgets.append((most, touched, own, threat is None))
        return touched

    def _flips(self, rows: Mask, into: Doubt, plain: Plain) -> Mask:
        """A label is 0 or 1, the number of its class."""
        y, both, given = self.train.y, np.arange(2), [plain.get(side) for side in ("source", "target")]
        of, to = (np.isin(both, both if some is None else self.train.number(some)) for some in given)
        mine = rows & of[y] & to[1 - y]
        into.y[1 - y[mine], np.flatnonzero(mine)] += 1 << self.unit.k
        return mine

    # Numbers

    def _radius(self, column: Column, amount: Fraction, x: float, share: bool = False) -> int:
        """An amount in the units of the table (or a share of the value), as one of features."""
        scale, shift, place = Fraction(column.scale), Fraction(column.shift), Fraction(x)
        size = abs(place) + abs(shift / scale)
        radius = amount * (abs(place + shift / scale) + SLIP * size if share else 1 / scale)
        return self.unit.up(radius + SLIP * (size + radius) if radius and column.scaled else radius)

    def _widen(self, ends: Ints, rows: Mask, x: Any, column: Column, *amounts: Fraction, share: bool = False) -> None:
        """Numbers of a column, which are `x`, may be off by so much, down and up."""
        for i in np.flatnonzero(rows):
            ends[:, i] += listed(self._radius(column, amount, float(x[i]), share) for amount in amounts)

    def _noise(self, rows: Mask, into: Doubt, plain: Plain) -> Mask:
        """A box, an ellipsoid, or the hull of what single cells can do."""
        x, share, columns = self.train.x, plain.get("relative", False), moves(self.train, plain)
        if plain.get("rows") is not None:
            rows = rows & where(self.train, plain)
        if plain["kind"] not in ("l1", "l2"):
            for column, down, up in columns:
                self._widen(into.x[:, :, column.start], rows, x[:, column.start], column, down, up, share=share)
            return rows
        cells = np.array([column.start for column, _, _ in columns], dtype=np.intp)
        for i in np.flatnonzero(rows):
            radii = listed(self._radius(column, eps, float(x[i, column.start]), share) for column, eps, _ in columns)
            vectors = None if plain["kind"] == "l2" else np.concatenate([np.diag(radii), -np.diag(radii)])
            into.pieces.append(Piece(int(i), cells, vectors, radii))
        return rows

    # Categories, and what is missing

    def _choices(self, rows: Mask, into: Doubt, column: Column, options: Mapping[int, list[int]]) -> None:
        """A one-hot group may be what was reported, or any of the options of that."""
        cells = np.arange(column.start, column.stop, dtype=np.intp)
        eye = self.unit.exact(np.eye(len(cells)))
        for i in np.flatnonzero(rows):
            reported = int(self.centre[i, cells].argmax())
            vectors = [eye[k] - eye[reported] for k in {reported, *options.get(reported, [])}]
            into.pieces.append(Piece(int(i), cells, np.array(vectors, dtype=object)))

    def _missing(self, rows: Mask, into: Doubt, named: Any) -> Mask:
        """What is missing may be any category; or any number between the ends of the column, or those that are known."""
        places = list(range(len(self.train.columns))) if named is None else picked(self.train, named)
        for j in places:
            column, mine = self.train.columns[j], rows & self.missing[:, j]
            self.open[mine, j] = False
            if column.categories is not None:
                self.centre[mine, column.start : column.stop] = np.eye(1, len(column.categories))
                self._choices(mine, into, column, {0: list(range(len(column.categories)))})
                continue
            x, valid = self.train.x[:, column.start], column.to_feature([column.low, column.high])
            known = valid if np.isfinite(valid).all() else x[~self.missing[:, j]]
            low, high = Fraction(float(known.min())), Fraction(float(known.max()))
            slip = SLIP * (abs(low) + abs(high) + abs(Fraction(column.shift) / Fraction(column.scale)))
            for i in np.flatnonzero(mine):
                rooms = Fraction(float(x[i])) - low, high - Fraction(float(x[i]))
                into.x[:, i, column.start] += listed(self.unit.up(max(room + slip, Fraction(0))) for room in rooms)
        return np.asarray(rows & self.missing[:, places].any(axis=1))
