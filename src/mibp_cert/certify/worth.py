"""Is the model any good? What an answer that looks at no column gets right, and every share class by class.

A model that always answers the most frequent class (numbers: the mean of the training targets) is certified for any doubt
about columns, and its accuracy is that of the class. So every accuracy stands beside this baseline, beside the balanced accuracy
(the mean of the shares `r_c / n_c` of the classes `c`, `1/K` for a constant answer), and is told class by class. A model whose
classes have weights gives away accuracy on frequent ones for rare ones: it is judged by the balanced accuracy.
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


def accuracy(right: Right, y: NDArray[np.intp], *, balanced: bool = False) -> float:
    """The share of the points with the labels `y` that are right; `balanced`: the mean of the shares of their classes.

    >>> accuracy(np.array([True, True, True, False]), np.array([0, 0, 0, 1]), balanced=True)
    0.5
    """
    groups = [y == c for c in np.unique(y)] if balanced else [np.ones(len(y), dtype=bool)]
    return float(np.mean([right[group].mean() for group in groups]))


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
    by_class: bool = False
    """Is the model judged by balanced accuracy?"""

    @classmethod
    def of(
        cls,
        train: Dataset,
        test: Dataset,
        nominal: NDArray[np.intp],
        answer: Predictions,
        attack: Attack | None,
        *,
        by_class: bool = False,
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
        wrong, base = int((answer.certified & ~proven).sum()), float(np.mean(y == usual))
        return cls(names[usual], base, float(clean.mean()), float(proven.mean()), wrong, tuple(shares), by_class)

    @property
    def better(self) -> bool:
        """Is the clean model better than the baseline?"""
        base, clean, _ = self.judged
        return clean > base

    @property
    def figure(self) -> str:
        """What the model is judged by."""
        return "balanced accuracy" if self.by_class else "accuracy"

    @property
    def judged(self) -> tuple[float, float, float]:
        """That figure of the baseline, of the clean model, and what of it is certified."""
        if not self.by_class:
            return self.baseline_accuracy, self.clean, self.certified
        clean, certified = (float(np.mean([getattr(s, what) for s in self.classes])) for what in ("clean", "certified"))
        return 1.0 / len(self.classes), clean, certified

    def balanced(self, what: str) -> float | None:
        """Balanced accuracy: `clean`, `attacked` or `certified`."""
        shares = [getattr(share, what) for share in self.classes]
        return None if any(share is None for share in shares) else float(np.mean(shares))

    def words(self) -> list[str]:
        """What must be said loudly: a model that is no better than its baseline, and classes that are never certified."""
        always, said = f"always answering {self.baseline!r}", []
        base, clean, certified = self.judged
        unit = f" {self.figure}" if self.by_class else ""
        if not self.better:
            figures = f"{percent(clean)} against {percent(base)}{unit or ' right'}"
            said.append(f"This model does no better than {always} ({figures}): what is certified of it is of no use.")
        elif 0 < certified <= base:
            figures = f"{percent(certified)} against {percent(base)}{unit}"
            said.append(f"What is certified is right no more often than {always} ({figures}).")
        never = [repr(share.name) for share in self.classes if not share.answers]
        if never and self.certified > 0:
            said.append(f"No prediction is certified as {' or '.join(never)}.")
        return said

    def to_json(self) -> dict[str, Any]:
        attacked = self.balanced("attacked")
        return {
            "majority_class": self.baseline if isinstance(self.baseline, str | int | float) else str(self.baseline),
            "better_than_majority": self.better,
            **({"judged_by": self.figure} if self.by_class else {}),
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
