"""How far a piece of noise reaches beyond a point, where the direction is known only roughly.

For symbols `ε` of one piece (`sets.blocks`) and coefficients `γ` with `|γ − g| ≤ radius`,

    γ·ε = γ·ε̂ + γ·(ε − ε̂) ≤ γ·ε̂ + max_ε { g·(ε − ε̂) + radius·|ε − ε̂| }        for *any* ε̂.                                 (1)

With `ε̂ = 0` that is the support function of `g` plus the whole radius. If the first term can be kept as it is, an `ε̂` near the
maximiser of `g·ε` is better: where the maximiser is the same for all `γ`, nothing of the radius is paid. Between the two best
points `p`, `q` the best `ε̂` is on their segment, as the best slope of a line above `|t|` is that of its chord.

The maximum in (1), of a convex function, is at a vertex: of `choice`, `corner`, `l1` there are few; of `box` and `sparse` it
falls apart into symbols. In the ball `l2`, let `ε̂ = βe` with `|e| = 1`, and `g = se + g'` with `g' ⊥ e`: the `ε̂` of an earlier
direction is no multiple of this one. With `c = ε·e ∈ [−1, 1]` and `|ε − ε̂| ≤ √(1 − 2βc + β²)`, the maximum is at most that of

    s(c − β) + (|radius| + |g'|)·√(1 − 2βc + β²),

which is concave in `c`: stationary where the root is `β(|radius| + |g'|)/s` if `s > 0`, and largest at `c = −1` if not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mibp_cert.sets.blocks import Array, Segments, largest_sum

LEAST = 0.05
"""Smallest `β` of a ball."""


def lean(segments: Segments, g: Array, radius: Array) -> tuple[Array, Array]:
    """`ε̂` (… × symbols) and the maximum of (1) for every piece (… × pieces), as good as they are together."""
    none = np.zeros(g.shape)
    if not len(segments.sizes):
        return none, np.zeros((*g.shape[:-1], 0))
    still = beyond(segments, g, radius, none)
    at = toward(segments, g, radius)
    left = beyond(segments, g, radius, at)
    better = np.add.reduceat(g * at, segments.starts, axis=-1) + left < still
    return np.where(np.repeat(better, segments.sizes, axis=-1), at, 0.0), np.where(better, left, still)


def toward(segments: Segments, g: Array, radius: Array) -> Array:
    """A point near the maximiser of `g·ε` of each piece."""
    wide = np.maximum(radius, 1e-300)
    match segments.kind:
        case "box":
            return _chord(segments, g, wide)
        case "sparse":
            index, exists = segments.padded
            at = _chord(segments, g, wide)
            gain = np.where(exists, (g * at)[..., index], -np.inf)
            rank = np.argsort(np.argsort(-gain, axis=-1, kind="stable"), axis=-1, kind="stable")
            keep = np.zeros(g.shape, dtype=bool)
            keep[..., index[exists]] = (rank < segments.most)[..., exists]
            return np.where(keep, at, 0.0)
        case "l2":
            size, far = _norm(segments, g), _norm(segments, radius)
            share = np.minimum(1.0, size / np.maximum(far, 1e-300))
            # Of a small β little is gained, and the cosine below would be all rounding.
            share = np.where(share < LEAST, 0.0, share) / np.maximum(size, 1e-300)
            return np.asarray(g * np.repeat(share, segments.sizes, axis=-1))
        case "l1":
            best = _first(segments, np.abs(g))
            return np.where(best, np.clip(g / wide, -1.0, 1.0), 0.0)
        case _:
            return _between(segments, g, radius)


def _chord(segments: Segments, g: Array, radius: Array) -> Array:
    """Of single symbols in `[low, high]`."""
    middle, half = 0.5 * (segments.low + segments.high), 0.5 * (segments.high - segments.low)
    return np.asarray(middle + half * np.clip(g / radius, -1.0, 1.0))


def _between(segments: Segments, g: Array, radius: Array) -> Array:
    """Of one-hot groups: between the two best options, with `(g_p − g_q) ± (radius_p + radius_q)` the difference of the two."""
    first = _first(segments, g)
    second = _first(segments, np.where(first, -np.inf, g)) & ~first
    top, other = (np.add.reduceat(np.where(some, g, 0.0), segments.starts, axis=-1) for some in (first, second))
    wide = np.add.reduceat(np.where(first | second, radius, 0.0), segments.starts, axis=-1)
    if segments.kind == "corner":
        alone = np.add.reduceat(np.where(first, radius, 0.0), segments.starts, axis=-1)
        zero = (top < 0) | (other < 0) | (segments.sizes < 2)  # the clean choice is one of the two
        other, wide = np.where(zero, 0.0, other), np.where(zero, alone, wide)
        second = second & ~np.repeat(zero, segments.sizes, axis=-1)
    share = np.clip(0.5 * (top - other) / np.maximum(wide, 1e-300) + 0.5, 0.0, 1.0)
    share = np.where((segments.sizes < 2) & (segments.kind == "choice"), 1.0, share)
    share = np.repeat(share, segments.sizes, axis=-1)
    return np.asarray(np.where(first, share, 0.0) + np.where(second, 1.0 - share, 0.0))


def _first(segments: Segments, g: Array) -> NDArray[np.bool_]:
    """The largest entry of each piece, once."""
    index, exists = segments.padded
    best = np.where(exists, g[..., index], -np.inf).argmax(axis=-1)
    found = np.zeros(g.shape, dtype=bool)
    np.put_along_axis(found, segments.starts + best, True, axis=-1)
    return found


def _norm(segments: Segments, g: Array) -> Array:
    return segments.ends(g)[1]


def beyond(segments: Segments, g: Array, radius: Array, at: Array) -> Array:
    """The maximum in (1), for every piece; rounded, but not outward."""
    starts = segments.starts
    paid = np.add.reduceat(g * at, starts, axis=-1)
    if segments.kind in ("box", "sparse"):
        ends = [g * (end - at) + radius * np.abs(end - at) for end in (segments.low, segments.high)]
        most, still = np.maximum(*ends), radius * np.abs(at) - g * at
        if segments.kind == "box":
            return np.asarray(np.add.reduceat(most, starts, axis=-1))
        index, exists = segments.padded
        gain = np.where(exists, np.maximum(most - still, 0.0)[..., index], 0.0)
        return np.asarray(np.add.reduceat(still, starts, axis=-1) + largest_sum(gain, segments.most))
    if segments.kind == "l2":
        far, share = _norm(segments, radius), _norm(segments, at)
        some = np.where(share > 0, share, 1.0)
        along = paid / some
        far = far + _norm(segments, g - at * np.repeat(along / some, segments.sizes, axis=-1))
        root = np.clip(share * far / np.where(along > 0, along, 1.0), np.abs(1.0 - share), 1.0 + share)
        root = np.where(along > 0, root, 1.0 + share)
        cosine = np.clip((1.0 + share**2 - root**2) / (2.0 * some), -1.0, 1.0)
        # Without ε̂ all of `g` is in `far`.
        return np.asarray(np.where(share > 0, along * (cosine - share) + far * root, far))
    # Σ radius·|±e_k − ε̂| = (that of ε̂) + radius_k·(|±1 − ε̂_k| − |ε̂_k|)
    around = np.add.reduceat(radius * np.abs(at), starts, axis=-1)
    value = g + radius * (np.abs(1.0 - at) - np.abs(at))
    if segments.kind == "l1":
        value = np.maximum(value, -g + radius * (np.abs(1.0 + at) - np.abs(at)))
    best = np.maximum.reduceat(value, starts, axis=-1)
    if segments.kind == "corner":
        best = np.maximum(best, 0.0)
    return np.asarray(best + around - paid)
