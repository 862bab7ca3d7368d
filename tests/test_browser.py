"""The report in a real browser: nothing cut off, nothing unreadable, on a telephone and a wide screen, light and dark."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mibp_cert import (
    Dataset,
    Fitted,
    LInf,
    Missing,
    Network,
    Split,
    TargetNoise,
    Training,
    blame,
    certify_fit,
    certify_training,
    two_moons,
)
from mibp_cert.data import Column
from mibp_cert.report.html import html_report

pytestmark = pytest.mark.browser

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)
LONG = "a_very_long_name_without_any_space_that_has_to_be_broken_or_scrolled_somewhere_" * 2
CONTRASTS = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgba = text => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data]; };
const light = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor);
  if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
return [...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
  .map(e => { const style = getComputedStyle(e), a = light(rgba(e.closest('svg') ? style.fill : style.color));
    const b = light(behind(e)); return [e.textContent.trim().slice(0, 40), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]; });
"""
OUTSIDE = """
const scrolls = e => { for (; e; e = e.parentElement) if (e.classList.contains('scroll')) return true; return false; };
return [...document.querySelectorAll('body *')].filter(e => !scrolls(e.parentElement))
  .filter(e => { const box = e.getBoundingClientRect(); return box.right > document.documentElement.clientWidth + 0.5 ||
    box.left < -0.5; }).map(e => `${e.tagName} ${e.textContent.slice(0, 40)}`);
"""
CUT = """
return [...document.querySelectorAll('svg')].flatMap(svg => { const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect();
    return b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1; })
    .map(t => `${svg.getAttribute('aria-label')}: ${t.textContent}`); });
"""
PICTURES = """
return [...document.querySelectorAll('svg')].map(e => { const box = e.getBoundingClientRect();
  return [e.getAttribute('aria-label'), box.width, box.height, getComputedStyle(e).visibility]; });
"""


LOSS = SimpleNamespace(
    to_json=lambda: {
        "parts": [
            {"words": f"only {LONG}", "certified_accuracy": 0.5, "certification_rate": 0.6},
            {"words": "missing values", "certified_accuracy": 0.9, "certification_rate": 0.95},
        ],
        "by_column": {LONG: 0.7, "age": 0.3},
    }
)
TALKED = """
const logs = []; for (const entry of performance.getEntriesByType('resource')) logs.push(entry.name); return logs;
"""
"""What a page fetched beside itself."""
ANSWERS = """
return ['.worth .verdict, .worth .warning', '.worth table', '.survives', '.next li'].map(name => {
  const found = document.querySelector(name); return [name, found ? found.getBoundingClientRect().bottom : 1e9]; });
"""
"""Where the first screen's answers end."""


def _classes() -> str:
    """Two columns with long names, a blame table and answers: everything a report can hold."""
    moons = two_moons(0, sizes=(30, 10, 40))
    columns = (Column(LONG, 0, 1, shift=3.0, scale=2.0), Column("$x_1$ <b>&amp;", 1, 2))
    names = (LONG, "well & <good>")
    parts = [
        Dataset.of(p.x, [names[k] for k in p.y], names, columns) for p in (moons.train, moons.validation, moons.test)
    ]
    training = Training(epochs=5, loss="cross-entropy", learning_rate=0.5)
    run = certify_training(Network.mlp([2, 4, 2]), Split(f"moons of {LONG}", *parts), LInf(0.1), training)
    rows = pd.DataFrame({"row": range(12), "effect": [40.0 / (i + 1) for i in range(12)], "cells": [LONG] * 12})
    sentence = f"Row 0 makes up most of it, by {LONG}."
    told = {"sentence": sentence, "columns": pd.Series({LONG: 60.0, "b": 40.0}), "fixed": (0, 1), "widths": False}
    found = SimpleNamespace(rows=rows, before=20, after=30, **told)
    words = f"every cell of {LONG} may be off by 0.1"
    configuration = {"file": f"/data/{LONG}.csv", "threat": {"eps": [0.1, LONG]}}
    return html_report(
        run,
        words=words,
        blame=found,
        answers=[f"{LONG}: holds."],
        configuration=configuration,
        parts=LOSS,
        ways=[SimpleNamespace(words="a smaller C", command=f"mibp-cert certify {LONG}.csv --target ill --C 0.1")],
    )


def _regression() -> str:
    moons = two_moons(0, sizes=(30, 10, 40))
    parts = [
        Dataset.regression(part.x, 10 * part.x[:, 0] + part.y) for part in (moons.train, moons.validation, moons.test)
    ]
    training = Training(epochs=4, loss="squared-error", learning_rate=0.05)
    run = certify_training(Network.mlp([2, 1]), Split("slope", *parts), TargetNoise(0.5), training)
    return html_report(run, words="every target may be off by 0.5")


