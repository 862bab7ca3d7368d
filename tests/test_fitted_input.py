"""Models at their minimum and bad input: each mistake is one sentence that says what to do, and what is only awkward works."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mibp_cert as mc
from mibp_cert import cli
from mibp_cert.errors import Diverged, MibpCertError, UserError
from mibp_cert.fitted import Fitted

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y = (X[:, 0] > 0).astype(int)
FEW = np.arange(30) < 2
WIDE = RNG.normal(size=(8, 40))
UNEVEN = X * [1e8, 1e-8]
GROUP = np.eye(3)[np.arange(30) % 3]
CLASSES, NUMBERS = mc.Dataset.of(X, Y), mc.Dataset.regression(X, X[:, 0])


def fit(data: mc.Dataset, threat: Any = None, model: Fitted | None = None, **options: Any) -> mc.CertifiedRun:
    return mc.certify_fit(data, threat, model or Fitted(C=0.1), **options)


def spoilt(value: float) -> Any:
    return np.where(np.arange(60).reshape(30, 2) == 3, value, X)


MISTAKES: dict[str, tuple[Callable[[], Any], type[MibpCertError], str]] = {
    **{
        f"C = {C!r}": (lambda C=C: Fitted(C=C), UserError, "C must be a finite number > 0")  # type: ignore[misc]
        for C in (0, -1.0, np.inf, np.nan, 1e-320, "1", None)
    },
    "one class": (lambda: mc.Dataset.of(X, np.zeros(30)), UserError, "needs at least two classes"),
    "one class of two": (
        lambda: fit(mc.Dataset.of(X, np.zeros(30, dtype=int), (0, 1))), UserError, "have the same class",
    ),
    "a class may go": (
        lambda: fit(mc.Dataset.of(X, FEW.astype(int)), mc.Removed(2)), UserError, "no row of the class 1 is left.*let fewer go",
    ),
    "all rows may go": (lambda: fit(NUMBERS, mc.Removed(30), Fitted("squared-error")), UserError, "no row is left"),
    "a class may be flipped": (
        lambda: fit(mc.Dataset.of(X, FEW.astype(int)), mc.LabelFlips(2)), Diverged,
        r"no row of the class 1 is left \(2 of them count\).*doubt fewer labels",
    ),
    "all labels": (lambda: fit(CLASSES, mc.LabelFlips()), Diverged, "no row of the class 0 is left"),
    "a class may be flipped or go": (
        lambda: fit(mc.Dataset.of(X, FEW.astype(int)), mc.LabelFlips(1) & mc.Removed(1)), UserError, "no row of the class 1",
    ),
    "one of three classes may be flipped": (
        lambda: fit(mc.Dataset.of(X, np.where(FEW, 2, Y)), mc.LabelFlips(2)), Diverged, "no row of the class 2 is left",
    ),
    "no weight": (lambda: fit(CLASSES, sample_weight=np.zeros(30)), UserError, "not all of them zero"),
    "a class without weight": (lambda: fit(CLASSES, sample_weight=(Y == 0) * 1.0), UserError, "have the same class"),
    "weights that are no numbers": (
        lambda: fit(CLASSES, sample_weight=np.full(30, np.nan)), UserError, "finite numbers ≥ 0",
    ),
    "few weights": (lambda: fit(CLASSES, sample_weight=[1.0]), UserError, "There are 30 rows but their weights have"),
    **{
        f"balanced, {name}": (
            lambda threat=threat: fit(CLASSES, threat, Fitted(class_weight="balanced")), UserError, "give the weights as numbers",  # type: ignore[misc]
        )
        for name, threat in {"labels": mc.LabelFlips(1), "removed": mc.Removed(1), "added": mc.Added(1, {})}.items()
    },
    "no domain": (lambda: fit(CLASSES, mc.Added(1)), UserError, "give the ranges of its columns"),
    "a doubt that no box proves": (
        lambda: fit(CLASSES, mc.LInf(1000.0), Fitted(C=10.0)), Diverged, "no ranges.*Use a smaller C",
    ),
    "columns of very different size": (
        lambda: fit(mc.Dataset.of(UNEVEN, Y), mc.LInf({"0": 1e5})), Diverged, "columns of one scale",
    ),
    "an infinite doubt": (lambda: fit(CLASSES, mc.LInf(np.inf)), UserError, "eps must be finite"),
    "NaN in the features": (lambda: mc.Dataset.of(spoilt(np.nan), Y), UserError, "NaN or infinite, the first in row 1"),
    "infinity in the features": (
        lambda: mc.Dataset.of(spoilt(np.inf), Y), UserError, "NaN or infinite, the first in row 1",
    ),
    "NaN in the targets": (
        lambda: mc.Dataset.regression(X, spoilt(np.nan)[:, 1]), UserError, "targets hold 1 value.*NaN or infinite",
    ),
    "infinity in rows to predict": (
        lambda: fit(CLASSES, mc.LInf(0.01)).certify(np.array([[np.inf, 0.0]])), UserError, "must be finite",
    ),
    "no row": (lambda: mc.Dataset.of(X[:0], Y[:0]), UserError, "must be a table of rows and columns"),
    "how several classes are fitted, of two": (
        lambda: fit(CLASSES, None, Fitted(multi="softmax")), UserError, "three or more classes.*leave it out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_that_says_what_to_do(name: str) -> None:
    call, kind, words = MISTAKES[name]
    with pytest.raises(kind, match=words) as found:
        call()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("data", "threat", "model"),
    [
        pytest.param(mc.Dataset.of(np.c_[X, np.ones(30)], Y), mc.LInf(0.01), None, id="a constant column"),
        pytest.param(mc.Dataset.of(np.c_[X, np.zeros(30)], Y), mc.LInf({"0": 0.01}), None, id="a column of zeros"),
        pytest.param(mc.Dataset.of(np.c_[X, X], Y), mc.LInf(0.01), None, id="columns twice"),
        pytest.param(mc.Dataset.of(np.c_[X, GROUP], Y), mc.LInf({"0": 0.01}), None, id="all categories"),
        pytest.param(
            mc.Dataset.regression(np.c_[X, GROUP], X[:, 0]),
            mc.TargetNoise(0.1),
            Fitted("squared-error", 9.0),
            id="ridge",
        ),
        pytest.param(mc.Dataset.of(WIDE, (WIDE[:, 0] > 0) * 1), mc.LInf(0.001), None, id="fewer rows than columns"),
        pytest.param(mc.Dataset.of(X * 1e-200, Y), mc.LInf(1e-201), None, id="tiny numbers"),
        pytest.param(mc.Dataset.regression(UNEVEN, X[:, 0]), mc.TargetNoise(0.1), Fitted("squared-error"), id="uneven"),
        pytest.param(
            mc.Dataset.of(X, FEW * 1),
            mc.LabelFlips(2),
            Fitted(C=0.1, penalise_intercept=True),
            id="a penalised intercept",
        ),
        pytest.param(mc.Dataset.of(X, FEW * 1), mc.LabelFlips(1), Fitted(C=0.1), id="one label is left"),
        pytest.param(CLASSES, mc.LInf(0.01), Fitted(C=0.1, class_weight="balanced"), id="balanced"),
    ],
)
def test_what_is_only_awkward_works_and_no_attack_leaves_the_bounds(data: Any, threat: Any, model: Any) -> None:
    run = fit(data, threat, model)
    assert np.isfinite(run.bounds.radius).all()
    tried = run.request.members.sample(np.random.default_rng(1), 10)
    theta = np.zeros(run.network.layout.size)
    for x, y in tried:
        assert run.bounds.contains(run.request.plan.steps[0].train(theta, x, y))


def test_rows_of_weight_zero_are_no_rows() -> None:
    weights = (np.arange(30) >= 5) * 1.0
    some = fit(CLASSES, mc.LInf(0.01), sample_weight=weights)
    others = fit(CLASSES.take(np.arange(5, 30)), mc.LInf(0.01))
    assert np.allclose(some.bounds.lower, others.bounds.lower)
    assert np.allclose(some.bounds.upper, others.bounds.upper)


# Command line -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words", "said", "status"),
    [
        ({}, "--C 0", "C must be a finite number > 0", 2),
        ({}, "--C inf", "C must be a finite number > 0", 2),
        ({"ill": "no"}, "", "two classes", 2),
        ({}, "--removed 60", "is left", 2),
        ({}, "--flips 60", "doubt fewer labels", 3),
        ({}, "--eps age=1000 --C 100", "Use a smaller C", 3),
        ({"age": "?"}, "", "'age'", 2),
        ({"age": np.inf}, "", "inf", 2),
        ({}, "--multi softmax", "three or more classes", 2),
    ],
)
def test_the_command_line_says_it_in_one_sentence(
    change: dict[str, Any],
    words: str,
    said: str,
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = pd.DataFrame({"age": 40.0 + 9.0 * X[:, 0], "size": 1.0 + X[:, 1], "ill": np.where(Y > 0, "yes", "no")})
    for name, value in change.items():
        frame[name] = frame[name].astype(object)
        frame.loc[:, name] = value if name == "ill" else [value, *frame[name].tolist()[1:]]
    frame.to_csv(tmp_path / "data.csv", index=False)
    line = [
        "certify",
        str(tmp_path / "data.csv"),
        "--target",
        "ill",
        "--model",
        "logistic",
        "--no-attack",
        *words.split(),
    ]
    monkeypatch.setattr(sys, "argv", ["mibp-cert", *line, *([] if "eps" in words else ["--eps", "age=0.1"])])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    shown = capsys.readouterr().err.strip()
    assert (stopped.value.code, len(shown.splitlines())) == (status, 1), shown
    assert said in shown


def test_the_command_line_scales_what_is_uneven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame(
        {"large": UNEVEN[:, 0], "small": UNEVEN[:, 1], "one": 1.0, "ill": np.where(Y > 0, "yes", "no")}
    )
    frame.to_csv(tmp_path / "data.csv", index=False)
    words = ["certify", str(tmp_path / "data.csv"), "--target", "ill", "--model", "logistic", "--C", "0.1"]
    cli.app([*words, "--eps", "large=1e6,small=1e-10"], standalone_mode=False)
    assert "none contradicts a certificate" in capsys.readouterr().out
