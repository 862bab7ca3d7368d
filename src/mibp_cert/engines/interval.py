"""The `interval` engine (FullCert): interval arithmetic, operation by operation, rounded outward.

Every rule encloses the real operation on all members of its operands *and* any float64 evaluation of it. The rules are
monotone: wider operands give wider results, to the last bit (smooth functions: as far as the library's own values are).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import final

import numpy as np

from mibp_cert.engines import relax
from mibp_cert.engines.base import Box, Engine, Inputs, Maker, ParameterSet, StepReport, Wanted, data_intervals
from mibp_cert.engines.rounding import (
    LARGEST,
    Array,
    Interval,
    add_down,
    add_up,
    gamma,
    scale_down,
    scale_up,
    sum_error,
)
from mibp_cert.graph import Graph, Node, Rule, interpret, outputs_of, parse_spec
from mibp_cert.nets import Layout, Step
from mibp_cert.sets import ThreatSet


def _add(node: Node, a: Interval, b: Interval) -> Interval:
    return Interval(add_down(a.low, b.low), add_up(a.high, b.high))


def _scale(node: Node, a: Interval) -> Interval:
    first, last = (a.low, a.high) if node.attribute.value >= 0 else (a.high, a.low)
    largest = np.maximum(np.abs(a.low), np.abs(a.high))
    return Interval(scale_down(first, node.attribute, largest), scale_up(last, node.attribute, largest))


def _contract(node: Node, a: Interval, b: Interval) -> Interval:
    """Each elementary product is exact at its four corners; their sum is rounded outward."""
    spec = parse_spec(node.attribute)
    a_low, a_high = spec.align(a.low, spec.left), spec.align(a.high, spec.left)
    b_low, b_high = spec.align(b.low, spec.right), spec.align(b.high, spec.right)
    nonzero = ((a_low != 0.0) | (a_high != 0.0)) & ((b_low != 0.0) | (b_high != 0.0))
    corners = (a_low * b_low, a_low * b_high, a_high * b_low, a_high * b_high)
    low = np.minimum(np.minimum(corners[0], corners[1]), np.minimum(corners[2], corners[3]))
    high = np.maximum(np.maximum(corners[0], corners[1]), np.maximum(corners[2], corners[3]))
    return _rounded_sum(low, high, spec.contracted, nonzero.any(axis=spec.contracted))


def _rounded_sum(low: Array, high: Array, axes: tuple[int, ...], underflow: Array | bool) -> Interval:
    count = int(np.prod([low.shape[axis] for axis in axes]))
    error = sum_error(np.maximum(np.abs(low), np.abs(high)).sum(axis=axes), count, underflow)
    return Interval(add_down(low.sum(axis=axes), -error), add_up(high.sum(axis=axes), error))


def _sum(node: Node, a: Interval) -> Interval:
    """Terms of one sign: the end nearer to 0 is rounded relative to itself, however large (or infinite) the other end is."""
    axes = node.attribute
    out, count = _rounded_sum(a.low, a.high, axes, False), int(np.prod([a.low.shape[axis] for axis in axes]))
    low = np.where((a.low >= 0).all(axis=axes), _nearer(a.low.sum(axis=axes), count), out.low)
    high = np.where((a.high <= 0).all(axis=axes), -_nearer(-a.high.sum(axis=axes), count), out.high)
    return Interval(low, high)


def _nearer(total: Array, count: int) -> Array:
    """A float not above a sum of `count` non-negative numbers that was computed as `total`, and not below 0.

    The share taken off is a little less than that of `sum_error`, so that wider operands never give a narrower result.
    """
    share = 2.0 * gamma(count + 2)
    return np.maximum(np.nextafter(np.minimum(total, LARGEST) * (1.0 - share), -np.inf), 0.0)


def _gate(node: Node, a: Interval) -> Interval:
    on = np.greater_equal if node.attribute else np.greater
    # NaN compares false; such an interval must not turn into a sound gate.
    nan = np.isnan(a.low) | np.isnan(a.high)
    return Interval(np.where(nan, np.nan, on(a.low, 0.0)), np.where(nan, np.nan, on(a.high, 0.0)))


TABLE: dict[str, Rule] = {
    "const": lambda node: Interval.point(node.attribute),
    "add": _add,
    "scale": _scale,
    "contract": _contract,
    "relu": lambda node, a: Interval(np.maximum(a.low, 0.0), np.maximum(a.high, 0.0)),
    "gate": _gate,
    "sum": _sum,
    "gather": lambda node, a: Interval(node.attribute.of(a.low), node.attribute.of(a.high)),
    "reshape": lambda node, a: Interval(a.low.reshape(node.shape), a.high.reshape(node.shape)),
    "smooth": lambda node, a: relax.range_of(node.attribute, a),
}


def enclose(graph: Graph, inputs: dict[str, Interval]) -> dict[str, Interval]:
    """Enclosures of the named outputs of a graph; overflow gives infinite or NaN ends, which no check lets pass."""
    with np.errstate(all="ignore"):
        return outputs_of(graph, interpret(graph, TABLE, inputs, engine="interval"))


class BoxEngine(Engine):
    """An engine that encloses a graph's outputs operation by operation: a box before the step, a box after it."""

    soundness = "rounding-safe"

    @abstractmethod
    def enclose(self, graph: Graph, inputs: dict[str, Interval]) -> dict[str, Interval]:
        """Enclosures of the named outputs of a graph."""

    @final
    def bound(
        self, make: Maker, layout: Layout, state: ParameterSet, inputs: Inputs, wanted: Wanted | None = None
    ) -> tuple[Interval, StepReport]:
        (value,) = self.enclose(make(len(inputs.x)), {**state.tensors(layout), "x": inputs.range}).values()
        return value, StepReport()


@final
class IntervalEngine(BoxEngine):
    """A box before the step, interval arithmetic through the step, a box after it."""

    name = prediction = "interval"
    operations = frozenset(TABLE)

    def enclose(self, graph: Graph, inputs: dict[str, Interval]) -> dict[str, Interval]:
        return enclose(graph, inputs)

    def advance(self, state: ParameterSet, step: Step, threat: ThreatSet) -> tuple[Box, StepReport]:
        start = time.perf_counter()
        after = enclose(step.graph, {**state.tensors(step.layout), **data_intervals(step, threat)})
        return Box.of_tensors(after, step.layout), StepReport(seconds=time.perf_counter() - start)
