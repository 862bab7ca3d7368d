"""What may be wrong with the training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from mibp_cert.errors import UserError
from mibp_cert.sets import RulesSet
from mibp_cert.threats.base import All, Budget, Catalogued, Nothing, Settled, Threat, Where
from mibp_cert.threats.categories import AnyCategory, Confusable, LabelFlips, Missing, Shift
from mibp_cert.threats.conditions import Condition, column, condition_from_json, label_is
from mibp_cert.threats.numeric import L1, L2, Exchanged, LInf, Monotone, Rounded, TargetNoise
from mibp_cert.threats.rows import Added, Arbitrary, Removed
from mibp_cert.threats.rules import Model, Rules

_NUMBERS: tuple[Any, ...] = (LInf, L1, L2, Rounded, Monotone, Exchanged, TargetNoise)
_CHOICES: tuple[Any, ...] = (AnyCategory, Confusable, Shift, Missing, LabelFlips)
_ROWS: tuple[Any, ...] = (Removed, Added, Arbitrary)
KINDS: dict[str, Any] = {threat.kind: threat for threat in (Nothing, *_NUMBERS, *_CHOICES, *_ROWS)}
"""Threats that are no combination of others; their entries in a file are their fields."""
_COMBINED: dict[str, Any] = {threat.kind: threat for threat in (Where, All, Budget, Settled)}
"""Combinations of others."""


def nearest(name: str, known: list[str]) -> str:
    """`" Did you mean 'x'?"`, or all that is known."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}."


def threat_from_json(plain: Any) -> Catalogued:
    """The threat that this plain data describes; `threat_from_json(threat.to_json())` is the same threat again.

    >>> threat_from_json({"kind": "budget", "threat": {"kind": "linf", "eps": 0.2}, "rows": 1}).to_json()
    {'kind': 'budget', 'threat': {'kind': 'linf', 'eps': 0.2}, 'rows': 1}
    """
    if not isinstance(plain, Mapping) or not isinstance(plain.get("kind"), str):
        raise UserError(f"A threat is a table with a kind, such as {{kind = 'linf', eps = 0.01}}; got {plain!r}.")
    kind, rest = plain["kind"], {key: value for key, value in plain.items() if key != "kind"}
    if kind == "rules":
        raise UserError("Rules are a Python function and cannot be read from a file; hand the threat in from Python.")
    every = {**KINDS, **_COMBINED}
    if kind not in every:
        raise UserError(f"There is no threat of the kind {kind!r}; {nearest(kind, list(every))}")
    known = ["threat", "when", "rows", "condition"] if kind == Where.kind else [f.name for f in fields(every[kind])]
    for key in rest:
        if key not in known:
            raise UserError(f"The threat '{kind}' has no entry {key!r}; {nearest(key, known)}")
    if kind == All.kind and not isinstance(rest.get("threats"), list | tuple):
        raise UserError("The threat 'all' is made of threats: it needs the entry threats, a list of such tables.")
    try:
        if kind == All.kind:
            return All.of([threat_from_json(part) for part in rest["threats"]])
        if "threat" in rest:
            rest["threat"] = threat_from_json(rest["threat"])
        return _where(**rest) if kind == Where.kind else every[kind](**rest)
    except UserError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        if isinstance(error, TypeError) and "required positional" in str(error):
            raise UserError(
                f"The threat '{kind}' is not complete: it needs the entry {str(error).split(': ')[-1]}."
            ) from None
        said = ", ".join(f"{key} = {value!r}" for key, value in plain.items() if key not in ("kind", "threat"))
        raise UserError(
            f"The threat '{kind}' cannot be made of {said} ({error}); docs/threats.md has an example."
        ) from None


def _where(threat: Catalogued, when: Any = None, rows: Any = None, condition: Any = None) -> Where:
    """A file may say the condition in words, too, for those who read it."""
    if when is None and rows is None:
        raise UserError("The threat 'where' needs the entry when (a condition) or rows (their numbers).")
    return Where(threat, rows if when is None else condition_from_json(when))


def in_words(threat: Threat | Mapping[str, Any]) -> str:
    """What may be wrong, as a clause a person can read.

    >>> in_words(LInf({"age": 1}) & LabelFlips(2))
    "'age' may be off by 1 in any row, and at most 2 labels may be wrong"
    """
    return threat.words() if isinstance(threat, Threat) else threat_from_json(threat).words()
