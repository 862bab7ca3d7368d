"""Losses of one score: `ℓ(y, s)` convex in `s`, with `ψ = ∂ℓ/∂s` non-decreasing; what a bound must know of `ψ`.

| loss            | `ℓ(y, s)`                         | `ψ(y, s)`                | `y`                  |
|-----------------|-----------------------------------|--------------------------|----------------------|
| `cross-entropy` | `log(1 + eˢ) − y·s`               | `σ(s) − y`               | 0, 1, or between     |
| `squared-error` | `½(s − y)²`                       | `s − y`                  | any number           |
| `squared-hinge` | `max(0, 1 − z·s)²`, `z = 2y − 1`  | `−2z·max(0, 1 − z·s)`    | 0 or 1               |
| `huber`         | `½e²`, or `δ(|e| − ½δ)`, `e=s−y`  | `min(δ, max(−δ, s − y))` | any number           |

Every `ψ` is convex below a point `m` and concave above it (`m = 0`, none, `±∞`, `y`). So on `[l, h]` the maximum of `f(s) =
ψ(s) − κs` is at an end of the convex part, or in the concave part, where for every `c` in it

    f(s) ≤ f(c) + max(0, f'(c)(h − c), f'(c)(l' − c)),        l' = max(l, m),

which is an equality where `c` is the true maximiser: a bound that holds however roughly `c` was found. The minimum is the
maximum of the mirrored function `−ψ(−s)`, which has the same shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EPS = float(np.finfo(float).eps)


class ScoreLoss(ABC):
    """See the module's text; all methods broadcast."""

    name: ClassVar[str]
    label_shift: ClassVar[bool]
    """Does a target move `ψ` by `−y`, whatever the score?"""
    curved: ClassVar[bool] = False
    """Where not, `ψ` is piecewise linear: extremes are at ends and kinks."""
    steepest: ClassVar[float]
    """Largest `ψ'`."""

    @abstractmethod
    def value(self, y: Array, s: Array) -> Array:
        """`ℓ(y, s)`."""

    @abstractmethod
    def psi(self, y: Array, s: Array) -> Array:
        """`ψ(y, s)`."""

    @abstractmethod
    def slope(self, y: Array, s: Array) -> Array:
        """`ψ'(y, s)`, at a kink from one side."""

    @abstractmethod
    def bend(self, y: Array) -> Array:
        """The point `m` below which `ψ` is convex and above which it is concave."""

    @abstractmethod
    def flat(self, y: Array, kappa: Array) -> Array:
        """A point of the concave part at which `ψ' = κ`, or the kink at which it passes `κ`."""

    @abstractmethod
    def mirrored(self, y: Array) -> Array:
        """The target `y'` with `−ψ(y, −s) = ψ(y', s)`."""

    @abstractmethod
    def size(self, y: Array, s: Array) -> Array:
        """Largest intermediate result of `ψ(y, s)`: its evaluation is off by at most 8 roundings relative to it."""

    def bowl(self, y: Array, s: Array) -> Array:
        """Curvature of a parabola that touches `ℓ` at `s` and is nowhere below it."""
        return np.full(np.broadcast_shapes(y.shape, s.shape), self.steepest)

    def highest(self, y: Array, low: Array, high: Array, kappa: Array) -> Array:
        """Upper bound of `ψ(y, s) − κs` over `low ≤ s ≤ high`, outward."""
        m = np.clip(self.bend(y), low, high)
        c = np.clip(self.flat(y, kappa), m, high)
        rise = self.slope(y, c) - kappa if self.curved else np.zeros_like(c)
        top = self.psi(y, c) - kappa * c + np.maximum(0.0, np.maximum(rise * (high - c), rise * (m - c)))
        for s in (low, m, high):
            top = np.maximum(top, self.psi(y, s) - kappa * s)
        far = np.maximum(np.abs(low), np.abs(high))
        slip = self.size(y, far) + (np.abs(kappa) + np.abs(rise)) * far
        return np.asarray(top + 16.0 * EPS * slip)

    def lowest(self, y: Array, low: Array, high: Array, kappa: Array) -> Array:
        """Lower bound of `ψ(y, s) − κs` over `low ≤ s ≤ high`, outward."""
        return -self.highest(self.mirrored(y), -high, -low, kappa)

    def upper_slope(self, y: Array, low: Array, touch: Array, s: Array, line: Array) -> Array:
        """Slope at `s` of the smallest concave function above `ψ` from `low` on; `touch` from `touching`, `line` the slope up to
        there."""
        curve = self.slope(y, np.maximum(s, touch))
        return np.where((s <= touch) & (touch > low), line, curve)

    def touching(self, y: Array, low: Array, high: Array) -> Array:
        """Where the line from `(low, ψ(low))` touches the concave part (at most `high`): from there on, the envelope is `ψ`."""
        below, above = np.clip(self.bend(y), low, high), np.broadcast_to(high, np.broadcast_shapes(y.shape, high.shape))
        left = np.broadcast_to(below, above.shape).copy()
        right = above.copy()
        start = self.psi(y, low)
        for _ in range(40):
            middle = 0.5 * (left + right)
            later = self.slope(y, middle) * (middle - low) > self.psi(y, middle) - start
            left, right = np.where(later, middle, left), np.where(later, right, middle)
        return np.asarray(right)


