"""supervise/session_capture.py: calls that ran before they were logged are found at the first look (I5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.agents.test_claude_session import ID, Book, told, use
from tests.unit.supervise.crew import Post, Watcher, run_context, short_folder
from wal_agent.agents import AGENTS
from wal_agent.agents.base import ToolStarting
from wal_agent.capture.session import SessionCapture
from wal_agent.records import Intent
from wal_agent.supervise import session_capture
from wal_agent.supervise.session_capture import SessionSaver

CLAUDE = AGENTS["claude"]
WS = Path("/w")


@dataclass
class Desk:
    """A saver on a real Claude Code session file."""

    home: Path
    skip: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.env = {"HOME": str(self.home)}
        self.post = Post(self.home)
        self.main = CLAUDE.restore_path(CLAUDE.main_file, ID, WS, self.env)
        self.main.parent.mkdir(parents=True, exist_ok=True)
        job = self.post.job
        capture = SessionCapture(ID, job.blobs.put_payload)
        context = replace(run_context(job, self.post.world.clock, WS, CLAUDE, skip=tuple(self.skip)), env=self.env)
        self.watcher = Watcher()
        self.saver = SessionSaver(context, self.post.gate, capture, ID, self.watcher)

    @property
    def found(self) -> list[str]:
        return self.watcher.unseen

    def announce(self, call_id: str) -> None:
        with self.post.committing():
            self.post.gate.begin_call(ToolStarting(ID, "Bash", b'{"command":"ls"}', call_id))

    def read(self, data: bytes, name: str = "") -> None:
        path = self.main.parent / ID / name if name else self.main
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)
        self.saver.save()

    def unlogged(self) -> list[tuple[str, str, str]]:
        """Of each such call in the log: the agent's id, its input, its end."""
        self.post.commit()
        ends = {end.call: f"{end.how} by {end.by}" for end in self.post.ends()}
        found = [intent for intent in self.post.intents() if intent.unlogged]
        return [(i.agent_call, (i.input.data or b"").decode(), ends.get(i.call, "open")) for i in found]


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def a_session() -> bytes:
    """A call that was announced, then one that was not, then one that was asked for only."""
    book = Book()
    book.add("user", "do it")
    book.call("known")
    book.result("known", "out")
    book.call("never", "echo one >> side")
    book.result("never", "")
    book.call("begun", "echo two >> side")
    return book.data


DATA = a_session()
SPLITS = [at for end in [i + 1 for i, b in enumerate(DATA) if b == 10] for at in (end - 3, end)]


@pytest.mark.parametrize("at", SPLITS)
def test_a_call_and_its_result_in_different_reads(folder: Path, at: int) -> None:
    """I5: wherever the reads are parted (within a line, and between any two), the call is found at the read
    that has its end, and is in the log with its tool, its input and its end; what has no end stays open."""
    desk = Desk(folder)
    desk.announce("known")
    for part in (DATA[:at], DATA[at:]):
        desk.read(part)
        whole = desk.main.read_bytes().rpartition(b"\n")[0]
        assert desk.found == (["Bash"] if b'"tool_use_id": "never"' in whole else [])
    assert desk.unlogged() == [("never", '{"command":"echo one >> side"}', "done by session")]
    desk.saver.finish()
    assert desk.unlogged()[1:] == [("begun", '{"command":"echo two >> side"}', "open")]
    assert desk.found == ["Bash"]


def test_each_line_in_a_read_of_its_own(folder: Path) -> None:
    desk = Desk(folder)
    desk.announce("known")
    ends = [0, *(i + 1 for i, b in enumerate(DATA) if b == 10)]
    for begin, end in pairwise(ends):
        desk.read(DATA[begin:end])
    assert desk.found == ["Bash"] and len(desk.unlogged()) == 1


def test_with_hooks_on_a_call_without_a_result_is_no_unlogged_one(folder: Path) -> None:
    """I8: a message asks for several calls, whose hooks fire one after the other."""
    desk = Desk(folder)
    book = Book()
    book.add("user", "do it")
    book.add("assistant", [use("first"), use("second")])
    desk.announce("first")
    desk.read(book.data)
    desk.saver.finish()
    assert desk.found == [] and desk.unlogged() == []


def test_once_hooks_are_off_a_failed_call_is_logged_and_a_refused_one_is_not(folder: Path) -> None:
    """Before that, a failure proves nothing: a call of a wrong shape fails with no hook."""
    book = Book()
    for id in ("shape", "off", "failed", "refused"):
        book.call(id)
    book.add("user", [told("shape", "InputValidationError", True), told("off", "out")])
    book.add("user", [told("failed", "Exit code 1", True), told("refused", "Permission to use Bash has been", True)])
    desk = Desk(folder)
    desk.read(book.data)
    desk.saver.finish()
    assert [(id, end) for id, _, end in desk.unlogged()] == [
        ("off", "done by session"),
        ("failed", "failed by session"),
    ]


def test_a_tool_that_goes_without_a_hook_is_not_missed(folder: Path) -> None:
    """I6: its name stands in another read than its result."""
    desk = Desk(folder, skip=frozenset({"Bash"}))
    for part in DATA.splitlines(keepends=True):
        desk.read(part)
    desk.saver.finish()
    assert desk.found == [] and desk.unlogged() == []


def test_a_subagents_call_is_found_in_its_own_file(folder: Path) -> None:
    """I5: its parent's file tells of it only when the subagent has ended."""
    desk = Desk(folder)
    desk.read(Book().data + b"{}\n")
    book = Book()
    book.call("inner", "echo one >> side", isSidechain=True)
    book.result("inner", "")
    desk.read(book.data, "subagents/agent-1.jsonl")
    assert desk.found == ["Bash"]
    assert desk.unlogged() == [("inner", '{"command":"echo one >> side"}', "done by session")]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """I9: the oldest go first; a forgotten call is found all the same, without its tool."""
    monkeypatch.setattr(session_capture, "MAX_ASKED", 2)
    desk = Desk(folder)
    book = Book()
    for id in ("a", "b", "c"):
        book.call(id)
    desk.read(book.data)
    assert [id for id, _ in desk.saver._unlogged._asked.rest()] == ["b", "c"]
    desk.read((json.dumps({"type": "user", "uuid": "u", "message": {"content": [told("a", "x")]}}) + "\n").encode())
    assert desk.found == ["a tool"]
    monkeypatch.setattr(session_capture, "MAX_ASKED_BYTES", 10)
    desk.read(book.data.replace(b'"c"', b'"d"'))
    assert [id for id, _ in desk.saver._unlogged._asked.rest()] == ["d"]


def test_its_class_is_by_the_rules(folder: Path) -> None:
    """A recovery reports the class."""
    desk = Desk(folder)
    desk.read(DATA)
    desk.post.commit()
    known, never = (r for r in desk.post.log() if isinstance(r, Intent))
    assert (known.cls, never.cls) == ("read_only", "mutation")
