"""What a bound of `a·θ` is made of: (1) of `fitted.dual`, told apart by rows and columns.

Let `c` be the clean minimiser, `x⁰_i`, `y⁰_i`, `s⁰_i = x⁰_i·c`, `ψ⁰_i = ψ(y⁰_i, s⁰_i)` the clean rows and what they are at `c`,
and `t⁰_ij = ψ⁰_i u_j + κ_i ω_i c_j`. As `αc = ∇L(c) − Σ_i w_i ψ⁰_i x⁰_i`, the bound with multipliers `u`, `κ`, `ρ` is `a·c` plus

    Σ_ij w_i (x̂_ij − x⁰_ij) t⁰_ij                              noise: what the cells move, to first order
    Σ_ij w_i r_ij γ_ij                                        chords: signs of `t_ij` that are open
    Σ_i w_i { |ω_i| max_S ±(ψ(y⁰_i, ·) − κ_i s) − ω_i (ψ⁰_i − κ_i s⁰_i) }    bands: the curvature of `ψ`
    Σ_i w_i |ω_i| {max over all targets − max with y⁰_i}      targets
    the largest costs of replaced rows                        budgets
    g·(θ̄ − c) + |g|·δθ                                        rest: what the multipliers leave of `θ`
    |u|·τ + u·∇L(c)                                           tilt

and what rounding outward adds. Noise of a row that is known by a support function moves `x̂` (noise) and pays what it reaches
beyond (chords); that of several rows pays for the middle of `t` (noise) and for its radius (chords), shared among its symbols by
`|g_k|` and among cells by what a symbol moves. With frozen features in front, columns are those of the inputs: of a direction
the one that moves along it, of a symbol those of the cells that it moves before the features (also for the move of `x̂`). The
features' own remainder counts as a band, which is negative where one-sided noise moves their line away from the row.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.known import Known, _gap, _through
from mibp_cert.fitted.model import FitStep
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.table import Array, Budget, Index, Pieces, Rows, Spread, Table
from mibp_cert.sets import ThreatSet, beyond

CELLS = 1_000_000
"""Entries (queries × rows × parameters) that are taken apart at once."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """The distance of bounds from the clean model's value, for every query: parts that add up to `total`."""

    noise: Array
    """Queries × rows × columns."""
    chords: Array
    bands: Array
    """Queries × rows."""
    targets: Array
    budgets: Array
    """What the rows cost that budgets replace; rows that were not there are counted in `rest`."""
    rest: Array
    tilt: Array
    rounding: Array
    possible: Array
    """Beside the sum: what each row could cost if a budget replaced it (queries × rows × columns, and the target)."""

    @property
    def rows(self) -> Array:
        """What goes through each row (queries × rows)."""
        return np.asarray((self.noise + self.chords).sum(axis=2) + self.bands + self.targets + self.budgets)

    @property
    def columns(self) -> Array:
        """What goes through the cells of each column (queries × columns)."""
        return np.asarray((self.noise + self.chords).sum(axis=1))

    @property
    def total(self) -> Array:
        """The distance of the bounds from the clean model; of both ends together: their width."""
        return np.asarray(self.rows.sum(axis=1) + self.rest + self.tilt + self.rounding)

    def __add__(self, other: Explanation) -> Explanation:
        return Explanation(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def scaled(self, factor: float) -> Explanation:
        """The same in other units."""
        return Explanation(*(factor * getattr(self, f.name) for f in fields(self)))

    def among(self, places: Index, count: int) -> Explanation:
        """The same with as many rows as these: what it tells of are the rows at these places; others cost nothing."""

        def placed(part: Array) -> Array:
            if part.ndim == 1:
                return part
            whole = np.zeros((len(part), count, *part.shape[2:]))
            whole[:, places] = part
            return whole

        return Explanation(*(placed(getattr(self, f.name)) for f in fields(self)))


class _Recorded(Dual):
    """Bounds that remember the multipliers and the costs behind them."""

    def _search(self, *asked: Any) -> Any:
        self.found = super()._search(*asked)
        self.gains: list[Array] = []
        return self.found

    def _largest(self, budget: Budget, gain: Array) -> Array:
        self.gains.append(gain)
        return super()._largest(budget, gain)


@dataclass(frozen=True, eq=False)
class Clean:
    """The rows as handed in: what the model sees of them (with a 1), their targets (of several classes: rows × K), and how many
    columns the table has."""

    x: Array
    y: Array
    columns: int

    @classmethod
    def of(cls, step: FitStep, threat: ThreatSet, frozen: Array) -> Clean:
        x, y = threat.reference
        design, keep = step.design(np.append(frozen, np.zeros(step.fitted)), x), step.counts(y) > 0
        target = y[:, : step.head.outputs] if step.several else y[:, step.column]
        return cls(design[keep], target[keep], x.shape[1])


def explain(problem: Problem, ranges: Ranges, clean: Clean, a: Array, rounds: int = 3) -> Explanation:
    """What the upper bounds of `a·θ` are made of."""
    step = max(1, CELLS // max(1, problem.table.rows.x.size))
    parts = [_explain(problem, ranges, clean, a[i : i + step], rounds) for i in range(0, len(a), step)]
    return Explanation(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Explanation)))


