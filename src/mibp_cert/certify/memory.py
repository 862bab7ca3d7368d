"""How much memory a step will need, said before it hurts.

The relational engine keeps one generator per symbol `s` and entry: of the parameters `m`, twice, and of the widest layer `w` for
each of the `B` rows of a batch, a few times. Boxes need no generators. The number of symbols is read off the threat, on a part of
the rows where there are many.
"""

from __future__ import annotations

import os

import numpy as np

from mibp_cert.data import Dataset
from mibp_cert.errors import UserError
from mibp_cert.nets import Network, effective_batch_size
from mibp_cert.threats import Threat

PROBE = 4000
"""Rows that the number of symbols is read off."""
LAYERS_AT_ONCE = 4
MOST_SYMBOLS = 500_000
"""Above, a relational run would take days, whatever the memory."""
SHARE = 0.8
"""Share of the free memory that a run may plan for."""


def estimate_memory(network: Network, batch: int, symbols: int, rows: int, engine: str) -> int:
    """Bytes at the peak of a step: generators of the parameters, and of the widest layer of a batch."""
    data = 8 * rows * network.features * 6
    if engine in ("interval", "crown"):
        return data + 8 * batch * max(network.sizes) * 16
    size = network.layout.size
    columns = symbols + size + max(500, 2 * size)
    return data + 8 * columns * (3 * size + LAYERS_AT_ONCE * batch * max(network.sizes[1:]))


def count_symbols(train: Dataset, threat: Threat) -> int:
    """Symbols of the data's noise; for many rows, those of a part of them, scaled up."""
    if len(train) <= PROBE:
        return threat.bind(train).noise().symbols
    part = np.linspace(0, len(train) - 1, PROBE).astype(np.intp)
    try:
        return int(threat.bind(train.take(part)).noise().symbols * len(train) / PROBE)
    except UserError:
        return len(train) * train.features  # given rows or masks fit all rows only; every cell may be in doubt


def free_memory() -> int | None:
    """Bytes that are free on this machine; None where the system does not say."""
    try:
        with open("/proc/meminfo") as lines:
            found = {line.split(":")[0]: int(line.split()[1]) for line in lines if ":" in line}
        return 1024 * found["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return None if not hasattr(os, "sysconf") else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(network: Network, train: Dataset, threat: Threat, batch_size: int | None, engine: str) -> None:
    """Raise `UserError` if the run would need more than there is; only large data are looked at."""
    if engine == "mibp" or len(train) * train.features < 20_000:
        return
    free = free_memory()
    if free is None:
        return
    symbols = 0 if engine in ("interval", "crown") else count_symbols(train, threat)
    need = estimate_memory(network, effective_batch_size(len(train), batch_size), symbols, len(train), engine)
    if need > SHARE * free or symbols > MOST_SYMBOLS:
        raise UserError(
            f"{len(train)} rows with {symbols} doubtful entries need about {need / 2**30:.0f} GiB ({free / 2**30:.0f} "
            "are free) and very long: use fewer rows (such as --sample 5000), doubt fewer, or choose the engine 'interval'."
        )
