"""From a solver's point to a true value: local search on the gate pattern that the point claims.

A solver's best point satisfies the program only to a tolerance, and often lies on kinks: a gate is claimed to be on while its
argument is zero. The value that the `concrete` graph takes there is then a different one. With the pattern of gates held
fixed, the output is a smooth function of the inputs' deviations `v`; sequential linear programming moves `v` a little, to

    maximise ∇out·Δ   subject to   z_k + ∇z_k·Δ ≥ margin  (gate k claimed on),  ≤ −margin  (off),   v + Δ in its box,  |Δ| ≤ trust

and every point visited is evaluated for real. The data's own constraints (rows that define no variable) are rows of that linear
program too, their discrete variables stay as they are, and a point that breaks them counts for nothing. So all values returned
are true ones of members, whatever the search does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from mibp_cert.engines.rounding import Array
from mibp_cert.graph import Graph, Node, backward, evaluate, interpret, parse_spec
from mibp_cert.graph.evaluate import TABLE
from mibp_cert.graph.functions import SMOOTH
from mibp_cert.solvers import FEASIBILITY
from mibp_cert.solvers.program import Affine, Index, Program, with_columns

MARGIN = 1e-6
"""How far past a kink a claimed gate is pushed, relative to the radius of its argument."""

TRUST = (1e-3, 0.05, 0.3, 2.0)
"""How far a deviation may move in one round; the smallest radius that can satisfy the gates is taken."""


@dataclass(frozen=True, eq=False)
class Point:
    """Inputs of a graph as functions of deviations `v` of a program: `centre + linear·v`, clipped to their ranges."""

    graph: Graph
    inputs: Mapping[str, Affine]
    low: Mapping[str, Array]
    high: Mapping[str, Array]
    program: Program
    limits: tuple[Any, Array, Array]
    """The data's own constraints on the variables in play: `low ≤ matrix·v ≤ high`, as (matrix, low, high)."""

    def settled(self, v: Array) -> Array:
        """`v` with discrete variables made whole and products recomputed."""
        v = np.where(self.program.integer, np.round(v), v)
        if len(self.program.triples):
            q, a, b = self.program.triples.T
            v[q] = v[a] * v[b]
        return v

    def allowed(self, v: Array) -> bool:
        """Do the data's own constraints hold, within the tolerance of the solvers?"""
        matrix, low, high = self.limits
        value = matrix @ v
        return bool(((value >= low - FEASIBILITY) & (value <= high + FEASIBILITY)).all())

    def at(self, v: Array) -> dict[str, Array]:
        values = {}
        for name, affine in self.inputs.items():
            flat = affine.centre + with_columns(affine.linear, len(v)) @ v
            values[name] = np.clip(flat.reshape(self.low[name].shape), self.low[name], self.high[name])
        return values

    def value(self, v: Array, element: int) -> float:
        """The output `element` (outputs laid end to end) at `v`, by ordinary evaluation; NaN where `v` is no member."""
        v = self.settled(v)
        if not self.allowed(v):
            return float("nan")
        outputs = evaluate(self.graph, self.at(v))
        return float(np.concatenate([outputs[name].ravel() for name in self.graph.outputs])[element])


