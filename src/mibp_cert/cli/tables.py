"""`mibp-cert reproduce`: the paper's tables beside this tool's figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Console

from mibp_cert.cli.commands import Interrupted, check_writable
from mibp_cert.engines import ENGINES
from mibp_cert.errors import UserError
from mibp_cert.report.terminal import accuracy_notes, accuracy_table, cost_table
from mibp_cert.studies.reproduce import TABLES, TIMINGS, Options, Table, run_table, with_loss


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
    parallel: Annotated[str, typer.Option(help="Where runs go: local, tcp://host:port (Dask), or ray.")] = "local",
    jobs: Annotated[int, typer.Option(help="Runs at once on this machine.")] = 1,
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
            check_writable(path)
    options = Options(
        seeds=seeds or (2 if quick else 5),
        engines=tuple(name.strip() for name in engines.split(",")),
        seconds_per_step=seconds_per_step or (2.0 if quick else 30.0),
        mibp_seeds=1 if quick else 5,
        mibp_epochs=6 if quick else None,
        first_rate=quick,
        data=data_path,
        runs=runs,
        parallel=parallel,
        jobs=jobs,
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
                raise Interrupted(f"Interrupted; finished runs are kept in {runs}, the same command goes on.") from None
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
