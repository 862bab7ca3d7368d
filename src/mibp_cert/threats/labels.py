"""What is commonly wrong with labels and targets: flipped classes, noisy numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mibp_cert.data import Column, Dataset
from mibp_cert.errors import UserError
from mibp_cert.sets import Part
from mibp_cert.threats.cells import choice_parts, outward, plain, with_scaling
from mibp_cert.threats.combine import Budget, Catalogued
from mibp_cert.threats.conditions import Rows
from mibp_cert.threats.words import ANY_ROW, amount, count, names


@dataclass(frozen=True, eq=False)
class TargetNoise(Catalogued):
    """Regression: each target may be off by `eps`, in the units of the target.

    >>> TargetNoise(0.5).to_json()
    {'kind': 'target-noise', 'eps': 0.5}
    """

    eps: float
    kind = "target-noise"
    amounts = ("eps",)

    def __post_init__(self) -> None:
        if not (np.isfinite(self.eps) and self.eps >= 0):
            raise UserError(f"eps must be a finite number ≥ 0, got {self.eps}.")
        object.__setattr__(self, "eps", float(self.eps))

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        if clean.targets is None:
            raise UserError("TargetNoise is for regression; labels are changed by LabelFlips.")
        place = np.flatnonzero(np.broadcast_to(rows[:, None], clean.targets.shape).ravel())
        y, column = clean.targets.ravel()[place], clean.target or Column("target", 0, 1)
        low, high = outward(y, with_scaling([column], y, np.full(len(place), float(self.eps) / column.scale)))
        ones = np.ones(len(place), dtype=np.intp)
        return [Part("box", "y", (place // clean.targets.shape[1]).astype(np.intp), ones, place, low, high)]

    def touches_labels(self) -> bool:
        return True

    def words(self, rows: str = ANY_ROW) -> str:
        return f"{'each' if rows else 'the'} target may be off by {amount(self.eps)}"


@dataclass(frozen=True, eq=False)
class LabelFlips(Catalogued):
    """At most `at_most` labels are wrong (default: any number), optionally only labels in `source`, and only towards `target`.

    >>> LabelFlips(2).to_json()
    {'kind': 'label-flips', 'at_most': 2}
    """

    at_most: int | None = None
    source: Sequence[Any] | None = None
    target: Sequence[Any] | None = None
    kind = "label-flips"
    always = ("at_most",)

    def __post_init__(self) -> None:
        if self.at_most is not None:
            Budget(self, rows=self.at_most)  # refuses a number that makes no sense

    def parts(self, clean: Dataset, rows: Rows, limits: list[int]) -> list[Part]:
        if self.at_most is not None:
            free = LabelFlips(None, self.source, self.target)
            return Budget(free, rows=self.at_most).parts(clean, rows, limits)
        if clean.targets is not None:
            raise UserError("LabelFlips is for classes; the targets of a regression are moved by TargetNoise.")
        classes = len(clean.classes)
        source = range(classes) if self.source is None else clean.number(np.array(self.source, dtype=object)).tolist()
        target = range(classes) if self.target is None else clean.number(np.array(self.target, dtype=object)).tolist()
        options = {k: list(target) for k in source}
        return choice_parts("y", clean.y, options, rows, classes, 0, classes)

    def touches_labels(self) -> bool:
        return True

    def words(self, rows: str = ANY_ROW) -> str:
        source = "" if self.source is None else f"{names(plain(self.source))} "
        target = "" if self.target is None else f" (and really be {names(plain(self.target))})"
        what = f"any number of {source}labels" if rows else f"the {source}label"
        if self.at_most is not None:
            what = f"at most {count(int(self.at_most), f'{source}label')}"
        return f"{what} may be wrong{target}"
