"""Affine forms: tensors that remember which noise they come from, with their own rounding inside; and sets of parameters.

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

Between steps the same is kept of the flat parameter vector (`RelationalSet`), or a union of such sets (`CaseSet`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from mibp_cert.engines.base import ParameterSet
from mibp_cert.engines.rounding import TINY, UNIT, Array, Interval, gamma
from mibp_cert.nets import Layout
from mibp_cert.sets import Block, Budgeted, Noise, Plain, ThreatSet, largest_sum

Columns = NDArray[np.intp]
CHUNK = 1 << 16
"""Elements that stay in cache."""
EVERYTHING = Interval(np.array(-np.inf), np.array(np.inf))
BY_PARAMETER = ("lower", "upper", "middle", "linear", "slack")
"""What a relational set has one row of for each parameter."""


def upward(value: Array, terms: int = 1) -> Array:
    """A float above a sum of non-negative numbers that was computed with `terms` roundings; exact zero stays zero."""
    return np.where(value == 0.0, 0.0, np.nextafter(value * (1.0 + gamma(terms + 2)), np.inf))


def underflow(terms: int) -> float:
    """What `terms` underflowing products can lose."""
    return 4.0 * terms * TINY


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


def columns_of(linear: Array, start: int, stop: int) -> Array:
    """Some columns of generators; those that were never needed are zero."""
    part = linear[..., start:stop]
    missing = stop - start - part.shape[-1]
    return part if missing == 0 else np.concatenate([part, np.zeros((*part.shape[:-1], missing))], axis=-1)


def room(linear: Array | None, shape: tuple[int, ...], width: int) -> Array:
    """A copy of generators for a tensor of this shape, at least `width` columns wide; zeros where there was nothing."""
    have = 0 if linear is None else linear.shape[-1]
    out = np.empty((*shape, max(have, width)))
    if linear is not None:
        out[..., :have] = linear
    out[..., have:] = 0.0
    return out


def plus(
    a: Array | None, b: Array | None, shape: tuple[int, ...], *, spare: tuple[bool, bool] = (True, True)
) -> Array | None:
    """Sum of two generator arrays that broadcast to `shape` and may have different numbers of columns (None: all are zero).

    `spare`: nobody else needs `a`, or `b`, and it may hold the result; all other results have memory of their own.
    """
    if a is None or (b is not None and a.shape[-1] < b.shape[-1]):
        a, b, spare = b, a, spare[::-1]
    if a is None:
        return None
    common = 0 if b is None else b.shape[-1]
    out = a if spare[0] and a.shape[:-1] == shape else np.empty((*shape, a.shape[-1]))
    if out is not a:
        out[..., common:] = a[..., common:]
    if b is not None:
        np.add(a[..., :common], b, out=out[..., :common])
    return out


class Symbols:
    """The noise `ε`: the data's own blocks first, then fresh symbols `|ε_j| ≤ 1` made on the way."""

    def __init__(self, blocks: Sequence[Block], data: int, count: int | None = None) -> None:
        self.blocks = tuple(blocks)
        self.boxed = all(isinstance(block, Plain) and block.unit_box for block in self.blocks)
        """Every symbol lies in [−1, 1]: one sum of absolute values is support and magnitude at once."""
        self.data = data
        self.count = data if count is None else count
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
            start = int(block.symbols.min(initial=self.data))
            part = columns_of(linear, start, start + len(block.symbols))
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
        """The most that dirty rows other than one can contribute; 0 where only one row may be dirty."""
        if len(self.budgets) == 1:
            return upward(largest_sum(rows, self.budgets[0].most - 1), self.members)
        return self.top(rows)

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


