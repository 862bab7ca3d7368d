"""Rows that come and go in several classes, inside: rows that are there in part, what is paid for them, and wrong rules that are
noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from fits import step_of
from mibp_cert import Added, Fitted, LabelFlips, LInf, Removed
from mibp_cert.fitted import class_dual, engine, presence
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.class_dual import ClassDual
from mibp_cert.fitted.classes import in_layout, minimise_classes, pairs_of
from mibp_cert.fitted.ranges import prove
from mibp_cert.fitted.softmax import ClassKnown
from test_fitted_classes_rows import BY_CLASS, REST, K, every_fit, tiny

MODELS = [Fitted(C=0.3), Fitted(C=0.3, multi=REST), Fitted("squared-hinge", 0.03)]


def problem_of(model: Fitted, threat: Any, seed: int, rows: int = 9) -> tuple[Any, Any]:
    bound = threat.bind(tiny(seed, rows))
    step = step_of(bound.clean, model)
    return step, engine.classes_problem(step, bound, np.zeros(0))


# Known ranges ---------------------------------------------------------------------------------------------------------


class Mixed:
    """Softmax's minimisers with up to `most` rows at weights between 0 and 1: what the proof passes on its way."""

    def __init__(self, most: int, seed: int, c: float) -> None:
        _, self.problem = problem_of(Fitted(C=c), Removed(most), seed)
        data, pairs = tiny(seed, 9), pairs_of(K)
        rows = [list(k) for size in range(most + 1) for k in combinations(range(9), size)]
        shares = [np.array(s) for s in product((0.0, 0.1, 0.4, 0.8), repeat=most)]
        w = np.ones((len(rows) * len(shares), 9))
        for i, (some, share) in enumerate(product(rows, shares)):
            w[i, some] = share[: len(some)]
        design = np.column_stack([data.x, np.ones(9)])
        x, y = (np.broadcast_to(part, (len(w), *part.shape)) for part in (design, data.one_hot))
        theta = minimise_classes(x, y, w, self.problem.table.alpha, 1.0)
        self.theta = in_layout(theta, 2)
        self.s = ((design @ theta.swapaxes(1, 2)) @ pairs.T).reshape(len(w), -1)
        dirty = w < 1.0
        self.dirty, spare = (
            np.repeat(some, len(pairs), axis=1) for some in (dirty, dirty.sum(axis=1, keepdims=True) - dirty < most)
        )
        ends = [
            (np.where(of, self.s, np.inf).min(axis=0), np.where(of, self.s, -np.inf).max(axis=0))
            for of in (~self.dirty, spare)
        ]
        self.hull = Ranges(self.theta.min(axis=0), self.theta.max(axis=0), *ends[0], (ends[1],))

    def excess(self, z: Ranges) -> float:
        """How far a minimiser, or a difference of its scores, is outside."""
        found = [np.maximum(z.low - self.theta, self.theta - z.high).max()]
        for (low, high), of in (((z.s_low, z.s_high), ~self.dirty), (z.by[0], self.dirty)):
            found.append(np.where(of, np.maximum(low - self.s, self.s - high), -np.inf).max())
        return float(np.nan_to_num(np.array(found), nan=np.inf).max())


@pytest.mark.parametrize(("most", "c"), [(1, 1.0), (2, 0.2)])
def test_rows_that_are_there_in_part_are_covered(most: int, c: float) -> None:
    """Bounds under known ranges, and proven ones."""
    for seed in range(2):
        world = Mixed(most, seed, c)
        for rounds in (0, 2):
            assert world.excess(world.problem.bounds(world.hull, rounds)) <= 1e-12
        found = prove(world.problem)
        if found is not None:
            assert world.excess(found) <= 0.0


def test_a_budget_that_is_one_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world, original = Mixed(2, 0, 0.2), class_dual.Dual._largest
    monkeypatch.setattr(
        class_dual.Dual, "_largest", lambda self, b, gain: original(self, replace(b, most=b.most - 1), gain)
    )
    assert world.excess(world.problem.bounds(world.hull)) > 1e-6


# What is paid for one row ---------------------------------------------------------------------------------------------


