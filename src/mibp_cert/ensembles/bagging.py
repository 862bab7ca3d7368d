"""Ensembles of bags: learners of random samples of the rows, and the vote over all samples that could have been drawn.

A bag is `size` rows, each drawn from the whole table, whatever was drawn before; its learner has a seed of its own. The model
is the vote over *all* bags, each with its probability: of several classes with the largest share, the smallest wins. It does
not depend on luck, and nobody can compute it. The `bags` that were drawn say, with a confidence, in which range the share of
each class is (`shares`), and `likelihood` what these ranges become when a few rows are wrong. Put together:

**Certificate.** With the confidence asked for, for all test rows together: wherever a class `c` is answered, it is the vote
over all bags drawn from the rows handed in, and from every dataset that the threat allows. *Proof.* With that confidence all
bounds of `shares` hold, for the rows handed in, `D`. For a `D'` of the threat the share of `c` is then at least `least(low_c)`
and that of any other class `d` at most `most(high_d)` (`likelihood`; `least` and `most` grow with the share), and `c` is
answered only if the former is larger, or as large and `c < d`. A label that nobody has is a class of share 0 under `D`.  ∎

So an answer is wrong in two cases only: a threat that says too little, and the bad luck whose probability is `1 − confidence`.
That is about the draw, which comes after the data, and after the test rows: whoever made rows wrong, or chose those that are
asked about, must have known neither the seed nor votes. (Among all inputs there may well be some about which the drawn bags
err.) The size of bags is fixed, also where rows come or go. Learners answer labels of their bag; a bag to which none can be
fitted votes for nobody.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from mibp_cert.ensembles.base import Answers, Ensemble, Table
from mibp_cert.ensembles.learners import Hear, Task, certifies, fit_all, seeded
from mibp_cert.ensembles.likelihood import Pair, kept, stands
from mibp_cert.ensembles.reach import Wrong
from mibp_cert.ensembles.rows import Rows
from mibp_cert.ensembles.shares import at_least, at_most, each
from mibp_cert.ensembles.votes import Index, counted, winner
from mibp_cert.errors import UserError
from mibp_cert.threats import Catalogued, Nothing, Threat

MOST_BAGS = 10**9
"""So many are never fitted."""
FEWEST, SHARE = 10, 20
"""A bag is usually a twentieth of the rows, and at least ten."""
Worst = Callable[[int], Pair]
"""For a number of wrong rows, what has become of the dataset at worst."""


@dataclass(frozen=True, eq=False)
class BagVotes(Answers):
    """What the bags vote for, and what that certifies."""

    share: NDArray[np.float64]
    """At least so large is the share of the class with the most votes among all bags."""
    survived: dict[str, Index]
    """How many wrong rows of each kind the vote over all bags survives; −1: those drawn do not decide it."""


class Bags(Ensemble):
    """Learners of random bags, and the vote over all bags. The attributes named first are parameters."""

    bags: int
    size: int | None
    confidence: float
    together: int
    bags_: int
    size_: int
    pair_: Pair
    wrong_: Wrong
    share: ClassVar[str] = "bag"

    # What kinds of bags differ in ---------------------------------------------------------------------------------------

    def _prepare(self, rows: Rows) -> Pair:
        """What two datasets that are the same look like through the bags; refuses parameters that make no sense."""
        return Pair(len(rows), self.size_)

    def _bag(self, rows: Rows, number: int) -> Rows:
        """What a bag's learner is fitted to."""
        return rows.take(self.rows_[number])

    def hides(self, piece: Catalogued) -> bool:
        """Is what may be wrong in a row such as flips hide?"""
        return False

    def _kinds(self) -> dict[str, Worst]:
        """What `r` wrong rows may be, by kind."""
        return {
            "altered": lambda r: self._pair(altered=r),
            "moved": lambda r: self._pair(added=r),  # rows that go are no worse
        }

    # Fitting ------------------------------------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for name in ("bags", "together") if self.size is None else ("bags", "size", "together"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise UserError(f"{name} must be a whole number ≥ 1, got {value!r}.")
        if isinstance(self.confidence, bool) or not isinstance(self.confidence, float) or not 0 < self.confidence < 1:
            raise UserError(f"confidence must be a number between 0 and 1, such as 0.99; got {self.confidence!r}.")
        if certifies(self.estimator):
            raise UserError(
                f"{type(self.estimator).__name__} has certificates of its own, which bags do not ask for: take parts, or a "
                "learner without."
            )
        self.wrong_ = Wrong.of(Nothing() if self.threat is None else self.threat, self.hides)

    def _shares(self, rows: Rows, keys: NDArray[Any] | None) -> Sequence[Rows]:
        if keys is not None:
            raise UserError("Bags are drawn, not chosen by a key: leave keys out.")
        self.size_ = min(len(rows), max(FEWEST, len(rows) // SHARE)) if self.size is None else int(self.size)
        if self.size_ > len(rows):
            raise UserError(
                f"The bags are larger than the table: size={self.size_}, n_samples={len(rows)}; draw smaller bags."
            )
        self.bags_, self.pair_ = int(self.bags), self._prepare(rows)
        self._check_enough()
        self.rows_ = [
            np.random.default_rng([int(self.random_state), i, 1]).integers(len(rows), size=self.size_)
            for i in range(self.bags_)
        ]
        return [self._bag(rows, i) for i in range(self.bags_)]

    def _check_enough(self) -> None:
        """Refuse a number of bags that could not certify the threat even if all of them voted alike."""
        pair, alpha = self._pair(**asdict(self.wrong_)), self._alpha
        if _unanimous(pair, self.bags_, alpha):
            return
        if not _unanimous(pair, MOST_BAGS, alpha):
            raise UserError(
                f"No number of bags of {self.size_} rows that could be fitted certifies that, even if all vote alike: too many "
                "of them have a wrong row. Draw smaller bags (size=…, --bag-size), or doubt fewer rows."
            )
        enough = self.bags_
        while not _unanimous(pair, enough, alpha):
            enough *= 2
        low = enough // 2
        while enough - low > 1:
            middle = (low + enough) // 2
            low, enough = (low, middle) if _unanimous(pair, middle, alpha) else (middle, enough)
        raise UserError(
            f"{self.bags_} bags certify nothing with this confidence, even if all vote alike: draw at least {enough} "
            f"(bags={enough})."
        )

    @property
    def _alpha(self) -> Fraction:
        return each(self.confidence, len(self.classes_), int(self.together))

    def _pair(self, **wrong: Any) -> Pair:
        return kept(replace(self.pair_, **wrong))

    # Answers ------------------------------------------------------------------------------------------------------------

    def answers(self, X: Table) -> BagVotes:
        """The votes about these rows, and what they certify."""
        x = self.features_of(X)
        if len(x) > self.together:
            raise UserError(
                f"The confidence is shared by together={self.together} test rows, and these are {len(x)}: ask about fewer, or "
                "set together to the number of all that you will ask about."
            )
        counts = counted(self._votes(x), len(self.classes_))
        nominal = winner(counts)
        columns = np.arange(counts.shape[1])
        smaller = np.where(columns < nominal[:, None], counts, -1).max(axis=1)
        larger = np.where(columns > nominal[:, None], counts, -1).max(axis=1)
        cases, where = np.unique(np.column_stack([counts.max(axis=1), smaller, larger]), axis=0, return_inverse=True)
        found = [self._survived(*map(int, case)) for case in cases]
        where = where.ravel()
        radii = {
            name: np.array([radius[name] for _, _, radius in found], dtype=np.intp)[where] for name in self._kinds()
        }
        share = np.array([float(low) for low, _, _ in found])[where]
        classes = np.where(np.array([good for _, good, _ in found])[where], nominal, -1)
        return BagVotes(nominal, counts, classes.astype(np.intp), share, radii)

    def _survived(self, votes: int, smaller: int, larger: int) -> tuple[Fraction, bool, dict[str, int]]:
        """Of a class with so many votes, where smaller and larger labels have at most so many (−1: there are none): its share
        among all bags at least, whether it stands for the threat, and how many wrong rows of each kind it survives."""
        low = at_least(votes, self.bags_, self._alpha)
        most = [
            Fraction(0) if count < 0 else min(1 - low, at_most(count, self.bags_, self._alpha))
            for count in (smaller, larger)
        ]
        stood = stands(self._pair(**asdict(self.wrong_)), low, *most)

        def survived(worst: Worst) -> int:
            return largest(lambda r: stands(worst(r), low, *most))

        return low, stood, {name: survived(worst) for name, worst in self._kinds().items()}

    def radii(self, found: BagVotes) -> dict[str, Index]:
        """How many wrong rows of each kind an answer survives."""
        return found.survived

    def _columns(self, found: BagVotes) -> Mapping[str, Any]:
        table = {f"{name}_rows": radius for name, radius in found.survived.items()}
        return {"share_at_least": found.share, **table, "confidence": np.full(len(found.share), self.confidence)}

    # What it is ---------------------------------------------------------------------------------------------------------

    @property
    def asked_rows(self) -> int:
        """How many wrong rows the threat speaks of."""
        return sum(asdict(self.wrong_).values())

    @property
    def words(self) -> list[str]:
        """What the fitted ensemble is, in sentences."""
        return [
            f"{self.bags_} bags of {self.size_} of {self.pair_.rows} training rows, drawn with replacement; one learner each",
            f"Certified is the vote over all bags, with a confidence of {100 * self.confidence:g} % for up to {self.together} "
            "test rows together.",
        ]

    @property
    def settings(self) -> dict[str, Any]:
        """What it is, as plain data."""
        return {
            "bags": self.bags_, "size": self.size_, "confidence": self.confidence, "together": self.together
        }  # fmt: skip

    def with_rows(self, rows: Rows, wrong: Index, hear: Hear | None = None) -> Self:
        """The same bags of a table in which the rows `wrong` are others; learners of bags without them stay."""
        other = copy.copy(self)
        other.learners_ = list(self.learners_)
        reached = [i for i, bag in enumerate(self.rows_) if np.isin(bag, wrong).any()]
        tasks = [
            Task(i, seeded(self.estimator, self.random_state, i), self._bag(rows, i), called="bag") for i in reached
        ]
        for i, learner in zip(reached, fit_all(tasks, self.parallel, self.jobs, hear), strict=True):
            other.learners_[i] = learner
        return other


def largest(good: Callable[[int], bool]) -> int:
    """The largest number for which this holds, which holds for all below then; −1: not even for 0.

    >>> largest(lambda r: r * r <= 50), largest(lambda r: False)
    (7, -1)
    """
    if not good(0):
        return -1
    low, high = 0, 1
    while good(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def _unanimous(pair: Pair, bags: int, alpha: Fraction) -> bool:
    """Would a class stand that so many bags all vote for?"""
    low = at_least(bags, bags, alpha)
    return stands(pair, low, 1 - low, 1 - low)


@dataclass(eq=False, repr=False)
class BaggedClassifier(Bags):
    """One learner for each of `bags` random samples of `size` rows, drawn with replacement: a class stands if, with the
    confidence asked for, it is the vote over all such samples, however a few rows are wrong.

    `estimator` is any classifier. `size`: usually a twentieth of the rows; small bags survive more wrong rows. `confidence`:
    that all answers about up to `together` test rows hold at once. `threat`: what may be wrong, such as `Arbitrary(3)`; then
    `predict` abstains where that could change the vote over all bags, and in any case where the bags that were drawn do not
    decide it.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> X, y = [[float(i)] for i in range(80)], [int(i >= 40) for i in range(80)]
    >>> model = BaggedClassifier(DecisionTreeClassifier(), bags=100, size=8, together=10).fit(X, y)
    >>> model.certify([[3.0], [40.0], [73.0]])[["class", "altered_rows", "confidence"]].to_numpy().tolist()
    [[0, 5, 0.99], ['abstain', -1, 0.99], [1, 5, 0.99]]
    """

    estimator: Any
    bags: int = 1000
    _: KW_ONLY
    size: int | None = None
    confidence: float = 0.99
    together: int = 1000
    """The confidence is about so many test rows at once, asked about in one call or several."""
    threat: Threat | None = None
    random_state: int = 0
    n_jobs: int | None = None
    parallel: str = "local"
    abstain_label: Any = None
    run_dir: str | os.PathLike[str] | None = None
    resume: bool = False
    kind: ClassVar[str] = "bagging"
