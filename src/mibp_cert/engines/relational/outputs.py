"""What the models of a relational set compute, as one expression in the set's symbols: bounds, and their linear part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mibp_cert.engines.base import Inputs, Maker
from mibp_cert.engines.relational.forms import Form, Symbols, upward
from mibp_cert.engines.relational.rules import AffineRules
from mibp_cert.engines.relational.sets import RelationalSet
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.graph import Graph, interpret
from mibp_cert.nets import Layout, Step
from mibp_cert.sets import Noise, ThreatSet

SLICE = 50
"""Rows whose forms are held in memory at once."""


@dataclass(frozen=True, eq=False)
class LinearPart:
    """An output to first order: `centre + data·ε + inputs·ε' ± rest`, with the noise of the training data and of the inputs."""

    centre: Array
    data: Array
    inputs: Array
    rest: Array
    """What the other symbols and the slack can add or take away."""


def linear_part(
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
        x = input_form(both, noise, known, rows, box)
        form = bound_outputs(make(len(rows)), both, layout, x)
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


def symbol_form(make: Maker, layout: Layout, state: RelationalSet, inputs: Inputs) -> SymbolForm:
    """The output as one form over every symbol of the set, and new ones that stand for what the graph adds."""
    x = input_form(state, None, state.data, np.arange(len(inputs.x)), inputs.range)
    form = bound_outputs(make(len(inputs.x)), state, layout, x)
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


def symbols_of(state: RelationalSet) -> Symbols:
    """The symbols of a set, ready for new ones."""
    symbols = Symbols(state.noise.blocks, state.data)
    symbols.count = state.linear.shape[1]
    return symbols


def input_form(state: RelationalSet, noise: Noise | None, start: int, rows: NDArray[np.intp], box: Interval) -> Form:
    """Rows of inputs as a form over the set's symbols: known numbers, or `noise` whose symbols begin at number `start`."""
    symbols = symbols_of(state)
    if noise is None:
        return Form.constant(symbols, box[rows])
    moved = sparse.hstack([sparse.csr_matrix((noise.x_linear.shape[0], start)), noise.x_linear], format="csr")
    return _rows(symbols, noise.x_centre, moved, rows, box)


def bound_outputs(graph: Graph, state: RelationalSet, layout: Layout, x: Form) -> Form:
    """The one output of a graph over the parameters and inputs `x`, as a form over the set's symbols."""
    symbols = x.symbols
    rules = AffineRules(symbols)
    inputs = {**state.forms(layout, symbols), "x": x}
    with np.errstate(all="ignore"):
        values = interpret(graph, dict.fromkeys(rules.table, rules.apply), inputs, engine="relational")
        (number,) = graph.outputs.values()
        return values[number].tighten()


def data_forms(symbols: Symbols, noise: Noise, step: Step, threat: ThreatSet) -> dict[str, Form]:
    """Features and labels of the step's rows as forms over the data's symbols."""
    hull = threat.hull()
    return {
        "x": _rows(symbols, noise.x_centre, noise.x_linear, step.rows, Interval(hull.x_low, hull.x_high)),
        "y": _rows(symbols, noise.y_centre, noise.y_linear, step.rows, Interval(hull.y_low, hull.y_high)),
    }


def _rows(symbols: Symbols, centre: Array, linear: Any, rows: NDArray[np.intp], hull: Interval) -> Form:
    shape = (len(rows), centre.shape[1])
    cells = (rows[:, None] * centre.shape[1] + np.arange(centre.shape[1])).ravel()
    part = linear[cells]
    count = np.diff(part.indptr)
    box = hull[rows]
    zero = np.zeros(shape)
    if part.nnz == 0:
        return Form.constant(symbols, box)
    if count.max() <= 1 and len(np.unique(part.indices)) == part.nnz:
        own, weight = np.full(len(cells), -1, dtype=np.intp), np.zeros(len(cells))
        own[count == 1], weight[count == 1] = part.indices, part.data
        raw = upward(np.abs(weight) * np.where(own < 0, 0.0, symbols.largest[own]), 1).reshape(shape)
        return Form(symbols, centre[rows], None, zero, box, raw, own.reshape(shape), weight.reshape(shape), tight=True)
    dense = part.toarray().reshape(*shape, -1)
    return Form(symbols, centre[rows], dense, zero, box, symbols.magnitude(dense), tight=True)
