"""Certificates that claim what does not follow: each alteration makes the claims false, or leaves them without a proof."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

Plain, Arrays = dict[str, Any], dict[str, Any]
Forged = tuple[Plain, Arrays]
STEP = 2.0**-40
"""Forged numbers are multiples of it, so that the checker's unit need not change."""


def forge(name: str, plain: Plain, arrays: Arrays, rng: np.random.Generator) -> Forged:
    plain, arrays = copy.deepcopy(plain), {key: np.array(value) for key, value in arrays.items()}
    FORGERIES[name](plain, arrays, rng)
    return plain, arrays


def _grid(values: Any) -> Any:
    return np.round(np.asarray(values) / STEP) * STEP


def _other_class(plain: Plain, arrays: Arrays, rng: Any) -> None:
    q = rng.integers(len(arrays["claim_signs"]))
    arrays["claim_signs"][q] *= -1


def _higher_end(plain: Plain, arrays: Arrays, rng: Any) -> None:
    q = rng.integers(len(arrays["claim_ends"]))
    arrays["claim_ends"][q] = _grid(arrays["claim_ends"][q] + 0.01 + 0.2 * abs(arrays["claim_ends"][q]))


def _other_row(plain: Plain, arrays: Arrays, rng: Any) -> None:
    """The best claim of one sign, about the row with the worst."""
    some = np.flatnonzero(arrays["claim_signs"] == arrays["claim_signs"][arrays["claim_ends"].argmax()])
    ends = arrays["claim_ends"][some]
    arrays["claim_rows"][some[ends.argmax()]] = arrays["claim_rows"][some[ends.argmin()]]


def _no_margin(plain: Plain, arrays: Arrays, rng: Any) -> None:
    arrays["claim_ends"][:] = -1.0
    arrays["claim_signs"][:] *= -1


def _narrower(part: int, end: str) -> Callable[[Plain, Arrays, Any], None]:
    def done(plain: Plain, arrays: Arrays, rng: Any) -> None:
        low, high = arrays[f"low{part}"], arrays[f"high{part}"]
        wide = np.flatnonzero(high - low > 1e-6)
        i, share = rng.choice(wide), rng.uniform(0.75, 0.95)
        middle = arrays["c"][i] if part == 0 else 0.5 * (low[i] + high[i])
        which = low if end == "low" else high
        which[i] = _grid(which[i] + share * (middle - which[i]))

    return done


def _all_narrower(plain: Plain, arrays: Arrays, rng: Any) -> None:
    part = 0
    while f"low{part}" in arrays:
        low, high = arrays[f"low{part}"], arrays[f"high{part}"]
        middle, half = 0.5 * (low + high), 0.3 * (high - low)
        arrays[f"low{part}"], arrays[f"high{part}"] = _grid(middle - half), _grid(middle + half)
        part += 1


def _inverted(plain: Plain, arrays: Arrays, rng: Any) -> None:
    arrays["low0"], arrays["high0"] = arrays["high0"], arrays["low0"]


def _infinite(plain: Plain, arrays: Arrays, rng: Any) -> None:
    arrays["high0"][0] = np.inf


def _not_a_number(plain: Plain, arrays: Arrays, rng: Any) -> None:
    arrays["claim_ends"][0] = np.nan


def _multipliers(name: str, what: str) -> Callable[[Plain, Arrays, Any], None]:
    def done(plain: Plain, arrays: Arrays, rng: Any) -> None:
        array = arrays[name]
        some = rng.choice(len(array), max(1, len(array) // 3), replace=False)
        array[some] = 0.0 if what == "gone" else -array[some]

    return done


def _moved(plain: Plain, arrays: Arrays, rng: Any) -> None:
    share = rng.uniform(0.3, 0.45)
    arrays["c"] = _grid(arrays["low0"] + share * (arrays["high0"] - arrays["low0"]))


def _away(plain: Plain, arrays: Arrays, rng: Any) -> None:
    arrays["c"] = _grid(2 * arrays["high0"] - arrays["low0"])


def _model(**entries: Any) -> Callable[[Plain, Arrays, Any], None]:
    def done(plain: Plain, arrays: Arrays, rng: Any) -> None:
        for key, value in entries.items():
            plain["model"][key] = value(plain["model"][key]) if callable(value) else value

    return done


def _more(threat: Any) -> Any:
    """The same threat, with all amounts and numbers several times as large."""
    if isinstance(threat, list):
        return [_more(part) for part in threat]
    grown = {key: _more(value) if key in ("threat", "threats") else value for key, value in threat.items()}
    for key in ("eps", "to", "up", "down"):
        if key in grown:
            value = grown[key]
            grown[key] = {k: 6 * v for k, v in value.items()} if isinstance(value, dict) else 6 * value
    for key in ("at_most", "rows"):
        if isinstance(grown.get(key), int):
            grown[key] = 8 * grown[key] + 8
    return grown


def _larger(plain: Plain, arrays: Arrays, rng: Any) -> None:
    more = _more(plain["threat"])
    every = {"kind": "linf", "eps": 5.0}
    plain["threat"] = more if more != plain["threat"] else {"kind": "all", "threats": [more, every]}


def _more_labels(plain: Plain, arrays: Arrays, rng: Any) -> None:
    plain["threat"] = {"kind": "all", "threats": [plain["threat"], {"kind": "label-flips", "at_most": 12}]}


def _unknown_threat(plain: Plain, arrays: Arrays, rng: Any) -> None:
    plain["threat"] = {"kind": "nothing at all"}


def _other_data(plain: Plain, arrays: Arrays, rng: Any) -> None:
    plain["data"]["train_sha256"] = "0" * 64


def _short(plain: Plain, arrays: Arrays, rng: Any) -> None:
    arrays["range_u"] = arrays["range_u"][:-1]


def _lost(plain: Plain, arrays: Arrays, rng: Any) -> None:
    del arrays["range_lam"]


FORGERIES: dict[str, Callable[[Plain, Arrays, Any], None]] = {
    "another class": _other_class,
    "a larger margin": _higher_end,
    "a claim about another row": _other_row,
    "claims without a sign": _no_margin,
    "a narrower parameter from below": _narrower(0, "low"),
    "a narrower parameter from above": _narrower(0, "high"),
    "a narrower score from below": _narrower(1, "low"),
    "a narrower score from above": _narrower(1, "high"),
    "all ranges narrower": _all_narrower,
    "ranges inverted": _inverted,
    "an infinite range": _infinite,
    "a claim that is no number": _not_a_number,
    "multipliers of ranges gone": _multipliers("range_u", "gone"),
    "multipliers of ranges reversed": _multipliers("range_u", "reversed"),
    "slopes of ranges reversed": _multipliers("range_lam", "reversed"),
    "multipliers of claims reversed": _multipliers("claim_u", "reversed"),
    "another clean model": _moved,
    "a clean model outside": _away,
    "less penalty": _model(C=lambda c: 30.0 * c),
    "more penalty": _model(C=lambda c: c / 30.0),
    "no intercept": _model(fit_intercept=False),
    "another loss": _model(loss=lambda loss: "huber" if loss == "squared-error" else "squared-error"),
    "more doubt": _larger,
    "wrong labels, too": _more_labels,
    "an unknown threat": _unknown_threat,
    "other data": _other_data,
    "a query short": _short,
    "an array lost": _lost,
}
