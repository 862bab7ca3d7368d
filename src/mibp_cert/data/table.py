"""Tables: numeric and categorical columns, how they become features, and the record of it.

A numeric value `v` becomes the feature `(v − shift) / scale`; a categorical one becomes a one-hot group, one feature per
category. The recipe is fitted on trusted knowledge of the columns (or the training table) and is then fixed: scaler, vocabulary
and ranges are part of what the certificate is about. Threats speak of columns and of the units handed in; `Column` translates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mibp_cert.errors import UserError

SCALINGS = ("standard", "range", "none")
IDENTIFIER = 50
"""A column with more different texts than this, and more than a third as many as rows, looks like an identifier or a date."""


@dataclass(frozen=True)
class Column:
    """A column of the user's table and its place `start … stop − 1` among the features.

    Numeric: `feature = (value − shift) / scale`, valid values in [low, high]. Categorical: one-hot over `categories`.
    """

    name: str
    start: int
    stop: int
    categories: tuple[Any, ...] | None = None
    shift: float = 0.0
    scale: float = 1.0
    low: float = -np.inf
    high: float = np.inf
    fill: Any = None
    """What stands in for a missing value: the mean, or the most frequent category."""

    @property
    def scaled(self) -> bool:
        return self.shift != 0.0 or self.scale != 1.0

    @property
    def categorical(self) -> bool:
        return self.categories is not None

    def number(self, category: Any) -> int:
        """Place of a category in the vocabulary."""
        known = self.categories or ()
        for i, name in enumerate(known):
            if name == category:
                return i
        raise UserError(
            f"{category!r} is not a category of the column '{self.name}'; it has {', '.join(map(repr, known))}."
        )

    def to_feature(self, value: ArrayLike) -> NDArray[np.float64]:
        """Numeric values in the units of the table, as features."""
        return np.asarray((np.asarray(value, dtype=np.float64) - self.shift) / self.scale)

    def describe(self) -> dict[str, Any]:
        """The record as plain data."""
        if self.categories is not None:
            return {"name": self.name, "kind": "categorical", "categories": [_plain(c) for c in self.categories]}
        return {"name": self.name, "kind": "numeric", "shift": self.shift, "scale": self.scale}


def plain_columns(features: int) -> tuple[Column, ...]:
    """Columns of an array: numeric, unscaled, named by their number."""
    return tuple(Column(str(i), i, i + 1) for i in range(features))


@dataclass(frozen=True)
class Recipe:
    """How a table becomes features: fitted once, applied to training, validation and test tables alike."""

    columns: tuple[Column, ...]

    @classmethod
    def fit(
        cls,
        frame: pd.DataFrame,
        *,
        categorical: Sequence[str] | Mapping[str, Sequence[Any]] | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        scaling: str = "standard",
    ) -> Recipe:
        """Read kinds, vocabularies, ranges and scaling off a table.

        `categorical`: names of categorical columns, or their vocabularies; default: text, boolean and category columns.
        `ranges`: valid values of numeric columns; default: the smallest and largest one seen.
        `scaling`: `"standard"` (mean 0, deviation 1), `"range"` (range to [0, 1]), or `"none"`.
        """
        if scaling not in SCALINGS:
            raise UserError(f"There is no scaling called {scaling!r}; choose one of {', '.join(SCALINGS)}.")
        names = _names(frame)
        if categorical is None:
            categorical = [n for j, n in enumerate(names) if not _is_number(frame.iloc[:, j])]
            for name in categorical:
                _check_categories(name, frame.iloc[:, names.index(name)])
        given = {find_name(k, names): v for k, v in categorical.items()} if isinstance(categorical, Mapping) else {}
        chosen = {find_name(k, names) for k in categorical}
        limits = {find_name(k, names): v for k, v in (ranges or {}).items()}
        columns, start = [], 0
        for j, name in enumerate(names):
            values = frame.iloc[:, j]
            if j in chosen:
                column = _categorical(name, values, given.get(j), start)
            else:
                column = _numeric(name, values, limits.get(j), scaling, start)
            columns.append(column)
            start = column.stop
        return cls(tuple(columns))

    @property
    def features(self) -> int:
        return self.columns[-1].stop

    def apply(self, frame: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Features (rows × features) and which cells of the table are missing (rows × columns); those hold the fill value."""
        names = _names(frame)
        lost = [column.name for column in self.columns if column.name not in names]
        extra = [name for name in names if name not in {column.name for column in self.columns}]
        if lost or extra:
            raise UserError(
                f"The table's columns differ from the ones known: missing {lost or 'none'}, unknown {extra or 'none'}."
            )
        x = np.zeros((len(frame), self.features))
        missing = np.zeros((len(frame), len(self.columns)), dtype=bool)
        for j, column in enumerate(self.columns):
            values = frame.iloc[:, names.index(column.name)]
            missing[:, j] = values.isna().to_numpy()
            filled = [column.fill if lost_ else v for v, lost_ in zip(values.tolist(), missing[:, j], strict=True)]
            if column.categories is not None:
                place = {name: i for i, name in enumerate(column.categories)}
                numbers = [place[v] if v in place else column.number(v) for v in filled]  # which refuses unknown ones
                x[np.arange(len(frame)), column.start + np.array(numbers, dtype=np.intp)] = 1.0
            else:
                x[:, column.start] = column.to_feature(finite_numbers(column.name, filled))
        return x, missing


