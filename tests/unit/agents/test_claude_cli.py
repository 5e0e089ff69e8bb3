"""agents/claude/cli.py, options.py and settings.py: the command line, and what would keep our hooks from firing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from wal_agent.agents import claude as CLAUDE
from wal_agent.agents.base import ACT, Cli, HookSetup, McpServer, NewSession, ResumeSession, acp_command
from wal_agent.agents.claude import cli
from wal_agent.errors import ConfigError

CLI = Cli(Path("/bin/claude"), "2.1.197")
ID = "0b8a9f3e-1111-4222-8333-444455556666"
NEW = NewSession(ID)
GOOD = """{"model": "opus", "permissions": {"allow": ["Bash(ls:*)"], "defaultMode": "plan", "more": 1}, "env": {"A": 5},
    "statusLine": {"type": "command", "command": "true", "padding": 0}, "theme": 5, "cleanupPeriodDays": 30,
    "enabledPlugins": {"a@b": true}, "sandbox": {"enabled": false, "network": {"allowedDomains": ["a.b"]}},
    "attribution": {"commit": ""}, "spinnerVerbs": {"mode": "append", "verbs": []}, "fallbackModel": ["haiku"],
    "skillOverrides": {"x": "off"}, "feedbackSurveyRate": 0.5, "autoMode": {"allow": []}, "outputStyle": "default",
    "worktree": {"baseRef": "head"}, "pluginConfigs": {"p": {"options": {"a": [], "b": 1}}}, "voice": {},
    "hooks": {"Stop": [{"matcher": "", "hooks": [
        {"type": "command", "command": "true", "timeout": 5, "if": "Bash(x)", "args": [], "shell": "bash"},
        {"type": "http", "url": "http://127.0.0.1:9/x", "headers": {"a": "b"}}]}], "Unheard": []}}"""


def argv(*args: str, session: NewSession | ResumeSession = NEW, env: dict[str, str] | None = None) -> list[str]:
    made = CLAUDE.command(CLI, args, session, False, env or {})
    assert made.argv[0] == "/bin/claude"
    return list(made.argv[1:])


def test_a_start() -> None:
    assert argv("-p", "do it") == ["--session-id", ID, "-p", "do it"]
    for own in (["-c"], ["--resume"], ["--resume", "fix"], ["--session-id", ID], ["--from-pr", "12"]):
        assert argv(*own, "-p") == [*own, "-p"], "the user's own choice stands"


def test_a_resume_leaves_the_users_prompt_and_session_out() -> None:
    resume = ResumeSession(ID, "NOTICE")
    users = ["-p", "do it", "--model", "opus", "--session-id", "x", "--fork-session", "--allowedTools", "Bash", "Edit"]
    kept = ["-p", "--model", "opus", "--allowedTools", "Bash", "Edit"]
    assert argv(*users, session=resume) == ["--resume", ID, *kept, "--", ACT]
    assert argv("-p", "--input-format", "stream-json", "--", "-x", session=resume) == ["--resume", ID, "-p", "--", ACT]
    stream = ["-p", "--input-format", "stream-json"]
    assert argv(*stream, session=ResumeSession(ID, "NOTICE", asked=True)) == ["--resume", ID, *stream]
    assert CLAUDE.is_interactive(stream, False, {}) and not CLAUDE.is_interactive(["-p"], False, {})
    assert argv("-p", "do it", session=ResumeSession(ID, "")) == ["--resume", ID, "-p", "do it"]
    assert CLAUDE.command(CLI, ["-p"], resume, False, {}).no_stdin
    assert not CLAUDE.command(CLI, ["-p"], NEW, False, {}).no_stdin
    assert not CLAUDE.command(CLI, [], resume, True, {}).no_stdin


def test_a_cut_off_turn_is_not_sent_again_by_itself() -> None:
    variable = "CLAUDE_CODE_RESUME_INTERRUPTED_TURN"
    assert CLAUDE.command(CLI, [], NEW, False, {variable: "1"}).env == {variable: ""}
    assert CLAUDE.command(CLI, [], NEW, False, {}).env == {}


def injected(folder: Path) -> dict[str, str]:
    return CLAUDE.inject(HookSetup("r1", folder, ("client",), (), "The protocol."), {}).env


def test_ours_alone(tmp_path: Path) -> None:
    env = injected(tmp_path)
    made = argv("-p", "x", env=env)
    assert made[:3] == ["--settings", *env.values(), "--append-system-prompt-file"]
    assert Path(made[3]).read_text() == "The protocol."


def test_the_mcp_server_of_a_run_stands_beside_the_users_own(tmp_path: Path) -> None:
    """Its tools are allowed, and nothing that the user denies or allows changes. The option's form takes no more
    words, such as the prompt."""
    server = McpServer(("python3", "-m", "wal_agent", "mcp"), ("PATH",))
    env = CLAUDE.inject(HookSetup("r1", tmp_path, ("client",), mcp=server), {}).env
    given = json.dumps({"permissions": {"deny": ["Read"], "allow": ["Bash(ls)"]}})
    made = argv("--settings", given, "--mcp-config", "mine.json", "--print", "x", env=env)
    (ours,) = (word.partition("=")[2] for word in made if word.startswith("--mcp-config="))
    assert json.loads(Path(ours).read_text()) == {
        "mcpServers": {"wal-agent": {"command": "python3", "args": ["-m", "wal_agent", "mcp"]}}
    }
    assert made[made.index("--mcp-config") + 1] == "mine.json"
    allowed = json.loads(Path(made[made.index("--settings") + 1]).read_text())["permissions"]
    assert allowed == {"deny": ["Read"], "allow": ["Bash(ls)", "mcp__wal-agent"]}


def test_an_adapter_starts_the_program_with_this_runs_options(tmp_path: Path) -> None:
    """I5: the hooks are on the command line that the adapter itself makes longer."""
    adapter = tmp_path / "bin" / "claude-agent-acp"
    adapter.parent.mkdir()
    adapter.write_text("#!/bin/sh\necho 1.2.3\n")
    adapter.chmod(0o755)
    said = tmp_path / "a program"
    said.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    said.chmod(0o755)
    env = {**injected(tmp_path), "PATH": f"{adapter.parent}:/bin:/usr/bin"}
    served = acp_command(CLAUDE, Cli(said, ""), ["--model", "it's"], env, tmp_path)
    assert served.argv == (str(adapter),)
    started = [served.env["CLAUDE_CODE_EXECUTABLE"], "--resume", "$(id)"]
    heard = subprocess.run(started, capture_output=True, text=True, check=True).stdout.splitlines()
    assert heard[:2] == ["--settings", *injected(tmp_path).values()]
    assert heard[-4:] == ["--model", "it's", "--resume", "$(id)"]


def test_words_for_the_system_prompt(tmp_path: Path) -> None:
    """In a file: an argument of more than 128 KiB does not start. Both of the user's are for Claude to refuse."""
    env = injected(tmp_path)
    words = tmp_path / "words.md"
    words.write_bytes(b"x\xff" * 100_000)
    made = argv("--append-system-prompt-file", str(words), env=env)
    assert max(map(len, made)) < 1000
    assert Path(made[3]).read_text() == "x\ufffd" * 100_000 + "\n\nThe protocol."
    both = ["--append-system-prompt", "a", "--append-system-prompt-file", "missing"]
    assert argv(*both, env=env) == ["--settings", *env.values(), "--session-id", ID, *both]
    with pytest.raises(ConfigError, match="--append-system-prompt-file missing cannot be read"):
        argv("--append-system-prompt-file", "missing", env=env)


