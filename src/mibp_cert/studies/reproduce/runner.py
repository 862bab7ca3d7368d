"""Runs behind the tables: one unit is one cell with one engine and one seed; finished units are kept and not run again.

The tables about cost are wall-clock on this machine, beside the paper's, and always run afresh.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mibp_cert.certify import AttackSettings, CertifiedRun, Selection
from mibp_cert.certify.loop import clean_figures
from mibp_cert.data import Split, load, npha, two_moons
from mibp_cert.disk import write_safely
from mibp_cert.doors import certify_training
from mibp_cert.engines import DEFAULT, ENGINES, SolverSettings
from mibp_cert.nets import Network, Training, effective_batch_size, steps_per_epoch
from mibp_cert.parallel import arrivals
from mibp_cert.studies.compare import figures
from mibp_cert.studies.reproduce.minimum import FIT_ENGINE, Fit, best_fit, fits_of, unproven
from mibp_cert.studies.reproduce.paper import TIMINGS, Cell, Table
from mibp_cert.threats import LInf, Threat

Result = dict[str, Any]
Hear = Callable[[str], None]
CONSTANT = 0.98
"""Share of one predicted class from which on a model is called a constant predictor."""


@dataclass(frozen=True)
class Options:
    """What a user may choose: seeds, engines, time for the exact step, the survey's file, and where results are kept."""

    seeds: int = 5
    engines: tuple[str, ...] = ("interval", "crown", "relational", "mibp")
    seconds_per_step: float = 30.0
    quick: bool = False
    """Only the first learning rate of each table; the exact step with one seed and at most six epochs."""
    data: Path | None = None
    runs: Path = Path("reproduce-runs")
    parallel: str = "local"
    """Where units are computed: "local", the address of a Dask scheduler, or "ray"; see `WorkerPool`."""
    jobs: int = 1
    """Units computed at once on this machine."""
    model: str | None = None
    """A model that is fitted to its minimum as well (`studies.reproduce.minimum`), or none."""
    features: int = 30
    """Random features of its second row; 0: there is none."""

    @property
    def exact_seeds(self) -> int:
        """Seeds of the exact step, which takes much longer than the others."""
        return min(self.seeds, 1 if self.quick else 5)


@dataclass(frozen=True, eq=False)
class Unit:
    """One cell with one engine and one seed."""

    table: Table
    cell: Cell
    engine: str
    seed: int
    fit: Fit | None = None
    """What is fitted to its minimum; None: the network of the table is trained."""

    @property
    def label(self) -> str:
        return f"{self.table.name}, {self.cell.label}, {self.fit or self.engine}, seed {self.seed}"

    @property
    def dataset(self) -> str:
        return self.cell.dataset or self.table.name

    @property
    def solves(self) -> bool:
        return self.fit is None and ENGINES[self.engine].solves

    def epochs(self, options: Options) -> int:
        """Epochs at most: for the exact step there may be fewer."""
        most = self.table.training.epochs
        return min(most, 6) if self.solves and options.quick else most


def run_table(table: Table, options: Options, hear: Hear) -> list[Result]:
    """One record for every cell and engine: mean and standard deviation over the seeds."""
    # The exact step only where the table runs it by default, or where nothing else was asked for.
    engines = [name for name in options.engines if not ENGINES[name].solves or table.mibp or len(options.engines) == 1]
    counts = {name: options.exact_seeds if ENGINES[name].solves else options.seeds for name in engines}
    units = [
        Unit(table, cell, engine, seed)
        for cell, engine in product(table.cells, engines)
        for seed in table.seeds or range(counts[engine])
    ]
    units += [
        Unit(table, cell, FIT_ENGINE, seed, fit)
        for cell, fit in product(table.cells, fits_of(options.model, options.features))
        for seed in table.seeds or range(options.seeds)
    ]
    found, records = _results(units, options, hear), []
    for (cell, engine, fit), row in groupby(units, lambda unit: (unit.cell.label, unit.engine, unit.fit)):
        results = [found[unit] for unit in row]
        about = {"table": table.name, "cell": cell, "engine": engine, "seeds": len(results)}
        named = (
            {"model": "network", "features": None} if fit is None else {"model": fit.model, "features": fit.features}
        )
        records.append(about | named | _summary(results))
    return records


