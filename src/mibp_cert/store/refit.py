"""A second opinion on sets of fitted models: minimisers of single datasets, enclosed in ball arithmetic (Arb), that no bound of
the engine takes part in.

A dataset is taken exactly: the data as handed in, and points `X(ε)` of the noise that push chosen parameters furthest (along
adjoints, which need not be exact) or are random. Its minimiser is a zero of the gradient

    G(θ) = Σ_i ψ(y_i, x_i·θ) x_i + α∘θ.

Let `H(B)` be a matrix of balls that holds `Xᵀ diag(κ) X + diag α` for all slopes `κ_i` of `ψ(y_i, ·)` between scores of `B = c ±
ρ`, and `Y` any matrix. For `θ ∈ B`, `G(θ) = G(c) + H̃(θ − c)` with an `H̃` in `H(B)`, so `θ ↦ θ − Y G(θ)` maps `B` into Krawczyk's

    K = c − Y G(c) + (I − Y H(B))(B − c).

If `K` lies strictly inside of `B`, then `Y` is regular, and by Brouwer's theorem `B` holds a zero of `G`, which lies in `K`; as
all of `H(B)` is regular it is the only one, and a convex loss with such a minimiser has no other. It must lie in the stored box,
and the rows' scores in their stored ranges: those of rows that a budget leaves alone in one, those that it replaces in the
other. Only what is outside for certain is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flint
import numpy as np
from numpy.typing import NDArray

from mibp_cert.errors import UnsupportedOperation
from mibp_cert.fitted import FitStep, adjoint
from mibp_cert.fitted.losses import HuberScore
from mibp_cert.nets import Network
from mibp_cert.sets import Budgeted, ThreatSet
from mibp_cert.store.second import BITS, Array, Balls, Stored, balls, evaluate_balls, gate, points_of, rows_at

REFINED = 4
"""Newton steps with one matrix: each gains about ten digits."""
SMALL = 1e-25
"""Relative size of the box that the zero is looked for in."""
DELTA = HuberScore().delta
Index = NDArray[np.intp]
Replaced = list[tuple[Index, Index]]
"""For every budget, the rows that it replaces, and those that it may replace."""


def check(
    step: FitStep,
    threat: ThreatSet,
    arrays: Mapping[str, Array],
    rng: np.random.Generator,
    random: int,
    parameters: int,
) -> tuple[list[str], int]:
    """What is wrong with a stored set, in sentences, and for how many datasets the minimiser could be enclosed."""
    found, enclosed = list[str](), 0
    frozen = arrays["lower"][: step.layout.size - step.fitted]
    with flint.ctx.workprec(BITS):
        for number, (x, y, replaced) in enumerate(_datasets(step, threat, arrays, rng, random, parameters)):
            start = step.train(arrays["trained"], *(np.array(part, dtype=np.float64) for part in (x, y)))
            design, target = _design(step, frozen, x), y[:, step.column]
            theta = minimiser(step, design, target, start[len(frozen) :])
            if theta is None:
                continue
            enclosed += 1
            ends = zip(theta, *(arrays[end][len(frozen) :].tolist() for end in ("lower", "upper")), strict=True)
            wrong = [i for i, (t, low, high) in enumerate(ends) if t < low or t > high]
            if wrong:
                first = step.layout.describe(len(frozen) + wrong[0])
                found.append(
                    f"dataset {number}: {len(wrong)} parameter(s) of the minimiser leave the set, first {first}"
                )
            rows = _outside(_times(_matrix(design), theta), arrays, replaced)
            if rows:
                found.append(f"dataset {number}: {len(rows)} score(s) leave their ranges, first that of row {rows[0]}")
    return found, enclosed


def minimiser(step: FitStep, x: Balls, y: Balls, start: Array) -> Balls | None:
    """An enclosure of the minimiser on these data; None if none was found from there."""
    loss, alpha = step.model.loss, balls(step.model.alpha(step.head.inputs))
    if loss not in PSI:
        raise UnsupportedOperation(f"there is no second rule for the loss '{loss}'")
    if not np.isfinite(start).all():
        return None
    psi, slope = (np.frompyfunc(function, 2, 1) for function in PSI[loss])
    rows, across = _matrix(x), _matrix(x.T)

    def gradient(theta: Balls) -> Balls:
        return np.asarray(_times(across, psi(y, _times(rows, theta))) + alpha * theta)

    def curvature(theta: Balls) -> Any:
        bent = slope(y, _times(rows, theta))
        return across * _matrix(x * bent[:, None]) + _matrix(np.diag(alpha) + balls(np.zeros((len(alpha),) * 2)))

    c = balls(start)
    try:
        inverse = _matrix(balls(np.linalg.inv(np.array(curvature(c).tolist(), dtype=object).astype(float))))
    except np.linalg.LinAlgError:
        return None
    for _ in range(REFINED):
        c = _middles(c - _times(inverse, gradient(c)))
    move = _times(inverse, gradient(c))
    radius = [4.0 * float(abs(a).upper()) + SMALL * (1.0 + float(abs(b).upper())) for a, b in zip(move, c, strict=True)]
    offset = np.array([flint.arb(0, r) for r in radius], dtype=object)
    box = c + offset
    image = c - move + _times(_matrix(balls(np.eye(len(c)))) - inverse * curvature(box), offset)
    inside = all(a.is_finite() and b.contains_interior(a) for a, b in zip(image, box, strict=True))
    return np.asarray(image) if inside else None


def _datasets(
    step: FitStep,
    threat: ThreatSet,
    arrays: Mapping[str, Array],
    rng: np.random.Generator,
    random: int,
    parameters: int,
) -> Iterator[tuple[Balls, Balls, Replaced]]:
    """Features, targets and replaced rows: of the data as handed in, and at points of the noise."""
    noise, (x, y) = threat.noise(), threat.reference
    limited = [block for block in noise.blocks if isinstance(block, Budgeted)]
    yield balls(x), balls(y), [(np.zeros(0, dtype=np.intp), block.members) for block in limited]
    if not noise.symbols:
        return
    lower, upper, theta = arrays["lower"], arrays["upper"], arrays["trained"]
    count, fitted = len(lower), step.fitted
    linear = np.zeros((count, noise.symbols))
    many = [np.broadcast_to(part, (fitted, *part.shape)) for part in (x, y, theta)]
    linear[count - fitted :] = adjoint(step, noise, np.eye(fitted), *many)
    pushed = Stored(lower, upper, theta, linear, np.zeros(count), noise)
    every = np.arange(len(x), dtype=np.intp)
    for epsilon in points_of(pushed, rng, random, parameters):
        features = rows_at(noise.x_centre, noise.x_linear, every, epsilon)
        targets = rows_at(noise.y_centre, noise.y_linear, every, epsilon)
        if y.shape[1] > 1:  # points are moved a little inward; a label is one of the classes
            targets = balls(np.round(targets.astype(float)))
        yield features, targets, [(_replaced(block, epsilon), block.members) for block in limited]


def _replaced(block: Budgeted, epsilon: Array) -> Index:
    rows = np.concatenate([np.repeat(child.rows, child.sizes) for child in block.children])
    return np.unique(rows[epsilon[block.symbols] != 0]).astype(np.intp)


def _design(step: FitStep, frozen: Array, x: Balls) -> Balls:
    """`x̃`: features of the rows, and a 1 for the intercept."""
    if len(step.network.layers) > 1:
        body = Network(step.network.layers[:-1], step.network.shape)
        inputs = {**body.layout.unflatten(balls(frozen)), "x": x}
        x = evaluate_balls(body.forward_graph(len(x)), inputs)["logits"]
    return np.append(x, balls(np.ones((len(x), 1))), axis=1) if step.head.bias else x


def _outside(s: Balls, arrays: Mapping[str, Array], replaced: Replaced) -> list[int]:
    """Rows whose score is outside of its range, for certain: of rows as such, and of those that a budget replaces."""
    gone = np.concatenate([[-1], *(rows for rows, _ in replaced)])
    alone = np.setdiff1d(np.arange(len(s)), gone).astype(np.intp)
    found = _leave(s, alone, alone, arrays["score_low"], arrays["score_high"])
    for k, (rows, members) in enumerate(replaced):
        place = np.searchsorted(members, rows)
        found += _leave(s, rows, place, arrays[f"other_low_{k}"], arrays[f"other_high_{k}"])
    return found


def _leave(s: Balls, rows: Index, place: Index, low: Array, high: Array) -> list[int]:
    ends = zip(rows.tolist(), low[place].tolist(), high[place].tolist(), strict=True)
    return [i for i, a, b in ends if s[i] < a or s[i] > b]


def _matrix(entries: Balls) -> Any:
    return flint.arb_mat(*entries.shape, entries.ravel().tolist())


def _times(matrix: Any, vector: Balls) -> Balls:
    found = matrix * flint.arb_mat(len(vector), 1, list(vector))
    return np.array(found.entries(), dtype=object)


def _middles(values: Balls) -> Balls:
    return np.array([value.mid() for value in values], dtype=object)


def _hinge(y: Any, s: Any) -> Any:
    """`1 − zs`, `z = 2y − 1`."""
    return 1 - (2 * y - 1) * s


def _clipped(e: Any) -> Any:
    return e.min(flint.arb(DELTA)).max(flint.arb(-DELTA))


PSI: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "cross-entropy": (lambda y, s: 1 / (1 + (-s).exp()) - y, lambda y, s: (-s).exp() / (1 + (-s).exp()) ** 2),
    "squared-error": (lambda y, s: s - y, lambda y, s: flint.arb(1)),
    "squared-hinge": (
        lambda y, s: -2 * (2 * y - 1) * _hinge(y, s).max(flint.arb(0)),
        lambda y, s: 2 * (2 * y - 1) ** 2 * gate(_hinge(y, s), closed=True),
    ),
    "huber": (
        lambda y, s: _clipped(s - y),
        lambda y, s: gate(flint.arb(DELTA) - abs(s - y), closed=True),
    ),
}
"""`ψ(y, s)` and its slopes, for every loss; at a kink, all slopes between those on either side."""
