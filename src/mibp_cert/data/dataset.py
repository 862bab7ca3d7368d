"""Data handed to training: features, labels and their one-hot form, checked once."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mibp_cert.errors import UserError
from mibp_cert.graph.ops import frozen

if TYPE_CHECKING:
    from mibp_cert.data.table import Recipe


LARGEST = 1e153
"""Sums of squares of larger numbers overflow."""


class Task(Enum):
    """What is to be predicted."""

    CLASSES = "classes"
    NUMBERS = "numbers"


@dataclass(frozen=True)
class Column:
    """A column of the user's table and its place `start … stop − 1` among the features.

    Numeric: `feature = (value − shift) / scale`, valid values in [low, high]. Categorical: one-hot over `categories`.
    """

    name: str
    start: int
    stop: int
    categories: tuple[Any, ...] | None = None
    shift: float = 0.0
    scale: float = 1.0
    low: float = -np.inf
    high: float = np.inf
    fill: Any = None
    """What stands in for a missing value: the mean, or the most frequent category."""

    @property
    def scaled(self) -> bool:
        return self.shift != 0.0 or self.scale != 1.0

    @property
    def categorical(self) -> bool:
        return self.categories is not None

    def expect(self, categorical: bool, instead: str) -> Column:
        """The column itself, if it is of this kind; else a `UserError` that says what to do instead."""
        if self.categorical != categorical:
            kind = "categorical" if self.categorical else "numeric"
            raise UserError(f"The column '{self.name}' is {kind}{instead}.")
        return self

    def number(self, category: Any) -> int:
        """Place of a category in the vocabulary."""
        known = self.categories or ()
        if category in known:
            return known.index(category)
        raise UserError(
            f"{category!r} is not a category of the column '{self.name}'; it has {', '.join(map(repr, known))}."
        )

    def to_feature(self, value: ArrayLike) -> NDArray[np.float64]:
        """Numeric values in the units of the table, as features."""
        return np.asarray((np.asarray(value, dtype=np.float64) - self.shift) / self.scale)

    def to_value(self, feature: ArrayLike) -> NDArray[np.float64]:
        """Features as numeric values in the units of the table."""
        return np.asarray(np.asarray(feature, dtype=np.float64) * self.scale + self.shift)

    def describe(self) -> dict[str, Any]:
        """The record as plain data."""
        if self.categories is not None:
            plain = [c.item() if isinstance(c, np.generic) else c for c in self.categories]
            return {"name": self.name, "kind": "categorical", "categories": plain}
        return {"name": self.name, "kind": "numeric", "shift": self.shift, "scale": self.scale}


Classes = tuple[Any, ...] | None
Columns = tuple[Column, ...] | None
Mask = NDArray[np.bool_] | None


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows `x` (n × d), labels as class numbers `y` (n), and the classes they number; or, for regression, real `targets`.

    >>> Dataset.of([[0.0, 1.0], [2.0, 3.0]], ["no", "yes"]).one_hot.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    x: NDArray[np.float64]
    y: NDArray[np.intp]
    classes: tuple[Any, ...]
    columns: tuple[Column, ...] = ()
    """The user's columns behind the features; for plain arrays, one numeric column per feature."""
    missing: Mask = None
    """Which cells of the user's table are missing (rows × columns); their features are a stand-in."""
    targets: NDArray[np.float64] | None = None
    """For regression: what is to be predicted (n × 1); there are no classes then."""
    target: Column | None = None
    """For regression: how the user's targets became these, `(value − shift) / scale`; None: they are as handed in."""
    index: NDArray[Any] | None = None
    """The user's own names of the rows, such as the index of a table; None: they are numbered from 0."""
    weights: NDArray[np.float64] | None = None
    """How much each row counts in a fit; None: all alike."""
    there: Mask = None
    """Where rows may come and go: which of them there are. Their labels have two more entries, (present, absent)."""

    def __post_init__(self) -> None:
        if self.missing is not None and not self.missing.any():
            object.__setattr__(self, "missing", None)

    @classmethod
    def of(
        cls, x: ArrayLike, labels: ArrayLike, classes: Classes = None, columns: Columns = None, missing: Mask = None
    ) -> Dataset:
        """Check and number: finite features, one label per row, every label one of the classes."""
        features = _table(x, "features")
        check_plain(labels, "labels")
        names = np.asarray(labels)
        if names.shape != (len(features),):
            raise UserError(f"There are {len(features)} rows but the labels have shape {names.shape}.")
        try:
            known = tuple(np.unique(names).tolist()) if classes is None else tuple(classes)
        except TypeError:
            raise UserError("The labels mix values that cannot be compared, such as text and missing ones.") from None
        if len(set(known)) < len(known):
            raise UserError(f"The classes {', '.join(map(str, known))} hold one of them twice.")
        if len(known) < 2 or any(name != name for name in known):
            raise UserError(f"Training needs at least two classes, none of them NaN; got {list(known)}.")
        y = cls(features, np.zeros(0, dtype=np.intp), known).number(names)
        y.setflags(write=False)
        return cls(features, y, known, _columns(features, columns), missing)

    @classmethod
    def regression(cls, x: ArrayLike, targets: ArrayLike, columns: Columns = None, missing: Mask = None) -> Dataset:
        """Rows with a real number to predict.

        >>> Dataset.regression([[0.0], [1.0]], [2.5, 3.5]).one_hot.tolist()
        [[2.5], [3.5]]
        """
        features = _table(x, "features")
        check_plain(targets, "targets")
        wanted = _table(np.asarray(targets).reshape(-1, 1), "targets")
        if len(wanted) != len(features):
            raise UserError(f"There are {len(features)} rows but {len(wanted)} targets.")
        none = np.zeros(len(features), dtype=np.intp)
        return cls(features, none, (), _columns(features, columns), missing, wanted)

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        target: str,
        recipe: Recipe | None = None,
        classes: Classes = None,
        *,
        regression: bool = False,
        **options: Any,
    ) -> Dataset:
        """A table with its target column, encoded by a recipe (default: one fitted on this table with `options`).

        `regression`: the target is a number, not a class.

        >>> table = pd.DataFrame({"age": [30.0, 50.0], "smoker": ["no", "yes"], "ill": [0, 1]})
        >>> Dataset.from_frame(table, "ill", scaling="none").x.tolist()
        [[30.0, 1.0, 0.0], [50.0, 0.0, 1.0]]
        """
        from mibp_cert.data.table import Recipe  # which is written for columns, too

        frame = frame.rename(columns=str)
        target = str(frame.columns[find_name(target, [str(name) for name in frame.columns])])
        labels, features = frame[target], frame.drop(columns=[target])
        if labels.isna().any():
            raise UserError(f"The target column '{target}' has missing values; drop those rows.")
        recipe = Recipe.fit(features, **options) if recipe is None else recipe
        x, missing = recipe.apply(features)
        if regression:
            return cls.regression(x, labels.to_numpy(), recipe.columns, missing).named(frame.index)
        return cls.of(x, labels.to_numpy(), classes, recipe.columns, missing).named(frame.index)

    def column(self, name: Any) -> int:
        """Number of a column given by name or number."""
        return find_name(name, [column.name for column in self.columns])

    def take(self, rows: NDArray[np.intp]) -> Dataset:
        """The same data with these rows only."""
        missing = None if self.missing is None else self.missing[rows]
        targets = None if self.targets is None else frozen(self.targets[rows])
        index = None if self.index is None else self.index[rows]
        weights = None if self.weights is None else frozen(self.weights[rows])
        some = replace(self, x=frozen(self.x[rows]), y=self.y[rows], missing=missing, targets=targets, index=index)
        return replace(some, weights=weights)

    def weighted(self, weights: ArrayLike | None) -> Dataset:
        """The same data, with rows that count so much each; None: all alike."""
        if weights is None:
            return replace(self, weights=None)
        check_plain(weights, "weights of rows")
        try:
            found = frozen(weights)
        except (TypeError, ValueError):
            raise UserError("The weights of rows must be numbers ≥ 0, one for each row.") from None
        if found.shape != (len(self),):
            raise UserError(f"There are {len(self)} rows but their weights have shape {found.shape}.")
        if not (np.isfinite(found) & (found >= 0)).all() or not found.any():
            raise UserError("The weights of rows must be finite numbers ≥ 0, and not all of them zero.")
        return replace(self, weights=found)

    def named(self, index: ArrayLike) -> Dataset:
        """The same data with names for the rows."""
        names = np.asarray(index)
        if names.shape != (len(self.x),):
            raise UserError(f"There are {len(self.x)} rows, but their names have shape {names.shape}.")
        return replace(self, index=names)

    def ranged(self, train: Dataset) -> Dataset:
        """The same data with the training rows' smallest and largest values as valid ranges of columns that have none: what is
        missing in some rows must not depend on the other rows asked about."""
        columns = list(self.columns)
        for j, c in enumerate(columns):
            if not c.categorical and not np.isfinite([c.low, c.high]).all():
                seen = c.to_value(train.x[:, c.start])
                columns[j] = replace(c, low=float(seen.min()), high=float(seen.max()))
        return replace(self, columns=tuple(columns))

    def target_column(self, name: str = "target") -> Column:
        """The scaling that gives the targets of a regression mean 0 and deviation 1."""
        if self.targets is None:
            raise UserError("Only the targets of a regression can be scaled; these data have classes.")
        with np.errstate(over="ignore"):
            scale, shift = float(self.targets.std()), float(self.targets.mean())
        scale = checked_scale("targets", shift, scale, float(np.abs(self.targets).max()))
        return Column(name, 0, 1, shift=shift, scale=scale)

    def with_target(self, column: Column) -> Dataset:
        """The same data with scaled targets; amounts of threats, ranges and errors stay in the user's units."""
        if self.targets is None or self.target is not None:
            raise UserError("Only the unscaled targets of a regression can be scaled.")
        return replace(self, targets=frozen(column.to_feature(self.targets)), target=column)

    def like(self, x: ArrayLike, labels: ArrayLike | None = None, missing: Mask = None) -> Dataset:
        """Other rows, encoded as these are; labels that are not given do not matter."""
        if self.task is Task.NUMBERS:
            return Dataset.regression(x, np.zeros(len(np.asarray(x))), self.columns, missing)
        given = [self.classes[0]] * len(np.asarray(x)) if labels is None else labels
        return Dataset.of(x, given, self.classes, self.columns, missing)

    @property
    def task(self) -> Task:
        return Task.CLASSES if self.targets is None else Task.NUMBERS

    def in_units(self, outputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Outputs of a model of these data, in the units of the user's targets."""
        return outputs if self.target is None else self.target.to_value(outputs)

    def number(self, labels: ArrayLike) -> NDArray[np.intp]:
        """Class numbers of labels."""
        if self.targets is not None:
            raise UserError("These data have real targets, not labels; this is for classes only.")
        place = {name: i for i, name in enumerate(self.classes)}
        names = np.array(labels, dtype=object).ravel().tolist()  # text and numbers side by side stay what they are
        unknown = sorted({str(name) for name in names if not isinstance(name, Hashable) or name not in place})
        if unknown:
            raise UserError(
                f"The labels {', '.join(unknown)} are not among the classes {', '.join(map(str, self.classes))}."
            )
        return np.array([place[name] for name in names], dtype=np.intp)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def features(self) -> int:
        return int(self.x.shape[1])

    @cached_property
    def one_hot(self) -> NDArray[np.float64]:
        """What training sees: one-hot labels (n × classes), or the targets of a regression (n × 1); where rows may come and go,
        with two more entries, (present, absent)."""
        labels = np.eye(len(self.classes))[self.y] if self.targets is None else self.targets
        if self.there is None:
            return frozen(labels)
        return frozen(np.column_stack([labels, self.there, ~self.there]))

    @cached_property
    def sha256(self) -> str:
        """Hash of shape, features and labels: what the certificate is about."""
        encoded = any(column.categorical or column.scaled for column in self.columns)
        recipe = [column.describe() for column in self.columns] if encoded else []
        digest = hashlib.sha256(repr((self.x.shape, self.classes, *recipe)).encode())
        for array in (self.x, self.y.astype(np.int64), self.targets, self.missing, self.weights):
            if array is not None:
                digest.update(array.tobytes())
        if self.target is not None:
            digest.update(repr(self.target.describe()).encode())
        return digest.hexdigest()


def check_plain(values: Any, what: str) -> None:
    """Refuse what NumPy would turn into numbers by leaving something out: a mask, or what a date is."""
    if np.ma.is_masked(values):
        raise UserError(f"The {what} are a masked array: fill the masked values in, or leave their rows out.")
    if getattr(getattr(values, "dtype", None), "kind", "") in ("m", "M"):
        raise UserError(f"The {what} hold dates or times: turn them into numbers, such as days.")


def _table(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """A table of finite numbers, or a `UserError` that says what is wrong with it."""
    check_plain(values, what)
    if np.iscomplexobj(values):
        raise UserError(f"The {what} must be real numbers, not complex ones.")
    try:
        table = frozen(values)
    except (TypeError, ValueError) as error:
        raise UserError(f"The {what} must be a table of numbers: {error}.") from None
    if table.ndim != 2 or table.shape[0] == 0 or table.shape[1] == 0:
        raise UserError(f"The {what} must be a table of rows and columns, got shape {table.shape}.")
    bad = np.argwhere(~np.isfinite(table))
    if len(bad):
        row, column = (int(i) for i in bad[0])
        raise UserError(
            f"The {what} hold {len(bad)} value(s) that are NaN or infinite, the first in row {row}, "
            f"column {column}; fill them in or drop those rows."
        )
    if np.abs(table).max() > LARGEST:
        raise UserError(f"The {what} are too large, beyond {LARGEST:g}: their squares are no numbers; use other units.")
    return table


def _columns(features: NDArray[np.float64], columns: Columns) -> tuple[Column, ...]:
    """The columns given, or those of an array: numeric, unscaled, named by their number."""
    named = tuple(Column(str(i), i, i + 1) for i in range(features.shape[1])) if columns is None else columns
    if named[-1].stop != features.shape[1]:
        raise UserError(f"The columns describe {named[-1].stop} features, but the rows have {features.shape[1]}.")
    return named


def checked_scale(what: str, shift: float, scale: float, largest: float) -> float:
    """The scale of values up to `largest` in size, 1 where it is nothing but their rounding."""
    if not (np.isfinite(shift) and np.isfinite(scale)):
        raise UserError(f"The {what} are too large to be scaled; use other units.")
    return scale if scale > 1e-12 * largest else 1.0


def find_name(name: Any, names: Sequence[str]) -> int:
    """Place of a column by name or number; an unknown one is an error that lists the known ones."""
    if isinstance(name, str | int | np.integer) and not isinstance(name, bool):
        if str(name) in names:
            return names.index(str(name))  # a table's own label comes first, also where it is a number
        if str(name).isdecimal() and int(name) < len(names):
            return int(name)  # a column's number, which is text where it is a key of a file
    raise UserError(f"There is no column {name!r}; there are {listed(names, str(name))}.")


def listed(names: Sequence[str], like: str) -> str:
    """The first few names, and the one that may have been meant."""
    close = get_close_matches(like, names, n=1)
    guess = f" (did you mean {shortened(close[0])!r}?)" if close else ""
    return ", ".join(shortened(name) for name in names[:12]) + (" …" if len(names) > 12 else "") + guess


def shortened(text: object, most: int = 40) -> str:
    """A text in one line of a sentence.

    >>> shortened("a very\\n long name", 10)
    'a very lo…'
    """
    words = " ".join(str(text).split())
    return words if len(words) <= most else f"{words[: most - 1]}…"


def check_different(names: Sequence[str], what: object) -> None:
    """Refuse columns that share a name."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise UserError(f"{what} has several columns called {', '.join(twice)}; rename them.")


@dataclass(frozen=True)
class Origin:
    """What a table was before it became features: its target, all of its columns in their order, and why some are left out."""

    target: str
    order: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Split:
    """Training data, and where there are some validation and test data, under one name; all number their classes as the training
    data do."""

    name: str | None
    train: Dataset
    validation: Dataset | None = None
    test: Dataset | None = None
    origin: Origin | None = field(default=None, kw_only=True)
    """The table that they come from, where it was a file."""

    @classmethod
    def of(cls, data: Split | Dataset) -> Split:
        """A split as it is, or one that has training data only."""
        return data if isinstance(data, Split) else cls(None, data)

    @property
    def parts(self) -> dict[str, Dataset]:
        """The parts that there are, by name."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: part for name, part in named.items() if part is not None}

    @property
    def tested(self) -> Dataset:
        """The test part; `UserError` if there is none."""
        if self.test is None:
            raise UserError("This is about test points; the data have none.")
        return self.test

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            if part.features != self.train.features:
                raise UserError(
                    f"The {name} data have {part.features} columns, the training data {self.train.features}."
                )
            if part.classes != self.train.classes:
                raise UserError(
                    f"The {name} data number the classes {list(part.classes)}, the training data {list(self.train.classes)}; "
                    "hand the same classes to Dataset.of for all parts."
                )
            if [c.describe() for c in part.columns] != [c.describe() for c in self.train.columns]:
                raise UserError(
                    f"The {name} data are encoded or scaled otherwise than the training data; fit one recipe on the training "
                    "table and hand it to Dataset.from_frame for all parts: Recipe.fit(table), from_frame(part, target, recipe)."
                )
            if part.target != self.train.target:
                raise UserError(
                    f"The {name} targets are scaled otherwise than the training ones; scale all parts alike."
                )
