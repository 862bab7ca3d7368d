"""What a threat must offer: a description of what may be wrong, that becomes a set of datasets once bound to data.

Every threat of the catalogue compiles to parts (`sets.base`). Combinations rewrite the parts of others: restricted to some rows,
acting together, or limited to a few rows or cells. What all descriptions are made of comes last: the columns they name, plain
data, and pieces of sentences.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.graph.ops import frozen
from mibp_cert.sets import Addition, Part, ProductSet, ThreatSet
from mibp_cert.threats.conditions import Condition, Rows, row_mask

log = logging.getLogger(__name__)

ANY_ROW = "in any row"
"""Where a threat acts if nothing else was said; an empty text where the sentence around it says so already."""


class Threat(ABC):
    """A description of what may be wrong with the data."""

    @abstractmethod
    def bind(self, clean: Dataset) -> ThreatSet:
        """The set of datasets around `clean`; raises `UserError` if the description does not fit the data."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The description as plain data, with at least `kind`."""

    # What others ask of a threat; where a threat does not say, the careful answer is given.

    def reads_labels(self) -> bool:
        """Can what may be wrong with a row's features depend on its label?"""
        return True

    def uses_rows(self) -> bool:
        """Does it name rows by their numbers, so that it makes sense for one table only?"""
        return True

    def knows_missing(self) -> bool:
        """Does it, or a part of it, say that missing values may be anything valid?"""
        return False

    def changes_rows(self) -> str:
        """What lets rows come or go, by its name; empty: nothing does."""
        return ""

    def anything(self) -> str:
        """What lets rows be anything at all, by its name; empty: nothing does."""
        return ""

    def words(self, rows: str = ANY_ROW) -> str:
        """What may be wrong, as a clause a person can read; `rows`: where it acts, empty if the sentence around it says so."""
        return str(self.to_json())


@dataclass(frozen=True, eq=False)
class Catalogued(Threat):
    """A threat that compiles to parts, possibly made of others (`inner`), whose answers it joins."""

    kind: ClassVar[str]
    """Its name in files."""
    amounts: ClassVar[tuple[str, ...]] = ()
    """Entries that are amounts, and can be scaled."""
    always: ClassVar[tuple[str, ...]] = ()
    """Entries that are written to files even if they are None."""

    @abstractmethod
    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        """The parts on these rows; row budgets are appended to `limits` and named by their place there."""

    @property
    def inner(self) -> tuple[Catalogued, ...]:
        """The threats that it is made of."""
        return ()

    def added(self, clean: Dataset) -> list[Addition]:
        """Rows that may have been lost."""
        return [rows for threat in self.inner for rows in threat.added(clean)]

    def bind(self, clean: Dataset) -> ProductSet:
        limits: list[int] = []
        parts = self.parts(clean, np.ones(len(clean), dtype=bool), limits)
        return ProductSet(clean, parts, limits, self.added(clean))

    def to_json(self) -> dict[str, Any]:
        """The kind and the fields; None and False say nothing, and are left out."""
        found = {f.name: plain(getattr(self, f.name)) for f in fields(self)}
        told = {k: v for k, v in found.items() if k in self.always or (v is not None and v is not False)}
        return {"kind": self.kind, **told}

    def reads_labels(self) -> bool:
        return any(threat.reads_labels() for threat in self.inner)

    def uses_rows(self) -> bool:
        return any(threat.uses_rows() for threat in self.inner)

    def knows_missing(self) -> bool:
        return any(threat.knows_missing() for threat in self.inner)

    def changes_rows(self) -> str:
        return next((name for threat in self.inner if (name := threat.changes_rows())), "")

    def anything(self) -> str:
        return next((name for threat in self.inner if (name := threat.anything())), "")

    def has_amounts(self) -> bool:
        """Is there an amount (eps, to, up, down) that could be scaled?"""
        return bool(self.amounts) or any(threat.has_amounts() for threat in self.inner)

    def scaled(self, factor: float) -> Catalogued:
        """The same threat with all its amounts times `factor`; 0: as if it were not there."""
        if not self.amounts:
            return self
        if factor == 0:
            return Nothing()
        return replace(self, **{name: _times(getattr(self, name), factor) for name in self.amounts})

    def where(self, condition: Condition | ArrayLike) -> Where:
        """The same threat, on some rows only: a condition such as `column("age") >= 65`, a mask, or row numbers."""
        return Where(self, condition)

    def __and__(self, other: Catalogued) -> Catalogued:
        """Both may act at once; what neither may touch stays clean."""
        if not isinstance(other, Catalogued):
            return NotImplemented
        return All.of([self, other])


def _times(value: Any, factor: float) -> Any:
    """One amount, one per column, or a mapping, times `factor`."""
    if hasattr(value, "items"):
        return {key: _times(v, factor) for key, v in value.items()}
    array = np.asarray(value, dtype=np.float64)
    return factor * float(value) if array.ndim == 0 else [factor * v for v in array.tolist()]


