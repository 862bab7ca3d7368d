"""The loop: one engine, one step after another, from `θ₀` to a certified run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from mibp_cert.certify.attack import attack, check_certificates
from mibp_cert.certify.choice import Judge, Rank
from mibp_cert.certify.predict import (
    Answers,
    abstain,
    nominal_classes,
    nominal_outputs,
    predict,
    predict_ranges,
    unknown_ranges,
)
from mibp_cert.certify.request import Request, Selection
from mibp_cert.certify.run import CertifiedRun, EpochRecord
from mibp_cert.certify.worth import accuracy
from mibp_cert.data import Dataset, Split, Task
from mibp_cert.engines import Box, Engine, Inputs, ParameterSet, StepReport
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import Diverged, SoundnessError, fitting
from mibp_cert.fitted import Fitted
from mibp_cert.nets import Network, Training
from mibp_cert.threats import Threat

DIVERGED = 1e6
"""A radius beyond this multiple of the clean model's largest parameter (at least 1) says nothing any more: the run stops."""


@dataclass(frozen=True)
class Callbacks:
    """What a caller may want to hear: programs within a step, finished steps, finished epochs, and what comes after. Of a fitted
    model, `on_program` hears of queries that are bounded (a proof has a number of rounds that is guessed) and of datasets that
    the attack has fitted."""

    on_program: Callable[[int, int], None] = lambda done, total: None
    on_step: Callable[[int, int], None] = lambda done, total: None
    on_epoch: Callable[[EpochRecord], None] = lambda record: None
    on_stage: Callable[[str], None] = lambda name: None
    on_note: Callable[[str], None] = lambda sentence: None
    """What happened on the way, such as files that were mended."""


@dataclass(frozen=True)
class StepRecord:
    """What is kept of a step beside its set: cost and validation."""

    steps: int
    """Training steps taken so far."""
    report: StepReport
    elapsed: float
    """Seconds since the epoch began."""
    diverged: bool
    nominal: float | None
    certified: float | None
    validated: bool
    """Whether the run may stop here: the end of an epoch, or any step if any may be chosen."""
    radius_mean: float
    radius_max: float


class Keeper(Protocol):
    """Where a run keeps its steps, if it does (`store.Archive`)."""

    records: list[StepRecord]

    def load(self, number: int) -> dict[str, Array]:
        """The arrays of one step."""

    def save(self, number: int, record: StepRecord, arrays: Mapping[str, Any] | None, needed: set[int]) -> None:
        """Keep a step; `needed`: steps whose arrays must not be dropped."""

    def read_result(self) -> dict[str, Array] | None:
        """What was found, if the run is over."""

    def save_result(self, plain: dict[str, Any], arrays: Mapping[str, Any]) -> None:
        """Keep what was found in the end."""


@dataclass(frozen=True, eq=False)
class State:
    """Where training stands after a step: bounds, and the clean model."""

    bounds: ParameterSet | None
    """None: it is in the archive."""
    theta: Array
    record: StepRecord


def certify(request: Request, hear: Callbacks | None = None, keeper: Keeper | None = None) -> CertifiedRun:
    """Train on every dataset that the threat allows, at once; choose the state that the certificate is about; answer for the test
    points. With a `keeper`, steps that it holds are not taken again."""
    hear = hear or Callbacks()
    engine = request.make_engine(hear.on_program)
    try:
        engine.check_threat(request.members)
        engine.check_graph(request.unrolled.steps[0].graph)
        return Loop(request, engine, hear, keeper).run()
    finally:
        engine.close()


