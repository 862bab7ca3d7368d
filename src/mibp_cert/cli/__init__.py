"""The command line: `mibp-cert certify`, `tolerance`, `blame`, `compare`, `resume`, `report`, `verify`, `check`, `reproduce`,
`doctor`.

The flags that several commands share are here: each stands for one key of the configuration (`config.defaults`). A flag that was
given goes over the configuration file's value; one that was not leaves it as it is.

A command imports what it works with when it is called: the help, and a mistake in a flag, should not wait for numpy.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from mibp_cert.cli import commands, studies
from mibp_cert.cli.asked import Asked
from mibp_cert.cli.check import check
from mibp_cert.cli.doctor import doctor
from mibp_cert.cli.ends import ended
from mibp_cert.cli.names import NAMES, listed
from mibp_cert.cli.reproduce import reproduce
from mibp_cert.cli.verify import verify

PANELS = {
    "data": "Your data",
    **dict.fromkeys(("threat", "test_threat"), "What may be wrong"),
    **dict.fromkeys(("model", "network", "training", "select"), "Model and training"),
    **dict.fromkeys(("run", "relational", "solver", "attack"), "Engine and solver"),
    "questions": "Questions beyond the class",
    "ensemble": "Votes of parts or bags",
}
"""Where the help shows the flags of a section of the configuration."""
Flag = tuple[str, Any]
"""A key of the configuration, and the parameter that sets it, as Typer reads it."""


def _flag(key: str, kind: Any, help_: str, *options: str, name: str = "") -> tuple[str, Flag]:
    """A flag under its name, which is that of the key's last part unless another one is given."""
    section, _, entry = key.partition(".")
    option = Option(*options, help=help_, rich_help_panel=PANELS[section], show_default=False)
    return name or entry, (key, Annotated[kind | None, option])


def _flags(*flags: tuple[str, Flag]) -> dict[str, Flag]:
    return dict(flags)


