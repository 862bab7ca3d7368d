"""What all ensembles share: tables in, one learner for each share of the rows, and their votes.

An ensemble says how rows are shared out (`_shares`), and what the votes then certify. Everything that is fitted is fitted by
the learners to their own rows: nothing that is learned from the whole table reaches any of them. What all of them know
beforehand is what a table is: its columns, of which kind each is, and how labels are ordered.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import column_or_1d, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data

from mibp_cert.certify.tables import ABSTAIN_WORD, abstaining, named
from mibp_cert.data.dataset import check_different
from mibp_cert.ensembles.learners import Hear, Learner, Task, fit_all, folder_for, seeded
from mibp_cert.ensembles.rows import Features, Rows, typed
from mibp_cert.ensembles.votes import Index
from mibp_cert.errors import UserError
from mibp_cert.threats import Threat

Table = pd.DataFrame | ArrayLike
EXACT = 2.0**53
"""Below this every whole number is a floating-point number."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What the learners vote for, and what that certifies."""

    nominal: Index
    """The class that the models as they are vote for."""
    counts: Index
    """Votes that are certain, by class (rows × classes)."""
    classes: Index
    """The class that stands for the threat, or −1."""


class Ensemble(ClassifierMixin, BaseEstimator):
    """Learners that were fitted to shares of the rows, and their votes. The attributes named first are parameters of every
    ensemble."""

    estimator: Any
    threat: Threat | None
    abstain_label: Any
    random_state: int
    n_jobs: int | None
    parallel: str
    run_dir: str | os.PathLike[str] | None
    resume: bool
    classes_: NDArray[Any]
    learners_: list[Learner]
    rows_: list[Index]
    """The rows of each learner, by their numbers."""
    abstain_label_: Any
    kind: ClassVar[str]
    """What such an ensemble is called on the command line."""
    share: ClassVar[str] = "part"
    """What a share of the rows is called."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "fit"):
            tags.input_tags.allow_nan = get_tags(self.estimator).input_tags.allow_nan
        return tags

    # What an ensemble says of itself ------------------------------------------------------------------------------------

    def _shares(self, rows: Rows, keys: NDArray[Any] | None) -> Sequence[Rows]:
        """The rows of each learner, in their order; refuses parameters that make no sense."""
        raise NotImplementedError

    def _task(self, task: Task) -> Task:
        """What a learner is asked for beside its vote."""
        return task

    def answers(self, X: Table) -> Answers:
        """The votes about these rows, and what they certify."""
        raise NotImplementedError

    def radii(self, found: Any) -> dict[str, Index]:
        """How many wrong rows of each kind an answer survives; −1: not even none. These are answers of this ensemble."""
        raise NotImplementedError

    def _columns(self, found: Any) -> Mapping[str, Any]:
        """What there is to say of each of its answers besides."""
        raise NotImplementedError

    @property
    def words(self) -> list[str]:
        """What the fitted ensemble is, in sentences."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """What it is, as plain data."""
        raise NotImplementedError

    @property
    def asked_rows(self) -> int:
        """How many wrong rows the threat speaks of, as rows that are altered in any way."""
        raise NotImplementedError

    # Fitting ------------------------------------------------------------------------------------------------------------

    def fit(self, X: Table, y: ArrayLike, keys: ArrayLike | None = None, *, hear: Hear | None = None) -> Self:
        """Fit a learner to each share of the rows. `keys`: what is known of each row besides and cannot be wrong, where the
        shares are chosen by that; `hear(done, total)` counts learners."""
        self._check_parameters()
        rows = self._rows(X, y)
        # Keys in a list stay what they are: of numbers beside text NumPy makes text, which would move all rows.
        given = None if keys is None else column_or_1d(np.array(keys, dtype=object) if isinstance(keys, list) else keys)
        if given is not None:
            check_consistent_length(rows.y, given)
        self.abstain_label_ = abstaining(self.classes_, self.abstain_label)
        shares = self._shares(rows, given)
        folder = folder_for(self.run_dir, resume=self.resume)
        some = next((i for i, share in enumerate(shares) if len(np.unique(share.y)) > 1), -1)
        tasks = [
            self._task(
                Task(
                    i,
                    seeded(self.estimator, self.random_state, i),
                    share,
                    folder,
                    self.resume,
                    i == some,
                    called=self.share,
                )
            )
            for i, share in enumerate(shares)
        ]
        self.learners_ = fit_all(tasks, self.parallel, self.jobs, hear)
        return self

    @property
    def jobs(self) -> int | None:
        """How many processes; None: one for each core."""
        return {None: 1, -1: None}.get(self.n_jobs, self.n_jobs)

    def features_of(self, X: Table) -> Features:
        """Rows as the learners of a fitted ensemble see them."""
        check_is_fitted(self)
        return self._features(X, reset=False)

    def _check_parameters(self) -> None:
        known = all(hasattr(self.estimator, name) for name in ("fit", "predict", "get_params"))
        if isinstance(self.estimator, type) or not known:
            raise UserError(
                f"estimator must be a scikit-learn classifier, with fit and predict; got {self.estimator!r}."
            )
        if get_tags(self.estimator).estimator_type != "classifier":
            raise UserError(
                f"estimator must be a classifier, whose answers can be counted; {type(self.estimator).__name__} is none."
            )
        state = self.random_state
        if not isinstance(state, int | np.integer) or isinstance(state, bool) or not 0 <= state < 2**32:
            raise UserError(
                f"random_state must be a whole number from 0 to 2³² − 1, got {state!r}: a learner may depend on nothing but "
                "its rows and a seed that is fixed in advance."
            )
        jobs = self.n_jobs
        if jobs is not None and (not isinstance(jobs, int | np.integer) or jobs < -1 or jobs == 0):
            raise UserError(f"n_jobs must be a number of processes, −1 for one per core, or None; got {jobs!r}.")

    def _rows(self, X: Table, y: ArrayLike) -> Rows:
        x = self._features(X, reset=True)
        if y is None:
            raise UserError("The estimator requires y to be passed, but the target y is None.")
        labels = column_or_1d(y, warn=True)
        check_consistent_length(x, labels)
        if labels.dtype.kind == "O" and pd.isna(labels).any():
            raise UserError(f"y has {int(pd.isna(labels).sum())} missing value(s); leave those rows out.")
        if labels.dtype.kind == "f":
            check_array(labels, ensure_2d=False, input_name="y")
        check_classification_targets(labels)
        if labels.dtype.kind in "iuf" and (np.abs(labels.astype(np.float64)) >= EXACT).any():
            raise UserError(
                "A label is a whole number beyond 2⁵³, where floating-point numbers no longer tell neighbours apart: give labels "
                "as text."
            )
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise UserError(f"Training needs at least two classes; y has 1 class, {self.classes_[0]!r}.")
        return Rows(x, labels)

    def _features(self, X: Table, *, reset: bool) -> Features:
        """Rows as they are typed: arrays must be numbers."""
        if isinstance(X, pd.DataFrame):
            check_different([str(name) for name in X.columns], "The table")
            validate_data(self, X, reset=reset, skip_check_array=True)
            if not len(X):
                raise UserError(
                    f"The table is empty: found array with 0 sample(s) (shape={X.shape}), minimum 1 is required."
                )
            return typed(X)
        finite: bool | str = "allow-nan" if get_tags(self.estimator).input_tags.allow_nan else True
        return np.asarray(validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=finite))

    # Answers ------------------------------------------------------------------------------------------------------------

    def predict(self, X: Table) -> NDArray[Any]:
        """The class that stands for every dataset of the threat, or `abstain_label_`."""
        found = self.answers(X)
        return named(self.classes_, found.classes, self.abstain_label_)

    def predict_nominal(self, X: Table) -> NDArray[Any]:
        """The vote of the models fitted to the rows as handed in; no promise."""
        found = self.answers(X)
        return np.asarray(self.classes_[found.nominal])

    def certify(self, X: Table, y: ArrayLike | None = None) -> pd.DataFrame:
        """A table with one line per row, index kept: the class that stands (or the word "abstain"), the vote, how many votes
        are for it and for the next one, and how many wrong rows it survives, by kind; −1: not even none. With `y`, also the
        true label and whether a class that stands is correct."""
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
            **self._columns(found),
        }
        answer = pd.DataFrame(table, index=index)
        if y is not None:
            labels = column_or_1d(y)
            check_consistent_length(answer, labels)
            answer.insert(1, "label", labels)
            answer.insert(2, "correct", (found.classes >= 0) & (names[found.classes] == labels))
        return answer

    # Votes --------------------------------------------------------------------------------------------------------------

    def votes(self, X: Table) -> Index:
        """Which class each learner votes for, by its number in `classes_`: rows × learners; −1 for nobody."""
        return self._votes(self.features_of(X))

    def _votes(self, x: Features) -> Index:
        return np.stack([learner.votes(x, self.classes_) for learner in self.learners_], axis=1)
