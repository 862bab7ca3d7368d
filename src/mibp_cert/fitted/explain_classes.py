"""What a bound over several classes is made of: the bound of `fitted.softmax`, told apart as in `fitted.explain`.

With the clean minimiser `C` (K × P), clean scores `z⁰_i = C x⁰_i`, `ψ⁰_i = ψ(y⁰_i, z⁰_i)` and `t⁰_ij = Σ_k (ψ⁰_ik u_kj + λ_ik
C_kj)`, the bound with multipliers `u`, `λ`, `ρ` is `a·C` plus

    Σ_ij w_i (x̂_ij − x⁰_ij) t⁰_ij                                    noise
    Σ_ij r_ij γ_ij                                                  chords
    Σ_i w_i { max_z [ω_i·ψ(y⁰_i, z) − λ_i·z] − (ω_i·ψ⁰_i − λ_i·z⁰_i) }        bands
    Σ_i w_i { max over all labels − max with y⁰_i }                  targets

and budgets, rest, tilt and rounding as there: with `A` the curvature of penalty and pin, `AC = ∇L(C) − Σ_i w_i ψ⁰_i ⊗ x⁰_i`, and
`ω_i = u x̂_i`.

*One-versus-rest* bounds a query by the smaller of two: the sum over the classes' own problems, whose parts add up, and the bound
of all classes at once, which is the one above. That one is taken apart which is smaller.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.class_dual import ClassDual
from mibp_cert.fitted.explain import (
    CELLS,
    Clean,
    Explanation,
    _by_column,
    _cells,
    _cells_of,
    _replaced,
    _supports,
    explain,
)
from mibp_cert.fitted.several import OneVersusRest, SoftmaxProblem
from mibp_cert.fitted.softmax import ClassKnown
from mibp_cert.fitted.table import Array, Budget


class _Recorded(ClassDual):
    """Bounds that remember the multipliers and the costs behind them."""

    def _find(self, *asked: Any) -> Any:
        self.found = super()._find(*asked)
        self.gains: list[Array] = []
        return self.found

    def _largest(self, budget: Budget, gain: Array) -> Array:
        self.gains.append(gain)
        return super()._largest(budget, gain)


def explain_classes(problem: SoftmaxProblem | OneVersusRest, ranges: Ranges, clean: Clean, a: Array) -> Explanation:
    """What the upper bounds of `a·Θ` are made of, for queries as the network lays parameters out."""
    rows = problem.table.rows if isinstance(problem, SoftmaxProblem) else problem.each[0].table.rows
    step = max(1, CELLS // max(1, rows.x.size * clean.y.shape[1]))
    if isinstance(problem, OneVersusRest) and problem.many:
        return _apart(problem, ranges, clean, a)
    parts = [_joint(problem, ranges, clean, a[i : i + step]) for i in range(0, len(a), step)]
    found = _each(parts, lambda *of: np.concatenate(of))
    if isinstance(problem, SoftmaxProblem):
        return found
    apart = _apart(problem, ranges, clean, a)
    less = apart.total <= found.total
    less |= problem.by_class(a).any(axis=2).sum(axis=1) < 2  # such a query is asked of its own problem alone
    return _each([apart, found], lambda one, other: np.where(less.reshape(-1, *[1] * (one.ndim - 1)), one, other))


def _apart(problem: OneVersusRest, ranges: Ranges, clean: Clean, a: Array) -> Explanation:
    """The sum of what the bounds of the classes' own problems are made of."""
    queries = zip(problem.each, problem.split(ranges), np.moveaxis(problem.by_class(a), 1, 0), clean.y.T, strict=True)
    own = [explain(one, z, replace(clean, y=y), part) for one, z, part, y in queries]
    return sum(own[1:], own[0])


def _each(parts: list[Explanation], how: Any) -> Explanation:
    return Explanation(*(how(*(getattr(part, f.name) for part in parts)) for f in fields(Explanation)))


def _joint(problem: SoftmaxProblem | OneVersusRest, ranges: Ranges, clean: Clean, a: Array) -> Explanation:
    dual = problem._dual(ranges, kind=_Recorded)
    assert isinstance(dual, _Recorded)
    query, c, box = problem.by_class(a).reshape(len(a), -1), problem.by_class(problem.c), dual.box
    bound = dual._upper(query, np.full(len(a), -1, dtype=np.intp), 1.0)
    (u, p, rho, _), known, rows = dual.found, dual.all, dual.table.rows
    hat = known.worst(rho)
    omega = u @ hat.swapaxes(1, 2)
    lam = known.multipliers(omega, p)
    both, s = rows.w * lam, c @ clean.x.T
    psi = known.at(s, clean.y.T)[1]
    at_c = (rows.w * psi).T @ u + both.swapaxes(1, 2) @ c  # t⁰, weights included
    (moved, gaps), one = _cells_of(known, rho, (u, both), clean, at_c), np.ones((len(rows), 1))
    noise, chords, bands = _by_column(known, one, clean, (u, both, rho, at_c), (moved, gaps))
    for first, second in _supports(known, one, dual.table, (u, both, rho), at_c):
        noise, chords = noise + first[..., : clean.columns], chords + second[..., : clean.columns]
    own, all_ = known.share(omega, p, lam, clean.y.T), known.share(omega, p, lam)
    bands = bands + rows.w * (own - (omega * psi - lam * s).sum(axis=1))
    flat, middle = u.reshape(len(a), -1), box.middle.ravel()
    g = query + flat @ dual.fixed + (both @ hat).reshape(len(a), -1)
    gradient = ((rows.w * psi) @ clean.x).ravel() + dual.fixed @ c.ravel()
    by_column = [
        _weights(other, u, p[..., old], clean.y.T[:, old], clean.columns)
        for old, other in zip((np.maximum(b.rows, 0) for b in dual.table.budgets), dual.others, strict=True)
    ]
    budgets, new, possible = _replaced(dual, dual.gains, by_column, (*bands.shape, clean.columns + 1))
    parts = Explanation(
        noise,
        chords,
        bands,
        rows.w * (all_ - own),
        budgets,
        g @ (middle - c.ravel()) + np.abs(g) @ box.radius.ravel() + new,
        np.abs(flat) @ dual.tau + flat @ gradient,
        np.zeros(len(a)),
        possible,
    )
    return replace(parts, rounding=bound - query @ c.ravel() - parts.total)


def _weights(known: ClassKnown, u: Array, p: Array, y: Array, columns: int) -> Array:
    """How much of what an alternative costs is due to which columns, and to its label, which was `y`: about."""
    omega, w = u @ known.rows.x.T, known.rows.w
    cells = _cells(known.rows, *known._moved(u, w * known.multipliers(omega, p)), columns)
    label = np.maximum(w * (known.labels(omega) + (y * omega).sum(axis=1)), 0.0)
    return np.append(cells, label[..., None], axis=2)