FLAGS = _flags(
    _flag("data.target", str, "Column to predict."),
    _flag("data.test_file", Path, "Another file with the test rows."),
    _flag("data.test", float, "Share of rows kept for testing (0.25).", name="test_share"),
    _flag("data.validation", float, "Share of the others for validation (0.2).", name="validation_share"),
    _flag("data.drop", list[str], "Leave this column out (repeatable)."),
    _flag("data.keep", list[str], "Keep this column, though it only counts the rows (repeatable)."),
    _flag("data.categorical", list[str], "Take this column as categories (repeatable)."),
    _flag("data.na", list[str], "A text that stands for a missing value (repeatable)."),
    _flag("data.unlabelled", str, "Rows without target: refuse (default) or drop."),
    _flag("data.regression", bool, "Is the target a number to predict?"),
    _flag("data.scaling", str, "standard (default), range or none."),
    _flag("data.separator", str, "Between fields; default: found in the header."),
    _flag("data.encoding", str, "Of the file (utf-8)."),
    _flag("data.decimal", str, "Before the decimals: . (default) or a comma."),
    _flag("data.thousands", str, "Between thousands, as the comma in 1,234,567; default: nothing."),
    _flag("data.sample", int, "Use so many rows only, drawn at random."),
    _flag("data.path", Path, "File of the data set npha.", "--data", name="data_path"),
    _flag("threat.eps", str, "Numbers may be off by this: 0.1, 5%, or age=1,income=5% (data sets: 0.01)."),
    _flag("threat.missing", list[str], "Missing values of this column may be anything valid (repeatable), or all."),
    _flag("threat.any_category", list[str], "This column may hold any category (repeatable)."),
    _flag("threat.rows", int, "At most this many training rows are off."),
    _flag("threat.flips", int, "At most this many training labels are wrong."),
    _flag("threat.removed", int, "At most this many training rows should not be there (fitted models, ensembles)."),
    _flag("threat.added", int, "At most this many training rows have been lost (fitted models, ensembles)."),
    _flag("threat.arbitrary", int, "At most this many training rows may be anything (ensembles)."),
    _flag("threat.added_range", str, "What lost rows are like: age=18:99,mood=good:bad (default: as all columns are)."),
    _flag("threat.target_eps", float, "Each real target may be off by this much."),
    _flag("test_threat.eps", str, "The test inputs may be off by this, as --eps.", name="test_eps"),
    _flag(
        "network.hidden", str, "Hidden layer sizes, 20 or 5,5; none: a linear model, the default for files (else 20)."
    ),
    _flag("network.activation", str, f"Between layers: {listed('usual:ACTIVATIONS')}."),
    _flag("network.conv", str, "Images: filters,kernel,stride of a convolution first (8,4,4)."),
    _flag("network.logits", int, "1 for a one-logit loss; default one per class."),
    _flag(
        "training.loss", str, f"{listed('nets:LOSSES')}; files: cross-entropy, else hinge; of numbers squared-error."
    ),
    _flag("training.epochs", int, "Number of epochs (10; files 20, of numbers 50)."),
    _flag("select.rule", str, "last epoch, or best-validation (default for files).", name="select"),
    _flag(
        "training.learning_rate", float, "Step size of SGD (0.1; files 0.2, of numbers 0.1).", "--learning-rate", "--lr"
    ),
    _flag("training.schedule", str, f"Rate by epoch: {listed('nets.plan:SCHEDULES')}."),
    _flag("training.momentum", float, "From 0 to below 1."),
    _flag("training.weight_decay", float, "0 or more."),
    _flag("training.clip", float, "Clip each entry of the mean gradient to ± this."),
    _flag("training.batch_size", str, "Rows per step, or all (100; files: all, up to 2000)."),
    _flag("training.batch_mode", str, "shuffle, or subsample (fresh rows per step)."),
    _flag("training.init", str, "Initial weights: torch or fullcert."),
    _flag("training.seed", int, "Seed of data, initial weights and batches (0)."),
    _flag(
        "run.engine",
        str,
        f"{listed('engines:ENGINES')} (default {listed('engines:DEFAULT')}); or several: a,b. "
        f"Fitted models: {listed('fitted:FITTED')}.",
    ),
    _flag("run.prediction", str, f"{listed('engines:PREDICTIONS')}; default by engine.", name="predict"),
    _flag("run.unroll", int, "Steps kept in one program before relaxing to a box."),
    _flag("relational.symbols", int, "Symbol budget of the relational engine."),
    _flag("relational.search", int, "Slopes tried in each direction per relational step (3)."),
    _flag("solver.solver", str, "scip (default), highs or gurobi."),
    _flag("solver.gap", float, "Honest gap, relative to each parameter's radius (0.01)."),
    _flag("solver.nodes_per_program", int, "Node limit of one program."),
    _flag("solver.seconds_per_program", float, "Time limit of one program."),
    _flag("solver.seconds_per_step", float, "Time budget of one step."),
    _flag("attack.enabled", bool, "Train on attack datasets beside the certificate (yes).", name="attack"),
    _flag("solver.jobs", int, "Worker processes; default one per core (fitted models, ensembles: one)."),
    _flag("solver.parallel", str, "Where programs, bounds and sweeps run: local, tcp://host:port (Dask), or ray."),
)
MODEL = _flags(
    _flag(
        "model.kind",
        str,
        f"Fitted to its minimum: {listed('fitted:MODELS')} (files: logistic or ridge); or {listed('config:NETWORK')}, trained in "
        "steps.",
        "--model",
        name="model",
    ),
    _flag(
        "model.C",
        str,
        "Fitted models: 1 / penalty, as scikit-learn has it (1; files: auto, by validation rows).",
        "--C",
    ),
    _flag(
        "model.class_weight",
        str,
        "Fitted models: how much the rows of each class count, yes=3,no=1, or balanced (all classes alike).",
    ),
    _flag("model.multi", str, "Fitted models of three or more classes: softmax (usual), or one-versus-rest."),
    _flag("model.features", int, "Fitted models: so many random features of the columns, frozen, in front of it."),
    _flag("model.feature_scale", float, "Deviation of their weights (1)."),
    _flag("model.feature_kind", str, f"{listed('fitted:FEATURE_KINDS', ' or ')} ({NAMES['fitted:FEATURE_KINDS'][0]})."),
    _flag("model.feature_seed", int, "Seed that they are drawn from (0)."),
)
"""Flags of the commands that know fitted models."""
QUESTIONS = _flags(
    _flag("questions.margin", float, "Which classes lead by at least this much?"),
    _flag("questions.protected", list[str], "Is the class the same whatever this column is? (repeatable)"),
    _flag("questions.rising", list[str], "Does the last class's lead (or the output) only rise with this column?"),
    _flag("questions.falling", list[str], "Does it only fall with this column? (repeatable)"),
    _flag("questions.collective", bool, "How many predictions can flip at once?", "--collective"),
)
ENSEMBLE = _flags(
    _flag(
        "ensemble.kind",
        str,
        "Votes of learners that see a share of the rows each: partitions:50, bagging:1000 or bagflip:1000.",
        name="ensemble",
    ),
    _flag("ensemble.learner", str, f"{listed('cli.ensembles:LEARNERS')} (forest; of bags tree)."),
    _flag("ensemble.by", str, f"What a part is chosen by: {listed('ensembles.rows:BASES')} (content)."),
    _flag("ensemble.key", str, "A column that cannot be wrong, to choose parts by; it is no feature."),
    _flag("ensemble.bag_size", int, "Rows of a bag, drawn with replacement (a twentieth of all)."),
    _flag("ensemble.confidence", float, "That all that is said of bags holds at once (0.99)."),
    _flag("ensemble.flip", str, f"What bagflip flips: {listed('ensembles.flips:FLIPS')} (both)."),
    _flag("ensemble.odds", float, "So many times as likely a value stays as it becomes any other one (9)."),
    _flag("ensemble.cells", int, "So many values of a wrong row are wrong, for bagflip (1)."),
    _flag("ensemble.trigger", int, "So many values of a test row are wrong, for bagflip (0)."),
    _flag("ensemble.bins", int, "So many bins for numbers, cut at quantiles of the validation rows, for bagflip."),
)
"""Flags of ensembles."""
SOURCE = f"A table with a header (CSV, TSV, .csv.gz, .xlsx, .parquet), or a data set: {listed('data:NAMES')}."
FIRST = {
    "source": Annotated[str | None, Argument(help=SOURCE, show_default=False)],
    "config_path": _flag("data.", Path, "A TOML file with any option; flags go over it.", "--config")[1][1],
}