@dataclass(frozen=True, eq=False)
class Nothing(Catalogued):
    """The data are exact.

    >>> Nothing().to_json()
    {'kind': 'nothing'}
    """

    kind = "nothing"

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        return []

    def words(self, rows: str = ANY_ROW) -> str:
        return "nothing: the data are taken to be right"


@dataclass(frozen=True, eq=False)
class _Around(Catalogued):
    """A combination around one other threat."""

    threat: Catalogued

    @property
    def inner(self) -> tuple[Catalogued, ...]:
        return (self.threat,)

    def scaled(self, factor: float) -> Catalogued:
        return replace(self, threat=self.threat.scaled(factor))


@dataclass(frozen=True, eq=False)
class Where(_Around):
    """A threat on some rows only, as the data handed in describe them."""

    condition: Any
    """A `Condition`, or what is made one: a mask, or row numbers."""
    kind = "where"

    def __post_init__(self) -> None:
        object.__setattr__(self, "condition", Condition.of(self.condition))

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        return self.threat.parts(clean, rows & self.condition.holds(clean), limits)

    def added(self, clean: Dataset) -> list[Addition]:
        if self.threat.added(clean):
            raise UserError(
                "Lost rows are none of those that a condition picks: give Added a domain instead of .where(...)."
            )
        return []

    def reads_labels(self) -> bool:
        return self.condition.mentions("label") or self.threat.reads_labels()

    def uses_rows(self) -> bool:
        return self.condition.mentions("rows") or self.threat.uses_rows()

    def words(self, rows: str = ANY_ROW) -> str:
        given = self.condition.plain.get("rows")
        where = f"where {self.condition.words}" if given is None else given_rows(given)
        return f"{where}, {self.threat.words('')}"

    def to_json(self) -> dict[str, Any]:
        told = {"condition": self.condition.words, "when": self.condition.plain}
        rows = self.condition.plain if "rows" in self.condition.plain else told
        return {"kind": self.kind, "threat": self.threat.to_json(), **rows}


@dataclass(frozen=True, eq=False)
class Settled(_Around):
    """A threat of which some rows are free: they are right as they stand, a missing value among them being its stand-in."""

    rows: Sequence[int] | NDArray[np.intp]
    kind = "settled"

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        return self.threat.parts(clean, rows & ~row_mask(self.rows, len(clean)), limits)

    def bind(self, clean: Dataset) -> ProductSet:
        limits: list[int] = []
        parts = self.parts(clean, np.ones(len(clean), dtype=bool), limits)
        settled = row_mask(self.rows, len(clean))[:, None]
        # What is missing in a settled row is what stands in for it elsewhere; a marker is no value.
        x = np.where(settled, self.threat.bind(clean).reference[0][: len(clean)], clean.x)
        missing = None if clean.missing is None else clean.missing & ~settled
        return ProductSet(replace(clean, x=frozen(x), missing=missing), parts, limits, self.added(clean))

    def uses_rows(self) -> bool:
        return True

    def words(self, rows: str = ANY_ROW) -> str:
        which = "one row that is" if len(self.rows) == 1 else f"{len(self.rows)} rows that are"
        return f"{self.threat.words(rows)}, except in {which} taken as right"


@dataclass(frozen=True, eq=False)
class All(Catalogued):
    """Several threats that may all act at once."""

    threats: tuple[Catalogued, ...]
    kind = "all"

    @classmethod
    def of(cls, threats: list[Catalogued]) -> Catalogued:
        """These threats together, those of others laid side by side; a single one as it is."""
        flat = [part for threat in threats for part in (threat.threats if isinstance(threat, All) else (threat,))]
        return Nothing() if not flat else flat[0] if len(flat) == 1 else cls(tuple(flat))

    @property
    def inner(self) -> tuple[Catalogued, ...]:
        return self.threats

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        return [part for threat in self.threats for part in threat.parts(clean, rows, limits)]

    def scaled(self, factor: float) -> Catalogued:
        return All.of([threat.scaled(factor) for threat in self.threats])

    def words(self, rows: str = ANY_ROW) -> str:
        # What is limited to few rows comes last, so that nobody reads its limit over the rest.
        parts = sorted(self.threats, key=lambda threat: isinstance(threat, Budget))
        return ", and ".join(threat.words(rows) for threat in parts)


