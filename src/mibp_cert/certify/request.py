"""Requests and results as plain data and arrays: what a run directory holds, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from mibp_cert.certify.attack import Attack, AttackSettings
from mibp_cert.certify.predict import Predictions, Ranges
from mibp_cert.certify.run import CertifiedRun, Selection, Training
from mibp_cert.data import Column, Dataset, Split
from mibp_cert.engines.base import StepReport
from mibp_cert.engines.exact.solve import SolverSettings
from mibp_cert.engines.relational.engine import RelationalSettings
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import UserError
from mibp_cert.nets import LAYERS, Network
from mibp_cert.solvers.program import ProgramBuilder
from mibp_cert.store.archive import digest, read_request
from mibp_cert.threats import Threat, threat_from_json

PARTS = ("train", "validation", "test")
_ELSEWHERE = ("jobs", "parallel")
"""Settings of the solver that say where programs run; they change no bit of the result."""


@dataclass(frozen=True, eq=False)
class Request:
    """Everything that determines a run, bit for bit; the arguments of `certify_training`."""

    network: Network
    data: Split | Dataset
    threat: Threat
    training: Training
    engine: str
    solver: SolverSettings
    relational: RelationalSettings
    unroll: int
    select: Selection
    start: Array
    """The initial parameters `θ₀`."""
    prediction: str
    test_threat: Threat | None
    attack: AttackSettings | None
    """None: no attack."""

    @property
    def train(self) -> Dataset:
        return self.data.train if isinstance(self.data, Split) else self.data

    @property
    def repeatable(self) -> bool:
        """Wall-clock limits cannot be repeated; without them a run gives the same bits again."""
        return math.isinf(self.solver.seconds_per_program) and math.isinf(self.solver.seconds_per_step)

    def description(self) -> dict[str, Any]:
        """Plain data; the numbers of the data themselves and of `θ₀` are in `arrays`."""
        train = self.train
        test = self.data.test if isinstance(self.data, Split) else None
        return {
            "name": self.data.name if isinstance(self.data, Split) else None,
            "shape": self.network.shape,
            "layers": [layer_json(layer) for layer in self.network.layers],
            "threat": self.threat.to_json(),
            "threat_sha256": _set_digest(self.threat, train),
            "training": asdict(self.training),
            "engine": self.engine,
            "solver": {k: _finite(v) for k, v in asdict(self.solver).items() if k not in _ELSEWHERE},
            "relational": asdict(self.relational),
            "unroll": self.unroll,
            "select": asdict(self.select),
            "prediction": self.prediction,
            "test_threat": None if self.test_threat is None else self.test_threat.to_json(),
            "test_threat_sha256": None
            if self.test_threat is None or test is None
            else _set_digest(self.test_threat, test),
            "attack": None if self.attack is None else asdict(self.attack),
            "repeatable": self.repeatable,
            "data": {
                "classes": [_plain(c) for c in train.classes],
                "columns": [column_json(column) for column in train.columns],
                "target": None if train.target is None else column_json(train.target),
            },
            "versions": {name.replace("-", "_"): version(name) for name in ("mibp-cert", "numpy", "scipy")},
        }

    def arrays(self) -> dict[str, Any]:
        parts = {p: getattr(self.data, p) for p in PARTS} if isinstance(self.data, Split) else {"train": self.data}
        found: dict[str, Any] = {"start": self.start}
        for name, part in parts.items():
            found |= {f"{name}_x": part.x, f"{name}_y": part.y.astype(np.int64)}
            if part.targets is not None:
                found[f"{name}_targets"] = part.targets
            if part.missing is not None:
                found[f"{name}_missing"] = part.missing
            if part.index is not None:
                names = part.index
                found[f"{name}_index"] = names if names.dtype.kind in "iuU" else np.array([str(n) for n in names])
        return found

    @classmethod
    def read(cls, path: str | Path, threat: Threat | None = None) -> Request:
        """The request behind a run directory; `threat` where it cannot be written to a file (rules)."""
        plain, arrays = read_request(Path(path))
        target = plain["data"]["target"]
        parts = [
            _dataset(name, arrays, plain["data"], None if target is None else column_of(target))
            for name in PARTS
            if f"{name}_x" in arrays
        ]
        shape = plain["shape"]
        training = dict(plain["training"])
        training["schedule"] = (
            tuple(training["schedule"]) if isinstance(training["schedule"], list) else training["schedule"]
        )
        solver: dict[str, Any] = {
            k: math.inf if v is None and k.startswith("seconds") else v for k, v in plain["solver"].items()
        }
        return cls(
            Network(
                tuple(layer_of(layer) for layer in plain["layers"]), tuple(shape) if isinstance(shape, list) else shape
            ),
            parts[0] if len(parts) == 1 else Split(plain["name"], *parts),
            threat_from_json(plain["threat"]) if threat is None else threat,
            Training(**training),
            plain["engine"],
            SolverSettings(**solver),
            RelationalSettings(**plain["relational"]),
            plain["unroll"],
            Selection(**plain["select"]),
            arrays["start"],
            plain["prediction"],
            None if plain["test_threat"] is None else threat_from_json(plain["test_threat"]),
            None if plain["attack"] is None else AttackSettings(**plain["attack"]),
        )


def _set_digest(threat: Threat, data: Dataset) -> str:
    """Hash of the set of datasets: its hull and, for rules, whose record in words does not determine them, their program."""
    members = threat.bind(data)
    hull = members.hull()
    parts = [getattr(hull, f.name) for f in fields(hull)]
    if not members.described:
        builder = ProgramBuilder()
        builder.bilinear = members.bilinear
        cells = members.constraints(builder, np.arange(len(data), dtype=np.intp))
        program = builder.finish()
        for affine in cells:
            parts += [affine.centre, affine.slack, affine.linear.data, affine.linear.indices, affine.linear.indptr]
        matrix = program.matrix
        parts += [program.lower, program.upper, program.integer, matrix.data, matrix.indices, matrix.indptr]
        parts += [program.row_lower, program.row_upper, program.triples]
    return digest(b"|".join(np.ascontiguousarray(part).tobytes() for part in parts))


def result_arrays(run: CertifiedRun) -> dict[str, Any]:
    """What was found about the test points, and what the attacks reached."""
    found: dict[str, Any] = {}
    if run.test is not None:
        found |= {f"test_{n}": getattr(run.test, n) for n in ("classes", "centre", "margin", "margin_high")}
    if run.test_ranges is not None:
        found |= {"range_low": run.test_ranges.outputs.low, "range_high": run.test_ranges.outputs.high}
    if run.nominal is not None:
        found["nominal"] = run.nominal
    if run.attack is not None:
        a = run.attack
        found |= {"attack_theta": a.theta, "attack_classes": a.classes, "attack_origins": np.array(a.origins)}
        found |= {"attack_x": a.witness[0], "attack_y": a.witness[1], "attack_flips": np.array(a.flips)}
        found |= {"attack_low": a.outputs.low, "attack_high": a.outputs.high}
    return found


def read_results(arrays: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The fields of a `CertifiedRun` that `result_arrays` keeps."""
    test = ranges = found = None
    report = StepReport()
    if "test_classes" in arrays:
        classes, centre, low, high = (arrays[f"test_{n}"] for n in ("classes", "centre", "margin", "margin_high"))
        test = Predictions(classes, centre, low, high, method, report)
    if "range_low" in arrays:
        ranges = Ranges(Interval(arrays["range_low"], arrays["range_high"]), method, report)
    if "attack_theta" in arrays:
        found = Attack(
            arrays["attack_theta"],
            arrays["attack_classes"],
            tuple(str(name) for name in arrays["attack_origins"]),
            (arrays["attack_x"], arrays["attack_y"]),
            int(arrays["attack_flips"]),
            Interval(arrays["attack_low"], arrays["attack_high"]),
        )
    return {"test": test, "test_ranges": ranges, "nominal": arrays.get("nominal"), "attack": found}


