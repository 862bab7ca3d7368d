"""The checker of steps: proves what was written, refuses what was forged, and its rules hold for models that are really trained.

A scenario is a small stored run with datasets of its threat, written down exactly and by hand; on these, models are trained in
fractions (or to 60 digits) with plain loops. Neither uses the engines nor the checker.
"""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mibp_cert as mc
from breadth import NETWORKS, OPTIMISERS, problem
from cases import THREATS, survey
from mibp_cert.certify import Selection
from mibp_cert.check import cells, ranges, said, steps
from mibp_cert.check.ranges import BITS, ONE, Range
from mibp_cert.check.steps import Proof, prove_steps
from mibp_cert.data import Dataset, Recipe
from mibp_cert.errors import UnsupportedOperation
from mibp_cert.nets import LeakyReLU, Linear, Network, ReLU, Sigmoid, Softplus, Tanh, batch_plan, learning_rates
from mibp_cert.store.archive import opened, read_chain, read_request, read_step
from mibp_cert.store.npz import unpack
from mibp_cert.threats import column, label_is
from oracles import mp


@dataclass
class Stored:
    """What a run directory holds, read as `verify` reads it."""

    description: dict[str, Any]
    data: dict[str, Any]
    sets: dict[int, dict[str, Any]]
    result: dict[str, Any] | None

    @classmethod
    def read(cls, path: Path) -> Stored:
        records, _, dropped = read_chain(path)
        kept = [n for n, record in enumerate(records, start=1) if not record.diverged and n not in dropped]
        result = None
        if (path / "result.json").exists():
            result = {**opened(path / "result.json"), **unpack((path / "test.npz").read_bytes())}
        return cls(*read_request(path), {n: read_step(path, n) for n in kept}, result)

    def prove(self) -> Proof:
        return prove_steps(self.description, self.data, self.sets, self.result)

    def proven(self) -> bool:
        """Whether it holds; what the checker does not know, it does not prove."""
        try:
            return self.prove().holds
        except UnsupportedOperation:
            return False


def stored(network: Network, data: Any, threat: Any, training: mc.Training, **options: Any) -> Stored:
    with TemporaryDirectory() as folder:
        options = {"engine": "interval", "attacked": False, **options}
        mc.certify_training(network, data, threat, training, run_dir=Path(folder) / "run", **options)
        return Stored.read(Path(folder) / "run")


# Honest runs ------------------------------------------------------------------------------------------------------------

UNKNOWN = ("cosine", "convolution", "strides and padding", "pooling", "two convolutions")


def everything_proven(run: Stored) -> None:
    proof = run.prove()
    assert proof.failed == ""
    assert proof.steps == max(run.sets) == len(run.sets)
    assert run.result is not None
    if "test_classes" in run.result:
        assert proof.rows == (run.result["test_classes"] >= 0).sum()


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in UNKNOWN])
def test_every_network_and_loss_is_proven(name: str) -> None:
    p = problem(name, rows=12)
    training = mc.Training(epochs=3, batch_size=5, learning_rate=0.3, loss=p.loss)
    everything_proven(stored(p.network, mc.Split("s", p.data, None, p.data), mc.LInf(0.02), training, theta0=p.theta))


@pytest.mark.parametrize("mode", ["shuffle", "subsample"])
@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_every_optimiser_is_proven(name: str, mode: str) -> None:
    optimiser, schedule = OPTIMISERS[name]
    p = problem(name, rows=12)
    own = {key: getattr(optimiser, key) for key in ("learning_rate", "momentum", "weight_decay", "clip")}
    training = mc.Training(epochs=3, batch_size=5, loss=p.loss, schedule=schedule, batch_mode=mode, **own)
    everything_proven(stored(p.network, mc.Split("s", p.data, None, p.data), mc.LInf(0.02), training, theta0=p.theta))


