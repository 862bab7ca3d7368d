"""What a run comes to, in sentences for terminal and page: is the model any good, how much of it survives, what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mibp_cert.card import number, percent
from mibp_cert.certify import CertifiedRun
from mibp_cert.certify.shown import following, loud
from mibp_cert.certify.worth import NumberWorth, Worth
from mibp_cert.fitted import Fitted
from mibp_cert.report.frontier import EPOCHS, Frontier, Point
from mibp_cert.report.plots import row_name
from mibp_cert.studies.choose import UNPROVEN
from mibp_cert.studies.compare import changed_by_attack

FIXED = "the split, scaling, categories, features and the penalty"
"""What a fitted model takes as given."""
FEATURES, HIDDEN = 30, 20
"""Random features, or neurons, of a richer model."""
NAMED = 3
"""Rows that are named at once."""
FEWER = 10.0
"""What `C` is divided by in an advice."""
MUCH = 0.01
"""Clean accuracy that another point of the frontier must have more to be told of; of errors, the share that it has less."""


def fitted_words(model: Fitted) -> str:
    """What is fitted.

    >>> fitted_words(Fitted(C=0.5))
    'at the minimum of the loss cross-entropy with C = 0.5'
    >>> fitted_words(Fitted(multi="one-versus-rest"))
    'at the minimum of the loss cross-entropy with C = 1, one-versus-rest'
    >>> fitted_words(Fitted(class_weight={"ill": 3}))
    'at the minimum of the loss cross-entropy with C = 1, classes counting ill: 3'
    """
    intercept = "" if model.fit_intercept else ", no intercept"
    intercept = ", intercept penalised" if model.fit_intercept and model.penalise_intercept else intercept
    several = "" if model.multi is None else f", {model.multi}"
    if isinstance(model.class_weight, Mapping):
        several += f", classes counting {', '.join(f'{name}: {w:g}' for name, w in model.class_weight.items())}"
    elif model.by_class:
        several += ", all classes counting alike"
    behind = "" if model.features is None else f", behind {model.features.words}"
    return f"at the minimum of the loss {model.loss} with C = {model.C:g}{several}{intercept}{behind}"


# Is it any good? ----------------------------------------------------------------------------------------------------------


def verdict(run: CertifiedRun) -> str:
    """The clean model beside an answer that looks at no column; empty where there is no saying, or only louder (`loud`)."""
    worth = run.worth
    if worth is None or not run.reached or not worth.better:
        return ""
    if isinstance(worth, NumberWorth):
        return (
            f"It is off by {number(worth.clean)} on average; always answering the mean is off by "
            f"{number(worth.baseline_error)}."
        )
    base, clean, _ = worth.judged
    if worth.by_class:
        return (
            f"Its balanced accuracy, the mean share of each class that it gets right, is {percent(clean)}; that of a constant "
            f"answer is {percent(base)}."
        )
    return (
        f"It is right on {percent(clean)} of the test points; always answering {worth.baseline!r} is right on "
        f"{percent(base)}."
    )


# How much of it survives? -------------------------------------------------------------------------------------------------


def survives(run: CertifiedRun) -> str:
    """How many test points are certified, how many of those are wrong, and why others are not."""
    if run.test is None:
        return _known_ranges(run)
    n, sure = len(run.test.certified), int(run.test.certified.sum())
    if not sure:
        return f"None of the {n} predictions is certified: {_why(run)}."
    wrong = run.worth.wrong if isinstance(run.worth, Worth) else 0
    also = f"; {wrong} of them {'is' if wrong == 1 else 'are'} wrong all the same" if wrong else ""
    rest = f" {n - sure} {'abstains' if n - sure == 1 else 'abstain'}: {_why(run)}." if sure < n else ""
    return f"{sure} of {n} predictions are certified: they are the same whatever the true data were{also}.{rest}"


def _why(run: CertifiedRun) -> str:
    """Why test points are not certified."""
    assert run.test is not None
    if not run.reached:
        return f"the bounds diverged at step {run.diverged}"
    if run.attack is None:
        return "the bounds leave another class open, and no attack was tried"
    others = ~run.test.certified
    changed = int((others & changed_by_attack(run)).sum())
    left = int(others.sum()) - changed
    if not changed:
        return "no dataset that was tried changes one, but the bounds are too wide to exclude it"
    return f"other possible data do change {changed}" + (f", and the bounds leave {left} open" if left else "")


def _known_ranges(run: CertifiedRun) -> str:
    """Regression: how many outputs have a range, how wide it is, and what attacks reach of that."""
    if run.test_ranges is None:
        return f"Every {done(run)} parameter lies within proven bounds, whatever the true data were."
    width = run.test_ranges.width
    known, n, reached = int(np.isfinite(width).all(axis=1).sum()), len(width), run.errors.get("attacked_range_mean")
    if not known:
        why = "they are too wide" if run.reached else f"the bounds diverged at step {run.diverged}"
        return f"None of the {n} outputs has a proven range: {why}."
    if known < n:
        return f"{known} of {n} outputs have a proven range that holds whatever the true data were."
    attacks = "" if reached is None else f", of which attacks reach {number(reached)}"
    return (
        f"{n} of {n} outputs have a proven range that holds whatever the true data were; it is "
        f"{number(run.errors['range_mean'])} wide on average{attacks}."
    )


def done(run: CertifiedRun) -> str:
    """What was done to parameters."""
    return "trained" if run.fitted is None else "fitted"


# What to do next ----------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What to do, and what to type for it: a command, or flags to add to it."""

    words: str
    command: str = ""


