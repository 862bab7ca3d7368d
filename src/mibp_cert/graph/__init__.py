"""Training steps as small frozen graphs of tensor operations: how they are written, walked and evaluated."""

from mibp_cert.graph.interpret import Rule, backward, check_support, evaluate, interpret, outputs_of
from mibp_cert.graph.ops import Factor, Graph, GraphBuilder, Node, Pick, Shape, Spec, frozen, parse_spec, product_index
