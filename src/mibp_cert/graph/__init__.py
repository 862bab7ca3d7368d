"""Training steps as small frozen graphs of tensor operations: how they are written, walked and evaluated."""

from mibp_cert.graph.einsum import Shape, Spec, parse_spec, product_index
from mibp_cert.graph.evaluate import evaluate
from mibp_cert.graph.interpret import Rule, backward, check_support, interpret, outputs_of
from mibp_cert.graph.ops import Factor, Graph, GraphBuilder, Node, Pick, frozen
