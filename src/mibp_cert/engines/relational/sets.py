"""Sets of the relational engine: affine images of the data's noise, and unions of them.

`{ c + G·ε + b : ε ∈ 𝓔, |b| ≤ r } ∩ [lower, upper]`, the first symbols being the data's own noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from mibp_cert.engines.base import ParameterSet
from mibp_cert.engines.relational.forms import Form, Symbols, upward
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.nets import Layout
from mibp_cert.sets import Noise, ThreatSet


@final
@dataclass(frozen=True, eq=False)
class RelationalSet(ParameterSet):
    """A box with generators: `centre + linear·ε`, slack in `slack`; the first `data` columns are the data's noise."""

    middle: Array
    linear: Array
    slack: Array
    noise: Noise
    slope: float = 1.0
    """Slope cap that the last step chose; the next search starts there."""
    gates: NDArray[np.bool_] | None = None
    """Which symbols beyond the data's came from gates; the others are remainders (second order, relu bands, rounding)."""

    @property
    def data(self) -> int:
        return self.noise.symbols

    def first(self, count: int) -> RelationalSet:
        return replace(
            self,
            lower=self.lower[:count],
            upper=self.upper[:count],
            middle=self.middle[:count],
            linear=self.linear[:count],
            slack=self.slack[:count],
        )

    def within_box(self, other: ParameterSet) -> RelationalSet:
        box = self.meet(other)
        return replace(self, lower=box.lower, upper=box.upper)

    def arrays(self) -> dict[str, Array]:
        gates = np.zeros(self.linear.shape[1] - self.data, dtype=bool) if self.gates is None else self.gates
        return {
            "lower": self.lower,
            "upper": self.upper,
            "middle": self.middle,
            "linear": self.linear,
            "slack": self.slack,
            "slope": np.array(self.slope),
            "gates": gates.astype(np.float64),
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array], noise: Noise) -> RelationalSet:
        """The inverse of `arrays`, for the same noise."""
        names = ("lower", "upper", "middle", "linear", "slack")
        lower, upper, middle, linear, slack = (arrays[name] for name in names)
        slope, gates = float(arrays["slope"]), arrays["gates"] != 0
        return cls(lower, upper, middle, linear, slack, noise, slope, gates)

    def residual(self, theta: Array, epsilon: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """What is left of `θ` after the known data noise: `θ − c − G_data·ε`, in extended precision."""
        known = self.linear[:, : self.data].astype(np.longdouble) @ epsilon.astype(np.longdouble)
        return theta.astype(np.longdouble) - self.middle.astype(np.longdouble) - known

    def cover(self) -> Array:
        """How large a residual the other symbols and the slack admit."""
        return upward(np.abs(self.linear[:, self.data :]).sum(axis=1) + self.slack, self.linear.shape[1])

    def composition(self) -> dict[str, float]:
        """What the mean radius consists of: the data's first order, gates, and remainders."""
        sizes = np.abs(self.linear).sum(axis=0) / len(self.middle)
        gates = np.zeros(len(sizes) - self.data, dtype=bool) if self.gates is None else self.gates
        later = sizes[self.data :]
        return {
            "data": float(sizes[: self.data].sum()),
            "gates": float(later[gates].sum()),
            "remainders": float(later[~gates].sum() + self.slack.mean()),
        }

    def forms(self, layout: Layout, symbols: Symbols) -> dict[str, Form]:
        """The named parameters as forms."""
        forms = {}
        for i, name in enumerate(layout.names):
            span, shape = slice(layout.offsets[i], layout.offsets[i + 1]), layout.shapes[i]
            linear = self.linear[span].reshape(*shape, self.linear.shape[1])
            ends = symbols.support(linear)
            box = Interval(self.lower[span].reshape(shape), self.upper[span].reshape(shape))
            forms[name] = Form(
                symbols,
                self.middle[span].reshape(shape),
                linear,
                self.slack[span].reshape(shape),
                box,
                ends[1] if symbols.boxed else symbols.magnitude(linear),
                reach=ends,
                tight=True,
                owned=False,
            )
        return forms

    @classmethod
    def around(cls, box: ParameterSet, noise: Noise) -> RelationalSet:
        """A set as it is, a box as a set without generators."""
        if isinstance(box, RelationalSet):
            return box
        centre = box.centre
        slack = upward(np.maximum(box.upper - centre, centre - box.lower))
        return cls(box.lower, box.upper, centre, np.zeros((len(centre), noise.symbols)), slack, noise)


@final
@dataclass(frozen=True, eq=False)
class CaseSet(ParameterSet):
    """A union of relational sets, one for each case that the threat is split into; the box is their hull."""

    states: tuple[RelationalSet, ...]
    threats: tuple[ThreatSet, ...]

    @classmethod
    def of(cls, states: list[RelationalSet], threats: tuple[ThreatSet, ...]) -> CaseSet:
        lower = np.min([state.lower for state in states], axis=0)
        # min and max skip nothing: a NaN in any case stays one.
        return cls(lower, np.max([state.upper for state in states], axis=0), tuple(states), threats)

    def within_box(self, other: ParameterSet) -> CaseSet:
        return CaseSet.of([state.within_box(other) for state in self.states], self.threats)

    def arrays(self) -> dict[str, Array]:
        cases = {f"case{i}_{name}": a for i, s in enumerate(self.states) for name, a in s.arrays().items()}
        return {"lower": self.lower, "upper": self.upper, **cases}

    def first(self, count: int) -> CaseSet:
        return CaseSet(self.lower[:count], self.upper[:count], tuple(s.first(count) for s in self.states), self.threats)


@dataclass(frozen=True, eq=False)
class Case:
    """A relational set, and the threat whose datasets lead to it."""

    state: RelationalSet
    threat: ThreatSet


def cases_of(state: ParameterSet, threat: ThreatSet) -> list[Case]:
    """The relational sets that a set is the union of, each with its share of the threat; none for a plain box."""
    threats = state.threats if isinstance(state, CaseSet) else (threat,)
    return [Case(one, own) for one, own in zip(states_of(state), threats, strict=False)]


def states_of(state: ParameterSet) -> tuple[RelationalSet, ...]:
    """The relational sets that a set is the union of; none for a plain box."""
    if isinstance(state, CaseSet):
        return state.states
    return (state,) if isinstance(state, RelationalSet) else ()
