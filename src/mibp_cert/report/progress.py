"""How far a run is, and about how long it will still take: bars on a terminal, and a line now and then where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mibp_cert.certify import Callbacks
from mibp_cert.report.console import Terminal

FIRST = 5.0
"""Seconds until the first line."""
EVERY, SHARE = 10.0, 0.2
"""Seconds until the next one, at least; later on this share of all that have passed."""
ATTACK = "attacking"
"""The stage that counts datasets."""
Clock = Callable[[], float]


def progress_bars(quiet: bool, *, transient: bool = True) -> Progress:
    """Bars on the terminal that vanish when they are done if `transient`; nothing at all if `quiet`."""
    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Terminal(stderr=True, quiet=quiet), transient=transient, disable=quiet)


class TimeLeft:
    """About how many seconds are left, by what the work so far took; a count that starts again is other work."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        self._start = self._last = self._clock()
        self._done = 0

    def after(self, done: int, total: int) -> float | None:
        """After so much of all the work; None: nothing is known yet."""
        now = self._clock()
        if done < self._done:
            self._start = self._last
        self._done, self._last = done, now
        return (total - done) * (now - self._start) / done if done > 0 else None


class Lines:
    """A line now and then, for those who look at a file."""

    def __init__(self, say: Callable[[str], None], clock: Clock = time.monotonic) -> None:
        self._say, self._clock, self._start = say, clock, clock()
        self._next = self._start + FIRST

    def heard(self, what: str, count: str, left: float | None) -> None:
        """Say it, if it is time."""
        now = self._clock()
        if now < self._next:
            return
        passed = now - self._start
        self._next = now + max(EVERY, SHARE * passed)
        rest = "" if left is None else f", about {duration(left)} left"
        self._say(f"{what}: {count}, {duration(passed)} so far{rest}")


def lines(console: Console) -> Lines:
    """Lines on this console; none on a terminal, which has bars, and none if it is quiet."""
    silent = console.is_terminal or console.quiet

    def say(words: str) -> None:
        if not silent:
            console.print(words, highlight=False, markup=False, soft_wrap=True)

    return Lines(say)


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(0.2), duration(95), duration(7300)
    ('1 s', '1 min 35 s', '2 h 1 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def show_sweep(progress: Progress, what: str) -> Callable[[int, int], None]:
    """`hear(done, total)` for runs of a study: a bar, or lines."""
    bar, left, said = progress.add_task(what, total=None), TimeLeft(), lines(progress.console)

    def hear(done: int, total: int) -> None:
        progress.update(bar, completed=done, total=total)
        said.heard(what, f"{done} of {total} runs", left.after(done, total))

    return hear


def show_training(progress: Progress, engine: str, *, fit: bool = False) -> Callbacks:
    """Callbacks that move a bar for the training's steps and one for the programs within a step; a fit is one step, which is no
    epoch, and whose bounds (or datasets, of an attack) are counted. Without a terminal, they write lines."""
    first, unit = ("bounding the minimum", "bounds") if fit else ("training steps", "programs")
    steps = progress.add_task(f"{engine}: {first}", total=None)
    programs = progress.add_task(f"{unit} in this step", total=None, visible=False)
    said, counted, of_programs, of_steps = lines(progress.console), unit, TimeLeft(), TimeLeft()

    def on_program(done: int, total: int) -> None:
        left, again = of_programs.after(done, total), done < progress.tasks[programs].completed
        if again:
            progress.reset(programs)
        progress.update(programs, completed=done, total=total, visible=True)
        about = "about " if fit and counted == unit else ""
        said.heard(progress.tasks[steps].description, f"{done} of {about}{total} {counted}", left)

    def on_step(done: int, total: int) -> None:
        progress.update(steps, completed=done, total=total)
        left = of_steps.after(done, total)
        if not fit:
            said.heard(progress.tasks[steps].description, f"{done} of {total} steps", left)

    def on_stage(name: str) -> None:
        nonlocal counted
        counted = "datasets" if name == ATTACK else unit
        of_programs.restart()
        progress.update(steps, description=f"{engine}: {name}", total=None)
        progress.reset(programs, description=f"{counted} in this step", visible=False)

    return Callbacks(
        on_program,
        on_step,
        lambda record: None if fit else progress.update(steps, description=f"{engine}: epoch {record.epoch}"),
        on_stage,
        lambda sentence: progress.console.print(sentence, markup=False, highlight=False, soft_wrap=True),
    )
