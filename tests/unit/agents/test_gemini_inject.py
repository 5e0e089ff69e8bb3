"""The extension folder: made whole, inert for others, swept when its run is dead."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from pathlib import Path

import pytest

from wal_agent.agents import AGENTS
from wal_agent.agents.base import HookSetup
from wal_agent.agents.gemini.hooks import EVENTS
from wal_agent.agents.gemini.line import HOOK_TIMEOUT_MS, MARKER
from wal_agent.errors import ConfigError

GEMINI = AGENTS["gemini"]


def put(home: Path, run: str = "r1", skip: tuple[str, ...] = ()) -> Path:
    run_dir = home.parent / f"dir-{run}"
    run_dir.mkdir(exist_ok=True)
    (run_dir / "lock").touch()
    made = GEMINI.inject(HookSetup(run, run_dir, ("client",), skip), {"HOME": str(home)})
    assert made.env == {MARKER: run}
    (path,) = made.paths
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


def test_the_folder(home: Path) -> None:
    path = put(home)
    assert path == home / ".gemini/extensions/wal-agent-r1"
    manifest = json.loads((path / "gemini-extension.json").read_text())
    assert manifest["name"] == path.name
    assert (path / manifest["contextFileName"].replace("$" + MARKER, "r1")).exists()
    hooks = json.loads((path / "hooks/hooks.json").read_text())["hooks"]
    assert tuple(hooks) == EVENTS
    for ((group,),) in zip(hooks.values(), strict=True):
        (hook,) = group["hooks"]
        assert (hook["type"], hook["timeout"], "matcher" in group) == ("command", HOOK_TIMEOUT_MS, False)
        assert not re.search(r"\$\{(?!out#)", hook["command"]), "Gemini fills in ${...}"
    assert sorted(p.name for p in (home / ".gemini").iterdir()) == ["extensions"]


def test_skipped_tools_start_no_process(home: Path) -> None:
    hooks = json.loads((put(home, skip=("read_file", "a.b")) / "hooks/hooks.json").read_text())["hooks"]
    assert {event for event, (group,) in hooks.items() if "matcher" in group} == {"BeforeTool", "AfterTool"}
    matcher = re.compile(hooks["BeforeTool"][0]["matcher"])
    tools = ("read_file", "a.b", "axb", "read_files", "xread_file", "run_shell_command")
    assert [t for t in tools if not matcher.search(t)] == ["read_file", "a.b"]


def test_the_same_run_again_replaces_its_folder(home: Path) -> None:
    put(home)
    assert (put(home, skip=("x",)) / "gemini-extension.json").exists()
    assert sorted(p.name for p in (home / ".gemini").iterdir()) == ["extensions"]


@pytest.mark.parametrize("run", ["", "a/b", "..", "x" * 65, "a b", "a$b"])
def test_a_run_that_is_no_name_is_refused(home: Path, run: str) -> None:
    with pytest.raises(ConfigError):
        GEMINI.inject(HookSetup(run, home, ("client",)), {"HOME": str(home)})


def test_paths_that_gemini_would_rewrite_are_refused(home: Path) -> None:
    with pytest.raises(ConfigError):
        GEMINI.inject(HookSetup("r", home / "$GEMINI_CWD", ("client",)), {"HOME": str(home)})


def test_a_home_that_cannot_be_written_is_said(home: Path) -> None:
    (home / ".gemini").write_text("a file")
    with pytest.raises(ConfigError, match="could not be placed"):
        put(home)


def test_sweeping(home: Path) -> None:
    env = {"HOME": str(home)}
    dead, alive, elsewhere, broken = (put(home, run) for run in ("dead", "alive", "elsewhere", "broken"))
    (elsewhere / "wal-agent.json").write_text('{"host": "another", "lock": "/none"}')
    (broken / "wal-agent.json").write_text("{")
    users = home / ".gemini/extensions/wal-agent-of-the-user"
    users.mkdir()
    link = home / ".gemini/extensions/wal-agent-link"
    link.symlink_to(dead)
    stale, fresh = home / ".gemini/.wal-agent-x.new", home / ".gemini/.wal-agent-y.new"
    stale.mkdir()
    fresh.mkdir()
    os.utime(stale, (time.time() - 7200,) * 2)
    with (home.parent / "dir-alive/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        GEMINI.sweep(env, home)
        assert not dead.exists()
        assert all(path.exists() for path in (alive, elsewhere, broken, users, fresh))
        assert link.is_symlink()
        assert not stale.exists()
    GEMINI.sweep(env, home)
    assert not alive.exists()


def test_a_run_dir_that_is_gone_is_a_dead_run(home: Path) -> None:
    path = put(home, "gone")
    (home.parent / "dir-gone/lock").unlink()
    GEMINI.sweep({"HOME": str(home)}, home)
    assert not path.exists()


def test_gemini_cli_home_moves_it(home: Path) -> None:
    made = GEMINI.inject(HookSetup("r", home, ("c",)), {"HOME": "/nonexistent", "GEMINI_CLI_HOME": str(home)})
    assert made.paths[0].is_relative_to(home / ".gemini")


def test_extensions_that_are_a_link_elsewhere(home: Path) -> None:
    elsewhere = home.parent / "dotfiles/extensions"
    elsewhere.mkdir(parents=True)
    (home / ".gemini").mkdir()
    (home / ".gemini/extensions").symlink_to(elsewhere)
    put(home)
    assert (elsewhere / "wal-agent-r1/gemini-extension.json").exists()
    GEMINI.sweep({"HOME": str(home)}, home)
    assert [p.name for p in elsewhere.parent.rglob("*")] == ["extensions"]
