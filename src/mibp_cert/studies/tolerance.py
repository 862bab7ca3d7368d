"""How wrong may the data be? The largest doubt for which a certificate was found, and the smallest that an attack used.

A family of threats `T(v)` grows with `v`: `T(u) ⊆ T(v)` for `u ≤ v`. A certificate for `T(v)` then holds for every smaller
value, and an attack within `T(v)` works for every larger one. So for each test point there are two numbers,
`certified ≤ true ≤ broken`, and bisection brings them together: each run at one `v` tells about all points at once.

A class is certified or not. An output of a regression counts as certified while its range stays within `±w` of what the clean
model says, `w` in the units of the targets; an attack succeeds where it reaches an output beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import and_
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mibp_cert.card import Figure, card
from mibp_cert.certify.predict import nominal_classes, nominal_outputs
from mibp_cert.certify.request import Selection
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.data import Split, Task
from mibp_cert.doors import attack_fit, certify_model
from mibp_cert.engines.rounding import Array, Interval
from mibp_cert.errors import Diverged, SoundnessError, UserError
from mibp_cert.fitted import Fitted
from mibp_cert.nets import Network, Training
from mibp_cert.parallel import spread
from mibp_cert.studies.blame import check_points
from mibp_cert.studies.compare import changed_by_attack
from mibp_cert.studies.recipe import Decided, decide
from mibp_cert.threats import All, Budget, Catalogued, LabelFlips, Nothing, Threat

VARIED = ("amount", "rows", "flips")
DOUBLINGS = 30
LEAST_PRECISION = 1e-6
ATTACKED = ("test_threat", "attack_settings")
"""Options that an attack alone knows."""
LESS = ("use fewer epochs or a smaller learning rate", "use a smaller C")
"""What helps against bounds that diverge: steps, and fits."""


def scaled(threat: Threat, factor: float) -> Catalogued:
    """The same threat with all its amounts (eps, to, up, down) times `factor`.

    >>> from mibp_cert import LInf
    >>> scaled(LInf({"age": 1.0}), 0.5).to_json()
    {'kind': 'linf', 'eps': {'age': 0.5}}
    """
    if not isinstance(threat, Catalogued):
        raise UserError("Rules have no amount that could be varied; vary their base, or write another function.")
    if not threat.has_amounts():
        raise UserError(
            "This threat has no amount that could be varied; name one (--eps), or vary the wrong labels (--vary flips)."
        )
    return threat.scaled(factor)


@dataclass(frozen=True)
class Family:
    """Threats that grow with a number: `amount` scales those of `threat`, `rows` lets it act on so many rows, `flips` are wrong
    labels on top of it."""

    vary: str
    threat: Catalogued | None = None

    def __post_init__(self) -> None:
        if self.vary not in VARIED:
            raise UserError(f"What can be varied is one of {', '.join(VARIED)}, not {self.vary!r}.")
        if self.threat is None and self.vary != "flips":
            raise UserError(f"To vary the {self.vary}, say of which threat, such as LInf(1.0).")

    @property
    def whole(self) -> bool:
        """Only whole numbers make sense."""
        return self.vary != "amount"

    def __call__(self, value: float) -> Catalogued:
        if self.vary == "flips":
            flips = LabelFlips(int(value)) if value else Nothing()
            return flips if self.threat is None else self.threat & flips if value else self.threat
        assert self.threat is not None
        return scaled(self.threat, value) if self.vary == "amount" else _in_rows(self.threat, int(value))


def _in_rows(threat: Catalogued, rows: int) -> Catalogued:
    """The threat in at most so many rows; missing values stay unknown wherever they are."""
    parts = threat.threats if isinstance(threat, All) else (threat,)
    some = [part for part in parts if not part.knows_missing()]
    if not some:
        raise UserError("Only missing values are in doubt: say what else may be wrong in some rows, such as --eps.")
    limited = Budget(some[0] if len(some) == 1 else All(tuple(some)), rows=rows)
    return reduce(and_, (part for part in parts if part.knows_missing()), limited)


@dataclass(frozen=True, eq=False)
class Tried:
    """What one run at one value told about the test points."""

    certified: NDArray[np.bool_]
    changed: NDArray[np.bool_]
    """Where an attack changed the class."""
    attacked: bool = True
    """Was there an attack? Without bounds of a network there is none."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """What one run told about a regression: ranges of the outputs of the test points (certified, and reached by attacks) and
    the clean model's own, in the units of the targets."""

    clean: Array
    proven: Interval
    reached: Interval | None
    error: float
    """Mean absolute error of the clean model on the validation rows (without any: on the training rows)."""

    def tried(self, around: Array, within: float) -> Tried:
        """The points whose outputs stay within so much of these, and those that an attack takes further."""
        low, high = around - within, around + within
        certified = np.all((low <= self.proven.low) & (self.proven.high <= high), axis=1)
        if self.reached is None:
            return Tried(certified, np.zeros(len(around), dtype=bool))
        return Tried(certified, np.any((self.reached.low < low) | (high < self.reached.high), axis=1))

    def needed(self, share: float) -> float:
        """The smallest `within` for which this share of the points is certified."""
        away = np.maximum(self.proven.high - self.clean, self.clean - self.proven.low).max(axis=1)
        return float(np.sort(away)[max(0, int(np.ceil(share * len(away))) - 1)])


