"""supervise/hook_server.py: a real socket; whoever does not speak as agreed gets no answer, and disturbs nobody."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.supervise.crew import PATIENCE, Post, short_folder, until
from wal_agent.agents import hook_line
from wal_agent.agents.base import HookSetup
from wal_agent.agents.gemini.hooks import MARKER
from wal_agent.agents.gemini.hooks import hook_line as gemini_line
from wal_agent.errors import ConfigError, Fenced, PersonNeeded, Unavailable, Unreadable, UsageError, WalAgentError
from wal_agent.supervise import callers
from wal_agent.supervise import hook_server as server_module
from wal_agent.supervise.ancestry import Ancestry, Process, ancestry_of
from wal_agent.supervise.callers import peer_of
from wal_agent.supervise.control import refusal, unless_refused
from wal_agent.supervise.conversation import HookHandler
from wal_agent.supervise.hook_server import HookRequest, HookServer

HELLO = hook_line.frame(hook_line.HELLO, hook_line.encode_hello(hook_line.Hello("run", "gemini", "BeforeTool", 1, 2)))
END = hook_line.frame(hook_line.END)


class Desk:
    """A server that answers with the event and the payload, and what it was asked and told."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hook.sock"
        self.asked: list[tuple[str, bytes]] = []
        self.chains: list[tuple[Process, ...]] = []
        self.failures: list[BaseException] = []
        self.server = HookServer(self.path, "run", self.handle, self.failures.append)
        self.server.start()

    def handle(self, call: HookRequest) -> bytes | None:
        self.asked.append((call.event, call.payload))
        self.chains.append(call.caller.processes)
        if call.payload == b"boom":
            raise KeyError("a bug")
        return None if call.payload == b"refused" else call.event.encode() + b" " + call.payload

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        try:
            sock.connect(str(self.path))
        except OSError:
            sock.close()
            raise
        return sock


@pytest.fixture
def desk() -> Iterator[Desk]:
    with short_folder() as folder:
        made = Desk(folder)
        yield made
        made.server.close()


def data(payload: bytes) -> bytes:
    return hook_line.frame(hook_line.DATA, payload)


def answer(sock: socket.socket) -> bytes:
    """Everything up to the server's hanging up, or one whole frame."""
    got = b""
    while len(got) < hook_line.HEAD.size or len(got) < hook_line.HEAD.size + hook_line.HEAD.unpack_from(got)[1]:
        try:
            more = sock.recv(1 << 16)
        except ConnectionResetError:
            more = b""  # it hung up before it had read all that we sent
        if not more:
            break
        got += more
    return got


def ask(desk: Desk, payload: bytes = b"{}") -> bytes:
    with desk.connect() as sock:
        sock.sendall(HELLO + data(payload) + END)
        got = answer(sock)
        sock.sendall(hook_line.frame(hook_line.TOLD))
        return got


def test_a_call_is_answered_and_the_socket_is_private(desk: Desk) -> None:
    assert stat.S_IMODE(desk.path.stat().st_mode) == 0o600
    payload = os.urandom(700_000)
    assert ask(desk, payload) == hook_line.answer(b"BeforeTool " + payload)
    assert desk.asked == [("BeforeTool", payload)] and desk.failures == []


def other_hello(run: str = "run", version: str = hook_line.VERSION) -> bytes:
    body = "\0".join((version, run, "gemini", "BeforeTool", "1", "2")).encode()
    return hook_line.frame(hook_line.HELLO, body)