def test_the_users_own_settings_and_words_are_kept(tmp_path: Path) -> None:
    """One file and one text: of two Claude takes the last."""
    hook = {"hooks": [{"type": "command", "command": "true"}]}
    own = tmp_path / "own.json"
    own.write_text(
        json.dumps({"model": "opus", "disableAllHooks": False, "hooks": {"PreToolUse": [hook], "X": [hook]}})
    )
    words = tmp_path / "words.md"
    words.write_text("Be brief.")
    for given in (str(own), " " + own.read_text()):
        made = argv(
            "--settings", "{}", "--settings", given, f"--append-system-prompt-file={words}", env=injected(tmp_path)
        )
        assert made.count("--settings") == 1 and made[2] == "--append-system-prompt-file"
        assert made[4:] == ["--session-id", ID] and Path(made[3]).parent == tmp_path
        assert Path(made[3]).read_text() == "Be brief.\n\nThe protocol."
        values = json.loads(Path(made[1]).read_text())
        assert values["model"] == "opus" and values["disableAllHooks"] is False
        assert values["hooks"]["X"] == [hook] and values["hooks"]["PreToolUse"][0] == hook
        assert len(values["hooks"]["PreToolUse"]) == 2 and len(values["hooks"]["Stop"]) == 1
        assert Path(made[1]).parent == tmp_path and not json.loads(own.read_text())["disableAllHooks"]


