"""One hierarchy of errors; every message says what was wrong and what to do.

Two kinds matter to a caller: `UserError` (the request cannot be carried out as it stands; the command line prints its
sentence and exits with status 2) and `SoundnessError` (a bound is NaN, infinite or inverted; nothing may be certified).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mibp_cert.visible import visible


class MibpCertError(Exception):
    """Base class of every error this package raises on purpose. Names from data that are in it do nothing to a terminal."""

    def __str__(self) -> str:
        return visible(super().__str__())


class UserError(MibpCertError, ValueError):
    """The request cannot be carried out as it stands; the message is one sentence that says why and what to do."""


class Misfit(UserError):
    """What a file holds is not what this version writes."""


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


MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""What Python raises for values of another kind, shape or key than it was told of."""


@contextmanager
def fitting(what: str) -> Iterator[None]:
    """Where plain data become objects: what does not fit is one sentence about `what`, not our error."""
    try:
        yield
    except MibpCertError:
        raise
    except MISFITS as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise Misfit(f"{what} is not what this version writes ({said[:200]}); make the run again.") from None
