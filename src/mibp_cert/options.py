"""From the words of the command line to networks and threats."""

from __future__ import annotations

import numpy as np

from mibp_cert.data import Split
from mibp_cert.errors import UserError
from mibp_cert.nets import Activation, Conv2d, Flatten, LeakyReLU, Network, ReLU, Sigmoid, Tanh
from mibp_cert.threats import Budget, LabelFlips, LInf, TargetNoise
from mibp_cert.threats.compose import Catalogued

ACTIVATIONS: dict[str, Activation] = {
    "relu": ReLU(),
    "leaky-relu": LeakyReLU(),
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
}


def threat_of(eps: float, rows: int | None, flips: int, target_eps: float) -> Catalogued:
    """Noise of every cell (or of a few rows), wrong labels, and noise of the targets, all at once."""
    threat: Catalogued = LInf(eps) if rows is None else Budget(LInf(eps), rows=rows)
    threat = threat & LabelFlips(flips) if flips else threat
    return threat & TargetNoise(target_eps) if target_eps else threat


def network_of(data: Split, hidden: str | None, activation: str, conv: str | None, logits: int | None) -> Network:
    """A fully connected network, after one convolution where the data are images."""
    if activation not in ACTIVATIONS:
        raise UserError(f"There is no activation called {activation!r}; choose one of {', '.join(ACTIVATIONS)}.")
    between = ACTIVATIONS[activation]
    last = logits or data.train.one_hot.shape[1]
    image = data.name == "digits"
    sizes = _sizes(hidden if hidden is not None else ("" if image else "20"))
    if conv is not None and not image:
        raise UserError("--conv is for image data; choose the data set digits.")
    if not image:
        return Network.mlp([data.train.features, *sizes, last], activation=between)
    numbers = _sizes(conv or "8,4,4")
    if len(numbers) != 3:
        raise UserError(f"--conv takes filters,kernel,stride such as 8,4,4; got {conv!r}.")
    first = Conv2d(1, filters=numbers[0], kernel=numbers[1], stride=numbers[2])
    shape = (1, 8, 8)
    try:
        features = int(np.prod(first.output_shape(shape)))
    except UserError as error:
        raise UserError(f"{error}, but the input has 1 channel of 8 × 8.") from None
    rest = Network.mlp([features, *sizes, last], activation=between)
    return Network((first, between, Flatten(), *rest.layers), shape)


def _sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()] if text.strip() != "none" else []
    except ValueError:
        raise UserError(f"--hidden takes sizes separated by commas, such as 20 or 5,5; got {text!r}.") from None
