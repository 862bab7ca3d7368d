"""What to try next, as commands: every "no" ends with lines that can be pasted, made of the user's own arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from mibp_cert.certify import CertifiedRun
from mibp_cert.cli.asked import Asked
from mibp_cert.config import NETWORK, OF_ALL, OF_FITTED, Job
from mibp_cert.data import NAMES, Task
from mibp_cert.engines import DEFAULT, engine_named
from mibp_cert.fitted import MODELS, REGRESSIONS
from mibp_cert.studies.blame import Blame
from mibp_cert.studies.parts import threats_in
from mibp_cert.studies.tolerance import Tolerance
from mibp_cert.threats import Catalogued

ENOUGH = 0.9
"""Share of the test points from which on nothing more is advised."""
WORSE = 1.5
"""A certified error above this multiple of the clean one is too much."""
MOST = 4
"""Commands that are named at once."""
FEWER = 10.0
"""What `C` is divided by in an advice."""


@dataclass(frozen=True)
class Next:
    """A command, and what it is good for."""

    words: str
    command: str


def tell(console: Console, ways: Iterator[Next]) -> None:
    """Each command in a line of its own, below what it is good for."""
    for way in islice(ways, MOST):
        console.print(f"Next, {way.words}:\n  {way.command}", highlight=False)


def is_enough(run: CertifiedRun) -> bool:
    """Is so much certified that nothing needs advice?"""
    if run.test is not None:
        return run.test.certification_rate() >= ENOUGH
    if run.test_ranges is None:
        return True
    clean, certified = run.errors["nominal_error"], run.errors["certified_error"]
    return clean is not None and certified is not None and certified <= WORSE * clean


def after_certify(asked: Asked, job: Job, run: CertifiedRun, *, split: bool) -> Iterator[Next]:
    """Where much is not certified; `split`: what is lost to each part was shown."""
    if is_enough(run):
        return
    if not split and threats_in(run.threat):
        yield Next("what each part of it costs alone", asked.command("certify", parts=True))
    yield from _ways(asked, job, run.engine, blame=run.reached)


def after_divergence(asked: Asked, enough: float | None) -> Next:
    """Where the bounds came to nothing; `enough`: a `C` that would do, if one is known."""
    if asked["model"]["kind"] == NETWORK:
        return Next("how much doubt they survive", asked.command("tolerance", {"run.engine": None}))
    return Next("a smaller C", _smaller_c(asked) if enough is None else asked.command("certify", {"model.C": enough}))


def after_tolerance(asked: Asked, job: Job, found: Tolerance, own: Mapping[str, Any]) -> Iterator[Next]:
    """Where no value, or only 0, leaves enough certified; `own`: what was said to `tolerance` alone."""
    if found.share is None or found.largest:
        return
    if found.largest is None and found.needed is not None and np.isfinite(found.needed):
        within = float(f"{1.01 * found.needed:.3g}")
        yield Next("outputs that may be off by more", asked.command("tolerance", **{**own, "within": within}))
    elif found.within is None:
        least = 0.0 if found.largest is None else np.nextafter(0.0, 1.0)
        share = np.floor(100 * np.mean(np.nan_to_num(found.certified, nan=-1.0) >= least)) / 100
        if 0 < share < found.share:
            yield Next("a smaller share", asked.command("tolerance", **{**own, "share": float(share)}))
    if threats_in(job.threat):
        yield Next("what each part of it costs alone", asked.command("certify", parts=True))
    yield from _ways(asked, job, job.engines[0], tolerance=False, blame=False)


def after_blame(asked: Asked, job: Job | None, found: Blame, top: int) -> Iterator[Next]:
    """Where nothing is uncertain, or re-checking changes nothing; without a `job`, a run directory was asked about."""
    if not found.points and job is not None:
        yield from _tolerance(asked, job.threat, "how much more doubt the certificates survive")
    elif not found.points:
        yield Next("the whole run as a page", asked.command("report"))
    elif found.after is not None and found.before is not None and not found.widths and found.after <= found.before:
        if top < len(found.rows):
            yield Next("more rows", asked.command("blame", top=min(5 * top, len(found.rows))))
        if job is not None and threats_in(job.threat):
            yield Next("what each part of it costs alone", asked.command("certify", parts=True))


def after_compare(asked: Asked, job: Job, lines: pd.DataFrame) -> Iterator[Next]:
    """Where no line certifies enough."""
    numbers = job.data.train.task is Task.NUMBERS
    good = (lines["certified"] <= WORSE * lines["clean"]) if numbers else (lines["rate"] >= 100 * ENOUGH)
    if not good.any():
        engine = DEFAULT if asked["model"]["kind"] == NETWORK else job.engines[0]
        yield from _ways(asked, job, engine, blame=not lines["diverged"].any())


def _ways(asked: Asked, job: Job, engine: str, *, tolerance: bool = True, blame: bool = True) -> Iterator[Next]:
    """What lets more be certified, quickest first; `tolerance`, `blame`: whether these studies have something to say."""
    network, numbers = asked["model"]["kind"] == NETWORK, job.data.train.task is Task.NUMBERS
    if network:
        if engine != DEFAULT:
            yield Next("tighter bounds", asked.command("certify", {"run.engine": DEFAULT, "run.prediction": None}))
        if job.select.rule == "last" and job.data.validation is not None and not numbers:
            yield Next("the best epoch", asked.command("certify", {"select.rule": "best-validation"}))
        if (fit := _fit(asked, numbers=numbers)) is not None:
            yield fit
    elif isinstance(asked["model"]["C"], int | float):
        yield Next("a smaller C, whose model depends less on each row", _smaller_c(asked))
    if tolerance:
        yield from _tolerance(asked, job.threat, "how much doubt the certificates survive")
    if blame and (not network or engine_named(engine).keeps_symbols):
        yield Next("which rows to check again", asked.command("blame", {"run.engine": None} if network else {}))


def _smaller_c(asked: Asked) -> str:
    return asked.command("certify", {"model.C": float(f"{asked['model']['C'] / FEWER:.3g}")})


def _fit(asked: Asked, *, numbers: bool) -> Next | None:
    """The same question to a model at its minimum, where the table is the user's own and no file speaks of steps."""
    if asked.file is not None or asked["data"]["source"] in NAMES:
        return None
    kind = next(name for name, loss in MODELS.items() if (loss in REGRESSIONS) == numbers)
    of_steps = {key: None for key in asked.said if key.partition(".")[0] not in OF_ALL and key not in OF_FITTED}
    return Next(
        "a model at its minimum", asked.command("certify", {**of_steps, "run.engine": None, "model.kind": kind})
    )


def _tolerance(asked: Asked, threat: Catalogued, words: str) -> Iterator[Next]:
    """Where there is an amount that can be varied, or labels that may be wrong."""
    one = {"run.engine": None} if "," in str(asked["run"]["engine"]) else {}
    if threat.has_amounts():
        yield Next(words, asked.command("tolerance", one))
    elif asked.file is None and "threat.flips" in asked.said:
        yield Next(words, asked.command("tolerance", {**one, "threat.flips": None}, vary="flips"))
