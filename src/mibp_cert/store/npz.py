"""Arrays in files of a run, and plain data with a hash of itself. What is read may have been written by anybody."""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from mibp_cert.disk import read_file
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import MISFITS, UserError, fitting

Arrays = Mapping[str, Any]
BROKEN = (
    zipfile.BadZipFile,
    struct.error,
    TokenError,
    SyntaxError,
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
)
"""What zipfile and NumPy raise for archives that are damaged, or were made to harm."""
KINDS = "biufU"
"""Arrays hold booleans, numbers or text."""


def pack(arrays: Arrays) -> bytes:
    """Arrays as a NumPy archive; the same arrays give the same bytes, since members of one have no time stamp."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Array]:
    """The arrays in such an archive; `ValueError` for what `pack` did not write.

    Nothing is unpacked: members stand as they are, so that a small file can never become a large array, and each header announces
    what its member holds. Nothing is unpickled.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if len({info.filename for info in members}) < len(members):
                raise ValueError("a member is there twice")
            if sum(info.file_size for info in members) > len(content):
                raise ValueError("its members are larger than the file")
            return {info.filename.removesuffix(".npy"): _array(archive, info) for info in members}
    except BROKEN as error:
        raise ValueError(str(error)) from None


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    if info.compress_type != zipfile.ZIP_STORED or not info.filename.endswith(".npy"):
        raise ValueError(f"{info.filename} is packed, or no array")
    content = io.BytesIO(archive.read(info))
    version = np.lib.format.read_magic(content)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"{info.filename} is of an unknown version")
    shape, _, dtype = readers[version](content)
    if dtype.kind not in KINDS or dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError(f"{info.filename} holds no numbers and no text")
    if math.prod(shape) * dtype.itemsize != info.file_size - content.tell():
        raise ValueError(f"{info.filename} does not hold what its header announces")
    content.seek(0)
    array: Array = np.lib.format.read_array(content, allow_pickle=False)
    return array


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sealed(plain: dict[str, Any]) -> bytes:
    """JSON with a hash of itself."""
    return (json.dumps({**plain, "sha256": _seal(plain)}, indent=1, allow_nan=False) + "\n").encode()


def _seal(plain: dict[str, Any]) -> str:
    return digest(json.dumps(plain, sort_keys=True, allow_nan=False).encode())


def no_run(folder: Path, name: str) -> str:
    """Why nothing can be read from a folder that has no such file."""
    if any((folder / shares).is_dir() for shares in ("parts", "bags")):
        return (
            f"{folder} keeps the learners of an ensemble, which only certify … --ensemble … --run {folder} --resume reads: "
            "there is nothing to verify, report or resume."
        )
    return f"{folder} is not a run directory: there is no {name}."


def opened(path: Path) -> dict[str, Any]:
    """The content of such a file; `UserError` if it is not what was written."""
    try:
        plain: dict[str, Any] = json.loads(read_file(path))
        same = plain.pop("sha256") == _seal(plain)
    except FileNotFoundError:
        raise UserError(no_run(path.parent, path.name)) from None
    except UserError:
        raise
    except MISFITS:
        same = False
    if not same:
        raise UserError(f"{path} was cut short or altered; nothing is read from it.")
    return plain


def arrays_in(place: Path, hashed: Any, refused: str) -> dict[str, Array]:
    """The arrays in a file with this hash; if it has another one, or is not there, `UserError`."""
    try:
        content = read_file(place)
    except FileNotFoundError:
        content = b""
    if digest(content) != hashed:
        raise UserError(refused)
    with fitting(str(place)):
        return unpack(content)
