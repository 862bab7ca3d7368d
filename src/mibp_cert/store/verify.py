"""`verify`: a stored run, checked again.

- hashes: of the data, the request, every step and the result, along their chain;
- recomputed: every step taken again by its engine (`store.again`), where the run has no wall-clock limits;
- proof: every step of `interval`, in exact arithmetic, without engine code (`check.steps`);
- second opinion: single points of every stored step, or minimisers of single datasets, in ball arithmetic, without engine code
  (`store.second`, `store.refit`);
- answers, attack, figures: all that the result says, found again (`store.figures`);
- trainings: fresh datasets of the threat, sampled and attacked, trained for real: inside the bounds, and certificates hold.

Nothing is written into the run's directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from mibp_cert.certify.attack import AttackSettings, check_certificates
from mibp_cert.certify.request import Request
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.certify.tables import attack_rows
from mibp_cert.check.steps import prove_steps
from mibp_cert.data import Split
from mibp_cert.disk import STEPS, exists
from mibp_cert.engines import Inputs
from mibp_cert.errors import MISFITS, MibpCertError, Misfit, SoundnessError, UnsupportedOperation, UserError
from mibp_cert.fitted import Fitted
from mibp_cert.store.again import Again, take_again
from mibp_cert.store.archive import FILES, differing, load_run, stored_request
from mibp_cert.store.checks import AuditSettings, Check, Hear
from mibp_cert.store.contents import Contents
from mibp_cert.store.figures import found_again, is_whole
from mibp_cert.store.kernel import kernel
from mibp_cert.store.npz import no_run
from mibp_cert.store.opinion import Opinion
from mibp_cert.threats import Threat

PROVEN_BY_ITSELF = "interval"
"""The engine whose steps `check.steps` proves."""
POINTS = "That every point of a set stays inside: points are samples, which refute but do not prove."
PATIENCE = 600.0
"""Seconds that a proof may take which nobody asked for."""
PAIR = 2e-6
"""Seconds that the proof takes for a parameter and a row, about."""


def verify(
    path: str | Path,
    settings: AuditSettings | None = None,
    threat: Threat | None = None,
    hear: Hear = lambda _: None,
    data: Split | None = None,
) -> list[Check]:
    """Everything there is to check about the run in this directory; `threat` where the file cannot hold it (rules); `data`: the
    rows that it should be about."""
    settings, path = settings or AuditSettings(), Path(path)
    if path.is_dir() and not any(exists(path / name) for name in (*FILES, STEPS)):
        raise UserError(no_run(path, FILES[0]))
    hear("hashes")
    try:
        kept = Contents.read(path)
    except MibpCertError as error:
        return [Check("hashes", False, str(error))]
    words = f"data, request, {len(kept.records)} step(s) and result are as they were written"
    whose = "" if data is not None else "Where the rows come from cannot be told from the directory alone. "
    forger = "Hashes show damage; who alters a file can mend them."
    found = [Check("hashes", True, words, "unbroken", whose + forger)]
    try:
        request = stored_request(path, threat)
    except Misfit as error:
        return [*found, Check("request", False, str(error))]
    except UserError as error:  # what was written is whole, but cannot be read here: a layer or rules of the user's own
        return [*found, Check("request", None, str(error))]
    try:
        found += _request(request, kept, data)
        again = None
        if settings.recompute and request.settings.solver.repeatable and kept.records:
            with closing(request.make_engine()) as engine:
                again = take_again(request, engine, kept, hear)
        found += _steps(request, kept, again, settings, hear)
        found += _result(path, request, kept, again, settings, threat, hear)
    except MibpCertError as error:
        found.append(Check("run", False, str(error)))
    except MISFITS as error:
        found.append(Check("run", False, f"what is stored does not fit together ({type(error).__name__}: {error})"))
    return found


def _result(
    path: Path,
    request: Request,
    kept: Contents,
    again: Again | None,
    settings: AuditSettings,
    threat: Threat | None,
    hear: Hear,
) -> Iterator[Check]:
    """What the run found, if it is over."""
    if kept.result is None:
        yield Check("result", None, "the run is not finished: there are no certificates yet")
    elif not is_whole(request, kept):
        yield Check("result", False, f"there is one, though there are records of {len(kept.records)} step(s) only")
    else:
        yield from _findings(request, kept, again, settings, hear)
        run = load_run(path, threat)
        yield _bounds(run)
        yield from _trainings(run, settings, hear)


def _request(request: Request, kept: Contents, data: Split | None) -> Iterator[Check]:
    """What was asked for, and of which rows."""
    now, then = ({k: v for k, v in plain.items() if k != "versions"} for plain in (request.to_json(), kept.description))
    if key := differing(then, now):
        words = f"the request, read here, says something else of {key} than what was written"
        yield Check("request", False, words)
    if request.drawn:
        where = "those that the seed draws" if not isinstance(request.training, Fitted) else "those of its features"
        yield Check("initial parameters", True, where, "drawn again")
    else:
        fitted = isinstance(request.training, Fitted)
        words = "not those of the features" if fitted else "handed in, so that no seed stands for them"
        given = "Where the initial parameters come from."
        yield Check("initial parameters", not fitted, words, "as handed in", given)
    if data is not None:
        mine, theirs = ({name: part.sha256 for name, part in split.parts.items()} for split in (request.data, data))
        other = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        words = f"other {' and '.join(other)} rows than" if other else f"the same {', '.join(mine)} rows as"
        yield Check("data", not other, f"{words} in the data handed in", "compared")


def _steps(
    request: Request, kept: Contents, again: Again | None, settings: AuditSettings, hear: Hear
) -> Iterator[Check]:
    """The stored steps: what was dropped, each step again, proven, and seen with other eyes."""
    if kept.missing:
        listed = ", ".join(map(str, kept.missing[:9])) + (", …" if len(kept.missing) > 9 else "")
        yield Check("steps", None, f"the sets after {len(kept.missing)} step(s) are not there (any more): {listed}")
    if not kept.records:
        yield Check("steps", None, "no step was taken yet")
        return
    yield _recomputed(request, kept, again, settings)
    proof = None
    if request.engine == PROVEN_BY_ITSELF and not isinstance(request.training, Fitted):
        yield (proof := _proof(kept, settings, hear))
    opinion = Opinion(request, kept.arrays, settings, hear)
    if opinion.numbers:
        yield replace(opinion.check(), given="" if proof is not None and proof.holds else POINTS)


def _recomputed(request: Request, kept: Contents, again: Again | None, settings: AuditSettings) -> Check:
    """What came of every step when it was taken again."""
    if again is None:
        why = "wall-clock limits of the solver cannot be repeated" if settings.recompute else "as asked"
        return Check("recomputed", None, f"left out: {why}")
    told = f"{again.taken} step(s) taken again"
    if isinstance(request.training, Fitted):
        told = "ranges proven again from the data"
    told += "" if not kept.missing else ", without the sets that are gone"
    here = ""
    if again.near or again.unlike:
        before = sorted({name or "one that is not named" for name in kept.kernels})
        here = f" (computed by {' and '.join(before)}; here by {kernel()})"
    holds = False if again.wrong else None if again.unlike else True
    engine_is_right = "" if request.engine == PROVEN_BY_ITSELF else f"That the rules of '{request.engine}' are right. "
    given = f"{engine_is_right}How many seconds steps took."
    return Check("recomputed", holds, f"{told}: {again.words}{here}", "taken again", given)


def _proof(kept: Contents, settings: AuditSettings, hear: Hear) -> Check:
    """Every step's inclusion, and the answers, by a checker that knows no engine."""
    rows = kept.description["training"]["batch_size"] or min(100, len(kept.data["train_x"]))
    seconds = PAIR * len(kept.arrays) * rows * len(kept.data["start"])
    if settings.prove is False or (settings.prove is None and seconds > PATIENCE):
        why = "as asked" if settings.prove is False else f"it would take about {seconds / 60:.0f} minutes (--prove)"
        return Check("proof", None, f"left out: {why}")
    hear("proving every step")
    first = min(kept.missing, default=len(kept.records) + 1)
    sets = {number: arrays for number, arrays in kept.arrays.items() if number < first}
    result = None
    if not kept.missing and kept.result is not None and kept.answers is not None:
        result = {**kept.result, **kept.answers}
    if not sets:
        return Check("proof", None, "no step could be proven: the set after the first one is not there")
    try:
        proof = prove_steps(kept.description, kept.data, sets, result)
    except UnsupportedOperation as error:
        return Check("proof", None, str(error))
    told = f"{proof.steps} step(s) proven on their own, in exact arithmetic"
    if proof.failed:
        return Check("proof", False, f"{told}; then {proof.failed}")
    if kept.missing:
        return Check("proof", None, f"{told}; of what follows, the set after step {first} is not there")
    told += "" if result is None or not proof.rows else f", and the answers for {proof.rows} test points"
    return Check("proof", True, told, "proven", f"What the proof starts from: {'; '.join(proof.claimed)}.")


