"""A real agent CLI in a home of its own, with a scripted model, and a small hook server over the real wire."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import socket
import struct
import subprocess
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from msgspec.structs import replace

from wal_agent.agents import hook_line, rehearsal_of
from wal_agent.agents.base import (
    Agent,
    Allow,
    Command,
    Decision,
    HookEvent,
    HookSetup,
    Injected,
    LoggedCall,
    NewSession,
    Rehearsal,
    ResumeSession,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnStarted,
)
from wal_agent.recovery.prompt import read_protocol
from wal_agent.rehearsal.demo import end_at_once, home_environment
from wal_agent.rehearsal.model import Call, Model, Turn
from wal_agent.supervise.ancestry import ancestry_of
from wal_agent.supervise.callers import Callers, peer_of
from wal_agent.supervise.processes import become_subreaper


def wait_until(true: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("the awaited did not come")
        time.sleep(0.02)


class HookServer:
    """Answers hooks as `decide` says; keeps what it heard. `spoil` may send other bytes instead, and then
    hangs up."""

    def __init__(
        self, path: Path, agent: Agent, decide: Callable[[HookEvent], Decision] = lambda event: Allow()
    ) -> None:
        self.agent = agent
        self.decide = decide
        self.spoil: Callable[[HookEvent, bytes], bytes] = lambda event, answer: answer
        self.heard: list[tuple[float, hook_line.Hello, HookEvent]] = []
        self.told: list[str] = []
        self.callers = Callers(agent.capabilities.hook_caller, agent.name, os.getpid())
        self.origins: set[str] = set()  # whose each call was
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.bind(str(path))
        self._sock.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def events(self) -> list[HookEvent]:
        return [event for _, _, event in self.heard]

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # else the thread in accept() would take the next server's callers
        self._sock.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._sock.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(client,), daemon=True).start()

    def _one(self, client: socket.socket) -> None:
        call = hook_line.Call()
        chain = ancestry_of(peer_of(client)[0], os.getpid()).processes
        with client:
            while not call.complete and (data := client.recv(1 << 18)):
                call.feed(data)
            if not call.complete or call.hello is None:
                return
            self.origins.add(self.callers.identify(chain, call.hello.agent).origin)
            event = self.agent.parse(call.hello.event, bytes(call.payload))
            self.heard.append((time.time(), call.hello, event))
            answer = hook_line.answer(self.agent.render(call.hello.event, self.decide(event)))
            with suppress(ConnectionError):  # what a client does that was sent nonsense
                sent = self.spoil(event, answer)
                client.sendall(sent)
                while sent == answer and not call.told and (data := client.recv(64)):
                    call.feed(data)
            if call.told:
                self.told.append(call.hello.event)


@dataclass
class Box:
    """One user's home and one workspace, and one agent's real program."""

    base: Path
    program: Path
    agent: Agent
    home: Path = field(init=False)
    ws: Path = field(init=False)
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home, self.ws = self.base / "home", self.base / "ws"
        self.home.mkdir()
        self.ws.mkdir()
        self.user_env: dict[str, str] = {"HOME": str(self.home)}

    @property
    def rehearsal(self) -> Rehearsal:
        found = rehearsal_of(self.agent)
        assert found is not None
        return found

    def model(self, *turns: Turn) -> Model:
        """A scripted model that speaks the agent's API; to be entered."""
        return Model(self.rehearsal.dialect, list(turns))

    def shell(self, command: str) -> Call:
        return self.rehearsal.shell(command)

    def env(self, model: Model) -> dict[str, str]:
        """The user's environment; writes what a first start needs into the home."""
        base = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TERM": "xterm-256color"}
        variable = {f"WAL_AGENT_{self.agent.name.upper()}": str(self.program)}
        self.user_env = base | variable | self.rehearsal.home(self.home, self.ws, model.url) | self.extra
        return self.user_env

    def start(self, model: Model, prompt: str) -> subprocess.Popen[str]:
        """The agent as the user starts it, without us."""
        return popen((str(self.program), *self.rehearsal.args(prompt)), self.env(model), self.ws)

    def main(self, session: str) -> Path:
        if journal := self.agent.capabilities.journal:
            journal.update(session, self.ws, self.user_env)
        return self.agent.session_files(session, self.ws, self.user_env)[0].path

    def tells(self, session: str, words: bytes) -> bool:
        """Does the session's main file tell the end of a call with these words in its input by now?"""
        try:
            main = self.main(session).read_bytes()
        except (IndexError, OSError):
            return False
        return any(words in call.input for call in self.agent.seen_calls(main))

    def restore(self, main: bytes, session: str) -> Path:
        path = self.agent.restore_path(self.agent.main_file, session, self.ws, self.user_env)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(main)
        return path

    def kill(self, process: subprocess.Popen[str]) -> None:
        """The machine is lost: the agent, and all that it left running."""
        end_at_once([psutil.Process(process.pid), *home_environment(self.home)])
        process.communicate()


