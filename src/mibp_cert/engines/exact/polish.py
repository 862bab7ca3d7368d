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

from mibp_cert.engines.adjoint import transposed
from mibp_cert.engines.exact.encode import Symbolic
from mibp_cert.engines.rounding import Array
from mibp_cert.graph import Graph, Node, backward, evaluate, interpret
from mibp_cert.graph.functions import SMOOTH
from mibp_cert.graph.interpret import TABLE
from mibp_cert.solvers import FEASIBILITY
from mibp_cert.solvers.program import Index, Program, with_columns

MARGIN = 1e-6
"""How far past a kink a claimed gate is pushed, relative to the radius of its argument."""

TRUST = (1e-3, 0.05, 0.3, 2.0)
"""How far a deviation may move in one round; the smallest radius that can satisfy the gates is taken."""

ROUNDS = 8


@dataclass(frozen=True, eq=False)
class Tangent:
    """At a point: the gradient of `sign·output` (which is to grow), and of the claimed gates' arguments values, gradients and
    margins, turned so that they are to be positive; all in deviations `v`."""

    gain: Array
    arguments: Array
    slopes: Array
    margins: Array


@dataclass(frozen=True, eq=False)
class Search:
    """A search for large values of `sign·output`, the output being number `element` of all outputs laid end to end.

    Inputs of the graph are functions of deviations `v` of the program, `centre + linear·v`, clipped to their ranges.
    """

    graph: Graph
    element: int
    sign: float
    inputs: Mapping[str, Symbolic]
    program: Program
    limits: tuple[Any, Array, Array]
    """The data's own constraints on the variables in play: `low ≤ matrix·v ≤ high`, as (matrix, low, high)."""
    gates: Mapping[int, tuple[Index, Array]]
    """Per node: the program's binary for each element (−1 where there is none), and the radii of that node's range."""

    def best(self, v: Array, target: float) -> float:
        """The largest true value of `sign·output` found from `v`, −∞ if none; stops once it reaches `target`."""
        v = self._settled(v)
        best = self._value(v)
        claims = {n: np.where(g >= 0, np.round(v[np.maximum(g, 0)]), np.nan) for n, (g, _) in self.gates.items()}
        for number in range(ROUNDS):
            if best >= target:
                break
            # Small moves keep second-order errors below the margin; where they do not, the margin grows from round to round.
            tangent = self._linearise(v, claims, 4.0**number)
            steep = np.abs(tangent.slopes).sum(axis=0) + np.abs(tangent.gain) > 0
            moving = np.flatnonzero(steep & ~self.program.integer)
            trusts = TRUST[1:] if (tangent.arguments > 0).all() else TRUST
            moves = (self._direction(v, tangent, moving, trust) for trust in trusts if len(moving))
            move = next((move for move in moves if move is not None), None)
            if move is None:
                break
            v = v.copy()
            v[moving] = np.clip(v[moving] + move, self.program.lower[moving], self.program.upper[moving])
            best = max(best, self._value(v))
        return best

    def _settled(self, v: Array) -> Array:
        """`v` with discrete variables made whole and products recomputed."""
        v = np.where(self.program.integer, np.round(v), v)
        q, a, b = self.program.triples.T
        v[q] = v[a] * v[b]
        return v

    def _at(self, v: Array) -> dict[str, Array]:
        values = {}
        for name, known in self.inputs.items():
            flat = known.affine.centre + with_columns(known.affine.linear, len(v)) @ v
            values[name] = np.clip(flat.reshape(known.range.low.shape), known.range.low, known.range.high)
        return values

    def _value(self, v: Array) -> float:
        """`sign·output` at `v`, by ordinary evaluation; −∞ where `v` breaks the data's own constraints, or where it overflows."""
        v = self._settled(v)
        matrix, low, high = self.limits
        row = matrix @ v
        if not ((row >= low - FEASIBILITY) & (row <= high + FEASIBILITY)).all():
            return -np.inf
        outputs = evaluate(self.graph, self._at(v))
        value = self.sign * float(np.concatenate([outputs[n].ravel() for n in self.graph.outputs])[self.element])
        return value if np.isfinite(value) else -np.inf

    def _direction(self, v: Array, tangent: Tangent, moving: Index, trust: float) -> Array | None:
        """The module's linear program over the `moving` deviations; None where it has no solution."""
        low = np.maximum(self.program.lower[moving] - v[moving], -trust)
        high = np.minimum(self.program.upper[moving] - v[moving], trust)
        limits, limit_low, limit_high = self.limits
        now, limits = limits @ v, limits[:, moving]
        above, below = np.isfinite(limit_high), np.isfinite(limit_low)
        slopes, gain = tangent.slopes[:, moving], tangent.gain[moving]
        scale = np.maximum(np.abs(slopes).max(axis=1, initial=0.0), 1e-300)
        matrix = sparse.vstack(
            [sparse.csr_matrix(-slopes / scale[:, None]), limits[above], -limits[below]], format="csr"
        )
        ahead = (tangent.arguments - tangent.margins) / scale
        right = np.concatenate(
            [ahead, np.maximum((limit_high - now)[above], 0.0), np.maximum((now - limit_low)[below], 0.0)]
        )
        gain = gain / max(float(np.abs(gain).max()), 1e-300)
        if not (np.isfinite(right).all() and np.isfinite(matrix.data).all() and np.isfinite(gain).all()):
            return None  # numbers too large to be told apart: the point stays where it is
        ends = np.stack([np.minimum(low, 0.0), np.maximum(high, 0.0)], axis=1)
        rows = {"A_ub": matrix, "b_ub": right} if len(right) else {}
        result = linprog(-gain, **rows, bounds=ends, method="highs")
        return np.asarray(result.x) if result.status == 0 else None

    def _linearise(self, v: Array, claims: Mapping[int, Array], grown: float) -> Tangent:
        """The tangent at `v`, by reverse-mode derivatives of the output and of all claimed gates' arguments at once."""
        graph, values = self.graph, _forced_values(self.graph, self._at(v), claims)
        claimed = [(n, k) for n, claim in claims.items() for k in np.flatnonzero(~np.isnan(claim)).tolist()]
        places = [self._output_place(), *claimed]
        start = {n: np.zeros((len(places), *values[n].shape)) for n, _ in places}
        for scalar, (n, k) in enumerate(places):
            start[n][scalar].flat[k] = 1.0

        def pull(number: int, node: Node, upstream: Array) -> list[tuple[int, Array]]:
            match node.op:
                case "input" | "const" | "gate":
                    return []
                case "relu":
                    i = node.operands[0]
                    return [(i, upstream * _sides(claims, i, np.heaviside(values[i], 0.0)))]
                case "smooth":
                    i = node.operands[0]
                    return [(i, upstream * SMOOTH[node.attribute].slope(values[i]))]
            return [
                (i, transposed(node, place, upstream, values[i].shape, values[node.operands[-1 - place]]))
                for place, i in enumerate(node.operands)
            ]

        gradients = backward(graph, start, pull)
        total = np.zeros((len(places), len(v)))
        for name, known in self.inputs.items():
            flat = gradients.get(graph.inputs[name])
            if flat is not None:
                total += (with_columns(known.affine.linear, len(v)).T @ flat.reshape(len(places), -1).T).T
        side = np.array([2.0 * claims[n][k] - 1.0 for n, k in claimed])
        arguments = np.array([values[n].ravel()[k] for n, k in claimed])
        margins = np.array([MARGIN * self.gates[n][1][k] for n, k in claimed]) * grown
        return Tangent(self.sign * total[0], side * arguments, side[:, None] * total[1:], margins)

    def _output_place(self) -> tuple[int, int]:
        """Node of the output in question, and its place there."""
        place = self.element
        for number in self.graph.outputs.values():
            size = int(np.prod(self.graph.nodes[number].shape))
            if place < size:
                return number, place
            place -= size
        raise AssertionError("there is no such output")


def _sides(claims: Mapping[int, Array], argument: int, plain: Array) -> Array:
    """The gates of a node: as claimed, and as they are where nothing is claimed."""
    if argument not in claims:
        return plain
    claim = claims[argument].reshape(plain.shape)
    return np.where(np.isnan(claim), plain, claim)


def _forced_values(graph: Graph, inputs: dict[str, Array], claims: Mapping[int, Array]) -> list[Array]:
    """Ordinary evaluation, but with every claimed gate at its claimed side."""
    values: list[Array] = []

    def force(number: int, node: Node, value: Array) -> Array:
        if node.op == "gate":
            value = _sides(claims, node.operands[0], value)
        elif node.op == "relu":
            z = values[node.operands[0]]
            value = np.where(_sides(claims, node.operands[0], np.heaviside(z, 0.0)), z, 0.0)
        values.append(value)
        return value

    return interpret(graph, TABLE, inputs, engine="concrete", visit=force)
