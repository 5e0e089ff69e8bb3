"""Which files are a session's, and where restored ones go: where Codex's index looks, and nowhere outside."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from wal_agent.agents import codex as CODEX
from wal_agent.agents.codex import hooks, session
from wal_agent.agents.codex import session as codex_files
from wal_agent.agents.codex.session import default_path, is_session, thread_time

ROOT = "01a20281-b689-7383-9548-fb903d18e48e"  # made 2026-11-22 09:06:25 UTC
SUB = "01a20281-c094-7621-9b2e-be1646a948b3"
OLD = "01a1b000-0000-7000-8000-000000000000"
PLANTED = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "codex/sessions").mkdir(parents=True)
    return {"CODEX_HOME": str(tmp_path / "codex"), "HOME": "/nonexistent"}


def rollout(env: dict[str, str], id: str, day: str = "", size: int = 0, **meta: str) -> Path:
    place = default_path(id)
    path = Path(env["CODEX_HOME"], "sessions", day or place.parent, place.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"session_id": id, "id": id, **meta}
    first = {"timestamp": "", "ordinal": 0, "type": "session_meta", "payload": about}
    path.write_text(json.dumps(first, separators=(",", ":")) + "\n" + "x" * size)
    return path


def files(env: dict[str, str], id: str = ROOT) -> dict[str, Path]:
    return {f.name: f.path for f in CODEX.session_files(id, Path("/w"), env)}


def test_the_day_is_in_the_id() -> None:
    assert time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(thread_time(ROOT))) == "2026-11-22T09:06:25"
    assert thread_time(PLANTED) == 0
    assert default_path(PLANTED).as_posix() == f"1970/01/01/rollout-1970-01-01T00-00-00-{PLANTED}.jsonl"
    assert not is_session(ROOT.upper()) and not is_session(ROOT + "\n") and not is_session("")


def test_a_family(env: dict[str, str]) -> None:
    """Subagents by the root that they name, forks by what they were forked from; of strangers nothing."""
    main = rollout(env, ROOT, forked_from_id=OLD)
    sub = rollout(env, SUB, session_id=ROOT)
    before = rollout(env, OLD)
    rollout(env, "01a20282-0000-7000-8000-000000000000")
    (main.parent / "notes.jsonl").write_text("{}")
    assert files(env) == {
        "rollout.jsonl": main,
        f"threads/{before.name}": before,
        f"threads/{sub.name}": sub,
    }
    assert next(iter(files(env))) == "rollout.jsonl"
    for name, path in files(env).items():
        assert CODEX.restore_path(name, ROOT, Path("/w"), env) == path
    assert files(env, SUB).keys() == {"rollout.jsonl"}
    assert files(env, PLANTED) == {}


def test_links_are_not_followed(env: dict[str, str], tmp_path: Path) -> None:
    main = rollout(env, ROOT)
    elsewhere = tmp_path / "elsewhere"
    main.rename(elsewhere)
    main.symlink_to(elsewhere)
    assert files(env) == {}
    main.unlink()
    main.parent.rmdir()
    real = tmp_path / "day"
    real.mkdir()
    elsewhere.rename(real / main.name)
    main.parent.symlink_to(real)
    assert files(env) == {}


def test_a_file_in_another_days_folder(env: dict[str, str]) -> None:
    moved = rollout(env, ROOT, "2020/01/01")
    assert files(env) == {"rollout.jsonl": moved}
    assert CODEX.existing_files(ROOT, Path("/w"), env) == [moved]
    assert not CODEX.resumable(ROOT, Path("/w"), env), "nothing but a head"
    moved.write_text('{"type":"response_item"}\n')
    assert CODEX.resumable(ROOT, Path("/w"), env)


def test_a_file_that_goes_while_its_size_is_asked(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    gone, stays = rollout(env, ROOT), rollout(env, OLD)
    monkeypatch.setattr(codex_files, "rollouts_of", lambda sessions, id: [gone, stays])
    gone.unlink()
    assert CODEX.existing_files(ROOT, Path("/w"), env) == [gone, stays]
    assert files(env)["rollout.jsonl"] == stays
    stays.unlink()
    assert files(env) == {} and not CODEX.resumable(ROOT, Path("/w"), env)


def test_its_open_file_is_found_though_another_one_closes(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session without a word to us: a descriptor that goes while we look hides no other one. What it only
    reads may be an older session, for which a healthy run would be ended."""
    main = rollout(env, ROOT)
    with main.open("a") as file:
        said = {"type": "event_msg", "payload": {"type": "item_completed", "item": {"type": "UserMessage"}}}
        file.write(json.dumps(said) + "\n")
    (tmp_path / "agent.pid").write_text(f"{os.getpid()}\n")
    read = Path.readlink
    closed: list[Path] = []

    def readlink(path: Path) -> Path:
        if not closed:
            closed.append(path)
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(Path, "readlink", readlink)
    marked = env | {hooks.MARKER: str(tmp_path)}
    with main.open("rb"), (tmp_path / "other").open("a"):
        assert files(marked, PLANTED) == {} and closed
    closed.clear()
    with main.open("a"):
        assert files(marked, PLANTED)["rollout.jsonl"] == main and closed


