"""Frozen features: what goes through them is enclosed, and models that are really fitted behind them lie in their bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fits import AMOUNTS, World, attacked, start_of, step_of, table
from mibp_cert import (
    L2,
    AnyCategory,
    AvgPool2d,
    Budget,
    Conv2d,
    Dataset,
    Fitted,
    Flatten,
    FrozenLayers,
    LabelFlips,
    LeakyReLU,
    Linear,
    LInf,
    Missing,
    Network,
    RandomFeatures,
    ReLU,
    Rounded,
    Sigmoid,
    Softplus,
    SoundnessError,
    Split,
    TargetNoise,
    UserError,
    certify_fit,
    column,
)
from mibp_cert.certify.attack import AttackSettings
from mibp_cert.certify.predict import nominal_outputs
from mibp_cert.fitted import features as rules
from mibp_cert.fitted import query
from mibp_cert.fitted.ranges import prove, tighten
from mibp_cert.fitted.table import Table, table_of
from mibp_cert.fitted.zonotope import Zonotope
from mibp_cert.graph import evaluate
from oracles import mp

QUICK = AttackSettings(members=8, points=8, parameters=6, rounds=1)
COLUMNS = 5
"""Of the encoded survey."""


def frozen(*layers: Any, shape: Any = COLUMNS, seed: int = 0, scale: float = 1.0) -> FrozenLayers:
    network = Network(layers, shape)
    return FrozenLayers(network, scale * network.initialise(seed))


BODIES: dict[str, Any] = {
    "tanh": RandomFeatures(6, 0.7, 1),
    "fourier": RandomFeatures(6, 0.7, 1, "fourier"),
    "relu": frozen(Linear(COLUMNS, 6), ReLU(), scale=2.0),
    "deep": frozen(Linear(COLUMNS, 4), LeakyReLU(0.1), Linear(4, 4, False), Sigmoid(), Linear(4, 3), Softplus()),
    "leading": FrozenLayers(Network.mlp([COLUMNS, 5, 4, 1]), Network.mlp([COLUMNS, 5, 4, 1]).initialise(2), layers=4),
}
FEATURES: dict[str, Any] = {
    "linf": LInf(0.03, relative=True),
    "l2": L2(AMOUNTS),
    "rounded": Rounded("age", to=10.0),
    "missing": Missing(),
    "any category": AnyCategory("mood").where(column("age") >= 60),
    "bad rows": LInf({"income": 0.2}) & Budget(LInf({"age": 10.0}), rows=1),
    "bad balls": Budget(L2(AMOUNTS), rows=2),
}
LABELS: dict[str, Any] = {"flips": LabelFlips(2), "noise and flips": LInf({"income": 0.2}) & LabelFlips(1)}
TARGETS: dict[str, Any] = {"targets": LInf(0.02, relative=True) & TargetNoise(0.3)}


def members_of(bound: Any, seed: int = 0, count: int = 30) -> list[Any]:
    """Datasets: as handed in, sampled, and at ends of random directions."""
    rng = np.random.default_rng(seed)
    ends = [bound.worst(rng.normal(size=bound.noise().symbols)) for _ in range(count)]
    return [bound.reference, *bound.sample(rng, count), *ends]


def features_of(body: Network, theta: Any, x: Any) -> Any:
    return evaluate(body.forward_graph(x.shape[-2]), {**body.layout.unflatten(theta), "x": x})["logits"]


# The enclosure ----------------------------------------------------------------------------------------------------------


def outside(name: str, threat: Any) -> float:
    """How far `φ(x + d) − c − J d` is beyond `β` at worst, and directions of the features beyond the table's noise."""
    data = table("cross-entropy", 8, missing=threat.knows_missing())
    bound = threat.bind(data)
    body, theta = BODIES[name].body(data.features)
    raw = table_of(bound.noise(), 1, np.ones(8), np.zeros(data.features))
    found = rules.enclose_features(
        body.forward_graph(8), body.layout.unflatten(theta), rules.RowNoise(raw.rows, raw.blocks)
    )
    after = rules.through(raw, body, theta).with_penalties(np.zeros(body.logits + 1)).rows
    sides = np.random.default_rng(3).normal(size=(12, body.logits + 1))
    top = after.x @ sides.T + after.r @ np.abs(sides).T
    if after.j is not None:
        top = top + np.abs(np.einsum("ndp,qp->nqd", after.j, sides)).sum(axis=-1)
    for piece in after.pieces:
        g = np.stack([piece.linear.T @ np.tile(side, 8) for side in sides])
        np.add.at(top, piece.segments.rows, piece.segments.ends(g)[1].T)
    worst = -np.inf
    for x, _ in members_of(bound):
        phi, d = features_of(body, theta, x), x - raw.rows.x
        rest = np.abs(phi - found.c - np.einsum("nmk,nk->nm", found.j, d)) - found.beta
        beyond = np.column_stack([phi, np.ones(8)]) @ sides.T - top
        worst = max(worst, float(rest.max()), float(beyond.max()))
    return worst


