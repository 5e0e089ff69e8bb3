"""`wal-agent configure-hooks`: what it does to files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wal_agent.cli.configure_hooks import configure_hooks
from wal_agent.errors import ConfigError, UsageError
from wal_agent.supervise.settings import load


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace to stand in, and a HOME of its own."""
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_STATE_HOME", "GEMINI_CLI_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder.resolve()


def skipped(workspace: Path) -> tuple[str, ...]:
    return load("gemini", workspace, {}, {}).skip


def test_skip_and_unskip_and_reset(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure_hooks(skip=["read_file, glob", "grep_search"])
    assert skipped(shop) == ("read_file", "glob", "grep_search")
    configure_hooks(skip=["list_directory"], unskip=["glob"])
    assert skipped(shop) == ("read_file", "grep_search", "list_directory")
    configure_hooks(reset=True)
    assert list(shop.iterdir()) == []
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == (
        "wal-agent: read_file, glob, grep_search: no before-hook, from the next start on (wal-agent.toml)."
    )


def test_the_rest_of_the_file_keeps_its_bytes(shop: Path) -> None:
    path = shop / "wal-agent.toml"
    before = b"# ours\r\njob = 'x' # why"
    path.write_bytes(before)
    path.chmod(0o644)
    configure_hooks(skip=["read_file"])
    assert path.read_bytes().startswith(before)
    assert path.stat().st_mode & 0o777 == 0o644
    configure_hooks(unskip=["read_file"])
    assert path.read_bytes() == before


def test_skipping_what_is_skipped_changes_nothing(shop: Path) -> None:
    path = shop / "wal-agent.toml"
    path.write_text('hooks.gemini.skip=["read_file"]')
    configure_hooks(skip=["read_file"])
    assert path.read_text() == 'hooks.gemini.skip=["read_file"]'


def test_reset_without_a_file_makes_none(shop: Path) -> None:
    configure_hooks(reset=True)
    assert list(shop.iterdir()) == []


@pytest.mark.parametrize("tool", ["run_shell_command", "write_file", "replace", "my_mcp_tool"])
def test_a_tool_that_may_change_something_keeps_its_hook(shop: Path, tool: str) -> None:
    """I1."""
    with pytest.raises(UsageError, match=f"--skip {tool}: .* must be logged before it runs"):
        configure_hooks(skip=["read_file", tool])
    assert list(shop.iterdir()) == []


def test_a_bad_list_can_be_mended(shop: Path) -> None:
    (shop / "wal-agent.toml").write_text('[hooks.gemini]\nskip = ["write_file"]\n')
    with pytest.raises(ConfigError, match="configure-hooks --unskip write_file"):
        skipped(shop)
    configure_hooks(unskip=["write_file"])
    assert skipped(shop) == ()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"agent": "gemni"}, "not an agent"),
        ({"skip": ["glob"], "reset": True}, "One thing at a time"),
        ({"install": True, "uninstall": True}, "One thing at a time"),
        ({"skip": ["glob"], "unskip": ["glob"]}, "both name glob"),
        ({"unskip": ["glob"]}, "is not skipped"),
    ],
)
def test_what_makes_no_sense_is_said(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        configure_hooks(**options)


def test_a_projects_link_is_not_written_through(shop: Path, tmp_path: Path) -> None:
    target = tmp_path / "profile"
    target.write_text("")
    (shop / "wal-agent.toml").symlink_to(target)
    for options in ({"skip": ["glob"]}, {"reset": True}):
        with pytest.raises(ConfigError, match="is a link"):
            configure_hooks(**options)
    assert target.read_text() == ""


def test_a_file_that_is_no_toml_is_left_alone(shop: Path) -> None:
    (shop / "wal-agent.toml").write_text("a = [")
    with pytest.raises(ConfigError, match="cannot be edited"):
        configure_hooks(skip=["glob"])
    assert (shop / "wal-agent.toml").read_text() == "a = ["


def test_what_is_shown_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    configure_hooks(skip=["glob"])
    capsys.readouterr()
    configure_hooks()
    said = capsys.readouterr()
    assert said.err == ""
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in said.out.splitlines() if line}
    assert rows["glob"] == ["skipped", "only reads, and is skipped"]
    assert rows["read_file"] == ["before-hook", "only reads; could be skipped"]
    assert rows["run_shell_command"] == ["before-hook", "runs a command that may do anything"]


def test_json_is_the_only_thing_on_stdout(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure_hooks(skip=["glob"], json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["agent"], found["skip"], found["installed"]) == ("gemini", ["glob"], False)
    assert found["file"] == str(shop / "wal-agent.toml")
    assert {row["tool"]: row["before_hook"] for row in found["tools"]}["glob"] is False


def test_install_and_uninstall(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path.resolve() / "home" / ".gemini" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text('{ "theme": "x" } // mine\n')
    configure_hooks(install=True)
    configure_hooks(json=True)
    assert json.loads(capsys.readouterr().out)["installed"] is True
    configure_hooks(uninstall=True)
    assert path.read_text() == '{ "theme": "x" } // mine\n'
    configure_hooks(uninstall=True)
    assert capsys.readouterr().err.splitlines() == [
        f"wal-agent: hooks taken out of {path}.",
        f"wal-agent: no wal-agent hooks are installed in {path}.",
    ]


def test_an_agent_whose_hooks_come_with_each_start_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="nothing to install"):
        configure_hooks(agent="codex", install=True)
    with pytest.raises(UsageError, match="nothing to install"):
        configure_hooks(agent="codex", uninstall=True)
    configure_hooks(agent="codex", json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["settings"], found["installed"]) == (None, False)


@pytest.mark.parametrize("agent", ["claude", "qwen"])
def test_another_agents_settings(agent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path.resolve() / "home" / f".{agent}" / "settings.json"
    configure_hooks(agent=agent, install=True)
    assert "WAL_AGENT_SOCKET" in path.read_text()
    configure_hooks(agent=agent, uninstall=True)
    assert not path.exists()
    assert str(path) in capsys.readouterr().err
