"""The configuration of a run: sections of plain values, from a TOML file, the command line or both; and what they stand for.

Every option of the API has its place here. An unknown section or key is refused with the nearest known one. What was really used,
defaults included, is stored with the run.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mibp_cert.certify import AttackSettings, Callbacks, CertifiedRun, Selection
from mibp_cert.certify.forecast import Forecast, check_memory, forecast
from mibp_cert.data import NAMES, Dataset, Split, Task, load
from mibp_cert.data.reading import Reading, read_file
from mibp_cert.data.table import missing_columns, notes, split_table
from mibp_cert.doors import certify_fit, certify_training
from mibp_cert.engines import RelationalSettings, SolverSettings, engine_named
from mibp_cert.errors import UserError
from mibp_cert.fitted import FITTED, MODELS, REGRESSIONS, FitMibpEngine, Fitted, RandomFeatures
from mibp_cert.nets import Activation, Conv2d, Flatten, LeakyReLU, Network, ReLU, Sigmoid, Softplus, Tanh, Training
from mibp_cert.nets.plan import effective_batch_size
from mibp_cert.questions.properties import Questions
from mibp_cert.studies.choose import COARSE, GRID, Choice, choose_C
from mibp_cert.threats import Catalogued, nearest
from mibp_cert.threats.short import column_names, named_columns, threat_of

Config = dict[str, dict[str, Any]]
Settings = TypeVar("Settings")

ALL = "all"
"""The batch size that is as many rows as there are."""
WHOLE_BATCH = 2000
"""Rows up to which tables of one's own are trained on in one batch."""
CHOSEN = 3.0
"""About as many times what one fit takes, choosing `C` takes beside it."""
PATIENCE = 60.0
"""Seconds beyond which `C` is chosen from fewer."""
OWN_CLASSES = Training(epochs=20, learning_rate=0.2, loss="cross-entropy")
OWN_NUMBERS = Training(epochs=50, learning_rate=0.1, loss="squared-error")
"""How a network is trained on tables of one's own, without a hidden layer; the estimators have the same defaults."""
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
}
"""Flags that are not called like their keys."""
FREE = ("threat", "test_threat")
"""Sections whose keys depend on the kind of threat."""
IMAGES = "digits"
"""The data set whose rows are images."""
NPHA = "npha"
"""The data set that is read from a file."""
ACTIVATIONS: dict[str, Activation] = {
    "relu": ReLU(),
    "leaky-relu": LeakyReLU(),
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
    "softplus": Softplus(),
}


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
                f"{name} belongs to models that are fitted to their minimum: choose --model logistic or ridge, without what is "
                "about steps."
            )
        if kind != NETWORK and key == "run.engine" and engine not in FITTED:
            raise UserError(
                f"{name} {engine} is for networks that are trained in steps; fitted models have {', '.join(FITTED)}: leave it "
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


def _typed(kind: Callable[..., Settings], section: Mapping[str, Any]) -> Settings:
    """The settings that a section stands for; keys that they do not have are left out, and lists are tuples there."""
    names = inspect.signature(kind).parameters
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in section.items() if k in names})


def plain_config(config: Config) -> dict[str, Any]:
    """The configuration as JSON can hold it: no infinities."""
    found: dict[str, Any] = json.loads(json.dumps(config, default=str), parse_constant=lambda _: None)
    return found


