"""Conditions on the rows of the clean data: which rows a threat may touch. `&`, `|` and `~` combine them.

A condition is data (it pickles, and goes to JSON and back), and can be asked what it reads: labels, or the numbers of rows.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError

Rows = NDArray[np.bool_]
_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}


class Condition(ABC):
    """A condition on rows, as the data handed in describe them."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The condition as a person would write it."""

    @property
    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """The same as plain data, for files."""

    @abstractmethod
    def holds(self, data: Dataset) -> Rows:
        """The rows for which it holds."""

    @property
    @abstractmethod
    def reads_labels(self) -> bool:
        """Does it ask for a row's label?"""

    @property
    @abstractmethod
    def names_rows(self) -> bool:
        """Does it name rows by their numbers, so that it makes sense for one table only?"""

    @staticmethod
    def of(value: Condition | ArrayLike) -> Condition:
        """A condition as it is, or one that holds for a mask or row numbers."""
        return value if isinstance(value, Condition) else _Given(value)

    def __and__(self, other: Condition | ArrayLike) -> Condition:
        return _Joined("and", self, Condition.of(other))

    def __or__(self, other: Condition | ArrayLike) -> Condition:
        return _Joined("or", self, Condition.of(other))

    def __invert__(self) -> Condition:
        return _Not(self)

    def __bool__(self) -> bool:
        raise UserError(
            "A condition has no truth value of its own: combine conditions with &, | and ~, and write a <= x <= b as two of them."
        )


@dataclass(frozen=True, eq=False)
class _Compared(Condition):
    """A column against a value, in the column's own units; nothing holds where the value is missing."""

    name: str | int
    sign: str
    value: Any
    reads_labels = names_rows = False

    @property
    def words(self) -> str:
        return f"{self.name!r} {self.sign} {self.value!r}"

    @property
    def plain(self) -> dict[str, Any]:
        simple = self.value.item() if isinstance(self.value, np.generic) else self.value
        return {"column": self.name, "is": self.sign, "value": simple}

    def holds(self, data: Dataset) -> Rows:
        place, test = data.column(self.name), _SIGNS[self.sign]
        c, known = data.columns[place], True if data.missing is None else ~data.missing[:, place]
        if c.categories is not None:
            if self.sign not in ("==", "!="):
                raise UserError(f"The column '{c.name}' is categorical; compare it with == or != only.")
            return np.asarray(test(data.x[:, c.start + c.number(self.value)], 1.0)) & known
        if not isinstance(self.value, int | float | np.number):
            raise UserError(f"The column '{c.name}' is numeric; compare it with a number, not {self.value!r}.")
        # The same value becomes the same feature, to the last bit, so that equality and order survive the scaling.
        return np.asarray(test(data.x[:, c.start], float(c.to_feature(self.value)))) & known


@dataclass(frozen=True, eq=False)
class _Labelled(Condition):
    """The label is one of these classes."""

    classes: tuple[Any, ...]
    reads_labels, names_rows = True, False

    @property
    def words(self) -> str:
        return " or ".join(f"label {name!r}" for name in self.classes)

    @property
    def plain(self) -> dict[str, Any]:
        return {"label": list(self.classes)}

    def holds(self, data: Dataset) -> Rows:
        return np.isin(data.y, data.number(np.array(self.classes, dtype=object)))


@dataclass(frozen=True, eq=False)
class _Given(Condition):
    """Rows given by a mask, or by their numbers."""

    rows: Any
    reads_labels, names_rows = False, True

    @property
    def words(self) -> str:
        return "given rows"

    @property
    def plain(self) -> dict[str, Any]:
        return {"rows": np.asarray(self.rows).tolist()}

    def holds(self, data: Dataset) -> Rows:
        return row_mask(self.rows, len(data))


@dataclass(frozen=True, eq=False)
class _Joined(Condition):
    """Both, or at least one of two."""

    how: str
    first: Condition
    second: Condition

    @property
    def words(self) -> str:
        return f"({self.first.words} {self.how} {self.second.words})"

    @property
    def plain(self) -> dict[str, Any]:
        return {self.how: [self.first.plain, self.second.plain]}

    def holds(self, data: Dataset) -> Rows:
        one, two = self.first.holds(data), self.second.holds(data)
        return one & two if self.how == "and" else one | two

    @property
    def reads_labels(self) -> bool:
        return self.first.reads_labels or self.second.reads_labels

    @property
    def names_rows(self) -> bool:
        return self.first.names_rows or self.second.names_rows


@dataclass(frozen=True, eq=False)
class _Not(Condition):
    """The opposite."""

    inner: Condition

    @property
    def words(self) -> str:
        return f"not {self.inner.words}"

    @property
    def plain(self) -> dict[str, Any]:
        return {"not": self.inner.plain}

    def holds(self, data: Dataset) -> Rows:
        return ~self.inner.holds(data)

    @property
    def reads_labels(self) -> bool:
        return self.inner.reads_labels

    @property
    def names_rows(self) -> bool:
        return self.inner.names_rows


class column:
    """A column of the user's table, to be compared with a value in its own units; no comparison holds where a value is missing.

    >>> (column("age") >= 65).words
    "'age' >= 65"
    """

    def __init__(self, name: str | int) -> None:
        self.name = name

    def __eq__(self, value: object) -> Any:
        return _Compared(self.name, "==", value)

    def __ne__(self, value: object) -> Any:
        return _Compared(self.name, "!=", value)

    def __ge__(self, value: Any) -> Condition:
        return _Compared(self.name, ">=", value)

    def __gt__(self, value: Any) -> Condition:
        return _Compared(self.name, ">", value)

    def __le__(self, value: Any) -> Condition:
        return _Compared(self.name, "<=", value)

    def __lt__(self, value: Any) -> Condition:
        return _Compared(self.name, "<", value)


def label_is(*classes: Any) -> Condition:
    """Rows whose label, as handed in, is one of these classes."""
    return _Labelled(classes)


def condition_from_json(plain: Any) -> Condition:
    """The condition that this plain data describes."""
    match plain:
        case {"column": name, "is": str(sign), "value": value} if sign in _SIGNS:
            return _Compared(name, sign, value)
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
