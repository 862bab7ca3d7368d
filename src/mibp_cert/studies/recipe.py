"""One recipe: every run of a study makes the model that `certify` would make with the same arguments.

Where the epoch is chosen on validation rows, it is chosen once, by the rule of `certify` and for the threat as given; all runs
then train for exactly that many steps. Another choice for every amount would compare trainings, and not amounts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mibp_cert.certify.request import Selection
from mibp_cert.data import Dataset, Split
from mibp_cert.doors import certify_model
from mibp_cert.engines import DEFAULT
from mibp_cert.errors import Diverged
from mibp_cert.fitted import Fitted
from mibp_cert.nets import Network, Training
from mibp_cert.threats import Threat

_OF_TESTS = ("attack_settings", "attacked", "test_threat")
"""Options that change nothing before the test points."""


@dataclass(frozen=True)
class Decided:
    """A training with nothing left to choose: `steps`, or None where there was no choice."""

    training: Training | Fitted
    steps: int | None = None
    under: str = ""
    """The threat that the number of steps was chosen for, in words."""

    @property
    def options(self) -> dict[str, Any]:
        """What it adds to the options of `certify_model`."""
        return {} if self.steps is None else {"steps": self.steps}

    def words(self, shown: str = "") -> str:
        """How every model of a study is made; `shown`: the threat that was told already."""
        if isinstance(self.training, Fitted):
            return "fitted to its minimum"
        if self.steps is None:
            return f"trained for all of its {self.training.epochs} epochs"
        under = "" if self.under == shown else f" for: {self.under}"
        return f"trained for exactly {self.steps} step(s), as certify chooses{under}"


def decide(
    network: Network | None,
    data: Split | Dataset,
    threats: Sequence[Threat],
    training: Training | Fitted,
    engines: Sequence[str | None],
    select: str | Selection = "last",
    *,
    hear: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Decided:
    """The recipe of a study: the number of steps that `certify` chooses under the first of these threats whose bounds do not
    diverge, by the engine that it takes if nothing is said, or the first one named."""
    rule = Selection(select) if isinstance(select, str) else select
    if isinstance(training, Fitted) or not rule.by_validation:
        return Decided(training)
    split = Split.of(data)
    alone = Split(split.name, split.train, split.validation)
    engine = DEFAULT if DEFAULT in engines else engines[0]
    asked = {name: value for name, value in options.items() if name not in _OF_TESTS}

    def chosen(threat: Threat) -> Decided:
        hear("the number of steps")
        run = certify_model(network, alone, threat, training, engine, select=rule, attacked=False, **asked)
        return Decided(training, run.steps, threat.words())

    *first, last = threats
    for threat in first:
        try:
            return chosen(threat)
        except Diverged:
            continue
    return chosen(last)
