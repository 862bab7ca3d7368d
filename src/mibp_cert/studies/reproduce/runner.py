"""Runs behind the tables: one unit is one cell with one engine and one seed; finished units are kept and not run again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mibp_cert.certify import AttackSettings, CertifiedRun, Selection
from mibp_cert.certify.loop import clean_accuracies
from mibp_cert.data import Split, load, npha
from mibp_cert.doors import certify_training
from mibp_cert.engines import SolverSettings
from mibp_cert.nets import Network, Training, effective_batch_size, steps_per_epoch
from mibp_cert.parallel.sweep import arrivals
from mibp_cert.studies.reproduce.paper import Cell, Table

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


def run_table(table: Table, options: Options, hear: Callable[[str], None]) -> list[dict[str, Any]]:
    """One record for every cell and engine: mean and standard deviation over the seeds."""
    rates = table.learning_rates[:1] if options.first_rate else table.learning_rates
    rows: list[list[Unit]] = []
    for cell in table.cells:
        for engine in engines_of(table, options):
            count = min(options.seeds, options.mibp_seeds) if engine == "mibp" else options.seeds
            rows.append([Unit(table, cell, engine, seed, rates) for seed in table.seeds or range(count)])
    found = _results([unit for row in rows for unit in row], options, hear)
    return [
        {
            "table": table.name,
            "cell": row[0].cell.label,
            "engine": row[0].engine,
            "seeds": len(row),
            **_summary([found[unit.key] for unit in row]),
        }
        for row in rows
    ]


def engines_of(table: Table, options: Options) -> tuple[str, ...]:
    """The engines asked for; the exact step only where the table runs it by default, or where nothing else was asked for."""
    return tuple(e for e in options.engines if e != "mibp" or table.mibp or options.engines == ("mibp",))


def _results(
    units: list[Unit], options: Options, hear: Callable[[str], None]
) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The results of all units, from the folder where they are there; each new one is kept as soon as it is known."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}

    def complete(wanted: Iterable[Unit]) -> None:
        missing = {}
        for unit in wanted:
            kept = _kept(unit, options)
            if kept is None:
                missing[unit.key] = unit
            else:
                found[unit.key] = kept
        for unit, result in _computed(list(missing.values()), options, hear):
            _keep(unit, options, result)
            found[unit.key] = result

    # The exact step takes the learning rate that the relational engine finds best on validation data: that comes first.
    guided = [u for u in units if u.engine == "mibp" and len(u.rates) > 1 and _kept(u, options) is None]
    guides = [replace(unit, engine="relational") for unit in guided]
    complete([*(unit for unit in units if unit not in guided), *guides])
    rates = [(found[guide.key]["learning_rate"],) for guide in guides]
    complete(replace(unit, rates=rate) for unit, rate in zip(guided, rates, strict=True))
    return found


def _computed(
    units: list[Unit], options: Options, hear: Callable[[str], None]
) -> Iterator[tuple[Unit, dict[str, Any]]]:
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


def _run(work: tuple[Unit, Options, Split]) -> dict[str, Any]:
    """Runs in a worker."""
    return run_unit(*work)


def _place(unit: Unit, options: Options) -> tuple[Path | None, dict[str, Any]]:
    """The unit's file, and the settings that its name stands for."""
    table, cell, engine, seed = unit.table, unit.cell, unit.engine, unit.seed
    settings = {
        "table": {
            k: v for k, v in asdict(table).items() if k not in ("cells", "choices", "title", "mibp", "entropy_rates")
        },
        "threat": cell.threat.to_json(),
        "dataset": cell.dataset or table.dataset,
        "engine": engine,
        "seed": seed,
        "seconds_per_step": options.seconds_per_step if engine == "mibp" else None,
        "epochs": _epochs(table, engine, options),
        "first_rate": options.first_rate,
    }
    key = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:24]
    place = None if options.runs is None else options.runs / f"{table.name}-{engine}-{seed}-{key}.json"
    return place, settings