def sigmoid(s: Array) -> Array:
    small = np.exp(-np.abs(s))
    return np.asarray(np.where(s >= 0, 1.0, small) / (1.0 + small))


@dataclass(frozen=True)
class Logistic(ScoreLoss):
    """`σ` is convex below 0 and concave above; `σ' = κ` at `log((1 + q)/(1 − q))`, `q = √(1 − 4κ)`; mirrored, `σ(s) − y`
    is `σ(s) − (1 − y)`."""

    name = "cross-entropy"
    label_shift = True
    steepest = 0.25
    curved = True

    def value(self, y: Array, s: Array) -> Array:
        # Terms of one sign: near a minimum at large scores, `log(1 + eˢ) − ys` would be all rounding.
        return np.asarray((1.0 - y) * np.logaddexp(0.0, s) + y * np.logaddexp(0.0, -s))

    def psi(self, y: Array, s: Array) -> Array:
        return sigmoid(s) - y

    def slope(self, y: Array, s: Array) -> Array:
        small = np.exp(-np.abs(s))
        return np.asarray(small / (1.0 + small) ** 2)

    def bend(self, y: Array) -> Array:
        return np.zeros_like(y)

    def flat(self, y: Array, kappa: Array) -> Array:
        q = np.sqrt(np.clip(1.0 - 4.0 * kappa, 0.0, 1.0))
        return np.asarray(np.log1p(q) - np.log(np.maximum(1.0 - q, 1e-300)))

    def mirrored(self, y: Array) -> Array:
        return 1.0 - y

    def size(self, y: Array, s: Array) -> Array:
        return 1.0 + np.abs(y)


@dataclass(frozen=True)
class HalfSquare(ScoreLoss):
    """Linear `ψ`: every extreme is at an end."""

    name = "squared-error"
    label_shift = True
    steepest = 1.0

    def value(self, y: Array, s: Array) -> Array:
        return np.asarray(0.5 * (s - y) ** 2)

    def psi(self, y: Array, s: Array) -> Array:
        return s - y

    def slope(self, y: Array, s: Array) -> Array:
        return np.ones(np.broadcast_shapes(y.shape, s.shape))

    def bend(self, y: Array) -> Array:
        return np.full_like(y, -np.inf)

    def flat(self, y: Array, kappa: Array) -> Array:
        return np.zeros(np.broadcast_shapes(y.shape, kappa.shape))

    def mirrored(self, y: Array) -> Array:
        return -y

    def size(self, y: Array, s: Array) -> Array:
        return np.abs(s) + np.abs(y)


@dataclass(frozen=True)
class SquaredHinge(ScoreLoss):
    """Concave with a kink at 1 for class 1, convex with a kink at −1 for class 0; `−ψ(y, −s) = ψ(1 − y, s)`."""

    name = "squared-hinge"
    label_shift = False
    steepest = 2.0

    def value(self, y: Array, s: Array) -> Array:
        return np.asarray(np.maximum(0.0, 1.0 - (2.0 * y - 1.0) * s) ** 2)

    def psi(self, y: Array, s: Array) -> Array:
        z = 2.0 * y - 1.0
        return np.asarray(-2.0 * z * np.maximum(0.0, 1.0 - z * s))

    def slope(self, y: Array, s: Array) -> Array:
        return np.where(1.0 - (2.0 * y - 1.0) * s > 0, 2.0, 0.0)

    def bend(self, y: Array) -> Array:
        return np.where(y > 0.5, -np.inf, np.inf)

    def flat(self, y: Array, kappa: Array) -> Array:
        return np.broadcast_to(2.0 * y - 1.0, np.broadcast_shapes(y.shape, kappa.shape))

    def mirrored(self, y: Array) -> Array:
        return 1.0 - y

    def size(self, y: Array, s: Array) -> Array:
        return 2.0 * (1.0 + np.abs(s))


@dataclass(frozen=True)
class HuberScore(ScoreLoss):
    """`ψ` clips `s − y` to `±δ`: convex at the kink `y − δ`, concave at `y + δ`."""

    name = "huber"
    label_shift = False
    steepest = 1.0
    delta: float = 1.35

    def value(self, y: Array, s: Array) -> Array:
        e = np.abs(s - y)
        return np.where(e <= self.delta, 0.5 * e * e, self.delta * (e - 0.5 * self.delta))

    def psi(self, y: Array, s: Array) -> Array:
        return np.clip(s - y, -self.delta, self.delta)

    def slope(self, y: Array, s: Array) -> Array:
        return np.where(np.abs(s - y) <= self.delta, 1.0, 0.0)

    def bowl(self, y: Array, s: Array) -> Array:
        return np.asarray(self.delta / np.maximum(np.abs(s - y), self.delta))

    def bend(self, y: Array) -> Array:
        return y

    def flat(self, y: Array, kappa: Array) -> Array:
        return np.broadcast_to(y + self.delta, np.broadcast_shapes(y.shape, kappa.shape))

    def mirrored(self, y: Array) -> Array:
        return -y

    def size(self, y: Array, s: Array) -> Array:
        return np.abs(s) + np.abs(y) + self.delta


SCORE_LOSSES: dict[str, ScoreLoss] = {
    loss.name: loss for loss in (Logistic(), HalfSquare(), SquaredHinge(), HuberScore())
}
