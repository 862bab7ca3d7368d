"""Several classes: what is bounded under the smallest ranges that hold, holds; wrong rules are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fits import World, attacked, step_of, table, threats
from mibp_cert import Fitted, LInf
from mibp_cert.fitted import class_dual, engine, known, softmax
from mibp_cert.fitted.class_dual import ClassDual
from mibp_cert.fitted.classes import (
    by_class,
    in_layout,
    minimise_classes,
    pairs_of,
    ridge,
    tilt_classes,
)
from mibp_cert.fitted.ranges import prove
from mibp_cert.fitted.softmax import ClassKnown
from test_fitted_classes import FEW, REST, K


def world_of(name: str, seed: int = 0, c: float = 1.0, **how: Any) -> World:
    data = table("cross-entropy", 12, seed, missing=name.startswith("missing"), classes=K)
    return World.of(Fitted(C=c), threats("cross-entropy")[name], data, **how)


@pytest.mark.parametrize("name", threats("cross-entropy"))
def test_bounds_hold_under_the_smallest_ranges_that_hold(name: str) -> None:
    """Whatever holds for some datasets of the threat, the bounds computed under it hold for them, too."""
    world = world_of(name, samples=20, rounds=1)
    z = world.hull()
    room = 1e-10 * (1.0 + np.abs(world.s).max())
    for rounds in (0, 2):
        assert world.excess(world.problem.bounds(z, rounds)) <= room
    a = np.random.default_rng(0).normal(size=(5, world.theta.shape[1]))
    assert ((world.theta @ a.T).max(axis=0) <= world.problem.upper(z, a) + room).all()


def rest_of(loss: str, name: str, seed: int = 0) -> tuple[Any, Any, Any]:
    """A problem of one-versus-rest, the smallest ranges that hold for some datasets of the threat, and their minimisers."""
    data, threat = table(loss, 12, seed, missing=name.startswith("missing"), classes=K), threats(loss)[name]
    how: dict[str, Any] = {"samples": 20, "rounds": 1}
    world = World.of(Fitted(loss, 0.1, multi=REST), threat, data, **how)
    x, _, theta = attacked(world.step, threat.bind(data), **how)
    of, dirty = world.step.by_class(theta), world.dirty[:, :: world.each]
    s = world.step.design(theta, x) @ of.swapaxes(1, 2)
    hulls = [
        engine.replace(world, problem=part, theta=of[:, k], s=s[..., k], dirty=dirty, each=1).hull()
        for k, part in enumerate(world.problem.each)
    ]
    return world.problem, world.problem.joined(hulls), theta


@pytest.mark.parametrize("loss", ["cross-entropy", "squared-hinge"])
def test_classes_at_once_hold_under_the_smallest_ranges_that_hold(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One-versus-rest: what is bounded jointly holds, is below the sum of its parts somewhere, and a wrong sign is noticed."""
    found = {name: rest_of(loss, name) for name in FEW}
    a = np.random.default_rng(0).normal(size=(6, 18))
    low = []
    for problem, z, theta in found.values():
        bound = problem._dual(z).upper(by_class(a, K, 5).reshape(6, -1))
        assert ((theta @ a.T).max(axis=0) <= bound + 1e-9 * (1.0 + np.abs(bound))).all()
        low.append((bound < problem._apart(z, a)).any())
    assert any(low)
    problem, z, theta = found["linf"]
    _wrong_sign(monkeypatch)
    assert ((theta @ a.T).max(axis=0) > problem._dual(z).upper(by_class(a, K, 5).reshape(6, -1))).any()


# Mutants --------------------------------------------------------------------------------------------------------------


def _escapes(name: str, seeds: int = 3) -> bool:
    """Does a fitted model leave bounds that were computed under ranges which hold for it?"""
    for seed in range(seeds):
        world = world_of(name, seed, samples=20, rounds=1)
        if any(world.excess(world.problem.bounds(world.hull(), rounds)) > 1e-9 for rounds in (0, 2)):
            return True
    return False


def _no_band(patch: pytest.MonkeyPatch) -> None:
    def band(self: Any, omega: Any, p: Any, lam: Any) -> Any:
        return (omega * p - lam * np.log(p)).sum(axis=-2)

    patch.setattr(ClassKnown, "band", band)


def _wrong_sign(patch: pytest.MonkeyPatch) -> None:
    original = ClassKnown.worst
    patch.setattr(ClassKnown, "worst", lambda self, rho: original(self, tuple(-part for part in rho)))


