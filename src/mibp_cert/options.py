"""From the words of the command line to networks and threats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.data import Split
from mibp_cert.errors import UserError
from mibp_cert.nets import Activation, Conv2d, Flatten, LeakyReLU, Network, ReLU, Sigmoid, Softplus, Tanh
from mibp_cert.threats import AnyCategory, Budget, Catalogued, LabelFlips, LInf, Nothing, TargetNoise

IMAGES = "digits"
"""The data set whose rows are images."""
ACTIVATIONS: dict[str, Activation] = {
    "relu": ReLU(),
    "leaky-relu": LeakyReLU(),
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
    "softplus": Softplus(),
}


def activation_named(name: str) -> Activation:
    """What stands between the layers."""
    if name not in ACTIVATIONS:
        raise UserError(f"There is no activation called {name!r}; choose one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def threat_of(
    eps: str | float | Mapping[str, Any] | None = None,
    rows: int | None = None,
    flips: int = 0,
    target_eps: float = 0.0,
    any_category: Sequence[str] = (),
) -> Catalogued:
    """Noise of cells and wrong categories (in all rows or in a few), wrong labels, and noise of the targets, all at once.

    `eps`: one number for every numeric column, or one for each, in its units or in per cent of the value.

    >>> threat_of("age=1,income=5%").to_json()["threats"][1]
    {'kind': 'linf', 'eps': {'income': 0.05}, 'relative': True}
    """
    parts: list[Catalogued] = [] if eps is None else _noise(eps)
    parts += [AnyCategory(list(any_category))] if any_category else []
    if rows is not None:
        if not parts:
            raise UserError("--rows limits how many rows are off: say by how much with --eps, or name --any-category.")
        parts = [Budget(together(parts), rows=rows)]
    parts += [LabelFlips(flips)] if flips else []
    parts += [TargetNoise(target_eps)] if target_eps else []
    return together(parts) if parts else Nothing()


def together(parts: Sequence[Catalogued]) -> Catalogued:
    """All of this at once."""
    return reduce(and_, parts)


def _noise(eps: str | float | Mapping[str, Any]) -> list[Catalogued]:
    """`0.1`, `5%`, or `age=1,income=5%`."""
    if not isinstance(eps, str):
        return [LInf(dict(eps) if isinstance(eps, Mapping) else eps)]
    if "=" not in eps:
        amount, share = _amount(eps)
        return [LInf(amount, relative=share)]
    amounts: dict[bool, dict[str, float]] = {False: {}, True: {}}
    for part in eps.split(","):
        name, sign, value = part.rpartition("=")
        if not sign or not name.strip():
            raise UserError(f"--eps takes a number, or columns with numbers such as age=1,income=5%; got {eps!r}.")
        amount, share = _amount(value)
        amounts[share][name.strip()] = amount
    return [LInf(found, relative=share) for share, found in amounts.items() if found]


def _amount(text: str) -> tuple[float, bool]:
    share = text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        raise UserError(f"--eps takes numbers such as 0.1 or 5%, got {text!r}.") from None
    return (value / 100.0, True) if share else (value, False)


def network_of(
    data: Split, hidden: str | Sequence[int], activation: str, conv: str | Sequence[int] | None, logits: int
) -> Network:
    """A fully connected network, after one convolution where the data are images."""
    between = activation_named(activation)
    sizes = _sizes(hidden)
    if conv is not None and data.name != IMAGES:
        raise UserError(f"--conv is for image data; choose the data set {IMAGES}.")
    if conv is None:
        return Network.mlp([data.train.features, *sizes, logits], activation=between)
    numbers = _sizes(conv)
    if len(numbers) != 3:
        raise UserError(f"--conv takes filters,kernel,stride such as 8,4,4; got {conv!r}.")
    first = Conv2d(1, filters=numbers[0], kernel=numbers[1], stride=numbers[2])
    shape = (1, 8, 8)
    try:
        features = int(np.prod(first.output_shape(shape)))
    except UserError as error:
        raise UserError(f"{error}, but the input has 1 channel of 8 × 8.") from None
    rest = Network.mlp([features, *sizes, logits], activation=between)
    return Network((first, between, Flatten(), *rest.layers), shape)


def _sizes(text: str | Sequence[int]) -> list[int]:
    if not isinstance(text, str):
        return [int(size) for size in text]
    try:
        return [int(part) for part in text.split(",") if part.strip()] if text.strip() != "none" else []
    except ValueError:
        raise UserError(f"--hidden takes sizes separated by commas, such as 20 or 5,5; got {text!r}.") from None


@dataclass(frozen=True, eq=False)
class Start:
    """A network and the parameters that its training starts from, such as those of a user's PyTorch module."""

    network: Network
    theta: NDArray[np.float64]
