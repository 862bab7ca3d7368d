"""Forgeries of stored runs of the engine interval, each with what is altered."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

import mibp_cert as mc
from checked_stored import Stored, of_survey, stored
from mibp_cert.nets import Network


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
