"""The encoder: no treatment loses a point, and wrong rules would be noticed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from conftest import small_data, small_step
from mibp_cert.engines import SolverSettings
from mibp_cert.engines.base import Box
from mibp_cert.engines.exact import encode
from mibp_cert.engines.exact import engine as exact
from mibp_cert.engines.exact.encode import Encoder
from mibp_cert.engines.exact.engine import Task, declare_training
from mibp_cert.engines.rounding import Interval
from mibp_cert.solvers import Bound, Limits, Scip, scip
from mibp_cert.threats import LInf
from oracles import search_extremes


def _case(seed: int) -> tuple[Any, Box, Any]:
    rng = np.random.default_rng(seed)
    data = small_data(rng, rows=3)
    network, step = small_step(data, [[2, 1], [2, 2], [3, 1]][seed % 3], rate=0.5)
    theta = rng.normal(size=network.layout.size)
    half = 0.2 * rng.random(theta.shape)
    return step, Box(theta - half, theta + half), LInf(0.2).bind(data)


def _solve_here(seed: int, tolerance: float, gap: float = 1e-3) -> tuple[Any, Any, Any]:
    """Bounds of all outputs in this very process (so that a rule can be replaced), without the pre-analysis' help."""
    step, box, threat = _case(seed)
    settings = SolverSettings(gap=gap)
    task, _ = Task.encode(
        step.graph, lambda e: declare_training(e, box, step, threat), Encoder(tolerance), settings, math.inf
    )
    ends = [exact._bound_element(task, element) for element in range(len(task.low))]
    return np.array([low.outer for low, _ in ends]), np.array([high.outer for _, high in ends]), task


@lru_cache
def _extremes(seed: int) -> tuple[Any, Any]:
    """The smallest and largest true values found, by evaluation alone: no encoder has a part in them."""
    step, box, threat = _case(seed)
    hull, unflatten = threat.hull(), step.layout.unflatten
    low = {**unflatten(box.lower), "x": hull.x_low, "y": hull.y_low}
    high = {**unflatten(box.upper), "x": hull.x_high, "y": hull.y_high}
    return search_extremes(step.graph, low, high, np.random.default_rng(seed), rounds=30, starts=3)


def _violated(tolerance: float, gap: float = 1e-3) -> bool:
    """Does an output of any of six cases take a true value outside of its bounds?"""
    for seed in range(6):
        lower, upper, _ = _solve_here(seed, tolerance, gap)
        smallest, largest = _extremes(seed)
        if (smallest < lower).any() or (largest > upper).any():
            return True
    return False


@pytest.mark.parametrize("tolerance", [10.0, 2e-3, 0.0])
def test_every_treatment_contains_all_true_values(tolerance: float) -> None:
    """All second-order terms as slack, by size, all as variables."""
    assert not _violated(tolerance)


def test_finer_treatments_are_tighter() -> None:
    widths = []
    for tolerance in (10.0, 2e-3):
        lower, upper, _task = _solve_here(1, tolerance)
        widths.append(float((upper - lower).sum()))
        assert (lower <= upper).all()
    assert widths[1] < widths[0]


def test_stable_programs_have_no_binaries() -> None:
    data = small_data(np.random.default_rng(0), rows=4)
    network, step = small_step(data, [3, 2])
    threat = LInf(0.0).bind(data)
    encoder = Encoder(2e-3)
    task, values = Task.encode(
        step.graph,
        lambda e: declare_training(e, Box.point(network.initialise(0)), step, threat),
        encoder,
        SolverSettings(),
        math.inf,
    )
    assert task.program.variables == task.program.rows == 0
    assert (task.high - task.low).max() < 1e-12
    assert all((value.low <= value.high).all() for value in values)


def test_relu_and_its_derivative_share_one_binary() -> None:
    step, box, threat = _case(1)
    encoder = Encoder(2e-3)
    values = encoder.encode(step.graph, declare_training(encoder, box, step, threat))
    unstable = {}
    for node in step.graph.nodes:
        if node.op in ("relu", "gate"):
            z = values[node.operands[0]]
            unstable[node.operands[0]] = int(((z.low < 0) & (z.high > 0)).sum())
    assert sum(unstable.values()) == int(encoder.builder.integer.sum()) > 0


def _wrong_mccormick(original: Any) -> Any:
    def rule(self: Encoder, *args: Any) -> Any:
        q, sign = original(self, *args)
        self._rows((q, 1.0), upper=0.0, owner=q)
        return q, sign

    return rule


def _wrong_big_m(original: Any) -> Any:
    def rule(self: Encoder, z: Any, elements: Any) -> Any:
        kept = z.range
        z.range = Interval(0.3 * kept.low, 0.3 * kept.high)
        gates = original(self, z, elements)
        z.range = kept
        return gates

    return rule


def _forgotten_slack(original: Any) -> Any:
    def rule(self: Encoder, node: Any, affine: Any, *operands: Any) -> Any:
        return original(self, node, type(affine)(affine.centre, affine.linear, 0.0 * affine.slack), *operands)

    return rule


def _wrong_sign(original: Any) -> Any:
    def rule(self: Encoder, value: Any, elements: Any) -> None:
        original(self, value, elements)
        value.sign[:] = np.abs(value.sign)

    return rule


def _flipped_linear_part(original: Any) -> Any:
    def rule(self: Encoder, node: Any, a: Any) -> Any:
        out = original(self, node, a)
        out.affine = type(out.affine)(out.affine.centre, -out.affine.linear, out.affine.slack)
        return out

    return rule


MUTATIONS: list[tuple[str, Callable[[Any], Any], float]] = [
    ("_product_variables", _wrong_mccormick, 2e-3),
    ("_gates", _wrong_big_m, 2e-3),
    ("_finish", _forgotten_slack, 10.0),
    ("_reuse_single_variables", _wrong_sign, 2e-3),
    ("_scale", _flipped_linear_part, 2e-3),
]


@pytest.mark.parametrize(("name", "mutate", "tolerance"), MUTATIONS, ids=[m[0] for m in MUTATIONS])
def test_a_wrong_rule_is_caught(name: str, mutate: Any, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode.Encoder, name, mutate(getattr(encode.Encoder, name)))
    assert _violated(tolerance)


def test_an_incumbent_used_as_a_bound_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Scip.solve

    def cheat(self: Scip, program: Any, objectives: Any, limits: Limits) -> list[Bound]:
        bounds = original(self, program, objectives, limits)
        return [
            Bound(
                b.proven if b.incumbent is None else b.incumbent, b.incumbent, b.solution, b.status, b.nodes, b.seconds
            )
            for b in bounds
        ]

    assert not _violated(2e-3, gap=4.0)
    monkeypatch.setattr(scip.Scip, "solve", cheat)
    assert _violated(2e-3, gap=4.0)