def _numeric(name: str, values: pd.Series[Any], given: tuple[float, float] | None, scaling: str, start: int) -> Column:
    known = finite_numbers(name, values.dropna().tolist())
    if not len(known):
        raise UserError(f"The column '{name}' holds no value at all; drop it.")
    least, most = float(known.min()), float(known.max())
    try:
        low, high = (least, most) if given is None else (float(given[0]), float(given[1]))
    except (TypeError, ValueError, IndexError):
        raise UserError(f"The range of the column '{name}' must be a pair (low, high), got {given!r}.") from None
    if not (np.isfinite(low) and np.isfinite(high)):
        raise UserError(f"The range of the column '{name}' must have finite ends, got ({low:g}, {high:g}).")
    if not low <= least <= most <= high:
        raise UserError(f"The column '{name}' has values outside its range [{low:g}, {high:g}]; correct one of them.")
    shift, scale = 0.0, 1.0
    if scaling == "standard":
        shift, scale = float(known.mean()), float(known.std())
    elif scaling == "range":
        shift, scale = low, high - low
    if not (np.isfinite(shift) and np.isfinite(scale)):
        raise UserError(f"The values of the column '{name}' are too large to be scaled; use other units.")
    # A deviation that is nothing but rounding is none.
    scale = scale if scale > 1e-12 * max(abs(low), abs(high)) else 1.0
    return Column(name, start, start + 1, None, shift, scale, low, high, float(np.clip(known.mean(), low, high)))


def _categorical(name: str, values: pd.Series[Any], given: Sequence[Any] | None, start: int) -> Column:
    known = values.dropna().tolist()
    if given is not None:
        vocabulary = list(given)
    elif isinstance(values.dtype, pd.CategoricalDtype):
        vocabulary = values.cat.categories.tolist()  # in their own order, unseen ones included
    else:
        try:
            vocabulary = sorted(set(known))
        except TypeError:
            raise UserError(f"The column '{name}' mixes values that cannot be compared; make them one type.") from None
    if not vocabulary or len(set(vocabulary)) < len(vocabulary):
        raise UserError(f"The column '{name}' needs categories, each of them once; got {vocabulary}.")
    counts = [sum(v == c for v in known) for c in vocabulary]
    fill = vocabulary[int(np.argmax(counts))]
    return Column(name, start, start + len(vocabulary), tuple(vocabulary), fill=fill)


def find_name(name: Any, names: Sequence[str]) -> int:
    """Place of a column by name or number; an unknown one is an error that lists the known ones."""
    if isinstance(name, str | int | np.integer) and not isinstance(name, bool):
        if str(name) in names:
            return names.index(str(name))  # a table's own label comes first, also where it is a number
        if str(name).isdigit() and int(name) < len(names):
            return int(name)  # a column's number, which is text where it is a key of a file
    raise UserError(f"There is no column {name!r}; there are {listed(names)}.")


def listed(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:12]) + (" …" if len(names) > 12 else "")


def check_different(names: Sequence[str], what: object) -> None:
    """Refuse columns that share a name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{what} has several columns called {', '.join(twice)}; rename them.")


def _names(frame: pd.DataFrame) -> list[str]:
    """The names of the columns, as text; an empty table is refused."""
    if not frame.size:
        raise UserError(f"The table is empty: it has {frame.shape[0]} rows and {frame.shape[1]} columns.")
    names = [str(name) for name in frame.columns]
    check_different(names, "The table")
    return names


def looks_like_identifier(values: pd.Series[Any]) -> bool:
    """Nearly as many different values as rows: a name, a number of a file, a date; no categories."""
    known = values.dropna()
    return bool(known.nunique() > IDENTIFIER and 3 * known.nunique() > len(known))


def _check_categories(name: str, values: pd.Series[Any]) -> None:
    """A column that nobody called categorical is taken for one only if it looks like one."""
    if pd.api.types.is_datetime64_any_dtype(values) or pd.api.types.is_timedelta64_dtype(values):
        raise UserError(f"The column '{name}' holds dates: leave it out, or turn it into numbers, such as days.")
    if not isinstance(values.dtype, pd.CategoricalDtype) and looks_like_identifier(values):
        raise UserError(
            f"The column '{name}' has {values.nunique()} different values in {len(values)} rows: it looks like an identifier or "
            "a date. Leave it out, or name it among the categorical ones."
        )


def _is_number(values: pd.Series[Any]) -> bool:
    return bool(pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values))


def finite_numbers(name: str, values: Sequence[Any] | pd.Series[Any]) -> NDArray[np.float64]:
    """The values of a numeric column."""
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(
            f"The column '{name}' holds values that are not numbers; name it among the categorical ones."
        ) from None
    if not np.isfinite(numbers).all():
        raise UserError(f"The column '{name}' holds infinite values; correct or drop those rows.")
    return numbers


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
