"""The encoder: a graph becomes a mixed-integer bilinear program, in deviation form.

It is one more interpretation of the graph. The value of a node is, element by element,

    value = centre + linear·v ± slack,     value ∈ [low, high]

an affine expression over the program's variables, with a rigorous slack, beside an interval (the pre-analysis: plain
interval arithmetic on the operands' ranges, intersected with the range of the affine expression). Variables are deviations
`e ∈ [−1, 1]` from a centre, scaled by a radius, or gates in {0, 1}.

*Products.* With `a = a₀ + r_a·e_a`, `b = b₀ + r_b·e_b` around the middle of their ranges:
`a·b = a₀·b + b₀·a − a₀·b₀ + r_a·r_b·q` with `q = e_a·e_b`, linear but for `q`. By size:

1. `Σ r_a·r_b` below `tolerance` times the first-order radius: goes into the slack, no variable at all;
2. else `q` becomes a variable with its McCormick rows `|e_a + e_b| − 1 ≤ q ≤ 1 − |e_a − e_b|`, exact when a factor is a gate;
3. and, if `bilinear` is asked for, with the true constraint `q = e_a·e_b` besides.

*Gates and relus*, on `z ∈ [l, u]`: stable ones are linear or constant; an unstable gate is a binary `g` with
`z ≤ u·g`, `z ≥ l·(1−g)`; an unstable relu is `y ≥ 0`, `y ≥ z`, `y ≤ u·g`, `y ≤ z − l·(1−g)` with the same `g`. Both sides
are allowed at the kink.

*Smooth functions.* One line with its band, `φ(z) = k·z + band`, where the band is below `tolerance` times the range of `φ(z)`;
else as many pieces as it takes, each a straight line with an error of its own, chosen by binaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from mibp_cert.engines import interval, relax
from mibp_cert.engines.rounding import Interval, gamma
from mibp_cert.graph import Graph, Node, Rule, Shape, interpret, product_index
from mibp_cert.graph.functions import SMOOTH
from mibp_cert.solvers.program import Affine, Array, Index, ProgramBuilder, with_columns

NONE = -1
LARGEST_PIECES = 32
"""Pieces of a smooth function at most."""


@dataclass(eq=False)
class Symbolic:
    """A node's value: affine expressions (flat), their ranges (shaped), and the variables made for them so far."""

    affine: Affine
    range: Interval
    size: Array
    """Per element, `|centre| + Σ|linear|·|v| + slack`: what rounding errors of the expression are relative to."""
    variable: Index
    """Per element, the variable that equals its normalised deviation (times `sign`), or −1."""
    sign: Array
    gate: Index
    """Per element, the binary `1[element > 0]`, or −1."""

    @property
    def low(self) -> Array:
        return self.range.low.ravel()

    @property
    def high(self) -> Array:
        return self.range.high.ravel()

    @property
    def middle(self) -> Array:
        return 0.5 * (self.low + self.high)

    @property
    def radius(self) -> Array:
        return 0.5 * (self.high - self.low)


