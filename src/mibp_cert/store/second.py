"""A second opinion on single steps, in ball arithmetic (Arb), that no engine takes part in.

A set before a step, `{c + G·ε + b : ε ∈ 𝓔, |b| ≤ r} ∩ [lower, upper]`, and the data `X(ε)` are taken at single points `(ε, b)`:
corners that push chosen parameters furthest, and random ones. Where the box leaves no room for `(ε, b)`, the model that is
really trained on `X(ε)` until then is taken if it is in the set. The step's graph is evaluated there to about 60 digits, and the
result `θ'` must lie in the stored set after the step *for the same `ε`*: `|θ' − c' − G'_data·ε| ≤ Σ_others |G'| + r'`, and in its
box. A gate whose argument is not told apart from 0 is taken both ways. Only what is outside for certain is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import flint
import numpy as np
from numpy.typing import NDArray

from mibp_cert.errors import UnsupportedOperation
from mibp_cert.graph import Graph, Rule, interpret, outputs_of
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
    "cos": lambda x: x.cos(),
    "cos slope": lambda x: -x.sin(),
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
    noise: Noise

    @classmethod
    def of(cls, arrays: Mapping[str, Array], noise: Noise) -> Stored:
        """The set in these arrays; a plain box has no generators."""
        lower, upper = arrays["lower"], arrays["upper"]
        if "linear" in arrays:
            return cls(lower, upper, arrays["middle"], arrays["linear"], arrays["slack"], noise)
        middle = np.clip(lower + 0.5 * (upper - lower), lower, upper)
        half = np.maximum(upper - middle, middle - lower)
        return cls(lower, upper, middle, np.zeros((len(middle), noise.symbols)), np.nextafter(half, np.inf), noise)

    def known(self, epsilon: Array) -> Balls:
        """`c + G·ε` for the data's symbols alone."""
        return balls(self.middle) + _product(self.linear[:, : self.noise.symbols], epsilon)

    def outside(self, theta: Balls, epsilon: Array | None) -> list[bool]:
        """Which parameters are outside of the set for this `ε` (None: of its box), for certain."""
        ends = zip(theta, self.lower.tolist(), self.upper.tolist(), strict=True)
        leaves = [bool(t < low or t > high) for t, low, high in ends]
        if epsilon is None:
            return leaves
        others = np.abs(self.linear[:, self.noise.symbols :])
        cover = _product(others, np.ones(others.shape[1])) + balls(self.slack)
        rest = theta - self.known(epsilon)
        return [bool(b or abs(r) > c) for b, r, c in zip(leaves, rest, cover, strict=True)]


Member = tuple[Balls, Balls, Balls, Array | None]
"""Parameters, features and labels of the step's rows, and the symbols that they go with (None: a box has none)."""


def check(step: Step, after: Stored, members: Iterable[Member]) -> tuple[list[str], int]:
    """What is wrong with a stored step, in sentences, and how many members of the set before it could be evaluated."""
    found, evaluated = list[str](), 0
    for node in step.graph.nodes:
        if node.op == "smooth" and node.attribute not in _SMOOTH:
            raise UnsupportedOperation(f"there is no second rule for '{node.attribute}' of {node.origin}")
    with flint.ctx.workprec(BITS):
        for number, (theta, x, y, epsilon) in enumerate(members):
            inputs = {**step.layout.unflatten(theta), "x": x, "y": y}
            trained = step.layout.flatten(evaluate_balls(step.graph, inputs))
            if not all(value.is_finite() for value in trained):
                continue  # comparisons with such a ball say nothing
            evaluated += 1
            wrong = np.flatnonzero(after.outside(trained, epsilon))
            if len(wrong):
                first = step.layout.describe(int(wrong[0]))
                found.append(f"point {number}: {len(wrong)} parameter(s) leave the set, first {first}")
    return found, evaluated


def evaluate_balls(graph: Graph, inputs: dict[str, Balls]) -> dict[str, Balls]:
    """The named outputs of a graph in ball arithmetic."""
    return outputs_of(graph, interpret(graph, _TABLE, inputs, engine="second opinion"))


def members_at(
    before: Stored, step: Step, points: Iterable[Array], train: Callable[[Array, Array], Array]
) -> Iterator[Member]:
    """A member of the set before the step for each of these values of the data's symbols, if one is found.

    The other symbols are drawn at random. Where the box leaves no room for them, it does for the model that is really trained on
    the data at `ε` until this step: `train(X, Y)`.
    """
    rng, noise, count = np.random.default_rng(5), before.noise, len(before.middle)
    sides = ((noise.x_centre, noise.x_linear), (noise.y_centre, noise.y_linear))
    for epsilon in points:
        base = before.known(epsilon)
        others = np.round(rng.uniform(-1, 1, before.linear.shape[1] - noise.symbols), 2)
        part = _product(before.linear[:, noise.symbols :], others)
        part = part + balls(rng.choice([-1.0, 0.0, 1.0], count) * before.slack)
        tried = [base + part * flint.arb(share) for share in (1.0, 0.5, 0.0)]
        theta = next((one for one in tried if not any(before.outside(one, None))), None)
        if theta is None:
            theta = balls(train(*(centre + (linear @ epsilon).reshape(centre.shape) for centre, linear in sides)))
            if any(before.outside(theta, epsilon)):
                continue
        x, y = (rows_at(centre, linear, step.rows, epsilon) for centre, linear in sides)
        yield theta, x, y, epsilon


