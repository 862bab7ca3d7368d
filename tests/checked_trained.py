"""Networks that are really trained, by plain loops that know neither engine nor checker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

import mibp_cert as mc
from checked_stored import Stored, stored
from mibp_cert.check.ranges import ONE
from mibp_cert.data import Dataset, Recipe
from mibp_cert.nets import LeakyReLU, Linear, Network, ReLU, Sigmoid, Softplus, Tanh, batch_plan, learning_rates
from mibp_cert.threats import column, label_is
from oracles import mp


def real(value: Any) -> Any:
    """To 60 digits."""
    value = Fraction(value)
    return mp.mpf(value.numerator) / value.denominator


SMOOTH = {
    "Sigmoid": (lambda a: 1 / (1 + mp.exp(-a)), lambda a: mp.exp(-a) / (1 + mp.exp(-a)) ** 2),
    "Tanh": (mp.tanh, lambda a: mp.sech(a) ** 2),
    "Softplus": (lambda a: mp.log1p(mp.exp(a)), lambda a: 1 / (1 + mp.exp(-a))),
}


def activation(layer: dict[str, Any], a: Any) -> tuple[Any, Any]:
    """Value and derivative."""
    if layer["kind"] in SMOOTH:
        return tuple(function(a) for function in SMOOTH[layer["kind"]])  # type: ignore[return-value]
    slope = Fraction(layer.get("slope", 0))
    return (a, 1) if a > 0 else (slope * a, slope)


def loss_slope(loss: str, o: list[Any], wanted: Any) -> list[Any]:
    """`∂J/∂o` for a class, or for a target (of a regression), from the losses' definitions."""
    if isinstance(wanted, Fraction | mp.mpf):
        off = o[0] - wanted
        return [2 * off] if loss == "squared-error" else [min(1, max(-1, off))]
    if len(o) == 1 and loss == "cross-entropy":
        return [1 / (1 + mp.exp(-o[0])) - wanted]
    if len(o) == 1:
        y = 2 * wanted - 1
        slack = 1 - y * o[0]
        return [-y * (0 if slack < 0 else 1 if loss == "hinge" else 2 * slack)]
    if loss == "squared-error":
        return [2 * (v - (c == wanted)) for c, v in enumerate(o)]
    if loss == "cross-entropy":
        total = sum(mp.exp(v) for v in o)
        return [mp.exp(v) / total - (c == wanted) for c, v in enumerate(o)]
    slacks = [1 - o[wanted] + v for v in o]
    push = [0 if s < 0 or c == wanted else 1 if loss == "hinge" else 2 * s for c, s in enumerate(slacks)]
    return [p - (c == wanted) * sum(push) for c, p in enumerate(push)]


def gradient(layers: list[dict[str, Any]], theta: list[Any], x: list[Any], loss: str, wanted: Any) -> list[Any]:
    """`∂J/∂θ` of one row: forward and backward pass, with plain loops."""
    inputs, place, places = [], 0, []
    for layer in layers:
        inputs.append(x)
        places.append(place)
        if layer["kind"] != "Linear":
            x = [activation(layer, a)[0] for a in x]
            continue
        n, m = layer["inputs"], layer["outputs"]
        x = [theta[place + m * n + j] + sum(theta[place + j * n + k] * x[k] for k in range(n)) for j in range(m)]
        place += m * n + m
    change, found = loss_slope(loss, x, wanted), [Fraction(0)] * place
    for layer, a, place in zip(reversed(layers), reversed(inputs), reversed(places), strict=True):
        if layer["kind"] != "Linear":
            change = [activation(layer, v)[1] * c for v, c in zip(a, change, strict=True)]
            continue
        n, m = layer["inputs"], layer["outputs"]
        for j in range(m):
            found[place + m * n + j] = change[j]
            for k in range(n):
                found[place + j * n + k] = change[j] * a[k]
        change = [sum(change[j] * theta[place + j * n + k] for j in range(m)) for k in range(n)]
    return found


