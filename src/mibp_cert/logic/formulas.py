"""Expressions and formulas over cells, labels and own variables: what a user writes, before any solver sees it.

An expression is `constant + Σ coefficient·variable + Σ expression·expression`; a formula is a comparison of
expressions, a statement about a category or a label, or `&`, `|`, `~`, `implies` of formulas. A set of datasets is closed: there
`a < b` allows what `a ≤ b` does, and `a ≠ b` forbids nothing (both sides of a kink are always allowed, never excluded). Proofs
about models (`questions.conditions`) keep the difference.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mibp_cert.errors import UserError

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

    @property
    def linear(self) -> bool:
        return not self.products

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
        if not b.terms and b.linear:
            return self._scaled(b.constant)
        if not self.terms and self.linear:
            return b._scaled(self.constant)
        if not (self.linear and b.linear):
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


def expressions_of(formulas: Sequence[Formula]) -> list[Expression]:
    """All expressions in formulas."""
    return [atom.expression for formula in formulas for atom in formula.atoms()]
