"""Layers: forward and backward pass, written once in graph operations; no layer knows an engine.

Between layers a batch is a table, rows × features. Layers for images read the features of a row in PyTorch's order, channel by
channel, line by line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mibp_cert.errors import UserError
from mibp_cert.graph import GraphBuilder
from mibp_cert.graph.ops import Shape

INITIALISATIONS = ("torch", "fullcert")
Index = NDArray[np.intp]
Tape = tuple[int, ...]


class Layer(ABC):
    """A layer maps a batch `a` (rows × features) to `o`, and the upstream gradient `∂J/∂o` to `∂J/∂a` and its own.

    `forward` returns the output node and whatever nodes `backward` needs again (the tape).
    """

    def parameter_shapes(self) -> dict[str, Shape]:
        """Local parameter names and shapes, in the order in which they are stored."""
        return {}

    def initialise(self, rng: np.random.Generator, scheme: str) -> dict[str, NDArray[np.float64]]:
        """Draw initial values: uniform in `±1/√fan`, with the inputs (`"torch"`, PyTorch's default) or the outputs
        (`"fullcert"`) of one unit as `fan`."""
        return {}

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Shape of one row's output for one row's input, `(features,)` or `(channels, height, width)`; raises `UserError` if the
        input does not fit."""

    @abstractmethod
    def forward(self, g: GraphBuilder, parameters: dict[str, int], a: int, shape: Shape) -> tuple[int, Tape]:
        """Write the forward pass for rows of this shape."""

    @abstractmethod
    def backward(
        self, g: GraphBuilder, parameters: dict[str, int], tape: Tape, upstream: int, shape: Shape
    ) -> tuple[int, dict[str, int]]:
        """Write the backward pass: the gradient with respect to the input, and those of the parameters."""


def _uniform(rng: np.random.Generator, fan: int, shapes: dict[str, Shape]) -> dict[str, NDArray[np.float64]]:
    bound = 1.0 / np.sqrt(fan)
    return {name: rng.uniform(-bound, bound, shape) for name, shape in shapes.items()}


@dataclass(frozen=True)
class Linear(Layer):
    """`o = a Wᵀ + b` with `W` of shape (out, in).

    Gradients: `∂J/∂a = (∂J/∂o) W`, `∂J/∂W = (∂J/∂o)ᵀ a`, `∂J/∂b = Σ_rows ∂J/∂o`.
    """

    inputs: int
    outputs: int
    bias: bool = True

    def parameter_shapes(self) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {"weight": (self.outputs, self.inputs)}
        if self.bias:
            shapes["bias"] = (self.outputs,)
        return shapes

    def initialise(self, rng: np.random.Generator, scheme: str) -> dict[str, NDArray[np.float64]]:
        return _uniform(rng, self.inputs if scheme == "torch" else self.outputs, self.parameter_shapes())

    def output_shape(self, shape: Shape) -> Shape:
        if shape != (self.inputs,):
            raise UserError(f"{self} takes {self.inputs} features")
        return (self.outputs,)

    def forward(self, g: GraphBuilder, parameters: dict[str, int], a: int, shape: Shape) -> tuple[int, Tape]:
        out = g.contract("bi,oi->bo", a, parameters["weight"])
        if self.bias:
            out = g.add(out, parameters["bias"])
        return out, (a,)

    def backward(
        self, g: GraphBuilder, parameters: dict[str, int], tape: Tape, upstream: int, shape: Shape
    ) -> tuple[int, dict[str, int]]:
        (a,) = tape
        gradients = {"weight": g.contract("bo,bi->oi", upstream, a)}
        if self.bias:
            gradients["bias"] = g.sum(upstream, (-2,))
        return g.contract("bo,oi->bi", upstream, parameters["weight"]), gradients


class Activation(Layer):
    """A function of each feature, without parameters."""

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    @abstractmethod
    def derivative(self, g: GraphBuilder, tape: Tape) -> int:
        """Write the function's derivative at the features of the tape."""

    def backward(
        self, g: GraphBuilder, parameters: dict[str, int], tape: Tape, upstream: int, shape: Shape
    ) -> tuple[int, dict[str, int]]:
        return g.multiply(self.derivative(g, tape), upstream), {}


@dataclass(frozen=True)
class ReLU(Activation):
    """`o = max(0, a)`, with derivative `1[a > 0]` (zero at the kink)."""

    def forward(self, g: GraphBuilder, parameters: dict[str, int], a: int, shape: Shape) -> tuple[int, Tape]:
        return g.relu(a), (a,)

    def derivative(self, g: GraphBuilder, tape: Tape) -> int:
        return g.gate(tape[0], closed=False)


@dataclass(frozen=True)
class LeakyReLU(Activation):
    """`o = max(0, a) + s·min(0, a)`, written `s·a + (1 − s)·max(0, a)`; derivative `s + (1 − s)·1[a > 0]`."""

    slope: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.slope < 1:
            raise UserError(f"The slope of LeakyReLU must be at least 0 and below 1, got {self.slope}.")

    def forward(self, g: GraphBuilder, parameters: dict[str, int], a: int, shape: Shape) -> tuple[int, Tape]:
        slope = Fraction(self.slope)
        return g.add(g.scale(a, slope), g.scale(g.relu(a), 1 - slope)), (a,)

    def derivative(self, g: GraphBuilder, tape: Tape) -> int:
        slope = Fraction(self.slope)
        return g.add(g.scale(g.gate(tape[0], closed=False), 1 - slope), g.const(self.slope))


class SmoothActivation(Activation):
    """A smooth function of each feature, known to the graph with its derivative by name (`graph.functions`)."""

    function: ClassVar[str]
    slope: ClassVar[str]

    def forward(self, g: GraphBuilder, parameters: dict[str, int], a: int, shape: Shape) -> tuple[int, Tape]:
        return g.smooth(a, self.function), (a,)

    def derivative(self, g: GraphBuilder, tape: Tape) -> int:
        return g.smooth(tape[0], self.slope)


@dataclass(frozen=True)
class Sigmoid(SmoothActivation):
    """`o = σ(a) = 1/(1 + e⁻ᵃ)`, with derivative `σ(a)(1 − σ(a))`."""

    function, slope = "sigmoid", "sigmoid slope"


@dataclass(frozen=True)
class Tanh(SmoothActivation):
    """`o = tanh(a)`, with derivative `1 − tanh²(a)`."""

    function, slope = "tanh", "tanh slope"


@dataclass(frozen=True)
class Softplus(SmoothActivation):
    """`o = log(1 + eᵃ)`, with derivative `σ(a)`."""

    function, slope = "softplus", "sigmoid"


@dataclass(frozen=True)
class Cosine(SmoothActivation):
    """`o = cos(a)`, with derivative `−sin(a)`."""

    function, slope = "cos", "cos slope"


@dataclass(frozen=True)
class Flatten(Layer):
    """An image becomes a row of features, channel by channel, line by line."""

    def output_shape(self, shape: Shape) -> Shape:
        return (int(np.prod(shape)),)

    def forward(self, g: GraphBuilder, parameters: dict[str, int], a: int, shape: Shape) -> tuple[int, Tape]:
        return a, ()

    def backward(
        self, g: GraphBuilder, parameters: dict[str, int], tape: Tape, upstream: int, shape: Shape
    ) -> tuple[int, dict[str, int]]:
        return upstream, {}


@dataclass(frozen=True)
class Windows:
    """Where the windows of a convolution or a pooling lie: `kernel` × `kernel`, `stride` apart, `padding` zeros around."""

    kernel: int
    stride: int
    padding: int

    def check(self, layer: Layer, shape: Shape) -> tuple[int, int]:
        """Height and width of the output; raises `UserError` if the windows do not fit the image."""
        sizes = (self.kernel, self.stride, self.padding)
        if not all(isinstance(size, int) for size in sizes):
            raise UserError(f"{layer} takes one whole number each for kernel, stride and padding")
        if self.kernel < 1 or self.stride < 1 or not 0 <= self.padding < self.kernel:
            raise UserError(f"{layer} needs a kernel and a stride of at least 1, and a padding below the kernel's size")
        if len(shape) != 3:
            raise UserError(f"{layer} takes images, given as (channels, height, width)")
        size = [(n + 2 * self.padding - self.kernel) // self.stride + 1 for n in shape[1:]]
        if min(size) < 1:
            least = self.kernel - 2 * self.padding
            raise UserError(f"{layer} needs an image of at least {least} × {least}")
        return size[0], size[1]

    def places(self, height: int, width: int) -> Index:
        """Flat place in the image of every cell of every window (windows × cells), −1 for padding."""
        return _places(self, height, width)


@lru_cache(maxsize=64)
def _places(windows: Windows, height: int, width: int) -> Index:
    starts = [np.arange(0, n + 2 * windows.padding - windows.kernel + 1, windows.stride) for n in (height, width)]
    offset = np.arange(windows.kernel) - windows.padding
    row = starts[0][:, None, None, None] + offset[None, None, :, None]
    column = starts[1][None, :, None, None] + offset[None, None, None, :]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    place = np.where(inside, row * width + column, -1)
    return place.reshape(len(starts[0]) * len(starts[1]), -1).astype(np.intp)


def _inverse(places: Index, size: int) -> Index:
    """For every one of `size` places, where it occurs in the flat `places` (size × most occurrences, padded with −1)."""
    flat = places.ravel()
    order = np.argsort(flat, kind="stable")
    order = order[flat[order] >= 0]
    counts = np.bincount(flat[order], minlength=size)
    first = np.cumsum(counts) - counts
    out = np.full((size, int(counts.max(initial=1))), -1, dtype=np.intp)
    out[flat[order], np.arange(len(order)) - first[flat[order]]] = order
    return out


@dataclass(frozen=True)
class Conv2d(Layer):
    """Convolution: `o[c, p] = b[c] + Σ_k W[c, k]·a[window p, cell k]`, a gather of the windows and one contraction.

    `W` has the shape (out, in, kernel, kernel). Gradients: `∂J/∂W = Σ_{rows, p} (∂J/∂o[·, p]) a[window p]ᵀ`, and `∂J/∂a` collects
    `Wᵀ ∂J/∂o` over the windows that a cell lies in.
    """

    channels: int
    filters: int
    kernel: int
    stride: int = 1
    padding: int = 0
    bias: bool = True

    @property
    def _windows(self) -> Windows:
        return Windows(self.kernel, self.stride, self.padding)

    def parameter_shapes(self) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {"weight": (self.filters, self.channels, self.kernel, self.kernel)}
        if self.bias:
            shapes["bias"] = (self.filters,)
        return shapes

    def initialise(self, rng: np.random.Generator, scheme: str) -> dict[str, NDArray[np.float64]]:
        fan = (self.channels if scheme == "torch" else self.filters) * self.kernel**2
        return _uniform(rng, fan, self.parameter_shapes())

    def output_shape(self, shape: Shape) -> Shape:
        size = self._windows.check(self, shape)
        if shape[0] != self.channels:
            raise UserError(f"{self} takes {self.channels} channels")
        return (self.filters, *size)

    def _cells(self, shape: Shape) -> Index:
        """Flat feature of every cell of every window, channels one after the other (windows × cells of all channels)."""
        places, size = self._windows.places(shape[1], shape[2]), shape[1] * shape[2]
        return np.concatenate([np.where(places < 0, -1, places + c * size) for c in range(self.channels)], axis=1)

    def forward(self, g: GraphBuilder, parameters: dict[str, int], a: int, shape: Shape) -> tuple[int, Tape]:
        cells = self._cells(shape)
        windows = g.gather(a, cells, -1)
        weight = g.reshape(parameters["weight"], (self.filters, cells.shape[1]))
        out = g.contract("bpk,ok->bop", windows, weight)
        if self.bias:
            out = g.add(out, g.reshape(parameters["bias"], (self.filters, 1)))
        return g.reshape(out, (g.shape(a)[0], self.filters * len(cells))), (windows, weight)

    def backward(
        self, g: GraphBuilder, parameters: dict[str, int], tape: Tape, upstream: int, shape: Shape
    ) -> tuple[int, dict[str, int]]:
        windows, weight = tape
        cells, rows = self._cells(shape), g.shape(upstream)[0]
        change = g.reshape(upstream, (rows, self.filters, len(cells)))
        own = g.contract("bop,bpk->ok", change, windows)
        gradients = {"weight": g.reshape(own, self.parameter_shapes()["weight"])}
        if self.bias:
            gradients["bias"] = g.sum(change, (-3, -1))
        spread = g.reshape(g.contract("bop,ok->bpk", change, weight), (rows, cells.size))
        return g.sum(g.gather(spread, _inverse(cells, int(np.prod(shape))), -1), (-1,)), gradients


@dataclass(frozen=True)
class AvgPool2d(Layer):
    """Mean over windows of `kernel` × `kernel` cells, `stride` apart (default: side by side)."""

    kernel: int
    stride: int | None = None

    @property
    def _windows(self) -> Windows:
        return Windows(self.kernel, self.kernel if self.stride is None else self.stride, 0)

    def output_shape(self, shape: Shape) -> Shape:
        return (shape[0], *self._windows.check(self, shape))

    def _cells(self, shape: Shape) -> Index:
        """Flat feature of every cell of every window of every channel (channels · windows × cells)."""
        places, size = self._windows.places(shape[1], shape[2]), shape[1] * shape[2]
        return np.concatenate([places + c * size for c in range(shape[0])])

    def forward(self, g: GraphBuilder, parameters: dict[str, int], a: int, shape: Shape) -> tuple[int, Tape]:
        return g.scale(g.sum(g.gather(a, self._cells(shape), -1), (-1,)), Fraction(1, self.kernel**2)), ()

    def backward(
        self, g: GraphBuilder, parameters: dict[str, int], tape: Tape, upstream: int, shape: Shape
    ) -> tuple[int, dict[str, int]]:
        # The windows that each cell lies in: the place of a cell in the flat list, divided by the cells of a window.
        where = _inverse(self._cells(shape), int(np.prod(shape)))
        windows = np.where(where < 0, -1, where // self.kernel**2)
        return g.scale(g.sum(g.gather(upstream, windows, -1), (-1,)), Fraction(1, self.kernel**2)), {}
