"""Engines: each bounds a training step, and what a set of models computes, in its own arithmetic."""

from mibp_cert.engines.base import (
    Box,
    Engine,
    EngineSettings,
    Inputs,
    Maker,
    ParameterSet,
    Progress,
    RelationalSettings,
    SolverSettings,
    StepReport,
    Wanted,
)
from mibp_cert.engines.crown import CrownEngine
from mibp_cert.engines.exact import MibpEngine
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.meet import MeetEngine
from mibp_cert.engines.relational import RelationalEngine
from mibp_cert.errors import UserError

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for engine in (IntervalEngine, CrownEngine, MibpEngine, RelationalEngine, MeetEngine)
}
"""Every engine there is."""
DEFAULT = RelationalEngine.name
COMPARED = tuple(engine.name for engine in (IntervalEngine, CrownEngine, RelationalEngine))
"""Engines that `compare` puts side by side where nobody names others: no solver, and none made of others."""
PREDICTIONS: dict[str, type[Engine]] = {engine.prediction: engine for engine in ENGINES.values()}
"""By what `prediction=` calls them: the engines as bounds of predictions."""


def engine_named(name: str) -> type[Engine]:
    """The engine called `name`."""
    if name not in ENGINES:
        raise UserError(f"There is no engine called {name!r}; choose one of {', '.join(ENGINES)}.")
    return ENGINES[name]


def prediction_named(name: str) -> type[Engine]:
    """The engine whose bounds of predictions are called `name`."""
    if name not in PREDICTIONS:
        raise UserError(f"There is no prediction called {name!r}; choose one of {', '.join(PREDICTIONS)}.")
    return PREDICTIONS[name]