def _explain(problem: Problem, ranges: Ranges, clean: Clean, a: Array, rounds: int) -> Explanation:
    table, rows, loss, c = problem.table, problem.table.rows, problem.loss, problem.c
    dual = _Recorded(table, loss, ranges, problem.tau, rounds)
    nobody = np.full(len(a), -1, dtype=np.intp)
    bound = dual._upper(a, nobody, 1.0)
    u, kappa, _, found = dual.found
    rho, known = tuple(np.concatenate(part, axis=1) for part in zip(*found, strict=True)), dual.main
    hat = known.worst(rho)
    omega = np.einsum("qnp,qp->qn", hat, u)
    lam = kappa * omega
    psi = loss.psi(clean.y, problem.s)
    at_c = psi[:, None] * u[:, None, :] + lam[..., None] * c  # t⁰
    moved, gaps = _cells_of(known, rho, (u, lam), clean, at_c)
    moved, gaps = rows.w[:, None] * moved, rows.w[:, None] * gaps
    weight = rows.w[:, None]
    noise, chords, bands = _by_column(known, weight, clean, (u, lam, rho, at_c), (moved, gaps))
    for first, second in _supports(known, weight, table, (u, lam, rho), at_c):
        noise, chords = noise + first[..., : clean.columns], chords + second[..., : clean.columns]
    # |ω| max ±(ψ − κs): with the targets as handed in, and with all of them.
    own, all_ = (_tops(known, omega, kappa, ends) for ends in ((clean.y, clean.y), known.ends))
    bands = bands + rows.w * (own - omega * (psi - kappa * problem.s))
    g = a + table.alpha * u + ((rows.w * lam)[..., None] * hat).sum(axis=1)
    rest = g @ (ranges.middle - c) + np.abs(g) @ ranges.radius
    gradient = clean.x.T @ (rows.w * psi) + table.alpha * c
    by_column = [
        _weights(other, u, kappa[:, np.maximum(budget.rows, 0)], clean.columns)
        for budget, other in zip(table.budgets, dual.by, strict=True)
    ]
    budgets, new, possible = _replaced(dual, dual.gains, by_column, (*bands.shape, clean.columns + 1))
    parts = Explanation(
        noise,
        chords,
        bands,
        rows.w * (all_ - own),
        budgets,
        rest + new,
        np.abs(u) @ problem.tau + u @ gradient,
        np.zeros(len(a)),
        possible,
    )
    return replace(parts, rounding=bound - a @ c - parts.total)


