"""restore: exact, all or nothing, never outside the agent's folder, and again after any crash (I4)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.tiers import examples
from wal_agent.agents import AGENTS
from wal_agent.agents.base import Agent, Capabilities, Env, LoggedCall, Reconciled, SessionFile
from wal_agent.agents.conversation import Records, Travels, keep_fields
from wal_agent.agents.conversation import fields as kept_fields
from wal_agent.bucket.base import MemoryBucket
from wal_agent.bucket.decorators import MeterBucket
from wal_agent.capture.session import SessionCapture
from wal_agent.errors import ConfigError, Damaged, Exhausted
from wal_agent.records import Edit, FileDelta, Payload
from wal_agent.recovery import restore_session
from wal_agent.recovery.restore_session import Restored, SessionTarget, create_session, drop_old_restores
from wal_agent.safefs import Buffer, Pieces, write_pieces
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys
from wal_agent.wal.state import FileState
from wal_agent.wal.store import JobStore

MAIN = "session.jsonl"
BLOBS = Blobs(JobStore(MemoryBucket(), Keys("shop"), rng=random.Random(1)))
NOW = 1_800_000_000.0
CALLS = (LoggedCall(1, "t", b"{}", b"{}", False),)


@dataclass(frozen=True)
class Fake:
    """An agent whose main file is chats/<session>.jsonl and whose other files keep their names."""

    home: Path
    main_file: str = MAIN
    told: bool = True
    kept: Travels = "text"
    stray: list[Path] = field(default_factory=list)

    def folder(self, env: Env) -> Path:
        return self.home

    def restore_path(self, name: str, session: str, workspace: Path, env: Env) -> Path:
        if ".." in name.split("/") or name.startswith("/"):
            raise ValueError(f"{name!r} is no file")
        return self.home / "chats" / f"{session}.jsonl" if name == MAIN else self.home / name

    def existing_files(self, session: str, workspace: Path, env: Env) -> list[Path]:
        found = [self.home / "chats" / f"{session}.jsonl", *self.stray]
        return [p for p in found if p.is_file() and not p.is_symlink()]

    def travels(self, name: str, workspace: Path) -> Travels:
        return self.kept

    def reconcile(self, main: Buffer, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        main = main[:]
        put = [c for c in calls if b"call %d\n" % c.call not in main]
        return Reconciled([main, *(b"call %d\n" % c.call for c in put)], len(put), main.count(b"\n"))

    def inject_prompt(self, main: Buffer, session: str, workspace: Path, prompt: str) -> Pieces:
        return [main, prompt.encode()]

    def not_after(self, main: Buffer, now: float) -> Pieces:
        return [main, b"by %d\n" % now]

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(inject_prompt=self.inject_prompt) if self.told else Capabilities(not_after=self.not_after)


def file(data: bytes, session: str = "s1") -> FileState:
    digest = hashlib.sha256(data).hexdigest()
    edit = Edit(offset=0, data=Payload(size=len(data), data=data))
    delta = FileDelta(time=1.0, path="x", size=len(data), sha256=digest, edits=(edit,), session=session)
    return FileState(session=session, size=len(data), sha256=digest, layers=(delta,))


class Machine:
    """An agent's home, our own folder beside it, and a restore with a number of its own each time."""

    def __init__(self, base: Path, told: bool = True) -> None:
        self.home, self.ours = base / "home", base / "ours"
        self.agent = Fake(self.home, told=told)
        self.main = self.home / "chats" / "s1.jsonl"
        self.n = 0

    def place(self) -> SessionTarget:
        self.n += 1
        return SessionTarget(cast(Agent, self.agent), "s1", Path("/w"), {}, self.ours / f"{self.n:03}")

    def restore(self, files: dict[str, bytes], notice: str = "notice\n") -> Restored:
        states = {name: file(data) for name, data in files.items()}
        return restore_session.restore(self.place(), states, BLOBS, CALLS, lambda r: notice, NOW)

    def tree(self) -> dict[str, bytes | str]:
        found: dict[str, bytes | str] = {}
        for path in sorted(self.home.rglob("*")):
            name = str(path.relative_to(self.home))
            found[name] = (
                str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else "folder"
            )
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


FILES = {MAIN: b"one\ntwo\n", "out/a/x.txt": b"big", "plans/x.txt": b"plan"}