@pytest.mark.parametrize(
    "bad",
    [
        "missing.json",
        "{nonsense}",
        '{"hooks": []}',
        '{"hooks": {"Stop": {}}}',
        '{"hooks": {"Stop": [{"hooks": {}}]}}',
        '{"hooks": {"Stop": [{"matcher": 1, "hooks": []}]}}',
        '{"hooks": {"Stop": [{"hooks": [{"type": "other", "command": "x"}]}]}}',
        '{"hooks": {"Stop": [{"hooks": [{"type": "command"}]}]}}',
        '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x", "timeout": "5"}]}]}}',
        '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x", "timeout": 0}]}]}}',
        '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x", "if": 5}]}]}}',
        '{"hooks": {"Stop": [{"hooks": [{"type": ["x"], "command": "x"}]}]}}',
        '{"hooks": {"Stop": [{"hooks": [{"type": "http", "url": "no"}]}]}}',
        '{"model": 5}',
        '{"model": null}',
        '{"permissions": 5}',
        '{"permissions": {"defaultMode": "yolo"}}',
        '{"permissions": {"allow": "Bash"}}',
        '{"statusLine": "x"}',
        '{"cleanupPeriodDays": true}',
        '{"cleanupPeriodDays": 1e999}',
        '{"theme": NaN}',
        '{"sandbox": {"network": {"httpProxyPort": "1"}}}',
        '{"unheardOf": true}',
        '{"a":' * 5000 + "1" + "}" * 5000,
    ],
)
def test_settings_that_would_void_ours(bad: str, tmp_path: Path) -> None:
    why = CLAUDE.hooks_off_reason(["--settings", bad], tmp_path, {"HOME": str(tmp_path)})
    assert why is not None and why.startswith("--settings") and why.endswith("Nothing was run.") and len(why) < 500
    with pytest.raises(ConfigError, match="--settings"):
        argv("--settings", bad, env=injected(tmp_path))


def test_settings_that_claude_takes() -> None:
    """On the real program each of them left our hooks alive (test_beside_the_users_own_settings)."""
    cli.check_settings(json.loads(GOOD))
    with pytest.raises(ValueError, match="its statusLine is none that Claude Code takes"):
        cli.check_settings({"statusLine": {"type": "command"}})


def off(tmp_path: Path, *args: str, **env: str) -> str:
    return CLAUDE.hooks_off_reason(args, tmp_path, {"HOME": str(tmp_path), **env}) or ""


def test_arguments_that_switch_hooks_off_or_go_elsewhere(tmp_path: Path) -> None:
    assert off(tmp_path, "-p", "do it", "--verbose") == ""
    assert off(tmp_path, "-p", "--", "--bare") == ""
    for word in ("--bare", "--safe-mode", "--bg", "--worktree", "--no-session-persistence", "--teleport"):
        assert off(tmp_path, "-p", word).startswith(word)
        assert off(tmp_path, "-p", word).endswith("Nothing was run.")
    assert off(tmp_path, "--model", "--bare"), "Claude finds it there too"
    assert "as --bare does" in off(tmp_path, CLAUDE_CODE_SIMPLE="1")
    assert off(tmp_path, CLAUDE_CODE_SIMPLE="0") == ""
    assert "could not be saved" in off(tmp_path, CLAUDE_CODE_SKIP_PROMPT_HISTORY="true")


def test_settings_that_switch_hooks_off(tmp_path: Path) -> None:
    folder = tmp_path / ".claude"
    folder.mkdir()
    (folder / "settings.json").write_text('{"disableAllHooks": true}')
    why = "Claude Code's hooks are off ({}: disableAllHooks is true), so no tool call could be logged. Nothing was run."
    assert off(tmp_path) == why.format("~/.claude/settings.json")
    assert CLAUDE.hooks_off_reason([], tmp_path, {"HOME": "/nowhere"}) == why.format(".claude/settings.json")
    (folder / "settings.json").unlink()
    (folder / "settings.local.json").write_text('{"disableAllHooks": true}')
    assert off(tmp_path) == why.format(".claude/settings.local.json")
    (folder / "settings.local.json").unlink()
    assert off(tmp_path, "--settings", '{"disableAllHooks": true}') == why.format("--settings")
    assert off(tmp_path, "--settings", '{"disableAllHooks": false}') == ""
    (folder / "settings.local.json").write_text('{"env": {"CLAUDE_CODE_SAFE_MODE": 1}}')
    assert ".claude/settings.local.json" in off(tmp_path)
    (folder / "settings.local.json").unlink()
    assert off(tmp_path, "--settings", '{"env": {"CLAUDE_CODE_SIMPLE": "yes"}}').startswith("CLAUDE_CODE_SIMPLE in --s")


