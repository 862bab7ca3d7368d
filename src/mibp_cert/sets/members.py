"""Members of a set that parts span: written from symbols, listed one by one, told from other datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mibp_cert.sets.base import Hull
from mibp_cert.sets.blocks import Array
from mibp_cert.sets.parts import Act, Option, Side

Dataset = tuple[Array, Array]
"""Features and labels."""


def _shaped(sides: Mapping[str, Side], flat: Mapping[str, Array]) -> Dataset:
    return flat["x"].reshape(sides["x"].shape), flat["y"].reshape(sides["y"].shape)


def written(sides: Mapping[str, Side], owners: Sequence[tuple[Act, slice]], epsilon: Array) -> Dataset:
    """The dataset with this noise, written without rounding: cells at their ends, one-hot groups as one-hot groups."""
    flat, start = {on: np.array(side.known) for on, side in sides.items()}, 0
    for on, side in sides.items():
        moving = side.moving
        low, high, e = side.low[moving], side.high[moving], epsilon[start : start + len(moving)]
        middle = np.clip(0.5 * (low + high) + 0.5 * (high - low) * e, low, high)
        flat[on][moving] = np.where(e <= -1.0, low, np.where(e >= 1.0, high, middle))
        start += len(moving)
    for act, symbols in owners:
        act.write(epsilon[symbols], flat[act.part.on])
    return _shaped(sides, flat)


def every(sides: Mapping[str, Side], acts: Sequence[Act], limits: Sequence[int], limit: int) -> list[Dataset] | None:
    """All members, if no cell moves freely: piece by piece, with the rows that budgets have left."""
    if any(len(side.moving) for side in sides.values()):
        return None
    found: list[list[tuple[int, int, str, Option]]] = [[]]
    """Each member by the pieces that differ from the reference: budget, row, and what they do."""
    for act in acts:
        group, on = act.part.group, act.part.on
        for piece, row in enumerate(act.part.rows.tolist()):
            options = act.options(piece, limit)
            if options is None:
                return None
            more = []
            for moves in found:
                touched = {other for k, other, _, _ in moves if k == group}
                if group < 0 or row in touched or len(touched) < limits[group]:
                    more += [[*moves, (group, row, on, option)] for option in options]
            found += more
            if len(found) > limit:
                return None
    out = []
    for moves in found:
        flat = {on: np.array(side.known) for on, side in sides.items()}
        for _, _, on, (cells, values) in moves:
            flat[on][cells] = values
        out.append(_shaped(sides, flat))
    return out


def contains(
    sides: Mapping[str, Side], acts: Sequence[Act], limits: Sequence[int], hull: Hull, x: Array, y: Array
) -> bool:
    """Cell by cell: first what the plain box explains, then the other parts; rows touched are counted for the budgets."""
    if x.shape != sides["x"].shape or y.shape != sides["y"].shape:
        return False
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return False
    if not ((hull.x_low <= x) & (x <= hull.x_high)).all() or not ((hull.y_low <= y) & (y <= hull.y_high)).all():
        return False
    flat = {"x": x.ravel(), "y": y.ravel()}
    rest = {on: flat[on] - np.clip(flat[on], side.low, side.high) for on, side in sides.items()}
    touched = [np.zeros(len(x), dtype=bool) for _ in limits]
    for act in acts:
        changed = act.explains(flat[act.part.on], rest[act.part.on])
        if changed is None:
            return False
        if act.part.group >= 0:
            touched[act.part.group][act.part.rows[changed]] = True
    inside = not (rest["x"].any() or rest["y"].any())
    return inside and all(int(rows.sum()) <= most for rows, most in zip(touched, limits, strict=True))
