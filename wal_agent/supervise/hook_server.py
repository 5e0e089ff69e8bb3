"""Serve the unix socket that hook clients call, and identify who calls.

One connection is one hook call (hook_line.Call); the server decides nothing itself. The socket is 0600 in a 0700
folder, and the peer's uid is checked. A client that does not speak the protocol gets no answer, which its agent's hook
line turns into a refusal (I5). Commands ask a live run on this machine over the same socket (`ask_run`): its status, a
person's decision on a call, a pause.

The kernel names the process at the other end; its ancestors are read at once, since a hook's client may be gone soon
after. Pure functions over that chain decide whether it is the run's own agent, an agent that one of its tools started,
or neither. A variable in the environment decides nothing: every process below the agent has it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from wal_agent.agents import hook_line
from wal_agent.agents.hook_line import is_hook_line
from wal_agent.errors import ConfigError, PersonNeeded, Unavailable, UsageError, WalAgentError
from wal_agent.records import Host
from wal_agent.supervise.ancestry import Ancestry, Process, ancestry_of, read_process
from wal_agent.text import printable

if TYPE_CHECKING:
    from wal_agent.agents.base import HookCaller

Origin = Literal["agent", "inner", "stranger", "gone"]
"""`agent`: the run's own agent. `inner`: a hook of another agent below it. `stranger`: no hook at all. `gone`: the
caller ended before its ancestors could be read, so nobody waits for an answer."""


class KnownAgent(msgspec.Struct, frozen=True):
    """What a run knows of its agent. `root`: the process that it started. `main`: the process whose hooks came first,
    another one where `root` is a launcher."""

    supervisor: int
    root: Process | None = None
    main: Process | None = None
    main_lives: bool = False


class Caller(msgspec.Struct, frozen=True):
    """`speaker`: the agent's process whose hook it is, where it is one."""

    origin: Origin
    speaker: Process | None = None


# --- pure


def identify_caller(chain: Sequence[Process], how: HookCaller, own: bool, known: KnownAgent) -> Caller:
    """Whose word it is. `chain`: the peer and its ancestors, below the supervisor. `how`: where this agent's hooks run.
    `own`: the peer names the run's own agent, not another CLI."""
    if not chain:
        return Caller("gone")
    if how == "agent" and own:
        ours = _is_main(chain[0], known)
        return Caller("agent", chain[0]) if ours else Caller("stranger")
    upto = 1
    while upto < len(chain) and is_hook_line(chain[upto].argv, how == "wrapped"):
        upto += 1
    if upto == 1:
        return _without_line(chain, how, own, known)
    top, speaker = chain[upto - 1], chain[upto] if upto < len(chain) else None
    if speaker is None:  # its agent is gone
        late = own and top.parent == known.supervisor and not known.main_lives
        return Caller("agent" if late else "gone")
    if not own or not _is_main(speaker, known):
        return Caller("inner", speaker)
    # A tool of such an agent leads a session of its own, and no process can join another one.
    return Caller("stranger") if how == "shell" and top.session != speaker.session else Caller("agent", speaker)


def _is_main(process: Process, known: KnownAgent) -> bool:
    if process.is_(known.root) or process.is_(known.main):
        return True
    if known.main is None:  # the first hook of a run comes before any tool may start
        return True
    was = known.main  # a launcher started its agent again
    return (
        not known.main_lives
        and not was.is_(known.root)
        and process.parent == was.parent != known.supervisor
        and process.session == was.session
    )


def _without_line(chain: Sequence[Process], how: HookCaller, own: bool, known: KnownAgent) -> Caller:
    """The hook client without our shell line: a child of the agent's own session, which no tool is in."""
    for n, process in enumerate(chain[1:], 1):
        if process.is_(known.main or known.root):
            same = all(p.session == process.session for p in chain[:n])
            return Caller("agent", process) if own and how == "shell" and same else Caller("stranger")
    return Caller("stranger")


