"""The checker of steps proves no forged run, whatever was altered."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from checked_forged import FORGERIES, NONSENSE, ODD, RUNS, base, places, threat
from checked_stored import everything_proven


@pytest.mark.parametrize("name", RUNS)
def test_what_is_forged_below_is_proven_as_it_was_written(name: str) -> None:
    everything_proven(base(name))
    assert base(name).prove().rows > 0


@pytest.mark.parametrize("share", [1e-9, 1e-6, 0.01, 0.5])
@pytest.mark.parametrize("end", ["lower", "upper"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("name", RUNS)
def test_one_end_of_one_parameter_that_was_moved_inward_is_found(name: str, place: str, end: str, share: float) -> None:
    """72 forgeries; the share is one of the interval's width."""
    forged = copy.deepcopy(base(name))
    number = {"first": 1, "middle": len(forged.sets) // 2, "last": len(forged.sets)}[place]
    box = forged.sets[number]
    width = box["upper"] - box["lower"]
    entry = int(width.argmax()) if place != "middle" else int(np.argsort(width)[len(width) // 2])
    box[end][entry] += share * width[entry] * (1 if end == "lower" else -1)
    proof = forged.prove()
    assert not proof.holds
    assert f"step {number} " in proof.failed
    assert proof.steps == number - 1


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("forgery", list(FORGERIES))
def test_a_forged_claim_is_not_proven(name: str, forgery: str) -> None:
    forged = copy.deepcopy(base(name))
    FORGERIES[forgery](forged)
    assert not forged.proven()


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("nonsense", list(NONSENSE))
def test_what_makes_no_sense_is_not_proven_and_raises_nothing_else(name: str, nonsense: str) -> None:
    forged = copy.deepcopy(base(name))
    NONSENSE[nonsense](forged)
    assert not forged.proven()


def test_a_description_with_anything_in_any_place_raises_nothing_but_that_it_is_not_known() -> None:
    """What it is proven for, then, is another claim that is true; no answer is a traceback."""
    rng, kept = np.random.default_rng(8), base("survey")
    every = places(kept.description)
    for _ in range(150):
        forged = copy.deepcopy(kept)
        target: Any = forged.description
        *path, last = every[int(rng.integers(len(every)))]
        for key in path:
            target = target[key]
        target[last] = ODD[int(rng.integers(len(ODD)))]
        forged.proven()


def test_a_smaller_threat_is_proven_too() -> None:
    """The boxes hold its models all the more: that is no forgery."""
    smaller = copy.deepcopy(base("hinge"))
    threat(0.5)(smaller)
    assert smaller.prove().holds
