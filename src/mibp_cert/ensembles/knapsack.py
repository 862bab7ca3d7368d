"""How many changes a vote survives where each part survives some: a multiple-choice knapsack over the parts.

**What is known.** With at most `m` wrong rows among its own, a part votes for one of the classes `V_p(m)`; `V_p` grows with
`m`, and beyond the last `m` that was proven it is everything. A wrong row is in one part only. With `n_p` wrong rows in part
`p`,

    N_c − N_d ≥ Σ_p w_p(n_p),        w_p(m) = min over v ∈ V_p(m) of [v = c] − [v = d]   ∈ {−1, 0, 1},

and each part can reach its minimum apart from all others. So for a budget of `b` wrong rows, `c` beats `d` whatever they are
iff

    W(b) = min { Σ_p w_p(m_p) :  Σ_p m_p ≤ b }  ≥  [d < c].                                                              (1)

*Proof.* `w_p` falls with `m`, so of all ways to spread at most `b` wrong rows, those that reach the minimum are choices of
one `m_p` for each part: the items of a class of a multiple-choice knapsack with weights `m` and gains `w_p(0) − w_p(m)`. If
(1) fails, the minimising choice is a case that the sets `V_p` allow in which `d` beats `c`.  ∎

Weights are whole numbers, so the dynamic program over the parts is exact: `W_p(b) = min_{m ≤ b} W_{p−1}(b − m) + w_p(m)`. With
`q` parts lost beside it, `W(b) − 2q` is a lower end, since a lost part changes no more than 2. With `V_p(1)` everything for all
parts it is the rule of `votes`.

That the radius of an ensemble whose parts are certified themselves is such a knapsack is due to EnsembleCert (arXiv
2604.11416), for labels of kernel models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mibp_cert.ensembles.votes import NOBODY, OPEN, Index, counted, winner

Possible = NDArray[np.bool_]
"""Which votes a part may have: changes inside it (from none on) × rows × parts × (classes, a label that nobody has, nobody)."""


def possible(votes: Index, classes: int) -> Possible:
    """What votes (… × rows × parts) leave possible: an open one everything but a label that nobody has.

    >>> possible(np.array([[0, NOBODY, OPEN]]), 2).astype(int).tolist()
    [[[1, 0, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0]]]
    """
    found = np.zeros((*votes.shape, classes + 2), dtype=bool)
    for c in range(classes):
        found[..., c] = (votes == c) | (votes == OPEN)
    found[..., classes + 1] = votes == NOBODY
    return found


def certain(may: Possible) -> Index:
    """The votes that are certain: their class, `NOBODY`, or `OPEN`."""
    one = may.sum(axis=-1) == 1
    where = may.argmax(axis=-1)
    classes = may.shape[-1] - 2
    return np.where(one & (where != classes), np.where(where == classes + 1, NOBODY, where), OPEN).astype(np.intp)


def worst_votes(may: Possible, winners: Index) -> NDArray[np.int8]:
    """`w_p(m)` for every `d`; the label that nobody has comes last."""
    own = np.take_along_axis(may, winners[None, :, None, None], axis=-1)
    alone = own & (may.sum(axis=-1, keepdims=True) == 1)
    return np.where(may[..., :-1], -1, alone.astype(np.int8)).astype(np.int8)


def worst_leads(may: Possible, winners: Index, most: int) -> Index:
    """`W(b)` for `b = 0 … most`, rows, and every `d`; the label that nobody has comes last."""
    levels, rows, parts, slots = may.shape
    w = np.concatenate([worst_votes(may, winners), np.full((1, rows, parts, slots - 1), -1, dtype=np.int8)])
    total = np.zeros((most + 1, rows, slots - 1), dtype=np.int32)  # wide enough for any number of parts
    for p in range(parts):
        after = total + w[0, :, p]
        for m in range(1, min(levels, most) + 1):
            np.minimum(after[m:], total[: most + 1 - m] + w[m, :, p], out=after[m:])
        total = after
    return total.astype(np.intp)


def parts_lost(may: Possible) -> Index:
    """How many parts may be lost while no row is wrong inside of the others; −1: not even none."""
    return np.asarray(np.maximum(slack(may)[1].min(axis=1) // 2, -1), dtype=np.intp)


def slack(may: Possible) -> tuple[Index, Index]:
    """The winners of the votes that are certain without a wrong row inside of parts, and by how much they beat every `d`:
    `W(0) − [d < c]`; themselves by more than all parts could take."""
    winners, needed = _winners(may)
    found = worst_leads(may[:1], winners, 0)[0] - needed
    found[np.arange(len(winners)), winners] = may.shape[2] * 2
    return winners, found


def may_be_changed(may: Possible, most: int, lost: int = 0) -> tuple[Index, Index]:
    """The winners of the votes that are certain without a change, and how many changes, up to `most`, they survive with `lost`
    parts lost beside; −1: not even none.

    >>> one, sturdy = possible(np.array([[[0, 0, 0]]]), 2), possible(np.array([[[0, 0, 0]]] * 3), 2)
    >>> may_be_changed(one, 9)[1].tolist(), may_be_changed(sturdy, 9)[1].tolist()
    ([1], [5])
    """
    winners, needed = _winners(may)
    holds = worst_leads(may, winners, most) - 2 * lost >= needed
    holds[:, np.arange(len(winners)), winners] = True
    # `W` falls with the budget, so the budgets that hold are the first ones.
    return winners, (holds.all(axis=-1).sum(axis=0) - 1).astype(np.intp)


def _winners(may: Possible) -> tuple[Index, Index]:
    """The winners of the votes that are certain, and `[d < c]`."""
    classes = may.shape[-1] - 2
    winners = winner(counted(certain(may[0]), classes))
    return winners, (np.append(np.arange(classes), -1) < winners[:, None]).astype(np.intp)
