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

import copy
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import lsqr

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.logic.compiler import Compiler, Own, picked
from mibp_cert.logic.formulas import Comparison, Expression, Formula, Key, Truth, expressions_of
from mibp_cert.parallel import WorkerPool
from mibp_cert.sets.base import Hull, Noise, ThreatSet
from mibp_cert.sets.blocks import Array, Block, Index, Plain
from mibp_cert.sets.polytope import Polytope
from mibp_cert.sets.product import ProductSet
from mibp_cert.solvers import (
    FEASIBILITY,
    Affine,
    Bound,
    Limits,
    Objective,
    Program,
    ProgramBuilder,
    Status,
    solver_named,
)
from mibp_cert.threats.base import Threat
from mibp_cert.threats.combine import Catalogued
from mibp_cert.threats.words import ANY_ROW


class Model:
    """What a user's rules are written with: cells, labels and own variables of one dataset."""

    def __init__(self, clean: Dataset) -> None:
        self._clean = clean
        self.formulas: list[Formula] = []
        self.own: list[Own] = []
        self.rows = range(len(clean))

    def x(self, row: int, name: str | int) -> Expression:
        """The true value of a numeric cell, in the units of the table."""
        column = self._clean.columns[self._clean.column(name)]
        if column.categories is not None:
            raise UserError(f"The column '{column.name}' is categorical; use category(row, column, value).")
        place = self._row(row) * self._clean.features + column.start
        return Expression({("x", place): column.scale}, column.shift)

    def clean(self, row: int, name: str | int) -> float:
        """The value handed in, in the units of the table."""
        column = self._clean.columns[self._clean.column(name)]
        if column.categories is not None:
            raise UserError(f"The column '{column.name}' is categorical; clean(row, column) is for numbers.")
        return float(self._clean.x[self._row(row), column.start]) * column.scale + column.shift

    def category(self, row: int, name: str | int, value: Any) -> Formula:
        """The true category of a cell is this one."""
        column = self._clean.columns[self._clean.column(name)]
        if column.categories is None:
            raise UserError(f"The column '{column.name}' is numeric; use x(row, column).")
        place = self._row(row) * self._clean.features + column.start + column.number(value)
        return Truth(Expression({("x", place): 1.0}))

    def label(self, row: int, value: Any) -> Formula:
        """The true label of a row is this class."""
        number = int(self._clean.number(np.array([value], dtype=object))[0])
        place = self._row(row) * self._clean.one_hot.shape[1] + number
        return Truth(Expression({("y", place): 1.0}))

    def target(self, row: int) -> Expression:
        """The true target of a row (regression), in the units of the targets handed in."""
        if self._clean.targets is None:
            raise UserError("These data have classes, not targets; use label(row, value).")
        column = self._clean.target
        scale, shift = (1.0, 0.0) if column is None else (column.scale, column.shift)
        return Expression({("y", self._row(row)): scale}, shift)

    def real(self, low: float, high: float) -> Expression:
        """An unknown number in [low, high], the same wherever it is used."""
        return self._new("real", low, high)

    def integer(self, low: int, high: int) -> Expression:
        """An unknown whole number from low to high."""
        if low != int(low) or high != int(high):
            raise UserError(f"An integer needs whole ends, got {low} and {high}.")
        return self._new("integer", low, high)

    def binary(self) -> Formula:
        """An unknown yes or no."""
        return Truth(self._new("integer", 0, 1))

    def count(self, formulas: Sequence[Formula]) -> Expression:
        """How many of these hold."""
        chosen = tuple(formulas)
        if not chosen or not all(isinstance(f, Formula) for f in chosen):
            raise UserError("count needs a list of rules, at least one.")
        self.own.append(Own("count", 0, len(chosen), chosen))
        return Expression({("v", len(self.own) - 1): 1.0})

    def require(self, formula: Formula) -> None:
        """The dataset satisfies this rule."""
        if not isinstance(formula, Formula):
            raise UserError(f"require needs a rule such as a <= b, got {formula!r}.")
        self.formulas.append(formula)

    def _new(self, kind: str, low: float, high: float) -> Expression:
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise UserError(f"An own variable needs finite ends low ≤ high, got {low} and {high}.")
        self.own.append(Own(kind, float(low), float(high)))
        return Expression({("v", len(self.own) - 1): 1.0})

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
        model = Model(clean)
        self.rules(model)
        if not model.formulas:
            raise UserError("The rules require nothing; call m.require(...) or use the base threat alone.")
        members = RulesSet(self.base.bind(clean), model, self.solver)
        members.check(self.clean_is_member)
        return members

    def __and__(self, other: object) -> Rules:
        raise UserError("Rules cut a set out of their base: put the other threat there, Rules(base & other, rules).")

    __rand__ = __and__

    def touches_labels(self) -> bool:
        return self.base.touches_labels()

    def knows_missing(self) -> bool:
        return self.base.knows_missing()

    def words(self, rows: str = ANY_ROW) -> str:
        said = (self.rules.__doc__ or self.rules.__name__).strip().rstrip(".")
        return f"{self.base.words(rows)}, as far as the rules allow: {said}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": "rules", "base": self.base.to_json(), "rules": self.rules.__doc__ or self.rules.__name__}


