"""Pictures of a run: how wide its bounds are, what they certify, and where they leave a prediction open.

Every function draws into the `Axes` it is given; `inline_svg` makes that a part of a web page, without pyplot, so that nothing
stays open. Where a colour carries the meaning, a shape or a word says it as well. What is no number (diverged bounds) is left out
or said in words.

Colours are those of Okabe and Ito, told apart by colour-blind people, too. In a web page every one of them is a variable of the
page's style, so that one picture serves light and dark.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from mibp_cert.certify import ABSTAIN, CertifiedRun
from mibp_cert.data import Dataset, Task
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.nets import steps_per_epoch
from mibp_cert.studies.compare import changed_by_attack, figures

INK, PAPER = "#1d2430", "#ffffff"
CLEAN, ATTACKED, CERTIFIED, OPEN = "#009e73", "#d55e00", "#0072b2", "#7f8791"
CLASS_COLOURS = (CERTIFIED, "#e69f00", CLEAN, "#cc79a7", "#56b4e9", ATTACKED, "#9a8700")
MARKERS = "os^DvPX*"
DARK = {
    INK: "#e6e9ee",
    PAPER: "#14181f",
    CLEAN: "#2fc79b",
    ATTACKED: "#ff8a4c",
    CERTIFIED: "#4aa8e8",
    OPEN: "#939ca8",
    "#e69f00": "#f0b73c",
    "#cc79a7": "#e29cc4",
    "#56b4e9": "#8fd3ff",
    "#9a8700": "#d6c23a",
}
"""Every colour of a picture on a light page, with the one that takes its place on a dark page."""
SIZE = (4.4, 2.9)
"""Inches; small, so that a picture as wide as a telephone still has readable text."""
_INKED = ("text.color", "xtick.color", "ytick.color", "axes.edgecolor", "axes.labelcolor", "grid.color")
_STYLE: dict[Any, Any] = {
    **dict.fromkeys(_INKED, INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    "font.size": 10,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
}
POINTS = 400
"""Most data points drawn in a picture of regions."""
BARS = 60
"""Most test points drawn in a picture of margins or ranges: an even choice of the sorted ones."""
BLAMED = 10
"""Most training rows drawn in a picture of blame."""
RESOLUTION = 60
"""Points of the grid in each direction that finds the certified regions."""
GRID_CHUNK = 600
"""Grid points bounded at once: memory stays small."""


def colour_variable(colour: str) -> str:
    """Name of the style variable that stands for a colour."""
    return f"--c{colour[1:]}"


def inline_svg(draw: Callable[[Any, Axes], None], about: Any, label: str, height: float = SIZE[1]) -> str:
    """A picture as an `<svg>` element for a page whose style sets the variables of `colour_variable`.

    Its ids begin with the name of the function that draws it, so that pictures do not mix. The caller's own style sheets do not
    matter, the same picture gives the same bytes, and nothing refers to the network.
    """
    target, key = io.StringIO(), draw.__name__
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, "svg.hashsalt": key})
        # Text stays text: a letter that Matplotlib's font lacks is drawn by the browser.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(SIZE[0], height), layout="constrained")
        draw(about, figure.add_subplot())
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(target, format="svg", transparent=True, metadata=nothing)
    text = target.getvalue()
    # What comes before the element, and rules that would reach beyond it, are not for a page.
    text = re.sub(r"<style[^>]*>.*?</style>|<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    head = f'<svg viewBox="{box[1]}" role="img" aria-label="{escape(label)}">'
    return head + re.sub(r"<[^<>]*>", lambda tag: _own_tag(tag[0], key), text[text.index(">") + 1 :])


def _own_tag(tag: str, key: str) -> str:
    """A tag with ids of its own and colours by variable; text between tags is left as it is."""
    for before in (' id="', 'href="#', "url(#"):
        tag = tag.replace(before, f"{before}{key}-")
    return re.sub(r"#[0-9a-f]{6}\b", lambda c: f"var({colour_variable(c[0])})" if c[0] in DARK else c[0], tag)


def plot_radius(run: CertifiedRun, ax: Axes) -> None:
    """Mean and largest radius of the parameters' bounds after each epoch and, dashed, the certified validation accuracy."""
    ax.set(xlabel="epoch", ylabel="radius of the bounds")
    epochs = [record.epoch for record in run.history]
    radii = np.array([(record.radius_max, record.radius_mean) for record in run.history])
    largest, mean = np.where(np.isfinite(radii), radii, np.nan).T
    handles = ax.plot(epochs, largest, color=ATTACKED, marker="s", markersize=4, label="largest radius")
    handles += ax.plot(epochs, mean, color=CERTIFIED, marker="o", markersize=4, label="mean radius")
    _log_axis(ax, radii[np.isfinite(radii)])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(axis="y", alpha=0.25)
    per_epoch = steps_per_epoch(len(run.train), run.batch_size)
    if run.select.rule != "last":
        handles.append(ax.axvline(run.steps / per_epoch, color=OPEN, linestyle=":", label="epoch chosen"))
    if run.diverged is not None:
        handles.append(ax.axvline(run.diverged / per_epoch, color=ATTACKED, linestyle=":", label="bounds diverged"))
    validated = [record.validation_certified for record in run.history]
    if any(value is not None for value in validated):
        numbers = run.train.task is Task.NUMBERS
        right, label = ax.twinx(), "certified error" if numbers else "certified accuracy"
        shown = [math.nan if value is None else value if numbers else 100 * value for value in validated]
        handles += right.plot(epochs, shown, color=CLEAN, linestyle="--", marker="^", markersize=4, label=label)
        if numbers:
            right.set_ylabel("mean absolute error (validation)")
        else:
            right.set(ylim=(0, 105), ylabel="validation accuracy (%)")
    legend(ax, handles)


