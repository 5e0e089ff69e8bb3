"""Copilot's command line, its settings, its files, and what a run injects."""

from __future__ import annotations

import fcntl
import json
import shutil
import uuid
from pathlib import Path

import pytest

from wal_agent.agents import copilot as COPILOT
from wal_agent.agents.base import Cli, HookSetup, NewSession, ResumeSession
from wal_agent.agents.copilot.cli import native_program, running_version
from wal_agent.agents.copilot.hooks import PLUGIN, platform_builds

ID = "0a2c546b-cf56-4bbc-8f97-fa1b4330f64b"
OTHER = "11111111-cf56-4bbc-8f97-fa1b4330f64b"
CLI = Cli(Path("/x/copilot"), "1.0.102")
ENV = {PLUGIN: "/run/plugin", "HOME": "/h"}
BEGIN = ("/x/copilot", "--plugin-dir", "/run/plugin")


@pytest.fixture(autouse=True)
def saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session to resume is there."""
    monkeypatch.setattr("wal_agent.agents.copilot.cli.resumable", lambda session, workspace, env: session == ID)


def argv(*args: str, resume: str | None = None, tty: bool = False) -> tuple[str, ...]:
    session = NewSession(ID) if resume is None else ResumeSession(ID, resume)
    made = COPILOT.command(CLI, args, session, tty, ENV)
    assert made.argv[:3] == BEGIN
    return made.argv[3:]


def test_a_new_session_has_our_id_unless_the_user_chose_one() -> None:
    assert argv("-p", "x", "--plugin-dir", "/own") == ("--session-id", ID, "-p", "x", "--plugin-dir", "/own")
    for chosen in (("--session-id", OTHER), ("-r", OTHER), (f"--resume={OTHER}",), ("--resume",), ("--continue",)):
        assert argv(*chosen) == chosen
    assert argv("--trust-folder", "-p", "x") == ("--trust-folder", "-p", "x"), "it takes no id beside that"


def test_a_session_that_was_never_saved_begins_anew_with_the_notice() -> None:
    """Copilot refuses to resume what is not there."""
    made = COPILOT.command(CLI, ["-p", "do it"], ResumeSession(OTHER, "go"), False, ENV)
    assert made.argv[3:] == ("--session-id", OTHER, "--prompt=go")


def test_a_resume_is_by_id_and_its_prompt_stands_for_the_users() -> None:
    users = ("--allow-all", "--trust-folder", "-n", "name", "--attachment", "a.png", "-p", "do it", "--continue")
    assert argv(*users, resume="go\n'on'") == (f"--resume={ID}", "--prompt=go\n'on'", "--allow-all")
    assert argv("-i", "do it", resume="go", tty=True) == (f"--resume={ID}", "--interactive=go")
    assert argv("-p", "do it", resume="") == (f"--resume={ID}", "-p", "do it")
    assert argv("-p", "x", resume="/compact")[1] == "--prompt=[wal-agent recovery]\n/compact"
    assert argv("-p", "x", resume="-lead")[1] == "--prompt=-lead"
    made = COPILOT.command(CLI, (), ResumeSession(ID, "go"), False, ENV)
    assert made.no_stdin and made.env == {"COPILOT_DISABLE_RESUME_AUTO_CD": "1"}


def test_what_the_arguments_say() -> None:
    assert COPILOT.session_from_args(["--allow-tool", "a", "b", "-p", "x"]) is None
    assert COPILOT.session_from_args(["--session-id", ID]) == ID
    assert COPILOT.session_from_args(["-r", ID, "-p", "x"]) == ID
    assert [COPILOT.session_from_args(a) for a in (["--resume=my feature"], ["--resume"], ["--continue"])] == [
        "",
        "",
        "",
    ]
    assert COPILOT.prompt_from_args(["-s", "-p", "do it"]) == "do it"
    assert COPILOT.prompt_from_args(["--interactive=do it"]) == "do it"
    assert COPILOT.prompt_from_args(["--model", "x"]) is None
    assert COPILOT.is_interactive([], True, {}) and COPILOT.is_interactive(["-i", "x"], True, {})
    assert not COPILOT.is_interactive(["-p", "x"], True, {}) and not COPILOT.is_interactive([], False, {})
    assert COPILOT.passthrough(["plugin", "list"]) and COPILOT.passthrough(["-v"]) and COPILOT.passthrough(["help"])
    assert not COPILOT.passthrough(["-p", "plugin"]) and not COPILOT.passthrough([])


@pytest.mark.parametrize("args", [["-C", "/x"], ["--acp"], ["--connect"], ["--worktree"], ["--environment-host=x"]])
def test_arguments_that_lead_elsewhere(args: list[str], tmp_path: Path) -> None:
    why = COPILOT.hooks_off_reason(args, tmp_path, ENV)
    assert why is not None and why.endswith("Nothing was run.")


def test_the_projects_settings_by_their_order(tmp_path: Path) -> None:
    """The order was measured: Copilot's own before Claude's, local before shared; only `true` counts."""
    repo, local = tmp_path / ".github/copilot/settings.json", tmp_path / ".github/copilot/settings.local.json"
    claude = tmp_path / ".claude/settings.json"
    for path in (repo, claude):
        path.parent.mkdir(parents=True)

    def off() -> bool:
        return COPILOT.hooks_off_reason([], tmp_path, ENV) is not None

    assert not off()
    claude.write_text('{"disableAllHooks": true}')
    assert ".claude/settings.json: disableAllHooks is true" in str(COPILOT.hooks_off_reason([], tmp_path, ENV))
    repo.write_text('{"disableAllHooks": false}')
    assert not off()
    repo.write_text('// c\n{"disableAllHooks": true}')
    assert off()
    local.write_text('{"disableAllHooks": false}')
    assert not off()
    local.write_text('{"disableAllHooks": "true"}')
    assert not off()


def test_files_of_a_session(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    base = tmp_path / ".copilot/session-state" / ID
    for name in ("events.jsonl", "workspace.yaml", "session.db", "inuse.7.lock", "checkpoints/1.md", "files/a/b.txt"):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("{}\n")
    (base / "rewind-file-snapshots").mkdir()
    (base / "rewind-file-snapshots/index.json").write_text("{}")
    (base / "research").symlink_to(tmp_path / ".copilot")
    (tmp_path / ".copilot/config.json").write_text('{"token": 1}')
    names = [f.name for f in COPILOT.session_files(ID, tmp_path, env)]
    assert names == ["events.jsonl", "workspace.yaml", "checkpoints/1.md", "files/a/b.txt"]
    for name in names:
        assert COPILOT.restore_path(name, ID, tmp_path, env) == base / name
    for name in (
        "session.db",
        "config.json",
        "checkpoints",
        "rewind-file-snapshots/index.json",
        ".workspace-fork.lock",
    ):
        with pytest.raises(ValueError):
            COPILOT.restore_path(name, ID, tmp_path, env)
    assert not COPILOT.resumable(ID, tmp_path, env)
    (base / "events.jsonl").write_text('{"type":"session.start"}\n')
    assert COPILOT.resumable(ID, tmp_path, env)
    own = {"COPILOT_HOME": str(tmp_path / "own"), **env}
    assert COPILOT.session_files(ID, tmp_path, own) == []
    shutil.move(tmp_path / ".copilot", tmp_path / "own")
    assert [f.name for f in COPILOT.session_files(ID, tmp_path, own)] == names
    elsewhere = tmp_path / "elsewhere"
    shutil.move(tmp_path / "own/session-state" / ID, elsewhere)
    (tmp_path / "own/session-state" / ID).symlink_to(elsewhere)
    assert COPILOT.session_files(ID, tmp_path, own) == [], "links are not followed"


def test_what_is_injected_is_in_the_runs_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    env = {"HOME": str(tmp_path / "home"), "COPILOT_CUSTOM_INSTRUCTIONS_DIRS": "/own"}
    made = COPILOT.inject(HookSetup("r", run, ("client", "it's"), ("view",), "Stand by."), env)
    plugin = Path(made.env[PLUGIN])
    table = json.loads((plugin / "hooks/hooks.json").read_text())["hooks"]
    assert not any("matcher" in hook for hooks in table.values() for hook in hooks), "a bad one would match nothing"
    assert "permissionDecision" in table["preToolUse"][0]["bash"]
    assert not any("permissionDecision" in table[event][0]["bash"] for event in table if event != "preToolUse")
    own, ours = made.env["COPILOT_CUSTOM_INSTRUCTIONS_DIRS"].split(",")
    assert own == "/own" and "Stand by." in next(Path(ours).rglob("*.instructions.md")).read_text()
    assert {p.name for p in tmp_path.iterdir()} == {"run"}
    assert len(COPILOT.inject(HookSetup("r", run, ("client",)), env).env) == 1, "again, and without a protocol"


def test_the_native_program_is_started(tmp_path: Path) -> None:
    """Of every platform's package npm installs only this machine's."""
    modules = tmp_path / "node_modules"
    loader = modules / "@github/copilot/npm-loader.js"
    loader.parent.mkdir(parents=True)
    loader.touch()
    link = tmp_path / "bin-copilot"
    link.symlink_to(loader)
    assert native_program(link) == link, "no package for this machine: the loader says so"
    for kind in ("linux", "linuxmusl", "darwin"):
        for machine in ("x64", "arm64"):
            (modules / f"@github/copilot-{kind}-{machine}").mkdir()
            (modules / f"@github/copilot-{kind}-{machine}/copilot").touch()
    assert native_program(link).name == "copilot" and native_program(link).parent.parent == modules / "@github"
    assert native_program(tmp_path / "alone") == tmp_path / "alone"


def test_a_session_that_is_not_there(tmp_path: Path) -> None:
    assert not COPILOT.resumable(str(uuid.uuid4()), tmp_path, {"HOME": str(tmp_path)})


def test_the_version_that_really_runs(tmp_path: Path) -> None:
    """As Copilot's loader chooses it: the newest complete one of its caches that is not older than itself."""
    build = platform_builds()[0]

    def unpacked(cache: str, name: str, version: str = "", files: tuple[str, ...] = ("app.js", "cli-main.js")) -> Path:
        place = tmp_path / cache / "pkg" / build / name
        place.mkdir(parents=True)
        for file in ("index.js", *files):
            (place / file).touch()
        manifest = {"version": version or name, "files": ["cli-main.js"]}
        (place / "package.json").write_text(json.dumps(manifest))
        return place

    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    assert running_version("1.0.102", env) == "1.0.102"
    unpacked("xdg/copilot", "1.0.99")
    unpacked("xdg/copilot", ".extracting-1.9.0-7")
    unpacked("xdg/copilot", "1.8.0", files=("app.js",))
    unpacked("xdg/copilot", "1.0.103-2")
    unpacked("xdg/copilot", "1.0.103-10")
    assert running_version("1.0.102", env) == "1.0.103-10"
    unpacked(".copilot", "1.0.103")
    assert running_version("1.0.102", env) == "1.0.103" == running_version("1.0.103", env)
    assert running_version("1.1.0", env) == "1.1.0" and running_version("", env) == ""
    assert running_version("1.0.102", env | {"COPILOT_AUTO_UPDATE": "False"}) == "1.0.102"
    dist = unpacked("own", "dist", "1.5.0")
    assert running_version("1.0.102", env | {"COPILOT_CLI_DIST_DIR": str(dist)}) == "1.5.0"
    assert running_version("1.0.102", env | {"COPILOT_CLI_DIST_DIR": str(tmp_path)}) == "1.0.103"


def test_what_a_dead_run_left_is_swept(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path / "home")}
    left: list[Path] = []
    for name in ("dead", "alive"):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "lock").touch()
        left += COPILOT.inject(HookSetup("r", run, ("client",)), env).paths
        left[-1].mkdir(parents=True)
    theirs = left[0].parent / "theirs"
    theirs.mkdir()
    with (tmp_path / "runs/alive/lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        COPILOT.hooks.sweep(env, tmp_path / "runs")
    assert [path.exists() for path in (*left, theirs)] == [False, True, True]
