"""Fitted models inside: losses, minimisers, tables, bounds under known ranges, and wrong rules that are noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from fits import World, attacked, step_of, table, threats
from mibp_cert.engines.base import Box
from mibp_cert.fitted import SCORE_LOSSES, DualEngine, Fitted, FittedSet, dual, engine, known, ranges, zonotope
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.known import Known
from mibp_cert.fitted.losses import HuberScore, ScoreLoss, SquaredHinge
from mibp_cert.fitted.minimum import minimise, tilt
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.ranges import prove
from mibp_cert.fitted.table import table_of
from mibp_cert.fitted.zonotope import Zonotope
from mibp_cert.threats import LInf, Nothing

LOSSES = list(SCORE_LOSSES)
DIGITS = 60


def targets(loss: str, rng: np.random.Generator, size: Any) -> Any:
    if loss in ("squared-error", "huber"):
        return rng.normal(size=size) * rng.choice([1e-3, 1.0, 50.0], size=size)
    return rng.random(size) if loss == "cross-entropy" else rng.integers(0, 2, size).astype(float)


def kinks(loss: str, y: float) -> list[float]:
    return {"squared-hinge": [2.0 * y - 1.0], "huber": [y - 1.35, y + 1.35]}.get(loss, [0.0])


# Losses ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_extremes_of_a_line_below_psi_are_those_of_a_dense_grid(name: str) -> None:
    """`highest` and `lowest` are never inside the true extremes, and equal to them; kinks and ends at kinks included."""
    loss, rng = SCORE_LOSSES[name], np.random.default_rng(0)
    for _ in range(150):
        y = float(targets(name, rng, 1)[0])
        low, high = np.sort(rng.normal(size=2) * rng.choice([1e-3, 1.0, 20.0]) + rng.choice([0.0, y]))
        if rng.random() < 0.3:
            low, high = (float(rng.choice(kinks(name, y))), high) if rng.random() < 0.5 else (low, kinks(name, y)[0])
            low, high = min(low, high), max(low, high)
        kappa = float(rng.choice([0.0, rng.uniform(0, loss.steepest), loss.steepest, 2.0 * loss.steepest, -0.1]))
        flat = [np.log1p(q) - np.log1p(-q) for q in [np.sqrt(max(0.0, 1.0 - 4.0 * kappa))] if 0 < q < 1]
        special = [k for k in (*kinks(name, y), *flat, *(-f for f in flat)) if low <= k <= high]
        s = np.concatenate([np.linspace(low, high, 2001), special])
        value = loss.psi(np.array(y), s) - kappa * s
        ends = [
            f(np.array([y]), np.array([low]), np.array([high]), np.array([kappa]))[0]
            for f in (loss.lowest, loss.highest)
        ]
        size = 1.0 + np.abs(s).max() * (1.0 + abs(kappa)) + abs(y)
        assert ends[0] <= value.min()
        assert value.max() <= ends[1]
        assert value.min() - ends[0] <= 1e-9 * size
        assert ends[1] - value.max() <= 1e-9 * size


@pytest.mark.parametrize("name", LOSSES)
def test_psi_is_the_derivative_and_mirrors_itself(name: str) -> None:
    loss, rng = SCORE_LOSSES[name], np.random.default_rng(1)
    y, s = targets(name, rng, 400), rng.normal(size=400) * 3.0
    h = 1e-5
    np.testing.assert_allclose((loss.value(y, s + h) - loss.value(y, s - h)) / (2 * h), loss.psi(y, s), atol=1e-4)
    np.testing.assert_allclose(-loss.psi(y, -s), loss.psi(loss.mirrored(y), s), rtol=0, atol=1e-12)
    assert (loss.slope(y, s) <= loss.steepest).all()
    assert (loss.psi(y, s + 0.1) >= loss.psi(y, s)).all()
    if name == "cross-entropy":
        with mpmath.workdps(DIGITS):
            exact = [
                float(1 / (1 + mpmath.exp(-mpmath.mpf(v))) - mpmath.mpf(t)) for v, t in zip(50 * s, y, strict=True)
            ]
        assert (np.abs(loss.psi(y, 50 * s) - exact) <= 8 * np.finfo(float).eps * loss.size(y, 50 * s)).all()


@pytest.mark.parametrize("name", LOSSES)
def test_envelopes_are_the_hull_of_psi(name: str) -> None:
    """Concave above, convex below, never on the wrong side, touching `ψ` at both ends."""
    loss, rng = SCORE_LOSSES[name], np.random.default_rng(2)
    rows = table_of(_no_noise(6), 0, np.ones(6), np.ones(2)).rows
    y, low = targets(name, rng, 6), rng.normal(size=6) * 3 - 1.0
    high = low + rng.uniform(0.5, 6.0, 6)
    known = Known(loss, replace(rows, y=y), low, high, Ranges(np.zeros(2), np.ones(2), low, high))
    s = np.linspace(low, high, 401)
    psi = loss.psi(y, s)
    for up, sign in ((True, 1.0), (False, -1.0)):
        value, slope = known.envelope(np.array(up), s)
        room = 1e-3 * (1.0 + np.abs(psi).max(axis=0))
        assert (sign * (value - psi) >= -room).all()
        np.testing.assert_allclose(value[[0, -1]], psi[[0, -1]], atol=float(room.max()))
        assert (sign * np.diff(slope, axis=0) <= 1e-6).all()


def _no_noise(rows: int) -> Any:
    data = table("squared-error", rows)
    noise = Nothing().bind(data).noise()
    return replace(noise, x_centre=noise.x_centre[:, :2], x_linear=noise.x_linear[: rows * 2])


# Minimisers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("c", [0.01, 1.0, 100.0])
def test_minimisers_are_those_of_scikit_learn(c: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3)) * [1.0, 3.0, 0.3]
    score = x @ [1.0, -0.5, 2.0] + 0.5 + rng.normal(size=40)
    y, design = (score > 0).astype(float), np.column_stack([x, np.ones(40)])
    found = {
        "cross-entropy": LogisticRegression(C=c, tol=1e-10, solver="newton-cholesky", max_iter=1000).fit(x, y),
        "squared-error": Ridge(alpha=1.0 / c).fit(x, score),
        "squared-hinge": LinearSVC(C=c, tol=1e-10, max_iter=200_000, dual=False).fit(x, y),
    }
    for name, model in found.items():
        ours = Fitted(name, c, penalise_intercept=name == "squared-hinge")
        target = score if name == "squared-error" else y
        theta = minimise(design, target, np.ones(40), ours.alpha(3), ours_loss(ours))
        other = np.append(np.ravel(model.coef_), model.intercept_)
        np.testing.assert_allclose(theta, other, rtol=1e-6, atol=1e-6)


def ours_loss(model: Fitted) -> ScoreLoss:
    return SCORE_LOSSES[model.loss]


def exact_gradient(x: Any, y: Any, alpha: Any, loss: str, theta: Any) -> list[Any]:
    """`∇L` to 60 digits, from the definitions."""
    with mpmath.workdps(DIGITS):
        m = mpmath.mpf
        total = [m(a) * m(t) for a, t in zip(alpha.tolist(), theta.tolist(), strict=True)]
        for row, target in zip(x.tolist(), y.tolist(), strict=True):
            s, t = mpmath.fsum(m(a) * m(b) for a, b in zip(row, theta.tolist(), strict=True)), m(target)
            z = 2 * t - 1
            psi = {
                "cross-entropy": lambda s=s, t=t: 1 / (1 + mpmath.exp(-s)) - t,
                "squared-error": lambda s=s, t=t: s - t,
                "squared-hinge": lambda s=s, z=z: -2 * z * max(m(0), 1 - z * s),
                "huber": lambda s=s, t=t: min(m(1.35), max(-m(1.35), s - t)),
            }[loss]()
            total = [have + psi * m(a) for have, a in zip(total, row, strict=True)]
        return total


@pytest.mark.parametrize("name", LOSSES)
def test_the_tilt_covers_the_exact_gradient(name: str) -> None:
    """Also far from the minimum, with columns of very different sizes, and where terms cancel."""
    loss, rng = SCORE_LOSSES[name], np.random.default_rng(3)
    for scale in (1.0, 1e4, 1e-6):
        x = np.column_stack([rng.normal(size=(12, 2)) * [scale, 1.0], np.ones(12)])
        y, alpha = targets(name, rng, 12), np.array([1.0, 0.1, 0.0])
        best = minimise(x, y, np.ones(12), alpha, loss)
        for theta in (best, best + rng.normal(size=3) * 1e-9, rng.normal(size=3) * 10):
            bound = tilt(x, y, np.ones(12), alpha, loss, theta)
            exact = exact_gradient(x, y, alpha, name, theta)
            assert all(abs(g) <= mpmath.mpf(t) for g, t in zip(exact, bound.tolist(), strict=True))


# Tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", threats("cross-entropy"))
def test_rows_hold_every_dataset(name: str) -> None:
    """Cells, targets and `d·θ` of sampled and attacked datasets lie within what the table says of rows and alternatives."""
    data = table("cross-entropy", missing=name.startswith("missing"))
    threat = threats("cross-entropy")[name]
    world = World.of(Fitted(C=0.5), threat, data)
    found, bound = world.problem.table, threat.bind(data)
    x, y, _ = attacked(world.step, bound)
    design = world.step.design(world.theta, x)
    theta = np.random.default_rng(0).normal(size=design.shape[-1])
    allowed = [(slice(None), found.rows, found.reach_of(np.abs(theta)), ~world.dirty)]
    for budget in found.budgets:
        assert (world.dirty.sum(axis=1) <= sum(b.most for b in found.budgets)).all()
        allowed.append((budget.rows, budget.by, budget.by.reach_of(np.abs(theta)[None])[0], world.dirty))
    for of, rows, reach, used in allowed:
        moved = np.abs((design[:, of] - rows.x) @ theta)
        assert (np.where(used[:, of], moved, 0.0) <= reach + 1e-12).all()
        assert (np.where(used[:, of], np.abs(y[:, of, 1] - rows.y), 0.0) <= rows.q).all()


# Bounds under ranges that hold ----------------------------------------------------------------------------------------

CASES = [(loss, name) for loss in LOSSES for name in threats(loss)]


def world_of(loss: str, name: str, seed: int = 0, c: float = 1.0, **how: Any) -> World:
    return World.of(
        Fitted(loss, c), threats(loss)[name], table(loss, seed=seed, missing=name.startswith("missing")), **how
    )


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_bounds_hold_under_the_smallest_ranges_that_hold(loss: str, name: str) -> None:
    """Whatever holds for some datasets of the threat, the bounds computed under it hold for them, too: with the ranges of
    really fitted models, which are smaller than any that could be proven. So do those of the zonotope; and what a model
    reaches is not refuted."""
    world = world_of(loss, name, samples=20, rounds=1)
    problem, z = world.problem, world.hull()
    room = 1e-10 * (1.0 + np.abs(world.s).max())
    assert world.excess(problem.bounds(z)) <= room
    assert world.excess(Zonotope(problem.table, problem.loss, z, problem.tau).bounds()) <= room
    a = np.eye(len(z.low))[0]
    at = int(world.theta[:, 0].argmax())
    assert problem.reaches(problem.around(z), a, float(world.theta[at, 0]) - room)
    assert problem.reaches(problem.around(z), -a, -float(world.theta[:, 0].min()) - room)
    clean = np.where(world.dirty, -np.inf, world.s)
    i = int(clean.max(axis=0).argmax())
    assert problem.reaches(problem.around(z), problem.table.rows.x[i], float(clean[:, i].max()) - room, i)


def test_the_zonotope_holds_under_an_assumption() -> None:
    """Models that satisfy `a·θ ≥ v` stay in the ranges that are shrunk under it."""
    for loss, name in (
        ("cross-entropy", "linf"),
        ("huber", "l1"),
        ("squared-hinge", "labels"),
        ("squared-error", "targets"),
    ):
        world = world_of(loss, name, samples=40)
        problem, z = world.problem, world.hull()
        for a in (np.eye(len(z.low))[0], -problem.table.rows.x[0]):
            v = float(np.quantile(world.theta @ a, 0.8))
            chosen = world.theta @ a >= v
            part = replace(world, theta=world.theta[chosen], s=world.s[chosen], dirty=world.dirty[chosen])
            found = Zonotope(problem.table, problem.loss, z, problem.tau).bounds(a, v)
            assert part.excess(found) <= 1e-10 * (1.0 + np.abs(world.s).max())


def test_the_zonotope_rounds_outward_where_sums_cancel() -> None:
    """Queries that are nearly opposite to the assumption: `h(b + νa) − νv`, evaluated exactly for the `ν` that were tried."""
    world, rng = world_of("squared-error", "linf", samples=2, rounds=0), np.random.default_rng(0)
    problem = world.problem
    found = Zonotope(problem.table, problem.loss, world.hull(), problem.tau)

    def exact(part: Any) -> Any:
        return np.vectorize(Fraction, otypes=[object])(part)

    g, c = exact(found.g), exact(found.c)
    for _ in range(20):
        b = rng.normal(size=(1, len(problem.c)))
        a = -b[0] / 3.0 * (1.0 + 1e-14 * rng.normal(size=len(problem.c)))
        zero = np.zeros((1, len(found.g)))
        up = found._upper(b, zero, np.zeros(1), a, 0.0, 0.0)[0]
        guess = zonotope._median(b @ found.g.T, found.g @ a, float(a @ found.c), 0.0)[0]
        at = [exact(b[0]) + Fraction(share * guess) * exact(a) for share in zonotope.SHARES]
        assert Fraction(up) >= min(q @ c + np.abs(g @ q).sum() for q in at)


# Proofs ---------------------------------------------------------------------------------------------------------------


def advanced(loss: str, threat: Any, data: Any, c: float = 0.1) -> tuple[Any, FittedSet]:
    step = step_of(data, Fitted(loss, c))
    state, _ = DualEngine().advance(Box.point(np.zeros(step.layout.size)), step, threat.bind(data))
    assert isinstance(state, FittedSet)
    return step, state


@pytest.mark.parametrize("name", LOSSES)
def test_bounds_that_only_repeat_the_hypothesis_prove_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strictness: a computed range must lie inside of the assumed one, not on it."""
    world = world_of(name, "linf", c=0.1, samples=2, rounds=0)
    assert prove(world.problem) is not None
    monkeypatch.setattr(Problem, "bounds", lambda self, z, rounds=2: z)
    monkeypatch.setattr(Problem, "reaches", lambda self, *args: True)
    monkeypatch.setattr(ranges, "last_resort", lambda problem: None)
    assert prove(world.problem) is None