def _results(units: list[Unit], options: Options, hear: Hear) -> dict[Unit, Result]:
    """The results of all units, from the folder where they are there; each new one is kept as soon as it is known."""
    found = {unit: kept for unit in units if (kept := _kept(unit, options)) is not None}
    missing = [unit for unit in units if unit not in found]
    # Data are loaded here, since other machines may not have the files.
    work = [(unit, _load(unit, options)) for unit in missing]
    for number, result in arrivals(partial(run_unit, options), work, options.parallel, options.jobs):
        unit = missing[number]
        found[unit] = result
        place, settings = _place(unit, options)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_safely(place, json.dumps({"settings": settings, "result": result}, default=str).encode())
        hear(f"{unit.label} ({len(found)} of {len(units)} done)")
    return found


def _place(unit: Unit, options: Options) -> tuple[Path, dict[str, Any]]:
    """The unit's file, and the settings that its name stands for."""
    table, apart = asdict(unit.table), ("cells", "choices", "title", "mibp", "entropy_rates")
    settings = {
        "table": {name: value for name, value in table.items() if name not in apart},
        "threat": unit.cell.threat.to_json(),
        "dataset": unit.dataset,
        "engine": unit.engine,
        "seed": unit.seed,
        "seconds_per_step": options.seconds_per_step if unit.solves else None,
        "epochs": unit.epochs(options),
        "first_rate": options.quick,
    }
    if unit.fit is not None:
        steps = ("table", "seconds_per_step", "epochs")
        settings = {key: value for key, value in settings.items() if key not in steps} | unit.fit.to_json()
    key = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:24]
    return options.runs / f"{unit.table.name}-{unit.engine}-{unit.seed}-{key}.json", settings


