"""A run directory: what was asked for, the data, and the set after every step, written so that a kill at any moment loses at most
the step under way.

    run.json            what determines every bit of the run, and the hash of the data
    data.npz            training, validation and test rows
    steps/000001.npz    the set after step 1 and the clean model (plain arrays, no pickle)
    steps/000001.json   its hash, what the step cost, validation; and the hash of the record before it
    result.json, test.npz   when the run is over

Every file is written under another name, flushed to the disk and renamed; a step counts once its record is there. Records form a
chain of hashes, so that a file that was cut short, altered or put there from another run is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from shlex import quote
from typing import Any, get_args, get_type_hints

import numpy as np

from mibp_cert.certify.loop import Callbacks, StepRecord, certify
from mibp_cert.certify.plain import weights_sha256
from mibp_cert.certify.request import Request
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.disk import (
    STEPS,
    check_files,
    exists,
    names_in,
    opened_file,
    read_file,
    remedy,
    remove,
    resume_words,
    size_of,
    write_safely,
)
from mibp_cert.engines import StepReport
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError, fitting
from mibp_cert.store.kernel import kernel
from mibp_cert.store.mend import RECORD, SET, chain, mend, numbers
from mibp_cert.store.npz import Arrays, arrays_in, digest, opened, pack, sealed
from mibp_cert.threats import Threat

FORMAT = 2
"""Ranges and attacks of a regression are in the units of its targets since 2."""
KEEP = 1 << 30
"""Bytes of steps that are kept; above, the oldest sets are dropped (their records stay)."""
FILES = ("run.json", "data.npz", "result.json", "test.npz", "config.json", ".lock")


def record_json(record: StepRecord) -> dict[str, Any]:
    """A record as plain data: of the gaps the largest."""
    plain, gap = asdict(record), record.report.gap
    plain["report"]["gap"] = repr(float(gap.max())) if gap.size else None
    return plain


def record_of(plain: Mapping[str, Any]) -> StepRecord:
    told, gap = plain["report"], plain["report"]["gap"]
    report = StepReport(**{**told, "gap": np.zeros(0) if gap is None else np.array([float(gap)])})
    record = StepRecord(**{f.name: plain[f.name] for f in fields(StepRecord)} | {"report": report})
    for part in (record, report):
        for name, kind in get_type_hints(type(part)).items():
            value = getattr(part, name)
            if name != "gap" and not _is(value, get_args(kind) or (kind,)):
                raise TypeError(f"{name} is {value!r}")
    return record


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whole numbers are numbers, but true and false are not."""
    wanted = (*kinds, int) if float in kinds else kinds
    return isinstance(value, wanted) and (bool in kinds or not isinstance(value, bool))


