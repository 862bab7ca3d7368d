"""Commands on a user's data: certify, resume and report; what they print and write, and what is said after Ctrl-C."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from mibp_cert.cli.asked import Asked
from mibp_cert.cli.ends import MORE_MEMORY, Interrupted, OutOfMemory
from mibp_cert.errors import Diverged, UserError
from mibp_cert.report.console import Terminal

if TYPE_CHECKING:
    from mibp_cert.certify import CertifiedRun
    from mibp_cert.cli.advice import Next
    from mibp_cert.job import Job
    from mibp_cert.questions.properties import Questions
    from mibp_cert.studies.choose import Choice
    from mibp_cert.studies.parts import LossByPart


def _file(help_: str, *names: str) -> Any:
    return Option(*names, help=help_, rich_help_panel="Output")


Quiet = Annotated[bool, _file("Print nothing but errors.", "--quiet", "-q")]
JsonPath = Annotated[Path | None, _file("Write the result as JSON.", "--json")]
Report = Annotated[Path | None, _file("Write one HTML page.", "--report")]
Parts = Annotated[
    bool | None,
    Option(
        help="Certify each part of what may be wrong alone, too; default: if it is quick, and less than 90 % is certified.",
        show_default=False,
    ),
]
QUICK = 30.0
"""Seconds that what nobody asked for may take."""
RunDir = Annotated[Path, Argument(help="A run directory.")]


def certify(
    config: Asked,
    parts: Parts = None,
    run_dir: Annotated[Path | None, _file("Folder that keeps the run step by step.", "--run")] = None,
    resume: Annotated[bool, _file("Go on with the run in that folder.", "--resume")] = False,
    report: Report = None,
    json_path: JsonPath = None,
    bounds: Annotated[Path | None, _file("Save bounds and clean weights (.npz).")] = None,
    witness: Annotated[Path | None, _file("Save the strongest attack dataset (.npz).")] = None,
    certificate: Annotated[Path | None, _file("Write all that proves it, for mibp-cert check (fitted models).")] = None,
    quiet: Quiet = False,
) -> None:
    """Make a model with proven bounds on every parameter, or votes of many models, and certify the test points."""
    from mibp_cert.cli import ensembles

    if resume and run_dir is None:
        raise UserError("--resume needs the folder of the run: --run DIR.")
    if ensembles.wanted(config):
        if parts is not None or any((bounds, witness, certificate)):
            raise UserError(
                "--parts, --bounds, --witness and --certificate say nothing about an ensemble: leave them out."
            )
        ensembles.certify_ensemble(config, new_console(quiet), run_dir, resume, json_path, report)
        return
    from mibp_cert.certify.columns import column_records
    from mibp_cert.cli.advice import after_certify, tell
    from mibp_cert.cli.check import source_of, write_certificate
    from mibp_cert.config import plain_config
    from mibp_cert.fitted import Fitted
    from mibp_cert.job import job_of
    from mibp_cert.report.progress import progress_bars, show_training
    from mibp_cert.report.terminal import columns_text, side_by_side
    from mibp_cert.store.archive import keep_config
    from mibp_cert.store.certificate import claim_of

    console, job, runs = new_console(quiet), job_of(config), []
    files = {name: [_beside(path, name, job) for path in (json_path, report)] for name in job.engines}
    check_writable(*(path for pair in files.values() for path in pair), witness, bounds, certificate)
    if certificate is not None:
        claim_of(job.data, job.training, job.threat, job.options["test_threat"])  # refused before any work
    if job.data.origin is not None:
        console.print("How the columns were read, and what may be wrong with them in the training rows:")
        console.print(columns_text(column_records(job.data, job.threat)), highlight=False)
    for note in job.notes:
        console.print(note, highlight=False)
    tell_forecast(job, console)
    with advised(config, job):
        job = settled(job, console)
    for name in job.engines:
        folder, began = _beside(run_dir, name, job), time.perf_counter()
        with (
            advised(config, job),
            interruptible(f"nothing was written for the engine '{name}'.", folder),
            progress_bars(quiet) as progress,
        ):
            kept = {} if folder is None else {"run_dir": folder, "resume": resume}
            run = job.run(name, show_training(progress, name, fit=isinstance(job.training, Fitted)), **kept)
        if folder is not None:
            keep_config(folder, plain_config(job.config))
        runs.append(run)
        loss = _loss(run, parts, time.perf_counter() - began, quiet)
        ways = list(after_certify(config, job, run, split=loss is not None))
        show(console, run, job.config, files[name], job.questions, job.choice, loss, ways)
        tell(console, ways)
        if certificate is not None:
            write_certificate(console, run, certificate, source_of(config))
        console.print()
    if len(runs) > 1:
        console.print(side_by_side(runs), soft_wrap=False)
    if witness is not None and run.attack is not None:
        with writing(witness):
            run.attack.save(witness)
        console.print(f"Strongest attack dataset written to {witness}")
    if bounds is not None and not run.reached:
        gone = f"they diverged at step {run.diverged}, and the trained models may lie outside"
        console.print(f"Bounds of {run.engine} are not saved: {gone}.")
    elif bounds is not None:
        with writing(bounds):
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
    out: Annotated[Path | None, Argument(help="HTML file; default: beside the run directory, called like it.")] = None,
    quiet: Quiet = False,
) -> None:
    """Write the report of a finished run as one HTML page."""
    from mibp_cert.store import load_run

    path = out or Path(f"{run_dir.resolve()}.html")
    run = load_run(run_dir)
    check_writable(path)
    write_report(new_console(quiet), path, run, stored_config(run_dir))


def _loss(run: CertifiedRun, wanted: bool | None, seconds: float, quiet: bool) -> LossByPart | None:
    """What is lost to each part of the threat, where it was asked for, or where much is lost and it takes no time."""
    from mibp_cert.cli.advice import is_enough
    from mibp_cert.studies.parts import loss_by_part, threats_in

    quick = seconds * max(1, len(threats_in(run.threat))) <= QUICK
    asked = quick and not is_enough(run) if wanted is None else wanted
    if not asked or run.data.test is None or not run.reached:
        return None
    with interruptible(), Terminal(stderr=True, quiet=quiet).status("each part alone") as status:
        return loss_by_part(run, lambda words: status.update(f"each part alone: {words}"))


def _beside(path: Path | None, engine: str, job: Job) -> Path | None:
    """`out.json` for one engine; `out-interval.json`, `out-relational.json` for several."""
    return path if path is None or len(job.engines) == 1 else path.with_name(f"{path.stem}-{engine}{path.suffix}")


# What is printed and written -------------------------------------------------------------------------------------------


@contextmanager
def interruptible(kept: str = "nothing was written.", folder: Path | None = None) -> Iterator[None]:
    """Turn Ctrl-C, and too little memory, into a sentence about what is kept: the run in `folder`, if there is one."""
    try:
        yield
    except (KeyboardInterrupt, MemoryError) as error:
        if folder is not None and (folder / "run.json").exists():
            kept = f"what was done is kept: go on with mibp-cert resume {quote(str(folder))}"
        if isinstance(error, MemoryError):
            raise OutOfMemory(f"{MORE_MEMORY}; {kept}") from None
        raise Interrupted(f"Interrupted; {kept}") from None


@contextmanager
def advised(config: Asked, job: Job) -> Iterator[None]:
    """Where the bounds come to nothing, say what to try."""
    from mibp_cert.cli.advice import after_divergence

    try:
        yield
    except Diverged as error:
        way = after_divergence(config, job, error.enough)
        raise Diverged(f"{error} Next, {way.words}: {way.command}") from None


def new_console(quiet: bool = False) -> Terminal:
    """Prints sentences as they are, one to a line; a table is printed with `soft_wrap=False`."""
    return Terminal(quiet=quiet, soft_wrap=True, markup=False)


def check_writable(*paths: Path | None) -> None:
    """Refuse before any work is done; nothing that is there is opened."""
    for path in filter(None, paths):
        place, why = Path(os.path.realpath(path)), ""
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            continue  # a terminal, or a pipe
        if os.path.isdir(place):
            why = "it is a folder"
        elif not os.path.isdir(place.parent):
            why = f"there is no folder {place.parent}"
        elif not os.access(place if (there := os.path.exists(place)) else place.parent, os.W_OK):
            why = "it is not writable"
        elif not there:
            try:  # a disk that is read only, or a name that is too long
                place.open("x").close()
                place.unlink()
            except OSError as error:
                why = str(error.strerror)
        if why:
            raise UserError(f"Cannot write {path}: {why}; choose another path.")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """One sentence where a result cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"The result could not be written to {path}: {error.strerror or error}.") from None


