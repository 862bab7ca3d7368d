"""Independent ways to the truth: exact rational (or 60-digit) evaluation, and a search for extreme values by real evaluation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

from mibp_cert.engines.base import Box
from mibp_cert.graph import Graph, evaluate, parse_spec
from mibp_cert.nets import Step
from mibp_cert.sets import ThreatSet

mp = mpmath.MPContext()
mp.dps = 60

SMOOTH = {
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "sigmoid slope": lambda x: mp.exp(-x) / (1 + mp.exp(-x)) ** 2,
    "tanh": mp.tanh,
    "tanh slope": lambda x: mp.sech(x) ** 2,
    "softplus": lambda x: mp.log1p(mp.exp(x)),
    "cos": mp.cos,
    "cos slope": lambda x: -mp.sin(x),
    "exp": mp.exp,
    "reciprocal": lambda x: 1 / x,
}
"""The smooth functions once more, from their definitions, to 60 digits."""


def rational(array: Any) -> NDArray[Any]:
    """The same numbers as fractions."""
    return _each(np.asarray(array, dtype=np.float64), lambda a: Fraction(float(a)))


def digits(array: Any) -> NDArray[Any]:
    """The same numbers (floats or fractions) to 60 digits."""
    source = np.asarray(array)
    return _each(source, lambda a: mp.mpf(a.numerator) / a.denominator if isinstance(a, Fraction) else mp.mpf(float(a)))


def evaluate_rational(graph: Graph, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The graph in exact arithmetic, written with plain loops and no engine code; inputs as `digits` give 60-digit arithmetic,
    which smooth functions need."""
    real = any(isinstance(value.flat[0], mp.mpf) for value in inputs.values())
    number = digits if real else rational
    values: list[NDArray[Any]] = []
    for node in graph.nodes:
        v = [values[i] for i in node.operands]
        match node.op:
            case "input":
                out = inputs[node.attribute]
            case "const":
                out = number(node.attribute)
            case "add":
                out = np.broadcast_arrays(v[0], v[1])[0] + v[1]
            case "scale":
                factor = digits(np.array(node.attribute.value)).item() if real else node.attribute.value
                out = _each(v[0], lambda a, f=factor: f * a)
            case "smooth":
                out = _each(v[0], SMOOTH[node.attribute])
            case "relu":
                out = _each(v[0], lambda a: max(a, 0 * a))
            case "gate":
                out = _each(v[0], lambda a, c=node.attribute: a * 0 + int(a >= 0 if c else a > 0))
            case "sum":
                out = np.asarray(v[0].sum(axis=node.attribute), dtype=object)
            case "gather":
                out = node.attribute.of(v[0])
            case "reshape":
                out = v[0].reshape(node.shape)
            case "contract":
                out = _contract(node.attribute, node.shape, v[0], v[1])
            case _:
                raise AssertionError(node.op)
        values.append(out)
    return {name: values[number] for name, number in graph.outputs.items()}


def _each(array: NDArray[Any], function: Any) -> NDArray[Any]:
    out = np.empty(array.shape, dtype=object)
    for index in np.ndindex(array.shape):
        out[index] = function(array[index])
    return out


def _contract(text: str, shape: tuple[int, ...], a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    spec = parse_spec(text)
    sizes = dict(zip(spec.left + spec.right, a.shape + b.shape, strict=True))
    out = np.empty(shape, dtype=object)
    out[...] = 0 * a.flat[0]
    for index in np.ndindex(tuple(sizes[c] for c in spec.letters)):
        at = dict(zip(spec.letters, index, strict=True))
        place = tuple(at[c] for c in spec.out)
        out[place] = out[place] + a[tuple(at[c] for c in spec.left)] * b[tuple(at[c] for c in spec.right)]
    return out


def train_rational(steps: list[Step], theta: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> list[NDArray[Any]]:
    """Exact training: `θ` after each step, as fractions."""
    path = []
    for step in steps:
        inputs = {**step.layout.unflatten(theta), "x": x[step.rows], "y": y[step.rows]}
        theta = step.layout.flatten(evaluate_rational(step.graph, inputs))
        path.append(theta)
    return path


def search_extremes(
    graph: Graph,
    low: dict[str, NDArray[np.float64]],
    high: dict[str, NDArray[np.float64]],
    rng: np.random.Generator,
    samples: int = 4000,
    rounds: int = 60,
    starts: int = 6,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Smallest and largest value of every output that sampling and local search over the input box can find.

    Corners, faces and interior points first; then, for each output and direction, steps of shrinking size around the best point.
    """
    names = list(low)

    def run(points: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        out = evaluate(graph, points)
        return np.concatenate([out[name].reshape(len(points[names[0]]), -1) for name in graph.outputs], axis=1)

    def draw(n: int) -> dict[str, NDArray[np.float64]]:
        points = {}
        for name in names:
            weight = rng.random((n, *low[name].shape))
            weight = np.where(
                rng.random(weight.shape) < rng.choice([0.0, 0.5, 1.0], (n, *[1] * low[name].ndim)),
                weight,
                np.round(weight),
            )
            points[name] = low[name] + weight * (high[name] - low[name])
        return points

    points = draw(samples)
    values = run(points)
    results = []
    for sign in (-1.0, 1.0):
        # Several starting points for each output, so that one basin of attraction does not decide.
        order = np.argsort(-sign * values, axis=0)[:starts]
        goal = np.repeat(np.arange(values.shape[1]), starts)
        where = order.T.ravel()
        best = sign * values[where, goal]
        count = len(best)
        current = {name: points[name][where] for name in names}
        for r in range(rounds):
            size, tries = 0.5 ** (r / 4), 24
            moved = {}
            for name in names:
                base = np.repeat(current[name], tries, axis=0)
                mask = rng.random(base.shape) < rng.choice([0.1, 0.4, 0.8], (count * tries, *[1] * low[name].ndim))
                step = rng.choice([-1.0, 1.0], base.shape) * rng.random(base.shape) * size * (high[name] - low[name])
                moved[name] = np.clip(base + mask * step, low[name], high[name])
            found = sign * run(moved)[np.arange(count * tries), np.repeat(goal, tries)].reshape(count, tries)
            pick = found.argmax(axis=1)
            better = found[np.arange(count), pick] > best
            best = np.where(better, found[np.arange(count), pick], best)
            for name in names:
                chosen = moved[name].reshape(count, tries, *low[name].shape)[np.arange(count), pick]
                current[name] = np.where(better.reshape(-1, *[1] * low[name].ndim), chosen, current[name])
        results.append(sign * best.reshape(-1, starts).max(axis=1))
    return results[0], results[1]


def search_step(
    step: Step, box: Box, threat: ThreatSet, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`search_extremes` of a training step over a box of states and the hull of the data."""
    hull, unflatten = threat.hull(), step.layout.unflatten
    low = {**unflatten(box.lower), "x": hull.x_low[step.rows], "y": hull.y_low[step.rows]}
    high = {**unflatten(box.upper), "x": hull.x_high[step.rows], "y": hull.y_high[step.rows]}
    return search_extremes(step.graph, low, high, np.random.default_rng(seed))
