"""Collective robustness: how many test predictions can flip at once, under one dataset.

Points that are not certified one by one need not be able to flip together: one dataset would have to do it for all. With the
relational set, the margin of each point is `c + G·ε ± r` over the *same* symbols, so the largest number of joint flips is at most

    max Σ f_i    subject to   c_i + G_i·ε − r_i ≤ M_i·(1 − f_i),   ε ∈ 𝓔,   f_i ∈ {0, 1}

(one row for each other class, at least one of which must hold). The solver's proven bound is an upper bound, the strongest attack
a lower one. Where the threat has finitely many members, all of them can be tried.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from mibp_cert.certify.predict import margin_pairs, nominal_classes
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.engines import Inputs
from mibp_cert.engines.relational import RelationalSet, states_of, symbol_form
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError
from mibp_cert.nets import run_steps
from mibp_cert.parallel import WorkerPool
from mibp_cert.sets import Budgeted, Plain, Segments
from mibp_cert.solvers import FEASIBILITY, Limits, Objective, Program, ProgramBuilder, solver_named
from mibp_cert.solvers.program import FREE, Index


@dataclass(frozen=True)
class Flips:
    """How many of `points` test predictions differ from the clean model's at once: at least `reached` (by a dataset that was
    trained), at most `proven`; `single` of them are not certified one by one."""

    points: int
    single: int
    reached: int
    proven: int
    exact: bool
    """Every member of the threat was tried: `reached` is the true number."""

    def to_json(self) -> dict[str, int | bool]:
        return asdict(self)


def collective(run: CertifiedRun, seconds: float = 60.0, members: int = 20_000) -> Flips:
    """Largest number of joint flips among the run's test points: proven, reached, and exact if the threat has at most `members`
    members. Without the relational engine only the number of uncertified points is proven."""
    if run.data.test is None or run.test is None or run.nominal is None:
        raise UserError("Collective flips need a run on data with classes and a test part.")
    if run.test_threat is not None:
        raise UserError("Collective flips are about one training dataset; leave out the threat on the test inputs.")
    run.check_reached()
    single = ~(run.test.classes == run.nominal)
    proven = int(single.sum())
    reached = 0 if run.attack is None else run.attack.flips
    states = states_of(run.bounds)
    if states:
        x, nominal = run.data.tested.x[single], run.nominal[single]
        proven = min(proven, _proven(run, states, x, nominal, seconds))
    everything = run.request.members.members(members)
    if everything is not None:
        reached = max(reached, _most(run, everything))
        proven = min(proven, reached)
    return Flips(len(single), int(single.sum()), reached, proven, everything is not None)


def _most(run: CertifiedRun, members: list[tuple[Array, Array]]) -> int:
    """Most flips over datasets that are all trained for real."""
    plan, most = run.request.plan, 0
    for start in range(0, len(members), 64):
        x, y = (np.stack(part) for part in zip(*members[start : start + 64], strict=True))
        theta = run_steps(plan.steps[: run.steps], np.broadcast_to(plan.begin, (len(x), len(plan.begin))), x, y)
        for one in theta[:, : run.network.layout.size]:
            most = max(most, int((nominal_classes(run.network, one, run.data.tested.x) != run.nominal).sum()))
    return most


def _proven(run: CertifiedRun, states: tuple[RelationalSet, ...], x: Array, nominal: Index, seconds: float) -> int:
    """The solver's proven bound on joint flips of these points; the true dataset belongs to one of the states."""
    if not len(x):
        return 0
    tasks = [task for state in states if (task := _program(run, state, x, nominal)) is not None]
    if len(tasks) < len(states):
        return len(x)
    limits = Limits(seconds / len(tasks), None, 0.5)
    with WorkerPool(run.solver.jobs, run.solver.parallel) as pool:
        answers = pool.map(proven_ends, ("highs", limits, tasks), [[i] for i in range(len(tasks))])
        found = [np.inf if value is None else value for _, value in answers]
    if not np.isfinite(found).all():
        return len(x)
    return min(len(x), int(np.floor(max(found) + (1 + len(x)) * FEASIBILITY)))


