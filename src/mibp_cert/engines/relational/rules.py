"""Rules for affine forms: one method for each graph operation, called like it.

- linear maps act on centre, generators and slack (slack with absolute values);
- product: `c₁c₂`, `c₁G₂ + c₂G₁`, slack `|c₁|r₂ + |c₂|r₁ + rad₁·rad₂`, contracted like the product itself, where `rad` is the
  largest distance from the centre within the intersected range (a gate's is ½);
- smooth functions: `φ(x) = k·x + band` with the secant's slope `k` (`engines.relax`);
- relu, unstable on `[l, u]`: slope `k = u/(u−l)`, and `relu(x) − kx` lies in `[0, max(−kl, u−ku)]`;
- where rows are under a budget, see `engines.budget`: what vanishes with a clean row is kept row by row;
- gate `1[a > 0]`, unstable on `[l, u]`: `½ + k·a + ½ε_new` for `0 ≤ k ≤ min(1/u, −1/l)`: one new symbol for each gate, the
  same one wherever the gate is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mibp_cert.engines import interval, relax
from mibp_cert.engines.relational import budget
from mibp_cert.engines.relational.forms import CHUNK, Columns, Form, Symbols, plus, room, underflow, upward
from mibp_cert.engines.rounding import UNIT, Array, Interval, gamma
from mibp_cert.graph import Node, Spec, parse_spec
from mibp_cert.graph.ops import product_index


class AffineRules:
    """The rules over one set of symbols; `slope_cap` limits the slopes of sloped gates."""

    def __init__(self, symbols: Symbols, sloped: frozenset[int] = frozenset()) -> None:
        self.symbols = symbols
        self.sloped = sloped
        """Node objects (by identity) of gates that may take a slope."""
        self.slope_cap = np.inf

    def apply(self, node: Node, *operands: Form) -> Form:
        """The form of a node, with its interval; known numbers are left to interval arithmetic, which keeps exact ones exact."""
        known = all(operand.exact for operand in operands)
        form: Form | None = None if known else getattr(self, node.op)(node, *operands)
        # After the rule: it may have intersected the operands' intervals with their affine ranges.
        both = interval.TABLE[node.op](node, *(operand.range for operand in operands))
        if form is None:
            return Form.constant(self.symbols, both)
        form.range = both
        return form

    def add(self, node: Node, a: Form, b: Form) -> Form:
        centre = a.centre + b.centre
        raw = upward(a.raw + b.raw)
        slack = a.slack + b.slack
        slack = upward(slack + 4.0 * UNIT * (np.abs(centre) + raw + slack), 4)
        linear = plus(a.dense(), b.dense(), node.shape, spare=(a.free, b.free))
        return Form(self.symbols, centre, linear, slack, raw, rows=add_rows(a.rows, b.rows, node.shape))

    def scale(self, node: Node, a: Form) -> Form:
        factor, size = np.array(float(node.attribute.value)), float(node.attribute.size)
        raw, slack = np.abs(factor) * a.raw, np.abs(factor) * a.slack
        if not node.attribute.exact:
            raw = upward(raw, 2)
            slack = upward(slack + 12.0 * UNIT * size * a.bound, 6) + underflow(2 + self.symbols.count)
        weight = None if a.weight is None else factor * a.weight
        rows, reach = times_rows(np.abs(factor), a.rows), stretched(a.reach, factor)
        return Form(self.symbols, factor * a.centre, a.times(factor), slack, raw, a.own, weight, rows, reach=reach)

    def sum(self, node: Node, a: Form) -> Form:
        axes, later = node.attribute, tuple(axis - 1 for axis in node.attribute)
        count = math.prod(a.shape[axis] for axis in axes)
        linear = None if a.linear is None else a.linear.sum(axis=later)
        if a.own is not None and a.weight is not None:
            kept = np.expand_dims(np.arange(math.prod(node.shape)).reshape(node.shape), axes)
            into = np.broadcast_to(kept, a.shape).ravel()
            linear = scatter(linear, node.shape, into, a.own.ravel(), a.weight.ravel())
        slack = upward(a.slack.sum(axis=axes) + 2.0 * gamma(count + 2) * a.bound.sum(axis=axes), count + 4)
        raw = upward(a.raw.sum(axis=axes), count)
        rows = None if a.rows is None else a.rows.sum(axis=later) * (1.0 + gamma(count + 2))
        return Form(self.symbols, a.centre.sum(axis=axes), linear, slack, raw, rows=rows)

    def gather(self, node: Node, a: Form) -> Form:
        return self._moved(a, node.attribute.of)

    def reshape(self, node: Node, a: Form) -> Form:
        def turned(value: Array, later: int = 0) -> Array:
            alone = value if a.free or later == 0 else value.copy()  # no two forms share generators
            return alone.reshape(node.shape + value.shape[value.ndim - later :])

        return self._moved(a, turned)

    def _moved(self, a: Form, move: Callable[..., Any]) -> Form:
        """All that belongs to an element in its new place; `move(array, later)`: the array has `later` more axes at its end."""

        def moved(value: Any, later: int = 0) -> Any:
            return None if value is None else move(value, later)

        own = None if a.own is None else move(a.own + 1) - 1  # outside there is no symbol either
        reach = None if a.reach is None else (move(a.reach[0]), move(a.reach[1]))
        return Form(
            self.symbols,
            move(a.centre),
            moved(a.linear, 1),
            move(a.slack),
            move(a.raw),
            own,
            moved(a.weight),
            moved(a.rows, 1),
            reach=reach,
            tight=a.tight,
        )

    def smooth(self, node: Node, a: Form) -> Form:
        name, line = node.attribute, relax.smooth_line(node.attribute, a.tighten().range.low, a.range.high)
        slope, bottom, top, flat = line.slope, line.bottom, line.top, line.flat
        middle = np.where(np.isfinite(top - bottom), 0.5 * (bottom + top), 0.0)
        half = upward(np.maximum(np.maximum(top - middle, middle - bottom), 0.0))
        size = np.abs(slope)
        raw = np.where(flat, 0.0, upward(size * a.raw, 2))
        centre = np.where(flat, 0.0, slope * a.centre) + middle
        rounding = 8.0 * UNIT * (size * np.abs(np.where(flat, 0.0, a.centre)) + np.abs(middle) + raw)
        rounding = np.where(flat, 0.0, rounding + underflow(self.symbols.count))
        slack = upward(np.where(flat, 0.0, size * a.slack) + half + rounding, 6)
        by_row = budget.tangent(name, a, half) if self.symbols.members else None
        return self._along(a, slope, centre, slack, raw, by_row)

    def relu(self, node: Node, a: Form) -> Form:
        low, high = a.tighten().range.low, a.range.high
        unstable = (low < 0) & (high > 0)
        slope, band = relax.relu_line(low, high, unstable)
        half = upward(0.5 * band, 4)
        centre = slope * a.centre + half
        raw = slope * a.raw
        rounding = np.where(unstable, 8.0 * UNIT * (np.abs(centre) + raw + half) + underflow(self.symbols.count), 0.0)
        slack = np.where(unstable, upward(slope * a.slack + half + rounding, 6), slope * a.slack)
        by_row = budget.relu(a, unstable) if self.symbols.members else None
        return self._along(a, slope, centre, slack, raw, by_row)

    def _along(
        self, a: Form, slope: Array, centre: Array, slack: Array, raw: Array, by_row: budget.Tangent | None
    ) -> Form:
        """`slope·a` moved to its centre, with its slack; where rows are under a budget, the tangent for which they pay."""
        rows = None
        if by_row is not None:
            slope = np.where(by_row.taken, by_row.slope, slope)
            centre = np.where(by_row.taken, by_row.value, centre)
            slack = np.where(by_row.taken, by_row.slack, slack)
            rows = add_rows(times_rows(np.abs(slope), a.rows), by_row.rows, a.shape)
            raw = upward(np.abs(slope) * a.raw + self.symbols.top(by_row.rows) + by_row.always, 3)
        a.dense()
        reach = None if rows is not None else stretched(a.reach, slope)
        return Form(self.symbols, centre, a.times(slope), slack, raw, rows=rows, reach=reach)

    def gate(self, node: Node, a: Form) -> Form:
        low, high = a.tighten().range.low, a.range.high
        on, off = (low >= 0, high < 0) if node.attribute else (low > 0, high <= 0)
        unstable = ~on & ~off
        if not unstable.any():
            return Form.constant(self.symbols, Interval.point(np.where(on, 1.0, 0.0)))
        by_row = budget.gate(a, unstable) if self.symbols.members else None
        if by_row is not None:
            unstable = unstable & ~by_row.decided
            on = np.where(by_row.decided, by_row.on > 0, on)
            off = np.where(by_row.decided, by_row.on == 0, off)
        symbols, own = self.symbols, np.full(a.shape, -1, dtype=np.intp)
        own[unstable] = symbols.fresh(int(unstable.sum()))
        weight = np.where(unstable, 0.5, 0.0)
        centre, slack = np.where(on, 1.0, np.where(off, 0.0, 0.5)), np.zeros(a.shape)
        linear, raw, rows = None, weight, None
        if id(node) in self.sloped and self.slope_cap > 0:
            slope = relax.gate_line(low, high, unstable, self.slope_cap)
            centre = np.where(unstable, 0.5 + slope * a.centre, centre)
            raw = upward(weight + slope * a.raw, 3)
            rounding = 8.0 * UNIT * (np.abs(centre) + raw) + underflow(symbols.count)
            slack = np.where(unstable, upward(slope * a.slack + rounding, 6), 0.0)
            a.dense()
            linear, rows = a.times(slope), times_rows(slope, a.rows)
        if by_row is not None:
            flips = by_row.flips()
            rows = add_rows(rows, flips, node.shape)
            raw = upward(raw + symbols.top(flips), 2)
        # Never tighter than the interval: the affine range is at least [0, 1] where the gate is unstable.
        return Form(symbols, centre, linear, slack, raw, own, weight, rows, tight=True)

    # Products --------------------------------------------------------------------------------------------------------

    def contract(self, node: Node, a: Form, b: Form) -> Form:
        spec = parse_spec(node.attribute)
        sizes = dict(zip(spec.left + spec.right, a.shape + b.shape, strict=True))
        count = math.prod(sizes[letter] for letter in spec.letters[len(spec.out) :])

        def small(left: Array, right: Array) -> Array:
            out: Array = np.einsum(node.attribute, left, right)
            return out

        size_a, size_b = np.abs(a.centre), np.abs(b.centre)
        slack = 2.0 * gamma(count + 6) * small(a.bound, b.bound)
        raw = np.zeros(node.shape)
        if not b.exact:
            slack += small(size_a, b.slack)
            raw += small(size_a, b.raw)
        if not a.exact:
            slack += small(a.slack, size_b)
            raw += small(a.raw, size_b)
        rows = None
        if not (a.exact or b.exact):
            second = small(a.distance(), b.distance())
            if self.symbols.members:
                raw += second
                second, rows = budget.second_order(spec, a, b, small)
            slack += second
        rows = contract_rows(spec, a, b, rows, count)
        slack = upward(slack, 4 * count + 12) + underflow(count * (3 + self.symbols.count + self.symbols.members))
        centre, raw = small(a.centre, b.centre), upward(raw, 2 * count + 2)
        if spec.left == spec.right == spec.out and (a.own is None or b.own is None):
            linear, own, weight, reach = self._elementwise(node, a, b)
            return Form(self.symbols, centre, linear, slack, raw, own, weight, rows, reach=reach)
        return Form(self.symbols, centre, self._generators(node, spec, a, b), slack, raw, rows=rows)

    def _elementwise(
        self, node: Node, a: Form, b: Form
    ) -> tuple[Array | None, Columns | None, Array | None, tuple[Array, Array] | None]:
        """`c₁G₂ + c₂G₁`, dense part and own symbols; and the ends, where one operand is dense, without another pass over it."""
        carrier, other = (a, b) if a.own is not None else (b, a)
        own, weight = carrier.own, None if carrier.weight is None else carrier.weight * other.centre
        dense, factor = (a, b) if a.linear is not None else (b, a)
        reach = None
        if dense.linear is not None and factor.linear is None and dense.own is None and not self.symbols.members:
            reach = stretched(dense.reach, factor.centre)
        if reach is not None and own is not None and weight is not None:
            size = np.abs(weight)
            wider = np.nextafter(reach[0] - size, -np.inf), np.nextafter(reach[1] + size, np.inf)
            reach = wider if self.symbols.apart(own) else None
        return plus(a.times(b.centre), b.times(a.centre), node.shape), own, weight, reach

    def _generators(self, node: Node, spec: Spec, a: Form, b: Form) -> Array | None:
        """`c₁G₂ + c₂G₁`, contracted."""
        columns = max((int(f.own.max(initial=-1)) + 1 for f in (a, b) if f.own is not None), default=0)
        linear = contract_linear(spec, b.centre, a.linear, spec.right, spec.left, columns)
        linear = contract_linear(spec, a.centre, b.linear, spec.left, spec.right, columns, linear)
        ia, ib, io = product_index(node.attribute, a.shape, b.shape)
        for carrier, ic, other, ix in ((a, ia, b, ib), (b, ib, a, ia)):
            if carrier.own is not None and carrier.weight is not None:
                values = carrier.weight.ravel()[ic] * other.centre.ravel()[ix]
                linear = scatter(linear, node.shape, io, carrier.own.ravel()[ic], values)
        return linear


OPERATIONS = frozenset(interval.TABLE) & {"const", *vars(AffineRules)}
"""The graph operations that there is a rule for."""


def add_rows(a: Array | None, b: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Sum of two rows' slacks that broadcast to `shape`."""
    if a is None or b is None:
        only = a if b is None else b
        return None if only is None else np.broadcast_to(only, (*shape, only.shape[-1]))
    return np.asarray((a + b) * (1.0 + gamma(2)))


