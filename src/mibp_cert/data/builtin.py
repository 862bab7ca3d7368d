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
from numpy.typing import NDArray

from mibp_cert.data.dataset import Column, Dataset, Split
from mibp_cert.data.table import Recipe
from mibp_cert.errors import UserError

DATA_FOLDER = "MIBP_CERT_DATA"
"""Environment variable that names a folder with data files."""
NPHA_FILE = "NPHA-doctor-visits.csv"
NPHA_TARGET = "Number of Doctors Visited"
NPHA_REFUSED = -1
NPHA_MENTAL = "Mental Health"


def two_moons(seed: int = 0, *, noise: float = 0.1, sizes: tuple[int, int, int] = (100, 200, 200)) -> Split:
    """Two interleaving half circles (scikit-learn's `make_moons`): 100 training, 200 validation, 200 test points."""
    _check_seed(seed)
    x, y = _sklearn("make_moons")(sum(sizes), noise=noise, random_state=seed)
    parts = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
    return Split("two-moons", *(Dataset.of(x[rows], y[rows], (0, 1)) for rows in parts))


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
    validation, test, train = (
        Dataset.from_frame(table.iloc[rows], NPHA_TARGET, recipe, classes)
        for rows in np.split(order, [share, 2 * share])
    )
    return Split("npha", train, validation, test)


def read_npha(path: Path | None = None) -> pd.DataFrame:
    """The survey's answers as whole numbers, from a file, the data folder, or the UCI repository."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mibp-cert" / NPHA_FILE
    if path is None:
        given = Path(os.environ.get(DATA_FOLDER) or cache.parent) / NPHA_FILE
        path = given if given.exists() else cache
        if not path.exists():
            _download_npha(path)
    try:
        table = pd.read_csv(path, skipinitialspace=True)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise UserError(f"Cannot read the survey from {path}: {error}.") from None
    # The survey's files differ in how they write the names of its questions.
    table = table.rename(columns=lambda name: str(name).strip().replace("_", " "))
    if NPHA_TARGET not in table.columns:
        raise UserError(f"{path} has no column '{NPHA_TARGET}'; is it the National Poll on Healthy Aging (UCI 936)?")
    try:
        return table.astype(np.int64)
    except ValueError as error:
        raise UserError(f"{path} holds answers that are not whole numbers: {error}.") from None


def _download_npha(path: Path) -> None:
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
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.concat([found.features, found.targets], axis=1).to_csv(path, index=False)


def digits(seed: int = 0, *, pair: tuple[int, int] = (0, 1), sizes: tuple[int, int, int] = (200, 60, 100)) -> Split:
    """Images of two handwritten digits, 8×8 pixels line by line, brightness from 0 to 1; for `Network`s of shape (1, 8, 8)."""
    x, y = _sklearn("load_digits")(return_X_y=True)
    chosen = np.isin(y, pair)
    x, y = x[chosen] / 16.0, y[chosen]
    _check_seed(seed)
    parts = _drawn(len(x), seed, sizes)
    return Split("digits", *(Dataset.of(x[rows], y[rows], tuple(sorted(pair))) for rows in parts))


def diabetes(seed: int = 0, *, sizes: tuple[int, int, int] = (242, 100, 100)) -> Split:
    """Disease progression of 442 patients from 10 measurements: a regression; features and target are standardised."""
    return _standardised("diabetes", _sklearn("load_diabetes")(), seed, sizes, regression=True)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise UserError(f"The seed must be a whole number from 0 to 2³² − 1, got {seed}.")


def _sklearn(name: str) -> Any:
    """One of scikit-learn's data sets; it takes a second to import, which only those who use it should wait for."""
    from sklearn import datasets

    return getattr(datasets, name)


def _drawn(rows: int, seed: int, sizes: tuple[int, int, int]) -> list[NDArray[np.intp]]:
    """Training, validation and test rows, drawn with the seed."""
    return np.split(np.random.default_rng(seed).permutation(rows)[: sum(sizes)], np.cumsum(sizes)[:-1])


def _standardised(name: str, found: Any, seed: int, sizes: tuple[int, int, int], *, regression: bool = False) -> Split:
    """Every column with mean 0 and deviation 1 on the training rows, under the name that scikit-learn gives it, and so the target
    of a regression; amounts of threats are in standard deviations."""
    from sklearn.preprocessing import StandardScaler

    _check_seed(seed)
    parts, y = _drawn(len(found.data), seed, sizes), found.target
    x = StandardScaler().fit(found.data[parts[0]]).transform(found.data)
    columns = tuple(Column(str(feature), j, j + 1) for j, feature in enumerate(found.feature_names))
    if regression:
        y = (y - y[parts[0]].mean()) / y[parts[0]].std()
        return Split(name, *(Dataset.regression(x[rows], y[rows], columns) for rows in parts))
    classes = tuple(np.unique(y).tolist())
    return Split(name, *(Dataset.of(x[rows], y[rows], classes, columns) for rows in parts))


_MADE: tuple[Callable[[int], Split], ...] = (two_moons, iris, iris2, breast_cancer, digits, diabetes)
_BUILTIN = {made.__name__.replace("_", "-"): made for made in _MADE}
NAMES = (*_BUILTIN, "npha")


def load(name: str, seed: int, path: Path | None = None) -> Split:
    """The data set called `name`, drawn and split with `seed`; `path`: the survey's file."""
    if name not in NAMES:
        raise UserError(f"There is no data set called {name!r}; choose one of {', '.join(NAMES)}.")
    _check_seed(seed)
    if name == "npha":
        return npha(seed, path)
    if path is not None:
        raise UserError(f"--data belongs to npha; the data set '{name}' needs no file.")
    return _BUILTIN[name](seed)
