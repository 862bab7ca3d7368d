"""How much memory a step will need, said before it hurts: an engine's own forecast against what is free."""

from __future__ import annotations

import numpy as np
import psutil

from mibp_cert.data import Dataset
from mibp_cert.engines import engine_named
from mibp_cert.errors import UserError
from mibp_cert.nets import Network, effective_batch_size
from mibp_cert.threats import Threat

LARGE = 20_000
"""Cells from which on data are looked at."""
PROBE = 4000
"""Rows that the number of symbols is read off."""
MOST_SYMBOLS = 500_000
"""Above, a run would take days, whatever the memory."""
SHARE = 0.8
"""Share of the free memory that a run may plan for."""


def count_symbols(train: Dataset, threat: Threat) -> int:
    """Symbols of the data's noise; for many rows, those of a part of them, scaled up."""
    if len(train) <= PROBE:
        return threat.bind(train).noise().symbols
    part = np.linspace(0, len(train) - 1, PROBE).astype(np.intp)
    try:
        return int(threat.bind(train.take(part)).noise().symbols * len(train) / PROBE)
    except UserError:
        return len(train) * train.features  # given rows or masks fit all rows only; every cell may be in doubt


def free_memory() -> int:
    """Bytes that are free on this machine."""
    return int(psutil.virtual_memory().available)


def estimate_memory(network: Network, batch: int, symbols: int, rows: int, engine: str) -> int:
    """Bytes at the peak of a step: the data, and what the engine keeps."""
    return 8 * rows * network.features * 6 + engine_named(engine).memory(network, batch, symbols)


def check_memory(network: Network, train: Dataset, threat: Threat, batch_size: int | None, engine: str) -> None:
    """Raise `UserError` if the run would need more than there is; only large data are looked at."""
    if len(train) * train.features < LARGE:
        return
    free = free_memory()
    symbols = count_symbols(train, threat) if engine_named(engine).keeps_symbols else 0
    need = estimate_memory(network, effective_batch_size(len(train), batch_size), symbols, len(train), engine)
    if need > SHARE * free or symbols > MOST_SYMBOLS:
        raise UserError(
            f"{len(train)} rows with {symbols} doubtful entries need about {need / 2**30:.0f} GiB ({free / 2**30:.0f} "
            "are free) and very long: use fewer rows (such as --sample 5000), doubt fewer, or choose the engine 'interval'."
        )