@dataclass(frozen=True, eq=False)
class Job:
    """A configuration made real: data, network, threat, training; ready to be run with one engine or several."""

    config: Config
    network: Network
    data: Split
    threat: Catalogued
    training: Training | Fitted
    engines: tuple[str, ...]
    options: Mapping[str, Any]
    """What else every run and every study is told, as `certify_training` calls it."""
    questions: Questions | None
    """None: nothing beyond the class is asked."""
    notes: tuple[str, ...]
    choice: Choice | None = None
    """How `C` was chosen, if it was."""
    open: bool = False
    """Is `C` still to be chosen?"""

    def forecast(self) -> Forecast:
        """What one run will take; choosing `C` takes a few of them."""
        asked = sum(len(rows) for rows in (self.data.validation, self.data.test) if rows is not None)
        made = FITTED[self.engines[0]] if isinstance(self.training, Fitted) else engine_named(self.engines[0])
        parts = self.network, self.data.train, self.threat, self.training, made
        one = forecast(*parts, asked, attacked=self.options["attacked"])
        return replace(one, seconds=one.seconds * (CHOSEN if self.open else len(self.engines)))

    def settled(self, hear: Callable[[float], None] = lambda c: None) -> Job:
        """With the `C` that validation rows prefer, where it was left open."""
        if not self.open:
            return self
        assert isinstance(self.training, Fitted)
        told = {name: value for name, value in self.options.items() if name == "solver"}
        grid = COARSE if self.forecast().seconds > PATIENCE else GRID
        found = choose_C(self.data, self.threat, self.training, grid=grid, hear=hear, **told)
        config = {**self.config, "model": {**self.config["model"], "C": found.C}}
        return replace(self, config=config, training=replace(self.training, C=found.C), choice=found, open=False)

    @property
    def select(self) -> Selection:
        """Which epoch the certificate is about; of fitted models there is none to choose."""
        return _typed(Selection, self.config.get("select", {}))

    def run(self, engine: str, callbacks: Callbacks | None = None, **kept: Any) -> CertifiedRun:
        """Certify with one of the engines; `kept`: where the run is kept, if it is (`run_dir`, `resume`)."""
        if isinstance(self.training, Fitted):
            return certify_fit(
                self.data, self.threat, self.training, engine, callbacks=callbacks, **self.options, **kept
            )
        given = {"select": self.select, "callbacks": callbacks, **self.options, **kept}
        return certify_training(self.network, self.data, self.threat, self.training, engine, **given)


def job_of(config: Config) -> Job:
    """Read the data and build everything that the configuration describes."""
    data, said = _data(config["data"], config["threat"], config["training"]["seed"])
    config = _with_usual(config, data)
    threat, test = threat_of(config["threat"], data.train), config["test_threat"]
    options = {
        "attack_settings": _typed(AttackSettings, config["attack"]),
        "attacked": config["attack"]["enabled"],
        "test_threat": threat_of(test, data.train, ("eps",)) if test else None,
    }
    every = _typed(Questions, config["questions"])
    questions = None if every == Questions() else every
    if questions is not None:
        questions.check(data, test_threat=bool(test))
    if config["model"]["kind"] != NETWORK:
        model = _fitted(config, data)
        kept, engine = _of_fitted(config, model) | {"threat": threat.to_json()}, _fit_engine(config)
        options["solver"] = _typed(SolverSettings, config["solver"])
        open_ = config["model"]["C"] == AUTO
        made = model.network(data.train)
        return Job(kept, made, data, threat, model, (engine,), options, questions, tuple(said), open=open_)
    if threat.changes_rows():
        raise UserError(
            f"A network is trained in batches of fixed rows: {threat.changes_rows()} (--{threat.changes_rows().lower()}) belongs "
            "to models that are fitted to their minimum; choose --model logistic or ridge."
        )
    network = network_of(data, **config["network"])
    training = _typed(Training, config["training"])
    alone = lonely_row(len(data.train), effective_batch_size(len(data.train), training.batch_size))
    said += [] if alone is None else [alone]
    options |= {
        "solver": _typed(SolverSettings, config["solver"]),
        "relational": _typed(RelationalSettings, config["relational"]),
        "unroll": config["run"]["unroll"],
        "prediction": config["run"]["prediction"],
    }
    engines = tuple(name.strip() for name in config["run"]["engine"].split(","))
    for engine in engines:
        check_memory(network, data.train, threat, training, engine_named(engine))  # before any training
    effective = {**config, "threat": threat.to_json(), "model": {"kind": NETWORK}}
    return Job(effective, network, data, threat, training, engines, options, questions, tuple(said))


def _fit_engine(config: Config) -> str:
    """The engine of a fitted model: the one asked for, or the first."""
    said = config["run"]["engine"]
    return said if said in FITTED else next(iter(FITTED))


