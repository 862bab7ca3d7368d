"""Is the model any good? What an answer that looks at no column gets right, and every share class by class.

A model that always answers the most frequent class (numbers: the mean of the training targets) is certified for any doubt
about columns, and its accuracy is that of the class. So every accuracy stands beside this baseline, beside the balanced accuracy
(the mean of the shares `r_c / n_c` of the classes `c`, `1/K` for a constant answer), and is told class by class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.card import number, percent
from mibp_cert.certify.predict import Attack, Predictions
from mibp_cert.data import Dataset

Right = NDArray[np.bool_]
"""Which test points are right."""


def majority(train: Dataset) -> int:
    """The most frequent class of the training rows."""
    return int(np.bincount(train.y).argmax())


def mean_error(train: Dataset, rows: Dataset) -> float:
    """Mean absolute error, in the user's units, of always answering the mean of the training targets."""
    assert train.targets is not None
    assert rows.targets is not None
    return float(np.abs(train.in_units(rows.targets) - train.in_units(train.targets).mean(axis=0)).mean())


@dataclass(frozen=True)
class ClassShare:
    """One class of the test points: how many there are, and which shares of them are right."""

    name: Any
    rows: int
    clean: float
    attacked: float | None
    """Right for the clean model and for every attacked one; None: no attack."""
    certified: float
    """Certified and right."""
    answers: int
    """How many test points, of whatever class, are certified to be of this one."""

    def to_json(self) -> dict[str, Any]:
        return {
            "class": self.name if isinstance(self.name, str | bool | int | float) else str(self.name),
            "n": self.rows,
            "nominal": self.clean,
            "attacked": self.attacked,
            "certified": self.certified,
            "certified_answers": self.answers,
        }


@dataclass(frozen=True)
class Worth:
    """What is right of the test points of classes."""

    baseline: Any
    """The most frequent class of the training rows."""
    baseline_accuracy: float
    clean: float
    certified: float
    wrong: int
    """Certified, and wrong: every possible model is."""
    classes: tuple[ClassShare, ...]
    """Those that test points have."""

    @classmethod
    def of(
        cls, train: Dataset, test: Dataset, nominal: NDArray[np.intp], answer: Predictions, attack: Attack | None
    ) -> Worth:
        y, usual, names = test.y, majority(train), train.classes
        clean, proven = nominal == y, answer.classes == y
        held = None if attack is None else clean & (attack.classes == y[None, :]).all(axis=0)
        shares = [
            ClassShare(
                names[c],
                int(mine.sum()),
                float(clean[mine].mean()),
                None if held is None else float(held[mine].mean()),
                float(proven[mine].mean()),
                int((answer.classes == c).sum()),
            )
            for c in np.unique(y).tolist()
            for mine in (y == c,)
        ]
        wrong = int((answer.certified & ~proven).sum())
        return cls(
            names[usual], float(np.mean(y == usual)), float(clean.mean()), float(proven.mean()), wrong, tuple(shares)
        )

    @property
    def better(self) -> bool:
        """Is the clean model better than the baseline?"""
        return self.clean > self.baseline_accuracy

    def balanced(self, what: str) -> float | None:
        """Balanced accuracy: `clean`, `attacked` or `certified`."""
        shares = [getattr(share, what) for share in self.classes]
        return None if any(share is None for share in shares) else float(np.mean(shares))

    def words(self) -> list[str]:
        """What must be said loudly: a model that is no better than its baseline, and classes that are never certified."""
        always, said = f"always answering {self.baseline!r}", []
        figures = f"{percent(self.clean)} against {percent(self.baseline_accuracy)}"
        if not self.better:
            said.append(
                f"This model does no better than {always} ({figures} right): what is certified of it is of no use."
            )
        elif 0 < self.certified <= self.baseline_accuracy:
            said.append(
                f"What is certified is right no more often than {always} ({percent(self.certified)} against "
                f"{percent(self.baseline_accuracy)})."
            )
        never = [repr(share.name) for share in self.classes if not share.answers]
        if never and self.certified > 0:
            said.append(f"No prediction is certified as {' or '.join(never)}.")
        return said

    def to_json(self) -> dict[str, Any]:
        attacked = self.balanced("attacked")
        return {
            "majority_class": self.baseline if isinstance(self.baseline, str | int | float) else str(self.baseline),
            "better_than_majority": self.better,
            "nominal_balanced_accuracy": self.balanced("clean"),
            "certified_balanced_accuracy": self.balanced("certified"),
            **({} if attacked is None else {"attacked_balanced_accuracy": attacked}),
            "wrong_but_certified": self.wrong,
            "by_class": [share.to_json() for share in self.classes],
        }


@dataclass(frozen=True)
class NumberWorth:
    """The same of test points with numbers, in the user's units."""

    mean: float
    """Of the training targets: the answer of the baseline."""
    baseline_error: float
    """Its mean absolute error on the test points."""
    clean: float
    certified: float

    @classmethod
    def of(cls, train: Dataset, test: Dataset, clean: float, certified: float) -> NumberWorth:
        assert train.targets is not None
        mean = float(train.in_units(train.targets).mean())
        return cls(mean, mean_error(train, test), clean, certified)

    @property
    def better(self) -> bool:
        return self.clean < self.baseline_error

    def words(self) -> list[str]:
        always, figures = "always answering the mean", f"against {number(self.baseline_error)}"
        if not self.better:
            return [
                f"This model does no better than {always} (mean absolute error {number(self.clean)} {figures}): what is "
                "certified of it is of no use."
            ]
        if np.isfinite(self.certified) and self.certified >= self.baseline_error:
            return [f"The certified error is no smaller than that of {always} ({number(self.certified)} {figures})."]
        return []

    def to_json(self) -> dict[str, Any]:
        return {
            "mean_target": self.mean,
            "baseline_error": self.baseline_error,
            "better_than_mean": self.better,
        }
