"""Certificates of small tables, and what really fitted models say about the checker's bounds."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flint import ctx

from fits import attacked, start_of, step_of, table
from mibp_cert import Split
from mibp_cert.check import fitted as checker
from mibp_cert.fitted import Fitted
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.losses import SCORE_LOSSES
from mibp_cert.store.certificate import Maker, claim_of

GRID = 2.0**-60


def small(loss: str, name: str, rows: int = 8) -> Split:
    data = table(loss, rows=rows, missing="missing" in name)
    return Split("small", data, test=table(loss, rows=5, seed=3, like=data))


@dataclass(frozen=True, eq=False)
class Known:
    """Real fits on datasets of a threat, the checker's problem, and ranges that hold these fits, and little more."""

    problem: Any
    ranges: Any
    theta: Any
    scores: Any
    clean: Any
    """Members × rows: is the row clean there?"""


def known(data: Any, threat: Any, model: Fitted, samples: int = 30) -> Known:
    """Fits on sampled and attacked datasets, and the hull of what they are."""
    split = Split("known", data, test=data)
    problem, _ = checker.problem_of(claim_of(split, model, threat, None), {"grid": np.array([GRID])}, split)
    step, bound = step_of(data, model), threat.bind(data)
    x, y, theta = attacked(step, bound, samples=samples, rounds=1)
    design, weight = step.design(start_of(step), x), step.counts(y)
    scores, keep = np.einsum("mnp,mp->mn", design, theta), step.counts(bound.reference[1], whole=True) > 0
    n, p = len(data), len(problem.alpha)
    scores, design, weight = scores[:, :n][:, keep[:n]], design[:, :n][:, keep[:n]], weight[:, :n][:, keep[:n]]
    target = y[:, :n, step.column][:, keep[:n]]
    exact, rows = problem.unit.exact, problem.rows
    middle, most, (low_y, high_y) = (
        floats(rows.x, problem),
        floats(rows.r, problem),
        (floats(end, problem) for end in rows.y),
    )
    far = np.abs(theta).max(axis=0)
    for piece in rows.pieces:
        vectors = [piece.radii] if piece.vectors is None else piece.vectors
        most[piece.row, piece.cells] += np.abs(floats(np.array(vectors), problem)).max(axis=0)
    moved = (np.abs(design - middle) > most + 1e-9).any(axis=2)
    clean = ~(moved | (target < low_y - 1e-9) | (target > high_y + 1e-9) | (weight < floats(rows.w, problem) - 1e-9))
    pairs = [(theta.min(axis=0), theta.max(axis=0)), (scores.min(axis=0), scores.max(axis=0))]
    for group in problem.groups:
        at, reach = floats(group.dirty.x, problem) @ theta.T, floats(group.dirty.reach(exact(far)), problem, 2)
        pairs.append((at.min(axis=1) - reach, at.max(axis=1) + reach))
    assert p == theta.shape[1]
    ranges = [(exact(gridded(low - 1e-9)), exact(gridded(high + 1e-9))) for low, high in pairs]
    return Known(problem, ranges, theta, scores, clean)


def floats(values: Any, problem: Any, scale: int = 1) -> Any:
    flat = [int(v) / 2 ** (scale * problem.unit.k) for v in np.asarray(values, dtype=object).ravel()]
    return np.array(flat, dtype=float).reshape(np.shape(values))


def gridded(values: Any) -> Any:
    return np.round(np.asarray(values) / GRID) * GRID