def _findings(
    request: Request, kept: Contents, again: Again | None, settings: AuditSettings, hear: Hear
) -> Iterator[Check]:
    """What the result says, found again."""
    if not settings.recompute:
        yield Check("figures", None, "answers, attack and figures were not found again, as asked")
        return
    for one in found_again(request, kept, {} if again is None else again.instead, hear):
        none = "That no attack was asked for. " if one.name == "figures" and request.attack is None else ""
        yield Check(one.name, one.holds, one.words, "found again", none)


def _bounds(run: CertifiedRun) -> Check:
    """The bounds that the run is about hold its clean model."""
    whose = f"the bounds after step {run.steps}" if run.fitted is None else "the bounds of the minimum"
    inside = run.bounds.contains(run.theta)
    return Check("bounds", inside, f"{whose} {'hold' if inside else 'do not hold'} the clean model")


def _trainings(run: CertifiedRun, settings: AuditSettings, hear: Hear) -> list[Check]:
    """Fresh datasets, other ones than the run's own attack used."""
    hear("fresh trainings")
    inputs = run.test_inputs() if run.data.test is not None else Inputs(run.train.x)
    try:
        found = attack_rows(run, inputs, AttackSettings(members=settings.members, seed=settings.seed + 1))
        if run.answers.certified is not None:
            check_certificates(found, run.answers.certified, run.bounds)
        outside = sum(not run.bounds.contains(theta) for theta in found.theta)
    except SoundnessError as error:
        return [Check("trainings", False, str(error))]
    made = "trained" if run.fitted is None else "fitted"
    words = f"{len(found.theta)} fresh datasets of the threat {made} for real, {outside} outside of the bounds"
    words += "" if run.answers.certified is None else "; no certificate is contradicted"
    return [Check("trainings", outside == 0, words, "tried")]
