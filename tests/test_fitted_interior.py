"""The best multipliers, and noise that moves its row: whatever they are, bounds hold every minimiser; good ones are the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from fits import World, step_of, table, threats
from mibp_cert.fitted import SCORE_LOSSES, known, ranges
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.dual import Dual, Multipliers
from mibp_cert.fitted.engine import table_problem
from mibp_cert.fitted.known import Known
from mibp_cert.fitted.linear import Relaxation
from mibp_cert.sets import Segments, beyond, lean
from mibp_cert.sets.lean import toward

CASES = [(loss, name) for loss in SCORE_LOSSES for name in threats(loss)]


def drawn(dual: Dual, a: Any, own: Any, rng: np.random.Generator) -> Multipliers:
    """Multipliers around good ones and far from them; some `ω` are 0 where `λ` is not, some `λ` point the wrong way."""
    u, kappa, theta, rho = dual._search(a, own, 1.0, dual._plus(own, 1.0))
    omega = known.dot(dual.main.worst(rho[0]), u)
    size = rng.choice([0.0, 0.01, 0.3, 3.0], size=(len(a), 1))
    u = u + size * np.abs(u).mean() * rng.normal(size=u.shape)
    u = np.where(rng.random((len(a), 1)) < 0.1, 0.0, u)
    lam = kappa * omega * rng.choice([1.0, 0.0, -1.0, 30.0], size=omega.shape, p=[0.7, 0.1, 0.1, 0.1])
    return Multipliers(u, lam + size * np.abs(lam).mean() * rng.normal(size=lam.shape), theta)


def excess(loss: str, name: str) -> float:
    """How far a minimiser, or a row's own score, is above bounds with drawn multipliers, for ranges that hold all of them."""
    data = table(loss, 9, missing="missing" in name)
    world = World.of(mc.Fitted(loss, 1.0), threats(loss)[name], data, samples=20)
    problem, z, rng = world.problem, world.hull(), np.random.default_rng(0)
    dual = Dual(problem.table, problem.loss, z, problem.tau)
    rows, found = problem.table.rows, -np.inf
    for sign in (1.0, -1.0):
        a = rng.normal(size=(40, len(problem.c)))
        nobody = np.full(40, -1, dtype=np.intp)
        upper = dual.given(a, drawn(dual, a, nobody, rng), nobody, 1.0)
        found = max(found, float(((a @ world.theta.T).max(axis=1) - upper).max()))
        own = np.repeat(np.arange(len(rows), dtype=np.intp), 3)
        upper = dual.given(sign * rows.x[own], drawn(dual, sign * rows.x[own], own, rng), own, sign)
        s = np.where(world.dirty, -np.inf, sign * world.s)[:, own]
        found = max(found, float((s - upper).max()))
    return float(np.nan_to_num(found, nan=np.inf))


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_every_minimiser_is_below_bounds_with_whatever_multipliers(loss: str, name: str) -> None:
    assert excess(loss, name) <= 1e-9


def _unpaid(patch: pytest.MonkeyPatch) -> None:
    """What `λ` has beside `κω` is not paid on the scores."""
    lines = Known.lines

    def wrong(self: Known, *args: Any, rest: Any = None, **how: Any) -> Any:
        found, more = lines(self, *args, rest=rest, **how)
        if rest is not None:
            found.const[...] -= self.rows.w * np.maximum(-rest * self.low, -rest * self.high)
        return found, more

    patch.setattr(Known, "lines", wrong)


def _one_end(patch: pytest.MonkeyPatch) -> None:
    """It is paid on one end only."""
    lines = Known.lines

    def wrong(self: Known, *args: Any, rest: Any = None, **how: Any) -> Any:
        found, more = lines(self, *args, rest=rest, **how)
        if rest is not None:
            paid = np.maximum(-rest * self.low, -rest * self.high)
            found.const[...] += self.rows.w * (-rest * self.low - paid)
        return found, more

    patch.setattr(Known, "lines", wrong)


