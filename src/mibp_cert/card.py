"""A card for notebooks: what was found, at a glance, as HTML that needs nothing else.

Colours are the notebook's own (`currentColor`, and greys that let it shine through), so that light and dark themes both can read
it. There are no scripts and no style sheets: notebooks strip them from pages that are shared. All text is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from mibp_cert.visible import visible

GREY = "rgba(128,128,128,.35)"
STYLES = {
    "card": f"border:1px solid {GREY};border-radius:.6em;padding:.8em 1em;max-width:46em;line-height:1.45;font-family:sans-serif;"
    "overflow-wrap:anywhere",
    "title": "font-weight:600;margin:0 0 .5em",
    "figures": "display:flex;flex-wrap:wrap;gap:.6em;margin:0 0 .6em",
    "figure": f"flex:1 1 8em;border:1px solid {GREY};border-radius:.5em;padding:.4em .6em",
    "name": "font-size:.85em;opacity:.8",
    "value": "font-size:1.6em;font-weight:650;line-height:1.2",
    "loud": "border-left:.3em solid #c8552b;padding-left:.6em;margin:.4em 0;font-weight:600",
    "line": "margin:.3em 0",
    "table": "border-collapse:collapse;margin:.5em 0;font-size:.9em",
    "cell": f"border:1px solid {GREY};padding:.2em .5em;text-align:left",
}
"""How each part looks."""


class Figure(NamedTuple):
    """A number in large letters: what it is called, its value as text, and what it means."""

    name: str
    value: str
    words: str


def card(
    title: str,
    figures: Iterable[Figure] = (),
    loud: Iterable[str] = (),
    lines: Iterable[tuple[str, str]] = (),
    head: Sequence[str] = (),
    rows: Iterable[Sequence[object]] = (),
) -> str:
    """The card: its title, what must be known before the numbers (`loud`), figures, a table, and lines with a word in front.

    >>> "&lt;script&gt;" in card("<script>")
    True
    """
    shown = [_part("div", "figure", _inside(figure)) for figure in figures]
    parts = [
        _part("div", "title", escape(title)),
        *(_part("div", "loud", escape(sentence)) for sentence in loud),
        *([_part("div", "figures", "".join(shown))] if shown else []),
        *([_table(head, rows)] if head else []),
        *(_part("div", "line", f"<strong>{escape(name)}:</strong> {escape(words)}") for name, words in lines),
    ]
    return visible(_part("div", "card", "".join(parts)))


def _inside(figure: Figure) -> str:
    name, value, words = map(escape, figure)
    return _part("div", "name", name) + _part("div", "value", value) + _part("div", "name", words)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["".join(_part("th", "cell", escape(name)) for name in head)]
    lines += ["".join(_part("td", "cell", escape(str(cell))) for cell in row) for row in rows]
    return _part("table", "table", "".join(f"<tr>{line}</tr>" for line in lines))


def _part(tag: str, kind: str, inside: str) -> str:
    return f'<{tag} style="{STYLES[kind]}">{inside}</{tag}>'


def number(value: float | None) -> str:
    """A number as it is shown.

    >>> number(1234.5), number(0.01234), number(None)
    ('1,234', '0.0123', 'unknown')
    """
    return "unknown" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share as it is shown.

    >>> percent(0.985), percent(None)
    ('98.5 %', '–')
    """
    return "–" if value is None else f"{100 * value:.1f} %"