class RulesSet(ThreatSet):
    """The members of `base` that satisfy the model's formulas."""

    described = False

    def __init__(self, base: ProductSet, model: Model, solver: str) -> None:
        self.base, self.model, self.clean = base, model, base.clean
        self.solver = solver_named(solver)
        self.formulas, self.own = model.formulas, model.own
        counted = [f for own in self.own for f in own.formulas]
        expressions = expressions_of([*self.formulas, *counted])
        self.keys = {key for expression in expressions for key in expression.variables() if key[0] != "v"}
        width = {"x": self.clean.features, "y": self.clean.one_hot.shape[1]}
        self.touched = np.unique([place // width[on] for on, place in self.keys]).astype(np.intp)
        self.bilinear = any(not expression.linear for expression in expressions)
        self.outer = ("cells and noise are outer views of the rules; only the engine 'mibp' uses the rules themselves",)

    # The exact view --------------------------------------------------------------------------------------------------

    def constraints(self, builder: ProgramBuilder, rows: Index) -> tuple[Affine, Affine]:
        """Rules tie rows together, so all rows that they speak of are declared; the batch's own are handed back."""
        every = np.unique(np.concatenate([rows, self.touched])).astype(np.intp)
        x, y = self._declare(builder, every)
        at = np.searchsorted(every, rows)
        d, c = self.clean.features, self.clean.one_hot.shape[1]
        cells = (at[:, None] * d + np.arange(d)).ravel(), (at[:, None] * c + np.arange(c)).ravel()
        return picked(x, cells[0], builder.variables), picked(y, cells[1], builder.variables)

    def _declare(self, builder: ProgramBuilder, rows: Index) -> tuple[Affine, Affine]:
        x, y = self.base.constraints(builder, rows)
        width = {"x": self.clean.features, "y": self.clean.one_hot.shape[1]}
        places: dict[Key, int] = {}
        for on, place in self.keys:
            row, entry = divmod(place, width[on])
            places[on, place] = int(np.searchsorted(rows, row)) * width[on] + entry
        compiler = Compiler(builder, x, y, places, self.own)
        for formula in self.formulas:
            compiler.require(formula)
        return x, y

    @cached_property
    def _program(self) -> tuple[Program, Affine, Affine]:
        """The rules over the rows that they touch."""
        builder = ProgramBuilder()
        builder.bilinear = self.bilinear
        x, y = self._declare(builder, self.touched)
        program = builder.finish()
        every = (np.arange(len(e.centre)) for e in (x, y))
        both = [picked(e, n, program.variables) for e, n in zip((x, y), every, strict=True)]
        return program, both[0], both[1]

    def _solve(self, program: Program, objectives: list[Objective]) -> list[Bound]:
        """In this process where the program is linear; else in one that may die."""
        if not len(program.triples):
            return solver_named("highs").solve(program, objectives, Limits())
        groups = [list(range(len(objectives)))]
        found = dict(self._pool.map(_solve_group, (self.solver.name, program, objectives), groups))
        missing = Bound(math.nan, None, None, Status.FAILED, 0, 0.0)
        return [found[i] if found.get(i) is not None else missing for i in range(len(objectives))]

    @cached_property
    def _pool(self) -> WorkerPool:
        """One worker process, ended with this set."""
        pool = WorkerPool(1)
        weakref.finalize(self, pool.close)
        return pool

    def check(self, clean_is_member: bool) -> None:
        """Refuse rules that no dataset satisfies, or, if asked to, that the data handed in break."""
        program, *_ = self._program
        (answer,) = self._solve(program, [Objective(np.zeros(program.variables), False)])
        if answer.status is Status.INFEASIBLE:
            raise UserError("The rules contradict each other, or the base threat: no dataset satisfies them all.")
        if clean_is_member and not self.contains(*self.base.reference):
            raise UserError(
                "The data handed in break the rules themselves; correct the rules or leave out clean_is_member."
            )

    # Outer views -----------------------------------------------------------------------------------------------------

    @cached_property
    def _hull(self) -> Hull:
        hull = self.base.hull()
        ends = {name: np.array(getattr(hull, name)) for name in ("x_low", "x_high", "y_low", "y_high")}
        program, x, y = self._program
        objectives, targets = [], []
        for on, affine in (("x", x), ("y", y)):
            shape = ends[f"{on}_low"].shape
            for key_on, place in sorted(self.keys):
                row, entry = divmod(place, shape[1])
                if key_on != on or ends[f"{on}_low"][row, entry] == ends[f"{on}_high"][row, entry]:
                    continue
                local = int(np.searchsorted(self.touched, row)) * shape[1] + entry
                g = np.asarray(affine.linear[[local]].todense()).ravel()
                for maximise in (False, True):
                    objectives.append(Objective(g, maximise))
                    targets.append(
                        (f"{on}_{'high' if maximise else 'low'}", row, entry, affine.centre[local], np.abs(g).sum())
                    )
        for (name, row, entry, centre, size), bound in zip(targets, self._solve(program, objectives), strict=True):
            if not math.isfinite(bound.proven):
                continue
            slip = 4.0 * FEASIBILITY * size + 1e-12 * (abs(centre) + size)
            if name.endswith("low"):
                ends[name][row, entry] = max(ends[name][row, entry], centre + bound.proven - slip)
            else:
                ends[name][row, entry] = min(ends[name][row, entry], centre + bound.proven + slip)
        return Hull(ends["x_low"], ends["x_high"], ends["y_low"], ends["y_high"])

    def hull(self) -> Hull:
        return self._hull

    @cached_property
    def _outer(self) -> ProductSet:
        """The base with its plain box cut down to the cells' ranges."""
        outer = copy.copy(self.base)
        outer.__dict__ = {k: v for k, v in self.base.__dict__.items() if k not in ("_noise", "_hull")}
        plain = np.ones(self.clean.x.size, dtype=bool)
        for part in self.base.parts:
            if part.on == "x":
                plain[part.place] = False
        moving = plain.reshape(self.clean.x.shape) & (self.base.high > self.base.low)
        outer.low = np.where(moving, np.maximum(self.base.low, self._hull.x_low), self.base.low)
        outer.high = np.where(moving, np.minimum(self.base.high, self._hull.x_high), self.base.high)
        # A cell that the rules pin down keeps a sliver, so that its symbol stays where it is.
        outer.high = np.where(moving, np.maximum(outer.high, np.nextafter(outer.low, np.inf)), outer.high)
        return outer

    @cached_property
    def _noise(self) -> Noise:
        noise = self._outer.noise()
        rows = [found for f in self.formulas for found in self._linear_rows(f, noise)]
        if not rows or not isinstance(noise.blocks[0], Plain) or not noise.blocks[0].unit_box:
            return noise
        matrix, limit = np.array([a for a, _ in rows]), np.array([b for _, b in rows])
        block: Block = Polytope(noise.blocks[0].symbols, matrix, limit)
        return replace(noise, blocks=(block, *noise.blocks[1:]))

    def _linear_rows(self, formula: Formula, noise: Noise) -> list[tuple[Array, float]]:
        """A linear rule about plain numeric cells as `a·ε ≤ b` over the first block's symbols, a little relaxed."""
        if not isinstance(formula, Comparison) or formula.relation == "!=" or not formula.expression.linear:
            return []
        count = len(noise.blocks[0].symbols) if noise.blocks else 0
        total, constant = np.zeros(noise.symbols), formula.expression.constant
        for (on, place), value in formula.expression.terms.items():
            if on != "x":
                return []
            total += value * np.asarray(noise.x_linear[[place]].todense()).ravel()
            constant += value * float(noise.x_centre.ravel()[place])
        if total[count:].any() or not total.any():
            return []
        slip = 4.0 * FEASIBILITY * float(np.abs(total).sum()) + 1e-12 * abs(constant)
        out = [(total[:count], -constant + slip)]
        return out + ([(-total[:count], constant + slip)] if formula.relation == "==" else [])

    def noise(self) -> Noise:
        return self._noise

    # Members ---------------------------------------------------------------------------------------------------------

    @cached_property
    def reference(self) -> tuple[Array, Array]:
        """The data handed in, or the nearest member that the solver finds."""
        x, y = self.base.reference
        if self.contains(x, y):
            return x, y
        return self._optimum(np.zeros(x.size), np.zeros(y.size), (x, y))

    def worst(self, g: Array) -> tuple[Array, Array]:
        noise = self._noise
        matrix = sparse.vstack([noise.x_linear, noise.y_linear], format="csr")
        weight = lsqr(matrix.T, g, atol=1e-12, btol=1e-12)[0] if g.any() else np.zeros(matrix.shape[0])
        free = self._outer.worst(g)
        return self._optimum(weight[: self.clean.x.size], weight[self.clean.x.size :], free)

    def sample(self, rng: np.random.Generator, n: int) -> list[tuple[Array, Array]]:
        """Optima of random directions around random members of the base."""
        nx, ny = self.clean.x.size, self.clean.one_hot.size
        others = self._outer.sample(rng, n)
        return [self._optimum(rng.normal(size=nx), rng.normal(size=ny), other) for other in others]

    def _optimum(self, gx: Array, gy: Array, rest: tuple[Array, Array]) -> tuple[Array, Array]:
        """The member that minimises a direction over the touched rows, with the other rows as in `rest`."""
        program, x, y = self._program
        d, c = self.clean.features, self.clean.one_hot.shape[1]
        cells = (self.touched[:, None] * d + np.arange(d)).ravel(), (self.touched[:, None] * c + np.arange(c)).ravel()
        objective = np.asarray(gx[cells[0]] @ x.linear + gy[cells[1]] @ y.linear).ravel()
        scale = max(float(np.abs(objective).sum()), 1e-300)
        (answer,) = self._solve(program, [Objective(objective / scale, False)])
        if answer.solution is None:
            return self.reference if "reference" in self.__dict__ else self.base.reference
        v = np.where(program.integer, np.round(answer.solution), answer.solution)
        hull, out = self._hull, []
        for affine, base, low, high, width in (
            (x, rest[0], hull.x_low, hull.x_high, d),
            (y, rest[1], hull.y_low, hull.y_high, c),
        ):
            values = (affine.centre + affine.linear @ v).reshape(len(self.touched), width)
            values = np.where(np.abs(values - np.round(values)) < 1e-9, np.round(values), values)
            member = np.array(base)
            member[self.touched] = np.clip(values, low[self.touched], high[self.touched])
            out.append(member)
        return out[0], out[1]

    def contains(self, x: Array, y: Array) -> bool:
        """In the base, and the rules hold with some values of the own variables, within the solvers' tolerance."""
        hull = self._hull
        inside = ((hull.x_low <= x) & (x <= hull.x_high)).all() and ((hull.y_low <= y) & (y <= hull.y_high)).all()
        if not inside or not self.base.contains(x, y):
            return False
        program, ax, ay = self._program
        d, c = self.clean.features, self.clean.one_hot.shape[1]
        centre = np.concatenate([ax.centre, ay.centre])
        target = (
            np.concatenate([x[self.touched].reshape(-1, d).ravel(), y[self.touched].reshape(-1, c).ravel()]) - centre
        )
        linear = sparse.vstack([ax.linear, ay.linear], format="csr")
        still = np.diff(linear.indptr) == 0
        if (np.abs(target[still]) > 1e-12 * (1.0 + np.abs(centre[still]))).any():
            return False
        size = np.asarray(abs(linear).sum(axis=1)).ravel()[~still]
        matrix = sparse.diags(1.0 / size) @ linear[~still]
        fixed = target[~still] / size
        pinned = replace(
            program,
            matrix=sparse.vstack([program.matrix, matrix], format="csr"),
            row_lower=np.concatenate([program.row_lower, fixed - 1e-9]),
            row_upper=np.concatenate([program.row_upper, fixed + 1e-9]),
            owner=np.concatenate([program.owner, np.full(len(fixed), -1, dtype=np.intp)]),
        )
        (answer,) = self._solve(pinned, [Objective(np.zeros(program.variables), False)])
        return answer.solution is not None


def _solve_group(task: tuple[str, Program, list[Objective]], numbers: list[int]) -> list[Bound]:
    """Runs in a worker process."""
    name, program, objectives = task
    return solver_named(name).solve(program, [objectives[i] for i in numbers], Limits(seconds=60.0))