def _nothing_beyond(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(known, "beyond", lambda segments, g, radius, at: 0.0 * beyond(segments, g, radius, at))


def _radius_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(known, "beyond", lambda segments, g, radius, at: beyond(segments, g, 0.0 * radius, at))


def _left_out(patch: pytest.MonkeyPatch) -> None:
    """A row in doubt is taken for a certain one."""
    rows = Known.__dict__["doubt"].func
    patch.setattr(Known, "doubt", property(lambda self: np.arange(len(self.rows))[rows(self)][1:]))


WRONG: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "rest unpaid": (_unpaid, "cross-entropy", "linf"),
    "rest paid on one end": (_one_end, "cross-entropy", "linf"),
    "nothing beyond": (_nothing_beyond, "squared-error", "any category"),
    "a row left out": (_left_out, "squared-error", "linf"),
    "radius forgotten": (_radius_forgotten, "squared-error", "any category"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, loss, threat = WRONG[name]
    wrong(monkeypatch)
    assert excess(loss, threat) > 1e-6


def over_by(problem: Any) -> float:
    """How far a row with another label is above the line of the row itself and the cost of replacing it, for made-up ranges."""
    rng, (n, p) = np.random.default_rng(0), problem.table.rows.x.shape
    budget, s = problem.table.budgets[0], problem.s
    z = Ranges(problem.c - 0.6, problem.c + 0.6, s - 0.02, s + 0.02, ((s - 1.0, s + 1.0),))
    dual = Dual(problem.table, problem.loss, z, problem.tau)
    u, rest = rng.normal(size=(20, p)), rng.normal(size=(20, n))
    kappa, none = rng.random((20, n)) * problem.loss.steepest, np.zeros((20, n))
    lines, _ = dual.main.lines(u, kappa, dual.main.slopes(u, none), none, None, rest=rest)
    omega = u @ budget.by.x.T
    cost, _ = dual.by[0].replaced(dual.main, budget.rows, u, omega, kappa[:, budget.rows], rest[:, budget.rows])
    worst = -np.inf
    for theta in problem.c + rng.uniform(-0.6, 0.6, size=(200, p)):
        score = budget.by.x @ theta
        for y in dual.by[0].ends:
            new = budget.by.w * problem.loss.psi(y, score) * omega
            over = new - (lines.const + lines.coef @ theta)[:, budget.rows] - cost
            worst = max(worst, float(np.where(np.abs(score - s[budget.rows]) <= 1.0, over, -np.inf).max()))
    return worst


def test_a_label_costs_what_its_other_scores_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    data = table("cross-entropy", 9)
    problem = table_problem(step_of(data, mc.Fitted()), mc.LabelFlips(3).bind(data), np.zeros(0))
    assert over_by(problem) <= 1e-12
    replaced = Known.replaced
    monkeypatch.setattr(Known, "replaced", lambda *args: replaced(*args[:-1]))  # as if there were no rest
    assert over_by(problem) > 0.01


# How good they are ----------------------------------------------------------------------------------------------------


def test_the_best_multipliers_are_those_of_the_linear_program() -> None:
    """Rows without doubt, ranges in each other's way: the program has the same lines, and its optimum is the same."""
    data = mc.two_moons(0, sizes=(25, 5, 5)).train
    problem = table_problem(step_of(data, mc.Fitted(C=3.0)), mc.LInf(0.001).bind(data), np.zeros(0))
    c, s, rng = problem.c, problem.s, np.random.default_rng(1)
    z = Ranges(c - 0.1, c + 0.1, s - rng.uniform(0.05, 1.5, len(s)), s + rng.uniform(0.05, 1.5, len(s)))
    a = rng.normal(size=(12, len(c)))
    dual, program = (
        Dual(problem.table, problem.loss, z, problem.tau, 3),
        Relaxation(problem.table, problem.loss, z, problem.tau),
    )
    plain, best, least = dual.upper(a), dual.best(a)[0], program.upper(program.of_parameters(a))
    assert (best <= plain).all()
    far = (plain - least).mean()
    assert far > 0.02 * np.abs(least - a @ c).mean()
    assert (best - least).mean() < 0.2 * far


def test_the_best_multipliers_prove_what_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    data = table("huber", 10)
    step, bound = step_of(data, mc.Fitted("huber", 1.0)), threats("huber")["noise and targets"].bind(data)
    with np.errstate(all="ignore"):
        problem = table_problem(step, bound, np.zeros(0))
        assert ranges.Search(problem).repeated()[0] is not None
        monkeypatch.setattr(ranges, "BEST_WORK", 0)
        assert ranges.Search(problem).repeated()[0] is None


def test_the_best_multipliers_see_rows_at_once_that_others_take_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    data = mc.two_moons(0, sizes=(12, 5, 5)).train
    problem = table_problem(step_of(data, mc.Fitted()), mc.LInf(0.05).bind(data), np.zeros(0))
    c, s, eye, own = problem.c, problem.s, np.eye(3), np.arange(3, dtype=np.intp)
    z = Ranges(c - 0.3, c + 0.3, s - 0.4, s + 0.4)
    found = []
    for cells in (100_000, 12):
        monkeypatch.setattr("mibp_cert.fitted.dual.CELLS", cells)
        dual = Dual(problem.table, problem.loss, z, problem.tau)
        plain, by = dual.best(eye)
        found.append(np.concatenate([plain, dual.given(eye, by), dual.best(problem.table.rows.x[:3], own)[0]]))
    assert len(dual.parts) == 3
    np.testing.assert_allclose(found[1], found[0], atol=0.01)  # queries of one chunk stop together


def test_multipliers_that_are_not_finite_bound_nothing() -> None:
    data = mc.two_moons(0, sizes=(12, 5, 5)).train
    problem = table_problem(step_of(data, mc.Fitted()), mc.LInf(0.05).bind(data), np.zeros(0))
    z = ranges.prove(problem)
    assert z is not None
    dual, a = Dual(problem.table, problem.loss, z, problem.tau), np.eye(3)
    for value in (np.nan, np.inf):
        with np.errstate(all="ignore"):
            bad = Multipliers(np.full((3, 3), value), np.zeros((3, 12)), np.tile(problem.c, (3, 1)))
            assert not np.isfinite(dual.given(a, bad)).any()
            bad = Multipliers(np.zeros((3, 3)), np.full((3, 12), value), np.tile(problem.c, (3, 1)))
            assert not np.isfinite(dual.given(a, bad)).any()


# Noise of one row -----------------------------------------------------------------------------------------------------

SIZES = np.array([3, 1, 4, 2])


def segments(kind: str, rng: np.random.Generator) -> Segments:
    count = int(SIZES.sum()) if kind != "box" else 6
    sizes = SIZES if kind != "box" else np.ones(6, dtype=np.intp)
    low, high = -rng.random(count), rng.random(count)
    return Segments(kind, sizes.astype(np.intp), np.arange(len(sizes), dtype=np.intp), low, high, 2)


@pytest.mark.parametrize("kind", ["box", "l1", "l2", "sparse", "choice", "corner"])
def test_noise_reaches_no_further_beyond_a_point_than_is_said(kind: str) -> None:
    """For every direction within the radius, sampled and attacked points; at some point it is reached."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        some = segments(kind, rng)
        g = rng.normal(size=some.count) * rng.choice([1e-6, 0.3, 3.0])
        radius = rng.random(some.count) * rng.choice([0.0, 1e-7, 0.3, 3.0])
        # A point may be that of another direction, which the multipliers had before.
        before = [g + rng.normal(size=g.shape) * np.abs(g).mean() * size for size in (0.1, 1.0)]
        for at in (lean(some, g, radius)[0], *(toward(some, other, radius) for other in (g, -g, *before))):
            said = beyond(some, g, radius, at)
            points = [some.sample(rng, extreme=bool(k % 2)) for k in range(40)]
            for e in [*points, *(some.minimiser(-g + radius * rng.normal(size=g.shape)) for _ in range(40))]:
                worst = g + radius * np.sign(e - at)
                got = np.add.reduceat(worst * (e - at), some.starts)
                assert (got <= said + 1e-12 * (1.0 + np.abs(said))).all()
        still = some.ends(g)[1] + np.add.reduceat(radius * some.magnitude(), some.starts)
        at, left = lean(some, g, radius)
        # Never more than the support of the middle and the whole radius.
        assert (np.add.reduceat(g * at, some.starts) + left <= still + 1e-12 * (1.0 + np.abs(still))).all()


@pytest.mark.parametrize("kind", ["box", "l1", "sparse", "choice", "corner"])
def test_where_the_direction_is_known_nothing_is_left_to_pay(kind: str) -> None:
    rng = np.random.default_rng(1)
    some = segments(kind, rng)
    g = rng.normal(size=some.count)
    _, left = lean(some, g, np.full(some.count, 1e-9))
    assert (np.abs(left) < 1e-7).all()


def test_a_ball_that_leans_where_it_leant_before_holds_every_minimiser() -> None:
    """The direction turns with the last `λ`: what `ε̂` was chosen for is not what is paid for."""
    data = mc.Dataset.regression(np.array([[-0.61, -0.42], [1.98, 0.94], [-0.3, 0.8]]), np.array([-0.21, 0.19, 1.0]))
    world = World.of(mc.Fitted("squared-error", 0.5), mc.L2(0.95).where([1]), data, samples=5, rounds=8)
    for rounds in (1, 2, 3):
        assert world.excess(world.problem.bounds(world.hull(), rounds)) <= 1e-9
