"""Votes and the knapsack: against all outcomes, listed by plain loops; wrong rules are noticed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from mibp_cert.ensembles import knapsack, votes
from mibp_cert.ensembles.knapsack import certain, may_be_changed, parts_lost, possible
from mibp_cert.ensembles.votes import NOBODY, OPEN, counted, may_be_lost, winner

CASES = 10_000
STRANGE = -1
"""Stands in the lists below for a label that nobody has: smaller than all others."""


def drawn(rng: np.random.Generator, cases: int) -> tuple[Any, int]:
    """Random votes of up to six parts for up to three classes."""
    parts, classes = int(rng.integers(1, 7)), int(rng.integers(2, 4))
    return rng.integers(OPEN, classes, (cases, parts)).astype(np.intp), classes


def wins(found: Any, c: int) -> bool:
    """Does `c` win, by the words of the rule: most votes, of several the smallest label?"""
    labels = [v for v in found if v is not None]
    tally = {label: labels.count(label) for label in labels}
    return bool(tally) and min(tally, key=lambda label: (-tally[label], label)) == c


def stands(vote: Any, c: int, q: int, classes: int) -> bool:
    """Does `c` win however open votes turn out and whichever `q` parts are lost? All outcomes are listed."""
    known = [list(range(classes)) if v == OPEN else [None if v == NOBODY else int(v)] for v in vote]
    for lost in combinations(range(len(vote)), min(q, len(vote))):
        anything = [[STRANGE, *range(classes), None] if p in lost else known[p] for p in range(len(vote))]
        if not all(wins(outcome, c) for outcome in product(*anything)):
            return False
    return True


def table_of(vote: Any, classes: int) -> tuple[Any, Any, Any]:
    counts = counted(vote, classes)
    return counts, winner(counts), (vote == OPEN).sum(axis=1)


def listed_radius(vote: Any, c: int, classes: int) -> int:
    return next((q for q in range(len(vote) + 1) if not stands(vote, c, q, classes)), len(vote) + 1) - 1


def test_the_rule_is_what_all_outcomes_say() -> None:
    """Exactly so many parts may be lost, in both forms of the rule; a class that is not the winner never stands."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        vote, classes = drawn(rng, 2)
        counts, winners, open_ = table_of(vote, classes)
        found, again = may_be_lost(counts, open_), parts_lost(possible(vote, classes)[None])
        for i, one in enumerate(vote):
            wanted = listed_radius(one, int(winners[i]), classes)
            assert found[i] == again[i] == wanted
            assert not any(stands(one, c, 0, classes) for c in range(classes) if c != winners[i])


def worst_by_hand(vote: Any, classes: int, q: int) -> Any:
    """Whether winners stand, for many votes at once and otherwise than by the rule: for every rival the worst that open and lost
    votes can do is done one vote at a time."""
    counts, winners, open_ = table_of(vote, classes)
    rows, good = np.arange(len(vote)), np.ones(len(vote), dtype=bool)
    for rival in range(STRANGE, classes):
        mine = counts[rows, winners].copy()
        theirs = np.zeros_like(mine) if rival == STRANGE else counts[:, rival] + open_
        open_left = open_ if rival == STRANGE else np.zeros_like(open_)
        for _ in range(min(q, vote.shape[1])):
            others = vote.shape[1] - mine - theirs - open_left
            take, spare = mine > 0, (mine == 0) & (others + open_left > 0)
            mine, theirs = mine - take, theirs + (take | spare)
        lost = (theirs > mine) | ((theirs == mine) & (rival < winners))
        good &= ~lost | (winners == rival)
    return good


