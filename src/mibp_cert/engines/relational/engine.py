"""The `relational` engine: parameters as functions of the data's own noise, to first order, with a remainder.

Between steps the set is `{ c + G·ε + b : ε ∈ 𝓔, |b| ≤ r } ∩ [lower, upper]`. The symbols are the data's noise, the same ones in
every step, followed by symbols made on the way: one for each unstable gate, and after each update one for each parameter's
remainder, so that later steps know it too. Above a budget the smallest generators are folded back into the remainder.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mibp_cert.engines.base import Box, Engine, StepReport
from mibp_cert.engines.relational.buffers import Buffers
from mibp_cert.engines.relational.forms import Form, Symbols, upward
from mibp_cert.engines.relational.rules import AffineRules
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import UserError
from mibp_cert.graph import Graph, check_support, interpret
from mibp_cert.nets import Layout, Step
from mibp_cert.sets import Noise, ThreatSet

SLOPES = (1.0 / 64.0, 1024.0)
"""Slope caps worth trying; below, a gate might as well have none, above, the admissible slopes decide."""


@dataclass(frozen=True, eq=False)
class RelationalSet(Box):
    """A box with generators: `centre + linear·ε`, slack in `slack`; the first `data` columns are the data's noise."""

    middle: Array
    linear: Array
    slack: Array
    noise: Noise
    slope: float = 1.0
    """Slope cap that the last step chose; the next search starts there."""
    gates: NDArray[np.bool_] | None = None
    """Which symbols beyond the data's came from gates; the others are remainders (second order, relu bands, rounding)."""

    @property
    def data(self) -> int:
        return self.noise.symbols

    def first(self, count: int) -> RelationalSet:
        return replace(
            self,
            lower=self.lower[:count],
            upper=self.upper[:count],
            middle=self.middle[:count],
            linear=self.linear[:count],
            slack=self.slack[:count],
        )

    def arrays(self) -> dict[str, Array]:
        gates = np.zeros(self.linear.shape[1] - self.data, dtype=bool) if self.gates is None else self.gates
        return {
            **super().arrays(),
            "middle": self.middle,
            "linear": self.linear,
            "slack": self.slack,
            "slope": np.array(self.slope),
            "gates": gates.astype(np.float64),
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array], noise: Noise) -> RelationalSet:
        """The inverse of `arrays`, for the same noise."""
        names = ("lower", "upper", "middle", "linear", "slack")
        lower, upper, middle, linear, slack = (arrays[name] for name in names)
        slope, gates = float(arrays["slope"]), arrays["gates"] != 0
        return cls(lower, upper, middle, linear, slack, noise, slope, gates)

    def residual(self, theta: Array, epsilon: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """What is left of `θ` after the known data noise: `θ − c − G_data·ε`, in extended precision."""
        known = self.linear[:, : self.data].astype(np.longdouble) @ epsilon.astype(np.longdouble)
        return theta.astype(np.longdouble) - self.middle.astype(np.longdouble) - known

    def cover(self) -> Array:
        """How large a residual the other symbols and the slack admit."""
        return upward(np.abs(self.linear[:, self.data :]).sum(axis=1) + self.slack, self.linear.shape[1])

    def composition(self) -> dict[str, float]:
        """What the mean radius consists of: the data's first order, gates, and remainders."""
        sizes = np.abs(self.linear).sum(axis=0) / len(self.middle)
        gates = np.zeros(len(sizes) - self.data, dtype=bool) if self.gates is None else self.gates
        later = sizes[self.data :]
        return {
            "data": float(sizes[: self.data].sum()),
            "gates": float(later[gates].sum()),
            "remainders": float(later[~gates].sum() + self.slack.mean()),
        }

    def forms(self, layout: Layout, symbols: Symbols) -> dict[str, Form]:
        """The named parameters as forms."""
        forms = {}
        for i, name in enumerate(layout.names):
            span, shape = slice(layout.offsets[i], layout.offsets[i + 1]), layout.shapes[i]
            linear = self.linear[span].reshape(*shape, self.linear.shape[1])
            linear.flags.writeable = False
            ends = symbols.support(linear)
            box = Interval(self.lower[span].reshape(shape), self.upper[span].reshape(shape))
            forms[name] = Form(
                symbols,
                self.middle[span].reshape(shape),
                linear,
                self.slack[span].reshape(shape),
                box,
                ends[1] if symbols.boxed else symbols.magnitude(linear),
                reach=ends,
                tight=True,
            )
        return forms

    @classmethod
    def around(cls, box: Box, noise: Noise) -> RelationalSet:
        """A box as a set without generators."""
        if isinstance(box, RelationalSet):
            return box
        centre = box.centre
        slack = upward(np.maximum(box.upper - centre, centre - box.lower))
        return cls(box.lower, box.upper, centre, np.zeros((len(centre), noise.symbols)), slack, noise)


@dataclass(frozen=True, eq=False)
class CaseSet(Box):
    """A union of relational sets, one for each case that the threat is split into; the box is their hull."""

    states: tuple[RelationalSet, ...]
    threats: tuple[ThreatSet, ...]

    @classmethod
    def of(cls, states: list[RelationalSet], threats: tuple[ThreatSet, ...]) -> CaseSet:
        lower = np.min([state.lower for state in states], axis=0)
        # min and max skip nothing: a NaN in any case stays one.
        return cls(lower, np.max([state.upper for state in states], axis=0), tuple(states), threats)

    def arrays(self) -> dict[str, Array]:
        cases = {f"case{i}_{name}": a for i, s in enumerate(self.states) for name, a in s.arrays().items()}
        return {**super().arrays(), **cases}

    def first(self, count: int) -> CaseSet:
        return CaseSet(self.lower[:count], self.upper[:count], tuple(s.first(count) for s in self.states), self.threats)


@dataclass(frozen=True)
class RelationalSettings:
    """`symbols`: budget of symbols kept between steps (None: a few hundred beyond the data's own);
    `search`: candidates per step in the search for the gates' slope (0: the last slope is kept);
    `cases`: a row budget with at most so many choices of rows is split into one set for each choice (0: never)."""

    symbols: int | None = None
    search: int = 3
    cases: int = 128

    def __post_init__(self) -> None:
        for name in ("symbols", "search", "cases"):
            value = getattr(self, name)
            if value is not None and (value != int(value) or value < 0):
                raise UserError(f"{name} must be a whole number ≥ 0, got {value}.")


class RelationalEngine(Engine):
    """See the module's text."""

    name = "relational"
    soundness = "rounding-safe"
    default_prediction = "relational"
    operations = frozenset(AffineRules(Symbols((), 0)).table)

    def __init__(self, settings: RelationalSettings | None = None) -> None:
        self.settings = settings or RelationalSettings()
        self.buffers = Buffers()

    def advance(self, box: Box, step: Step, threat: ThreatSet) -> tuple[Box, StepReport]:
        start = time.perf_counter()
        threats = box.threats if isinstance(box, CaseSet) else threat.cases(self.settings.cases)
        after: Box
        if threats:
            before = box.states if isinstance(box, CaseSet) else [box] * len(threats)
            after = CaseSet.of([self._advance(b, step, t) for b, t in zip(before, threats, strict=True)], threats)
        else:
            after = self._advance(box, step, threat)
        return after, StepReport(seconds=time.perf_counter() - start)

    def restore(self, arrays: Mapping[str, Array], threat: ThreatSet) -> Box:
        threats = threat.cases(self.settings.cases)
        if not threats:
            return RelationalSet.of_arrays(arrays, threat.noise())
        parts = [
            {k.split("_", 1)[1]: a for k, a in arrays.items() if k.startswith(f"case{i}_")} for i in range(len(threats))
        ]
        return CaseSet.of([RelationalSet.of_arrays(p, t.noise()) for p, t in zip(parts, threats, strict=True)], threats)

    def _advance(self, box: Box, step: Step, threat: ThreatSet) -> RelationalSet:
        state = RelationalSet.around(box, threat.noise() if not isinstance(box, RelationalSet) else box.noise)
        with np.errstate(all="ignore"):
            return _Stepper(state, step, threat, self._budget(state, step), self.buffers).run(self.settings.search)

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

    def __init__(self, state: RelationalSet, step: Step, threat: ThreatSet, budget: int, buffers: Buffers) -> None:
        self.state, self.step, self.budget = state, step, budget
        self.graph: Graph = step.graph
        nodes = self.graph.nodes
        self.symbols = Symbols(state.noise.blocks, state.data, buffers)
        self.symbols.count = state.linear.shape[1]
        kinks = {node.operands[0] for node in nodes if node.op == "relu"}
        gates = [i for i, n in enumerate(nodes) if n.op == "gate" and n.operands[0] not in kinks]
        self.rules = AffineRules(self.symbols, frozenset(id(nodes[i]) for i in gates))
        check_support(self.graph, self.rules.table, "relational")
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
        generators = self.symbols.buffers.empty((layout.size, data + len(kept) + layout.size))
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


def symbols_of(state: RelationalSet) -> Symbols:
    """The symbols of a set, ready for new ones."""
    symbols = Symbols(state.noise.blocks, state.data)
    symbols.count = state.linear.shape[1]
    return symbols


def input_form(state: RelationalSet, noise: Noise | None, start: int, rows: NDArray[np.intp], box: Interval) -> Form:
    """Rows of inputs as a form over the set's symbols: known numbers, or `noise` whose symbols begin at number `start`."""
    symbols = symbols_of(state)
    if noise is None:
        return Form.constant(symbols, box[rows])
    moved = sparse.hstack([sparse.csr_matrix((noise.x_linear.shape[0], start)), noise.x_linear], format="csr")
    return _rows(symbols, noise.x_centre, moved, rows, box)


def bound_outputs(graph: Graph, state: RelationalSet, layout: Layout, x: Form) -> Form:
    """The one output of a graph over the parameters and inputs `x`, as a form over the set's symbols."""
    symbols = x.symbols
    rules = AffineRules(symbols)
    inputs = {**state.forms(layout, symbols), "x": x}
    with np.errstate(all="ignore"):
        values = interpret(graph, dict.fromkeys(rules.table, rules.apply), inputs, engine="relational")
        (number,) = graph.outputs.values()
        return values[number].tighten()


def data_forms(symbols: Symbols, noise: Noise, step: Step, threat: ThreatSet) -> dict[str, Form]:
    """Features and labels of the step's rows as forms over the data's symbols."""
    hull = threat.hull()
    return {
        "x": _rows(symbols, noise.x_centre, noise.x_linear, step.rows, Interval(hull.x_low, hull.x_high)),
        "y": _rows(symbols, noise.y_centre, noise.y_linear, step.rows, Interval(hull.y_low, hull.y_high)),
    }


def _rows(symbols: Symbols, centre: Array, linear: Any, rows: NDArray[np.intp], hull: Interval) -> Form:
    shape = (len(rows), centre.shape[1])
    cells = (rows[:, None] * centre.shape[1] + np.arange(centre.shape[1])).ravel()
    part = linear[cells]
    count = np.diff(part.indptr)
    box = hull[rows]
    zero = np.zeros(shape)
    if part.nnz == 0:
        return Form.constant(symbols, box)
    if count.max() <= 1 and len(np.unique(part.indices)) == part.nnz:
        own, weight = np.full(len(cells), -1, dtype=np.intp), np.zeros(len(cells))
        own[count == 1], weight[count == 1] = part.indices, part.data
        raw = upward(np.abs(weight) * np.where(own < 0, 0.0, symbols.largest[own]), 1).reshape(shape)
        return Form(symbols, centre[rows], None, zero, box, raw, own.reshape(shape), weight.reshape(shape), tight=True)
    dense = part.toarray().reshape(*shape, -1)
    return Form(symbols, centre[rows], dense, zero, box, symbols.magnitude(dense), tight=True)
