"""Tier 2: a bound of `a·θ(D)` by a linear program, whose dual vector is evaluated here.

Every minimiser in the ranges, with its data, is a point of the program (symbols as in `fitted.dual`):

    α∘θ + Σ_i w_i (ψ_i x_i + Σ_k P_ik v_ik) = tilt,    |tilt_j| ≤ τ_j        the gradient
    s_i = x_i·θ + Σ_k D_ik                                                  the scores
    D_ik = δ_ik (v_ik·θ),    P_ik = δ_ik ψ_i,    |δ_ik| ≤ 1                  noise along `v_ik`, between McCormick's rows
    κs_i + β₋ ≤ ψ_i ≤ κs_i + β₊    for several slopes κ                      `ψ` on `S_i`

with `v_ik` the cells of a row times their radius, and the directions that cells share. (Noise known by a support function is
taken cell by cell.) One pair `δ` serves both products, as one cell does in `t_ij` of `fitted.dual`; with multipliers `u` of the
gradient and `λ_i` of the scores the dual of this program *is* (1), its lines and chords chosen as well as can be.

**Budgets.** A row that may be replaced is there in copies: `s`, `ψ`, `δ`, `D`, `P` of each are those of the row times its share
`μ`, 0 or 1: `1 − Σz` for the row itself, `z` for an alternative, `Σ z ≤ most`. All of the above, multiplied by `μ`, is linear
again; shares are relaxed to `0 ≤ z ≤ 1`. Rows that come, go or change their weight are not known here (`Relaxation.fits`).

**The dual vector** is taken from a solver, and nothing else is: for every `y`,

    c·v = y·Av + (c − Aᵀy)·v ≤ Σ_rows max(y·ends) + Σ_variables max((c − Aᵀy)·box)                                      (2)

over a program whose variables all have finite boxes (Neumaier and Shcherbina); what (2) rounds is added. With `c = 0`, a bound
below 0 says that there is no such point: the ranges, or an assumption behind them, contradict each other. Coefficients are
numbers of the table, or slopes and ends that hold as they are stored; where a product of two of them is stored, the ends of
its row pay for its rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.crew import tell
from mibp_cert.fitted.known import Known
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.table import Array, Budget, Index, Rows, Table
from mibp_cert.solvers import Objective, Program
from mibp_cert.solvers.highs import multipliers
from mibp_cert.solvers.program import FREE

LINES = 4
"""Slopes of lines above `ψ`, and as many below it."""
LARGEST = 8_000
"""Variables of programs that are solved: one of so many takes seconds."""
ITERATIONS = 100_000
"""Of the simplex method, at most; the multipliers that it has by then are used."""


class Relaxation:
    """See the module's text."""

    def __init__(self, table: Table, loss: ScoreLoss, ranges: Ranges, tau: Array) -> None:
        self.table, self.ranges, self._make = table, ranges, Maker()
        self._size = np.zeros(len(tau))
        make, rows = self._make, table.rows
        self.theta = make.variables(ranges.low, ranges.high)
        self.gradient = make.lines(np.zeros(len(tau)), np.zeros(len(tau)))
        make.put(self.gradient, self.theta, table.alpha)
        self.scores = make.lines(np.zeros(len(rows)), np.zeros(len(rows)))
        make.dense(self.scores, self.theta, -rows.x)
        z, none = [make.variables(np.zeros(len(b.by)), np.ones(len(b.by))) for b in table.budgets], np.zeros(0, np.intp)
        gone, by = np.concatenate([none, *(budget.rows for budget in table.budgets)]), np.concatenate([none, *z])
        own = Share(np.ones(len(rows)), gone, by, -1.0)
        self._copy(Known(loss, rows, ranges.s_low, ranges.s_high, ranges), cell_noise(rows, table), own, self.scores)
        if len(gone):  # a row is itself, or one of its alternatives
            line = make.lines(np.full(len(rows), -np.inf), np.ones(len(rows)))
            make.put(line[gone], by, 1.0)
        for k, (budget, (low, high)) in enumerate(zip(table.budgets, ranges.by, strict=True)):
            line = make.lines(np.full(1, -np.inf), np.full(1, float(budget.most)))
            make.put(np.repeat(line, len(z[k])), z[k], 1.0)
            share = Share(np.zeros(len(z[k])), np.arange(len(z[k])), z[k], 1.0)
            known = Known(loss, budget.by, low, high, ranges)
            self._copy(known, cell_noise(budget.by, None), share, self.scores[budget.rows])
            self._moved(budget.rows, budget.by.x, z[k])
        # What the products of weights and cells have lost.
        ends = tau + 4.0 * EPS * self._size
        self.program = make.finish({int(self.gradient[0]): (-ends, ends)})

    @staticmethod
    def fits(table: Table) -> bool:
        """Whether the program of a table says all of it, and is small enough to be solved."""
        if any(changes_weights(table, budget) for budget in table.budgets):
            return False
        count = 0
        for rows in (table.rows, *(budget.by for budget in table.budgets)):
            directions = 0 if rows.j is None else rows.j.shape[0] * rows.j.shape[1]
            cells = int((cell_noise(rows, table if rows is table.rows else None) > 0).sum())
            count += 3 * (len(rows) + cells) + 4 * directions
        return count <= LARGEST

    def upper(self, c: Array) -> Array:
        """Upper bounds of `c·v` for queries `c` over all variables; −∞ where there is no such minimiser at all."""
        program, found = self.program, np.full(len(c), np.inf)
        if not (np.isfinite(program.lower).all() and np.isfinite(program.upper).all()):
            return found
        for k, (y, ray) in enumerate(multipliers(program, [Objective(one, maximise=True) for one in c], ITERATIONS)):
            if ray is not None and any(value(program, 0.0 * c[k], side) < 0.0 for side in (ray, -ray)):
                return np.full(len(c), -np.inf)
            found[k] = value(program, c[k], y)
            tell()
        return found

    def of_parameters(self, a: Array) -> Array:
        """Queries `a·θ` (queries × P) over all variables."""
        c = np.zeros((len(a), self.program.variables))
        c[:, self.theta] = a
        return c

    def _copy(self, known: Known, noise: Array, share: Share, place: Index) -> None:
        """The variables of some rows times their share, and what holds for each of them."""
        make, rows = self._make, known.rows
        psi_low, psi_high = known.psi_middle - known.psi_radius, known.psi_middle + known.psi_radius
        ends = [(known.low, known.high), (psi_low, psi_high)]
        s, psi = (make.variables(*share.box(low, high)) for low, high in ends)
        make.put(place, s, 1.0)
        make.dense(self.gradient, psi, (rows.x * rows.w[:, None]).T)
        reach = np.maximum(np.abs(psi_low), np.abs(psi_high))
        self._size += (rows.w * reach) @ (np.abs(rows.x) + noise)
        every = np.arange(len(rows))
        for variables, (low, high) in zip((s, psi), ends, strict=True):
            if share.moves:
                make.shared(share, every, [(variables, 1.0)], -low)
                make.shared(share, every, [(variables, -1.0)], high)
        for kappa in _slopes(known):
            make.shared(share, every, [(psi, -1.0), (s, kappa)], _top(known, kappa))
            make.shared(
                share, every, [(psi, 1.0), (s, -kappa)], -known.loss.lowest(known.ends[1], known.low, known.high, kappa)
            )
        i, j = np.nonzero(noise)
        across = np.zeros((len(i), noise.shape[1]))
        across[np.arange(len(i)), j] = noise[i, j]
        self._noise(share, i, psi[i], (psi_low[i], psi_high[i]), self.theta[j], place, noise[i, j], rows.w[i], across)
        if rows.j is not None:
            self._directions(known, share, psi, (psi_low, psi_high), place)

    def _directions(self, known: Known, share: Share, at: Index, psi: tuple[Array, Array], place: Index) -> None:
        """Directions that the cells of a row share, with `v·θ` as a variable."""
        make, rows, z = self._make, known.rows, self.ranges
        assert rows.j is not None
        v = rows.j.reshape(-1, rows.j.shape[2])
        i = np.repeat(np.arange(len(rows)), rows.j.shape[1])
        middle, radius = v @ z.middle, np.abs(v) @ z.radius
        radius = radius + 8.0 * (v.shape[1] + 2) * EPS * (np.abs(v) @ z.reach)
        along = make.variables(middle - radius, middle + radius)
        line = make.lines(np.zeros(len(v)), np.zeros(len(v)))
        make.put(line, along, 1.0)
        make.dense(line, self.theta, -v)
        self._noise(share, i, at[i], (psi[0][i], psi[1][i]), along, place, np.ones(len(v)), rows.w[i], v)
        reach = np.maximum(np.abs(psi[0]), np.abs(psi[1]))
        self._size += np.einsum("n,ndp->p", rows.w * reach, np.abs(rows.j))

    def _noise(
        self,
        share: Share,
        i: Index,
        at: Index,
        psi: tuple[Array, Array],
        t: Index,
        place: Index,
        scale: Array,
        weight: Array,
        across: Array,
    ) -> None:
        """`δ`, `D = δt` and `P = δψ` for directions `across` of the rows `i`, whose `ψ` are the variables `at`."""
        make = self._make
        t_low, t_high = make.ends(t)
        one, far = np.ones(len(t)), np.maximum(np.abs(t_low), np.abs(t_high))
        sizes = one, far, np.maximum(np.abs(psi[0]), np.abs(psi[1]))
        delta, d, p = (make.variables(-size, size) for size in sizes)
        make.put(place[i], d, -scale)
        make.dense(self.gradient, p, (weight[:, None] * across).T)
        for low, sign in ((t_low, 1.0), (t_high, -1.0)):
            # (1 ± δ)(t − low) ≥ 0 and (1 ± δ)(high − t) ≥ 0
            for side in (1.0, -1.0):
                line = make.lines(sign * low, np.full(len(t), np.inf))
                make.put(line, t, sign)
                make.put(line, d, sign * side)
                make.put(line, delta, -sign * side * low)
        for end, sign in zip(psi, (1.0, -1.0), strict=True):
            for side in (1.0, -1.0):
                make.shared(share, i, [(at, sign), (p, sign * side), (delta, -sign * side * end)], -sign * end)
        if share.moves:
            for side in (1.0, -1.0):
                make.shared(share, i, [(delta, side)], one)
                make.shared(share, i, [(d, side)], far)

    def _moved(self, of: Index, x: Array, z: Index) -> None:
        """Alternatives with another centre: `q = z(x' − x)·θ` is part of the score."""
        make, r = self._make, self.ranges
        v = x - self.table.rows.x[of]
        on = np.flatnonzero(v.any(axis=1))
        if not len(on):
            return
        v, of, z = v[on], of[on], z[on]
        middle, size = v @ r.middle, np.abs(v) @ r.reach
        radius = np.abs(v) @ r.radius + 8.0 * (v.shape[1] + 2) * EPS * (
            size + (np.abs(x[on]) + np.abs(self.table.rows.x[of])) @ r.reach
        )
        t = make.variables(low := middle - radius, high := middle + radius)
        slip = 8.0 * EPS * ((np.abs(x[on]) + np.abs(self.table.rows.x[of])) @ r.reach)
        line = make.lines(-slip, slip)
        make.put(line, t, 1.0)
        make.dense(line, self.theta, -v)
        q = make.variables(np.minimum(low, 0.0), np.maximum(high, 0.0))
        make.put(self.scores[of], q, -1.0)
        for end, sign in ((low, 1.0), (high, -1.0)):
            line = make.lines(np.zeros(len(on)), np.full(len(on), np.inf))  # z(t − end) ≥ 0
            make.put(line, q, sign)
            make.put(line, z, -sign * end)
            line = make.lines(sign * end, np.full(len(on), np.inf))  # (1 − z)(t − end) ≥ 0
            make.put(line, t, sign)
            make.put(line, q, -sign)
            make.put(line, z, sign * end)


