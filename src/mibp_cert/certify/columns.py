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
from mibp_cert.threats.base import count

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
    doubts = None if members is None else _Doubts(members, split.train)
    origin = split.origin
    target = TARGET if origin is None else origin.target
    found = {c.name: _record(split, j, c, doubts) for j, c in enumerate(split.train.columns)}
    found[target] = _target(split, target, doubts)
    if origin is None:
        return list(found.values())
    found |= {name: ColumnRecord(name, LEFT_OUT, why=why) for name, why in origin.left_out.items()}
    return [found[name] for name in origin.order]


def _parts(split: Split) -> list[Dataset]:
    """The parts of a split, each once."""
    return list({id(part): part for part in split.parts.values()}.values())


def _record(split: Split, j: int, column: Column, doubts: _Doubts | None) -> ColumnRecord:
    missing = sum(int(part.missing[:, j].sum()) for part in _parts(split) if part.missing is not None)
    doubt = "" if doubts is None else doubts.about("x", column)
    if column.categories is not None:
        return ColumnRecord(column.name, CATEGORY, categories=column.categories, missing=missing, doubt=doubt)
    low, high = _range(column, [part.x[:, column.start] for part in _parts(split)])
    return ColumnRecord(column.name, NUMBER, low=low, high=high, missing=missing, doubt=doubt)


def _target(split: Split, name: str, doubts: _Doubts | None) -> ColumnRecord:
    train = split.train
    column = train.target or Column(name, 0, max(1, len(train.classes)), train.classes or None)
    doubt = "" if doubts is None else doubts.about("y", column)
    if train.task is Task.CLASSES:
        return ColumnRecord(name, CATEGORY, target=True, categories=train.classes, doubt=doubt)
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


class _Doubts:
    """A bound threat, seen column by column; behind the training rows its views have those that may have been lost."""

    def __init__(self, members: ThreatSet, train: Dataset) -> None:
        self.members, self.train, self.hull = members, train, members.hull()
        limited = members.unbudgeted()
        self.calm = None if limited is None else limited.clean.hull()
        """The hull with all row budgets unused."""

    def about(self, on: str, column: Column) -> str:
        """What may be wrong with a column of the features (`x`) or of the targets (`y`), in words."""
        n, places = len(self.train), slice(column.start, column.stop)
        low, high = (getattr(self.hull, f"{on}_{end}")[:n, places] for end in ("low", "high"))
        clean = (self.train.x if on == "x" else self.train.one_hot)[:, places]
        known = self.members.reference[on == "y"][:n, places]
        seen = _Cells(column, known, low, high, (known != clean).any(axis=1) | self._missing(on, column))
        if self.calm is not None:
            ends = (getattr(self.calm, f"{on}_{end}")[:n, places] for end in ("low", "high"))
            seen.limited = np.equal(*ends).all(axis=1)
            seen.most = self.members.limit_on(on, places)
        return "; ".join(_categories(seen) if column.categorical else _numbers(seen))

    def _missing(self, on: str, column: Column) -> Mask:
        gaps, columns = self.train.missing, self.train.columns
        none = on == "y" or gaps is None
        return np.zeros(len(self.train), dtype=bool) if none or gaps is None else gaps[:, columns.index(column)]


@dataclass
class _Cells:
    """The cells of a column in the training rows: what stands for them, and how far they may lie from it."""

    column: Column
    known: Array
    low: Array
    high: Array
    unknown: Mask
    """Rows without a reported value."""
    limited: Mask | None = None
    """Rows that nothing moves but what is under a budget of rows."""
    most: int = 0
    """How many rows that budget is."""

    def where(self, moving: Mask) -> str:
        """In which of the rows that have a value."""
        rows, every = int(moving.sum()), int((~self.unknown).sum())
        if self.limited is not None and self.limited[moving].all() and 0 < self.most < rows:
            return f", in at most {count(self.most, 'row')}"
        return "" if rows == every else f", in {rows} of {every} rows"


def _numbers(seen: _Cells) -> Iterator[str]:
    scale, unknown = seen.column.scale, seen.unknown
    below, above = (ends[:, 0] * scale for ends in (seen.known - seen.low, seen.high - seen.known))
    open_ = np.maximum(below, above) > 0
    moving, lost = open_ & ~unknown, open_ & unknown
    if moving.any():
        down, up = below[moving], above[moving]
        largest = max(down.max(), up.max())
        if abs(down.max() - up.max()) <= ALIKE * largest:
            same = max(np.ptp(down), np.ptp(up)) <= ALIKE * largest
            said = f"± {'' if same else 'up to '}{largest:.3g}"
        else:
            sides = ((down.max(), "less"), (up.max(), "more"))
            said = " or ".join(f"up to {side:.3g} {word}" for side, word in sides if side > ALIKE * largest)
        yield said + seen.where(moving)
    if lost.any():
        ends = seen.column.to_value([seen.low[lost, 0].min(), seen.high[lost, 0].max()])
        yield f"anything from {ends[0]:.4g} to {ends[1]:.4g} where missing"


def _categories(seen: _Cells) -> Iterator[str]:
    possible, every = (seen.high > 0).sum(axis=1), seen.known.shape[1]
    open_ = possible > 1

    def said(rows: Mask) -> str:
        return "any of them" if possible[rows].min() == every else f"one of up to {possible[rows].max()} of them"

    if open_.any() and (possible == every).all() and not seen.most:
        yield said(open_)
        return
    moving, lost = open_ & ~seen.unknown, open_ & seen.unknown
    if moving.any():
        yield said(moving) + seen.where(moving)
    if lost.any():
        yield said(lost) + " where missing"
