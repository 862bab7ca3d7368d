"""Runs whose every bit is kept: `tests/corpus.json` holds what each came to, and `test_corpus.py` compares.

They use public names and the command line alone, so that code can move behind them. `python tests/corpus.py` prints what they
come to here, `python tests/corpus.py --write` freezes it anew; both with one thread and one BLAS kernel.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import corpus_doors
import corpus_networks
from corpus_kept import (
    ENVIRONMENT,
    FROZEN,
    RUNS,
    plain,
    versions,
)

__all__ = ["ENVIRONMENT", "FROZEN", "RUNS", "corpus_doors", "corpus_networks"]


def main() -> None:
    found = {}
    for name, run in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = json.loads(json.dumps(plain(run(Path(folder))), allow_nan=False, default=str))
    lines = [f"  {json.dumps(name)}: {json.dumps(result, sort_keys=True)}" for name, result in found.items()]
    text = f'{{"versions": {json.dumps(versions())},\n "runs": {{\n' + ",\n".join(lines) + "\n }\n}\n"
    if "--write" in sys.argv:
        FROZEN.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    if ENVIRONMENT.items() <= os.environ.items():
        main()
    else:  # libraries read these when they are loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
