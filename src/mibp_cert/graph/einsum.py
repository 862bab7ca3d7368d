"""Two-operand einsum specifications, taken apart: which axes are kept, which are summed, and which products they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