def _cells_of(
    known: Known, rho: tuple[Array, ...], of: tuple[Array, Array], clean: Clean, at_c: Array
) -> tuple[Array, Array]:
    """Noise and chords of the rows' own cells."""
    moved, gaps, r = np.broadcast_to(known.rows.x - clean.x, at_c.shape).copy(), np.zeros(at_c.shape), known.rows.r
    moved[:, known.doubt] += r[known.doubt] * rho[0]
    gaps[:, known.doubt] = r[known.doubt] * _gap(*known._moved(*of, None, known.doubt), rho[0])
    return moved * at_c, gaps


def _by_column(
    known: Known, weight: Array, clean: Clean, multipliers: tuple[Any, ...], own: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """Noise and chords of cells by the columns of the table, and what is the features' own. `weight`: of rows, where `t` has
    none."""
    (u, lam, rho, at_c), (moved, gaps), rows = multipliers, own, known.rows
    if rows.j is None:
        return moved[..., : clean.columns], gaps[..., : clean.columns], np.zeros(at_c.shape[:2])
    first = weight * rho[1] * np.einsum("ndp,qnp->qnd", rows.j, at_c)
    second = weight * _gap(*known._directed(u, lam), rho[1])
    return _placed(rows, first, clean.columns), _placed(rows, second, clean.columns), (moved + gaps).sum(axis=2)


def _placed(rows: Rows, paid: Array, columns: int) -> Array:
    """What directions pay (queries × rows × directions), by the columns of the inputs that move along them."""
    assert rows.along is not None
    whole = np.zeros((*paid.shape[:2], columns))
    whole[..., rows.along] = paid
    return whole


def _tops(known: Known, omega: Array, kappa: Array, ends: tuple[Array, Array]) -> Array:
    """`|ω| max ±(ψ − κs)` over the scores and the targets between these ends."""
    up, loss = omega >= 0, known.loss
    y = np.where(up, ends[0], loss.mirrored(ends[1]))
    low, high = np.where(up, known.low, -known.high), np.where(up, known.high, -known.low)
    return np.asarray(np.abs(omega) * loss.highest(y, low, high, kappa))


def _supports(
    known: Known, weight: Array | float, table: Table, of: tuple[Any, ...], at_c: Array
) -> list[tuple[Array, Array]]:
    """Noise and chords by cells, of noise that is known by support functions; `of`: `u`, `λ` and `ρ`."""
    u, lam, rho = of
    pieces = zip(known.rows.pieces, rho[known.first_piece :], strict=True)
    found = [_leaned(known, weight, piece, at, (u, lam), at_c) for piece, at in pieces]
    return found + [_shared(known, weight, spread, (u, lam)) for spread in table.blocks]


def _leaned(
    known: Known, weight: Array | float, piece: Pieces, at: Array, of: tuple[Array, Array], at_c: Array
) -> tuple[Array, Array]:
    """What pieces pay, by cells: for the move to `ε̂`, and for what they reach beyond."""
    segments = piece.segments
    g, more = _through(piece.linear, *(weight * part for part in known._moved(*of)))
    paid = beyond(segments, g, more, at)
    share = (np.abs(g) + more) * segments.magnitude()
    whole = np.add.reduceat(share, segments.starts, axis=1)
    share = share * np.repeat(paid / np.where(whole > 0, whole, 1.0), segments.sizes, axis=1)
    rows = at_c.shape[:2]
    if piece.before is not None:
        moved = at * (piece.linear.T @ (weight * at_c).reshape(len(at), -1).T).T
        return _by_cells(piece, moved, rows), _by_cells(piece, share, rows)
    return weight * (piece.linear @ at.T).T.reshape(at_c.shape) * at_c, _by_cells(piece, share, rows)


def _shared(known: Known, weight: Array | float, spread: Spread, of: tuple[Array, Array]) -> tuple[Array, Array]:
    """What noise of several rows pays, by cells: for the middle of `t`, and for its radius."""
    size = spread.block.magnitude()
    g, more = _through(spread.linear, *(weight * part for part in known._moved(*of)))
    share = np.abs(g) * size
    whole = share.sum(axis=1)
    paid = share * (spread.block.support(g)[1] / np.where(whole > 0, whole, 1.0))[:, None]
    rows = (len(g), len(known.rows))
    return _by_cells(spread, paid, rows), _by_cells(spread, more * size, rows)


def _by_cells(noise: Pieces | Spread, paid: Array, rows: tuple[int, ...]) -> Array:
    """What symbols pay, shared among the cells that they move: those of the inputs (queries × rows × cells)."""
    moves = abs(noise.linear if noise.before is None else noise.before)
    moves = moves.multiply(1.0 / np.maximum(np.asarray(moves.sum(axis=0)).ravel(), 1e-300)).tocsr()
    return np.asarray((moves @ paid.T).T.reshape(*rows, moves.shape[0] // rows[1]))


def _replaced(
    dual: Dual, gains: list[Array], by_column: list[Array], shape: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Costs of the rows that budgets replace; what rows cost that were not there; and what each row could cost, by columns: an
    array of this shape (queries × rows × columns, and the target). `by_column`: how alternatives share their costs."""
    rows, new, possible = np.zeros(shape[:2]), np.zeros(shape[0]), np.zeros(shape)
    for budget, weights, gain in zip(dual.table.budgets, by_column, gains, strict=True):
        total = Dual._largest(dual, budget, gain)
        there = np.flatnonzero(budget.rows >= 0)
        best = np.zeros(shape[:2])
        np.maximum.at(best.T, budget.rows[there], gain[:, there].T)
        # Where rows that were not there cost more, they are the ones that come.
        least = np.sort(best, axis=1)[:, ::-1][:, : budget.most]
        chosen = np.argsort(-best, axis=1, kind="stable")[:, : budget.most]
        took = np.zeros_like(best)
        if len(there) == len(budget.rows):
            np.put_along_axis(took, chosen, least, axis=1)
        rows, new = rows + took, new + total - took.sum(axis=1)
        whole = weights.sum(axis=2, keepdims=True)
        share = np.where(whole > 0, weights / np.where(whole > 0, whole, 1.0), 0.0)
        share[..., -1] += whole[..., 0] <= 0
        if budget.gone is not None:  # no cell of a row is to blame for its being there
            share[:, budget.gone] = np.eye(shape[2])[-1]
        # A row is replaced by one of its alternatives.
        most = np.where(gain[:, there] >= best[:, budget.rows[there]], gain[:, there], 0.0)
        costs = (share[:, there] * most[..., None]).transpose(1, 0, 2)
        np.add.at(possible.transpose(1, 0, 2), budget.rows[there], costs)
    return rows, new, possible


def _weights(known: Known, u: Array, kappa: Array, columns: int) -> Array:
    """How much of what an alternative costs is due to which columns, and to its target: about."""
    loss, omega = known.loss, u @ known.rows.x.T
    s = 0.5 * (known.low + known.high)
    target = np.abs(omega) * 0.5 * np.abs(loss.psi(known.ends[0], s) - loss.psi(known.ends[1], s))
    return np.append(_cells(known.rows, *known._moved(u, kappa * omega), columns), target[..., None], axis=2)


def _cells(rows: Rows, middle: Array, radius: Array, columns: int) -> Array:
    """What the noise of each cell of the inputs may be worth, about, for `t` in `middle ± radius`."""
    cells = np.zeros((*middle.shape[:2], columns))
    if rows.j is not None:
        cells = _placed(rows, np.abs(np.einsum("ndp,qnp->qnd", rows.j, middle)), columns)
    elif rows.along is None:
        cells = (rows.r * (np.abs(middle) + radius))[..., :columns]
    for piece in rows.pieces:
        g = np.abs(_through(piece.linear, middle, np.zeros_like(middle))[0]) * piece.segments.magnitude()
        cells = cells + _by_cells(piece, g, middle.shape[:2])[..., :columns]
    return np.asarray(cells)
