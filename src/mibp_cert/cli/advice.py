"""What to try next, as commands: every "no" ends with lines that can be pasted, made of the user's own arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from mibp_cert.certify import CertifiedRun
from mibp_cert.certify.shown import loud
from mibp_cert.certify.worth import Worth
from mibp_cert.cli.asked import Asked
from mibp_cert.config import OF_ALL, OF_FITTED
from mibp_cert.data import NAMES, Task
from mibp_cert.engines import DEFAULT, engine_named
from mibp_cert.fitted import Fitted
from mibp_cert.fitted.model import BALANCED, ONE_VERSUS_REST
from mibp_cert.job import Job
from mibp_cert.report.console import Terminal
from mibp_cert.report.words import FEATURES, HIDDEN
from mibp_cert.studies.blame import Blame
from mibp_cert.studies.choose import UNPROVEN
from mibp_cert.studies.parts import threats_in
from mibp_cert.studies.tolerance import Tolerance

ENOUGH = 0.9
"""Share of the test points from which on nothing more is advised."""
WORSE = 1.5
"""A certified error above this multiple of the clean one is too much."""
MOST = 4
"""Commands that are named at once."""
BETTER = 1.02
"""By how much a model is more accurate to be worth a slower proof."""
FEWER = 10.0
"""What `C` is divided by in an advice."""


@dataclass(frozen=True)
class Next:
    """A command, and what it is good for."""

    words: str
    command: str


def tell(console: Terminal, ways: Iterable[Next]) -> None:
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
    """Where much is not certified, or a better model was not proven quickly; `split`: what is lost to each part was shown."""
    useless = run.worth is not None and run.reached and not run.worth.better
    fairer = list(_fairer(asked, job, run))
    yield from fairer
    yield from _beyond(asked, job, 1.0 if useless else BETTER)
    if useless and not fairer:  # what survives of it is of no interest
        yield from _richer(asked, job)
    if useless or is_enough(run):
        return
    if not split and threats_in(run.threat):
        yield Next("what each part of it costs alone", asked.command("certify", parts=True))
    yield from _ways(asked, job, run.engine, blame=run.reached)


def _fairer(asked: Asked, job: Job, run: CertifiedRun) -> Iterator[Next]:
    """Classes that count alike, where a model only knows the frequent ones; not where labels or rows may be others, since the
    weights would be, too."""
    model, threat = job.training, run.request.members
    if not isinstance(run.worth, Worth) or not isinstance(model, Fitted) or model.by_class or not loud(run):
        return
    hull = threat.hull()
    if not run.threat.changes_rows() and (hull.y_low == hull.y_high).all():
        words = "a model of the same kind to which all classes count alike (balanced accuracy)"
        yield Next(words, asked.command("certify", {"model.class_weight": BALANCED}))


def _richer(asked: Asked, job: Job) -> Iterator[Next]:
    """A model that can bend, where a plain one is no better than a constant answer."""
    if isinstance(job.training, Fitted):
        if job.training.features is None:
            words = f"a model that can bend: {FEATURES} frozen random features of the columns before it"
            yield Next(words, asked.command("certify", {"model.features": FEATURES}))
    elif len(job.network.sizes) == 2:
        yield Next("a model that can bend: a hidden layer", asked.command("certify", {"network.hidden": str(HIDDEN)}))


def _beyond(asked: Asked, job: Job, better: float) -> Iterator[Next]:
    """The more accurate `C` that plain bounds did not prove: slower ways may, or another way to fit several classes; `better`:
    by how much it must be."""
    choice, model = job.choice, job.training
    if choice is None or not isinstance(model, Fitted):
        return
    clean = {one.C: one.clean for one in choice.candidates}
    bounded = [one.certified for one in choice.candidates if one.certified is not None]
    if not bounded or (bounded[-1] >= choice.judge.baseline if choice.judge.numbers else bounded[-1] == 0.0):
        return  # the last one that was bounded certifies nothing of use: neither will a larger one
    for one in choice.candidates:
        gain = clean[choice.C] / max(one.clean, 1e-300) if choice.judge.numbers else one.clean / clean[choice.C]
        if one.why != UNPROVEN or gain < better or gain == 1.0:
            continue
        if job.network.logits > 1 and model.softmax:
            words = "a more accurate model may be proven for the same classes, fitted one versus the rest"
            yield Next(words, asked.command("certify", {"model.multi": ONE_VERSUS_REST}))
        else:
            words = "a more accurate model, whose proof takes longer and may not succeed"
            yield Next(words, asked.command("certify", {"model.C": one.C}))
        return


def after_divergence(asked: Asked, job: Job, enough: float | None) -> Next:
    """Where the bounds came to nothing; `enough`: a `C` that would do, if one is known."""
    if enough is not None:
        return Next("a smaller C", asked.command("certify", {"model.C": enough}))
    for way in _tolerance(asked, job, "how much doubt they survive"):
        return way
    if isinstance(job.training, Fitted):
        return Next("a smaller C", _smaller_c(asked, job.training))
    return Next(
        "smaller steps", asked.command("certify", {"training.learning_rate": job.training.learning_rate / FEWER})
    )


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
        yield from _tolerance(asked, job, "how much more doubt the certificates survive")
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
        engine = job.engines[0] if isinstance(job.training, Fitted) else DEFAULT
        yield from _ways(asked, job, engine, blame=not lines["diverged"].any())


def _ways(asked: Asked, job: Job, engine: str, *, tolerance: bool = True, blame: bool = True) -> Iterator[Next]:
    """What lets more be certified, quickest first; `tolerance`, `blame`: whether these studies have something to say."""
    fitted = job.training if isinstance(job.training, Fitted) else None
    if fitted is None:
        if engine != DEFAULT:
            yield Next("tighter bounds", asked.command("certify", {"run.engine": DEFAULT, "run.prediction": None}))
        if job.select.rule == "last" and job.data.validation is not None:
            yield Next("the best epoch", asked.command("certify", {"select.rule": "best-validation"}))
        yield from _fit(asked)
    elif job.choice is None:
        yield Next("a smaller C, whose model depends less on each row", _smaller_c(asked, fitted))
    if tolerance:
        yield from _tolerance(asked, job, "how much doubt the certificates survive")
    if blame and (fitted is not None or engine_named(engine).keeps_symbols):
        yield Next("which rows to check again", asked.command("blame", _one_engine(asked)))


def _smaller_c(asked: Asked, model: Fitted) -> str:
    return asked.command("certify", {"model.C": float(f"{model.C / FEWER:.3g}")})


def _fit(asked: Asked) -> Iterator[Next]:
    """The same question to a model at its minimum, where the table is the user's own and no file speaks of steps."""
    if asked.file is None and asked["data"]["source"] not in NAMES:
        of_steps = {key: None for key in asked.said if key.partition(".")[0] not in OF_ALL and key not in OF_FITTED}
        changes = {**of_steps, "run.engine": None, "model.kind": None}
        yield Next("a model at its minimum", asked.command("certify", changes))


def _tolerance(asked: Asked, job: Job, words: str) -> Iterator[Next]:
    """Where there is an amount that can be varied, or labels that may be wrong."""
    if job.threat.has_amounts():
        yield Next(words, asked.command("tolerance", _one_engine(asked)))
    elif asked.file is None and "threat.flips" in asked.said:
        yield Next(words, asked.command("tolerance", {**_one_engine(asked), "threat.flips": None}, vary="flips"))


def _one_engine(asked: Asked) -> dict[str, Any]:
    """The usual engine where several were named; said, since it is an engine of steps."""
    return {"run.engine": DEFAULT} if "," in str(asked["run"]["engine"]) else {}
