"""Tables and small estimators that several tests fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import mibp_cert as mc
from mibp_cert import CertifiedClassifier
from mibp_cert.nets import run_steps


def table(rows: int = 60, seed: int = 0, missing: bool = True) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(seed)
    age, mood = rng.integers(20, 80, rows), rng.choice(["good", "fair", "bad"], rows)
    score = (age - 50) / 15 + (mood == "bad") * 1.5 - (mood == "good") + rng.normal(0, 0.3, rows)
    frame = pd.DataFrame({"age": age.astype(float), "mood": mood}, index=[f"p{i}" for i in range(rows)])
    if missing:
        frame.loc[["p3", "p8"], "mood"] = None
        frame.loc["p5", "age"] = np.nan
    return frame, pd.Series(np.where(score > 0, "ill", "well"), index=frame.index, name="state")


DOUBT = mc.Missing() & mc.LInf({"age": 1.0})


def linear(**options: Any) -> CertifiedClassifier:
    settings = {"hidden": (), "loss": "cross-entropy", "logits": 1, "epochs": 8, "learning_rate": 0.5}
    settings |= {"select": "last"} | options
    return CertifiedClassifier(**settings)


def retrained(model: Any, X: pd.DataFrame, targets: Any = None) -> Any:
    """The model really trained on another table, encoded by the fitted recipe."""
    steps, begin = model.run_.request.plan.steps[: model.run_.steps], model.run_.request.plan.begin
    x, _ = model.recipe_.apply(X.rename(columns=str))
    return run_steps(steps, begin, x, model.run_.train.one_hot if targets is None else targets)


def numbers(rows: int = 60) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=rows), "b": rng.normal(size=rows)})
    return frame, np.where(frame["a"] + 0.3 * frame["b"] > 0, "yes", "no")
