"""Gemini's command line: what is read of it and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import AGENTS
from wal_agent.agents.base import Cli, NewSession, ResumeSession
from wal_agent.agents.gemini import options
from wal_agent.agents.gemini.launch import ACT
from wal_agent.agents.gemini.line import MARKER
from wal_agent.errors import ConfigError

GEMINI = AGENTS["gemini"]
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
            ["--" + name for name in options.KINDS] + ["-" + c for c in options.SHORT] + ["--", "-", "-yp"]
        ),
        st.text(max_size=8),
    ),
    max_size=8,
)


@given(WORDS)
def test_reading_loses_no_word_but_the_bare_dashes(args: list[str]) -> None:
    """Clusters are spelled out (-yp is -y -p); everything else stands where it stood, behind `--` what was behind."""
    given_words = [part for arg in options.parse_args(args) for part in arg.words if part != "--"]
    spelled = [
        c for word in args if word != "--" for c in (word if word[:1] != "-" or word[:2] == "--" else "-" + word[1:])
    ]
    assert [w for w in options.to_words(options.parse_args(args)) if w != "--"] == given_words
    assert sorted("".join(given_words).replace("-", "")) == sorted("".join(spelled).replace("-", ""))
    assert options.to_words(options.parse_args(options.to_words(options.parse_args(args)))) == options.to_words(
        options.parse_args(args)
    )


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
