"""Commands on a user's data: certify, resume, report, verify, and the questions tolerance, blame and compare; what they print and
write, and what is said after Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Argument, Exit, Option

from mibp_cert.errors import MibpCertError, UserError

if TYPE_CHECKING:
    from mibp_cert.certify import CertifiedRun
    from mibp_cert.config import Config, Job
    from mibp_cert.questions.properties import Questions
    from mibp_cert.studies.choose import Choice


def _file(help_: str, *names: str) -> Any:
    return Option(*names, help=help_, rich_help_panel="Output")


Quiet = Annotated[bool, _file("Print nothing but errors.", "--quiet", "-q")]
JsonPath = Annotated[Path | None, _file("Write the result as JSON.", "--json")]
Report = Annotated[Path | None, _file("Write one HTML page.", "--report")]
RunDir = Annotated[Path, Argument(help="A run directory.")]


def certify(
    config: Config,
    run_dir: Annotated[Path | None, _file("Folder that keeps the run step by step.", "--run")] = None,
    resume: Annotated[bool, _file("Go on with the run in that folder.", "--resume")] = False,
    report: Report = None,
    json_path: JsonPath = None,
    bounds: Annotated[Path | None, _file("Save bounds and clean weights (.npz).")] = None,
    witness: Annotated[Path | None, _file("Save the strongest attack dataset (.npz).")] = None,
    quiet: Quiet = False,
) -> None:
    """Train with proven bounds on every parameter and certify the test points."""
    from mibp_cert.certify.columns import column_records
    from mibp_cert.config import job_of, plain_config
    from mibp_cert.fitted import Fitted
    from mibp_cert.report.progress import progress_bars, show_training
    from mibp_cert.report.terminal import columns_text, side_by_side

    if resume and run_dir is None:
        raise UserError("--resume needs the folder of the run: --run DIR.")
    console, job, runs = new_console(quiet), job_of(config), []
    files = {name: [_beside(path, name, job) for path in (json_path, report)] for name in job.engines}
    check_writable(*(path for pair in files.values() for path in pair), witness, bounds)
    if job.data.origin is not None:
        console.print("How the columns were read, and what may be wrong with them in the training rows:")
        console.print(columns_text(column_records(job.data, job.threat)), highlight=False)
    for note in job.notes:
        console.print(note, highlight=False)
    tell_forecast(job, console)
    job = settled(job, console)
    for name in job.engines:
        folder = _beside(run_dir, name, job)
        with interruptible(f"nothing was written for the engine '{name}'.", folder), progress_bars(quiet) as progress:
            kept = {} if folder is None else {"run_dir": folder, "resume": resume}
            run = job.run(name, show_training(progress, name, fit=isinstance(job.training, Fitted)), **kept)
        if folder is not None:
            write_json(folder / "config.json", plain_config(job.config))
        runs.append(run)
        show(console, run, job.config, files[name], job.questions, job.choice)
        console.print()
    if len(runs) > 1:
        console.print(side_by_side(runs), soft_wrap=False)
    if witness is not None and run.attack is not None:
        run.attack.save(witness)
        console.print(f"Strongest attack dataset written to {witness}")
    if bounds is not None and not run.reached:
        gone = f"they diverged at step {run.diverged}, and the trained models may lie outside"
        console.print(f"Bounds of {run.engine} are not saved: {gone}.")
    elif bounds is not None:
        run.save_bounds(bounds)
        console.print(f"Bounds of {run.engine} written to {bounds}")


def resume(run_dir: RunDir, report: Report = None, json_path: JsonPath = None, quiet: Quiet = False) -> None:
    """Go on with an interrupted run where it stopped; the bounds come out the same to the last bit."""
    from mibp_cert.report.progress import progress_bars, show_training
    from mibp_cert.store import resume_run

    with interruptible(folder=run_dir), progress_bars(quiet) as progress:
        run = resume_run(run_dir, callbacks=show_training(progress, "resumed"))
    show(new_console(quiet), run, stored_config(run_dir), (json_path, report))


def report(
    run_dir: RunDir,
    out: Annotated[Path | None, Argument(help="HTML file; default report.html in the run directory.")] = None,
    quiet: Quiet = False,
) -> None:
    """Write the report of a finished run as one HTML page."""
    from mibp_cert.store import load_run

    path = out or run_dir / "report.html"
    run = load_run(run_dir)
    check_writable(path)
    write_report(new_console(quiet), path, run, stored_config(run_dir))


def verify(
    run_dir: RunDir,
    points: Annotated[int, Option(help="Random points per step for the second opinion.")] = 4,
    parameters: Annotated[int, Option(help="Parameters pushed both ways per step.")] = 4,
    recompute: Annotated[bool, Option(help="Take every step again and compare bits.")] = True,
    seed: Annotated[int, Option(help="Seed of the fresh datasets.")] = 1,
) -> None:
    """Check a stored run again: hashes, every step by a second arithmetic, fresh trainings. Status 1 if anything is wrong, 4 if
    something could not be checked."""
    from mibp_cert.store import verify as audit

    console = Console()
    with console.status("verifying") as status:
        found = audit.verify(run_dir, audit.AuditSettings(points, parameters, recompute, seed=seed), hear=status.update)
    for item in found:
        word, style = {True: ("ok", "green"), False: ("WRONG", "bold red"), None: ("not checked", "yellow")}[item.holds]
        console.print(f"[{style}]{word:>11}[/]  {item.name}: ", end="")
        console.print(item.words, soft_wrap=True, highlight=False, markup=False)
    for code, outcome in ((1, False), (4, None)):
        if any(item.holds is outcome for item in found):
            raise Exit(code)


def tolerance(
    config: Config,
    vary: Annotated[str, Option(help="amount (of --eps), rows, or flips.")] = "amount",
    share: Annotated[float, Option(help="Share of the test points that must be certified.")] = 0.9,
    point: Annotated[list[int] | None, Option(help="Also for this test point (repeatable).")] = None,
    start: Annotated[float | None, Option(help="First value tried.")] = None,
    most: Annotated[float, Option(help="Largest value tried.")] = float("inf"),
    precision: Annotated[float, Option(help="Relative precision of the answer.")] = 0.05,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """How wrong may the data be? The largest doubt that certificates survive, and the smallest that an attack used."""
    from mibp_cert.config import job_of
    from mibp_cert.report.progress import lines
    from mibp_cert.studies import tolerance as study

    check_writable(json_path)
    console, section = new_console(quiet), config["threat"]
    _check_one_engine(config)
    usual: Config = {"amount": {"eps": 1.0}, "flips": {"kind": "nothing"}}
    if not section:
        section |= usual.get(vary, {})
    if start is None:
        start = 0.01 if vary == "amount" and section.get("eps") == 1.0 else 1.0
    job = settled(job_of(config), console)
    (engine,), threat = job.engines, job.threat.to_json()
    family = study.Family(vary, None if vary == "flips" and threat["kind"] == "nothing" else job.threat)
    asked: dict[str, Any] = {"share": share, "points": point, "start": start, "most": most, "precision": precision}
    with interruptible(), console.status("bisection") as status:
        said = lines(Console(stderr=True, quiet=quiet))

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
    beside = "no attack leaves fewer" if found.smallest is None else f"attacks leave fewer from {found.smallest:.4g} on"
    console.print(f"What may be wrong: {job.threat.words()}.", highlight=False)
    console.print(f"{100 * share:g} % of the test points are certified {top}; {beside}.")
    for p in point or []:
        between = f"certified up to {found.certified[p]:.4g}, an attack succeeds from {found.broken[p]:.4g} on"
        console.print(f"Test point {p}: {between}.")
    console.print(f"{len(found.values)} runs, engine {engine}, each {_made(job)}.")
    write_json(json_path, {**found.to_json(), "vary": vary, "threat": threat, "engine": engine})


def blame(
    config: Config,
    point: Annotated[list[int] | None, Option(help="Only this test point (repeatable).")] = None,
    top: Annotated[int, Option(help="Rows to re-check.")] = 10,
    report: Report = None,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """Which training rows carry the uncertainty, and what re-checking them would be worth; also of a finished run directory."""
    from mibp_cert.config import NETWORK, job_of, merged
    from mibp_cert.engines import engine_named
    from mibp_cert.fitted import Fitted
    from mibp_cert.report.progress import progress_bars, show_training
    from mibp_cert.store import load_run
    from mibp_cert.studies.blame import blame as ask

    console = new_console(quiet)
    engine = _check_one_engine(config)
    if config["model"]["kind"] == NETWORK and not engine_named(engine).keeps_symbols:
        raise UserError("Blame reads the relational bound; leave out --engine.")
    check_writable(json_path, report)
    source = config["data"]["source"]
    if source is not None and (Path(source) / "run.json").exists():
        if config != merged({}, {"data": {"source": source}}):
            raise UserError(f"The run in {source} has its own settings: leave out other flags, and --config.")
        run, effective = load_run(source), stored_config(Path(source))
    else:
        job = settled(job_of(config), console)
        (engine,) = job.engines
        with interruptible(), progress_bars(quiet) as progress:
            hear = show_training(progress, engine, fit=isinstance(job.training, Fitted))
            run, effective = job.run(engine, hear), job.config
    with console.status("second run"):
        found = ask(run, point, top=top)
    if len(found.rows):
        shown = found.rows.head(top)[["row", "effect", "cells"]].rename(columns={"effect": "% of the uncertainty"})
        console.print(shown.to_string(index=False, float_format=lambda v: f"{v:.2f}"), soft_wrap=False)
        shares = ", ".join(f"{name} {effect:.0f} %" for name, effect in found.columns.head(top).items())
        console.print(f"By column: {shares}.", highlight=False)
    console.print(found.sentence, highlight=False)
    columns = {} if run.fitted is None else {"columns": found.columns.to_dict()}
    write_json(json_path, {**run.to_json(), "blame": {**found.to_json(), **columns}})
    if report is not None:
        write_report(console, report, run, effective, blame=found)


def compare(
    config: Config,
    values: Annotated[
        str | None, Option("--eps-values", help="Several amounts side by side, such as 0.01,0.02.")
    ] = None,
    csv_path: Annotated[Path | None, Option("--csv", help="Write the table as CSV.")] = None,
    quiet: Quiet = False,
) -> None:
    """Engines (--engine a,b) or amounts (--eps-values) side by side on the same data and seed."""
    from mibp_cert.config import job_of, threat_of
    from mibp_cert.engines import COMPARED, DEFAULT
    from mibp_cert.fitted import Fitted
    from mibp_cert.report.progress import progress_bars, show_sweep
    from mibp_cert.studies.compare import compare as ask

    check_writable(csv_path)
    console = new_console(quiet)
    job = settled(job_of(config), console)
    threats, section = {job.threat.words(): job.threat}, config["threat"]
    if values is not None:
        if "kind" in section:
            raise UserError(
                "Amounts can be varied for a threat given by --eps; this one is written out in the configuration."
            )
        amounts = [value.strip() for value in values.split(",")]
        threats = {f"eps {eps}": threat_of({**section, "eps": eps}, job.data.train) for eps in amounts}
    fitted = isinstance(job.training, Fitted)
    engines = job.engines if config["run"]["engine"] != DEFAULT or values or fitted else COMPARED
    with interruptible(), progress_bars(quiet) as progress:
        hear = show_sweep(progress, "comparing")
        found = ask(job.network, job.data, threats, job.training, engines, hear=hear, **_sweep(job))
    if len(threats) == 1:
        console.print(f"What may be wrong: {next(iter(threats))}.", highlight=False)
    console.print(f"Each is {_made(job)}.", highlight=False)
    shown = found.reset_index() if len(threats) > 1 else found.reset_index("threat", drop=True).reset_index()
    console.print(shown.to_string(index=False, float_format=lambda v: f"{v:.4g}"))
    if csv_path is not None:
        found.to_csv(csv_path)


def _made(job: Job) -> str:
    """How every model of a study is made, in words."""
    from mibp_cert.fitted import Fitted

    training = job.training
    return (
        "fitted to its minimum" if isinstance(training, Fitted) else f"trained for all of its {training.epochs} epochs"
    )


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


def _beside(path: Path | None, engine: str, job: Job) -> Path | None:
    """`out.json` for one engine; `out-interval.json`, `out-relational.json` for several."""
    return path if path is None or len(job.engines) == 1 else path.with_name(f"{path.stem}-{engine}{path.suffix}")


# What is printed and written -------------------------------------------------------------------------------------------


class Interrupted(MibpCertError):
    """Ctrl-C; the workers have been ended."""


@contextmanager
def interruptible(kept: str = "nothing was written.", folder: Path | None = None) -> Iterator[None]:
    """Turn Ctrl-C into a sentence about what is kept: the run in `folder`, if there is one."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is not None:
            kept = f"what was done is kept: go on with mibp-cert resume {folder}"
        raise Interrupted(f"Interrupted; {kept}") from None


