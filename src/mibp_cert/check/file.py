"""The file of a certificate: a zip archive with `certificate.json` and one `.npy` for each array, and nothing else.

Any program can read it: the JSON is plain UTF-8 text, the arrays are NumPy's format with 8-byte floats or whole numbers, in C
order; nothing is pickled. `docs/certificates.md` lists the keys. What is read may come from anybody: sizes are those that headers
announce, they are checked before anything is unpacked, and what does not fit is one sentence.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.errors import UserError

KIND, VERSION = "mibp-cert certificate", 1
JSON = "certificate.json"
LARGEST = 1 << 31
"""Bytes of all members together, unpacked."""
LARGEST_JSON = 1 << 26
DTYPES = ("<f8", "<i8")
WHEN = (1980, 1, 1, 0, 0, 0)
"""Members have one date, so that the same certificate is the same file."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Certificate:
    """What a file says: `plain` (the JSON) and `arrays`, as anybody may have written them."""

    plain: dict[str, Any]
    arrays: Arrays


def write_certificate(path: str | Path, plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the file as a whole: readers see the old one or the new one."""
    place, buffer = Path(path), io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        text = json.dumps({"kind": KIND, "version": VERSION, **plain}, indent=1, allow_nan=False)
        archive.writestr(zipfile.ZipInfo(JSON, WHEN), text + "\n", zipfile.ZIP_DEFLATED)
        for name, array in arrays.items():
            member = io.BytesIO()
            dtype = "<i8" if np.issubdtype(array.dtype, np.integer) else "<f8"
            np.lib.format.write_array(member, np.ascontiguousarray(array, dtype=dtype), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", WHEN), member.getvalue(), zipfile.ZIP_DEFLATED)
    draft = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(buffer.getvalue())
        draft.replace(place)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UserError(f"The certificate cannot be written to {place}: {error.strerror}.") from None


def read_certificate(path: str | Path) -> Certificate:
    """The certificate in a file; `UserError` if it is none."""
    place = Path(path)
    if not place.is_file():
        raise UserError(
            f"There is no certificate {place}: write one with mibp-cert certify … --certificate {place.name}."
        )
    try:
        with zipfile.ZipFile(place) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if len(members) < len(archive.infolist()) or JSON not in members:
                raise UserError(f"{place} is not a certificate: it holds no {JSON}, or a member twice.")
            if members[JSON].file_size > LARGEST_JSON or sum(info.file_size for info in members.values()) > LARGEST:
                raise UserError(f"{place} would unpack to more than {LARGEST >> 30} GB; certificates are smaller.")
            plain = json.loads(_content(archive, members.pop(JSON)), parse_constant=_refuse)
            arrays = {name.removesuffix(".npy"): _array(archive, info) for name, info in members.items()}
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error.strerror or error}.") from None
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{place} is not a certificate, or was cut short or altered: {error}.") from None
    if not isinstance(plain, dict) or plain.get("kind") != KIND:
        raise UserError(f"{place} is not a certificate: its kind is not '{KIND}'.")
    if plain.get("version") != VERSION:
        raise UserError(f"{place} is of version {plain.get('version')!r}; this program checks version {VERSION}.")
    return Certificate(plain, arrays)


def _refuse(constant: str) -> None:
    raise ValueError(f"the number {constant}")


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The bytes of a member: as many as its entry announces."""
    with archive.open(info) as member:
        content = member.read(info.file_size + 1)
    if len(content) != info.file_size:
        raise ValueError(f"{info.filename} has another size than announced")
    return content


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """An array of floats or whole numbers, all of them finite."""
    if not info.filename.endswith(".npy"):
        raise ValueError(f"{info.filename} is no array")
    content = io.BytesIO(_content(archive, info))
    if np.lib.format.read_magic(content) != (1, 0):
        raise ValueError(f"{info.filename} is no array of NumPy's format 1.0")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(content)
    if dtype.str not in DTYPES or fortran or any(side < 0 for side in shape):
        raise ValueError(f"{info.filename} is not an array of 8-byte numbers in C order")
    if math.prod(shape) * dtype.itemsize != info.file_size - content.tell():
        raise ValueError(f"{info.filename} does not hold what its header announces")
    array = np.frombuffer(content.read(), dtype=dtype).reshape(shape)
    if not np.isfinite(array).all():
        raise ValueError(f"{info.filename} holds NaN or infinite numbers")
    return array