def test_on_an_empty_machine(machine: Machine) -> None:
    got = machine.restore(FILES)
    assert machine.tree() == {
        "chats": "folder", "chats/s1.jsonl": b"one\ntwo\ncall 1\nnotice\n",
        "out": "folder", "out/a": "folder", "out/a/x.txt": b"big", "plans": "folder", "plans/x.txt": b"plan",
    }  # fmt: skip
    assert (got.files, got.size, got.extended) == ((*sorted(FILES),), 15, ())
    assert (got.reconciled.put_back, got.reconciled.messages) == (1, 2)
    assert {n: (got.kept / "exact" / n).read_bytes() for n in FILES} == FILES


def test_modes_are_private(machine: Machine) -> None:
    machine.restore(FILES)
    found = {stat.S_IMODE(p.stat().st_mode) for p in [*machine.home.rglob("*"), *machine.ours.rglob("*")]}
    assert found == {0o600, 0o700}


def test_without_a_notice_in_the_file(tmp_path: Path) -> None:
    machine = Machine(tmp_path, told=False)
    machine.restore({MAIN: b"one\n"})
    assert machine.main.read_bytes() == b"one\ncall 1\nby 1800000000\n"


def test_what_is_overwritten_is_kept_under_its_own_path(machine: Machine) -> None:
    for name in ("chats/s1.jsonl", "out/a/x.txt", "plans/x.txt", "out/other"):
        path = machine.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine " + name.encode())
    stray = machine.home / "chats" / "twin"
    stray.write_bytes(b"twin")
    machine.agent.stray.append(stray)
    got = machine.restore(FILES)
    replaced = got.kept / "replaced"
    assert {str(p.relative_to(replaced)): p.read_bytes() for p in replaced.rglob("*") if p.is_file()} == {
        "chats/s1.jsonl": b"mine chats/s1.jsonl",
        "out/a/x.txt": b"mine out/a/x.txt",
        "plans/x.txt": b"mine plans/x.txt",
        "chats/twin": b"twin",
    }
    assert not stray.exists() and (machine.home / "out/other").read_bytes() == b"mine out/other"


# ---- what a log may bring ----------------------------------------------------------------------------------------


SAID, MODE, MORE = b'{"type":"say","text":"hi"}\n', b'{"type":"mode","mode":"all"}\n', b'{"type":"say","text":"on"}\n'
ONLY_SAID = Records(lambda r: keep_fields(r, kept_fields("type text")) if r.get("type") == "say" else None)


@pytest.mark.parametrize(
    ("local", "restored", "left"),
    [
        (None, SAID + MORE, ("mode",)),  # another machine's
        (SAID + MODE + MORE, SAID + MODE + MORE, ()),  # this machine's own
        (SAID + MODE, SAID + MODE + MORE, ()),  # own up to there
        (SAID, SAID + MORE, ("mode",)),
        (MORE, SAID + MORE, ("mode",)),
    ],
)
def test_a_log_brings_conversation_only_beyond_what_is_here(
    machine: Machine, local: bytes | None, restored: bytes, left: tuple[str, ...]
) -> None:
    machine.agent = dataclasses.replace(machine.agent, kept=ONLY_SAID)
    if local is not None:
        machine.main.parent.mkdir(parents=True)
        machine.main.write_bytes(local)
    for _ in range(2):  # a crash of the first
        got = machine.restore({MAIN: SAID + MODE + MORE})
        assert machine.main.read_bytes() == restored + b"call 1\nnotice\n"
        assert got.left_out == left
        assert (got.kept / "exact" / MAIN).read_bytes() == SAID + MODE + MORE


def test_what_the_agent_added_to_a_restored_session_is_kept(machine: Machine) -> None:
    """I3: nothing of it was saved yet, and what was restored is not the log's file byte for byte."""
    machine.agent = dataclasses.replace(machine.agent, kept=ONLY_SAID)
    machine.restore({MAIN: SAID + MODE})
    machine.main.write_bytes(machine.main.read_bytes() + MORE)
    got = machine.restore({MAIN: SAID + MODE})
    assert got.extended == (MAIN,)
    assert machine.main.read_bytes() == SAID + b"call 1\nnotice\n" + MORE + b"notice\n"


