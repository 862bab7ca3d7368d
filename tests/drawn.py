"""Tables, models and threats for hunts, drawn from one seed: small, unfriendly, and combined at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cases import survey
from fits import REGRESSIONS
from mibp_cert.data import Dataset
from mibp_cert.fitted import SCORE_LOSSES, Fitted, RandomFeatures
from mibp_cert.threats import (
    L1,
    L2,
    AnyCategory,
    Budget,
    Confusable,
    Exchanged,
    LabelFlips,
    LInf,
    Missing,
    Monotone,
    Rounded,
    Shift,
    TargetNoise,
    label_is,
)

LOSSES = list(SCORE_LOSSES)


def numbers(rng: np.random.Generator) -> Any:
    """Rows of numbers, unfriendly ones among them."""
    n = int(rng.integers(3, 13)) if rng.random() < 0.85 else int(rng.integers(13, 50))
    d = int(rng.integers(1, 6)) if rng.random() < 0.5 else int(rng.integers(1, 3))
    x = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-1.5, 1.5, size=d if rng.random() < 0.3 else 1)
    if d > 1 and rng.random() < 0.15:
        x[:, 1] = x[:, 0] * rng.normal()
    if rng.random() < 0.1:
        x[:, 0] = rng.choice([0.0, 1.0, -2.5])
    if rng.random() < 0.2:
        x[n // 2 : n // 2 * 2] = x[: n // 2]
    if rng.random() < 0.15:
        x[0] *= 10.0 ** rng.uniform(0, 2)
    return x + (rng.normal(size=d) * np.abs(x).mean() if rng.random() < 0.2 else 0.0)


def table(rng: np.random.Generator, loss: str, x: Any, columns: Any = None, missing: Any = None) -> Dataset:
    """The rows with numbers or classes that follow them as closely as chance has it."""
    score = x @ (rng.normal(size=x.shape[1]) / (np.abs(x).mean(axis=0) + 1e-9))
    score = score + rng.normal(size=len(x)) * rng.choice([0.0, 0.3, 1.0, 3.0])
    given = {} if columns is None else {"columns": columns, "missing": missing}
    if loss in REGRESSIONS:
        return Dataset.regression(x, score * 10.0 ** rng.uniform(-1, 1), **given)
    y = (score > np.quantile(score, rng.choice([0.2, 0.5, 0.5, 0.8]))).astype(int)
    if y.min() == y.max():
        y[0] = 1 - y[0]
    return Dataset.of(x, y, (0, 1), **given)


def some_rows(rng: np.random.Generator, n: int) -> list[int]:
    return sorted(rng.choice(n, int(rng.integers(1, n + 1)), replace=False).tolist())


def wrong_targets(rng: np.random.Generator, data: Dataset, size: float) -> Any:
    if data.targets is None:
        return LabelFlips(source=[int(rng.integers(2))] if rng.random() < 0.3 else None)
    return TargetNoise(float(size * rng.uniform(0.2, 3.0) * (np.abs(data.targets).mean() + 1e-3)))


def moves(rng: np.random.Generator, data: Dataset, size: float) -> Any:
    """Noise of the numeric columns: of any kind, on some of them."""
    spread = np.abs(data.x).mean(axis=0) + 1e-3
    names = {c.name: spread[c.start] * c.scale for c in data.columns if c.categories is None}
    picked = [name for name in names if rng.random() < 0.8] or list(names)[:1]
    amounts = {name: float(size * names[name] * rng.uniform(0.3, 2.0)) for name in picked}
    up = {name: amount * float(rng.choice([0.0, 1.0, 2.0])) for name, amount in amounts.items()}
    kinds: list[Any] = [
        LInf(amounts),
        LInf(float(size), relative=True, columns=picked),
        L1(amounts),
        L2(amounts),
        Monotone(picked, up=[up[name] for name in picked], down=[amounts[name] for name in picked]),
        Monotone(picked, up=[amounts[name] for name in picked]),
        Rounded(picked[0], to=2.0 * amounts[picked[0]]),
        Budget(LInf(amounts), cells=1),
    ]
    if len(names) > 1 and size > 0.3:
        kinds.append(Exchanged(*list(names)[:2]))
    return kinds[int(rng.integers(len(kinds)))]


def categories(rng: np.random.Generator) -> Any:
    pairs = {"good": ["bad"], "fair": ["bad", "good"]}
    kinds: list[Any] = [AnyCategory("mood"), Shift("mood", by=1), Shift("mood", by=-1), Confusable("mood", pairs)]
    return kinds[int(rng.integers(len(kinds)))]


def threat_on(rng: np.random.Generator, data: Dataset) -> Any:
    """One to three parts, each on all rows, on some, or on few that nobody knows; two of them may share a budget."""
    size, n = float(10.0 ** rng.uniform(-4, 0)), len(data)
    pools = [lambda: moves(rng, data, size), lambda: wrong_targets(rng, data, size)]
    if any(c.categories is not None for c in data.columns):
        pools.append(lambda: categories(rng))
    chosen = [pools[k]() for k in rng.permutation(len(pools))[: int(rng.choice([1, 1, 2, 3]))]]
    if len(chosen) > 1 and rng.random() < 0.3:
        chosen = [Budget(chosen[0] & chosen[1], rows=int(rng.integers(1, 3))), *chosen[2:]]
    else:
        chosen = [_limited(rng, part, n) for part in chosen]
    if rng.random() < 0.25:
        chosen.append(_limited(rng, LInf(0.3 * size, relative=True), n))
    if data.missing is not None and data.missing.any():
        chosen.append(Missing())
    total = chosen[0]
    for part in chosen[1:]:
        total = total & part
    return total


def _limited(rng: np.random.Generator, part: Any, n: int) -> Any:
    kind = rng.random()
    finite = isinstance(part, LabelFlips | AnyCategory | Shift | Confusable | Exchanged)
    if kind < (0.6 if finite else 0.35):
        part = Budget(part, rows=int(rng.integers(1, 4)))
    elif kind < 0.9 if finite else kind < 0.6:
        part = part.where(some_rows(rng, n)[: 2 if finite else n])
    return part.where(label_is(int(rng.integers(2)))) if rng.random() < 0.1 and finite else part


@dataclass(frozen=True, eq=False)
class Case:
    """All that a hunt needs, drawn from one seed."""

    data: Dataset
    threat: Any
    model: Fitted
    test: Any
    cut: bool
    rng: np.random.Generator

    @classmethod
    def of(cls, seed: int) -> Case:
        rng = np.random.default_rng([seed, 7])
        loss = LOSSES[seed % len(LOSSES)]
        if rng.random() < 0.6:
            data = table(rng, loss, numbers(rng))
        else:
            like = survey(int(rng.integers(4, 14)), seed, missing=bool(rng.random() < 0.25))
            data = table(rng, loss, like.x, like.columns, like.missing)
        penalty = 10.0 ** rng.uniform(-3, 2.5) * (np.mean((data.x * data.x).sum(axis=1)) + 1e-6)
        penalty = 10.0 ** rng.uniform(-4, 3) if rng.random() < 0.3 else penalty
        features = None
        if rng.random() < 0.15:
            scale = float(10.0 ** rng.uniform(-1, 0.3) / (np.abs(data.x).mean() + 0.1))
            features, penalty = RandomFeatures(int(rng.integers(1, 6)), scale, seed), 10.0 ** rng.uniform(-2, 2)
        intercept, penalised = bool(rng.random() < 0.75), bool(rng.random() < 0.3)
        model = Fitted(loss, 1.0 / penalty, intercept, features, penalised)
        test = data.x[rng.integers(0, len(data), 6)] * (1.0 + rng.normal(size=(6, data.features)))
        return cls(data, threat_on(rng, data), model, test, bool(rng.random() < 0.2 and len(data) < 12), rng)
