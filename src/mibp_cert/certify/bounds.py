"""Bounds of what a set of models computes for given inputs: one function for every engine, behind all postconditions.

A graph maps the parameters and rows `x` to one tensor (rows × outputs). Its values are enclosed for every `θ` in the set and,
where the inputs themselves may be perturbed, for every input that their own threat allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mibp_cert.engines import crown, interval
from mibp_cert.engines.base import Box, StepReport
from mibp_cert.engines.exact.encode import Encoder, Symbolic
from mibp_cert.engines.exact.engine import Brackets, bound_graph, treatments
from mibp_cert.engines.exact.solve import SolverSettings
from mibp_cert.engines.relational import engine as relational
from mibp_cert.engines.relational.engine import CaseSet, RelationalSet
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import UserError
from mibp_cert.graph import Graph
from mibp_cert.nets import Layout
from mibp_cert.parallel import WorkerPool
from mibp_cert.sets import Noise, ThreatSet

METHODS = ("interval", "crown", "relational", "exact")
SLICE = 50
"""Rows whose forms are held in memory at once."""
Maker = Callable[[int], Graph]
"""From a number of rows to a graph over the parameters and `x`, with one output (rows × outputs)."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Rows to predict: as handed in, and the set of rows that they may really be (None: exactly these)."""

    x: Array
    members: ThreatSet | None = None

    @property
    def range(self) -> Interval:
        if self.members is None:
            return Interval.point(self.x)
        hull = self.members.hull()
        return Interval(hull.x_low, hull.x_high)


def check_method(method: str, box: Box | None = None) -> None:
    """Raise `UserError` if there is no such method, or the set has no generators for it."""
    if method not in METHODS:
        raise UserError(f"There is no prediction called {method!r}; choose one of {', '.join(METHODS)}.")
    if method == "relational" and box is not None and not isinstance(box, RelationalSet | CaseSet):
        raise UserError("Relational prediction needs the engine 'relational'; choose --predict interval or exact.")


def enclose(make: Maker, layout: Layout, box: Box, inputs: Inputs, method: str, *, whole: bool = False) -> Interval:
    """Enclosure of the graph's output (rows × outputs) without a solver; `exact` starts from intervals.

    `whole`: the output is no table of rows, so that all rows must be in one graph.
    """
    check_method(method, box)
    if method == "relational":
        return union([relational_form(make, layout, state, inputs, whole=whole)[0] for state in states_of(box)])
    engine = crown if method == "crown" else interval
    graph = make(len(inputs.x))
    value: Interval = next(iter(engine.enclose(graph, {**box.tensors(layout), "x": inputs.range}).values()))
    return value


def states_of(box: Box) -> tuple[RelationalSet, ...]:
    """The relational sets that a set of the relational engine is the union of."""
    if isinstance(box, CaseSet):
        return box.states
    return (box,) if isinstance(box, RelationalSet) else ()


def union(intervals: list[Interval]) -> Interval:
    """Hull of intervals; NaN in any of them stays."""
    low, high = intervals[0].low, intervals[0].high
    for other in intervals[1:]:
        low, high = np.minimum(low, other.low), np.maximum(high, other.high)
    return Interval(low, high)


@dataclass(frozen=True, eq=False)
class LinearPart:
    """An output to first order: `centre + data·ε + inputs·ε' ± rest`, with the noise of the training data and of the inputs."""

    centre: Array
    data: Array
    inputs: Array
    rest: Array
    """What the other symbols and the slack can add or take away."""


