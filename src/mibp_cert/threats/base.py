"""What a threat must offer: a description of what may be wrong, that becomes a set of datasets once bound to data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from mibp_cert.data import Dataset
from mibp_cert.sets import ThreatSet
from mibp_cert.threats.words import ANY_ROW


class Threat(ABC):
    """A description of what may be wrong with the data."""

    @abstractmethod
    def bind(self, clean: Dataset) -> ThreatSet:
        """The set of datasets around `clean`; raises `UserError` if the description does not fit the data."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The description as plain data, with at least `kind`."""

    # What others ask of a threat; where a threat does not say, the careful answer is given.

    def touches_labels(self) -> bool:
        """May a label or target be other than handed in?"""
        return True

    def reads_labels(self) -> bool:
        """Can what may be wrong with a row's features depend on its label?"""
        return True

    def uses_rows(self) -> bool:
        """Does it name rows by their numbers, so that it makes sense for one table only?"""
        return True

    def knows_missing(self) -> bool:
        """Does it, or a part of it, say that missing values may be anything valid?"""
        return False

    def words(self, rows: str = ANY_ROW) -> str:
        """What may be wrong, as a clause a person can read; `rows`: where it acts, empty if the sentence around it says so."""
        return str(self.to_json())
