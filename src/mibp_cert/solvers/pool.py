"""Worker processes that may die.

Solvers run in separate processes (loky), since some abort the whole interpreter on some models. If a worker dies, the items
that were not finished are tried again in smaller groups; an item that kills its worker even when it is alone is given up and
reported as None. Results of finished groups are never lost.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from joblib.externals.loky import cpu_count, get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

log = logging.getLogger(__name__)
Item = TypeVar("Item")
_THREADS = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold Ctrl-C back for a moment (where the system can): it arrives afterwards; processes started meanwhile never see it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _start_worker() -> None:
    """Leave Ctrl-C to the main process (the terminal sends it to all), and die silently: the main process reports it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


class WorkerPool:
    """A pool of solver processes, started when first used and closed with the `with` block."""

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs or int(cpu_count())
        self._started = False

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(now=kind is not None)

    def close(self, *, now: bool = False) -> None:
        """End the workers of this pool; with `now`, without waiting for what they are doing."""
        if self._started:
            executor = self._executor()
            if now:
                # Dead workers are a case that the executor handles; asking it to kill them races with late results.
                for pid in list(executor._processes):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            executor.shutdown(wait=True)
            self._started = False

    def _executor(self) -> Any:
        self._started = True
        return get_reusable_executor(max_workers=self.jobs, timeout=600, env=_THREADS, initializer=_start_worker)

    def map(
        self, function: Callable[..., list[Any]], shared: Any, groups: Sequence[Sequence[Item]]
    ) -> Iterator[tuple[Item, Any]]:
        """Yield `(item, result)` in order of completion, for `function(shared, group)` returning one result per item.

        A result is None where the item killed its worker. Any other exception of `function` is raised here; Ctrl-C ends the
        workers before it is passed on.
        """
        try:
            yield from self._attempt(function, shared, [list(group) for group in groups])
        except BaseException:
            self.close(now=True)
            raise

    def _attempt(
        self, function: Callable[..., list[Any]], shared: Any, groups: list[list[Item]]
    ) -> Iterator[tuple[Item, Any]]:
        running: dict[Future[list[Any]], list[Item]] = {}
        lost: list[list[Item]] = []
        with _interrupts_held_back():
            executor = self._executor()
            try:
                for group in groups:
                    running[executor.submit(function, shared, group)] = group
            except TerminatedWorkerError:
                lost += groups[len(running) :]
        while running:
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                group = running.pop(future)
                try:
                    results = future.result()
                except TerminatedWorkerError:
                    lost.append(group)
                else:
                    yield from zip(group, results, strict=True)
        items = [item for group in lost for item in group]
        if not items:
            return
        log.warning("A worker process died; %d program(s) are tried again.", len(items))
        if len(items) == 1 and len(lost) == len(groups) == 1:
            yield items[0], None
            return
        # Halves, so that one deadly item is found in a few rounds and the others are not held back by it.
        half = (len(items) + 1) // 2
        for part in (items[:half], items[half:]):
            if part:
                yield from self._attempt(function, shared, split(part, self.jobs))


def split(items: Sequence[Item], parts: int) -> list[list[Item]]:
    """At most `parts` groups of nearly equal length, in order."""
    count = max(1, min(parts, len(items)))
    return [list(items[i * len(items) // count : (i + 1) * len(items) // count]) for i in range(count)]
