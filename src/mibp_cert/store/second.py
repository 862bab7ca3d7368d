"""A second opinion on single steps, in ball arithmetic (Arb), that no engine takes part in.

A set before a step, `{c + G·ε + b : ε ∈ 𝓔, |b| ≤ r} ∩ [lower, upper]`, and the data `X(ε)` are taken at single points `(ε, b)`:
corners that push chosen parameters furthest, and random ones. The step's graph is evaluated there to about 60 digits, and the
result `θ'` must lie in the stored set after the step *for the same `ε`*: `|θ' − c' − G'_data·ε| ≤ Σ_others |G'| + r'`, and in its
box. A gate whose argument is not told apart from 0 is taken both ways. Only what is outside for certain is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import flint
import numpy as np
from numpy.typing import NDArray

from mibp_cert.errors import UnsupportedOperation
from mibp_cert.graph import Graph, Node, Rule, interpret, outputs_of
from mibp_cert.nets import Step
from mibp_cert.sets import Block, Noise

BITS = 200
INSIDE = 1.0 - 2.0**-34
"""Points are moved inward by this share, so that data written as `centre + linear·ε` do not leave the threat by rounding."""
Balls = NDArray[Any]
Array = NDArray[np.float64]

_SMOOTH: dict[str, Callable[[Any], Any]] = {
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "sigmoid slope": lambda x: (-x).exp() / (1 + (-x).exp()) ** 2,
    "tanh": lambda x: x.tanh(),
    "tanh slope": lambda x: 1 / x.cosh() ** 2,
    "softplus": lambda x: (1 + x.exp()).log(),
    "exp": lambda x: x.exp(),
    "reciprocal": lambda x: 1 / x,
}


@dataclass(frozen=True, eq=False)
class Stored:
    """A set as it was stored: its box, and for the relational engine centre, generators and slack over the data's noise."""

    lower: Array
    upper: Array
    middle: Array
    linear: Array
    slack: Array
    blocks: tuple[Block, ...]
    data: int

    @classmethod
    def of(cls, arrays: Mapping[str, Array], noise: Noise) -> Stored:
        """The set in these arrays; a plain box has no generators."""
        lower, upper, blocks, data = arrays["lower"], arrays["upper"], noise.blocks, noise.symbols
        if "linear" in arrays:
            return cls(lower, upper, arrays["middle"], arrays["linear"], arrays["slack"], blocks, data)
        middle = np.clip(lower + 0.5 * (upper - lower), lower, upper)
        half = np.maximum(upper - middle, middle - lower)
        return cls(lower, upper, middle, np.zeros((len(middle), data)), np.nextafter(half, np.inf), blocks, data)

    def leaves(self, theta: Balls) -> list[bool]:
        """Which parameters are outside of the box, for certain."""
        ends = zip(theta, self.lower.tolist(), self.upper.tolist(), strict=True)
        return [bool(t < low or t > high) for t, low, high in ends]

    def symbols(self, of: Callable[[Block], Array]) -> Array:
        """Values of the data's symbols, block by block."""
        out = np.zeros(self.data)
        for block in self.blocks:
            out[block.symbols] = of(block)
        return out


def check_step(
    before: Stored, after: Stored, step: Step, noise: Noise, points: Iterable[Array]
) -> tuple[list[str], int]:
    """What is wrong with a stored step, in sentences, and at how many points it was evaluated; `points`: values of the data's
    symbols. A point for which the set before the step is empty says nothing."""
    rng, found, evaluated = np.random.default_rng(5), list[str](), 0
    for number, epsilon in enumerate(points):
        theta = _member(before, epsilon, rng)
        if theta is None:
            continue
        evaluated += 1
        x = _rows(noise.x_centre, noise.x_linear, step.rows, epsilon)
        y = _rows(noise.y_centre, noise.y_linear, step.rows, epsilon)
        found += _words(f"point {number}", "set", step, _outside(after, epsilon, _trained(step, theta, x, y)))
    return found, evaluated


def check_box(
    before: Stored, after: Stored, step: Step, datasets: Iterable[tuple[Array, Array]]
) -> tuple[list[str], int]:
    """The same for sets that are plain boxes, at datasets `(X', Y')` themselves: random corners of the box before the step."""
    rng, found, evaluated = np.random.default_rng(5), list[str](), 0
    for number, (x, y) in enumerate(datasets):
        evaluated += 1
        corner = np.where(rng.random(len(before.lower)) < 0.5, before.lower, before.upper)
        trained = _trained(step, balls(corner), balls(x[step.rows]), balls(y[step.rows]))
        found += _words(f"dataset {number}", "box", step, after.leaves(trained))
    return found, evaluated


def _trained(step: Step, theta: Balls, x: Balls, y: Balls) -> Balls:
    """What the step makes of these parameters and rows."""
    trained: Balls = step.layout.flatten(evaluate(step.graph, {**step.layout.unflatten(theta), "x": x, "y": y}))
    return trained


def _words(point: str, what: str, step: Step, outside: list[bool]) -> list[str]:
    wrong = np.flatnonzero(outside)
    if not len(wrong):
        return []
    first = step.layout.describe(int(wrong[0]))
    return [f"{point}: {len(wrong)} parameter(s) leave the {what}, first {first}"]


def points_of(after: Stored, rng: np.random.Generator, random: int, parameters: int) -> list[Array]:
    """Symbols that push the widest parameters furthest down and up, corners and random points, all moved a little inward."""

    def drawn(extreme: bool) -> Array:
        return after.symbols(lambda block: block.sample(rng, extreme))

    def pushed(g: Array) -> Array:
        return after.symbols(lambda block: block.minimiser(g[block.symbols]))

    widest = np.argsort(after.lower - after.upper, kind="stable")[:parameters]
    found = [pushed(sign * after.linear[i, : after.data]) for i in widest for sign in (1.0, -1.0)]
    found += [drawn(extreme=k % 2 == 0) for k in range(random)]
    inner = np.mean([drawn(extreme=False) for _ in range(4)], axis=0)
    return [INSIDE * point + (1.0 - INSIDE) * inner for point in found]


