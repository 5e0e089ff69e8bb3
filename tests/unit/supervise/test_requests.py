"""supervise/requests.py and messages/requests.py on a real NATS server: what is asked for is done only where the
person's own settings allow it, and a prompt is a message like any other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import StreamInfo
from nats.js.errors import NotFoundError

from tests.servers.nats import NatsServer
from tests.unit.supervise.crew import Post
from wal_agent.bucket.base import MemoryBucket
from wal_agent.config import DEFAULTS, SETTINGS, Origin
from wal_agent.errors import ConfigError, UsageError
from wal_agent.inbox import MAX_TEXT, BucketDriver, make_message, reply_id
from wal_agent.messages import check_needs
from wal_agent.messages.both import Both
from wal_agent.messages.connection import Connection
from wal_agent.messages.nats_driver import NatsDriver
from wal_agent.messages.requests import ENDED, NO_REPLY, Requests, prompt_text
from wal_agent.messages.subjects import EVENTS, INBOX, OUTBOX, persona_of
from wal_agent.records import Progress
from wal_agent.supervise.checkpoints import Checkpointer
from wal_agent.supervise.inbox import Inbox
from wal_agent.supervise.requests import RequestDesk

SECRET = "ghp_" + "a1B2" * 9
PROMPT = "agents.prompt.gemini.me.a"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    found = NatsServer(tmp_path_factory.mktemp("nats")).start()
    yield found
    found.kill()


class Run:
    """The parts of a run that answer requests, with a log in memory that is written all the time."""

    def __init__(self, folder: Path, server: NatsServer, control: str, secret: bool, synadia: bool) -> None:
        self.post = Post(folder)
        context = replace(self.post.context, settings=replace(self.post.context.settings, control=control))
        job = self.post.job.keys.job
        self.driver = NatsDriver(Connection(server.url, {}, lambda _: None, "test", NatsDriver.STREAMS), job)
        both = Both(BucketDriver(MemoryBucket(), job), self.driver, secret=secret)
        self.inbox = Inbox(context, both, 1.0)
        self.checkpoints = Checkpointer(context)
        self.inbox.control = self.carry_out
        desk = RequestDesk(context, both, self.inbox, secret)
        link = Connection(server.url, {}, lambda _: None, "test requests")
        persona = persona_of("gemini", "me", job) if synadia else None
        self.requests = Requests(link, job, "run-1", desk, context.clock, persona)
        self.job = job

    def carry_out(self, verb: str, text: str) -> str:
        done = self.checkpoints.answer({"note": text} if text else {}, by_agent=False)
        return f"{verb} {done['number']}"


@asynccontextmanager
async def a_run(
    folder: Path, server: NatsServer, control: str = DEFAULTS.control, secret: bool = False, synadia: bool = False
) -> AsyncIterator[tuple[Run, Client]]:
    run = Run(folder, server, control, secret, synadia)
    client = await nats.connect(server.url)
    try:
        with run.post.committing():
            await served(client, f"agent.{run.job}.checkpoint.restore")
            if synadia:
                await served(client, f"agents.status.gemini.me.{run.job}")
            yield run, client
    finally:
        await asyncio.to_thread(run.requests.close)
        run.driver.close()
        await client.close()


async def served(client: Client, name: str) -> None:
    """Until the run is connected: before, the server says that it has no responder."""
    for _ in range(600):
        try:
            await client.request(name, b"", timeout=30)
        except nats.errors.NoRespondersError:
            await asyncio.sleep(0.05)
        else:
            return
    pytest.fail(f"{name} is not answered")


async def made_stream(api: JetStreamContext, name: str) -> StreamInfo:
    """The stream with its subjects, once the run has made it: beside its service, not in front of it."""
    for _ in range(600):
        with suppress(NotFoundError):
            return await api.stream_info(name, subjects_filter=">")
        await asyncio.sleep(0.05)
    raise AssertionError(f"there is no stream {name}")


async def ask(client: Client, name: str, body: bytes = b"") -> tuple[Any, str]:
    """The answer, and the error code in its headers."""
    answer = await client.request(name, body, timeout=30)
    return json.loads(answer.data), (answer.headers or {}).get("Nats-Service-Error-Code", "")


def test_a_checkpoint_is_made_on_request_and_given_only_where_that_is_allowed(
    tmp_path: Path, server: NatsServer
) -> None:
    """The default gives no content away."""

    async def play() -> None:
        async with a_run(tmp_path, server) as (run, client):
            name = f"agent.{run.job}.checkpoint"
            run.post.job.writer.append(Progress(time=1.0, title=f"pay with {SECRET}"))
            made, code = await ask(client, f"{name}.create", b"before the migration")
            assert (made, code) == ({"job": run.job, "answer": "checkpoint 1"}, "")
            kept = run.post.job.writer.acked.state
            assert kept.checkpointed == 1 and kept.progress is not None and kept.progress.note == "before the migration"
            refused, code = await ask(client, f"{name}.restore")
            assert code == "400" and "control" in refused["error"] and "restore" in refused["hint"]
            run.inbox.control = None
            away, code = await ask(client, f"{name}.create")
            assert code == "500" and away["code"] == 69 and run.post.job.writer.acked.state.checkpointed == 1

    asyncio.run(play())


def test_the_newest_checkpoint_is_given_redacted_and_changes_nothing(tmp_path: Path, server: NatsServer) -> None:
    async def play() -> None:
        async with a_run(tmp_path, server, control="restore") as (run, client):
            name = f"agent.{run.job}.checkpoint"
            none, code = await ask(client, f"{name}.restore")
            assert code == "400" and "no checkpoint" in none["error"]
            refused, code = await ask(client, f"{name}.create")
            assert code == "400" and run.post.job.writer.acked.state.checkpointed == 0, refused
            run.post.job.writer.append(Progress(time=1.0, title=f"pay with {SECRET}")).wait(30)
            await asyncio.to_thread(run.carry_out, "checkpoint", "half done")
            before = run.post.job.writer.acked
            found, code = await ask(client, f"{name}.restore")
            assert code == "" and found["schema"] == "wal-agent.checkpoint/1" and found["job"] == run.job
            assert "pay with" in json.dumps(found) and SECRET not in json.dumps(found)
            assert run.post.job.writer.acked == before

    asyncio.run(play())


def test_nothing_of_an_encrypted_job_is_given(tmp_path: Path, server: NatsServer) -> None:
    async def play() -> None:
        async with a_run(tmp_path, server, control="checkpoint,restore", secret=True) as (run, client):
            assert (await ask(client, f"agent.{run.job}.checkpoint.create"))[1] == ""
            refused, code = await ask(client, f"agent.{run.job}.checkpoint.restore")
            assert code == "400" and "encrypted" in refused["error"]

    asyncio.run(play())


def test_requests_are_in_no_stream(tmp_path: Path, server: NatsServer) -> None:
    """A stream would answer them itself."""

    async def play() -> None:
        async with a_run(tmp_path, server, synadia=True) as (run, client):
            api = client.jetstream()
            for stream in (EVENTS, INBOX, OUTBOX):
                for name in stream.subjects:
                    assert not name.startswith("agents.")
            await ask(client, f"agent.{run.job}.checkpoint.create")
            found = await made_stream(api, INBOX.name)
            assert not any("checkpoint" in each for each in found.state.subjects or {})

    asyncio.run(play())


# ---- the Synadia Agent Protocol


class Answer:
    """The messages that answer one prompt, as its sender reads them."""

    def __init__(self, messages: asyncio.Queue[Msg]) -> None:
        self._messages = messages

    async def next(self) -> Any:
        """The next part; an error's code and words; None at the end."""
        message = await asyncio.wait_for(self._messages.get(), 60)
        if not message.data:
            headers = message.headers or {}
            return tuple(headers[f"Nats-Service-Error{word}"] for word in ("-Code", "")) if headers else None
        return json.loads(message.data)


