"""What an engine is: it turns one parameter set into the next, step after step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import SoundnessError
from mibp_cert.nets import Layout, Step
from mibp_cert.sets import ThreatSet


@dataclass(frozen=True, eq=False)
class Box:
    """The parameter set `{θ : lower ≤ θ ≤ upper}` over the flat parameter vector."""

    lower: Array
    upper: Array

    @classmethod
    def point(cls, theta: Array) -> Box:
        return cls(theta, theta)

    @property
    def radius(self) -> Array:
        return 0.5 * (self.upper - self.lower)

    @property
    def centre(self) -> Array:
        return np.clip(0.5 * (self.lower + self.upper), self.lower, self.upper)

    def first(self, count: int) -> Box:
        """The set of the first `count` entries: the parameters of a state that also has velocities."""
        return Box(self.lower[:count], self.upper[:count])

    def contains(self, theta: Array) -> bool:
        """Is `θ` inside, to the last bit? NaN never is."""
        return bool(np.all((self.lower <= theta) & (theta <= self.upper)))

    def within(self, other: Box) -> bool:
        """Is this box a subset of the other?"""
        return bool(np.all((other.lower <= self.lower) & (self.upper <= other.upper)))

    def tensors(self, layout: Layout) -> dict[str, Interval]:
        """One interval per named parameter."""
        low, high = layout.unflatten(self.lower), layout.unflatten(self.upper)
        return {name: Interval(low[name], high[name]) for name in layout.names}

    @classmethod
    def of_tensors(cls, tensors: dict[str, Interval], layout: Layout) -> Box:
        return cls(
            layout.flatten({name: tensors[name].low for name in layout.names}),
            layout.flatten({name: tensors[name].high for name in layout.names}),
        )

    def arrays(self) -> dict[str, Array]:
        """All that is needed to restore the set (`Engine.restore`), bit for bit."""
        return {"lower": self.lower, "upper": self.upper}

    def check(self, layout: Layout, step: int) -> None:
        """Raise `SoundnessError`, naming step and parameter, if any bound is NaN, infinite or inverted."""
        bad = np.flatnonzero(~Interval(self.lower, self.upper).sound)
        if len(bad):
            index = int(bad[0])
            raise SoundnessError(
                f"After step {step} the bounds of {len(bad)} parameter(s) are unusable, the first being "
                f"{layout.describe(index)} in [{self.lower[index]}, {self.upper[index]}]; nothing can be certified from "
                "here on: use fewer steps, a smaller learning rate or a smaller eps."
            )


@dataclass
class StepReport:
    """What one step cost and how good it was; engines without a solver leave most of it at zero."""

    seconds: float = 0.0
    programs: int = 0
    nodes: int = 0
    fallbacks: int = 0
    unstable_gates: int = 0
    unstable_relus: int = 0
    gap: Array = field(default_factory=lambda: np.zeros(0))
    """Honest gap of every bound (2 × m: lower ends, upper ends), relative to the parameter's radius."""
    details: dict[str, Any] = field(default_factory=dict)


class Engine(ABC):
    """An engine bounds a training step: from a set of parameters before it to a set after it."""

    name: str
    soundness: str
    """`rounding-safe`, `solver-tolerance` or `float64`: what the bounds rest on."""
    default_prediction: str
    operations: frozenset[str]
    """The graph operations that it has rules for."""
    unroll: int = 1
    """How many steps are put into one graph before the set is relaxed."""

    @abstractmethod
    def advance(self, box: Box, step: Step, threat: ThreatSet) -> tuple[Box, StepReport]:
        """Bounds after the step for every `θ` in the box and every dataset of the threat set."""

    def restore(self, arrays: Mapping[str, Array], threat: ThreatSet) -> Box:
        """The set that these arrays (`Box.arrays`) describe, for the same threat."""
        return Box(arrays["lower"], arrays["upper"])

    def close(self) -> None:
        """Release worker processes, if any."""
        return


def data_intervals(step: Step, threat: ThreatSet) -> dict[str, Interval]:
    """The hull of the step's rows, as inputs of its graph."""
    hull = threat.hull()
    return {
        "x": Interval(hull.x_low[step.rows], hull.x_high[step.rows]),
        "y": Interval(hull.y_low[step.rows], hull.y_high[step.rows]),
    }
