"""Moving code changes no bit: bounds, predictions, attacks and JSON of some forty runs are those that were frozen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import corpus

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def frozen() -> Any:
    return json.loads(corpus.FROZEN.read_text())


@pytest.fixture(scope="module")
def found() -> Any:
    script = Path(corpus.__file__)
    told = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env={**os.environ, **corpus.ENVIRONMENT}
    )
    assert told.returncode == 0, told.stderr[-2000:]
    return json.loads(told.stdout)


def _differences(one: Any, two: Any, at: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(two, dict):
        return [d for k in {**one, **two} for d in _differences(one.get(k), two.get(k), f"{at}.{k}")]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return [d for i, (a, b) in enumerate(zip(one, two, strict=True)) for d in _differences(a, b, f"{at}[{i}]")]
    return [] if one == two or (_nothing(one) and _nothing(two)) else [f"{at}: {one!r} became {two!r}"]


def _nothing(one: Any) -> bool:
    """A section of a configuration that is not there, or that nothing was given in."""
    return one is None or (isinstance(one, dict) and all(_nothing(part) for part in one.values()))


@pytest.mark.parametrize("name", corpus.RUNS)
def test_every_bit_is_as_it_was(name: str, frozen: Any, found: Any) -> None:
    if frozen["versions"] != found["versions"]:
        pytest.skip(f"frozen with {frozen['versions']}: other versions may round otherwise")
    assert name in frozen["runs"], "freeze it: python tests/corpus.py --write"
    assert _differences(frozen["runs"][name], found["runs"][name]) == []
