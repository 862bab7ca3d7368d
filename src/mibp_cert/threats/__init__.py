"""What may be wrong with the training data."""

from mibp_cert.sets import RulesSet
from mibp_cert.threats.base import Threat
from mibp_cert.threats.catalogue import KINDS, in_words, nearest, threat_from_json
from mibp_cert.threats.categories import AnyCategory, Confusable, Missing, Shift
from mibp_cert.threats.combine import All, Budget, Catalogued, Nothing, Settled
from mibp_cert.threats.conditions import Condition, column, label_is
from mibp_cert.threats.exchanged import Exchanged
from mibp_cert.threats.labels import LabelFlips, TargetNoise
from mibp_cert.threats.numeric import L1, L2, LInf, Monotone, Rounded
from mibp_cert.threats.rules import Model, Rules
