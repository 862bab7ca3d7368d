"""The other side of bags: tables in which some rows are really wrong, and the bags that have them fitted again.

Wrong are, in one table each, `r` labels of one class (`flipped`), or `r` rows in whose place there are copies of test rows whose
votes are closest, with another label (`planted`). The same bags are drawn, and those that have a wrong row are fitted again:
what votes change to is what they do in a dataset that exists. Which rows are wrong is drawn at random, not chosen by the bags
that have them: the certificate speaks of all bags, and an attack on those that happened to be drawn says nothing of these.

Where the drawn bags of both tables decide their votes, and a vote that is certified is another one, a certificate is wrong: that
is a bug (or bad luck of the draw, whose probability is `1 − confidence` for a table that does not depend on it; planted rows
do, by the votes that are closest), and stops the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import column_or_1d

from mibp_cert.ensembles.attack import NEVER, Attacked
from mibp_cert.ensembles.bagging import Bags, BagVotes
from mibp_cert.ensembles.base import Table
from mibp_cert.ensembles.learners import Hear
from mibp_cert.ensembles.rows import Features, Rows
from mibp_cert.ensembles.votes import Index
from mibp_cert.errors import SoundnessError
from mibp_cert.threats import LabelFlips

KINDS = ("flipped", "planted")
NUMBERS = (1, 2, 5, 10, 20)
"""So many rows are wrong in the tables that are tried."""
NEAR = 10
"""Copies are made of so many test rows, those whose votes are closest."""


def attack_bags(
    model: Bags,
    X: Table,
    y: ArrayLike,
    asked: Table,
    tries: int = 1,
    seed: int = 0,
    numbers: Sequence[int] = NUMBERS,
    hear: Hear | None = None,
) -> Attacked:
    """Attack the votes of fitted bags about the rows `asked`; `X`, `y` are what they were fitted to. `tries`: of each kind, so
    many tables for each of these numbers of wrong rows."""
    rng = np.random.default_rng([seed, 6])
    whole = Rows(model.features_of(X), column_or_1d(y))
    points, found = model.features_of(asked), model.answers(asked)
    numbers = sorted(r for r in numbers if r <= len(whole))
    by_kind = {kind: np.full(len(points), NEVER, dtype=np.intp) for kind in KINDS}
    at_once, done = np.zeros(max(numbers, default=0) + 1, dtype=np.intp), 0
    for kind in KINDS:
        for _ in range(tries):
            for r, rows, wrong in _wrong(model, whole, points, found, kind, numbers, rng):
                after = model.with_rows(rows, wrong).answers(asked)
                changed = after.nominal != found.nominal
                _check(model, found, after, kind, r)
                by_kind[kind][changed] = np.minimum(by_kind[kind][changed], r)
                at_once[r] = max(at_once[r], int(changed.sum()))
                done += 1
                if hear is not None:
                    hear(done, len(KINDS) * tries * len(numbers))
    said = (
        f"The attack fitted the bags again that have wrong rows, of {done} tables with up to {max(numbers, default=0)} of them "
        "at once (wrong labels, or planted rows); no certified vote changed."
    )
    return Attacked(np.minimum.reduce(list(by_kind.values())), by_kind, np.maximum.accumulate(at_once), done, said)


def _wrong(
    model: Bags,
    whole: Rows,
    points: Features,
    found: BagVotes,
    kind: str,
    numbers: Sequence[int],
    rng: np.random.Generator,
) -> Iterator[tuple[int, Rows, Index]]:
    """Tables with more and more wrong rows, and which these are."""
    ordered = np.sort(found.counts, axis=1)
    closest = np.argsort(ordered[:, -1] - ordered[:, -2], kind="stable")[:NEAR]
    first, second = rng.permutation(model.classes_)[:2]
    order = rng.permutation(len(whole))
    if kind == "flipped":
        order = np.concatenate([order[whole.y[order] == first], order[whole.y[order] != first]])
    rows, done = whole, 0
    for r in numbers:
        for place in order[done:r].tolist():
            if kind == "flipped":
                rows = rows.with_labels(place, second if rows.y[place] == first else first)
                continue
            point = int(rng.choice(closest))
            others = model.classes_[model.classes_ != model.classes_[found.nominal[point]]]
            rows = rows.planted(Rows(points, np.full(len(points), rng.choice(others))).take([point]), place)
        done = r
        yield r, rows, order[:r].astype(np.intp)


def _check(model: Bags, found: BagVotes, after: BagVotes, kind: str, r: int) -> None:
    radius = found.survived["altered"]
    if kind == "flipped" and model.hides(LabelFlips(r)):
        radius = np.maximum(radius, found.survived["flipped"])
    wrong = (radius >= r) & (after.survived["altered"] >= 0) & (after.nominal != found.nominal)
    if wrong.any():
        raise SoundnessError(
            f"An attack with {r} wrong row(s) changes the vote about row {int(wrong.argmax())}, which is certified to survive "
            f"them: but for bad luck of the draw (the confidence is {100 * model.confidence:g} %), the certificate is not sound; "
            "report this, and use nothing of it."
        )
