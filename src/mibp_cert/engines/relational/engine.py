"""The `relational` engine: parameters as functions of the data's own noise, to first order, with a remainder.

Between steps the set is `{ c + G·ε + b : ε ∈ 𝓔, |b| ≤ r } ∩ [lower, upper]`. The symbols are the data's noise, the same ones in
every step, followed by symbols made on the way: one for each unstable gate, and after each update one for each parameter's
remainder, so that later steps know it too. Above a budget the smallest generators are folded back into the remainder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mibp_cert.engines.base import (
    Box,
    Engine,
    EngineSettings,
    Inputs,
    Maker,
    ParameterSet,
    Progress,
    RelationalSettings,
    StepReport,
    Wanted,
    data_intervals,
)
from mibp_cert.engines.relational.forms import (
    Case,
    CaseSet,
    Form,
    RelationalSet,
    Symbols,
    cases_of,
    columns_of,
    states_of,
    upward,
)
from mibp_cert.engines.relational.rules import OPERATIONS, AffineRules
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import UserError
from mibp_cert.graph import Graph, interpret
from mibp_cert.nets import Layout, Network, Step
from mibp_cert.sets import Noise, ThreatSet

SLOPES = (1.0 / 64.0, 1024.0)
"""Slope caps worth trying; below, a gate might as well have none, above, the admissible slopes decide."""
LAYERS_AT_ONCE = 4
"""Layers whose generators are alive at the same time."""
SLICE = 50
"""Rows whose predictions are held in memory at once."""


@final
class RelationalEngine(Engine):
    """See the module's text."""

    name = prediction = "relational"
    soundness = "rounding-safe"
    operations = OPERATIONS
    own_sets = keeps_symbols = True

    def __init__(self, settings: RelationalSettings | None = None) -> None:
        self.settings = settings or RelationalSettings()

    @classmethod
    def of(cls, settings: EngineSettings, progress: Progress | None = None) -> Self:
        return cls(settings.relational)

    def advance(self, state: ParameterSet, step: Step, threat: ThreatSet) -> tuple[ParameterSet, StepReport]:
        start = time.perf_counter()
        cases = [(case.state, case.threat) for case in cases_of(state, threat)] if isinstance(state, CaseSet) else []
        starts: list[tuple[ParameterSet, ThreatSet]] = [*cases] or [
            (state, t) for t in threat.cases(self.settings.cases)
        ]
        if starts:
            after: ParameterSet = CaseSet.of([Case(self._advance(s, step, t), t) for s, t in starts])
        else:
            after = self._advance(state, step, threat)
        return after, StepReport(seconds=time.perf_counter() - start)

    def bound(
        self, make: Maker, layout: Layout, state: ParameterSet, inputs: Inputs, wanted: Wanted | None = None
    ) -> tuple[Interval, StepReport]:
        whole = wanted is not None and wanted.whole
        found = [output_range(make, layout, one, inputs, whole=whole) for one in states_of(state)]
        if not found:
            raise UserError("Relational prediction needs the engine 'relational'; choose --predict interval or exact.")
        return Interval.hull(found), StepReport()

    def restore(self, arrays: Mapping[str, Array], threat: ThreatSet, step: Step) -> ParameterSet:
        threats = threat.cases(self.settings.cases)
        if not threats:
            return RelationalSet.of_arrays(arrays, threat.noise())
        cases = (Case(RelationalSet.of_arrays(arrays, t.noise(), f"case{i}_"), t) for i, t in enumerate(threats))
        return CaseSet.of([*cases])

    @classmethod
    def memory(cls, network: Network, batch: int, symbols: int) -> int:
        """One generator per symbol and entry: of the parameters, twice, and of the widest layer of the batch, a few times."""
        size = network.layout.size
        columns = symbols + size + max(500, 2 * size)
        return 8 * columns * (3 * size + LAYERS_AT_ONCE * batch * max(network.sizes[1:]))

    def _advance(self, box: ParameterSet, step: Step, threat: ThreatSet) -> RelationalSet:
        state = RelationalSet.around(box, threat)
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
        self.symbols = state.symbols()
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
                values[j].free = operands.count(j) == 1
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
        ranges = [prefix[i].tighten().range for i in self.arguments if i in prefix]
        cap = self.state.slope
        best = self._finish(prefix, cap)
        if search > 0 and any(((box.low < 0) & (box.high >= 0)).any() for box in ranges):
            best, cap = self._search(prefix, best, cap, search)
        return self._settle(best, cap)

    def _search(
        self, prefix: dict[int, Form], best: dict[str, Form], cap: float, candidates: int
    ) -> tuple[dict[str, Form], float]:
        """Widths of the gates' arguments after the update decide between slopes around the last one."""
        score, last = self._width(best), cap
        for direction in (1.6, 1.0 / 1.6):
            tried = last
            for _ in range(candidates):
                tried *= direction
                if not SLOPES[0] <= tried <= SLOPES[1]:
                    break
                outputs = self._finish(prefix, tried)
                width = self._width(outputs)
                if not width < score:
                    break
                best, score, cap = outputs, width, tried
            if cap != last:
                break
        return best, cap

    def _width(self, outputs: dict[str, Form]) -> float:
        """Mean width of the sloped gates' arguments, on the same rows, after the update."""
        values: dict[int, Form] = {}
        self._evaluate(self.forward, values, {**self.inputs, **outputs}, set(self.arguments))
        widths = [values[i].tighten().range for i in self.arguments]
        total = float(np.mean([np.mean(box.high - box.low) for box in widths]))
        return total if np.isfinite(total) else np.inf

    def _settle(self, outputs: dict[str, Form], cap: float) -> RelationalSet:
        """Flatten, fold the smallest generators above the budget, turn remainders into fresh symbols."""
        layout, data = self.step.layout, self.state.data
        forms = [outputs[name] for name in layout.names]
        flat = [part.reshape(form.centre.size, part.shape[-1]) for form in forms for part in [form.generators()]]
        weight = np.zeros(max(data, *(part.shape[1] for part in flat)) - data)
        for part in flat:
            weight[: max(0, part.shape[1] - data)] += np.abs(part[:, data:]).sum(axis=0)
        room = self.budget - data - layout.size
        order = np.argsort(-weight, kind="stable")
        kept = np.sort(order[:room][weight[order[:room]] > 0]) + data
        folded = np.sort(order[room:]) + data
        generators = np.zeros((layout.size, data + len(kept) + layout.size))
        for form, part, first, last in zip(forms, flat, layout.offsets, layout.offsets[1:], strict=False):
            have, known = part.shape[1], min(data, part.shape[1])
            inside = kept[kept < have]
            generators[first:last, :known] = part[:, :known]
            generators[first:last, data : data + len(inside)] = part[:, inside]
            # What dirty rows can add is remembered as a symbol, too, which is worth more than that it vanishes with them.
            slack = form.slack if form.rows is None else upward(form.slack + self.symbols.top(form.rows))
            # Fresh symbols lie in [−1, 1]; the data's own columns are never folded.
            slack = upward(slack.ravel() + np.abs(part[:, folded[folded < have]]).sum(axis=1), len(folded) + 2)
            rows = np.arange(first, last)
            generators[rows, data + len(kept) + rows] = slack
        middle, nothing = layout.flatten({name: form.centre for name, form in outputs.items()}), np.zeros(layout.size)
        box = Box.of_tensors({name: form.range for name, form in outputs.items()}, layout)
        gates = np.ones(len(weight), dtype=bool)  # what this step added
        gates[: len(self.state.gates)] = self.state.gates
        gates = np.append(gates[kept - data], np.zeros(layout.size, dtype=bool))
        return RelationalSet(box.lower, box.upper, middle, generators, nothing, self.state.noise, cap, gates)


