"""Runs behind the tables: one unit is one cell with one engine and one seed; finished units are kept and not run again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from mibp_cert.certify import AttackSettings, CertifiedRun, Selection
from mibp_cert.certify.loop import clean_accuracies
from mibp_cert.data import Split, load, npha
from mibp_cert.doors import certify_training
from mibp_cert.engines import DEFAULT, ENGINES, SolverSettings
from mibp_cert.nets import Network, Training, effective_batch_size, steps_per_epoch
from mibp_cert.parallel import arrivals
from mibp_cert.store.archive import write_safely
from mibp_cert.studies.reproduce.paper import Cell, Table
from mibp_cert.threats import Threat

Result = dict[str, Any]
Results = dict[tuple[str, str, int], Result]
Hear = Callable[[str], None]
CONSTANT = 0.98
"""Share of one predicted class from which on a model is called a constant predictor."""


@dataclass(frozen=True)
class Options:
    """What a user may choose: seeds, engines, time for the exact step, the survey's file, and where results are kept."""

    seeds: int = 5
    engines: tuple[str, ...] = ("interval", "crown", "relational", "mibp")
    seconds_per_step: float = 30.0
    mibp_seeds: int = 5
    mibp_epochs: int | None = None
    """Epochs at most for the exact step; None: as for the others."""
    first_rate: bool = False
    """Only the first learning rate of each table."""
    data: Path | None = None
    runs: Path | None = None
    parallel: str = "local"
    """Where units are computed: "local", the address of a Dask scheduler, or "ray"; see `WorkerPool`."""
    jobs: int = 1
    """Units computed at once on this machine."""

    @property
    def one_by_one(self) -> bool:
        """Whether a unit has this machine for itself; else its exact step has one process, so that units do not compete."""
        return self.parallel == "local" and self.jobs == 1


@dataclass(frozen=True, eq=False)
class Unit:
    """One cell with one engine and one seed, and the learning rates to try."""

    table: Table
    cell: Cell
    engine: str
    seed: int
    rates: tuple[float, ...]

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from the other units of its table."""
        return self.cell.label, self.engine, self.seed

    @property
    def label(self) -> str:
        return f"{self.table.name}, {self.cell.label}, {self.engine}, seed {self.seed}"

    @property
    def dataset(self) -> str:
        return self.cell.dataset or self.table.dataset

    def epochs(self, options: Options) -> int:
        """Epochs at most: for the exact step there may be fewer."""
        fewer = options.mibp_epochs if ENGINES[self.engine].solves else None
        return self.table.epochs if fewer is None else min(self.table.epochs, fewer)


def run_table(table: Table, options: Options, hear: Hear) -> list[Result]:
    """One record for every cell and engine: mean and standard deviation over the seeds."""
    rates = table.learning_rates[:1] if options.first_rate else table.learning_rates
    # The exact step only where the table runs it by default, or where nothing else was asked for.
    engines = [name for name in options.engines if not ENGINES[name].solves or table.mibp or len(options.engines) == 1]
    rows = []
    for cell, engine in product(table.cells, engines):
        count = min(options.seeds, options.mibp_seeds) if ENGINES[engine].solves else options.seeds
        rows.append([Unit(table, cell, engine, seed, rates) for seed in table.seeds or range(count)])
    found = _results([unit for row in rows for unit in row], options, hear)
    records = []
    for row in rows:
        about = {"table": table.name, "cell": row[0].cell.label, "engine": row[0].engine, "seeds": len(row)}
        records.append(about | _summary([found[unit.key] for unit in row]))
    return records


def _results(units: list[Unit], options: Options, hear: Hear) -> Results:
    # The exact step takes the learning rate that the relational engine finds best on validation data: that comes first.
    guided = [u for u in units if ENGINES[u.engine].solves and len(u.rates) > 1 and _kept(u, options) is None]
    guides = [replace(unit, engine=DEFAULT) for unit in guided]
    found = _complete([*(unit for unit in units if unit not in guided), *guides], options, hear)
    best = [(found[guide.key]["learning_rate"],) for guide in guides]
    again = [replace(unit, rates=rates) for unit, rates in zip(guided, best, strict=True)]
    return found | _complete(again, options, hear)


def _complete(units: list[Unit], options: Options, hear: Hear) -> Results:
    """The results of all units, from the folder where they are there; each new one is kept as soon as it is known."""
    kept = {unit.key: _kept(unit, options) for unit in units}
    found = {key: result for key, result in kept.items() if result is not None}
    missing = {unit.key: unit for unit in units if unit.key not in found}
    for unit, result in _computed(list(missing.values()), options, hear):
        place, settings = _place(unit, options)
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_safely(place, json.dumps({"settings": settings, "result": result}, default=str).encode())
        found[unit.key] = result
    return found


def _computed(units: list[Unit], options: Options, hear: Hear) -> Iterator[tuple[Unit, Result]]:
    """Each unit with its result, in order of completion."""
    if options.one_by_one:
        for unit in units:
            hear(unit.label)
            yield unit, run_unit(unit, options, _load(unit, options))
        return
    # Data are loaded here, since other machines may not have the files.
    work = [(unit, options, _load(unit, options)) for unit in units]
    for done, (number, result) in enumerate(arrivals(_run, work, options.parallel, options.jobs), start=1):
        hear(f"{units[number].label} ({done} of {len(units)} done)")
        yield units[number], result


def _run(work: tuple[Unit, Options, Split]) -> Result:
    """Runs in a worker."""
    return run_unit(*work)


def _place(unit: Unit, options: Options) -> tuple[Path | None, dict[str, Any]]:
    """The unit's file, and the settings that its name stands for."""
    table, apart = asdict(unit.table), ("cells", "choices", "title", "mibp", "entropy_rates")
    settings = {
        "table": {name: value for name, value in table.items() if name not in apart},
        "threat": unit.cell.threat.to_json(),
        "dataset": unit.dataset,
        "engine": unit.engine,
        "seed": unit.seed,
        "seconds_per_step": options.seconds_per_step if ENGINES[unit.engine].solves else None,
        "epochs": unit.epochs(options),
        "first_rate": options.first_rate,
    }
    key = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:24]
    name = f"{unit.table.name}-{unit.engine}-{unit.seed}-{key}.json"
    return None if options.runs is None else options.runs / name, settings


