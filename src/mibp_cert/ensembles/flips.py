"""Ensembles of bags whose cells are flipped at random, so that few wrong cells are hidden among the flipped ones.

Every bag is drawn as in `bagging`; then each of its cells, each of its labels, or both are flipped (`bins`), for every bag and
every draw of a row anew. Who wants to change the vote over all bags and all flips by wrong rows must bring them into many bags,
and what is wrong with them through the flips: with few wrong cells in a row, more wrong rows are survived than could be
anything. The certificate is that of `bagging`, with the ratios of flips (`likelihood`).

*Two datasets that differ as the threat says* are so after all values have been replaced by known ones, too (`bins`). That cells
of the table with the smallest number of values are the worst is shown in `likelihood`; labels count as a column whose values
are the classes, which are taken as given.

**Triggers.** With `trigger = τ`, the test input is flipped as well, once for every bag, and up to `τ` of its cells may be wrong
besides: everything that is certified then holds for all of these inputs. Which bag sees which flips of an input depends on its
values and the seed alone.
"""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from mibp_cert.ensembles.bagging import Bags, Worst
from mibp_cert.ensembles.bins import Alphabet, Bins, Codes, flipped
from mibp_cert.ensembles.likelihood import Pair
from mibp_cert.ensembles.reach import OF_FEATURES, cell_limit, leaves
from mibp_cert.ensembles.rows import Features, Rows, hashed
from mibp_cert.ensembles.votes import Index
from mibp_cert.errors import UserError
from mibp_cert.threats import Catalogued, LabelFlips, Threat

FLIPS = ("both", "features", "labels")
"""What may be flipped."""
AT_ONCE = 10_000_000
"""So many flipped cells of test inputs are kept at a time."""


