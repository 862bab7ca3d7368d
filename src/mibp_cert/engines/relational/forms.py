"""Affine forms: tensors that remember which noise they come from, with their own rounding inside.

A form stands for the set of tensors

    { c + G·ε + b :  ε ∈ 𝓔,  |b| ≤ r }   intersected with   [L, U]

with centre `c`, generators `G` (one column per symbol), slack `r ≥ 0` and an interval. `𝓔` is a product of blocks known by their
support functions (`Symbols`). `G` is stored in two parts: a dense one (`linear`, columns 0 … k−1, later columns are zero), and at
most one more symbol for each element (`own`, `weight`), which is how data cells and gates come into the world.

Where at most k rows of the data may be wrong, a form has a second kind of slack, `rows` (… × members): what is left of row `i`'s
effect beside its symbols, and vanishes when row `i` is clean. The centre is then the value on the clean data, and a member of
the set with the dirty rows `S`, `|S| ≤ k`, is `c + Σ_{i∈S} (G_i·ε_i + b_i) + b` with `|b_i| ≤ rows_i` (`engines.budget`).

`reach` is the pair of ends of `G·ε`; `raw` is a cheap upper bound of `Σ|G_s|·max|ε_s|`, used only to bound rounding errors. Every
operation adds to `r` at least what its float64 evaluation here, and that of a training run in any summation order, can lose:
`2γ_n (|c₁|+R₁)(|c₂|+R₂)` with `R = raw + r`, plus underflow; `r`, `reach` and `[L, U]` are rounded outward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mibp_cert.engines.rounding import TINY, UNIT, Array, Interval, gamma
from mibp_cert.sets import Block, Budgeted, Plain, largest_sum

Columns = NDArray[np.intp]
CHUNK = 1 << 16
"""Elements that stay in cache."""


def upward(value: Array, terms: int = 1) -> Array:
    """A float above a sum of non-negative numbers that was computed with `terms` roundings; exact zero stays zero."""
    return np.where(value == 0.0, 0.0, np.nextafter(value * (1.0 + gamma(terms + 2)), np.inf))


def absolute_sum(linear: Array, weights: Array | None = None) -> Array:
    """`Σ|linear|` over the last axis (weighted), a few rows at a time, so that what is added up stays in cache."""
    columns = linear.shape[-1]
    if columns == 0:
        return np.zeros(linear.shape[:-1])
    flat = linear.reshape(-1, columns)
    rows = max(1, CHUNK // columns)
    scratch, out = np.empty((min(rows, len(flat)), columns)), np.empty(len(flat))
    for start in range(0, len(flat), rows):
        part = flat[start : start + rows]
        sizes = np.abs(part, out=scratch[: len(part)])
        if weights is None:
            sizes.sum(axis=-1, out=out[start : start + rows])
        else:
            np.matmul(sizes, weights, out=out[start : start + rows])
    return out.reshape(linear.shape[:-1])


class Symbols:
    """The noise `ε`: the data's own blocks first, then fresh symbols `|ε_j| ≤ 1` made on the way."""

    def __init__(self, blocks: Sequence[Block], data: int) -> None:
        self.blocks = tuple(blocks)
        self.boxed = all(isinstance(block, Plain) and block.unit_box for block in self.blocks)
        """Every symbol lies in [−1, 1]: one sum of absolute values is support and magnitude at once."""
        self.data = data
        self.count = data
        self.budgets = [block for block in self.blocks if isinstance(block, Budgeted)]
        self.members = sum(len(block.members) for block in self.budgets)
        """Rows under a budget, one after the other."""

    def fresh(self, n: int) -> Columns:
        """Numbers of `n` new symbols in [−1, 1]."""
        self.count += n
        return np.arange(self.count - n, self.count, dtype=np.intp)

    def support(self, linear: Array) -> tuple[Array, Array]:
        """Lower and upper end of `linear·ε` (… × columns), rounded outward."""
        if self.boxed:
            total = upward(absolute_sum(linear), linear.shape[-1])
            return -total, total
        low, high, members = self.spread(linear)
        for (bottom, top), most in members:
            low, high = low - largest_sum(-bottom, most), high + largest_sum(top, most)
        return low, high

    def spread(self, linear: Array) -> tuple[Array, Array, list[tuple[tuple[Array, Array], int]]]:
        """Ends of what no budget limits, and of every budgeted row's own part (… × members), with the budget; rounded outward."""
        columns = linear.shape[-1]
        later = absolute_sum(linear[..., self.data :])
        low, high = -later, later
        # All ends are sums of at most this many products; the magnitude bounds the rounding of the sums.
        error = upward(gamma(columns + len(self.blocks) + 2) * 4.0 * self.magnitude(linear), 3)
        members = []
        for block in self.blocks:
            part = linear[..., block.symbols[0] : block.symbols[-1] + 1] if len(block.symbols) else linear[..., :0]
            if part.shape[-1] < len(block.symbols):
                part = self.room(part, part.shape[:-1], np.array([len(block.symbols) - 1]))
            if isinstance(block, Budgeted):
                bottom, top = block.member_ends(part)
                slip = error[..., None] * ((bottom < 0) | (top > 0))
                members.append(((bottom - slip, top + slip), block.most))
            else:
                bottom, top = block.support(part)
                low, high = low + bottom, high + top
        return low - error, high + error, members

    def top(self, rows: Array) -> Array:
        """The most that dirty rows can contribute, from amounts (… × members), rounded up."""
        total, start = np.zeros(rows.shape[:-1]), 0
        for block in self.budgets:
            stop = start + len(block.members)
            total = total + largest_sum(rows[..., start:stop], block.most)
            start = stop
        return upward(total, self.members)

    def others(self, rows: Array) -> Array:
        """The most that dirty rows other than one can contribute (… × 1, or 0 where only one row may be dirty)."""
        if len(self.budgets) == 1 and self.budgets[0].most == 1:
            return np.zeros((*rows.shape[:-1], 1))
        if len(self.budgets) == 1:
            return upward(largest_sum(rows, self.budgets[0].most - 1), self.members)[..., None]
        return self.top(rows)[..., None]

    @cached_property
    def largest(self) -> Array:
        """`max|ε_s|` of the data's symbols; that of fresh ones is 1."""
        largest = np.ones(self.data)
        for block in self.blocks:
            largest[block.symbols] = block.magnitude()
        return largest

    def magnitude(self, linear: Array) -> Array:
        """Upper bound of `Σ|linear_s|·max|ε_s|`."""
        columns = linear.shape[-1]
        if self.boxed:
            return upward(absolute_sum(linear), columns)
        largest = np.append(self.largest, np.ones(max(0, columns - self.data)))[:columns]
        return upward(absolute_sum(linear, largest), columns)

    def apart(self, own: Columns) -> bool:
        """Are these symbols (negative: none) free of any block but `|ε| ≤ 1`?"""
        return self.boxed or bool((own[own >= 0] >= self.data).all())

    def room(self, linear: Array | None, shape: tuple[int, ...], columns: Columns) -> Array:
        """A copy of generators for a tensor of this shape, wide enough for `columns`; zeros where there was nothing."""
        have = 0 if linear is None else linear.shape[-1]
        out = np.empty((*shape, max(have, int(columns.max(initial=-1)) + 1)))
        if linear is not None:
            out[..., :have] = linear
        out[..., have:] = 0.0
        return out

    def times(self, factor: Array, linear: Array | None, *, spare: bool = False) -> Array | None:
        """Generators of `factor ⊙ form`; `spare`: nobody else needs `linear`, it may hold the result."""
        if linear is None:
            return None
        shape = (*np.broadcast_shapes(factor.shape, linear.shape[:-1]), linear.shape[-1])
        fits = spare and linear.shape == shape
        return np.multiply(factor[..., None], linear, out=linear if fits else np.empty(shape))

    def plus(self, a: Array, b: Array, shape: tuple[int, ...], *, spare: tuple[bool, bool] = (True, True)) -> Array:
        """Sum of two generator arrays that broadcast to `shape` and may have different numbers of columns.

        `spare`: nobody else needs `a`, or `b`, and it may hold the result.
        """
        if a.shape[-1] < b.shape[-1]:
            a, b, spare = b, a, spare[::-1]
        common = b.shape[-1]
        if spare[0] and a.shape[:-1] == shape:
            a[..., :common] += b
            return a
        out = np.empty((*shape, a.shape[-1]))
        out[..., common:] = a[..., common:]
        np.add(a[..., :common], b, out=out[..., :common])
        return out


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
    rows: Array | None = None
    """Slack that vanishes with a clean row (… × members); see the module's text."""
    spare: bool = False
    """The next operation on this form is the last one."""
    owned: bool = True
    """No other form looks at the memory of its generators."""

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
    def free(self) -> bool:
        """May the next operation write its result over the generators?"""
        return self.spare and self.owned

    def lend(self) -> bool:
        """Let another form look at the generators; whether that form may call them its own."""
        own = self.free
        self.owned = self.owned and own  # from here on both need these numbers, unless this form is done
        return own

    @property
    def exact(self) -> bool:
        """A tensor of known numbers: no generators and no slack."""
        return self.linear is None and self.own is None and self.rows is None and not self.slack.any()

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
            apart = self.own is not None and (
                self.symbols.boxed or bool((self.own[self.own >= 0] >= self.symbols.data).all())
            )
            linear = self.linear if apart else self.dense()
            zero = np.zeros(self.shape)
            low, high = (zero, zero) if linear is None else self.symbols.support(linear)
            raw = high if linear is None or self.symbols.boxed else self.symbols.magnitude(linear)
            if apart and self.weight is not None:  # symbols in [−1, 1], added without writing them into their columns
                own = np.abs(self.weight)
                low, high, raw = -upward(own - low), upward(own + high), upward(own + raw)
            if self.rows is not None:
                low, high, raw = self._with_rows(linear, raw)
            self.reach, self.raw = (low, high), np.minimum(self.raw, raw)
        return self.reach

    def _with_rows(self, linear: Array | None, raw: Array) -> tuple[Array, Array, Array]:
        """Ends of `G·ε` and the rows' slack together, each end with its own dirty rows."""
        assert self.rows is not None
        always, (below, above) = self.spread()
        extra = self.symbols.top(self.rows)
        low, high = -upward(always + self.symbols.top(below)), upward(always + self.symbols.top(above))
        return low, high, upward(raw + extra)

    def spread(self) -> tuple[Array, tuple[Array, Array]]:
        """How far members can be from the centre: what no budget limits (without the slack), and below and above by dirty row."""
        linear = self.dense()
        shape = (*self.shape, self.symbols.members)
        rows = np.zeros(shape) if self.rows is None else self.rows
        if linear is None:
            return np.zeros(self.shape), (rows, rows)
        low, high, members = self.symbols.spread(linear)
        below = np.concatenate([np.maximum(-ends[0], 0.0) for ends, _ in members], axis=-1) + rows
        above = np.concatenate([np.maximum(ends[1], 0.0) for ends, _ in members], axis=-1) + rows
        factor = 1.0 + gamma(4)
        return np.maximum(-low, high), (below * factor, above * factor)

    def dense(self) -> Array | None:
        """All generators in one array (own symbols written into their columns)."""
        if self.own is not None and self.weight is not None:
            hit = np.flatnonzero(self.own.ravel() >= 0)
            columns = self.own.ravel()[hit]
            if not len(hit):
                self.own = self.weight = None
                return self.linear
            linear = self.symbols.room(self.linear, self.shape, columns)
            linear.reshape(-1, linear.shape[-1])[hit, columns] += self.weight.ravel()[hit]
            self.linear, self.own, self.weight, self.owned = linear, None, None, True
        return self.linear

    def distance(self) -> Array:
        """Largest distance of a member from the centre, from the intersected range."""
        self.tighten()
        return upward(np.maximum(np.maximum(self.range.high - self.centre, self.centre - self.range.low), 0.0))


def underflow(terms: int) -> float:
    """What `terms` underflowing products can lose."""
    return 4.0 * terms * TINY
