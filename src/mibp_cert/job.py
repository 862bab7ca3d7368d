"""A configuration made real: data, model, threat and training, ready to be run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from mibp_cert.certify import AttackSettings, Callbacks, CertifiedRun, Request, Selection
from mibp_cert.certify.forecast import Forecast, check_memory, forecast
from mibp_cert.config import ALL, AUTO, NETWORK, NOT_OF_FITTED, OF_ALL, OF_FIT_PROGRAMS, Config, defaults, flag_of
from mibp_cert.data import NAMES, Split, Task, load
from mibp_cert.data.reading import Reading, read_file
from mibp_cert.data.table import missing_columns, notes, split_table
from mibp_cert.doors import certify_fit, certify_training, fit_request, training_request
from mibp_cert.engines import RelationalSettings, SolverSettings, engine_named
from mibp_cert.errors import UserError
from mibp_cert.fitted import FITTED, MODELS, REGRESSIONS, FitMibpEngine, Fitted, RandomFeatures
from mibp_cert.fitted.model import ONE_VERSUS_REST, most_rows
from mibp_cert.nets import Linear, Network, Training
from mibp_cert.nets.plan import effective_batch_size
from mibp_cert.questions.properties import Questions
from mibp_cert.studies.choose import COARSE, GRID, Choice, choose_C
from mibp_cert.threats import Catalogued
from mibp_cert.threats.short import column_names, named_columns, threat_of
from mibp_cert.usual import IMAGES, OWN_CLASSES, OWN_NUMBERS, lonely_row, network_of, usual_batch, usual_logits

Settings = TypeVar("Settings")

CHOSEN = 6.0
"""About as many times what one fit takes, choosing `C` takes beside it."""

PATIENCE = 60.0
"""Seconds beyond which `C` is chosen from fewer."""

FEW = 5
"""Columns that are named one by one in an advice."""

NPHA = "npha"
"""The data set that is read from a file."""


def _typed(kind: Callable[..., Settings], section: Mapping[str, Any]) -> Settings:
    """The settings that a section stands for; keys that they do not have are left out, and lists are tuples there."""
    names = inspect.signature(kind).parameters
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in section.items() if k in names})


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

    def request(self, engine: str) -> Request:
        """What one of the engines is asked."""
        if isinstance(self.training, Fitted):
            return fit_request(self.data, self.threat, self.training, engine, **self.options)
        given = {"select": self.select, **self.options}
        return training_request(self.network, self.data, self.threat, self.training, engine, **given)


def job_of(config: Config, data: Split | None = None) -> Job:
    """Read the data and build everything that the configuration describes; `data`: where they were read before."""
    if any(value is not None for value in config["ensemble"].values()):
        raise UserError(
            "An ensemble is no single model: only mibp-cert certify … --ensemble partitions:50 knows [ensemble]."
        )
    said: list[str] = []
    if data is None:
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
        model, apart = _in_time(_fitted(config, data), data)
        said += [apart] if apart else []
        config = {**config, "model": {**config["model"], "multi": model.multi}}
        kept, engine = _of_fitted(config, model) | {"threat": threat.to_json()}, _fit_engine(config)
        options["solver"] = _typed(SolverSettings, config["solver"])
        open_ = config["model"]["C"] == AUTO
        made = model.network(data.train)
        model.check(made, data.train)  # before it is said what the work would take
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
    weights = _class_weight(said["class_weight"])
    model = _typed(Fitted, {**said, "C": c, "loss": MODELS[kind], "features": features, "class_weight": weights})
    if (model.loss in REGRESSIONS) != numbers:
        fitting = [name for name, loss in MODELS.items() if (loss in REGRESSIONS) == numbers]
        has, needs = ("numbers", "classes") if numbers else ("classes", "numbers")
        raise UserError(f"--model {kind} predicts {needs}, but the target has {has}; choose {' or '.join(fitting)}.")
    return model


def _in_time(model: Fitted, data: Split) -> tuple[Fitted, str]:
    """Where softmax would take hours and nobody asked for it: each class versus the rest; and a sentence that says so."""
    rows, classes = len(data.train), len(data.train.classes) if data.train.task is Task.CLASSES else 0
    if classes < 3 or model.multi is not None or not model.softmax:
        return model, ""
    last = model.network(data.train).layers[-1]
    assert isinstance(last, Linear)
    if rows <= most_rows(last.inputs + 1, classes):
        return model, ""
    return replace(model, multi=ONE_VERSUS_REST), (
        f"With {classes} classes, bounds of softmax for {rows} rows would take hours: each class is fitted versus the "
        f"rest (--multi {ONE_VERSUS_REST})."
    )


def _class_weight(said: Any) -> Any:
    """Weights of classes as a table; a flag can only write them as text."""
    if not isinstance(said, str) or "=" not in said:
        return said
    try:
        return {name.strip(): float(weight) for name, _, weight in (part.rpartition("=") for part in said.split(","))}
    except ValueError:
        raise UserError(f"--class-weight takes balanced, or weights such as yes=3,no=1; got {said!r}.") from None


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


def reading_of(section: Mapping[str, Any]) -> Reading:
    """How the file of a configuration is read."""
    return _typed(Reading, {**section, "missing": tuple(section["na"])})


def data_of(config: Config, scaling: str) -> tuple[Split, list[str]]:
    """The data alone, scaled otherwise than the configuration says; what is missing in them stays missing."""
    own = config["data"]["source"] not in NAMES
    section = {**config["data"], "scaling": scaling} if own else config["data"]
    threat = {**config["threat"], "missing": ["all"]}
    return _data(section, threat, config["training"]["seed"])


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
    reading = reading_of(section)
    table = read_file(source, reading, spoken=() if "kind" in threat else named_columns(threat))
    frame = table.frame
    test = None if section["test_file"] is None else read_file(section["test_file"], reading, table).frame
    open_ = {name: count for name, count in missing_columns(frame).items() if name not in doubted}
    exist = set(doubted) <= set(frame.columns)  # a column that does not exist is refused by `threat_of`
    if open_ and exist and "kind" not in threat and "all" not in doubted:
        listed = ", ".join(f"'{name}' ({count})" for name, count in open_.items())
        flags = " ".join(f"--missing {quote(name)}" for name in open_)
        ways = "--missing all" if len(open_) > FEW else f"{flags} (or --missing all)"
        raise UserError(
            f"Values are missing in {listed}: say that they may be anything valid with {ways}, or leave the columns out with "
            "--drop."
        )
    said = [*table.notes, *notes(frame, reading)]
    return split_table(frame, reading, seed, source.stem, test, table.origin), said
