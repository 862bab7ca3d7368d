"""What replacing a row costs where more is known than the box of the parameters.

`U(θ) = c + λ x̂·θ` is the line summed for a row, `V(θ) = c' + λ' x̂'·θ` that of its alternative (`fitted.dual`), where `x̂ = x + d`
and `x̂' = x' + d'` with noise `|d·θ| ≤ ρ`, `|d'·θ| ≤ ρ'`. Over datasets in which the row is dirty, the alternative's score
`(x' + d'')·θ`, with `d''` its true noise, lies in `[l, h]`; so `x'·θ ∈ [l − ρ', h + ρ']`.

- Where `x = x'`: `V − U ≤ c' − c + max (λ' − λ)·[l − ρ', h + ρ'] + |λ'|ρ' + |λ|ρ`.
- Where the row may be gone: `−U ≤ −c + max −λ·[l − 2ρ', h + 2ρ']`, or what the box says. This assumes that the row's relaxed
  point `x̂` lies in the alternative's enclosure, `|(x̂ − x')·θ| ≤ ρ'`; with `|d''·θ| ≤ ρ'`, `x̂·θ` is within `2ρ'` of a score in
  `[l, h]`. It holds today because a budget that lets rows go does nothing else (budgets are not nested): its alternatives are
  the rows themselves with their own noise (`fitted.presence`), behind features as in front of them, and no noise of several
  rows reaches them (`fitted.table`). A budget that moves *and* removes rows would need another bound behind features, where
  the enclosure of more noise need not hold that of less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mibp_cert.fitted.table import Array, Budget, Rows

if TYPE_CHECKING:
    from mibp_cert.fitted.known import Known, Lines

ROOM = 1.0 + 1e-12
"""For what sums of a few terms round."""


def by_score(
    budget: Budget, known: Known, rows: Rows, of: tuple[Lines, Array], const: Array, gain: Array, size: Array
) -> tuple[Array, Array]:
    """The gain where row and alternative have one middle, and the sum of absolute values behind it; `of`: the lines of all rows,
    and `λ'`; `const`: `c' − c`; `gain`: what the box says."""
    i, reach = np.maximum(budget.rows, 0), known.ranges.reach[None, :]
    same = (budget.rows >= 0) & (budget.by.x == rows.x[i]).all(axis=1)
    if not same.any():
        return gain, size
    old, new = of[0].lam[:, i], of[1]
    mine, other = budget.by.reach_of(reach)[0] * ROOM, rows.reach_of(reach)[0][i] * ROOM
    noise = np.abs(new) * mine + np.abs(old) * other
    ends = (new - old) * (known.low - mine), (new - old) * (known.high + mine)
    near = const + np.maximum(*ends) + noise
    more = (np.abs(new) + np.abs(old)) * (known.far + mine) + noise
    return np.where(same, np.minimum(gain, near), gain), size + np.where(same, more, 0.0)


def or_gone(budget: Budget, known: Known, lines: Lines, gain: Array, size: Array) -> tuple[Array, Array]:
    """The gain where a row may also be gone, and the sum of absolute values behind it."""
    if budget.gone is None or not budget.gone.any():
        return gain, size
    z, lam = known.ranges, lines.lam[:, np.maximum(budget.rows, 0)]
    more = 2.0 * budget.by.reach_of(z.reach[None, :])[0] * ROOM
    ends = -lam * (known.low - more), -lam * (known.high + more)
    far = np.abs(lam) * (known.far + more)
    return with_gone(budget, lines, (z.middle, z.radius, z.reach), (np.maximum(*ends), far), gain, size)


def with_gone(
    budget: Budget, lines: Lines, box: tuple[Array, ...], near: tuple[Array, Array], gain: Array, size: Array
) -> tuple[Array, Array]:
    """The same; `box`: middle, radius and reach of the parameters, `near`: the largest `−λ·s` over the scores of dirty rows, and
    its size."""
    if budget.gone is None or not budget.gone.any():
        return gain, size
    i, (middle, radius, reach) = np.maximum(budget.rows, 0), box
    const, coef = lines.const[:, i], lines.coef[:, i]
    away = np.minimum(near[0], np.abs(coef) @ radius - coef @ middle) - const
    may = budget.gone & (budget.rows >= 0)
    whole = lines.size[:, i] + np.abs(coef) @ reach + near[1]
    return np.where(may, np.maximum(gain, away), gain), size + np.where(may, whole, 0.0)
