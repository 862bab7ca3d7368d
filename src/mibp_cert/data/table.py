"""Tables: how they are split, how numeric and categorical columns become features, and the record of it.

A numeric value `v` becomes the feature `(v − shift) / scale`; a categorical one becomes a one-hot group, one feature per
category. The recipe is fitted on trusted knowledge of the columns (or the training table) and is then fixed: scaler, vocabulary
and ranges are part of what the certificate is about. Threats speak of columns and of the units handed in; `Column` translates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mibp_cert.data.dataset import Column, Dataset, Origin, Split, check_different, checked_scale, find_name
from mibp_cert.data.kinds import check_text, finite_numbers
from mibp_cert.data.reading import LEAST_ROWS, Reading
from mibp_cert.errors import UserError

SCALINGS = ("standard", "range", "none")
CLASSES = 20
"""A numeric target with more different values than this is a number to predict, not a class."""


@dataclass(frozen=True)
class Recipe:
    """How a table becomes features: fitted once, applied to training, validation and test tables alike."""

    columns: tuple[Column, ...]

    @classmethod
    def fit(
        cls,
        frame: pd.DataFrame,
        *,
        categorical: Sequence[str] | Mapping[str, Sequence[Any]] | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        scaling: str = "standard",
    ) -> Recipe:
        """Read kinds, vocabularies, ranges and scaling off a table.

        `categorical`: names of categorical columns, or their vocabularies; default: text, boolean and category columns.
        `ranges`: valid values of numeric columns; default: the smallest and largest one seen.
        `scaling`: `"standard"` (mean 0, deviation 1), `"range"` (range to [0, 1]), or `"none"`.
        """
        if scaling not in SCALINGS:
            raise UserError(f"There is no scaling called {scaling!r}; choose one of {', '.join(SCALINGS)}.")
        frame = _checked(frame)
        names = list(frame.columns)
        if categorical is None:
            categorical = [name for name in names if _is_categorical(name, frame[name])]
        given = {find_name(k, names): v for k, v in categorical.items()} if isinstance(categorical, Mapping) else {}
        chosen = {find_name(k, names) for k in categorical}
        limits = {find_name(k, names): v for k, v in (ranges or {}).items()}
        columns: list[Column] = []
        for j, name in enumerate(names):
            start = columns[-1].stop if columns else 0
            if j in chosen:
                columns.append(_categorical(name, frame[name], given.get(j), start))
            else:
                columns.append(_numeric(name, frame[name], limits.get(j), scaling, start))
        return cls(tuple(columns))

    @property
    def features(self) -> int:
        return self.columns[-1].stop

    def apply(self, frame: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Features (rows × features) and which cells of the table are missing (rows × columns); those hold the fill value."""
        frame = _checked(frame)
        _check_columns("The table", frame.columns, "the ones known", [column.name for column in self.columns])
        x = np.zeros((len(frame), self.features))
        missing = np.zeros((len(frame), len(self.columns)), dtype=bool)
        for j, column in enumerate(self.columns):
            values = frame[column.name]
            missing[:, j] = values.isna().to_numpy()
            filled = [column.fill if lost else value for value, lost in zip(values, missing[:, j], strict=True)]
            if column.categorical:
                x[np.arange(len(frame)), [column.start + column.number(value) for value in filled]] = 1.0
            else:
                x[:, column.start] = column.to_feature(finite_numbers(column.name, filled))
        return x, missing


