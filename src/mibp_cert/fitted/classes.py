"""Several classes: how their parameters are laid out, softmax, and minimisers of its loss.

A model of `K` classes has the parameters `Θ` (K × P), class `k` the scores `z_ik = x_i·θ_k`. The network lays them out as
weights (K × width), then K biases, if there are any. With `p = softmax(z)`, labels `y_i` (one-hot, or between: `Σ_k y_ik = 1`),

    L(Θ) = Σ_i w_i {log Σ_k exp z_ik − y_i·z_i} + ½ Σ_kj α_j θ_kj² + ½γ (Σ_k b_k)²,        ψ_k = ∂ℓ/∂z_k = p_k − y_k.

**The pin.** `γ > 0` where intercepts `b_k` have no penalty, else `γ = 0`. Without it `L` does not change when one constant is
added to all of them (softmax does not), so its minimisers come in lines. `L ≥ L_{γ=0} ≥ min L_{γ=0}`, with equality exactly at
the minimisers of the unpinned loss with `Σ_k b_k = 0`, and every line holds one of these: the pin picks them, and changes
neither weights nor differences of classes. Penalised parameters have `Σ_k θ_kj = 0` at the minimum anyway: `Σ_k ψ_k = 0`, so
that `Σ_k ∂L/∂θ_kj = α_j Σ_k θ_kj`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mibp_cert.errors import UserError
from mibp_cert.fitted.losses import EPS
from mibp_cert.fitted.minimum import SHARES, STEPS, settled
from mibp_cert.fitted.table import Array

PIN = 1.0
"""`γ`, where intercepts have no penalty."""


def by_class(theta: Array, classes: int, width: int) -> Array:
    """From the network's layout (…, weights then biases) to K × P."""
    weights = theta[..., : classes * width].reshape(*theta.shape[:-1], classes, width)
    biases = theta[..., classes * width :, None]
    return weights if not biases.shape[-2] else np.concatenate([weights, biases], axis=-1)


def in_layout(theta: Array, width: int) -> Array:
    """The inverse of `by_class`."""
    flat = theta.shape[:-2]
    return np.concatenate([theta[..., :width].reshape(*flat, -1), theta[..., width:].reshape(*flat, -1)], axis=-1)


def pairs_of(classes: int) -> Array:
    """One line per pair `k < l`: 1 at `k`, −1 at `l`."""
    first, second = np.triu_indices(classes, 1)
    eye = np.eye(classes)
    return np.asarray(eye[first] - eye[second])


@dataclass(frozen=True, eq=False)
class Box:
    """The box of the parameters, by classes (K × P)."""

    middle: Array
    radius: Array
    reach: Array


def softmax(z: Array, axis: int = -1) -> Array:
    """`p`; each entry is off by a few roundings, relative to it."""
    small = np.exp(z - z.max(axis=axis, keepdims=True))
    return np.asarray(small / small.sum(axis=axis, keepdims=True))


def curvature(p: Array, w: Array, x: Array) -> Array:
    """`Σ_i w_i (diag p_i − p_i p_iᵀ) ⊗ x_i x_iᵀ` (… × KP × KP), for `p` (… × K × rows) and `x` (… × rows × P)."""
    k, size = p.shape[-2], x.shape[-1]
    across, whole = np.swapaxes(x, -1, -2), np.empty((*x.shape[:-2], k, size, k, size))
    for m in range(k):  # few classes: a product of matrices for each pair
        for o in range(m + 1):
            bent = w * p[..., m, :] * (float(m == o) - p[..., o, :])
            whole[..., m, :, o, :] = whole[..., o, :, m, :] = (across * bent[..., None, :]) @ x
    return whole.reshape(*whole.shape[:-4], k * size, k * size)


def ridge(alpha: Array, pin: float, classes: int) -> Array:
    """The curvature of penalties and pin, (KP × KP)."""
    size = len(alpha)
    last = np.zeros(size)
    last[-1] = pin
    return np.kron(np.eye(classes), np.diag(alpha)) + np.kron(np.ones((classes, classes)), np.diag(last))


