"""The loop: one engine, one step after another, from `θ₀` to a certified run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mibp_cert.certify.attack import AttackSettings, attack, check_certificates
from mibp_cert.certify.bounds import Inputs, check_method, states_of
from mibp_cert.certify.memory import check_memory
from mibp_cert.certify.predict import (
    Predictions,
    Ranges,
    abstain,
    nominal_classes,
    predict,
    predict_ranges,
    unknown_ranges,
)
from mibp_cert.certify.request import Request, read_results, result_arrays
from mibp_cert.certify.run import CertifiedRun, EpochRecord, Selection, Training, check_threat
from mibp_cert.data import Dataset, Split
from mibp_cert.engines.base import Box, Engine, StepReport
from mibp_cert.engines.crown import CrownEngine
from mibp_cert.engines.exact.engine import MibpEngine
from mibp_cert.engines.exact.solve import SolverSettings
from mibp_cert.engines.interval import IntervalEngine
from mibp_cert.engines.relational.engine import RelationalEngine, RelationalSettings
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import Diverged, UnsupportedOperation, UserError
from mibp_cert.graph import Graph
from mibp_cert.nets import (
    Network,
    Step,
    batch_plan,
    effective_batch_size,
    loss_named,
    steps_per_epoch,
    trace_steps,
    train_step,
)
from mibp_cert.parallel import WorkerPool
from mibp_cert.sets import ThreatSet
from mibp_cert.solvers import Capability, solver_named
from mibp_cert.store.archive import Archive, StepRecord, opened
from mibp_cert.threats import Catalogued, Missing, Nothing, Threat

ENGINES = ("interval", "crown", "mibp", "relational")
DIVERGED = 1e6
"""A radius beyond this multiple of the clean model's largest parameter (at least 1) says nothing any more: the run stops."""


@dataclass(frozen=True)
class Callbacks:
    """What a caller may want to hear: programs within a step, finished steps, finished epochs, and what comes after."""

    on_program: Callable[[int, int], None] = lambda done, total: None
    on_step: Callable[[int, int], None] = lambda done, total: None
    on_epoch: Callable[[EpochRecord], None] = lambda record: None
    on_stage: Callable[[str], None] = lambda name: None


@dataclass
class Totals:
    """Sums over several steps."""

    programs: int = 0
    nodes: int = 0
    fallbacks: int = 0
    reports: list[StepReport] = field(default_factory=list)

    def add(self, report: StepReport) -> None:
        self.programs += report.programs
        self.nodes += report.nodes
        self.fallbacks += report.fallbacks
        self.reports.append(report)


@dataclass(frozen=True, eq=False)
class State:
    """Where training stands: bounds, the clean model, and how many steps led there."""

    bounds: Box | None
    """None: it is in the archive."""
    theta: Array
    steps: int
    nominal: float | None = None
    certified: float | None = None
    """Accuracies on the validation data, clean and certified."""

    @property
    def box(self) -> Box:
        assert self.bounds is not None
        return self.bounds


def make_engine(
    name: str,
    settings: SolverSettings,
    relational: RelationalSettings,
    unroll: int,
    on_program: Callable[[int, int], None],
) -> Engine:
    """The engine called `name`."""
    if name not in ENGINES:
        raise UserError(f"There is no engine called {name!r}; choose one of {', '.join(ENGINES)}.")
    if name == "mibp":
        return MibpEngine(settings, unroll=unroll, progress=on_program)
    if unroll != 1:
        raise UserError(f"Only the engine 'mibp' can unroll several steps; leave unroll at 1 for '{name}'.")
    match name:
        case "interval":
            return IntervalEngine()
        case "crown":
            return CrownEngine()
    return RelationalEngine(relational)


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
    training, settings, hear = training or Training(), solver or SolverSettings(), callbacks or Callbacks()
    threat, train = Nothing() if threat is None else threat, data.train if isinstance(data, Split) else data
    check_threat(threat)
    test_threat = _input_threat(data, test_threat)
    chosen_settings = relational or RelationalSettings()
    made = make_engine(engine, settings, chosen_settings, unroll, hear.on_program)
    method = prediction or made.default_prediction
    rule = Selection(select) if isinstance(select, str) else select
    _check_request(network, data, training, method, made, settings, rule)
    start = network.initialise(training.seed, training.init) if theta0 is None else np.asarray(theta0, dtype=np.float64)
    if start.shape != (network.layout.size,) or not np.isfinite(start).all():
        raise UserError(f"The initial parameters must be {network.layout.size} finite numbers.")
    check_memory(network, train, threat, training.batch_size, engine)
    request = Request(
        network,
        data,
        threat,
        training,
        engine,
        settings,
        chosen_settings,
        made.unroll,
        rule,
        start,
        method,
        test_threat,
        (attack_settings or AttackSettings()) if attacked else None,
    )
    if run_dir is None:
        return _run(request, made, hear, None)
    archive = Archive(run_dir, request.description(), request.arrays(), resume=resume)
    try:
        return _run(request, made, hear, archive)
    finally:
        archive.close()