def shared(command: Callable[..., None], flags: Mapping[str, Flag] = FLAGS) -> Callable[..., None]:
    """Give a command, whose first parameter is the configuration, the argument `source`, `--config` and the flags."""
    kind = inspect.Parameter.KEYWORD_ONLY
    # `Config` is for the type checker: the module that has it loads all others.
    _, *rest = inspect.signature(command, eval_str=True, locals={"Config": None}).parameters.values()
    own = [parameter.replace(kind=kind) for parameter in rest]
    added = FIRST | {name: annotation for name, (_, annotation) in flags.items()}
    parameters = [*(inspect.Parameter(n, kind, default=None, annotation=a) for n, a in added.items()), *own]

    def called(**values: Any) -> None:
        from mibp_cert.config import merged, read_config

        said: dict[str, dict[str, Any]] = {"data": {"source": values["source"]}}
        for name, (key, _) in flags.items():
            (section, _, entry), value = key.partition("."), values[name]
            if value not in (None, []):
                said.setdefault(section, {})[entry] = str(value) if isinstance(value, Path) else value
        path = values["config_path"]
        config = merged({} if path is None else read_config(path), said)
        command(Asked(config, said, path), **{p.name: values[p.name] for p in own})

    described: Any = called
    described.__doc__, described.__name__ = command.__doc__, command.__name__
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


app = typer.Typer(
    help="My training data may be wrong. What can that do to my model?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"mibp-cert {version('mibp-cert')}")
        raise typer.Exit


@app.callback()
def _root(
    show: Annotated[bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Proven bounds on what wrong training data can do to a model."""


app.command()(shared(commands.certify, MODEL | FLAGS | QUESTIONS | ENSEMBLE))
for _asked in (studies.tolerance, studies.blame, studies.compare):
    app.command()(shared(_asked, MODEL | FLAGS))
for _command in (commands.resume, commands.report, verify, check, reproduce, doctor):
    app.command()(_command)


def main() -> None:
    """Entry point: every way to end has a status of its own (`cli.ends`)."""
    sys.exit(ended(app))
