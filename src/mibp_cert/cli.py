"""The command line: `mibp-cert certify`, `mibp-cert doctor`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mibp_cert.certify import ENGINES, Callbacks, CertifiedRun, EpochRecord, Training, certify_training
from mibp_cert.certify.questions import Questions, describe
from mibp_cert.data import NAMES, load
from mibp_cert.engines.exact import SolverSettings
from mibp_cert.engines.relational import RelationalSettings
from mibp_cert.errors import MibpCertError, UserError
from mibp_cert.nets import LOSSES
from mibp_cert.nets.optim import SCHEDULES
from mibp_cert.options import ACTIVATIONS, network_of, threat_of
from mibp_cert.report.tables import (
    accuracy_notes,
    accuracy_table,
    cost_table,
    epochs_table,
    percent,
    side_by_side,
    summary,
)
from mibp_cert.reproduce import TABLES, TIMINGS, Options, Table, run_table, with_loss
from mibp_cert.solvers import SOLVERS
from mibp_cert.threats import LInf

app = typer.Typer(
    help="My training data may be wrong. What can that do to my model?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
USER_MISTAKE = 2
INTERRUPTED = 130


class _Interrupted(MibpCertError):
    """Ctrl-C; the workers have been ended."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"mibp-cert {version('mibp-cert')}")
        raise typer.Exit