@dataclass(frozen=True, eq=False)
class Tolerance:
    """For every test point the largest value with a certificate (NaN: none was found) and the smallest that an attack used
    (infinite: none did); for the share asked for, the same two numbers."""

    certified: Array
    broken: Array
    share: float | None
    largest: float | None
    """Largest value for which the share of points was certified; it then is for every smaller one."""
    smallest: float | None
    """Smallest value at which attacks leave less than that share."""
    values: tuple[float, ...]
    """All values that runs were made for."""
    index: NDArray[Any] | None = None
    attacked: float = 0.0
    """Largest value that was attacked."""
    decided: Decided | None = None
    """How every model was made."""
    within: float | None = None
    """Of a regression: how far an output may be off and still count as certified, in the units of the targets."""
    needed: float | None = None
    """... and how far it would have to be for the share asked for, at value 0."""

    def table(self) -> pd.DataFrame:
        """One line per test point."""
        return pd.DataFrame({"certified_up_to": self.certified, "attacked_from": self.broken}, index=self.index)

    def _repr_html_(self) -> str:
        title, lines = "How wrong may the data be?", [("What next", "table() has both values of every test point.")]
        if self.share is None:
            known, broken = int(np.isfinite(self.certified).sum()), int(np.isfinite(self.broken).sum())
            ends = (
                Figure("Certified", f"{known} of {len(self.certified)}", "test points, for some value"),
                Figure("Attacked", f"{broken} of {len(self.broken)}", "test points, for some value"),
            )
            return card(title, ends, lines=lines)
        up_to, fewer = ("no value" if end is None else f"{end:.4g}" for end in (self.largest, self.smallest))
        share = f"{100 * self.share:g} %"
        ends = (
            Figure("Certified up to", up_to, f"{share} of the test points, and for everything smaller"),
            Figure("Attacked from", fewer, f"an attack leaves less than {share}"),
        )
        if self.largest is None:
            nothing = f"Fewer than {share} are certified even where nothing is in doubt: try another model or a smaller share."
            return card(title, ends, [nothing], lines)
        return card(title, ends, lines=[("The truth", f"lies between the two ({len(self.values)} runs)."), *lines])

    def to_json(self) -> dict[str, Any]:
        def plain(values: Array) -> list[float | None]:
            return [float(v) if np.isfinite(v) else None for v in values]

        return {
            "share": self.share,
            "certified_up_to": self.largest,
            "attacked_from": self.smallest,
            "points": {"certified_up_to": plain(self.certified), "attacked_from": plain(self.broken)},
            "values": list(self.values),
            **({} if self.decided is None or self.decided.steps is None else {"steps": self.decided.steps}),
            **({} if self.within is None else {"within": self.within}),
        }


