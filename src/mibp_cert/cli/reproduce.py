"""`mibp-cert reproduce`: the paper's tables beside this tool's figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from mibp_cert.cli.commands import check_writable, interruptible, new_console, write_json
from mibp_cert.cli.names import listed
from mibp_cert.errors import UserError

if TYPE_CHECKING:
    from mibp_cert.studies.reproduce import Options

RUNS = Path(listed("studies.reproduce:Options.runs"))
LOSSES = ("hinge", "cross-entropy", "squared-hinge")


def reproduce(
    what: Annotated[
        str, Argument(help=f"{listed('studies.reproduce:TABLES')}, {listed('studies.reproduce:TIMINGS')}, or all.")
    ],
    seeds: Annotated[int | None, Option(help="Seeds 0 … n−1; default 5, quick 2.")] = None,
    engines: Annotated[
        str | None,
        Option(
            help=f"Engines, separated by commas ({listed('studies.reproduce:Options.engines', ',')}; with --model: none)."
        ),
    ] = None,
    model: Annotated[
        str,
        Option(
            help=f"{listed('config:NETWORK')} (the paper's), or fitted to its minimum: "
            f"{listed('studies.reproduce:FIT_MODELS')}."
        ),
    ] = listed("config:NETWORK"),
    features: Annotated[
        int | None, Option(help="Random features of a second row of --model (30; 0: no such row).")
    ] = None,
    loss: Annotated[str, Option(help="hinge (the paper's), cross-entropy or squared-hinge.")] = "hinge",
    seconds_per_step: Annotated[
        float | None, Option(help="Time budget of one exact step; default 30, quick 2.")
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Two seeds, one rate; exact step: one seed, six epochs.")] = False,
    data_path: Annotated[Path | None, Option("--data", help="File of the data set npha.")] = None,
    runs: Annotated[Path, Option(help="Folder where finished runs are kept; delete it to start afresh.")] = RUNS,
    parallel: Annotated[str, Option(help="Where runs go: local, tcp://host:port (Dask), or ray.")] = "local",
    jobs: Annotated[int, Option(help="Runs at once on this machine.")] = 1,
    json_path: Annotated[Path | None, Option("--json", help="Write all records as JSON.")] = None,
    csv_path: Annotated[Path | None, Option("--csv", help="Write all records as CSV.")] = None,
) -> None:
    """Print the paper's tables beside this tool's figures; interrupted runs go on where they stopped."""
    from mibp_cert.config import NETWORK
    from mibp_cert.engines import engine_named
    from mibp_cert.studies.reproduce import Options

    names, chosen = _names(what), _engines(engines, model, features)
    check_writable(json_path, csv_path)
    for name in chosen:
        engine_named(name)
    if loss not in LOSSES:
        raise UserError(f"The tables can be run with hinge, cross-entropy or squared-hinge, not {loss!r}.")
    seeds, seconds = seeds or (2 if quick else 5), seconds_per_step or (2.0 if quick else 30.0)
    fitted = None if model == NETWORK else model
    options = Options(
        seeds, chosen, seconds, quick, data_path, runs, parallel, jobs, fitted, 30 if features is None else features
    )
    records: list[dict[str, Any]] = []
    for name in names:
        try:
            records += _print_table(name, loss, options)
        except UserError as error:
            if what != "all" or not name.startswith("npha"):
                raise
            new_console().print(f"{name} left out: {error}")
    short = " and six epochs, first learning rate of each table" if quick else ""
    new_console().print(
        f"Settings: seeds 0–{seeds - 1} (exact step: {options.exact_seeds}), {loss}, exact step "
        f"within {seconds:g} s per step{short}."
    )
    write_json(json_path, records)
    if csv_path is not None:
        import pandas as pd

        pd.DataFrame(records).to_csv(csv_path, index=False)


def _engines(engines: str | None, model: str, features: int | None) -> tuple[str, ...]:
    """The engines asked for: of networks that are trained, beside a fitted model only if they are named."""
    from mibp_cert.config import NETWORK
    from mibp_cert.studies.reproduce import FIT_MODELS, Options

    if model != NETWORK and model not in FIT_MODELS:
        raise UserError(f"The tables can be fitted with {', '.join(FIT_MODELS)}, not {model!r}.")
    if features is not None and (model == NETWORK or features < 0):
        raise UserError("--features is a number ≥ 0 for models that are fitted to their minimum: --model logistic.")
    if engines is None:
        return Options.engines if model == NETWORK else ()
    return tuple(name.strip() for name in engines.split(","))


def _names(what: str) -> list[str]:
    """The tables asked for; the survey's has a second part."""
    from mibp_cert.studies.reproduce import TABLES, TIMINGS

    known = [*TABLES, *TIMINGS]
    if what not in (*known, "all"):
        raise UserError(f"There is no table called {what!r}; choose one of {', '.join([*known, 'all'])}.")
    return known if what == "all" else [what, "npha-beyond-majority"] if what == "npha" else [what]


def _print_table(name: str, loss: str, options: Options) -> list[dict[str, Any]]:
    """Run one table of the paper, print it, and return its records."""
    from mibp_cert.report.paper import accuracy_notes, accuracy_table, cost_table
    from mibp_cert.studies.reproduce import TABLES, fit_notes, fits_of, run_table, run_timing, with_loss

    console, table = new_console(), with_loss(TABLES[name], loss) if name in TABLES else None
    kept = f"finished runs are kept in {options.runs}, the same command goes on."
    with console.status(name) as status, interruptible(kept):
        found = run_timing(name, options, status.update) if table is None else run_table(table, options, status.update)
    if table is None:
        console.print(cost_table(name, found), soft_wrap=False)
    else:
        console.print(accuracy_table(table, found), soft_wrap=False)
        said = fit_notes(fits_of(options.model, options.features), quick=options.quick)
        notes = [*(accuracy_notes(table, found) if options.engines else []), *(f"- {note}" for note in said)]
        console.print("\n".join(notes), highlight=False)
    console.print()
    return found