def times_rows(factor: Array, rows: Array | None) -> Array | None:
    """Rows' slack of `factor ⊙ form`, `factor ≥ 0`."""
    return None if rows is None else np.asarray(factor[..., None] * rows * (1.0 + gamma(4)))


def contract_rows(spec: Spec, a: Form, b: Form, extra: Array | None, count: int) -> Array | None:
    """`|c₁|·rows₂ + rows₁·|c₂|`, contracted like the product, plus what is given."""
    total = extra
    for rows, other, text in (
        (b.rows, np.abs(a.centre), f"{spec.left},{spec.right}Z->{spec.out}Z"),
        (a.rows, np.abs(b.centre), f"{spec.right},{spec.left}Z->{spec.out}Z"),
    ):
        if rows is not None:
            part = np.einsum(text, other, rows, optimize=True)
            total = part if total is None else total + part
    return None if total is None else np.asarray(total * (1.0 + gamma(2 * count + 8)))


def scatter(
    linear: Array | None, shape: tuple[int, ...], rows: Columns, columns: Columns, values: Array
) -> Array | None:
    """Add `values` at (element, symbol); `linear` is a temporary, negative symbols stand for none."""
    hit = np.flatnonzero((columns >= 0) & (values != 0.0))
    if not len(hit):
        return linear
    columns = columns[hit]
    if linear is None or int(columns.max()) >= linear.shape[-1] or not linear.flags.c_contiguous:
        linear = room(linear, shape, int(columns.max()) + 1)
    np.add.at(linear.reshape(-1), rows[hit] * linear.shape[-1] + columns, values[hit])
    return linear


