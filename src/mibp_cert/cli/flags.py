"""Flags that several commands share: each stands for one key of the configuration (`config.defaults`).

A flag that was given goes over the configuration file's value; one that was not leaves it as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mibp_cert.config import Config, merged, read_config
from mibp_cert.data import NAMES
from mibp_cert.nets import LOSSES
from mibp_cert.nets.optim import SCHEDULES
from mibp_cert.options import ACTIVATIONS


def _flag(kind: Any, help_: str, *names: str, panel: str) -> Any:
    return Annotated[kind, typer.Option(*names, help=help_, rich_help_panel=panel, show_default=False)]


DATA, DOUBT, MODEL, HOW = "Your data", "What may be wrong", "Network and training", "Engine and solver"
LISTED = list[str] | None
FLAGS: dict[str, tuple[str, Any]] = {
    # data
    "target": ("data.target", _flag(str | None, "Column to predict.", panel=DATA)),
    "test_file": ("data.test_file", _flag(Path | None, "Another file with the test rows.", panel=DATA)),
    "test_share": ("data.test", _flag(float | None, "Share of rows kept for testing (0.25).", panel=DATA)),
    "validation_share": (
        "data.validation",
        _flag(float | None, "Share of the others for validation (0.2).", panel=DATA),
    ),
    "drop": ("data.drop", _flag(LISTED, "Leave this column out (repeatable).", panel=DATA)),
    "categorical": ("data.categorical", _flag(LISTED, "Take this column as categories (repeatable).", panel=DATA)),
    "na": ("data.na", _flag(LISTED, "A text that stands for a missing value (repeatable).", panel=DATA)),
    "unlabelled": ("data.unlabelled", _flag(str | None, "Rows without target: refuse (default) or drop.", panel=DATA)),
    "regression": ("data.regression", _flag(bool | None, "Is the target a number to predict?", panel=DATA)),
    "scaling": ("data.scaling", _flag(str | None, "standard (default), range or none.", panel=DATA)),
    "separator": ("data.separator", _flag(str | None, "Between fields; default: found in the header.", panel=DATA)),
    "encoding": ("data.encoding", _flag(str | None, "Of the file (utf-8).", panel=DATA)),
    "sample": ("data.sample", _flag(int | None, "Use so many rows only, drawn at random.", panel=DATA)),
    "data_path": ("data.path", _flag(Path | None, "File of the data set npha.", "--data", panel=DATA)),
    # doubt
    "eps": (
        "threat.eps",
        _flag(str | None, "Numbers may be off by this: 0.1, 5%, or age=1,income=5% (data sets: 0.01).", panel=DOUBT),
    ),
    "missing": (
        "threat.missing",
        _flag(LISTED, "Missing values of this column may be anything valid (repeatable), or all.", panel=DOUBT),
    ),
    "any_category": (
        "threat.any_category",
        _flag(LISTED, "This column may hold any category (repeatable).", panel=DOUBT),
    ),
    "rows": ("threat.rows", _flag(int | None, "At most this many training rows are off.", panel=DOUBT)),
    "flips": ("threat.flips", _flag(int | None, "At most this many training labels are wrong.", panel=DOUBT)),
    "target_eps": ("threat.target_eps", _flag(float | None, "Each real target may be off by this much.", panel=DOUBT)),
    "test_eps": ("test_threat.eps", _flag(str | None, "The test inputs may be off by this, as --eps.", panel=DOUBT)),
    # model
    "hidden": (
        "network.hidden",
        _flag(
            str | None,
            "Hidden layer sizes, 20 or 5,5; none: a linear model, the default for files (else 20).",
            panel=MODEL,
        ),
    ),
    "activation": ("network.activation", _flag(str | None, f"Between layers: {', '.join(ACTIVATIONS)}.", panel=MODEL)),
    "conv": (
        "network.conv",
        _flag(str | None, "Images: filters,kernel,stride of a convolution first (8,4,4).", panel=MODEL),
    ),
    "logits": ("network.logits", _flag(int | None, "1 for a one-logit loss; default one per class.", panel=MODEL)),
    "loss": (
        "training.loss",
        _flag(
            str | None,
            f"{', '.join(LOSSES)}; files: cross-entropy, else hinge.",
            panel=MODEL,
        ),
    ),
    "epochs": ("training.epochs", _flag(int | None, "Number of epochs (10; files 20).", panel=MODEL)),
    "select": ("select.rule", _flag(str | None, "last epoch, or best-validation (default for files).", panel=MODEL)),
    "learning_rate": (
        "training.learning_rate",
        _flag(float | None, "Step size of SGD (0.1; files 0.2).", "--learning-rate", "--lr", panel=MODEL),
    ),
    "schedule": ("training.schedule", _flag(str | None, f"Rate by epoch: {', '.join(SCHEDULES)}.", panel=MODEL)),
    "momentum": ("training.momentum", _flag(float | None, "From 0 to below 1.", panel=MODEL)),
    "weight_decay": ("training.weight_decay", _flag(float | None, "0 or more.", panel=MODEL)),
    "clip": ("training.clip", _flag(float | None, "Clip each entry of the mean gradient to ± this.", panel=MODEL)),
    "batch_size": ("training.batch_size", _flag(int | None, "Rows per step; default 100, or all.", panel=MODEL)),
    "batch_mode": (
        "training.batch_mode",
        _flag(str | None, "shuffle, or subsample (fresh rows per step).", panel=MODEL),
    ),
    "init": ("training.init", _flag(str | None, "Initial weights: torch or fullcert.", panel=MODEL)),
    "seed": ("training.seed", _flag(int | None, "Seed of data, initial weights and batches (0).", panel=MODEL)),
    # engine
    "engine": (
        "run.engine",
        _flag(str | None, "relational (default), interval, crown, mibp (exact, slow); or several: a,b.", panel=HOW),
    ),
    "predict": (
        "run.prediction",
        _flag(str | None, "interval, crown, relational or exact; default by engine.", panel=HOW),
    ),
    "unroll": ("run.unroll", _flag(int | None, "Steps kept in one program before relaxing to a box.", panel=HOW)),
    "symbols": ("relational.symbols", _flag(int | None, "Symbol budget of the relational engine.", panel=HOW)),
    "search": (
        "relational.search",
        _flag(int | None, "Slopes tried in each direction per relational step (3).", panel=HOW),
    ),
    "solver": ("solver.solver", _flag(str | None, "scip (default), highs or gurobi.", panel=HOW)),
    "gap": ("solver.gap", _flag(float | None, "Honest gap, relative to each parameter's radius (0.01).", panel=HOW)),
    "nodes_per_program": ("solver.nodes_per_program", _flag(int | None, "Node limit of one program.", panel=HOW)),
    "seconds_per_program": ("solver.seconds_per_program", _flag(float | None, "Time limit of one program.", panel=HOW)),
    "seconds_per_step": ("solver.seconds_per_step", _flag(float | None, "Time budget of one step.", panel=HOW)),
    "attack": (
        "attack.enabled",
        _flag(bool | None, "Train on attack datasets beside the certificate (yes).", panel=HOW),
    ),
    "jobs": ("solver.jobs", _flag(int | None, "Worker processes; default one per core.", panel=HOW)),
    "parallel": (
        "solver.parallel",
        _flag(str | None, "Where programs and sweeps run: local, tcp://host:port (Dask), or ray.", panel=HOW),
    ),
}
SOURCE = Annotated[
    str | None, typer.Argument(help=f"A CSV file with a header, or a data set: {', '.join(NAMES)}.", show_default=False)
]
CONFIG = _flag(Path | None, "A TOML file with any option; flags go over it.", "--config", panel=DATA)


def shared(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the argument `source`, `--config` and all flags; it is called with the configuration and its own ones."""
    own = inspect.signature(command, eval_str=True).parameters
    empty = inspect.Parameter.KEYWORD_ONLY
    added = {"source": (SOURCE, None), "config_path": (CONFIG, None)}
    added |= {name: (annotation, None) for name, (_, annotation) in FLAGS.items()}
    parameters = [inspect.Parameter(n, empty, default=d, annotation=a) for n, (a, d) in added.items()]
    mine = [p.replace(kind=empty) for name, p in own.items() if name != "config"]

    def called(**values: Any) -> None:
        config = configuration(values.pop("source"), values.pop("config_path"), values)
        command(config, **{name: values[name] for name in own if name != "config"})

    called.__doc__, called.__name__ = command.__doc__, command.__name__
    described: Any = called
    described.__signature__ = inspect.Signature([*parameters, *mine])
    called.__annotations__ = {p.name: p.annotation for p in (*parameters, *mine)}
    return called


def configuration(source: str | None, path: Path | None, values: dict[str, Any]) -> Config:
    """Defaults, the file, and the flags that were given."""
    over: dict[str, dict[str, Any]] = {}
    for name, (key, _) in FLAGS.items():
        value = values.get(name)
        if value is not None and value != []:
            section, _, entry = key.partition(".")
            over.setdefault(section, {})[entry] = str(value) if isinstance(value, Path) else value
    if source is not None:
        over.setdefault("data", {})["source"] = source
    return merged({} if path is None else read_config(path), over)
