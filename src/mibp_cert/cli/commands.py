"""Commands on a user's data: certify, resume, report, verify, and the questions tolerance, blame and compare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mibp_cert.certify import CertifiedRun
from mibp_cert.config import Config, Job, job_of, plain_config, with_eps
from mibp_cert.errors import MibpCertError, UserError
from mibp_cert.questions.ask import describe
from mibp_cert.report.progress import progress_bars, show_training
from mibp_cert.report.terminal import epochs_table, side_by_side, summary
from mibp_cert.store import load_run, resume_run
from mibp_cert.store.archive import write_safely
from mibp_cert.threats import in_words

OUTPUT = "Output"
ASKED = "Questions beyond the class"
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=OUTPUT)]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.", rich_help_panel=OUTPUT)]
Report = Annotated[Path | None, typer.Option("--report", help="Write one HTML page.", rich_help_panel=OUTPUT)]
RunDir = Annotated[Path, typer.Argument(help="A run directory.")]


class Interrupted(MibpCertError):
    """Ctrl-C; the workers have been ended."""


def certify(
    config: Config,
    margin: Annotated[
        float | None, typer.Option(help="Which classes lead by at least this much?", rich_help_panel=ASKED)
    ] = None,
    protected: Annotated[
        list[str] | None,
        typer.Option(help="Is the class the same whatever this column is? (repeatable)", rich_help_panel=ASKED),
    ] = None,
    rising: Annotated[
        list[str] | None,
        typer.Option(
            help="Does the last class's lead (or the output) only rise with this column?", rich_help_panel=ASKED
        ),
    ] = None,
    falling: Annotated[
        list[str] | None, typer.Option(help="Does it only fall with this column? (repeatable)", rich_help_panel=ASKED)
    ] = None,
    collective: Annotated[
        bool, typer.Option("--collective", help="How many predictions can flip at once?", rich_help_panel=ASKED)
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option("--run", help="Folder that keeps the run step by step.", rich_help_panel=OUTPUT)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in that folder.", rich_help_panel=OUTPUT)
    ] = False,
    report: Report = None,
    json_path: JsonPath = None,
    bounds: Annotated[
        Path | None, typer.Option(help="Save bounds and clean weights (.npz).", rich_help_panel=OUTPUT)
    ] = None,
    witness: Annotated[
        Path | None, typer.Option(help="Save the strongest attack dataset (.npz).", rich_help_panel=OUTPUT)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train with proven bounds on every parameter and certify the test points."""
    given = {"margin": margin, "protected": protected, "rising": rising, "falling": falling}
    config["questions"] |= {name: value for name, value in given.items() if value is not None}
    config["questions"]["collective"] |= collective
    if resume and run_dir is None:
        raise UserError("--resume needs the folder of the run: --run DIR.")
    console = Console(quiet=quiet)
    job = job_of(config)
    outputs = {name: [_beside(path, name, job) for path in (json_path, report)] for name in job.engines}
    for path in [*(p for pair in outputs.values() for p in pair), witness, bounds]:
        if path is not None:
            check_writable(path)
    for note in job.notes:
        console.print(note, soft_wrap=True, highlight=False, markup=False)
    runs = []
    for name in job.engines:
        folder = _beside(run_dir, name, job)
        with _interruptible(f"nothing was written for the engine '{name}'.", folder), progress_bars(quiet) as progress:
            run = job.run(name, show_training(progress, name), folder, resume)
        if folder is not None:
            write_safely(folder / "config.json", _json(plain_config(job.config)))
        runs.append(run)
        answers = job.questions.ask(run)
        _show(console, run, describe(answers))
        plain, page = outputs[name]
        _write(plain, run, answers, job.config, console)
        if page is not None:
            write_report(page, run, describe(answers), job.config, console, quiet)
        console.print()
    if len(runs) > 1:
        console.print(side_by_side(runs))
    if witness is not None and runs[-1].attack is not None:
        runs[-1].attack.save(witness)
        console.print(f"Strongest attack dataset written to {witness}", soft_wrap=True)
    if bounds is not None and not runs[-1].reached:
        gone = f"they diverged at step {runs[-1].diverged}, and the trained models may lie outside"
        console.print(f"Bounds of {runs[-1].engine} are not saved: {gone}.", soft_wrap=True)
    elif bounds is not None:
        runs[-1].save_bounds(bounds)
        console.print(f"Bounds of {runs[-1].engine} written to {bounds}", soft_wrap=True)


def resume(run_dir: RunDir, report: Report = None, json_path: JsonPath = None, quiet: Quiet = False) -> None:
    """Go on with an interrupted run where it stopped; the bounds come out the same to the last bit."""
    console = Console(quiet=quiet)
    with _interruptible("", run_dir), progress_bars(quiet) as progress:
        run = resume_run(run_dir, callbacks=show_training(progress, "resumed"))
    _show(console, run, [])
    config = _stored_config(run_dir)
    _write(json_path, run, {}, config, console)
    if report is not None:
        write_report(report, run, [], config, console, quiet)


