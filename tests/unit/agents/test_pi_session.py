"""Where pi's sessions are, and what would put them elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wal_agent.agents import pi as PI
from wal_agent.agents.pi import session

ID = "019f0000-0000-7000-8000-000000000001"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


def head(id: str, cwd: str = "/w") -> bytes:
    return json.dumps({"type": "session", "version": 3, "id": id, "timestamp": "t", "cwd": cwd}).encode() + b"\n"


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_sessions_file_is_known_by_its_first_line(tmp_path: Path, env: dict[str, str]) -> None:
    folder = tmp_path / "home/.pi/agent/sessions/--w-a-b-c--"
    workspace = Path("/w/a:b/c")
    put(folder / f"2026_{ID}.jsonl", head("other"))
    put(folder / "2026_x.jsonl", b"not json\n")
    assert not PI.resumable(ID, workspace, env)
    mine = put(folder / "chosen-by-the-user.jsonl", head(ID))
    (folder / f"2026_{ID}.jsonl").unlink()
    assert [f.path for f in PI.session_files(ID, workspace, env)] == [mine]
    assert PI.existing_files(ID, workspace, env) == [mine]
    assert PI.restore_path(PI.main_file, ID, workspace, env).parent == folder


def test_a_file_that_is_gone_since_it_was_listed(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = put(tmp_path / "x.jsonl", head(ID))
    listed = [tmp_path / "gone.jsonl"]
    monkeypatch.setattr(session, "existing_files", lambda *_: listed)
    assert PI.session_files(ID, Path("/w"), env) == []
    listed.append(there)
    assert [f.path for f in PI.session_files(ID, Path("/w"), env)] == [there]


def test_a_link_is_no_session(tmp_path: Path, env: dict[str, str]) -> None:
    real = put(tmp_path / "x.jsonl", head(ID))
    folder = tmp_path / "home/.pi/agent/sessions/--w--"
    folder.mkdir(parents=True)
    (folder / f"2026_{ID}.jsonl").symlink_to(real)
    assert PI.session_files(ID, Path("/w"), env) == []


@pytest.mark.parametrize(
    ("more", "folder", "place"),
    [
        ({}, "home/.pi/agent/sessions", "home/.pi/agent/sessions/--w--"),
        ({"PI_CODING_AGENT_DIR": "~/p"}, "home/p/sessions", "home/p/sessions/--w--"),
        ({"PI_CODING_AGENT_SESSION_DIR": "~/s"}, "home/s", "home/s"),
    ],
)
def test_pis_own_variables(tmp_path: Path, env: dict[str, str], more: dict[str, str], folder: str, place: str) -> None:
    env |= more
    assert PI.folder(env) == tmp_path / folder
    assert PI.restore_path(PI.main_file, ID, Path("/w"), env).parent == tmp_path / place


def test_the_users_own_setting(tmp_path: Path, env: dict[str, str]) -> None:
    put(tmp_path / "home/.pi/agent/settings.json", b'{"sessionDir": "~/mine"}')
    assert PI.folder(env) == tmp_path / "home/mine"
    assert PI.hooks_off_reason([], tmp_path, env) is None
    put(tmp_path / "home/.pi/agent/settings.json", b'{"sessionDir": "mine"}')
    assert "not an absolute path" in (PI.hooks_off_reason([], tmp_path, env) or "")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--no-session"], "--no-session"),
        (["-p", "x", "--mode", "rpc"], "RPC"),
        (["--mode", "rpc", "--mode", "x"], "RPC"),
        (["--session-dir", "x"], "PI_CODING_AGENT_SESSION_DIR"),
        (["--session", "/x/y.jsonl"], "not in this project's folder"),
    ],
)
def test_what_could_not_be_saved_is_not_run(args: list[str], words: str, tmp_path: Path, env: dict[str, str]) -> None:
    why = PI.hooks_off_reason(args, tmp_path, env)
    assert why is not None and words in why and why.endswith("Nothing was run.")


def test_a_projects_own_folder(tmp_path: Path, env: dict[str, str]) -> None:
    put(tmp_path / ".pi/settings.json", b'{"sessionDir": ".pi/sessions"}')
    assert ".pi/settings.json: sessionDir" in (PI.hooks_off_reason([], tmp_path, env) or "")
    assert PI.hooks_off_reason([], tmp_path, env | {"PI_CODING_AGENT_SESSION_DIR": "/s"}) is None


def test_a_session_of_another_folder_by_its_path(tmp_path: Path, env: dict[str, str]) -> None:
    path = put(PI.restore_path(PI.main_file, ID, tmp_path, env), head(ID, "/elsewhere"))
    assert "belongs to /elsewhere" in (PI.hooks_off_reason(["--session", str(path)], tmp_path, env) or "")
    put(path, head(ID, str(tmp_path)))
    assert PI.hooks_off_reason(["--session", str(path)], tmp_path, env) is None


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--mode", "rpc", "--mode", "text"],
        ["--no-extensions"],
        ["-ne", "-nt"],
        ["-p", "--no-session-x"],
        ["--session", ID],
    ],
)
def test_what_does_not_keep_hooks_from_firing(args: list[str], tmp_path: Path, env: dict[str, str]) -> None:
    assert PI.hooks_off_reason(args, tmp_path, env) is None
