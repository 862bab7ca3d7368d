"""Prediction with a set of parameters (the paper's Algorithm 2).

A class `u` is certified for an input when `o_u − o_v > 0` for every other class `v`, every `θ` in the set and, where the inputs
may be perturbed too, every input that their threat allows; otherwise the answer is *abstain*. A margin `δ > 0` asks for
`o_u − o_v ≥ δ`. With one logit the margin is `o` for class 1 and `−o` for class 0. Ties, NaN and infinities abstain. Only the
class at the centre of the set can be certified, so only its margins are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.data import Column, Dataset, Task
from mibp_cert.engines import Box, Engine, Inputs, ParameterSet, StepReport, Wanted
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import UserError
from mibp_cert.graph import evaluate
from mibp_cert.nets import Network

ABSTAIN = -1
_CLASSES = ("classes", "centre", "margin", "margin_high")


@dataclass(frozen=True, eq=False)
class Predictions:
    """Certified class numbers (−1: abstain), the class `u` at the centre of the set, and proven bounds of its margin
    `min_v o_u − o_v` over every model of the set."""

    classes: NDArray[np.intp]
    centre: NDArray[np.intp]
    margin: Array
    """Proven lower bound of the margin: a class is certified where it is above 0."""
    margin_high: Array
    """Proven upper bound of the margin: below 0, the class at the centre is given by no model."""
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


@dataclass(frozen=True, eq=False)
class Ranges:
    """Regression: proven ranges of the outputs (rows × outputs), infinite where nothing is known."""

    outputs: Interval
    method: str
    report: StepReport

    def __repr__(self) -> str:
        return f"Ranges({self.method}, {len(self.width)} rows, mean width {self.width.mean():.3g})"

    @property
    def width(self) -> Array:
        return self.outputs.high - self.outputs.low

    def in_units(self, target: Column | None) -> Ranges:
        """The same ranges in the units of the user's targets, rounded outward; `target`: how those became the model's."""
        if target is None:
            return self
        low, high = (target.scale * end for end in (self.outputs.low, self.outputs.high))
        slip = 4.0 * np.finfo(float).eps  # one rounding of the product, one of the sum
        low = low + target.shift - slip * (np.abs(low) + abs(target.shift))
        high = high + target.shift + slip * (np.abs(high) + abs(target.shift))
        return replace(self, outputs=Interval(low, high))

    def certified_error(self, targets: Array) -> Array:
        """Largest possible absolute error of each row."""
        return np.asarray(np.maximum(self.outputs.high - targets, targets - self.outputs.low).max(axis=1))

    def within(self, low: Array | float, high: Array | float) -> NDArray[np.bool_]:
        """Which rows are certified to have all their outputs in `[low, high]`."""
        return np.asarray(((self.outputs.low >= low) & (self.outputs.high <= high)).all(axis=1))


@dataclass(frozen=True, eq=False)
class Attack:
    """What the attacks reached: models `theta` (datasets × parameters), their classes on the test points, and a witness."""

    theta: Array
    classes: NDArray[np.intp]
    origins: tuple[str, ...]
    witness: tuple[Array, Array]
    """The dataset that changes the most predictions."""
    flips: int
    """How many predictions the witness changes."""
    outputs: Interval
    """Smallest and largest outputs reached (points × outputs), by any model on any of its inputs."""

    def attacked_classes(self, nominal: NDArray[np.intp]) -> NDArray[np.intp]:
        """The nominal class where no attack changed it, else the class of the first attack that did."""
        changed = self.classes != nominal[None, :]
        first = changed.argmax(axis=0)
        return np.where(changed.any(axis=0), self.classes[first, np.arange(len(nominal))], nominal)

    def attacked_accuracy(self, nominal: NDArray[np.intp], y: NDArray[np.intp]) -> float:
        """Share of points that are right for the clean model and for every attacked one."""
        right = (self.classes == y[None, :]).all(axis=0) & (nominal == y)
        return float(np.mean(right))

    def inner(self) -> Box:
        """Smallest box around all models reached: how much of a bound is real."""
        return Box(self.theta.min(axis=0), self.theta.max(axis=0))

    def in_units(self, train: Dataset) -> Attack:
        """The same attack with its outputs in the units of the user's targets."""
        ends = (train.in_units(end) for end in (self.outputs.low, self.outputs.high))
        return replace(self, outputs=Interval(*ends))

    def save(self, path: Path) -> None:
        """Write the witness dataset as a NumPy archive (`x`, one-hot `y`)."""
        with path.open("wb") as target:
            np.savez(target, x=self.witness[0], y=self.witness[1])


