"""Files: what kind of file it is, and its cells as text under the names of the first line.

The content decides what a file is, not its name. Text is read strictly, and every row keeps the line that it is in; workbooks and
Parquet files are read by pandas, and their cells become text again, so that one set of rules decides what a column is.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mibp_cert.errors import UserError

SEPARATORS = ",;\t|"
"""What may stand between fields, by preference; a space only where none of these does."""
SNIFFED = 20
"""So many rows decide what stands between fields."""
KNOWN = "CSV, TSV or other text, also packed by gzip, .xlsx and .parquet"
BOMS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"} | {
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Marks of the byte order that say how a text is encoded; the longer ones first."""
GZIP, ZIP, PARQUET = b"\x1f\x8b", b"PK\x03\x04", b"PAR1"
STRANGE = {
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save it as .xlsx or CSV",
    b"BZh": "packed by bzip2: unpack it",
    b"\xfd7zXZ": "packed by xz: unpack it",
    b"\x28\xb5\x2f\xfd": "packed by zstd: unpack it",
    b"7z\xbc\xaf": "packed by 7-Zip: unpack it",
    b"%PDF": "a PDF: save the table in it as CSV",
    b"ARROW1": "an Arrow file: save it as .parquet or CSV",
    b"\x89HDF": "an HDF5 file: save the table in it as CSV",
    b"SQLite format 3": "an SQLite database: save the table in it as CSV",
    b"\x89PNG": "a picture: save the table in it as CSV",
    b"\xff\xd8\xff": "a picture: save the table in it as CSV",
    b"$FL2": "an SPSS file: save it as CSV",
    b"<stata_dta>": "a Stata file: save it as CSV",
    b"\x80\x04": "a pickle of Python: save the table in it as CSV",
    b"\x80\x05": "a pickle of Python: save the table in it as CSV",
    b"\x93NUMPY": "a NumPy array: save it as CSV, with the names of its columns in the first line",
}
"""How files begin that are no tables, or none that are read."""
MARKUP = re.compile(r'\s*(<!doctype|<html|<\?xml|<table|\{\s*"|\[\s*[{\[])', re.IGNORECASE)
DIRECTIVE = re.compile(r'(\s*"?sep=(.)"?[ \t]*)(?=[\r\n])', re.IGNORECASE)
"""Excel's own first line that names the separator."""


@dataclass(frozen=True)
class Cells:
    """A file as text: the names of its columns, and its rows by the place that they have in the file."""

    header: list[str]
    rows: dict[int, list[str]]
    place: str = "line"
    """What a place is: a line, or a row of a sheet."""
    notes: tuple[str, ...] = ()


def read_cells(path: Path, separator: str | None, encoding: str, decimal: str) -> Cells:
    """The cells of a file; every row has as many as the header. `decimal`: how numbers of workbooks are written."""
    content = _unpacked(path)
    if not content.strip():
        raise UserError(f"{path} is empty; the first line must name the columns.")
    for start, what in STRANGE.items():
        if content.startswith(start):
            raise UserError(f"{path} is {what} (what can be read: {KNOWN}).")
    if content.startswith(ZIP):
        cells = _workbook(path, content, decimal)
    elif content.startswith(PARQUET):
        cells = _parquet(path, content, decimal)
    else:
        cells = _text(path, _decoded(path, content, encoding), separator)
    if not cells.rows:
        raise UserError(f"{path} has a header but no rows; put the data below it.")
    return cells


