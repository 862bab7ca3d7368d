"""Rows that should not be there, rows that have been lost, and rows that may be anything.

Fitted models and ensembles know rows that come and go: a training in steps has its batches, and with them its rows, fixed
beforehand. Rows that may be anything are for ensembles alone, whose votes do not ask what a lost part was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UserError
from mibp_cert.sets import Addition, Part, presence
from mibp_cert.sets.blocks import Array
from mibp_cert.threats.base import ANY_ROW, Budget, Catalogued, amount, count, names, plain
from mibp_cert.threats.conditions import Rows

MOST = 100_000
"""Each lost row is one more row with symbols of its own: with more, a run would take days."""
TARGET = "target"
"""What the targets of a regression are called in a domain, if they have no name."""


@dataclass(frozen=True, eq=False)
class _OfRows(Catalogued):
    """At most so many rows are of this kind."""

    at_most: int

    def __post_init__(self) -> None:
        Budget(self, rows=self.at_most)  # refuses a number that makes no sense
        object.__setattr__(self, "at_most", int(self.at_most))


@dataclass(frozen=True, eq=False)
class _Moving(_OfRows):
    """At most so many rows come or go."""

    def changes_rows(self) -> str:
        return type(self).__name__ if self.at_most else ""


@dataclass(frozen=True, eq=False)
class Removed(_Moving):
    """At most `at_most` rows should not be there: duplicates, rows of others, inventions.

    >>> Removed(3).to_json()
    {'kind': 'removed', 'at_most': 3}
    """

    kind = "removed"

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        picked = np.flatnonzero(rows).astype(np.intp)
        if not self.at_most or not len(picked):
            return []
        limits.append(min(self.at_most, len(picked)))
        return [presence(picked, there=True).restricted(np.ones(len(picked), dtype=bool), len(limits) - 1)]

    def words(self, rows: str = ANY_ROW) -> str:
        return f"at most {count(self.at_most, 'row')} should not be there"


@dataclass(frozen=True, eq=False)
class Added(_Moving):
    """At most `at_most` rows have been lost. Each may have any label, and features within `domain`: `{column: (low, high)}` for
    numbers in their units, `{column: [categories]}`, and `{"target": (low, high)}` for a regression. A column that is not named
    has its valid range, else the one seen in the data, or any of its categories. None: any row whatever.

    >>> Added(1, {"age": (18, 99)}).to_json()
    {'kind': 'added', 'at_most': 1, 'domain': {'age': [18, 99]}}
    """

    domain: Mapping[Any, Any] | None = None
    kind = "added"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at_most > MOST:
            raise UserError(
                f"At most {MOST} lost rows can be said of, got {self.at_most}; leave Added out, or say fewer."
            )
        if self.domain is not None and not isinstance(self.domain, Mapping):
            raise UserError(
                f"A domain names columns with their ranges, such as {{'age': (18, 99)}}; got {self.domain!r}."
            )

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        return []

    def added(self, clean: Dataset) -> list[Addition]:
        if not self.at_most:
            return []
        if self.domain is None:
            raise UserError(
                "Added without a domain lets a lost row be anything, however large, which no bound can cover; give the ranges of "
                "its columns, such as domain={'age': (18, 99)}, or domain={} for what is seen in the data."
            )
        given = {clean.column(name): ends for name, ends in self.domain.items() if not is_target(clean, name)}
        k = self.at_most
        rows = np.arange(k, dtype=np.intp)
        x, parts = np.zeros((k, clean.features)), [presence(rows, there=False)]
        for j, column in enumerate(clean.columns):
            if column.categories is None:
                ends = _ends(column, given.get(j), clean.x[:, column.start])
                parts += _boxes("x", x, column.start, ends)
            else:
                some = given.get(j, column.categories)
                if isinstance(some, str) or not isinstance(some, Iterable):
                    raise UserError(f"The domain of the column '{column.name}' is a list of categories, got {some!r}.")
                parts += _options("x", x, column.start, [column.number(name) for name in some], column.name)
        y = np.zeros((k, clean.one_hot.shape[1]))
        if clean.targets is None:
            parts += _options("y", y, 0, list(range(len(clean.classes))), "label")
        else:
            column = clean.target or Column(TARGET, 0, 1)
            said = next((ends for name, ends in self.domain.items() if is_target(clean, name)), None)
            parts += _boxes("y", y, 0, _ends(column, said, clean.targets[:, 0]))
        return [Addition(x, y, tuple(parts))]

    def words(self, rows: str = ANY_ROW) -> str:
        if self.domain is None:
            return f"at most {count(self.at_most, 'row')} of any kind may have been lost"
        said = []
        for name, ends in self.domain.items():
            values = plain(ends)
            numbers = isinstance(values, list) and len(values) == 2 and not any(isinstance(v, str) for v in values)
            said.append(
                f"{name!r} {f'from {amount(values[0])} to {amount(values[1])}' if numbers else f'among {names(values)}'}"
            )
        known = "whatever is seen in the data" if not said else ", ".join(said)
        return f"at most {count(self.at_most, 'row')} may have been lost ({known})"


@dataclass(frozen=True, eq=False)
class Arbitrary(_OfRows):
    """At most `at_most` rows may really have been anything: any features, any label. No bound covers that; an ensemble does
    (`PartitionedClassifier`, `BaggedClassifier`).

    >>> Arbitrary(3).to_json()
    {'kind': 'arbitrary', 'at_most': 3}
    """

    kind = "arbitrary"

    def anything(self) -> str:
        return type(self).__name__ if self.at_most else ""

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        if not self.at_most:
            return []
        raise UserError(
            f"{type(self).__name__} lets rows be anything at all, which no set of datasets with bounds covers: take an ensemble "
            "(PartitionedClassifier, --ensemble partitions:50), or say by how much rows may be off."
        )

    def words(self, rows: str = ANY_ROW) -> str:
        return f"at most {count(self.at_most, 'row')} may be anything"


def is_target(clean: Dataset, name: Any) -> bool:
    """Does a domain mean the targets of a regression by this name?"""
    if clean.targets is None or any(column.name == str(name) for column in clean.columns):
        return False
    return name == TARGET or (clean.target is not None and name == clean.target.name)


def _ends(column: Column, given: Any, seen: Array) -> Array:
    """Smallest and largest feature of a column."""
    if given is None:
        ends = column.to_feature([column.low, column.high])
        return ends if np.isfinite(ends).all() else np.array([seen.min(), seen.max()])
    try:
        ends = column.to_feature(given)
    except (TypeError, ValueError, OverflowError):
        ends = np.zeros(0)
    if ends.shape != (2,) or not np.isfinite(ends).all() or ends[0] > ends[1]:
        raise UserError(
            f"The domain of the column '{column.name}' must be a pair (low, high) of numbers, got {given!r}."
        )
    return ends


def _boxes(on: str, base: Array, place: int, ends: Array) -> list[Part]:
    """A column of all added rows anywhere between the ends; the stand-in is their middle."""
    k, width = base.shape
    base[:, place] = np.clip(0.5 * ends[0] + 0.5 * ends[1], ends[0], ends[1])
    rows, ones = np.arange(k, dtype=np.intp), np.ones(k, dtype=np.intp)
    low, high = np.full(k, ends[0]), np.full(k, ends[1])
    return [Part("box", on, rows, ones, rows * width + place, low, high)] if ends[0] < ends[1] else []


def _options(on: str, base: Array, start: int, options: list[int], name: str) -> list[Part]:
    """A one-hot group of all added rows that is any of these; the stand-in is the first."""
    if not options:
        raise UserError(f"The domain of the column '{name}' names no category; name at least one.")
    k, width = base.shape
    base[:, start + options[0]] = 1.0
    others = [option for option in dict.fromkeys(options) if option != options[0]]
    rows = np.arange(k, dtype=np.intp)
    first = rows * width + start
    place = (first[:, None] + np.array(others, dtype=np.intp)).ravel().astype(np.intp)
    sizes = np.full(k, len(others), dtype=np.intp)
    zero = np.zeros(len(place))
    part = Part("choice", on, rows, sizes, place, zero, zero + 1.0, reference=first + options[0])
    return [part] if others else []
