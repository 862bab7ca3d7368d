"""How each column of a table was read, and what may be wrong with it: one record per column.

The doubt is read off the threat once it is bound to the training rows: how far its hull lets a cell go, in the user's units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.data import Column, Dataset, Split, Task
from mibp_cert.engines.rounding import Array
from mibp_cert.sets import ThreatSet
from mibp_cert.threats import Threat

NUMBER, CATEGORY, LEFT_OUT = "number", "category", "left out"
TARGET = "target"
"""What a target is called where it has no name."""
ALIKE = 1e-6
"""Doubts that differ by no more than this share are the same one, rounded."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class ColumnRecord:
    """A column of the user's table, as it was read."""

    name: str
    kind: str
    """`number`, `category`, or `left out`."""
    target: bool = False
    low: float | None = None
    """Numbers: the smallest and the largest value of all rows."""
    high: float | None = None
    categories: tuple[Any, ...] = ()
    missing: int = 0
    """How many values are missing, in all rows."""
    doubt: str = ""
    """What may be wrong with it in the training rows, in words; empty: nothing."""
    why: str = ""
    """Why it was left out."""

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["categories"] = [c.item() if isinstance(c, np.generic) else c for c in self.categories]
        return plain


def column_records(data: Split | Dataset, threat: Threat | ThreatSet | None = None) -> list[ColumnRecord]:
    """One record for every column, in the order of the user's table; columns that were left out and the target are among them.

    >>> import pandas as pd
    >>> from mibp_cert import Dataset, LInf
    >>> table = pd.DataFrame({"age": [30.0, 50.0], "smoker": ["no", "yes"], "ill": [0, 1]})
    >>> [(c.name, c.kind, c.doubt) for c in column_records(Dataset.from_frame(table, "ill"), LInf({"age": 1}))]
    [('age', 'number', '± 1'), ('smoker', 'category', ''), ('target', 'category', '')]
    """
    split = Split.of(data)
    members = threat.bind(split.train) if isinstance(threat, Threat) else threat
    origin = split.origin
    target = TARGET if origin is None else origin.target
    found = {c.name: _record(split, j, c, members) for j, c in enumerate(split.train.columns)}
    found[target] = _target(split, target, members)
    if origin is None:
        return list(found.values())
    found |= {name: ColumnRecord(name, LEFT_OUT, why=why) for name, why in origin.left_out.items()}
    return [found[name] for name in origin.order]


def _parts(split: Split) -> list[Dataset]:
    """The parts of a split, each once."""
    return list({id(part): part for part in split.parts.values()}.values())


def _record(split: Split, j: int, column: Column, members: ThreatSet | None) -> ColumnRecord:
    missing = sum(int(part.missing[:, j].sum()) for part in _parts(split) if part.missing is not None)
    doubt = "" if members is None else _doubt_of_cells(j, split.train, members)
    if column.categories is not None:
        return ColumnRecord(column.name, CATEGORY, categories=column.categories, missing=missing, doubt=doubt)
    low, high = _range(column, [part.x[:, column.start] for part in _parts(split)])
    return ColumnRecord(column.name, NUMBER, low=low, high=high, missing=missing, doubt=doubt)


def _target(split: Split, name: str, members: ThreatSet | None) -> ColumnRecord:
    train = split.train
    doubt = "" if members is None else _doubt_of_targets(train, members)
    if train.task is Task.CLASSES:
        return ColumnRecord(name, CATEGORY, target=True, categories=train.classes, doubt=doubt)
    column = train.target or Column(name, 0, 1)
    low, high = _range(column, [part.targets[:, 0] for part in _parts(split) if part.targets is not None])
    return ColumnRecord(name, NUMBER, target=True, low=low, high=high, doubt=doubt)


def _range(column: Column, features: list[Array]) -> tuple[float, float]:
    """Smallest and largest value, without the digits that scaling back and forth has rounded."""
    values = column.to_value(np.concatenate(features))
    slip = 1e-9 * column.scale
    low, high = (
        exact if abs(end - exact) <= slip else float(f"{end:.12g}")
        for end, exact in ((float(values.min()), column.low), (float(values.max()), column.high))
    )
    return low, high


