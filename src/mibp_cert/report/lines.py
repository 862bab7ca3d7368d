"""Tables that terminal and page share: a head, and rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mibp_cert.card import number, percent
from mibp_cert.certify import CertifiedRun
from mibp_cert.certify.columns import LEFT_OUT, NUMBER, ColumnRecord
from mibp_cert.certify.worth import NumberWorth
from mibp_cert.data.dataset import shortened


class Lines(NamedTuple):
    """A head, where names may be broken, and rows as long as it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def worth_lines(run: CertifiedRun, most_classes: int) -> Lines | None:
    """Baseline, clean, attacked and certified figures of the test points under each other; None without test points.
    `most_classes`: how many may have figures of their own."""
    worth, tried = run.worth, run.attack is not None
    if worth is None:
        return None
    if isinstance(worth, NumberWorth):
        errors = run.errors
        errors_of = {
            "always the mean": (worth.baseline_error, 0.0),
            "clean model": (worth.clean, 0.0),
            "under attack": (errors.get("attacked_error"), errors.get("attacked_range_mean")),
            "certified": (errors["certified_error"], errors["range_mean"]),
        }
        names: tuple[str, ...] = ("mean absolute\nerror", "mean width\nof the ranges")
        shown = {name: tuple(map(number, figures)) for name, figures in errors_of.items()}
    else:
        own = worth.classes if len(worth.classes) <= most_classes else ()
        alike = 1.0 / len(worth.classes)
        constant = [float(share.name == worth.baseline) for share in own]
        lines_of = {
            "clean model": (run.nominal_accuracy, "clean"),
            "under attack": (run.attacked_accuracy, "attacked"),
            "certified": (run.certified_test_accuracy, "certified"),
        }
        names = ("accuracy", "balanced", *(f"{share.name!r}\n({share.rows})" for share in own))
        shown = {f"always {worth.baseline!r}": tuple(map(percent, (worth.baseline_accuracy, alike, *constant)))}
        for name, (accuracy, what) in lines_of.items():
            figures = accuracy, worth.balanced(what), *(getattr(share, what) for share in own)
            shown[name] = tuple(map(percent, figures))
    if not tried:
        del shown["under attack"]
    return Lines(("", *names), [(name, *figures) for name, figures in shown.items()])


def values_words(record: ColumnRecord) -> str:
    """Kind, and range or categories, of a column.

    >>> values_words(ColumnRecord("age", "number", low=18, high=90, target=True))
    'target, number, 18 to 90'
    """
    if record.kind == LEFT_OUT:
        return f"left out: {record.why}"
    if record.kind == NUMBER:
        values = f"number, {record.low:.6g} to {record.high:.6g}"
    else:
        some = ", ".join(shortened(name, 20) for name in record.categories[:5])
        one = len(record.categories) == 1
        kinds = ("class" if one else "classes") if record.target else ("category" if one else "categories")
        values = f"{len(record.categories)} {kinds}: {some}"
        values += ", …" if len(record.categories) > 5 else ""
    return ("target, " if record.target else "") + values
