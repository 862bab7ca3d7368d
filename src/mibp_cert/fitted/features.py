"""Frozen features: fixed functions of a row, drawn once, in front of a fitted layer.

A row in doubt, `x + d` with `|d_k| ≤ r_k`, goes through them as an affine function of its own doubt and a remainder: with `z =
Wx + b` in `[l, h] = z ± |W|r`, a line of slope `s` and a band `[β₋, β₊]` with `tanh z ∈ s·z + [β₋, β₊]` on `[l, h]`
(`engines.relax`),

    φ(x + d) ∈ s∘z + ½(β₊ + β₋) + Σ_k d_k s∘W_k ± ½(β₊ − β₋):

directions `r_k s∘W_k` that the features share, and a radius for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mibp_cert.engines.relax import smooth_line
from mibp_cert.errors import UserError
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.table import Array, Rows, Table
from mibp_cert.nets import Layer, Linear, Tanh


@dataclass(frozen=True)
class RandomFeatures:
    """`count` features `tanh(w·x + b)`, `w` normal of deviation `scale`, `b` uniform in `±scale`, drawn from `seed`: a nonlinear
    model whose fit is still convex.

    >>> len(RandomFeatures(30, scale=2.0).layers(2))
    2
    """

    count: int
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count != int(self.count) or self.count < 1:
            raise UserError(f"The number of features must be a whole number ≥ 1, got {self.count}.")
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise UserError(f"The scale of random features must be a finite number > 0, got {self.scale}.")

    def layers(self, inputs: int) -> tuple[Layer, ...]:
        """The features as layers of a network."""
        return (Linear(inputs, int(self.count)), Tanh())

    def draw(self, inputs: int) -> tuple[Array, Array]:
        """`W` (count × inputs) and `b`."""
        rng = np.random.default_rng([int(self.seed), 3])
        return rng.normal(0.0, self.scale, (self.count, inputs)), rng.uniform(-self.scale, self.scale, self.count)

    def values(self, inputs: int) -> Array:
        """Their parameters, as the network lays them out."""
        weight, bias = self.draw(inputs)
        return np.concatenate([weight.ravel(), bias])

    def pull(self, values: Array, upstream: Array, inputs: int) -> Array:
        """The gradient with respect to the inputs, from the features' values and the gradient with respect to them."""
        return np.asarray(((1.0 - values * values) * upstream) @ self.draw(inputs)[0])

    def through(self, table: Table) -> Table:
        """The table of the features: its rows, and what may replace them."""
        if table.blocks:
            # Noise that several rows or cells share is taken cell by cell.
            radius = table.rows.r + sum(
                np.asarray(abs(spread.linear) @ spread.block.magnitude()).reshape(table.rows.r.shape)
                for spread in table.blocks
            )
            table = replace(table, rows=replace(table.rows, r=radius * (1.0 + 8.0 * EPS)), blocks=())
        budgets = tuple(replace(b, by=self._through(b.by), targets_only=False) for b in table.budgets)
        return replace(table, rows=self._through(table.rows), budgets=budgets)

    def _through(self, rows: Rows) -> Rows:
        weight, bias = self.draw(rows.x.shape[1])
        radius = np.array(rows.r)
        for piece in rows.pieces:
            radius += np.asarray(abs(piece.linear) @ piece.segments.magnitude()).reshape(radius.shape)
        z = rows.x @ weight.T + bias
        size = np.abs(rows.x) @ np.abs(weight).T + np.abs(bias)
        slip = 2.0 * (rows.x.shape[1] + 4) * EPS * size
        reach = (radius @ np.abs(weight).T) * (1.0 + 8.0 * EPS * rows.x.shape[1]) + slip
        line = smooth_line("tanh", z - reach, z + reach)
        middle, half = 0.5 * (line.top + line.bottom), 0.5 * (line.top - line.bottom)
        # What the line, its slope and the products below may have lost.
        half = half * (1.0 + 8.0 * EPS) + np.abs(line.slope) * (2.0 * slip + 8.0 * EPS * reach) + 16.0 * EPS
        j = radius[:, :, None] * line.slope[:, None, :] * weight.T[None, :, :]
        return Rows(line.slope * z + middle, half, rows.y, rows.q, rows.w, j)
