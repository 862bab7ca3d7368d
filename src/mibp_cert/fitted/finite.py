"""Threats with few members: every one is fitted, and each minimiser is enclosed on its own.

Symbols: one dataset, its loss `L`, a computed minimiser `c`, `|∂_j L(c)| ≤ τ_j` (`fitted.minimum`), scores `s_i = x_i·c`; columns
are divided by `unit_j > 0`, so that all are of one size: norms below are of `θ_j·unit_j`, `x_ij/unit_j`, `τ_j/unit_j`.

**Lemma.** Let `h_i ≤ ψ'(y_i, s)` for all `|s − s_i| ≤ ρ‖x_i‖`, and let `λ > 0` be at most the smallest eigenvalue of `diag α +
Σ_i w_i h_i x_i x_iᵀ`. If `2‖τ‖ < λρ`, then every `θ` with `|∂_j L(θ)| ≤ τ_j`, the minimiser among them, lies within `2‖τ‖/λ` of
`c`. *Proof.* For `‖θ − c‖ ≤ ρ` each `ψ` grows at least at the rate `h_i` between the two scores, so `(θ − c)·(∇L(θ) − ∇L(c)) ≥
λ‖θ − c‖²`. Let `|v_j| ≤ τ_j`. On the sphere `‖θ − c‖ = ρ`, `(θ − c)·(∇L(θ) − v) ≥ λρ² − 2‖τ‖ρ > 0`: the convex `L − v·θ` rises
outwards, and has its minimisers inside. There `∇L(θ) = v`, and the same inequality says `λ‖θ − c‖² ≤ 2‖τ‖‖θ − c‖`. ∎

`ψ'` of every loss rises to a plateau or peak and falls again: its least value over an interval is at an end.

A query is then bounded by its largest value over the members: nothing is lost but rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.minimum import minimise, tilt
from mibp_cert.fitted.model import FitStep
from mibp_cert.fitted.table import Array
from mibp_cert.sets import ThreatSet

MOST = 6_000
"""Members that are fitted one by one."""
CELLS = 20_000_000
"""Members × rows × parameters that are fitted one by one."""
AT_ONCE = 2_000_000
"""The same, at once."""


@final
@dataclass(frozen=True, eq=False)
class FiniteProblem:
    """Minimisers `theta` of all members, the clean one first, each within `radius` (in units of `unit`) of the true one."""

    theta: Array
    unit: Array
    radius: Array

    @property
    def c(self) -> Array:
        return np.asarray(self.theta[0])

    def ranges(self) -> Ranges:
        """The box around all minimisers; no scores are needed."""
        eye, none = np.eye(self.theta.shape[1]), np.zeros(0)
        z = Ranges(self.c, self.c, none, none)
        return Ranges(-self.upper(z, -eye), self.upper(z, eye), none, none)

    def upper(self, ranges: Ranges, a: Array) -> Array:
        """Upper bounds of `a·θ`: the largest value over the members."""
        del ranges
        count = self.theta.shape[1] + 8
        parts = []
        for q in range(0, len(a), max(1, AT_ONCE // self.theta.size)):
            some = a[q : q + max(1, AT_ONCE // self.theta.size)]
            slip = 4.0 * count * EPS * (np.abs(some) @ np.abs(self.theta).T)
            far = np.sqrt(np.einsum("qmp,qmp->qm", *(some[:, None, :] / self.unit,) * 2))
            parts.append((some @ self.theta.T + far * self.radius * (1.0 + count * EPS) + slip).max(axis=1))
        return np.concatenate(parts) if parts else np.zeros(0)


def finite_problem(step: FitStep, threat: ThreatSet, frozen: Array) -> FiniteProblem | None:
    """All members fitted and enclosed; None where there are too many, or where one could not be."""
    alpha = step.model.alpha(step.head.inputs)
    each = len(threat.reference[0]) * max(len(alpha), step.layout.size)
    members = threat.members(min(MOST, CELLS // max(1, each)))
    if members is None:
        return None
    whole = np.append(frozen, np.zeros(step.fitted))
    found = []
    for start in range(0, len(members), max(1, AT_ONCE // each)):
        some = members[start : start + max(1, AT_ONCE // each)]
        x = step.design(np.broadcast_to(whole, (len(some), len(whole))), np.stack([x for x, _ in some]))
        y = np.stack([y for _, y in some])
        found.append(enclosed(x, y[..., step.column], step.counts(y), alpha, step.loss))
    theta, unit, radius = (np.concatenate(part) for part in zip(*found, strict=True))
    return FiniteProblem(theta, unit, radius) if np.isfinite(radius).all() else None


def enclosed(x: Array, y: Array, w: Array, alpha: Array, loss: ScoreLoss) -> tuple[Array, Array, Array]:
    """Minimisers for datasets (… × rows × P), units of their columns, and how far they may be off; infinite where unknown."""
    c = minimise(x, y, w, alpha, loss)
    p = x.shape[-1]
    with np.errstate(all="ignore"):
        s = np.einsum("...np,...p->...n", x, c)
        tau = np.where(np.isfinite(c), tilt(x, y, w, alpha, loss, np.nan_to_num(c)), np.inf)
        size = np.einsum("...np,...np,...n->...p", x, x, w * loss.slope(y, s)) + alpha
        unit = np.sqrt(np.where(size > 0, size, 1.0))
        z, penalty = x / unit[..., None, :], alpha / (unit * unit)
        length = np.sqrt(np.einsum("...np,...np->...n", z, z)) * (1.0 + (p + 8) * EPS)
        short = 2.0 * np.sqrt(((tau / unit) ** 2).sum(axis=-1)) * (1.0 + (p + 8) * EPS)
        # Scores are themselves rounded.
        slip = 2.0 * (p + 4) * EPS * np.einsum("...np,...p->...n", np.abs(x), np.abs(c))
        rho = 4.0 * short / np.maximum(_least(z, w * loss.slope(y, s), penalty), 1e-300)
        reach = rho[..., None] * length + slip
        bent = np.minimum(loss.slope(y, s - reach), loss.slope(y, s + reach)) * (1.0 - 64.0 * EPS)
        least = _least(z, w * bent, penalty)
        proven = (least > 0) & (short < least * rho) & np.isfinite(rho)
        return c, unit, np.where(proven, short / least * (1.0 + 8.0 * EPS), np.inf)


def _least(z: Array, weight: Array, alpha: Array) -> Array:
    """At most the smallest eigenvalue of `diag α + Σ_i weight_i z_i z_iᵀ`: what was rounded is a small part of its trace."""
    n, p = z.shape[-2:]
    m = np.swapaxes(z * weight[..., None], -1, -2) @ z + alpha[..., None] * np.eye(p)
    good = np.asarray(np.isfinite(m).all(axis=(-2, -1)))
    m = np.where(good[..., None, None], m, 0.0)
    trace = np.trace(m, axis1=-2, axis2=-1)
    return np.where(good, np.linalg.eigvalsh(m)[..., 0] - 8.0 * (n + p * p + 16) * EPS * trace, -np.inf)
