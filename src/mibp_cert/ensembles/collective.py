"""How many predictions can change at once: lost parts are the same for all of them.

A certificate for each row takes the worst parts for that row; one dataset has one set of lost parts. A test row `t` has the
class `c` of the votes that are certain, and beats `d` by `W_td − [d < c]` at least, where `W_td = Σ_p w_tpd` adds the worst
that each part may vote while it is not lost (`knapsack`). A lost part may have any vote, which lowers that by
`g_tpd = 1 + w_tpd` more: by 2 if it votes for `c` for certain, by 0 if it may vote for `d` anyway, else by 1. With
`s_p ∈ {0, 1}` for a lost part and `z_td ∈ {0, 1}` for a row whose class is beaten by `d`, at most

    max Σ_t f_t   subject to   Σ_p g_tpd s_p ≥ (W_td + 1 − [d < c]) z_td,   f_t ≤ Σ_d z_td,   Σ_p s_p ≤ q,   f_t ≤ 1

predictions change for `q` lost parts: a covering problem. Where all votes are certain it is no fewer, if lost parts vote for
anything; with noise each row has the worst noise for itself. (Rows whose class stands for `q` lost parts are left out.) The
solver's proven bound is an upper bound also where it was stopped. Collective certificates of votes: Chen et al. 2022.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.ensembles.knapsack import Possible, slack, worst_votes
from mibp_cert.ensembles.votes import Index
from mibp_cert.solvers import FEASIBILITY, Limits, Objective, Program, ProgramBuilder, solver_named
from mibp_cert.solvers.program import FREE


def most_changed(may: Possible, lost: int, seconds: float = 60.0, solver: str = "highs") -> int:
    """How many of these predictions (possible votes, without a wrong row: rows × parts × …) can change at once if so many
    parts are lost.

    >>> from mibp_cert.ensembles.knapsack import possible
    >>> votes = np.array([[0, 0, 1, 0, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]])
    >>> [most_changed(possible(votes, 2), q) for q in range(4)]
    [0, 2, 2, 3]
    """
    winners, found = slack(may[None])
    lost = min(lost, may.shape[1])
    open_ = np.flatnonzero(found.min(axis=1) < 2 * lost)
    if not len(open_) or not lost:
        return int((found.min(axis=1) < 0).sum())
    gains = 1 + worst_votes(may[None, open_], winners[open_])[0].astype(np.intp)
    program, objective = _program(gains, found[open_], lost)
    bound = solver_named(solver).solve(program, [objective], Limits(seconds, None, 0.5))[0].proven
    return (
        len(open_) if not np.isfinite(bound) else min(len(open_), int(np.floor(bound + (1 + len(open_)) * FEASIBILITY)))
    )


def _program(gains: Index, found: Index, lost: int) -> tuple[Program, Objective]:
    """`g` (rows × parts × rivals) and the leads (rows × rivals)."""
    n, parts, _ = gains.shape
    row, rival = np.nonzero(found < 2 * lost)
    gain = gains[row, :, rival]
    builder = ProgramBuilder()
    gone = builder.add_variables(parts, 0.0, 1.0, integer=True)
    beaten = builder.add_variables(len(row), 0.0, 1.0, integer=True)
    changed = builder.add_variables(n, 0.0, 1.0, integer=True)
    at, part = np.nonzero(gain)
    matrix = builder.matrix(at, gone[part], gain[at, part].astype(np.float64), len(row))
    matrix += builder.matrix(np.arange(len(row)), beaten, -(found[row, rival] + 1.0), len(row))
    builder.add_rows(matrix, 0.0, np.inf, FREE)
    matrix = builder.matrix(np.arange(n), changed, 1.0, n) + builder.matrix(row, beaten, -1.0, n)
    builder.add_rows(matrix, -np.inf, 0.0, FREE)
    builder.add_rows(builder.matrix(np.zeros(parts, dtype=np.intp), gone, 1.0, 1), -np.inf, float(lost), FREE)
    program = builder.finish()
    objective = np.zeros(program.variables)
    objective[changed] = 1.0
    return program, Objective(objective, True)
