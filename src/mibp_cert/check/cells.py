"""What a threat leaves of the data: a range for every cell, and the labels that a row may have."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from mibp_cert.check.ranges import ONE, Range
from mibp_cert.check.said import ENTRIES, Mask, Plain, amount_of, choices, kind_of, moves, picked, where
from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UnsupportedOperation


class NotProven(Exception):
    """The first thing that could not be proven, in words."""


def refuse(what: str) -> UnsupportedOperation:
    return UnsupportedOperation(f"The checker of steps knows no {what}; nothing is proven of this run.")


def part_of(name: str, arrays: Plain, plain: Plain) -> Dataset:
    """The rows of one part of the data, as they are claimed."""
    if f"{name}_weights" in arrays:
        raise refuse("weights of rows")
    x, y, targets = arrays[f"{name}_x"], arrays[f"{name}_y"], arrays.get(f"{name}_targets")
    columns, target = tuple(map(_column, plain["columns"])), plain["target"]
    n, d = x.shape
    tiled = [0, *(c.stop for c in columns)] == [*(c.start for c in columns), d]
    floats = [x] if targets is None else [x, targets]
    shapes = y.shape == (n,) and (targets is None or targets.shape == (n, 1))
    if not n or not tiled or not shapes or any(array.dtype != np.float64 for array in floats):
        raise NotProven("rows, labels and columns of the data do not fit together")
    target = None if target is None else _column(target)
    return Dataset(x, y, tuple(plain["classes"]), columns, arrays.get(f"{name}_missing"), targets, target)


def _column(record: Plain) -> Column:
    found: dict[str, Any] = dict(record)
    for end, free in (("low", -math.inf), ("high", math.inf)):
        found[end] = free if found[end] is None else found[end]
    if found["categories"] is not None:
        found["categories"] = tuple(found["categories"])
    if not 0 < found["scale"] < math.inf or not math.isfinite(found["shift"]):
        raise NotProven(f"the column {found['name']!r} has no scale")
    return Column(**found)


class Data:
    """The data that a threat leaves: a range for every cell, and a set of labels or a range of targets for every row.

    With `x` the encoded cell, `v = x·scale + shift` its value, and amounts in the units of values:

    - `linf`, `l1`, `l2`, `rounded` (half of `to`), `monotone`: `x` moves by at most `amount/scale` down and up, for `relative` by
      `amount·|v|/scale`; of a scaled column by `2^−50·(|x| + that)` more, which covers what encoding a value rounds (each time at
      most `3·2^−53` of the feature). `clip`: `x` stays between the ends, encoded. Several of these add up;
    - `any-category`, `confusable`, `shift`: one of the categories named, or the reported one; `label-flips`: of the labels;
    - `missing`: any number between the encoded ends of the valid range (if there is none, those of the known values), or any
      category but the marker, whatever else the threat says about that cell;
    - `target-noise`: the targets, as `linf`; `where`: only in rows that meet the condition; `all`: at once;
    - `budget`: without its limit, which allows more datasets; a limit of 0 allows none. `nothing`: as encoded.
    """

    def __init__(self, data: Dataset, threat: Plain) -> None:
        self.data, n = data, len(data.x)
        self.x = Range.of(data.x, data.x)
        self.labels = np.arange(len(data.classes)) == data.y[:, None]
        self.targets = None if data.targets is None else Range.of(data.targets, data.targets)
        self.unknown: dict[int, tuple[Mask, Any]] = {}
        """Of a column: the rows without a value, and what it may be: features, or categories."""
        self.chosen = {j: data.x[:, c.start : c.stop] == 1.0 for j, c in enumerate(data.columns) if c.categorical}
        """Of a categorical column: the categories that each row may have."""
        self._widen(threat, np.ones(n, dtype=bool))
        lost = np.zeros((n, len(data.columns)), dtype=bool)
        for j, (rows, values) in self.unknown.items():
            lost[rows, j], place = True, data.columns[j].start
            if j in self.chosen:
                self.chosen[j][rows] = np.isin(np.arange(self.chosen[j].shape[1]), values)
            else:
                ends = Range.of(min(values), max(values))
                self.x.low[rows, place], self.x.high[rows, place] = ends.low[()], ends.high[()]
        for j, allowed in self.chosen.items():
            several, own = allowed.sum(axis=1) > 1, slice(data.columns[j].start, data.columns[j].stop)
            changed = several | lost[:, j]
            if not allowed[changed].any(axis=1).all():
                raise NotProven("the threat leaves no category for some cell")
            self.x.low[changed, own] = (allowed & ~several[:, None])[changed].astype(object) * ONE
            self.x.high[changed, own] = allowed[changed].astype(object) * ONE
        if self.data.missing is not None and (self.data.missing & ~lost).any():
            raise NotProven("the threat says nothing about some values that are missing")
        if self.targets is None and not self.labels.any(axis=1).all():
            raise NotProven("some row has a label that is no class")
        for cells in (self.x, self.targets):
            if cells is not None and not (cells.low <= cells.high).all():
                raise NotProven("the threat leaves no value for some cell")

    def _widen(self, threat: Plain, rows: Mask) -> None:
        """Allow what a threat allows in these rows."""
        match kind_of(threat, ENTRIES):
            case "all":
                for part in threat["threats"]:
                    self._widen(part, rows)
            case "where":
                self._widen(threat["threat"], rows & where(self.data, threat))
            case "budget":
                if threat.get("rows") != 0 and threat.get("cells") != 0:
                    self._widen(threat["threat"], rows)
            case "linf" | "l1" | "l2" | "rounded" | "monotone":
                rows = rows if threat.get("rows") is None else rows & where(self.data, threat)
                for place, (column, down, up) in enumerate(moves(self.data, threat)):
                    ends, x = _ends(threat.get("clip"), place, column), self.data.x[:, column.start]
                    share = threat.get("relative", False)
                    _move(self.x, x, column.start, column, (down, up), rows, relative=share, ends=ends)
            case "target-noise":
                if self.targets is None or self.data.targets is None:
                    raise NotProven("the threat is about targets, and the data have none")
                column, eps = self.data.target or Column("target", 0, 1), amount_of(threat["eps"])
                _move(self.targets, self.data.targets[:, 0], 0, column, (eps, eps), rows)
            case "any-category" | "confusable" | "shift":
                self._choose(threat, rows)
            case "missing":
                self._miss(threat.get("marker"), threat.get("columns"), rows)
            case "label-flips":
                given = [threat.get(side) for side in ("source", "target")]
                some, others = (self.data.number(self.data.classes if side is None else side) for side in given)
                if threat.get("at_most") != 0:
                    to = np.isin(np.arange(len(self.data.classes)), others)
                    self.labels |= (rows & np.isin(self.data.y, some))[:, None] & to

    def _choose(self, threat: Plain, rows: Mask) -> None:
        """Threats about categories: what may stand for each reported one."""
        for j, options in choices(self.data, threat):
            column = self.data.columns[j]
            reported = self.data.x[:, column.start : column.stop].argmax(axis=1)
            for row in np.flatnonzero(rows & np.isin(reported, list(options))):
                if self.chosen[j][row].sum() > 1:
                    raise refuse("two threats about one category")
                self.chosen[j][row, [reported[row], *options[reported[row]]]] = True

    def _miss(self, marker: Any, named: Any, rows: Mask) -> None:
        """Missing values: where they are, and what they may be."""
        for j in list(range(len(self.data.columns))) if named is None else picked(self.data, named):
            column, x, lost = self.data.columns[j], self.data.x, np.zeros(len(rows), dtype=bool)
            names = column.categories
            if marker is None and self.data.missing is not None:
                lost = self.data.missing[:, j]
            elif names is not None and marker in names:
                lost = x[:, column.start + names.index(marker)] == 1.0
            elif names is None and isinstance(marker, int | float):
                lost = x[:, column.start] == column.to_feature(marker)
            lost = lost & rows
            if not lost.any():
                continue
            if j in self.unknown:
                raise refuse("two threats about missing values of one column")
            ends = column.to_feature([column.low, column.high]) if names is None else np.zeros(0)
            values = [k for k, name in enumerate(names or ()) if marker is None or name != marker]
            known = (ends if np.isfinite(ends).all() else x[~lost, column.start]).tolist()
            self.unknown[j] = lost, known if names is None else values


def _ends(clip: Any, place: int, column: Column) -> list[Any]:
    """The valid range of the column at this place among those meant, as features; open where there is none."""
    ends = [None, None] if clip is None else [end[place] if isinstance(end, list) else end for end in clip]
    pairs = zip(ends, (-math.inf, math.inf), strict=True)
    return [free if end is None else Fraction(float(column.to_feature(end))) for end, free in pairs]


def _move(cells: Range, x: Any, place: int, column: Column, amounts: Any, rows: Mask, **how: Any) -> None:
    """Move the ends of one column of cells, whose features are `x`, down and up by at most so much; see `Data`."""
    scale, shift = Fraction(column.scale), Fraction(column.shift)
    least, most = how.get("ends", (-math.inf, math.inf))
    for row in np.flatnonzero(rows):
        value = Fraction(float(x[row]))
        share = abs(value * scale + shift) if how.get("relative") else Fraction(1)
        reach = [amount * share / scale for amount in amounts]
        if column.scaled:
            reach = [r and r + (abs(value) + r) / 2**50 for r in reach]
        if not least <= value <= most:
            raise NotProven("some value is outside of the valid range that the threat names")
        move = Range.of(max(value - reach[0], least) - value, min(value + reach[1], most) - value)
        cells.low[row, place] += move.low[()]
        cells.high[row, place] += move.high[()]
