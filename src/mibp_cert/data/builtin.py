"""Data sets that come by name.

`two-moons` is drawn; `iris`, `iris2` (its first two classes) and `breast-cancer` ship with scikit-learn and are standardised, so
that amounts are in standard deviations, as is `diabetes`, a regression whose target is standardised, too; `digits` are 8×8 images
of two digits with brightness in [0, 1]; `npha` is the National Poll on Healthy Aging (UCI 936), a table of 14 categorical
answers: a local CSV file, else a download by `ucimlrepo`, kept in a cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mibp_cert.data.dataset import Dataset, Split
from mibp_cert.data.table import Column, Recipe
from mibp_cert.errors import UserError

DATA_FOLDER = "MIBP_CERT_DATA"
"""Environment variable that names a folder with data files."""
NPHA_FILE = "NPHA-doctor-visits.csv"
NPHA_TARGET = "Number of Doctors Visited"
NPHA_REFUSED = -1
NPHA_MENTAL = "Mental Health"


def two_moons(seed: int = 0, *, noise: float = 0.1, sizes: tuple[int, int, int] = (100, 200, 200)) -> Split:
    """Two interleaving half circles (scikit-learn's `make_moons`): 100 training, 200 validation, 200 test points."""
    x, y = _sklearn("make_moons")(sum(sizes), noise=noise, random_state=seed)
    ends = (sizes[0], sizes[0] + sizes[1])
    parts = [Dataset.of(x[a:b], y[a:b], (0, 1)) for a, b in ((0, ends[0]), ends, (ends[1], None))]
    return Split("two-moons", *parts)


def iris(seed: int = 0) -> Split:
    """Three kinds of iris: 100 training, 25 validation, 25 test rows, standardised."""
    return _standardised("iris", _sklearn("load_iris")(), seed, (100, 25, 25))


def iris2(seed: int = 0) -> Split:
    """The first two kinds of iris: 50 training, 25 validation, 25 test rows, standardised."""
    found = _sklearn("load_iris")()
    keep = found.target < 2
    found.data, found.target = found.data[keep], found.target[keep]
    return _standardised("iris2", found, seed, (50, 25, 25))


def breast_cancer(seed: int = 0) -> Split:
    """Breast Cancer Wisconsin, 30 features: 369 training, 100 validation, 100 test rows, standardised."""
    return _standardised("breast-cancer", _sklearn("load_breast_cancer")(), seed, (369, 100, 100))


def npha(seed: int = 0, path: Path | None = None, *, without_refused: bool = False) -> Split:
    """The health survey: 10 % validation, 10 % test, the rest training; every answer is a category, −1 means "refused".

    `without_refused`: rows with a refused answer are left out.
    """
    table = read_npha(path)
    if without_refused:
        table = table[(table != NPHA_REFUSED).all(axis=1)].reset_index(drop=True)
    features = table.drop(columns=[NPHA_TARGET])
    recipe = Recipe.fit(features, categorical=[str(name) for name in features.columns])
    classes = tuple(sorted(set(table[NPHA_TARGET].tolist())))
    order, share = np.random.default_rng(seed).permutation(len(table)), len(table) // 10
    spans = {"validation": order[:share], "test": order[share : 2 * share], "train": order[2 * share :]}
    parts = {name: Dataset.from_frame(table.iloc[rows], NPHA_TARGET, recipe, classes) for name, rows in spans.items()}
    return Split("npha", parts["train"], parts["validation"], parts["test"])


def read_npha(path: Path | None = None) -> pd.DataFrame:
    """The survey's answers as whole numbers, from a file, the data folder, or the UCI repository."""
    for place in (path, _from_folder(), _cache()):
        if place is not None and (place == path or place.exists()):
            return _read_answers(place)
    table = _download_npha()
    _cache().parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(_cache(), index=False)
    return table


def _from_folder() -> Path | None:
    folder = os.environ.get(DATA_FOLDER)
    return None if not folder else Path(folder) / NPHA_FILE


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mibp-cert" / NPHA_FILE


def _read_answers(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, skipinitialspace=True)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise UserError(f"Cannot read the survey from {path}: {error}.") from None
    table.columns = [str(name).strip().replace("_", " ") for name in table.columns]
    if NPHA_TARGET not in table.columns:
        raise UserError(f"{path} has no column '{NPHA_TARGET}'; is it the National Poll on Healthy Aging (UCI 936)?")
    try:
        numbers = {name: pd.to_numeric(table[name].astype(str).str.strip()).astype(np.int64) for name in table.columns}
        return pd.DataFrame(numbers)
    except ValueError as error:
        raise UserError(f"{path} holds answers that are not whole numbers: {error}.") from None


def _download_npha() -> pd.DataFrame:
    try:
        from ucimlrepo import fetch_ucirepo
    except ImportError:
        raise UserError(
            f"The survey is not here: give its CSV file with --data, put {NPHA_FILE} into the folder named by {DATA_FOLDER}, or "
            "install the extra 'uci' (pip install 'mibp-cert[uci]') to download it."
        ) from None
    try:
        found: Any = fetch_ucirepo(id=936).data
    except Exception as error:  # whatever the network did, the user needs the way out
        raise UserError(f"The survey could not be downloaded ({error}); give its CSV file with --data.") from None
    table: pd.DataFrame = pd.concat([found.features, found.targets], axis=1)
    table.columns = [str(name).strip().replace("_", " ") for name in table.columns]
    return table.astype(np.int64)


def _sklearn(name: str) -> Callable[..., Any]:
    """One of scikit-learn's data sets; it takes a second to import, which only those who use it should wait for."""
    from sklearn import datasets

    found: Callable[..., Any] = getattr(datasets, name)
    return found


def _scaled(x: Any, train: Any) -> Any:
    """Every column with mean 0 and deviation 1 on the training rows."""
    from sklearn.preprocessing import StandardScaler

    return StandardScaler().fit(x[train]).transform(x)


def _named(found: Any) -> tuple[Column, ...]:
    """Columns by the names that scikit-learn gives; amounts of threats are in standard deviations."""
    return tuple(Column(str(name), j, j + 1) for j, name in enumerate(found.feature_names))


def _standardised(name: str, found: Any, seed: int, sizes: tuple[int, int, int]) -> Split:
    order = np.random.default_rng(seed).permutation(len(found.data))[: sum(sizes)]
    parts = np.split(order, np.cumsum(sizes)[:-1])
    x, y, columns = _scaled(found.data, parts[0]), found.target, _named(found)
    classes = tuple(np.unique(y).tolist())
    return Split(name, *(Dataset.of(x[rows], y[rows], classes, columns) for rows in parts))


def digits(seed: int = 0, *, pair: tuple[int, int] = (0, 1), sizes: tuple[int, int, int] = (200, 60, 100)) -> Split:
    """Images of two handwritten digits, 8×8 pixels line by line, brightness from 0 to 1; for `Network`s of shape (1, 8, 8)."""
    x, y = _sklearn("load_digits")(return_X_y=True)
    chosen = np.isin(y, pair)
    x, y = x[chosen] / 16.0, y[chosen]
    order = np.random.default_rng(seed).permutation(len(x))[: sum(sizes)]
    rows = np.split(order, np.cumsum(sizes)[:-1])
    return Split("digits", *(Dataset.of(x[part], y[part], tuple(sorted(pair))) for part in rows))


def diabetes(seed: int = 0, *, sizes: tuple[int, int, int] = (242, 100, 100)) -> Split:
    """Disease progression of 442 patients from 10 measurements: a regression; features and target are standardised."""
    found = _sklearn("load_diabetes")()
    order = np.random.default_rng(seed).permutation(len(found.data))[: sum(sizes)]
    rows = np.split(order, np.cumsum(sizes)[:-1])
    x, y = _scaled(found.data, rows[0]), found.target
    middle, spread = y[rows[0]].mean(), y[rows[0]].std()
    parts = (Dataset.regression(x[part], (y[part] - middle) / spread, _named(found)) for part in rows)
    return Split("diabetes", *parts)


_BUILTIN: dict[str, Callable[[int], Split]] = {
    "two-moons": two_moons,
    "iris": iris,
    "iris2": iris2,
    "breast-cancer": breast_cancer,
    "digits": digits,
    "diabetes": diabetes,
}
NAMES = (*_BUILTIN, "npha")


def load(name: str, seed: int, path: Path | None = None) -> Split:
    """The data set called `name`, drawn and split with `seed`; `path`: the survey's file."""
    if name not in NAMES:
        raise UserError(f"There is no data set called {name!r}; choose one of {', '.join(NAMES)}.")
    if not 0 <= seed < 2**32:
        raise UserError(f"The seed must be a whole number from 0 to 2³² − 1, got {seed}.")
    if name == "npha":
        return npha(seed, path)
    if path is not None:
        raise UserError(f"--data belongs to npha; the data set '{name}' needs no file.")
    return _BUILTIN[name](seed)
