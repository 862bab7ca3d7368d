"""Draw the pictures of the threat catalogue: `python docs/pictures.py` writes docs/img/*.svg.

The dots and marks are not drawn by hand: they are members that the package itself draws from the bound threat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Ellipse, FancyBboxPatch, Polygon, Rectangle

import mibp_cert as mc
from mibp_cert.threats import Model

FOLDER = Path(__file__).parent / "img"
INK, SOFT, CARD, EDGE = "#24292f", "#57606a", "#ffffff", "#c8ced6"
SET, DOT, GREY = "#4c8dc9", "#c2571a", "#d5dae1"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mibp-cert",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
}
ROW = (2.0, 3.0)
Draw = Callable[[Axes], None]


def card(name: str, draw: Draw, width: float = 3.2, height: float = 2.2) -> None:
    """One picture on a light card of its own, so that it can be read on any page."""
    with mpl.rc_context(STYLE):
        figure = plt.figure(figsize=(width, height))
        figure.patch.set_alpha(0.0)
        back = FancyBboxPatch(
            (0.01, 0.015),
            0.98,
            0.97,
            boxstyle="round,pad=0,rounding_size=0.03",
            transform=figure.transFigure,
            facecolor=CARD,
            edgecolor=EDGE,
            zorder=-1,
        )
        figure.add_artist(back)
        ax = figure.add_axes((0.06, 0.06, 0.88, 0.88))
        ax.patch.set_alpha(0.0)
        draw(ax)
        figure.savefig(FOLDER / f"{name}.svg", transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)


# A row of two numbers ------------------------------------------------------------------------------------------------


def plane(threat: mc.Threat, outline: Draw, labels: Sequence[tuple[float, float, str]] = ()) -> Draw:
    """The row (age 2, income 3) in the plane, the set around it, and members of the set."""
    frame = pd.DataFrame({"age": [ROW[0], 1.0], "income": [ROW[1], 1.0], "ill": ["no", "yes"]})
    data = mc.Dataset.from_frame(frame, "ill", scaling="none")

    def draw(ax: Axes) -> None:
        outline(ax)
        members = threat.bind(data).sample(np.random.default_rng(4), 60)
        points = np.array([x[0] for x, _ in members])
        ax.scatter(points[:, 0], points[:, 1], s=5, color=DOT, zorder=3, linewidths=0)
        ax.plot(*ROW, marker="+", markersize=11, markeredgewidth=1.8, color=INK, zorder=4)
        for x, y, text in labels:
            ax.text(x, y, text, ha="center", va="center", fontsize=8, color=SOFT)
        ax.annotate("age", (3.75, 1.45), ha="right", va="top", fontsize=8, color=SOFT)
        ax.annotate("income", (0.3, 4.5), ha="left", va="top", fontsize=8, color=SOFT)
        ax.plot([0.25, 3.75], [1.55, 1.55], color=GREY, lw=1, zorder=0)
        ax.plot([0.25, 0.25], [1.55, 4.5], color=GREY, lw=1, zorder=0)
        ax.set(xlim=(0.0, 4.0), ylim=(1.2, 4.6), aspect="equal")
        ax.axis("off")

    return draw


def _fill(patch: Polygon | Rectangle | Ellipse) -> Draw:
    patch.set(facecolor=SET, alpha=0.35, edgecolor=SET, linewidth=1.5)

    def add(ax: Axes) -> None:
        ax.add_patch(patch)

    return add


def box(low: tuple[float, float], high: tuple[float, float]) -> Draw:
    return _fill(Rectangle(low, high[0] - low[0], high[1] - low[1]))


def lines(*ends: tuple[tuple[float, float], tuple[float, float]]) -> Draw:
    def add(ax: Axes) -> None:
        for (x0, y0), (x1, y1) in ends:
            ax.plot([x0, x1], [y0, y1], color=SET, lw=4, alpha=0.6, solid_capstyle="butt", zorder=1)

    return add


# Categories ----------------------------------------------------------------------------------------------------------


def categories(threat: mc.Threat, names: Sequence[str], reported: Sequence[str | None], head: str) -> Draw:
    """For each reported category, which ones may be the true one."""
    order = pd.CategoricalDtype(list(names), ordered=True)
    values = [*reported, *names]
    frame = pd.DataFrame(
        {"health": pd.Series(values, dtype=order), "ill": ["no" if i % 2 else "yes" for i in range(len(values))]}
    )
    data = mc.Dataset.from_frame(frame, "ill")
    allowed = threat.bind(data).hull().x_high == 1.0

    def draw(ax: Axes) -> None:
        for j, name in enumerate(names):
            ax.text(j + 1.9, 0.0, name, ha="center", va="center", fontsize=8, color=SOFT)
        ax.text(0.95, 0.0, head, ha="right", va="center", fontsize=8, color=SOFT)
        for i, said in enumerate(reported, start=1):
            ax.text(0.95, -i, "missing" if said is None else said, ha="right", va="center", fontsize=9, color=INK)
            for j, name in enumerate(names):
                may = bool(allowed[i - 1, j])
                face, edge = (SET, SET) if may else ("none", GREY)
                ax.add_patch(
                    Circle((j + 1.9, -i), 0.27, facecolor=face, edgecolor=edge, alpha=0.8 if may else 1.0, lw=1.5)
                )
                if name == said:
                    ax.plot(j + 1.9, -i, marker="+", markersize=8, markeredgewidth=1.8, color=INK)
        ax.set(xlim=(-0.55, len(names) + 1.6), ylim=(-len(reported) - 0.6, 0.5), aspect="equal")
        ax.axis("off")

    return draw


# Whole tables --------------------------------------------------------------------------------------------------------


def tables(threat: mc.Threat, *, seed: int = 0, ages: bool = False) -> Draw:
    """Three members of the set: six rows with two numbers and a label each; coloured cells differ from those handed in."""
    age = [30.0, 40.0, 50.0, 66.0, 70.0, 80.0]
    frame = pd.DataFrame({"age": age, "income": [1.0, 2.0, 3.0, 1.0, 2.0, 3.0], "ill": ["no", "no", "yes"] * 2})
    data = mc.Dataset.from_frame(frame, "ill", scaling="none")
    drawn = threat.bind(data).sample(np.random.default_rng(seed), 40)
    different: dict[bytes, Any] = {}
    for x, y in drawn:
        changed = np.column_stack([x != data.x, (y != data.one_hot).any(axis=1)])
        different.setdefault(changed.tobytes(), changed)
    shown = sorted(different.values(), key=lambda c: (abs(int(c.sum()) - 3), c.tobytes()))[:3]

    def draw(ax: Axes) -> None:
        for k, changed in enumerate(shown):
            for i in range(6):
                for j in range(3):
                    face = DOT if changed[i, j] else "none"
                    ax.add_patch(Rectangle((4.2 * k + j, -i), 0.92, 0.82, facecolor=face, edgecolor=GREY, lw=1))
            for j, name in enumerate(("age", "inc.", "label")):
                ax.text(4.2 * k + j + 0.46, 1.35, name, ha="center", va="center", fontsize=7, color=SOFT)
        if ages:
            for i in range(6):
                ax.text(-0.3, -i + 0.4, f"{age[i]:.0f}", ha="right", va="center", fontsize=7, color=SOFT)
        ax.set(xlim=(-1.2, 4.2 * len(shown) - 0.8), ylim=(-5.6, 2.0), aspect="equal")
        ax.axis("off")

    return draw


def unknown_number(ax: Axes) -> None:
    """A missing number: anywhere in the column's range; known ones stay where they are."""
    frame = pd.DataFrame({"age": [None, 34.0, 61.0], "ill": ["no", "yes", "no"]})
    data = mc.Dataset.from_frame(frame, "ill", ranges={"age": (18, 99)}, scaling="none")
    members = mc.Missing().bind(data).sample(np.random.default_rng(0), 25)
    for i, text in enumerate(("missing", "34", "61")):
        ax.plot([18, 99], [-i, -i], color=GREY, lw=1, zorder=0)
        ax.text(14, -i, text, ha="right", va="center", fontsize=9)
        values = sorted({float(x[i, 0]) for x, _ in members})
        if i == 0:
            ax.plot([18, 99], [0, 0], color=SET, lw=7, alpha=0.4, solid_capstyle="butt")
        ax.scatter(values, [-i] * len(values), s=8, color=DOT if i == 0 else INK, zorder=3, linewidths=0)
    for value in (18, 99):
        ax.text(value, -2.75, str(value), ha="center", va="center", fontsize=8, color=SOFT)
    ax.text(58, -2.75, "age", ha="center", va="center", fontsize=8, color=SOFT)
    ax.set(xlim=(-8, 104), ylim=(-3.1, 0.6))
    ax.axis("off")


