"""The `relational` engine: parameters as functions of the data's own noise, to first order, with a remainder.

Between steps the set is `{ c + G·ε + b : ε ∈ 𝓔, |b| ≤ r } ∩ [lower, upper]`. The symbols are the data's noise, the same ones in
every step, followed by symbols made on the way: one for each unstable gate, and after each update one for each parameter's
remainder, so that later steps know it too. Above a budget the smallest generators are folded back into the remainder.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Self, final

import numpy as np

from mibp_cert.engines.base import Box, Engine, Inputs, Maker, ParameterSet, Progress, StepReport, Wanted
from mibp_cert.engines.relational.forms import Form, Symbols, upward
from mibp_cert.engines.relational.outputs import data_forms, linear_part
from mibp_cert.engines.relational.rules import AffineRules
from mibp_cert.engines.relational.sets import CaseSet, RelationalSet, cases_of, states_of
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.engines.settings import EngineSettings, RelationalSettings
from mibp_cert.errors import UserError
from mibp_cert.graph import Graph
from mibp_cert.nets import Layout, Network, Step
from mibp_cert.sets import ThreatSet

SLOPES = (1.0 / 64.0, 1024.0)
"""Slope caps worth trying; below, a gate might as well have none, above, the admissible slopes decide."""
LAYERS_AT_ONCE = 4
"""Layers whose generators are alive at the same time."""


@final
class RelationalEngine(Engine):
    """See the module's text."""

    name = prediction = "relational"
    soundness = "rounding-safe"
    operations = frozenset(AffineRules(Symbols((), 0)).table)
    own_sets = keeps_symbols = True

    def __init__(self, settings: RelationalSettings | None = None) -> None:
        self.settings = settings or RelationalSettings()

    @classmethod
    def of(cls, settings: EngineSettings, progress: Progress | None = None) -> Self:
        return cls(settings.relational)

    def advance(self, state: ParameterSet, step: Step, threat: ThreatSet) -> tuple[ParameterSet, StepReport]:
        start = time.perf_counter()
        before = cases_of(state, threat) if isinstance(state, CaseSet) else []
        threats = tuple(case.threat for case in before) or threat.cases(self.settings.cases)
        after: ParameterSet
        if threats:
            states: list[ParameterSet] = [case.state for case in before] or [state] * len(threats)
            after = CaseSet.of([self._advance(s, step, t) for s, t in zip(states, threats, strict=True)], threats)
        else:
            after = self._advance(state, step, threat)
        return after, StepReport(seconds=time.perf_counter() - start)

    def bound(
        self, make: Maker, layout: Layout, state: ParameterSet, inputs: Inputs, wanted: Wanted | None = None
    ) -> tuple[Interval, StepReport]:
        whole = wanted is not None and wanted.whole
        found = [linear_part(make, layout, one, inputs, whole=whole)[0] for one in states_of(state)]
        if not found:
            raise UserError("Relational prediction needs the engine 'relational'; choose --predict interval or exact.")
        return Interval.hull(found), StepReport()

    def restore(self, arrays: Mapping[str, Array], threat: ThreatSet) -> ParameterSet:
        threats = threat.cases(self.settings.cases)
        if not threats:
            return RelationalSet.of_arrays(arrays, threat.noise())
        parts = [
            {k.split("_", 1)[1]: a for k, a in arrays.items() if k.startswith(f"case{i}_")} for i in range(len(threats))
        ]
        return CaseSet.of([RelationalSet.of_arrays(p, t.noise()) for p, t in zip(parts, threats, strict=True)], threats)

    @classmethod
    def memory(cls, network: Network, batch: int, symbols: int) -> int:
        """One generator per symbol and entry: of the parameters, twice, and of the widest layer of the batch, a few times."""
        size = network.layout.size
        columns = symbols + size + max(500, 2 * size)
        return 8 * columns * (3 * size + LAYERS_AT_ONCE * batch * max(network.sizes[1:]))

    def _advance(self, box: ParameterSet, step: Step, threat: ThreatSet) -> RelationalSet:
        state = RelationalSet.around(box, threat.noise() if not isinstance(box, RelationalSet) else box.noise)
        with np.errstate(all="ignore"):
            return _Stepper(state, step, threat, self._budget(state, step)).run(self.settings.search)

    def _budget(self, state: RelationalSet, step: Step) -> int:
        least = state.data + step.layout.size
        # Without doubt about the data only rounding is left to remember.
        room = max(500, 2 * step.layout.size) if state.data else step.layout.size
        budget = least + room if self.settings.symbols is None else self.settings.symbols
        if budget < least:
            raise UserError(
                f"A budget of {budget} symbols is too small: the data's own noise needs {state.data} and the parameters' "
                f"remainders {step.layout.size}; allow at least {least}."
            )
        return budget


