"""What an ensemble's votes are worth: a table and a picture of accuracy by the number of wrong rows, on the terminal and on a
page."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from matplotlib.axes import Axes

from mibp_cert.card import percent
from mibp_cert.ensembles.findings import Findings
from mibp_cert.report.html import COLOURS, PAGE
from mibp_cert.report.lines import Lines
from mibp_cert.report.markup import bullets, figure, table
from mibp_cert.report.plots import ATTACKED, CERTIFIED, CLASS_COLOURS, OPEN
from mibp_cert.visible import visible

NAMES = {
    "altered": "certified:\naltered",
    "moved": "certified:\ncome or go",
    "inside": "certified:\nas the threat says",
    "flipped": "certified:\ncells altered",
    "attacked": "left under\nattack",
    "changed": "changed at once\nby the attack",
    "can_change": "at most\nat once",
}
"""How the columns of `Findings.by_radius` are called."""
COUNTS = ("changed", "can_change")
SHOWN = 200
"""Most test rows on the page."""


def radius_lines(found: Findings) -> Lines:
    """Accuracy for 0, 1, 2, … wrong rows, under each other."""
    by = found.by_radius
    rows = [
        (str(r), *(str(line[name]) if name in COUNTS else percent(line[name]) for name in by.columns))
        for r, line in zip(by.index, by.to_dict(orient="records"), strict=True)
    ]
    return Lines(("wrong rows", *(NAMES[name] for name in by.columns)), rows)


def plot_radius(found: Findings, axes: Axes) -> None:
    """Certified accuracy below, what the attack leaves above: the truth lies between them."""
    most = max(1, *(int(radius.max()) for radius in found.survived.values()))
    lines = [
        ("altered", CERTIFIED, "certified, altered rows", "-"),
        ("moved", CLASS_COLOURS[1], "rows that come or go", "--"),
    ]
    lines += [
        ("inside", CLASS_COLOURS[2], "as the threat says", ":"),
        ("flipped", CLASS_COLOURS[2], "some cells altered", ":"),
        ("attacked", ATTACKED, "left under attack", "-."),
    ]
    table_of = replace(found, radii=range(most + 2), at_once=()).by_radius
    for name, colour, label, style in lines:
        if name in table_of:
            axes.step(table_of.index, table_of[name], style, where="post", color=colour, label=label)
    axes.axhline(found.baseline, color=OPEN, lw=1, label="most frequent class")
    axes.set(xlabel="wrong rows", ylabel="accuracy", ylim=(0, 1.02), xlim=(0, most + 1))
    axes.legend(frameon=False)


def ensemble_page(found: Findings, name: str) -> str:
    """One web page that needs nothing else."""
    lines = radius_lines(found)
    head = [text.replace("\n", " ") for text in lines.head]
    rows = found.rows.iloc[:SHOWN]
    cells = [(str(index), *map(str, line)) for index, line in zip(rows.index, rows.to_numpy().tolist(), strict=True)]
    sections = [
        f"<h1>{escape(name)}: votes of {len(found.model.learners_)} {found.model.share}s</h1>",
        bullets(found.sentences),
        "<h2>How many wrong rows the votes survive</h2>",
        '<div class="plots">',
        figure(plot_radius, found, "Accuracy by the number of wrong rows", "", 3.2),
        table(head, lines.rows, "accuracy by wrong rows", "figures"),
        "</div>",
        f"<h2>Test rows{'' if len(rows) == len(found.rows) else f' (the first {SHOWN})'}</h2>",
        table(("row", *map(str, rows.columns)), cells, "test rows", "figures"),
        "<h2>What is certified</h2>",
        bullets(MEANING[found.model.share]),
    ]
    return visible(PAGE.substitute(COLOURS, name=escape(name), parts="\n".join(sections)))


MEANING = {
    "part": (
        "A row that is altered in any way reaches two parts where parts are chosen by what it says, else one; a row that "
        "comes or goes reaches one. Every vote of a part that no wrong row reaches stays what it is: its learner depends "
        "on the rows of its part alone.",
        "So a class stands as long as too few votes are reached to change the result, whatever the learners are and "
        "whatever the wrong rows are. Nothing is said of the columns themselves: their names, their kinds and the order of "
        "labels are taken as given.",
    ),
    "bag": (
        "What is certified is the vote over all bags that could have been drawn. Those that were drawn estimate it, and "
        "where they do not decide it, nothing is said. All classes that stand are the classes of that vote, for every "
        "dataset that the threat allows, with the confidence above: it is about the draw of bags, so the seed must not have "
        "been known to whoever made rows wrong, nor the seed or votes to whoever chose the test rows.",
        "A wrong row that few bags have can change few of their votes. How much that is at most follows from the "
        "probabilities of bags alone, whatever the learners are. Nothing is said of the columns themselves: their names, "
        "their kinds, and the order of labels are taken as given.",
    ),
}
