"""A checker is believed because it is read: both are small, what they import is counted, and the page says how large they are."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

import mibp_cert.check

FOLDER = Path(mibp_cert.check.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "certificates.md"
CHECKERS = {"fitted": ("fitted", "doubt", "model", "said"), "steps": ("steps", "cells", "ranges", "said")}
"""The modules of each; `said` belongs to both, and counts in both."""
MOST = {"fitted": 600, "steps": 640}
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines(text: str) -> int:
    """Lines of code: without those that are empty, comments, or texts that stand alone."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def size(checker: str) -> int:
    return sum(lines((FOLDER / f"{name}.py").read_text(encoding="utf-8")) for name in CHECKERS[checker])


def test_lines_of_code_are_counted_as_a_reader_would() -> None:
    assert (
        lines(
            '"""A page,\nof two lines."""\n\n# why\nx = """a\nb"""  # one\n\n\ndef f():\n    """Words."""\n    return x\n'
        )
        == 4
    )


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_checker_is_small_and_the_page_says_how_small(checker: str) -> None:
    assert size(checker) <= MOST[checker]
    assert f"{size(checker)} lines of code" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("checker", CHECKERS)
def test_nothing_is_left_out_of_the_count(checker: str) -> None:
    """What a checker imports of its room is counted, or is the format of the file."""
    found = set()
    for name in CHECKERS[checker]:
        for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mibp_cert"):
                found.add(str(node.module))
    allowed = {"mibp_cert.data", "mibp_cert.errors", "mibp_cert.check.file"}
    assert found <= allowed | {f"mibp_cert.check.{name}" for name in CHECKERS[checker]}
