"""Conditions on outputs and parameters, in the language of the rules: written by a user, decided for a set of models.

Every expression of a condition becomes one output of a graph: `l = A·outputs + B·θ + c` for its linear parts, and products of two
of them. Bounds of those outputs decide comparisons, and three-valued logic the whole formula. The exact check asks the solver for
a model that breaks the condition: it minimises `t ≥ 0` such that the negation holds with every comparison relaxed by `t` radii. A
proven `t > 0` says that no model breaks it.
"""

from __future__ import annotations

import math
from functools import partial, reduce

import numpy as np

from mibp_cert.data import Column
from mibp_cert.engines import Engine, Inputs, MibpEngine, ParameterSet, Wanted
from mibp_cert.engines.exact.encode import Encoder
from mibp_cert.engines.exact.engine import Declare, declare_inputs, treatments
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import UserError
from mibp_cert.graph import Graph, GraphBuilder
from mibp_cert.logic import Atom, Comparison, Compiler, Expression, Formula, Joined, Key, Linear, Number
from mibp_cert.nets import Network
from mibp_cert.questions.collective import proven_ends
from mibp_cert.solvers import FEASIBILITY, Limits, Objective

LIMIT = 60.0
"""Seconds for the exact check of a condition, unless the settings say less."""


class Conditions:
    """What a user's condition is written with: outputs of the network for given rows, and its parameters."""

    def __init__(self, network: Network, theta: Array, rows: int, target: Column | None = None) -> None:
        self.network, self._theta, self.rows, self.target = network, theta, range(rows), target

    def out(self, row: int, output: int = 0) -> Expression:
        """Output number `output` for a row: a logit, or the value of a regression in the units of its targets."""
        if not self.rows:
            raise UserError("The condition speaks of outputs; hand in the rows they are for: holds(run, condition, x).")
        if row not in self.rows or not 0 <= output < self.network.logits:
            raise UserError(
                f"There is no output {output} of row {row}; there are {len(self.rows)} row(s) with {self.network.logits} each."
            )
        return Expression({("o", row * self.network.logits + output): 1.0})

    def parameter(self, name: str, *index: int) -> Expression:
        """An entry of a parameter tensor, such as `parameter("0.weight", 3, 1)`."""
        return Expression({("p", self._place(name, index)): 1.0})

    def clean(self, name: str, *index: int) -> float:
        """The clean model's value of the same entry."""
        return float(self._theta[self._place(name, index)])

    def _place(self, name: str, index: tuple[int, ...]) -> int:
        layout = self.network.layout
        if name not in layout.names:
            raise UserError(f"There is no parameter called {name!r}; choose one of {', '.join(layout.names)}.")
        which = layout.names.index(name)
        shape = layout.shapes[which]
        if len(index) != len(shape) or not all(0 <= i < n for i, n in zip(index, shape, strict=True)):
            raise UserError(f"The parameter {name!r} has the shape {shape}; {index} is no entry of it.")
        return layout.offsets[which] + int(np.ravel_multi_index(index, shape))


def prove(formula: Formula, model: Conditions, state: ParameterSet, inputs: Inputs, engine: Engine) -> bool | None:
    """True if the formula holds for every model of the set, False if it fails for every one, None if that is open."""
    parts = list(formula.atoms())
    if any(not isinstance(part, Comparison) for part in parts):
        raise UserError("Conditions on models are comparisons of outputs and parameters, combined with &, | and ~.")
    if not state.usable:
        return None
    layout = model.network.layout
    make = partial(_graph, model, [part.expression for part in parts])
    value, _ = engine.bound(make, layout, state, inputs, Wanted(whole=True))
    known = _decide(formula, {id(part): Interval(value.low[i], value.high[i]) for i, part in enumerate(parts)})
    if known is None and isinstance(formula, Joined) and isinstance(engine, MibpEngine):
        # A single comparison is decided by its range; several at once are a question to the solver.
        declare = partial(declare_inputs, layout=layout, state=state, inputs=inputs)
        known = _unbreakable(formula, parts, make(len(inputs.x)), declare, engine) or None
    return known


def _decide(formula: Formula, known: dict[int, Interval]) -> bool | None:
    """Three-valued logic over the bounds of the expressions; NaN decides nothing."""
    if isinstance(formula, Joined):
        parts = [_decide(part, known) for part in formula.parts]
        strong = not formula.every  # one part with this value decides the whole
        if strong in parts:
            return strong
        return None if None in parts else formula.every
    assert isinstance(formula, Comparison)
    low, high = float(known[id(formula)].low), float(known[id(formula)].high)
    zero, other = low == high == 0.0, low > 0.0 or high < 0.0
    yes, no = {
        "<=": (high <= 0.0, low > 0.0),
        "<": (high < 0.0, low >= 0.0),
        "==": (zero, other),
        "!=": (other, zero),
    }[formula.relation]
    return True if yes else False if no else None


