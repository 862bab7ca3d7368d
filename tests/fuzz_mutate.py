"""Small changes of what is accepted: of cells, values, keys, words and bytes. Most are accepted still, or refused late."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Rng = np.random.Generator
Cells = list[list[str]]

WORDS = (
    *("", " ", "0", "-0", "1", "2", "3", "-1", "0.5", "1.5", "-0.25", "1e-320", "1e300", "-1e300", "1e999", "9" * 30),
    *("nan", "inf", "-inf", "NaN", "Infinity", "1_000", "0x10", "1,5", "1.234,5", "5%", "٣", "½", "1e", "--", "-"),
    *("NA", "?", "null", "None", "true", "yes", "all", "auto", "none", "age", "mood", "mood,age", "age=1", "age=,=1"),
    *(
        "a=b=c",
        "bad",
        "good",
        "é",
        "名",
        "\x1b[31m",
        "\x07",
        "\x85",
        "\u202e",
        "\u2028",
        '"',
        "'",
        "a\nb",
        "\t",
        "x" * 300,
    ),
    *("{}", "[]", "%s", "$HOME", "=1+1", "2020-01-02", "12:30", "\ufeff", "\x7f"),
)
"""Texts that are something in one place, and nonsense in another."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, -1, 7, 10**6, 2**63, 10**400, -(10**30)),
    *(0.0, -0.0, 0.5, 1.5, -0.5, 1e-320, 1e-12, 1e12, 1e300, -1e300, math.nan, math.inf, -math.inf),
    *(
        "",
        "x",
        "age",
        "mood",
        "all",
        "1",
        "nan",
        "\x1b[31m",
        "\u202e",
        [],
        {},
        [[]],
        [1],
        ["age"],
        {"age": 1},
        {"kind": "linf"},
    ),
    *({"age": -1.0}, {"": 0}, [0, 1], [1, 0], [None], ["mood", "age"], {"a": {"a": {}}}),
)
"""Plain values; some are of the right kind wherever they are put."""
NUMBERS = ("0", "1", "1", "2", "3", "5", "0.05", "0.3", "0.9", "10", "-1", "1e-320", "1e300", "nan", "inf", "9" * 30)
"""Values of flags that take numbers."""


def some(rng: Rng, items: Sequence[Any]) -> Any:
    """One of them."""
    return items[int(rng.integers(len(items)))]


def often(rng: Rng, share: float) -> bool:
    return bool(rng.random() < share)


def repeated(change: Callable[[Rng, Any], Any], rng: Rng, thing: Any) -> Any:
    """One change, seldom two or three."""
    for _ in range(1 + int(rng.geometric(0.7) - 1) % 3):
        thing = change(rng, thing)
    return thing


# Bytes and text -----------------------------------------------------------------------------------------------------------


def octets(rng: Rng, content: bytes) -> bytes:
    """Bytes changed, put in, left out, doubled, or cut off."""
    at = int(rng.integers(len(content) + 1))
    size = int(rng.integers(1, 9))
    return some(
        rng,
        [
            content[:at] + rng.bytes(1) + content[at + 1 :],
            content[:at] + rng.bytes(size) + content[at:],
            content[:at] + content[at + size :],
            content[:at] + content[max(0, at - size) : at] + content[at:],
            content[:at],
            content[:at] + bytes([content[at] ^ (1 << size % 8)]) + content[at + 1 :] if at < len(content) else b"",
            content[:at] + some(rng, WORDS).encode() + content[at:],
        ],
    )


# Tables -------------------------------------------------------------------------------------------------------------------


def cells(rng: Rng, table: Cells) -> Cells:
    """A cell, a row or a column of a table changed."""
    table = [list(row) for row in table]
    return TABLES[some(rng, list(TABLES))](rng, table) if len(table) > 2 and len(table[0]) > 1 else table


def _place(rng: Rng, table: Cells) -> tuple[int, int]:
    row = int(rng.integers(len(table)))
    return row, int(rng.integers(len(table[row]))) if table[row] else 0


def _cell(rng: Rng, table: Cells) -> Cells:
    i, j = _place(rng, table)
    table[i][j : j + 1] = [some(rng, WORDS)]
    return table


def _number(rng: Rng, table: Cells) -> Cells:
    """Numbers of a column stretched, moved, made small, or all the same."""
    j, change = _place(rng, table)[1], some(rng, ("{}e200", "-{}", "{}e-200", "1{}00000000", "5", "{}.0", "{}e15"))
    for row in table[1:]:
        if len(row) > j and row[j].replace(".", "").isdigit():
            row[j] = change.format(row[j])
    return table


def _column(rng: Rng, table: Cells) -> Cells:
    """A column filled with few texts."""
    j, texts = _place(rng, table)[1], [some(rng, WORDS) for _ in range(1 + int(rng.integers(3)))]
    for k, row in enumerate(table[1:]):
        row[j : j + 1] = [texts[k % len(texts)]]
    return table


def _copied(rng: Rng, table: Cells) -> Cells:
    """A cell where another one was."""
    (i, j), (k, m) = _place(rng, table), _place(rng, table)
    table[i][j : j + 1] = table[k][m : m + 1]
    return table


def _rows(rng: Rng, table: Cells) -> Cells:
    """Rows doubled, left out, or exchanged."""
    i, k = _place(rng, table)[0], _place(rng, table)[0]
    how = int(rng.integers(4))
    if how == 0:
        table.insert(k, list(table[i]))
    elif how == 1:
        del table[i]
    elif how == 2:
        table[i], table[k] = table[k], table[i]
    else:
        del table[max(2, k) :]
    return table