@app.callback()
def _root(
    show: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Proven bounds on what wrong training data can do to a neural network."""


@app.command()
def certify(
    dataset: Annotated[str, typer.Argument(help=f"Name of a data set: {', '.join(NAMES)}.")],
    data_path: Annotated[Path | None, typer.Option("--data", help="File of the data set npha.")] = None,
    eps: Annotated[float, typer.Option(help="Each feature of each training row may be off by this much.")] = 0.01,
    rows: Annotated[int | None, typer.Option(help="At most this many training rows are off by eps.")] = None,
    flips: Annotated[int, typer.Option(help="At most this many training labels are wrong.")] = 0,
    target_eps: Annotated[float, typer.Option(help="Each real target may be off by this much.")] = 0.0,
    test_eps: Annotated[float, typer.Option(help="Each feature of each test row may be off by this much.")] = 0.0,
    engine: Annotated[
        str,
        typer.Option(
            help="relational (fast, tight), interval or crown (fast, loose), mibp (exact step, slow); or several: a,b."
        ),
    ] = "relational",
    epochs: Annotated[int, typer.Option(help="Number of epochs.")] = 10,
    select: Annotated[str, typer.Option(help="last epoch, or best-validation: certified accuracy decides.")] = "last",
    hidden: Annotated[
        str | None,
        typer.Option(help="Hidden layer sizes, such as 20 or 5,5; none for a linear model. Default 20 (digits: none)."),
    ] = None,
    activation: Annotated[str, typer.Option(help=f"Between layers: {', '.join(ACTIVATIONS)}.")] = "relu",
    conv: Annotated[
        str | None,
        typer.Option(
            help="Image data: filters,kernel,stride of a convolution before the hidden layers. Default 8,4,4."
        ),
    ] = None,
    logits: Annotated[int | None, typer.Option(help="1 for a one-logit loss; default one per class.")] = None,
    loss: Annotated[
        str | None, typer.Option(help=f"{', '.join(LOSSES)}. Default hinge; squared-error for real targets.")
    ] = None,
    learning_rate: Annotated[float, typer.Option("--learning-rate", "--lr", help="Step size of SGD.")] = 0.1,
    schedule: Annotated[str, typer.Option(help=f"Learning rate by epoch: {', '.join(SCHEDULES)}.")] = "constant",
    momentum: Annotated[float, typer.Option(help="Momentum, from 0 to below 1.")] = 0.0,
    weight_decay: Annotated[float, typer.Option(help="Weight decay, 0 or more.")] = 0.0,
    clip: Annotated[float | None, typer.Option(help="Clip each entry of the mean gradient to ± this.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows per step; default 100, or all if there are fewer.")
    ] = None,
    batch_mode: Annotated[str, typer.Option(help="shuffle, or subsample (fresh rows per step).")] = "shuffle",
    init: Annotated[str, typer.Option(help="Initial weights: torch or fullcert.")] = "torch",
    seed: Annotated[int, typer.Option(help="Seed of data, initial weights and batches.")] = 0,
    predict: Annotated[
        str | None, typer.Option(help="interval, crown, relational or exact; default by engine.")
    ] = None,
    solver: Annotated[str, typer.Option(help="scip, highs or gurobi.")] = "scip",
    gap: Annotated[float, typer.Option(help="Honest gap asked for, relative to each parameter's radius.")] = 0.01,
    unroll: Annotated[int, typer.Option(help="Steps kept in one program before relaxing to a box.")] = 1,
    nodes_per_program: Annotated[int | None, typer.Option(help="Node limit of one program.")] = None,
    seconds_per_program: Annotated[float, typer.Option(help="Time limit of one program.")] = math.inf,
    seconds_per_step: Annotated[float, typer.Option(help="Time budget of one step.")] = math.inf,
    symbols: Annotated[int | None, typer.Option(help="Symbol budget of the relational engine.")] = None,
    search: Annotated[int, typer.Option(help="Slopes tried in each direction per relational step.")] = 3,
    margin: Annotated[float | None, typer.Option(help="Also: which classes lead by at least this much?")] = None,
    protected: Annotated[
        list[str] | None,
        typer.Option(help="Also: is the class the same whatever this column is, in its training range? (repeatable)"),
    ] = None,
    rising: Annotated[
        list[str] | None,
        typer.Option(
            help="Also: does the lead of the last class (or the output) only rise with this column? (repeatable)"
        ),
    ] = None,
    falling: Annotated[
        list[str] | None, typer.Option(help="Also: does the output only fall with this column? (repeatable)")
    ] = None,
    collective: Annotated[bool, typer.Option(help="Also: how many predictions can flip at once?")] = False,
    attack: Annotated[bool, typer.Option(help="Train on attack datasets beside the certificate.")] = True,
    witness: Annotated[Path | None, typer.Option(help="Save the strongest attack dataset (.npz).")] = None,
    bounds: Annotated[Path | None, typer.Option(help="Save bounds and clean weights (.npz).")] = None,
    jobs: Annotated[int | None, typer.Option(help="Worker processes; default one per core.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the run as JSON.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Train with proven bounds on every parameter and certify the test points."""
    console = Console(quiet=quiet)
    engines = [name.strip() for name in engine.split(",")]
    outputs = {name: _output_path(json_path, name, len(engines)) for name in engines}
    for path in [*outputs.values(), witness, bounds]:
        if path is not None:
            _check_writable(path)
    settings = SolverSettings(
        solver,
        gap,
        seconds_per_program=seconds_per_program,
        nodes_per_program=nodes_per_program,
        seconds_per_step=seconds_per_step,
        jobs=jobs,
    )
    data = load(dataset, seed, data_path)
    questions = Questions(margin, tuple(protected or ()), tuple(rising or ()), tuple(falling or ()), collective)
    questions.check(data, test_threat=test_eps > 0)
    network = network_of(data, hidden, activation, conv, logits)
    training = Training(
        epochs,
        batch_size,
        learning_rate,
        loss or ("hinge" if data.train.targets is None else "squared-error"),
        seed,
        init,
        batch_mode,
        momentum,
        weight_decay,
        clip,
        schedule,
    )
    threat = threat_of(eps, rows, flips, target_eps)
    runs = []
    for name in engines:
        try:
            with _progress(quiet) as progress:
                run = certify_training(
                    network,
                    data,
                    threat,
                    training,
                    name,
                    solver=settings,
                    relational=RelationalSettings(symbols, search),
                    unroll=unroll,
                    prediction=predict,
                    select=select,
                    test_threat=LInf(test_eps) if test_eps else None,
                    attacked=attack,
                    callbacks=_callbacks(progress, name),
                )
        except KeyboardInterrupt:
            raise _Interrupted(f"Interrupted; nothing was written for the engine '{name}'.") from None
        runs.append(run)
        console.print(epochs_table(run))
        console.print(summary(run), soft_wrap=True)
        answers = questions.ask(run)
        console.print("\n".join(describe(answers)), soft_wrap=True, end="\n" if answers else "", highlight=False)
        path = outputs[name]
        if path is not None:
            _write(path, run, answers)
            console.print(f"Written to {path}", soft_wrap=True)
        console.print()
    if len(runs) > 1:
        console.print(side_by_side(runs))
    if witness is not None and runs[-1].attack is not None:
        runs[-1].attack.save(witness)
        console.print(f"Strongest attack dataset written to {witness}", soft_wrap=True)
    if bounds is not None:
        runs[-1].save_bounds(bounds)
        console.print(f"Bounds of {runs[-1].engine} written to {bounds}", soft_wrap=True)


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help=f"{', '.join([*TABLES, *TIMINGS])}, or all.")],
    seeds: Annotated[int | None, typer.Option(help="Seeds 0 … n−1; default 5, quick 2.")] = None,
    engines: Annotated[str, typer.Option(help="Engines, separated by commas.")] = "interval,crown,relational,mibp",
    loss: Annotated[str, typer.Option(help="hinge (the paper's), cross-entropy or squared-hinge.")] = "hinge",
    seconds_per_step: Annotated[
        float | None, typer.Option(help="Time budget of one exact step; default 30, quick 2.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Two seeds, one rate; exact step: one seed, six epochs."),
    ] = False,
    data_path: Annotated[Path | None, typer.Option("--data", help="File of the data set npha.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder where finished runs are kept; delete it to start afresh.")] = Path(
        "reproduce-runs"
    ),
    json_path: Annotated[Path | None, typer.Option("--json", help="Write all records as JSON.")] = None,
    csv_path: Annotated[Path | None, typer.Option("--csv", help="Write all records as CSV.")] = None,
) -> None:
    """Print the paper's tables beside this tool's figures; interrupted runs go on where they stopped."""
    console = Console()
    names = [*TABLES, *TIMINGS] if what == "all" else [what]
    if what == "npha":
        names.append("npha-beyond-majority")
    for name in names:
        if name not in TABLES and name not in TIMINGS:
            raise UserError(
                f"There is no table called {name!r}; choose one of {', '.join([*TABLES, *TIMINGS, 'all'])}."
            )
    for path in (json_path, csv_path):
        if path is not None:
            _check_writable(path)
    options = Options(
        seeds=seeds or (2 if quick else 5),
        engines=tuple(name.strip() for name in engines.split(",")),
        seconds_per_step=seconds_per_step or (2.0 if quick else 30.0),
        mibp_seeds=1 if quick else 5,
        mibp_epochs=6 if quick else None,
        first_rate=quick,
        data=data_path,
        runs=runs,
    )
    unknown = sorted(set(options.engines) - set(ENGINES))
    if unknown:
        raise UserError(f"There is no engine called {unknown[0]!r}; choose among {', '.join(ENGINES)}.")
    if loss not in ("hinge", "cross-entropy", "squared-hinge"):
        raise UserError(f"The tables can be run with hinge, cross-entropy or squared-hinge, not {loss!r}.")
    tables = {name: with_loss(table, loss) for name, table in TABLES.items()}
    records: list[dict[str, Any]] = []
    for name in names:
        with console.status(name) as status:
            try:
                found = _reproduced(name, tables, options, status.update)
            except KeyboardInterrupt:
                raise _Interrupted(
                    f"Interrupted; finished runs are kept in {runs}, the same command goes on."
                ) from None
            except UserError as error:
                if what != "all" or not name.startswith("npha"):
                    raise
                console.print(f"{name} left out: {error}", soft_wrap=True)
                continue
        records += found
        if name in TABLES:
            console.print(accuracy_table(tables[name], found))
            console.print("\n".join(accuracy_notes(tables[name], found)), soft_wrap=True, markup=False, highlight=False)
            if not TABLES[name].mibp:
                console.print("- the exact step is left out here; --engines mibp runs it alone", highlight=False)
        else:
            console.print(cost_table(name, found))
        console.print()
    console.print(
        f"Settings: seeds 0–{options.seeds - 1} (exact step: {min(options.seeds, options.mibp_seeds)}), {loss}, exact step "
        f"within {options.seconds_per_step:g} s per step{' and six epochs, first learning rate of each table' if quick else ''}.",
        soft_wrap=True,
    )
    if json_path is not None:
        json_path.write_text(json.dumps(records, indent=1, allow_nan=False) + "\n")
    if csv_path is not None:
        pd.DataFrame(records).to_csv(csv_path, index=False)