EXCHANGES = [name for name in THREATS if "exchanged" in name]
FIXED_ROWS = [name for name, threat in THREATS.items() if not threat.changes_rows()]
MORE = {
    "clip": mc.LInf({"age": 5.0}, clip=([0.0], [100.0])) & mc.Missing(),
    "open clip": mc.LInf({"income": 0.5}, clip=(0.0, None)) & mc.Missing(),
    "some rows": mc.LInf(0.5, rows=[0, 3, 4]) & mc.Missing(),
    "several at once": mc.LInf(0.5)
    & mc.Monotone("age", up=2.0, down=1.0)
    & mc.Rounded("income", to=1.0)
    & mc.Missing(),
    "several in a budget": mc.LInf(0.5)
    & mc.Budget(mc.Monotone("age", up=2.0) & mc.LabelFlips(), rows=2)
    & mc.Missing(),
    "conditions": mc.LInf(2.0).where((column("age") >= 50) | ~label_is(1))
    & mc.AnyCategory("mood").where([1, 2, 5])
    & mc.Missing(),
    "a category is": mc.LInf(2.0).where((column("mood") == "bad") & (column("age") < 70)) & mc.Missing(),
    "no budget": mc.Budget(mc.LInf(5.0), rows=0) & mc.LabelFlips(0) & mc.Missing(),
    "marker of a number": mc.Missing("income", marker=0.0),
}


def of_survey(threat: Any, *, missing: bool, loss: str = "hinge", **options: Any) -> Stored:
    train = survey(20, missing=missing)
    if threat is MORE["marker of a number"]:
        train = replace(train, x=np.where(np.arange(5) == 4, train.columns[2].to_feature(0.0), train.x))
    data = mc.Split("survey", train, None, survey(8, 1, missing=False, like=train))
    network = Network.mlp([5, 3, 1 if loss == "hinge" else 2])
    return stored(network, data, threat, mc.Training(epochs=2, batch_size=7, loss=loss), **options)


@pytest.mark.parametrize("loss", ["hinge", "cross-entropy"])
@pytest.mark.parametrize("name", [name for name in (*FIXED_ROWS, *MORE) if name not in EXCHANGES])
def test_every_threat_is_proven(name: str, loss: str) -> None:
    threat = {**THREATS, **MORE}[name]
    everything_proven(of_survey(threat, missing=threat.knows_missing() and "marker" not in name, loss=loss))


def test_what_may_be_wrong_with_test_rows_is_proven() -> None:
    train = survey(20)
    data = mc.Split("survey", train, None, survey(8, 1, like=train))
    threat = mc.Missing() & mc.LInf(0.1)
    run = stored(Network.mlp([5, 3, 2]), data, mc.Missing(), mc.Training(epochs=2), test_threat=threat)
    everything_proven(run)
    assert (run.result or {})["test_classes"].max() >= 0


def test_a_regression_with_scaled_targets_is_proven() -> None:
    rng = np.random.default_rng(3)
    train = Dataset.regression(rng.normal(size=(12, 2)), 40.0 + 9.0 * rng.normal(size=12))
    train = train.with_target(train.target_column())
    data = mc.Split("r", train, None, train)
    training = mc.Training(epochs=3, batch_size=5, learning_rate=0.05, loss="squared-error")
    run = stored(Network.mlp([2, 3, 1]), data, mc.TargetNoise(1.5) & mc.LInf(0.02), training)
    assert run.prove() == replace(run.prove(), steps=9, rows=12, failed="")
    for end, sign in (("range_low", 1.0), ("range_high", -1.0)):
        forged = copy.deepcopy(run)
        assert forged.result is not None
        forged.result[end][4] += sign * 1e-9
        assert "row 4" in forged.prove().failed


def test_a_step_that_was_chosen_is_claimed_and_an_unfinished_run_has_no_answers() -> None:
    data = mc.two_moons(0)
    training = mc.Training(epochs=6, batch_size=50)
    run = stored(Network.mlp([2, 5, 2]), data, mc.LInf(0.01), training, select=Selection("best-validation"))
    assert run.prove().holds
    assert any("the choice of step" in said for said in run.prove().claimed)
    unfinished = Stored(run.description, run.data, {n: run.sets[n] for n in range(1, 4)}, None)
    assert unfinished.prove() == replace(unfinished.prove(), steps=3, rows=0, failed="")
    assert not Stored(run.description, run.data, {}, None).prove().holds