class Encoder:
    """Interprets graphs over one program; see the module's text for the treatments."""

    def __init__(self, tolerance: float, *, bilinear: bool = False) -> None:
        self.builder, self.tolerance = ProgramBuilder(bilinear=bilinear), tolerance
        self.table: dict[str, Rule] = {
            "const": lambda node: self.box(node.attribute, node.attribute),
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

    def encode(self, graph: Graph, inputs: Mapping[str, Symbolic]) -> list[Symbolic]:
        """Symbolic value of every node; the rows collect in `builder`."""
        with np.errstate(all="ignore"):
            return interpret(graph, self.table, inputs, engine="mibp")

    # Values and the variables that stand for them -------------------------------------------------------------------------

    def declare(self, affine: Affine, low: Array, high: Array) -> Symbolic:
        """A value with known bounds (shaped), and no variables yet."""
        reach = np.abs(self.builder.middle) + self.builder.reach
        size: Array = np.abs(affine.centre) + abs(self._columns(affine.linear)) @ reach + affine.slack
        none = np.full(len(size), NONE, dtype=np.intp)
        return Symbolic(affine, Interval(low, high), size, none, np.ones(len(size)), none.copy())

    def box(self, low: Array, high: Array) -> Symbolic:
        """An input that ranges over a box, with one variable per element of positive width."""
        return self.declare(Affine.box(self.builder, low.ravel(), high.ravel()), low, high)

    def _columns(self, matrix: Any) -> Any:
        return with_columns(matrix, self.builder.variables)

    def deviation(self, value: Symbolic, elements: Index) -> tuple[Index, Array]:
        """Variables and signs with `element = middle + radius·sign·e`, made on demand and kept.

        An element that is already a multiple of one variable uses that one; any other gets a variable `e ∈ [−1, 1]` with the
        row `|middle + radius·e − centre − linear·v| ≤ slack`.
        """
        fresh = np.unique(elements[value.variable[elements] == NONE])
        if len(fresh):
            self._reuse_single_variables(value, fresh)
            fresh = fresh[value.variable[fresh] == NONE]
        if len(fresh):
            variables = self.builder.add_variables(len(fresh))
            radius, affine = value.radius[fresh], value.affine
            own = self.builder.matrix(np.arange(len(fresh)), variables, radius)
            offset = affine.centre[fresh] - value.middle[fresh]
            rows = own - self._columns(affine.linear)[fresh]
            self.builder.add_rows(rows, offset - affine.slack[fresh], offset + affine.slack[fresh], variables)
            value.variable[fresh] = variables
        return value.variable[elements], value.sign[elements]

    def _reuse_single_variables(self, value: Symbolic, elements: Index) -> None:
        linear = value.affine.linear
        count = np.diff(linear.indptr)[elements]
        # Slack that is mere rounding is covered by the tolerance that proven bounds are moved outward by.
        single = elements[(count == 1) & (value.affine.slack[elements] <= 1e-9 * value.radius[elements])]
        variables = linear.indices[linear.indptr[single]].astype(np.intp)
        coefficients = linear.data[linear.indptr[single]]
        middle = value.affine.centre[single] + coefficients * self.builder.middle[variables]
        radius = np.abs(coefficients) * self.builder.reach[variables]
        # Only if the range is the variable's own; else a new variable carries the tighter range.
        off = np.maximum(np.abs(middle - value.middle[single]), np.abs(radius - value.radius[single]))
        same = off <= 1e-9 * radius
        value.variable[single[same]] = variables[same]
        value.sign[single[same]] = np.sign(coefficients[same])

    def _argument(self, z: Symbolic, elements: Index) -> tuple[Index, Array, Array]:
        """Variables `v`, slopes and constants with `z = constant + slope·v`; a variable may be a gate, `e = 2v − 1`."""
        variables, sign = self.deviation(z, elements)
        slope, shift = self.unit(variables)
        reach = sign * z.radius[elements]
        return variables, reach * slope, z.middle[elements] + reach * shift

    def unit(self, variables: Index) -> tuple[Array, Array]:
        """Slope and shift of the normalised deviation `e ∈ [−1, 1]`: the variable itself, or `2g − 1` for a gate."""
        gate = self.builder.integer[variables]
        return np.where(gate, 2.0, 1.0), np.where(gate, -1.0, 0.0)

    def _gates(self, z: Symbolic, elements: Index) -> Index:
        """Binaries `g = 1[z > 0]` of the unstable elements: `z ≤ u·g`, `z ≥ l·(1 − g)`."""
        fresh = elements[z.gate[elements] == NONE]
        if len(fresh):
            e, slope, middle = self._argument(z, fresh)
            g = self.builder.add_variables(len(fresh), 0.0, 1.0, integer=True)
            low, high = z.low[fresh], z.high[fresh]
            self._rows((e, slope), (g, -high), upper=-middle, owner=g)
            self._rows((e, slope), (g, low), lower=low - middle, owner=g)
            z.gate[fresh] = g
        return z.gate[elements]

    def _rows(
        self,
        *terms: tuple[Index, Array | float],
        owner: Index,
        lower: Array | float = -np.inf,
        upper: Array | float = np.inf,
    ) -> None:
        """One row per entry of the variable arrays: `lower ≤ Σ coefficient·variable ≤ upper`."""
        count = len(owner)
        rows = np.concatenate([np.arange(count)] * len(terms))
        columns = np.concatenate([variables for variables, _ in terms])
        data = np.concatenate([np.broadcast_to(coefficient, (count,)) for _, coefficient in terms])
        self.builder.add_rows(self.builder.matrix(rows, columns, data, count), lower, upper, owner)

    # Linear operations -----------------------------------------------------------------------------------------------

    def _finish(self, node: Node, affine: Affine, *operands: Symbolic) -> Symbolic:
        """Attach the range: interval arithmetic on the operands' ranges, intersected with the affine range."""
        plain = interval.TABLE[node.op](node, *(operand.range for operand in operands))
        low, high = affine.range(self.builder)
        both = plain.meet(Interval(low.reshape(node.shape), high.reshape(node.shape)))
        return self.declare(affine, both.low, both.high)

    def _add(self, node: Node, a: Symbolic, b: Symbolic) -> Symbolic:
        ia, ib = (np.broadcast_to(_numbers(operand.range.low.shape), node.shape).ravel() for operand in (a, b))
        one, two = a.affine[ia], b.affine[ib]
        slack = one.slack + two.slack + rounding(4) * (a.size[ia] + b.size[ib])
        linear = self._columns(one.linear) + self._columns(two.linear)
        return self._finish(node, Affine(one.centre + two.centre, linear, slack), a, b)

    def _scale(self, node: Node, a: Symbolic) -> Symbolic:
        factor, size = float(node.attribute.value), float(node.attribute.size)
        slack = abs(factor) * a.affine.slack + rounding(8) * size * a.size
        return self._finish(node, Affine(factor * a.affine.centre, factor * a.affine.linear, slack), a)

    def _sum(self, node: Node, a: Symbolic) -> Symbolic:
        totals = np.expand_dims(_numbers(node.shape), node.attribute)
        ends = np.broadcast_to(totals, a.range.low.shape).ravel()
        add = sparse.csr_matrix((np.ones(ends.size), (ends, np.arange(ends.size))))
        slack = add @ (a.affine.slack + rounding(ends.size) * a.size)
        return self._finish(node, Affine(add @ a.affine.centre, add @ a.affine.linear, slack), a)

    def _gather(self, node: Node, a: Symbolic) -> Symbolic:
        index = node.attribute.of(_numbers(a.range.low.shape) + 1).ravel() - 1  # −1 outside, where all is 0
        inside = index >= 0
        keep = inside.astype(np.float64)
        both = interval.TABLE["gather"](node, a.range)
        variable, gate = np.where(inside, a.variable[index], NONE), np.where(inside, a.gate[index], NONE)
        return Symbolic(a.affine[index].times(keep), both, keep * a.size[index], variable, a.sign[index], gate)

    def _reshape(self, node: Node, a: Symbolic) -> Symbolic:
        # The same elements: variables made for one are the other's.
        return replace(a, range=interval.TABLE["reshape"](node, a.range))

    # Products --------------------------------------------------------------------------------------------------------

    def _contract(self, node: Node, a: Symbolic, b: Symbolic) -> Symbolic:
        ia, ib, io = product_index(node.attribute, a.range.low.shape, b.range.low.shape)
        size = int(np.prod(node.shape))
        mid_a, mid_b, rad_a, rad_b = a.middle, b.middle, a.radius, b.radius
        live = ((mid_a != 0) | (rad_a > 0))[ia] & ((mid_b != 0) | (rad_b > 0))[ib]
        ia, ib, io = ia[live], ib[live], io[live]
        to_a = sparse.csr_matrix((mid_b[ib], (io, ia)), shape=(size, len(mid_a)))
        to_b = sparse.csr_matrix((mid_a[ia], (io, ib)), shape=(size, len(mid_b)))
        linear = to_a @ self._columns(a.affine.linear) + to_b @ self._columns(b.affine.linear)
        constant = np.bincount(io, mid_a[ia] * mid_b[ib], minlength=size)
        centre = to_a @ a.affine.centre + to_b @ b.affine.centre - constant
        slack = abs(to_a) @ a.affine.slack + abs(to_b) @ b.affine.slack
        terms = int(np.bincount(io, minlength=1).max()) + 8
        slack += rounding(terms) * np.bincount(io, (a.size + rad_a)[ia] * (b.size + rad_b)[ib], minlength=size)
        second = rad_a[ia] * rad_b[ib]
        if second.any():
            # A sum of terms stays below the tolerance when each stays below its share.
            first_order = abs(linear) @ self.builder.reach + slack
            share = self.tolerance * first_order / np.maximum(np.bincount(io, second > 0, minlength=size), 1)
            # Widths that are nothing but rounding deserve no variable either.
            noise = rounding(8) * (a.size + rad_a)[ia] * (b.size + rad_b)[ib]
            small = second <= np.maximum(share[io], noise)
            slack = slack + np.bincount(io, np.where(small, second, 0.0), minlength=size)
            big = np.flatnonzero(~small)
            if len(big):
                q, sign = self._product_variables(a, ia[big], b, ib[big])
                linear = self._columns(linear) + self.builder.matrix(io[big], q, sign * second[big], size)
        return self._finish(node, Affine(centre, linear, slack), a, b)

    def _product_variables(self, a: Symbolic, ia: Index, b: Symbolic, ib: Index) -> tuple[Index, Array]:
        """Variables `q` and signs `σ` with `σ·q = e_a·e_b` for the listed pairs of elements."""
        var_a, sign_a = self.deviation(a, ia)
        var_b, sign_b = self.deviation(b, ib)
        q = self.builder.add_variables(len(ia))
        (slope_a, shift_a), (slope_b, shift_b) = self.unit(var_a), self.unit(var_b)
        for s in (1.0, -1.0):  # q ≥ s·e_a + s·e_b − 1
            terms = (q, 1.0), (var_a, -s * slope_a), (var_b, -s * slope_b)
            self._rows(*terms, lower=s * (shift_a + shift_b) - 1.0, owner=q)
        for s in (1.0, -1.0):  # q ≤ s·e_a − s·e_b + 1
            terms = (q, 1.0), (var_a, -s * slope_a), (var_b, s * slope_b)
            self._rows(*terms, upper=s * (shift_a - shift_b) + 1.0, owner=q)
        if self.builder.bilinear:
            true = ~(self.builder.integer[var_a] | self.builder.integer[var_b])
            self.builder.add_triples(q[true], var_a[true], var_b[true])
        return q, sign_a * sign_b

    # Kinks -----------------------------------------------------------------------------------------------------------

    def _relu(self, node: Node, z: Symbolic) -> Symbolic:
        on, off = z.low >= 0, z.high <= 0
        kink = np.flatnonzero(~on & ~off)
        affine = z.affine.times(on.astype(np.float64))
        if len(kink):
            g = self._gates(z, kink)
            e, slope, middle = self._argument(z, kink)
            low, high = z.low[kink], z.high[kink]
            y = self.builder.add_variables(len(kink))  # relu = (u/2)(1 + y)
            half = 0.5 * high
            self._rows((y, half), (e, -slope), lower=middle - half, owner=y)
            self._rows((y, half), (e, -slope), (g, -low), upper=middle - half - low, owner=y)
            self._rows((y, half), (g, -high), upper=-half, owner=y)
            affine.centre[kink] = half
            linear = self._columns(affine.linear) + self.builder.matrix(kink, y, half, len(on))
            affine = replace(affine, linear=linear)
        return self._finish(node, affine, z)

    def _gate(self, node: Node, z: Symbolic) -> Symbolic:
        on, off = (z.low >= 0, z.high < 0) if node.attribute else (z.low > 0, z.high <= 0)
        kink = np.flatnonzero(~on & ~off)
        centre = np.where(on, 1.0, 0.0)
        g = self._gates(z, kink)
        linear = self.builder.matrix(kink, g, 1.0, len(centre))
        return self._finish(node, Affine(centre, linear, np.zeros(len(centre))), z)

    # Smooth functions ------------------------------------------------------------------------------------------------

    def _smooth(self, node: Node, z: Symbolic) -> Symbolic:
        line = relax.smooth_line(node.attribute, z.low, z.high)
        bottom, top, sloped = line.bottom, line.top, z.affine.times(line.slope)
        plain = interval.TABLE["smooth"](node, z.range)
        middle = np.where(np.isfinite(top - bottom), 0.5 * (bottom + top), 0.0)
        half = np.nextafter(np.maximum(top - middle, middle - bottom) * (1.0 + rounding(2)), np.inf)
        slack = sloped.slack + half + rounding(8) * (np.abs(line.slope) * z.size + np.abs(middle))
        affine = Affine(sloped.centre + middle, sloped.linear, slack)
        # One line leaves `half`, m pieces leave `half/m²`: as many as the tolerance asks for.
        asked = self.tolerance * 0.5 * (plain.high - plain.low).ravel()
        with np.errstate(all="ignore"):
            pieces = np.ceil(np.sqrt(half / asked))
        pieces = np.where(np.isfinite(pieces) & (z.radius > 0), np.clip(pieces, 1, LARGEST_PIECES), 1).astype(np.intp)
        for count in np.unique(pieces[pieces > 1]).tolist():
            chosen = np.flatnonzero(pieces == count)
            own, values, error = self._piecewise(node.attribute, z, chosen, count)
            rises = np.diff(values, axis=1)
            affine = affine.times(np.where(pieces == count, 0.0, 1.0))
            affine.centre[chosen], affine.slack[chosen] = values[:, 0] + 0.5 * rises.sum(axis=1), error
            parts = self.builder.matrix(np.repeat(chosen, count), own.ravel(), 0.5 * rises.ravel(), len(pieces))
            affine = replace(affine, linear=self._columns(affine.linear) + parts)
        return self._finish(node, affine, z)

    def _piecewise(self, name: str, z: Symbolic, elements: Index, count: int) -> tuple[Index, Array, Array]:
        """Variables `e` (elements × pieces), values at the `count + 1` points, and what the straight lines between them miss.

        With `w_j = (1 + e_j)/2`: `z = x₀ + Σ w_j·(x_j − x_{j−1})`, and a piece is begun only when the one before is full, by
        binaries `w_{j+1} ≤ b_j ≤ w_j`. Then `φ(z) = φ(x₀) + Σ w_j·(φ(x_j) − φ(x_{j−1}))` but for the lines' error.
        """
        low, high = z.low[elements], z.high[elements]
        points = low[:, None] + (high - low)[:, None] * (np.arange(count + 1) / count)
        points[:, 0], points[:, -1] = low, high
        function, steps = SMOOTH[name], np.diff(points, axis=1)
        values, gap = function.value(points), steps.max(axis=1) * (1.0 + rounding(4))
        error = gap * gap / 8.0 * function.curvature(low, high) * (1.0 + rounding(4))
        error = error + relax.margin(function, points, values).max(axis=1)
        error = error + rounding(4 * count + 8) * np.abs(values).max(axis=1)
        n = len(elements)
        e = self.builder.add_variables(n * count).reshape(n, count)
        variables, slope, middle = self._argument(z, elements)
        terms: list[tuple[Index, Array | float]] = [(e[:, j], 0.5 * steps[:, j]) for j in range(count)]
        constant = points[:, 0] + 0.5 * steps.sum(axis=1)
        # Rounding of the points and of this row, as an allowance in the row itself.
        slip = rounding(4 * count) * np.maximum(np.abs(low), np.abs(high))
        ends = {"lower": middle - constant - slip, "upper": middle - constant + slip}
        self._rows(*terms, (variables, -slope), owner=e[:, 0], **ends)
        for j in range(count - 1):
            b = self.builder.add_variables(n, 0.0, 1.0, integer=True)
            self._rows((e[:, j + 1], 0.5), (b, -1.0), upper=-0.5, owner=e[:, j + 1])
            self._rows((b, 1.0), (e[:, j], -0.5), upper=0.5, owner=b)
        # What the allowance moves in `z`, the function moves at most by its largest slope.
        steepest = np.abs(np.diff(values, axis=1) / np.where(steps > 0, steps, 1.0)).max(axis=1)
        return e, values, error + slip * (steepest + gap * function.curvature(low, high))


def _numbers(shape: Shape) -> Index:
    """The flat number of every element."""
    return np.arange(int(np.prod(shape)), dtype=np.intp).reshape(shape)


def rounding(terms: int) -> float:
    """Relative error of a sum of `terms` products here, and once more in a training run that is to be enclosed."""
    return 2.0 * gamma(terms + 8)
