"""What is saved of a command's session, and where a log's names may be put back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.agents.test_generic_settings import Desk
from wal_agent.agents import generic as GENERIC
from wal_agent.agents import rehearsal_of
from wal_agent.agents.base import LoggedCall, NewSession, ResumeSession
from wal_agent.agents.generic import cli
from wal_agent.agents.generic import session as files
from wal_agent.agents.generic import session as settings
from wal_agent.errors import ConfigError

ID = "3f2a91c0-1111-4222-8333-444455556666"
CLI = cli.locate({})


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path.resolve())
    made.person('session = ["~/.toy.md", "~/.toy/**/*.json"]\nresume = ["--go-on={session}", "-m", "<{prompt}>"]')
    made.project('session = ["state"]')
    return made


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(desk: Desk) -> list[str]:
    files.write_note(ID, desk.work, desk.env)
    return [f.name for f in GENERIC.session_files(ID, desk.work, desk.env)]


def test_the_note_first_and_then_what_is_named(desk: Desk) -> None:
    assert GENERIC.session_files(ID, desk.work, desk.env) == [] and not GENERIC.resumable(ID, desk.work, desk.env)
    for path in (
        desk.home / ".toy.md",
        desk.home / ".toy/a/b.json",
        desk.home / ".toy/a/b.txt",
        desk.work / "state/1/x",
    ):
        put(path)
    assert names(desk) == [files.MAIN, "home/.toy.md", "home/.toy/a/b.json", "workspace/state/1/x"]
    assert GENERIC.resumable(ID, desk.work, desk.env)
    for file in GENERIC.session_files(ID, desk.work, desk.env):
        assert GENERIC.restore_path(file.name, ID, desk.work, desk.env) == file.path
    assert GENERIC.session_files("../../etc", desk.work, desk.env) == []


def test_what_is_never_saved(desk: Desk) -> None:
    """No link, in the way or at the end of it; no credentials; nothing of git's or ours."""
    put(desk.home / ".ssh/id_rsa")
    (desk.home / ".toy.md").symlink_to(desk.home / ".ssh/id_rsa")
    (desk.home / ".toy").mkdir()
    (desk.home / ".toy/keys").symlink_to(desk.home / ".ssh")
    put(desk.home / ".toy/auth.json")
    for name in (".env", ".git/config", "x.pem", ".wal-agent-staged-1", "wal-agent.toml", "id_rsa.json", "tokens.json"):
        put(desk.work / "state" / name)
    os.mkfifo(desk.work / "state/pipe")
    assert names(desk) == [files.MAIN]


def test_state_of_ours_elsewhere_is_not_saved_either(desk: Desk) -> None:
    desk.env["XDG_STATE_HOME"] = str(desk.work / "state/xdg")
    put(desk.work / "state/xdg/wal-agent/jobs/x")
    assert names(desk) == [files.MAIN]


def test_what_is_too_much_is_left_out_and_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        put(desk.work / f"state/{n}", "12345")
    assert files.left_out(desk.work, desk.env) == []
    monkeypatch.setattr(files, "MAX_FILES", 3)
    assert len(names(desk)) == 4
    assert files.left_out(desk.work, desk.env)[0].startswith("Not all that [generic] session names is saved")
    monkeypatch.setattr(files, "MAX_FILE", 4)
    assert names(desk) == [files.MAIN]
    assert f"{desk.work}/state/0 is not saved: it has more than" in files.left_out(desk.work, desk.env)[0]
    monkeypatch.setattr(files, "MAX_LOOKED_AT", 2)
    assert any("is too wide" in told for told in files.left_out(desk.work, desk.env))


def test_the_folders_to_watch(desk: Desk) -> None:
    assert files.folders(desk.work, desk.env) == [desk.home, desk.work]
    (desk.home / ".toy").mkdir()
    assert files.folders(desk.work, desk.env) == [desk.home, desk.home / ".toy", desk.work]


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "home", "home/", "workspace", "note.json/x", "other/x", "home/../x", "/etc/passwd", "home//.toy.md"),
        *(
            "workspace/state/../../x",
            "workspace/state/\n",
            "workspace/other",
            "home/.toy.mdx",
            "home/.ssh/authorized_keys",
        ),
        *(
            "workspace/.git/hooks/post-checkout",
            "workspace/state/.git/config",
            "workspace/wal-agent.toml",
            "home/.bashrc",
        ),
        *("workspace/state/.env", "home/.config/wal-agent/wal-agent.toml", "workspace/state/" + "d/" * 20 + "x"),
    ],
)
def test_a_log_names_nothing_that_is_not_named_here(desk: Desk, name: str) -> None:
    with pytest.raises(ValueError):
        GENERIC.restore_path(name, ID, desk.work, desk.env)


def test_where_this_machine_does_not_name_it_the_place_to_do_so_is_told(desk: Desk) -> None:
    desk.own.unlink()
    settings.clear_cache()
    with pytest.raises(ValueError, match="is not named on this machine") as refused:
        GENERIC.restore_path("home/.toy.md", ID, desk.work, desk.env)
    assert str(desk.own) in str(refused.value)


@given(st.text())
def test_any_name_is_refused_or_stays_inside(name: str) -> None:
    work = Path("/nonexistent/shop")
    try:
        path = GENERIC.restore_path(name, ID, work, {"HOME": "/nonexistent/home"})
    except ValueError:
        return
    assert path == files.note_path(ID, {"HOME": "/nonexistent/home"})


