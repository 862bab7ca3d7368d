"""The terminal: what is printed there does nothing to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mibp_cert.visible import visible

NOBODY_READS = 141
"""The exit status of a program that writes into a pipe whose reader has gone."""


class Terminal(Console):
    """A console on which names from data show their control characters; its own colours and movements are untouched."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(visible(part) if isinstance(part, str) else part for part in objects), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else Segment(visible(part.text), part.style)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise SystemExit(NOBODY_READS)
