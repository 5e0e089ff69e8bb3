"""The table of agents: each module is an agent, and only the one that is looked up is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wal_agent.agents import AGENTS, claude, codex, copilot, gemini, generic, opencode, pi, qwen, rehearsal_of
from wal_agent.agents.base import Agent, Rehearsal

MODULES: tuple[Agent, ...] = (gemini, claude, codex, copilot, pi, opencode, qwen, generic)  # mypy checks the protocol


def test_each_module_is_its_agent() -> None:
    assert tuple(AGENTS.values()) == MODULES and len(AGENTS) == len(MODULES)
    assert [agent.name for agent in MODULES] == list(AGENTS)
    with pytest.raises(KeyError):
        AGENTS["base"]


def test_all_but_generic_can_be_rehearsed() -> None:
    scripted: dict[str, Rehearsal | None] = {name: rehearsal_of(agent) for name, agent in AGENTS.items()}
    assert [name for name, found in scripted.items() if found is None] == ["generic"]


@pytest.mark.parametrize("name", list(AGENTS))
def test_only_the_chosen_agent_is_imported(name: str) -> None:
    code = f"import sys; from wal_agent.agents import AGENTS; list(AGENTS); AGENTS[{name!r}]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {module.split(".")[2] for module in done.stdout.split() if module.startswith("wal_agent.agents.")}
    assert loaded & set(AGENTS) == {name}
