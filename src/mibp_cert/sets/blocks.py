"""Sets of symbols, known by their support functions.

`Segments` are independent pieces of one kind, side by side; the range of `g·ε` over one piece is

| kind     | piece                                          | range of `g·ε`                               |
|----------|------------------------------------------------|----------------------------------------------|
| `box`    | one symbol, `a ≤ ε ≤ b` with `a ≤ 0 ≤ b`       | `[min(ag, bg), max(ag, bg)]`                 |
| `l1`,`l2`| `‖ε‖_p ≤ 1`                                    | `±` the dual norm of `g`                     |
| `sparse` | `a ≤ ε ≤ b`, at most `most` of them not 0      | sums of the `most` largest single ranges     |
| `choice` | `ε ≥ 0, Σε = 1`                                | `[min g, max g]`                             |
| `corner` | `ε ≥ 0, Σε ≤ 1` (0 is the clean choice)        | `[min(0, min g), max(0, max g)]`             |

A `Plain` block adds the pieces up. A `Budgeted` block allows at most `most` of its rows to differ from `ε = 0`: the upper end is
the sum of the `most` largest upper ends of its rows, the lower end likewise, each with rows of its own.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]
KINDS = ("box", "l1", "l2", "sparse", "choice", "corner")


@dataclass(frozen=True, eq=False)
class Segments:
    """See the module's text; `sizes` counts each piece's symbols, `rows` names the dataset row that it belongs to."""

    kind: str
    sizes: Index
    rows: Index
    low: Array
    high: Array
    most: int = 0

    @property
    def count(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def starts(self) -> Index:
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.intp)

    @cached_property
    def padded(self) -> tuple[Index, NDArray[np.bool_]]:
        """Symbol numbers by piece (pieces × largest size), and which of them exist."""
        width = np.arange(int(self.sizes.max(initial=1)))
        exists = width[None, :] < self.sizes[:, None]
        return np.where(exists, self.starts[:, None] + width[None, :], 0), exists

    def _reduce(self, ufunc: np.ufunc, values: Array) -> Array:
        if len(self.sizes) and (self.sizes == self.sizes[0]).all():
            grouped = values.reshape(*values.shape[:-1], len(self.sizes), int(self.sizes[0]))
            return np.asarray(ufunc.reduce(grouped, axis=-1))
        return np.asarray(ufunc.reduceat(values, self.starts, axis=-1))

    def ends(self, g: Array) -> tuple[Array, Array]:
        """Ends of `g·ε` for every piece (… × pieces)."""
        if len(self.sizes) == 0:
            return (np.zeros((*g.shape[:-1], 0)),) * 2
        match self.kind:
            case "box":
                return self._single(g)
            case "l1":
                top = self._reduce(np.maximum, np.abs(g))
                return -top, top
            case "l2":
                size = np.abs(g)
                top = self._reduce(np.maximum, size)
                safe = np.where(top > 0, top, 1.0)
                unit = size / np.repeat(safe, self.sizes, axis=-1)  # so that no square underflows
                norm = top * np.sqrt(self._reduce(np.add, unit * unit))
                return -norm, norm
            case "sparse":
                low, high = self._single(g)
                index, exists = self.padded
                return -self._largest(-low, index, exists), self._largest(high, index, exists)
            case "choice":
                return self._reduce(np.minimum, g), self._reduce(np.maximum, g)
            case _:
                low, high = self._reduce(np.minimum, g), self._reduce(np.maximum, g)
                return np.minimum(low, 0.0), np.maximum(high, 0.0)

    def _single(self, g: Array) -> tuple[Array, Array]:
        one, two = g * self.low, g * self.high
        return np.minimum(one, two), np.maximum(one, two)

    def _largest(self, gain: Array, index: Index, exists: NDArray[np.bool_]) -> Array:
        by_piece = np.where(exists, gain[..., index], 0.0)
        return largest_sum(by_piece, self.most)

    def magnitude(self) -> Array:
        """Largest `|ε_j|`."""
        return np.maximum(-self.low, self.high) if self.kind in ("box", "sparse") else np.ones(self.count)

    def minimiser(self, g: Array) -> Array:
        """A point at which `g·ε` is smallest, for one `g`; 0 where nothing is gained (if 0 is allowed)."""
        if self.kind == "box":
            return np.where(g > 0, self.low, np.where(g < 0, self.high, 0.0))
        e = np.zeros(self.count)
        index, exists = self.padded
        by_piece = np.where(exists, g[index], 0.0)
        pieces = np.arange(len(self.sizes))
        if self.kind == "sparse":
            e = np.where(g > 0, self.low, np.where(g < 0, self.high, 0.0))
            gain = np.where(exists, -(g * e)[index], -np.inf)
            order = np.argsort(-gain, axis=1, kind="stable")[:, self.most :]
            drop = np.take_along_axis(index, order, axis=1)[np.take_along_axis(exists, order, axis=1)]
            e[drop] = 0.0
        elif self.kind == "l1":
            best = np.abs(by_piece).argmax(axis=1)
            e[index[pieces, best]] = -np.sign(by_piece[pieces, best])
        elif self.kind == "l2":
            top = np.abs(by_piece).max(axis=1, keepdims=True, initial=0.0)
            unit = by_piece / np.where(top > 0, top, 1.0)
            norm = np.sqrt((unit * unit).sum(axis=1, keepdims=True))
            e[index[exists]] = (-unit / np.where(norm > 0, norm, 1.0))[exists]
        else:
            value = np.where(exists, g[index], np.inf)
            best = value.argmin(axis=1)
            take = np.ones(len(pieces), dtype=bool) if self.kind == "choice" else value.min(axis=1, initial=np.inf) < 0
            e[index[pieces, best][take]] = 1.0
        return e

    def sample(self, rng: np.random.Generator, extreme: bool) -> Array:
        """A point of the set: a vertex-like one, or one anywhere."""
        if self.kind in ("choice", "corner") or extreme:
            # A random direction's minimiser; ties and zeros do not occur with probability one.
            return self.minimiser(rng.normal(size=self.count))
        if self.kind == "box":
            return self.low + rng.random(self.count) * (self.high - self.low)
        share = np.repeat(rng.random(len(self.sizes)), self.sizes)
        if self.kind != "l1":
            return self.minimiser(rng.normal(size=self.count)) * share
        # Corners alone would never change two cells of a row: mix corners with weights that sum to one.
        weights = rng.dirichlet(np.ones(4))
        mixed: Array = np.sum([w * self.minimiser(rng.normal(size=self.count)) for w in weights], axis=0)
        return share * mixed


class Block(ABC):
    """A set of symbols, known by its support function; `symbols` holds their (consecutive) numbers."""

    symbols: Index

    def shifted(self, by: int) -> Block:
        """The same block with its symbols numbered from `by` on."""
        moved = copy.copy(self)
        object.__setattr__(moved, "symbols", self.symbols + by)
        return moved

    @abstractmethod
    def support(self, g: Array) -> tuple[Array, Array]:
        """Lower and upper end of `g·ε` over the block, for coefficients `g` (… × symbols of the block)."""

    @abstractmethod
    def magnitude(self) -> Array:
        """Largest `|ε_j|` in the block, for each of its symbols."""

    @abstractmethod
    def minimiser(self, g: Array) -> Array:
        """A member of the block at which `g·ε` is smallest, for one coefficient vector `g`."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, extreme: bool) -> Array:
        """A member of the block."""

    def freely(self, g: Array) -> list[tuple[Index, Array]]:
        """Symbols and where they minimise `g·ε`, group by group, with budgets across groups left aside."""
        return [(self.symbols, self.minimiser(g))]


