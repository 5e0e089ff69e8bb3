"""Answer requests to a job on a NATS server: for checkpoints, and of the Synadia Agent Protocol 0.3 (docs/NATS.md).

No stream covers what is requested: it would answer the request itself. `Answers`, the run, says what may be done, and
does it. Everything that is read is hostile.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER, Request
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from wal_agent import __version__, msgspec_compat
from wal_agent.clock import Clock
from wal_agent.concurrency import start_daemon
from wal_agent.errors import Unavailable, UsageError, WalAgentError
from wal_agent.inbox import MAX_TEXT, Message, reply_id
from wal_agent.messages.connection import CLOSE, FAILURES, Connection
from wal_agent.messages.status import synadia_beat
from wal_agent.messages.subjects import Persona, subject
from wal_agent.redact import redact
from wal_agent.text import shorten

T = TypeVar("T")
Progress = Literal["waits", "given", "seen"]
MAX_WAITING: Final = 16  # requests for checkpoints that wait for their turn; the server drops others
MAX_PROMPTS: Final = 32  # prompts that wait for an answer
LOOK: Final = 0.25  # seconds between two looks at what the log holds of a prompt
GRACE: Final = 2.0  # seconds for a reply that was sent just before its turn ended
KEEP_ALIVE: Final = 20.0  # seconds between two "ack" chunks; callers give up after 60 of silence
GROUP: Final = "agents"  # the queue group that the protocol asks for
ENDED: Final = "the run ended before its agent answered; the message is kept, and the next run reads it"
NO_REPLY: Final = "The agent has read the message and ended its turn without a reply (wal-agent reply)."

_message = msgspec_compat.of_json(Message)


class Answers(Protocol):
    """What a run does about requests. Methods may take seconds, and raise WalAgentError where they refuse."""

    def create_checkpoint(self, note: str) -> dict[str, object]:
        """Make a checkpoint; it is durable on return."""

    def newest_checkpoint(self) -> Any:
        """Return the newest valid checkpoint, as JSON has it."""

    def send(self, text: str) -> Message:
        """Put a message into the job's inbox; it is durable on return."""

    def progress(self, message: Message) -> Progress:
        """Return what the log holds of a message; at once."""


