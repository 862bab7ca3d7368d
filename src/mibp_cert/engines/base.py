"""What an engine is: it turns one set of parameters into the next, and bounds what a set of models computes.

A graph maps the parameters and rows `x` to one tensor (rows × outputs). `bound` encloses its values for every `θ` in the set and,
where the inputs themselves may be perturbed, for every input that their own threat allows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import SoundnessError, UserError
from mibp_cert.graph import Graph, check_support
from mibp_cert.nets import Layout, Network, Step
from mibp_cert.sets import ThreatSet

Progress = Callable[[int, int], None]
"""`progress(done, total)` in programs of the current step."""
Maker = Callable[[int], Graph]
"""From a number of rows to a graph over the parameters and `x`, with one output (rows × outputs)."""


@dataclass(frozen=True, eq=False)
class ParameterSet(ABC):
    """A set of parameter vectors; whatever else is known of it, it lies in the box `lower ≤ θ ≤ upper`."""

    lower: Array
    upper: Array

    @property
    def radius(self) -> Array:
        return 0.5 * (self.upper - self.lower)

    @property
    def centre(self) -> Array:
        return np.clip(0.5 * (self.lower + self.upper), self.lower, self.upper)

    @property
    def usable(self) -> bool:
        """Are all bounds finite, and none inverted?"""
        return bool(Interval(self.lower, self.upper).sound.all())

    @abstractmethod
    def first(self, count: int) -> Self:
        """The set of the first `count` entries: the parameters of a state that also has velocities."""

    @abstractmethod
    def within_box(self, other: ParameterSet) -> Self:
        """The members of this set that lie in the other's box."""

    @final
    def meet(self, other: ParameterSet) -> Box:
        """The intersection of the two boxes; NaN in either stays."""
        return Box(np.maximum(self.lower, other.lower), np.minimum(self.upper, other.upper))

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """All that is needed to restore the set (`Engine.restore`), bit for bit."""

    def contains(self, theta: Array) -> bool:
        """Is `θ` within the box, to the last bit? NaN never is."""
        return bool(np.all((self.lower <= theta) & (theta <= self.upper)))

    def within(self, other: ParameterSet) -> bool:
        """Is this set's box a subset of the other's?"""
        return bool(np.all((other.lower <= self.lower) & (self.upper <= other.upper)))

    def tensors(self, layout: Layout) -> dict[str, Interval]:
        """One interval per named parameter."""
        low, high = layout.unflatten(self.lower), layout.unflatten(self.upper)
        return {name: Interval(low[name], high[name]) for name in layout.names}

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


@final
@dataclass(frozen=True, eq=False)
class Box(ParameterSet):
    """The parameter set `{θ : lower ≤ θ ≤ upper}` over the flat parameter vector."""

    @classmethod
    def point(cls, theta: Array) -> Box:
        return cls(theta, theta)

    @classmethod
    def of_tensors(cls, tensors: dict[str, Interval], layout: Layout) -> Box:
        ends = ({name: getattr(tensors[name], end) for name in layout.names} for end in ("low", "high"))
        return cls(*(layout.flatten(end) for end in ends))

    def first(self, count: int) -> Box:
        return Box(self.lower[:count], self.upper[:count])

    def within_box(self, other: ParameterSet) -> Box:
        return self.meet(other)

    def arrays(self) -> dict[str, Array]:
        return {"lower": self.lower, "upper": self.upper}


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

    def take(self, rows: NDArray[np.intp]) -> Inputs:
        """Some of the rows, if each is what it is."""
        assert self.members is None
        return Inputs(self.x[rows])


@dataclass(frozen=True, eq=False)
class Wanted:
    """What a caller needs to know of a graph's output: an engine that can refine its bounds stops where that is known."""

    elements: NDArray[np.bool_] | None = None
    """Which of them; None: all."""
    enough: Callable[[Array], NDArray[np.bool_]] | None = None
    """From lower ends to where they are large enough; upper ends are not needed then. None: both ends, as tight as can be."""
    whole: bool = False
    """The output is no table of rows, so that all rows must be in one graph."""


def _check_whole(name: str, value: int | None, least: int) -> None:
    if value is not None and (value != int(value) or value < least):
        raise UserError(f"{name} must be a whole number ≥ {least}, got {value}.")


@dataclass(frozen=True)
class SolverSettings:
    """How the programs are solved: which solver, to which honest gap, and within which limits."""

    solver: str = "scip"
    gap: float = 0.01
    """Honest gap asked for, relative to the output's radius."""
    floor: float = 1e-9
    """Radius below which the gap is measured absolutely."""
    seconds_per_program: float = math.inf
    nodes_per_program: int | None = None
    seconds_per_step: float = math.inf
    jobs: int | None = None
    parallel: str = "local"
    """Where programs are solved: "local", the address of a Dask scheduler, or "ray"; see `WorkerPool`."""

    def __post_init__(self) -> None:
        for name in ("gap", "floor", "seconds_per_program", "seconds_per_step"):
            if not getattr(self, name) >= 0.0:
                raise UserError(f"{name} must be at least 0, got {getattr(self, name)}.")
        _check_whole("nodes_per_program", self.nodes_per_program, 0)
        _check_whole("jobs", self.jobs, 1)

    @property
    def repeatable(self) -> bool:
        """Wall-clock limits cannot be repeated; without them a run gives the same bits again."""
        return math.isinf(self.seconds_per_program) and math.isinf(self.seconds_per_step)