def polish(
    point: Point,
    v: Array,
    element: int,
    maximise: bool,
    gates: Mapping[int, Index],
    radii: Mapping[int, Array],
    target: float,
    rounds: int = 8,
) -> float:
    """Best true value of an output found from `v`; stops once it reaches `target`.

    `gates[n]` holds the program's binary for each element of node `n` (−1 where there is none), `radii[n]` the radius of that
    node's range.
    """
    sign = 1.0 if maximise else -1.0
    v = point.settled(v)
    best = _nan_to(point.value(v, element), -sign * np.inf)
    claims = {n: np.where(g >= 0, np.round(v[np.maximum(g, 0)]), np.nan) for n, g in gates.items()}
    for number in range(rounds):
        if sign * best >= sign * target:
            break
        slope, arguments, slopes, margins = _linearise(point, v, element, claims, radii)
        side = np.concatenate([2.0 * c[~np.isnan(c)] - 1.0 for c in claims.values()]) if claims else np.zeros(0)
        moving = np.flatnonzero(((np.abs(slopes).sum(axis=0) + np.abs(slope)) > 0) & ~point.program.integer)
        if not len(moving):
            break
        move = None
        # Small moves keep second-order errors below the margin; where they do not, the margin grows from round to round.
        margins = margins * 4.0**number
        settled = bool((side * arguments > 0).all())
        for trust in TRUST[1:] if settled else TRUST:
            move = _direction(sign * slope, side, arguments, slopes, margins, point, v, moving, trust)
            if move is not None:
                break
        if move is None:
            break
        v = v.copy()
        v[moving] = np.clip(v[moving] + move, point.program.lower[moving], point.program.upper[moving])
        value = _nan_to(point.value(v, element), -sign * np.inf)
        best = max(best, value) if maximise else min(best, value)
    return best


def _direction(
    slope: Array,
    side: Array,
    arguments: Array,
    slopes: Array,
    margins: Array,
    point: Point,
    v: Array,
    moving: Index,
    trust: float,
) -> Array | None:
    low = np.maximum(point.program.lower[moving] - v[moving], -trust)
    high = np.minimum(point.program.upper[moving] - v[moving], trust)
    limits, limit_low, limit_high = point.limits
    now, limits = limits @ v, limits[:, moving]
    touching = np.flatnonzero(np.diff(limits.indptr) > 0)
    limits, room = limits[touching], (limit_low[touching] - now[touching], limit_high[touching] - now[touching])
    below, above = np.isfinite(room[0]), np.isfinite(room[1])
    own = -(side / np.maximum(np.abs(slopes[:, moving]).max(axis=1, initial=0.0), 1e-300))[:, None] * slopes[:, moving]
    matrix = sparse.vstack([sparse.csr_matrix(own), limits[above], -limits[below]], format="csr")
    scale = np.maximum(np.abs(slopes[:, moving]).max(axis=1, initial=0.0), 1e-300)
    largest = max(float(np.abs(slope[moving]).max()), 1e-300)
    right = np.concatenate(
        [(side * arguments - margins) / scale, np.maximum(room[1][above], 0.0), np.maximum(-room[0][below], 0.0)]
    )
    gain = slope[moving] / largest
    if not (np.isfinite(right).all() and np.isfinite(matrix.data).all() and np.isfinite(gain).all()):
        return None  # numbers too large to be told apart: the point stays where it is
    result = linprog(
        -gain,
        A_ub=matrix if len(right) else None,
        b_ub=right if len(right) else None,
        bounds=np.stack([np.minimum(low, 0.0), np.maximum(high, 0.0)], axis=1),
        method="highs",
    )
    return np.asarray(result.x) if result.status == 0 else None


def _nan_to(value: float, other: float) -> float:
    return other if np.isnan(value) else value


def _linearise(
    point: Point, v: Array, element: int, claims: Mapping[int, Array], radii: Mapping[int, Array]
) -> tuple[Array, Array, Array, Array]:
    """Gradient of the output, and values, gradients and margins of the claimed gates' arguments, in deviations `v`."""
    values = _forced_values(point.graph, point.at(v), claims)
    seeds: dict[int, list[tuple[int, int]]] = {}
    arguments, margins, count = [], [], 1
    for number, claim in claims.items():
        for k in np.flatnonzero(~np.isnan(claim)).tolist():
            seeds.setdefault(number, []).append((count, k))
            arguments.append(values[number].ravel()[k])
            margins.append(MARGIN * radii[number][k])
            count += 1
    offset = element
    for number in point.graph.outputs.values():
        size = values[number].size
        if 0 <= offset < size:
            seeds.setdefault(number, []).append((0, offset))
            break
        offset -= size
    gradients = _reverse(point.graph, values, claims, seeds, count)
    total = np.zeros((count, len(v)))
    for name, affine in point.inputs.items():
        flat = gradients.get(point.graph.inputs[name])
        if flat is not None:
            total += (with_columns(affine.linear, len(v)).T @ flat.reshape(count, -1).T).T
    return total[0], np.array(arguments), total[1:], np.array(margins)


