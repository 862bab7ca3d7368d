"""Smooth functions with proven bounds: values, ranges, and the band around a line.

`φ(x) − k·x` on `[l, u]` is bounded through its values at `n + 1` equally spaced points: between two of them, `h` apart, it is no
further than `h²/8·max|φ''|` from the straight line through them. With `n = PIECES` that is one part in `PIECES²` of what a single
line could be off by, so the band is exact but for that part, for every function, every slope and both kinds of curvature.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.engines.rounding import TINY, UNIT, Array, Interval, gamma
from mibp_cert.graph.functions import SMOOTH, Smooth

TINIEST = 2.0**-1020
"""Results below the normal numbers may be flushed to zero, here or in a training run."""
PIECES = 32
"""Pieces that an interval is cut into to find the extremes of `φ(x) − k·x`."""


def margin(function: Smooth, x: Array, value: Array) -> Array:
    """How far `value`, computed here or in a training run, may be from the real `φ(x)`; counted for both."""
    return 2.0 * UNIT * (function.relative * (1.0 + np.abs(x)) * np.abs(value) + function.absolute) + TINIEST


def at(name: str, x: Array) -> tuple[Array, Array]:
    """Floats below and above `φ(x)` and any float64 evaluation of it; NaN outside of the function's domain."""
    function = SMOOTH[name]
    value = np.where(x > 0, function.value(x), np.nan) if function.positive else function.value(x)
    size = margin(function, np.where(np.isfinite(x), x, 0.0), value)
    # At infinity a function is at its limit (or infinite), which is no rounded value.
    size = np.where(np.isfinite(x) & np.isfinite(value), size, 0.0)
    low, high = np.nextafter(value - size, -np.inf), np.nextafter(value + size, np.inf)
    return np.maximum(low, function.limits[0]), np.minimum(high, function.limits[1])


def range_of(name: str, a: Interval) -> Interval:
    """All values of the function on intervals."""
    (first_low, first_high), (last_low, last_high) = at(name, a.low), at(name, a.high)
    match SMOOTH[name].shape:
        case "rising":
            return Interval(first_low, last_high)
        case "falling":
            return Interval(last_low, first_high)
    top = np.where((a.low <= 0) & (a.high >= 0), SMOOTH[name].limits[1], np.maximum(first_high, last_high))
    # NaN compares false; such an interval must not turn into a sound one.
    top = np.where(np.isnan(a.low) | np.isnan(a.high), np.nan, top)
    return Interval(np.minimum(first_low, last_low), top)


def secant(name: str, low: Array, high: Array) -> Array:
    """Slope of the line through the ends; that of the tangent where the ends are too close to tell. Any slope would be sound."""
    function, width = SMOOTH[name], high - low
    with np.errstate(all="ignore"):
        slope = (function.value(high) - function.value(low)) / width
        tangent = function.slope(0.5 * (low + high))
    wide = (width > 1e-6 * (1.0 + np.abs(low) + np.abs(high))) & np.isfinite(slope)
    return np.where(wide, slope, np.where(np.isfinite(tangent), tangent, 0.0))


def bands(name: str, low: Array, high: Array, slope: Array, pieces: int = PIECES) -> tuple[Array, Array]:
    """Lower and upper bounds of `φ(x) − slope·x` for `low ≤ x ≤ high`, rounded outward; NaN or infinite where that fails."""
    function = SMOOTH[name]
    with np.errstate(all="ignore"):
        width = high - low
        x = np.clip(
            low[..., None] + width[..., None] * (np.arange(pieces + 1) / pieces), low[..., None], high[..., None]
        )
        x[..., 0], x[..., -1] = low, high
        value, line = function.value(x), slope[..., None] * x
        height = value - line
        error = margin(function, x, value) + gamma(4) * (np.abs(value) + np.abs(line)) + 2.0 * TINY
        # The points are floats near the even spacing; twice an ulp of the ends covers the difference.
        gap = width * (1.0 + gamma(8)) / pieces + 8.0 * UNIT * np.maximum(np.abs(low), np.abs(high))
        between = (1.0 + gamma(8)) * gap * gap / 8.0 * function.curvature(low, high)
        bottom = (height - error).min(axis=-1) - between
        top = (height + error).max(axis=-1) + between
        if function.positive:
            bottom, top = np.where(low > 0, bottom, np.nan), np.where(low > 0, top, np.nan)
    return np.nextafter(bottom, -np.inf), np.nextafter(top, np.inf)
