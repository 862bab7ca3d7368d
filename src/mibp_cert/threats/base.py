"""What a threat must offer: a description of what may be wrong, that becomes a set of datasets once bound to data; and what all
descriptions are made of: the columns they name, plain data, and pieces of sentences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.sets import ThreatSet

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

    def words(self, rows: str = ANY_ROW) -> str:
        """What may be wrong, as a clause a person can read; `rows`: where it acts, empty if the sentence around it says so."""
        return str(self.to_json())


def picked_columns(clean: Dataset, names: Any) -> list[int]:
    """Numbers of columns: one or several, by name or number, or as a mask."""
    if isinstance(names, str | int | np.integer):
        return [clean.column(names)]
    array = np.asarray(names)
    if array.dtype == bool:
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
