"""Which `C`? A grid climbed from its smallest entry, and judged on validation rows by the rule for epochs (`certify.choice`).

A larger `C` moves the model more: the climb ends where plain bounds prove no start (the first entry may try slower ways). Where
there is none for the first entry, smaller ones are tried, down to `LOWEST`. No certified figure is better than its clean one,
so an entry that could not be chosen even if all of it were certified is not bounded. The certificate is about the chosen `C`;
that another one might have been chosen on other validation rows is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mibp_cert.certify.choice import Judge, Rank
from mibp_cert.certify.loop import clean_figures
from mibp_cert.data import Split
from mibp_cert.doors import certify_fit
from mibp_cert.errors import Diverged, UserError
from mibp_cert.fitted import Fitted
from mibp_cert.threats import Threat

UNPROVEN, HOPELESS, BEHIND = "no quick proof", "no start is proven", "could not be chosen"
"""Why an entry of the grid has no certified figure: bounds prove nothing, or it would not be chosen with all of it certified."""
GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
COARSE = (0.01, 0.1, 1.0)
"""For a first look, and where every fit takes long."""
LOWEST, STEP = 0.001, 10.0
"""Below a grid whose smallest entry has no start, others are tried: so many times smaller each, and none below this."""


@dataclass(frozen=True)
class Candidate:
    """One entry of the grid: accuracies on the validation rows, or mean absolute errors."""

    C: float
    clean: float
    certified: float | None = None
    why: str = ""
    """Why it was not bounded: it could not be chosen, or plain bounds prove no start (slower ways may)."""

    def to_json(self) -> dict[str, Any]:
        return {
            "C": self.C,
            "nominal": self.clean,
            "certified": self.certified,
            **({"why": self.why} if self.why else {}),
        }


@dataclass(frozen=True)
class Choice:
    """The chosen `C` and the frontier that it was chosen from."""

    C: float
    candidates: tuple[Candidate, ...]
    judge: Judge

    @property
    def better(self) -> bool:
        """Does the chosen model beat the baseline on validation rows?"""
        return any(self.judge.beats(one.clean) for one in self.candidates if one.C == self.C)

    def to_json(self) -> dict[str, Any]:
        return {
            "C": self.C,
            "better_than_baseline": self.better,
            "what": self.judge.figure,
            "baseline": self.judge.baseline,
            "candidates": [candidate.to_json() for candidate in self.candidates],
        }


def choose_C(
    data: Split,
    threat: Threat,
    model: Fitted,
    grid: Sequence[float] = GRID,
    *,
    hear: Callable[[float], None] = lambda c: None,
    **options: Any,
) -> Choice:
    """The best `C` of the grid on the validation rows; `options` go to `certify_fit`. Raises `Diverged` where no start is
    proven, not even for the smallest.

    >>> from mibp_cert import LInf, two_moons
    >>> choose_C(two_moons(0), LInf(0.05), Fitted(), grid=(0.1, 1.0)).C
    1.0
    """
    if data.validation is None:
        raise UserError("C is chosen on validation rows: the data need a validation part, or a C of your own.")
    judge, found, left = Judge.of(data, by_class=model.by_class), list[Candidate](), sorted(grid)
    chosen: tuple[Rank, float] | None = None
    while left:
        c = left.pop(0)
        at = replace(model, C=c)
        hear(c)
        network = at.network(data.train)
        (clean,) = clean_figures(network, data, threat, at)
        if chosen is not None and judge.rank(clean, clean) <= chosen[0]:
            found.append(Candidate(c, clean, why=BEHIND))
            continue
        # Of several classes, slower ways are another search as long as the first one: a smaller C comes before them.
        slow = chosen is None and (network.logits == 1 or not _below(c, None))
        try:
            run = certify_fit(replace(data, test=None), threat, at, attacked=False, thorough=slow, **options)
        except Diverged as error:
            found.append(Candidate(c, clean, why=HOPELESS if slow else UNPROVEN))
            left = [] if chosen is not None else _below(c, error.enough)
            if chosen is None and not left:
                raise
            continue
        _, certified = run.validation
        found.append(Candidate(c, clean, certified))
        rank = judge.rank(clean, certified)
        chosen = (rank, c) if chosen is None or rank > chosen[0] else chosen
    assert chosen is not None
    return Choice(chosen[1], tuple(sorted(found, key=lambda one: one.C)), judge)


def _below(c: float, enough: float | None) -> list[float]:
    """What to try where no start is proven for `c`: what is known to be `enough`, or the next smaller one worth a try."""
    if enough is not None:
        return [enough] if enough < c else []
    lower = float(f"{c / STEP:.3g}")
    return [lower] if lower >= LOWEST else []