@dataclass(eq=False)
class Form:
    """See the module's text. `reach` and the intersection with the affine range are computed when first asked for."""

    symbols: Symbols
    centre: Array
    linear: Array | None
    slack: Array
    raw: Array
    own: Columns | None = None
    weight: Array | None = None
    rows: Array | None = None
    """Slack that vanishes with a clean row (… × members); see the module's text."""
    range: Interval = EVERYTHING
    reach: tuple[Array, Array] | None = None
    tight: bool = False
    free: bool = False
    """The next operation on this form is the last one and may write over its generators: no two forms share theirs."""

    @classmethod
    def constant(cls, symbols: Symbols, value: Interval) -> Form:
        """A tensor without noise; what width it has goes into the slack."""
        centre = 0.5 * (value.low + value.high)
        slack = upward(np.maximum(value.high - centre, centre - value.low))
        zero = np.zeros(centre.shape)
        return cls(symbols, centre, None, slack, zero, range=value, reach=(zero, zero), tight=True)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.centre.shape

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
            apart = self.own is not None and self.symbols.apart(self.own)
            linear = self.linear if apart else self.dense()
            zero = np.zeros(self.shape)
            low, high = (zero, zero) if linear is None else self.symbols.support(linear)
            raw = high if linear is None or self.symbols.boxed else self.symbols.magnitude(linear)
            if apart and self.weight is not None:  # symbols in [−1, 1], added without writing them into their columns
                own = np.abs(self.weight)
                low, high, raw = -upward(own - low), upward(own + high), upward(own + raw)
            if self.rows is not None:  # each end with its own dirty rows
                always, (below, above) = self.spread()
                low, high = -upward(always + self.symbols.top(below)), upward(always + self.symbols.top(above))
                raw = upward(raw + self.symbols.top(self.rows))
            self.reach, self.raw = (low, high), np.minimum(self.raw, raw)
        return self.reach

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
            linear = room(self.linear, self.shape, int(columns.max()) + 1)
            linear.reshape(-1, linear.shape[-1])[hit, columns] += self.weight.ravel()[hit]
            self.linear, self.own, self.weight = linear, None, None
        return self.linear

    def generators(self) -> Array:
        """All generators; columns that were never needed are left out."""
        linear = self.dense()
        return np.zeros((*self.shape, 0)) if linear is None else linear

    def times(self, factor: Array) -> Array | None:
        """Generators of `factor ⊙ form`, own symbols left aside; written over those of this form where it is free."""
        if self.linear is None:
            return None
        shape = (*np.broadcast_shapes(factor.shape, self.shape), self.linear.shape[-1])
        fits = self.free and self.linear.shape == shape
        return np.multiply(factor[..., None], self.linear, out=self.linear if fits else np.empty(shape))

    def distance(self) -> Array:
        """Largest distance of a member from the centre, from the intersected range."""
        self.tighten()
        return upward(np.maximum(np.maximum(self.range.high - self.centre, self.centre - self.range.low), 0.0))


