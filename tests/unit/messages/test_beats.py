"""messages/beats.py: a run that falls silent is named within 5 s; one that ends with a word is not."""

from __future__ import annotations

import json
import time

import pytest

from tests.servers.nats import NatsServer
from wal_agent.messages.beats import MOST, SILENT, Beats
from wal_agent.messages.connection import Connection, Setup


class Up:
    connected = True

    def serve(self, setup: Setup) -> None:
        pass


def word(state: str = "running", job: str = "web", epoch: int = 3) -> bytes:
    return json.dumps({"job": job, "epoch": epoch, "state": state, "number": 4}).encode()


def test_who_falls_silent_is_named_until_it_is_heard_again_or_ends() -> None:
    now, link = [100.0], Up()
    beats = Beats(link, lambda: now[0])
    beats.heard(word())
    now[0] += SILENT - 0.1
    assert beats.silent() == set()
    now[0] += 0.1
    assert beats.silent() == {("web", 3)} and SILENT <= 4
    link.connected = False
    assert beats.silent() == set(), "the server is away, which says nothing of the run"
    link.connected = True
    beats.heard(word())
    assert beats.silent() == set()
    now[0] += SILENT
    beats.heard(word("paused"))
    assert beats.silent() == set()


@pytest.mark.parametrize("junk", [b"", b"[]", b"{", b"\xff", b'{"job": 3}', b"[" * 20_000])
def test_what_is_no_beat_is_passed_over(junk: bytes) -> None:
    now = [0.0]
    beats = Beats(Up(), lambda: now[0])
    beats.heard(junk)
    for n in range(MOST + 10):
        beats.heard(word(job=f"j{n}"))
    now[0] += SILENT
    assert len(beats.silent()) == MOST


def test_beats_are_heard_on_a_server(server: NatsServer) -> None:
    said: list[str] = []
    listener, sender = (Connection(server.url, {}, said.append, name) for name in ("hears", "beats"))
    now = [0.0]
    beats = Beats(listener, lambda: now[0])
    until = time.monotonic() + 60
    now[0] = 0.0
    while not beats._last:
        assert time.monotonic() < until
        sender.publish("agent.web.heartbeat", word())
        time.sleep(0.02)
    now[0] += 2 * SILENT
    while ("web", 3) not in beats.silent():
        assert time.monotonic() < until
        now[0] += SILENT
    sender.publish("agent.web.status", word("closed"))
    while beats.silent():
        assert time.monotonic() < until
        time.sleep(0.02)
    for link in (listener, sender):
        link.close()
