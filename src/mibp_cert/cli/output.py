"""What the commands print and write: sentences, results and reports; and what is said after Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from mibp_cert.certify import CertifiedRun
from mibp_cert.config import plain_config
from mibp_cert.engines import engine_named
from mibp_cert.errors import MibpCertError, UserError
from mibp_cert.questions.properties import Questions, describe
from mibp_cert.report.terminal import epochs_table, summary


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
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def stored_config(folder: Path) -> Any:
    """The configuration that a run was made with, if it was kept with the run."""
    path = folder / "config.json"
    return json.loads(path.read_text()) if path.exists() else None


def show(
    console: Console,
    run: CertifiedRun,
    config: Any,
    json_path: Path | None,
    page: Path | None,
    *,
    questions: Questions | None = None,
) -> None:
    """Print what came out, and write the result and the report where they are wanted."""
    console.print(epochs_table(run), soft_wrap=False)
    console.print(summary(run))
    answers = questions.ask(run) if questions is not None else {}
    sentences = describe(answers) if answers else []
    if sentences:
        console.print("\n".join(sentences), highlight=False)
    if json_path is not None:
        plain = run.to_json() | ({"postconditions": answers} if answers else {})
        try:
            write_json(json_path, plain | ({} if config is None else {"configuration": plain_config(config)}))
        except OSError as error:
            raise UserError(f"The result could not be written to {json_path}: {error.strerror}.") from None
        console.print(f"Written to {json_path}")
    if page is not None:
        write_report(console, page, run, config, sentences)


def write_report(
    console: Console, path: Path, run: CertifiedRun, config: Any, answers: list[str] | None = None, blame: Any = None
) -> None:
    """The HTML page, with blame where the engine can say it."""
    from mibp_cert.report.html import html_report
    from mibp_cert.studies.blame import blame as ask

    some_open = run.test is not None and run.reached and not run.test.certified.all()
    if blame is None and engine_named(run.engine).keeps_symbols and some_open:
        with Console(stderr=True, quiet=console.quiet).status("which rows carry the uncertainty"):
            blame = ask(run)
    text = html_report(run, words=run.threat.words(), blame=blame, answers=answers or (), configuration=config)
    _write(path, text)
    console.print(f"Report written to {path}")
