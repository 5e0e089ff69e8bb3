"""supervise/switches.py: files that switch the hooks of a running agent off are noticed at the next tick (I5)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wal_agent.agents import AGENTS
from wal_agent.agents.base import HookSetup
from wal_agent.agents.claude import cli
from wal_agent.agents.claude.hooks import merge_settings
from wal_agent.supervise.switches import HookSwitches

CLAUDE = AGENTS["claude"]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HookSwitches:
    monkeypatch.setattr(cli, "MANAGED", tmp_path / "etc")
    (tmp_path / "etc").mkdir()
    (tmp_path / "run").mkdir()
    injected = CLAUDE.inject(HookSetup("r", tmp_path / "run", ("client",)), {})
    return HookSwitches(CLAUDE, (), tmp_path, {"HOME": str(tmp_path), **injected.env})


@pytest.mark.parametrize("name", ["managed-settings.json", "managed-settings.d/10.json"])
@pytest.mark.parametrize(
    "text",
    [
        '{"disableAllHooks": true}',
        '{"disableAllHooks": "yes"}',
        '{"allowManagedHooksOnly": true}',
        '{"strictPluginOnlyCustomization": ["hooks"]}',
    ],
)
def test_an_organisations_settings(tmp_path: Path, watched: HookSwitches, name: str, text: str) -> None:
    """Issue 12.3: these count more than this run's own."""
    file = tmp_path / "etc" / name
    file.parent.mkdir(exist_ok=True)
    assert watched.look() is None
    file.write_text('{"model": "x"}')
    assert watched.look() is None
    file.write_text(text)
    error = watched.look()
    assert error is not None and error.exit_code == 78 and str(file) in error.what


@pytest.mark.parametrize("how", ["changed", "gone", "the same"])
def test_this_runs_own_settings(tmp_path: Path, watched: HookSwitches, how: str) -> None:
    """Issue 12.3."""
    own = tmp_path / "run/claude-settings.json"
    if how == "gone":
        own.unlink()
    else:
        own.write_text("{}" if how == "changed" else own.read_text())
    assert (watched.look() is None) == (how == "the same")


def test_what_counts_less_ends_no_run(tmp_path: Path, watched: HookSwitches) -> None:
    """Issue 12.3, I6: the user's and the project's files, and a run of an agent that reads nothing again."""
    for name in (".claude/settings.json", ".claude/settings.local.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"disableAllHooks": true}')
    assert watched.look() is None
    assert HookSwitches(AGENTS["gemini"], (), tmp_path, {}).look() is None


def test_what_this_runs_settings_say_counts_more_than_the_users_own(tmp_path: Path) -> None:
    """Issue 12.3, I6: the user's `--settings` is in one file with them, and keeps its other variables."""
    injected = CLAUDE.inject(HookSetup("r", tmp_path, ("client",)), {})
    users = {"env": {"A": "b", "CLAUDE_CODE_SIMPLE": "1"}, "disableAllHooks": True, "model": "m"}
    both = json.loads(merge_settings(Path(injected.env["WAL_AGENT_CLAUDE_SETTINGS"]), users).read_bytes())
    assert both["disableAllHooks"] is False and both["model"] == "m"
    assert both["env"]["A"] == "b" and both["env"]["CLAUDE_CODE_SIMPLE"] == "0"
