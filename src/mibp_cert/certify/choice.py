"""Which model the certificate is about, where several were bounded: one rule for epochs and for penalties.

Validation rows, which are trusted, say of every candidate how good it is on the data as handed in (`clean`) and how much of
that is proven (`certified`): accuracies, or for numbers mean absolute errors. Chosen is

    the best certified figure among the candidates whose clean figure beats the baseline (`certify.worth`),

then the best clean one, then the first. Candidates that certify nothing are behind all that do, and those that do not beat the
baseline behind those that do. A clean accuracy that was asked for by number takes the place of the baseline; it is a condition
then, and nothing else breaks ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mibp_cert.certify.worth import accuracy, majority, mean_error
from mibp_cert.data import Split, Task

Figures = tuple[float | None, float | None]
"""A candidate's clean and certified figure."""
Rank = tuple[bool, bool, bool, float, float]


@dataclass(frozen=True)
class Judge:
    """The rule, for one task; `baseline`: the figure of an answer that looks at no column."""

    numbers: bool
    baseline: float
    least: float | None = None
    """The clean accuracy asked for; None: better than the baseline."""
    by_class: bool = False
    """Are accuracies balanced?"""

    @classmethod
    def of(cls, data: Split, least: float | None = None, *, by_class: bool = False) -> Judge:
        """For the validation rows of these data."""
        rows, train = data.validation, data.train
        assert rows is not None
        if train.task is Task.NUMBERS:
            return cls(True, mean_error(train, rows), least)
        return cls(False, accuracy(rows.y == majority(train), rows.y, balanced=by_class), least, by_class)

    @property
    def figure(self) -> str:
        """What is compared."""
        return "error" if self.numbers else "balanced accuracy" if self.by_class else "accuracy"

    def beats(self, clean: float | None) -> bool:
        """Is the clean figure good enough?"""
        if clean is None:
            return self.least is not None and self.least <= 0.0
        if self.least is not None and not self.numbers:
            return clean >= self.least
        return clean < self.baseline if self.numbers else clean > self.baseline

    def rank(self, clean: float | None, certified: float | None, *, enough: bool = True) -> Rank:
        """Of two candidates the one with the larger rank is chosen; `enough`: it was trained for as long as was asked for."""
        best = -np.inf if certified is None else -certified if self.numbers else certified
        asked = self.least is not None
        proven = enough and (asked or (np.isfinite(best) if self.numbers else best > 0.0))
        tie = 0.0 if asked or clean is None else -clean if self.numbers else clean
        return proven and self.beats(clean), bool(proven), enough, max(best, 0.0) if not self.numbers else best, tie

    def frontier(self, candidates: Sequence[Figures]) -> list[int]:
        """Which candidates no other one beats in both figures; of alike ones the first.

        >>> Judge(False, 0.5).frontier([(0.6, 0.6), (0.9, 0.4), (0.8, 0.3), (0.9, None)])
        [0, 1]
        """
        sign = -1.0 if self.numbers else 1.0
        known = [
            (i, sign * clean, sign * certified)
            for i, (clean, certified) in enumerate(candidates)
            if clean is not None and certified is not None
        ]

        def beaten(i: int, clean: float, certified: float) -> bool:
            return any(
                c >= clean and p >= certified and (c > clean or p > certified or j < i) for j, c, p in known if j != i
            )

        return [i for i, clean, certified in known if not beaten(i, clean, certified)]
