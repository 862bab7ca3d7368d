"""Rows that come and go, and weights, in fitted models: enumerated, sampled, attacked, and fitted by scikit-learn."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

import mibp_cert as mc
from fits import REGRESSIONS, attacked, step_of, table
from mibp_cert import Added, Budget, Dataset, Fitted, LabelFlips, LInf, Removed, Shift, Split, TargetNoise, column
from mibp_cert.certify.attack import AttackSettings
from mibp_cert.engines import ENGINES
from mibp_cert.errors import UserError
from mibp_cert.fitted import SCORE_LOSSES, FitStep, dual, presence, ranges
from mibp_cert.fitted import zonotope as zonotope_module
from mibp_cert.fitted.dual import Dual, Ranges
from mibp_cert.fitted.engine import table_problem
from mibp_cert.fitted.minimum import minimise
from mibp_cert.fitted.ranges import prove
from mibp_cert.fitted.zonotope import Zonotope

LOSSES = list(SCORE_LOSSES)
QUICK = AttackSettings(members=10, points=10, parameters=6, rounds=2)
C = {"cross-entropy": 0.1, "squared-error": 0.02, "squared-hinge": 0.005, "huber": 0.02}
DOMAIN: dict[str, Any] = {"age": (30.0, 60.0), "mood": ["bad", "fair"], "income": (2.0, 6.0), "target": (-2.0, 2.0)}
LEAVING: dict[str, Any] = {
    "removed": Removed(2),
    "removed of some rows": Removed(2).where(column("age") >= 50),
    "noise and removed": LInf({"income": 0.2}) & Removed(1),
    "bad rows and removed": Budget(LInf({"income": 2.0}), rows=1) & Removed(1),
    "categories and removed": Shift("mood", by=1).where(column("age") >= 50) & Removed(1),
}
COMING: dict[str, Any] = {
    "added": Added(1, DOMAIN),
    "added twice": Added(1, {**DOMAIN, "mood": ["good"]}) & Added(1, {**DOMAIN, "age": (40.0, 40.0)}),
    "added and removed": Added(1, DOMAIN) & Removed(1),
    "noise and added": LInf({"income": 0.2}) & Added(1, DOMAIN),
}
LABELS = {"flips and removed": LabelFlips(1) & Removed(1), "flips and added": LabelFlips(1) & Added(1, DOMAIN)}
TARGETS = {"targets and removed": TargetNoise(0.3) & Removed(1)}


def usable(threat: Any, loss: str) -> Any:
    """The threat without the target's range, where there are classes."""
    if loss in REGRESSIONS:
        return threat
    parts = threat.inner or (threat,)
    out = [
        replace(p, domain={k: v for k, v in p.domain.items() if k != "target"}) if isinstance(p, Added) else p
        for p in parts
    ]
    return mc.threats.All.of(out)


def threats(loss: str) -> dict[str, Any]:
    found = {**LEAVING, **COMING, **(TARGETS if loss in REGRESSIONS else LABELS)}
    return {name: usable(threat, loss) for name, threat in found.items()}


def by_scikit_learn(model: Fitted, x: Any, y: Any, weights: Any) -> Any:
    """The minimiser that scikit-learn finds, from the rows that are there."""
    on = weights > 0
    if model.loss == "squared-error":
        found: Any = Ridge(alpha=1.0 / model.C, tol=1e-12)
    elif model.loss == "cross-entropy":
        found = LogisticRegression(C=model.C, tol=1e-10, solver="newton-cholesky", max_iter=1000)
    else:
        found = LinearSVC(C=model.C, tol=1e-10, max_iter=100_000, dual=False)
    found.fit(x[on], y[on], sample_weight=weights[on])
    return np.append(np.ravel(found.coef_), found.intercept_)


