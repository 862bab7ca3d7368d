"""Fitted models on small tables: datasets of a threat, attacked and sampled, their minimisers, and how far one is outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cases import survey
from mibp_cert.data import Dataset
from mibp_cert.fitted import FitStep, Fitted, adjoint, margin_queries
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.classes import pairs_of
from mibp_cert.fitted.engine import classes_problem, table_problem
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
    Rules,
    Shift,
    TargetNoise,
    column,
)

REGRESSIONS = ("squared-error", "huber")
AMOUNTS = {"age": 6.0, "income": 1.0}


def _in_step(m: Any) -> None:
    """Rows that are tied to each other: what all incomes are off by has little sum, and two ages are off alike."""
    off = [m.x(i, "income") - m.clean(i, "income") for i in m.rows]
    total = off[0]
    for more in off[1:]:
        total = total + more
    m.require(total <= 1.0)
    m.require(total >= -1.0)
    m.require(m.x(0, "age") - m.clean(0, "age") <= m.x(1, "age") - m.clean(1, "age"))


ANY: dict[str, Any] = {
    "rows in step": Rules(LInf({"age": 6.0, "income": 1.0}), _in_step),
    "linf": LInf(0.1, relative=True),
    "few cells": Budget(LInf(AMOUNTS), cells=2),
    "l1": L1(AMOUNTS),
    "l2 of some rows": L2(AMOUNTS).where(column("age") >= 50),
    "rounded": Rounded("age", to=10.0),
    "monotone": Monotone("income", up=3.0),
    "missing": Missing(),
    "any category": AnyCategory("mood"),
    "confusable": Confusable("mood", {"good": ["fair"]}),
    "shift": Shift("mood", by=-1),
    "exchanged": Exchanged("income", "age").where(column("age") >= 70),
    "budget of rows": Budget(LInf({"age": 20.0, "income": 4.0}), rows=2),
    "one-sided budget": Budget(Monotone("age", up=20.0), rows=2),
    "budget of balls": Budget(L2({"age": 20.0, "income": 4.0}), rows=2),
    "budget of categories": Budget(AnyCategory("mood"), rows=1),
    "noise and a bad row": LInf({"income": 0.2}) & Budget(LInf({"income": 5.0}), rows=1),
    "categories and a bad row": AnyCategory("mood").where(column("age") >= 60) & Budget(LInf({"income": 5.0}), rows=1),
}
"""What may be wrong with features."""
CLASSES: dict[str, Any] = {
    "labels": LabelFlips(2),
    "noise and flips": LInf({"income": 0.2}) & LabelFlips(1),
    "categories and flips": Shift("mood", by=1) & LabelFlips(2),
    "row of everything": Budget(LInf({"age": 10.0}) & LabelFlips(), rows=2),
    "missing and flips": Missing() & LabelFlips(1),
}
NUMBERS: dict[str, Any] = {
    "targets": TargetNoise(0.5),
    "noise and targets": LInf(0.05, relative=True) & TargetNoise(0.3),
    "bad targets": Budget(TargetNoise(4.0) & LInf({"income": 2.0}), rows=2),
}


def threats(loss: str) -> dict[str, Any]:
    return {**ANY, **(NUMBERS if loss in REGRESSIONS else CLASSES)}


def table(
    loss: str, rows: int = 10, seed: int = 0, *, missing: bool = False, like: Dataset | None = None, classes: int = 2
) -> Dataset:
    """The survey, with classes that follow its columns only roughly, or with numbers; `like`: encoded as these data are."""
    data, rng = survey(rows, seed, missing=missing, like=like), np.random.default_rng(seed + 100)
    score = data.x @ rng.normal(size=data.features) + rng.normal(size=rows)
    if loss in REGRESSIONS:
        return Dataset.regression(data.x, score, data.columns, data.missing)
    y = (score[:, None] > np.quantile(score, np.arange(1, classes) / classes)).sum(axis=1)
    return Dataset.of(data.x, y, tuple(range(classes)), data.columns, data.missing)


def step_of(data: Dataset, model: Fitted) -> FitStep:
    network = model.network(data)
    (step,) = model.plan(network, data, np.zeros(network.layout.size)).steps
    assert isinstance(step, FitStep)
    return step


def attacked(step: FitStep, bound: Any, samples: int = 30, rounds: int = 2, seed: int = 0) -> tuple[Any, Any, Any]:
    """Datasets: as handed in, sampled, and pushed along the adjoints of parameters and scores; and their minimisers."""
    members, (x, y) = [bound.reference, *bound.sample(np.random.default_rng(seed), samples)], bound.reference
    zeros = start_of(step)
    theta = step.train(zeros, x, y)
    eye = np.eye(step.fitted)
    rows = step.design(zeros, x) if not step.several else margin_queries(step, zeros, x, y.argmax(axis=1))
    a = np.concatenate([eye, -eye, rows, -rows])
    xs, ys, at = (np.broadcast_to(v, (len(a), *v.shape)) for v in (x, y, theta))
    for _ in range(rounds if bound.noise().symbols else 0):
        found = [bound.worst(g) for g in adjoint(step, bound.noise(), a, xs, ys, at)]
        members += found
        xs, ys = (np.stack([m[i] for m in found]) for i in (0, 1))
        at = step.train(np.broadcast_to(zeros, at.shape), xs, ys)
    xs, ys = (np.stack([m[i] for m in members]) for i in (0, 1))
    return xs, ys, step.train(np.broadcast_to(zeros, (len(members), len(theta))), xs, ys)


def start_of(step: FitStep) -> Any:
    """The frozen parameters, and zeros."""
    found = np.zeros(step.layout.size)
    if step.model.features is not None:
        frozen = step.model.features.body(step.network.features)[1]
        found[: len(frozen)] = frozen
    return found


@dataclass(frozen=True, eq=False)
class World:
    """A problem with datasets of its threat: minimisers, scores, and which budgeted rows each of them replaces. With
    softmax, a row's scores are the differences between its classes."""

    step: FitStep
    problem: Any
    theta: Any
    s: Any
    dirty: Any
    each: int = 1

    @classmethod
    def of(cls, model: Fitted, threat: Any, data: Dataset, **how: Any) -> World:
        step, bound = step_of(data, model), threat.bind(data)
        x, y, theta = attacked(step, bound, **how)
        frozen, fitted = start_of(step)[: -step.fitted], theta[:, -step.fitted :]
        if step.several:
            s, each = step.design(theta, x) @ step.by_class(fitted).swapaxes(1, 2), len(pairs_of(step.head.outputs))
            s = (s @ pairs_of(step.head.outputs).T).reshape(len(s), -1)
        else:
            s, each = np.einsum("mnp,mp->mn", step.design(theta, x), fitted), 1
        limited, dirty = bound.unbudgeted(), np.zeros(x.shape[:2], dtype=bool)
        if limited is not None:
            h = limited.clean.hull()
            dirty = ((x < h.x_low) | (x > h.x_high)).any(axis=2) | ((y < h.y_low) | (y > h.y_high)).any(axis=2)
        problem = (classes_problem if step.several else table_problem)(step, bound, frozen)
        return cls(step, problem, fitted, s, np.repeat(dirty, each, axis=1), each)

    def hull(self) -> Ranges:
        """The smallest ranges that hold for these datasets: of rows as such, and of those that replace them."""
        low, high = self._ends(~self.dirty | self.dirty.all(axis=0))
        others = [self._ends(self.dirty | ~self.dirty.any(axis=0)) for _ in self.problem.table.budgets]
        by = tuple(
            (ends[0][self._of(budget)], ends[1][self._of(budget)])
            for budget, ends in zip(self.problem.table.budgets, others, strict=True)
        )
        return Ranges(self.theta.min(axis=0), self.theta.max(axis=0), low, high, by)

    def _of(self, budget: Any) -> Any:
        return (budget.rows[:, None] * self.each + np.arange(self.each)).ravel()

    def _ends(self, of: Any) -> tuple[Any, Any]:
        return np.where(of, self.s, np.inf).min(axis=0), np.where(of, self.s, -np.inf).max(axis=0)

    def excess(self, z: Ranges) -> float:
        """How far a minimiser or one of its scores is outside; NaN is outside."""
        found = [np.maximum(z.low - self.theta, self.theta - z.high).max()]
        found.append(np.where(self.dirty, -np.inf, np.maximum(z.s_low - self.s, self.s - z.s_high)).max())
        for budget, (low, high) in zip(self.problem.table.budgets, z.by, strict=True):
            s, dirty = self.s[:, self._of(budget)], self.dirty[:, self._of(budget)]
            found.append(np.where(dirty, np.maximum(low - s, s - high), -np.inf).max())
        return float(np.nan_to_num(np.array(found), nan=np.inf).max())
