"""Postconditions beyond the class: statements about every model that training could have produced.

Each is answered for every `θ` in the certified set at once: *holds*, *fails* (for every model, or shown by a model that was
really trained), or *open*. Ranges of outputs and margins of at least δ are questions to the run itself (`run.ranges`,
`run.certify(margin=…)`); here are

- `fair`: the class stays the same whatever value a protected column takes;
- `monotone`: an output never falls (or never rises) while a column grows: its derivative has one sign on the whole segment;
- `holds`: any condition written in the language of the rules, over outputs and parameters;
- `Questions`: several of them, asked of one run together: what the command line and the JSON file know of postconditions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mibp_cert.certify.predict import ABSTAIN, Predictions, nominal_classes, nominal_outputs, predict
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.data import Column, Dataset, Split, Task
from mibp_cert.engines import Inputs, Wanted
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError
from mibp_cert.logic import Formula
from mibp_cert.questions.collective import collective
from mibp_cert.questions.conditions import Conditions, prove
from mibp_cert.sets import Part, ProductSet


class Verdict(Enum):
    """What is known about a statement."""

    def __repr__(self) -> str:
        return self.name

    HOLDS = "holds for every model"
    FAILS = "fails for a model that was trained, or for every model"
    OPEN = "not decided"


@dataclass(frozen=True, eq=False)
class Fairness:
    """Per row: is the class independent of the protected column? `certified` holds the classes that are certified for all values
    (−1: not), `broken` says where the clean model, or an attacked one, changes its class with the column."""

    def __repr__(self) -> str:
        return f"Fairness({', '.join(f'{name} {count}' for name, count in _count(self.verdicts).items())})"

    certified: Predictions
    broken: NDArray[np.bool_]

    @property
    def verdicts(self) -> list[Verdict]:
        return _verdicts(self.certified.classes != ABSTAIN, self.broken)


def _verdicts(proven: NDArray[np.bool_], broken: NDArray[np.bool_]) -> list[Verdict]:
    """Row by row: proven for every model, broken by one, or neither."""
    pairs = zip(proven.tolist(), broken.tolist(), strict=True)
    return [Verdict.HOLDS if ok else Verdict.FAILS if bad else Verdict.OPEN for ok, bad in pairs]


def fair(run: CertifiedRun, x: ArrayLike, column: str | int, method: str | None = None) -> Fairness:
    """Is the class of each row the same whatever value a protected column takes, for every model of the set?

    A categorical column takes each of its categories, a numeric one every number between its smallest and largest training value
    (and the row's own).
    """
    rows = _rows(run, x)
    if run.train.task is Task.NUMBERS:
        raise UserError("Fairness is about classes; this run is a regression: ask for ranges(x, threat=…).")
    protected = run.train.columns[run.train.column(column)]
    span = slice(protected.start, protected.stop)
    if protected.categories is not None:
        tried = [_with(rows, span, one) for one in np.eye(len(protected.categories))]
        variants = [Inputs(changed) for changed in tried]
    else:
        values, own = run.train.x[:, protected.start], rows[:, protected.start]
        low, high = np.minimum(own, values.min()), np.maximum(own, values.max())
        tried = [_with(rows, span, (low + share * (high - low))[:, None]) for share in (0.0, 0.5, 1.0)]
        variants = [Inputs(rows, _span(run.train.like(rows), protected.start, low, high))]
    with run.predictor(method) as engine:
        answers = [predict(run.network, run.bounds, inputs, engine) for inputs in variants]
    first = answers[0]
    # One class for all values: certified for each, and the same.
    same = np.all([a.classes == first.classes for a in answers], axis=0) & first.certified
    margin = np.min([a.margin for a in answers], axis=0)
    margin_high = np.max([a.margin_high for a in answers], axis=0)
    classes = np.where(same, first.classes, ABSTAIN).astype(np.intp)
    certified = replace(first, classes=classes, margin=margin, margin_high=margin_high)
    return Fairness(certified, _changes(run, tried))


def _changes(run: CertifiedRun, tried: list[Array]) -> NDArray[np.bool_]:
    """Where a really trained model (the clean one and the attacked ones) gives different classes for the rows with different
    values."""
    models = run.theta[None] if run.attack is None else np.concatenate([run.theta[None], run.attack.theta[:50]])
    broken = np.zeros(len(tried[0]), dtype=bool)
    for theta in models:
        classes = np.stack([nominal_classes(run.network, theta, x) for x in tried])
        broken |= (classes != classes[0]).any(axis=0)
    return broken


def monotone(
    run: CertifiedRun,
    x: ArrayLike,
    column: str | int,
    *,
    rising: bool = True,
    output: int | None = None,
    limits: tuple[float, float] | None = None,
    method: str | None = None,
) -> list[Verdict]:
    """For each row, while a numeric column runs through `limits` (its training range, in the units of the table): does an output
    never fall (`rising`), or never rise, for every model of the set?

    `output`: which one (default the last: the logit of class 1, or the value of a regression); with several logits, its lead over
    the first one. Proven by bounds of the derivative; a model that was really trained can show the opposite.
    """
    rows = _rows(run, x)
    if output is not None and not 0 <= output < run.network.logits:
        raise UserError(f"There is no output {output}; the network has {run.network.logits}.")
    known = _numeric(run.train, column)
    ends = _ends(run, known, limits)
    network, sign = run.network, 1.0 if rising else -1.0
    direction = np.zeros(network.logits)
    direction[network.logits - 1 if output is None else output] = sign
    if network.logits > 1 and (output is None or output != 0):
        direction[0] -= sign
    inputs = Inputs(rows, _span(run.train.like(rows), known.start, *ends))
    make = partial(network.slope_graph, direction=direction, feature=known.start)
    with run.predictor(method) as engine:
        found, _ = engine.bound(make, network.layout, run.bounds, inputs, Wanted(enough=lambda low: low >= 0))
    never = (found.sound & (found.low >= 0))[:, 0]
    # Does the clean model's output clearly fall between two of a few values of the column?
    tried = [_with(rows, slice(known.start, known.stop), value) for value in np.linspace(*ends, 9)]
    path = np.stack([nominal_outputs(network, run.theta, changed) @ direction for changed in tried])
    falls = np.any(np.diff(path, axis=0) < -1e-9 * (1.0 + np.abs(path[1:])), axis=0)
    return _verdicts(never, falls)


def _numeric(data: Dataset, column: str | int) -> Column:
    known = data.columns[data.column(column)]
    if known.categories is not None:
        raise UserError(f"The column '{known.name}' is categorical; only numbers can rise or fall.")
    return known


def _ends(run: CertifiedRun, column: Column, limits: tuple[float, float] | None) -> tuple[float, float]:
    """The limits of a numeric column as values of its feature; by default its training range."""
    values = run.train.x[:, column.start]
    low, high = float(values.min()), float(values.max())
    if limits is not None:
        if np.shape(limits) != (2,):
            raise UserError(f"The limits are a pair (low, high) in the units of the table, got {limits!r}.")
        low, high = (float(column.to_feature(end)) for end in limits)
    if not low <= high:
        raise UserError(f"The limits must be in order, got {limits}.")
    return low, high


def holds(
    run: CertifiedRun, condition: Callable[[Conditions], Formula], x: ArrayLike | None = None, method: str | None = None
) -> Verdict:
    """Does a condition on outputs and parameters hold for every model of the set?

    `condition` gets a model `m` with `m.out(row, k)` (output `k` for a row of `x`; of a regression in the units of its targets),
    `m.parameter(name, i, j)` and the clean model's `m.clean(name, i, j)`, and returns a formula of the rules' language:
    comparisons, `&`, `|`, `~`, `implies`. Linear conditions, and products of two linear expressions, are decided by bounds in
    every engine; with `method="exact"` the solver decides whether a model of the set can break the condition as a whole. What
    holds with equality at best, or only up to the solver's tolerance, stays open.

    >>> from mibp_cert import LInf, Network, Training, certify_training, two_moons
    >>> run = certify_training(Network.mlp([2, 2]), two_moons(0), LInf(0.01), Training(epochs=1))
    >>> holds(run, lambda m: m.parameter("0.bias", 0) - m.clean("0.bias", 0) <= 1.0)
    HOLDS
    """
    run.check_reached()
    rows = np.zeros((1, run.network.features)) if x is None else _rows(run, x)
    model = Conditions(run.network, run.theta, len(rows) if x is not None else 0, run.train.target)
    formula = condition(model)
    if not isinstance(formula, Formula):
        raise UserError(f"The condition must return a rule such as a <= b, got {formula!r}.")
    with run.predictor(method) as engine:
        known = prove(formula, model, run.bounds, Inputs(rows), engine)
    return Verdict.OPEN if known is None else Verdict.HOLDS if known else Verdict.FAILS


def _rows(run: CertifiedRun, x: ArrayLike) -> Array:
    """Checked rows, of a run whose bounds reached the end of its training."""
    run.check_reached()
    return run.inputs(x).x


def _with(rows: Array, span: slice, value: ArrayLike) -> Array:
    """The rows with another value of some features."""
    changed = np.array(rows)
    changed[:, span] = value
    return changed


def _span(data: Dataset, feature: int, low: Array | float, high: Array | float) -> ProductSet:
    """All datasets in which one feature takes any value in `[low, high]`, row by row."""
    n = len(data)
    rows, sizes, ends = np.arange(n, dtype=np.intp), np.ones(n, dtype=np.intp), (np.zeros(n) + low, np.zeros(n) + high)
    places, fill = rows * data.features + feature, np.clip(data.x[:, feature], low, high)
    return ProductSet(data, [Part("box", "x", rows, sizes, places, *ends, fill=fill, without_clean=True)], [])


@dataclass(frozen=True)
class Questions:
    """About the test points: a margin of at least `margin`; the same class whatever a `protected` column is; outputs that only
    rise (or fall) with a column; and how many predictions can flip at once."""

    margin: float | None = None
    protected: tuple[str, ...] = ()
    rising: tuple[str, ...] = ()
    falling: tuple[str, ...] = ()
    collective: bool = False

    def check(self, data: Split, *, test_threat: bool = False) -> None:
        """Refuse before any work is done what these data cannot answer; `test_threat`: the test inputs may be wrong, too."""
        if self.collective and test_threat:
            raise UserError("Joint flips are about one training dataset; leave out the noise of the test inputs.")
        for name in self.protected:
            data.train.column(name)
        for name in (*self.rising, *self.falling):
            _numeric(data.train, name)
        if data.train.task is Task.NUMBERS and (self.margin is not None or self.protected or self.collective):
            raise UserError(
                "Margins, protected columns and joint flips are about classes; these data have real targets."
            )
        if self.margin is not None and not self.margin >= 0:
            raise UserError(f"The margin asked for must be a number ≥ 0, got {self.margin}.")

    def ask(self, run: CertifiedRun) -> dict[str, Any]:
        """The answers as plain data, counts over the test points."""
        if run.data.test is None:
            raise UserError("These questions are about test points; the data have none.")
        if not run.reached:
            return {}  # nothing is known about the training asked for
        x, found = run.data.tested.x, dict[str, Any]()
        if self.margin is not None:
            inputs = run.certify_inputs(run.test_inputs(), margin=self.margin)
            found["margin"] = {
                "at_least": self.margin,
                "certification_rate": inputs.certification_rate(),
                "certified_accuracy": inputs.certified_accuracy(run.data.tested.y),
            }
        if self.protected:
            found["protected"] = {name: _count(fair(run, x, name).verdicts) for name in self.protected}
        for name, columns, rising in (("rising", self.rising, True), ("falling", self.falling, False)):
            if columns:
                found["output"] = _output(run)
                found[name] = {column: _count(monotone(run, x, column, rising=rising)) for column in columns}
        if self.collective:
            found["collective"] = collective(run).to_json()
        return found


def _output(run: CertifiedRun) -> str:
    """What rises or falls, in words."""
    classes = run.train.classes
    return "output" if run.train.task is Task.NUMBERS else f"lead of class {classes[-1]!r} over {classes[0]!r}"


def _count(verdicts: list[Verdict]) -> dict[str, int]:
    return {verdict.name.lower(): verdicts.count(verdict) for verdict in Verdict}


def describe(answers: dict[str, Any]) -> list[str]:
    """The answers in sentences."""
    lines = []
    if "margin" in answers:
        a = answers["margin"]
        lines.append(
            f"Margin of at least {a['at_least']:g}: certified for {100 * a['certification_rate']:.1f} % of the test points, "
            f"certified and correct for {100 * a['certified_accuracy']:.1f} %."
        )
    output = answers.get("output", "output")
    output = f"{output[0].upper()}{output[1:]}"
    words = (
        ("protected", "Same class whatever", " is"),
        ("rising", f"{output} only rises with", ""),
        ("falling", f"{output} only falls with", ""),
    )
    for kind, before, after in words:
        for column, a in answers.get(kind, {}).items():
            count = f"holds for {a['holds']} test points, fails for {a['fails']}, open for {a['open']}"
            lines.append(f"{before} '{column}'{after}: {count}.")
    if "collective" in answers:
        a = answers["collective"]
        # Bounds that meet leave one number, also where not every member was tried.
        known = a["exact"] or a["reached"] == a["proven"]
        count = f"exactly {a['reached']}" if known else f"at least {a['reached']} and at most {a['proven']}"
        lines.append(
            f"Flips at once: {count} of {a['points']} test predictions under one dataset; {a['single']} are not certified one "
            "by one."
        )
    return lines
