"""Start-up: help and a bare import wait for nothing heavy, and what is said or found without loading it is what there is."""

from __future__ import annotations

import ast
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mibp_cert
from mibp_cert.cli.names import NAMES, listed

HEAVY = ("numpy", "pandas", "scipy", "sklearn", "matplotlib", "joblib", "flint", "pyscipopt", "highspy")


@pytest.mark.parametrize("registry", NAMES)
def test_the_help_names_what_the_registry_has(registry: str) -> None:
    found: Any = pkgutil.resolve_name(f"mibp_cert.{registry}")
    entries = [found] if isinstance(found, str | Path) else found
    assert NAMES[registry] == tuple(str(entry) for entry in entries), f"write these into NAMES['{registry}']"
    assert all(name in listed(registry) for name in NAMES[registry])


def test_public_names_are_found_where_type_checkers_see_them() -> None:
    tree = ast.parse(Path(mibp_cert.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    seen = {alias.name: node.module for node in imports for alias in node.names if node.module in _ours(imports)}
    homes = {name: f"mibp_cert.{home}" for home, names in mibp_cert._HOMES.items() for name in names.split()}
    assert homes == seen
    assert sorted(homes) == sorted(mibp_cert.__all__)
    assert set(mibp_cert.__all__) <= set(dir(mibp_cert))


def _ours(imports: list[ast.ImportFrom]) -> set[str]:
    return {node.module for node in imports if node.module is not None and node.module.startswith("mibp_cert.")}


def test_all_names_can_be_imported_at_once_and_unknown_ones_cannot() -> None:
    names: dict[str, Any] = {}
    exec("from mibp_cert import *", names)
    assert set(mibp_cert.__all__) <= set(names)
    assert mibp_cert.errors.UserError is mibp_cert.UserError  # rooms are there without being imported
    with pytest.raises(AttributeError, match="no attribute 'Treat'"):
        _ = mibp_cert.Treat
    with pytest.raises(ImportError, match="cannot import name 'Treat'"):
        exec("from mibp_cert import Treat")


def _fresh(code: str, *arguments: str, given: bytes = b"") -> str:
    """What a process of its own prints last."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], input=given, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip().splitlines()[-1]


LOADED = f"; print([name for name in {HEAVY} if name in sys.modules])"
HELP = "import sys, contextlib\nfrom mibp_cert.cli import main\nwith contextlib.suppress(SystemExit): main()\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["--help", "--version", "certify --help", "reproduce --help", "certify --no-such-flag"]
)
def test_help_loads_nothing_that_only_work_needs(words: str) -> None:
    assert _fresh(HELP + LOADED.removeprefix("; "), *words.split()) == "[]"


@pytest.mark.slow
def test_a_bare_import_loads_nothing_that_only_work_needs() -> None:
    assert _fresh("import sys, mibp_cert" + LOADED) == "[]"


@pytest.mark.slow
def test_every_module_can_be_the_first() -> None:
    """No module counts on others that something else has loaded before."""
    modules = [
        m.name for m in pkgutil.walk_packages(mibp_cert.__path__, "mibp_cert.") if m.name != "mibp_cert.__main__"
    ]
    code = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    for loaded in [other for other in sys.modules if other.split(".")[0] == "mibp_cert"]:
        del sys.modules[loaded]
print("all")
"""
    assert _fresh(code, *modules) == "all"


@pytest.mark.slow
def test_a_pickle_is_read_where_nothing_was_imported() -> None:
    kept = pickle.dumps((mibp_cert.LInf(0.01), mibp_cert.Network.mlp([2, 3, 2]), mibp_cert.CertifiedClassifier()))
    code = "import pickle, sys; print(*(type(found).__name__ for found in pickle.load(sys.stdin.buffer)))"
    assert _fresh(code, given=kept) == "LInf Network CertifiedClassifier"