@pytest.mark.parametrize(("name", "data"), [("about.json", b'{"type":"mode"}'), ("about.json", b"no JSON")])
def test_a_file_without_conversation_is_not_restored(machine: Machine, name: str, data: bytes) -> None:
    machine.agent = dataclasses.replace(machine.agent, kept=ONLY_SAID)
    machine.restore({MAIN: SAID, name: data})
    assert not (machine.home / name).exists()


def test_a_name_that_comes_twice_has_one_meaning(machine: Machine) -> None:
    machine.agent = dataclasses.replace(machine.agent, kept=ONLY_SAID)
    machine.restore({MAIN: b'{"type":"mode","mode":"all","type":"say"}\n'})
    assert machine.main.read_bytes().startswith(b'{"type":"say"}\n')


# ---- the local copy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local", "kept"),
    [
        (b"one\ntwo\nthree\n", True),
        (b"one\ntwo\n", False),
        (b"one\n", False),
        (b"One\ntwo\nthree\n", False),
        (b"", False),
    ],
)
def test_the_local_copy_wins_only_where_it_extends_the_logs(machine: Machine, local: bytes, kept: bool) -> None:
    machine.main.parent.mkdir(parents=True)
    machine.main.write_bytes(local)
    got = machine.restore({MAIN: b"one\ntwo\n"})
    assert machine.main.read_bytes() == (local if kept else b"one\ntwo\n") + b"call 1\nnotice\n"
    assert got.extended == ((MAIN,) if kept else ())
    assert (got.kept / "exact" / MAIN).read_bytes() == b"one\ntwo\n"


def test_what_another_job_wrote_is_no_more_of_this_one(machine: Machine) -> None:
    """I4: a fork's place in its source's session is the log's, though the source went on in its file, which is kept."""
    longer = b"one\ntwo\nthree, after the fork\n"
    machine.main.parent.mkdir(parents=True)
    machine.main.write_bytes(longer)
    place = replace(machine.place(), foreign=True)
    got = restore_session.restore(place, {MAIN: file(b"one\ntwo\n")}, BLOBS, CALLS, lambda r: "notice\n", NOW)
    assert got.extended == ()
    assert machine.main.read_bytes() == b"one\ntwo\ncall 1\nnotice\n"
    assert [p.read_bytes() for p in (place.kept / "replaced").rglob("*.jsonl")] == [longer]


def test_any_file_extends_an_empty_one_and_none_wins_by_that(machine: Machine) -> None:
    machine.main.parent.mkdir(parents=True)
    machine.main.write_bytes(b"of another session\n")
    assert machine.restore({MAIN: b""}).extended == ()


def test_what_a_restore_put_there_is_not_taken_for_the_agents_words(machine: Machine) -> None:
    machine.restore({MAIN: b"one\n"}, "first notice\n")
    again = machine.restore({MAIN: b"one\n"}, "second notice\n")
    assert again.extended == () and machine.main.read_bytes() == b"one\ncall 1\nsecond notice\n"
    with machine.main.open("ab") as f:
        f.write(b"answer\n")
    assert machine.restore({MAIN: b"one\n"}).extended == (MAIN,)


def test_what_only_this_machine_had_survives_one_recovery_after_another(machine: Machine) -> None:
    machine.main.parent.mkdir(parents=True)
    machine.main.write_bytes(b"one\ntwo\n")
    for n in range(restore_session.MAX_RESTORES * 2):
        got = machine.restore({MAIN: b"one\n"}, f"notice {n}\n")
        drop_old_restores(machine.ours)
        assert machine.main.read_bytes() == b"one\ntwo\ncall 1\nnotice %d\n" % n
        assert got.extended == (MAIN,)


# ---- never outside, all or nothing ---------------------------------------------------------------------------------


def raises_and_changes_nothing(machine: Machine, files: dict[str, bytes], error: type[Exception], says: str) -> None:
    before = {k: v for k, v in machine.tree().items() if v != "folder"}
    with pytest.raises(error, match=says):
        machine.restore(files)
    assert {k: v for k, v in machine.tree().items() if v != "folder"} == before