def _forced_values(graph: Graph, inputs: dict[str, Array], claims: Mapping[int, Array]) -> list[Array]:
    """Ordinary evaluation, but with every claimed gate at its claimed side."""
    values: list[Array] = []

    def force(number: int, node: Node, value: Array) -> Array:
        claim = claims.get(node.operands[0]) if node.op in ("relu", "gate") else None
        if claim is not None:
            shaped = claim.reshape(value.shape)
            forced = shaped if node.op == "gate" else shaped * values[node.operands[0]]
            value = np.where(np.isnan(shaped), value, forced)
        values.append(value)
        return value

    return interpret(graph, TABLE, inputs, engine="concrete", visit=force)


def _reverse(
    graph: Graph,
    values: list[Array],
    claims: Mapping[int, Array],
    seeds: Mapping[int, list[tuple[int, int]]],
    count: int,
) -> dict[int, Array]:
    """Reverse-mode derivatives of `count` scalars at once, by node; `seeds[n]` lists (scalar, element of node n)."""
    start = {}
    for number, places in seeds.items():
        own = np.zeros((count, values[number].size))
        for scalar, place in places:
            own[scalar, place] += 1.0
        start[number] = own.reshape((count, *values[number].shape))

    def pull(number: int, node: Node, upstream: Array) -> list[tuple[int, Array]]:
        if node.op in ("input", "const", "gate"):
            return []
        return list(zip(node.operands, _pull_back(node, upstream, values, claims), strict=True))

    return backward(graph, start, pull)


def _pull_back(node: Node, upstream: Array, values: list[Array], claims: Mapping[int, Array]) -> list[Array]:
    operands = [values[i] for i in node.operands]
    match node.op:
        case "add":
            return [_unbroadcast(upstream, operand.shape) for operand in operands]
        case "scale":
            return [float(node.attribute.value) * upstream]
        case "contract":
            spec = parse_spec(node.attribute)
            return [
                np.einsum(f"...{spec.out},{spec.right}->...{spec.left}", upstream, operands[1]),
                np.einsum(f"...{spec.out},{spec.left}->...{spec.right}", upstream, operands[0]),
            ]
        case "relu":
            slope = np.where(operands[0] > 0, 1.0, 0.0)
            claim = claims.get(node.operands[0])
            if claim is not None:
                shaped = claim.reshape(slope.shape)
                slope = np.where(np.isnan(shaped), slope, shaped)
            return [upstream * slope]
        case "sum":
            spread = np.expand_dims(upstream, tuple(sorted(node.attribute)))
            return [np.broadcast_to(spread, (len(upstream), *operands[0].shape))]
        case "gather":
            shape = operands[0].shape
            place = node.attribute.of(np.arange(1, operands[0].size + 1).reshape(shape)).ravel()
            piece = np.zeros((len(upstream), operands[0].size + 1))
            # An element may be gathered twice; place 0 takes what lies outside.
            np.add.at(piece.T, place, upstream.reshape(len(upstream), -1).T)
            return [piece[:, 1:].reshape(len(upstream), *shape)]
        case "reshape":
            return [upstream.reshape(len(upstream), *operands[0].shape)]
        case "smooth":
            return [upstream * SMOOTH[node.attribute].slope(operands[0])]
    raise AssertionError(f"no derivative of {node.op}")


def _unbroadcast(upstream: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the axes along which an operand of this shape was stretched (the first axis counts scalars)."""
    extra = upstream.ndim - 1 - len(shape)
    total: Array = upstream.sum(axis=tuple(range(1, 1 + extra)))
    stretched = tuple(axis + 1 for axis, size in enumerate(shape) if size == 1 and total.shape[axis + 1] != 1)
    out: Array = total.sum(axis=stretched, keepdims=True)
    return out