@dataclass(frozen=True)
class RelationalSettings:
    """`symbols`: budget of symbols kept between steps (None: a few hundred beyond the data's own);
    `search`: candidates per step in the search for the gates' slope (0: the last slope is kept);
    `cases`: a row budget with at most so many choices of rows is split into one set for each choice (0: never)."""

    symbols: int | None = None
    search: int = 3
    cases: int = 128

    def __post_init__(self) -> None:
        for name in ("symbols", "search", "cases"):
            _check_whole(name, getattr(self, name), 0)


@dataclass(frozen=True)
class EngineSettings:
    """All that any engine can be told; each takes what it knows."""

    solver: SolverSettings = field(default_factory=SolverSettings)
    relational: RelationalSettings = field(default_factory=RelationalSettings)
    unroll: int = 1
    """How many steps are put into one graph before the set is relaxed."""
    thorough: bool = True
    """Fitted models: whether a start that plain bounds do not prove is tried by slower ways."""

    def __post_init__(self) -> None:
        _check_whole("unroll", self.unroll, 1)


class Engine(ABC):
    """An engine bounds a training step: from a set of parameters before it to a set after it; and any graph over a set."""

    name: ClassVar[str]
    prediction: ClassVar[str]
    """What `prediction=` calls its bounds of predictions."""
    soundness: ClassVar[str]
    """`rounding-safe`, `solver-tolerance` or `float64`: what the bounds rest on."""
    operations: ClassVar[frozenset[str]]
    """The graph operations that it has rules for."""
    own_sets: ClassVar[bool] = False
    """Whether it bounds predictions over its own kind of sets only."""
    knows_rows: ClassVar[bool] = False
    """Whether rows may come and go."""
    keeps_symbols: ClassVar[bool] = False
    """Whether it keeps a generator for every symbol of the data's noise."""
    solves: ClassVar[bool] = False
    """Whether it asks a solver, and takes a threat by its exact view."""
    unroll: int = 1

    @classmethod
    def of(cls, settings: EngineSettings, progress: Progress | None = None) -> Self:
        """The engine with these settings; it takes those that it knows."""
        return cls()

    @classmethod
    def check_settings(cls, settings: EngineSettings) -> None:
        """Raise `UserError` for settings that it cannot follow here."""
        if settings.unroll != 1:
            raise UserError(f"The engine '{cls.name}' takes one step at a time; leave unroll at 1, or choose 'mibp'.")

    @abstractmethod
    def advance(self, state: ParameterSet, step: Step, threat: ThreatSet) -> tuple[ParameterSet, StepReport]:
        """The set after the step for every `θ` in the set before it and every dataset of the threat."""

    @abstractmethod
    def bound(
        self, make: Maker, layout: Layout, state: ParameterSet, inputs: Inputs, wanted: Wanted | None = None
    ) -> tuple[Interval, StepReport]:
        """Enclosure of the output of a graph for every `θ` in the set and every input; NaN or infinite where that fails."""

    def validating(self) -> Engine:
        """The engine that bounds validation points after every epoch: this one, or a quicker one."""
        return self

    def restore(self, arrays: Mapping[str, Array], threat: ThreatSet, step: Step) -> ParameterSet:
        """The set that these arrays (`ParameterSet.arrays`) describe, for the same threat, after this step."""
        return Box(arrays["lower"], arrays["upper"])

    @classmethod
    def memory(cls, network: Network, batch: int, symbols: int) -> int:
        """Bytes at the peak of a step on `batch` rows whose data have so many symbols of noise."""
        return 8 * batch * max(network.sizes) * 16

    def check_threat(self, threat: ThreatSet) -> None:
        """Raise `UserError` for a threat that it cannot take."""
        return

    @final
    def check_graph(self, graph: Graph) -> None:
        """Raise `UnsupportedOperation`, naming the part, for an operation that it has no rule for."""
        check_support(graph, self.operations, self.name)

    def close(self) -> None:
        """Release worker processes, if any."""
        return


def data_intervals(step: Step, threat: ThreatSet) -> dict[str, Interval]:
    """The hull of the step's rows, as inputs of its graph."""
    hull = threat.hull()
    x, y = Interval(hull.x_low, hull.x_high), Interval(hull.y_low, hull.y_high)
    return {"x": x[step.rows], "y": y[step.rows]}
