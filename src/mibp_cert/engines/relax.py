"""The table of relaxations: lines around the functions that are not linear, each with its proof, used by every engine.

On `[l, u]`, `k·x + bottom ≤ f(x) ≤ k·x + top`:

- relu with `l < 0 < u`: `k = u/(u−l)`; `relu(x) − kx` is convex, zero at 0 and largest at an end, so `bottom = 0`,
  `top = max(−kl, u − ku)` whatever float `k` is; elsewhere it is linear, `k ∈ {0, 1}`, `bottom = top = 0`;
- a gate `1[x > 0]`, `½ + kx ± ½` for `0 ≤ k ≤ min(1/u, −1/l)`: at an end it is 0 or 1, and off by `|kx| ≤ 1` from the middle;
- a smooth `φ`: the secant's slope. `φ(x) − k·x` is bounded through its values at `n + 1` equally spaced points: between two of
  them, `h` apart, it is no further than `h²/8·max|φ''|` from the straight line through them. With `n = PIECES` that is one part
  in `PIECES²` of what a single line could be off by, so the band is exact but for that part, for every function, every slope and
  both kinds of curvature. Where the function's range is narrower than that band, `k = 0` and the range are the better set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mibp_cert.engines.rounding import TINY, UNIT, Array, Interval, gamma
from mibp_cert.graph.functions import SMOOTH, Smooth

TINIEST = 2.0**-1020
"""Results below the normal numbers may be flushed to zero, here or in a training run."""
PIECES = 32
"""Pieces that an interval is cut into to find the extremes of `φ(x) − k·x`."""


@dataclass(frozen=True, eq=False)
class Line:
    """`slope·x + bottom ≤ f(x) ≤ slope·x + top`, element by element; `flat`: the slope is 0, since the range is narrower."""

    slope: Array
    bottom: Array
    top: Array
    flat: NDArray[np.bool_]


def relu_line(low: Array, high: Array, unstable: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Slope and `top` of a relu (`bottom` is 0), the latter as computed: its caller rounds it up."""
    width = np.where(unstable, high - low, 1.0)
    slope = np.where(unstable, np.minimum(high / width, 1.0), np.where(low >= 0, 1.0, 0.0))
    return slope, np.where(unstable, np.maximum(-slope * low, high - slope * high), 0.0)


def gate_line(low: Array, high: Array, unstable: NDArray[np.bool_], cap: float) -> Array:
    """Slope of a gate, at most `cap` and rounded down; 0 where it is stable."""
    largest = np.maximum(np.where(unstable, np.maximum(high, -low), 1.0), 1e-300)
    return np.where(unstable, np.minimum((1.0 - 8.0 * UNIT) / largest, cap), 0.0)


def smooth_line(name: str, low: Array, high: Array) -> Line:
    """The secant with its band, or the range; NaN or infinite where neither can be had."""
    slope = secant(name, low, high)
    bottom, top = bands(name, low, high, slope)
    box = range_of(name, Interval(low, high))
    flat = ~(top - bottom < box.high - box.low) | ~np.isfinite(slope)
    return Line(
        np.where(flat, 0.0, slope), np.where(flat, box.low, bottom), np.where(flat, box.high, top), np.asarray(flat)
    )


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
        case "wave":
            low, high = np.minimum(first_low, last_low), np.maximum(first_high, last_high)
            return _wave(SMOOTH[name], a, Interval(low, high))
    top = np.where((a.low <= 0) & (a.high >= 0), SMOOTH[name].limits[1], np.maximum(first_high, last_high))
    # NaN compares false; such an interval must not turn into a sound one.
    top = np.where(np.isnan(a.low) | np.isnan(a.high), np.nan, top)
    return Interval(np.minimum(first_low, last_low), top)


def _wave(function: Smooth, a: Interval, ends: Interval) -> Interval:
    """From what a wave is at the ends of intervals to its range: it also takes its largest value where `(x − crest)/2π` is
    a whole number in between, and its smallest half-way to the next one. That is off by a few roundings; to find one too many
    costs next to nothing, as the function is flat there."""
    found = []
    for shift in (0.0, 0.5):
        first, last = ((x - function.crest) / (2.0 * np.pi) - shift for x in (a.low, a.high))
        found.append(
            np.ceil(first - 32.0 * UNIT * (1.0 + np.abs(first))) <= np.floor(last + 32.0 * UNIT * (1.0 + np.abs(last)))
        )
    low = np.where(found[1], function.limits[0], ends.low)
    high = np.where(found[0], function.limits[1], ends.high)
    # Nothing is known at infinity but the limits; NaN stays.
    far, unknown = ~(np.isfinite(a.low) & np.isfinite(a.high)), np.isnan(a.low) | np.isnan(a.high)
    low, high = np.where(far, function.limits[0], low), np.where(far, function.limits[1], high)
    return Interval(np.where(unknown, np.nan, low), np.where(unknown, np.nan, high))


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