def _unpacked(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(GZIP) else content
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; name a file in it.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{path} is packed by gzip but damaged or cut short; get it again.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; look at its name and rights.") from None


# Text -------------------------------------------------------------------------------------------------------------------


def _decoded(path: Path, content: bytes, encoding: str) -> str:
    """The text without a mark of the byte order; such a mark says how the text is encoded where nobody said otherwise."""
    if encoding.lower() in ("utf-8", "utf8"):
        encoding = next((name for mark, name in BOMS.items() if content.startswith(mark)), encoding)
    if _is_wide(encoding) and b"\0" not in content:  # where every end of a line has one
        raise UserError(f"{path} is not {encoding} text; leave --encoding out, or name another one.")
    try:
        text = content.decode(encoding).removeprefix("\ufeff")
    except UnicodeError as error:  # also a mark of the byte order that is not there
        where = ""
        if isinstance(error, UnicodeDecodeError):
            line = content.count(b"\n", 0, error.start) + 1
            where = f": byte {content[error.start]:#x} in line {line}"
        raise UserError(
            f"{path} is not {encoding} text{where}; save it as UTF-8, or name its encoding, such as --encoding latin-1."
        ) from None
    except (LookupError, ValueError, TypeError):
        raise UserError(
            f"There is no encoding called {encoding!r} for text; utf-8, utf-16 and latin-1 are common."
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(
            f"{path} is no plain text: there is a NUL byte in line {line}; if it was saved as Unicode, name its encoding, "
            "such as --encoding utf-16, else save it as UTF-8 again."
        )
    if MARKUP.match(text):
        raise UserError(f"{path} holds JSON or markup, no table; save it as CSV with the names of the columns first.")
    return text


def _is_wide(encoding: str) -> bool:
    """Does every character take two bytes or more?"""
    try:
        return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
    except (LookupError, ValueError):
        return False


def _text(path: Path, text: str, separator: str | None) -> Cells:
    """Header and rows of a text."""
    said = DIRECTIVE.match(text)
    if said is not None:
        text, separator = text[said.end(1) :], separator or said[2]
    try:
        mark = checked_separator(separator) if separator is not None else _separator(text)
        (line, header), *found = _parsed(text, mark)
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as a table: {error}; check its quotes and separators.") from None
    rows = {at: fields for at, fields in found if any(field.strip() for field in fields)}
    empty = len(found) - len(rows)
    first = next(iter(rows), 0)
    quoted = bool(first) and text.splitlines()[first - 1].lstrip().startswith('"')
    notes = (f"{empty} line(s) without any value are left out.",) if empty else ()
    return _aligned(path, Cells(header, rows, notes=notes), mark, line, quoted=quoted)


def checked_separator(given: str) -> str:
    r"""What is to stand between fields, as one character.

    >>> checked_separator("\\t")
    '\t'
    """
    mark = {"\\t": "\t", "tab": "\t"}.get(given, given)
    if len(mark) != 1 or mark in '"\r\n':
        raise UserError(
            f"--separator takes one character that is no quote, such as ';' or '\\t' for a tab; got {given!r}."
        )
    return mark


def _parsed(text: str, mark: str) -> Iterator[tuple[int, list[str]]]:
    """Lines and their fields, without empty lines."""
    if mark == " ":
        text = re.sub(r"^[ ]+|[ ]+$", "", text, flags=re.MULTILINE)  # columns that are aligned by spaces
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True, skipinitialspace=True)
    for fields in lines:
        if len(fields) > 1 or (fields and fields[0].strip()):
            yield lines.line_num, fields


def _separator(text: str) -> str:
    """What makes the most columns, and as many fields in the first rows; spaces only if nothing else makes two."""
    mark = max(SEPARATORS, key=lambda mark: _fit(text, mark))
    return " " if _fit(text, mark)[1] == 1 and _fit(text, " ")[0] else mark


def _fit(text: str, mark: str) -> tuple[bool, int]:
    """Do the first rows have as many fields as the header, or all of them one more? And how many has it?"""
    try:
        header, *rows = (fields for _, fields in islice(_parsed(text, mark), SNIFFED + 1))
    except csv.Error:
        return False, 1
    width, widths = len(header), {len(fields) for fields in rows}
    return width > 1 and widths in ({width}, {width + 1}), width


def _aligned(path: Path, cells: Cells, mark: str, line: int, *, quoted: bool) -> Cells:
    """Every row has as many fields as the header. Where all of them have one more, the first are the names of the rows, as R
    writes them, or the last are empty."""
    header, rows = cells.header, cells.rows
    width, remark = len(header), header[0].lstrip().startswith("#")
    if rows and not remark and all(len(fields) == width + 1 for fields in rows.values()):
        if not any(fields[-1].strip() for fields in rows.values()):
            return replace(cells, rows={at: fields[:-1] for at, fields in rows.items()})
        first = [fields[0].strip() for fields in rows.values()]
        numbers = not any(re.search(r"[^\W\d_]", name) for name in first)
        # Unquoted numbers between commas may be the whole part of numbers with a decimal comma.
        if len(set(first)) == len(first) and not (mark == "," and numbers and not quoted):
            return replace(cells, header=["", *header])
        raise UserError(
            f"Every row of {path} has {width + 1} fields, but the header has {width}: name every column in the first line, or, "
            "if numbers are written with a decimal comma, save the file with ';' between its fields."
        )
    for at, fields in rows.items():
        if len(fields) != width:
            if width == 1 or remark:
                raise UserError(
                    f"Line {line} of {path} should name the columns, but has {width} field(s), and line {at} has {len(fields)}; "
                    "remove what stands above the names, or name the separator (--separator)."
                )
            raise UserError(
                f"Line {at} of {path} has {len(fields)} fields, but the header has {width} (separated by {mark!r}); correct that "
                "line, or name the separator (--separator)."
            )
    return cells


# Workbooks and Parquet --------------------------------------------------------------------------------------------------


def _workbook(path: Path, content: bytes, decimal: str) -> Cells:
    """The first sheet of an Excel workbook."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        raise UserError(f"{path} is a damaged workbook or zip archive; get it again.") from None
    if not any(name.startswith("xl/") for name in names):
        raise UserError(f"{path} is a zip archive and no .xlsx workbook: unpack it, or save it as .xlsx or CSV first.")

    def read() -> tuple[list[str], pd.DataFrame]:
        with pd.ExcelFile(io.BytesIO(content), engine="openpyxl") as book:
            sheets = [str(name) for name in book.sheet_names]
            return sheets, book.parse(sheets[0], header=None, dtype=object, na_filter=False)

    sheets, table = _by_pandas(path, "an Excel workbook", "openpyxl", read)
    lines = {i + 1: [_written(value, decimal) for value in row] for i, row in enumerate(table.to_numpy(dtype=object))}
    rows = {at: fields for at, fields in lines.items() if any(field.strip() for field in fields)}
    if not rows:
        raise UserError(f"The first sheet of {path}, {sheets[0]!r}, is empty; put the table into the first sheet.")
    others = f"{path} has {len(sheets)} sheets; the first one, {sheets[0]!r}, is read."
    header = rows.pop(next(iter(rows)))
    return Cells(header, rows, "row", (others,) if len(sheets) > 1 else ())


def _parquet(path: Path, content: bytes, decimal: str) -> Cells:
    """A Parquet file; an index with a name is a column."""
    table = _by_pandas(path, "a Parquet file", "pyarrow", lambda: pd.read_parquet(io.BytesIO(content)))
    named = any(name is not None for name in table.index.names)
    table = table.reset_index() if named else table
    columns = [[_written(value, decimal) for value in table.iloc[:, j].astype(object)] for j in range(table.shape[1])]
    rows = {i + 1: list(fields) for i, fields in enumerate(zip(*columns, strict=True))}
    return Cells([str(name) for name in table.columns], rows, "row")


def _by_pandas(path: Path, what: str, package: str, read: Callable[[], Any]) -> Any:
    """What pandas reads; sentences for a package that is not there, and for files that it cannot read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about styles and the like
            return read()
    except ImportError:
        raise UserError(f"{path} is {what}, which needs {package}: pip install {package}.") from None
    except Exception as error:  # whatever a damaged file brings up in another library
        raise UserError(
            f"{path} looks like {what}, but cannot be read as one ({type(error).__name__}); save it anew, or as CSV."
        ) from None


def _written(value: Any, decimal: str) -> str:
    """A cell as a person would write it; nothing where there is no value.

    >>> _written(2.0, "."), _written(0.5, ","), _written(None, ".")
    ('2', '0,5', '')
    """
    if value is None or value is pd.NA or value is pd.NaT:
        return ""
    if isinstance(value, float | np.floating):
        number = float(value)
        if np.isnan(number):
            return ""
        whole = number.is_integer() and abs(number) < 2**53
        return str(int(number)) if whole else repr(number).replace(".", decimal)
    return value.isoformat() if isinstance(value, date | datetime | time) else str(value)
