"""How an engine works: what its users may set, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mibp_cert.errors import UserError


def _check_whole(name: str, value: int | None, least: int) -> None:
    if value is not None and (value != int(value) or value < least):
        raise UserError(f"{name} must be a whole number ≥ {least}, got {value}.")


@dataclass(frozen=True)
class SolverSettings:
    """How the programs are solved: which solver, to which honest gap, and within which limits."""

    solver: str = "scip"
    gap: float = 0.01
    """Honest gap asked for, relative to the output's radius."""
    floor: float = 1e-9
    """Radius below which the gap is measured absolutely."""
    seconds_per_program: float = math.inf
    nodes_per_program: int | None = None
    seconds_per_step: float = math.inf
    jobs: int | None = None
    parallel: str = "local"
    """Where programs are solved: "local", the address of a Dask scheduler, or "ray"; see `WorkerPool`."""

    def __post_init__(self) -> None:
        for name in ("gap", "floor", "seconds_per_program", "seconds_per_step"):
            if not getattr(self, name) >= 0.0:
                raise UserError(f"{name} must be at least 0, got {getattr(self, name)}.")
        _check_whole("nodes_per_program", self.nodes_per_program, 0)
        _check_whole("jobs", self.jobs, 1)

    @property
    def repeatable(self) -> bool:
        """Wall-clock limits cannot be repeated; without them a run gives the same bits again."""
        return math.isinf(self.seconds_per_program) and math.isinf(self.seconds_per_step)


@dataclass(frozen=True)
class RelationalSettings:
    """`symbols`: budget of symbols kept between steps (None: a few hundred beyond the data's own);
    `search`: candidates per step in the search for the gates' slope (0: the last slope is kept);
    `cases`: a row budget with at most so many choices of rows is split into one set for each choice (0: never)."""

    symbols: int | None = None
    search: int = 3
    cases: int = 128

    def __post_init__(self) -> None:
        for name in ("symbols", "search", "cases"):
            _check_whole(name, getattr(self, name), 0)


@dataclass(frozen=True)
class EngineSettings:
    """All that any engine can be told; each takes what it knows."""

    solver: SolverSettings = field(default_factory=SolverSettings)
    relational: RelationalSettings = field(default_factory=RelationalSettings)
    unroll: int = 1
    """How many steps are put into one graph before the set is relaxed."""

    def __post_init__(self) -> None:
        _check_whole("unroll", self.unroll, 1)
