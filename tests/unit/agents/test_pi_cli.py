"""pi's command line: which word is what, and where ours go."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal_agent.agents import pi as PI
from wal_agent.agents.base import ACT, Cli, NewSession, ResumeSession
from wal_agent.agents.pi import cli
from wal_agent.agents.pi.hooks import MARKER
from wal_agent.agents.program import to_words
from wal_agent.errors import ConfigError

CLI = Cli(Path("/bin/pi"), "1.6.0")
ID = "019f0000-0000-7000-8000-000000000001"
ENV = {MARKER: "/run/x/pi.ts"}


def argv(args: list[str], session: NewSession | ResumeSession) -> list[str]:
    return list(PI.command(CLI, args, session, False, ENV).argv)[1:]


def test_pi_tells_its_version_on_stderr_where_it_has_no_terminal(tmp_path: Path) -> None:
    program = tmp_path / "pi"
    program.write_text("#!/bin/sh\necho 1.6.0 >&2\n")
    program.chmod(0o755)
    assert PI.locate({"WAL_AGENT_PI": str(program), "PATH": "/bin:/usr/bin"}).version == "1.6.0"


def test_a_version_that_does_not_wait_for_its_extensions_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "pi"
    program.write_text("#!/bin/sh\necho 0.73.1\n")
    program.chmod(0o755)
    with pytest.raises(ConfigError, match=r"0.73.1 cannot be used: it does not wait"):
        PI.locate({"WAL_AGENT_PI": str(program), "PATH": "/bin:/usr/bin"})


@pytest.mark.parametrize(
    ("args", "prompt"),
    [
        (["-p", "do it"], "do it"),
        (["-p", "--model", "m", "do it"], "do it"),
        (["-p", "@a.md", "do it"], "@a.md\n\ndo it"),
        (["-p", "---", "x"], "---\n\nx"),
        (["-nt", "one", "-nbt", "two"], "one\n\ntwo"),
        (["--plan", "taken", "said"], "said"),
        (["--plan=x", "said"], "said"),
        (["--model=x", "said"], "said"),
        (["--", "one", "-two", "@f"], "one\n\n-two\n\n@f"),
        (["-p", "--", "- do it"], "- do it"),
        (["-p", "--approve", "do it"], "do it"),
        (["-n", "name", "-xt", "read", "-a", "-na", "--no-mcp", "do it"], "do it"),
        (["-e", "x.ts", "-t", "read", "--thinking", "low"], None),
        (["--session"], None),
        ([], None),
    ],
)
def test_what_the_user_asks_for(args: list[str], prompt: str | None) -> None:
    assert PI.prompt_from_args(args) == prompt
    assert to_words(cli.parse_args(args)) == args


@pytest.mark.parametrize(
    ("args", "session"),
    [
        (["-p", "x"], None),
        (["--session", ID], ID),
        (["--session", ID[:8]], ""),
        (["--session", "a/b.jsonl"], ""),
        (["--session-id", "my.job"], "my.job"),
        (["--session-id", "../x"], ""),
        (["--session-id", ID, "--fork", "x"], ""),
        (["-c"], ""),
        (["-r"], ""),
        (["--fork", ID], ""),
    ],
)
def test_the_session_that_the_user_chose(args: list[str], session: str | None) -> None:
    assert PI.session_from_args(args) == session


@pytest.mark.parametrize(
    "args", [["list"], ["update", "self"], ["config"], ["mcp", "list"], ["auth"], ["-h"], ["x", "--version"], ["-v"]]
)
def test_what_starts_no_session(args: list[str]) -> None:
    assert PI.passthrough(args)


@pytest.mark.parametrize("args", [[], ["x", "list"], ["-p", "list"], ["--model", "--help"], ["please", "update"]])
def test_what_starts_one(args: list[str]) -> None:
    assert not PI.passthrough(args)


def test_it_talks_on_a_terminal_only_and_where_it_is_not_told_otherwise() -> None:
    assert PI.is_interactive(["x"], True, {})
    assert not PI.is_interactive(["x"], False, {})
    assert not PI.is_interactive(["-p", "x"], True, {})
    assert not PI.is_interactive(["--mode", "json", "x"], True, {})
    assert not PI.is_interactive(["--mode", "json", "--mode", "tui", "x"], True, {})
    assert PI.is_interactive(["--mode", "json", "--mode", "text", "x"], True, {})


def test_a_start_is_the_users_own_with_the_extension_in_front() -> None:
    assert argv(["-p", "x", "--model"], NewSession("n")) == [cli.FLAG, "-e", "/run/x/pi.ts", "-p", "x", "--model"]


def test_the_users_extensions_come_before_ours() -> None:
    given = ["-e", "a.ts", "--extension", "b.ts", "x"]
    assert argv(given, NewSession("n")) == [*given[:4], cli.FLAG, "-e", "/run/x/pi.ts", "x"]


def test_a_recovery_leaves_the_users_prompt_and_session_out() -> None:
    args = ["--session", "old", "-c", "--plan", "y", "-p", "do it", "@f", "and", "--model", "m"]
    args += ["--session-id", "mine", "-n", "name", "--approve", "also", "--", "this", "@too"]
    made = argv(args, ResumeSession(ID, "words"))
    ours = ["--session", ID, ACT, cli.FLAG, "-e", ENV[MARKER]]
    assert made == [*ours, "--plan", "y", "-p", "--model", "m", "-n", "name", "--approve"]
    assert PI.prompt_from_args(made) == ACT
    assert PI.command(CLI, args, ResumeSession(ID, "words"), False, ENV).no_stdin


def test_what_is_behind_two_dashes_stays_there() -> None:
    assert argv(["-p", "--", "-x", "@f"], NewSession("n")) == [cli.FLAG, "-e", ENV[MARKER], "-p", "--", "-x", "@f"]


def test_an_id_that_cannot_be_restored_is_refused(tmp_path: Path) -> None:
    assert PI.hooks_off_reason(["--session-id", "x" * 300], tmp_path, {}) is not None
    assert PI.hooks_off_reason(["--session-id", "my.job"], tmp_path, {}) is None


def test_a_resume_without_words_says_the_users() -> None:
    assert PI.prompt_from_args(argv(["-p", "next"], ResumeSession(ID, ""))) == "next"
    assert not PI.command(CLI, ["-p", "next"], ResumeSession(ID, ""), False, ENV).no_stdin
