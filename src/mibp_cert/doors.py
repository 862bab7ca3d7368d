"""The public doors to the one call: from separate arguments to a request, and to a certified run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mibp_cert.certify.attack import AttackSettings, attack
from mibp_cert.certify.loop import Callbacks, certify, clean_models
from mibp_cert.certify.predict import Attack, nominal_classes
from mibp_cert.certify.request import Request, Selection, check_threat, with_missing
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.data import Dataset, Split, Task
from mibp_cert.engines import DEFAULT, EngineSettings, RelationalSettings, SolverSettings, engine_named
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import UserError
from mibp_cert.fitted import FITTED, Fitted
from mibp_cert.nets import Network, Training
from mibp_cert.store import run_in
from mibp_cert.threats import Nothing, Threat


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
    steps: int | None = None,
    callbacks: Callbacks | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
) -> CertifiedRun:
    """Train on every dataset that the threat allows, at once, and say what can be certified.

    Returns bounds that contain the parameters of every model that `training` could have produced from `θ₀`, together with the
    model trained on the clean data and, if `data` has a test part, certified predictions for it and an attack beside them.
    `test_threat` says what may be wrong with the test inputs themselves; a class is then certified for all of them at once.
    `select="best-validation"` picks the number of epochs by the (trusted) validation part (`certify.choice`);
    the certificate is then about training for exactly that many steps. `steps`: the training ends after exactly so many.
    `run_dir`: a folder that holds the set after every step; with `resume`, an interrupted run in it goes on and ends with the
    same bits.

    >>> from mibp_cert import LInf, two_moons
    >>> run = certify_training(Network.mlp([2, 4, 2]), two_moons(0), LInf(0.01), Training(epochs=1))
    >>> run.bounds.contains(run.theta)
    True
    """
    request = training_request(
        network,
        data,
        threat,
        training,
        engine,
        solver=solver,
        relational=relational,
        attack_settings=attack_settings,
        unroll=unroll,
        prediction=prediction,
        select=select,
        test_threat=test_threat,
        attacked=attacked,
        theta0=theta0,
        steps=steps,
    )
    return certify(request, callbacks) if run_dir is None else run_in(run_dir, request, callbacks, resume=resume)


def training_request(
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
    steps: int | None = None,
) -> Request:
    """What `certify_training` is asked for, with nothing left open."""
    training = training or Training()
    return _request(
        network,
        data,
        threat,
        training,
        engine,
        EngineSettings(solver or SolverSettings(), relational or RelationalSettings(), unroll),
        prediction or engine_named(engine).prediction,
        Selection(select) if isinstance(select, str) else select,
        network.initialise(training.seed, training.init) if theta0 is None else np.asarray(theta0, dtype=np.float64),
        test_threat,
        (attack_settings or AttackSettings()) if attacked else None,
        steps,
    )


def certify_fit(
    data: Split | Dataset,
    threat: Threat | None = None,
    model: Fitted | None = None,
    engine: str = "dual",
    *,
    solver: SolverSettings | None = None,
    sample_weight: ArrayLike | None = None,
    test_threat: Threat | None = None,
    attack_settings: AttackSettings | None = None,
    attacked: bool = True,
    thorough: bool = True,
    callbacks: Callbacks | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
) -> CertifiedRun:
    """Fit on every dataset that the threat allows, at once: bounds that contain the minimiser for each of them.

    No seed, batch or number of steps is part of the certificate; scaling, features, `C` and weights are fixed. What the closed
    form (`engine="dual"`) leaves open, linear programs and cases may decide (`"lp"`), or on small tables a solver (`"mibp"`,
    with `solver` saying which). `sample_weight`: how much each training row counts, a number ≥ 0. `thorough=False` gives up soon
    where there is much doubt: `Diverged` is raised where plain bounds prove no start. `run_dir`, `resume`: as for
    `certify_training`.

    >>> from mibp_cert import LInf, two_moons
    >>> run = certify_fit(two_moons(0), LInf(0.01), Fitted(C=1.0))
    >>> run.bounds.contains(run.theta)
    True
    """
    request = fit_request(
        data,
        threat,
        model,
        engine,
        solver=solver,
        sample_weight=sample_weight,
        test_threat=test_threat,
        attack_settings=attack_settings,
        attacked=attacked,
        thorough=thorough,
    )
    return certify(request, callbacks) if run_dir is None else run_in(run_dir, request, callbacks, resume=resume)


def fit_request(
    data: Split | Dataset,
    threat: Threat | None = None,
    model: Fitted | None = None,
    engine: str = "dual",
    *,
    solver: SolverSettings | None = None,
    sample_weight: ArrayLike | None = None,
    test_threat: Threat | None = None,
    attack_settings: AttackSettings | None = None,
    attacked: bool = True,
    thorough: bool = True,
) -> Request:
    """What `certify_fit` is asked for, with nothing left open."""
    split = Split.of(data)
    if sample_weight is not None:
        split = replace(split, train=split.train.weighted(sample_weight))
    settings = EngineSettings(solver or SolverSettings(), thorough=thorough)
    wanted = (attack_settings or AttackSettings()) if attacked else None
    return _of_fit(split, threat, model or Fitted(), engine, settings, test_threat, wanted)


def attack_fit(
    data: Split,
    threat: Threat | None,
    model: Fitted,
    *,
    test_threat: Threat | None = None,
    attack_settings: AttackSettings | None = None,
) -> tuple[Network, Array, Attack]:
    """The attack alone, where bounds are of no use: the clean model, and what real fits reach, in the units of the targets."""
    wanted = attack_settings or AttackSettings()
    r = _of_fit(data, threat, model, next(iter(FITTED)), EngineSettings(), test_threat, wanted)
    inputs, (theta,) = r.test_inputs(), clean_models(r.network, r.data, r.threat, model)
    nominal = None if r.train.task is Task.NUMBERS else nominal_classes(r.network, theta, inputs.x)
    found = attack(r.network, r.plan.steps, r.plan.begin, r.members, inputs, nominal, settings=wanted)
    return r.network, theta, found.in_units(r.train)


def certify_model(
    network: Network | None,
    data: Split | Dataset,
    threat: Threat | None,
    training: Training | Fitted | None,
    engine: str | None = None,
    **options: Any,
) -> CertifiedRun:
    """Whichever of the two it is: a fitted model has no need of a network, and each kind has an engine of its own."""
    if isinstance(training, Fitted):
        return certify_fit(data, threat, training, engine or next(iter(FITTED)), **options)
    if network is None:
        raise UserError(
            "A training in steps needs a network, such as Network.mlp([2, 2]); only fitted models have none."
        )
    return certify_training(network, data, threat, training, engine or DEFAULT, **options)


def _of_fit(
    split: Split,
    threat: Threat | None,
    model: Fitted,
    engine: str,
    settings: EngineSettings,
    test_threat: Threat | None,
    wanted: AttackSettings | None,
) -> Request:
    """The request for a fitted model."""
    parts = engine, settings, engine, Selection(), model.start(split.train), test_threat, wanted
    return _request(model.network(split.train), split, threat, model, *parts)


def _request(network: Network, data: Split | Dataset, threat: Threat | None, *rest: Any) -> Request:
    """The request for these parts, checked before any work is done."""
    training, engine, settings, prediction, select, start, test_threat, *others = rest
    for given in (threat, test_threat):
        check_threat(given)
    split = Split.of(data)
    if split.test is not None and split.test.missing is not None:
        test_threat = with_missing(test_threat)  # a value that is missing may be any valid one
    doubt = Nothing() if threat is None else threat
    request = Request(
        network, split, doubt, training, engine, settings, prediction, select, start, test_threat, *others
    )
    request.check()
    return request
