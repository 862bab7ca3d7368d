"""What was found about the test points: certified classes or ranges, the clean model's classes, and the attack beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.certify.attack import Attack
from mibp_cert.certify.predict import Predictions, Ranges
from mibp_cert.engines import StepReport
from mibp_cert.engines.rounding import Interval

_CLASSES = ("classes", "centre", "margin", "margin_high")


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
