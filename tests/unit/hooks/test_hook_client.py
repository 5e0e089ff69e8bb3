"""Each hook client as a process, against a socket: it prints what the server says, or nothing at all (I5)."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from wal_agent.agents import hook_line
from wal_agent.agents.hook_line import MAX_FRAME

ADDRESS = 107 if sys.platform == "linux" else 103  # bytes that a socket's path can have
Argv = tuple[str, ...]
Serve = Callable[[socket.socket], None]


@contextmanager
def serving(serve: Serve) -> Iterator[str]:
    """A socket that takes one call; gives its path. What `serve` raises is raised here, at the end."""
    raised: list[BaseException] = []
    with tempfile.TemporaryDirectory(prefix="wa-", dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"{folder}/s")
        sock.listen(1)

        def accept() -> None:
            try:
                peer, _ = sock.accept()
                with peer:
                    peer.settimeout(30)
                    serve(peer)
            except BaseException as error:  # noqa: BLE001 - raised again below
                raised.append(error)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"{folder}/s"
        thread.join(60)
        assert not thread.is_alive()
    if raised:
        raise raised[0]


def arguments(path: str, seconds: object = 30) -> Argv:
    return (path, "run", "gemini", "BeforeTool", "77", str(seconds))


def ends(argv: Argv, payload: bytes = b"{}") -> tuple[int, bytes]:
    done = subprocess.run(
        argv, input=payload, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False
    )
    return done.returncode, done.stdout


def take(peer: socket.socket, call: hook_line.Call | None = None) -> hook_line.Call:
    call = hook_line.Call() if call is None else call
    while not call.complete:
        data = peer.recv(1 << 16)
        assert data, "the client closed before its payload's end"
        call.feed(data)
    return call


def wait_for_the_end(peer: socket.socket, call: hook_line.Call) -> None:
    """Until the client has said T, or closed."""
    while not call.told and (data := peer.recv(100)):
        call.feed(data)


# ---- a whole answer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 3_000_001])
def test_it_carries_the_payload_prints_the_answer_and_says_so(client: Argv, size: int) -> None:
    payload = os.urandom(size)
    call = hook_line.Call()

    def serve(peer: socket.socket) -> None:
        take(peer, call)
        peer.sendall(hook_line.answer(b"answer\0"))
        wait_for_the_end(peer, call)

    with serving(serve) as path:
        process = subprocess.Popen([*client, *arguments(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.communicate(payload, 60)[0] == b"answer\0"
    assert process.returncode == 0
    assert call.hello == hook_line.Hello("run", "gemini", "BeforeTool", process.pid, 77)
    assert (bytes(call.payload), call.told) == (payload, True)


def test_an_unknown_agent_pid_is_empty(client: Argv) -> None:
    def serve(peer: socket.socket) -> None:
        hello = take(peer).hello
        assert hello is not None
        assert hello.agent_pid == 0

    with serving(serve) as path:
        ends((*client, path, "run", "gemini", "BeforeTool", "", "30"))


def test_a_payload_of_64_mib_goes_to_a_server_that_reads_little_by_little(client: Argv) -> None:
    payload = os.urandom(1 << 20) * 64
    call = hook_line.Call()

    def serve(peer: socket.socket) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        while not call.complete:
            call.feed(peer.recv(5000))
        peer.sendall(hook_line.answer(b"x\0"))
        wait_for_the_end(peer, call)

    with serving(serve) as path:
        assert ends((*client, *arguments(path, 60)), payload) == (0, b"x\0")
    assert call.payload == payload


def stop_and_go_on(process: subprocess.Popen[bytes]) -> None:
    """Ends a write that waits for its reader in the middle."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    process.send_signal(signal.SIGCONT)