def _kept(unit: Unit, options: Options) -> Result | None:
    """The unit's result from the folder, if it is there and whole."""
    try:
        return dict(json.loads(_place(unit, options)[0].read_text())["result"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def run_unit(options: Options, work: tuple[Unit, Split]) -> Result:
    """Certify one cell with one engine and one seed."""
    (unit, data), start = work, time.perf_counter()
    if unit.fit is not None:
        asked = unit.fit, data, unit.cell.threat, unit.seed
        found, no_steps = best_fit(*asked, quick=options.quick), {"steps": None, "learning_rate": None}
        if found is None:
            return _unproven(unproven(*asked, quick=options.quick), data, time.perf_counter() - start) | no_steps
        return _told(found[0], time.perf_counter() - start) | no_steps | {"C": found[1]}
    table, threat = unit.table, unit.cell.threat
    network = Network.mlp([data.train.features, *table.hidden, len(data.train.classes)])
    trainings = [
        replace(table.training, epochs=unit.epochs(options), learning_rate=rate, seed=unit.seed)
        for rate in (table.learning_rates[:1] if options.quick else table.learning_rates)
    ]
    rule = _selection(table, threat, network, data, trainings)
    # Units that run beside each other have one process each for the exact step, so that they do not compete.
    jobs = None if options.parallel == "local" and options.jobs == 1 else 1
    settings: dict[str, Any] = {
        "select": rule,
        "solver": SolverSettings(seconds_per_step=options.seconds_per_step, jobs=jobs),
        "attack_settings": AttackSettings(members=20, points=40, parameters=20, rounds=2),
    }

    def certify(training: Training, engine: str, attacked: bool) -> CertifiedRun:
        return certify_training(network, data, threat, training, engine, **settings, attacked=attacked)

    def score(training: Training) -> tuple[bool, float]:
        """Validation alone decides between settings: clean accuracy high enough, then certified accuracy. The exact step takes
        the learning rate that the relational engine finds best."""
        nominal, certified = certify(training, DEFAULT if unit.solves else unit.engine, attacked=False).validation
        return (nominal or 0.0) >= (rule.least_accuracy or 0.0), certified or 0.0

    best = max(trainings, key=score) if len(trainings) > 1 else trainings[0]
    run = certify(best, unit.engine, attacked=True)
    return _told(run, time.perf_counter() - start) | {"learning_rate": best.learning_rate, "C": None}


def _told(run: CertifiedRun, seconds: float) -> Result:
    """What a table tells of a run."""
    assert run.nominal is not None
    return figures(run) | _answered(run.nominal, run.data, seconds)


def _unproven(classes: NDArray[np.intp], data: Split, seconds: float) -> Result:
    """The same where no start is proven: every answer is "abstain"."""
    assert data.test is not None
    clean = 100.0 * float(np.mean(classes == data.test.y))
    return {"clean": clean, "certified": 0.0, "rate": 0.0} | _answered(classes, data, seconds)


def _answered(classes: NDArray[np.intp], data: Split, seconds: float) -> Result:
    """Answers of the clean model, beside the majority of the training rows."""
    assert data.test is not None
    counts = np.bincount(classes, minlength=len(data.train.classes))
    return {
        "seconds": seconds,
        "histogram": counts.tolist(),
        "majority": 100.0 * float(np.mean(data.test.y == np.bincount(data.train.y).argmax())),
        "constant": bool(counts.max() >= CONSTANT * counts.sum()),
    }


def _load(unit: Unit, options: Options) -> Split:
    if unit.dataset == "npha-answered":
        return npha(unit.seed, options.data, without_refused=True)
    return load(unit.dataset, unit.seed, options.data if unit.dataset == "npha" else None)


def _selection(table: Table, threat: Threat, network: Network, data: Split, trainings: list[Training]) -> Selection:
    """The table's, with a clean accuracy close to the best one that these trainings reach where that is asked for."""
    if table.clean_within is None:
        return table.select
    per_epoch = steps_per_epoch(len(data.train), effective_batch_size(len(data.train), table.training.batch_size))
    every = 1 if table.select.per_step else per_epoch
    reached = (
        found
        for training in trainings
        for number, found in enumerate(clean_figures(network, data, threat, training), start=1)
        if number >= table.select.least_steps and number % every == 0
    )
    return replace(table.select, least_accuracy=max(reached, default=0.0) - table.clean_within - 1e-9)


_MEASURED = ("clean", "attacked", "certified", "rate", "radius", "seconds", "majority")


def _summary(units: list[Result]) -> Result:
    out: Result = {}
    for key in ("steps", "learning_rate", "C", *_MEASURED):
        values: list[Any] = [unit.get(key) for unit in units]
        known = all(value is not None for value in values)
        out[key], out[f"{key}_std"] = (float(np.mean(values)), float(np.std(values))) if known else (None, None)
    out["histogram"] = np.sum([unit["histogram"] for unit in units], axis=0).tolist()
    out["constant"] = sum(unit["constant"] for unit in units)
    return out


def run_timing(name: str, options: Options, hear: Hear) -> list[Result]:
    """What the exact step costs without test points: one record for every case of a table."""
    records, solver = [], SolverSettings(seconds_per_step=options.seconds_per_step)
    for case in TIMINGS[name]:
        hear(f"{name}, {case.label}")
        network, data = Network.mlp([2, *case.hidden, 2]), two_moons(0, sizes=case.sizes).train
        training = Training(case.epochs, case.batch_size, batch_mode="subsample")
        run = certify_training(network, data, LInf(case.eps), training, "mibp", solver=solver)
        gap = max((record.gap_max or 0.0) for record in run.history)
        about = {"table": name, "cell": case.label, "paper": case.paper, "seconds": figures(run)["seconds"]}
        solved = {"nodes": run.nodes, "programs": run.programs, "fallbacks": run.fallbacks}
        records.append(about | solved | {"gap_percent": 100.0 * gap if np.isfinite(gap) else None})
    return records
