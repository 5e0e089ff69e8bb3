"""The demo's machines."""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.rehearsal.demo import Stage
from wal_agent.rehearsal.model import Model


def test_a_machines_files_are_written_before_its_agent_and_never_under_it(tmp_path: Path) -> None:
    """An agent that reads them as they are written anew asks a model out on the network."""
    agent = AGENTS["codex"]
    rehearsal = rehearsal_of(agent)
    assert rehearsal is not None
    stage = Stage(tmp_path, tmp_path / "run", {}, print, "task", agent, rehearsal)
    one, two = stage.home("home-1"), stage.home("home-2")
    with Model(rehearsal.dialect) as model:
        env = stage.machine(one, model)
        (one / ".codex/config.toml").write_text("read now")
        assert stage.machine(one, model) == env
        assert stage.machine(two, model)["CODEX_HOME"] == str(two / ".codex")
    assert (one / ".codex/config.toml").read_text() == "read now"
