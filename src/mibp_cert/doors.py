"""The public doors to the one call: from separate arguments to a request, and to a certified run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mibp_cert.certify.attack import AttackSettings
from mibp_cert.certify.loop import Callbacks, certify
from mibp_cert.certify.request import Request, Selection
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.data import Dataset, Split
from mibp_cert.engines import EngineSettings, RelationalSettings, SolverSettings
from mibp_cert.engines.rounding import Array
from mibp_cert.nets import Network, Training
from mibp_cert.store import run_in
from mibp_cert.threats import Threat


@dataclass(frozen=True, eq=False)
class Start:
    """A network and the parameters that its training starts from, such as those of a user's PyTorch module."""

    network: Network
    theta: Array


def certify_training(
    network: Network,
    data: Split | Dataset,
    threat: Threat | None = None,
    training: Training | None = None,
    engine: str = "relational",
    *,
    solver: SolverSettings | None = None,
    relational: RelationalSettings | None = None,
    attack_settings: AttackSettings | None = None,
    unroll: int = 1,
    prediction: str | None = None,
    select: str | Selection = "last",
    test_threat: Threat | None = None,
    attacked: bool = True,
    theta0: Array | None = None,
    callbacks: Callbacks | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
) -> CertifiedRun:
    """Train on every dataset that the threat allows, at once, and say what can be certified.

    Returns bounds that contain the parameters of every model that `training` could have produced from `θ₀`, together with the
    model trained on the clean data and, if `data` has a test part, certified predictions for it and an attack beside them.
    `test_threat` says what may be wrong with the test inputs themselves; a class is then certified for all of them at once.
    `select="best-validation"` picks the number of epochs with the highest certified accuracy on the (trusted) validation part;
    the certificate is then about training for exactly that many steps. `run_dir`: a folder that holds the set after every step;
    with `resume`, an interrupted run in it goes on and ends with the same bits.

    >>> from mibp_cert import LInf, two_moons
    >>> run = certify_training(Network.mlp([2, 4, 2]), two_moons(0), LInf(0.01), Training(epochs=1))
    >>> run.bounds.contains(run.theta)
    True
    """
    request = Request.of(
        network,
        data,
        threat,
        training,
        engine,
        settings=EngineSettings(solver or SolverSettings(), relational or RelationalSettings(), unroll),
        prediction=prediction,
        select=select,
        test_threat=test_threat,
        attack=(attack_settings or AttackSettings()) if attacked else None,
        theta0=theta0,
    )
    return certify(request, callbacks) if run_dir is None else run_in(run_dir, request, callbacks, resume=resume)
