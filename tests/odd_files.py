"""Files as people bring them: odd ones that must be read rightly, and malformed ones that must be refused in a sentence.

`ODD` holds more than 200 of them; `python benchmarks/odd_files.py` prints each with its answer.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import pickle
from importlib.util import find_spec
from typing import Any

from odd_tables import CELLS, MOOD, PLAIN, RNG, ROWS, SAME, SIZE, Odd, Y, alone, grid, one, sheet, table, target, zipped

EXCEL, PARQUET = (find_spec(name) is not None for name in ("openpyxl", "pyarrow"))
ODD: list[Odd] = []


def good(name: str, content: str | bytes, expected: str = SAME, *, file: str = "data.csv", **options: Any) -> None:
    content = content.encode() if isinstance(content, str) else content
    ODD.append(Odd(name, content, expected, True, options, file, expected.startswith(SAME)))


def bad(name: str, content: str | bytes | None, expected: str, *, file: str = "data.csv", **options: Any) -> None:
    content = content.encode() if isinstance(content, str) else content
    ODD.append(Odd(name, content, expected, False, options, file))


# Separators, ends of lines, encodings -------------------------------------------------------------------------------------

for _sep, _what in ((",", "commas"), (";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (" ", "spaces")):
    for _end, _line in (("\n", "LF"), ("\r\n", "CRLF"), ("\r", "CR")):
        good(f"{_what}, lines end with {_line}", table(_sep, _end))
good("no end of the last line", PLAIN.rstrip(b"\n"))
good("every cell quoted", "".join(",".join(f'"{c}"' for c in row) + "\n" for row in CELLS))
good("spaces around every cell", "".join(" , ".join(map(str, row)) + " \n" for row in CELLS))
good("spaces before quotes", "".join(", ".join(f'"{c}"' for c in row) + "\n" for row in CELLS))
good("columns aligned by spaces", "".join("".join(f"{c!s:>8}" for c in row) + "\n" for row in CELLS))
good("a .tsv file", table("\t"), file="data.tsv")
good("a .txt file with tabs", table("\t"), file="data.txt")
good("a .dat file", table(";"), file="data.dat")
good("no ending at all", PLAIN, file="data")
good("a name with spaces and an umlaut", PLAIN, file="meine Täbelle.csv")
good("Excel's line sep=;", "sep=;\n" + table(";"))
good("Excel's line sep=| with CRLF", "sep=|\r\n" + table("|", "\r\n"))
good("the separator named", table("|"), separator="|")
good(r"the separator named \t", table("\t"), separator="\\t")
good("the separator named tab", table("\t"), separator="tab")
good("commas in quoted cells between semicolons", one(["u, v", "w"], sep=";"), r"a 2 categories: u, v, w; size")
good("another separator is common in the header", grid(("a,b,c", SIZE), ("y", Y), sep=";"), r"a,b,c number")
bad("two characters as separator", table("|"), r"--separator takes one character.*got '\|\|'", separator="||")
bad("no character as separator", PLAIN, "--separator takes one character.*got ''", separator="")
bad("a quote as separator", PLAIN, "--separator takes one character", separator='"')
bad(
    "another separator than the file's",
    PLAIN,
    "There is no column 'y' in .*there are size,mood,y, separated by something else",
    separator=";",
)
for _code in ("utf-8-sig", "utf-16", "utf-32"):
    good(f"{_code}, not named", table().encode(_code))
good("UTF-16 of the other byte order", codecs.BOM_UTF16_BE + table().encode("utf-16-be"))
good("Unicode text of Excel: UTF-16, tabs", table("\t", "\r\n").encode("utf-16"), file="data.txt")
for _code in ("latin-1", "cp1252", "mac-roman", "cp1250"):
    _umlaut = grid(("größe", SIZE), ("y", Y)).encode(_code)
    good(f"{_code}, named", _umlaut, "größe number", encoding=_code)
    bad(f"{_code}, not named", _umlaut, "is not utf-8 text: byte 0x.. in line 1; .*--encoding latin-1")
good("Shift-JIS, named", grid(("大きさ", SIZE), ("y", Y)).encode("shift_jis"), "大きさ number", encoding="shift_jis")
good("UTF-8 with a mark, named utf-8-sig", table().encode("utf-8-sig"), encoding="utf-8-sig")
good("UTF-16, named", table().encode("utf-16"), encoding="utf-16")
good("UTF-16 without a mark, named", table().encode("utf-16-le"), encoding="utf-16-le")
bad("UTF-16 without a mark", table().encode("utf-16-le"), "NUL byte in line 1.*--encoding utf-16")
bad("UTF-8 named utf-16", PLAIN + b"x", "is not utf-16 text; leave --encoding out", encoding="utf-16")
bad("one strange byte in line 7", PLAIN.replace(b"\n", b"\xff\n", 7).replace(b"\xff\n", b"\n", 6), "0xff in line 7")
bad("no such encoding", PLAIN, "no encoding called 'utf-99'", encoding="utf-99")
bad("an encoding that is none of text", PLAIN, "no encoding called 'hex'", encoding="hex")
bad("an encoding without a name", PLAIN, "no encoding called ''", encoding="")
good("line breaks and quotes in cells", one(['p ""q""\nr'.join('""'), "s"]), r'a 2 categories: p "q" r, s')
good("names in other alphabets", grid(("размер", SIZE), ("y", Y)), "размер number")

# Packed files, and files that are no tables -------------------------------------------------------------------------------

good("a .csv.gz file", gzip.compress(PLAIN), file="data.csv.gz")
good("a .tsv.gz file", gzip.compress(table("\t").encode()), file="data.tsv.gz")
good("packed by gzip, but called .csv", gzip.compress(PLAIN))
good("text that is called .xlsx", PLAIN, file="data.xlsx")
good("text that is called .gz", PLAIN, file="data.csv.gz")
bad("gzip cut short", gzip.compress(PLAIN)[:100], "packed by gzip but damaged or cut short", file="data.csv.gz")
bad("gzip damaged", gzip.compress(PLAIN)[:40] + b"?" * 40, "damaged or cut short", file="data.csv.gz")
bad("gzip of nothing", gzip.compress(b""), "is empty", file="data.csv.gz")
bad(
    "a zip archive with a table",
    zipped({"data.csv": table()}),
    r"zip archive and no \.xlsx.*unpack it",
    file="data.zip",
)
bad("a zip archive cut short", zipped({"data.csv": table()})[:60], "damaged workbook or zip archive", file="data.xlsx")
_PIP = "needs openpyxl: pip install openpyxl"
for _name, _sheets, _cells, _then in (
    ("an .xlsx workbook", ["Sheet1"], CELLS, SAME),
    ("a workbook of three sheets", ["A", "B", "C"], CELLS, SAME + r".*3 sheets; the first one, 'A', is read"),
    ("a workbook with an empty line on top", ["Sheet1"], [[""], *CELLS], SAME),
):
    (good if EXCEL else bad)(_name, sheet(_cells, _sheets), _then if EXCEL else _PIP, file="data.xlsx")
(good if EXCEL else bad)("a workbook that is called .csv", sheet(CELLS), SAME if EXCEL else _PIP)
bad("an empty workbook", sheet([]), "is empty; put the table" if EXCEL else _PIP, file="data.xlsx")
bad("a ragged workbook", sheet([["a", "y"], [1, "u", 3]]), "has no name|no rows" if EXCEL else _PIP, file="data.xlsx")
bad(
    "a damaged workbook", zipped({"xl/workbook.xml": "?"}), "cannot be read as one" if EXCEL else _PIP, file="data.xlsx"
)
bad(
    "a damaged Parquet file", b"PAR1" + b"?" * 50,
    "cannot be read as one" if PARQUET else "needs pyarrow: pip install pyarrow", file="data.parquet",
)  # fmt: skip
bad(
    "an old Excel workbook", b"\xd0\xcf\x11\xe0\xa1\xb1" + bytes(100), "old Excel workbook: save it as", file="data.xls"
)
bad("packed by bzip2", bz2.compress(PLAIN), "packed by bzip2: unpack it", file="data.csv.bz2")
bad("packed by xz", lzma.compress(PLAIN), "packed by xz: unpack it", file="data.csv.xz")
bad("a PDF", b"%PDF-1.7\n" + PLAIN, "is a PDF: save the table")
bad("a picture", b"\x89PNG\r\n\x1a\n" + bytes(50), "is a picture")
bad("an SQLite database", b"SQLite format 3\0" + bytes(50), "SQLite database")
bad("a pickle", pickle.dumps({"a": [1, 2]}), "a pickle of Python")
bad("a NumPy array", b"\x93NUMPY\x01\x00" + bytes(50), "a NumPy array: save it as CSV")
bad("JSON", json.dumps([{"a": 1, "y": 0}]), "holds JSON or markup")
bad("lines of JSON", '{"a": 1, "y": "u"}\n' * 20, "holds JSON or markup")
bad("a page of the web", "<!DOCTYPE html><html><body>Sign in</body></html>", "holds JSON or markup.*save it as CSV")
bad("a folder", b"", "is a folder; name a file in it", file="folder")
bad("no such file", None, "cannot be read: No such file", file="nowhere.csv")
bad("random bytes", RNG.bytes(500), "is not utf-8 text|NUL byte")

# The first line -----------------------------------------------------------------------------------------------------------

bad("an empty file", "", "is empty; the first line must name")
bad("spaces only", "  \n \n\n", "is empty; the first line must name")
bad("a header alone", "size,mood,y\n", "has a header but no rows")
bad("a header and empty lines", "size,mood,y\n\n\n", "has a header but no rows")
bad("a header and lines of commas", "size,mood,y\n,,\n,,\n", "has a header but no rows")
good("empty lines above the header", b"\n\n" + PLAIN)
good("empty lines between the rows", PLAIN.replace(b"\n", b"\n\n"))
good("lines of commas at the end", PLAIN + b",,\n,,\n", SAME + r" \[2 line\(s\) without any value are left out")
bad("a title above the header", b"My table\n" + PLAIN, "Line 1 of .* should name the columns.*remove what stands above")
bad(
    "a comment above the header",
    b"# by, me\n" + PLAIN,
    "Line 1 of .* should name the columns.*remove what stands above",
)
bad("no header", PLAIN.partition(b"\n")[2], "There is no column 'y' .*: the first line must name the columns")
bad("no header, numbers only", "1,2,3\n4,5,6\n" * 10, "there are 1, 2, 3: the first line must name the columns")
bad("a column twice", grid(("a", SIZE), ("a", SIZE), ("y", Y)), "several columns called a; rename them")
bad("a column twice but for a space", grid(("a", SIZE), ("a ", SIZE), ("y", Y)), "several columns called a")
good("two columns that differ in case", grid(("a", SIZE), ("A", SIZE), ("y", Y)), "a number.*; A number")
good("spaces around names", table().replace("size,mood,y", " size , mood , y "))
good("a line break in a name", table().replace("mood", '"mo\nod"'), "mo od 3 categories")
good("a comma in a name", table().replace("mood", '"mood, today"'), "mood, today 3 categories")
good("a very long name", grid(("a" * 500, SIZE), ("y", Y)), "a{27}… number")
good("names that are numbers", grid(("1990", SIZE), ("1991", SIZE), ("y", Y)), "1990 number.*1991 number")
good("a mark of the byte order and quotes", b"\xef\xbb\xbf" + table().replace("size,", '"size",').encode())
bad("a column without a name", grid(("size", SIZE), ("", MOOD), ("y", Y)), "Column 2 of .* has no name")
good("an empty column without a name", grid(("size", SIZE), ("", [""] * ROWS), ("mood", MOOD), ("y", Y)),
     r"\(column 2\) left out: it is empty.*neither a name nor values")  # fmt: skip
good("separators at the end of every line", PLAIN.replace(b"\n", b",\n"), SAME + r"; \(column 4\) left out")
good("separators at the end of rows only", PLAIN.replace(b"\n", b",\n").replace(b",\n", b"\n", 1))
bad("the target alone", grid(("y", Y)), "target column only")
bad("no such target", grid(("a", SIZE), ("b", Y)), "There is no column 'y' in .*; there are a, b")
bad("a target that is nearly called so", grid(("a", SIZE), ("Y ", Y)), r"there are a, Y \(did you mean|there are a, Y")
bad("2000 columns without the target", grid(*((f"c{i}", [1, 2]) for i in range(2000))), "there are c0, c1, .* …")
good("400 columns", grid(*((f"c{i}", SIZE) for i in range(400)), ("y", Y)), "c0 number.*and 389 more")

# What only counts or names the rows ---------------------------------------------------------------------------------------

_FROM0, _FROM1 = list(range(ROWS)), list(range(1, ROWS + 1))
_CARS = [f"Mazda RX{i}" for i in range(ROWS)]
good(
    "pandas' index", one(_FROM0, ""), r"^40 rows: \(column 1\) left out: it counts the rows, from 0 to 39; size number"
)
good(
    "an index from 1 without a name", one(_FROM1, ""), r"\(column 1\) left out: it counts the rows, from 1 to 40; size"
)
good("Unnamed: 0", one(_FROM0, "Unnamed: 0"), "Unnamed: 0 left out: it counts the rows, from 0 to 39; size")
good("Unnamed: 0.1", one(_FROM0, "Unnamed: 0.1"), "Unnamed: 0.1 left out: it counts the rows")
good("Unnamed: 0 with names of rows", one(_CARS, "Unnamed: 0"), "Unnamed: 0 left out: it names the rows")
good("Unnamed: 0 that holds something", one([3.5, 1.5, 2.5], "Unnamed: 0"), "Unnamed: 0 number, 1.5 to 3.5")
good(
    "R's write.csv", one(_CARS, "").replace(b",size", b'"",size', 1), r"\(column 1\) left out: it names the rows; size"
)
_R = "".join(
    f'"{name}"' + line + "\n" for name, line in zip(_CARS, [f" {s} {m} {y}" for s, m, y in CELLS[1:]], strict=True)
)
good("R's write.table", '"size" "mood" "y"\n' + _R, r"\(column 1\) left out: it names the rows; size number")
_R = "".join(f'"{i}",{s},{m},{y}\n' for i, (s, m, y) in enumerate(CELLS[1:], 1))
good(
    "R's names of rows, quoted numbers",
    "size,mood,y\n" + _R,
    r"\(column 1\) left out: it counts the rows, from 1 to 40; size",
)
_R = "".join(f"{i};{s};{m};{y}\n" for i, (s, m, y) in enumerate(CELLS[1:], 1))
good("R's write.csv2 without quotes", "size;mood;y\n" + _R, r"\(column 1\) left out: it counts the rows, from 1 to 40")
bad(
    "one more field in every row",
    "size,y\n" + "".join(f"{i},5,{y}\n" for i, y in enumerate(Y)),
    "Every row of .* has 3 fields",
)
bad("names of rows that are not different", one(["u", "v"], ""), "Column 1 of .* has no name")
_DRAWN = [(7 * i) % ROWS * 100 + 3 for i in range(ROWS)]
good("the index of rows drawn by pandas", one(_DRAWN, ""), r"\(column 1\) left out: it names the rows; size number")
good("Unnamed: 0 of rows drawn by pandas", one(_DRAWN, "Unnamed: 0"), "Unnamed: 0 left out: it names the rows; size")
bad("measurements without a name", one([0.5 + i for i in _DRAWN], ""), "Column 1 of .* has no name")
good(
    "a number of the row",
    one(_FROM1, "id"),
    r"id left out: it counts the rows, from 1 to 40.*\[The column 'id' is left out",
)
good(
    "a number of the row from 1000",
    one(range(1000, 1040), "case"),
    "case left out: it counts the rows, from 1000 to 1039",
)
good("a number of the row, kept", one(_FROM1, "id"), r"^40 rows: id number, 1 to 40; size", keep=("id",))
good("a number of the row with decimals", one([f"{i}.0" for i in _FROM1], "id"), "id left out: it counts the rows")
good("nothing but a number of the row", grid(("id", _FROM1), ("y", Y)), "^40 rows: id number, 1 to 40; y target")
good("a number of the row with a gap", one([*range(39), 99], "id"), "^40 rows: id number, 0 to 99")
good(
    "years",
    one(range(1980, 2020), "year"),
    r"year left out: it counts the rows, from 1980 to 2019.*--keep year keeps it",
)
bad(
    "names of people",
    one([f"P{i}" for i in _FROM1], "who"),
    "'who' has 40 different values in 40 rows.*identifier.*--drop who",
)
bad("e-mail addresses", one([f"a{i}@b.org" for i in _FROM1], "mail"), "looks like an identifier")
bad("random identifiers", one([RNG.bytes(4).hex() + "x" for _ in _FROM1], "key"), "looks like an identifier")
good("an identifier as categories", one([f"P{i}" for i in _FROM1], "who"), "who 40 categories", categorical=("who",))
good("an identifier left out", one([f"P{i}" for i in _FROM1], "who"), "who left out: as asked; size", drop=("who",))

# How numbers are written --------------------------------------------------------------------------------------------------


def _comma(value: float) -> str:
    return str(value).replace(".", ",")


_HALF = r"holds values like '\d,\d+': is that \d\.\d+\? Then say --decimal ','; to take them as categories"
bad("decimal commas between semicolons", table(";", size=_comma), "'size' " + _HALF)
bad("decimal commas in quotes", table(",", size=_comma), "'size' " + _HALF)
bad("decimal commas between tabs", table("\t", size=_comma), "'size' " + _HALF)
good("decimal commas, said so", table(";", size=_comma), decimal=",")
good("decimal commas in quotes, said so", table(",", size=_comma), decimal=",")
good("decimal commas as categories", one(["1,5", "2,5"]), "a 2 categories: 1,5, 2,5", categorical=("a",))
bad("decimal commas without quotes", "size,y\n" + "".join(f"{_comma(s)},{y}\n" for s, y in zip(SIZE, Y, strict=True)),
    "Every row of .* decimal comma")  # fmt: skip
bad("decimal commas in the target", grid(("size", SIZE), ("y", [_comma(s) for s in SIZE])), "'y' " + _HALF)
bad("decimal commas and one word", one(["1,5"] * 39 + ["none"]), "'a' holds values like '1,5'")
bad("decimal commas and one word, said so", one(["1,5"] * 39 + ["many"]), "mixes.*'many' in line 41", decimal=",")
bad("one decimal comma among points", one([*SIZE[:39], "1,5"]), "'a' mixes numbers and text: '1,5' in line 41")
bad("thousands or decimals", one(["1,234", "2,345", "999"]),
    r"'1,234': is that 1\.234\? Then say --decimal ','; or is that 1234\? Then say --thousands ','")  # fmt: skip
good("thousands, said so", one(["1,234", "2,345", "999"]), "a number, 999 to 2345", thousands=",")
good("decimals, said so", alone(["1,234", "2,345", "999"]), "a number, 1.234 to 999", decimal=",")
bad("millions with commas", one(["1,234,567", "2,345"]), "'1,234,567': is that 1234567. Then say --thousands ','")
bad("thousands with spaces", one(["1 234", "2 345", "7"]), "'1 234': is that 1234. Then say --thousands ' '")
bad("thousands with hard spaces", one(["1\u00a0234", "2\u202f345"]), "is that 1234. Then say --thousands ' '")
good("thousands with hard spaces, said so", one(["1\u00a0234", "2\u202f345"]), "a number, 1234 to 2345", thousands=" ")
bad("thousands with apostrophes", one(["1'234", "12'345.5"]), 'is that 1234. Then say --thousands "\'"')
bad("thousands with curly apostrophes", one(["1’234", "12’345"]), "is that 1234. Then say --thousands")
bad(
    "thousands with points",
    one(["1.234.567", "2.345.678"]),
    "is that 1234567. Then say --decimal ',' --thousands '\\.'",
)
bad("points and a comma", one(["1.234,5", "2.345,25"]), "is that 1234.5. Then say --decimal ',' --thousands '\\.'")
good(
    "points and a comma, said so",
    alone(["1.234,5", "2.345,25"]),
    "a number, 1234.5 to 2345.25",
    decimal=",",
    thousands=".",
)
bad("points where commas were said", one(["1.5", "2.25"]), "is that 1.5. Then say --decimal '\\.'", decimal=",")
bad("groups of two where thousands were said", one(["1,23", "4,56"]), "'1,23': is that 1.23", thousands=",")
good("signs and exponents", one(["+1", "-2.5", "1e2", ".5", "3."]), "a number, -2.5 to 100")
good("the minus of typographers", one(["\u22125", "3.5"]), "a number, -5 to 3.5")
good("numbers with leading zeros", one(["007", "012"]), "a number, 7 to 12")
good("very large whole numbers", one(["12345678901234567890", "1"]), "a number, 1 to 1.23457e\\+19")
bad("infinite numbers", one(["inf", "1"]), "'a' holds infinite values, first in line 2; correct or drop")
bad("numbers beyond all", one(["1e400", "1"]), "'a' holds infinite values")
bad("shares with a sign", one(["12%", "7.5 %", "3%"]), "numbers with a sign .'12%'.: take the sign away")
bad("prices with a sign", one(["$12", "$7.50", "$1,300"]), "numbers with a sign .'\\$12'.")
bad("prices with a sign behind", one(["12 €", "7,50 €", "3 €"]), "numbers with a sign")
bad("a word among numbers", one([*SIZE[:20], "ten"]), "mixes numbers and text: 'ten' in line 22.*--na 'ten'")
good("a word that stands for missing", one([*SIZE[:20], "ten"]), r"a number, .*; 1 missing; size", missing=("ten",))
bad("values below a limit", one([*SIZE[:20], "<0.5"]), "'<0.5' in line 22")
good("hexadecimal numbers", one(["0x10", "0xff"]), "a 2 categories: 0x10, 0xff")
good("true and false", one(["TRUE", "FALSE"]), "a 2 categories: FALSE, TRUE")
good("ranges of ages", one(["20-29", "30-39"]), "a 2 categories: 20-29, 30-39")
good(
    "every way to say missing", one(["NA", "nan", "", "null", "#N/A", "None", "1", "2"]), "a number, 1 to 2; 30 missing"
)

# Dates and texts ----------------------------------------------------------------------------------------------------------

for _what, _dates in {
    "ISO": ["2024-01-02", "2023-11-30"],
    "ISO with a time": ["2024-01-02 10:30", "2023-11-30 07:05:09"],
    "ISO with T and a zone": ["2024-01-02T10:30:00Z", "2023-11-30T07:05:09+01:00"],
    "slashes": ["01/02/2024", "12/31/99"],
    "points": ["1.2.2024", "31.12.2023"],
    "names of months": ["2 Jan 2024", "31 December 2023"],
    "American": ["Jan 2, 2024", "Dec 31, 2023"],
    "months": ["2024-01", "2024-02"],
    "times": ["12:30", "07:05"],
    "times of twelve hours": ["12:30 PM", "7:05 am"],
}.items():
    bad(f"dates: {_what}", one(_dates), "'a' holds dates or times.*days since the first one")
good("dates as categories", one(["2024-01-02", "2023-11-30"]), "a 2 categories", categorical=("a",))
bad("dates to be predicted", target(["2024-01-02", "2023-11-30"]), "'y' holds dates.*name another target")
_SAYS = [f"The patient number {i} was feeling rather {mood}" for i, mood in enumerate(MOOD)]
bad("free text", one(_SAYS), "'a' holds free text .'The patient number 0 was.*turn it into categories or numbers")
bad("free text to be predicted", target(_SAYS), "these are no classes to predict")
good(
    "long answers to choose from",
    one(["I fully agree with this", "I do not agree at all"]),
    "a 2 categories: I do not agree",
)

# Rows ---------------------------------------------------------------------------------------------------------------------

bad("a row that is too short", PLAIN + b"1,good\n", "Line 42 of .* has 2 fields, but the header has 3")
bad("a row that is too long", PLAIN + b"1,good,yes,no\n", "Line 42 of .* has 4 fields.*--separator")
bad("an open quote", PLAIN + b'"1,good,yes\n', "cannot be read as a table: .*check its quotes")
bad("a quote in the middle", PLAIN + b'"1"2,good,yes\n', "cannot be read as a table")
bad("a NUL byte", PLAIN.replace(b"good", b"go\0d", 1), "NUL byte in line 2")
bad("a cell of 200,000 characters", one(["u" * 200_000]), "cannot be read as a table: field larger")
good("control characters", one(["u\x0bv", "w\x1f"]), "a 2 categories")
bad("two rows", "a,y\n1,u\n2,v\n", "only 2 rows; at least 10")
bad("nine rows", b"\n".join(PLAIN.split(b"\n")[:10]), "only 9 rows; at least 10")
good("ten rows", b"\n".join(PLAIN.split(b"\n")[:11]), "^10 rows: size number")
bad("one class", target(["u"]), "at least two classes")
good("a class with one row", target(["u"] * 39 + ["v"]), "2 classes: u, v")
bad(
    "targets that are missing",
    target(["u", "v", ""]),
    r"13 of 40 rows have no value.*first in line 4.*--unlabelled drop",
)
good(
    "targets that are missing, left out",
    target(["u", "v", ""]),
    r"^27 rows.*13 row\(s\) without a target",
    unlabelled="drop",
)
bad("no target at all", target([""]), "40 of 40 rows have no value in the target column")
bad("no target at all, left out", target([""]), "only 0 rows", unlabelled="drop")
good("a column without any value", one([""]), "a left out: it is empty.*'a' holds no value at all: it is left out")
good("a column of NA", one(["NA"]), "a left out: it is empty")
good("a column with one value", one(["7"]), "a number, 7 to 7.*'a' has one value only")
good("a number to predict", grid(("mood", MOOD), ("y", SIZE)), r"mood 3 categories.*; y target, number, 1.\d+ to 8")
good("classes that are numbers", target([0, 1, 2]), "y target, 3 classes: 0, 1, 2")

# Flags --------------------------------------------------------------------------------------------------------------------

bad("the target is dropped", PLAIN, "--drop y names the target itself", drop=("y",))
bad(
    "a column to be dropped that is not there",
    PLAIN,
    "There is no column 'sise' in .*did you mean 'size'",
    drop=("sise",),
)
bad("dropped and categorical", PLAIN, "'mood' is to be left out and to be kept", drop=("mood",), categorical=("mood",))
bad("a column to be kept that is not there", PLAIN, "There is no column 'id'", keep=("id",))
bad(
    "an index that is named as categories",
    one(_FROM0, ""),
    r"'\(column 1\)' of .* is left out",
    categorical=("(column 1)",),
)
good("the target as categories", target([0, 1]), "2 classes: 0, 1", categorical=("y",))
bad("a negative sample", PLAIN, "--sample takes a number of rows, at least 10; got -1", sample=-1)
bad("a sample of nothing", PLAIN, "at least 10; got 0", sample=0)
good("a sample", PLAIN, "^20 rows", sample=20)
good("a sample larger than the file", PLAIN, SAME, sample=500)
bad("a negative seed", PLAIN, "seed must be a whole number ≥ 0, got -1", seed=-1)
bad("another word for unlabelled", PLAIN, "--unlabelled takes refuse or drop, got 'maybe'", unlabelled="maybe")
bad("another decimal mark", PLAIN, "--decimal takes a point or a comma, got 'x'", decimal="x")
bad("the same mark for both", PLAIN, "--thousands takes .*got ','", decimal=",", thousands=",")
bad("a share beyond one", PLAIN, "share of test rows must lie between 0 and 1", test=1.5)
bad("a scaling that there is not", PLAIN, "no scaling called 'log'", scaling="log")
bad("a regression of words", PLAIN, "'y' holds text; a regression needs numbers", regression=True)
