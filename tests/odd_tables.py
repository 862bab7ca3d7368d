"""What odd files are made of, and how one is read: `answer` says what came of it in a line."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mibp_cert.certify.columns import column_records
from mibp_cert.data.reading import Reading, read_file
from mibp_cert.data.table import notes, split_table
from mibp_cert.errors import UserError
from mibp_cert.report.terminal import columns_text

ROWS = 40
RNG = np.random.default_rng(14)
SIZE = [float(v) for v in RNG.uniform(1, 9, ROWS).round(2)]
SIZE[:2] = [1.25, 8.75]
MOOD = ["good", "fair", "bad", *RNG.choice(["good", "fair", "bad"], ROWS - 3).tolist()]
Y = ["yes" if size + (mood == "bad") > 5 else "no" for size, mood in zip(SIZE, MOOD, strict=True)]
SAME = r"^40 rows: size number, 1\.\d+ to 8\.\d+; mood 3 categories: bad, fair, good; y target, 2 classes: no, yes"
"""The table above, read rightly."""


@dataclass(frozen=True)
class Odd:
    """A file, how it is to be read, and what must come of it."""

    name: str
    content: bytes | None
    """None: there is no such file."""
    expected: str
    """A pattern of the answer."""
    read: bool
    options: dict[str, Any] = field(default_factory=dict)
    """As `Reading` takes them, and the seed."""
    file: str = "data.csv"
    same: bool = False
    """Whether every value must be that of the table above."""


def answer(odd: Odd, folder: Path) -> tuple[bool, str]:
    """Was the file read? And the answer in one line: its rows and columns, or the sentence."""
    path = folder / odd.file
    if odd.file == "folder":
        path.mkdir(exist_ok=True)
    elif odd.content is not None:
        path.write_bytes(odd.content)
    options = {"target": "y", **odd.options}
    seed = options.pop("seed", 0)
    try:
        reading = Reading(**options)
        table = read_file(path, reading)
        said = [*table.notes, *notes(table.frame, reading)[1:]]
        data = split_table(table.frame, reading, seed, "odd", origin=table.origin)
    except UserError as error:
        return False, str(error).replace(str(folder), "").replace("/" + odd.file, odd.file)
    if odd.same:
        assert table.frame["size"].tolist() == SIZE
        assert table.frame["mood"].tolist() == MOOD
        assert table.frame["y"].tolist() == Y
    lines = [" ".join(line.split()) for line in columns_text(column_records(data), 12).splitlines()]
    return (
        True,
        f"{sum(map(len, data.parts.values()))} rows: {'; '.join(lines)}{''.join(f' [{note}]' for note in said)}",
    )


# The table, and others like it --------------------------------------------------------------------------------------------


def grid(*columns: tuple[str, Sequence[Any]], sep: str = ",", end: str = "\n") -> str:
    """Columns as text; what holds the separator is quoted."""
    cells = [[name, *map(str, values)] for name, values in columns]
    quoted = [[f'"{cell}"' if sep in cell else cell for cell in column] for column in cells]
    return "".join(sep.join(row) + end for row in zip(*quoted, strict=True))


def table(
    sep: str = ",", end: str = "\n", *before: tuple[str, Sequence[Any]], size: Callable[[float], str] = str
) -> str:
    return grid(*before, ("size", [size(v) for v in SIZE]), ("mood", MOOD), ("y", Y), sep=sep, end=end)


def one(values: Sequence[Any], name: str = "a", sep: str = ",") -> bytes:
    """A table with one more column, first; values are repeated until there are enough."""
    some = [values[i % len(values)] for i in range(ROWS)]
    return table(sep, "\n", (name, some)).encode()


def alone(values: Sequence[Any]) -> bytes:
    """A table of that column and the target."""
    return grid(("a", [values[i % len(values)] for i in range(ROWS)]), ("y", Y)).encode()


def target(values: Sequence[Any]) -> bytes:
    return grid(("size", SIZE), ("y", [values[i % len(values)] for i in range(ROWS)])).encode()


def sheet(rows: Sequence[Sequence[Any]], sheets: Sequence[str] = ("Sheet1",)) -> bytes:
    """A workbook, written by hand; the table is in its first sheet."""

    def cell(value: Any) -> str:
        if isinstance(value, float | int):
            return f"<c><v>{value!r}</v></c>"
        return f'<c t="inlineStr"><is><t>{value}</t></is></c>'

    main, types = "http://schemas.openxmlformats.org/spreadsheetml/2006/main", "application/vnd.openxmlformats-"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    listed = "".join(f'<sheet name="{n}" sheetId="{i}" r:id="rId{i}"/>' for i, n in enumerate(sheets, 1))
    linked = "".join(
        f'<Relationship Id="rId{i}" Type="{office}/worksheet" Target="worksheets/sheet{i}.xml"/>'
        for i in range(1, len(sheets) + 1)
    )
    parts = "".join(
        f'<Override PartName="/xl/worksheets/sheet{i}.xml" ContentType="{types}officedocument.spreadsheetml.worksheet+xml"/>'
        for i in range(1, len(sheets) + 1)
    )
    body = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    files = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
        f'ContentType="{types}package.relationships+xml"/><Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{types}officedocument.spreadsheetml.sheet.main+xml"/>'
        f"{parts}</Types>",
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>{listed}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">{linked}</Relationships>',
    }
    for i in range(1, len(sheets) + 1):
        content = body if i == 1 else ""
        files[f"xl/worksheets/sheet{i}.xml"] = f'<worksheet xmlns="{main}"><sheetData>{content}</sheetData></worksheet>'
    return zipped({name: '<?xml version="1.0" encoding="UTF-8"?>' + text for name, text in files.items()})


def zipped(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


CELLS: list[list[Any]] = [["size", "mood", "y"], *map(list, zip(SIZE, MOOD, Y, strict=True))]
PLAIN = table().encode()
