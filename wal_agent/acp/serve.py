"""Serve the Agent Client Protocol on stdin and stdout: run what router.py decides.

One thread decides and writes. Others read: the client, each agent's stdout, and each run's stderr, which goes on to
ours (an editor shows or keeps it). A client that is gone closes stdin; each run then ends as after `/exit`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import msgspec

from wal_agent.acp.router import (
    RECEPTION,
    Action,
    AddSessions,
    Begin,
    Finish,
    Json,
    Opened,
    Router,
    ToAgent,
    ToClient,
    tell,
    with_sessions,
)
from wal_agent.agents.base import Agent, acp_command
from wal_agent.concurrency import start_daemon
from wal_agent.errors import WalAgentError
from wal_agent.paths import PROGRAM
from wal_agent.safefs import real_path
from wal_agent.supervise.run import OURS
from wal_agent.text import plural, why_it_failed

MAX_LINE = 64 << 20  # bytes of one message; a picture may be in it
MAX_SAID = 200  # lines of a run's stderr that are kept, to say why it ended
ENDING = 20.0  # seconds for the runs to end by themselves once the client is gone; then they are drained
SETTLES = 5.0  # seconds behind a turn's end for the ends of its calls to be in the log
MAX_SHOWN = 5  # unfinished sessions that are named


class Known(msgspec.Struct, frozen=True):
    """A session that a job of a folder has. `calls`: open ones."""

    session: str
    job: str
    folder: str
    calls: int = 0


class Jobs(msgspec.Struct, frozen=True):
    """What is asked of the bucket. Each raises WalAgentError. `find`: (folder, only those that were cut off) -> the
    sessions of its jobs, newest first, each read when it is asked for; `name`: (folder) -> the name of the job for a
    new session there; `place`: (job) -> variables for its run."""

    find: Callable[[Path, bool], Iterable[Known]]
    name: Callable[[Path], str]
    place: Callable[[str], Mapping[str, str]]


class _Agent(msgspec.Struct):
    process: subprocess.Popen[bytes]
    said: deque[str] = msgspec.field(default_factory=lambda: deque(maxlen=MAX_SAID))
    asked_to_end: bool = False


class _Asked(msgspec.Struct, frozen=True):
    """A message of the client's."""

    message: Json


class _Said(msgspec.Struct, frozen=True):
    """A message of an agent's."""

    agent: int
    message: Json


class _ClientGone(msgspec.Struct, frozen=True):
    pass


class _AgentGone(msgspec.Struct, frozen=True):
    agent: int


class _Signal(msgspec.Struct, frozen=True):
    number: int


class _Late(msgspec.Struct, frozen=True):
    """What a look at the bucket brought, for the client."""

    message: Json


class _Found(msgspec.Struct, frozen=True):
    """How the run of a session is started, or `why` not. `place`: variables that name its job."""

    wanted: Begin
    folder: Path = Path()
    way: str = ""
    place: Mapping[str, str] = {}
    why: str = ""


_Event = _Asked | _Said | _ClientGone | _AgentGone | _Signal | _Late | _Found


