"""Prediction with a set of parameters (the paper's Algorithm 2).

A class `u` is certified for an input when `o_u − o_v > 0` for every other class `v` and every `θ` in the set; otherwise the
answer is *abstain*. With one logit the margin is `o` for class 1 and `−o` for class 0. Ties, NaN and infinities abstain. Only
the class at the centre of the set can be certified, so only its margins are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mibp_cert.engines import interval
from mibp_cert.engines.base import Box, StepReport
from mibp_cert.engines.concrete import evaluate
from mibp_cert.engines.encode import Encoder, Symbolic
from mibp_cert.engines.exact import SolverSettings
from mibp_cert.engines.mibp import Brackets, bound_graph, treatments
from mibp_cert.engines.relational import CaseSet, RelationalSet, bound_outputs
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import UserError
from mibp_cert.nets import Network
from mibp_cert.solvers import WorkerPool

ABSTAIN = -1
PREDICTIONS = ("interval", "relational", "exact")
SLICE = 50
"""Rows whose forms are held in memory at once."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Certified class numbers (−1: abstain), the class at the centre of the set, and a proven lower bound of its margin."""

    classes: NDArray[np.intp]
    centre: NDArray[np.intp]
    margin: Array
    method: str
    report: StepReport

    @property
    def certified(self) -> NDArray[np.bool_]:
        return np.asarray(self.classes != ABSTAIN)

    def certified_accuracy(self, y: NDArray[np.intp]) -> float:
        """Certified and correct, divided by all."""
        return float(np.mean(self.classes == y))

    def certification_rate(self) -> float:
        """Certified, divided by all."""
        return float(np.mean(self.certified))


def nominal_classes(network: Network, theta: Array, x: Array) -> NDArray[np.intp]:
    """The class that ordinary evaluation gives: the largest logit, or the sign of the only one."""
    logits = evaluate(network.forward_graph(len(x)), {**network.layout.unflatten(theta), "x": x})["logits"]
    classes = logits.argmax(axis=-1) if network.logits > 1 else (logits[..., 0] > 0)
    return np.asarray(classes, dtype=np.intp)


def margin_pairs(network: Network) -> tuple[Array, NDArray[np.intp]]:
    """Rows `e_u − e_v` for all ordered pairs of classes, and the class `u` that each row speaks for."""
    if network.logits == 1:
        return np.array([[-1.0], [1.0]]), np.array([0, 1], dtype=np.intp)
    identity = np.eye(network.logits)
    pairs = [(u, v) for u in range(network.logits) for v in range(network.logits) if u != v]
    return np.array([identity[u] - identity[v] for u, v in pairs]), np.array([u for u, _ in pairs], dtype=np.intp)


def predict(
    network: Network,
    box: Box,
    x: Array,
    method: str = "interval",
    settings: SolverSettings | None = None,
    pool: WorkerPool | None = None,
) -> Predictions:
    """Certified classes of the rows of `x` for every `θ` in the box; `exact` asks the solver where intervals do not decide."""
    if method not in PREDICTIONS:
        raise UserError(f"There is no prediction called {method!r}; choose one of {', '.join(PREDICTIONS)}.")
    pairs, speaks_for = margin_pairs(network)
    centre = nominal_classes(network, box.centre, x)
    relevant = speaks_for[None, :] == centre[:, None]
    if method == "relational":
        if not isinstance(box, RelationalSet | CaseSet):
            raise UserError("Relational prediction needs the engine 'relational'; choose --predict interval or exact.")
        enclosure = _union([relational_margins(network, state, x, pairs)[0] for state in states_of(box)])
    else:
        enclosure = interval.enclose(
            network.margin_graph(len(x), pairs), {**box.tensors(network.layout), "x": Interval.point(x)}
        )["margins"]
    margin = np.where(relevant, np.where(enclosure.sound, enclosure.low, -np.inf), np.inf).min(axis=1)
    report = StepReport()
    usable = bool(Interval(box.lower, box.upper).sound.all())
    undecided = np.flatnonzero(~(margin > 0))
    if method == "exact" and len(undecided) and usable:
        owned = WorkerPool((settings or SolverSettings()).jobs) if pool is None else pool
        try:
            refined, report = _exact_margins(
                network, box, x[undecided], pairs, relevant[undecided], settings or SolverSettings(), owned
            )
        finally:
            if pool is None:
                owned.close()
        margin[undecided] = np.maximum(margin[undecided], refined)
    decided = (margin > 0) & np.isfinite(margin) if usable else np.zeros(len(x), dtype=bool)
    return Predictions(np.where(decided, centre, ABSTAIN).astype(np.intp), centre, margin, method, report)


def states_of(box: Box) -> tuple[RelationalSet, ...]:
    """The relational sets that a set of the relational engine is the union of."""
    if isinstance(box, CaseSet):
        return box.states
    return (box,) if isinstance(box, RelationalSet) else ()


def _union(intervals: list[Interval]) -> Interval:
    """Hull of intervals; NaN in any of them stays."""
    low, high = intervals[0].low, intervals[0].high
    for other in intervals[1:]:
        low, high = np.minimum(low, other.low), np.maximum(high, other.high)
    return Interval(low, high)


def relational_margins(network: Network, state: RelationalSet, x: Array, pairs: Array) -> tuple[Interval, Array]:
    """Bounds of all margins (rows × pairs) as single expressions, and their coefficients on the data's noise."""
    low, high, linear = [], [], []
    for start in range(0, len(x), SLICE):
        rows = x[start : start + SLICE]
        form = bound_outputs(network.margin_graph(len(rows), pairs), state, network.layout, rows)["margins"]
        generators = form.dense()
        low.append(form.range.low)
        high.append(form.range.high)
        linear.append(np.zeros((*form.shape, state.data)) if generators is None else generators[..., : state.data])
    return Interval(np.concatenate(low), np.concatenate(high)), np.concatenate(linear)


def _exact_margins(
    network: Network,
    box: Box,
    x: Array,
    pairs: Array,
    relevant: NDArray[np.bool_],
    settings: SolverSettings,
    pool: WorkerPool,
) -> tuple[Array, StepReport]:
    """Proven lower bounds of the relevant margins, refined until their sign is known or the treatments are used up."""

    def declare(encoder: Encoder) -> dict[str, Symbolic]:
        inputs = {name: encoder.box(tensor.low, tensor.high) for name, tensor in box.tensors(network.layout).items()}
        return {**inputs, "x": encoder.box(x, x)}

    def is_open(found: Brackets) -> NDArray[np.bool_]:
        # A true margin ≤ 0 settles the point as well: it cannot be certified.
        return (found.lower <= 0) & ~(found.inner_low <= 0)

    elements = np.flatnonzero(relevant.ravel()).astype(np.intp)
    found, report = bound_graph(
        network.margin_graph(len(x), pairs),
        declare,
        treatments(settings),
        settings,
        pool,
        elements=elements,
        is_open=is_open,
        both=False,
    )
    return np.where(relevant, found.lower.reshape(relevant.shape), np.inf).min(axis=1), report
