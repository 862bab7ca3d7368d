"""The rows that a certificate is about, read again: a file as it was read then, or a data set that comes with the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mibp_cert.data import NAMES, Split, load
from mibp_cert.data.reading import Reading, read_file
from mibp_cert.data.table import split_table
from mibp_cert.errors import UserError


def split_of(plain: Mapping[str, Any], path: Path | None = None, test_path: Path | None = None) -> Split:
    """The training and test rows; `path`: the user's own copy of the file. Whether they are the right ones, their hash says."""
    source, seed, reading = (plain.get(key) for key in ("source", "seed", "reading"))
    if not isinstance(seed, int) or not isinstance(source, str):
        raise UserError(
            "This certificate does not say how its rows are read; hand them to check_certificate(path, data) in Python."
        )
    if reading is None:
        if source not in NAMES:
            raise UserError(f"There is no data set called {source!r}; data sets are {', '.join(NAMES)}.")
        return load(source, seed, path)
    if path is None:
        raise UserError(f"This certificate is about the file {source!r}: say where yours is, with --data {source}.")
    if plain.get("test_file") is not None and test_path is None:
        raise UserError(f"Its test rows are in {plain['test_file']!r}: say where yours are, with --test-file.")
    if not isinstance(reading, Mapping) or set(reading) != {f.name for f in fields(Reading)}:
        raise UserError("This certificate does not say how its file is read as this version knows it.")
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in reading.items()}
    how = Reading(**given)
    spoken = plain.get("spoken") or []
    if not isinstance(spoken, list) or not all(isinstance(name, str) for name in spoken):
        raise UserError(f"Columns that were spoken of are a list of names; the certificate says {spoken!r}.")
    table = read_file(path, how, spoken=spoken)
    test = None if test_path is None else read_file(test_path, how, table).frame
    return split_table(table.frame, how, seed, path.stem, test, table.origin)
