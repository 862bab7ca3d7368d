"""Pictures of a run: how wide its bounds are, what they certify, and where they leave a prediction open.

Every function draws into the `Axes` it is given, or into a figure of its own, and returns the `Axes`. Figures are made without
pyplot, so that nothing stays open. Where a colour carries the meaning, a shape or a word says it as well. What is no number
(diverged bounds) is left out or said in words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from mibp_cert.certify import ABSTAIN, CertifiedRun, Predictions, Ranges
from mibp_cert.data import Dataset
from mibp_cert.engines import prediction_named
from mibp_cert.errors import UserError
from mibp_cert.nets import steps_per_epoch
from mibp_cert.report import drawing
from mibp_cert.report.drawing import ATTACKED, CERTIFIED, CLEAN, OPEN, dot, finite, legend, short, spread
from mibp_cert.report.terminal import certified_accuracy

POINTS = 400
"""Most data points drawn in a picture."""
GRID_CHUNK = 600
"""Grid points bounded at once: memory stays small."""


def plot_radius(run: CertifiedRun, ax: Axes | None = None) -> Axes:
    """Mean and largest radius of the parameters' bounds after each epoch and, dashed, the certified validation accuracy."""
    ax = drawing.new_axes(ax)
    ax.set(xlabel="epoch", ylabel="radius of the bounds")
    if not run.history:
        return drawing.say(ax, "no epoch was finished")
    epochs = [record.epoch for record in run.history]
    largest, mean = (finite(getattr(record, key) for record in run.history) for key in ("radius_max", "radius_mean"))
    handles = ax.plot(epochs, largest, color=ATTACKED, marker="s", markersize=4, label="largest radius")
    handles += ax.plot(epochs, mean, color=CERTIFIED, marker="o", markersize=4, label="mean radius")
    drawing.log_axis(ax, np.concatenate([largest, mean]))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(axis="y", alpha=0.25)
    per_epoch = steps_per_epoch(len(run.train), run.batch_size)
    if run.select.rule != "last":
        handles.append(ax.axvline(run.steps / per_epoch, color=OPEN, linestyle=":", label="epoch chosen"))
    if run.diverged is not None:
        handles.append(ax.axvline(run.diverged / per_epoch, color=ATTACKED, linestyle=":", label="bounds diverged"))
    validated = [record.validation_certified for record in run.history]
    if any(value is not None for value in validated):
        right, label = ax.twinx(), "certified accuracy"
        shares = [math.nan if value is None else 100 * value for value in validated]
        handles += right.plot(epochs, shares, color=CLEAN, linestyle="--", marker="^", markersize=4, label=label)
        right.set(ylim=(0, 105), ylabel="validation accuracy (%)")
    legend(ax, handles)
    return ax


def plot_accuracy(run: CertifiedRun, ax: Axes | None = None) -> Axes:
    """Bars: clean, attacked and certified accuracy on the test points; for a regression, the mean absolute errors."""
    ax = drawing.new_axes(ax, (drawing.SIZE[0], 1.7))
    if isinstance(_answer(run), Ranges):
        scores = [run.errors.get(f"{name}_error") for name in ("nominal", "attacked", "certified")]
        label, words = f"mean absolute error ({target_name(run)})", "{:.3g}"
        end = max((score for score in scores if score is not None), default=0.0) or 1.0
    else:
        shares = (run.nominal_accuracy, run.attacked_accuracy, certified_accuracy(run))
        scores = [None if share is None else 100 * share for share in shares]
        label, words, end = "accuracy on the test points (%)", "{:.1f} %", 100.0
    ax.set_xlabel(label)
    names, colours = ("clean", "under attack", "certified"), (CLEAN, ATTACKED, CERTIFIED)
    bars = list(zip(names, scores, colours, strict=True))
    _bars(ax, bars if run.attack is not None else bars[::2], words, end, height=0.65, room=1.2)
    ax.set_xticks([tick for tick in ax.get_xticks() if tick <= end])
    return ax


def _bars(
    ax: Axes, bars: Sequence[tuple[str, float | None, str]], words: str, end: float, *, height: float, room: float
) -> None:
    """Names, lengths (None: unknown) and colours; `words` formats a length, `end` is the longest, `room` what text needs."""
    for place, (_, length, colour) in enumerate(bars):
        ax.barh(place, length or 0.0, color=colour, height=height)
        text = "unknown" if length is None else words.format(length)
        ax.text((length or 0.0) + 0.015 * end, place, text, va="center")
    ax.set_yticks(range(len(bars)), [name for name, *_ in bars])
    ax.set(xlim=(0, room * end), ylim=(len(bars) - 0.5, -0.5))