def targets(ax: Axes) -> None:
    """Each target somewhere in a range around the one handed in."""
    x, y = np.linspace(0, 1, 6), np.array([1.0, 1.6, 1.9, 2.8, 3.0, 3.9])
    data = mc.Dataset.regression(x[:, None], y)
    for _, drawn in mc.TargetNoise(0.5).bind(data).sample(np.random.default_rng(0), 20):
        ax.scatter(x, drawn[:, 0], s=5, color=DOT, zorder=2, linewidths=0)
    ax.vlines(x, y - 0.5, y + 0.5, color=SET, lw=5, alpha=0.4)
    ax.plot(x, y, "+", markersize=10, markeredgewidth=1.8, color=INK, zorder=3)
    ax.text(0.02, 4.3, "target", fontsize=8, color=SOFT, ha="left", va="center")
    ax.set(xlim=(-0.08, 1.08), ylim=(0.2, 4.6))
    ax.axis("off")


def shared_bias(ax: Axes) -> None:
    """Rules: all ages are too low by the same unknown number of years."""
    frame = pd.DataFrame({"age": [30.0, 45.0, 52.0, 61.0], "ill": ["no", "yes", "no", "yes"]})
    data = mc.Dataset.from_frame(frame, "ill", scaling="none")

    def rules(m: Model) -> None:
        bias = m.real(0, 3)
        for i in m.rows:
            m.require(m.x(i, "age") == m.clean(i, "age") + bias)

    members = mc.Rules(mc.LInf({"age": 3}), rules).bind(data).sample(np.random.default_rng(1), 14)
    for x, _ in members:
        shift = x[:, 0] - data.x[:, 0]
        ax.plot(range(4), shift, color=DOT, lw=1.5, marker="o", markersize=4, zorder=3)
    ax.add_patch(Rectangle((-0.2, 0), 3.4, 3, facecolor=SET, alpha=0.25, edgecolor="none"))
    for i in range(4):
        ax.text(i, -0.55, f"row {i}", ha="center", va="center", fontsize=8, color=SOFT)
    ax.text(-0.3, 0, "0", ha="right", va="center", fontsize=8, color=SOFT)
    ax.text(-0.3, 3, "+3", ha="right", va="center", fontsize=8, color=SOFT)
    ax.set(xlim=(-0.8, 3.4), ylim=(-0.9, 3.4))
    ax.axis("off")


