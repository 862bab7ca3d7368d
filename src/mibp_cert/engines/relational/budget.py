"""Slack that belongs to rows: what the rules for affine forms do where at most k rows of the data may be wrong.

A form is `c + Σ_{i∈S} d_i + d₀` with the dirty rows `S`, `|S| ≤ k`: `|d_i| ≤ a_i` vanishes when row `i` is clean, `|d₀| ≤ a₀` is
what no budget limits, and `c` is the value on the clean data (up to `a₀`). All that is added here vanishes with its row, too:

- product: `|d·d'| ≤ a₀a'₀ + Σ_{i∈S} (a₀·a'_i + a_i·(a'₀ + a'_i + A'))`, `A'` the most that `k − 1` other rows can add;
- relu: off the clean side by at most `t − |c|` for a deviation `t ≤ D` across the kink, and `t − |c| ≤ t·(1 − |c|/D)`; so row `i`
  costs `a_i·(1 − |c|/D)`;
- gate: it flips only if `a₀ + Σ_{i∈S} a_i ≥ |c|`, and then `Σ_{i∈S} min(1, a_i/(|c| − a₀)) ≥ 1`; so row `i` costs
  `min(1, a_i/(|c| − a₀))`, and for k = 1 either 1 or nothing.

- smooth function: `φ(x) = φ(c) + φ'(c)·(x−c)` but for `½·max|φ''|·|x−c|²`, at most `q·|x−c|` with `q = ½·max|φ''|·D`; so row `i`
  costs `q·a_i`.

All amounts are rounded up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mibp_cert.engines import relax
from mibp_cert.engines.relational.forms import Form, Symbols, upward
from mibp_cert.engines.rounding import UNIT, Array, gamma
from mibp_cert.graph import Spec
from mibp_cert.graph.functions import SMOOTH


def second_order(spec: Spec, a: Form, b: Form, small: Callable[[Array, Array], Array]) -> tuple[Array, Array]:
    """The product of two deviations: what no budget limits, and each row's share."""
    (a_always, a_rows), (b_always, b_rows) = _deviation(a), _deviation(b)
    slack = small(a_always, b_always)
    rest = b_always + b.symbols.others(b_rows)
    left, right, out = f"{spec.left}Z", f"{spec.right}Z", f"{spec.out}Z"
    rows = np.einsum(f"{spec.left},{right}->{out}", a_always, b_rows, optimize=True)
    rows = rows + np.einsum(f"{left},{spec.right}->{out}", a_rows, rest, optimize=True)
    rows = rows + _pairwise(spec, a_rows, b_rows)
    return slack, rows


def _pairwise(spec: Spec, a: Array, b: Array) -> Array:
    """`Σ a_i·b_i` row by row, contracted: matrix products for each row."""
    summed = [c for c in spec.left if c in spec.right and c not in spec.out]
    if len(spec.left) == len(spec.right) == len(spec.out) == 2 and len(summed) == 1:
        k, first, last = summed[0], spec.left.replace(summed[0], ""), spec.right.replace(summed[0], "")
        left, right = np.einsum(f"{spec.left}Z->Z{first}{k}", a), np.einsum(f"{spec.right}Z->Z{k}{last}", b)
        return np.asarray(np.einsum(f"Z{first}{last}->{spec.out}Z", np.matmul(left, right)))
    return np.asarray(np.einsum(f"{spec.left}Z,{spec.right}Z->{spec.out}Z", a, b))


def _deviation(form: Form) -> tuple[Array, Array]:
    """Distance from the centre: what no budget limits, and by dirty row."""
    always, (below, above) = form.spread()
    return upward(always + form.slack), np.maximum(below, above)