def share_excess(model: Fitted, threat: Any, seed: int = 0) -> float:
    """One dirty row's share of the bound, at any weight and any mixture of its labels, beside what is paid for it: its line and
    the cost of replacing it. Ranges are made up: narrow ones of scores for rows that are left alone, wide ones for dirty rows."""
    rng = np.random.default_rng(seed)
    step, problem = problem_of(model, threat, seed)
    at, tables = problem.point(), [problem] if model.softmax else problem.each
    wide = tuple((low - 1.0, high + 1.0) for low, high in at.by)
    dual = problem._dual(Ranges(at.low - 0.6, at.high + 0.6, at.s_low - 0.02, at.s_high + 0.02, wide))
    (budget,), rows = tables[0].table.budgets, dual.table.rows
    n, queries, none = len(rows), 15, np.full(15, -1, dtype=np.intp)
    a = rng.normal(size=(queries, K * 3))
    plus = np.zeros((queries, K, n))
    u, p, rho, theta = dual._find(a, none, np.zeros((queries, K)), plus)
    lines, _ = dual.all.class_lines(u, p, rho, plus, None)
    dual._largest = lambda budget, gain: gain
    gain, _ = dual._replaced(dual.table.budgets[0], dual.others[0], u, p, theta, lines, none, a)
    cost = np.zeros((queries, n))
    np.maximum.at(cost.T, budget.rows, gain.T)
    weights, open_ = step.weights[:n], threat.words() != Removed(2).words()
    c, omega, worst = step.by_class(problem.c), u @ rows.x.T, -np.inf
    for _ in range(200):
        model_of = c + rng.uniform(-0.6, 0.6, c.shape)
        s, s_c = model_of @ rows.x.T, c @ rows.x.T
        off = s - s_c
        known = np.ptp(off, axis=0) <= 1.0 if model.softmax else np.abs(off).max(axis=0) <= 1.0
        labels = rng.dirichlet(np.ones(K), n) if open_ and rng.random() < 0.5 else np.eye(K)[rng.integers(K, size=n)]
        labels = labels if open_ else rows.y
        there = np.ones(n) if open_ else rng.choice([0.0, 0.3, 0.9, 1.0], n)
        psi = sum(weights[:, k] * labels[:, k] * dual.all.at(s, np.eye(K)[:, [k] * n])[1] for k in range(K))
        share = (there * psi * omega).sum(axis=1)
        paid = lines.const + lines.coef @ model_of.ravel() + cost
        worst = max(worst, float(np.where(known, share - paid, -np.inf).max()))
    return worst


SHARES = [*product(MODELS, (Removed(2),)), *((replace(m, class_weight=BY_CLASS), LabelFlips(2)) for m in MODELS)]


@pytest.mark.parametrize(("model", "threat"), SHARES)
def test_a_dirty_row_pays_for_its_share_at_any_weight_and_label(model: Fitted, threat: Any) -> None:
    for seed in range(3):
        assert share_excess(model, threat, seed) <= 1e-12


def _never_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClassDual, "_or_gone", lambda self, budget, known, lines, gain: (gain, 0.0 * gain))


def _only_gone(patch: pytest.MonkeyPatch) -> None:
    """The clean line of a dirty row is taken to hold as it stands: on the range of rows that are left alone."""
    original = ClassDual._or_gone
    patch.setattr(ClassDual, "_or_gone", lambda self, b, known, lines, gain: original(self, b, known, lines, 0 * gain))


def _clean_ranges(patch: pytest.MonkeyPatch) -> None:
    original = ClassDual.__init__

    def init(self: Any, table: Any, pin: Any, box: Any, tau: Any, known: Any, others: Any, rounds: Any) -> None:
        narrow = []
        for budget, other in zip(table.budgets, others, strict=True):
            if hasattr(known, "each"):
                pairs = zip(known.each, other.each, strict=True)
                each = [replace_ranges(one, mine, budget.rows) for one, mine in pairs]
                narrow.append(type(other)(other.rows, each, box))
            else:
                first, second = np.triu_indices(K, 1)
                top = known.top[..., budget.rows]
                narrow.append(ClassKnown(other.rows, -top[second, first].T.ravel(), top[first, second].T.ravel(), box))
        original(self, table, pin, box, tau, known, narrow, rounds)

    patch.setattr(ClassDual, "__init__", init)


def replace_ranges(clean: Any, dirty: Any, rows: Any) -> Any:
    return type(dirty)(dirty.loss, dirty.rows, clean.low[rows], clean.high[rows], dirty.ranges)


