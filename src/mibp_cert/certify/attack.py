"""The other side: datasets of the threat, trained for real, that try to change predictions and to move parameters.

The linear part of the relational bound is an attack: for a test point, the dataset that minimises the linear part of its margin
over the noise; for a parameter, the datasets that push it furthest down and up. Random members and a few rounds of improvement
join them. Every dataset is checked to be a member before it is used, and all are trained at once. A certified class that an
attack contradicts is a soundness bug and stops the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from mibp_cert.certify.predict import ABSTAIN, Attack, Predictions, Ranges, margin_pairs
from mibp_cert.engines import Box, Inputs, ParameterSet, Progress, RelationalEngine, RelationalSettings
from mibp_cert.engines.relational import Case, LinearPart, cases_of, linear_part, output_range
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import SoundnessError, UserError
from mibp_cert.fitted import FitStep, adjoint, margin_queries
from mibp_cert.graph import evaluate
from mibp_cert.nets import Network, Step, run_steps
from mibp_cert.sets import ThreatSet

VARIANTS = 6
"""Random perturbations of the test inputs that every model meets."""
EVERY = 600
"""Members up to which a fitted model is fitted to every one of them."""
CHUNK = 64
"""Datasets trained at once."""
CELLS = 4_000_000
"""Cells of datasets at once."""
MANY_CELLS = 10_000_000
"""Cells of all datasets, above which few are fitted, one after another, ..."""
FEW_CELLS = 100_000_000
"""... as many as have so many cells together, ..."""
FEW = 16
"""... but at least so many."""
LINEAR_CELLS = 50_000_000
"""Margins × symbols that are held at once; beyond, those of the closest points alone."""


@dataclass(frozen=True)
class AttackSettings:
    """How hard to try: random members, test points attacked along the linear part, improvement rounds of `tries` datasets."""

    members: int = 40
    points: int = 60
    parameters: int = 60
    rounds: int = 4
    tries: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
                raise UserError(f"Of an attack, {name} must be a whole number ≥ 0, got {value!r}.")


class _Trainer:
    """Trains members for real and keeps what they lead to."""

    def __init__(
        self,
        network: Network,
        steps: Sequence[Step],
        theta0: Array,
        threat: ThreatSet,
        inputs: Inputs,
        nominal: NDArray[np.intp] | None,
        hear: Progress | None = None,
    ) -> None:
        self.hear, self.expected = hear or (lambda done, total: None), 0
        """Told how many datasets have been trained, of how many; 0: nobody knows."""
        self.network, self.steps, self.theta0, self.threat = network, steps, theta0, threat
        self.inputs = inputs
        self.regression = nominal is None
        self.nominal = np.zeros(len(inputs.x), dtype=np.intp) if nominal is None else nominal
        shape = (len(inputs.x), network.logits)
        self.low, self.high = np.full(shape, np.inf), np.full(shape, -np.inf)
        self.variants = [inputs.x]
        """Test inputs as handed in, and perturbed ones; every model meets each of them, and the worst one for a point counts."""
        self.theta: list[Array] = []
        self.logits: list[Array] = []
        self.origins: list[str] = []
        self.data: list[tuple[Array, Array]] = []
        self.begin = theta0
        """Where fits start from; a minimum does not depend on it."""

    def add(self, members: list[tuple[Array, Array]], origin: str) -> None:
        for x, y in members:
            if not self.threat.contains(x, y):
                raise SoundnessError(f"An attack dataset ({origin}) is not a member of the threat; this is a bug.")
        step = self.at_once
        for start in range(0, len(members), step):
            part = members[start : start + step]
            x, y = np.stack([m[0] for m in part]), np.stack([m[1] for m in part])
            theta = np.broadcast_to(self.begin, (len(part), len(self.begin)))
            trained = run_steps(self.steps, theta, x, y)[..., : self.network.layout.size]
            self.theta += list(trained)
            self.logits += list(self._worst_logits(trained))
            if self.expected:
                self.hear(min(len(self.theta), self.expected), self.expected)
        self.origins += [f"{origin} {i}" for i in range(len(members))]
        self.data += members

    @property
    def at_once(self) -> int:
        """Datasets at once."""
        return max(1, min(CHUNK, CELLS // self.threat.reference[0].size))

    def forget(self) -> None:
        """Keep no dataset but the one that changes the most: fits need the others no longer."""
        kept = 0 if self.regression else int((self.classes() != self.nominal).sum(axis=1).argmax())
        self.data = [self.data[kept] if i == kept else (np.zeros(0), np.zeros(0)) for i in range(len(self.data))]

    def perturb(self, variants: list[Array]) -> None:
        """Let every model so far, and every later one, meet these inputs too."""
        members = self.inputs.members
        for x in variants:
            if members is None or not members.contains(x, members.reference[1]):
                raise SoundnessError("An attack on the inputs is not a member of their threat; this is a bug.")
        self.variants += variants
        if self.theta:
            self.logits = list(self._worst_logits(np.stack(self.theta)))

    def _worst_logits(self, theta: Array) -> Array:
        """Logits (models × points × logits) on the variant that is worst for each point's nominal class."""
        graph, best, least = self.network.forward_graph(len(self.inputs.x)), None, None
        for x in self.variants:
            inputs = {**self.network.layout.unflatten(theta), "x": np.broadcast_to(x, (len(theta), *x.shape))}
            logits = evaluate(graph, inputs)["logits"]
            self.low = np.minimum(self.low, logits.min(axis=0))
            self.high = np.maximum(self.high, logits.max(axis=0))
            margins = _margins(logits, self.nominal)
            if best is None or least is None:
                best, least = logits, margins
            else:
                worse = margins < least
                best, least = np.where(worse[..., None], logits, best), np.where(worse, margins, least)
        assert best is not None
        return best

    def classes(self) -> NDArray[np.intp]:
        logits = np.stack(self.logits)
        classes = logits.argmax(axis=-1) if logits.shape[-1] > 1 else logits[..., 0] > 0
        return np.asarray(classes, dtype=np.intp)

    def found(self, nominal: NDArray[np.intp] | None) -> Attack:
        """All that was reached, with the dataset that changes the most of these classes as a witness."""
        classes = self.classes()
        none = np.zeros(len(classes), dtype=np.intp)
        flips = none if nominal is None else (classes != nominal[None, :]).sum(axis=1)
        worst = int(flips.argmax())
        outputs = Interval(self.low, self.high)
        origins = tuple(self.origins)
        return Attack(np.stack(self.theta), classes, origins, self.data[worst], int(flips[worst]), outputs)

    def margins(self) -> Array:
        """Margin of the nominal class, for each dataset and point: negative where the attack succeeds."""
        return _margins(np.stack(self.logits), self.nominal)