# What the models of a set compute, as one expression in the set's symbols ---------------------------------------------


@dataclass(frozen=True, eq=False)
class LinearPart:
    """An output to first order: `centre + data·ε + inputs·ε' ± rest`, with the noise of the training data and of the inputs."""

    centre: Array
    data: Array
    inputs: Array
    rest: Array
    """What the other symbols and the slack can add or take away."""


def output_range(make: Maker, layout: Layout, state: RelationalSet, inputs: Inputs, *, whole: bool = False) -> Interval:
    """Bounds of the output alone; of its linear part, only that of a slice of rows is held at once."""
    ranges = [form.range for form, _, _ in _slices(make, layout, state, inputs, whole=whole)]
    return Interval(np.concatenate([r.low for r in ranges]), np.concatenate([r.high for r in ranges]))


def linear_part(
    make: Maker, layout: Layout, state: RelationalSet, inputs: Inputs, *, whole: bool = False
) -> tuple[Interval, LinearPart]:
    """Bounds of the output as one expression in the set's symbols, and its linear part."""
    known, parts = state.data, list[tuple[Array, ...]]()
    for form, data, symbols in _slices(make, layout, state, inputs, whole=whole):
        linear = form.generators()
        rest = form.slack + np.abs(linear[..., data:]).sum(axis=-1)
        if form.rows is not None:
            rest = rest + symbols.top(form.rows)
        columns = columns_of(linear, 0, known), columns_of(linear, known, data)
        parts.append((form.range.low, form.range.high, form.centre, *columns, rest))
    low, high, *linear_parts = (np.concatenate(piece) for piece in zip(*parts, strict=True))
    return Interval(low, high), LinearPart(*linear_parts)