NAME = f"rollout-2026-11-22T09-06-27-{SUB}.jsonl"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "rollout.json",
            "threads",
            "threads/",
            f"threads/x/{NAME}",
            f"threads/../{NAME}",
            f"threads/{NAME}.zst",
            NAME,
        ),
        *(f"threads/{NAME}\n", f"threads/{NAME.replace(SUB, ROOT)}", "threads/auth.json", "config.toml", "auth.json"),
    ],
)
def test_no_file_of_a_session(env: dict[str, str], name: str) -> None:
    with pytest.raises(ValueError):
        CODEX.restore_path(name, ROOT, Path("/w"), env)


def index(env: dict[str, str], path: str, where: str = "CODEX_HOME") -> None:
    with closing(sqlite3.connect(Path(env[where]) / "state_5.sqlite")) as db:
        db.execute("create table threads (id text, rollout_path text)")
        db.execute("insert into threads values (?, ?)", (ROOT, path))
        db.commit()


def test_it_is_restored_where_the_index_looks(env: dict[str, str]) -> None:
    """Whether the file is there or not; but only where a file of this session can be."""
    sessions = Path(env["CODEX_HOME"]) / "sessions"
    name = f"rollout-2026-11-22T23-06-25-{ROOT}.jsonl"  # by the clock of another zone
    index(env, str(sessions / "2026/11/22" / name))
    assert CODEX.restore_path("rollout.jsonl", ROOT, Path("/w"), env) == sessions / "2026/11/22" / name


@pytest.mark.parametrize("path", ["/etc/passwd", "", "relative", f"/other/sessions/2026/11/22/{NAME}", "a\0b"])
def test_an_index_that_says_something_else(env: dict[str, str], tmp_path: Path, path: str) -> None:
    """Another home's path: the resume gets an index of its own, in the run's folder."""
    index(env, path)
    sessions = Path(env["CODEX_HOME"]) / "sessions"
    assert CODEX.restore_path("rollout.jsonl", ROOT, Path("/w"), env) == sessions / default_path(ROOT)
    rollout(env, ROOT)
    run = tmp_path / "run"
    run.mkdir()
    found = session.private_index(ROOT, env | {hooks.MARKER: str(run)})
    assert found == {session.VARIABLE: str(run / "codex-index")}
    assert (run / "codex-index").is_dir()


def test_an_index_that_is_right_or_damaged_or_elsewhere(env: dict[str, str], tmp_path: Path) -> None:
    run = env | {hooks.MARKER: str(tmp_path)}
    assert session.private_index(ROOT, run) == {}
    (Path(env["CODEX_HOME"]) / "state_5.sqlite").write_bytes(b"no database")
    assert session.indexed_path(ROOT, env) is None
    (tmp_path / "own").mkdir()
    (Path(env["CODEX_HOME"]) / "config.toml").write_text(f"sqlite_home = {json.dumps(str(tmp_path / 'own'))}\n")
    main = rollout(env, ROOT)
    index(env | {"X": str(tmp_path / "own")}, str(main), "X")
    assert session.indexed_path(ROOT, env) == main
    assert session.private_index(ROOT, run) == {}
    assert session.indexed_path(ROOT, env | {session.VARIABLE: str(tmp_path)}) is None
