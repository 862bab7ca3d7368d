"""How many predictions can change at once: lost parts are the same for all of them.

A certificate for each row takes the worst parts for that row; one dataset has one set of lost parts. With `s_p ∈ {0, 1}` for
a lost part, `z_td ∈ {0, 1}` for a test row `t` whose class `c` is beaten by `d`, and `g_tpd` by how much the loss of part `p`
can lower `N_c − N_d` (2 if it votes for `c`, 0 if it votes for `d`, else 1), at most

    max Σ_t f_t   subject to   Σ_p g_tpd s_p ≥ (N_c − N_d + 1 − [d < c]) z_td,   f_t ≤ Σ_d z_td,   Σ_p s_p ≤ q,   f_t ≤ 1

predictions change for `q` lost parts, and no fewer if lost parts vote for anything: a covering problem. (Rows whose class
stands for `q` lost parts are left out; for a label that nobody has it is the same with a lead of `N_c − 1`.) The solver's
proven bound is an upper bound also where it was stopped. Collective certificates of votes: Chen et al. 2022.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.ensembles.votes import Index, counted, leads, winner
from mibp_cert.solvers import FEASIBILITY, Limits, Objective, Program, ProgramBuilder, solver_named
from mibp_cert.solvers.program import FREE


def most_changed(votes: Index, classes: int, lost: int, seconds: float = 60.0, solver: str = "highs") -> int:
    """How many of these predictions (votes of rows × parts) can change at once if so many parts are lost.

    >>> votes = np.array([[0, 0, 1, 0, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]])
    >>> [most_changed(votes, 2, q) for q in range(4)]
    [0, 2, 2, 3]
    """
    found = leads(counted(votes, classes), winner(counted(votes, classes)))
    open_ = np.flatnonzero(found.min(axis=1) < 2 * lost)
    if not len(open_) or not lost:
        return int((found.min(axis=1) < 0).sum())
    program, objective = _program(votes[open_], found[open_], classes, lost)
    bound = solver_named(solver).solve(program, [objective], Limits(seconds, None, 0.5))[0].proven
    return (
        len(open_) if not np.isfinite(bound) else min(len(open_), int(np.floor(bound + (1 + len(open_)) * FEASIBILITY)))
    )


def _program(votes: Index, found: Index, classes: int, lost: int) -> tuple[Program, Objective]:
    n, parts = votes.shape
    own = winner(counted(votes, classes))
    row, rival = np.nonzero(found < 2 * lost)
    rivals = np.where(rival == classes, -3, rival)  # nobody votes for the label that nobody has
    now = votes[row]
    gain = np.where(now == own[row][:, None], 2, np.where(now == rivals[:, None], 0, 1))
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
