"""Hunts for a fitted model outside its bounds: random tables, models and threats; `make soundness` fits 10⁵ of them.

Tables are small and unfriendly: columns of different sizes, constant, collinear or repeated, rows repeated or far out, classes
that a line separates, few rows for many columns. Threats are drawn from the catalogue and combined. Datasets are sampled,
enumerated where they are few, and pushed along adjoints of parameters, scores and margins, again from where they led. Their
minimisers must lie in the ranges of parameters and scores, margins in theirs, and certified classes must not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from drawn import Case
from fits import step_of
from mibp_cert.certify.predict import margin_pairs
from mibp_cert.data import Column, Dataset, Split
from mibp_cert.doors import attack_fit, certify_fit
from mibp_cert.engines import Inputs
from mibp_cert.engines.base import Wanted
from mibp_cert.errors import UserError
from mibp_cert.fitted import SCORE_LOSSES, Fitted, adjoint, dual, known, ranges
from mibp_cert.fitted.engine import DualEngine, FittedSet, table_problem
from mibp_cert.fitted.finite import finite_problem
from mibp_cert.fitted.minimum import minimise
from mibp_cert.questions.properties import Verdict, holds
from mibp_cert.sets import largest_sum
from mibp_cert.threats import L2, LabelFlips, LInf


@pytest.fixture(autouse=True)
def _soon_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time would go into ranges that prove themselves late or never."""
    monkeypatch.setattr(ranges, "ATTEMPTS", 6)
    monkeypatch.setattr("mibp_cert.fitted.problem.CUT_CELLS", 200_000)


# What is fitted -------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What a hunt came to."""

    cases: Counter[str] = field(default_factory=Counter)
    fits: int = 0
    rough: int = 0
    """Fits that stopped early, and say nothing."""
    other: int = 0
    """Fits by scikit-learn."""


@dataclass(frozen=True, eq=False)
class Fits:
    """Datasets of a threat, their rows as the model sees them, and their minimisers."""

    x: Any
    y: Any
    rows: Any
    theta: Any
    rough: Any
    """Where a Newton step would still move more than rounding does."""

    @classmethod
    def of(cls, step: Any, start: Any, members: list[tuple[Any, Any]]) -> Fits:
        x, y = (np.stack([m[i] for m in members]) for i in (0, 1))
        theta = step.train(np.broadcast_to(start, (len(x), len(start))), x, y)
        rows, own, alpha = (
            step.design(theta, x),
            theta[:, len(start) - step.fitted :],
            step.model.alpha(step.head.inputs),
        )
        s, target = np.einsum("knp,kp->kn", rows, own), y[..., step.column]
        slope = step.loss.slope(target, s)
        gradient = np.einsum("knp,kn->kp", rows, step.loss.psi(target, s)) + alpha * own
        curvature = np.swapaxes(rows * slope[..., None], 1, 2) @ rows + np.diag(alpha)
        unit = np.sqrt(np.maximum(np.diagonal(curvature, axis1=1, axis2=2), 1e-30))
        scaled = curvature / (unit[:, :, None] * unit[:, None, :]) + 1e-13 * np.eye(len(alpha))
        newton = np.linalg.solve(scaled, (gradient / unit)[..., None])[..., 0] / unit
        # Where the intercept of a Huber fit is not unique there is no curvature; no gradient says as much.
        whole = np.einsum("knp,kn->kp", np.abs(rows), np.abs(step.loss.psi(target, s))) + np.abs(alpha * own)
        steep = (np.abs(gradient) > 1e-15 * whole).any(axis=1)
        far = steep & (np.abs(newton).max(axis=1) > 1e-10 * (1e-3 + np.abs(own).max(axis=1)))
        return cls(x, y, rows, own, far | ~np.isfinite(own).all(axis=1))


def hunted(case: Case, step: Any, start: Any, bound: Any, rounds: int = 3) -> Fits:
    """Datasets as handed in, sampled, enumerated, and pushed along adjoints, which follow every query to where it leads."""
    rng, fits = case.rng, Fits.of(step, start, [bound.reference])
    found = [*bound.sample(rng, 40), *(bound.members(150) or [])]
    picked = rng.permutation(len(case.data))[:6]
    rows = np.concatenate([fits.rows[0, picked], step.design(start, case.test)])
    eye = np.eye(step.fitted)
    a = np.concatenate([eye, -eye, rows, -rows])
    x, y, theta = (np.repeat(part, len(a), axis=0) for part in (fits.x, fits.y, fits.theta))
    frozen = np.broadcast_to(start[: len(start) - step.fitted], (len(a), len(start) - step.fitted))
    for _ in range(rounds if bound.noise().symbols else 0):
        pushed = adjoint(step, bound.noise(), a, x, y, np.concatenate([frozen, theta], axis=1))
        found += [bound.worst(g) for g in pushed]
        last = Fits.of(step, start, found[-len(a) :])
        x, y, theta = last.x, last.y, np.where(np.isfinite(last.theta), last.theta, theta)
    found = [bound.reference, *found]
    assert all(bound.contains(*found[k]) for k in rng.integers(0, len(found), 8))
    return Fits.of(step, start, found)