def _of_fitted(config: Config, model: Fitted) -> Config:
    """What a configuration says of a fitted model, and nothing of what there is not."""
    engine = _fit_engine(config)
    solver = ("jobs", "parallel", *(OF_FIT_PROGRAMS if engine == FitMibpEngine.name else ()))
    found = {name: dict(config[name]) for name in OF_ALL}
    found |= {"training": {"seed": config["training"]["seed"]}, "run": {"engine": engine}}
    found["solver"] = {key: value for key, value in config["solver"].items() if key in solver}
    found["attack"] = {key: value for key, value in config["attack"].items() if f"attack.{key}" not in NOT_OF_FITTED}
    if model.features is None:
        found["model"] = {key: value for key, value in config["model"].items() if not key.startswith("feature")}
    found["model"]["kind"] = model.name
    return found


def _fitted(config: Config, data: Split) -> Fitted:
    """The fitted model that the configuration describes."""
    said, numbers = config["model"], data.train.task is Task.NUMBERS
    kind = said["kind"] or next(name for name, loss in MODELS.items() if (loss in REGRESSIONS) == numbers)
    like = {f.name: said[f"feature_{f.name}"] for f in fields(RandomFeatures) if f.name != "count"}
    features = None if said["features"] is None else RandomFeatures(said["features"], **like)
    c = 1.0 if said["C"] == AUTO else said["C"]
    model = _typed(Fitted, {**said, "C": c, "loss": MODELS[kind], "features": features})
    if (model.loss in REGRESSIONS) != numbers:
        fitting = [name for name, loss in MODELS.items() if (loss in REGRESSIONS) == numbers]
        has, needs = ("numbers", "classes") if numbers else ("classes", "numbers")
        raise UserError(f"--model {kind} predicts {needs}, but the target has {has}; choose {' or '.join(fitting)}.")
    return model


def _with_usual(config: Config, data: Split) -> Config:
    """Settings that nobody chose: the paper's for its data sets, and for a table of one's own those that certify most: a model
    without hidden layer, cross-entropy, and as many epochs as validation rows find best."""
    own, classes = config["data"]["source"] not in NAMES, data.train.task is Task.CLASSES
    paper = Training(loss="hinge" if classes else "squared-error")
    training = (OWN_CLASSES if classes else OWN_NUMBERS) if own else paper
    images = not own and data.name == IMAGES
    usual: dict[str, dict[str, Any]] = {
        "training": {
            "loss": training.loss,
            "learning_rate": training.learning_rate,
            "epochs": training.epochs,
            "batch_size": usual_batch(len(data.train)) if own else effective_batch_size(len(data.train), None),
        },
        "select": {"rule": "best-validation" if own else "last"},
        "model": {"C": AUTO if own else 1.0},
        "network": {"hidden": "none" if own or images else "20", "conv": "8,4,4" if images else None},
    }
    if config["training"]["batch_size"] == ALL:
        config = {**config, "training": {**config["training"], "batch_size": len(data.train)}}
    filled = {
        section: {key: usual.get(section, {}).get(key) if value is None else value for key, value in values.items()}
        for section, values in config.items()
    }
    if filled["network"]["logits"] is None:
        usual_of = usual_logits(data.train, str(filled["training"]["loss"])) if own else data.train.one_hot.shape[1]
        filled["network"]["logits"] = usual_of
    if not own and "kind" not in filled["threat"]:
        filled["threat"] = {"eps": 0.01, **filled["threat"]}
    return filled


def usual_logits(train: Dataset, loss: str) -> int:
    """One for each class; two classes and cross-entropy have one for both."""
    return 1 if len(train.classes) == 2 and loss == "cross-entropy" else train.one_hot.shape[1]


def usual_batch(rows: int) -> int:
    """All rows, as long as they are few enough for bounds that remember each of them; else about a hundred, none left alone."""
    if rows <= WHOLE_BATCH:
        return rows
    first = effective_batch_size(rows, None)
    return next(size for size in range(first, 2 * first) if rows % size != 1)


def lonely_row(rows: int, batch_size: int) -> str | None:
    """What to say of a last batch of one row, whose gradient weighs as much as that of a whole batch; None: there is none."""
    if batch_size == 1 or rows % batch_size != 1:
        return None
    return (
        f"The last batch of every epoch holds a single row, which moves the model as much as {batch_size} others together: "
        f"choose a batch size that does not leave one of the {rows} rows over."
    )


