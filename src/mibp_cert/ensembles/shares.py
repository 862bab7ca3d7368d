"""What votes that were drawn say of the vote over all draws: exact binomial bounds (Clopper and Pearson).

Of `N` bags drawn independently, `k` vote for a class; `p` is the share of *all* bags (and of all seeds and flips) that do, by
their probability. With `X_p` binomial of `N` draws, and `a(k)` any number such that `P(X_{a(k)} ≥ k) ≤ α`,

    P(a(k) > p) ≤ α.                                                                                                     (1)

*Proof.* `P(X_p ≥ k)` grows with `p`. Let `k*` be the least `k` with `a(k) > p`, if there is one: `P(X_p ≥ k*) ≤ P(X_{a(k*)} ≥
k*) ≤ α`, and `a(k) > p` only where `k ≥ k*`.  ∎

Those who did not vote for the class bound `p` from above: `p ≤ 1 − a(N − k)`, wrong with a probability of at most `α` again.

**All at once.** `C` classes and `T` test rows have `2CT` such bounds. Which of them is used (from below for the class with the
most votes, from above for all others) depends on the draw, so all of them must hold: with `α = (1 − confidence) / 2CT` each
they do with the confidence asked for (Bonferroni), however votes about different rows and classes depend on each other.

`P(X_a ≥ k) = I_a(k, N − k + 1)`, the regularised incomplete beta function. SciPy's inverse of it is only a guess; it is lowered
until ball arithmetic proves the inequality.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from flint import arb, ctx, fmpq
from scipy.special import betaincinv

BITS = 64
"""Of the arithmetic that proves a bound."""
STEP = 2.0**-40
"""By this part of itself, then by twice as much each time, up to the half, a guess is lowered."""


def each(confidence: float, classes: int, rows: int) -> Fraction:
    """The probability with which each bound may be wrong, for all of them to hold with this confidence.

    >>> each(0.5, 2, 10)
    Fraction(1, 80)
    """
    return (1 - Fraction(confidence)) / (2 * classes * rows)


@lru_cache(maxsize=100_000)
def at_least(votes: int, bags: int, alpha: Fraction) -> Fraction:
    """`a(k)`: a share that is larger than the true one with a probability of at most `alpha`.

    >>> round(float(at_least(2, 2, Fraction(1, 100))), 9)
    0.1
    """
    if votes == 0:
        return Fraction(0)
    step, guess = STEP, float(betaincinv(votes, bags - votes + 1, float(alpha)))
    while guess > 0.0:
        if proven(guess, votes, bags, alpha):
            return Fraction(guess)
        guess, step = guess * (1.0 - step), min(0.5, 2 * step)
    return Fraction(0)


def at_most(votes: int, bags: int, alpha: Fraction) -> Fraction:
    """A share that is smaller than the true one with a probability of at most `alpha`."""
    return 1 - at_least(bags - votes, bags, alpha)


def proven(share: float, votes: int, bags: int, alpha: Fraction) -> bool:
    """Is `P(X ≥ k) ≤ alpha` certain for so large a share?"""
    with ctx.workprec(BITS):
        tail = arb(share).beta_lower(votes, bags - votes + 1, regularized=True)
        return bool(tail <= arb(fmpq(alpha.numerator, alpha.denominator)))
