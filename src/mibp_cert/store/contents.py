"""A run directory, read for checking: all that is in it, and nothing written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mibp_cert.certify.loop import StepRecord
from mibp_cert.disk import STEPS, exists
from mibp_cert.engines.rounding import Array
from mibp_cert.store.archive import read_chain, read_request, read_result, read_step
from mibp_cert.store.npz import opened

Plain = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Contents:
    """What a run directory holds."""

    description: Plain
    data: dict[str, Array]
    records: list[StepRecord]
    kernels: list[str | None]
    """What computed each step (`store.kernel`); None: that is not said."""
    arrays: dict[int, dict[str, Array]]
    """The sets that are there, by the number of the step before them, from 1."""
    result: Plain | None
    answers: dict[str, Array] | None
    """What was found, if the run is over: as plain data, and as arrays."""

    @classmethod
    def read(cls, path: Path) -> Contents:
        """Raises `MibpCertError` for what is not as it was written."""
        records, last, _ = read_chain(path)
        places = [path / STEPS / f"{n:06d}.json" for n in range(1, len(records) + 1)]
        there = [n for n, record in enumerate(records, start=1) if not record.diverged]
        there = [n for n in there if exists(places[n - 1].with_suffix(".npz"))]
        answers = read_result(path, last)
        return cls(
            *read_request(path),
            records,
            [opened(place).get("kernel") for place in places],
            {n: read_step(path, n) for n in there},
            None if answers is None else opened(path / "result.json"),
            answers,
        )

    @property
    def missing(self) -> list[int]:
        """Steps whose sets are not there."""
        return [n for n, record in enumerate(self.records, start=1) if not record.diverged and n not in self.arrays]
