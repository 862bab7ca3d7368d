"""Text that comes from data, made fit to be shown."""

from __future__ import annotations

import re

UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tabs and ends of lines: ESC, BEL, CR, DEL and C1 among them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # which order letters have on a line
    "\u2028\u2029"  # other ends of lines
    "\ud800-\udfff]"  # halves of characters, which no encoding of a terminal knows
)
"""What moves a cursor, changes colours, rings, reorders a line or cannot be written."""


def visible(text: str) -> str:
    r"""The text, with such characters as the escapes that Python writes for them.

    Whoever hands over data chooses the names of columns and categories. Written raw, they could hide or fake what a terminal or
    a page shows.

    >>> print(visible("age\x1b[8m \u202eegA"))
    age\x1b[8m \u202eegA
    """
    return UNSEEN.sub(lambda found: _escape(ord(found[0])), text)


def _escape(number: int) -> str:
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
