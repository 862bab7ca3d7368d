"""What a threat means for an ensemble of parts: how many parts wrong rows reach, and what is left for the parts' own
certificates.

A wrong row is counted where it was, and where it may have come from: with `k` of them,

| may be wrong | `content` | `features` | `key` | `row` |
|---|---|---|---|---|
| anything (`Arbitrary`) | 2k | 2k | k | k |
| labels (`LabelFlips(k)`) | 2k | k | k | k |
| some cells of k rows (`Budget(…, rows=k)`) | 2k | 2k | k | k |
| rows come or go (`Removed`, `Added`) | k | k | k | refused |

*Proof.* Which part a row is in depends on what the column says alone (`rows`). What is wrong with a row moves it from one
part to another only if it changes what the part is chosen by; then both are reached, else one. A row that comes or goes
changes one part, but moves the numbers of others. The parts of different rows may coincide, which reaches fewer.

Doubt in *every* row reaches every part. It is left to the parts' own certificates, and refused where it could change what
parts are chosen by: then rows would move between them, and no part would be known. Its conditions must not speak of numbers
of rows, which are others in a part.

Of the limited ones, the first that stays in its part is left to certificates as well, where the learner has some: they say
how many such rows *inside* of it a part survives (`knapsack`). All others are lost parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mibp_cert.data.dataset import find_name
from mibp_cert.ensembles.rows import Rows
from mibp_cert.errors import UserError
from mibp_cert.threats import Added, All, Arbitrary, Budget, Catalogued, LabelFlips, Missing, Nothing, Removed, Where

OF_FEATURES = ("linf", "l1", "l2", "rounded", "monotone", "exchanged", "any-category", "confusable", "shift", "missing")
"""Kinds that leave labels alone."""


@dataclass(frozen=True, eq=False)
class Reach:
    """Wrong rows reach `lost` parts, of which nothing is known; in every row there may be `noise`; and `changes` rows may be
    wrong as `inside` says, each in a part that may survive it."""

    lost: int = 0
    noise: Catalogued = Nothing()  # noqa: RUF009  a frozen description
    inside: Catalogued | None = None
    changes: int = 0

    def levels(self, rows: Rows, classes: int, most: int) -> tuple[Catalogued | None, ...]:
        """What may be wrong inside a part with 0, 1, … wrong rows, up to `most`, as far as a certificate of its learner
        speaks of it: the classes that the learner knows must be all that there may be, and each must keep a row."""
        _, counts = np.unique(rows.y, return_counts=True)
        if of_labels(self.inside):
            # A label may become one that the part lacks; rows that go bring none.
            flips = any(isinstance(leaf, LabelFlips) for leaf in leaves(self.inside or Nothing()))
            most = 0 if flips and len(counts) < classes else min(most, int(counts.min(initial=len(rows))) - 1)
        most = min(most, self.changes)
        return tuple(in_part(self.level(m), rows) for m in range(max(0, most) + 1))

    def stands(self, rows: Rows, most: int) -> int:
        """How many of 0, 1, … `most` wrong rows a part that has one class or no rows stands: its vote is that of the labels."""
        if not len(rows) or not of_labels(self.inside):
            return most + 1
        flips = any(isinstance(leaf, LabelFlips) for leaf in leaves(self.inside or Nothing()))
        return 1 if flips else min(len(rows), most + 1)

    def level(self, m: int) -> Catalogued | None:
        """What may be wrong inside a part that `m` of the wrong rows are in; None: nothing."""
        parts = [] if isinstance(self.noise, Nothing) else [self.noise]
        if m:
            assert self.inside is not None
            parts.append(limited(self.inside, m))
        return All.of(parts) if parts else None

    @property
    def plain(self) -> bool:
        """Is all that may be wrong in lost parts?"""
        return self.level(0) is None and self.inside is None


def reach(threat: Any, by: str, *, certified: bool) -> Reach:
    """What a threat means where parts are chosen by `by`, for learners with certificates or without.

    >>> reach(Arbitrary(3), "content", certified=False).lost, reach(Arbitrary(3), "row", certified=False).lost
    (6, 3)
    """
    if not isinstance(threat, Catalogued):
        raise UserError(
            f"An ensemble counts the rows that a threat reaches, which only threats of the catalogue say; got {threat!r}."
        )
    lost, noise, inside, changes = 0, [], None, 0
    for piece in threat.threats if isinstance(threat, All) else (threat,):
        rows = row_limit(piece)
        if rows is None:
            if not isinstance(piece, Nothing):
                _check_noise(piece, by, certified=certified)
                noise.append(piece)
            continue
        cost = cost_of(piece, by)
        stays = (
            cost == 1
            and not piece.uses_rows()
            and not any(isinstance(leaf, Added | Arbitrary) for leaf in leaves(piece))
        )
        if certified and rows and inside is None and stays:
            inside, changes = piece, rows
        else:
            lost += cost * rows
    return Reach(lost, All.of(noise), inside, changes)


@dataclass(frozen=True)
class Wrong:
    """What a threat means for bags: so many rows are altered in any way, removed, added, and so many have other values in as
    few cells as flips hide."""

    altered: int = 0
    removed: int = 0
    added: int = 0
    flipped: int = 0

    @classmethod
    def of(cls, threat: Any, hidden: Callable[[Catalogued], bool]) -> Wrong:
        """Of a threat that limits rows; `hidden`: are a row's wrong cells such as flips hide?

        >>> Wrong.of(Arbitrary(3) & Removed(1), lambda piece: False)
        Wrong(altered=3, removed=1, added=0, flipped=0)
        """
        if not isinstance(threat, Catalogued):
            raise UserError(f"Bags count wrong rows, which only threats of the catalogue say; got {threat!r}.")
        found = dict.fromkeys(("altered", "removed", "added", "flipped"), 0)
        for piece in threat.threats if isinstance(threat, All) else (threat,):
            if isinstance(piece, Nothing):
                continue
            rows, kinds = row_limit(piece), {type(leaf) for leaf in leaves(piece)}
            if rows is None:
                raise UserError(
                    f"Every row may be off ({piece.words()}), and every bag with them: say how many rows may be wrong, such as "
                    "Arbitrary(3)."
                )
            moved = "removed" if kinds == {Removed} else "added" if kinds == {Added} else ""
            # Two kinds of wrong cells may meet in one row, and be too many for it: flips hide one kind.
            few = not found["flipped"] and hidden(piece)
            found[moved or ("flipped" if few else "altered")] += rows
        return cls(**found)


def cell_limit(piece: Catalogued) -> int | None:
    """In how many cells of a row this may act at most, labels apart; None: in any number."""
    if isinstance(piece, Budget) and piece.cells is not None:
        return int(piece.cells)
    return cell_limit(piece.threat) if isinstance(piece, Budget | Where) else None


def row_limit(piece: Catalogued) -> int | None:
    """In how many rows this may act at most; None: in any number."""
    if isinstance(piece, Where):
        return row_limit(piece.threat)
    if isinstance(piece, Budget):
        inner = row_limit(piece.threat)
        return inner if piece.rows is None else int(piece.rows)
    if isinstance(piece, LabelFlips | Removed | Added | Arbitrary):
        return None if piece.at_most is None else int(piece.at_most)
    return None


def limited(piece: Catalogued, rows: int) -> Catalogued:
    """The same threat with another limit of rows."""
    if isinstance(piece, Where) or (isinstance(piece, Budget) and piece.rows is None):
        return replace(piece, threat=limited(piece.threat, rows))
    return replace(piece, **{"rows" if isinstance(piece, Budget) else "at_most": rows})


def leaves(threat: Catalogued) -> list[Catalogued]:
    """The threats of the catalogue that it is made of."""
    return [leaf for inner in threat.inner for leaf in leaves(inner)] if threat.inner else [threat]


def cost_of(piece: Catalogued, by: str) -> int:
    """How many parts one wrong row reaches."""
    if piece.changes_rows() and by == "row":
        raise UserError(
            f"Parts are chosen by the numbers of rows, which {piece.changes_rows()} moves: choose them by content "
            "(by='content') or by something else that is known of each row (by='key')."
        )
    stay: tuple[type, ...] = (Removed, Added, *((LabelFlips,) if by == "features" else ()))
    return 1 if by in ("key", "row") or all(isinstance(leaf, stay) for leaf in leaves(piece)) else 2


def _check_noise(piece: Catalogued, by: str, *, certified: bool) -> None:
    if cost_of(piece, by) == 2:
        raise UserError(
            f"Parts are chosen by the {by} of rows, which is itself in doubt ({piece.words()}): rows would move between parts. "
            "Choose them by what cannot be wrong: the row's number (by='row'), or a key (by='key')."
        )
    if not certified:
        raise UserError(
            f"Every part may be off ({piece.words()}), so its learner needs a certificate of its own: take "
            "CertifiedLogisticRegression as the estimator, or limit the rows that are wrong."
        )
    if of_labels(piece):
        raise UserError(
            f"A part is certified as long as each of its classes keeps a row, which doubt in every row does not promise ("
            f"{piece.words()}): say how many rows may be wrong, such as LabelFlips(3)."
        )
    if piece.uses_rows():
        raise UserError(
            "The threat names rows by their numbers, which are others inside a part; use a condition such as "
            ".where(column('age') >= 65)."
        )


def of_labels(threat: Catalogued | None) -> bool:
    """May it change which labels there are, or is it not known that it leaves them?"""
    return threat is not None and any(leaf.kind not in OF_FEATURES for leaf in leaves(threat))


def in_part(threat: Catalogued | None, rows: Rows) -> Catalogued | None:
    """The threat in one part: missing values are doubted in the columns that miss some there."""
    if threat is None:
        return None
    pieces = threat.threats if isinstance(threat, All) else (threat,)
    found = [piece for old in pieces if (piece := _with_gaps(old, rows)) is not None]
    return All.of(found) if found else None


def _with_gaps(piece: Catalogued, rows: Rows) -> Catalogued | None:
    if isinstance(piece, Where):
        inner = _with_gaps(piece.threat, rows)
        return None if inner is None else replace(piece, threat=inner)
    if not isinstance(piece, Missing):
        return piece
    some = _unknown(piece, rows)
    return replace(piece, columns=some) if some else None


def _unknown(piece: Missing, rows: Rows) -> list[str]:
    """The columns in which a value is missing as this says it: NaN, or the marker."""
    frame = pd.DataFrame(rows.x).rename(columns=str)
    names, given = list(frame.columns), np.atleast_1d(np.asarray(piece.columns))
    if given.dtype == bool and len(given) == len(names):
        names = [name for name, picked in zip(names, given.tolist(), strict=True) if picked]
    elif piece.columns is not None:
        names = [names[find_name(name, names)] for name in given.tolist()]
    if piece.marker is None:
        return [name for name in names if frame[name].isna().any()]
    # What is no marker is refused where it is bound.
    return [name for name in names if not np.isscalar(piece.marker) or (frame[name] == piece.marker).any()]


def check_known(threat: Catalogued | None, rows: Rows, estimator: Any) -> None:
    """Refuse what a part would have to learn from its own rows, and would learn otherwise from others: which categories a
    column has, and between which ends a missing number lies."""
    told, text = getattr(estimator, "categorical", None), rows.text()
    known = {str(name) for name in told} if isinstance(told, Mapping) else set()
    if (told is not None and not isinstance(told, Mapping)) or not text <= known:
        raise UserError(
            "A part may lack categories that others have: name them for every column of categories, "
            f"categorical={{column: [categories]}}; open are {', '.join(sorted(text - known)) or 'those of the columns named'}."
        )
    check_ends(threat, rows, estimator)
    for leaf in [] if threat is None else leaves(threat):
        if isinstance(leaf, Missing):
            _check_ends(_unknown(leaf, rows), rows, estimator)


def check_ends(threat: Catalogued | None, rows: Rows, estimator: Any) -> None:
    """Refuse missing numbers, also of rows that are asked about, whose ends a part would take from its own rows."""
    if threat is not None and threat.knows_missing():
        _check_ends(rows.gaps(), rows, estimator)


def _check_ends(columns: list[str], rows: Rows, estimator: Any) -> None:
    told = {str(name) for given in ("categorical", "ranges") for name in getattr(estimator, given, None) or ()}
    bare = set(columns) - rows.text() - told
    if bare:
        raise UserError(
            "Between which ends a missing number lies must be known without the rows of its part: give "
            f"ranges={{column: (low, high)}} for {', '.join(sorted(bare))}."
        )