def test_units_that_are_exactly_zero_are_proven_though_their_boxes_are_smaller_than_the_unit_of_the_ranges() -> None:
    """tanh of 0 is rounded outward to some `10^−308` by the engine."""
    data, network = mc.two_moons(0), Network.mlp([2, 3, 1], activation=Tanh())
    theta = network.initialise(0)
    theta[:] = np.where(np.arange(len(theta)) % 2, theta, 0.0)
    theta[[0, 1, 6, 9]] = 0.0  # the first unit, to and from
    run = stored(network, data, mc.LInf(0.01), mc.Training(epochs=4), theta0=theta)
    everything_proven(run)
    ends = np.abs([run.sets[4][end] for end in ("lower", "upper")])
    assert ((ends > 0) & (ends < 1e-100)).any()


def test_fewer_steps_that_were_asked_for_are_all_of_them() -> None:
    data = mc.two_moons(0)
    run = stored(Network.mlp([2, 5, 2]), data, mc.LInf(0.01), mc.Training(epochs=6, batch_size=50), steps=5)
    everything_proven(run)


@pytest.mark.parametrize("name", UNKNOWN)
def test_layers_that_it_does_not_know_are_refused_by_name(name: str) -> None:
    p = problem(name, rows=12)
    run = stored(p.network, mc.Split("s", p.data, None, p.data), mc.LInf(0.02), mc.Training(epochs=1, loss=p.loss))
    with pytest.raises(UnsupportedOperation, match="Cosine" if name == "cosine" else "Conv2d"):
        run.prove()


@pytest.mark.parametrize("name", EXCHANGES)
def test_threats_that_it_does_not_know_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedOperation, match="exchanged"):
        of_survey(THREATS[name], missing=False).prove()


@pytest.mark.parametrize(
    ("options", "words"), [({"engine": "crown"}, "engine 'crown'"), ({"prediction": "exact"}, "prediction 'exact'")]
)
def test_other_engines_and_predictions_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedOperation, match=words):
        of_survey(mc.LInf(0.5), missing=False, **options).prove()


# Forgeries --------------------------------------------------------------------------------------------------------------


@lru_cache
def base(name: str) -> Stored:
    """A run to be forged."""
    data = mc.two_moons(0)
    rows = np.arange(14, dtype=np.intp)
    data = mc.Split(
        "small", *(part.take(rows) for part in (data.train, data.validation, data.test) if part is not None)
    )
    match name:
        case "hinge":
            return stored(Network.mlp([2, 3, 1]), data, mc.LInf(0.02), mc.Training(epochs=3, batch_size=7))
        case "momentum":
            training = mc.Training(epochs=2, batch_size=5, loss="cross-entropy", momentum=0.5, weight_decay=0.01)
            return stored(Network.mlp([2, 4, 2]), data, mc.LInf(0.02), training)
    return of_survey(mc.Missing() & mc.LInf(0.2) & mc.Confusable("mood", {"good": ["fair"]}), missing=True)


RUNS = ("hinge", "momentum", "survey")


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


def result(run: Stored) -> dict[str, Any]:
    assert run.result is not None
    return run.result


def train(key: str, factor: float) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        run.description["training"][key] *= factor

    return change


def told(key: str, value: Any) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        run.description["training"][key] = value

    return change


def array(key: str, place: Any, move: Callable[[Any], Any]) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        run.data[key][place] = move(run.data[key][place])

    return change


def threat(factor: float) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        linf = run.description["threat"]
        linf = linf if linf["kind"] == "linf" else linf["threats"][1]
        linf["eps"] *= factor

    return change


def without(number: int) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        del run.sets[number if number > 0 else len(run.sets)]

    return change


