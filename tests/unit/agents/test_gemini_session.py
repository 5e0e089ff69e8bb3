"""Where a session's files are found and where they belong, in hostile folders too."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import gemini as GEMINI
from wal_agent.agents.gemini import session as gemini_files
from wal_agent.agents.gemini.session import is_stub, project_slug, slugify

ID = "3f2a91c0-1111-4222-8333-444455556666"
CONTEXT = {"id": "c", "type": "user", "content": [{"text": "<session_context>\nx"}]}


def head(session: str = ID) -> str:
    return json.dumps({"sessionId": session, "projectHash": "h", "kind": "main"})


STUB = head() + "\n" + json.dumps({"$set": {"messages": [CONTEXT]}}) + "\n"
REAL = STUB + json.dumps({"id": "u", "type": "user", "content": "hi"}) + "\n"
HEADLESS = REAL.removeprefix(STUB) + '{"$set":{"lastUpdated":"x"}}\n'


class Machine:
    def __init__(self, base: Path) -> None:
        self.home, self.ws = base / "home", base / "My_Shop.v2"
        self.dot = self.home / ".gemini"
        self.project = self.dot / "tmp/my-shop-v2"
        self.chats = self.project / "chats"
        self.chats.mkdir(parents=True)
        self.ws.mkdir()
        self.env = {"HOME": str(self.home)}

    def chat(self, name: str, text: str) -> Path:
        path = self.chats / f"session-{name}-{ID[:8]}.jsonl"
        path.write_text(text)
        return path

    def names(self) -> list[str]:
        return [f.name for f in GEMINI.session_files(ID, self.ws, self.env)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_there_may_be_none(machine: Machine) -> None:
    assert machine.names() == []
    assert GEMINI.session_files("../../etc", machine.ws, machine.env) == []
    assert GEMINI.session_files(ID, machine.ws, {"HOME": "/nonexistent"}) == []


def test_the_real_file_among_stubs_and_strangers(machine: Machine) -> None:
    machine.chat("2026-11-21T10-00", STUB)
    real = machine.chat("2026-11-21T09-00", REAL)
    machine.chat("2026-11-21T11-00", REAL.replace(ID, ID[:8] + "-other"))
    (machine.chats / f"session-2026-{ID[:8]}.jsonl.tmp").write_text(REAL)
    assert [f.path for f in GEMINI.session_files(ID, machine.ws, machine.env)] == [real]
    assert len(GEMINI.existing_files(ID, machine.ws, machine.env)) == 3


def test_a_twin_that_goes_while_its_size_is_asked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start deletes them; here between the look into it and the next question."""
    real = machine.chat("2026-11-21T09-00", REAL)
    going = [machine.chat("2026-11-21T10-00", REAL)]

    def look(path: Path, session: str) -> bool:
        if path in going:
            path.unlink()
        return is_stub(path, session)

    monkeypatch.setattr(gemini_files, "is_stub", look)
    assert [f.path for f in GEMINI.session_files(ID, machine.ws, machine.env)] == [real]
    going.append(real)
    assert machine.names() == []


def test_a_new_session_without_a_prompt_yet(machine: Machine) -> None:
    path = machine.chat("2026-11-21T10-00", STUB)
    assert GEMINI.session_files(ID, machine.ws, machine.env)[0].path == path
    twin = machine.chat("2026-11-21T10-01", STUB)
    GEMINI.session.tidy(ID, machine.ws, machine.env)
    assert path.exists()
    assert twin.exists()


def test_s2_tidy_removes_stubs_and_nothing_else(machine: Machine) -> None:
    real = machine.chat("2026-11-21T09-00", REAL)
    stub = machine.chat("2026-11-21T10-00", STUB)
    more = machine.chat("2026-11-21T10-01", STUB + '{"$set":{"lastUpdated":"x"}}\n')
    torn = machine.chat("2026-11-21T10-02", STUB[:-1])
    other = machine.chat("2026-11-21T10-03", STUB.replace(ID, ID[:8] + "-other"))
    said = machine.chat("2026-11-21T10-04", STUB.replace("<session_context>", "I wrote this"))
    GEMINI.session.tidy(ID, machine.ws, machine.env)
    assert not stub.exists()
    assert all(path.exists() for path in (real, more, torn, other, said))


