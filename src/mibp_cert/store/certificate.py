"""The certificate of a fitted model: what `check.fitted` needs to prove a run's claims again, from the data and the threat.

The checker reads the threat on its own, into rows and budgets of its own. Ranges and multipliers are sought here for *these*, by
the engine's search in float64; whatever comes out, the checker decides. So the ends of claims are the checker's, and what it
cannot prove is not claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from flint import ctx
from scipy import sparse

from mibp_cert.certify.request import with_missing
from mibp_cert.certify.run import CertifiedRun
from mibp_cert.check import fitted as checker
from mibp_cert.check.doubt import Piece
from mibp_cert.check.doubt import Rows as Exact
from mibp_cert.check.file import Arrays, write_certificate
from mibp_cert.data import Split, Task
from mibp_cert.engines.rounding import Array
from mibp_cert.errors import Diverged, UserError
from mibp_cert.fitted import Fitted
from mibp_cert.fitted.bounded import Ranges
from mibp_cert.fitted.dual import Dual
from mibp_cert.fitted.known import dot
from mibp_cert.fitted.losses import SCORE_LOSSES
from mibp_cert.fitted.minimum import minimise, tilt
from mibp_cert.fitted.problem import Problem
from mibp_cert.fitted.ranges import Search
from mibp_cert.fitted.table import Budget, Index, Pieces, Rows, Table
from mibp_cert.nets import Training
from mibp_cert.sets import Segments
from mibp_cert.threats import Threat

FINEST = 2.0**-90
"""All that is chosen here is a multiple of it, so that the checker's numbers stay short."""
ATTEMPTS = 4
"""Ranges are moved out so often where the checker does not follow the engine."""
WIDER = 1.03


@dataclass(frozen=True, eq=False)
class Made:
    """A certificate, and what it claims: test rows whose class is certified, or whose range is known."""

    plain: dict[str, Any]
    arrays: Arrays
    claimed: int
    tests: int

    def write(self, path: str | Path) -> None:
        write_certificate(path, self.plain, self.arrays)


def certificate_of(run: CertifiedRun, source: Mapping[str, Any] | None = None) -> Made:
    """The certificate of a fitted run; `source`: how its rows are read again (`check.data`). `UserError` where the checker does
    not know the model or the threat, `Diverged` where it cannot follow the proof."""
    split, claim = run.data, claim_of(run.data, run.training, run.threat, run.test_threat, source)
    grid, numbers = {"grid": np.array([FINEST])}, split.train.task is Task.NUMBERS
    with ctx.workprec(checker.BITS):
        problem, tests = checker.problem_of(claim, grid, split)
        checker.check_size(problem, 2 * sum(problem.sizes) + len(tests.w) * (2 if numbers else 1))
        maker = Maker(problem)
        ranges, proven = maker.ranges()
        claims = maker.claims(proven, tests, numbers=numbers)
    return Made(claim, {**grid, **ranges, **claims}, len(np.unique(claims["claim_rows"])), len(tests.w))


