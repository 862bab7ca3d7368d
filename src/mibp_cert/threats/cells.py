"""From a description to parts: which columns are meant, by how much cells may move, and which entries of a group are options.

Amounts are in the units of the table handed in; `Column` knows the scaling. A part for numeric cells names the smallest and the
largest value of each cell as floats that enclose the real ends; one for categories names the options of each one-hot group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UserError
from mibp_cert.sets import Part
from mibp_cert.sets.blocks import Array, Index
from mibp_cert.threats.base import Threat
from mibp_cert.threats.conditions import Rows

Names = str | int | Sequence[str | int] | None


def picked_columns(clean: Dataset, names: Names) -> list[int]:
    if isinstance(names, str | int | np.integer):
        return [clean.column(names)]
    array = np.asarray(names)
    if array.dtype == bool:
        if array.shape != (len(clean.columns),):
            raise UserError(f"The mask for columns has shape {array.shape} but there are {len(clean.columns)} columns.")
        return [int(j) for j in np.flatnonzero(array)]
    return list(dict.fromkeys(clean.column(name) for name in array.tolist()))


def column_amounts(clean: Dataset, names: Any, value: Any, what: str) -> tuple[list[int], Array]:
    """Numeric columns that are meant, and an amount for each, in the units handed in."""
    if isinstance(value, pd.Series):
        value = value.to_dict()
    if isinstance(value, Mapping):
        by_column = {clean.column(name): amount for name, amount in value.items()}
        picked = list(by_column) if names is None else picked_columns(clean, names)
        lost = [clean.columns[j].name for j in by_column if j not in picked]
        if lost:
            raise UserError(f"{what} names {', '.join(lost)}, which the columns asked for do not include.")
        amounts: Any = [by_column.get(j, 0.0) for j in picked]
    else:
        numeric = [j for j, c in enumerate(clean.columns) if not c.categorical]
        picked = numeric if names is None else picked_columns(clean, names)
        if not picked:
            raise UserError("The data have no numeric column; use a threat for categories, such as AnyCategory.")
        amounts = value
    for j in picked:
        if clean.columns[j].categorical:
            raise UserError(
                f"The column '{clean.columns[j].name}' is categorical: an amount makes no sense there; use AnyCategory "
                "(--any-category), Shift or Confusable."
            )
    try:
        array = np.asarray(amounts, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{what} must be a number or one per column, got {value!r}.") from None
    if array.ndim > 1 or (array.ndim == 1 and array.shape != (len(picked),)):
        raise UserError(f"{what} must be one number or one per column ({len(picked)}), got shape {array.shape}.")
    if not np.all(np.isfinite(array) & (array >= 0)):
        raise UserError(f"{what} must be finite and ≥ 0, got {plain(value)}.")
    return picked, np.array(np.broadcast_to(array, (len(picked),)))


def with_scaling(columns: Sequence[Column], x: Array, radius: Array) -> Array:
    """The radius, where it is not 0, with what scaling a table's value can have rounded."""
    slip = np.array([abs(c.shift) / c.scale if c.scaled else 0.0 for c in columns])
    scaled = np.array([c.scaled for c in columns])
    return np.where(
        radius > 0, radius + np.where(scaled, 8.0 * np.finfo(float).eps * (np.abs(x) + radius + slip), 0.0), 0.0
    )


def outward(x: Array, radius: Array) -> tuple[Array, Array]:
    """Floats below `x − radius` and above `x + radius` in real numbers, `radius` itself having been rounded a few times."""
    radius = np.where(radius > 0, radius * (1.0 + 4.0 * np.finfo(float).eps), 0.0)
    low = np.where(radius > 0, np.nextafter(x - radius, -np.inf), x)
    return low, np.where(radius > 0, np.nextafter(x + radius, np.inf), x)


def around(clean: Dataset, picked: list[int], radius: Array) -> tuple[Index, Array, Array]:
    """Features of numeric columns, and for all rows floats that enclose `x ± radius`, with what scaling can have rounded."""
    columns = [clean.columns[j] for j in picked]
    features = np.array([column.start for column in columns], dtype=np.intp)
    x = clean.x[:, features]
    return features, *outward(x, with_scaling(columns, x, np.broadcast_to(radius, x.shape)))


def moves(clean: Dataset, kind: str, rows: Rows, features: Index, low: Array, high: Array) -> list[Part]:
    """A part of numeric cells (low, high: all rows × features); for norms, one piece per row."""
    picked = np.flatnonzero(rows).astype(np.intp)
    low, high = low[picked], high[picked]
    place = picked[:, None] * clean.features + features[None, :]
    live = high > low
    counts = live.sum(axis=1).astype(np.intp)
    keep = counts > 0
    if kind == "box":
        sizes, owner = np.ones(int(live.sum()), dtype=np.intp), np.repeat(picked, counts)
    else:
        sizes, owner = counts[keep], picked[keep]
    return [Part(kind, "x", owner, sizes, place[live], low[live], high[live])] if live.any() else []


def choice_parts(
    on: str, reported: Index, options: Mapping[int, list[int]], rows: Rows, stride: int, start: int, width: int
) -> list[Part]:
    """One piece for each row whose reported entry has options other than itself."""
    allowed = np.zeros((width, width), dtype=bool)
    for k, others in options.items():
        allowed[k, others] = True
    np.fill_diagonal(allowed, False)
    open_rows = np.flatnonzero(rows & allowed[reported].any(axis=1)).astype(np.intp)
    if not len(open_rows):
        return []
    live = allowed[reported[open_rows]]
    first = open_rows * stride + start
    place = (first[:, None] + np.arange(width)[None, :])[live]
    zero = np.zeros(len(place))
    sizes = live.sum(axis=1).astype(np.intp)
    return [Part("choice", on, open_rows, sizes, place, zero, zero + 1, reference=first + reported[open_rows])]


def plain(value: Any) -> Any:
    """Amounts, names, rows or threats as plain data."""
    if isinstance(value, Threat):
        return value.to_json()
    if isinstance(value, pd.Series):
        value = value.to_dict()
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]  # one by one: an array of text and numbers would be all text
    return value if value is None or isinstance(value, str) else np.asarray(value).tolist()
