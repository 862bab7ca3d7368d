"""Bars with the time left, for the command line and for `verbose`."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mibp_cert.certify import Callbacks, EpochRecord


def progress_bars(quiet: bool, *, transient: bool = True) -> Progress:
    """Bars on the terminal that vanish when they are done if `transient`; nothing at all if `quiet`."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True, quiet=quiet), transient=transient, disable=quiet)


def show_training(progress: Progress, engine: str, steps: int | None = None) -> Callbacks:
    """Callbacks that move a bar for the training's steps and one for the programs within a step."""
    bar = progress.add_task(f"{engine}: training steps", total=steps)
    programs = progress.add_task("programs in this step", total=None, visible=False)

    def on_program(done: int, total: int) -> None:
        progress.update(programs, completed=done, total=total, visible=True)

    def on_step(done: int, total: int) -> None:
        progress.update(bar, completed=done, total=total)

    def on_epoch(record: EpochRecord) -> None:
        progress.update(bar, description=f"{engine}: epoch {record.epoch}")

    def on_stage(name: str) -> None:
        progress.update(bar, description=f"{engine}: {name}", total=None)
        progress.update(programs, visible=False)

    return Callbacks(on_program, on_step, on_epoch, on_stage)
