"""Codex's command line: what it says, and what a start and a resume make of it; what keeps hooks from firing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wal_agent.agents import codex as CODEX
from wal_agent.agents.base import ACT, Cli, Command, NewSession, ResumeSession
from wal_agent.agents.codex import cli, hooks
from wal_agent.agents.codex.cli import native_program

ID = "01a2027e-acd3-7e41-b68c-be3ef20413b7"


@pytest.mark.parametrize(
    ("line", "session", "prompt", "talks"),
    [
        ("", None, None, True),
        ("do", None, "do", True),
        ("-m x do", None, "do", True),
        ("-- exec", None, "exec", True),
        ("exec do", None, "do", False),
        ("-m x e -c a=b --json do", None, "do", False),
        ("exec -", None, "-", False),
        ("exec -- resume", None, "resume", False),
        (f"exec resume {ID} do", ID, "do", False),
        (f"exec resume {ID.upper()}", ID, None, False),
        ("exec resume --last do", "", "do", False),
        ("exec --json resume --last", "", None, False),
        ("exec resume name do", "", "do", False),
        (f"resume {ID}", ID, None, True),
        ("resume", "", None, True),
        (f"resume --last {ID} do", ID, "do", True),
        (f"fork {ID} do", "", "do", True),
        (f"exec fork {ID} do", "", "do", False),
        ("review --base main", None, None, False),
        ("exec review look", None, "look", False),
        ("exec login", None, "login", False),
        ("exec -- help", None, "help", False),
        ("-- update", None, "update", True),
        ("-i a.png -- mcp", None, "mcp", True),
    ],
)
def test_what_arguments_say(line: str, session: str | None, prompt: str | None, talks: bool) -> None:
    args = line.split()
    assert CODEX.session_from_args(args) == session
    assert CODEX.prompt_from_args(args) == (None if prompt == "-" else prompt)
    assert CODEX.is_interactive(args, tty=True, env={}) is talks
    assert CODEX.is_interactive(args, tty=False, env={}) is talks
    assert not CODEX.passthrough(args)


@pytest.mark.parametrize(
    "line", ["--version", "-V", "exec --help", "login", "mcp list", "help", "exec help", "apply x"]
)
def test_no_session(line: str) -> None:
    assert CODEX.passthrough(line.split())


def test_an_option_that_is_not_known_may_have_taken_the_word() -> None:
    for line in ("--new login", "-Z mcp", "exec --new help", "debug app-server send-message-v2 x"):
        assert not CODEX.passthrough(line.split())
    assert CODEX.passthrough(["mcp", "--new", "x"])


def made(tmp_path: Path, line: str, session: NewSession | ResumeSession) -> Command:
    (tmp_path / hooks.FLAGS).write_text(json.dumps(["-c", "ours"]))
    env = {hooks.MARKER: str(tmp_path), "HOME": str(tmp_path)}
    return CODEX.command(Cli(Path("/bin/codex"), ""), line.split(), session, False, env)


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("exec --json do", "-c ours exec --json do"),
        ("do", "-c ours --no-daemon do"),
        ("--no-daemon do", "-c ours --no-daemon do"),
        (f"resume {ID}", f"-c ours --no-daemon resume {ID}"),
    ],
)
def test_a_start_adds_only_what_is_ours(tmp_path: Path, line: str, argv: str) -> None:
    command = made(tmp_path, line, NewSession("wish"))
    assert command.argv == ("/bin/codex", *argv.split())
    assert not command.no_stdin


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("exec --json -s read-only do", f"exec --json -s read-only resume -- {ID}"),
        ("-a never --search exec -o f -i a.png b.png -- do", f"-a never --search exec -o f resume -- {ID}"),
        ("exec resume --json --last do", f"exec --json resume -- {ID}"),
        ("exec review --base main", f"exec resume -- {ID}"),
        ("exec -C . -", f"exec resume -- {ID}"),
        ("-m x do", f"--no-daemon resume -m x --cd . -- {ID}"),
        ("-m x fork abc do", f"--no-daemon -m x resume --cd . -- {ID}"),
    ],
)
def test_a_recovery_resumes_by_id_without_the_users_prompt(tmp_path: Path, line: str, argv: str) -> None:
    command = made(tmp_path, line, ResumeSession(ID, "!the notice"))
    assert command.argv == ("/bin/codex", "-c", "ours", *argv.split(), ACT)
    assert command.no_stdin is argv.startswith(("exec", "-a"))


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("exec --json do", f"exec --json resume -- {ID} do"),
        (
            "exec -i a.png -ib.png --image=c.png -- do",
            f"exec resume --image a.png --image b.png --image c.png -- {ID} do",
        ),
        ("exec", f"exec resume -- {ID}"),
        ("resume --all", f"--no-daemon resume --cd . -- {ID}"),
    ],
)
def test_a_plain_resume_keeps_it(tmp_path: Path, line: str, argv: str) -> None:
    command = made(tmp_path, line, ResumeSession(ID, ""))
    assert command.argv == ("/bin/codex", "-c", "ours", *argv.split())
    assert not command.no_stdin


def test_the_native_program(tmp_path: Path) -> None:
    """It, and not its launcher, where an npm installation has it; with what the launcher adds."""
    root = tmp_path / "node_modules/@openai/codex"
    (root / "bin").mkdir(parents=True)
    (root / "bin/codex.js").touch()
    (tmp_path / "codex").symlink_to(root / "bin/codex.js")
    assert native_program(tmp_path / "codex") == (str(tmp_path / "codex"), {})
    for name in ("linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64"):
        triples = {"linux-x64": "x86_64-unknown-linux-musl", "linux-arm64": "aarch64-unknown-linux-musl"}
        triples |= {"darwin-x64": "x86_64-apple-darwin", "darwin-arm64": "aarch64-apple-darwin"}
        vendor = root.parent / f"codex-{name}/vendor/{triples[name]}/bin"
        vendor.mkdir(parents=True)
        (vendor / "codex").touch()
    program, env = native_program(tmp_path / "codex")
    assert program.startswith(str(root.parent / "codex-"))
    assert env == {"CODEX_MANAGED_BY_NPM": "1", "CODEX_MANAGED_PACKAGE_ROOT": str(root)}
    assert native_program(Path("/usr/bin/env")) == ("/usr/bin/env", {})


# ---- hooks that would not fire -------------------------------------------------------------------------------------


OFF = "[features]\nhooks = false\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with .codex, a workspace in a repository; nothing of this machine's."""
    monkeypatch.setattr(cli, "ETC", tmp_path / "etc")
    for folder in ("etc", "home/.codex", "repo/.git", "repo/.codex", "repo/ws/.codex"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def off(place: Path, line: str = "exec do") -> str | None:
    return CODEX.hooks_off_reason(line.split(), place / "repo/ws", {"HOME": str(place / "home")})


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("home/.codex/config.toml", "~/.codex/config.toml"),
        ("home/.codex/p.config.toml", "~/.codex/p.config.toml"),
        ("repo/ws/.codex/config.toml", ".codex/config.toml"),
        ("repo/.codex/config.toml", "repo/.codex/config.toml"),
        ("etc/config.toml", "etc/config.toml"),
        ("etc/managed_config.toml", "etc/managed_config.toml"),
        ("etc/requirements.toml", "etc/requirements.toml"),
    ],
)
def test_files_that_switch_them_off(place: Path, file: str, shown: str) -> None:
    assert off(place, "-p p exec do") is None
    (place / file).write_text(OFF)
    why = off(place, "-p p exec do")
    assert why is not None and shown in why and why.endswith("Nothing was run.")
    (place / file).write_text("damaged [")
    assert off(place, "-p p exec do") is None, "Codex itself refuses to start"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--disable hooks do", "--disable hooks"),
        ("exec --enable hooks --disable hooks do", "--disable hooks"),
        ("-c features.hooks=false do", "-c features.hooks"),
        ("-c features={hooks=false} do", "-c features"),
        ("-c features.codex_hooks=false do", "features.codex_hooks"),
        ("-c hooks.Stop=[] do", "-c hooks.Stop"),
        ("exec -chooks={} do", "-c hooks"),
        ('-c "hooks".state={} do', "state"),
        ("--remote unix:// do", "--remote"),
        ("exec --ephemeral do", "--ephemeral"),
        ("--worktree do", "--worktree"),
        ("-C / do", "--cd /"),
        ("app-server", "app-server"),
        ("debug app-server send-message-v2 x", "app-server"),
        ("agents", "agents"),
    ],
)
def test_arguments_that_leave_us_out(place: Path, line: str, named: str) -> None:
    why = off(place, line)
    assert why is not None and named in why and why.endswith("Nothing was run.")