# --- reading


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The pid and the uid at the other end, as of its `connect`; pid 0 where the kernel does not name it."""
    if sys.platform == "linux":
        pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid), int(uid)
    pid = 0
    if sys.platform == "darwin":
        with suppress(OSError, struct.error):
            (pid,) = struct.unpack("i", connection.getsockopt(0, 2, 4))  # SOL_LOCAL, LOCAL_PEERPID
    return pid, os.getuid()  # the folder's mode (0700) is the check


def can_read_processes() -> bool:
    """Whether processes can be read here at all."""
    return read_process(os.getpid()) is not None


# --- of one run


class Callers:
    """Judges each caller of one agent process. Called from hook threads."""

    def __init__(
        self, how: HookCaller, agent: str, supervisor: int, read: Callable[[int], Process | None] = read_process
    ):
        self._how = how
        self._agent = agent
        self._read = read
        self._lock = threading.Lock()
        self._known = KnownAgent(supervisor)
        self._blind = not can_read_processes()

    @contextmanager
    def starting(self) -> Iterator[Callable[[int], None]]:
        """While the agent is started; whoever calls already waits. Takes the pid of its process."""

        def began(pid: int) -> None:
            self._known = KnownAgent(self._known.supervisor, root=self._read(pid))

        with self._lock:
            yield began

    def identify(self, chain: Sequence[Process], agent: str) -> Caller:
        """`agent`: which one the caller says that it is."""
        if self._blind:
            return Caller("agent")
        own = agent == self._agent
        with self._lock:
            was = self._known
            main = was.main
            now = main and self._read(main.pid)
            known = KnownAgent(was.supervisor, was.root, main, main_lives=now is not None and now.is_(main))
            found = identify_caller(chain, self._how, own, known)
            if found.origin == "agent" and found.speaker is not None:
                self._known = KnownAgent(was.supervisor, was.root, found.speaker)
        return found


MOST = 256  # connections at once; the next ones wait. Log and lease need threads and descriptors too
HELLO_SECONDS = 10.0  # in which a client says what it is; it does so at once
IDLE = 60.0  # seconds in which its request is whole, and without a byte after the answer
_PIECE = 1 << 18


class HookRequest(msgspec.Struct, frozen=True):
    """One hook call, or control command. `agent`: the CLI that the caller says it belongs to. `caller`: the process
    that connected, and its ancestors below this one."""

    agent: str
    event: str
    payload: bytes
    caller: Ancestry = Ancestry()

    @property
    def from_outside(self) -> bool:
        """Whether a process asks that this run did not start; what is not known counts as the agent's (I8)."""
        return self.caller.end == "top" or (self.caller.end == "supervisor" and not self.caller.processes)


