"""Training steps as small frozen graphs of tensor operations."""

from mibp_cert.graph.interpret import Rule, check_support, interpret, outputs_of
from mibp_cert.graph.ops import Factor, Graph, GraphBuilder, Node, Pick, Spec, parse_spec

__all__ = [
    "Factor",
    "Graph",
    "GraphBuilder",
    "Node",
    "Pick",
    "Rule",
    "Spec",
    "check_support",
    "interpret",
    "outputs_of",
    "parse_spec",
]