def _kept(unit: Unit, options: Options) -> dict[str, Any] | None:
    """The unit's result from the folder, if it is there."""
    place, _ = _place(unit, options)
    if place is not None and place.exists():
        try:
            kept: dict[str, Any] = json.loads(place.read_text())["result"]
            return kept
        except (ValueError, KeyError):
            place.unlink()  # cut short by an interrupted write of an older version
    return None


def _keep(unit: Unit, options: Options, result: dict[str, Any]) -> None:
    place, settings = _place(unit, options)
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_suffix(".tmp")
        draft.write_text(json.dumps({"settings": settings, "result": result}, default=str))
        draft.replace(place)


def run_unit(unit: Unit, options: Options, data: Split) -> dict[str, Any]:
    """Certify one cell with one engine and one seed."""
    table, cell, engine, seed, rates = unit.table, unit.cell, unit.engine, unit.seed, unit.rates
    epochs = _epochs(table, engine, options)
    network = Network.mlp([data.train.features, *table.hidden, len(data.train.classes)])
    trainings = [Training(epochs, table.batch_size, r, table.loss, seed, "torch", table.batch_mode) for r in rates]
    rule = _selection(table, cell, network, data, trainings) if table.select else Selection()
    start = time.perf_counter()

    def certify(training: Training, attacked: bool) -> CertifiedRun:
        return certify_training(
            network,
            data,
            cell.threat,
            training,
            engine,
            select=rule,
            solver=SolverSettings(seconds_per_step=options.seconds_per_step, jobs=None if options.one_by_one else 1),
            attack_settings=AttackSettings(members=20, points=40, parameters=20, rounds=2),
            attacked=attacked,
        )

    best = 0
    if len(trainings) > 1:
        tried = [certify(training, attacked=False) for training in trainings]
        best = max(range(len(tried)), key=lambda i: _score(tried[i], rule))
    run = certify(trainings[best], attacked=True)
    assert run.test is not None
    assert run.nominal is not None
    counts = np.bincount(run.nominal, minlength=len(data.train.classes))
    majority = int(np.bincount(data.train.y).argmax())
    return {
        "steps": run.steps,
        "learning_rate": rates[best],
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


def _epochs(table: Table, engine: str, options: Options) -> int:
    return table.epochs if engine != "mibp" or options.mibp_epochs is None else min(table.epochs, options.mibp_epochs)


def _load(unit: Unit, options: Options) -> Split:
    name = unit.cell.dataset or unit.table.dataset
    if name == "npha-answered":
        return npha(unit.seed, options.data, without_refused=True)
    return load(name, unit.seed, options.data if name == "npha" else None)


def _score(run: CertifiedRun, rule: Selection) -> tuple[bool, float]:
    """Validation alone decides between settings: clean accuracy high enough, then certified accuracy."""
    nominal, certified = run.validation
    return (nominal or 0.0) >= rule.least_accuracy, certified or 0.0


def _selection(table: Table, cell: Cell, network: Network, data: Split, trainings: list[Training]) -> Selection:
    """Best validation, with enough steps and a clean accuracy close to the best one that these trainings reach."""
    if table.clean_within is None:
        return Selection("best-validation", table.least_steps, 0.0, table.per_step)
    per_epoch = steps_per_epoch(len(data.train), effective_batch_size(len(data.train), table.batch_size))
    best = 0.0
    for training in trainings:
        for number, found in enumerate(clean_accuracies(network, data, cell.threat, training), start=1):
            if number >= table.least_steps and (table.per_step or number % per_epoch == 0):
                best = max(best, found)
    return Selection("best-validation", table.least_steps, best - table.clean_within - 1e-9, table.per_step)


def _summary(units: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in ("steps", "learning_rate", "clean", "attacked", "certified", "rate", "radius", "seconds", "majority"):
        values = [unit[key] for unit in units]
        out[key], out[f"{key}_std"] = float(np.mean(values)), float(np.std(values))
    out["histogram"] = np.sum([unit["histogram"] for unit in units], axis=0).tolist()
    out["constant"] = sum(unit["constant"] for unit in units)
    return out
