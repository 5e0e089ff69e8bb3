"""Where Qwen Code keeps things, its command line, and what would keep our hooks from firing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from wal_agent.agents import qwen as QWEN
from wal_agent.agents.base import ACT, Cli, HookSetup, NewSession, ResumeSession
from wal_agent.agents.qwen import cli
from wal_agent.agents.qwen.hooks import MARKER
from wal_agent.agents.qwen.session import folder_variables, parse_dotenv, project_folder, qwen_home, runtime_folder
from wal_agent.errors import ConfigError

SESSION = "6e68637d-d547-4d4b-aa1f-b44129f5d965"
CLI = Cli(Path("/bin/qwen"), "0.15.10")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home/.qwen").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    (tmp_path / "ws/.qwen").mkdir(parents=True)
    return tmp_path / "ws"


def say(folder: Path, **settings: object) -> None:
    (folder / ".qwen/settings.json").write_text("// mine\n" + json.dumps(settings))


# ---- folders


def test_folders_as_qwen_finds_them(home: Path) -> None:
    env = {"HOME": str(home)}
    assert qwen_home(env) == runtime_folder(env) == home / ".qwen"
    assert project_folder(env, Path("/a/b_c.d")) == home / ".qwen/projects/-a-b-c-d"
    say(home, advanced={"runtimeOutputDir": "~/out"})
    assert (qwen_home(env), runtime_folder(env)) == (home / ".qwen", home / "out")
    (home / ".env").write_text('export QWEN_HOME="/q"\nQWEN_RUNTIME_DIR=/r\n')
    assert (qwen_home(env), runtime_folder(env)) == (Path("/q"), Path("/r"))
    assert runtime_folder(env | {"QWEN_HOME": "/h", "QWEN_RUNTIME_DIR": "~/d"}) == home / "d"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("QWEN_HOME=/x/qh # my qwen", "/x/qh"),
        ("QWEN_HOME: /x", "/x"),
        ("QWEN_HOME=`/a b` # c", "/a b"),
        ("export QWEN_HOME = '/x'", "/x"),
        ("QWEN_HOME=/one\nQWEN_HOME=/two\r\n", "/two"),
        ('QWEN_HOME="/x#y"#z', "/x#y"),
        ("#QWEN_HOME=/x", None),
        ("QWEN_HOME='/x' y", "'/x' y"),
        ("\ufeffQWEN_HOME=\u00a0/x", "/x"),
    ],
)
def test_a_line_of_a_dotenv_file_as_its_package_reads_it(line: str, value: str | None) -> None:
    """Each seen on the real one."""
    assert parse_dotenv(line).get("QWEN_HOME") == value


def test_which_file_names_the_folders(home: Path) -> None:
    env = {"HOME": str(home)}
    (home / "qh").mkdir()
    (home / ".env").write_text(f"QWEN_HOME={home}/a/../qh # mine\n")
    (home / "qh/.env").write_text("QWEN_RUNTIME_DIR=~/rt\n")
    assert (qwen_home(env), runtime_folder(env)) == (home / "qh", home / "rt"), (
        "of a home that a file names, its own file too"
    )
    assert folder_variables(env) == {"QWEN_HOME": f"{home}/qh", "QWEN_RUNTIME_DIR": f"{home}/rt"}
    assert folder_variables(env | folder_variables(env)) == folder_variables(env)
    assert qwen_home(env | {"QWEN_HOME": ""}) == home / ".qwen", "an empty one shuts out the files"
    assert qwen_home(env | {"QWEN_HOME": "~\\a\\b"}) == home / "a/b"


@pytest.mark.parametrize(
    ("said", "files"),
    [
        ({"QWEN_HOME": "qh"}, {}),
        ({"QWEN_HOME": "~user/qh"}, {}),
        ({"QWEN_HOME": "/q\udcff"}, {}),
        ({"QWEN_RUNTIME_DIR": "./rt"}, {}),
        ({"HOME": "there"}, {}),
        ({}, {".env": "QWEN_HOME=qh"}),
        ({}, {".qwen/settings.json": '{"advanced": {"runtimeOutputDir": "out"}}'}),
        ({}, {".qwen/settings.json": '{"advanced": {"runtimeOutputDir": "/out/$USER"}}'}),
        ({"QWEN_HOME": "/q"}, {".env": "QWEN_RUNTIME_DIR=/r"}),
    ],
)
def test_a_folder_that_nobody_can_tell_is_refused(
    said: dict[str, str], files: dict[str, str], home: Path, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ws)
    for name, text in files.items():
        (home / name).write_text(text)
    env = {"HOME": str(home)} | said
    before = sorted(home.parent.rglob("*"))
    assert "Nothing was run." in str(QWEN.hooks_off_reason([], ws, env))
    with pytest.raises(ConfigError, match=r"Nothing was run\."):
        QWEN.inject(HookSetup("r1", ws, ("client",)), env)
    assert sorted(home.parent.rglob("*")) == before


def test_a_session_s_files_and_no_others(home: Path, ws: Path) -> None:
    env = {"HOME": str(home)}
    names = ("session.jsonl", "todos.json", "subagents/agent-x.jsonl", "subagents/agent-x.meta.json")
    for name in names:
        path = QWEN.restore_path(name, SESSION, ws, env)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    (home / ".qwen/oauth_creds.json").write_text("secret")
    link = QWEN.restore_path("subagents/link", SESSION, ws, env)
    link.symlink_to(home / ".qwen/oauth_creds.json")
    found = QWEN.session_files(SESSION, ws, env)
    assert tuple(file.name for file in found) == names
    assert all(file.path.is_relative_to(QWEN.folder(env)) for file in found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", False),
        ("\n\n", False),
        ("junk\n", False),
        ('{"uuid":"a","cwd":"/elsewhere"}\n', False),
        ('{"uuid":"a","cwd":"WS"}\n', True),
        ('torn{\n{"uuid":"a","cwd":"WS"}\n', True),
    ],
)
def test_what_can_be_resumed(text: str, found: bool, home: Path, ws: Path) -> None:
    env = {"HOME": str(home)}
    main = QWEN.restore_path("session.jsonl", SESSION, ws, env)
    main.parent.mkdir(parents=True)
    main.write_text(text.replace("WS", str(ws)))
    assert QWEN.existing_files(SESSION, ws, env) == [main]
    if text.startswith("torn"):
        text = text.partition("\n")[2]
        assert not QWEN.resumable(SESSION, ws, env) or found
    else:
        assert QWEN.resumable(SESSION, ws, env) is found


# ---- the command line


def argv(
    args: Sequence[str], resume: str | None = None, interactive: bool = False, env: dict[str, str] | None = None
) -> list[str]:
    session = NewSession(SESSION) if resume is None else ResumeSession(SESSION, resume)
    made = QWEN.command(CLI, args, session, interactive, env or {"HOME": "/nonexistent"})
    assert made.env == {"QWEN_CODE_NO_RELAUNCH": "true"}
    assert made.no_stdin == (bool(resume) and not interactive)
    return list(made.argv[1:])


def test_a_new_start() -> None:
    assert argv(["-y", "do it"]) == ["--session-id", SESSION, "-y", "do it"]
    for own in (["--session-id", "x"], ["--resume", SESSION], ["-c"]):
        assert argv(own) == own


def test_a_resume_has_the_id_and_not_the_first_prompt() -> None:
    assert argv(["-y", "-p", "do it", "--session-id", "x"], "words") == ["--resume", SESSION, "--prompt", ACT, "-y"]
    assert argv(["-i", "do it"], "words", True) == ["--resume", SESSION, "--prompt-interactive", ACT]
    assert argv(["do", "it"], "") == ["--resume", SESSION, "do", "it"]


def test_a_list_of_extensions_names_ours_and_swallows_nothing() -> None:
    env = {"HOME": "/nonexistent", MARKER: "r1"}
    assert argv(["do it", "-e", "none"], env=env)[2:] == ["do it", "--extensions", "wal-agent-r1", "-e", "none"]
    assert argv(["--resume", SESSION, "-e", "a", "b", "-y"], env=env) == [
        *("--resume", SESSION, "--extensions", "wal-agent-r1", "-e", "a", "b", "-y")
    ]


def test_what_the_arguments_say() -> None:
    assert [QWEN.passthrough(a) for a in (["mcp", "list"], ["--version"], ["-h"], ["-p", "mcp"])] == [1, 1, 1, 0]
    chosen = {
        "": None,
        "--session-id x": "x",
        f"-r {SESSION}": SESSION,
        "--resume": "",
        "-r title": "",
        "-c": "",
        "--continue=false": None,
    }
    assert {a: QWEN.session_from_args(a.split()) for a in chosen} == chosen
    asked = {"-p x": "x", "--promptInteractive x": "x", "a b": "a b", "-e a b -y": None, "-y": None}
    assert {a: QWEN.prompt_from_args(a.split()) for a in asked} == asked
    talks = {"": True, "-p x": False, "x": False, "-i x": True, "-y": True}
    assert {a: QWEN.is_interactive(a.split(), True, {}) for a in talks} == talks
    assert not QWEN.is_interactive([], False, {})
    assert not QWEN.is_interactive(["-i", "", "@gone"], True, {}), "headless, it ends with 42: not to be started again"


def test_the_heap_that_the_settings_ask_for(home: Path, tmp_path: Path) -> None:
    program = tmp_path / "qwen"
    program.write_text("#!/usr/bin/env node\n")
    env = {"HOME": str(home)}
    start = [*QWEN.command(Cli(program, ""), [], NewSession(SESSION), True, env).argv]
    assert start[0] == str(program)
    say(home, advanced={"autoConfigureMemory": True})
    half = psutil.virtual_memory().total // 2 // (1 << 20)
    start = [*QWEN.command(Cli(program, ""), [], NewSession(SESSION), True, env).argv]
    assert start[:3] == ["node", f"--max-old-space-size={half}", str(program)]


@pytest.mark.parametrize(("version", "usable"), [("0.12.0", False), ("0.15.6", True), ("0.15.10", True)])
def test_a_version_whose_hooks_do_not_fire_is_refused(version: str, usable: bool, tmp_path: Path) -> None:
    program = tmp_path / "qwen"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "package.json").write_text(json.dumps({"name": "@qwen-code/qwen-code", "version": version}))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/qwen").symlink_to(program)
    env = {"PATH": str(tmp_path / "bin")}
    if usable:
        assert QWEN.locate(env).version == version
    else:
        with pytest.raises(ConfigError, match="fires no hooks"):
            QWEN.locate(env)


# ---- hooks


def test_the_extension(home: Path, tmp_path: Path) -> None:
    setup = HookSetup("r1", tmp_path, ("client",), ("read_file",), "the protocol")
    made = QWEN.inject(setup, {"HOME": str(home)})
    (place,) = made.paths
    at = str(home / ".qwen")
    assert place == home / ".qwen/extensions/wal-agent-r1"
    assert made.env == {MARKER: "r1", "QWEN_HOME": at, "QWEN_RUNTIME_DIR": at, "QWEN_CODE_SIMPLE": "0"}
    manifest = json.loads((place / "qwen-extension.json").read_text())
    context = place / manifest["contextFileName"].replace("$" + MARKER, "r1")
    assert context.read_text() == "the protocol"
    hooks = json.loads((place / "hooks/hooks.json").read_text())["hooks"]
    skipped = {event for event, (group,) in hooks.items() if "read_file" in group.get("matcher", "")}
    assert skipped == {"PreToolUse", "PostToolUse", "PostToolUseFailure"}
    lines = {event: group["hooks"][0]["command"] for event, (group,) in hooks.items()}
    assert [event for event, line in lines.items() if "exit 2" in line] == ["PreToolUse"]
    assert all(line.startswith(f'[ "${MARKER}" = r1 ] || ') for line in lines.values())
    QWEN.hooks.sweep({"HOME": str(home)}, tmp_path)
    assert not place.exists(), "its run is dead"


def test_nothing_is_off(home: Path, ws: Path) -> None:
    say(home, hooks={}, disableAllHooks=False, general={"chatRecording": True}, tools={"sandbox": False})
    assert QWEN.hooks_off_reason(["-p", "x"], ws, {"HOME": str(home)}) is None


@pytest.mark.parametrize("args", [["--acp"], ["--bare"], ["--no-chat-recording"], ["--chat-recording=false"], ["-s"]])
def test_arguments_that_switch_hooks_or_the_session_off(args: list[str], home: Path, ws: Path) -> None:
    assert "Nothing was run." in str(QWEN.hooks_off_reason(args, ws, {"HOME": str(home)}))


@pytest.mark.parametrize("where", ["home", "ws", "system"])
def test_hooks_that_a_file_switches_off_and_the_last_word_on_it(where: str, home: Path, ws: Path) -> None:
    env = {"HOME": str(home), "QWEN_CODE_SYSTEM_SETTINGS_PATH": str(ws / "system.json")}
    text = json.dumps({"disableAllHooks": True})
    path = {"home": home / ".qwen/settings.json", "ws": ws / ".qwen/settings.json", "system": ws / "system.json"}[where]
    path.write_text(text)
    shown = {"home": "~/.qwen/settings.json", "ws": "in this project (.qwen/settings.json", "system": str(path)}[where]
    why = str(QWEN.hooks_off_reason([], ws, env))
    assert shown in why and "disableAllHooks is true" in why and "Nothing was run." in why
    (ws / "system.json").write_text('{"disableAllHooks": false}')
    assert QWEN.hooks_off_reason([], ws, env) is None


def test_settings_that_take_the_session_or_the_hooks_elsewhere(home: Path, ws: Path) -> None:
    env = {"HOME": str(home)}
    say(home, advanced={"runtimeOutputDir": "/somewhere"})
    assert QWEN.hooks_off_reason([], ws, env) is None
    for settings in ({"advanced": {"runtimeOutputDir": ".qwen"}}, {"general": {"chatRecording": False}}):
        say(ws, **settings)
        assert "Nothing was run." in str(QWEN.hooks_off_reason([], ws, env))
    say(ws)
    assert "Nothing was run." in str(QWEN.hooks_off_reason([], ws, env | {"QWEN_SANDBOX": "docker"}))
    assert QWEN.hooks_off_reason([], ws, env | {"QWEN_SANDBOX": "docker", "SANDBOX": "x"}) is None
    assert "Nothing was run." in str(QWEN.hooks_off_reason([], ws, env | {"QWEN_CODE_SIMPLE": "1"}))


@pytest.mark.parametrize("name", ["QWEN_CODE_SIMPLE=1", "QWEN_SANDBOX=docker # why"])
@pytest.mark.parametrize("where", ["ws/.env", "ws/.qwen/.env", "home/.env", "home/.qwen/.env", ".env"])
def test_a_variable_from_a_file_that_takes_hooks_away(name: str, where: str, home: Path, ws: Path) -> None:
    env = {"HOME": str(home)}
    file = home.parent / where
    file.write_text(name)
    assert "Nothing was run." in str(QWEN.hooks_off_reason([], ws, env))
    assert QWEN.hooks_off_reason([], ws, env | {name.partition("=")[0]: "0"}) is None, "what is set stays"
    if where.startswith("home"):
        (ws / ".env").write_text("")
        assert QWEN.hooks_off_reason([], ws, env), "in a folder that is not trusted, the user's own"
    if where == ".env":
        (ws / ".qwen/.env").write_text("")
        assert QWEN.hooks_off_reason([], ws, env) is None, "the nearest only"


@pytest.mark.parametrize("where", ["home", "ws"])
def test_settings_whose_variables_or_tools_are_not_guarded(where: str, home: Path, ws: Path) -> None:
    folder, env = {"home": home, "ws": ws}[where], {"HOME": str(home)}
    for bad in (
        {"env": {"QWEN_CODE_SIMPLE": "true"}},
        {"env": {"QWEN_SANDBOX": "podman"}},
        {"tools": {"discoveryCommand": "./tools.sh"}},
        {"toolDiscoveryCommand": "./tools.sh"},
    ):
        say(folder, **bad)
        assert "Nothing was run." in str(QWEN.hooks_off_reason([], ws, env)), bad
    say(folder, env={"QWEN_CODE_SIMPLE": "0", "QWEN_SANDBOX": 1}, tools={"discoveryCommand": ""})
    assert QWEN.hooks_off_reason([], ws, env) is None


def test_a_project_in_the_folder_above_a_redirected_home_has_its_settings(home: Path, ws: Path) -> None:
    say(ws, disableAllHooks=True)
    assert "disableAllHooks" in str(QWEN.hooks_off_reason([], ws, {"HOME": str(home), "QWEN_HOME": str(ws / "qh")}))


@pytest.mark.parametrize("named", [None, "~/.qwen", "HOME/.qwen", "~/other", ".qwen"])
def test_installed_hooks_leave_where_the_run_s_own_are(named: str | None, home: Path) -> None:
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "WAL_AGENT_RUN": "r", "WAL_AGENT_SOCKET": "/gone/hook.sock"}
    line = QWEN.hooks.hooks_to_install(env).hooks["PreToolUse"][0]["hooks"][0]["command"]
    (home / ".qwen/extensions/wal-agent-r").mkdir(parents=True)
    env |= {"QWEN_HOME": named.replace("HOME", str(home))} if named else {}
    done = subprocess.run(
        ["bash", "-c", line], env=env, cwd=home, input="{}", capture_output=True, text=True, check=False
    )
    assert (done.returncode, "did not run this" in done.stdout + done.stderr) == (0, named == "~/other")


def test_the_launcher_of_0_24_is_skipped(tmp_path: Path) -> None:
    """It waits for Qwen in a second process and passes no signal on. 0.15 has only cli.js."""
    entry, inner, link = tmp_path / "cli-entry.js", tmp_path / "cli.js", tmp_path / "qwen"
    inner.write_text("#!/usr/bin/env node\n")
    link.symlink_to(inner)
    assert cli._program(link, ()) == (str(link),)
    entry.write_text("#!/usr/bin/env node\n")
    link.unlink()
    link.symlink_to(entry)
    assert cli._program(link, ()) == ("node", "--expose-gc", str(inner))
    assert cli._program(link, ("node", "--max-old-space-size=9")) == (
        "node",
        "--max-old-space-size=9",
        "--expose-gc",
        str(inner),
    )