@dataclass(frozen=True, eq=False)
class Share:
    """What stands for each row's share: `μ = whole + sign·Σ z`, over pairs of a row and a variable `z`."""

    whole: Array
    rows: Index
    z: Index
    sign: float

    @property
    def moves(self) -> bool:
        return bool(len(self.z))

    def box(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Ends of a variable in `[low, high]` times the share, which is at most 1."""
        loose = np.zeros(len(low), dtype=bool)
        loose[self.rows] = True
        return np.where(loose, np.minimum(low, 0.0), low), np.where(loose, np.maximum(high, 0.0), high)


class Maker:
    """Rows and variables of a program, while it is put together."""

    def __init__(self) -> None:
        self._box: list[tuple[Array, Array]] = []
        self._ends: list[tuple[Array, Array]] = []
        self._entries: list[tuple[Index, Index, Array]] = []
        self.columns = self.rows = 0

    def variables(self, low: Array, high: Array) -> Index:
        self._box.append((low, high))
        self.columns += len(low)
        return np.arange(self.columns - len(low), self.columns, dtype=np.intp)

    def ends(self, variables: Index) -> tuple[Array, Array]:
        """The boxes of some variables."""
        low, high = (np.concatenate([part[k] for part in self._box]) for k in (0, 1))
        return low[variables], high[variables]

    def lines(self, low: Array, high: Array) -> Index:
        """New rows with these ends."""
        self._ends.append((low, high))
        self.rows += len(low)
        return np.arange(self.rows - len(low), self.rows, dtype=np.intp)

    def put(self, lines: Index, variables: Index, values: Array | float) -> None:
        self._entries.append((lines, variables, np.broadcast_to(values, lines.shape)))

    def dense(self, lines: Index, variables: Index, values: Array) -> None:
        """A whole block: lines × variables."""
        i, j = np.nonzero(values)
        self.put(lines[i], variables[j], values[i, j])

    def shared(self, share: Share, of: Index, terms: list[tuple[Index, Array | float]], factor: Array) -> None:
        """Rows `Σ terms + factor·μ ≥ 0`, with `μ` the shares of the rows `of`."""
        lines = self.lines(-factor * share.whole[of], np.full(len(of), np.inf))
        for variables, value in terms:
            self.put(lines, variables, value)
        if share.moves:
            shape = (len(share.whole), self.columns)
            own = sparse.csr_matrix((np.full(len(share.z), share.sign), (share.rows, share.z)), shape=shape)[of].tocoo()
            self.put(lines[own.row], own.col.astype(np.intp), own.data * factor[own.row])

    def finish(self, late: dict[int, tuple[Array, Array]]) -> Program:
        """The program; `late`: ends of rows from this number on that were not known before."""
        low, high = (np.concatenate([part[k] for part in self._ends]) for k in (0, 1))
        for at, ends in late.items():
            low[at : at + len(ends[0])], high[at : at + len(ends[0])] = ends
        i, j, values = (np.concatenate([part[k] for part in self._entries]) for k in range(3))
        matrix = sparse.csr_matrix((values, (i, j)), shape=(self.rows, self.columns))
        box = [np.concatenate([part[k] for part in self._box]) for k in (0, 1)]
        owner, none = np.full(self.rows, FREE, dtype=np.intp), np.zeros((0, 3), dtype=np.intp)
        return Program(box[0], box[1], np.zeros(self.columns, dtype=bool), matrix, low, high, owner, none)


def value(program: Program, c: Array, y: Array) -> float:
    """(2): an upper bound of `c·v` over the program, for any `y`; outward. Infinite where a number is not finite."""
    with np.errstate(all="ignore"):
        y = np.where(np.isfinite(y), y, 0.0)
        end = np.where(y >= 0, program.row_upper, program.row_lower)
        y = np.where(np.isfinite(end), y, 0.0)  # a row has no such end
        end = np.where(np.isfinite(end), end, 0.0)
        g = c - program.matrix.T @ y
        far = np.maximum(np.abs(program.lower), np.abs(program.upper))
        total = y @ end + np.maximum(g * program.lower, g * program.upper).sum()
        size = np.abs(y) @ np.abs(end) + (np.abs(c) + abs(program.matrix).T @ np.abs(y)) @ far
        found = float(total + 4.0 * (program.rows + program.variables + 16) * EPS * size)
    return found if np.isfinite(found) else np.inf


def changes_weights(table: Table, budget: Budget) -> bool:
    """May a row of the budget be gone, come anew, or weigh something else? Shares know rows of one weight."""
    new = bool((budget.rows < 0).any())
    return budget.gone is not None or new or bool((budget.by.w != table.rows.w[budget.rows]).any())


def cell_noise(rows: Rows, table: Table | None) -> Array:
    """Largest noise of every cell, but for directions that cells share."""
    total = np.array(rows.r)
    for piece in rows.pieces:
        total += np.asarray(abs(piece.linear) @ piece.segments.magnitude()).reshape(total.shape)
    for spread in () if table is None else table.blocks:
        total += np.asarray(abs(spread.linear) @ spread.block.magnitude()).reshape(total.shape)
    return total * (1.0 + 16.0 * EPS) if rows.pieces or (table is not None and table.blocks) else total


def _slopes(known: Known) -> list[Array]:
    """Slopes of lines around `ψ`: those of its envelopes at some scores, and the secant."""
    found = [known.secant]
    for share in (np.arange(LINES) + 0.5) / LINES:
        s = known.low + share * (known.high - known.low)
        found += [known.envelope(np.full(len(s), up), s)[1] for up in (True, False)]
    return [np.maximum(kappa, 0.0) for kappa in found]


def _top(known: Known, kappa: Array) -> Array:
    return known.loss.highest(known.ends[0], known.low, known.high, kappa)
