"""The minimiser of the data as handed in, and what it fails to be one by.

`L(θ) = Σ_i w_i ℓ(y_i, x_i·θ) + ½ Σ_j α_j θ_j²` is minimised by damped Newton steps. A computed `c` is not the minimiser; it exactly minimises
`L(θ) − v·θ` with `v = ∇L(c)`. `tilt` encloses `|v_j|`: the bounds of `fitted.dual` hold for every such tilt, hence for the true minimiser (`v = 0`), for `c`, and for
any optimiser that stops at a gradient no larger than that.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.errors import UserError
from mibp_cert.fitted.losses import EPS, ScoreLoss
from mibp_cert.fitted.table import Array, Rows

STEPS = 200


def minimise(rows: Rows, alpha: Array, loss: ScoreLoss, start: Array | None = None) -> Array:
    """The minimiser for rows without noise, to about the last digit."""
    theta = np.zeros(len(alpha)) if start is None else np.array(start)

    def value(at: Array) -> float:
        return float(rows.w @ loss.value(rows.y, rows.x @ at) + 0.5 * (alpha * at) @ at)

    for _ in range(STEPS):
        s = rows.x @ theta
        gradient = rows.x.T @ (rows.w * loss.psi(rows.y, s)) + alpha * theta
        curvature = (rows.x * (rows.w * loss.slope(rows.y, s))[:, None]).T @ rows.x + np.diag(alpha)
        # A flat direction (all rows beyond a kink) is followed as far as a little curvature lets it.
        curvature[np.diag_indices_from(curvature)] += 1e-10 * max(float(np.trace(curvature)), 1e-300)
        step = np.linalg.solve(curvature, gradient)
        share, now, fall = 1.0, value(theta), float(gradient @ step)
        while share > 1e-12 and value(theta - share * step) > now - 1e-4 * share * fall:
            share *= 0.5
        theta = theta - share * step
        if np.abs(share * step).max() <= 4.0 * EPS * np.abs(theta).max(initial=1e-300) or fall <= 0:
            break
    if not np.isfinite(theta).all():
        raise UserError("The model has no finite minimum on these data: use a smaller C (a larger alpha), or fewer columns.")
    return theta


def tilt(rows: Rows, alpha: Array, loss: ScoreLoss, c: Array) -> Array:
    """Upper bounds of `|∂_j L(c)|`, with all that was rounded on the way."""
    n, p = rows.x.shape
    s, size = rows.x @ c, np.abs(rows.x) @ np.abs(c)
    psi = loss.psi(rows.y, s)
    slip = 16.0 * EPS * loss.size(rows.y, np.abs(s)) + loss.steepest * 2.0 * (p + 2) * EPS * size
    gradient = rows.x.T @ (rows.w * psi) + alpha * c
    whole = np.abs(rows.x).T @ (rows.w * np.abs(psi)) + np.abs(alpha * c)
    return np.asarray(np.abs(gradient) + np.abs(rows.x).T @ (rows.w * slip) * 2.0 + 4.0 * (n + 4) * EPS * whole)
