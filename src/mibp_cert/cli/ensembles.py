"""`certify … --ensemble partitions:50`, `bagging:1000` or `bagflip:1000`: votes of learners that each saw a share of the rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mibp_cert.cli.asked import Asked
from mibp_cert.cli.commands import check_writable, interruptible, write_json, write_page
from mibp_cert.errors import UserError
from mibp_cert.report.console import Terminal

if TYPE_CHECKING:
    import pandas as pd

    from mibp_cert.data import Dataset, Split

LEARNERS = ("tree", "forest", "boosting", "logistic", "certified")
KINDS = {"partitions": 50, "bagging": 1000, "bagflip": 1000}
"""What ensembles there are, and of how many learners they usually are."""
USUAL = {"partitions": "forest", "bagging": "tree", "bagflip": "tree"}
"""The learner that nobody chose."""
OF_KIND = {
    "by": ("partitions",),
    "key": ("partitions",),
    "bag_size": ("bagging", "bagflip"),
    "confidence": ("bagging", "bagflip"),
    "flip": ("bagflip",),
    "odds": ("bagflip",),
    "cells": ("bagflip",),
    "trigger": ("bagflip",),
    "bins": ("bagflip",),
}
"""Which ensembles a key is about; others are about all."""
KNOWN = (
    "data",
    "threat",
    "ensemble",
    "attack",
    "training.seed",
    "solver.jobs",
    "solver.parallel",
    "questions.collective",
)
"""Sections and keys of the configuration that ensembles know; `model.C` besides, where the learner is `certified`."""


def wanted(config: Asked) -> bool:
    """Is an ensemble asked for?"""
    section = config["ensemble"]
    if section["kind"] is None and any(value is not None for value in section.values()):
        raise UserError(
            "--learner, --by, --bag-size and the like say what an ensemble is like: ask for one with --ensemble partitions:50."
        )
    return section["kind"] is not None


def certify_ensemble(
    config: Asked, console: Terminal, run_dir: Path | None, resume: bool, json_path: Path | None, report: Path | None
) -> None:
    """Fit, certify, attack, and say what was found."""
    from mibp_cert.config import plain_config
    from mibp_cert.data import Task
    from mibp_cert.ensembles import PartitionedClassifier
    from mibp_cert.ensembles.attack import attack
    from mibp_cert.ensembles.bag_attack import attack_bags
    from mibp_cert.ensembles.findings import RADII, Findings
    from mibp_cert.job import data_of
    from mibp_cert.report.ensembles import ensemble_page, radius_lines
    from mibp_cert.report.progress import progress_bars
    from mibp_cert.report.terminal import lines_table
    from mibp_cert.threats.short import threat_of

    _check(config)
    _kind(config)
    check_writable(json_path, report)
    data, notes = data_of(config, scaling="none")
    if data.train.task is Task.NUMBERS:
        raise UserError("An ensemble predicts classes, whose votes can be counted: the target must have some.")
    key, train, test = config["ensemble"]["key"], data.train, data.tested
    for note in notes:
        console.print(note, highlight=False)
    if any(column.scaled for column in train.columns) or data.origin is None:
        console.print(
            "This data set comes scaled as it is: that is taken as given, and is no part of what may be wrong.",
            highlight=False,
        )
    threat = threat_of(config["threat"], train) if config["threat"] else None
    x, y = frame_of(train), labels_of(train)
    keys = None if key is None else _taken(x, key)
    asked = frame_of(test) if key is None else frame_of(test).drop(columns=[key])
    x = x if key is None else x.drop(columns=[key])
    model = _ensemble(config, data, x, threat, run_dir, resume)
    with interruptible("what was done is kept in the folder of the run." if run_dir else "nothing was written."):
        with progress_bars(console.quiet) as progress:
            bar = progress.add_task(f"fitting {model.share}s", total=_kind(config)[1])
            model.fit(x, y, keys, hear=lambda done, total: progress.update(bar, completed=done, total=total))
            found = None
            if config["attack"]["enabled"]:
                bar = progress.add_task("attack", total=None)
                tried = attack if isinstance(model, PartitionedClassifier) else attack_bags
                found = tried(
                    model, x, y, asked, hear=lambda done, total: progress.update(bar, completed=done, total=total)
                )
        frequent = Counter(y.tolist()).most_common(1)[0][0]
        radii = sorted({*RADII, *([] if model.asked_rows == 0 else [model.asked_rows])})
        collective = bool(config["questions"]["collective"])
        result = Findings.of(
            model, asked, labels_of(test), found, most_frequent=frequent, radii=radii, collective=collective
        )
    console.print(lines_table("accuracy by the number of wrong rows", radius_lines(result)), soft_wrap=False)
    for sentence in result.sentences:
        console.print(sentence, highlight=False)
    if json_path is not None:
        write_json(json_path, result.to_json() | {"configuration": plain_config(config)})
        console.print(f"Written to {json_path}")
    if report is not None:
        write_page(console, report, ensemble_page(result, data.name or "your data"))


def _check(config: Asked) -> None:
    from mibp_cert.config import defaults, flag_of

    certified = config["ensemble"]["learner"] == "certified"
    for section, values in defaults().items():
        for key, default in values.items():
            name = f"{section}.{key}"
            known = section in KNOWN or name in KNOWN or (certified and name == "model.C") or name == "data.scaling"
            if not known and config[section][key] != default:
                raise UserError(f"{flag_of(name)} says nothing about an ensemble: leave it out.")
    if config["test_threat"]:
        raise UserError(
            "--test-eps says nothing about an ensemble, whose votes are about test rows as they are: leave it out (bagflip "
            "allows for wrong values of the test row with --trigger)."
        )
    if "data.scaling" in config.said:
        raise UserError("An ensemble's learners scale inside of their parts, from their own rows: leave --scaling out.")


def _kind(config: Asked) -> tuple[str, int]:
    """Which ensemble is asked for, and of how many learners."""
    from mibp_cert.config import flag_of

    said = config["ensemble"]["kind"]
    kind, _, count = said.partition(":")
    if kind not in KINDS or not (count or "1").isdecimal():
        raise UserError(
            f"--ensemble takes {' or '.join(KINDS)} with their number, such as partitions:50; got {said!r}."
        )
    for key, kinds in OF_KIND.items():
        if kind not in kinds and config["ensemble"][key] is not None:
            flag = flag_of(f"ensemble.{key}")
            raise UserError(f"{flag} is about {' and '.join(kinds)}, not about {kind}: leave it out.")
    if kind != "partitions" and config["questions"]["collective"]:
        raise UserError("How many predictions change at once is counted for partitions: leave --collective out.")
    return kind, int(count or KINDS[kind])


def _ensemble(config: Asked, data: Split, x: pd.DataFrame, threat: Any, run_dir: Path | None, resume: bool) -> Any:
    from mibp_cert.ensembles import BaggedClassifier, FlipBaggedClassifier, PartitionedClassifier

    section, (kind, count) = config["ensemble"], _kind(config)
    learner = _learner(section["learner"] or USUAL[kind], config, data.train, x)
    made = {"partitions": PartitionedClassifier, "bagging": BaggedClassifier, "bagflip": FlipBaggedClassifier}[kind]
    shared = {
        "threat": threat,
        "random_state": config["training"]["seed"],
        "n_jobs": config["solver"]["jobs"],
        "parallel": config["solver"]["parallel"],
        "run_dir": None if run_dir is None else run_dir / f"{made.share}s",
        "resume": resume,
    }
    if kind == "partitions":
        return made(learner, count, by=section["by"] or ("content" if section["key"] is None else "key"), **shared)
    names = {"bag_size": "size", "confidence": "confidence", "flip": "flips", "odds": "odds", "cells": "cells"}
    names |= {"trigger": "trigger"}
    given = {name: section[key] for key, name in names.items() if section[key] is not None}
    if kind == "bagflip":
        given["bins"] = _bins(config, data, x)
    return made(learner, count, together=len(data.tested), **given, **shared)


def _bins(config: Asked, data: Split, x: pd.DataFrame) -> Any:
    """Quantiles of the validation rows, which nothing else is made of here."""
    from mibp_cert.ensembles import quantile_bins

    count, flip = config["ensemble"]["bins"], config["ensemble"]["flip"]
    if flip == "labels":
        if count is not None:
            raise UserError("Bins are for features, and --flip labels flips no features: leave --bins out.")
        return None
    if count is None:
        raise UserError(
            "To flip numbers, it must be known which values there are: say in how many bins to put them, such as --bins 4, "
            "which are cut at quantiles of the validation rows and trust them; or flip labels alone (--flip labels)."
        )
    if data.validation is None:
        raise UserError("Bins are cut at quantiles of validation rows, and there are none: give --validation-share.")
    return quantile_bins(frame_of(data.validation)[list(x.columns)], count)


def _learner(name: str, config: Asked, train: Dataset, x: pd.DataFrame) -> Any:
    """A classifier that fills in, scales and encodes by the rows that it is fitted to."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    text = [name for name in x.columns if x[name].dtype.kind == "O"]
    if name == "certified":
        from mibp_cert.estimator import CertifiedLogisticRegression

        c = config["model"]["C"]
        told = {column.name: column.categories for column in train.columns if column.categories and column.name in text}
        return CertifiedLogisticRegression(C=1.0 if c in (None, "auto") else float(c), categorical=told or None)
    made = {
        "tree": DecisionTreeClassifier,
        "forest": RandomForestClassifier,
        "boosting": HistGradientBoostingClassifier,
        "logistic": LogisticRegression,
    }
    if name not in made:
        raise UserError(f"There is no learner called {name!r}; choose one of {', '.join(LEARNERS)}.")
    numbers = [column for column in x.columns if column not in text]
    steps = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    words = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(make_column_transformer((steps, numbers), (words, text)), made[name]())


def _taken(x: pd.DataFrame, key: str) -> Any:
    if key not in x.columns:
        raise UserError(f"There is no column {key!r} to choose parts by; there are {', '.join(map(str, x.columns))}.")
    return x[key].to_numpy()


def frame_of(data: Dataset) -> pd.DataFrame:
    """The rows as they stand in the table: numbers, text, and what is missing."""
    import numpy as np
    import pandas as pd

    found: dict[str, Any] = {}
    for j, column in enumerate(data.columns):
        lost = np.zeros(len(data), dtype=bool) if data.missing is None else data.missing[:, j]
        if column.categories is None:
            values = np.where(lost, np.nan, data.x[:, column.start])
            found[column.name] = pd.Series(values, index=data.index)
        else:
            names = np.array([str(name) for name in column.categories], dtype=object)
            cells = names[data.x[:, column.start : column.stop].argmax(axis=1)]
            found[column.name] = pd.Series(np.where(lost, np.nan, cells), index=data.index, dtype=object)
    return pd.DataFrame(found)


def labels_of(data: Dataset) -> Any:
    """The labels as they stand in the table."""
    import numpy as np

    return np.array(data.classes)[data.y]
