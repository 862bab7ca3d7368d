"""The checker of a fitted model's certificate: it proves every claim again, from the data and the threat alone.

It shares no code with the engines: of this project it imports the data (what a table's cells are as numbers) and the
certificate's file. Its arithmetic is exact: every number is a whole multiple of a power of two, in Python's integers (NumPy
carries them, and adds nothing); `σ` and its inverse are enclosed by balls (Arb) and rounded outward to such multiples.

**Symbols.** Rows `x_i ∈ R^P` (a last entry 1 for the intercept), weights `w_i > 0`, targets `y_i`; the threat lets row `i` be
`x_i + d_i`, `d_i ∈ 𝓓_i = {|d_ij| ≤ r_ij} + conv(vectors) + (ellipsoids)`, and its target be any of `[y⁻_i, y⁺_i]` (a label: a
mixture of both). For each budget `g`, at most `k_g` rows may instead be *dirty*: `d_i ∈ 𝓓'_i ∋ 0`, other targets, or
(removal) a weight between 0 and `w_i`. `ψ = ∂ℓ/∂s` does not fall with the score `s_i = (x_i + d_i)·θ`. A *minimiser* has
`∇L_D(θ) = v` for a tilt `|v_j| ≤ τ_j`, where

    L_D(θ) = Σ_i w_i ℓ(y_i, s_i) + ½ Σ_j α_j θ_j²,      τ_j = |∂_j L_{D₀}(c)|,

`D₀` has all `d_i = 0` and the targets as handed in, and `c` is a point named in the certificate.

**The bound.** The certificate names ranges: a box `B` of `θ`, `S_i` of the scores of clean rows, `S'_i` of `(x'_i + d)·θ` for
all `d ∈ 𝓓'_i` (`x'_i`: the middle of a dirty row); and for each query `a` multipliers `u ∈ R^P`, `λ_i`, `λ'_i`. For a
minimiser within the ranges, whatever the multipliers,

    a·θ = (a + α∘u)·θ − u·v + Σ_i w_i { ψ(y_i, s_i) u·(x_i + d_i) + λ_i [(x_i + d_i)·θ − s_i] }.                     (1)

`d_i` multiplies `t_i = ψu + λ_iθ`, each entry of which is in `m ± R` since `ψ` and `θ` are in known ranges. For *any* `ρ`
with `|ρ_j| ≤ 1`: `|t| ≤ ρt + γ` where `γ = max(|l| − ρl, |h| − ρh)` at the ends of `t`, by convexity. For vectors and any
`v̂` in their hull: `v·t ≤ v̂·t + max_v (v − v̂)·t`, the maximum over vectors and over `m ± R`. For an ellipsoid `d = ϱ∘ε`,
`|ε| ≤ 1`, any `b` and any `ν > 0`, with `M = ϱ∘m`, `Q = |ϱ∘R|`: `ε·(ϱ∘t) ≤ b·(ϱ∘t) + |M − νb| − M·b + Q²/2ν + ν(1 + b·b)/2`,
because `Q|ε − b| ≤ Q²/2ν + ν|ε − b|²/2`. With `x̂_i = x_i + r_i∘ρ_i + v̂_i + ϱ_i∘b_i`, row `i` of (1) is at most

    U_i(θ) = w_i { λ_i x̂_i·θ + max_{s ∈ S_i, y} [ψ(y, s) u·x̂_i − λ_i s] + (what noise reaches beyond) }.

The maximum over `s` is at an end of `S_i`, at a kink of `ψ`, or where `σ'(s) = λ_i/(u·x̂_i)`. A dirty row has `V_i` in place
of `U_i`, built of `𝓓'_i`, `S'_i`, `λ'_i` (times a share of its weight, so it is at most `max(V_i, 0)` where it may go): that
costs at most `max(0, max_B (V_i − U_i))`, and `max (−U_i)` where it may go, over `B` and over `x̂_i·θ ∈ S'_i ± 2(noise)`; a
budget costs the `k_g` largest of these. (A row that one budget replaces and another removes: `max(V, 0) ≤ U + max(0, V − U) +
max(0, −U)`; budgets that replace know each other's noise.) What is left is affine in `θ`: largest at a corner of `B`. The
score of row `i` is the query `a = x_i + d_i`: `λ_i + 1/w_i` stands before `x_i + d_i`, and no budget is spent on row `i`,
which is clean; that of a dirty row is `a = x'_i`, with all its noise added.

**Theorem.** If `c` and its scores on `D₀` lie strictly inside the ranges, and for every end of them (1) gives a value
strictly inside, then for *every* dataset of the threat all minimisers exist, and lie in the ranges. Ranges proven under
proven ones hold as well. If (1) then gives `a·θ ≥ e > 0` for `a = ±x`, every model gives the row `x` this class.

*Proof.* Fix the dirty rows. Scale their noise, all other noise, the tilt and weights that go from 0 (`D₀`, `c`) to 1: a path
of convex losses, all of whose minimisers within the ranges satisfy (1), hence lie strictly inside. Let `T` be the times at
which minimisers exist and all lie in the ranges. `0 ∈ T`: `c` is one; were another outside, the segment of minimisers between
them would cross the boundary of the ranges, where none is. `T` is closed: limits of minimisers are minimisers, in the compact
ranges, and the same segment excludes others. `T` is open: around the compact convex set of minimisers, strictly inside, the
loss is larger by some `δ > 0` on the boundary of a neighbourhood; at near times still by `δ/2`; a convex function has its
minimisers inside then. So `T` is everything. ∎
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, ctx

from mibp_cert.check.doubt import GRID, Group, Ints, NotProven, Piece, Reader, Rows, Unit, listed
from mibp_cert.check.file import Arrays, Certificate
from mibp_cert.check.model import model_of
from mibp_cert.data import Split
from mibp_cert.errors import UserError

BITS = 192
"""Of balls."""
MINUTES = 20
"""Longer checks are refused."""
CELL, ROW = 1e-6, 3e-5
"""Seconds that a cell and a row take in one query."""
DELTA = arb(1.35)
"""Where Huber's loss becomes linear."""


