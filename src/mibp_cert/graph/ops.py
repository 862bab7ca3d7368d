"""The primitives of a training step, and the frozen graph they form.

A graph is a tuple of nodes in topological order. Each node is one tensor operation; its operands are the numbers of
earlier nodes. Layers, losses and optimisers *write* graphs with a `GraphBuilder`; engines *interpret* them
(`graph.interpret`). A graph holds no Python callables, so it pickles and can be sent to worker processes.

Operations, with operands `a`, `b` and result `o`:

| operation  | attribute        | meaning                                                          |
|------------|------------------|------------------------------------------------------------------|
| `input`    | name             | a tensor supplied from outside (a parameter, the data, labels)   |
| `const`    | array            | a known tensor                                                   |
| `add`      | operand ranks    | `o = a + b`, with NumPy broadcasting                             |
| `scale`    | factor, size     | `o = factor · a`, factor a known rational number                 |
| `contract` | spec             | bilinear contraction, `o = einsum(spec, a, b)`; also `a ⊙ b`     |
| `relu`     |                  | `o = max(0, a)`                                                  |
| `smooth`   | name             | a smooth function, element by element (`graph.functions`)        |
| `gate`     | closed           | `o = 1[a > 0]`, or `1[a ≥ 0]` if closed                 |
| `sum`      | axes (negative)  | `o = Σ a` over the axes                                          |
| `gather`   | axis, indices    | `a` along one axis at indices of any shape; 0 where one is −1     |
| `reshape`  | rank of `a`      | the same elements in another shape                               |

Axes are counted from the end, so that an engine may carry extra leading axes (many datasets at once).
A specification of two operands, taken apart (`Spec`), says which axes are kept, which are summed, and what is multiplied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mibp_cert.graph.functions import SMOOTH

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Spec:
    """A two-operand einsum specification, taken apart.

    Every letter is an axis. `letters` lists the output's letters first and the contracted ones after them: aligning both
    operands to `letters` turns the contraction into a broadcast product followed by a sum over the last axes.
    """

    left: str
    right: str
    out: str

    @property
    def letters(self) -> str:
        return self.out + "".join(c for c in dict.fromkeys(self.left + self.right) if c not in self.out)

    @property
    def contracted(self) -> tuple[int, ...]:
        return tuple(range(len(self.out) - len(self.letters), 0))

    def align(self, array: NDArray[Any], operand: str) -> NDArray[Any]:
        """View of `array` (axes named by `operand`) with its axes placed and stretched along `letters`."""
        order = sorted(range(len(operand)), key=lambda axis: self.letters.index(operand[axis]))
        shape = [1] * len(self.letters)
        for letter, size in zip(operand, array.shape, strict=True):
            shape[self.letters.index(letter)] = size
        return array.transpose(order).reshape(shape)


@lru_cache(maxsize=256)
def parse_spec(text: str) -> Spec:
    """Take `"bi,oi->bo"` apart."""
    operands, out = text.split("->")
    left, right = operands.split(",")
    return Spec(left, right, out)


@lru_cache(maxsize=64)
def product_index(text: str, left: Shape, right: Shape) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Flat numbers of left operand, right operand and output for every elementary product of a contraction."""
    spec = parse_spec(text)
    sizes = dict(zip(spec.left + spec.right, left + right, strict=True))
    full = tuple(sizes[letter] for letter in spec.letters)
    out = tuple(sizes[letter] for letter in spec.out)

    def numbers(shape: Shape, letters: str) -> NDArray[np.intp]:
        own = np.arange(int(np.prod(shape)), dtype=np.intp).reshape(shape)
        return np.broadcast_to(spec.align(own, letters), full).ravel()

    return numbers(left, spec.left), numbers(right, spec.right), numbers(out, spec.out)


class Factor(NamedTuple):
    """A known number `value`, and the `size` of the parts that a training run may sum up to form it, `|value|` at least.

    A run that computes `θ − λκθ` instead of `(1 − λκ)·θ` rounds relative to `1 + λκ`, however small the factor is.
    """

    value: Fraction
    size: Fraction

    @property
    def exact(self) -> bool:
        """Multiplication by ±1 rounds nothing."""
        return abs(self.value) == 1 == self.size


class Pick(NamedTuple):
    """Indices along one axis (counted from the end of the operand); −1 stands for a zero."""

    axis: int
    indices: NDArray[np.intp]

    def of(self, array: NDArray[Any], later: int = 0) -> NDArray[Any]:
        """The picked elements of an array that has `later` more axes at its end."""
        axis = self.axis - later
        taken: NDArray[Any] = np.take(array, self.indices, axis=axis)
        outside = self.indices < 0
        if outside.any():
            start = array.ndim + axis
            taken[(slice(None),) * start + np.nonzero(outside)] = 0
        return taken


@dataclass(frozen=True, eq=False)
class Node:
    """One tensor operation: its name, operands, shape, attribute, and the layer or loss that wrote it."""

    op: str
    operands: tuple[int, ...]
    shape: Shape
    attribute: Any
    origin: str


@dataclass(frozen=True, eq=False)
class Graph:
    """A frozen list of nodes with named inputs and named outputs (name → node number)."""

    nodes: tuple[Node, ...]
    inputs: dict[str, int]
    outputs: dict[str, int]

    def descendants(self, of: Iterable[int]) -> set[int]:
        """These nodes and all that depend on them."""
        found = set(of)
        for number, node in enumerate(self.nodes):
            if not found.isdisjoint(node.operands):
                found.add(number)
        return found

    def ancestors(self, of: Iterable[int]) -> set[int]:
        """These nodes and all that they depend on."""
        found = set(of)
        for number in reversed(range(len(self.nodes))):
            if number in found:
                found.update(self.nodes[number].operands)
        return found


