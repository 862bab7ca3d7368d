"""Rows that come and go, inside: rows that are there in part, the rules for them, and wrong rules that are noticed."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from fits import attacked, step_of
from mibp_cert import Added, Fitted, LabelFlips, Removed
from mibp_cert.fitted import dual, finite, presence
from mibp_cert.fitted import shared as shared_module
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.engine import table_problem
from mibp_cert.fitted.minimum import minimise
from mibp_cert.fitted.ranges import prove
from mibp_cert.fitted.zonotope import Zonotope
from test_fitted_rows import tiny


@pytest.fixture(autouse=True)
def _by_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few members would be fitted one by one, and no budget would be looked at."""
    monkeypatch.setattr(finite, "MOST", 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exits are not cut, and domains are left in few parts."""
    monkeypatch.setattr("mibp_cert.fitted.problem.CUT_CELLS", 0)
    monkeypatch.setattr(presence, "MOST_PARTS", 8)


# Known ranges: rows that are there in part, and wrong rules -------------------------------------------------------------


class Mixed:
    """Minimisers with up to `most` rows at weights between 0 and 1: what the proof passes on its way."""

    def __init__(self, loss: str, most: int, seed: int, c: float) -> None:
        self.data, model = tiny(loss, seed, 7), Fitted(loss, c)
        bound = Removed(most).bind(self.data)
        step, n = step_of(bound.clean, model), len(self.data)
        self.problem: Any = table_problem(step, bound, np.zeros(0))
        rows = [list(k) for size in range(most + 1) for k in combinations(range(n), size)]
        shares = [np.array(s) for s in product((0.0, 0.1, 0.4, 0.8), repeat=most)]
        self.w = np.ones((len(rows) * len(shares), n))
        for i, (some, share) in enumerate(product(rows, shares)):
            self.w[i, some] = share[: len(some)]
        design = np.column_stack([self.data.x, np.ones(n)])
        target = self.data.one_hot[:, step.column]
        x = np.broadcast_to(design, (len(self.w), *design.shape))
        self.theta = minimise(x, np.broadcast_to(target, self.w.shape), self.w, model.alpha(2), step.loss)
        self.s, self.most = self.theta @ design.T, most
        self.dirty = self.w < 1.0

    def hull(self) -> Ranges:
        """Scores of rows that are left alone, and of those that may be dirty, whatever they weigh."""
        spare = self.dirty.sum(axis=1, keepdims=True) - self.dirty < self.most
        ends = [
            (np.where(of, self.s, np.inf).min(axis=0), np.where(of, self.s, -np.inf).max(axis=0))
            for of in (~self.dirty, spare)
        ]
        return Ranges(self.theta.min(axis=0), self.theta.max(axis=0), *ends[0], (ends[1],))

    def excess(self, z: Ranges) -> float:
        found = [np.maximum(z.low - self.theta, self.theta - z.high).max()]
        found.append(np.where(self.dirty, -np.inf, np.maximum(z.s_low - self.s, self.s - z.s_high)).max())
        low, high = z.by[0]
        found.append(np.where(self.dirty, np.maximum(low - self.s, self.s - high), -np.inf).max())
        return float(np.nan_to_num(np.array(found), nan=np.inf).max())


WORLDS = [("cross-entropy", 1, 1.0), ("cross-entropy", 2, 0.3), ("squared-hinge", 1, 0.2), ("squared-error", 2, 0.2)]


def zonotope(world: Mixed) -> Ranges:
    problem = world.problem
    return Zonotope(problem.table, problem.loss, world.hull(), problem.tau).bounds()


@pytest.mark.parametrize(("loss", "most", "c"), WORLDS)
def test_rows_that_are_there_in_part_are_covered(loss: str, most: int, c: float) -> None:
    """Bounds under known ranges, by each query's own multipliers and by one zonotope; and proven ranges."""
    for seed in range(3):
        world = Mixed(loss, most, seed, c)
        assert world.excess(world.problem.bounds(world.hull())) <= 1e-12
        assert world.excess(zonotope(world)) <= 1e-12
        found = prove(world.problem)
        if found is not None:
            assert world.excess(found) <= 0.0


@pytest.mark.parametrize(("loss", "most", "c"), WORLDS)
def test_an_exit_is_cut_by_what_is_true_of_those_who_take_it(loss: str, most: int, c: float) -> None:
    """Under the assumption `a·θ ≥ v`, the zonotope keeps every model for which it holds."""
    rng, world = np.random.default_rng(0), Mixed(loss, most, 1, c)
    whole = Zonotope(world.problem.table, world.problem.loss, world.hull(), world.problem.tau)
    every = world.theta, world.s, world.dirty
    for _ in range(6):
        a = rng.normal(size=3)
        v = float(np.quantile(every[0] @ a, rng.choice([0.5, 0.9, 0.99])))
        world.theta, world.s, world.dirty = (part[every[0] @ a >= v] for part in every)
        assert world.excess(whole.bounds(a, v)) <= 1e-12


def _one_short(patch: pytest.MonkeyPatch) -> None:
    for module in (dual, shared_module):
        original = module.largest_sum
        patch.setattr(module, "largest_sum", lambda values, most, sum_=original: sum_(values, most - 1))


def _never_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dual, "or_gone", lambda budget, known, lines, gain, size: (gain, size))


