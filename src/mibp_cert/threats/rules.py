"""Rules: any set of datasets that linear and bilinear (in)equalities, logic and counting can describe.

    def rules(m):
        bias = m.real(0, 5)                                     # one unknown number for the whole data
        for i in m.rows:
            m.require(m.x(i, "age") - m.clean(i, "age") <= bias)
            m.require(m.label(i, "ill").implies(m.x(i, "age") >= 40))
        m.require(m.count([m.x(i, "age") != m.clean(i, "age") for i in m.rows]) <= 3)

    threat = Rules(LInf({"age": 5}), rules)

The rules cut a set out of a base threat of the catalogue, which bounds every cell. They compile exactly into the program of the
`mibp` engine (up to closed ends, see `formulas`). The other engines get sound outer views: each cell's range over the rules, by
the solver's proven bounds, and linear rules about numeric cells as a polytope of symbols.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UserError
from mibp_cert.logic import Expression, Formula, Own, Truth
from mibp_cert.sets import RulesSet
from mibp_cert.threats.base import ANY_ROW, Catalogued, Threat


class Model:
    """What a user's rules are written with: cells, labels and own variables of one dataset."""

    def __init__(self, clean: Dataset) -> None:
        self._clean = clean
        self.formulas: list[Formula] = []
        self.own: list[Own] = []
        self.rows = range(len(clean))

    def x(self, row: int, name: str | int) -> Expression:
        """The true value of a numeric cell, in the units of the table."""
        column = self._column(name, False, "; use category(row, column, value)")
        return Expression({("x", self._row(row) * self._clean.features + column.start): column.scale}, column.shift)

    def clean(self, row: int, name: str | int) -> float:
        """The value handed in, in the units of the table."""
        column = self._column(name, False, "; clean(row, column) is for numbers")
        return float(column.to_value(self._clean.x[self._row(row), column.start]))

    def category(self, row: int, name: str | int, value: Any) -> Formula:
        """The true category of a cell is this one."""
        column = self._column(name, True, "; use x(row, column)")
        place = self._row(row) * self._clean.features + column.start + column.number(value)
        return Truth(Expression({("x", place): 1.0}))

    def label(self, row: int, value: Any) -> Formula:
        """The true label of a row is this class."""
        number = int(self._clean.number([value])[0])
        place = self._row(row) * self._clean.one_hot.shape[1] + number
        return Truth(Expression({("y", place): 1.0}))

    def target(self, row: int) -> Expression:
        """The true target of a row (regression), in the units of the targets handed in."""
        if self._clean.targets is None:
            raise UserError("These data have classes, not targets; use label(row, value).")
        column = self._clean.target or Column("target", 0, 1)
        return Expression({("y", self._row(row)): column.scale}, column.shift)

    def real(self, low: float, high: float) -> Expression:
        """An unknown number in [low, high], the same wherever it is used."""
        return self._new(Own("real", low, high))

    def integer(self, low: int, high: int) -> Expression:
        """An unknown whole number from low to high."""
        if low != int(low) or high != int(high):
            raise UserError(f"An integer needs whole ends, got {low} and {high}.")
        return self._new(Own("integer", low, high))

    def binary(self) -> Formula:
        """An unknown yes or no."""
        return Truth(self._new(Own("integer", 0, 1)))

    def count(self, formulas: Sequence[Formula]) -> Expression:
        """How many of these hold."""
        chosen = tuple(formulas)
        if not chosen or not all(isinstance(f, Formula) for f in chosen):
            raise UserError("count needs a list of rules, at least one.")
        return self._new(Own("count", 0, len(chosen), chosen))

    def require(self, formula: Formula) -> None:
        """The dataset satisfies this rule."""
        if not isinstance(formula, Formula):
            raise UserError(f"require needs a rule such as a <= b, got {formula!r}.")
        self.formulas.append(formula)

    def _new(self, own: Own) -> Expression:
        if not (math.isfinite(own.low) and math.isfinite(own.high) and own.low <= own.high):
            raise UserError(f"An own variable needs finite ends low ≤ high, got {own.low} and {own.high}.")
        self.own.append(own)
        return Expression({("v", len(self.own) - 1): 1.0})

    def _column(self, name: str | int, categorical: bool, instead: str) -> Column:
        return self._clean.columns[self._clean.column(name)].expect(categorical, instead)

    def _row(self, row: int) -> int:
        if not isinstance(row, int | np.integer) or not 0 <= row < len(self._clean):
            raise UserError(f"There is no row {row}; rows go from 0 to {len(self._clean) - 1}.")
        return int(row)


@dataclass(frozen=True, eq=False)
class Rules(Threat):
    """The datasets of a base threat that satisfy rules; see the module's text.

    `solver`: which one bounds cells and finds members; bilinear rules need one that can multiply (scip, gurobi).
    """

    base: Catalogued
    rules: Callable[[Model], None]
    clean_is_member: bool = False
    """Insist that the data handed in satisfy the rules themselves."""
    solver: str = "scip"

    def bind(self, clean: Dataset) -> RulesSet:
        if self.base.changes_rows():
            raise UserError(f"Rules speak of rows that are there: leave {self.base.changes_rows()} out of their base.")
        model = Model(clean)
        self.rules(model)
        if not model.formulas:
            raise UserError("The rules require nothing; call m.require(...) or use the base threat alone.")
        members = RulesSet(self.base.bind(clean), model.formulas, model.own, self.solver)
        members.check(self.clean_is_member)
        return members

    def __and__(self, other: object) -> Rules:
        raise UserError("Rules cut a set out of their base: put the other threat there, Rules(base & other, rules).")

    __rand__ = __and__

    def knows_missing(self) -> bool:
        return self.base.knows_missing()

    def words(self, rows: str = ANY_ROW) -> str:
        said = (self.rules.__doc__ or self.rules.__name__).strip().rstrip(".")
        return f"{self.base.words(rows)}, as far as the rules allow: {said}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": "rules", "base": self.base.to_json(), "rules": self.rules.__doc__ or self.rules.__name__}
