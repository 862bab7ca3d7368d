"""The configuration of a run: sections of plain values, from a TOML file, the command line or both.

Every option of the API has its place here. An unknown section or key is refused with the nearest known one. What was really used,
defaults included, is stored with the run.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mibp_cert.certify import AttackSettings, Selection
from mibp_cert.data import NAMES
from mibp_cert.data.reading import Reading
from mibp_cert.engines import RelationalSettings, SolverSettings
from mibp_cert.errors import UserError
from mibp_cert.fitted import FITTED, MODELS, FitMibpEngine, Fitted, RandomFeatures
from mibp_cert.nets import Training
from mibp_cert.questions.properties import Questions
from mibp_cert.threats import nearest

Config = dict[str, dict[str, Any]]

ALL = "all"
"""The batch size that is as many rows as there are."""

AUTO = "auto"
"""The `C` that validation rows prefer (`studies.choose`)."""

NETWORK = "network"
"""The model that is trained in steps; all others are fitted."""

OF_ALL = ("data", "threat", "test_threat", "model", "attack", "questions")
"""Sections that fitted models know, too; of the others they know only the keys below."""

OF_FITTED = ("training.seed", "run.engine", "solver.jobs", "solver.parallel")

OF_FIT_PROGRAMS = ("solver", "gap", "nodes_per_program", "seconds_per_program")
"""Keys of the section `solver` that the engine `mibp` of fitted models reads."""

NOT_OF_FITTED = ("attack.tries",)
"""Keys of the sections above that say nothing of fitted models."""

RENAMED = {
    "select.rule": "--select",
    "run.prediction": "--predict",
    "training.learning_rate": "--lr",
    "model.kind": "--model",
    "data.path": "--data",
    "data.test": "--test-share",
    "data.validation": "--validation-share",
    "test_threat.eps": "--test-eps",
    "attack.enabled": "--attack",
    "ensemble.kind": "--ensemble",
}
"""Flags that are not called like their keys."""

FREE = ("threat", "test_threat")
"""Sections whose keys depend on the kind of threat."""


def _keys(settings: Any, *without: str) -> dict[str, tuple[str, Any]]:
    """The fields of settings as keys of a section."""
    return {f.name: (str(f.type), f.default) for f in fields(settings) if f.name not in without}


_OF_FEATURES = {"features": ("int", None), **{f"feature_{k}": v for k, v in _keys(RandomFeatures, "count").items()}}

_TEXT, _SIZES, _NUMBER, _WHOLE = ("str", None), ("str | tuple", None), ("float", None), ("int", None)

SECTIONS: dict[str, dict[str, tuple[str, Any]]] = {
    "data": {
        **dict.fromkeys(("source", "target", "path", "test_file"), _TEXT),
        "na": ("tuple", ()),
        **_keys(Reading, "target", "missing"),
    },
    "threat": {},
    "test_threat": {},
    "model": {"kind": _TEXT, **_keys(Fitted, "loss", "features"), "C": ("float | str", None), **_OF_FEATURES},
    "network": {"hidden": _SIZES, "activation": ("str", "relu"), "conv": _SIZES, "logits": _WHOLE},
    "training": {
        **_keys(Training),
        "batch_size": ("int | str", None),
        "loss": _TEXT,
        "learning_rate": _NUMBER,
        "epochs": _WHOLE,
    },
    "run": {"engine": ("str", "relational"), "prediction": _TEXT, "unroll": ("int", 1)},
    "select": {**_keys(Selection), "rule": _TEXT},
    "solver": _keys(SolverSettings),
    "relational": _keys(RelationalSettings),
    "attack": {"enabled": ("bool", True), **_keys(AttackSettings)},
    "questions": _keys(Questions),
    "ensemble": {
        **dict.fromkeys(("kind", "learner", "by", "key", "flip"), _TEXT),
        **dict.fromkeys(("bag_size", "cells", "trigger", "bins"), _WHOLE),
        **dict.fromkeys(("confidence", "odds"), _NUMBER),
    },
}
"""Every section with its keys: of which kind a value is, and its default. What may be wrong has keys of its own."""

KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "text"),
    "tuple": ((list, tuple), "a list"),
    "Mapping": ((Mapping,), "a table"),
}


def defaults() -> Config:
    """Every section with every key at its default."""
    return {section: {key: default for key, (_, default) in keys.items()} for section, keys in SECTIONS.items()}


def read_config(path: str | Path) -> dict[str, Any]:
    """A TOML file as sections."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from None


