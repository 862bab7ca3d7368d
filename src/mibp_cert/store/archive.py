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
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mibp_cert.certify.loop import StepRecord
from mibp_cert.engines import StepReport
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError

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
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def pack(arrays: Mapping[str, Any]) -> bytes:
    """Arrays as a NumPy archive; the same arrays give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())  # no time stamp
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Array]:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


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


_RECORD = ("steps", "elapsed", "diverged", "nominal", "certified", "validated", "radius_mean", "radius_max")
_REPORT = ("seconds", "programs", "nodes", "fallbacks", "unstable_gates", "unstable_relus")


def record_json(record: StepRecord) -> dict[str, Any]:
    report, gap = record.report, record.report.gap
    told = {name: getattr(report, name) for name in _REPORT}
    told["gap"] = repr(float(gap.max())) if gap.size else None
    return {**{name: getattr(record, name) for name in _RECORD}, "report": told}


def record_of(plain: Mapping[str, Any]) -> StepRecord:
    told, gap = {name: plain["report"][name] for name in _REPORT}, plain["report"]["gap"]
    report = StepReport(**told, gap=np.zeros(0) if gap is None else np.array([float(gap)]))
    return StepRecord(report=report, **{name: plain[name] for name in _RECORD})


class Archive:
    """The folder of one run; `description` is plain data that determines every bit of it."""

    def __init__(
        self, path: str | Path, description: dict[str, Any], arrays: Mapping[str, Any], *, resume: bool
    ) -> None:
        """Open the folder: a new run if it is empty, the one in it with `resume`; any other is refused."""
        self.path, self.steps = Path(path), Path(path) / "steps"
        try:
            self.steps.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"The run directory {self.path} cannot be made: {error.strerror}.") from None
        self._lock()
        try:
            self._open(description, pack(arrays), resume)
        except BaseException:
            self.close()
            raise

    def _open(self, description: dict[str, Any], data: bytes, resume: bool) -> None:
        place = self.path / "run.json"
        if place.exists():
            if not resume:
                raise UserError(
                    f"{self.path} holds a run already; add --resume to go on with it, or name another folder."
                )
            self._check(opened(place), description, digest(data))
        else:
            if any(self.steps.iterdir()):
                raise UserError(f"{self.path} holds steps of a run but no run.json; name another folder.")
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

    def _check(self, kept: dict[str, Any], description: dict[str, Any], data: str) -> None:
        if kept.get("format") != FORMAT:
            raise UserError(
                f"{self.path} was written in format {kept.get('format')}; this version reads format {FORMAT}."
            )
        if kept["data"] != data or digest((self.path / "data.npz").read_bytes()) != data:
            raise UserError(f"{self.path} belongs to a run on other data; name another folder.")
        mine = json.loads(json.dumps(description, allow_nan=False))
        for key in {**kept["description"], **mine}:
            before, now = kept["description"].get(key), mine.get(key)
            if before != now:
                raise UserError(
                    f"{self.path} belongs to another run: {key} was {_short(before)} there and is {_short(now)} here; name "
                    "another folder, or use the same settings and versions."
                )

    def save(self, number: int, record: StepRecord, arrays: Mapping[str, Any] | None, needed: set[int]) -> None:
        """Keep the set after step `number` (None if it diverged); `needed`: steps whose sets must not be dropped."""
        place, content = self.steps / f"{number:06d}", b"" if arrays is None else pack(arrays)
        if arrays is not None:
            write_safely(place.with_suffix(".npz"), content)
            self.size += len(content)
        dropped = self._superfluous(number, needed)
        plain = {
            **record_json(record),
            "number": number,
            "arrays": None if arrays is None else digest(content),
            "dropped": dropped,
            "previous": self._last,
        }
        text = sealed(plain)
        write_safely(place.with_suffix(".json"), text)
        self._last = digest(text)
        self.records.append(record)
        for old in dropped:
            (self.steps / f"{old:06d}.npz").unlink(missing_ok=True)

    def _superfluous(self, number: int, needed: set[int]) -> list[int]:
        """The oldest sets, until what is left fits."""
        out: list[int] = []
        for path in sorted(self.steps.glob("*.npz")):
            if self.size <= KEEP:
                break
            old = int(path.stem)
            if old != number and old not in needed:
                self.size -= path.stat().st_size
                out.append(old)
        return out

    def save_result(self, plain: dict[str, Any], arrays: Mapping[str, Any]) -> None:
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
    files = sorted((path / "steps").glob("*.json"))
    for number, place in enumerate(files, start=1):
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
    content = _content(path / "test.npz")
    if plain["previous"] != last or plain["arrays"] != digest(content):
        raise UserError(f"The result in {path} was altered or belongs to another run; remove result.json.")
    return unpack(content)


def read_request(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """What was asked for: its description, and the data; `UserError` if these are not what was written."""
    kept = opened(path / "run.json")
    content = _content(path / "data.npz")
    if digest(content) != kept["data"]:
        raise UserError(f"The data in {path} were cut short or altered.")
    return kept["description"], unpack(content)


def read_step(path: Path, number: int) -> dict[str, Array]:
    """The set after step `number`, as arrays; `UserError` if the file is not the one that was written."""
    place = path / "steps" / f"{number:06d}.npz"
    said = opened(place.with_suffix(".json"))["arrays"]
    try:
        content = place.read_bytes()
    except FileNotFoundError:
        raise UserError(f"The set after step {number} is not in {path} (any more).") from None
    if digest(content) != said:
        raise UserError(
            f"{place} was cut short or altered; remove the files of step {number} and later ones to go on from step {number - 1}."
        )
    return unpack(content)


def _content(place: Path) -> bytes:
    """The bytes of a file; none where there is no such file, which no hash agrees with."""
    return place.read_bytes() if place.exists() else b""


def _short(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