def test_ten_thousand_random_votes_agree_with_the_worst_case() -> None:
    """With every number of lost parts up to all; the worst case by hand agrees with all outcomes."""
    rng = np.random.default_rng(2)
    for _ in range(40):
        vote, classes = drawn(rng, 1)
        _, winners, _ = table_of(vote, classes)
        q = int(rng.integers(0, vote.shape[1] + 1))
        assert worst_by_hand(vote, classes, q)[0] == stands(vote[0], int(winners[0]), q, classes)
    rng, left = np.random.default_rng(1), CASES
    while left > 0:
        vote, classes = drawn(rng, min(250, left))
        left -= len(vote)
        counts, _, open_ = table_of(vote, classes)
        for q in range(vote.shape[1] + 1):
            assert np.array_equal(may_be_lost(counts, open_) >= q, worst_by_hand(vote, classes, q))
        assert np.array_equal(may_be_lost(counts, open_), parts_lost(possible(vote, classes)[None]))


def _half(counts: Any, open_: Any) -> Any:
    """A lost part counted once."""
    return votes.leads(counts, winner(counts), open_).min(axis=1)


def _no_ties(counts: Any, open_: Any) -> Any:
    """Ties to the winner, whatever its label."""
    rows, winners = np.arange(len(counts)), winner(counts)
    rest = counts.copy()
    rest[rows, winners] = -1
    return np.maximum((counts[rows, winners] - open_ - np.maximum(rest.max(axis=1), 0)) // 2, -1)


def _open_ignored(counts: Any, open_: Any) -> Any:
    return may_be_lost(counts)


def _runner_up_only(counts: Any, open_: Any) -> Any:
    """Only the rival with the most votes, not every one: a smaller label with one vote less may win the tie."""
    rows, winners = np.arange(len(counts)), winner(counts)
    rest = counts.copy()
    rest[rows, winners] = -1
    rival = counts.shape[1] - 1 - rest[:, ::-1].argmax(axis=1)
    return np.maximum((counts[rows, winners] - rest[rows, rival] - open_ - (rival < winners)) // 2, -1)


def _no_strange_label(counts: Any, open_: Any) -> Any:
    return np.maximum(votes.leads(counts, winner(counts), open_)[:, :-1].min(axis=1) // 2, -1)


@pytest.mark.parametrize("wrong", [_half, _no_ties, _open_ignored, _runner_up_only, _no_strange_label])
def test_wrong_rules_are_noticed(wrong: Callable[[Any, Any], Any]) -> None:
    """By the very comparison that the right rule passes, where `q` is at most the number of parts."""
    rng, found, good = np.random.default_rng(1), 0, 0
    for _ in range(40):
        vote, classes = drawn(rng, 250)
        counts, _, open_ = table_of(vote, classes)
        for q in range(vote.shape[1] + 1):
            truth = worst_by_hand(vote, classes, q)
            found += int(((wrong(counts, open_) >= q) & ~truth).sum())
            good += int(((may_be_lost(counts, open_) >= q) & ~truth).sum())
    assert found > 0
    assert good == 0


# The knapsack --------------------------------------------------------------------------------------------------------------


def nested(rng: np.random.Generator, levels: int, rows: int, parts: int, classes: int) -> Any:
    """Random sets of possible votes that grow with the number of wrong rows; each holds one at least."""
    may = np.zeros((levels, rows, parts, classes + 2), dtype=bool)
    pick = rng.integers(0, classes + 1, (rows, parts))
    pick[pick == classes] = classes + 1
    np.put_along_axis(may, np.broadcast_to(pick, (levels, rows, parts))[..., None], True, axis=-1)
    grow = rng.random(may.shape) < rng.choice([0.0, 0.15, 0.4])
    grow[..., classes:] = False
    return np.logical_or.accumulate(may | grow, axis=0)


def spreads(budget: int, parts: int) -> list[tuple[int, ...]]:
    """All ways to put at most so many wrong rows into parts."""
    return [way for way in product(range(budget + 1), repeat=parts) if sum(way) <= budget]


def survives(may: Any, c: int, budget: int, lost: int, classes: int) -> bool:
    """Does `c` win for every way to spread the rows, every choice of lost parts and every possible vote? All are listed."""
    parts, levels = may.shape[1], len(may)
    labels = [*range(classes), STRANGE, None]
    for gone in combinations(range(parts), lost):
        for way in spreads(budget, parts):
            sets = [
                labels if p in gone or m >= levels else [labels[v] for v in np.flatnonzero(may[m, p])]
                for p, m in enumerate(way)
            ]
            if not all(wins(outcome, c) for outcome in product(*sets)):
                return False
    return True


def checked(cases: int, seed: int = 0) -> tuple[int, int]:
    """How often the knapsack says more than all outcomes say, and how often less, without lost parts."""
    rng, more, less = np.random.default_rng(seed), 0, 0
    for _ in range(cases):
        parts, classes, levels, most = (int(rng.integers(*ends)) for ends in ((1, 4), (2, 4), (1, 4), (1, 4)))
        may = nested(rng, levels, 1, parts, classes)
        winners, found = may_be_changed(may, most)
        wanted = next((b for b in range(most + 1) if not survives(may[:, 0], int(winners[0]), b, 0, classes)), most + 1)
        more += bool(found[0] > wanted - 1)
        less += bool(found[0] < wanted - 1)
    return more, less


def test_the_knapsack_is_what_all_ways_to_spread_wrong_rows_say() -> None:
    assert checked(150) == (0, 0)


@pytest.mark.slow
def test_the_knapsack_is_exact_in_many_cases() -> None:
    assert checked(3000, seed=1) == (0, 0)


def test_lost_parts_beside_wrong_rows_are_covered() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        may = nested(rng, 2, 1, 3, 2)
        winners, found = may_be_changed(may, 2, lost=1)
        assert all(survives(may[:, 0], int(winners[0]), b, 1, 2) for b in range(found[0] + 1))


def test_parts_that_survive_nothing_give_the_plain_rule() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        vote, classes = drawn(rng, 40)
        counts, winners, open_ = table_of(vote, classes)
        may = possible(vote, classes)[None]
        assert np.array_equal(certain(may[0]), vote)
        who, found = may_be_changed(may, vote.shape[1])
        assert np.array_equal(who, winners)
        assert np.array_equal(found, np.minimum(may_be_lost(counts, open_), vote.shape[1]))


def test_votes_of_any_number_of_parts_are_added_up() -> None:
    """65,000 open votes, beside which ten certain ones are nothing: no number wraps around."""
    vote = np.array([[0] * 10 + [OPEN] * 65_000])
    may = possible(vote, 2)[None]
    assert parts_lost(may).tolist() == may_be_lost(*table_of(vote, 2)[::2]).tolist() == [-1]
    assert may_be_changed(may, 1)[1].tolist() == [-1]


def test_a_knapsack_that_is_one_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = knapsack.worst_leads
    monkeypatch.setattr(knapsack, "worst_leads", lambda may, winners, most: whole(may[1:], winners, most))
    assert checked(150)[1] > 0, "levels that are forgotten"

    def late(may: Any, winners: Any, most: int) -> Any:
        return whole(np.concatenate([may[:1], may]), winners, most)

    monkeypatch.setattr(knapsack, "worst_leads", late)
    assert checked(150)[0] > 0, "a change that a part is given for nothing"


def test_a_knapsack_that_skips_a_part_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = knapsack.worst_leads

    def spared(may: Any, winners: Any, most: int) -> Any:
        sturdy = np.concatenate([may, np.repeat(may[:1], most + 1, axis=0)])
        sturdy[:, :, 1:] = np.concatenate([may, np.repeat(may[-1:], most + 1, axis=0)])[:, :, 1:]
        sturdy[:, :, :1] = may[0, :, :1]
        return whole(sturdy, winners, most)

    monkeypatch.setattr(knapsack, "worst_leads", spared)
    assert checked(150)[0] > 0
