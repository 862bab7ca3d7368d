"""Threats as plain data (JSON, TOML) and in words; `threat_from_json(threat.to_json())` is the same threat again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from mibp_cert.errors import UserError
from mibp_cert.threats.base import Threat
from mibp_cert.threats.catalog import (
    L1,
    L2,
    AnyCategory,
    Confusable,
    LabelFlips,
    LInf,
    Missing,
    Monotone,
    Nothing,
    Rounded,
    Shift,
    TargetNoise,
)
from mibp_cert.threats.compose import Budget, Catalogued, Settled, Where, condition_from_json

KINDS: dict[str, Any] = {
    "nothing": Nothing,
    "linf": LInf,
    "l1": L1,
    "l2": L2,
    "rounded": Rounded,
    "monotone": Monotone,
    "any-category": AnyCategory,
    "confusable": Confusable,
    "shift": Shift,
    "missing": Missing,
    "target-noise": TargetNoise,
    "label-flips": LabelFlips,
}
"""Threats that are no combination of others."""
_COMBINED = ("where", "all", "budget", "settled")


def nearest(name: str, known: list[str]) -> str:
    """`" Did you mean 'x'?"`, or all that is known."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}."


def threat_from_json(plain: Any) -> Catalogued:
    """The threat that this plain data describes.

    >>> threat_from_json({"kind": "budget", "threat": {"kind": "linf", "eps": 0.2}, "rows": 1}).to_json()
    {'kind': 'budget', 'threat': {'kind': 'linf', 'eps': 0.2}, 'rows': 1}
    """
    if not isinstance(plain, Mapping) or not isinstance(plain.get("kind"), str):
        raise UserError(f"A threat is a table with a kind, such as {{kind = 'linf', eps = 0.01}}; got {plain!r}.")
    kind, rest = plain["kind"], {key: value for key, value in plain.items() if key != "kind"}
    if kind == "rules":
        raise UserError("Rules are a Python function and cannot be read from a file; hand the threat in from Python.")
    if kind not in KINDS and kind not in _COMBINED:
        raise UserError(f"There is no threat of the kind {kind!r}; {nearest(kind, [*KINDS, *_COMBINED])}")
    known = list(KINDS[kind].__dataclass_fields__) if kind in KINDS else list(_FIELDS[kind])
    for key in rest:
        if key not in known:
            raise UserError(f"The threat '{kind}' has no entry {key!r}; {nearest(key, known)}")
    try:
        return KINDS[kind](**rest) if kind in KINDS else _combined(kind, rest)
    except (TypeError, KeyError) as error:
        lost = str(error).split(": ")[-1] if isinstance(error, TypeError) else str(error)
        raise UserError(f"The threat '{kind}' is not complete: it needs the entry {lost}.") from None


_FIELDS = {
    "settled": ("threat", "rows"),
    "where": ("threat", "when", "rows", "condition"),
    "all": ("threats",),
    "budget": ("threat", "rows", "cells"),
}


def _combined(kind: str, rest: dict[str, Any]) -> Catalogued:
    if kind == "all":
        parts = [threat_from_json(part) for part in rest["threats"]]
        if not parts:
            return Nothing()
        both = parts[0]
        for part in parts[1:]:
            both = both & part
        return both
    inner = threat_from_json(rest["threat"])
    if kind == "settled":
        return Settled(inner, np.array(rest["rows"], dtype=np.intp))
    if kind == "budget":
        return Budget(inner, rest.get("rows"), rest.get("cells"))
    if "when" not in rest and "rows" not in rest:
        raise UserError("The threat 'where' needs the entry when (a condition) or rows (their numbers).")
    return Where(inner, condition_from_json(rest["when"]) if "when" in rest else rest["rows"])


def knows_missing(threat: Threat | Mapping[str, Any]) -> bool:
    """Does the threat, or a part of it, say that missing values may be anything valid?"""
    plain: Mapping[str, Any] = threat.to_json() if isinstance(threat, Threat) else threat
    return any(part["kind"] == "missing" for part in _parts(plain))


