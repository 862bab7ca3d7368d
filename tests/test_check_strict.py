"""What a certificate says is taken word by word: the checker refuses what a reader would not take as it does."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from mibp_cert import certificate_of, certify_fit
from mibp_cert.check import fitted as checker
from mibp_cert.check.cells import Data
from mibp_cert.check.file import Certificate
from mibp_cert.cli.check import words
from mibp_cert.data.reading import Reading
from mibp_cert.errors import UnsupportedOperation, UserError
from mibp_cert.fitted import Fitted
from mibp_cert.store.certificate import claim_of
from mibp_cert.threats import LInf, Nothing
from proofs import small

NOISE = {"kind": "linf", "eps": {"income": 50.0}}
FLIP = {"kind": "label-flips", "at_most": None}
SPLIT = {loss: small(loss, "nothing") for loss in ("cross-entropy", "squared-error")}


def problem(threat: Any = NOISE, loss: str = "cross-entropy", **model: Any) -> Any:
    """What the checker makes of a certificate that says this."""
    split = SPLIT[loss]
    claim = claim_of(split, Fitted(loss, C=0.1), Nothing(), None)
    claim["model"] |= model
    return checker.problem_of({**claim, "threat": threat}, {}, split)[0]


def budget(threat: Any) -> Any:
    return {"kind": "budget", "threat": threat, "rows": 1}


THREATS: dict[str, tuple[Any, str]] = {
    "noise divided by another number": ({**NOISE, "half": 10**9}, "entry 'half'"),
    "a ball that is another one": ({"kind": "l2", "eps": 0.5, "ball": False}, "entry 'ball'"),
    "rows by another name": ({**NOISE, "rows_": [0]}, "entry 'rows_'"),
    "amounts of columns left out": ({"kind": "linf", "eps": {"income": 0.1, "age": 9}, "columns": ["income"]}, "name"),
    "errors in one direction of two sets of columns": (
        {"kind": "monotone", "columns": None, "up": {"age": 1}, "down": {"income": 9}},
        "names no columns",
    ),
    "nine tenths of a row": ({"kind": "budget", "threat": NOISE, "rows": 0.9}, "number of rows"),
    "fewer rows than none": ({"kind": "removed", "at_most": -1}, "number of rows"),
    "rows that are a truth": ({"kind": "removed", "at_most": False}, "number of rows"),
    "a short mask": ({**NOISE, "rows": [False]}, "a mask of 1 rows, where there are 8"),
    "rows beyond the last": ({**NOISE, "rows": [8]}, "rows that there are not"),
    "rows that are no numbers": ({**NOISE, "rows": ["0"]}, "rows that there are not"),
    "an amount in words": ({"kind": "linf", "eps": "1/1000000"}, "no amount"),
    "an infinite amount": ({"kind": "linf", "eps": float("inf")}, "no amount"),
    "a share of nobody knows what": ({"kind": "linf", "eps": 0.1, "relative": "no"}, "relative is true or false"),
    "two conditions in one": (
        {"kind": "where", "threat": NOISE, "when": {"rows": [], "column": "age", "is": ">=", "value": 0}},
        "condition",
    ),
    "a budget inside of a budget": (budget({"kind": "budget", "threat": NOISE, "rows": 1}), "under a budget"),
    "flips within a limit inside of a budget": (budget({**FLIP, "at_most": 1}), "under a budget"),
    "rows that go inside of a budget": (budget({"kind": "removed", "at_most": 1}), "under a budget"),
    "missing values inside of a budget": (budget({"kind": "missing"}), "under a budget"),
    "a budget of one that is a condition deeper": (
        budget({"kind": "where", "threat": {"kind": "missing"}, "rows": [0]}),
        "under a budget",
    ),
    "a budget of what is not said": (budget(None), "in this form"),
    "a budget of cells": ({"kind": "budget", "threat": NOISE, "rows": 1, "cells": 1}, "entry 'cells'"),
    "a valid range": ({**NOISE, "clip": [0.0, 1.0]}, "entry 'clip'"),
    "a marker of missing values": ({"kind": "missing", "marker": 0.0}, "entry 'marker'"),
    "a short mask of columns": ({"kind": "linf", "eps": 0.5, "columns": [True]}, "in this form"),
    "a column among columns": ({"kind": "confusable", "column": ["mood"], "pairs": {}}, "in this form"),
    "two conditions beside each other": (
        {"kind": "where", "threat": NOISE, "when": {"rows": [0]}, "rows": [0, 1, 2]},
        "one condition",
    ),
}


@pytest.mark.parametrize("name", THREATS)
def test_a_threat_is_what_its_words_say_or_refused(name: str) -> None:
    threat, named = THREATS[name]
    with pytest.raises(UserError, match=named):
        problem(threat)


MODELS: dict[str, dict[str, Any]] = {
    "weights of classes that there are not": {"class_weight": {"0": 1.0, "1": 1.0, "ill": 9.0}},
    "weights of some classes": {"class_weight": {"1": 9.0}},
    "weights below nothing": {"class_weight": {"0": -1.0, "1": 1.0}},
    "weights in words": {"class_weight": {"0": "1", "1": 1.0}},
    "weights that are balanced": {"class_weight": "balanced"},
    "a penalty in words": {"penalise_intercept": "no"},
    "an intercept in words": {"fit_intercept": "no"},
    "C as a truth": {"C": True},
    "C in words": {"C": "0.1"},
    "no penalty": {"C": float("inf")},
    "frozen features": {"features": {"kind": "tanh"}},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_what_its_words_say_or_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"class_weight|weights of classes|C must be|A model says"):
        problem(**MODELS[name])


def test_a_regression_has_no_weights_of_classes() -> None:
    with pytest.raises(UserError, match="there are none"):
        problem({"kind": "target-noise", "eps": 1.0}, "squared-error", class_weight={"all": 1e-9})


@pytest.mark.parametrize("limited", [False, True])
def test_whatever_two_threats_do_to_a_label_it_is_a_label(*, limited: bool) -> None:
    """A squared hinge at the label 2 or −1 is below that of both labels: ranges came out too narrow."""
    flip = {**FLIP, "at_most": 1} if limited else {"kind": "where", "threat": FLIP, "rows": [0, 1, 2]}
    found = problem({"kind": "all", "threats": [flip, flip]})
    one = 1 << found.unit.k
    for rows in (found.rows, *(group.dirty for group in found.groups)):
        assert min(rows.y[0]) >= 0
        assert max(rows.y[1]) <= one
    assert any((rows.y[0] < rows.y[1]).any() for rows in (found.rows, *(group.dirty for group in found.groups)))


def test_errors_in_one_direction_name_their_columns_in_steps_too() -> None:
    with pytest.raises(UnsupportedOperation, match="without a name"):
        Data(SPLIT["cross-entropy"].train, {"kind": "monotone", "columns": None, "up": {"age": 1.0}, "down": {}})


def test_a_share_is_true_or_false_in_steps_too() -> None:
    with pytest.raises(UnsupportedOperation, match="relative is true or false"):
        Data(SPLIT["cross-entropy"].train, {**NOISE, "relative": "no"})


def test_check_tells_what_the_sender_chose() -> None:
    """Weights of classes, columns left out and doubtful test rows change what is proven: nobody should have to look for them."""
    split = SPLIT["cross-entropy"]
    model = Fitted(C=0.1, class_weight={0: 1.0, 1: 9.0}, penalise_intercept=True)
    source = {"source": "people.csv", "reading": {**asdict(Reading("ill")), "drop": ["age"], "test": 0.1}}
    claim = claim_of(split, model, Nothing(), LInf(0.5), source)
    said = " ".join(words(claim, split, checker.Verdict([], 8, 40, 2, 5, 0.4)))
    for part in ("with a penalty on the intercept", "('0' 1, '1' 9)", "test = 0.1, drop = ('age',)", "off by 0.5"):
        assert part in said
    plain = claim_of(split, Fitted(C=0.1), Nothing(), None, {**source, "reading": asdict(Reading("ill"))})
    assert len(words(plain, split, checker.Verdict([], 8, 40, 2, 5, 0.4))) == 3


def altered(loss: str, threat: Any, **arrays: Any) -> checker.Verdict:
    """The verdict on a certificate with other claims, each made of the old ones by its function."""
    split = SPLIT[loss]
    made = certificate_of(certify_fit(split, threat, Fitted(loss, C=0.1), attacked=False))
    names = [name for name in made.arrays if name.startswith("claim_")]
    given = {name: arrays.get(name, arrays["every"])(made.arrays[name]) for name in names}
    return checker.check(Certificate(made.plain, {**made.arrays, **given}), split)


def test_a_claim_that_is_made_twice_counts_once() -> None:
    once, twice = (altered("cross-entropy", LInf({"income": 0.1}), every=how) for how in (np.copy, _twice))
    assert not twice.failures
    assert (once.claims, once.certified_accuracy) == (twice.claims, twice.certified_accuracy)
    assert once.claims > 0


def test_a_range_without_an_end_is_none() -> None:
    both, lower, none = (
        altered("squared-error", LInf({"income": 0.1}), every=how)
        for how in (np.copy, lambda a: a[::2], lambda a: a[:0])
    )
    assert (both.claims, lower.claims, none.claims) == (5, 0, 0)
    assert not both.failures + lower.failures + none.failures


def test_claims_are_about_whole_rows() -> None:
    with pytest.raises(UserError, match="no whole numbers"):
        altered("cross-entropy", LInf({"income": 0.1}), every=np.copy, claim_rows=lambda a: a.astype(float))


def _twice(array: Any) -> Any:
    return np.concatenate([array, array])
