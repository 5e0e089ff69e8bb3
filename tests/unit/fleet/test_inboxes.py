"""`fleet watch --on-message`: a job that does not run is woken once for messages that it was not woken for before."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.fleet.leases import CRASHED, ELSEWHERE, seen, store
from tests.unit.wal.world import FakeClock
from wal_agent.bucket.base import MemoryBucket
from wal_agent.fleet.inboxes import Inboxes, WaitingJob, may_wake, waking
from wal_agent.fleet.jobs import Job, classify_job
from wal_agent.fleet.watch import (
    FIRST_PAUSE,
    KEYS,
    WOKEN,
    Act,
    Memory,
    Watcher,
    WatchOptions,
    choose_woken,
    decode_memory,
    prune_woken,
    record_acts,
)
from wal_agent.inbox import BucketDriver, Message
from wal_agent.wal.state import MessageAt, State
from wal_agent.wal.store import JobStore

CLOSED: dict[str, Any] = {"state": "closed"}


def job(name: str = "shop", **fields: Any) -> Job:
    return classify_job(seen(job=name, **fields), ELSEWHERE)


def message(id: str, verb: str = "") -> Message:
    return Message(id=id, sender="ann", sent=1.0, text="stop", verb=verb)  # type: ignore[arg-type]


class Post:
    """A bucket with jobs and messages, and watchers that look once."""

    def __init__(self, root: Path) -> None:
        self.root, self.bucket, self.clock, self.said = root, MemoryBucket(), FakeClock(), list[str]()

    def send(self, name: str, *messages: Message) -> None:
        for each in messages:
            assert BucketDriver(self.bucket, name).send(each)

    def watch(
        self, command: str = 'echo "$WAL_AGENT_JOB $FLEET_MESSAGES $FLEET_STATE" >> "$ACTED"', **more: Any
    ) -> None:
        env = {"PATH": os.environ["PATH"], "WAL_AGENT_RUNTIME_DIR": str(self.root), "ACTED": str(self.root / "acted")}
        wanted = WatchOptions(**{"command": "", "once": True, "on_message": command, **more})
        inboxes = Inboxes(lambda name: BucketDriver(self.bucket, name), self.bucket, self.said.append)
        stop, rng = threading.Event(), random.Random(1)
        Watcher(JobStore(self.bucket, KEYS, self.clock, rng), wanted, env, self.said.append, stop, inboxes=inboxes).go()

    @property
    def acted(self) -> list[str]:
        file = self.root / "acted"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def memory(self) -> Memory:
        return decode_memory(self.bucket.get(WOKEN).data)


@pytest.fixture
def post() -> Iterator[Post]:
    """In a folder with a short path: a socket's is at most some 100 bytes long."""
    with tempfile.TemporaryDirectory(prefix="w", dir="/tmp") as folder:
        yield Post(Path(folder))


def test_each_job_at_rest_is_woken_once_for_its_messages_and_again_for_a_new_one(post: Post) -> None:
    store(post.bucket, "done", **CLOSED)
    store(post.bucket, "lost", **CRASHED)
    store(post.bucket, "quiet", **CLOSED)
    post.send("done", message("1"), message("2"))
    post.send("lost", message("1"))
    post.watch()
    assert sorted(post.acted) == ["done 2 closed", "lost 1 crashed"]
    post.watch()
    assert len(post.acted) == 2, "the same messages wake nobody twice, whoever watches"
    post.send("done", message("3"))
    post.watch()
    assert post.acted[2:] == ["done 3 closed"]


def test_messages_that_a_run_took_away_or_left_wake_nobody(post: Post) -> None:
    """Else an agent that cannot be spoken to would be woken for ever."""
    store(post.bucket, "done", **CLOSED)
    post.send("done", message("1"), message("2"))
    post.watch()
    BucketDriver(post.bucket, "done").ack({message("1").identity})
    store(post.bucket, "done", **{**CLOSED, "epoch": 4})
    post.watch()
    assert post.acted == ["done 2 closed"]


def test_a_command_that_a_dead_watcher_may_have_run_is_not_run_again(post: Post) -> None:
    store(post.bucket, "done", **CLOSED)
    post.send("done", message("1"))
    began = Act(job="done", epoch=3, state="messages", mark=message("1").identity[:12], at=1.0)
    post.bucket.put(WOKEN, msgspec.json.encode(Memory(acts=(began,))))
    post.watch()
    assert post.acted == [] and "not known whether the command ran" in "\n".join(post.said)
    assert [act.outcome for act in post.memory.acts] == ["unknown"]


def test_what_fails_is_tried_again_later(post: Post) -> None:
    store(post.bucket, "done", **CLOSED)
    post.send("done", message("1"))
    for after, runs in ((0.0, 1), (1.0, 1), (FIRST_PAUSE, 2), (1e6, 2)):
        post.clock.at += after
        post.watch('echo x >> "$ACTED"; exit 3', tries=2)
        assert len(post.acted) == runs


def test_what_on_crash_starts_is_left_to_it(post: Post) -> None:
    store(post.bucket, "lost", **CRASHED)
    post.send("lost", message("1"))
    post.watch(command="true")
    assert post.acted == []


@pytest.mark.parametrize(
    ("fields", "wakes"),
    [
        ({"state": "closed"}, True),
        ({"state": "released", "reason": "drained (SIGTERM)"}, True),
        ({"state": "held"}, False),
        ({"state": "unlocked"}, False),
    ],
)
def test_a_job_that_runs_or_needs_a_person_is_not_woken(fields: dict[str, Any], wakes: bool) -> None:
    assert may_wake(job(**fields)) is wakes


def test_a_pause_is_ended_by_resume_alone() -> None:
    paused = msgspec.structs.replace(job(state="released"), state="paused")
    assert waking(paused, [message("1"), message("2", "drain")]) is None
    resume = message("3", "resume")
    assert waking(paused, [message("1"), resume]) == WaitingJob(paused, (resume.identity[:12],))


def test_what_the_log_has_as_seen_wakes_nobody(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ended leaves the objects of its last messages to the next one."""
    store(post.bucket, "done", **CLOSED)
    post.send("done", message("1"))
    at = MessageAt(sender="ann", id="1", sent=1.0, time=2.0, epoch=3, seen=3.0)

    class Logged:
        state = State(messages=(at,))

    monkeypatch.setattr("wal_agent.fleet.inboxes.replay", lambda bucket, keys: Logged)
    post.watch()
    assert post.acted == [] and [act.outcome for act in post.memory.acts] == ["done"]
    post.send("done", message("2"))
    post.watch()
    assert post.acted == ["done 2 closed"]


def test_one_act_is_kept_for_each_job_that_is_there() -> None:
    acts = [Act(job="a", epoch=1, state="messages", mark=mark, outcome="done", at=n) for n, mark in enumerate("xyz")]
    memory = record_acts(Memory(), [*acts, Act(job="gone", epoch=1, state="messages", mark="x", outcome="done")])
    assert [(act.job, act.mark) for act in prune_woken(memory, [job("a")]).acts] == [("a", "z")]
    many = [WaitingJob(job(f"j{n}"), ("x",)) for n in range(9)]
    assert len(choose_woken(Memory(), many, 1.0, most=4, tries=3)) == 4