def plot_regions(run: CertifiedRun, ax: Axes | None = None, resolution: int = 60) -> Axes:
    """Two features: where each class is certified, where the answer is *abstain*, and the training and test points.

    Regions are those of inputs that are themselves right. Where the run asks a solver about each point, regions are bounded by
    intervals instead, which may abstain more often: thousands of points would take hours.
    """
    if not has_regions(run.train):
        raise UserError("Regions can be drawn for classes and two numeric columns only.")
    if resolution < 2:
        raise UserError(f"The resolution must be at least 2, got {resolution}.")
    ax, columns = drawing.new_axes(ax, (drawing.SIZE[0], 3.6)), run.train.columns
    parts = [run.train, run.data.test] if run.data.test is not None else [run.train]
    every = np.concatenate([part.x for part in parts])
    low, high = every.min(axis=0), every.max(axis=0)
    pad = np.where(high > low, 0.08 * (high - low), 1.0)
    lines = np.linspace(low - pad, high + pad, resolution)
    grid = np.stack(np.meshgrid(*lines.T), axis=-1).reshape(-1, 2)
    method = "interval" if prediction_named(run.prediction).solves else run.prediction
    chunks = [grid[start : start + GRID_CHUNK] for start in range(0, len(grid), GRID_CHUNK)]
    found = np.concatenate([run.certify(chunk, method).classes for chunk in chunks]).reshape(resolution, resolution)
    shift, scale = np.array([(column.shift, column.scale) for column in columns]).T
    looks = [drawing.class_look(k) for k in range(len(run.train.classes))]
    for k, (colour, _) in [(ABSTAIN, (OPEN, "")), *enumerate(looks)]:
        inside = found == k
        if inside.any():
            # One filled outline per class: contours over the class numbers would paint a class between two others.
            units = (shift + scale * lines).T
            ax.contourf(*units, inside.astype(float), levels=[0.5, 1.5], colors=[colour], alpha=0.22)
    for part in parts:
        shown = spread(len(part), POINTS)
        for k, (colour, marker) in enumerate(looks):
            across, up = (shift + scale * part.x[shown][part.y[shown] == k]).T
            face, edge, size = (colour, "white", 26) if part is run.train else ("none", colour, 14)
            ax.scatter(across, up, s=size, marker=marker, facecolors=face, edgecolors=edge, linewidths=0.6)
    named = zip(run.train.classes[:10], looks, strict=False)
    handles: list[Any] = [dot(f"class {short(name, 18)}", *look) for name, look in named]
    handles.append(Patch(facecolor=OPEN, alpha=0.3, label="abstain"))
    handles += [dot("training", OPEN, "o"), dot("test", OPEN, "o", markerfacecolor="none")][: len(parts)]
    ax.set(xlabel=_column_label(columns[0].name), ylabel=_column_label(columns[1].name))
    legend(ax, handles)
    return ax


def plot_margins(run: CertifiedRun, ax: Axes | None = None, most: int = 60) -> Axes:
    """One bar per test point, from the proven lower to the proven upper margin of its class; above 0 it is certified.

    For a regression: the proven range of each output, the part of it that attacks reach, and the target. Where there are more
    than `most` points, an even choice of the sorted ones is shown.
    """
    ax = drawing.new_axes(ax)
    answer = _answer(run)
    if isinstance(answer, Ranges):
        return _plot_ranges(run, answer, ax, most)
    shown = _in_order(ax, np.nan_to_num(answer.margin, nan=-np.inf), "lower margin", most)
    low, high = answer.margin[shown], answer.margin_high[shown]
    ax.set_ylabel("margin of the class")
    ends = np.concatenate([low, high])
    known = ends[np.isfinite(ends)]
    if not len(known):
        return drawing.say(ax, "no margin is known" + ("" if run.reached else ": the bounds diverged"))
    states, handles = point_states(run)[shown], []
    floor, top = min(known.min(), 0.0), max(known.max(), 0.0)
    styles = {"certified": (CERTIFIED, "o"), "attack succeeded": (ATTACKED, "x"), "open": (OPEN, "_")}
    for name, (colour, marker) in styles.items():
        mine = np.flatnonzero(states == name)
        # An infinite end is drawn to the picture's edge: it has no place of its own.
        bottom = np.nan_to_num(low[mine], nan=floor, posinf=top, neginf=floor)
        end = np.nan_to_num(high[mine], nan=top, posinf=top, neginf=floor)
        ax.vlines(mine, bottom, end, colors=colour, linewidth=2.2)
        ax.scatter(mine, bottom, color=colour, marker=marker, s=14, linewidths=1.2)
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=5, label=f"{name} ({len(mine)})"))
    ax.axhline(0, color=OPEN, linewidth=0.9)
    drawing.wide_axis(ax, known)
    legend(ax, handles)
    return ax


