"""MIBP-Cert: proven bounds on what wrong training data can do to a neural network.

>>> import mibp_cert as mc
>>> run = mc.certify_training(
...     mc.Network.mlp([2, 4, 2]), mc.two_moons(0), mc.LInf(0.01), mc.Training(epochs=2), engine="interval"
... )
>>> run.bounds.contains(run.theta)
True
"""

from mibp_cert.certify import AttackSettings, Callbacks, CertifiedRun, Predictions, Training, certify_training
from mibp_cert.data import Column, Dataset, Recipe, Split, two_moons
from mibp_cert.engines.base import Box
from mibp_cert.engines.exact import SolverSettings
from mibp_cert.engines.relational import RelationalSet, RelationalSettings
from mibp_cert.errors import MibpCertError, SolverUnavailable, SoundnessError, UserError
from mibp_cert.nets import Linear, Network, ReLU
from mibp_cert.threats import (
    L1,
    L2,
    AnyCategory,
    Budget,
    Confusable,
    LabelFlips,
    LInf,
    Missing,
    Monotone,
    Nothing,
    Rounded,
    Rules,
    Shift,
    Threat,
    column,
    label_is,
)

__all__ = [
    "L1",
    "L2",
    "AnyCategory",
    "AttackSettings",
    "Box",
    "Budget",
    "Callbacks",
    "CertifiedRun",
    "Column",
    "Confusable",
    "Dataset",
    "LInf",
    "LabelFlips",
    "Linear",
    "MibpCertError",
    "Missing",
    "Monotone",
    "Network",
    "Nothing",
    "Predictions",
    "ReLU",
    "Recipe",
    "RelationalSet",
    "RelationalSettings",
    "Rounded",
    "Rules",
    "Shift",
    "SolverSettings",
    "SolverUnavailable",
    "SoundnessError",
    "Split",
    "Threat",
    "Training",
    "UserError",
    "certify_training",
    "column",
    "label_is",
    "two_moons",
]
