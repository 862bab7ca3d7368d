"""Arrays whose memory is used again: on large arrays, fresh memory costs more than the arithmetic.

A pool hands out views of flat buffers. A buffer is free once no array refers to it any more, which its reference count tells:
every view of it, and every view of a view, holds one reference to it (`ndarray.base`).
"""

from __future__ import annotations

import sys

import numpy as np

from mibp_cert.engines.rounding import Array

SMALL = 1 << 15
"""Arrays of fewer elements are left to NumPy."""
CHUNK = 1 << 16
"""Elements that stay in cache while a sum of absolute values is taken."""


def _references(pool: list[Array]) -> int:
    """What `getrefcount` says, in a loop over a list, of an array that nobody else refers to."""
    for buffer in pool:
        return sys.getrefcount(buffer)
    return 0


_IDLE = _references([np.empty(1)])
"""References to a free buffer, as this Python counts them."""


class Buffers:
    """A pool of buffers; see the module's text."""

    def __init__(self) -> None:
        self._pool: list[Array] = []
        self._scratch = np.empty(CHUNK)

    def empty(self, shape: tuple[int, ...]) -> Array:
        """An array with undefined entries."""
        size = int(np.prod(shape))
        if size < SMALL:
            return np.empty(shape)
        for buffer in self._pool:
            if size <= buffer.size <= 2 * size and sys.getrefcount(buffer) == _IDLE:
                return buffer[:size].reshape(shape)
        # Some headroom, since the number of symbols grows from step to step.
        self._pool = [b for b in self._pool if sys.getrefcount(b) > _IDLE or b.size > size]
        buffer = np.empty(size + size // 8)
        self._pool.append(buffer)
        return buffer[:size].reshape(shape)

    def absolute_sum(self, linear: Array, weights: Array | None = None) -> Array:
        """`Σ|linear|` over the last axis (weighted), a few rows at a time."""
        columns = linear.shape[-1]
        if columns == 0:
            return np.zeros(linear.shape[:-1])
        flat = linear.reshape(-1, columns)
        rows = max(1, CHUNK // columns)
        if self._scratch.size < rows * columns:
            self._scratch = np.empty(rows * columns)
        out = np.empty(len(flat))
        for start in range(0, len(flat), rows):
            part = flat[start : start + rows]
            scratch = np.abs(part, out=self._scratch[: part.size].reshape(part.shape))
            if weights is None:
                scratch.sum(axis=-1, out=out[start : start + rows])
            else:
                np.matmul(scratch, weights, out=out[start : start + rows])
        return out.reshape(linear.shape[:-1])
