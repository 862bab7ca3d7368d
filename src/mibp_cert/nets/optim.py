"""Optimisers, written in graph operations. The update is part of the step's graph: `θ − λ∇J(θ)` is one expression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from mibp_cert.errors import UserError
from mibp_cert.graph import GraphBuilder

SMALLEST_RATE = 1e-250
"""Far above the subnormal numbers, where a factor would no longer be rounded relatively."""


@dataclass(frozen=True)
class SGD:
    """Plain stochastic gradient descent: `θ' = θ − (λ/|B|) Σ_{i∈B} ∇J_i`. The batch mean is taken here and only here."""

    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.learning_rate) and self.learning_rate >= 0):
            raise UserError(f"The learning rate must be a finite number ≥ 0, got {self.learning_rate}.")
        if 0 < self.learning_rate < SMALLEST_RATE:
            raise UserError(f"The learning rate must be 0 or at least {SMALLEST_RATE:g}, got {self.learning_rate}.")

    def update(self, g: GraphBuilder, parameter: int, gradient_sum: int, batch_size: int) -> int:
        return g.add(parameter, g.scale(gradient_sum, -Fraction(self.learning_rate) / batch_size))
