"""What a run will take: seconds and memory, before any of it is spent, beside what this machine and its limits leave.

Estimates, from sizes alone. Memory is that of the data and of what the engine keeps (`Engine.memory`). Time is that of the terms
that grow, with constants measured on one core of a common machine (`benchmarks/forecast.py` prints both beside what was really
taken):

- a fitted model whose rows have multipliers of their own: `n²P` (times the classes, with softmax), else `n d P²`; open test rows
  `nP` each; the attack some hundreds of fits, `n d` each;
- a training in steps: every step reads what the engine keeps about once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from mibp_cert.data import Dataset
from mibp_cert.engines import Engine
from mibp_cert.errors import UserError
from mibp_cert.fitted import FITTED, Fitted
from mibp_cert.fitted.problem import APART_CELLS, OWN_CELLS
from mibp_cert.nets import Network, Training, effective_batch_size, steps_per_epoch
from mibp_cert.threats import Threat

LARGE = 20_000
"""Cells from which on data are looked at."""
PROBE = 4000
"""Rows that the number of symbols is read off."""
MOST_SYMBOLS = 500_000
"""Above, a run would take days, whatever the memory."""
SHARE = 0.8
"""Share of the free memory that a run may plan for."""
OWN, SHARED, OPEN, ATTACK = 7e-7, 1e-8, 1.5e-9, 4e-6
"""Seconds for each unit of the terms above; of test rows a tenth is open."""
CLASSES = 1e-6
"""Seconds for each row × row × parameter × class of softmax."""
BANDWIDTH = 6e9
"""Bytes that a step reads in a second."""
LEAST = 0.3
"""Seconds that anything takes."""


@dataclass(frozen=True)
class Forecast:
    """About how long, and how much memory at the peak; the time of solvers is theirs to say."""

    seconds: float
    bytes: int

    @property
    def notable(self) -> bool:
        """Whether a user should know beforehand."""
        return self.seconds > 5.0 or self.bytes > 2**30


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
    """Bytes that this process may still take: what is free on the machine, in its control group, and of its address space."""
    free, process = [psutil.virtual_memory().available], psutil.Process()
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, taken = _number_in(most), _number_in(used)
        if limit is not None and taken is not None:
            free.append(limit - taken)
    if psutil.LINUX:  # elsewhere a process cannot be asked
        for kind in (psutil.RLIMIT_AS, psutil.RLIMIT_DATA):
            soft, _ = process.rlimit(kind)
            if soft != psutil.RLIM_INFINITY:
                free.append(soft - process.memory_info().vms)
    return int(max(0, min(free)))


def _number_in(path: str) -> int | None:
    """The number that a file holds; None if there is none ("max", or no such file)."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def estimate_memory(network: Network, batch: int, symbols: int, rows: int, engine: type[Engine]) -> int:
    """Bytes at the peak of a step: the data, and what the engine keeps."""
    return 8 * rows * network.features * 6 + engine.memory(network, batch, symbols)


def forecast(
    network: Network,
    train: Dataset,
    threat: Threat,
    training: Training | Fitted,
    engine: type[Engine],
    queries: int = 0,
    *,
    attacked: bool = True,
) -> Forecast:
    """Of a run on these data, with so many rows to answer for."""
    rows = len(train)
    if isinstance(training, Fitted):
        need = estimate_memory(network, rows, 0, rows, engine)
        return Forecast(LEAST + _fit_seconds(network, train, training, queries, attacked=attacked), need)
    batch = effective_batch_size(rows, training.batch_size)
    symbols = count_symbols(train, threat) if engine.keeps_symbols else 0
    need = estimate_memory(network, batch, symbols, rows, engine)
    steps = training.epochs * steps_per_epoch(rows, batch)
    return Forecast(LEAST + steps * (2e-3 + engine.memory(network, batch, symbols) / BANDWIDTH), need)


def _fit_seconds(network: Network, train: Dataset, model: Fitted, queries: int, *, attacked: bool) -> float:
    n, last = len(train), network.layers[-1]
    p, k = getattr(last, "inputs", network.features) + 1, network.logits
    attack = ATTACK * n * p if attacked else 0.0
    if k > 1 and model.softmax:
        return CLASSES * min(n * n * p * k, OWN_CELLS) + attack
    own = n * n * p * k <= (APART_CELLS if k > 1 else OWN_CELLS)
    one = OWN * n * n * p if own else SHARED * n * p * p * p + OPEN * n * p * queries
    return k * one + attack


def check_memory(
    network: Network,
    train: Dataset,
    threat: Threat,
    training: Training | Fitted,
    engine: type[Engine],
) -> None:
    """Raise `UserError` if the run would need more than there is; only large data are looked at."""
    if len(train) * train.features < LARGE:
        return
    free, fit = free_memory(), engine in FITTED.values()
    need = forecast(network, train, threat, training, engine).bytes
    if fit and need > SHARE * free:
        raise UserError(
            f"{len(train)} rows need about {gib(need)} ({gib(free)} are free): use fewer rows (such as "
            f"--sample {max(1, int(0.9 * SHARE * free / need * len(train)))}), fewer columns, or fewer features."
        )
    symbols = count_symbols(train, threat) if engine.keeps_symbols else 0
    if need > SHARE * free or symbols > MOST_SYMBOLS:
        raise UserError(
            f"{len(train)} rows with {symbols} doubtful entries need about {gib(need)} ({gib(free)} "
            "are free) and very long: fit a model to its minimum (--model logistic or ridge), use fewer rows (such as --sample "
            "5000), doubt fewer, or choose the engine 'interval'."
        )


def gib(size: float) -> str:
    """Memory as people say it.

    >>> gib(3 * 2**30), gib(2**27)
    ('3 GiB', '0.13 GiB')
    """
    value = size / 2**30
    return f"{value:.0f} GiB" if value >= 2.95 else f"{math.ceil(100 * value) / 100:.2g} GiB"
