"""Odd and malformed files: each is read rightly or refused in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from mibp_cert import cli
from mibp_cert.data.reading import Reading, read_file
from mibp_cert.errors import UserError
from odd_files import ODD
from odd_tables import CELLS, PLAIN, SAME, Odd, answer

FLAGS = {"missing": "na", "test": "test-share"}
"""Options that the command line calls otherwise."""


def test_there_are_two_hundred_of_them_under_different_names() -> None:
    assert len(ODD) >= 200
    assert len({odd.name for odd in ODD}) == len(ODD)


@pytest.mark.parametrize("odd", ODD, ids=[odd.name for odd in ODD])
def test_an_odd_file_is_read_rightly_or_refused_in_a_sentence(odd: Odd, tmp_path: Path) -> None:
    read, said = answer(odd, tmp_path)
    assert read == odd.read, said
    assert re.search(odd.expected, said, re.DOTALL), said
    assert read or (said.endswith(".") and len(said) < 500), "a sentence"


def test_whatever_the_bytes_there_is_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k in range(60):
        content = bytearray(PLAIN)
        for place in rng.integers(0, len(content), 1 + k % 4):
            content[place] = rng.choice([0, 10, 13, 34, 39, 44, 46, 59, 65, 255])
        odd = Odd(str(k), bytes(content[: rng.integers(1, len(content) + 1)]), "", True)
        read, said = answer(odd, tmp_path)
        assert read or said.endswith((".", "…")), said


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD[:: len(ODD) // 20], ids=lambda odd: odd.name)
def test_an_odd_file_on_the_command_line(odd: Odd, tmp_path: Path) -> None:
    read, said = answer(odd, tmp_path)
    flags = ["--target", "y", "--no-attack", "--epochs", "1", "--missing", "all"]
    for key, value in odd.options.items():
        for single in value if isinstance(value, tuple) else [value]:
            flags += [f"--{FLAGS.get(key, key)}", *([] if single is True else [str(single)])]
    doubt = ["--flips", "1"]
    found = CliRunner().invoke(cli.app, ["certify", str(tmp_path / odd.file), *flags, *doubt])
    if read:
        assert found.exit_code == 0, (found.output, found.exception)
        assert "How the columns were read" in found.output
    else:
        assert isinstance(found.exception, UserError), (found.output, found.exception)
        assert str(found.exception).replace(str(tmp_path), "").replace("/" + odd.file, odd.file) == said


def test_a_parquet_file_is_read_like_its_text(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(CELLS[1:], columns=CELLS[0])
    frame.loc[3, "size"] = np.nan
    frame.to_parquet(tmp_path / "data.parquet")
    frame.to_csv(tmp_path / "data.csv", index=False)
    one, two = (read_file(tmp_path / name, Reading("y")).frame for name in ("data.parquet", "data.csv"))
    assert one.index.name == "row"
    pd.testing.assert_frame_equal(one.reset_index(drop=True), two.reset_index(drop=True))
    frame.set_index("mood").to_parquet(tmp_path / "indexed.parquet")
    assert list(read_file(tmp_path / "indexed.parquet", Reading("y")).frame.columns) == ["mood", "size", "y"]
    frame["when"] = pd.Timestamp("2024-01-02")
    frame.to_parquet(tmp_path / "dated.parquet")
    with pytest.raises(UserError, match="'when' holds dates or times"):
        read_file(tmp_path / "dated.parquet", Reading("y"))


def test_a_workbook_is_read_like_its_text(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    frame = pd.DataFrame(CELLS[1:], columns=CELLS[0])
    frame.loc[3, "size"] = np.nan
    frame.to_excel(tmp_path / "data.xlsx")
    frame.to_csv(tmp_path / "data.csv")
    for decimal in ".,":  # numbers of a workbook are numbers, whatever is said of text
        one = read_file(tmp_path / "data.xlsx", Reading("y", decimal=decimal))
        two = read_file(tmp_path / "data.csv", Reading("y"))
        pd.testing.assert_frame_equal(one.frame, two.frame, check_names=False)
        assert (one.origin, one.notes) == (two.origin, two.notes)


def test_the_table_that_odd_files_hold_is_read_as_it_is(tmp_path: Path) -> None:
    assert re.search(SAME, answer(Odd("plain", PLAIN, SAME, True, same=True), tmp_path)[1])
