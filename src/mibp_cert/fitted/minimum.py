"""Minimisers, and what a computed one fails to be one by.

`L(θ) = Σ_i w_i ℓ(y_i, x_i·θ) + ½ Σ_j α_j θ_j²` is minimised by damped Newton steps, for many datasets at once. A computed `c`
is not the minimiser; it exactly minimises `L(θ) − v·θ` with `v = ∇L(c)`. `tilt` encloses `|v_j|`: the bounds of `fitted.dual`
hold for every such tilt, hence for the true minimiser (`v = 0`), for `c`, and for any optimiser that stops at a gradient no
larger than that.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.errors import UserError
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.table import Array

STEPS = 200
MORE = 1000
"""Steps where kinks are far away."""
LEAST = 1e-3
"""Fraction of a step below which the next one is taken with more curvature: each row's at least this share of that of a parabola
above its loss."""
SHARES = 0.5 ** np.arange(40)
"""Fractions of a Newton step, tried in turn."""
NEAR = 1e-9
"""Steps smaller than this, relative to the parameters, shrink to nothing at once unless rounding is all that moves them."""


def minimise(x: Array, y: Array, w: Array, alpha: Array, loss: ScoreLoss, start: Array | None = None) -> Array:
    """Minimisers for datasets `x` (… × rows × P) and `y` (… × rows), to about the last digit; NaN where there is none."""
    theta = np.zeros((*x.shape[:-2], len(alpha))) if start is None else np.array(start, dtype=np.float64)
    least, last = np.zeros(theta.shape[:-1]), np.full(theta.shape[:-1], np.inf)
    done: Array = np.zeros(theta.shape[:-1], dtype=bool)
    with np.errstate(all="ignore"):
        for number in range(MORE):
            s = _scores(x, theta)
            gradient = np.einsum("...np,...n->...p", x, w * loss.psi(y, s)) + alpha * theta
            bent = (w * np.maximum(loss.slope(y, s), least[..., None] * loss.bowl(y, s)))[..., None] * x
            curvature = np.swapaxes(bent, -1, -2) @ x + np.diag(alpha)
            # Columns are scaled alike. A flat direction (all rows beyond a kink) is followed as far as little curvature lets it.
            size = np.diagonal(curvature, axis1=-2, axis2=-1)
            unit = np.sqrt(np.where(size > 0, size, 1e-12 * size.max(axis=-1, keepdims=True) + 1e-300))
            scaled = curvature / (unit[..., :, None] * unit[..., None, :]) + 1e-12 * np.eye(len(alpha))
            step = np.linalg.solve(scaled, (gradient / unit)[..., None])[..., 0] / unit
            share = _share(x, y, w, alpha, loss, theta, step, (gradient * step).sum(axis=-1))
            change = share[..., None] * step
            if (share == 0).any():
                # Beyond a kink there is no curvature to go by. With the steepest one everywhere, a step never overshoots.
                most = np.swapaxes((w * loss.steepest)[..., None] * x, -1, -2) @ x + np.diag(alpha)
                sure = np.linalg.solve(most + 1e-12 * _trace(most) * np.eye(len(alpha)), gradient[..., None])[..., 0]
                far = np.abs(sure).max(axis=-1) > 1e-9 * (1e-9 + np.abs(theta).max(axis=-1))
                change = np.where(((share == 0) & far)[..., None], sure, change)
            theta = theta - change
            # Rows beyond a kink have no curvature: where a step led out of sight, the next one gives them some.
            lost = (share < LEAST) & (least == 0.0)
            moved = np.abs(change).max(axis=-1)
            done = np.logical_or(done, ~lost & settled(moved, last, theta))
            if done.all():
                break
            if number >= STEPS and not (lost | (least > 0.0)).any():
                break
            least, last = np.where(lost, LEAST, 0.0), moved
    return theta


def settled(moved: Array, last: Array, theta: Array) -> Array:
    """Where a step moved by no more than rounding: by a few ε, or near the minimum by no less than half of what the last did."""
    size = np.abs(theta).max(axis=-1)
    return np.asarray((moved <= 4.0 * EPS * size) | ((moved <= NEAR * size) & (2.0 * moved >= last)))


def _trace(m: Array) -> Array:
    return np.asarray(np.trace(m, axis1=-2, axis2=-1)[..., None, None])


def _scores(x: Array, theta: Array) -> Array:
    return np.asarray(np.einsum("...np,...p->...n", x, theta))


def _gathered(x: Array, v: Array) -> Array:
    return np.asarray(np.einsum("...np,...n->...p", x, v))


def _share(
    x: Array, y: Array, w: Array, alpha: Array, loss: ScoreLoss, theta: Array, step: Array, fall: Array
) -> Array:
    """How much of each step to take: as much as lowers the loss enough."""
    s, ds = _scores(x, theta), _scores(x, step)

    def value(share: Array | float) -> Array:
        at = theta - np.asarray(share)[..., None] * step
        losses = w * loss.value(y, s - np.asarray(share)[..., None] * ds)
        return np.asarray(losses.sum(axis=-1) + 0.5 * (alpha * at * at).sum(axis=-1))

    now = value(0.0)
    slack = 8.0 * EPS * np.abs(now)  # at the minimum, rounding decides
    share, open_ = np.zeros(fall.shape), np.ones(fall.shape, dtype=bool)
    for fraction in SHARES:
        good = open_ & (value(fraction) <= now - 1e-4 * fraction * fall + slack)
        share, open_ = np.where(good, fraction, share), open_ & ~good
        if not open_.any():
            break
    return share


def tilt(x: Array, y: Array, w: Array, alpha: Array, loss: ScoreLoss, c: Array) -> Array:
    """Upper bounds of `|∂_j L(c)|`, with all that was rounded on the way; for many datasets at once."""
    if not np.isfinite(c).all():
        raise UserError(
            "The model has no finite minimum on these data: use a smaller C (a larger alpha), or fewer columns."
        )
    n, p = x.shape[-2:]
    s, size = _scores(x, c), _scores(np.abs(x), np.abs(c))
    psi = loss.psi(y, s)
    slip = 16.0 * EPS * loss.size(y, np.abs(s)) + loss.steepest * 2.0 * (p + 2) * EPS * size
    gradient = _gathered(x, w * psi) + alpha * c
    whole = _gathered(np.abs(x), w * (np.abs(psi) + slip)) + np.abs(alpha * c)
    return np.asarray(np.abs(gradient) + 2.0 * _gathered(np.abs(x), w * slip) + 4.0 * (n + 4) * EPS * whole)