@dataclass(frozen=True, eq=False)
class Plain(Block):
    """Independent pieces: the ends of the pieces add up."""

    symbols: Index
    pieces: Segments

    def support(self, g: Array) -> tuple[Array, Array]:
        low, high = self.pieces.ends(g)
        return low.sum(axis=-1), high.sum(axis=-1)

    def magnitude(self) -> Array:
        return self.pieces.magnitude()

    def minimiser(self, g: Array) -> Array:
        return self.pieces.minimiser(g)

    def sample(self, rng: np.random.Generator, extreme: bool) -> Array:
        return self.pieces.sample(rng, extreme)

    @property
    def unit_box(self) -> bool:
        """Is this `|ε_j| ≤ 1` for every symbol?"""
        p = self.pieces
        return p.kind == "box" and bool((p.low == -1.0).all() and (p.high == 1.0).all())


def unit_box(count: int, start: int = 0) -> Plain:
    """`|ε_j| ≤ 1` for `count` symbols."""
    ones = np.ones(count)
    pieces = Segments("box", np.ones(count, dtype=np.intp), np.zeros(count, dtype=np.intp), -ones, ones)
    return Plain(np.arange(start, start + count), pieces)


@dataclass(frozen=True, eq=False)
class Budgeted(Block):
    """At most `most` rows differ from `ε = 0`; every piece contains 0. The block's columns are those of its children in turn."""

    symbols: Index
    children: tuple[Segments, ...]
    most: int

    @cached_property
    def members(self) -> Index:
        """The dataset rows that may differ."""
        return np.unique(np.concatenate([child.rows for child in self.children])).astype(np.intp)

    def member_ends(self, g: Array) -> tuple[Array, Array]:
        """Ends of `g·ε` row by row (… × members)."""
        low = np.zeros((*g.shape[:-1], len(self.members)))
        high = np.zeros_like(low)
        for child, span, (order, starts, place) in zip(self.children, self._spans(), self._by_member, strict=True):
            bottom, top = child.ends(g[..., span])
            for total, part in ((low, bottom), (high, top)):
                total[..., place] += np.add.reduceat(part if order is None else part[..., order], starts, axis=-1)
        return low, high

    @cached_property
    def _by_member(self) -> list[tuple[Index | None, Index, Index]]:
        out: list[tuple[Index | None, Index, Index]] = []
        for child in self.children:
            ordered = bool((np.diff(child.rows) >= 0).all())
            order = None if ordered else np.argsort(child.rows, kind="stable").astype(np.intp)
            rows, starts = np.unique(child.rows if order is None else child.rows[order], return_index=True)
            out.append((order, starts.astype(np.intp), np.searchsorted(self.members, rows).astype(np.intp)))
        return out

    def _spans(self) -> list[slice]:
        ends = np.cumsum([0, *(child.count for child in self.children)]).tolist()
        return [slice(a, b) for a, b in pairwise(ends)]

    def support(self, g: Array) -> tuple[Array, Array]:
        low, high = self.member_ends(g)
        return -largest_sum(-low, self.most), largest_sum(high, self.most)

    def magnitude(self) -> Array:
        return np.concatenate([child.magnitude() for child in self.children])

    def minimiser(self, g: Array) -> Array:
        low, _ = self.member_ends(g)
        chosen = self.members[np.argsort(low, kind="stable")[: self.most]]
        return self._only(
            chosen, [child.minimiser(g[span]) for child, span in zip(self.children, self._spans(), strict=True)]
        )

    def freely(self, g: Array) -> list[tuple[Index, Array]]:
        return [
            (self.symbols[span], child.minimiser(g[span]))
            for child, span in zip(self.children, self._spans(), strict=True)
        ]

    def sample(self, rng: np.random.Generator, extreme: bool) -> Array:
        count = self.most if extreme else int(rng.integers(0, self.most + 1))
        chosen = rng.choice(self.members, size=min(count, len(self.members)), replace=False)
        return self._only(chosen, [child.sample(rng, extreme) for child in self.children])

    def _only(self, chosen: Index, points: Sequence[Array]) -> Array:
        """The points with all rows but the chosen ones set to 0."""
        kept: list[Any] = []
        for child, point in zip(self.children, points, strict=True):
            kept.append(np.where(np.repeat(np.isin(child.rows, chosen), child.sizes), point, 0.0))
        return np.concatenate(kept)


def largest_sum(values: Array, most: int) -> Array:
    """Sum of the `most` largest entries of the last axis (all of them non-negative)."""
    size = values.shape[-1]
    if most >= size:
        return np.asarray(values.sum(axis=-1))
    if most <= 0:
        return np.zeros(values.shape[:-1])
    if most == 1:
        return np.asarray(values.max(axis=-1))
    return np.asarray(np.partition(values, size - most, axis=-1)[..., size - most :].sum(axis=-1))
