"""What `verify` says of a run, and how much it is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Hear = Callable[[str], None]


@dataclass(frozen=True)
class Check:
    """One thing that was checked: whether it holds (None: that could not be checked), and what was found, in words."""

    name: str
    holds: bool | None
    words: str
    how: str = ""
    """What was done, where it holds: `proven`, `taken again`, `sampled`, …"""
    given: str = ""
    """What nobody checked, and is taken as given."""


@dataclass(frozen=True)
class AuditSettings:
    """How much is checked: `points` at random and `parameters` pushed both ways for the second opinion on each step; whether all
    that was computed is `recomputed`; whether steps are `proven` (None: if that is quick); and the fresh datasets, drawn with
    `seed`."""

    points: int = 4
    parameters: int = 4
    recompute: bool = True
    members: int = 60
    seed: int = 1
    prove: bool | None = None


def verdict(checks: Sequence[Check]) -> bool | None:
    """Of all of them: False if something is wrong, None if nothing is but something could not be checked."""
    outcomes = {check.holds for check in checks}
    return False if False in outcomes else None if None in outcomes or not checks else True