def pictures() -> dict[str, Draw]:
    """Every picture by name."""
    health = ("poor", "fair", "good", "great")
    diamond = Polygon([(0.8, 3.0), (2.0, 3.8), (3.2, 3.0), (2.0, 2.2)])
    return {
        "nothing": plane(mc.Nothing(), lambda ax: None),
        "linf": plane(mc.LInf({"age": 1.2, "income": 0.8}), box((0.8, 2.2), (3.2, 3.8))),
        "linf-clip": plane(
            mc.LInf({"age": 1.2, "income": 0.8}, clip=(0, 3.3)),
            box((0.8, 2.2), (3.2, 3.3)),
            [(2.0, 3.55, "valid up to 3.3")],
        ),
        "l1": plane(mc.L1({"age": 1.2, "income": 0.8}), _fill(diamond)),
        "l2": plane(mc.L2({"age": 1.2, "income": 0.8}), _fill(Ellipse(ROW, 2.4, 1.6))),
        "rounded": plane(mc.Rounded("age", to=1), lines(((1.5, 3.0), (2.5, 3.0)))),
        "monotone": plane(mc.Monotone("income", up=1.2), lines(((2.0, 3.0), (2.0, 4.2)))),
        "exchanged": plane(mc.Exchanged("age", "income"), lambda ax: ax.plot([1.7, 3.6], [1.7, 3.6], color=GREY, lw=1)),
        "budget-cells": plane(
            mc.Budget(mc.LInf({"age": 1.2, "income": 0.8}), cells=1),
            lines(((0.8, 3.0), (3.2, 3.0)), ((2.0, 2.2), (2.0, 3.8))),
        ),
        "and": plane(mc.Rounded("age", to=1) & mc.Monotone("income", up=1.0), box((1.5, 3.0), (2.5, 4.0))),
        "any-category": categories(mc.AnyCategory("health"), health, ["good", "poor"], "reported"),
        "confusable": categories(
            mc.Confusable("health", {"good": ["great", "fair"]}), health, ["good", "poor"], "reported"
        ),
        "shift": categories(mc.Shift("health", by=-1), health, ["great", "good", "poor"], "reported"),
        "missing-category": categories(mc.Missing(), health, [None, "good"], "reported"),
        "missing-number": unknown_number,
        "label-flips": tables(mc.LabelFlips(2), seed=3),
        "target-noise": targets,
        "budget-rows": tables(mc.Budget(mc.LInf({"age": 1, "income": 1}), rows=2), seed=1),
        "where": tables(mc.LInf({"age": 1, "income": 1}).where(mc.column("age") >= 65), ages=True),
        "rules": shared_bias,
        "which": decision,
    }


def decision(ax: Axes) -> None:
    """Which certificate: one question, two answers."""
    ax.set(xlim=(0, 10), ylim=(0, 6))
    ax.axis("off")

    def box(x: float, y: float, width: float, words: str, colour: str) -> None:
        ax.add_patch(FancyBboxPatch((x, y), width, 1.3, boxstyle="round,pad=0.1", facecolor=colour, edgecolor=EDGE))
        ax.text(x + width / 2, y + 0.65, words, ha="center", va="center")

    box(2.4, 4.4, 5.2, "How do you train?", CARD)
    for x, answer, words in (
        (0.2, "to the minimum of a convex loss", "certify_fit\n--model logistic, ridge, …"),
        (5.3, "in steps: SGD, hidden layers", "certify_training\n--model network"),
    ):
        ax.annotate("", (x + 2.2, 2.0), (5.0, 4.3), arrowprops={"arrowstyle": "->", "color": SOFT})
        ax.text(x + 2.2, 2.55, answer, ha="center", color=SOFT, bbox={"facecolor": CARD, "edgecolor": "none", "pad": 2})
        box(x, 0.5, 4.4, words, GREY)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in pictures().items():
        card(name, draw, *((5.2, 2.6) if name == "which" else ()))


if __name__ == "__main__":
    main()
