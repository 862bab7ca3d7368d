"""Ensembles of parts on every dataset of small threats, each really trained on: no vote that stands changes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import BernoulliNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from mibp_cert.ensembles import PartitionedClassifier, learners, partitions
from mibp_cert.ensembles.rows import BASES

TREE = DecisionTreeClassifier(max_depth=2)


# Every dataset of a small threat, with real learners -----------------------------------------------------------------------

CELLS, LABELS = (0.0, 1.0, 2.5), (-1, 0, 1)
"""What a wrong row may be made of; nobody has the label −1, which wins ties."""
ANYTHING = [(cell, label) for cell in CELLS for label in LABELS]
Table = list[tuple[float, int]]


def small(n: int, seed: int) -> Table:
    rng = np.random.default_rng(seed)
    return [(float(rng.choice(CELLS)), int(i % 2)) for i in range(n)]


def changed(table: Table, kind: str, k: int) -> Iterator[Table]:
    """All tables in which exactly `k` rows came, went, or are others."""
    places = range(len(table))
    if kind == "added":
        yield from (table + list(new) for new in product(ANYTHING, repeat=k))
    elif kind == "removed":
        yield from ([row for i, row in enumerate(table) if i not in gone] for gone in combinations(places, k))
    else:
        for which in combinations(places, k):
            for new in product(ANYTHING, repeat=k):
                other = list(table)
                for i, row in zip(which, new, strict=True):
                    other[i] = row
                yield other


def fitted(table: Table, estimator: Any, by: str, seed: int = 0) -> Any:
    x, y = np.array([[cell] for cell, _ in table]), np.array([label for _, label in table])
    keys = np.arange(len(table)) * 7 + 3 if by == "key" else None
    return PartitionedClassifier(estimator, parts=4, by=by, random_state=seed).fit(x, y, keys)


ASKED = np.array([[cell] for cell in CELLS])


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of small fits: without looking for libraries whose threads are to be limited before each of them."""
    monkeypatch.setattr(learners, "arrivals", lambda work, groups, parallel, jobs: enumerate(map(work, groups)))


def contradicted(table: Table, estimator: Any, kind: str, by: str, most: int, seed: int = 0) -> int:
    """How many tables with at most `most` wrong rows change a vote that is certified to stand; `seed` chooses the parts."""
    found = fitted(table, estimator, by, seed).certify(ASKED)
    column = "altered_rows" if kind == "altered" else "moved_rows"
    wrong = 0
    for k in range(1, most + 1):
        for other in changed(table, kind, k):
            if len({label for _, label in other}) < 2:
                continue  # there is nothing to learn
            vote = fitted(other, estimator, by, seed).predict(ASKED)
            wrong += int(((found[column].to_numpy() >= k) & (vote != found["vote"].to_numpy())).any())
    return wrong


KINDS = [(kind, by) for by in BASES for kind in ("added", "removed", "altered")]
KINDS = [(kind, by) for kind, by in KINDS if by in ("content", "features") or kind == "altered"]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("kind", "by"), KINDS)
def test_no_single_wrong_row_changes_a_vote_that_stands(kind: str, by: str) -> None:
    assert contradicted(small(7, 0), TREE, kind, by, 1) == contradicted(small(5, 1), TREE, kind, by, 1, seed=1) == 0


REAL = [pytest.param(TREE, marks=pytest.mark.slow, id="tree")]
REAL += [
    pytest.param(estimator, marks=pytest.mark.soundness, id=type(estimator).__name__)
    for estimator in (KNeighborsClassifier(1), BernoulliNB(binarize=1.5))
]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("estimator", REAL)
@pytest.mark.parametrize(("kind", "by"), KINDS)
def test_no_two_wrong_rows_change_votes_that_stand(kind: str, by: str, estimator: Any) -> None:
    assert contradicted(small(6, 1), estimator, kind, by, 2, seed=1) == 0
    assert contradicted(small(8, 2), estimator, kind, by, 1) == 0


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("by", ["content", "features"])
def test_counting_an_alteration_once_is_noticed(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "cost_of", lambda piece, by: 1)
    assert any(contradicted(small(5, seed), TREE, "altered", by, 1, seed) for seed in range(1, 20))


@pytest.mark.usefixtures("at_once")
def test_a_certificate_that_forgets_ties_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_ties(counts: Any) -> Any:
        ordered = np.sort(counts, axis=1)
        return (ordered[:, -1] - ordered[:, -2]) // 2

    monkeypatch.setattr(partitions, "may_be_lost", no_ties)
    assert any(contradicted(small(5, seed), TREE, "added", "content", 1, seed) for seed in range(1, 20))
