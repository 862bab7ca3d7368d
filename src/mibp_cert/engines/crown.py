"""The `crown` engine (Sosnin et al.): linear bounds through the forward pass, intervals backward, a box between steps.

It is interval arithmetic, except that the argument of every relu, gate and smooth function is also bounded by *substitution*:
starting from `Λ·node` with `Λ = ±identity`, each node is replaced by linear bounds in its operands, down to the data:

- linear maps act on `Λ`; parameters and labels are intervals `B₀ ± B_r`, with `|Λ|·B_r·|a|` as the price;
- relu on `[l, u]`: from below `α·z` with `α ∈ {0, 1}`, from above `k·z + t` with `k = u/(u−l)`;
- smooth functions: the secant with its band; everything else, and the data in the end, by its interval.

Every row of the batch is treated by itself: `Λ` is rows × targets × elements of the node. Rounding errors are collected in
absolute values along the way and subtracted at the end.

Where at most k rows of the data may be wrong, two sets of intervals are kept, for clean and for dirty rows. A sum over the batch
is then that of the clean rows, moved by the k largest differences: Sosnin et al.'s threat, per batch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from mibp_cert.engines import interval, relax
from mibp_cert.engines.adjoint import LINEAR, transposed
from mibp_cert.engines.base import Box, ParameterSet, StepReport, data_intervals
from mibp_cert.engines.interval import BoxEngine
from mibp_cert.engines.rounding import TINY, Array, Interval, add_down, add_up, gamma, sum_error
from mibp_cert.graph import Graph, Node, backward, interpret, outputs_of, parse_spec
from mibp_cert.nets import Step
from mibp_cert.sets import ThreatSet, largest_sum

NONLINEAR = ("relu", "gate", "smooth")


@dataclass(frozen=True, eq=False)
class _Rows:
    """Which nodes of a graph have one entry per row of the batch first, and which of those depend on the data `x`."""

    graph: Graph
    by_row: frozenset[int]
    inside: frozenset[int]
    """By row, and a function of the data: what substitution walks through. All else is known by its interval."""
    targets: frozenset[int]

    @classmethod
    def of(cls, graph: Graph, outputs: bool) -> _Rows:
        """`outputs`: the graph's outputs are bounded by substitution as well."""
        by_row: set[int] = {graph.inputs["x"], *([graph.inputs["y"]] if "y" in graph.inputs else [])}
        for number, node in enumerate(graph.nodes):
            if any(i in by_row for i in node.operands) and cls._keeps_rows(graph, node, by_row):
                by_row.add(number)
        inside = graph.descendants([graph.inputs["x"]]) & by_row
        wanted = {node.operands[0] for node in graph.nodes if node.op in NONLINEAR}
        wanted |= set(graph.outputs.values()) if outputs else set()
        return cls(graph, frozenset(by_row), frozenset(inside), frozenset(wanted & inside))

    @staticmethod
    def _keeps_rows(graph: Graph, node: Node, by_row: set[int]) -> bool:
        first = graph.nodes[node.operands[0]]
        match node.op:
            case "add":  # no layer writes an operand that is stretched along the rows
                shapes = [graph.nodes[i].shape for i in node.operands if i in by_row]
                return all(len(shape) == len(node.shape) and shape[0] == node.shape[0] for shape in shapes)
            case "contract":
                spec = parse_spec(node.attribute)
                names = zip(node.operands, (spec.left, spec.right), strict=True)
                return {name[0] for i, name in names if i in by_row} == {spec.out[:1]}
            case "sum":
                return -len(first.shape) not in node.attribute
            case "gather":
                return bool(node.attribute.axis != -len(first.shape))
            case "reshape":
                return bool(node.shape and node.shape[0] == first.shape[0])
        return True


@dataclass(frozen=True, eq=False)
class _Weight:
    """`Λ` of a node (targets × the node's axes, rows first), and the absolute values that went into it, for the rounding."""

    value: Array
    size: Array

    def __add__(self, other: _Weight) -> _Weight:
        return _Weight(self.value + other.value, self.size + other.size + np.abs(self.value))


