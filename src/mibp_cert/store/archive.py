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

import hashlib
import io
import json
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from mibp_cert.certify.loop import Callbacks, StepRecord, certify
from mibp_cert.certify.plain import weights_sha256
from mibp_cert.certify.request import Request
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.engines import StepReport
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError
from mibp_cert.threats import Threat

Arrays = Mapping[str, Any]
FORMAT = 2
"""Ranges and attacks of a regression are in the units of its targets since 2."""
KEEP = 1 << 30
"""Bytes of steps that are kept; above, the oldest sets are dropped (their records stay)."""


def write_safely(path: Path, content: bytes) -> None:
    """Put a file into place as a whole: readers see the old one or the new one, also after a kill or a power cut."""
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("wb") as target:
        target.write(content)
        target.flush()
        os.fsync(target.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def pack(arrays: Arrays) -> bytes:
    """Arrays as a NumPy archive; the same arrays give the same bytes, since members of one have no time stamp."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Array]:
    return dict(np.load(io.BytesIO(content), allow_pickle=False))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sealed(plain: dict[str, Any]) -> bytes:
    """JSON with a hash of itself."""
    return (json.dumps({**plain, "sha256": _seal(plain)}, indent=1, allow_nan=False) + "\n").encode()


def _seal(plain: dict[str, Any]) -> str:
    return digest(json.dumps(plain, sort_keys=True, allow_nan=False).encode())


def opened(path: Path) -> dict[str, Any]:
    """The content of such a file; `UserError` if it is not what was written."""
    try:
        plain: dict[str, Any] = json.loads(path.read_bytes())
        same = plain.pop("sha256") == _seal(plain)
    except FileNotFoundError:
        raise UserError(f"{path.parent} is not a run directory: there is no {path.name}.") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        same = False
    if not same:
        raise UserError(f"{path} was cut short or altered; nothing is read from it.")
    return plain


def record_json(record: StepRecord) -> dict[str, Any]:
    """A record as plain data: of the gaps the largest."""
    plain, gap = asdict(record), record.report.gap
    plain["report"]["gap"] = repr(float(gap.max())) if gap.size else None
    return plain


def record_of(plain: Mapping[str, Any]) -> StepRecord:
    told, gap = plain["report"], plain["report"]["gap"]
    report = StepReport(**{**told, "gap": np.zeros(0) if gap is None else np.array([float(gap)])})
    return StepRecord(**{f.name: plain[f.name] for f in fields(StepRecord)} | {"report": report})


class Archive:
    """The folder of one run; `description` is plain data that determines every bit of it."""

    def __init__(self, path: str | Path, description: dict[str, Any], data: Arrays, *, resume: bool) -> None:
        """Open the folder: a new run if it is empty, the one in it with `resume`; any other is refused."""
        self.path, self.steps = Path(path), Path(path) / "steps"
        try:
            self.steps.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"The run directory {self.path} cannot be made: {error.strerror}.") from None
        self._lock()
        try:
            self._open(description, pack(data), resume)
        except BaseException:
            self.close()
            raise

    def _open(self, description: dict[str, Any], data: bytes, resume: bool) -> None:
        place = self.path / "run.json"
        if place.exists() and not resume:
            raise UserError(f"{self.path} holds a run already; add --resume to go on with it, or name another folder.")
        if place.exists():
            self._check(description, digest(data))
        elif any(self.steps.iterdir()):
            raise UserError(f"{self.path} holds steps of a run but no run.json; name another folder.")
        else:
            write_safely(self.path / "data.npz", data)
            write_safely(place, sealed({"format": FORMAT, "data": digest(data), "description": description}))
        self.records, self._last, _ = read_chain(self.path)
        self.size = sum(p.stat().st_size for p in self.steps.glob("*.npz"))

    def _lock(self) -> None:
        self._held = (self.path / ".lock").open("w")
        try:
            import fcntl

            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        now = json.loads(json.dumps(description, allow_nan=False))
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                raise UserError(
                    f"{self.path} belongs to another run: {key} was {_short(before.get(key))} there and is "
                    f"{_short(now.get(key))} here; name another folder, or use the same settings and versions."
                )

    def save(self, number: int, record: StepRecord, arrays: Arrays | None, needed: set[int]) -> None:
        """Keep the set after step `number` (None if it diverged); `needed`: steps whose sets must not be dropped."""
        place, hashed = self.steps / f"{number:06d}", None
        if arrays is not None:
            content = pack(arrays)
            write_safely(place.with_suffix(".npz"), content)
            self.size, hashed = self.size + len(content), digest(content)
        dropped = self._superfluous(number, needed)
        chained = {"number": number, "arrays": hashed, "dropped": dropped, "previous": self._last}
        text = sealed(record_json(record) | chained)
        write_safely(place.with_suffix(".json"), text)
        self._last = digest(text)
        self.records.append(record)
        for old in dropped:
            (self.steps / f"{old:06d}.npz").unlink(missing_ok=True)

    def _superfluous(self, number: int, needed: set[int]) -> list[int]:
        """The oldest sets, until what is left fits."""
        out: list[int] = []
        for path in sorted(self.steps.glob("*.npz")):
            old = int(path.stem)
            if self.size > KEEP and old not in {number, *needed}:
                self.size -= path.stat().st_size
                out.append(old)
        return out

    def save_result(self, plain: dict[str, Any], arrays: Arrays) -> None:
        """Keep what was found in the end, bound to the chain of steps."""
        content = pack(arrays)
        write_safely(self.path / "test.npz", content)
        write_safely(self.path / "result.json", sealed({**plain, "arrays": digest(content), "previous": self._last}))

    def read_result(self) -> dict[str, Array] | None:
        """What was found, if the run is over."""
        return read_result(self.path, self._last)

    def load(self, number: int) -> dict[str, Array]:
        return read_step(self.path, number)


def read_chain(path: Path) -> tuple[list[StepRecord], str, set[int]]:
    """All records in order, the hash of the last one, and which sets were dropped; `UserError` where the chain is broken."""
    opened(path / "run.json")  # refuses what is no run
    last, dropped, records = digest((path / "run.json").read_bytes()), set[int](), []
    for number, place in enumerate(sorted((path / "steps").glob("*.json")), start=1):
        if place.name != f"{number:06d}.json":
            raise UserError(
                f"The record of step {number} is missing in {path}; name another folder, or remove later steps."
            )
        plain = opened(place)
        if plain["previous"] != last or plain["number"] != number:
            raise UserError(
                f"Step {number} in {path} does not belong to this run; remove it and later steps to go on from step {number - 1}."
            )
        last = digest(place.read_bytes())
        dropped |= set(plain["dropped"])
        records.append(record_of(plain))
    return records, last, dropped


def read_result(path: Path, last: str) -> dict[str, Array] | None:
    """What a run found, if it is over; `UserError` if that is not what was written after the record with the hash `last`."""
    if not (path / "result.json").exists():
        return None
    plain = opened(path / "result.json")
    refused = f"The result in {path} was altered or belongs to another run; remove result.json."
    if plain["previous"] != last:
        raise UserError(refused)
    return _arrays(path / "test.npz", plain["arrays"], refused)


def read_request(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """What was asked for: its description, and the data; `UserError` if these are not what was written."""
    kept = opened(path / "run.json")
    data = _arrays(path / "data.npz", kept["data"], f"The data in {path} were cut short or altered.")
    _check_weights(path, kept["description"], data)
    return kept["description"], data


def _check_weights(path: Path, description: Mapping[str, Any], data: Arrays) -> None:
    """Refuse data without the weights that their rows had: ranges of a weighted fit say nothing about an unweighted one.

    The description has a hash of them; where it was written before there was one, the result says if there were any.
    """
    found, said = weights_sha256(data), description["data"].get("weights_sha256")
    place = path / "result.json"
    lost = found is None and place.exists() and "sample_weight" in opened(place)
    if found != said or lost:
        raise UserError(f"The weights of the rows in {path} were lost or altered; run it again in another folder.")


def read_step(path: Path, number: int) -> dict[str, Array]:
    """The set after step `number`, as arrays; `UserError` if the file is not the one that was written."""
    place = path / "steps" / f"{number:06d}.npz"
    again = f"remove the files of step {number} and later ones to go on from step {number - 1}"
    said = opened(place.with_suffix(".json"))["arrays"]
    if not place.exists():
        raise UserError(f"The set after step {number} is not in {path} (any more).")
    return _arrays(place, said, f"{place} was cut short or altered; {again}.")


def _arrays(place: Path, hashed: str, refused: str) -> dict[str, Array]:
    """The arrays in a file with this hash; if it has another one, or is not there, `UserError`."""
    content = place.read_bytes() if place.exists() else b""
    if digest(content) != hashed:
        raise UserError(refused)
    return unpack(content)


def _short(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def run_in(path: str | Path, request: Request, hear: Callbacks | None = None, *, resume: bool = False) -> CertifiedRun:
    """Certify, with the set after every step kept in this folder; with `resume`, an interrupted run in it goes on."""
    with closing(Archive(path, request.to_json(), request.arrays(), resume=resume)) as archive:
        return certify(request, hear, archive)


def stored_request(path: str | Path, threat: Threat | None = None) -> Request:
    """The request behind a run directory; `threat` where it cannot be written to a file (rules)."""
    return Request.of_json(*read_request(Path(path)), threat)


def load_run(path: str | Path, threat: Threat | None = None) -> CertifiedRun:
    """A finished run, read from its directory; `threat` where the file cannot hold it (rules)."""
    if not (Path(path) / "result.json").exists():
        opened(Path(path) / "run.json")  # no run at all is another mistake
        raise UserError(f"The run in {path} is not finished; go on with it first: mibp-cert resume {path}")
    return resume_run(path, threat)


def resume_run(path: str | Path, threat: Threat | None = None, callbacks: Callbacks | None = None) -> CertifiedRun:
    """Go on with the run in this directory where it stopped; a finished one is only read."""
    return run_in(path, stored_request(path, threat), callbacks, resume=True)
