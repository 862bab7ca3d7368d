"""The other side: wrong rows that are really put into parts, whose learners are really fitted again.

A part's model depends on nothing but the part. So whatever a wrong row does to a part is found by fitting that part alone,
and wrong rows in different parts add up: for a test row, its rival `d` and one wrong row for each of some parts, the lead
`N_c − N_d` falls by the sum of what each of them does to its part's vote. Of the wrong rows that were tried in a part the
best one counts, and parts are taken in the order of that: so many wrong rows change the vote, in a dataset that exists and
with models that exist.

Tried are, in every part, rows that go (`removed`), labels that are others (`flipped`), and rows that come (`planted`; where
rows neither come nor go they take the place of one): copies of those test rows whose votes are closest, with another label.
Where a part is chosen by the content of a row, a planted one is moved by rounding errors until it belongs there, as an
adversary would. All of them reach one part. A vote that changes although so many lost parts (or wrong rows of that kind) are
certified to change nothing is a bug, and stops the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import column_or_1d

from mibp_cert.ensembles.base import Table
from mibp_cert.ensembles.learners import Hear, Task, fit_all
from mibp_cert.ensembles.partitions import PartitionedClassifier, Votes
from mibp_cert.ensembles.rows import Features, Rows, chosen, nudged
from mibp_cert.ensembles.votes import Index, counted
from mibp_cert.errors import SoundnessError
from mibp_cert.threats import LabelFlips, Removed

KINDS = ("removed", "flipped", "planted")
NEVER = np.iinfo(np.int32).max
"""More wrong rows than any number: no attack changed the vote."""
MOVES = 5
"""So many times as often as there are parts a planted row is moved, for one that belongs into its part."""


@dataclass(frozen=True, eq=False)
class Attacked:
    """What wrong rows reach: for every test row, the least number of them that changed its vote, by kind and by all kinds;
    and for 0, 1, … wrong rows in one dataset, how many votes changed at once."""

    least: Index
    by_kind: dict[str, Index]
    at_once: Index
    tried: int
    """So many parts, or tables, with wrong rows were tried."""
    words: str
    """What was done, in a sentence."""


@dataclass(frozen=True, eq=False)
class _Tried:
    """A part with a wrong row: its number, what kind of row that is, and how it votes."""

    part: int
    kind: str
    votes: Index


def attack(
    model: PartitionedClassifier,
    X: Table,
    y: ArrayLike,
    asked: Table,
    tries: int = 4,
    seed: int = 0,
    hear: Hear | None = None,
) -> Attacked:
    """Attack the votes of a fitted ensemble about the rows `asked`; `X`, `y` are what it was fitted to. `tries`: wrong rows
    of each kind in each part."""
    rng = np.random.default_rng([seed, 5])
    whole = Rows(model.features_of(X), column_or_1d(y))
    points, found = model.features_of(asked), model.answers(asked)
    votes = model.votes(asked)
    tasks: list[Task] = []
    kinds: list[str] = []
    for part, rows in enumerate(model.rows_):
        for kind, wrong in _wrong(model, whole.take(rows), part, points, votes, found, tries, rng):
            tasks.append(model.nominal_task(part, wrong))
            kinds.append(kind)
    learners = fit_all(tasks, model.parallel, model.jobs, hear)
    classes = model.classes_
    tried = [
        _Tried(task.number, kind, learner.votes(points, classes))
        for task, kind, learner in zip(tasks, kinds, learners, strict=True)
    ]
    by_kind = {kind: _least(votes, found.nominal, [t for t in tried if t.kind == kind], len(classes)) for kind in KINDS}
    least = _least(votes, found.nominal, tried, len(classes))
    _check(model, found, least, by_kind)
    said = (
        f"The attack fitted {len(tasks)} parts again, each with one wrong row (removed, flipped or planted); no certified vote "
        "changed."
    )
    return Attacked(least, by_kind, _at_once(votes, found.nominal, tried, len(classes)), len(tasks), said)


def _wrong(
    model: PartitionedClassifier,
    rows: Rows,
    part: int,
    points: Features,
    votes: Index,
    found: Votes,
    tries: int,
    rng: np.random.Generator,
) -> list[tuple[str, Rows]]:
    """The part with one wrong row each."""
    n, out = len(rows), []
    closest = np.argsort(found.lost, kind="stable")[: max(tries, len(votes) // 10)]
    some = rng.permutation(n)[:tries]
    if not n and model.by == "row":
        return []
    if model.by != "row":
        out += [("removed", rows.take(np.delete(np.arange(n), i))) for i in some]
    if model.by != "content":
        out += [("flipped", rows.with_labels(i, _other(model, rows.y[i], rng))) for i in some]
    for point in rng.permutation(closest)[:tries]:
        label = _other(model, model.classes_[found.nominal[point]], rng)
        row = _planted(model, part, points, int(point), label, rng)
        if row is not None:
            out.append(("planted", rows.planted(row, int(rng.integers(n)) if model.by == "row" else None)))
    return out


def _other(model: PartitionedClassifier, label: Any, rng: np.random.Generator) -> Any:
    return rng.choice(model.classes_[model.classes_ != label])


def _planted(
    model: PartitionedClassifier, part: int, points: Features, point: int, label: Any, rng: np.random.Generator
) -> Rows | None:
    """A copy of a test row with this label, moved by rounding errors until it belongs to the part."""
    count = MOVES * model.parts if model.by in ("content", "features") else 1
    copies = Rows(nudged(points, point, count, rng), np.array([label] * count))
    if count > 1:
        places = np.flatnonzero(chosen(copies, model.parts, model.by, int(model.random_state)) == part)
        return copies.take(places[:1]) if len(places) else None
    return copies


def _gains(votes: Index, nominal: Index, tried: Sequence[_Tried], rival: int) -> Index:
    """By how much the lead over a rival falls by the best wrong row tried in each part: rows × parts."""
    best = np.zeros(votes.shape, dtype=np.intp)
    before = (votes == nominal[:, None]).astype(np.intp) - (votes == rival)
    for one in tried:
        after = (one.votes == nominal).astype(np.intp) - (one.votes == rival)
        np.maximum(best[:, one.part], before[:, one.part] - after, out=best[:, one.part])
    return best


def _least(votes: Index, nominal: Index, tried: Sequence[_Tried], classes: int) -> Index:
    """The least number of wrong rows that change each vote."""
    counts, rows = counted(votes, classes), np.arange(len(votes))
    found = np.full(len(votes), NEVER, dtype=np.intp)
    for rival in range(classes):
        lead = counts[rows, nominal] - counts[:, rival] - (rival < nominal)
        fallen = np.cumsum(-np.sort(-_gains(votes, nominal, tried, rival), axis=1), axis=1)
        enough = fallen > lead[:, None]
        least = np.where(enough.any(axis=1), enough.argmax(axis=1) + 1, NEVER)
        found = np.where(nominal == rival, found, np.minimum(found, least))
    return found


def _at_once(votes: Index, nominal: Index, tried: Sequence[_Tried], classes: int) -> Index:
    """How many votes change at once: wrong rows are put into one part after another, each time the one that changes the most,
    and of several the one that takes the most leads down."""
    now, left, found = votes.copy(), list(tried), [0]
    while left and len(found) <= votes.shape[1]:
        scores = []
        for one in left:
            column = now[:, one.part].copy()
            now[:, one.part] = one.votes
            counts = counted(now, classes)
            own = counts[np.arange(len(now)), nominal]
            scores.append((int((counts.argmax(axis=1) != nominal).sum()), -int(own.sum())))
            now[:, one.part] = column
        best = left[max(range(len(left)), key=scores.__getitem__)]
        now[:, best.part] = best.votes
        found.append(max(scores)[0])
        left = [one for one in left if one.part != best.part]
    return np.array(found, dtype=np.intp)


def _check(model: PartitionedClassifier, found: Votes, least: Index, by_kind: dict[str, Index]) -> None:
    wrong = least <= found.lost
    inside = model.reach_.inside
    for kind, threat in (("removed", Removed), ("flipped", LabelFlips)):
        if isinstance(inside, threat):
            wrong |= by_kind[kind] <= found.changed
    if wrong.any():
        raise SoundnessError(
            f"An attack changes the vote about row {int(wrong.argmax())} with fewer wrong rows than are certified to change "
            "nothing: the certificate is not sound; report this, and use nothing of it."
        )
