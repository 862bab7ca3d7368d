"""The public face: names, doctests, no extras loaded."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mibp_cert


def test_every_public_name_exists_and_is_documented() -> None:
    for name in mibp_cert.__all__:
        assert getattr(mibp_cert, name).__doc__, name


def test_examples_in_docstrings_run() -> None:
    ran = 0
    for module in pkgutil.walk_packages(mibp_cert.__path__, "mibp_cert."):
        result = doctest.testmod(importlib.import_module(module.name))
        assert result.failed == 0, module.name
        ran += result.attempted
    ran += doctest.testmod(mibp_cert).attempted
    assert ran >= 8


def test_all_public_names_load_no_extra_and_no_solver() -> None:
    code = (
        "import sys\nfrom mibp_cert import *\n"
        "print([m for m in ('torch', 'gurobipy', 'pyscipopt', 'highspy') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.slow
def test_examples_of_the_readme_run() -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert blocks
    # One process for all: most of the time goes into importing the package.
    code = "import sys\nfor block in sys.stdin.read().split('\\0'):\n    exec(block, {'__name__': '__main__'})"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        input="\0".join(blocks),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
