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

from mibp_cert.engines.exact.workspace import Symbolic
from mibp_cert.engines.rounding import Array
from mibp_cert.graph import Graph, Node, backward, evaluate, interpret, parse_spec
from mibp_cert.graph.functions import SMOOTH
from mibp_cert.graph.interpret import TABLE
from mibp_cert.solvers import FEASIBILITY
from mibp_cert.solvers.program import Index, Program, with_columns

MARGIN = 1e-6
"""How far past a kink a claimed gate is pushed, relative to the radius of its argument."""

TRUST = (1e-3, 0.05, 0.3, 2.0)
"""How far a deviation may move in one round; the smallest radius that can satisfy the gates is taken."""


@dataclass(frozen=True, eq=False)
class Point:
    """Inputs of a graph as functions of deviations `v` of a program, `centre + linear·v`, clipped to their ranges; and the output
    in question, number `element` of all outputs laid end to end."""

    graph: Graph
    element: int
    inputs: Mapping[str, Symbolic]
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
        for name, known in self.inputs.items():
            flat = known.affine.centre + with_columns(known.affine.linear, len(v)) @ v
            values[name] = np.clip(flat.reshape(known.range.low.shape), known.range.low, known.range.high)
        return values

    def value(self, v: Array) -> float:
        """The output at `v`, by ordinary evaluation; NaN where `v` is no member."""
        v = self.settled(v)
        if not self.allowed(v):
            return float("nan")
        outputs = evaluate(self.graph, self.at(v))
        return float(np.concatenate([outputs[name].ravel() for name in self.graph.outputs])[self.element])


@dataclass(frozen=True, eq=False)
class Tangent:
    """At a point: the gradient of `±output` (which is to grow), and of the claimed gates' arguments values, gradients, claimed
    sides (±1) and margins; all in deviations `v`."""

    gain: Array
    arguments: Array
    slopes: Array
    side: Array
    margins: Array


def polish(
    point: Point, v: Array, maximise: bool, gates: Mapping[int, tuple[Index, Array]], target: float, rounds: int = 8
) -> float:
    """Best true value of the output found from `v`; stops once it reaches `target`.

    `gates[n]`: the program's binary for each element of node `n` (−1 where there is none), and the radii of that node's range.
    """
    sign = 1.0 if maximise else -1.0

    def reached(v: Array) -> float:
        value = sign * point.value(v)
        return -np.inf if np.isnan(value) else value

    v = point.settled(v)
    best = reached(v)
    claims = {n: np.where(g >= 0, np.round(v[np.maximum(g, 0)]), np.nan) for n, (g, _) in gates.items()}
    radii = {n: radius for n, (_, radius) in gates.items()}
    for number in range(rounds):
        if best >= sign * target:
            break
        # Small moves keep second-order errors below the margin; where they do not, the margin grows from round to round.
        tangent = _linearise(point, v, sign, claims, radii, 4.0**number)
        moving = np.flatnonzero(
            ((np.abs(tangent.slopes).sum(axis=0) + np.abs(tangent.gain)) > 0) & ~point.program.integer
        )
        if not len(moving):
            break
        settled = bool((tangent.side * tangent.arguments > 0).all())
        moves = (_direction(point, v, tangent, moving, trust) for trust in (TRUST[1:] if settled else TRUST))
        move = next((move for move in moves if move is not None), None)
        if move is None:
            break
        v = v.copy()
        v[moving] = np.clip(v[moving] + move, point.program.lower[moving], point.program.upper[moving])
        best = max(best, reached(v))
    return sign * best


def _direction(point: Point, v: Array, tangent: Tangent, moving: Index, trust: float) -> Array | None:
    """The module's linear program over the `moving` deviations; None where it has no solution."""
    low = np.maximum(point.program.lower[moving] - v[moving], -trust)
    high = np.minimum(point.program.upper[moving] - v[moving], trust)
    limits, limit_low, limit_high = point.limits
    now, limits = limits @ v, limits[:, moving]
    touching = np.flatnonzero(np.diff(limits.indptr) > 0)
    limits, room = limits[touching], (limit_low[touching] - now[touching], limit_high[touching] - now[touching])
    below, above = np.isfinite(room[0]), np.isfinite(room[1])
    slopes, gain = tangent.slopes[:, moving], tangent.gain[moving]
    scale = np.maximum(np.abs(slopes).max(axis=1, initial=0.0), 1e-300)
    own = sparse.csr_matrix(-(tangent.side / scale)[:, None] * slopes)
    matrix = sparse.vstack([own, limits[above], -limits[below]], format="csr")
    ahead = (tangent.side * tangent.arguments - tangent.margins) / scale
    right = np.concatenate([ahead, np.maximum(room[1][above], 0.0), np.maximum(-room[0][below], 0.0)])
    gain = gain / max(float(np.abs(gain).max()), 1e-300)
    if not (np.isfinite(right).all() and np.isfinite(matrix.data).all() and np.isfinite(gain).all()):
        return None  # numbers too large to be told apart: the point stays where it is
    ends = np.stack([np.minimum(low, 0.0), np.maximum(high, 0.0)], axis=1)
    rows = {"A_ub": matrix, "b_ub": right} if len(right) else {}
    result = linprog(-gain, **rows, bounds=ends, method="highs")
    return np.asarray(result.x) if result.status == 0 else None


def _linearise(
    point: Point, v: Array, sign: float, claims: Mapping[int, Array], radii: Mapping[int, Array], grown: float
) -> Tangent:
    """The tangent at `v`, by reverse-mode derivatives of the output and of all claimed gates' arguments at once."""
    graph, values = point.graph, _forced_values(point.graph, point.at(v), claims)
    claimed = [(n, k) for n, claim in claims.items() for k in np.flatnonzero(~np.isnan(claim)).tolist()]
    places = [_output_place(graph, values, point.element), *claimed]
    start = {n: np.zeros((len(places), values[n].size)) for n in {n for n, _ in places}}
    for scalar, (n, k) in enumerate(places):
        start[n][scalar, k] += 1.0

    def pull(number: int, node: Node, upstream: Array) -> list[tuple[int, Array]]:
        if node.op in ("input", "const", "gate"):
            return []
        return list(zip(node.operands, _pull_back(node, upstream, values, claims), strict=True))

    shaped = {n: own.reshape((len(places), *values[n].shape)) for n, own in start.items()}
    gradients = backward(graph, shaped, pull)
    total = np.zeros((len(places), len(v)))
    for name, known in point.inputs.items():
        flat = gradients.get(graph.inputs[name])
        if flat is not None:
            total += (with_columns(known.affine.linear, len(v)).T @ flat.reshape(len(places), -1).T).T
    return Tangent(
        sign * total[0],
        np.array([values[n].ravel()[k] for n, k in claimed]),
        total[1:],
        np.array([2.0 * claims[n][k] - 1.0 for n, k in claimed]),
        np.array([MARGIN * radii[n][k] for n, k in claimed]) * grown,
    )


def _output_place(graph: Graph, values: list[Array], element: int) -> tuple[int, int]:
    """Node and place of an output, of all laid end to end."""
    for number in graph.outputs.values():
        if element < values[number].size:
            return number, element
        element -= values[number].size
    raise AssertionError("there is no such output")


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
