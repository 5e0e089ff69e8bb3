"""What peers read of a run on a NATS server: status, checkpoints, heartbeats."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from typing import Any, Literal

import nats
import pytest

from tests.servers.nats import NatsServer
from wal_agent import events
from wal_agent.messages.connection import Connection
from wal_agent.messages.status import LIVE, Status, StatusPublisher, follow
from wal_agent.messages.subjects import EVENTS, job_token, persona_of, subject

TAKEN = events.LeaseTaken("web.1", "gs://b", "run-1", 4, "dead", "vm", "gemini", "1", "/w", 30.0)
SECRET = "ghp_" + "a1B2" * 9


def after(*seen: events.Event) -> Status:
    status = Status("web.1", "gemini")
    for event in seen:
        status, _ = follow(status, event)
    return status


def test_a_crash_is_seen_as_recovering_until_the_agent_works() -> None:
    assert after(TAKEN).state == "recovering"
    assert after(TAKEN, events.Ready()).state == "running"


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (events.DrainStarted("sigterm", 20.0), "draining"),
        (events.Paused(99.0, "quota"), "paused"),
        (events.Halted(79, "a person is needed", ""), "halted"),
        (events.LeaseLost("taken over"), "fenced"),
        (events.LeaseSettled("closed", "done"), "closed"),
        (events.LeaseSettled("released", "died"), "released"),
    ],
)
def test_each_way_to_stop_is_a_state(event: events.Event, state: str) -> None:
    assert after(TAKEN, events.Ready(), event).state == state


def test_a_pause_is_no_release_and_ends_with_the_next_start() -> None:
    settled = events.LeaseSettled("released", "paused", until=99.0)
    assert after(TAKEN, events.Paused(99.0, "quota"), settled).state == "paused"
    again = after(TAKEN, events.Paused(99.0, "quota"), settled, TAKEN)
    assert (again.state, again.until, again.why) == ("recovering", 0.0, "")


@pytest.mark.parametrize("state", ["released", "left"])
def test_what_a_person_must_know_is_not_hidden_by_the_end_of_the_lease(state: Literal["released", "left"]) -> None:
    settled = events.LeaseSettled(state, "the end")
    assert after(TAKEN, events.Halted(79, "a person is needed", ""), settled).state == "halted"
    assert after(TAKEN, events.LeaseLost("taken over"), settled).state == "fenced"
    assert after(TAKEN, settled).state == "released"


def test_no_secret_leaves() -> None:
    for event in (events.Halted(78, f"key {SECRET}", ""), events.LeaseLost(SECRET), events.CheckpointFailed(SECRET)):
        status, words = follow(Status("j", "a"), event)
        assert SECRET not in str(status) + str(words)


def test_a_job_is_one_token() -> None:
    assert subject("a.b", "status") == "agent.a~b.status"
    assert job_token("a.b") != job_token("a-b")
    assert persona_of("gemini", "me > *.x", "a.b").subject("hb") == "agents.hb.gemini.me-----x.a~b"


class Recorded:
    def __init__(self) -> None:
        self.sent: deque[tuple[str, dict[str, Any], bool]] = deque()
        self.came = threading.Event()

    def publish(self, subject: str, data: bytes, keep: bool = False) -> None:
        self.sent.append((subject, json.loads(data), keep))
        if subject.startswith("agents.hb."):
            self.came.set()

    def close(self) -> None:
        pass


def test_a_beat_comes_only_from_a_run_that_holds_the_lease_and_does_not_hang() -> None:
    link, asked, alive = Recorded(), threading.Event(), [False]

    def is_alive() -> bool:
        asked.set()
        return alive[0]

    publisher = StatusPublisher(link, "web", "gemini", "me", lambda: 1000.0, is_alive, every=0.005)
    publisher.on_event(1.0, TAKEN)
    assert asked.wait(30) and not link.came.is_set()
    alive[0] = True
    assert link.came.wait(30)
    publisher.close()
    beats = [body for name, body, keep in link.sent if name == "agent.web.heartbeat" and not keep]
    assert (beats[0]["state"], beats[0]["epoch"], beats[0]["run"]) == ("recovering", 4, "run-1")
    shape = next(body for name, body, _ in link.sent if name == "agents.hb.gemini.me.web")
    assert shape == {
        "agent": "gemini",
        "owner": "me",
        "session": "web",
        "instance_id": "run-1",
        "ts": "1970-01-01T00:16:40.000Z",
        "interval_s": 1,
    }
    assert not {"paused", "halted", "fenced", "closed", "released"} & set(LIVE)


def test_a_peer_that_was_not_there_reads_status_and_checkpoints_later(server: NatsServer) -> None:
    """Events go into a stream; the beats do not."""
    said: list[str] = []
    link = Connection(server.url, {}, said.append, "test", (EVENTS,))
    publisher = StatusPublisher(link, "web.1", "gemini", "me", lambda: 1000.0, lambda: True, every=0.05)
    publisher.on_event(1.0, TAKEN)  # the connection may still be on its way
    publisher.on_event(2.0, events.CheckpointRestored(3, 9.0, False))
    publisher.on_event(3.0, events.CheckpointFailed("no room"))
    publisher.on_event(4.0, events.Ready())
    publisher.on_event(5.0, events.CheckpointCreated(4, "periodic", 900))

    async def read() -> list[tuple[str, dict[str, Any]]]:
        client = await nats.connect(server.url)
        beats = await client.subscribe("agent.web~1.heartbeat")
        beat = json.loads((await beats.next_msg(30)).data)
        assert (beat["job"], beat["epoch"]) == ("web.1", 4)
        api = client.jetstream()
        events_ = await api.subscribe("agent.web~1.>", stream=EVENTS.name, ordered_consumer=True)
        found = []
        for _ in range(5):
            message = await events_.next_msg(30)
            found.append((message.subject.partition("web~1.")[2], json.loads(message.data)))
        await client.close()
        return found

    found = asyncio.run(read())
    publisher.close()
    names = [name for name, _ in found]
    assert names == ["status", "checkpoint.restored", "checkpoint.failed", "status", "checkpoint.created"]
    assert [body["state"] for name, body in found if name == "status"] == ["recovering", "running"]
    assert found[-1][1] == {"number": 4, "trigger": "periodic", "size": 900, "job": "web.1", "epoch": 4, "time": 5.0}
    assert said == []
