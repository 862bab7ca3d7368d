"""A training in steps, proven on its own: boxes that hold every model, and the answers that follow from the last of them.

**Claimed**, and taken as given: the encoded data `(X, Y)`; the threat, a description in plain data; the network; the
initial parameters `θ₀`; loss, optimiser, schedule, batch size and seed; a box `Θ_t` for every step `t = 1 … T`; answers for
test rows.

**Training.** `B_t` are the rows that `plan` draws from the seed by NumPy's generator, `λ_t` the float64 numbers of
`rate_of`. With `g_t` the mean over `B_t` of the loss's gradients at `θ_{t−1}`, each entry clipped to `±clip` if that is asked
for,

    v_t = μ·v_{t−1} + g_t + κ·θ_{t−1},    θ_t = θ_{t−1} − λ_t·v_t,    v₀ = 0,

in real arithmetic; with `μ ≠ 0` the state, and each box, is `(θ, v)`. relu has the derivative 0 at 0 (the leaky one its
slope), and a hinge is active at margin exactly 1. Losses of a row with outputs `o`: hinge `Σ_{c≠y} max(0, 1 − o_y + o_c)`,
or of one output `max(0, 1 − y·o)`, `y = ±1`; squared hinge, the sum of their squares; cross-entropy; squared error
`Σ(o − Y)²`, `Y` a target or a one-hot label; Huber, `½r²` for `|r| ≤ 1` and `|r| − ½` beyond, with `r = o − Y`.

**Datasets.** `cells.Data` states, kind by kind, how far the threat lets each cell move, and which categories and labels it
allows. Any dataset within all of these is allowed; so are, then, the fewer ones of balls, and of budgets of rows, cells or
labels.

**Theorem.** If `prove_steps` reports nothing that failed, then for every such dataset, the same one in all steps, `θ_t ∈
Θ_t` for every `t ≤ T`. Every class `u` that is answered for a test row is the class of every `θ ∈ Θ_S` on that row, and on
all that the test threat makes of it: `o_u > o_v` for all `v ≠ u` (one output: `o > 0` for class 1, `o < 0` for class 0).
Margins and ranges that are answered hold there, too. `S` is the number of steps that the result names: all that were
described, if the rule of selection is "last"; else it is claimed, and the theorem is about training for exactly `S` steps.

**Proof.** `ranges` says why each of its operations contains the results for all members of its operands. `Claim.after`
writes `θ_t` in these operations, `(1 − λκ)·θ − λμ·v − λ·g` (for each label that is allowed, one after the other, and joins
what comes out). So it contains every `θ_t` that comes from any `θ_{t−1}` of its range and any such dataset, though it takes
operands to be independent of each other. It starts from the point `θ₀`, for every later step from `Θ_{t−1}` (in place of an
end that is no multiple of the unit, from the end that was reached before, which lies further in). What it returns lies in
`Θ_t`, read inward: both ends of every entry are compared. Thus, if `θ_{t−1}` lies in that start, `θ_t` lies in `Θ_t` and in
what was reached, hence in the next start: induction gives the first statement. The forward pass on ranges from `Θ_S` gives
the others in the same way. ∎

**Trusted** are Python's integers and fractions, Arb, NumPy (which carries numbers and draws batches), and the package's
`Column`, which encodes values of the table. Layers, losses and threats that are not written here are refused by their
names. A failure says that the proof was not found, not that the opposite is true.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.check.cells import Data, NotProven, part_of, refuse
from mibp_cert.check.ranges import ACTIVATIONS, ONE, Range, ceilings, floors, joined, shares, sigmoid, smooth, union
from mibp_cert.check.said import Plain
from mibp_cert.data import Column
from mibp_cert.errors import MibpCertError, UnsupportedOperation

LOSSES = ("hinge", "squared-hinge", "cross-entropy", "squared-error", "huber")
TRAINING = {"kind", "epochs", "batch_size", "learning_rate", "loss", "seed", "init", "batch_mode", "momentum"}
TRAINING |= {"weight_decay", "clip", "schedule"}
LAYERS = {name: {"kind"} for name in ACTIVATIONS} | {"Linear": {"kind", "inputs", "outputs", "bias"}}
LAYERS["LeakyReLU"] = {"kind", "slope"}
"""What a layer has to say, by its kind."""
ABSTAIN = -1


def plan(n: int, training: Plain) -> Iterator[tuple[NDArray[np.intp], Fraction]]:
    """The rows and the learning rate of every step, from the number of rows.

    Each epoch is a permutation, cut into pieces (of the whole table: one piece, without a draw), or for `subsample` as many draws
    without replacement.
    """
    size = batch_size(n, training)
    rng = np.random.default_rng([training["seed"], 1])
    for epoch in range(training["epochs"]):
        rate = Fraction(rate_of(training, epoch))
        order = np.arange(n) if size == n else rng.permutation(n)
        for start in range(0, n, size):
            drawn = training["batch_mode"] == "subsample" and size < n
            yield (rng.choice(n, size, replace=False) if drawn else order[start : start + size]), rate


def batch_size(n: int, training: Plain) -> int:
    """The size that is asked for; if none is, 100, or all rows if there are fewer."""
    size: int = min(100, n) if training["batch_size"] is None else training["batch_size"]
    if not 1 <= size <= n:
        raise NotProven(f"there are no batches of {size} from {n} rows")
    if training["batch_mode"] not in ("shuffle", "subsample"):
        raise refuse(f"batch mode {training['batch_mode']!r}")
    return size


def rate_of(training: Plain, epoch: int) -> float:
    """The learning rate of an epoch `e`, counted from 0: listed; constant; `step:n:f`, `λ·f^⌊e/n⌋`; `exponential:f`, `λ·f^e`;
    `cosine`, `½λ(1 + cos(πe/epochs))`."""
    rate, schedule = float(training["learning_rate"]), training["schedule"]
    if not isinstance(schedule, str):
        return float(schedule[epoch])
    match schedule.split(":"):
        case ["constant"]:
            return rate
        case ["step", every, factor]:
            return rate * float(factor) ** (epoch // int(float(every)))
        case ["exponential", factor]:
            return rate * float(factor) ** epoch
        case ["cosine"]:
            return rate * (0.5 * (1.0 + math.cos(math.pi * epoch / training["epochs"])))
    raise refuse(f"schedule {schedule!r}")


class Claim:
    """The training that is claimed: what is not written here is refused by its name."""

    def __init__(self, description: Plain, classes: int | None, rows: int) -> None:
        """`classes`: None for a regression."""
        self.training = training = description["training"]
        self.layers: list[Plain] = description["layers"]
        self.loss: str = training["loss"]
        self._check(description)
        self.linear = linear = [(i, layer) for i, layer in enumerate(self.layers) if layer["kind"] == "Linear"]
        self.outputs = linear[-1][1]["outputs"]
        if classes is None:
            fits = self.outputs == 1 and self.loss in ("squared-error", "huber")
        else:
            one = self.outputs == 1 and classes == 2 and self.loss != "squared-error"
            fits = self.loss != "huber" and (one or self.outputs == classes >= 2)
        if not fits:
            raise refuse(f"loss {self.loss!r} of {self.outputs} outputs for {classes or 'no'} classes")
        self.count = sum(layer["outputs"] * (layer["inputs"] + bool(layer["bias"])) for _, layer in linear)
        self.momentum, self.decay = Fraction(training["momentum"]), Fraction(training["weight_decay"])
        self.size = self.count * (2 if self.momentum else 1)
        """Entries of the state: parameters, and with momentum their velocities."""
        every: int = training["epochs"] * -(-rows // batch_size(rows, training))
        self.total: int = description.get("steps", every)
        if not 1 <= self.total <= every:
            raise NotProven(f"a training of {every} steps has no first {self.total} of them")

    def _check(self, description: Plain) -> None:
        """Refuse what the theorem does not speak of."""
        for what, known in (("engine", "interval"), ("prediction", "interval"), ("unroll", 1)):
            if description[what] != known:
                raise refuse(f"{what} {description[what]!r}")
        if self.training["kind"] != "Training":
            raise refuse(f"training of the kind {self.training['kind']!r}")
        if odd := sorted(self.training.keys() ^ TRAINING):
            raise refuse(f"training with or without {odd[0]!r}")
        if self.loss not in LOSSES:
            raise refuse(f"loss {self.loss!r}")
        for layer in self.layers:
            if layer["kind"] not in LAYERS:
                raise refuse(f"layer {layer['kind']!r}")
            if odd := sorted(layer.keys() ^ LAYERS[layer["kind"]]):
                raise refuse(f"layer {layer['kind']!r} with or without {odd[0]!r}")
            if min(layer.get("inputs", 1), layer.get("outputs", 1)) < 1:
                raise NotProven("some layer has no inputs or no outputs")

    def names(self) -> list[str]:
        """Of the entries of the state."""
        found = []
        for i, layer in self.linear:
            n, m = layer["inputs"], layer["outputs"]
            found += [f"{i}.weight[{k // n}, {k % n}]" for k in range(n * m)]
            found += [f"{i}.bias[{k}]" for k in range(m if layer["bias"] else 0)]
        return found + [f"the velocity of {name}" for name in found]

    def tensors(self, theta: Range) -> list[tuple[Range, Range | None]]:
        """Weight (outputs × inputs) and bias of every linear layer, as they follow each other in `θ`."""
        found, start = [], 0
        for _, layer in self.linear:
            shape, middle = (layer["outputs"], layer["inputs"]), start + layer["outputs"] * layer["inputs"]
            weight = theta[start:middle].map(lambda end, shape=shape: end.reshape(shape))  # type: ignore[misc]
            start = middle + (layer["outputs"] if layer["bias"] else 0)
            bias = theta[middle:start] if layer["bias"] else None
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
        return joined(found[::-1])

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
            return (smooth(o, sigmoid) if self.outputs == 1 else shares(o)) - wanted
        if self.outputs == 1:
            y = Fraction(2 * label - 1)
            return self._push(Range.of(1.0, 1.0) - o.times(y)).times(-y)
        own = o[:, [label]]
        others = np.arange(self.outputs) != label
        push = self._push(Range.of(1.0, 1.0) + (o - own)).map(lambda end: np.where(others, end, 0))
        total = push.map(lambda end: end.sum(axis=1, keepdims=True))
        return push - total.map(lambda end: np.where(others, 0, end))

    def _push(self, slack: Range) -> Range:
        """The derivative of `max(0, slack)`, or of its square."""
        return slack.gate(closed=True) if self.loss == "hinge" else slack.clip(0).times(Fraction(2))

    def after(self, state: Range, data: Data, rows: NDArray[np.intp], rate: Fraction) -> Range:
        """All states after a step on these rows, from those before it."""
        theta, velocity = state[: self.count], state[self.count :]
        o, inputs = self.forward(theta, data.x[rows])
        if data.targets is not None:
            upstream = self.upstream(o, data.targets[rows])
        else:
            upstream = union([self.upstream(o, c) for c in range(data.labels.shape[1])], data.labels[rows])
        mean = self.gradients(theta, inputs, upstream).times(Fraction(1, len(rows)))
        if (clip := self.training["clip"]) is not None:
            limit = int(ceilings(clip))
            if limit != floors(clip):
                raise NotProven(f"clipping at {clip!r} has no end in the units of the ranges")
            mean = mean.clip(-limit, limit)
        kept = theta.times(1 - rate * self.decay) - mean.times(rate)
        if not self.momentum:
            return kept
        moved = velocity.times(self.momentum) + mean + theta.times(self.decay)
        return joined([kept - velocity.times(rate * self.momentum), moved])


def prove_steps(description: Plain, data: Plain, sets: Mapping[int, Plain], result: Plain | None = None) -> Proof:
    """Prove a stored `interval` run: its description, its data arrays, and the arrays of the set after every step.

    `result`: what the run found, with the arrays of its answers beside it; None if it is not over.
    Raises `UnsupportedOperation` for what this checker does not know.
    """
    proof = Proof()
    try:
        proof.run(description, data, sets, result)
    except NotProven as error:
        proof.failed = str(error)
    except UnsupportedOperation:
        raise
    except (MibpCertError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        proof.failed = f"what is claimed cannot be read ({type(error).__name__}: {error})"
    return proof


@dataclass
class Proof:
    """What was proven of what was claimed, and the first thing that was not, in words (empty: nothing failed)."""

    steps: int = 0
    """Boxes that hold every model after their step, the first ones without a gap."""
    rows: int = 0
    """Test rows whose answer, a class or a range, follows from the box that they are about; those that abstain do not count."""
    claimed: list[str] = field(default_factory=list)
    failed: str = ""

    @property
    def holds(self) -> bool:
        return not self.failed

    def run(self, description: Plain, data: Plain, sets: Mapping[int, Plain], result: Plain | None) -> None:
        train, begin = part_of("train", data, description["data"]), data["start"]
        claim = Claim(description, None if train.targets is not None else len(train.classes), len(train.x))
        if begin.shape != (claim.count,) or begin.dtype != np.float64:
            raise NotProven(f"there are {len(begin)} initial parameters for {claim.count}")
        self.claimed += [
            f"{len(train.x)} training rows as they are encoded, and what may be wrong with them",
            f"{len(begin)} initial parameters",
            f"batches drawn by NumPy from the seed {claim.training['seed']}, and learning rates by epoch",
        ]
        known, last = Data(train, description["threat"]), max([0, *sets])
        chosen = last if result is None else result["steps"]
        if not 1 <= chosen <= claim.total or last > claim.total:
            raise NotProven(f"{max(chosen, last)} steps are claimed of a training of {claim.total}")
        box = Range.of(*[np.concatenate([begin, np.zeros(claim.size - len(begin))])] * 2)
        final = box
        numbers, drawn = range(1, max(chosen, last) + 1), plan(len(train.x), claim.training)
        for number, (rows, rate) in zip(numbers, islice(drawn, len(numbers)), strict=True):
            if number not in sets:
                raise NotProven(f"the box after step {number} is missing, so that nothing is known from there on")
            box = self._next(claim, number, claim.after(box, known, rows, rate), sets[number])
            self.steps, final = number, box if number == chosen else final
        if result is None:
            return
        if description["select"]["rule"] != "last":
            self.claimed.append(f"the choice of step {chosen}")
        self._answers(claim, description, data, result, final[: claim.count])
        told = self.rows or result["diverged"] is None  # of a training whose bounds diverged, nothing is answered
        if told and description["select"]["rule"] == "last" and chosen != claim.total:
            raise NotProven(f"the answers are about step {chosen} of a training of {claim.total} steps")

    def _next(self, claim: Claim, number: int, reached: Range, arrays: Plain) -> Range:
        """The stored box, if it holds what was reached."""
        lower, upper = arrays["lower"], arrays["upper"]
        if not all(end.shape == (claim.size,) and end.dtype == np.float64 for end in (lower, upper)):
            raise NotProven(f"the box after step {number} is no box of {claim.size} numbers")
        if not np.isfinite([lower, upper]).all():
            raise NotProven(f"the box after step {number} is not finite")
        inner, outer = Range(ceilings(lower), floors(upper)), Range.of(lower, upper)
        below, above = inner.low <= reached.low, reached.high <= inner.high
        if not (below & above).all():
            entry = int(np.argmin(below & above))
            side = "above" if below[entry] else "below"
            raise NotProven(f"step {number} can lead {side} its box, first in {claim.names()[entry]}")
        # An end that is no multiple of the unit would be read outward; what was reached lies further in.
        low = np.where(inner.low == outer.low, inner.low, reached.low)
        return Range(low, np.where(inner.high == outer.high, inner.high, reached.high))

    def _answers(self, claim: Claim, description: Plain, data: Plain, result: Plain, theta: Range) -> None:
        """The answers of the result follow from the box that they are about."""
        answers = [name for name in ("test_classes", "range_low") if name in result]
        if "test_x" not in data:
            if answers:
                raise NotProven("there are answers, but no test rows that they are about")
            return
        test, train = (part_of(name, data, description["data"]) for name in ("test", "train"))
        self.claimed.append(f"{len(test.x)} test rows as they are encoded")
        threat = description["test_threat"]
        x = Range.of(test.x, test.x) if threat is None else Data(test.ranged(train), threat).x
        o, _ = claim.forward(theta, x)
        if train.targets is not None:
            column = train.target or Column("target", 0, 1)
            self._ranges(o, result["range_low"], result["range_high"], Fraction(column.scale), Fraction(column.shift))
            return
        told, centre, least, most = (result[f"test_{name}"] for name in ("classes", "centre", "margin", "margin_high"))
        if any(array.shape != (len(test.x),) for array in (told, centre, least, most)):
            raise NotProven(f"there is not one answer for each of the {len(test.x)} test rows")
        for row, answer in enumerate(told.tolist()):
            low, high = margin(o, row, int(centre[row]))
            if not float(least[row]) <= low or not high <= float(most[row]):
                raise NotProven(f"the margin of test row {row} is not within the bounds that are answered")
            if answer == ABSTAIN:
                continue
            if not margin(o, row, answer)[0] > 0:
                raise NotProven(f"class {answer} of test row {row} does not follow from the box after the last step")
            self.rows += 1

    def _ranges(self, o: Range, least: Any, most: Any, scale: Fraction, shift: Fraction) -> None:
        """Of a regression: the outputs, in the units of the targets."""
        if not least.shape == most.shape == o.low.shape:
            raise NotProven(f"there is not one range for each of the {len(o.low)} test rows")
        for row, told in enumerate(zip(least[:, 0].tolist(), most[:, 0].tolist(), strict=True)):
            low, high = (Fraction(end[row, 0], ONE) * scale + shift for end in (o.low, o.high))
            if not told[0] <= low or not high <= told[1]:
                raise NotProven(f"the output of test row {row} can leave the range that is answered")
            self.rows += math.isfinite(told[0]) and math.isfinite(told[1])


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
