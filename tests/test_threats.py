"""The five views of a threat agree with each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import small_data
from mibp_cert.errors import UserError
from mibp_cert.solvers import ProgramBuilder
from mibp_cert.threats import LInf, ThreatSet

DATA = small_data(np.random.default_rng(0), rows=5, features=3)
THREATS = [
    LInf(0.0),
    LInf(0.1),
    LInf([0.1, 0.0, 2.0]),
    LInf(0.3, rows=[0, 3], columns=[1]),
    LInf(0.3, rows=np.array([True, False, True, False, True])),
    LInf(0.5, clip=(float(DATA.x.min()), float(DATA.x.max()))),
    LInf(1e-300),
]


@pytest.fixture(params=range(len(THREATS)))
def threat(request: pytest.FixtureRequest) -> ThreatSet:
    return THREATS[request.param].bind(DATA)


def test_samples_are_members_and_lie_in_the_hull(threat: ThreatSet) -> None:
    hull = threat.hull()
    for x, y in threat.sample(np.random.default_rng(1), 9):
        assert threat.contains(x, y)
        assert ((hull.x_low <= x) & (x <= hull.x_high)).all()
        assert ((hull.y_low <= y) & (y <= hull.y_high)).all()


def test_clean_data_are_a_member_and_outsiders_are_not(threat: ThreatSet) -> None:
    hull = threat.hull()
    assert threat.contains(DATA.x, DATA.one_hot)
    for end in (np.nextafter(hull.x_high, np.inf), np.nextafter(hull.x_low, -np.inf)):
        outside = DATA.x.copy()
        outside[2, 1] = end[2, 1]
        assert not threat.contains(outside, DATA.one_hot)
    assert not threat.contains(DATA.x, 1.0 - DATA.one_hot)
    assert not threat.contains(np.where(DATA.x > 0, np.nan, DATA.x), DATA.one_hot)


def test_worst_member_attains_the_support_and_no_sample_beats_it(threat: ThreatSet) -> None:
    rng = np.random.default_rng(2)
    noise = threat.noise()
    for _ in range(5):
        g = rng.normal(size=DATA.x.shape)
        through = noise.x_linear.T @ g.ravel()  # a direction in the features, seen by the symbols
        x, y = threat.worst(through)
        assert threat.contains(x, y)
        value = float((g * x).sum())
        assert all(value <= (g * other).sum() + 1e-12 for other, _ in threat.sample(rng, 6))
        low = float((g * noise.x_centre).sum())
        for block in noise.blocks:
            low += float(block.support(through[block.symbols])[0])
        assert low == pytest.approx(value, abs=1e-9)
        assert low <= value + 1e-12


def test_noise_covers_the_hull(threat: ThreatSet) -> None:
    hull, noise = threat.hull(), threat.noise()
    reach = abs(noise.x_linear).sum(axis=1).A1 if hasattr(abs(noise.x_linear).sum(axis=1), "A1") else None
    reach = np.asarray(abs(noise.x_linear).sum(axis=1)).ravel() if reach is None else reach
    centre = noise.x_centre.ravel()
    assert (centre - reach <= hull.x_low.ravel()).all()
    assert (centre + reach >= hull.x_high.ravel()).all()


def test_minimiser_of_a_block_attains_its_support(threat: ThreatSet) -> None:
    rng = np.random.default_rng(3)
    for block in threat.noise().blocks:
        g = rng.normal(size=len(block.symbols))
        assert float(g @ block.minimiser(g)) == pytest.approx(float(block.support(g)[0]))


def test_constraints_admit_every_member(threat: ThreatSet) -> None:
    rows = np.array([0, 2, 3])
    builder = ProgramBuilder()
    x, y = threat.constraints(builder, rows)
    linear = x.linear.toarray()
    for member, labels in threat.sample(np.random.default_rng(4), 6):
        deviation = member[rows].ravel() - x.centre
        v, *_ = np.linalg.lstsq(linear, deviation, rcond=None) if linear.size else (np.zeros(0),)
        np.testing.assert_allclose(linear @ v, deviation, atol=1e-14)
        assert (np.abs(v) <= 1 + 1e-12).all()
        np.testing.assert_array_equal(y.centre, labels[rows].ravel())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LInf(-0.1), "≥ 0, got -0.1"),
        (lambda: LInf(float("nan")), "finite"),
        (lambda: LInf([0.1, 0.2]), r"one per column \(3\)"),
        (lambda: LInf(0.1, rows=[7]), "from 0 to 4"),
        (lambda: LInf(0.1, columns=[True]), "mask for columns"),
        (lambda: LInf(0.1, clip=(0.0, 0.1)), "valid range"),
    ],
)
def test_threats_that_do_not_fit_the_data_are_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make().bind(DATA)


def test_description_is_plain_data() -> None:
    described = LInf(np.array([0.1, 0.2, 0.3]), rows=[1], clip=(0.0, [1.0, 1.0, 2.0])).to_json()
    assert described == {"kind": "linf", "eps": [0.1, 0.2, 0.3], "rows": [1], "clip": [0.0, [1.0, 1.0, 2.0]]}