STRANGERS = {
    "another run": other_hello(run="other") + data(b"{}") + END,
    "another protocol": other_hello(version="wal-agent-hook/2") + data(b"{}") + END,
    "no protocol": b"GET / HTTP/1.1\r\n\r\n",
    "oversized frame": HELLO + struct.pack(">cI", hook_line.DATA, hook_line.MAX_FRAME + 1),
    "payload before hello": data(b"{}") + HELLO + END,
    "told before the answer": HELLO + data(b"{}") + END + hook_line.frame(hook_line.END),
    "a bug in the handler": HELLO + data(b"boom") + END,
    "refused by the handler": HELLO + data(b"refused") + END,
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_stranger_gets_no_answer_and_disturbs_nobody(desk: Desk, sent: bytes) -> None:
    """I5: no answer is a refusal on the client's side; a client that is in the middle of its call goes on."""
    with desk.connect() as before, desk.connect() as stranger:
        before.sendall(HELLO + data(b'{"a":'))
        stranger.sendall(sent)
        assert answer(stranger) == b""
        before.sendall(data(b"1}") + END)
        assert answer(before) == hook_line.answer(b'BeforeTool {"a":1}')
    assert [type(f) for f in desk.failures] == ([KeyError] if b"boom" in sent else [])


@pytest.mark.parametrize("sent", [b"", b"H", HELLO[:9], HELLO, HELLO + data(b"{}"), HELLO + data(b"{}")[:6]])
def test_a_client_that_hangs_up_half_way_asks_nothing(desk: Desk, sent: bytes) -> None:
    with desk.connect() as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        assert answer(sock) == b""
    assert desk.asked == [] and desk.failures == []
    assert ask(desk) == hook_line.answer(b"BeforeTool {}")


def test_another_users_process_is_not_even_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "peer_of", lambda _: (os.getpid(), os.getuid() + 1))
    assert ask_refused(desk) == b""
    assert desk.asked == []
    monkeypatch.undo()
    assert ask(desk) == hook_line.answer(b"BeforeTool {}")


def ask_refused(desk: Desk) -> bytes:
    with desk.connect() as sock:
        try:
            sock.sendall(HELLO + data(b"{}") + END)
        except BrokenPipeError:
            return b""
        return answer(sock)


def test_the_peer_is_asked_of_the_kernel() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert peer_of(left) == (os.getpid(), os.getuid())


def test_twenty_clients_at_once(desk: Desk) -> None:
    """Parallel tool calls: each is answered although all of them wait at the same time, for the bucket say."""
    together = threading.Barrier(20)
    handle = desk.handle

    def waiting(call: HookRequest) -> bytes | None:
        together.wait(PATIENCE)
        return handle(call)

    desk.server._handle = waiting
    got: dict[bytes, bytes] = {}

    def call(number: int) -> None:
        payload = b"%d" % number * 1000
        got[payload] = ask(desk, payload)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(got) == 20
    assert all(found == hook_line.answer(b"BeforeTool " + sent) for sent, found in got.items())


@pytest.mark.parametrize("said", [b"", b"H\0", hook_line.frame(hook_line.HELLO, b"x")[:6]])
def test_who_connects_and_says_nothing_holds_up_nobody_for_long(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that leaks connections must not use up the descriptors that log and lease need (I5)."""
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(server_module, "HELLO_SECONDS", 0.2)
    with short_folder() as folder, ExitStack() as silent:
        desk = Desk(folder)
        silent.callback(desk.server.close)
        for _ in range(12):
            silent.enter_context(desk.connect()).sendall(said)
        assert sum(t.name == "hook" for t in threading.enumerate()) <= 4
        assert ask(desk, b"x") == hook_line.answer(b"BeforeTool x")


def takes_a_byte(sock: socket.socket) -> bool:
    try:
        sock.sendall(b"x")
    except BrokenPipeError:  # it was dropped since the last look
        return False
    return not select.select([sock], [], [], 0.05)[0]


def test_a_request_that_never_is_whole_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "IDLE", 0.3)
    with short_folder() as folder:
        desk = Desk(folder)
        with desk.connect() as sock:
            sock.sendall(HELLO + data(b"x" * 1000)[:20])
            assert not all(takes_a_byte(sock) for _ in range(100))  # each comes in time
        desk.server.close()
    assert desk.asked == []


def test_a_lack_of_descriptors_passes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I6: one accept that fails must not deny every later tool of the run."""
    real, failed = desk.server._socket, threading.Event()

    class Short:
        def accept(self) -> tuple[socket.socket, object]:
            if not failed.is_set():
                failed.set()
                raise OSError(errno.EMFILE, "Too many open files")
            return real.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    monkeypatch.setattr(desk.server, "_socket", Short())
    ask(desk)  # the accept that was under way
    assert ask(desk) == hook_line.answer(b"BeforeTool {}")
    assert failed.is_set()


def test_a_closed_server_takes_no_call_and_leaves_its_place_to_the_next(desk: Desk) -> None:
    """An agent that asks to be started again gets a new server on the same path."""
    desk.server.close()
    with pytest.raises(OSError, match=r"refused|No such file"):
        desk.connect()
    until(lambda: not desk.server._thread.is_alive(), "its thread ends")
    again = Desk(desk.path.parent)
    assert ask(again) == hook_line.answer(b"BeforeTool {}")
    again.server.close()


def test_the_callers_ancestors_are_read_when_it_connects(desk: Desk) -> None:
    """Also of a client that is gone before its call is looked at."""
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
        "s.sendall(bytes.fromhex(sys.argv[2])); s.recv(1)"
    )
    sent = (HELLO + data(b"{}") + END).hex()
    subprocess.run(["sh", "-c", f"{sys.executable} -c '{program}' {desk.path} {sent}; true"], check=True)
    (chain,) = desk.chains
    assert [Path(process.argv[0]).name for process in chain] == [Path(sys.executable).name, "sh"]
    assert chain[0].parent == chain[1].pid and chain[1].parent == os.getpid()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (UsageError("no", "do that"), UsageError),
        (PersonNeeded("no", "do that"), PersonNeeded),
        (ConfigError("no", "do that"), ConfigError),
        (Unavailable("no", "do that"), Unavailable),
        (Fenced("no", "do that"), Unavailable),  # that run's, and not the command's own
    ],
)
def test_a_command_ends_as_the_run_refused_it(error: WalAgentError, raised: type[WalAgentError]) -> None:
    with pytest.raises(raised) as refused:
        unless_refused(refusal(error))
    assert (refused.value.what, refused.value.hint) == ("no", "do that")


