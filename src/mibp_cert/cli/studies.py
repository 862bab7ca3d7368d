"""Commands that ask of several runs: tolerance, blame and compare. All make the model that certify would make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from mibp_cert.cli.asked import Asked
from mibp_cert.cli.commands import (
    JsonPath,
    Quiet,
    Report,
    advised,
    check_writable,
    interruptible,
    new_console,
    settled,
    stored_config,
    tell_forecast,
    write_json,
    write_report,
)
from mibp_cert.errors import Diverged, UserError
from mibp_cert.report.console import Terminal

if TYPE_CHECKING:
    from mibp_cert.config import Config
    from mibp_cert.job import Job

OWN = {
    "vary": "amount",
    "share": 0.9,
    "within": None,
    "point": None,
    "start": None,
    "most": float("inf"),
    "precision": 0.05,
}
"""Flags of `tolerance` alone, and what they usually are."""
BLAMED = ("row", "% of the\nuncertainty", "cells")
"""What `blame` tells of rows."""


def tolerance(
    config: Asked,
    vary: Annotated[str, Option(help="amount (of --eps), rows, or flips.")] = "amount",
    share: Annotated[float, Option(help="Share of the test points that must be certified.")] = 0.9,
    within: Annotated[
        float | None,
        Option(
            help="Numbers: an output is certified while it is known to ± this (the clean model's error).",
            show_default=False,
        ),
    ] = None,
    point: Annotated[list[int] | None, Option(help="Also for this test point (repeatable).")] = None,
    start: Annotated[float | None, Option(help="First value tried.")] = None,
    most: Annotated[float, Option(help="Largest value tried.")] = float("inf"),
    precision: Annotated[float, Option(help="Relative precision of the answer.")] = 0.05,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """How wrong may the data be? The largest doubt that certificates survive, and the smallest that an attack used."""
    from mibp_cert.cli.advice import after_tolerance, tell
    from mibp_cert.job import job_of
    from mibp_cert.report.progress import lines
    from mibp_cert.studies import tolerance as study

    check_writable(json_path)
    console, section = new_console(quiet), config["threat"]
    _check_one_engine(config)
    usual: Config = {"amount": {"eps": 1.0}, "flips": {"kind": "nothing"}}
    named, given_start = bool(section), start
    if not named:
        section |= usual.get(vary, {})
    if start is None:
        start = 0.01 if vary == "amount" and section.get("eps") == 1.0 else 1.0
    job = job_of(config)
    tell_forecast(job, console, "Each run")
    (engine,), threat = job.engines, job.threat.to_json()
    whole = job.threat
    family = study.Family(vary, None if vary == "flips" and threat["kind"] == "nothing" else job.threat)
    asked: dict[str, Any] = {"share": share, "points": point, "start": start, "most": most, "precision": precision}
    study.check(
        job.data, family, share=share, points=point or [], within=within, start=start, most=most, precision=precision
    )
    given = job.threat if named else family(min(start, most))
    with advised(config, job):
        try:
            job = settled(replace(job, threat=given), console)
        except Diverged:  # no C is chosen for so much doubt: the one for none
            job = settled(replace(job, threat=family(0.0)), console)
    job = replace(job, threat=whole)
    asked |= {"within": within, "select": job.select, "given": given}
    with interruptible(), console.status("bisection") as status:
        said = lines(Terminal(stderr=True, quiet=quiet))

        def hear(words: str) -> None:
            status.update(f"bisection: {words}")
            said.heard("bisection", words, None)  # how many values there will be, nobody knows

        asked["hear"] = hear
        found = study.tolerance(
            job.network, job.data, family, job.training, engine, **asked, **_sweep(job, one_by_one=True)
        )
    amount = "as eps" if threat == {"kind": "linf", "eps": 1.0} else "times the amounts given"
    what = {"amount": amount, "rows": "rows", "flips": "flipped labels"}[vary]
    top = "for no value" if found.largest is None else f"up to {found.largest:.4g} {what}, and for everything smaller"
    beside = f"no attack leaves fewer (tried up to {found.attacked:.4g})"
    if not config["attack"]["enabled"]:
        beside = "no attack was tried"
    elif found.smallest is not None:
        beside = f"attacks leave fewer from {found.smallest:.4g} on"
    doubted = (
        job.threat.words() if named or vary == "flips" else "every number may be off in any row, by as much as is tried"
    )
    console.print(f"What may be wrong: {doubted}.", highlight=False)
    if found.within is not None:
        usually = "" if within else " (its mean absolute error on the validation rows; --within says how far)"
        known = f"known to lie within ± {found.within:.4g} of the clean model's{usually}"
        console.print(f"A test point is certified here if its output is {known}.", highlight=False)
    console.print(f"{100 * share:g} % of the test points are certified {top}; {beside}.")
    for p in point or []:
        between = f"certified up to {found.certified[p]:.4g}, an attack succeeds from {found.broken[p]:.4g} on"
        console.print(f"Test point {p}: {between}.")
    assert found.decided is not None
    console.print(f"{len(found.values)} runs, engine {engine}, each {found.decided.words(job.threat.words())}.")
    said_here = {**asked, "point": point, "start": given_start, "vary": vary}
    own = {name: said_here[name] for name, usual_value in OWN.items() if said_here[name] != usual_value}
    tell(console, after_tolerance(config, job, found, own))
    write_json(json_path, {**found.to_json(), "vary": vary, "threat": threat, "engine": engine})


def blame(
    config: Asked,
    point: Annotated[list[int] | None, Option(help="Only this test point (repeatable).")] = None,
    top: Annotated[int, Option(help="Rows to re-check.")] = 10,
    report: Report = None,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """Which training rows carry the uncertainty, and what re-checking them would be worth; also of a finished run directory."""
    from mibp_cert.cli.advice import after_blame, tell
    from mibp_cert.config import NETWORK, merged
    from mibp_cert.engines import engine_named
    from mibp_cert.fitted import Fitted
    from mibp_cert.job import job_of
    from mibp_cert.report.lines import Lines
    from mibp_cert.report.progress import progress_bars, show_training
    from mibp_cert.report.terminal import lines_table
    from mibp_cert.store import load_run
    from mibp_cert.studies.blame import blame as ask
    from mibp_cert.studies.blame import check_points

    if top < 1:
        raise UserError(f"--top takes how many rows to re-check, 1 or more; got {top}.")
    console, job = new_console(quiet), None
    engine = _check_one_engine(config)
    if config["model"]["kind"] == NETWORK and not engine_named(engine).keeps_symbols:
        raise UserError("Blame reads the relational bound; leave out --engine.")
    check_writable(json_path, report)
    source = config["data"]["source"]
    if source is not None and (Path(source) / "run.json").exists():
        if config != merged({}, {"data": {"source": source}}):
            raise UserError(f"The run in {source} has its own settings: leave out other flags, and --config.")
        run, effective, choice = load_run(source), stored_config(Path(source)), None
    else:
        job = job_of(config)
        tell_forecast(job, console)
        (engine,) = job.engines
        check_points(point or [], len(job.data.tested))
        with advised(config, job):
            job = settled(job, console)
        with advised(config, job), interruptible(), progress_bars(quiet) as progress:
            hear = show_training(progress, engine, fit=isinstance(job.training, Fitted))
            run, effective, choice = job.run(engine, hear), job.config, job.choice
    with console.status("second run"):
        found = ask(run, point, top=top)
    if len(found.rows):
        rows = found.rows.head(top)[["row", "effect", "cells"]].itertuples(index=False)
        shown = [(str(row), f"{effect:.2f}", cells) for row, effect, cells in rows]
        console.print(lines_table("", Lines(BLAMED, shown)), soft_wrap=False)
        shares = ", ".join(f"{name} {effect:.0f} %" for name, effect in found.columns.head(top).items())
        console.print(f"By column: {shares}.", highlight=False)
    console.print(found.sentence, highlight=False)
    tell(console, after_blame(config, job, found, top))
    columns = {} if run.fitted is None else {"columns": found.columns.to_dict()}
    write_json(json_path, {**run.to_json(), "blame": {**found.to_json(), **columns}})
    if report is not None:
        write_report(console, report, run, effective, blame=found, choice=choice)


def compare(
    config: Asked,
    values: Annotated[
        str | None, Option("--eps-values", help="Several amounts side by side, such as 0.01,0.02.")
    ] = None,
    csv_path: Annotated[Path | None, Option("--csv", help="Write the table as CSV.")] = None,
    quiet: Quiet = False,
) -> None:
    """Engines (--engine a,b) or amounts (--eps-values) side by side on the same data and seed."""
    from mibp_cert.cli.advice import after_compare, tell
    from mibp_cert.engines import COMPARED, DEFAULT
    from mibp_cert.fitted import Fitted
    from mibp_cert.job import job_of
    from mibp_cert.report.progress import progress_bars, show_sweep
    from mibp_cert.studies.compare import compare as ask
    from mibp_cert.studies.compare import in_words
    from mibp_cert.threats.short import for_columns, threat_of

    check_writable(csv_path)
    console, job = new_console(quiet), job_of(config)
    tell_forecast(job, console, "This" if values is None else "Each amount")
    threats, section = {job.threat.words(): job.threat}, config["threat"]
    if values is not None:
        if "kind" in section:
            raise UserError(
                "Amounts can be varied for a threat given by --eps; this one is written out in the configuration."
            )
        amounts = [for_columns(section.get("eps"), value.strip()) for value in values.split(",")]
        threats = {f"eps {eps}": threat_of({**section, "eps": eps}, job.data.train) for eps in amounts}
    with advised(config, job):  # as steps: for the first one
        job = replace(settled(replace(job, threat=next(iter(threats.values()))), console), threat=job.threat)
    fitted = isinstance(job.training, Fitted)
    engines = job.engines if config["run"]["engine"] != DEFAULT or values or fitted else COMPARED
    with interruptible(), progress_bars(quiet) as progress:
        hear = show_sweep(progress, "comparing")
        asked = {"select": job.select, "hear": hear, **_sweep(job)}
        found = ask(job.network, job.data, threats, job.training, engines, **asked)
    if len(threats) == 1:
        console.print(f"What may be wrong: {next(iter(threats))}.", highlight=False)
    table, units = in_words(found, job.data)
    console.print(f"Each is {found.attrs['made']}. {units}", highlight=False)
    shown = table.reset_index() if len(threats) > 1 else table.reset_index("threat", drop=True).reset_index()
    console.print(shown.to_string(index=False, float_format=lambda v: f"{v:.4g}"))
    tell(console, after_compare(config, job, found))
    if csv_path is not None:
        found.to_csv(csv_path)


def _sweep(job: Job, *, one_by_one: bool = False) -> dict[str, Any]:
    """How each run of a study is made, and where. Fitted models that are made `one_by_one` have their bounds spread, others are
    spread themselves."""
    from mibp_cert.fitted import Fitted

    solver = job.options["solver"]
    if isinstance(job.training, Fitted) and one_by_one:
        return {**job.options, "jobs": 1}
    place = {"parallel": solver.parallel, "jobs": solver.jobs or 1}
    alone = {"solver": replace(solver, jobs=1, parallel="local")} if isinstance(job.training, Fitted) else {}
    return {**job.options, **alone, **place}


def _check_one_engine(config: Config) -> str:
    name = str(config["run"]["engine"])
    if "," in name:
        raise UserError("This command takes one engine; compare takes several.")
    return name