def report(
    run_dir: RunDir,
    out: Annotated[Path | None, typer.Argument(help="HTML file; default report.html in the run directory.")] = None,
    quiet: Quiet = False,
) -> None:
    """Write the report of a finished run as one HTML page."""
    console = Console(quiet=quiet)
    path = out or run_dir / "report.html"
    run = load_run(run_dir)
    check_writable(path)
    write_report(path, run, [], _stored_config(run_dir), console, quiet)


def verify(
    run_dir: RunDir,
    points: Annotated[int, typer.Option(help="Random points per step for the second opinion.")] = 4,
    parameters: Annotated[int, typer.Option(help="Parameters pushed both ways per step.")] = 4,
    recompute: Annotated[bool, typer.Option(help="Take every step again and compare bits.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the fresh datasets.")] = 1,
) -> None:
    """Check a stored run again: hashes, every step by a second arithmetic, fresh trainings. Status 1 if anything is wrong, 4 if
    something could not be checked."""
    from mibp_cert.store.verify import AuditSettings
    from mibp_cert.store.verify import verify as check

    console = Console()
    with console.status("verifying") as status:
        found = check(run_dir, AuditSettings(points, parameters, recompute, seed=seed), hear=status.update)
    for item in found:
        word, style = {True: ("ok", "green"), False: ("WRONG", "bold red"), None: ("not checked", "yellow")}[item.holds]
        console.print(f"[{style}]{word:>11}[/]  {item.name}: ", end="")
        console.print(item.words, soft_wrap=True, highlight=False, markup=False)
    if any(item.holds is False for item in found):
        raise typer.Exit(1)
    if any(item.holds is None for item in found):
        raise typer.Exit(4)


