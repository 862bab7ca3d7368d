"""Who computes the bounds of many queries, and who hears how far they are.

Queries are taken in chunks which do not depend on who computes them, and what is summed is summed in the same order: a run gives
the same bits however many jobs it has. Multipliers of every query's own (`fitted.dual`) go to processes: their operations
are so short that threads would wait for each other at Python's lock. Many rows (`fitted.shared`) go to threads: no
process needs a copy of them, and their operations are long enough.

Processes take seconds to start. This is done beside the work, once it has taken a while; they are used as soon as they answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from mibp_cert.parallel import WorkerPool, split

Item = TypeVar("Item")
Result = TypeVar("Result")
Heard = Callable[[int, int], None]
PATIENCE = 1.0
"""Seconds of work after which processes are started."""
WORTH = 1_000_000
"""Queries × rows × parameters from which on handing them to processes pays: a tenth of a second."""
GROUP = 10_000_000
"""The same, in one group: about a second."""
AHEAD = 4
"""Results of threads that are waited for, for each of them."""
ROUNDS = 8
"""Rounds of bounds that are counted on."""


class Crew:
    """Processes and threads, as many as there are jobs; one job is this process alone."""

    def __init__(self, jobs: int = 1, parallel: str = "local", hear: Heard | None = None) -> None:
        alone = jobs == 1 and parallel == "local"
        self.jobs, self.pool = jobs, None if alone else WorkerPool(jobs, parallel)
        self.tell: Callable[[int], None] = lambda count: None
        """Told how many more queries are done."""
        self._hear = hear or (lambda done, total: None)
        self._patience = PATIENCE if parallel == "local" else 0.0
        self._spent = 0.0
        self._begun: Future[Any] | None = None
        self._threads: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._begun = self._threads = None

    @contextmanager
    def working(self, tell: Callable[[int], None] | None = None) -> Iterator[None]:
        """Bounds that are computed in this block are the crew's work, and `tell(count)` is called for queries that are done.
        Numeric libraries have one thread: sums must not depend on their number."""
        before, self.tell = self.tell, tell or (lambda count: None)
        token = _crew.set(self)
        try:
            with threadpool_limits(limits=1):
                yield
        finally:
            _crew.reset(token)
            self.tell = before

    @contextmanager
    def counting(self, total: int) -> Iterator[None]:
        """The same, where the number of queries is known."""
        done = 0

        def tell(count: int) -> None:
            nonlocal done
            done = min(done + count, total)
            self._hear(done, total)

        with self.working(tell):
            yield

    @property
    def ready(self) -> bool:
        """Whether there are processes that answer."""
        if self.pool is None:
            return False
        if self._begun is None and self._spent >= self._patience:
            self._begun = self.pool.begin()
        return self._begun is not None and self._begun.done()

    def spent(self, seconds: float) -> None:
        """So much was done without processes."""
        self._spent += seconds

    def in_threads(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Results in order; never more than a few of them are held."""
        self._threads = self._threads or ThreadPoolExecutor(self.jobs)
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(self._threads.submit(copy_context().run, _alone, function, item))
                if len(waiting) >= AHEAD * self.jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class Rounds:
    """Counts the bounds of a proof: how many rounds there will be is only guessed."""

    def __init__(self, hear: Heard, queries: int, parts: int = 1) -> None:
        self.hear, self.queries, self.usual = hear, queries, ROUNDS * parts
        self.number, self.within = 0, 0

    def begin(self) -> None:
        """Another round."""
        self.number, self.within = self.number + 1, 0
        if self.number > 1:
            self.tell(0)

    def tell(self, count: int) -> None:
        """So many more queries of this round are done."""
        self.within = min(self.within + count, self.queries)
        expected = max(self.usual, self.number + 3)
        self.hear((max(self.number, 1) - 1) * self.queries + self.within, expected * self.queries)


ALONE = Crew()
_crew: ContextVar[Crew] = ContextVar("crew", default=ALONE)


def _alone(function: Callable[[Item], Result], item: Item) -> Result:
    """Runs in a thread, which must not wait for others of its kind."""
    _crew.set(ALONE)
    return function(item)


def tell(count: int = 1) -> None:
    """So many more queries are done, whoever listens."""
    _crew.get().tell(count)


def in_chunks(function: Callable[[Any, int], Result], shared: Any, count: int, step: int, cells: int) -> list[Result]:
    """`function(shared, start)` for each chunk of `step` queries out of `count`, in order; `cells`: what all of it takes. In
    processes, function and `shared` must pickle."""
    crew, starts = _crew.get(), range(0, count, step)
    if cells < WORTH or len(starts) < 2 or not crew.ready:
        found, begun = [], time.perf_counter()
        for start in starts:
            found.append(function(shared, start))
            crew.tell(min(step, count - start))
        crew.spent(time.perf_counter() - begun)
        return found
    assert crew.pool is not None
    jobs, known = crew.pool.jobs, dict[int, Result]()
    groups = split(list(starts), jobs * max(1, round(cells / (jobs * GROUP))))
    for start, answer in crew.pool.map(_each, (function, shared), groups):
        # A process that died (memory, say) leaves its part to this one.
        known[start] = function(shared, start) if answer is None else answer
        crew.tell(min(step, count - start))
    return [known[start] for start in starts]


def _each(shared: tuple[Callable[[Any, int], Any], Any], starts: list[int]) -> list[Any]:
    """Runs in a worker process."""
    function, rest = shared
    return [function(rest, start) for start in starts]


def in_order(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """`function(item)` for each item, in order, by threads where there are several."""
    crew = _crew.get()
    return map(function, items) if crew.jobs == 1 or len(items) < 2 else crew.in_threads(function, items)