def without_and_renumbered(run: Stored) -> None:
    rest = [arrays for number, arrays in run.sets.items() if number != 2]
    run.sets = dict(enumerate(rest, start=1))
    result(run)["steps"] = len(rest)


def shortened(run: Stored) -> None:
    del run.sets[len(run.sets)]
    result(run)["steps"] = len(run.sets)


def swapped(run: Stored) -> None:
    run.sets[2], run.sets[3] = run.sets[3], run.sets[2]


def flipped(run: Stored) -> None:
    row = int(np.flatnonzero(result(run)["test_classes"] >= 0)[0])
    result(run)["test_classes"][row] = 1 - result(run)["test_classes"][row]


def answered(run: Stored) -> None:
    """A class for a row that abstains, the smallest margin of which does not tell."""
    found = result(run)
    row = int(np.flatnonzero(found["test_classes"] < 0)[0]) if (found["test_classes"] < 0).any() else 0
    found["test_classes"][row] = 1 - found["test_centre"][row]


def margin_up(run: Stored) -> None:
    result(run)["test_margin"][0] += 1e-9


def margin_high_down(run: Stored) -> None:
    result(run)["test_margin_high"][0] -= 1e-9


def moved_test_rows(run: Stored) -> None:
    run.data["test_x"] = run.data["test_x"] + 3.0


def one_answer_more(run: Stored) -> None:
    for key in ("classes", "centre", "margin", "margin_high"):
        found = result(run)[f"test_{key}"]
        result(run)[f"test_{key}"] = np.concatenate([found, found[:1]])


def no_test_rows(run: Stored) -> None:
    for key in [key for key in run.data if key.startswith("test_")]:
        del run.data[key]


def ends(low: Any, high: Any) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        box = run.sets[2]
        box["lower"][1] = box["lower"][1] if low is None else low
        box["upper"][1] = box["upper"][1] if high is None else high

    return change


def inverted(run: Stored) -> None:
    box = run.sets[2]
    box["lower"], box["upper"] = box["upper"], box["lower"]


def rough(run: Stored) -> None:
    run.sets[2] = {key: np.asarray(value, dtype=np.float32) for key, value in run.sets[2].items()}


def unwidened(run: Stored) -> None:
    """The clean model alone."""
    for box in run.sets.values():
        box["lower"] = box["upper"] = box["trained"]


def layer(change_of: Callable[[list[Any]], None]) -> Callable[[Stored], None]:
    return lambda run: change_of(run.description["layers"])


def other_activation(layers: list[Any]) -> None:
    layers[1] = {"kind": "LeakyReLU", "slope": 0.01}


def no_activation(layers: list[Any]) -> None:
    layers[1] = {"kind": "Flatten"}


def entry(key: str, value: Any) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        run.description["threat"][key] = value

    return change