def new_console(quiet: bool = False) -> Console:
    """Prints sentences as they are, one to a line; a table is printed with `soft_wrap=False`."""
    return Console(quiet=quiet, soft_wrap=True, markup=False)


def check_writable(*paths: Path | None) -> None:
    """Refuse before any work is done."""
    for path in filter(None, paths):
        try:
            existed = path.exists()
            path.open("a").close()
            if not existed:
                path.unlink()
        except OSError as error:
            raise UserError(f"Cannot write {path}: {error.strerror}; choose another path.") from None


def write_json(path: Path | None, plain: Any) -> None:
    """Write plain values, if there is a place for them."""
    if path is not None:
        _write(path, json.dumps(plain, indent=1, allow_nan=False) + "\n")


def _write(path: Path, text: str) -> None:
    """Put a file into place as a whole: readers see the old one or the new one."""
    draft = path.with_name(f".{path.name}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise UserError(f"The result could not be written to {path}: {error.strerror}.") from None


def stored_config(folder: Path) -> Any:
    """The configuration that a run was made with, if it was kept with the run."""
    path = folder / "config.json"
    return json.loads(path.read_text()) if path.exists() else None


def tell_forecast(job: Job, console: Console) -> None:
    """What the work will take, where that is more than a few seconds or a gigabyte."""
    from mibp_cert.certify.forecast import free_memory, gib
    from mibp_cert.report.progress import duration

    told = job.forecast()
    if told.notable:
        console.print(
            f"This will take about {duration(told.seconds)} and {gib(told.bytes)} of memory ({gib(free_memory())} are free).",
            highlight=False,
        )


def settled(job: Job, console: Console) -> Job:
    """The job with its `C` chosen, where it was left open; the frontier is printed."""
    from mibp_cert.report.progress import lines
    from mibp_cert.report.terminal import choice_table

    if not job.open:
        return job
    said = lines(Console(stderr=True, quiet=console.quiet))
    with interruptible(), Console(stderr=True, quiet=console.quiet).status("choosing C") as status:

        def hear(c: float) -> None:
            status.update(f"choosing C on validation rows: {c:g}")
            said.heard("choosing C", f"{c:g}", None)

        job = job.settled(hear)
    assert job.choice is not None
    console.print(choice_table(job.choice), soft_wrap=False)
    return job


def show(
    console: Console,
    run: CertifiedRun,
    config: Any,
    files: Sequence[Path | None],
    questions: Questions | None = None,
    choice: Choice | None = None,
) -> None:
    """Print what came out, and write the result and the report into these two files where they are wanted."""
    from mibp_cert.certify.columns import column_records
    from mibp_cert.config import plain_config
    from mibp_cert.questions.properties import describe
    from mibp_cert.report.terminal import epochs_table, summary, worth_table

    json_path, page = files
    if run.fitted is None:
        console.print(epochs_table(run), soft_wrap=False)
    table = worth_table(run)
    if table is not None:
        console.print(table, soft_wrap=False)
    console.print(summary(run))
    answers = {} if questions is None else questions.ask(run)
    sentences = describe(answers) if answers else []
    for sentence in sentences:
        console.print(sentence, highlight=False)
    if json_path is not None:
        columns = [record.to_json() for record in column_records(run.data, run.request.members)]
        plain = run.to_json() | {"columns": columns} | ({"postconditions": answers} if answers else {})
        plain |= {} if choice is None else {"choice": choice.to_json()}
        write_json(json_path, plain | ({} if config is None else {"configuration": plain_config(config)}))
        console.print(f"Written to {json_path}")
    if page is not None:
        write_report(console, page, run, config, sentences)


def write_report(
    console: Console, path: Path, run: CertifiedRun, config: Any, answers: Sequence[str] = (), blame: Any = None
) -> None:
    """The HTML page, with blame where the engine can say it."""
    from mibp_cert.report.html import html_report
    from mibp_cert.studies.blame import blame as ask

    some_open = run.test is not None and run.reached and not run.test.certified.all()
    can = run.request.made.keeps_symbols or run.fitted is not None
    if blame is None and can and some_open:
        with Console(stderr=True, quiet=console.quiet).status("which rows carry the uncertainty"):
            blame = ask(run)
    text = html_report(run, words=run.threat.words(), blame=blame, answers=answers, configuration=config)
    _write(path, text)
    console.print(f"Report written to {path}")
