"""What may be wrong with the training data."""

from mibp_cert.threats.base import Hull, Noise, Threat, ThreatSet
from mibp_cert.threats.blocks import Block, Budgeted, Plain, Segments, largest_sum, unit_box
from mibp_cert.threats.catalog import (
    L1,
    L2,
    AnyCategory,
    Confusable,
    LabelFlips,
    LInf,
    Missing,
    Monotone,
    Nothing,
    Rounded,
    Shift,
    TargetNoise,
)
from mibp_cert.threats.compose import Budget, Condition, column, label_is
from mibp_cert.threats.language import Model, Rules, RulesSet
from mibp_cert.threats.parts import Part, ProductSet

__all__ = [
    "L1",
    "L2",
    "AnyCategory",
    "Block",
    "Budget",
    "Budgeted",
    "Condition",
    "Confusable",
    "Hull",
    "LInf",
    "LabelFlips",
    "Missing",
    "Model",
    "Monotone",
    "Noise",
    "Nothing",
    "Part",
    "Plain",
    "ProductSet",
    "Rounded",
    "Rules",
    "RulesSet",
    "Segments",
    "Shift",
    "TargetNoise",
    "Threat",
    "ThreatSet",
    "column",
    "label_is",
    "largest_sum",
    "unit_box",
]