@dataclass
class _Search:
    """Runs made so far, and what they say."""

    run: Callable[[float], Tried]
    whole: bool
    precision: float
    tried: dict[float, Tried] = field(default_factory=dict)

    def at(self, value: float) -> Tried:
        """What the run at this value told, made if it is missing; no attack may contradict a certificate of a larger set."""
        if value not in self.tried:
            self.tried[value] = self.run(value)
            certified, broken = self.ends()
            if (certified >= broken).any():
                raise SoundnessError(
                    "An attack contradicts a certificate for a larger set: the bounds are not sound; report this."
                )
        return self.tried[value]

    def ends(self) -> tuple[Array, Array]:
        """Per point: largest certified value (−∞: none), smallest broken one (∞: none)."""
        certified = np.max([np.where(t.certified, v, -np.inf) for v, t in self.tried.items()], axis=0)
        return certified, np.min([np.where(t.changed, v, np.inf) for v, t in self.tried.items()], axis=0)

    def threshold(
        self, holds: Callable[[Tried], bool], start: float, most: float, *, attacks: bool = False
    ) -> tuple[float | None, float | None]:
        """Largest value tried at which `holds`, and the smallest at which it does not, close together; `holds` falls with it.
        About `attacks`, only values that were attacked say anything."""
        if not holds(self.at(0.0)):
            return None, 0.0
        for doubled in range(DOUBLINGS):
            value = min(start * 2.0**doubled, most)
            found = self.at(value)
            if not holds(found) or value >= most or (attacks and not found.attacked):
                break
        while True:
            known = {v: t for v, t in self.tried.items() if t.attacked or not attacks}
            good = max(v for v, t in known.items() if holds(t))
            bad = min((v for v, t in known.items() if v > good and not holds(t)), default=None)
            if bad is None or bad - good <= (1 if self.whole else self.precision * bad):
                return good, bad
            middle = 0.5 * (good + bad) if good > 0 or self.whole else bad / 8.0
            self.at(float(round(middle)) if self.whole else middle)

    def settle(self, point: int, start: float, most: float, *, attacked: bool) -> None:
        """Bring both ends of one point together."""
        self.threshold(lambda t: bool(t.certified[point]), start, most)
        if attacked:
            self.threshold(lambda t: not t.changed[point], start, most, attacks=True)