def _parts(plain: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A threat's record and those of all its parts."""
    yield plain
    for inner in [*plain.get("threats", ()), *(plain[key] for key in ("threat", "base") if key in plain)]:
        yield from _parts(inner)


def depends_on_labels(threat: Threat) -> bool:
    """Can what may be wrong with a row's features depend on its label? Rules may; conditions on labels do."""
    return any(part["kind"] == "rules" or "'label'" in str(part.get("when")) for part in _parts(threat.to_json()))


def names_rows(threat: Threat) -> bool:
    """Does the threat name rows by their numbers, so that it makes sense for one table only?"""
    return any(
        isinstance(part.get("rows"), list) or "'rows'" in str(part.get("when")) or part["kind"] == "rules"
        for part in _parts(threat.to_json())
    )


def in_words(threat: Threat | Mapping[str, Any]) -> str:
    """What may be wrong, as a clause a person can read.

    >>> in_words(LInf({"age": 1}) & LabelFlips(2))
    "'age' may be off by 1 in any row, and at most 2 labels may be wrong"
    """
    plain: Mapping[str, Any] = threat.to_json() if isinstance(threat, Threat) else threat
    kind = plain["kind"]
    match kind:
        case "nothing":
            return "nothing: the data are taken to be right"
        case "linf":
            clip = "" if plain.get("clip") is None else f", within the valid range {_range(plain['clip'])}"
            return f"{_amounts(plain, 'every number')} {_rows(plain)}{clip}"
        case "l1" | "l2":
            norm = {"l1": "the sum of all deviations", "l2": "the Euclidean distance"}[kind]
            return f"{_amounts(plain, 'each row')}, measured by {norm}, {_rows(plain)}"
        case "rounded":
            return f"{_names(plain['columns'])} may have been rounded to multiples of {_value(plain['to'])}"
        case "monotone":
            ends = [f"{word} by up to {_value(plain[key])}" for key, word in (("up", "too low"), ("down", "too high"))]
            said = [
                text for text, key in zip(ends, ("up", "down"), strict=True) if plain.get(key) not in (0, 0.0, None)
            ]
            return f"{_names(plain['columns'])} may be {' or '.join(said)}"
        case "any-category":
            among = "" if plain.get("among") is None else f" among {_names(plain['among'])}"
            return f"{_names(plain['columns'])} may be any category{among} in any row"
        case "confusable":
            pairs = plain["pairs"].items() if isinstance(plain["pairs"], Mapping) else plain["pairs"]
            listed = "; ".join(f"{k!r} may stand for {_names(list(v))}" for k, v in pairs)
            return f"{_names(plain['column'])} may be confused: {listed}"
        case "shift":
            return f"{_names(plain['column'])} may really be the category {plain['by']:+d} away from the one reported"
        case "missing":
            where = "of any column" if plain.get("columns") is None else f"of {_names(plain['columns'])}"
            what = "missing values" if plain.get("marker") is None else f"values {plain['marker']!r}"
            return (
                f"{what} {where} may be any valid value (a number within the range seen in training, or any category)"
            )
        case "target-noise":
            return f"each target may be off by {_value(plain['eps'])}"
        case "label-flips":
            count = "any number of" if plain.get("at_most") is None else f"at most {plain['at_most']}"
            source = "" if plain.get("source") is None else f" {_names(plain['source'])}"
            target = "" if plain.get("target") is None else f" (and really be {_names(plain['target'])})"
            return f"{count}{source} label{'' if plain.get('at_most') == 1 else 's'} may be wrong{target}"
        case "budget":
            limit = (
                f"at most {plain['rows']} rows" if "rows" in plain else f"at most {plain['cells']} cells of each row"
            )
            return f"in {limit}: {in_words(plain['threat'])}"
        case "settled":
            return f"{in_words(plain['threat'])}, except in {len(plain['rows'])} rows that are taken as right"
        case "where":
            where = plain.get("condition") or f"{len(plain['rows'])} given rows"
            return f"where {where}: {in_words(plain['threat'])}"
        case "all":
            return ", and ".join(in_words(part) for part in plain["threats"])
        case "rules":
            return f"{in_words(plain['base'])}, as far as the rules allow: {str(plain['rules']).strip()}"
    return str(dict(plain))


def _amounts(plain: Mapping[str, Any], every: str) -> str:
    eps, share = plain["eps"], bool(plain.get("relative"))

    def amount(value: Any) -> str:
        return f"{100 * float(value):g} % of its value" if share else _value(value)

    if isinstance(eps, Mapping):
        return ", ".join(f"'{name}' may be off by {amount(value)}" for name, value in eps.items())
    of = every if plain.get("columns") is None else _names(plain["columns"])
    if isinstance(eps, list):
        return f"{of} may be off by {', '.join(amount(value) for value in eps)} (one number per column)"
    return f"{of} may be off by {amount(eps)}"


def _rows(plain: Mapping[str, Any]) -> str:
    return "in any row" if plain.get("rows") is None else f"in {len(plain['rows'])} given rows"


def _names(value: Any) -> str:
    return ", ".join(repr(v) for v in value) if isinstance(value, list | tuple) else repr(value)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_value(v)} ({k})" for k, v in value.items())
    return ", ".join(map(_value, value)) if isinstance(value, list | tuple) else f"{value:g}"


def _range(ends: Any) -> str:
    low, high = ("open" if end is None else _value(end) for end in ends)
    return f"{low} to {high}"
