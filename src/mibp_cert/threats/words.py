"""Pieces of sentences: amounts, names and counts as a person would read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

ANY_ROW = "in any row"
"""Where a threat acts if nothing else was said; an empty text where the sentence around it says so already."""


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
    return ", ".join(repr(v) for v in value) if isinstance(value, list | tuple) else repr(value)


def amount(value: Any) -> str:
    """A number, or several, with their columns where they have some."""
    if isinstance(value, Mapping):
        return ", ".join(f"{amount(v)} ({k})" for k, v in value.items())
    return ", ".join(map(amount, value)) if isinstance(value, list | tuple) else f"{value:g}"


def off_by(eps: Any, columns: Any, relative: bool, every: str) -> str:
    """`'age' may be off by 1`, for plain `eps` and columns; `every`: what is meant where no column is named."""

    def said(value: Any) -> str:
        return f"{100 * float(value):g} % of its value" if relative else amount(value)

    if isinstance(eps, Mapping):
        return ", ".join(f"'{name}' may be off by {said(value)}" for name, value in eps.items())
    of = every if columns is None else names(columns)
    if isinstance(eps, list):
        return f"{of} may be off by {', '.join(said(value) for value in eps)} (one number per column)"
    return f"{of} may be off by {said(eps)}"


def limits(ends: Any) -> str:
    """A valid range; None is an open end."""
    low, high = ("open" if end is None else amount(end) for end in ends)
    return f"{low} to {high}"