def tolerance(
    network: Network | None,
    data: Split,
    family: Callable[[float], Threat],
    training: Training | Fitted | None = None,
    engine: str | None = None,
    *,
    share: float | None = None,
    points: Iterable[int] | None = None,
    within: float | None = None,
    start: float = 1.0,
    most: float = np.inf,
    precision: float = 0.05,
    whole: bool | None = None,
    select: str | Selection = "last",
    given: Threat | None = None,
    parallel: str = "local",
    jobs: int | None = 1,
    hear: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Tolerance:
    """The largest doubt that certificates survive, for a share of the test points or for single `points`.

    `family`: `Family(…)`, or any function from numbers to growing threats; `start` is the first value tried, `most` the largest;
    bisection stops within `precision` of the value (or at neighbouring whole numbers). Outputs of a regression are certified
    while they are known to `within` of the clean model's (default: its mean absolute error on the validation rows). With
    `select="best-validation"`, the number of steps is chosen once, for the threat `given` (default: that of the first value),
    and is the same for every value. `options` go to `certify_training`, or, where `training` is a `Fitted` model (`network`:
    None), to `certify_fit`; there a value whose start plain bounds do not prove certifies nothing, unless `thorough=True`.

    >>> from mibp_cert import Family, LInf, Network, Training, tolerance, two_moons
    >>> found = tolerance(Network.mlp([2, 2]), two_moons(0), Family("amount", LInf(0.01)), Training(epochs=2), share=0.5)
    >>> found.largest < found.smallest
    True
    """
    if share is None and points is None:
        share = 0.9
    wanted = [] if points is None else [int(p) for p in points]
    check(data, family, share=share, points=wanted, within=within, start=start, most=most, precision=precision)
    counted = bool(getattr(family, "whole", False)) if whole is None else whole
    most = min(most, len(data.train)) if isinstance(family, Family) and counted else most
    made, under = training or Training(), family(min(start, most)) if given is None else given
    if isinstance(made, Fitted):
        # Most values tried are too large, and would be tried by every slow way.
        options = {"thorough": False, **options}
    decided = decide(network, data, (under, family(0.0)), made, (engine,), select, hear=hear, **options)
    certify = partial(certify_model, network, data, training=decided.training, engine=engine)
    asked = partial(_try, partial(certify, **options, **decided.options), data, made, options)

    def once(value: float) -> Tried | Outputs:
        hear(f"value {value:.4g}")
        return spread(asked, [family(value)], parallel, jobs)[0]

    first = once(0.0)
    if isinstance(first, Tried) and data.train.task is Task.NUMBERS:
        raise Diverged(f"The bounds diverge where nothing is wrong, too: {LESS[isinstance(made, Fitted)]}.")
    if isinstance(first, Outputs) and within is None:
        within = first.error

    def tried(found: Tried | Outputs) -> Tried:
        if isinstance(found, Tried):
            return found
        assert isinstance(first, Outputs)
        assert within is not None
        return found.tried(first.clean, within)

    search = _Search(lambda value: tried(once(value)), counted, precision, {0.0: tried(first)})
    largest = smallest = None
    attacked = bool(options.get("attacked", True))
    if share is not None:
        largest, _ = search.threshold(lambda t: float(np.mean(t.certified)) >= share, start, most)
        if largest is not None and attacked:
            _, smallest = search.threshold(lambda t: float(np.mean(~t.changed)) >= share, start, most, attacks=True)
    for point in wanted:
        search.settle(point, start, most, attacked=attacked)
    certified, broken = search.ends()
    certified, values = np.where(np.isfinite(certified), certified, np.nan), tuple(sorted(search.tried))
    needed = first.needed(share) if isinstance(first, Outputs) and share is not None else None
    most_attacked = max((v for v, t in search.tried.items() if t.attacked), default=0.0)
    rest = most_attacked, decided, within, needed
    return Tolerance(certified, broken, share, largest, smallest, values, data.tested.index, *rest)


def check(
    data: Split,
    family: Callable[[float], Threat],
    *,
    share: float | None,
    points: Sequence[int],
    within: float | None,
    start: float,
    most: float = np.inf,
    precision: float = 0.05,
) -> None:
    """Refuse before any work."""
    if not LEAST_PRECISION <= precision < 1:
        raise UserError(f"The precision must be a number from {LEAST_PRECISION:g} to below 1, got {precision}.")
    if not most > 0:
        raise UserError(f"The largest value tried must be a number > 0, got {most}.")
    if not isinstance(data, Split) or data.test is None:
        raise UserError("Tolerance is about test points; these data have none.")
    numbers = data.train.task is Task.NUMBERS
    if share is not None and not 0 < share <= 1:
        raise UserError(f"The share of test points must be above 0 and at most 1, got {share}.")
    check_points(points, len(data.tested))
    if within is not None and not numbers:
        raise UserError("--within is how far numbers may be off; classes are certain or not: leave it out.")
    if within is not None and not (np.isfinite(within) and within > 0):
        raise UserError(f"How far outputs may be off (--within) must be a finite number > 0, got {within}.")
    if numbers and getattr(family, "vary", "") == "flips":
        raise UserError(
            "Labels are flipped where there are classes; vary the amounts of --eps or --target-eps instead."
        )
    if not (np.isfinite(start) and start > 0):
        raise UserError(f"The first value tried must be a finite number > 0, got {start}.")
    family(start).bind(data.train)


def _try(
    certify: Callable[..., CertifiedRun],
    data: Split,
    made: Training | Fitted,
    options: Mapping[str, Any],
    threat: Threat,
) -> Tried | Outputs:
    """Certify and attack, perhaps on another machine; bounds that diverge certify nothing, and a fit is attacked all the same."""
    try:
        run = certify(threat=threat)
    except Diverged:
        nothing = np.zeros(len(data.tested), dtype=bool)
        if not isinstance(made, Fitted) or not options.get("attacked", True):
            return Tried(nothing, nothing, attacked=False)
        network, theta, found = attack_fit(data, threat, made, **{k: v for k, v in options.items() if k in ATTACKED})
        if data.train.task is Task.CLASSES:
            return Tried(nothing, (found.classes != nominal_classes(network, theta, data.tested.x)).any(axis=0))
        clean, error = _clean(data, network, theta)
        return Outputs(clean, Interval(np.full_like(clean, -np.inf), np.full_like(clean, np.inf)), found.outputs, error)
    if run.test is not None:
        return Tried(run.test.certified, changed_by_attack(run))
    assert run.test_ranges is not None
    clean, error = _clean(run.data, run.network, run.theta)
    return Outputs(clean, run.test_ranges.outputs, None if run.attack is None else run.attack.outputs, error)


def _clean(data: Split, network: Network, theta: Array) -> tuple[Array, float]:
    """Outputs of the clean model for the test points, and its mean absolute error on the validation rows, in the user's units."""
    train, judged = data.train, data.validation or data.train
    assert judged.targets is not None
    clean, others = (train.in_units(nominal_outputs(network, theta, part.x)) for part in (data.tested, judged))
    return clean, float(np.abs(others - train.in_units(judged.targets)).mean())