def test_the_largest_answer_is_printed_whole(client: Argv) -> None:
    printed = os.urandom(MAX_FRAME)
    call = hook_line.Call()

    def serve(peer: socket.socket) -> None:
        take(peer, call)
        peer.sendall(hook_line.answer(printed))
        wait_for_the_end(peer, call)

    with serving(serve) as path:
        process = subprocess.Popen([*client, *arguments(path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert process.stdout is not None
        out = b""
        for _ in range(50):
            out += os.read(process.stdout.fileno(), 5000)
            stop_and_go_on(process)
        out += process.stdout.read()
        process.stdout.close()
        assert process.wait(30) == 0
    assert (out == printed, call.told) == (True, True)


def test_an_answer_that_comes_early_and_in_pieces_is_taken_after_the_payload(client: Argv) -> None:
    call = hook_line.Call()

    def serve(peer: socket.socket) -> None:
        for byte in hook_line.answer(b"early\0"):
            peer.sendall(bytes([byte]))
        take(peer, call)
        wait_for_the_end(peer, call)

    with serving(serve) as path:
        assert ends((*client, *arguments(path)), bytes(1 << 20)) == (0, b"early\0")
    assert len(call.payload) == 1 << 20


def test_a_client_that_is_stopped_again_and_again_loses_nothing(client: Argv) -> None:
    payload = os.urandom(4 << 20)
    call = hook_line.Call()
    started: queue.Queue[subprocess.Popen[bytes]] = queue.Queue()

    def serve(peer: socket.socket) -> None:
        process = started.get(timeout=30)
        for _ in range(50):
            call.feed(peer.recv(5000))
            stop_and_go_on(process)
        take(peer, call)
        stop_and_go_on(process)
        peer.sendall(hook_line.answer(b"on\0"))
        wait_for_the_end(peer, call)

    with serving(serve) as path:
        process = subprocess.Popen([*client, *arguments(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.put(process)
        assert process.communicate(payload, 60)[0] == b"on\0"
    assert call.payload == payload


# ---- no answer ----------------------------------------------------------------------------------------------------


def close_at_once(peer: socket.socket) -> None:
    pass


def close_in_the_payload(peer: socket.socket) -> None:
    peer.recv(100_000)


def close_after_the_payload(peer: socket.socket) -> None:
    take(peer)


def half_a_head(peer: socket.socket) -> None:
    take(peer)
    peer.sendall(b"A\0")


def a_head_alone(peer: socket.socket) -> None:
    take(peer)
    peer.sendall(hook_line.answer(b"x" * 100)[:5])


def half_an_answer(peer: socket.socket) -> None:
    take(peer)
    peer.sendall(hook_line.answer(b"x" * 100)[:50])


def all_but_a_byte_of_the_largest(peer: socket.socket) -> None:
    take(peer)
    peer.sendall(hook_line.answer(bytes(MAX_FRAME))[:-1])


def another_frame(peer: socket.socket) -> None:
    take(peer)
    peer.sendall(hook_line.frame(b"T"))


def garbage(peer: socket.socket) -> None:
    take(peer)
    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")


def a_byte_too_much(peer: socket.socket) -> None:
    take(peer)
    with suppress(OSError):  # the client need not wait for it
        peer.sendall(b"A" + (MAX_FRAME + 1).to_bytes(4, "big") + bytes(MAX_FRAME + 1))


def a_length_of_4_gib(peer: socket.socket) -> None:
    take(peer)
    with suppress(OSError):
        peer.sendall(b"A\xff\xff\xff\xff" + bytes(1 << 16))


BROKEN = [
    close_at_once,
    close_in_the_payload,
    close_after_the_payload,
    half_a_head,
    a_head_alone,
    half_an_answer,
    all_but_a_byte_of_the_largest,
    another_frame,
    garbage,
    a_byte_too_much,
    a_length_of_4_gib,
]


@pytest.mark.parametrize("serve", BROKEN)
def test_without_a_whole_answer_it_prints_nothing_and_fails(client: Argv, serve: Serve) -> None:
    with serving(serve) as path:
        code, out = ends((*client, *arguments(path)), bytes(1 << 20))
    assert (code != 0, out) == (True, b"")


def hang_after_the_payload(peer: socket.socket) -> None:
    with suppress(OSError, AssertionError):  # the deadline may be over before all is sent
        take(peer)
        assert peer.recv(1) == b""


def hang_in_the_answer(peer: socket.socket) -> None:
    with suppress(OSError, AssertionError):
        take(peer)
        peer.sendall(hook_line.answer(b"x" * 100)[:50])
        assert peer.recv(1) == b""


@pytest.mark.parametrize(
    ("serve", "alarm"),
    [
        (hang_after_the_payload, "default"),
        (hang_in_the_answer, "default"),
        (hang_after_the_payload, "ignored"),
        (hang_after_the_payload, "blocked"),
    ],
)
def test_a_server_that_hangs_meets_the_deadline(client: Argv, serve: Serve, alarm: str) -> None:
    """Also where whoever started the client had the alarm's signal ignored or blocked."""

    def prepare() -> None:
        if alarm == "ignored":
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        if alarm == "blocked":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])

    with serving(serve) as path:
        done = subprocess.run(
            [*client, *arguments(path, 1)], input=b"{}", stdout=-1, timeout=30, check=False, preexec_fn=prepare
        )
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, b"")


def test_an_agent_that_never_ends_its_payload_meets_the_deadline(client: Argv) -> None:
    def serve(peer: socket.socket) -> None:
        while peer.recv(1 << 16):
            pass

    with serving(serve) as path:
        process = subprocess.Popen([*client, *arguments(path, 1)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the deadline may be over before it is sent
            process.stdin.write(b"{")
            process.stdin.flush()
        assert process.wait(30) == -signal.SIGALRM
        with suppress(BrokenPipeError):
            process.stdin.close()
        assert process.stdout is not None
        assert process.stdout.read() == b""
        process.stdout.close()


def test_a_server_that_never_accepts_meets_the_deadline(client: Argv, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        sock.listen(0)
        assert ends((*client, *arguments(str(tmp_path / "s"), 1)), bytes(1 << 22)) == (-signal.SIGALRM, b"")


def test_a_client_that_is_killed_says_nothing(client: Argv) -> None:
    started: queue.Queue[subprocess.Popen[bytes]] = queue.Queue()

    def serve(peer: socket.socket) -> None:
        call = take(peer)
        process = started.get(timeout=30)
        process.kill()
        process.wait()
        with suppress(OSError):
            peer.sendall(hook_line.answer(b"answer\0"))
        with suppress(ConnectionError):
            wait_for_the_end(peer, call)
        assert not call.told

    with serving(serve) as path:
        process = subprocess.Popen([*client, *arguments(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.put(process)
        assert process.communicate(b"{}", 30)[0] == b""


def test_without_a_server_it_fails(client: Argv, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "refused"))
    for name in ("none", "file", "refused"):
        code, out = ends((*client, *arguments(str(tmp_path / name))))
        assert (code != 0, out) == (True, b""), name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_server_of_another_user_is_not_asked(client: Argv) -> None:
    """After the run its folder's name is free: who takes it could allow everything."""
    ready, said = os.pipe()
    with tempfile.TemporaryDirectory(prefix="wa-", dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        code = (
            "import os, socket; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
            f"s = socket.socket(socket.AF_UNIX); s.bind('{folder}/s'); s.listen(1); os.write({said}, b'x');"
            f"c, _ = s.accept(); c.sendall({hook_line.answer(b'answer')!r})\n"
            f"while d := c.recv(9999): os.write({said}, d)"
        )
        other = subprocess.Popen([hook_line.python_client()[0], "-I", "-c", code], pass_fds=[said])
        os.close(said)
        assert os.read(ready, 1) == b"x"
        got, out = ends((*client, *arguments(f"{folder}/s")), b"secret")
        other.wait(30)
        assert (got != 0, out, os.read(ready, 100)) == (True, b"", b"")
        os.close(ready)


# ---- who started it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("s",),
        ("s", "run", "gemini", "BeforeTool", "77"),
        (*arguments("s"), "more"),
        arguments("s", 0),
        arguments("s", -1),
        arguments("s", "x"),
        arguments("s", "5x"),
        arguments("s", ""),
        arguments("s", 10**20),
        arguments(""),
        arguments("s" * 108),
        arguments("s" * 100_000),
    ],
    ids=lambda argv: " ".join(argv)[:60],
)
def test_arguments_that_do_not_fit_are_a_failure(client: Argv, argv: Argv, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"/proc/self/cwd/{os.path.relpath(tmp_path)}/s")
        sock.listen(1)
        done = subprocess.run([*client, *argv], cwd=tmp_path, input=b"", capture_output=True, timeout=30, check=False)
    assert (done.returncode > 0, done.stdout) == (True, b"")


def test_a_path_that_is_too_long_is_not_cut(client: Argv) -> None:
    """A cut one may be somebody else's."""
    with tempfile.TemporaryDirectory(prefix="wa-", dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as sock:
        path = f"{folder}/".ljust(ADDRESS, "s")
        sock.bind(path)
        sock.listen(1)
        sock.setblocking(False)
        code, out = ends((*client, *arguments(path + "x")))
        assert (code != 0, out) == (True, b"")
        with pytest.raises(BlockingIOError):
            sock.accept()


def test_a_hello_that_is_too_long_is_not_sent_in_part(client: Argv) -> None:
    """Up to what the wire takes; nothing that was cut."""
    run = "r" * 100_000

    def serve(peer: socket.socket) -> None:
        call = hook_line.Call()
        while not call.complete and (data := peer.recv(1 << 16)):
            call.feed(data)
        assert call.hello is None or call.hello.run == run

    with serving(serve) as path:
        assert ends((*client, path, run, "gemini", "BeforeTool", "77", "30"))[1] == b""


@pytest.mark.parametrize("fd", [0, 1])
def test_a_closed_stdin_or_stdout_is_a_failure_and_nobody_was_told(client: Argv, fd: int) -> None:
    """R7: the socket gets the lowest free number, and must not be taken for what the shell reads."""

    def serve(peer: socket.socket) -> None:
        call = hook_line.Call()
        with suppress(ConnectionError):
            peer.sendall(hook_line.answer(b"answer\0"))
            while data := peer.recv(100):
                call.feed(data)
        assert not call.told

    with serving(serve) as path:
        closed = ("<&-", ">&-")[fd]
        line = f'exec "$@" {closed}'
        code, out = ends(("bash", "-c", line, "bash", *client, *arguments(path)))
        with suppress(OSError), socket.socket(socket.AF_UNIX) as sock:  # a client that does not even connect
            sock.connect(path)
    assert (code != 0, out) == (True, b"")


def test_it_is_told_of_no_answer_when_nobody_reads_it(client: Argv) -> None:
    """R7: the pipe to the shell is closed, so the agent was told nothing; no T is sent."""
    started: queue.Queue[subprocess.Popen[bytes]] = queue.Queue()

    def serve(peer: socket.socket) -> None:
        call = take(peer)
        stdout = started.get(timeout=30).stdout
        assert stdout is not None
        stdout.close()
        peer.sendall(hook_line.answer(b"answer\0"))
        wait_for_the_end(peer, call)
        assert not call.told

    with serving(serve) as path:
        process = subprocess.Popen(
            [*client, *arguments(path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        started.put(process)
        assert process.wait(30) > 0  # not by SIGPIPE


# ---- a hostile server ---------------------------------------------------------------------------------------------

FRAMES = st.builds(
    lambda kind, size, body: kind + size.to_bytes(4, "big") + body,
    st.sampled_from([b"A", b"A", b"A", b"T", b"\0", b"\xff"]),
    st.one_of(st.integers(0, 40), st.sampled_from([MAX_FRAME, MAX_FRAME + 1, 1 << 31, (1 << 32) - 1])),
    st.binary(max_size=40),
)


@pytest.mark.parametrize("name", ["native", "python"])
@given(said=st.one_of(FRAMES, st.binary(max_size=12)))
@settings(max_examples=examples(60))
def test_whatever_a_server_says_only_a_whole_answer_is_printed(
    clients: dict[str, Argv], name: str, said: bytes
) -> None:
    size = int.from_bytes(said[1:5], "big")
    whole = len(said) >= 5 and said[:1] == b"A" and size <= min(MAX_FRAME, len(said) - 5)

    def serve(peer: socket.socket) -> None:
        take(peer)
        with suppress(OSError):
            peer.sendall(said)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(100):
                pass

    with serving(serve) as path:
        code, out = ends((*clients[name], *arguments(path)))
    assert (code == 0, out) == (whole, said[5 : 5 + size] if whole else b"")


# ---- its size -----------------------------------------------------------------------------------------------------


def test_the_portable_one_imports_only_built_in_modules() -> None:
    """Its start is on the way of every tool call: no site, no json, no socket.py."""
    lines = Path(hook_line.python_client()[-1]).read_text().splitlines()
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert imported == {"_signal", "_socket", "posix", "sys"}


def test_the_native_one_tells_which_wire_it_speaks(clients: dict[str, Argv]) -> None:
    assert ends((*clients["native"], hook_line.VERSION)) == (0, b"")
    assert ends((*clients["native"], hook_line.VERSION + "0"))[0] != 0
