"""Ordinary evaluation in float64, the yardstick for all engines.

Inputs may carry extra leading axes (many parameter vectors or many datasets at once); every operation broadcasts
over them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.graph.einsum import parse_spec
from mibp_cert.graph.functions import SMOOTH
from mibp_cert.graph.interpret import Rule, interpret, outputs_of
from mibp_cert.graph.ops import Graph, Node

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