@dataclass(frozen=True, eq=False)
class Budget(_Around):
    """The threat acts on at most `rows` rows of the whole training data (in all batches and epochs), or changes at most `cells`
    cells of each row.

    >>> import mibp_cert as mc
    >>> mc.Budget(mc.LInf(0.2), rows=1).to_json()
    {'kind': 'budget', 'threat': {'kind': 'linf', 'eps': 0.2}, 'rows': 1}
    """

    rows: int | None = None
    cells: int | None = None
    kind = "budget"

    def __post_init__(self) -> None:
        if (self.rows is None) == (self.cells is None):
            raise UserError("A budget needs either rows=… or cells=…, the largest number that may be wrong.")
        for name in ("rows", "cells"):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value is not None and (not whole or value < 0):
                raise UserError(f"A budget of {value} {name} makes no sense; give a whole number ≥ 0.")
        if not isinstance(self.threat, Catalogued):
            raise UserError("A budget limits a threat of the catalogue; rules write their own with m.count(...).")

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        inner = self.threat.parts(clean, rows, limits)
        if any(part.without_clean for part in inner):
            raise UserError(
                "Missing values cannot be put under a budget: no row is clean where a value is unknown. Budget the other parts, "
                "and add Missing(...) with &."
            )
        nested = any(part.group >= 0 for part in inner)
        if self.rows is None:
            if nested:
                raise UserError("Put the budget of cells inside: Budget(Budget(threat, cells=…), rows=…).")
            return _sparse(inner, clean, int(self.cells or 0))
        if nested:
            raise UserError("A row budget inside a row budget is not supported; give one number.")
        if self.rows == 0:
            return []
        touched = np.unique(np.concatenate([np.zeros(0, dtype=np.intp), *(part.rows for part in inner)]))
        if self.rows >= len(touched):
            if self.rows > len(clean):
                log.warning(
                    "A budget of %d rows is more than the %d rows there are: it limits nothing.", self.rows, len(clean)
                )
            return inner
        limits.append(int(self.rows))
        return [replace(part, group=len(limits) - 1) for part in inner]

    def added(self, clean: Dataset) -> list[Addition]:
        if self.threat.added(clean):
            raise UserError("Added has a number of rows of its own: take it out of the budget, and add it with &.")
        return []

    def words(self, rows: str = ANY_ROW) -> str:
        if self.rows is not None:
            return f"in at most {count(int(self.rows), 'row')}, {self.threat.words('')}"
        where = "in every row, " if rows == ANY_ROW else ""
        return f"{where}at most {count(int(self.cells or 0), 'cell')} may be wrong: {self.threat.words('')}"


def _sparse(inner: list[Part], clean: Dataset, cells: int) -> list[Part]:
    """Box parts become one piece per row with at most `cells` of its symbols in use."""
    if any(part.kind != "box" or part.on != "x" for part in inner):
        raise UserError("A budget of cells applies to cell-wise numeric threats such as LInf, Rounded or Monotone.")
    if not inner or cells == 0:
        return []
    place, low, high = (np.concatenate([getattr(p, name) for p in inner]) for name in ("place", "low", "high"))
    if len(np.unique(place)) < len(place):
        raise UserError("Several parts under one budget of cells change the same cell; merge them.")
    order = np.argsort(place)
    rows, sizes = np.unique(place // clean.features, return_counts=True)
    return [Part("sparse", "x", rows, sizes, place[order], low[order], high[order], cells)]


def picked_columns(clean: Dataset, names: Any) -> list[int]:
    """Numbers of columns: one or several, by name or number, or as a mask."""
    if isinstance(names, str | int | np.integer):
        return [clean.column(names)]
    array = np.asarray(names, dtype=object)
    if array.ndim != 1:
        raise UserError(f"Columns are named by one name or number, several in a list, or a mask; got {names!r}.")
    if array.size and all(isinstance(name, bool | np.bool_) for name in array):
        if array.shape != (len(clean.columns),):
            raise UserError(f"The mask for columns has shape {array.shape} but there are {len(clean.columns)} columns.")
        return [int(j) for j in np.flatnonzero(array)]
    return list(dict.fromkeys(clean.column(name) for name in array.tolist()))


def plain(value: Any) -> Any:
    """Amounts, names, rows or threats as plain data; what is infinite becomes None, since JSON has no infinity."""
    if isinstance(value, Threat):
        return value.to_json()
    if isinstance(value, pd.Series):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]  # one by one: an array of text and numbers would be all text
    if value is None or isinstance(value, str):
        return value
    simple = np.asarray(value).tolist()
    if isinstance(simple, list):
        return plain(simple)
    return None if isinstance(simple, float) and not np.isfinite(simple) else simple


def at(text: str, rows: str) -> str:
    """A clause, and where it applies."""
    return f"{text} {rows}" if rows else text


def count(number: int, noun: str) -> str:
    """`one row`, `2 rows`."""
    return f"one {noun}" if number == 1 else f"{number} {noun}s"


def given_rows(rows: Any) -> str:
    """`in 2 given rows`, for a mask or row numbers."""
    given = np.asarray(rows)
    return f"in {count(int(given.sum()) if given.dtype == bool else given.size, 'given row')}"


def names(value: Any) -> str:
    """Columns or classes, quoted."""
    value = plain(value)
    return ", ".join(map(repr, value)) if isinstance(value, list) else repr(value)


def amount(value: Any, relative: bool = False) -> str:
    """A number, or several, with their columns where they have some; `relative`: a share of each value; None is an open end."""
    value = plain(value)
    if isinstance(value, dict):
        return ", ".join(f"{amount(v, relative)} ({k})" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(amount(v, relative) for v in value)
    if value is None:
        return "open"
    return f"{100 * value:g} % of its value" if relative else f"{value:g}"
