"""MIBP-Cert: proven bounds on what wrong training data can do to a neural network.

>>> import mibp_cert as mc
>>> run = mc.certify_training(
...     mc.Network.mlp([2, 4, 2]), mc.two_moons(0), mc.LInf(0.01), mc.Training(epochs=2), engine="interval"
... )
>>> run.bounds.contains(run.theta)
True
"""

from mibp_cert.certify import (
    AttackSettings,
    Callbacks,
    CertifiedRun,
    Predictions,
    Ranges,
    Selection,
    Training,
    certify_training,
)
from mibp_cert.certify.collective import Flips, collective
from mibp_cert.certify.properties import Verdict, fair, holds, monotone
from mibp_cert.data import Column, Dataset, Recipe, Split, two_moons
from mibp_cert.engines.base import Box
from mibp_cert.engines.exact import SolverSettings
from mibp_cert.engines.relational import RelationalSet, RelationalSettings
from mibp_cert.errors import MibpCertError, SolverUnavailable, SoundnessError, UserError
from mibp_cert.nets import AvgPool2d, Conv2d, Flatten, LeakyReLU, Linear, Network, ReLU, Sigmoid, Tanh
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
    TargetNoise,
    Threat,
    column,
    label_is,
)

__all__ = [
    "L1",
    "L2",
    "AnyCategory",
    "AttackSettings",
    "AvgPool2d",
    "Box",
    "Budget",
    "Callbacks",
    "CertifiedRun",
    "Column",
    "Confusable",
    "Conv2d",
    "Dataset",
    "Flatten",
    "Flips",
    "LInf",
    "LabelFlips",
    "LeakyReLU",
    "Linear",
    "MibpCertError",
    "Missing",
    "Monotone",
    "Network",
    "Nothing",
    "Predictions",
    "Ranges",
    "ReLU",
    "Recipe",
    "RelationalSet",
    "RelationalSettings",
    "Rounded",
    "Rules",
    "Selection",
    "Shift",
    "Sigmoid",
    "SolverSettings",
    "SolverUnavailable",
    "SoundnessError",
    "Split",
    "Tanh",
    "TargetNoise",
    "Threat",
    "Training",
    "UserError",
    "Verdict",
    "certify_training",
    "collective",
    "column",
    "fair",
    "holds",
    "label_is",
    "monotone",
    "two_moons",
]