def tolerance(
    config: Config,
    vary: Annotated[str, typer.Option(help="amount (of --eps), rows, or flips.")] = "amount",
    share: Annotated[float, typer.Option(help="Share of the test points that must be certified.")] = 0.9,
    point: Annotated[list[int] | None, typer.Option(help="Also for this test point (repeatable).")] = None,
    start: Annotated[float | None, typer.Option(help="First value tried.")] = None,
    most: Annotated[float, typer.Option(help="Largest value tried.")] = float("inf"),
    precision: Annotated[float, typer.Option(help="Relative precision of the answer.")] = 0.05,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """How wrong may the data be? The largest doubt that certificates survive, and the smallest that an attack used."""
    from mibp_cert.studies.tolerance import Family
    from mibp_cert.studies.tolerance import tolerance as search

    console, engine, easy = Console(quiet=quiet), _one_engine(config), config["threat"]
    if vary == "amount" and not easy:
        easy["eps"] = 1.0
    if vary == "flips" and not easy:
        easy["kind"] = "nothing"
    job = job_of(config)
    base = None if vary == "flips" and job.threat.to_json()["kind"] == "nothing" else job.threat
    first = start if start is not None else (1.0 if vary != "amount" else 0.01 if easy.get("eps") == 1.0 else 1.0)
    with _interruptible("", None), console.status("bisection") as status:
        found = search(
            job.network,
            job.data,
            Family(vary, base),
            job.training,
            engine,
            share=share,
            points=point,
            start=first,
            most=most,
            precision=precision,
            parallel=config["solver"]["parallel"],
            jobs=config["solver"]["jobs"] or 1,
            hear=lambda words: status.update(f"bisection: {words}"),
            **job.options,
        )
    plain = {"amount": "times the amounts given" if job.threat.to_json() != {"kind": "linf", "eps": 1.0} else "as eps"}
    what = {**plain, "rows": "rows", "flips": "flipped labels"}[vary]
    top = "for no value" if found.largest is None else f"up to {found.largest:.4g} {what}, and for everything smaller"
    beside = "no attack leaves fewer" if found.smallest is None else f"attacks leave fewer from {found.smallest:.4g} on"
    console.print(f"What may be wrong: {in_words(job.threat)}.", soft_wrap=True, highlight=False, markup=False)
    console.print(f"{100 * share:g} % of the test points are certified {top}; {beside}.", soft_wrap=True)
    for p in point or []:
        console.print(
            f"Test point {p}: certified up to {found.certified[p]:.4g}, an attack succeeds from {found.broken[p]:.4g} on."
        )
    console.print(
        f"{len(found.values)} runs, engine {engine}, each trained for all of its {job.training.epochs} epochs."
    )
    if json_path is not None:
        write_safely(
            json_path, _json({**found.to_json(), "vary": vary, "threat": job.threat.to_json(), "engine": engine})
        )


def blame(
    config: Config,
    point: Annotated[list[int] | None, typer.Option(help="Only this test point (repeatable).")] = None,
    top: Annotated[int, typer.Option(help="Rows to re-check.")] = 10,
    report: Report = None,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """Which training rows carry the uncertainty, and what re-checking them would be worth; also of a finished run directory."""
    from mibp_cert.studies.blame import blame as ask

    console = Console(quiet=quiet)
    if _one_engine(config) != "relational":
        raise UserError("Blame reads the relational bound; leave out --engine.")
    source = config["data"]["source"]
    if source is not None and (Path(source) / "run.json").exists():
        run, effective = load_run(source), _stored_config(Path(source))
    else:
        job = job_of(config)
        effective = job.config
        with _interruptible("", None), progress_bars(quiet) as progress:
            run = job.run("relational", show_training(progress, "relational"))
    with console.status("second run"):
        found = ask(run, point, top=top)
    shown = found.rows.head(top)[["row", "effect", "cells"]].rename(columns={"effect": "% of the uncertainty"})
    console.print(shown.to_string(index=False, float_format=lambda v: f"{v:.2f}"), markup=False)
    console.print(found.sentence, soft_wrap=True, highlight=False, markup=False)
    if json_path is not None:
        write_safely(json_path, _json({**run.to_json(), "blame": found.to_json()}))
    if report is not None:
        check_writable(report)
        write_report(report, run, [], effective, console, quiet, found)


def compare(
    config: Config,
    values: Annotated[
        str | None, typer.Option("--eps-values", help="Several amounts side by side, such as 0.01,0.02.")
    ] = None,
    csv_path: Annotated[Path | None, typer.Option("--csv", help="Write the table as CSV.")] = None,
    quiet: Quiet = False,
) -> None:
    """Engines (--engine a,b) or amounts (--eps-values) side by side on the same data and seed."""
    from mibp_cert.studies.compare import compare as ask

    console, job = Console(quiet=quiet), job_of(config)
    threats: dict[str, Any] = {in_words(job.threat): job.threat}
    if values is not None:
        threats = {f"eps {value.strip()}": with_eps(job, value.strip()) for value in values.split(",")}
    engines = job.engines if config["run"]["engine"] != "relational" or values else ("interval", "crown", "relational")
    settings = config["solver"]
    with _interruptible("", None), console.status("comparing"):
        found = ask(
            job.network,
            job.data,
            threats,
            job.training,
            engines,
            parallel=settings["parallel"],
            jobs=settings["jobs"] or 1,
            **job.options,
        )
    if len(threats) == 1:
        console.print(f"What may be wrong: {next(iter(threats))}.", soft_wrap=True, highlight=False, markup=False)
    console.print(f"Each is trained for all of its {job.training.epochs} epochs.", highlight=False)
    shown = found.reset_index() if len(threats) > 1 else found.reset_index("threat", drop=True).reset_index()
    console.print(shown.to_string(index=False, float_format=lambda v: f"{v:.4g}"), markup=False, soft_wrap=True)
    if csv_path is not None:
        found.to_csv(csv_path)


def write_report(
    path: Path, run: CertifiedRun, answers: list[str], config: Any, console: Console, quiet: bool, found: Any = None
) -> None:
    """The HTML page, with blame where the engine can say it."""
    from mibp_cert.report.html import html_report
    from mibp_cert.studies.blame import blame as ask

    if (
        found is None
        and run.engine == "relational"
        and run.test is not None
        and run.reached
        and not run.test.certified.all()
    ):
        with Console(stderr=True, quiet=quiet).status("which rows carry the uncertainty"):
            found = ask(run)
    text = html_report(run, words=in_words(run.threat), blame=found, answers=answers, configuration=config)
    write_safely(path, text.encode())
    console.print(f"Report written to {path}", soft_wrap=True)


@contextmanager
def _interruptible(words: str, folder: Path | None) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        kept = words or "nothing was written."
        if folder is not None:
            kept = f"what was done is kept: go on with mibp-cert resume {folder}"
        raise Interrupted(f"Interrupted; {kept}") from None


def _show(console: Console, run: CertifiedRun, answers: list[str]) -> None:
    console.print(epochs_table(run))
    console.print(summary(run), soft_wrap=True, markup=False)
    console.print("\n".join(answers), soft_wrap=True, end="\n" if answers else "", highlight=False, markup=False)


def _one_engine(config: Config) -> str:
    name = str(config["run"]["engine"])
    if "," in name:
        raise UserError("This command takes one engine; compare takes several.")
    return name


def _beside(path: Path | None, engine: str, job: Job) -> Path | None:
    """`out.json` for one engine; `out-interval.json`, `out-relational.json` for several."""
    return path if path is None or len(job.engines) == 1 else path.with_name(f"{path.stem}-{engine}{path.suffix}")


def check_writable(path: Path) -> None:
    """Refuse before any work is done."""
    try:
        existed = path.exists()
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror}; choose another path.") from None


def _stored_config(folder: Path) -> Any:
    path = folder / "config.json"
    return json.loads(path.read_text()) if path.exists() else None


def _json(plain: Any) -> bytes:
    return (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode()


def _write(path: Path | None, run: CertifiedRun, answers: dict[str, Any], config: Any, console: Console) -> None:
    if path is None:
        return
    plain = run.to_json() | ({"postconditions": answers} if answers else {})
    plain |= {} if config is None else {"configuration": plain_config(config)}
    try:
        write_safely(path, _json(plain))
    except OSError as error:
        raise UserError(f"The result could not be written to {path}: {error.strerror}.") from None
    console.print(f"Written to {path}", soft_wrap=True)