def write_json(path: Path | None, plain: Any) -> None:
    """Write plain values, if there is a place for them."""
    if path is not None:
        _write(path, json.dumps(plain, indent=1, allow_nan=False) + "\n")


def _write(path: Path, text: str) -> None:
    """Put a file into place as a whole: readers see the old one or the new one. Where the user's own links lead, it goes."""
    from mibp_cert.disk import write_safely

    with writing(path):
        if path.exists() and not path.is_file():  # a terminal, or a pipe
            path.write_text(text, encoding="utf-8")
        else:
            write_safely(Path(os.path.realpath(path)), text.encode())


def stored_config(folder: Path) -> Any:
    """The configuration that a run was made with, if it was kept with the run."""
    from mibp_cert.store.archive import read_config

    return read_config(folder)


def tell_forecast(job: Job, console: Terminal, what: str = "This") -> None:
    """What the work (or each run of it) will take, where that is more than a few seconds or a gigabyte."""
    from mibp_cert.certify.forecast import free_memory, gib
    from mibp_cert.report.progress import duration

    told = job.forecast()
    if told.notable:
        console.print(
            f"{what} will take about {duration(told.seconds)} and {gib(told.bytes)} of memory ({gib(free_memory())} are free).",
            highlight=False,
        )


def settled(job: Job, console: Terminal) -> Job:
    """The job with its `C` chosen, where it was left open; the frontier is printed."""
    from mibp_cert.report.progress import lines
    from mibp_cert.report.terminal import choice_table

    if not job.open:
        return job
    said = lines(Terminal(stderr=True, quiet=console.quiet))
    with interruptible(), Terminal(stderr=True, quiet=console.quiet).status("choosing C") as status:

        def hear(c: float) -> None:
            status.update(f"choosing C on validation rows: {c:g}")
            said.heard("choosing C", f"{c:g}", None)

        job = job.settled(hear)
    assert job.choice is not None
    console.print(choice_table(job.choice), soft_wrap=False)
    if not job.choice.better:
        base = "the mean" if job.choice.judge.numbers else "the most frequent class"
        console.print(
            f"Warning: on validation rows this model does no better than always answering {base}: what is certified of it is of "
            "no use."
        )
    return job


