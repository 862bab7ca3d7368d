"""How threats are combined: restricted to some rows, acting together, or limited to a few rows or cells.

Every threat of the catalogue compiles to parts (`threats.parts`); these three rewrite the parts of others.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.graph.ops import frozen
from mibp_cert.threats.base import Threat
from mibp_cert.threats.parts import Part, ProductSet

log = logging.getLogger(__name__)
Rows = NDArray[np.bool_]


class Catalogued(Threat):
    """A threat that compiles to parts."""

    @abstractmethod
    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        """The parts on these rows; row budgets are appended to `limits` and named by their place there."""

    def bind(self, clean: Dataset) -> ProductSet:
        limits: list[int] = []
        return ProductSet(clean, self.parts(clean, np.ones(len(clean), dtype=bool), limits), limits)

    def where(self, condition: Condition | ArrayLike) -> Where:
        """The same threat, on some rows only: a condition such as `column("age") >= 65`, a mask, or row numbers."""
        return Where(self, condition)

    def __and__(self, other: Catalogued) -> All:
        """Both may act at once; what neither may touch stays clean."""
        if not isinstance(other, Catalogued):
            return NotImplemented
        ours = self.threats if isinstance(self, All) else (self,)
        theirs = other.threats if isinstance(other, All) else (other,)
        return All((*ours, *theirs))


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition on the rows of the clean data; `&`, `|` and `~` combine them."""

    words: str
    holds: Callable[[Dataset], Rows]
    plain: dict[str, Any]
    """The same as plain data, for files."""

    @classmethod
    def of(cls, value: Condition | ArrayLike) -> Condition:
        """A condition as it is, or one that holds for a mask or row numbers."""
        if isinstance(value, Condition):
            return value
        return cls("given rows", lambda data: row_mask(value, len(data)), {"rows": np.asarray(value).tolist()})

    def __and__(self, other: Condition | ArrayLike) -> Condition:
        b = Condition.of(other)
        return Condition(
            f"({self.words} and {b.words})",
            lambda data: self.holds(data) & b.holds(data),
            {"and": [self.plain, b.plain]},
        )

    def __or__(self, other: Condition | ArrayLike) -> Condition:
        b = Condition.of(other)
        return Condition(
            f"({self.words} or {b.words})", lambda data: self.holds(data) | b.holds(data), {"or": [self.plain, b.plain]}
        )

    def __bool__(self) -> bool:
        raise UserError(
            "A condition has no truth value of its own: combine conditions with &, | and ~, and write a <= x <= b as two of them."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return condition_from_json, (self.plain,)  # functions do not pickle

    def __invert__(self) -> Condition:
        return Condition(f"not {self.words}", lambda data: ~self.holds(data), {"not": self.plain})


class column:
    """A column of the user's table, to be compared with a value in its own units; no comparison holds where a value is missing.

    >>> (column("age") >= 65).words
    "'age' >= 65"
    """

    def __init__(self, name: str | int) -> None:
        self.name = name

    def _compare(self, sign: str, value: Any, test: Callable[[Any, Any], Any]) -> Condition:
        def holds(data: Dataset) -> Rows:
            c = data.columns[data.column(self.name)]
            known = True if data.missing is None else ~data.missing[:, data.column(self.name)]
            if c.categories is not None:
                if sign not in ("==", "!="):
                    raise UserError(f"The column '{c.name}' is categorical; compare it with == or != only.")
                return np.asarray(test(data.x[:, c.start + c.number(value)], 1.0)) & known
            if not isinstance(value, int | float | np.number):
                raise UserError(f"The column '{c.name}' is numeric; compare it with a number, not {value!r}.")
            # The same value becomes the same feature, to the last bit, so that equality and order survive the scaling.
            feature, other = data.x[:, c.start], float(c.to_feature(value))
            return np.asarray(test(feature, other)) & known

        simple = value.item() if isinstance(value, np.generic) else value
        return Condition(f"{self.name!r} {sign} {value!r}", holds, {"column": self.name, "is": sign, "value": simple})

    def __eq__(self, value: object) -> Any:
        return self._compare("==", value, np.equal)

    def __ne__(self, value: object) -> Any:
        return self._compare("!=", value, np.not_equal)

    def __ge__(self, value: Any) -> Condition:
        return self._compare(">=", value, np.greater_equal)

    def __gt__(self, value: Any) -> Condition:
        return self._compare(">", value, np.greater)

    def __le__(self, value: Any) -> Condition:
        return self._compare("<=", value, np.less_equal)

    def __lt__(self, value: Any) -> Condition:
        return self._compare("<", value, np.less)


def label_is(*classes: Any) -> Condition:
    """Rows whose label, as handed in, is one of these classes."""
    words = " or ".join(f"label {name!r}" for name in classes)
    return Condition(
        words, lambda data: np.isin(data.y, data.number(np.array(classes, dtype=object))), {"label": list(classes)}
    )


_SIGNS: dict[str, Callable[[Any, Any], Condition]] = {
    "==": lambda c, v: c == v,
    "!=": lambda c, v: c != v,
    ">=": lambda c, v: c >= v,
    ">": lambda c, v: c > v,
    "<=": lambda c, v: c <= v,
    "<": lambda c, v: c < v,
}


def condition_from_json(plain: Any) -> Condition:
    """The condition that this plain data describes."""
    match plain:
        case {"column": name, "is": str(sign), "value": value} if sign in _SIGNS:
            return _SIGNS[sign](column(name), value)
        case {"label": [*classes]}:
            return label_is(*classes)
        case {"rows": rows}:
            return Condition.of(rows)
        case {"and": [first, second]}:
            return condition_from_json(first) & condition_from_json(second)
        case {"or": [first, second]}:
            return condition_from_json(first) | condition_from_json(second)
        case {"not": inner}:
            return ~condition_from_json(inner)
    raise UserError(
        f"A condition is {{column, is, value}}, {{label}}, {{rows}}, {{and}}, {{or}} or {{not}}; got {plain!r}."
    )


@dataclass(frozen=True, eq=False)
class Where(Catalogued):
    """A threat on some rows only, as the data handed in describe them."""

    threat: Catalogued
    condition: Condition | ArrayLike

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        c = self.condition
        mask = c.holds(clean) if isinstance(c, Condition) else row_mask(c, len(clean))
        return self.threat.parts(clean, rows & mask, limits)

    def to_json(self) -> dict[str, Any]:
        if isinstance(self.condition, Condition):
            words, plain = self.condition.words, self.condition.plain
            return {"kind": "where", "threat": self.threat.to_json(), "condition": words, "when": plain}
        return {"kind": "where", "threat": self.threat.to_json(), "rows": np.asarray(self.condition).tolist()}


@dataclass(frozen=True, eq=False)
class Settled(Catalogued):
    """A threat of which some rows are free: they are right as they stand, a missing value among them being its stand-in."""

    threat: Catalogued
    rows: NDArray[np.intp]

    def _mask(self, clean: Dataset) -> Rows:
        return ~row_mask(self.rows, len(clean))

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        return self.threat.parts(clean, rows & self._mask(clean), limits)

    def bind(self, clean: Dataset) -> ProductSet:
        limits: list[int] = []
        keep = self._mask(clean)
        parts = self.parts(clean, np.ones(len(clean), dtype=bool), limits)
        # What is missing in a settled row is what stands in for it elsewhere; a marker is no value.
        x = np.where(keep[:, None], clean.x, self.threat.bind(clean).reference[0])
        left = None if clean.missing is None else clean.missing & keep[:, None]
        known = replace(clean, x=frozen(x), missing=left if left is not None and left.any() else None)
        return ProductSet(known, parts, limits)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "settled", "threat": self.threat.to_json(), "rows": self.rows.tolist()}