def _numeric(name: str, values: pd.Series[Any], given: tuple[float, float] | None, scaling: str, start: int) -> Column:
    known = finite_numbers(name, values.dropna().tolist())
    if not len(known):
        raise UserError(f"The column '{name}' holds no value at all; drop it.")
    least, most = float(known.min()), float(known.max())
    try:
        low, high = (least, most) if given is None else (float(given[0]), float(given[1]))
    except (TypeError, ValueError, IndexError):
        raise UserError(f"The range of the column '{name}' must be a pair (low, high), got {given!r}.") from None
    if not (np.isfinite(low) and np.isfinite(high)):
        raise UserError(f"The range of the column '{name}' must have finite ends, got ({low:g}, {high:g}).")
    if not low <= least <= most <= high:
        raise UserError(f"The column '{name}' has values outside its range [{low:g}, {high:g}]; correct one of them.")
    with np.errstate(over="ignore"):  # what overflows is refused, however it is scaled: learners square it
        shift, scale = float(known.mean()), float(known.std())
    if np.isfinite(scale) and scaling != "standard":
        shift, scale = (low, high - low) if scaling == "range" else (0.0, 1.0)
    scale = checked_scale(f"values of the column '{name}'", shift, scale, max(abs(low), abs(high)))
    return Column(name, start, start + 1, None, shift, scale, low, high, float(np.clip(known.mean(), low, high)))


def _categorical(name: str, values: pd.Series[Any], given: Sequence[Any] | None, start: int) -> Column:
    known = values.dropna().tolist()
    if given is not None:
        vocabulary = list(given)
    elif isinstance(values.dtype, pd.CategoricalDtype):
        vocabulary = values.cat.categories.tolist()  # in their own order, unseen ones included
    else:
        try:
            vocabulary = sorted(set(known))
        except TypeError:
            raise UserError(f"The column '{name}' mixes values that cannot be compared; make them one type.") from None
    if not vocabulary or len(set(vocabulary)) < len(vocabulary):
        raise UserError(f"The column '{name}' needs categories, each of them once; got {vocabulary}.")
    counts = [sum(v == c for v in known) for c in vocabulary]
    fill = vocabulary[int(np.argmax(counts))]
    return Column(name, start, start + len(vocabulary), tuple(vocabulary), fill=fill)


def _check_columns(what: str, found: Iterable[str], other: str, known: Iterable[str]) -> None:
    """Refuse columns that are not the ones known."""
    found, known = list(found), list(known)
    lost, extra = ([name for name in one if name not in two] for one, two in ((known, found), (found, known)))
    if lost or extra:
        raise UserError(
            f"{what}'s columns differ from {other}:"
            + (f" it lacks {', '.join(lost)}." if lost else "")
            + (f" it also has {', '.join(extra)}; leave them out (--drop)." if extra else "")
        )


