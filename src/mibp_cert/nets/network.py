"""A network: a list of layers, the names and places of its parameters, and its passes in graph operations."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.errors import UserError
from mibp_cert.graph import Graph, GraphBuilder
from mibp_cert.graph.ops import Shape
from mibp_cert.nets.layers import INITIALISATIONS, Activation, Layer, Linear, ReLU

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """Where each named parameter lies in the flat vector `θ`."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        return tuple(np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist())

    @property
    def size(self) -> int:
        return self.offsets[-1]

    def unflatten(self, theta: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Views of the named tensors; leading axes of `theta` are kept."""
        return {
            name: theta[..., start:stop].reshape(theta.shape[:-1] + shape)
            for name, shape, start, stop in zip(
                self.names, self.shapes, self.offsets[:-1], self.offsets[1:], strict=True
            )
        }

    def flatten(self, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The inverse of `unflatten`."""
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            tensor = tensors[name]
            parts.append(tensor.reshape((*tensor.shape[: tensor.ndim - len(shape)], -1)))
        return np.concatenate(parts, axis=-1)

    def describe(self, index: int) -> str:
        """Human name of one entry of `θ`, such as `0.weight[3, 1]`."""
        which = int(np.searchsorted(self.offsets, index, side="right")) - 1
        place = np.unravel_index(index - self.offsets[which], self.shapes[which])
        return f"{self.names[which]}[{', '.join(str(int(i)) for i in place)}]"


def _words(shape: Shape) -> str:
    return f"{shape[0]} features" if len(shape) == 1 else f"{shape[0]} channel(s) of {shape[1]} × {shape[2]}"


@dataclass(frozen=True)
class Network:
    """Layers applied one after another to rows of inputs; the last one returns the logits.

    `shape` is that of one row: a number of features, or (channels, height, width) of an image whose features are stored channel
    by channel, line by line.

    >>> network = Network.mlp([2, 20, 2])
    >>> network.layout.size
    102
    >>> from mibp_cert.nets import Conv2d, Flatten
    >>> Network((Conv2d(1, 4, 3, stride=2), ReLU(), Flatten(), Linear(36, 2)), (1, 8, 8)).sizes
    [64, 36, 2]
    """

    layers: tuple[Layer, ...]
    shape: int | Shape

    def __post_init__(self) -> None:
        if not self.layers or not all(isinstance(layer, Layer) for layer in self.layers):
            raise UserError(f"A network is a sequence of layers such as Linear(2, 3) and ReLU(), got {self.layers!r}.")
        if isinstance(self.shape, tuple) and len(self.shape) not in (1, 3):
            raise UserError(
                f"The shape of a row is a number of features, or (channels, height, width) of an image; got {self.shape}."
            )
        if len(self.shapes[-1]) != 1:
            raise UserError(
                f"The last layer, {self.layers[-1]}, returns images of shape {self.shapes[-1]}; end with Flatten() or Linear."
            )

    @classmethod
    def mlp(cls, sizes: Sequence[int], *, bias: bool = True, activation: Activation | None = None) -> Network:
        """Fully connected network with ReLU (or another activation) between the layers: `[2, 20, 2]` has one hidden layer of 20,
        `[2, 1]` none: a linear or, with cross-entropy, a logistic model."""
        if np.ndim(sizes) != 1:
            raise UserError(f"The sizes of a network are a list such as [2, 20, 2], got {sizes!r}.")
        if len(sizes) < 2 or any(int(size) != size or size < 1 for size in sizes):
            raise UserError(f"A network needs at least an input and an output size, all positive; got {list(sizes)}.")
        if activation is not None and not isinstance(activation, Activation):
            raise UserError(f"The activation is a layer such as Tanh(), got {activation!r}.")
        layers: list[Layer] = []
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            layers += [activation or ReLU()] if i else []
            layers.append(Linear(int(fan_in), int(fan_out), bias))
        return cls(tuple(layers), int(sizes[0]))

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Shape of one row at the input and after each layer; raises `UserError` naming both layers where they do not fit."""
        shapes: list[Shape] = [self.shape if isinstance(self.shape, tuple) else (int(self.shape),)]
        for i, layer in enumerate(self.layers):
            try:
                shapes.append(layer.output_shape(shapes[-1]))
            except UserError as error:
                before = f"layer {i - 1}, {self.layers[i - 1]}, returns" if i else "the input has"
                raise UserError(f"Layer {i}, {error}, but {before} {_words(shapes[-1])}.") from None
        return tuple(shapes)

    @property
    def features(self) -> int:
        """Number of features of one row."""
        return int(np.prod(self.shapes[0]))

    @property
    def logits(self) -> int:
        return self.shapes[-1][0]

    @property
    def sizes(self) -> list[int]:
        """Number of features at the input and after each layer with parameters, for example `[2, 20, 2]`."""
        after = [s for s, layer in zip(self.shapes[1:], self.layers, strict=True) if layer.parameter_shapes()]
        return [int(np.prod(shape)) for shape in (self.shapes[0], *after)]

    def describe(self) -> list[str]:
        """The layers in words, such as `Linear(inputs=2, outputs=20, bias=True)`."""
        return [str(layer) for layer in self.layers]

    @cached_property
    def layout(self) -> Layout:
        named = [(f"{i}.{n}", s) for i, layer in enumerate(self.layers) for n, s in layer.parameter_shapes().items()]
        return Layout(tuple(name for name, _ in named), tuple(shape for _, shape in named))

    def initialise(self, seed: int, scheme: str = "torch") -> Vector:
        """Initial parameters `θ₀`, flat; the same seed gives the same bits."""
        if scheme not in INITIALISATIONS:
            raise UserError(
                f"There is no initialisation called {scheme!r}; choose one of {', '.join(INITIALISATIONS)}."
            )
        if seed != int(seed) or seed < 0:
            raise UserError(f"The seed must be a whole number ≥ 0, got {seed}.")
        rng = np.random.default_rng(int(seed))
        tensors = {
            f"{i}.{name}": value
            for i, layer in enumerate(self.layers)
            for name, value in layer.initialise(rng, scheme).items()
        }
        return np.asarray(self.layout.flatten(tensors), dtype=np.float64)

    def _local(self, index: int, parameters: Mapping[str, int]) -> dict[str, int]:
        return {name: parameters[f"{index}.{name}"] for name in self.layers[index].parameter_shapes()}

    def forward(self, g: GraphBuilder, parameters: Mapping[str, int], x: int) -> tuple[int, list[tuple[int, ...]]]:
        """Write the forward pass; returns the logits and one tape per layer."""
        tapes = []
        for i, layer in enumerate(self.layers):
            g.origin = f"layer {i} ({type(layer).__name__})"
            x, tape = layer.forward(g, self._local(i, parameters), x, self.shapes[i])
            tapes.append(tape)
        return x, tapes

    def backward(
        self, g: GraphBuilder, parameters: Mapping[str, int], tapes: list[tuple[int, ...]], upstream: int
    ) -> tuple[int, dict[str, int]]:
        """Write the backward pass; returns the gradient nodes of the inputs and of every parameter."""
        gradients: dict[str, int] = {}
        for i in reversed(range(len(self.layers))):
            g.origin = f"layer {i} ({type(self.layers[i]).__name__}), backward"
            local_parameters, shape = self._local(i, parameters), self.shapes[i]
            upstream, local = self.layers[i].backward(g, local_parameters, tapes[i], upstream, shape)
            gradients.update({f"{i}.{name}": node for name, node in local.items()})
        return upstream, gradients

    def parameter_inputs(self, g: GraphBuilder) -> dict[str, int]:
        """Declare every parameter as a graph input."""
        return {n: g.input(n, s) for n, s in zip(self.layout.names, self.layout.shapes, strict=True)}

    def forward_graph(self, rows: int) -> Graph:
        """Graph from the parameters and `x` (rows × features) to the output `logits`."""
        g = GraphBuilder()
        parameters = self.parameter_inputs(g)
        logits, _ = self.forward(g, parameters, g.input("x", (rows, self.features)))
        return g.finish({"logits": logits})

    def slope_graph(self, rows: int, direction: NDArray[np.float64], feature: int) -> Graph:
        """Graph from the parameters and `x` to `slope = ∂(direction·logits)/∂x_feature` (rows × 1)."""
        g = GraphBuilder()
        parameters = self.parameter_inputs(g)
        _, tapes = self.forward(g, parameters, g.input("x", (rows, self.features)))
        g.origin = "slope"
        upstream = g.const(np.tile(direction, (rows, 1)))
        gradient, _ = self.backward(g, parameters, tapes, upstream)
        return g.finish({"slope": g.gather(gradient, [feature], -1)})

    def margin_graph(self, rows: int, first: NDArray[np.float64]) -> Graph:
        """Graph from the parameters and `x` to `margins = logits · firstᵀ`, one column per row of `first` (pairs × logits).

        A row `e_u − e_v` of `first` gives `o_u − o_v` as one expression.
        """
        g = GraphBuilder()
        parameters = self.parameter_inputs(g)
        logits, _ = self.forward(g, parameters, g.input("x", (rows, self.features)))
        g.origin = "margins"
        return g.finish({"margins": g.contract("bc,pc->bp", logits, g.const(first))})
