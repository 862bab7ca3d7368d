"""Control characters of data reach neither a terminal nor a page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import mibp_cert as mc
from bad_days import answer
from mibp_cert.errors import UserError
from mibp_cert.report.console import Terminal
from mibp_cert.report.html import html_report
from mibp_cert.visible import visible

STRANGE = [
    chr(n) for n in (*range(32), *range(127, 160), 0x2028, 0x2029, 0x202E, 0x2066, 0x200F, 0x61C, 0xD800, 0xDFFF)
]
HARMLESS = "\t\n"
HARM = "".join(set(STRANGE) - set(HARMLESS))
ESCAPES = re.compile("[" + re.escape(HARM) + "]")


def test_every_such_character_is_shown_and_no_other_one_changes() -> None:
    assert not ESCAPES.search(visible("".join(STRANGE)))
    assert visible("\x1b\x07\u202e\ud800") == "\\x1b\\x07\\u202e\\ud800"
    plain = (
        "".join(chr(n) for n in range(32, 0x3000) if chr(n) not in HARM and not 0x200E <= n <= 0x206F)
        + HARMLESS
        + "日本😀"
    )
    assert "".join(c for c in visible(plain) if c != "\u061c") == plain.replace("\u061c", "")


@pytest.mark.parametrize("how", ["sentence", "table", "status"])
def test_a_terminal_shows_them_and_keeps_its_own_colours(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    console = Terminal(force_terminal=True, width=200, legacy_windows=False, color_system="standard")
    if how == "sentence":
        console.print("[red]a\x1b[2Jb\x07", "c\u202ed", markup=False, style="red")
    elif how == "table":
        table = Table("head\x1b[31m", title="title\x07")
        table.add_row("cell\x9b31m\u2028")
        console.print(table)
    else:
        with console.status("working on \x1b]0;title\x07"):
            pass
    out = capsys.readouterr().out
    own = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out)
    assert "\x1b[" in out
    assert "\x1b[2J" not in out
    assert "\x1b]0" not in out
    assert not ESCAPES.search(own.replace("\r", ""))


EVIL = "\x1b]0;owned\x07\u202egnorw\x9b2J"
"""Sets a terminal's title, rings, turns the line around, clears the screen."""


def _table(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            f"age{EVIL}": rng.integers(20, 80, 40),
            f"mood{EVIL}": np.where(rng.random(40) < 0.5, f"good{EVIL}", "bad"),
            "const": [f"x{EVIL}"] * 40,
            "ill": np.where(np.arange(40) % 2, f"yes{EVIL}", "no"),
        }
    )
    place = folder / f"data{EVIL}.csv"
    table.to_csv(place, index=False)
    return place


def test_names_classes_and_categories_with_them_reach_neither_terminal_nor_page(tmp_path: Path) -> None:
    table, page = _table(tmp_path), tmp_path / "page.html"
    threat = ["--target", "ill", "--eps", "0.1", "--any-category", f"mood{EVIL}", "--protected", f"mood{EVIL}"]
    status, said = answer("certify", table, *threat, "--report", page, "--run", tmp_path / "run", "--model", "logistic")
    assert status == 0, said
    assert "\\x1b]0;owned\\x07" in said
    for text in (said, page.read_text(encoding="utf-8")):
        assert not ESCAPES.search(text)
    for words in (
        ["verify", tmp_path / "run"],
        ["report", tmp_path / "run"],
        ["blame", table, "--target", "ill", "--eps", "1"],
    ):
        assert not ESCAPES.search(answer(*words)[1])
    assert not ESCAPES.search((tmp_path / "run.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("more", [["--target", "nope"], ["--drop", "nope"], ["--eps", "nope=1"], ["--separator", ";"]])
def test_mistakes_about_such_a_table_are_sentences_without_them(tmp_path: Path, more: list[str]) -> None:
    status, said = answer("certify", _table(tmp_path), "--target", "ill", "--eps", "0.1", *more)
    assert status == 2
    assert not ESCAPES.search(said)


def test_threats_of_a_file_with_them_are_shown(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[data]\nsource = "two-moons"\n[threat]\nkind = "a\\u001b[2Jb"\n')
    status, said = answer("certify", "--config", tmp_path / "c.toml")
    assert status == 2
    assert "\\x1b[2J" in said


def test_errors_cards_and_pages_show_them() -> None:
    assert str(UserError(f"no column {EVIL}")) == f"no column {visible(EVIL)}"
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({f"a{EVIL}": rng.normal(size=20), "y": [f"u{EVIL}", "v"] * 10})
    run = mc.certify_fit(
        mc.Split(f"s{EVIL}", mc.Dataset.from_frame(frame, "y"), None, mc.Dataset.from_frame(frame, "y")),
        mc.LInf(0.1),
        mc.Fitted(C=0.1),
    )
    assert not ESCAPES.search(run._repr_html_())
    assert not ESCAPES.search(html_report(run, words=run.threat.words()))
