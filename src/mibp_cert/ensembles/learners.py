"""One learner for each part: fitted to the rows of its part and to nothing else, here or elsewhere, and kept where asked. (A
bag is a part as well here: what is said of parts is said of all shares of the rows.)

A learner is a copy of the estimator whose random states are drawn from the seed of the ensemble and the number of the part.
It is fitted with one thread, so that it comes out the same wherever that happens. What it is fitted to is its part as `rows`
has it: so whatever it learns, scales, imputes or encodes, it knows from these rows. A part whose rows have one class votes
for that one; a part without rows votes for nobody. A learner that comes out otherwise when it is fitted again, seen by its
answers about its rows and about rows mixed of their cells, is refused:
nothing could be said of it.

A learner with certificates of its own (`threat` is one of its parameters) is fitted without a threat, which gives its vote,
and once for every number of wrong rows inside of the part that it is asked about: what each of these models certifies is a
vote that stands (`knapsack`). Where bounds come to no end, or nothing would be left to fit, nothing is certified.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from mibp_cert.disk import read_file, write_safely
from mibp_cert.ensembles.knapsack import Possible, possible
from mibp_cert.ensembles.rows import Features, Rows, mixed
from mibp_cert.ensembles.votes import NOBODY, OPEN, Index
from mibp_cert.errors import Diverged, UserError
from mibp_cert.parallel import arrivals, split

Labels = NDArray[Any]
GROUPS = 50
"""Parts are fitted in so many groups, if there are as many: to start one costs some milliseconds."""
MORE = {"part": "fewer parts", "bag": "larger bags"}
"""What gives a learner more rows, by what its share of them is called."""
Hear = Callable[[int, int], None]
"""Told how many parts are done, of how many."""


@dataclass(frozen=True, eq=False)
class Learner:
    """What became of one part: a model, or the only label that its rows have, or neither; and what it certifies."""

    model: Any = None
    label: Any = None
    certified: tuple[Any, ...] = ()
    """Models with certificates for 0, 1, … wrong rows inside of the part, as far as there are any."""
    stands: int = 0
    """A part without a model votes as it does whatever happens to fewer than so many of its rows."""

    def votes(self, x: Features, classes: Labels) -> Index:
        """The number of the class that it votes for, for each row."""
        if self.model is None:
            return np.full(len(x), self._vote(classes), dtype=np.intp)
        said = self.model.predict_nominal(x) if certifies(self.model) else self.model.predict(x)
        return numbered(np.asarray(said), classes)

    def possible(self, x: Features, classes: Labels, levels: int) -> Possible:
        """Which votes it may have with 0, 1, … `levels − 1` wrong rows among its own: levels × rows × (classes, …)."""
        found = np.full((levels, len(x)), OPEN, dtype=np.intp)
        if self.model is None:
            found[: self.stands] = self._vote(classes)
            return possible(found, len(classes))
        may = possible(found, len(classes))
        for m, model in enumerate(self.certified[:levels]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # how a part says that it abstains concerns nobody else
                said = np.asarray(model.predict(x))
            certain = numbered(said, classes, model.abstain_label_)
            may[m] = possible(certain, len(classes))
            _leave_out(may[m], model, x, classes)
        return may

    def _vote(self, classes: Labels) -> int:
        return NOBODY if self.label is None else int(np.searchsorted(classes, self.label))


def _leave_out(may: Possible, model: Any, x: Features, classes: Labels) -> None:
    """Of an open vote, classes that another one beats for certain, by the ranges of their scores."""
    own = np.searchsorted(classes, model.classes_)
    may[:, np.setdiff1d(np.arange(len(classes)), own)] = False
    if len(own) > 2:  # of two, an open vote leaves both
        ranges = model.predict_interval(x)
        may[:, own] &= ranges[:, :, 1] >= ranges[:, :, 0].max(axis=1, keepdims=True)


def numbered(said: Labels, classes: Labels, unsure: Any = None) -> Index:
    """Class numbers of labels; `OPEN` for the label that stands for no class."""
    place = {name: i for i, name in enumerate(classes.tolist())}
    if unsure is not None:
        place[unsure] = OPEN
    try:
        return np.array([place[name] for name in said.tolist()], dtype=np.intp)
    except KeyError as error:
        raise UserError(
            f"A learner answers {error.args[0]!r}, which is none of the classes it was fitted to: hand in a classifier."
        ) from None


@dataclass(frozen=True, eq=False)
class Task:
    """A part that is to be fitted: by a copy of the estimator that has its seeds, to these rows."""

    number: int
    estimator: Any
    rows: Rows
    folder: str | None = None
    resume: bool = False
    twice: bool = False
    """Is it fitted twice, to see whether it comes out the same?"""
    levels: tuple[Any, ...] = ()
    """What its certificates are about: threats, for 0, 1, … wrong rows inside of the part."""
    stands: int = 0
    """How many of these a part without a model survives."""
    called: str = "part"
    """What such a share of the rows is called."""

    @property
    def fingerprint(self) -> str:
        """All that the learner depends on."""
        x, y = self.rows.x, self.rows.y
        table = (
            [(repr(name), str(kind)) for name, kind in x.dtypes.items()] if isinstance(x, pd.DataFrame) else x.shape[1]
        )
        programs = [version(name) for name in ("mibp-cert", "scikit-learn", "numpy", "pandas")]
        try:
            estimator = joblib.hash(self.estimator)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"{type(self.estimator).__name__} cannot be written to a file, as run_dir asks for: {error}. Name its functions "
                "in a module, or leave run_dir out."
            ) from error
        versions = (programs, estimator, table, str(y.dtype))
        levels = [None if level is None else level.to_json() for level in self.levels]
        return sha256(repr((versions, levels, self.stands)).encode() + b"".join(self.rows.contents())).hexdigest()


def certifies(estimator: Any) -> bool:
    """Has it certificates of its own?"""
    return "threat" in estimator.get_params(deep=False) and hasattr(estimator, "predict_interval")


def seeded(estimator: Any, seed: int, number: int) -> Any:
    """A copy of the estimator whose random states, also those of what it is made of, follow from the seed and the number
    alone. It has one thread: several would add up what a forest says in an order that nobody knows."""
    made = clone(estimator)
    known = made.get_params(deep=True)
    names = sorted(name for name in known if name.split("__")[-1] == "random_state")
    drawn = np.random.SeedSequence([seed, number]).generate_state(max(1, len(names))) >> 1
    made.set_params(**{name: int(state) for name, state in zip(names, drawn, strict=False)})
    threads = [name for name, jobs in known.items() if name.split("__")[-1] == "n_jobs" and jobs is not None]
    return made.set_params(**dict.fromkeys(threads, 1))


def fit_all(tasks: Sequence[Task], parallel: str, jobs: int | None, hear: Hear | None = None) -> list[Learner]:
    """The learners of these parts, fitted at the place that `parallel` names."""
    groups, done = split(tasks, max(GROUPS, 4 * (jobs or 0))), 0
    found: list[list[Learner]] = [[] for _ in groups]
    for number, learners in arrivals(_fit_each, groups, parallel, jobs):
        found[number] = learners
        done += len(learners)
        if hear is not None:
            hear(done, len(tasks))
    return [learner for learners in found for learner in learners]


def _fit_each(tasks: list[Task]) -> list[Learner]:
    return [fit_one(task) for task in tasks]


def fit_one(task: Task) -> Learner:
    """The learner of one part; one that is kept already is read."""
    path = None if task.folder is None else Path(task.folder) / f"{task.called}-{task.number:05d}.pickle"
    told = "" if path is None else task.fingerprint
    if path is not None and task.resume and path.exists() and (kept := _kept(path, told)) is not None:
        return kept
    found = _fitted(task)
    if path is not None:
        write_safely(path, told.encode() + pickle.dumps(found))
    return found


def _kept(path: Path, told: str) -> Learner | None:
    """The learner in this file, if it begins with what is told: no other file is unpickled, which would run what is in it. One
    that was cut short is made again."""
    content, begin = read_file(path), told.encode()
    if not content.startswith(begin):
        return None
    try:
        kept = pickle.loads(content[len(begin) :])
    except Exception:  # what is no pickle may raise anything
        return None
    return kept if isinstance(kept, Learner) else None


def _fitted(task: Task) -> Learner:
    rows = task.rows
    labels = np.unique(rows.y)
    if len(labels) < 2:
        return Learner(label=labels[0] if len(labels) else None, stands=task.stands)
    if certifies(task.estimator):
        certified = _certified(task)
        nominal = certified[0] if certified else _trained(task, task.estimator)
        return Learner(nominal, certified=certified)
    first, *more = (_trained(task, task.estimator) for _ in range(2 if task.twice else 1))
    asked = [rows.x, mixed(rows.x)] if more else []
    if any((first.predict(x) != other.predict(x)).any() for other in more for x in asked):
        raise UserError(
            f"{type(task.estimator).__name__} came out otherwise when it was fitted again to the same rows: nothing "
            "can be said of it. Choose a learner whose result depends on its rows and its random_state alone."
        )
    return Learner(first)


def _certified(task: Task) -> tuple[Any, ...]:
    """Models with certificates, up to the first number of wrong rows for which there is none."""
    found: list[Any] = []
    for level in task.levels:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # that nothing is certified is an answer here
            try:
                found.append(clone(task.estimator).set_params(threat=level).fit(task.rows.x, task.rows.y))
            except Diverged:
                break
            except UserError as error:
                if not found:
                    raise _in_part(task, error) from error
                break  # so many wrong rows would leave nothing to fit
    return tuple(found)


def _trained(task: Task, estimator: Any) -> Any:
    try:
        return clone(estimator).fit(task.rows.x, task.rows.y)
    except (ValueError, TypeError) as error:
        raise _in_part(task, error) from error


def _in_part(task: Task, error: Exception) -> UserError:
    return UserError(
        f"{type(task.estimator).__name__} cannot be fitted to the {len(task.rows)} row(s) of {task.called} {task.number}: "
        f"{error} Use {MORE[task.called]}, or a learner that needs fewer rows."
    )


def folder_for(given: str | os.PathLike[str] | None, *, resume: bool) -> str | None:
    """The folder that keeps the parts, ready for them."""
    if given is None:
        if resume:
            raise UserError("resume=True needs the folder of the parts that are kept: run_dir=…")
        return None
    folder = Path(given)
    if not resume and folder.exists() and any(folder.iterdir()):
        raise UserError(f"The folder {folder} is not empty: choose another one, or go on in it with resume=True.")
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
