"""How a network is made and trained on tables of one's own where nobody said otherwise, here and by estimators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mibp_cert.data import Dataset, Split
from mibp_cert.errors import UserError
from mibp_cert.nets import Activation, Conv2d, Flatten, LeakyReLU, Network, ReLU, Sigmoid, Softplus, Tanh, Training
from mibp_cert.nets.plan import effective_batch_size

WHOLE_BATCH = 2000
"""Rows up to which tables of one's own are trained on in one batch."""

OWN_CLASSES = Training(epochs=20, learning_rate=0.2, loss="cross-entropy")

OWN_NUMBERS = Training(epochs=50, learning_rate=0.1, loss="squared-error")
"""How a network is trained on tables of one's own, without a hidden layer; the estimators have the same defaults."""

IMAGES = "digits"
"""The data set whose rows are images."""

ACTIVATIONS: dict[str, Activation] = {
    "relu": ReLU(),
    "leaky-relu": LeakyReLU(),
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
    "softplus": Softplus(),
}


def usual_logits(train: Dataset, loss: str) -> int:
    """One for each class; two classes and cross-entropy have one for both."""
    return 1 if len(train.classes) == 2 and loss == "cross-entropy" else train.one_hot.shape[1]


def usual_batch(rows: int) -> int:
    """All rows, as long as they are few enough for bounds that remember each of them; else about a hundred, none left alone."""
    if rows <= WHOLE_BATCH:
        return rows
    first = effective_batch_size(rows, None)
    return next(size for size in range(first, 2 * first) if rows % size != 1)


def lonely_row(rows: int, batch_size: int) -> str | None:
    """What to say of a last batch of one row, whose gradient weighs as much as that of a whole batch; None: there is none."""
    if batch_size == 1 or rows % batch_size != 1:
        return None
    return (
        f"The last batch of every epoch holds a single row, which moves the model as much as {batch_size} others together: "
        f"choose a batch size that does not leave one of the {rows} rows over."
    )


def network_of(
    data: Split, hidden: str | Sequence[int], activation: str, conv: str | Sequence[int] | None, logits: int
) -> Network:
    """A fully connected network, after one convolution where the data are images."""
    if activation not in ACTIVATIONS:
        raise UserError(f"There is no activation called {activation!r}; choose one of {', '.join(ACTIVATIONS)}.")
    between, sizes = ACTIVATIONS[activation], _sizes(hidden)
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
        if any(isinstance(size, bool) or not isinstance(size, int) for size in text):
            raise UserError(f"Sizes of layers are whole numbers, such as [20] or [5, 5]; got {list(text)}.")
        return list(text)
    try:
        return [int(part) for part in text.split(",") if part.strip()] if text.strip() != "none" else []
    except ValueError:
        raise UserError(f"--hidden takes sizes separated by commas, such as 20 or 5,5; got {text!r}.") from None