def _checked(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with columns named by text, each in its own way; an empty table is refused."""
    if not frame.size:
        raise UserError(f"The table is empty: it has {frame.shape[0]} rows and {frame.shape[1]} columns.")
    frame = frame.rename(columns=str)
    check_different(list(frame.columns), "The table")
    return frame


def _is_categorical(name: str, values: pd.Series[Any]) -> bool:
    """A column that nobody called categorical is taken for one only if it looks like one."""
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        return False
    if pd.api.types.is_datetime64_any_dtype(values) or pd.api.types.is_timedelta64_dtype(values):
        raise UserError(f"The column '{name}' holds dates: leave it out, or turn it into numbers, such as days.")
    if not isinstance(values.dtype, pd.CategoricalDtype):
        check_text(name, values.dropna())
    return True


def split_table(
    frame: pd.DataFrame,
    reading: Reading,
    seed: int,
    name: str,
    test: pd.DataFrame | None = None,
    origin: Origin | None = None,
) -> Split:
    """Training, validation and test rows, drawn with the seed, each class in its share; or all rows for training and validation
    and another table for testing.

    Scaling and valid ranges are those of the training rows; the vocabulary of a categorical column is that of the whole file.
    """
    if seed < 0:
        raise UserError(f"The seed must be a whole number ≥ 0, got {seed}.")
    rng = np.random.default_rng([seed, 3])
    if reading.sample is not None and reading.sample < len(frame):
        frame = frame.iloc[np.sort(rng.choice(len(frame), reading.sample, replace=False))]
    _check_size(frame, reading, test)
    regression = is_regression(frame, reading)
    values = frame[reading.target].unique()
    if not regression and len(values) < 2:
        raise UserError(
            f"The target '{reading.target}' is {values[0]!r} in every row, and training needs at least two classes; name another "
            "target, or add rows of another class."
        )
    order = _stratified(frame[reading.target], regression, rng)
    tests = 0 if test is not None else max(1, round(reading.test * len(frame)))
    checks = max(1, round(reading.validation * (len(frame) - tests)))
    parts = order[tests + checks :], order[tests : tests + checks], order[:tests]
    tables = [frame.iloc[np.sort(part)] for part in parts]
    if test is not None:
        _check_columns("The test file", test.columns, "the training file's", frame.columns)
        tables[2] = test
    text = [str(n) for n in frame.columns if not pd.api.types.is_numeric_dtype(frame[n])]
    grouped = dict.fromkeys((*text, *reading.categorical))
    chosen = {name: sorted(set(frame[name].dropna().tolist())) for name in grouped if name != reading.target}
    recipe = Recipe.fit(tables[0].drop(columns=[reading.target]), categorical=chosen, scaling=reading.scaling)
    classes = None if regression else tuple(np.unique(frame[reading.target].to_numpy()).tolist())
    made = [
        Dataset.from_frame(table, reading.target, recipe, classes, regression=regression).named(
            [f"{table.index.name or 'line'} {place}" for place in table.index]
        )
        for table in tables
    ]
    if regression:
        scale = made[0].target_column()
        made = [part.with_target(scale) for part in made]
    return Split(name, *made, origin=origin or Origin(reading.target, tuple(map(str, frame.columns))))


def is_regression(frame: pd.DataFrame, reading: Reading) -> bool:
    """Whether the target is a number to predict."""
    target = frame[reading.target]
    number = bool(pd.api.types.is_numeric_dtype(target))
    if reading.regression is None:
        return number and target.nunique() > CLASSES
    if reading.regression and not number:
        raise UserError(f"The target column '{reading.target}' holds text; a regression needs numbers.")
    return reading.regression


def notes(frame: pd.DataFrame, reading: Reading) -> list[str]:
    """What a user should know about the table before anything is computed from it."""
    said = [
        f"The column '{name}' has one value only: it can tell nothing, and is kept as it is."
        for name in frame.columns
        if name != reading.target and frame[name].nunique(dropna=False) == 1
    ]
    regression, target = is_regression(frame, reading), frame[reading.target]
    kind = "a number to predict" if regression else "classes"
    if not regression and pd.api.types.is_numeric_dtype(target) and target.nunique() > 2:
        kind += " (--regression: as a number to predict)"
    return [f"The target '{reading.target}' is read as {kind}.", *said]


def missing_columns(frame: pd.DataFrame) -> dict[str, int]:
    """Columns with missing values, and how many."""
    return {str(name): int(count) for name, count in frame.isna().sum().items() if count}


def _check_size(frame: pd.DataFrame, reading: Reading, test: pd.DataFrame | None) -> None:
    if len(frame) < LEAST_ROWS:
        raise UserError(
            f"There are only {len(frame)} rows; at least {LEAST_ROWS} are needed to train, to choose and to test."
        )
    for name, share in (("test", reading.test), ("validation", reading.validation)):
        if not 0 < share < 1:
            raise UserError(f"The share of {name} rows must lie between 0 and 1, got {share}.")
    if frame.shape[1] < 2:
        raise UserError("The table has the target column only; there is nothing to predict it from.")
    if test is not None and not len(test):
        raise UserError("The test file has no rows.")


def _stratified(target: pd.Series[Any], regression: bool, rng: np.random.Generator) -> NDArray[np.intp]:
    """An order of the rows in which every stretch holds each class in its share; at random for a regression."""
    order = rng.permutation(len(target))
    if regression:
        return order.astype(np.intp)
    labels = target.to_numpy()[order]
    place = np.empty(len(labels))
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        place[mine] = (np.arange(len(mine)) + rng.random(len(mine))) / len(mine)
    return order[np.argsort(place, kind="stable")].astype(np.intp)