class _Substitution:
    """Lower bounds of `Λ·target`, both signs at once: the state of one walk from a target to the data."""

    def __init__(self, rows: _Rows, values: list[Interval], target: int) -> None:
        self.rows, self.values, self.target = rows, values, target
        self.shape = rows.graph.nodes[target].shape
        self.count = int(np.prod(self.shape[1:]))
        self.constant, self.size = (np.zeros((2 * self.count, self.shape[0])) for _ in range(2))
        """Targets × rows: the bound so far, and absolute values of everything that was added up, for the rounding errors."""
        self.terms = 16
        """Roundings that any of it went through, at most."""

    def run(self) -> Interval:
        """Bounds of the target's elements; infinite where nothing could be said."""
        identity = np.concatenate([np.eye(self.count), -np.eye(self.count)])[:, None]
        start = np.repeat(identity, self.shape[0], axis=1).reshape(-1, *self.shape)
        backward(self.rows.graph, {self.target: _Weight(start, np.zeros_like(start))}, self._pull)
        lower = self.constant - (gamma(4 * self.terms) * self.size + self.terms * 8.0 * TINY)
        lower = np.where(np.isfinite(lower), np.nextafter(lower, -np.inf), -np.inf).T
        return Interval(lower[:, : self.count].reshape(self.shape), -lower[:, self.count :].reshape(self.shape))

    def _pull(self, number: int, node: Node, weight: _Weight) -> list[tuple[int, _Weight]]:
        """What a node hands on to its operands; nothing where its interval must do."""
        box = self.values[number]
        if number != self.target:
            self.size += _times(weight.size, _largest(box))
        places = [place for place, i in enumerate(node.operands) if i in self.rows.inside]
        rules = {"relu": self._relu, "smooth": self._smooth, **dict.fromkeys(LINEAR, self._linear)}
        if len(places) == 1:  # a product of two functions of the data is not linear in it
            rules["contract"] = self._contract
        if number not in self.rows.inside or node.op not in rules:
            self._add(weight.value, box)
            return []
        if node.op == "add":
            for i in set(node.operands) - self.rows.inside:
                known = self.values[i]
                self._add(weight.value, Interval(*(np.broadcast_to(v, node.shape) for v in (known.low, known.high))))
        return [(node.operands[place], rules[node.op](node, place, weight.value)) for place in places]

    def _add(self, weight: Array, value: Interval) -> None:
        """Add the least value of `weight·v` for `v` in the interval (rows × elements)."""
        positive, negative = np.maximum(weight, 0.0), np.minimum(weight, 0.0)
        self.constant += _times(positive, value.low) + _times(negative, value.high)
        self.size += _times(np.abs(weight), _largest(value))
        self.terms += int(np.prod(weight.shape[2:]))

    def _linear(self, node: Node, place: int, weight: Array) -> _Weight:
        shape, none = self.values[node.operands[place]].low.shape, np.zeros(0)
        if node.op in ("add", "gather"):
            self.terms += int(transposed(node, place, np.ones((1, *node.shape)), shape, none).max(initial=1))
        piece = transposed(node, place, weight, shape, none)
        if node.op == "scale":
            return _Weight(piece, 8.0 * float(node.attribute.size) * np.abs(weight))
        return _Weight(piece, transposed(node, place, np.abs(weight), shape, none))

    def _contract(self, node: Node, place: int, weight: Array) -> _Weight:
        mine, other = self.values[node.operands[place]], self.values[node.operands[1 - place]]
        middle = 0.5 * (other.low + other.high)
        radius = np.nextafter(np.maximum(other.high - middle, middle - other.low), np.inf)
        pull, size = partial(transposed, node, place, shape=mine.low.shape), np.abs(weight)
        self.terms += int(np.prod(node.shape[1:]))
        if radius.any():
            self.constant -= _times(pull(size, factor=radius), _largest(mine))
        return _Weight(pull(weight, factor=middle), pull(size, factor=np.abs(middle) + radius))

    def _relu(self, node: Node, place: int, weight: Array) -> _Weight:
        box = self.values[node.operands[place]]
        unstable = (box.low < 0) & (box.high > 0)
        above, lift = relax.relu_line(box.low, box.high, unstable)
        below = np.where(unstable, np.where(box.high > -box.low, 1.0, 0.0), above)
        lift = np.where(unstable, np.nextafter(lift * (1.0 + gamma(8)), np.inf), 0.0)
        positive, negative = np.maximum(weight, 0.0), np.minimum(weight, 0.0)
        piece = positive * below + negative * above
        self._add(negative, Interval(np.zeros_like(lift), lift))
        return _Weight(piece, np.abs(piece))

    def _smooth(self, node: Node, place: int, weight: Array) -> _Weight:
        box = self.values[node.operands[place]]
        line = relax.smooth_line(node.attribute, box.low, box.high)
        piece = weight * line.slope
        self._add(weight, Interval(line.bottom, line.top))
        return _Weight(piece, np.abs(piece))


