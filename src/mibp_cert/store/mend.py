"""What a power cut may leave behind, and how a run goes on from it.

Every file is flushed before it is renamed, and the next one is begun after that. So only the newest file can be cut short, on a
disk that did not keep its word. It can be made again: it is removed, and the run goes on from what is whole. An older file that
is not what was written is another matter: that is no power cut, and the run is refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mibp_cert.disk import DRAFT, STEPS, exists, names_in, read_file, remove
from mibp_cert.errors import UserError, fitting
from mibp_cert.store.npz import digest, opened

SET, RECORD = re.compile(r"(\d{6,})\.npz"), re.compile(r"(\d{6,})\.json")


def numbers(run: Path, names: re.Pattern[str]) -> list[int]:
    """Steps that have such a file."""
    found = filter(None, map(names.fullmatch, names_in(run / STEPS)))
    return sorted(int(name[1]) for name in found if len(name[1]) == 6 or name[1][0] != "0")


def mend(run: Path) -> list[str]:
    """Remove drafts and newest files that were cut short; what was done, in sentences. `UserError`, with nothing removed, where
    more than that is wrong."""
    said: list[str] = []
    if exists(run / "result.json") and not _whole_result(run):
        said.append("The result was cut short: it is computed again.")
    steps = [] if exists(run / "result.json") and not said else _steps_to_remove(run)
    for folder in (run, run / STEPS):
        for name in filter(DRAFT.fullmatch, names_in(folder)):
            remove(folder / name)
    for number in reversed(steps):
        remove(run / STEPS / f"{number:06d}.json")
        remove(run / STEPS / f"{number:06d}.npz")
    if said:
        remove(run / "result.json")
        remove(run / "test.npz")
    if steps:
        said.append(
            f"The files of step {steps[0]} were cut short or are not needed: the run goes on after step {steps[0] - 1}."
        )
    return said


def _whole_result(run: Path) -> bool:
    return _agree(run / "result.json", run / "test.npz")


def _agree(record: Path, arrays: Path) -> bool:
    """Is the record what was written, and are the arrays those that it is about? `UserError` if a file cannot be read: that is
    another matter."""
    content = read_file(arrays) if exists(arrays) else b""
    read_file(record)
    try:
        said = opened(record).get("arrays")
    except UserError:
        return False
    return said is None or digest(content) == said


def _steps_to_remove(run: Path) -> list[int]:
    """The newest step if its record or its set was cut short, and those whose sets are not kept any more, back to the one that
    the run goes on from; sets without a record."""
    known = numbers(run, RECORD)
    last = len(known)
    lonely = [n for n in numbers(run, SET) if n > last]
    if known != list(range(1, last + 1)):
        return []  # the chain says what is missing
    if last and not _whole(run, last):
        chain(run, last - 1)
        last -= 1
    while last and last < len(known) and not exists(run / STEPS / f"{last:06d}.npz"):
        last -= 1  # its set was dropped, in favour of the one that is lost
    if 0 < last < len(known) and not _whole(run, last):
        raise UserError(
            f"The set after step {last} in {run} was altered, and the one after it was cut short; run it again."
        )
    return [*range(last + 1, len(known) + 1), *lonely]


def _whole(run: Path, number: int) -> bool:
    """Is the step what its record says? (Whether the record belongs to the run, the chain says.)"""
    place = run / STEPS / f"{number:06d}"
    return _agree(place.with_suffix(".json"), place.with_suffix(".npz"))


def chain(run: Path, most: int | None = None) -> tuple[list[dict[str, Any]], str, set[int]]:
    """The records up to the step `most` (default: all) as plain data, the hash of the last one, and which sets were dropped;
    `UserError` where the chain of hashes is broken."""
    opened(run / "run.json")  # refuses what is no run
    last, dropped, records = digest(read_file(run / "run.json")), set[int](), []
    for number, found in enumerate(numbers(run, RECORD)[:most], start=1):
        if found != number:
            raise UserError(
                f"The record of step {number} is missing in {run}; name another folder, or remove later steps."
            )
        place = run / STEPS / f"{number:06d}.json"
        plain = opened(place)
        if plain.get("previous") != last or plain.get("number") != number:
            raise UserError(
                f"Step {number} in {run} does not belong to this run; remove it and later steps to go on from step {number - 1}."
            )
        last = digest(read_file(place))
        with fitting(f"The record {place}"):
            dropped |= {int(old) for old in plain["dropped"]}
        records.append(plain)
    return records, last, dropped
