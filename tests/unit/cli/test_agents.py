"""docs/AGENTS.md is what the modules say."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tests.unit.cli.shelf import Run
from wal_agent.agents import AGENTS, docs_page, gemini
from wal_agent.agents.base import Agent, Traits

ROOT = Path(__file__).parents[3]


def test_the_page_is_current() -> None:
    """Make it with: wal-agent agents --markdown > docs/AGENTS.md"""
    assert (ROOT / "docs/AGENTS.md").read_text() == docs_page.markdown(list(AGENTS.values()))


def test_every_agent_has_a_start_and_each_trait_a_place() -> None:
    assert set(docs_page.STARTS) >= set(AGENTS)
    assert {*docs_page.COLUMNS, "limits"} == {f.name for f in fields(Traits)}


def test_no_trait_breaks_the_table() -> None:
    odd = SimpleNamespace(**vars(gemini) | {"traits": replace(gemini.traits, hooks="a | b\nc", limits=("one\n- two",))})
    text = docs_page.markdown([cast(Agent, odd)])
    row = next(line for line in text.splitlines() if line.startswith("| gemini |"))
    assert "a \\| b c" in row and row.count(" | ") == len(docs_page.COLUMNS) + 1
    assert "- one - two\n" in text


def test_the_pages_words_are_all_explained() -> None:
    words = [line.split(" | ")[0].strip("| ") for line in docs_page.WORDS.splitlines() if line.startswith("| ")]
    assert words[1:] == [*(docs_page.HEADS.get(name, name) for name in docs_page.COLUMNS), "tested"]


def test_the_command(run: Run) -> None:
    assert run("agents", "--markdown") == (0, docs_page.markdown(list(AGENTS.values())), "")
    code, out, err = run("agents", "--json")
    assert (code, err) == (0, "")
    assert [(each["name"], each["tested"]) for each in json.loads(out)] == [(a.name, a.tested) for a in AGENTS.values()]
    assert json.loads(out)[0]["limits"] == list(next(iter(AGENTS.values())).traits.limits)
    code, out, err = run("agents")
    assert (code, out) == (0, "")
    assert f"gemini  (tested with {AGENTS['gemini'].tested})" in err and "generic  (any command)" in err
    assert "  fail-closed  yes: the hook line refuses by itself" in err and "  not held" in err
