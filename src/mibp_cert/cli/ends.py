"""How a command ends: its exit status, and one sentence if something went wrong; never a traceback for the state of the world."""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version

from mibp_cert.errors import MibpCertError, SoundnessError
from mibp_cert.report.console import NOBODY_READS, Terminal

USER_MISTAKE, UNSOUND, BUG, INTERRUPTED = 2, 3, 70, 130
"""Exit statuses: a mistake in the request, or a world that does not let it be carried out; bounds that are of no use (or a
contradiction to report); an error of ours; Ctrl-C."""
TRACEBACK = "MIBP_CERT_TRACEBACK"
"""Environment variable that shows where an error of ours happened."""
ENDS_OF_LINES = re.compile(r"[\r\n]+")
"""A name of a column may hold some; a sentence is one line."""
NO_MEMORY = ("failed to map segment", "cannot allocate memory", "Unable to allocate")
"""What a library that cannot be loaded says of too little memory."""


LEAST_ADDRESSES = 512
"""MiB below which the libraries of linear algebra end the process by themselves, with a status of their own."""


class Interrupted(MibpCertError):
    """Ctrl-C; the workers have been ended."""


class OutOfMemory(MibpCertError):
    """There was not enough memory."""


MORE_MEMORY = "there is not enough memory for this: use fewer rows (--sample), doubt fewer columns, or raise the limit"


def ended(command: Callable[[], object]) -> int:
    """Carry it out; the exit status."""
    try:
        try:
            return _status(command, _addresses())
        finally:
            _flush()
    except KeyboardInterrupt:  # again, while the last words were spoken
        return INTERRUPTED
    except OSError as error:
        _silence()
        if isinstance(error, BrokenPipeError):
            return NOBODY_READS
        return _said(f"what is printed cannot be written: {error.strerror or error}.", USER_MISTAKE)


def _addresses() -> float:
    """MiB of addresses that this process may use; infinite where there is no such limit."""
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if soft == resource.RLIM_INFINITY else soft / 2**20


def _status(command: Callable[[], object], addresses: float) -> int:
    if addresses < LEAST_ADDRESSES:
        wanted = f"of {addresses:.0f} MiB; {LEAST_ADDRESSES} are the least that the libraries load in"
        return _said(f"there is a limit of addresses (ulimit -v) {wanted}: raise it.", USER_MISTAKE)
    try:
        command()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            _silence()
            return NOBODY_READS
        return end.code if isinstance(end.code, int) else 0 if end.code is None else USER_MISTAKE
    except (Interrupted, KeyboardInterrupt) as error:
        return _said(str(error) or "Interrupted; nothing more was written.", INTERRUPTED)
    except SoundnessError as error:
        return _said(str(error), UNSOUND)
    except MibpCertError as error:
        return _said(str(error), USER_MISTAKE)
    except MemoryError:
        return _said(f"{MORE_MEMORY}.", USER_MISTAKE)
    except BrokenPipeError:
        raise
    except OSError as error:
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return _said(f"{place}{error.strerror or error}; nothing more was written.", USER_MISTAKE)
    except Exception as error:
        if isinstance(error, ImportError) and any(words in str(error) for words in NO_MEMORY):
            return _said(f"{MORE_MEMORY}.", USER_MISTAKE)
        return _bug(error)
    return 0


def _bug(error: Exception) -> int:
    """An error of ours: what to report."""
    shown = os.environ.get(TRACEBACK)
    if shown:
        traceback.print_exception(error)
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    made = f"mibp-cert {version('mibp-cert')}, Python {platform.python_version()}, {platform.system()}"
    again = "" if shown else f" and what it says with {TRACEBACK}=1 set"
    asked = shlex.join(["mibp-cert", *sys.argv[1:]])
    return _said(
        f"this is an error in mibp-cert, not in your request ({what}); nothing that it printed may be used. Please report it "
        f"with {made}, the command{again}: {asked}",
        BUG,
    )


def _said(sentence: str, status: int) -> int:
    """Say it, whatever else happens; Ctrl-C comes too late now."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, ValueError, SystemExit):
        Terminal(stderr=True).print(
            f"mibp-cert: {ENDS_OF_LINES.sub(' ', sentence)}", style="red", soft_wrap=True, highlight=False, markup=False
        )
    return status


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _silence() -> None:
    """What is left in the buffer goes nowhere: Python would try to write it once more."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