def claim_of(
    split: Split,
    model: Training | Fitted,
    threat: Threat,
    test_threat: Threat | None,
    source: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a certificate says it is about; `UserError` where there can be none."""
    if not isinstance(model, Fitted):
        raise UserError(
            "A certificate of its own is for models at their minimum; networks are checked from their run directory: --run DIR, "
            "then mibp-cert verify DIR."
        )
    if model.features is not None:
        raise UserError("The checker does not know frozen features: leave out --features, or the certificate.")
    weights: dict[str, float] | None = None
    if model.class_weight is not None:
        alone = replace(split.train, weights=None)
        weights = {str(name): float(w) for name, w in zip(alone.classes, model.weights(alone)[0], strict=True)}
    if split.tested.missing is not None:
        test_threat = with_missing(test_threat)
    claim = {
        "made_by": f"mibp-cert {version('mibp_cert')}",
        "data": {**(source or {}), "train_sha256": split.train.sha256, "test_sha256": split.tested.sha256},
        "threat": threat.to_json(),
        "test_threat": None if test_threat is None else test_threat.to_json(),
        "model": {
            "loss": model.loss,
            "C": float(model.C),
            "fit_intercept": model.fit_intercept,
            "penalise_intercept": model.penalise_intercept,
            "class_weight": weights,
        },
    }
    checker.problem_of(claim, {}, split)
    return claim


class Maker:
    """Ranges and multipliers for a problem of the checker's."""

    def __init__(self, exact: checker.Problem) -> None:
        self.exact, self.k = exact, exact.unit.k
        rows, alpha, given = self._rows(exact.rows), self._floats(exact.alpha), self._floats(exact.given)
        budgets = []
        for group in exact.groups:
            gone = np.full(len(group.rows), True) if group.goes else None
            budgets.append(Budget(group.most, group.rows, self._rows(group.dirty), scaled=True, gone=gone))
        loss = SCORE_LOSSES[exact.loss]
        c = _gridded(minimise(rows.x, given, rows.w, alpha, loss))
        tau = tilt(rows.x, given, rows.w, alpha, loss, c)
        self.problem = Problem(Table(rows, alpha, (), tuple(budgets)), loss, c, tau, rows.x @ c)
        self.tilt = exact.tilt(exact.unit.exact(c))

    def _floats(self, values: Any) -> Array:
        flat = [int(value) / 2**self.k for value in values.ravel()]
        return np.array(flat, dtype=np.float64).reshape(values.shape)

    def _rows(self, exact: Exact) -> Rows:
        """The same rows in floats."""
        (n, p), (first, last) = exact.x.shape, (self._floats(end) for end in exact.y)
        kinds: dict[str, list[Piece]] = {}
        for piece in exact.pieces:
            kinds.setdefault("l2" if piece.vectors is None else "choice", []).append(piece)
        x, r, w = (self._floats(part) for part in (exact.x, exact.r, exact.w))
        found = Rows(x, r, 0.5 * (first + last), 0.5 * (last - first), w)
        for kind, some in kinds.items():
            vectors = [np.diag(piece.radii) if piece.vectors is None else piece.vectors for piece in some]
            place = [
                np.broadcast_to(piece.row * p + piece.cells, part.shape)
                for piece, part in zip(some, vectors, strict=True)
            ]
            sizes = np.array([len(part) for part in vectors], dtype=np.intp)
            symbol = np.repeat(np.arange(sizes.sum()), np.repeat([len(piece.cells) for piece in some], sizes))
            values = np.concatenate([self._floats(part).ravel() for part in vectors])
            cells = np.concatenate([part.ravel() for part in place])
            linear = sparse.csr_matrix((values, (cells, symbol)), shape=(n * p, sizes.sum()))
            linear.eliminate_zeros()
            ones, rows = np.ones(sizes.sum()), np.array([piece.row for piece in some], dtype=np.intp)
            segments = Segments(kind, sizes, rows, -ones if kind == "l2" else 0.0 * ones, ones)
            found = replace(found, pieces=(*found.pieces, Pieces(linear, segments)))
        return found

    def ranges(self) -> tuple[Arrays, list[checker.Ends]]:
        """Ranges that prove themselves, their multipliers, and what the checker then knows."""
        found, _ = Search(self.problem).repeated()
        for _ in range(ATTEMPTS):
            if found is None:
                break
            z = _like([(_gridded(low), _gridded(high)) for low, high in _pairs(found)])
            arrays = {"c": self.problem.c}
            for part, (low, high) in enumerate(_pairs(z)):
                arrays |= {f"low{part}": low, f"high{part}": high}
            ends = [(self.exact.unit.exact(low), self.exact.unit.exact(high)) for low, high in _pairs(z)]
            a, own, _ = self.problem.queries(z)
            given: list[dict[str, Array]] = []
            stops = np.cumsum([len(low) for low, _ in _pairs(z)]).tolist()
            for start, stop in pairwise([0, *stops]):
                some = a[start:stop], own[start:stop]
                given += [self.multipliers(z, sign * some[0], some[1], sign) for sign in (-1.0, 1.0)]
            arrays |= {f"range_{name}": np.concatenate([one[name] for one in given]) for name in given[0]}
            proven, failures = checker.Under(self.exact, ends, self.tilt).proven(ends, self._given(arrays, "range"))
            if not failures:
                return arrays, proven
            found = self._wider(z, proven)
        raise Diverged(
            "The ranges of this fit do not prove themselves one by one, and cases are more than a certificate holds: use a "
            "smaller C or a smaller eps."
        )

    def claims(self, proven: list[checker.Ends], tests: Exact, *, numbers: bool) -> Arrays:
        """The claims that follow about the test rows: their classes, or both ends of their ranges."""
        z = self._ranges(proven)
        under, x = checker.Under(self.exact, proven, self.tilt), self._floats(tests.x)
        score = x @ self.problem.c
        rows, signs = np.arange(len(x)), np.where(score > 0, 1, -1)
        if numbers:
            rows, signs = np.repeat(rows, 2), np.tile([1, -1], len(x))
        by = self.multipliers(z, -signs[:, None] * x[rows], np.full(len(rows), -1, dtype=np.intp), 1.0)
        given = self._given({f"claim_{name}": array for name, array in by.items()}, "claim")
        reach, k = tests.reach(under.far), self.exact.unit.k
        values = [
            under.value(-int(s) * tests.x[i], given, q) + (reach[i] << (2 * k))
            for q, (i, s) in enumerate(zip(rows, signs, strict=True))
        ]
        ends = _gridded(np.array([-value / 2 ** (4 * k) for value in values]))
        ends = ends - np.maximum(np.abs(ends) * 2.0**-50, 2 * FINEST)
        ends = _gridded(ends)
        keep = np.full(len(rows), True) if numbers else ends > 0
        found = {"rows": rows, "signs": signs, "ends": ends, **by}
        return {f"claim_{name}": array[keep] for name, array in found.items()}

    def _given(self, arrays: Arrays, name: str) -> checker.Given:
        names = ["u", "lam", *(f"dirty{g}" for g in range(len(self.exact.groups)))]
        return [self.exact.unit.exact(arrays[f"{name}_{part}"]) for part in names]

    def multipliers(self, z: Ranges, a: Array, own: Index, sign: float) -> dict[str, Array]:
        """Good ones, of all queries."""
        table = self.problem.table
        dual = Dual(table, self.problem.loss, z, self.problem.tau, 3)
        value, by = dual.searched(a, own, sign)
        best, better = dual.best(a, own, sign)
        some = (best < value)[:, None]
        u, lam = np.where(some, better.u, by.u), np.where(some, better.lam, by.lam)
        found = {"u": u, "lam": lam}
        for g, (budget, known) in enumerate(zip(table.budgets, dual.by, strict=True)):
            old = lam[:, budget.rows]
            kappa = known.envelope(u @ budget.by.x.T >= 0, np.clip(by.theta @ budget.by.x.T, known.low, known.high))[1]
            new = kappa * dot(known.worst(known.slopes(u, kappa * (u @ budget.by.x.T))), u)
            same = (budget.by.x == table.rows.x[budget.rows]).all(axis=1)
            found[f"dirty{g}"] = np.where(same, old, new)
        return {name: _gridded(array) for name, array in found.items()}

    def _ranges(self, ends: list[checker.Ends]) -> Ranges:
        return _like([(self._floats(low), self._floats(high)) for low, high in ends])

    def _wider(self, z: Ranges, proven: list[checker.Ends]) -> Ranges:
        """The hull of the ranges and of what came out of them, a little wider."""
        found, centre = self._ranges(proven), _pairs(self.problem.point())
        pairs = []
        for (low, high), (below, above), (middle, _) in zip(_pairs(z), _pairs(found), centre, strict=True):
            low, high = np.minimum(low, below), np.maximum(high, above)
            pairs.append((middle - WIDER * (middle - low), middle + WIDER * (high - middle)))
        return _like(pairs)


def _pairs(z: Ranges) -> list[tuple[Array, Array]]:
    return [(z.low, z.high), (z.s_low, z.s_high), *z.by]


def _like(pairs: list[tuple[Array, Array]]) -> Ranges:
    return Ranges(*pairs[0], *pairs[1], tuple(pairs[2:]))


def _gridded(values: Array) -> Array:
    """The next multiples of the grid: any numbers near good multipliers do."""
    return np.asarray(np.round(values / FINEST) * FINEST)
