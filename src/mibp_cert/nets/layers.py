"""Layers: forward and backward pass, written once in graph operations; no layer knows an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mibp_cert.errors import UserError
from mibp_cert.graph import GraphBuilder
from mibp_cert.graph.ops import Shape

INITIALISATIONS = ("torch", "fullcert")


class Layer(ABC):
    """A layer maps a batch `a` (rows × features) to `o`, and the upstream gradient `∂J/∂o` to `∂J/∂a` and its own.

    `forward` returns the output node and whatever nodes `backward` needs again (the tape).
    """

    @abstractmethod
    def parameter_shapes(self) -> dict[str, Shape]:
        """Local parameter names and shapes, in the order in which they are stored."""

    @abstractmethod
    def initialise(self, rng: np.random.Generator, scheme: str) -> dict[str, NDArray[np.float64]]:
        """Draw initial values."""

    @abstractmethod
    def output_features(self, features: int) -> int:
        """Number of output features for `features` input features; raises `UserError` if they do not fit."""

    @abstractmethod
    def forward(self, g: GraphBuilder, parameters: dict[str, int], a: int) -> tuple[int, tuple[int, ...]]:
        """Write the forward pass."""

    @abstractmethod
    def backward(
        self, g: GraphBuilder, parameters: dict[str, int], tape: tuple[int, ...], upstream: int
    ) -> tuple[int, dict[str, int]]:
        """Write the backward pass: the gradient with respect to the input, and those of the parameters."""


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
        """`"torch"`: uniform in ±1/√in, PyTorch's default; `"fullcert"`: uniform in ±1/√out."""
        bound = 1.0 / np.sqrt(self.inputs if scheme == "torch" else self.outputs)
        return {name: rng.uniform(-bound, bound, shape) for name, shape in self.parameter_shapes().items()}

    def output_features(self, features: int) -> int:
        if features != self.inputs:
            raise UserError(f"{self} receives {features} features; make its input size equal to the previous output.")
        return self.outputs

    def forward(self, g: GraphBuilder, parameters: dict[str, int], a: int) -> tuple[int, tuple[int, ...]]:
        out = g.contract("bi,oi->bo", a, parameters["weight"])
        if self.bias:
            out = g.add(out, parameters["bias"])
        return out, (a,)

    def backward(
        self, g: GraphBuilder, parameters: dict[str, int], tape: tuple[int, ...], upstream: int
    ) -> tuple[int, dict[str, int]]:
        (a,) = tape
        gradients = {"weight": g.contract("bo,bi->oi", upstream, a)}
        if self.bias:
            gradients["bias"] = g.sum(upstream, (-2,))
        return g.contract("bo,oi->bi", upstream, parameters["weight"]), gradients


@dataclass(frozen=True)
class ReLU(Layer):
    """`o = max(0, a)`, with derivative `1[a > 0]` (zero at the kink)."""

    def parameter_shapes(self) -> dict[str, Shape]:
        return {}

    def initialise(self, rng: np.random.Generator, scheme: str) -> dict[str, NDArray[np.float64]]:
        return {}

    def output_features(self, features: int) -> int:
        return features

    def forward(self, g: GraphBuilder, parameters: dict[str, int], a: int) -> tuple[int, tuple[int, ...]]:
        return g.relu(a), (a,)

    def backward(
        self, g: GraphBuilder, parameters: dict[str, int], tape: tuple[int, ...], upstream: int
    ) -> tuple[int, dict[str, int]]:
        (a,) = tape
        return g.contract("bi,bi->bi", g.step(a, closed=False), upstream), {}
