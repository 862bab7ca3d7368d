"""What is kept of a run, to the last bit, and the small data that the runs of the corpus share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import mibp_cert as mc

FROZEN = Path(__file__).with_name("corpus.json")
ENVIRONMENT = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")},
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_L2_SIZE": "512",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}
"""One thread and one kernel: sums come out in the same order on every machine that has it."""
LEFT_OUT = ("seconds", "versions", "elapsed", "model")
"""Keys that are not compared: timings, versions, and `model`, which JSON files and configurations have got since these runs were
frozen. It is `network` for all of them (`test_fitted_edges.py`), and freezing them anew could hide a bit that moved."""
NODES = mc.SolverSettings(nodes_per_program=40, jobs=1, gap=0.05)
FEW = mc.AttackSettings(members=6, points=6, parameters=4, rounds=1, tries=4)
RUNS: dict[str, Callable[[Path], Any]] = {}


def versions() -> dict[str, str]:
    """What the bits depend on beside this package."""
    return {name: version(name) for name in ("numpy", "scipy", "pyscipopt", "highspy", "scikit-learn", "pandas")}


def kept(run: Callable[[Path], Any]) -> Callable[[Path], Any]:
    RUNS[run.__name__] = run
    return run


def digest(*arrays: Any) -> str:
    return hashlib.sha256(b"|".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()[:24]


def plain(value: Any) -> Any:
    """Without what is not compared; numbers in full."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in LEFT_OUT}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def facts(run: mc.CertifiedRun) -> dict[str, Any]:
    """Everything about a run, to the last bit."""
    found: dict[str, Any] = {
        "json": plain(run.to_json()),
        "bounds": digest(*run.bounds.arrays().values()),
        "width": float(run.bounds.radius.mean()),
        "theta": digest(run.theta),
    }
    if run.test is not None:
        found["test"] = digest(run.test.classes, run.test.margin, run.test.margin_high)
    if run.test_ranges is not None:
        found["ranges"] = digest(run.test_ranges.outputs.low, run.test_ranges.outputs.high)
    if run.attack is not None:
        found["attack"] = digest(run.attack.theta, run.attack.classes, *run.attack.witness)
    return found


def moons(rows: int = 30) -> mc.Split:
    return mc.two_moons(0, sizes=(rows, 20, 20))


def survey(rows: int = 16, *, missing: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.integers(20, 80, rows).astype(float),
            "mood": ["good", "fair", "bad", *rng.choice(["good", "fair", "bad"], rows - 3).tolist()],
            "income": rng.uniform(1, 9, rows).round(2),
        }
    )
    table["ill"] = np.where((table["age"] - 50) / 15 + (table["mood"] == "bad") > 0, "yes", "no")
    if missing:
        table.loc[2, "age"] = np.nan
        table.loc[[4, 6], "mood"] = None
    return table


def parts(table: pd.DataFrame, **options: Any) -> mc.Split:
    recipe = mc.Recipe.fit(table.drop(columns="ill"), categorical=["mood"], **options)
    cut = [table.iloc[:10], table.iloc[10:13], table.iloc[13:]]
    return mc.Split("survey", *(mc.Dataset.from_frame(t, "ill", recipe, ("no", "yes")) for t in cut))


def certify(network: mc.Network, data: Any, threat: Any, engine: str = "relational", **options: Any) -> Any:
    training = options.pop("training", None) or mc.Training(epochs=2, batch_size=10, learning_rate=0.2)
    options = {"attack_settings": FEW, "solver": NODES} | options
    return facts(mc.certify_training(network, data, threat, training, engine, **options))
