"""What a threat says, word by word: the rows, columns, amounts and categories that its description means.

Both checkers read threats here, so that there is one list of what a threat may say and one meaning of it. What is not meant
literally (a fraction of a row, a mask that is too short, an amount of a column that is not named) is refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UnsupportedOperation

Plain = Mapping[str, Any]
Mask = NDArray[np.bool_]
ENTRIES: dict[str, set[str]] = {
    "nothing": set(),
    "all": {"threats"},
    "where": {"threat", "when", "rows", "condition"},
    "budget": {"threat", "rows", "cells"},
    "linf": {"eps", "rows", "columns", "clip", "relative"},
    "l1": {"eps", "rows", "columns", "relative"},
    "l2": {"eps", "rows", "columns", "relative"},
    "rounded": {"to", "columns"},
    "monotone": {"up", "down", "columns"},
    "target-noise": {"eps"},
    "any-category": {"columns", "among"},
    "confusable": {"column", "pairs"},
    "shift": {"column", "by", "among"},
    "missing": {"columns", "marker"},
    "label-flips": {"at_most", "source", "target"},
}
"""The threats that are known, and what each may say of itself."""
SIGNS = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def kind_of(plain: Any, known: Mapping[str, set[str]]) -> str:
    """The kind of a threat, if that and all that it says of itself is known."""
    kind: Any = plain.get("kind") if isinstance(plain, Mapping) else None
    if kind not in known:
        raise UnsupportedOperation(f"The checker does not know the threat {kind!r}; it knows {', '.join(known)}.")
    for entry in sorted(plain.keys() - {"kind", *known[kind]}):
        raise UnsupportedOperation(f"The checker does not know the entry {entry!r} of the threat {kind!r}.")
    if not isinstance(plain.get("relative", False), bool):
        raise UnsupportedOperation(f"The checker does not know the threat {kind!r} so: relative is true or false.")
    return str(kind)


def amount_of(value: Any) -> Fraction:
    """A finite number that is at least 0, exactly."""
    if type(value) not in (int, float) or not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{value!r} is no amount")
    return Fraction(value)


def picked(data: Dataset, named: Any) -> list[int]:
    """Columns by name, by number, or by a mask."""
    given = named if isinstance(named, list) else [named]
    if given and all(isinstance(one, bool) for one in given):
        return [j for j, (_, one) in enumerate(zip(data.columns, given, strict=True)) if one]
    return list(dict.fromkeys(data.column(name) for name in given))


def moves(data: Dataset, threat: Plain) -> list[tuple[Column, Fraction, Fraction]]:
    """The numeric columns that are meant, each with how far its values may be off, down and up."""
    kind, named = threat["kind"], threat.get("columns")
    if kind == "rounded":
        return [(column, to / 2, to / 2) for column, to in _amounts(data, threat["to"], named)]
    if kind != "monotone":
        return [(column, eps, eps) for column, eps in _amounts(data, threat["eps"], named)]
    if named is None:
        raise UnsupportedOperation("The threat 'monotone' names no columns: without a name it has no direction.")
    downs, ups = (_amounts(data, threat.get(end, 0.0), named) for end in ("down", "up"))
    return [(column, down, up) for (column, down), (_, up) in zip(downs, ups, strict=True)]


def _amounts(data: Dataset, given: Any, named: Any) -> list[tuple[Column, Fraction]]:
    """The numeric columns that are meant, each with its amount."""
    by_column = {data.column(name): value for name, value in given.items()} if isinstance(given, Mapping) else None
    numeric = [j for j, column in enumerate(data.columns) if not column.categorical]
    some = picked(data, named if named is not None else numeric if by_column is None else list(by_column))
    if by_column is not None and by_column.keys() - set(some):
        raise ValueError("it has amounts for columns that it does not name")
    given = given if by_column is None else [by_column.get(j, 0) for j in some]
    columns = [data.columns[j].expect(False, ", and the threat is about numbers") for j in some]
    every = given if isinstance(given, list) else [given] * len(some)
    return list(zip(columns, map(amount_of, every), strict=True))


def choices(data: Dataset, threat: Plain) -> Iterator[tuple[int, dict[int, list[int]]]]:
    """The columns of categories that are meant, each with what may stand for each reported category."""
    kind, among = threat["kind"], threat.get("among")
    for j in picked(data, threat["columns"] if kind == "any-category" else [threat["column"]]):
        column = data.columns[j].expect(True, ", and the threat is about categories")
        order = [column.number(name) for name in (column.categories or () if among is None else among)]
        if kind == "any-category":
            options = dict.fromkeys(range(column.stop - column.start), order)
        elif kind == "shift":
            by = threat["by"]
            options = {k: order[i + by : i + by + 1] for i, k in enumerate(order) if i + by >= 0}
        else:
            pairs = dict(threat["pairs"]).items()
            options = {column.number(name): [column.number(other) for other in some] for name, some in pairs}
        yield j, options


def where(data: Dataset, threat: Plain) -> Mask:
    """The rows of a threat that is about some rows only."""
    when, some = threat.get("when"), threat.get("rows")
    if (when is None) == (some is None):
        raise ValueError("it needs one condition")
    return holds(data, {"rows": some} if when is None else when)


def holds(data: Dataset, plain: Any) -> Mask:
    """The rows, as handed in, that meet a condition; a missing value meets no comparison."""
    alone = isinstance(plain, Mapping) and len(plain) == (3 if "column" in plain else 1)
    match plain if alone else None:
        case {"rows": [*some]}:
            return _numbered(len(data), some)
        case {"label": [*classes]}:
            return np.isin(data.y, data.number(classes))
        case {"not": part}:
            return ~holds(data, part)
        case {"and": [one, two]}:
            return holds(data, one) & holds(data, two)
        case {"or": [one, two]}:
            return holds(data, one) | holds(data, two)
        case {"column": name, "is": sign, "value": value}:
            column = data.columns[j := data.column(name)]
            known = True if data.missing is None else ~data.missing[:, j]
            if column.categories is None:
                return np.asarray(SIGNS[sign](data.x[:, column.start], float(column.to_feature(value))) & known)
            if sign in ("==", "!="):
                return np.asarray(SIGNS[sign](data.x[:, column.start + column.number(value)], 1.0) & known)
    raise UnsupportedOperation(f"The checker does not know the condition {plain!r}.")


def _numbered(n: int, some: list[Any]) -> Mask:
    """Rows by their numbers, or as a mask."""
    if some and all(isinstance(one, bool) for one in some):
        if len(some) != n:
            raise ValueError(f"a mask of {len(some)} rows, where there are {n}")
        return np.array(some)
    if not all(type(one) is int and 0 <= one < n for one in some):
        raise ValueError("it names rows that there are not")
    return np.isin(np.arange(n), some)