def outside(values: Any, low: Any, high: Any, rough: Any) -> float:
    """By how much the worst value (fits × …) leaves its range, relative to its size; NaN is outside, rough fits are not."""
    with np.errstate(invalid="ignore"):
        by = np.maximum(low - values, values - high) / (1.0 + np.abs(values))
    by = np.where(np.isnan(by), np.inf, by).reshape(len(values), -1).max(axis=1, initial=-np.inf)
    return float(by[~rough].max(initial=-np.inf))


def dirty_rows(bound: Any, fits: Fits) -> Any:
    """Rows that a budget was spent on (fits × rows)."""
    limited = bound.unbudgeted()
    if limited is None:
        return np.zeros(fits.x.shape[:2], dtype=bool)
    h = limited.clean.hull()
    x, y = (fits.x < h.x_low) | (fits.x > h.x_high), (fits.y < h.y_low) | (fits.y > h.y_high)
    return x.any(axis=2) | y.any(axis=2)


def answered(case: Case, state: FittedSet) -> Any:
    """Margins (or outputs) of the test rows as the engine bounds them, with open ones refuted where that works."""
    network, engine = case.model.network(case.data), DualEngine()
    if case.data.targets is not None:
        return engine.bound(network.forward_graph, network.layout, state, Inputs(case.test))[0]
    pairs, wanted = margin_pairs(network)[0], Wanted(None, lambda least: least > 0)
    return engine.bound(lambda n: network.margin_graph(n, pairs), network.layout, state, Inputs(case.test), wanted)[0]


def by_scikit_learn(model: Fitted, rows: Any, y: Any) -> Any:
    """The minimiser that scikit-learn finds, where it has this model; the rows without their 1."""
    how: dict[str, Any] = {"fit_intercept": model.fit_intercept}
    found: Any = LinearSVC(C=model.C, tol=1e-12, max_iter=200_000, dual=False, **how)
    if model.loss == "squared-error":
        found = Ridge(alpha=1.0 / model.C, solver="svd", **how)
    elif model.loss == "cross-entropy":
        found = LogisticRegression(C=model.C, tol=1e-12, solver="newton-cholesky", max_iter=1000, **how)
    found.fit(rows[:, :-1] if model.fit_intercept else rows, y)
    theta = np.ravel(found.coef_)
    return np.append(theta, found.intercept_) if model.fit_intercept else theta


def comparable(model: Fitted) -> bool:
    """Does scikit-learn have it?"""
    penalised = model.penalise_intercept and model.fit_intercept
    if model.loss == "squared-hinge":
        return penalised or not model.fit_intercept
    return model.loss != "huber" and not penalised


def hunt(seed: int, tally: Tally, *, compare: int) -> None:
    """One case: the ranges proven, and every fit held against them."""
    case = Case.of(seed)
    try:
        bound = case.threat.bind(case.data)
    except UserError as refused:
        tally.cases[f"refused: {refused}"[:60]] += 1
        return
    step, start = step_of(case.data, case.model), case.model.start(case.data)
    frozen = start[: len(start) - step.fitted]
    with np.errstate(over="ignore", invalid="ignore"):
        problem, few = table_problem(step, bound, frozen), finite_problem(step, bound, frozen)
        z = ranges.Search(problem).cut() if case.cut else ranges.prove(problem)
    if z is None and few is None:
        tally.cases["unproven"] += 1
        return
    fits = hunted(case, step, start, bound)
    tally.fits += len(fits.theta)
    tally.rough += int(fits.rough.sum())
    said = f"seed {seed}: {case.threat.to_json()} {case.model}"
    if z is not None:
        tally.cases["proven"] += 1
        check(case, step, start, FittedSet.of(problem, z, frozen), fits, said)
        wrong = check_scores(problem, z, fits, dirty_rows(bound, fits))
        assert not wrong, f"{wrong} in {said}"
    if few is not None:
        tally.cases["enumerated"] += 1
        z = few.ranges()
        check(case, step, start, FittedSet.of(few, z, frozen), fits, said)
    for k in case.rng.integers(0, len(fits.theta), compare if comparable(case.model) else 0):
        target = fits.y[k, :, step.column]
        if not fits.rough[k] and (case.data.targets is not None or target.min() < target.max()):
            other = by_scikit_learn(case.model, fits.rows[k], target)
            tally.other += 1
            size = 1e-5 * (1e-2 + np.abs(other).max())
            by = outside(other[None], z.low - size, z.high + size, np.zeros(1, dtype=bool))
            assert by <= 0.0, f"scikit-learn's model in {said}"


