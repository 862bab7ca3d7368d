"""What a stored run says it found, found again from its stored sets: which step it is about, answers for the test points, what
the attack reached, and every figure of its result.

The loop itself runs once more (`certify.loop`), with all steps kept and no result: it replays the records, chooses, answers,
attacks, and hands over what would be written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mibp_cert.certify.loop import Callbacks, StepRecord, certify
from mibp_cert.certify.predict import ABSTAIN
from mibp_cert.certify.request import Request
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import MibpCertError, UserError
from mibp_cert.fitted import Fitted
from mibp_cert.store.contents import Contents, Plain
from mibp_cert.store.kernel import FIGURES, LAST_BITS, SEARCHED, apart, changed, kernel

ATTACK = "attack_"
OF_ATTACK = ("attack", "test.attacked", "test.by_class")
"""Figures that the attack has a part in."""
UNSAID = ("seconds", "versions", "arrays", "previous", "kernel")
"""Keys of a result that are no findings."""


@dataclass(frozen=True)
class Finding:
    """Whether something was found again (None: it cannot be asked for here), and in words what came of it."""

    name: str
    holds: bool | None
    words: str


@dataclass
class _Replay:
    """A keeper with every step and no result; what would be written is kept here."""

    records: list[StepRecord]
    arrays: Mapping[int, dict[str, Array]]
    plain: Plain = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)

    def load(self, number: int) -> dict[str, Array]:
        if number not in self.arrays:
            raise UserError(f"the set after step {number}, which the answers are about, is not there")
        return self.arrays[number]

    def save(self, number: int, record: StepRecord, arrays: Mapping[str, Any] | None, needed: set[int]) -> None:
        raise AssertionError("every step is kept")

    def read_result(self) -> None:
        return None

    def save_result(self, plain: Plain, arrays: Mapping[str, Any]) -> None:
        self.plain, self.answers = json.loads(json.dumps(plain, allow_nan=False)), dict(arrays)


def is_whole(request: Request, kept: Contents) -> bool:
    """Are there records of all steps, or of all until the bounds diverged?"""
    if not kept.records or len(kept.records) > len(request.unrolled.steps):
        return False
    return kept.records[-1].steps == request.unrolled.total or kept.records[-1].diverged


def found_again(
    request: Request, kept: Contents, instead: Mapping[int, dict[str, Array]], hear: Callable[[str], None]
) -> list[Finding]:
    """Everything that the result says, compared with what comes out now; `instead`: sets to use in place of stored ones."""
    assert kept.result is not None
    assert kept.answers is not None
    replay = _Replay(kept.records, {**kept.arrays, **instead})
    try:
        certify(request, Callbacks(on_stage=lambda stage: hear(f"{stage} again")), replay)
    except UserError as error:
        return [Finding("answers", None, f"not found again: {error}")]
    except MibpCertError as error:
        return [Finding("answers", False, str(error))]
    loosely = kept.result.get("kernel") != kernel()
    searched = loosely and isinstance(request.training, Fitted)
    answers = _answers(request, replay.answers, kept.answers, SEARCHED if searched else LAST_BITS if loosely else 0.0)
    most = SEARCHED if searched else FIGURES if loosely else 0.0
    attack = _attack(replay.answers, kept.answers, loosely)
    return [*answers, *attack, _figures(replay.plain, kept.result, most, all(one.holds for one in attack))]


def _split(arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answers, and what the attack reached."""
    attack = {name: value for name, value in arrays.items() if name.startswith(ATTACK)}
    return {name: value for name, value in arrays.items() if name not in attack}, attack


def _answers(request: Request, mine: Mapping[str, Any], kept: Mapping[str, Any], most: float) -> list[Finding]:
    """Classes, margins and ranges of the test points, and the clean model's classes."""
    if request.data.test is None and not _split(kept)[0]:
        return []
    again, said = _split(mine)[0], _split(kept)[0]
    far, told = apart(again, said), f"the answers for {len(request.data.tested)} test points"
    if request.predictor.solves and not request.settings.solver.repeatable and "test_classes" in again:
        contradicts = (again["test_classes"] != said["test_classes"]) & (again["test_classes"] != ABSTAIN)
        same = int((again["test_classes"] == said["test_classes"]).sum())
        words = f"limits in seconds: {same} of {told} came out again, {int(contradicts.sum())} otherwise"
        return [Finding("answers", False if contradicts.any() else None, words)]
    classes = [name for name in said if name in ("test_classes", "test_centre", "nominal")]
    if most == SEARCHED < far < np.inf and classes and all(np.array_equal(again[name], said[name]) for name in classes):
        words = f"the classes in {told} come out again; the search for margins ends elsewhere under another kernel"
        return [Finding("answers", None, words)]
    if far > most:
        names = [name for name in said if apart({name: again.get(name, np.zeros(0))}, {name: said[name]}) > 0]
        return [Finding("answers", False, f"{told} do not come out of the stored set: other {', '.join(names[:4])}")]
    bits = "with the same bits" if not far else f"but for last bits ({far:.1g} of their radius)"
    return [
        Finding(
            "answers", True, f"{told}, their margins and the clean model's come out of the stored set again, {bits}"
        )
    ]


def _attack(mine: Mapping[str, Any], kept: Mapping[str, Any], loosely: bool) -> list[Finding]:
    """The datasets tried, the models reached, their classes, and the witness."""
    again, said = _split(mine)[1], _split(kept)[1]
    if again.keys() != said.keys():
        return [
            Finding(
                "attack", False, "an attack was asked for, and what it reached is not there (or the other way round)"
            )
        ]
    if not again:
        return []
    count = len(said["attack_theta"])
    if _close(again, said, loosely):
        bits = "to the same bits" if not apart(again, said) else "but for last bits"
        return [
            Finding("attack", True, f"all {count} datasets of the attack were tried again: the same models, {bits}")
        ]
    if loosely:
        words = f"other datasets than these {count} are tried under another kernel of BLAS or NumPy"
        return [Finding("attack", None, words)]
    return [Finding("attack", False, f"what the {count} datasets of the attack reached does not come out again")]


def _close(mine: Mapping[str, Any], kept: Mapping[str, Any], loosely: bool) -> bool:
    """The same arrays, `loosely` but for the last bits of numbers."""
    if not loosely:
        return apart(mine, kept) == 0.0

    def near(a: Any, b: Any) -> bool:
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or a.dtype.kind != "f":
            return bool(np.array_equal(a, b))
        return bool(
            np.allclose(a, b, rtol=1e-9, atol=1e-9 * max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0.0))))
        )

    return all(near(mine[name], kept[name]) for name in kept)


def _figures(mine: Plain, kept: Plain, most: float, attack: bool) -> Finding:
    """Every key of the result but seconds and versions."""
    keys = changed(_findings(mine), _findings(kept), most)
    if not attack:  # said above, once
        keys = [key for key in keys if not key.startswith(OF_ATTACK)]
    if keys:
        more = "" if len(keys) <= 5 else f" and {len(keys) - 5} more"
        return Finding("figures", False, f"the result says something else of {', '.join(keys[:5])}{more}")
    return Finding("figures", True, "every figure of the result comes out again (but seconds, which nobody can check)")


def _findings(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _findings(part) for key, part in value.items() if key not in UNSAID}
    return [_findings(part) for part in value] if isinstance(value, list) else value
