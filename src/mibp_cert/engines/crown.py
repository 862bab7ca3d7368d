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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from mibp_cert.engines import interval, relax
from mibp_cert.engines.base import Box, ParameterSet, StepReport, data_intervals
from mibp_cert.engines.interval import BoxEngine
from mibp_cert.engines.rounding import TINY, Array, Interval, add_down, add_up, gamma, sum_error
from mibp_cert.graph import Graph, Node, check_support, interpret, parse_spec
from mibp_cert.nets import Step
from mibp_cert.sets import ThreatSet, largest_sum

NONLINEAR = ("relu", "gate", "smooth")


@dataclass(frozen=True, eq=False)
class _Rows:
    """Which nodes of a graph depend on the data `x`, and which of those have one entry per row of the batch first."""

    graph: Graph
    dependent: frozenset[int]
    by_row: frozenset[int]
    targets: frozenset[int]

    @classmethod
    def of(cls, graph: Graph, outputs: bool) -> _Rows:
        """`outputs`: the graph's outputs are bounded by substitution as well."""
        dependent = frozenset(graph.descendants([graph.inputs["x"]]))
        by_row: set[int] = {graph.inputs["x"], *([graph.inputs["y"]] if "y" in graph.inputs else [])}
        for number, node in enumerate(graph.nodes):
            if node.operands and any(i in by_row for i in node.operands) and cls._keeps_rows(graph, node, by_row):
                by_row.add(number)
        wanted = {node.operands[0] for node in graph.nodes if node.op in NONLINEAR}
        wanted |= set(graph.outputs.values()) if outputs else set()
        return cls(graph, dependent, frozenset(by_row), frozenset(wanted & dependent & by_row))

    @staticmethod
    def _keeps_rows(graph: Graph, node: Node, by_row: set[int]) -> bool:
        first = graph.nodes[node.operands[0]]
        match node.op:
            case "contract":
                spec = parse_spec(node.attribute)
                letters = {
                    name[0] for i, name in zip(node.operands, (spec.left, spec.right), strict=True) if i in by_row
                }
                return letters == {spec.out[:1]}
            case "sum":
                return -len(first.shape) not in node.attribute
            case "gather":
                return bool(node.attribute.axis != -len(first.shape))
            case "reshape":
                return bool(node.shape and node.shape[0] == first.shape[0])
        return True


