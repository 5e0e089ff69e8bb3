"""docs/AGENTS.md is made from page.md, traits.toml and the agents' modules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.cli.shelf import Run
from wal_agent.agents import AGENTS, gemini
from wal_agent.cli import doctor

ROOT = Path(__file__).parents[3]


def test_the_page_is_current() -> None:
    """Make it with: wal-agent agents --markdown > docs/AGENTS.md"""
    assert (ROOT / "docs/AGENTS.md").read_text() == doctor.agents_page(list(AGENTS.values()))


def test_every_agent_has_a_start_and_each_trait_a_place() -> None:
    assert set(doctor.traits()) == set(AGENTS)
    assert {*doctor.ON_PAGE} <= {*doctor.COLUMNS}
    assert {*doctor.COLUMNS, "start", "limits"} == set(doctor.Traits.__struct_fields__)


def test_no_trait_breaks_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = replace(doctor.traits()["gemini"], hooks="a | b\nc", limits=("one\n- two",))
    monkeypatch.setattr(doctor, "traits", lambda: {"gemini": odd})
    text = doctor.agents_page([gemini])
    row = next(line for line in text.splitlines() if line.startswith("| gemini |"))
    assert "a \\| b c" in row and row.count(" | ") == len(doctor.ON_PAGE) + 1
    assert "- one - two\n" in text


def test_the_pages_words_are_all_explained() -> None:
    words = [
        line.split(" | ")[0].strip("| ") for line in doctor.TEMPLATE.read_text().splitlines() if line.startswith("| ")
    ]
    assert words[1:] == [*doctor.ON_PAGE, "tested"]


def test_the_command(run: Run) -> None:
    assert run("agents", "--markdown") == (0, doctor.agents_page(list(AGENTS.values())), "")
    code, out, err = run("agents", "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out)["agents"]
    assert [(each["name"], each["tested"]) for each in shown] == [(a.name, a.tested) for a in AGENTS.values()]
    assert shown[0]["limits"] == list(doctor.traits()["gemini"].limits)
    code, out, err = run("agents")
    assert (code, err) == (0, "")
    assert f"gemini  (tested with {AGENTS['gemini'].tested})" in out and "generic  (any command)" in out
    assert "  fail-closed  yes: the hook line refuses by itself" in out and "  not held" in out