def _only_gone(patch: pytest.MonkeyPatch) -> None:
    """The clean line of a dirty row is taken to hold as it stands: on the range of rows that are left alone."""
    original = dual.or_gone
    patch.setattr(
        dual, "or_gone", lambda budget, known, lines, gain, size: original(budget, known, lines, 0 * gain, size)
    )


def _clean_ranges(patch: pytest.MonkeyPatch) -> None:
    original = Dual.__init__

    def init(self: Any, table: Any, loss: Any, ranges: Ranges, *rest: Any) -> None:
        by = tuple((ranges.s_low[budget.rows], ranges.s_high[budget.rows]) for budget in table.budgets)
        original(self, table, loss, replace(ranges, by=by), *rest)

    patch.setattr(Dual, "__init__", init)


def share_excess(world: Mixed, seed: int = 0) -> float:
    """One row's share of (1), at any weight, beside what is paid for it: its line and the cost of replacing it. Ranges are
    made up: narrow ones of scores for rows that are left alone, wide ones for dirty rows."""
    rng, problem = np.random.default_rng(seed), world.problem
    n, p = problem.table.rows.x.shape
    s, x = problem.s, problem.table.rows.x
    z = Ranges(problem.c - 0.6, problem.c + 0.6, s - 0.02, s + 0.02, ((s - 1.0, s + 1.0),))
    bounds = Dual(problem.table, problem.loss, z, problem.tau)
    a, own = rng.normal(size=(20, p)), np.full(20, -1)
    u, kappa, theta, rho = bounds._search(a, own, 1.0, np.zeros((20, n)))
    lines, _ = bounds.main.lines(u, kappa, rho[0], np.zeros((20, n)), problem.table)
    bounds._largest = lambda budget, gain: gain  # type: ignore[method-assign]
    cost, _ = bounds._cost(problem.table.budgets[0], bounds.by[0], u, kappa, theta, lines, own, 1.0)
    worst = -np.inf
    for _ in range(200):
        model, weight = problem.c + rng.uniform(-0.6, 0.6, p), rng.choice([0.0, 0.3, 0.9, 1.0], n)
        at = x @ model
        share = weight * problem.loss.psi(problem.table.rows.y, at) * (u @ x.T)
        known = (z.by[0][0] <= at) & (at <= z.by[0][1])
        worst = max(worst, float(np.where(known, share - (lines.const + lines.coef @ model + cost), -np.inf).max()))
    return worst


@pytest.mark.parametrize(("loss", "most", "c"), WORLDS)
def test_a_dirty_row_pays_for_its_share_at_any_weight(loss: str, most: int, c: float) -> None:
    assert share_excess(Mixed(loss, most, 0, c)) <= 1e-12


MUTANTS = {f.__name__.strip("_"): f for f in (_one_short, _never_gone, _only_gone, _clean_ranges)}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_rules_are_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    worlds = [Mixed(loss, most, seed, c) for loss, most, c in WORLDS for seed in range(2)]
    if mutant == "one_short":
        assert max(world.excess(world.problem.bounds(world.hull())) for world in worlds) > 1e-6
    else:
        assert max(map(share_excess, worlds)) > 1e-6


def test_a_zonotope_whose_rows_never_go_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Mixed("cross-entropy", 2, 0, 0.3)
    table = world.problem.table
    still = replace(table, budgets=tuple(replace(budget, gone=None) for budget in table.budgets))
    world.problem = replace(world.problem, table=still)
    assert world.excess(zonotope(world)) > 1e-6


def test_lost_rows_that_are_counted_once_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "MOST_PARTS", 1)
    data, threat, model = tiny("cross-entropy", 6), Added(2, {"0": (-2, 2), "1": (-2, 2)}), Fitted(C=0.01)
    bound = threat.bind(data)
    theta = attacked(step_of(bound.clean, model), bound, samples=60, rounds=3)[2]

    def escapes() -> bool:
        run = mc.certify_fit(data, threat, model)
        return not ((run.bounds.lower <= theta) & (theta <= run.bounds.upper)).all()

    assert not escapes()
    original = presence._coming
    monkeypatch.setattr(presence, "_coming", lambda *rest: [replace(b, most=1) for b in original(*rest)])
    assert escapes()


def test_labels_that_keep_their_old_weight_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = tiny("cross-entropy", 4, 9), Fitted("cross-entropy", 0.05, class_weight={1: 3.0})
    monkeypatch.setattr(presence, "_by_label", lambda budget, weights: budget)
    run = mc.certify_fit(data, LabelFlips(1), model, attacked=False)
    members = run.request.members.members(1000)
    assert members is not None
    x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
    step: Any = run.request.plan.steps[0]
    theta = step.train(np.zeros((len(members), 3)), x, y)
    assert not ((run.bounds.lower <= theta) & (theta <= run.bounds.upper)).all()
