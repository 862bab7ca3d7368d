"""The loop: one engine, one step after another, from `θ₀` to a certified run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mibp_cert.certify.predict import PREDICTIONS, Predictions, nominal_classes, predict
from mibp_cert.certify.run import CertifiedRun, EpochRecord, Training
from mibp_cert.data import Dataset, Split, batch_plan, steps_per_epoch
from mibp_cert.engines import concrete
from mibp_cert.engines.base import Box, Engine, StepReport
from mibp_cert.engines.exact import SolverSettings
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.mibp import MibpEngine
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import Interrupted, UserError
from mibp_cert.nets import SGD, Network, Step, loss_named, trace_steps
from mibp_cert.solvers import WorkerPool, solver_named
from mibp_cert.threats import LInf, Threat

ENGINES = ("interval", "mibp")


@dataclass(frozen=True)
class Callbacks:
    """What a caller may want to hear: programs within a step, finished steps, finished epochs."""

    on_program: Callable[[int, int], None] = lambda done, total: None
    on_step: Callable[[int, int], None] = lambda done, total: None
    on_epoch: Callable[[EpochRecord], None] = lambda record: None
    on_predict: Callable[[], None] = lambda: None


@dataclass
class Totals:
    """Sums over the whole run."""

    programs: int = 0
    nodes: int = 0
    fallbacks: int = 0
    reports: list[StepReport] = field(default_factory=list)

    def add(self, report: StepReport) -> None:
        self.programs += report.programs
        self.nodes += report.nodes
        self.fallbacks += report.fallbacks


def make_engine(name: str, settings: SolverSettings, unroll: int, on_program: Callable[[int, int], None]) -> Engine:
    """The engine called `name`."""
    if name not in ENGINES:
        raise UserError(f"There is no engine called {name!r}; choose one of {', '.join(ENGINES)}.")
    if name == "mibp":
        return MibpEngine(settings, unroll=unroll, progress=on_program)
    if unroll != 1:
        raise UserError(f"Only the engine 'mibp' can unroll several steps; leave unroll at 1 for '{name}'.")
    return IntervalEngine()


def certify_training(
    network: Network,
    data: Split | Dataset,
    threat: Threat | None = None,
    training: Training | None = None,
    engine: str = "mibp",
    *,
    solver: SolverSettings | None = None,
    unroll: int = 1,
    prediction: str | None = None,
    theta0: Array | None = None,
    callbacks: Callbacks | None = None,
) -> CertifiedRun:
    """Train on every dataset that the threat allows, at once, and say what can be certified.

    Returns bounds that contain the parameters of every model that `training` could have produced from `θ₀`, together with the
    model trained on the clean data and, if `data` has a test part, certified predictions for it.

    >>> from mibp_cert.data import two_moons
    >>> run = certify_training(Network.mlp([2, 4, 2]), two_moons(0), LInf(0.01), Training(epochs=1), "interval")
    >>> bool((run.bounds.lower <= run.theta).all() and (run.theta <= run.bounds.upper).all())
    True
    """
    training, settings, hear = training or Training(), solver or SolverSettings(), callbacks or Callbacks()
    train = data.train if isinstance(data, Split) else data
    if train.features != network.features:
        raise UserError(
            f"The data have {train.features} columns but the network takes {network.features}; change its first size."
        )
    threat = threat or LInf(0.0)
    members = threat.bind(train)
    made = make_engine(engine, settings, unroll, hear.on_program)
    method = prediction or made.default_prediction
    if method not in PREDICTIONS:
        raise UserError(f"There is no prediction called {method!r}; choose one of {', '.join(PREDICTIONS)}.")
    if method == "exact":
        solver_named(settings.solver)
    steps = plan_steps(network, training, train, made.unroll)
    theta = network.initialise(training.seed, training.init) if theta0 is None else np.asarray(theta0, dtype=np.float64)
    if theta.shape != (network.layout.size,) or not np.isfinite(theta).all():
        raise UserError(f"The initial parameters must be {network.layout.size} finite numbers.")

    box, totals, history = Box.point(theta), Totals(), []
    per_epoch = steps_per_epoch(len(train), training.batch_size)
    since, count, start = Totals(), 0, time.perf_counter()
    try:
        for step, size in steps:
            box, report = made.advance(box, step, members)
            theta = concrete.train_step(step, theta, train.x[step.rows], train.one_hot[step.rows])
            count += size
            box.check(network.layout, count)
            since.add(report)
            since.reports.append(report)
            totals.add(report)
            hear.on_step(count, training.epochs * per_epoch)
            if count % per_epoch == 0:
                seconds = time.perf_counter() - start
                record = _epoch(network, data, box, theta, count // per_epoch, seconds, since)
                history.append(record)
                hear.on_epoch(record)
                since, start = Totals(), time.perf_counter()
        test: Predictions | None = None
        nominal = None
        if isinstance(data, Split):
            hear.on_predict()
            pool = made.pool if isinstance(made, MibpEngine) else WorkerPool(settings.jobs)
            with pool:
                test = predict(network, box, data.test.x, method, settings, pool)
            totals.add(test.report)
            nominal = float(np.mean(nominal_classes(network, theta, data.test.x) == data.test.y))
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted after {count} training step(s); no result was written.") from None
    finally:
        made.close()
    return CertifiedRun(
        network=network,
        data=data,
        threat=threat,
        training=training,
        engine=made.name,
        soundness=made.soundness if method == "interval" else "solver-tolerance",
        prediction=method,
        solver=settings,
        unroll=made.unroll,
        bounds=box,
        theta=theta,
        history=tuple(history),
        programs=totals.programs,
        nodes=totals.nodes,
        fallbacks=totals.fallbacks,
        test=test,
        nominal_accuracy=nominal,
    )


def plan_steps(network: Network, training: Training, train: Dataset, unroll: int) -> list[tuple[Step, int]]:
    """The graphs of the whole training, `unroll` steps in each, with the number of steps they hold; repeated ones are shared."""
    loss, optimiser = loss_named(training.loss, network.logits), SGD(training.learning_rate)
    loss.check(network.logits, len(train.classes))
    plan = batch_plan(len(train), training.batch_size, training.epochs, training.seed, training.batch_mode)
    groups = [plan[i : i + unroll] for i in range(0, len(plan), unroll)]
    traced: dict[bytes, Step] = {}
    steps = []
    for group in groups:
        key = b"|".join(batch.tobytes() for batch in group)
        if key not in traced:
            traced[key] = trace_steps(network, loss, optimiser, len(train.classes), group)
        steps.append((traced[key], len(group)))
    return steps


def _epoch(
    network: Network, data: Split | Dataset, box: Box, theta: Array, epoch: int, seconds: float, since: Totals
) -> EpochRecord:
    nominal = certified = None
    if isinstance(data, Split):
        validation = data.validation
        nominal = float(np.mean(nominal_classes(network, theta, validation.x) == validation.y))
        certified = predict(network, box, validation.x, "interval").certified_accuracy(validation.y)
    gaps = [report.gap.max() for report in since.reports if report.gap.size]
    return EpochRecord(
        epoch=epoch,
        seconds=seconds,
        radius_mean=float(box.radius.mean()),
        radius_max=float(box.radius.max()),
        validation_nominal=nominal,
        validation_certified=certified,
        programs=since.programs,
        nodes=since.nodes,
        fallbacks=since.fallbacks,
        unstable_gates=sum(report.unstable_gates for report in since.reports),
        unstable_relus=sum(report.unstable_relus for report in since.reports),
        gap_max=float(max(gaps)) if gaps else None,
    )
