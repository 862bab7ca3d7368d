"""What survives bad days: `python benchmarks/bad_days.py [PART …]` prints figures for each part.

- kills, exact, flushes: runs that are ended by SIGKILL, at random moments, within a step of the exact engine, or right before or
  after the n-th flush or rename, and resumed until they are over. Their bits are compared with those of a run left alone.
- ctrl-c: the keys pressed twice, a moment apart.
- links: links, FIFOs and folders in place of the files of a run.
- disk: a disk that is full after so many bytes, a limit of file sizes, a folder and a file without rights, little address space.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from bad_days import DRIVER, FILES, KINDS, answer, contents, put

LIMIT = 120


def start(folder: Path, engine: str, *at: str) -> subprocess.Popen[bytes]:
    """A run in a process of its own that begins, or goes on; `at`: which flush or rename it does not survive."""
    command = [sys.executable, "-c", DRIVER, str(folder), engine, *at]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def done(process: subprocess.Popen[bytes]) -> int:
    """Wait for it; its status."""
    status = process.wait(LIMIT)
    assert process.stdout is not None
    process.stdout.close()
    return status


def sets_in(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in (folder / "steps").glob("*.npz")}
    return found | {"test.npz": (folder / "test.npz").read_bytes()}


class Killer:
    """Kills that hit, and runs that were resumed to their end and compared with one that was left alone."""

    def __init__(self, root: Path, engine: str) -> None:
        self.engine, self.whole, self.folder = engine, root / "whole", root / "killed"
        self.rng, self.hits, self.ended, self.wrong = np.random.default_rng(0), Counter[str](), 0, 0
        assert done(start(self.whole, engine)) == 0

    def kill(self, kind: str, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        self.hits[kind] += done(process) == -signal.SIGKILL

    def end(self) -> None:
        """Resume what was killed until it is over, and compare; say how far it is."""
        assert done(start(self.folder, self.engine)) == 0, f"{self.folder} does not go on"
        self.ended += 1
        self.wrong += sets_in(self.folder) != sets_in(self.whole)
        shutil.rmtree(self.folder)
        print(
            f"  {sum(self.hits.values())} kills, {self.ended} resumed, {self.wrong} other", file=sys.stderr, flush=True
        )

    def tell(self) -> None:
        for kind, count in sorted(self.hits.items()):
            print(f"{count:>4} kills {kind}")
        print(f"{self.ended:>4} killed runs resumed to their end; with other bits: {self.wrong}")


def kills(root: Path) -> None:
    """At random moments of a run, from the start of the process on."""
    killer = Killer(root, "relational")
    for number in range(110):
        process = start(killer.folder, "relational")
        time.sleep(float(killer.rng.random()) * 2.5)
        killer.kill("at a random moment", process)
        if number % 3 == 2:
            killer.end()
    killer.tell()


def exact(root: Path) -> None:
    """While programs of a step after the first one are solved."""
    killer = Killer(root, "mibp")
    for number in range(60):
        process = start(killer.folder, "mibp")
        assert process.stdout is not None
        seen = process.stdout.read(1)  # a program was solved, and there are steps already; nothing: it is over
        time.sleep(float(killer.rng.random()) * 0.15 if seen else 0.0)
        killer.kill("while the exact engine took a step after its first", process)
        if number % 4 == 3 or not seen:
            killer.end()
    killer.tell()


def flushes(root: Path) -> None:
    """Right before or after the n-th flush or rename; every other run is killed twice."""
    killer = Killer(root, "relational")
    for number in range(60):
        call, side = ("fsync", "replace")[number % 2], ("before", "after")[number // 2 % 2]
        process = start(killer.folder, "relational", call, side, str(1 + int(killer.rng.integers(0, 12))))
        killer.hits[f"{side} {call}"] += done(process) == -signal.SIGKILL
        if number % 2:
            killer.end()
    killer.tell()


def ctrl_c(root: Path) -> None:
    for name, engine, pause in (
        ("relational, 0.0 s apart", "relational", 0.0),
        ("relational, 0.1 s apart", "relational", 0.1),
        ("mibp, 0.1 s apart", "mibp", 0.1),
        ("mibp, 0.5 s apart", "mibp", 0.5),
    ):
        folder = root / f"run {name}"
        flags = ["--engine", engine, "--epochs", "2000" if engine == "relational" else "10", "--run", str(folder)]
        command = [sys.executable, "-m", "mibp_cert", "certify", "two-moons", *flags]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=own_group
        )
        begun = time.monotonic()
        while not list(folder.glob("steps/000001.json")) and time.monotonic() - begun < LIMIT:
            time.sleep(0.05)
        pressed = time.monotonic()
        for _ in range(2):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(pause)
        _, said = process.communicate(timeout=LIMIT)
        took = time.monotonic() - pressed
        print(
            f"{name}: status {process.returncode} after {took:.1f} s, {len(said.splitlines())} line(s): {said.strip()[:300]}"
        )


def own_group() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)


def links(root: Path) -> None:
    whole, counts, touched = root / "whole", Counter[tuple[str, int | str]](), 0
    assert answer("certify", "two-moons", "--epochs", "2", "--batch-size", "50", "--run", whole, "-q")[0] == 0
    for kind in KINDS:
        for name in FILES:
            for command in ("verify", "report", "resume"):
                folder, outside = root / "run", root / "outside"
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(whole, folder)
                outside.write_text("not yours")
                put(kind, folder / name, outside)
                before = contents(folder)
                status, said = answer(command, folder, *([root / "page.html"] if command == "report" else []))
                same = contents(folder) == before and outside.read_text() == "not yours"
                touched += not same
                counts[command, status] += 1
                if not same or "Traceback" in said:
                    print(f"{kind} {name} {command}: {status} {said}")
    for (command, status), count in sorted(counts.items(), key=str):
        print(f"{count:>4} × {command}: status {status}")
    print(f"{touched} of {sum(counts.values())} touched")


def disk(root: Path) -> None:
    def table(name: str, *words: str | Path, before: Callable[[], None] = lambda: None) -> None:
        process = subprocess.run(
            [sys.executable, "-m", "mibp_cert", *map(str, words)],
            capture_output=True,
            text=True,
            preexec_fn=before,
            timeout=LIMIT,
            check=False,
        )
        said = process.stderr.strip().splitlines()
        print(f"{name}: status {process.returncode}, {len(said)} line(s): {said[-1] if said else ''}")

    def size(limit: int, kind: int = resource.RLIMIT_FSIZE) -> Callable[[], None]:
        return lambda: resource.setrlimit(kind, (limit, limit))

    certify = ("certify", "two-moons", "--epochs", "2", "--batch-size", "50", "-q")
    whole = root / "whole"
    table("nothing wrong", *certify, "--run", whole)
    for limit in (1_000, 100_000, 300_000, 500_000):
        folder = root / f"run{limit}"
        table(f"files of at most {limit} bytes", *certify, "--run", folder, before=size(limit))
        table("   resumed", "resume", folder, "-q")
    table("a file for JSON of at most 100 bytes", *certify, "--json", root / "a.json", before=size(100))
    table("a report of at most 100 bytes", "report", whole, root / "a.html", before=size(100))
    for limit in (400, 800, 1500):
        table(f"{limit} MiB of addresses", *certify, before=size(limit << 20, resource.RLIMIT_AS))
    table("printed onto a full disk", "doctor", "--no-check", before=full_output)
    table("a reader that goes away", "doctor", "--no-check", before=closed_output)
    (root / "file").write_text("")
    table("a run directory that is a file", *certify, "--run", root / "file")
    if os.geteuid() != 0 or shutil.which("mount") is None:
        print("the rest needs root, and mount")
        return
    small = root / "small"
    small.mkdir()
    for megabytes in (0.01, 0.2, 0.5, 1.5, 2.4):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={int(megabytes * 1e6)}", "tmpfs", small], check=True)
        try:
            table(f"a disk of {megabytes} MB", *certify, "--run", small / "run")
            table("   resumed, still full", "resume", small / "run", "-q")
            subprocess.run(["mount", "-o", "remount,size=50m", small], check=True)
            table("   resumed with room", "resume", small / "run", "-q")
        finally:
            subprocess.run(["umount", small], check=True)
    shutil.copytree(whole, small / "run")
    subprocess.run(["mount", "--bind", small, small], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", small], check=True)
        for name, words in {
            "verify": ("verify", small / "run"),
            "report": ("report", small / "run", root / "page.html"),
            "report without a place": ("report", small / "run"),
            "resume": ("resume", small / "run", "-q"),
            "certify": (*certify, "--run", small / "other"),
        }.items():
            table(f"read only: {name}", *words)
    finally:
        subprocess.run(["umount", small], check=True)
    (small / "run" / "result.json").unlink()
    subprocess.run(["mount", "--bind", small, small], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", small], check=True)
        table("read only: resume of a run that is not over", "resume", small / "run", "-q")
    finally:
        subprocess.run(["umount", small], check=True)


def full_output() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def closed_output() -> None:
    read, write = os.pipe()
    os.dup2(write, 1)
    os.close(read)
    os.close(write)


PARTS = {"kills": kills, "exact": exact, "flushes": flushes, "ctrl-c": ctrl_c, "links": links, "disk": disk}


def main() -> None:
    for name in sys.argv[1:] or PARTS:
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            PARTS[name](Path(folder))
        print(f"({time.monotonic() - begun:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
