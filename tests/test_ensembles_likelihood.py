"""Votes over all bags: the formulas against all datasets and all outcomes, listed; wrong formulas are noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from math import comb
from typing import Any

import numpy as np
import pytest

from mibp_cert.ensembles import likelihood, shares
from mibp_cert.ensembles.likelihood import Pair, stands
from mibp_cert.ensembles.shares import at_least, at_most, each

Row = tuple[int, ...]
SHARES = [Fraction(i, 12) for i in range(13)] + [Fraction(99, 100), Fraction(1, 1000)]

ROUNDED = Fraction(1, 10**60)
"""More than balls of 256 bits lose."""

# All outcomes of two datasets ----------------------------------------------------------------------------------------------


def flips(row: Row, odds: int, values: int) -> dict[Row, Fraction]:
    """What a row may become, with its probabilities, cell by cell."""
    stay, go = Fraction(odds, odds + values - 1), Fraction(1, odds + values - 1)
    found: dict[Row, Fraction] = {}
    for seen in product(range(values), repeat=len(row)):
        weight = Fraction(1)
        for a, b in zip(row, seen, strict=True):
            weight *= stay if a == b else go
        found[seen] = weight
    return found


def bags(table: dict[int, Row], size: int, odds: int, values: int, trigger: Row) -> dict[Any, Fraction]:
    """Every bag with the numbers of its rows and the flipped test input, and its probability."""
    draw = {
        (number, seen): weight / len(table)
        for number, row in table.items()
        for seen, weight in flips(row, odds, values).items()
    }
    found: dict[Any, Fraction] = {(): Fraction(1)}
    for _ in range(size):
        found = {(*bag, one): p * q for bag, p in found.items() for one, q in draw.items()}
    return {(*bag, seen): p * q for bag, p in found.items() for seen, q in flips(trigger, odds, values).items()}


def worst(before: dict[Any, Fraction], after: dict[Any, Fraction], share: Fraction) -> Fraction:
    """The least probability under `after` of votes with this one under `before`: the most unlikely bags first."""
    left, found = share, Fraction(0)
    for z in sorted(before, key=lambda z: after.get(z, Fraction(0)) / before[z]):
        take = min(left, before[z])
        found += after.get(z, Fraction(0)) * take / before[z]
        left -= take
    return found


def altered(row: Row, cells: int, values: int) -> Iterator[Row]:
    """All rows with exactly so many other cells."""
    for where in combinations(range(len(row)), cells):
        for new in product(range(1, values), repeat=cells):
            out = list(row)
            for j, step in zip(where, new, strict=True):
                out[j] = (row[j] + step) % values
            yield tuple(out)


CASES = [
    # rows, size, width, values, odds, Pair's numbers
    (4, 2, 1, 2, 3, {"flipped": 1, "cells": 1}),
    (5, 3, 1, 2, 9, {"flipped": 2, "cells": 1}),
    (3, 3, 1, 3, 2, {"flipped": 1, "cells": 1}),
    (3, 2, 2, 2, 4, {"flipped": 2, "cells": 2}),
    (2, 2, 2, 3, 3, {"flipped": 1, "cells": 2}),
    (3, 1, 1, 3, 5, {"flipped": 3, "cells": 1, "trigger": 1}),
    (3, 2, 1, 2, 2, {"trigger": 2}),
    (4, 2, 1, 2, 3, {"altered": 1, "flipped": 1, "cells": 1, "trigger": 1}),
    (5, 3, 0, 2, 2, {"altered": 2}),
    (5, 3, 0, 2, 2, {"removed": 1, "added": 2}),
    (4, 3, 1, 2, 3, {"altered": 1, "removed": 1, "added": 1, "flipped": 1, "cells": 1}),
]


def two(case: Any) -> tuple[Pair, dict[int, Row], dict[int, Row], Row, Row]:
    """A pair with the numbers of a case, and two datasets and test inputs that differ by exactly so much."""
    rows, size, width, values, odds, wrong = case
    pair = Pair(rows, size, odds=Fraction(odds), values=values, **wrong)
    before: dict[int, Row] = dict.fromkeys(range(rows), (0,) * width)
    after: dict[int, Row] = dict(before)
    for i in range(pair.flipped):
        after[i] = (1,) * pair.cells + (0,) * (width - pair.cells)
    for i in range(pair.altered):  # what cannot be told from its flips is a row of its own
        after[100 + i] = after.pop(pair.flipped + i)
    for i in range(pair.removed):
        after.pop(pair.flipped + pair.altered + i)
    after |= {200 + i: (0,) * width for i in range(pair.added)}
    return pair, before, after, (0,) * pair.trigger, (1,) * pair.trigger


@pytest.mark.parametrize("case", CASES)
def test_the_formula_is_what_all_outcomes_say(case: Any) -> None:
    pair, before, after, x, other = two(case)
    odds, values = int(pair.odds), pair.values
    p, q = bags(before, pair.size, odds, values, x), bags(after, pair.size, odds, values, other)
    for share in SHARES:
        wanted, found = worst(p, q, share), pair.least(share)
        assert 0 <= wanted - found < 1e-12
        assert 0 <= pair.most(1 - share) - (1 - wanted) < 1e-12


@pytest.mark.parametrize("case", [CASES[i] for i in (0, 2, 3, 4)])
def test_no_dataset_of_the_threat_is_worse_and_one_is_as_bad(case: Any) -> None:
    """All datasets with at most so many wrong rows, and at most so many wrong cells in each."""
    pair, before, *_ = two(case)
    odds, values = int(pair.odds), pair.values
    p, least = bags(before, pair.size, odds, values, ()), {share: Fraction(1) for share in SHARES[3::4]}
    some = combinations(before, pair.flipped)
    for which in some:
        ways = [[new for c in range(pair.cells + 1) for new in altered(before[i], c, values)] for i in which]
        for new in product(*ways):
            q = bags(before | dict(zip(which, new, strict=True)), pair.size, odds, values, ())
            least = {share: min(low, worst(p, q, share)) for share, low in least.items()}
    for share, low in least.items():
        assert abs(low - pair.least(share)) < 1e-12


@pytest.mark.parametrize("name", ["altered", "removed", "added", "flipped", "cells", "trigger"])
def test_more_that_is_wrong_is_never_better(name: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        wrong = {key: int(rng.integers(0, 3)) for key in ("altered", "removed", "added", "flipped", "trigger")}
        odds, values = Fraction(int(rng.integers(11, 60)), 10), int(rng.integers(2, 5))
        pair = Pair(12, int(rng.integers(1, 9)), cells=int(rng.integers(1, 3)), odds=odds, values=values, **wrong)
        more = replace(pair, **{name: getattr(pair, name) + 1})
        for share in SHARES:
            assert more.least(share) <= pair.least(share) + ROUNDED
            assert replace(pair, values=values + 1).least(share) >= pair.least(share) - ROUNDED
            assert 0 <= pair.least(share) <= 1


def test_where_added_rows_change_nothing_no_mixture_of_added_and_removed_ones_does() -> None:
    rng, stood, fell = np.random.default_rng(0), 0, 0
    for _ in range(300):
        n, size, r, trigger = (int(rng.integers(*ends)) for ends in ((2, 40), (1, 9), (0, 6), (0, 3)))
        odds, low = Fraction(int(rng.integers(15, 90)), 10), Fraction(int(rng.integers(500, 1000)), 1000)
        plain, other = Pair(n, size, trigger=trigger, odds=odds), (1 - low) * Fraction(int(rng.integers(1, 11)), 10)
        mixed = [replace(plain, removed=b, added=r - b) for b in range(min(r, n) + 1)]
        every = [stands(pair, low, other, Fraction(0)) for pair in mixed]
        assert every[0] == all(every)
        stood, fell = stood + every[0], fell + (any(every) and not every[0])
    assert min(stood, fell) > 5, "and removed rows alone are not the worst"


def test_what_takes_all_rows_leaves_nothing() -> None:
    for wrong in ({"altered": 5}, {"removed": 5}, {"altered": 3, "flipped": 3, "cells": 1}, {"added": 10**9}):
        assert Pair(5, 3, **wrong).least(Fraction(1)) < 1e-20


# Random votes, and all datasets ------------------------------------------------------------------------------------------------
# A row is one of `kinds` contents: `values` to the power of its cells, flipped; or anything, where rows may be altered.


class Case:
    """A random table, a random vote of bags, and every dataset with `r` wrong rows, with exact shares as whole numbers."""

    def __init__(self, rng: np.random.Generator, kind: str) -> None:
        self.kind, self.n = kind, int(rng.integers(2, 6))
        self.values, self.cells = int(rng.integers(2, 4)), 1
        self.width = int(rng.integers(1, 3)) if self.values == 2 else 1
        self.odds = int(rng.choice([2, 3, 9])) if kind == "flipped" else 10**9
        self.contents = list(product(range(self.values), repeat=self.width))
        self.size = int(rng.integers(1, 4))
        self.r = min(int(rng.integers(1, 3)), self.n - 1)  # without rows there is nothing to draw
        self.trigger = kind == "flipped" and self.width == 1 and bool(rng.integers(2))
        self.classes = int(rng.integers(2, 4))
        self.table = rng.integers(0, len(self.contents), self.n) * (rng.random() < 0.5)
        self.weights = np.array([self._weights(one) for one in self.contents])
        self.before = self._bags(self.table[None], 0)
        self.after = np.concatenate([self._bags(other[None], x) for other, x in self._others(rng)])
        self.votes = self._votes(rng)

    def _weights(self, row: Row) -> list[int]:
        """How likely this row becomes each content, as whole numbers."""
        if self.kind != "flipped":
            return [int(row == other) for other in self.contents]
        return [int(np.prod([self.odds if a == b else 1 for a, b in zip(row, c, strict=True)])) for c in self.contents]

    def _bags(self, tables: Any, x: int) -> Any:
        """Weights of all bags, and of the flipped test input, for some tables."""
        draw = self.weights[tables].sum(axis=1)
        found = draw
        for _ in range(self.size - 1):
            found = (found[:, :, None] * draw[:, None]).reshape(len(tables), -1)
        return (found[:, :, None] * self.weights[x]).reshape(len(tables), -1) if self.trigger else found

    def _others(self, rng: np.random.Generator) -> Iterator[tuple[Any, int]]:
        places, inputs = range(self.n), range(len(self.contents)) if self.trigger else (0,)
        for which in combinations(places, self.r):
            ways = [[c for c in range(len(self.contents)) if self._few(int(self.table[i]), c)] for i in which]
            for new in product(*ways):
                other = self.table.copy()
                if self.kind == "removed":
                    other = np.delete(other, which)
                elif self.kind == "added":
                    other = np.append(other, new)
                else:
                    other[list(which)] = new
                yield from ((other, x) for x in inputs)

    def _few(self, one: int, two_: int) -> bool:
        a, b = self.contents[one], self.contents[two_]
        return self.kind != "flipped" or sum(i != j for i, j in zip(a, b, strict=True)) <= self.cells

    def _votes(self, rng: np.random.Generator) -> Any:
        """A random vote with a favourite; or the worst one for a dataset: bags that it makes rarer come first."""
        share, bag_count = rng.choice([0.5, 0.7, 0.9, 0.97]), self.before.shape[1]
        own, other = rng.permutation(self.classes)[:2]
        if rng.random() < 0.4:
            return np.where(rng.random(bag_count) < share, own, rng.integers(0, self.classes, bag_count))
        one = self.after[rng.integers(len(self.after))]
        order = np.argsort(one / np.maximum(self.before[0], 0.1), kind="stable")
        mass = np.cumsum(self.before[0][order]) - self.before[0][order]
        votes = np.empty(bag_count, dtype=np.intp)
        votes[order] = np.where(mass < share * self.before[0].sum(), own, other)
        return votes

    def shares(self, weights: Any) -> list[Fraction]:
        return [Fraction(int(weights[self.votes == c].sum()), int(weights.sum())) for c in range(self.classes)]

    @property
    def pair(self) -> Pair:
        wrong: dict[str, Any] = {self.kind: self.r}
        if self.kind == "flipped":
            wrong |= {"cells": self.cells, "odds": Fraction(self.odds), "values": self.values}
        return Pair(self.n, self.size, trigger=int(self.trigger), **wrong)

    def outcome(self) -> tuple[bool, bool]:
        """Is the vote certified, and does some dataset change it?"""
        shares = self.shares(self.before[0])
        c = max(range(self.classes), key=lambda d: (shares[d], -d))
        smaller, larger = max([0, *shares[:c]]), max([0, *shares[c + 1 :]])
        stood = likelihood.stands(self.pair, shares[c], Fraction(smaller), Fraction(larger))
        tally = np.stack([self.after[:, self.votes == d].sum(axis=1) for d in range(self.classes)], axis=1)
        return stood, bool((tally.argmax(axis=1) != c).any())


KINDS = ("altered", "removed", "added", "flipped")


def hunted(count: int, seed: int = 0) -> tuple[int, int, int]:
    """How many random cases are certified, of these how many a dataset contradicts, and how many are changed by some."""
    rng, certified, wrong, changed = np.random.default_rng(seed), 0, 0, 0
    for i in range(count):
        stood, moved = Case(rng, KINDS[i % 4]).outcome()
        certified, wrong, changed = certified + stood, wrong + (stood and moved), changed + moved
    return certified, wrong, changed


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.soundness, id="many")])
def test_no_dataset_changes_a_vote_that_stands(count: int) -> None:
    certified, wrong, changed = hunted(count, count)
    assert wrong == 0
    assert certified > count // 10
    assert changed > count // 10


def inverted(self: Any) -> Any:
    masses, zero = MASSES(self)
    return masses[::-1], zero


MASSES, ONE_RATIO = Pair._masses, Pair.least
FORGOTTEN = {
    "inverted ratio": ("_masses", inverted),
    "forgotten trigger": ("_masses", lambda self: MASSES(replace(self, trigger=0))),
    "one row too few": ("_masses", lambda self: MASSES(replace(self, flipped=max(0, self.flipped - 1)))),
    "too many values": ("_masses", lambda self: MASSES(replace(self, values=self.values + 2))),
    "rows of the other dataset": ("_growth", property(lambda self: 1)),
    "alterations forgotten": ("same", property(lambda self: self.rows - self.removed - self.flipped)),
    "removals forgotten": ("same", property(lambda self: self.rows - self.altered - self.flipped)),
}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_wrong_formulas_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    what, how = FORGOTTEN[name]
    monkeypatch.setattr(Pair, what, how)
    assert hunted(1_000)[1] > 0


def test_a_tie_that_goes_to_anybody_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(pair: Pair, low: Fraction, smaller: Fraction, larger: Fraction) -> bool:
        return pair.least(low) >= max(pair.most(smaller), pair.most(larger))

    pair = Pair(4, 2)
    assert not stands(pair, Fraction(1, 2), Fraction(1, 2), Fraction(0))
    assert stands(pair, Fraction(1, 2), Fraction(0), Fraction(1, 2))
    monkeypatch.setattr(likelihood, "stands", lenient)
    assert lenient(pair, Fraction(1, 2), Fraction(1, 2), Fraction(0)), "and smaller labels win ties"
    assert hunted(1_500)[1] > 0


# What drawn votes say -------------------------------------------------------------------------------------------------------


def tail(share: Fraction, votes: int, bag_count: int) -> Fraction:
    """`P(X ≥ k)`, summed up exactly."""
    return sum(
        (comb(bag_count, j) * share**j * (1 - share) ** (bag_count - j) for j in range(votes, bag_count + 1)),
        Fraction(0),
    )


@pytest.mark.parametrize("alpha", [Fraction(1, 10), Fraction(1, 10**6), Fraction(1, 10**14)])
def test_bounds_of_shares_are_proven_by_exact_sums_and_are_tight(alpha: Fraction) -> None:
    for bag_count in (1, 7, 40):
        for votes in range(0, bag_count + 1, 3):
            low = at_least(votes, bag_count, alpha)
            assert at_most(bag_count - votes, bag_count, alpha) == 1 - low
            if votes:
                assert tail(low, votes, bag_count) <= alpha
                assert tail(min(Fraction(1), low * (1 + Fraction(1, 10**9))), votes, bag_count) > alpha


def test_a_guess_that_is_too_large_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "betaincinv", lambda a, b, alpha: 0.9)
    found = at_least.__wrapped__(3, 10, Fraction(1, 100))
    assert 0 < tail(found, 3, 10) <= Fraction(1, 100)
    monkeypatch.setattr(shares, "betaincinv", lambda a, b, alpha: float("nan"))
    assert at_least.__wrapped__(3, 10, Fraction(1, 100)) == 0


def test_all_bounds_share_the_confidence() -> None:
    assert each(0.75, 3, 5) * 2 * 3 * 5 == Fraction(1, 4)
