"""Memory that is used again never changes a result, and is never handed out while somebody still looks at it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import random_case
from mibp_cert.engines.base import Box
from mibp_cert.engines.relational import RelationalSet, buffers
from mibp_cert.engines.relational import engine as relational
from mibp_cert.engines.relational.buffers import Buffers
from mibp_cert.engines.relational.engine import RelationalEngine


def test_a_buffer_in_use_is_not_handed_out_and_a_free_one_is() -> None:
    pool, size = Buffers(), buffers.SMALL
    first = pool.empty((2, size))
    view = first[1:, ::2].T
    address = first.__array_interface__["data"][0]
    del first
    assert not np.shares_memory(pool.empty((2, size)), view), "a view was still alive"
    del view
    assert pool.empty((2, size)).__array_interface__["data"][0] == address, "a free buffer was not used again"


def test_sums_of_absolute_values_agree_with_plain_ones() -> None:
    rng = np.random.default_rng(0)
    for shape in ((3, 5), (40, 7, 900), (2, 200_000), (300, 0)):
        linear = rng.normal(size=shape)
        np.testing.assert_allclose(Buffers().absolute_sum(linear), np.abs(linear).sum(axis=-1), rtol=1e-12)
        np.testing.assert_allclose(Buffers().absolute_sum(linear.T), np.abs(linear.T).sum(axis=-1), rtol=1e-12)


def run(seed: int, engine: RelationalEngine) -> list[RelationalSet]:
    _, steps, threat, theta, _ = random_case(seed, 4)
    box: Any = Box.point(theta)
    states = []
    for step in steps:
        box, _ = engine.advance(box, step, threat)
        states.append(box)
    return states


@pytest.mark.parametrize("block", range(4))
def test_reused_memory_gives_the_same_bits_as_fresh_memory(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array through the pool and overwritten where possible, against fresh arrays that are never overwritten."""
    seeds = range(10 * block, 10 * block + 10)
    with monkeypatch.context() as small:
        small.setattr(buffers, "SMALL", 0)
        pooled = [run(seed, RelationalEngine()) for seed in seeds]
    original = relational.AffineRules.apply

    def unspared(self: Any, node: Any, *operands: Any) -> Any:
        for operand in operands:
            operand.spare = False
        return original(self, node, *operands)

    monkeypatch.setattr(relational.AffineRules, "apply", unspared)
    monkeypatch.setattr(Buffers, "empty", lambda self, shape: np.full(shape, np.nan))
    for seed, states in zip(seeds, pooled, strict=True):
        for first, second in zip(states, run(seed, RelationalEngine()), strict=True):
            for name in ("lower", "upper", "middle", "linear", "slack"):
                assert np.array_equal(getattr(first, name), getattr(second, name)), f"seed {seed}: {name} differs"
