"""The configuration of a run: sections of plain values, from a TOML file, the command line or both; and what they stand for.

Every option of the API has its place here. An unknown section or key is refused with the nearest known one. What was really used,
defaults included, is stored with the run.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from mibp_cert.certify import AttackSettings, Callbacks, CertifiedRun, Selection
from mibp_cert.certify.loop import clean_accuracies
from mibp_cert.certify.memory import check_memory
from mibp_cert.data import NAMES, Split, Task, load
from mibp_cert.data.files import Reading, missing_columns, notes, read_table, split_table
from mibp_cert.doors import certify_training
from mibp_cert.engines import RelationalSettings, SolverSettings
from mibp_cert.errors import UserError
from mibp_cert.nets import Network, Training, effective_batch_size, steps_per_epoch
from mibp_cert.options import IMAGES, network_of, threat_of, together
from mibp_cert.questions.properties import Questions
from mibp_cert.threats import Catalogued, Missing, Threat, nearest, threat_from_json

Config = dict[str, dict[str, Any]]
Settings = TypeVar("Settings")

CLOSE = 0.05
"""How far below the best clean accuracy an epoch may be to be chosen."""
EASY = ("eps", "rows", "flips", "target_eps", "missing", "any_category")
"""Keys of the section `threat` that the command line knows; a `kind` says everything else."""

FREE = ("threat", "test_threat")
"""Sections whose keys depend on the kind of threat."""


def _keys(settings: Any, *without: str) -> dict[str, tuple[str, Any]]:
    """The fields of settings as keys of a section."""
    return {f.name: (str(f.type), f.default) for f in fields(settings) if f.name not in without}


_TEXT, _SIZES, _NUMBER, _WHOLE = ("str", None), ("str | tuple", None), ("float", None), ("int", None)
SECTIONS: dict[str, dict[str, tuple[str, Any]]] = {
    "data": {
        **dict.fromkeys(("source", "target", "path", "test_file"), _TEXT),
        "na": ("tuple", ()),
        **_keys(Reading, "target", "missing"),
    },
    "threat": {},
    "test_threat": {},
    "network": {"hidden": _SIZES, "activation": ("str", "relu"), "conv": _SIZES, "logits": _WHOLE},
    "training": {**_keys(Training), "loss": _TEXT, "learning_rate": _NUMBER, "epochs": _WHOLE},
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
}


def defaults() -> Config:
    """Every section with every key at its default."""
    return {section: {key: default for key, (_, default) in keys.items()} for section, keys in SECTIONS.items()}


def read_config(path: str | Path) -> dict[str, Any]:
    """A TOML file as sections."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from None


def merged(given: Mapping[str, Any], over: Mapping[str, Mapping[str, Any]] | None = None) -> Config:
    """Defaults, then the file's values, then the command line's; unknown sections and keys are refused."""
    config = defaults()
    for layer in (given, over or {}):
        for section, values in layer.items():
            _check_section(section, values)
            # The command line says what may be wrong as a whole.
            instead = section in FREE and layer is not given and values
            said = {key: value for key, value in values.items() if value is not None}
            config[section] = {**({} if instead else config[section]), **said}
    return config


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
    data: Split
    network: Network
    threat: Catalogued
    test_threat: Catalogued | None
    training: Training
    engines: tuple[str, ...]
    questions: Questions | None
    """None: nothing beyond the class is asked."""
    notes: tuple[str, ...]
    asked: Mapping[str, Any]
    """The section `threat` as it was written."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `certify_training` beyond data, threat, training and engine."""
        config = self.config
        return {
            "solver": _typed(SolverSettings, config["solver"]),
            "relational": _typed(RelationalSettings, config["relational"]),
            "attack_settings": _typed(AttackSettings, config["attack"]),
            "attacked": bool(config["attack"]["enabled"]),
            "unroll": config["run"]["unroll"],
            "prediction": config["run"]["prediction"],
            "test_threat": self.test_threat,
        }

    def run(
        self, engine: str, callbacks: Callbacks | None = None, run_dir: str | Path | None = None, resume: bool = False
    ) -> CertifiedRun:
        return certify_training(
            self.network,
            self.data,
            self.threat,
            self.training,
            engine,
            select=_typed(Selection, self.config["select"]),
            callbacks=callbacks,
            run_dir=run_dir,
            resume=resume,
            **self.options,
        )


def job_of(config: Config) -> Job:
    """Read the data and build everything that the configuration describes."""
    section = config["data"]
    if section["source"] is None:
        raise UserError(f"Name a data set ({', '.join(NAMES)}) or a file: mibp-cert certify data.csv --target COLUMN.")
    said: list[str] = []
    built_in, seed = section["source"] in NAMES, config["training"]["seed"]
    if built_in:
        data = load(section["source"], seed, section["path"] and Path(section["path"]))
    else:
        data, said = _from_file(section, config["threat"], seed)
    config = _with_usual(config, data)
    network = network_of(data, **config["network"])
    threat = _threat(config["threat"], data, built_in)
    test = config["test_threat"]
    test_threat = None if not test else threat_from_json(test) if "kind" in test else threat_of(**_easy(test, ("eps",)))
    every = _typed(Questions, config["questions"])
    questions = None if every == Questions() else every
    if questions is not None:
        questions.check(data, test_threat=test_threat is not None)
    training = _typed(Training, config["training"])
    engines = tuple(name.strip() for name in str(config["run"]["engine"]).split(","))
    for engine in engines:
        check_memory(network, data.train, threat, training.batch_size, engine)  # before any training
    if config["select"]["rule"] == "best-validation" and not built_in:
        config["select"]["least_accuracy"], note = _good_enough(config["select"], network, data, threat, training)
        said += note
    used = replace(training, batch_size=effective_batch_size(len(data.train), training.batch_size))
    effective = {**config, "training": asdict(used), "threat": threat.to_json()}
    asked = config["threat"]
    return Job(effective, data, network, threat, test_threat, training, engines, questions, tuple(said), asked)