def plot_accuracy(run: CertifiedRun, ax: Axes) -> None:
    """Bars: clean, attacked and certified accuracy on the test points; for a regression, the mean absolute errors."""
    found = figures(run)
    bars = [("clean", found["clean"], CLEAN), ("certified", found["certified"], CERTIFIED)]
    if run.attack is not None:
        bars.insert(1, ("under attack", found["attacked"], ATTACKED))
    label, words, end = "accuracy on the test points (%)", "{:.1f} %", 100.0
    if run.test is None:
        label, words = f"mean absolute error ({_target_name(run)})", "{:.3g}"
        end = max(score or 0.0 for _, score, _ in bars) or 1.0
    ax.set_xlabel(label)
    _bars(ax, bars, words, end)
    ax.set_xticks([tick for tick in ax.get_xticks() if tick <= end])


def _bars(ax: Axes, bars: Sequence[tuple[str, float | None, str]], words: str, end: float) -> None:
    """Names, lengths (None: unknown) and colours; `words` formats a length, `end` is the longest."""
    for place, (_, length, colour) in enumerate(bars):
        ax.barh(place, length or 0.0, color=colour, height=0.7)
        text = "unknown" if length is None else words.format(length)
        ax.text((length or 0.0) + 0.015 * end, place, text, va="center")
    ax.set_yticks(range(len(bars)), [name for name, *_ in bars])
    ax.set(xlim=(0, 1.25 * end), ylim=(len(bars) - 0.5, -0.5))


def plot_regions(run: CertifiedRun, ax: Axes) -> None:
    """Two features: where each class is certified, where the answer is *abstain*, and the training and test points.

    Regions are those of inputs that are themselves right. Where the run asks a solver about each point, a quicker engine bounds
    the regions instead, which may abstain more often: thousands of points would take hours.
    """
    columns = run.train.columns
    parts = [run.train, run.data.test] if run.data.test is not None else [run.train]
    every = np.concatenate([part.x for part in parts])
    low, high = every.min(axis=0), every.max(axis=0)
    pad = np.where(high > low, 0.08 * (high - low), 1.0)
    lines = np.linspace(low - pad, high + pad, RESOLUTION)
    grid = np.stack(np.meshgrid(*lines.T), axis=-1).reshape(-1, 2)
    method = run.request.quick
    chunks = [grid[start : start + GRID_CHUNK] for start in range(0, len(grid), GRID_CHUNK)]
    found = np.concatenate([run.certify(chunk, method).classes for chunk in chunks]).reshape(RESOLUTION, RESOLUTION)
    shift, scale = np.array([(column.shift, column.scale) for column in columns]).T
    looks = list(zip(range(len(run.train.classes)), cycle(CLASS_COLOURS), cycle(MARKERS)))
    for k, colour, _ in [(ABSTAIN, OPEN, ""), *looks]:
        inside = found == k
        if inside.any():
            # One filled outline per class: contours over the class numbers would paint a class between two others.
            units = (shift + scale * lines).T
            ax.contourf(*units, inside.astype(float), levels=[0.5, 1.5], colors=[colour], alpha=0.22)
    for part in parts:
        shown = spread(len(part), POINTS)
        for k, colour, marker in looks:
            across, up = (shift + scale * part.x[shown][part.y[shown] == k]).T
            face, edge, size = (colour, "white", 26) if part is run.train else ("none", colour, 14)
            ax.scatter(across, up, s=size, marker=marker, facecolors=face, edgecolors=edge, linewidths=0.6)
    handles: list[Any] = [
        _dot(f"class {_short(run.train.classes[k], 18)}", colour, marker) for k, colour, marker in looks[:10]
    ]
    handles.append(Patch(facecolor=OPEN, alpha=0.3, label="abstain"))
    handles += [_dot("training", OPEN, "o"), _dot("test", OPEN, "o", markerfacecolor="none")][: len(parts)]
    ax.set(xlabel=_column_label(columns[0].name), ylabel=_column_label(columns[1].name))
    legend(ax, handles)