def _same_class(rng: Rng, table: Cells) -> Cells:
    """Nearly all cells of the last column are one; or each is its own."""
    own = often(rng, 0.3)
    for k, row in enumerate(table[1 + int(rng.integers(4)) :]):
        row[-1:] = [f"c{k}" if own else table[-1][-1]]
    return table


def _columns(rng: Rng, table: Cells) -> Cells:
    """A column doubled, left out, moved, or put in."""
    j, how, text = _place(rng, table)[1], int(rng.integers(4)), some(rng, WORDS)
    for k, row in enumerate(table):
        if how == 0:
            row.insert(j, f"{row[j]}{'' if k else '2'}" if j < len(row) else "")
        elif how == 1:
            del row[j : j + 1]
        elif how == 2:
            row[:] = row[j:] + row[:j]
        else:
            row.insert(j, text if k else "new")
    return table


TABLES: dict[str, Callable[[Rng, Cells], Cells]] = {
    "a cell": _cell,
    "numbers": _number,
    "a column": _column,
    "a cell copied": _copied,
    "rows": _rows,
    "columns": _columns,
    "classes": _same_class,
}


# Plain values, as in JSON ---------------------------------------------------------------------------------------------------


def plain(rng: Rng, value: Any) -> Any:
    """One place somewhere in nested lists and tables changed; places near the leaves are as likely as any other, but what says
    of which kind a table is mostly stays."""
    value = copy.deepcopy(value)
    homes = [place for place in _homes(value) if place[1] not in ("kind", "version") or often(rng, 0.15)]
    if not homes:
        return some(rng, VALUES)
    home, key = some(rng, homes)
    how = int(rng.integers(8))
    if how == 0:
        del home[key]
    elif how == 1 and isinstance(home, dict):
        home[some(rng, [*home, "", "kind", "x", "threat"])] = home.pop(key)
    elif how == 1:
        home.insert(key, copy.deepcopy(home[key]))
    elif how == 2:
        other, at = some(rng, homes)
        home[key] = copy.deepcopy(other[at]) if at in _keys(other) else None
    elif how == 3:
        home[key] = some(rng, ([home[key]], {"age": home[key]}, str(home[key])))
    elif how <= 5 and isinstance(home[key], int | float) and not isinstance(home[key], bool):
        n = home[key]
        home[key] = some(rng, (-n, n + 1, n + n, n // 3, 0.5 * n if abs(n) < 1e300 else 0.5, n - 1))
    else:
        home[key] = copy.deepcopy(some(rng, VALUES))
    return value


def _keys(home: Any) -> Sequence[Any]:
    return list(home) if isinstance(home, dict) else range(len(home))


def _homes(value: Any) -> Any:
    """Every place of a nested value: what holds it, and the key there."""
    if isinstance(value, dict | list):
        for key in _keys(value):
            yield value, key
            yield from _homes(value[key])


def array(rng: Rng, values: Any) -> Any:
    """An array with a number, its shape or its kind changed."""
    values = np.array(values)
    how = int(rng.integers(9))
    if how <= 3 and values.size and values.dtype.kind in "fiub":
        at = np.unravel_index(int(rng.integers(values.size)), values.shape)
        if values.dtype.kind == "f":
            values[at] = some(rng, (0.0, -values[at], 2 * values[at], values[at] + 1e-9, 1e300, np.nan, np.inf, 1e-320))
        else:
            values[at] = (
                some(rng, (0, 1, 3)) if values.dtype.kind == "b" else some(rng, (0, -1, 1, 2**40, values[at] + 1))
            )
    elif how == 4:
        values = values[:-1] if values.ndim else values[None]
    elif how == 5:
        values = np.concatenate([values, values[-1:]]) if values.ndim else values
    elif how == 6:
        values = some(rng, (values.ravel(), values[None], values.T, values.reshape(-1, 1)))
    elif how == 7:
        values = (
            values.astype(some(rng, ("<f8", "<i8", "U8", "?", "<f4", ">f8"))) if values.dtype.kind in "iub" else values
        )
    else:
        values = (
            some(rng, (0 * values, np.zeros(0), np.zeros((0, 3)), values[::-1] if values.ndim else values))
            if values.dtype.kind in "fiu"
            else values[:0]
            if values.ndim
            else values
        )
    return values


# Words of a command ---------------------------------------------------------------------------------------------------------


def words(rng: Rng, given: list[str], known: dict[str, list[str]]) -> list[str]:
    """A flag with another value, one more flag, one left out, doubled or moved; `known`: values that flags take, none for those
    that are switched on."""
    given, how = list(given), int(rng.integers(10))
    at = [k for k, word in enumerate(given) if word in known and known[word] and k + 1 < len(given)]
    if how <= 3 and at:
        k = some(rng, at)
        given[k + 1] = some(rng, (*known[given[k]], *known[given[k]], *WORDS))
    elif how <= 7:
        flag = some(rng, list(known))
        given += [flag, some(rng, known[flag] if often(rng, 0.8) else WORDS)] if known[flag] else [flag]
    elif how == 8 and at:
        k = some(rng, at)
        given = given[:k] + given[k + 2 :] if often(rng, 0.5) else given + given[k : k + 2]
    elif how == 9 and often(rng, 0.2):
        k = int(rng.integers(len(given)))
        given.insert(k, given.pop(int(rng.integers(len(given)))))
    return given
