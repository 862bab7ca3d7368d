"""Formulas become rows of a program.

With `b` a binary that switches a formula on (`b = 1` enforces it, `b = 0` leaves it open), `[l, u]` the range of an expression:

- `e ≤ 0`: the row `e ≤ u·(1 − b)`; without a switch, `e ≤ 0`;
- `f & g`: both under the same switch; `f | g`: binaries `b_f`, `b_g` with `b_f + b_g ≥ b`;
- counting: for each formula a binary `c` with `c = 1 ⇒ f` and `c = 0 ⇒ ¬f` (closed), added up;
- a product of two linear expressions, each written as `middle + radius·e`, has one variable `q` for `e_a·e_b` with its McCormick
  rows and, if the builder may, the true product;
- an own integer in [l, u] is `l + Σ 2ᵏ·b_k ≤ u`, an own real number is `middle + radius·e`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from mibp_cert.logic.formulas import Comparison, Expression, Formula, Joined, Key, Truth
from mibp_cert.solvers.program import FREE, Affine, ProgramBuilder, with_columns

Linear = tuple[dict[int, float], float]
"""Coefficients of program variables, and a constant."""


@dataclass(frozen=True)
class Own:
    """A variable of the user's own: `real`, `integer`, `binary`, or `count` of formulas."""

    kind: str
    low: float
    high: float
    formulas: tuple[Formula, ...] = ()


