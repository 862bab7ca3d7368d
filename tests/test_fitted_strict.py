"""What only repeats a hypothesis, or lies on an end, proves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fits import step_of, table
from mibp_cert.fitted import Fitted, branch, ranges
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.engine import table_problem
from mibp_cert.fitted.linear import Relaxation
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.ranges import prove
from mibp_cert.threats import Budget, LInf
from test_fitted_core import world_of


@pytest.mark.parametrize("attempts", [2, 24])
@pytest.mark.parametrize("end", ["low", "high", "s_low", "s_high"])
def test_one_end_that_only_repeats_its_hypothesis_proves_nothing(
    end: str, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many attempts there are, and though all other ends lie strictly inside."""
    problem = world_of("cross-entropy", "linf", c=0.1, samples=0, rounds=0).problem

    def bounds(self: Any, z: Ranges, rounds: int = 2) -> Ranges:
        more, s_more = 0.01 * (z.high - z.low), 0.01 * (z.s_high - z.s_low)
        inside = Ranges(z.low + more, z.high - more, z.s_low + s_more, z.s_high - s_more)
        return replace(inside, **{end: getattr(z, end)})

    monkeypatch.setattr(ranges, "ATTEMPTS", attempts)
    monkeypatch.setattr(ranges, "BEST_WORK", 0)
    monkeypatch.setattr(Problem, "bounds", bounds)
    monkeypatch.setattr(Problem, "reaches", lambda self, *args: True)
    monkeypatch.setattr(ranges, "last_resort", lambda problem: None)
    assert prove(problem) is None


def test_a_bound_on_the_very_end_refutes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an exit nor a case: only what is strictly below is a contradiction."""
    problem = world_of("cross-entropy", "linf", c=0.1, samples=0, rounds=0).problem
    z, a = prove(problem), np.eye(len(problem.c))[0]
    assert z is not None
    v = float(0.5 * (problem.c[0] + z.high[0]))
    monkeypatch.setattr(Relaxation, "fits", lambda table: False)
    monkeypatch.setattr(branch, "DEPTH", 0)
    monkeypatch.setattr(Dual, "best", lambda self, a, *args: (np.full(len(a), np.inf), None))
    monkeypatch.setattr(Dual, "upper", lambda self, a, *args: v * a[:, 0])
    assert problem.reaches(problem.around(z), a, v)
    assert not branch.never(problem, z, a, v)


def over_by(loss: str, box: float, seed: int = 0) -> float:
    """How far a replaced row's share of the bound is above the line of the row itself and what is paid for it, for made-up
    ranges: each row is in doubt by much, and one by a little more."""
    rng, threat = np.random.default_rng(seed), LInf({"income": 2.0}) & Budget(LInf({"income": 0.1}), rows=1)
    problem = table_problem(step_of(data := table(loss, 9), Fitted(loss)), threat.bind(data), np.zeros(0))
    (budget,), s, (n, p) = problem.table.budgets, problem.s, problem.table.rows.x.shape
    z = Ranges(problem.c - box, problem.c + box, s - 0.02, s + 0.02, ((s - 1.0, s + 1.0),))
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
        share = problem.loss.psi(budget.by.y, x @ model) * (u @ x.T)
        over = share - (lines.const + lines.coef @ model + cost)
        worst = max(worst, float(np.where(np.abs(x @ model - s) <= 1.0, over, -np.inf).max()))
    return worst


@pytest.mark.parametrize(("loss", "box"), [("cross-entropy", 0.3), ("squared-error", 1.0), ("squared-hinge", 1.0)])
def test_a_row_in_doubt_that_is_replaced_pays_for_its_own_noise_and_the_other_ones(loss: str, box: float) -> None:
    assert over_by(loss, box) <= 1e-12