def test_each_file_has_its_root(desk: Desk) -> None:
    for path, root in (
        (files.note_path(ID, desk.env), files.folder(desk.env)),
        (desk.home / ".toy.md", desk.home),
        (desk.work / "state/x", desk.work),
    ):
        assert files.root_of(path, desk.work, desk.env) == root


@given(st.binary())
def test_reconcile_is_idempotent_whatever_is_there(main: bytes) -> None:
    calls = [LoggedCall(1, "x", b"{}", None, True)]
    once = GENERIC.reconcile(main, ID, Path("/w"), calls)
    assert GENERIC.reconcile(once.data, ID, Path("/w"), calls).data == once.data
    assert GENERIC.capabilities.inject_prompt is None


def test_a_note_that_is_whole_stays_as_it_is(desk: Desk) -> None:
    names(desk)
    data = files.note_path(ID, desk.env).read_bytes()
    assert GENERIC.reconcile(data, ID, desk.work, []).data == data
    assert GENERIC.reconcile(data[:-5], ID, desk.work, []).data != data[:-5]


def test_only_so_many_notes_are_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_NOTES", 2)
    for n in range(4):
        os.utime(put(files.note_path(f"s{n}", desk.env)).parent, (n, n))
    files.sweep(desk.env, Path("/tmp"))
    assert sorted(p.name for p in files.folder(desk.env).iterdir()) == ["s2", "s3"]


# ---- the command -----------------------------------------------------------------------------------------------------

PROMPT = 'it\'s "this": `x` $Y {session} {prompt}\nünï -p @f /q !r'


def started(
    desk: Desk, session: NewSession | ResumeSession, *args: str, **env: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    made = GENERIC.command(CLI, args, session, False, {**desk.env, "PATH": os.environ["PATH"], **env})
    return made.argv, made.env


def test_a_start_is_what_was_typed(desk: Desk) -> None:
    assert started(desk, NewSession(ID), "sh", "-c", "echo {prompt}") == (
        ("sh", "-c", "echo {prompt}"),
        {"WAL_AGENT_SESSION": ID},
    )
    inside = started(desk, NewSession(ID), "sh", WAL_AGENT_RECOVERY_PROMPT="/of/a/run/around/this")
    assert inside[1] == {"WAL_AGENT_SESSION": ID, "WAL_AGENT_RECOVERY_PROMPT": ""}


def test_going_on_the_prompt_arrives_byte_for_byte(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk.work)
    names(desk)
    socket = str(tmp_path / "hook.sock")
    argv, env = started(desk, ResumeSession(ID, PROMPT), "sh", "x", WAL_AGENT_SOCKET=socket)
    assert argv == ("sh", "x", f"--go-on={ID}", "-m", f"<{PROMPT}>")
    kept = Path(env["WAL_AGENT_RECOVERY_PROMPT"])
    assert kept.read_bytes() == PROMPT.encode() and kept.stat().st_mode & 0o777 == 0o600
    started(desk, ResumeSession(ID, "another"), "sh", WAL_AGENT_SOCKET=socket)
    assert kept.read_text() == "another"


def test_without_words_or_without_a_saved_session_it_starts_as_it_was(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.work)
    socket = str(tmp_path / "hook.sock")
    argv, env = started(desk, ResumeSession(ID, PROMPT), "sh", WAL_AGENT_SOCKET=socket)
    assert argv == ("sh",) and Path(env["WAL_AGENT_RECOVERY_PROMPT"]).read_bytes() == PROMPT.encode()
    names(desk)
    desk.person("session = []")
    assert started(desk, ResumeSession(ID, PROMPT), "sh", WAL_AGENT_SOCKET=socket)[0] == ("sh",)


def test_what_cannot_be_started_is_told_before_anything_is_done(desk: Desk) -> None:
    env = {**desk.env, "PATH": os.environ["PATH"]}
    assert GENERIC.hooks_off_reason(("sh",), desk.work, env) is None
    assert "no command to run" in (GENERIC.hooks_off_reason((), desk.work, env) or "")
    assert "no-such-tool was not found" in (GENERIC.hooks_off_reason(("no-such-tool",), desk.work, env) or "")
    with pytest.raises(ConfigError):
        GENERIC.command(CLI, (), ResumeSession(ID, ""), False, env)
    desk.person("resume = 1")
    with pytest.raises(ConfigError):
        GENERIC.hooks_off_reason(("sh",), desk.work, env)


def test_each_start_says_what_is_not_held(desk: Desk) -> None:
    """In one line that does not contradict itself."""
    (whole,) = cli.start_lines(desk.work, desk.env)
    assert "no tool call is logged" in whole and "the session files" in whole and "resumes its session" in whole
    assert str(desk.own) not in whole
    desk.person("")
    desk.project("")
    (plain,) = cli.start_lines(desk.work, desk.env)
    assert "only this folder's files are saved" in plain and "starts again unchanged" in plain
    assert "the session files" not in plain and f"[generic] session and resume in {desk.own}" in plain


def test_it_has_no_hooks() -> None:
    assert GENERIC.capabilities.hookless
    assert rehearsal_of(GENERIC) is None
    with pytest.raises(ValueError):
        GENERIC.parse("BeforeTool", b"{}")
