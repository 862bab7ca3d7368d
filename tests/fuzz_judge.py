"""What no end of a command may look like: a traceback or a warning, a status that does not fit, no sentence, a character that
could move a cursor, no end at all, or status 0 with figures that cannot be."""

from __future__ import annotations

import contextlib
import json
import math
import resource
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from bad_days import spoken
from mibp_cert.cli.ends import UNSOUND, USER_MISTAKE
from mibp_cert.errors import UserError
from mibp_cert.visible import UNSEEN

SECONDS = 20
"""Of computing, or six times as long of waiting: a command that takes longer has to say so before."""
MEMORY = 8 << 30
"""Bytes of addresses that a case may have."""
ENDS = {0: "accepted", 1: "found wrong", USER_MISTAKE: "refused", UNSOUND: "no bounds", 4: "incomplete"}
SLACK = 1e-9
"""Relative, of figures that were rounded."""


class Fault(Exception):
    """What must not happen."""


class Hang(BaseException):
    """Nothing was said for too long; no handler of errors catches it."""


class Announced(UserError):
    """The program said that this takes long."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """An end to time and to memory."""

    def ring(*_: Any) -> None:
        raise Hang

    clocks = ((signal.SIGPROF, signal.ITIMER_PROF, SECONDS), (signal.SIGALRM, signal.ITIMER_REAL, 6 * SECONDS))
    before, most = [signal.signal(kind, ring) for kind, _, _ in clocks], resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if most[0] < 0 else min(MEMORY, most[0]), most[1]))
    for _, clock, seconds in clocks:
        signal.setitimer(clock, seconds)
    try:
        yield
    finally:
        for (kind, clock, _), handler in zip(clocks, before, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(kind, handler)
        resource.setrlimit(resource.RLIMIT_AS, most)


def command(*words: str | Path) -> tuple[int, str]:
    """The status of a command, and what it said; `Fault` where it does not end as commands do."""
    with limited():
        status, said = spoken(*words)
    shown = f"{' '.join(map(str, words))}\n{said[-3000:]}"
    found = UNSEEN.search(said)
    if "as the program says before it begins" in said:
        raise Announced
    if status not in ENDS or "Traceback" in said:
        raise Fault(f"status {status}: {shown}")
    if status == 1 and words[0] not in ("verify", "check", "doctor"):
        raise Fault(f"status 1 of {words[0]}: {shown}")
    if found:
        raise Fault(f"{found[0]!r} is printed: {shown}")
    if status in (USER_MISTAKE, UNSOUND):
        begin = said.rfind("mibp-cert: ")
        sentence = said[begin:].strip()
        if (begin < 0 or "\n" in sentence) and "Usage: " not in said:
            raise Fault(f"no sentence: {shown}")
    if status == UNSOUND and "not sound" in said:
        raise Fault(f"a contradiction: {shown}")
    return status, said


# Figures that cannot be -----------------------------------------------------------------------------------------------------


def strict(text: str | bytes) -> Any:
    """JSON without NaN and infinities."""

    def refuse(constant: str) -> None:
        raise Fault(f"{constant} in the JSON")

    return json.loads(text, parse_constant=refuse)


def sensible(found: Any, rows: int | None = None) -> None:
    """`Fault` where a result says what cannot be; `rows`: as many as there are at most."""
    _finite(found, "result")
    if "ensemble" in found:
        _ensemble(found, rows)
        return
    test = found["test"]
    _at_most(1, test["n"], "test rows")
    _at_most(test["n"], math.inf if rows is None else rows, "test rows in the file")
    (_classes if "nominal_accuracy" in test else _numbers)(test)
    if (attack := found.get("attack")) is not None and attack["outer_radius_mean"] is not None:
        _at_most(attack["inner_radius_mean"], attack["outer_radius_mean"], "radius reached")
    for epoch in found["epochs"]:
        _at_most(0, epoch["radius_mean"], "radius")
        _at_most(epoch["radius_mean"], epoch["radius_max"], "mean radius")
        checked = epoch.get("validation") or {}
        if None not in (checked.get("certified_accuracy"), checked.get("nominal_accuracy")):
            _at_most(checked["certified_accuracy"], checked["nominal_accuracy"], "certified on validation rows")


def _finite(value: Any, where: str) -> None:
    """Every number is finite; shares lie between 0 and 1."""
    if isinstance(value, dict):
        for key, part in value.items():
            _finite(part, f"{where}.{key}")
    elif isinstance(value, list):
        for part in value:
            _finite(part, where)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Fault(f"{where} is {value}")
        if where.endswith(("_accuracy", "_rate")) and "configuration" not in where and not 0 <= value <= 1:
            raise Fault(f"{where} is {value}, no share")


def _at_most(low: Any, high: Any, what: str) -> None:
    if low is None or high is None or not low <= high + SLACK * abs(high):
        raise Fault(f"{what}: {low} should be at most {high}")


def _classes(test: dict[str, Any]) -> None:
    order = ["certified_accuracy", "attacked_accuracy", "nominal_accuracy"]
    values = [test[name] for name in order if test.get(name) is not None]
    if test["certified_accuracy"] is None:
        raise Fault("no certified accuracy")
    for less, more in pairwise(values):
        _at_most(less, more, "certified, attacked and clean accuracy")
    _at_most(test["certified_accuracy"], test["certification_rate"], "certified and right")
    if test["majority_class"] is None or test["majority_accuracy"] is None:
        raise Fault("the most frequent class is missing")
    if sum(part["n"] for part in test["by_class"]) != test["n"]:
        raise Fault(f"the classes' rows are not all rows: {test}")
    # Classes that no test row has may be answered, too.
    _at_most(sum(part["certified_answers"] for part in test["by_class"]), _times(test, "certification_rate"), "answers")
    if test["wrong_but_certified"] != _times(test, "certification_rate") - _times(test, "certified_accuracy"):
        raise Fault(f"wrong though certified: {test}")


def _times(test: dict[str, Any], share: str) -> int:
    return round(test[share] * test["n"])


def _numbers(test: dict[str, Any]) -> None:
    errors = [
        test[name] for name in ("nominal_error", "attacked_error", "certified_error") if test.get(name) is not None
    ]
    for less, more in pairwise(errors):
        _at_most(less, more, "clean, attacked and certified error")
    if test.get("attacked_range_mean") is not None:
        _at_most(test["attacked_range_mean"], test["range_mean"], "mean range reached")
    _at_most(0, test["baseline_error"], "error of the mean")


def _ensemble(found: dict[str, Any], rows: int | None) -> None:
    _at_most(found["test_rows"], math.inf if rows is None else rows, "test rows in the file")
    _at_most(found["certified_test_accuracy"], found["nominal_accuracy"], "certified votes")
    for line in found["by_radius"]:
        _at_most(line["altered"], line["attacked"], "certified votes by radius")
    if len(found["rows"]) != found["test_rows"] or found["majority_accuracy"] is None:
        raise Fault("rows or baseline of the ensemble are missing")
