"""Tell whose hook call it is: the run's own agent's, that of an agent which one of its tools started, or neither.

The kernel names the process at the other end of the socket; its ancestors are read at once, since a hook's client may
be gone soon after. Pure functions over that chain decide. A variable in the environment decides nothing: every process
below the agent has it.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal

import msgspec

from wal_agent.agents.hook_line import is_hook_line
from wal_agent.supervise.ancestry import Process, ancestry_of, read_process

if TYPE_CHECKING:
    from wal_agent.agents.base import HookCaller

ENDING = 1.0  # seconds from the end of a hook's input to the end of its line, where an agent ends both

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

    def is_left(self, chain: Sequence[Process], speaker: Process | None) -> bool:
        """Whether nobody waits for this hook's answer: its agent has ended, or has ended the hook. An agent that ends a
        hook may close its pipe first, so there is a moment for it."""
        until = time.monotonic() + ENDING
        while chain and self._is_below(chain[0], speaker):
            if time.monotonic() > until:
                return False
            time.sleep(ENDING / 50)
        return bool(chain)

    def _is_below(self, peer: Process, speaker: Process | None) -> bool:
        """Whether the peer still descends from the agent's process. One that ends loses its words before its pipes."""
        above = ancestry_of(peer.pid, self._known.supervisor).processes
        return peer.is_(next(iter(above), None)) and any(p.is_(speaker) and p.argv for p in above)

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
