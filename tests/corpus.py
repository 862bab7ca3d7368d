"""Runs whose every bit is kept: `tests/corpus.json` holds what each came to, and `test_corpus.py` compares.

They use public names and the command line alone, so that code can move behind them. `python tests/corpus.py` prints what they
come to here, `python tests/corpus.py --write` freezes it anew; both with one thread and one BLAS kernel.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner

import mibp_cert as mc
from mibp_cert.cli import app

FROZEN = Path(__file__).with_name("corpus.json")
ENVIRONMENT = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")},
    "OPENBLAS_CORETYPE": "Haswell",
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


for _engine in ("interval", "crown", "relational"):

    def _hinge(folder: Path, engine: str = _engine) -> Any:
        return certify(mc.Network.mlp([2, 6, 2]), moons(), mc.LInf(0.02), engine)

    def _entropy(folder: Path, engine: str = _engine) -> Any:
        training = mc.Training(3, 15, 0.4, "cross-entropy", 1, momentum=0.5, weight_decay=0.01, clip=0.5)
        return certify(mc.Network.mlp([2, 4, 1]), moons(), mc.LInf(0.02), engine, training=training)

    def _budget(folder: Path, engine: str = _engine) -> Any:
        threat = mc.Budget(mc.LInf(0.3), rows=2) & mc.LabelFlips(1)
        training = mc.Training(2, None, 0.3, "squared-hinge")
        return certify(mc.Network.mlp([2, 3, 2]), moons(12), threat, engine, training=training)

    def _images(folder: Path, engine: str = _engine) -> Any:
        network = mc.Network(
            (
                mc.Conv2d(1, 2, 4, stride=2, padding=1),
                mc.LeakyReLU(0.1),
                mc.AvgPool2d(2),
                mc.Flatten(),
                mc.Linear(8, 2),
            ),
            (1, 8, 8),
        )
        from mibp_cert.data import digits

        data = digits(0, sizes=(12, 4, 6))
        return certify(network, data, mc.LInf(0.01), engine, training=mc.Training(1, 6, 0.1, "cross-entropy"))

    def _numbers(folder: Path, engine: str = _engine) -> Any:
        from mibp_cert.data import diabetes

        data = diabetes(0, sizes=(30, 5, 10))
        training = mc.Training(2, None, 0.05, "squared-error", schedule="cosine")
        threat = mc.TargetNoise(0.1) & mc.LInf(0.01)
        network = mc.Network((mc.Linear(10, 3), mc.Sigmoid(), mc.Linear(3, 1)), 10)
        return certify(network, data, threat, engine, training=training)

    for _name, _run in (
        ("hinge", _hinge),
        ("entropy", _entropy),
        ("budget", _budget),
        ("images", _images),
        ("numbers", _numbers),
    ):
        RUNS[f"{_name}, {_engine}"] = _run


@kept
def smooth_network_with_a_schedule(folder: Path) -> Any:
    network = mc.Network((mc.Linear(2, 4), mc.Tanh(), mc.Linear(4, 3), mc.Sigmoid(), mc.Linear(3, 2)), 2)
    training = mc.Training(4, 10, 0.5, "cross-entropy", schedule="step:2:0.5", batch_mode="subsample", init="fullcert")
    return certify(network, moons(), mc.L2(0.05) & mc.LabelFlips(1), training=training)


@kept
def one_logit_hinge_best_validation_step(folder: Path) -> Any:
    rule = mc.Selection("best-validation", 2, 0.2, per_step=True)
    return certify(mc.Network.mlp([2, 5, 1]), moons(), mc.LInf(0.05), select=rule)


@kept
def exact_step_with_scip(folder: Path) -> Any:
    training = mc.Training(1, 4, 0.3, "hinge")
    return certify(mc.Network.mlp([2, 2, 2]), moons(8), mc.LInf(0.1), "mibp", training=training)


@kept
def exact_steps_unrolled_with_highs(folder: Path) -> Any:
    solver = mc.SolverSettings("highs", nodes_per_program=40, jobs=1, gap=0.05)
    training = mc.Training(1, 3, 0.3, "cross-entropy")
    return certify(
        mc.Network.mlp([2, 1]),
        moons(6),
        mc.LInf(0.1) & mc.LabelFlips(1),
        "mibp",
        training=training,
        unroll=2,
        solver=solver,
    )


@kept
def exact_prediction_after_intervals(folder: Path) -> Any:
    return certify(mc.Network.mlp([2, 3, 2]), moons(), mc.LInf(0.05), "interval", prediction="exact")


@kept
def bounds_that_diverge(folder: Path) -> Any:
    training = mc.Training(12, 10, 0.3, "squared-hinge")
    return certify(mc.Network.mlp([2, 6, 2]), moons(), mc.LInf(0.02), "interval", training=training)


TABLE_THREATS: dict[str, Any] = {
    "l1 and rounded": mc.L1({"age": 4.0, "income": 1.0}) & mc.LabelFlips(1, source=["yes"]),
    "rounded, one-sided": mc.Rounded("age", to=5) & mc.Monotone("income", up=1.0),
    "categories": mc.AnyCategory("mood").where(mc.column("age") >= 50) & mc.LInf({"income": 0.2}),
    "confusable": mc.Confusable("mood", {"good": ["fair"]}) & mc.LInf(0.02, columns=["age"], relative=True),
    "shifted, in two rows": mc.Budget(mc.Shift("mood", by=1, among=["bad", "fair", "good"]), rows=2),
    "cells": mc.Budget(mc.LInf({"age": 5.0, "income": 1.0}), cells=1).where(
        mc.label_is("yes") | (mc.column("age") < 40)
    ),
    "a bad row": mc.LInf({"income": 0.2}) & mc.Budget(mc.LInf({"income": 2.0}), rows=1),
}
for _name, _threat in TABLE_THREATS.items():

    def _table(folder: Path, threat: Any = _threat) -> Any:
        data = parts(survey(), ranges={"age": (18, 99)})
        training = mc.Training(2, None, 0.3, "cross-entropy")
        return [
            certify(mc.Network.mlp([5, 1]), data, threat, engine, training=training)
            for engine in ("interval", "crown", "relational")
        ]

    RUNS[f"table: {_name}"] = _table


@kept
def missing_answers(folder: Path) -> Any:
    data = parts(survey(missing=True), ranges={"age": (18, 99)})
    threat = mc.Missing() & mc.LInf({"income": 0.1})
    return [
        certify(mc.Network.mlp([5, 2, 2]), data, threat, engine, test_threat=mc.LInf({"age": 0.5}))
        for engine in ("crown", "relational")
    ]


@kept
def rules_of_the_users_own(folder: Path) -> Any:
    def rules(m: Any) -> None:
        """All ages are off by the same amount."""
        bias = m.real(0, 3)
        for i in m.rows:
            m.require(m.x(i, "age") == m.clean(i, "age") + bias)

    data = parts(survey())
    threat = mc.Rules(mc.LInf({"age": 3.0}), rules)
    training = mc.Training(1, 5, 0.3, "cross-entropy")
    return [
        certify(mc.Network.mlp([5, 1]), data, threat, engine, training=training, attacked=False)
        for engine in ("interval", "relational", "mibp")
    ]


@kept
def postconditions(folder: Path) -> Any:
    training = mc.Training(3, None, 0.5, "cross-entropy")
    run = mc.certify_training(mc.Network.mlp([2, 1]), moons(), mc.LInf(0.05), training, attack_settings=FEW)
    x = run.data.test.x[:6]
    ranges = run.ranges(x, threat=mc.LInf(0.01)).outputs
    return {
        "margin": run.certify(x, margin=0.2, threat=mc.LInf(0.1)).classes.tolist(),
        "ranges": digest(ranges.low, ranges.high),
        "monotone": [v.name for v in mc.monotone(run, x, 0)],
        "fair": [v.name for v in mc.fair(run, x, 1).verdicts],
        "holds": [
            mc.holds(run, lambda m: (m.out(0) > 0) | (m.parameter("0.bias", 0) < 1), x).name,
            mc.holds(run, lambda m: m.out(1) * m.out(0) > 3, x).name,
            mc.holds(run, lambda m: m.parameter("0.bias", 0) > 100).name,
        ],
        "collective": mc.collective(run).to_json(),
    }


@kept
def studies(folder: Path) -> Any:
    network, training = mc.Network.mlp([2, 1]), mc.Training(3, None, 0.5, "cross-entropy")
    data = moons()
    found = mc.tolerance(
        network,
        data,
        mc.Family("amount", mc.LInf(1.0)),
        training,
        share=0.8,
        start=0.05,
        precision=0.3,
        attack_settings=FEW,
    )
    run = mc.certify_training(network, data, mc.LInf(0.1), training, attack_settings=FEW)
    table = mc.compare(
        network, data, {"noise": mc.LInf(0.05), "flips": mc.LabelFlips(1)}, training, attack_settings=FEW
    )
    return {
        "tolerance": plain(found.to_json()),
        "blame": plain(mc.blame(run, top=3).to_json()),
        "compare": plain(
            table.drop(columns=[c for c in table.columns if "second" in str(c) or str(c).startswith("s ")]).to_dict(
                "split"
            )
        ),
    }


@kept
def classifier(folder: Path) -> Any:
    table = survey(40, missing=True)
    X, y = table.drop(columns="ill"), table["ill"]
    model = mc.CertifiedClassifier(
        hidden=(), loss="cross-entropy", logits=1, threat=mc.Missing() & mc.LInf({"age": 1}), epochs=4, attack=FEW
    ).fit(X, y)
    frame = model.certify(X, y)
    return {
        "predict": model.predict(X).tolist(),
        "certify": json.loads(frame.to_json(orient="split", double_precision=15)),
        "score": model.score(X, y),
        "bounds": digest(*model.bounds_.arrays().values()),
        "history": plain(model.history_),
    }


@kept
def regressor(folder: Path) -> Any:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (24, 2))
    y = 100.0 + 30.0 * X[:, 0] - 5.0 * X[:, 1]
    model = mc.CertifiedRegressor(hidden=(3,), threat=mc.TargetNoise(2.0), epochs=4, attack=FEW).fit(X, y)
    return {
        "interval": digest(model.predict_interval(X)),
        "predict": digest(model.predict(X)),
        "score": model.score(X, y),
    }


def _invoke(*words: str) -> str:
    found = CliRunner().invoke(app, list(words))
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


def _told(text: str) -> Any:
    """What a command wrote as JSON; paths of the folder left out."""
    found = json.loads(text)
    found.get("configuration", {}).get("data", {}).pop("source", None)
    return plain(found)


@kept
def command_line_on_a_file(folder: Path) -> Any:
    survey(60, missing=True).to_csv(folder / "data.csv", index=False)
    _invoke(
        *(
            "certify",
            str(folder / "data.csv"),
            "--target",
            "ill",
            "--missing",
            "all",
            "--eps",
            "age=1,income=5%",
            "--epochs",
            "4",
        ),
        *("--margin", "0.1", "--protected", "mood", "--rising", "age", "--json", str(folder / "out.json"), "-q"),
    )
    return _told((folder / "out.json").read_text())


@kept
def command_line_regression(folder: Path) -> Any:
    survey(60).assign(score=lambda t: 10 * t["age"] + t["income"]).drop(columns="ill").to_csv(
        folder / "n.csv", index=False
    )
    _invoke(
        *("certify", str(folder / "n.csv"), "--target", "score", "--target-eps", "2", "--epochs", "4", "--lr", "0.05"),
        *("--json", str(folder / "out.json"), "-q"),
    )
    return _told((folder / "out.json").read_text())


@kept
def command_line_built_in(folder: Path) -> Any:
    _invoke(
        *(
            "certify",
            "two-moons",
            "--eps",
            "0.02",
            "--epochs",
            "2",
            "--rows",
            "3",
            "--flips",
            "1",
            "--test-eps",
            "0.01",
        ),
        *("--engine", "interval,crown", "--hidden", "4", "--json", str(folder / "out.json"), "-q"),
    )
    return [_told((folder / f"out-{engine}.json").read_text()) for engine in ("interval", "crown")]


@kept
def stored_and_read_again(folder: Path) -> Any:
    training = mc.Training(2, 10, 0.2, "cross-entropy")
    run = mc.certify_training(
        mc.Network.mlp([2, 3, 2]), moons(20), mc.LInf(0.02), training, attack_settings=FEW, run_dir=folder / "run"
    )
    steps = {}
    for path in sorted((folder / "run" / "steps").glob("*.npz")):
        with np.load(path) as arrays:
            steps[path.stem] = {name: digest(arrays[name]) for name in arrays.files}
    again = mc.load_run(folder / "run")
    checks = mc.verify(folder / "run", mc.AuditSettings(points=1, parameters=1, members=3))
    return {
        "run": facts(run),
        "again": facts(again),
        "steps": steps,
        "verify": [(c.name, c.holds, c.words) for c in checks],
    }


@kept
def data_sets_by_name(folder: Path) -> Any:
    from mibp_cert.data import load

    return {
        name: certify(
            mc.Network.mlp([data.train.features, data.train.one_hot.shape[1]]),
            data,
            mc.LInf(0.01),
            training=mc.Training(1, None, 0.1, "cross-entropy"),
            attacked=False,
        )
        for name, data in ((name, load(name, 0)) for name in ("iris", "iris2", "breast-cancer"))
    }


def main() -> None:
    found = {}
    for name, run in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = json.loads(json.dumps(plain(run(Path(folder))), allow_nan=False, default=str))
    lines = [f"  {json.dumps(name)}: {json.dumps(result, sort_keys=True)}" for name, result in found.items()]
    text = f'{{"versions": {json.dumps(versions())},\n "runs": {{\n' + ",\n".join(lines) + "\n }\n}\n"
    if "--write" in sys.argv:
        FROZEN.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    if os.environ.get("OPENBLAS_CORETYPE") == ENVIRONMENT["OPENBLAS_CORETYPE"]:
        main()
    else:  # libraries read these when they are loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
