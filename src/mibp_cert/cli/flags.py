"""Flags that several commands share: each stands for one key of the configuration (`config.defaults`).

A flag that was given goes over the configuration file's value; one that was not leaves it as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mibp_cert.config import Config, merged, read_config
from mibp_cert.data import NAMES
from mibp_cert.nets import LOSSES
from mibp_cert.nets.optim import SCHEDULES
from mibp_cert.options import ACTIVATIONS

PANELS = {
    "data": "Your data",
    **dict.fromkeys(("threat", "test_threat"), "What may be wrong"),
    **dict.fromkeys(("network", "training", "select"), "Network and training"),
    **dict.fromkeys(("run", "relational", "solver", "attack"), "Engine and solver"),
    "questions": "Questions beyond the class",
}
"""Where the help shows the flags of a section of the configuration."""
Flag = tuple[str, Any]
"""A key of the configuration, and the parameter that sets it, as Typer reads it."""


def _flag(key: str, kind: Any, help_: str, *names: str) -> Flag:
    panel = PANELS[key.partition(".")[0]]
    return key, Annotated[kind | None, typer.Option(*names, help=help_, rich_help_panel=panel, show_default=False)]


FLAGS: dict[str, Flag] = {
    "target": _flag("data.target", str, "Column to predict."),
    "test_file": _flag("data.test_file", Path, "Another file with the test rows."),
    "test_share": _flag("data.test", float, "Share of rows kept for testing (0.25)."),
    "validation_share": _flag("data.validation", float, "Share of the others for validation (0.2)."),
    "drop": _flag("data.drop", list[str], "Leave this column out (repeatable)."),
    "categorical": _flag("data.categorical", list[str], "Take this column as categories (repeatable)."),
    "na": _flag("data.na", list[str], "A text that stands for a missing value (repeatable)."),
    "unlabelled": _flag("data.unlabelled", str, "Rows without target: refuse (default) or drop."),
    "regression": _flag("data.regression", bool, "Is the target a number to predict?"),
    "scaling": _flag("data.scaling", str, "standard (default), range or none."),
    "separator": _flag("data.separator", str, "Between fields; default: found in the header."),
    "encoding": _flag("data.encoding", str, "Of the file (utf-8)."),
    "sample": _flag("data.sample", int, "Use so many rows only, drawn at random."),
    "data_path": _flag("data.path", Path, "File of the data set npha.", "--data"),
    "eps": _flag("threat.eps", str, "Numbers may be off by this: 0.1, 5%, or age=1,income=5% (data sets: 0.01)."),
    "missing": _flag(
        "threat.missing", list[str], "Missing values of this column may be anything valid (repeatable), or all."
    ),
    "any_category": _flag("threat.any_category", list[str], "This column may hold any category (repeatable)."),
    "rows": _flag("threat.rows", int, "At most this many training rows are off."),
    "flips": _flag("threat.flips", int, "At most this many training labels are wrong."),
    "target_eps": _flag("threat.target_eps", float, "Each real target may be off by this much."),
    "test_eps": _flag("test_threat.eps", str, "The test inputs may be off by this, as --eps."),
    "hidden": _flag(
        "network.hidden", str, "Hidden layer sizes, 20 or 5,5; none: a linear model, the default for files (else 20)."
    ),
    "activation": _flag("network.activation", str, f"Between layers: {', '.join(ACTIVATIONS)}."),
    "conv": _flag("network.conv", str, "Images: filters,kernel,stride of a convolution first (8,4,4)."),
    "logits": _flag("network.logits", int, "1 for a one-logit loss; default one per class."),
    "loss": _flag("training.loss", str, f"{', '.join(LOSSES)}; files: cross-entropy, else hinge."),
    "epochs": _flag("training.epochs", int, "Number of epochs (10; files 20)."),
    "select": _flag("select.rule", str, "last epoch, or best-validation (default for files)."),
    "learning_rate": _flag(
        "training.learning_rate", float, "Step size of SGD (0.1; files 0.2).", "--learning-rate", "--lr"
    ),
    "schedule": _flag("training.schedule", str, f"Rate by epoch: {', '.join(SCHEDULES)}."),
    "momentum": _flag("training.momentum", float, "From 0 to below 1."),
    "weight_decay": _flag("training.weight_decay", float, "0 or more."),
    "clip": _flag("training.clip", float, "Clip each entry of the mean gradient to ± this."),
    "batch_size": _flag("training.batch_size", int, "Rows per step; default 100, or all."),
    "batch_mode": _flag("training.batch_mode", str, "shuffle, or subsample (fresh rows per step)."),
    "init": _flag("training.init", str, "Initial weights: torch or fullcert."),
    "seed": _flag("training.seed", int, "Seed of data, initial weights and batches (0)."),
    "engine": _flag("run.engine", str, "relational (default), interval, crown, mibp (exact, slow); or several: a,b."),
    "predict": _flag("run.prediction", str, "interval, crown, relational or exact; default by engine."),
    "unroll": _flag("run.unroll", int, "Steps kept in one program before relaxing to a box."),
    "symbols": _flag("relational.symbols", int, "Symbol budget of the relational engine."),
    "search": _flag("relational.search", int, "Slopes tried in each direction per relational step (3)."),
    "solver": _flag("solver.solver", str, "scip (default), highs or gurobi."),
    "gap": _flag("solver.gap", float, "Honest gap, relative to each parameter's radius (0.01)."),
    "nodes_per_program": _flag("solver.nodes_per_program", int, "Node limit of one program."),
    "seconds_per_program": _flag("solver.seconds_per_program", float, "Time limit of one program."),
    "seconds_per_step": _flag("solver.seconds_per_step", float, "Time budget of one step."),
    "attack": _flag("attack.enabled", bool, "Train on attack datasets beside the certificate (yes)."),
    "jobs": _flag("solver.jobs", int, "Worker processes; default one per core."),
    "parallel": _flag("solver.parallel", str, "Where programs and sweeps run: local, tcp://host:port (Dask), or ray."),
}
QUESTIONS: dict[str, Flag] = {
    "margin": _flag("questions.margin", float, "Which classes lead by at least this much?"),
    "protected": _flag("questions.protected", list[str], "Is the class the same whatever this column is? (repeatable)"),
    "rising": _flag(
        "questions.rising", list[str], "Does the last class's lead (or the output) only rise with this column?"
    ),
    "falling": _flag("questions.falling", list[str], "Does it only fall with this column? (repeatable)"),
    "collective": _flag("questions.collective", bool, "How many predictions can flip at once?", "--collective"),
}
SOURCE = f"A CSV file with a header, or a data set: {', '.join(NAMES)}."
FIRST = {
    "source": Annotated[str | None, typer.Argument(help=SOURCE, show_default=False)],
    "config_path": _flag("data", Path, "A TOML file with any option; flags go over it.", "--config")[1],
}


def shared(command: Callable[..., None], flags: Mapping[str, Flag] = FLAGS) -> Callable[..., None]:
    """Give a command, whose first parameter is the configuration, the argument `source`, `--config` and the flags."""
    kind = inspect.Parameter.KEYWORD_ONLY
    _, *rest = inspect.signature(command, eval_str=True).parameters.values()
    own = [parameter.replace(kind=kind) for parameter in rest]
    added = FIRST | {name: annotation for name, (_, annotation) in flags.items()}
    parameters = [*(inspect.Parameter(n, kind, default=None, annotation=a) for n, a in added.items()), *own]

    def called(**values: Any) -> None:
        given = {"data.source": values["source"], **{key: values[name] for name, (key, _) in flags.items()}}
        command(configuration(values["config_path"], given), **{p.name: values[p.name] for p in own})

    described: Any = called
    described.__doc__, described.__name__ = command.__doc__, command.__name__
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def configuration(path: Path | None, given: Mapping[str, Any]) -> Config:
    """Defaults, the file, and the keys (`section.entry`) that were given on the command line."""
    over: dict[str, dict[str, Any]] = {}
    for key, value in given.items():
        if value is not None and value != []:
            section, _, entry = key.partition(".")
            over.setdefault(section, {})[entry] = str(value) if isinstance(value, Path) else value
    return merged({} if path is None else read_config(path), over)
