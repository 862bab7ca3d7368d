"""Memory that is used again never changes a result, and is never handed out while somebody still looks at it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import random_case
from mibp_cert.engines.base import Box
from mibp_cert.engines.relational import RelationalEngine, RelationalSet
from mibp_cert.engines.relational.forms import Form, absolute_sum


def test_sums_of_absolute_values_agree_with_plain_ones() -> None:
    rng = np.random.default_rng(0)
    for shape in ((3, 5), (40, 7, 900), (2, 200_000), (300, 0)):
        linear = rng.normal(size=shape)
        np.testing.assert_allclose(absolute_sum(linear), np.abs(linear).sum(axis=-1), rtol=1e-12)
        np.testing.assert_allclose(absolute_sum(linear.T), np.abs(linear.T).sum(axis=-1), rtol=1e-12)


def run(seed: int, engine: RelationalEngine) -> list[RelationalSet]:
    _, steps, threat, theta, _ = random_case(seed, 4)
    box: Any = Box.point(theta)
    states = []
    for step in steps:
        box, _ = engine.advance(box, step, threat)
        states.append(box)
    return states


@pytest.mark.parametrize("block", range(4))
def test_overwritten_memory_gives_the_same_bits_as_fresh_memory(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators overwritten where nobody else needs them, against fresh arrays that are never overwritten."""
    seeds = range(10 * block, 10 * block + 10)
    overwritten = [run(seed, RelationalEngine()) for seed in seeds]
    monkeypatch.setattr(Form, "free", property(lambda self: False, lambda self, free: None))
    for seed, states in zip(seeds, overwritten, strict=True):
        for first, second in zip(states, run(seed, RelationalEngine()), strict=True):
            for name in ("lower", "upper", "middle", "linear", "slack"):
                assert np.array_equal(getattr(first, name), getattr(second, name)), f"seed {seed}: {name} differs"


def test_memory_that_another_form_looks_at_is_never_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above would notice: forms that give their generators away while they are needed give other bits."""
    right = [run(seed, RelationalEngine()) for seed in range(12)]
    monkeypatch.setattr(Form, "free", property(lambda self: True, lambda self, free: None))
    wrong = [run(seed, RelationalEngine()) for seed in range(12)]
    same = [
        np.array_equal(one.linear, two.linear)
        for states in zip(right, wrong, strict=True)
        for one, two in zip(*states, strict=True)
    ]
    assert not all(same)
