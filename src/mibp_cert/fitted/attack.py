"""Which way to push the data so that a fitted model moves: the adjoint at a dataset and its minimiser.

At the minimum `∇L_D(θ) = 0`, so a small change of the data moves `a·θ` by `u·δ(∇L)`, `u = −H⁻¹a`, with `H` the Hessian there:

    δ(a·θ) = Σ_i w_i { Σ_j δd_ij (ψ_i u_j + ψ'_i ω_i θ_j) + δy_i ω_i ∂ψ/∂y } + δw_i ψ_i ω_i,        ω_i = u·x_i.

A label is one of several, each with its own `w_i ψ_i ω_i`; a row that goes takes its one away, a row that comes brings one.
"""

from __future__ import annotations

import numpy as np

from mibp_cert.fitted.classes import curvature, in_layout, ridge, softmax
from mibp_cert.fitted.known import solve
from mibp_cert.fitted.model import FitStep
from mibp_cert.fitted.table import Array, Index
from mibp_cert.sets import Noise


def adjoint(step: FitStep, noise: Noise, a: Array, x: Array, y: Array, theta: Array) -> Array:
    """Coefficients of the symbols of the noise in `a·θ`, to first order: for queries `a` (queries × P) at datasets `x`, `y` with
    minimisers `theta`, one for each query."""
    if step.several and step.model.softmax:
        return _adjoint_of_softmax(step, noise, a, x, y, theta)
    if step.several:  # the classes' problems know nothing of each other: their pushes add up
        parts = enumerate(np.moveaxis(step.by_class(a), 1, 0))
        return np.asarray(sum(_adjoint(step, noise, part, x, y, theta, k) for k, part in parts))
    return _adjoint(step, noise, a, x, y, theta, step.column)


def margin_queries(step: FitStep, theta: Array, x: Array, nominal: Index) -> Array:
    """Margins of these classes as queries, as the network lays parameters out: one for each input, or for each other class."""
    points, k = step.design(theta, x), step.head.outputs
    if not step.several:
        return np.where(nominal == 1, 1.0, -1.0)[:, None] * points
    pair = np.eye(k)[nominal][:, None, :] - np.eye(k)  # inputs × others × K
    queries = (pair[..., None] * points[:, None, None, :])[np.arange(k) != nominal[:, None]]
    return in_layout(queries, step.head.inputs)


def _adjoint(step: FitStep, noise: Noise, a: Array, x: Array, y: Array, theta: Array, column: int) -> Array:
    """Of one score, whose target is in this column."""
    loss, alpha = step.loss, step.model.alpha(step.head.inputs)
    design, target, weight = step.design(theta, x), y[..., column], step.counts(y)
    whole, theta = theta, step.by_class(theta[..., -step.fitted :])[:, column if step.several else 0]
    s = np.einsum("qnp,qp->qn", design, theta)
    slope, psi = loss.slope(target, s), loss.psi(target, s)
    hessian = np.swapaxes(design * (weight * slope)[..., None], 1, 2) @ design + np.diag(np.maximum(alpha, 1e-9))
    u = -solve(hessian, a[..., None])[..., 0]
    omega = np.einsum("qnp,qp->qn", design, u)
    d = step.head.inputs
    moved = psi[..., None] * u[:, None, :d] + (slope * omega)[..., None] * theta[:, None, :d]
    # What an absent row would do if it were present: the data of one decide whether it should be.
    count = step.counts(y, whole=True)
    cells = step.pull(whole, x, count[..., None] * moved)
    entries, labels = np.zeros(y.shape), step.weights.shape[1]
    if labels > 1:
        for label in range(labels):
            other = loss.psi(np.full_like(target, float(label == column)), s)
            entries[..., label] = step.weights[:, label] * omega * other
    else:
        entries[..., 0] = count * omega * (loss.psi(target + 1e-6, s) - psi) * 1e6
    if y.shape[-1] > labels:
        entries[..., labels] = count * psi * omega
    return _of_symbols(noise, cells, entries)


def _adjoint_of_softmax(step: FitStep, noise: Noise, a: Array, x: Array, y: Array, theta: Array) -> Array:
    """`δ(a·Θ) = Σ_i w_i Σ_kj δd_ij (ψ_ik u_kj + λ_ik θ_kj) + δw_i ψ_i·ω_i`, `λ_i = J_i ω_i`; a label `l` has its own
    `w_i (ω_i·p_i − ω_il)`."""
    alpha, d = step.model.alpha(step.head.inputs), step.head.inputs
    design, of, weight = step.design(theta, x), step.by_class(theta[..., -step.fitted :]), step.counts(y)
    p = softmax(design @ of.swapaxes(1, 2))
    fixed = ridge(np.maximum(alpha, 1e-9), step.model.pin, of.shape[1])
    query, bent = step.by_class(a), curvature(p.swapaxes(1, 2), weight, design) + fixed
    u = -solve(bent, query.reshape(len(a), -1, 1)).reshape(query.shape)
    omega = design @ u.swapaxes(1, 2)
    mean = (p * omega).sum(axis=-1, keepdims=True)
    psi, count = p - y[..., : of.shape[1]], step.counts(y, whole=True)  # absent rows: as if they were present
    cells = step.pull(theta, x, count[..., None] * (psi @ u + (p * (omega - mean)) @ of)[..., :d])
    entries = np.zeros(y.shape)
    entries[..., : of.shape[1]] = step.weights * (mean - omega)
    if y.shape[-1] > of.shape[1]:
        entries[..., of.shape[1]] = count * (psi * omega).sum(axis=-1)
    return _of_symbols(noise, cells, entries)


def _of_symbols(noise: Noise, cells: Array, labels: Array) -> Array:
    """Coefficients of the symbols, from those of cells and of entries of labels."""
    flat = len(cells), -1
    return np.asarray((noise.x_linear.T @ cells.reshape(flat).T).T + (noise.y_linear.T @ labels.reshape(flat).T).T)