def _reproduced(
    name: str, tables: dict[str, Table], options: Options, hear: Callable[[str], None]
) -> list[dict[str, Any]]:
    return TIMINGS[name](options, hear) if name in TIMINGS else run_table(tables[name], options, hear)


@app.command()
def doctor() -> None:
    """Show versions and which solvers can be used here."""
    console = Console()
    console.print(f"mibp-cert {version('mibp-cert')}, Python {sys.version.split()[0]}")
    for name in ("numpy", "scipy", "scikit-learn", "joblib", "pyscipopt", "highspy", "gurobipy", "torch"):
        try:
            console.print(f"  {name} {version(name)}")
        except PackageNotFoundError:
            console.print(f"  {name} not installed")
    for name, kind in SOLVERS.items():
        try:
            kind().check_available()
            console.print(f"solver {name}: usable")
        except MibpCertError as error:
            console.print(f"solver {name}: {error}", soft_wrap=True)


def _progress(quiet: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True, quiet=quiet), transient=True, disable=quiet)


def _callbacks(progress: Progress, engine: str) -> Callbacks:
    steps = progress.add_task(f"{engine}: training steps", total=None)
    programs = progress.add_task("programs in this step", total=None, visible=False)

    def on_program(done: int, total: int) -> None:
        progress.update(programs, completed=done, total=total, visible=True)

    def on_step(done: int, total: int) -> None:
        progress.update(steps, completed=done, total=total)

    def on_epoch(record: EpochRecord) -> None:
        progress.update(
            steps,
            description=f"{engine}: epoch {record.epoch}, mean radius {record.radius_mean:.3g}, "
            f"validation certified {percent(record.validation_certified)}",
        )

    def on_stage(name: str) -> None:
        progress.update(steps, description=f"{engine}: {name}", total=None)
        progress.update(programs, visible=False)

    return Callbacks(on_program, on_step, on_epoch, on_stage)


def _output_path(path: Path | None, engine: str, engines: int) -> Path | None:
    """`out.json` for one engine; `out-interval.json`, `out-relational.json` for several."""
    return path if path is None or engines == 1 else path.with_name(f"{path.stem}-{engine}{path.suffix}")


def _check_writable(path: Path) -> None:
    """Refuse before any work is done."""
    try:
        existed = path.exists()
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror}; choose another path.") from None


def _write(path: Path, run: CertifiedRun, answers: dict[str, Any]) -> None:
    plain = run.to_json() | ({"postconditions": answers} if answers else {})
    try:
        path.write_text(json.dumps(plain, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise UserError(f"The result could not be written to {path}: {error.strerror}.") from None


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit status 2; Ctrl-C is 130; never a traceback for either."""
    try:
        app()
    except MibpCertError as error:
        Console(stderr=True).print(f"mibp-cert: {error}", style="red", soft_wrap=True, highlight=False, markup=False)
        sys.exit(INTERRUPTED if isinstance(error, _Interrupted) else USER_MISTAKE)


if __name__ == "__main__":
    main()
