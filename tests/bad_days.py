"""What may happen to a run directory: things in place of its files, and processes that end right before or after a flush."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from mibp_cert.cli import app
from mibp_cert.cli.ends import ended

KINDS = ("link", "dangling link", "loop", "FIFO", "socket", "folder")
FILES = (
    ".lock",
    "run.json",
    "data.npz",
    "result.json",
    "test.npz",
    "config.json",
    "steps",
    "steps/000002.npz",
    "steps/000002.json",
    "steps/000004.npz",
)

DRIVER = """
import os, signal, sys
folder, engine, *at = sys.argv[1:]
if at:
    call, side, left = getattr(os, at[0]), at[1], int(at[2])
    def counted(*args, **options):
        global left
        left -= 1
        if left == 0 and side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = call(*args, **options)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(os, at[0], counted)
import numpy as np, mibp_cert as mc
whole = mc.two_moons(0)
parts = [part.take(np.arange(12)) for part in (whole.train, whole.validation, whole.test)]
epochs = 3 if engine == "relational" else 8
asked = mc.Network.mlp([2, 2, 2]), mc.Split("small", *parts), mc.LInf(0.02 if engine == "relational" else 0.002)
attack = mc.AttackSettings(members=4, points=4, parameters=4, rounds=1, tries=4)
def solved(done, total):
    if os.path.exists(os.path.join(folder, "steps", "000001.json")):
        os.write(1, b".")
from mibp_cert.certify import Callbacks
training, solver = mc.Training(epochs=epochs, batch_size=6), mc.SolverSettings(jobs=1)
how = {"attack_settings": attack, "solver": solver, "callbacks": Callbacks(solved)}
mc.certify_training(*asked, training, engine, run_dir=folder, resume=True, **how)
"""
"""A small run that begins, or goes on, in the folder; and that is killed before or after the n-th call of `os.fsync` or
`os.replace`, where that is asked for. Every program that is solved after the first step is a dot."""


def spoken(*words: str | Path) -> tuple[int, str]:
    """Exit status of a command of this process, and what it says."""
    out, before, keys = io.StringIO(), sys.argv, signal.getsignal(signal.SIGINT)
    sys.argv = ["mibp-cert", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            return ended(app), out.getvalue()
    finally:
        sys.argv = before
        signal.signal(signal.SIGINT, keys)


def answer(*words: str | Path) -> tuple[int, str]:
    """Exit status of a command of this process, and what it says in one line."""
    status, said = spoken(*words)
    return status, " ".join(said.split())


def put(kind: str, place: Path, outside: Path) -> None:
    """Something in place of a file or folder of a run; links lead to `outside`, a copy of what was there if it was a file."""
    where = place.parent
    if place.is_dir():
        place.rename(where / "moved")
    else:
        place.unlink(missing_ok=True)
    if kind == "link":
        place.symlink_to(where / "moved" if (where / "moved").exists() else outside)
    elif kind == "dangling link":
        place.symlink_to(outside.with_name("nowhere"))
    elif kind == "loop":
        place.symlink_to(place.name)
    elif kind == "FIFO":
        os.mkfifo(place)
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(where)  # names of sockets are short
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(place.name)
        finally:
            os.chdir(here)
    elif place.name == "steps":
        place.write_text("")
    else:
        place.mkdir()


def contents(folder: Path) -> dict[str, Any]:
    """Everything below a folder: files with what is in them, and when they were changed; links are not followed."""
    found: dict[str, Any] = {}
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(at) / name
            plain = path.is_file() and not path.is_symlink()
            found[str(path.relative_to(folder))] = (
                path.lstat().st_mode,
                path.lstat().st_mtime_ns,
                path.read_bytes() if plain else os.readlink(path) if path.is_symlink() else b"",
            )
    return found
