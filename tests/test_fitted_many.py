"""Fitted models with many rows: ellipsoids and sums, held against exact sums, the small path and real fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mibp_cert as mc
from fits import World, attacked, step_of, table, threats
from mibp_cert.certify import attack, forecast
from mibp_cert.certify.predict import nominal_classes, nominal_outputs
from mibp_cert.data import iris
from mibp_cert.errors import UnsupportedOperation, UserError
from mibp_cert.fitted import SCORE_LOSSES, Fitted, dual, engine, margin_queries, outputs, ranges, shared
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.ellipsoid import Ellipsoids
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.ranges import prove
from mibp_cert.fitted.several import OneVersusRest
from mibp_cert.fitted.shared import Costs, Shared
from mibp_cert.fitted.table import Table

LOSSES = list(SCORE_LOSSES)
CASES = [(loss, name) for loss in LOSSES for name in threats(loss)]
REFUSED = {"categories and a bad row", "categories and flips", "missing and flips"}
"""Budgets whose costs shared multipliers do not know."""


def world_of(loss: str, name: str, seed: int = 0, c: float = 1.0, rows: int = 12, **how: Any) -> World:
    data = table(loss, rows, seed=seed, missing=name.startswith("missing"))
    world = World.of(Fitted(loss, c), threats(loss)[name], data, **how)
    return replace(world, problem=replace(world.problem, shared=True))


def shared_of(problem: Problem, z: Any) -> Shared:
    return Shared(problem.table, problem.loss, z, problem.tau)


# Bounds -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_ellipsoids_hold_sums_and_real_fits(loss: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the smallest ranges that hold for fitted models: the ellipsoids are never inside the exact sums, for any query, and
    no fitted model leaves either; however few rows are taken at a time."""
    monkeypatch.setattr(shared, "CELLS", 500)
    world = world_of(loss, name, samples=20, rounds=1)
    problem, z = world.problem, world.hull()
    if name in REFUSED:
        with pytest.raises(UnsupportedOperation, match=r"budget of wrong rows beside doubtful categories.*fewer rows"):
            problem.bounds(z)
        return
    sums = shared_of(problem, z)
    around, rng = Ellipsoids(sums), np.random.default_rng(0)
    b = np.concatenate(
        [problem.table.rows.x, -problem.table.rows.x, np.eye(len(z.low)), rng.normal(size=(20, len(z.low)))]
    )
    (low, high), (outer_low, outer_high) = sums.ends(b), around.ends(b)
    assert ((outer_low <= low) & (high <= outer_high)).all()
    room = 1e-10 * (1.0 + np.abs(world.s).max())
    assert world.excess(problem.bounds(z)) <= room
    reached = world.theta @ b.T
    assert (low - room <= reached.min(axis=0)).all()
    assert (reached.max(axis=0) <= high + room).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_sums_do_not_depend_on_how_many_rows_are_taken_at_a_time(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("linf", "labels" if loss in ("cross-entropy", "squared-hinge") else "noise and targets"):
        world = world_of(loss, name, rows=40, samples=5, rounds=0)
        problem, z = world.problem, world.hull()
        b, own = problem.table.rows.x, np.arange(40, dtype=np.intp)
        found = []
        for few in (False, True):
            if few:
                monkeypatch.setattr(shared, "CELLS", 60)
                monkeypatch.setattr(dual, "CELLS", 40)
            each = Dual(problem.table, problem.loss, z, problem.tau)
            sums = shared_of(problem, z)
            assert (len(sums.parts) > 1) == few
            assert (len(each.parts) > 1) == (few and not problem.table.budgets)
            found.append([*sums.ends(b), *Ellipsoids(sums).ends(b), each.upper(b), each.upper(-b, own, -1.0)])
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        monkeypatch.undo()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_large_path_proves_ranges_around_all_fits_and_close_to_the_small_path(loss: str) -> None:
    numbers = loss in ("squared-error", "huber")
    for threat in (
        mc.LInf(0.02, relative=True),
        mc.TargetNoise(0.2) & mc.LInf({"age": 1.0}) if numbers else mc.LabelFlips(1),
    ):
        data = table(loss, 40, seed=3)
        world = World.of(Fitted(loss, 0.05), threat, data, samples=20, rounds=1)
        small = prove(world.problem)
        large = prove(replace(world.problem, shared=True))
        assert small is not None
        assert large is not None
        assert world.excess(large) <= 0.0
        assert (large.radius <= 1.5 * small.radius + 1e-9).all()
        width = [z.s_high - z.s_low for z in (large, small)]
        assert np.median(width[0] / width[1]) <= 1.6


def test_certified_fits_of_many_rows_are_those_of_few_or_a_little_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole path, forced: certified classes and ranges, progress, and an attack that fits few datasets."""
    data = mc.two_moons(0)
    few = mc.certify_fit(data, mc.LInf(0.02), Fitted())
    monkeypatch.setattr(engine, "OWN_CELLS", 0)
    monkeypatch.setattr(ranges, "MOST_CELLS", 0)
    monkeypatch.setattr(attack, "MANY_CELLS", 0)
    heard: list[tuple[int, int]] = []
    many = mc.certify_fit(
        data, mc.LInf(0.02), Fitted(), callbacks=mc.Callbacks(on_program=lambda *at: heard.append(at))
    )
    assert few.bounds.within(many.bounds)
    assert few.certified_test_accuracy is not None
    assert many.certified_test_accuracy is not None
    assert few.certified_test_accuracy - 0.01 <= many.certified_test_accuracy <= few.certified_test_accuracy
    assert many.attack is not None
    assert few.attack is not None
    assert len(many.attack.theta) <= 70 < len(few.attack.theta)
    assert many.attacked_accuracy == pytest.approx(few.attacked_accuracy, abs=0.01)
    assert data.train.x.shape == many.attack.witness[0].shape
    assert many.request.members.contains(*many.attack.witness)
    assert all(0 < done <= total for done, total in heard)
    assert many.test is not None
    assert few.test is not None
    both = many.test.certified & few.test.certified
    assert (many.test.classes[both] == few.test.classes[both]).all()


def test_a_regression_on_many_rows_holds_its_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "OWN_CELLS", 0)
    monkeypatch.setattr(attack, "MANY_CELLS", 0)
    train = table("squared-error", 60)
    split = mc.Split("made", train, test=table("squared-error", 20, seed=1, like=train))
    run = mc.certify_fit(split, mc.LInf(0.01, relative=True) & mc.TargetNoise(0.1), Fitted("squared-error", 0.1))
    assert run.attack is not None
    assert len(run.attack.theta) > 10
    assert run.errors["certified_error"] >= run.errors["attacked_error"]  # type: ignore[operator]
    assert run.attack.witness[0].shape == split.train.x.shape


def test_features_of_many_rows_hold_real_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions that features share are generators of their own."""
    data, model = mc.two_moons(0), Fitted(features=mc.RandomFeatures(6, scale=2.0))
    few = mc.certify_fit(data, mc.LInf(0.005), model, attacked=False)
    monkeypatch.setattr(engine, "OWN_CELLS", 0)
    many = mc.certify_fit(data, mc.LInf(0.005), model)
    assert few.bounds.within(many.bounds)
    assert (many.bounds.radius <= 2.0 * few.bounds.radius + 1e-9).all()


FLOWERS = ["logistic of each class", "squared hinges of each class"]


@pytest.mark.parametrize("name", FLOWERS)
@pytest.mark.parametrize(
    "threat", [mc.LInf(0.02), mc.LInf(0.01) & mc.LabelFlips(1)], ids=["noise", "noise and a label"]
)
def test_classes_of_many_rows_hold_real_fits_and_are_close_to_those_of_few(
    name: str, threat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each versus the rest, forced: the real fits of the attack on few rows are within, and what is certified stays."""
    whole = iris(0)
    data = mc.Split("iris", whole.train.take(np.arange(0, 90, 2)), None, whole.tested)
    model = Fitted(C=0.02, multi="one-versus-rest") if name == FLOWERS[0] else Fitted("squared-hinge", C=0.005)
    few = mc.certify_fit(data, threat, model)
    monkeypatch.setattr(engine, "APART_CELLS", 0)
    monkeypatch.setattr(attack, "MANY_CELLS", 0)
    run = mc.certify_fit(data, threat, model)
    problem = run.bounds.problem  # type: ignore[union-attr]
    assert isinstance(problem, OneVersusRest)
    assert problem.many
    wider = run.bounds.radius / few.bounds.radius
    assert ((wider > 0.8) & (wider < 2.0)).all()
    assert run.test is not None
    assert few.test is not None
    assert run.test.certified.sum() >= 0.8 * few.test.certified.sum() > 0
    assert few.attack is not None
    for theta in few.attack.theta:  # as all real fits: what is certified stays
        assert run.bounds.contains(theta)
        now = nominal_classes(run.network, theta, whole.tested.x)
        assert (now == run.test.classes)[run.test.certified].all()
    x, total = whole.tested.x, mc.explain(run, whole.tested.x, "low").total
    outs = np.stack([nominal_outputs(run.network, theta, x) for theta in [run.theta, *few.attack.theta]])
    lead = np.take_along_axis(outs, run.test.centre[None, :, None], axis=2) - outs
    fallen = np.where(lead[0] == 0.0, np.inf, lead[0] - lead)  # of one's own class there is none
    assert (fallen.min(axis=2) <= total + 1e-9).all()


def _leads_escape(seeds: int = 3) -> bool:
    """Does a lead of one class over another, of models that were really fitted, leave its ends?"""
    for seed in range(seeds):
        data, model = table("cross-entropy", 15, seed=seed, classes=3), Fitted(C=0.5, multi="one-versus-rest")
        step = step_of(data, model)
        members = mc.LInf(0.05).bind(data)
        _, _, theta = attacked(step, members, samples=20, rounds=1)
        problem = engine.classes_problem(step, members, np.zeros(0))
        assert isinstance(problem, OneVersusRest)
        problem = replace(problem, each=tuple(replace(one, shared=True) for one in problem.each))
        z = prove(problem)
        assert z is not None
        a = margin_queries(step, problem.c, data.x, data.y).reshape(-1, len(problem.c))
        parts, zero = engine.many(problem, z, a), np.zeros(len(a))
        for enough in (None, lambda low: low > 0):
            low, high = outputs.outputs(parts, zero, zero, enough, lambda *at: None)
            value = a @ theta.T
            if (value < low[:, None] - 1e-9).any() or (value > high[:, None] + 1e-9).any():
                return True
    return False


def test_leads_of_many_rows_hold_real_fits_and_half_a_sum_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _leads_escape()
    whole = outputs._ends
    monkeypatch.setattr(outputs, "_ends", lambda parts, of, some: whole(parts[:-1], of, some))
    assert _leads_escape()


# Mutants ----------------------------------------------------------------------------------------------------------------


def _escapes(loss: str, name: str, seeds: int = 4) -> bool:
    """Does a fitted model, or an exact sum, leave the ellipsoids?"""
    for seed in range(seeds):
        world = world_of(loss, name, seed, samples=20, rounds=1)
        problem, z = world.problem, world.hull()
        sums, rows = shared_of(problem, z), problem.table.rows.x
        short = [inner - outer for inner, outer in zip(sums.ends(rows), Ellipsoids(sums).ends(rows), strict=True)]
        if world.excess(problem.bounds(z)) > 1e-9 or short[0].min() < -1e-9 or short[1].max() > 1e-9:
            return True
    return False


def _weights_of_others(patch: pytest.MonkeyPatch) -> None:
    original = Ellipsoids._of
    patch.setattr(Ellipsoids, "_of", lambda self, g, rho: (0.2 * original(self, g, rho)[0], original(self, g, rho)[1]))


def _no_bands(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shared, "others", lambda self, part: 0.0 * self.table.rows.x[part][None])


def _no_radius(patch: pytest.MonkeyPatch) -> None:
    original = Shared.__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)
        self.fixed = 0.0 * self.fixed

    patch.setattr(Shared, "__init__", init)


def _no_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Table, "reach_of", lambda self, theta: np.zeros(len(self.rows)))


def _cheap_rows(patch: pytest.MonkeyPatch) -> None:
    original = Costs.largest
    patch.setattr(Costs, "largest", lambda self, c: (0.2 * original(self, c)[0], original(self, c)[1]))


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "weights not those of the matrix": (_weights_of_others, "cross-entropy", "linf"),
    "weights of pieces": (_weights_of_others, "squared-error", "l1"),
    "no bands": (_no_bands, "huber", "targets"),
    "no radius": (_no_radius, "cross-entropy", "missing"),
    "own noise forgotten": (_no_own, "cross-entropy", "missing"),
    "rows too cheap": (_cheap_rows, "cross-entropy", "labels"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_rules_are_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, loss, name = MUTANTS[mutant]
    assert not _escapes(loss, name, 1)
    change(monkeypatch)
    assert _escapes(loss, name)


# Size -------------------------------------------------------------------------------------------------------------------


def test_only_what_memory_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 4))
    data = mc.Dataset.of(x, (x[:, 0] + rng.normal(size=20_000) > 0).astype(int))
    run = mc.certify_fit(data, mc.LInf(0.001), Fitted(), attacked=False)
    step, bound = step_of(data, Fitted()), mc.LInf(0.001).bind(data)
    for x_other, y_other in bound.sample(rng, 2):
        assert run.bounds.contains(step.train(run.theta, x_other, y_other))
    monkeypatch.setattr(forecast, "free_memory", lambda: 10_000_000)
    with pytest.raises(UserError, match=r"^20000 rows need about .* GiB .* fewer rows \(such as --sample \d+\)"):
        mc.certify_fit(data, mc.LInf(0.001), Fitted(), attacked=False)
