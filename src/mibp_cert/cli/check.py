"""`mibp-cert check`: a certificate, proven again without the engines; and what it says, in words."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from mibp_cert.cli.commands import interruptible, new_console
from mibp_cert.report.console import Terminal

if TYPE_CHECKING:
    from mibp_cert.certify import CertifiedRun
    from mibp_cert.cli.asked import Asked
    from mibp_cert.data import Split

SHOWN = 5
"""So many of the ends that do not follow are named."""


def check(
    certificate: Annotated[Path, Argument(help="A file written by certify … --certificate.")],
    data: Annotated[Path | None, Option(help="Your copy of the file that it is about.", show_default=False)] = None,
    test_file: Annotated[Path | None, Option(help="And of its test file.", show_default=False)] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print nothing but what is wrong.")] = False,
) -> None:
    """Prove a certificate again, from the data and the threat alone. Status 1 if it does not follow."""
    from mibp_cert.check.data import split_of
    from mibp_cert.check.file import read_certificate
    from mibp_cert.check.fitted import check as prove

    read, console = read_certificate(certificate), new_console(quiet)
    plain: Any = read.plain.get("data")
    split = split_of(plain if isinstance(plain, dict) else {}, data, test_file)
    with Terminal(stderr=True, quiet=quiet).status("checking") as status:
        found = prove(read, split, hear=lambda what: status.update(f"checking {what}"))
    if found.failures:
        more = "" if len(found.failures) <= SHOWN else f", and {len(found.failures) - SHOWN} more"
        said = f"NOT proven: it does not follow {'; '.join(found.failures[:SHOWN])}{more}."
        new_console().print(said, style="bold red", highlight=False)
        raise Exit(1)
    for sentence in words(read.plain, split, found):
        console.print(sentence, highlight=False)


def words(plain: dict[str, Any], split: Split, found: Any) -> list[str]:
    """What is proven, beside what always naming the most frequent class would get."""
    from mibp_cert.certify.worth import majority
    from mibp_cert.threats import in_words

    model, train = plain["model"], split.train
    said = [
        f"Proven for {found.rows} training rows: whatever they really were ({in_words(plain['threat'])}), every minimiser of "
        f"the loss '{model['loss']}' with C = {model['C']:g}{_unusual(model)} lies in the certificate's ranges "
        f"({found.queries} bounds).",
        *_reading(plain["data"]),
    ]
    if (doubt := plain.get("test_threat")) is not None:
        said.append(f"The test rows themselves are in doubt: {in_words(doubt)}.")
    if found.certified_accuracy is None:
        return [*said, f"The ranges of {found.claims} of {found.tests} outputs follow."]
    most = majority(train)
    share = sum(int(y) == most for y in split.tested.y) / found.tests
    said.append(f"{found.claims} of {found.tests} test rows have the same class for all of these models.")
    said.append(
        f"Certified and right, by the labels in the data: {100 * found.certified_accuracy:.1f} % of the test rows; always "
        f"{train.classes[most]!r} would be right in {100 * share:.1f} %."
    )
    return said


def _unusual(model: dict[str, Any]) -> str:
    """What else there is to say of a model."""
    parts = [] if model["fit_intercept"] else ["without an intercept"]
    parts += ["with a penalty on the intercept"] if model["fit_intercept"] and model["penalise_intercept"] else []
    if model["class_weight"] is not None:
        weights = ", ".join(f"{name!r} {weight:g}" for name, weight in model["class_weight"].items())
        parts.append(f"with rows that count by their class ({weights})")
    return "".join(f", {part}" for part in parts)


def _reading(data: dict[str, Any]) -> list[str]:
    """How the sender has the file read, where that is not the usual way: columns or rows left out, texts that mean nothing."""
    from mibp_cert.data.reading import Reading

    given = data.get("reading")
    if given is None:
        return []
    usual, said = (
        asdict(Reading(given["target"])),
        {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()},
    )
    odd = [f"{name} = {value!r}" for name, value in said.items() if value != usual[name]]
    return [f"The file is read as the certificate says: {', '.join(odd)}."] if odd else []


def write_certificate(console: Terminal, run: CertifiedRun, path: Path, source: dict[str, Any]) -> None:
    """Seek the proof that the checker follows, and write it."""
    from mibp_cert.store.certificate import certificate_of

    with interruptible("no certificate was written."), Terminal(stderr=True, quiet=console.quiet).status("certificate"):
        made = certificate_of(run, source)
        made.write(path)
    what = "ranges of" if run.test is None else "certified classes of"
    console.print(
        f"Certificate written to {path}: it proves {what} {made.claimed} of {made.tests} test rows.", highlight=False
    )


def source_of(config: Asked) -> dict[str, Any]:
    """How the rows of a configuration are read again, for `check.data`."""
    from mibp_cert.data import NAMES
    from mibp_cert.job import reading_of
    from mibp_cert.threats.short import named_columns

    section, threat = config["data"], config["threat"]
    seed = config["training"]["seed"]
    if section["source"] in NAMES:
        return {"source": section["source"], "seed": seed, "reading": None}
    test = section["test_file"]
    return {
        "source": Path(section["source"]).name,
        "seed": seed,
        "reading": asdict(reading_of(section)),
        "spoken": [] if "kind" in threat else named_columns(threat),
        "test_file": None if test is None else Path(test).name,
    }
