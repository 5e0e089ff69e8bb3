"""Gemini's command line: options, settings that switch hooks off, node's heap."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import gemini as GEMINI
from wal_agent.agents.base import ACT, Cli, NewSession, ResumeSession
from wal_agent.agents.gemini import cli
from wal_agent.agents.gemini.cli import gemini_node_command
from wal_agent.agents.gemini.hooks import MARKER
from wal_agent.agents.program import to_words
from wal_agent.errors import ConfigError

CLI = Cli(Path("/bin/gemini"), "0.61.0")


def new(*args: str, env: dict[str, str] | None = None) -> list[str]:
    return list(GEMINI.command(CLI, args, NewSession("s"), False, env or {}).argv[1:])


def resumed(*args: str, prompt: str = "P", tty: bool = False) -> list[str]:
    return list(GEMINI.command(CLI, args, ResumeSession("s", prompt), tty, {}).argv[1:])


@pytest.mark.parametrize(
    ("args", "left"),
    [
        (["-p", "do it"], []),
        (["--prompt", "do it", "--yolo"], ["--yolo"]),
        (["--prompt=do it", "-m", "x"], ["-m", "x"]),
        (["--promptInteractive", "do it", "-d"], ["-d"]),
        (["-i", "do it", "--sandbox", "false", "-o", "json"], ["--sandbox", "false", "-o", "json"]),
        (["do", "it", "--yolo"], ["--yolo"]),
        (["--yolo", "do", "it"], ["--yolo"]),
        (["-yp", "do it"], ["-y"]),
        (["-e", "one", "do it", "-e", "two"], ["-e", "one", "-e", "two"]),
        (["--include-directories", "a,b", "--policy=x", "q"], ["--include-directories", "a,b", "--policy=x"]),
        (["-m", "x", "--", "--yolo", "it"], ["-m", "x"]),
        (["--resume", "-p", "more"], []),
        (["-r", "3", "--session-id", "u", "--session-file=f", "-d"], ["-d"]),
        (["-d", "true", "x"], ["-d", "true"]),
        (["-m", "-5", "x"], ["-m", "-5"]),
    ],
)
def test_a_recovery_leaves_out_prompt_and_session_and_keeps_the_rest(args: list[str], left: list[str]) -> None:
    assert resumed(*args) == ["--resume", "s", "--prompt", ACT, *left]
    assert resumed(*args, tty=True) == ["--resume", "s", "--prompt-interactive", ACT, *left]


def test_a_resume_without_a_prompt_keeps_the_users() -> None:
    assert resumed("-p", "x", "--resume", "latest", prompt="") == ["--resume", "s", "-p", "x"]


def test_a_recovery_does_not_read_the_first_prompt_from_stdin_again() -> None:
    made = GEMINI.command(CLI, [], ResumeSession("s", "P"), False, {})
    assert made.no_stdin
    assert not GEMINI.command(CLI, [], ResumeSession("s", "P"), True, {}).no_stdin
    assert not GEMINI.command(CLI, [], NewSession("s"), False, {}).no_stdin
    assert made.env == {"GEMINI_CLI_NO_RELAUNCH": "true"}


def test_a_new_session_gets_our_id_unless_the_user_chose() -> None:
    assert new("-p", "x") == ["--session-id", "s", "-p", "x"]
    for args in (["--session-id", "u"], ["-r"], ["--resume=latest"], ["--session-file", "f"]):
        assert new(*args) == args


def test_what_stands_behind_the_dashes_stays_there() -> None:
    assert new("do", "--", "--yolo", "-p") == ["--session-id", "s", "do", "--", "--yolo", "-p"]


def test_a_list_of_extensions_gets_ours() -> None:
    env = {MARKER: "run_1"}
    assert new("-e", "none", env=env) == ["--session-id", "s", "--extensions", "wal-agent-run-1", "-e", "none"]
    assert "wal-agent-run-1" not in new("--debug", env=env)


@pytest.mark.parametrize(
    ("args", "chosen"),
    [
        ([], None),
        (["-p", "resume"], None),
        (["--session-id", " u "], "u"),
        (["--resume", "3f2a91c0-aaaa"], "3f2a91c0-aaaa"),
        (["-r"], ""),
        (["--resume", "latest"], ""),
        (["--resume", "2"], ""),
        (["--session-file", "f"], ""),
    ],
)
def test_which_session_the_user_chose(args: list[str], chosen: str | None) -> None:
    assert GEMINI.session_from_args(args) == chosen


@pytest.mark.parametrize(
    ("args", "passes"),
    [
        (["mcp", "list"], True),
        (["-d", "extensions", "update"], True),
        (["--version"], True),
        (["-v"], True),
        (["-dh"], True),
        (["--list-sessions"], True),
        (["--delete-session", "2"], True),
        (["-l"], True),
        (["--version=false"], False),
        (["explain", "mcp"], False),
        (["-p", "mcp"], False),
        (["-m", "--help"], True),
        ([], False),
    ],
)
def test_what_is_no_session(args: list[str], passes: bool) -> None:
    assert GEMINI.passthrough(args) is passes


@pytest.mark.parametrize(
    ("args", "tty", "env", "talks"),
    [
        ([], True, {}, True),
        ([], False, {}, False),
        (["do it"], True, {}, True),
        (["-p", "x"], True, {}, False),
        (["-i", "x"], True, {}, True),
        (["-i", "x"], True, {"CI": "true"}, True),
        ([], True, {"CI": "true"}, False),
        (["do it"], True, {"GITHUB_ACTIONS": "true"}, False),
    ],
)
def test_who_talks_to_a_person(args: list[str], tty: bool, env: dict[str, str], talks: bool) -> None:
    assert GEMINI.is_interactive(args, tty, env) is talks


WORDS = st.lists(
    st.one_of(
        st.sampled_from(
            ["--" + name for name in cli.SYNTAX.kinds] + ["-" + c for c in cli.SYNTAX.short] + ["--", "-", "-yp"]
        ),
        st.text(max_size=8),
    ),
    max_size=8,
)


@given(WORDS)
def test_reading_loses_no_word_but_the_bare_dashes(args: list[str]) -> None:
    """Clusters are spelled out (-yp is -y -p); everything else stands where it stood, behind `--` what was behind."""
    given_words = [part for arg in cli.parse_args(args) for part in arg.words if part != "--"]
    spelled = [
        c for word in args if word != "--" for c in (word if word[:1] != "-" or word[:2] == "--" else "-" + word[1:])
    ]
    assert [w for w in to_words(cli.parse_args(args)) if w != "--"] == given_words
    assert sorted("".join(given_words).replace("-", "")) == sorted("".join(spelled).replace("-", ""))
    assert to_words(cli.parse_args(to_words(cli.parse_args(args)))) == to_words(cli.parse_args(args))


def test_it_is_found_with_its_version_without_being_started(tmp_path: Path) -> None:
    package = tmp_path / "node_modules/@google/gemini-cli"
    (package / "bundle").mkdir(parents=True)
    (package / "package.json").write_text('{"name": "@google/gemini-cli", "version": "9.9.9"}')
    program = package / "bundle/gemini.js"
    program.write_text("#!/bin/false\n")
    program.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gemini").symlink_to(program)
    found = GEMINI.locate({"PATH": str(tmp_path / "bin")})
    assert found == Cli(tmp_path / "bin/gemini", "9.9.9")
    (package / "package.json").unlink()
    program.write_text("#!/bin/sh\necho warning >&2\necho 8.8.8\n")
    assert GEMINI.locate({"PATH": "/bin", "WAL_AGENT_GEMINI": str(tmp_path / "bin/gemini")}).version == "8.8.8"
    with pytest.raises(ConfigError, match="not found"):
        GEMINI.locate({"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match="WAL_AGENT_GEMINI names /nope"):
        GEMINI.locate({"PATH": str(tmp_path / "bin"), "WAL_AGENT_GEMINI": "/nope"})


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


def program(folder: Path, first: str = "#!/usr/bin/env node\n") -> Path:
    path = folder / "gemini"
    path.write_text(first + "rest\n")
    return path


def test_a_node_script_gets_half_of_the_memory_as_its_heap(tmp_path: Path) -> None:
    half = psutil.virtual_memory().total // 2 // (1 << 20)
    assert gemini_node_command(program(tmp_path), {"HOME": str(tmp_path)}) == ("node", f"--max-old-space-size={half}")


def test_anything_else_is_started_as_it_is(tmp_path: Path) -> None:
    assert gemini_node_command(program(tmp_path, "#!/bin/sh\n"), {"HOME": str(tmp_path)}) == ()
    assert gemini_node_command(tmp_path / "missing", {"HOME": str(tmp_path)}) == ()


def test_who_chose_a_heap_or_none_keeps_it(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    assert gemini_node_command(program(tmp_path), {**env, "NODE_OPTIONS": "--max-old-space-size=512"}) == ()
    (tmp_path / ".gemini").mkdir()
    settings = tmp_path / ".gemini" / "settings.json"
    settings.write_text('{"advanced": {"autoConfigureMemory": false}}')
    assert gemini_node_command(program(tmp_path), env) == ()
    settings.write_text("[not settings")
    assert gemini_node_command(program(tmp_path), env) != ()
