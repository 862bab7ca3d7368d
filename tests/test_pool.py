"""Workers that die: what was finished is kept, what was not is tried again, a deadly item is given up."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mibp_cert.errors import SolverUnavailable
from mibp_cert.parallel import WorkerPool, split


def _square(shared: int, items: list[int]) -> list[int]:
    return [item * item + shared for item in items]


def _deadly(shared: int, items: list[int]) -> list[int]:
    if shared in items:
        os.abort()
    return [item * item for item in items]


def _dies_once(shared: str, items: list[int]) -> list[int]:
    """The first worker that comes by kills itself, as the kernel would; later ones find the mark it left."""
    mark = Path(shared)
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return [-item for item in items]
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def _refuses(shared: Any, items: list[int]) -> list[int]:
    raise SolverUnavailable("too large; choose --solver scip.")


def test_every_item_comes_back_once() -> None:
    with WorkerPool(2) as pool:
        results = dict(pool.map(_square, 1, split(list(range(11)), 4)))
    assert results == {i: i * i + 1 for i in range(11)}


@pytest.mark.slow
def test_an_item_that_aborts_its_worker_costs_only_itself() -> None:
    with WorkerPool(2) as pool:
        results = dict(pool.map(_deadly, 5, split(list(range(9)), 4)))
    assert results == {i: (None if i == 5 else i * i) for i in range(9)}


@pytest.mark.slow
def test_a_worker_killed_from_outside_loses_nothing(tmp_path: Path) -> None:
    with WorkerPool(2) as pool:
        results = dict(pool.map(_dies_once, str(tmp_path / "mark"), split(list(range(8)), 4)))
    assert results == {i: -i for i in range(8)}


def test_a_refusal_in_a_worker_reaches_the_caller_as_a_sentence() -> None:
    with WorkerPool(1) as pool, pytest.raises(SolverUnavailable, match="choose --solver scip"):
        list(pool.map(_refuses, None, [[1], [2]]))


def test_split_keeps_order_and_balance() -> None:
    assert split(list(range(7)), 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert split([1], 4) == [[1]]