class Server:
    """One client's connection, from its first message to its last."""

    def __init__(self, agent: Agent, args: Sequence[str], jobs: Jobs) -> None:
        """`args`: the agent's own, for each run."""
        self._agent, self._args, self._jobs = agent, args, jobs
        self._router = Router(agent.capabilities.forks_travel)
        self._agents: dict[int, _Agent] = {}
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._ending = 0  # the signal that ends this; 0: none
        self._client_gone = False

    def serve(self) -> int:
        """Serve until the client is gone and every run has ended. Return the exit code: 143 after a signal.
        ConfigError: the agent is not installed."""
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda n, _: self._events.put(_Signal(n)))
        with tempfile.TemporaryDirectory(prefix="wal-agent-acp-") as empty:
            env = {name: value for name, value in os.environ.items() if name not in OURS}
            without = acp_command(self._agent, self._agent.locate(env), self._args, env, Path(empty))
            self._start(RECEPTION, without.argv, Path(empty), {**env, **without.env})
            self._read(sys.stdin.buffer, _Asked, _ClientGone())
            while self._agents:
                self._take(self._events.get())
        return 128 + signal.SIGTERM if self._ending else 0

    # ---- what happens

    def _take(self, event: _Event) -> None:
        match event:
            case _Asked(message):
                self._do(self._router.from_client(message))
            case _Said(agent, message):
                self._do(self._router.from_agent(agent, message))
            case _Found():
                self._begin(event)
            case _Late(message):
                self._do([ToClient(message)])
            case _ClientGone():
                self._client_gone = True
                for number in list(self._agents):
                    self._finish(number)
                timer = threading.Timer(ENDING, lambda: self._events.put(_Signal(signal.SIGTERM)))
                timer.daemon = True
                timer.start()
            case _AgentGone(agent):
                self._ended(agent)
            case _Signal():
                self._ending = self._ending or (0 if self._client_gone else event.number)
                for each in self._agents.values():
                    each.asked_to_end = True
                    each.process.send_signal(signal.SIGTERM)

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case ToClient(message):
                    self._answer(message)
                case ToAgent(agent, message):
                    self._send(agent, message)
                case Begin():
                    start_daemon("jobs", partial(self._look_up, action))
                case Opened():
                    self._opened(action)
                case AddSessions():
                    start_daemon("sessions", partial(self._list, action))
                case Finish(agent):
                    self._finish(agent)

    def _look_up(self, wanted: Begin) -> None:
        """Find the job for a run; beside the loop, since a bucket may take its time."""
        self._events.put(self._found(wanted))

    def _found(self, wanted: Begin) -> _Found:
        folder = Path(wanted.folder)
        try:
            if not folder.is_absolute() or not folder.is_dir():
                return _Found(wanted, why=f"{wanted.folder!a:.200} is no folder here.")
            folder = real_path(folder)
            if wanted.source is not None and (why := self._not_to_fork(*wanted.source)):
                return _Found(wanted, why=why)
            known = self._jobs.find(folder, False) if wanted.session else ()
            found = next((each.job for each in known if each.session == wanted.session), "")
            place = self._jobs.place(found or self._jobs.name(folder))
            return _Found(wanted, folder, "--continue" if found else "--fresh", place)
        except (WalAgentError, OSError, ValueError) as error:
            return _Found(wanted, why=str(error))

    def _not_to_fork(self, session: str, folder: str) -> str:
        """Why a session is not forked: the fork, a job of its own, would not know of its open calls; "": it is."""
        end = time.monotonic() + SETTLES
        while True:
            known = self._jobs.find(real_path(folder), False)
            calls, job = next(((each.calls, each.job) for each in known if each.session == session), (0, ""))
            if not calls:
                return ""
            if time.monotonic() > end:
                break
            time.sleep(0.25)
        return f"This session (job {job}) has {plural(calls, 'open call')}, which a fork would not know of."

    def _begin(self, found: _Found) -> None:
        agent = found.wanted.agent
        if found.why or self._client_gone or self._ending:
            self._do(self._router.gone(agent, found.why or "wal-agent is ending."))
            return
        argv = [*PROGRAM, "run", self._agent.name, "--hosted", found.way, "--", *self._args]
        self._start(agent, argv, found.folder, {**os.environ, **found.place})
        self._send(agent, found.wanted.first)

    def _opened(self, session: Opened) -> None:
        said = list(self._agents[session.agent].said)
        if any(row.startswith("  ") for row in said):  # rows of a recovery
            self._do([tell(session.session, "\n".join(["```", *said, "```", ""]))])
        if session.new:
            start_daemon("unfinished", partial(self._offer, session))

    def _offer(self, session: Opened) -> None:
        with suppress(WalAgentError, OSError):
            if left := [*self._jobs.find(real_path(session.folder), True)]:
                self._events.put(_Late(tell(session.session, offer_text(left)).message))

    def _list(self, answer: AddSessions) -> None:
        more: list[Json] = []
        if answer.folder:
            with suppress(WalAgentError, OSError):
                known = self._jobs.find(real_path(answer.folder), False)
                more = [{"sessionId": k.session, "cwd": k.folder} for k in known]
        self._events.put(_Late(with_sessions(answer.message, more)))

    # ---- processes

    def _start(self, number: int, argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        run = number != RECEPTION
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if run else None,
            start_new_session=True,  # a Ctrl-C is for us, who pass it on as a SIGTERM
        )
        self._agents[number] = agent = _Agent(process)
        assert process.stdout is not None
        self._read(process.stdout, lambda message: _Said(number, message), _AgentGone(number))
        if process.stderr is not None:
            stderr = process.stderr
            start_daemon("stderr", lambda: _pass_on(stderr, agent.said))

    def _read(self, stream: IO[bytes], of: Callable[[Json], _Event], end: _Event) -> None:
        def read() -> None:
            with suppress(OSError, ValueError):
                while line := stream.readline(MAX_LINE):
                    if (message := _parse(line)) is not None:
                        self._events.put(of(message))
            self._events.put(end)

        start_daemon("acp", read)

    def _send(self, agent: int, message: Json) -> None:
        known = self._agents.get(agent)
        if known is None or known.process.stdin is None:
            self._do(self._router.gone(agent, "The agent has ended."))
            return
        with suppress(OSError, ValueError):  # its end is reported by itself
            known.process.stdin.write(_line(message))
            known.process.stdin.flush()

    def _finish(self, agent: int) -> None:
        known = self._agents.get(agent)
        if known is not None and known.process.stdin is not None:
            known.asked_to_end = True
            with suppress(OSError):
                known.process.stdin.close()

    def _ended(self, number: int) -> None:
        agent = self._agents.pop(number)
        code = agent.process.wait()
        said = "\n".join(why_it_failed("\n".join(agent.said.copy())))
        why = "" if agent.asked_to_end and not code else said or f"The agent ended with {code}."
        self._do(self._router.gone(number, why))
        if number == RECEPTION:  # nothing can be begun any more
            for each in list(self._agents):
                self._finish(each)

    def _answer(self, message: Json) -> None:
        if self._client_gone:
            return
        try:
            sys.stdout.buffer.write(_line(message))
            sys.stdout.buffer.flush()
        except (BrokenPipeError, ValueError):
            self._events.put(_ClientGone())


def new_job(base: str) -> str:
    """Return a name for the job of a new session: the folder's, with four letters of its own."""
    from wal_agent.wal.keys import LONGEST

    return f"{base[: LONGEST - 5]}-{secrets.token_hex(2)}"


def offer_text(left: Sequence[Known]) -> str:
    """Return what a person is told in a new session of a folder that has unfinished ones. Pure."""
    calls = (f", {plural(k.calls, 'open call')}" if k.calls else "" for k in left)
    rows = [f"- session `{k.session}` (job `{k.job}`{n})" for k, n in zip(left[:MAX_SHOWN], calls, strict=False)]
    more = [f"- and {len(left) - MAX_SHOWN} more"] if len(left) > MAX_SHOWN else []
    head = "wal-agent: this folder has sessions that were cut off. Load one to go on with it:"
    return "\n".join([head, *rows, *more, ""])


def _pass_on(stream: IO[bytes], said: deque[str]) -> None:
    with suppress(OSError, ValueError):
        while line := stream.readline(1 << 16):
            said.append(line.decode("utf-8", "replace").rstrip("\n"))
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()


def _parse(line: bytes) -> Json | None:
    """A message; None for what is none: an agent may print a word to stdout."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _line(message: Json) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
