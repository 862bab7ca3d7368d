"""Doors whose every bit is kept: questions, studies, estimators, the command line, and run directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import mibp_cert as mc
from corpus_kept import (
    FEW,
    certify,
    digest,
    facts,
    kept,
    moons,
    plain,
    survey,
)
from mibp_cert.cli import app


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
        loss="cross-entropy",
        logits=1,
        threat=mc.Missing() & mc.LInf({"age": 1}),
        epochs=4,
        learning_rate=0.1,
        batch_size=100,
        select="last",
        attack=FEW,
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
    how: dict[str, Any] = {"epochs": 4, "learning_rate": 0.05, "batch_size": 100}
    model = mc.CertifiedRegressor(hidden=(3,), threat=mc.TargetNoise(2.0), attack=FEW, **how).fit(X, y)
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
    """What a command wrote as JSON; paths of the folder, and what files have got since, left out."""
    found = json.loads(text)
    found.pop("columns", None)  # `test_columns.py`
    for key in ("source", "keep", "decimal", "thousands"):
        found.get("configuration", {}).get("data", {}).pop(key, None)
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
