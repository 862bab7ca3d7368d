"""The linear operations of a graph, transposed: what functionals of a node's value say of its operands.

For functionals `Λ` (first axis: which one; the others: the node's) and a node that is linear in an operand, `Λ·node` is
`Λ'·operand`, plus what the other operands add; a product is linear in each factor, the other one being held.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.engines.rounding import Array
from mibp_cert.graph import Node, Shape, parse_spec

LINEAR = ("add", "scale", "sum", "gather", "reshape")
"""Operations that are linear in all operands at once."""


def transposed(node: Node, place: int, weight: Array, shape: Shape, factor: Array) -> Array:
    """`Λ'` of operand number `place`, which has this shape; `factor`: the other factor of a product."""
    match node.op:
        case "add":
            return _unbroadcast(weight, shape)
        case "scale":
            return float(node.attribute.value) * weight
        case "contract":
            spec = parse_spec(node.attribute)
            own, other = (spec.left, spec.right) if place == 0 else (spec.right, spec.left)
            piece: Array = np.einsum(f"...{spec.out},{other}->...{own}", weight, factor, optimize=True)
            return piece
        case "sum":
            spread = np.expand_dims(weight, tuple(sorted(node.attribute)))
            return np.broadcast_to(spread, (len(weight), *shape))
        case "gather":
            # An element may be gathered twice; place 0 takes what lies outside.
            places = node.attribute.of(np.arange(1, int(np.prod(shape)) + 1).reshape(shape)).ravel()
            total = np.zeros((int(np.prod(shape)) + 1, len(weight)))
            np.add.at(total, places, weight.reshape(len(weight), -1).T)
            return total[1:].T.reshape(len(weight), *shape)
        case "reshape":
            return weight.reshape(len(weight), *shape)
    raise AssertionError(f"{node.op} is not linear")


def _unbroadcast(weight: Array, shape: Shape) -> Array:
    """Sum over the axes along which an operand of this shape was stretched."""
    extra = weight.ndim - 1 - len(shape)
    total: Array = weight.sum(axis=tuple(range(1, 1 + extra)))
    stretched = tuple(axis + 1 for axis, size in enumerate(shape) if size == 1 and total.shape[axis + 1] != 1)
    out: Array = total.sum(axis=stretched, keepdims=True)
    return out
