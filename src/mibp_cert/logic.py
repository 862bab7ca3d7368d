"""Formulas over unknown numbers (cells, labels, own variables), and how they become rows of a program; used by rules and by
conditions on models.

An expression is `constant + Σ coefficient·variable + Σ expression·expression`; a formula is a comparison of expressions, a
statement about a category or a label, or `&`, `|`, `~`, `implies` of formulas. A set of datasets is closed: there
`a < b` allows what `a ≤ b` does, and `a ≠ b` forbids nothing (both sides of a kink are always allowed, never excluded). Proofs
about models (`questions.conditions`) keep the difference.

In the program, with `b` a binary that switches a formula on (`b = 1` enforces it, `b = 0` leaves it open), and `[l, u]` the range
of an expression:

- `e ≤ 0`: the row `e ≤ u·(1 − b)`; without a switch, `e ≤ 0`;
- `f & g`: both under the same switch; `f | g`: binaries `b_f`, `b_g` with `b_f + b_g ≥ b`;
- counting: for each formula a binary `c` with `c = 1 ⇒ f` and `c = 0 ⇒ ¬f` (closed), added up;
- a product of two linear expressions, each written as `middle + radius·e`, has one variable `q` for `e_a·e_b` with its McCormick
  rows and, if the builder may, the true product;
- an own integer in [l, u] is `l + Σ 2ᵏ·b_k ≤ u`, an own real number is `middle + radius·e`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from mibp_cert.errors import UserError
from mibp_cert.solvers.program import FREE, Affine, ProgramBuilder, with_columns

Key = tuple[str, int]
"""`("x", flat feature)`, `("y", flat label entry)` or `("v", own variable)`."""
Number = float | Fraction


@dataclass(frozen=True, eq=False)
class Expression:
    """See the module's text; numbers are kept as fractions, so that no arithmetic with expressions rounds."""

    terms: Mapping[Key, Number]
    constant: Number = 0.0
    products: tuple[tuple[Expression, Expression], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", {key: Fraction(value) for key, value in self.terms.items()})
        object.__setattr__(self, "constant", Fraction(self.constant))

    @classmethod
    def of(cls, value: Any) -> Expression:
        """An expression as it is, or a number as one."""
        if isinstance(value, Expression):
            return value
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise UserError(f"{value!r} is neither a number nor an expression of the rules.") from None
        if not math.isfinite(number):
            raise UserError(f"A rule needs finite numbers, got {number}.")
        return cls({}, number)

    def variables(self) -> Iterator[Key]:
        """All variables that it speaks of."""
        yield from self.terms
        for pair in self.products:
            for factor in pair:
                yield from factor.variables()

    def _scaled(self, factor: Number) -> Expression:
        products = tuple((a._scaled(factor), b) for a, b in self.products)
        return Expression({key: factor * value for key, value in self.terms.items()}, factor * self.constant, products)

    def __neg__(self) -> Expression:
        return self._scaled(Fraction(-1))

    def __add__(self, other: Any) -> Expression:
        b = Expression.of(other)
        terms = dict(self.terms)
        for key, value in b.terms.items():
            terms[key] = terms.get(key, 0) + value
        return Expression(terms, self.constant + b.constant, self.products + b.products)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Expression:
        return self + (-Expression.of(other))

    def __rsub__(self, other: Any) -> Expression:
        return Expression.of(other) + (-self)

    def __mul__(self, other: Any) -> Expression:
        b = Expression.of(other)
        if not (b.terms or b.products):
            return self._scaled(b.constant)
        if not (self.terms or self.products):
            return b._scaled(self.constant)
        if self.products or b.products:
            raise UserError(
                "The rules may multiply two linear expressions, not more; name a product as an own variable."
            )
        return Expression({}, 0.0, ((self, b),))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Expression:
        if isinstance(other, Expression) or float(other) == 0.0:
            raise UserError("The rules may divide by a number other than 0 only.")
        return self._scaled(1 / Fraction(float(other)))

    def __le__(self, other: Any) -> Formula:
        return Comparison(self - other, "<=")

    def __ge__(self, other: Any) -> Formula:
        return Comparison(Expression.of(other) - self, "<=")

    def __lt__(self, other: Any) -> Formula:
        return Comparison(self - other, "<")

    def __gt__(self, other: Any) -> Formula:
        return Comparison(Expression.of(other) - self, "<")

    def __eq__(self, other: object) -> Any:
        return Comparison(self - other, "==")

    def __ne__(self, other: object) -> Any:
        return Comparison(self - other, "!=")


class Formula(ABC):
    """A condition on a dataset and own variables."""

    @abstractmethod
    def negated(self) -> Formula:
        """The opposite."""

    def atoms(self) -> Iterator[Atom]:
        """The single statements in it, from left to right."""
        assert isinstance(self, Comparison | Truth)
        yield self

    def __invert__(self) -> Formula:
        return self.negated()

    def __and__(self, other: Formula) -> Formula:
        return Joined((self, _formula(other)), every=True)

    def __or__(self, other: Formula) -> Formula:
        return Joined((self, _formula(other)), every=False)

    def implies(self, other: Formula) -> Formula:
        """Where this holds, so does the other."""
        return self.negated() | other

    def __bool__(self) -> bool:
        raise UserError(
            "A rule has no truth value of its own: combine rules with &, | and ~, not with and, or and not, and write a < x < b "
            "as two of them."
        )


def _formula(value: Any) -> Formula:
    if not isinstance(value, Formula):
        raise UserError(f"{value!r} is not a rule; rules are comparisons such as a <= b, combined with &, | and ~.")
    return value


@dataclass(frozen=True, eq=False)
class Comparison(Formula):
    """`expression ≤ 0`, `< 0`, `= 0` or `≠ 0` (`relation`: `<=`, `<`, `==`, `!=`)."""

    expression: Expression
    relation: str

    def negated(self) -> Formula:
        if self.relation in ("<=", "<"):
            return Comparison(-self.expression, "<" if self.relation == "<=" else "<=")
        return Comparison(self.expression, "!=" if self.relation == "==" else "==")


@dataclass(frozen=True, eq=False)
class Truth(Formula):
    """A 0/1 expression is 1 (`wanted`) or 0: a category, a label, an own binary."""

    expression: Expression
    wanted: bool = True

    def negated(self) -> Formula:
        return Truth(self.expression, not self.wanted)


@dataclass(frozen=True, eq=False)
class Joined(Formula):
    """All of them (`every`), or at least one."""

    parts: tuple[Formula, ...]
    every: bool

    def negated(self) -> Formula:
        return Joined(tuple(part.negated() for part in self.parts), not self.every)

    def atoms(self) -> Iterator[Atom]:
        for part in self.parts:
            yield from part.atoms()


Atom = Comparison | Truth


@dataclass(frozen=True, eq=False)
class Linear:
    """`constant + Σ coefficient·variable ± slack` over variables of a program."""

    coefficients: dict[int, float]
    constant: float = 0.0
    slack: float = 0.0

    @classmethod
    def of(cls, affine: Affine, place: int) -> Linear:
        """One element of an affine expression."""
        row = affine.linear[[place]]
        coefficients = dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))
        return cls(coefficients, float(affine.centre[place]), float(affine.slack[place]))

    def plus(self, factor: float, other: Linear) -> Linear:
        """`self + factor·other`."""
        total = dict(self.coefficients)
        for variable, coefficient in other.coefficients.items():
            total[variable] = total.get(variable, 0.0) + factor * coefficient
        return Linear(total, self.constant + factor * other.constant, self.slack + abs(factor) * other.slack)


