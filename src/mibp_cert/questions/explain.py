"""Why is the range of an output as wide as it is? For fitted models: through which rows and columns, and by what."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mibp_cert.certify.predict import nominal_classes
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError
from mibp_cert.fitted import FitStep, FittedSet, margin_queries
from mibp_cert.fitted.bounded import Bounded
from mibp_cert.fitted.engine import table_problem
from mibp_cert.fitted.explain import Clean, Explanation
from mibp_cert.fitted.explain import explain as parts_of
from mibp_cert.fitted.explain_classes import explain_classes
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.several import OneVersusRest, SoftmaxProblem

ENDS = ("both", "low", "high")


def explain(run: CertifiedRun, x: ArrayLike, end: str = "both") -> Explanation:
    """What the range of a fitted model's output for each row of `x` is made of: the score of class 1, or the output of a
    regression in the units of its targets; of three or more classes the lead of a row's class over that which comes closest
    to it. Arrays over training rows and columns add up to its width, or, with `end="low"` or `"high"`, to the distance of
    that end from the clean model's output. Where a threat has so few datasets that every one was fitted, there is no bound to
    take apart: the parts are those of a bound to first order, which is no promise.

    >>> from mibp_cert import LInf, certify_fit, explain, two_moons
    >>> data = two_moons(0)
    >>> found = explain(certify_fit(data, LInf(0.02)), data.test.x[:3])
    >>> found.noise.shape, bool((found.rows.sum(axis=1) / found.total > 0.9).all())
    ((3, 100, 2), True)
    """
    if end not in ENDS:
        raise UserError(f"The end to explain is one of {', '.join(ENDS)}, not {end!r}.")
    rows, sides = run.inputs(x).x, {"both": (1.0, -1.0), "low": (-1.0,), "high": (1.0,)}[end]
    found = [explain_ends(run, rows, np.full(len(rows), sign)) for sign in sides]
    whole = found[0] if len(found) == 1 else found[0] + found[1]
    return whole if run.train.target is None else whole.scaled(run.train.target.scale)


def explain_ends(run: CertifiedRun, x: Array, sign: Array) -> Explanation:
    """What the upper ends of `sign` times the outputs (of several classes: leads) are made of, above those of the clean model;
    where every dataset was fitted on its own, what they would be to first order."""
    if run.fitted is None or not isinstance(run.bounds, FittedSet):
        raise UserError("Bounds of trainings in steps are not taken apart; ask mc.blame(run), or certify_fit a model.")
    (step,) = run.request.plan.steps
    assert isinstance(step, FitStep)
    clean = Clean.of(step, run.request.members, run.bounds.frozen)
    problem, ranges = run.bounds.problem, run.bounds.ranges
    counted = np.flatnonzero(step.counts(run.request.members.reference[1]) > 0)
    if isinstance(problem, SoftmaxProblem | OneVersusRest):
        a = sign[:, None] * _leads(run, step, problem, x)
        return explain_classes(problem, ranges, clean, a).among(counted, len(run.train))
    a = sign[:, None] * step.design(run.bounds.lower, x)
    if not isinstance(problem, Problem):
        problem = table_problem(step, run.request.members, run.bounds.frozen)
        ranges = problem.point()
    return parts_of(problem, ranges, clean, a).among(counted, len(run.train))


def _leads(run: CertifiedRun, step: FitStep, problem: Bounded, x: Array) -> Array:
    """Of several classes: that of each row less the one whose lead over it may be largest, as queries."""
    assert isinstance(run.bounds, FittedSet)
    centre = nominal_classes(run.network, run.bounds.centre, x)
    a = margin_queries(step, run.bounds.lower, x, centre)
    nearest = problem.upper(run.bounds.ranges, -a).reshape(len(x), -1).argmax(axis=1)
    return np.asarray(a.reshape(len(x), -1, a.shape[1])[np.arange(len(x)), nearest])
