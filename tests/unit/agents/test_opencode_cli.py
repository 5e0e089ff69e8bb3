"""OpenCode's command lines, and what keeps its plugin from running."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from wal_agent.agents.base import ACT, Cli, HookSetup, NewSession, ResumeSession
from wal_agent.agents.kilo import KILO, due
from wal_agent.agents.opencode import OPENCODE, cli, hooks, resume
from wal_agent.agents.opencode.hooks import OFFLINE, config_content, inject
from wal_agent.errors import ConfigError

CLI = Cli(Path("/bin/opencode"), "1.18.33")


def started(args: list[str], session: NewSession | ResumeSession, env: dict[str, str] | None = None) -> list[str]:
    return list(cli.command(OPENCODE, CLI, args, session, False, env or {}).argv[1:])


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "resumable", lambda edition, session, workspace, env: session == "ses_1")


@pytest.mark.usefixtures("known")
def test_command_lines() -> None:
    new, plain, told = NewSession("u"), ResumeSession("ses_1", ""), ResumeSession("ses_1", "-a  b\n/c")
    args = ["run", "--auto", "-m", "p/m", "-c", "do", "it"]
    assert started(args, new) == args
    assert started(args, plain) == ["run", "--session", "ses_1", "--auto", "-m", "p/m", "do", "it"]
    assert started(args, told) == ["run", "--session", "ses_1", "--auto", "-m", "p/m", *ACT.split(" ")]
    assert json.loads(cli.command(OPENCODE, CLI, args, told, False, {}).env[cli.SAY]) == {"text": told.prompt}
    tui = cli.command(OPENCODE, CLI, ["--auto", "--prompt", "x"], told, True, {})
    assert tui.argv[1:] == ("--session", "ses_1", "--auto")
    assert json.loads(tui.env[cli.SAY]) == {"session": "ses_1", "text": told.prompt, "send": True}
    assert not tui.no_stdin
    lost = ResumeSession("ses_2", "-x")
    assert started(["--auto", "--prompt", "x"], lost) == ["--prompt=-x", "--auto"]
    assert started(["run", "-f", "f1", "f2", "--command", "c", "--", "x"], told)[:3] == ["run", "--session", "ses_1"]
    assert "f1" not in started(["run", "-f", "f1", "f2", "--command", "c", "--", "x"], told)
    assert started(args, ResumeSession("ses_2", "x"))[:2] == ["run", "--auto"], "no session of that id: a new one"
    assert cli.command(OPENCODE, CLI, args, plain, False, {"PWD": "/x"}).env == {"PWD": ""}
    assert cli.command(OPENCODE, CLI, args, told, False, {}).no_stdin
    assert not cli.command(OPENCODE, CLI, args, plain, False, {}).no_stdin


def test_what_the_arguments_mean() -> None:
    assert cli.prompt_from_args(OPENCODE, ["run", "two words", "--", "-x"]) == "two words -x"
    assert cli.prompt_from_args(OPENCODE, ["run", "--command", "fix", "it"]) == "/fix it"
    assert cli.prompt_from_args(OPENCODE, ["--prompt", "hi"]) == "hi"
    assert cli.prompt_from_args(OPENCODE, ["."]) is None
    assert cli.session_from_args(OPENCODE, ["run", "-s", "ses_1", "x"]) == "ses_1"
    assert cli.session_from_args(OPENCODE, ["run", "-s", "ses_1", "--fork"]) == ""
    assert cli.session_from_args(OPENCODE, ["-c"]) == ""
    assert cli.session_from_args(OPENCODE, ["run", "x"]) is None
    assert (
        cli.passthrough(OPENCODE, ["session", "list"])
        and cli.passthrough(OPENCODE, ["--version"])
        and cli.passthrough(OPENCODE, ["run", "-h"])
    )
    assert (
        not cli.passthrough(OPENCODE, ["run", "export"])
        and not cli.passthrough(OPENCODE, [])
        and not cli.passthrough(OPENCODE, ["serve"])
    )
    assert cli.is_interactive(OPENCODE, [], True, {}) and cli.is_interactive(OPENCODE, ["run", "-i"], True, {})
    assert not cli.is_interactive(OPENCODE, ["run", "x"], True, {})


def test_what_would_leave_calls_unlogged_is_refused(tmp_path: Path) -> None:
    def off(*args: str, **env: str) -> str | None:
        return cli.hooks_off_reason(OPENCODE, args, tmp_path, env)

    assert (
        off("run", "x") is None
        and off() is None
        and off(".") is None
        and off("run", "--dir", str(tmp_path), "x") is None
    )
    for args in (
        ["run", "--pure", "x"],
        ["serve"],
        ["--mini"],
        ["run", "-i"],
        ["acp"],
        ["attach", "http://x"],
        ["web"],
        ["run", "--attach", "http://x"],
    ):
        assert (off(*args) or "").endswith("Nothing was run.")
    assert "another folder" in (off("run", "--dir", "/", "x") or "")
    assert "another folder" in (off("/") or "")
    for yes in ("1", "true", "yes", "on", "Y"):
        assert "OPENCODE_PURE" in (off("run", "x", OPENCODE_PURE=yes) or "")
        assert "CODE_MODE" in (off("run", "x", OPENCODE_EXPERIMENTAL_CODE_MODE=yes) or "")
    for no in ("", "0", "False", "no", "off"):
        assert off("run", "x", OPENCODE_PURE=no, OPENCODE_EXPERIMENTAL_CODE_MODE=no) is None
    assert "memory" in (off("run", "x", OPENCODE_DB=":memory:") or "")


def test_the_users_own_value_of_the_variable_is_kept(tmp_path: Path) -> None:
    users = '{ // mine\n "plugin": ["a", "file:///b.js"], "instructions": ["x.md",], "model": "m//n" }'
    made = json.loads(config_content("X", users, tmp_path))
    assert made["plugin"][:2] == ["a", "file:///b.js"] and made["plugin"][2].endswith("/wal-agent.js")
    assert made["instructions"] == ["x.md", str(tmp_path / "protocol.md")]
    assert made["model"] == "m//n"
    assert json.loads(config_content("X", json.dumps(made), tmp_path)) == made, "once"
    for bad in ("{", "[]", '{"plugin": "x"}'):
        with pytest.raises(ConfigError):
            config_content("X", bad, tmp_path)


def test_the_plugin_is_the_runs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = tmp_path / 'it\'s "odd" \\ \u2028'
    run_dir.mkdir()
    env = {"HOME": str(tmp_path)}
    made = inject(OPENCODE, HookSetup("run-1", run_dir, (), ("todowrite",), "Rules."), env)
    assert {k: made.env[k] for k in OFFLINE} == OFFLINE
    assert made.env["OPENCODE_PURE"] == made.env["OPENCODE_EXPERIMENTAL_CODE_MODE"] == "0", "whatever a .env says"
    assert sorted(p.name for p in (run_dir / "opencode").iterdir()) == ["protocol.md", "wal-agent.js", "wire.js"]
    text = (run_dir / "opencode" / "wal-agent.js").read_text()
    literal = text.split("const SETUP = JSON.parse(")[1].split(") //")[0]
    assert json.loads(json.loads(literal)) | {"gone": ""} == {
        "socket": str(run_dir / "hook.sock"),
        "run": "run-1",
        "skip": ["todowrite"],
        "seconds": 4,
        "firm_seconds": 25,
        "clear": sorted(OFFLINE),
        "gone": "",
        "agent": "opencode",
        "content": OPENCODE.content,
        "owner": str(run_dir / "opencode" / "owner"),
        "users": "",
    }
    assert list(tmp_path.iterdir()) == [run_dir], "nothing of the user's"
    again = inject(OPENCODE, HookSetup("run-1", run_dir, ()), env | made.env | {"npm_config_offline": "false"})
    assert "npm_config_offline" not in again.env, "the user's own word"


@pytest.mark.parametrize(
    "where", [".config/opencode/plugin/a.ts", ".config/opencode/tool/a.js", ".opencode/plugins/a.js"]
)
def test_npm_is_left_alone_for_the_users_own_plugins(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"HOME": str(tmp_path)}
    assert not hooks.own_plugins(OPENCODE, env)
    (tmp_path / where).parent.mkdir(parents=True)
    (tmp_path / where).write_text("")
    assert hooks.own_plugins(OPENCODE, env)


@pytest.mark.parametrize(
    ("text", "own"), [('{"plugin": ["x"]}', True), ('{"plugin": [],}', False), ('{"plugin": [', True)]
)
def test_npm_is_left_alone_for_plugins_that_settings_list(
    text: str, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opencode.jsonc").write_text(text)
    assert hooks.own_plugins(OPENCODE, {"HOME": str(tmp_path / "home")}) is own


def test_kilo_code_differs_by_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables, its files and its subcommands, and never its daemon, which loads no plugin of a run (I5)."""

    def off(*args: str, **env: str) -> str:
        return cli.hooks_off_reason(KILO, args, tmp_path, env) or ""

    monkeypatch.chdir(tmp_path)
    env = {"HOME": str(tmp_path)}
    assert "KILO_PURE" in off("run", "x", KILO_PURE="1") and not off("run", "x", OPENCODE_PURE="1")
    assert "`kilo run`" in off("remote") and "another folder" in off("--worktree", "x")
    assert cli.passthrough(KILO, ["worktree", "list"]) and not cli.passthrough(OPENCODE, ["worktree", "list"])
    assert cli.session_from_args(KILO, ["run", "-s", "ses_1", "--cloud-fork"]) == ""
    made = inject(KILO, HookSetup("run-1", tmp_path, ()), env).env
    assert made["KILO_NO_DAEMON"] == "1" and made["KILO_PURE"] == "0"
    assert "/kilo/wal-agent.js" in made["KILO_CONFIG_CONTENT"]
    (tmp_path / "kilo.jsonc").write_text('{"plugin": ["x"]}')
    assert hooks.own_plugins(KILO, env) and not hooks.own_plugins(OPENCODE, env)


def test_kilo_codes_own_program_is_started(tmp_path: Path) -> None:
    """Its npm script would get each signal of a terminal beside it, and hand it on once more."""
    script = tmp_path / "kilo"
    start = ("run", "x")
    assert cli.command(KILO, Cli(script, ""), start, NewSession(""), False, {}).argv[0] == str(script)
    (tmp_path / ".kilo").touch()
    assert cli.command(KILO, Cli(script, ""), start, NewSession(""), False, {}).argv[0] == str(tmp_path / ".kilo")


def test_when_a_wakeup_of_kilo_code_comes() -> None:
    said = json.dumps({"output": "x", "metadata": {"id": "wku_1", "dueAt": 1795894969000}}, separators=(",", ":"))
    assert due(said.encode()) == 1795894969 and due(b'{"output":"x"}') == math.inf
