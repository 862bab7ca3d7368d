"""The second opinion on the stored steps of a run: single points of each of them, in ball arithmetic (`store.second`,
`store.refit`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from mibp_cert.certify.request import Request
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UnsupportedOperation
from mibp_cert.fitted import FitStep, Fitted
from mibp_cert.nets import run_steps
from mibp_cert.sets import ThreatSet
from mibp_cert.store import refit, second
from mibp_cert.store.checks import AuditSettings, Check, Hear


@dataclass
class Opinion:
    """The second opinion on the stored steps of one run."""

    request: Request
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

    def check(self) -> Check:
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
        return Check("second opinion", holds, f"{told}: {words}", "evaluated")

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
            if self.request.made.solves:
                # Exact sets may be smaller than the noise view: only datasets of the threat itself count.
                count = self.settings.points + 2 * self.settings.parameters
                members = second.corners(old, step, threat.sample(rng, count))
            else:
                points = second.points_of(new, rng, self.settings.points, self.settings.parameters)
                members = second.members_at(old, step, points, partial(run_steps, earlier, self.request.unrolled.begin))
            found.append(second.check(step, new, members))
        evaluated = [count for _, count in found]
        return [words for wrong, _ in found for words in wrong], sum(evaluated) if all(evaluated) else 0
