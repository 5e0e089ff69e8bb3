"""The report in a real browser: `make browser`, where Chromium is installed. CI does not collect this."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.browser import Chromium, long_report
from tests.unit.cli.conftest import run as run
from tests.unit.cli.shelf import Run
from tests.unit.cli.test_report import BREAKS_OUT, hostile, written
from tests.unit.cli.test_restore import Story


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    with Chromium(tmp_path) as made:
        yield made


def press(browser: Chromium, key: str, text: str = "") -> None:
    code = {"Tab": 9, "Enter": 13}[key]
    for kind in ("keyDown", "keyUp"):
        browser.ask(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text
        )  # fmt: skip


def test_a_hostile_log_stays_text(tmp_path: Path, run: Run, browser: Chromium) -> None:
    written(run, hostile(tmp_path / "b"), tmp_path)
    browser.open(tmp_path / "r.html")
    browser.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    shown = browser.run("document.body.innerText")
    assert browser.run("document.title") == "Job shop"
    assert browser.run("document.querySelectorAll('img, iframe, a, script[src], link').length") == 0
    assert BREAKS_OUT in shown and "git tag v1" in shown
    assert browser.complaints() == []


def test_markup_that_got_in_could_neither_run_nor_load(tmp_path: Path, run: Run, browser: Chromium) -> None:
    written(run, hostile(tmp_path / "b"), tmp_path)
    browser.open(tmp_path / "r.html")
    browser.run(f"document.body.insertAdjacentHTML('beforeend', {BREAKS_OUT!r})")
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.owned = 1'; document.body.append(s)"
    )
    assert browser.run("window.owned") is None
    browser.wait("document.images.length === 1 && document.images[0].complete")
    assert any("Content Security Policy" in each for each in browser.complaints())
    assert not any(each.startswith("http") for each in browser.complaints())


def test_keyboard_alone_unfolds_a_call(tmp_path: Path, run: Run, browser: Chromium) -> None:
    written(run, hostile(tmp_path / "b"), tmp_path)
    browser.open(tmp_path / "r.html")
    for _ in range(40):
        press(browser, "Tab")
        if browser.run("document.activeElement.tagName") == "SUMMARY":
            break
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    press(browser, "Enter", "\r")
    browser.wait("document.activeElement.parentElement.open && document.querySelectorAll('.body').length === 1")


def test_a_screen_reader_finds_names_for_all_that_it_can_reach(tmp_path: Path, run: Run, browser: Chromium) -> None:
    written(run, hostile(tmp_path / "b"), tmp_path)
    browser.open(tmp_path / "r.html")
    nodes: list[Any] = browser.ask("Accessibility.getFullAXTree")["nodes"]
    roles = {node["role"]["value"] for node in nodes if not node["ignored"]}
    assert {"banner", "main", "search", "searchbox", "combobox", "list", "table", "columnheader"} <= roles
    for node in nodes:
        focusable = any(p["name"] == "focusable" and p["value"]["value"] for p in node.get("properties", []))
        if focusable and not node["ignored"]:
            assert node.get("name", {}).get("value"), node


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(tmp_path: Path, run: Run, browser: Chromium, scheme: str) -> None:
    written(run, hostile(tmp_path / "b"), tmp_path)
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(tmp_path / "r.html")
    ratio = browser.run(
        """(() => { const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map((v) => v / 255)
             .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
             return .2126*r + .7152*g + .0722*b; };
           const back = light(getComputedStyle(document.body).backgroundColor);
           return Math.min(...[...document.querySelectorAll("h1, .dim, .good, .bad, .warn, .what")].map((e) => {
             const text = light(getComputedStyle(e).color);
             return (Math.max(text, back) + .05) / (Math.min(text, back) + .05); })); })()"""
    )
    assert ratio >= 4.5  # WCAG 2.2, 1.4.3


def test_print_has_every_row_that_the_filter_shows(tmp_path: Path, browser: Chromium) -> None:
    page = tmp_path / "long.html"
    page.write_text(long_report(800))
    browser.open(page)
    assert browser.run("document.querySelectorAll('#rows > li').length") < 801
    pdf = base64.b64decode(browser.ask("Page.printToPDF")["data"])
    assert browser.run("document.querySelectorAll('#rows > li').length") == 801 and pdf.startswith(b"%PDF")


def test_a_call_shows_what_it_changed(tmp_path: Path, run: Run, browser: Chromium) -> None:
    story = Story(tmp_path)
    for text in ("one", "two", "three"):
        story.step(text)
    assert run("report", *story.where, "--html", str(tmp_path / "r.html"), "--diffs")[0] == 0
    browser.open(tmp_path / "r.html")
    browser.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    shown = browser.run("document.body.innerText")
    assert "by call #1, or beside it" in shown and "+two" in shown and browser.complaints() == []


def test_the_state_at_a_record_is_shown(tmp_path: Path, run: Run, browser: Chromium) -> None:
    story = Story(tmp_path)
    (story.work / "b.html").write_text(BREAKS_OUT)
    first = story.step("one")
    story.step("two")
    assert run("report", *story.where, "--html", str(tmp_path / "r.html"), "--at", str(first))[0] == 0
    browser.open(tmp_path / "r.html")
    for depth in (1, 2):  # the tree's fold makes those of its files
        browser.run("for (const fold of document.querySelectorAll('#as-of details')) fold.open = true")
        browser.wait(f"document.querySelectorAll('#as-of pre').length >= {3 * depth - 2}")
    shown = browser.run("document.getElementById('as-of').innerText")
    assert f"As of record {first}" in shown and "one.sh" in shown and "oneoneone" in shown and "#1" in shown
    assert "#!/bin/sh" in shown and BREAKS_OUT in shown
    assert browser.run("document.querySelectorAll('#as-of img, #as-of script, #as-of a').length") == 0
    assert browser.complaints() == []