@dataclass(frozen=True, eq=False)
class Answers:
    """None where the data have no test part, or the task is another one."""

    test: Predictions | None = None
    test_ranges: Ranges | None = None
    nominal: NDArray[np.intp] | None = None
    attack: Attack | None = None

    @property
    def certified(self) -> Predictions | Ranges | None:
        """What is certified: classes, or ranges."""
        return self.test if self.test is not None else self.test_ranges

    def arrays(self) -> dict[str, Any]:
        """All of it as arrays, for files."""
        found: dict[str, Any] = {}
        if self.test is not None:
            found |= {f"test_{n}": getattr(self.test, n) for n in _CLASSES}
        if self.test_ranges is not None:
            found |= {"range_low": self.test_ranges.outputs.low, "range_high": self.test_ranges.outputs.high}
        if self.nominal is not None:
            found["nominal"] = self.nominal
        if self.attack is not None:
            a = self.attack
            found |= {"attack_theta": a.theta, "attack_classes": a.classes, "attack_origins": np.array(a.origins)}
            found |= {"attack_x": a.witness[0], "attack_y": a.witness[1], "attack_flips": np.array(a.flips)}
            found |= {"attack_low": a.outputs.low, "attack_high": a.outputs.high}
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any], method: str) -> Answers:
        """The inverse of `arrays`."""
        test = ranges = found = None
        if "test_classes" in arrays:
            classes, centre, low, high = (arrays[f"test_{n}"] for n in _CLASSES)
            test = Predictions(classes, centre, low, high, method, StepReport())
        if "range_low" in arrays:
            ranges = Ranges(Interval(arrays["range_low"], arrays["range_high"]), method, StepReport())
        if "attack_theta" in arrays:
            found = Attack(
                arrays["attack_theta"],
                arrays["attack_classes"],
                tuple(str(name) for name in arrays["attack_origins"]),
                (arrays["attack_x"], arrays["attack_y"]),
                int(arrays["attack_flips"]),
                Interval(arrays["attack_low"], arrays["attack_high"]),
            )
        return cls(test, ranges, arrays.get("nominal"), found)

    def check(self, test: Dataset | None, parameters: int) -> None:
        """Raise `ValueError` for answers that are not about these test rows and so many parameters."""
        n = 0 if test is None else len(test)
        lengths = {len(part) for part in self._by_row()}
        if lengths - {n} or (n and not lengths):
            raise ValueError("there are not as many answers as test rows")
        if test is not None and (self.test is None) == (test.task is Task.CLASSES):
            raise ValueError("the answers are of another kind than the target")
        if self.attack is not None and self.attack.theta.shape[1:] != (parameters,):
            raise ValueError("the attack has other parameters than the network")

    def _by_row(self) -> list[NDArray[Any]]:
        """What there is one of for each test row."""
        found: list[NDArray[Any]] = [] if self.nominal is None else [self.nominal]
        if self.test is not None:
            found += [getattr(self.test, name) for name in _CLASSES]
        if self.test_ranges is not None:
            found += [self.test_ranges.outputs.low, self.test_ranges.outputs.high]
        return found


def nominal_outputs(network: Network, theta: Array, x: Array) -> Array:
    """The logits, or the outputs of a regression, by ordinary evaluation."""
    logits: Array = evaluate(network.forward_graph(len(x)), {**network.layout.unflatten(theta), "x": x})["logits"]
    return logits


def nominal_classes(network: Network, theta: Array, x: Array) -> NDArray[np.intp]:
    """The class that ordinary evaluation gives: the largest logit, or the sign of the only one."""
    logits = nominal_outputs(network, theta, x)
    classes = logits.argmax(axis=-1) if network.logits > 1 else (logits[..., 0] > 0)
    return np.asarray(classes, dtype=np.intp)


def margin_pairs(network: Network) -> tuple[Array, NDArray[np.intp]]:
    """Rows `e_u − e_v` for all ordered pairs of classes, and the class `u` that each row speaks for."""
    if network.logits == 1:
        return np.array([[-1.0], [1.0]]), np.array([0, 1], dtype=np.intp)
    identity = np.eye(network.logits)
    pairs = [(u, v) for u in range(network.logits) for v in range(network.logits) if u != v]
    return np.array([identity[u] - identity[v] for u, v in pairs]), np.array([u for u, _ in pairs], dtype=np.intp)


def abstain(network: Network, theta: Array, x: Array, method: str) -> Predictions:
    """Nothing is known: every point abstains; the classes beside it are those of the model `theta`."""
    n = len(x)
    nothing = np.full(n, ABSTAIN, dtype=np.intp)
    return Predictions(
        nothing, nominal_classes(network, theta, x), np.full(n, -np.inf), np.full(n, np.inf), method, StepReport()
    )


def unknown_ranges(network: Network, x: Array, method: str) -> Ranges:
    """Nothing is known: every range is infinite."""
    nothing = np.full((len(x), network.logits), np.inf)
    return Ranges(Interval(-nothing, nothing), method, StepReport())


def predict_ranges(network: Network, state: ParameterSet, inputs: Inputs, engine: Engine) -> Ranges:
    """Ranges of all outputs for every `θ` in the set."""
    found, report = engine.bound(network.forward_graph, network.layout, state, inputs)
    usable = found.sound & state.usable
    ends = Interval(np.where(usable, found.low, -np.inf), np.where(usable, found.high, np.inf))
    return Ranges(ends, engine.prediction, report)


def predict(network: Network, state: ParameterSet, inputs: Inputs, engine: Engine, margin: float = 0.0) -> Predictions:
    """Certified classes of rows for every `θ` in the set."""
    if not (np.isfinite(margin) and margin >= 0):
        raise UserError(f"The margin asked for must be a finite number ≥ 0, got {margin}.")

    def enough(least: Array) -> NDArray[np.bool_]:
        return np.asarray(least > 0 if margin == 0 else least >= margin)  # a tie is not enough

    if not state.usable:
        return abstain(network, state.centre, inputs.x, engine.prediction)
    pairs, speaks_for = margin_pairs(network)
    centre = nominal_classes(network, state.centre, inputs.x)
    relevant = speaks_for[None, :] == centre[:, None]
    wanted = Wanted(relevant, enough)
    found, report = engine.bound(lambda n: network.margin_graph(n, pairs), network.layout, state, inputs, wanted)
    least = np.where(relevant, np.where(found.sound, found.low, -np.inf), np.inf).min(axis=1)
    most = np.where(relevant, np.where(found.sound, found.high, np.inf), np.inf).min(axis=1)
    classes = np.where(enough(least) & np.isfinite(least), centre, ABSTAIN).astype(np.intp)
    return Predictions(classes, centre, least, most, engine.prediction, report)