@dataclass(frozen=True, eq=False)
class All(Catalogued):
    """Several threats that may all act at once."""

    threats: tuple[Catalogued, ...]

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        return [part for threat in self.threats for part in threat.parts(clean, rows, limits)]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "all", "threats": [threat.to_json() for threat in self.threats]}


@dataclass(frozen=True, eq=False)
class Budget(Catalogued):
    """The threat acts on at most `rows` rows of the whole training data (in all batches and epochs), or changes at most `cells`
    cells of each row.

    >>> import mibp_cert as mc
    >>> mc.Budget(mc.LInf(0.2), rows=1).to_json()
    {'kind': 'budget', 'threat': {'kind': 'linf', 'eps': 0.2}, 'rows': 1}
    """

    threat: Catalogued
    rows: int | None = None
    cells: int | None = None

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
        if self.cells is not None:
            if any(part.group >= 0 for part in inner):
                raise UserError("Put the budget of cells inside: Budget(Budget(threat, cells=…), rows=…).")
            return self._sparse(inner, clean, int(self.cells))
        if any(part.group >= 0 for part in inner):
            raise UserError("A row budget inside a row budget is not supported; give one number.")
        assert self.rows is not None
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

    def _sparse(self, inner: list[Part], clean: Dataset, cells: int) -> list[Part]:
        """Box parts become one piece per row with at most `cells` of its symbols in use."""
        if any(part.kind != "box" or part.on != "x" for part in inner):
            raise UserError("A budget of cells applies to cell-wise numeric threats such as LInf, Rounded or Monotone.")
        if not inner or cells == 0:
            return []
        place = np.concatenate([part.place for part in inner])
        low, high = (np.concatenate([getattr(part, end) for part in inner]) for end in ("low", "high"))
        order = np.argsort(place, kind="stable")
        if len(np.unique(place)) < len(place):
            raise UserError("Several parts under one budget of cells change the same cell; merge them.")
        row, sizes = np.unique(place[order] // clean.features, return_counts=True)
        return [
            Part(
                "sparse", "x", row.astype(np.intp), sizes.astype(np.intp), place[order], low[order], high[order], cells
            )
        ]

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"kind": "budget", "threat": self.threat.to_json()}
        return plain | ({"rows": int(self.rows)} if self.rows is not None else {"cells": int(self.cells or 0)})


def row_mask(value: ArrayLike, size: int) -> Rows:
    """A mask from a mask or from row numbers."""
    array = np.asarray(value)
    if array.dtype == bool:
        if array.shape != (size,):
            raise UserError(f"The mask for rows has shape {array.shape} but the data have {size} rows.")
        return array
    if array.size and (not np.issubdtype(array.dtype, np.integer) or array.min() < 0 or array.max() >= size):
        raise UserError(f"rows must be whole numbers from 0 to {size - 1}, got {array.tolist()}.")
    mask = np.zeros(size, dtype=bool)
    mask[array.astype(np.intp)] = True
    return mask