def stretched(reach: tuple[Array, Array] | None, factor: Array) -> tuple[Array, Array] | None:
    """Ends of `factor · G·ε`, rounded outward; exact zeros stay zero."""
    if reach is None:
        return None
    one, two = factor * reach[0], factor * reach[1]
    low, high = np.minimum(one, two), np.maximum(one, two)
    error = 4.0 * UNIT * np.maximum(np.abs(low), np.abs(high))
    keep = factor == 0.0
    return (
        np.where(keep, 0.0, np.nextafter(low - error, -np.inf)),
        np.where(keep, 0.0, np.nextafter(high + error, np.inf)),
    )


def contract_linear(
    spec: Spec,
    matrix: Array,
    linear: Array | None,
    letters: str,
    of: str,
    columns: int = 0,
    onto: Array | None = None,
) -> Array | None:
    """`einsum` of a matrix (axes `letters`) with generators (axes `of`, and a last one for symbols), added to `onto`: axes of the
    output, then symbols, at least `columns` of them.

    Two axes each and one of them summed: a matrix product `matrix · G_f` for each index `f` of the other axis of `of`, written
    straight to its place.
    """
    if linear is None or linear.shape[-1] == 0:
        return onto
    summed = [c for c in of if c in letters and c not in spec.out]
    if not (len(letters) == len(of) == len(spec.out) == 2 and len(summed) == 1):
        result = np.asarray(np.einsum(f"{of}Z,{letters}->{spec.out}Z", linear, matrix, optimize=True))
        return plus(onto, result, result.shape[:-1])
    k, have = summed[0], linear.shape[-1]
    left = matrix if letters[1] == k else matrix.T
    right = linear if of[1] == k else linear.transpose(1, 0, 2)
    sizes = [matrix.shape[letters.index(c)] if c in letters else linear.shape[of.index(c)] for c in spec.out]
    turned = spec.out[0] in letters
    if onto is None:
        out = np.empty((sizes[0], sizes[1], max(have, columns)))
        out[..., have:] = 0.0
        np.matmul(left, right, out=(out.transpose(1, 0, 2) if turned else out)[..., :have])
        return out
    if onto.shape[-1] < have:
        onto = room(onto, onto.shape[:-1], have)
    # A few rows at a time, so that what is added stays in cache.
    rows = max(1, CHUNK // (sizes[1] * have))
    scratch = np.empty((rows, sizes[1], have))
    for start in range(0, sizes[0], rows):
        stop = min(start + rows, sizes[0])
        part = scratch[: stop - start]
        if turned:
            np.matmul(left[start:stop], right, out=part.transpose(1, 0, 2))
        else:
            np.matmul(left, right[start:stop], out=part)
        onto[start:stop, :, :have] += part
    return onto