def relational_form(
    make: Maker, layout: Layout, state: RelationalSet, inputs: Inputs, *, whole: bool = False
) -> tuple[Interval, LinearPart]:
    """Bounds of the output as one expression in the set's symbols, and its linear part."""
    noise = None if inputs.members is None else inputs.members.noise()
    both = state if noise is None else _with_noise(state, noise)
    parts: list[tuple[Array, ...]] = []
    known, box = state.data, inputs.range
    size = len(inputs.x) if whole else SLICE
    for start in range(0, len(inputs.x), size):
        rows = np.arange(start, min(start + size, len(inputs.x)))
        x = relational.input_form(both, noise, known, rows, box)
        form = relational.bound_outputs(make(len(rows)), both, layout, x)
        generators = form.dense()
        linear = np.zeros((*form.shape, both.data)) if generators is None else generators
        rest = form.slack + np.abs(linear[..., both.data :]).sum(axis=-1)
        if form.rows is not None:
            rest = rest + form.symbols.top(form.rows)
        data = _columns(linear, 0, known)
        parts.append((form.range.low, form.range.high, form.centre, data, _columns(linear, known, both.data), rest))
    low, high, centre, data, own, rest = (np.concatenate(piece) for piece in zip(*parts, strict=True))
    return Interval(low, high), LinearPart(centre, data, own, rest)


@dataclass(frozen=True, eq=False)
class SymbolForm:
    """An output over all symbols of a set: `centre + linear·ε ± rest`."""

    centre: Array
    linear: Array
    rest: Array


def relational_symbols(make: Maker, layout: Layout, state: RelationalSet, inputs: Inputs) -> SymbolForm:
    """The output as one form over every symbol of the set, and new ones that stand for what the graph adds."""
    x = relational.input_form(state, None, state.data, np.arange(len(inputs.x)), inputs.range)
    form = relational.bound_outputs(make(len(inputs.x)), state, layout, x)
    generators = form.dense()
    linear = np.zeros((*form.shape, 0)) if generators is None else generators
    rest = form.slack if form.rows is None else form.slack + form.symbols.top(form.rows)
    return SymbolForm(form.centre, _columns(linear, 0, form.symbols.count), np.asarray(rest))


def _columns(linear: Array, start: int, stop: int) -> Array:
    """Some columns of generators; those that were never needed are zero."""
    part = linear[..., start:stop]
    missing = stop - start - part.shape[-1]
    return part if missing == 0 else np.concatenate([part, np.zeros((*part.shape[:-1], missing))], axis=-1)


def _with_noise(state: RelationalSet, noise: Noise) -> RelationalSet:
    """The same set with room for the inputs' own noise, right after the training data's."""
    known, more = state.data, noise.symbols
    linear = np.concatenate(
        [state.linear[:, :known], np.zeros((len(state.middle), more)), state.linear[:, known:]], axis=1
    )
    size = known + more
    both = Noise(
        noise.x_centre,
        noise.y_centre,
        sparse.csr_matrix((noise.x_centre.size, size)),
        sparse.csr_matrix((noise.y_centre.size, size)),
        (*state.noise.blocks, *(block.shifted(known) for block in noise.blocks)),
    )
    return replace(state, linear=linear, noise=both)


def solve(
    make: Maker,
    layout: Layout,
    box: Box,
    inputs: Inputs,
    settings: SolverSettings,
    pool: WorkerPool,
    *,
    elements: NDArray[np.intp],
    is_open: Callable[[Brackets], NDArray[np.bool_]] | None = None,
    both: bool = True,
) -> tuple[Brackets, StepReport]:
    """Proven bounds of the listed elements of the output (flat), by the solver."""
    rows = np.arange(len(inputs.x), dtype=np.intp)

    def declare(encoder: Encoder) -> dict[str, Symbolic]:
        found = {name: encoder.box(tensor.low, tensor.high) for name, tensor in box.tensors(layout).items()}
        if inputs.members is None:
            return {**found, "x": encoder.box(inputs.x, inputs.x)}
        x, _ = inputs.members.constraints(encoder.builder, rows)
        return {**found, "x": encoder.declare(x, inputs.range.low, inputs.range.high)}

    ladder, graph = treatments(settings), make(len(inputs.x))
    return bound_graph(graph, declare, ladder, settings, pool, elements=elements, is_open=is_open, both=both)