def check_contained(run: Any, x: Any, y: Any, theta: Any, room: float = 0.0) -> None:
    """Parameters, scores of training rows, and outputs of test rows, for datasets `x`, `y` with these models."""
    z, bound = run.bounds.ranges, run.request.members
    assert (run.bounds.lower - room <= theta).all()
    assert (theta <= run.bounds.upper + room).all()
    step = run.request.plan.steps[0]
    s = np.einsum("mnp,mp->mn", step.design(theta, x), theta)[:, bound.clean.there]
    limited, dirty = bound.unbudgeted(), np.zeros(s.shape, dtype=bool)
    if limited is not None:
        h = limited.clean.hull()
        dirty = ((x < h.x_low) | (x > h.x_high)).any(axis=2) | ((y < h.y_low) | (y > h.y_high)).any(axis=2)
        dirty = dirty[:, bound.clean.there]
    far = room * (2.0 + np.abs(x).sum(axis=2).max())
    assert (dirty | ((z.s_low - far <= s) & (s <= z.s_high + far))).all()
    for budget, (low, high) in zip(run.bounds.problem.table.budgets, z.by, strict=True):
        if (budget.rows >= 0).all() and budget.gone is not None and budget.gone.all():
            gone = y[:, : s.shape[1], -1][:, budget.rows] == 1.0
            mine = (theta @ step.design(theta[0], bound.reference[0]).T)[:, budget.rows]
            assert (~gone | ((low - far <= mine) & (mine <= high + far))).all()
    rows = run.data.tested.x
    out = theta[:, :-1] @ rows.T + theta[:, -1:]
    if run.train.targets is not None:
        found = run.ranges(rows).outputs
        assert (found.low[:, 0] - 1e-9 - far <= out).all()
        assert (out <= found.high[:, 0] + 1e-9 + far).all()
        return
    found = run.certify(rows)
    margins = np.where(found.centre == 1, out, -out)
    assert (found.margin - 1e-9 - far <= margins).all()
    assert (margins <= found.margin_high + 1e-9 + far).all()
    if not room:
        assert ((out[:, found.certified] > 0) == (found.classes[found.certified] == 1)).all()


def split_of(loss: str, rows: int = 10) -> Split:
    train = table(loss, rows)
    return Split("survey", train, test=table(loss, 8, 50, like=train))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exits are not cut, and domains are left in few parts."""
    monkeypatch.setattr(ranges, "CUT_CELLS", 0)
    monkeypatch.setattr(presence, "MOST_PARTS", 8)


PLAIN = ("removed", "noise and removed", "added")
CASES = [(loss, name) for loss in LOSSES for name in threats(loss) if loss == "cross-entropy" or name in PLAIN]
CASES += [("squared-error", name) for name in ("targets and removed", "added and removed")]
CASES += [("squared-hinge", name) for name in LABELS]


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_fits_lie_in_their_bounds(loss: str, name: str) -> None:
    threat, split, model = threats(loss)[name], split_of(loss), Fitted(loss, 0.5 * C[loss])
    run = mc.certify_fit(split, threat, model, attack_settings=QUICK)
    bound: Any = run.request.members
    step = step_of(bound.clean, model)
    x, y, theta = attacked(step, bound, samples=30, rounds=2)
    assert len(np.unique(y[:, :, -1].sum(axis=1))) > 1
    check_contained(run, x, y, theta)
    assert run.attack is not None
    assert ((run.bounds.lower <= run.attack.theta) & (run.attack.theta <= run.bounds.upper)).all()
    if loss not in ("cross-entropy", "squared-error"):
        return
    weights = step.counts(y)
    some = [k for k in range(0, len(x), 11) if len(np.unique(y[k, weights[k] > 0, step.column])) > 1]
    found = np.stack([by_scikit_learn(model, x[k], y[k, :, step.column], weights[k]) for k in some])
    np.testing.assert_allclose(found, theta[some], atol=1e-5)
    check_contained(run, x[some], y[some], found, 1e-5)


# Every dataset --------------------------------------------------------------------------------------------------------


def tiny(loss: str, seed: int = 0, rows: int = 8) -> Dataset:
    """Rows of two columns, in classes that overlap, or with numbers."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, 2)), np.arange(rows) % 2
    if loss in REGRESSIONS:
        return Dataset.regression(x, x[:, 0] + rng.normal(size=rows))
    return Dataset.of(x + (2 * y[:, None] - 1), y)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("most", [1, 2])
