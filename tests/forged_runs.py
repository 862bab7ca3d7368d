"""Run directories that claim what did not happen: one thing forged, and every hash, seal and figure that follows from it mended.

A forger here is as good as one can be who has the program: the description is written as the program would write it, records
form a chain, and the result is what the program says of the forged run, but for what the forgery is about.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mibp_cert.certify.request import Request
from mibp_cert.errors import MibpCertError
from mibp_cert.store.archive import load_run
from mibp_cert.store.npz import digest, opened, pack, sealed, unpack

Plain = dict[str, Any]
OF_FILES = ("arrays", "previous", "kernel")


@dataclass
class Folder:
    """All that is in a run directory, to be altered."""

    path: Path
    run: Plain
    data: Plain
    records: list[Plain]
    sets: dict[int, Plain]
    result: Plain
    answers: Plain

    @classmethod
    def read(cls, path: Path) -> Folder:
        places = sorted((path / "steps").glob("*.json"))
        sets = {int(p.stem): dict(unpack(p.read_bytes())) for p in sorted((path / "steps").glob("*.npz"))}
        plain = [opened(path / "run.json"), *(opened(place) for place in places), opened(path / "result.json")]
        data, answers = (dict(unpack((path / name).read_bytes())) for name in ("data.npz", "test.npz"))
        for arrays in (data, answers, *sets.values()):
            arrays |= {name: np.array(array) for name, array in arrays.items()}
        return cls(path, plain[0], data, plain[1:-1], sets, plain[-1], answers)

    @property
    def description(self) -> Plain:
        return self.run["description"]  # type: ignore[no-any-return]

    @property
    def last(self) -> Plain:
        """The set after the last step."""
        return self.sets[max(self.sets)]

    def request(self) -> Request:
        return Request.of_json(json.loads(json.dumps(self.description)), self.data)

    def describe(self) -> None:
        """Mend what the description says of itself, as far as it can be read."""
        try:
            self.run["description"] = json.loads(json.dumps(self.request().to_json(), allow_nan=False))
        except (MibpCertError, ValueError, TypeError, KeyError, IndexError):
            return

    def write(self, *, mended: bool = True) -> None:
        """Everything back into its place, with hashes; `mended`: the result is what the program says of these files."""
        data = pack(self.data)
        (self.path / "data.npz").write_bytes(data)
        self.run["data"] = digest(data)
        last = self._put("run.json", self.run)
        for place in (self.path / "steps").iterdir():
            place.unlink()
        for number, record in enumerate(self.records, start=1):
            arrays = self.sets.get(number)
            if arrays is not None:
                content = pack(arrays)
                (self.path / "steps" / f"{number:06d}.npz").write_bytes(content)
                record["arrays"] = digest(content)
            last = self._put(f"steps/{number:06d}.json", {**record, "number": number, "previous": last})
        self._results(last)
        if mended:
            self._mend(last)

    def _results(self, last: str) -> None:
        answers = pack(self.answers)
        (self.path / "test.npz").write_bytes(answers)
        self._put("result.json", {**self.result, "arrays": digest(answers), "previous": last})

    def _mend(self, last: str) -> None:
        try:
            told = load_run(self.path).to_json()
        except (MibpCertError, ValueError, TypeError, KeyError, IndexError, AssertionError):
            return
        self.result = {**told, **{key: self.result[key] for key in OF_FILES}}
        self._results(last)

    def _put(self, name: str, plain: Plain) -> str:
        text = sealed(plain)
        (self.path / name).write_bytes(text)
        return digest(text)


Forgery = Callable[[Folder], None]


def forge(path: Path, forgery: Forgery) -> None:
    """Forge one thing in the run in this directory, which is altered."""
    folder = Folder.read(path)
    forgery(folder)
    folder.describe()
    folder.write(mended=not getattr(forgery, "bare", False))


def bare(forgery: Forgery) -> Forgery:
    """The result itself is forged, so that it must not be mended."""
    forgery.bare = True  # type: ignore[attr-defined]
    return forgery


# Sets and records of steps ----------------------------------------------------------------------------------------------


def shrunk(folder: Folder) -> None:
    """The last set 1.5 times as wide as what the attacks reached, the sets before it dropped; classes that no attack changed
    are answered."""
    reached, last = folder.answers["attack_theta"], folder.last
    low, high = np.minimum(reached.min(axis=0), last["trained"]), np.maximum(reached.max(axis=0), last["trained"])
    middle, half = 0.5 * (low + high), 0.75 * (high - low)
    for name in [name for name in last if name not in ("trained", "lower", "upper")]:
        last[name] = np.zeros_like(last[name]) if name in ("linear", "slack") else last[name]
    last["lower"], last["upper"] = middle - half, middle + half
    if "middle" in last:
        last["middle"], last["slack"] = middle, half
    for number in range(1, max(folder.sets)):
        del folder.sets[number]
    for record in folder.records:
        record["dropped"] = []
    folder.records[-1]["dropped"] = list(range(1, len(folder.records)))
    folder.records[-1] |= {"radius_mean": float(half.mean()), "radius_max": float(half.max())}
    if "nominal" in folder.answers:
        same = (folder.answers["attack_classes"] == folder.answers["nominal"]).all(axis=0)
        folder.answers["test_classes"] = np.where(same, folder.answers["nominal"], -1)
        folder.answers["test_margin"] = np.where(same, 0.1, -0.1)
        folder.answers["test_margin_high"] = np.full(len(same), 9.0)


def narrower(folder: Folder) -> None:
    """One end of one parameter after the last step."""
    last = folder.last
    widest = int((last["upper"] - last["lower"]).argmax())
    last["upper"][widest] -= 1e-6 * (last["upper"][widest] - last["lower"][widest])


def dropped(folder: Folder) -> None:
    """An earlier set, which the file of its step says was dropped."""
    folder.sets.pop(min(folder.sets))


def other_model(folder: Folder) -> None:
    """The clean model after the last step, still inside its bounds."""
    last = folder.last
    last["trained"] = last["trained"] + 1e-3 * (last["upper"] - last["trained"])


def radius(folder: Folder) -> None:
    for record in folder.records:
        record["radius_mean"] *= 0.5


def gap(folder: Folder) -> None:
    folder.records[-1]["report"] |= {"gap": "0.001", "programs": 12, "nodes": 40}


def validation(folder: Folder) -> None:
    """A validation figure of every epoch."""
    for record in folder.records:
        if record["certified"] is not None:
            record["certified"] = 1.0 - 0.01 * record["certified"]


def chosen(folder: Folder) -> None:
    """Figures that make another epoch the best one."""
    told = [record for record in folder.records if record["validated"]]
    best = max(range(len(told)), key=lambda i: (told[i]["certified"] or 0.0, told[i]["nominal"] or 0.0))
    other = told[0 if best else -1]
    other |= {"nominal": 1.0, "certified": 1.0}


def cut(folder: Folder) -> None:
    """The last step is gone, and the result is still there."""
    folder.sets.pop(len(folder.records), None)
    folder.records.pop()


def diverged(folder: Folder) -> None:
    """The last step is said to have diverged."""
    folder.sets.pop(len(folder.records), None)
    folder.records[-1] |= {"diverged": True, "arrays": None, "nominal": None, "certified": None}
    folder.records[-1] |= {"radius_mean": 0.0, "radius_max": 0.0}


# What was asked for -----------------------------------------------------------------------------------------------------


def asked(**changes: Any) -> Forgery:
    def done(folder: Folder) -> None:
        for key, value in changes.items():
            part, _, name = key.rpartition("__")
            where = folder.description[part] if part else folder.description
            where[name] = value(where[name]) if callable(value) else value

    return done


def more(threat: Any) -> Any:
    """The same threat, with twice its amounts and numbers of rows."""
    if isinstance(threat, list):
        return [more(part) for part in threat]
    if not isinstance(threat, dict):
        return threat
    grown = {key: more(value) if key in ("threat", "threats") else value for key, value in threat.items()}
    for key in ("eps", "to", "up", "down", "at_most", "rows"):
        value = grown.get(key)
        if isinstance(value, dict):
            grown[key] = {name: 2 * amount for name, amount in value.items()}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            grown[key] = 2 * value
    return grown


def more_tests(folder: Folder) -> None:
    folder.description["test_threat"] = {"kind": "linf", "eps": 0.3}


def start(folder: Folder) -> None:
    folder.data["start"] = folder.data["start"] + 1e-3


# Rows -------------------------------------------------------------------------------------------------------------------


def row(folder: Folder) -> None:
    """One cell of one training row."""
    folder.data["train_x"][0, 0] += 0.25


def label(folder: Folder) -> None:
    """The label of one training row, or its target."""
    if "train_targets" in folder.data:
        folder.data["train_targets"][0] += 0.5
    else:
        folder.data["train_y"][0] = 1 - folder.data["train_y"][0]


def test_labels(folder: Folder) -> None:
    """Labels of test rows as the clean model has them; with every figure mended, only the data themselves tell."""
    if "test_targets" in folder.data:
        folder.data["test_targets"] = folder.data["test_targets"] * 0.5
    else:
        folder.data["test_y"] = folder.answers["nominal"].astype(np.int64)
        folder.data["test_y"][0] = 1 - folder.data["test_y"][0]


test_labels.__test__ = False  # type: ignore[attr-defined]


def validation_rows(folder: Folder) -> None:
    """Labels (or targets) of the validation rows are others, and figures of theirs as they were."""
    if "validation_targets" in folder.data:
        folder.data["validation_targets"] = folder.data["validation_targets"] + 3.0
    else:
        folder.data["validation_y"] = 1 - folder.data["validation_y"]


# What was found ---------------------------------------------------------------------------------------------------------


def answers(name: str, change: Callable[[Any, Folder], Any]) -> Forgery:
    def done(folder: Folder) -> None:
        folder.answers[name] = np.asarray(change(folder.answers[name], folder), dtype=folder.answers[name].dtype)

    return done


def harmless(classes: Any, folder: Folder) -> Any:
    """Classes where there was no answer and no attack changed anything."""
    found = np.where(classes < 0, folder.answers["nominal"], classes)
    if (found == classes).all():  # all were answered: one answer less
        found[0] = -1
    return found


def no_attack(folder: Folder) -> None:
    """What the attack reached is gone."""
    folder.answers = {name: array for name, array in folder.answers.items() if not name.startswith("attack_")}


def weaker_attack(folder: Folder) -> None:
    """Only the clean model was reached."""
    one = folder.answers["attack_theta"][:1]
    folder.answers["attack_theta"] = np.repeat(one, len(folder.answers["attack_theta"]), axis=0)
    if "nominal" in folder.answers:
        kept = np.repeat(folder.answers["nominal"][None], len(folder.answers["attack_classes"]), axis=0)
        folder.answers["attack_classes"], folder.answers["attack_flips"] = kept, np.array(0)


def fewer_datasets(folder: Folder) -> None:
    for name in ("attack_theta", "attack_classes", "attack_origins"):
        folder.answers[name] = folder.answers[name][:3]


def told(*place: str, value: Any) -> Forgery:
    """A figure of the result."""

    @bare
    def done(folder: Folder) -> None:
        where: Any = folder.result
        for key in place[:-1]:
            where = where[key]
        before = where[place[-1]]
        where[place[-1]] = value(before) if callable(value) else value
        assert where[place[-1]] != before

    return done


def up(value: Any) -> float:
    return 1.0 if value is None else 0.5 * (1.0 + value) if value < 1.0 else 0.9


STEPS: dict[str, Forgery] = {
    "the last set shrunk, earlier ones dropped": shrunk,
    "one end moved": narrower,
    "another clean model": other_model,
    "radii": radius,
    "gaps and programs": gap,
    "a set dropped": dropped,
    "the last step cut off": cut,
    "the last step said to diverge": diverged,
    "validation figures": validation,
    "another epoch chosen": chosen,
}
ASKED: dict[str, Forgery] = {
    "seed": asked(training__seed=7),
    "more doubt": asked(threat=more),
    "learning rate": asked(training__learning_rate=lambda rate: 1.5 * rate),
    "batch size": asked(training__batch_size=lambda size: size - 1),
    "momentum": asked(training__momentum=0.25),
    "fewer attacks asked for": asked(attack__members=1),
    "no attack asked for, the results there": asked(attack=None),
    "another rule of choice": asked(select__rule=lambda rule: "last" if rule != "last" else "best-validation"),
    "limits in seconds": asked(solver__seconds_per_program=5.0),
    "doubt about test rows": more_tests,
    "another start": start,
}
ROWS: dict[str, Forgery] = {
    "a training cell": row,
    "a training label": label,
    "test labels, the result as it was": bare(lambda folder: test_labels(folder)),
    "validation rows": validation_rows,
}
FOUND: dict[str, Forgery] = {
    "attack results gone": no_attack,
    "attack results weaker": weaker_attack,
    "attack results fewer": fewer_datasets,
    "the witness": answers("attack_x", lambda x, folder: x + 1e-3),
    "seed in the result": told("seed", value=11),
    "dataset in the result": told("dataset", value="another"),
    "steps in the result": told("steps", value=lambda steps: steps + 1),
    "hash of the data": told("data_sha256", value="0" * 64),
    "soundness": told("soundness", value="exact"),
    "inner radius": told("attack", "inner_radius_mean", value=lambda mean: 0.9 * mean),
}
CLASSES: dict[str, Forgery] = {
    "margins": answers("test_margin", lambda margin, _: margin + 0.01),
    "upper margins": answers("test_margin_high", lambda margin, _: margin - 0.01),
    "classes": answers("test_classes", harmless),
    "clean predictions": answers("nominal", lambda y, _: np.where(np.arange(len(y)) == 0, 1 - y, y)),
    "classes at the centre": answers("test_centre", lambda y, _: 1 - y),
    "clean accuracy": told("test", "nominal_accuracy", value=up),
    "certified accuracy": told("test", "certified_accuracy", value=up),
    "attacked accuracy": told("test", "attacked_accuracy", value=up),
    "certification rate": told("test", "certification_rate", value=up),
    "majority": told("test", "majority_accuracy", value=0.01),
    "a class's share": told("test", "by_class", value=lambda shares: [{**shares[0], "certified": 0.77}, *shares[1:]]),
    "wrong but certified": told("test", "wrong_but_certified", value=lambda n: n + 1),
}
NUMBERS: dict[str, Forgery] = {
    "ranges": answers("range_high", lambda high, _: high - 0.01 * np.abs(high)),
    "outputs reached": answers("attack_high", lambda high, _: high - 1e-3),
    "clean error": told("test", "nominal_error", value=0.001),
    "certified error": told("test", "certified_error", value=0.002),
    "baseline": told("test", "baseline_error", value=99.0),
}
IN_STEPS = {
    "seed",
    "learning rate",
    "batch size",
    "momentum",
    "the last step cut off",
    "a set dropped",
    "another start",
}
IN_STEPS |= {
    "validation figures",
    "another epoch chosen",
    "another rule of choice",
    "validation rows",
    "the last step said to diverge",
}
IN_STEPS |= {
    "seed in the result",
    "steps in the result",
    "radii",
    "the last set shrunk, earlier ones dropped",
    "gaps and programs",
}
"""Forgeries that a fitted model has no place for, or that are none there."""
FITTED: dict[str, Forgery] = {
    "less penalty": asked(training__C=lambda c: 3.0 * c),
    "no intercept": asked(training__fit_intercept=False),
    "radius": radius,
    "the fit's record gone": cut,
    "another start of the fit": start,
}


def forgeries(*, fitted: bool, numbers: bool) -> dict[str, Forgery]:
    """What can be forged in such a run."""
    found = {**STEPS, **ASKED, **ROWS, **FOUND, **(NUMBERS if numbers else CLASSES)}
    if fitted:
        found = {name: one for name, one in found.items() if name not in IN_STEPS} | FITTED
    return found
