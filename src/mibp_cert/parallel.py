"""Worker processes that may die, on this machine or on others, and sweeps: independent calls of one function.

Solvers run in separate processes (loky), since some abort the whole interpreter on some models. If a worker dies, the items
that were not finished are tried again in smaller groups; an item that kills its worker even when it is alone is given up and
reported as None. Results of finished groups are never lost.

A worker of Dask or Ray hands each group to a process of its own on its machine: a solver that aborts costs neither that worker
nor its other tasks, and one that computes for long does not keep the worker from answering its scheduler.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import multiprocessing.resource_tracker
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import current_process
from typing import Any, TypeVar

from joblib.externals.loky import ProcessPoolExecutor, cpu_count, get_reusable_executor
from joblib.externals.loky.backend import resource_tracker as loky_tracker
from joblib.externals.loky.backend.reduction import dumps
from joblib.externals.loky.backend.utils import kill_process_tree
from joblib.externals.loky.process_executor import TerminatedWorkerError
from threadpoolctl import threadpool_limits

from mibp_cert.errors import UserError

log = logging.getLogger(__name__)
Work = Callable[..., list[Any]]
"""`function(shared, group)`, which returns one result per item of the group."""
Item = TypeVar("Item")
Result = TypeVar("Result")
PARENT_SECONDS = 1.0
"""How often a worker looks whether the main process is still there."""
CONNECT_SECONDS = 5
"""How long a scheduler may take to answer."""
_SCHEDULER = re.compile(r"(tcp|tls)://\S+:\d+")
_THREADS = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold Ctrl-C back for a moment (where the system can): it arrives afterwards; processes started meanwhile never see it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Both packages start a tracker with their first worker, and Python's lets Ctrl-C through again when it does.
    for tracker in (multiprocessing.resource_tracker, loky_tracker):
        tracker.ensure_running()
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _end_with(parent: int) -> None:
    """End when the main process is gone: killed, it cannot tell its workers, which would wait for ten minutes more."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def _start_worker() -> None:
    """Leave Ctrl-C to the main process (the terminal sends it to all), and die silently: the main process reports it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def check_parallel(parallel: str) -> None:
    """Refuse what names no place to work at, or one whose package is not installed."""
    if parallel == "local":
        return
    name, package = ("Ray", "ray") if parallel == "ray" else ("Dask", "distributed")
    if name == "Dask" and not _SCHEDULER.fullmatch(str(parallel)):
        raise UserError(
            f"There is no place to work called {parallel!r}; choose 'local', the address of a Dask scheduler "
            "('tcp://host:port'), or 'ray'."
        )
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{name} is not installed; run pip install 'mibp-cert[{name.lower()}]' or choose 'local'.")


@dataclass(frozen=True)
class _Place:
    """Where groups are computed."""

    submit: Callable[[Work, Any, list[Any]], Future[Any]]
    """Start `function(shared, group)`; what it raises may come as the future's result."""
    close: Callable[[bool], None]
    """Give everything back; if true, without waiting for what is running."""
    died: tuple[type[BaseException], ...]
    """What a future raises when the worker that held it died."""


def _local(jobs: int) -> _Place:
    """Processes on this machine, which loky keeps for the next pool of the same size."""

    def executor() -> Any:
        return get_reusable_executor(max_workers=jobs, timeout=600, env=_THREADS, initializer=_start_worker)

    def close(now: bool) -> None:
        running = executor()
        if now:
            # Dead workers are a case that the executor handles; asking it to kill them races with late results.
            for process in list(running._processes.values()):
                kill_process_tree(process)
        running.shutdown(wait=True)

    return _Place(lambda *call: executor().submit(*call), close, (TerminatedWorkerError,))


def _dask(address: str) -> _Place:
    """Workers of a Dask scheduler; not by joblib, which waits forever for a task whose workers died."""
    from distributed import Client, KilledWorker
    from distributed.comm import CommClosedError

    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError):
        raise UserError(
            f"No Dask scheduler answers at {address}; start one with 'dask scheduler' or correct the address."
        ) from None
    if not client.nthreads():
        log.warning("The Dask scheduler at %s has no workers yet; start some with 'dask worker %s'.", address, address)
    submit = client.get_executor(pure=False).submit
    died = (KilledWorker, CommClosedError)
    return _Place(lambda *call: submit(_in_own_process, bytes(dumps(call))), lambda now: client.close(), died)