def test_every_removal_is_covered(loss: str, most: int) -> None:
    """All single rows, and all pairs; fitted here, and by scikit-learn on the rows that are left."""
    data, model = tiny(loss, most), Fitted(loss, 0.3 if loss == "cross-entropy" else 0.05)
    test = tiny(loss, 7, 12)
    run = mc.certify_fit(Split("tiny", data, test=test), Removed(most), model, attack_settings=QUICK)
    members = run.request.members.members(1000)
    assert members is not None
    assert len(members) == 1 + 8 + (28 if most == 2 else 0)
    x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
    step: Any = run.request.plan.steps[0]
    theta = step.train(np.zeros((len(members), 3)), x, y)
    check_contained(run, x, y, theta)
    assert run.attack is not None
    np.testing.assert_allclose(run.attack.theta[-len(members) :], theta, atol=1e-12)
    reached = (theta.max(axis=0) - theta.min(axis=0)) / (run.bounds.upper - run.bounds.lower)
    assert reached.mean() > (0.8 if most == 1 else 0.55)
    if loss in ("cross-entropy", "squared-error"):
        weights = y[:, :, -2]
        found = [
            by_scikit_learn(model, x[k], y[k, :, step.column], weights[k])
            for k in range(len(x))
            if len(np.unique(y[k, weights[k] > 0, step.column])) > 1
        ]
        np.testing.assert_allclose(np.stack(found), theta, atol=1e-5)


def test_flips_and_removals_of_one_row_are_covered() -> None:
    data, model = tiny("cross-entropy", 3, 7), Fitted(C=0.2)
    run = mc.certify_fit(Split("tiny", data, test=data), LabelFlips(1) & Removed(1), model, attack_settings=QUICK)
    members = run.request.members.members(1000)
    assert members is not None
    assert len(members) == 8 * 8
    x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
    step: Any = run.request.plan.steps[0]
    check_contained(run, x, y, step.train(np.zeros((len(members), 3)), x, y))


@pytest.mark.parametrize("loss", ["cross-entropy", "squared-hinge"])
def test_flips_take_the_weight_of_their_new_class(loss: str) -> None:
    """All single flips, and single removals beside them, where one class weighs three times the other."""
    data, model = tiny(loss, 4, 9), Fitted(loss, 0.05 if loss == "cross-entropy" else 0.005, class_weight={1: 3.0})
    for threat in (LabelFlips(1), LabelFlips(1) & Removed(1)):
        run = mc.certify_fit(Split("tiny", data, test=data), threat, model, attacked=False)
        members = run.request.members.members(1000)
        assert members is not None
        x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
        step: Any = run.request.plan.steps[0]
        theta = step.train(np.zeros((len(members), 3)), x, y)
        assert (run.bounds.lower <= theta).all()
        assert (theta <= run.bounds.upper).all()
        if loss == "cross-entropy":
            weights = np.where(y[:, :, 1] == 1, 3.0, 1.0) * (y[:, :, -2] if y.shape[2] == 4 else 1.0)
            found = np.stack([by_scikit_learn(model, x[k], y[k, :, 1], weights[k]) for k in range(0, len(x), 5)])
            np.testing.assert_allclose(found, theta[::5], atol=1e-5)


def test_what_a_lost_row_may_be_is_tried_on_a_grid() -> None:
    data, model = tiny("cross-entropy", 5), Fitted(C=0.3)
    run = mc.certify_fit(Split("tiny", data, test=data), Added(1, {"0": (-2, 2), "1": (-1, 3)}), model)
    x, y = run.request.members.reference
    grid = [(a, b, label) for a in np.linspace(-2, 2, 9) for b in np.linspace(-1, 3, 9) for label in (0, 1)]
    xs, ys = np.repeat(x[None], len(grid), axis=0), np.repeat(y[None], len(grid), axis=0)
    for k, (a, b, label) in enumerate(grid):
        xs[k, -1], ys[k, -1] = (a, b), [1.0 - label, label, 1.0, 0.0]
        assert run.request.members.contains(xs[k], ys[k])
    step: Any = run.request.plan.steps[0]
    theta = step.train(np.zeros((len(grid), 3)), xs, ys)
    check_contained(run, xs, ys, theta)
    reached = (theta.max(axis=0) - theta.min(axis=0)) / (run.bounds.upper - run.bounds.lower)
    assert reached.mean() > 0.3


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
    for module in (dual, zonotope_module):
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
    lines, _ = bounds.main.lines(u, kappa, rho, np.zeros((20, n)), problem.table)
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


