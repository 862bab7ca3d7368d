"""Symbols in a box cut by linear constraints: `|ε_j| ≤ 1`, `A·ε ≤ b`.

By duality, for every `λ ≥ 0`

    max { g·ε } ≤ λ·b + Σ_j |g_j − (Aᵀλ)_j|

so any `λ` gives a safe bound, however it was found. It is found by minimising the right-hand side over one `λ_i` after the other,
which is exact in each: a weighted median of the breakpoints `c_j / A_ij`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from mibp_cert.sets.blocks import Array, Block, Index

SWEEPS = 4
UNIT = 2.0**-53


@dataclass(frozen=True, eq=False)
class Polytope(Block):
    """See the module's text."""

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
