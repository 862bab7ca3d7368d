"""`mibp-cert verify`: a stored run, checked again, and the data and the configuration that it says it is about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from mibp_cert.cli.commands import RunDir
from mibp_cert.errors import MibpCertError, UserError
from mibp_cert.report.console import Terminal

if TYPE_CHECKING:
    from mibp_cert.data import Split
    from mibp_cert.store.checks import Check

WRONG, INCOMPLETE = 1, 4
"""Exit statuses: something is wrong; nothing is, but something could not be checked."""


def verify(
    run_dir: RunDir,
    data: Annotated[
        Path | None, Option(help="Your copy of the file that the run is about.", show_default=False)
    ] = None,
    test_file: Annotated[Path | None, Option(help="And of its test file.", show_default=False)] = None,
    points: Annotated[int, Option(help="Random points per step for the second opinion.")] = 4,
    parameters: Annotated[int, Option(help="Parameters pushed both ways per step.")] = 4,
    recompute: Annotated[bool, Option(help="Compute all that was computed again, and compare.")] = True,
    prove: Annotated[
        bool | None, Option(help="Prove every step (engine interval); default: if it is quick.", show_default=False)
    ] = None,
    seed: Annotated[int, Option(help="Seed of the fresh datasets.")] = 1,
) -> None:
    """Check a stored run again: everything it says is found again, every step seen by a second arithmetic. Status 1 if anything
    is wrong, 4 if something could not be checked. Nothing is written into the run."""
    from mibp_cert.store import verify as audit
    from mibp_cert.store.checks import verdict

    for name, number in (("--points", points), ("--parameters", parameters), ("--seed", seed)):
        if number < 0:
            raise UserError(f"{name} takes a whole number ≥ 0, got {number}.")
    if not run_dir.is_dir():
        raise UserError(f"There is no run directory {run_dir}.")
    console, settings = Terminal(), audit.AuditSettings(points, parameters, recompute, seed=seed, prove=prove)
    with console.status("verifying") as status:
        split, beside = _configured(run_dir, data, test_file)
        found = [*audit.verify(run_dir, settings, hear=status.update, data=split), *beside]
    outcome = verdict(found)
    for item in found:
        word, style = {
            True: (item.how or "holds", "green"),
            False: ("WRONG", "bold red"),
            None: ("not checked", "yellow"),
        }[item.holds]
        console.print(f"[{style}]{word:>11}[/]  {item.name}: ", end="")
        console.print(item.words, soft_wrap=True, highlight=False, markup=False)
    given = list(dict.fromkeys(item.given for item in found if item.given))
    console.print("[yellow]   believed[/]  ", end="")
    console.print(f"Nobody checked: {' '.join(given)}", soft_wrap=True, highlight=False, markup=False)
    if outcome is not True:
        word, style = ("WRONG", "bold red") if outcome is False else ("incomplete", "yellow")
        console.print(f"[{style}]{word:>11}[/]  verdict")
        raise Exit(WRONG if outcome is False else INCOMPLETE)


def _configured(run_dir: Path, path: Path | None, test_path: Path | None) -> tuple[Split | None, list[Check]]:
    """The rows that the run's configuration speaks of, read anew, where they can be; and what there is to say about both."""
    from mibp_cert.store.archive import exists, read_config
    from mibp_cert.store.checks import Check

    try:
        config = read_config(run_dir) if exists(run_dir / "run.json") else None
    except MibpCertError as error:
        return None, [Check("configuration", False, str(error))]
    if config is None:
        if path is not None:
            raise UserError(
                f"{run_dir} has no configuration that says how a file is read; in Python: verify(path, data=…)."
            )
        return None, []
    try:
        split, said = _rows(config, path, test_path), _asked(run_dir, config)
    except (MibpCertError, AttributeError, LookupError, TypeError, ValueError) as error:
        return None, [Check("configuration", False, f"it does not describe a run ({error})")]
    if split is None:
        source = Path(str(config["data"]["source"])).name
        said.append(Check("data", None, f"not compared with {source}: say where your copy is, with --data FILE"))
    return split, said


def _rows(config: dict[str, Any], path: Path | None, test_path: Path | None) -> Split | None:
    """The rows of the configuration: of a data set that comes with the program, or of the user's own copy of the file; the path
    in the configuration is anybody's, and is not followed."""
    from mibp_cert.config import merged
    from mibp_cert.data import NAMES
    from mibp_cert.job import NPHA, job_of

    section = config["data"]
    if section["source"] in NAMES:
        if section["source"] == NPHA and path is None:
            return None
        section = {**section, "path": None if path is None else str(path)}
    elif path is None or (section["test_file"] is not None and test_path is None):
        return None
    else:
        section = {**section, "source": str(path), "test_file": None if test_path is None else str(test_path)}
    return job_of(merged({**config, "data": section})).data


def _asked(run_dir: Path, config: dict[str, Any]) -> list[Check]:
    """Does the configuration ask for this very run?"""
    from mibp_cert.config import merged
    from mibp_cert.job import job_of
    from mibp_cert.store import stored_request
    from mibp_cert.store.archive import differing
    from mibp_cert.store.checks import Check

    try:
        request = stored_request(run_dir)
    except UserError:
        return []  # said by `verify` itself
    asked = job_of(merged(config), request.data).request(request.engine)
    now, then = ({**one.to_json(), "versions": None} for one in (asked, request))
    key = differing(then, now)
    words = f"it asks for another run: another {key}" if key else "it asks for this very run"
    return [Check("configuration", key is None, words, "compared")]