@dataclass
class Run:
    """One run of ours in a box: folder, hook server, and the command line that the module makes."""

    box: Box
    run: str = field(default_factory=lambda: "run-" + uuid.uuid4().hex[:8])
    client: tuple[str, ...] = field(default_factory=hook_line.client_command)
    skip: tuple[str, ...] = ()
    decide: Callable[[HookEvent], Decision] = lambda event: Allow()
    session: str = field(default_factory=lambda: str(uuid.uuid4()))
    serve: bool = True

    def __post_init__(self) -> None:
        self.dir = Path(f"/tmp/wal-{self.run}")  # a socket's path must be short
        self.dir.mkdir(mode=0o700)
        become_subreaper()  # as a supervisor: a hook that outlives its agent is still the agent's
        lock = (self.dir / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._lock = lock
        self.injected = Injected()
        self.server = HookServer(self.dir / "hook.sock", self.box.agent, self.decide) if self.serve else None

    @property
    def heard(self) -> HookServer:
        assert self.server is not None
        return self.server

    @property
    def heard_session(self) -> str:
        """The session that the agent itself names, once it has."""
        return next(e.session for e in self.heard.events if isinstance(e, SessionStarted | TurnStarted | ToolStarting))

    def command(self, model: Model, args: Sequence[str], resume: str | None, tty: bool) -> Command:
        box, agent = self.box, self.box.agent
        env = box.env(model)
        setup = HookSetup(
            self.run, self.dir, self.client, self.skip, read_protocol(self.dir, {"XDG_STATE_HOME": str(self.dir)})
        )
        self.injected = agent.inject(setup, env)
        env |= self.injected.env
        session = NewSession(self.session) if resume is None else ResumeSession(self.session, resume)
        cli = agent.locate(env)
        if isinstance(session, ResumeSession) and (journal := agent.capabilities.journal):
            journal.restore(cli, session.id, box.ws, env, False)
        made = agent.command(cli, args, session, tty, env)
        return Command(made.argv, env | made.env)

    def start(self, model: Model, prompt: str, *more: str, resume: str | None = None) -> subprocess.Popen[str]:
        """Headless. `resume`: in this run's session, with these words of the recovery ("": without any)."""
        made = self.command(model, [*self.box.rehearsal.args(prompt), *more], resume, tty=False)
        return self.popen(made)

    def popen(self, made: Command) -> subprocess.Popen[str]:
        with self._starting() as began:
            process = popen(made.argv, made.env, self.box.ws)
            began(process.pid)
        return process

    @contextmanager
    def _starting(self) -> Iterator[Callable[[int], None]]:
        with self.server.callers.starting() if self.server else nullcontext(lambda pid: None) as began:
            yield began

    def on_tty(self, model: Model, args: Sequence[str], resume: str | None = None) -> Tty:
        made = self.command(model, args, resume, tty=True)
        with self._starting() as began:
            tty = Tty(made.argv, made.env, self.box.ws)
            began(tty.process.pid)
        return tty

    def calls(self) -> list[LoggedCall]:
        """What a log would know of this run's calls."""
        logged: list[LoggedCall] = []
        for at, _, event in self.heard.heard:
            if isinstance(event, ToolStarting):
                n = len(logged) + 1
                logged.append(LoggedCall(n, event.tool, event.input, None, False, "", at, event.call_id))
            elif isinstance(event, ToolEnded):
                n = next(c.call for c in logged if c.result is None and _is(c, event))
                logged[n - 1] = replace(logged[n - 1], result=event.result, failed=event.failed)
        return logged

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            assert self.server.origins <= {"agent", "gone"}, "the agent's own hooks, and nobody else's"
        become_subreaper(False)  # the process has other tests
        self._lock.close()
        for path in self.injected.paths:
            shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(self.dir, ignore_errors=True)


def _is(call: LoggedCall, ended: ToolEnded) -> bool:
    if ended.call_id:
        return call.call_id == ended.call_id
    return (call.tool, call.input) == (ended.tool, ended.input)


class Tty:
    """A program on a terminal of its own."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], cwd: Path) -> None:
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        settings = termios.tcgetattr(child)
        settings[6][termios.VINTR] = bytes([os.fpathconf(child, "PC_VDISABLE")])  # Ctrl-C is a key and never a signal
        termios.tcsetattr(child, termios.TCSANOW, settings)
        self.process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=child, stdout=child, stderr=child, start_new_session=True
        )
        os.close(child)
        self._fd = parent
        self._out = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    @property
    def screen(self) -> str:
        """All that was written so far, without colours and cursor moves."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._out.decode(errors="replace"))

    def quit(self) -> int:
        """Ctrl-C until it is gone."""
        end = time.monotonic() + 120
        while self.process.poll() is None and time.monotonic() < end:
            with suppress(OSError):  # it has just closed the terminal
                self.send(b"\x03")
            time.sleep(0.3)
        code = self.process.wait(1)
        self._reader.join(5)
        if not self._reader.is_alive():
            os.close(self._fd)
        return code

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return
            if not data:
                return
            self._out += data


def popen(argv: Sequence[str], env: dict[str, str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def done(process: subprocess.Popen[str], seconds: float = 580) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err
