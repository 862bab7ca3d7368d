"""A fuzzer: files, flags and folders that are accepted, changed a little.

A case is a kind (`fuzz_kinds.KINDS`) and a number, which its every draw follows from: `python benchmarks/fuzz.py --only csv:17`
is the same case again. What a fault is, `fuzz_judge` says.
"""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fuzz_judge
from fuzz_accepted import World
from fuzz_judge import Announced, Fault, Hang
from fuzz_kinds import KINDS
from mibp_cert.cli.ends import TRACEBACK
from mibp_cert.job import Job

LONG = 5.0
"""What a forecast says takes longer is believed, and not waited for."""


@dataclass(frozen=True)
class Outcome:
    kind: str
    number: int
    end: str
    fault: str | None = None

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.number}"


def attempt(world: World, kind: str, number: int, folder: Path, seed: int = 0) -> Outcome:
    """Carry out one case in an empty folder."""
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode()), number])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.chdir(folder), warnings.catch_warnings(), _noticed():
            warnings.simplefilter("error")
            return Outcome(kind, number, KINDS[kind](world, rng, folder))
    except Hang:
        return Outcome(kind, number, "fault", f"no end after {fuzz_judge.SECONDS} seconds")
    except Announced:
        return Outcome(kind, number, "announced")
    except Fault as fault:
        cause = "" if fault.__cause__ is None else "".join(traceback.format_exception(fault.__cause__)[-8:])
        return Outcome(kind, number, "fault", f"{fault}\n{cause}")
    except Exception:
        return Outcome(kind, number, "fault", traceback.format_exc()[-2500:])


@contextlib.contextmanager
def _noticed() -> Iterator[None]:
    """Errors of ours say where; long work that is announced is not begun."""
    before, forecast = os.environ.get(TRACEBACK), Job.forecast

    def told(job: Job) -> Any:
        found = forecast(job)
        if found.seconds > LONG:
            raise Announced("This takes long, as the program says before it begins.")
        return found

    os.environ[TRACEBACK], Job.forecast = "1", told  # type: ignore[method-assign]
    try:
        yield
    finally:
        Job.forecast = forecast  # type: ignore[method-assign]
        if before is None:
            del os.environ[TRACEBACK]
        else:
            os.environ[TRACEBACK] = before