def _slices(
    make: Maker, layout: Layout, state: RelationalSet, inputs: Inputs, *, whole: bool
) -> Iterator[tuple[Form, int, Symbols]]:
    """The output for some rows at a time, how many symbols are those of data, and all of them."""
    known, box, blocks = state.data, inputs.range, state.noise.blocks
    centre, noise = inputs.x, sparse.csr_matrix((inputs.x.size, known))
    if inputs.members is not None:  # the inputs' own symbols come right after the training data's
        own = inputs.members.noise()
        blocks = (*blocks, *(block.shifted(known) for block in own.blocks))
        centre, noise = own.x_centre, sparse.hstack([noise, own.x_linear], format="csr")
        state = replace(state, linear=np.insert(state.linear, np.full(own.symbols, known), 0.0, axis=1))
    data, size = noise.shape[1], len(inputs.x) if whole else SLICE
    for start in range(0, len(inputs.x), size):
        rows = np.arange(start, min(start + size, len(inputs.x)))
        symbols = Symbols(blocks, data, state.linear.shape[1])
        form = bound_outputs(make(len(rows)), state, layout, _rows(symbols, centre, noise, rows, box[rows]))
        yield form, data, symbols


@dataclass(frozen=True, eq=False)
class SymbolForm:
    """An output over all symbols of a set: `centre + linear·ε ± rest`."""

    centre: Array
    linear: Array
    rest: Array


def symbol_form(make: Maker, layout: Layout, state: RelationalSet, inputs: Inputs) -> SymbolForm:
    """The output as one form over every symbol of the set, and new ones that stand for what the graph adds."""
    symbols = state.symbols()
    form = bound_outputs(make(len(inputs.x)), state, layout, Form.constant(symbols, inputs.range))
    rest = form.slack if form.rows is None else form.slack + symbols.top(form.rows)
    return SymbolForm(form.centre, columns_of(form.generators(), 0, symbols.count), rest)


def bound_outputs(graph: Graph, state: RelationalSet, layout: Layout, x: Form) -> Form:
    """The one output of a graph over the parameters and inputs `x`, as a form over the set's symbols."""
    inputs = {**state.forms(layout, x.symbols), "x": x}
    with np.errstate(all="ignore"):
        values = interpret(graph, dict.fromkeys(OPERATIONS, AffineRules(x.symbols).apply), inputs, engine="relational")
        (number,) = graph.outputs.values()
        return values[number].tighten()


def data_forms(symbols: Symbols, noise: Noise, step: Step, threat: ThreatSet) -> dict[str, Form]:
    """Features and labels of the step's rows as forms over the data's symbols."""
    box = data_intervals(step, threat)
    return {
        "x": _rows(symbols, noise.x_centre, noise.x_linear, step.rows, box["x"]),
        "y": _rows(symbols, noise.y_centre, noise.y_linear, step.rows, box["y"]),
    }


def _rows(symbols: Symbols, centre: Array, linear: Any, rows: NDArray[np.intp], box: Interval) -> Form:
    """Some rows of a table as a form over its noise (`linear`: cells × symbols); `box` are their bounds."""
    shape = (len(rows), centre.shape[1])
    cells = (rows[:, None] * centre.shape[1] + np.arange(centre.shape[1])).ravel()
    part = linear[cells]
    count = np.diff(part.indptr)
    if part.nnz == 0:
        return Form.constant(symbols, box)
    zero = np.zeros(shape)
    if count.max() <= 1 and len(np.unique(part.indices)) == part.nnz:
        own, weight = np.full(len(cells), -1, dtype=np.intp), np.zeros(len(cells))
        own[count == 1], weight[count == 1] = part.indices, part.data
        raw = upward(np.abs(weight) * np.where(own < 0, 0.0, symbols.largest[own]), 1).reshape(shape)
        own, weight = own.reshape(shape), weight.reshape(shape)
        return Form(symbols, centre[rows], None, zero, raw, own, weight, range=box, tight=True)
    dense = part.toarray().reshape(*shape, -1)
    return Form(symbols, centre[rows], dense, zero, symbols.magnitude(dense), range=box, tight=True)