def _margins(logits: Array, nominal: NDArray[np.intp]) -> Array:
    if logits.shape[-1] == 1:
        return np.where(nominal == 1, logits[..., 0], -logits[..., 0])
    own = np.take_along_axis(logits, nominal[None, :, None], axis=-1)[..., 0]
    rest = np.where(np.arange(logits.shape[-1]) == nominal[None, :, None], -np.inf, logits).max(axis=-1)
    return np.asarray(own - rest)


def attack(
    network: Network,
    steps: Sequence[Step],
    theta0: Array,
    threat: ThreatSet,
    inputs: Inputs,
    nominal: NDArray[np.intp] | None,
    state: ParameterSet | None = None,
    settings: AttackSettings | None = None,
    hear: Progress | None = None,
) -> Attack:
    """Attack the predictions of inputs (and every parameter) through the training data, and through the inputs themselves where
    they have a threat of their own; `theta0` is the initial state, parameters first.

    `nominal`: the classes to attack, or None for a regression, whose outputs are pushed both ways. `state`: the set after the
    last step; where it is no relational one, that is computed here, without slope search. `hear(done, total)` counts datasets
    that a model was fitted to.
    """
    settings = settings or AttackSettings()
    rng = np.random.default_rng([settings.seed, 2])
    trainer = _Trainer(network, steps, theta0, threat, inputs, nominal, hear)
    if inputs.members is not None:
        trainer.perturb([x for x, _ in inputs.members.sample(rng, VARIANTS)])
    trainer.add([threat.reference], "clean data")
    if isinstance(steps[0], FitStep):
        each = max(1, threat.reference[0].size)
        every = threat.members(min(EVERY, MANY_CELLS // each))
        if every is None:
            _fits(trainer, steps[0], settings, rng)
        else:
            trainer.expected = 1 + len(every)
            trainer.add(every, "dataset")
        return trainer.found(nominal)
    trainer.add(threat.sample(rng, settings.members), "random member")
    cases = [] if state is None else cases_of(state, threat)
    cases = cases or cases_of(_relational_state(network, steps, theta0, threat), threat)
    if any(case.state.data for case in cases):
        trainer.add(_parameter_attacks(cases, settings), "parameter attack")
        margins = _Margins.of(network, cases, *_near(network, cases, inputs, nominal, settings.points))
        if inputs.members is not None:
            trainer.perturb(_worst_inputs(inputs, margins))
        trainer.add(_point_attacks(cases, margins, settings), "point attack")
    _improve(trainer, threat, settings, rng)
    return trainer.found(nominal)


def _fits(trainer: _Trainer, step: FitStep, settings: AttackSettings, rng: np.random.Generator) -> None:
    """Fitted models: for every direction the dataset that the adjoint asks for, again and again from where the last one led."""
    theta, cells = trainer.theta[0], trainer.threat.reference[0].size
    trainer.begin = np.append(theta, trainer.theta0[len(theta) :])
    sides = margin_queries(step, theta, trainer.inputs.x, trainer.nominal)
    eye = np.eye(step.fitted)[: settings.parameters]
    if cells * (settings.members + settings.rounds * (settings.points + 2 * len(eye))) > MANY_CELLS:
        # Of several classes, the one that comes closest to that of a point: one query for each.
        others = np.abs(sides @ theta[-step.fitted :]).reshape(len(trainer.inputs.x), -1).argmin(axis=1)
        nearest = sides.reshape(*trainer.inputs.x.shape[:1], -1, step.fitted)[np.arange(len(others)), others]
        _few(trainer, step, nearest, min(settings.points, max(FEW, FEW_CELLS // cells)), rng)
        return
    count = min(settings.points, len(sides)) * (2 if trainer.regression else 1) + 2 * len(eye)
    trainer.expected = 1 + settings.members + settings.rounds * count
    trainer.add(trainer.threat.sample(rng, settings.members), "random member")
    order = np.argsort(np.abs(sides @ theta[-step.fitted :]), kind="stable")[: settings.points]
    a = np.concatenate([sides[order], *([-sides[order]] if trainer.regression else []), eye, -eye])
    for start in range(0, len(a), max(1, CELLS // cells)):
        _push(trainer, step, a[start : start + max(1, CELLS // cells)], settings.rounds)


def _push(trainer: _Trainer, step: FitStep, a: Array, rounds: int) -> None:
    """One dataset for each direction and round."""
    noise, (x, y) = trainer.threat.noise(), trainer.threat.reference
    now = np.broadcast_to(x, (len(a), *x.shape)), np.broadcast_to(y, (len(a), *y.shape))
    models = np.broadcast_to(trainer.theta[0], (len(a), len(trainer.theta[0])))
    for round_number in range(rounds):
        members = [trainer.threat.worst(g) for g in adjoint(step, noise, a, *now, models)]
        trainer.add(members, f"adjoint, round {round_number},")
        now = np.stack([m[0] for m in members]), np.stack([m[1] for m in members])
        models = np.stack(trainer.theta[-len(a) :])
        trainer.forget()


def _few(trainer: _Trainer, step: FitStep, sides: Array, count: int, rng: np.random.Generator) -> None:
    """Large datasets: each is for the point that is closest to its decision among those which no dataset changed so far; in a
    regression, for one point after another, to either side."""
    if not count:
        return
    trainer.expected = 2 + count
    trainer.add(trainer.threat.sample(rng, 1), "random member")
    left = np.ones(len(sides), dtype=bool)
    for number in range(count):
        if trainer.regression:
            point, sign = number // 2 % len(sides), 1.0 - 2.0 * (number % 2)
        else:
            margins = trainer.margins().min(axis=0)
            left &= margins > 0
            if not left.any():
                return
            point, sign = int(np.where(left, margins, np.inf).argmin()), 1.0
            left[point] = False
        _push(trainer, step, sign * sides[point : point + 1], 1)


def _relational_state(network: Network, steps: Sequence[Step], theta0: Array, threat: ThreatSet) -> ParameterSet:
    """The linear part, for runs of other engines; as far as it can be had."""
    engine = RelationalEngine(RelationalSettings(search=0, cases=0))
    state: ParameterSet = Box.point(theta0)
    for step in steps:
        after, _ = engine.advance(state, step, threat)
        if not (np.isfinite(after.lower).all() and np.isfinite(after.upper).all()):
            break
        state = after
    return state.first(network.layout.size)


def _parameter_attacks(cases: list[Case], settings: AttackSettings) -> list[tuple[Array, Array]]:
    """Push the widest parameters down and up, each in the case that reaches furthest."""
    lower, upper = (np.stack([getattr(case.state, end) for case in cases]) for end in ("lower", "upper"))
    order = np.argsort(lower.min(axis=0) - upper.max(axis=0), kind="stable")[: settings.parameters]
    found = []
    for i in order:
        for sign, number in ((1.0, int(lower[:, i].argmin())), (-1.0, int(upper[:, i].argmax()))):
            case = cases[number]
            found.append(case.threat.worst(sign * case.state.linear[i, : case.state.data]))
    return found


@dataclass(frozen=True, eq=False)
class _Margins:
    """Margins of the nominal classes to first order, for every case: lower ends (cases × points × pairs) and linear parts."""

    low: Array
    linear: list[LinearPart]
    both: bool
    """All pairs matter (regression: outputs are pushed both ways), or only the most endangered one."""

    @classmethod
    def of(cls, network: Network, cases: list[Case], inputs: Inputs, nominal: NDArray[np.intp] | None) -> _Margins:
        pairs, speaks_for = margin_pairs(network)
        found = [
            linear_part(lambda n: network.margin_graph(n, pairs), network.layout, case.state, inputs) for case in cases
        ]
        low = _lowest([bounds for bounds, _ in found], speaks_for, nominal)
        return cls(low, [linear for _, linear in found], nominal is None)

    def worst(self, point: int) -> list[tuple[int, int]]:
        """Cases and pairs worth attacking: those with the smallest lower end."""
        if self.both:
            return [(int(self.low[:, point, pair].argmin()), pair) for pair in range(self.low.shape[2])]
        case, pair = np.unravel_index(int(self.low[:, point].argmin()), self.low[:, point].shape)
        return [(int(case), int(pair))]


def _point_attacks(cases: list[Case], margins: _Margins, settings: AttackSettings) -> list[tuple[Array, Array]]:
    """Minimise the linear part of the margins that are closest to zero."""
    return [
        cases[case].threat.worst(margins.linear[case].data[i, pair])
        for i in _closest(margins.low, settings.points).tolist()
        for case, pair in margins.worst(i)
    ]


def _closest(low: Array, points: int) -> NDArray[np.intp]:
    """The points whose margins are closest to zero."""
    return np.argsort(np.abs(np.nan_to_num(low.min(axis=(0, 2)), neginf=0.0)), kind="stable")[:points]


def _lowest(bounds: list[Interval], speaks_for: NDArray[np.intp], nominal: NDArray[np.intp] | None) -> Array:
    """Lower ends of the margins that matter (cases × points × pairs); infinite for others."""
    relevant = np.ones(bounds[0].low.shape, dtype=bool)
    if nominal is not None:
        relevant = speaks_for[None, :] == nominal[:, None]
    return np.stack([np.where(relevant, np.nan_to_num(one.low, nan=-np.inf), np.inf) for one in bounds])


def _near(
    network: Network, cases: list[Case], inputs: Inputs, nominal: NDArray[np.intp] | None, points: int
) -> tuple[Inputs, NDArray[np.intp] | None]:
    """The inputs that are attacked; all of them, where what their margins are made of can be held at once."""
    pairs, speaks_for = margin_pairs(network)
    cells = len(inputs.x) * len(pairs) * sum(case.state.data for case in cases)
    if inputs.members is not None or cells <= LINEAR_CELLS:
        return inputs, nominal
    ranges = [
        output_range(lambda n: network.margin_graph(n, pairs), network.layout, case.state, inputs) for case in cases
    ]
    some = _closest(_lowest(ranges, speaks_for, nominal), points)
    return inputs.take(some), None if nominal is None else nominal[some]


def _worst_inputs(inputs: Inputs, margins: _Margins) -> list[Array]:
    """Every test row where the linear part of its margin is smallest; rows have symbols of their own, so they can be added up."""
    assert inputs.members is not None
    found = []
    for choices in zip(*(margins.worst(i) for i in range(len(inputs.x))), strict=True):
        total = np.sum([margins.linear[case].inputs[i, pair] for i, (case, pair) in enumerate(choices)], axis=0)
        found.append(inputs.members.worst(total)[0])
    return found


def _improve(trainer: _Trainer, threat: ThreatSet, settings: AttackSettings, rng: np.random.Generator) -> None:
    """Mix the most successful datasets row by row with each other; a mixture of members need not be one, so it is checked."""
    for round_number in range(settings.rounds):
        margins = trainer.margins()
        # The points nearest to their decision are the ones worth fighting for.
        target = np.argsort(np.abs(margins.min(axis=0)), kind="stable")[: settings.tries]
        mixed = []
        for point in target:
            best, second = np.argsort(margins[:, point], kind="stable")[:2]
            choose = rng.random((len(threat.clean), 1)) < 0.5
            pair = tuple(np.where(choose, trainer.data[best][i], trainer.data[second][i]) for i in (0, 1))
            if threat.contains(pair[0], pair[1]):
                mixed.append((pair[0], pair[1]))
        if mixed:
            trainer.add(mixed, f"improvement round {round_number}, mixture")


def check_certificates(found: Attack, answer: Predictions | Ranges | None, bounds: ParameterSet) -> None:
    """Raise `SoundnessError`, naming the dataset, if an attack contradicts a certified class or leaves the bounds."""
    wrong = np.zeros((len(found.theta), 1), dtype=bool)
    if isinstance(answer, Ranges):
        reached, proven = found.outputs, answer.outputs
        if not ((proven.low <= reached.low) & (reached.high <= proven.high)).all():
            raise SoundnessError(
                "An attack leaves the certified range of an output: the bounds are not sound; report this."
            )
    elif answer is not None:
        wrong = (found.classes != answer.classes[None, :]) & (answer.classes != ABSTAIN)[None, :]
    outside = ~((bounds.lower <= found.theta) & (found.theta <= bounds.upper)).all(axis=1)
    for bad, what in ((wrong.any(axis=1), "contradicts a certified class"), (outside, "leaves the parameter bounds")):
        if bad.any():
            index = int(bad.argmax())
            raise SoundnessError(
                f"The model trained on the attack dataset '{found.origins[index]}' {what}: the bounds are not sound. "
                "Please report this with the settings of the run; nothing of it may be used."
            )
