"""Hooks that are off are named before anything starts: by file and key."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from wal_agent.agents import AGENTS
from wal_agent.agents.gemini import cli

GEMINI = AGENTS["gemini"]


def ask(
    tmp_path: Path, user: str = "", project: str = "", args: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> str | None:
    home, workspace = tmp_path / "home", tmp_path / "ws"
    for base, text in ((home, user), (workspace, project)):
        (base / ".gemini").mkdir(parents=True, exist_ok=True)
        (base / ".gemini/settings.json").write_text(text)
    return GEMINI.hooks_off_reason(args, workspace, {"HOME": str(home), **(env or {})})


OFF = '{"hooksConfig": {"enabled": false}}'
ON = '{"hooksConfig": {"enabled": true}}'


@pytest.mark.parametrize(
    ("user", "project", "named"),
    [
        ("", "", None),
        ("{}", ON, None),
        ("", OFF, "in this project (.gemini/settings.json: hooksConfig.enabled is false)"),
        (OFF, "", "hooks are off (~/.gemini/settings.json: hooksConfig.enabled is false)"),
        (OFF, ON, None),
        (ON, OFF, "in this project"),
        ("", '// why\n{"a": "// no /* comment", "hooksConfig": {/* off */ "enabled": false}}', "in this project"),
        ("", '{"hooksConfig": {"enabled": 0}}', "enabled is 0"),
        ("", '{"hooksConfig": false}', "in this project"),
        ("", '{"hooksConfig": {"disabled": ["wal-agent-old"]}}', None),
        ("", "[]", None),
        ("", '{"hooksConfig": {"enabled": false}', None),
        ("", "[" * 100_000, None),
    ],
)
def test_the_switch(tmp_path: Path, user: str, project: str, named: str | None) -> None:
    why = ask(tmp_path, user, project)
    assert why is None if named is None else named in str(why)


def test_the_sentence(tmp_path: Path) -> None:
    assert ask(tmp_path, project=OFF) == (
        "Gemini's hooks are off in this project (.gemini/settings.json: hooksConfig.enabled is false), "
        "so no tool call could be logged. Nothing was run."
    )


def test_a_system_file_wins_only_if_it_is_roots_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "system.json"
    system.write_text(ON)
    env = {"GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(system)}
    assert not cli.is_secure(Path("/tmp")), "all may write there"
    assert ask(tmp_path, project=OFF, env=env) is not None
    monkeypatch.setattr(cli, "is_secure", lambda path: path == system)
    assert ask(tmp_path, project=OFF, env=env) is None


def test_the_home_folder_as_workspace_has_no_project_file(tmp_path: Path) -> None:
    ask(tmp_path, user=ON)
    assert GEMINI.hooks_off_reason([], tmp_path / "home", {"HOME": str(tmp_path / "home")}) is None
    assert len(cli.settings_layers(tmp_path / "home", {"HOME": str(tmp_path / "home")})) == 1


@pytest.mark.parametrize(
    ("allowed", "fine"),
    [("[]", True), ('["extensions/wal-agent-"]', True), ('["github.com/us/.*"]', False), ('["["]', False)],
)
def test_a_list_of_allowed_extensions(tmp_path: Path, allowed: str, fine: bool) -> None:
    why = ask(tmp_path, user=f'{{"security": {{"allowedExtensions": {allowed}}}}}')
    assert (why is None) is fine
    assert fine or "security.allowedExtensions" in str(why)


@pytest.mark.parametrize(
    ("args", "env", "project", "fine"),
    [
        (("--sandbox",), {}, "", False),
        (("-s", "-d"), {}, "", False),
        (("--sandbox", "false"), {}, '{"tools": {"sandbox": "docker"}}', True),
        ((), {"GEMINI_SANDBOX": "podman"}, "", False),
        ((), {"GEMINI_SANDBOX": "false"}, '{"tools": {"sandbox": true}}', True),
        ((), {}, '{"tools": {"sandbox": "docker"}}', False),
        ((), {}, '{"tools": {"sandbox": {"enabled": true, "command": "runsc"}}}', False),
        ((), {}, '{"tools": {"sandbox": {"enabled": false, "command": "runsc"}}}', True),
        ((), {}, '{"tools": {"sandbox": "sandbox-exec"}}', True),
        ((), {"SANDBOX": "inside"}, '{"tools": {"sandbox": true}}', True),
        (("--acp",), {}, "", False),
        (("--worktree", "x"), {}, "", False),
        (("-w",), {}, "", False),
        (("-e", "none"), {}, "", True),
    ],
)
def test_arguments_and_places_without_hooks(
    tmp_path: Path, args: tuple[str, ...], env: dict[str, str], project: str, fine: bool
) -> None:
    assert (ask(tmp_path, project=project, args=args, env=env) is None) is fine


def test_unclosed_comments_take_no_time(tmp_path: Path) -> None:
    start = time.process_time()
    assert ask(tmp_path, project="/* " * 20_000) is None
    assert ask(tmp_path, project='"' + '\\"' * 20_000) is None
    assert time.process_time() - start < 1
