"""Walks through a graph, forward and backward: an engine is a table from operations to functions, and the walk is not its own.

`evaluate` is ordinary evaluation in float64, the yardstick for all engines. Its inputs may carry extra leading axes (many
parameter vectors or many datasets at once); every operation broadcasts over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mibp_cert.errors import UnsupportedOperation
from mibp_cert.graph.functions import SMOOTH
from mibp_cert.graph.ops import Graph, Node, parse_spec

Value = TypeVar("Value")
Rule = Callable[..., Any]
"""`rule(node, *operand_values) -> value`; a node brings its shape and attribute."""


def check_support(graph: Graph, operations: Iterable[str], engine: str) -> None:
    """Raise `UnsupportedOperation` with one sentence for each part of a graph that the engine has no rule for."""
    known = {"input", *operations}
    needed = dict.fromkeys((node.origin, node.op) for node in graph.nodes if node.op not in known)
    if needed:
        raise UnsupportedOperation(
            " ".join(
                f"The engine '{engine}' has no rule for the operation '{op}' that {origin} needs; choose another engine or "
                "replace that part of the network."
                for origin, op in needed
            )
        )


def interpret(
    graph: Graph,
    table: Mapping[str, Callable[..., Value]],
    inputs: Mapping[str, Value],
    *,
    engine: str,
    visit: Callable[[int, Node, Value], Value] | None = None,
) -> list[Value]:
    """Value of every node, in order: inputs are looked up by name, all else comes from the table.

    `visit(number, node, value)` may replace a value before later nodes see it (used to intersect ranges).
    """
    check_support(graph, table, engine)
    values: list[Value] = []
    for number, node in enumerate(graph.nodes):
        value = (
            inputs[node.attribute] if node.op == "input" else table[node.op](node, *(values[i] for i in node.operands))
        )
        values.append(value if visit is None else visit(number, node, value))
    return values


def backward(
    graph: Graph, start: Mapping[int, Value], pull: Callable[[int, Node, Value], Iterable[tuple[int, Value]]]
) -> dict[int, Value]:
    """From the nodes of `start` back to what they depend on: `pull(number, node, value)` hands pieces of a node's value on to
    operands, where they are added up; returned is what arrived at nodes that hand nothing on."""
    pending: dict[int, Any] = dict(start)
    arrived: dict[int, Value] = {}
    for number in range(max(pending, default=-1), -1, -1):
        if number not in pending:
            continue
        value, kept = pending.pop(number), True
        for operand, piece in pull(number, graph.nodes[number], value):
            pending[operand], kept = pending[operand] + piece if operand in pending else piece, False
        if kept:
            arrived[number] = value
    return arrived


def outputs_of(graph: Graph, values: list[Value]) -> dict[str, Value]:
    """The named outputs among the values of `interpret`."""
    return {name: values[number] for name, number in graph.outputs.items()}


Array = NDArray[np.float64]


@lru_cache(maxsize=256)
def _spread_spec(text: str) -> str:
    spec = parse_spec(text)
    return f"...{spec.left},...{spec.right}->...{spec.out}"


def _contract(node: Node, a: Array, b: Array) -> Array:
    out: Array = np.einsum(_spread_spec(node.attribute), a, b)
    return out


def _add(node: Node, a: Array, b: Array) -> Array:
    """Broadcasting sum; leading axes stay in front of the ones that the graph knows."""
    if a.ndim != node.attribute[0] or b.ndim != node.attribute[1]:
        a, b = (_stretch(v, rank, len(node.shape)) for v, rank in zip((a, b), node.attribute, strict=True))
    return a + b


def _stretch(value: Array, rank: int, target: int) -> Array:
    lead = value.ndim - rank
    return value.reshape(value.shape[:lead] + (1,) * (target - rank) + value.shape[lead:])


def _reshape(node: Node, a: Array) -> Array:
    return a.reshape(a.shape[: a.ndim - node.attribute] + node.shape)


TABLE: dict[str, Rule] = {
    "const": lambda node: node.attribute,
    "add": _add,
    "scale": lambda node, a: float(node.attribute.value) * a,
    "contract": _contract,
    "relu": lambda node, a: np.maximum(a, 0.0),
    "gate": lambda node, a: np.where(a >= 0.0 if node.attribute else a > 0.0, 1.0, 0.0),
    "sum": lambda node, a: a.sum(axis=node.attribute),
    "gather": lambda node, a: node.attribute.of(a),
    "reshape": _reshape,
    "smooth": lambda node, a: SMOOTH[node.attribute].value(a),
}


def evaluate(graph: Graph, inputs: dict[str, NDArray[Any]]) -> dict[str, Array]:
    """The named outputs of a graph in float64."""
    with np.errstate(all="ignore"):
        return outputs_of(graph, interpret(graph, TABLE, inputs, engine="concrete"))