class Archive:
    """The folder of one run; `description` is plain data that determines every bit of it."""

    def __init__(self, path: str | Path, description: dict[str, Any], data: Arrays, *, resume: bool) -> None:
        """Open the folder: a new run if it is empty, the one in it with `resume`; any other is refused."""
        self.path, self.steps = Path(path), Path(path) / STEPS
        self.mended: list[str] = []
        """What was put right, in sentences."""
        with self._told("The run directory {path} cannot be made"):
            self.steps.mkdir(parents=True, exist_ok=True)
        check_files(self.path, FILES)
        self._lock()
        try:
            with self._told("The run in {path} cannot be begun"):
                self._open(description, pack(data), resume)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _told(
        self, words: str, kept: str = "nothing is kept of it: {remedy}, or name another folder."
    ) -> Iterator[None]:
        """One sentence where the disk does not take what is written: what that was, what is kept, and how to go on."""
        try:
            yield
        except OSError as error:
            why = f"{words}: {error.strerror or error}; {kept}"
            raise UserError(why.format(path=self.path, remedy=remedy(error), resume=resume_words(self.path))) from None

    def _open(self, description: dict[str, Any], data: bytes, resume: bool) -> None:
        place = self.path / "run.json"
        if exists(place) and not resume:
            raise UserError(f"{self.path} holds a run already; add --resume to go on with it, or name another folder.")
        if exists(place) and (numbers(self.path, RECORD) or self._begun()):
            self.mended = mend(self.path)
            self._check(description, digest(data))
        elif names_in(self.steps):
            raise UserError(f"{self.path} holds steps of a run but no run.json; name another folder.")
        else:
            write_safely(self.path / "data.npz", data)
            write_safely(place, sealed({"format": FORMAT, "data": digest(data), "description": description}))
        self.records, self._last, dropped = read_chain(self.path)
        sets = numbers(self.path, SET)
        self.size = sum(size_of(self.steps / f"{number:06d}.npz") for number in sets)
        taken = {number for number, record in enumerate(self.records, start=1) if not record.diverged}
        self._lost = taken - dropped - set(sets)
        """Sets that a step dropped which was cut short itself."""

    def _begun(self) -> bool:
        """Was a run that has no steps yet written down as a whole?"""
        try:
            read_request(self.path)
        except UserError:
            return False
        return True

    def _lock(self) -> None:
        with self._told(
            "The run directory {path} cannot be written to", "{remedy}, or copy the run elsewhere and go on there."
        ):
            self._held = ExitStack()
            handle = self._held.enter_context(opened_file(self.path / ".lock", os.O_RDWR | os.O_CREAT))
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # other systems have no such lock; two runs in one folder are then the user's to avoid
            return
        except OSError:
            self.close()
            raise UserError(
                f"Another process is working in {self.path}; wait for it, or name another folder."
            ) from None

    def close(self) -> None:
        self._held.close()

    def _check(self, description: dict[str, Any], data: str) -> None:
        """Refuse to go on with a run that was asked for otherwise, or in another format."""
        kept = opened(self.path / "run.json")
        if (written := kept.get("format")) != FORMAT:
            raise UserError(f"{self.path} was written in format {written}; this version reads format {FORMAT}.")
        before, _ = read_request(self.path)
        if kept["data"] != data:
            raise UserError(f"{self.path} belongs to a run on other data; name another folder.")
        if key := differing(before, description):
            raise UserError(
                f"{self.path} belongs to another run: {key} was {_short(before.get(key))} there and is "
                f"{_short(description.get(key))} here; name another folder, or use the same settings and versions."
            )

    def save(self, number: int, record: StepRecord, arrays: Arrays | None, needed: set[int]) -> None:
        """Keep the set after step `number` (None if it diverged); `needed`: steps whose sets must not be dropped."""
        with self._told(
            f"Step {number} cannot be written to {{path}}",
            f"what was done before is kept ({number - 1} step(s)): {{remedy}}, then {{resume}}.",
        ):
            self._save(number, record, arrays, needed)

    def _save(self, number: int, record: StepRecord, arrays: Arrays | None, needed: set[int]) -> None:
        place, hashed = self.steps / f"{number:06d}", None
        if arrays is not None:
            content = pack(arrays)
            write_safely(place.with_suffix(".npz"), content)
            self.size, hashed = self.size + len(content), digest(content)
        dropped = sorted({*self._superfluous(number, needed), *self._lost})
        chained = {"number": number, "arrays": hashed, "dropped": dropped, "previous": self._last, "kernel": kernel()}
        text = sealed(record_json(record) | chained)
        write_safely(place.with_suffix(".json"), text)
        self._last = digest(text)
        self.records.append(record)
        for old in dropped:
            remove(self.steps / f"{old:06d}.npz")
        self._lost = set()

    def _superfluous(self, number: int, needed: set[int]) -> list[int]:
        """The oldest sets, until what is left fits."""
        out: list[int] = []
        for old in numbers(self.path, SET):
            if self.size > KEEP and old not in {number, *needed}:
                self.size -= size_of(self.steps / f"{old:06d}.npz")
                out.append(old)
        return out

    def save_result(self, plain: dict[str, Any], arrays: Arrays) -> None:
        """Keep what was found in the end, bound to the chain of steps."""
        content = pack(arrays)
        bound = {"arrays": digest(content), "previous": self._last, "kernel": kernel()}
        with self._told("The result cannot be written to {path}", "all steps are kept: {remedy}, then {resume}."):
            write_safely(self.path / "test.npz", content)
            write_safely(self.path / "result.json", sealed({**plain, **bound}))

    def read_result(self) -> dict[str, Array] | None:
        """What was found, if the run is over."""
        return read_result(self.path, self._last)

    def load(self, number: int) -> dict[str, Array]:
        return read_step(self.path, number)


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first key in which a description differs from what was written."""
    one, other = (json.loads(json.dumps(plain, allow_nan=False)) for plain in (before, now))
    return next((key for key in {**one, **other} if one.get(key) != other.get(key)), None)


class Kept:
    """A finished run, only read: nothing is written, and no lock is taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records, self._last, _ = read_chain(path)

    def load(self, number: int) -> dict[str, Array]:
        return read_step(self.path, number)

    def save(self, number: int, record: StepRecord, arrays: Arrays | None, needed: set[int]) -> None:
        raise AssertionError("a finished run has no further steps")

    def read_result(self) -> dict[str, Array] | None:
        return read_result(self.path, self._last)

    def save_result(self, plain: dict[str, Any], arrays: Arrays) -> None:
        raise AssertionError("a finished run has a result")


def read_chain(path: Path) -> tuple[list[StepRecord], str, set[int]]:
    """All records in order, the hash of the last one, and which sets were dropped; `UserError` where the chain is broken."""
    check_files(path, FILES)
    plain, last, dropped = chain(path)
    with fitting(f"A record of a step in {path}"):
        return [record_of(one) for one in plain], last, dropped


def read_result(path: Path, last: str) -> dict[str, Array] | None:
    """What a run found, if it is over; `UserError` if that is not what was written after the record with the hash `last`."""
    if not exists(path / "result.json"):
        return None
    plain = opened(path / "result.json")
    refused = f"The result in {path} was altered or belongs to another run; remove result.json."
    if plain.get("previous") != last:
        raise UserError(refused)
    return arrays_in(path / "test.npz", plain.get("arrays"), refused)


