"""Which routines computed the last bits, and how far apart two results are that other routines may have computed.

The same sums in another order differ in their last bits. So every record of a run names what summed: BLAS and its kernel and
threads, NumPy's vector instructions, the C library. Under the same routines a result made again must have the same bits; under
others it may differ by `LAST_BITS` of the radius of what it bounds.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  its BLAS is one of those that are named
from threadpoolctl import threadpool_info

LAST_BITS = 2.0**-33
"""Of the radius; and `SMALLEST` of the largest number of the same kind, where a radius is next to nothing."""
SMALLEST = 2.0**-44
FIGURES = 1e-9
"""Relative difference of figures that were computed from such numbers."""
SEARCHED = 2.0**-13
"""Where ends are searched for, last bits decide where the search stops: by how much of the radius, and of such figures, ..."""
HELPED = 2.0**-6
"""... and of the radii of ranges that only help to prove others."""
PAIRS = (("lower", "upper"), ("low", "high"), ("margin", "margin_high"))
"""How ends of ranges are called."""
SOLVERS = ("scipy", "highspy", "pyscipopt")


@lru_cache(maxsize=1)
def kernel() -> str:
    """What computes here, in words."""
    blas = {
        f"{library['internal_api']} {library['version']} {library.get('architecture', '')}".strip()
        + f" ({library['num_threads']})"
        for library in threadpool_info()
        if library["user_api"] == "blas" and "torch" not in library["filepath"]
    }
    core = import_module("numpy._core" if int(np.__version__.split(".")[0]) > 1 else "numpy.core")
    features = core._multiarray_umath.__cpu_features__
    used = [name for name in core._multiarray_umath.__cpu_dispatch__ if features.get(name)]
    numbers = f"numpy {np.__version__} {' '.join(used) or 'baseline'}"
    programs = ", ".join(f"{name} {version(name)}" for name in SOLVERS)
    return "; ".join([*sorted(blas), numbers, programs, platform.machine(), " ".join(platform.libc_ver())])


def apart(mine: Mapping[str, Any], kept: Mapping[str, Any]) -> float:
    """How far two sets of arrays are apart, in units of the radii of `kept`: 0 for the same bits, infinite for other names,
    shapes or kinds of numbers."""
    if mine.keys() != kept.keys():
        return np.inf
    return max((_apart(name, np.asarray(mine[name]), kept) for name in mine), default=0.0)


def _apart(name: str, mine: Any, kept: Mapping[str, Any]) -> float:
    other = np.asarray(kept[name])
    if mine.shape != other.shape or mine.dtype.kind != other.dtype.kind:
        return np.inf
    if mine.dtype.kind != "f":
        return 0.0 if np.array_equal(mine, other) else np.inf
    differs = ~((mine == other) | (np.isnan(mine) & np.isnan(other)))
    if not differs.any():
        return 0.0
    if not (np.isfinite(mine) & np.isfinite(other))[differs].all():
        return np.inf
    largest = float(np.abs(other[np.isfinite(other)]).max())
    unit = np.broadcast_to(_radius(name, other, kept) + largest * SMALLEST / LAST_BITS, other.shape)
    with np.errstate(over="ignore", divide="ignore"):  # infinitely far is an answer
        return float((np.abs(mine - other)[differs] / unit[differs]).max())


def _radius(name: str, array: Any, kept: Mapping[str, Any]) -> Any:
    """Half the width of what an array is an end of, or goes with: the parameters', or that of ranges of its own."""
    case = name[: name.index("_") + 1] if name.startswith("case") else ""
    low, high = f"{case}lower", f"{case}upper"
    for ends in PAIRS:
        for pair in (tuple(name.replace(end, other) for other in ends) for end in ends if end in name):
            low, high = pair if kept.keys() >= set(pair) else (low, high)
    if not array.ndim or not kept.keys() >= {low, high} or len(kept[low]) != len(array):
        return 0.0
    half = 0.5 * (np.asarray(kept[high]) - np.asarray(kept[low]))
    half = np.where(np.isfinite(half), half, 0.0)
    return half if half.ndim == array.ndim else half.reshape(len(half), *[1] * (array.ndim - 1))


def changed(mine: Any, kept: Any, most: float, place: str = "") -> list[str]:
    """Where plain data differ, numbers by more than this share of them: the keys that lead there."""
    if isinstance(mine, dict) and isinstance(kept, dict):
        keys = sorted(mine.keys() | kept.keys())
        gone = [f"{place}{key}" for key in keys if key not in mine or key not in kept]
        both = [key for key in keys if key in mine and key in kept]
        return gone + [found for key in both for found in changed(mine[key], kept[key], most, f"{place}{key}.")]
    if isinstance(mine, list) and isinstance(kept, list) and len(mine) == len(kept):
        pairs = enumerate(zip(mine, kept, strict=True), start=1)
        return [found for i, pair in pairs for found in changed(*pair, most, f"{place}{i}.")]
    near = most > 0 and isinstance(mine, float) and isinstance(kept, float)
    same = np.isclose(mine, kept, rtol=most, atol=0.0) if near else type(mine) is type(kept) and mine == kept
    return [] if same else [place.rstrip(".")]
