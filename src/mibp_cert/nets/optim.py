"""Optimisers, written in graph operations. The update is part of the step's graph: `θ − λ∇J(θ)` is one expression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mibp_cert.errors import UserError
from mibp_cert.graph import GraphBuilder
from mibp_cert.nets.network import Layout

SMALLEST_RATE = 1e-250
"""Far above the subnormal numbers, where a factor would no longer be rounded relatively."""
LARGEST_CLIP = 1e4
VELOCITY = "velocity "
SCHEDULES = ("constant", "step:every:factor", "exponential:factor", "cosine")


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum `μ`, weight decay `κ` and clipping of the mean gradient to `±clip`:

    `g = clip((1/|B|) Σ_{i∈B} ∇J_i)`, `v' = μv + g + κθ`, `θ' = θ − λv'`, from `v = 0`. The batch mean is taken here
    and only here.

    `θ'` is written `(1 − λκ)·θ − λμ·v − λ·g`, in which `θ` and `v` occur once each: no bound can invert, whatever `λκ` is.
    """

    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "momentum", "weight_decay", "clip"):
            value = getattr(self, name)
            if not isinstance(value, int | float | np.number) and not (name == "clip" and value is None):
                raise UserError(f"{name} must be a number, got {value!r}.")
        _check_rate(self.learning_rate)
        if not 0 <= self.momentum < 1:
            raise UserError(f"The momentum must be at least 0 and below 1, got {self.momentum}.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UserError(f"The weight decay must be a finite number ≥ 0, got {self.weight_decay}.")
        if self.clip is not None and not (math.isfinite(self.clip) and self.clip > 0):
            raise UserError(f"Gradients are clipped at a finite number > 0, got {self.clip}.")
        if self.clip is not None and self.clip > LARGEST_CLIP:
            raise UserError(f"Clipping gradients at {self.clip:g} does nothing but lose digits; leave it out.")
        for name in ("momentum", "weight_decay", "clip"):
            value = getattr(self, name)
            if value is not None and 0 < value < SMALLEST_RATE:
                raise UserError(f"{name} must be 0 or at least {SMALLEST_RATE:g}, got {value}.")

    def state(self, parameters: Layout) -> Layout:
        """What training carries from step to step: the parameters, and with momentum one velocity for each."""
        if self.momentum == 0:
            return parameters
        names = tuple(VELOCITY + name for name in parameters.names)
        return Layout(parameters.names + names, parameters.shapes * 2)

    def update(
        self, g: GraphBuilder, parameter: int, velocity: int | None, gradient_sum: int, batch_size: int, rate: float
    ) -> tuple[int, int | None]:
        """Write `θ'` and, with momentum, `v'`."""
        lam, mu, kappa = Fraction(rate), Fraction(self.momentum), Fraction(self.weight_decay)
        share = Fraction(1, batch_size)
        if self.clip is not None:
            gradient_sum, share = g.clip(g.scale(gradient_sum, share), self.clip), Fraction(1)
        kept = parameter if kappa == 0 else g.scale(parameter, 1 - lam * kappa, 1 + lam * kappa)
        if velocity is None:
            return g.add(kept, g.scale(gradient_sum, -lam * share)), None
        pushed = g.add(kept, g.scale(velocity, -lam * mu))
        change = g.scale(gradient_sum, share)
        change = change if kappa == 0 else g.add(change, g.scale(parameter, kappa))
        return g.add(pushed, g.scale(gradient_sum, -lam * share)), g.add(g.scale(velocity, mu), change)


def _check_rate(rate: float) -> None:
    if not (math.isfinite(rate) and rate >= 0):
        raise UserError(f"The learning rate must be a finite number ≥ 0, got {rate}.")
    if 0 < rate < SMALLEST_RATE:
        raise UserError(f"The learning rate must be 0 or at least {SMALLEST_RATE:g}, got {rate}.")


def learning_rates(rate: float, schedule: str | Sequence[float], epochs: int) -> tuple[float, ...]:
    """The rate of every epoch `e = 0, 1, …`: as listed, or by name.

    `constant`: `λ`; `step:n:f`: `λ·f^⌊e/n⌋`; `exponential:f`: `λ·f^e`; `cosine`: `½λ(1 + cos(πe/epochs))`.

    >>> learning_rates(0.1, "step:2:0.5", 4)
    (0.1, 0.1, 0.05, 0.05)
    """
    if not isinstance(schedule, str):
        try:
            rates = tuple(float(value) for value in schedule)
        except (TypeError, ValueError):
            raise UserError(
                f"A schedule is one of {', '.join(SCHEDULES)}, or one number per epoch; got {schedule!r}."
            ) from None
        if len(rates) != epochs:
            raise UserError(f"The schedule lists {len(rates)} learning rates for {epochs} epochs; list one per epoch.")
    else:
        rates = tuple(rate * factor for factor in _factors(schedule, epochs))
    for value in rates:
        _check_rate(value)
    return rates


def _factors(schedule: str, epochs: int) -> list[float]:
    name, *numbers = schedule.split(":")
    try:
        match name, [float(number) for number in numbers]:
            case "constant", []:
                return [1.0] * epochs
            case "step", [every, factor] if every >= 1 and every == int(every) and factor > 0:
                return [factor ** (epoch // int(every)) for epoch in range(epochs)]
            case "exponential", [factor] if factor > 0:
                return [factor**epoch for epoch in range(epochs)]
            case "cosine", []:
                return [0.5 * (1.0 + math.cos(math.pi * epoch / epochs)) for epoch in range(epochs)]
    except ValueError:
        pass
    raise UserError(
        f"There is no schedule {schedule!r}; choose one of {', '.join(SCHEDULES)} (in Python, also a list of rates)."
    )
