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

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mibp_cert.certify.attack import AttackSettings, check_certificates
from mibp_cert.certify.request import Request
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.certify.tables import attack_rows
from mibp_cert.check.steps import prove_steps
from mibp_cert.data import Split
from mibp_cert.engines import Engine, Inputs
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import MISFITS, MibpCertError, SoundnessError, UnsupportedOperation, UserError
from mibp_cert.fitted import FitStep, Fitted
from mibp_cert.nets import run_steps
from mibp_cert.sets import ThreatSet
from mibp_cert.store import refit, second
from mibp_cert.store.again import take_again
from mibp_cert.store.archive import differing, load_run, stored_request
from mibp_cert.store.contents import Contents
from mibp_cert.store.figures import found_again, is_whole
from mibp_cert.store.kernel import kernel
from mibp_cert.threats import Threat

Hear = Callable[[str], None]
PROVEN_BY_ITSELF = "interval"
"""The engine whose steps `check.steps` proves."""
PATIENCE = 600.0
"""Seconds that a proof may take which nobody asked for."""
PAIR = 4e-6
"""Seconds that the proof takes for a parameter and a row, about."""


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
    except UserError as error:  # what was written is whole, but cannot be read here: a layer or rules of the user's own
        return [*found, Check("request", None, str(error))]
    try:
        found += _request(request, kept, data)
        with closing(request.make_engine()) as engine:
            found += _steps(request, engine, kept, settings, hear)
        found += _result(path, request, kept, settings, threat, hear)
    except MibpCertError as error:
        found.append(Check("run", False, str(error)))
    except MISFITS as error:
        found.append(Check("run", False, f"what is stored does not fit together ({type(error).__name__}: {error})"))
    return found


def _result(
    path: Path, request: Request, kept: Contents, settings: AuditSettings, threat: Threat | None, hear: Hear
) -> Iterator[Check]:
    """What the run found, if it is over."""
    if kept.result is None:
        yield Check("result", None, "the run is not finished: there are no certificates yet")
    elif not is_whole(request, kept):
        yield Check("result", False, f"there is one, though there are records of {len(kept.records)} step(s) only")
    else:
        yield from _findings(request, kept, settings, hear)
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


def _steps(request: Request, engine: Engine, kept: Contents, settings: AuditSettings, hear: Hear) -> Iterator[Check]:
    """The stored steps: what was dropped, each step again, proven, and seen with other eyes."""
    if kept.missing:
        listed = ", ".join(map(str, kept.missing[:9])) + (", …" if len(kept.missing) > 9 else "")
        yield Check("steps", None, f"the sets after {len(kept.missing)} step(s) are not there (any more): {listed}")
    if not kept.records:
        yield Check("steps", None, "no step was taken yet")
        return
    yield _recomputed(request, engine, kept, settings, hear)
    if request.engine == PROVEN_BY_ITSELF and not isinstance(request.training, Fitted):
        yield _proof(kept, settings, hear)
    audit = _Audit(request, engine, kept.arrays, settings, hear)
    if audit.numbers:
        yield audit.opinion()


def _recomputed(request: Request, engine: Engine, kept: Contents, settings: AuditSettings, hear: Hear) -> Check:
    if not settings.recompute:
        return Check("recomputed", None, "left out, as asked")
    if not request.settings.solver.repeatable:
        return Check("recomputed", None, "left out: wall-clock limits of the solver cannot be repeated")
    again = take_again(request, engine, kept, hear)
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
    return Check("proof", True, told, "proven", f"{'; '.join(proof.claimed)}.")


@dataclass
class _Audit:
    """The second opinion on the stored steps of one run."""

    request: Request
    engine: Engine
    arrays: dict[int, dict[str, Array]]
    settings: AuditSettings
    hear: Hear

    @property
    def numbers(self) -> list[int]:
        """Steps whose sets before and after are both there."""
        return [n for n in sorted(self.arrays) if n == 1 or n - 1 in self.arrays]

    def before(self, number: int) -> dict[str, Array]:
        begin = self.request.unrolled.begin
        return self.arrays[number - 1] if number > 1 else {"lower": begin, "upper": begin}

    def opinion(self) -> Check:
        """What it comes to: not that something holds where a step could not be evaluated."""
        try:
            found = {number: self._second(number) for number in self.numbers}
        except UnsupportedOperation as error:
            return Check("second opinion", None, str(error))
        holds: bool | None = True
        words = "every result is in the stored set"
        empty = [str(number) for number, (_, points) in found.items() if not points]
        if empty:
            holds, words = None, f"no usable point for step(s) {', '.join(empty[:9])}"
        wrong = [f"step {number}, {said}" for number, (sentences, _) in found.items() for said in sentences]
        if wrong:
            holds, words = False, "; ".join(wrong[:5])
        count = sum(count for _, count in found.values())
        told = f"{len(found)} step(s) evaluated at {count} points in ball arithmetic"
        if isinstance(self.request.training, Fitted):
            told = f"minimisers of {count} datasets enclosed in ball arithmetic"
        given = "That every point of a set stays inside: points are samples, which refute but do not prove."
        return Check("second opinion", holds, f"{told}: {words}", "evaluated", given)

    def _cases(self, number: int) -> Iterator[tuple[ThreatSet, dict[str, Array], dict[str, Array]]]:
        """Each case of the threat with its own sets before and after."""
        before, after = self.before(number), self.arrays[number]
        split = any(key.startswith("case0_") for key in after)
        cases = self.request.members.cases(self.request.settings.relational.cases) if split else ()
        if not cases:
            yield self.request.members, before, after
        for i, threat in enumerate(cases):
            own = f"case{i}_"
            mine = [{k.removeprefix(own): a for k, a in part.items() if k.startswith(own)} for part in (before, after)]
            yield threat, mine[0] or before, mine[1]

    def _second(self, number: int) -> tuple[list[str], int]:
        """What is wrong with a step, and at how many points it was evaluated: 0 if some case of it was at none."""
        self.hear(f"second opinion on step {number}")
        found: list[tuple[list[str], int]] = []
        earlier, step = self.request.unrolled.steps[: number - 1], self.request.unrolled.steps[number - 1]
        if isinstance(step, FitStep):
            rng = np.random.default_rng([self.settings.seed, number])
            counts = self.settings.points, self.settings.parameters
            return refit.check(step, self.request.members, self.arrays[number], rng, *counts)
        for case, (threat, before, after) in enumerate(self._cases(number)):
            noise = threat.noise()
            old, new = second.Stored.of(before, noise), second.Stored.of(after, noise)
            rng = np.random.default_rng([self.settings.seed, number, case])
            if self.engine.solves:
                # Exact sets may be smaller than the noise view: only datasets of the threat itself count.
                count = self.settings.points + 2 * self.settings.parameters
                members = second.corners(old, step, threat.sample(rng, count))
            else:
                points = second.points_of(new, rng, self.settings.points, self.settings.parameters)
                members = second.members_at(old, step, points, partial(run_steps, earlier, self.request.unrolled.begin))
            found.append(second.check(step, new, members))
        evaluated = [count for _, count in found]
        return [words for wrong, _ in found for words in wrong], sum(evaluated) if all(evaluated) else 0


def _findings(request: Request, kept: Contents, settings: AuditSettings, hear: Hear) -> Iterator[Check]:
    """What the result says, found again."""
    if not settings.recompute:
        yield Check("figures", None, "answers, attack and figures were not found again, as asked")
        return
    for one in found_again(request, kept, hear):
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