def evaluate(graph: Graph, inputs: Mapping[str, Balls]) -> dict[str, Balls]:
    """The graph's outputs in ball arithmetic."""
    for node in graph.nodes:
        if node.op == "smooth" and node.attribute not in _SMOOTH:
            raise UnsupportedOperation(f"there is no second rule for '{node.attribute}' of {node.origin}")
    old, flint.ctx.prec = flint.ctx.prec, BITS
    try:
        return outputs_of(graph, interpret(graph, _TABLE, inputs, engine="second opinion"))
    finally:
        flint.ctx.prec = old


def _gate(a: Any, closed: bool) -> Any:
    """`1[a ≥ 0]` (closed) or `1[a > 0]`; both, where the sign is not known."""
    on, off = (a >= 0, a < 0) if closed else (a > 0, a <= 0)
    return flint.arb(1) if on else flint.arb(0) if off else flint.arb(0.5, 0.5)


def balls(array: Any) -> Balls:
    """The same numbers, exactly."""
    return _each(np.asarray(array, dtype=np.float64), lambda a: flint.arb(float(a)))


def _each(array: Balls, function: Callable[[Any], Any]) -> Balls:
    out = np.empty(array.shape, dtype=object)
    out.ravel()[:] = [function(a) for a in array.ravel()]
    return out


def _scale(node: Node, a: Balls) -> Balls:
    factor = node.attribute.value
    return np.asarray(a * (flint.arb(factor.numerator) / factor.denominator))


_TABLE: dict[str, Rule] = {
    "const": lambda node: balls(node.attribute),
    "add": lambda node, a, b: np.asarray(a + b, dtype=object),
    "scale": _scale,
    "contract": lambda node, a, b: np.asarray(np.einsum(node.attribute, a, b), dtype=object),
    "relu": lambda node, a: _each(a, lambda v: v.max(flint.arb(0))),
    "gate": lambda node, a: _each(a, lambda v: _gate(v, node.attribute)),
    "smooth": lambda node, a: _each(a, _SMOOTH[node.attribute]),
    "sum": lambda node, a: np.asarray(a.sum(axis=node.attribute), dtype=object),
    "gather": lambda node, a: node.attribute.of(a),
    "reshape": lambda node, a: a.reshape(node.shape),
}


def products(matrix: Array, vector: Array) -> Balls:
    """`matrix · vector` to about 100 bits, as balls: exact products (split into halves) and exactly rounded sums."""
    high, low = _two_products(matrix, vector[None, :])
    out = np.empty(len(matrix), dtype=object)
    tiny = flint.arb(0, 1e-300 * (matrix.shape[1] + 1))  # parts of products below the smallest float
    for i in range(len(matrix)):
        parts = [*high[i].tolist(), *low[i].tolist()]
        total = math.fsum(parts)
        rest = math.fsum([*parts, -total])
        out[i] = flint.arb(total) + flint.arb(rest, abs(rest) * 2.0**-50) + tiny
    return out


def _two_products(a: Array, b: Array) -> tuple[Array, Array]:
    """`p + e = a·b` exactly (Dekker), barring underflow."""
    p = a * b
    split = 134217729.0  # 2²⁷ + 1

    def halves(v: Array) -> tuple[Array, Array]:
        c = split * v
        h = c - (c - v)
        return h, v - h

    (ah, al), (bh, bl) = halves(a), halves(b)
    return p, al * bl - (((p - ah * bh) - al * bh) - ah * bl)


def _member(state: Stored, epsilon: Array, rng: np.random.Generator) -> Balls | None:
    """A `θ` of the set that goes with `ε`: the other symbols at random; None if the box leaves no room for this `ε`."""
    base = balls(state.middle) + products(state.linear[:, : state.data], epsilon)
    others = np.round(rng.uniform(-1, 1, state.linear.shape[1] - state.data), 2)
    part = products(state.linear[:, state.data :], others) if len(others) else balls(np.zeros(len(state.middle)))
    part = part + balls(rng.choice([-1.0, 0.0, 1.0], len(state.slack)) * state.slack)
    for share in (1.0, 0.5, 0.0):
        theta = base + part * flint.arb(share)
        if not any(state.leaves(theta)):
            return np.asarray(theta)
    return None


def _rows(centre: Array, linear: Any, rows: NDArray[np.intp], epsilon: Array) -> Balls:
    """Rows of the data at `ε`."""
    width = centre.shape[1]
    cells = (rows[:, None] * width + np.arange(width)).ravel()
    part = linear[cells]
    out = balls(centre[rows].ravel())
    for i in np.flatnonzero(np.diff(part.indptr)):
        span = slice(part.indptr[i], part.indptr[i + 1])
        for weight, j in zip(part.data[span].tolist(), part.indices[span], strict=True):
            out[i] = out[i] + flint.arb(weight) * flint.arb(float(epsilon[j]))
    return out.reshape(len(rows), width)


def _outside(state: Stored, epsilon: Array, theta: Balls) -> list[bool]:
    """Which parameters are outside of the set for this `ε`, for certain."""
    rest = theta - balls(state.middle) - products(state.linear[:, : state.data], epsilon)
    others = np.abs(state.linear[:, state.data :])
    cover = products(others, np.ones(others.shape[1])) + balls(state.slack)
    return [bool(b or abs(r) > c) for b, r, c in zip(state.leaves(theta), rest, cover, strict=True)]