# Doubts in words ----------------------------------------------------------------------------------------------------------


def _doubt_of_cells(j: int, clean: Dataset, members: ThreatSet) -> str:
    column, n = clean.columns[j], len(clean)  # behind these there are the rows that may have been lost
    places = slice(column.start, column.stop)
    known, hull = members.reference[0][:n, places], members.hull()
    low, high = hull.x_low[:n, places], hull.x_high[:n, places]
    gaps = np.zeros(n, dtype=bool) if clean.missing is None else clean.missing[:n, j]
    unknown = gaps | (known != clean.x[:n, places]).any(axis=1)
    free: Mask = np.zeros(n, dtype=bool)
    limited = members.unbudgeted()
    if limited is not None:
        calm = limited.clean.hull()
        free = (calm.x_low[:n, places] == calm.x_high[:n, places]).all(axis=1)
    most = 0 if limited is None else limited.most
    told = _categories if column.categorical else _numbers
    return "; ".join(told(column, known, low, high, unknown, free, most))


def _doubt_of_targets(train: Dataset, members: ThreatSet) -> str:
    n, width = len(train), max(1, len(train.classes))
    hull, known = members.hull(), members.reference[1][:n, :width]
    low, high = hull.y_low[:n, :width], hull.y_high[:n, :width]
    none, free = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    limited = members.unbudgeted()
    if limited is not None:
        calm = limited.clean.hull()
        free = (calm.y_low[:n, :width] == calm.y_high[:n, :width]).all(axis=1)
    most = 0 if limited is None else limited.most
    column = Column("label", 0, width, train.classes) if train.task is Task.CLASSES else train.target
    told = _categories if train.task is Task.CLASSES else _numbers
    return "; ".join(told(column or Column(TARGET, 0, 1), known, low, high, none, free, most))


def _numbers(
    column: Column, known: Array, low: Array, high: Array, unknown: Mask, free: Mask, most: int
) -> Iterator[str]:
    below, above = ((ends[:, 0] * column.scale) for ends in (known - low, high - known))
    moving = (np.maximum(below, above) > 0) & ~unknown
    if moving.any():
        down, up = below[moving], above[moving]
        largest = max(down.max(), up.max())
        same = max(np.ptp(down), np.ptp(up)) <= ALIKE * largest
        upto = "" if same else "up to "
        if abs(down.max() - up.max()) <= ALIKE * largest:
            said = f"± {upto}{largest:.3g}"
        else:
            sides = ((down.max(), "less"), (up.max(), "more"))
            said = " or ".join(f"up to {side:.3g} {word}" for side, word in sides if side > ALIKE * largest)
        yield said + _where(moving, unknown, free, most)
    if (unknown & (high > low)[:, 0]).any():
        rows = unknown & (high > low)[:, 0]
        ends = column.to_value([low[rows, 0].min(), high[rows, 0].max()])
        yield f"anything from {ends[0]:.4g} to {ends[1]:.4g} where missing"


def _categories(
    column: Column, known: Array, low: Array, high: Array, unknown: Mask, free: Mask, most: int
) -> Iterator[str]:
    possible, every = (high > 0).sum(axis=1), known.shape[1]
    if (possible == every).all() and not free.any():
        yield "any of them"
        return
    for rows, where in (((possible > 1) & ~unknown, ""), ((possible > 1) & unknown, " where missing")):
        if rows.any():
            count = possible[rows].max()
            what = "any of them" if possible[rows].min() == every else f"one of up to {count} of them"
            yield what + (where or _where(rows, unknown, free, most))


def _where(moving: Mask, unknown: Mask, free: Mask, most: int) -> str:
    """In which of the rows that are known."""
    rows, every = int(moving.sum()), int((~unknown).sum())
    if most and free[moving].all() and most < rows:
        return f", in at most {most} row{'s' if most > 1 else ''}"
    return "" if rows == every else f", in {rows} of {every} rows"
