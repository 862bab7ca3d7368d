"""The frontier: clean against certified on validation rows, by `C` or by epoch, and the flags that pick each point."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from mibp_cert.card import number, percent
from mibp_cert.certify import CertifiedRun
from mibp_cert.certify.choice import Judge
from mibp_cert.nets import Training, steps_per_epoch
from mibp_cert.report.lines import Lines
from mibp_cert.report.plots import ATTACKED, CERTIFIED, INK, OPEN, legend, spread
from mibp_cert.studies.choose import Choice

PENALTIES, EPOCHS = "C", "epoch"
"""What a frontier goes over."""
LISTED = 12
"""Points up to which all are listed; of more, the best ones."""
NAMED = 6
"""Most points that have their name in the picture; of more, the best ones have."""


@dataclass(frozen=True)
class Point:
    """A candidate: its figures on validation rows, and the flags that pick it."""

    name: str
    clean: float
    certified: float | None
    why: str = ""
    """Why it was not bounded."""
    chosen: bool = False
    best: bool = False
    """No other point is better in both figures."""
    flags: str = ""
    """What picks it; empty where another point is better in both, or no flags can."""


@dataclass(frozen=True)
class Frontier:
    """All candidates, in their order."""

    what: str
    judge: Judge
    points: tuple[Point, ...]

    @property
    def figure(self) -> str:
        """What is compared."""
        return self.judge.figure


def frontier_of(run: CertifiedRun, choice: Choice | None = None) -> Frontier | None:
    """By `C`, where it was chosen; by epoch, where a network was validated. None: there is nothing to compare."""
    if choice is not None:
        return of_choice(choice)
    return None if run.fitted is not None else _of_epochs(run)


def of_choice(choice: Choice) -> Frontier:
    found = choice.candidates
    best = choice.judge.frontier([(one.clean, one.certified) for one in found])
    points = (
        Point(
            f"{one.C:g}",
            one.clean,
            one.certified,
            one.why,
            choice.C == one.C,
            i in best,
            f"--C {one.C:g}" * (i in best),
        )
        for i, one in enumerate(found)
    )
    return Frontier(PENALTIES, choice.judge, tuple(points))


def _of_epochs(run: CertifiedRun) -> Frontier | None:
    training = run.training
    seen = [(r, clean) for r in run.history if (clean := r.validation_nominal) is not None]
    if run.data.validation is None or len(seen) < 2 or not isinstance(training, Training):
        return None
    judge = Judge.of(run.data, run.select.least_accuracy)
    best = judge.frontier([(clean, _proven(r.validation_certified)) for r, clean in seen])
    # Rates that depend on how many epochs there are make a shorter training another one.
    same = isinstance(training.schedule, str) and training.schedule != "cosine"
    per_epoch = steps_per_epoch(len(run.train), run.batch_size)
    points = (
        Point(
            str(r.epoch),
            clean,
            _proven(r.validation_certified),
            chosen=r.epoch * per_epoch == run.steps,
            best=i in best,
            flags=f"--epochs {r.epoch} --select last" if i in best and same else "",
        )
        for i, (r, clean) in enumerate(seen)
    )
    return Frontier(EPOCHS, judge, tuple(points))


def _proven(figure: float | None) -> float | None:
    """A certified figure; of numbers it may be unknown."""
    return None if figure is None or not math.isfinite(figure) else figure


def frontier_lines(frontier: Frontier, most: int | None = None) -> Lines:
    """A line for each point; of more than `most` those that are chosen or best."""
    shown, points = number if frontier.judge.numbers else percent, frontier.points
    if most is not None and len(points) > most:
        points = tuple(p for p in points if p.chosen or p.best)
    head = (frontier.what, f"clean\n{frontier.figure}", f"certified\n{frontier.figure}", "case", "pick it with")
    rows = [
        (
            p.name,
            shown(p.clean),
            "–" if p.certified is None else shown(p.certified),
            "chosen" if p.chosen else p.why,
            p.flags,
        )
        for p in points
    ]
    return Lines(head, rows)


def plot_frontier(frontier: Frontier, ax: Axes) -> None:
    """Clean against certified figures; the chosen point is a star, and the baseline a line."""
    unit = 1.0 if frontier.judge.numbers else 100.0
    known = [(unit * p.clean, unit * p.certified, p) for p in frontier.points if p.certified is not None]
    best = np.array(sorted((x, y) for x, y, p in known if p.best))
    others = np.array([(x, y) for x, y, p in known if not p.best and not p.chosen])
    handles: list[Artist] = [*ax.plot(*best.T, color=CERTIFIED, marker="o", markersize=5, label="best ones")]
    if len(others):
        handles.append(
            ax.scatter(others[:, 0], others[:, 1], s=16, facecolors="none", edgecolors=OPEN, label="other ones")
        )
    for x, y, p in known:
        if p.chosen:
            name = f"chosen: {frontier.what} {p.name}"
            handles.append(ax.scatter([x], [y], s=130, marker="*", color=ATTACKED, zorder=3, label=name))
    every = len(known) <= NAMED
    named = sorted((x, y, p.name) for x, y, p in known if (p.best or every) and not p.chosen)
    for i in spread(len(named), NAMED):
        x, y, name = named[i]
        ax.annotate(name, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8)
    handles.append(ax.axvline(unit * frontier.judge.baseline, color=INK, linestyle=":", label="baseline"))
    mark = "" if frontier.judge.numbers else " (%)"
    ax.set(xlabel=f"clean {frontier.figure}{mark}", ylabel=f"certified {frontier.figure}{mark}")
    ax.margins(0.12)
    ax.grid(alpha=0.2)
    legend(ax, handles)