def beyond(found: Known, seed: int = 0, module: Any = checker) -> float:
    """How far a fit is beyond the checker's bounds of parameters and scores, relative to the ranges; below 0: none is.

    Multipliers are good ones, since bounds by others are so wide that wrong rules do not show, or drawn ones near and far."""
    rng, problem = np.random.default_rng(seed), found.problem
    with ctx.workprec(module.BITS):
        exact, (n, p) = problem.unit.exact, problem.rows.x.shape
        under, maker = module.Under(problem, found.ranges, exact(np.zeros(p))), Maker(problem)
        pairs = [(floats(low, problem), floats(high, problem)) for low, high in found.ranges]
        z = Ranges(*pairs[0], *pairs[1], tuple(pairs[2:]))
        eye, none, x = np.eye(p), np.full(p, -1), floats(problem.rows.x, problem)
        worst = -np.inf
        for sign in (-1, 1):
            for queries, own in ((eye, none), (x, np.arange(n))):
                by = maker.multipliers(z, sign * queries, own, float(sign))
                for q, (a, i) in enumerate(zip(queries, own.tolist(), strict=True)):
                    far = rng.choice([0.0, 0.0, 0.1, 1.0])
                    drawn = {k: gridded(v[q] * (1.0 + far * rng.normal(size=v[q].shape))) for k, v in by.items()}
                    given = [exact(part)[None] for part in drawn.values()]
                    value = under.value(sign * exact(gridded(a)), given, 0, i, sign) / 2 ** (4 * problem.unit.k)
                    truth = sign * (found.theta @ gridded(a) if i < 0 else found.scores[found.clean[:, i], i])
                    if len(truth):
                        worst = max(worst, float(truth.max() - value) / (1e-9 + np.ptp(truth)))
        return worst


def above(found: Known, seed: int = 0, module: Any = checker, draws: int = 60) -> float:
    """How far a row is above its line, at most: at ends of scores, targets and parameters, with the noise at its worst."""
    rng, problem = np.random.default_rng(seed), found.problem
    with ctx.workprec(module.BITS):
        exact, rows, (n, p) = problem.unit.exact, problem.rows, problem.rows.x.shape
        box, scores = ([floats(end, problem) for end in pair] for pair in found.ranges[:2])
        far = rng.choice([0.1, 1.0])
        box, scores = ([gridded(low - far), gridded(high + far)] for low, high in (box, scores))
        made = module.Scored(problem.loss, problem.unit, rows, [exact(e) for e in scores], [exact(e) for e in box])
        x, r, w = (floats(part, problem) for part in (rows.x, rows.r, rows.w))
        targets, psi, worst = [floats(end, problem) for end in rows.y], SCORE_LOSSES[problem.loss].psi, -np.inf
        for _ in range(draws):
            u, lam = gridded(rng.normal(size=p)), gridded(rng.normal(size=n) * rng.choice([0.05, 0.5]))
            const, coef, _ = made.lines(exact(u), exact(lam), exact(np.zeros(n)))
            const, coef = floats(const, problem, 4), floats(coef, problem, 3)
            theta = np.where(rng.random(p) < 0.5, *box)
            share = rng.choice([0.0, 1.0, rng.random()], n)
            s = np.clip(scores[0] + share * (scores[1] - scores[0]), *scores)
            y = np.where(rng.random(n) < 0.5, *targets)
            if problem.loss != "squared-error":  # the best of many scores
                many = scores[0] + np.linspace(0.0, 1.0, 41)[:, None] * (scores[1] - scores[0])
                value = psi(y, many) * (x @ u) - lam * many
                s = np.where(rng.random(n) < 0.5, s, many[value.argmax(axis=0), np.arange(n)])
            t = psi(y, s)[:, None] * u + lam[:, None] * theta
            reached = (r * np.abs(t)).sum(axis=1)
            for piece in rows.pieces:
                own = t[piece.row, piece.cells]
                if piece.vectors is None:
                    reached[piece.row] += np.sqrt(((floats(piece.radii, problem) * own) ** 2).sum())
                else:
                    reached[piece.row] += (floats(piece.vectors, problem) @ own).max()
            true = w * (psi(y, s) * (x @ u) + lam * (x @ theta - s) + reached)
            line = const + coef @ theta
            worst = max(worst, float(((true - line) / (1.0 + np.abs(true))).max()))
        return worst


def mutant(old: str, new: str, module: Any = checker) -> Any:
    """The module with one piece of its text replaced."""
    text = Path(module.__file__).read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    made = types.ModuleType(f"{module.__name__}_mutant")
    made.__file__ = module.__file__
    sys.modules[made.__name__] = made
    exec(compile(text.replace(old, new), module.__file__, "exec"), made.__dict__)
    return made
