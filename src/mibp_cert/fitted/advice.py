"""What to do where no ranges prove themselves: which rows and columns the doubt comes from, and a C that would do."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mibp_cert.data import Dataset
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.explain import Clean, explain
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.ranges import Search
from mibp_cert.fitted.table import Array

WIDEST = 1e6
"""Ranges wider than this multiple of the largest parameter (at least 1) say nothing."""
FACTORS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0001)
"""Multiples of C that are tried; the proof is easier the smaller it is."""
CELLS = 5_000_000
"""Rows × rows × parameters above which no C is looked for: that would take minutes."""
UNEVEN = 1e4
"""Columns that differ by more than this factor are of different scale."""
TOLD = 3
"""Rows and columns that are named, at most."""


def says_nothing(ranges: Ranges, c: Array) -> bool:
    """Whether proven ranges around the minimiser `c` are too wide to be of use."""
    return not ranges.radius.max() <= WIDEST * max(1.0, np.abs(c).max())


def too_large(
    problem: Problem, clean: Clean, data: Dataset, c: float, at: Callable[[float], Problem]
) -> tuple[str, float | None]:
    """The sentence, and a C that would do, if one was found; `c`: the C asked for, `at`: the problem with another one."""
    enough = smaller(problem, c, at)
    use = "a smaller C" if enough is None else f"a smaller C ({enough:g} would do, if the model is still of use there)"
    words = (
        f"The doubt is too large for this model: no ranges of its parameters could be proven. Use {use}, a smaller eps, "
        f"{one_scale(problem)}or doubt fewer rows and columns{sources(problem, clean, data)}."
    )
    return words, enough


def one_scale(problem: Problem) -> str:
    """What to do about columns of very different size: the same penalty holds a small one tight, and a large one not at all."""
    size = problem.table.rows.x.std(axis=0)
    size = size[size > 0]
    if not len(size) or size.max() <= UNEVEN * size.min():
        return ""
    return f"columns of one scale (they differ {size.max() / size.min():.0e}-fold), "


def smaller(problem: Problem, c: float, at: Callable[[float], Problem]) -> float | None:
    """About the largest C, of those tried, for which ranges of use are proven; None if there is none, or that would take long."""
    rows = problem.table.rows
    if len(rows) * rows.x.size > CELLS:
        return None
    tried = [_rounded(c * factor) for factor in FACTORS]
    first, last = 0, len(tried)  # proven from `last` on, not before `first`
    while first < last:
        middle = (first + last) // 2
        there = at(tried[middle])
        found = Search(there).repeated()[0]
        if found is None or says_nothing(found, there.c):
            first = middle + 1
        else:
            last = middle
    return tried[last] if last < len(tried) else None


def sources(problem: Problem, clean: Clean, data: Dataset) -> str:
    """The columns and rows with the largest share of the parameters' doubt, to first order, in words."""
    share = shares(problem, clean)
    if not (np.isfinite(share).all() and share.sum() > 0):
        return ""
    share = share / share.sum()
    names = [f"the column '{column.name}'" for column in data.columns]
    columns = [share[:, column.start : column.stop].sum() for column in data.columns]
    columns, names = [*columns, share[:, -1].sum()], [*names, "the labels" if data.targets is None else "the targets"]
    best = [int(j) for j in np.argsort(columns)[::-1][:TOLD] if columns[int(j)] > 0.1]
    told = ", ".join(f"{names[j]} ({100 * columns[j]:.0f} %)" for j in best)
    index = range(len(data)) if data.index is None else data.index.tolist()
    rows = share.sum(axis=1)
    worst = [int(i) for i in np.argsort(-rows, kind="stable")[:TOLD] if rows[int(i)] > 0]
    listed, together = ", ".join(str(index[i]) for i in worst), f"{100 * rows[worst].sum():.0f}"
    some = (
        "" if together == "0" else f"; rows with most of it are {listed} ({together} %)"
    )  # of many rows none stands out
    return f": it comes most from {told}{some}"


def shares(problem: Problem, clean: Clean) -> Array:
    """What each cell and each target (last column) contributes to the parameters' ranges, to first order, each parameter
    relative to its own range (rows × columns + 1)."""
    eye = np.eye(len(problem.c))
    found = explain(problem, problem.point(), clean, np.concatenate([eye, -eye]), rounds=1)
    cells = np.concatenate([found.noise, found.targets[..., None]], axis=2) + found.possible
    cells = np.maximum(cells, 0.0)
    whole = cells.sum(axis=(1, 2), keepdims=True)
    return np.asarray((cells / np.where(whole > 0, whole, 1.0)).sum(axis=0))


def _rounded(value: float) -> float:
    """Down to two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.floor(value / unit * (1.0 + 1e-9)) * unit:.2g}")