def plot_margins(run: CertifiedRun, ax: Axes) -> None:
    """One bar per test point, from the proven lower to the proven upper margin of its class; above 0 it is certified."""
    answer = run.test
    assert answer is not None
    shown = _in_order(ax, np.nan_to_num(answer.margin, nan=-np.inf), "lower margin")
    low, high = answer.margin[shown], answer.margin_high[shown]
    ax.set_ylabel("margin of the class")
    ends = np.concatenate([low, high])
    known = ends[np.isfinite(ends)]
    if not len(known):
        _say(ax, "no margin is known" + ("" if run.reached else ": the bounds diverged"))
        return
    floor, top, handles = min(known.min(), 0.0), max(known.max(), 0.0), []
    # Attacks train as far as the bounds reach; where those diverged before the end, they say nothing about its models.
    certified, changed = answer.certified[shown], changed_by_attack(run)[shown] & run.reached
    for name, colour, marker, where in (
        ("certified", CERTIFIED, "o", certified),
        ("attack succeeded", ATTACKED, "x", ~certified & changed),
        ("open", OPEN, "_", ~certified & ~changed),
    ):
        mine = np.flatnonzero(where)
        # An infinite end is drawn to the picture's edge: it has no place of its own.
        bottom = np.nan_to_num(low[mine], nan=floor, posinf=top, neginf=floor)
        end = np.nan_to_num(high[mine], nan=top, posinf=top, neginf=floor)
        ax.vlines(mine, bottom, end, colors=colour, linewidth=2.2)
        ax.scatter(mine, bottom, color=colour, marker=marker, s=14, linewidths=1.2)
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=5, label=f"{name} ({len(mine)})"))
    ax.axhline(0, color=OPEN, linewidth=0.9)
    _wide_axis(ax, known)
    legend(ax, handles)


def plot_ranges(run: CertifiedRun, ax: Axes) -> None:
    """Regression, one bar per test point: the proven range of its output, the part that attacks reach, and the target."""
    proven, targets = run.test_ranges, run.data.tested.targets
    assert proven is not None
    assert targets is not None
    targets = run.train.in_units(targets[:, 0])
    shown = _in_order(ax, targets, "target")
    place = np.arange(len(shown))
    ax.set_ylabel(f"output ({_target_name(run)})")
    handles: list[Any] = []

    def bars(outputs: Interval, **style: Any) -> None:
        low, high = outputs.low[shown, 0], outputs.high[shown, 0]
        known = np.isfinite(low) & np.isfinite(high)
        if known.any():
            handles.append(ax.vlines(place[known], low[known], high[known], **style))

    bars(proven.outputs, label="proven range", colors=CERTIFIED, linewidth=3.2, alpha=0.55)
    if run.attack is not None:
        bars(run.attack.outputs, label="reached by attacks", colors=ATTACKED, linewidth=1.4)
    handles.append(ax.scatter(place, targets[shown], color=CLEAN, marker="D", s=9, zorder=3, label="target"))
    legend(ax, handles)
    if not np.isfinite(proven.width).any():
        _say(ax, "no range is known")


