"""Rules for affine forms: one function per graph operation.

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

from typing import Any

import numpy as np

from mibp_cert.engines import interval, relax
from mibp_cert.engines.relational import budget
from mibp_cert.engines.relational.forms import CHUNK, Columns, Form, Symbols, underflow, upward
from mibp_cert.engines.rounding import UNIT, Array, Interval, gamma
from mibp_cert.graph import Node, Rule, Spec, parse_spec
from mibp_cert.graph.ops import product_index


class AffineRules:
    """The table of rules over one set of symbols; `slope_cap` limits the slopes of sloped gates."""

    def __init__(self, symbols: Symbols, sloped: frozenset[int] = frozenset()) -> None:
        self.symbols = symbols
        self.sloped = sloped
        """Node objects (by identity) of gates that may take a slope."""
        self.slope_cap = np.inf
        self.table: dict[str, Rule] = {
            "const": lambda node: Form.constant(symbols, Interval.point(node.attribute)),
            "add": self._add,
            "scale": self._scale,
            "contract": self._contract,
            "relu": self._relu,
            "gate": self._gate,
            "sum": self._sum,
            "gather": self._gather,
            "reshape": self._reshape,
            "smooth": self._smooth,
        }

    def apply(self, node: Node, *operands: Form) -> Form:
        """The rule for a node; known numbers are left to interval arithmetic, which keeps exact ones exact."""
        if node.op != "const" and all(operand.exact for operand in operands):
            return Form.constant(self.symbols, interval.TABLE[node.op](node, *(operand.range for operand in operands)))
        form: Form = self.table[node.op](node, *operands)
        return form

    def _add(self, node: Node, a: Form, b: Form) -> Form:
        centre = a.centre + b.centre
        raw = upward(a.raw + b.raw)
        slack = a.slack + b.slack
        slack = upward(slack + 4.0 * UNIT * (np.abs(centre) + raw + slack), 4)
        linear, owned = self._plus(a, b, node.shape)
        both = interval.TABLE["add"](node, a.range, b.range)
        rows = None
        if self.symbols.members:
            rows = budget.add(self.symbols, a.rows, b.rows, node.shape)
        slack, raw = np.broadcast_to(slack, node.shape), np.broadcast_to(raw, node.shape)
        return Form(self.symbols, centre, linear, slack, both, raw, rows=rows, owned=owned)

    def _plus(self, a: Form, b: Form, shape: tuple[int, ...]) -> tuple[Array | None, bool]:
        """Generators of a sum, and whether they are in memory of their own."""
        one, two = a.dense(), b.dense()
        if one is not None and two is not None:
            return self.symbols.plus(one, two, shape, spare=(a.free, b.free)), True
        only, linear = (a, one) if two is None else (b, two)
        if linear is None or linear.shape[:-1] == shape:
            return linear, only.lend()
        only.owned = False
        return np.broadcast_to(linear, (*shape, linear.shape[-1])), False

    def _scale(self, node: Node, a: Form) -> Form:
        factor, size = float(node.attribute.value), float(node.attribute.size)
        centre, raw, slack = factor * a.centre, abs(factor) * a.raw, abs(factor) * a.slack
        if not node.attribute.exact:
            raw = upward(raw, 2)
            slack = upward(slack + 12.0 * UNIT * size * a.bound, 6) + underflow(2 + self.symbols.count)
        linear = self.symbols.times(np.array(factor), a.linear, spare=a.free)
        weight = None if a.weight is None else factor * a.weight
        scaled = interval.TABLE["scale"](node, a.range)
        reach = stretched(a.reach, np.array(factor))
        rows = None if a.rows is None else budget.times(np.array(abs(factor)), a.rows)
        return Form(self.symbols, centre, linear, slack, scaled, raw, a.own, weight, reach=reach, rows=rows)

    def _sum(self, node: Node, a: Form) -> Form:
        axes = node.attribute
        count = int(np.prod([a.shape[axis] for axis in axes]))
        total = None if a.linear is None else a.linear.sum(axis=tuple(axis - 1 for axis in axes))
        if a.own is not None and a.weight is not None:
            kept = np.zeros(a.shape, dtype=np.intp) + np.arange(int(np.prod(node.shape))).reshape(
                [1 if axis - len(a.shape) in axes else n for axis, n in enumerate(a.shape)]
            )
            total = self._scatter(total, node.shape, kept.ravel(), a.own.ravel(), a.weight.ravel())
        slack = upward(a.slack.sum(axis=axes) + 2.0 * gamma(count + 2) * a.bound.sum(axis=axes), count + 4)
        raw = upward(a.raw.sum(axis=axes), count)
        rows = None if a.rows is None else a.rows.sum(axis=tuple(axis - 1 for axis in axes)) * (1.0 + gamma(count + 2))
        centre, both = a.centre.sum(axis=axes), interval.TABLE["sum"](node, a.range)
        return Form(self.symbols, centre, total, slack, both, raw, rows=rows)

    def _gather(self, node: Node, a: Form) -> Form:
        pick = node.attribute
        return Form(
            self.symbols,
            pick.of(a.centre),
            None if a.linear is None else pick.of(a.linear, 1),
            pick.of(a.slack),
            interval.TABLE["gather"](node, a.range),
            pick.of(a.raw),
            None if a.own is None else pick.of(a.own + 1) - 1,  # outside there is no symbol either
            None if a.weight is None else pick.of(a.weight),
            reach=None if a.reach is None else (pick.of(a.reach[0]), pick.of(a.reach[1])),
            rows=None if a.rows is None else pick.of(a.rows, 1),
            tight=a.tight,
        )

    def _reshape(self, node: Node, a: Form) -> Form:
        def turned(value: Any, later: int = 0) -> Any:
            return None if value is None else value.reshape(node.shape + value.shape[value.ndim - later :])

        return Form(
            self.symbols,
            turned(a.centre),
            turned(a.linear, 1),
            turned(a.slack),
            interval.TABLE["reshape"](node, a.range),
            turned(a.raw),
            turned(a.own),
            turned(a.weight),
            reach=None if a.reach is None else (turned(a.reach[0]), turned(a.reach[1])),
            rows=turned(a.rows, 1),
            tight=a.tight,
            owned=a.lend(),
        )

    def _smooth(self, node: Node, a: Form) -> Form:
        name, line = node.attribute, relax.smooth_line(node.attribute, a.tighten().range.low, a.range.high)
        slope, bottom, top, flat = line.slope, line.bottom, line.top, line.flat
        both = interval.TABLE["smooth"](node, a.range)
        middle = np.where(np.isfinite(top - bottom), 0.5 * (bottom + top), 0.0)
        half = upward(np.maximum(np.maximum(top - middle, middle - bottom), 0.0))
        size = np.abs(slope)
        raw = np.where(flat, 0.0, upward(size * a.raw, 2))
        centre = np.where(flat, 0.0, slope * a.centre) + middle
        rounding = 8.0 * UNIT * (size * np.abs(np.where(flat, 0.0, a.centre)) + np.abs(middle) + raw)
        rounding = np.where(flat, 0.0, rounding + underflow(self.symbols.count))
        slack = upward(np.where(flat, 0.0, size * a.slack) + half + rounding, 6)
        rows = None
        if self.symbols.members:
            by_row = budget.tangent(name, a, half)
            slope = np.where(by_row.taken, by_row.slope, slope)
            centre = np.where(by_row.taken, by_row.value, centre)
            rows = budget.add(self.symbols, budget.times(np.abs(slope), a.rows), by_row.rows, node.shape)
            slack = np.where(by_row.taken, by_row.slack, slack)
            raw = upward(np.abs(slope) * a.raw + self.symbols.top(by_row.rows), 3)
        linear = self.symbols.times(slope, a.dense(), spare=a.free)
        reach = None if rows is not None else stretched(a.reach, slope)
        return Form(self.symbols, centre, linear, slack, both, raw, reach=reach, rows=rows)

    def _relu(self, node: Node, a: Form) -> Form:
        low, high = a.tighten().range.low, a.range.high
        unstable = (low < 0) & (high > 0)
        by_row = budget.kinks(a, unstable, gate=False) if self.symbols.members else None
        if by_row is not None:
            unstable = unstable & ~by_row.decided
        slope, band = relax.relu_line(low, high, unstable)
        half = upward(0.5 * band, 4)
        centre = slope * a.centre + half
        raw = slope * a.raw
        rounding = np.where(unstable, 8.0 * UNIT * (np.abs(centre) + raw + half) + underflow(self.symbols.count), 0.0)
        slack = np.where(unstable, upward(slope * a.slack + half + rounding, 6), slope * a.slack)
        both = interval.TABLE["relu"](node, a.range)
        rows = None
        if by_row is not None:
            slope = np.where(by_row.decided, by_row.on, slope)
            centre = np.where(by_row.decided, slope * a.centre, centre)
            extra, always = by_row.relu()
            rows = budget.add(self.symbols, budget.times(slope, a.rows), extra, node.shape)
            slack = np.where(by_row.decided, upward(slope * a.slack + always, 2), slack)
            raw = upward(slope * a.raw + self.symbols.top(extra) + always, 3)
        linear = self.symbols.times(slope, a.dense(), spare=a.free)
        reach = None if rows is not None else stretched(a.reach, slope)
        return Form(self.symbols, centre, linear, slack, both, raw, reach=reach, rows=rows)

    def _gate(self, node: Node, a: Form) -> Form:
        low, high = a.tighten().range.low, a.range.high
        on, off = (low >= 0, high < 0) if node.attribute else (low > 0, high <= 0)
        unstable = ~on & ~off
        if not unstable.any():
            return Form.constant(self.symbols, Interval.point(np.where(on, 1.0, 0.0)))
        by_row = budget.kinks(a, unstable, gate=True) if self.symbols.members else None
        if by_row is not None:
            unstable = unstable & ~by_row.decided
            on = np.where(by_row.decided, by_row.on > 0, on)
            off = np.where(by_row.decided, by_row.on == 0, off)
        symbols, own = self.symbols, np.full(a.shape, -1, dtype=np.intp)
        own[unstable] = symbols.fresh(int(unstable.sum()))
        weight = np.where(unstable, 0.5, 0.0)
        centre, slack = np.where(on, 1.0, np.where(off, 0.0, 0.5)), np.zeros(a.shape)
        linear, raw = None, weight.copy()
        if id(node) in self.sloped and self.slope_cap > 0:
            slope = relax.gate_line(low, high, unstable, self.slope_cap)
            centre = np.where(unstable, 0.5 + slope * a.centre, centre)
            linear = symbols.times(slope, a.dense(), spare=a.free)
            raw = upward(weight + slope * a.raw, 3)
            rounding = 8.0 * UNIT * (np.abs(centre) + raw) + underflow(symbols.count)
            slack = np.where(unstable, upward(slope * a.slack + rounding, 6), 0.0)
        # Never tighter than the interval: the affine range is at least [0, 1] where the gate is unstable.
        both = interval.TABLE["gate"](node, a.range)
        rows = None
        if by_row is not None:
            flips = by_row.flips()
            sloped = None if linear is None else budget.times(slope, a.rows)
            rows = budget.add(symbols, sloped, flips, node.shape)
            raw = upward(raw + symbols.top(flips), 2)
        return Form(symbols, centre, linear, slack, both, raw, own, weight, rows=rows, tight=True)

    # Products --------------------------------------------------------------------------------------------------------

    def _contract(self, node: Node, a: Form, b: Form) -> Form:
        spec = parse_spec(node.attribute)
        count = int(np.prod([spec_size(spec, letter, a, b) for letter in spec.letters if letter not in spec.out]))

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
            if self.symbols.members:
                second, rows = budget.second_order(spec, a, b, small)
                slack += second
                raw += small(a.distance(), b.distance())
            else:
                slack += small(a.distance(), b.distance())
        if self.symbols.members:
            rows = budget.contract(spec, a, b, rows, count)
        slack = upward(slack, 4 * count + 12) + underflow(count * (3 + self.symbols.count + self.symbols.members))
        linear, own, weight = self._generators(node, spec, a, b)
        product = interval.TABLE["contract"](node, a.range, b.range)
        centre, raw = small(a.centre, b.centre), upward(raw, 2 * count + 2)
        reach = self._reach(spec, a, b, own, weight)
        return Form(self.symbols, centre, linear, slack, product, raw, own, weight, reach=reach, rows=rows)

    def _reach(
        self, spec: Spec, a: Form, b: Form, own: Columns | None, weight: Array | None
    ) -> tuple[Array, Array] | None:
        """Ends of an element-wise product's generators from those of its one dense operand, without another pass over them."""
        if (
            not (spec.left == spec.right == spec.out and (a.linear is None) != (b.linear is None))
            or self.symbols.members
        ):
            return None
        dense, other = (a, b) if a.linear is not None else (b, a)
        if dense.reach is None or dense.own is not None:
            return None
        ends = stretched(dense.reach, other.centre)
        if ends is None or own is None or weight is None:
            return ends
        if not self.symbols.apart(own):
            return None
        size = np.abs(weight)
        return np.nextafter(ends[0] - size, -np.inf), np.nextafter(ends[1] + size, np.inf)

    def _generators(
        self, node: Node, spec: Spec, a: Form, b: Form
    ) -> tuple[Array | None, Columns | None, Array | None]:
        """`c₁G₂ + c₂G₁`, dense part and own symbols."""
        symbols = self.symbols
        if spec.left == spec.right == spec.out and (a.own is None or b.own is None):
            carrier, other = (a, b) if a.own is not None else (b, a)
            parts = (
                symbols.times(b.centre, a.linear, spare=a.free),
                symbols.times(a.centre, b.linear, spare=b.free),
            )
            linear = parts[0] if parts[1] is None else parts[1]
            if parts[0] is not None and parts[1] is not None:
                linear = symbols.plus(parts[0], parts[1], node.shape)
            return linear, carrier.own, None if carrier.weight is None else carrier.weight * other.centre
        columns = max((int(f.own.max(initial=-1)) + 1 for f in (a, b) if f.own is not None), default=0)
        linear = contract_linear(spec, b.centre, a.linear, spec.right, spec.left, symbols, columns)
        linear = contract_linear(spec, a.centre, b.linear, spec.left, spec.right, symbols, columns, linear)
        ia, ib, io = product_index(node.attribute, a.shape, b.shape)
        for carrier, ic, other, ix in ((a, ia, b, ib), (b, ib, a, ia)):
            if carrier.own is not None and carrier.weight is not None:
                values = carrier.weight.ravel()[ic] * other.centre.ravel()[ix]
                linear = self._scatter(linear, node.shape, io, carrier.own.ravel()[ic], values)
        return linear, None, None

    def _scatter(
        self, linear: Array | None, shape: tuple[int, ...], rows: Columns, columns: Columns, values: Array
    ) -> Array | None:
        """Add `values` at (element, symbol); `linear` is a temporary, negative symbols stand for none."""
        hit = np.flatnonzero((columns >= 0) & (values != 0.0))
        if not len(hit):
            return linear
        columns = columns[hit]
        if linear is None or int(columns.max()) >= linear.shape[-1] or not linear.flags.c_contiguous:
            linear = self.symbols.room(linear, shape, columns)
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