def _old_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(presence, "_by_label", lambda budget, weights: budget)


def _wrong_falls(patch: pytest.MonkeyPatch) -> None:
    original = ClassKnown.falls
    patch.setattr(ClassKnown, "falls", lambda self, lam: original(self, -lam))


REMOVED, FLIPPED = (MODELS[0], Removed(2)), (replace(MODELS[0], class_weight=BY_CLASS), LabelFlips(2))
REST_TOO = (MODELS[1], Removed(2))
MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[tuple[Fitted, Any], ...]]] = {
    "never gone": (_never_gone, (REMOVED, REST_TOO)),
    "only gone": (_only_gone, (REMOVED, REST_TOO)),
    "alternatives on the ranges of clean rows": (_clean_ranges, (REMOVED, REST_TOO, FLIPPED)),
    "labels of the old weight": (_old_weights, (FLIPPED,)),
    "scores that fall the other way": (_wrong_falls, (REMOVED, FLIPPED)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_rules_are_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, worlds = MUTANTS[mutant]
    change(monkeypatch)
    for model, threat in worlds:
        assert max(share_excess(model, threat, seed) for seed in range(3)) > 1e-6


def test_lost_rows_that_are_counted_once_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "MOST_PARTS", 1)
    threat, model = Added(2, {"0": (1, 1), "1": (1, 1)}), Fitted(C=0.01)

    def escapes() -> bool:
        run = mc.certify_fit(tiny(6), threat, model, attacked=False)
        x, y = run.request.members.reference
        every = list(product(range(K), repeat=2))
        xs, ys = (np.repeat(part[None], len(every), axis=0) for part in (x, y))
        for k, labels in enumerate(every):
            ys[k, -2:] = [[*np.eye(K)[label], 1.0, 0.0] for label in labels]
        theta = run.request.plan.steps[0].train(np.zeros((len(every), 9)), xs, ys)
        return not ((run.bounds.lower <= theta) & (theta <= run.bounds.upper)).all()

    assert not escapes()
    original = presence._coming
    monkeypatch.setattr(presence, "_coming", lambda *rest: [replace(b, most=1) for b in original(*rest)])
    assert escapes()


@pytest.mark.parametrize("model", MODELS)
def test_a_class_that_forgets_the_weights_of_others_is_noticed(model: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that only leave class 0 for class 1 change the weights of rows in the problem of class 2."""
    if model.softmax:
        return
    own = replace(model, C=0.1 * model.C, class_weight={0: 1.0, 1: 6.0, 2: 1.0})
    threat = LabelFlips(1, source=[0], target=[1])

    def escapes() -> bool:
        run = mc.certify_fit(tiny(2), threat, own, attacked=False)
        theta = every_fit(run, 5)[2]
        return not ((run.bounds.lower <= theta) & (theta <= run.bounds.upper)).all()

    assert not escapes()
    original = engine.of_class

    def forgetful(table: Any, k: int) -> Any:
        found = original(table, k)
        moved = [
            replace(b, by=replace(b.by, w=np.where(table.rows.y[b.rows, k] == b.by.y, 1.0, b.by.w)))
            for b in found.budgets
        ]
        return replace(found, budgets=tuple(moved))

    monkeypatch.setattr(engine, "of_class", forgetful)
    assert escapes()


def test_noise_and_removal_are_paid_for_together() -> None:
    """A row that is both noisy and gone in part: sampled datasets with rows at every weight."""
    rng, data = np.random.default_rng(0), tiny(3, 9)
    for model in MODELS[:2]:
        run = mc.certify_fit(data, LInf(0.1) & Removed(1), replace(model, C=0.1), attacked=False)
        x, y = run.request.members.reference
        xs, ys = (np.repeat(part[None], 300, axis=0) for part in (x, y))
        xs = xs + rng.choice([-0.1, 0.1], size=xs.shape)
        gone, share = rng.integers(9, size=300), rng.choice([0.0, 0.2, 0.7], size=300)
        ys[np.arange(300), gone, K:] = np.column_stack([share, 1.0 - share])
        theta = run.request.plan.steps[0].train(np.zeros((300, 9)), xs, ys)
        assert ((run.bounds.lower <= theta) & (theta <= run.bounds.upper)).all()
