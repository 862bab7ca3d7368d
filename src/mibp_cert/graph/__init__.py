"""Training steps as small frozen graphs of tensor operations."""

from mibp_cert.graph.interpret import Rule, check_support, interpret, outputs_of
from mibp_cert.graph.ops import Graph, GraphBuilder, Node, Spec, parse_spec

__all__ = ["Graph", "GraphBuilder", "Node", "Rule", "Spec", "check_support", "interpret", "outputs_of", "parse_spec"]
