"""Sweeps: independent calls of one function, on this machine or on others, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from mibp_cert.errors import UserError
from mibp_cert.parallel.pool import WorkerPool

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    parallel: str = "local",
    jobs: int | None = None,
    hear: Callable[[int, int], None] | None = None,
) -> list[Result]:
    """`[function(item) for item in items]`, computed at the place that `parallel` names (see `WorkerPool`).

    With "local" and one job in this process, else in others: function, items and results must pickle, and other machines need
    the same version of this package. `hear(done, total)` is called for every result.

    >>> spread(abs, [-1, 2], jobs=1)
    [1, 2]
    """
    found: dict[int, Result] = {}
    for number, result in arrivals(function, items, parallel, jobs):
        found[number] = result
        if hear is not None:
            hear(len(found), len(items))
    return [found[number] for number in range(len(items))]


def arrivals(
    function: Callable[[Item], Result], items: Sequence[Item], parallel: str = "local", jobs: int | None = None
) -> Iterator[tuple[int, Result]]:
    """As `spread`, but each result with its item's number as soon as it is there."""
    if parallel == "local" and jobs == 1:
        for number, item in enumerate(items):
            with threadpool_limits(limits=1):
                result = function(item)
            yield number, result
        return
    deadly = []
    with WorkerPool(jobs, parallel) as pool:
        for (number, _), answer in pool.map(_each, function, [[pair] for pair in enumerate(items)]):
            if answer is None:
                deadly.append(number)
            else:
                yield number, answer[0]
    if deadly:
        raise UserError(
            f"Item {min(deadly)} of the sweep ended its process even when it was alone; run it in this process (one job) to see "
            "why."
        )


def _each(function: Callable[[Any], Any], pairs: list[tuple[int, Any]]) -> list[tuple[Any]]:
    """Runs in a worker; a result is wrapped, since None says that the worker died."""
    return [(function(item),) for _, item in pairs]