@pytest.mark.parametrize("name", ["monotone", "missing", "one-sided budget"])
def test_proofs_start_inside_of_their_ranges(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise to one side: its middle is not the data as handed in, whose minimiser is the one that is known."""
    seen = []
    original = Problem.bounds

    def bounds(self: Any, ranges: Ranges, rounds: int = 2) -> Ranges:
        if rounds == 2:
            seen.append(ranges)
        return original(self, ranges, rounds)

    monkeypatch.setattr(Problem, "bounds", bounds)
    world = world_of("cross-entropy", name, c=0.05, samples=0, rounds=0)
    prove(world.problem)
    assert seen
    for z in seen:
        inside = (z.low < world.problem.c) & (world.problem.c < z.high)
        assert inside.all()
        assert ((z.s_low < world.s[0]) & (world.s[0] < z.s_high)).all()
        for budget, (low, high) in zip(world.problem.table.budgets, z.by, strict=True):
            assert ((low < world.s[0, budget.rows]) & (world.s[0, budget.rows] < high)).all()


# Mutants --------------------------------------------------------------------------------------------------------------


def _escapes(loss: str, name: str, seeds: int = 3) -> bool:
    """Does a fitted model leave bounds that were computed under ranges which hold for it?"""
    for seed in range(seeds):
        world = world_of(loss, name, seed, samples=20, rounds=1)
        # With the slopes that the search finds, and with plain secants, whose extremes lie at kinks.
        if any(world.excess(world.problem.bounds(world.hull(), rounds)) > 1e-9 for rounds in (0, 2)):
            return True
    return False


def _wrong_sign(patch: pytest.MonkeyPatch) -> None:
    original = Known.worst
    patch.setattr(Known, "worst", lambda self, rho, *rooms: original(self, tuple(-part for part in rho), *rooms))


def _no_gap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(known, "_gap", lambda middle, radius, rho, rooms=None: 0.0 * middle)


def _no_kink(patch: pytest.MonkeyPatch) -> None:
    for kind in (HuberScore, SquaredHinge):
        patch.setattr(kind, "flat", lambda self, y, kappa: np.full(np.broadcast_shapes(y.shape, kappa.shape), -1e9))


def _one_short(patch: pytest.MonkeyPatch) -> None:
    original = dual.largest_sum
    patch.setattr(dual, "largest_sum", lambda values, most: original(values, most - 1))


def _clean_ranges(patch: pytest.MonkeyPatch) -> None:
    original = Dual.__init__

    def init(self: Any, table: Any, loss: Any, ranges: Ranges, *rest: Any) -> None:
        by = tuple((ranges.s_low[budget.rows], ranges.s_high[budget.rows]) for budget in table.budgets)
        original(self, table, loss, replace(ranges, by=by), *rest)

    patch.setattr(Dual, "__init__", init)


def _not_own(patch: pytest.MonkeyPatch) -> None:
    original = Dual.upper
    patch.setattr(Dual, "upper", lambda self, a, own=None, sign=1.0: original(self, a))


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "sign of rho": (_wrong_sign, "squared-error", "linf"),
    "no gamma": (_no_gap, "cross-entropy", "linf"),
    "no kink, huber": (_no_kink, "huber", "targets"),
    "no kink, hinge": (_no_kink, "squared-hinge", "noise and a bad row"),
    "budget one short": (_one_short, "cross-entropy", "labels"),
    "budget of rows one short": (_one_short, "cross-entropy", "budget of rows"),
    "alternatives on clean ranges": (_clean_ranges, "cross-entropy", "labels"),
    "own noise forgotten": (_not_own, "cross-entropy", "linf"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_rules_are_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, loss, name = MUTANTS[mutant]
    assert not _escapes(loss, name, 1)
    change(monkeypatch)
    assert _escapes(loss, name)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_zonotope_that_forgets_a_rows_own_noise_is_noticed(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(loss, "missing")
    monkeypatch.setattr("mibp_cert.fitted.table.Table.reach_of", lambda self, theta: np.zeros(len(self.rows)))
    found = Zonotope(world.problem.table, world.problem.loss, world.hull(), world.problem.tau).bounds()
    assert world.excess(found) > 1e-6


def test_a_start_without_proof_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """First-order ranges hold for small noise only; whoever uses them unproven loses models."""
    data, threat = table("cross-entropy", seed=1), threats("cross-entropy")["linf"]

    def escapes() -> bool:
        step, state = advanced("cross-entropy", threat, data, 10.0)
        theta = attacked(step, threat.bind(data))[2]
        return bool((np.maximum(state.lower - theta, theta - state.upper) > 1e-9).any())

    monkeypatch.setattr(engine, "prove", lambda problem, **how: problem.bounds(problem.point(), 1))
    assert escapes()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_minimiser_that_stops_early_is_paid_for(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tilt: bounds around a rough minimiser hold the true one; without the tilt they do not."""
    data = table(loss)
    step = step_of(data, Fitted(loss, 0.1))
    true = step.train(np.zeros(step.layout.size), *Nothing().bind(data).reference)
    rough = true + 1e-5 * np.random.default_rng(0).normal(size=len(true))
    monkeypatch.setattr(engine, "minimise", lambda *args: rough)
    _, state = advanced(loss, LInf(1e-9), data)
    assert state.contains(true)
    assert state.contains(rough)
    assert state.radius.max() < 1e-2
    monkeypatch.setattr(engine, "tilt", lambda *args: np.zeros(len(true)))
    try:
        _, state = advanced(loss, LInf(1e-9), data)
    except Exception:
        return  # the proof cannot start from what is no minimiser
    assert not (state.contains(true) and state.contains(rough))
