"""What a threat lets the rows of a table be, in exact numbers: cells, pieces, targets, and budgets of rows.

A number `v` of scale `k` is Python's integer `v·2^(kK)`, and of scale 1 unless said otherwise; radii and vectors are
multiples of `2^GRID`, so that their products with multiples of `2^−GRID` are whole. Where the threat's ends are no such
numbers, the set here is a little larger. What is not known is refused by name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from flint import arb
from numpy.typing import NDArray

from mibp_cert.check.cells import ENTRIES
from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UserError

Ints = NDArray[Any]
Mask = NDArray[np.bool_]
GRID = 10
SLIP = Fraction(4, 2**52)
"""A feature is `(value − shift)/scale` with two roundings, each of half of `2^−52`."""
ORDER = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


class NotProven(Exception):
    """What a certificate says does not follow from it."""


def listed(values: Iterable[int]) -> Ints:
    array = np.empty(len(found := list(values)), dtype=object)
    array[:] = found
    return array


@dataclass(frozen=True)
class Unit:
    """`K`, which is such that every float in sight is a multiple of `2^(GRID−K)`."""

    k: int

    @classmethod
    def of(cls, arrays: Iterable[Any]) -> Unit:
        ratios = (
            value.as_integer_ratio()[1] for a in arrays for value in np.unique(np.asarray(a, dtype=float)).tolist()
        )
        return cls(max(60, *(below.bit_length() - 1 for below in ratios)) + GRID)

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

    def __init__(self, train: Dataset, unit: Unit) -> None:
        self.train, self.unit, self.base = train, unit, Doubt(*train.x.shape)
        self.budgets: list[tuple[int, Mask, Doubt, bool]] = []
        self.centre = np.array(train.x)
        """A missing category is the first one here; all other cells are as handed in."""
        self.open = np.zeros((len(train), len(train.columns)), bool) if train.missing is None else train.missing.copy()
        """Missing values that no threat has spoken of."""

    def rows(self, weights: Ints, y: Ints, *, intercept: bool) -> tuple[Rows, tuple[Group, ...]]:
        """All rows of weight above 0, and the budgets on them."""
        if self.open.any():
            raise UserError("Values are missing in these rows, and the threat does not say that they may be anything.")
        keep = np.flatnonzero(weights > 0)
        groups = []
        for most, mask, own, goes in self.budgets:
            mine = [own] if goes else [doubt for _, _, doubt, gone in self.budgets if not gone]
            some = keep[mask[keep]]
            dirty = self._made(some, weights, y, [self.base, *mine], intercept=intercept)
            groups.append(Group(most, np.searchsorted(keep, some), dirty, goes))
        return self._made(keep, weights, y, [self.base], intercept=intercept), tuple(groups)

    def _made(self, some: Any, w: Ints, y: Ints, doubts: list[Doubt], *, intercept: bool) -> Rows:
        """These rows with all of this noise."""
        low, high = (sum(doubt.x[side][some] for doubt in doubts) for side in (0, 1))
        shift = (high - low) >> (GRID + 1) << GRID
        x, r = self.unit.exact(self.centre[some]) + shift, np.maximum(high - shift, low + shift)
        one, place = np.full((len(some), 1), 1 << self.unit.k, dtype=object), {int(i): k for k, i in enumerate(some)}
        pieces = [
            Piece(place[piece.row], piece.cells, piece.vectors, piece.radii)
            for doubt in doubts
            for piece in doubt.pieces
            if piece.row in place
        ]
        if intercept:
            x, r = np.append(x, one, axis=1), np.append(r, 0 * one, axis=1)
        ends = y[some] - sum(d.y[0][some] for d in doubts), y[some] + sum(d.y[1][some] for d in doubts)
        if self.train.targets is None:  # whatever two threats do to one label: it is a label
            ends = np.maximum(ends[0], 0), np.minimum(ends[1], 1 << self.unit.k)
        return Rows(x, r, w[some], ends, tuple(pieces))

    # The threat, by its kind --------------------------------------------------------------------------------------------

    def read(self, plain: Any, rows: Mask, into: Doubt) -> Mask:
        """Add what this threat lets these rows be; returns which of them it is about."""
        known: dict[str, Callable[..., Mask]] = {
            "nothing": lambda rows, into: rows & False,
            "all": lambda rows, into, threats: np.any([self.read(one, rows, into) for one in threats], axis=0),
            "where": self._where,
            "budget": self._budget,
            "removed": lambda rows, into, at_most: self._budget(rows, into, None, at_most),
            "label-flips": self._flips,
            "linf": self._boxes,
            "l1": partial(self._norm, ball=False),
            "l2": partial(self._norm, ball=True),
            "rounded": lambda rows, into, columns, to: self._boxes(rows, into, to, None, columns, half=2),
            "monotone": self._monotone,
            "target-noise": self._targets,
            "missing": self._missing,
            "any-category": self._any,
            "confusable": self._confused,
            "shift": self._shifted,
        }
        kind = plain.get("kind") if isinstance(plain, Mapping) else None
        if kind not in known:
            raise UserError(f"The checker does not know the threat {kind!r}; it knows {', '.join(known)}.")
        for entry in sorted(plain.keys() - {"kind", *ENTRIES.get(kind, {"at_most"})}):
            raise UserError(f"The checker does not know the entry {entry!r} of the threat {kind!r}.")
        given = {"rows_" if key == "rows" else key: value for key, value in plain.items() if key != "kind"}
        try:
            if not isinstance(given.get("relative", False), bool):
                raise ValueError("relative is true or false")
            return known[kind](rows, into, **given)
        except (TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
            raise UserError(f"The checker does not know the threat {kind!r} in this form: {error}.") from None

    def _where(
        self, rows: Mask, into: Doubt, threat: Any, when: Any = None, rows_: Any = None, condition: str = ""
    ) -> Mask:
        if (when is None) == (rows_ is None):
            raise ValueError("it needs one condition")
        return self.read(threat, rows & self._holds({"rows": rows_} if when is None else when), into)

    def _holds(self, plain: Any) -> Mask:
        """The rows for which a condition holds, on the data as handed in."""
        train = self.train
        if not isinstance(plain, Mapping) or len(plain) != (3 if "column" in plain else 1):
            raise UserError(f"The checker does not know the condition {plain!r}.")
        match plain:
            case {"rows": [*some]}:
                return self._named(some)
            case {"label": [*classes]}:
                return np.isin(train.y, train.number(classes))
            case {"not": part}:
                return ~self._holds(part)
            case {"and": [one, two]}:
                return self._holds(one) & self._holds(two)
            case {"or": [one, two]}:
                return self._holds(one) | self._holds(two)
            case {"column": name, "is": sign, "value": value}:
                column = train.columns[j := train.column(name)]
                known = True if train.missing is None else ~train.missing[:, j]
                if column.categories is None:
                    return np.asarray(ORDER[sign](train.x[:, column.start], float(column.to_feature(value))) & known)
                if sign in ("==", "!="):
                    return np.asarray(ORDER[sign](train.x[:, column.start + column.number(value)], 1.0) & known)
        raise UserError(f"The checker does not know the condition {plain!r}.")

    def _named(self, some: list[Any]) -> Mask:
        """Rows by their numbers, or as a mask."""
        n = len(self.train)
        if some and all(isinstance(one, bool) for one in some):
            if len(some) != n:
                raise ValueError(f"a mask of {len(some)} rows, where there are {n}")
            return np.array(some)
        if not all(type(one) is int and 0 <= one < n for one in some):
            raise ValueError("it names rows that there are not")
        return np.isin(np.arange(n), some)

    def _budget(self, rows: Mask, into: Doubt, threat: Any, rows_: Any) -> Mask:
        if into is not self.base:
            raise UserError("The checker does not know budgets inside of budgets.")
        own = Doubt(*self.train.x.shape)
        touched = rows if threat is None else self.read(threat, rows, own)
        self.budgets.append((_whole(rows_), touched, own, threat is None))
        return touched

    def _flips(self, rows: Mask, into: Doubt, at_most: Any = None, source: Any = None, target: Any = None) -> Mask:
        """A label is 0 or 1, the number of its class."""
        train, both = self.train, np.arange(2)
        of, to = (np.isin(both, both if given is None else train.number(given)) for given in (source, target))
        mine = rows & of[train.y] & to[1 - train.y]
        if at_most is not None:
            return self._budget(mine, into, {"kind": "label-flips"}, at_most)
        for side, label in enumerate((1, 0)):
            into.y[side][mine & (train.y == label)] += 1 << self.unit.k
        return mine

    # Numbers

    def _columns(self, names: Any, values: Any) -> list[tuple[Column, Any]]:
        """The numeric columns that are meant, each with its amount."""
        columns = self.train.columns
        if isinstance(values, Mapping):
            amounts = {self.train.column(name): value for name, value in values.items()}
            pairs = [(j, amounts.get(j, 0)) for j in (amounts if names is None else self._picked(names))]
            if not amounts.keys() <= dict(pairs).keys():
                raise ValueError("it has amounts for columns that it does not name")
        else:
            some = [j for j, c in enumerate(columns) if not c.categorical] if names is None else self._picked(names)
            pairs = list(zip(some, values if isinstance(values, list) else [values] * len(some), strict=True))
        return [(columns[j].expect(False, ", and the threat is about numbers"), _amount(value)) for j, value in pairs]

    def _picked(self, names: Any) -> list[int]:
        given = names if isinstance(names, list) else [names]
        if given and all(isinstance(one, bool) for one in given):
            return [int(j) for j in np.flatnonzero(given)]
        return list(dict.fromkeys(self.train.column(name) for name in given))

    def _radius(self, column: Column, amount: Fraction, x: float, share: bool = False) -> int:
        """An amount in the units of the table (or a share of the value), as one of features."""
        scale, shift, place = Fraction(column.scale), Fraction(column.shift), Fraction(x)
        size = abs(place) + abs(shift / scale)
        radius = amount * (abs(place + shift / scale) + SLIP * size if share else 1 / scale)
        return self.unit.up(radius + SLIP * (size + radius) if radius and column.scaled else radius)

    def _widen(self, into: Doubt, rows: Mask, column: Column, *amounts: Fraction, share: bool = False) -> None:
        """Cells of a column may be off by so much, down and up."""
        for i in np.flatnonzero(rows):
            for side, amount in enumerate(amounts):
                into.x[side, i, column.start] += self._radius(
                    column, amount, float(self.train.x[i, column.start]), share
                )

    def _boxes(
        self,
        rows: Mask,
        into: Doubt,
        eps: Any,
        rows_: Any = None,
        columns: Any = None,
        relative: bool = False,
        half: int = 1,
    ) -> Mask:
        rows = rows if rows_ is None else rows & self._holds({"rows": rows_})
        for column, amount in self._columns(columns, eps):
            self._widen(into, rows, column, *(amount / half,) * 2, share=relative)
        return rows

    def _norm(
        self,
        rows: Mask,
        into: Doubt,
        eps: Any,
        rows_: Any = None,
        columns: Any = None,
        relative: bool = False,
        *,
        ball: bool,
    ) -> Mask:
        """An ellipsoid; or the hull of what single cells can do."""
        rows, pairs = rows if rows_ is None else rows & self._holds({"rows": rows_}), self._columns(columns, eps)
        cells = np.array([column.start for column, _ in pairs], dtype=np.intp)
        for i in np.flatnonzero(rows):
            at = self.train.x[i, cells].tolist()
            radii = listed(self._radius(*pair, x, relative) for pair, x in zip(pairs, at, strict=True))
            vectors = np.concatenate([np.diag(radii), -np.diag(radii)])
            into.pieces.append(Piece(int(i), cells, None if ball else vectors, radii))
        return rows

    def _monotone(self, rows: Mask, into: Doubt, columns: Any, up: Any = 0.0, down: Any = 0.0) -> Mask:
        if columns is None:
            raise ValueError("it names no columns")
        for (column, more), (_, less) in zip(self._columns(columns, up), self._columns(columns, down), strict=True):
            self._widen(into, rows, column, less, more)
        return rows

    def _targets(self, rows: Mask, into: Doubt, eps: Any) -> Mask:
        targets = self.train.targets
        if targets is None:
            raise ValueError("these data have classes")
        for i in np.flatnonzero(rows):
            into.y[:, i] += self._radius(
                self.train.target or Column("target", 0, 1), _amount(eps), float(targets[i, 0])
            )
        return rows

    # Categories, and what is missing

    def _choices(self, rows: Mask, into: Doubt, column: Column, options: Mapping[int, list[int]]) -> Mask:
        """A one-hot group may be what was reported, or any of the options of that."""
        cells = np.arange(column.start, column.stop, dtype=np.intp)
        eye = self.unit.exact(np.eye(len(cells)))
        for i in np.flatnonzero(rows):
            reported = int(self.centre[i, cells].argmax())
            moves = [eye[k] - eye[reported] for k in {reported, *options.get(reported, [])}]
            into.pieces.append(Piece(int(i), cells, np.array(moves, dtype=object)))
        return rows

    def _category(self, name: Any) -> Column:
        return self.train.columns[self.train.column(name)].expect(True, ", and the threat is about categories")

    def _any(self, rows: Mask, into: Doubt, columns: Any, among: Any = None) -> Mask:
        for j in self._picked(columns):
            column = self._category(self.train.columns[j].name)
            options = [column.number(name) for name in (column.categories or () if among is None else among)]
            self._choices(rows, into, column, dict.fromkeys(range(column.stop - column.start), options))
        return rows

    def _confused(self, rows: Mask, into: Doubt, column: Any, pairs: Any) -> Mask:
        of, given = self._category(column), pairs.items() if isinstance(pairs, Mapping) else pairs
        return self._choices(rows, into, of, {of.number(k): [of.number(one) for one in some] for k, some in given})

    def _shifted(self, rows: Mask, into: Doubt, column: Any, by: int, among: Any = None) -> Mask:
        of = self._category(column)
        order = [of.number(name) for name in (of.categories or () if among is None else among)]
        steps = {k: [order[i + by]] for i, k in enumerate(order) if 0 <= i + by < len(order)}
        return self._choices(rows, into, of, steps)

    def _missing(self, rows: Mask, into: Doubt, columns: Any = None) -> Mask:
        """What is missing may be any category; or any number between the ends of the column, or those that are known."""
        train, touched = self.train, rows & False
        if into is not self.base:
            raise UserError("The checker does not know missing values under a budget: no row is clean there.")
        for j in range(len(train.columns)) if columns is None else self._picked(columns):
            column = train.columns[j]
            lost = rows & False if train.missing is None else train.missing[:, j]
            mine, touched = lost & rows, touched | (lost & rows)
            self.open[mine, j] = False
            if column.categories is not None:
                cells = slice(column.start, column.stop)
                self.centre[mine, cells] = np.eye(len(column.categories))[0]
                self._choices(mine, into, column, {0: list(range(len(column.categories)))})
                continue
            valid = column.to_feature([column.low, column.high])
            known = valid if np.isfinite(valid).all() else train.x[~lost, column.start]
            ends = Fraction(float(known.min())), Fraction(float(known.max()))
            slip = SLIP * (abs(ends[0]) + abs(ends[1]) + abs(Fraction(column.shift) / Fraction(column.scale)))
            for i in np.flatnonzero(mine):
                x = Fraction(float(train.x[i, column.start]))
                for side, room in enumerate((x - ends[0], ends[1] - x)):
                    into.x[side, i, column.start] += self.unit.up(max(room + slip, Fraction(0)))
        return touched


def _whole(value: Any) -> int:
    """A number of rows."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number of rows")
    return value


def _amount(value: Any) -> Fraction:
    """A number that is at least 0, exactly."""
    if type(value) not in (int, float) or not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{value!r} is no amount")
    return Fraction(value)
