"""Columns of text: which of them are numbers, which are categories, and which are neither.

Nothing is guessed. A column that would be numbers if commas, points or spaces were read otherwise is asked about; dates, free
text and identifiers are refused with what to do about them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mibp_cert.data.dataset import shortened
from mibp_cert.errors import UserError

IDENTIFIER = 50
"""A column with more different texts than this, and more than a third as many as rows, looks like an identifier."""
FEW = 10
"""A column of at least so many texts, no two of them alike, looks like one, too."""
SENTENCE = 4
"""Texts of so many words, no two of them alike, are free text."""
MARKS = {",": ",", ".": ".", " ": " \u00a0\u2009\u202f", "'": "'’", "_": "_"}
"""What may stand between thousands, and how else it is typed."""
CONVENTIONS = [(".", None), (",", None), *((d, t) for t in MARKS for d in ".," if d != t)]
"""Decimal marks, with what stands between thousands."""
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]m)?(?:\s?(?:z|utc|[+-]\d{2}:?\d{2}))?"
_DAY = (
    rf"(?:\d{{4}}([-/.])\d{{1,2}}(?:\1\d{{1,2}})?|\d{{1,2}}([-/.])\d{{1,2}}\2\d{{2,4}}"
    rf"|\d{{1,2}}[ -]{_MONTH}[ ,-]+\d{{2,4}}|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{2,4}}|{_MONTH}[ -]\d{{4}})"
)
DATE = re.compile(rf"(?:{_DAY}(?:[t ,]\s*{_TIME})?|{_TIME}|-?\d+ days(?: [\d:.]+)?)", re.IGNORECASE)
SIGNED = re.compile(r"[$€£¥]\s?[+-]?[\d.,' ]*\d|[+-]?\d[\d.,' ]*\s?[%‰$€£¥]")
"""Numbers with a sign of per cent or of a currency."""


def typed(
    name: str, text: pd.Series[Any], decimal: str, thousands: str | None, place: str, *, target: bool = False
) -> pd.Series[Any]:
    """A column of text, missing where there is none, as numbers if all of its values are, else as text. `place`: what its index
    counts."""
    known = text.dropna()
    numbers = as_numbers(known, decimal, thousands)
    odd = known[numbers.isna()]
    if len(known) and odd.empty:
        endless = numbers.index[np.isinf(numbers)]
        if len(endless):
            raise UserError(
                f"The column '{name}' holds infinite values, first in {place} {endless[0]}; correct or drop such rows."
            )
        found = numbers.to_numpy(dtype=np.float64)
        if len(known) == len(text) and (found % 1 == 0).all() and (np.abs(found) < 2**53).all():
            return pd.Series(found.astype(np.int64), index=text.index)
        return pd.Series(found, index=known.index).reindex(text.index)
    _ask(name, known, odd, (decimal, thousands))
    if 2 * len(odd) < len(known):
        what = shortened(odd.iloc[0])
        raise UserError(
            f"The column '{name}' mixes numbers and text: {what!r} in {place} {odd.index[0]}. Correct it, call that text a "
            f"missing value (--na {what!r}), or take all of it as categories (--categorical {quote(name)})."
        )
    check_text(name, known, target=target)
    return text.astype(object)


def as_numbers(known: pd.Series[Any], decimal: str, thousands: str | None) -> pd.Series[Any]:
    """The numbers that texts stand for, NaN where they stand for none; thousands must be in groups of three digits."""
    text = known.astype(str).str.replace("\u2212", "-", regex=False)  # the minus of typographers
    if thousands is not None:
        between = f"[{MARKS[thousands]}]"
        grouped = text.str.fullmatch(rf"[+-]?\d{{1,3}}(?:{between}\d{{3}})+(?:{re.escape(decimal)}\d*)?")
        text = text.where(~grouped.astype(bool), text.str.replace(between, "", regex=True))
    if decimal == ",":
        text = text.where(~text.str.contains(".", regex=False).astype(bool), "no number")
        text = text.str.replace(",", ".", regex=False)
    return pd.Series(pd.to_numeric(text.astype(object), errors="coerce"), index=known.index, dtype=np.float64)


def _ask(name: str, known: pd.Series[Any], odd: pd.Series[Any], now: tuple[str, str | None]) -> None:
    """Ask whether texts are numbers that are written in another way: one that reads all of them, else more than half."""
    if not odd.str.contains(r"\d[.,'’_\s]\d|^[.,]\d", regex=True).any():
        return
    usual = as_numbers(known, *now)
    found: dict[tuple[str, str | None], pd.Series[Any]] = {}
    for way in CONVENTIONS:
        numbers = as_numbers(known, *way)
        if way != now and not any(numbers.equals(other) for other in (usual, *found.values())):
            found[way] = numbers
    counts = {way: int(numbers.notna().sum()) for way, numbers in found.items()}
    enough = max(counts.values(), default=0)
    if 2 * enough <= len(known) or enough <= int(usual.notna().sum()):
        return
    ways = {way: numbers for way, numbers in found.items() if counts[way] == enough}
    example = next(at for at in odd.index if any(numbers.notna()[at] for numbers in ways.values()))
    asked = [
        f"is that {numbers[example]:.15g}? Then say {_flags(way, now)}"
        for way, numbers in ways.items()
        if not np.isnan(numbers[example])
    ]
    raise UserError(
        f"The column '{name}' holds values like '{shortened(known[example])}': {'; or '.join(asked)}; to take them as "
        f"categories, say --categorical {quote(name)}."
    )


def _flags(way: tuple[str, str | None], now: tuple[str, str | None]) -> str:
    """What must be said so that numbers are read in this way."""
    (decimal, thousands), said = way, []
    if decimal != now[0]:
        said.append(f"--decimal '{decimal}'")
    if thousands is not None and thousands != now[1]:
        said.append(f'--thousands "{thousands}"' if thousands == "'" else f"--thousands '{thousands}'")
    return " ".join(said)


def check_text(name: str, known: pd.Series[Any], *, target: bool = False) -> None:
    """Refuse texts that are no categories: dates, numbers with a sign, free text, identifiers."""
    if not len(known):
        return
    first, different = shortened(known.iloc[0]), known.nunique()
    text = known.astype(str)
    leave = f"leave it out (--drop {quote(name)})"
    instead = "name another target" if target else leave
    if all(map(DATE.fullmatch, text)):
        raise UserError(
            f"The column '{name}' holds dates or times ('{first}'): {instead}, turn it into numbers, such as days since the "
            f"first one, or take it as categories (--categorical {quote(name)})."
        )
    if different > 2 and all(map(SIGNED.fullmatch, text)):
        raise UserError(
            f"The column '{name}' holds numbers with a sign ('{first}'): take the sign away, or take them as categories "
            f"(--categorical {quote(name)})."
        )
    alone = different == len(known) >= FEW
    if not alone and not (different > IDENTIFIER and 3 * different > len(known)):
        return
    if target:
        raise UserError(
            f"The target column '{name}' has {different} different values in {len(known)} rows ('{first}'): these are no classes "
            "to predict; name another target."
        )
    if float(text.str.count(r"\s+").median()) >= SENTENCE - 1:
        raise UserError(
            f"The column '{name}' holds free text ('{first}'): {leave}, or turn it into categories or numbers of your own."
        )
    raise UserError(
        f"The column '{name}' has {different} different values in {len(known)} rows ('{first}'): it looks like an identifier. "
        f"Leave it out (--drop {quote(name)}), or name it among the categorical ones (--categorical {quote(name)})."
    )


def counts_rows(values: pd.Series[Any]) -> bool:
    """Is every number one more than the one before it?"""
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
    return len(numbers) > 1 and bool((np.diff(numbers) == 1).all() and numbers[0] % 1 == 0)


def finite_numbers(name: str, values: Sequence[Any] | pd.Series[Any]) -> NDArray[np.float64]:
    """The values of a numeric column."""
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(
            f"The column '{name}' holds values that are not numbers; name it among the categorical ones."
        ) from None
    if not np.isfinite(numbers).all():
        raise UserError(f"The column '{name}' holds infinite values; correct or drop those rows.")
    return numbers