def test_s14_one_without_a_head_is_the_session_where_no_real_one_stands(machine: Machine) -> None:
    """Gemini goes on in it when another one's start deleted its file; none finds it, and each next one deletes it."""
    headless = machine.chat("2026-11-21T10-00", HEADLESS)
    (found,) = GEMINI.session_files(ID, machine.ws, machine.env)
    assert found.path == headless
    assert found.begins is not None
    with headless.open("rb") as file:
        assert not found.begins(file.fileno())
    assert GEMINI.existing_files(ID, machine.ws, machine.env) == [headless]
    assert not GEMINI.resumable(ID, machine.ws, machine.env)

    stub = machine.chat("2026-11-21T10-01", STUB)
    assert GEMINI.session_files(ID, machine.ws, machine.env)[0].path == headless
    GEMINI.session.tidy(ID, machine.ws, machine.env)
    assert stub.exists()

    real = machine.chat("1970-01-01T00-00", REAL)
    (found,) = GEMINI.session_files(ID, machine.ws, machine.env)
    assert found.path == real
    assert found.begins is not None
    with real.open("rb") as file:
        assert found.begins(file.fileno())
    assert GEMINI.resumable(ID, machine.ws, machine.env)
    GEMINI.session.tidy(ID, machine.ws, machine.env)
    assert headless.exists()
    assert not stub.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "[]\n", "null\n", "junk\n" + REAL, "[" * 100_000 + "\n", REAL.replace(ID, ID[:8] + "-other")],
    ids=range(8),
)
def test_what_is_no_session_without_a_head(machine: Machine, text: str) -> None:
    """Of another session, not whole yet, or damaged."""
    machine.chat("2026-11-21T10-00", text)
    assert machine.names() == []


def test_all_that_belongs_to_it_and_no_more(machine: Machine) -> None:
    machine.chat("2026-11-21T09-00", REAL)
    for path in (
        machine.project / f"tool-outputs/session-{ID}/a.txt",
        machine.project / "tool-outputs/session-other/b.txt",
        machine.chats / ID / "sub.jsonl",
        machine.project / ID / "plans/deep/plan.md",
        machine.project / ID / "other/x",
        machine.dot / "oauth_creds.json",
        machine.dot / "settings.json",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert machine.names() == ["session.jsonl", "tool-outputs/a.txt", "subagents/sub.jsonl", "plans/deep/plan.md"]
    for found in GEMINI.session_files(ID, machine.ws, machine.env)[1:]:
        assert GEMINI.restore_path(found.name, ID, machine.ws, machine.env) == found.path


def test_links_and_oddities_are_not_followed(machine: Machine, tmp_path: Path) -> None:
    machine.chat("2026-11-21T09-00", REAL)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("x")
    outputs = machine.project / "tool-outputs"
    outputs.mkdir()
    (outputs / f"session-{ID}").symlink_to(secret)
    plans = machine.project / ID / "plans"
    plans.mkdir(parents=True)
    (plans / "link").symlink_to(secret / "key")
    (plans / "loop").symlink_to(plans)
    (plans / "folder").symlink_to(secret)
    os.mkfifo(plans / "fifo")
    (plans / "a\nb").write_text("x")
    (machine.chats / f"session-2027-{ID[:8]}.jsonl").symlink_to(secret / "key")
    os.mkfifo(machine.chats / f"session-2028-{ID[:8]}.jsonl")
    assert machine.names() == ["session.jsonl"]


def test_a_name_that_is_not_utf8_is_never_named(machine: Machine) -> None:
    machine.chat("2026-11-21T09-00", REAL)
    plans = machine.project / ID / "plans"
    folder = plans / os.fsdecode(b"caf\xe9")
    folder.mkdir(parents=True)
    (folder / "plan.md").write_text("x")
    (plans / os.fsdecode(b"\xff.md")).write_text("x")
    (plans / "caf\u00e9.md").write_text("x")
    assert machine.names() == ["session.jsonl", "plans/caf\u00e9.md"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "session.json",
        "settings.json",
        "../session.jsonl",
        "plans",
        "plans/",
        "plans/../x",
        "plans//x",
        "plans/./x",
        "/plans/x",
        "plans/a\0b",
        "plans/a/b/c/d/e/f/g",
        "tool-outputs/" + "x" * 300,
        "oauth_creds.json",
    ],
)
def test_names_that_are_not_ours_have_no_place(machine: Machine, name: str) -> None:
    with pytest.raises(ValueError, match="no file of a"):
        GEMINI.restore_path(name, ID, machine.ws, machine.env)