@final
@dataclass(frozen=True, eq=False)
class RelationalSet(ParameterSet):
    """`{ c + G·ε + b : ε ∈ 𝓔, |b| ≤ r } ∩ [lower, upper]`: `c` is `middle`, `G` is `linear`, `r` is `slack`.

    The first `data` symbols are the data's own noise.
    """

    middle: Array
    linear: Array
    slack: Array
    noise: Noise
    slope: float = 1.0
    """Slope cap that the last step chose; the next search starts there."""
    gates: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Which symbols beyond the data's came from gates; the others are remainders (second order, relu bands, rounding)."""

    @classmethod
    def around(cls, box: ParameterSet, threat: ThreatSet) -> RelationalSet:
        """A set as it is, a box as a set without generators."""
        if isinstance(box, RelationalSet):
            return box
        centre, noise = box.centre, threat.noise()
        slack = upward(np.maximum(box.upper - centre, centre - box.lower))
        return cls(box.lower, box.upper, centre, np.zeros((len(centre), noise.symbols)), slack, noise)

    @property
    def data(self) -> int:
        return self.noise.symbols

    def first(self, count: int) -> RelationalSet:
        parts: dict[str, Any] = {name: getattr(self, name)[:count] for name in BY_PARAMETER}
        return replace(self, **parts)

    def within_box(self, other: ParameterSet) -> RelationalSet:
        box = self.meet(other)
        return replace(self, lower=box.lower, upper=box.upper)

    def arrays(self) -> dict[str, Array]:
        parts = {name: getattr(self, name) for name in BY_PARAMETER}
        return {**parts, "slope": np.array(self.slope), "gates": self.gates.astype(np.float64)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array], noise: Noise, prefix: str = "") -> RelationalSet:
        """The inverse of `arrays`, for the same noise; `prefix` stands before every name."""
        parts: dict[str, Any] = {name: arrays[prefix + name] for name in BY_PARAMETER}
        slope, gates = float(arrays[prefix + "slope"]), arrays[prefix + "gates"] != 0
        (size, symbols), own = parts["linear"].shape, [parts[name].shape for name in BY_PARAMETER if name != "linear"]
        if own != [(size,)] * len(own) or symbols < noise.symbols or gates.ndim != 1:
            raise ValueError("the parts of the set do not fit each other")
        return cls(**parts, noise=noise, slope=slope, gates=gates)

    def residual(self, theta: Array, epsilon: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """What is left of `θ` after the known data noise: `θ − c − G_data·ε`, in extended precision."""
        known = self.linear[:, : self.data].astype(np.longdouble) @ epsilon.astype(np.longdouble)
        return theta.astype(np.longdouble) - self.middle.astype(np.longdouble) - known

    def cover(self) -> Array:
        """How large a residual the other symbols and the slack admit."""
        return upward(np.abs(self.linear[:, self.data :]).sum(axis=1) + self.slack, self.linear.shape[1])

    def symbols(self) -> Symbols:
        """The symbols of the set, ready for new ones."""
        return Symbols(self.noise.blocks, self.data, self.linear.shape[1])

    def forms(self, layout: Layout, symbols: Symbols) -> dict[str, Form]:
        """The named parameters as forms."""
        box, unknown = self.tensors(layout), np.array(np.inf)
        middle, slack, linear = (layout.unflatten(part) for part in (self.middle, self.slack, self.linear.T))
        forms = {}
        for name in layout.names:
            generators = np.moveaxis(linear[name], 0, -1)
            form = Form(symbols, middle[name], generators, slack[name], unknown, range=box[name], tight=True)
            form.ends()
            forms[name] = form
        return forms


@dataclass(frozen=True, eq=False)
class Case:
    """A relational set, and the threat whose datasets lead to it."""

    state: RelationalSet
    threat: ThreatSet


@final
@dataclass(frozen=True, eq=False)
class CaseSet(ParameterSet):
    """A union of relational sets, one for each case that the threat is split into; the box is their hull."""

    cases: tuple[Case, ...]

    @classmethod
    def of(cls, cases: Sequence[Case]) -> CaseSet:
        lower = np.min([case.state.lower for case in cases], axis=0)
        # min and max skip nothing: a NaN in any case stays one.
        return cls(lower, np.max([case.state.upper for case in cases], axis=0), tuple(cases))

    def within_box(self, other: ParameterSet) -> CaseSet:
        return CaseSet.of([replace(case, state=case.state.within_box(other)) for case in self.cases])

    def arrays(self) -> dict[str, Array]:
        cases = {f"case{i}_{name}": a for i, c in enumerate(self.cases) for name, a in c.state.arrays().items()}
        return {"lower": self.lower, "upper": self.upper, **cases}

    def first(self, count: int) -> CaseSet:
        return CaseSet.of([replace(case, state=case.state.first(count)) for case in self.cases])


def cases_of(state: ParameterSet, threat: ThreatSet) -> list[Case]:
    """The relational sets that a set is the union of, each with its share of the threat; none for a plain box."""
    return list(state.cases) if isinstance(state, CaseSet) else [Case(one, threat) for one in states_of(state)]


def states_of(state: ParameterSet) -> tuple[RelationalSet, ...]:
    """The relational sets that a set is the union of; none for a plain box."""
    if isinstance(state, CaseSet):
        return tuple(case.state for case in state.cases)
    return (state,) if isinstance(state, RelationalSet) else ()
