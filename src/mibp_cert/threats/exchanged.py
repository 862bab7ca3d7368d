"""Two numbers that were typed into each other's place, such as systolic and diastolic blood pressure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UserError
from mibp_cert.sets import Part
from mibp_cert.sets.blocks import Array
from mibp_cert.threats.combine import Catalogued
from mibp_cert.threats.conditions import Rows
from mibp_cert.threats.words import ANY_ROW, at, names

STEPS = 80
"""Halvings of an interval of some 30 floats, or more around 0; too few would only widen the set."""


@dataclass(frozen=True, eq=False)
class Exchanged(Catalogued):
    """In any row the values of two numeric columns may have been exchanged: a row with the values `(v, w)` is that, or `(w, v)`.

    Values are exchanged in the units of the table, so that each is scaled as its new column is.

    >>> Exchanged("systolic", "diastolic").to_json()
    {'kind': 'exchanged', 'first': 'systolic', 'second': 'diastolic'}
    """

    first: str | int
    second: str | int
    kind = "exchanged"

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        numbers = [clean.column(name) for name in (self.first, self.second)]
        one, two = (clean.columns[j] for j in numbers)
        for column in (one, two):
            if column.categorical:
                raise UserError(f"The column '{column.name}' is categorical; Exchanged takes two numeric columns.")
        if one is two:
            raise UserError(f"Exchanged takes two different columns, got '{one.name}' twice.")
        if clean.missing is not None and (clean.missing[:, numbers] & rows[:, None]).any():
            row, j = (int(i) for i in np.argwhere(clean.missing[:, numbers] & rows[:, None])[0])
            raise UserError(
                f"The column '{(one, two)[j].name}' has no value in row {row} that could have been exchanged; keep such rows out "
                "with Exchanged(...).where(...), or fill them in."
            )
        x = clean.x[:, [one.start, two.start]]
        ends = [to.to_feature(recorded(of, x[:, j])) for to, of, j in ((one, two, 1), (two, one, 0))]
        low, high = (np.stack([pick(end, axis=0) for end in ends], axis=1) for pick in (np.min, np.max))
        # Equal values stay as they are, whichever way they were typed.
        chosen = np.flatnonzero(rows & ((low != x) | (high != x)).any(axis=1)).astype(np.intp)
        place = chosen[:, None] * clean.features + np.array([one.start, two.start])
        sizes = np.full(len(chosen), 2, dtype=np.intp)
        part = Part("swap", "x", chosen, sizes, place.ravel(), low[chosen].ravel(), high[chosen].ravel())
        return [part] if len(chosen) else []

    def words(self, rows: str = ANY_ROW) -> str:
        return at(f"{names(self.first)} and {names(self.second)} may be exchanged", rows)


def recorded(column: Column, x: Array) -> Array:
    """Smallest and largest number that the table may hold where the feature is `x` (2 × rows).

    Let `f(v) = fl(fl(v − shift) / scale)`, which never falls. A `v` with `f(v) = x` has `|v − shift − x·scale| ≤ 3u·|x·scale|`
    (`u = 2⁻⁵³`), so it lies within `reach` of the computed `x·scale + shift`; there, bisection keeps an end that is beyond
    (`f(end) ≠ x`), and the float before it bounds all of them. Since `f` never falls, features of numbers in between lie between
    the features of the ends. A feature that no number leads to is taken to lie between the two that are next to it.
    """
    if not column.scaled:
        return np.stack([x, x])
    size = np.abs(x) * column.scale
    guess, reach = x * column.scale + column.shift, 8.0 * np.finfo(float).eps * (size + abs(column.shift))
    reach = reach + column.scale * np.finfo(float).tiny
    found = []
    for sign in (-1.0, 1.0):
        inside, outside = guess - sign * reach, guess + sign * reach
        for _ in range(STEPS):
            middle = 0.5 * inside + 0.5 * outside
            beyond = sign * (column.to_feature(middle) - x) > 0
            inside, outside = np.where(beyond, inside, middle), np.where(beyond, middle, outside)
        found.append(np.nextafter(outside, -sign * np.inf))
    return np.stack(found)