FORGERIES: dict[str, Callable[[Stored], None]] = {
    "eps doubled": threat(2.0),
    "eps a little larger": threat(1.0 + 1e-9),
    "eps negative": threat(-1.0),
    "eps infinite": threat(np.inf),
    "eps not a number": threat(np.nan),
    "rate up": train("learning_rate", 1.0 + 1e-9),
    "rate down": train("learning_rate", 1.0 - 1e-9),
    "rate doubled": train("learning_rate", 2.0),
    "another seed": told("seed", 1),
    "more epochs": train("epochs", 2),
    "batches of three": told("batch_size", 3),
    "no batch": told("batch_size", 0),
    "another batch mode": told("batch_mode", "none"),
    "another loss": told("loss", "squared-hinge"),
    "an unknown loss": told("loss", "zero"),
    "a schedule": told("schedule", "exponential:0.999999"),
    "decay": told("weight_decay", 1e-6),
    "clipping": told("clip", 1e-3),
    "more momentum": told("momentum", 0.25),
    "an initial parameter": array("start", 3, lambda v: v + 1e-9),
    "an initial parameter that is no number": array("start", 3, lambda v: np.nan),
    "a label": array("train_y", 4, lambda v: 1 - v),
    "a label that is no class": array("train_y", 4, lambda v: 7),
    "a training cell": array("train_x", (5, 1), lambda v: v + 1e-6),
    "a training cell that is no number": array("train_x", (5, 1), lambda v: np.nan),
    "two rows": array("train_x", slice(0, 2), lambda v: v[::-1].copy()),
    "a step missing": without(2),
    "the first step missing": without(1),
    "the last step missing": without(0),
    "a step dropped and the others renumbered": without_and_renumbered,
    "an answer too early": shortened,
    "two steps swapped": swapped,
    "a class flipped": flipped,
    "a class for a row that has none": answered,
    "a larger margin": margin_up,
    "a smaller largest margin": margin_high_down,
    "test rows moved": moved_test_rows,
    "one answer more": one_answer_more,
    "answers without rows": no_test_rows,
    "an end that is no number": ends(np.nan, None),
    "infinite ends": ends(-np.inf, np.inf),
    "a box that is empty": inverted,
    "a box in half the digits": rough,
    "the clean model for a box": unwidened,
    "another activation": layer(other_activation),
    "no activation": layer(no_activation),
    "a layer left out": layer(lambda layers: layers.pop()),
    "no bias": layer(lambda layers: layers[0].update(bias=False)),
    "a wider layer": layer(lambda layers: layers[0].update(inputs=9)),
    "an unknown layer": layer(lambda layers: layers[1].update(kind="Dropout")),
    "an unknown threat": entry("kind", "nothing at all"),
    "an unknown entry": entry("sometimes", True),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("forgery", list(FORGERIES))
def test_a_forged_claim_is_not_proven(name: str, forgery: str) -> None:
    forged = copy.deepcopy(base(name))
    FORGERIES[forgery](forged)
    assert not forged.proven()


def of_column(key: str, value: Any) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        run.description["data"]["columns"][0][key] = value

    return change


def described(key: str, value: Any) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        run.description[key] = value

    return change


def where(when: Any) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        run.description["threat"] = {"kind": "where", "threat": run.description["threat"], "when": when}

    return change


def more(part: dict[str, Any]) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        run.description["threat"] = {"kind": "all", "threats": [run.description["threat"], part]}

    return change


def with_weights(run: Stored) -> None:
    run.data["train_weights"] = np.ones(len(run.data["train_x"]))


def in_half_the_digits(run: Stored) -> None:
    run.data["train_x"] = run.data["train_x"].astype(np.float32)


def of_the_result(key: str, value: Any) -> Callable[[Stored], None]:
    def change(run: Stored) -> None:
        result(run)[key] = value

    return change


NONSENSE: dict[str, Callable[[Stored], None]] = {
    "no scale": of_column("scale", 0.0),
    "a scale below 0": of_column("scale", -1.0),
    "an infinite scale": of_column("scale", np.inf),
    "columns that overlap": of_column("stop", 2),
    "no threat": described("threat", None),
    "a threat without a kind": described("threat", {}),
    "several steps at once": described("unroll", 2),
    "layers of sizes below 0": layer(lambda layers: layers[0].update(inputs=-1, outputs=-4)),
    "clipping without an end": told("clip", 1e-100),
    "an entry of another threat": more({"kind": "budget", "threat": {"kind": "nothing"}, "rows": 1, "columns": []}),
    "two conditions": more({"kind": "where", "threat": {"kind": "nothing"}, "rows": [0], "when": {"rows": [0]}}),
    "no steps": described("steps", 0),
    "fewer than no steps": described("steps", -2),
    "more steps than there are": described("steps", 10**6),
    "weights": with_weights,
    "features in half the digits": in_half_the_digits,
    "a condition on nothing": where({"rows": [0], "label": [0]}),
    "a condition of an unknown kind": where({"weather": "fine"}),
    "rows that there are not": where({"rows": [10**6]}),
    "rows counted from the end": where({"rows": [-1]}),
    "a threat on targets": more({"kind": "target-noise", "eps": 1.0}),
    "an unknown column": more({"kind": "rounded", "columns": "weight", "to": 0.0}),
    "an amount that is text": more({"kind": "linf", "eps": "0.1"}),
    "an amount below 0": more({"kind": "monotone", "columns": [0], "up": 0.5, "down": -0.5}),
    "a range that leaves out what is there": more({"kind": "linf", "eps": 0.0, "clip": [100.0, 200.0]}),
    "another amount than columns": more({"kind": "linf", "eps": [0.0] * 9}),
    "an answer about no step": of_the_result("steps", 0),
    "an answer about a later step": of_the_result("steps", 10**6),
    "a margin that is no number": of_the_result("test_margin", np.full(14, np.nan)),
    "epochs without end": told("epochs", 10**12),
    "an unknown setting of the training": told("dropout", 0.5),
    "layers of any size": layer(lambda layers: layers[0].update(outputs=10**9)),
    "batches of half a row": told("batch_size", 0.5),
    "a schedule without its number": told("schedule", "step:2"),
    "a schedule that is too short": told("schedule", [0.1]),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("nonsense", list(NONSENSE))
def test_what_makes_no_sense_is_not_proven_and_raises_nothing_else(name: str, nonsense: str) -> None:
    forged = copy.deepcopy(base(name))
    NONSENSE[nonsense](forged)
    assert not forged.proven()


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    3,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    10**30,
    "",
    "linf",
    [],
    {},
    [None],
    {"kind": "linf"},
]


def places(plain: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    return [path] * bool(path) + [place for key, value in inner for place in places(value, (*path, key))]


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


# Against models that are really trained --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", [*NETS, *OTHERS])
def test_models_that_are_really_trained_lie_in_the_ranges_and_in_the_boxes_that_are_proven(name: str) -> None:
    found = scenario(name)
    assert replace(found.run, result=None).prove().failed == ""
    assert not found.escaped(steps, cells)
    for number, box in found.run.sets.items():
        for model in found.models:
            assert not outside(model[number - 1], box["lower"], box["upper"], 1)


@pytest.mark.parametrize("name", ["linear hinge", "labels", "shares"])
def test_the_first_step_of_a_linear_model_is_reached_up_to_its_ends(name: str) -> None:
    """The ranges are no larger than they must be: what is not allowed for is noticed."""
    found = scenario(name)
    box = found.run.sets[1]
    reached = np.array([[float(v) for v in model[0]] for model in found.models])
    width = box["upper"] - box["lower"]
    assert ((reached.max(axis=0) - reached.min(axis=0)) >= 0.4 * width - 1e-12).any()


# Mutants ----------------------------------------------------------------------------------------------------------------


def arithmetic_holds(ranges: Any) -> bool:
    """Every operation contains what it does to corners and points inside, in fractions; ends are exact where they can be."""
    rng = np.random.default_rng(4)
    one = Fraction(1, ONE)

    def members(r: Any) -> list[Any]:
        low, high = (np.frompyfunc(lambda v: v * one, 1, 1)(end) for end in (r.low, r.high))
        return [low, high, (low + high) / 2, np.where(rng.random(low.shape) < 0.5, low, high)]

    def inside(r: Any, value: Any) -> bool:
        return bool(((value >= r.low * one) & (value <= r.high * one)).all())

    for _ in range(20):
        # thirds have no end in binary, so that products are rounded
        ends = [np.sort(rng.integers(-50, 50, size=(2, 3, 3)), axis=0) * Fraction(1, 3) for _ in range(2)]
        a, b = (ranges.Range.of(low, high) for low, high in ends)
        third = Fraction(int(rng.integers(-3, 4)), 3)
        for p in members(a):
            singles = [
                (-a, -p),
                (a.times(third), third * p),
                (a.clip(0), np.maximum(p, 0)),
                (a.clip(-ONE // 2, ONE // 2), np.minimum(np.maximum(p, -Fraction(1, 2)), Fraction(1, 2))),
                (a.gate(closed=True), (p >= 0).astype(int)),
                (a.gate(closed=False), (p > 0).astype(int)),
            ]
            pairs = [
                pair for q in members(b) for pair in ((a + b, p + q), (a - b, p - q), (a * b, p * q), (a @ b, p @ q))
            ]
            if not all(inside(r, value) for r, value in singles + pairs):
                return False
    zero = ranges.Range.of([0.0], [0.0])
    return bool(zero.gate(closed=True).low[0] == ONE and zero.gate(closed=False).high[0] == 0)


MUTANTS: list[tuple[str, str, str]] = [
    ("ranges", "return Range(-self.high, -self.low)", "return Range(-self.low, -self.high)"),
    ("ranges", "(self.low, self.high) if n >= 0 else (self.high, self.low)", "(self.low, self.high)"),
    ("ranges", "-(-high * n // d)", "high * n // d"),
    ("ranges", "-(-self.high >> BITS)", "self.high >> BITS"),
    (
        "ranges",
        "for a in (self.low, self.high) for b in (other.low, other.high)]",
        "for a, b in ((self.low, other.low), (self.high, other.high))]",
    ),
    ("ranges", "np.maximum(end, least)", "end"),
    ("ranges", "np.minimum(end, most)", "end - end"),
    ("ranges", "end >= 0 if closed else end > 0", "end > 0"),
    ("ranges", "end >= 0 if closed else end > 0", "end >= 0"),
    ("ranges", "end >= 0 if closed else end > 0", "end < 0"),
    ("ranges", "return _outward(first, last)", "return _outward(first, first)"),
    ("ranges", "nearest = np.minimum(np.maximum(a.low, 0), a.high)", "nearest = a.low"),
    ("ranges", "return _outward(at(low, high), at(high, low))", "return _outward(at(low, low), at(high, high))"),
    ("ranges", "1 / (1 + sum(powers))", "1 / sum(powers)"),
    (
        "ranges",
        "lambda a, s: a.gate(closed=False)),",
        "lambda a, s: Range.of(np.ones(a.low.shape), np.ones(a.low.shape))),",
    ),
    ("ranges", '"ReLU": (lambda a, s: a.clip(0),', '"ReLU": (lambda a, s: a,'),
    ("ranges", "a.times(s) + a.clip(0).times(1 - s)", "a.clip(0)"),
    ("ranges", "a.gate(closed=False).times(1 - s) + Range.of(s, s)", "a.gate(closed=False)"),
    ("ranges", "1 / (2 * (x / 2).cosh()) ** 2", "1 / (2 * x.cosh()) ** 2"),
    ("ranges", "x.exp().log1p()", "x.exp()"),
    ("ranges", "1 / x.cosh() ** 2", "1 / x.cosh()"),
    ("ranges", "reduce(np.minimum, low), reduce(np.maximum, high)", "low[0], high[0]"),
    ("cells", "amount * share / scale", "amount * share / scale / 2"),
    ("cells", "amount * share / scale", "amount * share / scale**2"),
    ("cells", "for amount in amounts]", "for amount in amounts[::-1]]"),
    ("cells", 'if how.get("relative") else', "if False else"),
    ("said", "(column, to / 2, to / 2)", "(column, to / 4, to / 4)"),
    ("said", 'for end in ("down", "up"))', 'for end in ("up", "down"))'),
    ("cells", "self.labels |= ", "self.labels = self.labels & "),
    ("cells", "lost[rows, j], place = True", "rows, place = rows & False"),
    ("cells", "options[reported[row]]]] = True", "options[reported[row]]]] = False"),
    ("said", "order[i + by : i + by + 1]", "order[i : i + 1]"),
    ("cells", "max(value - reach[0], least)", "max(value - reach[0], least + 1)"),
    ("cells", "rows & where(self.data, threat))", "rows & ~where(self.data, threat))"),
    ("said", '">=": operator.ge', '">=": operator.gt'),
    ("cells", "_move(self.targets, self.data.targets[:, 0], 0, column, (eps, eps), rows)", "eps = 0"),
    ("steps", "Fraction(1, len(rows))", "Fraction(1)"),
    ("steps", "- mean.times(rate)", "+ mean.times(rate)"),
    ("steps", "theta.times(1 - rate * self.decay)", "theta"),
    ("steps", "+ theta.times(self.decay)", ""),
    ("steps", "velocity.times(self.momentum) + mean", "mean"),
    ("steps", "kept - velocity.times(rate * self.momentum)", "kept"),
    ("steps", "mean = mean.clip(-limit, limit)", "pass"),
    ("steps", "else order[start : start + size]", "else order[:size]"),
    ("steps", "rng.permutation(n)", "np.arange(n)"),
    ("steps", "Fraction(rate_of(training, epoch))", "Fraction(rate_of(training, 0))"),
    ("steps", '[training["seed"], 1]', '[training["seed"], 2]'),
    ("steps", "y = Fraction(2 * label - 1)", "y = Fraction(1 - 2 * label)"),
    ("steps", "o.times(y)).times(-y)", "o.times(y)).times(y)"),
    ("steps", "Range.of(1.0, 1.0) - o.times(y)", "Range.of(0.0, 0.0) - o.times(y)"),
    ("steps", "Range.of(1.0, 1.0) + (o - own)", "Range.of(1.0, 1.0) - (o - own)"),
    ("steps", "return push - total.map(lambda end: np.where(others, 0, end))", "return push"),
    ("steps", "smooth(o, sigmoid) if", "o if"),
    ("steps", "shares(o)) - wanted", "shares(o)) + wanted"),
    ("steps", "(o - wanted).times(Fraction(2))", "(o - wanted)"),
    ("steps", "off.clip(-ONE, ONE)", "off"),
    ("steps", 'slack.gate(closed=True) if self.loss == "hinge"', "slack.gate(closed=True) if True"),
    ("steps", "slack.clip(0).times(Fraction(2))", "slack.clip(0)"),
    ("steps", "* upstream\n", "\n"),
    (
        "steps",
        "found.append(upstream.map(lambda end: end.sum(axis=0)))",
        "found.append(upstream.map(lambda end: end[0]))",
    ),
    ("steps", "x = x if bias is None else x + bias", "pass"),
]


@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=lambda number: f"{MUTANTS[number][0]}-{number}")
def test_a_wrong_rule_of_the_checker_is_noticed(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a model that is really trained and leaves its ranges, or by an operation that leaves out a member."""
    whose, old, new = MUTANTS[number]
    made: dict[str, Any] = {}
    for original in (ranges, said, cells, steps):
        name = original.__name__
        assert original.__file__ is not None
        source = Path(original.__file__).read_text()
        if name.endswith(f".{whose}"):
            assert old in source
            source = source.replace(old, new, 1)
        made[name.rsplit(".", 1)[1]] = module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(source, name, "exec"), module.__dict__)
    order = (*OTHERS, *NETS) if whose in ("said", "cells") else (*NETS, *OTHERS)
    assert not arithmetic_holds(made["ranges"]) or any(left(made, name) for name in order)


def left(made: dict[str, Any], name: str) -> bool:
    """Does some model leave the ranges of a mutant, or do its shapes not even fit?"""
    known = scenario(name)
    try:
        return known.escaped(made["steps"], made["cells"])
    except (ValueError, TypeError, IndexError, made["cells"].NotProven):
        return True


def test_the_rules_of_the_arithmetic_hold() -> None:
    assert BITS >= 128
    assert arithmetic_holds(ranges)


def test_ranges_are_read_outward_and_boxes_inward() -> None:
    tiny = 2.0 ** -(BITS + 10)
    assert [int(end[0]) for end in (Range.of([tiny], [tiny]).low, Range.of([tiny], [tiny]).high)] == [0, 1]
    assert [int(v) for v in (ranges.ceilings(tiny), ranges.floors(tiny))] == [1, 0]