@given(st.text(max_size=40), st.text(max_size=20))
def test_no_name_leads_out(name: str, session: str) -> None:
    home = Path("/nonexistent/home")
    try:
        path = GEMINI.restore_path(name, session, Path("/w/shop"), {"HOME": str(home)})
    except ValueError:
        return
    assert Path(os.path.normpath(path)).is_relative_to(home / ".gemini/tmp/shop")


def test_s3_the_main_file_gets_an_old_name(machine: Machine) -> None:
    path = GEMINI.restore_path("session.jsonl", ID, machine.ws, machine.env)
    assert path == machine.chats / f"session-1970-01-01T00-00-{ID[:8]}.jsonl"


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("My Project.v2", "my-project-v2"),
        ("a_b", "a-b"),
        ("work_k", "work-k"),
        ("ünï", "n"),
        ("--", "project"),
        ("x", "x"),
    ],
)
def test_slugs_as_gemini_makes_them(name: str, slug: str) -> None:
    assert slugify(name) == slug


def own(machine: Machine, slug: str, owner: str, base: str = "tmp") -> None:
    folder = machine.dot / base / slug
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".project_root").write_text(owner)


def test_which_slug(machine: Machine) -> None:
    """Registered; else marked; else the first free one of its name."""
    ws = machine.ws
    assert project_slug(machine.dot, ws) == "my-shop-v2"
    own(machine, "my-shop-v2", "/another", "history")
    assert project_slug(machine.dot, ws) == "my-shop-v2-1"
    (machine.dot / "projects.json").write_text(json.dumps({"projects": {"/third": "my-shop-v2-1"}}))
    assert project_slug(machine.dot, ws) == "my-shop-v2-2"
    own(machine, "marked", str(ws) + "\n")
    assert project_slug(machine.dot, ws) == "marked"
    (machine.dot / "projects.json").write_text(json.dumps({"projects": {str(ws): "known"}}))
    assert project_slug(machine.dot, ws) == "known"
    own(machine, "known", "/another")
    assert project_slug(machine.dot, ws) == "marked", "Gemini drops an entry whose folder is another's"


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"projects": []}', '{"projects": {"WS": "../../etc"}}', '{"projects": {"WS": 1}}']
)
def test_a_registry_that_gemini_would_drop(machine: Machine, text: str) -> None:
    (machine.dot / "projects.json").write_text(text.replace("WS", str(machine.ws)))
    assert project_slug(machine.dot, machine.ws) == "my-shop-v2"


def test_what_can_be_resumed(machine: Machine) -> None:
    assert not GEMINI.resumable(ID, machine.ws, machine.env)
    machine.chat("2026-11-21T10-00", STUB)
    assert not GEMINI.resumable(ID, machine.ws, machine.env)
    machine.chat("2026-11-21T09-00", REAL)
    assert GEMINI.resumable(ID, machine.ws, machine.env)


def test_a_large_session_is_told_from_a_stub_by_its_first_lines(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: what is read does not grow with the session."""
    big = machine.chat("2026-11-21T10-00", REAL + REAL.splitlines()[-1] * 100_000)
    read: list[int] = []

    class Counting(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size) or b""
            read.append(len(data))
            return data

    monkeypatch.setattr(os, "fdopen", lambda fd, *args, **options: Counting(fd, "rb"))
    assert GEMINI.session_files(ID, machine.ws, machine.env)[0].path == big
    assert sum(read) < 300_000
