"""Affine forms: tensors that remember which noise they come from, with their own rounding inside.

A form stands for the set of tensors

    { c + G·ε + b :  ε ∈ 𝓔,  |b| ≤ r }   intersected with   [L, U]

with centre `c`, generators `G` (one column per symbol), slack `r ≥ 0` and an interval. `𝓔` is a product of blocks known by their
support functions (`Symbols`). `G` is stored in two parts: a dense one (`linear`, columns 0 … k−1, later columns are zero), and at
most one more symbol for each element (`own`, `weight`), which is how data cells and gates come into the world.

`reach` is the pair of ends of `G·ε`; `raw` is a cheap upper bound of `Σ|G_s|·max|ε_s|`, used only to bound rounding errors. Every
operation adds to `r` at least what its float64 evaluation here, and that of a training run in any summation order, can lose:
`2γ_n (|c₁|+R₁)(|c₂|+R₂)` with `R = raw + r`, plus underflow; `r`, `reach` and `[L, U]` are rounded outward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mibp_cert.engines.rounding import TINY, UNIT, Array, Interval, gamma
from mibp_cert.threats import Block, BoxBlock

Columns = NDArray[np.intp]


def upward(value: Array, terms: int = 1) -> Array:
    """A float above a sum of non-negative numbers that was computed with `terms` roundings; exact zero stays zero."""
    return np.where(value == 0.0, 0.0, np.nextafter(value * (1.0 + gamma(terms + 2)), np.inf))


class Symbols:
    """The noise `ε`: the data's own blocks first, then fresh symbols `|ε_j| ≤ 1` made on the way."""

    def __init__(self, blocks: Sequence[Block], data: int) -> None:
        self.blocks = tuple(blocks)
        self.boxed = all(isinstance(block, BoxBlock) for block in self.blocks)
        """Every symbol lies in [−1, 1]: one sum of absolute values is support and magnitude at once."""
        self.data = data
        self.count = data
        self._scratch = np.empty(0)

    def fresh(self, n: int) -> Columns:
        """Numbers of `n` new symbols in [−1, 1]."""
        self.count += n
        return np.arange(self.count - n, self.count, dtype=np.intp)

    def support(self, linear: Array) -> tuple[Array, Array]:
        """Lower and upper end of `linear·ε` (… × columns), rounded outward."""
        columns = linear.shape[-1]
        if self.boxed:
            total = upward(self._absolute(linear).sum(axis=-1), columns)
            return -total, total
        later = np.abs(linear[..., self.data :]).sum(axis=-1)
        low, high = -later, later
        for block in self.blocks:
            inside = block.symbols[block.symbols < columns]
            if len(inside):
                contiguous = slice(int(inside[0]), int(inside[-1]) + 1)
                part = (
                    linear[..., contiguous]
                    if len(inside) == contiguous.stop - contiguous.start
                    else linear[..., inside]
                )
                bottom, top = block.support(part)
                low, high = low + bottom, high + top
        size = columns + len(self.blocks) + 2
        # The ends are sums of at most `size` products; their magnitude bounds the rounding of the sums.
        error = gamma(size) * (np.abs(low) + np.abs(high) + self.magnitude(linear))
        return low - upward(error, 3), high + upward(error, 3)

    def _absolute(self, linear: Array) -> Array:
        """`|linear|` in a buffer that is used again: fresh memory costs more than the arithmetic."""
        if self._scratch.size < linear.size:
            self._scratch = np.empty(linear.size)
        return np.abs(linear, out=self._scratch[: linear.size].reshape(linear.shape))

    def magnitude(self, linear: Array) -> Array:
        """Upper bound of `Σ|linear_s|·max|ε_s|`."""
        if self.boxed:
            return upward(self._absolute(linear).sum(axis=-1), linear.shape[-1])
        largest = np.ones(linear.shape[-1])
        for block in self.blocks:
            inside = block.symbols < linear.shape[-1]
            largest[block.symbols[inside]] = block.magnitude()[inside]
        total: Array = np.abs(linear) @ largest
        return upward(total, linear.shape[-1])