def load_run(path: str | Path, threat: Threat | None = None) -> CertifiedRun:
    """A finished run, read from its directory; `threat` where the file cannot hold it (rules)."""
    if not (Path(path) / "result.json").exists():
        opened(Path(path) / "run.json")  # no run at all is another mistake
        raise UserError(f"The run in {path} is not finished; go on with it first: mibp-cert resume {path}")
    return resume_run(path, threat)


def resume_run(path: str | Path, threat: Threat | None = None, callbacks: Callbacks | None = None) -> CertifiedRun:
    """Go on with the run in this directory where it stopped; a finished one is only read."""
    r = Request.read(path, threat)
    return certify_training(
        r.network,
        r.data,
        r.threat,
        r.training,
        r.engine,
        **settings_of(r),
        attack_settings=r.attack,
        attacked=r.attack is not None,
        callbacks=callbacks,
        run_dir=path,
        resume=True,
    )


def settings_of(r: Request | CertifiedRun) -> dict[str, Any]:
    """Keyword arguments of `certify_training` that repeat a request or a run on the same or other data and threats."""
    return {
        "solver": r.solver,
        "relational": r.relational,
        "unroll": r.unroll,
        "prediction": r.prediction,
        "select": r.select,
        "test_threat": r.test_threat,
        "theta0": r.start,
    }


def _run(r: Request, made: Engine, hear: Callbacks, archive: Archive | None) -> CertifiedRun:
    """Train, choose the state that the certificate is about, and answer for the test points."""
    members = r.threat.bind(r.train)
    if members.bilinear and r.engine == "mibp" and not solver_named(r.solver.solver).supports(Capability.BILINEAR):
        raise UserError(
            f"The threat multiplies unknowns, which the solver '{r.solver.solver}' cannot do; choose scip or gurobi, or another "
            "engine."
        )
    plan = plan_steps(r.network, r.training, r.train, made.unroll)
    missing = explain_support(plan[0][0].graph, made)
    if missing:
        raise UnsupportedOperation(" ".join(missing))
    begin = np.zeros(r.training.optimiser.state(r.network.layout).size)  # parameters, then velocities that start at 0
    begin[: len(r.start)] = r.start
    totals, history, chosen, reached = Totals(), [], None, 0
    try:
        for state, record in _train(r, members, made, plan, begin, totals, hear, archive):
            chosen, reached = _better(chosen, state, r.select), state.steps
            history += [] if record is None else [record]
        diverged = None if reached == sum(size for _, size in plan) else totals_steps(totals, plan)
        if chosen is None:
            raise Diverged(
                f"The bounds diverged: no prediction can be certified after step {diverged}, within the first epoch; use a "
                "smaller eps or learning rate."
            )
        chosen = _with_bounds(chosen, r, made, members, archive)
        found = None if archive is None else archive.read_result()
        if found is None:
            answers = _answer(r, made, chosen, diverged, members, begin, totals, hear)
        else:
            answers = read_results(found, r.prediction)
    finally:
        made.close()
    run = CertifiedRun(
        network=r.network,
        data=r.data,
        threat=r.threat,
        test_threat=r.test_threat,
        training=r.training,
        engine=made.name,
        soundness="solver-tolerance" if r.prediction == "exact" else made.soundness,
        prediction=r.prediction,
        solver=r.solver,
        relational=r.relational,
        unroll=made.unroll,
        start=r.start,
        bounds=chosen.box,
        theta=chosen.theta,
        steps=chosen.steps,
        select=r.select,
        validation=(chosen.nominal, chosen.certified),
        diverged=diverged,
        history=tuple(history),
        programs=totals.programs,
        nodes=totals.nodes,
        fallbacks=totals.fallbacks,
        outer=() if made.name == "mibp" else members.outer,
        repeatable=r.repeatable,
        **answers,
    )
    if archive is not None and found is None:
        archive.save_result(run.to_json(), result_arrays(run))
    return run


