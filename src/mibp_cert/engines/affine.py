"""Rules for affine forms: one function per graph operation.

- linear maps act on centre, generators and slack (slack with absolute values);
- product: `c₁c₂`, `c₁G₂ + c₂G₁`, slack `|c₁|r₂ + |c₂|r₁ + rad₁·rad₂`, contracted like the product itself, where `rad` is the
  largest distance from the centre within the intersected range (a gate's is ½);
- relu, unstable on `[l, u]`: slope `k = u/(u−l)`, and `relu(x) − kx` lies in `[0, max(−kl, u−ku)]`;
- gate `1[a > 0]`, unstable on `[l, u]`: `½ + k·a + ½ε_new` for `0 ≤ k ≤ min(1/u, −1/l)`: one new symbol for each gate, the
  same one wherever the gate is used.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.engines import interval
from mibp_cert.engines.forms import Columns, Form, Symbols, add_linear, underflow, upward, widened
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
            "step": self._step,
            "sum": self._sum,
            "gather": self._gather,
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
        linear = add_linear(a.dense(), b.dense(), node.shape)
        both = interval.TABLE["add"](node, a.range, b.range)
        return Form(
            self.symbols, centre, linear, np.broadcast_to(slack, node.shape), both, np.broadcast_to(raw, node.shape)
        )

    def _scale(self, node: Node, a: Form) -> Form:
        factor, exact = float(node.attribute), abs(node.attribute) == 1
        centre, raw, slack = factor * a.centre, abs(factor) * a.raw, abs(factor) * a.slack
        if not exact:
            raw = upward(raw, 2)
            slack = upward(slack + 8.0 * UNIT * (np.abs(centre) + raw + slack), 6) + underflow(2 + self.symbols.count)
        linear = None if a.linear is None else factor * a.linear
        weight = None if a.weight is None else factor * a.weight
        scaled = interval.TABLE["scale"](node, a.range)
        return Form(self.symbols, centre, linear, slack, scaled, raw, a.own, weight)

    def _sum(self, node: Node, a: Form) -> Form:
        axes = node.attribute
        count = int(np.prod([a.shape[axis] for axis in axes]))
        linear = a.dense()
        total = None if linear is None else linear.sum(axis=tuple(axis - 1 for axis in axes))
        slack = upward(a.slack.sum(axis=axes) + 2.0 * gamma(count + 2) * a.bound.sum(axis=axes), count + 4)
        raw = upward(a.raw.sum(axis=axes), count)
        return Form(self.symbols, a.centre.sum(axis=axes), total, slack, interval.TABLE["sum"](node, a.range), raw)

    def _gather(self, node: Node, a: Form) -> Form:
        rows = node.attribute
        return Form(
            self.symbols,
            a.centre[rows],
            None if a.linear is None else a.linear[rows],
            a.slack[rows],
            a.range[rows],
            a.raw[rows],
            None if a.own is None else a.own[rows],
            None if a.weight is None else a.weight[rows],
        )

    def _relu(self, node: Node, a: Form) -> Form:
        low, high = a.tighten().range.low, a.range.high
        unstable = (low < 0) & (high > 0)
        width = np.where(unstable, high - low, 1.0)
        slope = np.where(unstable, np.minimum(high / width, 1.0), np.where(low >= 0, 1.0, 0.0))
        # relu(x) − slope·x is convex: zero at 0, largest at an end.
        band = np.where(unstable, np.maximum(-slope * low, high - slope * high), 0.0)
        half = upward(0.5 * band, 4)
        centre = slope * a.centre + half
        raw = slope * a.raw
        rounding = np.where(unstable, 8.0 * UNIT * (np.abs(centre) + raw + half) + underflow(self.symbols.count), 0.0)
        slack = np.where(unstable, upward(slope * a.slack + half + rounding, 6), slope * a.slack)
        linear = a.dense()
        linear = None if linear is None else slope[..., None] * linear
        reach = None if a.reach is None else (upward(slope * -a.reach[0], 1), upward(slope * a.reach[1], 1))
        out = Form(self.symbols, centre, linear, slack, interval.TABLE["relu"](node, a.range), raw)
        out.reach = None if reach is None else (-reach[0], reach[1])
        return out

    def _step(self, node: Node, a: Form) -> Form:
        low, high = a.tighten().range.low, a.range.high
        on, off = (low >= 0, high < 0) if node.attribute else (low > 0, high <= 0)
        unstable = ~on & ~off
        if not unstable.any():
            return Form.constant(self.symbols, Interval.point(np.where(on, 1.0, 0.0)))
        symbols, own = self.symbols, np.full(a.shape, -1, dtype=np.intp)
        own[unstable] = symbols.fresh(int(unstable.sum()))
        weight = np.where(unstable, 0.5, 0.0)
        centre, slack = np.where(on, 1.0, np.where(off, 0.0, 0.5)), np.zeros(a.shape)
        linear, raw = None, weight.copy()
        if id(node) in self.sloped and self.slope_cap > 0:
            largest = np.maximum(np.where(unstable, np.maximum(high, -low), 1.0), 1e-300)
            slope = np.where(unstable, np.minimum((1.0 - 8.0 * UNIT) / largest, self.slope_cap), 0.0)
            centre = np.where(unstable, 0.5 + slope * a.centre, centre)
            generators = a.dense()
            linear = None if generators is None else slope[..., None] * generators
            raw = upward(weight + slope * a.raw, 3)
            rounding = 8.0 * UNIT * (np.abs(centre) + raw) + underflow(symbols.count)
            slack = np.where(unstable, upward(slope * a.slack + rounding, 6), 0.0)
        both = interval.TABLE["step"](node, a.range)
        return Form(symbols, centre, linear, slack, both, raw, own, weight)

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
        if not (a.exact or b.exact):
            slack += small(a.distance(), b.distance())
        slack = upward(slack, 4 * count + 12) + underflow(count * (3 + self.symbols.count))
        linear, own, weight = self._generators(node, spec, a, b)
        product = interval.TABLE["contract"](node, a.range, b.range)
        return Form(
            self.symbols, small(a.centre, b.centre), linear, slack, product, upward(raw, 2 * count + 2), own, weight
        )

    def _generators(
        self, node: Node, spec: Spec, a: Form, b: Form
    ) -> tuple[Array | None, Columns | None, Array | None]:
        """`c₁G₂ + c₂G₁`, dense part and own symbols."""
        if spec.left == spec.right == spec.out and (a.own is None or b.own is None):
            carrier, other = (a, b) if a.own is not None else (b, a)
            linear = add_linear(
                None if a.linear is None else a.linear * b.centre[..., None],
                None if b.linear is None else b.linear * a.centre[..., None],
                node.shape,
                reuse=True,
            )
            return linear, carrier.own, None if carrier.weight is None else carrier.weight * other.centre
        parts = [
            None if b.linear is None else contract_linear(spec, a.centre, b.linear, spec.left, spec.right),
            None if a.linear is None else contract_linear(spec, b.centre, a.linear, spec.right, spec.left),
        ]
        linear = add_linear(parts[0], parts[1], node.shape, reuse=True)
        ia, ib, io = product_index(node.attribute, a.shape, b.shape)
        for carrier, ic, other, ix in ((a, ia, b, ib), (b, ib, a, ia)):
            if carrier.own is None or carrier.weight is None:
                continue
            columns = carrier.own.ravel()[ic]
            values = carrier.weight.ravel()[ic] * other.centre.ravel()[ix]
            hit = np.flatnonzero((columns >= 0) & (values != 0.0))
            if not len(hit):
                continue
            needed = int(columns[hit].max()) + 1
            have = 0 if linear is None else linear.shape[-1]
            if linear is None or needed > have or not linear.flags.writeable or not linear.flags.c_contiguous:
                linear = widened(linear, node.shape, max(needed, have))
            np.add.at(linear.reshape(-1, linear.shape[-1]), (io[hit], columns[hit]), values[hit])
        return linear, None, None


def spec_size(spec: Spec, letter: str, a: Form, b: Form) -> int:
    """Size of the axis named by a letter."""
    where = spec.left.find(letter)
    return a.shape[where] if where >= 0 else b.shape[spec.right.find(letter)]


def contract_linear(spec: Spec, matrix: Array, linear: Array, letters: str, of: str) -> Array:
    """`einsum` of a small matrix (axes `letters`) with generators (axes `of` and a last one for symbols), by matrix products.

    The result's axes are those of the output, then the symbols.
    """
    columns = linear.shape[-1]
    shared = [c for c in of if c in letters]
    summed = [c for c in shared if c not in spec.out]
    if len(shared) == len(summed) == 1 and len(letters) == len(of) == 2:
        k = summed[0]
        left = matrix if letters[1] == k else matrix.T
        free = letters[0] if letters[1] == k else letters[1]
        if of[0] == k:
            out = (left @ linear.reshape(linear.shape[0], -1)).reshape(left.shape[0], linear.shape[1], columns)
            order = free + of[1]
        elif linear.shape[0] <= left.shape[0]:
            moved = np.ascontiguousarray(linear.transpose(1, 0, 2)).reshape(linear.shape[1], -1)
            out = (left @ moved).reshape(left.shape[0], linear.shape[0], columns)
            order = free + of[0]
        else:
            out = left @ linear
            order = of[0] + free
        return out if order == spec.out else out.transpose(1, 0, 2)
    result: Array = np.einsum(f"{letters},{of}Z->{spec.out}Z", matrix, linear)
    return result
