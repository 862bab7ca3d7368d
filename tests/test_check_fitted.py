"""The checker of fitted models: honest certificates are proven, no real fit is beyond its bounds, wrong rules are noticed."""

from __future__ import annotations

from typing import Any

import pytest

from fits import REGRESSIONS, threats
from mibp_cert import Split
from mibp_cert.check import fitted as checker
from mibp_cert.errors import UserError
from mibp_cert.fitted import Fitted
from mibp_cert.fitted.losses import SCORE_LOSSES
from mibp_cert.store.certificate import claim_of
from mibp_cert.threats import L2, Budget, LabelFlips, LInf, Removed
from proofs import above, beyond, known, mutant, small

REFUSED = {"rows in step": "rules", "few cells": "cells", "exchanged": "exchanged"}
"""Threats of the tests that the checker does not know, and what its sentence names."""
MORE = {
    "removed": Removed(2),
    "removed and flips": Removed(1) & LabelFlips(1),
    "removed beside noise": Removed(2) & LInf({"income": 0.5}),
    "balls and a bad row": L2({"age": 6.0}) & Budget(LInf({"income": 5.0}), rows=1),
}
CASES = [
    (loss, name)
    for loss in SCORE_LOSSES
    for name in (*threats(loss), *MORE)
    if name not in REFUSED and not (loss in REGRESSIONS and "flips" in name)
]


def case(loss: str, name: str) -> tuple[Any, Any, Fitted]:
    threat = MORE[name] if name in MORE else threats(loss)[name]
    return small(loss, name).train, threat, Fitted(loss, C=0.3)


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_no_fit_is_beyond_a_bound_whatever_the_multipliers(loss: str, name: str) -> None:
    assert beyond(known(*case(loss, name)), seed=len(name)) < 1e-9


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_a_row_is_nowhere_above_its_line(loss: str, name: str) -> None:
    assert above(known(*case(loss, name)), seed=len(name)) < 1e-9


@pytest.mark.parametrize("name", REFUSED)
def test_threats_that_it_does_not_know_are_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=REFUSED[name]):
        known(*case("cross-entropy", name))


RULES: dict[str, tuple[str, str, str, str]] = {
    "wrong sign of p": ("hat[i, j] += r * rho", "hat[i, j] -= r * rho", "cross-entropy", "linf"),
    "chord forgotten": ("-(-(r * gap) >> 1)", "0 * r", "squared-error", "linf"),
    "kink forgotten": ("if not (s < low or s > high)]", "if False]", "squared-hinge", "labels"),
    "stationary points forgotten": (
        'if self.loss == "cross-entropy" and omega and',
        "if False and",
        "cross-entropy",
        "linf",
    ),
    "top-k one short": ("[: group.most]", "[: group.most - 1]", "cross-entropy", "labels"),
    "rows that go cost nothing": ("if group.goes:", "if False:", "cross-entropy", "removed"),
    "own noise forgotten": ("plus[own], a = sign << (2 * k), 0 * a", "pass", "cross-entropy", "linf"),
    "spread of psi forgotten": ("rows.w * (listed(high) - listed(low))", "0 * rows.w", "cross-entropy", "linf"),
    "spread of the parameters forgotten": (
        "box[0] + box[1], box[1] - box[0]",
        "box[0] + box[1], 0 * box[0]",
        "squared-error",
        "linf",
    ),
    "lower corner of the box": (
        "np.maximum(coef * self.box[0]",
        "np.minimum(coef * self.box[0]",
        "cross-entropy",
        "linf",
    ),
    "one vector for all": ("-(-max(over(at)) >> 1)", "-(-over(at)[0] >> 1)", "cross-entropy", "any category"),
    "ellipsoid without its curvature": ("- (-(nu * (one * one + b @ b)) // 2)", "", "cross-entropy", "l2 of some rows"),
    "penalties forgotten": ("(problem.alpha * u << k)", "0 * u", "cross-entropy", "linf"),
    "targets not in doubt": (
        "dict.fromkeys((rows.y[0][i], rows.y[1][i]))",
        "(rows.y[0][i],)",
        "squared-error",
        "targets",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_wrong_rule_is_noticed(name: str) -> None:
    old, new, loss, threat = RULES[name]
    module = mutant(old, new)
    given = known(*case(loss, threat))
    assert any(max(beyond(given, seed, module), above(given, seed, module)) > 1e-6 for seed in range(4))
    assert max(beyond(given), above(given)) < 1e-9


def test_what_takes_too_long_is_refused_with_an_estimate() -> None:
    data, threat, model = case("cross-entropy", "linf")
    split = Split("small", data, test=data)
    problem, _ = checker.problem_of(claim_of(split, model, threat, None), {}, split)
    with pytest.raises(UserError, match=r"would take about \d+ minutes"):
        checker.check_size(problem, 10**8)