class HookServer:
    """Serves until `close`. `handle` returns the bytes for the client to print, or None: the connection is then closed
    without an answer. It runs in a thread per connection and may raise: then too, and `failed` is called."""

    def __init__(
        self,
        path: Path,
        run: str,
        handle: Callable[[HookRequest], bytes | None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._run = run
        self._handle = handle
        self._failed = failed
        self._path = path
        self._closed = threading.Event()
        self._free = threading.Semaphore(MOST)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)  # before anyone can connect; a umask would be all threads'
        self._socket.listen(128)
        self._thread = threading.Thread(target=self._accept, name="hooks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Take no further call; the path is free again. Calls under way are the gate's affair."""
        self._closed.set()
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            if not self._free.acquire(timeout=0.5):
                continue
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed; or a lack of descriptors, which passes
                self._free.release()
                self._closed.wait(0.05)
                continue
            try:
                pid, uid = peer_of(connection)
                if uid != os.getuid():
                    self._drop(connection)
                    continue
                caller = ancestry_of(pid, os.getpid())  # now: the caller may end at any moment
                threading.Thread(target=self._serve, args=(connection, caller), name="hook", daemon=True).start()
            except OSError:
                self._drop(connection)
            except RuntimeError as error:  # no more threads now: this call is denied by its line, the next one may do
                self._drop(connection)
                self._failed(error)

    def _drop(self, connection: socket.socket) -> None:
        connection.close()
        self._free.release()

    def _serve(self, connection: socket.socket, caller: Ancestry) -> None:
        try:
            self._answer(connection, caller)
        finally:
            self._free.release()

    def _answer(self, connection: socket.socket, caller: Ancestry) -> None:
        with connection:
            try:
                call = self._receive(connection)
                connection.settimeout(IDLE)
                if call is None or call.hello is None or call.hello.run != self._run:
                    return
                said = self._handle(HookRequest(call.hello.agent, call.hello.event, bytes(call.payload), caller))
                if said is None:
                    return
                connection.sendall(hook_line.answer(said))
                while not call.told and (data := connection.recv(_PIECE)):
                    call.feed(data)
            except (hook_line.WireError, OSError):
                return  # the client's side fails closed; a call whose client said nothing stays open (R7: unknown)
            except Exception as error:  # noqa: BLE001 - reported; nobody else sees it in this thread
                self._failed(error)

    @staticmethod
    def _receive(connection: socket.socket) -> hook_line.Call | None:
        call, began = hook_line.Call(), time.monotonic()
        while not call.complete:
            until = began + (HELLO_SECONDS if call.hello is None else IDLE)
            connection.settimeout(max(0.001, until - time.monotonic()))
            data = connection.recv(_PIECE)
            if not data:
                return None
            call.feed(data)
        return call


CONTROL_PREFIX = "wal-agent."
STATUS = CONTROL_PREFIX + "status"
ACK = CONTROL_PREFIX + "ack"
PAUSE = CONTROL_PREFIX + "pause"
SETTLE = CONTROL_PREFIX + "settle"
CHECKPOINT = CONTROL_PREFIX + "checkpoint"
MARK = CONTROL_PREFIX + "mark"
REWIND = CONTROL_PREFIX + "rewind"
STEP = CONTROL_PREFIX + "step"
TASK = CONTROL_PREFIX + "task"
CONTROL_TIMEOUT = 30.0


def refusal(error: WalAgentError) -> dict[str, Any]:
    """Return the answer of a run that does not do what it is asked for."""
    return {"error": error.what, "hint": error.hint, "exit": error.exit_code}


_REFUSALS: dict[int, type[WalAgentError]] = {e.exit_code: e for e in (UsageError, PersonNeeded, ConfigError)}


def unless_refused(said: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a run's answer. Raise its `refusal`: UsageError, PersonNeeded, ConfigError; Unavailable for any other."""
    if said is not None and "error" in said:
        kind = _REFUSALS.get(int(said.get("exit", UsageError.exit_code)), Unavailable)
        raise kind(str(said["error"]), str(said.get("hint", "")))
    return said


AT = "at"  # in a question: the job that it is about


def ask_run(
    owner: Host,
    run: str,
    at: tuple[str, str],
    event: str,
    question: dict[str, Any],
    timeout: float = CONTROL_TIMEOUT,
) -> dict[str, Any] | None:
    """The answer of the run that a lease names; None when it cannot be reached from here. Path and run come from the
    bucket: only a socket of this user's answers, and a run of another job than `at` (bucket and job) refuses."""
    try:
        path = Path(owner.lock).with_name("hook.sock")
        return ask_socket(path, run, event, {**question, AT: list(at)}, timeout)
    except ValueError:
        return None


def check_job(question: dict[str, Any], url: str, job: str) -> dict[str, Any]:
    """The question without the job that it is about. UsageError: it is not about this one."""
    if (about := question.pop(AT, None)) is not None and (_place(str(about[0])), about[1]) != (_place(url), job):
        raise UsageError(
            f"The lease of job {printable(str(about[1]))[:100]} names a run of job {job} in another place; nothing was "
            "done.",
            f"If you mean that one, name it: --job {job}",
        )
    return question


def _place(url: str) -> str:
    """What two names of one bucket have in common."""
    from wal_agent.bucket import folder_of

    folder = folder_of(url)
    return url if folder is None else os.path.realpath(folder)


def ask_socket(
    path: Path, run: str, event: str, question: dict[str, Any], timeout: float = CONTROL_TIMEOUT
) -> dict[str, Any] | None:
    """`ask_run`, of the socket at `path`. `timeout`: seconds for each step of it."""
    try:
        hello = hook_line.Hello(run, "wal-agent", event, os.getpid(), 0)
        if path.lstat().st_uid != os.getuid():
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            connection.sendall(hook_line.frame(hook_line.HELLO, hook_line.encode_hello(hello)))
            data = json.dumps(question).encode()
            for at in range(0, len(data), _PIECE):
                connection.sendall(hook_line.frame(hook_line.DATA, data[at : at + _PIECE]))
            connection.sendall(hook_line.frame(hook_line.END))
            with connection.makefile("rb") as stream:
                head = stream.read(hook_line.HEAD.size)
                if len(head) < hook_line.HEAD.size:
                    return None
                kind, size = hook_line.HEAD.unpack(head)
                if kind != hook_line.ANSWER or size > hook_line.MAX_FRAME:
                    return None
                answer = json.loads(stream.read(size))
            connection.sendall(hook_line.frame(hook_line.TOLD))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None