class Compiler:
    """Writes formulas into one builder, over declared features and labels."""

    def __init__(self, builder: ProgramBuilder, x: Affine, y: Affine, places: dict[Key, int], own: list[Own]) -> None:
        self.builder, self.own = builder, own
        self.x, self.y, self.places = x, y, places
        """Affine expressions of the declared rows, and where each key is among them."""
        self._made: dict[int, Linear] = {}

    def require(self, formula: Formula, switch: int | None = None) -> None:
        """Enforce a formula, or enforce it where a binary is 1."""
        match formula:
            case Joined(every=True):
                for part in formula.parts:
                    self.require(part, switch)
            case Joined():
                choices = self.builder.add_variables(len(formula.parts), 0.0, 1.0, integer=True).tolist()
                for part, choice in zip(formula.parts, choices, strict=True):
                    self.require(part, choice)
                need: dict[int, float] = dict.fromkeys(choices, -1.0)
                if switch is None:
                    self._row((need, 1.0), None)
                else:
                    need[switch] = need.get(switch, 0.0) + 1.0
                    self._row((need, 0.0), None)
            case Comparison(relation="<=" | "<"):
                self._row(self.linear(formula.expression), switch)
            case Comparison(relation="=="):
                self._row(self.linear(formula.expression), switch)
                self._row(self.linear(-formula.expression), switch)
            case Comparison():
                return  # closed, `≠` forbids nothing
            case Truth():
                wanted = 1.0 - formula.expression if formula.wanted else formula.expression
                self._row(self.linear(wanted), switch)

    def linear(self, expression: Expression) -> Linear:
        """The expression over program variables; products get variables of their own."""
        total: dict[int, float] = {}
        constant = expression.constant
        pieces = [(value, self._variable(key)) for key, value in expression.terms.items()]
        pieces += [(factor, self._product(self.linear(a), self.linear(b))) for factor, a, b in expression.products]
        for value, (coefficients, base) in pieces:
            constant += value * base
            for variable, coefficient in coefficients.items():
                total[variable] = total.get(variable, 0.0) + value * coefficient
        return total, constant

    def _variable(self, key: Key) -> Linear:
        kind, number = key
        if kind == "v":
            if number not in self._made:
                self._made[number] = self._make(self.own[number])
            return self._made[number]
        affine, place = (self.x if kind == "x" else self.y), self.places[key]
        row = affine.linear[[place]]
        return dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)), float(affine.centre[place])

    def _make(self, own: Own) -> Linear:
        if own.kind == "real":
            (e,) = self.builder.add_variables(1).tolist()
            return {e: 0.5 * (own.high - own.low)}, 0.5 * (own.high + own.low)
        if own.kind == "count":
            flags = self.builder.add_variables(len(own.formulas), 0.0, 1.0, integer=True).tolist()
            for formula, flag in zip(own.formulas, flags, strict=True):
                self.require(formula, flag)
                (off,) = self.builder.add_variables(1, 0.0, 1.0, integer=True).tolist()
                self._row(({off: 1.0, flag: 1.0}, -1.0), None)  # off = 1 − flag
                self._row(({off: -1.0, flag: -1.0}, 1.0), None)
                self.require(formula.negated(), off)
            return dict.fromkeys(flags, 1.0), 0.0
        span = int(own.high - own.low)
        bits = self.builder.add_variables(max(1, span.bit_length()), 0.0, 1.0, integer=True).tolist()
        whole: Linear = {bit: float(2**k) for k, bit in enumerate(bits)}, own.low
        if 2 ** len(bits) - 1 > span:
            self._row((whole[0], own.low - own.high), None)
        return whole

    def range(self, value: Linear) -> tuple[float, float]:
        """Bounds of an expression from its variables' bounds, a little widened for rounding."""
        middle, reach = self.builder.middle, self.builder.reach
        centre = value[1] + sum(c * middle[v] for v, c in value[0].items())
        radius = sum(abs(c) * reach[v] for v, c in value[0].items())
        radius += 1e-12 * (abs(centre) + radius + abs(value[1]))
        return centre - radius, centre + radius

    def _product(self, a: Linear, b: Linear) -> Linear:
        """`a·b = a₀·b + b₀·a − a₀·b₀ + r_a·r_b·q` with `q = e_a·e_b`."""
        (var_a, mid_a, rad_a), (var_b, mid_b, rad_b) = self._deviation(a), self._deviation(b)
        (q,) = self.builder.add_variables(1).tolist()
        for s in (1.0, -1.0):
            self._row(({q: -1.0, var_a: s, var_b: s} if var_a != var_b else {q: -1.0, var_a: 2 * s}, -1.0), None)
            if var_a != var_b:
                self._row(({q: 1.0, var_a: -s, var_b: s}, -1.0), None)
        if self.builder.bilinear:
            one = np.array([q]), np.array([var_a]), np.array([var_b])
            self.builder.add_triples(*one)
        total: dict[int, float] = {q: rad_a * rad_b}
        for factor, (coefficients, _) in ((mid_a, b), (mid_b, a)):
            for variable, coefficient in coefficients.items():
                total[variable] = total.get(variable, 0.0) + factor * coefficient
        return total, mid_a * b[1] + mid_b * a[1] - mid_a * mid_b

    def _deviation(self, value: Linear) -> tuple[int, float, float]:
        """A variable `e ∈ [−1, 1]` with `value = middle + radius·e`."""
        low, high = self.range(value)
        middle, radius = 0.5 * (low + high), 0.5 * (high - low)
        (e,) = self.builder.add_variables(1).tolist()
        for sign in (1.0, -1.0):
            row = {v: sign * c for v, c in value[0].items()}
            row[e] = row.get(e, 0.0) - sign * radius
            self._row((row, sign * (value[1] - middle)), None)
        return e, middle, radius

    def _row(self, value: Linear, switch: int | None) -> None:
        """`value ≤ 0`, or `value ≤ u·(1 − switch)`."""
        coefficients, constant = dict(value[0]), value[1]
        if switch is not None:
            _, high = self.range(value)
            if high <= 0:
                return
            coefficients[switch] = coefficients.get(switch, 0.0) + high
            constant -= high
        if not coefficients:
            # A rule about constants alone: true, or impossible for every dataset.
            coefficients = {int(self.builder.add_variables(1)[0]): 0.0}
        variables = np.array(list(coefficients), dtype=np.intp)
        data = np.array(list(coefficients.values()))
        where = (np.zeros(len(variables), dtype=np.intp), variables)
        matrix = sparse.csr_matrix((data, where), shape=(1, self.builder.variables))
        self.builder.add_rows(matrix, -math.inf, -constant, FREE)


def picked(affine: Affine, elements: np.ndarray, columns: int) -> Affine:
    """Some elements of an affine expression."""
    return Affine(affine.centre[elements], with_columns(affine.linear, columns)[elements], affine.slack[elements])
