"""The tilt: optimisers that stop early are inside, whatever bounds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fits import step_of, table
from mibp_cert import Fitted
from mibp_cert.fitted import ball
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.classes import curvature, in_layout, pairs_of, ridge, softmax
from mibp_cert.fitted.engine import classes_problem, table_problem
from mibp_cert.fitted.linear import Relaxation
from mibp_cert.fitted.zonotope import Zonotope
from mibp_cert.threats import Nothing
from test_fitted_rows import tiny


def program(problem: Any, z: Ranges) -> Ranges:
    """The ends that the linear program has for parameters."""
    made, eye = Relaxation(problem.table, problem.loss, z, problem.tau), np.eye(len(z.low))
    low, high = -made.upper(made.of_parameters(-eye)), made.upper(made.of_parameters(eye))
    return replace(z, low=low, high=high)


@pytest.mark.parametrize("k", range(3))
def test_all_that_bounds_a_minimiser_holds_optimisers_that_stop_early(k: int) -> None:
    """Ridge has them in closed form: at the gradient `v`, `θ = c + M⁻¹v`. One entry of `v` at a time; columns far from 0."""
    data = tiny("squared-error", 3)
    data = replace(data, x=data.x + np.array([2.0, -1.0]))
    problem = table_problem(step_of(data, Fitted("squared-error", 0.01)), Nothing().bind(data), np.zeros(0))
    x, tau = problem.table.rows.x, 0.1 * np.eye(3)[k]
    off = np.linalg.solve(x.T @ x + np.diag(problem.table.alpha), tau)
    theta = problem.c + np.outer([-1.0, 0.0, 1.0], off)
    s = theta @ x.T
    problem = replace(problem, tau=problem.tau + tau)
    z = Ranges(theta.min(axis=0), theta.max(axis=0), s.min(axis=0), s.max(axis=0))
    wide = Ranges(z.low - 0.01, z.high + 0.01, z.s_low - 0.01, z.s_high + 0.01)
    found = [
        problem.bounds(wide),
        replace(problem, shared=True).bounds(wide),
        ball.ball(problem),
        program(problem, wide),
    ]
    for each in [*found, Zonotope(problem.table, problem.loss, wide, problem.tau).bounds()]:
        assert each is not None
        assert np.maximum(each.low - theta, theta - each.high).max() <= 1e-12
        assert np.maximum(each.s_low - s, s - each.s_high).max() <= 1e-12


@pytest.mark.parametrize("k", range(3))
def test_softmax_holds_optimisers_that_stop_early(k: int) -> None:
    data = table("cross-entropy", 9, classes=3)
    step = step_of(data, Fitted(C=0.1))
    problem: Any = classes_problem(step, Nothing().bind(data), np.zeros(0))
    x, y, size = problem.table.rows.x, problem.table.rows.y, problem.table.rows.x.shape[1]
    fixed, c, tau = ridge(problem.table.alpha, problem.pin, 3), step.by_class(problem.c), np.zeros((3, size))
    tau[k, k - 1] = 0.05
    models = []
    for sign in (-1.0, 0.0, 1.0):
        of = c.copy()
        for _ in range(20):
            p = softmax(x @ of.T)
            gradient = ((p - y).T @ x).ravel() + fixed @ of.ravel() - sign * tau.ravel()
            of = of - np.linalg.solve(curvature(p.T, np.ones(9), x) + fixed, gradient).reshape(of.shape)
        models.append(of)
    by_class = np.stack(models)
    theta, s = in_layout(by_class, size - 1), ((x @ by_class.swapaxes(1, 2)) @ pairs_of(3).T).reshape(3, -1)
    z = Ranges(theta.min(axis=0), theta.max(axis=0), s.min(axis=0), s.max(axis=0))
    problem = replace(problem, tau=problem.tau + in_layout(tau, size - 1))
    for rounds in (0, 2):
        found = problem.bounds(z, rounds)
        assert np.maximum(found.low - theta, theta - found.high).max() <= 1e-12
        assert np.maximum(found.s_low - s, s - found.s_high).max() <= 1e-12