def check(case: Case, step: Any, start: Any, state: FittedSet, fits: Fits, said: str) -> None:
    """Parameters, outputs, and classes of every fit."""
    z, ends = state.ranges, answered(case, state)
    signs = np.array([1.0]) if case.data.targets is not None else np.array([-1.0, 1.0])
    values = (fits.theta @ step.design(start, case.test).T)[..., None] * signs
    found = {
        "parameters": outside(fits.theta, z.low, z.high, fits.rough),
        "outputs": outside(values, ends.low, ends.high, fits.rough),
    }
    wrong = {name: by for name, by in found.items() if not by <= 1e-9}
    assert not wrong, f"{wrong} in {said}"
    if case.data.targets is None:
        sure = (ends.low > 0) & (np.abs(values[0]) > 1e-9)
        assert (values[~fits.rough][:, sure] > 0).all(), f"a certified class changes in {said}"


def check_scores(problem: Any, z: Any, fits: Fits, dirty: Any) -> dict[str, float]:
    """Scores of rows that no budget was spent on, and of those that one was."""
    s = np.einsum("knp,kp->kn", fits.rows, fits.theta)
    found = {"scores": outside(np.where(dirty, 0.5 * (z.s_low + z.s_high), s), z.s_low, z.s_high, fits.rough)}
    if len(problem.table.budgets) == 1:
        ((low, high),), rows = z.by, problem.table.budgets[0].rows
        replaced = np.where(dirty[:, rows], s[:, rows], 0.5 * (low + high))
        found["replaced rows"] = outside(replaced, low, high, fits.rough)
    return {name: by for name, by in found.items() if not by <= 1e-9}


def hunts(seeds: Iterable[int], *, compare: int = 1) -> Tally:
    tally = Tally()
    for seed in seeds:
        hunt(seed, tally, compare=compare)
    return tally


QUICK = (1, 5, 6, 7, 8, 11, 13, 14, 15, 17, 18, 21, 22, 23, 24, 29, 31, 32, 40, 46, 47, 49)
"""Seeds whose ranges are proven in a fraction of a second."""


def test_no_fitted_model_leaves_its_bounds() -> None:
    tally = hunts(QUICK)
    assert tally.cases["proven"] > 0.8 * len(QUICK)
    assert tally.cases["enumerated"] > 0
    assert tally.fits > 2000
    assert tally.rough < 0.01 * tally.fits
    assert tally.other > 5


@pytest.mark.soundness
@pytest.mark.parametrize("block", range(25))
def test_no_fitted_model_leaves_its_bounds_however_long_one_looks(block: int) -> None:
    """More than 10⁵ fits in all blocks together."""
    tally = hunts(range(1000 + 80 * block, 1080 + 80 * block))
    assert tally.fits > 4000
    assert tally.rough < 0.02 * tally.fits


def _one_short(values: Any, most: int) -> Any:
    return largest_sum(values, most - 1)


def _no_chord(middle: Any, radius: Any, rho: Any, rooms: Any = None) -> Any:
    return 0.0 * middle


def _on_clean_ranges(self: Any, table: Any, loss: Any, z: Any, *rest: Any) -> None:
    by = tuple((z.s_low[budget.rows], z.s_high[budget.rows]) for budget in table.budgets)
    MADE(self, table, loss, replace(z, by=by), *rest)


