"""Models at their minimum: the set of all minimisers, and what is certain about every one of them."""

from mibp_cert.engines import Engine
from mibp_cert.fitted.attack import adjoint, margin_queries
from mibp_cert.fitted.engine import DualEngine, FittedSet
from mibp_cert.fitted.exact import FitMibpEngine
from mibp_cert.fitted.explain import Explanation
from mibp_cert.fitted.features import FROZEN, Features, FrozenLayers, RandomFeatures
from mibp_cert.fitted.features import KINDS as FEATURE_KINDS
from mibp_cert.fitted.losses import SCORE_LOSSES
from mibp_cert.fitted.lp import LpEngine
from mibp_cert.fitted.model import BALANCED, MODELS, REGRESSIONS, FitStep, Fitted

FITTED: dict[str, type[Engine]] = {engine.name: engine for engine in (DualEngine, LpEngine, FitMibpEngine)}
"""Every engine for fitted models."""