def prompt_text(data: bytes) -> str:
    """Return the text of a prompt: a JSON envelope where the first sign is `{`, else plain text (sections 5.1, 5.3).
    ValueError: it is none, or has what is not taken. Pure."""
    if len(data) > MAX_TEXT:
        raise ValueError(f"the prompt has more than {MAX_TEXT >> 10} KiB")
    try:
        text: object = data.decode()
        if data.lstrip(b" \t\r\n").startswith(b"{"):
            envelope = json.loads(data)
            if envelope.get("attachments"):
                raise ValueError("attachments are not supported by this endpoint")
            text = envelope.get("prompt")
    except RecursionError as error:
        raise ValueError("the envelope is malformed") from error
    except UnicodeDecodeError as error:
        raise ValueError("the prompt is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError("the envelope is malformed") from error
    if not isinstance(text, str) or not text.strip():
        raise ValueError("prompt missing or empty")
    return text


def chunk(kind: Literal["status", "response"], data: str) -> bytes:
    """Return a part of the answer to a prompt (section 6.2). Pure."""
    return json.dumps({"type": kind, "data": data}).encode()


def return_address(reply: str) -> str:
    """Return where an answer may go: an inbox, which begins with `_`. Who asks names the subject, and the run would
    publish there with its own rights: into another job's inbox, or on the server's API. Pure."""
    return reply if reply.startswith("_") else ""


class _Asked(Msg):
    """A message of which nothing is sent elsewhere than to an inbox, also not by the library (`$SRV.PING`)."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.reply = return_address(self.reply)


class Requests:
    """The requests to one run. `persona`: under whose name the Synadia Agent Protocol is answered, None: not."""

    def __init__(
        self, link: Connection, job: str, run: str, answers: Answers, clock: Clock, persona: Persona | None
    ) -> None:
        self._link, self._job, self._run, self._answers = link, job, run, answers
        self._clock, self._persona = clock, persona
        self._prompts: dict[asyncio.Task[None], str] = {}  # with the id of its message, "" before there is one
        self._replies: dict[str, asyncio.Future[str]] = {}  # by the id of the message that they answer
        self._over = False
        link.serve(self._subscribe)

    def close(self) -> None:
        """End the answers to prompts with a word on it, and let the connection go."""
        with suppress(WalAgentError):
            if self._link.connected:
                self._link.call(self._end, CLOSE / 2)
        self._link.close(CLOSE / 2)

    async def _end(self, client: Client) -> None:
        self._over = True
        await asyncio.gather(*self._prompts, return_exceptions=True)

    async def _subscribe(self, client: Client) -> None:
        client.msg_class = _Asked
        for verb, act in (("create", self._create), ("restore", self._restore)):
            name = subject(self._job, "checkpoint", verb)
            await client.subscribe(name, cb=partial(self._answer, client, act), pending_msgs_limit=MAX_WAITING)
        if self._persona is not None:
            await client.subscribe(subject(self._job, "outbox", "reply", "*"), cb=self._replied)
            await self._serve_agents(client, self._persona)

    # ---- checkpoints

    def _create(self, data: bytes) -> object:
        return self._answers.create_checkpoint(data.decode("utf-8", "replace").strip())

    def _restore(self, data: bytes) -> object:
        return self._answers.newest_checkpoint()

    async def _answer(self, client: Client, act: Callable[[bytes], object], message: Msg) -> None:
        if not message.reply:
            return  # the caller asked for no answer
        headers: dict[str, str] = {}
        try:
            body = await _in_thread(partial(act, message.data))
        except WalAgentError as error:
            what = redact(error.what)
            body = {"error": what, "hint": redact(error.hint), "code": error.exit_code}
            headers = {ERROR_CODE_HEADER: _code(error), ERROR_HEADER: _one_line(what)}
        with suppress(*FAILURES):
            await client.publish(message.reply, json.dumps(body).encode(), headers=headers or None)

    # ---- the Synadia Agent Protocol

    async def _serve_agents(self, client: Client, persona: Persona) -> None:
        release = re.match(r"\d+\.\d+\.\d+", __version__)
        metadata = {
            "agent": persona.agent,
            "owner": persona.owner,
            "session": persona.session,
            "protocol_version": "0.3",
        }
        described = f"job {self._job} under wal-agent"
        service = Service(client, ServiceConfig("agents", release[0] if release else "0.0.0", described, metadata))
        service._id = self._run  # the heartbeats' instance_id, by which callers know it
        await service.start()
        takes = {"max_payload": f"{MAX_TEXT >> 10}KB", "attachments_ok": "false"}
        prompt = EndpointConfig("prompt", self._on_prompt, GROUP, persona.subject("prompt"), takes)
        await service.add_endpoint(prompt)
        await service.add_endpoint(EndpointConfig("status", self._on_status, GROUP, persona.subject("status")))
        await client.flush()

    async def _on_status(self, request: Request) -> None:
        assert self._persona is not None
        beat = synadia_beat(self._persona, self._run, self._clock.now())
        with suppress(*FAILURES):
            await request.respond(json.dumps(beat).encode())

    async def _on_prompt(self, request: Request) -> None:
        """Answer in a task: the service waits for the end of this before it takes the next one."""
        full = len(self._prompts) >= MAX_PROMPTS
        task = asyncio.ensure_future(self._refuse(request) if full else self._prompt(request))
        self._prompts[task] = ""
        task.add_done_callback(self._prompts.pop)

    async def _refuse(self, request: Request) -> None:
        with suppress(*FAILURES):
            await request.respond_error("500", f"{MAX_PROMPTS} prompts wait already")
            await request.respond(b"")

    async def _prompt(self, request: Request) -> None:
        """Accepted (a first "ack"), given to the agent, its reply, and the end: a message without body and headers."""
        with suppress(*FAILURES):
            try:
                await self._take(request, prompt_text(request.data))
            except (ValueError, UsageError) as error:
                await request.respond_error("400", _one_line(getattr(error, "what", str(error))))
            except WalAgentError as error:
                await request.respond_error("500", _one_line(redact(error.what)))
            finally:
                await request.respond(b"")

    async def _take(self, request: Request, text: str) -> None:
        message = await _in_thread(partial(self._answers.send, text))
        reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._replies[message.id] = reply
        try:
            await request.respond(chunk("status", "ack"))
            await self._follow(request, message, reply)
        finally:
            self._replies.pop(message.id, None)

    async def _follow(self, request: Request, message: Message, reply: asyncio.Future[str]) -> None:
        loop = asyncio.get_running_loop()
        known: Progress = "waits"
        silent = loop.time()
        until = float("inf")
        while not reply.done() and loop.time() < until:
            if self._over and known == "seen":
                break
            if self._over:
                raise Unavailable(ENDED)
            await asyncio.wait([reply], timeout=LOOK)
            now = self._answers.progress(message)
            if now != known:
                until = loop.time() + GRACE if now == "seen" else until
            if now != known or loop.time() - silent > KEEP_ALIVE:
                await request.respond(chunk("status", now if now != known else "ack"))
                known, silent = now, loop.time()
        await request.respond(chunk("response", reply.result() if reply.done() else NO_REPLY))

    async def _replied(self, message: Msg) -> None:
        """The job has published an answer. Its id says to which message."""
        try:
            said = _message.decode(message.data)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return
        for id, reply in self._replies.items():
            if said.id == reply_id(self._job, id, said.text) and not reply.done():
                reply.set_result(redact(said.text))


async def _in_thread(act: Callable[[], T]) -> T:
    """Return what `act` returns in a thread, which keeps no program alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result: T | None = None
        problem: BaseException | None = None
        try:
            result = act()
        except WalAgentError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - whoever asked hears of it, and the run goes on
            problem = Unavailable(f"The request failed: {type(error).__name__}.")
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, problem)

    start_daemon("request", work)
    return await done


def _code(error: WalAgentError) -> str:
    return "400" if isinstance(error, UsageError) else "500"


def _one_line(text: str) -> str:
    """A header's value."""
    return shorten(" ".join(text.split()), 200)
