"""The list of row indices of every mini-batch: fixed, seeded, and known before training starts."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from mibp_cert.errors import UserError

BATCH_MODES = ("shuffle", "subsample")


def steps_per_epoch(n: int, batch_size: int) -> int:
    """An epoch is `ceil(n / batch_size)` steps, also when each step draws its own sub-sample."""
    return ceil(n / batch_size)


def effective_batch_size(n: int, batch_size: int | None) -> int:
    """The batch size asked for, or the default: 100, or all rows if there are fewer."""
    return min(100, n) if batch_size is None else batch_size


def batch_plan(n: int, batch_size: int, epochs: int, seed: int, mode: str = "shuffle") -> list[NDArray[np.intp]]:
    """Rows of every step, `epochs · ceil(n / batch_size)` arrays.

    `"shuffle"`: each epoch is a fresh permutation cut into batches (the full batch keeps the natural order).
    `"subsample"`: each step draws `batch_size` rows without replacement, as the paper does.
    """
    if mode not in BATCH_MODES:
        raise UserError(f"There is no batch mode called {mode!r}; choose one of {', '.join(BATCH_MODES)}.")
    if batch_size != int(batch_size) or not 1 <= batch_size <= n:
        raise UserError(f"The batch size must be between 1 and the {n} training rows, got {batch_size}.")
    if epochs != int(epochs) or epochs < 1:
        raise UserError(f"The number of epochs must be a whole number ≥ 1, got {epochs}.")
    if seed != int(seed) or seed < 0:
        raise UserError(f"The seed must be a whole number ≥ 0, got {seed}.")
    rng = np.random.default_rng([int(seed), 1])
    plan: list[NDArray[np.intp]] = []
    for _ in range(int(epochs)):
        order = np.arange(n) if batch_size == n else rng.permutation(n)
        for start in range(0, n, batch_size):
            if mode == "subsample" and batch_size < n:
                plan.append(np.sort(rng.choice(n, batch_size, replace=False)).astype(np.intp))
            else:
                plan.append(np.sort(order[start : start + batch_size]).astype(np.intp))
    return plan
