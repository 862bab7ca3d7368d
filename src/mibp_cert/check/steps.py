"""A training in steps, proven on its own: boxes that hold every model, and the answers that follow from the last of them.

**Claimed**, and taken as given: the encoded data `(X, Y)`; the threat, a description in plain data; the network; the initial
parameters `θ₀`; loss, optimiser, schedule, batch size and seed; a box `Θ_t` for every step `t = 1 … T`; answers for test rows.

**Training.** `B_t` are the rows that `batches` draws from the seed with NumPy's generator, and `λ_t` the float64 numbers of `rates`.
With `g_t` the mean over `B_t` of the loss's gradients at `θ_{t−1}`, each entry clipped to `±clip` if that is asked for,

    v_t = μ·v_{t−1} + g_t + κ·θ_{t−1},    θ_t = θ_{t−1} − λ_t·v_t,    v₀ = 0,

in real arithmetic; with `μ ≠ 0` the state, and each box, is `(θ, v)`. relu has the derivative 0 at 0 (the leaky one its slope), a hinge
is active at margin exactly 1; at such kinks both sides are allowed here, which only adds models. Losses of a row with outputs `o`:
hinge `Σ_{c≠y} max(0, 1 − o_y + o_c)`, or `max(0, 1 − y·o)` of one output, `y = ±1`; squared hinge, the sum of their squares;
cross-entropy; squared error `Σ(o − Y)²`, `Y` a target or a one-hot label; Huber, `½r²` for `|r| ≤ 1` and `|r| − ½` beyond, `r = o − Y`.

**Datasets.** `Data` states, kind by kind, how far the threat lets each cell move, and which categories and labels it allows. Any
dataset within all of these is allowed. So are, then, the fewer ones of a threat with balls, with budgets of rows, cells or labels.

**Theorem.** If `prove_steps` reports nothing that failed, then for every such dataset, the same one in all steps, `θ_t ∈ Θ_t` for
every `t ≤ T`. Every class `u` that is answered for a test row is the class of every `θ ∈ Θ_T` on that row, and on all that the test
threat makes of it: `o_u > o_v` for all `v ≠ u` (one output: `o > 0` for class 1, `o < 0` for class 0). Margins and ranges that are
answered hold for all of these, too. If the rule of selection is "last", no step of the training that was described is left out.

**Proof.** A `Range` `[low, high]` has ends that are whole multiples of `2^−BITS`, as Python's integers. Each operation on ranges
contains the operation's results for all members of its operands: sums and products of the ends are exact, and then rounded
outward (`//` and `>>` round down, also below 0); a smooth function that rises is rounded outward from Arb's bounds at both ends; one that
falls with `|x|` also at the point nearest to 0. `Claim.after` writes `θ_t` in these operations (for each label that is allowed, one
after the other, and joins what comes out). So it contains every `θ_t` that comes from any `θ_{t−1}` of its range and any such dataset,
though its operands are taken to be independent of each other. It starts from the point `θ₀`; for every later step from `Θ_{t−1}`,
read outward. What it returns lies in `Θ_t`, read inward: checked for both ends of every entry. Thus `θ_{t−1} ∈ Θ_{t−1}` gives
`θ_t ∈ Θ_t`, and induction the first statement. The forward pass on ranges from `Θ_T` gives the others in the same way. ∎

What is trusted: Python's integers and fractions, Arb, NumPy (which carries numbers and draws batches), and the package's `Column`,
which encodes an amount in the table's units as the data were encoded. Layers, losses and threats that are not written here are refused
by their names. A failure says nothing but that the proof was not found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

import flint
import numpy as np
from numpy.typing import NDArray

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import MibpCertError, UnsupportedOperation

BITS = 256
ONE = 1 << BITS
PRECISION = 4 * BITS
"""Of Arb; a larger one would only give tighter bounds of smooth functions."""
Plain = Mapping[str, Any]
Integers = NDArray[Any]
Mask = NDArray[np.bool_]


class NotProven(Exception):
    """The first thing that could not be proven, in words."""


def refuse(what: str) -> UnsupportedOperation:
    return UnsupportedOperation(f"The checker of steps knows no {what}; nothing is proven of this run.")


# Arithmetic -------------------------------------------------------------------------------------------------------------

_floors = np.frompyfunc(lambda number: number.as_integer_ratio()[0] * ONE // number.as_integer_ratio()[1], 1, 1)
_ceilings = np.frompyfunc(lambda number: -(-number.as_integer_ratio()[0] * ONE // number.as_integer_ratio()[1]), 1, 1)
_balls = np.frompyfunc(lambda units: flint.arb(units) / flint.arb(ONE), 1, 1)
_below = np.frompyfunc(lambda ball: int((ball.lower() * ONE).lower().floor().unique_fmpz()), 1, 1)


@dataclass(frozen=True, eq=False)
class Range:
    """All tensors between `low` and `high`, in units of `2^−BITS`. Every method contains what it says, for all members."""

    low: Integers
    high: Integers

    @classmethod
    def of(cls, low: Any, high: Any) -> Range:
        """From finite floats or fractions, outward."""
        return cls(np.asarray(_floors(low), dtype=object), np.asarray(_ceilings(high), dtype=object))

    def map(self, function: Callable[[Integers], Integers]) -> Range:
        """The same elements in another arrangement."""
        return Range(function(self.low), function(self.high))

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Range:
        return Range(-self.high, -self.low)

    def __sub__(self, other: Range) -> Range:
        return self + -other

    def times(self, factor: Fraction) -> Range:
        n, d = factor.as_integer_ratio()
        low, high = (self.low, self.high) if n >= 0 else (self.high, self.low)
        return Range(low * n // d, -(-high * n // d))

    def _exact(self, other: Range) -> Range:
        """Products element by element, in units of `2^−2·BITS`: the extremes are taken at corners."""
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Range(reduce(np.minimum, corners), reduce(np.maximum, corners))

    def _rounded(self) -> Range:
        """From units of `2^−2·BITS`."""
        return Range(self.low >> BITS, -(-self.high >> BITS))

    def __mul__(self, other: Range) -> Range:
        return self._exact(other)._rounded()

    def __matmul__(self, other: Range) -> Range:
        terms = (
            self.map(lambda a, k=k: a[:, k, None])._exact(other.map(lambda b, k=k: b[None, k, :]))  # type: ignore[misc]
            for k in range(self.low.shape[1])
        )
        return reduce(Range.__add__, terms)._rounded()

    def clip(self, least: int | None, most: int | None = None) -> Range:
        def within(end: Integers) -> Integers:
            end = end if least is None else np.maximum(end, least)
            return end if most is None else np.minimum(end, most)

        return self.map(within)

    def gate(self, *, closed: bool) -> Range:
        """`1[a > 0]`, or `1[a ≥ 0]`."""
        return self.map(lambda end: (end >= 0 if closed else end > 0).astype(object) * ONE)


def _outward(low: Integers, high: Integers) -> Range:
    """The range between balls of Arb."""
    return Range(np.asarray(_below(low), dtype=object), -np.asarray(_below(-high), dtype=object))


def smooth(a: Range, function: Callable[[Any], Any], *, peak: bool = False) -> Range:
    """A function that rises, or one that is even and falls with `|a|` (`peak`)."""
    apply = np.frompyfunc(function, 1, 1)
    with flint.ctx.workprec(PRECISION):
        first, last = apply(_balls(a.low)), apply(_balls(a.high))
        if not peak:
            return _outward(first, last)
        nearest = np.minimum(np.maximum(a.low, 0), a.high)
        top = -np.asarray(_below(-apply(_balls(nearest))), dtype=object)
        return Range(np.minimum(_below(first), _below(last)), top)


def shares(o: Range) -> Range:
    """`p_c = 1/(1 + Σ_{d≠c} e^{o_d − o_c})`, which rises with `o_c` and falls with every other output."""

    def at(own: Integers, others: Integers) -> Integers:
        ends = []
        for c in range(own.shape[1]):
            powers = [np.frompyfunc(flint.arb.exp, 1, 1)(others[:, d] - own[:, c]) for d in range(own.shape[1]) if d != c]
            ends.append(1 / (1 + sum(powers)))
        return np.stack(ends, axis=1)

    with flint.ctx.workprec(PRECISION):
        low, high = _balls(o.low), _balls(o.high)
        return _outward(at(low, high), at(high, low))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + (-x).exp())


ACTIVATIONS: dict[str, tuple[Callable[[Range, Fraction], Range], Callable[[Range, Fraction], Range]]] = {
    "ReLU": (lambda a, s: a.clip(0), lambda a, s: a.gate(closed=False)),
    "LeakyReLU": (
        lambda a, s: a.times(s) + a.clip(0).times(1 - s),
        lambda a, s: a.gate(closed=False).times(1 - s) + Range.of(s, s),
    ),
    "Sigmoid": (
        lambda a, s: smooth(a, _sigmoid),
        lambda a, s: smooth(a, lambda x: 1 / (2 * (x / 2).cosh()) ** 2, peak=True),
    ),
    "Tanh": (
        lambda a, s: smooth(a, flint.arb.tanh),
        lambda a, s: smooth(a, lambda x: 1 / x.cosh() ** 2, peak=True),
    ),
    "Softplus": (lambda a, s: smooth(a, lambda x: x.exp().log1p()), lambda a, s: smooth(a, _sigmoid)),
    "Flatten": (lambda a, s: a, lambda a, s: Range.of(np.ones(a.low.shape), np.ones(a.low.shape))),
}
"""Value and derivative by name; `s` is the slope that a layer may have."""

# Data -------------------------------------------------------------------------------------------------------------------


def _part(name: str, arrays: Plain, plain: Plain) -> Dataset:
    """The rows of one part of the data, as they are claimed."""
    if f"{name}_weights" in arrays:
        raise refuse("weights of rows")

    def column(record: Plain) -> Column:
        ends = {"low": -math.inf, "high": math.inf}
        found = {key: ends.get(key) if value is None else value for key, value in record.items()}
        names = found["categories"]
        return Column(**{**found, "categories": None if names is None else tuple(names)})

    x, y, targets = arrays[f"{name}_x"], arrays[f"{name}_y"], arrays.get(f"{name}_targets")
    columns, target = tuple(map(column, plain["columns"])), plain["target"]
    target = None if target is None else column(target)
    return Dataset(x, y, tuple(plain["classes"]), columns, arrays.get(f"{name}_missing"), targets, target)


class Data:
    """What the threat leaves of the data: a range for every cell, or a set of categories, and a set of labels or a range of targets.

    With `x` the encoded cell, `v = x·scale + shift` its value, and amounts in the units of values:

    - `linf`, `l1`, `l2`, `rounded` (half of `to`), `monotone`: `x` moves by at most `amount/scale` down and up, for `relative` by
      `amount·|v|/scale`; of a scaled column by `2^−50·(|x| + that)` more, which covers what encoding `v` and the true value
      rounded (each at most `3·2^−53` of the feature). `clip`: `x` stays between the ends, encoded. Several of these add up;
    - `any-category`, `confusable`, `shift`: any one of the named categories, or the reported one; `label-flips`: of the labels;
    - `missing`: any number in the column's valid range (the range of the values that are known, if it has none), or any category but
      the marker; whatever else the threat says about that cell;
    - `target-noise`: the targets, as `linf`; `where`: only in rows that meet the condition; `all`: at once;
    - `budget`: without its limit, which allows more datasets; a limit of 0 allows none. `nothing`: as encoded.
    """

    def __init__(self, data: Dataset, threat: Plain | None) -> None:
        self.data, n = data, len(data.x)
        self.x = Range.of(data.x, data.x)
        self.labels = np.arange(len(data.classes)) == data.y[:, None]
        self.targets = None if data.targets is None else Range.of(data.targets, data.targets)
        self.unknown: dict[int, tuple[Mask, Any]] = {}
        """Of a column: the rows without a value, and what it may be: a pair of features, or categories."""
        self.chosen = {j: data.x[:, c.start : c.stop] == 1.0 for j, c in enumerate(data.columns) if c.categorical}
        self._widen(threat or {"kind": "nothing"}, np.ones(n, dtype=bool))
        lost = np.zeros((n, len(data.columns)), dtype=bool)
        for j, (rows, values) in self.unknown.items():
            lost[rows, j], place = True, data.columns[j].start
            if j in self.chosen:
                self.chosen[j][rows] = np.isin(np.arange(self.chosen[j].shape[1]), values)
            else:
                ends = Range.of(min(values), max(values))
                self.x.low[rows, place], self.x.high[rows, place] = ends.low[()], ends.high[()]
        if threat is not None and data.missing is not None and (data.missing & ~lost).any():
            raise NotProven("the threat says nothing about some values that are missing")
        for j, allowed in self.chosen.items():
            c, open_rows = data.columns[j], (allowed.sum(axis=1) > 1) | lost[:, j]
            several = (allowed.sum(axis=1) > 1)[:, None]
            own = slice(c.start, c.stop)
            low, high = (side.astype(object) * ONE for side in (allowed & ~several, allowed))
            self.x.low[open_rows, own], self.x.high[open_rows, own] = low[open_rows], high[open_rows]
        for cells in (self.x, self.targets):
            if cells is not None and not (cells.low <= cells.high).all():
                raise NotProven("the threat leaves no value for some cell")

    def _widen(self, threat: Plain, rows: Mask) -> None:
        """Allow what a threat allows in these rows."""
        told = dict(threat)
        kind, named = told.pop("kind"), told.pop("columns", None)
        match kind:
            case "nothing":
                pass
            case "all":
                for part in told.pop("threats"):
                    self._widen(part, rows)
            case "where":
                told.pop("condition", None)
                when = told.pop("when", None) or {"rows": told.pop("rows")}
                self._widen(told.pop("threat"), rows & self._holds(when))
            case "budget":
                if told.pop("rows", None) != 0 and told.pop("cells", None) != 0:
                    self._widen(told["threat"], rows)
                told.pop("threat"), told.pop("cells", None)
            case "linf" | "l1" | "l2":
                given = told.pop("rows", None)
                rows = rows if given is None else rows & self._mask(given)
                clip, relative = told.pop("clip", None), told.pop("relative", False)
                if clip is not None and kind != "linf":
                    raise refuse(f"clip for the threat {kind!r}")
                for place, (j, amount) in enumerate(self._amounts(told.pop("eps"), named)):
                    self._move(j, amount, amount, rows, relative=relative, clip=_ends(clip, place))
            case "rounded":
                for j, amount in self._amounts(told.pop("to"), named):
                    self._move(j, amount / 2, amount / 2, rows)
            case "monotone":
                pairs = zip(*(self._amounts(told.pop(end, 0.0), named) for end in ("down", "up")), strict=True)
                for (j, down), (_, up) in pairs:
                    self._move(j, down, up, rows)
            case "target-noise":
                assert self.targets is not None
                assert self.data.targets is not None
                column, eps = self.data.target or Column("target", 0, 1), _amount(told.pop("eps"))
                _move(self.targets, self.data.targets[:, 0], 0, column, eps, eps, rows)
            case "any-category" | "confusable" | "shift":
                self._choose(kind, told, named, rows)
            case "missing":
                self._miss(told.pop("marker", None), named, rows)
            case "label-flips":
                given = [told.pop(side, None) for side in ("source", "target")]
                some, others = (self.data.number(self.data.classes if side is None else side) for side in given)
                if told.pop("at_most", None) != 0:
                    to = np.isin(np.arange(len(self.data.classes)), others)
                    self.labels |= (rows & np.isin(self.data.y, some))[:, None] & to
            case _:
                raise refuse(f"threat of the kind {kind!r}")
        if told:
            raise refuse(f"entry {next(iter(told))!r} of the threat {kind!r}")

    def _move(self, j: int, down: Fraction, up: Fraction, rows: Mask, **how: Any) -> None:
        column = self.data.columns[j].expect(False, ": the threat is about numbers")
        _move(self.x, self.data.x[:, column.start], column.start, column, down, up, rows, **how)

    def _choose(self, kind: str, told: dict[str, Any], named: Any, rows: Mask) -> None:
        for j in self._columns(told.pop("column") if named is None else named):
            column = self.data.columns[j].expect(True, ": the threat is about categories")
            if kind == "confusable":
                options = {column.number(k): list(map(column.number, v)) for k, v in dict(told.pop("pairs")).items()}
            else:
                among = told.get("among")
                order = list(map(column.number, (column.categories or ()) if among is None else among))
                options = {k: order for k in range(column.stop - column.start)}
            if kind == "shift":
                moved = {i: i + told["by"] for i in range(len(order))}
                options = {order[i]: [order[k]] for i, k in moved.items() if 0 <= k < len(order)}
            reported = self.data.x[:, column.start : column.stop].argmax(axis=1)
            for row in np.flatnonzero(rows & np.isin(reported, list(options))):
                if self.chosen[j][row].sum() > 1:
                    raise refuse("two threats about one category")
                self.chosen[j][row, [reported[row], *options[reported[row]]]] = True
        for key in ("among", "by"):
            told.pop(key, None)

    def _miss(self, marker: Any, named: Any, rows: Mask) -> None:
        for j in range(len(self.data.columns)) if named is None else self._columns(named):
            column, x = self.data.columns[j], self.data.x
            names = column.categories
            if marker is None:
                lost = np.zeros(len(x), dtype=bool) if self.data.missing is None else self.data.missing[:, j]
            elif names is not None:
                lost = x[:, column.start + names.index(marker)] == 1.0 if marker in names else np.zeros(len(x), bool)
            else:
                lost = x[:, column.start] == (column.to_feature(marker) if isinstance(marker, int | float) else math.nan)
            lost = lost & rows
            values: Any = [k for k, name in enumerate(names or ()) if marker is None or name != marker]
            if names is None:
                values = column.to_feature([column.low, column.high])
                values = values if np.isfinite(values).all() else x[~lost, column.start]
            if lost.any() and j in self.unknown:
                raise refuse("two threats about one missing value")
            if lost.any():
                self.unknown[j] = lost, values.tolist() if names is None else values

    def _columns(self, named: Any) -> list[int]:
        named = named if isinstance(named, list) else [named]
        if named and all(isinstance(name, bool) for name in named):
            return [j for j, (_, picked) in enumerate(zip(self.data.columns, named, strict=True)) if picked]
        return list(dict.fromkeys(self.data.column(name) for name in named))

    def _amounts(self, given: Any, named: Any) -> list[tuple[int, Fraction]]:
        """The numeric columns that are meant, each with its amount."""
        by_column = {self.data.column(k): v for k, v in given.items()} if isinstance(given, Mapping) else None
        if named is not None:
            picked = self._columns(named)
        else:
            picked = list(by_column or [j for j, c in enumerate(self.data.columns) if not c.categorical])
        if by_column is not None:
            if not by_column.keys() <= set(picked):
                raise NotProven("the threat has amounts for columns that it does not name")
            given = [by_column.get(j, 0.0) for j in picked]
        every = given if isinstance(given, list) else [given] * len(picked)
        return list(zip(picked, map(_amount, every), strict=True))

    def _mask(self, rows: Any) -> Mask:
        found, given = np.zeros(len(self.data.x), dtype=bool), np.asarray(rows)
        if given.dtype == bool and given.shape != found.shape or given.size and given.dtype != bool and given.min() < 0:
            raise NotProven("the threat names rows that there are not")
        found[given if given.size else []] = True
        return found

    def _holds(self, when: Plain) -> Mask:
        match when:
            case {"rows": rows}:
                return self._mask(rows)
            case {"label": names}:
                return np.isin(self.data.y, self.data.number(names))
            case {"not": inner}:
                return ~self._holds(inner)
            case {"and": [first, second]}:
                return self._holds(first) & self._holds(second)
            case {"or": [first, second]}:
                return self._holds(first) | self._holds(second)
            case {"column": name, "is": sign, "value": value}:
                j = self.data.column(name)
                column, known = self.data.columns[j], True if self.data.missing is None else ~self.data.missing[:, j]
                if column.categorical:
                    x, value = self.data.x[:, column.start + column.number(value)], 1.0
                else:
                    x, value = self.data.x[:, column.start], float(column.to_feature(value))
                signs = {"==": x == value, "!=": x != value, ">=": x >= value, ">": x > value, "<=": x <= value}
                return np.asarray((signs | {"<": x < value})[sign] & known)
        raise refuse(f"condition {when!r}")


def _amount(value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise NotProven(f"an amount of the threat is {value!r}")
    return Fraction(value)


def _ends(clip: Any, place: int) -> list[Any]:
    """The valid range of the column at this place among those meant; None: open."""
    return [None, None] if clip is None else [end[place] if isinstance(end, list) else end for end in clip]


def _move(
    cells: Range, x: Any, place: int, column: Column, down: Fraction, up: Fraction, rows: Mask, **how: Any
) -> None:
    """Move the ends of one column of cells, whose features are `x`, by at most so much; see `Data`."""
    scale, shift = Fraction(column.scale), Fraction(column.shift)
    ends = [None if end is None else Fraction(float(column.to_feature(end))) for end in how.get("clip", (None, None))]
    for row in np.flatnonzero(rows):
        value = Fraction(float(x[row]))
        share = abs(value * scale + shift) if how.get("relative") else Fraction(1)
        reach = [amount * share / scale for amount in (down, up)]
        if column.scaled:
            reach = [r and r + (abs(value) + r) / 2**50 for r in reach]
        first, last = value - reach[0], value + reach[1]
        first = first if ends[0] is None else max(first, ends[0])
        last = last if ends[1] is None else min(last, ends[1])
        move = Range.of(first - value, last - value)
        cells.low[row, place] += move.low[()]
        cells.high[row, place] += move.high[()]


# Training ---------------------------------------------------------------------------------------------------------------


def batches(n: int, training: Plain) -> list[NDArray[np.intp]]:
    """The rows of every step: each epoch a permutation, cut into pieces (the whole table: one piece, no draw), or for `subsample`
    as many draws without replacement."""
    size, epochs = min(100, n) if training["batch_size"] is None else training["batch_size"], training["epochs"]
    if not 1 <= size <= n or epochs < 1:
        raise NotProven(f"there are no batches of {size} from {n} rows")
    if training["batch_mode"] not in ("shuffle", "subsample"):
        raise refuse(f"batch mode {training['batch_mode']!r}")
    rng = np.random.default_rng([training["seed"], 1])
    found = []
    for _ in range(epochs):
        order = np.arange(n) if size == n else rng.permutation(n)
        for start in range(0, n, size):
            drawn = training["batch_mode"] == "subsample" and size < n
            found.append(rng.choice(n, size, replace=False) if drawn else order[start : start + size])
    return found


def rates(training: Plain) -> list[float]:
    """The learning rate of every epoch `e`: listed; constant; `step:n:f`, `λ·f^⌊e/n⌋`; `exponential:f`, `λ·f^e`; `cosine`,
    `½λ(1 + cos(πe/epochs))`."""
    rate, epochs, schedule = training["learning_rate"], training["epochs"], training["schedule"]
    if not isinstance(schedule, str):
        return [value for _, value in zip(range(epochs), schedule, strict=True)]
    match schedule.split(":"):
        case ["constant"]:
            return [rate] * epochs
        case ["step", every, factor]:
            return [rate * float(factor) ** (e // int(float(every))) for e in range(epochs)]
        case ["exponential", factor]:
            return [rate * float(factor) ** e for e in range(epochs)]
        case ["cosine"]:
            return [rate * (0.5 * (1.0 + math.cos(math.pi * e / epochs))) for e in range(epochs)]
    raise refuse(f"schedule {schedule!r}")


LOSSES = ("hinge", "squared-hinge", "cross-entropy", "squared-error", "huber")
TRAINING = {"kind", "epochs", "batch_size", "learning_rate", "loss", "seed", "init", "batch_mode", "momentum"}
TRAINING |= {"weight_decay", "clip", "schedule"}


class Claim:
    """The training that is claimed: what is not written here is refused by its name."""

    def __init__(self, description: Plain, classes: int | None, rows: int) -> None:
        """`classes`: None for a regression."""
        self.training = training = description["training"]
        for what, known in (("engine", "interval"), ("prediction", "interval"), ("unroll", 1)):
            if description[what] != known:
                raise refuse(f"{what} {description[what]!r}")
        if training["kind"] != "Training" or training.keys() != TRAINING:
            raise refuse(f"training {training['kind']!r} with {', '.join(sorted(training.keys() ^ TRAINING)) or 'this'}")
        self.layers: list[Plain] = description["layers"]
        for layer in self.layers:
            if layer["kind"] != "Linear" and layer["kind"] not in ACTIVATIONS:
                raise refuse(f"layer {layer['kind']!r}")
        self.outputs = next(layer["outputs"] for layer in reversed(self.layers) if layer["kind"] == "Linear")
        self.names = [
            name
            for i, layer in enumerate(self.layers)
            if layer["kind"] == "Linear"
            for name in [f"{i}.weight[{o}, {k}]" for o in range(layer["outputs"]) for k in range(layer["inputs"])]
            + ([f"{i}.bias[{o}]" for o in range(layer["outputs"])] if layer["bias"] else [])
        ]
        self.loss: str = training["loss"]
        if self.loss not in LOSSES:
            raise refuse(f"loss {self.loss!r}")
        one = self.outputs == 1 and (classes is None or (classes == 2 and self.loss != "squared-error"))
        if not one and self.outputs != classes or (classes is None) != (self.loss in ("squared-error", "huber")):
            if not (self.loss == "squared-error" and self.outputs == classes):
                raise refuse(f"loss {self.loss!r} with {self.outputs} outputs for {classes or 'no'} classes")
        self.momentum, self.decay = Fraction(training["momentum"]), Fraction(training["weight_decay"])
        self.batches = batches(rows, training)
        per_epoch = -(-rows // len(self.batches[0]))
        self.rates = [Fraction(rate) for rate in rates(training) for _ in range(per_epoch)]
        if description.get("steps") is not None:
            self.batches = self.batches[: description["steps"]]

    @property
    def size(self) -> int:
        """Entries of the state: parameters, and with momentum their velocities."""
        return len(self.names) * (2 if self.momentum else 1)

    def name(self, entry: int) -> str:
        which = self.names[entry % len(self.names)]
        return which if entry < len(self.names) else f"the velocity of {which}"

    def tensors(self, theta: Range) -> list[tuple[Range, Range | None]]:
        """Weight (outputs × inputs) and bias of every linear layer, as they follow each other in `θ`."""
        found, start = [], 0
        for layer in [layer for layer in self.layers if layer["kind"] == "Linear"]:
            shape, middle = (layer["outputs"], layer["inputs"]), start + layer["outputs"] * layer["inputs"]
            weight = theta.map(lambda end, at=slice(start, middle), shape=shape: end[at].reshape(shape))  # type: ignore[misc]
            start = middle + (layer["outputs"] if layer["bias"] else 0)
            bias = theta.map(lambda end, at=slice(middle, start): end[at]) if layer["bias"] else None  # type: ignore[misc]
            found.append((weight, bias))
        return found

    def forward(self, theta: Range, x: Range) -> tuple[Range, list[Range]]:
        """The outputs (rows × outputs), and the input of every layer."""
        inputs, tensors = [], iter(self.tensors(theta))
        for layer in self.layers:
            inputs.append(x)
            if layer["kind"] != "Linear":
                x = ACTIVATIONS[layer["kind"]][0](x, Fraction(layer.get("slope", 0)))
                continue
            weight, bias = next(tensors)
            x = x @ weight.map(np.transpose)
            x = x if bias is None else x + bias
        return x, inputs

    def gradients(self, theta: Range, inputs: list[Range], upstream: Range) -> Range:
        """`Σ_rows ∂J/∂θ` from `∂J/∂o`: for `o = a·Wᵀ + b` these are `(∂J/∂o)ᵀ·a` and `Σ ∂J/∂o`, and `∂J/∂a = (∂J/∂o)·W`."""
        found: list[Range] = []
        tensors = self.tensors(theta)
        for layer, a in zip(reversed(self.layers), reversed(inputs), strict=True):
            if layer["kind"] != "Linear":
                upstream = ACTIVATIONS[layer["kind"]][1](a, Fraction(layer.get("slope", 0))) * upstream
                continue
            weight, bias = tensors.pop()
            if bias is not None:
                found.append(upstream.map(lambda end: end.sum(axis=0)))
            found.append((upstream.map(np.transpose) @ a).map(np.ravel))
            upstream = upstream @ weight
        return _joined(found[::-1])

    def upstream(self, o: Range, label: int | Range) -> Range:
        """`∂J/∂o` of rows with this class number, or with targets in this range."""
        if isinstance(label, Range):
            off = o - label
            return off.times(Fraction(2)) if self.loss == "squared-error" else off.clip(-ONE, ONE)
        one_hot = np.eye(max(2, self.outputs))[label][-self.outputs :]  # of one output: `Y₁`
        wanted = Range.of(one_hot, one_hot)
        if self.loss == "squared-error":
            return (o - wanted).times(Fraction(2))
        if self.loss == "cross-entropy":
            return (smooth(o, _sigmoid) if self.outputs == 1 else shares(o)) - wanted
        if self.outputs == 1:
            y = Fraction(2 * label - 1)
            return self._push(Range.of(1.0, 1.0) - o.times(y)).times(-y)
        own = o.map(lambda end: end[:, [label]])
        others = np.arange(self.outputs) != label
        push = self._push(Range.of(1.0, 1.0) + (o - own)).map(lambda end: np.where(others, end, 0))
        total = push.map(lambda end: end.sum(axis=1, keepdims=True))
        return push - total.map(lambda end: np.where(others, 0, end))

    def _push(self, slack: Range) -> Range:
        """The derivative of `max(0, slack)`, or of its square."""
        return slack.gate(closed=True) if self.loss == "hinge" else slack.clip(0).times(Fraction(2))

    def after(self, step: int, state: Range, data: Data) -> Range:
        """All states after this step (counted from 1) from those before it."""
        rows, rate, count = self.batches[step - 1], self.rates[step - 1], len(self.names)
        theta, velocity = state.map(lambda end: end[:count]), state.map(lambda end: end[count:])
        o, inputs = self.forward(theta, data.x.map(lambda end: end[rows]))
        if data.targets is not None:
            upstream = self.upstream(o, data.targets.map(lambda end: end[rows]))
        else:
            upstream = _union([self.upstream(o, c) for c in range(data.labels.shape[1])], data.labels[rows])
        mean = self.gradients(theta, inputs, upstream).times(Fraction(1, len(rows)))
        if (clip := self.training["clip"]) is not None:
            limit = int(_ceilings(clip))
            mean = mean.clip(-limit, limit)
        kept = theta.times(1 - rate * self.decay) - mean.times(rate)
        if not self.momentum:
            return kept
        moved = velocity.times(self.momentum) + mean + theta.times(self.decay)
        return _joined([kept - velocity.times(rate * self.momentum), moved])


def _joined(parts: Sequence[Range]) -> Range:
    return Range(np.concatenate([part.low for part in parts]), np.concatenate([part.high for part in parts]))


def _union(cases: list[Range], allowed: Mask) -> Range:
    """The range around the cases that are allowed in each row."""
    far = max(int(np.abs(end).max()) for case in cases for end in (case.low, case.high)) + 1
    low = [np.where(allowed[:, [c]], case.low, far) for c, case in enumerate(cases)]
    high = [np.where(allowed[:, [c]], case.high, -far) for c, case in enumerate(cases)]
    return Range(reduce(np.minimum, low), reduce(np.maximum, high))


# The proof --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proof:
    """What was proven of what was claimed, and the first thing that was not, in words (empty: nothing failed)."""

    steps: int
    """Boxes that hold every model after their step, the first ones without a gap."""
    rows: int
    """Test rows whose answer (a class, with its margin, or ranges) follows from the last box; those that abstain are not counted."""
    claimed: tuple[str, ...]
    failed: str

    @property
    def holds(self) -> bool:
        return not self.failed


def prove_steps(description: Plain, data: Plain, sets: Mapping[int, Plain], result: Plain | None = None) -> Proof:
    """Prove a stored `interval` run: its description, its data arrays, the arrays of the set after every step, and, if the run is over,
    `result`: what it found, with the arrays of its answers beside it.

    Raises `UnsupportedOperation` for what this checker does not know.
    """
    proof = _Proof()
    try:
        proof.run(description, data, sets, result)
    except NotProven as error:
        proof.failed = str(error)
    except UnsupportedOperation:
        raise
    except (MibpCertError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        proof.failed = f"what is claimed cannot be read ({type(error).__name__}: {error})"
    return Proof(proof.steps, proof.rows, tuple(proof.claimed), proof.failed)


class _Proof:
    """A proof under way."""

    def __init__(self) -> None:
        self.steps, self.rows, self.failed = 0, 0, ""
        self.claimed: list[str] = []

    def run(self, description: Plain, data: Plain, sets: Mapping[int, Plain], result: Plain | None) -> None:
        train = _part("train", data, description["data"])
        classes = None if train.targets is not None else len(train.classes)
        claim, begin = Claim(description, classes, len(train.x)), data["start"]
        self.claimed += [
            f"{len(train.x)} training rows as they are encoded, and what may be wrong with them",
            f"{len(begin)} initial parameters",
            f"batches drawn by NumPy from the seed {claim.training['seed']}, and learning rates by epoch",
        ]
        if begin.shape != (len(claim.names),):
            raise NotProven(f"there are {len(begin)} initial parameters for {len(claim.names)}")
        known = Data(train, description["threat"])
        box = Range.of(*[np.concatenate([begin, np.zeros(claim.size - len(begin))])] * 2)
        last = max([0, *sets]) if result is None else max(result["steps"], *sets, 0)
        if not 1 <= last <= len(claim.batches):
            raise NotProven(f"{last} steps are claimed of a training of {len(claim.batches)}")
        wanted = last if result is None else result["steps"]
        final = None
        for number in range(1, last + 1):
            if number not in sets:
                raise NotProven(f"the box after step {number} is missing, so that nothing is known from there on")
            box = self._next(claim, number, claim.after(number, box, known), sets[number])
            self.steps = number
            final = box if number == wanted else final
        if result is None:
            return
        if final is None:
            raise NotProven(f"there is no step {wanted}, which the answers are about")
        self._answers(claim, description, data, result, final.map(lambda end: end[: len(claim.names)]))
        if self.rows and description["select"]["rule"] == "last" and wanted != len(claim.batches):
            raise NotProven(f"the answers are about step {wanted} of a training of {len(claim.batches)} steps")

    def _next(self, claim: Claim, number: int, reached: Range, arrays: Plain) -> Range:
        """The stored box, if it holds what was reached."""
        lower, upper = (np.asarray(arrays[end], dtype=np.float64) for end in ("lower", "upper"))
        if lower.shape != (claim.size,) or upper.shape != lower.shape or not np.isfinite([lower, upper]).all():
            raise NotProven(f"the box after step {number} is no box of {claim.size} parameters")
        below, above = _ceilings(lower) <= reached.low, reached.high <= _floors(upper)
        if not (below & above).all():
            entry = int(np.argmin(below & above))
            side = "above" if below[entry] else "below"
            raise NotProven(f"step {number} can lead {side} its box, first in {claim.name(entry)}")
        return Range.of(lower, upper)

    def _answers(self, claim: Claim, description: Plain, data: Plain, result: Plain, theta: Range) -> None:
        if "test_x" not in data:
            return
        test, seen = _part("test", data, description["data"]), _part("train", data, description["data"])
        o, _ = claim.forward(theta, Data(test.ranged(seen), description["test_threat"]).x)
        self.claimed.append(f"{len(test.x)} test rows as they are encoded")
        if seen.targets is not None:
            column = seen.target or Column("target", 0, 1)
            scale, shift = Fraction(column.scale), Fraction(column.shift)
            for side, ends in (("low", o.low), ("high", o.high)):
                told = result[f"range_{side}"]
                values = [Fraction(end, ONE) * scale + shift for end in ends.ravel()]
                holds = [t <= v if side == "low" else t >= v for t, v in zip(told.ravel().tolist(), values, strict=True)]
                if not all(holds):
                    raise NotProven(f"outputs of test row {holds.index(False)} can leave the range that is answered")
            self.rows = int(np.isfinite(result["range_low"] + result["range_high"]).all(axis=1).sum())
            return
        told, centre, least, most = (result[f"test_{name}"] for name in ("classes", "centre", "margin", "margin_high"))
        for row in range(len(test.x)):
            answer, given = int(told[row]), int(centre[row])
            low, high = margin(o, row, given)
            if not float(least[row]) <= low or not high <= float(most[row]):
                raise NotProven(f"the margin of test row {row} is not within the bounds that are answered")
            if answer == -1:
                continue
            if not margin(o, row, answer)[0] > 0:
                raise NotProven(f"class {answer} of test row {row} does not follow from the last box")
            self.rows += 1


def margin(o: Range, row: int, u: int) -> tuple[Fraction, Fraction]:
    """Bounds of `min_v o_u − o_v` in this row; of one output, of `o` for class 1 and of `−o` for class 0."""
    low, high = o.low[row], o.high[row]
    if not 0 <= u < max(2, len(low)):
        raise NotProven(f"the answer for test row {row} is {u}, which is no class")
    if len(low) == 1:
        ends = (low[0], high[0]) if u == 1 else (-high[0], -low[0])
    else:
        others = [v for v in range(len(low)) if v != u]
        ends = min(low[u] - high[v] for v in others), min(high[u] - low[v] for v in others)
    return Fraction(ends[0], ONE), Fraction(ends[1], ONE)
