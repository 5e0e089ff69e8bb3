"""Keep a connection to a NATS server in a thread of its own, whose loop alone touches the client.

A server that is away blocks nobody: `publish` returns at once, `call` raises Unavailable at its own deadline, and the
thread tries again for as long as the process lives. A person reads of it once per outage.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StorageType, StreamConfig
from nats.js.errors import APIError

from wal_agent.concurrency import start_daemon
from wal_agent.errors import ConfigError, Denied, Unavailable
from wal_agent.messages.subjects import Stream
from wal_agent.text import shorten

T = TypeVar("T")
Setup = Callable[[Client], Awaitable[None]]
CONNECT: Final = 5.0  # seconds for one try
RETRY: Final = (0.2, 1.0, 2.0, 5.0)  # seconds between two tries; the last one goes on
PING: Final = 5  # seconds; a server that does not answer two of them is gone
MAX_PENDING: Final = 64  # events that wait for a server; the oldest go first
FLUSH: Final = 1.0  # seconds for what was published last, at the end
CLOSE: Final = 2.0  # seconds for all of the end
CLOSE_AT_ONCE: Final = 0.2  # where nothing is left to be sent
MAX_REPORTS: Final = 6  # lines on outages in one process

FAILURES: Final = (OSError, nats.errors.Error, asyncio.TimeoutError, ValueError)
"""What the client raises where a server is away, refuses, or talks nonsense."""


class Connection:
    """Connect in the background. `streams`: are created at each connection where they are missing."""

    def __init__(
        self,
        url: str,
        env: Mapping[str, str],
        say: Callable[[str], None],
        name: str,
        streams: Sequence[Stream] = (),
    ) -> None:
        """ConfigError: a file that NATS_* names cannot be read."""
        self._servers = [each.strip() for each in url.split(",") if each.strip()]
        self._options = login_options(self._servers, env)
        self._say, self._name, self._streams = say, name, tuple(streams)
        self._pending: deque[tuple[str, bytes]] = deque(maxlen=MAX_PENDING)
        self._setups: list[Setup] = []
        self._lock = threading.Lock()
        self._up = threading.Event()  # there is a client, and it is connected
        self._tried = threading.Event()  # the first try has come to its end
        self._client: Client | None = None
        self._problem = ""
        self._reports = 0
        self._closed = False
        self.number = 0  # counts connections: what was known of the server before may not hold behind a new one
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._lost = asyncio.Event()
        self._thread = start_daemon("nats", self._run)

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    @property
    def problem(self) -> str:
        """Why there is no connection; "" where there is one."""
        return "" if self.connected else self._problem

    def publish(self, subject: str, data: bytes, keep: bool = False) -> None:
        """Publish without waiting or an acknowledgement. `keep`: what cannot be sent now is sent with the next
        connection; without it, it is dropped."""
        if self._closed:
            return
        with self._lock:
            if not self.connected:
                if keep:
                    self._pending.append((subject, data))
                return
        with suppress(RuntimeError):  # the loop has ended
            asyncio.run_coroutine_threadsafe(self._publish(subject, data, keep), self._loop)

    def watch(self, subject: str, wake: Callable[[], None]) -> None:
        """Call `wake` in the thread of the connection, which it must not hold up, for each message on `subject`, and
        once with each new connection, as one may have been missed."""

        async def subscribe(client: Client) -> None:
            async def came(message: Msg) -> None:
                wake()

            with suppress(*FAILURES):
                await client.subscribe(subject, cb=came)
                await client.flush(int(CONNECT))
            wake()

        self.serve(subscribe)

    def serve(self, setup: Setup) -> None:
        """Run `setup` in the loop with each connection, to subscribe there. What it raises of FAILURES ends it, and the
        connection stays."""
        with self._lock:
            self._setups.append(setup)
            client = self._client if self.connected else None
        if client is not None:
            with suppress(RuntimeError):  # the loop has ended
                asyncio.run_coroutine_threadsafe(_set_up(setup, client), self._loop)

    def call(self, act: Callable[[Client], Awaitable[T]], within: float) -> T:
        """Return what `act` returns in the loop. Unavailable: there is no connection, or no answer within `within`
        seconds (the request may have had its effect); Denied: the server does not allow it. What the server answers
        else is raised as it is (nats.js.errors.APIError)."""
        if not self._tried.is_set():
            self._tried.wait(min(within, CONNECT))
        client = self._client
        if client is None or not self.connected:
            raise Unavailable(f"The NATS server cannot be reached{self._because()}.", "It is tried again.")
        work = asyncio.run_coroutine_threadsafe(_timed(act, client, within), self._loop)
        try:
            return work.result(within + 1.0)
        except APIError:
            raise
        except (FutureTimeout, CancelledError, RuntimeError, *FAILURES) as error:
            work.cancel()
            if "permissions violation" in str(error).lower():
                raise Denied(f"The NATS server does not allow it: {shorten(str(error), 200)}.") from error
            raise Unavailable(f"The NATS server did not answer: {_words(error)}.", "It is tried again.") from error

    def close(self, within: float = CLOSE) -> None:
        """Send what was published, and end the thread; wait for that at most `within` seconds."""
        self._closed = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(within)

    # ---- in the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._keep_connected())
        finally:
            self._up.clear()
            self._tried.set()
            with suppress(RuntimeError):
                tasks = asyncio.all_tasks(self._loop)
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    async def _keep_connected(self) -> None:
        failed = 0
        while not self._stop.is_set():
            self._lost.clear()
            client = Client()
            connecting = asyncio.ensure_future(self._connect(client))
            try:
                await _either(CONNECT, self._stop, or_done=connecting)
                if not connecting.done():
                    connecting.cancel()
                    raise TimeoutError("no answer")
                connecting.result()
            except FAILURES as error:
                self._report_loss(_words(error))
                await _end(client)
            else:
                failed = 0
                await self._serve(client)
            self._tried.set()
            await _either(RETRY[min(failed, len(RETRY) - 1)], self._stop)
            failed += 1

    async def _connect(self, client: Client) -> None:
        async def lost() -> None:
            self._up.clear()
            self._lost.set()

        seen: list[Exception] = []

        async def note(error: Exception) -> None:
            """Without this, the client logs to stderr, which is the agent's screen."""
            seen[:] = [error]

        connecting = client.connect(
            self._servers,
            name=self._name,
            error_cb=note,
            closed_cb=lost,
            disconnected_cb=lost,
            allow_reconnect=False,  # a new client is made here, so that what is known of the server begins anew
            connect_timeout=int(CONNECT),
            max_reconnect_attempts=1,  # so each server is tried twice; 0 means for ever
            reconnect_time_wait=0.1,  # type: ignore[arg-type] # it is only slept
            ping_interval=PING,
            max_outstanding_pings=2,
            **self._options,
        )
        try:
            await connecting
        except nats.errors.NoServersError as error:
            raise (seen[-1] if seen else error) from None
        for stream in self._streams:
            with suppress(*FAILURES):  # a server without JetStream, or one that does not allow it: core NATS is left
                await ensure_stream(client, stream)

    async def _serve(self, client: Client) -> None:
        """Until the connection is lost, or the end."""
        with self._lock:
            self._client, self.number = client, self.number + 1
            self._up.set()
            waiting, setups = list(self._pending), list(self._setups)
            self._pending.clear()
        if self._problem:
            self._problem = ""
            self._report("messages: the NATS server is reached again.")
        self._tried.set()
        for setup in setups:
            await _set_up(setup, client)
        for each in waiting:
            await self._publish(*each, True)
        await _either(None, self._stop, self._lost)
        if self._lost.is_set() and not self._stop.is_set():
            self._report_loss("the connection was lost")
        self._up.clear()
        self._client = None
        await _end(client)

    async def _publish(self, subject: str, data: bytes, keep: bool) -> None:
        client = self._client
        try:
            if client is None:
                raise nats.errors.ConnectionClosedError
            await client.publish(subject, data)
        except FAILURES:
            if keep:
                with self._lock:
                    self._pending.append((subject, data))

    def _report_loss(self, why: str) -> None:
        first = not self._problem
        self._problem = why
        if first:
            where = ", ".join(map(shown_server, self._servers))
            self._report(f"messages: {where} cannot be reached ({why}); the run goes on, and it is tried again.")

    def _report(self, line: str) -> None:
        self._reports += 1
        if self._reports <= MAX_REPORTS and not self._closed:
            self._say(line)

    def _because(self) -> str:
        return f" ({self._problem})" if self._problem else ""


