"""Frozen features: fixed layers in front of a fitted one, and rows in doubt that go through them.

With `d` in the noise `D` of its row, a row `x + d` goes through the layers by the affine rules of the relational engine, whose
symbols are the entries of `d` itself:

    φ(x + d) ∈ c + J d ± β,        for every d ∈ D:

linear layers act on `c`, `J` and `β` (with absolute values), every other function is a line and a band around it on the range of
its argument, `c_k + sup_D (J d)_k + β_k` and likewise below (`engines.relax`). All rounding, here and in a run of the layers in
float64, is in `β`. Hence

- cells within radii `r` become directions `r_k J_k` that the features share;
- noise `d = Lε` that is known by its support function (balls, one-hot groups, rules) becomes `(JL)ε`, known by the same one;
- `β` is a radius for each feature.

`D` is convex and holds the row as handed in, so that datasets on the way from there to any other are enclosed, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from scipy import sparse

from mibp_cert.engines.relational.forms import Form, Symbols, absolute_sum, columns_of, upward
from mibp_cert.engines.relational.rules import OPERATIONS, AffineRules
from mibp_cert.engines.rounding import Interval, gamma
from mibp_cert.errors import UserError
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.table import Array, Pieces, Rows, Spread, Table
from mibp_cert.graph import Graph, interpret
from mibp_cert.nets import Cosine, Linear, Network, Tanh

KINDS = {"tanh": Tanh(), "fourier": Cosine()}
"""Random features, and the function behind each."""
FROZEN = "frozen"
"""The kind of features that are given as layers."""
CELLS = 4_000_000
"""Symbols times features at once."""


def plain(value: Any) -> Any:
    """Numbers of NumPy as those of Python; anything else as it is.

    >>> plain(np.float32(0.5)), plain(np.bool_(True)), plain(np.array(3)), plain("balanced")
    (0.5, True, 3, 'balanced')
    """
    return value.item() if isinstance(value, np.generic | np.ndarray) and value.ndim == 0 else value


@dataclass(frozen=True)
class RandomFeatures:
    """`count` features of a row, drawn from `seed` once and for all: a nonlinear model whose fit is still convex.

    `tanh`: `tanh(w·x + b)`, `w` normal of deviation `scale`, `b` uniform in `±scale`. `fourier`: `cos(w·x + b)`, `b` uniform in
    `[0, 2π]`; the mean of `2 φ(x) φ(x')` over the draws is the kernel `exp(−½ scale² ‖x − x'‖²)`. They are not scaled by
    `√(2/count)`: a fit of features that are has `count/2` times this one's `C`.

    >>> RandomFeatures(30, scale=2.0).body(2)[0].sizes
    [2, 30]
    """

    count: int
    scale: float = 1.0
    seed: int = 0
    kind: str = "tanh"

    def __post_init__(self) -> None:
        for name in ("count", "scale", "seed"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name, least in (("count", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                what = "number" if name == "count" else "seed"
                raise UserError(f"The {what} of random features must be a whole number ≥ {least}, got {value!r}.")
        if not isinstance(self.scale, int | float) or not (np.isfinite(self.scale) and self.scale > 0):
            raise UserError(f"The scale of random features must be a finite number > 0, got {self.scale!r}.")
        if self.kind not in KINDS:
            raise UserError(f"There are no random features called {self.kind!r}; choose one of {', '.join(KINDS)}.")

    def body(self, inputs: int) -> tuple[Network, Array]:
        """The features as a network, and its parameters."""
        rng = np.random.default_rng([self.seed, 3])
        weight = rng.normal(0.0, self.scale, (self.count, inputs))
        ends = (-self.scale, self.scale) if self.kind == "tanh" else (0.0, 2.0 * np.pi)
        network = Network((Linear(inputs, self.count), KINDS[self.kind]), inputs)
        return network, np.concatenate([weight.ravel(), rng.uniform(*ends, self.count)])

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "count": self.count, "scale": float(self.scale), "seed": self.seed}

    @property
    def words(self) -> str:
        """
        >>> RandomFeatures(30, 2.0).words
        '30 random tanh features of scale 2 (seed 0)'
        """
        return f"{self.count} random {self.kind} features of scale {self.scale:g} (seed {self.seed})"


@dataclass(frozen=True, eq=False)
class FrozenLayers:
    """The leading layers of a network (`layers` of them, or all) at known parameters, which no fit changes: trained before, on
    data that are not in doubt, or drawn at random.

    >>> network = Network.mlp([2, 5, 1])
    >>> FrozenLayers(network, network.initialise(0), layers=2).words
    '5 features of 2 frozen layers'
    """

    network: Network
    theta: Array
    layers: int | None = None

    def __post_init__(self) -> None:
        theta = np.array(self.theta, dtype=np.float64)
        if theta.shape != (self.network.layout.size,) or not np.isfinite(theta).all():
            raise UserError(
                f"Frozen layers need all {self.network.layout.size} parameters of their network as finite numbers; got "
                f"{theta.size} values."
            )
        count, most = plain(self.layers), len(self.network.layers)
        object.__setattr__(self, "layers", count)
        if count is not None and not (isinstance(count, int) and 1 <= count <= most):
            raise UserError(f"There are {most} layers to freeze, at least 1; got {count!r}.")
        theta.setflags(write=False)
        object.__setattr__(self, "theta", theta)
        _ = self._leading  # refused here rather than later, if its last layer returns images

    @cached_property
    def _leading(self) -> Network:
        return self.network if self.layers is None else Network(self.network.layers[: self.layers], self.network.shape)

    def body(self, inputs: int) -> tuple[Network, Array]:
        """The features as a network, and its parameters."""
        body = self._leading
        if body.features != inputs:
            raise UserError(f"The frozen layers take {body.features} features, but the data have {inputs}.")
        return body, self.theta[: body.layout.size]

    def to_json(self) -> dict[str, Any]:
        body, theta = self.body(self._leading.features)
        return {"kind": FROZEN, "layers": body.describe(), "sha256": hashlib.sha256(theta.tobytes()).hexdigest()}

    @property
    def words(self) -> str:
        return f"{self._leading.logits} features of {len(self._leading.layers)} frozen layers"


Features = RandomFeatures | FrozenLayers


@final
class RowNoise(Symbols):
    """`d`, one symbol for each feature of the inputs. Where it lies differs from row to row, the first axis of every tensor."""

    def __init__(self, rows: Rows, blocks: tuple[Spread, ...] = ()) -> None:
        super().__init__((), rows.x.shape[1])
        self.boxed, self.rows = False, rows
        # Noise that rows share is taken cell by cell where it decides on ranges.
        spread = [np.asarray(abs(s.linear) @ s.block.magnitude()).reshape(rows.x.shape) for s in blocks]
        self.box = upward(rows.r + sum(spread, np.zeros(rows.x.shape)), len(spread) + 2)
        pieces = [np.asarray(abs(p.linear) @ p.segments.magnitude()).reshape(rows.x.shape) for p in rows.pieces]
        self.largest_cells = upward(self.box + sum(pieces, np.zeros(rows.x.shape)), len(pieces) + 2)
        counts = [np.bincount(p.segments.rows, p.segments.sizes, len(rows)) for p in rows.pieces]
        self.terms = int(sum(counts, np.zeros(len(rows))).max(initial=0)) + 2 * self.data + 16

    def support(self, linear: Array) -> tuple[Array, Array]:
        n, d = self.box.shape
        flat = linear.reshape(n, -1, linear.shape[-1])
        own = columns_of(flat, 0, d)
        high = np.einsum("nmk,nk->nm", np.abs(own), self.box) + absolute_sum(flat[..., d:])
        low = -high
        cells = own.transpose(0, 2, 1).reshape(n * d, -1)
        for piece in self.rows.pieces:
            step = max(1, CELLS // max(1, piece.segments.count))
            for start in range(0, cells.shape[1], step):
                bottom, top = piece.segments.ends(np.asarray(piece.linear.T @ cells[:, start : start + step]).T)
                np.add.at(low[:, start : start + step], piece.segments.rows, bottom.T)
                np.add.at(high[:, start : start + step], piece.segments.rows, top.T)
        slip = upward(8.0 * gamma(self.terms + linear.shape[-1]) * self.magnitude(linear), 3)
        shape = linear.shape[:-1]
        return low.reshape(shape) - slip, high.reshape(shape) + slip

    def magnitude(self, linear: Array) -> Array:
        n, d = self.box.shape
        flat = linear.reshape(n, -1, linear.shape[-1])
        total = np.einsum("nmk,nk->nm", np.abs(columns_of(flat, 0, d)), self.largest_cells)
        return upward(total + absolute_sum(flat[..., d:]), self.terms + linear.shape[-1]).reshape(linear.shape[:-1])


@dataclass(frozen=True, eq=False)
class Enclosure:
    """`c + J d ± β` for every row: `c` and `β` (rows × outputs), `J` (rows × outputs × inputs)."""

    c: Array
    j: Array
    beta: Array


def enclose_features(
    graph: Graph, parameters: Mapping[str, Array], noise: RowNoise, *, doubtful: bool = True
) -> Enclosure:
    """The one output of a graph over parameters and `x` (rows × …), for rows with this noise (or exactly as they are)."""
    n, d = noise.box.shape
    x = Form.constant(noise, Interval.point(noise.rows.x))
    if doubtful:
        eye = np.broadcast_to(np.eye(d), (n, d, d)).copy()
        x = Form(noise, noise.rows.x, eye, np.zeros((n, d)), noise.magnitude(eye)).tighten()
    known = {name: Form.constant(noise, Interval.point(value)) for name, value in parameters.items()}
    with np.errstate(all="ignore"):  # what is not finite proves nothing
        rules = dict.fromkeys(OPERATIONS, AffineRules(noise).apply)
        values = interpret(graph, rules, {**known, "x": x}, engine="dual")
        (number,) = graph.outputs.values()
        form = values[number]
        linear = form.generators()
        own = columns_of(linear, 0, d)
        return Enclosure(form.centre, own, upward(form.slack + absolute_sum(linear[..., d:]), linear.shape[-1] + 2))


def through(table: Table, body: Network, theta: Array) -> Table:
    """The table of the features: its rows, what may replace them, and the noise that rows share."""
    graph, parameters = body.forward_graph, body.layout.unflatten(theta)

    def of(rows: Rows, blocks: tuple[Spread, ...]) -> tuple[Rows, Array]:
        noise = RowNoise(rows, blocks)
        found = enclose_features(graph(len(rows)), parameters, noise)
        # What the products below round.
        slip = 8.0 * (noise.terms + 8) * EPS * np.einsum("nmk,nk->nm", np.abs(found.j), noise.largest_cells)
        along = np.flatnonzero(rows.r.any(axis=0)).astype(np.intp)
        j = rows.r[:, along, None] * found.j.transpose(0, 2, 1)[:, along, :]
        pieces = tuple(Pieces(_after(found.j, p.linear), p.segments, p.linear) for p in rows.pieces)
        return Rows(found.c, upward(found.beta + slip), rows.y, rows.q, rows.w, j, pieces, along), found.j

    main, j = of(table.rows, table.blocks)
    blocks = tuple(Spread(_after(j, spread.linear), spread.block, spread.linear) for spread in table.blocks)
    none = np.zeros(0, dtype=np.intp)
    # No block reaches a row that a budget replaces (`fitted.table`).
    budgets = tuple(
        replace(
            b, by=replace(b.by, x=main.x[b.rows], r=main.r[b.rows], along=none) if b.targets_only else of(b.by, ())[0]
        )
        for b in table.budgets
    )
    return replace(table, rows=main, blocks=blocks, budgets=budgets)


def _after(j: Array, linear: Any) -> sparse.csr_matrix:
    """`J·linear`, row by row of the table."""
    n, m, d = j.shape
    blocks = sparse.bsr_matrix((np.ascontiguousarray(j), np.arange(n), np.arange(n + 1)), shape=(n * m, n * d))
    return sparse.csr_matrix(blocks.tocsr() @ linear)