@dataclass(eq=False, repr=False)
class FlipBaggedClassifier(Bags):
    """A `BaggedClassifier` whose learners see flipped cells: a class also stands for rows in which up to `cells` values are
    wrong (of features, of the label, or both, as `flips` says), and with a `trigger` of so many wrong values in the test input.

    `odds`: so many times as likely a value stays as it becomes any particular other one; with 9, one of two values is flipped
    once in ten times. `bins`: which values there are, as edges or names for each column, `{column: [edges]}`, or the same edges
    for all; `quantile_bins` makes them of rows that are trusted. Wrong labels (`LabelFlips`) and features under a budget of
    cells (`Budget(Budget(…, cells=2), rows=3)`) are counted as flipped, all other threats as rows that are altered in any way.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> X, y = [[float(i)] for i in range(80)], [int(i >= 40) for i in range(80)]
    >>> model = FlipBaggedClassifier(DecisionTreeClassifier(max_depth=1), 100, size=20, flips="labels", together=10)
    >>> model.fit(X, y).certify([[3.0], [73.0]])[["class", "altered_rows", "flipped_rows"]].to_numpy().tolist()
    [[0, 2, 2], [1, 2, 2]]
    """

    estimator: Any
    bags: int = 1000
    _: KW_ONLY
    size: int | None = None
    odds: float = 9.0
    flips: str = "both"
    cells: int = 1
    """So many values of a wrong row may be wrong."""
    trigger: int = 0
    """So many values of the test input may be wrong."""
    bins: Bins | None = None
    confidence: float = 0.99
    together: int = 1000
    threat: Threat | None = None
    random_state: int = 0
    n_jobs: int | None = None
    parallel: str = "local"
    abstain_label: Any = None
    run_dir: str | os.PathLike[str] | None = None
    resume: bool = False
    kind: ClassVar[str] = "bagflip"

    def _check_parameters(self) -> None:
        if self.flips not in FLIPS:
            raise UserError(f"flips must be one of {', '.join(FLIPS)}; got {self.flips!r}.")
        for name, least in (("cells", 1), ("trigger", 0)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise UserError(f"{name} must be a whole number ≥ {least}, got {value!r}.")
        if isinstance(self.odds, bool) or not isinstance(self.odds, int | float) or not 1 < self.odds <= 2**20:
            raise UserError(f"odds must be a number above 1, and no more than 2²⁰; got {self.odds!r}.")
        if self.trigger and not self._of_features:
            raise UserError(
                "A trigger is hidden by flips of features, and flips='labels' has none: choose another one."
            )
        super()._check_parameters()

    @property
    def _of_features(self) -> bool:
        return self.flips != "labels"

    @property
    def _of_labels(self) -> bool:
        return self.flips != "features"

    # What flips do ------------------------------------------------------------------------------------------------------

    def _prepare(self, rows: Rows) -> Pair:
        self.alphabet_ = Alphabet.of(rows.x, self.bins) if self._of_features else None
        columns = [] if self.alphabet_ is None else [int(k) for k in self.alphabet_.sizes if k > 1]
        kinds = columns + ([len(self.classes_)] if self._of_labels else [])
        return Pair(
            len(rows),
            self.size_,
            cells=min(int(self.cells), len(kinds)),
            trigger=min(int(self.trigger), len(columns)),
            odds=Fraction(self.odds),
            values=min(kinds, default=2),
        )

    def _bag(self, rows: Rows, number: int) -> Rows:
        drawn, rng = rows.take(self.rows_[number]), np.random.default_rng([int(self.random_state), number, 2])
        x, y = drawn.x, drawn.y
        if self.alphabet_ is not None:
            codes = self.alphabet_.coded(x)
            x = self.alphabet_.decoded(flipped(codes, self.alphabet_.sizes, self.odds, rng))
        if self._of_labels:
            sizes = np.array([len(self.classes_)], dtype=np.intp)
            y = self.classes_[flipped(np.searchsorted(self.classes_, y)[:, None], sizes, self.odds, rng)[:, 0]]
        return Rows(x, y).take(np.arange(len(y)))

    def _votes(self, x: Features) -> Index:
        if self.alphabet_ is None:
            return super()._votes(x)
        codes = self.alphabet_.coded(x)
        if not self.pair_.trigger:
            return super()._votes(self.alphabet_.decoded(codes))
        step = max(1, AT_ONCE // (len(self.learners_) * codes.shape[1]))
        blocks = [self._flipped_votes(codes[i : i + step]) for i in range(0, len(codes), step)]
        return np.concatenate(blocks) if blocks else np.empty((0, len(self.learners_)), dtype=np.intp)

    def _flipped_votes(self, codes: Codes) -> Index:
        """Votes about inputs that are flipped for every learner anew."""
        assert self.alphabet_ is not None
        shape = len(self.learners_), codes.shape[1]
        draws = [
            np.random.default_rng([3, n]) for n in hashed([row.tobytes() for row in codes], int(self.random_state))
        ]
        seen = [
            flipped(np.broadcast_to(row, shape), self.alphabet_.sizes, float(self.pair_.odds), rng)
            for row, rng in zip(codes, draws, strict=True)
        ]
        every = np.stack(seen)
        votes = [
            learner.votes(self.alphabet_.decoded(every[:, i]), self.classes_)
            for i, learner in enumerate(self.learners_)
        ]
        return np.stack(votes, axis=1)

    # What they hide -----------------------------------------------------------------------------------------------------

    def hides(self, piece: Catalogued) -> bool:
        kinds, limit = leaves(piece), cell_limit(piece)
        if all(isinstance(leaf, LabelFlips) for leaf in kinds):
            return self._of_labels
        few = limit is not None and limit <= self.cells
        return few and self._of_features and all(leaf.kind in OF_FEATURES for leaf in kinds)

    def _kinds(self) -> dict[str, Worst]:
        return super()._kinds() | {"flipped": lambda r: self._pair(flipped=r)}

    @property
    def words(self) -> list[str]:
        """What the fitted ensemble is, in sentences."""
        what = {"both": "features and labels", "features": "features", "labels": "labels"}[self.flips]
        pair, odds = self.pair_, float(self.pair_.odds)
        said = f"Flipped are {what}: a value is {odds:g} times as likely to stay as to become any particular other one"
        more = f"; up to {pair.trigger} wrong value(s) of the test input are allowed for" if pair.trigger else ""
        return [*super().words, f"{said}; up to {pair.cells} wrong value(s) in a row are hidden that way{more}."]

    @property
    def settings(self) -> dict[str, Any]:
        """What it is, as plain data."""
        pair = self.pair_
        told = {"odds": float(pair.odds), "flips": self.flips, "cells": pair.cells, "trigger": pair.trigger}
        return super().settings | told
