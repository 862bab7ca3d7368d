"""What all pictures share: colours, axes, legends, names as plain text, and a picture as part of a web page.

Colours are those of Okabe and Ito, told apart by colour-blind people, too. In a web page every one of them is a variable of the
page's style, so that one picture serves light and dark.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

Floats = NDArray[np.float64]

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


def new_axes(ax: Axes | None, size: tuple[float, float] = SIZE) -> Axes:
    """The axes handed in, or new ones in a figure that pyplot does not know."""
    return Figure(figsize=size, layout="constrained").add_subplot() if ax is None else ax


def short(value: Any, most: int) -> str:
    """A name as plain text of at most `most` characters on one line; "$" does not start a formula."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    return (text if len(text) <= most else text[: most - 1] + "…").replace("$", r"\$")


def finite(values: Iterable[Any]) -> Floats:
    """Numbers, NaN for all that are infinite: those are left out of a picture."""
    found = np.array(list(values), dtype=np.float64)
    return np.where(np.isfinite(found), found, np.nan)


def spread(count: int, most: int) -> NDArray[np.intp]:
    """At most `most` of `count` places, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, max(1, most))).round().astype(np.intp))


def class_look(k: int) -> tuple[str, str]:
    """Colour and marker of a class."""
    return CLASS_COLOURS[k % len(CLASS_COLOURS)], MARKERS[k % len(MARKERS)]


def dot(label: str, colour: str, marker: str, **style: Any) -> Line2D:
    """A legend's entry for points."""
    return Line2D([], [], color=colour, marker=marker, linestyle="none", label=label, **style)


def legend(ax: Axes, handles: Sequence[Any]) -> None:
    """Above the picture, where it covers no data; as many columns as fit beside each other."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(3, len(handles), 54 // (longest + 5)))
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.01), "borderaxespad": 0}
    ax.legend(handles=handles, ncols=columns, frameon=False, handlelength=1.4, columnspacing=1.2, **place)


def say(ax: Axes, words: str) -> Axes:
    """Words where there is nothing to draw."""
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center")
    ax.set(xticks=[], yticks=[])
    return ax


def log_axis(ax: Axes, values: Floats) -> None:
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


def wide_axis(ax: Axes, values: Floats) -> None:
    """Values of both signs that differ by orders of magnitude: linear near 0, logarithmic beyond."""
    sizes = np.abs(values[values != 0])
    if len(sizes) and sizes.max() > 50 * np.median(sizes):
        ax.set_yscale("symlog", linthresh=10.0 ** math.ceil(math.log10(float(np.median(sizes)))))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(_plain))
    ax.grid(axis="y", alpha=0.25)


def _plain(value: float, _: int | None = None) -> str:
    return f"{value:g}".replace("-", "−")


def colour_variable(colour: str) -> str:
    """Name of the style variable that stands for a colour."""
    return f"--c{colour[1:]}"


def inline_svg(draw: Callable[[Axes], object], key: str, label: str, height: float = SIZE[1]) -> str:
    """A picture as an `<svg>` element for a page whose style sets the variables of `colour_variable`; `key` keeps its ids apart.

    The caller's own style sheets do not matter, the same picture gives the same bytes, and nothing refers to the network.
    """
    target = io.StringIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, "svg.hashsalt": key})
        # Text stays text: a letter that Matplotlib's font lacks is drawn by the browser.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(SIZE[0], height), layout="constrained")
        draw(figure.add_subplot())
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