def _kept(unit: Unit, options: Options) -> Result | None:
    """The unit's result from the folder, if it is there and was not cut short by an interrupted write of an older version."""
    place, _ = _place(unit, options)
    try:
        return None if place is None else dict(json.loads(place.read_text())["result"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def run_unit(unit: Unit, options: Options, data: Split) -> Result:
    """Certify one cell with one engine and one seed."""
    table, threat, epochs = unit.table, unit.cell.threat, unit.epochs(options)
    network = Network.mlp([data.train.features, *table.hidden, len(data.train.classes)])
    trainings = [
        Training(epochs, table.batch_size, rate, table.loss, unit.seed, "torch", table.batch_mode)
        for rate in unit.rates
    ]
    rule = _selection(table, threat, network, data, trainings) if table.select else Selection()
    settings: dict[str, Any] = {
        "select": rule,
        "solver": SolverSettings(seconds_per_step=options.seconds_per_step, jobs=None if options.one_by_one else 1),
        "attack_settings": AttackSettings(members=20, points=40, parameters=20, rounds=2),
    }
    start = time.perf_counter()

    def certify(training: Training, attacked: bool) -> CertifiedRun:
        return certify_training(network, data, threat, training, unit.engine, **settings, attacked=attacked)

    def score(training: Training) -> tuple[bool, float]:
        """Validation alone decides between settings: clean accuracy high enough, then certified accuracy."""
        nominal, certified = certify(training, attacked=False).validation
        return (nominal or 0.0) >= rule.least_accuracy, certified or 0.0

    best = max(trainings, key=score) if len(trainings) > 1 else trainings[0]
    run = certify(best, attacked=True)
    assert run.test is not None
    assert run.nominal is not None
    counts = np.bincount(run.nominal, minlength=len(data.train.classes))
    majority = int(np.bincount(data.train.y).argmax())
    return {
        "steps": run.steps,
        "learning_rate": best.learning_rate,
        "clean": 100.0 * (run.nominal_accuracy or 0.0),
        "attacked": 100.0 * (run.attacked_accuracy or 0.0),
        "certified": 100.0 * run.test.certified_accuracy(data.tested.y),
        "rate": 100.0 * run.test.certification_rate(),
        "radius": float(run.bounds.radius.mean()),
        "seconds": time.perf_counter() - start,
        "histogram": counts.tolist(),
        "majority": 100.0 * float(np.mean(data.tested.y == majority)),
        "constant": bool(counts.max() >= CONSTANT * counts.sum()),
    }


def _load(unit: Unit, options: Options) -> Split:
    if unit.dataset == "npha-answered":
        return npha(unit.seed, options.data, without_refused=True)
    return load(unit.dataset, unit.seed, options.data if unit.dataset == "npha" else None)


def _selection(table: Table, threat: Threat, network: Network, data: Split, trainings: list[Training]) -> Selection:
    """Best validation, with enough steps and a clean accuracy close to the best one that these trainings reach."""
    least = 0.0
    if table.clean_within is not None:
        per_epoch = steps_per_epoch(len(data.train), effective_batch_size(len(data.train), table.batch_size))
        reached = (
            found
            for training in trainings
            for number, found in enumerate(clean_accuracies(network, data, threat, training), start=1)
            if number >= table.least_steps and (table.per_step or number % per_epoch == 0)
        )
        least = max(reached, default=0.0) - table.clean_within - 1e-9
    return Selection("best-validation", table.least_steps, least, table.per_step)


def _summary(units: list[Result]) -> Result:
    out: Result = {}
    for key in ("steps", "learning_rate", "clean", "attacked", "certified", "rate", "radius", "seconds", "majority"):
        values = [unit[key] for unit in units]
        out[key], out[f"{key}_std"] = float(np.mean(values)), float(np.std(values))
    out["histogram"] = np.sum([unit["histogram"] for unit in units], axis=0).tolist()
    out["constant"] = sum(unit["constant"] for unit in units)
    return out
