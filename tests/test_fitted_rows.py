"""Rows that come and go, and weights, in fitted models: enumerated, sampled, attacked, and fitted by scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

import mibp_cert as mc
from fits import REGRESSIONS, World, attacked, step_of, table
from mibp_cert import Added, Budget, Dataset, Fitted, LabelFlips, LInf, Removed, Shift, Split, TargetNoise, column
from mibp_cert.certify.attack import AttackSettings
from mibp_cert.errors import UserError
from mibp_cert.fitted import SCORE_LOSSES, dual, presence
from mibp_cert.fitted.ranges import prove, tighten
from mibp_cert.fitted.zonotope import Zonotope

LOSSES = list(SCORE_LOSSES)
QUICK = AttackSettings(members=10, points=10, parameters=6, rounds=2)
C = {"cross-entropy": 0.1, "squared-error": 0.02, "squared-hinge": 0.005, "huber": 0.02}
DOMAIN: dict[str, Any] = {"age": (30.0, 60.0), "mood": ["bad", "fair"], "income": (2.0, 6.0), "target": (-2.0, 2.0)}
LEAVING: dict[str, Any] = {
    "removed": Removed(2),
    "removed of some rows": Removed(2).where(column("age") >= 50),
    "noise and removed": LInf({"income": 0.2}) & Removed(1),
    "bad rows and removed": Budget(LInf({"income": 2.0}), rows=1) & Removed(1),
    "categories and removed": Shift("mood", by=1).where(column("age") >= 50) & Removed(1),
}
COMING: dict[str, Any] = {
    "added": Added(1, DOMAIN),
    "added twice": Added(1, {**DOMAIN, "mood": ["good"]}) & Added(1, {**DOMAIN, "age": (40.0, 40.0)}),
    "added and removed": Added(1, DOMAIN) & Removed(1),
    "noise and added": LInf({"income": 0.2}) & Added(1, DOMAIN),
}
LABELS = {"flips and removed": LabelFlips(1) & Removed(1), "flips and added": LabelFlips(1) & Added(1, DOMAIN)}
TARGETS = {"targets and removed": TargetNoise(0.3) & Removed(1)}


def usable(threat: Any, loss: str) -> Any:
    """The threat without the target's range, where there are classes."""
    if loss in REGRESSIONS:
        return threat
    parts = threat.inner or (threat,)
    out = [
        replace(p, domain={k: v for k, v in p.domain.items() if k != "target"}) if isinstance(p, Added) else p
        for p in parts
    ]
    return mc.threats.All.of(out)


def threats(loss: str) -> dict[str, Any]:
    found = {**LEAVING, **COMING, **(TARGETS if loss in REGRESSIONS else LABELS)}
    return {name: usable(threat, loss) for name, threat in found.items()}


def by_scikit_learn(model: Fitted, x: Any, y: Any, weights: Any) -> Any:
    """The minimiser that scikit-learn finds, from the rows that are there."""
    on = weights > 0
    if model.loss == "squared-error":
        found: Any = Ridge(alpha=1.0 / model.C, tol=1e-12)
    elif model.loss == "cross-entropy":
        found = LogisticRegression(C=model.C, tol=1e-10, solver="newton-cholesky", max_iter=1000)
    else:
        found = LinearSVC(C=model.C, tol=1e-10, max_iter=100_000, dual=False)
    found.fit(x[on], y[on], sample_weight=weights[on])
    return np.append(np.ravel(found.coef_), found.intercept_)


def check_contained(run: Any, x: Any, y: Any, theta: Any, room: float = 0.0) -> None:
    """Parameters, scores of training rows, and outputs of test rows, for datasets `x`, `y` with these models."""
    z, bound = run.bounds.ranges, run.request.members
    assert (run.bounds.lower - room <= theta).all()
    assert (theta <= run.bounds.upper + room).all()
    step = run.request.plan.steps[0]
    s = np.einsum("mnp,mp->mn", step.design(theta, x), theta)[:, bound.clean.there]
    limited, dirty = bound.unbudgeted(), np.zeros(s.shape, dtype=bool)
    if limited is not None:
        h = limited.clean.hull()
        dirty = ((x < h.x_low) | (x > h.x_high)).any(axis=2) | ((y < h.y_low) | (y > h.y_high)).any(axis=2)
        dirty = dirty[:, bound.clean.there]
    far = room * (2.0 + np.abs(x).sum(axis=2).max())
    assert (dirty | ((z.s_low - far <= s) & (s <= z.s_high + far))).all()
    for budget, (low, high) in zip(run.bounds.problem.table.budgets, z.by, strict=True):
        if (budget.rows >= 0).all() and budget.gone is not None and budget.gone.all():
            gone = y[:, : s.shape[1], -1][:, budget.rows] == 1.0
            mine = s[:, budget.rows]
            assert (~gone | ((low - far <= mine) & (mine <= high + far))).all()
    rows = run.data.tested.x
    out = theta[:, :-1] @ rows.T + theta[:, -1:]
    if run.train.targets is not None:
        found = run.ranges(rows).outputs
        assert (found.low[:, 0] - 1e-9 - far <= out).all()
        assert (out <= found.high[:, 0] + 1e-9 + far).all()
        return
    found = run.certify(rows)
    margins = np.where(found.centre == 1, out, -out)
    assert (found.margin - 1e-9 - far <= margins).all()
    assert (margins <= found.margin_high + 1e-9 + far).all()
    if not room:
        assert ((out[:, found.certified] > 0) == (found.classes[found.certified] == 1)).all()


def split_of(loss: str, rows: int = 10) -> Split:
    train = table(loss, rows)
    return Split("survey", train, test=table(loss, 8, 50, like=train))


CASES = [(loss, name) for loss in LOSSES for name in threats(loss)]


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_fits_lie_in_their_bounds(loss: str, name: str) -> None:
    threat, split, model = threats(loss)[name], split_of(loss), Fitted(loss, 0.5 * C[loss])
    run = mc.certify_fit(split, threat, model, attack_settings=QUICK)
    bound: Any = run.request.members
    step = step_of(bound.clean, model)
    x, y, theta = attacked(step, bound, samples=30, rounds=2)
    assert len(np.unique(y[:, :, -1].sum(axis=1))) > 1
    check_contained(run, x, y, theta)
    assert run.attack is not None
    assert ((run.bounds.lower <= run.attack.theta) & (run.attack.theta <= run.bounds.upper)).all()
    if loss not in ("cross-entropy", "squared-error"):
        return
    weights = step.counts(y)
    some = [k for k in range(0, len(x), 11) if len(np.unique(y[k, weights[k] > 0, step.column])) > 1]
    found = np.stack([by_scikit_learn(model, x[k], y[k, :, step.column], weights[k]) for k in some])
    np.testing.assert_allclose(found, theta[some], atol=1e-5)
    check_contained(run, x[some], y[some], found, 1e-5)
