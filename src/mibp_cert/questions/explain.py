"""Why is the range of an output as wide as it is? For fitted models: through which rows and columns, and by what."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mibp_cert.certify.run import CertifiedRun
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError
from mibp_cert.fitted import FitStep, FittedSet
from mibp_cert.fitted.engine import table_problem
from mibp_cert.fitted.explain import Clean, Explanation
from mibp_cert.fitted.explain import explain as parts_of
from mibp_cert.fitted.problem import Problem

ENDS = ("both", "low", "high")


def explain(run: CertifiedRun, x: ArrayLike, end: str = "both") -> Explanation:
    """What the range of the output of each row of `x` is made of: the score of class 1, or the output of a regression in the
    units of its targets. Arrays over training rows and columns add up to its width, or, with `end="low"` or `"high"`, to the
    distance of that end from the clean model's output.

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
    """What the upper ends of `sign` times the outputs are made of, above those of the clean model; where every dataset was fitted
    on its own, what they would be to first order."""
    if run.fitted is None or not isinstance(run.bounds, FittedSet):
        raise UserError("Bounds of trainings in steps are not taken apart; ask mc.blame(run), or certify_fit a model.")
    (step,) = run.request.plan.steps
    assert isinstance(step, FitStep)
    if step.several:
        raise UserError(
            "Bounds of fitted models with three or more classes are not taken apart so far: ask about two of them."
        )
    clean = Clean.of(step, run.request.members, run.bounds.frozen)
    a = sign[:, None] * step.design(run.bounds.lower, x)
    problem, ranges = run.bounds.problem, run.bounds.ranges
    if not isinstance(problem, Problem):
        problem = table_problem(step, run.request.members, run.bounds.frozen)
        ranges = problem.point()
    return parts_of(problem, ranges, clean, a)
