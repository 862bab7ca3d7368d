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
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mibp_cert.ensembles.base import Answers, Ensemble, Table
from mibp_cert.ensembles.knapsack import Possible, certain, may_be_changed, parts_lost, possible
from mibp_cert.ensembles.learners import Task, certifies, seeded
from mibp_cert.ensembles.reach import Reach, check_ends, check_known, cost_of, in_part, reach
from mibp_cert.ensembles.rows import BASES, Rows, dealt, ordered
from mibp_cert.ensembles.votes import OPEN, Index, counted, may_be_lost, winner
from mibp_cert.errors import SoundnessError, UserError
from mibp_cert.threats import Arbitrary, Nothing, Threat


@dataclass(frozen=True, eq=False)
class Votes(Answers):
    """What the parts vote for, and what that certifies."""

    open: Index
    """How many votes are not certain."""
    lost: Index
    """So many parts may be lost, whatever the noise; −1: not even none."""
    changed: Index
    """So many rows may be wrong inside of parts, with the parts lost that the threat says; where no certificate speaks of
    that, 0 if the class stands."""
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
    kind: ClassVar[str] = "partitions"

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
        x, classes, told = self.features_of(X), len(self.classes_), self.reach_
        votes = self._votes(x)
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
        return Votes(nominal, counts, stands.astype(np.intp), unsure.astype(np.intp), lost, changed, may[0])

    def radii(self, found: Votes) -> dict[str, Index]:
        """By how many parts a row reaches, and inside of parts where these survive some."""
        lost = {name: found.lost // cost for name, cost in self.costs.items()}  # −1 stays −1
        return lost if self.reach_.inside is None else lost | {"inside": found.changed}

    def _columns(self, found: Votes) -> dict[str, Any]:
        radii = self.radii(found)
        table = {"open_votes": found.open, "lost_parts": found.lost}
        table |= {f"{name}_rows": radii[name] for name in self.costs}
        return table if self.reach_.inside is None else table | {"wrong_rows": radii["inside"]}

    @property
    def costs(self) -> dict[str, int]:
        """How many parts a row reaches that is altered in any way, and one that comes or goes, where that is possible."""
        altered = cost_of(Arbitrary(1), self.by)
        return {"altered": altered} | ({} if self.by == "row" else {"moved": 1})

    @property
    def asked_rows(self) -> int:
        """How many wrong rows the threat speaks of, as rows that are altered in any way."""
        return self.reach_.lost // self.costs["altered"]

    # What it is ---------------------------------------------------------------------------------------------------------

    @property
    def words(self) -> list[str]:
        """What the fitted ensemble is, in sentences."""
        sizes = [len(part) for part in self.rows_]
        said = [
            f"{self.parts} parts of {min(sizes)} to {max(sizes)} training rows, chosen by {BY[self.by]}; one learner each"
        ]
        alone = sum(learner.model is None for learner in self.learners_)
        if alone:
            said.append(
                f"{alone} of the parts have no learner: they vote for the only class that they have, or for none."
            )
        return said

    @property
    def settings(self) -> dict[str, Any]:
        """What it is, as plain data."""
        return {"parts": self.parts, "by": self.by}


BY = {"content": "the row's content", "features": "the row's features", "key": "a key", "row": "the row's number"}