def _plot_ranges(run: CertifiedRun, answer: Ranges, ax: Axes, most: int) -> Axes:
    assert run.data.test is not None
    assert run.data.tested.targets is not None
    targets = run.train.in_units(run.data.tested.targets[:, 0])
    shown = _in_order(ax, targets, "target", most)
    place = np.arange(len(shown))
    ax.set_ylabel(f"output ({target_name(run)})")
    handles: list[Any] = []
    low, high = (end[shown, 0] for end in (answer.outputs.low, answer.outputs.high))
    known = np.isfinite(low) & np.isfinite(high)
    if known.any():
        ax.vlines(place[known], low[known], high[known], colors=CERTIFIED, linewidth=3.2, alpha=0.55)
        handles.append(Line2D([], [], color=CERTIFIED, linewidth=3.2, alpha=0.55, label="proven range"))
    if run.attack is not None:
        reached = run.attack.outputs
        low, high = (finite(end[shown, 0]) for end in (reached.low, reached.high))
        ax.vlines(place, low, high, colors=ATTACKED, linewidth=1.4)
        handles.append(Line2D([], [], color=ATTACKED, linewidth=1.4, label="reached by attacks"))
    ax.scatter(place, targets[shown], color=CLEAN, marker="D", s=9, zorder=3)
    handles.append(dot("target", CLEAN, "D", markersize=4))
    legend(ax, handles)
    return ax if known.any() else drawing.say(ax, "no range is known")


def plot_confusion(run: CertifiedRun, ax: Axes | None = None) -> Axes:
    """Test points by true class (rows) and certified class, or *abstain* (columns); the counts stand in the cells."""
    answer = _answer(run)
    if not isinstance(answer, Predictions) or run.data.test is None:
        raise UserError("This run is a regression: it has no classes to confuse.")
    ax = drawing.new_axes(ax)
    names = [short(name, 12) for name in run.train.classes]
    n, y = len(names), run.data.tested.y
    column = np.where(answer.classes == ABSTAIN, n, answer.classes)
    counts = np.zeros((n, n + 1), dtype=np.intp)
    np.add.at(counts, (y, column), 1)
    size = min(10.0, 80.0 / (n + 1))
    for (i, j), count in np.ndenumerate(counts):
        colour = OPEN if j == n else (CERTIFIED if i == j else ATTACKED)
        # At most 0.45, so that the count stays readable on a light and on a dark page.
        share = 0.05 + 0.4 * count / max(1, counts[i].sum())
        ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=colour, alpha=share, linewidth=0))
        ax.text(j, i, str(count), ha="center", va="center", fontsize=size)
    ax.set_xticks(range(n + 1), [*names, "abstain"])
    if n > 3 or max(map(len, names)) > 8:
        ax.tick_params(axis="x", labelrotation=45)
    ax.set_yticks(range(n), names)
    ax.set(xlim=(-0.5, n + 0.5), ylim=(n - 0.5, -0.5), xlabel="certified class", ylabel="true class")
    return ax


def plot_blame(blame: Any, ax: Axes | None = None, most: int = 10) -> Axes:
    """Bars: the training rows with the largest share of the uncertainty, in per cent."""
    rows = blame.rows.head(most)
    ax = drawing.new_axes(ax, (drawing.SIZE[0], 0.9 + 0.25 * max(1, len(rows))))
    ax.set_xlabel("share of the uncertainty (%)")
    if not len(rows):
        return drawing.say(ax, "no row contributes")
    named = zip(rows["row"], rows["cells"], strict=True)
    labels = [f"row {short(row, 12)}: {short(cells, 22)}" for row, cells in named]
    effects = [effect if math.isfinite(effect) else None for effect in rows["effect"]]
    end = max((effect for effect in effects if effect is not None), default=0.0)
    bars = [(label, effect, CERTIFIED) for label, effect in zip(labels, effects, strict=True)]
    _bars(ax, bars, "{:.3g}", max(end, 1e-12), height=0.7, room=1.25)
    return ax


def point_states(run: CertifiedRun) -> NDArray[np.str_]:
    """Each test point: "certified", "attack succeeded" (a trained model gives another class) or "open"."""
    assert run.test is not None
    states = np.where(run.test.certified, "certified", "open").astype("U16")
    # Attacks train as far as the bounds reach; where those diverged before the end, they say nothing about its models.
    if run.attack is not None and run.nominal is not None and run.reached:
        changed = (run.attack.classes != run.nominal[None, :]).any(axis=0)
        states[changed & ~run.test.certified] = "attack succeeded"
    return states


def target_name(run: CertifiedRun) -> str:
    """What a regression predicts, in a word or two."""
    return "units of the target" if run.train.target is None else short(run.train.target.name, 24)


def has_regions(data: Dataset) -> bool:
    """Can `plot_regions` draw these data?"""
    return data.targets is None and len(data.columns) == 2 and not any(column.categorical for column in data.columns)


def _answer(run: CertifiedRun) -> Predictions | Ranges:
    answer = run.test if run.test is not None else run.test_ranges
    if answer is None:
        raise UserError("This run has no test points: hand in a Split to see what is certified about predictions.")
    return answer


def _in_order(ax: Axes, values: drawing.Floats, what: str, most: int) -> NDArray[np.intp]:
    """At most so many test points in the order of these values; the axis says so."""
    order = np.argsort(values, kind="stable")
    shown = order[spread(len(order), most)]
    cut = "" if len(shown) == len(order) else f" ({len(shown)} of {len(order)} shown)"
    ax.set(xlabel=f"test points by {what}{cut}", xticks=[])
    return shown


def _column_label(name: str) -> str:
    return f"column {name}" if name.isdigit() else short(name, 40)
