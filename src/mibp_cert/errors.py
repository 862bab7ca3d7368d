"""One hierarchy of errors; every message says what was wrong and what to do.

Two kinds matter to a caller: `UserError` (the request cannot be carried out as it stands; the command line prints its
sentence and exits with status 2) and `SoundnessError` (a bound is NaN, infinite or inverted; nothing may be certified).
"""

from __future__ import annotations


class MibpCertError(Exception):
    """Base class of every error this package raises on purpose."""


class UserError(MibpCertError, ValueError):
    """The request cannot be carried out as it stands; the message is one sentence that says why and what to do."""


class SolverUnavailable(UserError):
    """The chosen solver is not installed, or its licence does not admit the program."""


class UnsupportedOperation(UserError):
    """An engine has no rule for an operation of the graph; the message names operation, layer and engine."""


class SoundnessError(MibpCertError):
    """A bound is NaN, infinite or inverted: the run stops, since nothing could be certified from it."""


class Diverged(SoundnessError):
    """The bounds grew beyond all use before the first epoch was over: there is nothing to certify from. `enough`: of a fitted
    model, about the largest `C` that was found to be small enough."""

    def __init__(self, words: str, enough: float | None = None) -> None:
        super().__init__(words)
        self.enough = enough