def spec_size(spec: Spec, letter: str, a: Form, b: Form) -> int:
    """Size of the axis named by a letter."""
    where = spec.left.find(letter)
    return a.shape[where] if where >= 0 else b.shape[spec.right.find(letter)]


def _contract_any(spec: Spec, matrix: Array, linear: Array, letters: str, of: str) -> Array:
    """`einsum` with generators, as one matrix product where no axis is shared and kept."""
    if any(c in letters and c in of and c in spec.out for c in spec.letters):
        return np.asarray(np.einsum(f"{letters},{of}Z->{spec.out}Z", matrix, linear))
    summed = [c for c in of if c in letters]
    axes = [letters.index(c) for c in summed], [of.index(c) for c in summed]
    result = np.tensordot(matrix, linear, axes=axes)
    have = [c for c in letters if c not in summed] + [c for c in of if c not in summed]
    return np.transpose(result, [*(have.index(c) for c in spec.out), len(have)])


def contract_linear(
    spec: Spec,
    matrix: Array,
    linear: Array | None,
    letters: str,
    of: str,
    symbols: Symbols,
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
        result = _contract_any(spec, matrix, linear, letters, of)
        return result if onto is None else symbols.plus(onto, result, result.shape[:-1])
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
        onto = symbols.room(onto, onto.shape[:-1], np.array([have - 1]))
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
