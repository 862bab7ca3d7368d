"""Expressions and formulas over cells, labels and own variables: what a user writes, before any solver sees it.

An expression is `constant + Σ coefficient·variable + Σ coefficient·(expression·expression)`; a formula is a comparison of
expressions, a statement about a category or a label, or `&`, `|`, `~`, `implies` of formulas. Sets are closed: the negation of
`a ≤ b` is `a ≥ b`, and that of `a == b` is no condition at all (both sides of a kink are always allowed, never excluded).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mibp_cert.errors import UserError

Key = tuple[str, int]
"""`("x", flat feature)`, `("y", flat label entry)` or `("v", own variable)`."""
Number = int | float


@dataclass(frozen=True, eq=False)
class Expression:
    """See the module's text."""

    terms: Mapping[Key, float]
    constant: float = 0.0
    products: tuple[tuple[float, Expression, Expression], ...] = ()
    words: str = ""

    @classmethod
    def of(cls, value: Any) -> Expression:
        if isinstance(value, Expression):
            return value
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise UserError(f"{value!r} is neither a number nor an expression of the rules.") from None
        if not math.isfinite(number):
            raise UserError(f"A rule needs finite numbers, got {number}.")
        return cls({}, number, (), f"{number:g}")

    @property
    def linear(self) -> bool:
        return not self.products

    def _scaled(self, factor: float) -> Expression:
        products = tuple((factor * c, a, b) for c, a, b in self.products)
        terms = {key: factor * value for key, value in self.terms.items()}
        return Expression(terms, factor * self.constant, products, f"{factor:g}·({self.words})")

    def __neg__(self) -> Expression:
        return self._scaled(-1.0)

    def __add__(self, other: Any) -> Expression:
        b = Expression.of(other)
        terms = dict(self.terms)
        for key, value in b.terms.items():
            terms[key] = terms.get(key, 0.0) + value
        return Expression(terms, self.constant + b.constant, self.products + b.products, f"{self.words} + {b.words}")

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
        return Expression({}, 0.0, ((1.0, self, b),), f"({self.words})·({b.words})")

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Expression:
        if isinstance(other, Expression) or float(other) == 0.0:
            raise UserError("The rules may divide by a number other than 0 only.")
        return self._scaled(1.0 / float(other))

    def __lt__(self, other: Any) -> Formula:
        return self.__le__(other)  # sets are closed

    def __gt__(self, other: Any) -> Formula:
        return self.__ge__(other)

    def __le__(self, other: Any) -> Formula:
        right = Expression.of(other)
        return Atom(self - right, f"{self.words} <= {right.words}")

    def __ge__(self, other: Any) -> Formula:
        right = Expression.of(other)
        return Atom(right - self, f"{self.words} >= {right.words}")

    def __eq__(self, other: Any) -> Formula:  # type: ignore[override]
        right = Expression.of(other)
        return Equal(self - right, f"{self.words} == {right.words}")

    def __ne__(self, other: Any) -> Formula:  # type: ignore[override]
        right = Expression.of(other)
        return Unequal(self - right, f"{self.words} != {right.words}")

    __hash__ = None  # type: ignore[assignment]


class Formula:
    """A condition on a dataset and own variables."""

    words: str

    def negated(self) -> Formula:
        raise NotImplementedError

    def __invert__(self) -> Formula:
        return self.negated()

    def __and__(self, other: Formula) -> Formula:
        return And((self, _formula(other)))

    def __or__(self, other: Formula) -> Formula:
        return Or((self, _formula(other)))

    def implies(self, other: Formula) -> Formula:
        """Where this holds, so does the other."""
        return Or((self.negated(), _formula(other)))

    def __bool__(self) -> bool:
        raise UserError(
            "A rule has no truth value of its own: combine rules with &, | and ~, not with and, or and not."
        )


def _formula(value: Any) -> Formula:
    if not isinstance(value, Formula):
        raise UserError(f"{value!r} is not a rule; rules are comparisons such as a <= b, combined with &, | and ~.")
    return value


@dataclass(frozen=True, eq=False)
class Atom(Formula):
    """`expression ≤ 0`."""

    expression: Expression
    words: str

    def negated(self) -> Formula:
        return Atom(-self.expression, f"not {self.words}")


@dataclass(frozen=True, eq=False)
class Equal(Formula):
    """`expression = 0`."""

    expression: Expression
    words: str

    def negated(self) -> Formula:
        return Unequal(self.expression, f"not {self.words}")


@dataclass(frozen=True, eq=False)
class Unequal(Formula):
    """`expression ≠ 0`: closed, it forbids nothing; its negation is the equality."""

    expression: Expression
    words: str

    def negated(self) -> Formula:
        return Equal(self.expression, f"not {self.words}")


@dataclass(frozen=True, eq=False)
class Truth(Formula):
    """A 0/1 expression is 1 (`wanted`) or 0: a category, a label, an own binary."""

    expression: Expression
    words: str
    wanted: bool = True

    def negated(self) -> Formula:
        return Truth(self.expression, f"not {self.words}", not self.wanted)


@dataclass(frozen=True, eq=False)
class And(Formula):
    """All of them."""

    parts: tuple[Formula, ...]

    @property
    def words(self) -> str:  # type: ignore[override]
        return " and ".join(f"({part.words})" for part in self.parts)

    def negated(self) -> Formula:
        return Or(tuple(part.negated() for part in self.parts))


@dataclass(frozen=True, eq=False)
class Or(Formula):
    """At least one of them."""

    parts: tuple[Formula, ...]

    @property
    def words(self) -> str:  # type: ignore[override]
        return " or ".join(f"({part.words})" for part in self.parts)

    def negated(self) -> Formula:
        return And(tuple(part.negated() for part in self.parts))


def keys_of(formulas: Sequence[Formula]) -> set[Key]:
    """All variables that formulas speak of."""
    found: set[Key] = set()

    def expression(e: Expression) -> None:
        found.update(e.terms)
        for _, a, b in e.products:
            expression(a)
            expression(b)

    def formula(f: Formula) -> None:
        if isinstance(f, And | Or):
            for part in f.parts:
                formula(part)
        elif isinstance(f, Atom | Equal | Unequal | Truth):
            expression(f.expression)

    for f in formulas:
        formula(f)
    return found
