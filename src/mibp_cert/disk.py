"""Files, reached without following what somebody may have planted in their folder, and written as a whole.

A run directory may come from anybody. A symbolic link in it would have us read or write elsewhere, a FIFO would have us wait for
ever. So each file is opened by its own name within its folder, which is opened before; links are not followed, and what is no
plain file is refused. The folder that the user named may itself be reached by links: that is the user's own word.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from mibp_cert.errors import UserError

STEPS = "steps"
"""The only folder in a run directory."""
BY_FOLDER = os.open in os.supports_dir_fd
"""Can files be reached through an open folder? Elsewhere (Windows) by their whole path, whose links are only looked for."""
BLIND = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
BINARY = getattr(os, "O_BINARY", 0)
DRAFT = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""What a file is called while it is written: nobody can guess it, and nothing that is there is opened."""
LARGEST = 1 << 33
"""Bytes of a file that is read as a whole."""
REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room within the quota",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EROFS: "make the folder writable",
    errno.EACCES: "make the folder writable",
    errno.EPERM: "make the folder writable",
}


def remedy(error: OSError) -> str:
    """What to do before it can go on."""
    return REMEDIES.get(error.errno or 0, "look at the disk")


def resume_words(run: Path) -> str:
    return f"go on with mibp-cert resume {quote(str(run))}"


@contextmanager
def opened_folder(folder: Path) -> Iterator[int | None]:
    """The folder, open; the one with the steps must be no link. None where files cannot be reached that way."""
    inner = folder.name == STEPS
    if inner and folder.is_symlink():
        raise UserError(_refused(folder, "a symbolic link"))
    if not BY_FOLDER:
        yield None
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (os.O_NOFOLLOW if inner else 0))
    try:
        yield handle
    finally:
        os.close(handle)


def _named(place: Path, at: int | None) -> str:
    return str(place) if at is None else place.name


def kind_of(place: Path, at: int | None) -> str:
    """What is there: nothing (""), a "file", or what else, in words."""
    try:
        mode = os.stat(_named(place, at), dir_fd=at, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return ""
    tests = {
        "a symbolic link": stat.S_ISLNK,
        "a folder": stat.S_ISDIR,
        "a FIFO": stat.S_ISFIFO,
        "a socket": stat.S_ISSOCK,
        "file": stat.S_ISREG,
    }
    return next((words for words, test in tests.items() if test(mode)), "a device")


def _refused(place: Path, what: str) -> str:
    return f"{place} is {what}, and no file of a run is: nothing was read or written; remove it if it is not yours."


@contextmanager
def opened_file(place: Path, flags: int) -> Iterator[int]:
    """The plain file at this place, open; `FileNotFoundError` where there is none, `UserError` for everything else."""
    with opened_folder(place.parent) as at:
        if (what := kind_of(place, at)) not in ("", "file"):
            raise UserError(_refused(place, what))
        handle = os.open(_named(place, at), flags | BLIND | BINARY, 0o666, dir_fd=at)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):  # exchanged meanwhile
            raise UserError(_refused(place, "no plain file"))
        yield handle
    finally:
        os.close(handle)


def read_file(place: Path) -> bytes:
    """The content of a file; `FileNotFoundError` where there is none, `UserError` where it cannot be read."""
    try:
        with opened_file(place, os.O_RDONLY) as handle:
            if os.fstat(handle).st_size > LARGEST:
                raise UserError(
                    f"{place} is larger than {LARGEST >> 30} GiB, and no file of a run is: nothing is read from it."
                )
            with open(handle, "rb", closefd=False) as source:
                return source.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error.strerror or error}; look at its rights.") from None


def exists(place: Path) -> bool:
    """Is there a file? A link counts as one, and is refused when it is opened."""
    return os.path.lexists(place)


def names_in(folder: Path) -> list[str]:
    """What is in a folder, in order."""
    with opened_folder(folder) as at:
        return sorted(os.listdir(folder if at is None else at))


def size_of(place: Path) -> int:
    with opened_folder(place.parent) as at:
        return os.stat(_named(place, at), dir_fd=at, follow_symlinks=False).st_size


def remove(place: Path) -> None:
    """Remove a file, if it is there; of a link, the link itself."""
    with suppress(FileNotFoundError), opened_folder(place.parent) as at:
        os.unlink(_named(place, at), dir_fd=at)


def write_safely(path: Path, content: bytes) -> None:
    """Put a file into place as a whole: readers see the old one or the new one, also after a kill or a power cut."""
    with opened_folder(path.parent) as at:
        if (what := kind_of(path, at)) not in ("", "file"):
            raise UserError(_refused(path, what))
        draft, name = _named(path.with_name(f".{secrets.token_hex(8)}.tmp"), at), _named(path, at)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BLIND | BINARY, 0o666, dir_fd=at)
        try:
            with open(handle, "wb") as target:
                target.write(content)
                target.flush()
                os.fsync(target.fileno())
            os.replace(draft, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=at)
            raise
        if at is not None:
            os.fsync(at)


def check_files(run: Path, names: tuple[str, ...]) -> None:
    """Refuse a run directory in which something with the name of a file is none, before anything is touched."""
    try:
        with opened_folder(run) as at:
            for place in (run / name for name in names):
                if (what := kind_of(place, at)) not in ("", "file"):
                    raise UserError(_refused(place, what))
            if (what := kind_of(run / STEPS, at)) not in ("", "a folder"):
                raise UserError(_refused(run / STEPS, what))
        if what:
            with opened_folder(run / STEPS) as at:
                for name in os.listdir(run / STEPS if at is None else at):
                    if (what := kind_of(run / STEPS / name, at)) not in ("", "file"):
                        raise UserError(_refused(run / STEPS / name, what))
    except FileNotFoundError:
        raise UserError(f"There is no run directory {run}.") from None
    except NotADirectoryError:
        raise UserError(f"{run} is a file, not a run directory.") from None
    except OSError as error:
        raise UserError(f"The run directory {run} cannot be read: {error.strerror}; look at its rights.") from None
