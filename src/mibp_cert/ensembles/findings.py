"""All that is found about test rows: accuracy by the number of wrong rows, certified and attacked, and how many change at
once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils import column_or_1d

from mibp_cert.ensembles.attack import NEVER, Attacked
from mibp_cert.ensembles.base import Answers, Ensemble, Table
from mibp_cert.ensembles.collective import most_changed
from mibp_cert.ensembles.partitions import PartitionedClassifier, Votes
from mibp_cert.ensembles.votes import Index
from mibp_cert.errors import UserError
from mibp_cert.threats import in_words

RADII = (0, 1, 2, 5, 10, 20)
SECONDS = 10.0
"""For each number of lost parts, how long a solver looks for predictions that change at once."""


@dataclass(frozen=True, eq=False)
class Findings:
    """What an ensemble's votes about test rows are worth."""

    model: Ensemble
    answers: Answers
    survived: dict[str, Index]
    """How many wrong rows of each kind the answers survive."""
    right: Any
    """Whether the vote is the label, for each row."""
    attacked: Attacked | None
    baseline: float
    """The accuracy of always naming the most frequent class."""
    rows: pd.DataFrame
    """One line per test row (`certify`)."""
    radii: Sequence[int] = RADII
    at_once: tuple[int, ...] = ()
    """How many predictions can change at once at most, for so many altered rows and the noise in all others, by radius; empty:
    that was not asked."""

    @classmethod
    def of(
        cls,
        model: Ensemble,
        X: Table,
        y: ArrayLike,
        attacked: Attacked | None = None,
        *,
        most_frequent: Any = None,
        radii: Sequence[int] = RADII,
        collective: bool = False,
    ) -> Findings:
        """About these rows with their labels; `most_frequent`: the class with the most training rows."""
        answers, labels = model.answers(X), column_or_1d(y)
        if collective and not isinstance(model, PartitionedClassifier):
            raise UserError("How many predictions change at once is counted for parts: leave --collective out.")
        table = model.certify(X, labels)
        if attacked is not None:
            table["attacked_with"] = np.where(attacked.least == NEVER, -1, attacked.least)
        many: tuple[int, ...] = ()
        if isinstance(model, PartitionedClassifier) and isinstance(answers, Votes) and collective:
            many = tuple(most_changed(answers.may, model.costs["altered"] * r, SECONDS) for r in radii)
        right = model.classes_[answers.nominal] == labels
        base = float((labels == most_frequent).mean())
        return cls(model, answers, model.radii(answers), right, attacked, base, table, tuple(radii), many)

    @property
    def by_radius(self) -> pd.DataFrame:
        """Accuracy by the number of wrong rows: certified for each kind of them, and what is left under the attack."""
        table: dict[str, list[Any]] = {
            name: [float((self.right & (radius >= r)).mean()) for r in self.radii]
            for name, radius in self.survived.items()
        }
        if self.attacked is not None:
            least, count = self.attacked.least, self.attacked.at_once
            table["attacked"] = [float((self.right & (least > r)).mean()) for r in self.radii]
            table["changed"] = [int(count[min(r, len(count) - 1)]) for r in self.radii]
        if self.at_once:
            table["can_change"] = list(self.at_once)
        return pd.DataFrame(table, index=pd.Index(list(self.radii), name="rows"))

    @property
    def certified_accuracy(self) -> float:
        """The share of rows whose class stands for the whole threat and is the label."""
        return float((self.right & (self.answers.classes >= 0)).mean())

    @property
    def sentences(self) -> list[str]:
        """What was found, in words."""
        model, n = self.model, len(self.right)
        first, *more = model.words
        said = [
            f"{first}, and their votes are right in {100 * float(self.right.mean()):.1f} % of {n} test rows (always the most "
            f"frequent class: {100 * self.baseline:.1f} %).",
            *more,
        ]
        if model.threat is not None:
            said.append(
                f"Certified and right in {100 * self.certified_accuracy:.1f} %, whatever the data really were: "
                f"{in_words(model.threat)}."
            )
        if self.attacked is not None:
            said.append(self.attacked.words)
        return said

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        table = self.by_radius.reset_index()
        return {
            "ensemble": self.model.kind,
            **self.model.settings,
            "threat": None if self.model.threat is None else self.model.threat.to_json(),
            "test_rows": len(self.right),
            "nominal_accuracy": float(self.right.mean()),
            "majority_accuracy": self.baseline,
            "certified_test_accuracy": self.certified_accuracy,
            "by_radius": table.to_dict(orient="records"),
            "rows": self.rows.astype(object).to_dict(orient="records"),
        }
