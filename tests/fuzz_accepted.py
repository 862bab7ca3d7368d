"""What the fuzzer starts from: tables with their flags, configurations, and the runs and certificates made of these."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fuzz_judge import command
from fuzz_mutate import Cells, some
from mibp_cert import load_run

QUICK = {"members": 6, "points": 3, "parameters": 3, "rounds": 1}
"""An attack that takes some milliseconds."""
CONFIG = "quick.toml"


@dataclass(frozen=True)
class Table:
    """A file that is accepted, and the flags with which it is."""

    cells: Cells
    flags: tuple[str, ...]
    separator: str = ","

    @property
    def content(self) -> str:
        return text(self.cells, self.separator)


def text(cells: Cells, separator: str) -> str:
    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"' if separator in cell or "\n" in cell else cell

    return "".join(separator.join(map(quoted, row)) + "\n" for row in cells)


def _table(seed: int, rows: int = 28, classes: tuple[str, ...] = ("yes", "no"), gaps: int = 0) -> Cells:
    """Ages, incomes, moods, and what may be said of a row by them."""
    rng = np.random.default_rng(seed)
    found = [["age", "income", "mood", "ill"]]
    for k in range(rows):
        age, income, mood = (
            int(rng.integers(20, 80)),
            round(float(rng.uniform(1, 9)), 2),
            some(rng, ("good", "fair", "bad")),
        )
        score = (age - 50) / 15 + (mood == "bad") + float(rng.normal()) / 2
        label = classes[min(len(classes) - 1, int(np.digitize(score, np.linspace(0, 1, len(classes))[:-1])))]
        found.append(["" if k < gaps else str(age), str(income), "" if gaps and k == gaps else mood, label])
    return found


def _priced(cells: Cells) -> Cells:
    return [
        [*cells[0][:-1], "price"],
        *([*row[:-1], f"{float(row[1]) * 3 + k % 5:.1f}"] for k, row in enumerate(cells[1:])),
    ]


def _commas(cells: Cells) -> Cells:
    return [cells[0], *([row[0], row[1].replace(".", ","), *row[2:]] for row in cells[1:])]


ILL, FIT = ("--target", "ill"), ("--C", "0.1")
TABLES: dict[str, Table] = {
    "noise": Table(_table(0), (*ILL, *FIT, "--eps", "age=1,income=5%")),
    "missing": Table(_table(1, gaps=3), (*ILL, *FIT, "--missing", "all", "--eps", "age=1")),
    "commas": Table(_commas(_table(2)), (*ILL, *FIT, "--decimal", ",", "--eps", "5%", "--flips", "1"), ";"),
    "numbers": Table(_priced(_table(3)), ("--target", "price", *FIT, "--target-eps", "0.5", "--eps", "1%")),
    "three": Table(_table(4, classes=("a", "b", "c")), (*ILL, *FIT, "--eps", "income=0.1"), "\t"),
    "auto": Table(_table(5), (*ILL, "--eps", "age=1")),
    "categories": Table(_table(6), (*ILL, *FIT, "--any-category", "mood", "--rows", "1"), "|"),
    "rows": Table(
        _table(7, rows=16), (*ILL, *FIT, "--removed", "1", "--added", "1", "--added-range", "age=30:60,mood=good")
    ),
    "weights": Table(
        _table(8), (*ILL, *FIT, "--eps", "income=0.1", "--class-weight", "yes=2,no=1", "--model", "squared-hinge")
    ),
    "features": Table(_table(9), (*ILL, *FIT, "--eps", "0.1", "--features", "3")),
    "huber": Table(_priced(_table(10)), ("--target", "price", *FIT, "--target-eps", "0.5", "--model", "huber")),
    "network": Table(_table(11), (*ILL, "--eps", "age=1", "--model", "network", "--epochs", "2")),
    "steps": Table(
        _table(12),
        (*ILL, "--eps", "age=1", "--epochs", "2", "--hidden", "2", "--engine", "interval", "--test-eps", "0.01"),
    ),
    "lines": Table(_priced(_table(13)), ("--target", "price", "--eps", "1%", "--model", "network", "--epochs", "2")),
    "crown": Table(
        _table(14, gaps=2),
        (*ILL, "--missing", "all", "--epochs", "1", "--engine", "crown", "--loss", "hinge", "--flips", "1"),
    ),
    "votes": Table(_table(15), (*ILL, "--ensemble", "partitions:4", "--learner", "tree", "--flips", "1")),
    "bags": Table(_table(16), (*ILL, "--ensemble", "bagging:30", "--confidence", "0.5", "--bag-size", "8")),
    "flipped": Table(
        _table(17), (*ILL, "--ensemble", "bagflip:30", "--confidence", "0.5", "--bag-size", "8", "--flip", "labels")
    ),
}
PROVEN = ("missing", "commas", "numbers", "categories", "weights")
"""Tables of which there are certificates."""
KEPT = ("noise", "network", "steps", "lines", "crown")
"""Tables of which there are run directories."""
LATER: dict[str, tuple[tuple[str, ...], ...]] = {
    "certify": (
        (),
        (),
        ("--margin", "0.1", "--collective"),
        ("--protected", "mood"),
        ("--rising", "age"),
        ("--parts",),
    ),
    "blame": ((), ("--point", "1"), ("--top", "2")),
    "tolerance": (("--precision", "0.5"), ("--precision", "0.5", "--vary", "flips", "--most", "2")),
    "compare": ((), ("--eps-values", "0.1,0.2")),
}
"""Commands with flags of theirs."""


class World:
    """Folders with what is accepted, made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{name} = {value}" for name, value in QUICK.items()]
        (folder / CONFIG).write_text("\n".join(["[attack]", *lines, ""]))
        for name, table in TABLES.items():
            (folder / f"{name}.csv").write_text(table.content, encoding="utf-8")

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.csv"

    @property
    def quick(self) -> tuple[str, ...]:
        return "--config", str(self.folder / CONFIG)

    @cached_property
    def runs(self) -> dict[str, Path]:
        found = {}
        for name in KEPT:
            found[name] = self.folder / f"run-{name}"
            done, said = command(
                "certify", self.file(name), *TABLES[name].flags, *self.quick, "-q", "--run", found[name]
            )
            assert done == 0, said
        return found

    @cached_property
    def results(self) -> dict[str, Any]:
        return {name: load_run(path).to_json() for name, path in self.runs.items()}

    @cached_property
    def proofs(self) -> dict[str, tuple[Path, Any, Any]]:
        """Certificates, with models that were really fitted, and test rows as these see them."""
        found = {}
        for name in PROVEN:
            path, kept = self.folder / f"{name}.cert", self.folder / f"proof-{name}"
            more = ("-q", "--run", kept, "--certificate", path)
            done, said = command("certify", self.file(name), *TABLES[name].flags, *self.quick, *more)
            assert done == 0, said
            run = load_run(kept)
            assert run.attack is not None
            found[name] = path, run.attack.theta, np.hstack([run.data.tested.x, np.ones((len(run.data.tested), 1))])
        return found