@dataclass(frozen=True, eq=False)
class Kinks:
    """Elements whose kink only dirty rows can cross, and what crossing it costs."""

    symbols: Symbols
    decided: NDArray[np.bool_]
    """Elements that are treated here; the others have a kink that undirtied rows can cross."""
    on: Array
    """1 where the clean value is above 0, else 0."""
    size: Array
    """`|c|`."""
    reach: Array
    """`D`: largest distance from the centre towards the kink."""
    always: Array
    rows: Array
    """Distances towards the kink: what no budget limits, and by dirty row."""

    def worth_it(self, cost: Array, otherwise: Array) -> Kinks:
        """Drop the treatment by rows where the dirty rows would pay more in all than the usual treatment costs."""
        spent = np.where(self.decided[..., None], cost, 0.0).reshape(-1, self.symbols.members).sum(axis=0)
        usual = float(np.where(self.decided, otherwise, 0.0).sum())
        keep = float(self.symbols.top(spent)) <= usual
        return self if keep else replace(self, decided=np.zeros_like(self.decided))

    def relu(self) -> tuple[Array, Array]:
        """Each row's share of the distance from the clean side, and that of what no budget limits."""
        safe = np.where(self.decided, self.reach, 1.0)
        share = np.where(self.decided, np.maximum(1.0 - self.size / safe * (1.0 - gamma(4)), 0.0), 0.0)
        factor = 1.0 + gamma(6)
        return share[..., None] * self.rows * factor, upward(share * self.always, 4)

    def flips(self) -> Array:
        """How much of a flip each row pays for."""
        gap = np.where(self.decided, self.size * (1.0 - gamma(4)) - self.always * (1.0 + gamma(4)), 1.0)
        share = self.rows / gap[..., None] * (1.0 + gamma(6))
        budgets = self.symbols.budgets
        if len(budgets) == 1 and budgets[0].most == 1:
            share = np.where(share >= 1.0, 1.0, 0.0)
        return np.where(self.decided[..., None], np.minimum(share, 1.0), 0.0)


def _kinks(a: Form, unstable: NDArray[np.bool_]) -> Kinks:
    """Which unstable elements are decided but for dirty rows: the clean value is further from the kink than `a₀`."""
    always, (below, above) = a.spread()
    always = upward(always + a.slack)
    size, on = np.abs(a.centre), (a.centre > 0).astype(np.float64)
    rows = np.where(on[..., None] > 0, below, above)
    reach = upward(np.where(on > 0, a.centre - a.range.low, a.range.high - a.centre))
    crossing = unstable & (reach > size)
    decided = crossing & (always * (1.0 + gamma(8)) < size * (1.0 - gamma(8))) & (always <= a.symbols.top(rows))
    return Kinks(a.symbols, decided, on, size, reach, always, rows)


def gate(a: Form, unstable: NDArray[np.bool_]) -> Kinks:
    """The gates that only dirty rows flip."""
    found = _kinks(a, unstable)
    return found.worth_it(found.flips(), np.full(a.shape, 0.5))


@dataclass(frozen=True, eq=False)
class Tangent:
    """A function around the clean value, and what dirty rows cost there."""

    taken: NDArray[np.bool_]
    """Elements for which this is better than a band that no budget limits."""
    slope: Array
    value: Array
    slack: Array
    rows: Array
    always: Array | float = 0.0
    """What is beside the slope for other reasons than dirty rows."""


def relu(a: Form, unstable: NDArray[np.bool_]) -> Tangent:
    """The side of the clean value, where only dirty rows cross the kink."""
    found = _kinks(a, unstable)
    low, high = np.minimum(a.range.low, 0.0), np.maximum(a.range.high, 0.0)
    band = -low * high / np.maximum(high - low, 1e-300)
    found = found.worth_it(found.relu()[0], 0.5 * band)
    rows, always = found.relu()
    slack = upward(found.on * a.slack + always, 2)
    return Tangent(found.decided, found.on, found.on * a.centre, slack, rows, always)


def tangent(name: str, a: Form, otherwise: Array) -> Tangent:
    """The tangent at the centre; taken if the dirty rows pay less in all than half the secants' bands (`otherwise`) add up to."""
    function, (always, rows) = SMOOTH[name], _deviation(a)
    value, slope = function.value(a.centre), function.slope(a.centre)
    low, high = np.minimum(a.range.low, a.centre), np.maximum(a.range.high, a.centre)
    q = 0.5 * function.curvature(low, high) * a.distance()
    # The slope is a float near the real one.
    q = upward(q + 64.0 * UNIT * (1.0 + np.abs(a.centre)) * (1.0 + np.abs(slope)), 6)
    share = q[..., None] * rows * (1.0 + gamma(4))
    rest = relax.margin(function, a.centre, value) + 8.0 * UNIT * (np.abs(value) + np.abs(slope) * a.raw)
    slack = upward(np.abs(slope) * a.slack + q * always + rest, 8)
    # A centre may lie outside of its form's range, and of the function's domain: there is no tangent then.
    usable = np.isfinite(slack) & np.isfinite(value) & np.isfinite(slope) & np.isfinite(share).all(axis=-1) & (q >= 0.0)
    usable &= (low > 0.0) | (not function.positive)
    spent = np.where(usable[..., None], share, 0.0).reshape(-1, a.symbols.members).sum(axis=0)
    total = float(a.symbols.top(spent)) + float(np.where(usable, q * always, 0.0).sum())
    taken = usable & (total < float(np.where(usable, otherwise, 0.0).sum()))
    return Tangent(taken, slope, value, slack, np.where(taken[..., None], share, 0.0))
