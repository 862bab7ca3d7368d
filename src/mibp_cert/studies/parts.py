"""What is lost to which part of the doubt? A threat `A & B` is taken apart: each part is certified alone, by the same recipe.

What a part allows, the whole allows, too; so whatever is lost to a part alone is lost to the whole. Bounds are no such sets: a
part whose bound is wider than that of the whole would be a weakness of the engine, and is shown as it is. Shares of columns are
those of `blame`, over the test points that are not certified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from mibp_cert.certify.loop import certify
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.data import Split
from mibp_cert.engines.relational import cases_of
from mibp_cert.errors import Diverged, UserError
from mibp_cert.graph.ops import frozen
from mibp_cert.studies.blame import blame
from mibp_cert.threats import All, Catalogued, Threat

USUAL = "missing values being the usual ones"
"""What stands in for missing values where the threat says nothing of them."""


@dataclass(frozen=True)
class PartOfLoss:
    """A threat, and what is certified if it is all that may be wrong: shares of the test points, or figures of a regression in
    the units of its targets (None: nothing is known)."""

    words: str
    certified_accuracy: float | None = None
    certification_rate: float | None = None
    certified_error: float | None = None
    range_mean: float | None = None

    @classmethod
    def of(cls, words: str, run: CertifiedRun) -> PartOfLoss:
        if run.test is not None:
            return cls(words, run.certified_test_accuracy, run.test.certification_rate())
        return cls(words, certified_error=run.errors.get("certified_error"), range_mean=run.errors.get("range_mean"))

    @property
    def said(self) -> str:
        """How much of the test points is certified."""
        if self.certification_rate is not None:
            return f"{100 * self.certification_rate:.1f} % certified"
        if self.range_mean is None or self.certified_error is None:
            return "nothing known"
        return f"error at most {self.certified_error:.4g}, ranges {self.range_mean:.4g} wide"

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class LossByPart:
    """What is certified with each part of the threat alone (none: it has one part only), and with all of them; and the share of
    the uncertainty that goes through each column, largest first (none: the engine cannot tell)."""

    whole: PartOfLoss
    parts: tuple[PartOfLoss, ...]
    by_column: dict[str, float]

    @property
    def sentences(self) -> list[str]:
        said = []
        if self.parts:
            together = "Both" if len(self.parts) == 2 else "All"
            said += [f"Only this: {part.words}: {part.said}." for part in self.parts]
            said.append(f"{together} at once: {self.whole.said}.")
        if self.by_column:
            shares = ", ".join(
                f"{name} {100 * share:.0f} %" for name, share in self.by_column.items() if share >= 0.005
            )
            said.append(f"The uncertainty goes through these columns: {shares}.")
        return said

    def to_json(self) -> dict[str, Any]:
        return {"parts": [part.to_json() for part in self.parts], "by_column": self.by_column}


def threats_in(threat: Threat) -> tuple[Catalogued, ...]:
    """The parts that act side by side, those about missing values as one; none if there is one only."""
    if not isinstance(threat, All):
        return ()
    missing = [part for part in threat.threats if part.knows_missing()]
    others = [part for part in threat.threats if not part.knows_missing()]
    parts = [*([All.of(missing)] if missing else []), *others]
    return tuple(parts) if len(parts) > 1 else ()


def loss_by_part(run: CertifiedRun, hear: Callable[[str], None] = lambda _: None, *, parts: bool = True) -> LossByPart:
    """Certify with each part of the run's threat alone, the training being that of the run; `parts=False`: columns only, which
    need no further run.

    >>> from mibp_cert import Fitted, LabelFlips, LInf, certify_fit, loss_by_part, two_moons
    >>> found = loss_by_part(certify_fit(two_moons(0), LInf(0.1) & LabelFlips(3), Fitted(C=0.3)))
    >>> len(found.parts), sorted(found.by_column)
    (2, ['(label)', '0', '1'])
    """
    if run.data.test is None:
        raise UserError("What is lost is counted on test points; these data have none.")
    run.check_reached()
    told = []
    for threat in threats_in(run.threat) if parts else ():
        hear(threat.words())
        told.append(_alone(run, threat))
    hear("columns")
    return LossByPart(PartOfLoss.of(run.threat.words(), run), tuple(told), _by_column(run))


def _alone(run: CertifiedRun, threat: Catalogued) -> PartOfLoss:
    train, words = run.train, threat.words()
    if run.threat.knows_missing() and not threat.knows_missing():
        usual = run.request.members.reference[0][: len(train)]
        train, words = replace(train, x=frozen(usual.copy()), missing=None), f"{words}, {USUAL}"
    data = Split(run.data.name, train, test=run.data.test)
    try:
        return PartOfLoss.of(words, certify(replace(run.decided, threat=threat, data=data, attack=None)))
    except Diverged:  # nothing is certified
        zero = None if run.test is None else 0.0
        return PartOfLoss(words, zero, zero)


def _by_column(run: CertifiedRun) -> dict[str, float]:
    if run.fitted is None and not cases_of(run.bounds, run.request.members):
        return {}
    shares = blame(run, verified=False).columns
    return {str(name): float(effect) / 100.0 for name, effect in shares.items()}
