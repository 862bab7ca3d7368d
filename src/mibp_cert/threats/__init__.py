"""What may be wrong with the training data."""

from mibp_cert.threats.base import Hull, Noise, Threat, ThreatSet
from mibp_cert.threats.blocks import Block, Budgeted, Plain, Segments, largest_sum, unit_box
from mibp_cert.threats.catalogue import KINDS, in_words, nearest, threat_from_json
from mibp_cert.threats.categories import AnyCategory, Confusable, Missing, Shift
from mibp_cert.threats.combine import All, Budget, Catalogued, Nothing, Settled
from mibp_cert.threats.conditions import Condition, column, label_is
from mibp_cert.threats.labels import LabelFlips, TargetNoise
from mibp_cert.threats.language import Model, Rules, RulesSet
from mibp_cert.threats.numeric import L1, L2, LInf, Monotone, Rounded
from mibp_cert.threats.parts import Part, ProductSet

__all__ = [
    "KINDS",
    "L1",
    "L2",
    "All",
    "AnyCategory",
    "Block",
    "Budget",
    "Budgeted",
    "Catalogued",
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
    "Settled",
    "Shift",
    "TargetNoise",
    "Threat",
    "ThreatSet",
    "column",
    "in_words",
    "label_is",
    "largest_sum",
    "nearest",
    "threat_from_json",
    "unit_box",
]
