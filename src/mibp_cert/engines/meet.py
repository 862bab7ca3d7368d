"""The `meet` engine: what `crown` and `relational` both leave possible.

Every model that training could have produced lies in the set of each, so it lies in both. Between steps the set is the relational
one, with its box intersected by crown's; each step starts from that, so that either profits from the other. Worth its price where
neither wins alone, such as several budgets at once: crown limits the rows of a batch, relational remembers whose noise it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self, final

from mibp_cert.engines.base import Engine, EngineSettings, Inputs, Maker, ParameterSet, Progress, StepReport, Wanted
from mibp_cert.engines.crown import CrownEngine
from mibp_cert.engines.relational import RelationalEngine
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.nets import Layout, Network, Step
from mibp_cert.sets import ThreatSet


@final
class MeetEngine(Engine):
    """See the module's text."""

    name = prediction = "meet"
    soundness = "rounding-safe"
    operations = CrownEngine.operations & RelationalEngine.operations
    own_sets = keeps_symbols = True

    def __init__(self, relational: RelationalEngine | None = None) -> None:
        self.crown, self.relational = CrownEngine(), relational or RelationalEngine()

    @classmethod
    def of(cls, settings: EngineSettings, progress: Progress | None = None) -> Self:
        return cls(RelationalEngine.of(settings))

    def advance(self, state: ParameterSet, step: Step, threat: ThreatSet) -> tuple[ParameterSet, StepReport]:
        box, first = self.crown.advance(state, step, threat)
        after, second = self.relational.advance(state, step, threat)
        return after.within_box(box), StepReport(seconds=first.seconds + second.seconds)

    def bound(
        self, make: Maker, layout: Layout, state: ParameterSet, inputs: Inputs, wanted: Wanted | None = None
    ) -> tuple[Interval, StepReport]:
        one, _ = self.crown.bound(make, layout, state, inputs, wanted)
        two, report = self.relational.bound(make, layout, state, inputs, wanted)
        return one.meet(two), report

    def restore(self, arrays: Mapping[str, Array], threat: ThreatSet, step: Step) -> ParameterSet:
        return self.relational.restore(arrays, threat, step)

    @classmethod
    def memory(cls, network: Network, batch: int, symbols: int) -> int:
        return RelationalEngine.memory(network, batch, symbols)
