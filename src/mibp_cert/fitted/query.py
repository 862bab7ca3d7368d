"""Queries: what a graph says of fitted parameters, as `o = o₀ + a·θ`.

A fitted model is the last layer of a network, `o = φ(x) Wᵀ + b`; the layers before it are frozen. A query of any graph whose
output is affine in `θ` for given inputs, `o = o₀ + a·θ`, is read off the graph by enclosing it at `θ = 0` and at unit
vectors. Where inputs are in doubt as well and the features are the inputs themselves, the output is bilinear, `o = Σ_jk T_jk
θ_j x_k + …`, and a doubt `|d_k| ≤ r_k` adds at most `Σ_k r_k max_θ |Σ_j T_jk θ_j|`.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.engines.base import Inputs, Maker
from mibp_cert.engines.interval import enclose
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import UnsupportedOperation
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.features import Enclosure, RowNoise, enclose_features
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.table import Rows, table_of
from mibp_cert.graph import Graph
from mibp_cert.nets import Layout

LINEAR = frozenset({"add", "scale", "contract", "sum", "gather", "reshape"})
"""Operations through which an output may depend on fitted parameters."""


def linear_in_parameters(graph: Graph, layout: Layout, x: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """`o₀` and `a` with `o = o₀ + a·θ`, for every output, and how far each may be off; refuses graphs whose output is not
    affine in the parameters.

    A large constant in the graph (the mean of a target, say) would drown small `a`: all values are enclosed.
    """
    check_linear(graph, [graph.inputs[name] for name in layout.names if name in graph.inputs], "fitted parameters")
    points = np.concatenate([np.zeros((1, layout.size)), np.eye(layout.size)])
    found: list[Interval] = []
    for point in points:
        values = {name: Interval.point(value) for name, value in layout.unflatten(point).items()}
        found += enclose(graph, {**values, "x": Interval.point(x)}).values()
    low, high = (np.stack([getattr(one, end) for one in found]) for end in ("low", "high"))
    middle = 0.5 * (low + high)
    off = np.nextafter(np.maximum(high - middle, middle - low), np.inf)
    a = middle[1:] - middle[0]
    more = off[1:] + off[0] + 4.0 * EPS * np.abs(a)
    return (middle[0], np.moveaxis(a, 0, -1)), (off[0], np.moveaxis(more, 0, -1))


def linear_in_features(
    make: Maker, layout: Layout, inputs: Inputs, z: Ranges, frozen: Array
) -> tuple[Array, Array, Array]:
    """The same behind frozen layers, `o = o₀ + a·θ ± moved`, for inputs in doubt, too.

    At `θ = 0` and at every unit vector it is a graph of the inputs alone: `o_j(x + d) ∈ c_j + J_j d ± β_j` (`fitted.features`).
    So `o = c₀ + (c − c₀)·θ` but for `(J₀ + Σ_j θ_j (J_j − J₀)) d`, whose support over the noise is that of the middle of the
    coefficients, plus their radius times the largest noise, and for `β₀ + Σ_j |θ_j|(β_j + β₀)`.
    """
    graph, start = make(len(inputs.x)), len(frozen)
    names = [n for n, first in zip(layout.names, layout.offsets, strict=False) if first >= start]
    check_linear(graph, [graph.inputs[name] for name in names if name in graph.inputs], "fitted parameters")
    noise, doubtful = RowNoise(_rows_of(inputs)), inputs.members is not None
    points = np.concatenate([np.zeros((1, len(z.low))), np.eye(len(z.low))])
    found: list[Enclosure] = []
    for point in points:
        values = layout.unflatten(np.append(frozen, point))
        found.append(enclose_features(graph, values, noise, doubtful=doubtful))
    zero, rest = found[0], found[1:]
    a = np.stack([one.c - zero.c for one in rest], axis=-1)
    moved = zero.beta + np.stack([one.beta + zero.beta for one in rest], axis=-1) @ z.reach
    if not doubtful:
        return zero.c, a, moved
    j = np.stack([one.j - zero.j for one in rest])
    middle, radius = zero.j + np.tensordot(z.middle, j, 1), np.tensordot(z.radius, np.abs(j), 1)
    low, high = noise.support(middle)
    moved = moved + 0.5 * (high - low) + noise.magnitude(radius)
    sizes = noise.magnitude(np.abs(zero.j) + np.tensordot(z.reach, np.abs(j), 1))
    return zero.c + 0.5 * (low + high), a, moved + 16.0 * (len(points) + 4) * EPS * sizes


def _rows_of(inputs: Inputs) -> Rows:
    """Inputs with their own noise; that of several rows at once is taken cell by cell."""
    n, d = inputs.x.shape
    nothing = np.zeros(n)
    if inputs.members is None:
        return Rows(inputs.x, np.zeros((n, d)), nothing, nothing, nothing)
    table = table_of(inputs.members.noise(), 0, nothing, np.zeros(d))
    if not (table.blocks or table.budgets):
        return table.rows
    hull = inputs.range
    middle = 0.5 * (hull.low + hull.high)
    radius = np.maximum(hull.high - middle, middle - hull.low) * (1.0 + 4.0 * EPS)
    return Rows(middle, radius, nothing, nothing, nothing)


def check_linear(graph: Graph, of: list[int], what: str) -> None:
    """Raise `UnsupportedOperation` unless every output is affine in these inputs."""
    moved = graph.descendants(of)
    for number in sorted(moved - set(of)):
        node = graph.nodes[number]
        both = node.op == "contract" and all(i in moved for i in node.operands)
        if node.op not in LINEAR or both:
            raise UnsupportedOperation(
                f"The engine 'dual' bounds what is linear in the {what}; {node.origin} is not. Ask for margins, ranges, or "
                "differences of them."
            )


def moved_by_inputs(make: Maker, layout: Layout, inputs: Inputs, z: Ranges) -> Array:
    """How far the outputs may move with the inputs' own doubt: `Σ_k r_k max_θ |Σ_j T_jk θ_j|`."""
    hull, d = inputs.range, inputs.x.shape[1]
    radius = np.maximum(hull.high - inputs.x, inputs.x - hull.low) * (1.0 + 4.0 * EPS)
    probes = np.concatenate([np.zeros((1, d)), np.eye(d)])
    graph = make(len(probes))
    check_linear(graph, [graph.inputs["x"]], "inputs")
    (_, a), (_, off) = linear_in_parameters(graph, layout, probes)
    t = a[1:] - a[:1]  # features × outputs × parameters
    reach = np.abs(t @ z.middle) + np.abs(t) @ z.radius + (off[1:] + off[:1]) @ z.reach
    return np.asarray(radius @ reach * (1.0 + 16.0 * EPS * (d + layout.size)))
