"""Fitted models beyond the closed form: the linear program and its multipliers, cases, and the solver's program."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fits import World, attacked, step_of, table, threats
from mibp_cert import Budget, LabelFlips, LInf, SolverSettings, certify_fit, two_moons
from mibp_cert.config import merged
from mibp_cert.engines.base import Box
from mibp_cert.errors import UserError
from mibp_cert.fitted import FITTED, Fitted, FittedSet, RandomFeatures, branch, engine, exact, linear
from mibp_cert.fitted.exact import FitMibpEngine
from mibp_cert.fitted.linear import Relaxation, value
from mibp_cert.fitted.lp import LpEngine
from mibp_cert.fitted.zonotope import Zonotope
from mibp_cert.job import job_of
from mibp_cert.solvers import highs
from mibp_cert.solvers.base import Objective

CASES = [
    *(("cross-entropy", name) for name in threats("cross-entropy")),
    *(("squared-error", name) for name in ("linf", "missing", "bad targets", "budget of balls")),
    *(("squared-hinge", name) for name in ("any category", "noise and flips", "row of everything")),
    *(("huber", name) for name in ("l1", "noise and a bad row", "bad targets")),
]


def world_of(loss: str, name: str, seed: int = 0, **how: Any) -> World:
    how = {"samples": 20, "rounds": 1, **how}
    return World.of(Fitted(loss, 1.0), threats(loss)[name], table(loss, 8, seed, missing="missing" in name), **how)


def queries(world: World) -> Any:
    eye, rows = np.eye(len(world.problem.c)), world.problem.table.rows.x[:2]
    return np.concatenate([eye, -eye, rows, -rows])


def program_of(world: World) -> Relaxation:
    """The program under the smallest ranges that hold for these fits."""
    return Relaxation(world.problem.table, world.problem.loss, world.hull(), world.problem.tau)


def escape(world: World) -> float:
    """How far a real fit is above its bounds by the program."""
    program, a = program_of(world), queries(world)
    return float(((world.theta @ a.T).max(axis=0) - program.upper(program.of_parameters(a))).max())


# The linear program ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_programs_hold_every_fit_and_no_case_is_closed_that_holds_one(
    loss: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the ranges of really fitted models, which are smaller than any that could be proven: bounds hold for them, and the
    plane through one of them is never refuted, nor does the zonotope on that plane lose it."""
    monkeypatch.setattr(branch, "DEPTH", 2)
    world = world_of(loss, name)
    problem, z, room = world.problem, world.hull(), 1e-9 * (1.0 + np.abs(world.theta).max())
    assert escape(world) <= room
    for k in np.linspace(1, len(world.theta) - 1, 3).astype(int):
        a = np.eye(len(z.low))[k % len(z.low)]
        v = float(a @ world.theta[k])
        side = -1.0 if a @ problem.c > v else 1.0
        assert not branch.never(problem, z, side * a, side * v)
        one = replace(world, theta=world.theta[[k]], s=world.s[[k]], dirty=world.dirty[[k]])
        on = branch.on_plane(problem, z, a, v)
        assert one.excess(on) <= room
        assert one.excess(Zonotope(problem.table, problem.loss, on, problem.tau).bounds(a, v, equal=True)) <= room


def test_any_multipliers_give_a_bound() -> None:
    """The solver's, moved a little or a lot, and none at all; the solver's own are the best."""
    rng = np.random.default_rng(0)
    for loss, name in (("cross-entropy", "noise and flips"), ("huber", "linf")):
        world = world_of(loss, name)
        program = program_of(world)
        for a in queries(world)[:3]:
            (c,) = program.of_parameters(a[None])
            ((y, ray),) = highs.multipliers(program.program, [Objective(c, maximise=True)], linear.ITERATIONS)
            assert ray is None
            best, real = value(program.program, c, y), float((world.theta @ a).max())
            for size in (1e-9, 1e-6, 1e-3, 1.0, 100.0):
                for base in (y, 0.0 * y):
                    found = value(program.program, c, base + size * rng.normal(size=len(y)))
                    assert found >= best - 1e-6 * (1.0 + abs(best))
                    assert found >= real
            assert value(program.program, c, np.full(len(y), np.nan)) >= real
            assert best <= world.hull().high @ np.maximum(a, 0) - world.hull().low @ np.maximum(-a, 0) + 1e-9