class _Stepper:
    """One step: what no sloped gate reaches once, then the rest of the graph for each candidate slope."""

    def __init__(self, state: RelationalSet, step: Step, threat: ThreatSet, budget: int) -> None:
        self.state, self.step, self.budget = state, step, budget
        self.graph: Graph = step.graph
        nodes = self.graph.nodes
        self.symbols = Symbols(state.noise.blocks, state.data)
        self.symbols.count = state.linear.shape[1]
        kinks = {node.operands[0] for node in nodes if node.op == "relu"}
        gates = [i for i, n in enumerate(nodes) if n.op == "gate" and n.operands[0] not in kinks]
        self.rules = AffineRules(self.symbols, frozenset(id(nodes[i]) for i in gates))
        self.arguments = [nodes[i].operands[0] for i in gates]
        sloped = self.graph.descendants(gates)
        # A kink's gate comes right after its argument, so that the relu may overwrite the argument's generators.
        early = {i: nodes[i].operands[0] for i, n in enumerate(nodes) if n.op == "gate" and n.operands[0] in kinks}
        self.before = sorted((i for i in range(len(nodes)) if i not in sloped), key=lambda i: (early.get(i, i), i))
        self.after = [i for i in range(len(nodes)) if i in sloped]
        self.forward = sorted(self.graph.ancestors(self.arguments))
        self.inputs = {**state.forms(step.layout, self.symbols), **data_forms(self.symbols, state.noise, step, threat)}

    def _evaluate(self, part: list[int], values: dict[int, Form], inputs: dict[str, Form], keep: set[int]) -> None:
        """Add the values of these nodes; those of them that nothing in `keep` or later in `part` needs are dropped again."""
        nodes = self.graph.nodes
        last = {operand: i for i in part for operand in nodes[i].operands}
        mine = {i for i in part if nodes[i].op != "input"} - keep
        for i in part:
            if nodes[i].op == "input":
                values[i] = inputs[nodes[i].attribute]
                continue
            operands = nodes[i].operands
            dying = [j for j in set(operands) if j in mine and last[j] == i]
            for j in dying:
                values[j].spare = operands.count(j) == 1
            values[i] = self.rules.apply(nodes[i], *(values[j] for j in operands))
            for j in dying:
                del values[j]

    def _finish(self, prefix: dict[int, Form], cap: float) -> dict[str, Form]:
        """The rest of the graph with this slope cap; gates get the same columns for every candidate."""
        self.symbols.count = self.prefix_count
        self.rules.slope_cap = cap
        values, outputs = dict(prefix), self.graph.outputs
        self._evaluate(self.after, values, self.inputs, set(outputs.values()))
        return {name: values[number].tighten() for name, number in outputs.items()}

    def run(self, search: int) -> RelationalSet:
        prefix: dict[int, Form] = {}
        needed = {operand for i in self.after for operand in self.graph.nodes[i].operands}
        self._evaluate(self.before, prefix, self.inputs, needed | set(self.graph.outputs.values()))
        self.prefix_count = self.symbols.count
        open_gates = any(self._undecided(prefix[i]) for i in self.arguments if i in prefix)
        cap = self.state.slope
        best = self._finish(prefix, cap)
        if open_gates and search > 0:
            best, cap = self._search(prefix, best, cap, search)
        return self._settle(best, cap)

    @staticmethod
    def _undecided(argument: Form) -> bool:
        box = argument.tighten().range
        return bool(((box.low < 0) & (box.high >= 0)).any())

    def _search(
        self, prefix: dict[int, Form], best: dict[str, Form], cap: float, candidates: int
    ) -> tuple[dict[str, Form], float]:
        """Widths of the gates' arguments after the update decide between slopes around the last one."""
        score = self._width(best)
        factor = 1.6
        for direction in (factor, 1.0 / factor):
            tried, improved = cap, False
            for _ in range(candidates):
                tried *= direction
                if not SLOPES[0] <= tried <= SLOPES[1]:
                    break
                outputs = self._finish(prefix, tried)
                width = self._width(outputs)
                if not width < score:
                    break
                best, score, cap, improved = outputs, width, tried, True
            if improved:
                break
        return best, cap

    def _width(self, outputs: dict[str, Form]) -> float:
        """Mean width of the sloped gates' arguments, on the same rows, after the update."""
        values: dict[int, Form] = {}
        self._evaluate(self.forward, values, {**self.inputs, **outputs}, set(self.arguments))
        widths = [values[i].tighten().range for i in self.arguments]
        total = float(np.mean([np.mean(box.high - box.low) for box in widths]))
        return total if np.isfinite(total) else np.inf

    def _slack(self, form: Form) -> Array:
        """The slack, with what dirty rows can add: as symbols of the parameters it is remembered, which is worth more."""
        if form.rows is None:
            return np.asarray(form.slack)
        return upward(form.slack + self.symbols.top(form.rows))

    def _settle(self, outputs: dict[str, Form], cap: float) -> RelationalSet:
        """Flatten, fold the smallest generators above the budget, turn remainders into fresh symbols."""
        layout, data = self.step.layout, self.state.data
        parts = [(outputs[n].dense(), outputs[n].centre.size) for n in layout.names]
        flat = [np.zeros((n, 0)) if part is None else part.reshape(n, part.shape[-1]) for part, n in parts]
        columns = max(data, *(part.shape[1] for part in flat))
        middle = layout.flatten({n: outputs[n].centre for n in layout.names})
        slack = layout.flatten({n: self._slack(outputs[n]) for n in layout.names})
        box = Box.of_tensors({n: outputs[n].range for n in layout.names}, layout)
        weight = np.zeros(columns - data)
        for part in flat:
            weight[: max(0, part.shape[1] - data)] += np.abs(part[:, data:]).sum(axis=0)
        room = self.budget - data - layout.size
        order = np.argsort(-weight, kind="stable")
        kept = np.sort(order[:room][weight[order[:room]] > 0]) + data
        folded = np.sort(order[room:]) + data
        generators = np.empty((layout.size, data + len(kept) + layout.size))
        for i, part in enumerate(flat):
            rows, have = slice(layout.offsets[i], layout.offsets[i + 1]), part.shape[1]
            inside = min(data, have), int(np.searchsorted(kept, have))
            generators[rows, : inside[0]] = part[:, :data]
            generators[rows, inside[0] : data] = 0.0
            generators[rows, data : data + inside[1]] = part[:, kept[: inside[1]]]
            generators[rows, data + inside[1] :] = 0.0
            # Fresh symbols lie in [−1, 1]; the data's own columns are never folded.
            slack[rows] = upward(slack[rows] + np.abs(part[:, folded[folded < have]]).sum(axis=1), len(folded) + 2)
        generators[np.arange(layout.size), data + len(kept) + np.arange(layout.size)] = slack
        before = (
            np.zeros(self.state.linear.shape[1] - data, dtype=bool) if self.state.gates is None else self.state.gates
        )
        gates = np.ones(columns, dtype=bool)  # what this step added
        gates[data : data + len(before)] = before
        return RelationalSet(
            box.lower,
            box.upper,
            middle,
            generators,
            np.zeros(layout.size),
            self.state.noise,
            cap,
            np.concatenate([gates[kept], np.zeros(layout.size, dtype=bool)]),
        )
