"""Whoever may publish on some subjects of a NATS server does not get the rights of a run on the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from tests.servers.nats import NatsServer
from tests.unit.supervise.test_requests import Run, a_run, ask, made_stream
from wal_agent.messages import nats_driver
from wal_agent.messages.connection import Connection
from wal_agent.messages.nats_driver import NatsDriver
from wal_agent.messages.requests import return_address
from wal_agent.messages.subjects import INBOX


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    found = NatsServer(tmp_path_factory.mktemp("nats")).start()
    yield found
    found.kill()


async def kept(client: Client) -> int:
    """Messages that the stream of all jobs' messages holds."""
    return (await client.jetstream().stream_info(INBOX.name)).state.messages


def test_an_answer_goes_to_no_subject_that_the_asker_chose(tmp_path: Path, server: NatsServer) -> None:
    """NATS lets who asks name any subject for the answer: another job's inbox, or the server's own API."""

    async def attack(run: Run, client: Client) -> None:
        await made_stream(client.jetstream(), INBOX.name)
        await client.jetstream().publish("agent.another.inbox", b"a person's words")
        prompt, status = (f"agents.{verb}.gemini.me.{run.job}" for verb in ("prompt", "status"))
        asked = [f"agent.{run.job}.checkpoint.create", status, "$SRV.PING", "$SRV.INFO.agents", "$SRV.STATS.agents"]
        for target in ("agent.another.inbox", f"$JS.API.STREAM.PURGE.{INBOX.name}", "$KV.walagent-another.key"):
            for name in asked:
                await client.publish(name, b"run this", reply=target)
            await client.publish(prompt, b'{"prompt": ""}', reply=target)
        for name in asked:  # behind those of each subscription
            await ask(client, name)
        assert (await client.request(prompt, b'{"prompt": ""}', timeout=30)).headers
        assert await kept(client) == 1

    async def play() -> None:
        async with a_run(tmp_path, server, synadia=True) as (run, client):
            await attack(run, client)

    asyncio.run(play())


def test_a_look_reads_no_more_than_its_share_of_long_messages(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """34.8: a message may have what the server allows, 64 MB for example; a look reads hundreds. What is behind the
    long ones comes with a later look."""
    monkeypatch.setattr(nats_driver, "MAX_BYTES", 300_000)
    link = Connection(server.url, {}, lambda _: None, "test", NatsDriver.STREAMS)
    driver = NatsDriver(link, "long")
    read: list[int] = []
    whole = driver._read

    async def counted(client: Client, most: int) -> Any:
        found = await whole(client, most)
        read.append(sum(len(raw.data or b"") for raw in found[0]))
        return found

    monkeypatch.setattr(driver, "_read", counted)

    async def send(client: Client) -> None:
        for body in [b"x" * 200_000] * 6 + [b"a person's words"]:
            await client.jetstream().publish("agent.long.inbox", body)

    try:
        driver.fetch(lambda _: False)
        link.call(send, 30.0)
        found: list[str] = []
        while not found:
            found = [message.text for message in driver.fetch(lambda _: False)]
    finally:
        driver.close()
    assert found == ["a person's words"] and max(read) == 400_000, read


def test_an_inbox_is_known_by_its_first_sign() -> None:
    """Also that of a user with a prefix of their own (`_INBOX_ann`), or of another account (`_R_`)."""
    for reply in ("_INBOX.a.b", "_INBOX_ann.x", "_R_.abc.def"):
        assert return_address(reply) == reply
    for reply in ("", "agent.b.inbox", "agents.prompt.a.b.c", "$JS.API.STREAM.DELETE.X", "$KV.a.b", "$SYS.a", ">"):
        assert return_address(reply) == ""