def corners(before: Stored, step: Step, datasets: Iterable[tuple[Array, Array]]) -> Iterator[Member]:
    """Random corners of the box before the step, at datasets `(X', Y')` themselves."""
    rng = np.random.default_rng(5)
    for x, y in datasets:
        corner = np.where(rng.random(len(before.lower)) < 0.5, before.lower, before.upper)
        yield balls(corner), balls(x[step.rows]), balls(y[step.rows]), None


def points_of(after: Stored, rng: np.random.Generator, random: int, parameters: int) -> list[Array]:
    """Symbols that push the widest parameters furthest down and up, corners and random points, all moved a little inward."""

    def symbols(of: Callable[[Block], Array]) -> Array:
        out = np.zeros(after.noise.symbols)
        for block in after.noise.blocks:
            out[block.symbols] = of(block)
        return out

    def inner(block: Block) -> Array:
        # Towards 0, which leaves a budget's other rows alone; blocks without 0 are convex.
        still = block.minimiser(np.zeros(len(block.symbols)))
        return np.mean([block.sample(rng, False) for _ in range(4)], axis=0) if still.any() else still

    def drawn(extreme: bool) -> Array:
        return symbols(lambda block: block.sample(rng, extreme))

    def pushed(g: Array) -> Array:
        return symbols(lambda block: block.minimiser(g[block.symbols]))

    widest = np.argsort(after.lower - after.upper, kind="stable")[:parameters]
    found = [pushed(sign * after.linear[i, : after.noise.symbols]) for i in widest for sign in (1.0, -1.0)]
    found += [drawn(extreme=k % 2 == 0) for k in range(random)]
    inside = symbols(inner)
    return [INSIDE * point + (1.0 - INSIDE) * inside for point in found]


def gate(a: Any, closed: bool) -> Any:
    """`1[a ≥ 0]` (closed) or `1[a > 0]`; both, where the sign is not known."""
    on, off = (a >= 0, a < 0) if closed else (a > 0, a <= 0)
    return flint.arb(1) if on else flint.arb(0) if off else flint.arb(0.5, 0.5)


def balls(array: Any) -> Balls:
    """The same numbers, exactly."""
    return _each(np.asarray(array, dtype=np.float64), flint.arb)


def _each(array: Balls, function: Callable[[Any], Any]) -> Balls:
    return np.asarray(np.frompyfunc(function, 1, 1)(array), dtype=object)


_TABLE: dict[str, Rule] = {
    "const": lambda node: balls(node.attribute),
    "add": lambda node, a, b: np.asarray(a + b, dtype=object),
    "scale": lambda node, a: np.asarray(a * flint.arb(flint.fmpq(*node.attribute.value.as_integer_ratio()))),
    "contract": lambda node, a, b: np.asarray(np.einsum(node.attribute, a, b), dtype=object),
    "relu": lambda node, a: _each(a, lambda v: v.max(flint.arb(0))),
    "gate": lambda node, a: _each(a, lambda v: gate(v, node.attribute)),
    "smooth": lambda node, a: _each(a, _SMOOTH[node.attribute]),
    "sum": lambda node, a: np.asarray(a.sum(axis=node.attribute), dtype=object),
    "gather": lambda node, a: node.attribute.of(a),
    "reshape": lambda node, a: a.reshape(node.shape),
}


def _product(matrix: Array, vector: Array) -> Balls:
    """`matrix · vector` in ball arithmetic."""
    rows, columns = matrix.shape
    found = flint.arb_mat(rows, columns, matrix.ravel().tolist()) * flint.arb_mat(columns, 1, vector.tolist())
    return np.array(found.entries(), dtype=object)


def rows_at(centre: Array, linear: Any, rows: NDArray[np.intp], epsilon: Array) -> Balls:
    """Rows of the data at `ε`."""
    width = centre.shape[1]
    part = linear[(rows[:, None] * width + np.arange(width)).ravel()].tocoo()
    out = balls(centre[rows].ravel())
    for i, weight, symbol in zip(part.row, part.data.tolist(), epsilon[part.col].tolist(), strict=True):
        out[i] += flint.arb(weight) * flint.arb(symbol)
    return out.reshape(len(rows), width)