@pytest.mark.parametrize("threat", ["linf", "l2", "rounded", "missing", "any category"])
@pytest.mark.parametrize("name", BODIES)
def test_features_of_doubtful_rows_are_enclosed(name: str, threat: str) -> None:
    assert outside(name, FEATURES[threat]) <= 1e-12


@pytest.mark.parametrize("name", ["tanh", "fourier", "relu"])
@pytest.mark.parametrize("broken", ["beta", "sign"])
def test_a_wrong_enclosure_is_noticed(name: str, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The band forgotten; the slope turned around."""
    right = rules.enclose_features

    def wrong(*given: Any, **how: Any) -> Any:
        found = right(*given, **how)
        return rules.Enclosure(
            found.c, -found.j if broken == "sign" else found.j, found.beta * (0.0 if broken == "beta" else 1.0)
        )

    monkeypatch.setattr(rules, "enclose_features", wrong)
    assert outside(name, FEATURES["linf"]) > 1e-6
    assert outside(name, FEATURES["any category"]) > 1e-6


def test_images_go_through_convolutions() -> None:
    body = frozen(Conv2d(1, 2, 2), ReLU(), AvgPool2d(2, 1), Flatten(), Linear(8, 3), shape=(1, 4, 4)).network
    rng, theta = np.random.default_rng(0), body.initialise(3)
    data = Dataset.of(rng.normal(size=(6, 16)), np.arange(6) % 2)
    bound = LInf(0.1).bind(data)
    raw = table_of(bound.noise(), 1, np.ones(6), np.zeros(16))
    found = rules.enclose_features(body.forward_graph(6), body.layout.unflatten(theta), rules.RowNoise(raw.rows))
    for x, _ in members_of(bound):
        rest = features_of(body, theta, x) - found.c - np.einsum("nmk,nk->nm", found.j, x - raw.rows.x)
        assert (np.abs(rest) <= found.beta).all()
    assert found.beta.max() < 0.2


@pytest.mark.parametrize("kind", ["tanh", "fourier"])
@pytest.mark.parametrize("size", [1.0, 1e6])
def test_rows_that_are_known_are_enclosed_to_sixty_digits(kind: str, size: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 3)) * size
    body, theta = RandomFeatures(4, 2.0, 0, kind).body(3)
    weight, bias = body.layout.unflatten(theta).values()
    rows = rules.Rows(x, np.zeros_like(x), np.zeros(5), np.zeros(5), np.ones(5))
    found = rules.enclose_features(body.forward_graph(5), body.layout.unflatten(theta), rules.RowNoise(rows))
    assert found.beta.max() < 1e-12 * size
    for i in range(5):
        for k in range(4):
            z = mp.fsum(mp.mpf(float(a)) * mp.mpf(float(b)) for a, b in zip(x[i], weight[k], strict=True))
            exact = (mp.tanh if kind == "tanh" else mp.cos)(z + mp.mpf(float(bias[k])))
            assert abs(exact - mp.mpf(float(found.c[i, k]))) <= mp.mpf(float(found.beta[i, k]))


def test_fourier_features_approach_their_kernel() -> None:
    """The mean of `2 φ(x) φ(x')` is `exp(−½ scale² ‖x − x'‖²)`."""
    x = np.random.default_rng(0).normal(size=(4, 2))
    phi = features_of(*RandomFeatures(20_000, 1.5, 0, "fourier").body(2), x)
    kernel = np.exp(-0.5 * 1.5**2 * ((x[:, None] - x[None]) ** 2).sum(axis=-1))
    np.testing.assert_allclose(2.0 * phi @ phi.T / 20_000, kernel, atol=0.03)


# Real fits --------------------------------------------------------------------------------------------------------------


def check_contained(run: Any, theta: Any) -> None:
    """Parameters, and outputs of the test rows, of models fitted to datasets of the threat."""
    assert (run.bounds.lower <= theta).all()
    assert (theta <= run.bounds.upper).all()
    out = np.stack([nominal_outputs(run.network, one, run.data.test.x) for one in theta])
    if run.train.targets is not None:
        found = run.ranges(run.data.test.x).outputs
        assert (found.low - 1e-9 <= out).all()
        assert (out <= found.high + 1e-9).all()
        return
    found = run.certify(run.data.test.x)
    assert ((out[:, found.certified, 0] > 0) == (found.classes[found.certified] == 1)).all()
    margins = np.where(found.centre == 1, out[..., 0], -out[..., 0])
    assert (found.margin - 1e-9 <= margins).all()


CASES = [("cross-entropy", body, name) for body in ("tanh", "fourier") for name in {**FEATURES, **LABELS}]
CASES += [("cross-entropy", "relu", name) for name in ("linf", "l2", "missing", "any category", "flips")]
CASES += [("cross-entropy", body, name) for body in ("deep", "leading") for name in ("linf", "bad rows")]
CASES += [("squared-error", body, name) for body in ("fourier", "relu") for name in ("linf", "missing", "targets")]
CASES += [(loss, "fourier", "linf") for loss in ("squared-hinge", "huber")]
C = {"cross-entropy": 0.1, "squared-error": 0.05, "squared-hinge": 0.02, "huber": 0.05}
SMALLER_C = ("any category", "bad balls")
"""Whole categories move far."""


@pytest.mark.parametrize(("loss", "body", "name"), CASES)
def test_fits_behind_frozen_features_lie_in_their_bounds(loss: str, body: str, name: str) -> None:
    threat = {**FEATURES, **LABELS, **TARGETS}[name]
    train = table(loss, 10, missing=name == "missing")
    split = Split("survey", train, test=table(loss, 8, 50, like=train))
    model = Fitted(loss, C[loss] / (4.0 if name in SMALLER_C else 1.0), features=BODIES[body])
    run = certify_fit(split, threat, model, attack_settings=QUICK)
    _, _, theta = attacked(step_of(train, model), threat.bind(train), samples=10, rounds=1)
    assert run.attack is not None
    assert np.isfinite(run.bounds.lower).all()
    assert np.isfinite(run.bounds.upper).all()
    check_contained(run, np.concatenate([theta, run.attack.theta]))
    if name == "linf":  # and no further out than that: attacks reach a good part of the bounds
        assert run.bounds.radius.mean() < 3.0 * run.attack.inner().radius.mean()


WORLDS = [("tanh", "linf"), ("fourier", "linf"), ("relu", "linf"), ("tanh", "l2"), ("fourier", "any category")]
WORLDS += [("deep", "linf"), ("tanh", "bad rows"), ("fourier", "flips"), ("fourier", "missing")]


def world_of(body: str, name: str) -> World:
    data, threat = table("cross-entropy", 10, missing=name == "missing"), {**FEATURES, **LABELS}[name]
    return World.of(Fitted(C=1.0, features=BODIES[body]), threat, data, samples=20, rounds=1)


@pytest.mark.parametrize(("body", "name"), WORLDS)
def test_bounds_behind_features_hold_under_the_smallest_ranges_that_hold(body: str, name: str) -> None:
    """With the ranges of really fitted models, which are smaller than any that could be proven: bounds and zonotope hold for
    these models, also under the assumption that a query is at least so large."""
    world = world_of(body, name)
    problem, z = world.problem, world.hull()
    room = 1e-10 * (1.0 + np.abs(world.s).max())
    shared = Zonotope(problem.table, problem.loss, z, problem.tau)
    assert world.excess(problem.bounds(z)) <= room
    assert world.excess(shared.bounds()) <= room
    for a in (np.eye(len(z.low))[0], -problem.table.rows.x[0]):
        v = float(np.quantile(world.theta @ a, 0.8))
        chosen = world.theta @ a >= v
        part = replace(world, theta=world.theta[chosen], s=world.s[chosen], dirty=world.dirty[chosen])
        assert part.excess(shared.bounds(a, v)) <= room
        assert problem.reaches(problem.around(z), a, v - room)


@pytest.mark.parametrize(("body", "eps"), [("fourier", 0.02), ("relu", 0.3)])
def test_bounds_that_forget_what_goes_through_features_are_noticed(
    body: str, eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The band forgotten, and slopes of half of the features; the fits are ridge's, whose bounds are tight."""
    right, loss = rules.enclose_features, "squared-error"

    def no_band(*given: Any, **how: Any) -> Any:
        found = right(*given, **how)
        return rules.Enclosure(found.c, found.j, 0.0 * found.beta)

    def no_slope(*given: Any, **how: Any) -> Any:
        found = right(*given, **how)
        return rules.Enclosure(found.c, found.j * (np.arange(found.j.shape[1]) % 2)[:, None], found.beta)

    for wrong in (right, no_band, no_slope):
        monkeypatch.setattr(rules, "enclose_features", wrong)
        model = Fitted(loss, 1.0, features=BODIES[body])
        world = World.of(model, LInf(eps), table(loss, 10), samples=20, rounds=1)
        excess = world.excess(world.problem.bounds(world.hull()))
        assert excess <= 1e-10 if wrong is right else excess > 1e-7


def test_a_zonotope_that_forgets_a_rows_own_directions_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of("tanh", "linf")
    zonotope = Zonotope(world.problem.table, world.problem.loss, world.hull(), world.problem.tau)
    monkeypatch.setattr(Table, "reach_of", lambda self, theta: -self.rows.reach_of(theta[None, :])[0])
    assert world.excess(zonotope.bounds()) > 1e-9


def test_ranges_behind_features_are_proven_and_hold() -> None:
    for body, name in (("tanh", "l2"), ("fourier", "bad rows"), ("deep", "flips")):
        data = table("cross-entropy", 10)
        model = Fitted(C=0.1, features=BODIES[body])
        world = World.of(model, {**FEATURES, **LABELS}[name], data, samples=10, rounds=1)
        found = prove(world.problem)
        assert found is not None
        assert world.excess(tighten(world.problem, found)) <= 0.0


def test_the_gradient_behind_frozen_layers_is_that_of_differences() -> None:
    for name, body in BODIES.items():
        data = table("cross-entropy", 4)
        step = step_of(data, Fitted(features=body))
        theta, x, rng = start_of(step), data.x, np.random.default_rng(0)
        up = rng.normal(size=(4, step.head.inputs))
        found = step.pull(theta, x, up)
        for _ in range(5):
            d = rng.normal(size=x.shape) * 1e-6
            change = (step.design(theta, x + d) - step.design(theta, x - d))[..., : step.head.inputs]
            assert abs((found * d).sum() - 0.5 * (change * up).sum()) < 1e-10, name


@pytest.mark.parametrize("body", ["tanh", "fourier", "deep"])
@pytest.mark.parametrize("doubt", [LInf({"age": 3.0, "income": 0.3}), L2(AMOUNTS), AnyCategory("mood"), Missing()])
def test_certified_classes_hold_for_doubtful_test_rows_behind_features(body: str, doubt: Any) -> None:
    missing = isinstance(doubt, Missing)
    train = table("cross-entropy", 10)
    split = Split("survey", train, test=table("cross-entropy", 8, 50, missing=missing, like=train))
    model, threat = Fitted(C=0.3, features=BODIES[body]), LInf(0.02, relative=True)
    run = certify_fit(split, threat, model, test_threat=doubt, attack_settings=QUICK)
    assert run.test is not None
    assert split.test is not None
    _, _, theta = attacked(step_of(train, model), threat.bind(train), samples=10, rounds=1)
    for x, _ in members_of(doubt.bind(split.test.ranged(train)), count=10):
        out = np.stack([nominal_outputs(run.network, one, x)[:, 0] for one in theta])
        sure = run.test.certified
        assert ((out[:, sure] > 0) == (run.test.classes[sure] == 1)).all()
        assert (np.where(run.test.centre == 1, out, -out) >= run.test.margin - 1e-9).all()


def test_noise_of_test_rows_behind_features_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the slope of the features, models leave what is said of doubtful test rows."""
    right = rules.enclose_features

    def wrong(*given: Any, **how: Any) -> Any:
        found = right(*given, **how)
        return rules.Enclosure(found.c, 0.0 * found.j, found.beta)

    monkeypatch.setattr(query, "enclose_features", wrong)
    with pytest.raises((AssertionError, SoundnessError)):
        test_certified_classes_hold_for_doubtful_test_rows_behind_features("tanh", LInf({"age": 30.0, "income": 3.0}))


# Bad input --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: RandomFeatures(0), "whole number ≥ 1"),
        (lambda: RandomFeatures(2.5), "whole number ≥ 1"),  # type: ignore[arg-type]
        (lambda: RandomFeatures(3, seed=-1), "whole number ≥ 0"),
        (lambda: RandomFeatures(3, scale=np.inf), "finite number > 0"),
        (lambda: RandomFeatures(3, kind="relu"), "no random features called 'relu'"),
        (lambda: FrozenLayers(Network.mlp([2, 3]), np.zeros(4)), "need all 9 parameters"),
        (lambda: FrozenLayers(Network.mlp([2, 3]), np.full(9, np.nan)), "finite"),
        (lambda: FrozenLayers(Network.mlp([2, 3]), np.zeros(9), layers=2), "1 layers to freeze"),
        (
            lambda: certify_fit(table("cross-entropy"), None, Fitted(features=frozen(Linear(3, 2), shape=3))),
            "take 3 features, but the data have 5",
        ),
        (lambda: Fitted(features=30), "RandomFeatures"),  # type: ignore[arg-type]
    ],
)
def test_features_that_make_no_sense_are_refused_in_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as found:
        call()
    assert "\n" not in str(found.value)
