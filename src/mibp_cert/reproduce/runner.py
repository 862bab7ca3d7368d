"""Runs behind the tables: one unit is one cell with one engine and one seed; finished units are kept and not run again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mibp_cert.certify import AttackSettings, CertifiedRun, Selection, Training, certify_training
from mibp_cert.certify.predict import nominal_classes
from mibp_cert.certify.train import plan_steps
from mibp_cert.data import Split, effective_batch_size, load, npha, steps_per_epoch
from mibp_cert.engines import concrete
from mibp_cert.engines.exact import SolverSettings
from mibp_cert.nets import Network
from mibp_cert.reproduce.paper import Cell, Table

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


def run_table(table: Table, options: Options, hear: Callable[[str], None]) -> list[dict[str, Any]]:
    """One record for every cell and engine: mean and standard deviation over the seeds."""
    records = []
    for cell in table.cells:
        for engine in engines_of(table, options):
            count = min(options.seeds, options.mibp_seeds) if engine == "mibp" else options.seeds
            seeds = table.seeds or tuple(range(count))
            units = []
            for seed in seeds:
                hear(f"{table.name}, {cell.label}, {engine}, seed {seed}")
                units.append(_cached(table, cell, engine, seed, options))
            records.append(
                {"table": table.name, "cell": cell.label, "engine": engine, "seeds": len(units), **_summary(units)}
            )
    return records


def engines_of(table: Table, options: Options) -> tuple[str, ...]:
    """The engines asked for; the exact step only where the table runs it by default, or where nothing else was asked for."""
    return tuple(e for e in options.engines if e != "mibp" or table.mibp or options.engines == ("mibp",))


def _cached(table: Table, cell: Cell, engine: str, seed: int, options: Options) -> dict[str, Any]:
    """The unit's result, from the folder if it is there."""
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
    if place is not None and place.exists():
        try:
            kept: dict[str, Any] = json.loads(place.read_text())["result"]
            return kept
        except (ValueError, KeyError):
            place.unlink()  # cut short by an interrupted write of an older version
    result = run_unit(table, cell, engine, seed, options)
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_suffix(".tmp")
        draft.write_text(json.dumps({"settings": settings, "result": result}, default=str))
        draft.replace(place)
    return result


def run_unit(table: Table, cell: Cell, engine: str, seed: int, options: Options) -> dict[str, Any]:
    """Certify one cell with one engine and one seed."""
    data = _load(cell.dataset or table.dataset, seed, options)
    network = Network.mlp([data.train.features, *table.hidden, len(data.train.classes)])
    rates, epochs = _rates(table, cell, engine, seed, options), _epochs(table, engine, options)
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
            solver=SolverSettings(seconds_per_step=options.seconds_per_step),
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
        "certified": 100.0 * run.test.certified_accuracy(data.test.y),
        "rate": 100.0 * run.test.certification_rate(),
        "radius": float(run.bounds.radius.mean()),
        "seconds": time.perf_counter() - start,
        "histogram": counts.tolist(),
        "majority": 100.0 * float(np.mean(data.test.y == majority)),
        "constant": bool(counts.max() >= CONSTANT * counts.sum()),
    }


def _epochs(table: Table, engine: str, options: Options) -> int:
    return table.epochs if engine != "mibp" or options.mibp_epochs is None else min(table.epochs, options.mibp_epochs)


def _rates(table: Table, cell: Cell, engine: str, seed: int, options: Options) -> tuple[float, ...]:
    """Learning rates to try; the exact step takes the one that the relational engine found best on validation data."""
    rates = table.learning_rates[:1] if options.first_rate else table.learning_rates
    if engine == "mibp" and len(rates) > 1:
        return (_cached(table, cell, "relational", seed, options)["learning_rate"],)
    return rates


def _load(name: str, seed: int, options: Options) -> Split:
    if name == "npha-answered":
        return npha(seed, options.data, without_refused=True)
    return load(name, seed, options.data if name == "npha" else None)


def _score(run: CertifiedRun, rule: Selection) -> tuple[bool, float]:
    """Validation alone decides between settings: clean accuracy high enough, then certified accuracy."""
    nominal, certified = run.validation
    return (nominal or 0.0) >= rule.least_accuracy, certified or 0.0


def _selection(table: Table, cell: Cell, network: Network, data: Split, trainings: list[Training]) -> Selection:
    """Best validation, with enough steps and a clean accuracy close to the best one that these trainings reach."""
    if table.clean_within is None:
        return Selection("best-validation", table.least_steps, 0.0, table.per_step)
    per_epoch = steps_per_epoch(len(data.train), effective_batch_size(len(data.train), table.batch_size))
    x, y = cell.threat.bind(data.train).reference
    best = 0.0
    for training in trainings:
        theta = network.initialise(training.seed, training.init)
        for number, (step, _) in enumerate(plan_steps(network, training, data.train, 1), start=1):
            theta = concrete.train_step(step, theta, x[step.rows], y[step.rows])
            if number >= table.least_steps and (table.per_step or number % per_epoch == 0):
                found = nominal_classes(network, theta, data.validation.x)
                best = max(best, float(np.mean(found == data.validation.y)))
    return Selection("best-validation", table.least_steps, best - table.clean_within - 1e-9, table.per_step)


def _summary(units: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in ("steps", "learning_rate", "clean", "attacked", "certified", "rate", "radius", "seconds", "majority"):
        values = [unit[key] for unit in units]
        out[key], out[f"{key}_std"] = float(np.mean(values)), float(np.std(values))
    out["histogram"] = np.sum([unit["histogram"] for unit in units], axis=0).tolist()
    out["constant"] = sum(unit["constant"] for unit in units)
    return out
