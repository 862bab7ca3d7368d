"""A small table with numeric and categorical columns and missing values, and one threat of every kind on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mibp_cert.data import Dataset, Recipe
from mibp_cert.threats import (
    L1,
    L2,
    Added,
    AnyCategory,
    Budget,
    Confusable,
    Exchanged,
    LabelFlips,
    LInf,
    Missing,
    Monotone,
    Nothing,
    Removed,
    Rounded,
    Shift,
    column,
    label_is,
)


def survey(rows: int = 6, seed: int = 0, *, missing: bool = True, like: Dataset | None = None) -> Dataset:
    """Two numeric and one categorical column, two classes; some values missing; `like`: encoded as these data are."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": rng.uniform(20, 80, rows).round(),
            "mood": ["fair", *rng.choice(["bad", "fair", "good"], rows - 1).tolist()],
            "income": rng.uniform(1, 9, rows),
            "ill": (np.arange(rows) % 2).tolist(),
        }
    )
    table["mood"] = pd.Categorical(table["mood"], categories=["bad", "fair", "good"])
    if missing:
        table.loc[1, "age"] = np.nan
        table.loc[2, "mood"] = np.nan
    if like is not None:
        return Dataset.from_frame(table, "ill", Recipe(like.columns))
    vocabulary = {"mood": ["bad", "fair", "good"]}
    return Dataset.from_frame(table, "ill", categorical=vocabulary, ranges={"age": (20, 80), "income": (0, 10)})


THREATS: dict[str, Any] = {
    "linf": LInf(0.5),
    "linf by column": LInf({"age": 2.0, "income": 0.1}),
    "linf relative": LInf(0.05, relative=True),
    "l1": L1({"age": 4.0, "income": 1.0}),
    "l2": L2({"age": 4.0, "income": 1.0}),
    "rounded": Rounded("age", to=5.0),
    "monotone": Monotone("income", up=1.0),
    "exchanged": Exchanged("age", "income"),
    "exchanged in some rows": Exchanged("income", "age").where(column("age") >= 50),
    "exchanged in few rows": Budget(Exchanged("age", "income"), rows=2),
    "exchanged or noisy": Exchanged("age", "income").where(label_is(0)) & LInf({"income": 0.2}).where(label_is(1)),
    "exchanged with a category": Exchanged("age", "income") & AnyCategory("mood"),
    "exchanged and flips": Budget(Exchanged("age", "income") & LabelFlips(), rows=2) & Shift("mood", by=1),
    "any category": AnyCategory("mood"),
    "any category of some rows": AnyCategory("mood").where(column("age") >= 50),
    "confusable": Confusable("mood", {"good": ["fair"], "fair": ["bad", "good"]}),
    "shift": Shift("mood", by=-1),
    "missing": Missing(),
    "missing marker": Missing("mood", marker="fair"),
    "labels": LabelFlips(1),
    "labels from": LabelFlips(2, source=[0], target=[1]),
    "any labels": LabelFlips(),
    "budget of rows": Budget(LInf({"age": 5.0, "income": 1.0}), rows=2),
    "budget of categories": Budget(AnyCategory("mood"), rows=1),
    "one-sided budget": Budget(Monotone("age", up=5.0), rows=2),
    "budget of cells": Budget(LInf({"age": 5.0, "income": 1.0}), cells=1),
    "budget of cells and rows": Budget(Budget(LInf({"age": 5.0, "income": 1.0}), cells=1), rows=2),
    "budget of balls": Budget(L2({"age": 5.0, "income": 1.0}), rows=2),
    "class-conditional": LInf(0.5).where(label_is(1)),
    "noise and flips": LInf({"income": 0.2}) & LabelFlips(1),
    "noise and a bad row": LInf({"income": 0.2, "age": 1.0}) & Budget(LInf({"income": 2.0}), rows=1),
    "noise and a ball": LInf({"income": 0.2}) & L2({"age": 4.0, "income": 1.0}),
    "row of everything": Budget(LInf({"age": 5.0}) & AnyCategory("mood") & LabelFlips(), rows=1),
    "missing and noise": Missing() & LInf({"income": 0.3}) & LabelFlips(1),
    "two boxes": LInf({"income": 0.3}) & Monotone("income", down=0.5),
    "nothing": Nothing(),
}


DOMAIN: dict[str, Any] = {"age": (30, 60), "mood": ["fair", "good"]}
ROWS: dict[str, Any] = {
    "removed": Removed(2),
    "removed of some rows": Removed(1).where(column("age") >= 50),
    "added": Added(2, DOMAIN),
    "added and removed": Added(1, {}) & Added(1, DOMAIN) & Removed(1),
    "rows and noise": LInf({"income": 0.2}) & LabelFlips(1) & Removed(1) & Added(1, DOMAIN),
    "missing and removed": Missing() & Removed(1),
}
"""Rows come and go: for fitted models only; engines of steps refuse these."""


def bound(name: str, rows: int = 6, seed: int = 0) -> Any:
    """The threat called `name` on the survey; values are missing only where the threat says what they may be."""
    holes = ("missing", "missing and noise", "missing and removed")
    return {**THREATS, **ROWS}[name].bind(survey(rows, seed, missing=name in holes))


def random_threat(rng: np.random.Generator, rows: int) -> Any:
    """A random composition: noise of any kind, categories, labels, budgets and conditions."""
    size = float(rng.choice([1e-9, 0.1, 1.0]))
    amounts = {"age": 4.0 * size, "income": size}
    numeric = [LInf(amounts), L1(amounts), L2(amounts), Monotone("age", up=3.0 * size), LInf(0.1 * size, relative=True)]
    numeric.append(Exchanged("age", "income"))
    choices = [
        AnyCategory("mood"),
        Shift("mood", by=1),
        Confusable("mood", {"good": ["bad"]}),
        Missing("mood", marker="fair"),
    ]
    parts: list[Any] = []
    for pool, chance in ((numeric, 0.9), (choices, 0.4), ([LabelFlips()], 0.3)):
        if rng.random() > chance:
            continue
        part: Any = pool[int(rng.integers(len(pool)))]
        if rng.random() < 0.5 and not isinstance(part, Missing):
            part = Budget(part, rows=int(rng.integers(1, rows)))
        if rng.random() < 0.3:
            part = part.where(label_is(int(rng.integers(2))))
        parts.append(part)
    if rng.random() < 0.3:
        parts.append(LInf({"income": 0.1 * size}))
    total = parts[0] if parts else LInf(0.0)
    for part in parts[1:]:
        total = total & part
    return total
