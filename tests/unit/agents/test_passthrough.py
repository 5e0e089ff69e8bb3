"""Every agent's `passthrough`: what is a prompt to the CLI is protected, also where it is spelled like a subcommand."""

from __future__ import annotations

import pytest

from wal_agent.agents import AGENTS, rehearsal_of

WORDS = """agents auth config doctor exec extensions help hooks init install list login mcp models plugin plugins resume
    session setup-token skills update upgrade version"""
HEADLESS = {name: rehearsal for name, agent in AGENTS.items() if (rehearsal := rehearsal_of(agent)) is not None}


@pytest.mark.parametrize("name", HEADLESS)
@pytest.mark.parametrize("word", WORDS.split())
def test_a_prompt_of_one_word_is_protected(name: str, word: str) -> None:
    real = (name, word) == ("codex", "help")  # `codex exec help` is one, whatever stands between
    assert AGENTS[name].passthrough(HEADLESS[name].args(word)) is real


@pytest.mark.parametrize("name", ["claude", "codex", "copilot", "gemini", "opencode", "qwen"])
def test_a_word_behind_two_dashes_is_a_prompt(name: str) -> None:
    """So it is to most; where it is not, a supervisor beside a subcommand does no harm."""
    for word in WORDS.split():
        assert not AGENTS[name].passthrough(["--", word])
