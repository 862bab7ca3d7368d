"""The command line: `mibp-cert certify`, `report`, `verify`, `tolerance`, `blame`, `compare`, `reproduce`, `doctor`."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console
from typer import Option

from mibp_cert.cli import commands
from mibp_cert.cli.doctor import doctor
from mibp_cert.cli.flags import FLAGS, QUESTIONS, shared
from mibp_cert.cli.output import Interrupted
from mibp_cert.cli.reproduce import reproduce
from mibp_cert.errors import MibpCertError, SoundnessError

app = typer.Typer(
    help="My training data may be wrong. What can that do to my model?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
USER_MISTAKE, UNSOUND, INTERRUPTED = 2, 3, 130
"""Exit statuses: a mistake in the request; bounds that are of no use (or a bug); Ctrl-C."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"mibp-cert {version('mibp-cert')}")
        raise typer.Exit


@app.callback()
def _root(
    show: Annotated[bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Proven bounds on what wrong training data can do to a neural network."""


app.command()(shared(commands.certify, FLAGS | QUESTIONS))
for _asked in (commands.tolerance, commands.blame, commands.compare):
    app.command()(shared(_asked))
for _command in (commands.resume, commands.report, commands.verify, reproduce, doctor):
    app.command()(_command)


def main() -> None:
    """Entry point: a mistake is one sentence and exit status 2, bounds of no use are 3, Ctrl-C is 130; never a traceback."""
    try:
        app()
    except MibpCertError as error:
        Console(stderr=True).print(f"mibp-cert: {error}", style="red", soft_wrap=True, highlight=False, markup=False)
        if isinstance(error, Interrupted):
            sys.exit(INTERRUPTED)
        sys.exit(UNSOUND if isinstance(error, SoundnessError) else USER_MISTAKE)


if __name__ == "__main__":
    main()