def states(run: Stored, x: list[list[Any]], wanted: list[Any], number: Callable[[Any], Any]) -> Iterator[list[Any]]:
    """The state after every step of a training on these rows."""
    t = run.description["training"]
    plan = batch_plan(len(x), t["batch_size"], t["epochs"], t["seed"], t["batch_mode"])
    per_epoch = len(plan) // t["epochs"]
    rates = learning_rates(t["learning_rate"], t["schedule"], t["epochs"])
    theta = [number(float(v)) for v in run.data["start"]]
    velocity = [number(0)] * len(theta)
    mu, kappa = number(t["momentum"]), number(t["weight_decay"])
    for step, rows in enumerate(plan):
        every = [gradient(run.description["layers"], theta, x[i], t["loss"], wanted[i]) for i in rows.tolist()]
        mean = [sum(entries, number(0)) / len(rows) for entries in zip(*every, strict=True)]
        if t["clip"] is not None:
            mean = [min(number(t["clip"]), max(-number(t["clip"]), g)) for g in mean]
        velocity = [mu * v + g + kappa * w for v, g, w in zip(velocity, mean, theta, strict=True)]
        rate = number(float(rates[step // per_epoch]))
        theta = [w - rate * v for w, v in zip(theta, velocity, strict=True)]
        yield theta + (velocity if t["momentum"] else [])


@dataclass
class Scenario:
    """A stored run, and the states of models that were really trained on some datasets of its threat."""

    run: Stored
    models: list[list[list[Any]]]

    def escaped(self, steps: Any, cells: Any) -> bool:
        """Does some model leave the ranges of these rules, which start from `θ₀` and never see a stored box?"""
        train = cells.part_of("train", self.run.data, self.run.description["data"])
        classes = None if train.targets is not None else len(train.classes)
        claim = steps.Claim(self.run.description, classes, len(train.x))
        data = cells.Data(train, self.run.description["threat"])
        state = [*self.run.data["start"].tolist(), *[0.0] * (claim.size - len(self.run.data["start"]))]
        box = steps.Range.of(state, state)
        for number, (rows, rate) in enumerate(steps.plan(len(train.x), claim.training)):
            box = claim.after(box, data, rows, rate)
            if any(outside(model[number], box.low, box.high, ONE) for model in self.models):
                return True
        return False


def outside(state: list[Any], low: Any, high: Any, one: int) -> bool:
    """Is a state outside of a range in units of `1/one`, for certain? Fractions are compared exactly."""
    exact = isinstance(state[0], Fraction)
    slip = Fraction(0) if exact else Fraction(1, 10**45)
    for value, first, last in zip(state, low, high, strict=True):
        ends = Fraction(first) / one - slip, Fraction(last) / one + slip
        if exact and not ends[0] <= value <= ends[1]:
            return True
        if not exact and not real(ends[0]) <= value <= real(ends[1]):
            return True
    return False


def corners(low: Any, high: Any, seed: int, count: int = 10) -> list[Any]:
    """All low, all high, every other row high, and mixtures, cell by cell, of two tables of fractions."""
    rng = np.random.default_rng(seed)
    even = np.broadcast_to((np.arange(len(low)) % 2 == 0).reshape(-1, *[1] * (low.ndim - 1)), low.shape)
    masks = [np.zeros(low.shape, bool), np.ones(low.shape, bool), even, ~even]
    masks += [rng.random(low.shape) < 0.5 for _ in range(count)]
    return [np.where(mask, high, low).tolist() for mask in masks]


NETS: dict[str, tuple[Network, dict[str, Any]]] = {
    "linear hinge": (Network((Linear(2, 1),), 2), {"loss": "hinge"}),
    "relu, two logits": (Network.mlp([2, 4, 2]), {"loss": "hinge", "batch_size": 4}),
    "relu, one logit": (Network.mlp([2, 4, 1]), {"loss": "hinge", "batch_size": 4, "batch_mode": "shuffle"}),
    "squared hinge": (
        Network.mlp([2, 3, 1]),
        {"loss": "squared-hinge", "momentum": 0.5, "weight_decay": 0.25, "schedule": "step:1:0.5", "epochs": 2},
    ),
    "clipped": (Network.mlp([2, 3, 2]), {"loss": "squared-hinge", "clip": 0.05}),
    "leaky": (Network((Linear(2, 3), LeakyReLU(0.25), Linear(3, 2)), 2), {"loss": "squared-hinge", "epochs": 2}),
    "softmax": (Network((Linear(2, 3),), 2), {"loss": "cross-entropy"}),
    "sigmoid": (Network((Linear(2, 2), Sigmoid(), Linear(2, 1)), 2), {"loss": "cross-entropy"}),
    "tanh": (Network((Linear(2, 2), Tanh(), Linear(2, 2)), 2), {"loss": "squared-error"}),
    "two layers": (Network((Linear(2, 2), Tanh(), Linear(2, 2), ReLU(), Linear(2, 3)), 2), {"loss": "cross-entropy"}),
}


OTHERS = ("labels", "softmax labels", "targets", "table", "categories", "shares", "some rows")


@lru_cache
def scenario(name: str) -> Scenario:
    usual = {"epochs": 3, "batch_size": 6, "learning_rate": 0.5, "batch_mode": "subsample"}
    rng = np.random.default_rng(11)
    if name in NETS:
        network, own = NETS[name]
        x = rng.normal(size=(6, 2))
        data = Dataset.of(x, np.arange(6) % max(2, network.logits))
        run = stored(network, data, mc.LInf(0.125), mc.Training(**{**usual, **own}))
        exact = np.frompyfunc(Fraction, 1, 1)(x)
        eighth = Fraction(1, 8)
        datasets = [(table, data.y.tolist()) for table in corners(exact - eighth, exact + eighth, 1)]
    elif name in ("labels", "softmax labels"):
        x = rng.normal(size=(6, 2))
        classes, loss = (2, "hinge") if name == "labels" else (3, "cross-entropy")
        data = Dataset.of(x, np.arange(6) % classes)
        network = Network((Linear(2, 1 if classes == 2 else 3),), 2)
        run = stored(network, data, mc.LabelFlips(), mc.Training(**{**usual, "loss": loss}))
        exact = np.frompyfunc(Fraction, 1, 1)(x).tolist()
        drawn = [rng.integers(0, classes, 6).tolist() for _ in range(10)] + [[c] * 6 for c in range(classes)]
        datasets = [(exact, labels) for labels in drawn]
    elif name == "targets":
        x, targets = rng.normal(size=(6, 2)), 40.0 + 9.0 * rng.normal(size=6)
        data = Dataset.regression(x, targets)
        data = data.with_target(data.target_column("cost"))
        assert data.target is not None
        assert data.targets is not None
        network = Network((Linear(2, 2), Softplus(), Linear(2, 1)), 2)
        run = stored(network, data, mc.TargetNoise(0.5), mc.Training(**{**usual, "loss": "huber"}))
        exact, wanted = (np.frompyfunc(Fraction, 1, 1)(table) for table in (x, data.targets[:, 0]))
        reach = Fraction(1, 2) / Fraction(data.target.scale)
        datasets = [(exact.tolist(), some) for some in corners(wanted - reach, wanted + reach, 2)]
    else:
        run, datasets = of_table(name, usual)
    smooth = any(layer["kind"] in SMOOTH for layer in run.description["layers"])
    number = real if smooth or run.description["training"]["loss"] == "cross-entropy" else Fraction
    models = []
    for table, wanted in datasets:
        rows = [[number(v) for v in row] for row in table]
        models.append(list(states(run, rows, [w if isinstance(w, int) else number(w) for w in wanted], number)))
    return Scenario(run, models)


def of_table(name: str, usual: dict[str, Any]) -> tuple[Stored, list[Any]]:
    """Threats in the units of a table, on a linear model; every dataset is encoded exactly, from its values."""
    table = pd.DataFrame(
        {
            "age": [30.0, 41.0, 55.0, 62.0, 70.0, 48.0],
            "mood": ["bad", "fair", "good", "fair", "bad", "good"],
            "ill": [0, 1, 0, 1, 0, 1],
        }
    )
    if name == "table":
        table.loc[1, "age"], table.loc[2, "mood"] = np.nan, None
    told: dict[str, Any] = {
        "table": mc.Missing() & mc.Monotone("age", up=6.0, down=1.0) & mc.Rounded("age", to=4.0),
        "categories": mc.AnyCategory("mood", among=["bad", "good"]) & mc.LInf({"age": 0.5}),
        "shares": mc.LInf(0.25, relative=True),
        "some rows": mc.LInf({"age": 12.0}, clip=(30.0, None)).where(column("age") >= 41)
        & mc.Shift("mood", by=1).where(label_is(0)),
    }
    recipe = Recipe.fit(
        table.drop(columns="ill"), categorical={"mood": ["bad", "fair", "good"]}, ranges={"age": (20, 80)}
    )
    data = Dataset.from_frame(table, "ill", recipe)
    run = stored(Network((Linear(4, 1),), 4), data, told[name], mc.Training(**usual))
    age, places = data.columns[0], ["bad", "fair", "good"]
    shift, scale = Fraction(age.shift), Fraction(age.scale)
    value = [Fraction(float(v)) * scale + shift for v in data.x[:, 0]]
    moods: list[list[str]] = [[m] if isinstance(m, str) else places for m in table["mood"]]
    match name:
        case "table":
            ends = [(v - 3, v + 8) for v in value]
            # the valid range, encoded as the package does, and taken back
            low, high = (Fraction(float(v)) * scale + shift for v in age.to_feature([20.0, 80.0]))
            ends[1] = (low, high)
        case "categories":
            ends = [(v - Fraction(1, 2), v + Fraction(1, 2)) for v in value]
            moods = [[*dict.fromkeys(["bad", "good", m])] for m in table["mood"]]
        case "shares":
            ends = [(v - v / 4, v + v / 4) for v in value]
        case _:
            floor = Fraction(float(age.to_feature(30.0))) * scale + shift
            ends = [(v, v) if v < 40 else (max(v - 12, floor), v + 12) for v in value]
            after = {"bad": ["bad", "fair"], "fair": ["fair", "good"], "good": ["good"]}
            moods = [after[m] if ill == 0 else [m] for m, ill in zip(table["mood"], table["ill"], strict=True)]
    rng = np.random.default_rng(7)
    datasets = []
    labels = data.y.tolist()
    for sides in ([0] * 6, [1] * 6, labels, [1 - y for y in labels], *rng.integers(0, 2, (6, 6)).tolist()):
        ages = [(pair[which] - shift) / scale for pair, which in zip(ends, sides, strict=True)]
        one_hot = [[Fraction(m == p) for p in places] for m in (str(rng.choice(some)) for some in moods)]
        datasets.append(([[a, *hot] for a, hot in zip(ages, one_hot, strict=True)], labels))
    return run, datasets