def _program(run: CertifiedRun, state: RelationalSet, x: Array, nominal: Index) -> tuple[Program, Objective] | None:
    """The module's program for one state, or None where its margins are not finite."""
    pairs, speaks_for = margin_pairs(run.network)
    form = symbol_form(lambda n: run.network.margin_graph(n, pairs), run.network.layout, state, Inputs(x))
    if not (np.isfinite(form.centre).all() and np.isfinite(form.rest).all()):
        return None
    builder = ProgramBuilder()
    symbols = _symbols(builder, state, form.linear.shape[-1])
    point, pair = np.nonzero(speaks_for == nominal[:, None])
    centre, rest, g = (part[point, pair] for part in (form.centre, form.rest, form.linear))
    flips = builder.add_variables(len(x), 0.0, 1.0, integer=True)
    chosen = builder.add_variables(len(point), 0.0, 1.0, integer=True)
    size = np.abs(centre) + np.abs(g).sum(axis=-1)
    rest = rest + 1e-9 * size  # rounding of a row is far below this allowance
    row, symbol = np.nonzero(g)
    matrix = builder.matrix(row, symbols[symbol], g[row, symbol], len(point))
    matrix += builder.matrix(np.arange(len(point)), chosen, size + rest)
    builder.add_rows(matrix, -np.inf, size + rest + rest - centre, FREE)
    matrix = builder.matrix(np.arange(len(x)), flips, 1.0) + builder.matrix(point, chosen, -1.0, len(x))
    builder.add_rows(matrix, -np.inf, 0.0, FREE)
    program = builder.finish()
    objective = np.zeros(program.variables)
    objective[flips] = 1.0
    return program, Objective(objective, True)


def proven_ends(task: tuple[str, Limits, list[tuple[Program, Objective]]], items: list[int]) -> list[float]:
    """Runs in a worker process: the proven bounds of these programs' objectives."""
    name, limits, programs = task
    solver = solver_named(name)
    return [solver.solve(programs[i][0], [programs[i][1]], limits)[0].proven for i in items]


def _symbols(builder: ProgramBuilder, state: RelationalSet, count: int) -> Index:
    """One variable for each symbol, with the constraints of its block; what is left out only enlarges the set."""
    variables = builder.add_variables(count)
    for block in state.noise.blocks:
        if isinstance(block, Plain):
            _segments(builder, block.pieces, variables[block.symbols], None)
        elif isinstance(block, Budgeted):
            switch = builder.add_variables(len(block.members), 0.0, 1.0, integer=True)
            ends = np.cumsum([child.count for child in block.children])[:-1]
            for child, own in zip(block.children, np.split(variables[block.symbols], ends), strict=True):
                rows = np.searchsorted(block.members, np.repeat(child.rows, child.sizes))
                _segments(builder, child, own, switch[rows])
            total = builder.matrix(np.zeros(len(switch), dtype=np.intp), switch, 1.0, 1)
            builder.add_rows(total, -np.inf, float(block.most), FREE)
    return variables


def _segments(builder: ProgramBuilder, pieces: Segments, symbols: Index, switch: Index | None) -> None:
    """`low ≤ ε ≤ high` (times a switch), and sums of choices. A piece that is switched off is at 0, so that its choices sum up to
    at most 1, of whatever kind it is; without a switch, they may have to sum up to exactly 1."""
    each = np.arange(len(symbols))
    low, high = (-pieces.magnitude(), pieces.magnitude()) if pieces.kind in ("l1", "l2") else (pieces.low, pieces.high)
    for sign, end in ((1.0, high), (-1.0, -low)):  # sign·ε ≤ end (· switch)
        matrix = builder.matrix(each, symbols, sign)
        if switch is not None:
            matrix += builder.matrix(each, switch, -end)
        builder.add_rows(matrix, -np.inf, end if switch is None else 0.0, FREE)
    if pieces.kind in ("choice", "corner"):
        piece = np.repeat(np.arange(len(pieces.sizes)), pieces.sizes)
        exactly = pieces.kind == "choice" and switch is None
        total = builder.matrix(piece, symbols, 1.0, len(pieces.sizes))
        builder.add_rows(total, 1.0 if exactly else -np.inf, 1.0, FREE)
