"""The documentation: its Python runs, its configurations and command lines are accepted, and nothing public is left out.

Examples of the README run in `test_public`; here only its command lines are read.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import mibp_cert
from mibp_cert.cli import app
from mibp_cert.config import defaults, merged
from mibp_cert.nets import LOSSES
from mibp_cert.threats import KINDS, threat_from_json

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))


def _text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def _blocks(text: str, *languages: str) -> list[tuple[str, str, int]]:
    """Language, content and line of every fenced block in one of the languages."""
    found = re.finditer(r"^```(\w+)\n(.*?)^```", text, flags=re.S | re.M)
    return [(m[1], m[2], text[: m.start(2)].count("\n")) for m in found if m[1] in languages]


def _script(name: str) -> ModuleType:
    """A module of the docs folder."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(page: str, code: str, line: int, names: dict[str, Any]) -> None:
    """Run a block so that a traceback shows the page and its line."""
    exec(compile("\n" * line + code, str(DOCS / page), "exec", dont_inherit=True), names)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory of its own, and registries that are as they were afterwards."""
    monkeypatch.chdir(tmp_path)
    registries: list[dict[str, Any]] = [LOSSES, KINDS]
    before = [dict(registry) for registry in registries]
    yield
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()
        registry.update(kept)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(_text(page), "python")])
def test_python_of_a_page_runs(page: str) -> None:
    names: dict[str, Any] = {"__name__": f"page_{page.removesuffix('.md')}"}
    for language, content, line in _blocks(_text(page), "python", "toml"):
        if language == "python":
            _run(page, content, line, names)
        elif page == "threats.md":
            # The file below an example says the same as the example.
            assert threat_from_json(tomllib.loads(content)["threat"]).to_json() == names["threat"].to_json(), line
    if page == "runs.md":
        unsaid = [key for key in names["plain"] if f"`{key}`" not in _text(page)]
        assert not unsaid, f"keys of the JSON file that docs/runs.md does not mention: {unsaid}"


@pytest.mark.parametrize("page", PAGES)
def test_configurations_are_accepted(page: str) -> None:
    for _, content, _ in _blocks(_text(page), "toml"):
        config = merged(tomllib.loads(content))
        for section in ("threat", "test_threat"):
            if "kind" in config[section]:
                threat_from_json(config[section])


def _command_lines() -> list[tuple[str, str]]:
    found = [
        (page, line.removeprefix("$ "))
        for page in PAGES
        for _, content, _ in _blocks(_text(page), "console")
        for line in content.splitlines()
        if line.startswith("$ ")
    ]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return found + [("README.md", line.strip()) for line in readme.splitlines() if line.startswith("    mibp-cert ")]


@pytest.mark.parametrize(("page", "line"), _command_lines())
def test_command_lines_are_understood(page: str, line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    assert program == "mibp-cert"
    group: Any = typer.main.get_command(app)
    if arguments[-1] == "--help":
        arguments = arguments[:-1]
        assert not arguments or arguments[0] in group.commands
        return
    name, *rest = arguments
    assert name in group.commands, f"there is no command {name}"
    group.commands[name].make_context(name, rest)  # parses, and does not run it


def test_there_are_command_lines_to_read() -> None:
    assert len(_command_lines()) > 20


def test_every_command_is_explained() -> None:
    group: Any = typer.main.get_command(app)
    assert [name for name in group.commands if f"[`{name}`](#" not in _text("cli.md")] == []


def test_every_public_name_is_in_the_reference() -> None:
    listed = re.findall(r"^::: mibp_cert\.(\w+)$", _text("api.md"), flags=re.M)
    assert sorted(listed) == sorted(mibp_cert.__all__)


def test_every_key_is_explained() -> None:
    text = _text("cli.md")
    for section, keys in defaults().items():
        assert f"### `[{section}]`" in text
        assert [key for key in keys if f"| `{key}` |" not in text] == []
    assert _script("keys").tables() in text, "the keys changed: run python docs/keys.py"


def test_every_threat_is_explained() -> None:
    text = _text("threats.md")
    assert [kind for kind in KINDS if f'kind = "{kind}"' not in text] == []


def test_pictures_are_there_and_used() -> None:
    used = {name for page in PAGES for name in re.findall(r"\(img/([\w-]+)\.svg\)", _text(page))}
    assert used == {path.stem for path in (DOCS / "img").glob("*.svg")}
    assert used == set(_script("pictures").pictures()), "run python docs/pictures.py"