def _table() -> str:
    """A table as people bring it: three classes, two kinds of column, missing answers, lines of a file."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 240)
    frame = pd.DataFrame(
        {"bill_length_mm": 40 + 4 * y + rng.normal(size=240), "mass_g": 4000.0 + 300 * rng.normal(size=240)}
    )
    frame["island"] = np.where(rng.random(240) < 0.3, None, np.array(["Biscoe", "Dream", "Torgersen"])[y])
    frame["species"] = np.array(["Adelie", "Chinstrap", "Gentoo"])[y]
    frame.index = pd.Index([f"line {i + 2}" for i in range(240)])
    first = Dataset.from_frame(frame, "species")
    split = Split("penguins", *(first.take(np.arange(k, 240, 3)) for k in range(3)))
    threat = LInf({"bill_length_mm": 0.5, "mass_g": 50.0}) & Missing()
    run = certify_fit(split, threat, Fitted(C=0.01), test_threat=Missing())
    found = blame(run)
    return html_report(run, words=threat.words(), blame=found, configuration={"data": {"source": "penguins.csv"}})


def _vacuous() -> str:
    """A model that always answers the same, and is certified all the way."""
    rng, parts = np.random.default_rng(0), []
    for rows in (200, 60, 100):
        answers = np.where(np.arange(rows) % 8 == 0, "yes", "no")
        parts.append(Dataset.of(rng.normal(size=(rows, 2)), answers, ("no", "yes")))
    run = certify_fit(Split("mortgage", *parts), LInf(0.02), Fitted(C=0.01))
    return html_report(run, words="every number may be off by 0.02", configuration={"model": {"C": 0.01}})


PAGES = {"classes": _classes, "regression": _regression, "table": _table, "vacuous": _vacuous}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium, started once."""
    binary, service = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or service is None:
        pytest.skip("Chromium or its driver is missing: apt install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = binary
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(service))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("reports"), {}
    for name, page in PAGES.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(page(), encoding="utf-8")
    return found


def _open(driver: Any, page: Path, width: int, scheme: str, height: int = 900) -> None:
    # A window cannot be as narrow as a telephone; the emulated screen can.
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    preference = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", preference)
    driver.get(page.as_uri())
    # Two frames later the page has been laid out and painted on the emulated screen.
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("name", ["classes", "regression"])
def test_report_is_whole_and_readable(
    driver: Any, pages: dict[str, Path], tmp_path: Path, name: str, width: int, scheme: str
) -> None:
    _open(driver, pages[name], width, scheme)
    # The size is said outright: a browser that has just started may take its window to be 0 wide.
    height = driver.execute_script("return document.documentElement.scrollHeight")
    whole = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    asked = {"format": "png", "captureBeyondViewport": True, "clip": whole}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", asked)
    folder = Path(os.environ.get("MIBP_CERT_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"report-{name}-{width}-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))
    assert driver.execute_script("return document.documentElement.clientWidth") == width
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert driver.execute_script(OUTSIDE) == []
    assert driver.execute_script(CUT) == []
    pictures = driver.execute_script(PICTURES)
    assert len(pictures) == (7 if name == "classes" else 4)
    assert all(w > 200 and h > 80 and seen == "visible" for _, w, h, seen in pictures), pictures
    contrasts = driver.execute_script(CONTRASTS)
    assert len(contrasts) > 50
    assert [entry for entry in contrasts if entry[1] < 4.5] == []
    assert driver.get_log("browser") == []


def test_light_and_dark_differ(driver: Any, pages: dict[str, Path]) -> None:
    found = {}
    for scheme in ("light", "dark"):
        _open(driver, pages["classes"], 1600, scheme)
        look = "const s = e => getComputedStyle(document.querySelector(e)); "
        found[scheme] = driver.execute_script(look + "return [s('body').backgroundColor, s('svg text').fill]")
    assert found["light"][0] != found["dark"][0]
    assert found["light"][1] != found["dark"][1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
@pytest.mark.parametrize("name", PAGES)
def test_the_first_screen_answers_and_the_page_keeps_to_itself(
    driver: Any, pages: dict[str, Path], name: str, width: int, height: int, scheme: str
) -> None:
    _open(driver, pages[name], width, scheme, height)
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    assert driver.execute_script(OUTSIDE) == []
    assert driver.execute_script(CUT) == []
    if name != "classes":  # whose names are as long as none
        ends = driver.execute_script(ANSWERS)
        assert [entry for entry in ends if entry[1] > height] == []
    assert [entry for entry in driver.execute_script(CONTRASTS) if entry[1] < 4.5] == []
    assert driver.execute_script(TALKED) == []
    assert driver.get_log("browser") == []


def test_a_printed_page_has_everything(driver: Any, pages: dict[str, Path]) -> None:
    _open(driver, pages["classes"], 794, "dark")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        hidden = (
            "return [...document.querySelectorAll('main *')].filter(e => getComputedStyle(e).display === 'none').length"
        )
        assert driver.execute_script(hidden) == 0
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