def _ray() -> _Place:
    """The cluster that RAY_ADDRESS names or that runs on this machine, else a new one on this machine."""
    import ray
    from ray import exceptions as gone

    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError:
            raise UserError(
                "No Ray cluster answers at RAY_ADDRESS; correct it, or unset it to start one here."
            ) from None
    remote = ray.remote(_in_own_process).remote
    died = (gone.WorkerCrashedError, gone.NodeDiedError, gone.OutOfMemoryError, gone.ObjectLostError)
    return _Place(lambda *call: remote(bytes(dumps(call))).future(), lambda now: ray.shutdown() if ours else None, died)


_own = threading.local()


def _in_own_process(call: bytes) -> Any:
    """On a worker of Dask or Ray: the call's results, or what it raised (Ray would wrap it); None if its process died.

    Each of the worker's threads has one process, so that it is known whose group ended it. That process has one thread for
    numeric libraries, as processes on the caller's machine do.
    """
    process: Any = current_process()
    process._config["daemon"] = False  # Dask's nanny forbids its workers to start processes
    if getattr(_own, "executor", None) is None:
        _own.executor = ProcessPoolExecutor(max_workers=1, timeout=60, env=_THREADS, initializer=_start_worker)
    try:
        return _own.executor.submit(_call, call).result()
    except TerminatedWorkerError:
        _own.executor = None
        return None
    except Exception as error:
        return error


def _call(call: bytes) -> Any:
    function, shared, group = pickle.loads(call)
    return function(shared, group)


def _nothing(shared: Any, group: list[Any]) -> list[Any]:
    """Runs in a worker: what it imports for this it has for all that comes after."""
    return []


class WorkerPool:
    """A pool of solver processes, started when first used and closed with the `with` block.

    `parallel`: "local" (`jobs` processes on this machine), the address of a Dask scheduler, or "ray"; results are the same.
    """

    def __init__(self, jobs: int | None = None, parallel: str = "local") -> None:
        check_parallel(parallel)
        self.jobs = jobs or int(cpu_count())
        self.parallel = parallel
        self._place: _Place | None = None

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(now=kind is not None)

    def close(self, *, now: bool = False) -> None:
        """End the workers of this pool; with `now`, without waiting for what they are doing."""
        place, self._place = self._place, None
        if place is not None:
            place.close(now)

    def _open(self) -> _Place:
        if self._place is None:
            known = {"local": lambda: _local(self.jobs), "ray": _ray}
            self._place = known.get(self.parallel, lambda: _dask(self.parallel))()
        return self._place

    def begin(self) -> Future[Any]:
        """Start the workers beside what is done here; the future is done when one of them answers."""
        with _interrupts_held_back():
            return self._open().submit(_nothing, None, [])

    def map(self, function: Work, shared: Any, groups: Sequence[Sequence[Item]]) -> Iterator[tuple[Item, Any]]:
        """Yield `(item, result)` in order of completion, for `function(shared, group)` returning one result per item.

        A result is None where the item killed its worker. Any other exception of `function` is raised here; Ctrl-C ends the
        workers before it is passed on.
        """
        try:
            yield from self._attempt(function, shared, [list(group) for group in groups])
        except BaseException:
            self.close(now=True)
            raise

    def _attempt(self, function: Work, shared: Any, groups: list[list[Item]]) -> Iterator[tuple[Item, Any]]:
        running: dict[Future[Any], list[Item]] = {}
        lost: list[list[Item]] = []
        with _interrupts_held_back():
            place = self._open()
            try:
                for group in groups:
                    running[place.submit(function, shared, group)] = group
            except place.died:
                lost += groups[len(running) :]
        for future in as_completed(running):
            group = running.pop(future)
            try:
                results = future.result()
            except CancelledError:
                raise UserError(f"The scheduler at {self.parallel} went away; start it and try again.") from None
            except place.died:
                results = None
            if results is None:
                lost.append(group)
            elif isinstance(results, Exception):
                raise results
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
        half, most = (len(items) + 1) // 2, max(map(len, lost))
        for part in (items[:half], items[half:]):
            if part:
                yield from self._attempt(function, shared, split(part, max(self.jobs, math.ceil(len(part) / most))))


def split(items: Sequence[Item], parts: int) -> list[list[Item]]:
    """At most `parts` groups of nearly equal length, in order."""
    count = max(1, min(parts, len(items)))
    return [list(items[i * len(items) // count : (i + 1) * len(items) // count]) for i in range(count)]


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
