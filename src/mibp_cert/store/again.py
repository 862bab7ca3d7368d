"""The steps of a stored run, taken again: by their engine, each from the stored set before it.

Where a set is not there, the one that was reached here takes its place, so that no step goes unasked. Of every step are made
again: its set, the clean model after it, and its record (radii, gaps, counts of programs, figures of validation rows) but for
seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mibp_cert.certify.loop import Callbacks, Loop
from mibp_cert.certify.request import Request
from mibp_cert.engines import Box, Engine, ParameterSet
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import SoundnessError
from mibp_cert.fitted import Fitted
from mibp_cert.store.archive import record_json
from mibp_cert.store.contents import Contents
from mibp_cert.store.kernel import FIGURES, HELPED, LAST_BITS, SEARCHED, apart, changed, kernel


@dataclass
class Again:
    """What came of it."""

    taken: int = 0
    wrong: list[str] = field(default_factory=list)
    near: dict[int, float] = field(default_factory=dict)
    """Steps whose last bits differ, as they may where another kernel computes: by how much of the radius."""
    unlike: list[int] = field(default_factory=list)
    """Steps that differ by more, and may: last bits decide where a search or a solver ends."""
    instead: dict[int, dict[str, Array]] = field(default_factory=dict)
    """Of fits that differ so: the set that was proven here, from which the answers must follow, too."""

    @property
    def words(self) -> str:
        if self.wrong:
            more = "" if len(self.wrong) <= 5 else f"; and {len(self.wrong) - 5} more"
            return "; ".join(self.wrong[:5]) + more
        if self.unlike:
            listed = ", ".join(map(str, self.unlike[:9]))
            return f"other last bits lead the search to other bounds after step(s) {listed}"
        if self.near:
            what = "other ends of the search" if self.instead else "other last bits"
            return f"{what} after {len(self.near)} of them, by at most {max(self.near.values()):.1g} of the radius"
        return "the same bits"


def take_again(request: Request, engine: Engine, kept: Contents, hear: Callable[[str], None]) -> Again:
    """Every step that has a record, again."""
    plan, members, found = request.unrolled, request.members, Again()
    loop, (x, y) = Loop(request, engine, Callbacks(), None), members.reference
    now: ParameterSet = Box.point(plan.begin)
    trained, count = plan.begin, 0
    for number, (record, step, size) in enumerate(zip(kept.records, plan.steps, plan.sizes, strict=False), start=1):
        hear(f"step {number} again")
        count += size
        may_stop = count % plan.per_epoch == 0 or count == plan.total or request.select.per_step
        after, report = engine.advance(now, step, members)
        trained, arrays = step.train(trained, x[step.rows], y[step.rows]), kept.arrays.get(number)
        try:
            mine = loop.record(after, after.first(loop.parameters), trained, count, report, record.elapsed, may_stop)
        except SoundnessError as error:
            found.wrong.append(f"step {number}: {error}")
            break
        found.taken += 1
        far = 0.0 if arrays is None or mine.diverged else apart({**after.arrays(), "trained": trained}, arrays)
        loosely = kept.kernels[number - 1] != kernel()
        now_said, said = record_json(mine), record_json(record)
        del now_said["report"]["seconds"], said["report"]["seconds"]
        fit = isinstance(request.training, Fitted)
        if loosely and far > LAST_BITS and (engine.solves or (fit and np.isfinite(far))):
            if fit and far <= HELPED and _box(after.arrays(), arrays) <= SEARCHED:
                found.near[number] = far
                found.instead[number] = {**after.arrays(), "trained": trained}
            else:
                found.unlike.append(number)
        elif far > (LAST_BITS if loosely else 0.0):
            found.wrong.append(f"other bounds after step {number}{_where(after.arrays(), trained, arrays)}")
        elif far:
            found.near[number] = far
        most = SEARCHED if number in found.instead else FIGURES if loosely else 0.0
        if number not in found.unlike and (keys := changed(now_said, said, most)):
            found.wrong.append(f"the record of step {number} says something else of {', '.join(keys[:4])}")
        if mine.diverged or record.diverged:
            break
        if arrays is not None and np.isfinite(far):  # a set of other shapes leads nowhere
            now, trained = engine.restore(arrays, members, step), arrays["trained"]
        else:
            now = after
    return found


def _box(mine: dict[str, Array], kept: dict[str, Array] | None) -> float:
    """How far the ranges of the parameters alone are apart."""
    ends = ("lower", "upper")
    return apart({end: mine[end] for end in ends}, {end: (kept or mine)[end] for end in ends})


def _where(mine: dict[str, Array], trained: Array, kept: dict[str, Array] | None) -> str:
    """Only the clean model is another one, not what bounds it."""
    sets = {name: array for name, array in (kept or {}).items() if name != "trained"}
    alike = sets.keys() == mine.keys() and all(np.array_equal(mine[name], sets[name]) for name in sets)
    return " (of the clean model alone)" if alike else ""
