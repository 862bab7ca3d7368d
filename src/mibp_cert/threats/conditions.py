"""Conditions on the rows of the clean data: which rows a threat may touch. `&`, `|` and `~` combine them.

A condition is data (it pickles, and goes to JSON and back), and can be asked what it reads: labels, or the numbers of rows.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError

Rows = NDArray[np.bool_]
_SIGNS = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition on rows, as the data handed in describe them; `plain` says it as it stands in files."""

    plain: dict[str, Any]

    def __post_init__(self) -> None:
        values = self.plain.get("label", [self.plain["value"]] if "value" in self.plain else [])
        for value in values:
            if not isinstance(value, str | np.bool_) and not _finite(value):
                raise UserError(f"A condition compares with a text or a finite number, not {value!r}.")
        if not isinstance(self.plain.get("column", ""), str | int | np.integer):
            raise UserError(f"A condition names a column by its name or number, not by {self.plain['column']!r}.")

    @staticmethod
    def of(value: Condition | ArrayLike) -> Condition:
        """A condition as it is, or one that holds for a mask or row numbers."""
        return value if isinstance(value, Condition) else Condition({"rows": np.asarray(value).tolist()})

    @property
    def inner(self) -> list[Condition]:
        """The conditions that it is made of."""
        match self.plain:
            case {"and": parts} | {"or": parts}:
                return [Condition(part) for part in parts]
            case {"not": part}:
                return [Condition(part)]
        return []

    @property
    def words(self) -> str:
        """The condition as a person would write it."""
        match self.plain:
            case {"column": name, "is": sign, "value": value}:
                return f"{name!r} {sign} {value!r}"
            case {"label": classes}:
                return " or ".join(f"label {name!r}" for name in classes)
            case {"rows": _}:
                return "given rows"
            case {"not": _}:
                return f"not {self.inner[0].words}"
        (how,) = self.plain
        return "(" + f" {how} ".join(part.words for part in self.inner) + ")"

    def holds(self, data: Dataset) -> Rows:
        """The rows for which it holds."""
        match self.plain:
            case {"column": name, "is": sign, "value": value}:
                return _compared(data, name, sign, value)
            case {"label": classes}:
                return np.isin(data.y, data.number(classes))
            case {"rows": rows}:
                return row_mask(rows, len(data))
            case {"not": _}:
                return ~self.inner[0].holds(data)
        one, two = (part.holds(data) for part in self.inner)
        return one & two if "and" in self.plain else one | two

    def mentions(self, what: str) -> bool:
        """Does it ask for the `label` of a row, or for `rows` by their numbers, so that it makes sense for one table only?"""
        return what in self.plain or any(part.mentions(what) for part in self.inner)

    def __and__(self, other: Condition | ArrayLike) -> Condition:
        return Condition({"and": [self.plain, Condition.of(other).plain]})

    def __or__(self, other: Condition | ArrayLike) -> Condition:
        return Condition({"or": [self.plain, Condition.of(other).plain]})

    def __invert__(self) -> Condition:
        return Condition({"not": self.plain})

    def __bool__(self) -> bool:
        raise UserError(
            "A condition has no truth value of its own: combine conditions with &, | and ~, and write a <= x <= b as two of them."
        )


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):  # no number, or none that a float can hold
        return False


def _compared(data: Dataset, name: str | int, sign: str, value: Any) -> Rows:
    """A column against a value, in the column's own units; nothing holds where the value is missing."""
    place, test = data.column(name), _SIGNS[sign]
    c, known = data.columns[place], True if data.missing is None else ~data.missing[:, place]
    if c.categories is not None:
        if sign not in ("==", "!="):
            raise UserError(f"The column '{c.name}' is categorical; compare it with == or != only.")
        return np.asarray(test(data.x[:, c.start + c.number(value)], 1.0)) & known
    if not isinstance(value, int | float | np.number):
        raise UserError(f"The column '{c.name}' is numeric; compare it with a number, not {value!r}.")
    # The same value becomes the same feature, to the last bit, so that equality and order survive the scaling.
    return np.asarray(test(data.x[:, c.start], float(c.to_feature(value)))) & known


class column:
    """A column of the user's table, to be compared with a value in its own units; no comparison holds where a value is missing.

    >>> (column("age") >= 65).words
    "'age' >= 65"
    """

    def __init__(self, name: str | int) -> None:
        self.name = name

    def _is(self, sign: str, value: Any) -> Condition:
        simple = value.item() if isinstance(value, np.generic) else value
        return Condition({"column": self.name, "is": sign, "value": simple})

    __eq__: Any = partialmethod(_is, "==")
    __ne__: Any = partialmethod(_is, "!=")
    __ge__ = partialmethod(_is, ">=")
    __gt__ = partialmethod(_is, ">")
    __le__ = partialmethod(_is, "<=")
    __lt__ = partialmethod(_is, "<")


def label_is(*classes: Any) -> Condition:
    """Rows whose label, as handed in, is one of these classes."""
    return Condition({"label": list(classes)})


def condition_from_json(plain: Any) -> Condition:
    """The condition that this plain data describes."""
    match plain:
        case {"column": _, "is": str(sign), "value": _} if sign in _SIGNS:
            return Condition(plain)
        case {"label": [*_]} | {"rows": _}:
            return Condition(plain)
        case {"and": [_, _]} | {"or": [_, _]} | {"not": _} if len(plain) == 1:
            for part in Condition(plain).inner:
                condition_from_json(part.plain)
            return Condition(plain)
    raise UserError(
        f"A condition is {{column, is, value}}, {{label}}, {{rows}}, {{and}}, {{or}} or {{not}}; got {plain!r}."
    )


def row_mask(value: ArrayLike, size: int) -> Rows:
    """A mask from a mask or from row numbers."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise UserError(f"rows must be a mask or a list of whole numbers, got {value!r}.") from None
    if array.dtype == bool:
        if array.shape != (size,):
            raise UserError(f"The mask for rows has shape {array.shape} but the data have {size} rows.")
        return array
    if array.size and (not np.issubdtype(array.dtype, np.integer) or array.min() < 0 or array.max() >= size):
        raise UserError(f"rows must be whole numbers from 0 to {size - 1}, got {array.tolist()}.")
    mask = np.zeros(size, dtype=bool)
    mask[array.astype(np.intp)] = True
    return mask