@dataclass(eq=False)
class _Substitution:
    """Lower bounds of `Λ·target`, both signs at once: the state of one walk from a target to the data."""

    rows: _Rows
    values: list[Interval]
    target: int
    weights: dict[int, Array] = field(default_factory=dict)
    """`Λ` (rows × targets × elements) of the nodes that are yet to be replaced."""
    constant: Array = field(default_factory=lambda: np.zeros(0))
    size: Array = field(default_factory=lambda: np.zeros(0))
    """Absolute values of everything that was added up, for the rounding errors."""
    terms: int = 16
    """Roundings that any of it went through, at most."""

    def run(self) -> Interval:
        """Bounds of the target's elements; infinite where nothing could be said."""
        node = self.rows.graph.nodes[self.target]
        count = int(np.prod(node.shape[1:]))
        batch = node.shape[0]
        identity = np.concatenate([np.eye(count), -np.eye(count)])
        self.constant, self.size = np.zeros((batch, 2 * count)), np.zeros((batch, 2 * count))
        self.weights[self.target] = np.broadcast_to(identity, (batch, 2 * count, count))
        for number in range(self.target, -1, -1):
            if number in self.weights:
                self._replace(number, self.weights.pop(number))
        lower = self.constant - (gamma(4 * self.terms) * self.size + self.terms * 8.0 * TINY)
        lower = np.where(np.isfinite(lower), np.nextafter(lower, -np.inf), -np.inf)
        return Interval(lower[:, :count].reshape(node.shape), -lower[:, count:].reshape(node.shape))

    def _flat(self, number: int) -> Interval:
        """The node's interval, one line of elements per row."""
        value = self.values[number]
        batch = value.low.shape[0]
        return Interval(value.low.reshape(batch, -1), value.high.reshape(batch, -1))

    def _push(self, number: int, weight: Array, size: Array) -> None:
        """Add to a node's `Λ`; `size` bounds the absolute values that went into it."""
        known = self.weights.get(number)
        self.weights[number] = weight if known is None else known + weight
        box = self._flat(number)
        largest = np.maximum(np.abs(box.low), np.abs(box.high))
        self.size += np.einsum("btn,bn->bt", size if known is None else size + np.abs(known), largest)

    def _add(self, weight: Array, low: Array, high: Array) -> None:
        """Add the least value of `weight·v` for `low ≤ v ≤ high` (rows × elements)."""
        positive, negative = np.maximum(weight, 0.0), np.minimum(weight, 0.0)
        self.constant += np.einsum("btn,bn->bt", positive, low) + np.einsum("btn,bn->bt", negative, high)
        self.size += np.einsum("btn,bn->bt", np.abs(weight), np.maximum(np.abs(low), np.abs(high)))
        self.terms += weight.shape[-1]

    def _replace(self, number: int, weight: Array) -> None:
        node = self.rows.graph.nodes[number]
        rule = self._rules.get(node.op)
        inside = number in self.rows.dependent and number in self.rows.by_row
        if rule is None or not inside or not rule(self, node, weight):
            box = self._flat(number)
            self._add(weight, box.low, box.high)

    def _known(self, number: int) -> bool:
        """Not a function of the data: a parameter, a constant, or a function of labels and parameters."""
        return number not in self.rows.dependent

    def _binary(self, node: Node) -> bool:
        return all(self._known(i) or i in self.rows.by_row for i in node.operands)

    def _sum_of_two(self, node: Node, weight: Array) -> bool:
        if not self._binary(node):
            return False
        shaped = weight.reshape(*weight.shape[:2], *node.shape[1:])
        for i in node.operands:
            shape = self.rows.graph.nodes[i].shape
            if self._known(i):
                value = self.values[i]
                low, high = (np.broadcast_to(v, node.shape).reshape(node.shape[0], -1) for v in (value.low, value.high))
                self._add(weight, low, high)
                continue
            if len(shape) != len(node.shape) or shape[0] != node.shape[0]:
                return False  # never written by a layer: an operand stretched along the rows
            axes = tuple(k + 1 for k in range(1, len(shape)) if shape[k] != node.shape[k])
            piece = shaped.sum(axis=axes, keepdims=True).reshape(*weight.shape[:2], -1)
            self._push(i, piece, np.abs(shaped).sum(axis=axes, keepdims=True).reshape(piece.shape))
            self.terms += max(1, weight.shape[-1] // max(1, piece.shape[-1]))
        return True

    def _scale(self, node: Node, weight: Array) -> bool:
        factor, size = float(node.attribute.value), float(node.attribute.size)
        self._push(node.operands[0], factor * weight, 8.0 * size * np.abs(weight))
        return True

    def _contract(self, node: Node, weight: Array) -> bool:
        known = [self._known(i) for i in node.operands]
        if sum(known) != 1:
            return False
        spec = parse_spec(node.attribute)
        place = known.index(False)
        i, j = node.operands[place], node.operands[1 - place]
        own, other = (spec.left, spec.right)[place], (spec.left, spec.right)[1 - place]
        if own[0] != spec.out[0] or i not in self.rows.by_row:
            return False
        box = self.values[j]
        middle = 0.5 * (box.low + box.high)
        radius = np.nextafter(np.maximum(box.high - middle, middle - box.low), np.inf)
        shaped = weight.reshape(*weight.shape[:2], *node.shape[1:])
        text = f"{spec.out[0]}T{spec.out[1:]},{other}->{own[0]}T{own[1:]}"
        shape = (*weight.shape[:2], -1)
        self.terms += int(np.prod(node.shape[1:]))
        piece = np.einsum(text, shaped, middle, optimize=True).reshape(shape)
        size = np.einsum(text, np.abs(shaped), np.abs(middle) + radius, optimize=True).reshape(shape)
        self._push(i, piece, size)
        if radius.any():
            price = np.einsum(text, np.abs(shaped), radius, optimize=True).reshape(shape)
            mine = self._flat(i)
            self.constant -= np.einsum("btn,bn->bt", price, np.maximum(np.abs(mine.low), np.abs(mine.high)))
        return True

    def _relu(self, node: Node, weight: Array) -> bool:
        box = self._flat(node.operands[0])
        unstable = (box.low < 0) & (box.high > 0)
        above, lift = relax.relu_line(box.low, box.high, unstable)
        below = np.where(unstable, np.where(box.high > -box.low, 1.0, 0.0), above)
        lift = np.where(unstable, np.nextafter(lift * (1.0 + gamma(8)), np.inf), 0.0)
        positive, negative = np.maximum(weight, 0.0), np.minimum(weight, 0.0)
        piece = positive * below[:, None] + negative * above[:, None]
        self._push(node.operands[0], piece, np.abs(piece))
        self._add(negative, np.zeros_like(lift), lift)
        return True

    def _smooth(self, node: Node, weight: Array) -> bool:
        box = self._flat(node.operands[0])
        line = relax.smooth_line(node.attribute, box.low, box.high)
        piece = weight * line.slope[:, None]
        self._push(node.operands[0], piece, np.abs(piece))
        self._add(weight, line.bottom, line.top)
        return True

    def _sum(self, node: Node, weight: Array) -> bool:
        i = node.operands[0]
        shape = self.rows.graph.nodes[i].shape
        if i not in self.rows.by_row or -len(shape) in node.attribute:
            return False
        spread = np.expand_dims(weight.reshape(*weight.shape[:2], *node.shape[1:]), tuple(sorted(node.attribute)))
        piece = np.broadcast_to(spread, (*weight.shape[:2], *shape[1:])).reshape(*weight.shape[:2], -1)
        self._push(i, piece, np.abs(piece))
        return True

    def _gather(self, node: Node, weight: Array) -> bool:
        i = node.operands[0]
        shape = self.rows.graph.nodes[i].shape
        if i not in self.rows.by_row or node.attribute.axis == -len(shape):
            return False
        count = int(np.prod(shape[1:]))
        place = node.attribute.of(np.arange(1, count + 1).reshape(1, *shape[1:])).ravel()  # 0: outside
        piece, size = (np.zeros((count + 1, *weight.shape[:2])) for _ in range(2))
        moved = np.moveaxis(weight, -1, 0)
        np.add.at(piece, place, moved)
        np.add.at(size, place, np.abs(moved))
        self.terms += int(np.bincount(place, minlength=count + 1)[1:].max(initial=1))
        self._push(i, np.moveaxis(piece[1:], 0, -1), np.moveaxis(size[1:], 0, -1))
        return True

    def _reshape(self, node: Node, weight: Array) -> bool:
        self._push(node.operands[0], weight, np.abs(weight))
        return True

    _rules: ClassVar[dict[str, Callable[[_Substitution, Node, Array], bool]]] = {
        "add": _sum_of_two,
        "scale": _scale,
        "contract": _contract,
        "relu": _relu,
        "smooth": _smooth,
        "sum": _sum,
        "gather": _gather,
        "reshape": _reshape,
    }
    """One rule per operation: it pushes on to the operands, or returns False where the node's interval must do."""


def _forward(graph: Graph, inputs: dict[str, Interval], outputs: bool) -> list[Interval]:
    """Intervals of all nodes, with substitution for the arguments of nonlinear operations (and for the outputs)."""
    check_support(graph, interval.TABLE, "crown")
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
        values = _forward(graph, inputs, outputs=True)
        return {name: values[number] for name, number in graph.outputs.items()}

    def advance(self, state: ParameterSet, step: Step, threat: ThreatSet) -> tuple[Box, StepReport]:
        start = time.perf_counter()
        parameters = state.tensors(step.layout)
        dirty = _forward(step.graph, {**parameters, **data_intervals(step, threat)}, outputs=False)
        limited = threat.unbudgeted()
        if limited is None:
            after = {name: dirty[number] for name, number in step.graph.outputs.items()}
        else:
            clean = _forward(step.graph, {**parameters, **data_intervals(step, limited.clean)}, outputs=False)
            member = np.isin(step.rows, limited.rows)
            after = _budgeted(step.graph, parameters, clean, dirty, member, limited.most)
        return Box.of_tensors(after, step.layout), StepReport(seconds=time.perf_counter() - start)


def _budgeted(
    graph: Graph,
    parameters: dict[str, Interval],
    clean: list[Interval],
    dirty: list[Interval],
    member: NDArray[np.bool_],
    most: int,
) -> dict[str, Interval]:
    """Outputs where at most `most` of the member rows are dirty: rows are told apart up to the sum over the batch."""
    rows = _Rows.of(graph, outputs=False)
    values: dict[int, Interval] = {}
    for number, node in enumerate(graph.nodes):
        if number in rows.by_row:
            continue  # known row by row, clean and dirty
        if any(i in rows.by_row for i in node.operands):
            value = _batch_sum(rows, node, values, clean, dirty, member, most)
        elif node.op == "input":
            value = parameters[node.attribute]
        else:
            value = interval.TABLE[node.op](node, *(values[i] for i in node.operands))
        values[number] = value.meet(dirty[number])  # with every row dirty, which is sound as well
    return {name: values[number] for name, number in graph.outputs.items()}


def _batch_sum(
    rows: _Rows,
    node: Node,
    values: dict[int, Interval],
    clean: list[Interval],
    dirty: list[Interval],
    member: NDArray[np.bool_],
    most: int,
) -> Interval:
    """A sum over the batch: that of the clean rows, moved by the `most` largest differences that dirty rows make."""
    parts = []
    for known in (clean, dirty):
        operands = [known[i] if i in rows.by_row else values[i] for i in node.operands]
        parts.append(_per_row(node, operands))
    below = np.where(member, np.maximum(np.moveaxis(parts[0].low - parts[1].low, 0, -1), 0.0), 0.0)
    above = np.where(member, np.maximum(np.moveaxis(parts[1].high - parts[0].high, 0, -1), 0.0), 0.0)
    count = len(member)
    size = np.max([np.abs(end) for part in parts for end in (part.low, part.high)], axis=0).sum(axis=0)
    error = sum_error(4.0 * size, 4 * count + 8, True)
    low = parts[0].low.sum(axis=0) - largest_sum(below, most)
    high = parts[0].high.sum(axis=0) + largest_sum(above, most)
    return Interval(add_down(low, -error), add_up(high, error))


def _per_row(node: Node, operands: list[Interval]) -> Interval:
    """The node's value row by row (rows first), before the sum over the batch."""
    batch = operands[0].low.shape[0]
    if node.op == "sum":
        axes = tuple(axis for axis in node.attribute if axis != -operands[0].low.ndim)
        if not axes:
            return operands[0]
        shape = tuple(n for k, n in enumerate(operands[0].low.shape) if k - operands[0].low.ndim not in axes)
        part = Node("sum", (), shape, axes, node.origin)
    elif node.op == "contract":
        spec = parse_spec(node.attribute)
        text = f"{spec.left},{spec.right}->{spec.left[0]}{spec.out}"
        part = Node("contract", (), (batch, *node.shape), text, node.origin)
    else:
        raise AssertionError(f"{node.origin} sums over the batch by {node.op}")
    value: Interval = interval.TABLE[part.op](part, *operands)
    return value