async def prompt(client: Client, body: bytes, name: str) -> Answer:
    inbox, came = client.new_inbox(), asyncio.Queue[Msg]()
    await client.subscribe(inbox, cb=came.put)
    await client.publish(name, body, reply=inbox)
    return Answer(came)


def playing(
    folder: Path, server: NatsServer, act: Callable[[Run, Client, str], Awaitable[None]], secret: bool = False
) -> None:
    async def play() -> None:
        async with a_run(folder, server, synadia=True, secret=secret) as (run, client):
            await act(run, client, f"agents.prompt.gemini.me.{run.job}")

    asyncio.run(play())


def test_a_prompt_is_a_message_and_the_agents_reply_its_answer(tmp_path: Path, server: NatsServer) -> None:
    """Shapes: sections 5, 6 and 9 of the protocol."""

    async def act(run: Run, client: Client, name: str) -> None:
        answer = await prompt(client, json.dumps({"prompt": "how is it?", "more": 1}).encode(), name)
        assert await answer.next() == {"type": "status", "data": "ack"}
        await asyncio.to_thread(run.inbox.look)
        words = await asyncio.to_thread(run.inbox.take)
        assert "how is it?" in words and "`synadia`" in words
        assert await answer.next() == {"type": "status", "data": "given"}
        (message,) = run.post.job.writer.state.messages
        other = make_message("to another", run.job, reply_id(run.job, "other", "to another"))
        reply = make_message(f"fine {SECRET}", run.job, reply_id(run.job, message.id, f"fine {SECRET}"))
        for each in (other, reply):  # as `wal-agent reply` does
            await asyncio.to_thread(run.driver.publish, "reply", each)
        said = await answer.next()
        assert said["type"] == "response" and said["data"].startswith("fine ") and SECRET not in said["data"]
        assert await answer.next() is None

    playing(tmp_path, server, act)


