"""Rows that were lost several times cost as often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fits import step_of
from mibp_cert import Added, Fitted
from mibp_cert.fitted import ball
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.engine import table_problem
from mibp_cert.fitted.zonotope import Zonotope
from test_fitted_rows import tiny


@pytest.mark.parametrize(("loss", "c"), [("cross-entropy", 0.1), ("squared-hinge", 0.01)])
def test_a_row_that_was_lost_several_times_is_paid_for_as_often(loss: str, c: float) -> None:
    """Equal rows: by multipliers of a query's own, shared ones, one zonotope, and the ball."""
    most = 8
    bound = Added(most, {"0": (1.0, 1.0), "1": (1.0, 1.0)}).bind(tiny(loss, 6, 7))
    step = step_of(bound.clean, Fitted(loss, c))
    problem, (x, y) = table_problem(step, bound, np.zeros(0)), bound.reference
    counts = [(none, one) for none in range(most + 1) for one in range(most + 1 - none)]
    xs, ys = (np.repeat(part[None], len(counts), axis=0) for part in (x, y))
    for labels, (none, one) in zip(ys, counts, strict=True):
        labels[7 : 7 + none], labels[7 + none : 7 + none + one] = [1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]
    theta = step.train(np.zeros((len(counts), 3)), xs, ys)
    s, other = theta @ problem.table.rows.x.T, theta @ problem.table.budgets[0].by.x.T
    ends = [(part.min(axis=0), part.max(axis=0)) for part in (theta, s, other)]
    z = Ranges(*ends[0], *ends[1], (ends[2],))
    found = [problem.bounds(z), replace(problem, shared=True).bounds(z), ball.ball(problem)]
    for each in [*found, Zonotope(problem.table, problem.loss, z, problem.tau).bounds()]:
        assert each is not None
        assert np.maximum(each.low - theta, theta - each.high).max() <= 1e-12
        assert np.maximum(each.s_low - s, s - each.s_high).max() <= 1e-12