# Weights --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [None, "balanced", {"no": 0.5, "yes": 3.0}])
@pytest.mark.parametrize("seed", range(2))
def test_weights_are_those_of_scikit_learn(seed: int, how: Any) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(40, 3)) * [1.0, 3.0, 0.3], rng.choice([0.0, 0.5, 1.0, 4.0], size=40)
    s = x @ [1.0, -0.5, 2.0] + 0.7 + rng.normal(size=40)
    y = np.where(s > 0, "yes", "no")
    mine = mc.CertifiedLogisticRegression(C=0.7, class_weight=how).fit(x, y, sample_weight=w)
    theirs = LogisticRegression(C=0.7, class_weight=how, tol=1e-12, solver="newton-cholesky").fit(x, y, sample_weight=w)
    np.testing.assert_allclose(mine.coef_, theirs.coef_, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(mine.intercept_, theirs.intercept_, rtol=1e-6, atol=1e-6)
    if how is None:
        ridge, other = mc.CertifiedRidge(2.0).fit(x, s, sample_weight=w), Ridge(2.0).fit(x, s, sample_weight=w)
        np.testing.assert_allclose(ridge.coef_, other.coef_, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(ridge.intercept_, other.intercept_, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_weighted_fits_lie_in_their_bounds(loss: str) -> None:
    """Fixed weights, 0 among them, under noise, budgets and removal."""
    split, model = split_of(loss, 12), Fitted(loss, 0.2 * C[loss])
    w = np.array([0.0, 1.0, 2.0, 0.5, 1.0, 0.0, 1.5, 1.0, 1.0, 0.1, 1.0, 1.0])
    wrong = Budget(TargetNoise(1.0), rows=1) if loss in REGRESSIONS else LabelFlips(1)
    for threat in (LInf({"income": 0.3}), wrong, LInf({"age": 1.0}) & Removed(1)):
        run = mc.certify_fit(split, threat, model, sample_weight=w, attack_settings=QUICK)
        bound, step = run.request.members, run.request.plan.steps[0]
        assert isinstance(step, FitStep)
        x, y, theta = attacked(step, bound, samples=20, rounds=1)
        assert (run.bounds.lower <= theta).all()
        assert (theta <= run.bounds.upper).all()
        clean = mc.certify_fit(split.train.take(np.flatnonzero(w)), None, model, sample_weight=w[w > 0])
        np.testing.assert_allclose(run.theta, clean.theta, atol=1e-9)
        if loss == "squared-error":
            some = range(0, len(x), 9)
            found = np.stack([by_scikit_learn(model, x[k], y[k, :, 0], step.counts(y[k])) for k in some])
            np.testing.assert_allclose(found, theta[::9], atol=1e-6)


def test_a_weight_is_a_number_of_equal_rows() -> None:
    """Removing one row of weight 2 is removing two equal rows of weight 1."""
    data = tiny("cross-entropy", 2)
    twice = data.take(np.array([0, 0, 1, 2, 3, 4, 5, 6, 7]))
    one = mc.certify_fit(data, Removed(1).where([0]), Fitted(C=0.3), sample_weight=[2.0, *np.ones(7)])
    two = mc.certify_fit(twice, Removed(2).where([0, 1]), Fitted(C=0.3))
    np.testing.assert_allclose(one.bounds.lower, two.bounds.lower, atol=2e-2)
    np.testing.assert_allclose(one.bounds.upper, two.bounds.upper, atol=2e-2)


# Features -------------------------------------------------------------------------------------------------------------


def test_rows_come_and_go_behind_frozen_features() -> None:
    data = tiny("cross-entropy", 1, 10)
    model = Fitted(C=0.1, features=mc.RandomFeatures(5, scale=1.0))
    for threat in (Removed(2), Added(1, {"0": (-1, 1), "1": (-1, 1)}), LInf(0.02) & Removed(1)):
        run = mc.certify_fit(Split("tiny", data, test=data), threat, model, attack_settings=QUICK)
        step: Any = run.request.plan.steps[0]
        members = run.request.members.sample(np.random.default_rng(0), 60)
        x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
        theta = step.train(np.broadcast_to(run.theta, (len(x), len(run.theta))), x, y)
        assert ((run.bounds.lower <= theta) & (theta <= run.bounds.upper)).all()


# Words and refusals ---------------------------------------------------------------------------------------------------


def test_threats_of_rows_speak_and_survive_a_file() -> None:
    said = {
        Removed(1): "at most one row should not be there",
        Removed(3).where(column("age") >= 65): "where 'age' >= 65, at most 3 rows should not be there",
        Added(2): "at most 2 rows of any kind may have been lost",
        Added(2, {}): "at most 2 rows may have been lost (whatever is seen in the data)",
        Added(1, {"age": (18, 99), "mood": ["bad", "good"]}): (
            "at most one row may have been lost ('age' from 18 to 99, 'mood' among 'bad', 'good')"
        ),
    }
    for threat, words in said.items():
        assert threat.words() == words
        again = mc.threat_from_json(json.loads(json.dumps(threat.to_json())))
        assert (again.to_json(), again.words()) == (threat.to_json(), words)
    data = table("cross-entropy")
    for threat in (Removed(0), Added(0)):
        assert not threat.changes_rows()
        mc.certify_fit(data, threat, Fitted(C=0.1))


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("threat", [Removed(1), LInf(0.1) & Added(1, {})])
def test_engines_of_steps_refuse_rows_that_come_and_go_by_name(engine: str, threat: Any) -> None:
    name = "Removed" if isinstance(threat, Removed) else "Added"
    with pytest.raises(UserError, match=f"engine '{engine}'.*does not know {name}"):
        mc.certify_training(mc.Network.mlp([2, 2]), tiny("cross-entropy"), threat, engine=engine)


NUMBERS = tiny("squared-error")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d: mc.certify_fit(d, Added(1)), "Added without a domain"),
        (lambda d: mc.certify_fit(d, Added(1, {"0": (1, 0)})), "domain of the column '0' must be a pair"),
        (lambda d: mc.certify_fit(d, Added(1, {"0": "many"})), "domain of the column '0' must be a pair"),
        (lambda d: mc.certify_fit(d, Added(1, {"0": (0, np.inf)})), "domain of the column '0' must be a pair"),
        (lambda d: mc.certify_fit(d, Added(1, {"size": (0, 1)})), "no column 'size'"),
        (lambda d: Added(1, 3), "A domain names columns"),
        (lambda d: Removed(-1), "budget of -1 rows"),
        (lambda d: mc.certify_fit(d, Removed(1) & Removed(1)), "change the presence of row 0"),
        (lambda d: mc.certify_fit(d, Added(1, {}).where([0])), "Lost rows are none of those"),
        (lambda d: mc.certify_fit(d, Budget(Added(1, {}), rows=1)), "Added has a number of rows of its own"),
        (lambda d: mc.certify_fit(d, Budget(Removed(2), rows=1)), "row budget inside a row budget"),
        (lambda d: mc.certify_fit(d, Removed(4)), "no row of the class 0 is left"),
        (lambda d: mc.certify_fit(d, Removed(2) & LabelFlips(2)), "no row of the class 0 is left"),
        (lambda d: mc.certify_fit(NUMBERS, Removed(8), Fitted("huber")), "no row is left"),
        (lambda d: mc.certify_fit(d, mc.Rules(Removed(1) & LInf(1.0), print)), "leave Removed out of their base"),
        (
            lambda d: mc.certify_fit(Split("t", d, test=d), None, test_threat=Removed(1)),
            "Removed is about training data",
        ),
        (
            lambda d: mc.certify_fit(d, LabelFlips(1), Fitted(class_weight="balanced")),
            "'balanced' depends on the labels",
        ),
        (lambda d: mc.certify_fit(d, Removed(1), Fitted(class_weight="balanced")), "'balanced' depends on the labels"),
        (lambda d: mc.certify_fit(d, LabelFlips(), Fitted(C=0.1, class_weight={1: 2})), "write LabelFlips"),
        (lambda d: mc.certify_fit(d, None, Fitted(class_weight={"2": 1})), "class_weight names the class '2'"),
        (lambda d: mc.certify_fit(d, None, Fitted(class_weight={1: -1})), "weight of the class 1 must be"),
        (lambda d: mc.certify_fit(d, None, Fitted(class_weight={1: 0})), "have the same class"),
        (lambda d: Fitted(class_weight="even"), "class_weight must be"),
        (lambda d: Fitted("huber", class_weight={0: 1}), "class_weight is for models of classes"),
        (lambda d: mc.certify_fit(d, sample_weight=[1.0]), "weights have shape"),
        (lambda d: mc.certify_fit(d, sample_weight=[-1.0, *np.ones(7)]), "finite numbers ≥ 0"),
        (lambda d: mc.certify_fit(d, sample_weight=[np.nan, *np.ones(7)]), "finite numbers ≥ 0"),
        (lambda d: mc.certify_fit(d, sample_weight=["a"] * 8), "must be numbers"),
        (lambda d: mc.certify_fit(d, sample_weight=[1, 0] * 4), "have the same class"),
        (lambda d: mc.certify_training(mc.Network.mlp([2, 2]), d.weighted(np.ones(8))), "belong to fitted models"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as found:
        call(tiny("cross-entropy"))
    assert "\n" not in str(found.value)


def test_weights_are_told() -> None:
    data = tiny("cross-entropy")
    plain = mc.certify_fit(data, None, Fitted(class_weight={1: 2}), sample_weight=[0, 2, *np.ones(6)]).to_json()
    assert plain["class_weight"] == {"1": 2.0}
    assert plain["sample_weight"] == {"rows": 7, "sum": 8.0}
    assert plain["data_sha256"] != mc.certify_fit(data).to_json()["data_sha256"]
    assert not {"class_weight", "sample_weight"} & set(mc.certify_fit(data).to_json())


# A long hunt ------------------------------------------------------------------------------------------------------------


def check_random(seed: int) -> None:
    """A random table, model, weights and composition of threats: members sampled, attacked and enumerated."""
    rng = np.random.default_rng(seed)
    loss, n = str(rng.choice(LOSSES)), int(rng.integers(6, 14))
    data = tiny(loss, seed, n)
    if rng.random() < 0.4:
        data = data.weighted(rng.choice([0.0, 0.5, 1.0, 2.0], size=n, p=[0.1, 0.2, 0.5, 0.2]))
    parts: list[Any] = [Removed(int(rng.integers(1, 3)))] if rng.random() < 0.7 else []
    if rng.random() < 0.4 or not parts:
        parts.append(Added(int(rng.integers(1, 3)), {"0": (-1, float(rng.choice([0, 1, 2]))), "1": (-2, 2)}))
    if rng.random() < 0.6:
        parts.append(LInf(float(rng.choice([0.01, 0.1, 0.3]))) if rng.random() < 0.6 else Budget(LInf(0.5), rows=1))
    if rng.random() < 0.4:
        parts.append(TargetNoise(0.3) if loss in REGRESSIONS else LabelFlips(int(rng.integers(1, 3))))
    weights = {1: float(rng.choice([0.3, 3.0]))} if loss not in REGRESSIONS and rng.random() < 0.3 else None
    c = float(rng.choice([0.01, 0.05, 0.2])) * (1.0 if loss == "cross-entropy" else 0.3)
    try:
        run = mc.certify_fit(data, mc.threats.All.of(parts), Fitted(loss, c, class_weight=weights), attacked=False)
    except mc.MibpCertError:
        return  # a sentence, and no bounds
    step: Any = run.request.plan.steps[0]
    bound = run.request.members
    x, y, theta = attacked(step, bound, samples=80, rounds=2, seed=seed)
    every = bound.members(400)
    if every is not None:
        x, y = (np.stack([m[i] for m in every]) for i in (0, 1))
        theta = np.concatenate([theta, step.train(np.zeros((len(x), theta.shape[1])), x, y)])
    assert ((run.bounds.lower <= theta) & (theta <= run.bounds.upper)).all()


@pytest.mark.parametrize("seed", range(4))
def test_random_compositions_lie_in_their_bounds(seed: int) -> None:
    check_random(seed)


@pytest.mark.soundness
@pytest.mark.parametrize("block", range(12))
def test_rows_hunt(block: int) -> None:
    for seed in range(1000 + 25 * block, 1000 + 25 * block + 25):
        check_random(seed)