def test_what_a_run_answered_is_passed_on() -> None:
    assert unless_refused({"job": "a"}) == {"job": "a"} and unless_refused(None) is None


def test_another_socket_in_its_place_is_seen(desk: Desk) -> None:
    """I5: also one that came after ours was removed, whose number a file system may have used before."""
    away = desk.path.with_name("x")
    assert not desk.server.is_replaced
    desk.path.rename(away)
    assert not desk.server.is_replaced  # nothing is there, and hooks refuse
    away.rename(desk.path)
    assert not desk.server.is_replaced
    desk.path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(desk.path))
        assert desk.server.is_replaced


AGENT = """
import os, signal, subprocess, sys
hook = subprocess.Popen(["bash", "-c", os.environ["LINE"]], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
hook.stdin.write(b'{"session_id":')
hook.stdin.flush()
end = sys.stdin.readline().strip()
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
hook.stdin.close()
if end == "ends its hook":
    hook.kill()
hook.wait()
"""


@pytest.mark.parametrize("end", ["killed", "ends its hook", "waits"])
def test_half_of_what_a_hook_is_given_is_a_failure_only_where_the_agent_waits(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose agent was killed while it told a hook ended with 78, for a payload that cannot be read."""
    monkeypatch.setattr(callers, "ENDING", 0.05 if end == "waits" else PATIENCE)
    accepted, outcome = threading.Event(), list[object]()

    def read(pid: int, supervisor: int) -> Ancestry:
        try:
            return ancestry_of(pid, supervisor)
        finally:
            accepted.set()

    monkeypatch.setattr(server_module, "ancestry_of", read)
    with short_folder() as folder:
        handler = HookHandler(Post(folder).context, cast(Any, None), cast(Any, None), cast(Any, None))

        def answer(request: HookRequest) -> bytes | None:
            try:
                outcome.append(handler.answer(request))
            except Unreadable as error:
                outcome.append(type(error))
            return None

        server = HookServer(folder / "hook.sock", "run", answer, outcome.append)
        server.start()
        line = gemini_line(HookSetup("run", folder, hook_line.client_command()), "BeforeTool")
        argv, env = [sys.executable, "-c", AGENT], {**os.environ, MARKER: "run", "LINE": line}
        with handler.callers.starting() as began:
            agent = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE)
            began(agent.pid)
        assert accepted.wait(PATIENCE) and agent.stdin is not None
        agent.stdin.write(f"{end}\n".encode())
        agent.stdin.close()
        until(lambda: bool(outcome), "the hook was answered")
        agent.wait(PATIENCE)
        server.close()
    assert outcome == [Unreadable if end == "waits" else None]