def show(
    console: Terminal,
    run: CertifiedRun,
    config: Any,
    files: Sequence[Path | None],
    questions: Questions | None = None,
    choice: Choice | None = None,
    loss: LossByPart | None = None,
    ways: Sequence[Next] = (),
) -> None:
    """Print what came out, and write the result and the report into these two files where they are wanted."""
    from mibp_cert.certify.columns import column_records
    from mibp_cert.certify.shown import loud
    from mibp_cert.config import plain_config
    from mibp_cert.questions.properties import describe
    from mibp_cert.report.terminal import epochs_table, summary, worth_table

    json_path, page = files
    if run.fitted is None:
        console.print(epochs_table(run), soft_wrap=False)
    for said in loud(run):
        console.print(f"Warning: {said}", style="bold", highlight=False)
    table = worth_table(run)
    if table is not None:
        console.print(table, soft_wrap=False)
    console.print(summary(run))
    for sentence in () if loss is None else loss.sentences:
        console.print(sentence, highlight=False)
    answers = {} if questions is None else questions.ask(run)
    sentences = describe(answers) if answers else []
    for sentence in sentences:
        console.print(sentence, highlight=False)
    if json_path is not None:
        columns = [record.to_json() for record in column_records(run.data, run.request.members)]
        plain = run.to_json() | {"columns": columns} | ({"postconditions": answers} if answers else {})
        plain |= ({} if choice is None else {"choice": choice.to_json()}) | ({} if loss is None else loss.to_json())
        write_json(json_path, plain | ({} if config is None else {"configuration": plain_config(config)}))
        console.print(f"Written to {json_path}")
    if page is not None:
        write_report(console, page, run, config, answers=sentences, choice=choice, parts=loss, ways=ways)


def write_report(console: Terminal, path: Path, run: CertifiedRun, config: Any, blame: Any = None, **more: Any) -> None:
    """The HTML page, with blame where the engine can say it; `more` goes to `html_report`."""
    from mibp_cert.report.html import html_report
    from mibp_cert.studies.blame import blame as ask

    some_open = run.test_ranges is not None or (run.test is not None and not run.test.certified.all())
    can = run.fitted is not None or run.request.made.keeps_symbols
    if blame is None and can and some_open and run.reached:
        with Terminal(stderr=True, quiet=console.quiet).status("which rows carry the uncertainty"):
            blame = ask(run)
    text = html_report(run, words=run.threat.words(), blame=blame, configuration=config, **more)
    write_page(console, path, text)


def write_page(console: Terminal, path: Path, text: str) -> None:
    """Put a page into its place."""
    _write(path, text)
    console.print(f"Report written to {path}")