def merged(given: Mapping[str, Any], over: Mapping[str, Mapping[str, Any]] | None = None) -> Config:
    """Defaults, then the file's values, then the command line's; unknown sections and keys are refused."""
    config, named = defaults(), dict[str, str]()
    for layer in (given, over or {}):
        for section, values in layer.items():
            _check_section(section, values)
            # The command line says what may be wrong as a whole.
            instead = section in FREE and layer is not given and values
            said = {key: value for key, value in values.items() if value is not None}
            config[section] = {**({} if instead else config[section]), **said}
            for key in (f"{section}.{entry}" for entry in said):
                named[key] = f"[{section}] {key.partition('.')[2]}" if layer is given else flag_of(key)
    for key, word, kind in (("model.C", AUTO, float), ("training.batch_size", ALL, int)):
        section, _, entry = key.partition(".")
        config[section][entry] = _number(kind, named.get(key, key), config[section][entry], word)
    if config["ensemble"]["kind"] is None:  # whose learners are other models
        _check_model(config, named)
    return config


def _number(kind: Callable[[Any], Any], name: str, value: Any, word: str) -> Any:
    """A number that may have been given as text; `word`: what may stand in its place."""
    if not isinstance(value, str) or value == word:
        return value
    try:
        return kind(value)
    except ValueError:
        raise UserError(f"{name} must be a number, or {word}, got {value!r}.") from None


def flag_of(key: str) -> str:
    """What a key is called on the command line."""
    return RENAMED.get(key, f"--{key.partition('.')[2].replace('_', '-')}")


def _check_model(config: Config, named: Mapping[str, str]) -> None:
    """Refuse what says nothing about the model asked for; `named`: every key that was given, as the user wrote it."""
    kind, engine = config["model"]["kind"], config["run"]["engine"]
    if kind not in (None, NETWORK, *MODELS):
        raise UserError(f"There is no model called {kind!r}; {nearest(kind, [NETWORK, *MODELS])}")
    if kind is None and (config["data"]["source"] in NAMES or not all(_of_fits(key, engine) for key in named)):
        # The paper's for its data sets; and who speaks of steps means a training in steps.
        kind = config["model"]["kind"] = NETWORK
    for key, name in named.items():
        section = key.partition(".")[0]
        if key.startswith("model.feature_") and kind != NETWORK and config["model"]["features"] is None:
            raise UserError(
                f"{name} says what random features are like: say how many there are, such as --features 30."
            )
        if kind == NETWORK and section == "model" and key != "model.kind":
            raise UserError(
                f"{name} belongs to models that are fitted to their minimum: choose --model logistic or ridge."
            )
        if kind != NETWORK and key == "run.engine" and engine not in FITTED:
            several = all(one in FITTED for one in str(engine).split(","))
            why = "are several" if several else "is for networks that are trained in steps"
            raise UserError(
                f"{name} {engine} {why}; fitted models have {', '.join(FITTED)}, one for a command: choose one, or leave it "
                "out."
            )
        if kind != NETWORK and not _of_fits(key, engine):
            raise UserError(
                f"{name} belongs to networks that are trained in steps; the model '{kind}' is fitted to its minimum: leave it "
                "out."
            )


def _of_fits(key: str, engine: str) -> bool:
    """Do fitted models know this key?"""
    asked = engine == FitMibpEngine.name and key in (f"solver.{entry}" for entry in OF_FIT_PROGRAMS)
    other = key == "run.engine" and engine not in FITTED
    known = key.partition(".")[0] in OF_ALL or key in OF_FITTED or asked
    return known and not other and key not in NOT_OF_FITTED


def _check_section(section: str, values: Any) -> None:
    """Refuse what no section or key is called, and values of another kind than their key's; None stands for the default."""
    if section not in SECTIONS:
        home = [name for name, keys in SECTIONS.items() if section in keys]
        if home:
            raise UserError(f"{section} is a key of the section [{home[0]}]: write it below [{home[0]}].")
        raise UserError(f"There is no section [{section}] in a configuration; {nearest(section, list(SECTIONS))}")
    if not isinstance(values, Mapping):
        raise UserError(f"[{section}] is a section: write its keys below it, not a single value.")
    for key, value in values.items() if section not in FREE else ():
        if key not in SECTIONS[section]:
            raise UserError(f"[{section}] has no key {key!r}; {nearest(key, list(SECTIONS[section]))}")
        declared = (part.split("[")[0].strip() for part in SECTIONS[section][key][0].split("|"))
        kinds = [KINDS[name] for name in declared if name != "None"]
        wanted = tuple(kind for group, _ in kinds for kind in group)
        if value is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            words = " or ".join(said for _, said in kinds)
            raise UserError(f"[{section}] {key} must be {words}, got {value!r}.")


def plain_config(config: Config) -> dict[str, Any]:
    """The configuration as JSON can hold it: no infinities."""
    found: dict[str, Any] = json.loads(json.dumps(config, default=str), parse_constant=lambda _: None)
    return found
