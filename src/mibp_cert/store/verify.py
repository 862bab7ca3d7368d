"""`verify`: a stored run, checked again.

- hashes: of the data, the request, every step and the result, along their chain;
- recomputed: every stored step taken again by its engine from the stored set before it, to the same bits (where the run has no
  wall-clock limits);
- second opinion: single points of every stored step, or minimisers of single datasets, in ball arithmetic, without engine code
  (`store.second`, `store.refit`);
- trainings: fresh datasets of the threat, sampled and attacked, trained for real: inside the bounds, and certificates hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mibp_cert.certify.attack import AttackSettings, check_certificates
from mibp_cert.certify.predict import ABSTAIN
from mibp_cert.certify.request import Request
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.certify.tables import attack_rows
from mibp_cert.engines import Box, Engine, Inputs, ParameterSet
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import MibpCertError, SoundnessError, UnsupportedOperation, UserError
from mibp_cert.fitted import FitStep, Fitted
from mibp_cert.nets import run_steps
from mibp_cert.sets import ThreatSet
from mibp_cert.store import refit, second
from mibp_cert.store.archive import load_run, read_chain, read_request, read_result, read_step, stored_request
from mibp_cert.threats import Threat

Hear = Callable[[str], None]


@dataclass(frozen=True)
class Check:
    """One thing that was checked: whether it holds (None: that could not be checked), and what was found, in words."""

    name: str
    holds: bool | None
    words: str


@dataclass(frozen=True)
class AuditSettings:
    """How much is checked: `points` at random and `parameters` pushed both ways for the second opinion on each step; whether
    steps are `recomputed`; and the fresh datasets, drawn with `seed`."""

    points: int = 4
    parameters: int = 4
    recompute: bool = True
    members: int = 60
    seed: int = 1


def verify(
    path: str | Path, settings: AuditSettings | None = None, threat: Threat | None = None, hear: Hear = lambda _: None
) -> list[Check]:
    """Everything there is to check about the run in this directory; `threat` where the file cannot hold it (rules)."""
    settings, path = settings or AuditSettings(), Path(path)
    hear("hashes")
    try:
        records, last, dropped = read_chain(path)
        description, _ = read_request(path)
        read_result(path, last)
        kept = [n for n, record in enumerate(records, start=1) if not record.diverged and n not in dropped]
        arrays = {n: read_step(path, n) for n in kept}
    except MibpCertError as error:
        return [Check("hashes", False, str(error))]
    found = [Check("hashes", True, f"data, request, {len(records)} step(s) and result are as they were written")]
    try:
        request = stored_request(path, threat)
        run = load_run(path, threat) if (path / "result.json").exists() else None
    except UserError as error:  # what was written is whole, but cannot be read here: a layer or rules of the user's own
        return [*found, Check("request", None, str(error))]
    if json.loads(json.dumps(request.to_json(), allow_nan=False)) != description:
        found.append(Check("request", False, "this version reads the stored request otherwise than it was written"))
    with closing(request.make_engine()) as engine:
        found += _Audit(request, engine, arrays, settings, hear).steps()
    if run is None:
        return [*found, Check("result", True, "the run is not finished: there are no certificates yet")]
    return [*found, _stored_bounds(run, arrays), *_answers(run, hear), *_trainings(run, settings, hear)]


@dataclass
class _Audit:
    """The stored steps of one run."""

    request: Request
    engine: Engine
    arrays: dict[int, dict[str, Array]]
    settings: AuditSettings
    hear: Hear

    def before(self, number: int) -> dict[str, Array]:
        begin = self.request.unrolled.begin
        return self.arrays[number - 1] if number > 1 else {"lower": begin, "upper": begin}

    def steps(self) -> list[Check]:
        """The second opinion on every step whose sets before and after are both there, and every such step taken again."""
        numbers = [n for n in sorted(self.arrays) if n == 1 or n - 1 in self.arrays]
        if not numbers:
            return [Check("steps", None, "of no step, the sets before and after it were both kept")]
        if not self.settings.recompute:
            return [self._opinion(numbers)]
        holds, words = True, "left out: wall-clock limits of the solver cannot be repeated"
        if self.request.settings.solver.repeatable:
            changed = [number for number in numbers if not self._same(number)]
            words = "the same bits" if not changed else f"other bounds after step(s) {', '.join(map(str, changed))}"
            holds, words = not changed, f"{len(numbers)} step(s) taken again from the stored sets: {words}"
            if isinstance(self.request.training, Fitted):
                words = f"ranges proven again from the data: {'other bounds' if changed else 'the same bits'}"
        return [self._opinion(numbers), Check("recomputed", holds, words)]

    def _opinion(self, numbers: list[int]) -> Check:
        """What the second opinion comes to: not that something holds where a step could not be evaluated."""
        try:
            found = {number: self._second(number) for number in numbers}
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
        return Check("second opinion", holds, f"{told}: {words}")

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

    def _same(self, number: int) -> bool:
        """Does the engine come to the same bits again?"""
        self.hear(f"step {number} again")
        plan, threat = self.request.unrolled, self.request.members
        start: ParameterSet = Box.point(plan.begin)
        if number > 1:
            start = self.engine.restore(self.before(number), threat, plan.steps[number - 2])
        again, _ = self.engine.advance(start, plan.steps[number - 1], threat)
        return all(np.array_equal(value, self.arrays[number][name]) for name, value in again.arrays().items())


def _stored_bounds(run: CertifiedRun, arrays: dict[int, dict[str, Array]]) -> Check:
    """The run's bounds are those of the step that it is about."""
    kept = arrays.get(-(-run.steps // run.request.settings.unroll))
    mine, count = {"lower": run.bounds.lower, "upper": run.bounds.upper}, run.network.layout.size
    same = kept is not None and all(np.array_equal(kept[end][:count], bound) for end, bound in mine.items())
    inside = run.bounds.contains(run.theta)
    whose = f"the bounds after step {run.steps}" if run.fitted is None else "the bounds of the minimum"
    words = f"{whose} {'hold' if inside else 'do not hold'} the clean model"
    return Check("bounds", same and inside, words if same else f"{words}, and are not those of the stored step")


def _answers(run: CertifiedRun, hear: Hear) -> list[Check]:
    """The stored answers for the test points come out of the stored set again."""
    if run.data.test is None:
        return []
    hear("answers")
    inputs = run.test_inputs()
    if run.test_ranges is not None:
        mine, kept = run.ranges_of(inputs).outputs, run.test_ranges.outputs
        same = np.allclose(mine.low, kept.low, rtol=1e-9) and np.allclose(mine.high, kept.high, rtol=1e-9)
    else:
        assert run.test is not None
        again = run.certify_inputs(inputs)
        # A solver out of time may certify less.
        limited = run.request.predictor.solves and not run.repeatable
        same = bool(((again.classes == run.test.classes) | (limited & (again.classes == ABSTAIN))).all())
    words = "come out of the stored set again" if same else "do not come out of the stored set"
    return [Check("answers", bool(same), f"the answers for {len(inputs.x)} test points {words}")]


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
    return [Check("trainings", outside == 0, words)]
