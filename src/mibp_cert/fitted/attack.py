"""Which way to push the data so that a fitted model moves: the adjoint at a dataset and its minimiser.

At the minimum `∇L_D(θ) = 0`, so a small change of the data moves `a·θ` by `u·δ(∇L)`, `u = −H⁻¹a`, with `H` the Hessian there:

    δ(a·θ) = Σ_i w_i { Σ_j δd_ij (ψ_i u_j + ψ'_i ω_i θ_j) + δy_i ω_i ∂ψ/∂y } + δw_i ψ_i ω_i,        ω_i = u·x_i.

A label is one of several, each with its own `w_i ψ_i ω_i`; a row that goes takes its one away, a row that comes brings one.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.fitted.model import FitStep
from mibp_cert.fitted.table import Array
from mibp_cert.sets import Noise


def adjoint(step: FitStep, noise: Noise, a: Array, x: Array, y: Array, theta: Array) -> Array:
    """Coefficients of the symbols of the noise in `a·θ`, to first order: for queries `a` (queries × P) at datasets `x`, `y` with
    minimisers `theta`, one for each query."""
    loss, alpha = step.loss, step.model.alpha(step.head.inputs)
    design, target, weight = step.design(theta, x), y[..., step.column], step.counts(y)
    whole, theta = theta, theta[..., -len(alpha) :]
    s = np.einsum("qnp,qp->qn", design, theta)
    slope, psi = loss.slope(target, s), loss.psi(target, s)
    hessian = np.swapaxes(design * (weight * slope)[..., None], 1, 2) @ design + np.diag(np.maximum(alpha, 1e-9))
    u = -np.linalg.solve(hessian, a[..., None])[..., 0]
    omega = np.einsum("qnp,qp->qn", design, u)
    d = step.head.inputs
    moved = psi[..., None] * u[:, None, :d] + (slope * omega)[..., None] * theta[:, None, :d]
    # What an absent row would do if it were present: the data of one decide whether it should be.
    count = step.counts(y, whole=True)
    cells = step.pull(whole, x, count[..., None] * moved)
    entries, labels = np.zeros(y.shape), step.weights.shape[1]
    if labels > 1:
        for label in range(labels):
            other = loss.psi(np.full_like(target, float(label == step.column)), s)
            entries[..., label] = step.weights[:, label] * omega * other
    else:
        entries[..., 0] = count * omega * (loss.psi(target + 1e-6, s) - psi) * 1e6
    if y.shape[-1] > labels:
        entries[..., labels] = count * psi * omega
    flat = len(a), -1
    return np.asarray((noise.x_linear.T @ cells.reshape(flat).T).T + (noise.y_linear.T @ entries.reshape(flat).T).T)