def network_of(
    data: Split, hidden: str | Sequence[int], activation: str, conv: str | Sequence[int] | None, logits: int
) -> Network:
    """A fully connected network, after one convolution where the data are images."""
    if activation not in ACTIVATIONS:
        raise UserError(f"There is no activation called {activation!r}; choose one of {', '.join(ACTIVATIONS)}.")
    between, sizes = ACTIVATIONS[activation], _sizes(hidden)
    if conv is not None and data.name != IMAGES:
        raise UserError(f"--conv is for image data; choose the data set {IMAGES}.")
    if conv is None:
        return Network.mlp([data.train.features, *sizes, logits], activation=between)
    numbers = _sizes(conv)
    if len(numbers) != 3:
        raise UserError(f"--conv takes filters,kernel,stride such as 8,4,4; got {conv!r}.")
    first = Conv2d(1, filters=numbers[0], kernel=numbers[1], stride=numbers[2])
    shape = (1, 8, 8)
    try:
        features = int(np.prod(first.output_shape(shape)))
    except UserError as error:
        raise UserError(f"{error}, but the input has 1 channel of 8 × 8.") from None
    rest = Network.mlp([features, *sizes, logits], activation=between)
    return Network((first, between, Flatten(), *rest.layers), shape)


def _sizes(text: str | Sequence[int]) -> list[int]:
    if not isinstance(text, str):
        return [int(size) for size in text]
    try:
        return [int(part) for part in text.split(",") if part.strip()] if text.strip() != "none" else []
    except ValueError:
        raise UserError(f"--hidden takes sizes separated by commas, such as 20 or 5,5; got {text!r}.") from None


def _check_data(section: Mapping[str, Any]) -> None:
    """Refuse what would be ignored: a built-in data set is as it is, and only one of them is read from a file."""
    source = section["source"]
    for key, default in defaults()["data"].items():
        said = tuple(section[key]) if isinstance(section[key], list) else section[key]
        if said == default or key == "source" or (source not in NAMES and key != "path"):
            continue
        if key != "path":
            raise UserError(f"{flag_of(f'data.{key}')} belongs to files of your own; leave it out for {source}.")
        if source != NPHA:
            raise UserError(f"{flag_of('data.path')} belongs to the data set {NPHA}; leave it out for {source}.")


def _data(section: Mapping[str, Any], threat: Mapping[str, Any], seed: int) -> tuple[Split, list[str]]:
    """A built-in data set, or the user's own file, split, and what there is to say about it; values that are missing must be
    doubted or gone."""
    if section["source"] is None:
        raise UserError(f"Name a data set ({', '.join(NAMES)}) or a file: mibp-cert certify data.csv --target COLUMN.")
    _check_data(section)
    if section["source"] in NAMES:
        return load(section["source"], seed, section["path"] and Path(section["path"])), []
    source = Path(section["source"])
    if not source.exists():
        raise UserError(
            f"There is neither a file nor a data set called {section['source']!r}; data sets are {', '.join(NAMES)}."
        )
    if section["target"] is None:
        raise UserError("Name the column that is to be predicted: --target COLUMN.")
    doubted = () if "kind" in threat else column_names("missing", threat.get("missing"))
    reading = _typed(Reading, {**section, "missing": tuple(section["na"])})
    table = read_file(source, reading, spoken=() if "kind" in threat else named_columns(threat))
    frame = table.frame
    test = None if section["test_file"] is None else read_file(section["test_file"], reading, table).frame
    open_ = {name: count for name, count in missing_columns(frame).items() if name not in doubted}
    exist = set(doubted) <= set(frame.columns)  # a column that does not exist is refused by `threat_of`
    if open_ and exist and "kind" not in threat and "all" not in doubted:
        listed = ", ".join(f"'{name}' ({count})" for name, count in open_.items())
        raise UserError(
            f"Values are missing in {listed}: say that they may be anything valid with --missing {next(iter(open_))} (or "
            "--missing all), or leave the columns out with --drop."
        )
    said = [*table.notes, *notes(frame, reading)]
    return split_table(frame, reading, seed, source.stem, test, table.origin), said
