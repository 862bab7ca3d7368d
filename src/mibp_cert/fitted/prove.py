"""Ranges of parameters and scores: a hypothesis, its proof, and what can be tightened after it."""

from __future__ import annotations

import numpy as np

from mibp_cert.fitted.dual import Dual, Ranges
from mibp_cert.fitted.losses import ScoreLoss
from mibp_cert.fitted.table import Array, Table


def minimiser(table: Table, loss: ScoreLoss, start: Array | None = None) -> Array:
    rows, alpha = table.rows, table.alpha
    theta = np.zeros(rows.x.shape[1]) if start is None else start

    def value(t: Array) -> float:
        return float((rows.w * loss.value(rows.y, rows.x @ t)).sum() + 0.5 * (alpha * t * t).sum())

    for _ in range(200):
        s = rows.x @ theta
        grad = rows.x.T @ (rows.w * loss.psi(rows.y, s)) + alpha * theta
        m = (rows.x * (rows.w * loss.slope(rows.y, s))[:, None]).T @ rows.x + np.diag(alpha + 1e-12)
        step = np.linalg.lstsq(m, grad, rcond=None)[0]
        t, now = 1.0, value(theta)
        while value(theta - t * step) > now - 1e-4 * t * float(grad @ step) and t > 1e-10:
            t *= 0.5
        theta = theta - t * step
        if np.abs(step).max() < 1e-14 * (1 + np.abs(theta).max()):
            break
    return theta


def residual(table: Table, loss: ScoreLoss, theta: Array) -> Array:
    rows = table.rows
    s = rows.x @ theta
    psi = loss.psi(rows.y, s)
    grad = rows.x.T @ (rows.w * psi) + table.alpha * theta
    eps = np.finfo(float).eps
    size_s = np.abs(rows.x) @ np.abs(theta)
    slip = loss.size(rows.y, np.abs(s)) * 16 * eps + 2.0 * (rows.x.shape[1] + 4) * eps * size_s
    err = np.abs(rows.x).T @ (rows.w * slip) + (len(rows) + 8) * eps * (np.abs(rows.x).T @ (rows.w * np.abs(psi)) + np.abs(table.alpha * theta))
    return np.abs(grad) + 2 * err


def first_order(table: Table, loss: ScoreLoss, c: Array, tau: Array) -> tuple[Array, Array, tuple]:
    s = table.rows.x @ c
    by = tuple((b.by.x @ c, b.by.x @ c) for b in table.budgets)
    point = Ranges(c, c, s, s, by)
    return all_bounds(table, loss, point, tau, rounds=1)


def all_bounds(table: Table, loss: ScoreLoss, z: Ranges, tau: Array, rounds: int = 2) -> Ranges:
    d = Dual(table, loss, z, tau, rounds)
    rows = table.rows
    n, p = rows.x.shape
    eye = np.eye(p)
    none = np.full(p, -1, dtype=np.intp)
    index = np.arange(n, dtype=np.intp)
    queries = [eye, -eye, rows.x, -rows.x]
    owns = [none, none, index, index]
    for b in table.budgets:
        queries += [b.by.x, -b.by.x]
        owns += [np.full(len(b.by), -1, dtype=np.intp)] * 2
    # own noise of a lower score: -(x+d)·θ
    up = []
    for a, o, sign in zip(queries, owns, [1, -1, 1, -1] + [1, -1] * len(table.budgets), strict=True):
        up.append(d.upper(a, o, sign))
    reach = np.maximum(np.abs(z.low), np.abs(z.high))
    by = []
    for k, b in enumerate(table.budgets):
        extra = b.by.reach_of(reach[None,:])[0]
        by.append((-up[5 + 2 * k] - extra, up[4 + 2 * k] + extra))
    return Ranges(-up[1], up[0], -up[3], up[2], tuple(by))


def inside(new: Ranges, old: Ranges) -> bool:
    pairs = [(new.low, old.low, new.high, old.high), (new.s_low, old.s_low, new.s_high, old.s_high)]
    pairs += [(a[0], b[0], a[1], b[1]) for a, b in zip(new.by, old.by, strict=True)]
    return all(bool((l > L).all() and (h < H).all()) for l, L, h, H in pairs)


def flat(z: Ranges) -> tuple[Array, Array]:
    return (
        np.concatenate([z.low, z.s_low, *(b[0] for b in z.by)]),
        np.concatenate([z.high, z.s_high, *(b[1] for b in z.by)]),
    )


def unflat(low: Array, high: Array, like: Ranges) -> Ranges:
    sizes = [len(like.low), len(like.s_low), *(len(b[0]) for b in like.by)]
    cuts = np.cumsum(sizes)[:-1]
    l, h = np.split(low, cuts), np.split(high, cuts)
    return Ranges(l[0], h[0], l[1], h[1], tuple(zip(l[2:], h[2:], strict=True)))


def prove(table: Table, loss: ScoreLoss, c: Array, tau: Array, factor: float = 1.5, attempts: int = 14, log=None) -> Ranges | None:
    first = first_order(table, loss, c, tau)
    lo1, hi1 = flat(first)
    s = [c, table.rows.x @ c, *(b.by.x @ c for b in table.budgets)]
    centre = np.concatenate(s)
    down, up = np.maximum(centre - lo1, 1e-9), np.maximum(hi1 - centre, 1e-9)
    low, high = centre - factor * down, centre + factor * up
    for k in range(attempts):
        z = unflat(low, high, first)
        new = all_bounds(table, loss, z, tau)
        nl, nh = flat(new)
        bad_l, bad_h = nl <= low, nh >= high
        if log:
            log(f"round {k}: {bad_l.sum() + bad_h.sum()} of {2 * len(low)} ends fail, worst ratio {max(((centre-nl)/(centre-low)).max(), ((nh-centre)/(high-centre)).max()):.3f}")
        if not (bad_l.any() or bad_h.any()):
            return z
        if not (np.isfinite(nl).all() and np.isfinite(nh).all()):
            return None
        low = np.where(bad_l, centre - 1.1 * (centre - nl), low)
        high = np.where(bad_h, centre + 1.1 * (nh - centre), high)
    return None


def tighten(table, loss, z, tau, rounds=3):
    for _ in range(rounds):
        new = all_bounds(table, loss, z, tau)
        (l, h), (nl, nh) = flat(z), flat(new)
        z = unflat(np.maximum(l, nl), np.minimum(h, nh), z)
    return z
