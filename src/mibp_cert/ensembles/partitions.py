"""Ensembles of parts: every row is in one part, so that a wrong row reaches one part or two, and the others vote as they did.

The model is the vote of `votes`, its parts are those of `rows`, and how many of them a threat reaches is in `reach`. Put
together:

**Certificate.** Let `𝒟'` differ from the rows handed in as the threat allows. The parts that no wrong row reaches are the same
sequences of rows, and their learners, fitted to nothing else with seeds of their own, are the same models to the last bit. If
wrong rows reach at most `q` parts, at most `q` votes differ, and by (1) of `votes` the class `c` stands. Where there is noise
in every row besides, or the learners' certificates survive wrong rows inside of their parts, a vote is what these certify,
and (1) of `knapsack` decides. The statement is about every `𝒟'` to which all learners can be fitted.

A part that lacks a class votes as its learner does, which has never heard of that class; a part with one class votes for it,
a part without rows for nobody. All of that is counted as it is: no part is promised to be good.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_consistent_length

from mibp_cert.certify.tables import ABSTAIN_WORD, abstaining, named
from mibp_cert.ensembles.base import Ensemble, Table
from mibp_cert.ensembles.knapsack import Possible, certain, may_be_changed, parts_lost, possible
from mibp_cert.ensembles.learners import Task, certifies, seeded
from mibp_cert.ensembles.reach import Reach, check_ends, check_known, cost_of, in_part, reach
from mibp_cert.ensembles.rows import BASES, Features, Rows, dealt, ordered
from mibp_cert.ensembles.votes import OPEN, Index, counted, may_be_lost, winner
from mibp_cert.errors import SoundnessError, UserError
from mibp_cert.threats import Arbitrary, Nothing, Threat


@dataclass(frozen=True, eq=False)
class Votes:
    """What the parts vote for, and what that certifies."""

    nominal: Index
    """The class that the models as they are vote for."""
    counts: Index
    """Votes that are certain, by class (rows × classes)."""
    open: Index
    """How many are not."""
    lost: Index
    """So many parts may be lost, whatever the noise; −1: not even none."""
    changed: Index
    """So many rows may be wrong inside of parts, with the parts lost that the threat says; where no certificate speaks of
    that, 0 if the class stands."""
    classes: Index
    """The class that stands for the threat, or −1."""
    may: Possible
    """Which votes each part may have that no wrong row reaches: rows × parts × …"""


@dataclass(eq=False, repr=False)
class PartitionedClassifier(Ensemble):
    """One learner for each of `parts` disjoint parts of the rows, which vote: a class stands for every way in which a few
    rows are wrong.

    `estimator` is any classifier; nothing is assumed of it but that its result depends on its rows and its `random_state`
    alone. `by` says what a part is chosen by: the row's `content`, its `features` without the label, a `key` that cannot be
    wrong (handed to `fit`), or its `row` number where rows neither come nor go. `threat`: what may be wrong, such as
    `Arbitrary(3)`; then `predict` abstains where that could change the vote. `None`: `predict` is the vote, and `certify`
    says how many rows it survives. With `CertifiedLogisticRegression` as the estimator there may be noise in every row
    besides, `LInf(0.01) & Arbitrary(3)`, and parts survive wrong labels or removed rows, up to `tried` of them, each.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> X, y = [[float(i)] for i in range(40)], [int(i >= 20) for i in range(40)]
    >>> model = PartitionedClassifier(DecisionTreeClassifier(), parts=5).fit(X, y)
    >>> model.certify([[3.0], [33.0]])[["class", "lost_parts", "altered_rows"]].to_numpy().tolist()
    [[0, 2, 1], [1, 2, 1]]
    """

    estimator: Any
    parts: int = 50
    _: KW_ONLY
    by: str = "content"
    threat: Threat | None = None
    tried: int = 3
    """So many wrong rows inside of a part its certificate is asked about, at most."""
    random_state: int = 0
    n_jobs: int | None = None
    parallel: str = "local"
    abstain_label: Any = None
    run_dir: str | os.PathLike[str] | None = None
    resume: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan |= self.threat is not None and self.threat.knows_missing()
        return tags

    @property
    def certifying(self) -> bool:
        """Has the estimator certificates of its own?"""
        return certifies(self.estimator)

    @property
    def reach(self) -> Reach:
        """What the threat means for the parts."""
        return reach(Nothing() if self.threat is None else self.threat, self.by, certified=self.certifying)

    # Fitting ------------------------------------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for name in ("parts", "tried"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise UserError(f"{name} must be a whole number ≥ 1, got {value!r}.")
        if self.by not in BASES:
            raise UserError(f"by must be one of {', '.join(BASES)}; got {self.by!r}.")
        if self.certifying and self.estimator.get_params(deep=False)["threat"] is not None:
            raise UserError(
                "Say what may be wrong to the ensemble (threat=…), which hands it on to its parts, not to the estimator."
            )
        if self.certifying and "epochs" in self.estimator.get_params(deep=False) and self.by != "row":
            raise UserError(
                "A network is trained in batches, which depend on the order of rows: choose parts by what keeps it (by='row')."
            )

    def _shares(self, rows: Rows, keys: NDArray[Any] | None) -> Sequence[Rows]:
        if len(rows) < self.parts:
            raise UserError(
                f"There are more parts than rows: parts={self.parts}, n_samples={len(rows)}; use fewer parts."
            )
        if (keys is not None) != (self.by == "key"):
            raise UserError("Parts are chosen by a key where by='key' and fit has keys=…: give both or none.")
        self.reach_ = self.reach
        if self.certifying:
            check_known(self.reach_.level(0), rows, self.estimator)
        self.abstain_label_ = abstaining(self.classes_, self.abstain_label)
        self.rows_ = dealt(rows, self.parts, self.by, int(self.random_state), keys)
        return [rows.take(part) for part in self.rows_]

    def _task(self, task: Task) -> Task:
        if self.reach_.plain:
            return task
        levels = self.reach_.levels(task.rows, len(self.classes_), self.tried) if self.certifying else ()
        return replace(task, levels=levels, stands=self.reach_.stands(task.rows, self.tried))

    def nominal_task(self, part: int, rows: Rows) -> Task:
        """A part with other rows, for its vote alone; missing values need the noise that says what they may be."""
        if self.by != "row":
            rows = rows.take(ordered(rows, int(self.random_state)))
        level = in_part(self.reach_.level(0), rows)
        told = () if level is None else (level,)
        return Task(part, seeded(self.estimator, int(self.random_state), part), rows, levels=told)

    # Answers ------------------------------------------------------------------------------------------------------------

    def answers(self, X: Table) -> Votes:
        """The votes about these rows, and what they certify."""
        return self._answers(self.features_of(X))

    def _answers(self, x: Features) -> Votes:
        votes, classes, told = self._votes(x), len(self.classes_), self.reach_
        nominal = winner(counted(votes, classes))
        if told.plain:
            counts = counted(votes, classes)
            lost = may_be_lost(counts)
            found, changed = nominal, np.where(lost >= told.lost, 0, -1)
            unsure, may = np.zeros_like(nominal), possible(votes, classes)[None]
        else:
            check_ends(told.level(0), Rows(x, nominal), self.estimator)
            levels = min(self.tried, told.changes) + 1
            may = np.stack([learner.possible(x, self.classes_, levels) for learner in self.learners_], axis=2)
            sure = certain(may[0])
            counts, unsure = counted(sure, classes), (sure == OPEN).sum(axis=1)
            # So many wrong rows leave no vote certain, however many more there may be.
            most = 0 if told.inside is None else self.parts * levels
            found, changed = may_be_changed(may, most, told.lost)
            lost = parts_lost(may)
        stands = np.where(changed >= told.changes, found, -1)
        if ((stands >= 0) & (stands != nominal)).any():
            raise SoundnessError(
                "The vote of the models contradicts a certified class: the bounds are not sound; report this."
            )
        return Votes(nominal, counts, unsure.astype(np.intp), lost, changed, stands.astype(np.intp), may[0])

    def predict(self, X: Table) -> NDArray[Any]:
        """The class that stands for every dataset of the threat, or `abstain_label_`; without a threat, the vote."""
        found = self.answers(X)
        return named(self.classes_, found.classes, self.abstain_label_)

    def predict_nominal(self, X: Table) -> NDArray[Any]:
        """The vote of the models fitted to the rows as handed in; no promise."""
        found = self.answers(X)
        return np.asarray(self.classes_[found.nominal])

    def certify(self, X: Table, y: ArrayLike | None = None) -> pd.DataFrame:
        """A table with one line per row, index kept: the class that stands (or the word "abstain"), the vote, how many votes
        are for it, for the next one, and open; and how many parts may be lost, which is how many rows may be altered in any
        way, or come or go; with `y`, also the true label and whether a class that stands is correct. Where parts survive
        wrong rows, also how many of these. −1: not even none (noise alone may change the vote)."""
        index = X.index if isinstance(X, pd.DataFrame) else pd.RangeIndex(len(np.asarray(X)))
        found = self.answers(X)
        names = np.array([*self.classes_.tolist(), ABSTAIN_WORD], dtype=object)
        ordered = np.sort(found.counts, axis=1)
        table = {
            "class": names[found.classes],
            "certified": found.classes >= 0,
            "vote": names[found.nominal],
            "votes": ordered[:, -1],
            "next_votes": ordered[:, -2],
            "open_votes": found.open,
            "lost_parts": found.lost,
            **{name: found.lost // cost for name, cost in self.costs.items()},  # −1 stays −1
        }
        if self.reach_.inside is not None:
            table["wrong_rows"] = found.changed
        answer = pd.DataFrame(table, index=index)
        if y is not None:
            labels = column_or_1d(y)
            check_consistent_length(answer, labels)
            answer.insert(1, "label", labels)
            answer.insert(2, "correct", (found.classes >= 0) & (names[found.classes] == labels))
        return answer

    @property
    def costs(self) -> dict[str, int]:
        """How many parts a row reaches that is altered in any way, and one that comes or goes, where that is possible."""
        altered = cost_of(Arbitrary(1), self.by)
        return {"altered_rows": altered} | ({} if self.by == "row" else {"moved_rows": 1})