def test_a_prompt_without_a_reply_ends_with_its_turn(tmp_path: Path, server: NatsServer) -> None:
    async def act(run: Run, client: Client, name: str) -> None:
        answer = await prompt(client, b"stop deploying", name)
        assert (await answer.next())["data"] == "ack"
        await asyncio.to_thread(run.inbox.look)
        assert "stop deploying" in await asyncio.to_thread(run.inbox.take)
        run.inbox.turn_completed()
        parts = [await answer.next()]
        while parts[-1]["type"] == "status":
            parts.append(await answer.next())
        assert parts[-1] == {"type": "response", "data": NO_REPLY} and await answer.next() is None

    playing(tmp_path, server, act)


def test_a_prompt_outlives_the_run(tmp_path: Path, server: NatsServer) -> None:
    """It stays for the next one, and its sender hears of that."""

    async def act(run: Run, client: Client, name: str) -> None:
        answer = await prompt(client, b"stop", name)
        assert (await answer.next())["data"] == "ack"
        await asyncio.to_thread(run.requests.close)
        assert await answer.next() == ("500", ENDED) and await answer.next() is None
        assert "stop" in [m.text for m in run.driver.fetch(lambda _: False)]

    playing(tmp_path, server, act)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b'{"prompt": 1}',
        b'{"prompt": "x"',
        b"{" * 5000,
        b"\xff",
        b'{"prompt": "x", "attachments": [{"filename": "a", "content": ""}]}',
        b"x" * (MAX_TEXT + 1),
    ],
)
def test_what_is_no_prompt_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        prompt_text(body)


def test_a_refused_prompt_has_an_error_and_an_end_and_is_no_message(tmp_path: Path, server: NatsServer) -> None:
    async def act(run: Run, client: Client, name: str) -> None:
        answer = await prompt(client, b'{"prompt": ""}', name)
        assert await answer.next() == ("400", "prompt missing or empty") and await answer.next() is None

    playing(tmp_path, server, act)


def test_discovery_and_status_name_the_run(tmp_path: Path, server: NatsServer) -> None:
    async def act(run: Run, client: Client, name: str) -> None:
        info, _ = await ask(client, "$SRV.INFO.agents")
        assert (info["id"], info["name"]) == ("run-1", "agents")
        assert info["metadata"] == {
            "agent": "gemini",
            "owner": "me",
            "session": run.job,
            "protocol_version": "0.3",
        }
        ends = {each["name"]: each for each in info["endpoints"]}
        assert (ends["prompt"]["subject"], ends["prompt"]["queue_group"]) == (name, "agents")
        assert ends["prompt"]["metadata"] == {"max_payload": "64KB", "attachments_ok": "false"}
        status, _ = await ask(client, ends["status"]["subject"], b"anything")
        ts = status.pop("ts")
        assert ts.endswith("Z") and status == {
            "agent": "gemini",
            "owner": "me",
            "session": run.job,
            "instance_id": "run-1",
            "interval_s": 1,
        }

    playing(tmp_path, server, act)


# ---- settings


def test_content_is_given_only_by_the_persons_word() -> None:
    """A project's file can leave verbs out, and cannot add this one by itself."""
    control = SETTINGS["control"]
    assert "restore" not in DEFAULTS.control
    assert control.read("status,restore", Origin("own", "control")) == "status,restore"
    assert control.tightens("status") and not control.tightens("status,restore")
    with pytest.raises((UsageError, ConfigError)):
        control.read("status,give", Origin("own", "control"))


def test_the_protocol_needs_a_server() -> None:
    on = replace(DEFAULTS, synadia="on")
    with pytest.raises(UsageError, match="--synadia"):
        check_needs(on)
    with pytest.raises(UsageError):
        check_needs(replace(on, messages="redis://host:1"))
    check_needs(replace(on, messages="tls://host:1"))
    check_needs(DEFAULTS)