def test_a_contradiction_is_proven_by_a_ray_and_a_wrong_ray_proves_nothing() -> None:
    """Ranges that no fit is in have no point; the ray that says so is evaluated like any multipliers."""
    world = world_of("squared-error", "linf")
    z, problem = world.hull(), world.problem
    away = replace(z, low=z.high + 1.0, high=z.high + 1.1)
    program = Relaxation(problem.table, problem.loss, away, problem.tau)
    c = program.of_parameters(np.eye(len(z.low))[:1])
    assert program.upper(c)[0] == -np.inf
    whole, rng = program_of(world), np.random.default_rng(0)
    for _ in range(20):
        assert value(whole.program, 0.0 * c[0], rng.normal(size=whole.program.rows)) >= 0.0


def _no_residual(patch: pytest.MonkeyPatch) -> None:
    def wrong(program: Any, c: Any, y: Any) -> float:
        end = np.where(y >= 0, program.row_upper, program.row_lower)
        return float((y * np.where(np.isfinite(end), end, 0.0)).sum())

    patch.setattr(linear, "value", wrong)


def _no_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(linear, "cell_noise", lambda rows, table: 0.0 * rows.r)


def _half_a_product(patch: pytest.MonkeyPatch) -> None:
    original = Relaxation._noise
    patch.setattr(Relaxation, "_noise", lambda self, *given: original(self, *given[:6], 0.0 * given[6], *given[7:]))


def _lines_inside(patch: pytest.MonkeyPatch) -> None:
    original = linear._top
    patch.setattr(linear, "_top", lambda known, kappa: original(known, kappa) - 0.1 * known.psi_radius)


def _one_short(patch: pytest.MonkeyPatch) -> None:
    original = Relaxation.__init__

    def init(self: Any, rows: Any, *rest: Any) -> None:
        original(self, replace(rows, budgets=tuple(replace(b, most=b.most - 1) for b in rows.budgets)), *rest)

    patch.setattr(Relaxation, "__init__", init)