MADE = dual.Dual.__init__
MUTATIONS: dict[str, tuple[Any, str, Any]] = {
    "a budget one short": (dual, "largest_sum", _one_short),
    "a chord forgotten": (known, "_gap", _no_chord),
    "replaced rows judged on clean ranges": (dual.Dual, "__init__", _on_clean_ranges),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_rule_is_hunted_down(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTATIONS[name])
    with pytest.raises(AssertionError, match="seed"):
        hunts(QUICK, compare=0)


# What hunts have found ------------------------------------------------------------------------------------------------


def test_a_large_mean_of_the_targets_does_not_drown_the_coefficients_of_a_condition() -> None:
    """`out ≤ c` is judged in the units of the target, `1e10 + a·θ` with `a` of 1e-6: read off naively, `a` was all rounding."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2)) * 1e-6
    data = Dataset.regression(x, x @ [1e6, -2e6] + 0.1 * rng.normal(size=30))
    data = replace(data, target=Column("t", 0, 1, None, scale=1.0, shift=1e10))
    run = certify_fit(data, LInf(1e-9), Fitted("squared-error", C=1e12), attacked=False)
    (least,), (most,) = run.ranges(x[:1]).outputs.low.tolist(), run.ranges(x[:1]).outputs.high.tolist()
    assert most[0] - least[0] < 0.01
    assert holds(run, lambda m: m.out(0, 0) <= least[0], x[:1]) is not Verdict.HOLDS
    assert holds(run, lambda m: m.out(0, 0) >= most[0], x[:1]) is not Verdict.HOLDS
    assert holds(run, lambda m: m.out(0, 0) <= most[0] + 100.0, x[:1]) is Verdict.HOLDS


def test_a_flipped_row_that_leaves_its_clean_range_is_no_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the assumption of an exit no score was left for row 0 as handed in: the flip is spent on it, which is no proof."""
    monkeypatch.setattr(ranges, "HOPE", np.inf)
    monkeypatch.setattr(ranges, "CUT_FIRST", 1.8)
    monkeypatch.setattr(ranges, "ATTEMPTS", 24)  # six are enough or not by the last bits of a matrix product
    rows = [[0.51, 73, -4.3, -0.037], [6.7, -55, 3.0, 0.052], [0.35, 42, 0.84, 0.064], [-1.8, -30, 3.1, 0.028],
            [2.2, -2.7, -2.8, 0.029], [3.5, -45, -1.0, 0.00096], [-0.15, 1.6, 4.6, 0.046], [-3.7, -16, 4.1, -0.06],
            [-0.26, 2.6, 2.5, -0.0073], [0.57, -52, -1.1, 0.069]]  # fmt: skip
    data, model = Dataset.of(np.array(rows), np.array([1, 1, 0, 0, 1, 1, 0, 0, 0, 1])), Fitted(C=0.033)
    step, start, bound = step_of(data, model), model.start(data), LabelFlips(1).bind(data)
    z = ranges.Search(table_problem(step, bound, start[:0])).cut()
    members = bound.members(100)
    assert z is not None
    assert members is not None
    fits = Fits.of(step, start, members)
    assert not fits.rough.any()
    assert outside(fits.theta, z.low, z.high, fits.rough) <= 0.0


def slopes(x: Any, y: Any, alpha: Any, loss: str, theta: Any) -> Any:
    """Largest entry of the gradient at computed minimisers, relative to its terms."""
    psi = SCORE_LOSSES[loss].psi(y, np.einsum("knp,kp->kn", x, theta))
    whole = np.einsum("knp,kn->kp", np.abs(x), np.abs(psi)) + np.abs(alpha * theta)
    return (np.abs(np.einsum("knp,kn->kp", x, psi) + alpha * theta) / whole).max()


def test_huber_is_fitted_where_all_targets_are_far_away() -> None:
    """All rows beyond a kink have no curvature: steps of 10¹² were halved forty times, given up, and zero was handed back."""
    rng, alpha = np.random.default_rng(0), np.array([0.5, 0.5, 0.0])
    x = np.concatenate([rng.normal(size=(12, 9, 2)) * 3.0, np.ones((12, 9, 1))], axis=2)
    for size in (10.0, 1e4):
        y = 3.0 * size + rng.normal(size=(12, 9)) * size
        theta = minimise(x, y, np.ones(9), alpha, SCORE_LOSSES["huber"])
        assert slopes(x, y, alpha, "huber", theta) < 1e-9
        assert minimise(x[0], y[0], np.ones(9), alpha, SCORE_LOSSES["huber"]).shape == (3,)


def test_logistic_fits_of_separated_classes_are_exact() -> None:
    """A loss of 10⁻² that is the difference of two scores of 20 let steps end at half of the digits: off by 3e-8, the attack
    called bounds of that width unsound."""
    rng, alpha = np.random.default_rng(0), np.array([1e-4, 0.0])
    x = np.stack([rng.normal(size=(300, 7)), np.ones((300, 7))], axis=2)
    y = (x[..., 0] < np.sort(x[..., 0], axis=1)[:, 3:4]).astype(float)
    theta = minimise(x, y, np.ones(7), alpha, SCORE_LOSSES["cross-entropy"])
    assert slopes(x, y, alpha, "cross-entropy", theta) < 1e-11


def test_a_penalty_that_overflows_is_refused() -> None:
    with pytest.raises(UserError, match=r"^C must be a finite number > 0, and 1/C finite, got 1e-320"):
        Fitted(C=1e-320)


def test_an_attack_on_columns_whose_curvature_drowns_the_penalty_ends() -> None:
    """Two rows of four are beyond the kink: with columns of 10⁷ nothing was left of α, and the adjoint's matrix was singular."""
    data = Dataset.of([[-5e7, -4e5], [7e6, -8e7], [-5e7, -3e7], [-3e7, -6e7]], [1, 0, 1, 1])
    _, clean, found = attack_fit(Split("large", data, test=data), L2(1.0), Fitted("squared-hinge", C=368.0))
    assert np.isfinite(found.theta).all()
    assert np.abs(found.theta - clean).max() < 1e-6