def next_steps(
    run: CertifiedRun, blame: Any = None, frontier: Frontier | None = None, ways: Iterable[Any] = (), *, typed: bool
) -> list[Step]:
    """The best first. `ways`: commands that the caller knows (`words`, `command`); `typed`: the run was asked for on a command
    line."""
    known = [Step(f"{way.words[0].upper()}{way.words[1:]}:", way.command) for way in ways]
    worth = run.worth
    useless = worth is not None and run.reached and not worth.better
    found = [] if useless or not _helps(blame) else [Step(_check_again(blame))]
    if not typed:
        words = following(run, page=False)
        return [*found, Step(words[0].upper() + words[1:])]
    if useless:
        found += _better_model(run, frontier, own=not known)
    elif not run.reached:
        found.append(_less(frontier))
    elif worth is None:
        found.append(Step("Hand in test rows: without them nothing is known of predictions."))
    else:
        found += _more(run, frontier, own=not known)
    return found + known


def _helps(blame: Any) -> bool:
    """Are there rows whose re-check is worth something, as far as that is known?"""
    if blame is None or not len(blame.rows):
        return False
    return blame.before is None or blame.after is None or blame.widths or blame.after > blame.before


def _check_again(blame: Any) -> str:
    """Which rows to check first, and what that is worth as far as it is known."""
    rows = blame.fixed or blame.rows["row"].tolist()
    named, more = ", ".join(map(row_name, rows[:NAMED])), len(rows) - NAMED
    also = f" again, and {more} more that are listed below" if more > 0 else " again"
    if blame.before is None or blame.after is None:
        return f"Check {named}{also}: most of the uncertainty comes from there."
    worth = f"{blame.before:g} → {blame.after:g} certified"
    if blame.widths:
        worth = f"ranges {number(blame.after)} wide instead of {number(blame.before)}"
    stand = " (a missing value: its usual value)" if blame.filled else ""
    return f"Check {named}{also}. If they are right as they stand{stand}: {worth}."


def _better_model(run: CertifiedRun, frontier: Frontier | None, *, own: bool) -> list[Step]:
    """Where the model is no better than its baseline; `own`: nobody else knows what to type."""
    good = [] if frontier is None else [p for p in frontier.points if frontier.judge.beats(p.clean) and not p.chosen]
    if frontier is not None and good:
        best = max(good, key=lambda p: frontier.judge.rank(p.clean, p.certified))
        if not own and not best.flags:  # a command of the caller says so
            return []
        return [Step(f"Try {_point(frontier, best)}, which beats the baseline on validation rows.", best.flags)]
    tried = "" if frontier is None else f", nor does any other {frontier.what} that was bounded on validation rows"
    said = f"Try other columns, or another model: this one does not beat a constant answer{tried}."
    if not own:
        return [Step(said)]
    if run.fitted is not None:
        return [Step(said, "" if run.fitted.features is not None else f"--features {FEATURES}")]
    return [Step(said, "" if len(run.network.sizes) > 2 else f"--hidden {HIDDEN}")]


def _less(frontier: Frontier | None) -> Step:
    """Where the bounds diverged before the end."""
    words = "Ask for a training that bounds survive: a smaller eps or learning rate, or fewer epochs."
    if frontier is None:
        return Step(words)
    proven = [p for p in frontier.points if p.best and frontier.judge.beats(p.clean)]
    best = max(proven, key=lambda p: frontier.judge.rank(p.clean, p.certified), default=None)
    return Step(words, "" if best is None else best.flags)


def _more(run: CertifiedRun, frontier: Frontier | None, *, own: bool) -> list[Step]:
    """Where the model is of use: what certifies more, or is more accurate; `own`: nobody else knows what to type."""
    found, open_ = [], run.test is not None and not run.test.certified.all()
    chosen = frontier is not None and any(p.chosen for p in frontier.points)
    if own and open_ and run.fitted is not None and not chosen:
        found.append(Step("Try a smaller C, whose model depends less on each row.", f"--C {run.fitted.C / FEWER:.3g}"))
    elif own and open_ and run.fitted is None and run.select.rule == "last" and run.data.validation is not None:
        found.append(Step("Let validation rows choose the epoch.", "--select best-validation"))
    if frontier is not None and (other := _accurate(frontier)) is not None:
        gain = "a smaller error and wider ranges" if frontier.judge.numbers else "more accuracy and fewer certificates"
        found.append(Step(f"For {gain} take {_point(frontier, other)}.", other.flags))
    elif frontier is not None and own:  # else a command of the caller says so
        found += [
            Step(f"Doubt less, or be patient: {_point(frontier, p)} is more accurate, but has no quick proof.")
            for p in frontier.points
            if p.why == UNPROVEN and _gain(frontier, p) >= MUCH
        ][:1]
    if own:
        more = "" if open_ or loud(run) else " more"
        found.append(Step(f"Ask how much{more} doubt it survives: the same arguments after", "mibp-cert tolerance"))
    return found


def _accurate(frontier: Frontier) -> Point | None:
    """The next more accurate point of the frontier, if it is so by a share that matters."""
    better = [p for p in frontier.points if p.best and p.flags and _gain(frontier, p) >= MUCH]
    return min(better, key=lambda p: _gain(frontier, p), default=None)


def _gain(frontier: Frontier, point: Point) -> float:
    """How much more accurate a point is than the one that was chosen; 0: none was."""
    chosen = next((p for p in frontier.points if p.chosen), point)
    if frontier.judge.numbers:
        return (chosen.clean - point.clean) / max(chosen.clean, 1e-300)
    return point.clean - chosen.clean


def _point(frontier: Frontier, point: Point) -> str:
    """A point of the frontier in words."""
    shown = number if frontier.judge.numbers else percent
    proven = "" if point.certified is None else f", certified {shown(point.certified)}"
    name = f"{point.name} epochs" if frontier.what == EPOCHS else f"C = {point.name}"
    return f"{name} (clean {shown(point.clean)}{proven} on validation rows)"