@pytest.mark.parametrize("where", ["out", "out/a", "chats"])
def test_a_link_among_the_folders_is_not_followed(machine: Machine, where: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = machine.home / where
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    raises_and_changes_nothing(machine, FILES, ConfigError, "is not a folder")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_plain_file_is_not_replaced(machine: Machine, kind: str, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"theirs")
    target = machine.home / "out/a/x.txt"
    target.parent.mkdir(parents=True)
    if kind == "link":
        target.symlink_to(tmp_path / "outside")
    elif kind == "folder":
        target.mkdir()
    else:
        os.mkfifo(target)
    with pytest.raises(ConfigError, match="is not a plain file"):
        machine.restore(FILES)
    assert not machine.main.exists() and (tmp_path / "outside").read_bytes() == b"theirs"
    assert [p for p in machine.home.rglob("*") if p.name.startswith(restore_session.STAGED)] == []


def test_a_file_where_a_folder_belongs(machine: Machine) -> None:
    machine.home.mkdir()
    (machine.home / "out").write_bytes(b"x")
    raises_and_changes_nothing(machine, FILES, ConfigError, "is not a folder")


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_names_that_lead_elsewhere(machine: Machine, name: str) -> None:
    raises_and_changes_nothing(machine, {MAIN: b"", name: b"x"}, Damaged, "cannot be restored")


def test_an_agent_that_names_a_place_outside_its_folder(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def outside(self: Fake, name: str, session: str, workspace: Path, env: Env) -> Path:
        return self.home.parent / "elsewhere" / "x"

    monkeypatch.setattr(Fake, "restore_path", outside)
    raises_and_changes_nothing(machine, {MAIN: b"x"}, ConfigError, "is outside")


def test_damage_changes_nothing(machine: Machine) -> None:
    machine.main.parent.mkdir(parents=True)
    machine.main.write_bytes(b"mine")
    states = {MAIN: file(b"one\n"), "z": FileState(session="s1", size=3, sha256="0" * 64)}
    with pytest.raises(Damaged):
        restore_session.restore(machine.place(), states, BLOBS, CALLS, lambda r: "", NOW)
    assert machine.tree() == {"chats": "folder", "chats/s1.jsonl": b"mine"}


def test_names_that_cannot_both_be(machine: Machine) -> None:
    raises_and_changes_nothing(machine, {MAIN: b"", "a": b"x", "a/b": b"y"}, Damaged, "both as a file and as a folder")


@pytest.mark.parametrize(("most_files", "most_bytes"), [(2, 1 << 30), (100, 10)])
def test_sizes_are_capped(machine: Machine, monkeypatch: pytest.MonkeyPatch, most_files: int, most_bytes: int) -> None:
    monkeypatch.setattr(restore_session, "MAX_FILES", most_files)
    monkeypatch.setattr(restore_session, "MAX_BYTES", most_bytes)
    raises_and_changes_nothing(machine, FILES, Damaged, "more or bigger")


class Killed(BaseException):
    """Stands for SIGKILL: no handler of ours runs for it."""


def stop_at(monkeypatch: pytest.MonkeyPatch, wanted: str, visit: int, how: Callable[[], None]) -> None:
    seen = 0

    def visited(name: str) -> None:
        nonlocal seen
        seen += name == wanted
        if name == wanted and seen == visit:
            how()

    monkeypatch.setattr(restore_session, "failpoint", visited)
    monkeypatch.setattr(restore_session, "failpoint", visited)


def die() -> None:
    raise Killed


@pytest.mark.parametrize(
    ("point", "visit"),
    [("restore.before_stage", 1), ("restore.staged", 1), ("restore.after_moves", 1)]
    + [("restore.between_moves", n) for n in (1, 2, 3)],
)
def test_after_a_crash_anywhere_the_next_restore_makes_it_whole(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, point: str, visit: int
) -> None:
    machine.main.parent.mkdir(parents=True)
    machine.main.write_bytes(b"mine")
    stop_at(monkeypatch, point, visit, die)
    monkeypatch.setattr(restore_session, "discard_staged", lambda moves: None)  # a killed process cleans nothing
    with pytest.raises(Killed):
        machine.restore(FILES)
    monkeypatch.undo()
    got = machine.restore(FILES)
    assert machine.tree()["chats/s1.jsonl"] == b"one\ntwo\ncall 1\nnotice\n" and got.extended == ()
    assert [n for n in machine.tree() if restore_session.STAGED in n] == []
    kept = [
        p for n in (1, 2) for p in (machine.ours / f"{n:03}" / "replaced").glob("chats/*") if p.read_bytes() == b"mine"
    ]
    assert kept, "what was overwritten must be in one of the folders"


@pytest.mark.parametrize("visit", [1, 2, 3])
def test_a_failure_between_the_moves_puts_everything_back(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, visit: int
) -> None:
    for name in ("chats/s1.jsonl", "plans/x.txt"):
        path = machine.home / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"mine")

    def fail() -> None:
        raise OSError("no space left")

    stop_at(monkeypatch, "restore.between_moves", visit, fail)
    raises_and_changes_nothing(machine, FILES, ConfigError, "no space left")


def test_a_full_disk_changes_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [2]

    def full(path: Path, pieces: Iterable[bytes | memoryview | mmap], behind: Callable[[], object] = print) -> str:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return write_pieces(path, pieces, behind)

    monkeypatch.setattr(restore_session, "write_pieces", full)
    raises_and_changes_nothing(machine, FILES, Exhausted, "No space")


# ---- the rest ------------------------------------------------------------------------------------------------------


def test_plant_makes_a_session_of_only_the_prompt(machine: Machine) -> None:
    create_session(machine.place(), "the task\n")
    assert machine.tree() == {"chats": "folder", "chats/s1.jsonl": b"the task\n"}


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    for n in range(9):
        (tmp_path / f"20260101T00000{n}Z-{n}").mkdir()
    drop_old_restores(tmp_path)
    assert [re.sub(".*-", "", p.name) for p in sorted(tmp_path.iterdir())] == ["4", "5", "6", "7", "8"]
    drop_old_restores(tmp_path / "none")


CONTENT = st.binary(max_size=20)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_exact_and_again_the_same(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    machine = Machine(tmp_path_factory.mktemp("m"), told=False)
    files = {MAIN: data.draw(CONTENT), "out/a": data.draw(CONTENT), "out/b": data.draw(CONTENT)}
    for name in data.draw(st.sets(st.sampled_from(["chats/s1.jsonl", "out/a", "out/b"]))):
        path = machine.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.draw(CONTENT))
    got = machine.restore(files)
    assert {n: (got.kept / "exact" / n).read_bytes() for n in files} == files
    for name in ("out/a", "out/b"):
        now = (machine.home / name).read_bytes()
        assert now == files[name] or (name in got.extended and now.startswith(files[name]))
    first = machine.tree()
    machine.restore(files)
    assert machine.tree() == first


def test_a_restored_session_is_not_uploaded_again(tmp_path: Path) -> None:
    """The real agent rewrites the session's head for another folder and puts calls back: what goes up is that."""
    agent, session = AGENTS["gemini"], "aaaaaaaa-0000-4000-8000-000000000000"
    head = {"sessionId": session, "projectHash": "0" * 64, "startTime": "t", "lastUpdated": "t", "kind": "main"}
    said = {"id": "m", "timestamp": "2026-01-01T00:00:00.000Z", "type": "gemini", "content": "x" * 8000}
    lines = [head, *({**said, "id": f"m{n}"} for n in range(1500))]
    there = tmp_path / "there.jsonl"
    there.write_bytes(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines))
    meter = MeterBucket(MemoryBucket())
    blobs = Blobs(JobStore(meter, Keys("shop"), rng=random.Random(1)), epoch=1)
    (delta,) = SessionCapture(session, blobs.put_payload).capture([SessionFile(agent.main_file, there)], now=1.0)
    assert isinstance(delta, FileDelta)
    captured = {agent.main_file: FileState(session=session, size=delta.size, sha256=delta.sha256, layers=(delta,))}
    before = meter.snapshot()
    env = {"HOME": str(tmp_path / "home")}
    place = SessionTarget(agent, session, tmp_path / "work", env, tmp_path / "ours" / "1")
    got = restore_session.restore(place, captured, blobs, CALLS, lambda r: "notice", NOW)
    capture = SessionCapture(session, blobs.put_payload)
    capture.resume_from(
        agent.session_files(session, tmp_path / "work", env), captured, got.kept / restore_session.EXACT
    )
    (again,) = capture.capture(agent.session_files(session, tmp_path / "work", env), now=2.0)
    assert isinstance(again, FileDelta) and again.sha256 != delta.sha256 and again.size > delta.size
    inline = sum(edit.data.size for edit in again.edits if edit.data.data is not None)
    after = meter.snapshot()
    up, down = after.put.sent - before.put.sent + inline, after.get.received - before.get.received
    assert up <= 0.05 * down and down >= 12_000_000, (up, down)
