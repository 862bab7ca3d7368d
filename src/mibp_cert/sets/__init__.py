"""Sets of datasets: what a threat becomes once it is bound to data."""

from mibp_cert.sets.base import Hull, Limited, Noise, Part, ThreatSet
from mibp_cert.sets.blocks import Block, Budgeted, Plain, Segments, largest_sum, unit_box
from mibp_cert.sets.lean import beyond, lean
from mibp_cert.sets.presence import PRESENCE, Addition, presence
from mibp_cert.sets.product import ProductSet
from mibp_cert.sets.rules import RulesSet