def minimise_classes(x: Array, y: Array, w: Array, alpha: Array, pin: float) -> Array:
    """Minimisers (… × K × P) for datasets `x` (… × rows × P), `y` (… × rows × K), `w` (… × rows), to about the last digit, by
    damped Newton steps."""
    k, size = y.shape[-1], x.shape[-1]
    fixed = ridge(alpha, pin, k)
    theta, last = np.zeros((*x.shape[:-2], k * size)), np.full(x.shape[:-2], np.inf)
    done: Array = np.zeros(x.shape[:-2], dtype=bool)

    def scores(of: Array) -> Array:
        return np.asarray(x @ np.swapaxes(of.reshape(*of.shape[:-1], k, size), -1, -2))

    def value(of: Array, z: Array) -> Array:
        top = z.max(axis=-1)
        losses = np.log(np.exp(z - top[..., None]).sum(axis=-1)) + top - (y * z).sum(axis=-1)
        return np.asarray((w * losses).sum(axis=-1) + 0.5 * ((of @ fixed) * of).sum(axis=-1))

    with np.errstate(all="ignore"):
        for _ in range(STEPS):
            z = scores(theta)
            p = softmax(z)
            gradient = (np.swapaxes(w[..., None] * (p - y), -1, -2) @ x).reshape(theta.shape) + theta @ fixed
            bent = curvature(np.swapaxes(p, -1, -2), w, x) + fixed
            unit = np.sqrt(np.maximum(np.diagonal(bent, axis1=-2, axis2=-1), 1e-300))
            scaled = bent / (unit[..., :, None] * unit[..., None, :]) + 1e-12 * np.eye(k * size)
            step = np.linalg.solve(scaled, (gradient / unit)[..., None])[..., 0] / unit
            dz, fall, now = scores(step), (gradient * step).sum(axis=-1), value(theta, z)
            share, open_ = np.zeros(fall.shape), np.ones(fall.shape, dtype=bool)
            for fraction in SHARES:
                lower = value(theta - fraction * step, z - fraction * dz)
                good = open_ & (lower <= now - 1e-4 * fraction * fall + 8.0 * EPS * np.abs(now))
                share, open_ = np.where(good, fraction, share), open_ & ~good
                if not open_.any():
                    break
            change = share[..., None] * step
            theta = theta - change
            moved = np.abs(change).max(axis=-1)
            done = np.logical_or(done, settled(moved, last, theta))
            if done.all():
                break
            last = moved
    return np.asarray(theta.reshape(*theta.shape[:-1], k, size))


def tilt_classes(x: Array, y: Array, w: Array, alpha: Array, pin: float, c: Array) -> Array:
    """Upper bounds of `|∂L(c)/∂θ_kj|` (K × P), with all that was rounded on the way: a score is off by `2(P+2)ε|x||θ_k|`, and
    `|∂p_k/∂z_l|` adds up to at most ½ over `l`."""
    if not np.isfinite(c).all():
        raise UserError("The model has no finite minimum on these data: use a smaller C, or fewer columns.")
    n, size = x.shape
    z, far = x @ c.T, (np.abs(x) @ np.abs(c).T).max(axis=1)
    psi = softmax(z) - y
    slip = 8.0 * (len(c) + 8) * EPS * (1.0 + np.abs(y)) + (size + 2) * EPS * far[:, None]
    pinned = np.zeros_like(c)
    pinned[:, -1] = pin
    gradient = (w[:, None] * psi).T @ x + alpha * c + pinned * c.sum(axis=0)
    whole = (w[:, None] * np.abs(psi)).T @ np.abs(x) + np.abs(alpha * c) + pinned * np.abs(c).sum(axis=0)
    return np.asarray(np.abs(gradient) + 2.0 * (w[:, None] * slip).T @ np.abs(x) + 4.0 * (n + len(c) + 4) * EPS * whole)