def _no_gap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(known, "_gap", lambda middle, radius, rho, rooms=None: 0.0 * middle)


def _no_labels(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClassKnown, "labels", lambda self, omega: -(self.rows.y.T * omega).sum(axis=-2))


def _no_own(patch: pytest.MonkeyPatch) -> None:
    original = ClassDual.upper
    patch.setattr(ClassDual, "upper", lambda self, a, own=None, sign=1.0: original(self, a))


def _one_short(patch: pytest.MonkeyPatch) -> None:
    original = class_dual.Dual._largest

    def largest(self: Any, budget: Any, gain: Any) -> Any:
        return original(self, engine.replace(budget, most=budget.most - 1), gain)

    patch.setattr(class_dual.Dual, "_largest", largest)


def _flat_ends(patch: pytest.MonkeyPatch) -> None:
    """As if probabilities did not leave their middle."""
    original = ClassKnown.__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)
        middle = softmax.softmax(self.middle, 0)
        self.p, self.log_p = (middle, middle), (np.log(middle),) * 2

    patch.setattr(ClassKnown, "__init__", init)


def _other_penalty(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(class_dual, "ridge", lambda alpha, pin, classes: 4.0 * ridge(alpha, pin, classes))


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "no band": (_no_band, "linf"),
    "probabilities at their middle": (_flat_ends, "linf"),
    "sign of rho": (_wrong_sign, "linf"),
    "no gamma": (_no_gap, "linf"),
    "labels forgotten": (_no_labels, "labels"),
    "own noise forgotten": (_no_own, "linf"),
    "budget one short": (_one_short, "labels"),
    "budget of categories one short": (_one_short, "budget of categories"),
    "another penalty": (_other_penalty, "rounded"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_rules_are_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, name = MUTANTS[mutant]
    assert not _escapes(name, 1)
    change(monkeypatch)
    assert _escapes(name)


def test_a_model_without_pin_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pin, nothing bounds the sum of the intercepts: no start may prove itself."""
    data = table("cross-entropy", 12, classes=K)
    monkeypatch.setattr(Fitted, "pin", property(lambda self: 0.0))
    step, bound = step_of(data, Fitted(C=0.1)), LInf(0.05, relative=True).bind(data)
    with np.errstate(all="ignore"):
        found = prove(engine.problem_of(step, bound, np.zeros(0)))
    assert found is None or found.radius.max() > 1e3


# Weights --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linf", "labels", "row of everything", "any category"])
def test_weights_of_rows_count(name: str) -> None:
    """Rows of weight 0, ½ and 3: the bounds hold for minimisers with these weights, and not for those without."""
    world = world_of(name, c=0.5, samples=30, rounds=1)
    step, problem, w = world.step, world.problem, np.resize([1.0, 0.5, 3.0, 0.0], 12)
    bound = threats("cross-entropy")[name].bind(table("cross-entropy", 12, classes=K))
    x, y, _ = attacked(step, bound, samples=30, rounds=1)
    design = step.design(np.zeros((len(x), step.fitted)), x)
    alpha, d = problem.table.alpha, step.head.inputs
    c = minimise_classes(design[0], y[0], w, alpha, 1.0)
    tau = tilt_classes(design[0], y[0], w, alpha, 1.0, c)
    budgets = tuple(
        engine.replace(b, by=engine.replace(b.by, w=np.where(b.rows >= 0, w[b.rows], 1.0)))
        for b in problem.table.budgets
    )
    rows = engine.replace(problem.table.rows, w=w)
    weighted = engine.replace(
        problem,
        table=engine.replace(problem.table, rows=rows, budgets=budgets),
        c=in_layout(c, d),
        tau=in_layout(tau, d),
        s=design[0] @ c.T,
    )
    theta = in_layout(minimise_classes(design, y, w, alpha, 1.0), d)
    s = design @ step.by_class(theta).swapaxes(1, 2)
    s = (s @ pairs_of(K).T).reshape(len(s), -1)
    real = engine.replace(world, problem=weighted, theta=theta, s=s)
    z = real.hull()
    for rounds in (0, 2):
        assert real.excess(weighted.bounds(z, rounds)) <= 1e-10 * (1.0 + np.abs(s).max())
    assert name != "linf" or real.excess(problem.bounds(z)) > 1e-6
