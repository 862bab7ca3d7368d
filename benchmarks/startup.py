"""CPU seconds before anything happens: the help, the version, the bare import, and the import of everything.

Each is a process of its own, and the least of several is shown, since other work on the machine only adds. `--beside` takes the
`src` folder of another version, whose figures come in a second column.

    python benchmarks/startup.py [--repeats 5] [--beside ../older/src]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

import mibp_cert

CASES = {
    "python": ["-c", "pass"],
    "mibp-cert --help": ["-m", "mibp_cert", "--help"],
    "mibp-cert certify --help": ["-m", "mibp_cert", "certify", "--help"],
    "mibp-cert --version": ["-m", "mibp_cert", "--version"],
    "import mibp_cert": ["-c", "import mibp_cert"],
    "from mibp_cert import *": ["-c", "from mibp_cert import *"],
}


def _spent() -> float:
    """CPU seconds, user and system, of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_seconds(arguments: list[str], source: Path, repeats: int) -> float:
    """The least that a process of these arguments took, with the package in `source`."""
    found = []
    for _ in range(repeats):
        before = _spent()
        subprocess.run(
            [sys.executable, *arguments], env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True, check=True
        )
        found.append(_spent() - before)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--beside", type=Path)
    args = parser.parse_args()
    sources = {"this version": Path(mibp_cert.__file__).parents[1]} | ({"beside": args.beside} if args.beside else {})
    print(f"{'CPU seconds':26}" + "".join(f"{name:>14}" for name in sources))
    for name, arguments in CASES.items():
        figures = [cpu_seconds(arguments, source, args.repeats) for source in sources.values()]
        print(f"{name:26}" + "".join(f"{figure:14.2f}" for figure in figures))


if __name__ == "__main__":
    main()
