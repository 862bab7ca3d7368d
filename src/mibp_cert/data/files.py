"""A user's own file: a table read without guessing silently, and split into training, validation and test rows.

What cannot be read for sure is refused with a sentence that names the line or the column: ragged rows, bytes in another encoding,
columns that mix numbers and text, columns that look like identifiers, rows without a target.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mibp_cert.data.dataset import Dataset, Split
from mibp_cert.data.table import Recipe, check_different, finite_numbers, listed, looks_like_identifier
from mibp_cert.errors import UserError

SEPARATORS = ",;\t|"
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""Texts that stand for a missing value."""
LEAST_ROWS = 10
CLASSES = 20
"""A numeric target with more different values than this is a number to predict, not a class."""


@dataclass(frozen=True)
class Reading:
    """How a file is to be read, and which rows are for what."""

    target: str
    test: float = 0.25
    """Share of the rows kept for testing; of the others, `validation` is the share kept for choosing the epoch."""
    validation: float = 0.2
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Further texts that stand for a missing value."""
    unlabelled: str = "refuse"
    """Rows without a target: `"refuse"` the file, or `"drop"` them."""
    regression: bool | None = None
    """Whether the target is a number; default: it is where it has many different values that are numbers."""
    scaling: str = "standard"
    separator: str | None = None
    encoding: str = "utf-8"
    sample: int | None = None
    """Use so many rows only, drawn at random."""


def read_table(path: str | Path, reading: Reading) -> pd.DataFrame:
    """The file as a table, every cell a number, a text or missing; columns to be dropped are not in it. The index holds the
    lines of the file (a row that spans several: its last)."""
    path = Path(path)
    header, rows, lines = _checked_lines(path, reading)
    names = [name.strip() for name in header]
    if not all(names):
        raise UserError(f"A column of {path} has no name; the first line must name all columns.")
    check_different(names, path)
    for name in (reading.target, *reading.drop, *reading.categorical):
        if name not in names:
            raise UserError(f"There is no column '{name}' in {path}; there are {listed(names)}.")
    frame = pd.DataFrame(rows, columns=names, dtype=object, index=pd.Index(lines, name="line"))
    frame = frame.drop(columns=list(reading.drop))
    gone = {*MISSING, *reading.missing}
    for name in frame.columns:
        frame[name] = _typed(str(name), frame[name], gone, reading)
    lost = frame[reading.target].isna()
    if lost.any() and reading.unlabelled != "drop":
        raise UserError(
            f"{lost.sum()} of {len(frame)} rows have no value in the target column '{reading.target}' (first in line "
            f"{frame.index[lost][0]}); fill them in, or leave those rows out with --unlabelled drop."
        )
    return frame[~lost]


def split_table(frame: pd.DataFrame, reading: Reading, seed: int, name: str, test: pd.DataFrame | None = None) -> Split:
    """Training, validation and test rows, drawn with the seed, each class in its share; or all rows for training and validation
    and another table for testing.

    Scaling and valid ranges are those of the training rows; the vocabulary of a categorical column is that of the whole file.
    """
    _check_size(frame, reading, test)
    rng = np.random.default_rng([seed, 3])
    if reading.sample is not None and reading.sample < len(frame):
        frame = frame.iloc[np.sort(rng.choice(len(frame), reading.sample, replace=False))]
        _check_size(frame, reading, test)
    regression = is_regression(frame, reading)
    order = _stratified(frame[reading.target], regression, rng)
    tests = 0 if test is not None else max(1, round(reading.test * len(frame)))
    checks = max(1, round(reading.validation * (len(frame) - tests)))
    parts = order[tests + checks :], order[tests : tests + checks], order[:tests]
    tables = [frame.iloc[np.sort(part)] for part in parts]
    if test is not None:
        _check_columns(frame, test)
        tables[2] = test
    text = [str(n) for n in frame.columns if n != reading.target and not pd.api.types.is_numeric_dtype(frame[n])]
    chosen = {name: sorted(set(frame[name].dropna().tolist())) for name in (*text, *reading.categorical)}
    recipe = Recipe.fit(tables[0].drop(columns=[reading.target]), categorical=chosen, scaling=reading.scaling)
    classes = None if regression else tuple(np.unique(frame[reading.target].to_numpy()).tolist())
    made = [
        Dataset.from_frame(table, reading.target, recipe, classes, regression=regression).named(
            [f"line {line}" for line in table.index]
        )
        for table in tables
    ]
    if regression:
        scale = made[0].target_column()
        made = [part.with_target(scale) for part in made]
    return Split(name, *made)


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
    kind = "a number to predict" if is_regression(frame, reading) else "classes"
    return [f"The target '{reading.target}' is read as {kind}.", *said]


def missing_columns(frame: pd.DataFrame) -> dict[str, int]:
    """Columns with missing values, and how many."""
    return {str(name): int(count) for name, count in frame.isna().sum().items() if count}


def _checked_lines(path: Path, reading: Reading) -> tuple[list[str], list[list[str]], list[int]]:
    """Header, rows as text, and the lines that they are in; every row has as many fields as the header."""
    try:
        with path.open(encoding=reading.encoding, newline="") as source:
            first = source.readline().lstrip("\ufeff")
            if not first.strip():
                raise UserError(f"{path} is empty; the first line must name the columns.")
            separator = reading.separator or max(SEPARATORS, key=first.count)
            header = next(csv.reader([first], delimiter=separator, strict=True))
            rows, places = [], []
            lines = csv.reader(source, delimiter=separator, strict=True)
            for fields in lines:
                if not fields:
                    continue  # an empty line, such as at the end of the file
                if len(fields) != len(header):
                    raise UserError(
                        f"Line {lines.line_num + 1} of {path} has {len(fields)} fields, but the header has {len(header)} "
                        f"(separated by {separator!r}); correct that line, or name the separator."
                    )
                rows.append(fields)
                places.append(lines.line_num + 1)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not {reading.encoding} text: byte {error.object[error.start]:#x} at position {error.start}; save it as "
            "UTF-8, or name its encoding, such as --encoding latin-1."
        ) from None
    except LookupError:
        raise UserError(f"There is no encoding called {reading.encoding!r}; utf-8 and latin-1 are common.") from None
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as a table: {error}; check its quotes and separators.") from None
    if not rows:
        raise UserError(f"{path} has a header but no rows.")
    return header, rows, places


def _typed(name: str, values: pd.Series[Any], gone: set[str], reading: Reading) -> pd.Series[Any]:
    """A column of text as numbers if all of its values are, else as text."""
    text = values.str.strip()
    text = text.where(~text.isin(gone), None)
    known = text.dropna()
    if name in reading.categorical:
        return text.astype(object)
    numbers = pd.to_numeric(known, errors="coerce")
    odd = known[numbers.isna()]
    if len(known) and odd.empty:
        found = finite_numbers(name, numbers)
        if len(known) == len(text) and (found % 1 == 0).all() and (np.abs(found) < 2**53).all():
            return pd.Series(found.astype(np.int64), index=text.index)
        return pd.Series(found, index=known.index).reindex(text.index)
    if 2 * len(odd) < len(known):
        raise UserError(
            f"The column '{name}' mixes numbers and text: {odd.iloc[0]!r} in line {odd.index[0]}. Correct it, call that text a "
            f"missing value (--na {odd.iloc[0]!r}), or take all of it as categories (--categorical {name})."
        )
    if name != reading.target and looks_like_identifier(known):
        raise UserError(
            f"The column '{name}' has {known.nunique()} different texts in {len(known)} rows: it looks like an identifier or a "
            f"date. Leave it out (--drop {name}), or keep it as categories (--categorical {name})."
        )
    return text.astype(object)


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


def _check_columns(frame: pd.DataFrame, test: pd.DataFrame) -> None:
    lost = [str(n) for n in frame.columns if n not in test.columns]
    extra = [str(n) for n in test.columns if n not in frame.columns]
    if lost or extra:
        raise UserError(
            "The test file's columns differ from the training file's:"
            + (f" it lacks {', '.join(lost)}." if lost else "")
            + (f" it also has {', '.join(extra)}; leave them out with --drop." if extra else "")
        )


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