def frozen(array: ArrayLike) -> NDArray[np.float64]:
    """A read-only float64 copy."""
    copy = np.array(array, dtype=np.float64)
    copy.setflags(write=False)
    return copy


class GraphBuilder:
    """Writes a graph, one operation at a time; every method returns the number of the new node."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._inputs: dict[str, int] = {}
        self.origin = "graph"

    def shape(self, node: int) -> Shape:
        return self._nodes[node].shape

    def _append(self, op: str, operands: tuple[int, ...], shape: Shape, attribute: Any = None) -> int:
        self._nodes.append(Node(op, operands, shape, attribute, self.origin))
        return len(self._nodes) - 1

    def input(self, name: str, shape: Shape) -> int:
        if name in self._inputs:
            raise ValueError(f"the graph already has an input named {name!r}")
        self._inputs[name] = self._append("input", (), shape, name)
        return self._inputs[name]

    def const(self, value: ArrayLike) -> int:
        array = frozen(value)
        return self._append("const", (), array.shape, array)

    def add(self, a: int, b: int) -> int:
        ranks = (len(self.shape(a)), len(self.shape(b)))
        return self._append("add", (a, b), np.broadcast_shapes(self.shape(a), self.shape(b)), ranks)

    def scale(self, a: int, factor: Fraction | float, size: Fraction | None = None) -> int:
        value = Fraction(factor)
        return self._append("scale", (a,), self.shape(a), Factor(value, abs(value) if size is None else size))

    def subtract(self, a: int, b: int) -> int:
        """`a − b`, written as `a + (−1)·b`."""
        return self.add(a, self.scale(b, -1.0))

    def contract(self, spec: str, a: int, b: int) -> int:
        parsed = parse_spec(spec)
        sizes: dict[str, int] = {}
        for letters, node in ((parsed.left, a), (parsed.right, b)):
            for letter, size in zip(letters, self.shape(node), strict=True):
                if sizes.setdefault(letter, size) != size:
                    raise ValueError(f"{spec}: axis {letter!r} has sizes {sizes[letter]} and {size}")
        return self._append("contract", (a, b), tuple(sizes[c] for c in parsed.out), spec)

    def multiply(self, a: int, b: int) -> int:
        """`a ⊙ b`, for operands of the same shape."""
        letters = "abcdefgh"[: len(self.shape(a))]
        return self.contract(f"{letters},{letters}->{letters}", a, b)

    def smooth(self, a: int, name: str) -> int:
        if name not in SMOOTH:
            raise ValueError(f"there is no smooth function called {name!r}")
        return self._append("smooth", (a,), self.shape(a), name)

    def relu(self, a: int) -> int:
        return self._append("relu", (a,), self.shape(a))

    def clip(self, a: int, limit: float) -> int:
        """`min(c, max(−c, a)) = c − relu(2c − relu(a + c))`: one occurrence of `a`, so that intervals are clipped exactly."""
        above = self.relu(self.add(a, self.const(limit)))
        return self.subtract(self.const(limit), self.relu(self.subtract(self.const(2.0 * limit), above)))

    def gate(self, a: int, *, closed: bool) -> int:
        return self._append("gate", (a,), self.shape(a), closed)

    def sum(self, a: int, axes: Sequence[int]) -> int:
        rank = len(self.shape(a))
        if not all(-rank <= axis < 0 for axis in axes):
            raise ValueError("axes are counted from the end: use negative numbers")
        dropped = {rank + axis for axis in axes}
        return self._append("sum", (a,), tuple(n for i, n in enumerate(self.shape(a)) if i not in dropped), tuple(axes))

    def gather(self, a: int, indices: ArrayLike, axis: int) -> int:
        picked = np.array(indices, dtype=np.intp)
        picked.setflags(write=False)
        shape = self.shape(a)
        if not -len(shape) <= axis < 0:
            raise ValueError("axes are counted from the end: use negative numbers")
        place = len(shape) + axis
        if picked.size and not (picked.min() >= -1 and picked.max() < shape[place]):
            raise ValueError(f"an index is outside of the {shape[place]} entries of axis {axis}")
        out = (*shape[:place], *picked.shape, *shape[place + 1 :])
        return self._append("gather", (a,), out, Pick(axis, picked))

    def reshape(self, a: int, shape: Shape) -> int:
        if int(np.prod(shape)) != int(np.prod(self.shape(a))):
            raise ValueError(f"{self.shape(a)} cannot be reshaped to {shape}")
        return self._append("reshape", (a,), shape, len(self.shape(a)))

    def finish(self, outputs: dict[str, int]) -> Graph:
        """Freeze the graph, keeping only the nodes that some output needs (every input is kept)."""
        everything = Graph(tuple(self._nodes), self._inputs, outputs)
        needed = everything.ancestors([*outputs.values(), *self._inputs.values()])
        renumber = {old: new for new, old in enumerate(sorted(needed))}
        nodes = tuple(
            Node(n.op, tuple(renumber[i] for i in n.operands), n.shape, n.attribute, n.origin)
            for n in (self._nodes[old] for old in sorted(needed))
        )
        return Graph(
            nodes,
            {name: renumber[i] for name, i in self._inputs.items()},
            {name: renumber[i] for name, i in outputs.items()},
        )
