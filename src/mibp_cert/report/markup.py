"""Pieces of a page: tables that scroll by themselves, lists, pictures. All text is escaped here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from matplotlib.axes import Axes

from mibp_cert.report.plots import SIZE, inline_svg


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], label: str, kind: str = "") -> str:
    """A table in a container that scrolls by itself, by keyboard, too; figures are kept on one line each."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(_cell(str(cell)) for cell in row)}</tr>" for row in rows)
    box = f'<div class="scroll {kind}" tabindex="0" role="region" aria-label="{escape(label)}">'
    return f"{box}<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(text: str) -> str:
    return f"<td>{code(text) if text.startswith('--') else escape(text)}</td>"


def code(text: str) -> str:
    """A command; its words are kept whole where they fit: a flag that was broken after its dashes could not be read."""
    return f"<code>{' '.join(f'<span>{escape(word)}</span>' for word in text.split(' '))}</code>"


def bullets(sentences: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def figure(draw: Callable[[Any, Axes], None], about: Any, title: str, text: str = "", height: float = SIZE[1]) -> str:
    """A picture with its title, and a caption where there is one."""
    caption = f"<figcaption>{escape(text)}</figcaption>" if text else ""
    return f"<figure><h3>{escape(title)}</h3>{inline_svg(draw, about, title, height)}{caption}</figure>"
