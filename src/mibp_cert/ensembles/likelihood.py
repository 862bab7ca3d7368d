"""Two datasets that differ in a few rows, as random bags see them: how far apart the votes over all bags can be.

**The draw.** A bag has `m` rows, each drawn from the `n` rows with the same probability, whatever was drawn before. Its cells
may then be *flipped*, independently of each other: one of `K` values stays with the probability `ρ = λ/(λ + K − 1)`, and each
other one takes its place with `γ = 1/(λ + K − 1)`; so a value is `λ > 1` times as likely to stay as to become any particular
other one. What the bag's learner votes for depends on the bag after that (and on a seed). `f` stands for the probability that
it votes for a class, given the bag; `p = E_D f` is the share of this class.

**Two datasets.** `D` is what was handed in, `D'` has `n'` rows: `a` of the rows of `D` are altered in any way, `b` are removed,
`c` are added, and `r` others have at most `s` cells with other values. `e = n − a − b − r` rows are the same. The rows are
numbered, so that the same ones have the same numbers; whoever sees the numbers of the rows of a bag besides can only tell `D`
and `D'` apart better. The test input may have `τ` cells with other values as well (a trigger), and is flipped anew for every
bag then.

**The bound.** Let `P`, `P'` be the probabilities of a bag `z` (with its numbers and flipped test input) under `D`, `D'`. For
every `w ≥ 0` and every `f` between 0 and 1

    E_D' f ≥ Σ_z min(w P(z), P'(z)) − w (1 − p).                                                                         (1)

*Proof.* `E_D' f = Σ P'f ≥ Σ min(wP, P') f = Σ min(wP, P') − Σ min(wP, P')(1 − f) ≥ Σ min(wP, P') − w Σ P (1 − f)`.  ∎

The largest value over `w` is attained at a ratio `P'/P`, and then by some `f` (Neyman and Pearson): the right side is concave
in `w` and piecewise linear with kinks there, and `f = 1` where `P' < wP`, `f = 0` where `P' > wP`, with what is left of `p`
where they are equal, makes (1) an equality.

**The ratios.** A bag that has one of the `a + b` rows is not possible under `D'`, one with an altered or added row not under
`D`: `min = 0`. On all others, `P(z) = n^−m Π ρ^… γ^…`, and each cell that differs contributes `ρ/γ = λ` to `P/P'` if `z` has
its value in `D`, `1/λ` if that in `D'`, else 1. With `S` the sum of these exponents, over all cells of all draws,

    P'(z) = R λ^−S P(z),     R = (n/n')^m.                                                                               (2)

A draw of an unaltered row brings 0, that of one with `s` other cells a sum of `s` independent steps `+1, 0, −1` of
probabilities `ρ, 1 − ρ − γ, γ`; so `c_t = P(S = t, a bag possible under both)` is the coefficient of `x^t` in

    [(e + r h(x)^s) / n]^m h(x)^τ,     h(x) = ρx + (1 − ρ − γ) + γ/x.                                                    (3)

As `h(1/(λx)) = h(x)`, `λ^−t c_t = c_−t`. With `w = R λ^−k` in (1) therefore

    E_D' f ≥ R max_k [λ^−k Σ_{t≤k} c_t + Σ_{t<−k} c_t − λ^−k (1 − p)],                                                   (4)

and, as `1 − f` is such a function as well, `E_D' f ≤ 1 − (4 with 1 − p in place of p)`. Without flips (`r = τ = 0`) there is
one ratio, and (4) is `R (p − 1 + q)` with `q = (e/n)^m`: Jia, Cao and Gong 2021. With `a = b = c = 0` these are the classes of
BagFlip (Zhang, Albarghouthi and D'Antoni 2022).

**Fewer is better.** (4) is a bound for *at most* so many rows, cells and values: it never rises with `a, b, c, r, s, τ`, nor if
`K` falls. *Proof.* With `φ(S) = min(λ^{S−k}, 1)`, the sum in (1) is `E'[φ(S)]` over the bags possible under both, `E'` by `P'`,
and `φ` is concave in `λ^S`. One more step, or a draw with steps in place of one without, adds a `T` with `E' λ^T = 1` that is
independent of the rest, and `E' φ(S + T) ≤ E' φ(S)` (Jensen). A step for `K` values is with probability `(λ + 1)/(λ + K − 1)`
one for two values, else 0: with more values there are fewer steps. One more altered row takes bags from the sum. One more
removed row makes `w = R λ^−k` larger, which for the same `k` makes `−w (1 − p)` smaller; in the sum a draw has the
probabilities `e/n'` and `r/n'`, of which the second grows, and their sum falls: some draws become impossible, and some get
steps. One more added row makes `R` smaller, and the rest is the same.  ∎

Cells of different columns may have different numbers of values: the smallest one counts.

**Added rows are the worst that come or go.** If a class stands where `v` rows are added, it does where `b ≤ v` are removed in
place of as many of these (`a = r = 0`). *Proof.* Let `H_k ≤ 1` be (4) of `h^τ` alone without its last term, or 0 (`w = 0`): the
bounds are `R ((1 − b/n)^m H_k − λ^−k (1 − p))` and 1 less such a one for another class, with some `l` and `u ≥ 0` in place of
`λ^−k (1 − p)`. With `c = v − b` the class stands if for some `k, l`

    (H_k + H_l) (1 − b/n)^m − (1 + (v − 2b)/n)^m  >  λ^−k (1 − p) + u     (or ≥),

whose left side never falls with `b`: as `H_k + H_l ≤ 2` and `1 − b/n ≤ 1 + (v − 2b)/n`, its derivative is at least 0.  ∎

Sums are enclosed by ball arithmetic, and everything else is rational: nothing is rounded to the wrong side.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import log2

from flint import arb, arb_poly, ctx, fmpq, fmpq_poly

BITS = 256
"""Of the arithmetic that sums up probabilities."""
ALL_RATIOS = 64
"""So many exponents `k` on each side of 0 are tried in any case, and others as far as `λ^|k|` is no more than `2^FAR`: any of
them gives a bound."""
FAR = 20


@dataclass(frozen=True)
class Pair:
    """Two datasets of which one has `rows` rows, seen through bags of `size` draws. `odds`: λ; `values`: K."""

    rows: int
    size: int
    altered: int = 0
    removed: int = 0
    added: int = 0
    flipped: int = 0
    cells: int = 0
    trigger: int = 0
    odds: Fraction = Fraction(2)
    values: int = 2

    @property
    def same(self) -> int:
        """`e`: how many rows are the same in both."""
        return self.rows - self.altered - self.removed - self.flipped

    def least(self, share: Fraction) -> Fraction:
        """`E_D' f` is at least this for every `f` with `E_D f = share`.

        >>> [float(Pair(10, 2, altered=1).least(Fraction(1))), float(Pair(10, 2, removed=5).least(Fraction(7, 8)))]
        [0.81, 0.5]
        """
        missing = fmpq(1) - fmpq(share.numerator, share.denominator)
        best = max((constant - slope * missing for constant, slope in self._lines), default=fmpq(0))
        found = self._growth * max(fmpq(0), best)
        return Fraction(int(found.p), int(found.q))

    def most(self, share: Fraction) -> Fraction:
        """`E_D' f` is at most this for every `f` with `E_D f = share`."""
        return 1 - self.least(1 - share)

    @cached_property
    def _growth(self) -> fmpq:
        """`R`, or a little less."""
        after = self.rows - self.removed + self.added
        if after <= 0:
            return fmpq(0)
        with ctx.workprec(BITS):
            return _below(arb(fmpq(self.rows, after)) ** self.size)

    @cached_property
    def _lines(self) -> list[tuple[fmpq, fmpq]]:
        """(4) for every `k`: a constant, and what the share lacks counts so much."""
        if self.same < 0:
            return []
        with ctx.workprec(BITS):
            masses, zero = self._masses()
            most = min(zero, max(ALL_RATIOS, int(FAR / log2(float(self.odds)))))
            sums = [arb(0)]  # sums[i] is that of the first i masses
            for mass in masses:
                sums.append(sums[-1] + mass)
            ratio, found = fmpq(self.odds.numerator, self.odds.denominator), []
            for k in range(-most, most + 1):
                slope = ratio ** (-k)
                found.append((_below(arb(slope) * sums[zero + k + 1] + sums[zero - k]), slope))
        return found

    def _masses(self) -> tuple[list[arb], int]:
        """The coefficients of (3), and which of them is that of `x^0`."""
        odds = fmpq(self.odds.numerator, self.odds.denominator)
        whole = odds + self.values - 1
        step = fmpq_poly([1 / whole, (self.values - 2) / whole, odds / whole])
        cells = self.cells if self.flipped else 0
        still = fmpq_poly([0] * cells + [fmpq(self.same, self.rows)])
        draw = still + fmpq(self.flipped, self.rows) * step**cells
        found = arb_poly(draw) ** self.size * arb_poly(step) ** self.trigger
        zero = cells * self.size + self.trigger
        return [found[i] for i in range(2 * zero + 1)], zero


def stands(pair: Pair, low: Fraction, smaller: Fraction, larger: Fraction) -> bool:
    """Does a class with a share of at least `low` win under `D'`, where smaller labels have at most the share `smaller` each
    and larger ones `larger`? Of several with the largest share, the smallest label wins."""
    mine = pair.least(low)
    return mine > pair.most(smaller) and mine >= pair.most(larger)


def _below(ball: arb) -> fmpq:
    """The lower end of a ball, which is a fraction."""
    return ball.lower().fmpq()


@lru_cache(maxsize=20_000)
def kept(pair: Pair) -> Pair:
    """The same pair, with what was computed of it."""
    return pair
