"""The table of agents: each module or description is an agent, and only the one that is looked up is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wal_agent.agents import AGENTS, claude, codex, copilot, gemini, generic, kilo, opencode, pi, qwen, rehearsal_of
from wal_agent.agents.base import Agent, Rehearsal
from wal_agent.agents.family import FOLDER, load

# mypy checks the protocol
MODULES: tuple[Agent, ...] = (gemini, claude, codex, copilot, pi, opencode.agent, kilo.agent, qwen, generic)
BUILT_FROM = {"kilo": {"opencode"}}
DESCRIBED: dict[str, Agent] = {path.stem: load(path) for path in FOLDER.glob("*.toml")}


def test_each_module_is_its_agent() -> None:
    assert tuple(agent for name, agent in AGENTS.items() if name not in DESCRIBED) == MODULES
    assert [agent.name for agent in AGENTS.values()] == list(AGENTS)
    assert {agent.name for agent in DESCRIBED.values()} == DESCRIBED.keys() == AGENTS.keys() - {a.name for a in MODULES}
    with pytest.raises(KeyError):
        AGENTS["base"]


def test_each_agent_with_hooks_can_be_rehearsed() -> None:
    scripted: dict[str, Rehearsal | None] = {name: rehearsal_of(agent) for name, agent in AGENTS.items()}
    assert all(AGENTS[name].capabilities.hookless for name, found in scripted.items() if found is None)


@pytest.mark.parametrize("name", list(AGENTS))
def test_only_the_chosen_agent_is_imported(name: str) -> None:
    code = f"import sys; from wal_agent.agents import AGENTS; list(AGENTS); AGENTS[{name!r}]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {module.split(".")[2] for module in done.stdout.split() if module.startswith("wal_agent.agents.")}
    assert loaded & set(AGENTS) == {name, *BUILT_FROM.get(name, ())} - DESCRIBED.keys() and ("family" in loaded) == (
        name in DESCRIBED
    )


PIPES = """.claude/settings.json .claude/settings.local.json .codex/config.toml .gemini/settings.json .gemini/.env
.qwen/settings.json .qwen/.env .env .pi/settings.json .opencode/opencode.json opencode.json .github/hooks.json
.copilot/config.json .github/copilot/settings.json .wal-agent/wal-agent.toml"""


@pytest.mark.parametrize("name", list(AGENTS))
def test_pipes_in_the_place_of_a_projects_settings_block_nothing(name: str, tmp_path: Path) -> None:
    """A stranger's folder: nothing waits for whoever would write them."""
    work, home = tmp_path / "work", tmp_path / "home"
    for pipe in PIPES.split():
        (work / pipe).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(work / pipe)
    home.mkdir()
    code = (
        "import sys; from pathlib import Path; from wal_agent.agents import AGENTS; "
        "AGENTS[sys.argv[1]].hooks_off_reason([], Path(sys.argv[2]), {'HOME': sys.argv[3], 'PATH': ''})"
    )
    words = [sys.executable, "-c", code, name, str(work), str(home)]
    subprocess.run(words, check=True, timeout=30)