class Loop:
    """One run: what is fixed, and what has been counted so far."""

    def __init__(self, request: Request, engine: Engine, hear: Callbacks, keeper: Keeper | None) -> None:
        self.request, self.engine, self.hear, self.keeper = request, engine, hear, keeper
        self.plan, self.members = request.unrolled, request.members
        self.parameters = request.network.layout.size
        self.reports: list[StepReport] = []
        self.history: list[EpochRecord] = []
        self.chosen: State | None = None

    def run(self) -> CertifiedRun:
        reached, chosen = self._train(), self.chosen
        diverged = None if reached == self.plan.total else sum(self.plan.sizes[: len(self.reports)])
        if chosen is None:
            if isinstance(self.request.training, Fitted):
                raise Diverged("The bounds of the minimum are too wide for anything: use a smaller C or a smaller eps.")
            raise Diverged(
                f"The bounds diverged: no prediction can be certified after step {diverged}, within the first epoch; use a "
                "smaller eps or learning rate."
            )
        bounds, theta = self._with_bounds(chosen)
        kept = None if self.keeper is None else self.keeper.read_result()
        if kept is None:
            answers = self._answer(bounds, theta, chosen.record.steps, diverged)
        else:
            with fitting("The result"):
                answers = Answers.of_arrays(kept, self.request.prediction)
                answers.check(self.request.data.test, self.parameters)
        run = CertifiedRun(
            self.request,
            bounds,
            theta,
            chosen.record.steps,
            (chosen.record.nominal, chosen.record.certified),
            diverged,
            tuple(self.history),
            **_sums(self.reports, "programs", "nodes", "fallbacks"),
            answers=answers,
        )
        if self.keeper is not None and kept is None:
            self.keeper.save_result(run.to_json(), answers.arrays())
        return run

    def _train(self) -> int:
        """One step after another, until the bounds diverge; returns the last step at which the run may stop.

        Steps that are kept are not taken again: their records are replayed, and the last set is read.
        """
        plan, select = self.plan, self.request.select
        now: ParameterSet = Box.point(plan.begin)
        count, trained, reached = 0, plan.begin, 0
        begun, start = 0, time.perf_counter()
        x, y = self.members.reference
        known = 0 if self.keeper is None else len(self.keeper.records)
        numbers = self.request.train.task is Task.NUMBERS
        for number, (step, size) in enumerate(zip(plan.steps, plan.sizes, strict=True), start=1):
            count += size
            whole, last = count % plan.per_epoch == 0, count == plan.total
            if self.keeper is not None and number <= known:
                record = self.keeper.records[number - 1]
                if number == known and not record.diverged:
                    now, trained = self._kept(number)
                start = time.perf_counter() - (0.0 if whole else record.elapsed)
                bounds = None
            else:
                now, report = self.engine.advance(now, step, self.members)
                trained = step.train(trained, x[step.rows], y[step.rows])
                elapsed = time.perf_counter() - start
                bounds = now.first(self.parameters)
                record = self.record(now, bounds, trained, count, report, elapsed, whole or last or select.per_step)
                if self.keeper is not None:
                    needed = {number} if self.chosen is None else {number, self._place(self.chosen.record.steps)}
                    arrays = None if record.diverged else {**now.arrays(), "trained": trained}
                    self.keeper.save(number, record, arrays, needed)
            self.reports.append(record.report)
            if record.diverged:
                break
            self.hear.on_step(count, plan.total)
            if record.validated:
                reached = count
                self.chosen = _better(
                    self.chosen, State(bounds, trained[: self.parameters], record), select, self.request.data
                )
            if whole:
                self.history.append(_epoch(count // plan.per_epoch, record, self.reports[begun:], numbers=numbers))
                self.hear.on_epoch(self.history[-1])
                begun, start = len(self.reports), time.perf_counter()
        return reached

    def record(
        self,
        now: ParameterSet,
        bounds: ParameterSet,
        trained: Array,
        count: int,
        report: StepReport,
        elapsed: float,
        may_stop: bool,
    ) -> StepRecord:
        """What is kept of a step that was just taken; raises `SoundnessError` for bounds that are inverted."""
        gone = _has_diverged(now, trained)
        if gone:
            return StepRecord(count, report, elapsed, gone, None, None, may_stop, 0.0, 0.0)
        now.check(self.plan.steps[0].layout, count)
        if not now.contains(trained):
            raise SoundnessError(
                f"After step {count} the model trained on the data as handed in is outside of its bounds: they are not sound. "
                "Please report this with the settings of the run; nothing of it may be used."
            )
        checked = self._validate(bounds, trained[: self.parameters]) if may_stop else (None, None)
        radius = bounds.radius
        return StepRecord(count, report, elapsed, gone, *checked, may_stop, float(radius.mean()), float(radius.max()))

    def _validate(self, bounds: ParameterSet, theta: Array) -> tuple[float | None, float | None]:
        """Clean and certified accuracy on the validation data; of numbers, mean absolute errors in the user's units."""
        validation, network, train = self.request.data.validation, self.request.network, self.request.train
        if validation is None:
            return None, None
        if isinstance(self.request.training, Fitted):
            self.hear.on_stage("bounding validation predictions")
        inputs, engine = Inputs(validation.x), self.engine.validating()
        clean = _clean_figure(network, theta, train, validation, self.request.training)
        if validation.targets is None:
            right = predict(network, bounds, inputs, engine).classes == validation.y
            return clean, accuracy(right, validation.y, balanced=_by_class(self.request.training))
        ranges = predict_ranges(network, bounds, inputs, engine).in_units(train.target)
        worst = float(ranges.certified_error(train.in_units(validation.targets)).mean())
        return clean, worst if np.isfinite(worst) else None

    def _place(self, steps: int) -> int:
        """Number of the graph that ends with this training step."""
        return -(-steps // self.request.settings.unroll)

    def _kept(self, number: int) -> tuple[ParameterSet, Array]:
        assert self.keeper is not None
        arrays = self.keeper.load(number)
        with fitting(f"The set after step {number}"):
            state, trained = self.engine.restore(arrays, self.members, self.plan.steps[number - 1]), arrays["trained"]
            if not state.lower.shape == state.upper.shape == trained.shape == self.plan.begin.shape:
                raise ValueError("its parameters are others than the network's")
        return state, trained

    def _with_bounds(self, chosen: State) -> tuple[ParameterSet, Array]:
        """The chosen set and model, read again where the run went on past it before it was interrupted."""
        if chosen.bounds is not None:
            return chosen.bounds, chosen.theta
        state, trained = self._kept(self._place(chosen.record.steps))
        return state.first(self.parameters), trained[: self.parameters]

    def _answer(self, bounds: ParameterSet, theta: Array, steps: int, diverged: int | None) -> Answers:
        """Certified answers for the test points, and the attack beside them."""
        r, test = self.request, self.request.data.test
        if test is None:
            return Answers()
        inputs = r.test_inputs()
        nominal = None if test.task is Task.NUMBERS else nominal_classes(r.network, theta, test.x)
        self.hear.on_stage("bounding test predictions")
        engine = self.engine if self.engine.prediction == r.prediction else r.make_predictor()
        # If the training asked for goes on past a divergence, nothing is known of its models.
        reached = diverged is None or r.select.by_validation
        try:
            if nominal is None:
                ranges = predict_ranges(r.network, bounds, inputs, engine) if reached else None
                answers = Answers(test_ranges=ranges or unknown_ranges(r.network, inputs.x, r.prediction))
            else:
                classes = predict(r.network, bounds, inputs, engine) if reached else None
                answers = Answers(classes or abstain(r.network, theta, inputs.x, r.prediction), nominal=nominal)
        finally:
            if engine is not self.engine:
                engine.close()
        assert answers.certified is not None
        self.reports.append(answers.certified.report)
        if r.attack is not None:
            self.hear.on_stage("attacking")
            taken = r.plan.steps[:steps]
            asked = self.members, inputs, nominal, bounds, r.attack, self.hear.on_program
            found = attack(r.network, taken, r.plan.begin, *asked)
            check_certificates(found, answers.certified, bounds)
            answers = replace(answers, attack=found.in_units(r.train))
        if answers.test_ranges is not None:
            answers = replace(answers, test_ranges=answers.test_ranges.in_units(r.train.target))
        return answers


def _has_diverged(state: ParameterSet, theta: Array) -> bool:
    """Bounds that are no numbers, or a radius beyond any sane multiple of the clean parameters (inverted bounds are errors)."""
    unusable = not (np.isfinite(state.lower).all() and np.isfinite(state.upper).all())
    return bool(unusable or state.radius.max() > DIVERGED * max(1.0, float(np.abs(theta).max())))


def _better(before: State | None, now: State, select: Selection, data: Split) -> State:
    """The state to keep: the last one, or the one that the rule prefers on validation rows (`certify.choice`)."""
    if before is None or not select.by_validation:
        return now
    judge = Judge.of(data, select.least_accuracy)

    def rank(record: StepRecord) -> Rank:
        return judge.rank(record.nominal, record.certified, enough=record.steps >= select.least_steps)

    return now if rank(now.record) > rank(before.record) else before


def _sums(reports: list[StepReport], *names: str) -> dict[str, int]:
    return {name: sum(getattr(report, name) for report in reports) for name in names}


def _epoch(number: int, record: StepRecord, reports: list[StepReport], *, numbers: bool) -> EpochRecord:
    """What is told of an epoch that ended with this step; `reports`: of all its steps; `numbers`: of a regression."""
    gaps = [report.gap.max() for report in reports if report.gap.size]
    return EpochRecord(
        epoch=number,
        seconds=record.elapsed,
        radius_mean=record.radius_mean,
        radius_max=record.radius_max,
        validation_nominal=record.nominal,
        validation_certified=record.certified,
        numbers=numbers,
        gap_max=float(max(gaps)) if gaps else None,
        **_sums(reports, "programs", "nodes", "fallbacks", "unstable_gates", "unstable_relus"),
    )


def clean_models(network: Network, data: Split, threat: Threat, training: Training | Fitted) -> Iterator[Array]:
    """The parameters after every step of ordinary training on the data as handed in."""
    members = threat.bind(data.train)
    (x, y), train = members.reference, members.clean if threat.changes_rows() else data.train
    begin = (
        training.start(data.train) if isinstance(training, Fitted) else network.initialise(training.seed, training.init)
    )
    plan = training.plan(network, train, begin)
    theta = plan.begin
    for step in plan.steps:
        theta = step.train(theta, x[step.rows], y[step.rows])
        yield theta[: network.layout.size]


def clean_figures(network: Network, data: Split, threat: Threat, training: Training | Fitted) -> list[float]:
    """Their accuracies on the validation rows (balanced where classes have weights); of numbers, mean absolute errors in the
    user's units."""
    assert data.validation is not None
    return [
        _clean_figure(network, theta, data.train, data.validation, training)
        for theta in clean_models(network, data, threat, training)
    ]


def _by_class(training: Training | Fitted) -> bool:
    """Are its accuracies balanced?"""
    return isinstance(training, Fitted) and training.by_class


def _clean_figure(network: Network, theta: Array, train: Dataset, rows: Dataset, made: Training | Fitted) -> float:
    if rows.targets is None:
        return accuracy(nominal_classes(network, theta, rows.x) == rows.y, rows.y, balanced=_by_class(made))
    outputs, targets = train.in_units(nominal_outputs(network, theta, rows.x)), train.in_units(rows.targets)
    return float(np.abs(outputs - targets).mean())
