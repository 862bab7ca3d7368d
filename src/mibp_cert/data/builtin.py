"""Data sets that come by name."""

from __future__ import annotations

from sklearn.datasets import make_moons

from mibp_cert.data.dataset import Dataset, Split
from mibp_cert.errors import UserError


def two_moons(seed: int = 0, *, noise: float = 0.1, sizes: tuple[int, int, int] = (100, 200, 200)) -> Split:
    """Two interleaving half circles (scikit-learn's `make_moons`): 100 training, 200 validation, 200 test points."""
    x, y = make_moons(sum(sizes), noise=noise, random_state=seed)
    ends = (sizes[0], sizes[0] + sizes[1])
    parts = [Dataset.of(x[a:b], y[a:b], (0, 1)) for a, b in ((0, ends[0]), ends, (ends[1], None))]
    return Split("two-moons", *parts)


_BUILTIN = {"two-moons": two_moons}


def load(name: str, seed: int) -> Split:
    """The data set called `name`, drawn and split with `seed`."""
    if name not in _BUILTIN:
        raise UserError(f"There is no data set called {name!r}; choose one of {', '.join(_BUILTIN)}.")
    if not 0 <= seed < 2**32:
        raise UserError(f"The seed must be a whole number from 0 to 2³² − 1, got {seed}.")
    return _BUILTIN[name](seed)