PSI: dict[str, Callable[[arb, arb], arb]] = {
    "cross-entropy": lambda y, s: 1 / (1 + (-s).exp()) - y,
    "squared-error": lambda y, s: s - y,
    "squared-hinge": lambda y, s: 2 * (1 - 2 * y) * (1 - (2 * y - 1) * s).max(arb(0)),
    "huber": lambda y, s: (s - y).min(DELTA).max(-DELTA),
}
KINKS: dict[str, Callable[[arb], tuple[arb, ...]]] = {
    "squared-hinge": lambda y: (2 * y - 1,),
    "huber": lambda y: (y - DELTA, y + DELTA),
}
"""Where `ψ` has kinks, if it has any."""
CLASSES = ("cross-entropy", "squared-hinge")
"""Losses of two classes; the others are of numbers."""
Ends = tuple[Ints, Ints]
Lines = tuple[Ints, Ints, Ints]
"""`U_i(θ) = const_i + coef_i·θ` (scales 4 and 3), with `coef_i = lam_i x̂_i` (`lam` of scale 2)."""
Claims = list[tuple[int, int, int]]
"""Of a test row: its number, the sign of its score, and the least that this score is by it."""
Given = list[Ints]
"""Multipliers of queries: `u` (queries × P), `λ` (× rows), `λ'` (× dirty rows, budget by budget)."""


