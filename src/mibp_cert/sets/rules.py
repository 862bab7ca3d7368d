"""The datasets of a set that parts span which satisfy formulas: exact for the engine `mibp`, outer views for the others.

With `F` the formulas and `B` the base, the set is `{D ∈ B : F(D, v) for some values v of the own variables}`. Its program is that
of the base with the formulas' rows (`logic`). From it come

- the hull: each cell that the formulas speak of, bounded by the solver's *proven* bound, widened by the solver's tolerance;
- the noise: the base's with its plain box cut to that hull, and, for linear rules about plain numeric cells, the polytope
  `A·ε ≤ b` of their symbols, `b` a little relaxed; both hold every member, since each satisfies every rule;
- members: optima of the program in given directions.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.optimize import linprog
from scipy.sparse.linalg import lsqr

from mibp_cert.errors import UserError
from mibp_cert.logic import Comparison, Compiler, Formula, Key, Linear, Own, picked
from mibp_cert.parallel import WorkerPool
from mibp_cert.sets.base import Hull, Noise, ThreatSet
from mibp_cert.sets.blocks import Array, Block, Index, Plain
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


class RulesSet(ThreatSet):
    """The members of `base` that satisfy the formulas over cells, labels and own variables."""

    described = False

    def __init__(self, base: ProductSet, formulas: Sequence[Formula], own: list[Own], solver: str) -> None:
        self.base, self.clean, self.formulas, self.own = base, base.clean, formulas, own
        self.solver = solver_named(solver)
        counted = [formula for variable in own for formula in variable.formulas]
        expressions = [atom.expression for formula in [*formulas, *counted] for atom in formula.atoms()]
        self.keys = {key for expression in expressions for key in expression.variables() if key[0] != "v"}
        self._width = {on: side.shape[1] for on, side in base.sides.items()}
        self.touched = np.unique([place // self._width[on] for on, place in self.keys]).astype(np.intp)
        self.bilinear = any(expression.products for expression in expressions)
        self.outer = ("cells and noise are outer views of the rules; only the engine 'mibp' uses the rules themselves",)

    def _flat(self, rows: Index) -> tuple[Index, Index]:
        """Flat features and flat label entries of some rows."""
        x, y = ((rows[:, None] * width + np.arange(width)).ravel() for width in self._width.values())
        return x, y

    def _local(self, rows: Index, key: Key) -> int:
        """Place of a cell or label entry among those of `rows`."""
        row, entry = divmod(key[1], self._width[key[0]])
        return int(np.searchsorted(rows, row)) * self._width[key[0]] + entry

    # The exact view --------------------------------------------------------------------------------------------------

    def constraints(self, builder: ProgramBuilder, rows: Index) -> tuple[Affine, Affine]:
        """Rules tie rows together, so all rows that they speak of are declared; the batch's own are handed back."""
        every = np.unique(np.concatenate([rows, self.touched])).astype(np.intp)
        x, y = self._declare(builder, every)
        of_x, of_y = self._flat(np.searchsorted(every, rows))
        return picked(x, of_x, builder.variables), picked(y, of_y, builder.variables)

    def _declare(self, builder: ProgramBuilder, rows: Index) -> tuple[Affine, Affine]:
        x, y = self.base.constraints(builder, rows)
        known = {key: Linear.of(x if key[0] == "x" else y, self._local(rows, key)) for key in self.keys}
        compiler = Compiler(builder, known, self.own)
        for formula in self.formulas:
            compiler.require(formula)
        return x, y

    @cached_property
    def _program(self) -> tuple[Program, Affine, Affine]:
        """The rules over the rows that they touch."""
        builder = ProgramBuilder()
        builder.bilinear = self.bilinear
        x, y = (picked(e, np.arange(len(e.centre)), builder.variables) for e in self._declare(builder, self.touched))
        return builder.finish(), x, y

    def _solve(self, program: Program, objectives: list[Objective]) -> list[Bound]:
        """In this process where the program is linear; else in one that may die."""
        if not len(program.triples):
            return solver_named("highs").solve(program, objectives, Limits())
        groups = [list(range(len(objectives)))]
        found = dict(self._pool.map(_solve_group, (self.solver.name, program, objectives), groups))
        missing = Bound(math.nan, None, None, Status.FAILED, 0, 0.0)
        return [found.get(i) or missing for i in range(len(objectives))]

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
        program, *affine = self._program
        objectives, targets = [], []
        for on, place in sorted(self.keys):
            at = divmod(place, self._width[on])
            if ends[f"{on}_low"][at] == ends[f"{on}_high"][at]:
                continue
            cells, local = affine[on == "y"], self._local(self.touched, (on, place))
            g = np.asarray(cells.linear[[local]].todense()).ravel()
            for maximise in (False, True):
                objectives.append(Objective(g, maximise))
                targets.append((on, maximise, at, cells.centre[local], np.abs(g).sum()))
        for (on, maximise, at, centre, size), bound in zip(targets, self._solve(program, objectives), strict=True):
            slip = 4.0 * FEASIBILITY * size + 1e-12 * (abs(centre) + size)
            if math.isfinite(bound.proven) and maximise:
                ends[f"{on}_high"][at] = min(ends[f"{on}_high"][at], centre + bound.proven + slip)
            elif math.isfinite(bound.proven):
                ends[f"{on}_low"][at] = max(ends[f"{on}_low"][at], centre + bound.proven - slip)
        return Hull(**ends)

    def hull(self) -> Hull:
        return self._hull

    @cached_property
    def _outer(self) -> ProductSet:
        """The base with its plain box cut down to the cells' ranges."""
        return self.base.within(self._hull)

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
        if not isinstance(formula, Comparison) or formula.relation == "!=" or formula.expression.products:
            return []
        count = len(noise.blocks[0].symbols) if noise.blocks else 0
        total, constant = np.zeros(noise.symbols), float(formula.expression.constant)
        for (on, place), value in formula.expression.terms.items():
            if on != "x":
                return []
            total += float(value) * np.asarray(noise.x_linear[[place]].todense()).ravel()
            constant += float(value) * float(noise.x_centre.ravel()[place])
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
        of_x, of_y = self._flat(self.touched)
        objective = np.asarray(gx[of_x] @ x.linear + gy[of_y] @ y.linear).ravel()
        scale = max(float(np.abs(objective).sum()), 1e-300)
        (answer,) = self._solve(program, [Objective(objective / scale, False)])
        if answer.solution is None:
            return self.reference if "reference" in self.__dict__ else self.base.reference
        v = np.where(program.integer, np.round(answer.solution), answer.solution)
        hull, found = self._hull, [np.array(part) for part in rest]
        for member, affine, low, high in (
            (found[0], x, hull.x_low, hull.x_high),
            (found[1], y, hull.y_low, hull.y_high),
        ):
            values = (affine.centre + affine.linear @ v).reshape(len(self.touched), member.shape[1])
            values = np.where(np.abs(values - np.round(values)) < 1e-9, np.round(values), values)
            member[self.touched] = np.clip(values, low[self.touched], high[self.touched])
        return self._within_budgets(found[0], found[1])

    def _within_budgets(self, x: Array, y: Array) -> tuple[Array, Array]:
        """The same, as handed in where other rows spend what the rows of the rules have left of a budget."""
        limited = self.base.unbudgeted()
        if limited is None or self.base.contains(x, y):
            return x, y
        hull, (known_x, known_y) = limited.clean.hull(), self.base.reference
        moved, other = (x < hull.x_low) | (x > hull.x_high), (y < hull.y_low) | (y > hull.y_high)
        spent = np.asarray(moved.any(axis=1) | other.any(axis=1))
        spent[self.touched] = False
        return np.where(spent[:, None], known_x, x), np.where(spent[:, None], known_y, y)

    def contains(self, x: Array, y: Array) -> bool:
        """In the base, and the rules hold with some values of the own variables, within the solvers' tolerance."""
        hull = self._hull
        inside = ((hull.x_low <= x) & (x <= hull.x_high)).all() and ((hull.y_low <= y) & (y <= hull.y_high)).all()
        if not inside or not self.base.contains(x, y):
            return False
        program, ax, ay = self._program
        centre = np.concatenate([ax.centre, ay.centre])
        target = np.concatenate([x[self.touched].ravel(), y[self.touched].ravel()]) - centre
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