def test_the_last_word_counts(place: Path) -> None:
    config = place / "home/.codex/config.toml"
    config.write_text(OFF)
    assert off(place, "--enable hooks do") is None
    assert off(place, "-c features.hooks=true do") is None
    assert off(place, "exec --ignore-user-config do") is None
    project = place / "repo/ws/.codex/config.toml"
    project.write_text(OFF.replace("false", "true"))
    assert off(place) is None
    project.write_text(OFF)
    config.write_text(f"[projects.{json.dumps(str(place / 'repo'))}]\ntrust_level = 'untrusted'\n")
    assert off(place) is None
    assert off(place, "-c model=x -C . exec do") is None
    (place / "etc/requirements.toml").write_text("allow_managed_hooks_only = true\n")
    assert "allow_managed_hooks_only" in (off(place) or "")


@pytest.mark.parametrize("about", ["enabled = false", "enabled = true", 'trusted_hash = "x"'])
def test_a_hook_of_ours_is_off_by_its_key(place: Path, about: str) -> None:
    """The user's own settings yield to what we give on the command line; the administrator's do not."""
    text = f'[hooks.state."/<session-flags>/config.toml:pre_tool_use:0:0"]\n{about}\n'
    (place / "home/.codex/config.toml").write_text(text)
    assert off(place) is None
    managed = place / "etc/managed_config.toml"
    managed.write_text(text)
    assert ("managed_config.toml: hooks.state" in (off(place) or "")) is (about == "enabled = false")
    managed.write_text(text.replace("<session-flags>", "elsewhere"))
    assert off(place) is None
