"""Small runs in run directories, and what careless or careful hands do to their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mibp_cert as mc
from mibp_cert.store.archive import digest, opened, pack, read_step, sealed
from mibp_cert.store.verify import AuditSettings

QUICK = AuditSettings(points=2, parameters=1, members=5)
CASES: dict[str, dict[str, Any]] = {
    "relational": {"threat": mc.LInf(0.02)},
    "relational with velocity": {"threat": mc.LInf(0.02), "momentum": 0.5, "loss": "cross-entropy"},
    "relational in cases": {"threat": mc.Budget(mc.LInf(0.2), rows=1), "epochs": 2},
    "relational with flips": {"threat": mc.LabelFlips(6) & mc.L2(0.05)},
    "interval": {"threat": mc.LInf(0.02), "engine": "interval"},
    "crown": {"threat": mc.LInf(0.02), "engine": "crown"},
    "mibp": {"threat": mc.LInf(0.002), "engine": "mibp", "epochs": 1},
}


def small(rows: int = 12) -> mc.Split:
    data = mc.two_moons(0)
    parts = (data.train, data.validation, data.test)
    return mc.Split("small", *(part.take(np.arange(rows, dtype=np.intp)) for part in parts))


def request(threat: mc.Threat, engine: str = "relational", epochs: int = 4, **training: Any) -> tuple[Any, ...]:
    return mc.Network.mlp([2, 2, 2]), small(), threat, mc.Training(epochs=epochs, batch_size=6, **training), engine


def same(a: mc.CertifiedRun, b: mc.CertifiedRun) -> bool:
    plain = [run.to_json() for run in (a, b)]
    for record in plain:
        for epoch in record["epochs"]:
            epoch.pop("seconds")
    arrays = a.bounds.arrays(), b.bounds.arrays()
    return (
        plain[0] == plain[1]
        and arrays[0].keys() == arrays[1].keys()
        and all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
        and np.array_equal(a.theta, b.theta)
    )


def copy_of(folder: Path, target: Path) -> Path:
    for source in folder.rglob("*"):
        if source.is_file():
            place = target / source.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source.read_bytes())
    return target


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def rewrite(folder: Path, change: Callable[[dict[str, Any], int], None], steps: range) -> None:
    """Alter stored sets and mend every hash after them, as a careful forger would."""
    last = digest((folder / "run.json").read_bytes())
    for number in range(1, len(list((folder / "steps").glob("*.json"))) + 1):
        place = folder / "steps" / f"{number:06d}"
        arrays = read_step(folder, number)
        plain = opened(place.with_suffix(".json"))
        if number in steps:
            arrays = {name: np.array(value) for name, value in arrays.items()}
            change(arrays, number)
            content = pack(arrays)
            place.with_suffix(".npz").write_bytes(content)
            plain["arrays"] = digest(content)
        plain["previous"] = last
        text = sealed(plain)
        place.with_suffix(".json").write_bytes(text)
        last = digest(text)
    plain = opened(folder / "result.json")
    plain["previous"] = last
    (folder / "result.json").write_bytes(sealed(plain))