@dataclass(frozen=True)
class Own:
    """A variable of the user's own: `real`, `integer`, `binary`, or `count` of formulas."""

    kind: str
    low: float
    high: float
    formulas: tuple[Formula, ...] = ()


class Compiler:
    """Writes formulas into one builder, over what is declared in it (`known`) and own variables, which are made when needed."""

    def __init__(self, builder: ProgramBuilder, known: dict[Key, Linear], own: Sequence[Own] = ()) -> None:
        self.builder, self.known, self.own = builder, known, own

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
                need = Linear(dict.fromkeys(choices, -1.0), 1.0)
                self._row(need if switch is None else need.plus(1.0, Linear({switch: 1.0}, -1.0)))
            case Comparison(e):
                # Closed: `<` is `≤`, and `≠` forbids nothing.
                for nonpositive in {"==": (e, -e), "!=": ()}.get(formula.relation, (e,)):
                    self._row(self.linear(nonpositive), switch)
            case Truth():
                wanted = 1.0 - formula.expression if formula.wanted else formula.expression
                self._row(self.linear(wanted), switch)

    def linear(self, expression: Expression) -> Linear:
        """The expression over program variables; products get variables of their own. What a number loses as a float is slack;
        rounding of the sums is far below the solver's tolerance."""
        total = Linear({}, *_rounded(expression.constant))
        for key, exact in expression.terms.items():
            (value, lost), one = _rounded(exact), self._variable(key)
            total = total.plus(value, one)
            if lost:
                total = replace(total, slack=total.slack + lost * max(map(abs, self.range(one))))
        for a, b in expression.products:
            total = total.plus(1.0, self._product(self.linear(a), self.linear(b)))
        return total

    def _variable(self, key: Key) -> Linear:
        if key not in self.known:
            self.known[key] = self._make(self.own[key[1]])
        return self.known[key]

    def _make(self, own: Own) -> Linear:
        if own.kind == "real":
            (e,) = self.builder.add_variables(1).tolist()
            return Linear({e: 0.5 * (own.high - own.low)}, 0.5 * (own.high + own.low))
        if own.kind == "count":
            flags = self.builder.add_variables(len(own.formulas), 0.0, 1.0, integer=True).tolist()
            for formula, flag in zip(own.formulas, flags, strict=True):
                self.require(formula, flag)
                (off,) = self.builder.add_variables(1, 0.0, 1.0, integer=True).tolist()
                self._row(Linear({off: 1.0, flag: 1.0}, -1.0))  # off = 1 − flag
                self._row(Linear({off: -1.0, flag: -1.0}, 1.0))
                self.require(formula.negated(), off)
            return Linear(dict.fromkeys(flags, 1.0))
        span = int(own.high - own.low)
        bits = self.builder.add_variables(max(1, span.bit_length()), 0.0, 1.0, integer=True).tolist()
        whole = Linear({bit: float(2**k) for k, bit in enumerate(bits)}, own.low)
        if 2 ** len(bits) - 1 > span:
            self._row(replace(whole, constant=own.low - own.high))
        return whole

    def range(self, value: Linear) -> tuple[float, float]:
        """Bounds of an expression from its variables' bounds, a little widened for rounding."""
        middle, reach = self.builder.middle, self.builder.reach
        centre = value.constant + sum(c * middle[v] for v, c in value.coefficients.items())
        radius = sum(abs(c) * reach[v] for v, c in value.coefficients.items()) + value.slack
        radius += 1e-12 * (abs(centre) + radius + abs(value.constant))
        return centre - radius, centre + radius

    def _product(self, a: Linear, b: Linear) -> Linear:
        """`a·b = a₀·b + b₀·a − a₀·b₀ + r_a·r_b·q` with `q = e_a·e_b`."""
        (var_a, mid_a, rad_a), (var_b, mid_b, rad_b) = self._deviation(a), self._deviation(b)
        (q,) = self.builder.add_variables(1).tolist()
        below = Linear({q: -1.0}, -1.0)
        for s in (1.0, -1.0):  # |e_a + e_b| − 1 ≤ q ≤ 1 − |e_a − e_b|
            self._row(below.plus(s, Linear({var_a: 1.0})).plus(s, Linear({var_b: 1.0})))
            self._row(Linear({q: 1.0}, -1.0).plus(-s, Linear({var_a: 1.0})).plus(s, Linear({var_b: 1.0})))
        if self.builder.bilinear:
            self.builder.add_triples(*(np.array([variable]) for variable in (q, var_a, var_b)))
        return Linear({q: rad_a * rad_b}, -mid_a * mid_b).plus(mid_a, b).plus(mid_b, a)

    def _deviation(self, value: Linear) -> tuple[int, float, float]:
        """A variable `e ∈ [−1, 1]` with `value = middle + radius·e`."""
        low, high = self.range(value)
        middle, radius = 0.5 * (low + high), 0.5 * (high - low)
        (e,) = self.builder.add_variables(1).tolist()
        for sign in (1.0, -1.0):
            self._row(Linear({}).plus(sign, value).plus(-sign, Linear({e: radius}, middle)))
        return e, middle, radius

    def _row(self, value: Linear, switch: int | None = None) -> None:
        """`value ≤ 0`, or `value ≤ u·(1 − switch)`, for some value within the slack."""
        if switch is not None:
            _, high = self.range(value)
            if high <= 0:
                return
            value = value.plus(high, Linear({switch: 1.0}, -1.0))
        # A rule about constants alone is true, or impossible for every dataset.
        entries = value.coefficients or {int(self.builder.add_variables(1)[0]): 0.0}
        variables, none = np.array(list(entries), dtype=np.intp), np.zeros(len(entries), dtype=np.intp)
        row = self.builder.matrix(none, variables, list(entries.values()), 1)
        self.builder.add_rows(row, -math.inf, -(value.constant - value.slack), FREE)


def _rounded(exact: Number) -> tuple[float, float]:
    """The nearest float, and a bound of how far away it is."""
    value = float(exact)
    return value, 2.0 * float(abs(Fraction(exact) - Fraction(value)))


def picked(affine: Affine, elements: np.ndarray, columns: int) -> Affine:
    """Some elements of an affine expression."""
    return Affine(affine.centre[elements], with_columns(affine.linear, columns)[elements], affine.slack[elements])
