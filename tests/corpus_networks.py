"""Trained networks whose every bit is kept: every engine, loss and threat, on numbers, images and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mibp_cert as mc
from corpus_kept import (
    RUNS,
    certify,
    kept,
    moons,
    parts,
    survey,
)

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
