"""Cells as one of few values that are known beforehand, and how these are flipped.

A number is replaced by that of its bin, `0, 1, …`: how many of the column's edges it reaches (a missing one: all of them). Text
that is among the names of its column stays, all other text and what is missing is `OTHER`. Edges and names must not depend on
the rows that may be wrong: they are given, or made by `quantile_bins` of rows that are trusted. So a wrong cell has one of the
known values, too, and two tables that differ in some cells still do so in no more of them.

Flips are those of `likelihood`: of `K` values, one stays with the probability `λ/(λ + K − 1)`, and each other one is as likely
to take its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mibp_cert.ensembles.rows import Features, typed
from mibp_cert.errors import UserError

OTHER = "(other)"
"""The value of text that is not among the names of its column."""
Codes = NDArray[np.intp]
Bins = Mapping[Any, Sequence[float] | Sequence[str]] | Sequence[float]
"""Edges, or names, by column; or the same edges for all columns."""


def quantile_bins(X: pd.DataFrame | ArrayLike, count: int = 4) -> dict[Any, list[Any]]:
    """For every column edges of bins that hold about as many of these rows each, or the names that occur in it. Hand in rows
    that are trusted, and that nothing else is made of: never those that an ensemble is fitted to.

    >>> quantile_bins([[0.0, 5.0], [1.0, 5.0], [2.0, 6.0], [3.0, 6.0]], 2)
    {0: [1.5], 1: [5.5]}
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 2:
        raise UserError(f"There must be at least two bins, got {count!r}.")
    frame = typed(X if isinstance(X, pd.DataFrame) else pd.DataFrame(np.asarray(X, dtype=np.float64)))
    found: dict[Any, list[Any]] = {}
    for name in frame.columns:
        values = frame[name].dropna()
        if values.dtype.kind == "O":
            found[name] = sorted(set(values.tolist()) - {OTHER})
        else:
            finite = values.to_numpy()[np.isfinite(values.to_numpy())]
            inner = np.linspace(0.0, 1.0, count + 1)[1:-1]
            # An edge at the smallest value would leave a bin to rows that nobody has seen.
            edges = np.unique(np.quantile(finite, inner)) if len(finite) else finite
            found[name] = edges[edges > finite.min()].tolist() if len(finite) else []
    return found


@dataclass(frozen=True, eq=False)
class Alphabet:
    """The columns of a table and the values that each of them has: edges of bins, or names."""

    columns: tuple[Any, ...]
    known: tuple[NDArray[np.float64] | tuple[str, ...], ...]
    framed: bool
    """Is the table one of pandas?"""

    @property
    def sizes(self) -> Codes:
        """How many values each column has."""
        return np.array([len(known) + 1 for known in self.known], dtype=np.intp)

    @classmethod
    def of(cls, x: Features, bins: Bins | None) -> Alphabet:
        """For a table, by what is said of its columns; refuses where nothing is."""
        framed = isinstance(x, pd.DataFrame)
        columns = tuple(x.columns) if isinstance(x, pd.DataFrame) else tuple(range(x.shape[1]))
        text = [framed and pd.DataFrame(x)[name].dtype.kind == "O" for name in columns]
        known = [_known(bins, name, text=is_text) for name, is_text in zip(columns, text, strict=True)]
        return cls(columns, tuple(known), framed)

    def coded(self, x: Features) -> Codes:
        """The number of each cell's value."""
        found = np.empty((len(x), len(self.columns)), dtype=np.intp)
        for j, known in enumerate(self.known):
            column = x.iloc[:, j].to_numpy() if isinstance(x, pd.DataFrame) else x[:, j]
            if isinstance(known, tuple):
                place = {name: code for code, name in enumerate(known)}
                found[:, j] = [place.get(cell, len(known)) for cell in column.tolist()]
            elif column.dtype.kind == "O":
                raise UserError(
                    f"The column {self.columns[j]!r} has text where there were numbers: give numbers, or NaN."
                )
            else:
                found[:, j] = np.searchsorted(known, column, side="right")  # NaN is above all edges
        return found

    def decoded(self, codes: Codes) -> Features:
        """Cells as learners see them: numbers of bins, and names."""
        if not self.framed:
            return codes.astype(np.float64)
        cells = {
            name: pd.Series(np.array([*known, OTHER], dtype=object)[codes[:, j]], dtype=object)
            if isinstance(known, tuple)
            else pd.Series(codes[:, j].astype(np.float64))
            for j, (name, known) in enumerate(zip(self.columns, self.known, strict=True))
        }
        return pd.DataFrame(cells, columns=list(self.columns))


def _known(bins: Bins | None, name: Any, *, text: bool) -> NDArray[np.float64] | tuple[str, ...]:
    given = bins.get(name) if isinstance(bins, Mapping) else None if text else bins
    if given is None:
        what = (
            f"names of its categories, {{{name!r}: [categories]}}" if text else f"edges of bins, {{{name!r}: [edges]}}"
        )
        raise UserError(
            f"The column {name!r} has {'text' if text else 'numbers'}, and to flip its cells it must be known beforehand which "
            f"values there are: give bins={what}, or bins=quantile_bins(rows that are trusted), or flip labels alone "
            "(flips='labels')."
        )
    if text:
        if not all(isinstance(one, str) for one in given) or len(set(given)) < len(given) or OTHER in given:
            raise UserError(f"The bins of the column {name!r} must be different names, got {list(given)!r}.")
        return tuple(str(one) for one in given)
    try:
        edges = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        edges = np.array([np.nan])
    if edges.ndim != 1 or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
        raise UserError(f"The bins of the column {name!r} must be edges in rising order, got {given!r}.")
    return edges


def flipped(codes: Codes, sizes: Codes, odds: float, rng: np.random.Generator) -> Codes:
    """These values, each flipped independently: it is `odds` times as likely to stay as to become any particular other one."""
    stay = odds / (odds + sizes - 1)
    moved = 1 + np.floor(rng.random(codes.shape) * (sizes - 1)).astype(np.intp)
    return np.where(rng.random(codes.shape) < stay, codes, (codes + moved) % sizes)
