"""Where the words come from that only onlookers hear: acknowledged saves, records, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.supervise.crew import Post, ScriptAgent, Watcher, run_context, until
from tests.unit.wal.world import World, drain, end, intent
from wal_agent.bucket.base import MemoryBucket
from wal_agent.capture.session import SessionCapture
from wal_agent.clock import SystemClock
from wal_agent.events import Event, Saved
from wal_agent.records import AnyRecord, Workspace
from wal_agent.supervise import lease_keeper as module
from wal_agent.supervise.lease_keeper import Housekeeping
from wal_agent.supervise.session_capture import SessionSaver
from wal_agent.supervise.worktree import WorktreeSaver
from wal_agent.wal.retention import SnapshotPolicy
from wal_agent.wal.state import State
from wal_agent.wal.writer import WriterListener


def test_the_writer_tells_of_records_once_and_behind_those_who_wait() -> None:
    world = World()
    job = world.open("a")
    heard: list[tuple[list[str], int]] = []

    class Listener(WriterListener):
        def on_acked(self, records: Sequence[AnyRecord], state: State) -> None:
            assert ticket.status == "acked", "no hook waits for who looks on"
            heard.append(([type(r).__name__ for r in records], len(state.open)))

    job.writer.add_listener(Listener())
    ticket = job.writer.append(intent(1), intent(2))
    world.bucket.fates = ["lost"]
    assert (job.writer.commit_once(), heard) == ("undecided", [])
    drain(job)
    ticket = job.writer.append(end(1))
    drain(job)
    assert heard == [(["Intent", "Intent"], 2), (["End"], 1)]


class Desk:
    def __init__(self, folder: Path) -> None:
        self.post = Post(folder)
        self.heard: list[Event] = []
        self.agent = ScriptAgent(folder / "home")
        job, clock = self.post.job, self.post.world.clock
        context = run_context(job, clock, agent=self.agent.agent, emit=self.heard.append)
        capture = SessionCapture("one", job.blobs.put_payload)
        self.saver = SessionSaver(context, self.post.gate, capture, "one", Watcher())

    def said(self) -> list[Event]:
        said, self.heard[:] = list(self.heard), []
        return said


def test_a_session_is_saved_when_the_bucket_has_it(tmp_path: Path) -> None:
    """From the look at it to its acknowledgement; the bytes that were sent, not the session's."""
    desk = Desk(tmp_path)
    desk.agent.write("one", "x" * 999 + "\n")
    desk.saver.save()
    assert desk.said() == [], "it waits in this process"
    desk.saver.save()
    assert desk.said() == [], "nothing new, but not all is there yet"
    desk.post.world.clock.sleep(2)
    desk.post.commit()
    assert desk.said() == [Saved("session", 1000, 2.0)]
    desk.saver.save()
    assert desk.said() == [Saved("session", 0, 0.0)]
    desk.agent.write("one", "y\n")
    desk.saver.save()
    desk.post.commit()
    assert desk.said() == [Saved("session", 2, 0.0)]
    desk.saver.close()
    desk.saver.save()
    assert desk.said() == []


class Captured:
    """Gives the records that it was made with, one after the other."""

    many_waiting = False
    pending: None = None

    def __init__(self, *records: tuple[Workspace, ...]) -> None:
        self.records = list(records)

    def acked(self, logged: State) -> None:
        return

    def capture(self, holds: int, now: float, also: tuple[int, ...] = ()) -> tuple[Workspace, ...]:
        return self.records.pop(0)

    def commit(self) -> None:
        return


def test_a_workspace_is_saved_when_the_bucket_has_it(tmp_path: Path) -> None:
    post, heard = Post(tmp_path), list[Event]()
    tree = Captured((Workspace(time=1.0, holds=0, commit="c1"),), (), ())
    clock = post.world.clock
    context = run_context(post.job, clock, emit=heard.append)
    saver = WorktreeSaver(context, post.gate, tree, print)  # type: ignore[arg-type]
    saver.save()
    saver.save()
    assert heard == []
    clock.sleep(3)
    post.commit()
    saver.save()
    assert heard == [Saved("workspace", 0, 3.0), Saved("workspace", 0, 0.0)]


def test_a_snapshot_is_told_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK", 0.005)
    world, heard = World(), list[Event]()
    job = world.open("a")
    keeper = Housekeeping(world.bucket, job, tmp_path / "m", lambda: True, print, heard.append, SystemClock())
    keeper._snapshots._policy = SnapshotPolicy(segments=1)
    job.writer.append(intent(1))
    drain(job)
    keeper.start()
    until(lambda: heard, "a snapshot")
    keeper.stop()
    first = heard[0]
    assert isinstance(first, Saved) and first.what == "snapshot"
    assert isinstance(world.inner, MemoryBucket)
    sizes = [e.size for e in world.inner.list("") if "/snap" in e.key]
    assert first.size in sizes