@dataclass(eq=False)
class Form:
    """See the module's text. `reach` and the intersection with the affine range are computed when first asked for."""

    symbols: Symbols
    centre: Array
    linear: Array | None
    slack: Array
    range: Interval
    raw: Array
    own: Columns | None = None
    weight: Array | None = None
    reach: tuple[Array, Array] | None = None
    tight: bool = False

    @classmethod
    def constant(cls, symbols: Symbols, value: Interval) -> Form:
        """A tensor without noise; what width it has goes into the slack."""
        centre = 0.5 * (value.low + value.high)
        slack = upward(np.maximum(value.high - centre, centre - value.low))
        zero = np.zeros(centre.shape)
        return cls(symbols, centre, None, slack, value, zero, reach=(zero, zero), tight=True)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.centre.shape

    @property
    def exact(self) -> bool:
        """A tensor of known numbers: no generators and no slack."""
        return self.linear is None and self.own is None and not self.slack.any()

    @property
    def bound(self) -> Array:
        """Upper bound of the absolute value from the form alone, never from the interval: `|c| + raw + r`."""
        return np.abs(self.centre) + self.raw + self.slack

    def tighten(self) -> Form:
        """Compute `reach` and intersect the interval with `c + reach ± r` (in place); returns itself."""
        if not self.tight:
            low, high = self.ends()
            bottom, top = self.centre + low - self.slack, self.centre + high + self.slack
            error = 4.0 * UNIT * (np.abs(self.centre) + np.maximum(-low, high) + self.slack)
            affine = Interval(np.nextafter(bottom - error, -np.inf), np.nextafter(top + error, np.inf))
            self.range = self.range.meet(affine)
            self.tight = True
        return self

    def ends(self) -> tuple[Array, Array]:
        """Lower and upper end of `G·ε`."""
        if self.reach is None:
            linear = self.dense()
            zero = np.zeros(self.shape)
            self.reach = (zero, zero) if linear is None else self.symbols.support(linear)
            if linear is None or self.symbols.boxed:
                self.raw = self.reach[1]
            else:
                self.raw = np.minimum(self.raw, self.symbols.magnitude(linear))
        return self.reach

    def dense(self) -> Array | None:
        """All generators in one array (own symbols written into their columns)."""
        if self.own is not None and self.weight is not None:
            columns = int(self.own.max(initial=-1)) + 1
            linear = widened(self.linear, self.shape, max(columns, 0 if self.linear is None else self.linear.shape[-1]))
            flat = linear.reshape(-1, linear.shape[-1])
            rows = np.flatnonzero(self.own.ravel() >= 0)
            flat[rows, self.own.ravel()[rows]] += self.weight.ravel()[rows]
            self.linear, self.own, self.weight = linear, None, None
        return self.linear

    def distance(self) -> Array:
        """Largest distance of a member from the centre, from the intersected range."""
        self.tighten()
        return upward(np.maximum(np.maximum(self.range.high - self.centre, self.centre - self.range.low), 0.0))


def widened(linear: Array | None, shape: tuple[int, ...], columns: int) -> Array:
    """A copy with `columns` columns, zeros in the new ones."""
    out = np.zeros((*shape, columns))
    if linear is not None:
        out[..., : linear.shape[-1]] = linear
    return out


def add_linear(a: Array | None, b: Array | None, shape: tuple[int, ...], *, reuse: bool = False) -> Array | None:
    """Sum of two generator arrays that broadcast to `shape` and may have different numbers of columns.

    `reuse`: the operands are temporaries, so that the larger one may hold the result.
    """
    if a is None or b is None:
        only = a if b is None else b
        return None if only is None else np.broadcast_to(only, (*shape, only.shape[-1]))
    if a.shape[-1] < b.shape[-1]:
        a, b = b, a
    if reuse and a.shape[:-1] == shape and a.flags.writeable:
        a[..., : b.shape[-1]] += b
        return a
    if a.shape[-1] == b.shape[-1]:
        return a + b
    out, common = np.empty((*shape, a.shape[-1])), b.shape[-1]
    np.add(a[..., :common], b, out=out[..., :common])
    out[..., common:] = a[..., common:]
    return out


def underflow(terms: int) -> float:
    """What `terms` underflowing products can lose."""
    return 4.0 * terms * TINY