def _with_bounds(chosen: State, r: Request, made: Engine, members: ThreatSet, archive: Archive | None) -> State:
    """The chosen state with its set, read from the archive where the run went on past it before it was interrupted."""
    if chosen.bounds is not None or archive is None:
        return chosen
    arrays = archive.load(-(-chosen.steps // made.unroll))
    count = r.network.layout.size
    return replace(chosen, bounds=made.restore(arrays, members).first(count), theta=arrays["trained"][:count])


def _answer(
    r: Request,
    made: Engine,
    chosen: State,
    diverged: int | None,
    members: ThreatSet,
    begin: Array,
    totals: Totals,
    hear: Callbacks,
) -> dict[str, Any]:
    """Certified answers for the test points, and the attack beside them."""
    answer: Predictions | Ranges | None = None
    nominal, found = None, None
    if isinstance(r.data, Split):
        test = r.data.test
        inputs = Inputs(test.x, None if r.test_threat is None else r.test_threat.bind(test.ranged(r.train)))
        nominal = None if test.targets is not None else nominal_classes(r.network, chosen.theta, test.x)
        hear.on_stage("bounding test predictions")
        answer = _predict(r, chosen, inputs, made, diverged, nominal is None)
        totals.add(answer.report)
        if r.attack is not None:
            hear.on_stage("attacking")
            single = _truncate(plan_steps(r.network, r.training, r.train, 1), chosen.steps)
            known = chosen.box if states_of(chosen.box) else None
            found = attack(r.network, single, begin, members, inputs, nominal, known, r.attack)
            check_certificates(found, answer, chosen.box)
            found = found.in_units(r.train)
    return {
        "test": answer if isinstance(answer, Predictions) else None,
        "test_ranges": answer.in_units(r.train.target) if isinstance(answer, Ranges) else None,
        "nominal": nominal,
        "attack": found,
    }


def _input_threat(data: Split | Dataset, threat: Threat | None) -> Threat | None:
    """What may be wrong with the test inputs; a value that is missing there may be any valid one."""
    if threat is not None:
        check_threat(threat)
    if not isinstance(data, Split) or data.test.missing is None:
        return threat
    if threat is None:
        return Missing()
    if not isinstance(threat, Catalogued):
        raise UserError("The test rows have missing values, which rules cannot be combined with; fill them in.")
    return threat if threat.knows_missing() else threat & Missing()


def explain_support(graph: Graph, engine: Engine) -> list[str]:
    """One sentence for each part of a network, loss or optimiser that the engine has no rule for; empty if it can take all."""
    needed = dict.fromkeys((n.origin, n.op) for n in graph.nodes if n.op not in engine.operations and n.op != "input")
    return [
        f"The engine '{engine.name}' has no rule for the operation '{op}' that {origin} needs; choose another engine or replace "
        "that part of the network."
        for origin, op in needed
    ]


def _check_request(
    network: Network,
    data: Split | Dataset,
    training: Training,
    method: str,
    made: Engine,
    settings: SolverSettings,
    select: Selection,
) -> None:
    """Refuse what cannot be done before any work is done."""
    train = data.train if isinstance(data, Split) else data
    if train.features != network.features:
        raise UserError(
            f"The data have {train.features} columns but the network takes {network.features}; change its first size."
        )
    check_method(method)
    if method == "relational" and made.name != "relational":
        raise UserError("Relational prediction needs the engine 'relational'; choose --predict interval or exact.")
    if method == "exact":
        solver_named(settings.solver)
    if select.rule == "best-validation" and (not isinstance(data, Split) or train.targets is not None):
        raise UserError("Choosing the epoch on validation data needs data with classes and a validation part.")
    if train.targets is not None and training.loss != "squared-error":
        raise UserError(f"Real targets need the loss 'squared-error', not {training.loss!r}.")


def _train(
    r: Request,
    members: ThreatSet,
    made: Engine,
    plan: list[tuple[Step, int]],
    begin: Array,
    totals: Totals,
    hear: Callbacks,
    archive: Archive | None,
) -> Iterator[tuple[State, EpochRecord | None]]:
    """One step after another; yields at the end of every epoch (or step), and stops early when the bounds diverge.

    Steps in the archive are not taken again: their records are replayed, and the last set is read.
    """
    per_epoch, parameters = steps_per_epoch(len(r.train), _batch(r)), r.network.layout.size
    count, state, trained, best = 0, Box.point(begin), begin, None
    since, start = Totals(), time.perf_counter()
    x, y = members.reference
    known = 0 if archive is None else len(archive.records)
    for number, (step, size) in enumerate(plan, start=1):
        count += size
        whole = count % per_epoch == 0
        if archive is not None and number <= known:
            record = archive.records[number - 1]
            if number == known and not record.diverged:
                arrays = archive.load(number)
                state, trained = made.restore(arrays, members), arrays["trained"]
            start = time.perf_counter() - (0.0 if whole else record.elapsed)
            bounds = None
        else:
            state, report = made.advance(state, step, members)
            trained = train_step(step, trained, x[step.rows], y[step.rows])
            gone, may_stop = _has_diverged(state, trained), whole or r.select.per_step
            seconds = time.perf_counter() - start
            if not gone:
                state.check(step.layout, count)
            bounds = state.first(parameters)
            checked = _validate(r, bounds, trained[:parameters], made) if may_stop and not gone else (None, None)
            radius = (0.0, 0.0) if gone else (float(bounds.radius.mean()), float(bounds.radius.max()))
            record = StepRecord(count, report, seconds, gone, *checked, may_stop, *radius)
            if archive is not None:
                needed = {number} if best is None else {number, -(-best.steps // made.unroll)}
                archive.save(number, record, None if gone else {**state.arrays(), "trained": trained}, needed)
        since.add(record.report)
        totals.add(record.report)
        if record.diverged:
            return
        hear.on_step(count, r.training.epochs * per_epoch)
        if not record.validated:
            continue
        reached = State(bounds, trained[:parameters], count, record.nominal, record.certified)
        best = _better(best, replace(reached, bounds=None), r.select)
        epoch = None
        if whole:
            epoch = _epoch(record, count // per_epoch, since)
            hear.on_epoch(epoch)
            since, start = Totals(), time.perf_counter()
        yield reached, epoch


def _batch(r: Request) -> int:
    return effective_batch_size(len(r.train), r.training.batch_size)


def _has_diverged(box: Box, theta: Array) -> bool:
    """Bounds that are no numbers, or a radius beyond any sane multiple of the clean parameters (inverted bounds are errors)."""
    unusable = not (np.isfinite(box.lower).all() and np.isfinite(box.upper).all())
    return bool(unusable or box.radius.max() > DIVERGED * max(1.0, float(np.abs(theta).max())))


def totals_steps(totals: Totals, plan: list[tuple[Step, int]]) -> int:
    """Number of training steps behind the reports so far."""
    return sum(size for _, size in plan[: len(totals.reports)])


def _better(before: State | None, now: State, select: Selection) -> State:
    """The state to keep: the last one, or the first with the best validation among those that meet the conditions.

    A run that never reaches the clean accuracy asked for is judged by its steps alone.
    """

    def rank(state: State) -> tuple[bool, bool, float]:
        enough = state.steps >= select.least_steps
        return enough and (state.nominal or 0.0) >= select.least_accuracy, enough, state.certified or 0.0

    return now if before is None or select.rule == "last" or rank(now) > rank(before) else before


def _predict(
    r: Request, chosen: State, inputs: Inputs, made: Engine, diverged: int | None, regression: bool
) -> Predictions | Ranges:
    if diverged is not None and r.select.rule == "last":
        # The training asked for goes on past the divergence: nothing is known of its models.
        if regression:
            return unknown_ranges(r.network, inputs.x, r.prediction)
        return abstain(r.network, chosen.theta, inputs.x, r.prediction)
    with made.pool if isinstance(made, MibpEngine) else WorkerPool(r.solver.jobs, r.solver.parallel) as pool:
        if regression:
            return predict_ranges(r.network, chosen.box, inputs, r.prediction, r.solver, pool)
        return predict(r.network, chosen.box, inputs, r.prediction, r.solver, pool)


def attack_steps(run: CertifiedRun) -> tuple[list[Step], Array]:
    """The training that a run is about, one graph per step, and the state that it starts from."""
    plan = plan_steps(run.network, run.training, run.train, 1)
    begin = np.zeros(run.training.optimiser.state(run.network.layout).size)
    begin[: len(run.start)] = run.start
    return _truncate(plan, run.steps), begin


def _truncate(plan: list[tuple[Step, int]], steps: int) -> list[Step]:
    return [step for step, _ in plan[:steps]]


def plan_steps(network: Network, training: Training, train: Dataset, unroll: int) -> list[tuple[Step, int]]:
    """The graphs of the whole training, `unroll` steps in each, with the number of steps they hold; repeated ones are shared."""
    loss, optimiser = loss_named(training.loss, network.logits), training.optimiser
    outputs = train.one_hot.shape[1]
    loss.check(network.logits, outputs)
    size = effective_batch_size(len(train), training.batch_size)
    plan = batch_plan(len(train), size, training.epochs, training.seed, training.batch_mode)
    rates = np.repeat(training.rates, steps_per_epoch(len(train), size)).tolist()
    traced: dict[tuple[bytes, tuple[float, ...]], Step] = {}
    steps = []
    for start in range(0, len(plan), unroll):
        group, local = plan[start : start + unroll], tuple(rates[start : start + unroll])
        key = b"|".join(batch.tobytes() for batch in group), local
        if key not in traced:
            traced[key] = trace_steps(network, loss, optimiser, outputs, group, local)
        steps.append((traced[key], len(group)))
    return steps


def clean_accuracies(network: Network, data: Split, threat: Threat, training: Training) -> list[float]:
    """Accuracy on the validation rows after every step of ordinary training on the data as handed in."""
    x, y = threat.bind(data.train).reference
    theta, found = network.initialise(training.seed, training.init), []
    theta = np.concatenate([theta, np.zeros(training.optimiser.state(network.layout).size - len(theta))])
    for step, _ in plan_steps(network, training, data.train, 1):
        theta = train_step(step, theta, x[step.rows], y[step.rows])
        classes = nominal_classes(network, theta[: network.layout.size], data.validation.x)
        found.append(float(np.mean(classes == data.validation.y)))
    return found


def _validate(r: Request, box: Box, theta: Array, made: Engine) -> tuple[float | None, float | None]:
    """Clean and certified accuracy on the validation data."""
    if not isinstance(r.data, Split) or r.train.targets is not None:
        return None, None
    validation = r.data.validation
    method = "interval" if made.name == "mibp" else made.default_prediction
    nominal = float(np.mean(nominal_classes(r.network, theta, validation.x) == validation.y))
    return nominal, predict(r.network, box, validation.x, method).certified_accuracy(validation.y)


def _epoch(record: StepRecord, epoch: int, since: Totals) -> EpochRecord:
    gaps = [report.gap.max() for report in since.reports if report.gap.size]
    return EpochRecord(
        epoch=epoch,
        seconds=record.elapsed,
        radius_mean=record.radius_mean,
        radius_max=record.radius_max,
        validation_nominal=record.nominal,
        validation_certified=record.certified,
        programs=since.programs,
        nodes=since.nodes,
        fallbacks=since.fallbacks,
        unstable_gates=sum(report.unstable_gates for report in since.reports),
        unstable_relus=sum(report.unstable_relus for report in since.reports),
        gap_max=float(max(gaps)) if gaps else None,
    )
