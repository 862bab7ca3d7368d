"""Votes of models that were each made from a share of the rows, and how many of the shares may be lost.

**The vote.** Each of `P` parts votes for a class or for nobody. `N_e` votes are for `e`; the class with the most of them
wins, of several the smallest: `c` wins iff `N_c ≥ N_d + [d < c]` for every `d ≠ c`. Labels are ordered as they are sorted,
whatever other labels there are.

**What is certain.** A part is *lost* if wrong rows reach it: then it may vote for anything, also for a label that no row has
had so far. A vote may also be *open* without that (its model is not certified for the noise). Of the other votes `N_e` are for
`e`, and `o` are open. For `q ≤ P` lost parts, `c` wins in every case iff for every `d ≠ c`

    N_c − N_d − o − [d < c] ≥ 2q.                                                                                        (1)

*Proof.* A lost part changes `N_c − N_d` by at most 2 (its vote for `c` becomes one for `d`), an open one brings at least −1,
and one that is both no more than a lost one: so `N_c − N_d ≥ [d < c]` after all of that. If (1) fails for some `d`, all open
votes are for `d`, and `min(q, N_c)` of the votes for `c` become votes for `d`. With `q ≤ N_c` then `N_c − N_d < [d < c]`;
else nobody votes for `c` and, as `1 ≤ q ≤ P`, somebody for `d`. Either way `c` loses.  ∎

So `r = min_{d≠c} ⌊(N_c − N_d − o − [d < c]) / 2⌋` parts may be lost (DPA; Levine and Feizi 2021, without open votes), and
where `r < 0` nothing is certain. To count a lost part once would be wrong: 3 votes against 1 do not survive two lost parts.

**Labels that nobody has.** A wrong row may bring a label that is in no row, smaller than all others. It wins ties, and only
lost parts vote for it: `d` runs over it, too, with `N_c − 1 ≥ 2q`, which for `q = 0` is the first condition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]
NOBODY, OPEN = -1, -2
"""A vote that is none, and one that is not certain; classes are numbered from 0, in the order of their labels."""


def counted(votes: Index, classes: int) -> Index:
    """How many votes each class has: rows × classes, of votes rows × parts.

    >>> counted(np.array([[0, 1, 1, NOBODY, OPEN]]), 2).tolist()
    [[1, 2]]
    """
    return np.stack([(votes == c).sum(axis=1) for c in range(classes)], axis=1).astype(np.intp)


def winner(counts: Index) -> Index:
    """The class with the most votes, of several the smallest."""
    return np.asarray(counts.argmax(axis=1), dtype=np.intp)


def leads(counts: Index, winners: Index, open_votes: Index | int = 0) -> Index:
    """`N_c − N_d − o − [d < c]` for every `d`, with the label that nobody has as the last column; of `c` itself a large
    number."""
    rows, classes = np.arange(len(counts)), np.arange(counts.shape[1])
    own, ties = counts[rows, winners], classes < winners[:, None]
    found = np.column_stack([(own - open_votes)[:, None] - counts - ties, own - 1])
    found[rows, winners] = np.iinfo(np.intp).max
    return np.asarray(found, dtype=np.intp)


def may_be_lost(counts: Index, open_votes: Index | int = 0) -> Index:
    """So many parts may be lost, and the winner of these votes wins whatever they vote; −1: not even without a loss.

    >>> may_be_lost(np.array([[3, 1], [1, 3], [2, 1], [5, 0]])).tolist()
    [1, 0, 0, 2]
    """
    least = leads(counts, winner(counts), open_votes).min(axis=1)
    return np.asarray(np.maximum(least // 2, -1), dtype=np.intp)