def plot_confusion(run: CertifiedRun, ax: Axes) -> None:
    """Test points by true class (rows) and certified class, or *abstain* (columns); the counts stand in the cells."""
    assert run.test is not None
    names = [_short(name, 12) for name in run.train.classes]
    n = len(names)
    counts = np.zeros((n, n + 1), dtype=np.intp)
    np.add.at(counts, (run.data.tested.y, np.where(run.test.certified, run.test.classes, n)), 1)
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


def plot_blame(blame: Any, ax: Axes) -> None:
    """Bars: the training rows with the largest share of the uncertainty, in per cent."""
    rows = blame.rows.head(BLAMED)
    ax.set_xlabel("share of the uncertainty (%)")
    bars = [
        (f"{_short(row_name(row), 16)}: {_short(cells, 22)}", effect if math.isfinite(effect) else None, CERTIFIED)
        for row, cells, effect in rows[["row", "cells", "effect"]].itertuples(index=False)
    ]
    end = max(effect or 0.0 for _, effect, _ in bars)
    _bars(ax, bars, "{:.1f} %", max(end, 1e-12))


def row_name(name: Any) -> str:
    """The user's name of a row; of a number, that it is one.

    >>> row_name("line 12"), row_name(4)
    ('line 12', 'row 4')
    """
    return name if isinstance(name, str) else f"row {name}"


def _target_name(run: CertifiedRun) -> str:
    """What a regression predicts, in a word or two."""
    return "units of the target" if run.train.target is None else _short(run.train.target.name, 24)


def has_regions(data: Dataset) -> bool:
    """Can `plot_regions` draw these data?"""
    return data.targets is None and len(data.columns) == 2 and not any(column.categorical for column in data.columns)


def _in_order(ax: Axes, values: Array, what: str) -> NDArray[np.intp]:
    """At most `BARS` test points in the order of these values; the axis says so."""
    order = np.argsort(values, kind="stable")
    shown = order[spread(len(order), BARS)]
    cut = "" if len(shown) == len(order) else f" ({len(shown)} of {len(order)} shown)"
    ax.set(xlabel=f"test points by {what}{cut}", xticks=[])
    return shown


def _column_label(name: str) -> str:
    return f"column {name}" if name.isdigit() else _short(name, 40)


def _short(value: Any, most: int) -> str:
    """A name as plain text of at most `most` characters on one line; "$" does not start a formula."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    return (text if len(text) <= most else text[: most - 1] + "…").replace("$", r"\$")


def spread(count: int, most: int) -> NDArray[np.intp]:
    """At most `most` of `count` places, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))


def _dot(label: str, colour: str, marker: str, **style: Any) -> Line2D:
    """A legend's entry for points."""
    return Line2D([], [], color=colour, marker=marker, linestyle="none", label=label, **style)


def legend(ax: Axes, handles: Sequence[Any]) -> None:
    """Above the picture, where it covers no data; as many columns as fit beside each other."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(3, len(handles), 54 // (longest + 5)))
    style: dict[str, Any] = {"frameon": False, "handlelength": 1.4, "columnspacing": 1.2, "borderaxespad": 0}
    ax.legend(handles=handles, ncols=columns, loc="lower left", bbox_to_anchor=(0, 1.01), **style)


def _say(ax: Axes, words: str) -> None:
    """Words where there is nothing to draw."""
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center")
    ax.set(xticks=[], yticks=[])


def _log_axis(ax: Axes, values: Array) -> None:
    """Whole powers of ten where there are positive values: at least two of them are labelled."""
    positive = values[values > 0]
    if not len(positive):
        return
    low, high = math.floor(math.log10(positive.min())), math.ceil(math.log10(positive.max()))
    ax.set_yscale("log", nonpositive="mask")
    # Decimal powers beyond these are no numbers of their own any more.
    ax.set_ylim(10.0 ** max(low, -300), 10.0 ** min(max(high, low + 1), 300))
    ax.yaxis.set_major_locator(LogLocator(numticks=8))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(_plain))


def _wide_axis(ax: Axes, values: Array) -> None:
    """Values of both signs that differ by orders of magnitude: linear near 0, logarithmic beyond."""
    sizes = np.abs(values[values != 0])
    if len(sizes) and sizes.max() > 50 * np.median(sizes):
        ax.set_yscale("symlog", linthresh=10.0 ** math.ceil(math.log10(float(np.median(sizes)))))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(_plain))
    ax.grid(axis="y", alpha=0.25)


def _plain(value: float, _: int | None = None) -> str:
    return f"{value:g}".replace("-", "−")