TOML: tuple[dict[str, dict[str, Any]], ...] = (
    {"data": {"target": "ill"}, "threat": {"eps": "age=1"}, "model": {"kind": "logistic", "C": 0.1}},
    {"data": {"target": "ill", "test": 0.3}, "threat": {"eps": {"age": 1.0}, "flips": 1}, "model": {"C": 0.1}},
    {
        "data": {"target": "ill", "categorical": ["mood"], "drop": ["income"], "scaling": "range"},
        "threat": {"kind": "all", "threats": [{"kind": "linf", "eps": 0.1}, {"kind": "label-flips", "at_most": 1}]},
        "model": {"C": 0.1, "fit_intercept": True, "class_weight": {"yes": 2.0, "no": 1.0}},
    },
    {
        "data": {"target": "ill"},
        "threat": {"any_category": ["mood"], "rows": 1, "added": 1, "added_range": {"age": [40, 50], "mood": ["good"]}},
        "model": {"C": 0.1},
        "questions": {"margin": 0.1, "protected": ["mood"]},
    },
    {
        "data": {"target": "ill"},
        "threat": {"eps": 0.1},
        "test_threat": {"eps": 0.01},
        "model": {"kind": "network"},
        "network": {"hidden": [2], "activation": "tanh"},
        "training": {"epochs": 2, "batch_size": 10, "momentum": 0.5, "loss": "cross-entropy", "schedule": "constant"},
        "select": {"rule": "last"},
        "run": {"engine": "interval"},
    },
    {
        "data": {"target": "income", "regression": True, "na": ["?"]},
        "threat": {"target_eps": 0.5, "eps": "age=1"},
        "training": {"epochs": 1, "learning_rate": 0.05},
        "relational": {"symbols": 50},
        "run": {"engine": "relational"},
    },
    {
        "data": {"target": "ill"},
        "threat": {"flips": 1},
        "ensemble": {"kind": "partitions:3", "learner": "tree", "by": "content"},
    },
    {"data": {"target": "ill"}, "ensemble": {"kind": "bagflip:20", "confidence": 0.5, "bag_size": 9, "bins": 2}},
)
"""Configurations that are accepted."""
