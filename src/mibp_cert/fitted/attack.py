"""Which way to push the data so that a fitted model moves: the adjoint at a dataset and its minimiser.

At the minimum `∇L_D(θ) = 0`, so a small change of the data moves `a·θ` by `u·δ(∇L)`, `u = −H⁻¹a`, with `H` the Hessian there:

    δ(a·θ) = Σ_i w_i { Σ_j δd_ij (ψ_i u_j + ψ'_i ω_i θ_j) + δy_i ω_i ∂ψ/∂y },        ω_i = u·x_i.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from mibp_cert.fitted.model import FitStep
from mibp_cert.fitted.table import Array
from mibp_cert.sets import Noise


def adjoint(step: FitStep, noise: Noise, a: Array, x: Array, y: Array, theta: Array) -> Array:
    """Coefficients of the symbols of the noise in `a·θ`, to first order: for queries `a` (queries × P) at datasets `x`, `y` with
    minimisers `theta`, one for each query."""
    loss, alpha = step.loss, step.model.alpha(step.head.inputs)
    design, target = step.design(theta, x), y[..., step.column]
    whole, theta = theta, theta[..., -len(alpha) :]
    s = np.einsum("qnp,qp->qn", design, theta)
    slope, psi = loss.slope(target, s), loss.psi(target, s)
    hessian = np.swapaxes(design * slope[..., None], 1, 2) @ design + np.diag(np.maximum(alpha, 1e-9))
    u = -np.linalg.solve(hessian, a[..., None])[..., 0]
    omega = np.einsum("qnp,qp->qn", design, u)
    d = step.head.inputs
    moved = psi[..., None] * u[:, None, :d] + (slope * omega)[..., None] * theta[:, None, :d]
    cells = step.pull(whole, x, moved)
    fall = (loss.psi(target + 1e-6, s) - loss.psi(target, s)) * 1e6
    labels = sparse.csr_matrix(noise.y_linear)[step.column :: y.shape[-1]]
    return np.asarray((noise.x_linear.T @ cells.reshape(len(a), -1).T).T + (labels.T @ (omega * fall).T).T)