SWEEPS = 4
UNIT = 2.0**-53


@dataclass(frozen=True, eq=False)
class Polytope(Block):
    """Symbols in a box cut by linear constraints: `|ε_j| ≤ 1`, `A·ε ≤ b`.

    By duality, for every `λ ≥ 0`

        max { g·ε } ≤ λ·b + Σ_j |g_j − (Aᵀλ)_j|

    so any `λ` gives a safe bound, however it was found. It is found by minimising the right-hand side over one `λ_i` after the
    other, which is exact in each: a weighted median of the breakpoints `c_j / A_ij`.
    """

    symbols: Index
    matrix: Array
    limit: Array

    def support(self, g: Array) -> tuple[Array, Array]:
        flat = g.reshape(-1, g.shape[-1])
        return -self._upper(-flat).reshape(g.shape[:-1]), self._upper(flat).reshape(g.shape[:-1])

    def _upper(self, g: Array) -> Array:
        multiplier = np.zeros((len(g), len(self.limit)))
        rest = g.copy()
        best, size = np.abs(g).sum(axis=1), np.abs(g).sum(axis=1)
        for _ in range(SWEEPS):
            for i, row in enumerate(self.matrix):
                on = np.flatnonzero(row)
                if not len(on):
                    continue
                c = rest[:, on] + multiplier[:, [i]] * row[on]
                chosen = _median(c, row[on], float(self.limit[i]))
                rest[:, on] = c - chosen[:, None] * row[on]
                multiplier[:, i] = chosen
            rest = g - multiplier @ self.matrix  # afresh, so that errors do not pile up
            value = multiplier @ self.limit + np.abs(rest).sum(axis=1)
            terms = (
                multiplier @ np.abs(self.limit) + np.abs(g).sum(axis=1) + (multiplier @ np.abs(self.matrix)).sum(axis=1)
            )
            better = value < best
            best, size = np.where(better, value, best), np.where(better, terms, size)
        count = g.shape[1] + len(self.limit) + 8
        return np.asarray(best + 4.0 * count * UNIT * size)

    def magnitude(self) -> Array:
        return np.ones(len(self.symbols))

    def minimiser(self, g: Array) -> Array:
        scale = max(float(np.abs(g).max(initial=0.0)), 1e-300)
        found = linprog(g / scale, A_ub=self.matrix, b_ub=self.limit, bounds=(-1.0, 1.0), method="highs")
        return np.clip(found.x, -1.0, 1.0) if found.status == 0 else np.zeros(len(g))

    def sample(self, rng: np.random.Generator, extreme: bool) -> Array:
        point = self.minimiser(rng.normal(size=len(self.symbols)))
        if extreme:
            return point
        share = rng.random()
        return np.asarray(share * point + (1.0 - share) * self.minimiser(rng.normal(size=len(self.symbols))))


def _median(c: Array, a: Array, b: float) -> Array:
    """The `λ ≥ 0` that minimises `λ·b + Σ_j |c_j − λ·a_j|`, for every row of `c`."""
    points = c / a
    order = np.argsort(points, axis=1)
    weights = np.abs(a)[order]
    slope = b - weights.sum(axis=1, keepdims=True) + 2.0 * np.cumsum(weights, axis=1)
    first = np.argmax(slope >= 0, axis=1)
    first = np.where((slope >= 0).any(axis=1), first, points.shape[1] - 1)
    best = np.take_along_axis(np.take_along_axis(points, order, axis=1), first[:, None], axis=1)[:, 0]
    return np.maximum(best, 0.0)
