"""Values of the encoder: affine expressions over a program's variables, and the variables that stand for them on demand.

Variables are deviations `e ∈ [−1, 1]` from a centre, scaled by a radius, or gates in {0, 1}. An element of a value gets one only
where a product or a kink asks for it, and keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mibp_cert.engines.rounding import Interval, gamma
from mibp_cert.solvers.program import Affine, Array, Index, ProgramBuilder, with_columns

NONE = -1


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


class Workspace:
    """One program under construction, and the variables made for values in it."""

    def __init__(self, *, bilinear: bool = False) -> None:
        self.builder = ProgramBuilder()
        self.builder.bilinear = bilinear

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


def rounding(terms: int) -> float:
    """Relative error of a sum of `terms` products here, and once more in a training run that is to be enclosed."""
    return 2.0 * gamma(terms + 8)
