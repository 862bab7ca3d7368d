"""The noise of a row is paid for when the row moves, or goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fits import step_of, table
from mibp_cert import Budget, Fitted, LInf, Removed
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.classes import pairs_of
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.engine import classes_problem, table_problem

NOISE = LInf({"income": 2.0})
BESIDE = [Removed(1), Budget(LInf({"income": 0.1}), rows=1)]


def unpaid(loss: str, threat: Any, box: float, seed: int = 0) -> float:
    """How far a dirty row's share of the bound is above the line of the row itself and what is paid for it: for a row that is
    gone, or moved, and made-up ranges."""
    rng, data = np.random.default_rng(seed), table(loss, 9)
    problem = table_problem(step_of(data, Fitted(loss)), threat.bind(data), np.zeros(0))
    (budget,), s, (n, p) = problem.table.budgets, problem.s, problem.table.rows.x.shape
    z = Ranges(problem.c - box, problem.c + box, s - 0.02, s + 0.02, ((s - 0.3, s + 0.3),))
    dual, a, own = Dual(problem.table, problem.loss, z, problem.tau), rng.normal(size=(20, p)), np.full(20, -1)
    u, kappa, theta, rho = dual._search(a, own, 1.0, np.zeros((20, n)))
    kappa = rng.random(kappa.shape) * problem.loss.steepest
    lines, _ = dual.main.lines(u, kappa, rho[0], np.zeros((20, n)), problem.table)
    dual._largest = lambda budget, gain: gain  # type: ignore[method-assign]
    cost, _ = dual._cost(budget, dual.by[0], u, kappa, theta, lines, own, 1.0)
    worst = -np.inf
    for _ in range(1000):
        x = budget.by.x + budget.by.r * rng.choice([-1.0, 1.0], size=(n, p))
        model = problem.c + box * rng.choice([-1.0, 1.0], p) * rng.random(p) ** rng.choice([0.1, 1.0])
        there = 1.0 if budget.gone is None else rng.choice([0.0, 0.5, 1.0])
        share = there * problem.loss.psi(budget.by.y, x @ model) * (u @ x.T)
        over = share - (lines.const + lines.coef @ model + cost)
        worst = max(worst, float(np.where(np.abs(x @ model - s) <= 0.3, over, -np.inf).max()))
    return worst


@pytest.mark.parametrize("threat", BESIDE)
@pytest.mark.parametrize(("loss", "box"), [("cross-entropy", 0.3), ("squared-error", 1.0), ("squared-hinge", 1.0)])
def test_a_row_in_doubt_pays_for_the_noise_of_its_line_when_it_moves_or_goes(
    loss: str, box: float, threat: Any
) -> None:
    for seed in range(2):
        assert unpaid(loss, NOISE & threat, box, seed) <= 1e-12


def unpaid_by_classes(threat: Any, multi: str, seed: int = 0) -> float:
    """The same for three classes."""
    rng, data = np.random.default_rng(seed), table("cross-entropy", 9, classes=3)
    step = step_of(data, Fitted(multi=multi))
    problem: Any = classes_problem(step, threat.bind(data), np.zeros(0))
    at, softmax = problem.point(), multi == "softmax"
    wide = tuple((low - 0.5, high + 0.5) for low, high in at.by)
    dual = problem._dual(Ranges(at.low - 0.6, at.high + 0.6, at.s_low - 0.02, at.s_high + 0.02, wide))
    (budget,), n, none = dual.table.budgets, len(dual.table.rows), np.full(15, -1, dtype=np.intp)
    a, plus, c = rng.normal(size=(15, problem.c.size)), np.zeros((15, 3, n)), step.by_class(problem.c)
    u, p, rho, theta = dual._find(a, none, np.zeros((15, 3)), plus)
    lines, _ = dual.all.class_lines(u, p, rho, plus, None)
    dual._largest = lambda budget, gain: gain
    cost, _ = dual._replaced(budget, dual.others[0], u, p, theta, lines, none, a)
    s_c, worst = c @ dual.table.rows.x.T, -np.inf
    for _ in range(500):
        x = budget.by.x + budget.by.r * rng.choice([-1.0, 1.0], size=budget.by.x.shape)
        model = c + rng.uniform(-0.6, 0.6, c.shape) * rng.choice([0.1, 1.0])
        s, there = model @ x.T, 1.0 if budget.gone is None else rng.choice([0.0, 0.5, 1.0])
        off = pairs_of(3) @ (s - s_c) if softmax else s - s_c
        share = there * (dual.all.at(s, budget.by.y.T)[1] * (u @ x.T)).sum(axis=1)
        over = share - (lines.const + lines.coef @ model.ravel() + cost)
        worst = max(worst, float(np.where(np.abs(off).max(axis=0) <= 0.5, over, -np.inf).max()))
    return worst


@pytest.mark.parametrize("multi", ["softmax", "one-versus-rest"])
@pytest.mark.parametrize("threat", BESIDE)
def test_rows_in_doubt_of_several_classes_pay_for_the_noise_of_their_lines(threat: Any, multi: str) -> None:
    for seed in range(3):
        assert unpaid_by_classes(NOISE & threat, multi, seed) <= 1e-12