@pytest.mark.parametrize(
    ("values", "on"),
    [
        ('{"disableAllHooks": true}', False),
        ('{"allowManagedHooksOnly": true}', False),
        ('{"strictPluginOnlyCustomization": true}', False),
        ('{"strictPluginOnlyCustomization": ["mcp", "hooks"]}', False),
        ('{"strictPluginOnlyCustomization": ["mcp"], "disableAllHooks": false}', True),
        ("nonsense", True),
    ],
)
def test_an_organisation_that_allows_only_its_own(
    values: str, on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (off(tmp_path, "--managed-settings", values) == "") == on
    monkeypatch.setattr(cli, "MANAGED", tmp_path)
    (tmp_path / "managed-settings.d").mkdir()
    (tmp_path / "managed-settings.d/10.json").write_text(values)
    assert (off(tmp_path) == "") == on
    (tmp_path / "managed-settings.d/10.json").write_text('{"env": {"CLAUDE_CODE_SIMPLE": "1"}}')
    assert "10.json switches Claude Code's hooks off" in off(tmp_path)


@pytest.mark.parametrize(
    "args",
    [
        ["-p", "--dangerously-skip-permissions", "update"],
        ["--print", "doctor"],
        ["--print", "plugins"],
        ["doctor", "-p"],
        ["mcp", "list", "--", "-p"],
        ["-pc", "doctor"],
        ["config"],
        ["--", "update"],
    ],
)
def test_a_word_that_claude_takes_for_the_prompt_is_protected(args: list[str]) -> None:
    """Each seen on the real program: with -p or --print anywhere it knows no subcommands."""
    assert not CLAUDE.passthrough(args)
    assert CLAUDE.passthrough(["doctor"]) and CLAUDE.passthrough(["--debug", "plugins", "plugins"])


def test_what_the_arguments_say() -> None:
    assert CLAUDE.session_from_args(["-p", "x"]) is None
    assert CLAUDE.session_from_args(["--session-id", ID]) == CLAUDE.session_from_args(["-r", ID, "x"]) == ID
    assert CLAUDE.session_from_args(["-r", ID, "--fork-session"]) == ""
    for own in (["-c"], ["-r"], ["-r", "the fix"], ["--resume=/x/y.jsonl"], ["--from-pr"]):
        assert CLAUDE.session_from_args(own) == ""
    assert CLAUDE.prompt_from_args(["--allowedTools", "Bash", "Edit", "-p", "do it"]) == "do it"
    assert CLAUDE.prompt_from_args(["-pc", "--", "-x"]) == "-x"
    assert CLAUDE.prompt_from_args(["-p"]) is None
    assert CLAUDE.is_interactive(["do it"], True, {}) and not CLAUDE.is_interactive(["do it"], False, {})
    assert not CLAUDE.is_interactive(["-p", "do it"], True, {})
    assert CLAUDE.passthrough(["mcp", "list"]) and CLAUDE.passthrough(["-v"]) and CLAUDE.passthrough(["update"])
    assert not CLAUDE.passthrough(["-p", "update the file"]) and not CLAUDE.passthrough([])


@pytest.mark.parametrize("command", ["remote-control", "rc", "agents"])
def test_a_command_that_begins_sessions_of_its_own_is_refused(command: str, tmp_path: Path) -> None:
    """I1: no hook of ours would tell of them."""
    assert not CLAUDE.passthrough([command])
    why = CLAUDE.hooks_off_reason([command], tmp_path, {"HOME": str(tmp_path)}) or ""
    assert why.startswith(f"`claude {command}` begins sessions") and why.endswith("Nothing was run.")
    assert CLAUDE.hooks_off_reason(["-p", command], tmp_path, {"HOME": str(tmp_path)}) is None, "a prompt"