def read_request(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """What was asked for: its description, and the data; `UserError` if these are not what was written."""
    check_files(path, FILES)
    kept = opened(path / "run.json")
    with fitting(f"The request in {path}"):
        data = arrays_in(path / "data.npz", kept["data"], f"The data in {path} were cut short or altered.")
        _check_weights(path, kept["description"], data)
    description: dict[str, Any] = kept["description"]
    return description, data


def _check_weights(path: Path, description: Mapping[str, Any], data: Arrays) -> None:
    """Refuse data without the weights that their rows had: ranges of a weighted fit say nothing about an unweighted one.

    The description has a hash of them; where it was written before there was one, the result says if there were any.
    """
    found, said = weights_sha256(data), description["data"].get("weights_sha256")
    lost = found is None and "sample_weight" in _whole_result(path)
    if found != said or lost:
        raise UserError(f"The weights of the rows in {path} were lost or altered; run it again in another folder.")


def _whole_result(path: Path) -> dict[str, Any]:
    """The result, or nothing where there is none, or where it was cut short: who reads it says so."""
    try:
        return opened(path / "result.json")
    except UserError:
        return {}


def read_step(path: Path, number: int) -> dict[str, Array]:
    """The set after step `number`, as arrays; `UserError` if the file is not the one that was written."""
    place = path / STEPS / f"{number:06d}.npz"
    again = f"remove the files of step {number} and later ones to go on from step {number - 1}"
    said = opened(place.with_suffix(".json")).get("arrays")
    if not exists(place):
        raise UserError(f"The set after step {number} is not in {path} (any more).")
    found = arrays_in(place, said, f"{place} was cut short or altered; {again}.")
    if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in found.values()):
        raise UserError(f"The set in {place} has NaN or infinite ends, and no set that is written has; {again}.")
    return found


def _short(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def run_in(path: str | Path, request: Request, hear: Callbacks | None = None, *, resume: bool = False) -> CertifiedRun:
    """Certify, with the set after every step kept in this folder; with `resume`, an interrupted run in it goes on."""
    with closing(Archive(path, request.to_json(), request.arrays(), resume=resume)) as archive:
        for sentence in archive.mended:
            (hear or Callbacks()).on_note(sentence)
        return certify(request, hear, archive)


def stored_request(path: str | Path, threat: Threat | None = None) -> Request:
    """The request behind a run directory; `threat` where it cannot be written to a file (rules)."""
    with fitting(f"The request in {path}"):
        request = Request.of_json(*read_request(Path(path)), threat)
        request.check_parts()
        return request


def load_run(path: str | Path, threat: Threat | None = None) -> CertifiedRun:
    """A finished run, read from its directory; `threat` where the file cannot hold it (rules). Nothing is written."""
    path = Path(path)
    request, kept = stored_request(path, threat), Kept(path)
    if threat is not None and (key := differing(read_request(path)[0], request.to_json())) not in (None, "versions"):
        raise UserError(
            f"{path} belongs to another run: {key} is another one there; hand in the threat that it was made with."
        )
    whole = len(kept.records) == len(request.unrolled.steps) or any(record.diverged for record in kept.records)
    if kept.read_result() is None or not whole:
        raise UserError(f"The run in {path} is not finished; go on with it first: mibp-cert resume {quote(str(path))}")
    return certify(request, None, kept)


def resume_run(path: str | Path, threat: Threat | None = None, callbacks: Callbacks | None = None) -> CertifiedRun:
    """Go on with the run in this directory where it stopped; a finished one is only read."""
    path = Path(path)
    if _is_finished(path):
        return load_run(path, threat)
    return run_in(path, stored_request(path, threat), callbacks, resume=True)


def _is_finished(path: Path) -> bool:
    """Is there a result that fits its steps?"""
    try:
        return read_result(path, read_chain(path)[1]) is not None
    except UserError:
        return False  # what can be mended is, and what cannot is refused


def keep_config(path: Path, plain: Any) -> None:
    """Keep the caller's own configuration with the run."""
    try:
        write_safely(
            path / "config.json", sealed({"configuration": plain, "run": digest(read_file(path / "run.json"))})
        )
    except OSError as error:
        raise UserError(
            f"The configuration cannot be written to {path}: {error.strerror}; the run is kept: {remedy(error)}, then "
            f"{resume_words(path)}."
        ) from None


def read_config(path: Path) -> dict[str, Any] | None:
    """The configuration that was kept with the run, if there is one."""
    if not exists(path / "config.json"):
        return None
    kept = opened(path / "config.json")
    if kept.get("run") != digest(read_file(path / "run.json")):
        raise UserError(f"The configuration in {path} belongs to another run; remove config.json.")
    plain: dict[str, Any] | None = kept.get("configuration")
    with fitting(f"The configuration in {path}"):
        if not isinstance(plain, dict) or not all(isinstance(section, dict) for section in plain.values()):
            raise TypeError("it has no sections")
        return plain