def _largest(value: Interval) -> Array:
    return np.maximum(np.abs(value.low), np.abs(value.high))


def _times(weight: Array, value: Array) -> Array:
    """`weight·value` (targets × rows), each row by itself."""
    total: Array = np.einsum("tbn,bn->tb", weight.reshape(*weight.shape[:2], -1), value.reshape(len(value), -1))
    return total


def _forward(graph: Graph, inputs: dict[str, Interval], outputs: bool) -> list[Interval]:
    """Intervals of all nodes, with substitution for the arguments of nonlinear operations (and for the outputs)."""
    rows = _Rows.of(graph, outputs)
    values: list[Interval] = []

    def tighten(number: int, node: Node, value: Interval) -> Interval:
        if number in rows.targets:
            value = value.meet(_Substitution(rows, [*values, value], number).run())
        values.append(value)
        return value

    with np.errstate(all="ignore"):
        return interpret(graph, interval.TABLE, inputs, engine="crown", visit=tighten)


@final
class CrownEngine(BoxEngine):
    """See the module's text."""

    name = prediction = "crown"
    operations = frozenset(interval.TABLE)

    def enclose(self, graph: Graph, inputs: dict[str, Interval]) -> dict[str, Interval]:
        """Enclosures of the named outputs, each bounded by intervals and by substitution."""
        return outputs_of(graph, _forward(graph, inputs, outputs=True))

    def advance(self, state: ParameterSet, step: Step, threat: ThreatSet) -> tuple[Box, StepReport]:
        start = time.perf_counter()
        parameters = state.tensors(step.layout)
        dirty = _forward(step.graph, {**parameters, **data_intervals(step, threat)}, outputs=False)
        limited = threat.unbudgeted()
        if limited is None:
            after = outputs_of(step.graph, dirty)
        else:
            clean = _forward(step.graph, {**parameters, **data_intervals(step, limited.clean)}, outputs=False)
            member = np.isin(step.rows, limited.rows)
            after = _budgeted(step.graph, clean, dirty, member, limited.most)
        return Box.of_tensors(after, step.layout), StepReport(seconds=time.perf_counter() - start)


def _budgeted(
    graph: Graph, clean: list[Interval], dirty: list[Interval], member: NDArray[np.bool_], most: int
) -> dict[str, Interval]:
    """Outputs where at most `most` of the member rows are dirty: rows are told apart up to the sum over the batch."""
    by_row = _Rows.of(graph, outputs=False).by_row
    values = list(dirty)  # with every row dirty, which is sound as well
    for number, node in enumerate(graph.nodes):
        if number in by_row or not node.operands:
            continue
        operands = [values[i] for i in node.operands]
        if by_row.isdisjoint(node.operands):
            value = interval.TABLE[node.op](node, *operands)
        else:
            without = [clean[i] if i in by_row else values[i] for i in node.operands]
            value = _batch_sum(_per_row(node, without), _per_row(node, operands), member, most)
        values[number] = value.meet(dirty[number])
    return outputs_of(graph, values)


def _batch_sum(clean: Interval, dirty: Interval, member: NDArray[np.bool_], most: int) -> Interval:
    """A sum over the batch: that of the clean rows, moved by the `most` largest differences that dirty rows make."""
    below = np.where(member, np.maximum(np.moveaxis(clean.low - dirty.low, 0, -1), 0.0), 0.0)
    above = np.where(member, np.maximum(np.moveaxis(dirty.high - clean.high, 0, -1), 0.0), 0.0)
    size = np.maximum(_largest(clean), _largest(dirty)).sum(axis=0)
    error = sum_error(4.0 * size, 4 * len(member) + 8, True)
    low = clean.low.sum(axis=0) - largest_sum(below, most)
    high = clean.high.sum(axis=0) + largest_sum(above, most)
    return Interval(add_down(low, -error), add_up(high, error))


def _per_row(node: Node, operands: list[Interval]) -> Interval:
    """The node's value row by row (rows first), before the sum over the batch."""
    attribute: Any
    match node.op:
        case "sum":
            attribute = tuple(axis for axis in node.attribute if axis != -operands[0].low.ndim)
            if not attribute:
                return operands[0]
        case "contract":
            spec = parse_spec(node.attribute)
            attribute = f"{spec.left},{spec.right}->{spec.left[0]}{spec.out}"
        case _:
            raise AssertionError(f"{node.origin} sums over the batch by {node.op}")
    value: Interval = interval.TABLE[node.op](replace(node, attribute=attribute), *operands)
    return value