def _clean_ranges(patch: pytest.MonkeyPatch) -> None:
    original = Relaxation.__init__

    def init(self: Any, rows: Any, loss: Any, z: Any, tau: Any) -> None:
        by = tuple((z.s_low[b.rows], z.s_high[b.rows]) for b in rows.budgets)
        original(self, rows, loss, replace(z, by=by), tau)

    patch.setattr(Relaxation, "__init__", init)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "residual dropped": (_no_residual, "cross-entropy", "linf"),
    "no noise": (_no_noise, "cross-entropy", "linf"),
    "no noise in scores": (_half_a_product, "squared-error", "linf"),
    "lines inside of psi": (_lines_inside, "squared-error", "linf"),
    "budget one short": (_one_short, "cross-entropy", "labels"),
    "budget of rows one short": (_one_short, "cross-entropy", "budget of rows"),
    "alternatives on clean ranges": (_clean_ranges, "cross-entropy", "labels"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_programs_are_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, loss, name = MUTANTS[mutant]
    assert escape(world_of(loss, name)) <= 1e-9
    change(monkeypatch)
    assert max(escape(world_of(loss, name, seed)) for seed in range(3)) > 1e-6


# Engines --------------------------------------------------------------------------------------------------------------


def state_of(kind: Any, step: Any, bound: Any) -> FittedSet:
    made = kind(settings=SolverSettings(jobs=1, nodes_per_program=10)) if kind is FitMibpEngine else kind()
    try:
        state, _ = made.advance(Box.point(np.zeros(step.layout.size)), step, bound)
    finally:
        made.close()
    assert isinstance(state, FittedSet)
    return state


@pytest.mark.parametrize(
    ("loss", "threat"),
    [
        ("cross-entropy", LabelFlips(2)),
        ("squared-hinge", LInf({"income": 0.5})),
        pytest.param("cross-entropy", LInf({"income": 0.5}) & LabelFlips(1), marks=pytest.mark.soundness),
        pytest.param("squared-error", Budget(LInf({"income": 2.0}), rows=1), marks=pytest.mark.soundness),
    ],
)
def test_each_tier_is_within_the_one_before_and_holds_every_fit(
    loss: str, threat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "finite_problem", lambda *given: None)
    data = table(loss, 6)
    step, bound = step_of(data, Fitted(loss, 0.2)), threat.bind(data)
    members, fits = bound.members(1000), attacked(step, bound)[2]
    if members is not None:
        fits = step.train(
            np.zeros((len(members), fits.shape[1])), *(np.stack(part) for part in zip(*members, strict=True))
        )
    states = [state_of(kind, step, bound) for kind in FITTED.values()]
    for state in states:
        assert all(state.contains(theta) for theta in fits)
    for wide, narrow in itertools.pairwise(states):
        assert narrow.within(wide)
    assert states[1].radius.sum() < states[0].radius.sum()
    assert states[2].radius.sum() < states[1].radius.sum()
    if members is not None:  # all of them were fitted: nothing is left but the solver's gap
        assert states[2].radius.sum() <= 1.05 * 0.5 * np.ptp(fits, axis=0).sum()


def test_a_program_without_pieces_or_products_still_holds_and_one_with_a_wrong_line_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = table("cross-entropy", 6)
    step, bound = step_of(data, Fitted("cross-entropy", 0.2)), LInf({"income": 0.5}).bind(data)
    state, fits = state_of(LpEngine, step, bound), attacked(step, bound)[2]
    eye = np.eye(len(state.problem.c))
    settings = SolverSettings("highs", nodes_per_program=30)

    def bounds() -> Any:
        program = exact.encode(state.problem, state.ranges, step, bound, bilinear=False)  # type: ignore[arg-type]
        return np.array(exact._solve((program, eye, settings), list(range(len(eye)))))

    assert (bounds() >= fits.max(axis=0)).all()
    monkeypatch.setattr(exact, "PIECES", 1)
    assert (bounds() >= fits.max(axis=0)).all()
    original = type(step.loss).highest
    monkeypatch.setattr(type(step.loss), "highest", lambda self, *given: original(self, *given) - 0.2)
    found = bounds()
    assert not (np.isfinite(found) & (found >= fits.max(axis=0))).all()


def test_programs_and_cases_certify_what_the_closed_form_leaves_open() -> None:
    """More points, none that the attack contradicts; pictures are drawn with the closed form."""
    data, threat = two_moons(0, sizes=(25, 2, 80)), LInf(0.15)
    dual, lp = (certify_fit(data, threat, Fitted(C=0.3), name) for name in ("dual", "lp"))
    assert dual.test is not None
    assert lp.test is not None
    assert data.test is not None
    known = dual.test.classes >= 0
    assert (lp.test.classes[known] == dual.test.classes[known]).all()
    assert (lp.test.classes >= 0).sum() > known.sum()
    assert lp.bounds.within(dual.bounds)
    assert lp.soundness == "rounding-safe"
    assert lp.request.quick == "dual"
    assert (lp.certify(data.test.x, "dual").classes[known] == lp.test.classes[known]).all()


# Doors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "threat", "said"),
    [
        (Fitted(features=RandomFeatures(3)), LInf(0.01), "knows no frozen features"),
        (Fitted("squared-hinge"), LabelFlips(2), "knows no targets in doubt for the loss 'squared-hinge'"),
    ],
)
def test_the_solver_refuses_by_name_what_it_does_not_know(model: Any, threat: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        certify_fit(two_moons(0, sizes=(20, 5, 5)), threat, model, "mibp")


def test_too_many_cells_are_refused() -> None:
    with pytest.raises(UserError, match=r"^2400 doubtful cells are too many for the engine 'mibp'"):
        certify_fit(two_moons(0, sizes=(1200, 5, 5)), LInf(0.001), Fitted(), "mibp")


def test_solvers_are_chosen_for_the_engine_that_asks_them_and_for_no_other() -> None:
    given = {"data": {"source": "two-moons"}, "threat": {"eps": 0.01}, "model": {"kind": "logistic"}}
    job = job_of(merged({**given, "run": {"engine": "mibp"}, "solver": {"nodes_per_program": 7}}))
    assert job.engines == ("mibp",)
    assert job.options["solver"].nodes_per_program == 7
    assert job_of(merged({**given, "run": {"engine": "lp"}})).engines == ("lp",)
    with pytest.raises(UserError, match=r"^\[solver\] nodes_per_program belongs to networks"):
        merged({**given, "run": {"engine": "lp"}, "solver": {"nodes_per_program": 7}})