def _with_usual(config: Config, data: Split) -> Config:
    """Settings that nobody chose: the paper's for its data sets, and for a table of one's own those that certify most: a model
    without hidden layer, cross-entropy, and as many epochs as validation rows find best."""
    own, classes = config["data"]["source"] not in NAMES, data.train.task is Task.CLASSES
    loss = ("cross-entropy" if own else "hinge") if classes else "squared-error"
    usual: dict[str, dict[str, Any]] = {
        "training": {"loss": loss, "learning_rate": 0.2 if own and classes else 0.1, "epochs": 20 if own else 10},
        "select": {"rule": "best-validation" if own and classes else "last"},
        "network": {"hidden": "none"} if own or data.name == IMAGES else {"hidden": "20"},
    }
    if data.name == IMAGES:
        usual["network"]["conv"] = "8,4,4"
    filled = {
        section: {key: usual.get(section, {}).get(key) if value is None else value for key, value in values.items()}
        for section, values in config.items()
    }
    if filled["network"]["logits"] is None:
        one = own and len(data.train.classes) == 2 and filled["training"]["loss"] == "cross-entropy"
        filled["network"]["logits"] = 1 if one else data.train.one_hot.shape[1]
    return filled


def _good_enough(
    select: Mapping[str, Any], network: Network, data: Split, threat: Threat, training: Training
) -> tuple[float, list[str]]:
    """A model that is easy to certify may be one that has learnt nothing: epochs whose clean accuracy is too far below the best
    are left out, unless the user said how good is good enough."""
    if select["least_accuracy"] > 0:
        return select["least_accuracy"], []
    per_epoch = steps_per_epoch(len(data.train), effective_batch_size(len(data.train), training.batch_size))
    best = max(clean_accuracies(network, data, threat, training)[per_epoch - 1 :: per_epoch])
    least = max(0.0, best - CLOSE)
    return least, [
        f"Ordinary training is right for {100 * best:.1f} % of the validation rows at best; the epoch with the most certificates "
        f"is chosen among those with at least {100 * least:.1f} % (least_accuracy)."
    ]


def with_eps(job: Job, eps: str) -> Catalogued:
    """The job's threat with another amount; everything else that may be wrong stays."""
    if "kind" in job.asked:
        raise UserError(
            "Amounts can be varied for a threat given by --eps; this one is written out in the configuration."
        )
    return _threat({**job.asked, "eps": eps}, job.data, job.config["data"]["source"] in NAMES)


def _threat(section: Mapping[str, Any], data: Split, built_in: bool) -> Catalogued:
    if "kind" in section:
        return threat_from_json(section)
    easy = _easy(section, EASY)
    if built_in:
        easy = {"eps": 0.01, **easy}
    if not easy:
        raise UserError(
            "Say what may be wrong with the data: --eps, --missing, --any-category, --flips, or [threat] in a configuration."
        )
    lost, gaps = easy.pop("missing", ()), data.train.missing
    parts = [threat_of(**easy)] if easy else []
    for name in lost:
        if name != "all":
            data.train.column(name)  # refuses a column that does not exist
    known = [c.name for j, c in enumerate(data.train.columns) if gaps is not None and gaps[:, j].any()]
    asked = known if "all" in lost else [name for name in lost if name in known]
    if asked:
        parts.append(Missing(asked))
    if not parts:
        raise UserError("No training row has a missing value in the columns named; say what else may be wrong.")
    return together(parts)


def _easy(section: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    for key in section:
        if key not in known:
            raise UserError(f"[threat] has no key {key!r}; {nearest(key, ['kind', *known])}")
    return {key: value for key, value in section.items() if value not in (None, (), [])}


def _from_file(section: Mapping[str, Any], threat: Mapping[str, Any], seed: int) -> tuple[Split, list[str]]:
    """The user's own file, split; values that are missing must be doubted or gone."""
    source = Path(section["source"])
    if not source.exists():
        raise UserError(
            f"There is neither a file nor a data set called {section['source']!r}; data sets are {', '.join(NAMES)}."
        )
    if section["target"] is None:
        raise UserError("Name the column that is to be predicted: --target COLUMN.")
    reading = _typed(Reading, {**section, "missing": tuple(section["na"])})
    frame = read_table(source, reading)
    test = None if section["test_file"] is None else read_table(section["test_file"], reading)
    doubted = () if "kind" in threat else threat.get("missing", ())
    for name in doubted:
        if name != "all" and name not in frame.columns:
            raise UserError(
                f"There is no column '{name}' in {source}; {nearest(name, [str(c) for c in frame.columns])}"
            )
    open_ = {name: count for name, count in missing_columns(frame).items() if name not in doubted}
    if open_ and "kind" not in threat and "all" not in doubted:
        listed = ", ".join(f"'{name}' ({count})" for name, count in open_.items())
        raise UserError(
            f"Values are missing in {listed}: say that they may be anything valid with --missing {next(iter(open_))} (or "
            "--missing all), or leave the columns out with --drop."
        )
    return split_table(frame, reading, seed, source.stem, test), notes(frame, reading)
