"""Rows that come and go: which rows of a dataset there are, as a part of their labels.

Where a threat lets rows come or go, the labels of *every* row get one more one-hot group of two entries, `(present, absent)`.
A row that may be removed is a choice on that group, as another label would be. A row that may have been lost is a row of its
own at the end of the table, absent in the data as handed in, whose features and label may be anything of its domain. So
members stay pairs `(X, Y)`, and hull, noise, samples, worst cases, membership and budgets are those of any other choice.

Parts say where they act by the table as handed in: `"w"` stands for the new group, of width 2. `with_presence` renumbers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mibp_cert.data import Dataset
from mibp_cert.graph.ops import frozen
from mibp_cert.sets.base import Part
from mibp_cert.sets.blocks import Array, Index

PRESENCE = "w"
"""What the new group is called in parts; on the data it is the end of the labels."""


@dataclass(frozen=True, eq=False)
class Addition:
    """Rows that may have been lost: one of them as a stand-in (features, label entries), and the parts that let each be
    another, numbered among these rows alone."""

    x: Array
    y: Array
    parts: tuple[Part, ...]


def presence(rows: Index, *, there: bool) -> Part:
    """A part that lets these rows be absent (or present) instead."""
    zero, ones = np.zeros(len(rows)), np.ones(len(rows), dtype=np.intp)
    one, other = (2 * rows, 2 * rows + 1) if there else (2 * rows + 1, 2 * rows)
    return Part("choice", PRESENCE, rows, ones, other, zero, zero + 1.0, reference=one)


def with_presence(clean: Dataset, parts: list[Part], added: Sequence[Addition]) -> tuple[Dataset, list[Part]]:
    """The data with all rows that may be there, and the parts on them; both as they are where no row comes or goes."""
    if not added and all(part.on != PRESENCE for part in parts):
        return clean, parts
    n, widths = len(clean), {"x": clean.features, "y": clean.one_hot.shape[1], PRESENCE: 2}
    found, start = [_renumbered(part, widths, 0) for part in parts], n
    for addition in added:
        found += [_renumbered(part, widths, start) for part in addition.parts]
        start += len(addition.x)
    more = start - n
    x = np.concatenate([clean.x, *(addition.x for addition in added)])
    labels = np.concatenate([np.zeros((0, widths["y"])), *(addition.y for addition in added)])
    numbers = clean.targets is not None
    y = np.append(clean.y, np.zeros(more, dtype=np.intp) if numbers else labels.argmax(axis=1)).astype(np.intp)
    missing = clean.missing
    if missing is not None:
        missing = np.concatenate([missing, np.zeros((more, missing.shape[1]), dtype=bool)])
    whole = replace(
        clean,
        x=frozen(x),
        y=y,
        missing=missing,
        targets=None if clean.targets is None else frozen(np.concatenate([clean.targets, labels])),
        index=None,
        weights=None if clean.weights is None else frozen(np.append(clean.weights, np.ones(more))),
        there=np.arange(start) < n,
    )
    return whole, found


def _renumbered(part: Part, widths: dict[str, int], first: int) -> Part:
    """The part on the table with all rows, of which its own are those from `first` on, and on the wider labels."""
    old = widths[part.on]
    new, shift = (old, 0) if part.on == "x" else (widths["y"] + 2, widths["y"] if part.on == PRESENCE else 0)

    def moved(place: Index) -> Index:
        return np.asarray((place // old + first) * new + place % old + shift, dtype=np.intp)

    return replace(
        part,
        on="x" if part.on == "x" else "y",
        rows=part.rows + first,
        place=moved(part.place),
        reference=None if part.reference is None else moved(part.reference),
    )