class Scored:
    """Rows whose scores are in known ranges, with `θ` in a box."""

    def __init__(self, loss: str, unit: Unit, rows: Rows, scores: Ends, box: Ends) -> None:
        self.loss, self.unit, self.rows, self.scores = loss, unit, rows, scores
        self.middle, self.radius = box[0] + box[1], box[1] - box[0]
        """Twice the middle and the radius of `θ`."""
        self.ends: list[list[tuple[arb, arb, arb]]] = []
        """Of every row: each end of its targets, with `ψ` there at both ends of its scores."""
        low, high, psi = list[int](), list[int](), PSI[loss]
        for i in range(len(rows.w)):
            first, last = (unit.ball(end[i]) for end in scores)
            targets = [unit.ball(y) for y in dict.fromkeys((rows.y[0][i], rows.y[1][i]))]
            self.ends.append([(y, psi(y, first), psi(y, last)) for y in targets])
            low.append(-max(unit.ceil(-value) for _, value, _ in self.ends[i]))
            high.append(max(unit.ceil(value) for _, _, value in self.ends[i]))
        self.psi, self.spread = rows.w * (listed(low) + listed(high)), rows.w * (listed(high) - listed(low))
        """Twice the middle and the radius of `w_iψ_i` (scale 2)."""
        of, at = np.nonzero(rows.r)
        self.cells: tuple[Any, Any, Ints] = of, at, rows.r[of, at] >> GRID

    def lines(self, u: Ints, lam: Ints, plus: Ints) -> Lines:
        """The rows' lines; `plus` (scale 2) is added to `w_iλ_i` before the noise and `x_i·θ`."""
        rows, size, both = self.rows, np.abs(u), self.rows.w * lam + plus
        i, j, r = self.cells
        hat, noise = rows.x.copy(), np.full(len(rows.w), 0, dtype=object)
        t = self.psi[i] * u[j] + both[i] * self.middle[j]
        spread = self.spread[i] * size[j] + np.abs(both)[i] * self.radius[j]
        rho = np.minimum(np.maximum((t << GRID) // np.maximum(spread, 1), -1 << GRID), 1 << GRID)
        gap = np.maximum(*((np.abs(end) << GRID) - rho * end for end in (t - spread, t + spread)))
        hat[i, j] += r * rho
        np.add.at(noise, i, -(-(r * gap) >> 1))
        for piece in rows.pieces:
            k, cells = piece.row, piece.cells
            t, by_psi = self.psi[k] * u[cells] + both[k] * self.middle[cells], self.spread[k] * u[cells]
            at, more = _beyond(piece, t, by_psi, abs(both[k]) * self.radius[cells])
            hat[k, cells] += at
            noise[k] += more
        omega = hat @ u
        tops = listed(self.top(k, omega[k], lam[k]) for k in range(len(rows.w)))
        return rows.w * tops + noise, both[:, None] * hat, both

    def top(self, i: int, omega: int, lam: int) -> int:
        """Largest `ψ(y, s)ω − λs` over the scores and targets of row `i` (scale 3)."""
        w, m = self.unit.ball(omega, 2), self.unit.ball(lam)
        low, high = (self.unit.ball(end[i]) for end in self.scores)
        found, flat, psi, kinks = list[arb](), list[arb](), PSI[self.loss], KINKS.get(self.loss, lambda y: ())
        if self.loss == "cross-entropy" and omega and not (m / w <= 0 or m / w > 0.25):
            # `ωσ' = λ`: with `p = σ(s)`, `p(1 − p) = λ/ω`.
            root = (0.25 - m / w).max(arb(0)).sqrt()
            flat = [(p / (1 - p)).log() for p in (0.5 + root, 0.5 - root)]
        for y, first, last in self.ends[i]:
            found += [w * first - m * low, w * last - m * high]
            found += [w * psi(y, s) - m * s for s in (*kinks(y), *flat) if not (s < low or s > high)]
        return max(self.unit.ceil(value, 3) for value in found)


def _beyond(piece: Piece, t: Ints, by_psi: Ints, by_theta: Ints) -> tuple[Ints, int]:
    """`v̂`, and what a piece reaches beyond `v̂·t` (scale 4). Given are twice the middle of `t`, and twice the radii that it has
    from `ψ` (signed, as `u` is) and from `θ`."""
    one, vectors, radii = 1 << GRID, piece.vectors, piece.radii
    if vectors is None:
        m, wide = radii * t, _root((((np.abs(by_psi) + by_theta) * radii) ** 2).sum())
        nu = _root((m * m).sum())
        if wide >= nu:
            return 0 * t, -(-(nu + wide) >> 1)
        b = (m << GRID) // nu
        # Times 2^(2·GRID): |M − νb| − M·b + Q²/2ν + ν(1 + b·b)/2.
        rest = (_root((((m << GRID) - nu * b) ** 2).sum()) - m @ b) * one
        whole = rest + ((wide * wide) << (2 * GRID)) // (2 * nu) + 1 - (-(nu * (one * one + b @ b)) // 2)
        return (radii >> GRID) * b, -(-whole >> (2 * GRID + 1))

    def over(at: Ints) -> Ints:
        """Twice the largest `(v − v̂)·t`, for every vector."""
        by = vectors - at
        return np.asarray(by @ t + np.abs(by @ by_psi) + np.abs(by) @ by_theta)

    value = vectors @ t
    order = sorted(range(len(vectors)), key=lambda k: value[k], reverse=True)
    best, next_ = vectors[order[0]], vectors[order[min(1, len(order) - 1)]]
    gap = value[order[0]] - value[order[min(1, len(order) - 1)]]
    wide = max(over(best)[order[min(1, len(order) - 1)]] + gap, 1)
    share = min(one, ((wide + gap) << GRID) // (2 * wide))
    options = [best, (share * best + (one - share) * next_) >> GRID]
    at = min(options, key=lambda at: max(over(at)) + at @ t)
    return np.asarray(at), -(-max(over(at)) >> 1)


def _root(square: int) -> int:
    """At least the square root."""
    return math.isqrt(square) + 1


@dataclass(frozen=True, eq=False)
class Problem:
    """All rows with what may be wrong with them, loss and penalties; `given`: the targets as handed in."""

    unit: Unit
    loss: str
    alpha: Ints
    rows: Rows
    groups: tuple[Group, ...]
    given: Ints

    @property
    def parts(self) -> list[Rows]:
        """All rows, and the dirty ones of every budget."""
        return [self.rows, *(group.dirty for group in self.groups)]

    @property
    def sizes(self) -> list[int]:
        """How many ranges there are: of parameters, of rows, and of the dirty rows of every budget."""
        return [len(self.alpha), *(len(rows.w) for rows in self.parts)]

    def tilt(self, c: Ints) -> Ints:
        """`|∂_j L(c)|` on `D₀`, rounded up."""
        unit, rows = self.unit, self.rows
        psi = [PSI[self.loss](unit.ball(y), unit.ball(s, 2)) for y, s in zip(self.given, rows.x @ c, strict=True)]
        ends = (-listed(unit.ceil(-value) for value in psi), listed(unit.ceil(value) for value in psi))
        parts, pull = [(rows.w * end)[:, None] * rows.x for end in ends], self.alpha * c << unit.k
        least, most = np.minimum(*parts).sum(axis=0) + pull, np.maximum(*parts).sum(axis=0) + pull
        return np.asarray(-(-np.maximum(np.abs(least), np.abs(most)) >> (2 * unit.k)))


class Under:
    """(1) for minimisers in known ranges: of `θ`, of the scores of rows, and of dirty rows, budget by budget."""

    def __init__(self, problem: Problem, ranges: list[Ends], tilt: Ints) -> None:
        self.problem, self.box, self.tilt, k = problem, ranges[0], tilt, problem.unit
        pairs = zip(problem.parts, ranges[1:], strict=True)
        self.main, *self.dirty = (Scored(problem.loss, k, rows, scores, self.box) for rows, scores in pairs)
        self.far = np.maximum(np.abs(self.box[0]), np.abs(self.box[1]))
        eye, (rows, *dirty) = k.exact(np.eye(len(problem.alpha))), problem.parts
        self.asked = [("parameter", eye, 0 * problem.alpha), ("the score of row", rows.x, 0 * rows.w)]
        """What the ranges are of, part by part: the name, queries, and what noise reaches beyond them."""
        self.asked += [("the score of dirty row", some.x, some.reach(self.far)) for some in dirty]

    def most(self, coef: Ints) -> Any:
        """Largest `coef·θ` over the box."""
        return np.maximum(coef * self.box[0], coef * self.box[1]).sum(axis=-1)

    def value(self, a: Ints, by: Given, q: int, own: int = -1, sign: int = 1) -> int:
        """A bound (scale 4) of `a·θ` by the multipliers of query `q`; for `own ≥ 0` of `sign` times the score of that row."""
        problem, k = self.problem, self.problem.unit.k
        u, lam, *by_dirty = (part[q] for part in by)
        plus = 0 * lam
        if own >= 0:
            plus[own], a = sign << (2 * k), 0 * a
        lines = self.main.lines(u, lam, plus)
        g = (a << (2 * k)) + (problem.alpha * u << k) + lines[1].sum(axis=0)
        total = lines[0].sum() + (np.abs(u) @ self.tilt << (2 * k)) + self.most(g)
        for group, scored, new in zip(problem.groups, self.dirty, by_dirty, strict=True):
            cost = self.cost(group, scored, lines, scored.lines(u, new, 0 * new))[group.rows != own]
            total += sum(sorted(np.maximum(cost, 0), reverse=True)[: group.most])
        return int(total)

    def cost(self, group: Group, scored: Scored, lines: Lines, new: Lines) -> Ints:
        """Largest `V_i − U_i`, and `−U_i` where rows may be gone."""
        const, coef, lam = (part[group.rows] for part in lines)
        found = new[0] - const + self.most(new[1] - coef)
        if group.goes:
            # `x̂_i·θ` is within twice the noise of a score of the dirty row, whose noise is that of the row itself.
            more, (low, high) = 2 * scored.rows.reach(self.far), (end << self.problem.unit.k for end in scored.scores)
            away = np.maximum(-lam * (low - more), -lam * (high + more))
            found = np.maximum(found, np.minimum(away, self.most(-coef)) - const)
        return np.asarray(found)

    def proven(self, ranges: list[Ends], by: Given) -> tuple[list[Ends], list[str]]:
        """What (1) makes of the ranges, which are narrower; and the ends that it does not give, in words."""
        k, q, found, out = self.problem.unit.k, 0, list[str](), list[Ends]()
        for number, ((name, queries, reach), ends) in enumerate(zip(self.asked, ranges, strict=True)):
            own, pair = range(len(queries)) if number == 1 else [-1] * len(queries), []
            for sign, side, end in ((-1, "lower", ends[0]), (1, "upper", ends[1])):
                asked = enumerate(zip(queries, own, strict=True), start=q)
                values = listed(self.value(sign * a, by, at, i, sign) for at, (a, i) in asked) + (reach << (2 * k))
                found += [f"the {side} end of {name} {i}" for i in np.flatnonzero(values >= sign * end << (3 * k))]
                pair.append(sign * -(-values >> (3 * k)))
                q += len(queries)
            out.append((pair[0], pair[1]))
        return out, found

    def inside(self, c: Ints, ranges: list[Ends]) -> bool:
        """Are `c` and its scores on `D₀` strictly inside, those of dirty rows with all their noise?"""
        found, k = [], self.problem.unit.k
        for (_, queries, reach), (low, high) in zip(self.asked, ranges, strict=True):
            at = queries @ c
            found.append(((low << k < at - reach) & (at + reach < high << k)).all())
        return all(found)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was proven, and what does not follow."""

    failures: list[str]
    rows: int
    queries: int
    claims: int
    """Test rows whose class is claimed, or both ends of whose range."""
    tests: int
    certified_accuracy: float | None
    """Share of the test rows that are certified and right, by the labels in the data; None where numbers are predicted."""


def check(certificate: Certificate, split: Split, hear: Callable[[str], None] = lambda _: None) -> Verdict:
    """Prove the certificate about these data; `UserError` where it is about others, or is no certificate of a fitted model."""
    try:
        _same_data(certificate.plain["data"], split)
        problem, tests = problem_of(certificate.plain, certificate.arrays, split)
        c, ranges, ends, claims, last = _read(certificate.arrays, problem, len(tests.w))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise UserError(f"This is not a certificate of a fitted model, or was altered: {error!r}.") from None
    check_size(problem, queries := len(ends[0]) + len(claims))
    with ctx.workprec(BITS):
        try:
            hear("the clean model")
            tilt = problem.tilt(c)
            under = Under(problem, ranges, tilt)
            found = [] if under.inside(c, ranges) else ["that the clean model is inside of the ranges"]
            hear("the ranges")
            proven, failures = under.proven(ranges, ends)
            hear("the claims")
            found += failures or _claims(Under(problem, proven, tilt), last, tests, claims)
        except NotProven as error:
            found = [str(error)]
    share, sides = None, {(i, sign) for i, sign, _ in claims}
    said = {i for i, sign in sides if problem.loss in CLASSES or (i, -sign) in sides}
    if problem.loss in CLASSES and split.test is not None:
        share = sum((i, 2 * int(split.test.y[i]) - 1) in sides for i in said) / len(split.test)
    return Verdict(found, len(problem.rows.w), queries, len(said), len(tests.w), share)


def _claims(under: Under, by: Given, tests: Rows, claims: Claims) -> list[str]:
    """The claims `sign·x·θ ≥ end` that do not follow; of classes, `end` must be above 0."""
    k, found, reach = under.problem.unit.k, [], tests.reach(under.far)
    for q, (i, sign, end) in enumerate(claims):
        value = under.value(-sign * tests.x[i], by, q) + (reach[i] << (2 * k))
        if value > -end << (3 * k):
            found.append(f"the claim about test row {i}")
        elif under.problem.loss in CLASSES and end <= 0:
            found.append(f"the class of test row {i}, since its claim says nothing of the sign")
    return found


def problem_of(plain: dict[str, Any], arrays: Arrays, split: Split) -> tuple[Problem, Rows]:
    """The problem that a certificate is about, rebuilt from the data; and the test rows."""
    train, test, numbers = split.train, split.tested, split.train.targets is not None
    loss, intercept, alpha, by_class = model_of(plain["model"], train)
    if loss not in PSI or (loss in CLASSES) == numbers or (not numbers and len(train.classes) != 2):
        raise UserError(f"The checker knows {', '.join(PSI)}, of two classes or of numbers; not {loss!r} of these.")
    y = train.targets[:, 0] if train.targets is not None else train.y.astype(float)
    weight = (np.ones(len(train)) if train.weights is None else train.weights) * by_class[train.y]
    unit = Unit([train.x, test.x, y, weight, alpha, *(a for a in arrays.values() if a.dtype == np.float64)])
    reader, one = Reader(train, unit, plain["threat"], intercept=intercept), unit.exact(np.ones(len(test)))
    flipped = any((doubt.y != 0).any() for doubt in (reader.base, *(own for _, _, own, _ in reader.budgets)))
    if flipped and not numbers and by_class[0] != by_class[1]:
        raise UserError("The checker does not know wrong labels where classes have weights.")
    rows, groups = reader.rows(unit.exact(weight), unit.exact(y))
    test_threat = {"kind": "nothing"} if plain.get("test_threat") is None else plain["test_threat"]
    tests, budgets = Reader(test.ranged(train), unit, test_threat, intercept=intercept).rows(one, 0 * one)
    if budgets:
        raise UserError("Budgets of test rows are not known to the checker.")
    return Problem(unit, loss, unit.exact(alpha), rows, groups, unit.exact(y[weight > 0])), tests


def _same_data(plain: dict[str, Any], split: Split) -> None:
    """Refuse other data than those that the certificate is about."""
    for name, part in (("train", split.train), ("test", split.test)):
        if part is None or part.sha256 != plain[f"{name}_sha256"]:
            raise UserError(f"These are not the {name} rows that the certificate is about, by their hash, or are none.")


def _read(arrays: Arrays, problem: Problem, tests: int) -> tuple[Ints, list[Ends], Given, Claims, Given]:
    """The clean model, the ranges and their multipliers, claims and theirs: each of the size that the problem asks for."""
    sizes, names = problem.sizes, ["u", "lam", *(f"dirty{g}" for g in range(len(problem.groups)))]

    def part(name: str, *shape: int) -> Ints:
        if arrays[name].dtype != np.float64 or arrays[name].shape != shape:
            raise ValueError(name)
        return problem.unit.exact(arrays[name])

    def given(name: str, queries: int) -> Given:
        return [part(f"{name}_{one}", queries, size) for one, size in zip(names, sizes, strict=True)]

    ranges = [(part(f"low{i}", size), part(f"high{i}", size)) for i, size in enumerate(sizes)]
    rows, signs = arrays["claim_rows"], arrays["claim_signs"]
    if rows.dtype != np.int64 or signs.dtype != np.int64:
        raise ValueError("claims of rows that are no whole numbers")
    claims = list(zip(rows.tolist(), signs.tolist(), part("claim_ends", len(rows)), strict=True))
    if any(sign not in (-1, 1) or not 0 <= i < tests for i, sign, _ in claims):
        raise ValueError("claims")
    if any((low > high).any() for low, high in ranges):
        raise ValueError("ranges")
    return part("c", sizes[0]), ranges, given("range", 2 * sum(sizes)), claims, given("claim", len(claims))


def check_size(problem: Problem, queries: int) -> None:
    """Refuse what takes too long."""
    cells = sum(rows.x.size + 10 * int(np.count_nonzero(rows.r)) for rows in problem.parts)
    cells += 100 * sum(len(piece.cells) for rows in problem.parts for piece in rows.pieces)
    minutes = queries * (CELL * cells + ROW * sum(problem.sizes[1:])) / 60
    if minutes > MINUTES:
        raise UserError(
            f"{queries} queries would take about {minutes:.0f} minutes; {MINUTES} are the limit: certify fewer rows (--sample)."
        )
