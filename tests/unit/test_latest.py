"""scripts/latest.py: what `make latest` writes when a new version passes."""

from __future__ import annotations

import json
from datetime import date

import pytest

from scripts.latest import PINS, ROOT, Answer, Pin, failures, moved, renamed, signs, source, spelled, suite
from wal_agent.agents import AGENTS
from wal_agent.agents.opencode import OPENCODE as EDITION

PIN: Pin = {"package": "@a/b", "version": "1.2.3", "also": ["1.0.0"]}


def test_the_version_before_goes_to_the_second_lane() -> None:
    assert moved(PIN, "2.0.0") == {"package": "@a/b", "version": "2.0.0", "also": ["1.2.3"]}
    assert moved({"package": "b", "version": "1.2.3"}, "2.0.0")["also"] == ["1.2.3"]
    assert moved(PIN, "1.0.0")["also"] == ["1.2.3"], "back to the older one"


def test_the_pins_keep_their_form() -> None:
    pins = json.loads(PINS.read_text())
    assert spelled(pins) == PINS.read_text()
    assert tuple(pins["opencode"]["successors"]) == EDITION.program.successors
    assert moved(pins["opencode"], "1.99.0")["successors"] == pins["opencode"]["successors"]


# As npm has answered, without the other versions' times.
PI: Answer = {
    "version": "0.73.1",
    "dist-tags": {"latest": "0.73.1"},
    "time": {"0.73.1": "2026-07-17T13:02:23.270000+00:00"},
}
OPENCODE: Answer = {
    "version": "1.18.33",
    "dist-tags": {"latest": "1.18.33"},
    "time": {"1.18.33": "2026-09-28T10:03:55.510000+00:00"},
}
OLD, BETA = {"deprecated": "Moved to @c/d"}, {"dist-tags": {"latest": "1.3.0", "next": "2.0.0-beta.1", "old": "1.0.0"}}


@pytest.mark.parametrize(
    ("package", "answers", "told"),
    [
        ("pi", {"pi": PI}, ["2026-07-17"]),
        ("opencode-ai", {"opencode-ai": OPENCODE}, []),
        ("opencode-ai", {"opencode-ai": OPENCODE, "@c/d": {}}, []),
        ("opencode-ai", {"opencode-ai": OPENCODE, "@c/d": {"version": "2.0.32"}}, ["2.0.32"]),
        ("a", {"a": {"version": "1.3.0", **OLD, **BETA}}, ["Moved to @c/d", "2.0.0-beta.1"]),
        ("a", {"a": {}}, []),
    ],
)
def test_what_a_pinned_name_cannot_show(package: str, answers: dict[str, Answer], told: list[str]) -> None:
    pin: Pin = {"package": package, "version": "1.2.3", "successors": ["@c/d"]}
    found = signs(pin, answers, date(2026, 11, 28))
    assert len(found) == len(told) and all(word in sign for word, sign in zip(told, found, strict=True))


@pytest.mark.parametrize("name", json.loads(PINS.read_text()))
def test_each_module_is_rewritten_as_it_stands(name: str) -> None:
    """With its own versions a module keeps its bytes; with others only those two lines change."""
    text = source(name).read_text()
    pin: Pin = json.loads(PINS.read_text())[name]
    assert renamed(text, pin) == text
    made = renamed(text, moved(pin, "99.0.0"))
    new = [line for line in made.splitlines() if line not in text.splitlines()]
    old = AGENTS[name].tested
    also = f'also = ["{old}"]' if source(name).suffix == ".toml" else f'also: tuple[str, ...] = ("{old}",)'
    assert new == ['tested = "99.0.0"', also]
    with pytest.raises(ValueError):
        renamed(text.replace("\ntested = ", "\nother = "), pin)


def test_the_suite_of_an_agent() -> None:
    words, files = suite("gemini", list(AGENTS))
    assert words == "gemini"
    assert files[:2] == ["tests/contract/test_gemini.py", "tests/contract/test_gemini_resume.py"]
    assert all((ROOT / name).is_file() for name in files)
    assert suite("pi", list(AGENTS))[0] == "pi and not copilot"


def test_what_failed_is_read_from_the_summary() -> None:
    said = "F.\nFAILED tests/a.py::test_b[x] - AssertionError\nERROR tests/c.py::test_d\n2 failed, 1 passed in 3 s\n"
    assert failures(said) == ["tests/a.py::test_b[x]", "tests/c.py::test_d"]
    assert failures("3 passed in 1 s\n") == []
