"""Runs of the engine interval as they are stored, for the checker of steps and for who alters them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import mibp_cert as mc
from cases import THREATS, survey
from mibp_cert.check.steps import Proof, prove_steps
from mibp_cert.errors import UnsupportedOperation
from mibp_cert.nets import Network
from mibp_cert.store.archive import opened, read_chain, read_request, read_step
from mibp_cert.store.npz import unpack
from mibp_cert.threats import column, label_is


@dataclass
class Stored:
    """What a run directory holds, read as `verify` reads it."""

    description: dict[str, Any]
    data: dict[str, Any]
    sets: dict[int, dict[str, Any]]
    result: dict[str, Any] | None

    @classmethod
    def read(cls, path: Path) -> Stored:
        records, _, dropped = read_chain(path)
        kept = [n for n, record in enumerate(records, start=1) if not record.diverged and n not in dropped]
        result = None
        if (path / "result.json").exists():
            result = {**opened(path / "result.json"), **unpack((path / "test.npz").read_bytes())}
        return cls(*read_request(path), {n: read_step(path, n) for n in kept}, result)

    def prove(self) -> Proof:
        return prove_steps(self.description, self.data, self.sets, self.result)

    def proven(self) -> bool:
        """Whether it holds; what the checker does not know, it does not prove."""
        try:
            return self.prove().holds
        except UnsupportedOperation:
            return False


def stored(network: Network, data: Any, threat: Any, training: mc.Training, **options: Any) -> Stored:
    with TemporaryDirectory() as folder:
        options = {"engine": "interval", "attacked": False, **options}
        mc.certify_training(network, data, threat, training, run_dir=Path(folder) / "run", **options)
        return Stored.read(Path(folder) / "run")


UNKNOWN = ("cosine", "convolution", "strides and padding", "pooling", "two convolutions")


def everything_proven(run: Stored) -> None:
    proof = run.prove()
    assert proof.failed == ""
    assert proof.steps == max(run.sets) == len(run.sets)
    assert run.result is not None
    if "test_classes" in run.result:
        assert proof.rows == (run.result["test_classes"] >= 0).sum()


EXCHANGES = [name for name in THREATS if "exchanged" in name]


FIXED_ROWS = [name for name, threat in THREATS.items() if not threat.changes_rows()]


MORE = {
    "clip": mc.LInf({"age": 5.0}, clip=([0.0], [100.0])) & mc.Missing(),
    "open clip": mc.LInf({"income": 0.5}, clip=(0.0, None)) & mc.Missing(),
    "some rows": mc.LInf(0.5, rows=[0, 3, 4]) & mc.Missing(),
    "several at once": mc.LInf(0.5)
    & mc.Monotone("age", up=2.0, down=1.0)
    & mc.Rounded("income", to=1.0)
    & mc.Missing(),
    "several in a budget": mc.LInf(0.5)
    & mc.Budget(mc.Monotone("age", up=2.0) & mc.LabelFlips(), rows=2)
    & mc.Missing(),
    "conditions": mc.LInf(2.0).where((column("age") >= 50) | ~label_is(1))
    & mc.AnyCategory("mood").where([1, 2, 5])
    & mc.Missing(),
    "a category is": mc.LInf(2.0).where((column("mood") == "bad") & (column("age") < 70)) & mc.Missing(),
    "no budget": mc.Budget(mc.LInf(5.0), rows=0) & mc.LabelFlips(0) & mc.Missing(),
    "marker of a number": mc.Missing("income", marker=0.0),
}


def of_survey(threat: Any, *, missing: bool, loss: str = "hinge", **options: Any) -> Stored:
    train = survey(20, missing=missing)
    if threat is MORE["marker of a number"]:
        train = replace(train, x=np.where(np.arange(5) == 4, train.columns[2].to_feature(0.0), train.x))
    data = mc.Split("survey", train, None, survey(8, 1, missing=False, like=train))
    network = Network.mlp([5, 3, 1 if loss == "hinge" else 2])
    return stored(network, data, threat, mc.Training(epochs=2, batch_size=7, loss=loss), **options)
