"""agents/places.py: what the general code says of an agent holds for each of them, so also for one that is added."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal_agent.agents import AGENTS, NAMES, rehearsal_of
from wal_agent.agents.places import in_a_secret_place
from wal_agent.paths import state_dir

CONFIG = {name: (f".config/{name}",) for name in ("kilo", "opencode")}  # settings that hold no login


@pytest.mark.parametrize("name", NAMES)
def test_no_file_of_an_agents_own_is_captured_as_one_of_the_user(name: str, tmp_path: Path) -> None:
    """Its sessions, and what a first start with a login writes, are in a place that is never captured."""
    home = tmp_path / "home"
    home.mkdir()
    env, agent = {"HOME": str(home)}, AGENTS[name]
    folder = agent.folder(env)
    assert folder.is_relative_to(state_dir(env)) or in_a_secret_place(folder.relative_to(home).parts)
    if (rehearsal := rehearsal_of(agent)) is None:
        return
    rehearsal.home(home, tmp_path, "http://127.0.0.1:1")
    for path in (path for path in home.rglob("*") if path.is_file()):
        parts = path.relative_to(home).parts
        assert in_a_secret_place(parts) or "/".join(parts).startswith(CONFIG.get(name, ())), path