async def ensure_stream(client: Client, stream: Stream) -> None:
    """Create `stream` where it is missing; one of that name that stands there is left as a person set it up."""
    api = client.jetstream(timeout=CONNECT)
    try:
        await api.stream_info(stream.name)
    except APIError:
        await api.add_stream(
            StreamConfig(
                name=stream.name,
                subjects=list(stream.subjects),
                storage=StorageType.FILE,
                max_msgs_per_subject=stream.per_subject,
            )
        )


def shown_server(url: str) -> str:
    """Return a server's address for people: without user and password."""
    parts = urlsplit(url)
    return shorten(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", 100)


def login_options(servers: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Return what the client needs to log in, by the variables of the `nats` command: NATS_CREDS, NATS_NKEY, NATS_USER,
    NATS_PASSWORD, NATS_TOKEN, NATS_CA, NATS_CERT and NATS_KEY. ConfigError: a file cannot be read."""
    options: dict[str, Any] = {}
    for key, variable in (("user_credentials", "NATS_CREDS"), ("nkeys_seed", "NATS_NKEY")):
        if path := _file(env, variable):
            options[key] = path
    for key, variable in (("user", "NATS_USER"), ("password", "NATS_PASSWORD"), ("token", "NATS_TOKEN")):
        if value := env.get(variable):
            options[key] = value
    authority, certificate, private = (_file(env, name) for name in ("NATS_CA", "NATS_CERT", "NATS_KEY"))
    if authority or certificate or any(url.startswith("tls:") for url in servers):
        try:
            context = ssl.create_default_context(cafile=authority or None)
            if certificate:
                context.load_cert_chain(certificate, private or None)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise ConfigError(f"NATS_CA, NATS_CERT or NATS_KEY cannot be used: {_words(error)}.") from error
        options["tls"] = context
    return options


def _file(env: Mapping[str, str], variable: str) -> str:
    name = env.get(variable, "")
    if name and not (Path(name).is_file() and os.access(name, os.R_OK)):
        raise ConfigError(f"{variable} names {shorten(repr(name), 200)}, which is no file that can be read.")
    return name


async def _set_up(setup: Setup, client: Client) -> None:
    with suppress(*FAILURES):
        await setup(client)


async def _timed(act: Callable[[Client], Awaitable[T]], client: Client, within: float) -> T:
    return await asyncio.wait_for(act(client), within)


async def _either(seconds: float | None, *events: asyncio.Event, or_done: asyncio.Future[None] | None = None) -> None:
    """Return when one of `events` is set, `or_done` is, or after `seconds`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        ends: list[asyncio.Future[Any]] = [*waits, *([or_done] if or_done is not None else [])]
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _end(client: Client) -> None:
    with suppress(*FAILURES, Exception):
        if client.is_connected:
            await client.flush(int(FLUSH))
        await asyncio.wait_for(client.close(), FLUSH)


def _words(error: BaseException) -> str:
    text = str(error).removeprefix("nats: ").strip("'")
    return shorten(text or type(error).__name__, 200)
