"""Interpretation of a graph: an engine is a table from operations to functions, and this is the only traversal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mibp_cert.errors import UnsupportedOperation
from mibp_cert.graph.ops import Graph, Node

Value = TypeVar("Value")
Rule = Callable[..., Any]
"""`rule(node, *operand_values) -> value`; a node brings its shape and attribute."""


def check_support(graph: Graph, table: Mapping[str, Rule], engine: str) -> None:
    """Raise `UnsupportedOperation` for the first node that the engine's table has no rule for."""
    for node in graph.nodes:
        if node.op not in table and node.op != "input":
            raise UnsupportedOperation(
                f"The engine '{engine}' has no rule for the operation '{node.op}' that {node.origin} needs; "
                "choose another engine or replace that part of the network."
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


def outputs_of(graph: Graph, values: list[Value]) -> dict[str, Value]:
    """The named outputs among the values of `interpret`."""
    return {name: values[number] for name, number in graph.outputs.items()}
