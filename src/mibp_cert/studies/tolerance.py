"""How wrong may the data be? The largest doubt for which a certificate was found, and the smallest that an attack used.

A family of threats `T(v)` grows with `v`: `T(u) ⊆ T(v)` for `u ≤ v`. A certificate for `T(v)` then holds for every smaller
value, and an attack within `T(v)` works for every larger one. So for each test point there are two numbers,
`certified ≤ true ≤ broken`, and bisection brings them together: each run at one `v` tells about all points at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import and_
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mibp_cert.card import Figure, card
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.data import Split, Task
from mibp_cert.doors import certify_model
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import Diverged, SoundnessError, UserError
from mibp_cert.fitted import Fitted
from mibp_cert.nets import Network, Training
from mibp_cert.parallel import spread
from mibp_cert.studies.compare import changed_by_attack
from mibp_cert.threats import All, Budget, Catalogued, LabelFlips, Nothing, Threat

VARIED = ("amount", "rows", "flips")
DOUBLINGS = 30


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

    def threshold(self, holds: Callable[[Tried], bool], start: float, most: float) -> tuple[float | None, float | None]:
        """Largest value tried at which `holds`, and the smallest at which it does not, close together; `holds` falls with it."""
        if not holds(self.at(0.0)):
            return None, 0.0
        for doubled in range(DOUBLINGS):
            value = min(start * 2.0**doubled, most)
            if not holds(self.at(value)) or value >= most:
                break
        while True:
            good = max(v for v, t in self.tried.items() if holds(t))
            bad = min((v for v, t in self.tried.items() if v > good and not holds(t)), default=None)
            if bad is None or bad - good <= (1 if self.whole else self.precision * bad):
                return good, bad
            middle = 0.5 * (good + bad) if good > 0 or self.whole else bad / 8.0
            self.at(float(round(middle)) if self.whole else middle)

    def settle(self, point: int, start: float, most: float) -> None:
        """Bring both ends of one point together."""
        self.threshold(lambda t: bool(t.certified[point]), start, most)
        self.threshold(lambda t: not t.changed[point], start, most)


def tolerance(
    network: Network | None,
    data: Split,
    family: Callable[[float], Threat],
    training: Training | Fitted | None = None,
    engine: str | None = None,
    *,
    share: float | None = None,
    points: Iterable[int] | None = None,
    start: float = 1.0,
    most: float = np.inf,
    precision: float = 0.05,
    whole: bool | None = None,
    parallel: str = "local",
    jobs: int | None = 1,
    hear: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Tolerance:
    """The largest doubt that certificates survive, for a share of the test points or for single `points`.

    `family`: `Family(…)`, or any function from numbers to growing threats; `start` is the first value tried, `most` the largest;
    bisection stops within `precision` of the value (or at neighbouring whole numbers). `options` go to `certify_training`, or,
    where `training` is a `Fitted` model (`network`: None), to `certify_fit`.

    >>> from mibp_cert import Family, LInf, Network, Training, tolerance, two_moons
    >>> found = tolerance(Network.mlp([2, 2]), two_moons(0), Family("amount", LInf(0.01)), Training(epochs=2), share=0.5)
    >>> found.largest < found.smallest
    True
    """
    if not isinstance(data, Split) or data.test is None or data.train.task is Task.NUMBERS:
        raise UserError("Tolerance is about the classes of test points; these data have none.")
    if share is None and points is None:
        share = 0.9
    if share is not None and not 0 < share <= 1:
        raise UserError(f"The share of test points must be above 0 and at most 1, got {share}.")
    wanted = [] if points is None else [int(p) for p in points]
    if any(not 0 <= p < len(data.tested) for p in wanted):
        raise UserError(f"Test points are numbered from 0 to {len(data.tested) - 1}; got {wanted}.")
    if "select" in options:
        raise UserError("The training must be the same for every value; leave the epoch at the last one.")
    counted = bool(getattr(family, "whole", False)) if whole is None else whole
    most = min(most, len(data.train)) if isinstance(family, Family) and counted else most
    certify = partial(_certify, network, data, training or Training(), engine, options)

    def run(value: float) -> Tried:
        hear(f"value {value:.4g}")
        return spread(partial(_try, certify, len(data.tested)), [family(value)], parallel, jobs)[0]

    search = _Search(run, counted, precision)
    largest = smallest = None
    if share is not None:
        largest, _ = search.threshold(lambda t: float(np.mean(t.certified)) >= share, start, most)
        if largest is not None:
            _, smallest = search.threshold(lambda t: float(np.mean(~t.changed)) >= share, start, most)
    for point in wanted:
        search.settle(point, start, most)
    certified, broken = search.ends()
    certified = np.where(np.isfinite(certified), certified, np.nan)
    return Tolerance(certified, broken, share, largest, smallest, tuple(sorted(search.tried)), data.tested.index)


def _certify(network: Any, data: Any, training: Any, engine: Any, options: Any, threat: Threat) -> CertifiedRun:
    return certify_model(network, data, threat, training, engine, **options)


def _try(certify: Callable[[Threat], CertifiedRun], points: int, threat: Threat) -> Tried:
    """Certify and attack, perhaps on another machine; bounds that diverge certify nothing."""
    try:
        run = certify(threat)
    except Diverged:
        nothing = np.zeros(points, dtype=bool)
        return Tried(nothing, nothing)
    assert run.test is not None
    return Tried(run.test.certified, changed_by_attack(run))