def layer_json(layer: Any) -> dict[str, Any]:
    return {"kind": type(layer).__name__, **asdict(layer)}


def layer_of(plain: Mapping[str, Any]) -> Any:
    known = {kind.__name__: kind for kind in LAYERS}
    if plain["kind"] not in known:
        raise UserError(
            f"The layer {plain['kind']} is not one of this package: hand it to certify_training(…, run_dir=…, resume=True)."
        )
    return known[plain["kind"]](**{k: v for k, v in plain.items() if k != "kind"})


def column_json(column: Column) -> dict[str, Any]:
    plain = {k: _finite(v) for k, v in asdict(column).items()}
    plain["categories"] = None if column.categories is None else [_plain(c) for c in column.categories]
    return {**plain, "fill": _plain(column.fill)}


def column_of(plain: Mapping[str, Any]) -> Column:
    values = dict(plain)
    values["categories"] = None if plain["categories"] is None else tuple(plain["categories"])
    values["low"] = -np.inf if plain["low"] is None else plain["low"]
    values["high"] = np.inf if plain["high"] is None else plain["high"]
    return Column(**values)


def _dataset(name: str, arrays: Mapping[str, Array], plain: Mapping[str, Any], target: Column | None) -> Dataset:
    missing = arrays.get(f"{name}_missing")
    for key in ("x", "y", "targets", "missing"):
        if f"{name}_{key}" in arrays:
            arrays[f"{name}_{key}"].setflags(write=False)
    return Dataset(
        arrays[f"{name}_x"],
        arrays[f"{name}_y"].astype(np.intp),
        tuple(plain["classes"]),
        tuple(column_of(column) for column in plain["columns"]),
        None if missing is None else missing.astype(bool),
        arrays.get(f"{name}_targets"),
        target,
        arrays.get(f"{name}_index"),
    )


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