def _graph(model: Conditions, expressions: list[Expression], rows: int) -> Graph:
    """Graph from parameters and `x` to the expressions' values (one output, a vector), outputs being in the user's units."""
    network, target = model.network, model.target
    products = [(number, a, b) for number, one in enumerate(expressions) for a, b in one.products]
    linear = [*expressions, *(part for _, a, b in products for part in (a, b))]
    g = GraphBuilder()
    parameters = network.parameter_inputs(g)
    logits, _ = network.forward(g, parameters, g.input("x", (rows, network.features)))
    g.origin = "condition"
    if target is not None:
        logits = g.add(g.scale(logits, target.scale), g.const(target.shift))
    layout = network.layout
    sources = [("o", 0, logits), *(("p", layout.offsets[i], parameters[n]) for i, n in enumerate(layout.names))]
    constants = _coefficients([{0: one.constant} for one in linear], 1)
    pieces = [g.scale(g.const(column[:, 0]), factor) for factor, column in constants]
    for kind, start, tensor in sources:
        shape = g.shape(tensor)
        found = [{place - start: q for (name, place), q in one.terms.items() if name == kind} for one in linear]
        for factor, matrix in _coefficients(found, math.prod(shape)):
            if matrix.any():
                letters = "abcd"[: len(shape)]
                weights = g.const(matrix.reshape(len(linear), *shape))
                pieces.append(g.scale(g.contract(f"{letters},e{letters}->e", tensor, weights), factor))
    total = reduce(g.add, pieces)
    value = g.gather(total, np.arange(len(expressions)), -1)
    if products:
        left, right = (g.gather(total, np.arange(len(expressions) + i, len(linear), 2), -1) for i in (0, 1))
        owner = np.equal.outer(np.arange(len(expressions)), [number for number, _, _ in products])
        value = g.add(value, g.contract("p,ep->e", g.multiply(left, right), g.const(owner)))
    return g.finish({"value": value})


def _coefficients(rows: list[dict[int, Number]], size: int) -> list[tuple[Number, Array]]:
    """Rows of coefficients as `Σ factor·matrix`: all that are floats at once, each other number as a factor of its own. A graph's
    factors are exact, whatever they are; engines cover what their multiplication rounds."""
    found: dict[Number, Array] = {1: np.zeros((len(rows), size))}
    for i, row in enumerate(rows):
        for place, exact in row.items():
            if 0 <= place < size:
                factor, entry = (1, float(exact)) if float(exact) == exact else (exact, 1.0)
                found.setdefault(factor, np.zeros((len(rows), size)))[i, place] = entry
    return list(found.items())


def _unbreakable(formula: Formula, parts: list[Atom], graph: Graph, declare: Declare, engine: MibpEngine) -> bool:
    """Does the solver prove that every model that comes near to breaking the formula is still away from it?"""
    settings = engine.settings
    for tolerance, bilinear in treatments(settings):
        encoder = Encoder(tolerance, bilinear=bilinear)
        values = encoder.encode(graph, declare(encoder))
        (found,) = (values[number] for number in graph.outputs.values())
        # Each expression is exactly middle + radius·e, by rows that allow for its slack.
        variables, sign = encoder.deviation(found, np.arange(len(parts), dtype=np.intp))
        slope, shift = encoder.unit(variables)
        # Far enough for the relaxed negation to have a solution, whatever it is.
        most = 2.0 + float((np.abs(found.middle) / np.maximum(found.radius, 1e-9)).max())
        (t,) = encoder.builder.add_variables(1, 0.0, most).tolist()
        numbers = (variables, sign * found.radius * slope, found.middle + sign * found.radius * shift)
        each = zip(*(part.tolist() for part in numbers), strict=True)
        known: dict[Key, Linear] = {("e", i): Linear({v: scale}, middle) for i, (v, scale, middle) in enumerate(each)}
        sizes = {id(part): (i, max(float(found.radius[i]), 1e-9)) for i, part in enumerate(parts)}
        compiler = Compiler(encoder.builder, {**known, ("t", 0): Linear({t: 1.0})})
        compiler.require(_strengthened(formula, sizes).negated())
        program = encoder.builder.finish()
        objective = np.zeros(program.variables)
        objective[t] = 1.0
        limits = Limits(min(LIMIT, settings.seconds_per_program), settings.nodes_per_program, 1e-5)
        task = (settings.solver, limits, [(program, Objective(objective, False))])
        ((_, proven),) = engine.pool.map(proven_ends, task, [[0]])
        if proven is not None and proven > 10.0 * FEASIBILITY:
            return True
    return False


def _strengthened(formula: Formula, sizes: dict[int, tuple[int, float]]) -> Formula:
    """The formula over the encoded expressions, *strengthened* by `t` radii, so that its negation is relaxed by them; `sizes`:
    number and radius of each comparison's expression."""
    if isinstance(formula, Joined):
        return Joined(tuple(_strengthened(part, sizes) for part in formula.parts), formula.every)
    assert isinstance(formula, Comparison)
    number, size = sizes[id(formula)]
    value, room = Expression({("e", number): 1.0}), Expression({("t", 0): size})
    if formula.relation == "!=":  # the negation of =, which is relaxed on both sides
        return (value > room) | (-value > room)
    below = value + room <= 0
    return below & (room - value <= 0) if formula.relation == "==" else below
